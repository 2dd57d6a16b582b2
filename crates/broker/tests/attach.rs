//! A shard in a new term: nothing is given out, and no question is answered, before those who use it have said what they have.

#[path = "hand/log.rs"]
mod log;

use std::sync::Arc;

use leveret_amqp::content::Properties;
use leveret_amqp::table::{Table, Value};
use leveret_broker::Shard;
use leveret_broker::command::CommandStream;
use leveret_broker::message::*;
use leveret_broker::record::join_names;
use leveret_broker::shard::Users;
use leveret_broker::stream::{Numbered, StreamClass, StreamId};
use leveret_broker::transaction::Decided;
use leveret_log::{Log as _, Moment};
use leveret_queue::{Gate, Offset, Time};
use leveret_topology::{GroupId, NodeId, QueueId, QueueSpec, Topology};
use log::HandLog;

const ONE: ConnectionId = NodeId::ALONE.connection(1);
const TWO: ConnectionId = NodeId::ALONE.connection(2);
const NODE: NodeId = NodeId::ALONE;
const OTHER: NodeId = NodeId::new(7).unwrap();

struct World {
    log: HandLog,
    shard: Shard<HandLog>,
    topology: Topology,
    queue: QueueId,
    now: Time,
    /// The last numbers of messages and of settlements.
    last: [u64; 2],
}

impl World {
    fn new(arguments: &[(&str, Value)]) -> Self {
        let mut topology = Topology::new();
        topology.add_vhost("/").expect("a vhost");
        let own = arguments.iter();
        let spec = QueueSpec {
            vhost: topology.vhost("/").expect("there").id,
            name: "q",
            server_named: false,
            durable: true,
            auto_delete: false,
            exclusive_owner: None,
            arguments: own
                .map(|(key, value)| ((*key).to_owned(), value.clone()))
                .collect::<Table>(),
        };
        let queue = topology.declare_queue(spec).expect("declared").id;
        let log = HandLog::default();
        log.hand().agrees = true;
        log.hand().agreed = Some(Moment::default());
        let shard = Shard::new(GroupId::new(0), log.clone());
        Self { log, shard, topology, queue, now: Time::from_ms(1000), last: [0; 2] }
    }

    fn turn(&mut self, letters: impl IntoIterator<Item = ToShard>) -> Outbox {
        let mut out = Outbox::default();
        self.now = self.now.after_ms(1);
        let mut letters = letters.into_iter().collect();
        self.shard.turn(&mut letters, &self.topology, self.now, &mut out);
        out
    }

    /// The disk does all that it was given, and others agree. What was given to consumers then.
    fn write(&mut self) -> Vec<Delivery> {
        let mut given = Vec::new();
        while self.log.hand().finish() {
            given.append(&mut deliveries(&self.turn([ToShard::LogWoke])));
        }
        given
    }

    fn numbered(&mut self, class: StreamClass, letter: ToShard) -> ToShard {
        let last = &mut self.last[usize::from(class == StreamClass::Acks)];
        *last += 1;
        let stream = StreamId { node: NODE, start: 0, class };
        ToShard::Numbered(Box::new(Numbered {
            stream,
            number: *last,
            term: u64::MAX,
            heard_below: 1,
            undecided_from: 1,
            is_again: false,
            letter,
        }))
    }

    fn publish(&mut self, count: usize) -> Vec<Delivery> {
        let mut given = self.take(count, true);
        // Though a consumer may be quicker, the disk gets it now.
        self.now = self.now.after_ms(1_000);
        given.append(&mut deliveries(&self.turn([ToShard::Continue])));
        given.append(&mut self.write());
        given
    }

    /// Messages come; those that are not persistent nobody confirms.
    fn take(&mut self, count: usize, persistent: bool) -> Vec<Delivery> {
        let letter = self.messages(count, persistent);
        deliveries(&self.turn([letter]))
    }

    /// Messages come that nobody confirms, and that came to an earlier shard.
    fn take_again(&mut self, count: usize) -> Vec<Delivery> {
        let letter = self.messages(count, false);
        let ToShard::Numbered(numbered) = letter else { panic!("{letter:?}") };
        let again = Numbered { is_again: true, ..*numbered };
        deliveries(&self.turn([ToShard::Numbered(Box::new(again))]))
    }

