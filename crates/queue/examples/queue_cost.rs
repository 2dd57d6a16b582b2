//! What one message costs a queue: enqueue, dispatch and settle, in nanoseconds.
//!
//! `cargo run --release -p leveret-queue --example queue_cost`
//!
//! With the name of a line only that one is measured, for a profiler. Each line is the best of several rounds, which
//! tells the code's cost rather than the neighbours' noise.

use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use leveret_queue::{
    ChannelLimit, ConsumerSpec, Gate, Incoming, Left, Offset, Options, OutputGauge, Queue, Settle,
    Time, UnackedId,
};

const MESSAGES: u64 = 1_000_000;
const ROUNDS: u32 = 7;

struct Case {
    name: &'static str,
    options: Options,
    consumers: u64,
    no_ack: bool,
    prefetch: u16,
    /// Messages that a turn brings.
    batch: u64,
    /// Messages that wait all the time.
    backlog: u64,
    shuffled_acks: bool,
    /// Messages of other queues between two are fewer than this.
    strides: u64,
}

impl Case {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            options: Options::default(),
            consumers: 1,
            no_ack: false,
            prefetch: 0,
            batch: 100,
            backlog: 0,
            shuffled_acks: false,
            strides: 1,
        }
    }
}

fn main() -> std::io::Result<()> {
    let prefetching = |name| Case { prefetch: 100, ..Case::new(name) };
    let only = std::env::args().nth(1);
    let cases = [
        Case { no_ack: true, ..Case::new("auto-ack, batches of 100") },
        Case { no_ack: true, batch: 1, ..Case::new("auto-ack, one at a time") },
        prefetching("ack, prefetch 100, batches of 100"),
        Case { batch: 1, ..prefetching("ack, prefetch 100, one at a time") },
        Case { consumers: 10, ..prefetching("ack, ten consumers") },
        Case { shuffled_acks: true, ..prefetching("ack in random order") },
        Case { backlog: 600, ..prefetching("ack, 600 waiting") },
        Case { backlog: 2_000, ..prefetching("ack, 2,000 waiting") },
        Case { backlog: 1_000_000, ..prefetching("ack, a million waiting") },
        Case { backlog: 2_000, strides: 4, ..prefetching("ack, 2,000 waiting, others between") },
        Case {
            options: Options { message_ttl_ms: Some(60_000), ..Options::default() },
            ..prefetching("ack, with a time to live")
        },
        Case {
            options: Options { max_priority: Some(10), ..Options::default() },
            ..prefetching("ack, ten priorities")
        },
    ];
    let mut stdout = std::io::stdout().lock();
    for case in cases.iter().filter(|case| only.as_ref().is_none_or(|only| case.name == only)) {
        let best = (0..ROUNDS).map(|seed| round(case, u64::from(seed))).fold(f64::MAX, f64::min);
        writeln!(stdout, "{:<36} {best:>6.1} ns", case.name)?;
    }
    Ok(())
}

/// Nanoseconds per message.
fn round(case: &Case, seed: u64) -> f64 {
    let now = Time::from_ms(1_000);
    let mut queue = Queue::new(case.options.clone(), now);
    let (output, channel) = (Arc::new(OutputGauge::new(u64::MAX)), Arc::new(ChannelLimit::new()));
    let mut out: Vec<Left> = Vec::new();
    let mut delivered: Vec<(UnackedId, Offset)> = Vec::new();
    let mut offset = 0;
    let mut count = 0_u64;
    let mut enqueue = |queue: &mut Queue, out: &mut Vec<Left>| {
        let priority = (count % 16) as u8;
        count += 1;
        let message = Incoming { priority, ..Incoming::new(Offset::new(offset), 16) };
        // Not the same number each time.
        offset += 1 + offset.wrapping_mul(0x9E37_79B9_7F4A_7C15) % case.strides;
        let _ = queue.enqueue(message, now, out);
    };
    for _ in 0..case.backlog {
        enqueue(&mut queue, &mut out);
    }
    for key in 0..case.consumers {
        let gate = Gate::new(Arc::clone(&output), Arc::clone(&channel));
        let (no_ack, prefetch) = (case.no_ack, case.prefetch);
        let spec = ConsumerSpec { key, no_ack, exclusive: false, priority: 0, prefetch, gate };
        queue.add_consumer(spec, now).expect("nobody is exclusive");
    }
    let mut random = seed;
    let start = Instant::now();
    for _ in 0..MESSAGES / case.batch {
        for _ in 0..case.batch {
            enqueue(&mut queue, &mut out);
        }
        let mut taken = 0;
        let mut deliver = |delivery: leveret_queue::Delivery| {
            taken += 1;
            delivered.extend(delivery.unacked.map(|id| (id, delivery.offset)));
        };
        queue.dispatch(now, &mut deliver, &mut out, u32::MAX);
        if case.shuffled_acks {
            for at in (1..delivered.len()).rev() {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                delivered.swap(at, (random >> 33) as usize % (at + 1));
            }
        }
        for &(id, offset) in &delivered {
            queue.settle(id, offset, Settle::Ack, now, &mut out);
        }
        let _ = channel.settled(delivered.len() as u32);
        let _ = output.released(output.queued());
        delivered.clear();
        assert_eq!(out.len() as u64, taken, "all that was taken left");
        out.clear();
    }
    start.elapsed().as_nanos() as f64 / MESSAGES as f64
}
