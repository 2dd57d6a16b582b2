//! The list of a log's files: `files`, beside them. See [`Disk::roster`](leveret_log::disk::Disk::roster), and
//! `docs/formats/segment.md` for its bytes.
//!
//! A line of a file is written over in place, so that nothing has to be made for it: after each sync of the file with how
//! long it is now, which is a write of 128 bytes to memory of the system's and no sync; and before the file is removed, to
//! say that it is going, which is one. So after a kill the list knows each byte that was safe. After a power cut it knows what it knew when it was
//! synced last: when a file was begun or removed, and a second after it was written to; never more than was true.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_log::BatchName;
use leveret_log::disk::{
    DiskError, FileName, Floor, Heading, Listed, Point, Reached, Roster, RosterLines, Stage,
};

use super::{not_written, sync_dir};

/// Its name.
const NAME: &str = "files";

/// The name of one that was given up.
const LOST: &str = "files.lost";

const LINE: usize = 128;
const MAGIC: &[u8; 8] = b"LVRTLIST";
const FORMAT: u32 = 2;

/// With a point: programs that know of none refuse the list.
const FORMAT_WITH_POINT: u32 = 3;

/// Bytes of who is a member in a line of the point.
const PART: usize = 64;

/// Lines of each of both copies of a point, at least.
const PARTS_MIN: usize = 4;

/// Bytes of a line in format 1, which had less of each file.
const LINE_1: usize = 64;

/// How long it is not synced after it was written to, while its log goes on writing.
const BEHIND: Duration = Duration::from_secs(1);

/// Lines that are made at once: a page, less the first line of the first one.
const PAGE: usize = 32;

/// How far the log of names is, for those whose messages are of queues that it names: its next batch.
pub(crate) type NamesReached = Arc<AtomicU64>;

/// Who says how far the names are, and who keeps it.
#[derive(Clone, Debug)]
pub(crate) enum Names {
    /// This log is that of names.
    Own(NamesReached),
    /// The log of names is another.
    Other(NamesReached),
}

/// The list of one directory.
#[derive(Debug)]
pub(super) struct List {
    dir: PathBuf,
    names: Names,
    /// None if there is no list.
    file: Option<File>,
    /// By line, the first of the file and those of the point not counted.
    lines: Vec<Option<Listed>>,
    /// The point, and how often it was moved.
    point: Option<(Point, u64)>,
    /// Lines that the file has for each of both copies of it.
    parts: usize,
    /// Files that have come, and do not have their names yet.
    arriving: Vec<FileName>,
    by_name: HashMap<FileName, usize, FixedState>,
    floor: Floor,
    /// The number of the last start of the node, as far as this list was told. 0: none.
    start: u64,
    /// Since when something in it may not survive a power cut.
    dirty_since: Option<Instant>,
    /// A file was begun that may be missed after a power cut only once the list is synced.
    has_begun: bool,
    /// There was no room for it, so there is none until there is.
    is_given_up: bool,
    /// Why nobody knows any more what is in it.
    failed: Option<DiskError>,
}

/// What stands in a list.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) roster: Roster,
    /// How far the log of names was when the list was written to last.
    pub(super) names: u64,
    /// The number of the last start that wrote it. 0: an older version did, or nobody.
    pub(super) start: u64,
    /// It is a file of no bytes.
    pub(super) is_empty: bool,
}

impl List {
    /// Nothing is known yet.
    pub(super) fn new(dir: &Path, names: Names) -> Self {
        let (lines, by_name) = (Vec::new(), HashMap::default());
        let (dir, floor) = (dir.to_owned(), Floor::default());
        Self {
            dir,
            names,
            file: None,
            lines,
            by_name,
            point: None,
            parts: 0,
            arriving: Vec::new(),
            floor,
            start: 0,
            dirty_since: None,
            has_begun: false,
            is_given_up: false,
            failed: None,
        }
    }

