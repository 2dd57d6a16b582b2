//! A queue and its commands.

use hashbrown::HashMap;

use crate::backlog::Backlog;
use crate::consumers::{ConsumerId, ConsumerSpec, ConsumerView, Consumers, ExclusiveInUse};
use crate::dispatch::Assigned;
use crate::extra::Extras;
use crate::message::{Got, Incoming, Left, Offset, Reason, Refused, Settle, UnackedId};
use crate::options::{Options, Overflow};
use crate::ready::{QueuedMessage, Ready};
use crate::time::Time;
use crate::totals::Totals;
use crate::unacked::{Unacked, UnackedMessage};

/// Dead letters that wait until they are safe elsewhere.
#[derive(Debug, Default)]
struct Held {
    letters: HashMap<Offset, HeldLetter, foldhash::fast::FixedState>,
    /// Bytes of their bodies.
    bytes: u64,
}

#[derive(Debug)]
pub(crate) struct HeldLetter {
    size: u32,
    /// It is on its way to its targets. Else it rests, until it is tried again.
    pub(crate) goes: bool,
    /// It may have been delivered.
    seen: bool,
    delivery_count: u32,
}

/// What a dead letter takes that is held, and what is kept elsewhere to try it again.
const HELD_BYTES: u64 = 96;

/// What removing a consumer led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    /// The key of the consumer that became the single active one.
    pub activated: Option<u64>,
    /// It was the last consumer of an auto-delete queue: the queue is to be deleted.
    pub auto_delete: bool,
    /// Messages that were meant for it made room in its gate for others that wait: the connection's
    /// consumers are to be resumed. Never, if [`Queue::dispatch`] was called after the last
    /// [`Queue::enqueue`].
    pub resume: bool,
}

/// What a call of [`Queue::dispatch`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatched {
    /// Messages handed out.
    pub delivered: u32,
    /// The budget ended first: call again in the next turn.
    pub more: bool,
    /// The next message is [to come](crate::Record::ToCome): call again when it is there. [`Queue::upcoming`] tells what
    /// to fetch.
    pub waits: bool,
}

/// What became of a message that a consumer settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It was not that consumer's any more.
    Stale,
    /// It left the queue.
    Ended,
    /// It is back in its place, or left again at once because of a limit.
    Returned {
        /// How often it came back, where that counts and did.
        delivery_count: Option<u32>,
    },
}

/// How much is in a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that wait for a consumer.
    pub ready: u64,
    /// Messages that wait for an ack.
    pub unacked: u64,
    /// Bytes of the bodies of ready messages.
    pub ready_bytes: u64,
    /// Bytes of the bodies of unacked messages.
    pub unacked_bytes: u64,
    /// Of all of these, messages with delivery mode 2.
    pub persistent: u64,
    /// Bytes of their bodies.
    pub persistent_bytes: u64,
    /// Ready messages that are kept packed.
    pub packed: u64,
    /// Dead letters that wait for [`Queue::dead_lettered`].
    pub held: u64,
    /// Bytes of their bodies.
    pub held_bytes: u64,
    /// Messages that go to a consumer with the next [`Queue::dispatch`], and that the queue forgets then:
    /// its consumer never acks, or they are lent.
    pub early: u64,
    /// Consumers.
    pub consumers: u32,
}

/// One queue.
#[derive(Debug)]
pub struct Queue {
    pub(crate) options: Options,
    pub(crate) ready: Ready,
    pub(crate) unacked: Unacked,
    pub(crate) extras: Extras,
    pub(crate) consumers: Consumers,
    /// Messages that found their consumer inside another command; the next dispatch hands them out.
    pub(crate) early: Vec<Assigned>,
    held: Option<Box<Held>>,
    /// Messages with delivery mode 2, wherever they are but in `held`.
    persistent: u64,
    /// Bytes of their bodies.
    persistent_bytes: u64,
    /// It has had messages that are lent.
    has_lent: bool,
    pub(crate) totals: Totals,
    /// When `expires` began to count; means nothing while there are consumers.
    unused_since: Time,
    /// While it [stands still](Self::stand_still): the options that are to be in force then.
    pub(crate) waiting: Option<Box<Options>>,
}

