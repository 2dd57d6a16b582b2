//! What a node tells the others of its process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use leveret_broker::flow::ALARM_MS;
use leveret_link::letters::NodeNumbers;
use rustix::process::getpid;

use super::standby::{Relayed, Totals};
use crate::clock::boot_ms;
use crate::process::{open_files, resident_bytes};
use crate::room::Room;
use crate::watchdog::WritersWatch;

/// When a write was last under way for [`HANGS`], in ms of [`boot_ms`]; 0 if none was. A process that begins anew is told.
static HUNG_MS: AtomicU64 = AtomicU64::new(0);

/// Under this name a process that begins anew has it in its environment.
const HUNG: &str = "LEVERET_DISK_HUNG_MS";

/// What the process that takes this one's place is to be told.
pub(super) fn to_be_told() -> Option<(&'static str, String)> {
    let at = HUNG_MS.load(Ordering::Relaxed);
    (at > 0).then(|| (HUNG, at.to_string()))
}

/// What the process before told this one. Of a time that is still to come it is not.
pub(super) fn take_told() {
    let told = std::env::var(HUNG).ok().and_then(|it| it.parse().ok());
    HUNG_MS.store(told.filter(|at| *at <= boot_ms()).unwrap_or_default(), Ordering::Relaxed);
}

/// As [`NodeNumbers::disk_hung_s`] has it.
fn hung_s(at_ms: u64, now_ms: u64) -> u64 {
    if at_ms == 0 { 0 } else { now_ms.saturating_sub(at_ms) / 1_000 + 1 }
}

/// Looks after which a write hangs that has not ended: seconds.
const HANGS: u64 = 5;

/// Where the numbers come from.
#[derive(Debug)]
pub(super) struct Numbers {
    pub(super) started: Instant,
    pub(super) room: Arc<Room>,
    pub(super) processors: u64,
    /// As [`NodeNumbers::plugins`] has them.
    pub(super) plugins: u64,
    pub(super) mem_limit: u64,
    pub(super) disk_free_limit: u64,
    pub(super) relayed: Arc<Totals>,
    pub(super) disk: DiskAlarm,
    pub(super) writers: WritersWatch,
    /// A write of a log has been under way for [`HANGS`].
    pub(super) hangs: bool,
}

impl Numbers {
    /// Looks at what is being written: to be called each second. What a process did not see as it stood still is no second.
    pub(super) fn look_at_writes(&mut self) {
        let hangs = self.writers.look() >= HANGS;
        if hangs {
            HUNG_MS.store(boot_ms().max(1), Ordering::Relaxed);
        }
        match (std::mem::replace(&mut self.hangs, hangs), hangs) {
            (false, true) => tracing::warn!(
                "a write of a log has been under way for {HANGS} s: this node stores nothing until the disk takes it"
            ),
            (true, false) => tracing::info!("the disk takes what is written again"),
            _ => {}
        }
    }

    /// As of now.
    pub(super) fn now(&mut self) -> NodeNumbers {
        let disk_free = self.room.look().unwrap_or_default();
        self.has_disk_news();
        let mem_used = resident_bytes();
        let (fd_used, fd_total) = open_files();
        let Relayed { open: relayed, sessions, .. } = self.relayed.now();
        NodeNumbers {
            uptime_ms: self.started.elapsed().as_millis() as u64,
            os_pid: getpid().as_raw_nonzero().get().unsigned_abs().into(),
            mem_used,
            mem_limit: self.mem_limit,
            mem_alarm: u64::from(mem_used > self.mem_limit),
            disk_free,
            disk_free_limit: self.disk_free_limit,
            disk_free_alarm: self.disk.level,
            fd_used,
            fd_total,
            // Each is two: to the client, and to the node that leads.
            sockets_used: 2 * relayed + sessions,
            processors: self.processors,
            relayed,
            plugins: self.plugins,
            disk_hung_s: hung_s(HUNG_MS.load(Ordering::Relaxed), boot_ms()),
            ..NodeNumbers::default()
        }
    }

    /// Whether the disk has become short of room, or is so no more, since that was looked at: as far as its writes tell.
    pub(super) fn has_disk_news(&mut self) -> bool {
        let (free, limit) = (self.room.free_here(), self.room.limit());
        let ms = self.started.elapsed().as_millis() as u64;
        let level = match free {
            _ if self.hangs => NodeNumbers::HANGS,
            _ if self.room.is_refused() => 2,
            free => u64::from(free < limit),
        };
        self.disk.look(level, free, limit, ms)
    }
}

/// Whether a node's disk has little room, as it tells the others.
#[derive(Debug, Default)]
pub(super) struct DiskAlarm {
    /// 0 if not; 1 below its limit; 2 if a write found none; 3 if a write does not end.
    level: u64,
    since_ms: u64,
}

impl DiskAlarm {
    /// True if the level is new. It lasts until there is a tenth more than the limit, or for as long as any alarm.
    fn look(&mut self, level: u64, free: u64, limit: u64, now_ms: u64) -> bool {
        let lasts_ms = now_ms.saturating_sub(self.since_ms);
        let is_over = free >= limit.saturating_add(limit / 10) || lasts_ms >= ALARM_MS;
        let level = if level == 0 && self.level > 0 && !is_over { 1 } else { level };
        if self.level == 0 && level > 0 {
            self.since_ms = now_ms;
        }
        std::mem::replace(&mut self.level, level) != level
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_hung_is_remembered() {
        let seconds =
            [(0, 9_000), (9_000, 9_000), (9_000, 9_999), (9_000, 10_000), (9_000, 69_500)];
        assert_eq!(seconds.map(|(at, now)| hung_s(at, now)), [0, 1, 1, 2, 61]);
        // What the process before told was so.
        HUNG_MS.store(7, Ordering::Relaxed);
        assert_eq!(to_be_told(), Some((HUNG, "7".to_owned())));
        take_told();
        assert_eq!(to_be_told(), None, "nobody told anything");
    }

    #[test]
    fn an_alarm_of_the_disk_is_told_when_it_changes() {
        let mut disk = DiskAlarm::default();
        assert!(!disk.look(0, 100, 100, 0));
        assert!(disk.look(1, 99, 100, 1));
        assert!(!disk.look(0, 105, 100, 2), "it lasts");
        assert!(disk.look(2, 105, 100, 3) && disk.level == 2);
        assert!(disk.look(3, 105, 100, 3) && disk.level == 3);
        assert!(disk.look(0, 110, 100, 4) && disk.level == 0);
        assert!(disk.look(1, 50, 100, 10));
        assert!(disk.look(0, 105, 100, 10 + ALARM_MS), "at the pace of any alarm");
    }
}
