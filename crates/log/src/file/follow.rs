//! A follower: its log is a copy of its leader's, batch by batch, at the same places of files of the same numbers.
//!
//! ```text
//!   copy ->  | gathered | in line: written and synced, one write after the other |  -> stored
//!   apply_to ->                         stored and committed: in the table of holders  -> applied
//! ```
//!
//! A follower that is elected makes the first batch of its term, and changes of members, as if it copied them: as long as no
//! records come it may be deposed, and copies on. Its log [leads](FileLog::lead) when it is to take records.
//!
//! What is not applied is the *tail*: it may be cut off, and nothing but the files and this list of it knows of it. So a cut
//! undoes nothing. What is applied is stored here, too: files are removed and rewritten as a leader's are.
//!
//! Bytes from others never panic: this module neither indexes nor computes unchecked.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::arithmetic_side_effects)]

use std::collections::VecDeque;

use bytes::Bytes;

use super::format::{
    BatchEntry, BatchHeader, FILE_HEADER, FileHeader, Framing, HeaderError, Kind, Malformed,
    NoteKind, Terms,
};
use super::give::{BatchCopy, are_whole};
use super::segments::{SegmentTerms, Segments};
use super::table::Table;
use super::walk::{Batch, Step, Walk};
use super::{FileLog, submit};
use crate::disk::{Body, Disk, DiskError, FileName, Op, Reached, Token};
use crate::memory::MemoryLog;
use crate::{BatchName, Offset};

/// Why a batch was not copied. The log is as before the call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// These bytes are no batch that a log of this version writes, or not all of one.
    #[error("these are not the bytes of a batch: {0}")]
    Malformed(&'static str),
    /// A later version wrote the file that it begins.
    #[error(
        "the batch begins a file of format {format}, by {writer}, which is newer than this version"
    )]
    Newer {
        /// The format.
        format: u32,
        /// Who made it.
        writer: String,
    },
    /// It does not follow on what is here.
    #[error("{name} of segment {segment} at byte {position} does not follow: {there}")]
    Mismatch {
        /// Which batch.
        name: BatchName,
        /// Where it is to be.
        segment: u64,
        /// Where in the file.
        position: u64,
        /// What is here.
        there: There,
    },
    /// The log leads.
    #[error("the log is not that of a follower")]
    Leads,
    /// An earlier write failed: see [`SyncError`](crate::SyncError).
    #[error("the log has failed")]
    Failed,
}

/// How far a follower's log is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct There {
    /// The last batch. [`BatchName::NONE`] if there is none.
    pub last: BatchName,
    /// The segment that the next batch is to be in, and where in its file; none if the next one has to begin a file.
    pub next: Option<(u64, u64)>,
}

impl std::fmt::Display for There {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the last one here is {}", self.last)?;
        match self.next {
            Some((segment, position)) => write!(f, ", in segment {segment} up to byte {position}"),
            None => write!(f, ", and no file may be added to"),
        }
    }
}

/// Why a log cannot be cut. It is as before the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CutError {
    /// What others agreed to stays.
    #[error("all up to {committed} is committed, which is not below batch {from}")]
    Committed {
        /// The first batch that was to go.
        from: u64,
        /// The last one that is committed, as far as the log knows.
        committed: u64,
    },
    /// The log leads.
    #[error("the log is not that of a follower")]
    Leads,
}

/// Others agreed to another batch than the log has under this number: somebody's log is not what it said. Nothing was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{committed} is committed, and {here} is here")]
pub struct OtherBatch {
    /// What is committed.
    pub committed: BatchName,
    /// What the log has.
    pub here: BatchName,
}

/// Something of the tail.
#[derive(Debug)]
struct TailItem {
    /// The number of the batch that it is, or that brought it.
    number: u64,
    what: What,
}

#[derive(Debug)]
enum What {
    /// The batches that follow are those of this file.
    Begin(FileName, FileHeader, SegmentTerms),
    Batch(u64, BatchHeader, Bytes),
    /// The file before ends in this, and no more batches come.
    Seal(u64, BatchHeader),
}

impl TailItem {
    /// Has the table take it in.
    fn apply(self, table: &mut Table) -> Result<(), Malformed> {
        match self.what {
            What::Begin(name, header, terms) => {
                table.begin(name, &header)?;
                table.set_terms(terms);
                Ok(())
            }
            What::Batch(position, header, index) => {
                table.batch(&Batch { position, header, index: &index })
            }
            What::Seal(position, header) => table.batch(&Batch { position, header, index: &[] }),
        }
    }
}

