//! Runs with a name: the corners that must be visited every time, and failures that were found.

use crate::random::Seed;
use crate::sim::{Agreed, Failure, Faults, Options, Outcome};

/// A run with a name.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// What it is about.
    pub name: &'static str,
    /// Where to start from.
    pub seed: Seed,
    /// How big, and what goes wrong.
    pub options: Options,
    /// Steps before all is calm.
    pub steps: u32,
}

impl Scenario {
    /// Runs it to its end.
    pub fn run(&self) -> Result<Outcome, Failure> {
        crate::run_seed(self.seed, self.options, self.steps)
    }
}

const fn scenario(name: &'static str, seed: u64, options: Options, steps: u32) -> Scenario {
    Scenario { name, seed: Seed(seed), options, steps }
}

const NO_FAULTS: Faults = Faults::NONE;
const QUIET: Options = Options {
    shards: 1,
    clients: 1,
    has_disks: false,
    agreed: Agreed::AtOnce,
    has_links: false,
    has_second: false,
    has_command_link: false,
    faults: NO_FAULTS,
    lines: 0,
};

const MANY: Options = Options { clients: 6, shards: 3, ..QUIET };

const DISKS: Options = Options { has_disks: true, ..MANY };

const AGREED: Options = Options { agreed: Agreed::Later, ..DISKS };

impl Options {
    const fn with(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }
}

/// All of them.
#[rustfmt::skip] // a table
pub const SCENARIOS: &[Scenario] = &[
    scenario("one client, one shard, no faults", 1, QUIET, 3_000),
    scenario("many clients, one shard",          2, Options { clients: 8, ..QUIET }, 5_000),
    scenario("many clients, many shards",        3, Options { clients: 8, shards: 4, ..QUIET }, 5_000),
    scenario("stalled readers",                  4, MANY.with(Faults { stall: 40, ..NO_FAULTS }), 5_000),
    scenario("resets all the time",              5, MANY.with(Faults { reset: 100, ..NO_FAULTS }), 8_000),
    scenario("closed by the operator",           6, MANY.with(Faults { close: 100, ..NO_FAULTS }), 5_000),
    scenario("a channel that consumes and gets", 95, Options { clients: 8, shards: 3, ..QUIET }, 8_000),
    scenario("policies come and go",             8, MANY.with(Faults { policy: 30, ..NO_FAULTS }), 8_000),
    scenario("clients fall silent",              9, MANY.with(Faults { silence: 100, ..NO_FAULTS }), 8_000),
    scenario("nights pass",                     10, MANY.with(Faults { night: 300, ..NO_FAULTS }), 8_000),
    scenario("the process stands still",        31, DISKS.with(Faults { pause: 100, ..NO_FAULTS }), 8_000),
    scenario("memory short again and again",     7, MANY.with(Faults { alarm: 200, ..NO_FAULTS }), 8_000),
    scenario("disks without faults",            11, DISKS, 5_000),
    scenario("one shard, killed and killed",    12, Options { shards: 1, ..DISKS }.with(Faults { kill: 300, ..NO_FAULTS }), 6_000),
    scenario("the power is cut",                13, DISKS.with(Faults { power: 300, slow: 50, rest: 500, ..NO_FAULTS }), 8_000),
    scenario("stopped and started",             14, DISKS.with(Faults { stop: 500, slow: 50, reset: 300, ..NO_FAULTS }), 8_000),
    scenario("disks get full",                  15, DISKS.with(Faults { full: 400, rest: 500, power: 1_500, ..NO_FAULTS }), 8_000),
    scenario("disks fail",                      16, DISKS.with(Faults { fail: 400, slow: 50, ..NO_FAULTS }), 8_000),
    scenario("agreed upon later",               18, Options { agreed: Agreed::Later, ..MANY }, 8_000),
    scenario("agreed upon later, on disks",     19, AGREED.with(Faults { slow: 50, close: 200, policy: 50, ..NO_FAULTS }), 8_000),
    scenario("agreed upon later, and killed",   20, AGREED.with(Faults { kill: 300, power: 300, stop: 500, ..NO_FAULTS }), 8_000),
    scenario("what is not agreed upon is lost",   0, Options { agreed: Agreed::Cut, ..DISKS }.with(Faults { kill: 200, power: 300, stop: 1_000, twice: 2, ..NO_FAULTS }), 8_000),
    scenario("shards lose the ends of their logs", 21, Options { agreed: Agreed::Cut, ..DISKS }.with(Faults { lose: 200, reset: 300, twice: 2, ..NO_FAULTS }), 8_000),
    scenario("policies and power cuts",         17, DISKS.with(Faults { policy: 30, power: 400, ..NO_FAULTS }), 8_000),
];
