//! What a node tells the others of its process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use leveret_broker::flow::ALARM_MS;
use leveret_link::letters::NodeNumbers;
use rustix::process::getpid;

use super::standby::{Relayed, Totals};
use crate::clock::{boot_ms, own_wall};
use crate::disk::IoTotals;
use crate::process::{open_files, resident_bytes};
use crate::room::Room;
use crate::watchdog::WritersWatch;

/// When a disk was last found to be bad, in ms of [`boot_ms`]; 0 if it never was. A process that begins anew is told.
struct LastFound {
    at_ms: AtomicU64,
    /// Under this name such a process has it in its environment.
    name: &'static str,
}

/// A write was under way for [`HANGS`].
static HUNG: LastFound = LastFound { at_ms: AtomicU64::new(0), name: "LEVERET_DISK_HUNG_MS" };

/// Syncs were slow for [`SLOW`].
static WAS_SLOW: LastFound = LastFound { at_ms: AtomicU64::new(0), name: "LEVERET_DISK_SLOW_MS" };

impl LastFound {
    fn is_now(&self) {
        self.at_ms.store(boot_ms().max(1), Ordering::Relaxed);
    }

    fn told(&self) -> Option<(&'static str, String)> {
        let at = self.at_ms.load(Ordering::Relaxed);
        (at > 0).then(|| (self.name, at.to_string()))
    }

    /// Of a time that is still to come it is not.
    fn take_told(&self) {
        let told = std::env::var(self.name).ok().and_then(|it| it.parse().ok());
        let told = told.filter(|at| *at <= boot_ms());
        self.at_ms.store(told.unwrap_or_default(), Ordering::Relaxed);
    }

    /// As [`NodeNumbers::disk_hung_s`] has it.
    fn seconds(&self, now_ms: u64) -> u64 {
        match self.at_ms.load(Ordering::Relaxed) {
            0 => 0,
            at => now_ms.saturating_sub(at) / 1_000 + 1,
        }
    }
}

/// What the process that takes this one's place is to be told.
pub(super) fn to_be_told() -> impl Iterator<Item = (&'static str, String)> {
    [&HUNG, &WAS_SLOW].into_iter().filter_map(LastFound::told)
}

/// What the process before told this one.
pub(super) fn take_told() {
    [&HUNG, &WAS_SLOW].into_iter().for_each(LastFound::take_told);
}

/// Looks after which a write hangs that has not ended: seconds.
const HANGS: u64 = 5;

/// A sync that takes longer is slow, in us: half of the time after which a leader that says nothing is voted out.
const SLOW_US: u64 = 400_000;

/// Looks after which syncs are slow that took so long each time: seconds.
const SLOW: u64 = 5;

/// How long syncs take, second by second.
#[derive(Debug, Default)]
pub(super) struct SyncsWatch {
    /// How many, and us in all, until the last look.
    before: (u64, u64),
    /// Looks at slow ones since the last that were not.
    slow: u64,
}

impl SyncsWatch {
    /// So many took so long in all. Returned is how many looks found slow ones, one after the other; what found none does not count.
    fn look(&mut self, syncs: u64, us: u64) -> u64 {
        let (syncs_before, us_before) = std::mem::replace(&mut self.before, (syncs, us));
        let (syncs, us) = (syncs.saturating_sub(syncs_before), us.saturating_sub(us_before));
        match us.checked_div(syncs) {
            None => {}
            Some(mean_us) if mean_us > SLOW_US => self.slow += 1,
            Some(_) => self.slow = 0,
        }
        self.slow
    }
}

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
    pub(super) syncs: SyncsWatch,
    /// Syncs have been slow for [`SLOW`].
    pub(super) is_slow: bool,
}

impl Numbers {
    /// Looks at what is being written: to be called each second. What a process did not see as it stood still is no second.
    pub(super) fn look_at_writes(&mut self) {
        let hangs = self.writers.look() >= HANGS;
        if hangs {
            HUNG.is_now();
        }
        match (std::mem::replace(&mut self.hangs, hangs), hangs) {
            (false, true) => tracing::warn!(
                "a write of a log has been under way for {HANGS} s: this node stores nothing until the disk takes it"
            ),
            (true, false) => tracing::info!("the disk takes what is written again"),
            _ => {}
        }
        let IoTotals { syncs, sync_us, .. } = IoTotals::now();
        let is_slow = self.syncs.look(syncs, sync_us) >= SLOW;
        if is_slow {
            WAS_SLOW.is_now();
        }
        match (std::mem::replace(&mut self.is_slow, is_slow), is_slow) {
            (false, true) => tracing::warn!(
                "syncs of this node's disk have taken more than {} ms each for {SLOW} s",
                SLOW_US / 1_000
            ),
            (true, false) => tracing::info!("the disk is as quick as it should be again"),
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
            disk_hung_s: HUNG.seconds(boot_ms()),
            disk_slow_s: if self.is_slow { 1 } else { WAS_SLOW.seconds(boot_ms()) },
            clock_ms: own_wall().ms(),
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
        let found = LastFound { at_ms: AtomicU64::new(0), name: "LEVERET_TEST_OF_DISKS" };
        assert_eq!((found.seconds(9_000), found.told()), (0, None));
        found.at_ms.store(9_000, Ordering::Relaxed);
        let now = [9_000, 9_999, 10_000, 69_500];
        assert_eq!(now.map(|now| found.seconds(now)), [1, 1, 2, 61]);
        assert_eq!(found.told(), Some((found.name, "9000".to_owned())));
        found.take_told();
        assert_eq!(found.told(), None, "nobody told anything");
    }

    #[test]
    fn syncs_that_are_slow_each_time() {
        let (mut watch, mut syncs, mut all_us) = (SyncsWatch::default(), 0, 0);
        let mut look = |count, each_us| {
            syncs += count;
            all_us += count * each_us;
            watch.look(syncs, all_us)
        };
        assert_eq!(
            [(2, 500_000), (1, 400_001), (0, 0), (2, 900_000)].map(|(n, us)| look(n, us)),
            [1, 2, 2, 3]
        );
        assert_eq!([(9, 400_000), (0, 0), (1, 500_000)].map(|(n, us)| look(n, us)), [0, 0, 1]);
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
