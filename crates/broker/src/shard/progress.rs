//! What follows from the log's progress: records are on the disk, or can be read.

use leveret_amqp::reply::ReplyCode;
use leveret_log::{Log, SyncError};
use leveret_queue::Time;
use leveret_topology::Topology;

use super::Shard;
use super::store::{Parked, Waiter};
use crate::message::{Outbox, PutResult, Reply, ToShard};

impl<L: Log> Shard<L> {
    /// Ends a turn as far as the disk is concerned.
    pub(super) fn settle_with_disk(&mut self, now: Time, out: &mut Outbox) {
        if self.store.has_failed() {
            return;
        }
        let waits_for_all = self.confirms.wait_for_all() || self.store.waits_for_all();
        self.store.use_all(self.queues.are_for_all(), waits_for_all);
        let Self { store, queues, .. } = self;
        let handed = store.hand_over(now, |queue, of_new, told| {
            queues.get_mut(queue).is_some_and(|hosted| hosted.odds.tell(of_new, told))
        });
        if let Err(error) = handed {
            self.disk_failed(&error, out);
            return;
        }
        self.confirms.durable(self.store.durable());
        if waits_for_all {
            self.confirms.on_all(self.store.on_all());
        }
        while let Some(waiter) = self.store.next_safe() {
            match waiter {
                Waiter::Prepared(_, tx) => self.vote(tx, out),
                Waiter::Applied(tx, note) => self.applied(tx, note, out),
                Waiter::Freed(queue, messages) => self.free(queue, &messages),
                Waiter::Commit(reply) | Waiter::Decided(reply) => {
                    out.reply(reply, Reply::Committed);
                }
                Waiter::DeadLetter(from, target) => {
                    let letter = ToShard::DeadLettered { from, target, taken: PutResult::Yes };
                    out.shard(from.group, letter);
                }
            }
        }
        self.confirms.flush(out);
        self.store.resume_if_written(out);
    }

    /// Nothing that this process writes can be trusted to be on the disk any more: the system may have
    /// dropped the pages that it could not write, and a second attempt would succeed without them. So
    /// whoever waits is told no, the log takes nothing more, and the server is told to stop.
    ///
    /// Where others have the log what they have a copy of may be agreed upon all the same, or is, and waits for all members in contact. So
    /// nobody is told no: whose letters have numbers asks the next leader, and others end with this process.
    #[cold]
    fn disk_failed(&mut self, error: &SyncError, out: &mut Outbox) {
        tracing::error!(
            %error, shard = self.group.get(),
            "messages could not be written to the disk: nothing is confirmed any more and the broker \
             has to be started again. Look at the disk (is it full, are there errors in the system's \
             log?) first. What was confirmed is safe; publishers send the rest again"
        );
        let has_others = self.store.has_others();
        match has_others {
            true => self.confirms.forget_all(),
            false => self.confirms.fail_all(),
        }
        self.confirms.flush(out);
        for waiter in self.store.fail() {
            let (reply, has_number) = match waiter {
                Waiter::Prepared(reply, tx) => (reply, self.transactions.has_number(tx)),
                Waiter::Commit(reply) => (reply, self.streams.are_of(reply.connection.node())),
                // A dead letter stays where it was: the process is about to stop.
                _ => continue,
            };
            let text = match has_others {
                _ if has_number => continue,
                false => "the transaction could not be written to the disk",
                true => "the disk failed, and it is not known whether others have the transaction",
            };
            let (code, text) = (ReplyCode::InternalError, text.to_owned());
            out.reply(reply, Reply::Refused { code, text });
        }
        self.store.resume_publishers(out);
        self.jobs.end_pauses(out);
        self.histories.end_pauses(out);
        out.failed = Some(error.to_string());
    }

    /// Records came, from the disk or by agreement: lets all that waits try again.
    pub(super) fn warmed(&mut self, topology: &Topology, now: Time, out: &mut Outbox) {
        let Self { store, queues, .. } = self;
        let parked = store.came(|id| {
            queues.change(id, |hosted, _| hosted.reading.goes_on());
        });
        for parked in parked {
            match parked {
                Parked::Letter(letter) => self.do_now(letter, topology, now, out),
                Parked::Stuck(id, stuck) => self.try_again(id, stuck, topology, now, out),
            }
        }
    }
}
