//! What the operating system knows of the process.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

pub use leveret_server::process::{open_files, resident_bytes};

/// Free bytes of the disk that holds `dir`; 0 when it cannot be told.
pub fn free_bytes(dir: &Path) -> u64 {
    leveret_server::alarms::free_bytes(dir).unwrap_or(0)
}

/// Operating system and release.
pub fn os() -> String {
    let uname = rustix::system::uname();
    format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy())
}

/// Whole lines of a text file.
#[derive(Debug, PartialEq, Eq)]
pub struct Part {
    /// The lines.
    pub text: String,
    /// Where they end in the file, in bytes.
    pub end: u64,
}

/// The end of a text file, `bytes` at most; what is cut off begins at a line.
pub fn tail(path: &Path, bytes: u64) -> std::io::Result<Part> {
    let mut file = std::fs::File::open(path)?;
    let from = file.metadata()?.len().saturating_sub(bytes);
    let mut part = lines(&mut file, from, bytes)?;
    if from > 0 {
        part.text =
            part.text.split_once('\n').map_or_else(String::new, |(_, rest)| rest.to_owned());
    }
    Ok(part)
}

/// The lines after the first `from` bytes, `bytes` at most. From its beginning if the file is shorter: it is
/// another one by then.
pub fn after(path: &Path, from: u64, bytes: u64) -> std::io::Result<Part> {
    let mut file = std::fs::File::open(path)?;
    let from = if from > file.metadata()?.len() { 0 } else { from };
    lines(&mut file, from, bytes)
}

/// What of that is whole lines.
fn lines(file: &mut std::fs::File, from: u64, bytes: u64) -> std::io::Result<Part> {
    file.seek(SeekFrom::Start(from))?;
    let mut read = Vec::new();
    file.take(bytes).read_to_end(&mut read)?;
    let whole = read.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    // A line that does not fit at all is passed over, or nobody would come past it.
    let whole = if whole == 0 && read.len() as u64 == bytes { read.len() } else { whole };
    read.truncate(whole);
    Ok(Part { text: String::from_utf8_lossy(&read).into_owned(), end: from + whole as u64 })
}

/// What a thread of the process did so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// The system's number of it.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Time it ran, in milliseconds.
    pub user_ms: u64,
    /// Time the system worked for it, in milliseconds.
    pub system_ms: u64,
}

/// Every thread of the process, by number.
pub fn threads() -> Vec<Thread> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let of_task = |task: std::fs::DirEntry| {
        // One that ended meanwhile is none.
        let text = std::fs::read_to_string(task.path().join("stat")).ok()?;
        thread(&text, rustix::param::clock_ticks_per_second())
    };
    let mut threads: Vec<_> = tasks.filter_map(of_task).collect();
    threads.sort_by_key(|thread| thread.id);
    threads
}

/// A thread as the system tells of it: `12 (worker-0) S ...`. The name may hold anything.
fn thread(text: &str, ticks_per_second: u64) -> Option<Thread> {
    let (id, rest) = text.split_once(" (")?;
    let (name, rest) = rest.rsplit_once(") ")?;
    // State and ten numbers, then the times.
    let mut times = rest.split_whitespace().skip(11);
    let mut ms = || Some(times.next()?.parse::<u64>().ok()? * 1000 / ticks_per_second);
    let (user_ms, system_ms) = (ms()?, ms()?);
    Some(Thread { id: id.parse().ok()?, name: name.to_owned(), user_ms, system_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_begin_at_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        std::fs::write(&path, "first\nsecond\nthird\n").unwrap();
        let part = |text: &str, end| Part { text: text.to_owned(), end };
        assert_eq!(tail(&path, 100).unwrap(), part("first\nsecond\nthird\n", 19));
        assert_eq!(tail(&path, 9).unwrap(), part("third\n", 19));
        assert!(tail(&dir.path().join("none"), 9).is_err());
    }

    #[test]
    fn who_follows_a_file_gets_whole_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        std::fs::write(&path, "first\nsecond\nbegun").unwrap();
        let part = |text: &str, end| Part { text: text.to_owned(), end };
        assert_eq!(after(&path, 6, 100).unwrap(), part("second\n", 13));
        assert_eq!(after(&path, 13, 100).unwrap(), part("", 13));
        assert_eq!(after(&path, 0, 8).unwrap(), part("first\n", 6));
        assert_eq!(after(&path, 6, 3).unwrap(), part("sec", 9));
        // Shorter than it was: the log began anew.
        assert_eq!(after(&path, 500, 100).unwrap(), part("first\nsecond\n", 13));
    }

    #[test]
    fn open_files_are_counted() {
        const MORE: usize = 300;
        let held: Vec<_> = (0..MORE).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        // Other tests of this process open some, too, but not as many.
        assert!(open_files().0 > MORE as u64);
        drop(held);
        assert!((3..MORE as u64).contains(&open_files().0));
    }

    #[test]
    fn threads_are_told_by_the_system() {
        let text = "12 (a) b) S 1 2 3 4 5 6 7 8 9 10 250 30 0 0 20";
        let want = Thread { id: 12, name: "a) b".to_owned(), user_ms: 2500, system_ms: 300 };
        assert_eq!(thread(text, 100), Some(want));
        assert_eq!(thread("12 (a) S 1", 100), None);
        assert!(!threads().is_empty());
    }
}
