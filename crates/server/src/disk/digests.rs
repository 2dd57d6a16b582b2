//! Makes digests of segments, which a start reads instead of those.
//!
//! Nobody waits for one, and each is no loss: so the thread works for [`SLICE`] and then rests [`RESTS`] times as long, by the
//! time that it had of a core. A node has as many shards as cores, so all of its digests take about 2 % of them, however much there is to do. It begins with the
//! first digest that is wanted. Nothing is synced: a digest that a power cut tears is none.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use leveret_config::files;
use leveret_log::disk::{Done, FileName, Token};
use leveret_log::file::{Digester, Undigested};
use rustix::time::{ClockId, clock_gettime};

use super::{DiskBells, failed, not_written};
use crate::room::Room;

/// Time of a core after which the thread rests.
const SLICE: Duration = Duration::from_millis(1);

/// How many times as long it rests as it worked.
const RESTS: u32 = 49;

/// The name of a digest that is being written ends so.
const NEW: &str = ".digest.new";

/// What is to be made of which file, of so many bytes.
type Job = (Token, FileName, u64);

/// What a digest may be longer than its file, in bytes: its header and more.
const LONGER: u64 = 4 << 10;

/// The digests of a directory.
pub(super) struct Digests {
    dir: PathBuf,
    name: String,
    room: Arc<Room>,
    told: DiskBells,
    thread: Option<(Sender<Job>, JoinHandle<()>)>,
}

impl Digests {
    pub(super) fn new(dir: &Path, name: &str, room: &Arc<Room>, told: DiskBells) -> Self {
        let (dir, name, room) = (dir.to_owned(), format!("{name}-digest"), Arc::clone(room));
        Self { dir, name, room, told, thread: None }
    }

    /// Has a digest made. Where that cannot be, the owner is told so as soon as it asks.
    pub(super) fn make(&mut self, token: Token, file: FileName, len: u64) {
        if self.thread.is_none() {
            self.thread = self.begin();
        }
        match &self.thread {
            Some((jobs, _)) => drop(jobs.send((token, file, len))),
            None => {
                let error = failed(&std::io::Error::other("there is no thread for it"));
                let _ = self.told.done.send((token, Done::Digested(Err(Undigested::Disk(error)))));
            }
        }
    }

    fn begin(&self) -> Option<(Sender<Job>, JoinHandle<()>)> {
        let (jobs, to_do) = channel();
        let mut worker = Worker {
            dir: self.dir.clone(),
            room: Arc::clone(&self.room),
            jobs: to_do,
            worked: Duration::ZERO,
            is_over: false,
        };
        let told = self.told.clone();
        let work = move || {
            while let Some((token, file, len)) = worker.next() {
                let result = worker.make(file, len);
                if worker.is_over {
                    return;
                }
                let _ = told.done.send((token, Done::Digested(result)));
                (told.wake)();
            }
        };
        let thread = std::thread::Builder::new().name(self.name.clone()).spawn(work).ok()?;
        Some((jobs, thread))
    }
}

impl Drop for Digests {
    fn drop(&mut self) {
        if let Some((jobs, thread)) = self.thread.take() {
            drop(jobs);
            let _ = thread.join();
        }
    }
}

struct Worker {
    dir: PathBuf,
    room: Arc<Room>,
    jobs: Receiver<Job>,
    /// Time of a core since it rested.
    worked: Duration,
    /// Nobody wants anything any more.
    is_over: bool,
}

impl Worker {
    fn next(&self) -> Option<Job> {
        self.jobs.recv().ok()
    }

