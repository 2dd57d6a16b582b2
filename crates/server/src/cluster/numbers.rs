//! What a node tells the others of its process.

use std::path::PathBuf;
use std::time::Instant;

use leveret_link::letters::NodeNumbers;
use rustix::param::page_size;
use rustix::process::{Resource, getpid, getrlimit};

use crate::room::free_bytes;

/// Where the numbers come from.
#[derive(Debug)]
pub(super) struct Numbers {
    pub(super) started: Instant,
    pub(super) dir: PathBuf,
    pub(super) processors: u64,
    pub(super) mem_limit: u64,
    pub(super) disk_free_limit: u64,
}

impl Numbers {
    /// As of now.
    pub(super) fn now(&self) -> NodeNumbers {
        let disk_free = free_bytes(&self.dir).unwrap_or_default();
        let mem_used = resident_bytes();
        NodeNumbers {
            uptime_ms: self.started.elapsed().as_millis() as u64,
            os_pid: getpid().as_raw_nonzero().get().unsigned_abs().into(),
            mem_used,
            mem_limit: self.mem_limit,
            mem_alarm: u64::from(mem_used > self.mem_limit),
            disk_free,
            disk_free_limit: self.disk_free_limit,
            disk_free_alarm: u64::from(disk_free < self.disk_free_limit),
            fd_used: std::fs::read_dir("/proc/self/fd").map_or(0, |all| all.count() as u64),
            fd_total: getrlimit(Resource::Nofile).current.unwrap_or_default(),
            processors: self.processors,
            ..NodeNumbers::default()
        }
    }
}

fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: Option<u64> = text.split(' ').nth(1).and_then(|it| it.parse().ok());
    pages.unwrap_or_default() * page_size() as u64
}
