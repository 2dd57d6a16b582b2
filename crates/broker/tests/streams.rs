//! Numbered letters to a shard that loses the end of its log: each message is stored once, and its publisher is told.

#[path = "hand/lines.rs"]
mod lines;
#[path = "hand/log.rs"]
mod log;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use leveret_amqp::content::Properties;
use leveret_amqp::table::{Table, Value};
use leveret_broker::Shard;
use leveret_broker::message::*;
use leveret_broker::record::join_names;
use leveret_broker::shard::Users;
use leveret_broker::stream::{
    AskedMessage, Numbered, StreamClass, StreamEvent, StreamId, Whereabouts,
};
use leveret_broker::transaction::{Decided, TxId, Vote};
use leveret_broker::work::Limits;
use leveret_log::{Holder, Log as _, Moment, Offset};
use leveret_queue::{Time, UnackedId};
use leveret_topology::{ApplyTo, GroupId, NodeId, PolicySpec, QueueId, QueueSpec, Topology};
use log::HandLog;

const BODIES: StreamId = StreamId { node: NodeId::ALONE, start: 1, class: StreamClass::Bodies };
const ACKS: StreamId = StreamId { class: StreamClass::Acks, ..BODIES };
const PUBLISHERS: u64 = 3;

struct World {
    log: HandLog,
    shard: Shard<HandLog>,
    topology: Topology,
    /// One that takes everything, one that refuses what is more than a few, one that waits for acks.
    queues: [QueueId; 3],
    now: Time,
    /// What publishers were told of each message.
    told: BTreeMap<u64, Vec<bool>>,
    replies: Vec<Reply>,
    news: Vec<StreamEvent>,
    votes: Vec<Vote>,
}

/// A message whose number for the confirm is in its body.
fn message(number: u64, targets: &[QueueId]) -> Publish {
    let mut properties = Vec::new();
    Properties::default().encode(&mut properties);
    let body = format!("message {number:08}");
    Publish {
        channel: 1,
        confirm: number,
        targets: targets.iter().copied().collect(),
        persistent: true,
        priority: 0,
        expiration_ms: None,
        message: Message::from_parts(&join_names("", "q"), &properties, body.as_bytes()),
        shared: None,
    }
}

fn numbered(stream: StreamId, number: u64, letter: ToShard) -> ToShard {
    ToShard::Numbered(Box::new(Numbered {
        stream,
        number,
        term: u64::MAX,
        heard_below: 1,
        undecided_from: 1,
        is_again: false,
        letter,
    }))
}

fn declare(topology: &mut Topology, name: &str, arguments: &[(&str, Value)]) -> QueueId {
    let vhost = topology.vhost("/").expect("there").id;
    let arguments = arguments.iter().map(|(key, value)| ((*key).to_owned(), value.clone()));
    let spec = QueueSpec {
        vhost,
        name,
        server_named: false,
        durable: true,
        auto_delete: false,
        exclusive_owner: None,
        arguments: arguments.collect::<Table>(),
    };
    topology.declare_queue(spec).expect("declared").id
}

impl World {
    fn new() -> Self {
        let mut topology = Topology::new();
        topology.add_vhost("/").expect("a vhost");
        let arguments: [&[(&str, Value)]; 3] = [
            &[],
            &[("x-max-length", Value::I32(4)), ("x-overflow", "reject-publish".into())],
            &[("x-confirm-on", "ack".into())],
        ];
        let names = ["all", "few", "acked"];
        let queues = [0, 1, 2].map(|index| declare(&mut topology, names[index], arguments[index]));
        let log = HandLog::default();
        log.hand().agrees = true;
        log.hand().agreed = Some(Moment::default());
        let shard = Shard::new(GroupId::new(0), log.clone());
        let (told, replies, news, votes) = Default::default();
        let now = Time::from_ms(1000);
        Self { log, shard, topology, queues, now, told, replies, news, votes }
    }

    fn turn(&mut self, letters: impl IntoIterator<Item = ToShard>) {
        let mut out = Outbox::default();
        self.now = self.now.after_ms(1);
        let mut letters = letters.into_iter().collect();
        self.shard.turn(&mut letters, &self.topology, self.now, &mut out);
        self.hear(out);
    }

    fn hear(&mut self, out: Outbox) {
        for (_, letter) in out.sessions {
            match letter {
                ToSession::Confirm { first, last, ok, .. } => {
                    (first..=last).for_each(|it| self.told.entry(it).or_default().push(ok));
                }
                ToSession::Reply { reply, .. } => self.replies.push(reply),
                _ => {}
            }
        }
        self.news.extend(out.news.into_iter().map(|(_, news)| news.what));
        for letter in out.meta {
            if let ToMeta::Prepared { vote, .. } = letter {
                self.votes.push(vote);
            }
        }
    }

    /// Another process goes on with what the disk has. Nothing is decided.
    fn start_again(&mut self, names_are_lost: bool) {
        self.log = self.log.crash();
        let moment = self.log.moment();
        self.log.hand().agrees = true;
        self.log.hand().agreed = Some(moment);
        self.shard = Shard::new(GroupId::new(0), self.log.clone());
        if names_are_lost {
            self.shard.keep_orphans();
        }
        self.shard.recover(&self.topology, &Decided::default(), Offset::MAX, self.now);
    }

    /// The disk does all that it was given.
    fn write(&mut self) {
        while self.log.hand().finish() {
            self.turn([ToShard::LogWoke]);
        }
    }

    /// The disk is given all there is, and does it.
    fn store(&mut self) {
        self.shard.sync().expect("handed over");
        self.write();
    }

    /// What is not on the disk is lost.
    fn lose(&mut self) {
        self.log = self.log.crash();
        let moment = self.log.moment();
        self.log.hand().agrees = true;
        self.log.hand().agreed = Some(moment);
        let mut out = Outbox::default();
        let decided = Decided::default();
        let log = self.log.clone();
        self.shard.lose(log, Users::AreCutOff(&[]), &self.topology, &decided, self.now, &mut out);
        self.hear(out);
    }

