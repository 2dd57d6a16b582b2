//! Hot path. Whether acks come sooner than the disk: which messages `first` holds back, and for how long.
//!
//! Some messages are acked before the disk would have them. Holding such a message back costs nothing: no write, and no time of
//! its publisher. Any other message costs its publisher the whole time for which it is held back. So the shard measures
//! what it can: how long the disk takes for the records that wait, and how many of each queue's messages are acked
//! within that time.
//!
//! ```text
//!   published              limit: the disk would have had it by now
//!      |-------- acked -------|            won: nothing was written, and the confirm came earlier
//!      |----------------------|-- acked    lost: had it been written at once, its confirm would have been there
//! ```
//!
//! * A queue is *quick* if most of its messages win. Its messages are held back until they are as old as the limit. The messages of
//!   any other queue go to the disk at once, and the disk alone confirms them. If an ack confirmed one of them a little
//!   earlier, the next message would wait for the batch under way. The publisher's window, which was one batch, would
//!   become two batches that take turns, at half the rate. The race goes on for these messages, too.
//! * A new queue is taken to be what the first messages of earlier new queues made of those. So a publisher that
//!   goes over thousands of queues does not wait for the measurement of each.
//! * A batch takes as long as a sync of little, plus its bytes. Where much waits (many publishers with large windows) the
//!   disk takes longer, and so the limit is longer: at full load consumers save bytes.
//!
//! Budget: two comparisons per message, and no hash except for watched messages, of which there are 64 at most at a time.

use leveret_log::BatchUnderWay;
use leveret_queue::Time;
use leveret_topology::QueueId;

use super::disk::{LAZY_MAX_MS, LAZY_MS};

/// Messages that are watched at a time.
const WATCHED: usize = 64;

/// A batch whose bytes count for nothing beside its sync.
const LITTLE: u64 = 64 << 10;

/// What a MiB takes a disk that was not measured yet, in us: 250 MB/s.
const MIB_US: u64 = 4_000;

/// How much of what its bytes would take the disk is waited for. Above one: where bytes count the disk is never idle, a message
/// waits for the batch before its own, and each byte that is not written makes both shorter.
const BYTES_FACTOR: u64 = 3;

/// Shorter than that no message is held back, in us: a thread that is woken may need so long to run.
const HOLD_MIN_US: u64 = 1_000;

/// So often a disk is measured at once: the first batch makes a file.
const MEASURED_MIN: u8 = 2;

/// How long what was measured holds, in us, where it matters.
const MEASURED_US: u64 = 1_000_000;

/// Where processors are short and so many bytes wait for disk or consumers, a shard is crowded: its messages and acks wait for
/// processors, clients' too, and a disk would win many races without anybody being quicker for it. What is not written is
/// then worth more than what is confirmed sooner.
const CROWD_BYTES: u64 = 256 << 10;

/// How long it is taken to be, in us, after that was so.
const CROWDED_US: u64 = 50_000;

/// The longest time whose messages have one vote together, in us.
const VOTE_MAX_US: u64 = 20_000;

/// What a queue is believed of.
///
/// What happens to messages of one moment has often one cause, such as a thread that had to wait for a processor. So the messages of one limit
/// have one vote together.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Odds {
    /// Nothing came of a message yet.
    is_new: bool,
    is_quick: bool,
    has_won: bool,
    /// Votes for its being quick, less those against it.
    score: u8,
    /// Since the last vote, at this time in microseconds.
    since_us: u64,
    won: u16,
    lost: u16,
}

/// With as many votes a queue is quick again, with none it is no more.
const SCORE_MAX: u8 = 4;

impl Default for Odds {
    /// The best, until it is known better: to find out that it is wrong costs the first publisher few messages' time.
    fn default() -> Self {
        let (score, since_us) = (SCORE_MAX, 0);
        Self { is_new: true, is_quick: true, has_won: false, score, since_us, won: 0, lost: 0 }
    }
}

impl Odds {
    /// Whether its consumers are quicker than the disk. Of a new queue it is believed what is said `of_new` ones.
    #[inline]
    pub(in super::super) fn is_quick(self, of_new: bool) -> bool {
        if self.is_new { of_new } else { self.is_quick }
    }

    /// Whether consumers will take soon what is ready.
    pub(in super::super) fn takes_soon(self) -> bool {
        self.is_quick && self.has_won
    }

    /// A message of the queue won, or lost. Says whether the queue is quick no more. A new one has been taken for what `of_new`
    /// says, and begins with that.
    pub(in super::super) fn tell(&mut self, of_new: &mut Self, told: RaceResult) -> bool {
        if self.is_new {
            of_new.count(told);
            let (is_new, is_quick) = (false, of_new.is_quick);
            let score = if is_quick { SCORE_MAX } else { 0 };
            *self = Self { is_new, is_quick, score, ..Self::default() };
        }
        self.count(told)
    }

