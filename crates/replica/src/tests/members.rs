//! Members with their logs in files, and shards over the logs of those that lead: what a program uses.

mod faults;
mod shard;
mod world;

use world::World;

/// Seeds of an ordinary run. `FILE_SEEDS=1000 cargo test -p leveret-replica members` runs more.
const SEEDS: u64 = 150;

#[test]
fn seeds_hold_over_logs_in_files() {
    let number = |name| std::env::var(name).ok().and_then(|it| it.parse().ok());
    let seeds = number("FILE_SEEDS").unwrap_or(SEEDS);
    let first = number("FIRST_SEED").unwrap_or(0);
    let mut done = world::Done::default();
    for seed in first..first + seeds {
        // A log may stop the run.
        eprintln!("seed {seed}");
        let mut world = World::new(seed);
        let result = world.run();
        result.map_err(|what| format!("seed {seed}, at {} ms: {what}", world.now_ms)).unwrap();
        done.add(&world.done);
    }
    eprintln!("{done:?}");
    // A third below what 150 seeds have in the mean: they differ by a fifth.
    assert!(done.terms > 3 * seeds && done.restarts > seeds / 4, "it is too quiet");
    assert!(done.wipes > seeds / 2 && done.refills > seeds / 6, "it is too quiet");
    assert!(done.on_all > 6 * seeds && done.left_out > seeds, "it is too quiet");
    assert!(done.changes > seeds / 6 && done.batches > 12 * seeds, "it is too quiet");
    assert!(done.exchanges > seeds / 6, "it is too quiet");
}

#[test]
fn a_seed_has_one_trace() {
    for seed in 0..5 {
        let trace = |seed| {
            let mut world = World::new(seed);
            world.run().unwrap();
            (world.trace, world.now_ms)
        };
        assert_eq!(trace(seed), trace(seed), "seed {seed}");
    }
}