/// What is in the files and not in the table.
#[derive(Debug)]
pub(super) struct Tail {
    items: VecDeque<TailItem>,
    /// The last batch that is in the table, or the one before the first that there is.
    applied: BatchName,
    /// The last batch that others are known to have agreed to.
    committed: u64,
    /// What they agreed to according to who opened the log: it counts once it is found.
    told: BatchName,
}

impl Tail {
    /// Of a log in whose files all up to number `point` is committed.
    pub(super) fn new(told: BatchName, point: u64) -> Self {
        Self { items: VecDeque::new(), applied: BatchName::NONE, committed: point, told }
    }

    /// The batch that was read in place of the one that others agreed to.
    pub(super) fn other(&self) -> Option<OtherBatch> {
        let here = self.name_of(self.told.number)?;
        (here != self.told).then_some(OtherBatch { committed: self.told, here })
    }

    /// The batch of this number, if it is in the tail, or the last one that is applied.
    fn name_of(&self, number: u64) -> Option<BatchName> {
        if number == self.applied.number {
            return Some(self.applied);
        }
        // They ascend: of a batch that is new all are below.
        let mut items = self.items.iter().rev().take_while(|item| item.number >= number);
        items.find_map(|item| match &item.what {
            What::Batch(_, header, _) if header.sequence == number => Some(name_of(header)),
            _ => None,
        })
    }

    /// The files that are read go on with this one, whose batches may be cut off.
    pub(super) fn begin(&mut self, name: FileName, header: &FileHeader, terms: SegmentTerms) {
        if self.items.is_empty() {
            self.applied = BatchName { number: before(header.as_of), term: terms.before };
        }
        let what = What::Begin(name, header.clone(), terms);
        self.items.push_back(TailItem { number: header.as_of, what });
    }

    /// The next batch that is read, or what seals its file. Its header tells how far others agreed.
    pub(super) fn batch(&mut self, batch: &Batch<'_>, table: &mut Table) -> Result<(), Malformed> {
        let Batch { position, header, index } = *batch;
        let what = match header.is_seal() {
            true => What::Seal(position, header),
            false => What::Batch(position, header, Bytes::copy_from_slice(index)),
        };
        self.items.push_back(TailItem { number: header.sequence, what });
        let told = header.terms.map_or(0, |it| before(it.committed));
        self.committed = self.committed.max(told.min(before(header.sequence)));
        if name_of(&header) == self.told && !header.is_seal() {
            self.committed = self.committed.max(self.told.number);
        }
        self.apply(self.committed, table)
    }

    /// What follows in the files is in the table as a whole, and so is all before it.
    pub(super) fn apply_all(&mut self, table: &mut Table) -> Result<(), Malformed> {
        self.apply(u64::MAX, table)
    }

    /// Applies the batches up to a number.
    fn apply(&mut self, number: u64, table: &mut Table) -> Result<(), Malformed> {
        while let Some(item) = self.items.pop_front_if(|item| item.number <= number) {
            if let What::Batch(_, header, _) = &item.what {
                self.applied = name_of(header);
            }
            item.apply(table)?;
        }
        Ok(())
    }

    /// All files were read: the next batch would have this number, the last one has this term, and `applied` is the last file of
    /// which something is applied. A file without a batch goes, and so does what seals a
    /// file, if it has no next one: those that are to come may be in other places. Gives the files that go, and those that are
    /// cut with their new length.
    pub(super) fn trim(
        &mut self,
        next: u64,
        last_term: u64,
        applied: Option<FileName>,
    ) -> Vec<(FileName, Option<u64>)> {
        let mut changes = Vec::new();
        while let Some(item) = self.items.pop_back_if(|it| !matches!(it.what, What::Batch(..))) {
            match item.what {
                What::Begin(name, ..) => changes.push((name, None)),
                What::Seal(position, _) => {
                    // All batches of the file may be applied, and not what seals it.
                    let file = self.last_begun().or(applied);
                    changes.extend(file.map(|name| (name, Some(position))));
                }
                What::Batch(..) => {}
            }
        }
        if self.items.is_empty() {
            // The last batch of a log of one alone does not have the name of none.
            let is_first = next == 1 && last_term == 0 && applied.is_some();
            let number = if is_first { 1 } else { before(next) };
            self.applied = BatchName { number, term: last_term };
        }
        // More may be committed than is here.
        let last = self.last().map_or(self.applied.number, |it| it.sequence);
        self.committed = self.committed.min(last);
        changes
    }

