//! Hot path. Where messages with one exchange and routing key go, remembered.
//!
//! Budget: one hash of the two names per message; no allocation on a hit, none on a miss once warm but
//! for targets in more than one shard.
//!
//! Direct-mapped: a place holds the last names that fell on it. It grows while names push each other
//! out, up to [`PLACES_MAX`]. An entry holds for one generation of routes and one of permissions; what is
//! in it was checked against both: the exchange exists, takes messages from clients, and the user may
//! write to it, with this key if it is a topic exchange.

use leveret_broker::message::Targets;
use leveret_topology::{ExchangeId, Route, Topology};
use smallvec::SmallVec;

use crate::direct::Address;

/// What a message meets.
#[derive(Debug, Default)]
pub(crate) struct Routed {
    /// Queues by shard.
    pub(crate) targets: SmallVec<[(u32, Targets); 1]>,
    /// Recent-history exchanges it passes, and how much each keeps.
    pub(crate) remember: SmallVec<[(ExchangeId, u32); 1]>,
    /// A direct reply instead of queues.
    pub(crate) direct: Option<Address>,
    /// The vhost is traced: see [`trace`](crate::trace).
    pub(crate) is_traced: bool,
}

impl Routed {
    pub(crate) fn clear(&mut self) {
        self.targets.clear();
        self.remember.clear();
        self.direct = None;
        self.is_traced = false;
    }

    /// Whether its targets are all that there is to know.
    pub(crate) fn is_plain(&self) -> bool {
        self.remember.is_empty() && !self.is_traced
    }

    /// Whether it goes nowhere.
    pub(crate) fn is_unroutable(&self) -> bool {
        self.targets.is_empty() && self.direct.is_none()
    }
}

/// What the names were found to mean.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Exchange and routing key as two wire short strings.
    names: Vec<u8>,
    pub(crate) exchange: ExchangeId,
    /// Keys of `CC` and `BCC` need a permission of their own.
    pub(crate) is_topic: bool,
    /// Whether `routed` holds for every message with these names.
    pub(crate) is_routed: bool,
    pub(crate) routed: Routed,
}

/// Generations of routes and of permissions.
type Generations = (u64, u64);

#[derive(Debug, Default)]
pub(crate) struct RouteCache {
    /// A power of two, or none yet.
    places: Vec<Option<Entry>>,
    generations: Generations,
    /// How often names pushed out others since the last growth.
    pushed_out: usize,
    /// Exchanges the user may write to, checked in these generations.
    writable: SmallVec<[ExchangeId; 4]>,
    /// For messages whose route holds for them alone.
    pub(crate) scratch: Routed,
    /// Room for the topology's answer.
    pub(crate) route: Route,
}

const PLACES_MIN: usize = 4;
const PLACES_MAX: usize = 256;
const WRITABLE_MAX: usize = 16;

fn hash(names: &[u8]) -> usize {
    use std::hash::{BuildHasher, Hasher};
    let mut hasher = foldhash::fast::FixedState::with_seed(0).build_hasher();
    hasher.write(names);
    hasher.finish() as usize
}

impl RouteCache {
    /// Forgets everything that an older topology said. To be called once per turn.
    pub(crate) fn refresh(&mut self, topology: &Topology) {
        let generations = (topology.generation(), topology.access_generation());
        if self.generations != generations {
            self.generations = generations;
            self.forget();
        }
    }

    /// Forgets everything.
    #[cold]
    pub(crate) fn forget(&mut self) {
        // Names keep their room.
        for entry in self.places.iter_mut().flatten() {
            entry.names.clear();
        }
        self.writable.clear();
        self.pushed_out = 0;
    }

    /// The place of what these names mean, if it is known.
    pub(crate) fn find(&self, names: &[u8]) -> Option<usize> {
        let at = hash(names) & self.places.len().checked_sub(1)?;
        matches!(&self.places[at], Some(entry) if entry.names == names).then_some(at)
    }

    /// An entry found or made before in this turn.
    pub(crate) fn get(&self, at: usize) -> Option<&Entry> {
        self.places.get(at)?.as_ref()
    }

    /// Makes an entry for names that were not found, with nothing routed, and gives its place.
    pub(crate) fn insert(&mut self, names: &[u8], exchange: ExchangeId, is_topic: bool) -> usize {
        if self.places.is_empty() {
            self.places.resize_with(PLACES_MIN, || None);
        }
        let mut at = hash(names) & (self.places.len() - 1);
        if self.places[at].as_ref().is_some_and(|entry| !entry.names.is_empty()) {
            self.pushed_out += 1;
            if self.pushed_out > self.places.len() / 2 && self.places.len() < PLACES_MAX {
                self.grow();
                at = hash(names) & (self.places.len() - 1);
            }
        }
        let entry = self.places[at].get_or_insert_with(|| Entry {
            names: Vec::new(),
            exchange,
            is_topic,
            is_routed: false,
            routed: Routed::default(),
        });
        entry.names.clear();
        entry.names.extend_from_slice(names);
        entry.exchange = exchange;
        entry.is_topic = is_topic;
        entry.is_routed = false;
        entry.routed.clear();
        at
    }

    /// Sets what every message with the entry's names meets.
    pub(crate) fn set_routed(&mut self, at: usize) {
        if let Some(Some(entry)) = self.places.get_mut(at) {
            entry.is_routed = true;
            std::mem::swap(&mut entry.routed, &mut self.scratch);
        }
    }

    pub(crate) fn is_writable(&self, exchange: ExchangeId) -> bool {
        self.writable.contains(&exchange)
    }

    pub(crate) fn set_writable(&mut self, exchange: ExchangeId) {
        if self.writable.len() == WRITABLE_MAX {
            self.writable.clear();
        }
        self.writable.push(exchange);
    }

    #[cold]
    fn grow(&mut self) {
        let mut places = Vec::new();
        places.resize_with(self.places.len() * 4, || None);
        for entry in self.places.drain(..).flatten() {
            if !entry.names.is_empty() {
                let at = hash(&entry.names) & (places.len() - 1);
                places[at] = Some(entry);
            }
        }
        self.places = places;
        self.pushed_out = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_put_in_last() {
        let mut cache = RouteCache::default();
        assert_eq!(cache.find(b"\x01x\x01k"), None);
        let mut hits = 0;
        for round in 0..4 {
            for key in 0..100_u64 {
                let names = key.to_le_bytes();
                if let Some(at) = cache.find(&names) {
                    assert_eq!(cache.get(at).unwrap().exchange, ExchangeId::new(key));
                    hits += usize::from(round > 0);
                    continue;
                }
                let at = cache.insert(&names, ExchangeId::new(key), false);
                cache.set_routed(at);
                assert_eq!(cache.find(&names), Some(at));
            }
        }
        assert!(cache.places.len() > PLACES_MIN && cache.places.len() <= PLACES_MAX);
        assert!(hits > 100, "{hits}");
        cache.forget();
        assert_eq!(cache.find(&1_u64.to_le_bytes()), None);
    }
}
