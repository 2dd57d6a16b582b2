//! Shards and the topology's owner, run to quiescence by hand: what a message goes through without
//! sessions.

mod history;

use std::collections::VecDeque;
use std::sync::Arc;

use leveret_amqp::content::{Properties, RawProperties};
use leveret_amqp::reply::ReplyCode;
use leveret_amqp::table::{RawValue, Table, Value};
use leveret_broker::message::*;
use leveret_broker::record::{View, join_names};
use leveret_broker::{Meta, Shard};
use leveret_log::MemoryLog;
use leveret_queue::{ChannelLimit, Gate, OutputGauge, Time, delivery_cost};
use leveret_topology::{
    ApplyTo, ExchangeId, ExchangeSpec, GroupId, Homes, NodeId, Policy, PolicySpec, QueueId,
    Topology, VhostId,
};

const SHARDS: usize = 2;
const ME: ConnectionId = NodeId::ALONE.connection(1);

/// A node whose actors run one after the other.
struct Node {
    topology: Topology,
    meta: Meta<MemoryLog>,
    shards: Vec<Shard<MemoryLog>>,
    now: Time,
    /// What sessions got, in order.
    got: VecDeque<ToSession>,
    /// Steps of traced messages, in order.
    steps: Vec<Step>,
    vhost: VhostId,
    /// Letters to shards that a turn wrote, or records that it released: the most there were.
    most: usize,
    /// Messages that had left and were not dead-lettered after a turn: the most there were.
    most_parked: u64,
}

impl Node {
    fn new() -> Self {
        Self::with(Homes::among(SHARDS as u32))
    }

    fn with(homes: Homes) -> Self {
        let mut topology = Topology::new();
        topology.set_homes(homes);
        let vhost = topology.add_vhost("/").expect("a vhost");
        let shards = (0..SHARDS).map(|index| Shard::new(GroupId::at(index), MemoryLog::default()));
        Self {
            topology,
            meta: Meta::new(MemoryLog::new()),
            shards: shards.collect(),
            now: Time::from_ms(1_000_000),
            got: VecDeque::new(),
            steps: Vec::new(),
            vhost,
            most: 0,
            most_parked: 0,
        }
    }

    /// Delivers letters until there are none.
    fn run(&mut self, mut out: Outbox) {
        loop {
            self.got.extend(out.sessions.drain(..).map(|(_, letter)| letter));
            self.steps.append(&mut out.steps);
            let mut meta = std::mem::take(&mut out.meta);
            let mut shards: Vec<Vec<ToShard>> = (0..SHARDS).map(|_| Vec::new()).collect();
            for (group, letter) in out.shards.drain(..) {
                shards[group.index()].push(letter);
            }
            if meta.is_empty() && shards.iter().all(Vec::is_empty) {
                return;
            }
            self.meta.turn(&mut meta, &mut self.topology, &mut out);
            for (index, mut letters) in shards.into_iter().enumerate() {
                let shard = &mut self.shards[index];
                if !letters.is_empty() {
                    let records = shard.usage().records;
                    let written = out.shards.len();
                    if shard.turn(&mut letters, &self.topology, self.now, &mut out) {
                        out.shard(GroupId::at(index), ToShard::Continue);
                    }
                    let written = out.shards.len() - written;
                    let released = records.saturating_sub(shard.usage().records);
                    self.most = self.most.max(written.max(released as usize));
                    self.most_parked = self.most_parked.max(shard.parked());
                }
            }
        }
    }

    fn shard(&mut self, queue: QueueId, letter: ToShard) {
        let mut out = Outbox::default();
        out.shard(self.topology.home(queue), letter);
        self.run(out);
    }

    fn later(&mut self, ms: u64) {
        self.now = self.now.after_ms(ms);
        let mut out = Outbox::default();
        for index in 0..SHARDS {
            out.shard(GroupId::at(index), ToShard::Continue);
        }
        self.run(out);
    }

    fn declare(&mut self, name: &str, arguments: Table) -> QueueId {
        let letter = ToMeta::DeclareQueue {
            by: Box::default(),
            reply: ReplyTo { connection: ME, channel: 1 },
            vhost: self.vhost,
            name: name.into(),
            server_named: false,
            durable: true,
            exclusive: false,
            auto_delete: false,
            arguments,
            forbidden: None,
        };
        self.run(Outbox { meta: vec![letter], ..Outbox::default() });
        match self.reply() {
            Reply::Declared { queue, .. } => queue,
            other => panic!("not declared: {other:?}"),
        }
    }

    fn publish(&mut self, queue: QueueId, key: &str, body: &str, confirm: u64) {
        let message = message(queue, key, body, confirm);
        self.shard(queue, ToShard::Publish { from: ME, messages: vec![message] });
    }

    fn consume(&mut self, queue: QueueId, slot: u32, no_ack: bool) {
        self.consume_within(1 << 20, queue, slot, no_ack);
    }

    /// A consumer that is given no more after so many bytes.
    fn consume_within(&mut self, bytes: u64, queue: QueueId, slot: u32, no_ack: bool) {
        self.consume_through(&Arc::new(OutputGauge::new(bytes)), queue, slot, no_ack);
    }

    fn consume_through(
        &mut self,
        output: &Arc<OutputGauge>,
        queue: QueueId,
        slot: u32,
        no_ack: bool,
    ) {
        let gate = Gate::new(Arc::clone(output), Arc::new(ChannelLimit::new()));
        let letter = ToShard::Consume {
            user: Box::default(),
            reply: ReplyTo { connection: ME, channel: 1 },
            queue,
            slot: ConsumerSlot(slot),
            tag: format!("c{slot}").into(),
            no_ack,
            exclusive: false,
            priority: 0,
            prefetch: 0,
            gate: Some(gate),
            arguments: Default::default(),
        };
        self.shard(queue, letter);
        assert!(matches!(self.reply(), Reply::Consuming { .. }));
    }

