//! Hot path. Who takes messages from a queue, and who is next.
//!
//! ```text
//!   rings     priority 10: [ c4 c1 ]      highest first; in each, who got one goes to the back
//!             priority  0: [ c0 c2 c5 ]
//!   blocked   c3                          could not take its last message; back when it may be able to
//! ```
//!
//! A ring is a chain through its consumers, closed to a circle: whatever their number, coming, going and the next turn are a
//! few links. A queue may have hundreds of thousands of consumers.
//!
//! With a single active consumer the rings only tell who is next in line, and nobody rotates.
//!
//! Invariants: a consumer is in the ring of its priority, or blocked, or gone; one that is gone keeps its
//! place until its last message is settled, so that a new consumer never gets its settlements.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::gate::Gate;
use crate::time::Time;

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
    /// Who is after it in its ring, and before it. Mean nothing outside one.
    next: u32,
    previous: u32,
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

/// The consumers of one priority that may be able to take a message.
#[derive(Clone, Copy, Debug, Default)]
struct Ring {
    priority: i32,
    /// Whose turn is next, unless there is none.
    front: u32,
    len: u32,
}

/// What queues have whose consumers come and go, or differ in priority.
#[derive(Debug, Default)]
struct More {
    /// Slots that were given back; also some that are no more, as there are less now. New slots are made when none is left.
    free: Vec<u32>,
    /// The rings but the first, none of them empty.
    lower: BTreeMap<Reverse<i32>, Ring>,
}

/// Room for as many is kept, whoever comes and goes.
const KEPT: usize = 64;

