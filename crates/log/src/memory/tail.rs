//! The memory log as the tail of a log in files: an entry has a word of the owner's instead of a
//! count of holders, and a tag.

use std::ops::Deref;

use bytes::Bytes;

use super::{DirectoryRow, MemoryLog, RecordBytes};
use crate::{HoldError, Offset};

/// Takes a record: offset, tag, word and bytes.
pub(crate) type Each<'a> = dyn FnMut(u64, &mut u16, u32, Stored<'_>) + 'a;

/// The bytes of a record, by where they are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stored<'a> {
    /// Among those of others.
    Among(&'a [u8]),
    /// A large record: in memory of its own.
    Own(&'a Bytes),
}

impl Deref for Stored<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Among(bytes) => bytes,
            Self::Own(bytes) => bytes,
        }
    }
}

/// Where a record is, until the log is changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    slot: usize,
    entry: usize,
}

/// What is known of a record in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) tag: u16,
    /// Who holds it: never 0.
    pub(crate) held: u32,
    pub(crate) len: u32,
}

impl MemoryLog {
    /// An empty log whose first record gets this offset.
    pub(crate) fn starting_at(end: Offset) -> Self {
        Self { end, empty_at: end, ..Self::default() }
    }

    /// Appends a record of `len` bytes, which [`RecordBytes::len`] gave.
    pub(crate) fn append_tagged(
        &mut self,
        source: RecordBytes<'_>,
        len: usize,
        (held, tag): (u32, u16),
    ) -> Offset {
        self.push(source, len, (held, tag))
    }

    /// Takes an offset that no record has.
    pub(crate) fn append_hole(&mut self) -> Offset {
        self.push(RecordBytes::Pieces(&[], &[]), 0, (0, 0))
    }

    /// Finds a record that is held.
    pub(crate) fn place(&self, at: Offset) -> Result<Spot, HoldError> {
        self.locate(at).map(|(slot, entry)| Spot { slot, entry })
    }

    pub(crate) fn facts(&self, place: Spot) -> Facts {
        let (tag, held, len) = self.blocks[place.slot].block.facts(place.entry);
        Facts { tag, held, len }
    }

    pub(crate) fn set_tag(&mut self, place: Spot, tag: u16) {
        *self.blocks[place.slot].block.tag_mut(place.entry) = tag;
    }

    /// Changes the word that is not 0 to another that is not 0.
    pub(crate) fn set_held(&mut self, place: Spot, held: u32) {
        debug_assert!(held > 0);
        *self.blocks[place.slot].block.holders_mut(place.entry) = held;
    }

    /// Makes a record a hole.
    pub(crate) fn drop_record(&mut self, place: Spot) {
        self.forget(place.slot, place.entry);
    }

    /// Calls `each` for every held record from `from` on and before `end`: offset, tag, word and
    /// bytes.
    pub(crate) fn walk(&mut self, from: Offset, end: Offset, each: &mut Each<'_>) {
        let (from, end) = (from.get(), end.get());
        let start = self.blocks.partition_point(|slot| slot.first <= from).saturating_sub(1);
        for DirectoryRow { first, block } in self.blocks.range_mut(start..) {
            if *first >= end {
                break;
            }
            block.walk(*first, from..end, each);
        }
    }

    /// The first offset of the block after the one that has `from`: a bound for taking the log in
    /// pieces.
    pub(crate) fn block_end(&self, from: Offset) -> Offset {
        let next = self.blocks.partition_point(|slot| slot.first <= from.get());
        self.blocks.get(next).map_or(self.end, |slot| Offset::new(slot.first))
    }
}
