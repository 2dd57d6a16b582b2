//! The directory of a shard's log: one thread writes and syncs, another one does the work that no confirm
//! waits for.
//!
//! Writes and removals are done one after another, as [`Disk`] demands. Reads, and writes that give back
//! space, do not make them wait. A third thread makes [`digests`]. After each completion the owner is woken.

mod digests;
mod roster;
mod writer;

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use leveret_log::disk::{Disk, DiskError, Done, FileName, Op, Piece, Roster, RosterLines, Token};

use crate::buffers::Buffers;
use crate::locks::{Rank, Ranked};
use crate::room::Room;
use crate::watchdog::DiskBeat;
use digests::Digests;
use roster::List;
use writer::Writer;

pub(crate) use roster::{Names, NamesReached};

/// Files that are kept open for reading.
const READ_FILES: usize = 16;

/// Files that one disk has open at most: those, one that is read next, one that is written to by each thread, one of which pieces
/// come, the directory while it is synced by each, the list of files, and that again while it is written anew; a segment and its
/// digest while that is made.
pub const FILES_MAX: usize = READ_FILES + 11;

/// Shorter reads have memory of their own.
const POOLED_MIN: usize = 64 << 10;

/// Bytes to read into that are kept while somebody reads, those that are in use counted: a little more than a log
/// keeps of what it read.
const BUFFERS_KEPT: usize = 3 << 20;

/// How long a thread has nothing to do before memory is given back.
const REST: Duration = Duration::from_secs(1);

/// How long after that room on the disk is, too, that is kept for what is written next.
const SLEEP: Duration = Duration::from_secs(10);

/// What all disks of the process did since it began. Times in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoTotals {
    /// Reads of files.
    pub reads: u64,
    /// What they read.
    pub read_bytes: u64,
    /// How long they took.
    pub read_us: u64,
    /// Writes to files.
    pub writes: u64,
    /// What they wrote.
    pub write_bytes: u64,
    /// How long they took.
    pub write_us: u64,
    /// Syncs of files.
    pub syncs: u64,
    /// How long they took.
    pub sync_us: u64,
}

impl IoTotals {
    /// As of now.
    pub fn now() -> Self {
        let [reads, read_bytes, read_us] = READS.get();
        let [writes, write_bytes, write_us] = WRITES.get();
        let [syncs, _, sync_us] = SYNCS.get();
        Self { reads, read_bytes, read_us, writes, write_bytes, write_us, syncs, sync_us }
    }
}

/// How often, how many bytes, how many microseconds.
struct Totals([AtomicU64; 3]);

static READS: Totals = Totals::new();
static WRITES: Totals = Totals::new();
static SYNCS: Totals = Totals::new();

impl Totals {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 3])
    }

    fn get(&self) -> [u64; 3] {
        self.0.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// Counts what began at `since` and moved so many bytes.
    fn count(&self, bytes: u64, since: Instant) {
        let us = since.elapsed().as_micros() as u64;
        for (count, more) in self.0.iter().zip([1, bytes, us]) {
            count.fetch_add(more, Ordering::Relaxed);
        }
    }
}

/// Called by a thread of the disk: after each completion, or when it has nothing to do after it had.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// The name of what nobody submitted.
const NOBODYS: Token = Token(u64::MAX);

/// What a thread is told.
enum Job {
    Do(Token, Op),
    /// A file is going to be removed: its room is free once nobody has it open.
    Close(FileName),
    /// Names are going to be those of other files.
    CloseAll,
}

/// A directory of segment files. Who opens it has locked the data directory, so that it is in nobody else's use.
pub struct RealDisk {
    dir: PathBuf,
    /// `None` once the threads are to end.
    submit: Option<[Sender<Job>; 2]>,
    done: Receiver<(Token, Done)>,
    threads: Vec<JoinHandle<()>>,
    digests: Digests,
    /// What is read comes in them.
    buffers: Buffers,
    room: Arc<Room>,
    /// It may use the room that messages do not get.
    uses_kept_room: bool,
    list: Arc<Ranked<List>>,
    /// Nothing was changed yet.
    is_untouched: bool,
}