    fn messages(&mut self, count: usize, persistent: bool) -> ToShard {
        let mut properties = Vec::new();
        Properties::default().encode(&mut properties);
        let message = Publish {
            channel: 1,
            confirm: u64::from(persistent),
            targets: [self.queue].into_iter().collect(),
            persistent,
            priority: 0,
            expiration_ms: None,
            message: Message::from_parts(&join_names("", "q"), &properties, b"body"),
            shared: None,
        };
        let letter = ToShard::Publish { from: ONE, messages: vec![message; count] };
        self.numbered(StreamClass::Bodies, letter)
    }

    /// Its number, and what it is given.
    fn consume(&mut self, who: ConnectionId, prefetch: u16) -> (u64, Vec<Delivery>) {
        let letter = ToShard::Consume {
            user: "".into(),
            reply: ReplyTo { connection: who, channel: 1 },
            queue: self.queue,
            slot: ConsumerSlot(0),
            tag: "t".into(),
            no_ack: false,
            exclusive: false,
            priority: 0,
            prefetch,
            gate: Some(Gate::open()),
            arguments: Arc::default(),
        };
        let out = self.turn([letter]);
        let number = out.sessions.iter().find_map(|(_, letter)| match letter {
            ToSession::Reply { reply: Reply::Consuming { number }, .. } => Some(*number),
            _ => None,
        });
        (number.expect("an answer"), deliveries(&out))
    }

    /// What is not on the disk is lost, and nodes are to attach.
    fn lose(&mut self) -> Outbox {
        self.lose_with(&[NODE])
    }

    fn lose_with(&mut self, nodes: &[NodeId]) -> Outbox {
        self.log = self.log.crash();
        self.log.hand().agrees = true;
        let moment = self.log.moment();
        self.log.hand().agreed = Some(moment);
        self.log.hand().cold.clear();
        let mut out = Outbox::default();
        let (decided, log) = (Decided::default(), self.log.clone());
        let users = Users::Attach(nodes);
        self.shard.lose(log, users, &self.topology, &decided, self.now, &mut out);
        out
    }

    fn settle(&mut self, who: ConnectionId, of: &Delivery, how: Settle) -> ToShard {
        let unacked = of.unacked.expect("to be acked");
        let settlement = Settlement { queue: self.queue, unacked, offset: of.offset, how };
        let letter = ToShard::Settle { from: who, settlements: vec![settlement] };
        self.numbered(StreamClass::Acks, letter)
    }

    fn attach(&self, who: ConnectionId, number: u64, prefetch: u16, claims: &[Offset]) -> ToShard {
        let consumer = AttachedConsumer {
            number,
            channel: 1,
            queue: self.queue,
            slot: ConsumerSlot(0),
            tag: "t".into(),
            no_ack: false,
            exclusive: false,
            priority: 0,
            prefetch,
            is_going: false,
            gate: Some(Gate::open()),
            arguments: Arc::default(),
        };
        let claim = |&offset: &Offset| {
            let slot = Some(ConsumerSlot(0));
            Claim { queue: self.queue, offset, slot }
        };
        ToShard::Attach(Box::new(Attachment {
            connection: who,
            term: self.shard.term(),
            behind: self.last,
            consumers: vec![consumer],
            claims: claims.iter().map(claim).collect(),
        }))
    }

    fn attached(&self) -> ToShard {
        let (term, last) = (self.shard.term(), self.last);
        ToShard::Attached(Attached { node: NODE, start: 0, term, last, undecided_from: 1 })
    }

    fn counts(&self) -> (u64, u64) {
        let (_, queue) = self.shard.queues().next().expect("one");
        (queue.counts().ready, queue.counts().unacked)
    }
}

fn process(node: NodeId) -> CommandStream {
    CommandStream { node, start: 0 }
}

fn deliveries(out: &Outbox) -> Vec<Delivery> {
    let letters = out.sessions.iter().filter_map(|(_, letter)| match letter {
        ToSession::Deliver(deliveries) => Some(deliveries.clone()),
        _ => None,
    });
    letters.flatten().collect()
}

fn offsets(given: &[Delivery]) -> Vec<u64> {
    given.iter().map(|it| it.offset.get()).collect()
}

