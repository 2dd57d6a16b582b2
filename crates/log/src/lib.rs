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
//! A record is appended once whatever the fan-out, with the names of its *holders*: the queues it
//! went to. Each releases it once, in any order; the last one makes the log forget it. There is no
//! "trim below": one unacked message would pin everything behind it. A log must instead give back
//! the bytes of what was released even while older records stay ([`Usage`] shows it, the suite asks
//! for it).
//!
//! A log that survives the process writes down who released what, since a restart has to know which
//! queues still want a record. So a holder has a name; the log keeps it and gives it back, no more.
//!
//! # What the trait was shaped for
//!
//! The memory log needs little of it. These are the demands of a log in files and of a replicated
//! one, met here so that nothing above has to change for them:
//!
//! * **Group commit.** [`append`](Log::append) never waits. [`sync`](Log::sync) never waits either:
//!   it hands what was collected to the disk, if it is not busy with the batch before, and returns;
//!   [`collect`](Log::collect) takes in what the disk has finished. While one sync runs, appends
//!   collect. **What is appended, marked and released between two calls of `sync` is one batch:
//!   after a crash it is there as a whole or not at all.**
//! * **Withdrawal.** A record whose last holder releases it before it was handed to the disk is
//!   never written: it is a hole in the offsets and no byte in the file. So `release` is all that a
//!   withdrawal needs, and the watermarks pass holes as if they were durable.
//! * **Records nobody waits for.** Transient messages, and messages whose publisher is confirmed by
//!   the consumer's ack, are appended with [`Keep::Volatile`]: `durable` does not wait for them and
//!   they are not written while memory lasts, or until [`persist`](Log::persist) asks for it.
//! * **Bodies on disk only.** Reading in a turn must not wait for a disk. [`read`](Log::read) of a
//!   record that is no longer in memory says [`ReadError::Cold`]; [`fetch`](Log::fetch) asks for
//!   records ahead of time, queue by queue, and the disk wakes the shard when they are there.
//! * **Recovery.** A log opened over files holds what survived. [`recover`](Log::recover) tells of
//!   each record with its head, its remaining holders and their marks, in the order of offsets, and
//!   reads no body for it: what the owner needs to know of a record is in its *head*.
//! * **Replication.** `readable` and `durable` move together when a majority has the record; both
//!   may lag behind `end` for long. An offset that is appended and not yet readable may be lost
//!   with its leader; one below `readable` never changes. What is lost of a log in files is cut off when it is
//!   opened again: see [`Options::until`](file::Options::until).
//! * **A failed sync is final.** After [`SyncError`] the log refuses appends and `durable` stands
//!   still for good: nothing may be confirmed by this process again.

#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod disk;
pub mod file;
mod memory;
pub mod shared;
pub mod suite;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

pub use file::FileLog;
pub use memory::{LARGE, MemoryLog};
pub use shared::{Errand, LogNumber, Shared};

/// The name of a record in one log. Consecutive, from 0, never used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Offset(u64);

impl Offset {
    /// The offset of the first record of a log.
    pub const ZERO: Offset = Offset(0);

    /// Above those of all records.
    pub const MAX: Offset = Offset(u64::MAX);

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

/// The name of a batch among all who have copies of a log: two that have a batch of this name have the same up to it.
///
/// Ordered as logs are: whose last batch has the later term is ahead, and of two of one term that with the higher number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BatchName {
    /// Of the batch in its log.
    pub number: u64,
    /// The term of who made it. 0 if it was made for one log alone.
    pub term: u64,
}

impl BatchName {
    /// Of no batch: the one before the first.
    pub const NONE: Self = Self { number: 0, term: 0 };
}

impl PartialOrd for BatchName {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for BatchName {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.term, self.number).cmp(&(other.term, other.number))
    }
}

impl std::fmt::Display for BatchName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "batch {} of term {}", self.number, self.term)
    }
}

/// A batch that is on its way to be durable. See [`Log::under_way`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchUnderWay {
    /// Which: no other batch of the log has the number, as long as it stays.
    pub number: u64,
    /// How many bytes it has.
    pub bytes: u64,
}

/// How far a log was at some moment. See [`Log::sync_until`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// The offset of the next record.
    pub end: Offset,
    /// How many releases, marks and the like were noted.
    pub notes: u64,
}