impl std::fmt::Debug for RealDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RealDisk").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl RealDisk {
    /// Opens a directory, which is made if it is not there. A file that is removed under load becomes the next one.
    /// `room` is that of its file system. What is in it is not changed before that is asked for.
    pub(crate) fn open(
        dir: &Path,
        name: &str,
        names: Names,
        wake: Wake,
        rests: Wake,
        room: &Arc<Room>,
    ) -> std::io::Result<Self> {
        std::fs::create_dir_all(dir)?;
        let list = Arc::new(Ranked::new(Rank::FileList, List::new(dir, names)));
        let (done_in, done) = channel();
        let (writes, to_write) = channel();
        let (reads, to_read) = channel();
        let writer = Writer::with_spare(dir, Arc::clone(room), Arc::clone(&list));
        let background = Writer::new(dir, Arc::clone(room), Arc::clone(&list));
        let buffers = Buffers::of_all(BUFFERS_KEPT);
        let reader =
            Reader { dir: dir.to_owned(), open: Vec::new(), background, buffers: buffers.clone() };
        let told = DiskBells { done: done_in, wake, rests };
        let digests = Digests::new(dir, name, room, told.clone());
        let threads = vec![
            spawn(&format!("{name}-write"), to_write, told.clone(), writer)?,
            spawn(&format!("{name}-read"), to_read, told, reader)?,
        ];
        let submit = Some([writes, reads]);
        let (dir, room) = (dir.to_owned(), Arc::clone(room));
        Ok(Self {
            dir,
            submit,
            done,
            threads,
            digests,
            buffers,
            room,
            uses_kept_room: false,
            list,
            is_untouched: true,
        })
    }

    /// Lets it use the room that messages do not get: what is deleted is noted there.
    pub fn use_kept_room(&mut self) {
        self.uses_kept_room = true;
    }

    /// What its list of files says, besides the files.
    pub(crate) fn list_says(&self) -> std::io::Result<Says> {
        let found = List::read(&self.dir)?;
        let state = match found.roster {
            Roster::None => ListState::Missing,
            Roster::Damaged(..) | Roster::GivenUp => ListState::Damaged,
            Roster::Whole(_) if found.is_empty => ListState::Empty,
            Roster::Whole(_) => ListState::Whole,
        };
        Ok(Says { names: found.names, start: found.start, state })
    }

    /// What its list of files says of the last start of the node.
    pub(crate) fn start_of(&self) -> Start {
        Start(Arc::clone(&self.list))
    }

    /// Before the first change: what a process that was killed had kept goes, and what there is stays after a power cut.
    fn touch(&mut self) -> std::io::Result<()> {
        if std::mem::take(&mut self.is_untouched) {
            writer::clear(&self.dir)?;
            sync_dir(&self.dir)?;
        }
        Ok(())
    }

    fn path(&self, file: FileName) -> PathBuf {
        self.dir.join(file.to_string())
    }
}

/// What a list of files says, besides the files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Says {
    /// How far the log of names was, as far as those know who wrote here.
    pub(crate) names: u64,
    /// The number of the last start of the node. 0 if it does not know.
    pub(crate) start: u64,
    /// Whether it can be asked.
    pub(crate) state: ListState,
}

/// What a list of files says of the last start of the node, for as long as that goes on.
#[derive(Clone, Debug)]
pub(crate) struct Start(Arc<Ranked<List>>);

impl Start {
    /// Says it as soon as there is a list, or it is written when the log is opened.
    pub(crate) fn set(&self, start: u64) {
        self.0.lock().set_start(start);
    }

    /// Whether there is a list: an open log's says what was set before.
    pub(crate) fn is_written(&self) -> bool {
        self.0.lock().is_there()
    }

