//! The bytes of a segment file. `docs/formats/segment.md` explains them; numbers are little-endian.
//!
//! ```text
//! file header  128    first, then batches one after another
//!    0   8  "LVRTSEG\n"
//!    8   4  format
//!   12   4  0
//!   16  32  the program that wrote it, padded with 0
//!   48   8  segment
//!   56   8  the last segment it stands for
//!   64   8  generation
//!   72   8  first offset
//!   80   8  as of this batch: earlier notes on its records are already in it
//!   88   8  the mark that its batches begin with
//!   96   8  since format 4: the term of its batches, 0 in a rewritten one
//!  104  20  0
//!  124   4  crc32c of the bytes before
//! batch header  88, or 112 since format 4
//!    0   8  mark
//!    8   4  kind: 1 records and notes, 2 sealed, 3 first of a term, 4 change of members
//!   12   4  0
//!   16   8  bytes of the index
//!   24   8  bytes of the bodies
//!   32   8  number of the batch
//!   40   8  first batch that was not known to be synced
//!   48   8  first offset: where deltas start
//!   56   8  the offset after the batch
//!   64   4  records
//!   68   4  notes
//!   72   4  crc32c of the index
//!   76   8  0
//!   84   4  crc32c of the header before
//! since format 4 instead of the last two
//!   76   8  term
//!   84   8  term of the batch before
//!   92   8  first batch that was not known to be agreed to
//!  100   8  0
//!  108   4  crc32c of the header before
//! index: records, then notes; of kind 4 bytes that are not the log's
//!   record  varint zigzag(offset - offset before) | varint length | u32 crc32c | u8 flags |
//!           u8 bytes of head | head | [varint log, varint offset] | varint holders | each: varint name [u8 mark]
//!   note    varint zigzag(offset - offset before) * 4 + kind |
//!           0 release: varint name | 1 mark: varint name, u8 |
//!           2 persist: varint holders, each: varint name |
//!           3 the record of the next note is in segment: varint
//! bodies: the records' bytes
//! ```
//!
//! Bytes from disk never panic: this module neither indexes nor computes unchecked.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::arithmetic_side_effects)]

use smallvec::SmallVec;

use crate::disk::{FileName, Heading, Reached};
use crate::shared::{LogNumber, Original};
use crate::{HEAD_MAX, Holder, Offset};

/// What a log without terms writes. Files of 3 are in the disk's list of files: nothing else is new.
pub(super) const FORMAT: u32 = 3;
/// What a log with terms writes: headers of batches have them.
pub(super) const FORMAT_WITH_TERMS: u32 = 4;
/// The first format whose files are in a list.
pub(super) const LISTED_SINCE: u32 = 3;
pub(super) const FILE_HEADER: usize = 128;
/// Bytes of a batch header without terms.
pub(super) const BATCH_HEADER: usize = 88;
/// Bytes of one with terms.
pub(super) const TERM_HEADER: usize = 112;
const MAGIC: &[u8; 8] = b"LVRTSEG\n";

/// Offsets, batches, segments and generations are below it: no log gets as far, and one more is always a number.
pub(super) const NUMBER_MAX: u64 = 1 << 60;

/// The record is lost with the process unless a note says otherwise.
const FLAG_VOLATILE: u8 = 1;
/// Each holder is followed by its mark.
const FLAG_MARKS: u8 = 2;
/// Its bytes are in another log.
const FLAG_ELSEWHERE: u8 = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileHeader {
    pub(super) format: u32,
    pub(super) writer: String,
    pub(super) segment: u64,
    pub(super) through: u64,
    pub(super) generation: u64,
    pub(super) first: u64,
    pub(super) as_of: u64,
    pub(super) mark: u64,
    /// Of its batches. 0 in formats without terms, and if the file was rewritten.
    pub(super) term: u64,
}

/// How the batches of a file stand in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Framing {
    /// What each of them begins with.
    pub(super) mark: u64,
    /// Whether their headers have terms.
    pub(super) has_terms: bool,
}