    fn count(&mut self, RaceResult { has_won, now_us, limit_us }: RaceResult) -> bool {
        self.has_won |= has_won;
        self.won = self.won.saturating_add(u16::from(has_won));
        self.lost = self.lost.saturating_add(u16::from(!has_won));
        if now_us < self.since_us + limit_us.min(VOTE_MAX_US) {
            return false;
        }
        // Four fifths have to win: those that lose wait for more than the disk.
        let is_won = 4 * u32::from(self.lost) <= u32::from(self.won);
        (self.since_us, self.won, self.lost) = (now_us, 0, 0);
        self.score =
            if is_won { SCORE_MAX.min(self.score + 1) } else { self.score.saturating_sub(1) };
        let was_quick = self.is_quick;
        self.is_quick = self.score > 0 && (was_quick || self.score == SCORE_MAX);
        was_quick && !self.is_quick
    }
}

/// Whether a message's acks came before the disk.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct RaceResult {
    has_won: bool,
    now_us: u64,
    limit_us: u64,
}

/// A message that is watched.
#[derive(Clone, Copy, Debug)]
struct Watched {
    at: u64,
    queue: QueueId,
    since_us: u64,
}

/// Of a whole shard.
#[derive(Debug)]
pub(super) struct Race {
    /// When this turn began.
    now_us: u64,
    /// What a sync of little takes.
    sync_us: Option<u64>,
    /// What a MiB more takes.
    mib_us: u64,
    /// When that was measured last.
    measured_us: u64,
    /// How often.
    measured: u8,
    /// A message won, but not by so much that the disk could not have become quicker.
    is_in_doubt: bool,
    /// The batch at the disk, and since when.
    batch: Option<(BatchUnderWay, u64)>,
    /// What is acked when it is no older than this has won.
    limit_us: u64,
    /// Processors are short, and much waits for disk or consumers.
    is_crowded: bool,
    /// Much waited until a little before.
    crowded_until_us: u64,
    /// By offset and queue: each has one place where it may be.
    watched: [Option<Watched>; WATCHED],
    /// None of them is to be given up before; the end of time when there are none.
    look_at_us: u64,
    /// A message began to be held in this turn.
    has_new: bool,
    /// What came of some, still to be told their queues.
    results: Vec<(QueueId, bool)>,
    /// What came of the first messages of queues.
    of_new: Odds,
}

impl Default for Race {
    fn default() -> Self {
        Self {
            now_us: 0,
            sync_us: None,
            mib_us: MIB_US,
            measured_us: 0,
            measured: 0,
            is_in_doubt: false,
            batch: None,
            limit_us: LAZY_MS * 1000,
            is_crowded: false,
            crowded_until_us: 0,
            watched: [None; WATCHED],
            look_at_us: u64::MAX,
            has_new: false,
            results: Vec::new(),
            of_new: Odds::default(),
        }
    }
}

impl Race {
    /// A turn begins; `us` is the same moment in microseconds, if that is known.
    pub(super) fn begins(&mut self, now: Time, us: u64, is_pressed: bool) {
        self.now_us = self.now_us.max(us).max(now.ms() * 1000);
        self.is_crowded = is_pressed && self.now_us < self.crowded_until_us;
    }

    /// When this turn began, in microseconds.
    pub(super) fn now_us(&self) -> u64 {
        self.now_us
    }

    /// How old a message becomes before the disk is asked for it. Of a quick queue few are late, and most of them a little.
    pub(super) fn hold_us(&self) -> u64 {
        if self.is_crowded {
            return LAZY_MAX_MS * 1000;
        }
        if self.sync_us.is_none() {
            return self.limit_us;
        }
        (2 * self.limit_us).clamp(HOLD_MIN_US, LAZY_MAX_MS * 1000)
    }

    /// A time that is short beside a sync, if it is known what that takes.
    pub(super) fn moment_us(&self) -> Option<u64> {
        self.sync_us.map(|us| us / 4)
    }

    /// A message was put into a queue whose publisher waits for disk or consumer.
    #[inline]
    pub(super) fn watch(&mut self, at: u64, queue: QueueId) {
        let place = &mut self.watched[place(at, queue)];
        if place.is_none() {
            *place = Some(Watched { at, queue, since_us: self.now_us });
            self.look_at_us = self.look_at_us.min(self.now_us + self.limit_us);
        }
    }

