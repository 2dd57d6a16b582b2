//! When a shard's log goes to the disk, and what waits until it is there.
//!
//! Everything a turn did is in the log when the turn ends; only then is it decided whether the disk gets
//! it. Between two calls of `Log::sync` lies one batch, which a crash takes or leaves as a whole, so a
//! turn is never cut in two, and neither is what a transaction did here: where a batch leaves out what is younger, it
//! ends where a turn began.
//!
//! ```text
//!   somebody waits, and no consumer is about to ack it      now       ready messages, `enqueue`, tx.commit
//!   a consumer has it, or those of its queue keep acking    5 ms      after the oldest one was appended,
//!                                                                     or twice what acks take: [`Pace`];
//!                                                                     without those much younger than it
//!   it is on the disk and was released, or came back        200 ms    without what a consumer has
//! ```
//!
//! A record that is released before its batch is handed over is never written, and the log's `durable`
//! passes it. So the oldest record that the disk would have to write is the one at `durable`, and while
//! consumers ack within the time they are given nothing is written at all.
//!
//! A sync that fails is the end: see [`Shard::disk_failed`].

use std::collections::VecDeque;

use leveret_amqp::reply::ReplyCode;
use leveret_log::{Log, Moment, SyncError};
use leveret_queue::{Offset, Time};
use leveret_topology::QueueId;

use super::Shard;
use crate::flow::DiskGauge;
use crate::message::{
    ConnectionId, DeadLetterFrom, Outbox, Reply, ReplyTo, Taken, ToSession, ToShard,
};
use crate::transaction::TxId;

/// How long a message that a consumer has may wait for its ack before it is written, in ms, at least.
pub const LAZY_MS: u64 = 5;

/// The same, at most: however long acks take, a confirm does not wait longer for them.
pub const LAZY_MAX_MS: u64 = 200;

/// How long releases of what is on the disk may wait for a batch, in ms.
const RELEASED_MS: u64 = 200;

/// How many releases may wait, if nothing else does: what is noted of them takes memory.
const RELEASED_MAX: usize = 16 << 10;

/// What a shard knows of its disk.
#[derive(Debug, Default)]
pub(super) struct Disk {
    /// Records below it are to be durable as soon as can be.
    asked: u64,
    /// Records below it have waited long enough.
    aged: Moment,
    /// When this turn began.
    turn_from: Moment,
    /// How often that was said: a queue that is marked with it holds a record that waits.
    pub(super) batch: u64,
    /// Where turns began that appended durable records, and when: the first one of each millisecond.
    appended: VecDeque<(Moment, Time)>,
    pace: Pace,
    /// When the disk is to know of what was released or marked, unless other things speak against it.
    released_at: Option<Time>,
    /// The next batch is to go whatever the watermarks say.
    is_due: bool,
    /// Somebody waited when the disk was last looked at.
    is_awaited: bool,
    /// Ascending by the offset that has to be durable first.
    waiters: VecDeque<(u64, Waiter)>,
    pub(super) has_failed: bool,
    /// When the log was last said to take no messages.
    pub(super) complained_at: Option<Time>,
    gauge: DiskGauge,
    /// Publishers that were told to pause.
    paused: Vec<ConnectionId>,
    /// How often publishers began to pause.
    pub(super) pauses: u64,
}

/// Who waits for the disk, apart from publishers.
#[derive(Debug)]
pub(super) enum Waiter {
    /// `tx.commit`.
    Commit(ReplyTo),
    /// `tx.commit` of which other shards have parts: this one is stored.
    Prepared(ReplyTo, TxId),
    /// What such a transaction did is stored, as the note at this offset is.
    Applied(TxId, Offset),
    /// Another shard, or this one: its dead letter is safe here.
    DeadLetter(DeadLetterFrom, QueueId),
    /// Publishers whose messages are in a queue that waits for its consumers no more: these are safe.
    Freed(QueueId, Vec<u64>),
}

/// How long acks take here, and so how long the disk is kept waiting for them.
///
/// Under load a message is on its way to its consumer, and its ack on its way back, for much longer than a
/// consumer at rest needs; written after [`LAZY_MS`], nearly all would be written in vain, and the writing
/// makes it worse. So one message at a time is watched: twice its time is what the next ones get. If
/// it takes more than half of [`LAZY_MAX_MS`], waiting for such consumers is no use, and they get less.
#[derive(Debug)]
struct Pace {
    lazy_ms: u64,
    /// The message that is watched, and when it was appended.
    watched: Option<(u64, Time)>,
    is_released: bool,
}

impl Default for Pace {
    fn default() -> Self {
        Self { lazy_ms: LAZY_MS, watched: None, is_released: false }
    }
}

impl Pace {
    #[inline]
    fn appended(&mut self, at: u64, now: Time) {
        self.watched.get_or_insert((at, now));
    }

