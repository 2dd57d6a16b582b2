//! Rewriting: what is left of some neighbouring segments is copied into one new file.
//!
//! Offsets, batches and their numbers stay; records come with the holders and marks they have now.
//! One read or write is under way at a time, next to those of the log, and none is waited for.
//!
//! How it is safe:
//!
//! 1. The new file counts only once its footer is there, which is written last, after everything
//!    else was synced. A crash before leaves the old files as they were.
//! 2. Notes in batches before `as_of`, which is the next batch when the rewriting begins, are in the
//!    new file, and are not applied to it again. Later ones are: a release that was seen already is
//!    not found the second time, and of marks the last one counts.
//! 3. What was released is left out. The release may be in the same batch as something that was
//!    appended, and must not outlive it; so the footer is not written before the batches up to then
//!    are safe.
//! 4. Only when the footer is synced are the old files removed, and notes about them forgotten. So the new one stays until they
//!    are gone, though nothing of it be needed: they may still be being read.
//! 5. Nor is the footer written while a file that is to be removed is there of which the old files have notes: those that
//!    were not copied yet when it was given up are not in the new one.
//! 6. The new file stands for all segments from the first to the last, also for those between that the log does not need any
//!    more: it is newer than what is still there of them, so that a start does not read it.
//! 7. What is written in the background does not keep its place among removals. So a file that was given up,
//!    and is to be removed, leaves its name to no other.

use bytes::Bytes;

use super::format::{
    BatchEntry, BatchHeader, FILE_HEADER, FileHeader, Framing, IndexWriter, NoteKind, RecordEntry,
    RecordFacts,
};
use super::segments::{Epoch, Segment};
use super::sets::SetId;
use super::walk::{Batch, Step, Walk};
use super::{FileLog, Store, Tag, submit};
use crate::disk::{Body, Disk, DiskError, FileName, Op, Piece, Reached, Token};
use crate::memory::MemoryLog;
use crate::{Holder, Offset};

/// Bytes that are read or written at once.
const PIECE: usize = 512 << 10;

/// Bytes after which a piece is written: what comes next, a batch's index or a record, mostly fits, and its memory need not grow.
const FULL: usize = PIECE / 8 * 7;

/// Bytes that are read at once where little is left, and most of what is near is not wanted.
const SMALL_PIECE: usize = 32 << 10;

/// Where a rewriting is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Reads and copies.
    Copy,
    /// All is copied. The footer is written when the batches before this one are safe.
    Settle { before: u64 },
    /// The footer is being written.
    Finish,
}

/// A rewriting that is under way.
#[derive(Debug)]
pub(super) struct Rewrite {
    /// Numbers of the segments, and how many of their epochs are from before.
    sources: Vec<(u64, usize)>,
    /// Which of them is read, and how far.
    source: usize,
    walk: Walk,
    /// What was read last.
    window: Bytes,
    window_start: u64,
    /// Bodies of the batch that is copied: place and length.
    bodies: std::collections::VecDeque<(u64, u32)>,
    /// The file that is made, and what of it was not submitted yet.
    target: Segment,
    out: Vec<u8>,
    records: u64,
    record_bytes: u64,
    stragglers: Vec<(u64, u64)>,
    phase: Phase,
    /// What it leaves out is in batches up to this one.
    reflects: u64,
    io: Option<Token>,
}

/// What became of a step.
enum Next {
    Wait,
    Go,
    /// The source cannot be read.
    Damaged,
    /// What it would make does not suffice.
    Vain,
}

/// How long a rewriting lacks notes that are needed: those on a file that was to go before they were copied.
enum Lack {
    /// Until the file is removed.
    Passes,
    /// The file cannot be removed.
    Stays,
}

impl Rewrite {
    /// Bytes of the file so far.
    pub(super) fn disk_bytes(&self) -> u64 {
        self.target.written
    }

    /// Whether the disk works for it.
    pub(super) fn is_waiting(&self) -> bool {
        self.io.is_some()
    }

    /// Notes on this state of a segment do not matter any more.
    pub(super) fn retire(&mut self, epoch: Epoch) {
        self.target.retire(epoch);
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.window.len() + self.out.capacity()
    }