    /// Says it in the list of an open log, and is safe.
    pub(crate) fn write(&self, start: u64) -> std::io::Result<()> {
        self.0.lock().write_start(start)
    }
}

/// Whether there is a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListState {
    Missing,
    Damaged,
    /// An operator wants to go on with what is there.
    Empty,
    Whole,
}

/// Where a thread says what it did, and whom it wakes for that.
#[derive(Clone)]
struct DiskBells {
    done: Sender<(Token, Done)>,
    wake: Wake,
    rests: Wake,
}

/// What a thread does.
trait Worker: Send + 'static {
    /// It writes what confirms wait for.
    const WRITES: bool;

    fn run(&mut self, job: Job) -> Option<(Token, Done)>;

    /// Whoever waits for what was done has been told.
    fn settle(&mut self) -> Result<(), DiskError>;

    /// Nothing came for a while.
    fn rest(&mut self) -> Result<(), DiskError>;

    /// Nothing came since: is the disk short of what is kept for later?
    fn make_room(&mut self);

    /// Nothing came for long, or comes ever.
    fn sleep(&mut self) -> Result<(), DiskError>;
}

impl Job {
    /// What it is, and the bytes that it moves: for what tells that it took long.
    fn kind(&self) -> (&'static str, u64) {
        let bytes_of = |pieces: &[Piece]| pieces.iter().map(|it| it.len as u64).sum();
        match self {
            Self::Do(_, Op::Write { head, body, sync: true, .. }) => {
                ("a write and sync", (head.len() + body.len()) as u64)
            }
            Self::Do(_, Op::Write { head, body, .. }) => {
                ("a write", (head.len() + body.len()) as u64)
            }
            Self::Do(_, Op::Read { pieces, .. }) => ("a read", bytes_of(pieces)),
            Self::Do(_, Op::Remove { .. }) => ("a removal of a file", 0),
            Self::Do(_, Op::Mend { bytes, .. }) => ("a repair", bytes.len() as u64),
            Self::Do(_, Op::Cut { .. }) => ("a cut of a file", 0),
            Self::Do(_, Op::SetPoint(_)) => ("a write of the point", 0),
            Self::Do(_, Op::Receive { bytes, .. }) => ("a write of a piece", bytes.len() as u64),
            Self::Do(_, Op::Discard { .. }) => ("a removal of what came of a file", 0),
            Self::Do(_, Op::Check { len, .. }) => ("a look at a file", *len),
            Self::Do(_, Op::Install { .. }) => ("a change of all files", 0),
            Self::Do(_, Op::Digest { .. }) => ("a digest", 0),
            Self::Close(_) | Self::CloseAll => ("a close of a file", 0),
        }
    }
}

/// A thread that does what comes, until nothing can come any more.
fn spawn<W: Worker>(
    name: &str,
    jobs: Receiver<Job>,
    told: DiskBells,
    mut worker: W,
) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let beat = DiskBeat::of_this_thread(W::WRITES);
        // Nobody waits for it when the log is gone; it was done all the same.
        let tell = |completion| {
            let _ = told.done.send(completion);
            (told.wake)();
        };
        // What nobody asked for fails for all.
        let check = |result: Result<(), DiskError>| {
            if let Err(error) = result {
                tracing::error!(%error, "what is kept of a log cannot be written");
                tell((NOBODYS, Done::Failed(error)));
            }
        };
        while let Ok(mut job) = jobs.recv() {
            loop {
                let (what, bytes) = job.kind();
                let what = || format!("{what} of {bytes} bytes");
                if let Some(completion) = beat.during_what(what, || worker.run(job)) {
                    tell(completion);
                }
                check(beat.during(|| worker.settle()));
                let next = jobs.recv_timeout(REST).or_else(|error| {
                    if error == RecvTimeoutError::Timeout {
                        check(beat.during(|| worker.rest()));
                        (told.rests)();
                    }
                    wait(&jobs, || beat.during(|| worker.make_room()))
                });
                let Ok(next) = next else { break };
                job = next;
            }
            check(beat.during(|| worker.sleep()));
        }
    })
}

