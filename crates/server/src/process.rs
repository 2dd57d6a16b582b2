//! What the operating system knows of the process.

use rustix::param::page_size;
use rustix::process::{Resource, getrlimit};

/// Open file descriptors and their limit.
pub fn open_files() -> (u64, u64) {
    // Since Linux 6.2 the directory's size is how many there are; listing tens of thousands takes milliseconds.
    let dir = "/proc/self/fd";
    let size = std::fs::metadata(dir).map_or(0, |dir| dir.len());
    let count = || std::fs::read_dir(dir).map_or(0, |entries| entries.count() as u64);
    let open = if size > 0 { size } else { count() };
    (open, getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
}

/// Memory of the process in the machine's memory, in bytes.
pub fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * page_size() as u64
}