    fn publish(&mut self, stream_number: u64, messages: impl IntoIterator<Item = Publish>) {
        let from = NodeId::ALONE.connection(1);
        let letter = ToShard::Publish { from, messages: messages.into_iter().collect() };
        self.turn([numbered(BODIES, stream_number, letter)]);
    }

    /// The messages in the log, in order.
    fn stored(&self) -> Vec<u64> {
        let hand = self.log.hand();
        let holders = hand.holders();
        drop(hand);
        let own = Holder::OWNER.get();
        let records = holders.into_iter().filter(|(_, by)| !by.contains(&own));
        records.map(|(at, _)| self.number_at(at)).collect()
    }

    fn number_at(&self, at: u64) -> u64 {
        self.log.hand().cold.remove(&at);
        let bytes = self.log.read(Offset::new(at)).expect("there").bytes;
        let digits = &bytes[bytes.len() - 8..];
        std::str::from_utf8(digits).expect("digits").parse().expect("a number")
    }

    fn notes(&self) -> usize {
        let holders = self.log.hand().holders();
        holders.values().filter(|by| by.contains(&Holder::OWNER.get())).count()
    }
}

#[test]
fn a_letter_that_comes_twice_is_done_once() {
    let mut world = World::new();
    let [all, few, _] = world.queues;
    world.publish(1, [message(1, &[all]), message(2, &[all])]);
    world.publish(2, (3..=8).map(|it| message(it, &[few])));
    world.publish(1, [message(1, &[all]), message(2, &[all])]);
    world.write();
    assert_eq!(world.stored(), [1, 2, 3, 4, 5, 6]);
    let want = |it: u64| vec![it <= 6];
    assert!(world.told.iter().all(|(&it, told)| *told == want(it)), "{:?}", world.told);
    // One after a gap is not done.
    world.publish(4, [message(9, &[all])]);
    world.publish(5, [message(10, &[all])]);
    assert_eq!(world.news.split_off(0).last(), Some(&StreamEvent::Lacks(3)));
    assert_eq!(world.stored().len(), 6);
    assert_eq!(world.shard.stream_place(BODIES).next, 3);
}

/// A full queue refuses half the letters of a turn, one after the other, or every other one: the log gets little of that, or more,
/// which is paid for.
#[test]
fn what_is_noted_is_paid_for() {
    let mut spent = Vec::new();
    let in_a_row: fn(u64) -> bool = |number| number <= 101;
    for is_refused in [in_a_row, |number| number % 2 == 0] {
        let mut world = World::new();
        let [all, few, _] = world.queues;
        world.publish(1, (1..=4).map(|it| message(it, &[few])));
        world.write();
        let from = NodeId::ALONE.connection(1);
        let letters = (2..=201_u64).map(|number| {
            let queue = if is_refused(number) { few } else { all };
            let messages = vec![message(number + 3, &[queue])];
            numbered(BODIES, number, ToShard::Publish { from, messages })
        });
        world.turn(letters.collect::<Vec<_>>());
        spent.push((world.shard.spent(), world.notes()));
    }
    let [(_, few), (_, many)] = spent[..] else { unreachable!("two of them") };
    assert!(few <= 2 && (50..=52).contains(&many), "{spent:?}");
    assert!(spent[1].0 >= spent[0].0 + 48, "{spent:?}");
}

#[test]
fn what_was_done_before_is_told_again_and_not_done_again() {
    let mut world = World::new();
    let [all, few, acked] = world.queues;
    world.publish(1, (1..=6).map(|it| message(it, &[few])));
    world.publish(2, [message(7, &[all]), message(8, &[acked, all])]);
    world.store();
    assert!(world.news.split_off(0).contains(&StreamEvent::Agreed { low: 2, told: 2 }));
    world.publish(3, [message(9, &[all])]);
    world.told.clear();
    world.lose();
    assert_eq!(world.shard.stream_place(BODIES).next, 3);
    world.publish(1, (1..=6).map(|it| message(it, &[few])));
    world.publish(2, [message(7, &[all]), message(8, &[acked, all])]);
    world.publish(3, [message(9, &[all])]);
    world.write();
    assert_eq!(world.stored(), [1, 2, 3, 4, 7, 8, 9]);
    let told: Vec<(u64, bool)> = world.told.iter().map(|(&it, told)| (it, told[0])).collect();
    // The last but one waits for its consumer still.
    let want = (1..=9).filter(|it| *it != 8).map(|it| (it, it != 5 && it != 6));
    assert_eq!(told, want.collect::<Vec<_>>());
    // A process that is gone leaves no note.
    assert!(world.notes() > 0 && world.shard.stream_records() == world.notes() as u64);
    world.shard.keep_streams(|stream| stream.start > 1);
    assert_eq!((world.notes(), world.shard.stream_records()), (0, 0));
}

