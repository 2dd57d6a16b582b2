//! Queues are made, counted, purged, deleted and listed.

use leveret_amqp::reply::ReplyCode;
use leveret_log::Log;
use leveret_queue::{Backlog, Queue, Time};
use leveret_topology::{
    By, ConfirmOn, ConfirmOptions, Queue as NamedQueue, QueueId, ReplicationConfirm, Topology,
};

use super::consume::names;
use super::jobs::{Job, JobOrigin, cost};
use super::numbers::kind_of;
use super::ports::Consumer;
use super::settle::Pays;
use super::store::Waiter;
use super::{Shard, describe};
use crate::message::{ConnectionId, ConsumerSlot, Outbox, Reply, ReplyTo, ToMeta, ToSession};
use crate::meta::{DELETION_ROOM, no_room};

/// Who had a queue deleted: nobody in particular, if it is not given.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) by: Box<By>,
    pub(super) reply: Option<ReplyTo>,
}

/// Consumers that are told in one go with whoever deleted the queue.
const TOLD_AT_ONCE: usize = 64;

impl<L: Log> Shard<L> {
    /// From Meta: the queue was declared.
    pub(super) fn create(
        &mut self,
        reply: Option<ReplyTo>,
        id: QueueId,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) {
        self.hosted(id, topology, now);
        if let Some(reply) = reply {
            self.count(reply, id, topology, now, out);
        }
    }

    /// `queue.declare` of a queue that exists: its counts. Using a queue keeps it from expiring.
    ///
    /// Here as in [`purge`](Self::purge) and [`delete`](Self::delete): what came in this turn and finds
    /// a consumer is not ready, as if it had come in a turn of its own.
    pub(super) fn count(
        &mut self,
        reply: ReplyTo,
        id: QueueId,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) {
        self.dispatch(id, now);
        let answer = match self.hosted(id, topology, now) {
            None => Reply::Gone,
            Some(hosted) => {
                hosted.queue.touch(now);
                let counts = hosted.queue.counts();
                Reply::Declared {
                    queue: id,
                    messages: counts.ready,
                    consumers: counts.consumers as u64,
                }
            }
        };
        out.reply(reply, answer);
        self.queues.look_at_timer(id);
    }

    /// A policy changed what the queue may hold, or how long.
    pub(super) fn options_changed(&mut self, id: QueueId, topology: &Topology, now: Time) {
        let Some(queue) = topology.queue_by_id(id) else { return };
        let options = queue.options();
        if self.changes_later(id) {
            return;
        }
        let confirm = queue.confirm_options();
        if let Some(was) = self.queues.set_confirm(id, confirm) {
            if waits_for_consumers(&was) && !waits_for_consumers(&confirm) {
                self.free_waiting(id, confirm.replication);
            }
            let [before, after] = [was, confirm].map(|it| it.replication);
            if before == ReplicationConfirm::All && after != before {
                self.free_from_all(id);
            }
        }
        self.queues.change(id, |hosted, left| hosted.queue.set_options(options, now, left));
    }

    /// The queue waits for its consumers no more: publishers of what is in it are told as soon as it is on the disk, or
    /// at once if it is never to be there. What is forgotten when it is handed out waits for its ack.
    #[cold]
    fn free_waiting(&mut self, id: QueueId, replication: ReplicationConfirm) {
        let Self { queues, confirms, store, streams, .. } = self;
        let Some(hosted) = queues.get(id).filter(|_| !confirms.is_empty()) else { return };
        let (mut kept, mut end) = (Vec::new(), 0);
        hosted.queue.each_kept(|at, persistent| {
            if !confirms.begin_to_free(at.get(), id) {
                return;
            }
            if !(persistent && hosted.is_durable) {
                confirms.freed(at.get(), id, false);
                return;
            }
            // One that cannot be made durable waits as before.
            if let Ok(until) = store.persist(at) {
                end = until.max(end);
                kept.push(at.get());
                streams.goes(at, true);
            }
        });
        if kept.is_empty() {
            return;
        }
        store.persist_all(end);
        match replication {
            ReplicationConfirm::All if store.has_others() => {
                store.wait_for_all(end, vec![id], Waiter::Freed(id, kept));
            }
            _ => store.wait(end, Waiter::Freed(id, kept)),
        }
    }

    /// The queue waits for all members in contact no more: publishers of what is in it, and who committed, are told as soon as a majority has
    /// it. What has left it waits as before.
    #[cold]
    fn free_from_all(&mut self, id: QueueId) {
        let Self { queues, confirms, store, .. } = self;
        store.wait_for_majority(|ids| queues.is_one_for_all(ids));
        let Some(hosted) = queues.get(id).filter(|_| confirms.wait_for_all()) else { return };
        hosted.queue.each_kept(|at, _| confirms.wants_majority(at.get()));
    }

