//! What letters want is done: at once if it fits the turn, or else in pieces.
//!
//! Hot path: a letter that fits costs a look at its length.

use std::sync::Arc;

use leveret_log::Log;
use leveret_queue::{Backlog, Left, Time};
use leveret_topology::{QueueId, Topology};

use super::Shard;
use super::confirms::Way;
use super::jobs::{Job, JobOrigin, cost, price_of, price_of_rest};
use super::settle::Pays;
use crate::message::{ConnectionId, GivenBack, Outbox, Publish, Reply, Settle, ToShard};
use crate::work::{Limits, Piece};

impl<L: Log> Shard<L> {
    /// Does what a letter wants, or has it wait for its turn.
    #[inline]
    pub(super) fn letter(
        &mut self,
        letter: ToShard,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) {
        self.jobs.count();
        let mut price = 0;
        if let Some((line, units)) = self.price(&letter, topology) {
            if !self.jobs.fits(line, units) {
                let job = self.job_of(letter);
                self.jobs.wait_in(line, job, units, out);
                return;
            }
            price = units;
        }
        self.do_now(letter, topology, now, out);
        self.jobs.spend_beyond(price);
    }

    /// In which line a letter stands if it has to wait, and what it will cost about. None for what never waits: answers
    /// of others, and what the driver says.
    #[inline]
    fn price(&self, letter: &ToShard, topology: &Topology) -> Option<(JobOrigin, u64)> {
        let (who, units) = match letter {
            ToShard::Publish { from, messages } => (*from, price_of(messages)),
            ToShard::Settle { from, settlements } => {
                (*from, cost::SETTLE * settlements.len() as u64)
            }
            ToShard::GiveBack { from, unsettled } => (*from, price_of_rest(unsettled, 0)),
            ToShard::Commit { reply, messages, settlements } => {
                let settled = cost::SETTLE * settlements.len() as u64;
                (reply.connection, cost::LETTER + price_of(messages) + settled)
            }
            ToShard::Prepare { reply, messages, settlements, .. } => {
                let looked_at = settlements.len() as u64 / cost::LOOKED_AT_A_UNIT;
                let stored = cost::APPEND * messages.len() as u64;
                (reply.connection, cost::LETTER + stored + looked_at)
            }
            ToShard::Decide { tx, .. } => {
                let (who, units) = self.transactions.price_of_part(*tx)?;
                (who, cost::LETTER + units)
            }
            ToShard::Replay { from, exchange, .. } => (*from, self.histories.price_of(*exchange)),
            ToShard::Consume { reply, .. } => (reply.connection, cost::CONSUMER),
            ToShard::Cancel { connection, .. } => (*connection, cost::CONSUMER),
            ToShard::Disconnected { connection, .. } => {
                let consumers = self.ports.count_of(*connection);
                (*connection, cost::LETTER + cost::CONSUMER * consumers)
            }
            ToShard::DeadLetter { message, .. } => {
                let targets = message.targets.len() as u64;
                let units = cost::APPEND + cost::PLACE * targets + cost::carried(message);
                return Some((JobOrigin::Arriving, units));
            }
            ToShard::Create { reply: Some(reply), .. }
            | ToShard::Get { reply, .. }
            | ToShard::Count { reply, .. }
            | ToShard::Purge { reply, .. } => (reply.connection, cost::LETTER),
            ToShard::Look { reply, max, .. } => (reply.connection, cost::LETTER + *max as u64),
            ToShard::Discard { reply, offsets, .. } => (reply.connection, offsets.len() as u64),
            ToShard::Move { reply, offsets, .. } => {
                (reply.connection, cost::DEAD_LETTER * offsets.len() as u64)
            }
            ToShard::List { reply, queues, consumers } => {
                (reply.connection, self.price_of_list(queues, *consumers))
            }
            ToShard::Sample { reply, .. } => (reply.connection, cost::LETTER),
            ToShard::Delete { reply: Some(reply), .. } => (reply.connection, cost::LETTER),
            ToShard::Delete { queue, .. } => {
                // What its connection wrote before it ended comes before its exclusive queues go.
                let owner = topology.queue_by_id(*queue)?.exclusive_owner?;
                (owner, cost::LETTER)
            }
            _ => return None,
        };
        Some((JobOrigin::Connection(who), units + self.price_of_late(letter)))
    }

