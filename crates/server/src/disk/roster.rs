//! The list of a log's files: `files`, beside them. See [`Disk::roster`](leveret_log::disk::Disk::roster), and
//! `docs/formats/segment.md` for its bytes.
//!
//! A line of a file is written over in place, so that nothing has to be made for it: after each sync of the file with how
//! long it is now, which is a write of 64 bytes to memory of the system's and no sync; and before the file is removed, which
//! is one. So after a kill the list knows each byte that was safe. After a power cut it knows what it knew when it was
//! synced last, a moment after the last write before a rest, or at the last removal; never more than was true.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_log::disk::{BEGINNING, FileName, Listed, Reached, Roster};

use super::sync_dir;

/// Its name.
const NAME: &str = "files";

const LINE: usize = 64;
const MAGIC: &[u8; 8] = b"LVRTLIST";
const FORMAT: u32 = 1;

/// Lines that are made at once: a page, less the first line of the first one.
const PAGE: usize = 64;

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
    /// By line, the first of the file not counted.
    lines: Vec<Option<Listed>>,
    by_name: HashMap<FileName, usize, FixedState>,
    is_dirty: bool,
}

/// What stands in a list.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) roster: Roster,
    /// How far the log of names was when the list was written to last.
    pub(super) names: u64,
    /// It is a file of no bytes.
    pub(super) is_empty: bool,
}

impl List {
    /// Nothing is known yet.
    pub(super) fn new(dir: &Path, names: Names) -> Self {
        let (lines, by_name) = (Vec::new(), HashMap::default());
        Self { dir: dir.to_owned(), names, file: None, lines, by_name, is_dirty: false }
    }

