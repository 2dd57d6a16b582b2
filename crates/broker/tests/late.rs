//! A shard that gets its messages bit by bit after a restart does what one does that has all of them at once.

#[path = "hand/log.rs"]
mod log;

use std::collections::BTreeMap;

use leveret_amqp::content::Properties;
use leveret_amqp::table::{Table, Value};
use leveret_broker::Shard;
use leveret_broker::message::*;
use leveret_broker::record::join_names;
use leveret_broker::shard::LateLimits;
use leveret_broker::transaction::Decided;
use leveret_broker::work::Limits;
use leveret_log::{Offset as LogOffset, RecoveryLimits};
use leveret_queue::{Counts, Gate, LookAt, Offset, Time, UnackedId};
use leveret_topology::{ApplyTo, GroupId, NodeId, PolicySpec, QueueId, QueueSpec, Topology};
use log::HandLog;

const ME: ConnectionId = NodeId::ALONE.connection(1);
const QUEUES: usize = 5;

/// splitmix64: a seed gives the same run everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// Some that may be without entries, and some that may not.
fn names() -> (Topology, Vec<QueueId>) {
    let mut topology = Topology::new();
    let vhost = topology.add_vhost("/").expect("a vhost");
    let arguments: [&[(&str, Value)]; QUEUES] = [
        &[],
        &[("x-message-ttl", Value::I32(60))],
        &[("x-delivery-limit", Value::I32(2)), ("x-queue-type", "quorum".into())],
        &[("x-max-length", Value::I32(30))],
        &[("x-max-priority", Value::I32(3))],
    ];
    let queues = arguments.iter().enumerate().map(|(index, own)| {
        let own = own.iter().map(|(key, value)| ((*key).to_owned(), value.clone()));
        let spec = QueueSpec {
            vhost,
            name: &format!("q{index}"),
            server_named: false,
            durable: true,
            auto_delete: false,
            exclusive_owner: None,
            arguments: own.collect::<Table>(),
        };
        topology.declare_queue(spec).expect("declared").id
    });
    let queues = queues.collect();
    (topology, queues)
}

fn message(random: &mut Random, queues: &[QueueId]) -> Publish {
    let mut properties = Vec::new();
    Properties::default().encode(&mut properties);
    let body = vec![7; random.below(3) as usize * 50];
    let mut targets = Targets::new();
    for &queue in queues {
        if random.below(4) == 0 {
            targets.push(queue);
        }
    }
    if targets.is_empty() {
        targets.push(queues[0]);
    }
    Publish {
        channel: 1,
        confirm: 0,
        targets,
        persistent: true,
        priority: random.below(4) as u8,
        expiration_ms: (random.below(10) == 0).then(|| random.below(60)),
        message: Message::from_parts(&join_names("", "q"), &properties, &body),
        shared: None,
    }
}

type Given = BTreeMap<QueueId, Vec<(Offset, bool, u32)>>;

struct Node {
    log: HandLog,
    shard: Shard<HandLog>,
    given: Given,
    answers: Vec<String>,
    unacked: BTreeMap<(QueueId, Offset), UnackedId>,
}

impl Node {
    fn new(
        log: HandLog,
        topology: &Topology,
        late: LateLimits,
        now: Time,
        seen: LogOffset,
    ) -> Self {
        log.hand().cold.clear();
        log.hand().sums_up = late.enough.bytes > 0;
        let mut shard = Shard::new(GroupId::new(0), log.clone());
        shard.set_late_limits(late);
        shard.recover(topology, &Decided::default(), seen, now);
        let (given, answers, unacked) = Default::default();
        Self { log, shard, given, answers, unacked }
    }

    fn hear(&mut self, delivery: &Delivery) -> (Offset, bool, u32) {
        if let Some(unacked) = delivery.unacked {
            self.unacked.insert((delivery.queue, delivery.offset), unacked);
        }
        (delivery.offset, delivery.redelivered, delivery.delivery_count)
    }

