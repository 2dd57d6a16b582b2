//! A shard's work: its origins, its costs, and how it is done in pieces. See [`work`](crate::work).
//!
//! Hot path: a letter that fits the turn costs a look at its length, and is done at once.
//!
//! All costs are in [`cost`], in units of about a tenth of a microsecond. Work is counted in
//! [`Jobs`] as it is done, whatever its origin. A piece ends between two messages, two settlements or two
//! consumers. It never ends within one of them, nor within a transaction's part: the batch of the log that a crash takes or leaves
//! whole ends where a turn ends. So the largest work that is done in one go is such a part, or one message with all its queues here.
//!
//! A connection pays for the work that it makes others wait for: see [`flow`](crate::flow).

use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashSet;
use leveret_queue::Backlog;
use leveret_topology::QueueId;

use super::history::Replay;
use super::listing::Listing;
use super::numbered::messages_of;
use crate::flow::{WAITING_BYTES_MAX, WAITING_UNITS_MAX};
use crate::message::{
    ConnectionId, GivenBack, Outbox, Publish, ReplyTo, Settlement, ToSession, ToShard,
};
use crate::stream::Tag;
use crate::work::{Limits, Piece, Work};

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
    /// So many settlements are looked at for one unit, and not done: what is settled lives elsewhere, or is not decided on.
    pub(in super::super) const LOOKED_AT_A_UNIT: u64 = 32;
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

    /// A message whose bytes are copied: a dead letter that is stored, one that is remembered.
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
    /// So many records are looked at for one unit whose messages come late.
    pub(in super::super) const LATE_A_UNIT: u64 = 2;
    /// Any other letter.
    pub(in super::super) const LETTER: u64 = 1;
}

/// About a quarter of a millisecond, and an eighth of it for each who has something to do.
pub(super) const LIMITS: Limits = Limits { turn: 2048, share: 256 };

/// Who caused jobs: those of one origin are done one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum JobOrigin {
    /// What a connection wrote, and what others wrote for it.
    Connection(ConnectionId),
    /// Dead letters of a queue here, on their way out.
    DeadLetters(QueueId),
    /// Dead letters of queues here and elsewhere that come, and what operators move.
    Arriving,
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
    /// What a transaction that is not to be was to settle, of which the first ones came back.
    Return { settlements: Vec<Settlement>, done: usize },
    /// What channels had unsettled, of which the first ones were looked at.
    GiveBack { unsettled: Arc<GivenBack>, done: usize },
    /// A connection that ended, whose consumers are still here.
    Disconnect { connection: ConnectionId, reply: Option<ReplyTo> },
    /// A deleted queue, whose consumers are to be told.
    CancelRest(QueueId),
    /// Messages of a queue that was purged or deleted.
    Leave(QueueId, Box<Backlog>),
    /// So many were purged: whoever did it is told when those before are released.
    Purged(ReplyTo, u64),
    /// Dead letters of a queue that found no room in a turn.
    DeadLetters(QueueId),
    /// What an exchange remembers, for a queue.
    Replay(Replay),
    /// What exchanges remembered, for nobody any more: there is one of these at most.
    Forget,
    /// A list, as far as it is made.
    List(Box<Listing>),
    /// What is left of a numbered letter.
    Numbered(Tag, Box<Job>),
    /// A letter that is done whole.
    Letter(Box<ToShard>),
}

impl Job {
    pub(super) fn of(letter: ToShard) -> Self {
        match letter {
            ToShard::Publish { from, messages } => {
                let each = |it: &Publish| it.message.len() + 8 * it.targets.len() as u64;
                let bytes = messages.iter().map(each).sum::<u64>()
                    + (messages.len() * size_of::<Publish>()) as u64;
                Self::Publish { from, messages, done: 0, bytes }
            }
            ToShard::Settle { settlements, .. } => Self::Settle { settlements, done: 0 },
            ToShard::GiveBack { unsettled, .. } => Self::GiveBack { unsettled, done: 0 },
            ToShard::Disconnected { connection, reply } => Self::Disconnect { connection, reply },
            other => Self::Letter(Box::new(other)),
        }
    }

    /// The first messages or settlements of it were done already.
    pub(super) fn from(mut self, count: usize) -> Self {
        match &mut self {
            Self::Publish { messages, done, .. } => *done = count.min(messages.len()),
            Self::Settle { settlements, done } => *done = count.min(settlements.len()),
            Self::GiveBack { unsettled, done } => *done = count.min(unsettled.len()),
            _ => {}
        }
        self
    }

