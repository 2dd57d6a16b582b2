//! A shard over a log that others have to agree upon: what it answers waits for them.

#[path = "hand/log.rs"]
mod log;

use leveret_amqp::content::Properties;
use leveret_amqp::table::{Table, Value};
use leveret_broker::Shard;
use leveret_broker::message::*;
use leveret_broker::record::join_names;
use leveret_broker::shard::Users;
use leveret_broker::transaction::Decided;
use leveret_broker::work::Limits;
use leveret_log::{Log as _, Moment};
use leveret_queue::{Gate, Time};
use leveret_topology::{GroupId, NodeId, QueueId, QueueSpec, Topology};
use log::HandLog;

const ME: ReplyTo = ReplyTo { connection: NodeId::ALONE.connection(1), channel: 1 };

struct World {
    log: HandLog,
    shard: Shard<HandLog>,
    topology: Topology,
    queue: QueueId,
    now: Time,
}

impl World {
    /// With one message in the queue, on the disk.
    fn new(agreed: Option<Moment>) -> Self {
        Self::with(agreed, Table::default())
    }

    /// The same, of a queue with these arguments.
    fn with(agreed: Option<Moment>, arguments: Table) -> Self {
        let mut topology = Topology::new();
        topology.add_vhost("/").expect("a vhost");
        let spec = QueueSpec {
            vhost: topology.vhost("/").expect("there").id,
            name: "q",
            server_named: false,
            durable: true,
            auto_delete: false,
            exclusive_owner: None,
            arguments,
        };
        let queue = topology.declare_queue(spec).expect("declared").id;
        let log = HandLog::default();
        log.hand().agreed = agreed;
        let shard = Shard::new(GroupId::new(0), log.clone());
        let mut world = Self { log, shard, topology, queue, now: Time::from_ms(1000) };
        world.publish();
        world
    }

    /// One more message, on the disk.
    fn publish(&mut self) {
        self.put(1, true);
        self.write();
    }

    /// One more message: what its publisher is told in this turn.
    fn put(&mut self, confirm: u64, persistent: bool) -> Outbox {
        let message = self.message(confirm, persistent);
        self.out(ToShard::Publish { from: ME.connection, messages: vec![message] })
    }

    fn message(&self, confirm: u64, persistent: bool) -> Publish {
        let mut properties = Vec::new();
        Properties::default().encode(&mut properties);
        Publish {
            channel: 1,
            confirm,
            targets: [self.queue].into_iter().collect(),
            persistent,
            priority: 0,
            expiration_ms: None,
            message: Message::from_parts(&join_names("", "q"), &properties, b"body"),
            shared: None,
        }
    }

    /// The letter of a consumer; one without a gate is of a session elsewhere.
    fn consume(&self, gate: Option<Gate>) -> ToShard {
        ToShard::Consume {
            user: Box::default(),
            reply: ME,
            queue: self.queue,
            slot: ConsumerSlot(0),
            tag: "c".into(),
            no_ack: false,
            exclusive: false,
            priority: 0,
            prefetch: 0,
            gate,
            arguments: Default::default(),
        }
    }

    /// A turn.
    fn out(&mut self, letter: ToShard) -> Outbox {
        let mut out = Outbox::default();
        self.now = self.now.after_ms(1);
        self.shard.turn(&mut vec![letter], &self.topology, self.now, &mut out);
        out
    }

    /// The replies of a turn.
    fn turn(&mut self, letter: ToShard) -> Vec<Reply> {
        replies(self.out(letter))
    }

    /// The disk does all that it was given. What is told then.
    fn write(&mut self) -> Vec<Reply> {
        let mut told = Vec::new();
        while self.log.hand().finish() {
            told.append(&mut self.turn(ToShard::LogWoke));
        }
        told
    }

    /// Others have all that there is.
    fn agreed(&mut self) -> Outbox {
        let moment = self.log.moment();
        self.log.hand().agreed = Some(moment);
        self.out(ToShard::LogWoke)
    }

