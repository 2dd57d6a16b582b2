//! Opening a log: from files to who holds what.
//!
//! Twice through the headers and indexes: once for what was released, once, in [`tell`], for the
//! heads of what was not. So memory is what the log needs anyway, however long the backlog.
//!
//! What may be wrong with files, and what follows:
//!
//! 1. The last file ends in something that is no whole batch, and nothing says that it ever was one:
//!    a write that a crash interrupted, of which nobody was told that it is safe. It is cut off.
//! 2. The same, and a later batch says that what came before it was synced; or it is not in the last
//!    file: what was promised is damaged. Opening is refused, with the place and what can be done.
//! 3. A later file of the same segments that was not finished is a rewriting that a crash
//!    interrupted. It goes, the earlier one is still whole. The other way around the earlier goes.
//! 4. The disk's list of files has one that is not there, or says that more of one was synced than is whole, or that it
//!    began with other bytes: as 2. A file that is to be removed according to it is not missed, and not read.
//! 5. A file that the list does not have, and in whose place it has a newer one: somebody put it back too late. As 2.
//! 6. The bytes of a record do not have their checksum. In the last file before a cut: as 1.
//!    Elsewhere it is found when the record is read.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::arithmetic_side_effects)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Store;
use super::cold::Held;
use super::format::{
    BATCH_HEADER, BatchHeader, Entry, FILE_HEADER, FileHeader, HeaderError, LISTED_SINCE,
    NoteEntry, NoteKind, RecordEntry,
};
use super::salvage::{self, Damage, salvage};
use super::segments::Segment;
use super::walk::{Batch, Step, Walk, is_begun, synced_before};
use crate::disk::{
    BEGINNING, Disk, DiskError, FileName, Floor, Heading, Lines, Listed, Reached, Roster, Stage,
};
use crate::{Holder, Offset, Recovered};

/// Bytes that are read at once when nothing asks for more.
const READ: usize = 256 << 10;

/// How far opening is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of files that have been passed.
    pub done: u64,
    /// Bytes of all files.
    pub total: u64,
}

/// What opening found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Files that are there now.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Records that somebody holds.
    pub records: u64,
    /// Bytes that were cut off the last file: a write that was interrupted.
    pub cut_bytes: u64,
    /// Bytes that were cut off the last file, and are of no write to it: of a file that this one was made of, or
    /// nobody knows of what.
    pub foreign_bytes: u64,
    /// Files that were removed: rewritings that were interrupted, or were finished.
    pub removed_files: u64,
    /// Files that were damaged or are missing, and what became of them.
    pub damaged: Vec<Damage>,
    /// What is wrong with the list of files, if it could not tell whether one is missing.
    pub list: Option<String>,
}

/// What to do about a file that is damaged where it was safe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDamage {
    /// Refuse to open the log, and change nothing.
    #[default]
    Refuse,
    /// Go on with what is whole, and keep the file aside.
    Aside,
}

/// Why the log could not be opened. Nothing was changed in its files.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The disk did not answer.
    #[error("{file}: {error}")]
    Disk {
        /// Which file, or the directory.
        file: String,
        /// What the disk said.
        error: DiskError,
    },
    /// Written by a later version.
    #[error(
        "{file} has format {format} and was written by {writer}; this version reads formats up to 3. \
         Start that version or a later one"
    )]
    Newer {
        /// Which file.
        file: FileName,
        /// Its format.
        format: u32,
        /// Who made it.
        writer: String,
    },
    /// Records that were safe are not.
    #[error(
        "{file} is damaged at byte {position}: {what}. Records that were confirmed may be lost from \
         there on. Restore the file from a copy; or, to go on without what it holds, move it away, \
         make the file `files` beside it empty, and start again"
    )]
    Damaged {
        /// Which file.
        file: FileName,
        /// Where in it.
        position: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// A file was taken away.
    #[error(
        "{file} is missing, which had {len} bytes. Records that were confirmed may be lost. Restore the file from a \
         copy; or, to go on without what it held, make the file `files` beside it empty, and start again"
    )]
    Missing {
        /// Which file.
        file: FileName,
        /// Bytes that it had, at least.
        len: u64,
    },
    /// What says which files there were is not whole.
    #[error(
        "the list of files, `files`, {what}: without it nobody can say whether a file is missing. Restore it from a \
         copy; or, to go on with the files that are there, make it empty, and start again"
    )]
    List {
        /// What is wrong with it.
        what: String,
    },
}

