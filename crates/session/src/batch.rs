//! Hot path. What one read of the socket leads to, gathered per shard.
//!
//! Budget: one allocation per batch and shard.
//!
//! Publishes and settlements wait here until the input is read to its end, or until another letter goes
//! to the same shard, which must not overtake them. Settlements leave before publishes.

use leveret_broker::message::{ConnectionId, Outbox, Publish, Settlement, ToShard};
use leveret_topology::{ByGroup, GroupId};

/// Gathered letters.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    groups: ByGroup<Gathered>,
    /// Groups with something gathered, in the order of the first.
    dirty: Vec<GroupId>,
}

#[derive(Debug, Default)]
struct Gathered {
    publishes: Vec<Publish>,
    settlements: Vec<Settlement>,
    /// How much the last batch held: room for the next one is made at once.
    published: usize,
    settled: usize,
    is_dirty: bool,
    /// A letter went there: it has to be told when the connection ends.
    is_used: bool,
}

/// Room made at once for a batch, whatever the last one was.
const ROOM_MAX: usize = 512;

impl Batch {
    #[inline]
    fn more(&mut self, group: GroupId) -> &mut Gathered {
        let gathered = self.groups.of(group);
        if !std::mem::replace(&mut gathered.is_dirty, true) {
            self.dirty.push(group);
        }
        gathered.is_used = true;
        gathered
    }

    pub(crate) fn publish(&mut self, home: GroupId, publish: Publish) {
        let gathered = self.more(home);
        if gathered.publishes.capacity() == 0 {
            gathered.publishes.reserve(gathered.published.min(ROOM_MAX));
        }
        gathered.publishes.push(publish);
    }

    pub(crate) fn settle(&mut self, home: GroupId, settlement: Settlement) {
        let gathered = self.more(home);
        if gathered.settlements.capacity() == 0 {
            gathered.settlements.reserve(gathered.settled.min(ROOM_MAX));
        }
        gathered.settlements.push(settlement);
    }

    /// Sends a letter to a group, after what was gathered for it.
    pub(crate) fn letter(
        &mut self,
        group: GroupId,
        from: ConnectionId,
        letter: ToShard,
        outbox: &mut Outbox,
    ) {
        let gathered = self.groups.of(group);
        gathered.is_used = true;
        if gathered.is_dirty {
            gathered.send(group, from, outbox);
            self.dirty.retain(|&dirty| dirty != group);
        }
        outbox.shard(group, letter);
    }

    /// Sends what was gathered.
    pub(crate) fn flush(&mut self, from: ConnectionId, outbox: &mut Outbox) {
        for &group in &self.dirty {
            self.groups.of(group).send(group, from, outbox);
        }
        self.dirty.clear();
    }

    /// Groups whose shards a letter went to.
    pub(crate) fn used(&self) -> impl Iterator<Item = GroupId> {
        self.groups.iter().filter(|(_, gathered)| gathered.is_used).map(|(group, _)| group)
    }
}

impl Gathered {
    fn send(&mut self, group: GroupId, from: ConnectionId, outbox: &mut Outbox) {
        self.is_dirty = false;
        if !self.settlements.is_empty() {
            self.settled = self.settlements.len();
            let settlements = std::mem::take(&mut self.settlements);
            outbox.shard(group, ToShard::Settle { from, settlements });
        }
        if !self.publishes.is_empty() {
            self.published = self.publishes.len();
            let messages = std::mem::take(&mut self.publishes);
            outbox.shard(group, ToShard::Publish { from, messages });
        }
    }
}
