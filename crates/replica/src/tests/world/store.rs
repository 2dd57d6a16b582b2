//! What the world needs of its machines' logs besides.

use crate::{Batch, BatchName, Batches, MemoryBatches, NoBytes, Point, Stored, Task};

/// A log with its disk, and a shard over it.
pub(in crate::tests) trait Store: Batches {
    /// A batch as it goes from log to log.
    type Bytes: Clone;

    /// What all logs of a world have in common.
    type Shared: Default;

    /// Whether it can begin behind another point than at first.
    const HAS_SNAPSHOTS: bool;

    /// A log that begins behind this point.
    fn found(point: Point, seed: u64, shared: &Self::Shared) -> Self;

    /// The bytes of a batch, to be sent. They may have to be read first, or made.
    fn copy(&mut self, name: BatchName) -> Result<Self::Bytes, NoBytes>;

    /// Writes a batch behind the last, with the bytes it has elsewhere. Without: a leader's own.
    fn append(&mut self, batch: Batch, bytes: Option<Self::Bytes>, cuts: u64);

    /// Removes this batch and all behind it.
    fn cut_from(&mut self, number: u64);

    /// Others have agreed up to this batch.
    fn apply_to(&mut self, agreed: BatchName);

    /// The log is a snapshot now.
    fn install(&mut self, point: Point, cuts: u64);

    /// Something that was synced since.
    fn collect(&mut self) -> Option<Stored>;

    /// How many writes the disk has not synced.
    fn unsynced(&self) -> usize;

    /// The disk does some of what it has to do, so many writes at most.
    fn sync(&mut self, count: usize);

    /// The power is cut, and is there again. So many of the oldest writes are kept, if the disk can tell.
    fn crash(&mut self, kept: usize);

    /// The disk loses the last batches that it has synced, so many of them.
    fn lose(&mut self, count: usize);

    /// The log begins behind this point: what is before was rewritten.
    fn begin_behind(&mut self, point: Point);

    /// What is in a batch, in one number.
    fn print(&self, name: BatchName) -> Option<u64>;

    /// The leader's shard makes its next batch of something. False if it cannot now.
    fn own(&mut self, name: BatchName, what: u64, cuts: u64) -> bool;

    /// Whether a task can be done now. It is asked again when the disk has done something.
    fn is_ready(&mut self, task: &Task) -> bool;

    /// From now on it has a shard.
    fn leads(&mut self) -> Result<(), String>;

    /// From now on it has none.
    fn deposed(&mut self);

    /// Whether what is applied is what it should be.
    fn check(&mut self) -> Result<(), String>;

    /// The same of all that is on the disk.
    fn check_all(&mut self) -> Result<(), String>;

    /// The disk has hardly any room, or as much as it likes.
    fn fill_disk(&mut self, is_full: bool);
}

impl Store for MemoryBatches {
    type Bytes = u64;
    type Shared = ();

    const HAS_SNAPSHOTS: bool = true;

    fn found(point: Point, _: u64, (): &()) -> Self {
        Self::new(point)
    }

    fn copy(&mut self, name: BatchName) -> Result<u64, NoBytes> {
        Self::copy(self, name)
    }

    fn append(&mut self, batch: Batch, bytes: Option<u64>, cuts: u64) {
        Self::append(self, batch, bytes, cuts);
    }

    fn cut_from(&mut self, number: u64) {
        Self::cut_from(self, number);
    }

    fn apply_to(&mut self, agreed: BatchName) {
        Self::apply_to(self, agreed);
    }

    fn install(&mut self, point: Point, cuts: u64) {
        Self::install(self, point, cuts);
    }

    fn collect(&mut self) -> Option<Stored> {
        Self::collect(self)
    }

    fn unsynced(&self) -> usize {
        Self::unsynced(self)
    }

    fn sync(&mut self, count: usize) {
        Self::sync(self, count);
    }

    fn crash(&mut self, kept: usize) {
        *self = Self::crash(std::mem::take(self), kept);
    }

    fn lose(&mut self, count: usize) {
        Self::lose(self, count);
    }

    fn begin_behind(&mut self, point: Point) {
        Self::begin_behind(self, point);
    }

    fn print(&self, name: BatchName) -> Option<u64> {
        self.bytes_of(name)
    }

    fn own(&mut self, name: BatchName, what: u64, cuts: u64) -> bool {
        self.append_own(name, what, cuts);
        true
    }

    fn is_ready(&mut self, _: &Task) -> bool {
        true
    }

    fn leads(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn deposed(&mut self) {}

    fn check(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn check_all(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn fill_disk(&mut self, _: bool) {}
}