impl Queue {
    /// An empty queue, declared `now`.
    pub fn new(options: Options, now: Time) -> Self {
        let mut consumers = Consumers::new(options.single_active);
        consumers.are_paused = options.paused;
        Self {
            consumers,
            options,
            ready: Ready::default(),
            unacked: Unacked::default(),
            extras: Extras::default(),
            early: Vec::new(),
            held: None,
            persistent: 0,
            persistent_bytes: 0,
            has_lent: false,
            totals: Totals::default(),
            unused_since: now,
            waiting: None,
        }
    }

    /// The effective options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Puts other options in force: what is over a new limit is dropped, what is expired goes.
    pub fn set_options(&mut self, options: Options, now: Time, out: &mut Vec<Left>) {
        if let Some(waiting) = &mut self.waiting {
            **waiting = options;
            return;
        }
        if options.expires_ms != self.options.expires_ms {
            self.unused_since = now;
        }
        self.consumers.are_paused = options.paused;
        self.consumers.set_single_active(options.single_active);
        self.options = options;
        self.enforce_lengths(out);
        self.expire(now, out);
    }

    /// Takes a message in. [`dispatch`](Self::dispatch) is to follow before the turn ends.
    ///
    /// # Errors
    ///
    /// [`Refused::Full`] when it did not fit; it has left through `out` then.
    pub fn enqueue(
        &mut self,
        message: Incoming,
        now: Time,
        out: &mut Vec<Left>,
    ) -> Result<(), Refused> {
        self.put(message, false, now, out)
    }

    /// Takes a message in that is *lent*: once it is handed out the queue knows nothing of it, only the
    /// consumer's prefetch counts it. Whoever does not ack it loses it, so its publisher has to wait for
    /// the ack: see [`Left::Lent`].
    ///
    /// # Errors
    ///
    /// As [`enqueue`](Self::enqueue).
    pub fn enqueue_lean(
        &mut self,
        message: Incoming,
        now: Time,
        out: &mut Vec<Left>,
    ) -> Result<(), Refused> {
        self.has_lent = true;
        self.put(message, true, now, out)
    }

    #[inline]
    fn put(
        &mut self,
        message: Incoming,
        is_lean: bool,
        now: Time,
        out: &mut Vec<Left>,
    ) -> Result<(), Refused> {
        let Incoming { offset, size, persistent, redelivered, delivery_count, .. } = message;
        let ttl_ms = self.ttl_ms(message.expiration_ms);
        let mut entry = QueuedMessage::new(offset.get(), size, persistent, redelivered);
        if is_lean {
            entry.set_lean();
        }
        self.count_persistent(entry);
        self.totals.enqueued += 1;
        self.totals.enqueued_bytes += u64::from(size);
        if self.is_full_for(size) {
            // RabbitMQ gives a message out as soon as it comes. Here a batch comes first, so those
            // before this one are given out now, as far as anybody takes them.
            self.assign_early(now, None, out);
            if self.is_full_for(size) {
                self.refuse(entry, out);
                return Err(Refused::Full);
            }
        }
        if ttl_ms.is_some() || delivery_count > 0 {
            let expires_at = ttl_ms.map(|ms| now.after_ms(ms));
            self.extras.set(&mut entry, expires_at, delivery_count);
        }
        self.ready.push_fresh(self.capped(message.priority), entry);
        let expires_at_once = ttl_ms == Some(0);
        if expires_at_once || self.is_over_length() {
            if !self.was_to_be_cut(size) {
                self.assign_early(now, Some(offset), out);
            }
            self.make_way(size, out);
            self.expire(now, out);
        }
        Ok(())
    }