    /// Reads the list of a directory.
    ///
    /// # Errors
    ///
    /// It cannot be read; or a later version wrote it, which is no damage: nobody here knows what it says.
    pub(super) fn read(dir: &Path) -> std::io::Result<Found> {
        let bytes = match std::fs::read(dir.join(NAME)) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let roster = match dir.join(LOST).try_exists()? {
                    true => Roster::GivenUp,
                    false => Roster::None,
                };
                return Ok(Found { roster, names: 0, start: 0, is_empty: false });
            }
            read => read?,
        };
        let parsed = parse(&bytes);
        if parsed.is_of_later_version {
            let why =
                format!("its list of files, {NAME}, was written by a later version of Leveret");
            return Err(std::io::Error::new(ErrorKind::Unsupported, why));
        }
        Ok(Found { is_empty: bytes.is_empty(), ..parsed.found() })
    }

    /// Gives files that have come their names, if the list has some: nothing is read before. What an interrupted try did need not be
    /// done again. The list says it no more once the log is open: until then nothing can come under these names.
    pub(super) fn finish_install(dir: &Path) -> std::io::Result<()> {
        let bytes = match std::fs::read(dir.join(NAME)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            read => read?,
        };
        let arriving = parse(&bytes).arriving;
        if arriving.is_empty() {
            return Ok(());
        }
        for file in arriving {
            match std::fs::rename(dir.join(file.coming()), dir.join(file.to_string())) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                renamed => renamed?,
            }
        }
        sync_dir(dir)
    }

    /// The list is another from now on, by one change: these are its files, of which `arriving` have come and get their names later.
    /// All others of `there` are going.
    pub(super) fn install(
        &mut self,
        lines: RosterLines,
        arriving: Vec<FileName>,
        there: &[FileName],
    ) -> Result<(), DiskError> {
        self.check()?;
        let RosterLines { files, floor, point } = lines;
        let mut new = Self::new(&self.dir, self.names.clone());
        let moved = self.point.as_ref().map_or(0, |(_, moved)| moved + 1);
        new.point = point.map(|point| (point, moved));
        (new.floor, new.start, new.arriving) = (floor, self.start, arriving);
        new.lines = files.iter().copied().map(Some).collect();
        let (beginning, reached, stage) = (0, Reached::default(), Stage::Going);
        let going = there.iter().filter(|it| !files.iter().any(|line| line.file == **it)).copied();
        let going = going
            .map(|file| Some(Listed { file, len: 0, beginning, reached, heading: None, stage }));
        new.lines.extend(going);
        new.write_anew().map_err(|error| match not_written(&error) {
            DiskError::Full => DiskError::Full,
            _ => self.fail(&error),
        })?;
        *self = new;
        Ok(())
    }

    /// The list of a log that has nothing any more goes, for good.
    pub(super) fn forget(dir: &Path) -> std::io::Result<()> {
        for name in [NAME, LOST] {
            match std::fs::remove_file(dir.join(name)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        sync_dir(dir)
    }

    /// These are the files: the list says so if there is one, or if there has to be.
    pub(super) fn enlist(&mut self, lines: &RosterLines, is_needed: bool) -> std::io::Result<()> {
        let RosterLines { files, floor, point } = lines;
        self.floor = *floor;
        self.arriving.clear();
        let path = self.dir.join(NAME);
        let bytes = std::fs::read(&path).ok();
        let was = bytes.as_deref().map(parse).filter(|was| was.is_usable());
        // The point stays where it is.
        let was = was.filter(|was| was.point.as_ref().map(|(point, _)| point) == point.as_ref());
        let moved = was.as_ref().and_then(|was| was.point.as_ref()).map_or(0, |(_, moved)| *moved);
        self.point = point.clone().map(|point| (point, moved));
        self.parts = was.as_ref().map_or(0, |was| was.parts);
        self.start = was.as_ref().map_or(0, |was| was.start).max(self.start);
        self.lines = was.iter().flat_map(|was| &was.lines).map(|_| None).collect();
        self.by_name.clear();
        let had = self.lines.len();
        for listed in files {
            let place = was.as_ref().and_then(|was| was.place_of(listed.file));
            let place = place.unwrap_or(usize::MAX);
            if let Some(line) = self.lines.get_mut(place) {
                *line = Some(*listed);
                self.by_name.insert(listed.file, place);
            }
        }
        // In place, since a disk that is full has no room for another.
        if was.is_some() {
            self.file = Some(OpenOptions::new().write(true).open(&path)?);
        }
        for listed in files {
            if !self.by_name.contains_key(&listed.file) {
                let place = self.free_line();
                self.lines[place] = Some(*listed);
                self.by_name.insert(listed.file, place);
            }
        }
        let Some(file) = &self.file else {
            let is_there = bytes.is_some() || self.dir.join(LOST).try_exists()?;
            if is_needed || is_there {
                return self.write_anew();
            }
            // So that a directory without files is not one that was emptied. Where an older version left files, the list
            // begins with the first write.
            return match files.is_empty() && self.start > 0 {
                true => unless_full(self.write_anew()),
                false => Ok(()),
            };
        };
        let has_it = was.map_or([true; 2], |was| was.has_it);
        (0..2).filter(|copy| !has_it[*copy]).try_for_each(|copy| self.write_point(file, copy))?;
        file.write_all_at(&self.all_lines(0), self.place(0))?;
        if self.lines.len() > had {
            // More are there before the first line says so.
            file.sync_data()?;
        }
        file.write_all_at(&self.first_line(), 0)?;
        file.sync_data()?;
        self.is_safe();
        Ok(())
    }

    /// A file is going to be begun. Before it is there, there is a list, since it says that there is one, and a line for
    /// it. Without room for that there is none for the file either: that can be tried again.
    pub(super) fn begin(&mut self) -> Result<(), DiskError> {
        self.check()?;
        let begun = match &self.file {
            None => self.write_anew(),
            Some(_) => self.make_lines(),
        };
        begun.map_err(|error| match not_written(&error) {
            DiskError::Full => DiskError::Full,
            _ => self.fail(&error),
        })
    }

    /// What the list says from now on of the last start, if there is one or when there is.
    pub(super) fn set_start(&mut self, start: u64) {
        self.start = start;
    }

    /// Whether there is a list, which says what it was told of the last start.
    pub(super) fn is_there(&self) -> bool {
        self.file.is_some()
    }

    /// Writes down the number of the last start. Without room for that it stays what it was.
    pub(super) fn write_start(&mut self, start: u64) -> std::io::Result<()> {
        self.set_start(start);
        let Some(file) = &self.file else { return Ok(()) };
        let written = file.write_all_at(&self.first_line(), 0);
        unless_full(written.and_then(|()| file.sync_data()))
    }

    fn write_anew(&mut self) -> std::io::Result<()> {
        // And two for files to come: see `make_lines`.
        let (had, parts_before) = (self.lines.len(), self.parts);
        self.parts = self.point.as_ref().map_or(0, |(point, _)| parts_of(point).max(self.parts));
        let before = 1 + 2 * self.parts;
        let used = before + self.lines.len() + 2;
        self.lines.resize(used.next_multiple_of(PAGE) - before, None);
        let written = self.replace();
        if written.is_err() {
            // The one that is there, if one is, is as it was.
            self.lines.truncate(had);
            self.parts = parts_before;
        }
        written
    }

    /// Writes all lines to a new file, which takes the place of the one that there is.
    fn replace(&mut self) -> std::io::Result<()> {
        let points = [0, 1].map(|copy| self.point_lines(copy)).concat();
        let bytes = [&self.first_line()[..], &points, &self.all_lines(0)].concat();
        let (path, new) = (self.dir.join(NAME), self.dir.join("files.new"));
        let options = OpenOptions::new().create(true).truncate(true).write(true).clone();
        let file = options.open(&new)?;
        file.write_all_at(&bytes, 0)?;
        file.sync_all()?;
        std::fs::rename(new, path)?;
        sync_dir(&self.dir)?;
        self.file = Some(file);
        self.is_safe();
        self.is_given_up = false;
        // There is one again, and that is asked.
        let _ = std::fs::remove_file(self.dir.join(LOST));
        Ok(())
    }

    /// Nothing that is written to it from now on can be trusted.
    fn fail(&mut self, error: &std::io::Error) -> DiskError {
        let what = format!("the list of files, {}: {error}", self.dir.join(NAME).display());
        self.failed.get_or_insert(DiskError::Failed(what)).clone()
    }

    fn check(&self) -> Result<(), DiskError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// What the log waits for was to be written. A list for which there is no room, on a disk that copies what is written over, say, is
    /// given up, and says so: it may know nothing, but nothing that is wrong. All else is the end.
    fn written(&mut self, result: std::io::Result<()>) -> Result<(), DiskError> {
        let Err(error) = result else { return Ok(()) };
        if not_written(&error) != DiskError::Full {
            return Err(self.fail(&error));
        }
        self.file = None;
        self.dirty_since = Some(Instant::now());
        if !std::mem::replace(&mut self.is_given_up, true) {
            tracing::error!(
                log = %self.dir.display(),
                "the list of files, `files`, finds no room on the disk and is given up until there is some: if the node ends \
                 before that, the next start cannot say whether a file is missing"
            );
        }
        let moved = std::fs::rename(self.dir.join(NAME), self.dir.join(LOST));
        moved.and_then(|()| sync_dir(&self.dir)).map_err(|error| self.fail(&error))
    }

    /// Whether there is none for want of room.
    pub(super) fn is_given_up(&self) -> bool {
        self.is_given_up
    }

    fn is_safe(&mut self) {
        (self.dirty_since, self.has_begun) = (None, false);
    }

    /// So many bytes of a file are safe: `len` from `position` on are the last of them, and of all if it `is_last`.
    pub(super) fn synced(
        &mut self,
        file: FileName,
        (position, head, len): (u64, &[u8], u64),
        reached: Reached,
        is_last: bool,
    ) -> Result<(), DiskError> {
        // A list that has a rewritten file to its end has what it was made of: see [`Stage::Sealed`].
        if is_last && file.generation > 0 {
            self.sync()?;
        }
        if let Names::Own(names) = &self.names {
            names.fetch_max(reached.sequence, Ordering::Relaxed);
        }
        let end = position + len;
        let index = match (position, self.by_name.get(&file)) {
            (0, known) => {
                let known = known.copied();
                let listed = Listed::begun(file, head, end, reached);
                let index = known.unwrap_or_else(|| self.free_line());
                self.lines[index] = Some(listed);
                self.by_name.insert(file, index);
                self.has_begun = true;
                index
            }
            (_, Some(&index)) => {
                let Some(known) = &mut self.lines[index] else { return Ok(()) };
                known.len = known.len.max(end);
                known.reached = known.reached.max(reached);
                index
            }
            (_, None) => return Ok(()),
        };
        if let Some(line) = self.lines[index].as_mut().filter(|_| is_last) {
            line.stage = Stage::Sealed;
        }
        self.write_line(index)
    }

    /// A file was removed, so that it does not come back after a power cut.
    pub(super) fn gone(&mut self, file: FileName) -> Result<(), DiskError> {
        let Some(index) = self.by_name.remove(&file) else { return Ok(()) };
        self.lines[index] = None;
        self.write_line(index)
    }

    /// A file is going to be removed: the list does not miss it, not even after a power cut. One that could not be removed
    /// is tried again and again, and was struck the first time.
    pub(super) fn strike(&mut self, file: FileName) -> Result<(), DiskError> {
        let Some(&index) = self.by_name.get(&file) else { return Ok(()) };
        if let Some(line) = &mut self.lines[index]
            && std::mem::replace(&mut line.stage, Stage::Going) == Stage::Going
        {
            return self.check();
        }
        self.write_line(index)?;
        self.sync()
    }

    /// The end of a file is going to be cut off: the list says so, for good.
    pub(super) fn shorten(
        &mut self,
        file: FileName,
        len: u64,
        reached: Reached,
    ) -> Result<(), DiskError> {
        let Some(&index) = self.by_name.get(&file) else { return Ok(()) };
        if let Some(line) = &mut self.lines[index] {
            (line.len, line.reached, line.stage) = (len, reached, Stage::Growing);
        }
        self.write_line(index)?;
        self.sync()
    }

    /// Between two operations of a log that goes on: syncs it if that is due. Whoever waits for the first of them has been
    /// told by then, and nothing is written to a file before it is here that it was begun.
    pub(super) fn settle(&mut self, now: Instant) -> Result<(), DiskError> {
        let is_late = |since| now.saturating_duration_since(since) >= BEHIND;
        match self.dirty_since.is_some_and(is_late) {
            true if self.is_given_up => self.restore(),
            false if !self.has_begun => Ok(()),
            _ => self.sync(),
        }
    }

    /// What was written to it survives a power cut.
    pub(super) fn sync(&mut self) -> Result<(), DiskError> {
        self.check()?;
        let (Some(file), Some(_)) = (&self.file, self.dirty_since) else { return Ok(()) };
        let synced = file.sync_data();
        self.is_safe();
        self.written(synced)
    }

    /// Writes one that was given up anew, if there is room by now.
    pub(super) fn restore(&mut self) -> Result<(), DiskError> {
        if !self.is_given_up {
            return Ok(());
        }
        self.dirty_since = Some(Instant::now());
        match self.begin() {
            Err(DiskError::Full) => Ok(()),
            begun => begun,
        }
    }

    fn write_line(&mut self, index: usize) -> Result<(), DiskError> {
        self.check()?;
        let Some(file) = &self.file else { return Ok(()) };
        let written = file.write_all_at(&self.line(index), self.place(index));
        self.dirty_since.get_or_insert_with(Instant::now);
        self.written(written)
    }

    /// A line for another file.
    fn free_line(&mut self) -> usize {
        let free = self.lines.iter().position(Option::is_none);
        free.unwrap_or_else(|| {
            // Where no list is written, nothing has to be made first.
            self.lines.push(None);
            self.lines.len() - 1
        })
    }

    /// Makes lines, unless each of the two threads that write has one for its next file.
    fn make_lines(&mut self) -> std::io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        if self.lines.iter().filter(|line| line.is_none()).nth(1).is_some() {
            return Ok(());
        }
        let first = self.lines.len();
        self.lines.resize(first + PAGE, None);
        let grow = || {
            file.write_all_at(&self.all_lines(first), self.place(first))?;
            // They are there before the first line says so.
            file.sync_data()?;
            file.write_all_at(&self.first_line(), 0)
        };
        let grown: std::io::Result<()> = grow();
        if grown.is_err() {
            self.lines.truncate(first);
        }
        grown
    }

    /// Says this point, for good: each of both copies is whole while the other one is written. Without room it says the one before.
    pub(super) fn set_point(&mut self, point: Point) -> Result<(), DiskError> {
        self.check()?;
        let moved = self.point.as_ref().map_or(0, |(_, moved)| *moved);
        let (parts, was) = (parts_of(&point), self.point.replace((point, moved + 1)));
        let write = || {
            let Some(file) = self.file.as_ref().filter(|_| parts <= self.parts) else {
                return Ok(false);
            };
            [0, 1].into_iter().try_for_each(|copy| self.write_point(file, copy)).map(|()| true)
        };
        let written = match write() {
            Ok(false) => self.write_anew(),
            written => written.map(|_| ()),
        };
        written.map_err(|error| match not_written(&error) {
            DiskError::Full => {
                self.point = was;
                DiskError::Full
            }
            _ => self.fail(&error),
        })
    }

    /// Writes one copy of the point in its place, for good: the other one is whole.
    fn write_point(&self, file: &File, copy: usize) -> std::io::Result<()> {
        let place = LINE * (1 + copy * self.parts);
        file.write_all_at(&self.point_lines(copy), place as u64)?;
        file.sync_data()
    }

    /// Where a line of a file stands.
    fn place(&self, index: usize) -> u64 {
        (LINE * (1 + 2 * self.parts + index)) as u64
    }

    /// The lines of one copy of the point.
    fn point_lines(&self, copy: usize) -> Vec<u8> {
        let Some((Point { at, members }, moved)) = &self.point else { return Vec::new() };
        let mut lines = Vec::with_capacity(LINE * self.parts);
        for part in 0..self.parts {
            let mut line = [0; LINE];
            put(&mut line, 0, &[at.number, at.term, *moved, members.len() as u64]);
            line[52] = POINT;
            let of_part = members.chunks(PART).nth(part).unwrap_or_default();
            line[56..56 + of_part.len()].copy_from_slice(of_part);
            let number = (copy * self.parts + part) as u32;
            line[LINE - 8..LINE - 4].copy_from_slice(&number.to_le_bytes());
            lines.extend(with_checksum(line));
        }
        lines
    }

    fn all_lines(&self, first: usize) -> Vec<u8> {
        (first..self.lines.len()).flat_map(|index| self.line(index)).collect()
    }

    fn first_line(&self) -> [u8; LINE] {
        let mut line = [0; LINE];
        line[..8].copy_from_slice(MAGIC);
        let format = if self.parts > 0 { FORMAT_WITH_POINT } else { FORMAT };
        line[8..12].copy_from_slice(&format.to_le_bytes());
        let count = (2 * self.parts + self.lines.len()) as u32;
        line[12..16].copy_from_slice(&count.to_le_bytes());
        line[48..52].copy_from_slice(&(self.parts as u32).to_le_bytes());
        let Floor { reached, segment } = self.floor;
        put(&mut line, 16, &[reached.end, reached.sequence, segment, self.start]);
        with_checksum(line)
    }

    fn line(&self, index: usize) -> [u8; LINE] {
        let mut line = [0; LINE];
        let number = (2 * self.parts + index) as u32;
        line[LINE - 8..LINE - 4].copy_from_slice(&number.to_le_bytes());
        if let Some(listed) = &self.lines[index] {
            let Listed { file, len, beginning, reached, heading, stage } = listed;
            let names = match &self.names {
                Names::Other(names) => names.load(Ordering::Relaxed),
                Names::Own(_) => 0,
            };
            let Reached { end, sequence } = *reached;
            put(&mut line, 0, &[file.segment, file.generation, *len, end, sequence, names]);
            line[48..52].copy_from_slice(&beginning.to_le_bytes());
            line[52] = match stage {
                Stage::Growing => GROWING,
                Stage::Sealed => SEALED,
                Stage::Going => GOING,
            };
            line[54] = u8::from(self.arriving.contains(file));
            if let Some(Heading { through, first, as_of, mark }) = *heading {
                line[53] = 1;
                put(&mut line, 56, &[through, first, as_of, mark]);
            }
        }
        with_checksum(line)
    }
}