    /// The first reply that is still there.
    fn reply(&mut self) -> Reply {
        match self.got.pop_front() {
            Some(ToSession::Reply { reply, .. }) => reply,
            other => panic!("not a reply: {other:?}"),
        }
    }

    fn delivered(&mut self) -> Vec<Delivery> {
        match self.got.pop_front() {
            Some(ToSession::Deliver(deliveries)) => deliveries,
            None => Vec::new(),
            other => panic!("not a delivery: {other:?}"),
        }
    }

    fn bodies(&mut self) -> Vec<String> {
        self.delivered().iter().map(body).collect()
    }

    /// The answer to `basic.get`, which must be the next letter.
    fn got_body(&mut self) -> String {
        match self.reply() {
            Reply::Got { delivery, .. } => body(&delivery),
            other => panic!("not got: {other:?}"),
        }
    }

    fn settle(&mut self, delivery: &Delivery, how: Settle) {
        let settlement = Settlement {
            queue: delivery.queue,
            unacked: delivery.unacked.expect("acks are expected"),
            offset: delivery.offset,
            how,
        };
        self.shard(delivery.queue, ToShard::Settle { from: ME, settlements: vec![settlement] });
    }

    /// Letters that are all in the inbox when the shard's turn begins.
    fn one_turn(&mut self, queue: QueueId, letters: impl IntoIterator<Item = ToShard>) {
        let mut out = Outbox::default();
        let home = self.topology.home(queue);
        letters.into_iter().for_each(|letter| out.shard(home, letter));
        self.run(out);
    }

    /// What messages take besides their records.
    fn queue_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.held_bytes() - shard.usage().held_bytes).sum()
    }

    fn next_timeout(&self) -> Option<Time> {
        self.shards.iter().filter_map(Shard::next_timeout).min()
    }

    fn records(&self) -> u64 {
        self.shards.iter().map(|shard| shard.usage().records).sum()
    }
}

fn message(queue: QueueId, key: &str, body: &str, confirm: u64) -> Publish {
    let mut properties = Vec::new();
    Properties::default().encode(&mut properties);
    Publish {
        channel: 1,
        confirm,
        targets: [queue].into_iter().collect(),
        persistent: false,
        priority: 0,
        expiration_ms: None,
        message: Message::from_parts(&join_names("", key), &properties, body.as_bytes()),
        shared: None,
    }
}

fn body(delivery: &Delivery) -> String {
    let view = View::of(&delivery.record).expect("a record");
    String::from_utf8_lossy(&view.body()).into_owned()
}

fn table(entries: &[(&str, Value)]) -> Table {
    entries.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
}

fn text(text: &str) -> Value {
    Value::LongStr(text.as_bytes().to_vec())
}

#[test]
fn a_message_is_confirmed_delivered_acked_and_forgotten() {
    let mut node = Node::new();
    let queue = node.declare("q", Table::default());
    node.publish(queue, "q", "hello", 1);
    assert!(matches!(
        node.got.pop_front(),
        Some(ToSession::Confirm { channel: 1, first: 1, last: 1, ok: true })
    ));
    node.consume(queue, 7, false);
    let deliveries = node.delivered();
    assert_eq!(deliveries.len(), 1);
    assert_eq!(deliveries[0].slot, ConsumerSlot(7));
    assert_eq!(node.records(), 1);
    node.settle(&deliveries[0], Settle::Ack);
    assert_eq!(node.records(), 0, "nobody holds the record any more");
}

#[test]
fn a_requeued_message_comes_back_marked() {
    let mut node = Node::new();
    let queue = node.declare("q", Table::default());
    node.consume(queue, 0, false);
    node.publish(queue, "q", "a", 0);
    let first = node.delivered();
    node.settle(&first[0], Settle::Requeue { counts: true });
    let again = node.delivered();
    assert!(!first[0].redelivered && again[0].redelivered);
    assert_eq!(again[0].offset, first[0].offset);
}

#[test]
fn rejected_messages_go_to_the_dead_letter_queue_on_any_shard() {
    let mut node = Node::new();
    let arguments =
        table(&[("x-dead-letter-exchange", text("")), ("x-dead-letter-routing-key", text("dead"))]);
    let source = node.declare("source", arguments);
    let dead = node.declare("dead", Table::default());
    assert_ne!(node.topology.home(source), node.topology.home(dead), "consecutive ids");
    node.consume(source, 0, false);
    node.publish(source, "source", "bad", 0);
    let deliveries = node.delivered();
    node.settle(&deliveries[0], Settle::Reject);
    node.consume(dead, 1, true);
    let letters = node.delivered();
    let view = View::of(&letters[0].record).expect("a record");
    assert_eq!(view.exchange_and_key(), Some(("", "dead")));
    let headers = RawProperties::new(view.properties).to_owned().expect("properties").headers;
    let headers = headers.expect("headers");
    assert_eq!(headers.get("x-first-death-queue"), Some(&text("source")));
    assert_eq!(headers.get("x-first-death-reason"), Some(&text("rejected")));
    assert_eq!(node.records(), 0);
}

