//! Runs the simulator over seeds until one fails or the time is over, and tells what led to a failure.
//!
//! `cargo xtask sim [--seed N] [--count N] [--seconds N] [--steps N] [--lines N]`
//!
//! With `--seed` alone it runs that one seed and prints its outcome, the last `--lines` lines of what
//! happened with it. Otherwise seeds follow each other from a first one.

#![allow(clippy::print_stdout, reason = "the result of the program")]
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a program, with a clock and arguments"
)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use leveret_sim::{Options, Seed, run_seed};

/// Steps of one seed unless told otherwise.
const STEPS: u64 = 3000;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str| -> Option<u64> {
        let at = words.iter().position(|word| word == name)?;
        Some(words.get(at + 1)?.parse().expect("a number follows the option"))
    };
    let seed = number("--seed");
    let seconds = number("--seconds");
    let count = match (number("--count"), seed, seconds) {
        (Some(count), ..) => count,
        (None, Some(_), _) => 1,
        (None, None, Some(_)) => u64::MAX,
        (None, None, None) => 100,
    };
    let steps = number("--steps").unwrap_or(STEPS) as u32;
    let lines = number("--lines").unwrap_or(0) as usize;
    let first = seed.unwrap_or(0);
    let end = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));

    let mut passed = 0u64;
    for seed in (first..first.saturating_add(count)).map(Seed) {
        if end.is_some_and(|end| Instant::now() >= end) {
            break;
        }
        let options = Options { lines, ..Options::of(seed) };
        match run_seed(seed, options, steps) {
            Ok(outcome) if count == 1 => println!("{seed:?}: {outcome:?}"),
            Ok(_) => {}
            Err(failure) => {
                println!("{failure}\n{passed} passed, 1 failed");
                return ExitCode::FAILURE;
            }
        }
        passed += 1;
    }
    println!("{passed} passed, 0 failed");
    ExitCode::SUCCESS
}
