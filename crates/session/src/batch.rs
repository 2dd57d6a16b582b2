//! Hot path. What one read of the socket leads to, gathered per shard.
//!
//! Budget: one allocation per batch and shard.
//!
//! Publishes and settlements wait here until the input is read to its end, or until another letter goes
//! to the same shard, which must not overtake them. Settlements leave before publishes.

use leveret_broker::message::{ConnectionId, Outbox, Publish, Settlement, ToShard, shard_of};

/// Gathered letters.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    /// By shard; empty until something was gathered.
    shards: Vec<Gathered>,
    /// Shards with something gathered, in the order of the first.
    dirty: Vec<u32>,
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
    fn shard(&mut self, shard: usize, shards: usize) -> &mut Gathered {
        if self.shards.is_empty() {
            self.shards.resize_with(shards.max(1), Gathered::default);
        }
        let gathered = &mut self.shards[shard];
        if !gathered.is_dirty {
            gathered.is_dirty = true;
            gathered.is_used = true;
            self.dirty.push(shard as u32);
        }
        gathered
    }

    pub(crate) fn publish(&mut self, shard: usize, shards: usize, publish: Publish) {
        let gathered = self.shard(shard, shards);
        if gathered.publishes.capacity() == 0 {
            gathered.publishes.reserve(gathered.published.min(ROOM_MAX));
        }
        gathered.publishes.push(publish);
    }

    pub(crate) fn settle(&mut self, shards: usize, settlement: Settlement) {
        let gathered = self.shard(shard_of(settlement.queue, shards), shards);
        if gathered.settlements.capacity() == 0 {
            gathered.settlements.reserve(gathered.settled.min(ROOM_MAX));
        }
        gathered.settlements.push(settlement);
    }

    /// Sends a letter to a shard, after what was gathered for it.
    pub(crate) fn letter(
        &mut self,
        shard: usize,
        shards: usize,
        from: ConnectionId,
        letter: ToShard,
        outbox: &mut Outbox,
    ) {
        if self.shards.is_empty() {
            self.shards.resize_with(shards.max(1), Gathered::default);
        }
        let gathered = &mut self.shards[shard];
        gathered.is_used = true;
        if gathered.is_dirty {
            gathered.send(shard, from, outbox);
            self.dirty.retain(|&dirty| dirty != shard as u32);
        }
        outbox.shard(shard, letter);
    }

    /// Sends what was gathered.
    pub(crate) fn flush(&mut self, from: ConnectionId, outbox: &mut Outbox) {
        for &shard in &self.dirty {
            self.shards[shard as usize].send(shard as usize, from, outbox);
        }
        self.dirty.clear();
    }

    /// Shards that a letter went to.
    pub(crate) fn used(&self) -> impl Iterator<Item = usize> {
        self.shards.iter().enumerate().filter(|(_, g)| g.is_used).map(|(shard, _)| shard)
    }
}

impl Gathered {
    fn send(&mut self, shard: usize, from: ConnectionId, outbox: &mut Outbox) {
        self.is_dirty = false;
        if !self.settlements.is_empty() {
            self.settled = self.settlements.len();
            let settlements = std::mem::take(&mut self.settlements);
            outbox.shard(shard, ToShard::Settle { from, settlements });
        }
        if !self.publishes.is_empty() {
            self.published = self.publishes.len();
            let messages = std::mem::take(&mut self.publishes);
            outbox.shard(shard, ToShard::Publish { from, messages });
        }
    }
}
