//! All of flow control: what keeps memory bounded, and whom it slows.
//!
//! Nothing in the broker queues without a bound, and nobody waits but the one who causes the load:
//!
//! ```text
//!  publisher's socket --(1)--> session --(2)--> shard --(3)--> log and queues --(4)--> session --(5)--> consumer's socket
//! ```
//!
//! 1. A session reads one block from its socket, then what follows from it is done before it reads the
//!    next. While it waits for an answer it does not read. So its input is at most one block and one
//!    unfinished frame, and a fast publisher is slowed by TCP, not by a mailbox.
//! 2. A batch is handed to the shard's inbox, and each turn takes all that is there. What fits the turn is done; the rest waits
//!    in lines, one for each connection, and lines are worked off in fair shares ([`work`](crate::work)). When that is much
//!    ([`WAITING_UNITS_MAX`], [`WAITING_BYTES_MAX`]), whoever brought more than others is not read from until its line is short.
//!    So who publishes to a thousand queues pays for that alone. What a recent-history exchange keeps beyond its limit, for
//!    a replay that has not come so far, is bounded by [`WAITING_BYTES_MAX`] too: then those who publish to it are not read
//!    from until half of that is left. So is what such exchanges have forgotten and the shard has still to let go of. While a turn takes long to come, as when another thread
//!    runs it and is not let run, those who bring more than [`INBOX_LETTERS_MAX`] letters pause until it has. No
//!    thread waits for an actor, and what waits counts as memory in use.
//! 3. What no consumer takes stays in the log and in queues. Their bytes, and those that connections hold
//!    unread or unwritten, are bounded by the memory watermark. Above it an [`Alarm`] stops those who
//!    publish into what is full, and 10 % above it all who publish, whatever into: so memory is bounded in
//!    every case, and a connection whose messages consumers take at once goes on as long as it does not
//!    matter. A queue is full that takes more than [`QUEUE_BYTES_MAX`]; a shard sees that as it puts a
//!    message there, and says so to the session ([`ToSession::Stopped`](crate::message::ToSession)). The
//!    disk's limit is the same: below it those are stopped whose messages are to be written, or wait in a
//!    full queue; below half of it all. Who is stopped is told `connection.blocked` and is not read from
//!    any more; consumers go on, so the alarm ends by itself.
//!    The disk may be slower than all of them: when a shard's log has more to write than
//!    [`UNWRITTEN_BYTES_MAX`], each connection that publishes to the shard is told to pause, and is not
//!    read from until half of that is left ([`DiskGauge`]). Nothing that the disk waits for comes from a
//!    connection, so it always gets there; should the disk fail, all pauses end and publishes are refused.
//! 4. A queue gives a consumer no more than its prefetch, its channel's limit, and the room of its
//!    connection's output allow: [`leveret_queue::Gate`]. A client that does not read has at most
//!    `output_bytes_max` and one message waiting for it.
//! 5. A socket that is full waits for itself; the turn goes on with others.
//!
//! No cycle can block: input waits only for room that turns free (1, 2) or for a disk (3), which waits
//! for nobody; turns never wait for a socket, for the disk or for each other, and room in a consumer's output is freed by that consumer alone, which nothing else waits for.

use leveret_queue::Time;

/// Letters a shard's inbox may hold before those who bring more are not read from until the turn that runs has ended. A
/// letter holds what one read of a socket brought, a quarter of a megabyte at most, so this is 16 MB, and one letter of
/// each connection above it.
pub const INBOX_LETTERS_MAX: usize = 64;

/// Units of [`work`](crate::work) that may wait in a shard before those who brought more than others pause: about twenty
/// milliseconds.
pub const WAITING_UNITS_MAX: u64 = 40 * 4096;

/// Bytes of messages that may wait there so.
pub const WAITING_BYTES_MAX: u64 = 16 << 20;

/// Bytes a shard's log may have waiting for the disk before publishers pause. A second of a middling
/// disk would be more; a third of one is enough to keep it busy.
pub const UNWRITTEN_BYTES_MAX: u64 = 32 << 20;

