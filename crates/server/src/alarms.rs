//! The node's two alarms, memory and disk, and what it does about them.
//!
//! Either blocks publishers, consumers never: what they take is what ends the alarm. Which publishers
//! is said in [`leveret_broker::flow`]. Memory is
//! compared with its watermark after every turn that changed it; free disk space is asked of the
//! system as often as it may have changed ([`watch_disk`]), and a write that finds no room raises the alarm at
//! once. An alarm ends at RabbitMQ's pace, or earlier when there is plenty: see [`MemoryAlarm`].

mod words;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use leveret_broker::flow::{ALARM_MS, Alarm, AlarmChange, Level, MemoryAlarm};
use leveret_queue::Time;
use tokio::sync::Notify;

use self::words::History;
use crate::clock::now;
use crate::locks::{Rank, Ranked};
use crate::node::Node;
use crate::room::{KEPT_BYTES, Room};
use crate::runner::with_runner;

pub(crate) use self::words::{say, say_flaps};
pub use crate::room::free_bytes;

/// The least limit of free disk space that is one.
const DISK_LIMIT_MIN: u64 = 2 * KEPT_BYTES;

/// Two bits each, a [`Level`].
const MEMORY: u8 = 0;
const DISK: u8 = 2;
const LEVEL: u8 = 3;

/// How often memory is looked at while it is short.
const LOOK: Duration = Duration::from_millis(25);
/// The same when it has been short for long.
const SELDOM: Duration = Duration::from_millis(250);

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

/// What is short at the node that leads.
const SHORT_MEMORY: u8 = 1;
const SHORT_DISK: u8 = 2;
const STOPS_ALL: u8 = 4;

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
    /// In a cluster: what a majority of the nodes has room for; `u64::MAX` if nothing bounds it.
    disk_of_majority: AtomicU64,
    /// The last write found no room, whatever the system says is free.
    disk_refused: AtomicBool,
    /// The memory alarm was raised.
    memory_raised: Notify,
    /// Of a node of sessions: what is short at the node that leads, as flags.
    elsewhere: AtomicU8,
    /// What happened to the alarm of memory and to that of the disk.
    histories: [History; 2],
}

impl Alarms {
    pub(crate) fn new(memory_limit: u64) -> Self {
        Self {
            memory: Ranked::new(Rank::Alarms, MemoryAlarm::new(memory_limit)),
            levels: AtomicU8::new(0),
            memory_limit: AtomicU64::new(memory_limit),
            disk_limit: AtomicU64::new(0),
            disk_free: AtomicU64::new(u64::MAX),
            disk_of_majority: AtomicU64::new(u64::MAX),
            disk_refused: AtomicBool::new(false),
            memory_raised: Notify::new(),
            elsewhere: AtomicU8::new(0),
            histories: Default::default(),
        }
    }

    /// What is short at the node that leads, where that is another one. Whether that is new.
    pub(crate) fn set_elsewhere(&self, alarm: Alarm) -> bool {
        let Alarm { memory, disk, stops_all } = alarm;
        let flags = [(memory, SHORT_MEMORY), (disk, SHORT_DISK), (stops_all, STOPS_ALL)];
        let flags = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum();
        self.elsewhere.swap(flags, Ordering::SeqCst) != flags
    }

    /// Whether publishers are blocked.
    pub fn any(&self) -> bool {
        self.levels.load(Ordering::Relaxed) != 0 || self.elsewhere.load(Ordering::Relaxed) != 0
    }

    /// What is short, for shards and sessions.
    pub fn alarm(&self) -> Alarm {
        let levels = self.levels.load(Ordering::Relaxed);
        let [memory, disk] = [MEMORY, DISK].map(|at| level(levels, at));
        let elsewhere = self.elsewhere.load(Ordering::Relaxed);
        let is_set = |flag| elsewhere & flag != 0;
        Alarm {
            memory: memory > Level::Enough || is_set(SHORT_MEMORY),
            disk: disk > Level::Enough || is_set(SHORT_DISK),
            stops_all: memory.max(disk) == Level::Out || is_set(STOPS_ALL),
        }
    }

    /// Those that are raised.
    pub fn raised(&self) -> Vec<Resource> {
        let Alarm { memory, disk, .. } = self.alarm();
        let all = [(memory, Resource::Memory), (disk, Resource::Disk)];
        all.into_iter().filter(|(is_raised, _)| *is_raised).map(|(_, alarm)| alarm).collect()
    }

    /// How often an alarm was raised since the start.
    pub fn raised_count(&self, resource: Resource) -> u64 {
        self.history(resource).raised()
    }

    fn history(&self, resource: Resource) -> &History {
        let [memory, disk] = &self.histories;
        match resource {
            Resource::Memory => memory,
            Resource::Disk => disk,
        }
    }

