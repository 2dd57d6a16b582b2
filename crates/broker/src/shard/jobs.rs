//! A shard's work: its origins, its costs, and how it is done in pieces. See [`work`](crate::work).
//!
//! Hot path: a letter that fits the turn costs a look at its length, and is done at once.
//!
//! All costs are in [`cost`], in units of about a tenth of a microsecond. Work is counted in
//! [`Shard::used`] as it is done, whatever its origin. A piece ends between two messages, two settlements or two
//! consumers. It never ends within one of them, nor within a transaction's part: the batch of the log that a crash takes or leaves
//! whole ends where a turn ends. So the largest work that is done in one go is one message with all its queues here.
//!
//! A connection pays for the work that it makes others wait for: see [`flow`](crate::flow).

use leveret_log::Log;
use leveret_queue::{Backlog, Left, Time};
use leveret_topology::{QueueId, Topology};

use super::Shard;
use super::confirms::Way;
use super::listing::Listing;
use super::settle::Pays;
use crate::flow::{WAITING_BYTES_MAX, WAITING_UNITS_MAX};
use crate::message::{
    ConnectionId, Outbox, Publish, ReplyTo, Settle, Settlement, ToSession, ToShard,
};
use crate::work::{Limits, Piece};

/// Units that things cost, measured.
pub(super) mod cost {
    use bytes::Bytes;

    use crate::message::Publish;
    use crate::record::View;

    /// A message that is stored, without its queues.
    pub(in super::super) const APPEND: u64 = 1;
    /// A message that is put into one queue.
    pub(in super::super) const PLACE: u64 = 1;
    /// A settlement.
    pub(in super::super) const SETTLE: u64 = 1;
    /// A message that left its queue and is let go of.
    pub(in super::super) const LEFT: u64 = 1;
    /// One that goes to a dead-letter exchange, without what its headers cost.
    pub(in super::super) const DEAD_LETTER: u64 = 16;

    /// A dead letter whose headers are written anew: its history grows with each queue that it went through. What is
    /// only copied, its body, costs little.
    pub(in super::super) fn rewrite(record: &Bytes) -> u64 {
        let headers = View::of(record).map_or(0, |view| view.properties.len());
        headers as u64 / 64 + record.len() as u64 / 1024
    }

    /// A dead letter that is stored.
    pub(in super::super) fn carried(letter: &Publish) -> u64 {
        letter.message.len() / 1024
    }

    /// A delivery.
    pub(in super::super) const DELIVER: u64 = 1;
    /// A look at a queue that was touched.
    pub(in super::super) const DISPATCH: u64 = 1;
    /// A consumer that comes or goes.
    pub(in super::super) const CONSUMER: u64 = 8;
    /// A queue that is listed, or sampled.
    pub(in super::super) const LISTED: u64 = 8;
    /// A consumer that a list names.
    pub(in super::super) const NAMED: u64 = 4;
    /// Any other letter.
    pub(in super::super) const LETTER: u64 = 1;
}

/// About half a millisecond, and an eighth of it for each who has something to do.
pub(super) const LIMITS: Limits = Limits { turn: 4096, share: 512 };

/// Jobs that are done one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Line {
    /// What a connection wrote, and what others wrote for it.
    Connection(ConnectionId),
    /// Dead letters of queues here and elsewhere, and what operators move.
    DeadLetters,
    /// Messages that left all at once.
    Leaving,
    /// Consumers of deleted queues.
    Cancelling,
}

/// What is done in pieces.
#[derive(Debug)]
pub(super) enum Job {
    /// Messages, of which the first ones are in their queues.
    Publish { from: ConnectionId, messages: Vec<Publish>, done: usize, bytes: u64 },
    /// Settlements, of which the first ones are done.
    Settle { settlements: Vec<Settlement>, done: usize },
    /// A connection that ended, whose consumers are still here.
    Disconnect { connection: ConnectionId, reply: Option<ReplyTo> },
    /// A deleted queue, whose consumers are to be told.
    CancelRest(QueueId),
    /// Messages of a queue that was purged or deleted.
    Leave(QueueId, Backlog),
    /// Dead letters of a queue that found no room in a turn.
    DeadLetters(QueueId),
    /// A list, as far as it is made.
    List(Box<Listing>),
    /// A letter that is done whole.
    Letter(Box<ToShard>),
}

