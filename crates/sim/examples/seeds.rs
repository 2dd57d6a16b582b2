//! Runs seeds until one fails, and tells what led to it.
//!
//! `cargo run -p leveret-sim --example seeds FIRST COUNT STEPS LINES`

#![allow(clippy::print_stdout, reason = "the result of the program")]
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a program, with a clock and arguments"
)]

use leveret_sim::{Options, Seed, run_seed};

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>().expect("a number"));
    let first = args.next().unwrap_or(0);
    let count = args.next().unwrap_or(100);
    let steps = args.next().unwrap_or(3000) as u32;
    let lines = args.next().unwrap_or(0) as usize;
    for seed in (first..first + count).map(Seed) {
        match run_seed(seed, Options { lines, ..Options::of(seed) }, steps) {
            Ok(outcome) => println!("{seed:?}: {outcome:?}"),
            Err(failure) => return println!("{failure}"),
        }
    }
}