    /// Puts a message back that the log kept over a restart: behind those put back before, without
    /// regard to limits, which hold again from the next command on. Its time to live counts from when
    /// it was `published`.
    pub fn restore(&mut self, message: Incoming, published: Time) {
        let entry = self.restored(message, published);
        self.count_persistent(entry);
        self.totals.restored += 1;
        self.ready.push_fresh(self.capped(message.priority), entry);
    }

    /// The entry of a message that the log kept.
    pub(crate) fn restored(&mut self, message: Incoming, published: Time) -> QueuedMessage {
        let Incoming { offset, size, persistent, redelivered, delivery_count, .. } = message;
        let mut entry = QueuedMessage::new(offset.get(), size, persistent, redelivered);
        let ttl_ms = self.ttl_ms(message.expiration_ms);
        if ttl_ms.is_some() || delivery_count > 0 {
            let expires_at = ttl_ms.map(|ms| published.after_ms(ms));
            self.extras.set(&mut entry, expires_at, delivery_count);
        }
        entry
    }

    /// The smaller of the queue's and the message's own time to live.
    fn ttl_ms(&self, expiration_ms: Option<u64>) -> Option<u64> {
        match (self.options.message_ttl_ms, expiration_ms) {
            (Some(queue), Some(own)) => Some(queue.min(own)),
            (queue, own) => queue.or(own),
        }
    }

    fn capped(&self, priority: u8) -> u8 {
        self.options.max_priority.map_or(0, |max| priority.min(max))
    }

    /// The next messages in about the order they will go out: at most `max` of them, after the first
    /// `skip`. For reading ahead; the bodies' sizes come with them.
    pub fn upcoming(&self, skip: usize, max: usize, mut each: impl FnMut(Offset, u32)) {
        let early = self.early.iter().map(|assigned| assigned.entry);
        let entries = early.chain(self.ready.next_entries()).skip(skip).take(max);
        entries.for_each(|entry| each(Offset::new(entry.offset), entry.size));
    }

    /// The first message that has its consumer and is not handed out yet: before it nothing else may go.
    /// Only what was not at hand stays so beyond the next [`dispatch`](Self::dispatch).
    pub fn next_early(&self) -> Option<Offset> {
        self.early.first().map(|assigned| Offset::new(assigned.entry.offset))
    }

    /// The message that [`get`](Self::get) would take, were it called now. What is expired before it
    /// leaves.
    pub fn next_to_get(&mut self, now: Time, out: &mut Vec<Left>) -> Option<Offset> {
        self.assign_early(now, None, out);
        while self.expire(now, out) {}
        let next = if self.options.paused { None } else { self.ready.peek() };
        next.map(|entry| Offset::new(entry.offset))
    }

    /// Every message of the queue that may have been delivered, with how often it came back: what is
    /// to be marked in the log when the process stops.
    pub fn seen(&self, mut each: impl FnMut(Offset, u32)) {
        // What is assigned early to a consumer that acks is among the unacked ones, unless it is lent.
        let early =
            self.early.iter().filter(|assigned| assigned.unacked.is_none_or(UnackedId::is_lent));
        let early = early.map(|assigned| assigned.entry);
        let waiting = self.ready.entries().chain(early).filter(|entry| entry.redelivered());
        for entry in waiting.chain(self.unacked.entries()) {
            each(Offset::new(entry.offset), self.extras.delivery_count(entry));
        }
        for (&offset, letter) in self.held.iter().flat_map(|held| held.letters.iter()) {
            if letter.seen {
                each(offset, letter.delivery_count);
            }
        }
    }

    /// Every message that stays in the queue until a consumer is done with it, and whether it is persistent.
    pub fn each_kept(&self, mut each: impl FnMut(Offset, bool)) {
        // What is assigned early to a consumer that acks is among the unacked ones.
        let early = self.early.iter().filter(|assigned| assigned.unacked.is_none());
        let waiting = self.ready.entries().chain(early.map(|assigned| assigned.entry));
        let all = waiting.chain(self.unacked.entries()).filter(|entry| !entry.is_lean());
        all.for_each(|entry| each(Offset::new(entry.offset), entry.persistent()));
    }

