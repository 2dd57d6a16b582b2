//! How much of a file is whole: from batch to batch, with the bytes of all records.

use crate::BatchName;
use crate::disk::{BEGINNING, DiskError, FileName, Heading, Reached};
use crate::file::digest::ReadAt;
use crate::file::format::{BatchHeader, FILE_HEADER, FileHeader};
use crate::file::walk::{Batch, Step, Walk};

/// Bytes that are read at once when nothing asks for more.
const READ: usize = 256 << 10;

/// What a file has, up to the first byte that is not whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Which file it is according to its header.
    pub file: FileName,
    /// The rest of its header; none if it has none that is whole.
    pub heading: Option<Heading>,
    /// CRC-32C of its first [`BEGINNING`] bytes.
    pub beginning: u32,
    /// Bytes that are whole.
    pub len: u64,
    /// Of these, without what seals the file.
    pub batches: u64,
    /// Whether they end in what seals it.
    pub is_sealed: bool,
    /// How far the log is with them.
    pub reached: Reached,
    /// The last batch of them, [`BatchName::NONE`] if there is none.
    pub last: BatchName,
}

/// Looks how much of the first `len` bytes of a file is whole: its header, and each batch with its index and the bytes of its
/// records. It reads all of them.
pub fn check(len: u64, read: &mut ReadAt<'_>) -> Result<Checked, DiskError> {
    let mut view = View { read, len, start: 0, bytes: Vec::new() };
    let beginning = view.show(0, FILE_HEADER)?;
    let Ok(header) = FileHeader::decode(beginning) else { return Ok(Checked::default()) };
    let FileHeader { segment, generation, first, as_of, .. } = header;
    let mut checked = Checked {
        file: FileName { segment, generation },
        heading: Some(header.heading()),
        beginning: crc32c::crc32c(beginning.get(..BEGINNING).unwrap_or_default()),
        len: FILE_HEADER as u64,
        batches: FILE_HEADER as u64,
        is_sealed: false,
        reached: Reached { end: first, sequence: as_of },
        last: BatchName::NONE,
    };
    let mut walk = Walk::new(FILE_HEADER as u64, len, header.framing());
    let mut need = 0;
    loop {
        let shown = view.show(walk.position(), need)?;
        let batch = match walk.step(shown) {
            Step::Need(bytes) => {
                need = bytes;
                continue;
            }
            Step::Batch(batch) => batch,
            Step::End | Step::Bad => return Ok(checked),
        };
        need = 0;
        let (BatchHeader { sequence, end, .. }, after) = (batch.header, batch.end());
        let term = batch.header.terms.map_or(0, |it| it.term);
        if !follows(&batch, &header, &checked) {
            return Ok(checked);
        }
        if batch.header.is_seal() {
            checked.reached.end = checked.reached.end.max(end);
            (checked.len, checked.is_sealed) = (after, true);
            return Ok(checked);
        }
        let mut bodies = Vec::new();
        let mut each = |at, len, crc| bodies.push((at, len, crc));
        let records = batch.records(&mut |record, place| {
            if record.elsewhere.is_none() {
                each(place, record.len as usize, record.crc);
            }
        });
        for (place, len, crc) in bodies {
            if view.show(place, len)?.get(..len).map(crc32c::crc32c) != Some(crc) {
                return Ok(checked);
            }
        }
        if records.is_err() {
            return Ok(checked);
        }
        (checked.len, checked.batches) = (after, after);
        checked.reached =
            checked.reached.max(Reached { end, sequence: sequence.saturating_add(1) });
        checked.last = BatchName { number: sequence, term };
    }
}

/// Whether a batch, or what seals the file, is what a log writes behind what is whole so far.
fn follows(batch: &Batch<'_>, file: &FileHeader, so_far: &Checked) -> bool {
    let BatchHeader { sequence, end, terms, .. } = batch.header;
    if batch.header.is_seal() {
        return true;
    }
    let expected = so_far.reached.sequence;
    let is_next = match terms {
        // Of a rewritten file some are not there, and their terms are several.
        _ if file.generation > 0 => so_far.last == BatchName::NONE || sequence > so_far.last.number,
        Some(terms) => sequence == expected && terms.term == file.term,
        None => sequence >= expected,
    };
    is_next && so_far.reached.end <= end && batch.check(so_far.reached.end).is_ok()
}

/// A file, read a piece at a time.
struct View<'a, 'r> {
    read: &'a mut ReadAt<'r>,
    len: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl View<'_, '_> {
    /// The file from `position` on: at least `need` bytes, if it has so many.
    fn show(&mut self, position: u64, need: usize) -> Result<&[u8], DiskError> {
        let skip = position.checked_sub(self.start).and_then(|it| usize::try_from(it).ok());
        let has = skip.and_then(|skip| self.bytes.len().checked_sub(skip)).unwrap_or(0);
        let left = usize::try_from(self.len.saturating_sub(position)).unwrap_or(usize::MAX);
        if has < need.min(left) || has == 0 {
            self.bytes.clear();
            self.bytes.resize(need.max(READ).min(left), 0);
            self.start = position;
            (self.read)(position, &mut self.bytes)?;
        }
        let skip = usize::try_from(position.saturating_sub(self.start)).unwrap_or(usize::MAX);
        Ok(self.bytes.get(skip..).unwrap_or_default())
    }
}