    fn make(&mut self, file: FileName, len: u64) -> Result<(), Undigested> {
        let disk = |error: &std::io::Error| Undigested::Disk(failed(error));
        if !self.room.has_spare(0) {
            return Err(disk(&ErrorKind::StorageFull.into()));
        }
        let path = self.dir.join(file.to_string());
        let open = File::open(&path).map_err(|error| disk(&error))?;
        let mut digester = Digester::new(file, len);
        let mut read = |position, into: &mut [u8]| {
            open.read_exact_at(into, position).map_err(|error| failed(&error))
        };
        let digest = loop {
            let since = core_time();
            let step = digester.step(&mut read);
            self.rest_after(core_time().saturating_sub(since));
            match step {
                // What was removed meanwhile may be another file by now.
                Err(_) if self.is_over || !path.exists() => {
                    return Err(disk(&ErrorKind::NotFound.into()));
                }
                Err(error) => {
                    // The next start is to look at the file itself.
                    let _ = std::fs::remove_file(self.dir.join(file.digest()));
                    tell(&self.dir, file, &error);
                    return Err(error);
                }
                Ok(_) if self.is_over => return Err(disk(&ErrorKind::Interrupted.into())),
                Ok(Some(digest)) => break digest,
                Ok(None) => {}
            }
        };
        let since = core_time();
        let written = self.write(file, &digest);
        self.rest_after(core_time().saturating_sub(since));
        if !path.exists() {
            let _ = std::fs::remove_file(self.dir.join(file.digest()));
        }
        let written = written.map_err(|error| Undigested::Disk(not_written(&error)));
        written.inspect_err(|error| tell(&self.dir, file, error))
    }

    /// Whole or not at all, but for a power cut. What is left of a disk is for messages: a digest is no reason for an alarm.
    fn write(&self, file: FileName, digest: &[u8]) -> std::io::Result<()> {
        if !self.room.has_spare(digest.len() as u64) {
            return Err(ErrorKind::StorageFull.into());
        }
        let new = self.dir.join(format!("{file}{NEW}"));
        let written = std::fs::write(&new, digest)
            .and_then(|()| std::fs::rename(&new, self.dir.join(file.digest())));
        match &written {
            Ok(()) => self.room.wrote(digest.len() as u64),
            Err(_) => drop(std::fs::remove_file(&new)),
        }
        written
    }

    fn rest_after(&mut self, worked: Duration) {
        self.worked += worked;
        if self.worked < SLICE {
            return;
        }
        // One digest is wanted at a time: what comes now is the end.
        let ended = self.jobs.recv_timeout(std::mem::take(&mut self.worked) * RESTS);
        self.is_over |= !matches!(ended, Err(RecvTimeoutError::Timeout));
    }
}

/// Time of a core that this thread had.
fn core_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

fn tell(dir: &Path, file: FileName, error: &Undigested) {
    match error {
        Undigested::Damaged(position) => tracing::error!(
            log = %dir.display(),
            %file,
            position,
            "a file of messages is damaged: those that are not whole cannot be delivered. The next start goes on with what is \
             whole and says what is lost. To get it back, stop the broker, restore the file from a copy, and start again"
        ),
        Undigested::Disk(error) => tracing::warn!(
            from = %dir.display(),
            log = %dir.display(),
            %file,
            %error,
            "there is no digest of a file: the next start takes longer"
        ),
    }
}

/// The digest of a file. The file is read where there is none.
pub(super) fn read(dir: &Path, of: FileName) -> std::io::Result<Vec<u8>> {
    let path = dir.join(of.digest());
    let data = std::fs::metadata(&path)?;
    let checked = || match data.is_file() {
        true => {
            files::read_bytes(&path, std::fs::metadata(dir.join(of.to_string()))?.len() + LONGER)
        }
        false => Err(std::io::Error::other("it is no file")),
    };
    checked().inspect_err(|error| {
        tracing::warn!(digest = %path.display(), %error, "a digest cannot be read: its file is");
    })
}

/// Removes all but those of these files: what a process that was killed left, and those that are of no use.
pub(super) fn keep(dir: &Path, of: &[FileName]) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let is_useless = match FileName::of_digest(name) {
            Some(file) => !of.contains(&file),
            None => name.ends_with(NEW),
        };
        if is_useless {
            let _ = std::fs::remove_file(dir.join(name));
        }
    }
}
