//! When a shard's log goes to the disk, and what waits until it is there.
//!
//! Everything a turn did is in the log when the turn ends; only then is it decided whether the disk gets
//! it. Between two calls of `Log::sync` lies one batch, which a crash takes or leaves as a whole, so a
//! turn is never cut in two, and neither is what a transaction did here: where a batch leaves out what is younger, it
//! ends where a turn began.
//!
//! ```text
//!   somebody waits, and no consumer is about to ack it      now       `enqueue`, tx.commit; what is ready, or
//!                                                                     consumers ack no sooner than a disk: [`race`]
//!   somebody waits, and its consumers are quicker           the time  after the oldest one was appended;
//!                                                           of a sync without those much younger than it
//!   nobody waits                                            5 ms      or twice what acks take: [`Pace`]
//!   it is on the disk and was released, or came back        200 ms    without what a consumer has
//! ```
//!
//! A record that is released before its batch is handed over is never written, and the log's `durable`
//! passes it. So the oldest record that the disk would have to write is the one at `durable`, and while
//! consumers ack within the time they are given nothing is written at all.
//!
//! [`race`]: super::race
//!
//! A sync that fails is the end: see [`progress`](super::super::progress).

use std::collections::VecDeque;

use leveret_log::{Log, Moment, SyncError};
use leveret_queue::{Offset, Time};
use leveret_topology::QueueId;

use super::Store;
use super::race::{Odds, Race, RaceResult};
use crate::flow::{DiskGauge, SPILLED_BYTES_MAX};
use crate::message::{ConnectionId, DeadLetterFrom, Outbox, ReplyTo, ToSession};
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
    /// The end of the turn in which that was said.
    asked_until: Moment,
    /// Records below it have waited long enough.
    aged: Moment,
    /// When this turn began.
    turn_from: Moment,
    /// How often that was said: a queue that is marked with it holds a record that waits.
    batch: u64,
    /// Where turns began that appended durable records, and when, in microseconds: the first one of each millisecond.
    appended: VecDeque<(Moment, u64)>,
    /// Those of them with records that a publisher waits for.
    held: VecDeque<(Moment, u64)>,
    pace: Pace,
    race: Race,
    /// When the disk is to know of what was released or marked, unless other things speak against it.
    released_at: Option<Time>,
    /// The next batch is to go whatever the watermarks say.
    is_due: bool,
    /// Somebody waited when the disk was last looked at.
    is_awaited: bool,
    joins: Joins,
    /// Ascending by the offset that has to be durable first.
    waiters: VecDeque<(u64, Waiter)>,
    /// The same, of those who wait for all members in contact, with the queues that want that.
    all_waiters: VecDeque<(u64, Vec<QueueId>, Waiter)>,
    has_failed: bool,
    gauge: DiskGauge,
    /// Publishers that were told to pause.
    paused: Vec<ConnectionId>,
    /// How often publishers began to pause.
    pauses: u64,
}

/// Makes one of windows that were split.
///
/// A queue that turns slow has a part of each window confirmed by its consumer and the rest by the disk. From then on the parts take
/// turns with the disk, each waiting for the other's batch, at half the rate that they would have together. So for some batches
/// the disk, though it is free, waits for those who were just told of a batch: until their next message comes, a quarter of
/// a sync at most.
#[derive(Debug, Default)]
struct Joins {
    /// For so many batches more.
    left: u8,
    /// How far the disk was when it was last looked at.
    durable: u64,
    /// The disk waits until then, in microseconds.
    until_us: Option<u64>,
}

/// For so many batches windows are looked at after a queue turned slow.
const JOINS: u8 = 16;

impl Joins {
    /// Whether the disk is to wait a moment more. Records below `asked` are wanted, some of them `is_new` in this turn.
    fn waits(&mut self, durable: u64, asked: u64, is_new: bool, race: &Race) -> bool {
        let finished = durable - std::mem::replace(&mut self.durable, durable);
        let now_us = race.now_us();
        if finished > 0 && self.left > 0 {
            self.left -= 1;
            let are_few = asked > durable && asked - durable <= finished;
            self.until_us = race.moment_us().filter(|_| are_few).map(|us| now_us + us);
        }
        self.until_us = self.until_us.filter(|&us| !is_new && now_us < us);
        self.until_us.is_some()
    }
}