    /// These are on the disk, and their queue waits for nothing else.
    pub(super) fn free(&mut self, id: QueueId, messages: &[u64]) {
        for &at in messages {
            self.confirms.freed(at, id, true);
        }
    }

    /// `queue.purge`, or an operator's: the ready messages go that `take` takes out; unacked ones stay.
    pub(super) fn purge(
        &mut self,
        reply: ReplyTo,
        id: QueueId,
        take: impl FnOnce(&mut Queue) -> Backlog,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) {
        if self.hosted(id, topology, now).is_none() {
            out.reply(reply, Reply::Gone);
            return;
        }
        // What came in this turn and found a consumer is not ready any more.
        if !self.bring_all(id) {
            return;
        }
        self.dispatch(id, now);
        let backlog = self.queues.change(id, |hosted, _| take(&mut hosted.queue));
        let Some(backlog) = backlog else { return };
        let messages = backlog.ready();
        self.let_go(id, backlog, out);
        if self.store.has_others() {
            // They are released in later turns, and nobody may be told before others have that.
            self.jobs.wait_in(JobOrigin::Leaving, Job::Purged(reply, messages), cost::LEFT, out);
        } else {
            out.reply(reply, Reply::Purged(messages));
        }
    }

    /// `queue.delete`, or the end of an exclusive queue.
    #[expect(clippy::too_many_arguments, reason = "the letter's fields and the turn's")]
    pub(super) fn delete(
        &mut self,
        asked: Asked,
        id: QueueId,
        if_unused: bool,
        if_empty: bool,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) {
        self.dispatch(id, now);
        let Some(hosted) = self.hosted(id, topology, now) else {
            // Deleted by somebody else a moment ago; the topology may still have the name.
            if let Some(reply) = asked.reply {
                out.reply(reply, Reply::Gone);
            }
            return;
        };
        let counts = hosted.queue.counts();
        // That its name is gone could not be written.
        if let Some(reply) = asked.reply
            && self.store.last_room() < DELETION_ROOM
            && topology.queue_by_id(id).is_some_and(|it| it.durable && it.exclusive_owner.is_none())
        {
            out.reply(reply, no_room());
            return;
        }
        let refused = if if_unused && counts.consumers > 0 {
            Some("in use")
        } else if if_empty && counts.ready > 0 {
            Some("not empty")
        } else {
            None
        };
        match (refused, asked.reply) {
            (None, _) => {
                if asked.reply.is_none() {
                    say_owner_gone(id, topology);
                }
                self.delete_for_good(id, asked, topology, now, out);
            }
            (Some(why), Some(reply)) => {
                let name = topology
                    .queue_by_id(id)
                    .map_or_else(|| "queue".to_owned(), |queue| describe(queue, topology));
                let text = format!("{name} {why}");
                out.reply(reply, Reply::Refused { code: ReplyCode::PreconditionFailed, text });
            }
            (Some(_), None) => {}
        }
    }

    /// Lets every message of the queue go, tells its consumers, and has the name taken away.
    pub(super) fn delete_for_good(
        &mut self,
        id: QueueId,
        asked: Asked,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) {
        // What left it before is a dead letter, and what left with it is not.
        self.work_off_left(Pays::Nobody, topology, now, out);
        if !self.bring_all(id) {
            return;
        }
        let Some(mut hosted) = self.queues.remove(id, asked.reply) else { return };
        if !self.attaching.is_over() {
            self.attaching.queue_gone(id);
        }
        let ready = hosted.queue.counts().ready;
        // What left it before goes on without it, when its turn comes.
        let (named, kind) = (topology.queue_by_id(id), kind_of(&hosted));
        let describe = |queue: &leveret_topology::Queue| describe(queue, topology);
        for by in self.exits.queue_gone(named, id, kind, describe) {
            if let Some(moving) = self.exits.give_up_move(by) {
                out.reply(moving.reply, Reply::Gone);
            }
        }
        let backlog = hosted.queue.drain_all();
        self.keep_totals(&hosted);
        self.let_go(id, backlog, out);
        let waits = waits_for_consumers(&hosted.confirm);
        let names = names(id, topology);
        self.ports.end_queue(id, hosted.queue, hosted.consumers, names, &asked.by.user);
        let (consumers, more) = self.end_first_consumers(id, now, out);
        if waits {
            self.confirms.queue_gone(id);
        }
        let Asked { by, reply } = asked;
        let reply = reply.map(|reply| (reply, ready));
        out.meta.push(ToMeta::QueueGone { by, queue: id, reply, consumers, more });
    }

    /// The queue is deleted. Names its first consumers, and tells whether there are more.
    fn end_first_consumers(
        &mut self,
        id: QueueId,
        now: Time,
        out: &mut Outbox,
    ) -> (Vec<(ConnectionId, ConsumerSlot)>, bool) {
        let mut first = Vec::new();
        while first.len() < TOLD_AT_ONCE
            && let Some(gone) = self.end_next_consumer(id, now, out)
        {
            self.jobs.pay(cost::CONSUMER);
            first.push(gone);
        }
        (first, self.ports.count_of_ended(id) > 0)
    }