    #[inline]
    fn released(&mut self, at: u64) {
        self.is_released |= self.watched.is_some_and(|(watched, _)| watched == at);
    }

    /// Once per turn.
    fn look(&mut self, now: Time) {
        let Some((_, since)) = self.watched else { return };
        let twice_ms = 2 * now.ms().saturating_sub(since.ms());
        let wanted_ms = match std::mem::take(&mut self.is_released) {
            true => twice_ms.max(self.lazy_ms - self.lazy_ms / 8),
            false if twice_ms > LAZY_MAX_MS => self.lazy_ms / 2,
            false => return,
        };
        self.watched = None;
        self.lazy_ms = wanted_ms.clamp(LAZY_MS, LAZY_MAX_MS);
    }
}

impl Disk {
    /// The log has records from before this process: those below `end`.
    pub(super) fn opened(&mut self, moment: Moment) {
        self.turn_from = moment;
    }

    /// A record that is to be durable was appended.
    #[inline]
    pub(super) fn appended(&mut self, at: u64, now: Time) {
        self.pace.appended(at, now);
        if self.appended.back().is_none_or(|&(_, last)| last != now) {
            self.appended.push_back((self.turn_from, now));
        }
    }

    /// What is below `end` is wanted now.
    #[inline]
    pub(super) fn ask(&mut self, end: u64) {
        self.asked = self.asked.max(end);
    }

    /// A deferred record is to be durable, which is told by `end`.
    pub(super) fn persist(&mut self, end: u64) {
        self.ask(end);
        self.is_due = true;
    }

    /// A record was released.
    #[inline]
    pub(super) fn released(&mut self, at: u64) {
        self.pace.released(at);
    }

    /// Somebody is to be told when everything below `end` is durable.
    pub(super) fn wait(&mut self, end: u64, waiter: Waiter) {
        self.ask(end);
        self.waiters.push_back((end, waiter));
    }

    /// The same, without asking for it.
    pub(super) fn wait_lazily(&mut self, end: u64, waiter: Waiter) {
        self.waiters.push_back((end, waiter));
    }

    /// Whether publishers pause that published when [`pauses`](Self::pauses) was this.
    pub(super) fn is_in_flow(&self, pauses: u64) -> bool {
        !self.paused.is_empty() && self.pauses == pauses
    }

    /// The connection ended.
    pub(super) fn forget(&mut self, connection: ConnectionId) {
        self.paused.retain(|&other| other != connection);
    }

    /// Whether consumers who acked something at `acked_at` are so quick that what they will be given next need
    /// not be written before.
    pub(super) fn is_worth_waiting(&self, acked_at: Option<Time>, now: Time) -> bool {
        acked_at.is_some_and(|at| now <= at.after_ms(self.pace.lazy_ms))
    }

    /// When the disk is to get something although nothing happens.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        let lazy = self.appended.front().map(|&(_, at)| at.after_ms(self.pace.lazy_ms));
        lazy.into_iter().chain(self.released_at).min()
    }

    /// Forgets what is durable, and says what waited long enough.
    fn look_at_age(&mut self, durable: u64, all: Moment, now: Time) {
        let lazy_ms = self.pace.lazy_ms;
        if self.appended.front().is_some_and(|&(_, at)| at.after_ms(lazy_ms) <= now) {
            // What is nearly as old goes with it. Of what is younger most will be acked before its time.
            let old_ms = lazy_ms - lazy_ms / 4;
            let young = self.appended.iter().find(|(_, at)| at.after_ms(old_ms) > now);
            self.aged = young.map_or(all, |&(from, _)| from);
        }
        let passed = durable.max(self.asked).max(self.aged.end.get());
        if passed == all.end.get() {
            self.appended.clear();
        }
        while self.appended.get(1).is_some_and(|&(from, _)| from.end.get() <= passed) {
            self.appended.pop_front();
        }
    }
}

impl<L: Log> Shard<L> {
    /// Ends a turn as far as the disk is concerned.
    pub(super) fn settle_with_disk(&mut self, now: Time, out: &mut Outbox) {
        if self.disk.has_failed {
            return;
        }
        if let Err(error) = self.hand_to_disk(now) {
            self.disk_failed(&error, out);
            return;
        }
        let durable = self.log.durable().get();
        self.unresolved.durable(durable, &mut self.runs);
        while self.disk.waiters.front().is_some_and(|&(end, _)| end <= durable)
            && let Some((_, waiter)) = self.disk.waiters.pop_front()
        {
            match waiter {
                Waiter::Prepared(_, tx) => self.vote(tx, out),
                Waiter::Applied(tx, note) => self.applied(tx, note, out),
                Waiter::Freed(queue, messages) => self.free(queue, &messages),
                other => other.tell_safe(out),
            }
        }
        self.runs.flush(out);
        let unwritten = self.log.unwritten_bytes();
        if self.disk.gauge.is_low(unwritten) {
            for connection in self.disk.paused.drain(..) {
                out.session(connection, ToSession::Paused(false));
            }
        }
    }