#[test]
fn of_a_letter_that_is_done_in_part_the_rest_is_done() {
    let mut world = World::new();
    let [all, ..] = world.queues;
    world.shard.set_limits(Limits { turn: 8, share: 4 });
    let letter = || (1..=20).map(|it| message(it, &[all]));
    world.publish(1, letter());
    let first = world.stored().len();
    assert!((1..20).contains(&first), "{first}");
    // This one is done before it.
    let other = NodeId::ALONE.connection(2);
    let later = || ToShard::Publish { from: other, messages: vec![message(21, &[all])] };
    while !world.stored().contains(&21) {
        let letters = match world.shard.stream_place(BODIES).next {
            2 => vec![numbered(BODIES, 2, later())],
            _ => vec![],
        };
        world.turn(letters);
    }
    world.shard.sync().expect("handed over");
    while world.log.hand().finish() {
        world.shard.sync().expect("handed over");
    }
    let stored = world.stored();
    world.lose();
    assert_eq!(world.stored(), stored, "all of it was on the disk");
    assert_eq!(world.shard.stream_place(BODIES).next, 1);
    world.publish(1, letter());
    world.turn([numbered(BODIES, 2, later())]);
    for _ in 0..20 {
        world.turn([ToShard::Continue]);
    }
    world.write();
    let mut stored = world.stored();
    let place = stored.iter().position(|it| *it == 21).expect("there");
    stored.remove(place);
    assert_eq!(stored, (1..=20).collect::<Vec<_>>(), "each once, in order");
    assert!((1..=21).all(|it| world.told.get(&it).is_some_and(|told| told.iter().all(|ok| *ok))));
}

/// The log lost its end before the shard said that a letter is agreed upon: its node waits for that, and may send nothing else.
#[test]
fn a_new_term_says_what_is_agreed_upon() {
    let mut world = World::new();
    let [all, ..] = world.queues;
    world.publish(1, [message(1, &[all])]);
    world.shard.sync().expect("handed over");
    while world.log.hand().finish() {
        world.shard.sync().expect("handed over");
    }
    assert_eq!(world.news, []);
    world.lose();
    world.turn([]);
    assert_eq!(world.news, [StreamEvent::Agreed { low: 1, told: 1 }]);
    assert_eq!(world.shard.stream_place(BODIES).agreed, 1);
}

/// A message leaves its queue before it is agreed upon, which confirms it; that is held until what took it away is agreed upon. Whoever asks
/// the next leader, as he has not heard of it, is told what it was.
#[test]
fn what_is_confirmed_by_a_later_turn_is_confirmed_again() {
    let mut world = World::new();
    let [all, ..] = world.queues;
    world.publish(1, [message(1, &[all])]);
    world.shard.sync().expect("handed over");
    let first = world.log.moment();
    let reply = ReplyTo { connection: NodeId::ALONE.connection(1), channel: 1 };
    world.turn([ToShard::Purge { reply, queue: all, max: u64::MAX }]);
    world.log.hand().agreed = Some(first);
    world.log.hand().reads_agreed = true;
    world.turn([ToShard::LogWoke]);
    assert_eq!(world.told.len(), 0, "it is held");
    assert_eq!(world.news.split_off(0), [StreamEvent::Agreed { low: 1, told: 0 }]);
    world.log.hand().agreed = Some(world.log.moment());
    world.turn([ToShard::LogWoke]);
    assert_eq!(world.told[&1], [true]);
    assert_eq!(world.news.split_off(0), [StreamEvent::Agreed { low: 1, told: 1 }]);
}

/// A queue has another rule by the time that its messages are asked for again: those that waited for a consumer are taken by the rule of
/// now, once, and those that the disk has are stored.
#[test]
fn what_was_taken_in_is_judged_by_the_rule_of_then() {
    for (before, after) in [("ack", "enqueue"), ("ack-lean", "first"), ("enqueue", "ack")] {
        let mut world = World::new();
        let [all, few, _] = world.queues;
        let set = |world: &mut World, rule: &str| {
            let definition = serde_json::Map::from_iter([("confirm-on".to_owned(), rule.into())]);
            let (name, pattern, apply_to, priority) = ("rule", "^all$", ApplyTo::Queues, 0);
            let spec = PolicySpec { name, pattern, apply_to, priority, definition };
            let changed = world.topology.set_policy("/", spec).expect("a policy");
            assert_eq!(changed, [all]);
            world.turn([ToShard::OptionsChanged { queue: all }]);
        };
        set(&mut world, before);
        // Another rule, a message that both queues have, and one that nobody waits for.
        let first = || [message(1, &[few]), message(2, &[all]), message(3, &[few, all])];
        let second = || [message(4, &[all]), message(5, &[all])];
        world.publish(1, first());
        world.publish(2, second());
        world.publish(3, [message(6, &[few])]);
        world.store();
        world.told.clear();
        world.lose();
        set(&mut world, after);
        // It is known after the next start, too, by a note that says all anew.
        for _ in 0..2 {
            world.publish(1, first());
            world.publish(2, second());
            world.publish(3, [message(6, &[few])]);
            world.write();
            let told = std::mem::take(&mut world.told);
            let yes: Vec<u64> = told.into_iter().filter(|(_, it)| it[0]).map(|it| it.0).collect();
            assert_eq!(yes, [1, 2, 3, 4, 5, 6], "{before}, then {after}");
            let mut stored = world.stored();
            stored.sort_unstable();
            let count = stored.iter().filter(|it| **it <= 6).count();
            stored.dedup();
            assert_eq!(stored.iter().filter(|it| **it <= 6).count(), count, "{stored:?}");
            // The next note.
            world.publish(4, [message(7, &[few])]);
            world.write();
            world.told.clear();
            world.lose();
        }
    }
}

/// Two messages of a letter to the queue that waits for acks.
fn two_wait(world: &mut World) -> [Publish; 2] {
    let two = [1, 2].map(|it| message(it, &world.queues[2..]));
    world.publish(1, two.clone());
    world.store();
    two
}

/// These are in the log, and begin it.
fn both_wait() -> StreamEvent {
    let at = Some(leveret_queue::Offset::new(0));
    StreamEvent::Waits { number: 1, first: 0, last: 1, at }
}

fn ask(world: &mut World, messages: Vec<AskedMessage>) {
    let from = NodeId::ALONE.connection(1);
    world.turn([numbered(BODIES, 1, ToShard::Ask { from, messages })]);
}

fn asked(place: u32, whereabouts: Whereabouts) -> AskedMessage {
    AskedMessage { place, channel: 1, confirm: u64::from(place) + 1, whereabouts }
}