    /// The window from `position` on.
    fn shown(&self, position: u64) -> &[u8] {
        let skip = position.checked_sub(self.window_start);
        let skip = skip.and_then(|skip| usize::try_from(skip).ok());
        skip.and_then(|skip| self.window.get(skip..)).unwrap_or_default()
    }

    /// Writes what is left of a batch: header and index at once; the bodies follow.
    fn take_batch(&mut self, batch: &Batch<'_>, hot: &MemoryLog, store: &Store) -> Result<(), ()> {
        let header = batch.header;
        if header.is_seal() {
            return Ok(());
        }
        let start = self.out.len();
        let Framing { mark, has_terms } = self.target.framing;
        let terms = has_terms.then(|| header.terms.unwrap_or_default());
        let header_len = self.target.framing.header_len();
        self.out.resize(start + header_len, 0);
        let mut about = Vec::new();
        let mut index = IndexWriter::new(&mut self.out, header.first);
        let mut bodies_len = 0;
        let mut stragglers = Vec::new();
        let bodies = &mut self.bodies;
        let copied = batch.records(&mut |record, place| {
            let Some((set, is_volatile)) = held(hot, store, record.at) else { return };
            write_record(&mut index, record, set, is_volatile, store);
            if record.elsewhere.is_none() {
                bodies.push_back((place, record.len));
            }
            bodies_len += u64::from(record.stored_len());
            if record.at < header.first {
                stragglers.push(record.at);
            }
        });
        copied.map_err(|_| ())?;
        let mut entries = batch.entries();
        while let Some(entry) = entries.next().map_err(|_| ())? {
            if let BatchEntry::Note(note) = entry
                && let Some(target) = store.segments.of_note(note.at, note.segment)
                && let about_segment = &store.segments.all[target]
                && !about_segment.is_rewriting
                && about_segment.as_of <= header.sequence
                && let Some(epoch) = about_segment.epoch()
            {
                about.push(epoch);
                if let Some(number) = note.segment {
                    index.in_segment(note.at, number);
                }
                match note.kind {
                    NoteKind::Release(holder) => index.release(note.at, holder),
                    NoteKind::Mark(holder, mark) => index.mark(note.at, holder, mark),
                    NoteKind::Persist(holders) => {
                        let holders: Vec<_> = holders.collect();
                        index.persist(note.at, holders.len());
                        holders.into_iter().for_each(|(name, _)| index.holder(name, None));
                    }
                }
            }
        }
        let IndexWriter { records, notes, .. } = index;
        if records == 0 && notes == 0 {
            self.out.truncate(start);
            return Ok(());
        }
        let index = &self.out[start + header_len..];
        let (index_len, index_crc) = (index.len() as u64, crc32c::crc32c(index));
        let header =
            BatchHeader { index_len, bodies_len, records, notes, index_crc, terms, ..header };
        self.out[start..start + header_len].copy_from_slice(&header.encode(mark));
        let position = self.target.len;
        let len = header_len as u64 + index_len + bodies_len;
        self.target.add_batch(position, len, &header);
        self.stragglers.extend(stragglers.into_iter().map(|at| (at, position)));
        self.records += u64::from(records);
        self.record_bytes += bodies_len;
        about.into_iter().for_each(|epoch: Epoch| self.target.add_note(epoch));
        Ok(())
    }
}

/// Who holds a record on disk, and whether it is lost with the process.
fn held(hot: &MemoryLog, store: &Store, at: u64) -> Option<(SetId, bool)> {
    if let Ok(place) = hot.place(Offset::new(at)) {
        let facts = hot.facts(place);
        return Some((SetId::new(facts.held)?, Tag(facts.tag).is(Tag::VOLATILE)));
    }
    let held = store.cold.get(at)?;
    Some((held.set, held.is_volatile))
}

fn write_record(
    index: &mut IndexWriter<'_>,
    record: RecordEntry<'_>,
    set: SetId,
    is_volatile: bool,
    store: &Store,
) {
    let marks = store.marks.get(&record.at);
    index.record(RecordFacts {
        at: record.at,
        len: record.len,
        crc: record.crc,
        is_volatile,
        has_marks: marks.is_some(),
        head: record.head,
        elsewhere: record.elsewhere,
        holders: store.sets.len(set),
    });
    store.sets.each(set, |holder: Holder| {
        let mark = marks.map(|marks| {
            let found = marks.iter().find(|(name, _)| *name == holder);
            found.map_or(0, |(_, mark)| *mark)
        });
        index.holder(holder, mark);
    });
}

