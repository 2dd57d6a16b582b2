//! Consumers come and go, `basic.get`, and the dispatch of a touched queue.
//!
//! Hot path ([`Shard::dispatch`]): one read of the log and one push per delivery.

use std::sync::Arc;

use bytes::Bytes;
use leveret_amqp::reply::ReplyCode;
use leveret_amqp::table::Table;
use leveret_log::{Log, ReadError};
use leveret_queue::{ConsumerSpec, Deliver, Offset, Record, Time};
use leveret_topology::{Event, GroupId, QueueId, Topology};

use super::jobs::{Job, JobOrigin, cost};
use super::ports::{Consumer, Listed, Ports};
use super::queues::DISPATCH_BUDGET;
use super::store::{Parked, Store};
use super::{Counters, Shard, describe};
use crate::message::{
    Allowance, ConnectionId, ConsumerSlot, Delivery, NodeId, Outbox, Reply, ReplyTo, ToShard,
};

/// What `basic.get` finds.
enum Found {
    Record(Bytes),
    Nothing,
    /// It has to come first: from the disk, or by agreement.
    ToCome(Offset),
    /// It was set aside: the next one may do.
    Damaged,
    /// The log has it, and the queue has no entry of it yet.
    Late,
}

impl<L: Log> Shard<L> {
    /// `basic.consume`. Takes the whole letter, which has more fields than a call should.
    pub(super) fn consume(
        &mut self,
        letter: ToShard,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) {
        let ToShard::Consume {
            user,
            reply,
            queue: id,
            slot,
            tag,
            no_ack,
            exclusive,
            priority,
            prefetch,
            gate,
            arguments,
        } = letter
        else {
            return;
        };
        let number = self.ports.next_number();
        let key = self.ports.next_key();
        if self.hosted(id, topology, now).is_none() {
            out.reply(reply, Reply::Gone);
            return;
        }
        let gate = gate.unwrap_or_else(|| self.allowances.gate(reply));
        let Some(hosted) = self.queues.get_mut(id) else { return };
        let key64 = u64::from(key);
        let spec = ConsumerSpec { key: key64, no_ack, exclusive, priority, prefetch, gate };
        match hosted.queue.add_consumer(spec, now) {
            Ok(consumer) => {
                let facts = Listed { tag, no_ack, prefetch, arguments };
                let ReplyTo { connection, channel } = reply;
                if let Some(hosted) = self.queues.get_mut(id) {
                    let of_queue = &mut hosted.consumers;
                    self.ports.add(connection, channel, slot, id, consumer, facts, of_queue);
                }
                self.tell_consumer_created(key, exclusive, &user, topology, out);
                out.reply(reply, Reply::Consuming { number });
                self.queues.touch(id);
            }
            Err(_in_use) => {
                self.allowances.left(reply.connection, reply.channel);
                let text = match topology.queue_by_id(id) {
                    Some(queue) => format!("{} in exclusive use", describe(queue, topology)),
                    None => "queue in exclusive use".to_owned(),
                };
                out.reply(reply, Reply::Refused { code: ReplyCode::AccessRefused, text });
            }
        }
    }

    /// `basic.cancel`. The answer comes after every delivery made before.
    #[expect(clippy::too_many_arguments, reason = "the letter's fields and the turn's")]
    pub(super) fn cancel(
        &mut self,
        user: &str,
        reply: Option<ReplyTo>,
        connection: ConnectionId,
        slot: ConsumerSlot,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) {
        let is_closing = reply.is_none();
        let key = self.ports.find(connection, slot);
        let last =
            key.and_then(|key| self.remove_consumer(key, user, is_closing, topology, now, out));
        if let Some(reply) = reply {
            self.ports.flush(connection, out);
            out.reply(reply, Reply::Cancelled { slot });
        }
        if let Some(last) = last {
            self.auto_delete(&last, is_closing, topology, now, out);
        }
    }

    /// Takes a consumer out of its queue. It is given back when the queue has none left now.
    fn remove_consumer(
        &mut self,
        key: u32,
        user: &str,
        is_closing: bool,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) -> Option<Consumer> {
        self.jobs.pay(cost::CONSUMER);
        let consumer = self.ports.consumer(key)?;
        // What the queue meant for it already is handed out, not taken back. But what is handed out to a
        // channel that closes only comes back if it is to be acked: otherwise nobody would ever see it.
        if !is_closing || !consumer.facts.no_ack {
            self.dispatch(consumer.queue, now);
        }
        let queue = self.ports.consumer(key)?.queue;
        let Some(hosted) = self.queues.get_mut(queue) else {
            self.end_consumer(key, queue, now, out);
            return None;
        };
        let consumer = self.ports.remove(key, &mut hosted.consumers)?;
        self.allowances.left(consumer.connection, consumer.channel);
        tell_consumer_deleted(&consumer, user, names(queue, topology).as_ref(), out);
        let removed = self.queues.change(queue, |hosted, left| {
            let removed = hosted.queue.remove_consumer(consumer.id, now, left);
            (removed.is_some_and(|removed| removed.resume), hosted.consumers.is_empty())
        });
        let (resumes, is_last) = removed.unwrap_or_default();
        if resumes {
            self.resume(consumer.connection);
        }
        is_last.then_some(consumer)
    }