impl Job {
    fn of(letter: ToShard) -> Self {
        match letter {
            ToShard::Publish { from, messages } => {
                let each = |it: &Publish| it.message.len() + 8 * it.targets.len() as u64;
                let bytes = messages.iter().map(each).sum::<u64>()
                    + (messages.len() * size_of::<Publish>()) as u64;
                Self::Publish { from, messages, done: 0, bytes }
            }
            ToShard::Settle { settlements, .. } => Self::Settle { settlements, done: 0 },
            ToShard::Disconnected { connection, reply } => Self::Disconnect { connection, reply },
            other => Self::Letter(Box::new(other)),
        }
    }

    /// About how many bytes it takes.
    fn bytes(&self) -> u64 {
        match self {
            Self::Publish { bytes, .. } => *bytes,
            Self::Settle { settlements, .. } => {
                (settlements.capacity() * size_of::<Settlement>()) as u64
            }
            Self::Leave(_, backlog) => backlog.bytes(),
            Self::List(list) => list.bytes(),
            Self::Letter(letter) => match &**letter {
                ToShard::Commit { messages, .. } | ToShard::Prepare { messages, .. } => {
                    messages.iter().map(|it| it.message.len() + size_of::<Publish>() as u64).sum()
                }
                ToShard::DeadLetter { message, .. } => message.message.len(),
                _ => 0,
            },
            Self::Disconnect { .. } | Self::CancelRest(_) | Self::DeadLetters(_) => 0,
        }
    }
}

