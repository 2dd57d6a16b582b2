//! Hot path. What is counted of a connection: totals that only grow.
//!
//! Budget: a few additions per message, no allocation once warm. Counted where the numbers are at hand
//! anyway: publishes and confirms by exchange, acks by queue, whose place is kept while messages go to the same
//! one or come from it; deliveries in the consumer.
//!
//! A channel or consumer that ends leaves its totals to what it belonged to, and the connection leaves
//! them to the node, so that no sum goes backwards.

use std::hash::Hash;
use std::ops::AddAssign;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_topology::{ExchangeId, QueueId};
use serde::{Deserialize, Serialize};

/// What was published to one exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExchangeTotals {
    /// Messages published.
    pub publish: u64,
    /// `basic.ack` to the publisher.
    pub confirm: u64,
    /// Queues they were routed to.
    pub routed: u64,
    /// Went nowhere, and were returned.
    pub return_unroutable: u64,
    /// Went nowhere.
    pub drop_unroutable: u64,
}

impl AddAssign for ExchangeTotals {
    fn add_assign(&mut self, other: Self) {
        self.publish += other.publish;
        self.confirm += other.confirm;
        self.routed += other.routed;
        self.return_unroutable += other.return_unroutable;
        self.drop_unroutable += other.drop_unroutable;
    }
}

/// Totals by exchange.
pub type ByExchange = HashMap<ExchangeId, ExchangeTotals, FixedState>;

/// Totals of one channel, under the names of RabbitMQ's `message_stats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelTotals {
    /// What was published, to all exchanges.
    pub published: ExchangeTotals,
    /// Of these, with confirms.
    pub publish_confirm: u64,
    /// `basic.nack` to the publisher.
    pub nack: u64,
    /// What was taken, from all queues.
    pub taken: TakenTotals,
    /// Rejected or given back by the client.
    pub reject: u64,
}

impl AddAssign for ChannelTotals {
    fn add_assign(&mut self, other: Self) {
        self.published += other.published;
        self.publish_confirm += other.publish_confirm;
        self.nack += other.nack;
        self.taken += other.taken;
        self.reject += other.reject;
    }
}

/// Bounds of message sizes, in bytes, each included; what is larger comes in one place more. RabbitMQ's.
pub const SIZE_BOUNDS: [u64; 8] =
    [100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000];

/// Sizes of published messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sizes {
    /// By [`SIZE_BOUNDS`].
    pub counts: [u64; SIZE_BOUNDS.len() + 1],
    /// Their sum.
    pub bytes: u64,
}

impl Sizes {
    #[inline]
    pub(crate) fn count(&mut self, bytes: u64) {
        // Most are small, and the search should not be unrolled for them.
        let at = if bytes <= SIZE_BOUNDS[0] { 0 } else { place_of(bytes) };
        self.counts[at] += 1;
        self.bytes += bytes;
    }
}

#[inline(never)]
fn place_of(bytes: u64) -> usize {
    SIZE_BOUNDS.iter().take_while(|&&bound| bytes > bound).count()
}

impl AddAssign for Sizes {
    fn add_assign(&mut self, other: Self) {
        self.counts.iter_mut().zip(other.counts).for_each(|(sum, one)| *sum += one);
        self.bytes += other.bytes;
    }
}

/// How long something took, by powers of two: place `n` is below `2^n` ms, the last one is longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// How often.
    pub counts: [u64; Times::PLACES],
    /// Sum, in ms.
    pub ms: u64,
}

impl Times {
    /// How many places there are.
    pub const PLACES: usize = 24;

    #[inline]
    pub(crate) fn count(&mut self, ms: u64) {
        let at = (u64::BITS - ms.leading_zeros()) as usize;
        self.counts[at.min(Self::PLACES - 1)] += 1;
        self.ms += ms;
    }
}

impl AddAssign for Times {
    fn add_assign(&mut self, other: Self) {
        self.counts.iter_mut().zip(other.counts).for_each(|(sum, one)| *sum += one);
        self.ms += other.ms;
    }
}

/// Bounds of how long confirms took, in microseconds; what took as long comes in the next place.
pub const CONFIRM_BOUNDS_US: [u64; 20] = [
    50,
    100,
    200,
    500,
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
];

/// How long confirms took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfirmTimes {
    /// By [`CONFIRM_BOUNDS_US`].
    pub counts: [u64; ConfirmTimes::PLACES],
    /// Their sum, in microseconds.
    pub us: u64,
}

impl ConfirmTimes {
    /// How many places there are: the last one has no bound.
    pub const PLACES: usize = CONFIRM_BOUNDS_US.len() + 1;

