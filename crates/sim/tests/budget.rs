//! What a message costs on its way through a whole node, in counts: allocations, and copies of its body.
//! Bytes in, bytes out: session, shard, queue and the log in memory.

mod client;
#[path = "client/topics.rs"]
mod topics;

use std::io::IoSlice;
use std::ops::Range;

use leveret_amqp::method::confirm;
use leveret_broker::message::ConnectionId;
use leveret_counting::{allocated_bytes, allocations};
use leveret_log::{Log as _, Offset};
use leveret_session::Settings;
use leveret_sim::Node;

use client::{call, consume, declare, log_in, publish, read, send, socket};
use topics::Topics;

/// What `work` allocates: how often, and how many bytes.
fn cost(work: impl FnOnce()) -> (f64, f64) {
    let before = (allocations(), allocated_bytes());
    work();
    ((allocations() - before.0) as f64, (allocated_bytes() - before.1) as f64)
}

/// Messages per round.
const MESSAGES: usize = 10_000;

/// What `basic.deliver`, a header without properties and the frame of a body take around it.
const DELIVER: usize = 26 + 22 + 8;

/// Rounds that do not count: buffers grow to what they need.
const WARM: usize = 3;

/// Allocations per message. They come with a read of 64 KiB, which holds 700 messages of 16 bytes or 57
/// of 1 KB, and with a block of the log: the block that is read into, what is left of it, and a letter
/// for each batch on its way.
const BUDGETS: [(usize, bool, f64); 4] = [
    // body, with acks and confirms, allocations per message; measured
    (16, false, 0.02),   // 0.015
    (16, true, 0.04),    // 0.034
    (1024, false, 0.25), // 0.222
    (1024, true, 0.35),  // 0.313
];

#[test]
fn allocations_stay_within_their_budget() {
    for (body, with_acks, budget) in BUDGETS {
        let (allocations, bytes) = round_trip(body, with_acks);
        eprintln!("{body} bytes, acks {with_acks}: {allocations:.4} allocations, {bytes:.0} bytes");
        assert!(
            allocations <= budget,
            "{body} bytes, acks and confirms {with_acks}: {allocations} allocations per message"
        );
        // The block it is read into and the log's, and less than once more for all else.
        let copies = bytes / body as f64;
        assert!(body < 1024 || copies < 3.0, "{bytes} bytes for a message of {body}");
    }
}

/// Allocations and bytes per message of a warm node.
fn round_trip(body: usize, with_acks: bool) -> (f64, f64) {
    let mut node = Node::new(Settings::default());
    let publisher = log_in(&mut node, 1);
    let consumer = log_in(&mut node, 2);
    declare(&mut node, publisher, "q");
    if with_acks {
        call(&mut node, publisher, &confirm::Select { no_wait: false });
    }
    consume(&mut node, consumer, "q", !with_acks);
    let wire = publish("", "q", &vec![b'x'; body]).repeat(MESSAGES);
    let mut tag = 0;
    let mut round = || {
        send(&mut node, publisher, &wire);
        assert_eq!(read(&mut node, consumer), MESSAGES * (body + DELIVER));
        if with_acks {
            assert!(read(&mut node, publisher) > 0, "confirms");
            // One by one, which is dearer than `multiple`.
            for _ in 0..MESSAGES {
                tag += 1;
                ack(&mut node, consumer, tag);
            }
            send(&mut node, consumer, &[]);
        }
        assert!(node.shards().all(|shard| shard.usage().records == 0), "all of it is gone");
    };
    (0..WARM).for_each(|_| round());
    let (allocations, bytes) = cost(round);
    (allocations / MESSAGES as f64, bytes / MESSAGES as f64)
}

/// What a client does that sends each message and each ack by itself, and the next one when all has come of it.
#[derive(Clone, Copy, Debug, Default)]
struct Single {
    confirms: bool,
    consumes: bool,
    acks: bool,
}

/// Allocations per message of such a client: all that a message can cost, as it shares nothing with the next one. A read has
/// a block of memory of its own here, which the server takes from those of its thread.
#[rustfmt::skip] // a table
const SINGLE_BUDGETS: [(Single, f64); 4] = [
    // measured
    (Single { confirms: false, consumes: false, acks: false }, 4.2), // 4.098: the read, and a letter with the message
    (Single { confirms: true, consumes: false, acks: false }, 4.2),  // 4.098: the confirm adds none
    (Single { confirms: false, consumes: true, acks: false }, 5.1),  // 5.000: a letter with the delivery
    (Single { confirms: false, consumes: true, acks: true }, 9.1),   // 9.000: the read of the ack, and a letter with it
];

#[test]
fn single_messages_stay_within_their_budget() {
    for (single, budget) in SINGLE_BUDGETS {
        let allocations = one_by_one(single);
        eprintln!("{single:?}: {allocations:.3} allocations per message");
        assert!(allocations <= budget, "{single:?}: {allocations} allocations per message");
    }
}

/// Allocations per message of 1 KB of a warm node.
fn one_by_one(single: Single) -> f64 {
    let mut node = Node::new(Settings::default());
    let publisher = log_in(&mut node, 1);
    let consumer = log_in(&mut node, 2);
    declare(&mut node, publisher, "q");
    if single.confirms {
        call(&mut node, publisher, &confirm::Select { no_wait: false });
    }
    if single.consumes {
        consume(&mut node, consumer, "q", !single.acks);
    }
    let wire = publish("", "q", &vec![b'x'; 1024]);
    let mut tag = 0;
    let mut round = || {
        for _ in 0..MESSAGES / 10 {
            send(&mut node, publisher, &wire);
            assert_eq!(read(&mut node, publisher) > 0, single.confirms);
            assert_eq!(read(&mut node, consumer) > 0, single.consumes);
            if single.acks {
                tag += 1;
                ack(&mut node, consumer, tag);
                send(&mut node, consumer, &[]);
            }
        }
    };
    (0..WARM).for_each(|_| round());
    cost(round).0 / (MESSAGES / 10) as f64
}

