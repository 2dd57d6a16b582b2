//! Batches: how records and notes are gathered for the disk, and what happens when the disk has answered.
//!
//! At most one batch is under way, the *flight*. Records and notes that come meanwhile go into the next batch, so the
//! slower the disk the larger the batches. A batch has copies of small records. Large records are written from where they are:
//! a turn that copied hundreds of megabytes would keep all others waiting.

mod bare;

use std::collections::VecDeque;
use std::ops::Range;

use super::elsewhere::Elsewhere;
use super::format::{
    BatchHeader, FILE_HEADER, FileHeader, Framing, IndexWriter, Kind, RecordFacts, Terms,
};
use super::lend::SharedOfBatch;
use super::segments::{Segment, SegmentTerms, Segments};
use super::sets::{SetId, Sets};
use super::{FileLog, Marks, Store, Tag, submit};
use crate::disk::{Body, Disk, DiskError, FileName, Op, Reached, Token};
use crate::memory::{LARGE, MemoryLog, Stored};
use crate::shared::{Original, Progress};
use crate::{AppendError, BatchUnderWay, HoldError, Holder, Log as _, Moment, Offset, SyncError};

/// Memory for a batch that is kept for the next one, unless that one is far smaller.
const KEPT_BUFFER: usize = 1 << 20;

/// Memory for a batch that is kept however small the next one is.
const KEPT_IDLE: usize = 32 << 10;

/// Bytes that a line of the index takes, about.
const INDEX_LINE: usize = 40;

/// So few late records are kept without a look whether they still have a holder.
const LATE_MAX: usize = 256;

/// Records of at most this part of [`Options::spill_batch_bytes`](super::Options::spill_batch_bytes) go with the batch, however
/// many there are. By default they are those that a batch copies, see [`LARGE`].
const SMALL_PART: u64 = 64;

/// A batch takes this part of all that waits to be written to save memory, if that is more than
/// [`Options::spill_batch_bytes`](super::Options::spill_batch_bytes).
const SPILL_PART: u64 = 8;

/// When so many bytes were written and not synced, the next batch is synced: whoever waits for the one after it would wait
/// for all of them.
const UNSYNCED_MAX: u64 = 8 << 20;

/// When so many records need no write, `gathered` passes them.
const PASSED_MIN: u64 = 64 << 10;

/// A change of a record that is in a batch already.
#[derive(Clone, Copy, Debug)]
struct Note {
    at: u64,
    /// The segment that has the record.
    segment: u64,
    /// The segment does not follow from the offset: the index has to name it.
    is_straggler: bool,
    holder: Holder,
    kind: NoteKind,
}

#[derive(Clone, Copy, Debug)]
enum NoteKind {
    Release,
    Mark(u8),
    /// A volatile record becomes durable, with the holders and marks that it has when the note is gathered.
    Persist,
}

/// One write of a batch. The writes of a batch go to the disk one after the other. After a failed write the next one is
/// not begun: a later file would say that the file of the failed write had been whole.
#[derive(Debug)]
struct Write {
    file: FileName,
    position: u64,
    reached: Reached,
    sync: bool,
    is_last: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Not submitted: the bytes of the write.
    Waits(Vec<u8>, Body),
    UnderWay(Token),
    Done,
}

/// The batch under way.
#[derive(Debug)]
struct Flight {
    writes: Vec<Write>,
    bytes: u64,
    /// Those of them that are in the memory of a record which the log has, too.
    shared_bytes: u64,
    sequence: u64,
    /// It has durable records or notes.
    is_awaited: bool,
    /// The batch is synced: it is awaited, or much was not synced before it.
    is_synced: bool,
    /// The batch's records below `range`, ascending: volatile ones that were persisted, and spilled ones that earlier batches
    /// had no room for.
    late: Vec<u64>,
    /// The offsets of all other records of the batch.
    range: Range<u64>,
    /// Records of the batch that still have a holder.
    live: u64,
    shares: SharedOfBatch,
    /// Every write of the batch is done.
    is_written: bool,
    /// The file with the batch, and its length behind the batch.
    file: FileName,
    len: u64,
}

