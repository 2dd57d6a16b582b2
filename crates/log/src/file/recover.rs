//! Opening a log: from files to who holds what.
//!
//! Once through the headers and indexes, or digests, for the table of holders. With it who asks for that knows what a holder
//! has; the heads of what is held are read when they are asked for, in [`tell`](mod@tell).
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
//!
//! | part | in |
//! |---|---|
//! | the files and the list of them | [`known`] |
//! | which files count | [`choose`] |
//! | what is in each, for the table of holders | [`reading`], [`table`](super::table) |
//! | a file, read a piece at a time | [`window`] |
//! | what holders have, in sums | [`count`](mod@count) |
//! | the heads of what is held | [`tell`](mod@tell) |

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::arithmetic_side_effects)]

mod choose;
mod count;
mod known;
mod reading;
mod tell;
mod window;

use std::collections::BTreeSet;
use std::iter::once;

use super::digest::Digest;
use super::follow::{OtherBatch, Tail};
use super::format::LISTED_SINCE;
use super::salvage::{self, Damage, salvage};
use super::table::Table;
use super::{Options, Store};
use crate::Holder;
use crate::disk::{
    Disk, DiskError, FileName, Floor, Listed, Point, Reached, Roster, RosterLines, Stage,
};
use choose::{Choice, File, choose, is_finished};
use known::{Known, there};
use reading::Recovery;

pub(super) use count::count;
pub(super) use tell::Again;
pub(super) use window::{Window, crcs, have_crcs};

/// How far opening is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of these files that have been passed.
    pub done: u64,
    /// Bytes of all files that count.
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
    /// Files of which only the digest was read.
    pub digests: u64,
    /// Bytes that were cut off the last file: a write that was interrupted.
    pub cut_bytes: u64,
    /// Bytes of files that were cut off since others had not agreed to them: see `Options::until`.
    pub unagreed_bytes: u64,
    /// Bytes that were cut off the last file, and are of no write to it: of a file that this one was made of, or
    /// nobody knows of what.
    pub foreign_bytes: u64,
    /// Files that were removed: rewritings that were interrupted, or were finished.
    pub removed_files: u64,
    /// Files that were damaged or are missing, and what became of them.
    pub damaged: Vec<Damage>,
    /// What is wrong with the list of files, if it could not tell whether one is missing.
    pub list: Option<String>,
    /// There is none since it found no room on the disk: see [`Roster::GivenUp`].
    pub is_list_given_up: bool,
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
    /// A later version wrote the file.
    #[error(
        "{file} has format {format} and was written by {writer}; this version reads formats up to 4. \
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
    /// Others agreed to more than is there: see `Options::until`.
    #[error(
        "the log ends at record {} and batch {}, and others agreed to what comes before record {} and batch {}: what is \
         missing has to come from them",
        end.end, end.sequence, until.end, until.sequence
    )]
    Short {
        /// Where it ends.
        end: Reached,
        /// Up to where all was to be there.
        until: Reached,
    },
    /// Others agreed to another batch than the log has: see `Options::follows`.
    #[error("{0}")]
    Other(OtherBatch),
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
    pub(super) reached: Reached,
    /// Of the last batch; 0 if it has none.
    pub(super) last_term: u64,
    pub(super) next_segment: u64,
    /// Segments of which files are kept aside, or word.
    pub(super) kept: BTreeSet<u64>,
    pub(super) report: Report,
    /// Of a follower: what the table knows besides, and what is not in it.
    pub(super) followed: Option<(Table, Tail)>,
    /// What the list of files has.
    pub(super) point: Option<Point>,
}

/// What reading all files of a log came to. Nothing was changed.
pub(super) enum Inspected {
    /// All of it.
    Whole(Box<(Store, Found, Changes)>),
    /// Something is damaged or missing, and it is to be gone on without it.
    Damaged(OpenError),
}

/// What is to be done before the log is used: what it builds on is made safe, and what it does not need goes.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// The ends of files.
    ends: Vec<(FileName, u64)>,
    /// Where the last file is cut that has something others agreed to.
    cut: Option<(FileName, u64)>,
    /// In the order in which they are to go.
    obsolete: Vec<FileName>,
    /// What the list is to say, once that is done.
    lines: RosterLines,
    is_list_needed: bool,
    /// There is one, or will be.
    has_list: bool,
    /// The files whose digests are of use, if there are digests.
    digested: Option<Vec<FileName>>,
}

