//! Giving batches to others, who write them at the same place: header, index and bodies as they were written.
//!
//! The newest ones are in memory, in the buffers from which they were written. Others are read from their segments, some in one
//! go, while nobody waits. What was rewritten or removed cannot be given: who lacks it needs files.

use std::collections::VecDeque;

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::follow::BatchPlace;
use super::format::{BatchHeader, FILE_HEADER, Kind, TERM_HEADER};
use super::manifest::Sending;
use super::segments::Segment;
use super::walk::{Batch, Step, Walk};
use super::{FileLog, submit};
use crate::BatchName;
use crate::disk::{Body, Disk, DiskError, FileName, Op, Piece, Token};

/// Bytes that are read at once, unless a batch is longer.
const READ: u64 = 512 << 10;

/// Reads under way at a time.
const READS_MAX: usize = 4;

/// A batch as its leader wrote it, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchCopy {
    /// The number of the segment.
    pub segment: u64,
    /// Where in the segment's file it begins.
    pub position: u64,
    /// The first bytes of the file, if the batch is the first one in it; else nothing.
    pub beginning: Bytes,
    /// Header, index and bodies, one behind the other. In one piece, or the first has header and index.
    pub pieces: Vec<Bytes>,
}

impl BatchCopy {
    /// The name that its header has, whether or not the rest is right. None if there is no header.
    pub fn name(&self) -> Option<BatchName> {
        let header = self.header()?;
        Some(BatchName { number: header.sequence, term: header.terms?.term })
    }

    /// The name of the batch that it follows on, as its header has it.
    pub fn before(&self) -> Option<BatchName> {
        let header = self.header()?;
        let number = header.sequence.checked_sub(1)?;
        Some(BatchName { number, term: header.terms?.before })
    }

    /// What was given to [`FileLog::append_members`], if it is a batch of that kind.
    pub fn members(&self) -> Option<Bytes> {
        let header = self.header().filter(|it| it.kind == Kind::Members)?;
        let len = usize::try_from(header.index_len).ok()?;
        let first = self.pieces.first()?;
        let end = TERM_HEADER.checked_add(len).filter(|end| *end <= first.len())?;
        Some(first.slice(TERM_HEADER..end))
    }

    /// Bytes of the batch.
    pub fn len(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len() as u64).sum()
    }

    /// Whether it has no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn header(&self) -> Option<BatchHeader> {
        BatchHeader::guess(self.pieces.first()?, true)
    }
}

/// Why a batch cannot be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoBatch {
    /// It is being read: to be asked for again when the disk wakes the log's owner.
    #[error("the batch is being read")]
    ToCome,
    /// No batch has this number yet.
    #[error("there is no batch of this number yet")]
    NotYet,
    /// It is not here as it was written, or was written without a term: see [`FileLog::point`].
    #[error("the batch is not here as it was written")]
    Gone,
    /// The disk gave nothing back, or not what was written.
    #[error("the batch is damaged in file {file}, behind byte {position}")]
    Damaged {
        /// Where it is.
        file: FileName,
        /// Where in the file it is, or one shortly before it.
        position: u64,
    },
}

/// A read of batches.
#[derive(Debug)]
struct Read {
    /// The first one that is wanted.
    number: u64,
    file: FileName,
    /// Of what is read.
    position: u64,
    walk: Walk,
    /// The first bytes of the file, if they were read.
    beginning: Bytes,
    found: Vec<(u64, BatchCopy)>,
    /// What it reads was cut off meanwhile.
    is_cut: bool,
}

/// The batches that are here for others, and reads of more.
#[derive(Debug)]
pub(super) struct Giving {
    /// The newest ones, without a gap.
    kept: VecDeque<(u64, BatchCopy)>,
    kept_bytes: u64,
    /// Of the file that was begun last, until its first batch has it.
    beginning: Bytes,
    reads: HashMap<Token, Read, FixedState>,
    /// What reads brought, each by itself: those of the oldest go first.
    came: VecDeque<Vec<(u64, BatchCopy)>>,
    came_bytes: u64,
    /// The last one that could not be read.
    damaged: Option<(u64, NoBatch)>,
    bytes_max: u64,
    held_from: u64,
    pub(super) sending: Sending,
}