/// What messages will cost.
fn price_of(messages: &[Publish]) -> u64 {
    let each = |it: &Publish| cost::APPEND + cost::PLACE * it.targets.len() as u64;
    messages.iter().map(each).sum()
}

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
        self.used = 0;
        let mut price = 0;
        if let Some((line, units)) = self.price(&letter, topology) {
            if !self.work.fits(line, units) {
                self.wait_in(line, Job::of(letter), units, out);
                return;
            }
            price = units;
        }
        self.do_now(letter, topology, now, out);
        self.work.spend(self.used.saturating_sub(price));
    }

    /// In which line a letter stands if it has to wait, and what it will cost about. None for what never waits: answers
    /// of others, and what the driver says.
    #[inline]
    fn price(&self, letter: &ToShard, topology: &Topology) -> Option<(Line, u64)> {
        let (who, units) = match letter {
            ToShard::Publish { from, messages } => (*from, price_of(messages)),
            ToShard::Settle { from, settlements } => {
                (*from, cost::SETTLE * settlements.len() as u64)
            }
            ToShard::Commit { reply, messages, settlements }
            | ToShard::Prepare { reply, messages, settlements, .. } => {
                let settled = cost::SETTLE * settlements.len() as u64;
                (reply.connection, cost::LETTER + price_of(messages) + settled)
            }
            ToShard::Consume { reply, .. } => (reply.connection, cost::CONSUMER),
            ToShard::Cancel { connection, .. } => (*connection, cost::CONSUMER),
            ToShard::Disconnected { connection, .. } => {
                let consumers = self.ports.count_of(*connection);
                (*connection, cost::LETTER + cost::CONSUMER * consumers)
            }
            ToShard::DeadLetter { message, .. } => {
                let targets = message.targets.len() as u64;
                let units = cost::APPEND + cost::PLACE * targets + cost::carried(message);
                return Some((Line::DeadLetters, units));
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
                (ConnectionId::new(owner), cost::LETTER)
            }
            _ => return None,
        };
        Some((Line::Connection(who), units))
    }

    /// Puts a job into a line. Who has brought more than others, when much waits, is not read from for a while.
    #[cold]
    pub(super) fn wait_in(&mut self, line: Line, job: Job, units: u64, out: &mut Outbox) {
        let job = match job {
            Job::Letter(letter) if matches!(*letter, ToShard::List { .. }) => {
                let ToShard::List { reply, queues, consumers } = *letter else { return };
                Job::List(Box::new(Listing::new(reply, queues, consumers)))
            }
            job => job,
        };
        self.waiting_bytes += job.bytes();
        self.work.push(line, job, units);
        let is_much =
            self.work.units() > WAITING_UNITS_MAX || self.waiting_bytes > WAITING_BYTES_MAX;
        if is_much
            && let Line::Connection(who) = line
            && who != ConnectionId::default()
            && self.work.units_of(line) * self.work.lines() as u64 >= self.work.units()
            && !self.paused.contains(&who)
        {
            self.paused.insert(who);
            out.session(who, ToSession::Paused(true));
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
        let mut job = Job::of(ToShard::Publish { from, messages });
        if let Job::Publish { done, .. } = &mut job {
            *done = count;
        }
        self.wait_in(Line::Connection(from), job, units, out);
    }

    /// A line got shorter: its connection may go on if it is not the one that others wait for.
    fn resume_if_short(&mut self, line: Line, out: &mut Outbox) {
        if let Line::Connection(who) = line
            && !self.paused.is_empty()
            && self.work.units_of(line) * self.work.lines() as u64 <= WAITING_UNITS_MAX / 2
            && self.paused.remove(&who)
        {
            out.session(who, ToSession::Paused(false));
        }
    }

    /// Does jobs for as long as the turn lasts.
    pub(super) fn work_on(&mut self, topology: &Topology, now: Time, out: &mut Outbox) {
        while let Some(Piece { origin, job, allowed }) = self.work.next_piece() {
            self.used = 0;
            let before = job.bytes();
            let rest = self.piece(job, allowed, topology, now, out);
            self.work_off_left(Pays::Nobody, topology, now, out);
            let after = rest.as_ref().map_or(0, |(job, _)| job.bytes());
            self.waiting_bytes = (self.waiting_bytes + after).saturating_sub(before);
            match rest {
                Some((job, units)) => self.work.go_on(origin, job, self.used, units),
                None => self.work.done(origin, self.used),
            }
            self.resume_if_short(origin, out);
        }
        self.used = 0;
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
            Job::Disconnect { connection, reply } => {
                while self.used < allowed
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
                while self.used < allowed {
                    let left = backlog.next()?;
                    self.work_off(id, left, topology, now, out);
                }
                let units = cost::LEFT * backlog.len();
                (units > 0).then_some((Job::Leave(id, backlog), units))
            }
            Job::DeadLetters(id) => {
                while self.used < allowed {
                    let left = self.next_letter(id)?;
                    self.work_off(id, left, topology, now, out);
                }
                let waiting = self.queues.get(id).map_or(0, |hosted| hosted.letters.len() as u64);
                let units = cost::DEAD_LETTER * waiting;
                (units > 0).then_some((Job::DeadLetters(id), units))
            }
            Job::List(list) => {
                let (rest, units) = self.list(*list, allowed, now, out)?;
                Some((Job::List(Box::new(rest)), units))
            }
            Job::Letter(letter) => {
                self.do_now(*letter, topology, now, out);
                None
            }
        }
    }

    /// These left the queue and are to be released.
    pub(super) fn let_go(&mut self, id: QueueId, backlog: Backlog, out: &mut Outbox) {
        if !backlog.is_empty() {
            let units = cost::LEFT * backlog.len();
            self.wait_in(Line::Leaving, Job::Leave(id, backlog), units, out);
        }
    }

    /// The process stops: releases what is to be released, and what was acked. What was not stored yet never was, as in
    /// a crash, and what was rejected may have to go somewhere: it comes back.
    pub(super) fn close_jobs(&mut self) {
        for (_, job) in self.work.drain() {
            match job {
                Job::Leave(id, backlog) => {
                    backlog.for_each(|left| self.gone(left.offset(), id, Way::Lost));
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
        self.work.set_limits(limits);
    }

    /// Messages that left their queues all at once, and are not let go of yet.
    pub(super) fn leaving(&self) -> u64 {
        let jobs = self.work.jobs().map(|(_, job)| match job {
            Job::Leave(_, backlog) => backlog.len(),
            _ => 0,
        });
        jobs.sum()
    }

    /// What a turn may cost.
    pub fn limits(&self) -> Limits {
        self.work.limits()
    }

    /// Units that the last turn cost.
    pub fn spent(&self) -> u64 {
        self.work.spent()
    }

    /// The connection ended: nothing is told to it any more.
    pub(super) fn forget_pause(&mut self, connection: ConnectionId) {
        self.paused.remove(&connection);
    }

    /// Nothing is stored any more: who paused may go on, and is refused.
    #[cold]
    pub(super) fn end_pauses(&mut self, out: &mut Outbox) {
        for who in self.paused.drain() {
            out.session(who, ToSession::Paused(false));
        }
    }
}