    /// A consumer of a connection that ended goes, and with it perhaps an auto-delete queue.
    pub(super) fn consumer_gone(
        &mut self,
        connection: ConnectionId,
        key: u32,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) {
        // Its queue may have been deleted meanwhile, and the key may be another consumer's now.
        let consumer = self.ports.consumer(key).filter(|it| it.connection == connection);
        if consumer.is_some()
            && let Some(last) = self.remove_consumer(key, "", true, topology, now, out)
        {
            self.auto_delete(&last, true, topology, now, out);
        }
    }

    /// The connection ended, and its consumers are gone.
    pub(super) fn disconnected(
        &mut self,
        connection: ConnectionId,
        reply: Option<ReplyTo>,
        out: &mut Outbox,
    ) {
        // What this turn gave to its consumers before the news came: sent all the same, so that whoever
        // finds the connection gone returns it.
        self.ports.flush(connection, out);
        self.ports.forget(connection);
        self.allowances.forget(connection);
        self.store.forget(connection);
        self.jobs.forget_pause(connection);
        self.histories.forget_pause(connection);
        if let Some(reply) = reply {
            out.reply(reply, Reply::Done);
        }
    }

    /// A session elsewhere allows its consumers more, or less.
    #[cold]
    pub(super) fn allow(&mut self, connection: ConnectionId, allowances: &[Allowance]) {
        self.jobs.pay(allowances.len() as u64 / cost::LOOKED_AT_A_UNIT);
        let resumes = self.allowances.hear(connection, allowances, self.streams.term());
        // When the term begins all are looked at.
        if resumes && !self.attaching.is_on() {
            self.resume(connection);
            self.ports.resumed(connection, Vec::new());
        }
    }

    /// The link to a node is new, and perhaps some of what was said over the last one was lost: what its sessions allow is told
    /// at the end of the next turn, and whoever allowed something else says it again.
    pub fn link_is_new(&mut self, node: NodeId) {
        self.allowances.tell_again(node);
    }

    /// A gate of the connection opened: its consumers may be given more.
    pub(super) fn resume(&mut self, connection: ConnectionId) {
        let consumers = self.ports.consumers_of(connection);
        let mut by_queue: Vec<_> = consumers.map(|it| (it.queue, it.id)).collect();
        by_queue.sort_by_key(|&(queue, _)| queue);
        for run in by_queue.chunk_by(|(a, _), (b, _)| a == b) {
            let Some(&(queue, _)) = run.first() else { continue };
            let mut ids: Vec<_> = run.iter().map(|&(_, id)| id).collect();
            let Some(hosted) = self.queues.get_mut(queue) else { continue };
            hosted.queue.resume_all(&mut ids);
            if !hosted.reading.waits() {
                self.queues.touch(queue);
            }
        }
    }

    /// `basic.get`.
    pub(super) fn get(
        &mut self,
        reply: ReplyTo,
        id: QueueId,
        no_ack: bool,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) {
        if self.hosted(id, topology, now).is_none() {
            out.reply(reply, Reply::Gone);
            return;
        }
        if self.has_letters_first(id, now) {
            if self.exits.has_line(id) {
                self.exits.wait_behind_line(id, reply, no_ack);
            } else {
                self.get_later(reply, id, no_ack, out);
            }
            return;
        }
        if self.queues.call(id, |hosted, left| hosted.queue.expire(now, left)) == Some(true) {
            // So many have expired that the next one is not found in this turn.
            self.queues.touch(id);
            self.get_later(reply, id, no_ack, out);
            return;
        }
        // Older messages go to consumers first, all they can take, and reach their connection first: one
        // channel may both consume and get. What they were given may be from before this letter.
        if self.queues.get(id).is_some_and(|hosted| hosted.queue.wants_dispatch())
            && self.dispatch_some(id, DISPATCH_BUDGET.into(), now)
        {
            self.queues.touch(id);
            self.get_later(reply, id, no_ack, out);
            return;
        }
        self.ports.flush(reply.connection, out);
        for _ in 0..DISPATCH_BUDGET {
            match self.next_at_hand(id, now) {
                Found::Nothing => {
                    self.take_out(reply, id, no_ack, None, now, out);
                    return;
                }
                Found::Record(record) => {
                    self.take_out(reply, id, no_ack, Some(record), now, out);
                    return;
                }
                Found::ToCome(at) => {
                    self.store.park(at, Parked::Letter(ToShard::Get { reply, queue: id, no_ack }));
                    return;
                }
                Found::Damaged => {}
                // Whoever asked hears of the failure.
                Found::Late if self.late.has_failed() => return,
                Found::Late => {
                    self.bring_late();
                    let expired = self.queues.call(id, |it, left| it.queue.expire(now, left));
                    if expired == Some(true) || self.is_at_rest(id) {
                        break;
                    }
                }
            }
        }
        // So many were set aside, have expired or are to come before it that the rest is for the next turn.
        self.queues.touch(id);
        self.get_later(reply, id, no_ack, out);
    }