/// What a line says of its file: 0 if it has none.
const GROWING: u8 = 1;
const SEALED: u8 = 2;
const GOING: u8 = 3;

/// It is not that of a file.
const POINT: u8 = 4;

/// Lines of each copy of a point.
fn parts_of(point: &Point) -> usize {
    point.members.len().div_ceil(PART).max(PARTS_MIN)
}

/// Takes a full disk for a success: the list does without what finds no room.
fn unless_full(result: std::io::Result<()>) -> std::io::Result<()> {
    result.or_else(|error| match not_written(&error) {
        DiskError::Full => Ok(()),
        _ => Err(error),
    })
}

fn put(line: &mut [u8; LINE], at: usize, numbers: &[u64]) {
    for (to, number) in line[at..].chunks_exact_mut(8).zip(numbers) {
        to.copy_from_slice(&number.to_le_bytes());
    }
}

fn with_checksum(mut line: [u8; LINE]) -> [u8; LINE] {
    let crc = crc32c::crc32c(&line[..LINE - 4]);
    line[LINE - 4..].copy_from_slice(&crc.to_le_bytes());
    line
}

fn u32_at(line: &[u8], at: usize) -> u32 {
    line.get(at..).and_then(|it| it.first_chunk()).copied().map_or(0, u32::from_le_bytes)
}

