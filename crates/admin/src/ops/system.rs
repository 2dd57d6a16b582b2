//! What the operating system knows of the process.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

/// Open file descriptors and their limit.
pub fn open_files() -> (u64, u64) {
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64);
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    (open, limit.current.unwrap_or(u64::MAX))
}

/// Memory of the process in the machine's memory, in bytes.
pub fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

/// Free bytes of the disk that holds `dir`; 0 when it cannot be told.
pub fn free_bytes(dir: &Path) -> u64 {
    leveret_server::alarms::free_bytes(dir).unwrap_or(0)
}

/// Operating system and release.
pub fn os() -> String {
    let uname = rustix::system::uname();
    format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy())
}

/// The end of a text file, `bytes` at most; what is cut off begins at a line.
pub fn tail(path: &Path, bytes: u64) -> std::io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let from = file.metadata()?.len().saturating_sub(bytes);
    file.seek(SeekFrom::Start(from))?;
    let mut read = Vec::new();
    file.take(bytes).read_to_end(&mut read)?;
    let text = String::from_utf8_lossy(&read);
    let whole = if from > 0 { text.split_once('\n').map_or("", |(_, rest)| rest) } else { &*text };
    Ok(whole.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_begin_at_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        std::fs::write(&path, "first\nsecond\nthird\n").unwrap();
        assert_eq!(tail(&path, 100).unwrap(), "first\nsecond\nthird\n");
        assert_eq!(tail(&path, 9).unwrap(), "third\n");
        assert!(tail(&dir.path().join("none"), 9).is_err());
    }
}