/// The notes and persists that wait for a batch, and the batch that is being written.
#[derive(Debug)]
pub(super) struct Writer {
    /// Notes that no batch has yet.
    notes: Vec<Note>,
    /// Records of other logs that this log needs until a number of notes is safe. In the order of these numbers.
    freed: VecDeque<(u64, Original)>,
    /// How many notes were put into batches so far.
    notes_before: u64,
    /// Records below `gathered` that were volatile and not written when a batch passed them. The next batch takes them.
    persists: Vec<u64>,
    /// Records below `gathered` that are to be written to save memory, and for which the batches had no room yet. Some may
    /// have been released since, or are to persist.
    spills: VecDeque<u64>,
    /// Records that were written after eviction had passed their offsets. Some may have been released since.
    late: VecDeque<u64>,
    /// The length of `late` at which the released records are taken out of it.
    late_max: usize,
    flight: Option<Flight>,
    /// Each record below is in a batch, or needs no write, or is one of `persists` or `spills`.
    gathered: Offset,
    durable: Offset,
    /// The number of the next batch.
    sequence: u64,
    /// The first batch that is not known to be synced.
    synced: u64,
    /// Bytes of the batches in the last file since its last sync.
    unsynced_bytes: u64,
    /// The first batch that may be cut off: others have to agree to it.
    agreed: u64,
    /// The term of the batches that are gathered: 0 if the log has no terms.
    term: u64,
    /// That of the last batch.
    last_term: u64,
    /// Batches without records that are to be written, each with its index.
    bare: VecDeque<(Kind, Vec<u8>)>,
    next_segment: u64,
    seed: u64,
    /// The disk had no room for the flight.
    is_full: bool,
    /// The disk was full at the last sync. So no durable record was appended since, and each later note is on an older one.
    has_only_releases: bool,
    failed: Option<String>,
    /// Why no record may be appended, whatever it is.
    refuses: Option<AppendError>,
    spare: (Vec<u8>, Body),
}

impl Writer {
    pub(super) fn new(end: Offset, sequence: u64, next_segment: u64, seed: u64) -> Self {
        Self {
            notes: Vec::new(),
            freed: VecDeque::new(),
            notes_before: 0,
            persists: Vec::new(),
            spills: VecDeque::new(),
            late: VecDeque::new(),
            late_max: LATE_MAX,
            flight: None,
            gathered: end,
            durable: end,
            sequence,
            synced: sequence,
            unsynced_bytes: 0,
            agreed: u64::MAX,
            term: 0,
            last_term: 0,
            bare: VecDeque::new(),
            next_segment,
            seed,
            is_full: false,
            has_only_releases: false,
            failed: None,
            refuses: None,
            spare: Default::default(),
        }
    }

    pub(super) fn durable(&self) -> Offset {
        self.durable
    }

    /// What others agreed to they do not go back on.
    pub(super) fn set_agreed(&mut self, batch: u64) {
        self.agreed = match self.agreed {
            u64::MAX => batch,
            agreed => agreed.max(batch),
        };
    }

    /// The first batch that may be cut off.
    pub(super) fn agreed(&self) -> u64 {
        self.agreed
    }

    /// Sets the offset of the first batch's first record: the log was opened and has gathered nothing.
    pub(super) fn go_on_at(&mut self, next: Offset) {
        (self.gathered, self.durable) = (next, next);
    }

    /// Whether a record may be appended.
    pub(super) fn admits(&self, is_volatile: bool) -> Result<(), AppendError> {
        if let Some(error) = self.refuses {
            return Err(error);
        }
        if self.is_full && !is_volatile { Err(AppendError::Full) } else { Ok(()) }
    }

    pub(super) fn fail(&mut self, reason: String) {
        self.failed.get_or_insert(reason);
        self.refuses = Some(AppendError::Failed);
    }

    pub(super) fn check(&self) -> Result<(), SyncError> {
        match &self.failed {
            None => Ok(()),
            Some(reason) => Err(SyncError { durable: self.durable, reason: reason.clone() }),
        }
    }

    /// No record below this offset is being written, be it in the range of the flight or late.
    pub(super) fn settled(&self) -> Offset {
        let Some(flight) = &self.flight else { return self.gathered };
        let settled = self.durable.min(self.gathered);
        flight.late.first().map_or(settled, |&at| settled.min(Offset::new(at)))
    }

    /// How many notes wait for a batch. All notes in a batch that found no room count as one.
    pub(super) fn notes(&self) -> usize {
        self.notes.len() + usize::from(self.is_full) + self.bare.len()
    }

    /// Records that were volatile when a batch passed them, and are to become durable.
    pub(super) fn persists(&self) -> &[u64] {
        &self.persists
    }

    /// The next written record that eviction has passed already.
    pub(super) fn next_late(&mut self) -> Option<u64> {
        self.late.pop_front()
    }

    /// Adds late records of a batch that is written now. Eviction has passed those below `evicted`.
    fn add_late(&mut self, late: Vec<u64>, evicted: Offset, hot: &MemoryLog) {
        self.late.extend(late.into_iter().filter(|&at| at < evicted.get()));
        if self.late.len() > self.late_max {
            self.late.retain(|&at| hot.place(Offset::new(at)).is_ok());
            self.late_max = LATE_MAX + 2 * self.late.len();
        }
    }