/// What the log goes on from.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) end: u64,
    pub(super) next_sequence: u64,
    pub(super) next_segment: u64,
    /// Segments of which files are kept aside, or word.
    pub(super) kept: BTreeSet<u64>,
    pub(super) report: Report,
}

/// A file and its header.
#[derive(Clone, Debug)]
struct File {
    name: FileName,
    len: u64,
    header: FileHeader,
    /// Of its header.
    beginning: u32,
    /// Bytes that were synced, at least.
    safe: u64,
}

/// A piece of a file.
pub(super) struct Window<'a, D> {
    disk: &'a mut D,
    file: FileName,
    len: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl<'a, D: Disk> Window<'a, D> {
    pub(super) fn new(disk: &'a mut D, file: FileName, len: u64) -> Self {
        Window { disk, file, len, start: 0, bytes: Vec::new() }
    }

    /// Bytes of the file.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// The file from `position` on: `most` bytes or more, or all that it has.
    pub(super) fn show_most(&mut self, position: u64, most: usize) -> Result<&[u8], DiskError> {
        let left = usize::try_from(self.len.saturating_sub(position)).unwrap_or(usize::MAX);
        self.show(position, most.min(left))
    }

    /// The file from `position` on: at least `need` bytes, if it has so many.
    pub(super) fn show(&mut self, position: u64, need: usize) -> Result<&[u8], DiskError> {
        let has = |bytes: &[u8], start: u64| {
            let offset = usize::try_from(position.checked_sub(start)?).ok()?;
            let left = bytes.len().checked_sub(offset)?;
            (left >= need).then_some(offset)
        };
        if has(&self.bytes, self.start).is_none() {
            let left = usize::try_from(self.len.saturating_sub(position)).unwrap_or(usize::MAX);
            self.bytes.clear();
            self.bytes.resize(need.max(READ).min(left), 0);
            self.start = position;
            self.disk.read_now(self.file, position, &mut self.bytes)?;
        }
        let offset = has(&self.bytes, self.start).unwrap_or(self.bytes.len());
        Ok(self.bytes.get(offset..).unwrap_or_default())
    }

    /// [`synced_before`] of the file from `position` on, which may be long.
    pub(super) fn synced_before(&mut self, mut position: u64, mark: u64) -> Result<u64, DiskError> {
        let mut synced = 0;
        while position < self.len {
            let shown = self.show_most(position, READ)?;
            synced = synced.max(synced_before(shown, mark));
            // A header may lie across the end of what is shown.
            let step = shown.len().saturating_sub(BATCH_HEADER) as u64;
            let is_end = position.saturating_add(shown.len() as u64) >= self.len;
            position = if is_end { self.len } else { position.saturating_add(step.max(1)) };
        }
        Ok(synced)
    }
}

/// A volatile record on disk: lost, unless a note says otherwise.
struct Lost {
    segment: u64,
    len: u32,
}

struct Recovery<'a> {
    store: Store,
    lost: BTreeMap<u64, Lost>,
    found: Found,
    progress: &'a mut dyn FnMut(Progress),
    passed: Progress,
}

/// What reading all files of a log came to. Nothing was changed.
pub(super) enum Inspected {
    /// All of it.
    Whole(Box<(Store, Found, Changes)>),
    /// Something is damaged, and it is to be gone on without it.
    Damaged,
}

/// What is to be done before the log is used: what it builds on is made safe, and what it does not need goes.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// The ends of files.
    ends: Vec<(FileName, u64)>,
    obsolete: Vec<FileName>,
    /// What the list is to say, once that is done.
    lines: Lines,
    is_list_needed: bool,
    /// There is one, or will be.
    has_list: bool,
}

