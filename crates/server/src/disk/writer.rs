//! Writes files, and removes them.
//!
//! A file that is removed under load becomes the next that is begun. Writing over what it had needs no block
//! of the disk, no page of the kernel's and no commit of a journal, so that a sync takes half the time and a third
//! of the CPU (measured: decision 0026).

use std::collections::BTreeSet;
use std::fs::{File, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::iter::once;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use leveret_log::disk::{Body, DiskError, Done, FileName, Op, Token, lens_like};
use leveret_log::file::{Checked, Undigested, check};

use super::roster::List;
use super::{Job, SYNCS, WRITES, Worker, failed, not_written, sync_dir, tell_stuck};
use crate::locks::Ranked;
use crate::room::Room;

/// A file that is kept for the next, while it has no name of the log's.
pub(super) const SPARE: &str = "spare";

/// How long after the disk was found full it is tried again, unless something was removed: the log tries again as soon
/// as it is told, and would keep a core busy for as long as the disk is full.
const FULL_PAUSE: Duration = Duration::from_millis(100);

/// Removes what a process that was killed had kept.
pub(super) fn clear(dir: &Path) -> std::io::Result<()> {
    let spare = dir.join(SPARE);
    if spare.exists() { std::fs::remove_file(spare) } else { Ok(()) }
}

/// Does the writes and removals of one thread.
pub(super) struct Writer {
    dir: PathBuf,
    /// The file written to last.
    open: Option<Open>,
    /// The file of which a piece came last.
    coming: Option<(FileName, File)>,
    /// Whether there is a file to make the next one of. None if none is ever kept.
    spare: Option<Spare>,
    /// When the disk may be tried again, which was found full.
    full_until: Option<Instant>,
    room: Arc<Room>,
    list: Arc<Ranked<List>>,
    /// Something was written to the list since it was looked at.
    has_listed: bool,
    /// Files that could not be removed, and of which that was told: they are tried again after each other removal.
    stuck: BTreeSet<FileName>,
}

/// A file that is written to.
struct Open {
    name: FileName,
    file: File,
    /// Its name may be lost in a power cut.
    is_new: bool,
    /// It was made of another, which may have been longer.
    is_reused: bool,
    /// Where the last write ended.
    end: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Spare {
    Yes,
    No,
}

impl Worker for Writer {
    const WRITES: bool = true;

    fn run(&mut self, job: Job) -> Option<(Token, Done)> {
        match job {
            Job::Do(token, op) => Some((token, self.perform(op))),
            Job::Close(file) => {
                self.close(file);
                None
            }
            Job::CloseAll => {
                self.open = None;
                None
            }
        }
    }

    fn settle(&mut self) -> Result<(), DiskError> {
        if !std::mem::take(&mut self.has_listed) {
            return Ok(());
        }
        let mut list = self.list.lock();
        list.settle(Instant::now())?;
        // Publishers wait until all that is to be written has room.
        if list.is_given_up() {
            self.room.refused();
        }
        Ok(())
    }

    fn rest(&mut self) -> Result<(), DiskError> {
        let mut list = self.list.lock();
        list.restore()?;
        list.sync()
    }

    fn make_room(&mut self) {
        if self.room.is_wanted() {
            self.cut();
            self.drop_spare();
        }
    }

    fn sleep(&mut self) -> Result<(), DiskError> {
        let rested = self.rest();
        self.cut();
        self.drop_spare();
        rested
    }
}

impl Writer {
    /// One that makes each file anew.
    pub(super) fn new(dir: &Path, room: Arc<Room>, list: Arc<Ranked<List>>) -> Self {
        let (dir, has_listed, stuck) = (dir.to_owned(), false, BTreeSet::new());
        let coming = None;
        Self {
            dir,
            open: None,
            coming,
            spare: None,
            full_until: None,
            room,
            list,
            has_listed,
            stuck,
        }
    }

    /// One that makes files of those it removed.
    pub(super) fn with_spare(dir: &Path, room: Arc<Room>, list: Arc<Ranked<List>>) -> Self {
        Self { spare: Some(Spare::No), ..Self::new(dir, room, list) }
    }

    fn close(&mut self, file: FileName) {
        self.open = self.open.take().filter(|open| open.name != file);
    }

    /// Removes a file, or keeps it for the next one, which gets `next_len` bytes, about.
    fn remove(&mut self, file: FileName, next_len: u64) -> std::io::Result<()> {
        self.close(file);
        let (path, spare) = (self.dir.join(file.to_string()), self.dir.join(SPARE));
        // Without its file it is of no use; the next start looks for what is left.
        let _ = std::fs::remove_file(self.dir.join(file.digest()));
        let lens = lens_like(next_len);
        let is_long = |it: std::io::Result<Metadata>| it.is_ok_and(|it| it.len() > *lens.end());
        // Files were longer until now: what was kept for one or has become one goes, too.
        if self.open.as_ref().is_some_and(|open| open.is_reused && is_long(open.file.metadata())) {
            self.cut();
        }
        if self.spare == Some(Spare::Yes) && is_long(spare.metadata()) {
            self.drop_spare();
        }
        // With a second name it is a copy that somebody made.
        let is_like = |it: Metadata| lens.contains(&it.len()) && it.nlink() == 1;
        let is_kept = self.spare == Some(Spare::No) && !self.room.is_wanted();
        if is_kept && path.metadata().is_ok_and(is_like) {
            std::fs::rename(path, spare)?;
            self.spare = Some(Spare::Yes);
        } else {
            match std::fs::remove_file(path) {
                // An earlier try got so far, and could not sync the directory.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
        sync_dir(&self.dir)
    }

    /// Cuts off the end of a file.
    fn cut_off(&mut self, name: FileName, len: u64) -> std::io::Result<()> {
        // It is opened again for the next write.
        self.close(name);
        let file = OpenOptions::new().write(true).open(self.dir.join(name.to_string()))?;
        file.set_len(len)?;
        file.sync_all()
    }

    /// Gives back what the file that is written to has behind its last write.
    fn cut(&mut self) {
        if let Some(open) = self.open.as_mut().filter(|open| open.is_reused) {
            // What cannot be cut off takes room, no more.
            let _ = open.file.set_len(open.end);
            open.is_reused = false;
        }
    }

    /// Gives its room back. True if there was one.
    fn drop_spare(&mut self) -> bool {
        let has_one = self.spare == Some(Spare::Yes);
        if has_one {
            self.spare = Some(Spare::No);
            // It is looked for when the directory is opened, too.
            let _ = std::fs::remove_file(self.dir.join(SPARE));
        }
        has_one
    }

    /// Opens a file to write to it, which is made if it is not there: of the spare one if it begins with `head`.
    fn open(&mut self, name: FileName, head: Option<&[u8]>) -> std::io::Result<Open> {
        let path = self.dir.join(name.to_string());
        let is_new = !path.exists();
        if let Some(head) = head.filter(|_| is_new && self.spare == Some(Spare::Yes)) {
            self.spare = Some(Spare::No);
            let spare = self.dir.join(SPARE);
            let file = OpenOptions::new().write(true).open(&spare)?;
            // The file never has its new name and its old beginning.
            file.write_all_at(head, 0)?;
            file.sync_data()?;
            std::fs::rename(spare, path)?;
            let end = head.len() as u64;
            return Ok(Open { name, file, is_new, is_reused: true, end });
        }
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        Ok(Open { name, file, is_new, is_reused: false, end: 0 })
    }

    /// Writes a piece of a file that comes.
    fn receive(&mut self, name: FileName, position: u64, bytes: &[u8]) -> std::io::Result<()> {
        if self.room.is_wanted() {
            self.drop_spare();
        }
        if self.coming.as_ref().is_none_or(|(it, _)| *it != name) {
            let path = self.dir.join(name.coming());
            let open = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
            self.coming = Some((name, open));
        }
        let Some((_, file)) = &self.coming else { return Ok(()) };
        let since = Instant::now();
        file.write_all_at(bytes, position)?;
        WRITES.count(bytes.len() as u64, since);
        Ok(())
    }

    /// Looks how much of a file is whole. What came is there after a power cut, too.
    fn look(&mut self, name: FileName, len: u64, has_come: bool) -> Result<Checked, DiskError> {
        self.coming = None;
        let path = if has_come { name.coming() } else { name.to_string() };
        let look = || {
            let file = match File::open(self.dir.join(path)) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Checked::default()),
                opened => opened?,
            };
            if has_come {
                file.sync_all()?;
                sync_dir(&self.dir)?;
            }
            let len = len.min(file.metadata()?.len());
            check(len, &mut |position, into| {
                file.read_exact_at(into, position).map_err(|error| failed(&error))
            })
            .map_err(std::io::Error::other)
        };
        look().map_err(|error| failed(&error))
    }

    fn pause_if_full(&mut self) {
        if let Some(until) = self.full_until.take() {
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
        }
    }

    fn perform(&mut self, op: Op) -> Done {
        match op {
            Op::Write { file, position, head, body, reached, sync, is_last, .. } => {
                self.pause_if_full();
                // Before publishers are blocked for want of it.
                if self.room.is_wanted() {
                    self.drop_spare();
                }
                let mut result = self.write(file, position, (&head, &body), (sync, is_last));
                if result == Err(DiskError::Full) && self.drop_spare() {
                    result = self.write(file, position, (&head, &body), (sync, is_last));
                }
                let len = (head.len() + body.len()) as u64;
                if result == Err(DiskError::Full) && self.room.give_reserve(len) {
                    result = self.write(file, position, (&head, &body), (sync, is_last));
                }
                if result.is_ok() {
                    self.room.wrote((head.len() + body.len()) as u64);
                }
                if result == Err(DiskError::Full) {
                    self.room.refused();
                    self.full_until = Some(Instant::now() + FULL_PAUSE);
                }
                if sync && result.is_ok() {
                    let len = (head.len() + body.len()) as u64;
                    self.has_listed = true;
                    let part = (position, &head[..], len);
                    if let Err(error) = self.list.lock().synced(file, part, reached, is_last) {
                        return Done::Failed(error);
                    }
                }
                Done::Written { head, body, result }
            }
            Op::Remove { file, next_len } => {
                self.full_until = None;
                self.has_listed = true;
                let struck = self.list.lock().strike(file);
                let removed = match struck {
                    Ok(()) => self.remove(file, next_len),
                    Err(error) => return Done::Failed(error),
                };
                if removed.is_ok()
                    && let Err(error) = self.list.lock().gone(file)
                {
                    return Done::Failed(error);
                }
                match &removed {
                    Ok(()) => drop(self.stuck.remove(&file)),
                    Err(error) if self.stuck.insert(file) => tell_stuck(&self.dir, file, error),
                    Err(_) => {}
                }
                Done::Removed(removed.map_err(|error| failed(&error)))
            }
            Op::Mend { file, position, bytes } => {
                let path = self.dir.join(file.to_string());
                let mend = || {
                    let file = OpenOptions::new().write(true).open(path)?;
                    file.write_all_at(&bytes, position)?;
                    file.sync_data()
                };
                Done::Mended(mend().map_err(|error: std::io::Error| not_written(&error)))
            }
            Op::Cut { file, len, reached } => {
                self.full_until = None;
                self.has_listed = true;
                if let Err(error) = self.list.lock().shorten(file, len, reached) {
                    return Done::Failed(error);
                }
                Done::Cut(self.cut_off(file, len).map_err(|error| failed(&error)))
            }
            Op::Receive { file, position, bytes } => {
                self.pause_if_full();
                let written = self.receive(file, position, &bytes);
                let written = written.map_err(|error| not_written(&error));
                match written {
                    Ok(()) => self.room.wrote(bytes.len() as u64),
                    Err(DiskError::Full) => {
                        self.room.refused();
                        self.full_until = Some(Instant::now() + FULL_PAUSE);
                    }
                    Err(_) => {}
                }
                Done::Received(written)
            }
            Op::Discard { file } => {
                self.full_until = None;
                self.coming = None;
                let gone = match std::fs::remove_file(self.dir.join(file.coming())) {
                    Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                    removed => removed,
                };
                Done::Received(gone.map_err(|error| failed(&error)))
            }
            Op::Check { file, len, has_come } => Done::Checked(self.look(file, len, has_come)),
            Op::Install { lines, arriving } => {
                (self.open, self.coming) = (None, None);
                let there = names_in(&self.dir).map_err(|error| failed(&error));
                let installed = there.and_then(|it| self.list.lock().install(lines, arriving, &it));
                match installed {
                    Err(error @ DiskError::Failed(_)) => Done::Failed(error),
                    result => Done::Installed(result),
                }
            }
            Op::SetPoint(point) => {
                self.pause_if_full();
                let mut result = self.list.lock().set_point(point.clone());
                if result == Err(DiskError::Full) && self.room.give_reserve(0) {
                    result = self.list.lock().set_point(point);
                }
                match result {
                    Err(error @ DiskError::Failed(_)) => return Done::Failed(error),
                    Err(DiskError::Full) => self.full_until = Some(Instant::now() + FULL_PAUSE),
                    Ok(()) => {}
                }
                Done::PointSet(result)
            }
            Op::Read { .. } => Done::Read(Err(not_for_this_thread())),
            Op::Digest { .. } => Done::Digested(Err(Undigested::Disk(not_for_this_thread()))),
        }
    }

    fn write(
        &mut self,
        name: FileName,
        position: u64,
        (head, body): (&[u8], &Body),
        (sync, is_last): (bool, bool),
    ) -> Result<(), DiskError> {
        if self.open.as_ref().is_none_or(|open| open.name != name) {
            if position == 0 {
                self.list.lock().begin()?;
            }
            let is_whole = position == 0 && sync && body.is_empty();
            let open = self.open(name, is_whole.then_some(head));
            self.open = Some(open.map_err(|error| not_written(&error))?);
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        let Open { file, is_new, is_reused, end, .. } = open;
        let mut at = position;
        let since = Instant::now();
        for part in once(head).chain(body.pieces()) {
            file.write_all_at(part, at).map_err(|error| not_written(&error))?;
            at += part.len() as u64;
        }
        WRITES.count(at - position, since);
        *end = at;
        let cuts = is_last && std::mem::take(is_reused);
        if cuts {
            file.set_len(at).map_err(|error| failed(&error))?;
        }
        if sync {
            let since = Instant::now();
            let synced = if cuts { file.sync_all() } else { file.sync_data() };
            // After a failed sync nobody knows what is on the disk, full or not.
            synced.map_err(|error| failed(&error))?;
            SYNCS.count(0, since);
            if std::mem::take(is_new) {
                sync_dir(&self.dir).map_err(|error| failed(&error))?;
            }
        }
        Ok(())
    }
}

/// The segment files of a directory.
fn names_in(dir: &Path) -> std::io::Result<Vec<FileName>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        found.extend(entry?.file_name().to_str().and_then(FileName::parse));
    }
    Ok(found)
}

fn not_for_this_thread() -> DiskError {
    DiskError::Failed("not for this thread".into())
}

#[cfg(test)]
mod tests {
    use leveret_log::disk::Reached;

    use super::*;
    use crate::locks::Rank;

    #[test]
    fn a_full_disk_is_not_tried_all_the_time() {
        let dir = tempfile::tempdir().expect("a directory");
        let [full, other] = [0, 1].map(|segment| FileName { segment, generation: 0 });
        std::os::unix::fs::symlink("/dev/full", dir.path().join(full.to_string())).expect("a link");
        std::fs::write(dir.path().join(other.to_string()), b"").expect("a file");
        let names = super::super::Names::Own(Arc::default());
        let list = Arc::new(Ranked::new(Rank::FileList, List::new(dir.path(), names)));
        let mut writer = Writer::new(dir.path(), Arc::new(Room::of(dir.path())), list);
        let write = |writer: &mut Writer| {
            let (position, head, body) = (0, vec![1], Body::default());
            let (sync, is_last, is_background) = (false, false, false);
            let file = full;
            let reached = Reached::default();
            let op =
                Op::Write { file, position, head, body, reached, sync, is_last, is_background };
            let begun = Instant::now();
            let done = writer.perform(op);
            assert!(matches!(done, Done::Written { result: Err(DiskError::Full), .. }), "{done:?}");
            begun.elapsed()
        };
        write(&mut writer);
        assert!(write(&mut writer) > FULL_PAUSE / 2, "the second time it waits");
        writer.perform(Op::Remove { file: other, next_len: 0 });
        assert_eq!(writer.full_until, None, "there may be room");
    }

    /// It is tried again after each removal of another file, which may be many in a second.
    #[test]
    fn a_file_that_stays_is_told_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = dir.path().join("log");
        let file = FileName { segment: 0, generation: 0 };
        // No file, so that it is not removed as one.
        std::fs::create_dir(dir.path().join(file.to_string())).expect("a directory");
        let names = super::super::Names::Own(Arc::default());
        let list = Arc::new(Ranked::new(Rank::FileList, List::new(dir.path(), names)));
        let mut writer = Writer::new(dir.path(), Arc::new(Room::of(dir.path())), list);
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(File::create(&log).expect("a file"))
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..3 {
                let done = writer.perform(Op::Remove { file, next_len: 0 });
                assert!(matches!(done, Done::Removed(Err(_))), "{done:?}");
            }
        });
        let told = std::fs::read_to_string(log).expect("the log");
        assert_eq!(told.matches("cannot be removed").count(), 1, "{told}");
    }
}
