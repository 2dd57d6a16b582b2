//! Looking at what is in a queue without taking it: pages of messages in the order of their offsets.
//!
//! Offsets are stable, whatever comes and goes between two pages; and they are the order of publishing
//! but for transactions over several shards. The order of delivery differs from it where there are
//! priorities, and messages that came back.

use crate::message::Offset;
use crate::queue::Queue;
use crate::ready::QueuedMessage;
use crate::time::Time;

/// What is found again by a number.
pub(crate) trait Keyed {
    /// The number.
    fn key(&self) -> u64;
}

/// Where a page is to be of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookAt {
    /// Messages that wait for a consumer.
    Ready,
    /// Messages that wait for an ack.
    Unacked,
}

/// One message of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Its record.
    pub offset: Offset,
    /// Length of the body, in bytes.
    pub size: u32,
    /// It was delivered before.
    pub redelivered: bool,
    /// Deliveries that came back.
    pub delivery_count: u32,
    /// The end of its time to live, if it has one.
    pub expires_at: Option<Time>,
    /// The key of the consumer that has it, unless that is gone, or it was taken by `basic.get`.
    pub consumer_key: Option<u64>,
}

/// Collects those with the lowest keys from one on: `max` of them, however many are offered.
#[derive(Debug)]
pub(crate) struct Lowest<T> {
    from: u64,
    max: usize,
    /// What is above it is not among them.
    bound: u64,
    found: Vec<T>,
}

impl<T: Keyed> Lowest<T> {
    pub(crate) fn new(from: u64, max: usize) -> Self {
        Self { from, max, bound: u64::MAX, found: Vec::new() }
    }

    /// Whether one of those with keys from `least` to `greatest` may be among them.
    pub(crate) fn wants(&self, least: u64, greatest: u64) -> bool {
        greatest >= self.from && least <= self.bound
    }

    pub(crate) fn offer(&mut self, value: T) {
        if !self.wants(value.key(), value.key()) {
            return;
        }
        self.found.push(value);
        if self.found.len() > 2 * self.max {
            self.cut();
        }
    }

    fn cut(&mut self) {
        if let Some(last) = self.max.checked_sub(1).filter(|&last| last < self.found.len()) {
            let (_, value, _) = self.found.select_nth_unstable_by_key(last, Keyed::key);
            self.bound = value.key();
        }
        self.found.truncate(self.max);
    }

    /// What was found, ascending.
    pub(crate) fn finish(mut self) -> Vec<T> {
        self.cut();
        self.found.sort_unstable_by_key(Keyed::key);
        self.found
    }
}

impl Queue {
    /// At most `max` messages of `place` from an offset on, ascending. Nothing of the queue changes. Of a
    /// million messages some thousand are looked at, if they came in order.
    pub fn look(&self, place: LookAt, from: Offset, max: usize) -> Vec<Look> {
        match place {
            LookAt::Ready => {
                let mut lowest = Lowest::new(from.get(), max);
                self.ready.search(&mut lowest);
                let found = lowest.finish().into_iter();
                found.map(|entry| self.look_at(entry, None)).collect()
            }
            LookAt::Unacked => {
                let mut lowest = Lowest::new(from.get(), max);
                self.unacked.outs().for_each(|out| lowest.offer(*out));
                let found = lowest.finish().into_iter();
                found.map(|out| self.look_at(out.entry, out.consumer())).collect()
            }
        }
    }

    fn look_at(&self, entry: QueuedMessage, consumer: Option<u32>) -> Look {
        Look {
            offset: Offset::new(entry.offset),
            size: entry.size,
            redelivered: entry.redelivered(),
            delivery_count: self.extras.delivery_count(entry),
            expires_at: self.extras.expires_at(entry),
            consumer_key: consumer.and_then(|id| self.consumers.key(id)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Keyed for u64 {
        fn key(&self) -> u64 {
            *self
        }
    }

    #[test]
    fn the_lowest_in_any_order() {
        let all: Vec<u64> = (0..100).map(|n| n * 37 % 101).collect();
        for max in [0, 1, 2, 7, 100, 200] {
            for from in [0, 50, 100, 1_000] {
                let mut lowest = Lowest::new(from, max);
                all.iter().for_each(|&number| lowest.offer(number));
                let mut want: Vec<_> = all.iter().copied().filter(|&it| it >= from).collect();
                want.sort_unstable();
                want.truncate(max);
                assert_eq!(lowest.finish(), want, "{max} from {from}");
            }
        }
    }
}