fn u64_at(line: &[u8], at: usize) -> u64 {
    line.get(at..).and_then(|it| it.first_chunk()).copied().map_or(0, u64::from_le_bytes)
}

fn is_whole(line: &[u8]) -> bool {
    let Some((covered, crc)) = line.split_last_chunk::<4>() else { return false };
    crc32c::crc32c(covered) == u32::from_le_bytes(*crc)
}

/// The lines of a list.
struct Parsed {
    lines: Vec<Option<Listed>>,
    point: Option<(Point, u64)>,
    /// Which copies have it.
    has_it: [bool; 2],
    arriving: Vec<FileName>,
    parts: usize,
    floor: Floor,
    names: u64,
    start: u64,
    /// An older version wrote it: what it says is true, and it is to be written anew.
    is_old: bool,
    is_of_later_version: bool,
    wrong: Option<String>,
}

impl Parsed {
    /// Whether it can be gone on with.
    fn is_usable(&self) -> bool {
        self.wrong.is_none() && !self.lines.is_empty() && !self.is_old
    }

    fn place_of(&self, file: FileName) -> Option<usize> {
        self.lines.iter().position(|line| line.is_some_and(|line| line.file == file))
    }

    fn found(self) -> Found {
        let files = self.lines.into_iter().flatten().collect();
        let point = self.point.map(|(point, _)| point);
        let lines = RosterLines { files, floor: self.floor, point };
        let roster = match self.wrong {
            Some(wrong) => Roster::Damaged(lines, wrong),
            None => Roster::Whole(lines),
        };
        Found { roster, names: self.names, start: self.start, is_empty: false }
    }
}

