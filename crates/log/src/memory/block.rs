//! One block: records in one piece of memory, each an entry of 16 bytes.
//!
//! Hot path: a push copies the bytes, a read clones a reference, a release counts down.
//!
//! Memory can be written or shared, not both. So the bytes of a block are a row of *runs*: those
//! before the last were read and are frozen; the last, still open, takes more. Reading from the
//! open run freezes it, at the price of one 32-byte run: one per batch, if batches are appended
//! before they are read. A record above [`LARGE`] is a run of its own in memory of its own.

use std::cell::RefCell;
use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};

use super::RecordBytes;
use super::spares::{Spares, room_of};
use super::tail::Stored;

/// The largest record that is copied in among others. Above it a record has its own memory, which
/// ends with it; at a quarter of a block the unused end of a block stays small.
pub const LARGE: usize = 32 << 10;

/// What a large record has in place of its start, which is always 0: its memory is the log's own, or was
/// given with it and goes back where it came from.
const OWN: usize = 0;
const GIVEN: usize = 1;

#[derive(Debug, Default)]
pub(super) struct Block {
    entries: Vec<BlockEntry>,
    /// Offsets of the entries, ascending, if the block is sparse.
    offsets: Option<Vec<u64>>,
    bytes: RefCell<Runs>,
    /// Bytes that the runs in common memory can have, and have had.
    capacity: usize,
    used: usize,
    /// Entries with a holder, and their bytes: in common memory, and in memory of their own.
    live: usize,
    small_bytes: usize,
    /// With the room behind each.
    large_bytes: usize,
}

/// Where a record is in its block, and who holds it.
#[derive(Clone, Copy, Debug)]
struct BlockEntry {
    /// Which run, and where in it. A block has at most [`super::RECORDS_MAX`] entries, and two runs
    /// for each.
    run: u16,
    /// What the owner of the block wants to know of the record.
    tag: u16,
    /// Of a large one [`OWN`] or [`GIVEN`].
    start: u32,
    len: u32,
    /// 0: a hole.
    holders: u32,
}

impl BlockEntry {
    fn is_large(&self) -> bool {
        self.len as usize > LARGE
    }

    /// Where it is in its run.
    fn range(&self) -> Range<usize> {
        let start = if self.is_large() { 0 } else { self.start as usize };
        start..start + self.len as usize
    }
}

#[cfg(test)]
pub(super) const ENTRY_SIZE: usize = size_of::<BlockEntry>();

#[derive(Debug, Default)]
struct Runs {
    frozen: Vec<Bytes>,
    /// The open run, whose number is `frozen.len()`, and behind it the memory not yet used.
    open: BytesMut,
}

impl Runs {
    fn freeze(&mut self) {
        let run = self.open.split().freeze();
        self.frozen.push(run);
    }
}

impl Block {
    /// A block for consecutive offsets.
    pub(super) fn dense(capacity: usize) -> Self {
        let runs = Runs { frozen: Vec::new(), open: BytesMut::with_capacity(capacity) };
        Self { bytes: RefCell::new(runs), capacity, ..Self::default() }
    }

    /// A block for any ascending offsets.
    pub(super) fn sparse(capacity: usize) -> Self {
        Self { offsets: Some(Vec::new()), ..Self::dense(capacity) }
    }

