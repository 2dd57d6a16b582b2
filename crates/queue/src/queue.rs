//! A queue and its commands.

use crate::gate::Gate;
use crate::message::{Delivery, Got, Incoming, Left, Offset, Refused, Settle, Time, UnackedId};
use crate::options::Options;

/// Names a consumer inside its queue: a slot, free again after [`Queue::remove_consumer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConsumerId(pub(crate) u32);

impl ConsumerId {
    /// The bare number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

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

/// Another consumer excludes this one, or this one would have to exclude others (on a queue with a single
/// active consumer: always). The caller answers 403.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the queue has an exclusive consumer, or has consumers already")]
pub struct ExclusiveInUse;

/// What removing a consumer led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    /// The key of the consumer that became the single active one.
    pub activated: Option<u64>,
    /// It was the last consumer of an auto-delete queue: the queue is to be deleted.
    pub auto_delete: bool,
}

/// What a call of [`Queue::dispatch`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatched {
    /// Messages handed out.
    pub delivered: u32,
    /// The budget ended first: call again in the next turn.
    pub more: bool,
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
    /// Dead letters that wait for [`Queue::dead_lettered`].
    pub held: u64,
    /// Consumers.
    pub consumers: u32,
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
}

/// One queue.
#[derive(Debug)]
pub struct Queue {
    options: Options,
}

impl Queue {
    /// An empty queue, declared `now`.
    pub fn new(options: Options, now: Time) -> Self {
        let _ = now;
        Self { options }
    }

    /// The effective options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Puts other options in force: what is over a new limit is dropped, what is expired goes.
    pub fn set_options(&mut self, options: Options, now: Time, out: &mut Vec<Left>) {
        let _ = (options, now, out);
        unimplemented!()
    }

    /// Whether a message of `size` bytes would be refused now, by `overflow` = reject. A hint: messages
    /// enqueued in this turn and not dispatched yet count as ready.
    pub fn is_full_for(&self, size: u32) -> bool {
        let _ = size;
        unimplemented!()
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
        let _ = (message, now, out);
        unimplemented!()
    }

    /// Whether [`dispatch`](Self::dispatch) may have something to do.
    pub fn wants_dispatch(&self) -> bool {
        unimplemented!()
    }

    /// Hands out ready messages while a consumer can take one, at most about `budget` of them.
    pub fn dispatch(
        &mut self,
        now: Time,
        deliver: &mut impl FnMut(Delivery),
        out: &mut Vec<Left>,
        budget: u32,
    ) -> Dispatched {
        let _ = (now, deliver, out, budget);
        unimplemented!()
    }

    /// `basic.get`: takes the next ready message.
    pub fn get(&mut self, now: Time, no_ack: bool, out: &mut Vec<Left>) -> Option<Got> {
        let _ = (now, no_ack, out);
        unimplemented!()
    }

    /// Ends an unacked message. False, and nothing happens, when `id` is not that message any more.
    pub fn settle(
        &mut self,
        id: UnackedId,
        offset: Offset,
        how: Settle,
        now: Time,
        out: &mut Vec<Left>,
    ) -> bool {
        let _ = (id, offset, how, now, out);
        unimplemented!()
    }

    /// A dead letter that was held is safe in all its targets. False when none such is held.
    pub fn dead_lettered(&mut self, offset: Offset) -> bool {
        let _ = offset;
        unimplemented!()
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
        let _ = (spec, now);
        unimplemented!()
    }

    /// Removes a consumer; none when there is no such. What it has not acked stays unacked: it belongs to
    /// the channel, which settles it. [`dispatch`](Self::dispatch) is to follow.
    pub fn remove_consumer(&mut self, id: ConsumerId, now: Time) -> Option<Removed> {
        let _ = (id, now);
        unimplemented!()
    }

    /// The gate of this consumer may have opened. [`dispatch`](Self::dispatch) is to follow.
    pub fn resume(&mut self, id: ConsumerId) {
        let _ = id;
        unimplemented!()
    }

    /// The consumers, in no particular order.
    pub fn consumers(&self) -> impl Iterator<Item = ConsumerView> + '_ {
        std::iter::empty()
    }

    /// `queue.purge`: lets go of all ready messages, and tells how many.
    pub fn purge(&mut self, out: &mut Vec<Left>) -> u64 {
        let _ = out;
        unimplemented!()
    }

    /// Lets go of everything: the queue is deleted. Tells how many messages were ready.
    pub fn drain_all(&mut self, out: &mut Vec<Left>) -> u64 {
        let _ = out;
        unimplemented!()
    }

    /// Lets expired messages go, from the head, a limited number of them: what is left makes
    /// [`next_timeout`](Self::next_timeout) due again.
    pub fn expire(&mut self, now: Time, out: &mut Vec<Left>) {
        let _ = (now, out);
        unimplemented!()
    }

    /// When [`expire`](Self::expire) or [`is_expired_unused`](Self::is_expired_unused) is to be asked again.
    pub fn next_timeout(&self) -> Option<Time> {
        unimplemented!()
    }

    /// Whether the queue was unused for as long as `expires` says: it is to be deleted.
    pub fn is_expired_unused(&self, now: Time) -> bool {
        let _ = now;
        unimplemented!()
    }

    /// The queue was used in a way that restarts `expires`: declared again. `get` does so by itself.
    pub fn touch(&mut self, now: Time) {
        let _ = now;
        unimplemented!()
    }

    /// How much is in it.
    pub fn counts(&self) -> Counts {
        unimplemented!()
    }

    /// Gives back memory that is kept for speed: to be called when the queue has been idle for a while.
    pub fn relax(&mut self) {
        unimplemented!()
    }
}