    /// A queue let go of a message.
    #[inline]
    pub(super) fn released(&mut self, at: u64, queue: QueueId) {
        if self.look_at_us == u64::MAX {
            return; // Nothing is watched.
        }
        let place = &mut self.watched[place(at, queue)];
        if let Some(watched) = place.take_if(|it| it.at == at && it.queue == queue) {
            let age_us = self.now_us - watched.since_us;
            let has_won = age_us <= self.limit_us;
            self.is_in_doubt |= has_won && self.sync_us.is_none_or(|sync_us| age_us > sync_us / 4);
            self.results.push((queue, has_won));
        }
    }

    /// Gives up those that are too old to win.
    pub(super) fn look(&mut self) {
        if self.now_us < self.look_at_us {
            return;
        }
        let (now_us, limit_us) = (self.now_us, self.limit_us);
        self.look_at_us = u64::MAX;
        for place in &mut self.watched {
            if let Some(lost) = place.take_if(|it| it.since_us + limit_us <= now_us) {
                self.results.push((lost.queue, false));
            } else if let Some(watched) = place {
                self.look_at_us = self.look_at_us.min(watched.since_us + limit_us);
            }
        }
    }

    /// Whether consumers of queues of which nothing is known are taken to be quick.
    #[inline]
    pub(super) fn are_new_quick(&self) -> bool {
        self.of_new.is_quick
    }

    /// Tells what came of messages since the last call: the queue, and what its odds are to be [told](Odds::tell).
    #[inline]
    pub(super) fn results(&mut self, mut each: impl FnMut(QueueId, &mut Odds, RaceResult)) {
        let Self { now_us, limit_us, ref mut results, ref mut of_new, .. } = *self;
        for (queue, has_won) in results.drain(..) {
            each(queue, of_new, RaceResult { has_won, now_us, limit_us });
        }
    }

    /// The disk has such a batch, or none.
    pub(super) fn saw_disk(&mut self, under_way: Option<BatchUnderWay>) {
        let next = under_way.map(|it| it.number);
        if let Some((batch, since_us)) = self.batch.take_if(|it| next != Some(it.0.number)) {
            self.measured(self.now_us - since_us, batch.bytes);
        }
        if self.batch.is_none() {
            self.batch = under_way.map(|batch| (batch, self.now_us));
        }
    }

    fn measured(&mut self, took_us: u64, bytes: u64) {
        (self.measured_us, self.is_in_doubt) = (self.now_us, false);
        let of_bytes_us = per_mib(bytes, self.mib_us);
        self.measured = self.measured.saturating_add(1);
        let Some(sync_us) = self.sync_us.filter(|_| self.measured > MEASURED_MIN) else {
            self.sync_us = Some(took_us.saturating_sub(of_bytes_us));
            return;
        };
        // One that took very long (a new file, a busy neighbour) does not say what the next one takes; a quick one
        // says what the disk can do.
        if took_us < sync_us {
            self.sync_us = Some(sync_us.midpoint(took_us));
        } else if bytes < LITTLE {
            self.sync_us = Some(mean(sync_us, took_us.min(4 * sync_us + 1000)));
        } else {
            let mib_us = (took_us.saturating_sub(sync_us) << 20) / bytes;
            self.mib_us = mean(self.mib_us, mib_us.min(4 * self.mib_us + 1000));
        }
    }

    /// A message is held back.
    pub(super) fn holds(&mut self) {
        self.has_new = true;
    }

    /// Whether the disk is to be asked for what this turn held back, only to know what it takes. Of much that would be to write in
    /// vain.
    pub(super) fn is_to_be_measured(&mut self, unwritten: u64) -> bool {
        if !std::mem::take(&mut self.has_new) || unwritten >= LITTLE {
            return false;
        }
        let is_old = self.measured < MEASURED_MIN || self.measured_us + MEASURED_US <= self.now_us;
        is_old && self.is_in_doubt && self.batch.is_none()
    }

    /// So many bytes wait for the disk, or are there.
    pub(super) fn set_unwritten(&mut self, bytes: u64) {
        if bytes >= CROWD_BYTES {
            self.crowded_until_us = self.now_us + CROWDED_US;
        }
        if self.is_crowded {
            self.limit_us = LAZY_MAX_MS * 1000;
            return;
        }
        let sync_us = self.sync_us.map_or(LAZY_MS * 1000, |us| us + us / 4);
        let limit_us = sync_us + BYTES_FACTOR * per_mib(bytes, self.mib_us);
        self.limit_us = limit_us.min(LAZY_MAX_MS * 1000);
    }
}

/// Where a message is watched.
fn place(at: u64, queue: QueueId) -> usize {
    (at.wrapping_add(queue.get().wrapping_mul(31)) % WATCHED as u64) as usize
}

fn per_mib(bytes: u64, us: u64) -> u64 {
    (bytes * us) >> 20
}

/// What is known, and an eighth of what is new.
fn mean(known: u64, new: u64) -> u64 {
    (7 * known + new) / 8
}
