//! Reading files one after another, into the table of holders.

use std::cmp::Ordering;

use super::choose::File;
use super::window::{Window, crcs, have_crcs};
use super::{OpenError, Progress, Report, damaged, next, on};
use crate::disk::{Disk, DiskError, FileName, Reached};
use crate::file::digest::Digest;
use crate::file::follow::Tail;
use crate::file::format::{BatchHeader, FILE_HEADER, FileHeader, Framing, Malformed, TERM_HEADER};
use crate::file::segments::SegmentTerms;
use crate::file::table::Table;
use crate::file::walk::{Batch, Step, Walk, is_begun};

pub(super) struct Recovery<'a> {
    pub(super) table: Table,
    pub(super) report: Report,
    /// How far the files that were read are.
    pub(super) reached: Reached,
    /// Of the last batch; 0 if it has none.
    pub(super) last_term: u64,
    /// The file that was read last: how much of it is whole, and whether it is sealed.
    pub(super) last: Option<LastFile>,
    /// Of the file that is read next.
    pub(super) terms: Option<SegmentTerms>,
    /// What may be cut off of a follower's log is not for the table.
    pub(super) tail: Option<Tail>,
    /// Where the log is to end.
    pub(super) until: Option<Reached>,
    /// The file that has a batch behind that, and where that begins.
    pub(super) cut: Option<(FileName, u64)>,
    pub(super) progress: &'a mut dyn FnMut(Progress),
    pub(super) passed: Progress,
}