    /// The number of the next batch.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// The first batch with durable records that is not on this disk yet, or that others have not agreed to. A crash may lose
    /// this batch, and every note in it or in a later one.
    ///
    /// A flight that finds the disk full does not count if all its records are released and no record waits behind it: there
    /// is nothing to lose. So a release in it may already free the room that the flight waits for.
    pub(super) fn unsafe_from(&self, unwritten: u64) -> u64 {
        let is_waiting = unwritten > 0 || !self.persists.is_empty();
        let may_lose = |flight: &Flight| is_waiting || !self.is_full || flight.live > 0;
        let unsafe_here = match &self.flight {
            Some(flight) if flight.is_synced && !flight.is_written && may_lose(flight) => {
                flight.sequence
            }
            _ if is_waiting => self.sequence,
            _ => u64::MAX,
        };
        unsafe_here.min(self.unagreed_from())
    }

    /// The first batch that may be cut off, if anything may: also one that is not begun, of notes that are made already.
    fn unagreed_from(&self) -> u64 {
        match self.agreed {
            u64::MAX => u64::MAX,
            agreed if agreed < self.sequence => agreed,
            _ if self.notes.is_empty() => u64::MAX,
            _ => self.sequence,
        }
    }

    /// The last holder has released a record that was gathered, and stored with so many bytes.
    pub(super) fn forget(&mut self, at: u64, stored: u32) {
        if let Some(flight) = &mut self.flight
            && (flight.range.contains(&at) || flight.late.binary_search(&at).is_ok())
        {
            flight.live -= 1;
            let is_shared = stored as usize > LARGE;
            flight.shared_bytes -= if is_shared { u64::from(stored) } else { 0 };
        }
    }

    /// Whether a batch is under way.
    pub(super) fn is_writing(&self) -> bool {
        self.flight.is_some()
    }

    /// Whether the disk found no room for the batch under way.
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Whether no write to this file is under way.
    pub(super) fn may_leave(&self, file: FileName) -> bool {
        let mut writes = self.flight.iter().flat_map(|flight| &flight.writes);
        !writes.any(|write| write.file == file && matches!(write.state, State::UnderWay(_)))
    }

    /// Whether all that was to be written to a file was.
    pub(super) fn is_written(&self, file: FileName) -> bool {
        let mut writes = self.flight.iter().flat_map(|flight| &flight.writes);
        !writes.any(|write| write.file == file && !matches!(write.state, State::Done))
    }

    /// Drops the writes to a file that is to be removed. A write that waits for room would otherwise make a new file of
    /// this name, with nothing before that write. False while a write to the file is under way: nothing is dropped.
    pub(super) fn leaves(&mut self, file: FileName) -> bool {
        let may_leave = self.may_leave(file);
        if let Some(flight) = self.flight.as_mut().filter(|_| may_leave) {
            let writes = flight.writes.iter_mut().filter(|write| write.file == file);
            writes.for_each(|write| write.state = State::Done);
        }
        may_leave
    }

    pub(super) fn flying_bytes(&self) -> u64 {
        self.flight.as_ref().map_or(0, |flight| flight.bytes)
    }

    /// The batch that the disk is writing, if that has durable records or notes.
    pub(super) fn under_way(&self) -> Option<BatchUnderWay> {
        let flight = self.flight.as_ref().filter(|flight| flight.is_awaited)?;
        Some(BatchUnderWay { number: flight.sequence, bytes: flight.bytes })
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.notes.capacity() * size_of::<Note>()
            + (self.persists.capacity() + self.spills.capacity() + self.late.capacity())
                * size_of::<u64>()
            + self.freed.capacity() * size_of::<(u64, Original)>()
            + self.flight.as_ref().map_or(0, |flight| flight.late.capacity()) * size_of::<u64>()
            + self.spare.0.capacity()
            + self.spare.1.held_bytes()
            + self.flight.as_ref().map_or(0, |flight| flight.bytes - flight.shared_bytes) as usize
    }

    /// Takes the notes that were made until a moment.
    fn take_notes(&mut self, until: Moment, segments: &mut Segments) -> Vec<Note> {
        let count = until.notes.saturating_sub(self.notes_before) as usize;
        let count = count.min(self.notes.len());
        self.notes_before += count as u64;
        if count == self.notes.len() {
            return std::mem::take(&mut self.notes);
        }
        let later = self.notes.split_off(count);
        for note in &later {
            if let Some(index) = segments.by_number(note.segment) {
                // This note goes into the batch after the one that is gathered now.
                segments.all[index].last_noted = self.sequence + 1;
            }
        }
        std::mem::replace(&mut self.notes, later)
    }

