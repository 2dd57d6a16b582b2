//! The node's two alarms, memory and disk, and what it does about them.
//!
//! Either blocks publishers, consumers never: what they take is what ends the alarm. Which publishers
//! is said in [`leveret_broker::flow`]. Memory is
//! compared with its watermark after every turn that changed it; free disk space is asked of the
//! system as often as it may have changed ([`watch_disk`]), and a write that finds no room raises the alarm at
//! once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use leveret_broker::flow::{Alarm, AlarmChange, Level, MemoryAlarm};

use crate::locks::{Rank, Ranked};
use crate::node::Node;
use crate::room::Room;
use crate::runner::with_runner;

pub use crate::room::free_bytes;

/// Two bits each, a [`Level`].
const MEMORY: u8 = 0;
const DISK: u8 = 2;
const LEVEL: u8 = 3;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// The memory watermark.
    Memory,
    /// The limit of free disk space.
    Disk,
}

impl Resource {
    /// RabbitMQ's name for the alarm.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Disk => "disk",
        }
    }
}

/// State of both alarms. Flags can be read without a lock.
#[derive(Debug)]
pub struct Alarms {
    memory: Ranked<MemoryAlarm>,
    /// The levels, at [`MEMORY`] and [`DISK`].
    levels: AtomicU8,
    /// Mirror of the memory alarm's limit, so that a turn need not lock it.
    memory_limit: AtomicU64,
    disk_limit: AtomicU64,
    /// As last asked for; `u64::MAX` before.
    disk_free: AtomicU64,
    /// The last write found no room, whatever the system says is free.
    disk_refused: AtomicBool,
}

impl Alarms {
    pub(crate) fn new(memory_limit: u64) -> Self {
        Self {
            memory: Ranked::new(Rank::Alarms, MemoryAlarm::new(memory_limit)),
            levels: AtomicU8::new(0),
            memory_limit: AtomicU64::new(memory_limit),
            disk_limit: AtomicU64::new(0),
            disk_free: AtomicU64::new(u64::MAX),
            disk_refused: AtomicBool::new(false),
        }
    }

    /// Whether publishers are blocked.
    pub fn any(&self) -> bool {
        self.levels.load(Ordering::Relaxed) != 0
    }

    /// What is short, for shards and sessions.
    pub fn alarm(&self) -> Alarm {
        let levels = self.levels.load(Ordering::Relaxed);
        let [memory, disk] = [MEMORY, DISK].map(|at| level(levels, at));
        Alarm {
            memory: memory > Level::Enough,
            disk: disk > Level::Enough,
            stops_all: memory.max(disk) == Level::Out,
        }
    }

    /// Those that are raised.
    pub fn raised(&self) -> Vec<Resource> {
        let Alarm { memory, disk, .. } = self.alarm();
        let all = [(memory, Resource::Memory), (disk, Resource::Disk)];
        all.into_iter().filter(|(is_raised, _)| *is_raised).map(|(_, alarm)| alarm).collect()
    }

    /// The memory watermark in bytes.
    pub fn memory_limit(&self) -> u64 {
        self.memory_limit.load(Ordering::Relaxed)
    }

    /// Free disk space under which publishers are blocked, in bytes.
    pub fn disk_limit(&self) -> u64 {
        self.disk_limit.load(Ordering::Relaxed)
    }

    /// Free disk space when it was last looked at, in bytes; none before.
    pub fn disk_free(&self) -> Option<u64> {
        Some(self.disk_free.load(Ordering::Relaxed)).filter(|&free| free != u64::MAX)
    }

    pub(crate) fn set_memory_limit(&self, limit: u64) {
        self.memory.lock().set_limit(limit);
        self.memory_limit.store(limit, Ordering::Relaxed);
    }

    /// Cheap when nothing changes. `held` measures the memory in use.
    pub(crate) fn check_memory(&self, held: impl Fn() -> u64) -> Option<AlarmChange> {
        let over = held() > self.memory_limit();
        // While it is raised the exact rule (it falls a little below the limit) decides.
        let is_raised = level(self.levels.load(Ordering::Relaxed), MEMORY) > Level::Enough;
        if over || is_raised { self.update_memory(held) } else { None }
    }