    /// The same without its number.
    pub(super) fn unnumbered(self) -> Self {
        match self {
            Self::Numbered(_, job) => *job,
            job => job,
        }
    }

    /// How many of its messages or settlements are done.
    pub(super) fn progress(&self) -> usize {
        match self {
            Self::Publish { done, .. }
            | Self::Settle { done, .. }
            | Self::GiveBack { done, .. } => *done,
            Self::Numbered(_, job) => job.progress(),
            _ => 0,
        }
    }

    /// How many messages it has that are, or were, to be stored; a transaction counts as one.
    pub(super) fn messages(&self) -> usize {
        match self {
            Self::Publish { messages, .. } => messages.len(),
            Self::Numbered(_, job) => job.messages(),
            Self::Letter(letter) => messages_of(letter),
            _ => 0,
        }
    }

    /// About how many bytes it takes.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Publish { bytes, .. } => *bytes,
            Self::Settle { settlements, .. } | Self::Return { settlements, .. } => {
                bytes_of(settlements)
            }
            Self::GiveBack { unsettled, .. } => unsettled.share_of(unsettled.bytes()),
            Self::Leave(_, backlog) => backlog.bytes(),
            Self::List(list) => list.bytes(),
            Self::Numbered(_, job) => job.bytes(),
            Self::Letter(letter) => match &**letter {
                ToShard::Commit { messages, settlements, .. }
                | ToShard::Prepare { messages, settlements, .. } => {
                    let each = |it: &Publish| it.message.len() + size_of::<Publish>() as u64;
                    messages.iter().map(each).sum::<u64>() + bytes_of(settlements)
                }
                ToShard::DeadLetter { message, .. } => message.message.len(),
                _ => 0,
            },
            Self::Disconnect { .. }
            | Self::CancelRest(_)
            | Self::Purged(..)
            | Self::Replay(_)
            | Self::Forget
            | Self::DeadLetters(_) => 0,
        }
    }
}

fn bytes_of(settlements: &Vec<Settlement>) -> u64 {
    (settlements.capacity() * size_of::<Settlement>()) as u64
}

/// What messages will cost.
pub(super) fn price_of(messages: &[Publish]) -> u64 {
    cost::APPEND * messages.len() as u64 + price_of_places(messages)
}

/// What it will cost to put messages that are stored into their queues.
pub(super) fn price_of_places(messages: &[Publish]) -> u64 {
    messages.iter().map(|it| cost::PLACE * it.targets.len() as u64).sum()
}

/// About what it will cost to look at what was given back, but for the first `done`: as if all groups had as much of it.
pub(super) fn price_of_rest(unsettled: &GivenBack, done: usize) -> u64 {
    let left = (unsettled.len() - done) as u64;
    cost::SETTLE * unsettled.share_of(left) + left / cost::LOOKED_AT_A_UNIT
}

/// A shard's work: what was done of it in this turn, and what waits.
#[derive(Debug)]
pub(super) struct Jobs {
    /// What does not fit a turn.
    work: Work<JobOrigin, Job>,
    /// Units of work that were done since somebody [began](Self::count) to count.
    used: u64,
    /// Memory that jobs take.
    bytes: u64,
    /// Connections that are not read from because of what they have waiting here.
    paused: HashSet<ConnectionId, FixedState>,
}

impl Default for Jobs {
    fn default() -> Self {
        Self { work: Work::new(LIMITS), used: 0, bytes: 0, paused: HashSet::default() }
    }
}

impl Jobs {
    /// Work was done.
    #[inline]
    pub(super) fn pay(&mut self, units: u64) {
        self.used += units;
    }

    /// Begins to count what is done.
    #[inline]
    pub(super) fn count(&mut self) {
        self.used = 0;
    }

    /// What was done since then.
    #[inline]
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Takes what was done from the turn, but for what was taken already.
    #[inline]
    pub(super) fn spend_beyond(&mut self, taken: u64) {
        self.work.spend(self.used.saturating_sub(taken));
    }

    /// Takes what was done from the turn.
    #[inline]
    pub(super) fn spend(&mut self) {
        self.work.spend(self.used);
    }

    /// A turn begins.
    pub(super) fn begin(&mut self) {
        self.work.begin();
    }

    /// Whether so much more of a line can be done at once: it is taken from the turn then.
    #[inline]
    pub(super) fn fits(&mut self, line: JobOrigin, units: u64) -> bool {
        self.work.fits(line, units)
    }

    /// What remains of the turn.
    pub(super) fn left(&self) -> u64 {
        self.work.left()
    }