    /// A log in which nothing is begins behind this batch.
    pub(super) fn begin_behind(&mut self, point: BatchName) -> Option<Reached> {
        if !self.items.is_empty() {
            return None;
        }
        (self.applied, self.committed) = (point, point.number);
        Some(Reached { end: 0, sequence: next(point.number) })
    }

    fn last_begun(&self) -> Option<FileName> {
        self.items.iter().rev().find_map(|item| match &item.what {
            What::Begin(name, ..) => Some(*name),
            _ => None,
        })
    }

    /// The last batch, and the offset behind it.
    fn last(&self) -> Option<&BatchHeader> {
        self.items.iter().rev().find_map(|item| match &item.what {
            What::Batch(_, header, _) => Some(header),
            _ => None,
        })
    }

    /// How far the log is, if the table is as far as that.
    pub(super) fn reached(&self, applied: Reached) -> Reached {
        self.last().map_or(applied, |it| Reached { end: it.end, sequence: next(it.sequence) })
    }

    /// The file that is written to.
    fn growing(&self, segments: &Segments) -> Option<Growing> {
        let last = segments.all.back().filter(|it| !it.is_sealed);
        let mut growing = last.map(|it| Growing {
            name: it.file,
            framing: it.framing,
            term: it.term(),
            len: it.len,
        });
        for item in &self.items {
            match &item.what {
                What::Begin(name, header, _) => {
                    growing = Some(Growing {
                        name: *name,
                        framing: header.framing(),
                        term: header.term,
                        len: FILE_HEADER as u64,
                    });
                }
                What::Batch(position, header, _) => {
                    let end = header.len().and_then(|len| position.checked_add(len));
                    growing = growing.map(|it| Growing { len: end.unwrap_or(it.len), ..it });
                }
                What::Seal(..) => growing = None,
            }
        }
        growing
    }
}

/// The file that is written to.
#[derive(Clone, Copy, Debug)]
struct Growing {
    name: FileName,
    framing: Framing,
    term: u64,
    len: u64,
}

/// What is to be done on the disk.
#[derive(Debug)]
enum Job {
    Write { file: FileName, position: u64, head: Vec<u8>, body: Body, is_last: bool },
    Cut(FileName, u64),
    Remove(FileName),
}

#[derive(Debug)]
struct Work {
    job: Job,
    /// The number of the batch that needs it.
    number: u64,
    /// The last batch that is stored once it is done.
    stores: u64,
    /// How far the log is with it.
    reached: Reached,
}

impl Work {
    /// Joins what follows, if that is of the same write.
    fn join(&mut self, next: &mut Self) -> bool {
        let (
            Job::Write { file, position, head, body, is_last: false },
            Job::Write {
                file: next_file,
                position: next_position,
                head: next_head,
                body: more,
                is_last: false,
            },
        ) = (&mut self.job, &mut next.job)
        else {
            return false;
        };
        let end = position.saturating_add(body.len() as u64);
        // What begins or seals a file is a write of its own.
        if !head.is_empty() || !next_head.is_empty() || file != next_file || end != *next_position {
            return false;
        }
        std::mem::take(more).into_pieces().for_each(|piece| body.push_whole(piece));
        (self.number, self.stores, self.reached) = (next.number, next.stores, next.reached);
        true
    }
}

/// A log that is that of a follower.
#[derive(Debug)]
pub(super) struct Following {
    /// Without its store, which is the log's.
    table: Table,
    tail: Tail,
    last: BatchName,
    /// The offset behind it.
    end: u64,
    growing: Option<Growing>,
    /// The last batch on this disk.
    stored: u64,
    /// What was copied since the last sync.
    gathered: VecDeque<Work>,
    /// What was handed over: one is done after the other.
    line: VecDeque<Work>,
    /// The first in the line is under way.
    under_way: Option<Token>,
    /// The last batch is one that was made here, of a term that was begun here.
    makes: bool,
}

impl Following {
    pub(super) fn last(&self) -> BatchName {
        self.last
    }

    pub(super) fn stored(&self) -> u64 {
        self.stored
    }

    /// The last batch that is applied.
    pub(super) fn applied(&self) -> BatchName {
        self.tail.applied
    }

    pub(super) fn term_of(&self, number: u64) -> Option<u64> {
        self.tail.name_of(number).map(|name| name.term)
    }

    /// Whether it makes batches of a term that was begun here.
    pub(super) fn makes(&self) -> bool {
        self.makes
    }

