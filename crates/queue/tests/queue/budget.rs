//! What a queue may cost in memory: nothing per message once warm, sixteen bytes per message that
//! waits, hardly anything when idle.

use leveret_counting::{allocations, live_bytes as bytes};
use leveret_queue::{
    ConsumerSpec, Delivery, Gate, Incoming, Left, Offset, Options, Queue, Settle, Settled, Time,
    UnackedId,
};

const NOW: Time = Time::from_ms(1_000);

/// A queue and the vectors its caller keeps from turn to turn.
struct Turns {
    queue: Queue,
    out: Vec<Left>,
    taken: Vec<(UnackedId, Offset)>,
    offset: u64,
}

impl Turns {
    fn new(options: Options) -> Self {
        let queue = Queue::new(options, NOW);
        Self { queue, out: Vec::with_capacity(4_096), taken: Vec::with_capacity(4_096), offset: 0 }
    }

    fn consume(&mut self, no_ack: bool, prefetch: u16) {
        let gate = Gate::open();
        let spec = ConsumerSpec { key: 0, no_ack, exclusive: false, priority: 0, prefetch, gate };
        self.queue.add_consumer(spec, NOW).expect("nobody is exclusive");
    }

    fn enqueue(&mut self, count: u64) {
        for _ in 0..count {
            let message = Incoming {
                priority: (self.offset % 10) as u8,
                ..Incoming::new(Offset::new(self.offset), 10)
            };
            self.offset += 1;
            let _ = self.queue.enqueue(message, NOW, &mut self.out);
        }
    }

    fn dispatch(&mut self) {
        let taken = &mut self.taken;
        let mut deliver =
            |found: Delivery| taken.extend(found.unacked.map(|id| (id, found.offset)));
        while self.queue.dispatch(NOW, &mut deliver, &mut self.out, 1_000).more {
            self.out.clear();
        }
        self.out.clear();
    }

    fn settle_all(&mut self, how: Settle) {
        for (id, offset) in self.taken.drain(..) {
            let settled = self.queue.settle(id, offset, how, NOW, &mut self.out);
            assert_ne!(settled, Settled::Stale);
            self.out.clear();
        }
    }
}

#[track_caller]
fn check_warm(name: &str, mut turns: Turns, mut turn: impl FnMut(&mut Turns)) {
    for _ in 0..200 {
        turn(&mut turns);
    }
    let before = allocations();
    for _ in 0..1_000 {
        turn(&mut turns);
    }
    assert_eq!(allocations() - before, 0, "{name}");
}

#[test]
fn nothing_is_allocated_per_message_once_warm() {
    let one_consumer = |options: Options, no_ack: bool, prefetch: u16| {
        let mut turns = Turns::new(options);
        turns.consume(no_ack, prefetch);
        turns
    };
    let acked = |turns: &mut Turns| {
        turns.enqueue(100);
        turns.dispatch();
        turns.settle_all(Settle::Ack);
    };
    check_warm("ack", one_consumer(Options::default(), false, 0), acked);
    check_warm("auto-ack", one_consumer(Options::default(), true, 0), acked);
    check_warm("short prefetch", one_consumer(Options::default(), false, 10), |turns| {
        turns.enqueue(100);
        for _ in 0..10 {
            turns.dispatch();
            turns.settle_all(Settle::Ack);
        }
    });
    let ttl = Options { message_ttl_ms: Some(1_000), ..Options::default() };
    check_warm("time to live", one_consumer(ttl, false, 0), acked);
    let priorities = Options { max_priority: Some(9), ..Options::default() };
    check_warm("priorities", one_consumer(priorities, false, 0), acked);
    let limited = Options { delivery_limit: Some(1_000), ..Options::default() };
    check_warm("requeue", one_consumer(limited, false, 0), |turns| {
        turns.enqueue(100);
        turns.dispatch();
        turns.settle_all(Settle::Requeue { counts: true });
        turns.dispatch();
        turns.settle_all(Settle::Ack);
    });
    let mut ten = Turns::new(Options::default());
    (0..10).for_each(|_| ten.consume(false, 5));
    check_warm("ten consumers, blocked now and then", ten, |turns| {
        turns.enqueue(100);
        turns.dispatch();
        turns.settle_all(Settle::Ack);
        turns.dispatch();
        turns.settle_all(Settle::Ack);
    });
    let short = Options { max_length: Some(100), ..Options::default() };
    check_warm("drop-head", Turns::new(short), |turns| {
        turns.enqueue(100);
        turns.out.clear();
    });
    let mut behind = one_consumer(Options::default(), false, 100);
    behind.enqueue(900);
    check_warm("a steady backlog", behind, |turns| {
        turns.dispatch();
        turns.enqueue(turns.taken.len() as u64);
        turns.settle_all(Settle::Ack);
    });
}

#[test]
fn an_idle_queue_is_small() {
    let before = bytes();
    let mut turns = Turns::new(Options::default());
    let callers = bytes() - before;
    let heap = |_: &Turns| bytes() - before - callers;
    assert_eq!(heap(&turns), 0, "never used");
    assert!(size_of::<Queue>() <= 768, "{} bytes", size_of::<Queue>());

    turns.consume(false, 10);
    assert!(heap(&turns) <= 512, "one consumer: {}", heap(&turns));
    turns.enqueue(10);
    turns.dispatch();
    turns.settle_all(Settle::Ack);
    assert!(heap(&turns) <= 2_048, "used a little: {}", heap(&turns));
    turns.queue.relax();
    assert!(heap(&turns) <= 512, "used and idle: {}", heap(&turns));
}

#[test]
fn a_message_that_waits_takes_sixteen_bytes_and_less_in_a_long_backlog() {
    let mut turns = Turns::new(Options::default());
    let before = bytes();
    turns.enqueue(4_000);
    let per_message = (bytes() - before) as f64 / 4e3;
    assert!(per_message < 17.5, "{per_message}");
    turns.enqueue(1_000_000);
    let per_message = (bytes() - before) as f64 / 1e6;
    assert!(per_message < 0.5, "{per_message}");
    turns.consume(true, 0);
    turns.dispatch();
    assert!(bytes() - before < 16 * 1_024, "drained: {}", bytes() - before);
}

#[test]
fn an_unacked_message_takes_twenty_four_bytes() {
    let mut turns = Turns::new(Options::default());
    turns.enqueue(1_000_000);
    turns.taken.reserve(1_000_000);
    turns.consume(false, 0);
    let before = bytes();
    turns.dispatch();
    let per_message = (bytes() - before) as f64 / 1e6;
    assert!(per_message < 24.6, "{per_message}");
    turns.settle_all(Settle::Ack);
    let left = bytes() - before;
    assert!(left < 256 * 1_024, "settled: {left}");
}