impl Giving {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self {
            kept: VecDeque::new(),
            kept_bytes: 0,
            beginning: Bytes::new(),
            reads: HashMap::default(),
            came: VecDeque::new(),
            came_bytes: 0,
            damaged: None,
            bytes_max,
            held_from: u64::MAX,
            sending: Sending::default(),
        }
    }

    /// A file begins with these bytes.
    pub(super) fn begin(&mut self, bytes: &[u8]) {
        self.beginning = Bytes::copy_from_slice(bytes);
    }

    /// A batch is going to be written: keeps it, and gives what is to be written.
    pub(super) fn keep(
        &mut self,
        header: &BatchHeader,
        (segment, position): (u64, u64),
        (head, body): (Vec<u8>, Body),
    ) -> (Vec<u8>, Body) {
        let first = std::iter::once(Bytes::from(head));
        let pieces: Vec<_> = first.chain(body.into_pieces()).collect();
        let body = Body::of_pieces(&pieces);
        let beginning = std::mem::take(&mut self.beginning);
        self.sending.end(header.sequence, segment, position + body.len() as u64);
        self.keep_copy(header.sequence, BatchCopy { segment, position, beginning, pieces });
        // What is being written is here alone.
        while self.kept_bytes > self.bytes_max && self.kept.len() > 1 {
            self.drop_first();
        }
        (Vec::new(), body)
    }

    /// Keeps a batch that was made here.
    pub(super) fn keep_copy(&mut self, number: u64, batch: BatchCopy) {
        // Those between were copied from others.
        if self.kept.back().is_some_and(|(last, _)| last.checked_add(1) != Some(number)) {
            self.kept.clear();
            self.kept_bytes = 0;
        }
        self.kept_bytes += batch.len();
        self.kept.push_back((number, batch));
    }

    /// The batches from this number on are no more.
    pub(super) fn cut_from(&mut self, from: u64) {
        while let Some((_, batch)) = self.kept.pop_back_if(|(number, _)| *number >= from) {
            self.kept_bytes -= batch.len();
        }
        self.came.iter_mut().for_each(|found| found.retain(|(number, _)| *number < from));
        self.came_bytes = self.came.iter().map(|found| bytes_of(found)).sum();
        self.damaged.take_if(|(number, _)| *number >= from);
        // Other batches may take their places while the disk reads.
        self.reads.values_mut().for_each(|read| read.is_cut = true);
    }

    fn drop_first(&mut self) {
        let dropped = self.kept.pop_front();
        self.kept_bytes -= dropped.map_or(0, |(_, batch)| batch.len());
    }

    fn get(&self, number: u64) -> Option<&BatchCopy> {
        let first = self.kept.front().map_or(u64::MAX, |(first, _)| *first);
        let kept = number.checked_sub(first).and_then(|index| self.kept.get(index as usize));
        let mut came = self.came.iter().rev().flatten();
        kept.or_else(|| came.find(|(it, _)| *it == number)).map(|(_, batch)| batch)
    }

    /// Whether a read of this file is under way.
    pub(super) fn reads(&self, file: FileName) -> bool {
        self.reads.values().any(|read| read.file == file)
    }

    /// Whether a file stays on the disk for others: it is being read, or they were promised it.
    pub(super) fn needs(&self, file: FileName) -> bool {
        self.reads(file) || self.sending.holds(file)
    }

    /// From this number on batches stay as they were written.
    pub(super) fn held_from(&self) -> u64 {
        self.held_from.min(self.sending.held_from())
    }

    pub(super) fn held_bytes(&self) -> usize {
        (self.kept_bytes + self.came_bytes) as usize + self.sending.held_bytes()
    }

    fn take(&mut self, found: Vec<(u64, BatchCopy)>) {
        self.came_bytes += bytes_of(&found);
        self.came.push_back(found);
        while self.came_bytes > self.bytes_max && self.came.len() > 1 {
            let dropped = self.came.pop_front().unwrap_or_default();
            self.came_bytes -= bytes_of(&dropped);
        }
    }
}

fn bytes_of(batches: &[(u64, BatchCopy)]) -> u64 {
    batches.iter().map(|(_, batch)| batch.len()).sum()
}

impl<D: Disk> FileLog<D> {
    /// A batch of a log with terms, as it was written or is being written. From memory, without a copy; else it is read, and
    /// those behind it with it: then it is [to come](NoBatch::ToCome), and is there once the disk has woken the log's owner
    /// and the log has [collected](crate::Log::collect).
    pub fn batch(&mut self, number: u64) -> Result<BatchCopy, NoBatch> {
        if let Some(batch) = self.giving.get(number) {
            return Ok(batch.clone());
        }
        if number > self.last().number {
            return Err(NoBatch::NotYet);
        }
        if let Some((_, error)) = self.giving.damaged.take_if(|(it, _)| *it == number) {
            return Err(error);
        }
        let BatchPlace { file, framing, position: near, end } = match &self.following {
            Some(following) if number > following.applied().number => {
                // It is being written, or cut off.
                following.place_of(number, &self.store.segments).ok_or(NoBatch::ToCome)?
            }
            _ => {
                let segment =
                    self.as_written().find(|it| number >= it.as_of).ok_or(NoBatch::Gone)?;
                let position = segment.near_batch(number).ok_or(NoBatch::Gone)?;
                let Segment { file, framing, written: end, .. } = *segment;
                BatchPlace { file, framing, position, end }
            }
        };
        let reads = &self.giving.reads;
        if reads.len() >= READS_MAX || reads.values().any(|it| it.number == number) {
            return Err(NoBatch::ToCome);
        }
        // The first one brings the file's header.
        let position = if near == FILE_HEADER as u64 { 0 } else { near };
        let walk = Walk::new(near, end, framing);
        let (beginning, found, is_cut) = Default::default();
        self.read_batches(Read { number, file, position, walk, beginning, found, is_cut }, READ);
        Err(NoBatch::ToCome)
    }

