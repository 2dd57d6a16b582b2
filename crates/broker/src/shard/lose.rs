//! The end of the log is lost while the shard lives: others, who had to agree, went on without it.
//!
//! The shard forgets all that it has in memory and is filled anew with what the log has still, by the code of a start. So what
//! stood in the lost end was never done: what was stored there is gone, what was settled there is back. What had not left the
//! shard is given up, and whoever waits for it is told so. See `docs/decisions/0055-a-shard-can-lose-its-logs-end.md`.

use leveret_amqp::reply::ReplyCode;
use leveret_log::Log;
use leveret_queue::Time;
use leveret_topology::{QueueId, Topology};

use super::allowances::Allowances;
use super::exits::Exits;
use super::jobs::{Job, JobOrigin, cost};
use super::store::{Parked, Store, Waiter};
use super::{Restored, Shard, queue_offset};
use crate::message::{ConnectionId, NodeId, Outbox, PutResult, Reply, ReplyTo, ToSession, ToShard};
use crate::transaction::{Decided, Vote};

/// Connections that were cut off: of each node the newest one, and all that are older. Nobody is none of them.
#[derive(Debug, Default)]
pub(super) struct CutOff(Vec<ConnectionId>);

impl CutOff {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn add(&mut self, last: ConnectionId) {
        self.0.retain(|it| it.node() != last.node());
        self.0.push(last);
    }

    fn has(&self, id: ConnectionId) -> bool {
        self.0.iter().any(|last| last.node() == id.node() && id <= *last)
    }
}

