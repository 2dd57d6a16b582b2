//! Hot path. Messages whose publisher is not told yet, by their offset in the log.
//!
//! Budget: no allocation per message once warm, no hash and no tree; 32 bytes per message between the
//! oldest one that is unresolved and the newest. An offset is its own index:
//!
//! ```text
//!   base                          base + slots.len()
//!   [ 1 ack ][ - ][ 2 firsts ][ disk ][ - ] ...        `-`: resolved, or nobody waits for it
//!
//!   old  { 7: 1 ack, 12: 1 ack }       what stayed behind: slow consumers under the rule `ack`
//! ```
//!
//! A message counts, over its queues here, those that still have to resolve it: `acks` wait for a
//! consumer, `firsts` for a consumer or the disk, and a bit says that one waits for the disk alone. The
//! queues of a message nearly always have one rule; where they differ, `mixed` remembers which has which.
//!
//! Invariants: an offset is in `slots` or in `old`, never both; the first slot is taken; below `durable`
//! no slot waits for the disk.

use std::collections::{BTreeMap, VecDeque};

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_queue::Time;
use leveret_topology::QueueId;
use smallvec::SmallVec;

use super::deadlines::Deadlines;
use super::nacks::{NackReason, Nacks};
use super::runs::{Runs, Verdict};
use crate::message::{ChannelId, ConnectionId};

/// When one queue has resolved one message: its rule, applied to what the message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// At once: nothing of it is to be on disk.
    Now,
    /// Durable, or gone from the queue.
    First,
    /// Durable.
    Durable,
    /// Acked by a consumer.
    Acked {
        /// A dead letter counts as acked.
        dead_letter_acks: bool,
    },
}

/// How a message left a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// A consumer acked it, or never acks and was given it.
    Acked,
    /// It is in another queue now.
    DeadLettered,
    /// Any other way.
    Lost,
}

/// The rules of a message's queues, if they differ, or of some if one was changed. Rare: it should not make every
/// message's notes longer.
pub(super) type Mixed = Vec<(QueueId, Until)>;

/// One message.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slot {
    pub(super) to: ConnectionId,
    /// 0: its publisher wants no confirm, or was told.
    pub(super) seq: u64,
    pub(super) channel: ChannelId,
    /// Queues that wait for the disk or for their consumer.
    pub(super) firsts: u16,
    /// Queues that wait for their consumer.
    pub(super) acks: u16,
    bits: u16,
    /// Low bits of the time when it is made durable, if it [`DEFERS`].
    defer_at: u32,
    /// Low bits of the time when its publisher is told that it waited long enough, if it [`TIMES_OUT`].
    timeout_at: u32,
}

const TAKEN: u16 = 1;
/// A queue waits for the disk alone.
const DISK: u16 = 2;
const FAILED: u16 = 4;
const MIXED: u16 = 8;
const DEAD_LETTER_ACKS: u16 = 16;
const DEFERS: u16 = 32;
const TIMES_OUT: u16 = 64;
/// A queue's rule was changed: queues that are not in `mixed` have the one that all had.
const CHANGED: u16 = 128;

impl Slot {
    /// What a message takes.
    pub(super) const BYTES: u64 = size_of::<Self>() as u64;

    /// Counts one of the message's queues.
    pub(super) fn count(&mut self, until: Until) {
        match until {
            Until::Now => {}
            Until::First => match self.firsts.checked_add(1) {
                Some(firsts) => self.firsts = firsts,
                // More than can be counted: the disk has it for all of them.
                None => self.bits |= DISK,
            },
            Until::Durable => self.bits |= DISK,
            Until::Acked { dead_letter_acks } => {
                match self.acks.checked_add(1) {
                    Some(acks) => self.acks = acks,
                    // More than can be counted cannot be said to have acked.
                    None => self.fail(),
                }
                self.set(DEAD_LETTER_ACKS, dead_letter_acks);
            }
        }
    }