/// What the broker cannot read of a message's properties is the application's, and no reason to lose it.
#[test]
fn a_dead_letter_keeps_properties_that_mean_nothing_to_the_broker() {
    let mut node = Node::new();
    let dead = node.declare("dead", Table::default());
    let dlx = [("x-dead-letter-exchange", text("")), ("x-dead-letter-routing-key", text("dead"))];
    let queue = node.declare("q", table(&dlx));
    let entry = |key: u8, kind: u8, value: &[u8]| {
        [&[1, key, kind][..], &(value.len() as u32).to_be_bytes(), value].concat()
    };
    let deep = (0..150).fold(Vec::new(), |inner, _| entry(b'd', b'F', &inner));
    let written = [deep, entry(b's', b'S', b"kept")].concat();
    let correlation_id = b"\x03\xff\xfe\x80";
    let properties = [
        &((1_u16 << 13) | (1 << 10)).to_be_bytes()[..],
        &(written.len() as u32).to_be_bytes(),
        &written,
        correlation_id,
    ]
    .concat();
    let mut message = message(queue, "q", "x", 0);
    message.message = Message::from_parts(&join_names("", "q"), &properties, b"x");
    node.shard(queue, ToShard::Publish { from: ME, messages: vec![message] });
    node.consume(queue, 1, false);
    let delivery = node.delivered().remove(0);
    node.settle(&delivery, Settle::Reject);
    node.consume(dead, 2, true);
    let letter = node.delivered().remove(0);
    let view = View::of(&letter.record).expect("a record");
    assert!(view.properties.ends_with(correlation_id));
    let headers = RawProperties::new(view.properties).peek().expect("whole").headers;
    let headers = headers.expect("headers");
    assert_eq!(headers.get("s"), Ok(Some(RawValue::LongStr(b"kept"))));
    assert!(headers.as_bytes().starts_with(&written), "what is nested deep too");
    assert!(matches!(headers.get("x-death"), Ok(Some(_))));
}

#[test]
fn expired_messages_leave_by_the_clock() {
    let mut node = Node::new();
    let queue = node.declare("q", table(&[("x-message-ttl", Value::I32(50))]));
    node.publish(queue, "q", "short-lived", 0);
    assert_eq!(node.records(), 1);
    node.later(49);
    assert_eq!(node.records(), 1);
    node.later(1);
    assert_eq!(node.records(), 0);
}

#[test]
fn a_message_that_would_circle_for_ever_is_dropped() {
    let mut node = Node::new();
    let arguments = table(&[
        ("x-message-ttl", Value::I32(10)),
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text("q")),
    ]);
    let queue = node.declare("q", arguments);
    node.publish(queue, "q", "round", 0);
    node.later(10);
    assert_eq!(node.records(), 0, "expired into its own queue, with no reject on the way");
}

#[test]
fn deleting_a_queue_tells_its_consumers_and_lets_its_messages_go() {
    let mut node = Node::new();
    let queue = node.declare("q", Table::default());
    for body in ["a", "b"] {
        node.publish(queue, "q", body, 0);
    }
    node.consume(queue, 3, false);
    assert_eq!(node.bodies(), ["a", "b"]);
    let reply = Some(ReplyTo { connection: ME, channel: 1 });
    node.shard(
        queue,
        ToShard::Delete { by: Box::default(), reply, queue, if_unused: false, if_empty: false },
    );
    assert!(matches!(node.reply(), Reply::Deleted(0)), "both were unacked, none ready");
    assert!(matches!(
        node.got.pop_front(),
        Some(ToSession::ConsumerGone { slot: ConsumerSlot(3) })
    ));
    assert_eq!(node.records(), 0);
    assert!(node.topology.queue_by_id(queue).is_none());
}