/// Consumers keep what they have and their turns; nobody else gets it, though the shard has forgotten all; what nobody has is
/// redelivered.
#[test]
fn what_is_claimed_stays_and_the_rest_is_given_again() {
    let mut world = World::new(&[]);
    let (first, _) = world.consume(ONE, 2);
    let (second, _) = world.consume(TWO, 1);
    let given = world.publish(4);
    // Each connection gets its own in one letter.
    assert_eq!((offsets(&given), world.counts()), (vec![0, 2, 1], (1, 3)));
    let (one, two) = (given[0].offset, given[2].offset);
    world.lose();
    assert!(world.shard.is_attaching());
    assert_eq!(world.shard.awaited().collect::<Vec<_>>(), [ONE.node()]);
    assert_eq!(world.counts(), (4, 0));
    let get = ToShard::Get {
        reply: ReplyTo { connection: TWO, channel: 1 },
        queue: world.queue,
        no_ack: false,
    };
    // The younger one is first to attach. The third message did not arrive: nobody claims it.
    let letters = [world.attach(TWO, second, 1, &[two]), get, world.attach(ONE, first, 2, &[one])];
    let out = world.turn(letters);
    assert!(out.sessions.is_empty(), "the node has not said that this is all: {out:?}");
    assert!(world.publish(1).is_empty(), "messages are taken, and not given out");
    let out = world.turn([world.attached()]);
    let given = deliveries(&out);
    assert_eq!(offsets(&given), [2], "the first has room for one, the second for none: {out:?}");
    assert!(given[0].redelivered);
    let got = out.sessions.iter().find_map(|(_, letter)| match letter {
        ToSession::Reply { reply: Reply::Got { delivery, .. }, .. } => Some(delivery.offset.get()),
        _ => None,
    });
    assert_eq!(got, Some(3), "the question is answered: {out:?}");
    assert!(!world.shard.is_attaching());
}

/// A settlement that was lost with the end of the log is found by its message, whatever it was called: if its session claims
/// nothing, and if the claim came first.
#[test]
fn settlements_of_an_earlier_term_are_done_once() {
    let mut world = World::new(&[]);
    let (number, _) = world.consume(ONE, 0);
    let given = world.publish(3);
    let letter = world.settle(ONE, &given[0], Settle::Ack);
    world.turn([letter]);
    world.lose();
    let held = [given[1].offset, given[2].offset];
    let attach = world.attach(ONE, number, 0, &held);
    let attached = world.attached();
    let out = world.turn([attach, attached]);
    assert!(out.sessions.is_empty() && world.shard.is_attaching(), "the ack is awaited: {out:?}");
    assert_eq!(world.shard.awaited().collect::<Vec<_>>(), [ONE.node()], "it said that it is all");
    world.last[1] -= 1;
    let again = world.settle(ONE, &given[0], Settle::Ack);
    let later = world.settle(ONE, &given[2], Settle::Ack);
    let out = world.turn([again, later]);
    assert!(deliveries(&out).is_empty() && !world.shard.is_attaching());
    assert_eq!(world.shard.awaited().count(), 0);
    assert_eq!(world.counts(), (0, 1));
    let last = world.settle(ONE, &given[1], Settle::Ack);
    world.turn([last]);
    assert_eq!(world.counts(), (0, 0));
}

/// A message that is in the log, and two that were in no batch, all given to a client, which has acked the last one; three others have come
/// in the next term, and have the offsets of those two.
struct Overtaken {
    world: World,
    /// Of the client's consumer.
    number: u64,
    kept: Offset,
    lost: Vec<Delivery>,
    begins_at: Offset,
}

impl Overtaken {
    fn new() -> Self {
        let mut world = World::new(&[]);
        let (number, _) = world.consume(ONE, 0);
        let kept = world.publish(1)[0].offset;
        let lost = world.take(2, false);
        let letter = world.settle(ONE, &lost[1], Settle::Ack);
        world.turn([letter]);
        world.lose();
        let begins_at = world.shard.term_begins_at(NODE);
        let first = lost[0].offset;
        assert!(kept < begins_at && begins_at <= first, "{kept:?} {begins_at:?} {first:?}");
        world.last[0] -= 1;
        assert!(world.publish(3).is_empty());
        Self { world, number, kept, lost, begins_at }
    }

    /// The client says what it has, and its ack comes again: nothing of that is about the new messages, which are given to it.
    fn attach(self) -> Vec<Delivery> {
        let Self { mut world, number, kept, lost, .. } = self;
        let attach = world.attach(ONE, number, 0, &[kept, lost[0].offset]);
        let attached = world.attached();
        world.last[1] -= 1;
        let again = world.settle(ONE, &lost[1], Settle::Ack);
        let new = deliveries(&world.turn([attach, attached, again]));
        assert_eq!((new.len(), world.counts()), (3, (0, 4)));
        assert!(lost.iter().all(|lost| new.iter().any(|it| it.offset == lost.offset)), "{new:?}");
        new
    }
}

