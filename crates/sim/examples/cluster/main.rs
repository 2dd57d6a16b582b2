//! The whole stack of a cluster below its sockets: real clients, sessions, names, shards and replicated logs on three nodes and on five,
//! whose processes and machines end, whose links are cut, and whose disks lose what was not synced.
//!
//! Each message that was confirmed is given out and settled in the end; what all members in contact are to have is in their logs when it
//! is confirmed; none is stored twice, or comes again without a cause; all nodes have the names that were answered; and when nothing goes
//! wrong any more, all that is asked is answered.
//!
//! `cargo xtask sim --cluster [--seed N] [--count N] [--seconds N] [--jobs N]`
//!
//! The same seed gives the same run. A failure is told with its seed, and the others go on.
//!
//! Where: `whole` has the connections between nodes, and what goes on in each step; `broker` what a process runs. The nodes, their disks,
//! links and what goes wrong are those of `crates/cluster/tests/world`; sessions, clients and what they check those of
//! `crates/node/tests/remote`.

#![allow(clippy::print_stdout, reason = "the result of the program")]

mod broker;
#[path = "../../../node/tests/remote/client.rs"]
mod client;
#[path = "../../../cluster/tests/world/dice.rs"]
mod dice;
#[path = "../../../node/tests/remote/leader.rs"]
mod leader;
#[expect(dead_code, reason = "other worlds do more to their nodes")]
#[path = "../../../cluster/tests/world/node.rs"]
mod node;
#[path = "../../../node/tests/remote/site.rs"]
mod site;
#[path = "../../../node/tests/remote/traffic.rs"]
mod traffic;
mod whole;
mod wire;
#[expect(dead_code, reason = "other worlds do more to their nodes")]
#[path = "../../../cluster/tests/world/world.rs"]
mod world;

use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use traffic::Totals;
use whole::Whole;

/// Steps of 10 ms in which things go wrong: about three leaders follow each other.
const STEPS: u32 = 700;

/// Of so many seeds each kind of thing happens once a seed.
const MANY: u64 = 20;

/// Clients at work while all goes wrong, and the end of it when nothing does any more.
fn run(seed: u64) -> (Totals, [u64; 3]) {
    let count = if seed.is_multiple_of(2) { 5 } else { 3 };
    let mut whole = Whole::new(count, seed);
    for _ in 0..500 {
        if whole.world.leader().is_some() {
            break;
        }
        whole.step(true);
    }
    whole.world.is_rough = true;
    for _ in 0..STEPS {
        whole.trouble();
        whole.step(true);
    }
    whole.rest(seed);
    whole.check(seed);
    let totals = whole.world.shared.traffic.take().totals;
    (totals, [whole.overs, whole.cut_off, whole.on_all])
}

/// What many runs came to.
#[derive(Debug, Default)]
struct Sum {
    next: u64,
    failed: Vec<u64>,
    /// Sessions of a node that ran on were over, and did not attach in time; confirms by all whose copies were looked for.
    counts: [u64; 3],
    totals: Totals,
}

fn main() -> ExitCode {
    let plan = Plan::of(std::env::args().skip(1)).unwrap_or_else(|why| {
        eprintln!("{why}");
        std::process::exit(2)
    });
    let sum = Mutex::new(Sum { next: plan.first, ..Sum::default() });
    let locked = || sum.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        for _ in 0..plan.jobs {
            scope.spawn(|| {
                loop {
                    let seed = {
                        let mut sum = locked();
                        let is_late = plan.until.is_some_and(|until| Instant::now() >= until);
                        if sum.next - plan.first >= plan.count || is_late {
                            return;
                        }
                        sum.next += 1;
                        sum.next - 1
                    };
                    let run = std::panic::catch_unwind(|| {
                        let came = run(seed);
                        let again = (seed == plan.first).then(|| run(seed));
                        assert!(again.is_none_or(|it| it == came), "seed {seed}: two runs differ");
                        came
                    });
                    let mut sum = locked();
                    match run {
                        Ok((totals, counts)) => {
                            sum.totals.add(totals);
                            (0..3).for_each(|it| sum.counts[it] += counts[it]);
                        }
                        Err(_) => {
                            println!("seed {seed} failed");
                            sum.failed.push(seed);
                        }
                    }
                }
            });
        }
    });
    let Sum { next, mut failed, counts: [overs, late, on_all], totals } =
        sum.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("{totals:?}");
    println!(
        "sessions of a node that ran on were over {overs} times, and did not attach in time {late} times"
    );
    println!("copies of what all confirmed were looked for {on_all} times");
    let seeds = next - plan.first;
    let Totals { leaders, confirmed, acked, redelivered, .. } = totals;
    if seeds > MANY && [leaders, confirmed, acked, redelivered, on_all].iter().any(|it| *it < seeds)
    {
        println!("clients did next to nothing");
        failed.push(next);
    }
    if seeds > MANY && (overs > leaders || late > 0) {
        println!("sessions do not go on from leader to leader");
        failed.push(next);
    }
    println!("{} passed, {} failed", seeds.saturating_sub(failed.len() as u64), failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What was asked for.
struct Plan {
    first: u64,
    count: u64,
    jobs: usize,
    until: Option<Instant>,
}

impl Plan {
    fn of(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let jobs = available_parallelism().map_or(1, usize::from);
        let mut plan = Self { first: 0, count: 1, jobs, until: None };
        let mut seconds = None;
        while let Some(word) = words.next() {
            let number = words.next().and_then(|it| it.parse::<u64>().ok());
            let number = number.ok_or_else(|| format!("{word} wants a number"))?;
            match word.as_str() {
                "--seed" => plan.first = number,
                "--count" => plan.count = number,
                "--jobs" => plan.jobs = number.max(1) as usize,
                "--seconds" => seconds = Some(Duration::from_secs(number)),
                _ => {
                    return Err(format!("{word}: there are --seed, --count, --seconds and --jobs"));
                }
            }
        }
        if let Some(time) = seconds {
            (plan.until, plan.count) = (Some(Instant::now() + time), u64::MAX);
        }
        Ok(plan)
    }
}
