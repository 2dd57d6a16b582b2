//! Many seeds, and every scenario.

use leveret_sim::{Agreed, Options, SCENARIOS, Seed, run_seed, run_seeds};

#[test]
fn seeds() {
    let report = run_seeds(0, 20, 3_000).unwrap_or_else(|failure| panic!("{failure}"));
    // A simulation in which nothing happens would hold all its checks.
    let totals = report.totals;
    assert!(totals.acked > 3_000 && totals.nacked > 30 && totals.returned > 50, "{report:?}");
    assert!(totals.received > 7_000 && totals.resets > 20 && totals.committed > 100, "{report:?}");
    assert!(totals.crashes > 20 && totals.stops > 5 && totals.recovered > 300, "{report:?}");
    assert!(totals.said_again > 10, "{report:?}");
    assert!(totals.full > 3 && totals.rests > 10 && totals.moved > 30, "{report:?}");
}

#[test]
fn scenarios() {
    for scenario in SCENARIOS {
        if let Err(failure) = scenario.run() {
            panic!("{}: {failure}", scenario.name);
        }
    }
}

#[test]
fn giving_out_what_is_not_agreed_upon_is_found() {
    let found = (0..10).filter_map(|seed| {
        let seed = Seed(seed);
        let options = Options { agreed: Agreed::LaterButReadBefore, ..Options::of(seed) };
        run_seed(seed, options, 3_000).err()
    });
    let found: Vec<_> = found.map(|failure| failure.what).collect();
    assert_eq!(found.len(), 10, "{found:?}");
    assert!(found.iter().all(|what| what.contains("agreed upon")), "{found:?}");
}
