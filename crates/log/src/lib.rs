//! The log of a shard: opaque records by offset, and how far they are readable and durable.
//!
//! The log knows bytes, offsets and holders. It does not know what a queue, a message or a confirm
//! is; those who append know what they wrote. One suite ([`suite`]) states the contract of [`Log`];
//! the memory log passes it, and so must every other log.
//!
//! ```text
//!    holes, released                     appended, not yet readable (a replicated log)
//!      v   v                                   v v
//!  0   x 2 x   4 5 6 x 8 9 10 | 11 12 13 14 | 15 16 |  <- next append is 17
//!                             ^ durable     ^ readable ^ end
//! ```
//!
//! A watermark names the first offset that has *not* got there, so that an empty range is
//! `durable == readable == end` and no offset before the first is needed.
//!
//! # Holders, and why there is no truncation
//!
//! A record is appended once whatever the fan-out, with the number of its *holders*: the queues it
//! went to. Each releases it once, in any order; the last one makes the log forget it. There is no
//! "trim below": one unacked message would pin everything behind it. A log must instead give back
//! the bytes of what was released even while older records stay ([`Usage`] shows it, the suite asks
//! for it).
//!
//! # What the trait was shaped for
//!
//! The memory log needs little of it. These are the demands of a log in files and of a replicated
//! one, met here so that nothing above has to change for them:
//!
//! * **Group commit.** [`append`](Log::append) never waits. [`sync`](Log::sync) never waits either:
//!   it collects what has finished, starts what can be started, and returns; a shard calls it once
//!   at the end of a turn and whenever the disk wakes it. While one sync runs, appends collect.
//! * **Withdrawal.** A record whose last holder releases it before it was handed to the disk is
//!   never written: it is a hole in the offsets and no byte in the file. So `release` is all that a
//!   withdrawal needs, and the watermarks pass holes as if they were durable.
//! * **Records nobody waits for.** Transient messages, and messages whose publisher is confirmed by
//!   the consumer's ack, are appended with [`append_volatile`](Log::append_volatile): `durable` does
//!   not wait for them and they are not written, until [`persist`](Log::persist) asks for it
//!   (memory runs short, or a consumer took too long).
//! * **Bodies on disk only.** Reading in a turn must not wait for a disk. [`read`](Log::read) of a
//!   record that is no longer in memory says [`ReadError::Cold`]; [`fetch`](Log::fetch) asks for
//!   records ahead of time, queue by queue, and the disk wakes the shard when they are there.
//! * **Recovery.** A log opened over files holds every surviving record with one holder, the
//!   recovery itself. The owner walks them with [`next_held`](Log::next_held) in offset order,
//!   [`hold`](Log::hold)s each for the queues that still want it, and releases each once: what
//!   nobody wanted is forgotten by the ordinary rule. Which queue has settled what is written by the
//!   owner as records of its own, since holders are only a count.
//! * **Replication.** `readable` and `durable` move together when a majority has the record; both
//!   may lag behind `end` for long. An offset that is appended and not yet readable may be lost
//!   with its leader; one below `readable` never changes.
//! * **A failed sync is final.** After [`SyncError`] the log refuses appends and `durable` stands
//!   still for good: nothing may be confirmed by this process again.

mod memory;
pub mod suite;

use bytes::Bytes;

pub use memory::MemoryLog;

/// The name of a record in one log. Consecutive, from 0, never used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Offset(u64);

impl Offset {
    /// The offset of the first record of a log.
    pub const ZERO: Offset = Offset(0);

    /// The offset with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number of this offset: how many were given out before it.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The offset after this one.
    ///
    /// 2^64 records do not fit the life of a machine; the addition is checked all the same, since
    /// offsets also come from files.
    #[must_use]
    pub const fn next(self) -> Self {
        match self.0.checked_add(1) {
            Some(number) => Self(number),
            None => panic!("offsets are exhausted"),
        }
    }
}

impl std::fmt::Display for Offset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The bytes of one record, shared with the log: a clone copies no byte.
///
/// A record stays valid for as long as somebody has it, released or not; it keeps the memory of
/// its block meanwhile. So records are for those who send them on, not for keeping.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The parts given to `append`, joined.
    pub bytes: Bytes,
}

/// What a log holds, in one piece for metrics and memory accounting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of the records that have a holder.
    pub live_bytes: u64,
    /// Bytes of memory really allocated for records and for finding them.
    pub held_bytes: u64,
    /// Records that have a holder.
    pub records: u64,
    /// Allocations that records live in.
    pub blocks: u64,
}