    fn turn(&mut self, mut letters: Vec<ToShard>, topology: &Topology, now: Time) -> bool {
        let mut out = Outbox::default();
        let more = self.shard.turn(&mut letters, topology, now, &mut out);
        for (_, letter) in out.sessions {
            match letter {
                ToSession::Deliver(deliveries) => {
                    for delivery in &deliveries {
                        let heard = self.hear(delivery);
                        self.given.entry(delivery.queue).or_default().push(heard);
                    }
                }
                ToSession::Reply { reply: Reply::Got { delivery, remaining }, .. } => {
                    let heard = self.hear(&delivery);
                    self.answers.push(format!("{heard:?}, {remaining} left"));
                }
                ToSession::Reply { reply: Reply::Looked(page), .. } => {
                    let looks: Vec<_> = page.messages.iter().map(|it| it.look.offset).collect();
                    self.answers.push(format!("{looks:?}"));
                }
                ToSession::Reply { reply, .. } => self.answers.push(format!("{reply:?}")),
                _ => {}
            }
        }
        more
    }

    /// Until consumers have what they can have, and at least two turns; then some messages may be to come still.
    fn turns(&mut self, letter: ToShard, topology: &Topology, now: Time) {
        self.turn(vec![letter], topology, now);
        self.turn(Vec::new(), topology, now);
        while self.is_at_rest() {
            let goes_on = self.turn(Vec::new(), topology, now);
            assert!(goes_on || !self.is_at_rest(), "nobody brings what is to come");
        }
        self.turn(Vec::new(), topology, now);
    }

    fn is_at_rest(&self) -> bool {
        self.shard.queues().any(|(_, queue)| queue.is_at_rest())
    }

    /// Whether messages of a queue are to come.
    fn is_late(&self, id: QueueId) -> bool {
        self.shard.queues().any(|(it, queue)| it == id && queue.rest() > 0)
    }

    fn counts(&self) -> Vec<(QueueId, Counts, u64, u64)> {
        let all = self.shard.queues().map(|(id, queue)| {
            let counts = Counts { packed: 0, ..queue.counts() };
            (id, counts, queue.totals().restored, queue.totals().enqueued)
        });
        let mut all: Vec<_> = all.collect();
        all.sort_by_key(|it| it.0);
        all
    }
}

fn reply() -> ReplyTo {
    ReplyTo { connection: ME, channel: 1 }
}

fn consume(queue: QueueId, slot: u32, no_ack: bool, prefetch: u16) -> ToShard {
    ToShard::Consume {
        user: Box::default(),
        reply: reply(),
        queue,
        slot: ConsumerSlot(slot),
        tag: "c".into(),
        no_ack,
        exclusive: false,
        priority: 0,
        prefetch,
        gate: Some(Gate::open()),
        arguments: Default::default(),
    }
}

/// What is in some queue, wherever.
fn somewhere(node: &Node, random: &mut Random) -> Vec<Offset> {
    let end = node.log.hand().held.keys().next_back().map_or(1, |last| last + 1);
    let mut offsets: Vec<Offset> =
        (0..1 + random.below(4)).map(|_| Offset::new(random.below(end))).collect();
    offsets.sort_unstable();
    offsets.dedup();
    offsets
}

/// Another policy, or none, for those that are there without entries: which queues have other options now.
fn change_policy(random: &mut Random, topology: &mut Topology) -> Vec<QueueId> {
    let (key, value) = match random.below(4) {
        0 => return topology.clear_policy("/", "p").unwrap_or_default(),
        1 => ("max-length", random.below(20)),
        2 => ("max-length-bytes", random.below(900)),
        _ => ("message-ttl", random.below(60)),
    };
    let definition = [(key.to_owned(), value.into())].into_iter().collect();
    let (name, pattern, apply_to, priority) = ("p", "^q[0-2]$", ApplyTo::Queues, 0);
    topology
        .set_policy("/", PolicySpec { name, pattern, apply_to, priority, definition })
        .expect("set")
}

/// The log of a shard that ended after so many messages for these queues.
fn backlog(topology: &Topology, queues: &[QueueId], count: usize, now: Time) -> HandLog {
    let (log, limits) = (HandLog::default(), LateLimits::default());
    let mut node = Node::new(log, topology, limits, now, LogOffset::MAX);
    let mut random = Random(1);
    let messages = (0..count).map(|_| message(&mut random, queues)).collect();
    node.turn(vec![ToShard::Publish { from: ME, messages }], topology, now);
    while node.turn(Vec::new(), topology, now) {}
    let _ = node.shard.sync();
    while node.log.hand().finish_any() {
        let _ = node.shard.sync();
    }
    node.log.crash()
}

fn records(records: u32) -> RecoveryLimits {
    RecoveryLimits { records, ..RecoveryLimits::NONE }
}

