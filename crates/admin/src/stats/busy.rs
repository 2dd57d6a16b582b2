//! What threads and shards did between the last two samples.

use leveret_broker::numbers::ShardRest;

use super::history::Ms;
use crate::ops::system::Thread;

/// Somebody's work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Did {
    /// So far.
    pub done: u64,
    /// Of it, in a second, between the last two samples.
    pub per_second: u64,
}

impl Did {
    fn after(self, done: u64, passed_ms: Ms) -> Self {
        let more = u128::from(done.saturating_sub(self.done));
        let per_second = (more * 1000).checked_div(passed_ms.into()).unwrap_or_default();
        Self { done, per_second: u64::try_from(per_second).unwrap_or(u64::MAX) }
    }
}

/// A thread of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusyThread {
    /// The system's number of it.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// Milliseconds that it had a processor.
    pub cpu_ms: Did,
}

/// A shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyShard {
    /// Everything that its messages take, in bytes.
    pub held_bytes: u64,
    /// Messages that came, were handed out, or left in any way.
    pub messages: Did,
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub struct Busy {
    at: Option<Ms>,
    /// By number.
    pub threads: Vec<BusyThread>,
    /// By number.
    pub shards: Vec<BusyShard>,
}

impl Busy {
    /// As it is now, after it was `self`.
    pub(super) fn next(&self, at: Ms, threads: Vec<Thread>, shards: &[ShardRest]) -> Self {
        // There is nothing to compare the first sample with.
        let passed_ms = self.at.map_or(0, |before| at.saturating_sub(before));
        let threads = threads.into_iter().map(|thread| {
            let before = self.threads.binary_search_by_key(&thread.id, |it| it.id);
            let before = before.ok().and_then(|at| self.threads.get(at));
            let before = before.map_or_else(Did::default, |it| it.cpu_ms);
            let cpu_ms = before.after(thread.user_ms + thread.system_ms, passed_ms);
            BusyThread { id: thread.id, name: thread.name, cpu_ms }
        });
        let shards = shards.iter().enumerate().map(|(index, shard)| {
            let it = &shard.counters;
            let done = it.enqueued + it.delivered + it.acked + it.dead_lettered + it.dropped;
            let before = self.shards.get(index).map_or_else(Did::default, |it| it.messages);
            BusyShard { held_bytes: shard.held_bytes, messages: before.after(done, passed_ms) }
        });
        Self { at: Some(at), threads: threads.collect(), shards: shards.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_told_by_the_second() {
        let thread = |id, user_ms| Thread { id, name: "t".to_owned(), user_ms, system_ms: 5 };
        let first = Busy::default().next(1_000, vec![thread(3, 100), thread(7, 0)], &[]);
        let second = first.next(3_000, vec![thread(7, 500), thread(9, 20)], &[]);
        let told = |busy: &Busy| -> Vec<_> {
            busy.threads.iter().map(|it| (it.id, it.cpu_ms.done, it.cpu_ms.per_second)).collect()
        };
        assert_eq!(told(&first), [(3, 105, 0), (7, 5, 0)]);
        assert_eq!(told(&second), [(7, 505, 250), (9, 25, 12)]);
    }
}