/// Who waits for the disk, apart from publishers.
#[derive(Debug)]
pub(in super::super) enum Waiter {
    /// `tx.commit`.
    Commit(ReplyTo),
    /// `tx.commit` that is decided, and that others agree upon: not all of those who are to have it do.
    Decided(ReplyTo),
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

impl<L: Log> Store<L> {
    /// The log has records from before this process.
    pub(super) fn opened(&mut self) {
        self.disk.turn_from = self.log.moment();
    }

    /// A turn begins; `micros` is the same moment in microseconds, if that is known. Where processors are short, messages and acks
    /// are on their way for long, and what is written takes from all.
    pub(in super::super) fn begins(&mut self, now: Time, micros: u64, is_pressed: bool) {
        self.disk.race.begins(now, micros, is_pressed);
    }

    /// A record that is to be durable was appended.
    #[inline]
    pub(super) fn appended(&mut self, at: u64, now: Time) {
        let disk = &mut self.disk;
        disk.pace.appended(at, now);
        mark(&mut disk.appended, disk.turn_from, disk.race.now_us());
    }

    /// A record is released.
    #[inline]
    pub(super) fn released(&mut self, at: u64, queue: QueueId) {
        self.disk.pace.released(at);
        self.disk.race.released(at, queue);
    }

    /// A record was put into a queue whose publisher waits until the disk has it, or a consumer acks it. The queue is marked with
    /// what this returns: see [`is_awaited_in`](Self::is_awaited_in).
    #[inline]
    pub(in super::super) fn hold(&mut self, at: Offset, queue: QueueId) -> u64 {
        let disk = &mut self.disk;
        disk.race.watch(at.get(), queue);
        disk.race.holds();
        mark(&mut disk.held, disk.turn_from, disk.race.now_us());
        disk.batch
    }

    /// Whether a queue with this mark has a record that is held and that the disk was not given yet.
    #[inline]
    pub(in super::super) fn is_awaited_in(&self, mark: u64) -> bool {
        self.disk.batch == mark
    }

    /// The same record is in such a queue, but the disk does not wait for its consumers.
    pub(in super::super) fn watch(&mut self, at: Offset, queue: QueueId) {
        self.disk.race.watch(at.get(), queue);
    }

    /// Whether consumers of a queue of which nothing is known are quicker than the disk.
    #[inline]
    pub(in super::super) fn are_new_quick(&self) -> bool {
        self.disk.race.are_new_quick()
    }

    /// What is below `end` is wanted on the disk now.
    #[inline]
    pub(in super::super) fn ask(&mut self, end: u64) {
        self.disk.ask(end);
    }

    /// All that there is is wanted on the disk now.
    pub(in super::super) fn ask_for_all(&mut self) {
        self.disk.ask(self.log.end().get());
    }

    /// Somebody is to be told when everything below `end` is durable.
    pub(in super::super) fn wait(&mut self, end: u64, waiter: Waiter) {
        self.disk.ask(end);
        self.wait_lazily(end, waiter);
    }

    /// The same, without asking for it.
    pub(in super::super) fn wait_lazily(&mut self, end: u64, waiter: Waiter) {
        self.disk.waiters.push_back((end, waiter));
    }

    /// Somebody is to be told when all members in contact have everything below `end`, as these queues want that; if it is known.
    pub(in super::super) fn wait_for_all(
        &mut self,
        end: u64,
        queues: Vec<QueueId>,
        waiter: Waiter,
    ) {
        self.disk.ask(end);
        self.disk.all_waiters.push_back((end, queues, waiter));
    }

    /// Queues have other options: who waits for all members in contact, and is not to any more, waits for a majority.
    #[cold]
    pub(in super::super) fn wait_for_majority(&mut self, waits: impl Fn(&[QueueId]) -> bool) {
        let Disk { waiters, all_waiters, .. } = &mut self.disk;
        for (end, queues, waiter) in std::mem::take(all_waiters) {
            if waits(&queues) {
                all_waiters.push_back((end, queues, waiter));
            } else {
                waiters.insert(waiters.partition_point(|(other, _)| *other <= end), (end, waiter));
            }
        }
    }

    /// Whether somebody does.
    #[inline]
    pub(in super::super) fn waits_for_all(&self) -> bool {
        !self.disk.all_waiters.is_empty()
    }

    /// The next one that waits for no more than is durable, or than all have.
    pub(in super::super) fn next_safe(&mut self) -> Option<Waiter> {
        let durable = self.durable();
        let mut next = self.disk.waiters.pop_front_if(|(end, _)| *end <= durable);
        if next.is_none() && self.waits_for_all() {
            let on_all = self.on_all();
            let waiter = self.disk.all_waiters.pop_front_if(|(end, ..)| *end <= on_all);
            next = waiter.map(|(end, _, waiter)| (end, waiter));
        }
        next.map(|(_, waiter)| waiter)
    }

