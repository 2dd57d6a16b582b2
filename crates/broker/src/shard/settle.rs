//! Acks, rejects and requeues, and what becomes of messages that left a queue.
//!
//! Hot path: an index into the queue's unacked messages and one release; no allocation.

use leveret_log::Log;
use leveret_queue::{Left, Offset, Reason, Settled, Time};
use leveret_topology::{QueueId, Topology};

use super::Shard;
use super::confirms::Way;
use super::dead_letter::Dead;
use super::jobs::{Job, JobOrigin, cost};
use super::recover::{mark, mark_of};
use crate::message::{GivenBack, Outbox, Settle, Settlement};

/// Who has the work that a message is which left its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pays {
    /// Whoever had it leave, at once: a publisher who brings more than a queue may hold would bring ever more otherwise.
    Cause,
    /// All who have dead letters, in their line, if there is no room in this turn: its time was over, or it was rejected.
    Nobody,
}

impl<L: Log> Shard<L> {
    /// Applies a connection's settlements. Those of queues deleted meanwhile mean nothing any more.
    pub(super) fn settle(&mut self, settlements: &[Settlement], now: Time) {
        self.jobs.pay(cost::SETTLE * settlements.len() as u64);
        if self.attaching.is_over() {
            settlements.iter().for_each(|it| self.settle_one(it, now));
        } else {
            settlements.iter().for_each(|it| self.settle_claimed(it, now));
        }
    }

    /// Has some of what channels had unsettled come back to the queues here: about `allowed` units of it after the first `done`,
    /// oldest first. How many it looked at.
    pub(super) fn give_some_back(
        &mut self,
        unsettled: &GivenBack,
        done: usize,
        allowed: u64,
        now: Time,
    ) -> usize {
        let (mut next, mut used) = (done, 0);
        while used < allowed && next < unsettled.len() {
            // No more than may all be of here.
            let count = cost::LOOKED_AT_A_UNIT.min(allowed - used) as usize;
            let mut units = 0;
            let is_usual = self.attaching.is_over();
            for settlement in unsettled.of(self.group, next, count) {
                match is_usual {
                    true => self.settle_one(&settlement, now),
                    false => self.settle_claimed(&settlement, now),
                }
                units += cost::SETTLE;
            }
            used += units.max(1);
            next += count.min(unsettled.len() - next);
        }
        self.jobs.pay(used);
        next - done
    }

    #[inline]
    pub(super) fn settle_one(&mut self, settlement: &Settlement, now: Time) {
        let how = match settlement.how {
            Settle::Ack => leveret_queue::Settle::Ack,
            Settle::Reject => leveret_queue::Settle::Reject,
            Settle::Requeue { counts } => leveret_queue::Settle::Requeue { counts },
        };
        let Settlement { queue: id, unacked, offset, .. } = *settlement;
        let settled = self
            .queues
            .change(id, |hosted, left| hosted.queue.settle(unacked, offset, how, now, left));
        match settled {
            Some(Settled::Returned { delivery_count: Some(count) }) => {
                self.store.mark(offset, id, mark(count));
            }
            Some(_) => {}
            None => self.settle_without_queue(settlement),
        }
    }

    /// The queue is gone, and with it all its messages but those that it had lent.
    #[cold]
    fn settle_without_queue(&mut self, settlement: &Settlement) {
        if settlement.unacked.is_lent() {
            let way = if settlement.how == Settle::Ack { Way::Acked } else { Way::Lost };
            let offset = settlement.offset.get();
            self.confirms.left(offset, settlement.queue, way);
        }
    }

    /// Releases, drops or dead-letters all that left queues, and what that makes leave in turn.
    pub(super) fn work_off_left(
        &mut self,
        pays: Pays,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) {
        // A dead letter may push another message out of a full queue: until nothing is left.
        while self.queues.has_left() {
            let mut batch = self.queues.take_left();
            for (id, left) in batch.drain(..) {
                if !matches!(left, Left::DeadLetter { .. }) {
                    self.work_off(id, left, topology, now, out);
                } else if let Some(letter) = self.in_line(id, left, pays, out) {
                    self.work_off(id, letter, topology, now, out);
                }
            }
            self.queues.keep_room(batch);
        }
    }