/// Takes all that is ready where messages wait for acks, and acks the first ones: the bodies, and whether they are redelivered.
fn take(world: &mut World, acks: usize) -> Vec<(u64, bool)> {
    let queue = world.queues[2];
    take_from(world, queue, acks)
}

/// The same of any queue.
fn take_from(world: &mut World, queue: QueueId, acks: usize) -> Vec<(u64, bool)> {
    let me = ReplyTo { connection: NodeId::ALONE.connection(1), channel: 1 };
    let mut taken = Vec::new();
    world.log.hand().cold.clear();
    loop {
        world.replies.clear();
        world.turn([ToShard::Get { reply: me, queue, no_ack: false }]);
        let Some(Reply::Got { delivery, .. }) = world.replies.pop() else { return taken };
        taken.push((world.number_at(delivery.offset.get()), delivery.redelivered));
        if taken.len() <= acks {
            let unacked = delivery.unacked.expect("it is to be acked");
            let (offset, how) = (delivery.offset, Settle::Ack);
            let settlements = vec![Settlement { queue, unacked, offset, how }];
            world.turn([ToShard::Settle { from: me.connection, settlements }]);
            world.store();
        }
    }
}

/// What waits is written, and the disk has it.
fn store_waiting(world: &mut World) {
    world.turn([ToShard::StoreWaiting { stream: BODIES, up_to: u64::MAX }]);
    world.store();
}

fn in_log(targets: &[QueueId], at: u64) -> Whereabouts {
    Whereabouts::Log(targets.iter().copied().collect(), leveret_queue::Offset::new(at))
}

/// What waited for its consumer in the memory of the shard of before is taken once more, redelivered, and confirmed by its ack; once, though the
/// shard had written it and its node has not heard of that.
#[test]
fn what_waits_for_an_ack_in_memory_is_taken_again() {
    for is_written in [false, true] {
        let mut world = World::new();
        let [one, two] = two_wait(&mut world);
        assert!(
            world.told.is_empty() && world.news.contains(&StreamEvent::Agreed { low: 1, told: 0 })
        );
        if is_written {
            world.turn([ToShard::StoreWaiting { stream: BODIES, up_to: 1 }]);
            world.store();
            let at = world.news.iter().position(|it| *it == both_wait()).expect("it is told");
            assert_eq!(world.news[at + 1..], [StreamEvent::Agreed { low: 1, told: 1 }]);
        }
        world.lose();
        let messages = vec![asked(0, Whereabouts::Memory(one)), asked(1, Whereabouts::Memory(two))];
        ask(&mut world, messages);
        assert_eq!(take(&mut world, 1), [(1, true), (2, true)], "written: {is_written}");
        assert_eq!(world.told, BTreeMap::from([(1, vec![true])]));
    }
}

/// Its node knows where it is in the log: it is waited for there. What is there no more was acked, or refused: nobody knows.
#[test]
fn what_waits_for_an_ack_in_the_log_is_waited_for() {
    let mut world = World::new();
    let _ = two_wait(&mut world);
    // It has waited long enough.
    world.now = world.now.after_ms(2_000);
    world.turn([]);
    world.store();
    assert!(world.news.contains(&both_wait()), "{:?}", world.news);
    assert_eq!(take(&mut world, 1), [(1, false), (2, false)]);
    world.told.clear();
    world.lose();
    let acked = [world.queues[2]];
    let messages = vec![asked(0, in_log(&acked, 0)), asked(1, in_log(&acked, 1))];
    ask(&mut world, messages);
    assert_eq!(world.told, BTreeMap::from([(1, vec![false])]));
    assert_eq!(take(&mut world, 1), [(2, true)]);
    assert_eq!(world.told[&2], [true]);
    // Nor does anybody know of what was in no log.
    ask(&mut world, vec![asked(1, Whereabouts::Nowhere)]);
    assert_eq!(world.told[&2], [true, false]);
}

/// A message waits for the consumer of one of its queues: that of the other one does not confirm it.
#[test]
fn what_waits_in_one_queue_is_not_confirmed_by_another_one() {
    let mut world = World::new();
    let [all, _, acked] = world.queues;
    let both = [all, acked];
    world.publish(1, [message(1, &both)]);
    world.store();
    assert!(world.told.is_empty());
    world.lose();
    ask(&mut world, vec![asked(0, in_log(&both, 0))]);
    assert_eq!(take_from(&mut world, all, 1), [(1, true)]);
    assert_eq!(world.told, BTreeMap::new(), "nobody has acked it where that counts");
    assert_eq!(take(&mut world, 1), [(1, true)]);
    assert_eq!(world.told, BTreeMap::from([(1, vec![true])]));
}

/// A message was to be acked in two queues, and one of them has it no more: nobody knows whether it was acked there.
#[test]
fn what_one_queue_has_let_go_of_is_not_confirmed_by_the_other_one() {
    let mut world = World::new();
    let acked = world.queues[2];
    let also = declare(&mut world.topology, "also", &[("x-confirm-on", "ack".into())]);
    let both = [also, acked];
    world.publish(1, [message(1, &both)]);
    store_waiting(&mut world);
    let me = ReplyTo { connection: NodeId::ALONE.connection(1), channel: 1 };
    world.turn([ToShard::Purge { reply: me, queue: also, max: u64::MAX }]);
    world.store();
    assert!(world.told.is_empty(), "it waits in the other one");
    world.lose();
    ask(&mut world, vec![asked(0, in_log(&both, 0))]);
    assert_eq!(take(&mut world, 1), [(1, true)]);
    assert_eq!(world.told, BTreeMap::from([(1, vec![false])]));
}