    /// Takes all who wait, with how far the log has to be for that.
    pub(in super::super) fn take_waiters(&mut self) -> VecDeque<(u64, Waiter)> {
        let mut waiters = std::mem::take(&mut self.disk.waiters);
        let of_all = std::mem::take(&mut self.disk.all_waiters);
        waiters.extend(of_all.into_iter().map(|(end, _, waiter)| (end, waiter)));
        waiters
    }

    /// Has a publisher pause while much is still to be written. `from` just published here. True when it
    /// does.
    pub(in super::super) fn pause_if_far_behind(
        &mut self,
        from: ConnectionId,
        out: &mut Outbox,
    ) -> bool {
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

    /// Whether so much is still to be written that publishers pause.
    #[inline]
    pub(in super::super) fn is_far_behind(&self) -> bool {
        self.disk.gauge.is_high(self.log.unwritten_bytes())
    }

    /// Lets publishers go on, if little is to be written.
    pub(in super::super) fn resume_if_written(&mut self, out: &mut Outbox) {
        if self.disk.gauge.is_low(self.log.unwritten_bytes()) {
            self.resume_publishers(out);
        }
    }

    /// Lets publishers go on, whatever is to be written.
    pub(in super::super) fn resume_publishers(&mut self, out: &mut Outbox) {
        for connection in self.disk.paused.drain(..) {
            out.session(connection, ToSession::Paused(false));
        }
    }

    /// What the queues of a publisher who pauses now are marked with.
    pub(in super::super) fn flow_mark(&self) -> u64 {
        self.disk.pauses
    }

    /// Whether the publishers of a queue with this mark pause still.
    pub(in super::super) fn is_in_flow(&self, mark: u64) -> bool {
        !self.disk.paused.is_empty() && self.disk.pauses == mark
    }

    /// The connection ended.
    pub(in super::super) fn forget(&mut self, connection: ConnectionId) {
        self.disk.paused.retain(|&other| other != connection);
    }

    /// Whether somebody waited for what the disk did before this turn.
    pub(in super::super) fn is_awaited(&self) -> bool {
        self.disk.is_awaited
    }

    /// Whether a batch could not be written: nothing is durable any more that was not.
    pub(in super::super) fn has_failed(&self) -> bool {
        self.disk.has_failed
    }

    /// A batch could not be written. Returns those who wait in vain.
    #[cold]
    pub(in super::super) fn fail(&mut self) -> impl Iterator<Item = Waiter> + use<L> {
        let disk = &mut self.disk;
        disk.has_failed = true;
        disk.appended.clear();
        disk.held.clear();
        disk.joins = Joins::default();
        disk.released_at = None;
        self.take_waiters().into_iter().map(|(_, waiter)| waiter)
    }

    /// Takes in what the disk finished, and gives it what it is to have. `each` is told what came of the messages of a
    /// queue and what is believed of new queues, and says whether the queue turned slow.
    pub(in super::super) fn hand_over(
        &mut self,
        now: Time,
        mut each: impl FnMut(QueueId, &mut Odds, RaceResult) -> bool,
    ) -> Result<(), SyncError> {
        self.disk.is_awaited = self.disk.asked > self.log.durable().get();
        self.log.collect()?;
        self.disk.race.saw_disk(self.log.under_way());
        let (durable, all) = (self.log.durable().get(), self.log.moment());
        let end = all.end.get();
        let unwritten = self.log.unwritten_bytes();
        let disk = &mut self.disk;
        disk.pace.look(now);
        disk.race.look();
        if disk.race.is_to_be_measured(unwritten) {
            disk.ask(end);
        }
        disk.look_at_age(durable, all);
        // Nobody waits for a release or a mark; but it is to be there after a while, though nothing else happens.
        let notes = self.log.notes();
        if notes > 0 {
            disk.released_at.get_or_insert_with(|| now.after_ms(RELEASED_MS));
        }
        if !disk.gauge.is_low(unwritten) {
            disk.ask(end);
        }
        disk.is_due |= notes > RELEASED_MAX && disk.appended.is_empty() || self.log.wants_batch();
        let releases_due = disk.released_at.is_some_and(|at| at <= now);
        match disk.appended.front() {
            // Without what came since: it may be acked soon, and would be written now and released in its turn, and
            // so for ever.
            Some(&(from, _)) if releases_due && from.end >= disk.aged.end => disk.aged = from,
            Some(_) => {}
            None => disk.is_due |= releases_due,
        }
        disk.turn_from = all;
        let is_new = disk.asked > disk.asked_until.end.get();
        if is_new {
            disk.asked_until = all;
        }
        let waits = disk.joins.waits(durable, disk.asked, is_new, &disk.race);
        // What came since may be acked soon.
        let until = match disk.aged.end < disk.asked_until.end {
            true => disk.asked_until,
            false => disk.aged,
        };
        let wanted = until.end.get();
        let is_wanted =
            durable < wanted && !(waits && disk.aged.end.get() <= durable) || releases_due;
        disk.race.set_unwritten(unwritten);
        let Self { log, disk, .. } = self;
        disk.race.results(|queue, of_new, told| {
            if each(queue, of_new, told) {
                disk.joins.left = JOINS;
            }
        });
        if disk.is_due || is_wanted && wanted == end {
            disk.batch += 1;
            disk.is_due = false;
            log.sync()?;
        } else if is_wanted {
            // Releases that were made by then go with it, the others with the next one.
            log.sync_until(until)?;
        } else {
            if log.spilled_bytes() > SPILLED_BYTES_MAX {
                // Nobody waits for what is written to save memory; but the less it is, the shorter others wait for its write.
                // What is held back stays, and so do notes: nothing is to be synced for them.
                let end = disk.appended.front().map_or(all.end, |&(from, _)| from.end);
                log.sync_until(Moment { end, notes: 0 })?;
            }
            return Ok(());
        }
        disk.race.saw_disk(log.under_way());
        // Perhaps the disk is busy with an earlier batch, and took nothing yet.
        let again = now.after_ms(RELEASED_MS);
        self.disk.released_at = (self.log.notes() > 0).then_some(again);
        Ok(())
    }
}

impl Disk {
    #[inline]
    fn ask(&mut self, end: u64) {
        self.asked = self.asked.max(end);
    }

