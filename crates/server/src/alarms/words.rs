//! What the log says of alarms: what is short, how much there is of it, whom that stops, and what helps.
//!
//! It begins with RabbitMQ's words. An alarm that comes and goes has [`LINES`] lines in a period of the log; the rest is
//! counted, and told when the period is over.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leveret_broker::flow::{AlarmChange, Level};
use leveret_queue::Time;

use super::Resource;
use crate::clock::now;
use crate::node::Node;

/// Lines about changes of one alarm in a period.
const LINES: u64 = 4;

/// What happened to one alarm.
#[derive(Debug, Default)]
pub(super) struct History {
    /// How often it was raised.
    raised: AtomicU64,
    /// When it was raised last, in ms.
    since_ms: AtomicU64,
    /// Changes in this period.
    changes: AtomicU64,
}

impl History {
    pub(super) fn raised(&self) -> u64 {
        self.raised.load(Ordering::Relaxed)
    }

    /// Notes a change of its level. The change, if it is one.
    pub(super) fn note(&self, change: Option<AlarmChange>, now: Time) -> Option<AlarmChange> {
        if change == Some(AlarmChange::Raised) {
            self.raised.fetch_add(1, Ordering::Relaxed);
            self.since_ms.store(now.ms(), Ordering::Relaxed);
        }
        change
    }

    /// How long ago it was raised last.
    pub(super) fn lasts_ms(&self, now: Time) -> u64 {
        now.ms().saturating_sub(self.since_ms.load(Ordering::Relaxed))
    }

    /// Whether a change is told by itself.
    fn may_tell(&self) -> bool {
        self.changes.fetch_add(1, Ordering::Relaxed) < LINES
    }

    /// The period is over: changes that were not told.
    fn end(&self) -> u64 {
        self.changes.swap(0, Ordering::Relaxed).saturating_sub(LINES)
    }
}

/// Bytes for people: `1.21 GB`.
struct Size(u64);

impl Display for Size {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        match self.0 {
            0..1_000_000 => write!(f, "{:.0} kB", bytes / 1e3),
            1_000_000..1_000_000_000 => write!(f, "{:.1} MB", bytes / 1e6),
            _ => write!(f, "{:.2} GB", bytes / 1e9),
        }
    }
}

/// The limit of free disk space as it is configured, and as it is compared.
struct DiskLimit(u64, u64);

impl Display for DiskLimit {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let &Self(limit, at_work) = self;
        write!(f, "disk_free_limit is {}", Size(limit))?;
        if at_work > limit { write!(f, ", which counts as {}", Size(at_work)) } else { Ok(()) }
    }
}

/// How much there is, and how much there is to be.
struct Amount<'a>(&'a Node, Resource);

impl Display for Amount<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(node, resource) = self;
        let alarms = &node.alarms;
        match resource {
            Resource::Memory => {
                let (used, limit) = (Size(node.used_bytes()), Size(alarms.memory_limit()));
                write!(f, "{used} are in use, vm_memory_high_watermark is {limit}")
            }
            Resource::Disk => {
                let limit = DiskLimit(alarms.disk_limit(), alarms.disk_limit_at_work());
                let of_majority = alarms.disk_of_majority().map(Size);
                match alarms.disk_free() {
                    Some(_)
                        if let (Some(free), false) = (of_majority, alarms.is_own_disk_short()) =>
                    {
                        write!(f, "a majority of the nodes has {free} free, {limit}")
                    }
                    Some(free) => write!(f, "{} are free, {limit}", Size(free)),
                    None => limit.fmt(f),
                }
            }
        }
    }
}

/// Whom an alarm of this level stops.
const fn whom(resource: Resource, level: Level) -> &'static str {
    match (resource, level) {
        (_, Level::Enough) => "nobody is blocked for it",
        (_, Level::Out) => "all who publish are blocked until it clears, and consumers go on",
        (Resource::Memory, Level::Short) => {
            "those who publish into queues of more than 1 MiB are blocked until it clears, and consumers go on"
        }
        (Resource::Disk, Level::Short) => {
            "those who publish what is to be written are blocked until it clears, and consumers go on"
        }
    }
}

const fn help(resource: Resource) -> &'static str {
    match resource {
        Resource::Memory => {
            "let consumers catch up, purge or delete queues that nobody reads, or raise the watermark"
        }
        Resource::Disk => {
            "free space on the file system of the data directory, or let consumers catch up, purge or delete queues"
        }
    }
}

/// Tells a change of an alarm.
pub(crate) fn say(node: &Arc<Node>, resource: Resource, change: AlarmChange) {
    let history = node.alarms.history(resource);
    if !history.may_tell() {
        return;
    }
    let (name, amount) = (resource.name(), Amount(node, resource));
    let whom = whom(resource, node.alarms.level(resource));
    let on = node.topology().event_node().to_owned();
    match change {
        AlarmChange::Raised => {
            let help = help(resource);
            tracing::warn!(
                "{name} resource limit alarm set on node {on}: {amount}; {whom}. To end it {help}"
            );
        }
        AlarmChange::Moved => {
            tracing::warn!("{name} resource limit alarm changed on node {on}: {amount}; {whom}");
        }
        AlarmChange::Cleared => {
            let lasted = history.lasts_ms(now()) as f64 / 1e3;
            tracing::warn!(
                "{name} resource limit alarm cleared on node {on} after {lasted:.1} s: {amount}"
            );
        }
    }
}

/// A period of the log is over: tells how often an alarm changed beyond what was told.
pub(crate) fn say_flaps(node: &Arc<Node>) {
    for resource in [Resource::Memory, Resource::Disk] {
        let more = node.alarms.history(resource).end();
        if more > 0 {
            let (name, amount) = (resource.name(), Amount(node, resource));
            let whom = whom(resource, node.alarms.level(resource));
            tracing::warn!(
                "{name} resource limit alarm changed {more} more times; now {amount}; {whom}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn sizes() {
        let check = |bytes, want: &str| assert_eq!(Size(bytes).to_string(), want);
        check(0,             "0 kB");
        check(20_971_520,    "21.0 MB");
        check(1_207_959_552, "1.21 GB");
    }

    /// Nobody is told that 1 MB is less than a limit of 0 kB.
    #[test]
    fn a_low_limit_says_what_it_counts_as() {
        let (low, usual) = (DiskLimit(1, 2 << 20), DiskLimit(50_000_000, 50_000_000));
        assert_eq!(low.to_string(), "disk_free_limit is 0 kB, which counts as 2.1 MB");
        assert_eq!(usual.to_string(), "disk_free_limit is 50.0 MB");
    }

    #[test]
    fn an_alarm_that_flaps_is_told_a_few_times_and_counted() {
        let (history, now) = (History::default(), Time::from_ms(1_000));
        let changes = [AlarmChange::Raised, AlarmChange::Cleared].into_iter().cycle();
        let changes = changes.take(100).filter(|change| history.note(Some(*change), now).is_some());
        let told = changes.filter(|_| history.may_tell()).count();
        assert_eq!(history.lasts_ms(now.after_ms(7)), 7);
        assert_eq!((told as u64, history.raised()), (LINES, 50));
        assert_eq!(history.end(), 100 - LINES);
        assert_eq!(history.end(), 0);
        assert!(history.may_tell());
    }
}