    /// Every persistent message that is lent when it is handed out, and was not yet: what is to be kept when
    /// the process stops.
    pub fn to_be_lent(&self, each: impl FnMut(Offset)) {
        if self.has_lent {
            let early = self.early.iter().map(|assigned| assigned.entry);
            let waiting = self.ready.entries().chain(early);
            let kept = waiting.filter(|entry| entry.is_lean() && entry.persistent());
            kept.map(|entry| Offset::new(entry.offset)).for_each(each);
        }
    }

    fn refuse(&mut self, entry: QueuedMessage, out: &mut Vec<Left>) {
        self.totals.refused += 1;
        if self.options.overflow == Overflow::RejectPublishDlx {
            self.leave(entry, Reason::Maxlen, out);
        } else {
            self.forget(entry);
            self.totals.dropped.count(Reason::Maxlen);
            out.push(Left::Dropped { offset: Offset::new(entry.offset), reason: Reason::Maxlen });
        }
    }

    /// `basic.get`: takes the next ready message. However many have expired before it: to have them go
    /// bit by bit, [`expire`](Self::expire) is to be called first.
    pub fn get(&mut self, now: Time, no_ack: bool, out: &mut Vec<Left>) -> Option<Got> {
        self.touch(now);
        self.assign_early(now, None, out);
        while self.expire(now, out) {}
        let next = if self.options.paused { None } else { self.ready.pop() };
        let Some((priority, entry)) = next else {
            self.totals.get_empty += 1;
            return None;
        };
        self.totals.redelivered += u64::from(entry.redelivered());
        self.totals.delivered_bytes += u64::from(entry.size);
        let delivery_count = self.extras.delivery_count(entry);
        let unacked = if no_ack {
            self.totals.got_no_ack += 1;
            self.forget(entry);
            out.push(Left::Acked(Offset::new(entry.offset)));
            None
        } else {
            self.totals.got += 1;
            let id = self.give_out(entry, priority, None);
            if id.is_lent() {
                self.forget(entry);
                out.push(Left::Lent(Offset::new(entry.offset)));
            }
            Some(id)
        };
        // So that `remaining` does not count what nobody can get any more.
        self.expire(now, out);
        Some(Got {
            unacked,
            offset: Offset::new(entry.offset),
            redelivered: entry.redelivered(),
            delivery_count,
            size: entry.size,
            remaining: self.ready.len(),
        })
    }

    /// Ends an unacked message. Nothing happens when `id` is not that message any more.
    pub fn settle(
        &mut self,
        id: UnackedId,
        offset: Offset,
        how: Settle,
        now: Time,
        out: &mut Vec<Left>,
    ) -> Settled {
        if id.is_lent() {
            if let Some(consumer) = id.borrower() {
                self.consumers.settled(consumer);
            }
            match how {
                Settle::Ack => self.totals.acked += 1,
                _ => self.totals.dropped.count(Reason::Rejected),
            }
            out.push(Left::Returned { offset, acked: how == Settle::Ack });
            return Settled::Ended;
        }
        let Some(message) = self.unacked.take(id, offset.get()) else { return Settled::Stale };
        let requeues = matches!(how, Settle::Requeue { .. });
        if requeues && self.drops_head() && self.would_overflow(message.entry.size) {
            // Before the consumer may take another one: those that came in this turn go out first, as
            // they would have in RabbitMQ; then the head is dropped; then the consumer is free.
            self.assign_early(now, None, out);
        }
        if let Some(consumer) = message.consumer() {
            self.consumers.settled(consumer);
        }
        match how {
            Settle::Ack => {
                self.totals.acked += 1;
                self.forget(message.entry);
                out.push(Left::Acked(offset));
            }
            Settle::Reject => self.leave(message.entry, Reason::Rejected, out),
            Settle::Requeue { counts } => return self.requeue(message, counts, now, out),
        }
        Settled::Ended
    }

