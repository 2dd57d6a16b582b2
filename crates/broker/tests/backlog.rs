//! What it costs to empty queues whose messages are on disk only: bytes read, whoever comes first.

use std::collections::VecDeque;
use std::sync::Arc;

use leveret_amqp::content::Properties;
use leveret_amqp::table::Table;
use leveret_broker::flow::SPILLED_BYTES_MAX;
use leveret_broker::message::*;
use leveret_broker::record::{View, join_names};
use leveret_broker::{Meta, Shard};
use leveret_log::disk::{Faults, SimDisk};
use leveret_log::file::Options;
use leveret_log::{FileLog, MemoryLog};
use leveret_queue::{ChannelLimit, Gate, OutputGauge, Time, delivery_cost};
use leveret_topology::{GroupId, NodeId, QueueId, Topology};

const ME: ConnectionId = NodeId::ALONE.connection(1);
const BODY: usize = 1000;

/// What a client takes from its socket at once.
const READ: usize = 128 << 10;

/// A shard, its disk, and a connection that acks what it gets.
struct Node {
    topology: Topology,
    shard: Shard<FileLog<SimDisk>>,
    disk: SimDisk,
    out: Outbox,
    now: Time,
    gauge: Arc<OutputGauge>,
    /// On its way to the client.
    output: VecDeque<Delivery>,
    received: usize,
}

impl Node {
    /// With so many empty queues.
    fn new(queues: usize) -> (Self, Vec<QueueId>) {
        let mut topology = Topology::new();
        let vhost = topology.add_vhost("/").expect("a vhost");
        let disk = SimDisk::new(7);
        let options = Options { warm_bytes: 4 << 20, ..Options::default() };
        let log = FileLog::open(disk.clone(), options, &mut |_| {}).expect("an empty disk").0;
        let mut meta = Meta::new(MemoryLog::new());
        let mut out = Outbox::default();
        let mut names: Vec<String> = (0..queues).map(|number| format!("q{number}")).collect();
        let declare = |name: &String| ToMeta::DeclareQueue {
            by: Box::default(),
            reply: reply(),
            vhost,
            name: name.as_str().into(),
            server_named: false,
            durable: true,
            exclusive: false,
            auto_delete: false,
            arguments: Table::default(),
            forbidden: None,
        };
        let mut letters: Vec<_> = names.iter().map(declare).collect();
        while !letters.is_empty() {
            meta.turn(&mut letters, &mut topology, &mut out);
            letters.append(&mut out.meta);
        }
        let id = |name: String| topology.queue(vhost, &name).expect("declared").id;
        let ids = names.drain(..).map(id).collect();
        let mut letters = out.shards.drain(..).map(|(_, letter)| letter).collect();
        let mut node = Self {
            topology,
            shard: Shard::new(GroupId::new(0), log),
            disk,
            out,
            now: Time::from_ms(0),
            gauge: Arc::new(OutputGauge::new(1 << 20)),
            output: VecDeque::new(),
            received: 0,
        };
        node.turn(&mut letters);
        (node, ids)
    }

    fn turn(&mut self, letters: &mut Vec<ToShard>) {
        self.now = self.now.after_ms(1);
        while self.shard.turn(letters, &self.topology, self.now, &mut self.out) {}
        for (_, letter) in self.out.sessions.drain(..) {
            if let ToSession::Deliver(deliveries) = letter {
                self.output.extend(deliveries);
            }
        }
    }

    /// So many messages to each queue, in turn, until all are on disk.
    fn fill(&mut self, queues: &[QueueId], each: usize) {
        self.publish(queues, each, true);
        while self.shard.usage().unwritten_bytes > 0 {
            self.now = self.now.after_ms(1000);
            self.turn(&mut vec![ToShard::LogWoke]);
        }
    }

    fn publish(&mut self, queues: &[QueueId], each: usize, persistent: bool) {
        let mut properties = Vec::new();
        Properties::default().encode(&mut properties);
        let message = Message::from_parts(&join_names("", "q"), &properties, &[7; BODY]);
        let publish = |queue: &QueueId| Publish {
            channel: 1,
            confirm: 0,
            targets: [*queue].into_iter().collect(),
            persistent,
            priority: 0,
            expiration_ms: None,
            message: message.clone(),
            shared: None,
        };
        for _ in 0..each {
            for some in queues.chunks(100) {
                let messages = some.iter().map(publish).collect();
                self.turn(&mut vec![ToShard::Publish { from: ME, messages }]);
            }
        }
    }

    fn consume(&mut self, queue: QueueId, slot: u32) {
        let letter = ToShard::Consume {
            user: Box::default(),
            reply: reply(),
            queue,
            slot: ConsumerSlot(slot),
            tag: "c".into(),
            no_ack: false,
            exclusive: false,
            priority: 0,
            prefetch: 100,
            gate: Some(Gate::new(Arc::clone(&self.gauge), Arc::new(ChannelLimit::new()))),
            arguments: Default::default(),
        };
        self.turn(&mut vec![letter]);
    }