    /// The same; what is replied then.
    fn agree(&mut self) -> Vec<Reply> {
        replies(self.agreed())
    }

    fn purge(&mut self) -> Vec<Reply> {
        self.turn(ToShard::Purge { reply: ME, queue: self.queue, max: u64::MAX })
    }
}

/// The replies in what a turn told.
fn replies(out: Outbox) -> Vec<Reply> {
    let replies = out.sessions.into_iter().filter_map(|(_, letter)| match letter {
        ToSession::Reply { reply, .. } => Some(reply),
        _ => None,
    });
    replies.collect()
}

/// What becomes of a message that is to be acked.
fn settlement(of: &Delivery, how: Settle) -> Settlement {
    let unacked = of.unacked.expect("to be acked");
    Settlement { queue: of.queue, unacked, offset: of.offset, how }
}

fn ack(of: &Delivery) -> ToShard {
    ToShard::Settle { from: ME.connection, settlements: vec![settlement(of, Settle::Ack)] }
}

#[test]
fn a_purge_is_answered_when_it_cannot_be_undone() {
    let mut world = World::new(Some(Moment::default()));
    world.agree();
    assert!(world.purge().is_empty(), "nobody else knows of it");
    // Though nobody asks for it the disk gets it at once.
    assert!(world.log.under_way().is_some());
    assert!(world.write().is_empty(), "it is on one disk");
    assert_eq!(world.shard.held_turns(), 1);
    let told = world.agree();
    assert!(matches!(told[..], [Reply::Purged(1)]), "{told:?}");
    assert_eq!(world.shard.held_turns(), 0);
    // What changes nothing is answered at once.
    assert!(matches!(world.purge()[..], [Reply::Purged(0)]));
}

/// What a turn gave out, and what it confirmed.
fn seen(out: Outbox) -> (Vec<Delivery>, Vec<u64>) {
    let (mut given, mut confirmed) = (Vec::new(), Vec::new());
    for (_, letter) in out.sessions {
        match letter {
            ToSession::Deliver(batch) => given.extend(batch),
            ToSession::Confirm { first, last, ok: true, .. } => confirmed.extend(first..=last),
            _ => {}
        }
    }
    (given, confirmed)
}

/// With `deliver-before-commit` a consumer may be quicker than those who have the log: what it acks is confirmed at once, and
/// written by nobody. A transaction's messages wait all the same, and those behind them.
#[test]
fn a_message_may_be_given_out_before_it_is_agreed_upon() {
    for before_commit in [false, true] {
        let argument = ("x-deliver-before-commit".to_owned(), Value::Bool(before_commit));
        let mut world = World::with(Some(Moment::default()), [argument].into_iter().collect());
        world.log.hand().reads_agreed = true;
        world.agree();
        let consume = world.consume(Some(Gate::open()));
        assert_eq!(seen(world.out(consume)).0.len(), 1, "the one that is agreed upon");
        let syncs = world.log.hand().syncs;
        let (given, confirmed) = seen(world.put(2, true));
        assert_eq!((given.len(), confirmed), (usize::from(before_commit), vec![]));
        let Some(given) = given.first() else {
            world.write();
            world.agree();
            continue;
        };
        let ack = settlement(given, Settle::Ack);
        let acked = world.out(ToShard::Settle { from: ME.connection, settlements: vec![ack] });
        assert_eq!((seen(acked).1, world.log.hand().syncs), (vec![2], syncs));
        assert_eq!(world.log.hand().held.len(), 1, "nothing of it is left");
        let messages = vec![world.message(0, true)];
        let commit = ToShard::Commit { reply: ME, messages, settlements: Vec::new() };
        assert!(seen(world.out(commit)).0.is_empty(), "who commits may be told that it failed");
        assert!(seen(world.put(3, true)).0.is_empty(), "it is behind those");
        world.write();
        assert_eq!(seen(world.agreed()).0.len(), 2);
        assert_eq!(seen(world.put(4, true)).0.len(), 1);
    }
}