impl<D: Disk> FileLog<D> {
    /// Begins to rewrite the segments `range`, which are sealed.
    pub(super) fn begin_rewrite(&mut self, range: std::ops::RangeInclusive<usize>) {
        let Self { store, writer, .. } = self;
        let segments = &mut store.segments;
        let (mut sources, mut generation, mut epochs) = (Vec::new(), 0, Vec::new());
        for index in range.clone() {
            let epoch = segments.new_epoch();
            segments.change(index, |segment| {
                generation = segment.file.generation.max(generation);
                sources.push((segment.file.segment, segment.epochs.len()));
                segment.epochs.push(epoch);
                segment.is_rewriting = true;
            });
            epochs.push(epoch);
        }
        let (first, last) = (&segments.all[*range.start()], &segments.all[*range.end()]);
        let there = self.space.newest_there(first.file.segment..=last.through);
        let generation = generation.max(self.space.given_up).max(there) + 1;
        let file = FileName { segment: first.file.segment, generation };
        // Older programs refuse what was made of files that they refuse.
        let has_terms = segments.all.range(range).any(|it| it.framing.has_terms);
        let framing = Framing { mark: writer.new_mark(file), has_terms };
        let mut target = Segment::new(file, framing, first.first, writer.sequence(), epochs[0]);
        target.epochs = epochs;
        target.through = last.through;
        target.end = last.end;
        let mut out = Vec::with_capacity(PIECE);
        let header = FileHeader {
            format: framing.format(),
            writer: self.options.writer.clone(),
            segment: file.segment,
            through: target.through,
            generation: file.generation,
            first: target.first,
            as_of: target.as_of,
            mark: framing.mark,
            term: 0,
        };
        header.encode(&mut out);
        target.len = FILE_HEADER as u64;
        self.space.rewrite = Some(Box::new(Rewrite {
            sources,
            source: 0,
            walk: walk_of(first),
            window: Bytes::new(),
            window_start: 0,
            bodies: Default::default(),
            target,
            out,
            records: 0,
            record_bytes: 0,
            stragglers: Vec::new(),
            phase: Phase::Copy,
            reflects: 0,
            io: None,
        }));
    }

    /// Goes on until it has to wait.
    pub(super) fn step_rewrite(&mut self) {
        let Some(mut work) = self.space.rewrite.take() else { return };
        loop {
            match self.next_step(&mut work) {
                Next::Go => {}
                Next::Wait => {
                    self.space.rewrite = Some(work);
                    return;
                }
                Next::Damaged => {
                    let number = work.sources.get(work.source).map(|source| source.0);
                    if let Some(index) = number.and_then(|it| self.store.segments.by_number(it)) {
                        self.store.segments.all[index].is_damaged = true;
                    }
                    self.give_up(work);
                    return;
                }
                Next::Vain => {
                    self.give_up(work);
                    return;
                }
            }
        }
    }

    /// Whether sources have notes on files that are to be removed, and were not when the rewriting began: some of those notes
    /// may have been left out.
    fn lacks_notes(&self, work: &Rewrite) -> Option<Lack> {
        let segments = &self.store.segments;
        let indexes = work.sources.iter().filter_map(|(number, _)| segments.by_number(*number));
        let mut sources = indexes.map(|index| &segments.all[index]);
        if sources.clone().any(|it| it.has_notes_on(self.space.stuck())) {
            return Some(Lack::Stays);
        }
        sources.any(|it| it.has_notes_on(self.space.going())).then_some(Lack::Passes)
    }

