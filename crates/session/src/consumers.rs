//! The consumers of one connection, by the slot that shards know them by.
//!
//! A slot is a place and how often the place was given: letters about a consumer that is gone, still on
//! their way when its place was given again, find nobody.
//!
//! ```text
//!   31           20 19                     0
//!   | generation   | place                 |
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use leveret_amqp::table::Table;
use leveret_broker::message::ConsumerSlot;
use leveret_topology::{GroupId, QueueId};

use crate::totals::TakenTotals;

const PLACE_BITS: u32 = 20;
const PLACE: u32 = (1 << PLACE_BITS) - 1;
const GENERATIONS: u32 = 1 << (32 - PLACE_BITS);

/// One consumer.
#[derive(Debug)]
pub(crate) struct Consumer {
    pub(crate) channel: u16,
    pub(crate) tag: Box<str>,
    pub(crate) queue: QueueId,
    /// The group that the queue lives in.
    pub(crate) home: GroupId,
    /// How long a delivery may stay unacked, in ms.
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) no_ack: bool,
    /// The shard's number for it, once it has answered.
    pub(crate) number: Option<u64>,
    /// What a shard in a new term is told of it, as it was asked for.
    pub(crate) exclusive: bool,
    pub(crate) priority: i32,
    pub(crate) prefetch: u16,
    pub(crate) arguments: Arc<Table>,
    /// Bytes that it takes, here and with its queue.
    pub(crate) weight: u32,
    /// Messages delivered, and how many of them had been before.
    pub(crate) delivered: u64,
    pub(crate) redelivered: u64,
}

impl Consumer {
    /// What was delivered.
    pub(crate) fn taken(&self) -> TakenTotals {
        let (deliver, deliver_no_ack) = match self.no_ack {
            true => (0, self.delivered),
            false => (self.delivered, 0),
        };
        let redeliver = self.redelivered;
        TakenTotals { deliver, deliver_no_ack, redeliver, ..TakenTotals::default() }
    }
}

/// A place of the table, given to one consumer after the other.
#[derive(Debug)]
struct ConsumerPlace {
    generation: u32,
    consumer: Option<Consumer>,
}

/// The table.
#[derive(Debug, Default)]
pub(crate) struct Consumers {
    places: Vec<ConsumerPlace>,
    /// The place that was free longest is given first.
    free: VecDeque<u32>,
    /// Where new places begin to count.
    first_generation: u32,
    bytes: u64,
}

impl Consumers {
    /// None when a million consumers are there already.
    pub(crate) fn insert(&mut self, consumer: Consumer) -> Option<ConsumerSlot> {
        let at = match self.free.pop_front() {
            Some(at) => at,
            None => {
                // The last places are the marks of `unacked`.
                let at = u32::try_from(self.places.len()).ok().filter(|&at| at < PLACE - 1)?;
                self.places
                    .push(ConsumerPlace { generation: self.first_generation, consumer: None });
                at
            }
        };
        let place = &mut self.places[at as usize];
        self.bytes += u64::from(consumer.weight);
        place.consumer = Some(consumer);
        Some(ConsumerSlot(place.generation << PLACE_BITS | at))
    }

    /// Bytes of all of them.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn place(&self, slot: ConsumerSlot) -> Option<&ConsumerPlace> {
        let place = self.places.get((slot.0 & PLACE) as usize)?;
        (place.generation == slot.0 >> PLACE_BITS).then_some(place)
    }

    pub(crate) fn get(&self, slot: ConsumerSlot) -> Option<&Consumer> {
        self.place(slot)?.consumer.as_ref()
    }

    pub(crate) fn get_mut(&mut self, slot: ConsumerSlot) -> Option<&mut Consumer> {
        let place = self.places.get_mut((slot.0 & PLACE) as usize)?;
        if place.generation != slot.0 >> PLACE_BITS {
            return None;
        }
        place.consumer.as_mut()
    }

    pub(crate) fn remove(&mut self, slot: ConsumerSlot) -> Option<Consumer> {
        self.place(slot)?;
        let at = slot.0 & PLACE;
        let place = &mut self.places[at as usize];
        let consumer = place.consumer.take()?;
        self.bytes -= u64::from(consumer.weight);
        place.generation = (place.generation + 1) % GENERATIONS;
        self.free.push_back(at);
        if self.free.len() == self.places.len() && self.places.len() > 64 {
            // A burst's room is given back.
            let last = self.places.iter().map(|place| place.generation).max().unwrap_or(0);
            self.first_generation = (last + 1) % GENERATIONS;
            self.places.truncate(64);
            self.places.shrink_to_fit();
            self.free = (0..64).collect();
        }
        Some(consumer)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (ConsumerSlot, &Consumer)> {
        self.places.iter().enumerate().filter_map(|(at, place)| {
            let slot = ConsumerSlot(place.generation << PLACE_BITS | at as u32);
            Some((slot, place.consumer.as_ref()?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn consumer(channel: u16) -> Consumer {
        let (tag, queue, home) = ("t".into(), QueueId::new(1), GroupId::new(0));
        let (no_ack, timeout_ms, weight, delivered, redelivered) = (false, None, 100, 0, 0);
        let (number, exclusive, priority, prefetch, arguments) =
            (None, false, 0, 0, Arc::default());
        Consumer {
            channel,
            tag,
            queue,
            home,
            timeout_ms,
            no_ack,
            number,
            exclusive,
            priority,
            prefetch,
            arguments,
            weight,
            delivered,
            redelivered,
        }
    }

    #[test]
    fn a_freed_slot_finds_nobody() {
        let mut consumers = Consumers::default();
        let first = consumers.insert(consumer(1)).unwrap();
        assert!(consumers.get(first).is_some());
        assert!(consumers.remove(first).is_some());
        assert!(consumers.remove(first).is_none());
        let second = consumers.insert(consumer(2)).unwrap();
        assert_ne!(first, second);
        assert!(consumers.get(first).is_none());
        assert_eq!(consumers.get(second).map(|c| c.channel), Some(2));
        assert_eq!(consumers.iter().map(|(slot, _)| slot).collect::<Vec<_>>(), [second]);
    }

    #[test]
    fn nor_does_one_of_a_burst() {
        let mut consumers = Consumers::default();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..5 {
            let slots: Vec<_> = (0..300).map(|_| consumers.insert(consumer(1)).unwrap()).collect();
            for slot in slots {
                assert!(seen.insert(slot), "{slot:?} was given twice");
                assert!(consumers.remove(slot).is_some());
            }
            assert_eq!(consumers.places.len(), 64);
        }
    }
}