/// A message leaves one queue for another message, and a consumer of its other queue acks it. That it left the first one may be undone with the
/// end of the log, and the message is there no more: so its publisher is told when others agree.
#[test]
fn an_ack_does_not_confirm_what_another_queue_may_not_have_dropped() {
    let mut world = World::with(
        Some(Moment::default()),
        [("x-deliver-before-commit".to_owned(), Value::Bool(true))].into_iter().collect(),
    );
    world.log.hand().reads_agreed = true;
    world.agree();
    let spec = QueueSpec {
        vhost: world.topology.vhost("/").expect("there").id,
        name: "short",
        server_named: false,
        durable: true,
        auto_delete: false,
        exclusive_owner: None,
        arguments: [("x-max-length".to_owned(), Value::I32(1))].into_iter().collect(),
    };
    let short = world.topology.declare_queue(spec).expect("declared").id;
    let (queue, get) = (world.queue, |queue| ToShard::Get { reply: ME, queue, no_ack: false });
    let first = got(world.turn(get(queue)));
    world.out(ack(&first));
    world.write();
    world.agree();
    let to_both =
        Publish { targets: [queue, short].into_iter().collect(), ..world.message(2, true) };
    world.out(ToShard::Publish { from: ME.connection, messages: vec![to_both] });
    let given = got(world.turn(get(queue)));
    let other = Publish { targets: [short].into_iter().collect(), ..world.message(3, true) };
    world.out(ToShard::Publish { from: ME.connection, messages: vec![other] });
    let told = seen(world.out(ack(&given))).1;
    assert!(told.is_empty(), "nobody else knows of the other one: {told:?}");
    world.write();
    assert_eq!(seen(world.agreed()).1, [2]);
}

/// The same of one that a transaction acks: without its other part it is not acked.
#[test]
fn an_ack_in_a_transaction_confirms_once_others_agree() {
    let argument = ("x-deliver-before-commit".to_owned(), Value::Bool(true));
    let mut world = World::with(Some(Moment::default()), [argument].into_iter().collect());
    world.log.hand().reads_agreed = true;
    world.agree();
    world.purge();
    world.write();
    world.agree();
    let queue = world.queue;
    world.put(2, true);
    let given = got(world.turn(ToShard::Get { reply: ME, queue, no_ack: false }));
    let settlements = vec![settlement(&given, Settle::Ack)];
    let messages = vec![world.message(0, true)];
    let told = seen(world.out(ToShard::Commit { reply: ME, messages, settlements })).1;
    assert!(told.is_empty(), "nobody else knows of it: {told:?}");
    world.write();
    assert_eq!(seen(world.agreed()).1, [2]);
}

/// A shard stops while acks wait for their turn: these are done, and their publishers are told.
#[test]
fn acks_that_wait_confirm_when_the_shard_closes() {
    let arguments = [("x-confirm-on".to_owned(), Value::LongStr("ack".into()))];
    let mut world = World::with(None, arguments.into_iter().collect());
    let queue = world.queue;
    for confirm in 2..5 {
        world.put(confirm, true);
    }
    let get = ToShard::Get { reply: ME, queue, no_ack: false };
    let given: Vec<_> = (0..4).map(|_| got(world.turn(get.clone()))).collect();
    world.shard.set_limits(Limits { turn: 1, share: 1 });
    let settlements = given.iter().map(|of| settlement(of, Settle::Ack)).collect();
    let mut confirmed = seen(world.out(ToShard::Settle { from: ME.connection, settlements })).1;
    assert!(confirmed.len() < 4, "{confirmed:?}");
    world.shard.close();
    confirmed.append(&mut seen(world.out(ToShard::LogWoke)).1);
    confirmed.sort_unstable();
    assert_eq!(confirmed, [1, 2, 3, 4]);
}

