//! Homes: the group that a queue lives in, and the one whose shard has the memory of a recent-history exchange.
//!
//! A queue's home is chosen when the queue is made, and is part of the queue from then on ([`Queue::home`](crate::Queue::home)). Letters
//! about the queue go there. Nothing else knows a rule by which homes are chosen, so that a queue may have any home.
//!
//! What a recent-history exchange remembers has a home as a queue has. A change for other topologies tells it. It is not stored: what is
//! remembered is in memory only, so a start chooses anew.
//!
//! The rule is that of data directories that know no homes: the number of the queue modulo the number of groups. A stored
//! queue has its home in its record only if the rule says another one. A change for other topologies always tells it.

use crate::hash::mix;
use crate::id::{ExchangeId, GroupId, QueueId};
use crate::topology::Topology;

/// How many groups there are, and how a home is chosen among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Homes {
    groups: u32,
    /// New queues have homes by chance.
    seed: Option<u64>,
}

/// Groups are fewer than this in all, so that a list may have a place for each.
pub(crate) const GROUPS_MAX: u32 = 1 << 16;

impl Default for Homes {
    fn default() -> Self {
        Self::among(1)
    }
}

impl Homes {
    /// New queues have their homes in so many groups in turn; at least one.
    pub const fn among(groups: u32) -> Self {
        Self { groups: if groups == 0 { 1 } else { groups }, seed: None }
    }

    /// New queues have homes by chance from now on: for the simulator, as no home must follow from the number of a queue.
    pub const fn by_chance(self, seed: u64) -> Self {
        Self { seed: Some(seed), ..self }
    }

    /// How many groups there are.
    pub const fn groups(self) -> u32 {
        self.groups
    }

    /// The group whose shard, and whose log, is at this place among those of the node: see [`index_of`](Self::index_of).
    ///
    /// Here alone numbers of logs and of groups are the same, as they are on a node that is alone.
    pub fn group_at(self, index: usize) -> GroupId {
        GroupId::at(index)
    }

    /// The place of a group's shard among those of the node; none if the group has none here. The number of its log is the same
    /// place in the data directory.
    #[inline]
    pub const fn index_of(self, group: GroupId) -> Option<usize> {
        if group.get() < self.groups { Some(group.index()) } else { None }
    }

    /// The home of a queue whose record does not say another one.
    pub fn usual(self, queue: QueueId) -> GroupId {
        self.modulo(queue.get())
    }

    /// The home of a queue that is made.
    pub(crate) fn choose(self, queue: QueueId) -> GroupId {
        match self.seed {
            None => self.usual(queue),
            Some(seed) => self.modulo(mix(seed ^ mix(queue.get()))),
        }
    }

    /// The home of what an exchange that is made remembers.
    pub(crate) fn choose_history(self, exchange: ExchangeId) -> GroupId {
        self.choose(QueueId::new(exchange.get()))
    }

    fn modulo(self, number: u64) -> GroupId {
        GroupId::new((number % u64::from(self.groups)) as u32)
    }
}

impl Topology {
    /// The groups that queues may live in. To be set while there is no queue.
    pub fn set_homes(&mut self, homes: Homes) {
        debug_assert!(self.queues.is_empty(), "the homes of queues stay");
        self.homes = homes;
    }

    /// The groups that queues may live in.
    pub fn homes(&self) -> Homes {
        self.homes
    }

    /// The group that a queue lives in. A letter about a queue that is gone may go anywhere: no shard has the queue, and each says so.
    #[inline]
    pub fn home(&self, queue: QueueId) -> GroupId {
        self.queues.get(&queue).map_or_else(|| self.homes.usual(queue), |queue| queue.home)
    }

    /// The group whose shard keeps what a recent-history exchange remembers ([`Exchange::home`](crate::Exchange::home)). A letter
    /// about an exchange that is gone may go anywhere: each shard says so.
    pub fn history_home(&self, exchange: ExchangeId) -> GroupId {
        let exchange_there = self.exchanges.get(&exchange);
        exchange_there.map_or_else(|| self.homes.choose_history(exchange), |it| it.home)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_are_among_the_groups() {
        for homes in [Homes::among(0), Homes::among(3), Homes::among(3).by_chance(7)] {
            let mut seen = vec![0; homes.groups() as usize];
            for queue in 0..300 {
                seen[homes.choose(QueueId::new(queue)).index()] += 1;
            }
            assert!(seen.iter().all(|&count| count > 60), "{homes:?}: {seen:?}");
        }
        let homes = Homes::among(3).by_chance(7);
        let differs = |queue| homes.choose(queue) != homes.usual(queue);
        assert!((0..300).map(QueueId::new).filter(|&queue| differs(queue)).count() > 150);
        assert_eq!(homes.usual(QueueId::new(7)), GroupId::new(1));
        assert!((0..3).all(|index| homes.index_of(homes.group_at(index)) == Some(index)));
        assert_eq!(homes.index_of(GroupId::new(3)), None);
    }
}