/// The consumers of a queue.
#[derive(Debug, Default)]
pub(crate) struct Consumers {
    slots: Vec<Option<Consumer>>,
    /// The ring of the highest priority that has any; empty when no ring has.
    first: Ring,
    /// Most queues never have any of it, and there may be many of those.
    more: Option<Box<More>>,
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
        let at = self.free_slot();
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
            next: id,
            previous: id,
        };
        match self.slots.get_mut(at) {
            Some(slot) => *slot = Some(consumer),
            None => self.slots.push(Some(consumer)),
        }
        self.count += 1;
        self.enter_ring(id, priority);
        Ok(ConsumerId(id))
    }

    /// A slot for one more: at the end, if no other is free.
    fn free_slot(&mut self) -> usize {
        let slots = self.slots.len();
        let free = self.more.iter_mut().flat_map(|more| std::iter::from_fn(|| more.free.pop()));
        free.map(|at| at as usize).find(|&at| at < slots).unwrap_or(slots)
    }

    /// Removes a consumer; true when there was one. The next in line becomes the single active one.
    pub(crate) fn remove(&mut self, id: u32) -> bool {
        let Some(consumer) = self.present(id) else { return false };
        let (state, priority, unacked) = (consumer.state, consumer.spec.priority, consumer.unacked);
        if state == State::InRing {
            self.leave_ring(id, priority);
        }
        if unacked == 0 {
            self.free(id);
        } else if let Some(consumer) = self.present(id) {
            consumer.state = State::Gone;
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
        if self.slots.capacity() > KEPT.max(4 * self.slots.len()) {
            // A burst's room is given back.
            let kept = 2 * self.slots.len();
            self.slots.shrink_to(kept);
            if let Some(more) = &mut self.more {
                more.free.retain(|&free| (free as usize) < self.slots.len());
                more.free.shrink_to(kept);
            }
        }
        if self.count == 0 && self.slots.is_empty() {
            (self.slots, self.more) = (Vec::new(), None);
        }
        true
    }

    fn more(&mut self) -> &mut More {
        self.more.get_or_insert_default()
    }

    /// The slot may be given to another one.
    #[cold]
    fn free(&mut self, id: u32) {
        self.slots[id as usize] = None;
        self.more().free.push(id);
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
            State::Gone if consumer.unacked == 0 => self.free(id),
            State::Gone => {}
        }
    }

    /// A message that was handed out before this table was made is the consumer's still.
    pub(crate) fn has_one_more(&mut self, id: u32) {
        if let Some(consumer) = self.present(id) {
            consumer.unacked += 1;
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
            if self.first.len != 1 {
                return None;
            }
            self.first.front
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
        (self.first.len > 0).then_some(self.first.front)
    }

    #[inline]
    fn rotate(&mut self) {
        if let Some(Some(consumer)) = self.slots.get(self.first.front as usize) {
            self.first.front = consumer.next;
        }
    }

    /// One that is in a ring.
    fn linked(&mut self, id: u32) -> &mut Consumer {
        self.slots[id as usize].as_mut().expect("in a ring")
    }

    fn enter_ring(&mut self, id: u32, priority: i32) {
        self.in_rings += 1;
        if self.first.len == 0 {
            self.first = Ring { priority, front: id, len: 0 };
        } else if priority > self.first.priority {
            let ring = Ring { priority, front: id, len: 0 };
            let lower = std::mem::replace(&mut self.first, ring);
            self.more().lower.insert(Reverse(lower.priority), lower);
        }
        let ring = if priority == self.first.priority {
            &mut self.first
        } else {
            let ring = Ring { priority, front: id, len: 0 };
            self.more().lower.entry(Reverse(priority)).or_insert(ring)
        };
        ring.len += 1;
        let (front, is_first) = (ring.front, ring.len == 1);
        // The back is the place before the front.
        let back =
            if is_first { id } else { std::mem::replace(&mut self.linked(front).previous, id) };
        self.linked(back).next = id;
        let consumer = self.linked(id);
        (consumer.next, consumer.previous) = (front, back);
    }

    fn leave_ring(&mut self, id: u32, priority: i32) {
        self.in_rings -= 1;
        let consumer = self.linked(id);
        let (next, previous) = (consumer.next, consumer.previous);
        self.linked(previous).next = next;
        self.linked(next).previous = previous;
        let leave = |ring: &mut Ring| {
            ring.len -= 1;
            if ring.front == id {
                ring.front = next;
            }
            ring.len == 0
        };
        let lower = self.more.as_mut().map(|more| &mut more.lower);
        if priority == self.first.priority {
            if leave(&mut self.first)
                && let Some((_, ring)) = lower.and_then(BTreeMap::pop_first)
            {
                self.first = ring;
            }
        } else if let Some(lower) = lower
            && lower.get_mut(&Reverse(priority)).is_some_and(leave)
        {
            lower.remove(&Reverse(priority));
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

    /// Who has been blocked for longest.
    fn first_blocked(&self) -> Option<u32> {
        let slots = self.slots.iter().zip(0..);
        let present = slots.filter_map(|(slot, id)| Some((slot.as_ref()?, id)));
        let blocked =
            present.filter(|(consumer, _)| !matches!(consumer.state, State::InRing | State::Gone));
        blocked.min_by_key(|(consumer, _)| consumer.blocked_at).map(|(_, id)| id)
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

    /// Slots there are, those that nobody has included.
    pub(crate) fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Those in slots from `from` to before `to`, ascending.
    pub(crate) fn views(&self, from: u32, to: u32) -> impl Iterator<Item = ConsumerView> + '_ {
        (from..to.min(self.slots())).filter_map(|id| self.view(id))
    }

    /// The one that excludes others.
    pub(crate) fn exclusive(&self) -> Option<ConsumerView> {
        self.view(self.exclusive?)
    }

    /// The one that alone is given messages, with a single active consumer.
    pub(crate) fn single_active(&self) -> Option<ConsumerView> {
        self.view(self.active?)
    }

    /// How many may be given messages.
    pub(crate) fn active_count(&self) -> u32 {
        if self.single_active { u32::from(self.active.is_some()) } else { self.count }
    }

    fn view(&self, id: u32) -> Option<ConsumerView> {
        let consumer = self.slots.get(id as usize)?.as_ref()?;
        let spec = &consumer.spec;
        (consumer.state != State::Gone).then(|| ConsumerView {
            id: ConsumerId(id),
            key: spec.key,
            no_ack: spec.no_ack,
            exclusive: spec.exclusive,
            priority: spec.priority,
            prefetch: spec.prefetch,
            unacked: consumer.unacked,
            active: !self.single_active || self.active == Some(id),
            blocked: consumer.state != State::InRing,
            full_since: (consumer.state == State::PrefetchReached)
                .then_some(consumer.blocked_since),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    fn spec(priority: i32) -> ConsumerSpec {
        ConsumerSpec {
            key: 0,
            no_ack: true,
            exclusive: false,
            priority,
            prefetch: 0,
            gate: Gate::open(),
        }
    }

    /// One stays while others come and go, each with a priority of its own.
    #[test]
    fn a_priority_that_nobody_has_takes_nothing() {
        let mut consumers = Consumers::new(false);
        consumers.add(spec(0)).expect("room");
        for priority in 1..1_000 {
            let id = consumers.add(spec(priority)).expect("room");
            assert!(consumers.remove(id.0));
        }
        let lower = consumers.more.as_ref().map(|more| more.lower.len());
        assert_eq!((lower, consumers.slots.len()), (Some(0), 1));
    }

    /// Whoever comes, goes and is given something: the next one is whom a plain list of each priority names.
    #[test]
    fn rings_are_lists() {
        let mut consumers = Consumers::new(false);
        let mut lists: BTreeMap<Reverse<i32>, VecDeque<u32>> = BTreeMap::new();
        let mut all = Vec::new();
        let mut random = 1_u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let draw = (random >> 33) as usize;
            match draw % 5 {
                0 | 1 if all.len() < 200 => {
                    let priority = (draw / 5 % 4) as i32;
                    let id = consumers.add(spec(priority)).expect("room").0;
                    lists.entry(Reverse(priority)).or_default().push_back(id);
                    all.push((id, priority));
                }
                2 if !all.is_empty() => {
                    let (id, priority) = all.swap_remove(draw / 5 % all.len());
                    assert!(consumers.remove(id));
                    lists.get_mut(&Reverse(priority)).expect("its list").retain(|&one| one != id);
                }
                _ => {
                    let list = lists.values_mut().find(|list| !list.is_empty());
                    let next = list.and_then(|list| {
                        list.rotate_left(1);
                        list.back().copied()
                    });
                    let taken = consumers.take_turn(1, Time::from_ms(0)).map(|(id, _)| id);
                    assert_eq!(taken, next);
                }
            }
            assert_eq!(consumers.in_rings as usize, all.len());
        }
    }

    /// Hundreds of thousands on one queue, with priorities of their own or with one: each comes and goes without a look at the others.
    #[test]
    fn many_come_and_go() {
        const MANY: i32 = 400_000;
        for each in [0, 1] {
            let mut consumers = Consumers::new(false);
            let ids: Vec<_> =
                (0..MANY).map(|at| consumers.add(spec(at * each)).expect("room").0).collect();
            // The middle one is the next: nobody is at an end of anything.
            for _ in 0..MANY / 2 {
                assert!(consumers.take_turn(1, Time::from_ms(0)).is_some());
            }
            for (&old, &new) in ids.iter().zip(ids.iter().rev()).take(ids.len() / 2) {
                assert!(consumers.remove(old));
                assert!(consumers.remove(new));
                if old > 0 {
                    let again = consumers.add(spec(0)).expect("room").0;
                    assert!(consumers.remove(again));
                }
            }
            assert_eq!((consumers.count, consumers.in_rings), (0, 0));
            assert!(consumers.slots.capacity() <= KEPT && consumers.more.is_none());
        }
    }
}