/// The next job, if there is one before it is time to sleep. Calls `look` about once a second meanwhile.
fn wait(jobs: &Receiver<Job>, mut look: impl FnMut()) -> Result<Job, RecvTimeoutError> {
    let until = Instant::now() + SLEEP;
    loop {
        look();
        match jobs.recv_timeout(REST) {
            Err(RecvTimeoutError::Timeout) if Instant::now() < until => {}
            next => return next,
        }
    }
}

impl Drop for RealDisk {
    fn drop(&mut self) {
        self.submit = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn failed(error: &std::io::Error) -> DiskError {
    DiskError::Failed(error.to_string())
}

/// A write that found no room can be tried again; nothing else can.
fn not_written(error: &std::io::Error) -> DiskError {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => DiskError::Full,
        _ => failed(error),
    }
}

fn tell_stuck(dir: &Path, file: FileName, error: &std::io::Error) {
    tracing::error!(
        log = %dir.display(),
        %file,
        %error,
        "a file that nobody needs cannot be removed: it takes its room until that is tried again, after another removal or by \
         the next start, and so do files with acks of its messages"
    );
}

pub(crate) fn sync_dir(dir: &Path) -> std::io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Whether two files do not differ.
fn have_same_bytes(one: &Path, other: &Path) -> std::io::Result<bool> {
    let (one, other) = (File::open(one)?, File::open(other)?);
    let [one_is, other_is] = [one.metadata()?, other.metadata()?];
    if (one_is.dev(), one_is.ino()) == (other_is.dev(), other_is.ino()) {
        return Ok(true);
    }
    if one_is.len() != other_is.len() {
        return Ok(false);
    }
    let (mut left, mut bytes) = (one_is.len(), [vec![0; POOLED_MIN], vec![0; POOLED_MIN]]);
    while left > 0 {
        let len = usize::try_from(left).unwrap_or(POOLED_MIN).min(POOLED_MIN);
        let at = one_is.len() - left;
        for (file, bytes) in [&one, &other].into_iter().zip(&mut bytes) {
            file.read_exact_at(&mut bytes[..len], at)?;
        }
        if bytes[0][..len] != bytes[1][..len] {
            return Ok(false);
        }
        left -= len as u64;
    }
    Ok(true)
}

struct Reader {
    dir: PathBuf,
    /// The least recently used first.
    open: Vec<(FileName, File)>,
    background: Writer,
    buffers: Buffers,
}

impl Worker for Reader {
    const WRITES: bool = false;

    fn run(&mut self, job: Job) -> Option<(Token, Done)> {
        match job {
            Job::Do(token, Op::Read { file, pieces }) => {
                let read = self.read(file, &pieces).map_err(|error| failed(&error));
                Some((token, Done::Read(read)))
            }
            Job::Close(file) => {
                self.open.retain(|(open, _)| *open != file);
                self.background.run(job)
            }
            Job::CloseAll => {
                self.open.clear();
                self.background.run(job)
            }
            Job::Do(..) => self.background.run(job),
        }
    }

    fn settle(&mut self) -> Result<(), DiskError> {
        self.background.settle()
    }

    fn rest(&mut self) -> Result<(), DiskError> {
        self.buffers.close();
        self.background.rest()
    }

    fn make_room(&mut self) {}