    pub(super) fn is_dense(&self) -> bool {
        self.offsets.is_none()
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes that still fit.
    pub(super) fn room(&self) -> usize {
        self.capacity - self.used
    }

    /// Entries, holes included.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Entries with a holder.
    pub(super) fn live(&self) -> usize {
        self.live
    }

    /// Live bytes that compaction would have to copy.
    pub(super) fn small_bytes(&self) -> usize {
        self.small_bytes
    }

    /// Whether so little is left that the rest should move and the memory be given back.
    pub(super) fn is_thin(&self) -> bool {
        let thin_in_records = 2 * self.live < self.entries.len();
        let thin_in_bytes = 2 * self.small_bytes < self.used;
        thin_in_records || thin_in_bytes
    }

    /// Bytes of memory: the block, its entries, its runs, its large records.
    pub(super) fn held(&self) -> u64 {
        (self.held_common() + self.large_bytes) as u64
    }

    fn held_common(&self) -> usize {
        size_of::<Self>()
            + self.capacity
            + self.entries.capacity() * size_of::<BlockEntry>()
            + self.offsets.as_ref().map_or(0, |offsets| offsets.capacity() * size_of::<u64>())
            + self.bytes.borrow().frozen.capacity() * size_of::<Bytes>()
    }

    /// The entry of `at`, if it has a holder. `first` is the offset of a dense block's first entry.
    pub(super) fn find(&self, first: u64, at: u64) -> Option<usize> {
        let index = match &self.offsets {
            None => at.checked_sub(first)? as usize,
            Some(offsets) => offsets.binary_search(&at).ok()?,
        };
        self.entries.get(index).filter(|entry| entry.holders > 0).map(|_| index)
    }

    fn offset(&self, first: u64, index: usize) -> u64 {
        self.offsets.as_ref().map_or(first + index as u64, |offsets| offsets[index])
    }

    /// Adds a record of `len` bytes, none if it is a hole. The caller has made room; `spares` have some
    /// for a large one.
    pub(super) fn push(
        &mut self,
        at: u64,
        source: RecordBytes<'_>,
        len: usize,
        (holders, tag): (u32, u16),
        spares: &mut Spares,
    ) {
        let (bytes, whose) = match source {
            RecordBytes::Pieces(head, parts) if len <= LARGE => {
                return self.push_small(at, (head, parts), len, (holders, tag));
            }
            RecordBytes::Whole(record) if len <= LARGE => {
                return self.push_small(at, (record, &[]), len, (holders, tag));
            }
            RecordBytes::Pieces(head, parts) => {
                let mut bytes = spares.take(len);
                bytes.put_slice(head);
                parts.iter().for_each(|part| bytes.put_slice(part));
                (bytes.freeze(), OWN)
            }
            RecordBytes::Whole(record) => (record.clone(), GIVEN),
        };
        self.push_large(at, (bytes, whose), len, (holders, tag));
    }

    /// Adds a large record, a run of its own behind what is open.
    fn push_large(
        &mut self,
        at: u64,
        (bytes, whose): (Bytes, usize),
        len: usize,
        (holders, tag): (u32, u16),
    ) {
        let runs = self.bytes.get_mut();
        if !runs.open.is_empty() {
            runs.freeze();
        }
        runs.frozen.push(bytes);
        let run = runs.frozen.len() - 1;
        self.large_bytes += room_of(len);
        self.note(at, (run, whose), len, (holders, tag));
    }

    #[inline]
    fn push_small(
        &mut self,
        at: u64,
        (head, parts): (&[u8], &[&[u8]]),
        len: usize,
        (holders, tag): (u32, u16),
    ) {
        debug_assert!(self.used + len <= self.capacity, "the caller makes room");
        let runs = self.bytes.get_mut();
        let place = (runs.frozen.len(), runs.open.len());
        runs.open.put_slice(head);
        for part in parts {
            runs.open.put_slice(part);
        }
        self.used += len;
        self.small_bytes += len;
        self.note(at, place, len, (holders, tag));
    }

    fn note(
        &mut self,
        at: u64,
        (run, start): (usize, usize),
        len: usize,
        (holders, tag): (u32, u16),
    ) {
        debug_assert!(run <= usize::from(u16::MAX), "runs are bounded by entries");
        let (run, start, len) = (run as u16, start as u32, len as u32);
        self.entries.push(BlockEntry { run, tag, start, len, holders });
        if let Some(offsets) = &mut self.offsets {
            offsets.push(at);
        }
        self.live += usize::from(holders > 0);
    }

    /// The bytes of an entry. Freezes the open run if they are in it.
    pub(super) fn read(&self, index: usize) -> Bytes {
        let entry = self.entries[index];
        if entry.len == 0 {
            return Bytes::new(); // it may have no run at all
        }
        let mut runs = self.bytes.borrow_mut();
        if usize::from(entry.run) == runs.frozen.len() {
            runs.freeze();
        }
        runs.frozen[usize::from(entry.run)].slice(entry.range())
    }

    /// Calls `each` for the records with a holder whose offsets are in `range`: offset, tag, holders
    /// and bytes. Freezes nothing.
    pub(super) fn walk(&mut self, first: u64, range: Range<u64>, each: &mut super::tail::Each<'_>) {
        let index_of = |at: u64| match &self.offsets {
            None => (at.saturating_sub(first) as usize).min(self.entries.len()),
            Some(offsets) => offsets.partition_point(|&it| it < at),
        };
        let (start, end) = (index_of(range.start), index_of(range.end));
        let runs = self.bytes.get_mut();
        for index in start..end {
            let at = self.offsets.as_ref().map_or(first + index as u64, |offsets| offsets[index]);
            let range = self.entries[index].range();
            let BlockEntry { run, len, holders, ref mut tag, .. } = self.entries[index];
            if holders > 0 {
                let bytes = match runs.frozen.get(usize::from(run)) {
                    _ if len == 0 => Stored::Among(&[]), // it may have no run at all
                    Some(run) if len as usize > LARGE => Stored::Own(run),
                    Some(run) => Stored::Among(&run[range]),
                    None => Stored::Among(&runs.open[range]),
                };
                each(at, tag, holders, bytes);
            }
        }
    }

    pub(super) fn tag_mut(&mut self, index: usize) -> &mut u16 {
        &mut self.entries[index].tag
    }

    /// Tag, holders and length of an entry.
    pub(super) fn facts(&self, index: usize) -> (u16, u32, u32) {
        let BlockEntry { tag, holders, len, .. } = self.entries[index];
        (tag, holders, len)
    }

    pub(super) fn holders_mut(&mut self, index: usize) -> &mut u32 {
        &mut self.entries[index].holders
    }

    /// Makes an entry a hole, and tells how long it was. Our own memory of a large record goes to `spares`.
    pub(super) fn forget(&mut self, index: usize, spares: &mut Spares) -> usize {
        let entry = &mut self.entries[index];
        entry.holders = 0;
        let len = entry.len as usize;
        self.live -= 1;
        if len <= LARGE {
            self.small_bytes -= len;
        } else {
            self.large_bytes -= room_of(len);
            let run = &mut self.bytes.get_mut().frozen[usize::from(entry.run)];
            let bytes = std::mem::take(run);
            if entry.start as usize == OWN {
                spares.put(bytes);
            }
        }
        len
    }

    /// Moves the live entries to the end of `target`, which is sparse and has room. What remains
    /// is empty.
    pub(super) fn pour_into(&mut self, first: u64, target: &mut Self) {
        for index in 0..self.entries.len() {
            let BlockEntry { run, tag, start, len, holders } = self.entries[index];
            if holders == 0 {
                continue;
            }
            let at = self.offset(first, index);
            let len = len as usize;
            if len <= LARGE {
                let bytes = self.read(index);
                target.push_small(at, (&bytes, &[]), len, (holders, tag));
            } else {
                let bytes = std::mem::take(&mut self.bytes.get_mut().frozen[usize::from(run)]);
                target.push_large(at, (bytes, start as usize), len, (holders, tag));
            }
        }
        target.seal();
        self.entries.clear();
        (self.live, self.small_bytes, self.large_bytes) = (0, 0, 0);
    }

    /// Freezes what is open, so that reading changes nothing any more, nor what the block holds.
    pub(super) fn seal(&mut self) {
        let runs = self.bytes.get_mut();
        if !runs.open.is_empty() {
            runs.freeze();
        }
    }

    /// Empties a block in which nothing is live, and tells whether its memory is free again from the
    /// beginning: it is unless somebody still has bytes of it.
    pub(super) fn reuse(&mut self) -> bool {
        debug_assert_eq!(self.live, 0);
        let runs = self.bytes.get_mut();
        runs.frozen.clear();
        runs.open.clear();
        self.entries.clear();
        if let Some(offsets) = &mut self.offsets {
            offsets.clear();
        }
        let reclaimed = runs.open.try_reclaim(self.capacity);
        if reclaimed {
            self.used = 0;
        }
        reclaimed
    }
}