    fn requeue(
        &mut self,
        message: UnackedMessage,
        counts: bool,
        now: Time,
        out: &mut Vec<Left>,
    ) -> Settled {
        let UnackedMessage { mut entry, priority, .. } = message;
        self.totals.requeued += 1;
        entry.set_redelivered();
        let mut delivery_count = None;
        if counts && (self.options.counts_deliveries || self.options.delivery_limit.is_some()) {
            let count = self.extras.delivery_count(entry).saturating_add(1);
            let expires_at = self.extras.expires_at(entry);
            self.extras.set(&mut entry, expires_at, count);
            if self.options.delivery_limit.is_some_and(|limit| count > limit) {
                self.leave(entry, Reason::DeliveryLimit, out);
                return Settled::Ended;
            }
            delivery_count = Some(count);
        }
        self.ready.push_returned(priority, entry);
        self.make_way(entry.size, out);
        self.expire(now, out);
        Settled::Returned { delivery_count }
    }

    /// A dead letter that left and cannot go where it is to go, as it cannot be read or there is no room to store
    /// it: from now on it is held, as one under the at-least-once strategy is, but for its bytes. It rests.
    pub fn hold_dead_letter(&mut self, offset: Offset, seen: bool, delivery_count: u32) {
        self.hold(offset, HeldLetter { size: 0, goes: false, seen, delivery_count });
    }

    fn hold(&mut self, offset: Offset, letter: HeldLetter) {
        let held = self.held.get_or_insert_default();
        held.bytes += u64::from(letter.size);
        held.letters.insert(offset, letter);
    }

    /// Whether dead letters are held until they are safe elsewhere.
    pub fn dead_letters_at_least_once(&self) -> bool {
        self.options.at_least_once && self.options.overflow == Overflow::RejectPublish
    }

    /// A dead letter is on its way to its targets, or rests until it is tried again: what a deletion of the queue is to know. False
    /// if it is not held.
    pub fn dead_letter_goes(&mut self, offset: Offset, goes: bool) -> bool {
        let letter = self.held.as_mut().and_then(|held| held.letters.get_mut(&offset));
        letter.map(|letter| letter.goes = goes).is_some()
    }

    /// How many dead letters are held, and the bytes of their bodies.
    pub(crate) fn held(&self) -> (u64, u64) {
        self.held.as_ref().map_or((0, 0), |held| (held.letters.len() as u64, held.bytes))
    }

    /// A dead letter that was held is safe in all its targets, or given up. False when none such is held.
    pub fn dead_lettered(&mut self, offset: Offset, is_safe: bool) -> bool {
        let was_held = self.let_dead_letter_go(offset);
        self.totals.dead_letters_confirmed += u64::from(was_held && is_safe);
        was_held
    }

    fn let_dead_letter_go(&mut self, offset: Offset) -> bool {
        let Some(held) = &mut self.held else { return false };
        let Some(letter) = held.letters.remove(&offset) else { return false };
        held.bytes -= u64::from(letter.size);
        if held.letters.is_empty() {
            self.held = None;
        }
        true
    }

    /// Adds a consumer. [`dispatch`](Self::dispatch) is to follow.
    ///
    /// # Errors
    ///
    /// [`ExclusiveInUse`] when it cannot live with those that are there.
    pub fn add_consumer(
        &mut self,
        spec: ConsumerSpec,
        now: Time,
    ) -> Result<ConsumerId, ExclusiveInUse> {
        let id = self.consumers.add(spec)?;
        self.touch(now);
        Ok(id)
    }

