//! Records that were read from the disk, until they are taken, released, or too many.
//!
//! Where most of what was read is wanted, records are parts of it; where little is, they are copied, so
//! that a record pins its own bytes and not the stretch that it lay in.

use std::collections::BTreeMap;

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::places::RecordPlace;

/// Records for which there is room when there are none.
const RECORDS_KEPT: usize = 1024;

/// The part of all room that has to be free before something is read ahead.
const ROOM_PART: u64 = 8;

/// What came with one read.
#[derive(Debug)]
struct Block {
    /// Of memory that it pins.
    bytes: u64,
    offsets: Vec<u64>,
    /// How many of them are still here.
    left: usize,
}

/// The records that were read, and the memory that they pin.
#[derive(Debug)]
pub(super) struct FetchedRecords {
    records: HashMap<u64, (u64, Bytes), FixedState>,
    /// By number. Each has records: one that stays for long keeps none that came after it.
    blocks: BTreeMap<u64, Block>,
    next_block: u64,
    /// Of all blocks.
    bytes: u64,
    bytes_max: u64,
}

impl FetchedRecords {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self {
            records: HashMap::default(),
            blocks: BTreeMap::new(),
            next_block: 0,
            bytes: 0,
            bytes_max,
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Bytes of memory that all of them pin.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    #[inline]
    pub(super) fn get(&self, at: u64) -> Option<&Bytes> {
        self.records.get(&at).map(|(_, bytes)| bytes)
    }

    /// How many bytes more are not too many, if `flying` are on their way. None while that is too few to begin with:
    /// room for one record after the other would be reads of one record each.
    pub(super) fn room(&self, flying: u64) -> u64 {
        let room = self.bytes_max.saturating_sub(self.bytes + flying);
        if room < self.bytes_max / ROOM_PART { 0 } else { room }
    }

    /// Keeps records, each of which begins at that byte of what was read. Tells of each that is damaged.
    pub(super) fn take(
        &mut self,
        read: &Bytes,
        places: &[(RecordPlace, usize)],
        mut damaged: impl FnMut(RecordPlace),
    ) {
        let number = self.next_block;
        let wanted: u64 = places.iter().map(|(place, _)| u64::from(place.len)).sum();
        let is_part = wanted >= read.len() as u64 / 2;
        let mut offsets = Vec::with_capacity(places.len());
        for &(place, start) in places {
            let record = match read.get(start..start + place.len as usize) {
                Some(range) if crc32c::crc32c(range) != place.crc => None,
                Some(range) if is_part => Some(read.slice_ref(range)),
                Some(range) => Some(Bytes::copy_from_slice(range)),
                None => None,
            };
            let Some(record) = record else {
                damaged(place);
                continue;
            };
            if let Some((before, _)) = self.records.insert(place.at, (number, record)) {
                self.leave(before);
            }
            offsets.push(place.at);
        }
        if offsets.is_empty() {
            return;
        }
        let bytes = if is_part { read.len() as u64 } else { wanted };
        let left = offsets.len();
        self.push(Block { bytes, offsets, left });
    }

    /// Keeps a record that did not come from this disk.
    pub(super) fn add(&mut self, at: u64, record: Bytes) {
        let (number, bytes) = (self.next_block, record.len() as u64);
        if let Some((before, _)) = self.records.insert(at, (number, record)) {
            self.leave(before);
        }
        self.push(Block { bytes, offsets: vec![at], left: 1 });
    }

    fn push(&mut self, block: Block) {
        self.bytes += block.bytes;
        self.blocks.insert(self.next_block, block);
        self.next_block += 1;
    }

    pub(super) fn remove(&mut self, at: u64) -> Option<Bytes> {
        let (block, bytes) = self.records.remove(&at)?;
        self.leave(block);
        Some(bytes)
    }

    /// One record less of a block.
    fn leave(&mut self, number: u64) {
        let Some(block) = self.blocks.get_mut(&number) else { return };
        block.left -= 1;
        if block.left == 0 {
            self.bytes -= block.bytes;
            self.blocks.remove(&number);
        }
        if self.records.is_empty() && self.records.capacity() > RECORDS_KEPT {
            self.records = HashMap::default();
        }
    }

    /// Drops the oldest of what was read before the block `first_kept`, if there is too much of it, but never all.
    /// Tells of each that is dropped.
    pub(super) fn trim(&mut self, first_kept: u64, mut dropped: impl FnMut(u64)) {
        while self.bytes > self.bytes_max
            && self.blocks.len() > 1
            && let Some(oldest) = self.blocks.first_entry()
            && *oldest.key() < first_kept
        {
            let (number, block) = oldest.remove_entry();
            self.bytes -= block.bytes;
            for at in block.offsets {
                if self.records.get(&at).is_some_and(|(it, _)| *it == number) {
                    self.records.remove(&at);
                    dropped(at);
                }
            }
        }
    }

    /// The number that the next block gets.
    pub(super) fn next_block(&self) -> u64 {
        self.next_block
    }

    pub(super) fn held_bytes(&self) -> usize {
        let offsets = self.records.len() * size_of::<u64>();
        let blocks = self.blocks.len() * 2 * size_of::<(u64, Block)>();
        self.bytes as usize + self.records.allocation_size() + offsets + blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_stays_keeps_none_that_came_after_it() {
        let mut kept = FetchedRecords::new(1 << 20);
        kept.add(0, Bytes::from_static(b"stays"));
        let held_before = kept.held_bytes();
        for at in 1..100_000 {
            kept.add(at, Bytes::from_static(b"goes"));
            kept.remove(at);
        }
        let held = kept.held_bytes();
        assert!(held < held_before + 1000, "{held} bytes, {held_before} before");
        assert_eq!(kept.get(0), Some(&Bytes::from_static(b"stays")));
    }
}