/// Commands by chance, to both.
fn run(seed: u64) -> u64 {
    let mut random = Random(seed);
    let (mut topology, queues) = names();
    let mut now = Time::from_ms(10_000);
    let first =
        Node::new(HandLog::default(), &topology, LateLimits::default(), now, LogOffset::MAX);
    let mut first = first;
    for _ in 0..random.below(60) {
        let messages = (0..1 + random.below(6)).map(|_| message(&mut random, &queues)).collect();
        first.turn(vec![ToShard::Publish { from: ME, messages }], &topology, now);
        now = now.after_ms(random.below(3));
    }
    // Some were delivered, and some of these are gone.
    for &queue in &queues {
        for _ in 0..random.below(12) {
            let letter = ToShard::Get { reply: reply(), queue, no_ack: random.below(3) > 0 };
            first.turn(vec![letter], &topology, now);
        }
    }
    let mut seen = LogOffset::MAX;
    if random.below(2) == 0 {
        first.shard.close();
        seen = first.shard.seen_below();
    }
    let _ = first.shard.sync();
    while first.log.hand().finish_any() {
        let _ = first.shard.sync();
    }
    now = now.after_ms(random.below(80));
    let enough = records(random.below(3) as u32 * 100);
    // Without bytes all are told of singly.
    let enough = RecoveryLimits { bytes: random.below(3), ..enough };
    let turn = records(1 + random.below(8) as u32);
    let limits = LateLimits { first: random.below(5), enough, turn };
    let whole = LateLimits { first: u64::MAX, enough: RecoveryLimits::NONE, ..limits };
    let mut late = Node::new(first.log.crash(), &topology, limits, now, seen);
    let mut whole = Node::new(first.log.crash(), &topology, whole, now, seen);
    let came_late = late.shard.late_messages();
    assert_eq!(whole.shard.late_messages(), 0);
    assert_eq!(late.counts(), whole.counts(), "at first");
    for step in 0..random.below(40) {
        let queue = queues[random.below(QUEUES as u64) as usize];
        let letter = match random.below(20) {
            0..3 => {
                let count = 1 + random.below(4);
                let messages = (0..count).map(|_| message(&mut random, &queues)).collect();
                ToShard::Publish { from: ME, messages }
            }
            3 | 4 => {
                let prefetch = random.below(5) as u16;
                consume(queue, step as u32, random.below(4) == 0, prefetch)
            }
            5..9 => ToShard::Get { reply: reply(), queue, no_ack: random.below(2) == 0 },
            9 => ToShard::Count { reply: reply(), queue },
            10 => {
                let max = if random.below(2) == 0 { u64::MAX } else { random.below(4) };
                ToShard::Purge { reply: reply(), queue, max }
            }
            11 => {
                let offsets = somewhere(&late, &mut random);
                ToShard::Discard { reply: reply(), queue, offsets }
            }
            12 => {
                let offsets = somewhere(&late, &mut random);
                ToShard::Move { reply: reply(), queue, offsets, to: MoveTo::Front }
            }
            13 => {
                let from = Offset::new(random.below(200));
                let (place, max) = (LookAt::Ready, 1 + random.below(6) as usize);
                ToShard::Look { reply: reply(), queue, place, from, max }
            }
            14 => {
                for queue in change_policy(&mut random, &mut topology) {
                    late.turns(ToShard::OptionsChanged { queue }, &topology, now);
                    // They wait for all of the queue.
                    while late.is_late(queue) {
                        assert!(late.turn(Vec::new(), &topology, now), "nobody goes on");
                    }
                    late.turn(Vec::new(), &topology, now);
                    whole.turns(ToShard::OptionsChanged { queue }, &topology, now);
                }
                assert_eq!(late.counts(), whole.counts(), "step {step}");
                continue;
            }
            _ => {
                let all: Vec<_> = late.unacked.keys().copied().collect();
                if all.is_empty() {
                    continue;
                }
                let (queue, offset) = all[random.below(all.len() as u64) as usize];
                let how = match random.below(3) {
                    0 => Settle::Ack,
                    1 => Settle::Reject,
                    _ => Settle::Requeue { counts: true },
                };
                let of = |node: &mut Node| {
                    let unacked = node.unacked.remove(&(queue, offset));
                    let unacked = unacked.expect("both were given it");
                    let settlements = vec![Settlement { queue, unacked, offset, how }];
                    ToShard::Settle { from: ME, settlements }
                };
                let (one, other) = (of(&mut late), of(&mut whole));
                late.turns(one, &topology, now);
                whole.turns(other, &topology, now);
                continue;
            }
        };
        late.turns(letter.clone(), &topology, now);
        whole.turns(letter, &topology, now);
        assert_eq!(late.answers, whole.answers, "step {step}");
        assert_eq!(late.given, whole.given, "step {step}");
        assert_eq!(late.counts(), whole.counts(), "step {step}");
        if random.below(4) == 0 {
            now = now.after_ms(random.below(30));
        }
    }
    // All that is left comes out, and the logs have the same then.
    for (slot, &queue) in queues.iter().enumerate() {
        late.turns(consume(queue, 1_000 + slot as u32, true, 0), &topology, now);
        whole.turns(consume(queue, 1_000 + slot as u32, true, 0), &topology, now);
    }
    for node in [&mut late, &mut whole] {
        while node.turn(Vec::new(), &topology, now) {}
    }
    assert_eq!((late.given, late.answers), (whole.given, whole.answers));
    assert_eq!(late.shard.late_messages(), 0);
    let held = |node: &HandLog| node.hand().held.keys().copied().collect::<Vec<_>>();
    assert_eq!(held(&late.log), held(&whole.log));
    came_late
}

