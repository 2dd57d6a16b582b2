//! Where a log that was lent to a shard and its member leave things for each other.
//!
//! The log is used by whoever has the shard's turn, the member by the thread that talks with other nodes. Neither waits for the
//! other: each leaves what it has and takes what is there. The lock is held for that alone, and no other one is taken meanwhile.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use leveret_log::disk::{Disk, DiskError, Point};
use leveret_log::file::{BatchCopy, NoBatch};
use leveret_log::{BatchName, FileLog, Offset};

use crate::files::{Given, Wanted};

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
    all: AllUse,
}

/// What a shard wants to know of all members in contact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AllUse {
    /// Confirms may have to wait for them.
    pub(crate) is_used: bool,
    /// Somebody waits until they have more.
    pub(crate) is_awaited: bool,
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
    /// Files wait to go until its list of files knows a later point.
    pub(crate) wants_point: bool,
    /// Batches that were asked for, and why one cannot be had.
    pub(crate) read: Vec<(u64, Result<BatchCopy, NoBatch>)>,
    /// Files that were asked for.
    pub(crate) files: Given,
    /// Records that are damaged here.
    pub(crate) damaged: Vec<Offset>,
    /// Records that were damaged, and are as they were again; or what kept one from that.
    pub(crate) mended: Vec<(Offset, Result<(), DiskError>)>,
    /// Records that others gave: whether they are those that are damaged here.
    pub(crate) taken: Vec<(Offset, bool)>,
    /// Its shard is to have a turn.
    pub(crate) wants_turn: bool,
    /// It makes no batches of what its shard does as long as this is the pause.
    pub(crate) pause: Option<u64>,
    /// It is good for nothing any more.
    pub(crate) failed: Option<String>,
}

impl Reports {
    fn is_empty(&self) -> bool {
        let has_news = self.stored.is_some() || self.point.is_some() || self.failed.is_some();
        !has_news
            && !self.wants_turn
            && !self.wants_point
            && self.pause.is_none()
            && self.made.is_empty()
            && self.read.is_empty()
            && self.damaged.is_empty()
            && self.mended.is_empty()
            && self.taken.is_empty()
            && self.files.is_empty()
    }

    fn add(&mut self, more: Self) {
        self.made.extend(more.made);
        self.read.extend(more.read);
        self.damaged.extend(more.damaged);
        self.mended.extend(more.mended);
        self.taken.extend(more.taken);
        self.files.add(more.files);
        self.stored = more.stored.or(self.stored);
        self.point = more.point.or(self.point);
        self.wants_turn |= more.wants_turn;
        self.wants_point |= more.wants_point;
        self.pause = more.pause.or(self.pause);
        self.failed = more.failed.or_else(|| self.failed.take());
    }
}

/// What the member has for its log.
#[derive(Clone, Debug)]
pub(crate) struct Orders {
    /// So far all agree.
    pub(crate) agreed: BatchName,
    /// The number of the last batch that all members in contact have, too.
    pub(crate) on_all: u64,
    /// Batches that somebody lacks: as many of each range as can be had at once.
    pub(crate) wanted: Vec<RangeInclusive<u64>>,
    /// Damaged records, as another member has them; none if nobody has them whole.
    pub(crate) mended: Vec<(Offset, Option<Bytes>)>,
    /// Files that somebody lacks.
    pub(crate) files: Wanted,
    /// Changes of members that are to be written.
    pub(crate) members: Vec<Vec<u8>>,
    /// What its list of files is to know before files go.
    pub(crate) point: Option<Point>,
    /// All have the batches below.
    pub(crate) let_go_of: u64,
    pub(crate) hold: Hold,
    /// No batch is to be made of what the shard does. Pauses are numbered.
    pub(crate) pause: Option<u64>,
}

/// Which batches stay in the files as they were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    /// Somebody lacks those from this one on, and gets them from files of so many bytes: behind that a snapshot costs less than
    /// the disk.
    pub(crate) lacked: u64,
    pub(crate) bytes: u64,
}

impl Default for Hold {
    /// None.
    fn default() -> Self {
        Self { lacked: u64::MAX, bytes: 0 }
    }
}

impl Hold {
    pub(crate) fn apply<D: Disk>(self, log: &mut FileLog<D>) {
        // Where there is little room what is kept for others alone goes: they get files in place of batches.
        let bytes = if log.wants_room() { 0 } else { self.bytes };
        log.hold_batches(self.lacked.max(log.batches_within(bytes)));
    }
}

impl Default for Orders {
    fn default() -> Self {
        Self {
            agreed: BatchName::NONE,
            on_all: 0,
            wanted: Vec::new(),
            mended: Vec::new(),
            files: Wanted::default(),
            members: Vec::new(),
            point: None,
            let_go_of: 0,
            hold: Hold::default(),
            pause: None,
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
    pub(crate) fn take_reports(&self) -> Reports {
        std::mem::take(&mut self.trays().reports)
    }

    /// The member changes what it wants of the log.
    pub(crate) fn order(&self, change: impl FnOnce(&mut Orders)) {
        change(&mut self.trays().orders);
    }

    /// All members in contact have the batches up to this one. Whether somebody waits for that.
    pub(crate) fn reach_all(&self, number: u64) -> bool {
        let trays = &mut *self.trays();
        trays.orders.on_all = number;
        trays.all.is_awaited
    }

    /// Whether confirms may have to wait for all members in contact.
    pub(crate) fn uses_all(&self) -> bool {
        self.trays().all.is_used
    }

    /// The log takes what the member wants, and says what it wants to know. What stays as it is until it is changed is there again the
    /// next time.
    pub(crate) fn take_orders(&self, all: AllUse) -> Orders {
        let trays = &mut *self.trays();
        trays.all = all;
        let orders = &mut trays.orders;
        let (wanted, members) =
            (std::mem::take(&mut orders.wanted), std::mem::take(&mut orders.members));
        let (point, mended) = (orders.point.take(), std::mem::take(&mut orders.mended));
        let files = std::mem::take(&mut orders.files);
        Orders { wanted, members, point, mended, files, ..orders.clone() }
    }
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").finish_non_exhaustive()
    }
}