    /// One of the queues did not do what its rule wants.
    pub(super) fn fail(&mut self) {
        self.bits |= FAILED;
    }

    pub(super) fn waits_for_disk(self) -> bool {
        self.firsts > 0 || self.has(DISK)
    }

    /// Those of its queues that wait for the disk or their consumer wait for the disk.
    pub(super) fn waits_for_disk_alone(&mut self) {
        self.firsts = 0;
        self.bits |= DISK;
    }

    /// No queue took it: there is nothing to write.
    pub(super) fn is_not_written(&mut self) {
        self.bits &= !DISK;
    }

    /// The record is durable.
    pub(super) fn is_durable(&mut self) {
        self.firsts = 0;
        self.bits &= !DISK;
    }

    pub(super) fn is_resolved(self) -> bool {
        self.acks == 0 && !self.waits_for_disk()
    }

    pub(super) fn verdict(self) -> Verdict {
        if self.has(FAILED) { Verdict::Failed } else { Verdict::Ok }
    }

    fn has(self, bit: u16) -> bool {
        self.bits & bit != 0
    }

    fn set(&mut self, bit: u16, to: bool) {
        if to {
            self.bits |= bit;
        }
    }

    /// One of its queues let it go.
    fn left(&mut self, until: Until, way: Way) {
        match until {
            // Under `Durable` the disk decides: what was released before it was written passes as durable.
            Until::Now | Until::Durable => {}
            Until::First => self.firsts = self.firsts.saturating_sub(1),
            Until::Acked { dead_letter_acks } => {
                self.acks = self.acks.saturating_sub(1);
                let holds = match way {
                    Way::Acked => true,
                    Way::DeadLettered => dead_letter_acks,
                    Way::Lost => false,
                };
                if !holds {
                    self.fail();
                }
            }
        }
    }

    /// The rule of all its queues, if it is not [`MIXED`].
    fn until(self) -> Until {
        if self.acks > 0 {
            Until::Acked { dead_letter_acks: self.has(DEAD_LETTER_ACKS) }
        } else if self.firsts > 0 {
            Until::First
        } else {
            Until::Now
        }
    }
}

/// How many messages were confirmed, by what, and how many were not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Confirmed {
    /// As soon as they were in their queues: nothing of them was to be on disk.
    pub at_once: u64,
    /// By the disk.
    pub durable: u64,
    /// By a consumer.
    pub acked: u64,
    /// Nacked, for whatever reason.
    pub nacked: u64,
}

impl Confirmed {
    fn count(&mut self, verdict: Verdict, by: impl FnOnce(&mut Self) -> &mut u64) {
        match verdict {
            Verdict::Ok => *by(self) += 1,
            Verdict::Failed | Verdict::TimedOut => self.nacked += 1,
        }
    }

    /// A message was resolved when it came.
    pub(super) fn when_it_came(&mut self, verdict: Verdict, by_disk: bool) {
        self.count(verdict, |all| if by_disk { &mut all.durable } else { &mut all.at_once });
    }
}

/// All of a shard.
#[derive(Debug, Default)]
pub(super) struct Unresolved {
    base: u64,
    slots: VecDeque<Slot>,
    /// Slots that are taken.
    taken: usize,
    old: BTreeMap<u64, Slot>,
    mixed: HashMap<u64, Mixed, FixedState>,
    /// How far the disk was when it was last looked at.
    durable: u64,
    deadlines: Deadlines,
    pub(super) confirmed: Confirmed,
    pub(super) nacks: Nacks,
}

/// Slots below which those that stay behind are not worth a look.
const CROWDED: usize = 1024;

/// Room for slots that is kept when there are none.
const KEPT_SLOTS: usize = 16 * 1024;

