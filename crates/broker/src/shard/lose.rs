//! The end of the log is lost while the shard lives: others, who had to agree, went on without it.
//!
//! The shard forgets all that it has in memory and is filled anew with what the log has still, by the code of a start. So what
//! stood in the lost end was never done: what was stored there is gone, what was settled there is back. What had not left the
//! shard is given up, and whoever waits for it is told so. See `docs/decisions/0055-a-shard-can-lose-its-logs-end.md`.

use leveret_amqp::reply::ReplyCode;
use leveret_log::Log;
use leveret_queue::Time;
use leveret_topology::{QueueId, Topology};

use super::exits::Exits;
use super::jobs::{Job, JobOrigin, cost};
use super::lifecycle::Asked;
use super::ports::Ports;
use super::store::{Parked, Store, Waiter};
use super::{Restored, Shard};
use crate::message::{ConnectionId, Outbox, PutResult, Reply, ReplyTo, ToSession, ToShard};
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

impl<L: Log> Shard<L> {
    /// The log lost its end: `log` is what is there, and the next record has its end for an offset. To be called between two
    /// turns, when all queues are [filled](Self::fill).
    ///
    /// Every connection that used this shard is to be closed by the driver: its consumers here are gone, what it has unacked
    /// is ready again and marked redelivered, and of what it published and was not told of nobody knows whether it is there.
    /// `last`: of each node the newest of these connections; what it and older ones wrote of what they had here is not heard.
    /// `decided`: what [`Meta::decided_so_far`](crate::Meta::decided_so_far) says.
    pub fn lose(
        &mut self,
        log: L,
        last: &[ConnectionId],
        topology: &Topology,
        decided: &Decided,
        now: Time,
        out: &mut Outbox,
    ) -> Restored {
        let end = log.end().get();
        last.iter().for_each(|&last| self.cut_off.add(last));
        self.give_up_held(out);
        self.give_up_waiters(end, out);
        self.store.resume_publishers(out);
        self.jobs.end_pauses(out);
        self.histories.end_pauses(out);
        for reply in self.exits.give_up_moves() {
            refuse(reply, out);
        }
        let (jobs, parked) = (self.jobs.drain(), self.store.take_parked());
        self.store = Store::new(log);
        // With their last consumer they go, however he does.
        let used = self.queues.iter().filter(|(_, hosted)| {
            hosted.queue.options().auto_delete && !hosted.consumers.is_empty()
        });
        let unused: Vec<QueueId> = used.map(|(id, _)| id).collect();
        for hosted in self.queues.forget_all() {
            self.keep_totals(&hosted);
        }
        self.confirms.forget_all();
        self.tell_given_up();
        self.streams.begin_term();
        (self.exits, self.ports) = (Exits::default(), Ports::default());
        self.unreadable.clear();
        self.give_up_parts(end, decided, out);
        self.host(topology, now);
        let restored = self.fill(decided, leveret_log::Offset::MAX, &mut |_| {});
        self.hold_back_parts(out);
        self.finish_parts(decided, now, out);
        for id in unused {
            self.delete_for_good(id, Asked::default(), topology, now, out);
        }
        for (line, job) in jobs {
            match job {
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
            if let Parked::Letter(letter) = parked
                && let Some(letter) = self.hear(letter, topology, now, out)
            {
                let line = JobOrigin::Connection(ConnectionId::NOBODY);
                self.jobs.wait_in(line, Job::Letter(Box::new(letter)), cost::LETTER, out);
            }
        }
        restored
    }

    /// A letter, unless it is about what a connection that was cut off had here, or is to have. What it was given it has no
    /// more, and a transaction is done as a whole or not at all. A session that waits for the answer is refused: it would
    /// read nothing more, and not even see that its client has left.
    #[cold]
    pub(super) fn hear(
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
                    self.delete_for_good(queue, Asked::default(), topology, now, out);
                }
            }
            _ => {}
        }
        None
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
                if let ToSession::Reply { channel, .. } = letter {
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
                Waiter::Commit(reply) => refuse(reply, out),
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
