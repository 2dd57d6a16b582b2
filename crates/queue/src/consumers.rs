//! Hot path. Who takes messages from a queue, and who is next.
//!
//! ```text
//!   rings     priority 10: [ c4 c1 ]      highest first; in each, who got one goes to the back
//!             priority  0: [ c0 c2 c5 ]
//!   blocked   c3                          could not take its last message; back when it may be able to
//! ```
//!
//! With a single active consumer the rings only tell who is next in line, and nobody rotates.
//!
//! Invariants: a consumer is in the ring of its priority, or blocked, or gone; one that is gone keeps its
//! place until its last message is settled, so that a new consumer never gets its settlements.

use std::collections::VecDeque;

use crate::gate::Gate;
use crate::message::Time;

/// A consumer to add.
#[derive(Clone, Debug)]
pub struct ConsumerSpec {
    /// The caller's name for it, given back with every delivery. Means nothing to the queue.
    pub key: u64,
    /// Messages count as acked when they are handed over.
    pub no_ack: bool,
    /// No other consumer may be there, now or later.
    pub exclusive: bool,
    /// `x-priority`: the highest that can take a message gets it.
    pub priority: i32,
    /// Unacked messages allowed, 0 for any number. Has no effect with `no_ack`.
    pub prefetch: u16,
    /// What its connection and channel allow.
    pub gate: Gate,
}

/// Names a consumer inside its queue: a slot, free again after
/// [`Queue::remove_consumer`](crate::Queue::remove_consumer).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConsumerId(pub(crate) u32);

impl ConsumerId {
    /// The bare number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// A consumer, for listings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsumerView {
    /// Its name here.
    pub id: ConsumerId,
    /// The caller's name for it.
    pub key: u64,
    /// Messages count as acked when they are handed over.
    pub no_ack: bool,
    /// It excludes others.
    pub exclusive: bool,
    /// `x-priority`.
    pub priority: i32,
    /// Unacked messages allowed, 0 for any number.
    pub prefetch: u16,
    /// Messages it has not acked.
    pub unacked: u32,
    /// It may be given messages: all may, but on a queue with a single active consumer.
    pub active: bool,
    /// It could not take its next message when it was last tried.
    pub blocked: bool,
    /// Since when its prefetch is reached: a message was there that it could not be given.
    pub full_since: Option<Time>,
}

/// Another consumer excludes this one, or this one would have to exclude others (on a queue with a single
/// active consumer: always). The caller answers 403.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the queue has an exclusive consumer, or has consumers already")]
pub struct ExclusiveInUse;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    InRing,
    /// Until one of its messages is settled.
    PrefetchReached,
    /// Until it is resumed.
    GateClosed,
    Gone,
}

#[derive(Debug)]
pub(crate) struct Consumer {
    pub(crate) spec: ConsumerSpec,
    pub(crate) unacked: u32,
    state: State,
    /// Grows with the time at which it was last blocked.
    blocked_at: u64,
    /// That time.
    blocked_since: Time,
}

impl Consumer {
    fn try_take(&self, size: u32) -> Result<(), State> {
        let ConsumerSpec { no_ack, prefetch, .. } = self.spec;
        if !no_ack && prefetch != 0 && self.unacked >= u32::from(prefetch) {
            Err(State::PrefetchReached)
        } else if !self.spec.gate.try_take(size, !no_ack) {
            Err(State::GateClosed)
        } else {
            Ok(())
        }
    }
}

/// What one consumer may be given before anybody else's turn can come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turns {
    pub(crate) id: u32,
    pub(crate) consumer_key: u64,
    pub(crate) no_ack: bool,
    /// Messages; more than 0.
    pub(crate) places: u32,
    /// In [`delivery_cost`](crate::delivery_cost); the message that crosses it still goes.
    pub(crate) bytes: u64,
}

#[derive(Debug)]
struct Ring {
    priority: i32,
    in_turn: VecDeque<u32>,
}

/// The consumers of a queue.
#[derive(Debug, Default)]
pub(crate) struct Consumers {
    slots: Vec<Option<Consumer>>,
    /// Highest priority first.
    rings: Vec<Ring>,
    count: u32,
    in_rings: u32,
    next_blocked: u64,
    exclusive: Option<u32>,
    single_active: bool,
    /// Only with `single_active`.
    active: Option<u32>,
    /// Nobody is given anything.
    pub(crate) are_paused: bool,
}