impl Moment {
    /// Whether all that was done until another moment of the log was done by this one.
    pub fn reaches(self, other: Self) -> bool {
        self.end >= other.end && self.notes >= other.notes
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
    /// Bytes of the records that have a holder. A log in files estimates those of records that were
    /// released without having been read from the disk.
    pub live_bytes: u64,
    /// Bytes of memory really allocated for records and for finding them.
    pub held_bytes: u64,
    /// Records that have a holder.
    pub records: u64,
    /// Allocations that records live in.
    pub blocks: u64,
    /// Bytes that wait to be written to the disk, or are being written; volatile ones, too, that are written to
    /// save memory.
    pub unwritten_bytes: u64,
    /// Bytes of files.
    pub disk_bytes: u64,
    /// How many other logs hold records here, for each record that they do: see [`shared`].
    pub lent: u64,
}

/// What one holder has on the disk only. See [`Log::paged_out`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PagedOut {
    /// Records.
    pub records: u64,
    /// What they weigh together, about: see `Options::weigh` of a log in files.
    pub bytes: u64,
    /// Those of them that are not to survive the process.
    pub volatile: u64,
    /// What they weigh together, about.
    pub volatile_bytes: u64,
}

/// What a record counts, as whoever appended it says: see `Options::weigh` of a log in files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordWeight {
    /// How much, in whatever unit.
    pub bytes: u64,
    /// Whether it is of those that are [counted](RecoveredSum) apart from others. None if it has to be looked at.
    pub persistent: Option<bool>,
}

/// The name of one who holds a record: a queue, in the broker. The log keeps it and gives it back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder(u64);

/// The holder that stands for log 0; the others are below it.
const LOG_MAX: u64 = u64::MAX - 1;

impl Holder {
    /// The log's owner itself. Its records are few and durable, and [`Log::own`] tells of them apart from all others.
    pub const OWNER: Self = Self(u64::MAX);

    /// The holder with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The bare number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Another log, which refers to the record: see [`shared`]. Nobody else has a number as high as these but
    /// [the owner](Self::OWNER).
    pub const fn of_log(log: LogNumber) -> Self {
        Self(LOG_MAX - log.get() as u64)
    }

    /// Which log it is, if it is one.
    pub const fn as_log(self) -> Option<LogNumber> {
        match LOG_MAX.checked_sub(self.0) {
            Some(number) if number <= u32::MAX as u64 => Some(LogNumber::new(number as u32)),
            _ => None,
        }
    }
}

/// Whether a record is to survive the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Written and synced; `durable` waits for it.
    Durable,
    /// Nobody waits for it on disk: `durable` passes it as it passes a hole. It is lost with the
    /// process, whether or not it was written to save memory.
    Volatile,
}

/// A record that survived a restart, without its body.
#[derive(Clone, Copy, Debug)]
pub struct Recovered<'a> {
    /// Its name, as before.
    pub at: Offset,
    /// The head given to [`Log::append`].
    pub head: &'a [u8],
    /// Who holds it still, with the last mark of each, 0 if there was none.
    pub holders: &'a [(Holder, u8)],
}

/// Neighbours that survived a restart and have all but their offsets in common.
#[derive(Clone, Copy, Debug)]
pub struct RecoveredRun<'a> {
    /// The name of the first one.
    pub at: Offset,
    /// How many they are, at least one.
    pub count: u64,
    /// The head of each.
    pub head: &'a [u8],
    /// Who holds them still, with the last mark of each, 0 if there was none.
    pub holders: &'a [(Holder, u8)],
}

/// What a holder has of the records that survived a restart with offsets in a range, in sums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredSum {
    /// Its records of the sum are there, besides others of it perhaps that were told of singly.
    pub offsets: Range<Offset>,
    /// Records.
    pub count: u64,
    /// What they weigh together: [`RecordWeight::bytes`].
    pub bytes: u64,
    /// Those of them that are persistent, as their [weights](RecordWeight) say.
    pub persistent: u64,
    /// What they weigh together.
    pub persistent_bytes: u64,
}

/// Who is told of what survived a restart: see [`Log::recover_sums`].
pub trait RecoverySink {
    /// Whether it will do to know how many a holder has of the records that come next. Who said so once says so from then on.
    /// `is_enough`: so much was looked at already that no record should be whose head is not needed at once.
    fn takes_sum(&mut self, holder: Holder, is_enough: bool) -> bool;

    /// So many of a holder's records are not told of singly. To be called at the end.
    fn sum(&mut self, holder: Holder, sum: RecoveredSum);