/// Writes `basic.ack` without an allocation.
fn ack(node: &mut Node, consumer: ConnectionId, tag: u64) {
    let to_server = &mut socket(node, consumer).to_server;
    to_server.extend([1, 0, 1, 0, 0, 0, 13, 0, 60, 0, 80]);
    to_server.extend(tag.to_be_bytes());
    to_server.extend([0, 0xce]);
}

/// Of a body above the limit below which bodies are copied on their way out.
const LARGE: usize = 8 * 1024;

#[test]
fn a_large_body_is_copied_into_the_log_and_nowhere_else() {
    const COUNT: usize = 112;
    let mut node = Node::new(Settings::default());
    let publisher = log_in(&mut node, 1);
    let consumer = log_in(&mut node, 2);
    declare(&mut node, publisher, "q");
    // Reads that end with a message: what is left of a read is copied by whoever reads.
    let wire = publish("", "q", &vec![b'x'; LARGE]).repeat(7);
    send(&mut node, publisher, &wire);
    let (_, bytes) = cost(|| (1..COUNT / 7).for_each(|_| send(&mut node, publisher, &wire)));
    let copies = bytes / ((COUNT - 7) * LARGE) as f64;
    // The block that is read into, and the log's, in steps of one block.
    assert!(copies < 2.4, "{copies} times the bodies were allocated on their way in");

    // A client that does not read: all that it is given stays where the session put it.
    socket(&mut node, consumer).room = 0;
    let (_, bytes) = cost(|| consume(&mut node, consumer, "q", false));
    // Letters and what stands around bodies, but no body.
    assert!(bytes < (COUNT * LARGE / 10) as f64, "{bytes} bytes to deliver {COUNT} messages");
    let output = node.output(consumer).expect("a connection");
    let mut slices = [IoSlice::new(&[]); 1024];
    let filled = output.slices(&mut slices, usize::MAX);
    let bodies: Vec<Range<*const u8>> = slices[..filled]
        .iter()
        .filter(|slice| slice.len() >= LARGE)
        .map(|slice| slice.as_ptr_range())
        .collect();
    assert_eq!(bodies.len(), COUNT);
    let log = node.shards().next().expect("a shard").log();
    let mut records = Vec::new();
    let mut at = Offset::new(0);
    while at < log.end() {
        records.extend(log.read(at).ok().map(|record| record.bytes));
        at = at.next();
    }
    for (body, record) in bodies.iter().zip(&records) {
        let record = record.as_ptr_range();
        assert!(record.start <= body.start && body.end <= record.end, "{body:?} in {record:?}");
    }
    assert_eq!(records.len(), COUNT);
}

/// Of a body whose rest is read to where it stays.
const BULK: usize = 64 * 1024;

/// What of such a message is copied or allocated beyond the memory that it lives in, of its length: what came of it
/// with the message before. Measured 0.08.
const BULK_COPIES: f64 = 0.1;

#[test]
fn a_body_of_64_kib_is_not_copied() {
    const COUNT: usize = 64;
    let mut node = Node::new(Settings::default());
    let publisher = log_in(&mut node, 1);
    declare(&mut node, publisher, "q");
    let wire = publish("", "q", &vec![b'x'; BULK]);
    // As the server reads: 4 KiB that end in a body, and then the rest of it.
    const BEHIND: usize = 4 * 1024;
    let send_one = |node: &mut Node| {
        send(node, publisher, &wire[..BEHIND]);
        send(node, publisher, &wire[BEHIND..]);
    };
    (0..COUNT).for_each(|_| send_one(&mut node));
    let (allocations, bytes) = cost(|| (0..COUNT).for_each(|_| send_one(&mut node)));
    let (allocations, copies) = (allocations / COUNT as f64, bytes / (COUNT * BULK) as f64 - 1.0);
    eprintln!("{BULK} bytes: {allocations:.1} allocations, {copies:.3} copies");
    assert!((0.0..BULK_COPIES).contains(&copies), "{copies} copies of a body");
    assert!(allocations < 12.0, "{allocations} allocations");
    let log = node.shards().next().expect("a shard").log();
    let record = log.read(Offset::new(COUNT as u64)).expect("a record").bytes;
    assert_eq!(record.len(), 24 + 3 + 2 + BULK);
}

/// A clock cannot be trusted in a test, but a count can: routing does not allocate more for a thousand
/// times the bindings. That it takes no more steps is tested where it happens, in `topology`.
#[test]
fn topic_routing_does_not_mind_the_number_of_bindings() {
    let per_message = |bindings| {
        let mut topics = Topics::new(bindings);
        (0..WARM).for_each(|_| assert_ne!(topics.round(), 0));
        let mut messages = 0;
        let (allocations, _) = cost(|| messages = topics.round());
        allocations / messages as f64
    };
    let (few, many) = (per_message(100), per_message(100_000));
    eprintln!("{few:.4} and {many:.4} allocations per message");
    assert!(many <= few + 0.01, "{few} at 100 bindings, {many} at 100,000");
}