    /// Records of other logs that this log needs no more once all notes taken so far are safe.
    pub(super) fn take_freed(&mut self) -> Vec<Original> {
        let count = self.freed.partition_point(|&(notes, _)| notes <= self.notes_before);
        self.freed.drain(..count).map(|(_, place)| place).collect()
    }

    /// This log no longer refers to a record of another log; the last note says so. Returns the record's place if it may
    /// be freed at once, because no record or note that is to become safe depends on it.
    pub(super) fn free(&mut self, place: Original) -> Option<Original> {
        if self.has_only_releases {
            return Some(place);
        }
        self.freed.push_back((self.notes_before + self.notes.len() as u64, place));
        None
    }
}

/// What became of a record when a batch was gathered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gathered {
    Taken,
    /// It is written, or need not be.
    Needless,
    /// It waits for a later batch.
    NoRoom,
}

/// How much of what is written only to save memory goes into a batch: all that waits for the batch waits for that, too.
struct SpillRoom {
    /// Records of so many bytes are always taken.
    small: u64,
    most: u64,
    taken: u64,
}

impl SpillRoom {
    /// Whether the batch takes one more record, of so many bytes.
    fn takes(&mut self, len: u64) -> bool {
        if len <= self.small {
            return true;
        }
        let is_taken = self.taken == 0 || self.taken + len <= self.most;
        self.taken += if is_taken { len } else { 0 };
        is_taken
    }
}

/// The index and the bodies of a batch as they grow.
struct Batch<'a> {
    index: IndexWriter<'a>,
    bodies: &'a mut Body,
    sets: &'a Sets,
    marks: &'a Marks,
    elsewhere: &'a Elsewhere,
    /// Bytes of each record in the file.
    lens: Vec<u32>,
}

impl Batch<'_> {
    fn record(&mut self, at: u64, tag: Tag, held: u32, bytes: Stored<'_>) {
        let Some(set) = SetId::new(held) else { return };
        let elsewhere = self.elsewhere.get(at);
        let marks = if self.marks.is_empty() { None } else { self.marks.get(&at) };
        self.index.record(RecordFacts {
            at,
            len: bytes.len() as u32,
            crc: crc32c::crc32c(&bytes),
            is_volatile: tag.is(Tag::VOLATILE),
            has_marks: marks.is_some(),
            head: &bytes[..tag.head()],
            elsewhere,
            holders: self.sets.len(set),
        });
        self.sets.each(set, |holder| {
            let mark = marks.map(|marks| {
                let found = marks.iter().find(|(name, _)| *name == holder);
                found.map_or(0, |(_, mark)| *mark)
            });
            self.index.holder(holder, mark);
        });
        self.lens.push(if elsewhere.is_some() { 0 } else { bytes.len() as u32 });
        match bytes {
            _ if elsewhere.is_some() => {}
            Stored::Among(bytes) => self.bodies.push(bytes),
            Stored::Own(bytes) => self.bodies.push_whole(bytes.clone()),
        }
    }
}

impl<D: Disk> FileLog<D> {
    /// See [`Log::moment`](crate::Log::moment).
    pub(super) fn now(&self) -> Moment {
        let Writer { notes, notes_before, .. } = &self.writer;
        Moment { end: self.hot.end(), notes: notes_before + notes.len() as u64 }
    }

    pub(super) fn note_release(&mut self, at: Offset, holder: Holder) {
        self.note(at, holder, NoteKind::Release);
    }

    /// The last holder of a volatile record left. Who has a copy of the log keeps the record until it is told.
    pub(super) fn note_lost(&mut self, at: Offset, holder: Holder) {
        if self.writer.term > 0 {
            self.note(at, holder, NoteKind::Release);
        }
    }

    pub(super) fn note_mark(&mut self, at: Offset, holder: Holder, mark: u8) {
        self.note(at, holder, NoteKind::Mark(mark));
    }

    fn note(&mut self, at: Offset, holder: Holder, kind: NoteKind) {
        let at = at.get();
        if let Some(index) = self.store.segments.of(at) {
            let about = &mut self.store.segments.all[index];
            // On a full disk the file may be removed before the note is written: only the note still needs it.
            if !self.writer.has_only_releases {
                about.last_noted = self.writer.sequence;
            }
            let segment = about.file.segment;
            let is_straggler = self.store.segments.is_straggler(at);
            self.writer.notes.push(Note { at, segment, is_straggler, holder, kind });
        }
    }