    /// Whether all is on this disk.
    fn is_stored(&self) -> bool {
        self.gathered.is_empty() && self.line.is_empty()
    }

    /// Where a batch of the tail is that is on this disk: in a file that is framed so, from a position on, and to where others of the
    /// same file follow.
    pub(super) fn place_of(&self, number: u64, segments: &Segments) -> Option<BatchPlace> {
        let items = &self.tail.items;
        let is_batch = |item: &TailItem| matches!(item.what, What::Batch(..));
        let first = items.partition_point(|item| item.number < number);
        let at = first.saturating_add(items.range(first..).position(is_batch)?);
        let begun = items.range(..at).rev().find_map(|item| match &item.what {
            What::Begin(name, header, _) => Some((*name, header.framing())),
            _ => None,
        });
        let applied = || segments.all.back().map(|it| (it.file, it.framing));
        let (file, framing) = begun.or_else(applied)?;
        let mut stored = items.range(at..).map_while(|item| match &item.what {
            What::Batch(position, header, _) if item.number <= self.stored => {
                Some((*position, position.checked_add(header.len()?)?))
            }
            _ => None,
        });
        let (position, end) = stored.next()?;
        let end = stored.last().map_or(end, |(_, end)| end);
        Some(BatchPlace { file, framing, position, end })
    }

    /// What waits to be handed to the disk.
    pub(super) fn waiting(&self) -> usize {
        self.gathered.len().saturating_add(self.line.len())
    }

    /// What was copied and not handed over is not written any more.
    pub(super) fn give_up_writes(&mut self) {
        self.gathered.clear();
        self.line.truncate(usize::from(self.under_way.is_some()));
    }

    pub(super) fn is_writing(&self) -> bool {
        self.under_way.is_some()
    }

    fn there(&self) -> There {
        let next = self.growing.filter(|it| it.framing.has_terms);
        There { last: self.last, next: next.map(|it| (it.name.segment, it.len)) }
    }

    /// Adds work for a batch.
    fn gather(&mut self, job: Job, header: &BatchHeader, stores: u64) {
        let number = header.sequence;
        let reached = match stores == number {
            true => Reached { end: header.end, sequence: next(number) },
            false => Reached { end: header.first, sequence: number },
        };
        self.gathered.push_back(Work { job, number, stores, reached });
    }

    /// Takes what was found to be the next batch, in these bytes.
    fn take(&mut self, copy: &BatchCopy, bytes: &Bytes, found: Found) {
        let Found { header, begins, index } = found;
        let (number, stored_before) = (header.sequence, before(header.sequence));
        // What this disk has synced is its own.
        let header = BatchHeader { synced: next(self.stored), ..header };
        if let Some(file_header) = begins {
            if let Some(old) = self.growing {
                let Framing { mark, has_terms } = old.framing;
                let seal = BatchHeader::seal_before(&header, has_terms);
                let job = Job::Write {
                    file: old.name,
                    position: old.len,
                    head: seal.encode(mark).to_vec(),
                    body: Body::default(),
                    is_last: true,
                };
                self.gather(job, &header, stored_before);
                self.tail.items.push_back(TailItem { number, what: What::Seal(old.len, seal) });
            }
            let name = FileName { segment: copy.segment, generation: 0 };
            let (framing, term) = (file_header.framing(), file_header.term);
            let job = Job::Write {
                file: name,
                position: 0,
                head: copy.beginning.to_vec(),
                body: Body::default(),
                is_last: false,
            };
            self.gather(job, &header, stored_before);
            let terms = SegmentTerms { term, before: self.last.term };
            let what = What::Begin(name, file_header, terms);
            self.tail.items.push_back(TailItem { number, what });
            self.growing = Some(Growing { name, framing, term, len: FILE_HEADER as u64 });
        }
        let Some(growing) = &mut self.growing else { return };
        let mut body = Body::default();
        body.push_whole(Bytes::copy_from_slice(&header.encode(growing.framing.mark)));
        body.push_whole(bytes.slice(header.header_len().min(bytes.len())..));
        let (file, position) = (growing.name, growing.len);
        growing.len = position.saturating_add(bytes.len() as u64);
        let job = Job::Write { file, position, head: Vec::new(), body, is_last: false };
        self.gather(job, &header, number);
        let what = What::Batch(position, header, index);
        self.tail.items.push_back(TailItem { number, what });
        (self.last, self.end) = (name_of(&header), header.end);
    }
}