/// Its queue was deleted, which the publisher was to be told, when another node began to lead.
#[test]
fn what_waits_in_a_queue_that_is_gone_is_not_confirmed() {
    let mut world = World::new();
    let [one, two] = two_wait(&mut world);
    let acked = world.queues[2];
    world.topology.remove_queue(acked);
    world.start_again(false);
    let messages = vec![asked(0, Whereabouts::Memory(one)), asked(1, Whereabouts::Memory(two))];
    ask(&mut world, messages);
    world.write();
    assert_eq!(world.told, BTreeMap::from([(1, vec![false]), (2, vec![false])]));
    assert!(world.stored().is_empty());
}

/// One queue refuses a message, and another one's consumer is waited for: its publisher is told no in the end. So its node needs
/// to keep nothing of it, and is told so before it is said that there is nothing more to tell.
#[test]
fn what_one_queue_refuses_is_kept_by_nobody() {
    let mut world = World::new();
    let [_, few, acked] = world.queues;
    world.publish(1, (1..=4).map(|it| message(it, &[few])));
    world.publish(2, [message(5, &[few, acked])]);
    world.store();
    let waits = StreamEvent::Waits { number: 2, first: 0, last: 0, at: None };
    let at = world.news.iter().position(|it| *it == waits).expect("it is told");
    let told = |it: &StreamEvent| matches!(it, StreamEvent::Agreed { told: 2, .. });
    assert!(!world.news[..at].iter().any(told) && world.news.iter().any(told), "{:?}", world.news);
    assert!(!world.told.contains_key(&5));
    world.lose();
    let from = NodeId::ALONE.connection(1);
    let nowhere = |confirm| AskedMessage { confirm, ..asked(0, Whereabouts::Nowhere) };
    world.turn([numbered(BODIES, 2, ToShard::Ask { from, messages: vec![nowhere(5)] })]);
    assert_eq!(world.told[&5], [false]);
}

/// Letters are asked for again when a link is new, though the shard is the one that was asked before.
#[test]
fn what_is_asked_for_twice_is_taken_once() {
    for is_written in [false, true] {
        let mut world = World::new();
        let [one, two] = two_wait(&mut world);
        let messages = || {
            vec![
                asked(0, Whereabouts::Memory(one.clone())),
                asked(1, Whereabouts::Memory(two.clone())),
            ]
        };
        world.lose();
        ask(&mut world, messages());
        if is_written {
            store_waiting(&mut world);
        }
        ask(&mut world, messages());
        assert_eq!(take(&mut world, 1), [(1, true), (2, true)], "written: {is_written}");
        assert_eq!(world.told, BTreeMap::from([(1, vec![true])]));
        ask(&mut world, messages());
        assert_eq!(take(&mut world, 1), []);
    }
}

/// A node says of others' messages that they are its own, in the log of before or of this term: it holds up nobody.
#[test]
fn who_asks_for_messages_of_others_holds_up_nobody() {
    let mut world = World::new();
    let _ = two_wait(&mut world);
    store_waiting(&mut world);
    world.lose();
    let acked = world.queues[2];
    let other = StreamId { node: NodeId::new(9).expect("a node"), ..BODIES };
    let from = other.node.connection(1);
    // Its own letter, which this term finds done.
    world.turn([numbered(other, 1, ToShard::Publish { from, messages: vec![] })]);
    world.store();
    world.lose();
    ask(&mut world, vec![asked(0, in_log(&[acked], 0)), asked(1, in_log(&[acked], 1))]);
    world.publish(2, [message(3, &[acked])]);
    let held = world.log.hand().holders();
    let is_message = |(_, by): &(&u64, &BTreeSet<u64>)| !by.contains(&Holder::OWNER.get());
    let new = *held.iter().rfind(is_message).expect("one").0;
    let lies = [0, 1, new, u64::MAX].into_iter().zip(91..).map(|(at, confirm)| {
        let whereabouts = in_log(&[acked], at);
        AskedMessage { place: 0, channel: 1, confirm, whereabouts }
    });
    world.turn([numbered(other, 1, ToShard::Ask { from, messages: lies.collect() })]);
    assert_eq!(take(&mut world, 3), [(1, true), (2, true), (3, false)]);
    let yes = [1, 2, 3].map(|it| (it, vec![true]));
    let no = [91, 92, 93, 94].map(|it| (it, vec![false]));
    assert_eq!(world.told, yes.into_iter().chain(no).collect::<BTreeMap<_, _>>());
}

/// The disk is busy when a message goes to the log that waited in memory: the batch that has it has the note that says so.
#[test]
fn what_goes_to_the_log_has_its_note_in_its_batch() {
    let mut world = World::new();
    let acked = world.queues[2];
    let written = declare(&mut world.topology, "written", &[("x-confirm-on", "enqueue".into())]);
    world.publish(1, [message(1, &[written])]);
    world.shard.sync().expect("handed over");
    assert!(world.log.under_way().is_some());
    let two = message(2, &[acked]);
    world.publish(2, [two.clone()]);
    world.publish(3, [message(3, &[written])]);
    world.turn([ToShard::StoreWaiting { stream: BODIES, up_to: 2 }]);
    for _ in 0..2 {
        assert!(world.log.hand().finish());
        world.turn([ToShard::LogWoke]);
    }
    assert_eq!(world.stored(), [1, 2, 3]);
    world.lose();
    let from = NodeId::ALONE.connection(1);
    let memory = AskedMessage { confirm: 2, ..asked(0, Whereabouts::Memory(two)) };
    world.turn([numbered(BODIES, 2, ToShard::Ask { from, messages: vec![memory] })]);
    assert_eq!(take(&mut world, 1), [(2, true)], "once");
    assert_eq!(world.told[&2], [true]);
}