    /// Removes a consumer; none when there is no such. What it has not acked stays unacked: it belongs to
    /// the channel, which settles it. [`dispatch`](Self::dispatch) is to follow; it should also come
    /// before, or messages of this turn that were meant for this consumer go back to their place, marked
    /// redelivered, as far as the queue's lengths let them.
    pub fn remove_consumer(
        &mut self,
        id: ConsumerId,
        now: Time,
        out: &mut Vec<Left>,
    ) -> Option<Removed> {
        let active_before = self.consumers.active_key();
        self.consumers.present(id.0)?;
        let resume = self.take_back_early(id.0);
        self.consumers.remove(id.0);
        self.enforce_lengths(out);
        let is_last = self.consumers.count() == 0;
        if is_last {
            self.touch(now);
        }
        Some(Removed {
            activated: self.consumers.active_key().filter(|key| Some(*key) != active_before),
            auto_delete: is_last && self.options.auto_delete,
            resume,
        })
    }

    /// The gate of this consumer may have opened. [`dispatch`](Self::dispatch) is to follow.
    pub fn resume(&mut self, id: ConsumerId) {
        self.resume_all(&mut [id]);
    }

    /// The gates of these consumers may have opened. Who was blocked first is next, as in RabbitMQ: it
    /// is the one whose turn it was.
    pub fn resume_all(&mut self, ids: &mut [ConsumerId]) {
        self.consumers.sort_blocked(ids);
        for id in ids {
            self.consumers.resume(id.0);
        }
    }