    /// A dead letter waits for its turn behind others of its queue, or because half of this turn is used up. Which
    /// one is to go now: that of who pays for it goes, or the one that waits longest in its place.
    fn in_line(&mut self, id: QueueId, left: Left, pays: Pays, out: &mut Outbox) -> Option<Left> {
        let is_first = !self.exits.has_line(id);
        let goes_now =
            pays == Pays::Cause || !self.jobs.is_half_over() && !self.are_letters_too_many();
        if self.queues.get(id).is_none() || is_first && goes_now {
            return Some(left);
        }
        self.exits.line_up(id, left);
        if pays == Pays::Cause {
            return self.exits.next_in_line(id);
        }
        if is_first {
            let line = JobOrigin::DeadLetters(id);
            self.jobs.wait_in(line, Job::DeadLetters(id), cost::DEAD_LETTER, out);
        }
        None
    }

    /// The next dead letter of a queue that waits for a turn with room. With the last one the queue's time goes on, and whoever
    /// asked for what is behind it.
    pub(super) fn next_letter(&mut self, id: QueueId, out: &mut Outbox) -> Option<Left> {
        let left = self.exits.next_in_line(id)?;
        if !self.exits.has_line(id) {
            self.queues.touch(id);
            for (reply, no_ack) in self.exits.take_behind_line(id) {
                self.get_later(reply, id, no_ack, out);
            }
        }
        Some(left)
    }

    /// Whether more of the queue would leave, not for a consumer, before what has left it already is gone: it would only wait.
    pub(super) fn has_letters_first(&self, id: QueueId, now: Time) -> bool {
        (self.queues.has_left() || self.exits.has_line(id))
            && self.queues.get(id).is_some_and(|hosted| hosted.queue.loses_its_head(now))
    }

    /// Releases, drops or dead-letters one message that left.
    #[inline]
    pub(super) fn work_off(
        &mut self,
        id: QueueId,
        left: Left,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) {
        self.jobs.pay(cost::LEFT);
        match left {
            Left::Acked(offset) => {
                self.counters.acked += 1;
                self.gone(offset, id, Way::Acked);
            }
            Left::Purged(offset) | Left::Dropped { offset, .. } => {
                if matches!(left, Left::Dropped { reason: Reason::DeliveryLimit, .. }) {
                    self.say_poison(id, offset, topology);
                }
                self.counters.dropped += 1;
                self.gone(offset, id, Way::Lost);
            }
            Left::Held { goes: true, .. } => {}
            Left::Held { offset, goes: false } => self.gone(offset, id, Way::Lost),
            Left::Lent(offset) => self.release(offset, id),
            Left::Returned { offset, acked } => {
                let (way, count) = match acked {
                    true => (Way::Acked, &mut self.counters.acked),
                    false => (Way::Lost, &mut self.counters.dropped),
                };
                *count += 1;
                self.confirms.left(offset.get(), id, way);
            }
            Left::DeadLetter { offset, .. } if self.store.is_to_come(offset) => {
                self.exits.park(id, left);
            }
            Left::DeadLetter { offset, reason, held, delivery_count, seen } => {
                self.jobs.pay(cost::DEAD_LETTER);
                self.counters.dead_lettered += 1;
                if reason == Reason::DeliveryLimit {
                    self.say_poison(id, offset, topology);
                }
                let mark = mark_of(seen, delivery_count);
                // A queue that is deleted holds nothing.
                let held = held && self.queues.get(id).is_some();
                let dead = Dead { id, offset, reason, held, mark };
                self.dead_letter(dead, topology, now, out);
            }
        }
    }

    /// The queue lets go of the record, and whoever waits for it is told.
    #[inline]
    pub(super) fn gone(&mut self, offset: Offset, queue: QueueId, way: Way) {
        self.confirms.left(offset.get(), queue, way);
        self.release(offset, queue);
    }

    /// The queue lets go of the record.
    #[inline]
    pub(super) fn release(&mut self, offset: Offset, queue: QueueId) {
        self.store.release(offset, queue);
    }
}