    fn next_step(&mut self, work: &mut Rewrite) -> Next {
        if work.io.is_some() {
            return Next::Wait;
        }
        match work.phase {
            Phase::Copy => self.copy_next(work),
            Phase::Settle { before } => {
                if self.writer.unsafe_from(self.sums.unwritten) < before {
                    return Next::Wait;
                }
                match self.lacks_notes(work) {
                    Some(Lack::Stays) => return Next::Vain,
                    Some(Lack::Passes) => return Next::Wait,
                    None => {}
                }
                // If nothing waited, that is no later than what was written.
                work.reflects = work.reflects.min(self.writer.sequence().saturating_sub(1));
                let Framing { mark, has_terms } = work.target.framing;
                let (sequence, first) = (work.target.as_of, work.target.end);
                let next =
                    BatchHeader { sequence, synced: sequence, first, ..BatchHeader::default() };
                let footer = BatchHeader::seal_before(&next, has_terms).encode(mark);
                work.out.extend_from_slice(&footer);
                work.target.len += footer.len() as u64;
                work.phase = Phase::Finish;
                self.write_out(work)
            }
            // The write of the footer is the last, and what follows is done when it completes.
            Phase::Finish => Next::Wait,
        }
    }

    fn copy_next(&mut self, work: &mut Rewrite) -> Next {
        if work.out.len() >= FULL {
            return self.write_out(work);
        }
        let (number, _) = work.sources[work.source];
        let segments = &self.store.segments;
        let Some(source) = segments.by_number(number).map(|index| &segments.all[index]) else {
            return Next::Damaged;
        };
        let (file, end) = (source.file, work.walk.end());
        let piece = if source.live_bytes < source.len / 8 { SMALL_PIECE } else { PIECE };
        while let Some(&(place, len)) = work.bodies.front() {
            let len = len as usize;
            let Some(bytes) = work.shown(place).get(..len) else {
                return self.read_in(work, file, place, len.max(piece), end);
            };
            let (start, bytes) = (work.out.len(), bytes.len());
            let skip = (place - work.window_start) as usize;
            work.out.extend_from_slice(&work.window[skip..skip + bytes]);
            debug_assert_eq!(work.out.len(), start + bytes);
            work.bodies.pop_front();
            if work.out.len() >= FULL {
                return Next::Go;
            }
        }
        let window = work.window.clone();
        let skip = work.walk.position().checked_sub(work.window_start).unwrap_or(u64::MAX);
        let shown = usize::try_from(skip).ok().and_then(|skip| window.get(skip..));
        let mut walk = work.walk;
        match walk.step(shown.unwrap_or_default()) {
            Step::Need(len) => self.read_in(work, file, walk.position(), len.max(piece), end),
            Step::Batch(batch) => {
                work.walk = walk;
                match work.take_batch(&batch, &self.hot, &self.store) {
                    Ok(()) => Next::Go,
                    Err(()) => Next::Damaged,
                }
            }
            Step::End => {
                work.source += 1;
                work.window = Bytes::new();
                let next = work.sources.get(work.source).and_then(|it| segments.by_number(it.0));
                match next {
                    Some(index) => {
                        work.walk = walk_of(&segments.all[index]);
                        Next::Go
                    }
                    None => {
                        // What waits to be gathered is part of the next batch.
                        work.reflects = self.writer.sequence();
                        work.phase = Phase::Settle { before: work.reflects + 1 };
                        self.write_out(work)
                    }
                }
            }
            Step::Bad => Next::Damaged,
        }
    }

    fn read_in(
        &mut self,
        work: &mut Rewrite,
        file: FileName,
        position: u64,
        len: usize,
        end: u64,
    ) -> Next {
        let left = usize::try_from(end.saturating_sub(position)).unwrap_or(usize::MAX);
        if left == 0 {
            return Next::Damaged;
        }
        let len = len.min(left);
        work.window = Bytes::new();
        work.window_start = position;
        let op = Op::Read { file, pieces: vec![Piece { position, len }] };
        work.io = Some(submit(&mut self.disk, &mut self.next_token, op));
        Next::Wait
    }

    fn write_out(&mut self, work: &mut Rewrite) -> Next {
        let head = std::mem::take(&mut work.out);
        let (file, position) = (work.target.file, work.target.written);
        work.target.written += head.len() as u64;
        let op = Op::Write {
            file,
            position,
            head,
            body: Body::default(),
            // Its batches are those of others; the next one's number is not known to be used.
            reached: Reached { end: work.target.end, sequence: 0 },
            // Each piece, so that no sync has to do all the work while others wait.
            sync: true,
            is_last: work.phase == Phase::Finish,
            is_background: true,
        };
        work.io = Some(submit(&mut self.disk, &mut self.next_token, op));
        Next::Wait
    }

