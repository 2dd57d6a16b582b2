//! What the operating system knows of the process.

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
