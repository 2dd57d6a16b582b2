//! What clients know: what they sent, what they were told, what they did; and whether what the broker
//! shows can be true.
//!
//! | what a client saw | what may be in the queue after a kill |
//! |---|---|
//! | a publish without answer | it, or nothing |
//! | a confirm | it, unless an ack or reject was sent |
//! | an ack sent | it, or nothing |
//! | an ack, a call on the channel answered after it, and then a message published to the queue and confirmed from the disk | nothing |
//! | after a start the queue was looked through and did not have it | nothing, ever |

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use crate::messages::Key;

/// A queue of the load and what holds for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    /// Confirms come from the disk alone.
    pub(super) from_disk: bool,
    /// One consumer, and nothing that overtakes.
    pub(super) in_order: bool,
    /// Messages may leave it for the dead letters' queue.
    pub(super) dies: bool,
}

/// What clients know of a message in a queue.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    is_seen: bool,
    is_ack_sent: bool,
    /// Rejected, or has a time to live.
    may_die: bool,
    /// It was known to be out of the queue.
    is_gone: bool,
}

#[derive(Debug, Default)]
struct Message {
    /// When it was sent.
    clock: u64,
    targets: Vec<usize>,
    is_confirmed: bool,
}

/// Numbers for the report.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    pub(super) sent: u64,
    pub(super) confirmed: u64,
    pub(super) delivered: u64,
    pub(super) redelivered: u64,
    pub(super) acked: u64,
    pub(super) surely_acked: u64,
    pub(super) looked_at: u64,
}

#[derive(Debug)]
pub(super) struct Shadow {
    kinds: &'static [Kind],
    clock: u64,
    messages: BTreeMap<Key, Message>,
    places: HashMap<(usize, Key), Place>,
    /// By queue: acks that were handled, and when that was known.
    handled: Vec<VecDeque<(u64, Key)>>,
    /// By queue and publisher: the last number that was seen for the first time.
    last_first: HashMap<(usize, u32), u32>,
    pub(super) totals: Totals,
}

impl Shadow {
    pub(super) fn new(kinds: &'static [Kind]) -> Self {
        Self {
            kinds,
            clock: 0,
            messages: BTreeMap::new(),
            places: HashMap::new(),
            handled: vec![VecDeque::new(); kinds.len()],
            last_first: HashMap::new(),
            totals: Totals::default(),
        }
    }

    pub(super) fn sent(&mut self, key: Key, targets: &[usize]) {
        self.clock += 1;
        self.totals.sent += 1;
        let message = Message { clock: self.clock, targets: targets.to_vec(), is_confirmed: false };
        assert!(self.messages.insert(key, message).is_none());
        for &queue in targets {
            let may_die = self.kinds[queue].dies;
            self.places.insert((queue, key), Place { may_die, ..Place::default() });
        }
    }

    pub(super) fn confirmed(&mut self, key: Key) {
        self.totals.confirmed += 1;
        let message = self.messages.get_mut(&key).unwrap();
        assert!(!message.is_confirmed, "{key:?} is confirmed twice");
        message.is_confirmed = true;
        for &queue in &message.targets {
            if !self.kinds[queue].from_disk {
                continue;
            }
            // The disk took the acks that were handled before the message came, too.
            let handled = &mut self.handled[queue];
            while let Some((_, acked)) = handled.pop_front_if(|(at, _)| *at < message.clock) {
                self.places.get_mut(&(queue, acked)).unwrap().is_gone = true;
                self.totals.surely_acked += 1;
            }
        }
    }

    pub(super) fn delivered(&mut self, queue: usize, key: Key, redelivered: bool) {
        self.totals.delivered += 1;
        self.totals.redelivered += u64::from(redelivered);
        let kind = self.kinds[queue];
        let place = self.places.get_mut(&(queue, key));
        let place = place.unwrap_or_else(|| panic!("{key:?} was not sent to {}", kind.name));
        assert!(!place.is_gone, "{key:?} is back in {}: {place:?}", kind.name);
        assert!(redelivered || !place.is_seen, "{key:?} again from {}, unmarked", kind.name);
        if !std::mem::replace(&mut place.is_seen, true) && kind.in_order {
            let last = self.last_first.insert((queue, key.publisher), key.number);
            assert!(last < Some(key.number), "{key:?} from {} after {last:?}", kind.name);
        }
    }

    /// A dead letter came. Those may come twice: a crash between its arrival and its departure.
    pub(super) fn dead(&mut self, key: Key) {
        self.totals.delivered += 1;
        let message = self.messages.get(&key);
        let message = message.unwrap_or_else(|| panic!("a dead letter {key:?} that nobody sent"));
        let place = message.targets.iter().map(|&queue| self.places[&(queue, key)]);
        assert!(place.clone().any(|place| place.may_die), "{key:?} could not die");
    }

    pub(super) fn ack_sent(&mut self, queue: usize, key: Key) {
        self.totals.acked += 1;
        self.places.get_mut(&(queue, key)).unwrap().is_ack_sent = true;
    }

    /// These acks were followed by a call on their channel, which was answered now.
    pub(super) fn acks_handled(&mut self, queue: usize, keys: impl Iterator<Item = Key>) {
        self.clock += 1;
        if self.kinds[queue].from_disk {
            self.handled[queue].extend(keys.map(|key| (self.clock, key)));
        }
    }

    /// The process was killed: acks that no confirm followed are not known to be on the disk.
    pub(super) fn killed(&mut self) {
        self.handled.iter_mut().for_each(VecDeque::clear);
    }

    /// All that is in a queue after a start. Nothing confirmed may be missing.
    pub(super) fn looked_through(&mut self, queue: usize, found: &HashSet<Key>) {
        self.totals.looked_at += found.len() as u64;
        for (&(of, key), place) in &mut self.places {
            if of != queue || place.is_gone || found.contains(&key) {
                continue;
            }
            let is_confirmed = self.messages[&key].is_confirmed;
            let name = self.kinds[queue].name;
            assert!(!is_confirmed || place.is_ack_sent, "{key:?} is lost from {name}: {place:?}");
            place.is_gone = true;
        }
    }

    /// How many messages a queue has at least and at most.
    pub(super) fn bounds(&self, queue: usize) -> (u32, u32) {
        let (mut low, mut high) = (0, 0);
        for ((_, key), place) in self.places.iter().filter(|((of, _), _)| *of == queue) {
            let must = self.messages[key].is_confirmed && !place.is_ack_sent;
            low += u32::from(must && !place.may_die);
            high += u32::from(!place.is_gone);
        }
        (low, high)
    }

    /// What a queue whose messages die must have given to the dead letters' queue by now.
    pub(super) fn must_be_dead(&self, queue: usize) -> HashSet<Key> {
        let of_queue = self.places.iter().filter(|((of, _), _)| *of == queue);
        let dead = of_queue
            .filter(|((_, key), place)| self.messages[key].is_confirmed && !place.is_ack_sent);
        dead.map(|((_, key), _)| *key).collect()
    }
}
