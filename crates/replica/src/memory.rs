//! A log of batches in memory, for tests: with a disk that is behind, and that forgets what it has not synced.

use std::collections::VecDeque;

use leveret_log::BatchName;

use crate::batches::{Batch, Batches, Point};
use crate::output::Stored;

/// A log in memory. The bytes of a batch are a number.
///
/// What is done to it goes to its disk in order, and is there when the disk was told to [`sync`](Self::sync) that far.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryBatches {
    point: Point,
    agreed: u64,
    /// Behind the point.
    batches: Vec<(Batch, u64)>,
    disk: Disk,
    writes: VecDeque<Write>,
    done: VecDeque<Stored>,
}

/// What survives a crash.
#[derive(Clone, Debug, Default)]
struct Disk {
    point: Point,
    batches: Vec<(Batch, u64)>,
    agreed: u64,
}

#[derive(Clone, Debug)]
enum Write {
    Append(Batch, u64, Stored, u64),
    Cut(u64),
    Point(Point),
    Install(Point, Stored),
}

impl Disk {
    fn apply(&mut self, write: Write) -> Option<Stored> {
        match write {
            Write::Append(batch, bytes, stored, agreed) => {
                self.batches.push((batch, bytes));
                // The header of a batch says how far the log was agreed upon.
                self.agreed = self.agreed.max(agreed);
                return Some(stored);
            }
            Write::Cut(number) => self.batches.retain(|(batch, _)| batch.name.number < number),
            Write::Point(point) => {
                self.batches.retain(|(batch, _)| batch.name.number > point.at.number);
                self.point = point;
            }
            Write::Install(point, stored) => {
                self.batches.clear();
                (self.agreed, self.point) = (point.at.number, point);
                return Some(stored);
            }
        }
        None
    }
}

impl MemoryBatches {
    /// An empty log that begins behind this point.
    pub(crate) fn new(point: Point) -> Self {
        let agreed = point.at.number;
        let disk = Disk { point: point.clone(), batches: Vec::new(), agreed };
        Self { point, agreed, disk, ..Self::default() }
    }

    /// How many writes the disk has not synced.
    pub(crate) fn unsynced(&self) -> usize {
        self.writes.len()
    }

    /// The disk syncs the oldest of its writes, so many of them.
    pub(crate) fn sync(&mut self, count: usize) {
        for write in self.writes.drain(..count.min(self.writes.len())) {
            self.done.extend(self.disk.apply(write));
        }
    }

    /// The power is cut. Of what was not synced, so many of the oldest writes are there all the same. This is what a start finds.
    #[must_use]
    pub(crate) fn crash(mut self, kept: usize) -> Self {
        self.sync(kept);
        let first = self.disk.point.at.number + 1;
        let follows = |(at, it): &(u64, &(Batch, u64))| *at == it.0.name.number;
        let count = (first..).zip(&self.disk.batches).take_while(follows).count();
        // A log ends where one batch does not follow on the other.
        self.disk.batches.truncate(count);
        let Disk { point, batches, agreed } = self.disk.clone();
        let last = batches.last().map_or(point.at, |(batch, _)| batch.name).number;
        let agreed = agreed.clamp(point.at.number, last);
        Self { point, agreed, batches, disk: self.disk, ..Self::default() }
    }

    /// The disk loses the last batches that it has synced, so many of them.
    pub(crate) fn lose(&mut self, count: usize) {
        let left = self.disk.batches.len().saturating_sub(count);
        self.disk.batches.truncate(left);
    }

    /// Appends a batch of the leader's shard.
    pub(crate) fn append_own(&mut self, name: BatchName, bytes: u64, cuts: u64) {
        self.append(Batch { name, change: None }, Some(bytes), cuts);
    }

    /// The log begins behind this point: what is before was rewritten.
    pub(crate) fn begin_behind(&mut self, point: Point) {
        self.batches.retain(|(batch, _)| batch.name.number > point.at.number);
        self.point = point.clone();
        self.writes.push_back(Write::Point(point));
    }

    /// The bytes of a batch, if the log has it.
    pub(crate) fn bytes_of(&self, name: BatchName) -> Option<u64> {
        let found = self.at(name.number).filter(|(batch, _)| batch.name == name);
        found.map(|(_, bytes)| *bytes)
    }

    fn at(&self, number: u64) -> Option<&(Batch, u64)> {
        let index = number.checked_sub(self.point.at.number + 1)?;
        self.batches.get(usize::try_from(index).ok()?)
    }
}

impl Batches for MemoryBatches {
    fn point(&self) -> Point {
        self.point.clone()
    }

    fn last(&self) -> BatchName {
        self.batches.last().map_or(self.point.at, |(batch, _)| batch.name)
    }

    fn batch(&self, number: u64) -> Option<Batch> {
        self.at(number).map(|(batch, _)| batch.clone())
    }

    fn agreed(&self) -> u64 {
        self.agreed
    }
}

impl MemoryBatches {
    /// Writes a batch behind the last, with the bytes it has elsewhere. Without: an empty batch that the leader's replica wants.
    pub(crate) fn append(&mut self, batch: Batch, bytes: Option<u64>, cuts: u64) {
        let name = batch.name;
        assert_eq!(name.number, self.last().number + 1, "batches follow each other");
        assert!(name.term >= self.last().term, "terms do not go back");
        let bytes = bytes.unwrap_or(0);
        self.batches.push((batch.clone(), bytes));
        let stored = Stored { name, cuts };
        self.writes.push_back(Write::Append(batch, bytes, stored, self.agreed));
    }

    /// Removes this batch and all behind it.
    pub(crate) fn cut_from(&mut self, number: u64) {
        assert!(number > self.agreed, "batch {number} is agreed upon");
        self.batches.retain(|(batch, _)| batch.name.number < number);
        self.writes.push_back(Write::Cut(number));
    }

    /// Others have agreed up to this batch: from now on none of it is cut.
    pub(crate) fn apply_to(&mut self, agreed: BatchName) {
        assert!(agreed.number >= self.agreed, "what is agreed upon stays so");
        self.agreed = agreed.number;
    }

    /// The log is a snapshot now, and begins behind it.
    pub(crate) fn install(&mut self, point: Point, cuts: u64) {
        self.batches.clear();
        self.agreed = point.at.number;
        self.point = point.clone();
        let stored = Stored { name: point.at, cuts };
        self.writes.push_back(Write::Install(point, stored));
    }

    /// Something that was synced since, with all before it; in the order of the disk.
    pub(crate) fn collect(&mut self) -> Option<Stored> {
        self.done.pop_front()
    }
}
