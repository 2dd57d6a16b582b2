//! What a record costs in the memory log: append, read, release.
//!
//! `cargo run --release -p leveret-log --example memory`

#![allow(clippy::print_stdout, reason = "the result of the program")]

use std::hint::black_box;
use std::time::Instant;

use leveret_log::{Holder, Keep, Log, MemoryLog, Offset};

const ONE: [Holder; 1] = [Holder::new(1)];

fn main() {
    println!("{:>8} {:>10} {:>8} {:>10}", "bytes", "window", "batch", "ns/record");
    for size in [16, 1024] {
        for (window, batch) in [(0, 1), (0, 64), (1000, 1), (1000, 64), (1_000_000, 64)] {
            let best = (0..5).map(|_| run(size, window, batch)).min_by(f64::total_cmp);
            println!("{size:>8} {window:>10} {batch:>8} {:>10.1}", best.unwrap_or(0.0));
        }
    }
}

/// Nanoseconds per record that is appended, read and released, `window` records later; `batch`
/// records are appended before they are read.
fn run(size: usize, window: u64, batch: u64) -> f64 {
    let mut log = MemoryLog::new();
    let body = vec![7; size];
    let (head, body) = body.split_at(8);
    for _ in 0..window {
        log.append(head, &[body], &ONE, Keep::Durable).expect("append");
    }
    let count = 1_000_000 / batch * batch;
    let start = Instant::now();
    for _ in 0..count / batch {
        let first = log.end().get();
        for _ in 0..batch {
            black_box(log.append(head, &[body], &ONE, Keep::Durable)).expect("append");
        }
        for at in first..first + batch {
            black_box(log.read(Offset::new(at))).expect("read");
        }
        for at in first..first + batch {
            black_box(log.release(Offset::new(at - window), ONE[0])).expect("release");
        }
    }
    start.elapsed().as_nanos() as f64 / count as f64
}