impl Unresolved {
    /// Whether nobody waits for anything.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.taken == 0 && self.old.is_empty()
    }

    pub(super) fn bytes(&self) -> u64 {
        (self.slots.len() + self.old.len()) as u64 * Slot::BYTES
    }

    /// Messages that are waited for.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.taken + self.old.len()
    }

    /// A message that is not resolved. Its offset is above all before it.
    pub(super) fn add(&mut self, at: u64, mut slot: Slot, mixed: Option<Mixed>, wait: Wait) {
        slot.bits |= TAKEN;
        if let Some(ms) = wait.defer_ms {
            slot.bits |= DEFERS;
            slot.defer_at = low(wait.now.after_ms(ms.into()));
            self.deadlines.add(ms, wait.now, at);
        }
        if let Some(ms) = wait.timeout_ms {
            slot.bits |= TIMES_OUT;
            slot.timeout_at = low(wait.now.after_ms(ms.into()));
            self.deadlines.add(ms, wait.now, at);
        }
        if let Some(mixed) = mixed {
            slot.bits |= MIXED;
            self.mixed.insert(at, mixed);
        }
        self.make_place(at);
        self.slots.push_back(slot);
        self.taken += 1;
    }

    /// Makes `at` the next place.
    #[inline]
    fn make_place(&mut self, at: u64) {
        if self.slots.is_empty() {
            self.base = at;
            return;
        }
        let gap = at - (self.base + self.slots.len() as u64);
        let crowded = self.slots.len() >= CROWDED && self.taken < self.slots.len() / 4;
        if crowded || gap > CROWDED as u64 {
            self.leave_behind(if crowded { self.slots.len() / 2 } else { self.slots.len() });
            if self.slots.is_empty() {
                self.base = at;
                return;
            }
        }
        let end = self.base + self.slots.len() as u64;
        self.slots.extend((end..at).map(|_| Slot::default()));
    }

    /// Moves what is taken of the first `count` slots out of the way of those behind it. Each slot is
    /// looked at once, and most were not taken.
    #[cold]
    fn leave_behind(&mut self, count: usize) {
        for (at, slot) in (self.base..).zip(self.slots.drain(..count)) {
            if slot.has(TAKEN) {
                self.taken -= 1;
                self.old.insert(at, slot);
            }
        }
        self.base += count as u64;
        self.trim();
    }

    /// Forgets slots at the front that are not taken.
    #[inline]
    fn trim(&mut self) {
        while self.slots.front().is_some_and(|slot| !slot.has(TAKEN)) {
            self.slots.pop_front();
            self.base += 1;
        }
        if self.slots.is_empty() && self.slots.capacity() > KEPT_SLOTS {
            self.slots = VecDeque::new();
        }
    }

    #[inline]
    fn find(&mut self, at: u64) -> Option<&mut Slot> {
        match at.checked_sub(self.base) {
            Some(index) if !self.slots.is_empty() => {
                let slot = self.slots.get_mut(usize::try_from(index).ok()?)?;
                slot.has(TAKEN).then_some(slot)
            }
            _ => self.old.get_mut(&at),
        }
    }

    /// The slot has nothing to wait for any more.
    fn remove(&mut self, at: u64) {
        match at.checked_sub(self.base) {
            Some(index) if !self.slots.is_empty() => {
                if let Some(slot) = self.slots.get_mut(index as usize) {
                    *slot = Slot::default();
                    self.taken -= 1;
                }
                self.trim();
            }
            _ => drop(self.old.remove(&at)),
        }
        if !self.mixed.is_empty() {
            self.mixed.remove(&at);
        }
    }

    /// A queue let go of a message.
    #[inline]
    pub(super) fn left(&mut self, at: u64, queue: QueueId, way: Way, runs: &mut Runs) {
        if self.is_empty() {
            return;
        }
        let Some(&slot) = self.find(at).as_deref() else { return };
        let until = if slot.has(MIXED) { self.mixed_rule(at, queue, slot) } else { slot.until() };
        let Some(slot) = self.find(at) else { return };
        let was_failed = slot.has(FAILED);
        slot.left(until, way);
        let slot = *slot;
        if slot.has(FAILED) && !was_failed && slot.seq != 0 {
            self.nacks.add(Some(queue), NackReason::Lost);
        }
        if !slot.is_resolved() {
            return;
        }
        self.remove(at);
        self.tell(slot, runs, |all| &mut all.acked);
    }

    /// The rule of one queue for a message, which it has done with.
    #[cold]
    fn mixed_rule(&mut self, at: u64, queue: QueueId, slot: Slot) -> Until {
        match self.own_rule(at, queue) {
            Some(until) => std::mem::replace(until, Until::Now),
            None if slot.has(CHANGED) => slot.until(),
            None => Until::Now,
        }
    }

    /// What is remembered of one queue's rule for a message.
    fn own_rule(&mut self, at: u64, queue: QueueId) -> Option<&mut Until> {
        let rules = self.mixed.get_mut(&at)?;
        rules.iter_mut().find(|(other, _)| *other == queue).map(|(_, until)| until)
    }

    /// Whether a message that is in the queue waits for the queue's consumer. The queue does not want that any more:
    /// [`freed`](Self::freed) is to be called for it, at any time, though it may have left by then.
    #[cold]
    pub(super) fn begin_to_free(&mut self, at: u64, queue: QueueId) -> bool {
        let Some(&slot) = self.find(at).as_deref() else { return false };
        if slot.has(MIXED) {
            match self.own_rule(at, queue) {
                Some(until) => return matches!(until, Until::Acked { .. }),
                None if !slot.has(CHANGED) => return false,
                None => {}
            }
        }
        if slot.acks == 0 {
            return false;
        }
        if slot.acks > 1 || slot.has(MIXED) {
            // When it is freed it is to be known whether this queue has let it go.
            self.mixed.entry(at).or_default().push((queue, slot.until()));
            if let Some(slot) = self.find(at) {
                slot.bits |= MIXED | CHANGED;
            }
        }
        true
    }

    /// A message is as safe as the queue wants it to be now, if it has not left the queue.
    #[cold]
    pub(super) fn freed(&mut self, at: u64, queue: QueueId, by_disk: bool, runs: &mut Runs) {
        let Some(&slot) = self.find(at).as_deref() else { return };
        if slot.has(MIXED) {
            match self.own_rule(at, queue) {
                Some(until @ Until::Acked { .. }) => *until = Until::Now,
                _ => return,
            }
        }
        let Some(slot) = self.find(at) else { return };
        slot.acks = slot.acks.saturating_sub(1);
        if slot.is_resolved() {
            let slot = *slot;
            self.remove(at);
            self.tell(slot, runs, |all| if by_disk { &mut all.durable } else { &mut all.at_once });
        }
    }

    fn tell(&mut self, slot: Slot, runs: &mut Runs, by: impl FnOnce(&mut Confirmed) -> &mut u64) {
        if slot.seq != 0 {
            let verdict = slot.verdict();
            self.confirmed.count(verdict, by);
            runs.add(slot.to, slot.channel, slot.seq, verdict);
        }
    }

    /// The disk has everything below `to`.
    pub(super) fn durable(&mut self, to: u64, runs: &mut Runs) {
        let from = std::mem::replace(&mut self.durable, to);
        if from >= to || self.is_empty() {
            return;
        }
        if !self.old.is_empty() {
            self.old_durable(from, to, runs);
        }
        let end = to.min(self.base + self.slots.len() as u64);
        for at in from.max(self.base)..end {
            let Some(slot) = self.slots.get_mut((at - self.base) as usize) else { break };
            if !slot.has(TAKEN) || !slot.waits_for_disk() {
                continue;
            }
            slot.is_durable();
            if slot.is_resolved() {
                let told = std::mem::take(slot);
                self.taken -= 1;
                if told.has(MIXED) {
                    self.mixed.remove(&at);
                }
                self.tell(told, runs, |all| &mut all.durable);
            }
        }
        self.trim();
    }

    #[cold]
    fn old_durable(&mut self, from: u64, to: u64, runs: &mut Runs) {
        let mut resolved: Vec<u64> = Vec::new();
        for (&at, slot) in self.old.range_mut(from..to) {
            if slot.waits_for_disk() {
                slot.is_durable();
                if slot.is_resolved() {
                    resolved.push(at);
                }
            }
        }
        for at in resolved {
            if let Some(slot) = self.old.remove(&at) {
                self.mixed.remove(&at);
                self.tell(slot, runs, |all| &mut all.durable);
            }
        }
    }

    /// When [`fire`](Self::fire) has something to do.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        if self.is_empty() { None } else { self.deadlines.next() }
    }

    /// Publishers that waited long enough are told; `persist` is called with what is to be made durable.
    pub(super) fn fire(&mut self, now: Time, runs: &mut Runs, mut persist: impl FnMut(u64)) {
        while let Some((first, last)) = self.deadlines.pop(now) {
            let slots =
                if self.slots.is_empty() { self.base } else { self.base + self.slots.len() as u64 };
            let old: SmallVec<[u64; 8]> = self.old.range(first..=last).map(|(&at, _)| at).collect();
            let ring = first.max(self.base)..slots.min(last.saturating_add(1));
            for at in old.into_iter().chain(ring) {
                self.fire_one(at, now, runs, &mut persist);
            }
        }
        if self.is_empty() {
            self.deadlines.forget();
        }
    }

    fn fire_one(&mut self, at: u64, now: Time, runs: &mut Runs, persist: &mut impl FnMut(u64)) {
        let Some(slot) = self.find(at) else { return };
        if slot.has(DEFERS) && is_due(slot.defer_at, now) {
            slot.bits &= !DEFERS;
            persist(at);
        }
        let mut timed_out = None;
        if slot.has(TIMES_OUT) && is_due(slot.timeout_at, now) {
            slot.bits &= !TIMES_OUT;
            let seq = std::mem::take(&mut slot.seq);
            timed_out = Some((slot.to, slot.channel, seq, slot.has(FAILED)));
        }
        // Nobody waits for it, and nothing is to be done with it any more.
        let is_done = slot.seq == 0 && !slot.has(DEFERS);
        if is_done {
            self.remove(at);
        }
        if let Some((to, channel, seq, has_failed)) = timed_out.filter(|&(_, _, seq, _)| seq != 0) {
            self.confirmed.count(Verdict::TimedOut, |all| &mut all.nacked);
            // One that has failed has its reason.
            if !has_failed {
                self.nacks.add(None, NackReason::TimedOut);
            }
            runs.add(to, channel, seq, Verdict::TimedOut);
        }
    }

    /// What is to be made durable if it waits for longer.
    pub(super) fn deferred(&self) -> impl Iterator<Item = u64> {
        let ring = (self.base..).zip(&self.slots);
        let all = self.old.iter().map(|(&at, slot)| (at, slot)).chain(ring);
        all.filter(|(_, slot)| slot.has(TAKEN) && slot.has(DEFERS)).map(|(at, _)| at)
    }

    /// Nothing may be confirmed any more: everybody is told so.
    #[cold]
    pub(super) fn fail_all(&mut self, runs: &mut Runs) {
        let slots = std::mem::take(&mut self.slots);
        let old = std::mem::take(&mut self.old);
        self.taken = 0;
        self.mixed.clear();
        for mut slot in old.into_values().chain(slots).filter(|slot| slot.has(TAKEN)) {
            slot.fail();
            self.tell(slot, runs, |all| &mut all.nacked);
        }
        self.deadlines.forget();
    }
}

/// How long a message may wait, and from when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) now: Time,
    /// Then it is made durable.
    pub(super) defer_ms: Option<u32>,
    /// Then its publisher is told that it was not resolved.
    pub(super) timeout_ms: Option<u32>,
}

/// The low bits of a time: enough for what is at most ten days away.
fn low(at: Time) -> u32 {
    at.ms() as u32
}

fn is_due(at: u32, now: Time) -> bool {
    low(now).wrapping_sub(at) < u32::MAX / 2
}

#[cfg(test)]
mod tests;
