//! Deliveries that wait for their settlement, as the channel knows them that got them.

use std::collections::VecDeque;

use leveret_queue::{Offset, UnackedId};
use leveret_topology::{GroupId, QueueId};

use super::{Settle, Settlement};

/// One delivery that waits for its settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnackedDelivery {
    /// Delivery tag.
    pub tag: u64,
    /// Its record.
    pub offset: Offset,
    /// Where it came from.
    pub queue: QueueId,
    /// The group that the queue lives in.
    pub home: GroupId,
    /// The queue's name for it.
    pub unacked: UnackedId,
    /// The consumer's slot, [`GOT`](Self::GOT) or [`HOLE`](Self::HOLE).
    pub slot: u32,
    /// When it was delivered, in seconds since the connection began.
    pub delivered_s: u32,
}

impl UnackedDelivery {
    /// The slot of what was taken by `basic.get`.
    pub const GOT: u32 = u32::MAX;

    /// The slot of what is settled, and stands here until its place is needed.
    pub const HOLE: u32 = u32::MAX - 1;

    /// Its settlement.
    pub fn settled(&self, how: Settle) -> Settlement {
        Settlement { queue: self.queue, unacked: self.unacked, offset: self.offset, how }
    }
}

/// All that a channel had not settled when it ended, as it lay there, oldest first: too much to be looked at in one turn.
#[derive(Debug)]
pub struct GivenBack {
    all: VecDeque<UnackedDelivery>,
    groups: u64,
}

impl GivenBack {
    /// To be shared by so many groups.
    pub fn new(all: VecDeque<UnackedDelivery>, groups: usize) -> Self {
        Self { all, groups: (groups as u64).max(1) }
    }

    /// How many are to be looked at.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is nothing to look at.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// A group's share of the bytes that it takes.
    pub fn bytes_of_one(&self) -> u64 {
        (self.all.capacity() * size_of::<UnackedDelivery>()) as u64 / self.groups
    }

    /// How those are settled that live in a group, of the `count` that come after the first `done`.
    pub fn of(
        &self,
        home: GroupId,
        done: usize,
        count: usize,
    ) -> impl Iterator<Item = Settlement> + '_ {
        let end = done.saturating_add(count).min(self.len());
        let some = self.all.range(done.min(end)..end);
        let own = some.filter(move |it| it.home == home && it.slot != UnackedDelivery::HOLE);
        own.map(|it| it.settled(Settle::Requeue { counts: true }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_stay_small() {
        assert_eq!(size_of::<UnackedDelivery>(), 40);
    }

    #[test]
    fn each_group_finds_its_own_once() {
        let entry = |tag: u64| UnackedDelivery {
            tag,
            offset: Offset::new(tag),
            queue: QueueId::new(1),
            home: GroupId::new(tag as u32 % 3),
            unacked: UnackedId::new(0),
            slot: if tag.is_multiple_of(5) { UnackedDelivery::HOLE } else { 0 },
            delivered_s: 0,
        };
        let given = GivenBack::new((0..100).map(entry).collect(), 3);
        for count in [1, 7, 100, usize::MAX] {
            let mut found = Vec::new();
            for home in 0..3 {
                let pieces = (0..given.len()).step_by(count.min(100));
                let own = pieces.flat_map(|done| given.of(GroupId::new(home), done, count));
                let own: Vec<_> = own.map(|it| it.offset.get()).collect();
                assert!(own.is_sorted(), "oldest first: {own:?}");
                found.extend(own);
            }
            found.sort_unstable();
            let want: Vec<_> = (0..100).filter(|tag| tag % 5 != 0).collect();
            assert_eq!(found, want, "pieces of {count}");
        }
    }
}