    /// These are.
    fn run(&mut self, run: RecoveredRun<'_>);
}

/// How much is looked at in one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryLimits {
    /// Records.
    pub records: u32,
    /// Bytes that are read from the disk. What says what a batch has, or a segment, is read at once.
    pub bytes: u64,
}

impl RecoveryLimits {
    /// No bound.
    pub const NONE: Self = Self { records: u32::MAX, bytes: u64::MAX };
}

/// The longest head of a record.
pub const HEAD_MAX: usize = 64;

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
    /// Others have the log, too, and this one leads none of its terms, or not yet: what it copied comes first. See
    /// [`FileLog::begin_term`].
    #[error("the log has to begin a term before it takes records")]
    NoTerm,
}

/// Why a record could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Never appended: a mistake of the caller.
    #[error("record {at} does not exist, {end} is next")]
    NotAppended {
        /// What was asked for.
        at: Offset,
        /// The end of the log.
        end: Offset,
    },
    /// Appended, and not agreed upon yet: [`Log::fetch`] it, and read again when woken.
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
    /// The disk gave nothing back, or not what was written.
    #[error("record {at} is damaged in file {file} at byte {position}")]
    Damaged {
        /// What was asked for.
        at: Offset,
        /// Where it is.
        file: disk::FileName,
        /// Where in the file its bytes begin, or what says where they do.
        position: u64,
    },
    /// Another log has its bytes, and cannot give them.
    #[error("the bytes of record {at} are record {} of log {}, which {}", of.at, of.log, cannot_give(*file))]
    Elsewhere {
        /// What was asked for.
        at: Offset,
        /// Where its bytes are.
        of: shared::Original,
        /// The file that should have them, if the record is there still.
        file: Option<disk::FileName>,
    },
}

impl ReadError {
    /// Whether the record comes later: it is to be [fetched](Log::fetch), and to be read again when it is there.
    pub const fn is_to_come(&self) -> bool {
        matches!(self, Self::Cold { .. } | Self::NotReadable { .. })
    }
}

