//! Counts, not benchmarks: what a warm session allocates per batch, what an idle one holds, and what a turn settles.

mod node;

use bytes::Bytes;
use leveret_amqp::content::Properties;
use leveret_amqp::method::*;
use leveret_amqp::outbuf::OutBuf;
use leveret_broker::message::*;
use leveret_counting::{allocated_bytes, allocations, live_bytes};
use leveret_queue::{ConsumerSpec, Gate, Incoming, Offset, Options, Queue, Time};
use leveret_session::{Context, Session};
use leveret_topology::{GroupId, QueueId, Topology};
use node::{Node, publish_bytes};

const BATCH: usize = 100;
const ROUNDS: u64 = 200;

/// One session, its shards played by hand.
struct Alone {
    session: Session,
    topology: Topology,
    out: OutBuf,
    outbox: Outbox,
}

impl Alone {
    /// A client of a node, which has a queue `q` and a confirming channel.
    fn new() -> Self {
        Self::in_mode(&confirm::Select { no_wait: false })
    }

    /// The same with another channel.
    fn in_mode(select: &impl Encode) -> Self {
        let mut node = Node::new();
        let link = node.client();
        node.declare(link, "q");
        node.say(link, 1, select);
        let Node { topology, mut links, .. } = node;
        let node::Link { session, out, .. } = links.remove(link);
        Self { session, topology, out, outbox: Outbox::default() }
    }

