//! Going on without what is damaged: of a damaged file everything that is whole is copied to a new one.
//!
//! ```text
//!   before   [ header | batch | batch | ##### | batch | batch | seal ]   0000000000000007.0.seg
//!   after    [ header | batch | batch | batch | batch | seal ]           0000000000000007.1.seg
//!            and the file as it was                                      0000000000000007.0.seg.damaged
//! ```
//!
//! Batches are copied as they are, with the mark of the file, so a batch is there as a whole or lost as a
//! whole. Where the next one begins behind damage tells the mark, which no body can contain but by chance.
//!
//! What is lost with a batch is its records, and its notes: records that were released in it come back.
//!
//! A crash in between leaves the damaged file or the new one; the file as it was is kept before
//! anything else is done, and never removed.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::arithmetic_side_effects)]

use std::collections::BTreeSet;
use std::ops::Range;

use super::format::{
    BatchEntry, BatchHeader, FILE_HEADER, FileHeader, Framing, IndexReader, LISTED_SINCE,
};
use super::recover::{OpenError, Window, crcs, have_crcs, on};
use super::walk::{Step, Walk};
use crate::Holder;
use crate::disk::{Disk, FileName, Listed};

/// Bytes that are copied or searched at once.
const PIECE: usize = 256 << 10;

/// A file that was damaged, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The damaged file.
    pub file: FileName,
    /// Where in it damage was found first.
    pub position: u64,
    /// What was found there.
    pub what: &'static str,
    /// The name under which the file is kept as it was. None if it is not there.
    pub kept: Option<String>,
    /// The file that has what was whole. None if nothing was.
    pub rest: Option<FileName>,
    /// Bytes of the file that are not in the new one.
    pub lost_bytes: u64,
    /// Offsets that those bytes were about, so no more records than these are lost. None if it cannot be
    /// told.
    pub lost_records_max: Option<u64>,
    /// Who held the lost records, as far as can be read.
    pub holders: Vec<Holder>,
    /// Whether these are all.
    pub are_all_holders: bool,
}

/// What is known of a damaged file without its header.
struct Known {
    header: FileHeader,
    len: u64,
    /// No later file: what is not whole at its end may be a write that was interrupted.
    is_tail: bool,
    /// The first offset of the next file, or how far the log is known to have been.
    next_first: Option<u64>,
    /// Bytes that were synced, at least.
    safe: u64,
}

/// What was found in a damaged file.
#[derive(Default)]
struct Scan {
    whole: Vec<Range<u64>>,
    lost_bytes: u64,
    lost_records_max: Option<u64>,
    holders: BTreeSet<Holder>,
    are_all_holders: bool,
}

