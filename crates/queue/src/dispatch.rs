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
use crate::message::{Delivery, Left, Offset, Reason, Time, UnackedId};
use crate::queue::{Dispatched, Queue};
use crate::ready::Entry;

/// A message that found its consumer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Assigned {
    pub(crate) entry: Entry,
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
}

impl Queue {
    /// Whether [`dispatch`](Self::dispatch) may have something to do.
    pub fn wants_dispatch(&self) -> bool {
        !self.early.is_empty() || (!self.ready.is_empty() && self.consumers.any_in_turn())
    }

    /// Hands out ready messages while a consumer can take one, at most about `budget` of them.
    ///
    /// The consumers' gates may be told after `deliver` was called, so what it collects is to be passed on
    /// when this returns.
    pub fn dispatch(
        &mut self,
        now: Time,
        deliver: &mut impl FnMut(Delivery),
        out: &mut Vec<Left>,
        budget: u32,
    ) -> Dispatched {
        let mut delivered = 0;
        if !self.early.is_empty() {
            let mut early = std::mem::take(&mut self.early);
            for assigned in early.drain(..) {
                self.hand_over(assigned, deliver, out);
                delivered += 1;
            }
            self.early = early;
        }
        let mut left = budget;
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
            match self.assign_next(now, None, out) {
                Step::Assigned(assigned) => {
                    self.hand_over(assigned, deliver, out);
                    delivered += 1;
                }
                Step::Expired => {}
                Step::Idle => return Dispatched { delivered, more: false },
            }
        }
        Dispatched { delivered, more: self.wants_dispatch() }
    }

    /// Deliveries to one consumer, as many as `turns` allows. Tells how many were handed out, and how
    /// many messages were looked at, expired ones included.
    fn run(
        &mut self,
        turns: Turns,
        now: Time,
        deliver: &mut impl FnMut(Delivery),
        out: &mut Vec<Left>,
        budget: u32,
    ) -> (u32, u32) {
        let Turns { id, consumer_key, no_ack, places, bytes } = turns;
        let (mut handed, mut looked_at, mut taken_bytes) = (0, 0, 0);
        while looked_at < budget && handed < places && taken_bytes < bytes {
            let Some((priority, entry)) = self.ready.pop() else { break };
            looked_at += 1;
            if self.is_expired(entry, now) {
                self.leave(entry, Reason::Expired, out);
                continue;
            }
            handed += 1;
            taken_bytes += delivery_cost(u64::from(entry.size));
            let unacked = (!no_ack).then(|| self.unacked.insert(entry, priority, Some(id)));
            let assigned = Assigned { entry, unacked, consumer_key, consumer: id, priority };
            self.hand_over(assigned, deliver, out);
        }
        self.consumers.took(id, handed, taken_bytes);
        (handed, looked_at)
    }

    #[inline]
    fn is_expired(&self, entry: Entry, now: Time) -> bool {
        entry.extra().is_some() && self.extras.expires_at(entry).is_some_and(|at| now >= at)
    }

    /// `newest` has just come: it may go out though its time to live is 0.
    fn assign_next(&mut self, now: Time, newest: Option<Offset>, out: &mut Vec<Left>) -> Step {
        let Some(&head) = self.ready.peek() else { return Step::Idle };
        if newest != Some(Offset::new(head.offset)) && self.is_expired(head, now) {
            self.ready.pop();
            self.leave(head, Reason::Expired, out);
            return Step::Expired;
        }
        let Some((id, consumer)) = self.consumers.take_turn(head.size) else { return Step::Idle };
        let consumer_key = consumer.spec.key;
        let Some((priority, entry)) = self.ready.pop() else { return Step::Idle };
        let unacked = if consumer.spec.no_ack {
            None
        } else {
            consumer.unacked += 1;
            Some(self.unacked.insert(entry, priority, Some(id)))
        };
        Step::Assigned(Assigned { entry, unacked, consumer_key, consumer: id, priority })
    }

    #[inline]
    fn hand_over(
        &mut self,
        assigned: Assigned,
        deliver: &mut impl FnMut(Delivery),
        out: &mut Vec<Left>,
    ) {
        let Assigned { entry, unacked, consumer_key, .. } = assigned;
        let offset = Offset::new(entry.offset);
        let delivery_count =
            if unacked.is_none() { self.forget(entry) } else { self.extras.delivery_count(entry) };
        deliver(Delivery {
            consumer_key,
            unacked,
            offset,
            redelivered: entry.redelivered(),
            delivery_count,
            size: entry.size,
        });
        if unacked.is_none() {
            out.push(Left::Acked(offset));
        }
    }

    /// Gives ready messages to consumers inside another command; `newest` as in `assign_next`.
    #[cold]
    pub(crate) fn assign_early(&mut self, now: Time, newest: Option<Offset>, out: &mut Vec<Left>) {
        loop {
            match self.assign_next(now, newest, out) {
                Step::Assigned(assigned) => self.early.push(assigned),
                Step::Expired => {}
                Step::Idle => return,
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