/// A file that was read.
#[derive(Clone, Copy)]
pub(super) struct LastFile {
    name: FileName,
    through: u64,
    has_terms: bool,
    /// The number behind that of its last batch.
    next_batch: u64,
    pub(super) len: u64,
    pub(super) is_sealed: bool,
    /// All of it is for the table: it was rewritten, or is of a log that had no others.
    is_applied: bool,
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
        self.begin(file, false)?;
        let is_first_generation = name.generation == 0;
        let (len, is_interrupted) = if is_tail { tail(disk, file)? } else { (len, false) };
        let mut window = Window::new(disk, name, len);
        let mut walk = Walk::new(FILE_HEADER as u64, len, header.framing());
        let (mut expected, mut need) = (header.as_of, 0);
        loop {
            let position = walk.position();
            let shown = on(name, window.show(position, need))?;
            match walk.step(shown) {
                Step::Need(bytes) => need = bytes,
                Step::Batch(batch) if is_tail && self.is_unagreed(&batch.header) => {
                    self.cut = Some((name, position));
                    let report = &mut self.report;
                    let behind = file.len.saturating_sub(position);
                    report.unagreed_bytes = report.unagreed_bytes.saturating_add(behind);
                    return Ok(Some((name, len)));
                }
                Step::Batch(batch) if batch.header.is_seal() => {
                    let end = batch.end();
                    if end != len {
                        return Err(damaged(name, end, "bytes follow the end of the segment"));
                    }
                    on_batch(name, position, self.batch(&batch))?;
                    return Ok(is_tail.then_some((name, end)));
                }
                Step::Batch(batch)
                    if is_first_generation && !follows(&batch.header, header, expected) =>
                {
                    return Err(damaged(name, position, "a batch is out of its order"));
                }
                Step::Batch(batch) => {
                    need = 0;
                    self.last_term = batch.header.terms.map_or(0, |it| it.term);
                    expected = next(batch.header.sequence);
                    on_batch(name, position, self.batch(&batch))?;
                    self.pass_to(self.passed.done.saturating_add(batch.len()));
                }
                Step::End if is_tail => {
                    let report = &mut self.report;
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

    /// A file goes: others have not agreed to what it has.
    pub(super) fn goes(&mut self, file: &File) {
        let report = &mut self.report;
        report.unagreed_bytes = report.unagreed_bytes.saturating_add(file.len);
        self.table.next_segment = self.table.next_segment.max(next(file.name.segment));
    }

    /// Whether others have not agreed to a batch, or to the one whose beginning the end of a segment tells.
    fn is_unagreed(&self, header: &BatchHeader) -> bool {
        self.until.is_some_and(|until| match header.is_seal() {
            // With terms the next batch may have its place.
            true => {
                let is_at = header.terms.is_some() && header.sequence >= until.sequence;
                is_at || header.end > until.end
            }
            false => header.sequence >= until.sequence,
        })
    }

    /// Reads of a file of a log with terms the term of the batch before its first one. None if that is not the one which was
    /// read last: the log ends before the file.
    ///
    /// What was rewritten or removed before the file tells nothing.
    pub(super) fn terms<D: Disk>(
        &mut self,
        disk: &mut D,
        file: &File,
    ) -> Result<Option<SegmentTerms>, OpenError> {
        let (name, header) = (file.name, &file.header);
        let mut bytes = [0; TERM_HEADER];
        if file.len >= (FILE_HEADER.saturating_add(TERM_HEADER)) as u64 {
            on(name, disk.read_now(name, FILE_HEADER as u64, &mut bytes))?;
        }
        let first = BatchHeader::decode(&bytes, header.framing()).ok();
        let before = first.and_then(|it| it.terms).map_or(self.last_term, |it| it.before);
        let is_next = self.last.filter(|it| it.name.generation == 0).is_none_or(|last| {
            match header.as_of.cmp(&last.next_batch) {
                Ordering::Equal => before == self.last_term,
                Ordering::Less => false,
                // Those between were in files that are gone, if there were any. Only the first with terms leaves a gap itself.
                Ordering::Greater => !last.has_terms || next(last.through) < name.segment,
            }
        });
        Ok(is_next.then_some(SegmentTerms { term: header.term, before }))
    }

    fn begin(&mut self, file: &File, has_digest: bool) -> Result<(), OpenError> {
        let (name, header) = (file.name, &file.header);
        let FileHeader { through, first, as_of, .. } = *header;
        let has_terms = header.framing().has_terms;
        let is_applied = has_digest || name.generation > 0 || !has_terms;
        let len = FILE_HEADER as u64;
        let last = LastFile {
            name,
            through,
            has_terms,
            next_batch: as_of,
            len,
            is_sealed: false,
            is_applied,
        };
        let what = "the header is at odds with that of the file before";
        let is_behind = self.last.is_none_or(|last| name.segment > last.through);
        if first < self.reached.end || !is_behind {
            return Err(damaged(name, 0, what));
        }
        let Self { table, tail, terms, .. } = self;
        let begun = match (tail, *terms) {
            (Some(tail), Some(terms)) if !is_applied => {
                tail.begin(name, header, terms);
                Ok(())
            }
            (tail, terms) => {
                let applied = tail.as_mut().map_or(Ok(()), |tail| tail.apply_all(table));
                let begun = applied.and_then(|()| table.begin(name, header));
                terms.into_iter().for_each(|terms| table.set_terms(terms));
                begun
            }
        };
        self.reached = self.reached.max(Reached { end: first, sequence: as_of });
        self.last = Some(last);
        begun.map_err(|Malformed| damaged(name, 0, what))
    }

    /// The next batch of the file, or what seals it.
    fn batch(&mut self, batch: &Batch<'_>) -> Result<(), Malformed> {
        let Self { table, tail, last, reached, .. } = self;
        let Some(last) = last else { return Err(Malformed) };
        let BatchHeader { first, end, sequence, .. } = batch.header;
        if first < reached.end && !batch.header.is_seal() {
            return Err(Malformed);
        }
        (last.len, last.is_sealed) = (batch.end(), batch.header.is_seal());
        let sequence = if last.is_sealed { 0 } else { next(sequence) };
        last.next_batch = last.next_batch.max(sequence);
        *reached = reached.max(Reached { end, sequence });
        match tail.as_mut().filter(|_| !last.is_applied) {
            Some(tail) => {
                batch.check(first)?;
                tail.batch(batch, table)
            }
            None => table.batch(batch),
        }
    }

    /// Takes in what the digest of a file says, instead of the file.
    pub(super) fn digested(&mut self, file: &File, digest: Digest) -> Result<(), OpenError> {
        self.begin(file, true)?;
        let taken = self.table.digest(digest, file.len);
        taken.map_err(|Malformed| damaged(file.name, 0, "its digest is not readable"))?;
        self.last_term = if file.header.term > 0 { file.header.term } else { self.last_term };
        self.reached = self.reached.max(self.table.reached);
        let segment = self.table.store.segments.all.back();
        if let (Some(last), Some(segment)) = (&mut self.last, segment) {
            (last.len, last.is_sealed) = (file.len, true);
            last.next_batch = segment.next_batch;
        }
        self.report.digests = next(self.report.digests);
        Ok(())
    }

    /// So many bytes of files are passed.
    pub(super) fn pass_to(&mut self, done: u64) {
        self.passed.done = done;
        (self.progress)(self.passed);
    }
}

fn on_batch(file: FileName, position: u64, result: Result<(), Malformed>) -> Result<(), OpenError> {
    result.map_err(|Malformed| damaged(file, position, "the index of a batch is not readable"))
}

/// Whether a batch, or what seals a file, is the next one of a file, whose header is given, behind those before number
/// `expected`. With terms each follows on the one before: what was cut off does not come back behind others.
fn follows(batch: &BatchHeader, file: &FileHeader, expected: u64) -> bool {
    let Some(terms) = batch.terms else { return batch.sequence >= expected };
    let is_first = expected == file.as_of;
    batch.sequence == expected
        && (is_first || terms.before == file.term)
        && (batch.is_seal() || terms.term == file.term)
}

/// How much of the last file is whole, and whether the rest was being written when a crash came. Else the
/// rest is of the file that this one was made of.
fn tail<D: Disk>(disk: &mut D, file: &File) -> Result<(u64, bool), OpenError> {
    let File { name, len, header, safe, .. } = file;
    let (name, len, safe) = (*name, *len, *safe);
    let mut window = Window::new(disk, name, len);
    let framing = header.framing();
    let mut walk = Walk::new(FILE_HEADER as u64, len, framing);
    let (mut expected, mut need) = (header.as_of, 0);
    let mut unsynced = Unsynced { safe, before: 0, places: Vec::new() };
    let (whole, is_begun) = loop {
        let position = walk.position();
        let shown = on(name, window.show(position, need))?;
        match walk.step(shown) {
            Step::Need(bytes) => need = bytes,
            // It was cut off before those that are before it were written.
            Step::Batch(batch)
                if batch.header.terms.is_some()
                    && name.generation == 0
                    && !follows(&batch.header, header, expected) =>
            {
                break (position, true);
            }
            Step::Batch(batch) => {
                need = 0;
                let sequence = batch.header.sequence;
                expected = if batch.header.is_seal() { sequence } else { next(sequence) };
                unsynced.pass(&batch);
            }
            Step::End if len < safe => {
                return Err(damaged(name, len, "the end of the file is missing, which was safe"));
            }
            Step::End => break (len, false),
            Step::Bad => {
                let shown = on(name, window.show_most(position, framing.header_len()))?;
                let is_begun = is_begun(shown, header.mark, expected);
                let synced = on(name, window.synced_before(position, framing))?;
                if synced > expected || position < safe {
                    return Err(damaged(name, position, "a batch that was safe is not whole"));
                }
                unsynced.before = unsynced.before.max(synced);
                break (position, is_begun);
            }
        }
    };
    let torn = on(name, unsynced.torn(&mut window, framing, whole))?;
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
        framing: Framing,
        end: u64,
    ) -> Result<Option<u64>, DiskError> {
        let after = self.places.partition_point(|(sequence, _)| *sequence <= self.before);
        let place = self.places.get(after.saturating_sub(1)).copied();
        let Some((_, position)) = place else { return Ok(None) };
        let (mut walk, mut need) = (Walk::new(position, end, framing), 0);
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
