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
    assert!(totals.late > 200, "{report:?}");
    assert!(
        totals.full > 3 && totals.rests > 10 && totals.moved > 30 && totals.losses > 5,
        "{report:?}"
    );
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
    let run =
        |agreed, seed| few_faults(agreed, seed, Faults { kill: 1_500, lose: 0, ..Faults::NONE });
    let mut undone = vec![
        "again after it was settled",
        "again after it was purged",
        "deleted and is back",
        "is gone",
    ];
    for seed in 0..200 {
        let Err(early) = run(Agreed::CutButAnsweredBefore, seed) else { continue };
        let is_it = |undone: &&str| early.ends_with(undone);
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

/// What was told before it was agreed upon is undone when a live shard loses the end of its log, too: a confirm and a delivery,
/// or an answer. It takes a few seeds, and some dozens where an answer is undone: one in twelve or so finds that.
#[test]
fn what_is_told_before_a_loss_is_found() {
    let run = |agreed, seed| few_faults(agreed, seed, Faults { lose: 500, ..Faults::NONE });
    let find = |mistake, seeds, what: &[&str]| {
        let finds = |seed: &u64| {
            run(mistake, *seed).is_err_and(|found| what.iter().any(|what| found.contains(what)))
        };
        let seed = (0..seeds).find(finds).unwrap_or_else(|| panic!("{mistake:?} is not found"));
        // Nothing else is wrong.
        run(Agreed::Cut, seed).unwrap();
    };
    find(Agreed::CutButConfirmedBefore, 20, &["lost: message"]);
    find(Agreed::CutButAnsweredBefore, 100, &["after it was settled", "after it was purged"]);
}

/// Whoever only publishes is not cut off when a shard loses the end of its log, if letters to it have numbers: each of his
/// messages is stored once, and told once.
#[test]
fn publishers_do_not_notice_a_loss() {
    let mut spared = 0;
    for seed in 0..12 {
        let faults = Faults { lose: 200, stall: 50, policy: 100, slow: 100, ..Faults::NONE };
        let options = Options { agreed: Agreed::Cut, has_disks: true, ..Options::of(Seed(seed)) };
        let options = Options { has_links: true, clients: 5, faults, ..options };
        let outcome = run_seed(Seed(seed), options, 3_000);
        let totals = outcome.unwrap_or_else(|failure| panic!("{failure}")).totals;
        assert!(totals.losses > 0, "{totals:?}");
        spared += totals.spared;
    }
    assert!(spared > 100, "{spared}");
}

/// Clients of a second node go on when the node with the shards ends, again and again.
#[test]
fn clients_of_a_second_node_outlive_the_first() {
    let mut outlived = 0;
    for seed in 0..8 {
        let faults = Faults { kill: 300, power: 600, lose: 600, stall: 50, ..Faults::NONE };
        let options = Options { agreed: Agreed::Cut, has_disks: true, ..Options::of(Seed(seed)) };
        let options = Options { has_links: true, has_second: true, clients: 6, faults, ..options };
        let outcome = run_seed(Seed(seed), options, 3_000);
        let totals = outcome.unwrap_or_else(|failure| panic!("{failure}")).totals;
        assert!(totals.crashes > 0, "{totals:?}");
        outlived += totals.outlived;
    }
    assert!(outlived > 100, "{outlived}");
}

/// These instead of most faults of a seed: what is wrong, if something is.
fn few_faults(agreed: Agreed, seed: u64, few: Faults) -> Result<(), String> {
    let options = Options::of(Seed(seed));
    let Faults { stall, policy, slow, twice, .. } = options.faults;
    let faults = Faults { stall, policy, slow, twice, ..few };
    let options = Options { agreed, has_disks: true, shards: 1, ..options };
    let options = Options { has_links: false, has_second: false, ..options };
    let options = Options { clients: 3, faults, ..options };
    run_seed(Seed(seed), options, 9_000).map(|_| ()).map_err(|failure| failure.what)
}
