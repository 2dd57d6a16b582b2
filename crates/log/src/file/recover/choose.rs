//! Which files count, and which are to go.

use std::collections::{BTreeSet, VecDeque};

use super::known::{Known, There};
use super::{ANOTHER, OpenError, TOO_LATE, damaged, on};
use crate::disk::{Disk, FileName, Stage};
use crate::file::format::{BatchHeader, FILE_HEADER, FileHeader, TERM_HEADER};

/// A file and its header.
#[derive(Clone, Debug)]
pub(super) struct File {
    pub(super) name: FileName,
    pub(super) len: u64,
    pub(super) header: FileHeader,
    /// Of its header.
    pub(super) beginning: u32,
    /// Bytes that were synced, at least.
    pub(super) safe: u64,
}

/// Which files count.
#[derive(Debug, Default)]
pub(super) struct Choice {
    pub(super) files: VecDeque<File>,
    pub(super) obsolete: Vec<FileName>,
    /// Files, with their lengths, that others go for, and that may not have been synced.
    pub(super) unsafe_files: Vec<(FileName, u64)>,
}

/// Finds which files count and which are to go.
pub(super) fn choose<D: Disk>(disk: &mut D, known: &Known) -> Result<Choice, OpenError> {
    let Choice { mut files, mut obsolete, .. } = Choice::default();
    let mut headless = Vec::new();
    let last_segment = known.there.last().map(|it| it.name.segment);
    // The newest first, so that a rewritten file is seen before those it stands for.
    for it in known.there.iter().rev() {
        let There { name, len, beginning, .. } = *it;
        let line = known.line(name);
        // Of no account is in which order these go, though a later one may have the releases of an earlier one's records: no start
        // reads a file of which the list says so, and the list says it of each, synced, before the first of them is removed.
        if line.is_some_and(|line| line.stage == Stage::Going) {
            obsolete.push(name);
            continue;
        }
        let Some(header) = &it.header else {
            // The header is synced before anything is written behind it.
            let is_begun = len <= FILE_HEADER as u64
                && name.generation == 0
                && line.is_none()
                && Some(name.segment) == last_segment;
            if is_begun {
                obsolete.push(name);
            } else if name.generation > 0 {
                headless.push(name);
            } else {
                return Err(damaged(name, 0, "this is not the header of a segment"));
            }
            continue;
        };
        if it.header().is_none() {
            return Err(damaged(name, 0, "the header is that of another file"));
        }
        if line.is_some_and(|line| line.beginning != beginning) {
            return Err(damaged(name, 0, ANOTHER));
        }
        let safe = line.map_or(0, |line| line.len);
        files.push_front(File { name, len, header: header.clone(), beginning, safe });
    }
    drop_rests(disk, &mut files, &mut obsolete)?;
    let unsafe_files = drop_superseded(disk, known, &mut files, &mut obsolete, headless)?;
    Ok(Choice { files, obsolete, unsafe_files })
}

/// Of a damaged file that is there as it was before, the rest that was saved of it is not needed. Its batches have the
/// file's mark: no rewritten file has that.
fn drop_rests<D: Disk>(
    disk: &mut D,
    files: &mut VecDeque<File>,
    obsolete: &mut Vec<FileName>,
) -> Result<(), OpenError> {
    let key = |file: &File| (file.name.segment, file.header.mark, file.name.generation);
    let mut whole = BTreeSet::new();
    for file in files.iter() {
        // A rest that was not written to its end is that of nothing.
        if file.name.generation == 0 || is_finished(disk, file)? {
            whole.insert(key(file));
        }
    }
    files.retain(|file| {
        let (segment, mark, generation) = key(file);
        let is_rest = whole.range((segment, mark, 0)..(segment, mark, generation)).next().is_some();
        if is_rest {
            obsolete.push(file.name);
        }
        !is_rest
    });
    Ok(())
}

/// Of a file and its rewritten form, only one counts. Gives the rewritten ones that do, with their lengths.
fn drop_superseded<D: Disk>(
    disk: &mut D,
    known: &Known,
    files: &mut VecDeque<File>,
    obsolete: &mut Vec<FileName>,
    headless: Vec<FileName>,
) -> Result<Vec<(FileName, u64)>, OpenError> {
    let (mut rewritten, mut count, mut unfinished) = (Vec::new(), Vec::new(), Vec::new());
    for file in files.iter().filter(|file| file.name.generation > 0) {
        if is_finished(disk, file)? {
            rewritten.push((file.name, file.header.through));
            count.push((file.name, file.len));
        } else {
            unfinished.push((file.name, file.len, "the end of the segment is missing"));
        }
    }
    let newer = |name: FileName| {
        rewritten.iter().filter(move |(newer, through)| {
            (newer.segment..=*through).contains(&name.segment) && name.generation < newer.generation
        })
    };
    let is_superseded = |name: FileName| newer(name).next().is_some();
    let headless =
        headless.into_iter().map(|name| (name, 0, "this is not the header of a segment"));
    for (name, position, what) in unfinished.into_iter().chain(headless) {
        // Rewriting was interrupted, if what it was made from is still there; unless its end was safe once: then
        // notes on what it was made from may be gone.
        let was_interrupted = has_earlier(files, name) && !known.is_sealed(name);
        if !was_interrupted && !is_superseded(name) {
            return Err(damaged(name, position, what));
        }
        obsolete.push(name);
    }
    for name in files.iter().map(|file| file.name).filter(|&name| is_superseded(name)) {
        // A list that has the newer one to its end has each older one that the log has not removed.
        let is_back =
            known.line(name).is_none() && newer(name).any(|(newer, _)| known.is_sealed(*newer));
        if is_back {
            return Err(damaged(name, 0, TOO_LATE));
        }
        if !obsolete.contains(&name) {
            obsolete.push(name);
        }
    }
    files.retain(|file| !obsolete.contains(&file.name));
    // Where nothing was left behind, the last process got as far as to sync them.
    count.retain(|(name, _)| !obsolete.is_empty() && !obsolete.contains(name));
    Ok(count)
}

/// Whether the file is there that this one was to be made from.
fn has_earlier(files: &VecDeque<File>, name: FileName) -> bool {
    let is_earlier =
        |it: &File| it.name.segment == name.segment && it.name.generation < name.generation;
    files.iter().any(is_earlier)
}

/// Whether a rewritten file was written to its end.
pub(super) fn is_finished<D: Disk>(disk: &mut D, file: &File) -> Result<bool, OpenError> {
    let framing = file.header.framing();
    let mut footer = [0; TERM_HEADER];
    let footer = footer.get_mut(..framing.header_len()).unwrap_or_default();
    let Some(position) = file.len.checked_sub(footer.len() as u64) else { return Ok(false) };
    on(file.name, disk.read_now(file.name, position, footer))?;
    let footer = BatchHeader::decode(footer, framing);
    Ok(footer.is_ok_and(|footer| footer.is_seal()))
}
