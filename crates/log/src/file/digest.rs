//! What the headers and indexes of a sealed segment say, in short: a start reads that instead of the segment.
//!
//! A digest is made of the bytes of its segment and of nothing else, so it is right or it is not that segment's: it knows
//! nothing of what was released since, which later batches say. Whoever has a copy of the segment makes the same one. It
//! may be lost at any time.
//!
//! `docs/formats/digest.md` explains the bytes; numbers are little-endian.
//!
//! ```text
//! header  128
//!    0   8  "LVRTDGST"
//!    8   4  format
//!   12   4  0
//!   16  48  segment, through, generation, first, as of, mark: as the header of the segment has them
//!   64   8  bytes of the segment's file
//!   72   8  the log's next offset after it
//!   80   8  bytes of the sets
//!   88   8  bytes of the batches
//!   96  24  0
//!  120   4  crc32c of all that follows the header
//!  124   4  crc32c of the header before
//! sets: each varint holders, their names as varints
//! batches: each
//!   varint bytes in the segment | zigzag(number - the one expected) | zigzag(first - the end before) |
//!   varint end - first | varint records | varint notes | varint bytes of the notes | rows | notes as in the segment
//! row: u8 what differs from the row before |
//!   1 zigzag(offset - the next one) | 2 varint length | 4 varint bytes of the head, one bit for each that differs, those |
//!   8 varint set | 16 volatile | 32 varint marks, each varint name, u8 | 64 crc32c | 128 varint log, varint offset
//! ```
//!
//! Bytes from disk never panic: this module neither indexes nor computes unchecked.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::arithmetic_side_effects)]

mod make;

use smallvec::SmallVec;

use super::format::{
    BatchHeader, IndexReader, Malformed, NUMBER_MAX, take_u8, take_varint, u32_at, u64_at, unzigzag,
};
use crate::disk::{FileName, Heading};
use crate::shared::{LogNumber, Original};
use crate::{HEAD_MAX, Holder, Offset};

pub use make::{Digester, ReadAt, Undigested};

const MAGIC: &[u8; 8] = b"LVRTDGST";
const FORMAT: u32 = 1;
const HEADER: usize = 128;

/// Bits of a row.
mod row {
    pub(super) const STEP: u8 = 1;
    pub(super) const LEN: u8 = 2;
    pub(super) const HEAD: u8 = 4;
    pub(super) const SET: u8 = 8;
    pub(super) const VOLATILE: u8 = 16;
    pub(super) const MARKS: u8 = 32;
    pub(super) const CRC: u8 = 64;
    pub(super) const ELSEWHERE: u8 = 128;
}

/// A digest that was read and is whole.
#[derive(Debug)]
pub(super) struct Digest {
    /// The log's next offset after the segment.
    pub(super) end: u64,
    /// Sets of holders; none has a name twice.
    pub(super) sets: Vec<Box<[Holder]>>,
    as_of: u64,
    first: u64,
    /// As they were read. The batches begin there.
    bytes: Vec<u8>,
    batches_at: usize,
}

/// A record as the digest has it.
#[derive(Debug)]
pub(super) struct Row<'a> {
    pub(super) at: u64,
    pub(super) len: u32,
    /// Only of records that other logs have to do with.
    pub(super) crc: Option<u32>,
    pub(super) is_volatile: bool,
    pub(super) elsewhere: Option<Original>,
    /// Which of the sets holds it.
    pub(super) set: usize,
    pub(super) marks: &'a [(Holder, u8)],
    pub(super) head: &'a [u8],
}

/// Records one after the other that have all but their offsets in common, and nothing but holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Alike<'a> {
    /// The first one.
    pub(super) at: u64,
    pub(super) count: u32,
    pub(super) len: u32,
    pub(super) set: usize,
    pub(super) head: &'a [u8],
}

/// Most records that [`Rows::mixed`] gives at once.
pub(super) const MIXED: usize = 256;

/// Records one after the other that have all but their offsets and their sets in common, and nothing but holders.
#[derive(Debug)]
pub(super) struct Mixed {
    /// The first one.
    pub(super) at: u64,
    pub(super) len: u32,
    sets: [u32; MIXED],
    count: usize,
}

