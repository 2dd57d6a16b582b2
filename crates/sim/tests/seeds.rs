//! Many seeds, and every scenario.

use leveret_sim::{SCENARIOS, run_seeds};

#[test]
fn seeds() {
    let report = run_seeds(0, 40, 3_000).unwrap_or_else(|failure| panic!("{failure}"));
    // A simulation in which nothing happens would hold all its checks.
    let totals = report.totals;
    assert!(totals.acked > 5_000 && totals.nacked > 50 && totals.returned > 100, "{report:?}");
    assert!(totals.received > 20_000 && totals.resets > 50, "{report:?}");
}

#[test]
fn scenarios() {
    for scenario in SCENARIOS {
        if let Err(failure) = scenario.run() {
            panic!("{}: {failure}", scenario.name);
        }
    }
}