impl Changes {
    /// Gives the highest generation of a file that could not be removed.
    pub(super) fn make<D: Disk>(self, disk: &mut D) -> Result<u64, OpenError> {
        let Self { ends, obsolete, lines, is_list_needed, has_list } = self;
        // First what is built on is made safe.
        for (name, len) in ends {
            on(name, disk.truncate_now(name, len))?;
        }
        // Then it may be said that it is, and before anything is missing what will be.
        let listed = disk.enlist(&lines, is_list_needed);
        listed.map_err(|error| OpenError::Disk { file: "the list of files".into(), error })?;
        let mut stuck = 0;
        for name in obsolete {
            match disk.remove_now(name) {
                // The list says that nothing of it is needed: no start reads it, and the next one tries again.
                Err(_) if has_list => stuck = name.generation.max(stuck),
                removed => on(name, removed)?,
            }
        }
        Ok(stuck)
    }
}

/// A file that is there.
#[derive(Clone, Debug)]
struct There {
    name: FileName,
    len: u64,
    /// What it begins with, if that is a header.
    header: Option<FileHeader>,
    /// The checksum of its first bytes.
    beginning: u32,
}

impl There {
    /// Whether it has the header that belongs to its name.
    fn header(&self) -> Option<&FileHeader> {
        let name = self.name;
        let is_it =
            |it: &&FileHeader| (it.segment, it.generation) == (name.segment, name.generation);
        self.header.as_ref().filter(is_it)
    }

    /// The last segment that it stands for.
    fn through(&self) -> u64 {
        self.header().map_or(self.name.segment, |header| header.through)
    }
}

/// What there is to know of a log's files before they are read.
struct Known {
    roster: Roster,
    /// Ascending.
    there: Vec<There>,
}

impl Known {
    fn of<D: Disk>(disk: &mut D) -> Result<Self, OpenError> {
        let roster = disk
            .roster()
            .map_err(|error| OpenError::Disk { file: "the list of files".into(), error })?;
        Ok(Self { roster, there: there(disk)? })
    }

    fn line(&self, name: FileName) -> Option<&Listed> {
        self.roster.listed().iter().find(|it| it.file == name)
    }

    /// Of the files that are needed.
    fn needed(&self) -> impl Iterator<Item = &Listed> {
        self.roster.listed().iter().filter(|it| it.stage != Stage::Going)
    }

    /// The line of a file that is to be removed.
    fn going(&self, file: FileName) -> Listed {
        let (beginning, reached) = (0, Reached::default());
        let none = Listed { file, len: 0, beginning, reached, heading: None, stage: Stage::Going };
        self.line(file).map_or(none, |line| Listed { stage: Stage::Going, ..*line })
    }

    /// Whether the list says that the end of this file was safe.
    fn is_sealed(&self, name: FileName) -> bool {
        self.line(name).is_some_and(|line| line.stage == Stage::Sealed)
    }

    /// Files that were there, and are not; nor is what they were made of or made to, which somebody put in their place.
    fn missing(&self) -> impl Iterator<Item = &Listed> {
        self.needed().filter(|line| !self.is_replaced(line))
    }

    /// Whether all segments of a file that is listed are there: in the file, in a later one, or in earlier ones.
    fn is_replaced(&self, line: &Listed) -> bool {
        let (first, last) = (line.file.segment, line.through());
        let is_later = |it: &There| {
            it.name == line.file
                || it.name.generation > line.file.generation
                    && it.name.segment <= first
                    && last <= it.through()
        };
        // The next segment that is not found yet.
        let mut wanted = first;
        for it in &self.there {
            if is_later(it) {
                return true;
            }
            if it.name.segment <= wanted {
                wanted = wanted.max(next(it.through()));
            }
        }
        wanted > last
    }