/// Bytes of messages that wait to be written only to save memory before the disk is given them, though nobody waits. With
/// more, whoever waits next for the disk would wait for a long write. See `leveret_log::Options::spill_batch_bytes`.
pub const SPILLED_BYTES_MAX: u64 = 2 << 20;

/// Whether a shard's disk is so far behind that publishers pause.
#[derive(Clone, Copy, Debug)]
pub struct DiskGauge {
    max_bytes: u64,
}

impl Default for DiskGauge {
    fn default() -> Self {
        Self { max_bytes: UNWRITTEN_BYTES_MAX }
    }
}

impl DiskGauge {
    /// Who publishes now is to pause.
    pub fn is_high(self, unwritten_bytes: u64) -> bool {
        unwritten_bytes > self.max_bytes
    }

    /// Those who paused go on.
    pub fn is_low(self, unwritten_bytes: u64) -> bool {
        unwritten_bytes <= self.max_bytes / 2
    }
}

/// Memory that one queue may take, messages and what is kept of them, before publishing into it is what
/// keeps an alarm up: ready messages and unacked ones, so that a consumer that never acks is no excuse.
pub const QUEUE_BYTES_MAX: u64 = 1 << 20;

/// What is short, and whom it stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Alarm {
    /// Memory is above its watermark.
    pub memory: bool,
    /// Free disk space is below its limit.
    pub disk: bool,
    /// It is so short that everybody who publishes is stopped.
    pub stops_all: bool,
}

impl Alarm {
    /// Whether anybody is stopped.
    pub const fn is_raised(self) -> bool {
        self.memory || self.disk
    }

    /// The reason given with `connection.blocked`, as RabbitMQ words it; none when nothing is short.
    pub const fn reason(self) -> Option<&'static str> {
        match (self.memory, self.disk) {
            (false, false) => None,
            (true, false) => Some("low on memory"),
            (false, true) => Some("low on disk"),
            (true, true) => Some("low on memory & disk"),
        }
    }
}

/// How short something is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// There is enough.
    #[default]
    Enough,
    /// Those are stopped who publish into what is full.
    Short,
    /// All are stopped who publish.
    Out,
}

/// What a change of a level means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlarmChange {
    /// Block publishers.
    Raised,
    /// It was raised, and is to stop more publishers, or fewer.
    Moved,
    /// Let them go on.
    Cleared,
}

impl AlarmChange {
    /// What it means that there was one level and is another now.
    pub fn between(was: Level, is: Level) -> Option<Self> {
        match (was, is) {
            _ if was == is => None,
            (Level::Enough, _) => Some(Self::Raised),
            (_, Level::Enough) => Some(Self::Cleared),
            _ => Some(Self::Moved),
        }
    }
}

/// How long an alarm lasts, in ms, unless what was short is plenty before: RabbitMQ looks at memory so often.
pub const ALARM_MS: u64 = 2_500;

/// If memory in use has not fallen for so long, in ms, there is nothing that a longer alarm would drain.
const DRY_MS: u64 = 50;

/// The memory watermark. It rises at once above the limit; how it falls is a balance: each end of an alarm lets all
/// publishers in, who are told so, and a queue that is dry before the end leaves its consumers without work.
///
/// ```text
///   110 % of the limit  -----  above it all who publish are stopped
///   100 %               -----  above it the alarm is raised
///    95 %               -----  below it the alarm ends, if it has lasted or if memory in use does not fall any more
///    60 %               -----  below it the alarm ends
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MemoryAlarm {
    limit_bytes: u64,
    level: Level,
    /// When it was raised.
    since: Time,
    /// The least memory that was in use since then, and when it came to that.
    least_bytes: u64,
    fell: Time,
}

impl MemoryAlarm {
    /// Not raised. `limit_bytes` is what the watermark allows; 0 blocks all publishing, as in RabbitMQ.
    pub fn new(limit_bytes: u64) -> Self {
        let never = Time::from_ms(0);
        Self { limit_bytes, level: Level::Enough, since: never, least_bytes: 0, fell: never }
    }