    fn turn(&mut self, act: impl FnOnce(&mut Session, &mut Context<'_>)) {
        let mut cx = Context {
            topology: &self.topology,
            now: Time::from_ms(2_000_000),
            now_us: 2_000_000_000,
            wall: Time::from_ms(2_000_000),
            out: &mut self.out,
            outbox: &mut self.outbox,
        };
        act(&mut self.session, &mut cx);
    }

    fn input(&mut self, bytes: &Bytes) {
        let mut bytes = bytes.clone();
        self.turn(|session, cx| session.input(&mut bytes, cx));
        assert!(bytes.is_empty());
    }

    /// A consumer of `q` that acks.
    fn consume(&mut self) -> (ConsumerSlot, QueueId, Gate) {
        let mut out = OutBuf::new();
        let consume = basic::Consume { queue: "q", consumer_tag: "c", ..Default::default() };
        out.put_method(1, &consume);
        self.input(&out.take_rest().into());
        let Some((_, ToShard::Consume { slot, queue, gate: Some(gate), .. })) =
            self.outbox.shards.pop()
        else {
            panic!("no consume")
        };
        let reply = ToSession::Reply { channel: 1, reply: Reply::Consuming { number: 1 } };
        self.turn(|session, cx| session.receive(reply, cx));
        self.written();
        (slot, queue, gate)
    }

    fn written(&mut self) {
        self.out.clear();
        self.turn(|session, cx| session.flushed(0, true, cx));
    }
}

/// A message of 16 bytes.
fn record() -> Bytes {
    let mut properties = Vec::new();
    Properties::default().encode(&mut properties);
    let names = leveret_broker::record::join_names("", "q");
    let body = b"0123456789abcdef";
    let head = leveret_broker::record::Head {
        names_len: names.len() as u16,
        properties_len: properties.len() as u32,
        body_len: body.len() as u32,
        ..Default::default()
    };
    let head = head.encode();
    Bytes::from([&head[..], &names, &properties, body].concat())
}

/// Rounds that do not count.
const WARM: u64 = 10;

/// Allocations per round, after some rounds that do not count.
fn per_round(mut round: impl FnMut()) -> f64 {
    (0..WARM).for_each(|_| round());
    let before = allocations();
    (0..ROUNDS).for_each(|_| round());
    (allocations() - before) as f64 / ROUNDS as f64
}

#[test]
fn publishing_allocates_once_per_batch() {
    let mut alone = Alone::new();
    let one = publish_bytes(1, "", "q", b"0123456789abcdef", &Properties::default(), false);
    let read = Bytes::from(one.repeat(BATCH));
    let mut last = 0;
    let count = per_round(|| {
        alone.input(&read);
        let (_, letter) = alone.outbox.shards.pop().expect("a batch");
        let ToShard::Publish { messages, .. } = letter else { panic!("{letter:?}") };
        assert_eq!(messages.len(), BATCH);
        assert_eq!(messages[0].message.body(), b"0123456789abcdef");
        let first = last + 1;
        last += BATCH as u64;
        assert_eq!(messages[BATCH - 1].confirm, last);
        let confirm = ToSession::Confirm { channel: 1, first, last, ok: true };
        alone.turn(|session, cx| session.receive(confirm, cx));
        alone.written();
    });
    // The batch's vector.
    assert!(count <= 1.0, "{count} per {BATCH} messages");
}

#[test]
fn delivering_and_settling_allocates_once_per_batch() {
    let mut alone = Alone::new();
    let (slot, id, gate) = alone.consume();
    // The queue, played by a queue.
    let now = Time::from_ms(0);
    let mut queue = Queue::new(Options::default(), now);
    let (no_ack, exclusive, priority, prefetch) = (false, false, 0, 0);
    let spec = ConsumerSpec { key: 0, no_ack, exclusive, priority, prefetch, gate };
    queue.add_consumer(spec, now).expect("one consumer");

    let record = record();
    let (mut tag, mut offset) = (0, 0);
    let mut left = Vec::new();
    // What the test makes itself is not counted: letters, and the client's bytes.
    let mut made = 0;
    let mut rounds = 0;
    let count = per_round(|| {
        rounds += 1;
        if rounds == WARM + 1 {
            made = 0;
        }
        let before = allocations();
        let mut deliveries = Vec::new();
        let mut acks = OutBuf::new();
        for index in 0..BATCH as u64 {
            offset += 1;
            let incoming = Incoming::new(Offset::new(offset), 16);
            queue.enqueue(incoming, now, &mut left).expect("room");
            // Singly, and out of order.
            let delivery_tag = tag + 1 + (index ^ 1);
            acks.put_method(1, &basic::Ack { delivery_tag, multiple: false });
        }
        tag += BATCH as u64;
        let mut deliver = |d: leveret_queue::Delivery| {
            deliveries.push(delivery(slot, id, &d, &record));
        };
        queue.dispatch(now, &mut deliver, &mut left, 1000);
        assert_eq!(deliveries.len(), BATCH);
        let read = Bytes::from(acks.take_rest());
        drop(read.clone());
        made += allocations() - before;

        alone.turn(|session, cx| session.receive(ToSession::Deliver(deliveries), cx));
        alone.written();
        alone.input(&read);
        let (_, letter) = alone.outbox.shards.pop().expect("a batch");
        let ToShard::Settle { settlements: settled, .. } = letter else { panic!("{letter:?}") };
        assert_eq!(settled.len(), BATCH);
        let before = allocations();
        for s in settled {
            let how = leveret_queue::Settle::Ack;
            assert_ne!(
                queue.settle(s.unacked, s.offset, how, now, &mut left),
                leveret_queue::Settled::Stale
            );
        }
        left.clear();
        made += allocations() - before;
    });
    let count = count * ROUNDS as f64 - made as f64;
    // The batch's vector.
    assert!(count <= ROUNDS as f64, "{} per {BATCH} messages", count / ROUNDS as f64);
    // Everything was given back.
    assert_eq!(alone.session.facts().channels[0].unacked, 0);
}

/// Of a message that is copied for the firehose, the copy's record is the only further copy of the body.
#[test]
fn the_firehose_shares_bodies() {
    const BODY: usize = 8 << 20;
    let body = "x".repeat(BODY);
    let bytes_of_two = |is_traced: bool| {
        let mut node = Node::new();
        let link = node.client();
        for name in ["q", "copies"] {
            node.declare(link, name);
        }
        let bind = queue::Bind {
            queue: "copies",
            exchange: "amq.rabbitmq.trace",
            routing_key: "#",
            ..Default::default()
        };
        node.say(link, 1, &bind);
        node.topology.set_tracing("/", is_traced).unwrap();
        let get = basic::Get { queue: "q", no_ack: true, ..Default::default() };
        let before = allocated_bytes();
        node.publish(link, "", "q", &body);
        node.say(link, 1, &get);
        allocated_bytes() - before
    };
    let more = bytes_of_two(true) - bytes_of_two(false);
    let copies = more as f64 / BODY as f64;
    assert!((1.9..2.3).contains(&copies), "{copies} bodies for two copies");
}

/// An idle connection with one channel.
#[test]
fn an_idle_session_is_small() {
    let mut node = Node::new();
    node.client();
    let link = node.accept(true);
    node.bytes(link, b"AMQP\x00\x00\x09\x01");
    let idle = node.client();
    let link = node.links.remove(idle);
    let before = live_bytes();
    drop(link.session);
    let heap = before - live_bytes();
    let all = heap + size_of::<Session>() as i64;
    assert!(all < 4096, "{heap} bytes of heap and {} of its own", size_of::<Session>());
}

/// Messages that a method for many settles in one turn.
const SETTLED_MAX: usize = 32 << 10;

/// A client that consumes from a queue that is played by a queue.
struct Consuming {
    alone: Alone,
    slot: ConsumerSlot,
    id: QueueId,
    queue: Queue,
    record: Bytes,
    offset: u64,
}

impl Consuming {
    fn new() -> Self {
        Self::with(Alone::new())
    }

