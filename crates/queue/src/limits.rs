//! Which ready messages have to go: those over the queue's lengths, those at the end of their life.
//!
//! Both look at the head only. A message behind a live one stays, though its time is over, until it gets
//! to the head; and over-long queues lose their head, which in a queue with priorities is the oldest of
//! the *highest* priority. Both as in RabbitMQ's classic queues.

use crate::message::{Left, Reason};
use crate::options::Overflow;
use crate::queue::Queue;
use crate::time::Time;

/// Messages that one call lets go at most, so that a turn stays short. Each may be a dead letter.
const LEAVE_PER_CALL: u32 = 256;

impl Queue {
    /// Whether a message of `size` bytes would be refused now, by `overflow` = reject. Dead letters that are held
    /// count as ready, as in RabbitMQ: they cannot be dropped, and without a limit a target that is gone would
    /// have the queue grow for ever. A hint: so do messages enqueued in this turn and not dispatched yet.
    #[inline]
    pub fn is_full_for(&self, size: u32) -> bool {
        if self.drops_head() {
            return false;
        }
        let (held, held_bytes) = self.held();
        let ready_bytes = self.ready.bytes() + held_bytes;
        self.overflows(self.ready.len() + held + 1, ready_bytes + u64::from(size))
    }

    #[inline]
    pub(crate) fn drops_head(&self) -> bool {
        self.options.overflow == Overflow::DropHead
    }

    #[inline]
    pub(crate) fn would_overflow(&self, size: u32) -> bool {
        self.overflows(self.ready.len() + 1, self.ready.bytes() + u64::from(size))
    }

    #[inline]
    pub(crate) fn is_over_length(&self) -> bool {
        self.overflows(self.ready.len(), self.ready.bytes())
    }

    #[inline]
    fn overflows(&self, ready: u64, ready_bytes: u64) -> bool {
        self.options.max_length.is_some_and(|max| ready > max)
            || self.options.max_length_bytes.is_some_and(|max| ready_bytes > max)
    }

    /// Whether heads are to be dropped before anything is given out.
    pub fn is_to_be_cut(&self) -> bool {
        self.drops_head() && self.is_over_length()
    }

    /// Whether its next message is to leave for a length or for its time.
    pub fn loses_its_head(&self, now: Time) -> bool {
        self.is_to_be_cut() || self.ready.peek().is_some_and(|&head| self.is_expired(head, now))
    }

    /// Drops heads until the lengths are kept, a limited number of them: [`dispatch`](Self::dispatch) goes
    /// on with the rest, before anything is given out. Tells how many were dropped.
    pub(crate) fn enforce_lengths(&mut self, out: &mut Vec<Left>) -> u32 {
        self.drop_heads(LEAVE_PER_CALL, out)
    }

    /// Drops heads for a message of `size` bytes that just came. Of a queue that was to be cut before that, for a new limit, one
    /// goes: [`dispatch`](Self::dispatch) goes on with the cut, when whoever takes in what leaves has room for it.
    pub(crate) fn make_way(&mut self, size: u32, out: &mut Vec<Left>) {
        let most = if self.was_to_be_cut(size) { 1 } else { LEAVE_PER_CALL };
        self.drop_heads(most, out);
    }

    /// Whether the queue would be over its length without a message of `size` bytes that just came.
    pub(crate) fn was_to_be_cut(&self, size: u32) -> bool {
        let (ready, bytes) = (self.ready.len(), self.ready.bytes());
        self.drops_head()
            && self.overflows(ready.saturating_sub(1), bytes.saturating_sub(size.into()))
    }

    /// `most` of them at most.
    fn drop_heads(&mut self, most: u32, out: &mut Vec<Left>) -> u32 {
        let mut dropped = 0;
        while dropped < most && self.drops_head() && self.is_over_length() {
            let Some((_, entry)) = self.ready.pop() else { break };
            self.leave(entry, Reason::Maxlen, out);
            dropped += 1;
        }
        dropped
    }

    /// Lets expired messages go, from the head, a limited number of them. True when that was not enough:
    /// it is to be called again, and [`next_timeout`](Self::next_timeout) is due again.
    pub fn expire(&mut self, now: Time, out: &mut Vec<Left>) -> bool {
        if self.waiting.is_some() {
            return false;
        }
        for _ in 0..LEAVE_PER_CALL {
            let Some(&head) = self.ready.peek() else { return false };
            if self.extras.expires_at(head).is_none_or(|at| now < at) {
                return false;
            }
            self.ready.pop();
            self.leave(head, Reason::Expired, out);
        }
        true
    }
}
