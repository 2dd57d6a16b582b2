//! File descriptors: some are kept for files.
//!
//! Every connection takes one, and clients decide how many there are; but what they send can only be stored, and
//! read again, by a broker that can open files. The kernel gives the lowest number that is free: a socket with
//! a number among the last ones says that only those are left, and is closed again.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::disk::FILES_MAX;

/// For what is opened now and then: certificates, a log file, what the system tells of the process.
const OTHERS: u64 = 16;

/// Sockets get numbers below this one.
static SOCKETS_MAX: AtomicU64 = AtomicU64::new(u64::MAX);

/// Raises the limit of open files to what the system allows, and keeps some for so many logs. Tells the limit,
/// if there is one.
pub(crate) fn raise_limit(logs: usize) -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
    let limit = getrlimit(Resource::Nofile).current?;
    let kept = (FILES_MAX as u64 * logs as u64 + OTHERS).min(limit / 2);
    SOCKETS_MAX.store(limit - kept, Ordering::Relaxed);
    Some(limit)
}

/// Whether a socket that was just accepted may be kept.
pub fn leave_room(socket: &impl AsRawFd) -> bool {
    u64::try_from(socket.as_raw_fd()).is_ok_and(|fd| fd < SOCKETS_MAX.load(Ordering::Relaxed))
}
