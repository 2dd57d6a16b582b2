//! Reading files one after another: what each has, and who holds what then.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::choose::File;
use super::window::{Window, crcs, have_crcs};
use super::{Found, OpenError, Progress, damaged, next, on};
use crate::Holder;
use crate::disk::{Disk, DiskError, FileName, Reached};
use crate::file::Store;
use crate::file::cold::Held;
use crate::file::digest::{Alike, Digest};
use crate::file::format::{
    BATCH_HEADER, BatchHeader, Entry, FILE_HEADER, LISTED_SINCE, Malformed, NoteEntry, NoteKind,
    RecordEntry,
};
use crate::file::segments::{Digested, Segment};
use crate::file::walk::{Batch, Step, Walk, is_begun};
use crate::shared::Original;

/// A volatile record on disk: lost, unless a note says otherwise.
pub(super) struct Lost {
    segment: u64,
    len: u32,
}

/// What there is to know of a record besides who holds it.
#[derive(Clone, Copy)]
struct Fact {
    at: u64,
    len: u32,
    /// Needed of those that other logs have to do with.
    crc: Option<u32>,
    is_volatile: bool,
    elsewhere: Option<Original>,
}

/// The batch that a record is in.
#[derive(Clone, Copy)]
struct BatchAt {
    /// Of its segment.
    index: usize,
    position: u64,
    first: u64,
}

/// Records in order ascend within the offsets of their batch.
struct Order {
    first: u64,
    next: u64,
    end: u64,
}

impl Order {
    fn of(header: &BatchHeader) -> Self {
        Self { first: header.first, next: header.first, end: header.end }
    }

    fn check(&mut self, at: u64) -> Result<(), Malformed> {
        if at < self.first {
            return Ok(());
        }
        let is_in_order = (self.next..self.end).contains(&at);
        self.next = next(at);
        if is_in_order { Ok(()) } else { Err(Malformed) }
    }
}

pub(super) struct Recovery<'a> {
    pub(super) store: Store,
    pub(super) lost: BTreeMap<u64, Lost>,
    pub(super) found: Found,
    /// Where the log is to end.
    pub(super) until: Option<Reached>,
    /// The file that has a batch behind that, and where that begins.
    pub(super) cut: Option<(FileName, u64)>,
    pub(super) progress: &'a mut dyn FnMut(Progress),
    pub(super) passed: Progress,
}