#[test]
fn nobody_can_tell_that_messages_come_late() {
    let mut came_late = 0;
    for seed in 0..400 {
        let run = std::panic::catch_unwind(|| run(seed));
        came_late += run.unwrap_or_else(|_| panic!("seed {seed}"));
    }
    assert!(came_late > 10_000, "{came_late}");
}

/// All has expired of a long queue that nobody served. Who asks it for a message keeps others waiting for no more of that than fits a turn.
#[test]
fn who_gets_from_what_has_expired_waits_for_later_turns() {
    let (topology, queues) = names();
    let mut now = Time::from_ms(10_000);
    let log = backlog(&topology, &queues[1..2], 10_000, now);
    now = now.after_ms(1_000);
    let limits = LateLimits { first: 0, turn: records(1_000), ..LateLimits::default() };
    let mut node = Node::new(log, &topology, limits, now, LogOffset::MAX);
    assert_eq!(node.shard.late_messages(), 10_000);
    node.turn(
        vec![ToShard::Get { reply: reply(), queue: queues[1], no_ack: true }],
        &topology,
        now,
    );
    assert!(node.shard.late_messages() > 2_000, "{} are left", node.shard.late_messages());
    assert_eq!(node.answers, [""; 0]);
    while node.turn(Vec::new(), &topology, now) {}
    assert_eq!(node.answers, ["GotNothing"]);
    assert!(node.log.hand().held.is_empty());
}

/// Of a purge all is gone, and so of a deletion; others have their turns before what is to come has come for it.
#[test]
fn a_queue_is_purged_and_deleted_with_what_is_to_come() {
    let (topology, queues) = names();
    let now = Time::from_ms(10_000);
    for deletes in [false, true] {
        let log = backlog(&topology, &queues[..2], 50, now);
        let limits = LateLimits { first: 2, turn: records(3), ..LateLimits::default() };
        let mut node = Node::new(log, &topology, limits, now, LogOffset::MAX);
        let all = node.counts().iter().find(|it| it.0 == queues[0]).map_or(0, |it| it.1.ready);
        assert!(node.shard.late_messages() > 30);
        let (reply, queue) = (reply(), queues[0]);
        let letter = if deletes {
            let by = Box::default();
            ToShard::Delete { by, reply: Some(reply), queue, if_unused: false, if_empty: false }
        } else {
            ToShard::Purge { reply, queue, max: u64::MAX }
        };
        node.shard.set_limits(Limits { turn: 4, share: 4 });
        let other = ReplyTo { connection: NodeId::ALONE.connection(9), channel: 1 };
        let count = ToShard::Count { reply: other, queue: queues[1] };
        node.turn(vec![letter, count], &topology, now);
        assert!(node.shard.late_messages() > 20, "{}", node.shard.late_messages());
        assert_eq!(node.answers.len(), 1, "{:?}", node.answers);
        while node.turn(Vec::new(), &topology, now) {}
        if !deletes {
            assert_eq!(node.answers[1..], [format!("Purged({all})")]);
        }
        node.turns(consume(queues[1], 0, true, 0), &topology, now);
        while node.turn(Vec::new(), &topology, now) {}
        assert!(node.log.hand().held.is_empty());
    }
}