    /// Another watermark, effective at the next [`update`](Self::update).
    pub fn set_limit(&mut self, limit_bytes: u64) {
        self.limit_bytes = limit_bytes;
    }

    /// The watermark in bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Whom it stops.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Takes a new measure of the memory in use, and says whether the alarm changed.
    pub fn update(&mut self, used_bytes: u64, now: Time) -> Option<AlarmChange> {
        let limit = self.limit_bytes;
        let (before, is_above) = (self.level, used_bytes > limit);
        let level = match before {
            _ if limit == 0 || used_bytes > limit.saturating_add(limit / 10) => Level::Out,
            Level::Out if is_above => Level::Out,
            Level::Enough if is_above => Level::Short,
            Level::Enough => Level::Enough,
            Level::Short | Level::Out if self.is_over(used_bytes, now) => Level::Enough,
            Level::Short | Level::Out => Level::Short,
        };
        self.level = level;
        let change = AlarmChange::between(before, level);
        if change == Some(AlarmChange::Raised) {
            (self.since, self.least_bytes, self.fell) = (now, used_bytes, now);
        }
        change
    }

    fn is_over(&mut self, used_bytes: u64, now: Time) -> bool {
        let limit = self.limit_bytes;
        if used_bytes.saturating_add(limit / 1000) < self.least_bytes {
            (self.least_bytes, self.fell) = (used_bytes, now);
        }
        let is_plenty = used_bytes <= limit - limit / 5 * 2;
        let has_lasted = now >= self.since.after_ms(ALARM_MS) || now >= self.fell.after_ms(DRY_MS);
        is_plenty || used_bytes <= limit - limit / 20 && has_lasted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(alarm: &mut MemoryAlarm, rows: &[(u64, u64, Option<AlarmChange>)]) {
        for &(ms, used, want) in rows {
            assert_eq!(alarm.update(used, Time::from_ms(ms)), want, "{used} after {ms} ms");
        }
    }

    #[test]
    #[rustfmt::skip] // a table
    fn the_alarm_rises_once_and_falls_once() {
        check(&mut MemoryAlarm::new(10_000), &[
            (   0, 10_000, None),
            (   1, 10_001, Some(AlarmChange::Raised)),
            (   1, 11_000, None),
            (   1, 11_001, Some(AlarmChange::Moved)), // all are stopped
            (   2, 10_001, None),
            (   2, 10_000, Some(AlarmChange::Moved)), // those into what is full
            (  10,  9_500, None), // consumers are at work: they go on
            (  40,  7_000, None),
            (  80,  6_001, None),
            (  90,  6_000, Some(AlarmChange::Cleared)),
            (  90,  9_900, None),
            (  91, 50_000, Some(AlarmChange::Raised)),
            (  92,  5_000, Some(AlarmChange::Cleared)),
        ]);
    }

    #[test]
    #[rustfmt::skip] // a table
    fn an_alarm_lasts_no_longer_than_there_is_something_to_drain() {
        check(&mut MemoryAlarm::new(10_000), &[
            (   0, 10_001, Some(AlarmChange::Raised)),
            (  40,  9_400, None),
            (  60,  9_395, None),
            (  89,  9_400, None),
            (  90,  9_400, Some(AlarmChange::Cleared)), // nothing moves
            ( 100, 10_001, Some(AlarmChange::Raised)),
            (1000,  9_501, None),   // just below the limit is not low enough
            (2000,  9_480, None),
            (2040,  9_460, None),
            (2600,  9_400, Some(AlarmChange::Cleared)), // slow consumers
        ]);
    }

    #[test]
    fn a_watermark_of_zero_blocks_all_publishing() {
        let mut alarm = MemoryAlarm::new(0);
        check(&mut alarm, &[(0, 0, Some(AlarmChange::Raised)), (9000, 0, None)]);
        alarm.set_limit(100);
        check(&mut alarm, &[(9001, 10, Some(AlarmChange::Cleared))]);
    }
}