    /// See [`Log::persist`](crate::Log::persist).
    pub(super) fn make_durable(&mut self, at: Offset) -> Result<Offset, HoldError> {
        let writer = &mut self.writer;
        match self.hot.place(at) {
            Ok(place) => {
                let facts = self.hot.facts(place);
                let tag = Tag(facts.tag);
                if !tag.is(Tag::VOLATILE) {
                    // Another call may have made it durable before a batch took it.
                    return Ok(if at >= writer.gathered { at.next() } else { self.barrier() });
                }
                self.hot.set_tag(place, tag.0 & !(Tag::VOLATILE | Tag::SPILL));
                if tag.is(Tag::WRITTEN) {
                    self.note(at, Holder::default(), NoteKind::Persist);
                    return Ok(self.barrier());
                }
                self.sums.volatile -= u64::from(facts.len);
                self.sums.unwritten += u64::from(facts.len);
                if tag.is(Tag::SPILL) {
                    self.sums.spilled -= u64::from(facts.len);
                } else {
                    self.sums.wait(u64::from(facts.len));
                }
                if at >= writer.gathered {
                    return Ok(at.next());
                }
                writer.persists.push(at.get());
                Ok(self.barrier())
            }
            Err(HoldError::Released { .. }) => {
                let released = HoldError::Released { at };
                let mut held = self.store.cold.get(at.get()).ok_or(released)?;
                if !held.is_volatile {
                    return Ok(self.barrier());
                }
                held.is_volatile = false;
                self.store.cold.insert(at.get(), held);
                self.store.paged.persisted(held.set, &self.store.sets);
                self.note(at, Holder::default(), NoteKind::Persist);
                Ok(self.barrier())
            }
            Err(error) => Err(error),
        }
    }

    /// Appends a hole and returns the offset behind it: `durable` gets there with the next batch and not before.
    fn barrier(&mut self) -> Offset {
        self.hot.append_hole().next()
    }

    /// Gathers the records and notes from before `until` into a batch and submits it, unless there is something else to write.
    pub(super) fn hand_over(&mut self, until: Moment) {
        if self.hand_over_made() {
            return;
        }
        if self.sums.waiting == 0 && self.writer.notes.is_empty() {
            self.pass_all();
            return;
        }
        // A rewrite relies on the next batch to have all notes that the rewrite saw.
        let all = self.now();
        self.gather(if self.space.is_rewriting() || until.end > all.end { all } else { until });
    }

    /// Hands over what has no records to be gathered, and tries again what found no room. True if no batch of records may
    /// follow yet.
    pub(super) fn hand_over_made(&mut self) -> bool {
        self.write_copies();
        if self.following.is_some() || self.writer.has_no_term() {
            return true;
        }
        // What others have not agreed to may come back: then room is there only after they have.
        self.writer.has_only_releases = self.writer.is_full && self.writer.agreed == u64::MAX;
        if self.writer.flight.is_some() {
            self.retry();
            return true;
        }
        let Some(bare) = self.writer.bare.pop_front() else { return false };
        self.gather_bare(bare);
        true
    }

    /// Nothing waits for the disk: `gathered` and `durable` pass all records.
    fn pass_all(&mut self) {
        let end = self.hot.end();
        self.writer.persists.clear();
        self.writer.spills.clear();
        (self.writer.gathered, self.writer.durable) = (end, end);
        let freed = self.writer.take_freed();
        self.lending.free(freed);
    }

    /// Passes records that need no write when there are many of them, even without a hand-over. Otherwise the next batch
    /// would look at all of them in one go.
    pub(super) fn pass_many(&mut self) {
        let Writer { flight, notes, gathered, .. } = &self.writer;
        let are_many = self.hot.end().get() - gathered.get() > PASSED_MIN;
        if are_many && self.sums.waiting == 0 && notes.is_empty() && flight.is_none() {
            self.pass_all();
        }
    }