/// A shard that stops in good order writes what waits, and says so.
#[test]
fn what_waits_for_an_ack_is_written_by_a_stop() {
    let mut world = World::new();
    let [one, two] = two_wait(&mut world);
    world.shard.close();
    world.store();
    world.start_again(false);
    let messages = vec![asked(0, Whereabouts::Memory(one)), asked(1, Whereabouts::Memory(two))];
    ask(&mut world, messages);
    assert_eq!(take(&mut world, 2), [(1, true), (2, true)]);
    assert_eq!(world.told, BTreeMap::from([(1, vec![true]), (2, vec![true])]));
}

/// One message waits for ever, and others are refused: when there is too much to say of these, that one is written.
#[test]
fn what_waits_for_ever_is_written_when_there_is_much_to_say() {
    let mut world = World::new();
    let [_, few, acked] = world.queues;
    let definition = serde_json::json!({"confirm-defer": 864_000_000}).as_object().cloned();
    let spec = PolicySpec {
        name: "ever",
        pattern: "^acked$",
        apply_to: ApplyTo::Queues,
        priority: 0,
        definition: definition.expect("an object"),
    };
    world.topology.set_policy("/", spec).expect("a policy");
    world.turn([ToShard::OptionsChanged { queue: acked }]);
    world.publish(1, [message(1, &[acked])]);
    world.publish(2, (2..=5).map(|it| message(it, &[few])));
    for number in 3..2_000 {
        // One of two is refused, so that there is something to say of each letter.
        let confirm = 2 * number;
        let mut nobodys = message(confirm + 1, &[few]);
        nobodys.confirm = 0;
        world.publish(number, [nobodys, message(confirm, &[few])]);
        world.store();
    }
    let waits = |it: &StreamEvent| matches!(it, StreamEvent::Waits { number: 1, at: Some(_), .. });
    let at = world.news.iter().position(waits).expect("it is written");
    let before = world.news[..at].iter().filter(|it| matches!(it, StreamEvent::Agreed { .. }));
    assert!((500..1_500).contains(&before.count()), "{at}");
    let Some(StreamEvent::Agreed { told, .. }) = world.news.last() else { panic!("news") };
    assert_eq!(*told, 1_999, "the sender hears of all");
}

/// The first letter of a stream, which brings a part of a transaction.
fn prepare(world: &World, parts: u32) -> ToShard {
    let reply = ReplyTo { connection: NodeId::ALONE.connection(1), channel: 1 };
    let messages = vec![message(1, &world.queues[..1])];
    let (tx, settlements) = (TxId::new(9), Vec::new());
    numbered(BODIES, 1, ToShard::Prepare { reply, tx, parts, messages, settlements })
}

/// With names that are lost what was decided on a part may be: then its session is told neither that it is done nor that it is not, and
/// no part of it is to be.
#[test]
fn nobody_knows_of_a_part_whose_decision_may_be_lost() {
    let mut world = World::new();
    world.turn([prepare(&world, 2)]);
    world.write();
    // Each start finds the part again.
    for _ in 0..2 {
        world.votes.clear();
        world.start_again(true);
        world.turn([prepare(&world, 2)]);
        world.write();
        let replies = world.replies.split_off(0);
        let [Reply::Refused { text, .. }] = &replies[..] else { panic!("{replies:?}") };
        assert!(
            text.starts_with("it is not known whether the transaction was committed"),
            "{text}"
        );
        assert_eq!(world.votes, [Vote::No]);
    }
}

/// What becomes of a part that a start undid, and whose letter comes again.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Again {
    Committed,
    GivenUp,
    TakenBack,
    LetGo,
}

/// The log has a part of a transaction that nobody has decided on: no message of it is there, and its letter is done when it comes again,
/// however often that is. What becomes of it then is known to all later starts, without what was decided.
#[test]
fn a_part_that_a_start_undid_is_done_when_its_letter_comes_again() {
    for again in [Again::Committed, Again::GivenUp, Again::TakenBack, Again::LetGo] {
        let mut world = World::new();
        let yes = Vote::Yes { is_kept: true, acked: Vec::new() };
        let decide = |commit| ToShard::Decide { tx: TxId::new(9), commit };
        world.turn([prepare(&world, 2)]);
        world.write();
        for _ in 0..3 {
            assert_eq!(world.votes.split_off(0), std::slice::from_ref(&yes));
            world.start_again(false);
            assert_eq!((world.stored(), world.shard.stream_place(BODIES).next), (vec![], 2));
            // A letter may come twice.
            world.turn([prepare(&world, 2), prepare(&world, 2)]);
            world.write();
            assert_eq!((world.stored(), world.replies.len()), (vec![1], 0));
        }
        assert_eq!(world.votes.split_off(0), std::slice::from_ref(&yes));
        let is_kept = again == Again::Committed;
        match again {
            Again::Committed | Again::GivenUp => world.turn([decide(is_kept)]),
            Again::TakenBack => {
                world.start_again(false);
                world.turn([prepare(&world, 0)]);
                world.write();
                assert_eq!(world.votes.split_off(0), [Vote::No]);
            }
            Again::LetGo => {
                world.start_again(false);
                let letter = ToShard::Settle { from: ConnectionId::NOBODY, settlements: vec![] };
                let numbered = Numbered {
                    stream: BODIES,
                    number: 2,
                    term: u64::MAX,
                    heard_below: 2,
                    undecided_from: 2,
                    is_again: false,
                    letter,
                };
                world.turn([ToShard::Numbered(Box::new(numbered))]);
            }
        }
        world.write();
        let told = world.replies.split_off(0);
        assert_eq!(told.len(), usize::from(again != Again::LetGo), "{told:?}");
        // Later its releases are on the disk, too: nothing is left but the note of the stream, and what was committed.
        world.turn([numbered(
            BODIES,
            2,
            ToShard::Publish { from: ConnectionId::NOBODY, messages: vec![] },
        )]);
        world.store();
        for _ in 0..2 {
            world.start_again(false);
            assert_eq!(world.stored(), vec![1; usize::from(is_kept)], "{again:?}");
            assert_eq!(world.shard.stream_place(BODIES).next, 3);
            if again != Again::LetGo {
                world.turn([prepare(&world, 2)]);
                world.write();
                let replies = world.replies.split_off(0);
                let [reply] = &replies[..] else { panic!("{again:?} {replies:?}") };
                assert_eq!(matches!(reply, Reply::Committed), is_kept, "{reply:?}");
                let vote = (!is_kept).then_some(Vote::No);
                assert_eq!(world.votes.split_off(0), Vec::from_iter(vote));
            }
        }
    }
}

