//! Transactions over the queues of several shards, on simulated disks: ended at each moment they are there
//! as a whole or not at all.

use std::collections::BTreeSet;
use std::sync::Arc;

use leveret_amqp::content::Properties;
use leveret_amqp::table::Table;
use leveret_broker::message::*;
use leveret_broker::record::{View, join_names};
use leveret_broker::shard::Users;
use leveret_broker::transaction::{TxId, Vote};
use leveret_broker::work::Limits;
use leveret_broker::{Meta, Shard};
use leveret_log::disk::{Faults, SimDisk};
use leveret_log::file::Options;
use leveret_log::{FileLog, Offset as LogOffset};
use leveret_queue::{ChannelLimit, Gate, OutputGauge, Time};
use leveret_topology::{GroupId, Homes, NodeId, QueueId, Topology, VhostId};

const SHARDS: usize = 3;
const ME: ReplyTo = ReplyTo { connection: NodeId::ALONE.connection(1), channel: 1 };

type Store = FileLog<SimDisk>;

/// The actors of a node over disks; each step is a turn of one of them.
struct Node {
    /// Of the shards, and of names.
    disks: Vec<SimDisk>,
    topology: Topology,
    meta: Meta<Store>,
    shards: Vec<Shard<Store>>,
    now: Time,
    letters: Outbox,
    replies: Vec<Reply>,
    deliveries: Vec<Delivery>,
}

fn open(disk: &SimDisk) -> Store {
    FileLog::open(disk.clone(), Options::default(), &mut |_| {}).expect("a log").0
}

impl Node {
    fn start(disks: Vec<SimDisk>, now: Time) -> Self {
        let names = open(&disks[SHARDS]);
        let (mut meta, mut topology) =
            Meta::recover(Homes::among(SHARDS as u32), names, &mut || {}).expect("names");
        if meta.is_new() {
            topology.add_vhost("/").expect("a vhost");
            meta.adopt(&mut topology, &mut || {}).expect("stored");
        }
        let mut shards = Vec::new();
        for (index, disk) in disks[..SHARDS].iter().enumerate() {
            let mut shard = Shard::new(GroupId::at(index), open(disk));
            shard.recover(&topology, meta.decided(), LogOffset::MAX, now);
            shards.push(shard);
        }
        meta.forget_decisions(shards.iter_mut().flat_map(Shard::transactions_found));
        let (letters, replies, deliveries) = Default::default();
        Self { disks, topology, meta, shards, now, letters, replies, deliveries }
    }

    fn vhost(&self) -> VhostId {
        self.topology.vhost("/").expect("there").id
    }

    fn queue(&self, name: &str) -> QueueId {
        self.topology.queue(self.vhost(), name).expect("declared").id
    }

    /// One turn of each actor, and one thing done by each disk. False when nobody had anything to do.
    fn step(&mut self) -> bool {
        let out = &mut self.letters;
        for (_, letter) in out.sessions.drain(..) {
            match letter {
                ToSession::Reply { reply, .. } => self.replies.push(reply),
                ToSession::Deliver(deliveries) => self.deliveries.extend(deliveries),
                _ => {}
            }
        }
        assert_eq!(out.failed, None);
        let mut is_busy = !out.is_empty();
        let mut to_meta = std::mem::take(&mut out.meta);
        let mut to_shards: Vec<Vec<ToShard>> =
            (0..SHARDS).map(|_| vec![ToShard::LogWoke]).collect();
        for (group, letter) in out.shards.drain(..) {
            to_shards[group.index()].push(letter);
        }
        to_meta.push(ToMeta::LogWoke);
        self.meta.turn(&mut to_meta, &mut self.topology, out);
        for (shard, mut letters) in self.shards.iter_mut().zip(to_shards) {
            is_busy |= shard.turn(&mut letters, &self.topology, self.now, out);
        }
        is_busy |= self.disks.iter().any(|disk| !disk.is_idle());
        is_busy || !self.letters.is_empty()
    }

    fn settle_down(&mut self) {
        for _ in 0..40 {
            while self.step() {}
            self.now = self.now.after_ms(20);
        }
    }

    fn declare(&mut self, name: &str) {
        self.letters.meta.push(ToMeta::DeclareQueue {
            by: Box::default(),
            reply: ME,
            vhost: self.vhost(),
            name: name.into(),
            server_named: false,
            durable: true,
            exclusive: false,
            auto_delete: false,
            arguments: Table::default(),
            forbidden: None,
        });
        self.settle_down();
    }

    fn tell(&mut self, queue: &str, letter: ToShard) {
        let group = self.topology.home(self.queue(queue));
        self.letters.shard(group, letter);
    }

