//! Hot path. What publishers are told, and the messages whose publisher is not told yet, by their offset in the log.
//!
//! Others say what became of a message in a queue, or how far the disk is. What follows from that for its publisher is
//! decided here alone, and leaves with [`flush`](Confirms::flush).
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
//! Where several nodes have the log, a queue may want a message on the disks of all that are in contact (`replication-confirm`). If one of
//! a message's queues does, the message's disk is theirs: it is in `all`, beside its slot, until all have it.
//!
//! Invariants: an offset is in `slots` or in `old`, never both; the first slot is taken; below `durable`
//! no slot waits for the disk that is not in `all`; nothing in `all` is below what all have.

mod deadlines;
mod nacks;
mod runs;
mod slot;

use std::collections::{BTreeMap, VecDeque};

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_queue::Time;
use leveret_topology::{QueueId, Topology};
use smallvec::SmallVec;

use crate::message::Outbox;
use deadlines::Deadlines;
use nacks::Nacks;
use runs::{Runs, Verdict};
use slot::{CHANGED, DEFERS, FAILED, KEPT, MIXED, TAKEN, TIMES_OUT, UNDOABLE};

pub use nacks::{NackReason, Nacked};
pub(super) use slot::{Mixed, UnresolvedMessage, Until, Way};

/// All of a shard.
#[derive(Debug, Default)]
pub(super) struct Confirms {
    base: u64,
    slots: VecDeque<UnresolvedMessage>,
    /// Slots that are taken.
    taken: usize,
    old: BTreeMap<u64, UnresolvedMessage>,
    mixed: HashMap<u64, Mixed, FixedState>,
    /// How far the disk was when it was last looked at.
    durable: u64,
    /// Messages that wait for all members in contact, ascending, and how many of the queues of each want that. Some are resolved.
    all: VecDeque<(u64, u16)>,
    /// Messages of earlier terms, each with how much all are to have before its publisher is told.
    earlier: VecDeque<(u64, UnresolvedMessage)>,
    deadlines: Deadlines,
    confirmed: Confirmed,
    nacks: Nacks,
    /// What publishers are told next.
    runs: Runs,
    /// The same of messages that consumers of all their queues have acked: whatever becomes of the log's end, they were.
    acked: Runs,
    /// Queues that were deleted and had the rule `ack`: whoever routed to one of them is told no.
    gone: VecDeque<QueueId>,
    /// Messages that are waited for no more, of those that their nodes [keep](Self::kept).
    kept_no_more: Vec<u64>,
}

/// Slots below which those that stay behind are not worth a look.
const CROWDED: usize = 1024;

/// Room for slots that is kept when there are none.
const KEPT_SLOTS: usize = 16 * 1024;

/// Deleted queues that are remembered for messages routed to them a moment before.
const GONE_MAX: usize = 1024;