    /// The client takes what fits one read, and acks it.
    fn receive(&mut self) {
        let (mut settlements, mut bytes) = (Vec::new(), 0);
        while bytes < READ
            && let Some(delivery) = self.output.pop_front()
        {
            let size = View::of(&delivery.record).expect("a record").body().len();
            assert_eq!(size, BODY);
            bytes += size;
            settlements.push(Settlement {
                queue: delivery.queue,
                unacked: delivery.unacked.expect("acks are expected"),
                offset: delivery.offset,
                how: Settle::Ack,
            });
        }
        self.received += settlements.len();
        let cost = settlements.len() as u64 * delivery_cost(BODY as u64);
        let resumes = self.gauge.released(cost);
        let mut letters = vec![ToShard::Settle { from: ME, settlements }];
        if resumes {
            letters.push(ToShard::Resume { connection: ME, others: Vec::new() });
        }
        self.turn(&mut letters);
    }
}

fn reply() -> ReplyTo {
    ReplyTo { connection: ME, channel: 1 }
}

/// Consumers of queues that lie mixed come one after the other on one connection, and are out of step for that:
/// the files are read about once all the same, and memory does not follow the number of queues.
#[test]
fn a_backlog_in_many_queues_is_read_once() {
    const QUEUES: usize = 500;
    const EACH: usize = 240;
    let (mut node, queues) = Node::new(QUEUES);
    node.fill(&queues, EACH);
    let before = node.disk.work();
    let held_before = node.shard.usage().held_bytes;
    node.disk.set_faults(Faults { delay: 1, ..Faults::default() });
    let (mut turns, mut most_held) = (0, 0);
    let mut next = queues.iter().enumerate();
    while node.received < QUEUES * EACH {
        if let Some((slot, &queue)) = next.next() {
            node.consume(queue, slot as u32);
        }
        node.receive();
        node.turn(&mut vec![ToShard::LogWoke]);
        most_held = most_held.max(node.shard.usage().held_bytes);
        turns += 1;
        assert!(turns < 1_000_000, "{} came, and no more", node.received);
    }
    let work = node.disk.work();
    let live = (QUEUES * EACH * BODY) as u64;
    let read = work.read_bytes - before.read_bytes;
    assert!(read < live * 3 / 2, "{read} bytes read of {live}");
    assert!(most_held < held_before + (8 << 20), "{most_held} bytes held, {held_before} before");
}

/// A queue whose consumer takes little has little read for it: the more it takes, the more is read at once.
#[test]
fn a_queue_asks_for_little_at_first() {
    let (mut node, queues) = Node::new(1);
    node.fill(&[queues[0]; 100], 300);
    let read_before = node.disk.work().read_bytes;
    node.consume(queues[0], 0);
    for _ in 0..100 {
        node.turn(&mut vec![ToShard::LogWoke]);
    }
    assert_eq!(node.output.len(), 100, "its prefetch");
    let read = node.disk.work().read_bytes - read_before;
    assert!(read < 600_000, "{read} bytes read");
}

/// Transient messages are written when there are too many, though nobody waits for the disk: what is in memory
/// stays within what was given to them, what may wait for the disk, and the cache.
#[test]
fn a_transient_backlog_leaves_memory() {
    const EACH: usize = 100_000;
    let (mut node, queues) = Node::new(1);
    node.shard.log_mut().set_spill_bytes(8 << 20);
    node.publish(&queues, EACH, false);
    let usage = node.shard.usage();
    assert!(usage.held_bytes < 64 << 20, "{usage:?}");

    node.consume(queues[0], 0);
    let mut turns = 0;
    while node.received < EACH {
        node.receive();
        node.turn(&mut vec![ToShard::LogWoke]);
        turns += 1;
        assert!(turns < 1_000_000, "{} came, and no more", node.received);
    }
}

/// What is written only to save memory goes to the disk in small batches, though nobody waits: whoever waits next for the
/// disk does not wait for a long write.
#[test]
fn a_transient_backlog_is_written_in_small_batches() {
    let (mut node, queues) = Node::new(1);
    node.shard.log_mut().set_spill_bytes(1 << 20);
    let mut longest = 0;
    let syncs = node.disk.work().syncs;
    for _ in 0..20_000 {
        let before = node.disk.work().written_bytes;
        node.publish(&queues, 1, false);
        longest = longest.max(node.disk.work().written_bytes - before);
    }
    let (files, syncs) = (node.disk.files().len() as u64, node.disk.work().syncs - syncs);
    assert!(syncs <= 2 * files + 3, "{syncs} syncs in {files} files, though nobody waits");
    let most = SPILLED_BYTES_MAX * 11 / 10;
    assert!((SPILLED_BYTES_MAX..most).contains(&longest), "{longest} bytes in a batch");
}

/// The last messages are acked, and there is no room to say so: when there is room again, messages are taken again.
#[test]
fn a_full_disk_that_only_releases_wait_for_is_tried_again() {
    let (mut node, queues) = Node::new(1);
    node.fill(&queues, 3);
    let used = node.disk.files().iter().map(|(_, len)| len).sum();
    node.disk.set_faults(Faults { capacity: Some(used), ..Faults::default() });
    node.consume(queues[0], 0);
    while node.received < 3 {
        node.receive();
    }
    // What a driver does: a turn when it is time, and when the disk has done something.
    let drive = |node: &mut Node| {
        for _ in 0..20 {
            node.turn(&mut vec![ToShard::LogWoke]);
            if let Some(at) = node.shard.next_timeout() {
                node.now = node.now.max(at);
                node.turn(&mut Vec::new());
            }
        }
    };
    drive(&mut node);
    node.disk.set_faults(Faults::default());
    drive(&mut node);
    node.publish(&queues, 1, true);
    assert_eq!(node.shard.usage().records, 1, "it is not taken");
}