impl Recovery<'_> {
    /// Reads one file. If it is the tail, tells where it is to be cut, or made safe if it is whole: the
    /// next file is begun as if it were.
    pub(super) fn file<D: Disk>(
        &mut self,
        disk: &mut D,
        file: &File,
        is_tail: bool,
    ) -> Result<Option<(FileName, u64)>, OpenError> {
        let File { name, len, header, .. } = file;
        let (name, len) = (*name, *len);
        self.begin(file)?;
        let is_first_generation = name.generation == 0;
        let (len, is_interrupted) = if is_tail { tail(disk, file)? } else { (len, false) };
        let mut window = Window::new(disk, name, len);
        let mut walk = Walk::new(FILE_HEADER as u64, len, header.mark);
        let (mut expected, mut need) = (header.as_of, 0);
        loop {
            let position = walk.position();
            let shown = on(name, window.show(position, need))?;
            match walk.step(shown) {
                Step::Need(bytes) => need = bytes,
                Step::Batch(batch) if is_tail && self.is_unagreed(&batch.header) => {
                    self.end_segment(position, false);
                    self.cut = Some((name, position));
                    let report = &mut self.found.report;
                    let behind = file.len.saturating_sub(position);
                    report.unagreed_bytes = report.unagreed_bytes.saturating_add(behind);
                    return Ok(Some((name, len)));
                }
                Step::Batch(batch) if batch.header.is_sealed => {
                    let end = batch.end();
                    if end != len {
                        return Err(damaged(name, end, "bytes follow the end of the segment"));
                    }
                    // Of a file that was rewritten the last batches may have nothing left and not be there.
                    self.found.end = self.found.end.max(batch.header.end);
                    self.end_segment(end, true);
                    return Ok(is_tail.then_some((name, end)));
                }
                Step::Batch(batch) if is_first_generation && batch.header.sequence < expected => {
                    return Err(damaged(name, position, "a batch is out of its order"));
                }
                Step::Batch(batch) => {
                    need = 0;
                    expected = next(batch.header.sequence);
                    if self.batch(&batch).is_err() {
                        return Err(damaged(
                            name,
                            position,
                            "the index of a batch is not readable",
                        ));
                    }
                }
                Step::End if is_tail => {
                    self.end_segment(len, false);
                    let report = &mut self.found.report;
                    let behind = file.len.saturating_sub(len);
                    match is_interrupted {
                        true => report.cut_bytes = behind,
                        false => report.foreign_bytes = behind,
                    }
                    return Ok(Some((name, len)));
                }
                Step::End => return Err(damaged(name, len, "the end of the segment is missing")),
                Step::Bad => return Err(damaged(name, position, "this is not a whole batch")),
            }
        }
    }

    /// Whether others have not agreed to a batch, or to the one whose beginning the end of a segment tells.
    fn is_unagreed(&self, header: &BatchHeader) -> bool {
        self.until.is_some_and(|until| match header.is_sealed {
            true => header.end > until.end,
            false => header.sequence >= until.sequence,
        })
    }

    fn begin(&mut self, file: &File) -> Result<(), OpenError> {
        let File { name, header, .. } = file;
        let name = *name;
        let last = self.store.segments.all.back();
        if header.first < self.found.end || last.is_some_and(|last| name.segment <= last.through) {
            return Err(damaged(name, 0, "the header is at odds with that of the file before"));
        }
        let epoch = self.store.segments.new_epoch();
        let mut segment = Segment::new(name, header.mark, header.first, header.as_of, epoch);
        segment.through = header.through;
        segment.is_old = header.format < LISTED_SINCE;
        segment.len = FILE_HEADER as u64;
        self.store.segments.push(segment);
        self.found.end = header.first;
        self.found.next_sequence = self.found.next_sequence.max(header.as_of);
        self.found.next_segment = self.found.next_segment.max(next(header.through));
        Ok(())
    }

    /// Takes in what the digest of a file says, instead of the file.
    pub(super) fn digested(&mut self, file: &File, digest: Digest) -> Result<(), OpenError> {
        self.begin(file)?;
        let index = self.store.segments.all.len().saturating_sub(1);
        let end = self.take_digest(index, &digest);
        if end.ok().and_then(|end| end.checked_add(BATCH_HEADER as u64)) != Some(file.len) {
            return Err(damaged(file.name, 0, "its digest is not readable"));
        }
        self.found.end = self.found.end.max(digest.end);
        self.passed.done = self.passed.done.saturating_add(file.len);
        self.end_segment(file.len, true);
        let keep = |segment: &mut Segment| segment.digest = Digested::Read(Box::new(digest));
        self.store.segments.change(index, keep);
        Ok(())
    }

    /// Tells where the last batch ends in the file.
    fn take_digest(&mut self, index: usize, digest: &Digest) -> Result<u64, Malformed> {
        let mut rows = digest.rows_without_heads();
        let mut position = FILE_HEADER as u64;
        while let Some((header, len)) = rows.batch()? {
            let at = BatchAt { index, position, first: header.first };
            self.begin_batch(index, position, len, &header)?;
            let mut order = Order::of(&header);
            loop {
                if let Some(alike) = rows.alike()? {
                    let names = digest.sets.get(alike.set).ok_or(Malformed)?;
                    self.alike(at, &mut order, alike, names)?;
                }
                let Some(row) = rows.row()? else { break };
                order.check(row.at)?;
                let names = digest.sets.get(row.set).ok_or(Malformed)?;
                let fact = Fact {
                    at: row.at,
                    len: row.len,
                    crc: row.crc,
                    is_volatile: row.is_volatile,
                    elsewhere: row.elsewhere,
                };
                self.record(at, fact, names, row.marks)?;
            }
            let mut notes = rows.notes()?;
            while let Some(entry) = notes.next()? {
                if let Entry::Note(note) = entry {
                    self.note(index, header.sequence, note);
                }
            }
            position = position.checked_add(len).ok_or(Malformed)?;
        }
        Ok(position)
    }

    fn end_segment(&mut self, len: u64, is_sealed: bool) {
        let last = self.store.segments.all.len().saturating_sub(1);
        self.store.segments.change(last, |segment| {
            segment.len = len;
            segment.written = len;
            segment.is_sealed = is_sealed;
        });
        self.passed.done = self.passed.done.saturating_add(FILE_HEADER as u64);
        (self.progress)(self.passed);
    }

    fn begin_batch(
        &mut self,
        index: usize,
        position: u64,
        len: u64,
        header: &BatchHeader,
    ) -> Result<(), Malformed> {
        if header.first < self.found.end {
            return Err(Malformed);
        }
        self.store.segments.change(index, |segment| {
            segment.add_batch(position, len, header.first, header.end);
        });
        self.found.end = header.end;
        self.found.next_sequence = self.found.next_sequence.max(next(header.sequence));
        Ok(())
    }

    fn batch(&mut self, batch: &Batch<'_>) -> Result<(), Malformed> {
        let header = &batch.header;
        let len = batch.end().saturating_sub(batch.position);
        let Some(index) = self.store.segments.all.len().checked_sub(1) else { return Ok(()) };
        self.begin_batch(index, batch.position, len, header)?;
        let at = BatchAt { index, position: batch.position, first: header.first };
        let mut order = Order::of(header);
        let mut bodies = header.bodies_len;
        let mut names: SmallVec<[Holder; 4]> = SmallVec::new();
        let mut marks: SmallVec<[(Holder, u8); 4]> = SmallVec::new();
        let mut entries = batch.entries();
        while let Some(entry) = entries.next()? {
            let record = match entry {
                Entry::Record(record) => record,
                Entry::Note(note) => {
                    self.note(index, header.sequence, note);
                    continue;
                }
            };
            order.check(record.at)?;
            bodies = bodies.checked_sub(u64::from(record.stored_len())).ok_or(Malformed)?;
            names.clear();
            marks.clear();
            for (name, mark) in record.holders() {
                names.push(name);
                if mark > 0 {
                    marks.push((name, mark));
                }
            }
            if names.len() > 1 {
                names.sort_unstable();
                names.dedup();
            }
            let RecordEntry { at: offset, len, crc, is_volatile, elsewhere, .. } = record;
            let fact = Fact { at: offset, len, crc: Some(crc), is_volatile, elsewhere };
            self.record(at, fact, &names, &marks)?;
        }
        self.passed.done = self.passed.done.saturating_add(len);
        (self.progress)(self.passed);
        Ok(())
    }

    /// Takes in records that have nothing but their holders.
    fn alike(
        &mut self,
        batch: BatchAt,
        order: &mut Order,
        alike: Alike,
        names: &[Holder],
    ) -> Result<(), Malformed> {
        let Alike { at, count, len, .. } = alike;
        let end = at.saturating_add(count.into());
        if at < batch.first {
            let fact = |at| Fact { at, len, crc: None, is_volatile: false, elsewhere: None };
            for at in at..end {
                order.check(at)?;
                self.record(batch, fact(at), names, &[])?;
            }
            return Ok(());
        }
        // Those between are in order if the first and the last are.
        let last = end.saturating_sub(1);
        order.check(at)?;
        if last > at {
            order.next = last;
            order.check(last)?;
        }
        let Store { segments, sets, cold, .. } = &mut self.store;
        let segment = segments.all.get_mut(batch.index).ok_or(Malformed)?;
        segment.add_records(count.into(), len);
        let set = sets.get_for(names, count.into());
        cold.insert_all(at..end, Held { set, is_volatile: false });
        Ok(())
    }

    /// Takes in a record, whose holders are `names`, none of them twice.
    fn record(
        &mut self,
        batch: BatchAt,
        fact: Fact,
        names: &[Holder],
        list: &[(Holder, u8)],
    ) -> Result<(), Malformed> {
        let Store { segments, sets, cold, marks, elsewhere, seen, paged: _ } = &mut self.store;
        let Fact { at, len, .. } = fact;
        let segment = segments.all.get_mut(batch.index).ok_or(Malformed)?;
        let number = segment.file.segment;
        let is_straggler = at < batch.first;
        if is_straggler {
            // One that is there already.
            if cold.get(at).is_some() || self.lost.contains_key(&at) {
                return Err(Malformed);
            }
            segments.stragglers.insert(at, (number, batch.position));
        }
        if fact.is_volatile {
            self.lost.insert(at, Lost { segment: number, len });
            return Ok(());
        }
        segment.add_record(if fact.elsewhere.is_some() { 0 } else { len });
        cold.insert(at, Held { set: sets.get(names), is_volatile: false });
        if let Some(crc) = fact.crc
            && (fact.elsewhere.is_some() || names.iter().any(|name| name.as_log().is_some()))
        {
            seen.add(at, (len, crc));
        }
        if let Some(place) = fact.elsewhere {
            elsewhere.insert(at, place, len);
        }
        if !list.is_empty() {
            marks.insert(at, SmallVec::from_slice(list));
        }
        Ok(())
    }

    fn note(&mut self, index: usize, sequence: u64, note: NoteEntry<'_>) {
        let NoteEntry { at, segment, kind } = note;
        let Store { segments, sets, cold, marks, elsewhere, .. } = &mut self.store;
        let Some(target) = segments.of_note(at, segment) else { return };
        let Some(about) = segments.all.get(target) else { return };
        if sequence < about.as_of {
            return;
        }
        if let Some(epoch) = about.epoch() {
            segments.change(index, |segment| segment.add_note(epoch));
        }
        if let Some(about) = segments.all.get_mut(target) {
            about.last_noted = about.last_noted.max(sequence);
        }
        match kind {
            NoteKind::Release(holder) => {
                let Some(held) = cold.get(at) else { return };
                match sets.without(held.set, holder) {
                    Err(()) => {}
                    Ok(Some(set)) => cold.insert(at, Held { set, ..held }),
                    Ok(None) => {
                        cold.remove(at);
                        elsewhere.remove(at);
                        marks.remove(&at);
                        if let Some(segment) = segments.all.get_mut(target) {
                            segment.drop_record(None);
                        }
                    }
                }
            }
            NoteKind::Mark(holder, mark) => {
                if cold.get(at).is_some() {
                    let list = marks.entry(at).or_default();
                    list.retain(|(name, _)| *name != holder);
                    list.push((holder, mark));
                }
            }
            NoteKind::Persist(holders) => {
                let Some(lost) = self.lost.remove(&at) else { return };
                let names: Vec<Holder> = holders.map(|(name, _)| name).collect();
                let number = segments.all.get(target).map(|it| it.file.segment);
                if cold.get(at).is_none() && number == Some(lost.segment) {
                    cold.insert(at, Held { set: sets.get(&distinct(names)), is_volatile: false });
                    if let Some(segment) = segments.all.get_mut(target) {
                        segment.add_record(lost.len);
                    }
                }
            }
        }
    }
}

