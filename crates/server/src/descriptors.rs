//! File descriptors: some are kept for files.
//!
//! Every connection takes one, and clients decide how many there are; but what they send can only be stored, and
//! read again, by a broker that can open files. The kernel gives the lowest number that is free: a socket with
//! a number among the last ones says that only those are left, and is closed again. A node of a cluster keeps some more for the
//! other nodes: clients who take all that there are do not keep these out.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::clock::now;
use crate::disk::FILES_MAX;

/// For what is opened now and then: certificates, a log file, what the system tells of the process.
const OTHERS: u64 = 16;

/// How long a listener rests that could not accept: those who wait are served when somebody leaves.
const PAUSE: Duration = Duration::from_millis(100);

/// So often, in ms, is it told that connections are refused.
const TELL_MS: u64 = 10_000;

/// Sockets of clients get numbers below this one.
static CLIENTS_MAX: AtomicU64 = AtomicU64::new(u64::MAX);
/// All sockets do.
static SOCKETS_MAX: AtomicU64 = AtomicU64::new(u64::MAX);
/// The limit of open files.
static LIMIT: AtomicU64 = AtomicU64::new(u64::MAX);
static REFUSED: Refused = Refused::new();

/// Connections that were not let in, as there were no files for them.
#[derive(Debug)]
struct Refused {
    count: AtomicU64,
    /// How many there were when it was told last.
    told: AtomicU64,
    /// Before this time, in ms, it is not told again.
    next_ms: AtomicU64,
}

impl Refused {
    const fn new() -> Self {
        Self { count: AtomicU64::new(0), told: AtomicU64::new(0), next_ms: AtomicU64::new(0) }
    }

    /// One more; how many there are since it was told last, if it is to be told again.
    fn add(&self, now_ms: u64) -> Option<u64> {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let next_ms = self.next_ms.load(Ordering::Relaxed);
        let later_ms = now_ms + TELL_MS;
        let is_due = now_ms >= next_ms
            && self
                .next_ms
                .compare_exchange(next_ms, later_ms, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        is_due.then(|| count.saturating_sub(self.told.swap(count, Ordering::Relaxed)))
    }
}

/// Raises the limit of open files to what the system allows, and keeps some for so many logs, and for so many sockets of other
/// nodes. Tells the limit, if there is one.
pub(crate) fn raise_limit(logs: usize, of_nodes: usize) -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
    let limit = getrlimit(Resource::Nofile).current?;
    let kept = (FILES_MAX as u64 * logs as u64 + OTHERS).min(limit / 2);
    let sockets = limit - kept;
    SOCKETS_MAX.store(sockets, Ordering::Relaxed);
    CLIENTS_MAX.store(sockets - (of_nodes as u64).min(sockets / 2), Ordering::Relaxed);
    LIMIT.store(limit, Ordering::Relaxed);
    Some(limit)
}

/// Whether a client's socket, or one that was opened for a client, may be kept. One that may not is counted.
pub fn leave_room(socket: &impl AsRawFd) -> bool {
    is_below(&CLIENTS_MAX, socket)
}

/// The same of a socket that another node may have opened.
pub(crate) fn leave_room_for_files(socket: &impl AsRawFd) -> bool {
    is_below(&SOCKETS_MAX, socket)
}

fn is_below(max: &AtomicU64, socket: &impl AsRawFd) -> bool {
    let max = max.load(Ordering::Relaxed);
    let is_kept = u64::try_from(socket.as_raw_fd()).is_ok_and(|fd| fd < max);
    if !is_kept {
        refuse();
    }
    is_kept
}

/// Connections that were not let in, since the start, as there were no files for them.
pub fn refused() -> u64 {
    REFUSED.count.load(Ordering::Relaxed)
}

fn refuse() {
    if let Some(refused) = REFUSED.add(now().ms()) {
        let open_files_max = LIMIT.load(Ordering::Relaxed);
        tracing::warn!(
            target: "connection", open_files_max, refused,
            "file descriptor limit alarm set: the limit of open files is reached, and new connections will not be accepted \
             until others are closed; close some, or raise the limit (LimitNOFILE of the service, ulimit -n)"
        );
    }
}

/// A connection could not be accepted: says why, and rests for a while. `what` was to be accepted.
pub async fn not_accepted(error: &io::Error, what: &str) {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE | Errno::NFILE) => refuse(),
        _ => tracing::warn!(from = what, %error, "{what} could not be accepted"),
    }
    tokio::time::sleep(PAUSE).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_that_is_refused_is_one_line() {
        let refused = Refused::new();
        let told: Vec<u64> = (0..500).filter_map(|n| refused.add(1_000 + n)).collect();
        assert_eq!(told, [1]);
        assert_eq!(refused.add(11_000), Some(500));
        assert_eq!(refused.add(11_001), None);
        assert_eq!(refused.count.load(Ordering::Relaxed), 502);
    }
}