/// What cannot be read any more is not forgotten: queues count it, stand still before it, and nobody is told anything else.
#[test]
fn a_log_that_cannot_be_read_keeps_queues_at_rest() {
    let (topology, queues) = names();
    let now = Time::from_ms(10_000);
    let log = backlog(&topology, &queues[..1], 50, now);
    let limits = LateLimits { first: 2, turn: records(3), ..LateLimits::default() };
    let mut node = Node::new(log, &topology, limits, now, LogOffset::MAX);
    node.turn(Vec::new(), &topology, now);
    node.log.hand().cannot_tell = true;
    let counts = node.counts();
    let late = node.shard.late_messages();
    assert!(late > 30, "{late} are late");
    for letter in [
        consume(queues[0], 0, true, 0),
        ToShard::Purge { reply: reply(), queue: queues[0], max: u64::MAX },
        ToShard::Get { reply: reply(), queue: queues[0], no_ack: true },
        ToShard::OptionsChanged { queue: queues[0] },
    ] {
        node.turn(vec![letter], &topology, now);
    }
    let mut turns = 0;
    while node.turn(Vec::new(), &topology, now) {
        turns += 1;
        assert!(turns < 100, "it goes on for nothing");
    }
    assert_eq!(node.answers.len(), 1, "consume-ok: {:?}", node.answers);
    let given = node.given.get(&queues[0]).map_or(0, Vec::len) as u64;
    assert_eq!(node.shard.late_messages(), late);
    let ready = |counts: &[(QueueId, Counts, u64, u64)]| {
        counts.iter().find(|it| it.0 == queues[0]).map(|it| it.1.ready)
    };
    assert_eq!(ready(&node.counts()), ready(&counts).map(|ready| ready - given));
    assert!(node.is_at_rest());
}

/// A queue that goes when nobody uses it does so when all of its messages came, and not in one turn; nor if somebody consumes from it by then,
/// unless it was to go with its last consumer.
#[test]
fn who_is_unused_goes_once_all_came() {
    const EXPIRES_MS: u64 = 5_000;
    let now = Time::from_ms(10_000);
    for (auto_delete, comes_back) in [(true, false), (true, true), (false, false), (false, true)] {
        let mut topology = Topology::new();
        let vhost = topology.add_vhost("/").expect("a vhost");
        let expires = ("x-expires".to_owned(), Value::I64(EXPIRES_MS as i64));
        let spec = QueueSpec {
            vhost,
            name: "q",
            server_named: false,
            durable: true,
            auto_delete,
            exclusive_owner: None,
            arguments: (!auto_delete).then_some(expires).into_iter().collect(),
        };
        let queue = topology.declare_queue(spec).expect("declared").id;
        let log = backlog(&topology, &[queue], 50, now);
        let limits = LateLimits { first: 2, turn: records(3), ..LateLimits::default() };
        let mut node = Node::new(log, &topology, limits, now, LogOffset::MAX);
        let mut now = now;
        if auto_delete {
            node.turn(vec![consume(queue, 0, false, 1)], &topology, now);
            node.turn(vec![ToShard::Disconnected { connection: ME, reply: None }], &topology, now);
        } else {
            now = now.after_ms(EXPIRES_MS);
            node.turn(Vec::new(), &topology, now);
        }
        let late = node.shard.late_messages();
        assert!(late > 30, "{late} are late");
        assert_eq!(node.counts().len(), 1, "it is there until all came");
        if comes_back {
            let mut another = consume(queue, 1, true, 0);
            if let ToShard::Consume { reply, .. } = &mut another {
                reply.connection = NodeId::ALONE.connection(9);
            }
            node.turn(vec![another], &topology, now);
        }
        while node.turn(Vec::new(), &topology, now) {}
        assert_eq!(node.counts().len(), usize::from(comes_back), "{auto_delete} {comes_back}");
        let unacked: u64 = node.counts().iter().map(|it| it.1.unacked).sum();
        assert_eq!(node.log.hand().held.len() as u64, unacked);
        let given = node.given.get(&queue).map_or(0, Vec::len);
        // Some have expired.
        assert!(!comes_back || given > 40, "{given} were given out");
    }
}