/// What becomes of the connections that used a shard whose log lost its end.
#[derive(Clone, Copy, Debug)]
pub enum Users<'a> {
    /// Each is to be closed by the driver: its consumers here are gone, what it has unacked is ready again and marked redelivered,
    /// and of what it published and was not told of nobody knows whether it is there. These are the newest ones of each node;
    /// what they and older ones wrote of what they had here is not heard.
    AreCutOff(&'a [ConnectionId]),
    /// Their nodes, of which all letters have numbers, attach: each of its sessions is to be sent
    /// [`ToSession::Attach`] behind what this shard wrote to it, and what has come of that is to be sent here, with
    /// [`ToShard::Attached`] behind it. Questions without an answer are to be asked again.
    Attach(&'a [NodeId]),
}

impl<L: Log> Shard<L> {
    /// The log lost its end: `log` is what is there, and the next record has its end for an offset. To be called between two
    /// turns, when all queues are [filled](Self::fill).
    ///
    /// `users`: what becomes of the connections that used this shard.
    /// `decided`: what [`Meta::decided_so_far`](crate::Meta::decided_so_far) says.
    pub fn lose(
        &mut self,
        log: L,
        users: Users<'_>,
        topology: &Topology,
        decided: &Decided,
        now: Time,
        out: &mut Outbox,
    ) -> Restored {
        let end = log.end().get();
        let (last, nodes) = match users {
            Users::AreCutOff(last) => (last, &[][..]),
            Users::Attach(nodes) => (&[][..], nodes),
        };
        last.iter().for_each(|&last| self.cut_off.add(last));
        // With their last consumer they go, however he does.
        let used = self.queues.iter().filter(|(_, hosted)| {
            hosted.queue.options().auto_delete && !hosted.consumers.is_empty()
        });
        let used: Vec<QueueId> = used.map(|(id, _)| id).collect();
        self.attaching.begin(queue_offset(log.end()), nodes, used.clone());
        self.hears_all = self.cut_off.is_empty() && !self.attaching.is_on();
        self.give_up_held(out);
        self.give_up_waiters(end, out);
        self.store.resume_publishers(out);
        self.jobs.end_pauses(out);
        self.histories.end_pauses(out);
        for reply in self.exits.give_up_moves() {
            refuse(reply, out);
        }
        let (jobs, mut parked) = (self.jobs.drain(), self.store.take_parked());
        parked.extend(self.exits.take_behind_lines().into_iter().map(Parked::Letter));
        self.store = Store::new(log);
        for mut hosted in self.queues.forget_all() {
            hosted.queue.forget_early();
            self.keep_totals(&hosted);
        }
        self.confirms.forget_all();
        self.tell_given_up();
        self.streams.begin_term();
        self.exits = Exits::default();
        self.ports = self.ports.of_next_term();
        self.allowances = Allowances::default();
        self.unreadable.clear();
        self.give_up_parts(end, decided, out);
        self.host(topology, now);
        let restored = self.fill(decided, leveret_log::Offset::MAX, &mut |_| {});
        self.hold_back_parts(out);
        self.finish_parts(decided, now, out);
        if self.attaching.is_on() {
            self.queues.hold_all();
        } else {
            for id in used {
                self.delete_unused(id, topology, now, out);
            }
        }
        for (line, job) in jobs {
            match job {
                Job::Letter(letter) if self.attaching.is_on() => self.attaching.keep(*letter),
                Job::Disconnect { connection, .. } | Job::Purged(ReplyTo { connection, .. }, _)
                    if self.attaching.has(connection) => {}
                // Those whom these are about are known by their numbers alone.
                Job::Disconnect { .. } | Job::List(_) | Job::Replay(_) | Job::Forget => {
                    self.jobs.wait_in(line, job, cost::LETTER, out);
                }
                Job::Letter(letter) => {
                    if let Some(letter) = self.hear(*letter, topology, now, out) {
                        let job = Job::Letter(Box::new(letter));
                        self.jobs.wait_in(line, job, cost::LETTER, out);
                    }
                }
                Job::Purged(reply, _) => refuse(reply, out),
                Job::Publish { .. }
                | Job::Settle { .. }
                | Job::Return { .. }
                | Job::GiveBack { .. }
                | Job::Numbered(..)
                | Job::CancelRest(_)
                | Job::Leave(..)
                | Job::DeadLetters(_) => {}
            }
        }
        for parked in parked {
            let Parked::Letter(letter) = parked else { continue };
            if self.attaching.is_on() {
                self.attaching.keep(letter);
            } else if let Some(letter) = self.hear(letter, topology, now, out) {
                let line = JobOrigin::Connection(ConnectionId::NOBODY);
                self.jobs.wait_in(line, Job::Letter(Box::new(letter)), cost::LETTER, out);
            }
        }
        restored
    }

    /// A letter, unless it has to wait until those who use the shard have attached, or comes from one that was cut off.
    #[cold]
    pub(super) fn hear(
        &mut self,
        letter: ToShard,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) -> Option<ToShard> {
        let letter = self.attaching.hear(letter)?;
        self.hear_cut_off(letter, topology, now, out)
    }

    /// A letter, unless it is about what a connection that was cut off had here, or is to have. What it was given it has no
    /// more, and a transaction is done as a whole or not at all. A session that waits for the answer is refused: it would
    /// read nothing more, and not even see that its client has left.
    #[cold]
    pub(super) fn hear_cut_off(
        &mut self,
        letter: ToShard,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) -> Option<ToShard> {
        let from = match &letter {
            ToShard::Settle { from, .. } | ToShard::GiveBack { from, .. } => *from,
            ToShard::Commit { reply, .. }
            | ToShard::Prepare { reply, .. }
            | ToShard::Consume { reply, .. }
            | ToShard::Get { reply, .. } => reply.connection,
            _ => return Some(letter),
        };
        if !self.cut_off.has(from) {
            return Some(letter);
        }
        match letter {
            ToShard::Prepare { reply, tx, parts, .. } => {
                refuse(reply, out);
                self.say(from, tx, parts, Vote::No, out);
            }
            ToShard::Commit { reply, .. } | ToShard::Get { reply, .. } => refuse(reply, out),
            ToShard::Consume { reply, queue, .. } => {
                refuse(reply, out);
                // It came and went.
                if self.queues.get(queue).is_some_and(|hosted| {
                    hosted.queue.options().auto_delete && hosted.consumers.is_empty()
                }) {
                    self.delete_unused(queue, topology, now, out);
                }
            }
            _ => {}
        }
        None
    }

    pub(super) fn has_cut_nobody_off(&self) -> bool {
        self.cut_off.is_empty()
    }

    /// What earlier turns told was not agreed upon. What stands on the names, not on this log, goes out all the same.
    fn give_up_held(&mut self, out: &mut Outbox) {
        for mut part in self.store.take_held() {
            for (group, letter) in part.shards {
                // What was taken in is not here: it is to be sent again. A dead letter that was sent is in its queue.
                if let ToShard::DeadLettered { from, target, .. } = letter {
                    let taken = PutResult::NotStored;
                    out.shard(group, ToShard::DeadLettered { from, target, taken });
                }
            }
            for (connection, letter) in part.sessions {
                if let ToSession::Reply { channel, .. } = letter
                    && !self.attaching.has(connection)
                {
                    refuse(ReplyTo { connection, channel }, out);
                }
            }
            // A queue that was deleted stays so: what the log has of it is nobody's.
            out.meta.append(&mut part.meta);
            out.events.append(&mut part.events);
        }
    }

    /// Who waits for the disk waits for the end that was lost, or for what is there.
    fn give_up_waiters(&mut self, end: u64, out: &mut Outbox) {
        for (until, waiter) in self.store.take_waiters() {
            match waiter {
                Waiter::Commit(reply) if self.attaching.has(reply.connection) => {}
                Waiter::Commit(reply) => refuse(reply, out),
                Waiter::Decided(reply) if self.attaching.has(reply.connection) => {}
                Waiter::Decided(reply) => out.reply(reply, Reply::Committed),
                Waiter::DeadLetter(from, target) => {
                    let taken = if until <= end { PutResult::Yes } else { PutResult::NotStored };
                    out.shard(from.group, ToShard::DeadLettered { from, target, taken });
                }
                // These are looked at one by one.
                Waiter::Prepared(..) | Waiter::Applied(..) | Waiter::Freed(..) => {}
            }
        }
    }
}

/// The end of the log is lost, and with it what somebody asked for.
fn refuse(reply: ReplyTo, out: &mut Outbox) {
    let text = "the end of the log was lost, and with it what was asked for".to_owned();
    out.reply(reply, Reply::Refused { code: ReplyCode::InternalError, text });
}