/// What such a part is to ack is nobody's until its letter has come again: nothing is given out before.
#[test]
fn nothing_is_given_out_before_a_part_has_come_again() {
    let mut world = World::new();
    let all = world.queues[0];
    world.publish(1, [message(1, &[all])]);
    let (unacked, offset, how) = (UnackedId::new(0), leveret_queue::Offset::new(0), Settle::Ack);
    let prepare = || {
        let reply = ReplyTo { connection: NodeId::ALONE.connection(1), channel: 1 };
        let settlements = vec![Settlement { queue: all, unacked, offset, how }];
        let (tx, parts, messages) = (TxId::new(9), 2, Vec::new());
        numbered(BODIES, 2, ToShard::Prepare { reply, tx, parts, messages, settlements })
    };
    let get = || {
        let reply = ReplyTo { connection: NodeId::ALONE.connection(2), channel: 1 };
        ToShard::Get { reply, queue: all, no_ack: true }
    };
    world.turn([prepare()]);
    world.write();
    world.start_again(false);
    world.shard.succeed(1 << 32, &[NodeId::ALONE]);
    world.replies.clear();
    let (node, start, term, last) = (NodeId::ALONE, 1, 1 << 32, [2, 0]);
    let attached = Attached { node, start, term, last, undecided_from: 2 };
    world.turn([ToShard::Attached(attached), get()]);
    assert!(world.shard.is_attaching());
    assert_eq!(world.shard.awaited().collect::<Vec<_>>(), [NodeId::ALONE]);
    world.turn([prepare()]);
    assert!(!world.shard.is_attaching());
    world.write();
    let is_empty = |reply: &Reply| matches!(reply, Reply::GotNothing);
    assert!(world.replies.len() == 1 && is_empty(&world.replies[0]), "{:?}", world.replies);
}

/// A part that comes again to a full disk is refused, and no note says so. Its sender was told, and has let go of the letter: it says so
/// where it attaches to the next leader, who waits for the letter else.
#[test]
fn nobody_waits_for_a_part_that_does_not_come_again() {
    let mut world = World::new();
    world.turn([prepare(&world, 2)]);
    world.write();
    world.start_again(false);
    world.log.hand().is_full = true;
    world.votes.clear();
    world.turn([prepare(&world, 2)]);
    world.write();
    assert_eq!(world.votes, [Vote::No]);
    let replies = world.replies.split_off(0);
    assert!(matches!(replies[..], [Reply::Refused { .. }]), "{replies:?}");
    world.log.hand().is_full = false;
    world.start_again(false);
    world.shard.succeed(1 << 32, &[NodeId::ALONE]);
    let records = world.shard.stream_records();
    let (node, start, term, last) = (NodeId::ALONE, 1, 1 << 32, [1, 0]);
    let attached = Attached { node, start, term, last, undecided_from: 2 };
    world.turn([ToShard::Attached(attached)]);
    assert!(!world.shard.is_attaching());
    assert_eq!((world.stored(), world.shard.stream_records()), (vec![], records - 1));
}

/// A batch may end where an earlier turn ended: it has the note of that turn, though there is a newer one.
#[test]
fn each_turn_has_its_note_in_its_batch() {
    let mut world = World::new();
    let [all, ..] = world.queues;
    // Nobody waits for them, so that the disk is not asked at once.
    let lazy = |number| Publish { confirm: 0, ..message(number, &[all]) };
    world.publish(1, [lazy(1)]);
    let until = world.log.moment();
    world.publish(2, [lazy(2)]);
    assert!(world.log.under_way().is_none());
    world.log.clone().sync_until(until).expect("handed over");
    world.log.hand().finish();
    world.lose();
    assert_eq!((world.stored(), world.shard.stream_place(BODIES).next), (vec![1], 2));
}

#[test]
fn a_settlement_counts_once() {
    let mut world = World::new();
    let [all, ..] = world.queues;
    world.publish(1, [message(1, &[all]), message(2, &[all])]);
    world.write();
    let me = ReplyTo { connection: NodeId::ALONE.connection(2), channel: 1 };
    let mut out = Outbox::default();
    let get = ToShard::Get { reply: me, queue: all, no_ack: false };
    world.shard.turn(&mut vec![get], &world.topology, world.now, &mut out);
    let settlements: Vec<Settlement> = out
        .sessions
        .into_iter()
        .filter_map(|(_, letter)| match letter {
            ToSession::Reply { reply: Reply::Got { delivery, .. }, .. } => Some(Settlement {
                queue: all,
                unacked: delivery.unacked.unwrap_or(UnackedId::new(0)),
                offset: delivery.offset,
                how: Settle::Requeue { counts: true },
            }),
            _ => None,
        })
        .collect();
    assert_eq!(settlements.len(), 1);
    for _ in 0..2 {
        let settlements = settlements.clone();
        let letter = ToShard::Settle { from: me.connection, settlements };
        world.turn([numbered(ACKS, 1, letter)]);
    }
    assert_eq!(world.shard.stream_place(ACKS).next, 2);
    let counts = world.shard.queues().find(|(id, _)| *id == all).map(|(_, it)| it.counts());
    assert_eq!(counts.map(|it| (it.ready, it.unacked)), Some((2, 0)));
}