    /// How short something is.
    fn level(&self, resource: Resource) -> Level {
        let at = match resource {
            Resource::Memory => MEMORY,
            Resource::Disk => DISK,
        };
        level(self.levels.load(Ordering::Relaxed), at)
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

    /// Whether the alarm of the disk is on, and this node's own disk is short: in a cluster it is on for the others', too.
    pub fn is_own_disk_short(&self) -> bool {
        let limit = self.disk_limit_at_work();
        let is_short = self.disk_free.load(Ordering::Relaxed) < limit.saturating_add(limit / 10);
        let is_refused = self.disk_refused.load(Ordering::Relaxed);
        self.level(Resource::Disk) > Level::Enough && (is_short || is_refused)
    }

    /// What a majority of the nodes of a cluster has room for; none if nothing bounds it.
    pub fn disk_of_majority(&self) -> Option<u64> {
        Some(self.disk_of_majority.load(Ordering::Relaxed)).filter(|&bytes| bytes != u64::MAX)
    }

    pub(crate) fn set_memory_limit(&self, limit: u64) {
        self.memory.lock().set_limit(limit);
        self.memory_limit.store(limit, Ordering::Relaxed);
    }

    /// Cheap when nothing changes. `held` measures the memory in use.
    pub(crate) fn check_memory(&self, held: impl Fn() -> u64) -> Option<AlarmChange> {
        let over = held() > self.memory_limit();
        // While it is raised the exact rule decides.
        let is_raised = self.level(Resource::Memory) > Level::Enough;
        if over || is_raised { self.update_memory(held, now()) } else { None }
    }

    pub(crate) fn update_memory(&self, held: impl Fn() -> u64, now: Time) -> Option<AlarmChange> {
        let mut alarm = self.memory.lock();
        let before = alarm.level();
        // Measured once more after the flag is seen by all: who freed memory in between looked at the old
        // flag and left it to us.
        for _ in 0..2 {
            alarm.update(held(), now);
            self.set(MEMORY, alarm.level());
        }
        if alarm.level() > before {
            self.memory_raised.notify_one();
        }
        let change = AlarmChange::between(before, alarm.level());
        self.history(Resource::Memory).note(change, now)
    }

    /// Another limit, effective at the next look.
    pub fn set_disk_limit(&self, limit: u64) {
        self.disk_limit.store(limit, Ordering::Relaxed);
    }

    /// The limit that is compared: messages are refused for want of room below the least one, and those who publish are to
    /// be stopped before.
    fn disk_limit_at_work(&self) -> u64 {
        disk_limit_at_work(self.disk_limit())
    }

    /// So much is free now. Less counts where a majority of the nodes has less.
    pub(crate) fn update_disk(&self, free: u64, now: Time) -> Option<AlarmChange> {
        self.disk_free.store(free, Ordering::Relaxed);
        let free = free.min(self.disk_of_majority.load(Ordering::Relaxed));
        let limit = self.disk_limit_at_work();
        let before = self.level(Resource::Disk);
        let history = self.history(Resource::Disk);
        let is_over = free >= limit.saturating_add(limit / 10) || history.lasts_ms(now) >= ALARM_MS;
        let level = match free {
            _ if self.disk_refused.load(Ordering::Relaxed) => Level::Out,
            free if free < limit / 2 => Level::Out,
            free if free < limit => Level::Short,
            _ if before > Level::Enough && !is_over => Level::Short,
            _ => Level::Enough,
        };
        history.note(AlarmChange::between(self.set(DISK, level), level), now)
    }

    /// Sets a level and tells what it was.
    fn set(&self, at: u8, now: Level) -> Level {
        let change = |levels| Some(levels & !(LEVEL << at) | (now as u8) << at);
        let before = self.levels.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change);
        level(before.unwrap_or_default(), at)
    }
}

/// The limit that is compared.
pub(crate) fn disk_limit_at_work(limit: u64) -> u64 {
    match limit {
        0 => 0,
        limit => limit.max(DISK_LIMIT_MIN),
    }
}

fn level(levels: u8, at: u8) -> Level {
    match levels >> at & LEVEL {
        0 => Level::Enough,
        1 => Level::Short,
        _ => Level::Out,
    }
}

/// Looks at memory for as long as an alarm of it lasts: who frees none any more has no turn that would look.
pub(crate) async fn watch_memory(node: Arc<Node>) {
    loop {
        node.alarms.memory_raised.notified().await;
        let mut looks = 0_u32;
        while node.alarms.level(Resource::Memory) > Level::Enough {
            // A long one is over at RabbitMQ's pace.
            let is_long = u64::from(looks) * LOOK.as_millis() as u64 > ALARM_MS;
            tokio::time::sleep(if is_long { SELDOM } else { LOOK }).await;
            looks = looks.saturating_add(1);
            if let Some(change) = node.check_memory() {
                with_runner(&node, |runner| runner.announce(Resource::Memory, change));
            }
        }
    }
}

/// Looks at the free space of the data directory's file system for as long as the node lives: as often as it may
/// have changed, and as soon as a write finds none.
pub async fn watch_disk(node: Arc<Node>, room: Arc<Room>) {
    let mut failed = false;
    loop {
        let is_refused = room.is_refused();
        node.alarms.disk_refused.store(is_refused, Ordering::Relaxed);
        node.alarms.disk_of_majority.store(room.of_majority(), Ordering::Relaxed);
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
        room.pause(node.alarms.disk_limit_at_work()).await;
    }
}