/// What sessions elsewhere are told of their accounts is about room, and no batch is made for it.
#[test]
fn states_of_accounts_wait_for_nobody() {
    let mut world = World::new(Some(Moment::default()));
    world.agree();
    world.put(0, true);
    let syncs = world.log.hand().syncs;
    let consume = world.consume(None);
    let out = world.out(consume);
    let is_state = |letter: &ToSession| matches!(letter, ToSession::AllowanceStates { .. });
    assert!(out.sessions.iter().any(|(_, letter)| is_state(letter)), "{out:?}");
    assert_eq!((world.shard.held_turns(), world.log.hand().syncs), (0, syncs));
}

/// What was purged is let go in pieces, in later turns: the answer waits for the last one.
#[test]
fn a_purge_is_answered_when_all_of_it_is_let_go() {
    let mut world = World::new(Some(Moment::default()));
    for _ in 0..3 {
        world.publish();
    }
    world.agree();
    world.shard.set_limits(Limits { turn: 1, share: 1 });
    assert!(world.purge().is_empty());
    world.write();
    assert!(world.shard.has_work(), "one turn has not let all of it go");
    let told = world.agree();
    assert!(told.is_empty(), "others know of a part of it: {told:?}");
    while world.shard.has_work() {
        let told = world.turn(ToShard::Continue);
        assert!(told.is_empty(), "{told:?}");
    }
    world.write();
    let told = world.agree();
    assert!(matches!(told[..], [Reply::Purged(4)]), "{told:?}");
}

/// Whoever has the names hears of a deletion when it cannot be undone, and answers then: to AMQP, HTTP and for a vhost
/// or a connection alike.
#[test]
fn a_deletion_is_told_when_it_cannot_be_undone() {
    let mut world = World::new(Some(Moment::default()));
    world.agree();
    let delete = ToShard::Delete {
        by: Box::default(),
        reply: Some(ME),
        queue: world.queue,
        if_unused: false,
        if_empty: false,
    };
    let out = world.out(delete);
    assert!(out.meta.is_empty() && out.sessions.is_empty(), "nobody else knows of it: {out:?}");
    while world.log.hand().finish() {
        let out = world.out(ToShard::LogWoke);
        assert!(out.meta.is_empty() && out.sessions.is_empty(), "it is on one disk: {out:?}");
    }
    let out = world.agreed();
    let [ToMeta::QueueGone { queue, reply: Some((ME, 1)), .. }] = out.meta[..] else {
        panic!("{out:?}");
    };
    assert_eq!(queue, world.queue);
}

/// What others did not agree to was never done: what was stored is gone, what was settled is back, what was asked for is
/// refused. What a connection had that was cut off is another's now, and it settles nothing.
#[test]
fn a_log_that_loses_its_end() {
    let mut world = World::new(Some(Moment::default()));
    world.publish();
    world.agree();
    let kept = world.log.crash();
    let moment = kept.moment();
    kept.hand().agreed = Some(moment);
    kept.hand().cold.clear();
    let queue = world.queue;
    let get = |reply| ToShard::Get { reply, queue, no_ack: false };
    let first = got(world.turn(get(ME)));
    let second = got(world.turn(get(ME)));
    assert!(!first.redelivered && !second.redelivered);
    world.turn(ack(&first));
    world.publish();
    assert!(world.purge().is_empty(), "nobody else knows of it");

    let mut out = Outbox::default();
    let decided = Decided::default();
    let World { shard, topology, now, .. } = &mut world;
    let restored = shard.lose(
        kept.clone(),
        Users::AreCutOff(&[ME.connection]),
        topology,
        &decided,
        *now,
        &mut out,
    );
    assert_eq!((restored.messages, shard.held_turns()), (2, 0));
    let told = &out.sessions[..];
    let [(_, ToSession::Reply { reply: Reply::Refused { .. }, .. })] = told else {
        panic!("{told:?}");
    };
    world.log = kept;
    let told = world.turn(get(ME));
    assert!(matches!(told[..], [Reply::Refused { .. }]), "whoever waits is told: {told:?}");
    let other = ReplyTo { connection: NodeId::ALONE.connection(2), channel: 1 };
    let [first_again, second_again] = [&first, &second].map(|before| {
        let again = got(world.turn(get(other)));
        assert_eq!((again.offset, again.redelivered), (before.offset, true));
        world.turn(ack(before));
        again
    });
    let counts = world.shard.queues().next().expect("a queue").1.counts();
    assert_eq!((counts.ready, counts.unacked), (0, 2), "they are the other's");
    // Whoever came later is heard: what he was given and never saw goes back. So is another node, which lost nothing.
    let third = ReplyTo { connection: NodeId::new(2).expect("a node").connection(1), channel: 1 };
    for (from, of) in [(other, second_again), (third, first_again)] {
        let settlements = vec![settlement(&of, Settle::Requeue { counts: false })];
        world.turn(ToShard::Settle { from: from.connection, settlements });
    }
    let counts = world.shard.queues().next().expect("a queue").1.counts();
    assert_eq!((counts.ready, counts.unacked), (2, 0));
    assert_eq!(got(world.turn(get(third))).offset, first.offset);
    assert_eq!(got(world.turn(get(third))).offset, second.offset);
    // Numbering goes on.
    world.publish();
    world.agree();
    assert_eq!(got(world.turn(get(other))).offset.get(), second.offset.get() + 1);
}