/// While the disk is full each turn tries to write the note: that is one line a second, and the note comes when there is room.
#[test]
fn a_note_without_room_is_told_once_a_second() {
    let mut world = World::new();
    world.log.hand().is_full = true;
    let letter = ToShard::Settle { from: NodeId::ALONE.connection(1), settlements: Vec::new() };
    let said = lines::logged(|| {
        world.turn([numbered(ACKS, 1, letter)]);
        (0..1_500).for_each(|_| world.turn([]));
    });
    let line = "ERROR what was done of numbered letters is not noted yet";
    assert!(said.len() == 2 && said.iter().all(|it| it.starts_with(line)), "{said:#?}");
    world.log.hand().is_full = false;
    assert_eq!(lines::logged(|| world.turn([])), [""; 0]);
    assert_eq!((world.notes(), world.shard.stream_records()), (1, 1));
}

/// Letters of several publishers, some of which come twice or not at all at first, to a shard that is cut in small pieces and loses
/// the end of its log now and then.
#[test]
fn each_message_is_stored_once() {
    for seed in 0..100 {
        once(seed);
    }
}

fn once(seed: u64) {
    let mut below = leveret_log::suite::numbers(seed);
    let mut world = World::new();
    let turn = 1 + below(60);
    world.shard.set_limits(Limits { turn, share: 1 + below(turn) });
    let mut kept: VecDeque<(u64, u64, Vec<Publish>)> = VecDeque::new();
    let (mut next, mut sent, mut messages) = (1, 1, 0);
    let mut by_publisher: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut refusable = BTreeSet::new();
    let mut step = 0;
    while step < 120 || !kept.is_empty() {
        step += 1;
        assert!(step < 5_000, "seed {seed}: {kept:?} is not done");
        if step < 120 && below(3) == 0 {
            let from = 1 + below(PUBLISHERS);
            let list: Vec<Publish> = (0..1 + below(12))
                .map(|_| {
                    messages += 1;
                    by_publisher.entry(from).or_default().push(messages);
                    let queue = world.queues[below(2) as usize];
                    if queue == world.queues[1] {
                        refusable.insert(messages);
                    }
                    message(messages, &[queue])
                })
                .collect();
            kept.push_back((next, from, list));
            next += 1;
        }
        match below(8) {
            0 => _ = world.log.hand().finish(),
            1 => _ = world.shard.sync(),
            2 if step < 120 && below(3) == 0 => {
                world.lose();
                sent = kept.front().map_or(next, |it| it.0);
            }
            _ => {}
        }
        let mut letters = Vec::new();
        let kept_from = kept.front().map_or(next, |it| it.0);
        for &(number, from, ref messages) in &kept {
            if number < sent && below(10) > 0 || number > sent {
                continue;
            }
            if number == sent {
                sent += 1;
                if below(6) == 0 {
                    // Lost on its way.
                    continue;
                }
            }
            let from = NodeId::ALONE.connection(from);
            let letter = ToShard::Publish { from, messages: messages.clone() };
            let (heard_below, undecided_from) = (kept_from, kept_from);
            let numbered = Numbered {
                stream: BODIES,
                number,
                term: u64::MAX,
                heard_below,
                undecided_from,
                is_again: false,
                letter,
            };
            letters.push(ToShard::Numbered(Box::new(numbered)));
        }
        world.turn(letters);
        if below(4) == 0 {
            // The link was cut: the shard says how far it is.
            sent = sent.min(world.shard.stream_place(BODIES).next).max(kept_from);
        }
        for news in world.news.split_off(0) {
            match news {
                StreamEvent::Lacks(number) => sent = number,
                StreamEvent::Agreed { low, .. } => kept.retain(|&(number, _, ref messages)| {
                    let is_told = messages.iter().all(|it| world.told.contains_key(&it.confirm));
                    number > low || !is_told
                }),
                StreamEvent::Waits { .. } => {}
            }
        }
        // What was agreed upon may have been told after that.
        if step >= 120 {
            let (place, told) = (world.shard.stream_place(BODIES).next, &world.told);
            kept.retain(|&(number, _, ref messages)| {
                number >= place || !messages.iter().all(|it| told.contains_key(&it.confirm))
            });
        }
    }
    for _ in 0..1_000 {
        world.turn([ToShard::Continue]);
        if world.shard.sync().is_ok() && !world.log.hand().finish() {
            break;
        }
    }
    let stored = world.stored();
    for (from, all) in by_publisher {
        let got: Vec<u64> = stored.iter().copied().filter(|it| all.contains(it)).collect();
        assert!(got.is_sorted(), "seed {seed}: publisher {from} has {got:?}");
        let once: BTreeSet<u64> = got.iter().copied().collect();
        assert_eq!(once.len(), got.len(), "seed {seed}: {got:?}");
        for number in all {
            let told = &world.told[&number];
            assert!(told.windows(2).all(|it| it[0] == it[1]), "seed {seed}: {number} {told:?}");
            assert_eq!(once.contains(&number), told[0], "seed {seed}: {number}");
            assert!(told[0] || refusable.contains(&number), "seed {seed}: {number}");
        }
    }
    assert_eq!(world.shard.stream_records(), world.notes() as u64);
    // Old notes go with the first one behind one that says all and is on the disk.
    for number in next..=next + 1 {
        let from = NodeId::ALONE.connection(1);
        let letter = ToShard::Settle { from, settlements: Vec::new() };
        let numbered = Numbered {
            stream: BODIES,
            number,
            term: u64::MAX,
            heard_below: number,
            undecided_from: number,
            is_again: false,
            letter,
        };
        world.turn([ToShard::Numbered(Box::new(numbered))]);
        world.shard.sync().expect("handed over");
        while world.log.hand().finish() {
            world.shard.sync().expect("handed over");
        }
    }
    assert_eq!(world.notes(), 2);
}