/// Puts the damaged file `name` aside, and what is whole of it into its place, as generation `unused`; unless nothing of
/// it is to be used.
pub(super) fn salvage<D: Disk>(
    disk: &mut D,
    (name, unused): (FileName, u64),
    (position, what): (u64, &'static str),
    is_useless: bool,
    was: Option<&Listed>,
) -> Result<Damage, OpenError> {
    let listed = disk.list().map_err(|error| OpenError::Disk { file: "the log".into(), error })?;
    let len = listed.iter().find(|(it, _)| *it == name).map_or(0, |(_, len)| *len);
    let known = if is_useless { None } else { known(disk, name, len, &listed, was)? };
    let safe = was.map_or(0, |was| was.len);
    let mut scan = Scan { are_all_holders: false, lost_bytes: len.max(safe), ..Scan::default() };
    if let Some(known) = &known {
        scan = scanned(disk, name, known)?;
    }
    let kept = on(name, disk.keep_aside(name))?;
    let rest = match &known {
        Some(known) if !scan.whole.is_empty() => {
            let new = FileName { segment: name.segment, generation: unused };
            let copied = copy(disk, name, new, &known.header, &scan.whole);
            if copied.is_err() {
                // A disk that was full is not to be fuller for the next try.
                let _ = disk.remove_now(new);
            }
            copied?;
            Some(new)
        }
        _ => None,
    };
    on(name, disk.remove_now(name))?;
    Ok(Damage {
        file: name,
        position,
        what,
        kept: Some(kept),
        rest,
        lost_bytes: scan.lost_bytes,
        lost_records_max: scan.lost_records_max,
        holders: scan.holders.into_iter().collect(),
        are_all_holders: scan.are_all_holders,
    })
}

/// Who held the records of a file, of what can be read of it, now or once. Nothing is changed.
pub(super) fn each_named<D: Disk>(
    disk: &mut D,
    name: FileName,
    was: Option<&Listed>,
    each: &mut dyn FnMut(Holder),
) -> Result<(), OpenError> {
    let listed = disk.list().map_err(|error| OpenError::Disk { file: "the log".into(), error })?;
    let len = listed.iter().find(|(it, _)| *it == name).map_or(0, |(_, len)| *len);
    let Some(known) = known(disk, name, len, &listed, was)? else { return Ok(()) };
    let whole = scanned(disk, name, &known)?.whole;
    let mut window = Window::new(disk, name, len);
    for Range { start, end } in whole {
        let mut walk = Walk::new(start, end, known.header.framing());
        let mut need = 0;
        while walk.position() < end {
            match walk.step(on(name, window.show(walk.position(), need))?) {
                Step::Need(bytes) => need = bytes,
                Step::Batch(batch) => {
                    need = 0;
                    // What is malformed is found by whoever takes the records.
                    let _ = batch.records(&mut |record, _| {
                        record.holders().for_each(|(holder, _)| each(holder));
                    });
                }
                Step::End | Step::Bad => break,
            }
        }
    }
    Ok(())
}

/// The header of a damaged file, or what it must have been. None if the file is not to be used at all.
fn known<D: Disk>(
    disk: &mut D,
    name: FileName,
    len: u64,
    listed: &[(FileName, u64)],
    was: Option<&Listed>,
) -> Result<Option<Known>, OpenError> {
    if len < FILE_HEADER as u64 {
        return Ok(None);
    }
    let mut window = Window::new(disk, name, len);
    let shown = on(name, window.show_most(0, PIECE))?;
    let header = match FileHeader::decode(shown) {
        Ok(header) if (header.segment, header.generation) == (name.segment, name.generation) => {
            Some(header)
        }
        Ok(_) => None,
        Err(_) => match was.and_then(|was| was.heading) {
            Some(heading) => Some(FileHeader {
                format: framing_of(shown, heading.mark).format(),
                term: first_of(shown, heading.mark).and_then(|it| it.terms).map_or(0, |it| it.term),
                writer: String::new(),
                segment: name.segment,
                through: heading.through,
                generation: name.generation,
                first: heading.first,
                as_of: heading.as_of,
                mark: heading.mark,
            }),
            None => guessed(name, shown, listed),
        },
    };
    let next = listed.iter().map(|(it, _)| *it).filter(|it| it.segment > name.segment).min();
    let mut next_first = was.map(|was| was.reached.end);
    if let Some(next) = next {
        let mut bytes = [0; FILE_HEADER];
        if disk.read_now(next, 0, &mut bytes).is_ok() {
            let first = FileHeader::decode(&bytes).ok().map(|header| header.first);
            next_first = first.or(next_first);
        }
    }
    let is_tail = next.is_none() && name.generation == 0;
    let safe = was.map_or(0, |was| was.len);
    Ok(header.map(|header| Known { header, len, is_tail, next_first, safe }))
}

/// The header that a file must have had whose first batch is whole. Only what begins where the first batch does counts:
/// a body may have anything in it that looks like one.
fn guessed(name: FileName, shown: &[u8], listed: &[(FileName, u64)]) -> Option<FileHeader> {
    let first = shown.get(FILE_HEADER..)?;
    let mark = first.first_chunk().copied().map(u64::from_le_bytes)?;
    let header = first_of(shown, mark)?;
    let next = listed.iter().map(|(it, _)| it.segment).filter(|it| *it > name.segment).min();
    let through = match next {
        Some(next) if name.generation > 0 => next.saturating_sub(1),
        _ => name.segment,
    };
    Some(FileHeader {
        // So that the list is not missed if there is none.
        format: match header.terms {
            None => LISTED_SINCE.saturating_sub(1),
            Some(_) => framing_of(shown, mark).format(),
        },
        term: header.terms.map_or(0, |it| it.term),
        writer: String::new(),
        segment: name.segment,
        through,
        generation: name.generation,
        first: header.first,
        // Notes are applied again: what they say is the same the second time.
        as_of: 0,
        mark,
    })
}

/// How the batches of a file stand in it whose header is not known, as far as its first batch tells.
fn framing_of(shown: &[u8], mark: u64) -> Framing {
    let has_terms = first_of(shown, mark).is_some_and(|first| first.terms.is_some());
    Framing { mark, has_terms }
}

/// The header of the first batch of a file, if that is whole.
fn first_of(shown: &[u8], mark: u64) -> Option<BatchHeader> {
    let bytes = shown.get(FILE_HEADER..)?;
    let read = |has_terms| BatchHeader::decode(bytes, Framing { mark, has_terms }).ok();
    read(false).or_else(|| read(true))
}

/// Finds every whole batch.
fn scanned<D: Disk>(disk: &mut D, name: FileName, known: &Known) -> Result<Scan, OpenError> {
    let Known { header, len, is_tail, next_first, safe } = known;
    let mut window = Window::new(disk, name, *len);
    let mut scan = Scan { are_all_holders: true, ..Scan::default() };
    let (mut position, mut need) = (FILE_HEADER as u64, 0);
    let (mut lost_from, mut end) = (None, header.first);
    let (mut gap, mut sequence, mut has_end) = (Some(0_u64), 0, false);
    // The first batch whose bodies are not whole, and that nothing says was safe: by its range.
    let mut torn: Option<(usize, u64)> = None;
    while position < *len {
        let shown = on(name, window.show(position, need))?;
        let mut walk = Walk::new(position, *len, header.framing());
        match walk.step(shown) {
            Step::Need(bytes) => {
                need = bytes;
                continue;
            }
            Step::Batch(batch) if batch.header.is_seal() => {
                let missing = batch.header.first.saturating_sub(end);
                gap = gap.map(|gap| gap.saturating_add(missing));
                scan.lose(&mut window, lost_from.take(), position, header.framing());
                (position, has_end) = (*len, true);
            }
            Step::Batch(batch) if batch.header.sequence >= sequence && batch.check(end).is_ok() => {
                torn = torn.filter(|(_, sequence)| batch.header.synced <= *sequence);
                sequence = batch.header.sequence.saturating_add(1);
                if lost_from.is_some() {
                    let missing = batch.header.first.saturating_sub(end);
                    gap = gap.map(|gap| gap.saturating_add(missing));
                }
                end = batch.header.end;
                let range = position..walk.position();
                position = range.end;
                let checksums = crcs(&batch);
                let may_be_torn = *is_tail && torn.is_none() && range.end > *safe;
                if may_be_torn && !on(name, have_crcs(&mut window, &checksums))? {
                    torn = Some((scan.whole.len(), sequence.saturating_sub(1)));
                }
                scan.lose(&mut window, lost_from.take(), range.start, header.framing());
                scan.whole.push(range);
            }
            _ => {
                lost_from.get_or_insert(position);
                position = next_mark(&mut window, name, position.saturating_add(1), header.mark)?;
            }
        }
        need = 0;
    }
    let is_short = *len < *safe;
    let is_lost = !is_tail
        || is_short
        || lost_from.is_some_and(|from| from < *safe)
        || was_safe(&mut window, name, lost_from, (header.framing(), sequence))?;
    if is_lost {
        scan.lose(&mut window, lost_from, *len, header.framing());
        scan.lost_bytes = scan.lost_bytes.saturating_add(safe.saturating_sub(*len));
        scan.are_all_holders &= !is_short;
    }
    if is_lost && !has_end {
        let missing = next_first.map(|first| first.saturating_sub(end));
        gap = gap.zip(missing).map(|(gap, missing)| gap.saturating_add(missing));
        scan.are_all_holders &= missing == Some(0);
    }
    if *is_tail {
        // As after a crash: an end that is not whole was not safe.
        let cut = torn.map_or(scan.whole.len(), |(index, _)| index);
        scan.whole.truncate(cut);
    }
    scan.lost_records_max = gap;
    Ok(scan)
}

/// Whether something behind the damage at the end of the newest file says that what was there was safe.
fn was_safe<D: Disk>(
    window: &mut Window<'_, D>,
    name: FileName,
    from: Option<u64>,
    (framing, sequence): (Framing, u64),
) -> Result<bool, OpenError> {
    let Some(from) = from else { return Ok(false) };
    Ok(on(name, window.synced_before(from, framing))? > sequence)
}

impl Scan {
    /// These bytes are lost. Looks who held records in them.
    fn lose<D: Disk>(
        &mut self,
        window: &mut Window<'_, D>,
        from: Option<u64>,
        end: u64,
        framing: Framing,
    ) {
        let Some(from) = from else { return };
        let len = end.saturating_sub(from);
        self.lost_bytes = self.lost_bytes.saturating_add(len);
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let Ok(shown) = window.show_most(from, len) else {
            self.are_all_holders = false;
            return;
        };
        let lost = shown.get(..len).unwrap_or(shown);
        // A batch begins where the damage does; others begin with the mark, if that is whole.
        let needle = framing.mark.to_le_bytes();
        let others = memchr::memmem::find_iter(lost, &needle).filter(|at| *at > 0);
        let mut covered = 0;
        for at in std::iter::once(0).chain(others) {
            let Some(bytes) = lost.get(at..) else { continue };
            let (is_sure, len) = self.guess_holders(bytes, framing.has_terms);
            let is_next = at == covered;
            covered = at.saturating_add(len);
            self.are_all_holders &= is_sure && is_next;
        }
        self.are_all_holders &= covered == lost.len();
    }

    /// Reads the index of a batch that is not whole. Tells whether it is what was written, and how
    /// long the batch is then.
    fn guess_holders(&mut self, bytes: &[u8], has_terms: bool) -> (bool, usize) {
        let Some(header) = BatchHeader::guess(bytes, has_terms) else { return (false, 0) };
        let rest = bytes.get(header.header_len()..).unwrap_or_default();
        let index_len = usize::try_from(header.index_len).unwrap_or(usize::MAX);
        let index = rest.get(..index_len).unwrap_or(rest);
        let is_index = index.len() == index_len && crc32c::crc32c(index) == header.index_crc;
        let mut entries = IndexReader::new(&header, index);
        let is_sure = loop {
            match entries.next() {
                Ok(Some(BatchEntry::Record(record))) => {
                    self.holders.extend(record.holders().map(|(holder, _)| holder));
                }
                Ok(Some(BatchEntry::Note(_))) => {}
                // It may be the number of records that is damaged.
                end => break is_index && matches!(end, Ok(None)),
            }
        };
        let len = header.len().and_then(|len| usize::try_from(len).ok());
        (is_sure, len.unwrap_or(usize::MAX))
    }
}

/// Where a batch may begin, from `position` on: the end of the file if nowhere.
fn next_mark<D: Disk>(
    window: &mut Window<'_, D>,
    name: FileName,
    mut position: u64,
    mark: u64,
) -> Result<u64, OpenError> {
    let needle = mark.to_le_bytes();
    let len = window.len();
    while position < len {
        let shown = on(name, window.show_most(position, PIECE))?;
        if let Some(at) = memchr::memmem::find(shown, &needle) {
            return Ok(position.saturating_add(at as u64));
        }
        let step = shown.len().saturating_sub(needle.len().saturating_sub(1)).max(1);
        position = position.saturating_add(step as u64);
    }
    Ok(len)
}

/// Writes the new file: header, what is whole, and the end.
fn copy<D: Disk>(
    disk: &mut D,
    name: FileName,
    new: FileName,
    header: &FileHeader,
    whole: &[Range<u64>],
) -> Result<(), OpenError> {
    let header = FileHeader { generation: new.generation, ..header.clone() };
    let mut bytes = Vec::with_capacity(PIECE);
    header.encode(&mut bytes);
    let mut written = 0_u64;
    let mut last = None;
    for range in whole {
        let mut position = range.start;
        while position < range.end {
            let left = usize::try_from(range.end.saturating_sub(position)).unwrap_or(PIECE);
            let start = bytes.len();
            bytes.resize(start.saturating_add(left.min(PIECE)), 0);
            let piece = bytes.get_mut(start..).unwrap_or_default();
            on(name, disk.read_now(name, position, piece))?;
            if position == range.start {
                last = BatchHeader::decode(piece, header.framing()).ok();
            }
            position = position.saturating_add(piece.len() as u64);
            if bytes.len() >= PIECE {
                on(new, disk.write_now(new, written, &bytes))?;
                written = written.saturating_add(bytes.len() as u64);
                bytes.clear();
            }
        }
    }
    let (sequence, end) =
        last.map_or((0, header.first), |last| (last.sequence.saturating_add(1), last.end));
    let terms = last.and_then(|last| last.terms);
    let next = BatchHeader { sequence, synced: sequence, first: end, terms, ..Default::default() };
    let seal = BatchHeader::seal_before(&next, header.framing().has_terms);
    bytes.extend_from_slice(&seal.encode(header.mark));
    on(new, disk.write_now(new, written, &bytes))?;
    written = written.saturating_add(bytes.len() as u64);
    // Makes it safe.
    on(new, disk.truncate_now(new, written))
}