    fn message(&self, queue: &str, body: &str) -> Publish {
        let mut properties = Vec::new();
        Properties::default().encode(&mut properties);
        Publish {
            channel: 1,
            confirm: 0,
            targets: [self.queue(queue)].into_iter().collect(),
            persistent: true,
            priority: 0,
            expiration_ms: None,
            message: Message::from_parts(&join_names("", queue), &properties, body.as_bytes()),
            shared: None,
        }
    }

    /// Has `tx` put message "new" twice into b and once into c, and ack the oldest one of a.
    fn commit(&mut self, tx: u64) {
        let queue = self.queue("a");
        self.tell("a", ToShard::Get { reply: ME, queue, no_ack: false });
        self.settle_down();
        let Some(Reply::Got { delivery, .. }) = self.replies.pop() else { panic!("a is empty") };
        let unacked = delivery.unacked.expect("not acked");
        let ack = Settlement { queue, unacked, offset: delivery.offset, how: Settle::Ack };
        let parts = [
            ("a", vec![], vec![ack]),
            ("b", vec![self.message("b", "new"), self.message("b", "new")], vec![]),
            ("c", vec![self.message("c", "new")], vec![]),
        ];
        self.replies.clear();
        for (name, messages, settlements) in parts {
            let (tx, parts) = (TxId::new(tx), 3);
            self.tell(name, ToShard::Prepare { reply: ME, tx, parts, messages, settlements });
        }
    }

    fn count(&self, name: &str) -> u64 {
        let id = self.queue(name);
        let shard = &self.shards[self.topology.home(id).index()];
        let found = shard.queues().find(|(other, _)| *other == id);
        found.map_or(0, |(_, queue)| queue.counts().ready + queue.counts().unacked)
    }

    fn counts(&self) -> [u64; 3] {
        ["a", "b", "c"].map(|name| self.count(name))
    }

    /// The bodies of a queue, in order.
    fn bodies(&mut self, name: &str) -> Vec<String> {
        let gate = Gate::new(Arc::new(OutputGauge::new(1 << 20)), Arc::new(ChannelLimit::new()));
        let queue = self.queue(name);
        self.deliveries.clear();
        let consume = ToShard::Consume {
            user: Box::default(),
            reply: ME,
            queue,
            slot: ConsumerSlot(1),
            tag: "c".into(),
            no_ack: true,
            exclusive: false,
            priority: 0,
            prefetch: 0,
            gate: Some(gate),
            arguments: Default::default(),
        };
        self.tell(name, consume);
        self.settle_down();
        let body = |delivery: &Delivery| {
            let view = View::of(&delivery.record).expect("a message");
            String::from_utf8_lossy(view.body_bytes()).into_owned()
        };
        self.deliveries.iter().map(body).collect()
    }
}

/// With two messages in a and one in each of the others; the three queues are in three shards.
fn node(seed: u64) -> Node {
    let disks = (0..=SHARDS as u64).map(|index| SimDisk::new(seed * 8 + index)).collect();
    let mut node = Node::start(disks, Time::from_ms(1_000_000));
    for name in ["a", "b", "c"] {
        node.declare(name);
    }
    let shards: BTreeSet<_> =
        ["a", "b", "c"].map(|name| node.topology.home(node.queue(name))).into();
    assert_eq!(shards.len(), SHARDS);
    for name in ["a", "a", "b", "c"] {
        let messages = vec![node.message(name, "old")];
        let from = ME.connection;
        node.tell(name, ToShard::Publish { from, messages });
    }
    node.settle_down();
    assert_eq!(node.counts(), [2, 1, 1]);
    node
}

/// Before anything of it is seen by a consumer, the client has no answer; in the end all is there.
#[test]
fn all_parts_come_at_once() {
    let mut node = node(1);
    node.commit(7);
    let mut was_decided = false;
    while node.step() {
        let is_there = node.counts() != [2, 1, 1];
        was_decided |= is_there;
    }
    node.settle_down();
    assert!(was_decided);
    assert_eq!(node.counts(), [1, 3, 2]);
    let done = node.replies.iter().filter(|reply| matches!(reply, Reply::Committed)).count();
    assert_eq!(done, SHARDS);
    let left: u64 = node.shards.iter().map(|shard| shard.transaction_records()).sum();
    assert_eq!(left, 0, "nothing is kept of it");
    assert_eq!(node.bodies("b"), ["old", "new", "new"]);
}

/// A transaction has been under way for so many steps.
fn committing(seed: u64, steps: usize) -> Node {
    let mut node = node(seed);
    node.commit(7);
    for _ in 0..steps {
        node.step();
        node.now = node.now.after_ms(3);
    }
    node
}