    fn hand_to_disk(&mut self, now: Time) -> Result<(), SyncError> {
        self.disk.is_awaited = self.disk.asked > self.log.durable().get();
        self.log.collect()?;
        let (durable, all) = (self.log.durable().get(), self.log.moment());
        let end = all.end.get();
        let unwritten = self.log.unwritten_bytes();
        let disk = &mut self.disk;
        disk.pace.look(now);
        disk.look_at_age(durable, all, now);
        // Nobody waits for a release or a mark; but it is to be there after a while, though nothing else happens.
        let notes = self.log.notes();
        if notes > 0 {
            disk.released_at.get_or_insert_with(|| now.after_ms(RELEASED_MS));
        }
        if !disk.gauge.is_low(unwritten) {
            disk.ask(end);
        }
        disk.is_due |= notes > RELEASED_MAX && disk.appended.is_empty();
        let releases_due = disk.released_at.is_some_and(|at| at <= now);
        match disk.appended.front() {
            // Without what came since: it may be acked soon, and would be written now and released in its turn, and
            // so for ever.
            Some(&(from, _)) if releases_due && from.end >= disk.aged.end => disk.aged = from,
            Some(_) => {}
            None => disk.is_due |= releases_due,
        }
        disk.turn_from = all;
        let aged = disk.aged.end.get();
        if durable < disk.asked || disk.is_due || durable < end && aged == end {
            disk.batch += 1;
            disk.is_due = false;
            self.log.sync()?;
        } else if durable < aged || releases_due {
            // Releases that were made by then go with it, the others with the next one.
            self.log.sync_until(disk.aged)?;
        } else {
            return Ok(());
        }
        // Perhaps the disk is busy with an earlier batch, and took nothing yet.
        let again = now.after_ms(RELEASED_MS);
        self.disk.released_at = (self.log.notes() > 0).then_some(again);
        Ok(())
    }

    /// Whether somebody waited for what the disk did before this turn, so that what follows from it should not wait for
    /// anything else.
    pub fn is_awaited(&self) -> bool {
        self.disk.is_awaited
    }

    /// Has a publisher pause while much is still to be written. `from` just published here. True when it
    /// does.
    pub(super) fn pause_if_far_behind(&mut self, from: ConnectionId, out: &mut Outbox) -> bool {
        let disk = &mut self.disk;
        if !disk.gauge.is_high(self.log.unwritten_bytes()) || disk.has_failed {
            return false;
        }
        disk.pauses += u64::from(disk.paused.is_empty());
        if !disk.paused.contains(&from) {
            disk.paused.push(from);
            out.session(from, ToSession::Paused(true));
        }
        true
    }

    /// Nothing that this process writes can be trusted to be on the disk any more: the system may have
    /// dropped the pages that it could not write, and a second attempt would succeed without them. So
    /// whoever waits is told no, the log takes nothing more, and the server is told to stop.
    #[cold]
    fn disk_failed(&mut self, error: &SyncError, out: &mut Outbox) {
        tracing::error!(
            %error, shard = self.index,
            "messages could not be written to the disk: nothing is confirmed any more and the broker \
             has to be started again. Look at the disk (is it full, are there errors in the system's \
             log?) first. What was confirmed is safe; publishers send the rest again"
        );
        self.disk.has_failed = true;
        self.unresolved.fail_all(&mut self.runs);
        self.runs.flush(out);
        for (_, waiter) in self.disk.waiters.drain(..) {
            waiter.tell_lost(out);
        }
        for connection in self.disk.paused.drain(..) {
            out.session(connection, ToSession::Paused(false));
        }
        self.end_pauses(out);
        self.disk.appended.clear();
        self.disk.released_at = None;
        out.failed = Some(error.to_string());
    }
}

impl Waiter {
    fn tell_safe(self, out: &mut Outbox) {
        match self {
            Self::Commit(reply) => out.reply(reply, Reply::Committed),
            Self::DeadLetter(from, target) => {
                out.shard(from.shard, ToShard::DeadLettered { from, target, taken: Taken::Yes });
            }
            Self::Prepared(..) | Self::Applied(..) | Self::Freed(..) => {}
        }
    }

    /// A dead letter stays where it was: the process is about to stop.
    fn tell_lost(self, out: &mut Outbox) {
        if let Self::Commit(reply) | Self::Prepared(reply, _) = self {
            let text = "the transaction could not be written to the disk".to_owned();
            out.reply(reply, Reply::Refused { code: ReplyCode::InternalError, text });
        }
    }
}