/// Where a batch is.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchPlace {
    pub(super) file: FileName,
    pub(super) framing: Framing,
    pub(super) position: u64,
    /// Where the last one ends that follows in this file.
    pub(super) end: u64,
}

/// A batch that was checked.
struct Found {
    header: BatchHeader,
    /// The header of the file that it begins.
    begins: Option<FileHeader>,
    index: Bytes,
}

impl<D: Disk> FileLog<D> {
    /// The log was opened as a follower's.
    pub(super) fn follow(&mut self, table: Table, tail: Tail) {
        let reached = tail.reached(table.reached);
        let last = tail.last().map_or(tail.applied, name_of);
        let growing = tail.growing(&self.store.segments);
        self.writer.await_term();
        self.following = Some(Box::new(Following {
            table,
            tail,
            last,
            end: reached.end,
            growing,
            // What a start builds on is safe.
            stored: last.number,
            gathered: VecDeque::new(),
            line: VecDeque::new(),
            under_way: None,
            makes: false,
        }));
        self.refresh();
    }

    /// Copies the next batch of the leader's log, as a follower: checks it, and has it written at the same place by the next
    /// [`sync`](crate::Log::sync), with all others that were copied until then. It is on the disk when
    /// [`stored`](Self::stored) says so. Nobody sees of it before [`apply_to`](Self::apply_to).
    ///
    /// One that is here already changes nothing.
    pub fn copy(&mut self, batch: &BatchCopy) -> Result<BatchName, CopyError> {
        if self.writer.has_failed() || self.is_installed() {
            return Err(CopyError::Failed);
        }
        let name = batch.name().ok_or(CopyError::Malformed("there is no header"))?;
        let is_here = self.term_of(name.number) == Some(name.term);
        let newest = self.newest_segment();
        let following = self.following.as_mut().ok_or(CopyError::Leads)?;
        if is_here {
            return Ok(name);
        }
        let (segment, position) = (batch.segment, batch.position);
        let is_next = batch.before() == Some(following.last);
        let has_place = match following.there().next {
            _ if !batch.beginning.is_empty() => newest.is_none_or(|newest| segment > newest),
            there => there == Some((segment, position)),
        };
        if !is_next || !has_place {
            let there = following.there();
            return Err(CopyError::Mismatch { name, segment, position, there });
        }
        let bytes = match batch.pieces.as_slice() {
            [bytes] => bytes.clone(),
            pieces => Bytes::from(pieces.concat()),
        };
        let found = check(batch, &bytes, following)?;
        following.take(batch, &bytes, found);
        following.makes = false;
        Ok(name)
    }

    /// The batches up to this one, itself included, are committed, if the log has it: a follower's are applied to the table of
    /// holders once they are on this disk, and a leader's are [agreed](Self::set_agreed) to. A lower one than before changes
    /// nothing, nor does one that is not here yet: it is to be told again.
    pub fn apply_to(&mut self, committed: BatchName) -> Result<(), OtherBatch> {
        let BatchName { number, term } = committed;
        // What is above the end has no term, nor has what is below the point.
        let Some(here) = self.term_of(number) else { return Ok(()) };
        if here != term {
            return Err(OtherBatch { committed, here: BatchName { number, term: here } });
        }
        match &mut self.following {
            Some(following) => {
                following.tail.committed = following.tail.committed.max(number);
                self.apply_stored();
            }
            None => self.set_agreed(next(number)),
        }
        Ok(())
    }

    /// The changes of members that opening found, as they were given to [`append_members`](Self::append_members), each with the
    /// number of its batch; and those that were copied since. None unless the log is a follower's.
    pub fn changes_of_members(&self) -> Vec<(u64, Bytes)> {
        let Some(following) = &self.following else { return Vec::new() };
        let tail = following.tail.items.iter().filter_map(|item| match &item.what {
            What::Batch(_, header, index) if header.kind == Kind::Members => {
                Some((header.sequence, index.clone()))
            }
            _ => None,
        });
        following.table.members.iter().cloned().chain(tail).collect()
    }

    /// The last batch that is applied; none unless the log is a follower's.
    pub fn applied(&self) -> Option<BatchName> {
        self.following.as_ref().map(|following| following.applied())
    }