    /// A generation that no file of this segment has or had, as far as is known.
    fn unused_generation(&self, segment: u64) -> u64 {
        let there = self.there.iter().map(|it| it.name);
        let names = there.chain(self.roster.listed().iter().map(|it| it.file));
        let used = names.filter(|it| it.segment == segment).map(|it| it.generation);
        used.max().map_or(0, next)
    }

    /// How far the log is known to have been.
    fn floor(&self) -> Floor {
        let Floor { reached, segment } = self.roster.floor();
        let all = self.roster.listed();
        Floor {
            reached: all.iter().fold(reached, |most, it| most.max(it.reached)),
            segment: all.iter().map(|it| next(it.through())).fold(segment, u64::max),
        }
    }

    /// What is missing, as damage.
    fn lost(&self) -> Vec<Damage> {
        let first = |it: &Listed| {
            let earlier = self.roster.listed().iter();
            let earlier = earlier.filter(|other| other.file.segment < it.file.segment);
            let before = earlier.map(|other| other.reached.end).max().unwrap_or(0);
            it.heading.map_or(before, |heading| heading.first)
        };
        let lost = self.missing().map(|it| Damage {
            file: it.file,
            position: 0,
            what: "the file is missing",
            kept: None,
            rest: None,
            lost_bytes: it.len,
            lost_records_max: Some(it.reached.end.saturating_sub(first(it))),
            holders: Vec::new(),
            are_all_holders: false,
        });
        lost.collect()
    }

    /// A file in whose place an earlier one was put that does not go as far.
    fn cut_short(&self, enlisted: &[Listed], told: &[Damage]) -> Option<FileName> {
        self.needed().find_map(|line| {
            let range = line.file.segment..=line.through();
            let is_told = told.iter().any(|it| range.contains(&it.file.segment));
            let of_range = enlisted.iter().rfind(|it| range.contains(&it.file.segment))?;
            let is_short = of_range.file.generation < line.file.generation
                && of_range.reached.end < line.reached.end;
            (is_short && !is_told).then_some(of_range.file)
        })
    }
}

/// The files that are there. One of a later version is not damaged, whatever else is.
fn there<D: Disk>(disk: &mut D) -> Result<Vec<There>, OpenError> {
    let listed = disk.list().map_err(|error| OpenError::Disk { file: "the log".into(), error })?;
    let mut found = Vec::with_capacity(listed.len());
    for (name, len) in listed {
        let mut bytes = [0; FILE_HEADER];
        if len >= FILE_HEADER as u64 {
            on(name, disk.read_now(name, 0, &mut bytes))?;
        }
        let header = match FileHeader::decode(&bytes) {
            Err(HeaderError::Newer { format, writer }) => {
                return Err(OpenError::Newer { file: name, format, writer });
            }
            header => header.ok(),
        };
        let beginning = crc32c::crc32c(bytes.get(..BEGINNING).unwrap_or(&bytes));
        found.push(There { name, len, header, beginning });
    }
    found.sort_unstable_by_key(|it| it.name);
    Ok(found)
}

/// Reads all files, and changes nothing.
pub(super) fn inspect<D: Disk>(
    disk: &mut D,
    on_damage: OnDamage,
    progress: &mut dyn FnMut(Progress),
) -> Result<Inspected, OpenError> {
    let known = Known::of(disk)?;
    let is_lost = known.missing().next().is_some();
    if on_damage == OnDamage::Refuse {
        if let Roster::Damaged(_, what) = &known.roster {
            return Err(OpenError::List { what: what.clone() });
        }
        if let Some(lost) = known.missing().next() {
            return Err(OpenError::Missing { file: lost.file, len: lost.len });
        }
    }
    match read_all(disk, &known, &[], progress) {
        Err(OpenError::Damaged { .. }) if on_damage == OnDamage::Aside => Ok(Inspected::Damaged),
        Ok((_, Found { report: Report { list: Some(what), .. }, .. }, _))
            if on_damage == OnDamage::Refuse =>
        {
            Err(OpenError::List { what })
        }
        Ok(_) if is_lost => Ok(Inspected::Damaged),
        Ok(whole) => Ok(Inspected::Whole(Box::new(whole))),
        Err(error) => Err(error),
    }
}