    /// Half of what a turn has.
    #[inline]
    pub(super) fn half_turn(&self) -> u64 {
        (self.work.limits().turn / 2).max(1)
    }

    /// Whether so much was done in this turn.
    pub(super) fn is_half_over(&self) -> bool {
        self.work.spent() + self.used >= self.work.limits().turn / 2
    }

    pub(super) fn is_empty(&self) -> bool {
        self.work.is_empty()
    }

    /// What all that waits will cost.
    pub(super) fn units(&self) -> u64 {
        self.work.units()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Something was done for a line that could not wait.
    pub(super) fn charge(&mut self, line: JobOrigin, units: u64) {
        self.pay(units);
        self.work.charge(line, units);
    }

    /// Puts a job into a line. Who has brought more than others, when much waits, is not read from for a while.
    #[cold]
    pub(super) fn wait_in(&mut self, line: JobOrigin, job: Job, units: u64, out: &mut Outbox) {
        let job = match job {
            Job::Letter(letter) if matches!(*letter, ToShard::List { .. }) => {
                let ToShard::List { reply, queues, consumers } = *letter else { return };
                Job::List(Box::new(Listing::new(reply, queues, consumers)))
            }
            job => job,
        };
        self.bytes += job.bytes();
        self.work.push(line, job, units);
        let is_much = self.work.units() > WAITING_UNITS_MAX || self.bytes > WAITING_BYTES_MAX;
        if is_much
            && let JobOrigin::Connection(who) = line
            && who != ConnectionId::NOBODY
            && self.work.units_of(line) * self.work.lines() as u64 >= self.work.units()
            && !self.paused.contains(&who)
        {
            self.paused.insert(who);
            out.session(who, ToSession::Paused(true));
        }
    }

    /// Puts a job before all others of a line: it follows from what is being done for this line.
    #[cold]
    pub(super) fn wait_first(&mut self, line: JobOrigin, job: Job, units: u64) {
        self.bytes += job.bytes();
        self.work.push_first(line, job, units);
    }

    /// The next piece, if the turn has room for one. It is counted.
    pub(super) fn next_piece(&mut self) -> Option<Piece<JobOrigin, Job>> {
        let piece = self.work.next_piece()?;
        self.used = 0;
        Some(piece)
    }

    /// A piece is done of a job that took so many bytes: what remains of it, and what that will cost.
    pub(super) fn piece_done(
        &mut self,
        line: JobOrigin,
        before: u64,
        rest: Option<(Job, u64)>,
        out: &mut Outbox,
    ) {
        let after = rest.as_ref().map_or(0, |(job, _)| job.bytes());
        self.bytes = (self.bytes + after).saturating_sub(before);
        match rest {
            Some((job, units)) => self.work.go_on(line, job, self.used, units),
            None => self.work.done(line, self.used),
        }
        self.resume_if_short(line, out);
    }

    /// A line got shorter: its connection may go on if it is not the one that others wait for.
    fn resume_if_short(&mut self, line: JobOrigin, out: &mut Outbox) {
        if let JobOrigin::Connection(who) = line
            && !self.paused.is_empty()
            && self.work.units_of(line) * self.work.lines() as u64 <= WAITING_UNITS_MAX / 2
            && self.paused.remove(&who)
        {
            out.session(who, ToSession::Paused(false));
        }
    }

    /// Takes all jobs out: the process stops, or the log lost its end.
    pub(super) fn drain(&mut self) -> Vec<(JobOrigin, Job)> {
        self.bytes = 0;
        self.work.drain()
    }

    /// Messages that left their queues all at once, and are not let go of yet.
    pub(super) fn leaving(&self) -> u64 {
        let jobs = self.work.jobs().map(|(_, job)| match job {
            Job::Leave(_, backlog) => backlog.len() - backlog.held(),
            _ => 0,
        });
        jobs.sum()
    }

    /// Dead letters that deleted queues held, and that are not looked at yet.
    pub(super) fn leaving_held(&self) -> u64 {
        let jobs = self.work.jobs().map(|(_, job)| match job {
            Job::Leave(_, backlog) => backlog.held(),
            _ => 0,
        });
        jobs.sum()
    }

    pub(super) fn set_limits(&mut self, limits: Limits) {
        self.work.set_limits(limits);
    }

    /// What a turn may cost.
    pub(super) fn limits(&self) -> Limits {
        self.work.limits()
    }

    /// Units that the last turn cost.
    pub(super) fn spent(&self) -> u64 {
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
