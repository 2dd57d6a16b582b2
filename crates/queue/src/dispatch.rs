//! Hot path. Brings ready messages and consumers together.
//!
//! No allocation per message once warm; no clock; two atomic additions (in the gate) per delivery, or per
//! run of deliveries to the only consumer whose turn it can be.
//!
//! A message is assigned when its consumer's prefetch and gate let it through; strictly round robin, one
//! message each, as in RabbitMQ. Mostly [`Queue::dispatch`] does so at the end of a turn. Where RabbitMQ
//! would show that a message is handed out the moment it comes (a full queue, a time to live of 0,
//! `basic.get`), it is assigned *early* and handed out by the next dispatch.

use crate::consumers::Turns;
use crate::gate::delivery_cost;
use crate::message::{Delivery, Left, Offset, Reason, UnackedId};
use crate::queue::{Dispatched, Queue};
use crate::ready::QueuedMessage;
use crate::time::Time;

/// A message that found its consumer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Assigned {
    pub(crate) entry: QueuedMessage,
    /// None when no ack is expected.
    pub(crate) unacked: Option<UnackedId>,
    consumer_key: u64,
    pub(crate) consumer: u32,
    priority: u8,
}

enum Step {
    Assigned(Assigned),
    Expired,
    /// Nothing is ready, or nobody takes it.
    Idle,
    /// Somebody would take it, but it cannot be read yet.
    ToCome,
    /// Its record is damaged.
    SetAside,
}

/// Whether a record can be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// Now.
    AtHand,
    /// Later: it is on its way from the disk, or not agreed upon yet. The queue waits with it and with all behind
    /// it, so that order is kept.
    ToCome,
    /// Never: the queue sets the message aside, among the unacked ones but nobody's, and goes on.
    Damaged,
}

/// Who brings deliveries to consumers. A closure is one to whom every record is at hand.
pub trait Deliver {
    /// Whether the record can be delivered.
    fn look(&mut self, offset: Offset) -> Record;

    /// The message goes to a consumer. [`look`](Self::look) was asked for it just before.
    fn deliver(&mut self, delivery: Delivery);
}

impl<F: FnMut(Delivery)> Deliver for F {
    #[inline]
    fn look(&mut self, _: Offset) -> Record {
        Record::AtHand
    }

    #[inline]
    fn deliver(&mut self, delivery: Delivery) {
        self(delivery);
    }
}

impl Queue {
    /// Whether [`dispatch`](Self::dispatch) may have something to do.
    pub fn wants_dispatch(&self) -> bool {
        !self.early.is_empty()
            || (!self.ready.is_empty() && self.consumers.any_in_turn())
            || (self.drops_head() && self.is_over_length())
    }

    /// Hands out ready messages while a consumer can take one, at most about `budget` of them.
    ///
    /// The consumers' gates may be told after `deliver` was called, so what it collects is to be passed on
    /// when this returns.
    pub fn dispatch(
        &mut self,
        now: Time,
        deliver: &mut impl Deliver,
        out: &mut Vec<Left>,
        budget: u32,
    ) -> Dispatched {
        let mut delivered = 0;
        if !self.early.is_empty() {
            delivered = self.hand_over_early(deliver, out);
            if !self.early.is_empty() {
                return Dispatched { delivered, more: false, waits: true };
            }
        }
        let mut left = budget;
        while left > 0 && self.drops_head() && self.is_over_length() {
            left = left.saturating_sub(self.enforce_lengths(out));
        }
        while left > 0 {
            if let Some(turns) = self.consumers.lone_turns() {
                let (handed, looked_at) = self.run(turns, now, deliver, out, left);
                delivered += handed;
                left -= looked_at;
                if looked_at > 0 {
                    continue;
                }
            }
            left -= 1;
            match self.assign_next(now, None, deliver, out) {
                Step::Assigned(assigned) => {
                    self.hand_over(assigned, deliver, out);
                    delivered += 1;
                }
                Step::Expired | Step::SetAside => {}
                Step::Idle => {
                    if self.consumers.count() == 0 {
                        self.ready.settle();
                    }
                    return Dispatched { delivered, more: false, waits: false };
                }
                Step::ToCome => return Dispatched { delivered, more: false, waits: true },
            }
        }
        Dispatched { delivered, more: self.wants_dispatch(), waits: false }
    }