fn cannot_give(file: Option<disk::FileName>) -> String {
    match file {
        Some(file) => format!("is damaged in file {file}"),
        None => "is not there".to_owned(),
    }
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
    /// Appends one record, made of `head` and `parts` joined, that stays until each of `holders` has
    /// released it.
    ///
    /// The record's offset is the `end()` from before. Copies the bytes once; never waits. With no
    /// holders at all the record is a hole at once. `head` (at most [`HEAD_MAX`] bytes) is what
    /// [`recover`](Self::recover) tells of the record.
    fn append(
        &mut self,
        head: &[u8],
        parts: &[&[u8]],
        holders: &[Holder],
        keep: Keep,
    ) -> Result<Offset, AppendError>;

    /// As [`append`](Self::append), of a record that lies whole in memory of its own, its first `head_len`
    /// bytes the head. A log in memory keeps a record of more than [`LARGE`] bytes where it is, and copies
    /// nothing: so that memory should be as long as the record, or a page longer.
    fn append_whole(
        &mut self,
        record: &Bytes,
        head_len: usize,
        holders: &[Holder],
        keep: Keep,
    ) -> Result<Offset, AppendError> {
        let (head, rest) = record.split_at(head_len);
        self.append(head, &[rest], holders, keep)
    }

    /// As [`append_whole`](Self::append_whole), of a record that other logs are given, too, byte for byte: one of
    /// them may write it for all. See [`shared`]. Not to be released in one batch with what it is a copy of: if
    /// the log that has the bytes never writes its batch, the record is not there after a crash, though others of its
    /// batch are.
    fn append_shared(
        &mut self,
        record: &Bytes,
        head_len: usize,
        holders: &[Holder],
        keep: Keep,
        shared: &Arc<Shared>,
    ) -> Result<Offset, AppendError> {
        let _ = shared;
        self.append_whole(record, head_len, holders, keep)
    }

    /// Tells what has to be done about other logs since the last call.
    fn errands(&mut self, each: &mut dyn FnMut(Errand)) {
        let _ = each;
    }

    /// What [`Errand::Lend`] asked for came, or cannot be had.
    fn lent(&mut self, at: Offset, bytes: Result<Bytes, ReadError>) {
        let _ = (at, bytes);
    }

    /// Asks for a volatile record to become durable after all. It is once `durable()` has reached
    /// the offset that is returned, which may be far from the record's own: `durable` cannot go
    /// back to it.
    fn persist(&mut self, at: Offset) -> Result<Offset, HoldError>;

    /// The first offset that may not be read yet: everything below may be applied and delivered.
    fn readable(&self) -> Offset;

    /// The first offset that is not safe yet: everything below may be confirmed.
    fn durable(&self) -> Offset;

    /// The offset of the next record.
    fn end(&self) -> Offset;

    /// The bytes of a record that is readable and has a holder.
    fn read(&self, at: Offset) -> Result<Record, ReadError>;

    /// The same of one that may not be [`readable`](Self::readable) yet: it may be lost with what its reader was told.
    fn read_uncommitted(&self, at: Offset) -> Result<Record, ReadError> {
        self.read(at)
    }

    /// Says which records somebody waits for, best in ascending order. Without effect on a log all records of
    /// which can be read. Once for each error that [is to come](ReadError::is_to_come) at least, or nobody is told
    /// that the record came. A log whose records have to be agreed upon has that done for those that need no disk, too.
    fn fetch(&mut self, soon: &[Offset]) {
        let _ = soon;
    }

    /// Says which records are going to be read after those. A hint: they come while there is room for
    /// what was read and not [`taken`](Self::taken), with the next [`fetch`](Self::fetch) or
    /// [`collect`](Self::collect).
    fn fetch_ahead(&mut self, soon: &[Offset]) {
        let _ = soon;
    }

    /// Whether a record was asked for by [`fetch`](Self::fetch) or [`fetch_ahead`](Self::fetch_ahead) and is still
    /// to come. What came and was dropped again for want of room is, and so is what is not
    /// [`readable`](Self::readable) yet: asking does not make it come.
    fn is_asked(&self, at: Offset) -> bool {
        let _ = at;
        false
    }

    /// Tells of each record that was asked for and came (from the disk, or by agreement) since the last call, or turned
    /// out not to come: those who wait for it are to try again. Of others, too, perhaps.
    fn each_fetched(&mut self, each: &mut dyn FnMut(Offset)) {
        let _ = each;
    }

    /// Says that a record was read for the last time, as far as one of its holders knows; it may be cold
    /// from now on. A hint.
    fn taken(&mut self, at: Offset) {
        let _ = at;
    }

    /// Takes `holder` from a record. The last one makes the log forget it. That each holder releases
    /// once is up to the caller; a log need not remember who did.
    ///
    /// Legal as soon as the record was appended, readable or not; before it was handed to the disk,
    /// the last release withdraws it. A release reaches the disk with the next batch and nobody is
    /// told: a message settled just before a crash may come back.
    fn release(&mut self, at: Offset, holder: Holder) -> Result<(), HoldError>;

    /// Whether `holder` holds a record. Of one with several holders a log in memory knows that there is one.
    fn is_held(&self, at: Offset, holder: Holder) -> bool;

    /// Notes something about a record and one of its holders that is to be known after a restart,
    /// such as how often it came back. The last mark counts. Written with the next batch.
    fn mark(&mut self, at: Offset, holder: Holder, mark: u8) -> Result<(), HoldError> {
        let _ = (at, holder, mark);
        Ok(())
    }

    /// After the log was opened, before [`recover`](Self::recover): the records that survived and that its
    /// [owner](Holder::OWNER) holds, with their heads, ascending. No other record is looked at.
    fn own(&mut self, each: &mut dyn FnMut(Offset, &[u8])) {
        let _ = each;
    }

    /// After the log was opened, before anything else: every record that survived, ascending.
    fn recover(&mut self, each: &mut dyn FnMut(Recovered<'_>)) {
        let _ = each;
    }

    /// As [`recover`](Self::recover), and in its place: of neighbours that have all in common it is told together, and what a
    /// holder has is told in sums where these [will do](RecoverySink::takes_sum). Records with offsets in `apart`, which are
    /// ascending ranges, are told of singly. `enough`: how much may be looked at before no more is than has to be.
    fn recover_sums(
        &mut self,
        apart: &[Range<Offset>],
        enough: RecoveryLimits,
        to: &mut dyn RecoverySink,
    ) {
        let _ = (apart, enough);
        self.recover(&mut |Recovered { at, head, holders }| {
            to.run(RecoveredRun { at, count: 1, head, holders });
        });
    }

    /// Tells of the next of those records that survived and are held still, ascending, from an offset on, which never goes back
    /// from call to call. Of so many, or fewer; where it goes on, or none if that were all. The log may be in use
    /// since [`recover_sums`](Self::recover_sums). What has to be read is waited for; if it cannot be, the log has failed.
    fn recover_more(
        &mut self,
        from: Offset,
        most: RecoveryLimits,
        each: &mut dyn FnMut(Recovered<'_>),
    ) -> Result<Option<Offset>, SyncError> {
        let _ = (from, most, each);
        Ok(None)
    }

    /// Nobody asks for [more](Self::recover_more): what the log keeps for that may go.
    fn recovered_all(&mut self) {}

    /// Takes in what the disk has finished: `durable` moves, cold records get warm. Never waits, and ends no batch: it may be
    /// called in the middle of a turn.
    fn collect(&mut self) -> Result<(), SyncError>;

    /// Whether somebody [asked](Self::fetch) for a record that can be read only once it is in a batch: one is to
    /// be [made](Self::sync), at the end of the turn.
    fn wants_batch(&self) -> bool {
        false
    }

    /// [`collect`](Self::collect)s, and hands what waits to the disk, if it is not busy with an
    /// earlier batch. Never waits.
    ///
    /// There is work outstanding while `durable() < end()`; who wakes the caller for it is between
    /// the log's disk and the shard's owner.
    fn sync(&mut self) -> Result<(), SyncError>;

    /// What was done so far.
    fn moment(&self) -> Moment {
        Moment { end: self.end(), notes: 0 }
    }

    /// Until when what was done is agreed upon by others who have a copy of the log, so that it stays though this process
    /// loses the log's end. None if there are no others. It never goes back.
    fn agreed(&self) -> Option<Moment> {
        None
    }

    /// Until when what was done is agreed upon, and on the disks of all others that are in contact with this log, too. None if there are no
    /// others. It never goes back.
    fn on_all(&self) -> Option<Moment> {
        self.agreed()
    }

    /// Says whether somebody may wait for [`on_all`](Self::on_all), and whether somebody does: whoever has the log is told when it moves
    /// only in that case, and from the next [`collect`](Self::collect) on.
    fn use_all(&mut self, is_used: bool, is_awaited: bool) {
        let _ = (is_used, is_awaited);
    }

    /// [`sync`](Self::sync)s only what was done until a [`moment`](Self::moment) of this log: what came after it may still
    /// be withdrawn. A batch ends there, so a turn should not have begun yet then. A log may hand over all there is.
    fn sync_until(&mut self, until: Moment) -> Result<(), SyncError> {
        let _ = until;
        self.sync()
    }

    /// The batch that is to be durable next, if there is one with something that is to be: the disk is writing it, or those
    /// who have the log are. Another says nothing about how long that takes.
    fn under_way(&self) -> Option<BatchUnderWay> {
        None
    }

    /// How many releases and marks of written records were not handed to the disk yet. Not 0 while what was handed
    /// to it found no room: somebody has to [`sync`](Self::sync) then, or nothing is tried again.
    fn notes(&self) -> usize {
        0
    }

    /// Whether it keeps memory for records to come that [`relax`](Self::relax) would give back.
    fn keeps_spares(&self) -> bool {
        false
    }

    /// Gives back what was kept for records to come and not needed since the last call. To be called now and then
    /// while [`keeps_spares`](Self::keeps_spares).
    fn relax(&mut self) {}

    /// What the log holds now: a few sums. Not for each message all the same.
    fn usage(&self) -> Usage;

    /// What a holder has that is not in memory: sums that are kept, nothing is looked through.
    fn paged_out(&self, holder: Holder) -> PagedOut {
        let _ = holder;
        PagedOut::default()
    }

    /// Whether room is so short that nothing should be appended but what gives some.
    fn is_short(&self) -> bool {
        false
    }

    /// Bytes that can be written by those who may use the last of the room, as far as that is known: to be looked at
    /// before something is begun that has to be written in the end.
    fn last_room(&self) -> u64 {
        u64::MAX
    }

    /// [`Usage::unwritten_bytes`] alone, which flow control looks at in every turn.
    fn unwritten_bytes(&self) -> u64 {
        self.usage().unwritten_bytes
    }

    /// Those of the [`unwritten_bytes`](Self::unwritten_bytes) that no batch has and that are written only to save memory.
    /// [`durable`](Self::durable) does not tell of them.
    fn spilled_bytes(&self) -> u64 {
        0
    }
}
