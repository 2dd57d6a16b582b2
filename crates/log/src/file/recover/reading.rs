//! Reading files one after another, into the table of holders.

use super::choose::File;
use super::window::{Window, crcs, have_crcs};
use super::{OpenError, Progress, Report, damaged, next, on};
use crate::disk::{Disk, DiskError, FileName, Reached};
use crate::file::digest::Digest;
use crate::file::format::{BATCH_HEADER, BatchHeader, FILE_HEADER, Malformed};
use crate::file::table::Table;
use crate::file::walk::{Batch, Step, Walk, is_begun};

pub(super) struct Recovery<'a> {
    pub(super) table: Table,
    pub(super) report: Report,
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
                    self.cut = Some((name, position));
                    let report = &mut self.report;
                    let behind = file.len.saturating_sub(position);
                    report.unagreed_bytes = report.unagreed_bytes.saturating_add(behind);
                    return Ok(Some((name, len)));
                }
                Step::Batch(batch) if batch.header.is_sealed => {
                    let end = batch.end();
                    if end != len {
                        return Err(damaged(name, end, "bytes follow the end of the segment"));
                    }
                    on_batch(name, position, self.table.batch(&batch))?;
                    return Ok(is_tail.then_some((name, end)));
                }
                Step::Batch(batch) if is_first_generation && batch.header.sequence < expected => {
                    return Err(damaged(name, position, "a batch is out of its order"));
                }
                Step::Batch(batch) => {
                    need = 0;
                    expected = next(batch.header.sequence);
                    on_batch(name, position, self.table.batch(&batch))?;
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

    /// Whether others have not agreed to a batch, or to the one whose beginning the end of a segment tells.
    fn is_unagreed(&self, header: &BatchHeader) -> bool {
        self.until.is_some_and(|until| match header.is_sealed {
            true => header.end > until.end,
            false => header.sequence >= until.sequence,
        })
    }

    fn begin(&mut self, file: &File) -> Result<(), OpenError> {
        let what = "the header is at odds with that of the file before";
        let begun = self.table.begin(file.name, &file.header);
        begun.map_err(|Malformed| damaged(file.name, 0, what))
    }

    /// Takes in what the digest of a file says, instead of the file.
    pub(super) fn digested(&mut self, file: &File, digest: Digest) -> Result<(), OpenError> {
        self.begin(file)?;
        let taken = self.table.digest(digest, file.len);
        taken.map_err(|Malformed| damaged(file.name, 0, "its digest is not readable"))?;
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
