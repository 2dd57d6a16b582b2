//! What the cluster's thread is woken by, besides its sockets.

use tokio::sync::Notify;

use crate::locks::{Rank, Ranked};
use crate::storage::DiskOwner;

/// Who has something for the cluster's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rung {
    /// A disk has done something.
    Disk(DiskOwner),
    /// A log that actors use has left something for its group's member, by the number of the group.
    Log(u64),
}

/// Rung by any thread, and heard by one. It may be rung under any lock but those that are held for a moment.
#[derive(Debug)]
pub(crate) struct Bell {
    /// Each once.
    rung: Ranked<Vec<Rung>>,
    heard: Notify,
}

impl Bell {
    /// Nobody has rung.
    pub(crate) fn new() -> Self {
        Self { rung: Ranked::new(Rank::Bell, Vec::new()), heard: Notify::new() }
    }

    /// Somebody has something.
    pub(crate) fn ring(&self, who: Rung) {
        let mut rung = self.rung.lock();
        if !rung.contains(&who) {
            rung.push(who);
        }
        drop(rung);
        self.heard.notify_one();
    }

    /// Waits until it was rung since it was waited for last.
    pub(crate) async fn heard(&self) {
        self.heard.notified().await;
    }

    /// All who have rung since.
    pub(crate) fn take(&self) -> Vec<Rung> {
        std::mem::take(&mut self.rung.lock())
    }
}