/// Who held records of the files that [`repair`] would go on with, now or once. Nothing is changed.
pub(super) fn each_named<D: Disk>(
    disk: &mut D,
    each: &mut dyn FnMut(Holder),
) -> Result<(), OpenError> {
    let known = Known::of(disk)?;
    for it in &known.there {
        let line = known.line(it.name);
        let is_other = line.is_some_and(|line| {
            line.stage == Stage::Going || line.beginning != it.beginning && it.header.is_some()
        });
        let is_replaced = known.there.iter().any(|later| {
            let range = later.name.segment..=later.through();
            later.name.generation > it.name.generation && range.contains(&it.name.segment)
        });
        if !is_other && !is_replaced {
            salvage::each_named(disk, it.name, line, each)?;
        }
    }
    Ok(())
}

/// Puts damaged files aside, and goes on with what is whole.
pub(super) fn repair<D: Disk>(
    disk: &mut D,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Store, Found, Changes), OpenError> {
    let mut known = Known::of(disk)?;
    let mut damages = known.lost();
    for lost in &mut damages {
        on(lost.file, disk.keep_aside(lost.file))?;
    }
    loop {
        match read_all(disk, &known, &damages, progress) {
            Err(OpenError::Damaged { file, position, what }) => {
                // Each batch of it is whole, and it is not what a log writes all the same: nothing of it is used.
                let is_rest = damages.iter().any(|it| it.rest == Some(file));
                let is_useless = is_rest || [ANOTHER, TOO_LATE].contains(&what);
                let found = (position, what);
                let unused = known.unused_generation(file.segment);
                let was = known.line(file);
                let damage = salvage(disk, (file, unused), found, is_useless, was)?;
                damages.push(damage);
            }
            result => {
                let (store, mut found, changes) = result?;
                found.report.damaged = damages;
                return Ok((store, found, changes));
            }
        }
        known.there = there(disk)?;
    }
}

fn read_all<D: Disk>(
    disk: &mut D,
    known: &Known,
    told: &[Damage],
    progress: &mut dyn FnMut(Progress),
) -> Result<(Store, Found, Changes), OpenError> {
    let total = known.there.iter().map(|it| it.len).fold(0, u64::saturating_add);
    let mut recovery = Recovery {
        store: Store::default(),
        lost: BTreeMap::new(),
        found: Found::default(),
        progress,
        passed: Progress { done: 0, total },
    };
    let Choice { files, obsolete, unsafe_files } = choose(disk, known)?;
    for file in &obsolete {
        recovery.found.next_segment = recovery.found.next_segment.max(next(file.segment));
    }
    let count = files.len();
    let mut ends = unsafe_files;
    let mut enlisted = Vec::with_capacity(count);
    let is_list_needed = files.iter().any(|file| file.header.format >= LISTED_SINCE);
    for (index, file) in files.into_iter().enumerate() {
        let is_tail = next(index as u64) == count as u64 && file.name.generation == 0;
        ends.extend(recovery.file(disk, &file, is_tail)?);
        let Some(segment) = recovery.store.segments.all.back() else { continue };
        let FileHeader { through, first, as_of, mark, .. } = file.header;
        enlisted.push(Listed {
            file: file.name,
            len: segment.written,
            beginning: file.beginning,
            reached: Reached { end: recovery.found.end, sequence: recovery.found.next_sequence },
            heading: Some(Heading { through, first, as_of, mark }),
            stage: if segment.is_sealed { Stage::Sealed } else { Stage::Growing },
        });
    }
    if let Some(file) = known.cut_short(&enlisted, told) {
        let len = known.there.iter().find(|it| it.name == file).map_or(0, |it| it.len);
        return Err(damaged(file, len, "this is a copy of an earlier time, which ends too soon"));
    }
    let Recovery { mut store, mut found, .. } = recovery;
    let Store { segments, cold, .. } = &mut store;
    segments.stragglers.retain(|at, _| cold.get(*at).is_some());
    // What is gone was told of, and may come back: nothing else gets its names.
    let Floor { reached: Reached { end, sequence }, segment } = known.floor();
    found.end = found.end.max(end);
    found.next_sequence = found.next_sequence.max(sequence);
    found.next_segment = found.next_segment.max(segment);
    let reached = Reached { end: found.end, sequence: found.next_sequence };
    let floor = Floor { reached, segment: found.next_segment };
    let kept = disk.kept().map_err(|error| OpenError::Disk { file: "the log".into(), error })?;
    found.kept = kept.into_iter().map(|file| file.segment).collect();
    found.report.removed_files = obsolete.len() as u64;
    let segments = &store.segments.all;
    found.report.files = segments.len() as u64;
    found.report.bytes = store.segments.disk_bytes();
    found.report.records = segments.iter().map(|it| it.live).fold(0, u64::saturating_add);
    found.report.list = match &known.roster {
        Roster::None if is_list_needed => Some("is missing".to_owned()),
        Roster::Damaged(_, what) => Some(what.clone()),
        _ => None,
    };
    // They go after the list has said so.
    enlisted.extend(obsolete.iter().map(|&file| known.going(file)));
    let lines = Lines { files: enlisted, floor };
    let has_list = is_list_needed || known.roster != Roster::None;
    let changes = Changes { ends, obsolete, lines, is_list_needed, has_list };
    Ok((store, found, changes))
}

