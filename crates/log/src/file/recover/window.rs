//! A file, read a piece at a time; what of it is whole.

use crate::disk::{Disk, DiskError, FileName};
use crate::file::format::Framing;
use crate::file::walk::{Batch, synced_before};

/// Bytes that are read at once when nothing asks for more, behind what was read before.
const READ: usize = 256 << 10;

/// The same elsewhere in the file: of long records the index alone is wanted.
const FAR_READ: usize = 32 << 10;

/// A piece of a file.
pub(in crate::file) struct Window<'a, D> {
    disk: &'a mut D,
    file: FileName,
    len: u64,
    start: u64,
    bytes: Vec<u8>,
    /// Bytes that were read.
    done: u64,
}

impl<'a, D: Disk> Window<'a, D> {
    pub(in crate::file) fn new(disk: &'a mut D, file: FileName, len: u64) -> Self {
        Window { disk, file, len, start: 0, bytes: Vec::new(), done: 0 }
    }

    /// How many bytes were read so far.
    pub(in crate::file) fn done(&self) -> u64 {
        self.done
    }

    /// Bytes of the file.
    pub(in crate::file) fn len(&self) -> u64 {
        self.len
    }

    /// The file from `position` on: `most` bytes or more, or all that it has.
    pub(in crate::file) fn show_most(
        &mut self,
        position: u64,
        most: usize,
    ) -> Result<&[u8], DiskError> {
        let left = usize::try_from(self.len.saturating_sub(position)).unwrap_or(usize::MAX);
        self.show(position, most.min(left))
    }

    /// The file from `position` on: at least `need` bytes, if it has so many.
    pub(in crate::file) fn show(&mut self, position: u64, need: usize) -> Result<&[u8], DiskError> {
        let has = |bytes: &[u8], start: u64| {
            let offset = usize::try_from(position.checked_sub(start)?).ok()?;
            let left = bytes.len().checked_sub(offset)?;
            (left >= need).then_some(offset)
        };
        if has(&self.bytes, self.start).is_none() {
            let left = usize::try_from(self.len.saturating_sub(position)).unwrap_or(usize::MAX);
            let end = self.start.saturating_add(self.bytes.len() as u64);
            let is_far = position > end || position < self.start;
            let least = if is_far { FAR_READ } else { READ };
            self.bytes.clear();
            self.bytes.resize(need.max(least).min(left), 0);
            self.start = position;
            self.done = self.done.saturating_add(self.bytes.len() as u64);
            self.disk.read_now(self.file, position, &mut self.bytes)?;
        }
        let offset = has(&self.bytes, self.start).unwrap_or(self.bytes.len());
        Ok(self.bytes.get(offset..).unwrap_or_default())
    }

    /// [`synced_before`] of the file from `position` on, which may be long.
    pub(in crate::file) fn synced_before(
        &mut self,
        mut position: u64,
        framing: Framing,
    ) -> Result<u64, DiskError> {
        let mut synced = 0;
        while position < self.len {
            let shown = self.show_most(position, READ)?;
            synced = synced.max(synced_before(shown, framing));
            // A header may lie across the end of what is shown.
            let step = shown.len().saturating_sub(framing.header_len()) as u64;
            let is_end = position.saturating_add(shown.len() as u64) >= self.len;
            position = if is_end { self.len } else { position.saturating_add(step.max(1)) };
        }
        Ok(synced)
    }
}

/// Places, lengths and checksums of a batch's records.
pub(in crate::file) fn crcs(batch: &Batch<'_>) -> Vec<(u64, u32, u32)> {
    let mut crcs = Vec::new();
    // What is malformed is found by whoever takes the records.
    let _ = batch.records(&mut |record, place| {
        if record.elsewhere.is_none() {
            crcs.push((place, record.len, record.crc));
        }
    });
    crcs
}

/// Whether all records are what they were.
pub(in crate::file) fn have_crcs<D: Disk>(
    window: &mut Window<'_, D>,
    crcs: &[(u64, u32, u32)],
) -> Result<bool, DiskError> {
    for &(place, len, crc) in crcs {
        let len = len as usize;
        let shown = window.show(place, len)?;
        if shown.get(..len).map(crc32c::crc32c) != Some(crc) {
            return Ok(false);
        }
    }
    Ok(true)
}