    pub(crate) fn count(&mut self, us: u64) {
        self.counts[CONFIRM_BOUNDS_US.iter().take_while(|&&bound| us >= bound).count()] += 1;
        self.us += us;
    }
}

impl AddAssign for ConfirmTimes {
    fn add_assign(&mut self, other: Self) {
        self.counts.iter_mut().zip(other.counts).for_each(|(sum, one)| *sum += one);
        self.us += other.us;
    }
}

/// Totals of one connection, those of its ended channels too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionTotals {
    /// Of all channels.
    pub channels: ChannelTotals,
    /// What they published.
    pub exchanges: ByExchange,
    /// Connections that were opened: 1 once this one was.
    pub connections_opened: u64,
    /// Connections that were closed; the node counts it.
    pub connections_closed: u64,
    /// Channels opened.
    pub channels_opened: u64,
    /// Channels closed.
    pub channels_closed: u64,
    /// Logins.
    pub auth_succeeded: u64,
    /// Refused logins.
    pub auth_failed: u64,
    /// Sizes of published messages.
    pub sizes: Sizes,
    /// How long delivered messages had been in the broker.
    pub in_broker: Times,
    /// How long confirms took: of one message per channel at a time.
    pub confirm: ConfirmTimes,
}

impl SessionTotals {
    /// Adds those of another connection.
    pub fn add(&mut self, other: &Self) {
        self.channels += other.channels;
        for (&exchange, totals) in &other.exchanges {
            *self.exchanges.entry(exchange).or_default() += *totals;
        }
        self.connections_opened += other.connections_opened;
        self.connections_closed += other.connections_closed;
        self.channels_opened += other.channels_opened;
        self.channels_closed += other.channels_closed;
        self.auth_succeeded += other.auth_succeeded;
        self.auth_failed += other.auth_failed;
        self.sizes += other.sizes;
        self.in_broker += other.in_broker;
        self.confirm += other.confirm;
    }
}

/// Totals by key, in the order of their first use. A run of the same key is found without a look-up.
///
/// With more than `MAX` keys all of them are forgotten, and it begins anew.
#[derive(Debug)]
struct ByKey<K, T, const MAX: usize> {
    all: Vec<(K, T)>,
    places: HashMap<K, usize, FixedState>,
    /// Where the key is that was used last.
    place: usize,
}

impl<K, T, const MAX: usize> Default for ByKey<K, T, MAX> {
    fn default() -> Self {
        Self { all: Vec::new(), places: HashMap::default(), place: 0 }
    }
}

impl<K: Copy + Eq + Hash, T: Default, const MAX: usize> ByKey<K, T, MAX> {
    #[inline]
    fn of(&mut self, key: K) -> &mut T {
        if self.all.get(self.place).is_none_or(|(known, _)| *known != key) {
            self.turn_to(key);
        }
        &mut self.all[self.place].1
    }

    #[cold]
    fn turn_to(&mut self, key: K) {
        if self.all.len() >= MAX && !self.places.contains_key(&key) {
            *self = Self::default();
        }
        let next = self.all.len();
        self.place = *self.places.entry(key).or_insert(next);
        if self.place == next {
            self.all.push((key, T::default()));
        }
    }
}

/// What a channel published, by exchange.
#[derive(Debug, Default)]
pub(crate) struct Published(ByKey<ExchangeId, ExchangeTotals, { usize::MAX }>);

impl Published {
    /// A message was published, and routed to so many queues. Gives what is counted for its exchange.
    #[inline]
    pub(crate) fn count(&mut self, exchange: ExchangeId, routed: u64) -> &mut ExchangeTotals {
        let totals = self.0.of(exchange);
        totals.publish += 1;
        totals.routed += routed;
        totals
    }

    /// A message that was routed found all its queues gone at the commit, and was returned.
    #[cold]
    pub(crate) fn count_returned(&mut self, exchange: ExchangeId) {
        self.0.of(exchange).return_unroutable += 1;
    }

    /// What [`confirmed`](Self::confirmed) takes for the message counted last. Behind the 65,535th exchange
    /// of a channel they share one.
    #[inline]
    pub(crate) fn place(&self) -> u16 {
        self.0.place.min(usize::from(u16::MAX)) as u16
    }

    /// A message was confirmed.
    #[inline]
    pub(crate) fn confirmed(&mut self, place: u16) {
        if let Some((_, totals)) = self.0.all.get_mut(usize::from(place)) {
            totals.confirm += 1;
        }
    }

    /// All exchanges.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ExchangeId, ExchangeTotals)> {
        self.0.all.iter().copied()
    }

    /// Their sum.
    pub(crate) fn sum(&self) -> ExchangeTotals {
        let mut sum = ExchangeTotals::default();
        self.iter().for_each(|(_, totals)| sum += totals);
        sum
    }
}

