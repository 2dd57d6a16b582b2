//! Making a digest: from batch to batch through a sealed segment.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::arithmetic_side_effects)]

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use smallvec::SmallVec;

use super::{FORMAT, HEADER, MAGIC, row};
use crate::disk::{DiskError, FileName};
use crate::file::format::{
    BatchEntry, BatchHeader, FILE_HEADER, FileHeader, Framing, Malformed, RecordEntry, put_varint,
    zigzag,
};
use crate::file::walk::{Batch, Step, Walk};
use crate::{HEAD_MAX, Holder};

/// Bytes that are read at once when nothing asks for more: of large records, most would be their bodies.
const READ: usize = 32 << 10;

/// Fills a buffer from a place of the file.
pub type ReadAt<'a> = dyn FnMut(u64, &mut [u8]) -> Result<(), DiskError> + 'a;

/// Why there is no digest of a segment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Undigested {
    /// It cannot be read.
    #[error("{0}")]
    Disk(DiskError),
    /// What is at this byte is not what a log writes.
    #[error("it is damaged at byte {0}")]
    Damaged(u64),
}

/// Makes the digest of a sealed segment, a batch at a time.
#[derive(Debug)]
pub struct Digester {
    file: FileName,
    len: u64,
    header: Option<FileHeader>,
    walk: Walk,
    need: usize,
    window: Vec<u8>,
    window_start: u64,
    made: Made,
}

/// What was made so far.
#[derive(Debug, Default)]
struct Made {
    sets: HashMap<SmallVec<[u64; 2]>, u64, FixedState>,
    set_bytes: Vec<u8>,
    batches: Vec<u8>,
    expected: u64,
    end: u64,
    before: Before,
}

/// The row before.
#[derive(Debug)]
struct Before {
    at: u64,
    len: u32,
    names: SmallVec<[u64; 2]>,
    set: u64,
    head: [u8; HEAD_MAX],
    head_len: usize,
}

impl Default for Before {
    fn default() -> Self {
        let (names, head) = (SmallVec::new(), [0; HEAD_MAX]);
        Self { at: 0, len: 0, names, set: 0, head, head_len: 0 }
    }
}

impl Digester {
    /// For a file of so many bytes.
    pub fn new(file: FileName, len: u64) -> Self {
        Self {
            file,
            len,
            header: None,
            walk: Walk::new(0, 0, Framing::default()),
            need: 0,
            window: Vec::new(),
            window_start: 0,
            made: Made::default(),
        }
    }

    /// Reads the next batch. Gives the bytes of the digest when all were read.
    pub fn step(&mut self, read: &mut ReadAt<'_>) -> Result<Option<Vec<u8>>, Undigested> {
        if self.header.is_none() {
            return self.begin(read).map(|()| None);
        }
        let position = self.walk.position();
        self.show(position, self.need, read)?;
        let skip = usize::try_from(position.wrapping_sub(self.window_start)).unwrap_or(usize::MAX);
        let shown = self.window.get(skip..).unwrap_or_default();
        match self.walk.step(shown) {
            Step::Need(bytes) => self.need = bytes,
            Step::Batch(batch) if batch.header.is_seal() => {
                if batch.end() != self.len {
                    return Err(Undigested::Damaged(batch.end()));
                }
                let end = batch.header.end.max(self.made.end);
                return Ok(self
                    .header
                    .as_ref()
                    .map(|header| self.made.finish(header, self.len, end)));
            }
            Step::Batch(batch) => {
                self.need = 0;
                let is_in_order = batch.header.sequence >= self.made.expected;
                if self.file.generation == 0 && !is_in_order {
                    return Err(Undigested::Damaged(position));
                }
                self.made.batch(&batch).map_err(|Malformed| Undigested::Damaged(position))?;
            }
            Step::End | Step::Bad => return Err(Undigested::Damaged(position)),
        }
        Ok(None)
    }

    fn begin(&mut self, read: &mut ReadAt<'_>) -> Result<(), Undigested> {
        let mut bytes = [0; FILE_HEADER];
        read(0, &mut bytes).map_err(Undigested::Disk)?;
        let header = FileHeader::decode(&bytes).map_err(|_| Undigested::Damaged(0))?;
        if (header.segment, header.generation) != (self.file.segment, self.file.generation) {
            return Err(Undigested::Damaged(0));
        }
        self.walk = Walk::new(FILE_HEADER as u64, self.len, header.framing());
        (self.made.expected, self.made.end) = (header.as_of, header.first);
        self.header = Some(header);
        Ok(())
    }

    /// Has the window show the file from `position` on, `need` bytes if there are as many.
    fn show(
        &mut self,
        position: u64,
        need: usize,
        read: &mut ReadAt<'_>,
    ) -> Result<(), Undigested> {
        let skip = position.checked_sub(self.window_start).and_then(|it| usize::try_from(it).ok());
        let has = skip.and_then(|skip| self.window.len().checked_sub(skip)).unwrap_or(0);
        if has > 0 && has >= need {
            return Ok(());
        }
        let left = usize::try_from(self.len.saturating_sub(position)).unwrap_or(usize::MAX);
        self.window.clear();
        self.window.resize(need.max(READ).min(left), 0);
        self.window_start = position;
        read(position, &mut self.window).map_err(Undigested::Disk)
    }
}

