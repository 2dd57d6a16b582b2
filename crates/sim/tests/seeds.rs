//! Many seeds, and every scenario.

use leveret_sim::{Agreed, Faults, Options, SCENARIOS, Seed, run_seed, run_seeds};

#[test]
fn seeds() {
    let report = run_seeds(0, 20, 3_000).unwrap_or_else(|failure| panic!("{failure}"));
    // A simulation in which nothing happens would hold all its checks.
    let totals = report.totals;
    assert!(totals.acked > 3_000 && totals.nacked > 30 && totals.returned > 50, "{report:?}");
    assert!(totals.received > 7_000 && totals.resets > 20 && totals.committed > 100, "{report:?}");
    assert!(totals.crashes > 20 && totals.stops > 5 && totals.recovered > 300, "{report:?}");
    assert!(totals.said_again > 10 && totals.purged > 10 && totals.deleted > 10, "{report:?}");
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

/// What was answered before it was agreed upon is undone by a crash: an ack that was committed, a purge, a deletion, a
/// declaration. It takes some dozens of seeds: few acks are committed alone just before a crash, and few purges come then.
#[test]
fn an_answer_before_agreement_is_found() {
    let run = |agreed, seed| {
        let options = Options::of(Seed(seed));
        let none = Faults { power: 0, stop: 0, rest: 0, reset: 0, ..options.faults };
        let none = Faults { silence: 0, close: 0, night: 0, alarm: 0, fail: 0, full: 0, ..none };
        let faults = Faults { kill: 1_500, pause: 0, ..none };
        let options = Options { agreed, has_disks: true, shards: 1, clients: 3, faults, ..options };
        run_seed(Seed(seed), options, 9_000)
    };
    let mut undone = vec![
        "again after it was settled",
        "again after it was purged",
        "deleted and is back",
        "is gone",
    ];
    for seed in 0..200 {
        let Err(early) = run(Agreed::CutButAnsweredBefore, seed) else { continue };
        let is_it = |undone: &&str| early.what.ends_with(undone);
        let before = undone.len();
        undone.retain(|undone| !is_it(undone));
        if undone.len() < before {
            // It is the answer's fault.
            run(Agreed::Cut, seed).unwrap();
        }
        if undone.is_empty() {
            return;
        }
    }
    panic!("an early answer is found, but not of what is {undone:?}");
}