    /// Takes the oldest consumer out of a deleted queue.
    fn end_next_consumer(
        &mut self,
        id: QueueId,
        now: Time,
        out: &mut Outbox,
    ) -> Option<(ConnectionId, ConsumerSlot)> {
        let key = self.ports.next_of_ending(id)?;
        self.end_consumer(key, id, now, out)
    }

    /// Takes this consumer out of a deleted queue.
    pub(super) fn end_consumer(
        &mut self,
        key: u32,
        id: QueueId,
        now: Time,
        out: &mut Outbox,
    ) -> Option<(ConnectionId, ConsumerSlot)> {
        let consumer = self.ports.end(key, id, now, out)?;
        self.allowances.left(consumer.connection, consumer.channel);
        Some((consumer.connection, consumer.slot))
    }

    /// The name is gone: those are told who have not been yet.
    pub(super) fn cancel_rest(&mut self, id: QueueId, out: &mut Outbox) {
        let units = cost::CONSUMER * self.ports.count_of_ended(id);
        if units > 0 {
            self.jobs.wait_in(JobOrigin::Cancelling, Job::CancelRest(id), units, out);
        }
    }

    /// Tells some of them. What the others will cost.
    pub(super) fn cancel_some(
        &mut self,
        id: QueueId,
        allowed: u64,
        now: Time,
        out: &mut Outbox,
    ) -> u64 {
        while self.jobs.used() < allowed
            && let Some((connection, slot)) = self.end_next_consumer(id, now, out)
        {
            self.jobs.pay(cost::CONSUMER);
            out.session(connection, ToSession::ConsumerGone { slot });
        }
        cost::CONSUMER * self.ports.count_of_ended(id)
    }

    /// The queue lost its last consumer, which was cancelled or whose channel is closing: an auto-delete queue goes.
    pub(super) fn auto_delete(
        &mut self,
        last: &Consumer,
        is_closing: bool,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) {
        let Some(hosted) = self.queues.get(last.queue) else { return };
        if hosted.queue.options().auto_delete {
            say_auto_deleted(last, is_closing, topology);
            self.delete_unused(last.queue, topology, now, out);
        }
    }

    /// Nobody consumes from the queue any more, or uses it, and so it goes.
    pub(super) fn delete_unused(
        &mut self,
        id: QueueId,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) {
        if !self.goes_later(id) {
            self.delete_for_good(id, Asked::default(), topology, now, out);
        }
    }

    /// The queue goes as nobody has used it for as long as it may be unused.
    pub(super) fn say_expired(&self, id: QueueId, topology: &Topology) {
        let (Some(queue), Some(hosted)) = (topology.queue_by_id(id), self.queues.get(id)) else {
            return;
        };
        let vhost = topology.vhost_by_id(queue.vhost).map_or("", |vhost| &vhost.name);
        let (name, messages) = (describe(queue, topology), hosted.queue.counts().ready);
        tracing::info!(from = vhost, messages, "{name} expired: nothing used it for its x-expires");
    }
}

/// A queue and its vhost, for the log's lines in RabbitMQ's words.
fn named(queue: QueueId, topology: &Topology) -> Option<(&NamedQueue, &str)> {
    let queue = topology.queue_by_id(queue)?;
    Some((queue, &topology.vhost_by_id(queue.vhost)?.name))
}

/// An auto-delete queue goes: as usual as the end of the connection that had it.
fn say_auto_deleted(last: &Consumer, is_closing: bool, topology: &Topology) {
    let Some((queue, vhost)) = named(last.queue, topology) else { return };
    let (queue, tag) = (&queue.name, &last.facts.tag);
    if is_closing {
        tracing::debug!(
            target: "queue",
            "Deleting auto-delete queue '{queue}' in vhost '{vhost}' because all of its consumers were on a channel that was closed"
        );
    } else {
        tracing::debug!(
            target: "queue",
            "Deleting auto-delete queue '{queue}' in vhost '{vhost}' because its last consumer with tag '{tag}' was cancelled"
        );
    }
}

/// Nobody asked for the deletion of an exclusive queue: its connection is closed.
fn say_owner_gone(id: QueueId, topology: &Topology) {
    let Some((queue, vhost)) = named(id, topology) else { return };
    let Some(owner) = queue.exclusive_owner.map(ConnectionId::pid) else { return };
    tracing::debug!(
        target: "queue",
        "Deleting exclusive queue '{}' in vhost '{vhost}' because its declaring connection {owner} was closed", queue.name
    );
}

fn waits_for_consumers(confirm: &ConfirmOptions) -> bool {
    matches!(confirm.on, ConfirmOn::Ack | ConfirmOn::AckLean)
}