/// A set of holders has none of them twice, whatever a file says.
fn distinct(mut names: Vec<Holder>) -> Vec<Holder> {
    names.sort_unstable();
    names.dedup();
    names
}

/// How much of the last file is whole, and whether the rest was being written when a crash came. Else the
/// rest is of the file that this one was made of.
fn tail<D: Disk>(disk: &mut D, file: &File) -> Result<(u64, bool), OpenError> {
    let File { name, len, header, safe, .. } = file;
    let (name, len, safe) = (*name, *len, *safe);
    let mut window = Window::new(disk, name, len);
    let mut walk = Walk::new(FILE_HEADER as u64, len, header.mark);
    let (mut expected, mut need) = (header.as_of, 0);
    let mut unsynced = Unsynced { safe, before: 0, places: Vec::new() };
    let (whole, is_begun) = loop {
        let position = walk.position();
        let shown = on(name, window.show(position, need))?;
        match walk.step(shown) {
            Step::Need(bytes) => need = bytes,
            Step::Batch(batch) => {
                need = 0;
                let sequence = batch.header.sequence;
                expected = if batch.header.is_sealed { sequence } else { next(sequence) };
                unsynced.pass(&batch);
            }
            Step::End if len < safe => {
                return Err(damaged(name, len, "the end of the file is missing, which was safe"));
            }
            Step::End => break (len, false),
            Step::Bad => {
                let shown = on(name, window.show_most(position, BATCH_HEADER))?;
                let is_begun = is_begun(shown, header.mark, expected);
                let synced = on(name, window.synced_before(position, header.mark))?;
                if synced > expected || position < safe {
                    return Err(damaged(name, position, "a batch that was safe is not whole"));
                }
                unsynced.before = unsynced.before.max(synced);
                break (position, is_begun);
            }
        }
    };
    let torn = on(name, unsynced.torn(&mut window, header.mark, whole))?;
    Ok((torn.unwrap_or(whole), is_begun || torn.is_some()))
}