impl Made {
    fn batch(&mut self, batch: &Batch<'_>) -> Result<(), Malformed> {
        batch.check(self.end)?;
        let BatchHeader { sequence, first, end, records, notes, .. } = batch.header;
        let len = batch.end().saturating_sub(batch.position);
        put_varint(&mut self.batches, len);
        put_varint(&mut self.batches, zigzag(sequence.wrapping_sub(self.expected)));
        put_varint(&mut self.batches, zigzag(first.wrapping_sub(self.end)));
        put_varint(&mut self.batches, end.saturating_sub(first));
        put_varint(&mut self.batches, records.into());
        put_varint(&mut self.batches, notes.into());
        self.expected = sequence.saturating_add(1);
        self.end = end;
        let mut entries = batch.entries();
        // The bytes of the notes are behind those of the records.
        for _ in 0..records {
            entries.next()?;
        }
        let note_bytes = entries.rest();
        put_varint(&mut self.batches, note_bytes.len() as u64);
        self.before.at = first.wrapping_sub(1);
        let mut entries = batch.entries();
        for _ in 0..records {
            if let Some(BatchEntry::Record(record)) = entries.next()? {
                self.record(&record);
            }
        }
        self.batches.extend_from_slice(note_bytes);
        Ok(())
    }

    fn record(&mut self, record: &RecordEntry<'_>) {
        let bits_at = self.batches.len();
        self.batches.push(0);
        let mut bits = 0;
        let Self { batches: out, before, .. } = self;
        let next = before.at.wrapping_add(1);
        if record.at != next {
            bits |= row::STEP;
            put_varint(out, zigzag(record.at.wrapping_sub(next)));
        }
        if record.len != before.len {
            bits |= row::LEN;
            put_varint(out, record.len.into());
        }
        if before.put_head(record.head, out) {
            bits |= row::HEAD;
        }
        (before.at, before.len) = (record.at, record.len);
        let mut names: SmallVec<[u64; 2]> = SmallVec::new();
        let mut marks: SmallVec<[(Holder, u8); 2]> = SmallVec::new();
        let mut is_shared = record.elsewhere.is_some();
        for (name, mark) in record.holders() {
            names.push(name.get());
            is_shared |= name.as_log().is_some();
            if mark > 0 {
                marks.push((name, mark));
            }
        }
        if names.len() > 1 {
            names.sort_unstable();
            names.dedup();
        }
        if names != self.before.names {
            bits |= row::SET;
            let set = self.set(&names);
            put_varint(&mut self.batches, set);
            (self.before.names, self.before.set) = (names, set);
        }
        let out = &mut self.batches;
        if record.is_volatile {
            bits |= row::VOLATILE;
        }
        if !marks.is_empty() {
            bits |= row::MARKS;
            put_varint(out, marks.len() as u64);
            for (name, mark) in marks {
                put_varint(out, name.get());
                out.push(mark);
            }
        }
        if is_shared {
            bits |= row::CRC;
            out.extend_from_slice(&record.crc.to_le_bytes());
        }
        if let Some(place) = record.elsewhere {
            bits |= row::ELSEWHERE;
            put_varint(out, place.log.get().into());
            put_varint(out, place.at.get());
        }
        if let Some(place) = out.get_mut(bits_at) {
            *place = bits;
        }
    }

    /// The number of a set.
    fn set(&mut self, names: &[u64]) -> u64 {
        if let Some(&set) = self.sets.get(names) {
            return set;
        }
        let set = self.sets.len() as u64;
        self.sets.insert(names.into(), set);
        put_varint(&mut self.set_bytes, names.len() as u64);
        names.iter().for_each(|&name| put_varint(&mut self.set_bytes, name));
        set
    }

    fn finish(&self, of: &FileHeader, len: u64, end: u64) -> Vec<u8> {
        let (sets, batches) = (&self.set_bytes, &self.batches);
        let mut out =
            Vec::with_capacity(HEADER.saturating_add(sets.len()).saturating_add(batches.len()));
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&FORMAT.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        let numbers = [
            of.segment,
            of.through,
            of.generation,
            of.first,
            of.as_of,
            of.mark,
            len,
            end,
            sets.len() as u64,
            batches.len() as u64,
        ];
        numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
        out.extend_from_slice(&[0; 24]);
        let crc = crc32c::crc32c_append(crc32c::crc32c(sets), batches);
        out.extend_from_slice(&crc.to_le_bytes());
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out.extend_from_slice(sets);
        out.extend_from_slice(batches);
        out
    }
}

impl Before {
    /// Writes what differs in a head. False if nothing does.
    fn put_head(&mut self, head: &[u8], out: &mut Vec<u8>) -> bool {
        let Some(known) = self.head.get_mut(..head.len()) else { return false };
        if self.head_len == head.len() && known == head {
            return false;
        }
        self.head_len = head.len();
        put_varint(out, head.len() as u64);
        for (known, head) in known.chunks(8).zip(head.chunks(8)) {
            let differs = known.iter().zip(head).map(|(known, byte)| u8::from(known != byte));
            out.push(differs.rev().fold(0, |bits, bit| bits << 1 | bit));
        }
        let differing = known.iter().zip(head).filter(|(known, byte)| known != byte);
        out.extend(differing.map(|(_, byte)| *byte));
        known.copy_from_slice(head);
        true
    }
}
