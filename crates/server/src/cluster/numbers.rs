//! What a node tells the others of its process.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use leveret_link::letters::NodeNumbers;
use rustix::process::getpid;

use super::standby::Totals;
use crate::process::{open_files, resident_bytes};
use crate::room::free_bytes;

/// Where the numbers come from.
#[derive(Debug)]
pub(super) struct Numbers {
    pub(super) started: Instant,
    pub(super) dir: PathBuf,
    pub(super) processors: u64,
    pub(super) mem_limit: u64,
    pub(super) disk_free_limit: u64,
    pub(super) relayed: Arc<Totals>,
}

impl Numbers {
    /// As of now.
    pub(super) fn now(&self) -> NodeNumbers {
        let disk_free = free_bytes(&self.dir).unwrap_or_default();
        let mem_used = resident_bytes();
        let (fd_used, fd_total) = open_files();
        let relayed = self.relayed.now().open;
        NodeNumbers {
            uptime_ms: self.started.elapsed().as_millis() as u64,
            os_pid: getpid().as_raw_nonzero().get().unsigned_abs().into(),
            mem_used,
            mem_limit: self.mem_limit,
            mem_alarm: u64::from(mem_used > self.mem_limit),
            disk_free,
            disk_free_limit: self.disk_free_limit,
            disk_free_alarm: u64::from(disk_free < self.disk_free_limit),
            fd_used,
            fd_total,
            // Each is two: to the client, and to the node that leads.
            sockets_used: 2 * relayed,
            processors: self.processors,
            relayed,
            ..NodeNumbers::default()
        }
    }
}