/// The same, and the shard of b has so much to do for somebody else that each letter waits there.
fn crowded(seed: u64, steps: usize) -> Node {
    let mut node = node(seed);
    let home = node.topology.home(node.queue("b"));
    let mut names = (0..).map(|number| format!("d{number}"));
    let other = names.find(|name| {
        node.declare(name);
        node.topology.home(node.queue(name)) == home
    });
    let other = other.expect("a queue there");
    node.commit(7);
    let messages = (0..200).map(|_| node.message(&other, "")).collect();
    node.tell(&other, ToShard::Publish { from: NodeId::ALONE.connection(2), messages });
    node.shards[home.index()].set_limits(Limits { turn: 1, share: 1 });
    for _ in 0..steps {
        node.step();
        node.now = node.now.after_ms(3);
    }
    node
}

#[test]
fn a_transaction_is_cut_at_each_moment() {
    let (mut with, mut without) = (0, 0);
    for cuts_power in [false, true] {
        for seed in 0..6 {
            for steps in 0..24 {
                let mut node = committing(seed, steps);
                let is_answered = node.replies.iter().any(|it| matches!(it, Reply::Committed));
                // And once more, soon after the next start, before its disks have done much.
                for again in 0..3 {
                    for disk in &node.disks {
                        if cuts_power { disk.crash() } else { disk.kill() }
                    }
                    node = Node::start(node.disks, node.now);
                    for _ in 0..again * 2 {
                        node.step();
                        node.now = node.now.after_ms(100);
                    }
                }
                let counts = node.counts();
                let is_there = match counts {
                    [1, 3, 2] => true,
                    [2, 1, 1] => false,
                    _ => panic!("seed {seed}, after {steps} steps: {counts:?}"),
                };
                assert!(is_there || !is_answered, "seed {seed}, after {steps} steps: lost");
                *(if is_there { &mut with } else { &mut without }) += 1;
                let news = if is_there { &["old", "new", "new"][..] } else { &["old"] };
                assert_eq!(node.bodies("b"), news);
                // Another one with the same numbers of records finds nothing of this one.
                if steps % 8 == 0 {
                    node.commit(8);
                    node.settle_down();
                    assert_eq!(node.count("a"), counts[0] - 1);
                }
            }
        }
    }
    assert!(with > 20 && without > 20, "{with} and {without}");
}

/// A session waits for the answers of all parts, and reads nothing more meanwhile: so there is one of each, whenever a shard loses
/// its log's end.
#[test]
fn a_shard_that_loses_its_logs_end_answers_for_its_part() {
    let (mut with, mut without) = (0, 0);
    for (seed, is_busy) in (0..6).map(|seed| (seed, seed % 2 == 1)) {
        for steps in 0..if is_busy { 40 } else { 24 } {
            let mut node = if is_busy { crowded(seed, steps) } else { committing(seed, steps) };
            let index = node.topology.home(node.queue("b")).index();
            node.disks[index].kill();
            let log = open(&node.disks[index]);
            let decided = node.meta.decided_so_far();
            let Node { shards, topology, now, letters, .. } = &mut node;
            shards[index].lose(
                log,
                Users::AreCutOff(&[ME.connection]),
                topology,
                &decided,
                *now,
                letters,
            );
            node.settle_down();
            let is_there = match node.counts() {
                [1, 3, 2] => true,
                [2, 1, 1] => false,
                counts => panic!("seed {seed}, after {steps} steps: {counts:?}"),
            };
            *(if is_there { &mut with } else { &mut without }) += 1;
            let is_committed = |reply: &Reply| match reply {
                Reply::Committed => true,
                Reply::Refused { .. } => false,
                other => panic!("{other:?}"),
            };
            let told: Vec<bool> = node.replies.iter().map(is_committed).collect();
            assert_eq!(told, [is_there; SHARDS], "seed {seed}, after {steps} steps");
        }
    }
    assert!(with > 20 && without > 5, "{with} and {without}");
}

/// One shard has no room: the others undo their parts, and who commits is told.
#[test]
fn a_part_that_cannot_be_stored() {
    for full in ["a", "b", "names"] {
        let mut node = node(3);
        node.commit(7);
        let index = match full {
            "names" => SHARDS,
            name => node.topology.home(node.queue(name)).index(),
        };
        let used: u64 = node.disks[index].files().iter().map(|&(_, len)| len).sum();
        // The log says no when a write of it has found no room.
        node.disks[index].set_faults(Faults { capacity: Some(used), ..Faults::default() });
        for _ in 0..200 {
            node.step();
            node.now = node.now.after_ms(20);
        }
        let committed = node.replies.iter().filter(|it| matches!(it, Reply::Committed)).count();
        assert!(committed == 0, "{full}: {:?}", node.replies);
        node.disks[index].set_faults(Faults::default());
        for _ in 0..200 {
            node.step();
            node.now = node.now.after_ms(20);
        }
        let counts = node.counts();
        let (committed, refused) =
            node.replies.iter().fold((0, 0), |(yes, no), reply| match reply {
                Reply::Committed => (yes + 1, no),
                Reply::Refused { .. } => (yes, no + 1),
                _ => (yes, no),
            });
        let is_there = counts == [1, 3, 2];
        assert!(is_there || counts == [2, 1, 1], "{full}: {counts:?}");
        let want = if is_there { (SHARDS, 0) } else { (0, SHARDS) };
        assert_eq!((committed, refused), want, "{full}: {counts:?}");
    }
}