    /// The consumers, in no particular order.
    pub fn consumers(&self) -> impl Iterator<Item = ConsumerView> + '_ {
        self.consumers.views(0, u32::MAX)
    }

    /// How many numbers consumers have had: all ids are below. More than there are consumers, if some have left.
    pub fn consumer_slots(&self) -> u32 {
        self.consumers.slots()
    }

    /// The consumers whose ids are from `from` to before `to`: for lists that are made in pieces.
    pub fn consumers_between(&self, from: u32, to: u32) -> impl Iterator<Item = ConsumerView> + '_ {
        self.consumers.views(from, to)
    }

    /// The consumer that excludes others.
    pub fn exclusive_consumer(&self) -> Option<ConsumerView> {
        self.consumers.exclusive()
    }

    /// The consumer that alone is given messages, on a queue with a single active consumer.
    pub fn single_active_consumer(&self) -> Option<ConsumerView> {
        self.consumers.single_active()
    }

    /// How many consumers may be given messages.
    pub fn active_consumers(&self) -> u32 {
        self.consumers.active_count()
    }

    /// `queue.purge`: takes the first ready messages out, at most `max`. [`dispatch`](Self::dispatch) should
    /// come before: what came in this turn and found a consumer is not ready any more.
    pub fn purge(&mut self, max: u64) -> Backlog {
        let first = self.ready.take_first(max);
        self.purged(first)
    }

    /// Takes those of these messages out that are ready. The offsets ascend; as for
    /// [`purge`](Self::purge).
    pub fn discard(&mut self, offsets: &[Offset]) -> Backlog {
        let mut discarded = Ready::default();
        for (priority, entry) in self.ready.take(&numbers(offsets)) {
            discarded.push_fresh(priority, entry);
        }
        self.purged(discarded)
    }

    fn purged(&mut self, ready: Ready) -> Backlog {
        let only_unacked_stay = self.ready.is_empty() && self.early.is_empty();
        if only_unacked_stay && self.unacked.len() < ready.len() {
            self.count_unacked();
        } else {
            for entry in ready.entries() {
                self.forget(entry);
            }
        }
        self.totals.purged += ready.len();
        Backlog::of(ready)
    }

    /// What is kept of messages besides their entries becomes what those need that are unacked. That is less to look at
    /// than millions that were purged.
    fn count_unacked(&mut self) {
        let before = std::mem::take(&mut self.extras);
        (self.persistent, self.persistent_bytes) = (0, 0);
        let mut unacked = std::mem::take(&mut self.unacked);
        for entry in unacked.entries_mut() {
            self.extras.adopt(entry, &before);
            self.count_persistent(*entry);
        }
        self.unacked = unacked;
    }

    /// Has those of these messages that are ready go out before all others. The offsets ascend. Tells how
    /// many those are.
    pub fn bring_forward(&mut self, offsets: &[Offset]) -> u64 {
        let taken = self.ready.take(&numbers(offsets));
        taken.iter().for_each(|&(_, entry)| self.ready.push_forward(entry));
        taken.len() as u64
    }

    /// Takes those of these messages out that are ready, to be moved elsewhere: they are unacked, and
    /// nobody's, until [`moved`](Self::moved) or [`put_back`](Self::put_back) is called for each. The offsets
    /// ascend; [`dispatch`](Self::dispatch) should come before, as for [`purge`](Self::purge).
    pub fn take_out(&mut self, offsets: &[Offset]) -> Vec<(Offset, UnackedId)> {
        let taken = self.ready.take(&numbers(offsets)).into_iter();
        let out = taken.map(|(priority, entry)| {
            (Offset::new(entry.offset), self.unacked.insert(entry, priority, None))
        });
        out.collect()
    }

    /// A message that was taken out is safe elsewhere. False when it is not here any more.
    pub fn moved(&mut self, id: UnackedId, offset: Offset) -> bool {
        let Some(message) = self.unacked.take(id, offset.get()) else { return false };
        self.forget(message.entry);
        self.totals.moved += 1;
        true
    }

    /// A message that was taken out goes back to its place: as it was, or marked redelivered if it
    /// `is_late`, as newer ones may have gone out meanwhile.
    pub fn put_back(
        &mut self,
        id: UnackedId,
        offset: Offset,
        is_late: bool,
        now: Time,
        out: &mut Vec<Left>,
    ) {
        let Some(mut message) = self.unacked.take(id, offset.get()) else { return };
        if is_late {
            message.entry.set_redelivered();
        }
        self.ready.push_returned(message.priority, message.entry);
        self.make_way(message.entry.size, out);
        self.expire(now, out);
    }

    /// Takes everything out: the queue is deleted. [`dispatch`](Self::dispatch) should come before, as for
    /// [`purge`](Self::purge).
    pub fn drain_all(&mut self) -> Backlog {
        while let Some(assigned) = self.early.first() {
            self.take_back_early(assigned.consumer);
        }
        let ready = std::mem::take(&mut self.ready);
        self.totals.purged += ready.len() + self.unacked.len();
        let unacked = self.unacked.drain();
        let held = self.held.take().map(|held| held.letters.into_iter());
        self.extras = Extras::default();
        self.persistent = 0;
        self.persistent_bytes = 0;
        Backlog::new(ready, unacked, held.unwrap_or_default())
    }

    /// When [`expire`](Self::expire) or [`is_expired_unused`](Self::is_expired_unused) is to be asked again.
    pub fn next_timeout(&self) -> Option<Time> {
        if self.waiting.is_some() {
            return None;
        }
        let head = self.ready.peek().and_then(|&entry| self.extras.expires_at(entry));
        match (head, self.unused_until()) {
            (Some(head), Some(unused)) => Some(head.min(unused)),
            (head, unused) => head.or(unused),
        }
    }

    /// Whether the queue was unused for as long as `expires` says: it is to be deleted.
    pub fn is_expired_unused(&self, now: Time) -> bool {
        self.unused_until().is_some_and(|until| now >= until)
    }

    fn unused_until(&self) -> Option<Time> {
        let expires_ms = self.options.expires_ms?;
        (self.consumers.count() == 0).then(|| self.unused_since.after_ms(expires_ms))
    }

    /// The queue was used in a way that restarts `expires`: declared again. `get` does so by itself.
    pub fn touch(&mut self, now: Time) {
        self.unused_since = now;
    }

    /// How much is in it.
    pub fn counts(&self) -> Counts {
        let (held, held_bytes) = self.held();
        Counts {
            ready: self.ready.len(),
            unacked: self.unacked.len(),
            ready_bytes: self.ready.bytes(),
            unacked_bytes: self.unacked.bytes(),
            persistent: self.persistent,
            persistent_bytes: self.persistent_bytes,
            packed: self.ready.packed(),
            held,
            held_bytes,
            early: self.early.iter().filter(|it| it.unacked.is_none_or(UnackedId::is_lent)).count()
                as u64,
            consumers: self.consumers.count(),
        }
    }

    /// What happened in it since it was made.
    #[inline]
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The ready message that goes out next: the oldest one, but for priorities and what came back.
    pub fn head(&self) -> Option<Offset> {
        self.ready.peek().map(|entry| Offset::new(entry.offset))
    }

    /// Whether no message is in it, wherever.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
            && self.unacked.len() == 0
            && self.early.is_empty()
            && self.held.is_none()
    }

    /// Whether a message waits for a consumer.
    #[inline]
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Messages that wait for an ack.
    #[inline]
    pub fn unacked_len(&self) -> u64 {
        self.unacked.len()
    }

    /// About how many bytes the queue takes for the messages in it. Their bodies are the log's.
    #[inline]
    pub fn message_bytes(&self) -> u64 {
        let ready = self.ready.allocated_bytes();
        let unacked = self.unacked.len() * Unacked::MESSAGE_BYTES;
        ready + unacked + self.extras.bytes() + self.held().0 * HELD_BYTES
    }

    /// Gives back memory that is kept for speed: to be called when the queue has been idle for a while.
    pub fn relax(&mut self) {
        self.ready.relax();
        self.unacked.relax();
        self.extras.relax();
        if self.early.is_empty() {
            self.early = Vec::new();
        }
    }

    /// Hands a message over to the dead-letter exchange, or drops it.
    pub(crate) fn leave(&mut self, entry: QueuedMessage, reason: Reason, out: &mut Vec<Left>) {
        let delivery_count = self.forget(entry);
        let offset = Offset::new(entry.offset);
        if !self.options.dead_letter {
            self.totals.dropped.count(reason);
            out.push(Left::Dropped { offset, reason });
            return;
        }
        self.totals.dead_lettered.count(reason);
        let was_out = matches!(reason, Reason::Rejected | Reason::DeliveryLimit);
        let seen = was_out || entry.redelivered();
        let held = self.dead_letters_at_least_once();
        if held {
            let size = entry.size;
            self.hold(offset, HeldLetter { size, goes: true, seen, delivery_count });
        }
        out.push(Left::DeadLetter { offset, reason, held, delivery_count, seen });
    }

    #[inline]
    fn count_persistent(&mut self, entry: QueuedMessage) {
        self.persistent += u64::from(entry.persistent());
        self.persistent_bytes += persistent_bytes(entry);
    }

    /// So many messages have no entries, and so many bytes together.
    pub(crate) fn count_persistent_rest(&mut self, (count, bytes): (u64, u64)) {
        self.persistent += count;
        self.persistent_bytes += bytes;
    }

    /// Counts those that have entries: some that were counted are not there.
    #[cold]
    pub(crate) fn count_persistent_anew(&mut self) {
        (self.persistent, self.persistent_bytes) = (0, 0);
        // What is assigned early to a consumer that acks is among the unacked ones, unless it is lent.
        let early = self.early.iter().filter(|it| it.unacked.is_none_or(UnackedId::is_lent));
        let all = self.ready.entries().chain(early.map(|it| it.entry));
        let all: Vec<_> = all.chain(self.unacked.entries()).collect();
        all.into_iter().for_each(|entry| self.count_persistent(entry));
    }

    /// What is kept of a message besides its entry goes; tells how often it came back.
    #[inline]
    pub(crate) fn forget(&mut self, entry: QueuedMessage) -> u32 {
        self.persistent -= u64::from(entry.persistent());
        self.persistent_bytes -= persistent_bytes(entry);
        self.extras.forget(entry)
    }
}

fn numbers(offsets: &[Offset]) -> Vec<u64> {
    offsets.iter().map(|offset| offset.get()).collect()
}

#[inline]
fn persistent_bytes(entry: QueuedMessage) -> u64 {
    u64::from(entry.size) * u64::from(entry.persistent())
}