fn got(told: Vec<Reply>) -> Delivery {
    match told.into_iter().next() {
        Some(Reply::Got { delivery, .. }) => delivery,
        other => panic!("{other:?}"),
    }
}

#[test]
fn answers_keep_their_order() {
    let mut world = World::new(Some(Moment::default()));
    world.agree();
    assert!(world.purge().is_empty());
    assert!(world.purge().is_empty(), "it finds nothing, because of the one before");
    world.write();
    let told = world.agree();
    assert!(matches!(told[..], [Reply::Purged(1), Reply::Purged(0)]), "{told:?}");
}

#[test]
fn a_log_without_others_is_answered_for_at_once() {
    let mut world = World::new(None);
    assert!(matches!(world.purge()[..], [Reply::Purged(1)]));
}

/// Whether a message goes to the disk at once, or after a while though nobody asks for it; and whether its publisher is told
/// before that.
fn becomes_of(mut world: World, confirm: u64, persistent: bool) -> (bool, bool) {
    let bytes = world.log.hand().written_bytes;
    let told = world.put(confirm, persistent);
    for _ in 0..50 {
        world.now = world.now.after_ms(10);
        world.turn(ToShard::LogWoke);
        world.write();
    }
    let is_written = world.log.hand().written_bytes > bytes;
    let is_told = |(_, letter): &(_, ToSession)| matches!(letter, ToSession::Confirm { .. });
    (is_written, told.sessions.iter().any(is_told))
}

/// Who is told that a message is stored is told that a majority has it, whatever its delivery mode: it is written, and told of
/// then. What nobody waits for is not, but in a quorum queue.
#[test]
fn transient_messages_are_stored_where_others_have_the_log() {
    let quorum = || {
        let mut arguments = Table::default();
        arguments.set("x-queue-type", Value::LongStr("quorum".into()));
        arguments
    };
    let agreed = Some(Moment::default());
    assert_eq!(becomes_of(World::new(agreed), 2, false), (true, false));
    assert_eq!(becomes_of(World::new(agreed), 0, false), (false, false));
    assert_eq!(becomes_of(World::with(agreed, quorum()), 0, false), (true, false));
    assert_eq!(becomes_of(World::with(agreed, quorum()), 2, false), (true, false));
    // Alone it is as ever.
    assert_eq!(becomes_of(World::new(None), 2, false), (false, true));
    assert_eq!(becomes_of(World::with(None, quorum()), 2, false), (false, true));
    assert_eq!(becomes_of(World::new(None), 2, true), (true, false));
}
