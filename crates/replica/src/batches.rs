//! What a replica needs of a log.

use leveret_log::BatchName;

use crate::members::{Change, Members};
use crate::output::Stored;

/// What a replica knows of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Which.
    pub name: BatchName,
    /// Whether it is a change of members, and which. Such a batch has no records.
    pub change: Option<Change>,
}

/// Where a log begins for others: what is before was rewritten or removed, and goes as a snapshot.
///
/// A group begins with one, of number and term 1 at least: its first members are nowhere else. Only who was never a member has
/// a log that begins behind 0, where nothing can follow but a snapshot. (The engine takes term 0 for that of any batch that is
/// not there.)
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// The last batch before. It is agreed upon.
    pub at: BatchName,
    /// Who is a member as of it.
    pub members: Members,
}

/// Why the bytes of a batch are not here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoBytes {
    /// They come: what is to be sent waits, as long as the sender's term is that of the message.
    #[error("the batch is to come")]
    ToCome,
    /// The log has it no more, or has another one of that number: what was to be sent is not sent.
    #[error("the log has no such batch")]
    Gone,
}

/// A log of batches, as a replica and its driver see it.
///
/// The log is what is in memory and on its way; what is stored comes after. A leader's log has the batches of its shard before
/// the replica hears of them; all else the driver does as the replica's [tasks](crate::Task) say.
pub trait Batches {
    /// A batch as it goes from log to log, byte for byte.
    type Bytes;

    /// What the log begins behind.
    fn point(&self) -> Point;

    /// The last batch, that of the point if there is none behind it.
    fn last(&self) -> BatchName;

    /// The batch of this number, if it is behind the point and not above the last.
    fn batch(&self, number: u64) -> Option<Batch>;

    /// How far the log was agreed upon, as far as it knows: what the newest header says, or the point.
    fn agreed(&self) -> u64;

    /// The bytes of a batch, to be sent. They may have to be read first, or made: a leader's first batch of a term is made when
    /// all before it is stored.
    fn copy(&mut self, name: BatchName) -> Result<Self::Bytes, NoBytes>;

    /// Writes a batch behind the last, with the bytes it has elsewhere. Without: an empty batch that the leader's replica
    /// wants, which the log may make later. Once it is synced, that is told with `cuts`.
    ///
    /// A log that leads, or is about to, has to be opened anew as a follower's before a copy, a cut, or the first batch of
    /// another term: its owner waits with the tasks until nothing is under way on the disk.
    fn append(&mut self, batch: Batch, bytes: Option<Self::Bytes>, cuts: u64);

    /// Removes this batch and all behind it. What is appended from now on may be called stored only when no crash brings back
    /// what was cut.
    fn cut_from(&mut self, number: u64);

    /// Others have agreed up to this batch: from now on none of it is cut.
    fn apply_to(&mut self, agreed: BatchName);

    /// The log is a snapshot now, and begins behind it.
    fn install(&mut self, point: Point, cuts: u64);

    /// Something that was synced since, with all before it; in the order of the disk.
    fn collect(&mut self) -> Option<Stored>;
}
