//! Seeds of the world.

use super::world::{Planted, World};

/// Seeds of an ordinary run. `SEEDS=20000 cargo test -p leveret-replica seeds` runs more.
pub(super) const SEEDS: u64 = 1_000;

/// Runs this seed, and says how it went.
fn run(seed: u64) -> Result<World, String> {
    let mut world = World::new(seed, Planted::None);
    world.run().map_err(|what| format!("seed {seed}, at {} ms: {what}", world.now_ms))?;
    Ok(world)
}

#[test]
fn a_thousand_seeds_hold() {
    let (mut terms, mut cuts, mut installs, mut changes) = (0, 0, 0, 0);
    let seeds = std::env::var("SEEDS").ok().and_then(|it| it.parse().ok()).unwrap_or(SEEDS);
    for seed in 0..seeds {
        let world = run(seed).unwrap();
        terms += world.terms;
        cuts += world.cuts;
        installs += world.installs;
        changes += world.changes;
    }
    eprintln!("{terms} leaders, {cuts} cuts, {installs} snapshots, {changes} changes");
    assert!(terms > 3 * seeds && cuts > seeds / 4, "the world is too quiet");
    assert!(installs > seeds / 4 && changes > seeds / 2, "the world is too quiet");
}

#[test]
fn a_seed_has_one_trace() {
    for seed in 0..20 {
        let [first, second] = [0; 2].map(|_| run(seed).unwrap());
        assert_eq!((first.trace, first.now_ms), (second.trace, second.now_ms), "seed {seed}");
    }
    let traces: std::collections::BTreeSet<_> =
        (0..20).map(|seed| run(seed).unwrap().trace).collect();
    assert_eq!(traces.len(), 20, "each seed is another run");
}