    pub(crate) fn update_memory(&self, held: impl Fn() -> u64) -> Option<AlarmChange> {
        let mut alarm = self.memory.lock();
        let before = alarm.level();
        // Measured once more after the flag is seen by all: who freed memory in between looked at the old
        // flag and left it to us.
        for _ in 0..2 {
            alarm.update(held());
            self.set(MEMORY, alarm.level());
        }
        AlarmChange::between(before, alarm.level())
    }

    /// Another limit, effective at the next look.
    pub fn set_disk_limit(&self, limit: u64) {
        self.disk_limit.store(limit, Ordering::Relaxed);
    }

    /// So much is free now.
    pub(crate) fn update_disk(&self, free: u64) -> Option<AlarmChange> {
        self.disk_free.store(free, Ordering::Relaxed);
        let limit = self.disk_limit();
        let now = match free {
            _ if self.disk_refused.load(Ordering::Relaxed) => Level::Out,
            free if free < limit / 2 => Level::Out,
            free if free < limit => Level::Short,
            _ => Level::Enough,
        };
        AlarmChange::between(self.set(DISK, now), now)
    }

    /// Sets a level and tells what it was.
    fn set(&self, at: u8, now: Level) -> Level {
        let change = |levels| Some(levels & !(LEVEL << at) | (now as u8) << at);
        let before = self.levels.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change);
        level(before.unwrap_or_default(), at)
    }
}

fn level(levels: u8, at: u8) -> Level {
    match levels >> at & LEVEL {
        0 => Level::Enough,
        1 => Level::Short,
        _ => Level::Out,
    }
}

/// Looks at the free space of the data directory's file system for as long as the node lives: as often as it may
/// have changed, and as soon as a write finds none.
pub async fn watch_disk(node: Arc<Node>, room: Arc<Room>) {
    let mut failed = false;
    loop {
        let is_refused = room.is_refused();
        node.alarms.disk_refused.store(is_refused, Ordering::Relaxed);
        match room.look() {
            Ok(free) => {
                failed = false;
                look(&node, free);
            }
            Err(error) => {
                if !failed {
                    failed = true;
                    tracing::warn!(%error, "free disk space cannot be told");
                }
                if is_refused {
                    look(&node, 0);
                }
            }
        }
        room.pause(node.alarms.disk_limit()).await;
    }
}

/// Compares free space with its limit, and tells publishers when that changes something.
pub fn look(node: &Arc<Node>, free: u64) {
    if let Some(change) = node.alarms.update_disk(free) {
        with_runner(node, |runner| runner.announce(Resource::Disk, change));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_names_what_is_short() {
        let alarms = Alarms::new(1000);
        alarms.set_disk_limit(50);
        assert_eq!(alarms.alarm().reason(), None);
        assert_eq!(alarms.update_disk(49), Some(AlarmChange::Raised));
        assert!(!alarms.alarm().stops_all);
        assert_eq!(alarms.update_disk(10), Some(AlarmChange::Moved));
        assert!(alarms.alarm().stops_all);
        assert_eq!(alarms.update_disk(26), Some(AlarmChange::Moved));
        assert_eq!(alarms.alarm().reason(), Some("low on disk"));
        assert_eq!(alarms.check_memory(|| 1001), Some(AlarmChange::Raised));
        assert_eq!(alarms.alarm().reason(), Some("low on memory & disk"));
        assert_eq!(alarms.raised(), [Resource::Memory, Resource::Disk]);
        assert_eq!(alarms.update_disk(50), Some(AlarmChange::Cleared));
        assert_eq!(alarms.alarm().reason(), Some("low on memory"));
        assert_eq!(alarms.check_memory(|| 0), Some(AlarmChange::Cleared));
        assert!(!alarms.any());
        // A write found no room, though there is enough by the system's count.
        alarms.disk_refused.store(true, Ordering::Relaxed);
        assert_eq!(alarms.update_disk(1000), Some(AlarmChange::Raised));
        assert!(alarms.alarm().stops_all);
        alarms.disk_refused.store(false, Ordering::Relaxed);
        assert_eq!(alarms.update_disk(1000), Some(AlarmChange::Cleared));
    }

    #[test]
    fn the_system_tells_what_is_free() {
        assert!(free_bytes(std::path::Path::new("/")).expect("statvfs") > 0);
    }
}