    fn gather(&mut self, until: Moment) {
        let first = self.writer.gathered;
        let end = until.end.max(first);
        let mut shares = self.share_out(first, end);
        let Self { hot, store, writer, sums, options, .. } = self;
        let mut notes = writer.take_notes(until, &mut store.segments);
        let terms = writer.terms();
        let header_len = BatchHeader { terms, ..BatchHeader::default() }.header_len();
        shares.freed = writer.take_freed();
        let Store { segments, sets, marks, cold, elsewhere, .. } = store;
        let (mut head, mut bodies) = std::mem::take(&mut writer.spare);
        // The share of the records below `end` in what waits, roughly.
        let (part, whole) = (end.get() - first.get(), (hot.end().get() - first.get()).max(1));
        let of_part = |sum: u64| (u128::from(sum) * u128::from(part) / u128::from(whole)) as usize;
        fit(bodies.copies(), of_part(sums.unwritten + sums.spilled - sums.large));
        fit(&mut head, header_len + INDEX_LINE * (of_part(sums.waiting) + notes.len()));
        head.resize(header_len, 0);
        let mut batch = Batch {
            index: IndexWriter::new(&mut head, first.get()),
            bodies: &mut bodies,
            sets,
            marks,
            elsewhere,
            lens: Vec::new(),
        };
        let mut wants_sync = false;
        let mut spill = SpillRoom {
            small: options.spill_batch_bytes / SMALL_PART,
            // The more waits, the more a batch takes: publishers pause when it is too much.
            most: options.spill_batch_bytes.max(sums.spilled / SPILL_PART),
            taken: 0,
        };
        let mut take = |at: u64, tag: &mut u16, held: u32, bytes: Stored<'_>| {
            let was = Tag(*tag);
            if was.is(Tag::WRITTEN) || was.is(Tag::VOLATILE) && !was.is(Tag::SPILL) {
                return Gathered::Needless;
            }
            if was.is(Tag::VOLATILE) && !spill.takes(bytes.len() as u64) {
                return Gathered::NoRoom;
            }
            batch.record(at, was, held, bytes);
            *tag |= Tag::WRITTEN;
            let len = bytes.len() as u64;
            if was.is(Tag::VOLATILE) {
                sums.volatile -= len;
                sums.spilled -= len;
            } else {
                sums.unwritten -= len;
            }
            sums.wait_no_more(len);
            sums.cached += len;
            wants_sync |= !was.is(Tag::VOLATILE);
            Gathered::Taken
        };
        let mut late = Vec::new();
        let mut take_late =
            |at: u64| {
                let mut has_room = true;
                hot.walk(Offset::new(at), Offset::new(at).next(), &mut |at, tag, held, bytes| {
                    match take(at, tag, held, bytes) {
                        Gathered::Taken => late.push(at),
                        Gathered::Needless => {}
                        Gathered::NoRoom => has_room = false,
                    }
                });
                has_room
            };
        for at in std::mem::take(&mut writer.persists) {
            take_late(at);
        }
        // Only as far as there is room: there may be very many, and each batch would look at all.
        while let Some(&at) = writer.spills.front()
            && take_late(at)
        {
            writer.spills.pop_front();
        }
        if writer.spills.is_empty() {
            writer.spills = VecDeque::new();
        }
        hot.walk(first, end, &mut |at, tag, held, bytes| {
            if take(at, tag, held, bytes) == Gathered::NoRoom {
                writer.spills.push_back(at);
            }
        });
        let Batch { mut index, lens, .. } = batch;
        let bodies_len = lens.iter().map(|&len| u64::from(len)).sum();
        notes.retain(|note| segments.by_number(note.segment).is_some());
        if lens.is_empty() && notes.is_empty() {
            head.clear();
            writer.spare = (head, bodies);
            (writer.gathered, writer.durable) = (end, end);
            self.lending.free(shares.freed);
            return;
        }
        let mut about = Vec::with_capacity(notes.len());
        // No publisher waits for notes. But batches of notes alone are few, and a stop in good order relies on their sync.
        wants_sync |= !notes.is_empty();
        for Note { at, segment: number, is_straggler, holder, kind } in notes.drain(..) {
            let segment = segments.by_number(number);
            about.extend(segment.and_then(|index| segments.all[index].epoch()));
            let place = |index: &mut IndexWriter<'_>| {
                if is_straggler {
                    index.in_segment(at, number);
                }
            };
            match kind {
                NoteKind::Release => {
                    place(&mut index);
                    index.release(at, holder);
                }
                NoteKind::Mark(mark) => {
                    place(&mut index);
                    index.mark(at, holder, mark);
                }
                NoteKind::Persist => {
                    let held = match hot.place(Offset::new(at)) {
                        Ok(place) => SetId::new(hot.facts(place).held),
                        Err(_) => cold.get(at).map(|held| held.set),
                    };
                    match held {
                        Some(set) => {
                            place(&mut index);
                            index.persist(at, sets.len(set));
                            sets.each(set, |holder| index.holder(holder, None));
                            for (holder, mark) in marks.get(&at).into_iter().flatten() {
                                about.extend(about.last().copied());
                                place(&mut index);
                                index.mark(at, *holder, *mark);
                            }
                        }
                        // The record was released meanwhile, and needs no note.
                        None => drop(about.pop()),
                    }
                }
            }
        }
        if writer.notes.is_empty() && notes.capacity() * size_of::<Note>() <= KEPT_BUFFER / 4 {
            writer.notes = notes;
        }
        let header = BatchHeader {
            kind: Kind::Data,
            index_len: 0,
            bodies_len,
            sequence: writer.sequence,
            synced: writer.synced,
            first: first.get(),
            end: end.get(),
            records: index.records,
            notes: index.notes,
            index_crc: 0,
            terms,
        };
        (writer.gathered, writer.sequence) = (end, writer.sequence + 1);
        writer.last_term = writer.term;
        self.submit_batch(header, (head, bodies), wants_sync, shares);
        let segments = &mut self.store.segments;
        let last = segments.all.len().saturating_sub(1);
        let written = segments.change(last, |segment| {
            lens.iter().for_each(|&len| segment.add_record(len));
            about.into_iter().for_each(|epoch| segment.add_note(epoch));
            (segment.file.segment, segment.len)
        });
        if let (Some((number, end)), Some(flight)) = (written, &mut self.writer.flight) {
            flight.live = lens.len() as u64;
            let place = (number, end - flight.bytes);
            segments.stragglers.extend(late.iter().map(|&at| (at, place)));
            late.sort_unstable();
            flight.late = late;
        }
    }

    /// Completes the header of a gathered batch and submits the batch, in a new segment if the last one is full.
    fn submit_batch(
        &mut self,
        mut header: BatchHeader,
        (mut head, body): (Vec<u8>, Body),
        sync: bool,
        shares: SharedOfBatch,
    ) {
        let segment_len = self.segment_len();
        let Self { store, writer, options, .. } = self;
        let mut writes = Vec::new();
        let before = Reached { end: header.first, sequence: header.sequence };
        let after = Reached { end: header.end, sequence: header.sequence + 1 };
        let mut send = |file, position, (head, body), reached, sync, is_last| {
            let state = State::Waits(head, body);
            writes.push(Write { file, position, reached, sync, is_last, state });
        };
        let segments = &mut store.segments;
        let is_full = |&last: &usize| {
            let segment = &segments.all[last];
            segment.len >= segment_len || segment.is_old || segment.term() != writer.term
        };
        if let Some(last) = segments.active().filter(is_full) {
            let footer = segments.change(last, |old| seal(old, &header)).unwrap_or_default();
            let old = &segments.all[last];
            let position = old.len - footer.len() as u64;
            send(old.file, position, (footer, Body::default()), before, true, true);
            writer.unsynced_bytes = 0;
            self.space.look();
            self.space.sealed();
        }
        if segments.active().is_none() {
            let (file, first_bytes) = begin(segments, writer, options, &header);
            if header.terms.is_some() {
                self.giving.begin(&first_bytes);
            }
            send(file, 0, (first_bytes, Body::default()), before, true, false);
        }
        let Some(active) = segments.active() else { return };
        let segment = &segments.all[active];
        let header_len = header.header_len();
        header.index_len = (head.len() - header_len) as u64;
        header.index_crc = crc32c::crc32c(&head[header_len..]);
        head[..header_len].copy_from_slice(&header.encode(segment.framing.mark));
        let (bytes, position) = ((head.len() + body.len()) as u64, segment.len);
        let shared_bytes = body.large_len() as u64;
        let is_awaited = sync;
        // Of a log with terms others count each batch that is here.
        let sync = is_awaited || writer.unsynced_bytes + bytes > UNSYNCED_MAX || writer.term > 0;
        writer.unsynced_bytes = if sync { 0 } else { writer.unsynced_bytes + bytes };
        let file = segment.file;
        segments.change(active, |it| it.add_batch(position, bytes, &header));
        let what = match header.terms {
            None => (head, body),
            Some(_) => self.giving.keep(&header, (file.segment, position), (head, body)),
        };
        send(file, position, what, after, sync, false);
        writer.flight = Some(Flight {
            writes,
            bytes,
            shared_bytes,
            sequence: header.sequence,
            is_awaited,
            is_synced: sync,
            late: Vec::new(),
            range: header.first..header.end,
            live: 0,
            shares,
            is_written: false,
            file,
            len: position + bytes,
        });
        self.submit_next();
    }

    /// Submits the flight's next write, unless one is under way.
    fn submit_next(&mut self) {
        let Self { writer, disk, next_token, .. } = self;
        let Some(flight) = &mut writer.flight else { return };
        let is_done = |write: &&mut Write| matches!(write.state, State::Done);
        let Some(write) = flight.writes.iter_mut().find(|write| !is_done(write)) else { return };
        let State::Waits(head, body) = &mut write.state else { return };
        let (head, body) = (std::mem::take(head), std::mem::take(body));
        let Write { file, position, reached, sync, is_last, .. } = *write;
        let is_background = false;
        let op = Op::Write { file, position, head, body, reached, sync, is_last, is_background };
        write.state = State::UnderWay(submit(disk, next_token, op));
    }

    /// A write of the flight has completed.
    pub(super) fn written(
        &mut self,
        token: Token,
        buffers: (Vec<u8>, Body),
        result: Result<(), DiskError>,
    ) {
        let writer = &mut self.writer;
        let Some(flight) = &mut writer.flight else { return };
        let is_it = |write: &&mut Write| matches!(write.state, State::UnderWay(it) if it == token);
        let Some(write) = flight.writes.iter_mut().find(is_it) else { return };
        let (head, mut body) = buffers;
        match result {
            Ok(()) => write.state = State::Done,
            Err(error) => {
                match error {
                    DiskError::Full => {
                        writer.is_full = true;
                        self.lending.tell(&flight.shares.here, Progress::Stuck);
                    }
                    DiskError::Failed(reason) => {
                        writer.failed.get_or_insert_with(|| format!("{}: {reason}", write.file));
                        writer.refuses = Some(AppendError::Failed);
                    }
                }
                write.state = State::Waits(head, body);
                return;
            }
        }
        if flight.writes.iter().any(|write| !matches!(write.state, State::Done)) {
            self.submit_next();
            return;
        }
        let mut head = head;
        body.clear();
        if head.capacity() + body.held_bytes() <= KEPT_BUFFER {
            head.clear();
            writer.spare = (head, body);
        }
        // Other logs may wait for this batch, or for the room that its releases free, while this batch waits for them.
        self.lending.tell(&flight.shares.here, Progress::Safe);
        flight.shares.here.clear();
        self.lending.free(std::mem::take(&mut flight.shares.freed));
        flight.is_written = true;
        self.space.look();
        self.end_flight();
    }

    /// Ends the flight if all of it is on disk, in this log and in others.
    pub(super) fn end_flight(&mut self) {
        let writer = &mut self.writer;
        let Some(flight) = writer.flight.as_mut().filter(|flight| flight.is_written) else {
            return;
        };
        flight.shares.there.retain(|shared| shared.progress() != Progress::Safe);
        // Room on this disk does not help as long as another log that has a part of this batch finds none.
        writer.is_full = flight.shares.there.iter().any(|it| it.progress() == Progress::Stuck);
        let is_safe = flight.shares.there.is_empty();
        if !writer.is_full && std::mem::take(&mut writer.has_only_releases) {
            // From now on durable records may be appended, and these notes may belong to them.
            for note in &writer.notes {
                if let Some(index) = self.store.segments.by_number(note.segment) {
                    self.store.segments.all[index].last_noted = writer.sequence;
                }
            }
        }
        let Some(flight) = writer.flight.take_if(|_| is_safe) else { return };
        self.space.found_room();
        if flight.is_synced {
            writer.synced = flight.sequence + 1;
        }
        writer.durable = writer.gathered;
        if let Some(index) = self.store.segments.by_number(flight.file.segment) {
            self.store.segments.all[index].written = flight.len;
        }
        writer.add_late(flight.late, self.evicted, &self.hot);
        self.space.look();
    }

    /// Tries the flight again if it found the disk full.
    fn retry(&mut self) {
        if self.writer.is_full {
            self.submit_next();
        }
    }
}

