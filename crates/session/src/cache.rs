//! Hot path. Where messages with one exchange and routing key go, remembered.
//!
//! Budget: one hash of the two names per message; no allocation on a hit, none on a miss once warm but
//! for targets in more than one shard.
//!
//! Direct-mapped: a place holds the last names that fell on it. It grows while names push each other
//! out, up to [`PLACES_MAX`]. An entry holds for one generation of routes and one of permissions; what is
//! in it was checked against both: the exchange exists, takes messages from clients, and the user may
//! write to it, with this key if it is a topic exchange.
//!
//! An entry counts its messages: one addition each. What passed from which exchange to which queue follows from that
//! when somebody asks, or when the entry goes ([`Passed`]).

use std::cell::Cell;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_broker::message::Homed;
use leveret_topology::{ExchangeId, QueueId, Route, Topology};
use smallvec::SmallVec;

use crate::direct::Address;

/// What a message meets.
#[derive(Debug, Default)]
pub(crate) struct Routed {
    /// Queues by the group they live in.
    pub(crate) targets: Homed,
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

    /// Queues in its lists, but for short ones.
    fn queues(&self) -> usize {
        let bytes = self.targets.iter().map(|(_, targets)| targets.list_bytes());
        bytes.sum::<usize>() / size_of::<QueueId>()
    }

    /// Whether it goes nowhere.
    pub(crate) fn is_unroutable(&self) -> bool {
        self.targets.is_empty() && self.direct.is_none()
    }
}

/// What the names were found to mean.
#[derive(Debug)]
pub(crate) struct CachedRoute {
    /// Exchange and routing key as two wire short strings.
    names: Vec<u8>,
    pub(crate) exchange: ExchangeId,
    /// Keys of `CC` and `BCC` need a permission of their own.
    pub(crate) is_topic: bool,
    /// Whether `routed` holds for every message with these names.
    pub(crate) is_routed: bool,
    pub(crate) routed: Routed,
    /// Messages that went so, and are not in [`Passed`].
    uses: Cell<u64>,
}

impl CachedRoute {
    /// One more message goes so.
    #[inline]
    pub(crate) fn count(&self) {
        self.uses.set(self.uses.get() + 1);
    }
}

/// Messages by the exchange they were published to and the queue they were routed to.
type Passed = HashMap<(ExchangeId, QueueId), u64, FixedState>;

/// Pairs that are counted at once; more are not, until some of these are gone.
const PASSED_MAX: usize = 4096;

fn pass(passed: &mut Passed, exchange: ExchangeId, routed: &Routed, messages: u64) {
    for queue in routed.targets.iter().flat_map(|(_, targets)| targets) {
        let pair = (exchange, *queue);
        if passed.len() < PASSED_MAX || passed.contains_key(&pair) {
            *passed.entry(pair).or_default() += messages;
        }
    }
}

/// An entry goes: what it counted stays.
fn put_away(passed: &mut Passed, entry: &CachedRoute) {
    let messages = entry.uses.take();
    if messages > 0 {
        pass(passed, entry.exchange, &entry.routed, messages);
    }
}

/// Generations of routes and of permissions.
type Generations = (u64, u64);

#[derive(Debug, Default)]
pub(crate) struct RouteCache {
    /// A power of two, or none yet.
    places: Vec<Option<CachedRoute>>,
    generations: Generations,
    /// How often names pushed out others since the last growth.
    pushed_out: usize,
    /// Exchanges the user may write to, checked in these generations.
    writable: SmallVec<[ExchangeId; 4]>,
    /// For messages whose route holds for them alone.
    pub(crate) scratch: Routed,
    /// Room for the topology's answer.
    pub(crate) route: Route,
    /// What entries counted that are gone.
    passed: Passed,
    /// Queues in the lists of all entries.
    queues: usize,
}

const PLACES_MIN: usize = 4;
const PLACES_MAX: usize = 256;
const WRITABLE_MAX: usize = 16;

/// Queues in the lists of all entries: a list for a fan-out may have all queues that there are.
const QUEUES_MAX: usize = 32 << 10;