    /// The last batch that was applied before the log was opened, as its files show, and is not [applied](Self::applied) now: it
    /// releases a record that is gone with its file. So a batch was agreed to although no later one that says so is here. As of the
    /// applied batch, and of those between, some records are missing. 0 if there is no such batch.
    pub fn was_applied_to(&self) -> u64 {
        let Some(following) = &self.following else { return 0 };
        let end = following.table.reached.end;
        let is_gone = |at: u64| at < end && self.store.cold.get(at).is_none();
        let releases_what_is_gone = |item: &&TailItem| {
            let What::Batch(position, header, index) = &item.what else { return false };
            let batch = Batch { position: *position, header: *header, index };
            let mut entries = batch.entries();
            let is_data = header.kind == Kind::Data;
            while let Some(entry) = entries.next().ok().flatten().filter(|_| is_data) {
                let BatchEntry::Note(note) = entry else { continue };
                if matches!(note.kind, NoteKind::Release(_)) && is_gone(note.at) {
                    return true;
                }
            }
            false
        };
        let last = following.tail.items.iter().rev().find(releases_what_is_gone);
        last.map_or(0, |item| item.number)
    }

    /// Cuts off the batches from this number on: the leader has others. The next one to be [copied](Self::copy) is that of
    /// this number. On the disk it is done with the next [`sync`](crate::Log::sync), before what is copied after it. Nothing
    /// is cut that is committed.
    pub fn cut_from(&mut self, from: u64) -> Result<(), CutError> {
        let following = self.following.as_mut().ok_or(CutError::Leads)?;
        let committed = following.tail.committed.max(following.tail.applied.number);
        if from <= committed {
            return Err(CutError::Committed { from, committed });
        }
        if from > following.last.number {
            return Ok(());
        }
        self.forget_own();
        self.giving.cut_from(from);
        let Some(following) = &mut self.following else { return Err(CutError::Leads) };
        following.makes = false;
        // What was not handed over need not be begun.
        let mut is_written = true;
        let dropped = following.gathered.iter().position(|it| {
            let is_cut = matches!(it.job, Job::Cut(..) | Job::Remove(_));
            it.number >= from && !is_cut
        });
        let begun_at = dropped.and_then(|at| following.gathered.get(at)).map(|it| it.number);
        following
            .gathered
            .retain(|it| it.number < from || matches!(it.job, Job::Cut(..) | Job::Remove(_)));
        let is_on_disk = |number: u64| begun_at.is_none_or(|begun| number < begun);
        let tail = &mut following.tail;
        let mut going = Vec::new();
        is_written &= is_on_disk(from);
        while let Some(item) = tail.items.pop_back_if(|it| it.number >= from) {
            match item.what {
                What::Begin(name, ..) if is_on_disk(item.number) => going.push(name),
                _ => {}
            }
        }
        let reached = tail.reached(following.table.reached);
        let last = tail.last().map_or(tail.applied, name_of);
        (following.last, following.end) = (last, reached.end);
        following.growing = tail.growing(&self.store.segments);
        following.stored = following.stored.min(last.number);
        // Writes that are under way end before, and store no more than is left.
        let all = following.line.iter_mut().chain(&mut following.gathered);
        all.for_each(|it| it.stores = it.stores.min(last.number));
        let cut = following.growing.filter(|_| is_written).map(|it| Job::Cut(it.name, it.len));
        // The last one goes first: whatever a crash leaves is a log.
        let jobs = going.into_iter().map(Job::Remove).chain(cut);
        following.gathered.extend(jobs.map(|job| Work { job, number: from, stores: 0, reached }));
        Ok(())
    }

    /// The last segment that there is.
    fn newest_segment(&self) -> Option<u64> {
        let begun = self.following.as_ref().and_then(|it| it.tail.last_begun());
        let last = self.store.segments.all.back().map(|it| it.through);
        begun.map(|name| name.segment).or(last)
    }

    /// Has what was gathered written.
    pub(super) fn write_copies(&mut self) {
        let Some(following) = &mut self.following else { return };
        if following.line.is_empty() {
            let Following { gathered, line, .. } = &mut **following;
            for mut work in gathered.drain(..) {
                if !line.back_mut().is_some_and(|last| last.join(&mut work)) {
                    line.push_back(work);
                }
            }
        }
        self.write_next();
    }

    fn write_next(&mut self) {
        let Self { following, disk, next_token, store, options, .. } = self;
        let Some(following) = following.as_mut().filter(|it| it.under_way.is_none()) else {
            return;
        };
        let Some(Work { job, reached, .. }) = following.line.front_mut() else { return };
        let reached = *reached;
        let op = match job {
            Job::Write { file, position, head, body, is_last } => Op::Write {
                file: *file,
                position: *position,
                head: std::mem::take(head),
                body: std::mem::take(body),
                reached,
                sync: true,
                is_last: *is_last,
                is_background: false,
            },
            Job::Cut(file, len) => Op::Cut { file: *file, len: *len, reached },
            Job::Remove(file) => {
                let next_len = store.segments.all.back().map_or(options.segment_bytes, |it| it.len);
                Op::Remove { file: *file, next_len }
            }
        };
        following.under_way = Some(submit(disk, next_token, op));
    }

