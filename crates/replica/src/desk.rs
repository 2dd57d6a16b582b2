//! Where a log that was lent to a shard and its member leave things for each other.
//!
//! The log is used by whoever has the shard's turn, the member by the thread that talks with other nodes. Neither waits for the
//! other: each leaves what it has and takes what is there. The lock is held for that alone, and no other one is taken meanwhile.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leveret_log::BatchName;
use leveret_log::file::BatchCopy;

/// Shared by a lent log and its member.
pub struct Desk {
    trays: Mutex<Trays>,
    /// Has the member look at it.
    wake: Arc<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct Trays {
    reports: Reports,
    orders: Orders,
}

/// What the log has for its member.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    /// Batches that it made, in order.
    pub(crate) made: Vec<(BatchName, BatchCopy)>,
    /// The last batch that its disk has for good.
    pub(crate) stored: Option<BatchName>,
    /// The last batch that it does not have as it was written.
    pub(crate) point: Option<BatchName>,
    /// Batches that were asked for, and why one cannot be had.
    pub(crate) read: Vec<(u64, Result<BatchCopy, String>)>,
    /// Its shard is to have a turn.
    pub(crate) wants_turn: bool,
    /// It is good for nothing any more.
    pub(crate) failed: Option<String>,
}

impl Reports {
    fn is_empty(&self) -> bool {
        let has_news = self.stored.is_some() || self.point.is_some() || self.failed.is_some();
        !has_news && !self.wants_turn && self.made.is_empty() && self.read.is_empty()
    }

    fn add(&mut self, more: Self) {
        self.made.extend(more.made);
        self.read.extend(more.read);
        self.stored = more.stored.or(self.stored);
        self.point = more.point.or(self.point);
        self.wants_turn |= more.wants_turn;
        self.failed = more.failed.or_else(|| self.failed.take());
    }
}

/// What the member has for its log.
#[derive(Clone, Debug)]
pub(crate) struct Orders {
    /// So far all agree.
    pub(crate) agreed: BatchName,
    /// Batches that somebody lacks: as many of each range as can be had at once.
    pub(crate) wanted: Vec<RangeInclusive<u64>>,
    /// Changes of members that are to be written.
    pub(crate) members: Vec<Vec<u8>>,
    /// All have the batches below.
    pub(crate) let_go_of: u64,
    /// Somebody lacks the batches from this one on; `u64::MAX`: nobody lacks any.
    pub(crate) hold_from: u64,
    /// No batch is to be made of what the shard does.
    pub(crate) is_paused: bool,
}

impl Default for Orders {
    fn default() -> Self {
        Self {
            agreed: BatchName::NONE,
            wanted: Vec::new(),
            members: Vec::new(),
            let_go_of: 0,
            hold_from: u64::MAX,
            is_paused: false,
        }
    }
}

impl Desk {
    pub(crate) fn new(agreed: BatchName, wake: Arc<dyn Fn() + Send + Sync>) -> Self {
        let orders = Orders { agreed, ..Orders::default() };
        Self { trays: Mutex::new(Trays { orders, ..Trays::default() }), wake }
    }

    /// A panic elsewhere leaves nothing half done here.
    fn trays(&self) -> MutexGuard<'_, Trays> {
        self.trays.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The log leaves something, and has the member look.
    pub(crate) fn report(&self, reports: Reports) {
        if !reports.is_empty() {
            self.trays().reports.add(reports);
            (self.wake)();
        }
    }

    /// The member takes what the log left.
    #[expect(dead_code, reason = "the member does, next")]
    pub(crate) fn take_reports(&self) -> Reports {
        std::mem::take(&mut self.trays().reports)
    }

    #[expect(dead_code, reason = "the member does, next")]
    /// The member changes what it wants of the log.
    pub(crate) fn order(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut self.trays().orders);
    }

    /// The log takes what the member wants. What stays as it is until it is changed is there again the next time.
    pub(crate) fn take_orders(&self) -> Orders {
        let orders = &mut self.trays().orders;
        let (wanted, members) =
            (std::mem::take(&mut orders.wanted), std::mem::take(&mut orders.members));
        Orders { wanted, members, ..orders.clone() }
    }
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").finish_non_exhaustive()
    }
}