    /// All others have the batches below this number: they need not stay in memory, once they are on this disk.
    pub fn let_go_of(&mut self, below: u64) {
        let below = below.min(self.writer.synced());
        while self.giving.kept.front().is_some_and(|(number, _)| *number < below) {
            self.giving.drop_first();
        }
    }

    /// Batches from this number on stay as they were written, as others lack them: their files are neither removed nor
    /// rewritten. `u64::MAX` is none, as in the beginning.
    pub fn hold_batches(&mut self, from: u64) {
        if from == self.giving.held_from {
            return;
        }
        self.giving.held_from = from;
        self.space.look();
        self.space.check();
    }

    /// The first of the newest batches that are in files of so many bytes together; 0 if all are.
    pub fn batches_within(&self, bytes: u64) -> u64 {
        let mut left = bytes;
        for segment in self.as_written() {
            let Some(rest) = left.checked_sub(segment.len) else { return segment.next_batch };
            left = rest;
        }
        0
    }

    fn read_batches(&mut self, mut read: Read, least: u64) {
        let left = read.walk.end().saturating_sub(read.position);
        read.position = read.position.min(read.walk.end());
        let len = least.max(READ).min(left) as usize;
        let (file, position) = (read.file, read.position);
        let op = Op::Read { file, pieces: vec![Piece { position, len }] };
        let token = submit(&mut self.disk, &mut self.next_token, op);
        self.giving.reads.insert(token, read);
    }

    /// Takes a read of batches for others. Gives it back if it was none.
    pub(super) fn given_read(
        &mut self,
        token: Token,
        result: Result<Bytes, DiskError>,
    ) -> Option<Result<Bytes, DiskError>> {
        let Some(mut read) = self.giving.reads.remove(&token) else { return Some(result) };
        if read.is_cut {
            return None;
        }
        let next = result.ok().map_or(Next::Damaged, |bytes| read.take(&bytes));
        match next {
            Next::Done => self.giving.take(read.found),
            Next::Read(least) => {
                read.position = read.walk.position();
                self.read_batches(read, least);
            }
            Next::Damaged => {
                let (file, position) = (read.file, read.walk.position());
                self.giving.damaged = Some((read.number, NoBatch::Damaged { file, position }));
                self.giving.take(read.found);
            }
        }
        None
    }
}

/// What is to be done after a read.
enum Next {
    /// The batch is here.
    Done,
    /// It is not; so many bytes are needed of it.
    Read(u64),
    Damaged,
}

impl Read {
    /// Takes what was read.
    fn take(&mut self, bytes: &Bytes) -> Next {
        if self.position == 0 {
            self.beginning = bytes.slice(..FILE_HEADER.min(bytes.len()));
        }
        let least = loop {
            let skip = self.walk.position().saturating_sub(self.position) as usize;
            let mut walk = self.walk;
            let shown = bytes.get(skip..).unwrap_or_default();
            match walk.step(shown) {
                Step::Batch(batch) if batch.header.is_seal() => {}
                Step::Batch(batch) if batch.header.sequence < self.number => {}
                Step::Batch(batch) if batch.len() > shown.len() as u64 => break batch.len(),
                Step::Batch(batch) if are_whole(&batch, shown) => {
                    let is_first = batch.position == FILE_HEADER as u64;
                    let copy = BatchCopy {
                        segment: self.file.segment,
                        position: batch.position,
                        beginning: if is_first { self.beginning.clone() } else { Bytes::new() },
                        pieces: vec![bytes.slice(skip..skip + batch.len() as usize)],
                    };
                    self.found.push((batch.header.sequence, copy));
                }
                Step::Need(least) => break least as u64,
                Step::Batch(_) | Step::End | Step::Bad => break 0,
            }
            self.walk = walk;
        };
        match least {
            _ if !self.found.is_empty() => Next::Done,
            0 => Next::Damaged,
            least => Next::Read(least),
        }
    }
}

/// Whether the records of a batch are what they were. `bytes` are those of the batch.
pub(super) fn are_whole(batch: &Batch<'_>, bytes: &[u8]) -> bool {
    let mut are_whole = true;
    let read = batch.records(&mut |record, place| {
        let from = place.saturating_sub(batch.position) as usize;
        let body = bytes.get(from..).and_then(|rest| rest.get(..record.stored_len() as usize));
        let is_here = record.elsewhere.is_none();
        are_whole &= !is_here || body.map(crc32c::crc32c) == Some(record.crc);
    });
    read.is_ok() && are_whole
}
