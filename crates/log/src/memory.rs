//! A log in memory: nothing survives the process, and everything is readable and durable at once.
//!
//! Hot path. Per record: one copy of its bytes and a 16-byte entry; no allocation once warm. Blocks
//! are allocated whole and used again.
//!
//! ```text
//!   blocks, by first offset            one block
//!   [0..] [700..] [1500..] [2210..]    entries  [ 2210 | 2211 | 2212 | 2213 | ... ]
//!    sparse  dense   dense   tail                  |      |      |       `-----.
//!                                      runs     [ run 0 ......... | run 1 | open run ]
//! ```
//!
//! Only the newest block, the tail, takes new records. In it and in every block that was never
//! compacted the entries are the offsets from `first` on without a gap (*dense*). A block in which
//! nothing is left goes; it is the next tail.
//!
//! While more than half of what is held is waste, the log is *swept*: a block in which under half is
//! left is *compacted*, that is, what is left is copied out, offsets kept, into the block before it
//! if that one was compacted too and has room, otherwise into a small one in its place. Such blocks
//! are *sparse* and list their offsets. A sweep is spread over releases, a block each, so that no
//! turn pays for all; and a log that is released in about the order it was filled never needs one.
//! So what is held is about twice what is live and a constant, whatever was released and in
//! whatever order.
//!
//! Invariants: `blocks` ascends by `first`; its last is the tail; no other block is without a live
//! record; each live record is in the last block whose `first` is not above it.

mod block;
mod spares;
mod tail;

use std::cell::Cell;
use std::collections::VecDeque;

use bytes::Bytes;

use crate::{
    AppendError, HoldError, Holder, Keep, Log, Offset, ReadError, Record, SyncError, Usage,
};
use block::Block;
pub use block::LARGE;
use spares::Spares;
pub(crate) use tail::Stored;

/// Bytes of the first block of a log that was empty. Each next one is twice as big.
const BLOCK_MIN: usize = 4 << 10;

/// Bytes of the smallest sparse block: what one lone record may hold in vain.
const SPARSE_MIN: usize = 1 << 10;

/// Bytes of a block, the largest that a log grows to. Big enough that a block's own cost vanishes,
/// small enough that the tail of an almost empty log does not matter.
const BLOCK_MAX: usize = 128 << 10;

/// Records in a block, so that entries of tiny records are bounded as their bytes are.
const RECORDS_MAX: usize = 8192;

/// An empty tail is used again from its start once it has this many entries: a log whose records
/// come and go stays in the nearest cache, and the attempt costs nothing per record.
const REUSE_AFTER: usize = 64;

/// What a record costs beyond its bytes, at most: an entry, and a run if it was read alone.
const RECORD_COST: u64 = 48;

/// Waste that is not worth a sweep, and bytes that are released before waste is looked at again.
const SWEEP_MIN: u64 = 512 << 10;

/// The longest record. Lengths are 32 bits, in memory as in files.
const RECORD_MAX: u64 = u32::MAX as u64;