/// What shards say of transactions is within the bound of a turn, too, and in its order.
#[test]
fn many_votes_take_many_short_turns() {
    const VOTES: u64 = 1000;
    let vote = |tx| ToMeta::Prepared {
        from: ME.connection,
        tx: TxId::new(tx),
        group: GroupId::at(0),
        parts: 1,
        vote: Vote::Yes { is_kept: false, acked: Vec::new() },
    };
    let mut node = node(1);
    let mut letters: Vec<_> = (0..VOTES).map(vote).collect();
    let (mut turns, mut told) = (0, 0);
    while !letters.is_empty() {
        let mut out = Outbox::default();
        node.meta.turn(&mut letters, &mut node.topology, &mut out);
        assert!(out.shards.len() <= 300, "{} in one turn", out.shards.len());
        for (_, letter) in out.shards {
            assert!(
                matches!(letter, ToShard::Decide { tx, commit: true } if tx == TxId::new(told))
            );
            told += 1;
        }
        letters.append(&mut out.meta);
        turns += 1;
    }
    assert_eq!(told, VOTES);
    assert!((3..20).contains(&turns), "{turns} turns");
}

/// Commits do not stand behind each other when many clients change very many names: each is charged to its connection.
#[test]
fn a_commit_does_not_pay_for_others() {
    const CLIENTS: u64 = 200;
    let mut node = node(2);
    let vhost = node.vhost();
    let connection = |number| NodeId::ALONE.connection(number);
    let declare = |number: u64| ToMeta::DeclareQueue {
        by: Box::default(),
        reply: ReplyTo { connection: connection(number % CLIENTS), channel: 1 },
        vhost,
        name: number.to_string().into(),
        server_named: false,
        durable: false,
        exclusive: false,
        auto_delete: false,
        arguments: Table::default(),
        forbidden: None,
    };
    let vote = |number| ToMeta::Prepared {
        from: connection(CLIENTS + number),
        tx: TxId::new(number),
        group: GroupId::at(0),
        parts: 1,
        vote: Vote::Yes { is_kept: false, acked: Vec::new() },
    };
    let mut letters: Vec<_> = (0..150 * CLIENTS).map(declare).collect();
    letters.extend((0..2 * CLIENTS).map(vote));
    let turns = turns_until_decided(&mut node, letters, 2 * CLIENTS);
    assert!(turns <= 10, "{turns} turns");
}

/// The last vote has the decision written: it pays for what all shards acked.
#[test]
fn a_decision_is_written_at_a_price() {
    const VOTES: u64 = 60;
    let acked = (0..3200).map(|at| (QueueId::new(1), leveret_queue::Offset::new(at)));
    let acked: Vec<_> = acked.collect();
    let vote = |tx, shard, acked| ToMeta::Prepared {
        from: NodeId::ALONE.connection(tx),
        tx: TxId::new(tx),
        group: GroupId::at(shard),
        parts: 2,
        vote: Vote::Yes { is_kept: true, acked },
    };
    let mut node = node(3);
    // The first shard's votes cost little, as nothing is written.
    let first: Vec<_> = (0..VOTES).map(|tx| vote(tx, 0, acked.clone())).collect();
    assert_eq!(turns_until_decided(&mut node, first, 0), 1);
    let last: Vec<_> = (0..VOTES).map(|tx| vote(tx, 1, Vec::new())).collect();
    let turns = turns_until_decided(&mut node, last, 2 * VOTES);
    assert!((20..80).contains(&turns), "{turns} turns");
}

/// Turns of the owner of names until shards were told so many decisions: one at least.
fn turns_until_decided(node: &mut Node, mut letters: Vec<ToMeta>, decisions: u64) -> u64 {
    let (mut turns, mut told) = (0, 0);
    while turns == 0 || told < decisions {
        let mut out = Outbox::default();
        node.meta.turn(&mut letters, &mut node.topology, &mut out);
        let decided = |(_, letter): &&_| matches!(letter, ToShard::Decide { .. });
        told += out.shards.iter().filter(decided).count() as u64;
        letters.push(ToMeta::LogWoke);
        letters.append(&mut out.meta);
        turns += 1;
    }
    turns
}