/// Why a record was not appended. The log is as before the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// Longer than any record may be.
    #[error("a record of {len} bytes is longer than {max}")]
    TooLarge {
        /// Bytes of the parts together.
        len: u64,
        /// The most a record may have.
        max: u64,
    },
    /// There is no room on the disk. It may come back.
    #[error("the disk of the log is full")]
    Full,
    /// An earlier sync failed: see [`SyncError`].
    #[error("the log has failed and takes no more records")]
    Failed,
}

/// Why a record could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Not below `readable`: never appended, or not yet agreed upon.
    #[error("record {at} is not readable yet, {readable} is next")]
    NotReadable {
        /// What was asked for.
        at: Offset,
        /// The watermark.
        readable: Offset,
    },
    /// Nobody holds it any more.
    #[error("record {at} was released")]
    Released {
        /// What was asked for.
        at: Offset,
    },
    /// It is on disk and not in memory: [`Log::fetch`] it, and read again when woken.
    #[error("record {at} is not in memory")]
    Cold {
        /// What was asked for.
        at: Offset,
    },
    /// What the disk gave back is not what was written.
    #[error("record {at} is damaged on disk")]
    Damaged {
        /// What was asked for.
        at: Offset,
    },
}

/// Why holders could not be changed: a mistake of the caller, and nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HoldError {
    /// Never appended.
    #[error("record {at} does not exist, {end} is next")]
    NotAppended {
        /// What was named.
        at: Offset,
        /// The end of the log.
        end: Offset,
    },
    /// It had no holder left.
    #[error("record {at} was released")]
    Released {
        /// What was named.
        at: Offset,
    },
    /// More holders than can be counted.
    #[error("record {at} has {holders} holders, {more} more are too many")]
    TooMany {
        /// What was named.
        at: Offset,
        /// The holders it has.
        holders: u32,
        /// The holders that were to be added.
        more: u32,
    },
}

/// The log could not make its records durable. Final: nothing may be confirmed after it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log could not be synced at {durable}: {reason}")]
pub struct SyncError {
    /// How far the log is durable, and will ever be in this process.
    pub durable: Offset,
    /// What the disk said.
    pub reason: String,
}

/// A sequence of records with holders. See the [crate] for the whole contract and its reasons.
///
/// Always `durable() <= readable() <= end()`, and none of the three ever goes back.
pub trait Log {
    /// Appends one record, made of `parts` joined, that stays until `holders` releases were made.
    ///
    /// The record's offset is the `end()` from before. Copies the bytes once; never waits. With no
    /// holders at all the record is a hole at once.
    fn append(&mut self, parts: &[&[u8]], holders: u32) -> Result<Offset, AppendError>;

    /// Appends a record that nobody waits for on disk: `durable` passes it as it passes a hole.
    ///
    /// It is lost with the process, or written if that costs less than not writing it.
    fn append_volatile(&mut self, parts: &[&[u8]], holders: u32) -> Result<Offset, AppendError> {
        self.append(parts, holders)
    }

    /// Asks for a volatile record to become durable after all. It is once `durable()` has reached
    /// the offset that is returned, which may be far from the record's own: `durable` cannot go
    /// back to it.
    fn persist(&mut self, at: Offset) -> Result<Offset, HoldError> {
        self.hold(at, 0)?;
        Ok(at.next())
    }

    /// The first offset that may not be read yet: everything below may be applied and delivered.
    fn readable(&self) -> Offset;

    /// The first offset that is not safe yet: everything below may be confirmed.
    fn durable(&self) -> Offset;

    /// The offset of the next record.
    fn end(&self) -> Offset;

    /// The bytes of a record that is readable and has a holder.
    fn read(&self, at: Offset) -> Result<Record, ReadError>;

    /// Says which records are going to be read soon, best in ascending order. A hint, without effect
    /// on a log that has all its records in memory.
    fn fetch(&mut self, soon: &[Offset]) {
        let _ = soon;
    }

    /// Adds `more` holders to a record that has at least one.
    fn hold(&mut self, at: Offset, more: u32) -> Result<(), HoldError>;

    /// Takes one holder from a record. The last one makes the log forget it.
    ///
    /// Legal as soon as the record was appended, readable or not; before it was handed to the disk,
    /// the last release withdraws it.
    fn release(&mut self, at: Offset) -> Result<(), HoldError>;

    /// The first offset not below `from` whose record has a holder.
    fn next_held(&self, from: Offset) -> Option<Offset>;

    /// Takes in what has become durable, and starts the next write if none runs. Never waits.
    ///
    /// There is work outstanding while `durable() < end()`; who wakes the caller for it is between
    /// the log's disk and the shard's owner.
    fn sync(&mut self) -> Result<(), SyncError>;

    /// What the log holds now.
    fn usage(&self) -> Usage;
}