impl Changes {
    /// Gives the files that could not be removed.
    pub(super) fn make<D: Disk>(self, disk: &mut D) -> Result<Vec<FileName>, OpenError> {
        let Self { ends, cut, obsolete, lines, is_list_needed, has_list, digested } = self;
        if let Some(digested) = digested {
            disk.keep_digests(&digested);
        }
        // First what is built on is made safe.
        for (name, len) in ends {
            on(name, disk.truncate_now(name, len))?;
        }
        // Then it may be said that it is, and before anything is missing what will be.
        let listed = disk.enlist(&lines, is_list_needed);
        listed.map_err(|error| OpenError::Disk { file: "the list of files".into(), error })?;
        // What it does not miss any more can go.
        if let Some((name, len)) = cut {
            on(name, disk.truncate_now(name, len))?;
        }
        let mut stuck = Vec::new();
        for name in obsolete {
            match disk.remove_now(name) {
                // The list says that nothing of it is needed: no start reads it.
                Err(_) if has_list => stuck.push(name),
                removed => on(name, removed)?,
            }
        }
        Ok(stuck)
    }
}

/// Reads all files, and changes nothing.
pub(super) fn inspect<D: Disk>(
    disk: &mut D,
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<Inspected, OpenError> {
    let on_damage = options.on_damage;
    let known = Known::of(disk)?;
    let lost = known.missing().next().map(|it| OpenError::Missing { file: it.file, len: it.len });
    if on_damage == OnDamage::Refuse {
        if let Some(what) = known.roster.fault() {
            return Err(OpenError::List { what: what.to_owned() });
        }
        if let Some(lost) = lost {
            return Err(lost);
        }
    }
    let uses_digests = options.digests && on_damage == OnDamage::Aside;
    let read = match read_all(disk, &known, &[], (options, uses_digests), progress) {
        // The files themselves are asked: a digest may be what is wrong.
        Err(OpenError::Damaged { .. }) if uses_digests => {
            read_all(disk, &known, &[], (options, false), progress)
        }
        read => read,
    };
    match read {
        Err(why @ OpenError::Damaged { .. }) if on_damage == OnDamage::Aside => {
            Ok(Inspected::Damaged(why))
        }
        Ok((_, Found { report: Report { list: Some(what), .. }, .. }, _))
            if on_damage == OnDamage::Refuse =>
        {
            Err(OpenError::List { what })
        }
        Ok((store, found, mut changes)) => match lost {
            Some(lost) => Ok(Inspected::Damaged(lost)),
            None => {
                changes.digested = options.digests.then(|| store.segments.digested());
                Ok(Inspected::Whole(Box::new((store, found, changes))))
            }
        },
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
    options: &Options,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Store, Found, Changes), OpenError> {
    let mut known = Known::of(disk)?;
    let mut damages = known.lost();
    for lost in &mut damages {
        on(lost.file, disk.keep_aside(lost.file))?;
    }
    loop {
        match read_all(disk, &known, &damages, (options, false), progress) {
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
    (options, uses_digests): (&Options, bool),
    progress: &mut dyn FnMut(Progress),
) -> Result<(Store, Found, Changes), OpenError> {
    let until = options.until;
    let mut recovery = Recovery {
        table: Table::new(options.weigh),
        report: Report::default(),
        reached: Reached::default(),
        last_term: 0,
        last: None,
        terms: None,
        tail: options.follows.map(|told| {
            let point = known.roster.point().map_or(0, |it| it.at.number);
            Tail::new(told, point)
        }),
        until,
        cut: None,
        progress,
        passed: Progress::default(),
    };
    let Choice { mut files, obsolete, unsafe_files } = choose(disk, known)?;
    // The last one goes first: whatever a crash leaves is a log.
    let mut unagreed = Vec::new();
    while let Some(file) = files.pop_back_if(|file| is_behind(file, until)) {
        recovery.goes(&file);
        unagreed.push(file.name);
    }
    for file in &obsolete {
        recovery.table.next_segment = recovery.table.next_segment.max(next(file.segment));
    }
    recovery.passed.total = files.iter().map(|it| it.len).fold(0, u64::saturating_add);
    let count = files.len();
    let mut ends = unsafe_files;
    let mut enlisted = Vec::with_capacity(count);
    let is_list_needed = files.iter().any(|file| file.header.format >= LISTED_SINCE);
    let mut files = files.into_iter().enumerate();
    while let Some((index, file)) = files.next() {
        recovery.terms = None;
        if file.header.framing().has_terms && file.name.generation == 0 {
            recovery.terms = recovery.terms(disk, &file)?;
            if recovery.terms.is_none() {
                // What was cut off once, or was to be.
                let behind: Vec<_> = once(file).chain(files.map(|(_, it)| it)).collect();
                for file in behind.iter().rev() {
                    recovery.goes(file);
                    unagreed.push(file.name);
                }
                break;
            }
        }
        let is_tail = next(index as u64) == count as u64 && file.name.generation == 0;
        let end = recovery.passed.done.saturating_add(file.len);
        match digest_of(disk, &file, uses_digests && !is_tail)? {
            Some(digest) => recovery.digested(&file, digest)?,
            None => ends.extend(recovery.file(disk, &file, is_tail)?),
        }
        recovery.pass_to(end);
        let Some(last) = recovery.last else { continue };
        enlisted.push(Listed {
            file: file.name,
            len: last.len,
            beginning: file.beginning,
            reached: recovery.reached,
            heading: Some(file.header.heading()),
            stage: if last.is_sealed { Stage::Sealed } else { Stage::Growing },
        });
    }
    if let Some(file) = known.cut_short(&enlisted, told) {
        let len = known.there.iter().find(|it| it.name == file).map_or(0, |it| it.len);
        return Err(damaged(file, len, "this is a copy of an earlier time, which ends too soon"));
    }
    let Recovery { mut table, mut report, mut cut, last_term, tail, reached: mut found, .. } =
        recovery;
    if let Some(other) = tail.as_ref().and_then(Tail::other) {
        return Err(OpenError::Other(other));
    }
    let mut store = std::mem::take(&mut table.store);
    let next_segment = table.next_segment;
    let followed = tail.map(|mut tail| {
        // Nothing that is to have a next file or a next batch stays without it: that may be in another place.
        let applied = store.segments.all.back().map(|it| it.file);
        for (file, len) in tail.trim(found.sequence, last_term, applied) {
            let line = enlisted.iter_mut().find(|line| line.file == file);
            match (line, len) {
                (Some(line), Some(len)) => {
                    (line.len, line.stage) = (len, Stage::Growing);
                    line.reached = tail.reached(table.reached);
                    cut = Some((file, len));
                }
                _ => {
                    enlisted.retain(|line| line.file != file);
                    ends.retain(|(it, _)| *it != file);
                    unagreed.push(file);
                }
            }
        }
        if let Some(point) = options.begins_behind.filter(|_| store.segments.all.is_empty()) {
            table.reached = tail.begin_behind(point).unwrap_or(table.reached);
        }
        found = tail.reached(table.reached).max(table.reached);
        (table, tail)
    });
    if followed.is_none() {
        forget_gone(&mut store);
    }
    // What is gone was told of, and may come back: nothing else gets its names.
    let Floor { reached: floor, segment } = known.floor();
    // But the names of what others have not agreed to are free.
    if let Some(until) = until {
        let end = found.max(floor);
        if end.end < until.end || end.sequence < until.sequence {
            return Err(OpenError::Short { end, until });
        }
    }
    // And where batches have terms each follows on the one that is there, whatever became of others.
    let used = if last_term > 0 || followed.is_some() { found } else { floor };
    let reached = found.max(until.unwrap_or(used));
    let next_segment = next_segment.max(segment);
    let floor = Floor { reached, segment: next_segment };
    let kept = disk.kept().map_err(|error| OpenError::Disk { file: "the log".into(), error })?;
    let kept = kept.into_iter().map(|file| file.segment).collect();
    report.removed_files = obsolete.len().saturating_add(unagreed.len()) as u64;
    let segments = &store.segments.all;
    report.files = enlisted.len() as u64;
    report.bytes = enlisted.iter().map(|it| it.len).fold(0, u64::saturating_add);
    report.records = segments.iter().map(|it| it.live).fold(0, u64::saturating_add);
    report.list = match &known.roster {
        Roster::None if is_list_needed => Some("is missing".to_owned()),
        roster => roster.fault().map(str::to_owned),
    };
    report.is_list_given_up = known.roster == Roster::GivenUp;
    // They go after the list has said so.
    enlisted.extend(unagreed.iter().map(|&file| Listed { reached, ..known.going(file) }));
    enlisted.extend(obsolete.iter().map(|&file| known.going(file)));
    let obsolete = unagreed.into_iter().chain(obsolete).collect();
    let point = known.roster.point().cloned();
    let lines = RosterLines { files: enlisted, floor, point: point.clone() };
    let has_list = is_list_needed || known.roster != Roster::None;
    let changes = Changes { ends, cut, obsolete, lines, is_list_needed, has_list, digested: None };
    let found = Found { reached, last_term, next_segment, kept, report, followed, point };
    Ok((store, found, changes))
}

/// Forgets where stragglers are that nobody holds, and volatile records: they are lost.
pub(super) fn forget_gone(store: &mut Store) {
    let Store { segments, cold, heads, .. } = store;
    segments.all.iter_mut().for_each(|segment| segment.lost = 0);
    segments.stragglers.retain(|at, _| cold.get(*at).is_some());
    heads.retain(|at, _| cold.get(*at).is_some());
}

/// Whether a file has nothing that others agreed to. What was rewritten has nothing else.
fn is_behind(file: &File, until: Option<Reached>) -> bool {
    file.name.generation == 0 && until.is_some_and(|until| file.header.as_of >= until.sequence)
}

/// The digest that counts instead of a file.
fn digest_of<D: Disk>(
    disk: &mut D,
    file: &File,
    is_wanted: bool,
) -> Result<Option<Digest>, OpenError> {
    if !is_wanted || !is_finished(disk, file)? {
        return Ok(None);
    }
    let bytes = disk.digest(file.name).unwrap_or_default();
    Ok(Digest::read(bytes, file.name, file.header.heading(), file.len))
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