impl Framing {
    /// Bytes of the header of a batch.
    pub(super) const fn header_len(self) -> usize {
        if self.has_terms { TERM_HEADER } else { BATCH_HEADER }
    }

    /// The format of a file like this.
    pub(super) const fn format(self) -> u32 {
        if self.has_terms { FORMAT_WITH_TERMS } else { FORMAT }
    }
}

/// Why the beginning of a file is not the header of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HeaderError {
    /// Too short, other magic or checksum.
    Damaged,
    /// Of a later version.
    Newer { format: u32, writer: String },
}

/// What a batch has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    /// Records and notes.
    #[default]
    Data,
    /// Nothing: the segment is sealed, and no batch follows in its file.
    Sealed,
    /// Nothing: it is the first of a term.
    Term,
    /// Bytes that are not the log's.
    Members,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Data, Self::Sealed, Self::Term, Self::Members];

    fn number(self) -> u32 {
        match self {
            Self::Data => 1,
            Self::Sealed => 2,
            Self::Term => 3,
            Self::Members => 4,
        }
    }

    fn of(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }
}

/// What a batch header of format 4 has besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) term: u64,
    /// Of the batch before.
    pub(super) before: u64,
    /// The first batch that others were not known to have agreed to.
    pub(super) committed: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BatchHeader {
    pub(super) kind: Kind,
    pub(super) index_len: u64,
    pub(super) bodies_len: u64,
    pub(super) sequence: u64,
    pub(super) synced: u64,
    pub(super) first: u64,
    pub(super) end: u64,
    pub(super) records: u32,
    pub(super) notes: u32,
    pub(super) index_crc: u32,
    /// None in formats without.
    pub(super) terms: Option<Terms>,
}

/// The bytes do not follow the format, although their checksum is right or was not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_le_bytes)
}