    fn with(mut alone: Alone) -> Self {
        let (slot, id, gate) = alone.consume();
        let mut queue = Queue::new(Options::default(), Time::from_ms(0));
        let (no_ack, exclusive, priority, prefetch) = (false, false, 0, 0);
        let spec = ConsumerSpec { key: 0, no_ack, exclusive, priority, prefetch, gate };
        queue.add_consumer(spec, Time::from_ms(0)).expect("one consumer");
        Self { alone, slot, id, queue, record: record(), offset: 0 }
    }

    /// So many more are unacked.
    fn deliver(&mut self, count: u64) {
        let Self { alone, slot, id, queue, record, offset } = self;
        let (now, end) = (Time::from_ms(0), *offset + count);
        while *offset < end {
            let mut left = Vec::new();
            for _ in 0..(end - *offset).min(500) {
                *offset += 1;
                let incoming = Incoming::new(Offset::new(*offset), 16);
                queue.enqueue(incoming, now, &mut left).expect("room");
            }
            let mut deliveries = Vec::new();
            let mut deliver = |d: leveret_queue::Delivery| {
                deliveries.push(delivery(*slot, *id, &d, record));
            };
            queue.dispatch(now, &mut deliver, &mut left, 1000);
            alone.turn(|session, cx| session.receive(ToSession::Deliver(deliveries), cx));
            alone.written();
        }
        assert_eq!(queue.counts().ready, 0);
        alone.outbox = Outbox::default();
    }
}

/// What a shard sends of a message that its queue gave out.
fn delivery(
    slot: ConsumerSlot,
    queue: QueueId,
    given: &leveret_queue::Delivery,
    record: &Bytes,
) -> Delivery {
    Delivery {
        slot,
        queue,
        home: GroupId::new(0),
        unacked: given.unacked,
        offset: given.offset,
        redelivered: false,
        delivery_count: 0,
        record: record.clone(),
    }
}

/// Offsets of what was settled, each with what became of it.
fn settled(alone: &mut Alone) -> Vec<(u64, Settle)> {
    let letters = std::mem::take(&mut alone.outbox).shards.into_iter();
    let settled = letters.filter_map(|(group, letter)| match letter {
        ToShard::Settle { settlements, .. } => Some(settlements),
        ToShard::GiveBack { unsettled, .. } => Some(unsettled.of(group, 0, usize::MAX).collect()),
        _ => None,
    });
    settled.flatten().map(|it| (it.offset.get(), it.how)).collect()
}

/// Class and method of each frame, which has no end of a frame in it.
fn methods(frames: &[u8]) -> Vec<&[u8]> {
    frames.split(|&byte| byte == 0xce).filter_map(|frame| frame.get(7..11)).collect()
}

/// A method for very many settles them in some turns, in order, and what is read behind it waits for that. It is about the
/// messages that were there when it came, and is answered at once.
#[test]
fn very_many_are_settled_in_short_turns() {
    type Write<'a> = &'a dyn Fn(&mut OutBuf);
    const MANY: u64 = 100_000;
    let requeue = Settle::Requeue { counts: true };
    let ack = |delivery_tag, out: &mut OutBuf| {
        out.put_method(1, &basic::Ack { delivery_tag, multiple: true });
    };
    let nack = |requeue, out: &mut OutBuf| {
        out.put_method(1, &basic::Nack { delivery_tag: 0, multiple: true, requeue });
    };
    let all_methods: [(Write<'_>, Settle, &[u8]); 5] = [
        (&|out| ack(0, out), Settle::Ack, &[]),
        (&|out| ack(MANY, out), Settle::Ack, &[]),
        (&|out| nack(true, out), requeue, &[]),
        (&|out| nack(false, out), Settle::Reject, &[]),
        (&|out| out.put_method(1, &basic::Recover { requeue: true }), requeue, &[0, 60, 0, 111]),
    ];
    for (number, (method, how, answer)) in all_methods.into_iter().enumerate() {
        let mut client = Consuming::new();
        client.deliver(MANY);
        let mut bytes = OutBuf::new();
        method(&mut bytes);
        bytes.put_method(1, &basic::Qos { prefetch_count: 7, ..Default::default() });
        let mut read = Bytes::from(bytes.take_rest());
        let (mut all, mut said) = (Vec::new(), Vec::new());
        loop {
            let alone = &mut client.alone;
            alone.turn(|session, cx| session.input(&mut read, cx));
            let some = settled(alone);
            assert!(some.len() <= SETTLED_MAX, "{number}: {} in one turn", some.len());
            all.extend(some);
            said.push(alone.out.take_rest());
            if read.is_empty() {
                break;
            }
            assert!(alone.session.leaves_some() && alone.session.wants_input());
            client.deliver(10);
        }
        let want: Vec<_> = (1..=MANY).map(|offset| (offset, how)).collect();
        assert!(all == want, "{number}: {} settled", all.len());
        let first = [answer].into_iter().filter(|it| !it.is_empty()).collect();
        let want: [Vec<&[u8]>; 4] = [first, vec![], vec![], vec![&[0, 60, 0, 11]]];
        assert_eq!(said.iter().map(|it| methods(it)).collect::<Vec<_>>(), want, "{number}");
    }
}

/// A connection that ends in the middle of such a method: what is left is settled as the method says.
#[test]
fn what_is_left_to_settle_is_settled_at_the_end() {
    const MANY: u64 = 50_000;
    let mut client = Consuming::new();
    client.deliver(MANY);
    let mut bytes = OutBuf::new();
    bytes.put_method(1, &basic::Ack { delivery_tag: 0, multiple: true });
    let mut read = Bytes::from(bytes.take_rest());
    client.alone.turn(|session, cx| session.input(&mut read, cx));
    assert_eq!(settled(&mut client.alone).len(), SETTLED_MAX);
    client.deliver(1);
    client.alone.turn(|session, cx| session.disconnected(cx));
    let all = settled(&mut client.alone);
    let rest = SETTLED_MAX as u64 + 1..=MANY;
    let mut want: Vec<_> = rest.map(|offset| (offset, Settle::Ack)).collect();
    want.push((MANY + 1, Settle::Requeue { counts: true }));
    assert!(all == want, "{} settled", all.len());
}

/// Very many that go back at an end, or are settled by a transaction, are handed over as they lie there: the turn looks at none of
/// them.
#[test]
fn very_many_are_handed_over_as_they_are() {
    const MANY: u64 = 100_000;
    let requeue = Settle::Requeue { counts: true };
    type End<'a> = &'a dyn Fn(&mut Session, &mut Context<'_>);
    let method = |write: &dyn Fn(&mut OutBuf), session: &mut Session, cx: &mut Context<'_>| {
        let mut out = OutBuf::new();
        write(&mut out);
        session.input(&mut Bytes::from(out.take_rest()), cx);
    };
    let ends: [End<'_>; 4] = [
        &|session, cx| method(&|out| out.put_method(1, &channel::Close::default()), session, cx),
        &|session, cx| {
            let unknown = basic::Ack { delivery_tag: MANY + 1, multiple: false };
            method(&|out| out.put_method(1, &unknown), session, cx);
        },
        &|session, cx| method(&|out| out.put_method(0, &connection::Close::default()), session, cx),
        &|session, cx| session.disconnected(cx),
    ];
    for (number, end) in ends.into_iter().enumerate() {
        let mut client = Consuming::new();
        client.deliver(MANY);
        let before = allocated_bytes();
        client.alone.turn(end);
        let bytes = allocated_bytes() - before;
        assert!(bytes < 64 << 10, "{number}: {bytes} bytes for the letters");
        let all = settled(&mut client.alone);
        let want: Vec<_> = (1..=MANY).map(|offset| (offset, requeue)).collect();
        assert!(all == want, "{number}: {} settled", all.len());
    }
}

/// Nor does the turn of a commit look at what it settles.
#[test]
fn a_commit_hands_over_what_is_there() {
    const MANY: u64 = 100_000;
    let mut client = Consuming::with(Alone::in_mode(&tx::Select {}));
    client.deliver(MANY);
    let mut out = OutBuf::new();
    out.put_method(1, &basic::Ack { delivery_tag: MANY, multiple: true });
    let mut read = Bytes::from(out.take_rest());
    while !read.is_empty() {
        client.alone.turn(|session, cx| session.input(&mut read, cx));
    }
    let facts = &client.alone.session.facts().channels[0];
    assert_eq!(
        (facts.unacked, facts.acks_uncommitted, facts.totals.taken.ack),
        (0, MANY as usize, 0)
    );
    out.put_method(1, &tx::Commit {});
    let read = Bytes::from(out.take_rest());
    let before = allocated_bytes();
    client.alone.input(&read);
    let bytes = allocated_bytes() - before;
    assert!(bytes < 16 << 10, "{bytes} bytes for the letters");
    let letters = std::mem::take(&mut client.alone.outbox).shards;
    let [(_, ToShard::Commit { messages, settlements, .. })] = &letters[..] else {
        panic!("{} letters", letters.len());
    };
    assert!(messages.is_empty());
    assert!(settlements.iter().map(|it| it.offset.get()).eq(1..=MANY));
    let facts = &client.alone.session.facts().channels[0];
    assert_eq!((facts.unacked, facts.acks_uncommitted, facts.totals.taken.ack), (0, 0, MANY));
}