    /// A letter that has to wait.
    #[cold]
    fn job_of(&mut self, letter: ToShard) -> Job {
        match letter {
            // As much as is remembered now.
            ToShard::Replay { from, exchange, queue } => {
                Job::Replay(self.histories.replay(from, exchange, queue))
            }
            letter => self.rest_of_letter(Job::of(letter)),
        }
    }

    /// Messages of which the first ones were all that a turn has room for.
    #[cold]
    pub(super) fn publish_rest(
        &mut self,
        from: ConnectionId,
        messages: Vec<Publish>,
        count: usize,
        out: &mut Outbox,
    ) {
        let units = price_of(messages.get(count..).unwrap_or_default());
        let job = Job::of(ToShard::Publish { from, messages }).from(count);
        let job = self.rest_of_letter(job);
        self.jobs.wait_in(JobOrigin::Connection(from), job, units, out);
    }

    /// Has what fits a turn come back of what channels had unsettled. More of it may live here than was thought.
    pub(super) fn give_back_first(
        &mut self,
        from: ConnectionId,
        unsettled: Arc<GivenBack>,
        now: Time,
        out: &mut Outbox,
    ) {
        let done = self.give_some_back(&unsettled, 0, self.jobs.limits().turn, now);
        if done < unsettled.len() {
            let units = price_of_rest(&unsettled, done);
            let rest = self.rest_of_letter(Job::GiveBack { unsettled, done });
            self.jobs.wait_in(JobOrigin::Connection(from), rest, units, out);
        }
    }

    /// Does jobs for as long as the turn lasts.
    pub(super) fn work_on(&mut self, topology: &Topology, now: Time, out: &mut Outbox) {
        while let Some(Piece { origin, job, allowed }) = self.jobs.next_piece() {
            let before = job.bytes();
            let rest = self.piece(job, allowed, topology, now, out);
            self.work_off_left(Pays::Nobody, topology, now, out);
            self.jobs.piece_done(origin, before, rest, out);
        }
        self.jobs.count();
    }

    /// Does a piece of a job. What remains of it, and what that will cost.
    fn piece(
        &mut self,
        job: Job,
        allowed: u64,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) -> Option<(Job, u64)> {
        match job {
            Job::Publish { from, messages, mut done, bytes } => {
                let next = messages.get(done..).unwrap_or_default();
                done += self.publish(from, next, allowed, topology, now, out);
                let units = price_of(messages.get(done..).unwrap_or_default());
                let rest = Job::Publish { from, messages, done, bytes };
                (units > 0).then_some((rest, units))
            }
            Job::Settle { settlements, mut done } => {
                let count = usize::try_from(allowed).unwrap_or(usize::MAX);
                let left = settlements.len() - done;
                let end = done + count.min(left);
                self.settle(settlements.get(done..end).unwrap_or_default(), now);
                done = end;
                let units = cost::SETTLE * (settlements.len() - done) as u64;
                (units > 0).then_some((Job::Settle { settlements, done }, units))
            }
            Job::Return { mut settlements, mut done } => {
                done += self.give_some_of(
                    settlements.get_mut(done..).unwrap_or_default(),
                    allowed,
                    now,
                );
                let units = cost::SETTLE * (settlements.len() - done) as u64;
                (units > 0).then_some((Job::Return { settlements, done }, units))
            }
            Job::GiveBack { unsettled, mut done } => {
                done += self.give_some_back(&unsettled, done, allowed, now);
                let units = price_of_rest(&unsettled, done);
                (done < unsettled.len()).then_some((Job::GiveBack { unsettled, done }, units))
            }
            Job::Disconnect { connection, reply } => {
                while self.jobs.used() < allowed
                    && let Some(key) = self.ports.next_of_ended(connection)
                {
                    self.consumer_gone(connection, key, topology, now, out);
                }
                let units = cost::CONSUMER * self.ports.count_of(connection);
                if units > 0 {
                    return Some((Job::Disconnect { connection, reply }, units));
                }
                self.disconnected(connection, reply, out);
                None
            }
            Job::CancelRest(id) => {
                let units = self.cancel_some(id, allowed, now, out);
                (units > 0).then_some((Job::CancelRest(id), units))
            }
            Job::Leave(id, mut backlog) => {
                while self.jobs.used() < allowed {
                    let left = backlog.next()?;
                    self.work_off(id, left, topology, now, out);
                }
                let units = cost::LEFT * backlog.len();
                (units > 0).then_some((Job::Leave(id, backlog), units))
            }
            Job::Purged(reply, messages) => {
                self.jobs.pay(cost::LEFT);
                out.reply(reply, Reply::Purged(messages));
                None
            }
            Job::DeadLetters(id) => {
                while self.jobs.used() < allowed {
                    if self.are_letters_too_many() {
                        self.exits.hold_line(id);
                        return None;
                    }
                    let left = self.next_letter(id, out)?;
                    self.work_off(id, left, topology, now, out);
                }
                let units = cost::DEAD_LETTER * self.exits.line_len(id);
                (units > 0).then_some((Job::DeadLetters(id), units))
            }
            Job::Replay(mut replay) => {
                let units = self.replay(&mut replay, allowed, topology, now, out);
                (units > 0).then_some((Job::Replay(replay), units))
            }
            Job::Forget => {
                let units = self.forget_some(allowed, out);
                (units > 0).then_some((Job::Forget, units))
            }
            Job::List(list) => {
                let (rest, units) = self.list(*list, allowed, now, out)?;
                Some((Job::List(Box::new(rest)), units))
            }
            // See [`numbered`](super::numbered).
            Job::Numbered(..) if self.store.has_failed() => {
                self.jobs.pay(cost::LETTER);
                None
            }
            Job::Numbered(tag, job) => {
                let done = u32::try_from(job.progress()).unwrap_or(u32::MAX);
                self.streams.begin(tag, done, job.messages());
                let rest = self.piece(*job, allowed, topology, now, out);
                let rest = rest.map(|(job, units)| (self.rest_of_letter(job), units));
                self.streams.end();
                rest
            }
            Job::Letter(letter) => {
                let units = self.bring_for(&letter, allowed);
                if units > 0 && self.late.has_failed() {
                    // Whoever sent it hears of the failure.
                    return None;
                }
                if units > 0 {
                    return Some((Job::Letter(letter), units + cost::LETTER));
                }
                self.do_now(*letter, topology, now, out);
                None
            }
        }
    }