/// What a channel was given, and acked, from one queue or from all, under the names of RabbitMQ's `message_stats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenTotals {
    /// Delivered, to be acked.
    pub deliver: u64,
    /// Delivered, never to be acked.
    pub deliver_no_ack: u64,
    /// By `basic.get`, to be acked.
    pub get: u64,
    /// By `basic.get`, never to be acked.
    pub get_no_ack: u64,
    /// `basic.get` found nothing.
    pub get_empty: u64,
    /// Of all that was delivered: what had been before.
    pub redeliver: u64,
    /// Acked by the client.
    pub ack: u64,
}

impl TakenTotals {
    /// All that was given, in whatever way.
    pub fn deliver_get(&self) -> u64 {
        self.deliver + self.deliver_no_ack + self.get + self.get_no_ack
    }
}

impl AddAssign for TakenTotals {
    fn add_assign(&mut self, other: Self) {
        self.deliver += other.deliver;
        self.deliver_no_ack += other.deliver_no_ack;
        self.get += other.get;
        self.get_no_ack += other.get_no_ack;
        self.get_empty += other.get_empty;
        self.redeliver += other.redeliver;
        self.ack += other.ack;
    }
}

/// Queues that a channel counts apart.
const TAKEN_MAX: usize = 1024;

/// What a channel was given and acked, by queue; what its consumers count is not in it while they are there.
#[derive(Debug, Default)]
pub(crate) struct TakenByQueue(ByKey<QueueId, TakenTotals, TAKEN_MAX>);

impl TakenByQueue {
    /// What is counted for a queue.
    #[inline]
    pub(crate) fn of(&mut self, queue: QueueId) -> &mut TakenTotals {
        self.0.of(queue)
    }

    /// All queues.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (QueueId, TakenTotals)> {
        self.0.all.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_exchanges_add_up() {
        let mut published = Published::default();
        for exchange in [1, 1, 2, 1, 3, 3, 2, 0] {
            published.count(ExchangeId::new(exchange), 2).drop_unroutable += 1;
        }
        let counts: Vec<_> = published.iter().map(|(id, it)| (id.get(), it.publish)).collect();
        assert_eq!(counts, [(1, 3), (2, 2), (3, 2), (0, 1)]);
        let sum =
            ExchangeTotals { publish: 8, routed: 16, drop_unroutable: 8, ..Default::default() };
        assert_eq!(published.sum(), sum);
    }

    #[test]
    fn queues_that_are_counted_apart_are_bounded() {
        let mut taken = TakenByQueue::default();
        for round in 0..2 {
            for queue in 0..TAKEN_MAX as u64 {
                taken.of(QueueId::new(queue)).ack += 1;
            }
            assert!(taken.iter().all(|(_, it)| it.ack == round + 1));
        }
        taken.of(QueueId::new(u64::MAX)).ack += 1;
        taken.of(QueueId::new(7)).ack += 1;
        let left: Vec<_> = taken.iter().map(|(queue, it)| (queue.get(), it.ack)).collect();
        assert_eq!(left, [(u64::MAX, 1), (7, 1)]);
    }

    #[test]
    #[rustfmt::skip] // a table
    fn sizes_and_times_have_their_place() {
        size(0, 0);
        size(100, 0);
        size(101, 1);
        size(100_000_000, 7);
        size(u64::MAX / 2, 8);
        time(0, 0); // below 1 ms
        time(1, 1);
        time(2, 2);
        time(3, 2);
        time(4, 3);
        time(u64::MAX / 2, Times::PLACES - 1);
        confirm(0, 0);
        confirm(49, 0);
        confirm(50, 1);
        confirm(999, 4);
        confirm(1_000, 5);
        confirm(99_999_999, 19);
        confirm(u64::MAX / 2, 20);
    }

    #[track_caller]
    fn size(bytes: u64, at: usize) {
        let mut sizes = Sizes::default();
        sizes.count(bytes);
        assert_eq!(sizes.counts.iter().position(|&count| count == 1), Some(at), "{bytes}");
    }

    #[track_caller]
    fn confirm(us: u64, at: usize) {
        let mut times = ConfirmTimes::default();
        times.count(us);
        assert_eq!(times.counts.iter().position(|&count| count == 1), Some(at), "{us}");
    }

    #[track_caller]
    fn time(ms: u64, at: usize) {
        let mut times = Times::default();
        times.count(ms);
        assert_eq!(times.counts.iter().position(|&count| count == 1), Some(at), "{ms}");
    }
}