/// Compares free space with its limit, and tells publishers when that changes something.
pub fn look(node: &Arc<Node>, free: u64) {
    if let Some(change) = node.alarms.update_disk(free, now()) {
        with_runner(node, |runner| runner.announce(Resource::Disk, change));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    /// What the log keeps for itself is more than this limit.
    #[test]
    fn a_low_limit_comes_before_refusals() {
        let alarms = Alarms::new(1000);
        alarms.set_disk_limit(1);
        assert_eq!(alarms.update_disk(DISK_LIMIT_MIN, Time::from_ms(0)), None);
        let raised = alarms.update_disk(DISK_LIMIT_MIN - 1, Time::from_ms(1));
        assert_eq!((raised, alarms.disk_limit()), (Some(AlarmChange::Raised), 1));
        let off = Alarms::new(1000);
        off.set_disk_limit(0);
        assert_eq!(off.update_disk(0, Time::from_ms(0)), None);
    }

    #[test]
    fn the_reason_names_what_is_short() {
        let at = Time::from_ms;
        let alarms = Alarms::new(1000);
        alarms.set_disk_limit(50 * MB);
        assert_eq!(alarms.alarm().reason(), None);
        assert_eq!(alarms.update_disk(49 * MB, at(0)), Some(AlarmChange::Raised));
        assert!(!alarms.alarm().stops_all);
        assert_eq!(alarms.update_disk(10 * MB, at(1)), Some(AlarmChange::Moved));
        assert!(alarms.alarm().stops_all);
        assert_eq!(alarms.update_disk(26 * MB, at(2)), Some(AlarmChange::Moved));
        assert_eq!(alarms.alarm().reason(), Some("low on disk"));
        assert_eq!(alarms.update_memory(|| 1001, at(2)), Some(AlarmChange::Raised));
        assert_eq!(alarms.alarm().reason(), Some("low on memory & disk"));
        assert_eq!(alarms.raised(), [Resource::Memory, Resource::Disk]);
        assert_eq!(alarms.update_disk(55 * MB, at(3)), Some(AlarmChange::Cleared));
        assert_eq!(alarms.alarm().reason(), Some("low on memory"));
        assert_eq!(alarms.update_memory(|| 0, at(3)), Some(AlarmChange::Cleared));
        assert!(!alarms.any());
        // A write found no room, though there is enough by the system's count.
        alarms.disk_refused.store(true, Ordering::Relaxed);
        assert_eq!(alarms.update_disk(1000 * MB, at(4)), Some(AlarmChange::Raised));
        assert!(alarms.alarm().stops_all);
        alarms.disk_refused.store(false, Ordering::Relaxed);
        assert_eq!(alarms.update_disk(1000 * MB, at(5)), Some(AlarmChange::Cleared));
    }

    /// What cannot be on a majority of the nodes is not to be taken, however much there is here; and the node that has plenty is
    /// not the one that is short.
    #[test]
    fn others_without_room_block_publishers() {
        let alarms = Alarms::new(1000);
        alarms.set_disk_limit(50 * MB);
        assert_eq!(alarms.update_disk(1000 * MB, Time::from_ms(0)), None);
        alarms.disk_of_majority.store(40 * MB, Ordering::Relaxed);
        let raised = alarms.update_disk(1000 * MB, Time::from_ms(1));
        assert_eq!((raised, alarms.is_own_disk_short()), (Some(AlarmChange::Raised), false));
        alarms.disk_of_majority.store(10 * MB, Ordering::Relaxed);
        alarms.update_disk(1000 * MB, Time::from_ms(2));
        assert!(alarms.alarm().stops_all);
        assert_eq!(alarms.disk_free(), Some(1000 * MB));
        alarms.update_disk(30 * MB, Time::from_ms(3));
        assert!(alarms.is_own_disk_short());
        alarms.disk_of_majority.store(u64::MAX, Ordering::Relaxed);
        let cleared = alarms.update_disk(1000 * MB, Time::from_ms(4));
        assert_eq!(cleared, Some(AlarmChange::Cleared));
    }

    /// Files come and go while the disk is at its limit: publishers are not stopped and let in each time.
    #[test]
    fn an_alarm_of_the_disk_lasts() {
        let alarms = Alarms::new(1000);
        alarms.set_disk_limit(100 * MB);
        let changes = (0..100).filter(|&n| {
            let free = if n % 2 == 0 { 99 } else { 101 };
            alarms.update_disk(free * MB, Time::from_ms(n * 100)).is_some()
        });
        assert!(changes.count() <= 8, "four alarms in ten seconds");
    }

    #[test]
    fn the_system_tells_what_is_free() {
        assert!(free_bytes(std::path::Path::new("/")).expect("statvfs") > 0);
    }
}