    /// A write of copies has completed.
    pub(super) fn copied(
        &mut self,
        token: Token,
        (head, body): (Vec<u8>, Body),
        result: Result<(), DiskError>,
    ) {
        let Some(following) = &mut self.following else { return };
        if following.under_way != Some(token) {
            return;
        }
        following.under_way = None;
        match result {
            Ok(()) => {
                self.writer.set_full(false);
                self.space.found_room();
                self.work_done();
            }
            Err(error) => {
                if let Some(Job::Write { head: to, body: bodies, .. }) =
                    following.line.front_mut().map(|work| &mut work.job)
                {
                    (*to, *bodies) = (head, body);
                }
                match error {
                    // To be tried again.
                    DiskError::Full => self.writer.set_full(true),
                    DiskError::Failed(reason) => self.writer.fail(reason),
                }
            }
        }
    }

    /// A file was cut, or is gone. Gives back the removal of another file.
    pub(super) fn cut_done(
        &mut self,
        token: Token,
        result: Result<(), DiskError>,
    ) -> Option<Result<(), DiskError>> {
        let following = self.following.as_mut().filter(|it| it.under_way == Some(token));
        let Some(following) = following else { return Some(result) };
        following.under_way = None;
        match result {
            Ok(()) => self.work_done(),
            Err(error) => self.writer.fail(error.to_string()),
        }
        None
    }

    fn work_done(&mut self) {
        let Some(following) = &mut self.following else { return };
        if let Some(done) = following.line.pop_front() {
            following.stored = following.stored.max(done.stores);
        }
        self.write_next();
        self.apply_stored();
    }

    /// Applies what is committed and on this disk.
    fn apply_stored(&mut self) {
        let Some(following) = &self.following else { return };
        self.apply_until(following.tail.committed.min(following.stored));
    }

    fn apply_until(&mut self, number: u64) {
        let Some(following) = &mut self.following else { return };
        if number <= following.tail.applied.number {
            return;
        }
        let Following { table, tail, .. } = &mut **following;
        std::mem::swap(&mut table.store, &mut self.store);
        let applied = tail.apply(number, table);
        std::mem::swap(&mut table.store, &mut self.store);
        if applied.is_err() {
            self.writer.fail("a committed batch cannot be applied".to_owned());
        }
        self.refresh();
    }

    /// The table has changed.
    fn refresh(&mut self) {
        let Some(following) = &mut self.following else { return };
        let Following { table, tail, .. } = &mut **following;
        let end = Offset::new(table.reached.end);
        (self.sums.records, self.sums.live_bytes) = (0, 0);
        for segment in &self.store.segments.all {
            self.sums.records = self.sums.records.saturating_add(segment.live);
            self.sums.live_bytes = self.sums.live_bytes.saturating_add(segment.live_bytes);
        }
        self.store.weights.sweep(&self.store.cold, self.sums.records);
        self.hot = MemoryLog::starting_at(end);
        self.evicted = end;
        self.writer.set_applied(tail.applied, end, next(tail.applied.number));
        // Whatever was released is as safe as that.
        self.space.look();
        self.space.sealed();
        let freed = std::mem::take(&mut table.freed);
        if freed > 0 {
            self.space.freed(freed, self.options.segment_bytes);
        }
    }