impl FileHeader {
    /// Of a file that this batch begins.
    pub(super) fn begun_by(
        batch: &BatchHeader,
        file: FileName,
        framing: Framing,
        writer: &str,
    ) -> Self {
        Self {
            format: framing.format(),
            writer: writer.to_owned(),
            segment: file.segment,
            through: file.segment,
            generation: file.generation,
            first: batch.first,
            as_of: batch.sequence,
            mark: framing.mark,
            term: batch.terms.map_or(0, |it| it.term),
        }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.format.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        let mut writer = [0; 32];
        for (to, from) in writer.iter_mut().zip(self.writer.bytes()) {
            *to = from;
        }
        out.extend_from_slice(&writer);
        let numbers =
            [self.segment, self.through, self.generation, self.first, self.as_of, self.mark];
        for number in numbers {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.term.to_le_bytes());
        out.extend_from_slice(&[0; 20]);
        let crc = crc32c::crc32c(out.get(start..).unwrap_or_default());
        out.extend_from_slice(&crc.to_le_bytes());
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, HeaderError> {
        let bytes: &[u8; FILE_HEADER] = bytes.first_chunk().ok_or(HeaderError::Damaged)?;
        let (covered, crc) = bytes.split_at(124);
        let is_whole =
            covered.starts_with(MAGIC) && u32_at(crc, 0) == Some(crc32c::crc32c(covered));
        if !is_whole {
            return Err(HeaderError::Damaged);
        }
        let writer = covered.get(16..48).unwrap_or_default();
        let writer = writer.split(|&byte| byte == 0).next().unwrap_or_default();
        let writer = String::from_utf8_lossy(writer).into_owned();
        let format = u32_at(covered, 8).ok_or(HeaderError::Damaged)?;
        if format > FORMAT_WITH_TERMS {
            return Err(HeaderError::Newer { format, writer });
        }
        let word = |at| u64_at(covered, at).ok_or(HeaderError::Damaged);
        let number = |at| match word(at)? {
            number if number < NUMBER_MAX => Ok(number),
            _ => Err(HeaderError::Damaged),
        };
        let (segment, through) = (number(48)?, number(56)?);
        if through < segment {
            return Err(HeaderError::Damaged);
        }
        Ok(Self {
            format,
            writer,
            segment,
            through,
            generation: number(64)?,
            first: number(72)?,
            as_of: number(80)?,
            mark: word(88)?,
            term: number(96)?,
        })
    }

    pub(super) fn framing(&self) -> Framing {
        Framing { mark: self.mark, has_terms: self.format >= FORMAT_WITH_TERMS }
    }

    /// What the name of the file does not say.
    pub(super) fn heading(&self) -> Heading {
        let Self { through, first, as_of, mark, .. } = *self;
        Heading { through, first, as_of, mark }
    }
}

/// What the header of a file says, if these bytes begin with one.
pub(crate) fn heading(bytes: &[u8]) -> Option<Heading> {
    FileHeader::decode(bytes).ok().map(|header| header.heading())
}

impl BatchHeader {
    pub(super) fn encode(&self, mark: u64) -> SmallVec<[u8; TERM_HEADER]> {
        let mut out = SmallVec::new();
        out.extend_from_slice(&mark.to_le_bytes());
        out.extend_from_slice(&self.kind.number().to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        let numbers =
            [self.index_len, self.bodies_len, self.sequence, self.synced, self.first, self.end];
        for number in numbers {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for number in [self.records, self.notes, self.index_crc] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        if let Some(Terms { term, before, committed }) = self.terms {
            for number in [term, before, committed] {
                out.extend_from_slice(&number.to_le_bytes());
            }
        }
        out.extend_from_slice(&[0; 8]);
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// The header at the beginning of `bytes`, if it is whole.
    pub(super) fn decode(bytes: &[u8], framing: Framing) -> Result<Self, Malformed> {
        let bytes = bytes.get(..framing.header_len()).ok_or(Malformed)?;
        let (covered, crc) = bytes.split_last_chunk::<4>().ok_or(Malformed)?;
        let is_whole = u64_at(covered, 0) == Some(framing.mark)
            && u32::from_le_bytes(*crc) == crc32c::crc32c(covered);
        if !is_whole {
            return Err(Malformed);
        }
        let header = Self::fields(covered, framing.has_terms).ok_or(Malformed)?;
        if header.can_be() { Ok(header) } else { Err(Malformed) }
    }

    /// What a header that is not whole seems to say.
    pub(super) fn guess(bytes: &[u8], has_terms: bool) -> Option<Self> {
        let len = Framing { mark: 0, has_terms }.header_len();
        Self::fields(bytes.get(..len)?, has_terms)
    }

    fn fields(covered: &[u8], has_terms: bool) -> Option<Self> {
        let terms = Terms {
            term: u64_at(covered, 76)?,
            before: if has_terms { u64_at(covered, 84)? } else { 0 },
            committed: if has_terms { u64_at(covered, 92)? } else { 0 },
        };
        Some(Self {
            kind: Kind::of(u32_at(covered, 8)?)?,
            index_len: u64_at(covered, 16)?,
            bodies_len: u64_at(covered, 24)?,
            sequence: u64_at(covered, 32)?,
            synced: u64_at(covered, 40)?,
            first: u64_at(covered, 48)?,
            end: u64_at(covered, 56)?,
            records: u32_at(covered, 64)?,
            notes: u32_at(covered, 68)?,
            index_crc: u32_at(covered, 72)?,
            terms: has_terms.then_some(terms),
        })
    }

    /// Whether a log writes such a header.
    fn can_be(&self) -> bool {
        let has_entries = self.records > 0 || self.notes > 0;
        let is_of_kind = match self.kind {
            Kind::Data => true,
            Kind::Sealed => !has_entries && (self.index_len, self.bodies_len) == (0, 0),
            Kind::Term | Kind::Members => {
                !has_entries
                    && self.terms.is_some()
                    && self.bodies_len == 0
                    && (self.kind == Kind::Members || self.index_len == 0)
            }
        };
        let are_terms = self.terms.is_none_or(|it| it.before <= it.term && it.term < NUMBER_MAX);
        is_of_kind
            && are_terms
            && self.sequence < NUMBER_MAX
            && (self.first..NUMBER_MAX).contains(&self.end)
    }

    /// Says that the segment ends before the batch with this header, which is in another file.
    ///
    /// Everything before is synced already, or by the sync of the seal. So replicas make the same one.
    pub(super) fn seal_before(next: &Self, has_terms: bool) -> Self {
        Self {
            kind: Kind::Sealed,
            sequence: next.sequence,
            synced: next.synced,
            first: next.first,
            end: next.first,
            terms: has_terms.then(|| next.terms.unwrap_or_default()),
            ..Self::default()
        }
    }

    /// Of a batch without records, with this number and behind this offset. What is in its index is to be added.
    pub(super) fn bare(kind: Kind, at: Reached, synced: u64, terms: Option<Terms>) -> Self {
        let Reached { end, sequence } = at;
        Self { kind, sequence, synced, first: end, end, terms, ..Self::default() }
    }

    pub(super) fn is_seal(&self) -> bool {
        self.kind == Kind::Sealed
    }

    /// Bytes of the header itself.
    pub(super) fn header_len(&self) -> usize {
        Framing { mark: 0, has_terms: self.terms.is_some() }.header_len()
    }

    /// Bytes of the whole batch, `None` if no file can be so long.
    pub(super) fn len(&self) -> Option<u64> {
        let header_len = self.header_len() as u64;
        header_len.checked_add(self.index_len)?.checked_add(self.bodies_len)
    }
}

/// A record as the index of its batch has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordEntry<'a> {
    pub(super) at: u64,
    pub(super) len: u32,
    pub(super) crc: u32,
    pub(super) is_volatile: bool,
    pub(super) has_marks: bool,
    pub(super) head: &'a [u8],
    /// Where its bytes are, if not here.
    pub(super) elsewhere: Option<Original>,
    holder_count: u64,
    holders: &'a [u8],
}

impl<'a> RecordEntry<'a> {
    /// Bytes of it in this file.
    pub(super) fn stored_len(&self) -> u32 {
        if self.elsewhere.is_some() { 0 } else { self.len }
    }

    pub(super) fn holders(&self) -> Holders<'a> {
        Holders { bytes: self.holders, left: self.holder_count, has_marks: self.has_marks }
    }
}

/// Holders with their marks, 0 for none. They were found to be whole before.
#[derive(Clone, Debug)]
pub(super) struct Holders<'a> {
    bytes: &'a [u8],
    left: u64,
    has_marks: bool,
}

impl Iterator for Holders<'_> {
    type Item = (Holder, u8);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let name = take_varint(&mut self.bytes)?;
        let mark = if self.has_marks { take_u8(&mut self.bytes)? } else { 0 };
        Some((Holder::new(name), mark))
    }
}