    /// Hands out what was assigned early, in order, up to one that is not at hand.
    #[cold]
    fn hand_over_early(&mut self, deliver: &mut impl Deliver, out: &mut Vec<Left>) -> u32 {
        let mut early = std::mem::take(&mut self.early);
        let mut handed = 0;
        while let Some(&assigned) = early.get(handed) {
            match deliver.look(Offset::new(assigned.entry.offset)) {
                Record::AtHand => self.hand_over(assigned, deliver, out),
                Record::ToCome => break,
                Record::Damaged => {
                    // Whoever it was meant for has room again when its gate is next looked at.
                    if assigned.unacked.is_none_or(UnackedId::is_lent) {
                        self.set_aside(assigned.priority, assigned.entry);
                    }
                }
            }
            handed += 1;
        }
        early.drain(..handed);
        self.early = early;
        handed as u32
    }

    /// Deliveries to one consumer, as many as `turns` allows. Tells how many were handed out, and how
    /// many messages were looked at, expired ones included.
    fn run(
        &mut self,
        turns: Turns,
        now: Time,
        deliver: &mut impl Deliver,
        out: &mut Vec<Left>,
        budget: u32,
    ) -> (u32, u32) {
        let Turns { id, consumer_key, no_ack, places, bytes } = turns;
        let (mut handed, mut looked_at, mut taken_bytes) = (0, 0, 0);
        while looked_at < budget && handed < places && taken_bytes < bytes {
            let Some(&head) = self.ready.peek() else { break };
            let expired = self.is_expired(head, now);
            let record =
                if expired { Record::AtHand } else { deliver.look(Offset::new(head.offset)) };
            if record == Record::ToCome {
                break;
            }
            let Some((priority, entry)) = self.ready.pop() else { break };
            looked_at += 1;
            if expired {
                self.leave(entry, Reason::Expired, out);
                continue;
            }
            if record == Record::Damaged {
                self.set_aside(priority, entry);
                continue;
            }
            handed += 1;
            taken_bytes += delivery_cost(u64::from(entry.size));
            let unacked = (!no_ack).then(|| self.give_out(entry, priority, Some(id)));
            let assigned = Assigned { entry, unacked, consumer_key, consumer: id, priority };
            self.hand_over(assigned, deliver, out);
        }
        self.consumers.took(id, handed, taken_bytes);
        (handed, looked_at)
    }

    #[inline]
    pub(crate) fn is_expired(&self, entry: QueuedMessage, now: Time) -> bool {
        entry.extra().is_some()
            && self.waiting.is_none()
            && self.extras.expires_at(entry).is_some_and(|at| now >= at)
    }

    /// `newest` has just come: it may go out though its time to live is 0.
    fn assign_next(
        &mut self,
        now: Time,
        newest: Option<Offset>,
        deliver: &mut impl Deliver,
        out: &mut Vec<Left>,
    ) -> Step {
        let Some(&head) = self.ready.peek() else { return Step::Idle };
        if newest != Some(Offset::new(head.offset)) && self.is_expired(head, now) {
            self.ready.pop();
            self.leave(head, Reason::Expired, out);
            return Step::Expired;
        }
        if !self.consumers.any_in_turn() {
            return Step::Idle;
        }
        match deliver.look(Offset::new(head.offset)) {
            Record::AtHand => {}
            Record::ToCome => return Step::ToCome,
            Record::Damaged => {
                if let Some((priority, entry)) = self.ready.pop() {
                    self.set_aside(priority, entry);
                }
                return Step::SetAside;
            }
        }
        let Some((id, consumer)) = self.consumers.take_turn(head.size, now) else {
            return Step::Idle;
        };
        let consumer_key = consumer.spec.key;
        let Some((priority, entry)) = self.ready.pop() else { return Step::Idle };
        let unacked = if consumer.spec.no_ack {
            None
        } else {
            consumer.unacked += 1;
            Some(self.give_out(entry, priority, Some(id)))
        };
        Step::Assigned(Assigned { entry, unacked, consumer_key, consumer: id, priority })
    }