fn next(number: u64) -> u64 {
    number.saturating_add(1)
}

pub(super) fn on<T>(file: FileName, result: Result<T, DiskError>) -> Result<T, OpenError> {
    result.map_err(|error| OpenError::Disk { file: file.to_string(), error })
}

/// What is wrong with a file that has the name of one that was written, and not its beginning.
const ANOTHER: &str = "this is another file than was written under its name";

/// What is wrong with a file that somebody put back when another stood for its segment.
pub const TOO_LATE: &str = "a later file has its place";

fn damaged(file: FileName, position: u64, what: &'static str) -> OpenError {
    OpenError::Damaged { file, position, what }
}

/// Which files count.
#[derive(Debug, Default)]
struct Choice {
    files: VecDeque<File>,
    obsolete: Vec<FileName>,
    /// Files, with their lengths, that others go for, and that may not have been synced.
    unsafe_files: Vec<(FileName, u64)>,
}

/// Finds which files count and which are to go.
fn choose<D: Disk>(disk: &mut D, known: &Known) -> Result<Choice, OpenError> {
    let Choice { mut files, mut obsolete, .. } = Choice::default();
    let mut headless = Vec::new();
    let last_segment = known.there.last().map(|it| it.name.segment);
    // The newest first, so that a rewritten file is seen before those it stands for.
    for it in known.there.iter().rev() {
        let There { name, len, beginning, .. } = *it;
        let line = known.line(name);
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
fn is_finished<D: Disk>(disk: &mut D, file: &File) -> Result<bool, OpenError> {
    let mut footer = [0; BATCH_HEADER];
    let Some(position) = file.len.checked_sub(BATCH_HEADER as u64) else { return Ok(false) };
    on(file.name, disk.read_now(file.name, position, &mut footer))?;
    let footer = BatchHeader::decode(&footer, file.header.mark);
    Ok(footer.is_ok_and(|footer| footer.is_sealed))
}

impl Recovery<'_> {
    /// Reads one file. If it is the tail, tells where it is to be cut, or made safe if it is whole: the
    /// next file is begun as if it were.
    fn file<D: Disk>(
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

    fn batch(&mut self, batch: &Batch<'_>) -> Result<(), super::format::Malformed> {
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
                result = Err(super::format::Malformed);
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
        let Store { segments, sets, cold, marks, elsewhere, seen } = &mut self.store;
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

/// Places, lengths and checksums of a batch's records.
pub(super) fn crcs(batch: &Batch<'_>) -> Vec<(u64, u32, u32)> {
    let mut crcs = Vec::new();
    // What is malformed is found by whoever takes the records.
    let _ = batch.records(&mut |record, place| {
        if record.elsewhere.is_none() {
            crcs.push((place, record.len, record.crc));
        }
    });
    crcs
}

/// Whether all records are what they were.
pub(super) fn have_crcs<D: Disk>(
    window: &mut Window<'_, D>,
    crcs: &[(u64, u32, u32)],
) -> Result<bool, DiskError> {
    for &(place, len, crc) in crcs {
        let len = len as usize;
        let shown = window.show(place, len)?;
        if shown.get(..len).map(crc32c::crc32c) != Some(crc) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Tells of every record that is held, in the order of offsets, and gives their bytes together.
pub(super) fn tell<D: Disk>(
    disk: &mut D,
    store: &mut Store,
    each: &mut dyn FnMut(Recovered<'_>),
) -> Result<u64, OpenError> {
    let Store { segments, sets, cold, marks, .. } = store;
    let mut live_bytes = 0_u64;
    let mut holders = Vec::new();
    let mut tell_one = |at: u64, head: &[u8]| {
        let Some(held) = cold.get(at) else { return };
        let marks = marks.get(&at);
        holders.clear();
        sets.each(held.set, |name| {
            let found = marks.into_iter().flatten().find(|(it, _)| *it == name);
            holders.push((name, found.map_or(0, |(_, mark)| *mark)));
        });
        each(Recovered { at: Offset::new(at), head, holders: &holders });
    };
    // Stragglers are few; their heads wait until it is their turn.
    let mut heads = BTreeMap::<u64, Vec<u8>>::new();
    for pass in [Pass::Stragglers, Pass::InOrder] {
        for segment in &mut segments.all {
            if pass == Pass::Stragglers
                && !segments
                    .stragglers
                    .values()
                    .any(|(number, _)| (segment.file.segment..=segment.through).contains(number))
            {
                continue;
            }
            let mut bytes = 0_u64;
            let mut failed = None;
            walk_all(disk, segment, &mut |batch| {
                let told = batch.records(&mut |record, _| {
                    let is_here = cold.get(record.at).is_some();
                    let is_straggler = record.at < batch.header.first;
                    if is_here {
                        bytes = bytes.saturating_add(u64::from(record.stored_len()));
                    }
                    match pass {
                        Pass::Stragglers if is_straggler && is_here => {
                            heads.insert(record.at, record.head.to_vec());
                        }
                        Pass::InOrder if !is_straggler => {
                            while let Some(first) = heads.first_entry()
                                && *first.key() < record.at
                            {
                                let (at, head) = first.remove_entry();
                                tell_one(at, &head);
                            }
                            tell_one(record.at, record.head);
                        }
                        _ => {}
                    }
                });
                if told.is_err() {
                    failed = Some(batch.position);
                }
            })?;
            if let Some(position) = failed {
                let what = "the index of a batch is not readable";
                return Err(damaged(segment.file, position, what));
            }
            if pass == Pass::InOrder {
                segment.live_bytes = bytes;
                live_bytes = live_bytes.saturating_add(bytes);
            }
        }
    }
    heads.into_iter().for_each(|(at, head)| tell_one(at, &head));
    Ok(live_bytes)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    Stragglers,
    InOrder,
}

/// Calls `each` for every batch of a segment that was opened.
fn walk_all<D: Disk>(
    disk: &mut D,
    segment: &Segment,
    each: &mut dyn FnMut(&Batch<'_>),
) -> Result<(), OpenError> {
    let name = segment.file;
    let len = segment.written;
    let mut window = Window::new(disk, name, len);
    let mut walk = Walk::new(FILE_HEADER as u64, len, segment.mark);
    let mut need = 0;
    loop {
        let position = walk.position();
        let shown = on(name, window.show(position, need))?;
        match walk.step(shown) {
            Step::Need(bytes) => need = bytes,
            Step::Batch(batch) => {
                need = 0;
                each(&batch);
            }
            Step::End => return Ok(()),
            Step::Bad => return Err(damaged(name, position, "this is not a whole batch")),
        }
    }
}