    /// Reads the list of a directory.
    pub(super) fn read(dir: &Path) -> std::io::Result<Found> {
        let bytes = match std::fs::read(dir.join(NAME)) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(Found { roster: Roster::None, names: 0, is_empty: false });
            }
            read => read?,
        };
        Ok(Found { is_empty: bytes.is_empty(), ..parse(&bytes).found() })
    }

    /// These are the files: the list says so if there is one, or if there has to be.
    pub(super) fn enlist(&mut self, files: &[Listed], is_needed: bool) -> std::io::Result<()> {
        let path = self.dir.join(NAME);
        let bytes = std::fs::read(&path).ok();
        let was = bytes.as_deref().map(parse).filter(|was| was.is_usable());
        self.lines = was.iter().flat_map(|was| &was.lines).map(|_| None).collect();
        self.by_name.clear();
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
            if !self.by_name.contains_key(&listed.file)
                && let Some(place) = self.free_line()
            {
                self.lines[place] = Some(*listed);
                self.by_name.insert(listed.file, place);
            }
        }
        let Some(file) = &self.file else {
            return match is_needed || bytes.is_some() {
                true => self.write_anew(),
                false => Ok(()),
            };
        };
        file.write_all_at(&self.all_lines(0), LINE as u64)?;
        file.sync_data()
    }

    /// A file is going to be begun. Before it is there, there is a list, since it says that there is one.
    pub(super) fn begin(&mut self) -> std::io::Result<()> {
        if self.file.is_some() { Ok(()) } else { self.write_anew() }
    }

    fn write_anew(&mut self) -> std::io::Result<()> {
        let used = self.lines.len() + 1;
        self.lines.resize(used.next_multiple_of(PAGE) - 1, None);
        let bytes = [&self.first_line()[..], &self.all_lines(0)].concat();
        let (path, new) = (self.dir.join(NAME), self.dir.join("files.new"));
        let options = OpenOptions::new().create(true).truncate(true).write(true).clone();
        let file = options.open(&new)?;
        file.write_all_at(&bytes, 0)?;
        file.sync_all()?;
        std::fs::rename(new, path)?;
        sync_dir(&self.dir)?;
        (self.file, self.is_dirty) = (Some(file), false);
        Ok(())
    }

    /// So many bytes of a file are safe: `written` from `position` on are the last of them.
    ///
    /// What the list does not take makes it know less, and nothing else.
    pub(super) fn synced(
        &mut self,
        file: FileName,
        (position, head, len): (u64, &[u8], u64),
        reached: Reached,
    ) {
        if let Names::Own(names) = &self.names {
            names.fetch_max(reached.sequence, Ordering::Relaxed);
        }
        let end = position + len;
        let index = match (position, self.by_name.get(&file)) {
            (0, known) => {
                let known = known.copied();
                let beginning = crc32c::crc32c(&head[..head.len().min(BEGINNING)]);
                let listed = Listed { file, len: end, beginning, reached };
                let Some(index) = known.or_else(|| self.free_line()) else { return };
                self.lines[index] = Some(listed);
                self.by_name.insert(file, index);
                index
            }
            (_, Some(&index)) => {
                let Some(known) = &mut self.lines[index] else { return };
                known.len = known.len.max(end);
                known.reached = known.reached.max(reached);
                index
            }
            (_, None) => return,
        };
        let _ = self.write_line(index);
    }

    /// A file is going to be removed: the list does not miss it, not even after a power cut.
    pub(super) fn strike(&mut self, file: FileName) -> std::io::Result<()> {
        let Some(index) = self.by_name.remove(&file) else { return Ok(()) };
        self.lines[index] = None;
        let struck = self.write_line(index).and_then(|()| self.sync());
        let (Err(_), Some(list)) = (&struck, &self.file) else { return struck };
        // A list that cannot be written to, on a disk that is full, say, may know nothing, but nothing that is wrong.
        list.set_len(0)?;
        list.sync_all()?;
        self.file = None;
        Ok(())
    }

    /// What was written to it survives a power cut.
    pub(super) fn sync(&mut self) -> std::io::Result<()> {
        match &self.file {
            Some(file) if std::mem::take(&mut self.is_dirty) => file.sync_data(),
            _ => Ok(()),
        }
    }

    fn write_line(&mut self, index: usize) -> std::io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let line = self.line(index);
        file.write_all_at(&line, (LINE * (index + 1)) as u64)?;
        self.is_dirty = true;
        Ok(())
    }

    /// A line for another file. None if the disk has no room for it.
    fn free_line(&mut self) -> Option<usize> {
        if let Some(free) = self.lines.iter().position(Option::is_none) {
            return Some(free);
        }
        let first = self.lines.len();
        self.lines.resize(first + PAGE, None);
        let Some(file) = &self.file else { return Some(first) };
        let grow = || {
            file.write_all_at(&self.all_lines(first), (LINE * (first + 1)) as u64)?;
            // They are there before the first line says so.
            file.sync_data()?;
            file.write_all_at(&self.first_line(), 0)
        };
        let grown: std::io::Result<()> = grow();
        if grown.is_err() {
            self.lines.truncate(first);
            return None;
        }
        Some(first)
    }

    fn all_lines(&self, first: usize) -> Vec<u8> {
        (first..self.lines.len()).flat_map(|index| self.line(index)).collect()
    }

    fn first_line(&self) -> [u8; LINE] {
        let mut line = [0; LINE];
        line[..8].copy_from_slice(MAGIC);
        line[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        line[12..16].copy_from_slice(&(self.lines.len() as u32).to_le_bytes());
        with_checksum(line)
    }

    fn line(&self, index: usize) -> [u8; LINE] {
        let mut line = [0; LINE];
        line[56..60].copy_from_slice(&(index as u32).to_le_bytes());
        if let Some(listed) = &self.lines[index] {
            let Listed { file, len, beginning, reached } = listed;
            let names = match &self.names {
                Names::Other(names) => names.load(Ordering::Relaxed),
                Names::Own(_) => 0,
            };
            let numbers =
                [file.segment, file.generation, *len, reached.end, reached.sequence, names];
            for (to, number) in line.chunks_exact_mut(8).zip(numbers) {
                to.copy_from_slice(&number.to_le_bytes());
            }
            line[48..52].copy_from_slice(&beginning.to_le_bytes());
            line[52] = 1;
        }
        with_checksum(line)
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
    let Some((covered, _)) = line.split_at_checked(LINE - 4) else { return false };
    crc32c::crc32c(covered) == u32_at(line, LINE - 4)
}

/// The lines of a list.
struct Parsed {
    lines: Vec<Option<Listed>>,
    names: u64,
    wrong: Option<String>,
}

impl Parsed {
    /// Whether it can be gone on with.
    fn is_usable(&self) -> bool {
        self.wrong.is_none() && !self.lines.is_empty()
    }

    fn place_of(&self, file: FileName) -> Option<usize> {
        self.lines.iter().position(|line| line.is_some_and(|line| line.file == file))
    }

    fn found(self) -> Found {
        let listed = self.lines.into_iter().flatten().collect();
        let roster = match self.wrong {
            Some(wrong) => Roster::Damaged(listed, wrong),
            None => Roster::Whole(listed),
        };
        Found { roster, names: self.names, is_empty: false }
    }
}

fn parse(bytes: &[u8]) -> Parsed {
    let mut parsed = Parsed { lines: Vec::new(), names: 0, wrong: None };
    // Somebody who had the choice said so.
    if bytes.is_empty() {
        return parsed;
    }
    let Parsed { lines: found, names, wrong } = &mut parsed;
    let mut lines = bytes.chunks_exact(LINE);
    let first = lines.next().unwrap_or_default();
    let count = u32_at(first, 12) as usize;
    if !first.starts_with(MAGIC) || !is_whole(first) {
        *wrong = Some("is damaged in its first line".to_owned());
    } else if u32_at(first, 8) > FORMAT {
        *wrong = Some("was written by a later version".to_owned());
    } else if lines.len() < count {
        *wrong = Some(format!("has {} lines, and should have {count}", lines.len()));
    }
    let count = if wrong.is_some() { lines.len() } else { count };
    for (index, line) in lines.take(count).enumerate() {
        let is_right = is_whole(line) && u32_at(line, 56) as usize == index;
        if !is_right {
            wrong.get_or_insert_with(|| format!("is damaged in line {}", index + 1));
        }
        if !is_right || line[52] == 0 {
            found.push(None);
            continue;
        }
        *names = (*names).max(u64_at(line, 40));
        found.push(Some(Listed {
            file: FileName { segment: u64_at(line, 0), generation: u64_at(line, 8) },
            len: u64_at(line, 16),
            beginning: u32_at(line, 48),
            reached: Reached { end: u64_at(line, 24), sequence: u64_at(line, 32) },
        }));
    }
    parsed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(dir: &Path) -> List {
        List::new(dir, Names::Other(Arc::new(AtomicU64::new(7))))
    }

    fn file(segment: u64) -> FileName {
        FileName { segment, generation: 0 }
    }

    fn reached(end: u64) -> Reached {
        Reached { end, sequence: end * 2 }
    }

    #[track_caller]
    fn whole(dir: &Path) -> Vec<(u64, u64, u64)> {
        let found = List::read(dir).unwrap();
        let Roster::Whole(listed) = found.roster else { panic!("{found:?}") };
        let mut all: Vec<_> =
            listed.iter().map(|it| (it.file.segment, it.len, it.reached.end)).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn it_has_what_was_synced_and_not_what_is_to_go() {
        let dir = tempfile::tempdir().unwrap();
        let mut it = list(dir.path());
        it.enlist(&[], false).unwrap();
        assert_eq!(List::read(dir.path()).unwrap().roster, Roster::None);
        it.begin().unwrap();
        assert_eq!(whole(dir.path()), []);
        for segment in 0..200 {
            it.synced(file(segment), (0, &[1; 128], 128), reached(segment));
        }
        it.synced(file(3), (128, &[], 72), reached(9));
        // Not one of which the beginning is not known.
        it.synced(file(777), (128, &[], 72), reached(9));
        for segment in 5..200 {
            it.strike(file(segment)).unwrap();
        }
        it.synced(file(300), (0, &[1; 500], 500), reached(1));
        let want = [(0, 128, 0), (1, 128, 1), (2, 128, 2), (3, 200, 9), (4, 128, 4), (300, 500, 1)];
        assert_eq!(whole(dir.path()), want);
        assert_eq!(List::read(dir.path()).unwrap().names, 7);
        let Roster::Whole(files) = List::read(dir.path()).unwrap().roster else { panic!() };
        assert!(files.iter().all(|it| it.beginning == crc32c::crc32c(&[1; BEGINNING])));
        let mut again = list(dir.path());
        again.enlist(&files[..2], false).unwrap();
        assert_eq!(whole(dir.path()).len(), 2);
    }

    #[test]
    fn damage_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let mut it = list(dir.path());
        it.enlist(&[], true).unwrap();
        (0..5).for_each(|number| it.synced(file(number), (0, &[1; 128], 128), reached(number)));
        let bytes = std::fs::read(dir.path().join(NAME)).unwrap();
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1 << (at % 8);
            assert!(matches!(parse(&bytes).found().roster, Roster::Damaged(..)), "{at}");
        }
        for len in 1..bytes.len() {
            assert!(matches!(parse(&bytes[..len]).found().roster, Roster::Damaged(..)), "{len}");
        }
        assert_eq!(parse(&[]).found().roster, Roster::Whole(Vec::new()));
        for junk in [&b"x"[..], &[0; 64], &[0; 4096], &[255; 640]] {
            assert!(matches!(parse(junk).found().roster, Roster::Damaged(..)));
        }
    }
}