    /// The next ready message cannot be read: it is set aside, as [`dispatch`](Self::dispatch) does.
    #[cold]
    pub fn set_next_aside(&mut self) {
        if let Some((priority, entry)) = self.ready.pop() {
            self.set_aside(priority, entry);
        }
    }

    /// A message that cannot be read is kept where nobody gets it: it counts as unacked.
    #[cold]
    fn set_aside(&mut self, priority: u8, entry: QueuedMessage) {
        self.unacked.insert(entry, priority, None);
    }

    #[inline]
    fn hand_over(&mut self, assigned: Assigned, deliver: &mut impl Deliver, out: &mut Vec<Left>) {
        let Assigned { entry, unacked, consumer_key, .. } = assigned;
        let offset = Offset::new(entry.offset);
        self.totals.delivered_bytes += u64::from(entry.size);
        self.totals.redelivered += u64::from(entry.redelivered());
        let leaves = match unacked {
            None => {
                self.totals.delivered_no_ack += 1;
                Some(Left::Acked(offset))
            }
            Some(id) => {
                self.totals.delivered += 1;
                id.is_lent().then_some(Left::Lent(offset))
            }
        };
        let delivery_count =
            if leaves.is_some() { self.forget(entry) } else { self.extras.delivery_count(entry) };
        deliver.deliver(Delivery {
            consumer_key,
            unacked,
            offset,
            redelivered: entry.redelivered(),
            delivery_count,
            size: entry.size,
        });
        out.extend(leaves);
    }

    /// Names a message that goes out and is to be settled.
    #[inline]
    pub(crate) fn give_out(
        &mut self,
        entry: QueuedMessage,
        priority: u8,
        consumer: Option<u32>,
    ) -> UnackedId {
        if entry.is_lean() {
            UnackedId::lent(consumer)
        } else {
            self.unacked.insert(entry, priority, consumer)
        }
    }

    /// Gives ready messages to consumers inside another command; `newest` as in `assign_next`.
    #[cold]
    pub(crate) fn assign_early(&mut self, now: Time, newest: Option<Offset>, out: &mut Vec<Left>) {
        // Whether it is at hand matters when it is handed out.
        let mut any = |_: Delivery| {};
        loop {
            match self.assign_next(now, newest, &mut any, out) {
                Step::Assigned(assigned) => self.early.push(assigned),
                Step::Expired | Step::SetAside => {}
                Step::Idle | Step::ToCome => return,
            }
        }
    }

    /// Puts back what was assigned early to a consumer that goes; true when its connection's consumers
    /// are to be resumed.
    ///
    /// It is marked redelivered: RabbitMQ would have given it out by now, and newer messages may have been
    /// assigned to others, who are to see that this one is late.
    pub(crate) fn take_back_early(&mut self, consumer: u32) -> bool {
        let mut resume = false;
        let mut early = std::mem::take(&mut self.early);
        early.retain_mut(|assigned| {
            if assigned.consumer != consumer {
                return true;
            }
            if let Some(id) = assigned.unacked {
                self.unacked.take(id, assigned.entry.offset);
                self.consumers.settled(consumer);
            }
            if let Some(consumer) = self.consumers.present(consumer) {
                let ack_required = assigned.unacked.is_some();
                resume |= consumer.spec.gate.give_back(assigned.entry.size, ack_required);
            }
            assigned.entry.set_redelivered();
            self.ready.push_returned(assigned.priority, assigned.entry);
            false
        });
        self.early = early;
        resume
    }
}