impl Default for Mixed {
    fn default() -> Self {
        Self { at: 0, len: 0, sets: [0; MIXED], count: 0 }
    }
}

impl Mixed {
    /// The set of each.
    pub(super) fn sets(&self) -> &[u32] {
        self.sets.get(..self.count).unwrap_or_default()
    }
}

/// Reads the batches of a digest from front to back.
#[derive(Clone, Debug)]
pub(super) struct Rows<'a> {
    rest: &'a [u8],
    sets: usize,
    expected: u64,
    end: u64,
    /// Where the steps of notes count from: the last record of the batch, or its first offset.
    last: u64,
    /// As the row before had it.
    at: u64,
    len: u32,
    set: usize,
    head: [u8; HEAD_MAX],
    head_len: usize,
    marks: SmallVec<[(Holder, u8); 2]>,
    /// Rows left of this batch, and its notes.
    records: u32,
    notes: u32,
    notes_len: usize,
}

impl Digest {
    /// The digest in these bytes, if it is whole and that of a file with this header and length.
    pub(super) fn read(bytes: Vec<u8>, of: FileName, heading: Heading, len: u64) -> Option<Self> {
        let Heading { through, first, as_of, mark } = heading;
        let header: &[u8; HEADER] = bytes.first_chunk()?;
        let rest = bytes.get(HEADER..)?;
        let covered = header.get(..124)?;
        let is_whole = covered.starts_with(MAGIC)
            && u32_at(covered, 8) == Some(FORMAT)
            && u32_at(header, 124) == Some(crc32c::crc32c(covered))
            && u32_at(covered, 120) == Some(crc32c::crc32c(rest));
        let numbers = [of.segment, through, of.generation, first, as_of, mark, len];
        let places = (16_usize..).step_by(8);
        let is_its = numbers.iter().zip(places).all(|(&it, at)| u64_at(covered, at) == Some(it));
        if !is_whole || !is_its {
            return None;
        }
        let end = u64_at(covered, 72)?;
        let sets_len = usize::try_from(u64_at(covered, 80)?).ok()?;
        let (mut sets, batches) = rest.split_at_checked(sets_len)?;
        let is_all = u64_at(covered, 88) == Some(batches.len() as u64);
        if !is_all || !(first..NUMBER_MAX).contains(&end) {
            return None;
        }
        let mut list = Vec::new();
        while !sets.is_empty() {
            let count = take_varint(&mut sets)?;
            let mut names = Vec::new();
            for _ in 0..count {
                names.push(Holder::new(take_varint(&mut sets)?));
            }
            let is_one =
                !names.is_empty() && names.windows(2).all(|pair| pair.first() < pair.last());
            list.push(is_one.then(|| names.into_boxed_slice())?);
        }
        let batches_at = HEADER.checked_add(sets_len)?;
        Some(Self { end, sets: list, as_of, first, bytes, batches_at })
    }

    /// Bytes of memory.
    pub(super) fn held_bytes(&self) -> usize {
        let sets =
            self.sets.iter().map(|names| size_of_val(&**names)).fold(0, usize::saturating_add);
        self.bytes.capacity().saturating_add(sets)
    }

    /// All of its records have lower offsets, but for stragglers of later segments.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// None of its records has a lower offset, but for stragglers.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Its rows from where others stopped.
    pub(super) fn resume(&self, PausedRows { left, rows }: PausedRows) -> Rows<'_> {
        let at = self.bytes.len().saturating_sub(left);
        Rows { rest: self.bytes.get(at..).unwrap_or_default(), ..rows }
    }

    pub(super) fn rows(&self) -> Rows<'_> {
        Rows {
            rest: self.bytes.get(self.batches_at..).unwrap_or_default(),
            sets: self.sets.len(),
            expected: self.as_of,
            end: self.first,
            last: 0,
            at: 0,
            len: 0,
            set: 0,
            head: [0; HEAD_MAX],
            head_len: 0,
            marks: SmallVec::new(),
            records: 0,
            notes: 0,
            notes_len: 0,
        }
    }
}

/// How far a digest was read: what [`Digest::resume`] goes on from.
#[derive(Debug)]
pub(super) struct PausedRows {
    /// Bytes that are left.
    left: usize,
    rows: Rows<'static>,
}

