//! The log file. It makes way for a new one when it is long enough: `x.log` becomes `x.log.0`, and so on.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::output::Sink;

/// When it is tried again to make way, if that failed.
const AGAIN: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    bytes: u64,
    bytes_max: u64,
    kept: usize,
    /// When it failed to make way.
    failed: Option<Instant>,
}

impl LogFile {
    pub(super) fn open(path: PathBuf, bytes_max: u64, kept: usize) -> io::Result<Self> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir)?;
        }
        let name = |error: io::Error| {
            io::Error::new(error.kind(), format!("cannot log to {}: {error}", path.display()))
        };
        let file = open_to_append(&path).map_err(name)?;
        let bytes = file.metadata()?.len();
        Ok(Self { path, file, bytes, bytes_max, kept, failed: None })
    }

    /// Opens what has the file's name, or makes it. The old file stays in use if that fails.
    pub(super) fn reopen(&mut self) -> io::Result<()> {
        let file = open_to_append(&self.path)?;
        self.bytes = file.metadata()?.len();
        self.file = file;
        Ok(())
    }

    /// Whether the file has its name still: nobody moved or removed it.
    fn is_in_place(&self) -> bool {
        let id = |data: std::fs::Metadata| (data.dev(), data.ino());
        let named = std::fs::metadata(&self.path).map(id).ok();
        named.is_some() && named == self.file.metadata().map(id).ok()
    }

    /// Makes way for a new file.
    pub(super) fn rotate(&mut self) -> io::Result<()> {
        let rotated = self.try_rotate();
        rotated.map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", self.path.display()))
        })
    }

    fn try_rotate(&mut self) -> io::Result<()> {
        if !self.is_in_place() {
            return self.reopen();
        }
        let numbered = |n: usize| {
            let mut name = self.path.as_os_str().to_owned();
            name.push(format!(".{n}"));
            PathBuf::from(name)
        };
        for n in (1..self.kept).rev() {
            // A number that is not there yet leaves a gap, which is no fault.
            let _ = std::fs::rename(numbered(n - 1), numbered(n));
        }
        if self.kept > 0 {
            std::fs::rename(&self.path, numbered(0))?;
        } else {
            std::fs::remove_file(&self.path)?;
        }
        self.reopen()
    }

    /// Makes way if it is long enough. If it cannot, it grows on: no line is lost for that.
    fn rotate_if_long(&mut self, more: u64) {
        let is_long = self.bytes_max > 0 && self.bytes > 0 && self.bytes + more > self.bytes_max;
        if !is_long || self.failed.is_some_and(|at| at.elapsed() < AGAIN) {
            return;
        }
        self.failed = None;
        if let Err(error) = self.rotate() {
            self.failed = Some(Instant::now());
            tracing::error!("the log file cannot make way for a new one, and grows on: {error}");
        }
    }
}

impl Sink for LogFile {
    fn put(&mut self, line: &[u8]) -> io::Result<()> {
        self.rotate_if_long(line.len() as u64);
        self.file.write_all(line)?;
        self.bytes += line.len() as u64;
        Ok(())
    }
}

/// A named pipe that nobody reads is refused, and none is waited for: the start would.
fn open_to_append(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().create(true).append(true).custom_flags(flags).open(path)?;
    // From here on whoever writes waits for whoever reads.
    fcntl_setfl(&file, fcntl_getfl(&file)? & !OFlags::NONBLOCK)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_file_makes_way() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.log");
        let mut log = LogFile::open(path, 10, 2).expect("a file");
        for line in ["12345678\n", "second\n", "third\n", "fourth\n"] {
            log.put(line.as_bytes()).expect("written");
        }
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).ok();
        assert_eq!(read("x.log").as_deref(), Some("fourth\n"));
        assert_eq!(read("x.log.0").as_deref(), Some("third\n"));
        assert_eq!(read("x.log.1").as_deref(), Some("second\n"));
        assert_eq!(read("x.log.2"), None, "only two are kept");
    }

    /// It is not tried at each line: each try moves what is kept on by a number, and the last one falls off.
    #[test]
    fn a_long_file_that_cannot_make_way_grows() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.log");
        std::fs::create_dir_all(dir.path().join("x.log.1/full")).expect("a directory");
        std::fs::create_dir_all(dir.path().join("x.log.0/full")).expect("a directory");
        let mut log = LogFile::open(path.clone(), 10, 2).expect("a file");
        for line in ["12345678\n", "second\n", "third\n"] {
            log.put(line.as_bytes()).expect("written");
        }
        let read = |path: &Path| std::fs::read_to_string(path).ok();
        assert_eq!(read(&path).as_deref(), Some("12345678\nsecond\nthird\n"));
        log.rotate().expect_err("it cannot");
        std::fs::remove_dir_all(dir.path().join("x.log.0")).expect("removed");
        log.failed = log.failed.and_then(|at| at.checked_sub(AGAIN));
        log.put(b"fourth\n").expect("written");
        assert_eq!(read(&path).as_deref(), Some("fourth\n"));
        assert!(read(&dir.path().join("x.log.0")).is_some_and(|it| it.ends_with("third\n")));
    }

    #[test]
    fn a_pipe_that_nobody_reads_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.log");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).expect("a pipe");
        let why = LogFile::open(path.clone(), 0, 2).expect_err("nobody reads").to_string();
        assert!(why.starts_with(&format!("cannot log to {}: ", path.display())), "{why}");
    }

    #[test]
    fn a_file_that_was_moved_away_gets_no_more() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("x.log");
        let mut log = LogFile::open(path.clone(), 0, 2).expect("a file");
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).ok();
        // As logrotate does it.
        log.put(b"1\n").expect("written");
        std::fs::rename(&path, dir.path().join("moved")).expect("moved");
        log.put(b"2\n").expect("written");
        log.reopen().expect("opened again");
        log.put(b"3\n").expect("written");
        assert_eq!(
            (read("moved").as_deref(), read("x.log").as_deref()),
            (Some("1\n2\n"), Some("3\n"))
        );
        // The broker's own way numbers the old ones, and takes nothing that is not there for one.
        log.rotate().expect("rotated");
        log.put(b"4\n").expect("written");
        assert_eq!(
            (read("x.log.0").as_deref(), read("x.log").as_deref()),
            (Some("3\n"), Some("4\n"))
        );
        std::fs::remove_file(&path).expect("removed");
        log.rotate().expect("rotated");
        log.put(b"5\n").expect("written");
        assert_eq!(
            (read("x.log.0").as_deref(), read("x.log").as_deref()),
            (Some("3\n"), Some("5\n"))
        );
    }
}
