//! A deterministic simulator: the real sessions, topology, shards and logs under a seeded scheduler, in
//! virtual time, with clients that speak real AMQP and misbehave on purpose.
//!
//! Nothing here is random but the seed: the same seed gives the same run to the byte, on every machine.
//! So a failure is a number, and once understood it becomes a [scenario](SCENARIOS).
//!
//! What is simulated, and what goes wrong: turns in any order among actors and over any part of an
//! inbox; input split anywhere; readers that stall and sockets that fill; connections that are reset with
//! bytes under way in both directions; channels closed for a mistake; queues that vanish; policies that
//! come and go; a process that stands still while its clients go on; letters about transactions that come twice. In three seeds of four logs are in files, on disks that are slow, get full or fail; the
//! process is killed, the power is cut, or the broker is stopped in good order, and all of it comes back
//! from what the disks kept.
//!
//! What is checked, at every step ([`Failure`] says which did not hold):
//!
//! - no confirmed message is lost, until it is settled, expired, dropped by a limit or dead-lettered;
//!   over a restart this holds for persistent ones, confirmed or committed;
//! - a confirm of the rules `ack` and `ack-lean` comes after a consumer's ack;
//! - what is transient or exclusive does not survive a restart, what was declared, bound, deleted or said
//!   by a policy does; a settlement that had time to get to the disk is not undone;
//! - no phantom: nothing is delivered that was not published there, or was refused; bodies are intact;
//! - per queue and publishing channel, messages are given out in order the first time;
//! - unacked messages never exceed a prefetch, per consumer and per channel;
//! - what came into a shard's queues is there, or left in one of the known ways; the log holds no more;
//! - `redelivered` is set on every redelivery, over restarts too; what was settled does not come back;
//! - each publish is confirmed exactly once, unroutable ones after their return;
//! - what waits for a socket stays within its limit;
//! - a direct reply comes to the channel that asked, at most once;
//! - an exclusive consumer is alone, and refuses nobody once it is gone;
//! - queues keep to their lengths, and end up with the options that arguments and policies say;
//! - a log's watermarks are in order and never go back;
//! - nothing is given out before its record is readable, which in a third of the seeds is some time after it was
//!   written, as with members that have to agree ([`Agreed`]); in some of them a crash loses what was not agreed upon,
//!   and a commit, a purge, a deletion or a declaration that was answered stands all the
//!   same;
//! - once faults end, every queue drains, and then neither memory nor disk is held.
//!
//! Where: [`Sim`] draws what happens; [`Node`] runs the broker's actors, and serves other tests that want
//! a whole node in one process; `checks` looks at it after every turn; `disk` has the disks, `life` starts
//! and stops a node on them, `restart` says when; `client` is the other end of the sockets; `shadow` knows
//! what must be true; `plan` names the queues.

mod checks;
mod client;
mod commands;
mod disk;
mod life;
mod link;
mod mover;
mod node;
mod plan;
mod policies;
mod random;
mod restart;
mod scenario;
mod shadow;
mod sim;
mod site;
mod trace;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use node::{Actor, Node, Socket};
pub use random::Seed;
pub use scenario::{SCENARIOS, Scenario};
pub use shadow::Totals;
pub use sim::{Agreed, Failure, Faults, Options, Outcome, Sim};

/// Events that the report of a failure shows.
const LINES: usize = 200;

/// What many runs came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Seeds that were run.
    pub seeds: u64,
    /// Steps of all runs.
    pub steps: u64,
    /// Virtual milliseconds of all runs.
    pub elapsed_ms: u64,
    /// What was sent and seen in all runs.
    pub totals: Totals,
}

/// Runs `count` seeds from `first` on, each for `steps` steps and until all is drained. The first two seeds,
/// of which at least one has disks, are run twice, which must not make a difference.
pub fn run_seeds(first: u64, count: u64, steps: u32) -> Result<Report, Failure> {
    let mut report = Report::default();
    for seed in (first..first.saturating_add(count)).map(Seed) {
        let outcome = run_seed(seed, Options::of(seed), steps)?;
        if seed.0 <= first + 1 {
            let again = run_seed(seed, Options::of(seed), steps)?;
            if again != outcome {
                let what = format!("the same seed gave {outcome:?} and {again:?}");
                return Err(Failure { seed, step: outcome.steps, what, recent: String::new() });
            }
        }
        report.add(&outcome);
    }
    Ok(report)
}

/// Runs one seed to its end. A failing run is run again to tell its last events.
pub fn run_seed(seed: Seed, options: Options, steps: u32) -> Result<Outcome, Failure> {
    try_seed(seed, options, steps).map_err(|failure| {
        let lines = options.lines.max(LINES);
        let again = try_seed(seed, Options { lines, ..options }, steps);
        again.err().unwrap_or(failure)
    })
}

fn try_seed(seed: Seed, options: Options, steps: u32) -> Result<Outcome, Failure> {
    let mut sim = Sim::new(seed, options);
    let run = AssertUnwindSafe(|| {
        sim.set_up()?;
        sim.run(steps)?;
        sim.settle()
    });
    // An assertion of the broker is a finding like any other.
    catch_unwind(run).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("panic");
        Err(sim.failure(format!("panic: {text}")))
    })
}

impl Report {
    /// Adds one run.
    pub fn add(&mut self, outcome: &Outcome) {
        self.seeds += 1;
        self.steps += outcome.steps;
        self.elapsed_ms += outcome.elapsed_ms;
        self.totals.add(&outcome.totals);
    }
}
