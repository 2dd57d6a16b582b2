//! How fast a whole node in one process moves messages through a topic exchange, by its number of
//! bindings. Keys are more than a session remembers, so every message is routed anew.
//!
//! `cargo run --release -p leveret-sim --example topics`

#![allow(clippy::print_stdout, reason = "the result of the program")]

#[path = "../tests/client/mod.rs"]
mod client;
#[path = "../tests/client/topics.rs"]
mod topics;

use std::time::{Duration, Instant};

use topics::Topics;

/// Rounds per size; the quickest counts, for the others were disturbed.
const ROUNDS: usize = 200;

fn main() {
    let mut sizes: Vec<(usize, Topics, Duration)> =
        [100, 1_000, 10_000, 100_000].map(|n| (n, Topics::new(n), Duration::MAX)).into();
    let mut count = 0;
    // By turns, so that a disturbance hits all of them.
    for _ in 0..ROUNDS {
        for (_, topics, quickest) in &mut sizes {
            let start = Instant::now();
            count = topics.round();
            *quickest = start.elapsed().min(*quickest);
        }
    }
    for (bindings, _, quickest) in &sizes {
        let nanos = quickest.as_nanos() as f64 / count as f64;
        let rate = 1e9 / nanos;
        println!("{bindings:>7} bindings: {nanos:>6.0} ns per message, {rate:>9.0} messages/s");
    }
}