#[test]
fn a_full_queue_refuses_and_the_publisher_is_told() {
    let mut node = Node::new();
    let arguments =
        table(&[("x-max-length", Value::I32(1)), ("x-overflow", text("reject-publish"))]);
    let queue = node.declare("q", arguments);
    node.publish(queue, "q", "a", 1);
    node.publish(queue, "q", "b", 2);
    let confirms: Vec<bool> = node
        .got
        .drain(..)
        .map(|letter| match letter {
            ToSession::Confirm { ok, .. } => ok,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(confirms, [true, false]);
    assert_eq!(node.records(), 1);
}

#[test]
fn the_last_exclusive_queue_of_a_connection_answers_its_end() {
    let mut node = Node::new();
    for name in ["one", "two"] {
        let letter = ToMeta::DeclareQueue {
            by: Box::default(),
            reply: ReplyTo { connection: ME, channel: 1 },
            vhost: node.vhost,
            name: name.into(),
            server_named: false,
            durable: false,
            exclusive: true,
            auto_delete: false,
            arguments: Table::default(),
            forbidden: None,
        };
        node.run(Outbox { meta: vec![letter], ..Outbox::default() });
        assert!(matches!(node.reply(), Reply::Declared { .. }));
    }
    let reply = Some(ReplyTo { connection: ME, channel: 0 });
    let letter = ToMeta::Disconnected { connection: ME, reply };
    node.run(Outbox { meta: vec![letter], ..Outbox::default() });
    assert!(matches!(node.reply(), Reply::Done));
    assert_eq!(node.topology.queue_count(), 0);
}

type Command = fn(ReplyTo, QueueId) -> ToShard;

/// What came in the same turn and found a consumer is not ready any more.
#[test]
fn commands_do_not_count_what_consumers_take_in_the_same_turn() {
    let reply = ReplyTo { connection: ME, channel: 1 };
    let commands: [(Command, &str); 3] = [
        (|reply, queue| ToShard::Count { reply, queue }, "Declared { messages: 0 }"),
        (|reply, queue| ToShard::Purge { reply, queue, max: u64::MAX }, "Purged(0)"),
        (
            |reply, queue| ToShard::Delete {
                by: Box::default(),
                reply: Some(reply),
                queue,
                if_unused: false,
                if_empty: true,
            },
            "Deleted(0)",
        ),
    ];
    for (command, want) in commands {
        let mut node = Node::new();
        let queue = node.declare("q", Table::default());
        node.consume(queue, 0, true);
        let publish = ToShard::Publish { from: ME, messages: vec![message(queue, "q", "a", 0)] };
        node.one_turn(queue, [publish, command(reply, queue)]);
        let mut delivered = 0;
        let mut told = String::new();
        for letter in node.got.drain(..) {
            match letter {
                ToSession::Deliver(deliveries) => delivered += deliveries.len(),
                ToSession::Reply { reply: Reply::Declared { messages, .. }, .. } => {
                    told = format!("Declared {{ messages: {messages} }}");
                }
                ToSession::Reply { reply, .. } => told = format!("{reply:?}"),
                _ => {}
            }
        }
        assert_eq!((delivered, &*told), (1, want));
    }
}

#[test]
fn what_queues_take_for_messages_is_counted_and_given_back() {
    let mut node = Node::new();
    let queue = node.declare("q", Table::default());
    let messages = (0..4_000).map(|_| message(queue, "q", "", 0)).collect();
    node.one_turn(queue, [ToShard::Publish { from: ME, messages }]);
    let ready = node.queue_bytes();
    assert!(
        (2_000..16_000).contains(&ready),
        "16 bytes each at both ends, between them next to none: {ready}"
    );
    node.consume(queue, 0, false);
    // One turn may not give all of them.
    assert_eq!(node.got.iter().map(deliveries).sum::<usize>(), 4_000);
    let unacked = node.queue_bytes();
    assert!(unacked > 240_000, "here and in the session: {unacked}");
    let settlements = node.got.drain(..).flat_map(|letter| match letter {
        ToSession::Deliver(deliveries) => deliveries,
        _ => Vec::new(),
    });
    let settlements = settlements
        .map(|delivery| Settlement {
            queue,
            unacked: delivery.unacked.expect("acks are expected"),
            offset: delivery.offset,
            how: Settle::Ack,
        })
        .collect();
    node.one_turn(queue, [ToShard::Settle { from: ME, settlements }]);
    assert_eq!(node.queue_bytes(), 0);
    // The queue is looked at until it has rested; then there is nothing to wake for.
    for _ in 0..3 {
        let Some(at) = node.next_timeout() else { break };
        node.later(at.ms() - node.now.ms());
    }
    assert_eq!(node.next_timeout(), None);
}

fn deliveries(letter: &ToSession) -> usize {
    match letter {
        ToSession::Deliver(deliveries) => deliveries.len(),
        _ => 0,
    }
}

/// A message that came together with the end of its consumer's connection is sent all the same: whoever
/// finds nobody there returns it.
#[test]
fn what_was_given_to_a_connection_that_ended_is_not_lost() {
    let mut node = Node::new();
    let queue = node.declare("q", Table::default());
    node.consume(queue, 0, false);
    let publish = ToShard::Publish { from: ME, messages: vec![message(queue, "q", "a", 0)] };
    node.one_turn(queue, [publish, ToShard::Disconnected { connection: ME, reply: None }]);
    let [delivery] = &node.delivered()[..] else { panic!("one message was given out") };
    node.settle(delivery, Settle::Requeue { counts: false });
    node.consume(queue, 1, false);
    let back = node.delivered();
    assert_eq!(back.iter().map(|one| one.redelivered).collect::<Vec<_>>(), [true]);
}

/// A consumer that does not ack and whose channel closes is given nothing more: nobody would see it.
#[test]
fn nothing_is_given_to_a_no_ack_consumer_of_a_closing_channel() {
    let mut node = Node::new();
    let queue = node.declare("q", Table::default());
    node.consume(queue, 0, true);
    let publish = ToShard::Publish { from: ME, messages: vec![message(queue, "q", "a", 0)] };
    let cancel = ToShard::Cancel {
        user: Box::default(),
        reply: None,
        connection: ME,
        queue,
        slot: ConsumerSlot(0),
    };
    node.one_turn(queue, [publish, cancel]);
    assert_eq!((node.got.len(), node.records()), (0, 1));
    node.consume(queue, 1, true);
    assert_eq!(node.bodies(), ["a"]);
}

/// A channel that consumes and gets sees the older message first, although consumers' messages leave at
/// the end of the turn.
/// Where one connection's output has room for one message at a time, its queues take turns.
#[test]
fn the_queue_that_waited_longest_is_served_first() {
    let mut node = Node::new();
    let queues: Vec<_> = (0..8).map(|n| node.declare(&format!("q{n}"), Table::default())).collect();
    let queues = queues.into_iter().filter(|&queue| node.topology.home(queue).index() == 0);
    let queues: Vec<_> = queues.take(3).collect();
    let output = Arc::new(OutputGauge::new(1));
    let mut served = Vec::new();
    for (slot, &queue) in (1..).zip(&queues) {
        (0..3).for_each(|_| node.publish(queue, "k", "m", 0));
        node.consume_through(&output, queue, slot, true);
        served.extend(node.delivered().iter().map(|delivery| delivery.queue));
    }
    while output.released(delivery_cost(1)) {
        node.shard(queues[0], ToShard::Resume { connection: ME, others: Vec::new() });
        served.extend(node.delivered().iter().map(|delivery| delivery.queue));
    }
    assert_eq!(served.len(), 9);
    assert_eq!(served, queues.repeat(3));
}

#[test]
fn get_comes_after_what_consumers_had_before() {
    let mut node = Node::new();
    let queue = node.declare("q", Table::default());
    node.consume(queue, 0, true);
    let reply = ReplyTo { connection: ME, channel: 1 };
    let publish = ToShard::Publish { from: ME, messages: vec![message(queue, "q", "a", 0)] };
    node.one_turn(queue, [publish, ToShard::Get { reply, queue, no_ack: true }]);
    assert_eq!(node.bodies(), ["a"]);
    assert!(matches!(node.reply(), Reply::GotNothing));
}

/// The same when the consumer got its message because of somebody else's `basic.get`.
#[test]
fn get_comes_after_what_another_get_had_given_out() {
    let mut node = Node::new();
    let queue = node.declare("q", Table::default());
    node.consume_within(1, queue, 0, true);
    let messages = ["a", "b", "c"].map(|body| message(queue, "q", body, 0)).to_vec();
    let get = |connection| {
        let reply = ReplyTo { connection, channel: 1 };
        ToShard::Get { reply, queue, no_ack: true }
    };
    let publish = ToShard::Publish { from: ME, messages };
    node.one_turn(queue, [publish, get(NodeId::ALONE.connection(2)), get(ME)]);
    assert_eq!(node.got_body(), "b", "to the other connection");
    assert_eq!(node.bodies(), ["a"]);
    assert_eq!(node.got_body(), "c");
}

/// The same when consumers may take more than one turn gives out.
#[test]
fn get_comes_after_all_that_consumers_take() {
    const TAKEN: u64 = 5_000;
    let mut node = Node::new();
    let queue = node.declare("q", Table::default());
    node.consume_within(TAKEN * delivery_cost(0), queue, 0, true);
    let mut messages = vec![message(queue, "q", "", 0); TAKEN as usize];
    messages.push(message(queue, "q", "last", 0));
    let reply = ReplyTo { connection: ME, channel: 1 };
    let publish = ToShard::Publish { from: ME, messages };
    node.one_turn(queue, [publish, ToShard::Get { reply, queue, no_ack: true }]);
    let mut before = 0;
    while let Some(ToSession::Deliver(deliveries)) = node.got.front() {
        before += deliveries.len() as u64;
        node.got.pop_front();
    }
    assert_eq!((before, node.got_body()), (TAKEN, "last".to_owned()));
}

#[test]
fn queues_of_a_deleted_vhost_are_deleted_where_they_live() {
    let homes = Homes::among(SHARDS as u32).by_chance(7);
    let mut node = Node::with(homes);
    let queues: Vec<_> = (0..8)
        .map(|number| {
            let name = format!("q{number}");
            let queue = node.declare(&name, Table::default());
            node.publish(queue, &name, "body", 0);
            queue
        })
        .collect();
    let elsewhere = queues.iter().filter(|&&it| node.topology.home(it) != homes.usual(it));
    assert_ne!(elsewhere.count(), 0);
    let command = Box::new(AdminCommand::DeleteVhost { name: "/".to_owned() });
    let reply = ReplyTo { connection: ME, channel: 1 };
    let delete = ToMeta::Admin { by: Box::default(), reply, command };
    node.run(Outbox { meta: vec![delete], ..Outbox::default() });
    assert!(matches!(node.reply(), Reply::Done));
    let left = node.shards.iter().map(|shard| shard.queues().count()).sum::<usize>();
    assert_eq!((left, node.records()), (0, 0));
}

#[test]
fn a_connections_end_is_answered_though_its_vhost_is_deleted_meanwhile() {
    let mut node = Node::new();
    let me = ReplyTo { connection: ME, channel: 1 };
    let declare = ToMeta::DeclareQueue {
        by: Box::default(),
        reply: me,
        vhost: node.vhost,
        name: "mine".into(),
        server_named: false,
        durable: false,
        exclusive: true,
        auto_delete: false,
        arguments: Table::default(),
        forbidden: None,
    };
    node.run(Outbox { meta: vec![declare], ..Outbox::default() });
    node.got.clear();
    let reply = Some(ReplyTo { connection: ME, channel: 0 });
    let ended = ToMeta::Disconnected { connection: ME, reply };
    let command = Box::new(AdminCommand::DeleteVhost { name: "/".to_owned() });
    let delete = ToMeta::Admin { by: Box::default(), reply: me, command };
    node.run(Outbox { meta: vec![ended, delete], ..Outbox::default() });
    assert!(matches!(node.reply(), Reply::Done), "the vhost is deleted");
    assert!(matches!(node.reply(), Reply::Done), "and the connection's queue is gone");
}

/// At least once: a target that took a dead letter does not get it again while another one is full.
#[test]
fn a_full_target_does_not_give_the_others_duplicates() {
    let mut node = Node::new();
    let source = node.declare(
        "source",
        table(&[
            ("x-queue-type", text("quorum")),
            ("x-dead-letter-exchange", text("amq.fanout")),
            ("x-dead-letter-strategy", text("at-least-once")),
            ("x-overflow", text("reject-publish")),
        ]),
    );
    let roomy = node.declare("roomy", Table::default());
    let full = table(&[("x-max-length", Value::I32(1)), ("x-overflow", text("reject-publish"))]);
    let full = node.declare("full", full);
    for name in ["roomy", "full"] {
        let target = leveret_topology::Destination::Queue(name);
        node.topology
            .bind(node.vhost, "amq.fanout", target, "", Table::default(), None)
            .expect("bound");
    }
    node.publish(full, "full", "in the way", 0);
    node.publish(source, "source", "dying", 0);
    node.consume(source, 1, false);
    let dying = node.delivered().remove(0);
    node.settle(&dying, Settle::Reject);
    node.later(3_000);
    node.later(3_000);
    assert_eq!(node.records(), 3, "the one in the way, the held one, one copy");

    node.consume(full, 2, true);
    assert_eq!(node.bodies(), ["in the way"]);
    node.later(3_000);
    assert_eq!(node.bodies(), ["dying"]);
    node.consume(roomy, 3, true);
    assert_eq!(node.bodies(), ["dying"]);
    assert_eq!(node.records(), 0);
}

/// A queue of many messages, and how many.
fn backlog(node: &mut Node, arguments: &[(&str, Value)]) -> (QueueId, u64) {
    let queue = node.declare("q", table(arguments));
    let many = 12_000;
    let messages = (0..many).map(|_| message(queue, "q", "x", 0)).collect();
    node.shard(queue, ToShard::Publish { from: ME, messages });
    assert_eq!(node.records(), many);
    node.most = 0;
    (queue, many)
}

/// What leaves by the thousand leaves bit by bit; who asked is answered at once, and truly.
#[test]
fn a_backlog_is_purged_and_deleted_in_short_turns() {
    let reply = ReplyTo { connection: ME, channel: 1 };
    for delete in [false, true] {
        let mut node = Node::new();
        let (queue, many) = backlog(&mut node, &[]);
        let letter = match delete {
            true => ToShard::Delete {
                by: Box::default(),
                reply: Some(reply),
                queue,
                if_unused: false,
                if_empty: false,
            },
            false => ToShard::Purge { reply, queue, max: u64::MAX },
        };
        let count = ToShard::Count { reply, queue };
        node.one_turn(
            queue,
            [
                letter,
                ToShard::Publish { from: ME, messages: vec![message(queue, "q", "after", 0)] },
                count,
            ],
        );
        let replies = [node.reply(), node.reply()].map(|reply| format!("{reply:?}"));
        if delete {
            assert_eq!(replies, ["Gone".to_owned(), format!("Deleted({many})")]);
        } else {
            assert_eq!(replies[0], format!("Purged({many})"));
            assert!(replies[1].contains("messages: 1"), "{replies:?}");
        }
        assert_eq!(node.records(), u64::from(!delete));
        assert!(node.most <= 8192, "{} in one turn", node.most);
    }
}

/// The same, of messages that go to another queue when they leave, perhaps as they expire: both queues.
fn backlog_with_dead_letters(node: &mut Node, expires: bool) -> ([QueueId; 2], u64) {
    let dead = node.declare("dead", Table::default());
    let dlx = [("x-dead-letter-exchange", text("")), ("x-dead-letter-routing-key", text("dead"))];
    let ttl = expires.then_some(("x-message-ttl", Value::I32(1000)));
    let arguments: Vec<_> = dlx.into_iter().chain(ttl).collect();
    let (queue, many) = backlog(node, &arguments);
    ([queue, dead], many)
}

/// A policy limits the queue `q` to so many messages: what the owner of the names writes then.
fn shorten(node: &mut Node, max_length: u64) -> Outbox {
    let definition = serde_json::json!({ "max-length": max_length });
    let serde_json::Value::Object(definition) = definition else { unreachable!() };
    let (apply_to, priority) = (ApplyTo::Queues, 0);
    let spec = PolicySpec { name: "short", pattern: "^q$", apply_to, priority, definition };
    let policy = Box::new(Policy::new(spec, false).unwrap());
    let command = Box::new(AdminCommand::SetPolicy { vhost: "/".to_owned(), policy });
    let reply = ReplyTo { connection: ME, channel: 1 };
    let mut out = Outbox::default();
    let mut letters = vec![ToMeta::Admin { by: Box::default(), reply, command }];
    node.meta.turn(&mut letters, &mut node.topology, &mut out);
    out
}

/// Whoever asks for what is behind messages that are to be dead letters waits for these, and those who count do not have more of
/// them leave: else all of them would leave in one turn, and wait in memory.
#[test]
fn what_is_behind_dead_letters_comes_after_them() {
    let reply = ReplyTo { connection: ME, channel: 1 };
    for expires in [false, true] {
        let mut node = Node::new();
        let ([queue, dead], many) = backlog_with_dead_letters(&mut node, expires);
        let mut out = Outbox::default();
        if expires {
            node.now = node.now.after_ms(2000);
        } else {
            out = shorten(&mut node, 7);
        }
        let home = node.topology.home(queue);
        out.shard(home, ToShard::Get { reply, queue, no_ack: true });
        (0..50).for_each(|_| out.shard(home, ToShard::Count { reply, queue }));
        node.run(out);
        let kept = if expires { 0 } else { 7 };
        match node.got.pop_back() {
            Some(ToSession::Reply { reply: Reply::Got { remaining, .. }, .. }) => {
                assert_eq!(remaining + 1, kept);
            }
            Some(ToSession::Reply { reply: Reply::GotNothing, .. }) => assert_eq!(kept, 0),
            other => panic!("{other:?}"),
        }
        assert!(node.most_parked <= 2048, "{} waited", node.most_parked);
        node.got.clear();
        node.shard(dead, ToShard::Count { reply, queue: dead });
        let Reply::Declared { messages, .. } = node.reply() else { panic!("not counted") };
        assert_eq!(messages, many - kept);
    }
}

/// Expired, or over a length that is set later: the same, with dead letters.
#[test]
fn a_backlog_is_dead_lettered_in_short_turns() {
    for expires in [false, true] {
        let mut node = Node::new();
        let ([queue, dead], many) = backlog_with_dead_letters(&mut node, expires);
        let reply = ReplyTo { connection: ME, channel: 1 };
        if expires {
            node.now = node.now.after_ms(2000);
            // Finds nothing, when all that expired is gone.
            node.shard(queue, ToShard::Get { reply, queue, no_ack: true });
            assert!(matches!(node.reply(), Reply::GotNothing));
        } else {
            let out = shorten(&mut node, 7);
            node.run(out);
            assert!(matches!(node.reply(), Reply::Done));
        }
        node.later(1);
        node.shard(dead, ToShard::Count { reply, queue: dead });
        let left = if expires { 0 } else { 7 };
        let Reply::Declared { messages, .. } = node.reply() else { panic!("not counted") };
        assert_eq!(messages, many - left);
        assert_eq!(node.records(), many);
        assert!(node.most <= 8192, "{} in one turn", node.most);
    }
}

/// A declaration that finds the queue, a passive one too, begins its `x-expires` anew.
#[test]
fn a_declaration_keeps_a_queue_that_expires() {
    let mut node = Node::new();
    let queue = node.declare("q", table(&[("x-expires", Value::I32(1000))]));
    let reply = ReplyTo { connection: ME, channel: 1 };
    for _ in 0..3 {
        node.later(600);
        node.shard(queue, ToShard::Count { reply, queue });
        assert!(matches!(node.reply(), Reply::Declared { .. }));
    }
    node.later(1000);
    node.shard(queue, ToShard::Count { reply, queue });
    assert!(matches!(node.reply(), Reply::Gone));
}

/// At least once, and the target is full: very many wait, and cost next to nothing; when it takes some, they go.
#[test]
fn dead_letters_that_go_nowhere_are_tried_few_at_a_time() {
    let mut node = Node::new();
    let full = table(&[("x-max-length", Value::I32(1)), ("x-overflow", text("reject-publish"))]);
    let dead = node.declare("dead", full);
    node.publish(dead, "dead", "in the way", 0);
    let arguments = [
        ("x-queue-type", text("quorum")),
        ("x-message-ttl", Value::I32(1000)),
        ("x-overflow", text("reject-publish")),
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text("dead")),
    ];
    let queue = node.declare("q", table(&arguments));
    let many = 12_000;
    let messages = (0..many).map(|_| message(queue, "q", "x", 0)).collect();
    node.shard(queue, ToShard::Publish { from: ME, messages });
    node.later(2_000);
    assert_eq!(node.records(), many + 1, "all are held");
    node.most = 0;
    (0..10).for_each(|_| node.later(1_000));
    assert!((1..=100).contains(&node.most), "{} in one turn", node.most);
    node.consume_within(1 << 30, dead, 1, true);
    node.later(1_000);
    assert_eq!(node.records(), 0, "with the first ones all others went");
    assert!(node.most <= 100, "{} in one turn", node.most);
}

/// Very many settled with one method: the same, for acks too. Who deletes the queue meanwhile, or ends
/// its last consumer, takes no dead letter away.
#[test]
fn a_crowd_is_settled_in_short_turns() {
    let dlx = [("x-dead-letter-exchange", text("")), ("x-dead-letter-routing-key", text("dead"))];
    for (how, deletes) in [(Settle::Ack, false), (Settle::Reject, false), (Settle::Reject, true)] {
        let mut node = Node::new();
        let dead = node.declare("dead", Table::default());
        let (queue, many) = backlog(&mut node, &dlx);
        node.consume_within(1 << 30, queue, 1, false);
        let mut settlements = Vec::new();
        loop {
            let deliveries = node.delivered();
            if deliveries.is_empty() {
                break;
            }
            settlements.extend(deliveries.iter().map(|delivery| Settlement {
                queue,
                unacked: delivery.unacked.expect("acks are expected"),
                offset: delivery.offset,
                how,
            }));
        }
        assert_eq!(settlements.len() as u64, many);
        let last = settlements.pop().expect("many");
        let reply = ReplyTo { connection: ME, channel: 1 };
        let mut letters = vec![
            ToShard::Settle { from: ME, settlements },
            ToShard::Settle { from: ME, settlements: vec![last] },
        ];
        if deletes {
            let (if_unused, if_empty) = (false, false);
            letters.push(ToShard::Delete {
                by: Box::default(),
                reply: Some(reply),
                queue,
                if_unused,
                if_empty,
            });
        }
        node.most = 0;
        node.one_turn(queue, letters);
        node.got.clear();
        node.consume_within(1 << 30, dead, 2, true);
        let mut ids = Vec::new();
        while let Some(ToSession::Deliver(deliveries)) = node.got.pop_front() {
            ids.extend(deliveries.iter().map(|delivery| delivery.offset));
        }
        let letters = if how == Settle::Reject { many } else { 0 };
        assert_eq!(ids.len() as u64, letters, "{how:?}, deletes: {deletes}");
        assert!(ids.is_sorted(), "in the order in which they were settled");
        assert_eq!(node.records(), 0);
        assert!(node.most <= 8192, "{} in one turn", node.most);
    }
}

/// One round of samples: what all queues counted, those that are gone too.
fn sampled(node: &mut Node, mut between: impl FnMut(&mut Node)) -> (usize, u64) {
    let (mut queues, mut enqueued) = (0, 0);
    for index in 0..SHARDS {
        let mut begins = true;
        loop {
            let reply = ReplyTo { connection: ME, channel: 0 };
            let mut out = Outbox::default();
            out.shard(GroupId::at(index), ToShard::Sample { reply, begins });
            node.run(out);
            begins = false;
            let Reply::Sampled(piece) = node.reply() else { panic!("not sampled") };
            queues += piece.queues.len();
            enqueued += piece.queues.iter().map(|queue| queue.totals.enqueued).sum::<u64>();
            if let Some(rest) = piece.rest {
                enqueued += rest.gone.iter().map(|gone| gone.totals.enqueued).sum::<u64>();
                break;
            }
            between(node);
        }
    }
    (queues, enqueued)
}

/// Queues that are deleted while somebody adds up are counted once, whether they were looked at or not.
#[test]
fn samples_come_in_pieces_and_totals_never_go_back() {
    const QUEUES: u64 = 10_000;
    let mut node = Node::new();
    let queues: Vec<_> =
        (0..QUEUES).map(|n| node.declare(&format!("q{n}"), Table::default())).collect();
    for &queue in &queues {
        node.publish(queue, "q", "m", 0);
    }
    let (all, enqueued) = sampled(&mut node, |_| {});
    assert_eq!((all as u64, enqueued), (QUEUES, QUEUES));
    let mut left = queues.into_iter();
    let mut pieces = 0;
    let (all, enqueued) = sampled(&mut node, |node| {
        pieces += 1;
        for queue in left.by_ref().take(1000) {
            let letter = ToShard::Delete {
                by: Box::default(),
                reply: None,
                queue,
                if_unused: false,
                if_empty: false,
            };
            node.shard(queue, letter);
        }
    });
    assert_eq!(enqueued, QUEUES);
    assert!(pieces >= 3 && (all as u64) < QUEUES, "{pieces} pieces, {all} queues");
    assert_eq!(sampled(&mut node, |_| {}).1, QUEUES);
    assert_eq!(node.meta.counters().queues_deleted, pieces * 1000);
}

/// What a queue tells besides its counts: what is at its head, and how long nobody took it.
#[test]
fn a_queue_tells_what_waits_and_how_long() {
    let mut node = Node::new();
    let queue = node.declare("q", Table::default());
    let mut properties = Vec::new();
    let stamped = Properties { timestamp: Some(77), ..Properties::default() };
    stamped.encode(&mut properties);
    let published = node.now.ms();
    let parts = Message::from_parts(&join_names("", "q"), &properties, b"m");
    let stamped = Publish { message: parts, persistent: true, ..message(queue, "q", "", 0) };
    node.shard(queue, ToShard::Publish { from: ME, messages: vec![stamped] });
    node.later(300);
    let mut out = Outbox::default();
    let reply = ReplyTo { connection: ME, channel: 0 };
    out.shard(
        node.topology.home(queue),
        ToShard::List { reply, queues: [queue].into(), consumers: Named::None },
    );
    node.run(out);
    let Reply::Queues(facts) = node.reply() else { panic!("not listed") };
    let numbers = &facts[0].numbers;
    let head = numbers.head.expect("a message");
    assert_eq!((head.published_ms, head.timestamp_s), (published, Some(77)));
    assert_eq!(numbers.waited_ms, 300);
    assert_eq!(numbers.used.ms(), published);
    assert_eq!((numbers.counts.persistent, numbers.counts.persistent_bytes), (1, 1));
}

/// Somebody deletes what a user may only compare with, while its declaration is on the way.
#[test]
fn what_is_gone_is_not_made_by_who_may_not() {
    let mut node = Node::new();
    let refusal = Refusal { code: ReplyCode::AccessRefused, text: "no".to_owned() };
    let reply = ReplyTo { connection: ME, channel: 1 };
    let queue = |node: &Node| ToMeta::DeclareQueue {
        by: Box::default(),
        reply,
        vhost: node.vhost,
        name: "q".into(),
        server_named: false,
        durable: true,
        exclusive: false,
        auto_delete: false,
        arguments: Table::default(),
        forbidden: Some(Box::new(refusal.clone())),
    };
    let exchange = |node: &Node| ToMeta::DeclareExchange {
        by: Box::default(),
        reply,
        vhost: node.vhost,
        name: "x".into(),
        kind: "direct".into(),
        durable: true,
        auto_delete: false,
        internal: false,
        arguments: Table::default(),
        forbidden: Some(Box::new(refusal.clone())),
    };
    for letter in [queue(&node), exchange(&node)] {
        node.run(Outbox { meta: vec![letter], ..Outbox::default() });
        let reply = node.reply();
        let is_refused = matches!(&reply, Reply::Refused { text, .. } if text == "no");
        assert!(is_refused, "{reply:?}");
    }
    assert!(node.topology.queue(node.vhost, "q").is_none());
    assert!(node.topology.exchange(node.vhost, "x").is_none());
    let made = node.declare("q", Table::default());
    let letter = queue(&node);
    node.run(Outbox { meta: vec![letter], ..Outbox::default() });
    assert!(matches!(node.reply(), Reply::Declared { queue, .. } if queue == made));
}

/// The end of a connection costs a step for each of its exclusive queues: with a search for each of them through all of
/// them this would not end.
#[test]
fn a_connection_with_very_many_exclusive_queues_ends() {
    let mut node = Node::new();
    let reply = ReplyTo { connection: ME, channel: 1 };
    let declare = |number: u32| ToMeta::DeclareQueue {
        by: Box::default(),
        reply,
        vhost: node.vhost,
        name: number.to_string().into(),
        server_named: false,
        durable: false,
        exclusive: true,
        auto_delete: false,
        arguments: Table::new(),
        forbidden: None,
    };
    let letters = (0..100_000).map(declare).collect();
    node.run(Outbox { meta: letters, ..Outbox::default() });
    assert_eq!((node.topology.queue_count(), node.got.len()), (100_000, 100_000));
    node.got.clear();
    let end = ToMeta::Disconnected { connection: ME, reply: Some(reply) };
    node.run(Outbox { meta: vec![end], ..Outbox::default() });
    assert_eq!(node.topology.queue_count(), 0);
    assert!(matches!(node.reply(), Reply::Done));
    assert!(node.got.is_empty());
}

/// A vhost that is traced makes no steps of messages in others.
#[test]
fn only_messages_of_traced_vhosts_make_steps() {
    let mut node = Node::new();
    let plain = node.declare("q", Table::default());
    node.vhost = node.topology.add_vhost("traced").expect("a vhost");
    let traced = node.declare("q", Table::default());
    node.topology.set_tracing("traced", true).expect("a vhost");
    for (number, queue) in [(1, plain), (2, traced), (3, plain)] {
        node.publish(queue, "q", "a", number);
    }
    let steps = node.steps.iter().map(|step| &step.what);
    let stored: Vec<_> = steps
        .map(|what| match what {
            What::Stored { number, queues, .. } => (*number, &queues[..]),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(stored, [(2, &[traced][..])]);
}

/// A message that its queue refuses is stored nowhere.
#[test]
fn a_refused_message_makes_no_step() {
    let mut node = Node::new();
    let mut arguments = Table::new();
    arguments.push("x-max-length", Value::I32(1));
    arguments.push("x-overflow", "reject-publish");
    let queue = node.declare("q", arguments);
    node.topology.set_tracing("/", true).expect("a vhost");
    node.publish(queue, "q", "a", 1);
    node.publish(queue, "q", "a", 2);
    let [step] = &node.steps[..] else { panic!("{:?}", node.steps) };
    assert!(matches!(step.what, What::Stored { number: 1, .. }), "{step:?}");
}