impl Confirms {
    /// Whether nobody waits for anything.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.taken == 0 && self.old.is_empty()
    }

    pub(super) fn bytes(&self) -> u64 {
        let slots = self.slots.len() + self.old.len() + self.earlier.len();
        let all = self.all.len() * size_of::<(u64, u16)>();
        slots as u64 * UnresolvedMessage::BYTES + all as u64
    }

    /// Messages that are waited for.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.taken + self.old.len()
    }

    /// A message that is not resolved. Its offset is above all before it.
    pub(super) fn add(
        &mut self,
        at: u64,
        mut slot: UnresolvedMessage,
        mixed: Option<Mixed>,
        wait: Wait,
    ) {
        slot.bits |= TAKEN;
        if wait.for_all > 0 {
            slot.waits_for_all_disks();
            self.all.push_back((at, wait.for_all));
        }
        if let Some(ms) = wait.defer_ms {
            slot.bits |= DEFERS;
            slot.defer_at = low(wait.now.after_ms(ms.into()));
            self.deadlines.add(ms, wait.now, at);
        }
        self.note_rules(at, &mut slot, mixed, wait.timeout_ms, wait.now);
        self.make_place(at);
        self.slots.push_back(slot);
        self.taken += 1;
    }

    /// What a message's queues want of it is noted: how long it may wait, and their rules if they differ.
    #[inline]
    fn note_rules(
        &mut self,
        at: u64,
        slot: &mut UnresolvedMessage,
        mixed: Option<Mixed>,
        timeout_ms: Option<u32>,
        now: Time,
    ) {
        if let Some(ms) = timeout_ms {
            slot.bits |= TIMES_OUT;
            slot.timeout_at = low(now.after_ms(ms.into()));
            self.deadlines.add(ms, now, at);
        }
        if let Some(mixed) = mixed {
            slot.bits |= MIXED;
            self.mixed.insert(at, mixed);
        }
    }

    /// A message's node keeps it for as long as it waits for a consumer in memory alone: until it is in the log, or
    /// [waited for no more](Self::kept_no_more).
    #[cold]
    pub(super) fn kept(&mut self, at: u64) {
        if let Some(slot) = self.find(at) {
            slot.bits |= KEPT;
        }
    }

    /// A transaction acks a message.
    #[cold]
    pub(super) fn is_in_transaction(&mut self, at: u64) {
        if let Some(slot) = self.find(at) {
            slot.bits |= UNDOABLE;
        }
    }

    /// One that is [kept](Self::kept) goes to the log.
    #[cold]
    pub(super) fn goes_to_log(&mut self, at: u64) {
        if let Some(slot) = self.find(at) {
            slot.bits &= !(DEFERS | KEPT);
        }
    }

    /// Those that are waited for no more since the last call.
    pub(super) fn kept_no_more(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.kept_no_more)
    }

    /// The message that waits at this offset.
    #[cold]
    pub(super) fn waits_at(&mut self, at: u64) -> Option<UnresolvedMessage> {
        self.find(at).copied()
    }

    /// A message of an earlier term is in the log, and waits for a consumer. Nobody [waits](Self::waits_at) there.
    #[cold]
    pub(super) fn add_earlier(
        &mut self,
        at: u64,
        mut slot: UnresolvedMessage,
        mixed: Option<Mixed>,
        timeout_ms: Option<u32>,
        now: Time,
    ) {
        slot.bits |= TAKEN;
        self.note_rules(at, &mut slot, mixed, timeout_ms, now);
        debug_assert!(self.slots.is_empty() || at < self.base, "{at} is of this term");
        self.old.insert(at, slot);
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
        self.slots.extend((end..at).map(|_| UnresolvedMessage::default()));
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
    fn find(&mut self, at: u64) -> Option<&mut UnresolvedMessage> {
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
        let removed = match at.checked_sub(self.base) {
            Some(index) if !self.slots.is_empty() => {
                let slot = self.slots.get_mut(index as usize).map(std::mem::take);
                self.taken -= usize::from(slot.is_some());
                self.trim();
                slot
            }
            _ => self.old.remove(&at),
        };
        if removed.is_some_and(|slot| slot.has(KEPT)) {
            self.kept_no_more.push(at);
        }
        if !self.mixed.is_empty() {
            self.mixed.remove(&at);
        }
    }

    /// A queue let go of a message.
    #[inline]
    pub(super) fn left(&mut self, at: u64, queue: QueueId, way: Way) {
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
        match way {
            Way::Acked => self.tell_acked(slot),
            Way::DeadLettered | Way::Lost => self.tell(slot, |all| &mut all.acked),
        }
    }

    /// The rule of one queue for a message, which it has done with.
    #[cold]
    fn mixed_rule(&mut self, at: u64, queue: QueueId, slot: UnresolvedMessage) -> Until {
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
    pub(super) fn freed(&mut self, at: u64, queue: QueueId, by_disk: bool) {
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
            self.tell(slot, |all| if by_disk { &mut all.durable } else { &mut all.at_once });
        }
    }

    #[inline]
    fn tell_acked(&mut self, slot: UnresolvedMessage) {
        // What it failed by may be undone, too.
        if slot.has(FAILED | UNDOABLE) {
            self.tell(slot, |all| &mut all.acked);
        } else if slot.seq != 0 {
            self.confirmed.acked += 1;
            self.acked.add(slot.to, slot.channel, slot.seq, Verdict::Ok);
        }
    }

    fn tell(&mut self, slot: UnresolvedMessage, by: impl FnOnce(&mut Confirmed) -> &mut u64) {
        if slot.seq != 0 {
            let verdict = slot.verdict();
            self.confirmed.count(verdict, by);
            self.runs.add(slot.to, slot.channel, slot.seq, verdict);
        }
    }

    /// The disk has everything below `to`.
    pub(super) fn durable(&mut self, to: u64) {
        let from = std::mem::replace(&mut self.durable, to);
        if from >= to || self.is_empty() {
            return;
        }
        if !self.old.is_empty() {
            self.old_durable(from, to);
        }
        let end = to.min(self.base + self.slots.len() as u64);
        for at in from.max(self.base)..end {
            let Some(slot) = self.slots.get_mut((at - self.base) as usize) else { break };
            if !slot.has(TAKEN) || !slot.waits_for_disk() || slot.is_for_all() {
                continue;
            }
            slot.is_durable();
            if slot.is_resolved() {
                let told = std::mem::take(slot);
                self.taken -= 1;
                if told.has(MIXED) {
                    self.mixed.remove(&at);
                }
                self.tell(told, |all| &mut all.durable);
            }
        }
        self.trim();
    }

    #[cold]
    fn old_durable(&mut self, from: u64, to: u64) {
        let mut resolved: Vec<u64> = Vec::new();
        for (&at, slot) in self.old.range_mut(from..to) {
            if slot.waits_for_disk() && !slot.is_for_all() {
                slot.is_durable();
                if slot.is_resolved() {
                    resolved.push(at);
                }
            }
        }
        for at in resolved {
            if let Some(slot) = self.old.remove(&at) {
                self.mixed.remove(&at);
                self.tell(slot, |all| &mut all.durable);
            }
        }
    }

    /// Whether somebody waits for all members in contact.
    #[inline]
    pub(super) fn wait_for_all(&self) -> bool {
        !self.all.is_empty() || !self.earlier.is_empty()
    }

    /// All members in contact have everything below `to`.
    #[cold]
    pub(super) fn on_all(&mut self, to: u64) {
        while let Some((at, queues)) = self.all.pop_front_if(|(at, _)| *at < to) {
            if queues > 0 {
                self.is_durable(at);
            }
        }
        while let Some((_, slot)) = self.earlier.pop_front_if(|(until, _)| *until <= to) {
            self.tell(slot, |all| &mut all.durable);
        }
    }

    /// A message is as durable as its queues want it to be, if it waits for that.
    fn is_durable(&mut self, at: u64) {
        let Some(slot) = self.find(at).filter(|slot| slot.waits_for_disk()) else { return };
        slot.is_durable();
        if slot.is_resolved() {
            let slot = *slot;
            self.remove(at);
            self.tell(slot, |all| &mut all.durable);
        }
    }

    /// One of the queues of a message, which is in it, wants it on the disks of a majority alone.
    #[cold]
    pub(super) fn wants_majority(&mut self, at: u64) {
        let Ok(index) = self.all.binary_search_by_key(&at, |(at, _)| *at) else { return };
        let Some((_, queues)) = self.all.get_mut(index) else { return };
        *queues = queues.saturating_sub(1);
        if *queues > 0 {
            return;
        }
        if at < self.durable {
            self.is_durable(at);
        } else if let Some(slot) = self.find(at) {
            slot.is_for_majority();
        }
    }

    /// What the publisher of a message of an earlier term is told, once all members in contact have everything below `until`.
    #[cold]
    pub(super) fn tell_on_all(&mut self, slot: UnresolvedMessage, until: u64) {
        self.earlier.push_back((until, slot));
    }

    /// When [`fire`](Self::fire) has something to do.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        if self.is_empty() { None } else { self.deadlines.next() }
    }

    /// Publishers that waited long enough are told; `persist` is called with what is to be made durable.
    pub(super) fn fire(&mut self, now: Time, mut persist: impl FnMut(u64)) {
        while let Some((first, last)) = self.deadlines.pop(now) {
            let slots =
                if self.slots.is_empty() { self.base } else { self.base + self.slots.len() as u64 };
            let old: SmallVec<[u64; 8]> = self.old.range(first..=last).map(|(&at, _)| at).collect();
            let ring = first.max(self.base)..slots.min(last.saturating_add(1));
            for at in old.into_iter().chain(ring) {
                self.fire_one(at, now, &mut persist);
            }
        }
        if self.is_empty() {
            self.deadlines.forget();
        }
    }

    fn fire_one(&mut self, at: u64, now: Time, persist: &mut impl FnMut(u64)) {
        let Some(slot) = self.find(at) else { return };
        if slot.has(DEFERS) && is_due(slot.defer_at, now) {
            slot.bits &= !(DEFERS | KEPT);
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
            self.runs.add(to, channel, seq, Verdict::TimedOut);
        }
    }

    /// What is to be made durable if it waits for longer.
    pub(super) fn deferred(&self) -> impl Iterator<Item = u64> {
        let ring = (self.base..).zip(&self.slots);
        let all = self.old.iter().map(|(&at, slot)| (at, slot)).chain(ring);
        all.filter(|(_, slot)| slot.has(TAKEN) && slot.has(DEFERS)).map(|(at, _)| at)
    }

    /// A message is resolved as it comes: its publisher is told.
    #[inline]
    pub(super) fn tell_at_once(&mut self, slot: UnresolvedMessage, by_disk: bool) {
        self.tell(slot, |all| if by_disk { &mut all.durable } else { &mut all.at_once });
    }

    /// A message is nacked because of this queue, if it is one that is known.
    pub(super) fn nacked(&mut self, queue: Option<QueueId>, reason: NackReason) {
        self.nacks.add(queue, reason);
    }

    /// Names the queues of this turn for which publishers were told no.
    #[inline]
    pub(super) fn say_nacks(&mut self, topology: &Topology, now: Time) {
        self.nacks.say(topology, now);
    }

    /// The queue is deleted, whose consumers were to ack its messages.
    pub(super) fn queue_gone(&mut self, id: QueueId) {
        if self.gone.len() == GONE_MAX {
            self.gone.pop_front();
        }
        self.gone.push_back(id);
    }

    /// Whether it is such a queue.
    pub(super) fn is_gone(&self, id: QueueId) -> bool {
        self.gone.contains(&id)
    }

    /// Sends what publishers are told, but for [acks](Self::flush_acked).
    pub(super) fn flush(&mut self, out: &mut Outbox) {
        self.runs.flush(out);
    }

    /// Sends what publishers are told of messages that consumers have acked. Nothing of it stands on the log.
    pub(super) fn flush_acked(&mut self, out: &mut Outbox) {
        self.acked.flush(out);
    }

    /// What publishers were told since the start.
    pub(super) fn confirmed(&self) -> Confirmed {
        self.confirmed
    }

    /// Messages that were nacked since the start, by reason.
    pub(super) fn nacks(&self) -> Nacked {
        self.nacks.counts()
    }

    /// Nobody who waits is told anything: what they wait for is to be forgotten.
    #[cold]
    pub(super) fn forget_all(&mut self) {
        self.slots.clear();
        self.old.clear();
        self.mixed.clear();
        self.all.clear();
        self.earlier.clear();
        self.kept_no_more.clear();
        (self.taken, self.base, self.durable) = (0, 0, 0);
        self.deadlines.forget();
    }

    /// Nothing may be confirmed any more: everybody is told so.
    #[cold]
    pub(super) fn fail_all(&mut self) {
        let slots = std::mem::take(&mut self.slots);
        let old = std::mem::take(&mut self.old);
        self.taken = 0;
        self.mixed.clear();
        self.all.clear();
        // Those of earlier terms are with others: they are not told that they are not.
        self.earlier.clear();
        for mut slot in old.into_values().chain(slots).filter(|slot| slot.has(TAKEN)) {
            slot.fail();
            self.tell(slot, |all| &mut all.nacked);
        }
        self.deadlines.forget();
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
}

/// How long a message may wait, and from when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) now: Time,
    /// Then it is made durable.
    pub(super) defer_ms: Option<u32>,
    /// Then its publisher is told that it was not resolved.
    pub(super) timeout_ms: Option<u32>,
    /// So many of its queues want it on the disks of all members in contact.
    pub(super) for_all: u16,
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