impl<'a> Rows<'a> {
    /// To go on later.
    pub(super) fn pause(self) -> PausedRows {
        let Self { rest, sets, expected, end, last, at, len, set, head, head_len, .. } = self;
        let Self { marks, records, notes, notes_len, .. } = self;
        let left = rest.len();
        let rows = Rows {
            rest: &[],
            sets,
            expected,
            end,
            last,
            at,
            len,
            set,
            head,
            head_len,
            marks,
            records,
            notes,
            notes_len,
        };
        PausedRows { left, rows }
    }

    /// Whether the batch has rows that were not taken.
    pub(super) fn has_rows(&self) -> bool {
        self.records > 0
    }

    /// The next batch, with the bytes that it takes in the segment. To be called when all rows and notes of the one before
    /// were taken.
    pub(super) fn batch(&mut self) -> Result<Option<(BatchHeader, u64)>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        self.header().map(Some).ok_or(Malformed)
    }

    fn header(&mut self) -> Option<(BatchHeader, u64)> {
        let rest = &mut self.rest;
        let len = take_varint(rest)?;
        let sequence = self.expected.wrapping_add(unzigzag(take_varint(rest)?));
        let first = self.end.wrapping_add(unzigzag(take_varint(rest)?));
        let end = first.checked_add(take_varint(rest)?)?;
        let records = u32::try_from(take_varint(rest)?).ok()?;
        let notes = u32::try_from(take_varint(rest)?).ok()?;
        self.notes_len = usize::try_from(take_varint(rest)?).ok()?;
        if sequence >= NUMBER_MAX || !(first..NUMBER_MAX).contains(&end) || len >= NUMBER_MAX {
            return None;
        }
        self.expected = sequence.checked_add(1)?;
        self.end = end;
        (self.at, self.last) = (first.wrapping_sub(1), first);
        (self.records, self.notes) = (records, notes);
        let header = BatchHeader { sequence, first, end, records, notes, ..BatchHeader::default() };
        Some((header, len))
    }

    /// The next record of the batch.
    pub(super) fn row(&mut self) -> Result<Option<Row<'_>>, Malformed> {
        let Some(left) = self.records.checked_sub(1) else { return Ok(None) };
        self.records = left;
        self.take_row().map(Some).ok_or(Malformed)
    }

    /// The next records of the batch, as many as are like the row before. They are most of a backlog, and cost a byte each.
    pub(super) fn alike(&mut self) -> Result<Option<Alike<'_>>, Malformed> {
        let most = usize::try_from(self.records).unwrap_or(usize::MAX).min(self.rest.len());
        let rows = self.rest.get(..most).unwrap_or_default();
        let same = zeros(rows);
        if same == 0 {
            return Ok(None);
        }
        let count = u32::try_from(same).map_err(|_| Malformed)?;
        let at = self.at.wrapping_add(1);
        let last = self.at.checked_add(count.into()).filter(|last| *last < NUMBER_MAX);
        let last = last.filter(|last| at <= *last && self.set < self.sets).ok_or(Malformed)?;
        (self.at, self.last) = (last, last);
        self.records = self.records.saturating_sub(count);
        self.rest = self.rest.get(same..).unwrap_or_default();
        Ok(Some(Alike { at, count, len: self.len, set: self.set, head: self.head()? }))
    }

    /// The next records of the batch, as many as differ from the row before in their sets alone: those of a backlog
    /// whose messages went to many queues in turn. Whether there are any.
    pub(super) fn mixed(&mut self, mixed: &mut Mixed) -> Result<bool, Malformed> {
        let mut count = 0;
        let most = usize::try_from(self.records).unwrap_or(usize::MAX);
        for (place, taken) in mixed.sets.iter_mut().take(most).zip(1..) {
            // A varint of one byte or two; what has a longer one is a row of its own.
            let (set, rest) = match self.rest {
                [row::SET, set @ 0..0x80, rest @ ..] => (u32::from(*set), rest),
                [row::SET, low, high @ 0..0x80, rest @ ..] => {
                    (u32::from(*low & 0x7f) | u32::from(*high) << 7, rest)
                }
                _ => break,
            };
            let index = usize::try_from(set).ok().filter(|set| *set < self.sets);
            (self.set, self.rest) = (index.ok_or(Malformed)?, rest);
            (*place, count) = (set, taken);
        }
        mixed.count = count;
        if count == 0 {
            return Ok(false);
        }
        let count = u32::try_from(count).map_err(|_| Malformed)?;
        let last = self.at.checked_add(count.into()).filter(|last| *last < NUMBER_MAX);
        (mixed.at, mixed.len) = (self.at.wrapping_add(1), self.len);
        let last = last.filter(|last| mixed.at <= *last).ok_or(Malformed)?;
        (self.at, self.last) = (last, last);
        self.records = self.records.saturating_sub(count);
        Ok(true)
    }

    /// The head of the row before.
    pub(super) fn head(&self) -> Result<&[u8], Malformed> {
        self.head.get(..self.head_len).ok_or(Malformed)
    }

    #[inline]
    fn take_row(&mut self) -> Option<Row<'_>> {
        let bits = take_u8(&mut self.rest)?;
        self.at = self.at.wrapping_add(1);
        let (mut crc, mut elsewhere) = (None, None);
        if bits & row::STEP != 0 {
            self.at = self.at.wrapping_add(unzigzag(take_varint(&mut self.rest)?));
        }
        if bits & row::LEN != 0 {
            self.len = u32::try_from(take_varint(&mut self.rest)?).ok()?;
        }
        if bits & row::HEAD != 0 {
            self.take_head()?;
        }
        if bits & row::SET != 0 {
            self.set = usize::try_from(take_varint(&mut self.rest)?).ok()?;
        }
        self.marks.clear();
        if bits & row::MARKS != 0 {
            for _ in 0..take_varint(&mut self.rest)? {
                let name = Holder::new(take_varint(&mut self.rest)?);
                self.marks.push((name, take_u8(&mut self.rest)?));
            }
        }
        if bits & row::CRC != 0 {
            let (found, rest) = self.rest.split_first_chunk::<4>()?;
            (crc, self.rest) = (Some(u32::from_le_bytes(*found)), rest);
        }
        if bits & row::ELSEWHERE != 0 {
            let log = u32::try_from(take_varint(&mut self.rest)?).ok()?;
            let at = take_varint(&mut self.rest).filter(|at| *at < NUMBER_MAX)?;
            elsewhere = Some(Original { log: LogNumber::new(log), at: Offset::new(at) });
        }
        self.last = self.at;
        if self.at >= NUMBER_MAX || self.set >= self.sets {
            return None;
        }
        Some(Row {
            at: self.at,
            len: self.len,
            crc,
            is_volatile: bits & row::VOLATILE != 0,
            elsewhere,
            set: self.set,
            marks: &self.marks,
            head: self.head.get(..self.head_len)?,
        })
    }

    fn take_head(&mut self) -> Option<()> {
        self.head_len = usize::try_from(take_varint(&mut self.rest)?).ok()?;
        let (bits, rest) = self.rest.split_at_checked(self.head_len.div_ceil(8))?;
        let mut values = rest;
        let head = self.head.get_mut(..self.head_len)?;
        for (eight, &bits) in head.chunks_mut(8).zip(bits) {
            let mut bits = bits;
            while bits != 0 {
                let byte = eight.get_mut(bits.trailing_zeros() as usize)?;
                *byte = take_u8(&mut values)?;
                bits &= bits.wrapping_sub(1);
            }
        }
        self.rest = values;
        Some(())
    }

    /// The notes of the batch, once its records were taken.
    pub(super) fn notes(&mut self) -> Result<IndexReader<'a>, Malformed> {
        let (notes, rest) = self.rest.split_at_checked(self.notes_len).ok_or(Malformed)?;
        self.rest = rest;
        Ok(IndexReader::of_notes(notes, self.last, self.notes))
    }
}

/// How many bytes of 0 come first.
fn zeros(bytes: &[u8]) -> usize {
    let (eights, _) = bytes.as_chunks::<8>();
    let whole = eights.iter().take_while(|eight| **eight == [0; 8]).count().saturating_mul(8);
    let rest = bytes.get(whole..).unwrap_or_default();
    whole.saturating_add(rest.iter().take_while(|byte| **byte == 0).count())
}