/// What was in no batch is gone, and others have its offsets: what was claimed, or settled before, is none of these.
#[test]
fn nothing_from_before_a_term_is_about_what_came_in_it() {
    let new = Overtaken::new().attach();
    assert!(new.iter().all(|it| !it.redelivered));
}

/// The same of what came in a term that waited for a node, and of which that one did not hear.
#[test]
fn nothing_from_before_a_term_is_about_what_came_in_one_that_was_missed() {
    let mut overtaken = Overtaken::new();
    let Overtaken { world, lost, begins_at, .. } = &mut overtaken;
    world.lose_with(&[NODE, OTHER]);
    world.shard.missed_a_term(NODE, *begins_at);
    assert_eq!(world.shard.term_begins_at(NODE), *begins_at);
    assert!(world.shard.term_begins_at(OTHER) > lost[1].offset);
    world.shard.node_is_gone(process(OTHER));
    overtaken.attach();
}

/// A message came back, was given out again, and both were lost with the end of the log: whoever has it now keeps it.
#[test]
fn a_settlement_from_before_a_claim_does_not_end_it() {
    let mut world =
        World::new(&[("x-queue-type", "quorum".into()), ("x-delivery-limit", Value::I32(5))]);
    let (number, _) = world.consume(ONE, 0);
    let given = world.publish(1);
    let letter = world.settle(ONE, &given[0], Settle::Requeue { counts: true });
    let given = deliveries(&world.turn([letter]));
    assert_eq!((given.len(), given[0].delivery_count), (1, 1));
    world.lose();
    let attach = world.attach(ONE, number, 0, &[given[0].offset]);
    let attached = world.attached();
    world.last[1] -= 1;
    let again = world.settle(ONE, &given[0], Settle::Requeue { counts: true });
    let out = world.turn([again, attach, attached]);
    assert!(deliveries(&out).is_empty(), "{out:?}");
    assert_eq!((world.counts(), world.shard.is_attaching()), ((0, 1), false));
    let letter = world.settle(ONE, &given[0], Settle::Requeue { counts: true });
    let given = deliveries(&world.turn([letter]));
    assert_eq!((given.len(), given[0].delivery_count), (1, 2), "each time counts");
}

/// What is out with consumers is not in the queue: it is not dropped for those that come.
#[test]
fn a_full_queue_drops_nothing_that_somebody_has() {
    let mut world = World::new(&[("x-max-length", Value::I32(2))]);
    let (number, _) = world.consume(ONE, 2);
    let given = world.publish(2);
    let held: Vec<Offset> = given.iter().map(|it| it.offset).collect();
    world.publish(1);
    world.lose();
    world.publish(1);
    assert_eq!(world.counts(), (4, 0));
    let (attach, attached) = (world.attach(ONE, number, 2, &held), world.attached());
    world.turn([attach, attached]);
    assert_eq!(world.counts(), (2, 2));
}

/// A node that is declared gone has nothing, and nobody waits for it.
#[test]
fn a_node_that_is_gone_is_not_waited_for() {
    let mut world = World::new(&[]);
    let (number, _) = world.consume(ONE, 0);
    let given = world.publish(2);
    world.lose();
    let attach = world.attach(ONE, number, 0, &[given[0].offset]);
    world.turn([attach]);
    assert!(world.shard.is_attaching());
    world.shard.node_is_gone(process(NODE));
    world.turn([ToShard::Continue]);
    assert_eq!((world.counts(), world.shard.is_attaching()), ((2, 0), false));
}

/// What it had sent is done, though its number is not the first: nobody else would give back what it settles. Its streams are forgotten
/// when its next start begins others.
#[test]
fn what_a_node_that_is_gone_had_sent_is_done() {
    let mut world = World::new(&[]);
    world.consume(ONE, 0);
    let given = world.publish(3);
    for one in &given[..2] {
        let letter = world.settle(ONE, one, Settle::Ack);
        world.shard.node_is_gone(process(NODE));
        world.turn([letter]);
    }
    assert_eq!(world.counts(), (0, 1));
    let stream = |start| StreamId { node: NODE, start, class: StreamClass::Acks };
    assert_eq!(world.shard.stream_place(stream(0)).next, 3);
    let letter = ToShard::Settle { from: ONE, settlements: Vec::new() };
    let next = Numbered {
        stream: stream(1),
        number: 1,
        term: u64::MAX,
        heard_below: 1,
        undecided_from: 1,
        is_again: false,
        letter,
    };
    world.turn([ToShard::Numbered(Box::new(next))]);
    let next = [0, 1].map(|start| world.shard.stream_place(stream(start)).next);
    assert_eq!(next, [1, 2]);
}