/// The point that these lines have, if it is whole, and how often it was moved.
fn point_of<'a>(
    lines: impl Iterator<Item = (usize, &'a [u8])>,
    wrong: &mut Option<String>,
) -> Option<(Point, u64)> {
    let (mut members, mut first, mut is_torn) = (Vec::new(), None, false);
    for (index, line) in lines {
        if !is_whole(line) || u32_at(line, LINE - 8) as usize != index || line[52] != POINT {
            wrong.get_or_insert_with(|| format!("is damaged in line {}", index + 1));
            is_torn = true;
            continue;
        }
        let numbers = [0, 8, 16, 24].map(|at| u64_at(line, at));
        is_torn |= *first.get_or_insert(numbers) != numbers;
        members.extend_from_slice(&line[56..56 + PART]);
    }
    let [number, term, moved, len] = first.filter(|_| !is_torn)?;
    let members = members.get(..usize::try_from(len).ok()?)?.to_vec().into();
    Some((Point { at: BatchName { number, term }, members }, moved))
}

fn parse(bytes: &[u8]) -> Parsed {
    let (lines, floor, point) = Default::default();
    let (names, start, parts) = (0, 0, 0);
    let (has_it, arriving, wrong) = ([true; 2], Vec::new(), None);
    let (is_old, is_of_later_version) = (false, false);
    let mut parsed = Parsed {
        lines,
        point,
        has_it,
        arriving,
        parts,
        floor,
        names,
        start,
        is_old,
        is_of_later_version,
        wrong,
    };
    // Somebody who had the choice said so.
    if bytes.is_empty() {
        return parsed;
    }
    let Parsed {
        lines: found,
        point,
        has_it,
        arriving,
        parts,
        floor,
        names,
        start,
        is_old,
        is_of_later_version,
        wrong,
    } = &mut parsed;
    *is_old = bytes.get(..LINE_1).is_some_and(|it| is_whole(it) && u32_at(it, 8) == 1);
    let len = if *is_old { LINE_1 } else { LINE };
    let mut lines = bytes.chunks_exact(len);
    let first = lines.next().unwrap_or_default();
    let count = u32_at(first, 12) as usize;
    if !first.starts_with(MAGIC) || !is_whole(first) {
        *wrong = Some("is damaged in its first line".to_owned());
    } else if u32_at(first, 8) > FORMAT_WITH_POINT {
        *is_of_later_version = true;
        *wrong = Some("was written by a later version".to_owned());
    } else if lines.len() < count {
        *wrong = Some(format!("has {} lines, and should have {count}", lines.len()));
    }
    if wrong.is_none() && !*is_old {
        let reached = Reached { end: u64_at(first, 16), sequence: u64_at(first, 24) };
        *floor = Floor { reached, segment: u64_at(first, 32) };
        *start = u64_at(first, 40);
        *parts = u32_at(first, 48) as usize;
    }
    let count = if wrong.is_some() { lines.len() } else { count };
    let mut lines = lines.take(count).enumerate();
    if *parts > 0 {
        let copies = [0, 1].map(|_| point_of(lines.by_ref().take(*parts), wrong));
        // That which was written last: while it was, the other one was whole.
        *point = copies.iter().flatten().max_by_key(|(_, moved)| *moved).cloned();
        *has_it = copies.map(|copy| copy == *point);
        if point.is_none() {
            wrong.get_or_insert_with(|| "has no point that is whole".to_owned());
        }
    }
    for (index, line) in lines {
        let is_right = is_whole(line) && u32_at(line, len - 8) as usize == index;
        if !is_right {
            wrong.get_or_insert_with(|| format!("is damaged in line {}", index + 1));
        }
        let stage = match line.get(52) {
            Some(&GROWING) if is_right => Stage::Growing,
            Some(&SEALED) if is_right => Stage::Sealed,
            Some(&GOING) if is_right => Stage::Going,
            _ => {
                found.push(None);
                continue;
            }
        };
        let heading = (!*is_old && line[53] == 1).then(|| Heading {
            through: u64_at(line, 56),
            first: u64_at(line, 64),
            as_of: u64_at(line, 72),
            mark: u64_at(line, 80),
        });
        *names = (*names).max(u64_at(line, 40));
        let file = FileName { segment: u64_at(line, 0), generation: u64_at(line, 8) };
        if !*is_old && line[54] == 1 {
            arriving.push(file);
        }
        found.push(Some(Listed {
            file,
            len: u64_at(line, 16),
            beginning: u32_at(line, 48),
            reached: Reached { end: u64_at(line, 24), sequence: u64_at(line, 32) },
            heading,
            stage,
        }));
    }
    parsed
}

#[cfg(test)]
mod tests;