impl Consumers {
    pub(crate) fn new(single_active: bool) -> Self {
        Self { single_active, ..Self::default() }
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Whether somebody may be able to take a message.
    pub(crate) fn any_in_turn(&self) -> bool {
        if self.are_paused {
            false
        } else if self.single_active {
            self.candidate().is_some()
        } else {
            self.in_rings > 0
        }
    }

    pub(crate) fn add(&mut self, spec: ConsumerSpec) -> Result<ConsumerId, ExclusiveInUse> {
        let shuts_out = spec.exclusive && (self.count > 0 || self.single_active);
        if self.exclusive.is_some() || shuts_out {
            return Err(ExclusiveInUse);
        }
        let at = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
        let id = u32::try_from(at).expect("fewer than 2^32 consumers");
        if spec.exclusive {
            self.exclusive = Some(id);
        }
        if self.single_active && self.active.is_none() {
            self.active = Some(id);
        }
        let priority = spec.priority;
        let consumer = Consumer {
            spec,
            unacked: 0,
            state: State::InRing,
            blocked_at: 0,
            blocked_since: Time::from_ms(0),
        };
        match self.slots.get_mut(at) {
            Some(slot) => *slot = Some(consumer),
            None => self.slots.push(Some(consumer)),
        }
        self.count += 1;
        self.enter_ring(id, priority);
        Ok(ConsumerId(id))
    }

    /// Removes a consumer; true when there was one. The next in line becomes the single active one.
    pub(crate) fn remove(&mut self, id: u32) -> bool {
        let Some(consumer) = self.present(id) else { return false };
        let (state, priority) = (consumer.state, consumer.spec.priority);
        consumer.state = State::Gone;
        if consumer.unacked == 0 {
            self.slots[id as usize] = None;
        }
        if state == State::InRing {
            self.leave_ring(id, priority);
        }
        self.count -= 1;
        if self.exclusive == Some(id) {
            self.exclusive = None;
        }
        if self.active == Some(id) {
            self.active = self.first_in_turn();
        }
        while matches!(self.slots.last(), Some(None)) {
            self.slots.pop();
        }
        // Rings stay while consumers are blocked and come back; those of priorities that nobody has do not.
        self.rings.retain(|ring| !ring.in_turn.is_empty());
        if self.count == 0 {
            self.rings = Vec::new();
            if self.slots.is_empty() {
                self.slots = Vec::new();
            }
        }
        true
    }

    /// Sorts consumers, whose gates may have opened, by the time at which they were blocked.
    pub(crate) fn sort_blocked(&self, ids: &mut [ConsumerId]) {
        ids.sort_by_key(|id| {
            let slot = self.slots.get(id.0 as usize).and_then(Option::as_ref);
            slot.map_or(u64::MAX, |consumer| consumer.blocked_at)
        });
    }

    /// The gate of a consumer may have opened.
    pub(crate) fn resume(&mut self, id: u32) {
        if let Some(consumer) = self.present(id)
            && consumer.state != State::InRing
        {
            consumer.state = State::InRing;
            let priority = consumer.spec.priority;
            self.enter_ring(id, priority);
        }
    }

    /// One of the messages of `id` is settled.
    #[inline]
    pub(crate) fn settled(&mut self, id: u32) {
        let Some(Some(consumer)) = self.slots.get_mut(id as usize) else { return };
        consumer.unacked -= 1;
        match consumer.state {
            State::InRing | State::GateClosed => {}
            State::PrefetchReached => {
                consumer.state = State::InRing;
                let priority = consumer.spec.priority;
                self.enter_ring(id, priority);
            }
            State::Gone if consumer.unacked == 0 => self.slots[id as usize] = None,
            State::Gone => {}
        }
    }

    /// Who takes a message of `size` bytes, if anybody can. Those that cannot are blocked on the way; the
    /// one that can has room reserved, and it is the next one's turn.
    pub(crate) fn take_turn(&mut self, size: u32, now: Time) -> Option<(u32, &mut Consumer)> {
        let id = loop {
            let id = self.candidate()?;
            let consumer = self.slots[id as usize].as_mut().expect("in a ring");
            let Err(why) = consumer.try_take(size) else { break id };
            consumer.state = why;
            consumer.blocked_at = self.next_blocked;
            self.next_blocked += 1;
            consumer.blocked_since = now;
            let priority = consumer.spec.priority;
            self.leave_ring(id, priority);
        };
        if !self.single_active {
            self.rotate();
        }
        self.slots[id as usize].as_mut().map(|consumer| (id, consumer))
    }

    /// If one consumer alone can be next and may take a message: how much it may take. To be followed by
    /// [`took`](Self::took).
    #[inline]
    pub(crate) fn lone_turns(&self) -> Option<Turns> {
        if self.are_paused {
            return None;
        }
        let id = if self.single_active {
            self.candidate()?
        } else {
            let ring = self.rings.iter().find(|ring| !ring.in_turn.is_empty())?;
            if ring.in_turn.len() > 1 {
                return None;
            }
            *ring.in_turn.front()?
        };
        let consumer = self.slots[id as usize].as_ref()?;
        let ConsumerSpec { key, no_ack, prefetch, ref gate, .. } = consumer.spec;
        let places = if no_ack || prefetch == 0 {
            u32::MAX
        } else {
            u32::from(prefetch).saturating_sub(consumer.unacked)
        };
        let bytes = gate.room_of_unlimited();
        let turns = Turns { id, consumer_key: key, no_ack, places, bytes };
        (places > 0 && bytes > 0).then_some(turns)
    }

    /// A consumer was given `messages` of its turns, of `bytes` in all.
    #[inline]
    pub(crate) fn took(&mut self, id: u32, messages: u32, bytes: u64) {
        if messages == 0 {
            return;
        }
        if let Some(Some(consumer)) = self.slots.get_mut(id as usize) {
            let ack_required = !consumer.spec.no_ack;
            if ack_required {
                consumer.unacked += messages;
            }
            consumer.spec.gate.took(messages, bytes, ack_required);
        }
    }

    fn candidate(&self) -> Option<u32> {
        if !self.single_active {
            return self.first_in_turn();
        }
        let id = self.active?;
        let consumer = self.slots[id as usize].as_ref()?;
        (consumer.state == State::InRing).then_some(id)
    }

    fn first_in_turn(&self) -> Option<u32> {
        self.rings.iter().find_map(|ring| ring.in_turn.front().copied())
    }

    fn rotate(&mut self) {
        if let Some(ring) = self.rings.iter_mut().find(|ring| !ring.in_turn.is_empty())
            && ring.in_turn.len() > 1
        {
            ring.in_turn.rotate_left(1);
        }
    }

    fn enter_ring(&mut self, id: u32, priority: i32) {
        self.in_rings += 1;
        let at = self.rings.partition_point(|ring| ring.priority > priority);
        match self.rings.get_mut(at) {
            Some(ring) if ring.priority == priority => ring.in_turn.push_back(id),
            _ => self.rings.insert(at, Ring { priority, in_turn: VecDeque::from([id]) }),
        }
    }

    fn leave_ring(&mut self, id: u32, priority: i32) {
        self.in_rings -= 1;
        let at = self.rings.partition_point(|ring| ring.priority > priority);
        let ring = &mut self.rings[at].in_turn;
        // Nearly always the front.
        if let Some(place) = ring.iter().position(|&other| other == id) {
            ring.remove(place);
        }
    }

    /// The consumer `id`, unless it is gone.
    pub(crate) fn present(&mut self, id: u32) -> Option<&mut Consumer> {
        self.slots.get_mut(id as usize)?.as_mut().filter(|consumer| consumer.state != State::Gone)
    }

    /// One consumer alone is given messages from now on, the next in line; or all are.
    pub(crate) fn set_single_active(&mut self, single: bool) {
        if self.single_active == single {
            return;
        }
        self.single_active = single;
        self.active =
            if single { self.first_in_turn().or_else(|| self.first_blocked()) } else { None };
    }

    fn first_blocked(&self) -> Option<u32> {
        self.views().find(|consumer| consumer.blocked).map(|consumer| consumer.id.get())
    }

    /// The caller's name for the consumer `id`, unless it is gone.
    pub(crate) fn key(&self, id: u32) -> Option<u64> {
        let consumer = self.slots.get(id as usize)?.as_ref()?;
        (consumer.state != State::Gone).then_some(consumer.spec.key)
    }

    /// The key of the single active consumer.
    pub(crate) fn active_key(&self) -> Option<u64> {
        let consumer = self.slots.get(self.active? as usize)?.as_ref()?;
        Some(consumer.spec.key)
    }

    pub(crate) fn views(&self) -> impl Iterator<Item = ConsumerView> + '_ {
        let present = |(id, slot): (usize, &'_ Option<Consumer>)| {
            let consumer = slot.as_ref().filter(|consumer| consumer.state != State::Gone)?;
            let id = ConsumerId(id as u32);
            let spec = &consumer.spec;
            Some(ConsumerView {
                id,
                key: spec.key,
                no_ack: spec.no_ack,
                exclusive: spec.exclusive,
                priority: spec.priority,
                prefetch: spec.prefetch,
                unacked: consumer.unacked,
                active: !self.single_active || self.active == Some(id.0),
                blocked: consumer.state != State::InRing,
                full_since: (consumer.state == State::PrefetchReached)
                    .then_some(consumer.blocked_since),
            })
        };
        self.slots.iter().enumerate().filter_map(present)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One stays while others come and go, each with a priority of its own.
    #[test]
    fn a_priority_that_nobody_has_takes_nothing() {
        let spec = |priority| ConsumerSpec {
            key: 0,
            no_ack: false,
            exclusive: false,
            priority,
            prefetch: 0,
            gate: Gate::open(),
        };
        let mut consumers = Consumers::new(false);
        consumers.add(spec(0)).expect("room");
        for priority in 1..1_000 {
            let id = consumers.add(spec(priority)).expect("room");
            assert!(consumers.remove(id.0));
        }
        assert_eq!(consumers.rings.len(), 1);
    }
}
