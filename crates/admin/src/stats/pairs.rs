//! What passes between a channel and an exchange, between an exchange and a queue, and between a queue and a channel:
//! made of what sessions count anyway, one sample against the one before, with no samples kept.

use std::collections::BTreeMap;

use leveret_session::ConnectionNumbers;
use leveret_topology::{ExchangeId, QueueId};

use super::names::{self, PUBLISHED, TAKEN};
use super::snapshot::Snapshot;

/// With whom a channel has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum With {
    /// It publishes there.
    Exchange(ExchangeId),
    /// It takes messages of that.
    Queue(QueueId),
}

impl With {
    /// What is counted.
    pub const fn names(self) -> &'static [&'static str] {
        match self {
            Self::Exchange(_) => &PUBLISHED,
            Self::Queue(_) => &TAKEN,
        }
    }
}

/// Counts between a channel and something, each a total and its change per second between the last two samples.
type Counted = [(u64, f64); TAKEN.len()];

/// Messages between a channel and something.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// The channel's number.
    pub channel: u16,
    /// What.
    pub with: With,
    counted: Counted,
}

impl Pair {
    /// Names, totals, and messages a second.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64, f64)> {
        let counted = self.with.names().iter().zip(&self.counted);
        counted.map(|(name, (count, rate))| (*name, *count, *rate))
    }
}

/// Messages that were published to an exchange and routed to a queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Passage {
    /// From where to where.
    pub pair: (ExchangeId, QueueId),
    /// Messages so far.
    pub count: u64,
    /// Messages a second, between the last two samples.
    pub rate: f64,
}

/// The passages of a connection, in their order, `passed_ms` after those `before`.
pub(super) fn passages(
    before: &[Passage],
    numbers: &ConnectionNumbers,
    passed_ms: u64,
) -> Vec<Passage> {
    let passage = |&(pair, count): &((ExchangeId, QueueId), u64)| {
        let known = before.binary_search_by_key(&pair, |known| known.pair).ok();
        let known = known.and_then(|at| before.get(at)).map_or(0, |known| known.count);
        Passage { pair, count, rate: rate(count, known, passed_ms) }
    };
    numbers.passed.iter().map(passage).collect()
}

impl Snapshot {
    /// What passed of all connections, those that ended too, where `is_wanted`.
    pub fn passages(
        &self,
        is_wanted: impl Fn((ExchangeId, QueueId)) -> bool,
    ) -> BTreeMap<(ExchangeId, QueueId), (u64, f64)> {
        let there = self.connections.values().flat_map(|entry| &entry.passages);
        let there = there.map(|it| (it.pair, it.count, it.rate));
        let ended = self.ended.iter().map(|(&pair, &count)| (pair, count, 0.0));
        let mut sums = BTreeMap::<_, (u64, f64)>::new();
        for (pair, count, rate) in there.chain(ended).filter(|it| is_wanted(it.0)) {
            let sum = sums.entry(pair).or_default();
            *sum = (sum.0 + count, sum.1 + rate);
        }
        sums
    }
}

/// Messages a second.
fn rate(count: u64, before: u64, passed_ms: u64) -> f64 {
    if passed_ms == 0 {
        return 0.0;
    }
    count.saturating_sub(before) as f64 * 1000.0 / passed_ms as f64
}

/// The pairs of a connection, by channel and by what it has to do with, `passed_ms` after those `before`.
pub(super) fn pairs(before: &[Pair], numbers: &ConnectionNumbers, passed_ms: u64) -> Vec<Pair> {
    let mut pairs: Vec<Pair> = Vec::new();
    for channel in &numbers.channels {
        let published = channel.exchanges.iter();
        let published = published.map(|(id, it)| (With::Exchange(*id), names::published(it)));
        let taken = channel.taken.iter().map(|(id, it)| (With::Queue(*id), names::taken(it)));
        for (with, counts) in published.chain(taken).filter(|(_, counts)| *counts != [0; 8]) {
            let counted = counts.map(|count| (count, 0.0));
            pairs.push(Pair { channel: channel.number, with, counted });
        }
    }
    pairs.sort_unstable_by_key(|pair| (pair.channel, pair.with));
    for pair in &mut pairs {
        let key = (pair.channel, pair.with);
        let known = before.binary_search_by_key(&key, |known| (known.channel, known.with));
        let known =
            known.ok().and_then(|at| before.get(at)).map_or_else(Counted::default, |it| it.counted);
        for ((count, per_second), (before, _)) in pair.counted.iter_mut().zip(known) {
            *per_second = rate(*count, before, passed_ms);
        }
    }
    pairs
}