    /// `basic.get` goes on when others had their turn: its client waits for it, and brings nothing meanwhile.
    #[cold]
    pub(super) fn get_later(
        &mut self,
        reply: ReplyTo,
        queue: QueueId,
        no_ack: bool,
        out: &mut Outbox,
    ) {
        let letter = Box::new(ToShard::Get { reply, queue, no_ack });
        let line = JobOrigin::Connection(reply.connection);
        self.jobs.wait_in(line, Job::Letter(letter), cost::LETTER, out);
    }

    /// Whether the message that `basic.get` takes next can be read. One that is damaged is set aside.
    fn next_at_hand(&mut self, id: QueueId, now: Time) -> Found {
        let next = self.queues.call(id, |hosted, left| {
            let next = hosted.queue.next_to_get(now, left)?;
            // What consumers were given and cannot be read yet goes out before it, too.
            Some((hosted.queue.next_early(), next))
        });
        let Some((first, next)) = next.flatten() else {
            return if self.is_at_rest(id) { Found::Late } else { Found::Nothing };
        };
        let before_commit = self.queues.give_before_commit(id);
        let read = |at| self.store.read_to_give(at, before_commit);
        let is_to_come = |at: &Offset| read(*at).is_err_and(|error| error.is_to_come());
        if let Some(first) = first.filter(is_to_come) {
            return Found::ToCome(first);
        }
        match read(next) {
            Ok(record) => Found::Record(record.bytes),
            Err(error) if error.is_to_come() => Found::ToCome(next),
            Err(error) => {
                self.note_aside(id, next, error);
                if let Some(hosted) = self.queues.get_mut(id) {
                    hosted.queue.set_next_aside();
                }
                Found::Damaged
            }
        }
    }

    /// Answers `basic.get` with the next message, which is `record`; with none there is no message.
    fn take_out(
        &mut self,
        reply: ReplyTo,
        id: QueueId,
        no_ack: bool,
        record: Option<Bytes>,
        now: Time,
        out: &mut Outbox,
    ) {
        let got = self.queues.change(id, |hosted, left| hosted.queue.get(now, no_ack, left));
        let Some(mut got) = got else { return };
        if let Some(found) = got.as_mut().filter(|_| self.is_at_rest(id)) {
            found.remaining = self.remaining(id, now);
        }
        let answer = match got.zip(record) {
            None => Reply::GotNothing,
            Some((found, record)) => {
                self.counters.delivered += 1;
                self.store.taken(found.offset);
                let delivery = Delivery {
                    slot: ConsumerSlot(0),
                    queue: id,
                    home: self.group,
                    unacked: found.unacked,
                    offset: found.offset,
                    redelivered: found.redelivered,
                    delivery_count: found.delivery_count,
                    record,
                };
                Reply::Got { delivery, remaining: found.remaining }
            }
        };
        out.reply(reply, answer);
    }

    /// Ready messages of a queue whose next one is to come, without those before one that can be had still.
    #[cold]
    fn remaining(&mut self, id: QueueId, now: Time) -> u64 {
        for _ in 0..self.late.brings_for_head() {
            if !self.is_at_rest(id) {
                break;
            }
            self.bring_late();
            self.queues.change(id, |hosted, left| hosted.queue.expire(now, left));
        }
        self.queues.get(id).map_or(0, |hosted| hosted.queue.counts().ready)
    }

    /// Gives a queue's consumers what they may take, and sets its timer: before something that has to see what is
    /// ready then. If there is more for them than a queue gives in one go, it is touched.
    pub(super) fn dispatch(&mut self, id: QueueId, now: Time) {
        if self.has_letters_first(id, now) {
            self.queues.touch(id);
            return;
        }
        let mut more = self.dispatch_some(id, DISPATCH_BUDGET.into(), now);
        for _ in 0..self.late.brings_for_head() {
            if more || !self.is_at_rest(id) {
                break;
            }
            self.bring_late();
            more = self.dispatch_some(id, DISPATCH_BUDGET.into(), now);
        }
        if more {
            self.queues.touch(id);
        }
    }

