//! The order of a start.
//!
//! ```text
//!  names     Meta reads them from their log
//!  host      each shard has its queues, without messages    from here on clients may come in
//!  fill      the shards read their logs, side by side       letters to them wait
//!  end       decisions that nobody needs are forgotten      the shards have their first turns
//! ```
//!
//! No shard has a turn before all are filled: see `docs/decisions/0045-logins-before-queues.md`. Logs, threads and words on how far
//! it is are the driver's.

use leveret_broker::shard::Restored;
use leveret_broker::transaction::{Decided, TxId};
use leveret_broker::{Meta, Shard};
use leveret_log::{Log, Offset};
use leveret_queue::Time;
use leveret_topology::Topology;

/// Shards of these logs, with the queues of `topology`, which are not filled yet. With `keeps_orphans` messages of queues
/// that the topology does not have stay in the log, in no queue.
pub fn host<L: Log>(
    logs: impl Iterator<Item = L>,
    topology: &Topology,
    keeps_orphans: bool,
    now: Time,
) -> Vec<Shard<L>> {
    let hosted = logs.enumerate().map(|(index, log)| {
        let mut shard = Shard::new(topology.homes().group_at(index), log);
        if keeps_orphans {
            shard.keep_orphans();
        }
        shard.host(topology, now);
        shard
    });
    hosted.collect()
}

/// What shards are filled by, besides their logs.
#[derive(Clone, Debug)]
pub struct Past {
    /// What became of transactions.
    decided: Decided,
    /// By shard: records below may have been delivered.
    seen_below: Vec<Offset>,
}

impl Past {
    /// For shards of which `meta` keeps the names. `seen_below`: by shard, what the last process left word of with
    /// [`Shard::seen_below`]; where it left none, all may have been delivered.
    pub fn new<L: Log>(meta: &Meta<L>, seen_below: Vec<Offset>) -> Self {
        Self { decided: meta.decided().clone(), seen_below }
    }

    /// Fills the queues of a shard. `progress` is told now and then how many records were read since the last time.
    pub fn fill<L: Log>(
        &self,
        index: usize,
        shard: &mut Shard<L>,
        progress: &mut dyn FnMut(u64),
    ) -> Filled {
        let seen_below = self.seen_below.get(index).copied().unwrap_or(Offset::MAX);
        let restored = shard.fill(&self.decided, seen_below, progress);
        Filled { restored, transactions: shard.transactions_found() }
    }
}

/// What one or more shards were filled with.
#[derive(Debug, Default)]
pub struct Filled {
    /// In numbers.
    pub restored: Restored,
    /// Those of which parts were found.
    transactions: Vec<TxId>,
}

impl Filled {
    /// What another shard was filled with, too.
    pub fn add(&mut self, other: Self) {
        self.restored.add(other.restored);
        self.transactions.extend(other.transactions);
    }

    /// With what all shards were filled with: they may have turns from now on. What came back.
    pub fn end<L: Log>(self, meta: &mut Meta<L>) -> Restored {
        meta.forget_decisions(self.transactions.into_iter());
        self.restored
    }
}