/// A message that a node gave back in an earlier term was given to another one. The first node goes before its letter was done again:
/// that letter ends nothing of what the other one has.
#[test]
fn what_a_node_that_is_gone_gave_back_before_a_claim_does_not_end_it() {
    for has_attached in [false, true] {
        let mut world = World::new(&[]);
        let (number, _) = world.consume(ONE, 0);
        let given = world.publish(1);
        world.lose_with(&[NODE, OTHER]);
        let (attach, attached) =
            (world.attach(ONE, number, 0, &[given[0].offset]), world.attached());
        world.turn([attach, attached]);
        let term = world.shard.term();
        if has_attached {
            let last = [0, 1];
            let attached = Attached { node: OTHER, start: 0, term, last, undecided_from: 1 };
            world.turn([ToShard::Attached(attached)]);
        }
        world.shard.node_is_gone(process(OTHER));
        let settlement = Settlement {
            queue: world.queue,
            unacked: given[0].unacked.expect("to be acked"),
            offset: given[0].offset,
            how: Settle::Requeue { counts: true },
        };
        let settlements = vec![settlement];
        let again = Numbered {
            stream: StreamId { node: OTHER, start: 0, class: StreamClass::Acks },
            number: 1,
            term: u64::MAX,
            heard_below: 1,
            undecided_from: 1,
            is_again: false,
            letter: ToShard::Settle { from: OTHER.connection(1), settlements },
        };
        let out = world.turn([ToShard::Numbered(Box::new(again))]);
        assert!(deliveries(&out).is_empty(), "{out:?}");
        assert_eq!((world.counts(), world.shard.is_attaching()), ((0, 1), false));
    }
}

/// A node had acked a message that was lost with the end of the log, and goes before all that it sent is done. The message of the new term that
/// has the offset is somebody else's, and stays so. A message that comes again of it is marked, and what its next start sends is heard.
#[test]
fn what_a_node_that_is_gone_had_sent_is_not_about_what_came_since() {
    for has_attached in [false, true] {
        let mut world = World::new(&[]);
        world.consume(ONE, 0);
        let lost = world.take(2, false);
        world.lose_with(&[NODE, OTHER]);
        world.last[0] -= 1;
        if has_attached {
            world.last[1] += 1;
            let attached = world.attached();
            world.turn([attached]);
            world.last[1] -= 1;
        }
        world.shard.node_is_gone(process(NODE));
        let term = world.shard.term();
        let attached = Attached { node: OTHER, start: 0, term, last: [0; 2], undecided_from: 1 };
        world.turn([ToShard::Attached(attached)]);
        assert!(!world.shard.is_attaching());
        let other = OTHER.connection(1);
        world.consume(other, 0);
        let again = world.take_again(3);
        assert!(again.iter().all(|it| it.redelivered), "{again:?}");
        assert_eq!(offsets(&again)[..2], offsets(&lost)[..]);
        assert_eq!(again[0].unacked, lost[0].unacked, "they have one name");
        let old = world.settle(ONE, &lost[0], Settle::Ack);
        world.turn([old]);
        assert_eq!(world.counts(), (0, 3), "its consumer has not acked it");
        let next = StreamId { node: NODE, start: 1, class: StreamClass::Acks };
        let letter = world.settle(NODE.connection(9), &again[0], Settle::Ack);
        let ToShard::Numbered(numbered) = letter else { panic!("{letter:?}") };
        let next = Numbered { stream: next, number: 1, ..*numbered };
        world.turn([ToShard::Numbered(Box::new(next))]);
        assert_eq!(world.counts(), (0, 2));
    }
}

/// What one term was told is nothing to the next one.
#[test]
fn another_term_asks_again() {
    let mut world = World::new(&[]);
    let (number, _) = world.consume(ONE, 0);
    let given = world.publish(1);
    world.lose();
    let (attach, attached) = (world.attach(ONE, number, 0, &[given[0].offset]), world.attached());
    world.lose();
    world.turn([attach, attached]);
    assert!(world.shard.is_attaching(), "they were of another term");
    let (attach, attached) = (world.attach(ONE, number, 0, &[given[0].offset]), world.attached());
    world.turn([attach, attached]);
    assert_eq!((world.counts(), world.shard.is_attaching()), ((0, 1), false));
}
