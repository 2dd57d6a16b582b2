//! Reading files one after another: what each has, and who holds what then.

use std::collections::BTreeMap;

use super::choose::File;
use super::window::{Window, crcs, have_crcs};
use super::{Found, OpenError, Progress, damaged, next, on};
use crate::Holder;
use crate::disk::{Disk, FileName};
use crate::file::Store;
use crate::file::cold::Held;
use crate::file::format::{
    BATCH_HEADER, Entry, FILE_HEADER, LISTED_SINCE, Malformed, NoteEntry, NoteKind, RecordEntry,
};
use crate::file::segments::Segment;
use crate::file::walk::{Batch, Step, Walk, is_begun};

/// A volatile record on disk: lost, unless a note says otherwise.
pub(super) struct Lost {
    segment: u64,
    len: u32,
}

pub(super) struct Recovery<'a> {
    pub(super) store: Store,
    pub(super) lost: BTreeMap<u64, Lost>,
    pub(super) found: Found,
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
        let last = self.store.segments.all.back();
        if header.first < self.found.end || last.is_some_and(|last| name.segment <= last.through) {
            return Err(damaged(name, 0, "the header is at odds with that of the file before"));
        }
        let epoch = self.store.segments.new_epoch();
        let mut segment = Segment::new(name, header.mark, header.first, header.as_of, epoch);
        segment.through = header.through;
        segment.is_old = header.format < LISTED_SINCE;
        segment.len = FILE_HEADER as u64;
        let is_first_generation = name.generation == 0;
        self.store.segments.push(segment);
        self.found.end = header.first;
        self.found.next_sequence = self.found.next_sequence.max(header.as_of);
        self.found.next_segment = self.found.next_segment.max(next(header.through));

        let (len, is_interrupted) = if is_tail { tail(disk, file)? } else { (len, false) };
        let mut window = Window::new(disk, name, len);
        let mut walk = Walk::new(FILE_HEADER as u64, len, header.mark);
        let (mut expected, mut need) = (header.as_of, 0);
        loop {
            let position = walk.position();
            let shown = on(name, window.show(position, need))?;
            match walk.step(shown) {
                Step::Need(bytes) => need = bytes,
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

    fn batch(&mut self, batch: &Batch<'_>) -> Result<(), Malformed> {
        let header = &batch.header;
        batch.check(self.found.end)?;
        let len = batch.end().saturating_sub(batch.position);
        let Some(index) = self.store.segments.all.len().checked_sub(1) else { return Ok(()) };
        self.store.segments.change(index, |segment| {
            segment.add_batch(batch.position, len, header.first, header.end);
        });
        self.found.end = header.end;
        self.found.next_sequence = self.found.next_sequence.max(next(header.sequence));
        let mut result = Ok(());
        batch.records(&mut |record, _| {
            if !self.record(index, batch, record) {
                result = Err(Malformed);
            }
        })?;
        let mut entries = batch.entries();
        while let Some(entry) = entries.next()? {
            if let Entry::Note(note) = entry {
                self.note(index, header.sequence, note);
            }
        }
        self.passed.done = self.passed.done.saturating_add(len);
        (self.progress)(self.passed);
        result
    }

    /// False for a straggler that is there already.
    fn record(&mut self, index: usize, batch: &Batch<'_>, record: RecordEntry<'_>) -> bool {
        let Store { segments, sets, cold, marks, elsewhere, seen, paged: _ } = &mut self.store;
        let Some(segment) = segments.all.get(index) else { return false };
        if cold.get(record.at).is_some() || self.lost.contains_key(&record.at) {
            return false;
        }
        let number = segment.file.segment;
        let (mut names, mut list) = (Vec::new(), smallvec::SmallVec::new());
        let mut is_shared = record.elsewhere.is_some();
        for (name, mark) in record.holders() {
            names.push(name);
            is_shared |= name.as_log().is_some();
            if mark > 0 {
                list.push((name, mark));
            }
        }
        if record.at < batch.header.first {
            segments.stragglers.insert(record.at, (number, batch.position));
        }
        if record.is_volatile {
            self.lost.insert(record.at, Lost { segment: number, len: record.len });
            return true;
        }
        if let Some(segment) = segments.all.get_mut(index) {
            segment.add_record(record.stored_len());
        }
        cold.insert(record.at, Held { set: sets.get(&distinct(names)), is_volatile: false });
        if is_shared {
            seen.add(record.at, (record.len, record.crc));
        }
        if let Some(place) = record.elsewhere {
            elsewhere.insert(record.at, place, record.len);
        }
        if !list.is_empty() {
            marks.insert(record.at, list);
        }
        true
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
    // Place and number of the first batch whose bodies are not whole.
    let mut torn: Option<(u64, u64)> = None;
    loop {
        let position = walk.position();
        let shown = on(name, window.show(position, need))?;
        match walk.step(shown) {
            Step::Need(bytes) => need = bytes,
            Step::Batch(batch) => {
                need = 0;
                torn = torn.filter(|(_, sequence)| batch.header.synced <= *sequence);
                let sequence = batch.header.sequence;
                expected = if batch.header.is_sealed { sequence } else { next(sequence) };
                let crcs = crcs(&batch);
                // What was safe is not torn: a record that is not whole is found when it is read.
                let may_be_torn = torn.is_none() && batch.end() > safe;
                if may_be_torn && !on(name, have_crcs(&mut window, &crcs))? {
                    torn = Some((position, sequence));
                }
            }
            Step::End if len < safe => {
                return Err(damaged(name, len, "the end of the file is missing, which was safe"));
            }
            Step::End => {
                let whole = torn.map_or(len, |(position, _)| position);
                return Ok((whole, torn.is_some()));
            }
            Step::Bad => {
                let shown = on(name, window.show_most(position, BATCH_HEADER))?;
                let is_begun = is_begun(shown, header.mark, expected);
                let synced = on(name, window.synced_before(position, header.mark))?;
                if synced > expected || position < safe {
                    return Err(damaged(name, position, "a batch that was safe is not whole"));
                }
                let torn = torn.filter(|(_, sequence)| synced <= *sequence);
                let whole = torn.map_or(position, |(position, _)| position);
                return Ok((whole, is_begun || torn.is_some()));
            }
        }
    }
}