/// The bytes of a record to come.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RecordBytes<'a> {
    /// Pieces, to be copied: its head and more.
    Pieces(&'a [u8], &'a [&'a [u8]]),
    /// All of them, in memory that a large record may keep.
    Whole(&'a Bytes),
}

impl RecordBytes<'_> {
    /// Bytes of the record, if it may be that long.
    #[inline]
    pub(crate) fn len(self) -> Result<usize, AppendError> {
        let len = match self {
            Self::Pieces(head, parts) => {
                head.len() + parts.iter().map(|part| part.len()).sum::<usize>()
            }
            Self::Whole(record) => record.len(),
        };
        if len as u64 > RECORD_MAX {
            return Err(AppendError::TooLarge { len: len as u64, max: RECORD_MAX });
        }
        Ok(len)
    }
}

/// A [`Log`] in memory. An empty one that was not used for long holds next to nothing.
#[derive(Debug, Default)]
pub struct MemoryLog {
    blocks: VecDeque<DirectoryRow>,
    end: Offset,
    records: u64,
    live_bytes: u64,
    /// What all blocks but the tail hold: kept, so that `usage` need not walk them.
    sealed_held: u64,
    /// A block that is no longer used, for the next tail.
    spare: Option<Box<Block>>,
    /// Memory of large records, for the next ones.
    spares: Spares,
    /// Where the last old record was found; any value is good.
    hint: Cell<usize>,
    /// `end` when the log was last empty.
    empty_at: Offset,
    /// Cost of what was released since waste was looked at.
    freed: u64,
    /// The next block that the sweep looks at, if one is under way.
    sweep: Option<usize>,
}

/// The directory's line for a block, so that a search reads only the directory.
#[derive(Debug)]
struct DirectoryRow {
    /// No record below it is in the block, and every one from it on is not in an earlier one.
    first: u64,
    block: Box<Block>,
}

impl MemoryLog {
    /// An empty log, which allocates nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes of the records that have a holder.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// The block that has `at`, if any has. Newest and same-as-last are the common cases.
    fn find(&self, at: u64) -> Option<usize> {
        let last = self.blocks.len().checked_sub(1)?;
        if at >= self.blocks[last].first {
            return Some(last);
        }
        let hint = self.hint.get();
        if hint < last && self.blocks[hint].first <= at && at < self.blocks[hint + 1].first {
            return Some(hint);
        }
        let found = self.blocks.partition_point(|slot| slot.first <= at).checked_sub(1)?;
        self.hint.set(found);
        Some(found)
    }

    /// Block and entry of a record that has a holder.
    fn locate(&self, at: Offset) -> Result<(usize, usize), HoldError> {
        if at >= self.end {
            return Err(HoldError::NotAppended { at, end: self.end });
        }
        let released = HoldError::Released { at };
        let slot = self.find(at.get()).ok_or(released)?;
        let DirectoryRow { first, block } = &self.blocks[slot];
        let entry = block.find(*first, at.get()).ok_or(released)?;
        Ok((slot, entry))
    }

    /// Makes the tail take `len` more bytes: as it is, emptied, or by a new one.
    #[cold]
    fn make_room(&mut self, len: usize) {
        let mut size = BLOCK_MIN;
        if let Some(DirectoryRow { first, block }) = self.blocks.back_mut() {
            if block.live() == 0 {
                block.reuse();
                *first = self.end.get();
                if block.room() >= len {
                    return;
                }
            }
            // A log that keeps emptying has the right size; one that does not may grow.
            let growth = if self.records == 0 { 1 } else { 2 };
            size = (block.capacity() * growth).clamp(BLOCK_MIN, BLOCK_MAX);
        }
        let size = size.max(len.next_power_of_two());
        let spare = self.spare.take().filter(|spare| spare.capacity() >= size);
        let spare = spare.and_then(|mut spare| spare.reuse().then_some(spare));
        let block = spare.unwrap_or_else(|| Box::new(Block::dense(size)));
        let sealed = self.blocks.len().checked_sub(1);
        if let Some(sealed) = sealed {
            let block = &mut self.blocks[sealed].block;
            block.seal();
            self.sealed_held += block.held();
        }
        self.blocks.push_back(DirectoryRow { first: self.end.get(), block });
        if let Some(sealed) = sealed
            && self.blocks[sealed].block.live() == 0
        {
            self.retire(sealed);
        }
    }

    /// Takes out a sealed block in which nothing is left.
    #[cold]
    fn retire(&mut self, slot: usize) {
        if let Some(DirectoryRow { block, .. }) = self.blocks.remove(slot) {
            self.sealed_held -= block.held();
            self.keep_spare(block);
        }
    }

    fn keep_spare(&mut self, block: Box<Block>) {
        if self.spare.is_none() && block.is_dense() && block.capacity() == BLOCK_MAX {
            self.spare = Some(block);
        }
    }

    /// Looks for waste when enough was released, and goes on with a sweep.
    fn reclaim(&mut self, released: usize) {
        self.freed += released as u64 + RECORD_COST;
        if let Some(slot) = self.sweep {
            self.sweep_one(slot);
        } else if self.freed >= SWEEP_MIN {
            let cost = self.live_bytes + self.records * RECORD_COST;
            if self.freed >= cost / 4 {
                self.freed = 0;
                self.sweep = (self.sealed_held > 2 * cost + SWEEP_MIN).then_some(0);
            }
        }
    }

    #[cold]
    fn sweep_one(&mut self, slot: usize) {
        if slot + 1 >= self.blocks.len() {
            self.sweep = None;
            return;
        }
        if self.blocks[slot].block.is_thin() {
            self.compact(slot);
        }
        // What was joined with its left neighbour leaves another in its place: passed over, and
        // found by the next sweep.
        self.sweep = Some(slot + 1);
    }

    /// Copies what is left of a sealed block together, and joins it with sparse neighbours.
    #[cold]
    fn compact(&mut self, slot: usize) {
        let block = &self.blocks[slot].block;
        let into_left = slot.checked_sub(1).filter(|&left| self.takes(left, block));
        let target = match into_left {
            Some(left) => {
                self.pour(slot, left);
                self.retire(slot);
                left
            }
            None => {
                let size = (4 * block.small_bytes()).next_power_of_two();
                let mut sparse = Box::new(Block::sparse(size.clamp(SPARSE_MIN, BLOCK_MAX)));
                let DirectoryRow { first, block } = &mut self.blocks[slot];
                self.sealed_held -= block.held();
                block.pour_into(*first, &mut sparse);
                self.sealed_held += sparse.held();
                let emptied = std::mem::replace(block, sparse);
                self.keep_spare(emptied);
                slot
            }
        };
        let right = target + 1;
        if right + 1 < self.blocks.len()
            && !self.blocks[right].block.is_dense()
            && self.takes(target, &self.blocks[right].block)
        {
            self.pour(right, target);
            self.retire(right);
        }
    }

    fn takes(&self, target: usize, block: &Block) -> bool {
        let target = &self.blocks[target].block;
        !target.is_dense()
            && target.room() >= block.small_bytes()
            && target.len() + block.live() <= RECORDS_MAX
    }

    /// Moves what is left in `from` to the end of its left neighbour.
    fn pour(&mut self, from: usize, left: usize) {
        let mut pair = self.blocks.range_mut(left..=from);
        let (Some(left), Some(from)) = (pair.next(), pair.next()) else { return };
        self.sealed_held -= left.block.held() + from.block.held();
        from.block.pour_into(from.first, &mut left.block);
        self.sealed_held += left.block.held() + from.block.held();
    }

    /// Nothing is live. After a burst, gives everything back; otherwise keeps the tail for more.
    fn emptied(&mut self) {
        let burst = self.end.get() - self.empty_at.get() > RECORDS_MAX as u64;
        self.empty_at = self.end;
        self.spare = None;
        self.sweep = None;
        if burst {
            self.blocks = VecDeque::new();
            self.sealed_held = 0;
        }
    }

    /// Appends a record of `len` bytes with a number of holders, or whatever else stands for them and is 0
    /// only for none.
    fn push(&mut self, source: RecordBytes<'_>, len: usize, (holders, tag): (u32, u16)) -> Offset {
        let at = self.end;
        // A hole needs no memory, and large records bring their own.
        let (source, len) =
            if holders > 0 { (source, len) } else { (RecordBytes::Pieces(&[], &[]), 0) };
        let needed = if len > LARGE { 0 } else { len };
        let fits = self.blocks.back().is_some_and(|DirectoryRow { block, .. }| {
            block.room() >= needed
                && block.len() < RECORDS_MAX
                && (block.live() > 0 || block.len() < REUSE_AFTER)
        });
        if !fits {
            self.make_room(needed);
        }
        self.end = at.next();
        let tail = self.blocks.back_mut().expect("make_room leaves a tail");
        tail.block.push(at.get(), source, len, (holders, tag), &mut self.spares);
        if holders > 0 {
            self.records += 1;
            self.live_bytes += len as u64;
        }
        at
    }

    /// Makes a record a hole.
    fn forget(&mut self, slot: usize, entry: usize) -> usize {
        let is_tail = slot + 1 == self.blocks.len();
        let block = &mut self.blocks[slot].block;
        let before = if is_tail { 0 } else { block.held() };
        let len = block.forget(entry, &mut self.spares);
        if !is_tail {
            self.sealed_held -= before - block.held();
        }
        self.records -= 1;
        self.live_bytes -= len as u64;
        if !is_tail && self.blocks[slot].block.live() == 0 {
            self.retire(slot);
        }
        if self.records == 0 {
            self.emptied();
        } else {
            self.reclaim(len);
        }
        len
    }
}

impl Log for MemoryLog {
    fn append(
        &mut self,
        head: &[u8],
        parts: &[&[u8]],
        holders: &[Holder],
        _: Keep,
    ) -> Result<Offset, AppendError> {
        let source = RecordBytes::Pieces(head, parts);
        Ok(self.push(source, source.len()?, (holders.len() as u32, 0)))
    }

    fn append_whole(
        &mut self,
        record: &Bytes,
        _: usize,
        holders: &[Holder],
        _: Keep,
    ) -> Result<Offset, AppendError> {
        let source = RecordBytes::Whole(record);
        Ok(self.push(source, source.len()?, (holders.len() as u32, 0)))
    }

    fn persist(&mut self, at: Offset) -> Result<Offset, HoldError> {
        self.locate(at)?;
        Ok(at.next())
    }

    fn readable(&self) -> Offset {
        self.end
    }

    fn durable(&self) -> Offset {
        self.end
    }

    fn end(&self) -> Offset {
        self.end
    }

    fn read(&self, at: Offset) -> Result<Record, ReadError> {
        match self.locate(at) {
            Ok((slot, entry)) => Ok(Record { bytes: self.blocks[slot].block.read(entry) }),
            Err(HoldError::NotAppended { .. }) => Err(ReadError::NotAppended { at, end: self.end }),
            Err(_) => Err(ReadError::Released { at }),
        }
    }

    fn release(&mut self, at: Offset, _: Holder) -> Result<(), HoldError> {
        let (slot, entry) = self.locate(at)?;
        let block = &mut self.blocks[slot].block;
        let holders = block.holders_mut(entry);
        if *holders > 1 {
            *holders -= 1;
            return Ok(());
        }
        self.forget(slot, entry);
        Ok(())
    }

    fn is_held(&self, at: Offset, _: Holder) -> bool {
        self.locate(at).is_ok()
    }

    fn collect(&mut self) -> Result<(), SyncError> {
        Ok(())
    }

    fn sync(&mut self) -> Result<(), SyncError> {
        Ok(())
    }

    fn unwritten_bytes(&self) -> u64 {
        0
    }

    fn keeps_spares(&self) -> bool {
        !self.spares.is_empty()
    }

    fn relax(&mut self) {
        self.spares.relax();
    }

    fn usage(&self) -> Usage {
        let directory = self.blocks.capacity() * size_of::<DirectoryRow>();
        let tail = self.blocks.back().map_or(0, |slot| slot.block.held());
        let spare = self.spare.as_ref().map_or(0, |spare| spare.held());
        let spare = spare + self.spares.held();
        Usage {
            live_bytes: self.live_bytes,
            held_bytes: self.sealed_held + tail + spare + directory as u64,
            records: self.records,
            blocks: (self.blocks.len() + usize::from(self.spare.is_some())) as u64,
            ..Usage::default()
        }
    }
}

#[cfg(test)]
mod tests;
