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

    /// The home of what was lost with a leader of its group: its settlement goes nowhere.
    pub const NOWHERE: GroupId = GroupId::new(u32::MAX);

    /// Whether the message was lost with a leader of its group.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.home == Self::NOWHERE
    }

    /// A term of a shard begins, and of records from this offset on: the message is lost if it is one of an earlier term.
    pub fn lose(&mut self, group: GroupId, begins_at: Offset) {
        if self.home == group && self.offset >= begins_at {
            self.home = Self::NOWHERE;
        }
    }

    /// Its settlement.
    pub fn settled(&self, how: Settle) -> Settlement {
        Settlement { queue: self.queue, unacked: self.unacked, offset: self.offset, how }
    }
}

/// All that channels had not settled when they ended, as it lay there, oldest first: too much to be looked at in one turn.
#[derive(Clone, Debug)]
pub struct GivenBack {
    /// One channel after the other, each list with how many are before it.
    lists: Vec<(usize, VecDeque<UnackedDelivery>)>,
    len: usize,
    bytes: u64,
    groups: u64,
}

impl GivenBack {
    /// To be shared by so many groups.
    pub fn new(all: Vec<VecDeque<UnackedDelivery>>, groups: usize) -> Self {
        let (mut len, mut room) = (0, 0);
        let mut lists = Vec::with_capacity(all.len());
        for list in all.into_iter().filter(|list| !list.is_empty()) {
            let before = len;
            len += list.len();
            room += list.capacity();
            lists.push((before, list));
        }
        let bytes = (room * size_of::<UnackedDelivery>()) as u64;
        Self { lists, len, bytes, groups: (groups as u64).max(1) }
    }

    /// How many are to be looked at.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing to look at.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A group's share of so many, or of so many bytes, if all groups have as much of it.
    pub fn share_of(&self, all: u64) -> u64 {
        all.div_ceil(self.groups)
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// As [`Settlement::lose`], of those that live in a group.
    pub fn lose(&mut self, home: GroupId, begins_at: Offset) {
        let own = self.lists.iter_mut().flat_map(|(_, list)| list).filter(|it| it.home == home);
        let lost = own.filter(|it| it.offset >= begins_at);
        lost.for_each(|it| it.offset = Settlement::LOST);
    }

    /// How those are settled that live in a group, of the `count` that come after the first `done`.
    pub fn of(
        &self,
        home: GroupId,
        done: usize,
        count: usize,
    ) -> impl Iterator<Item = Settlement> + '_ {
        let end = done.saturating_add(count).min(self.len);
        let first = self.lists.partition_point(|(before, list)| before + list.len() <= done);
        let lists = self.lists[first..].iter().take_while(move |(before, _)| *before < end);
        let some = lists.flat_map(move |(before, list)| {
            list.range(done.saturating_sub(*before)..(end - before).min(list.len()))
        });
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

    /// The lists grow by one each.
    fn list_of(tag: u64) -> u64 {
        (1..).find(|list| list * (list + 1) / 2 > tag).unwrap_or_default()
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
        // The first list and the last ones are empty.
        let mut all: Vec<VecDeque<_>> = (0..15)
            .map(|list| (0..100).filter(|tag| list_of(*tag) == list).map(entry).collect())
            .collect();
        all.extend([VecDeque::new(), VecDeque::new()]);
        let given = GivenBack::new(all, 3);
        assert_eq!(given.len(), 100);
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