    /// The same, for about so many units of work. Whether there is more.
    pub(super) fn dispatch_some(&mut self, id: QueueId, allowed: u64, now: Time) -> bool {
        let Self { group, queues, store, ports, counters, .. } = self;
        let (record, damaged) = (Bytes::new(), Vec::new());
        let home = *group;
        let before_commit = queues.give_before_commit(id);
        let mut to = DeliverySink {
            queue: id,
            home,
            before_commit,
            store,
            ports,
            counters,
            record,
            damaged,
        };
        let dispatched = queues.dispatch(id, allowed, now, &mut to);
        let Some((hosted, dispatched)) = dispatched else { return false };
        let damaged = to.damaged;
        self.jobs.pay(cost::DISPATCH + cost::DELIVER * u64::from(dispatched.delivered));
        if store.is_awaited_in(hosted.awaited_in)
            && hosted.queue.has_ready()
            && !dispatched.more
            && (hosted.consumers.is_empty() || !hosted.odds.takes_soon())
        {
            // Its publisher waits, and no consumer has it, or soon will, that could ack it.
            store.ask_for_all();
        }
        if hosted.reading.delivered(dispatched.delivered) {
            store.read_ahead(&hosted.queue, &mut hosted.reading);
        }
        if dispatched.waits {
            store.wait_for_next(id, &hosted.queue, &mut hosted.reading);
        }
        for (at, error) in damaged {
            self.note_aside(id, at, error);
        }
        dispatched.more
    }

    fn tell_consumer_created(
        &self,
        key: u32,
        exclusive: bool,
        user: &str,
        topology: &Topology,
        out: &mut Outbox,
    ) {
        let Some(consumer) = self.ports.consumer(key) else { return };
        let Some(names) = names(consumer.queue, topology) else { return };
        let event = about_consumer("consumer.created", consumer, &names);
        let facts = &consumer.facts;
        out.events.push(
            event
                .with("exclusive", exclusive)
                .with("ack_required", !facts.no_ack)
                .with("prefetch_count", i64::from(facts.prefetch))
                .with("arguments", Table::clone(&facts.arguments))
                .by(user),
        );
    }
}

/// Those of a queue and its vhost, for events. None when nobody wants to know, or the queue went with its vhost.
pub(super) fn names(queue: QueueId, topology: &Topology) -> Option<Names> {
    if !topology.wants_events() {
        return None;
    }
    let queue = topology.queue_by_id(queue)?;
    let vhost = topology.vhost_by_id(queue.vhost)?;
    Some(Names { queue: Arc::clone(&queue.name), vhost: Arc::clone(&vhost.name) })
}

/// What events call a queue.
#[derive(Debug)]
pub(super) struct Names {
    queue: Arc<str>,
    vhost: Arc<str>,
}

/// `user` ended it; the broker itself with an empty name, as when its channel closes.
pub(super) fn tell_consumer_deleted(
    consumer: &Consumer,
    user: &str,
    names: Option<&Names>,
    out: &mut Outbox,
) {
    let event = names.map(|names| about_consumer("consumer.deleted", consumer, names).by(user));
    out.events.extend(event);
}

fn about_consumer(name: &'static str, consumer: &Consumer, names: &Names) -> Event {
    let channel = consumer.connection.channel_pid(consumer.channel);
    Event::new(name)
        .with("consumer_tag", &*consumer.facts.tag)
        .with("channel", &*channel)
        .with("queue", &*names.queue)
        .with("vhost", &*names.vhost)
}

/// Where a queue's deliveries go: each with its record, into the batch of its connection.
struct DeliverySink<'a, L> {
    queue: QueueId,
    home: GroupId,
    /// Not agreed upon yet is no reason to wait.
    before_commit: bool,
    store: &'a mut Store<L>,
    ports: &'a mut Ports,
    counters: &'a mut Counters,
    /// Of the message that was asked for last.
    record: Bytes,
    /// Those that were set aside.
    damaged: Vec<(Offset, ReadError)>,
}

impl<L: Log> Deliver for DeliverySink<'_, L> {
    #[inline]
    fn look(&mut self, offset: Offset) -> Record {
        match self.store.read_to_give(offset, self.before_commit) {
            Ok(record) => {
                self.record = record.bytes;
                Record::AtHand
            }
            Err(error) if error.is_to_come() => Record::ToCome,
            Err(error) => {
                self.damaged.push((offset, error));
                Record::Damaged
            }
        }
    }

    #[inline]
    fn deliver(&mut self, found: leveret_queue::Delivery) {
        self.counters.delivered += 1;
        self.store.taken(found.offset);
        let record = std::mem::take(&mut self.record);
        self.ports.deliver(found.consumer_key, |slot| Delivery {
            slot,
            queue: self.queue,
            home: self.home,
            unacked: found.unacked,
            offset: found.offset,
            redelivered: found.redelivered,
            delivery_count: found.delivery_count,
            record,
        });
    }
}