    /// These left the queue and are to be released.
    pub(super) fn let_go(&mut self, id: QueueId, backlog: Backlog, out: &mut Outbox) {
        if !backlog.is_empty() {
            let units = cost::LEFT * backlog.len();
            self.jobs.wait_in(JobOrigin::Leaving, Job::Leave(id, Box::new(backlog)), units, out);
        }
    }

    /// The process stops: releases what is to be released, and what was acked. What was not stored yet never was, as in
    /// a crash, and what was rejected may have to go somewhere: it comes back.
    pub(super) fn close_jobs(&mut self) {
        for (_, job) in self.jobs.drain() {
            match job.unnumbered() {
                Job::Leave(id, backlog) => {
                    let left = backlog.filter(|it| !matches!(it, Left::Held { goes: true, .. }));
                    left.for_each(|left| self.gone(left.offset(), id, Way::Lost));
                }
                Job::Settle { mut settlements, done } => {
                    settlements.drain(..done);
                    settlements.retain(|it| it.how == Settle::Ack);
                    // No consumer gets anything any more, so that the time of the last ack says nothing.
                    self.settle(&settlements, Time::from_ms(0));
                }
                _ => {}
            }
        }
        self.let_left_go();
    }

    /// Releases what left queues, as far as it goes nowhere else.
    pub(super) fn let_left_go(&mut self) {
        for (id, left) in self.queues.take_left() {
            match left {
                Left::Acked(offset) => self.gone(offset, id, Way::Acked),
                Left::Lent(offset) => self.release(offset, id),
                Left::Returned { offset, acked: true } => {
                    self.confirms.left(offset.get(), id, Way::Acked);
                }
                _ => {}
            }
        }
    }

    /// Other limits than the usual ones: for tests, which cut everywhere.
    pub fn set_limits(&mut self, limits: Limits) {
        self.jobs.set_limits(limits);
    }

    /// What a turn may cost.
    pub fn limits(&self) -> Limits {
        self.jobs.limits()
    }

    /// Units that the last turn cost.
    pub fn spent(&self) -> u64 {
        self.jobs.spent()
    }
}