    /// Makes the next batch, which has no records, as if it copied that: the first one of a term, or one with these bytes in a term that
    /// was begun so. None if no term was, or the log has failed, or leads.
    pub(super) fn make(&mut self, kind: Kind, term: u64, bytes: &[u8]) -> Option<BatchName> {
        let newest = self.newest_segment();
        let following = self.following.as_ref().filter(|it| it.makes || kind == Kind::Term)?;
        let (last, end) = (following.last, following.end);
        let sequence = next(last.number);
        let committed = next(following.tail.committed).min(sequence);
        let (at, synced) = (Reached { end, sequence }, next(following.stored));
        let terms = Terms { term, before: last.term, committed };
        let header = BatchHeader {
            index_len: bytes.len() as u64,
            index_crc: crc32c::crc32c(bytes),
            ..BatchHeader::bare(kind, at, synced, Some(terms))
        };
        let growing = following.growing.filter(|it| it.framing.has_terms && it.term == term);
        let (segment, position, mark, beginning) = match growing {
            Some(Growing { name, framing, len, .. }) => {
                (name.segment, len, framing.mark, Bytes::new())
            }
            None => {
                let segment = following.table.next_segment.max(newest.map_or(0, next));
                let file = FileName { segment, generation: 0 };
                let mark = self.writer.mark_of(file, sequence, term);
                let framing = Framing { mark, has_terms: true };
                let mut beginning = Vec::new();
                FileHeader::begun_by(&header, file, framing, &self.options.writer)
                    .encode(&mut beginning);
                (segment, FILE_HEADER as u64, mark, Bytes::from(beginning))
            }
        };
        let mut batch = header.encode(mark).to_vec();
        batch.extend_from_slice(bytes);
        let batch = BatchCopy { segment, position, beginning, pieces: vec![batch.into()] };
        let name = match self.copy(&batch) {
            Ok(name) => name,
            Err(CopyError::Failed | CopyError::Leads) => return None,
            Err(error) => {
                self.writer.fail(format!("a batch of its own does not follow: {error}"));
                return None;
            }
        };
        self.giving.keep_copy(sequence, batch);
        self.following.iter_mut().for_each(|it| it.makes = true);
        Some(name)
    }

    /// Whether it leads, or [`lead`](Self::lead) has it lead.
    pub fn can_lead(&self) -> bool {
        self.following.as_ref().is_none_or(|following| following.is_stored())
    }

    /// The log of a follower leads from now on, in the term of its last batch, and takes records, if all that it has is on this disk: else
    /// nothing is changed. All is applied then, also what is not known to be committed: it never follows again, but is to be opened anew.
    /// True if it leads.
    pub fn lead(&mut self) -> bool {
        if !self.can_lead() {
            return false;
        }
        self.apply_until(u64::MAX);
        if let Some(following) = self.following.take() {
            let Following { table, tail, last, end, .. } = *following;
            super::recover::forget_gone(&mut self.store);
            self.writer.lead_from(last, Offset::new(end), next(tail.committed));
            self.writer.set_next_segment(table.next_segment);
        }
        true
    }
}

/// Checks that these bytes are the next batch.
fn check(batch: &BatchCopy, bytes: &Bytes, following: &Following) -> Result<Found, CopyError> {
    let malformed = |what| Err(CopyError::Malformed(what));
    let begins = match batch.beginning.is_empty() {
        true => None,
        false => match FileHeader::decode(&batch.beginning) {
            Ok(header) if batch.beginning.len() == FILE_HEADER => Some(header),
            Err(HeaderError::Newer { format, writer }) => {
                return Err(CopyError::Newer { format, writer });
            }
            _ => return malformed("that is not the header of a file"),
        },
    };
    let growing = following.growing.map(|it| (it.framing, it.term));
    let Some((framing, term)) = begins.as_ref().map_or(growing, |it| Some((it.framing(), it.term)))
    else {
        return malformed("there is no file");
    };
    let end = batch.position.saturating_add(bytes.len() as u64);
    let mut walk = Walk::new(batch.position, end, framing);
    let Step::Batch(read) = walk.step(bytes) else {
        return malformed("its header or index does not have its checksum, or is not whole");
    };
    let header = read.header;
    let Some(terms) = header.terms else { return malformed("it has no term") };
    if header.is_seal() || walk.position() != end || terms.term != term {
        return malformed("it is not one of this file");
    }
    let fits = begins.as_ref().is_none_or(|file| {
        let names = (file.segment, file.through, file.generation);
        names == (batch.segment, batch.segment, 0)
            && (file.first, file.as_of) == (header.first, header.sequence)
            && batch.position == FILE_HEADER as u64
    });
    if !fits || terms.committed > header.sequence {
        return malformed("its header is at odds with that of its file");
    }
    if read.check(following.end).is_err() || !are_whole(&read, bytes) {
        return malformed("its records are not whole, or out of order");
    }
    let index = Bytes::copy_from_slice(read.index);
    Ok(Found { header, begins, index })
}

fn name_of(header: &BatchHeader) -> BatchName {
    BatchName { number: header.sequence, term: header.terms.map_or(0, |it| it.term) }
}

fn next(number: u64) -> u64 {
    number.saturating_add(1)
}

fn before(number: u64) -> u64 {
    number.saturating_sub(1)
}