    fn sleep(&mut self) -> Result<(), DiskError> {
        self.background.rest()
    }
}

impl Reader {
    fn read(&mut self, name: FileName, pieces: &[Piece]) -> std::io::Result<Bytes> {
        let open = match self.open.iter().position(|(open, _)| *open == name) {
            Some(index) => self.open.remove(index),
            None => (name, File::open(self.dir.join(name.to_string()))?),
        };
        if self.open.len() >= READ_FILES {
            self.open.remove(0);
        }
        let since = Instant::now();
        let len = pieces.iter().map(|piece| piece.len).sum();
        let result = if len < POOLED_MIN {
            let mut bytes = vec![0; len];
            read_pieces(&open.1, pieces, &mut bytes).map(|()| Bytes::from(bytes))
        } else {
            let mut lent = self.buffers.lend(len);
            read_pieces(&open.1, pieces, lent.bytes()).map(|()| lent.freeze(len))
        };
        READS.count(len as u64, since);
        self.open.push(open);
        result
    }
}

/// Reads them one behind the other into `into`, which has room for all.
fn read_pieces(file: &File, pieces: &[Piece], into: &mut [u8]) -> std::io::Result<()> {
    let mut rest = into;
    for piece in pieces {
        let (to, after) = rest.split_at_mut(piece.len);
        file.read_exact_at(to, piece.position)?;
        rest = after;
    }
    Ok(())
}

impl Disk for RealDisk {
    fn submit(&mut self, token: Token, op: Op) {
        let Some([writes, reads]) = &self.submit else { return };
        let to = match op {
            Op::Read { .. } | Op::Write { is_background: true, .. } => reads,
            Op::Write { .. } | Op::Remove { .. } | Op::Cut { .. } | Op::SetPoint(_) => writes,
            Op::Mend { .. } => writes,
            Op::Receive { .. } | Op::Discard { .. } | Op::Check { .. } => writes,
            Op::Install { .. } => {
                let _ = reads.send(Job::CloseAll);
                writes
            }
            Op::Digest { file, len } => return self.digests.make(token, file, len),
        };
        // A thread ends only after the sender is dropped, or in a panic, which ends the process.
        if let Op::Remove { file, .. } = op {
            let _ = reads.send(Job::Close(file));
        }
        let _ = to.send(Job::Do(token, op));
    }

    fn poll(&mut self) -> Option<(Token, Done)> {
        self.done.try_recv().ok()
    }

    fn held_bytes(&self) -> u64 {
        self.buffers.idle_bytes() as u64
    }

    fn room(&self) -> u64 {
        if self.uses_kept_room { self.room.free() } else { self.room.left() }
    }

    fn is_short(&self) -> bool {
        self.room.is_short()
    }

    fn last_room(&self) -> u64 {
        self.room.free()
    }

    fn wants_room(&self) -> bool {
        self.room.is_wanted()
    }

    fn coming(&mut self) -> Result<Vec<(FileName, u64)>, DiskError> {
        let coming = || {
            let mut found = Vec::new();
            for entry in std::fs::read_dir(&self.dir)? {
                let entry = entry?;
                if let Some(name) = entry.file_name().to_str().and_then(FileName::of_coming) {
                    found.push((name, entry.metadata()?.len()));
                }
            }
            Ok(found)
        };
        coming().map_err(|error| failed(&error))
    }

    fn roster(&mut self) -> Result<Roster, DiskError> {
        List::finish_install(&self.dir).map_err(|error| failed(&error))?;
        List::read(&self.dir).map(|found| found.roster).map_err(|error| failed(&error))
    }

    fn enlist(&mut self, lines: &RosterLines, is_needed: bool) -> Result<(), DiskError> {
        let enlisted = self.touch().and_then(|()| self.list.lock().enlist(lines, is_needed));
        enlisted.map_err(|error| not_written(&error))
    }

    fn list(&mut self) -> Result<Vec<(FileName, u64)>, DiskError> {
        let list = || {
            let mut found = Vec::new();
            for entry in std::fs::read_dir(&self.dir)? {
                let entry = entry?;
                if let Some(name) = entry.file_name().to_str().and_then(FileName::parse) {
                    let told = entry.metadata()?;
                    if told.file_type().is_fifo() {
                        // Whoever opens it may wait for ever.
                        let why = format!("{name} is a named pipe, and no file");
                        return Err(std::io::Error::new(ErrorKind::InvalidInput, why));
                    }
                    found.push((name, told.len()));
                }
            }
            Ok(found)
        };
        list().map_err(|error| failed(&error))
    }

