//! What a replica needs of a log.

use leveret_log::BatchName;

use crate::members::{Change, Members};

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
pub(crate) enum NoBytes {
    /// They come: what is to be sent waits, as long as the sender's term is that of the message.
    #[error("the batch is to come")]
    ToCome,
    /// The log has it no more, or has another one of that number: what was to be sent is not sent.
    #[error("the log has no such batch")]
    Gone,
}

/// A log of batches, as a replica finds it.
///
/// What it has is stored. Later a leader's log has the batches of its shard before the replica hears of them; all else the driver
/// does as the replica's [tasks](crate::Task) say.
pub trait Batches {
    /// What the log begins behind.
    fn point(&self) -> Point;

    /// The members of the point are those as of this batch, which all agreed upon. It is behind the point where the list of files knows of
    /// later changes: what is between is there, too.
    fn applied(&self) -> u64 {
        self.point().at.number
    }

    /// The last batch, that of the point if there is none behind it.
    fn last(&self) -> BatchName;

    /// The batch of this number, if it is behind the point and not above the last.
    fn batch(&self, number: u64) -> Option<Batch>;

    /// How far the log was agreed upon, as far as it knows: what the newest header says, or the point.
    fn agreed(&self) -> u64;
}