/// A note as the index of its batch has it.
#[derive(Clone, Debug)]
pub(super) struct NoteEntry<'a> {
    pub(super) at: u64,
    /// Where the record is, if that does not follow from its offset.
    pub(super) segment: Option<u64>,
    pub(super) kind: NoteKind<'a>,
}

#[derive(Clone, Debug)]
pub(super) enum NoteKind<'a> {
    Release(Holder),
    Mark(Holder, u8),
    /// The record survives after all, with these holders.
    Persist(Holders<'a>),
}

#[derive(Clone, Debug)]
pub(super) enum BatchEntry<'a> {
    Record(RecordEntry<'a>),
    Note(NoteEntry<'a>),
}

/// Reads the index of a batch from front to back.
#[derive(Clone, Debug)]
pub(super) struct IndexReader<'a> {
    rest: &'a [u8],
    before: u64,
    records: u32,
    notes: u32,
}

impl<'a> IndexReader<'a> {
    /// `index` has been found to have its checksum.
    pub(super) fn new(header: &BatchHeader, index: &'a [u8]) -> Self {
        let (records, notes) = (header.records, header.notes);
        Self { rest: index, before: header.first, records, notes }
    }

    /// Notes alone, behind a record at `before`.
    pub(super) fn of_notes(notes: &'a [u8], before: u64, count: u32) -> Self {
        Self { rest: notes, before, records: 0, notes: count }
    }