/// The batches of the last file that may be torn: no later one says that they were synced. Only their bodies are looked at.
struct Unsynced {
    /// Bytes of the file that the list of files calls safe.
    safe: u64,
    /// All batches before this one were synced.
    before: u64,
    /// Numbers of batches and where they begin: one in [`APART`] bytes.
    places: Vec<(u64, u64)>,
}

/// Bytes between two batches whose places are remembered.
const APART: u64 = 64 << 10;

impl Unsynced {
    fn pass(&mut self, batch: &Batch<'_>) {
        self.before = self.before.max(batch.header.synced);
        let last = self.places.last().map_or(0, |(_, position)| *position);
        if self.places.is_empty() || batch.position.saturating_sub(last) >= APART {
            self.places.push((batch.header.sequence, batch.position));
        }
    }

    /// Where the first batch begins whose bodies are not whole, in a file that is whole up to `end` otherwise.
    fn torn<D: Disk>(
        &self,
        window: &mut Window<'_, D>,
        mark: u64,
        end: u64,
    ) -> Result<Option<u64>, DiskError> {
        let after = self.places.partition_point(|(sequence, _)| *sequence <= self.before);
        let place = self.places.get(after.saturating_sub(1)).copied();
        let Some((_, position)) = place else { return Ok(None) };
        let (mut walk, mut need) = (Walk::new(position, end, mark), 0);
        loop {
            let position = walk.position();
            let shown = window.show(position, need)?;
            match walk.step(shown) {
                Step::Need(bytes) => need = bytes,
                Step::Batch(batch) => {
                    need = 0;
                    // What was safe is not torn: a record that is not whole is found when it is read.
                    let is_safe = batch.header.sequence < self.before || batch.end() <= self.safe;
                    let crcs = if is_safe { Vec::new() } else { crcs(&batch) };
                    if !have_crcs(window, &crcs)? {
                        return Ok(Some(position));
                    }
                }
                Step::End | Step::Bad => return Ok(None),
            }
        }
    }
}