    /// A deferred record is to be durable, which is told by `end`.
    pub(super) fn persist(&mut self, end: u64) {
        self.ask(end);
        self.hand_over_all();
    }

    /// All that was done is to go to the disk in this turn.
    pub(super) fn hand_over_all(&mut self) {
        self.is_due = true;
    }

    /// When the disk is to get something although nothing happens.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        let at = |marks: &VecDeque<(Moment, u64)>, wait_us: u64| {
            let &(_, since_us) = marks.front()?;
            Some(Time::from_ms((since_us + wait_us).div_ceil(1000)))
        };
        let lazy = at(&self.appended, self.pace.lazy_ms * 1000);
        let held = at(&self.held, self.race.hold_us());
        let joins = self.joins.until_us.map(|us| Time::from_ms(us.div_ceil(1000)));
        lazy.into_iter().chain(held).chain(joins).chain(self.released_at).min()
    }

    /// Forgets what is durable, and says what waited long enough.
    fn look_at_age(&mut self, durable: u64, all: Moment) {
        let now_us = self.race.now_us();
        let waits = [
            (self.appended.front(), self.pace.lazy_ms * 1000),
            (self.held.front(), self.race.hold_us()),
        ];
        for (oldest, wait_us) in waits {
            if oldest.is_some_and(|&(_, since_us)| since_us + wait_us <= now_us) {
                // What is nearly as old goes with it. Of what is younger most will be acked before its time.
                let old_us = wait_us - wait_us / 4;
                let young = self.appended.iter().find(|(_, at_us)| at_us + old_us > now_us);
                let until = young.map_or(all, |&(from, _)| from);
                if until.end > self.aged.end {
                    self.aged = until;
                }
            }
        }
        // The last one may be followed by many records that nobody waits for: it does not go by how far the disk is.
        let hold_us = self.race.hold_us();
        while self.held.front().is_some_and(|&(_, since_us)| since_us + hold_us <= now_us) {
            self.held.pop_front();
        }
        let passed = durable.max(self.asked).max(self.aged.end.get());
        for marks in [&mut self.appended, &mut self.held] {
            if passed == all.end.get() {
                marks.clear();
            }
            while marks.get(1).is_some_and(|&(from, _)| from.end.get() <= passed) {
                marks.pop_front();
            }
        }
    }
}

/// Notes where the turn began, once for each millisecond.
#[inline]
fn mark(marks: &mut VecDeque<(Moment, u64)>, from: Moment, now_us: u64) {
    if marks.back().is_none_or(|&(_, last_us)| last_us / 1000 != now_us / 1000) {
        marks.push_back((from, now_us));
    }
}