    /// So many records that are left of a batch, behind one at `before`.
    pub(super) fn of_records(records: &'a [u8], before: u64, count: u32) -> Self {
        Self { rest: records, before, records: count, notes: 0 }
    }

    /// What [`of_records`](Self::of_records) goes on with.
    pub(super) fn records_left(&self) -> (&'a [u8], u64, u32) {
        (self.rest, self.before, self.records)
    }

    /// What was not read yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn next(&mut self) -> Result<Option<BatchEntry<'a>>, Malformed> {
        if let Some(left) = self.records.checked_sub(1) {
            self.records = left;
            return self.record().map(BatchEntry::Record).map(Some).ok_or(Malformed);
        }
        if self.notes > 0 {
            return self.note().map(BatchEntry::Note).map(Some).ok_or(Malformed);
        }
        if self.rest.is_empty() { Ok(None) } else { Err(Malformed) }
    }

    fn step(&mut self, zigzag: u64) -> u64 {
        self.before = self.before.wrapping_add(unzigzag(zigzag));
        self.before
    }

    fn record(&mut self) -> Option<RecordEntry<'a>> {
        let delta = take_varint(&mut self.rest)?;
        let at = self.step(delta);
        let len = u32::try_from(take_varint(&mut self.rest)?).ok()?;
        let (crc, rest) = self.rest.split_first_chunk::<4>()?;
        self.rest = rest;
        let flags = take_u8(&mut self.rest)?;
        let head_len = usize::from(take_u8(&mut self.rest)?);
        if flags & !(FLAG_VOLATILE | FLAG_MARKS | FLAG_ELSEWHERE) != 0 || head_len > HEAD_MAX {
            return None;
        }
        let (head, rest) = self.rest.split_at_checked(head_len)?;
        self.rest = rest;
        let elsewhere = match flags & FLAG_ELSEWHERE {
            0 => None,
            _ => {
                let log = u32::try_from(take_varint(&mut self.rest)?).ok()?;
                let at = take_varint(&mut self.rest).filter(|at| *at < NUMBER_MAX)?;
                Some(Original { log: LogNumber::new(log), at: Offset::new(at) })
            }
        };
        let has_marks = flags & FLAG_MARKS != 0;
        let (holder_count, holders) = self.holders(has_marks)?;
        Some(RecordEntry {
            at,
            len,
            crc: u32::from_le_bytes(*crc),
            is_volatile: flags & FLAG_VOLATILE != 0,
            has_marks,
            head,
            elsewhere,
            holder_count,
            holders,
        })
    }

    fn holders(&mut self, has_marks: bool) -> Option<(u64, &'a [u8])> {
        let count = take_varint(&mut self.rest)?;
        let all = self.rest;
        for _ in 0..count {
            take_varint(&mut self.rest)?;
            if has_marks {
                take_u8(&mut self.rest)?;
            }
        }
        let used = all.len().checked_sub(self.rest.len())?;
        (count > 0).then_some((count, all.get(..used)?))
    }

    fn note(&mut self) -> Option<NoteEntry<'a>> {
        let mut segment = None;
        loop {
            self.notes = self.notes.checked_sub(1)?;
            let word = take_varint(&mut self.rest)?;
            let at = self.step(word >> 2);
            let kind = match word & 3 {
                0 => NoteKind::Release(self.holder()?),
                1 => NoteKind::Mark(self.holder()?, take_u8(&mut self.rest)?),
                2 => {
                    let (left, bytes) = self.holders(false)?;
                    NoteKind::Persist(Holders { bytes, left, has_marks: false })
                }
                _ => {
                    segment = Some(take_varint(&mut self.rest)?);
                    continue;
                }
            };
            return Some(NoteEntry { at, segment, kind });
        }
    }

    fn holder(&mut self) -> Option<Holder> {
        take_varint(&mut self.rest).map(Holder::new)
    }
}