    /// Takes a read of a rewriting.
    pub(super) fn rewrite_read(
        &mut self,
        token: Token,
        result: Result<Bytes, DiskError>,
    ) -> Option<Result<Bytes, DiskError>> {
        let Some(work) = self.space.rewrite.as_mut().filter(|work| work.io == Some(token)) else {
            return Some(result);
        };
        work.io = None;
        match result {
            Ok(bytes) => work.window = bytes,
            // To be found damaged by the next step.
            Err(_) => {
                if let Some(mut work) = self.space.rewrite.take() {
                    let number = work.sources.get(work.source).map(|source| source.0);
                    if let Some(index) = number.and_then(|it| self.store.segments.by_number(it)) {
                        self.store.segments.all[index].is_damaged = true;
                    }
                    work.window = Bytes::new();
                    self.give_up(work);
                }
            }
        }
        None
    }

    /// Takes a write of a rewriting. Gives the bytes back if it was none.
    pub(super) fn rewrite_written(
        &mut self,
        token: Token,
        mut buffer: Vec<u8>,
        result: &Result<(), DiskError>,
    ) -> Option<Vec<u8>> {
        let Some(mut work) = self.space.rewrite.take_if(|work| work.io == Some(token)) else {
            return Some(buffer);
        };
        work.io = None;
        match result {
            Ok(()) if work.phase == Phase::Finish => self.finish_rewrite(work),
            Ok(()) => {
                buffer.clear();
                work.out = buffer;
                self.space.rewrite = Some(work);
            }
            Err(DiskError::Full) => {
                self.space.wait_for_room();
                self.give_up(work);
            }
            Err(DiskError::Failed(reason)) => {
                self.writer.fail(format!("{}: {reason}", work.target.file));
                self.give_up(work);
            }
        }
        None
    }

    /// Leaves everything as it was.
    fn give_up(&mut self, work: Box<Rewrite>) {
        for (number, _) in work.sources {
            if let Some(index) = self.store.segments.by_number(number) {
                self.store.segments.all[index].is_rewriting = false;
            }
        }
        if work.target.written > 0 {
            self.space.give_up(work.target.file);
        }
    }

    /// The new file takes the place of the old ones.
    fn finish_rewrite(&mut self, work: Box<Rewrite>) {
        let Rewrite { sources, mut target, records, record_bytes, stragglers, reflects, .. } =
            *work;
        self.giving.sending.reflect(reflects);
        let segments = &mut self.store.segments;
        let Some(first) = sources.first().and_then(|(number, _)| segments.by_number(*number))
        else {
            return;
        };
        let mut retired = Vec::new();
        let mut old_bytes = 0;
        for (_, old_epochs) in sources {
            let Some(old) = segments.remove(first) else { return };
            retired.extend_from_slice(&old.epochs[..old_epochs]);
            target.live += old.live;
            old_bytes += old.live_bytes;
            target.last_noted = target.last_noted.max(old.last_noted);
            self.fetch.file_gone(old.file);
            self.space.doom(old.file);
        }
        // Exact if nothing was released meanwhile.
        target.live_bytes = if target.live == records { record_bytes } else { old_bytes };
        if target.live == 0 {
            target.live_bytes = 0;
        }
        self.sums.live_bytes = self.sums.live_bytes - old_bytes + target.live_bytes;
        target.is_sealed = true;
        target.set_overhead();
        let number = target.file.segment;
        for (at, position) in stragglers {
            if let Some(place) = segments.stragglers.get_mut(&at) {
                *place = (number, position);
            }
        }
        segments.insert(first, target);
        retired.into_iter().for_each(|epoch| segments.retire(epoch));
        self.space.look();
        self.space.sealed();
        self.space.check();
    }
}

fn walk_of(segment: &Segment) -> Walk {
    Walk::new(FILE_HEADER as u64, segment.written, segment.framing)
}