fn hash(names: &[u8]) -> usize {
    use std::hash::{BuildHasher, Hasher};
    let mut hasher = FixedState::with_seed(0).build_hasher();
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
            if self.passed.len() >= PASSED_MAX {
                self.passed.retain(|(exchange, queue), _| {
                    topology.exchange_by_id(*exchange).is_some()
                        && topology.queue_by_id(*queue).is_some()
                });
            }
        }
    }

    /// A message goes as `scratch` says; the entry names its exchange.
    #[cold]
    pub(crate) fn count_scratch(&mut self, at: usize) {
        if let Some(Some(entry)) = self.places.get(at) {
            pass(&mut self.passed, entry.exchange, &self.scratch, 1);
        }
    }

    /// Messages by exchange and queue, in their order.
    pub(crate) fn passed(&self) -> Vec<((ExchangeId, QueueId), u64)> {
        let mut all = self.passed.clone();
        for entry in self.places.iter().flatten().filter(|entry| entry.uses.get() > 0) {
            pass(&mut all, entry.exchange, &entry.routed, entry.uses.get());
        }
        let mut all: Vec<_> = all.into_iter().collect();
        all.sort_unstable();
        all
    }

    /// Forgets everything.
    #[cold]
    pub(crate) fn forget(&mut self) {
        // Names keep their room.
        for entry in self.places.iter_mut().flatten() {
            put_away(&mut self.passed, entry);
            entry.names.clear();
        }
        self.writable.clear();
        self.pushed_out = 0;
    }

    /// Forgets everything but what passed: the connection is over.
    pub(crate) fn end(&mut self) {
        self.forget();
        self.places = Vec::new();
        self.queues = 0;
    }

    /// The place of what these names mean, if it is known.
    pub(crate) fn find(&self, names: &[u8]) -> Option<usize> {
        let at = hash(names) & self.places.len().checked_sub(1)?;
        matches!(&self.places[at], Some(entry) if entry.names == names).then_some(at)
    }

    /// An entry found or made before in this turn.
    pub(crate) fn get(&self, at: usize) -> Option<&CachedRoute> {
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
        let entry = self.places[at].get_or_insert_with(|| CachedRoute {
            names: Vec::new(),
            exchange,
            is_topic,
            is_routed: false,
            routed: Routed::default(),
            uses: Cell::new(0),
        });
        put_away(&mut self.passed, entry);
        entry.names.clear();
        entry.names.extend_from_slice(names);
        entry.exchange = exchange;
        entry.is_topic = is_topic;
        entry.is_routed = false;
        self.queues -= entry.routed.queues();
        entry.routed.clear();
        at
    }

    /// Bytes of lists that are remembered.
    pub(crate) fn bytes(&self) -> u64 {
        (self.queues * size_of::<QueueId>()) as u64
    }

    /// Forgets all lists but one.
    #[cold]
    fn forget_others(&mut self, kept: usize) {
        for (at, place) in self.places.iter_mut().enumerate() {
            if let Some(entry) = place.as_mut().filter(|_| at != kept) {
                put_away(&mut self.passed, entry);
                entry.names.clear();
                self.queues -= entry.routed.queues();
                entry.routed = Routed::default();
            }
        }
    }

    /// Sets what every message with the entry's names meets.
    pub(crate) fn set_routed(&mut self, at: usize) {
        if let Some(Some(entry)) = self.places.get_mut(at) {
            entry.is_routed = true;
            let before = entry.routed.queues();
            std::mem::swap(&mut entry.routed, &mut self.scratch);
            self.queues = self.queues + entry.routed.queues() - before;
            if self.queues > QUEUES_MAX {
                self.forget_others(at);
            }
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
            if entry.names.is_empty() {
                self.queues -= entry.routed.queues();
            } else {
                let at = hash(&entry.names) & (places.len() - 1);
                if let Some(other) = places[at].replace(entry) {
                    self.queues -= other.routed.queues();
                    put_away(&mut self.passed, &other);
                }
            }
        }
        self.places = places;
        self.pushed_out = 0;
    }
}

#[cfg(test)]
mod tests {
    use leveret_broker::message::Targets;
    use leveret_topology::GroupId;

    use super::*;

    /// Lists of many queues are not remembered in any number.
    #[test]
    fn long_lists_have_a_bound() {
        let mut cache = RouteCache::default();
        let all: Vec<_> = (0..20_000).map(QueueId::new).collect();
        for key in 0..100_u64 {
            let names = key.to_le_bytes();
            cache.scratch.clear();
            let queues = if key % 2 == 0 { &all[..] } else { &all[..1] };
            cache.scratch.targets.push((GroupId::new(0), Targets::from_slice(queues)));
            let at = cache.insert(&names, ExchangeId::new(1), false);
            cache.set_routed(at);
            assert_eq!(cache.find(&names), Some(at));
            let places = cache.places.iter().flatten();
            let queues = places.map(|entry| entry.routed.queues()).sum::<usize>();
            assert_eq!(cache.queues, queues);
            assert!(queues <= QUEUES_MAX, "{queues}");
        }
        cache.end();
        assert_eq!(cache.bytes(), 0);
    }

    /// Whatever becomes of the entries, each message is counted once for each of its queues.
    #[test]
    fn what_passed_is_counted_by_pair() {
        let mut cache = RouteCache::default();
        let queue = QueueId::new;
        let mut want = Passed::default();
        let mut random = crate::random::Random::new(5);
        for round in 0..2_000 {
            let key = random.next() % 40;
            let (names, exchange) = (key.to_le_bytes(), ExchangeId::new(key % 3));
            let at = cache.find(&names).unwrap_or_else(|| {
                cache.scratch.clear();
                cache
                    .scratch
                    .targets
                    .push((GroupId::new(0), Targets::from_slice(&[queue(key), queue(99)])));
                let at = cache.insert(&names, exchange, false);
                cache.set_routed(at);
                at
            });
            let queues = if key.is_multiple_of(7) {
                // Its route is its own.
                cache.scratch.clear();
                cache.scratch.targets.push((GroupId::new(1), Targets::from_slice(&[queue(77)])));
                cache.count_scratch(at);
                vec![queue(77)]
            } else {
                cache.get(at).unwrap().count();
                vec![queue(key), queue(99)]
            };
            queues.into_iter().for_each(|queue| *want.entry((exchange, queue)).or_default() += 1);
            if round % 500 == 499 {
                cache.forget();
            }
        }
        let mut want: Vec<_> = want.into_iter().collect();
        want.sort_unstable();
        assert_eq!(cache.passed(), want);
    }

    #[test]
    fn pairs_are_bounded() {
        let mut passed = Passed::default();
        let mut routed = Routed::default();
        for queue in 0..PASSED_MAX as u64 + 10 {
            routed.clear();
            routed.targets.push((GroupId::new(0), Targets::from_slice(&[QueueId::new(queue)])));
            pass(&mut passed, ExchangeId::new(1), &routed, 1);
        }
        assert_eq!(passed.len(), PASSED_MAX);
        routed.targets[0].1 = Targets::from_slice(&[QueueId::new(3)]);
        pass(&mut passed, ExchangeId::new(1), &routed, 5);
        assert_eq!(passed[&(ExchangeId::new(1), QueueId::new(3))], 6);
    }

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