pub(super) fn take_u8(bytes: &mut &[u8]) -> Option<u8> {
    let (first, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(*first)
}

pub(super) fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = take_u8(bytes)?;
        let part = u64::from(byte & 0x7f);
        if shift == 63 && part > 1 {
            return None;
        }
        value |= part.checked_shl(shift)?;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Small numbers for small steps either way. Two bits are left for the kind of a note, so a step is
/// below 2^61; offsets are.
pub(super) fn zigzag(step: u64) -> u64 {
    (step << 1) ^ (((step as i64) >> 63) as u64)
}

pub(super) fn unzigzag(word: u64) -> u64 {
    (word >> 1) ^ (word & 1).wrapping_neg()
}

/// Writes the index of a batch: all records, then all notes.
#[derive(Debug)]
pub(super) struct IndexWriter<'a> {
    out: &'a mut Vec<u8>,
    before: u64,
    /// Records and notes so far.
    pub(super) records: u32,
    pub(super) notes: u32,
}

/// What is written of a record besides its holders.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordFacts<'a> {
    pub(super) at: u64,
    pub(super) len: u32,
    pub(super) crc: u32,
    pub(super) is_volatile: bool,
    pub(super) has_marks: bool,
    pub(super) head: &'a [u8],
    pub(super) elsewhere: Option<Original>,
    pub(super) holders: usize,
}

impl<'a> IndexWriter<'a> {
    /// Appends to `out`; `first` is the header's.
    pub(super) fn new(out: &'a mut Vec<u8>, first: u64) -> Self {
        Self { out, before: first, records: 0, notes: 0 }
    }

    fn step(&mut self, at: u64) -> u64 {
        let step = at.wrapping_sub(self.before);
        self.before = at;
        zigzag(step)
    }

    /// To be followed by as many holders as announced.
    pub(super) fn record(&mut self, facts: RecordFacts<'_>) {
        let step = self.step(facts.at);
        put_varint(self.out, step);
        put_varint(self.out, u64::from(facts.len));
        self.out.extend_from_slice(&facts.crc.to_le_bytes());
        let volatile = if facts.is_volatile { FLAG_VOLATILE } else { 0 };
        let marks = if facts.has_marks { FLAG_MARKS } else { 0 };
        let elsewhere = if facts.elsewhere.is_some() { FLAG_ELSEWHERE } else { 0 };
        self.out.push(volatile | marks | elsewhere);
        self.out.push(facts.head.len() as u8);
        self.out.extend_from_slice(facts.head);
        if let Some(place) = facts.elsewhere {
            put_varint(self.out, u64::from(place.log.get()));
            put_varint(self.out, place.at.get());
        }
        put_varint(self.out, facts.holders as u64);
        self.records = self.records.saturating_add(1);
    }

    pub(super) fn holder(&mut self, holder: Holder, mark: Option<u8>) {
        put_varint(self.out, holder.get());
        self.out.extend(mark);
    }

    fn note(&mut self, at: u64, kind: u64) {
        let step = self.step(at);
        put_varint(self.out, step << 2 | kind);
        self.notes = self.notes.saturating_add(1);
    }

    /// Says where the record of the next note is.
    pub(super) fn in_segment(&mut self, at: u64, segment: u64) {
        self.note(at, 3);
        put_varint(self.out, segment);
    }

    pub(super) fn release(&mut self, at: u64, holder: Holder) {
        self.note(at, 0);
        put_varint(self.out, holder.get());
    }

    pub(super) fn mark(&mut self, at: u64, holder: Holder, mark: u8) {
        self.note(at, 1);
        put_varint(self.out, holder.get());
        self.out.push(mark);
    }

    /// To be followed by as many holders as announced.
    pub(super) fn persist(&mut self, at: u64, holders: usize) {
        self.note(at, 2);
        put_varint(self.out, holders as u64);
    }
}