/// Gives an empty buffer room for the expected bytes. A far too large buffer gives back its memory first.
fn fit(buffer: &mut Vec<u8>, expected: usize) {
    if buffer.capacity() > KEPT_IDLE && buffer.capacity() / 16 > expected {
        *buffer = Vec::new();
    }
    buffer.reserve(expected);
}

/// Seals a full segment and returns its footer.
fn seal(segment: &mut Segment, next: &BatchHeader) -> Vec<u8> {
    let Framing { mark, has_terms } = segment.framing;
    let footer = BatchHeader::seal_before(next, has_terms).encode(mark).to_vec();
    segment.len += footer.len() as u64;
    segment.is_sealed = true;
    footer
}

/// Adds the next segment and returns the first bytes of its file.
fn begin(
    segments: &mut Segments,
    writer: &mut Writer,
    options: &super::Options,
    header: &BatchHeader,
) -> (FileName, Vec<u8>) {
    let file = FileName { segment: writer.next_segment, generation: 0 };
    writer.next_segment += 1;
    let framing = Framing { mark: writer.new_mark(file), has_terms: header.terms.is_some() };
    let epoch = segments.new_epoch();
    let mut segment = Segment::new(file, framing, header.first, header.sequence, epoch);
    let terms = header.terms.map(|Terms { term, before, .. }| SegmentTerms { term, before });
    segment.terms = terms;
    segment.len = FILE_HEADER as u64;
    let mut bytes = Vec::with_capacity(FILE_HEADER);
    FileHeader::begun_by(header, file, framing, &options.writer).encode(&mut bytes);
    segments.push(segment);
    (file, bytes)
}