    fn read_now(
        &mut self,
        file: FileName,
        position: u64,
        into: &mut [u8],
    ) -> Result<(), DiskError> {
        let file = File::open(self.path(file)).map_err(|error| failed(&error))?;
        file.read_exact_at(into, position).map_err(|error| failed(&error))
    }

    fn truncate_now(&mut self, file: FileName, len: u64) -> Result<(), DiskError> {
        let mut truncate = || {
            self.touch()?;
            let file = OpenOptions::new().write(true).open(self.path(file))?;
            file.set_len(len)?;
            file.sync_all()?;
            sync_dir(&self.dir)
        };
        truncate().map_err(|error| failed(&error))
    }

    fn write_now(&mut self, file: FileName, position: u64, bytes: &[u8]) -> Result<(), DiskError> {
        let path = self.path(file);
        let open = self
            .touch()
            .and_then(|()| OpenOptions::new().create(true).truncate(false).write(true).open(path));
        let written = open.and_then(|file| file.write_all_at(bytes, position));
        written.map_err(|error| not_written(&error))
    }

    fn keep_aside(&mut self, file: FileName) -> Result<String, DiskError> {
        let from = self.path(file);
        let mut keep = || {
            self.touch()?;
            if !from.exists() {
                let name = file.absent();
                File::create(self.dir.join(&name))?.sync_all()?;
                sync_dir(&self.dir)?;
                return Ok(name);
            }
            let mut count = 1;
            let (name, to) = loop {
                let name = file.aside_again(count);
                let to = self.dir.join(&name);
                if !to.exists() {
                    break (name, to);
                }
                if have_same_bytes(&from, &to)? {
                    return Ok(name);
                }
                count += 1;
            };
            // The same bytes under both names, where the file system can do that.
            if std::fs::hard_link(&from, &to).is_err() {
                let new = self.dir.join("kept.new");
                std::fs::copy(&from, &new)?;
                File::open(&new)?.sync_all()?;
                std::fs::rename(&new, &to)?;
            }
            sync_dir(&self.dir)?;
            Ok(name)
        };
        keep().map_err(|error| not_written(&error))
    }

    fn kept(&mut self) -> Result<Vec<FileName>, DiskError> {
        let kept = || {
            let mut found = Vec::new();
            for entry in std::fs::read_dir(&self.dir)? {
                found.extend(entry?.file_name().to_str().and_then(FileName::of_kept));
            }
            Ok(found)
        };
        kept().map_err(|error| failed(&error))
    }

    fn digest(&mut self, file: FileName) -> Result<Vec<u8>, DiskError> {
        digests::read(&self.dir, file).map_err(|error| failed(&error))
    }

    fn keep_digests(&mut self, of: &[FileName]) {
        digests::keep(&self.dir, of);
    }

    fn disown_now(&mut self) -> Result<(), DiskError> {
        let mut disown = || {
            self.touch()?;
            for entry in std::fs::read_dir(&self.dir)? {
                let entry = entry?;
                if let Some(name) = entry.file_name().to_str().and_then(FileName::parse) {
                    std::fs::rename(entry.path(), self.dir.join(name.coming()))?;
                }
            }
            sync_dir(&self.dir)?;
            digests::keep(&self.dir, &[]);
            List::forget(&self.dir)
        };
        disown().map_err(|error| not_written(&error))
    }

    fn remove_now(&mut self, file: FileName) -> Result<(), DiskError> {
        self.touch().map_err(|error| failed(&error))?;
        self.list.lock().strike(file)?;
        let removed = std::fs::remove_file(self.path(file)).and_then(|()| sync_dir(&self.dir));
        removed.map_err(|error| {
            tell_stuck(&self.dir, file, &error);
            failed(&error)
        })?;
        self.list.lock().gone(file)
    }
}

#[cfg(test)]
mod tests;
