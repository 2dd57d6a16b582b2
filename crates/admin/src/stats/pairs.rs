//! What passes between a channel and an exchange, between an exchange and a queue, and between a queue and a channel:
//! made of what sessions count anyway, one sample against the one before, with no samples kept.

use leveret_session::ConnectionNumbers;
use leveret_topology::{ExchangeId, QueueId};

/// With whom a channel has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum With {
    /// It publishes there.
    Exchange(ExchangeId),
    /// Its consumers are given messages of that.
    Queue {
        /// Which.
        queue: QueueId,
        /// Those that never ack.
        no_ack: bool,
    },
}

impl With {
    /// The queue, if it is one.
    pub fn queue(self) -> Option<QueueId> {
        match self {
            Self::Queue { queue, .. } => Some(queue),
            Self::Exchange(_) => None,
        }
    }
}

/// Messages between a channel and something.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    /// The channel's number.
    pub channel: u16,
    /// What.
    pub with: With,
    /// Messages so far; of consumers those that are there.
    pub count: u64,
    /// Messages a second, between the last two samples.
    pub rate: f64,
    /// Of those published, how many were confirmed.
    pub confirmed: u64,
    /// The same of them.
    pub confirm_rate: f64,
}

/// Messages that a connection published to an exchange and that were routed to a queue.
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
        let published = published.map(|(id, it)| (With::Exchange(*id), it.publish, it.confirm));
        let delivered = channel.deliveries.iter().map(|it| {
            let with = With::Queue { queue: it.queue, no_ack: it.no_ack };
            (with, it.delivered, 0)
        });
        let counted = published.chain(delivered).filter(|(_, count, _)| *count > 0);
        pairs.extend(counted.map(|(with, count, confirmed)| Pair {
            channel: channel.number,
            with,
            count,
            rate: 0.0,
            confirmed,
            confirm_rate: 0.0,
        }));
    }
    pairs.sort_unstable_by_key(|pair| (pair.channel, pair.with));
    pairs.dedup_by(|next, pair| {
        let is_same = (pair.channel, pair.with) == (next.channel, next.with);
        if is_same {
            pair.count += next.count;
            pair.confirmed += next.confirmed;
        }
        is_same
    });
    for pair in &mut pairs {
        let key = (pair.channel, pair.with);
        let known = before.binary_search_by_key(&key, |known| (known.channel, known.with));
        let known = known.ok().and_then(|at| before.get(at));
        let (count, confirmed) = known.map_or((0, 0), |known| (known.count, known.confirmed));
        pair.rate = rate(pair.count, count, passed_ms);
        pair.confirm_rate = rate(pair.confirmed, confirmed, passed_ms);
    }
    pairs
}
