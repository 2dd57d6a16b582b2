//! From batch to batch through a segment file, reading headers and indexes and no bodies.
//!
//! Knows no disk: it is shown a piece of the file and tells which it wants to see next. So opening a
//! log, looking for a cold record and rewriting a segment read a file in one way.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::arithmetic_side_effects)]

use super::format::{BatchEntry, BatchHeader, Framing, IndexReader, Kind, Malformed, RecordEntry};

/// Where in a file the next batch begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walk {
    position: u64,
    /// Where the part of the file that is walked ends.
    end: u64,
    framing: Framing,
}

/// A batch whose header and index are whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch<'a> {
    pub(super) position: u64,
    pub(super) header: BatchHeader,
    pub(super) index: &'a [u8],
}

#[derive(Debug)]
pub(super) enum Step<'a> {
    /// Show at least so many bytes from [`Walk::position`] on; there are so many.
    Need(usize),
    Batch(Batch<'a>),
    /// All batches were seen.
    End,
    /// What stands at [`Walk::position`] is not a whole batch.
    Bad,
}

impl Walk {
    pub(super) fn new(position: u64, end: u64, framing: Framing) -> Self {
        Self { position, end, framing }
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// `window` are bytes of the file from [`Self::position`] on, as many as there happen to be.
    pub(super) fn step<'a>(&mut self, window: &'a [u8]) -> Step<'a> {
        let left = self.end.saturating_sub(self.position);
        if left == 0 {
            return Step::End;
        }
        let header_len = self.framing.header_len();
        if left < header_len as u64 {
            return Step::Bad;
        }
        if window.len() < header_len {
            return Step::Need(header_len);
        }
        let Ok(header) = BatchHeader::decode(window, self.framing) else { return Step::Bad };
        let Some(len) = header.len().filter(|&len| len <= left) else { return Step::Bad };
        // Not above `len`, which was just found to be in the file.
        let Ok(before_bodies) = usize::try_from(len.saturating_sub(header.bodies_len)) else {
            return Step::Bad;
        };
        let Some(index) = window.get(header_len..before_bodies) else {
            return Step::Need(before_bodies);
        };
        if crc32c::crc32c(index) != header.index_crc {
            return Step::Bad;
        }
        let position = self.position;
        self.position = self.position.saturating_add(len);
        Step::Batch(Batch { position, header, index })
    }
}

impl<'a> Batch<'a> {
    pub(super) fn entries(&self) -> IndexReader<'a> {
        let is_its = self.header.kind == Kind::Data;
        IndexReader::new(&self.header, if is_its { self.index } else { &[] })
    }

    /// Calls `each` with every record and the place of its bytes in the file, if they are in it.
    pub(super) fn records(
        &self,
        each: &mut dyn FnMut(RecordEntry<'a>, u64),
    ) -> Result<(), Malformed> {
        let mut entries = self.entries();
        let mut place = self.bodies();
        let end = place.saturating_add(self.header.bodies_len);
        while let Some(BatchEntry::Record(record)) = entries.next()? {
            let after = place.checked_add(u64::from(record.stored_len())).ok_or(Malformed)?;
            if after > end {
                return Err(Malformed);
            }
            each(record, place);
            place = after;
        }
        Ok(())
    }

    /// Whether the index can be read, and says what a log writes behind a batch that ended before the offset `from`:
    /// records in order have ascending offsets of this batch, stragglers lower ones.
    pub(super) fn check(&self, from: u64) -> Result<(), Malformed> {
        let BatchHeader { first, end, .. } = self.header;
        let mut next = first;
        let mut is_in_order = from <= first;
        self.records(&mut |record, _| {
            if record.at >= first {
                is_in_order &= (next..end).contains(&record.at);
                next = record.at.saturating_add(1);
            }
        })?;
        let mut entries = self.entries();
        while entries.next()?.is_some() {}
        if is_in_order { Ok(()) } else { Err(Malformed) }
    }

    /// Where the bodies begin in the file.
    pub(super) fn bodies(&self) -> u64 {
        let before = (self.header.header_len() as u64).saturating_add(self.header.index_len);
        self.position.saturating_add(before)
    }

    /// Where the batch ends in the file.
    pub(super) fn end(&self) -> u64 {
        self.bodies().saturating_add(self.header.bodies_len)
    }

    /// Bytes of it in the file.
    pub(super) fn len(&self) -> u64 {
        self.end().saturating_sub(self.position)
    }
}

/// Looks for headers of batches in bytes that are no batch, and tells before which batch all were synced as
/// far as these know: if one before it is not whole, it is damaged, not torn.
pub(super) fn synced_before(bytes: &[u8], framing: Framing) -> u64 {
    let needle = framing.mark.to_le_bytes();
    let headers = memchr::memmem::find_iter(bytes, &needle)
        .filter_map(|at| BatchHeader::decode(bytes.get(at..)?, framing).ok());
    headers.map(|header| header.synced).max().unwrap_or(0)
}

/// Whether a batch of this number was begun in these bytes, which are no whole one. Else they were never written, or
/// are those of a file that this one was made of.
pub(super) fn is_begun(bytes: &[u8], mark: u64, sequence: u64) -> bool {
    let number = |at: usize| bytes.get(at..)?.first_chunk().copied().map(u64::from_le_bytes);
    let [mark_here, sequence_here] = [0, 32].map(number);
    sequence_here.is_none() || mark_here == Some(mark) || sequence_here == Some(sequence)
}
