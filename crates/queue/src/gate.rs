//! Hot path. What a consumer's connection and channel allow now.
//!
//! Shared between a session and every queue it consumes from, on whatever thread these run: atomics, no
//! lock. Two limits:
//!
//! - [`OutputGauge`], one per connection: bytes given out and not yet written to the socket. The message
//!   that crosses the limit still goes.
//! - [`ChannelLimit`], one per channel: `basic.qos` with `global`, and `channel.flow`. Exact: a place is
//!   reserved before the message is taken.
//!
//! # No wake-up is lost
//!
//! 1. A queue that finds no room sets `waiting`, then looks again.
//! 2. A session that makes room does so first, then takes `waiting`.
//! 3. All four are sequentially consistent, so one of the two sees the other: either the queue goes on, or
//!    the session is told (`true`) to have its consumers resumed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// What one delivery costs besides its body: method, header and frame ends on the wire, and its entry in
/// the session's inbox. Without it a flood of empty messages would be free.
const DELIVERY_OVERHEAD: u64 = 128;

/// What a queue takes before it tells the gauge: so much can several shards together overshoot, each.
const RUN_BYTES: u64 = 64 * 1024;

/// What a delivery of a body of `size` bytes adds to the gauge, and what the session gives back by
/// [`OutputGauge::released`] when it is written (or will never be).
pub const fn delivery_cost(size: u64) -> u64 {
    size.saturating_add(DELIVERY_OVERHEAD)
}

/// Bytes given out to one connection and not yet written to its socket.
#[derive(Debug)]
pub struct OutputGauge {
    queued: AtomicU64,
    limit: u64,
    waiting: AtomicBool,
}

impl OutputGauge {
    /// An empty gauge that lets through until `limit` bytes are reached.
    pub fn new(limit: u64) -> Self {
        Self { queued: AtomicU64::new(0), limit, waiting: AtomicBool::new(false) }
    }

    /// Bytes given out and not released.
    pub fn queued(&self) -> u64 {
        self.queued.load(Ordering::Relaxed)
    }

    /// Counts bytes that do not come from a queue (replies, returns, direct replies).
    pub fn added(&self, bytes: u64) {
        self.queued.fetch_add(bytes, Ordering::SeqCst);
    }

    /// `bytes` of [`delivery_cost`] left for the socket. True when a queue waits and half of the limit is
    /// free again: the connection's consumers are to be resumed.
    #[must_use = "somebody may wait for a resume"]
    pub fn released(&self, bytes: u64) -> bool {
        let before = self.queued.fetch_sub(bytes, Ordering::SeqCst);
        debug_assert!(before >= bytes, "released {bytes} of {before}");
        before.wrapping_sub(bytes) <= self.limit / 2 && take(&self.waiting)
    }

    fn has_room(&self) -> bool {
        if self.queued.load(Ordering::SeqCst) < self.limit {
            return true;
        }
        self.waiting.store(true, Ordering::SeqCst);
        // The session only looks at `waiting` below this mark, so that is where a wake-up could be missed.
        self.queued.load(Ordering::SeqCst) <= self.limit / 2
    }
}

/// The limits of one channel: unacked messages over all its consumers, and flow.
#[derive(Debug, Default)]
pub struct ChannelLimit {
    /// 0 for none.
    limit: AtomicU32,
    /// Counted with and without a limit, so that one can be set at any time.
    unacked: AtomicU32,
    stopped: AtomicBool,
    waiting: AtomicBool,
}

impl ChannelLimit {
    /// No limit, flow on.
    pub fn new() -> Self {
        Self::default()
    }

    /// Unacked deliveries to the channel's consumers.
    pub fn unacked(&self) -> u32 {
        self.unacked.load(Ordering::Relaxed)
    }

    /// `count` messages that consumers of the channel were given (not those of `basic.get`) were settled.
    /// True when a queue waits: the connection's consumers are to be resumed.
    #[must_use = "somebody may wait for a resume"]
    pub fn settled(&self, count: u32) -> bool {
        let before = self.unacked.fetch_sub(count, Ordering::SeqCst);
        debug_assert!(before >= count, "settled {count} of {before}");
        self.wakes()
    }

    /// `basic.qos` with `global`: at most `limit` unacked messages, 0 for any number. True when a queue
    /// waits: the connection's consumers are to be resumed.
    #[must_use = "somebody may wait for a resume"]
    pub fn set_limit(&self, limit: u32) -> bool {
        self.limit.store(limit, Ordering::SeqCst);
        self.wakes()
    }

    /// `channel.flow`. True when a queue waits: the connection's consumers are to be resumed.
    #[must_use = "somebody may wait for a resume"]
    pub fn set_flow(&self, active: bool) -> bool {
        self.stopped.store(!active, Ordering::SeqCst);
        self.wakes()
    }

    fn wakes(&self) -> bool {
        self.has_room() && take(&self.waiting)
    }

    fn has_room(&self) -> bool {
        let limit = self.limit.load(Ordering::SeqCst);
        !self.stopped.load(Ordering::SeqCst)
            && (limit == 0 || self.unacked.load(Ordering::SeqCst) < limit)
    }

    /// Takes a place if there is one. Consumers that never ack wait for a place but take none, as
    /// RabbitMQ's do.
    fn try_take(&self, ack_required: bool) -> bool {
        if self.limit.load(Ordering::SeqCst) == 0 && !self.stopped.load(Ordering::SeqCst) {
            if ack_required {
                self.unacked.fetch_add(1, Ordering::SeqCst);
            }
            return true;
        }
        self.try_take_limited(ack_required)
    }

    #[cold]
    fn try_take_limited(&self, ack_required: bool) -> bool {
        if self.reserve(ack_required) {
            return true;
        }
        self.waiting.store(true, Ordering::SeqCst);
        self.reserve(ack_required)
    }

    /// Queues of several shards may race for the last place: only one gets it.
    fn reserve(&self, ack_required: bool) -> bool {
        let limit = self.limit.load(Ordering::SeqCst);
        let has_room = |unacked: u32| limit == 0 || unacked < limit;
        if self.stopped.load(Ordering::SeqCst) {
            false
        } else if ack_required {
            let add = |unacked| has_room(unacked).then_some(unacked + 1);
            self.unacked.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add).is_ok()
        } else {
            has_room(self.unacked.load(Ordering::SeqCst))
        }
    }
}

fn take(flag: &AtomicBool) -> bool {
    flag.load(Ordering::SeqCst) && flag.swap(false, Ordering::SeqCst)
}

/// What one consumer's connection and channel allow.
#[derive(Clone, Debug)]
pub struct Gate {
    output: Arc<OutputGauge>,
    channel: Arc<ChannelLimit>,
}

impl Gate {
    /// The gate of a consumer on `channel` of the connection with `output`.
    pub fn new(output: Arc<OutputGauge>, channel: Arc<ChannelLimit>) -> Self {
        Self { output, channel }
    }

    /// A gate that is always open.
    pub fn open() -> Self {
        Self::new(Arc::new(OutputGauge::new(u64::MAX)), Arc::new(ChannelLimit::new()))
    }

    /// Whether a message may be taken now. Whoever waits for a no to change is not noted.
    pub fn may_take(&self) -> bool {
        self.output.queued() < self.output.limit && self.channel.has_room()
    }

    /// The connection's gauge.
    pub fn output(&self) -> &OutputGauge {
        &self.output
    }

    /// The channel's limits.
    pub fn channel(&self) -> &ChannelLimit {
        &self.channel
    }

    /// Takes room for a message of `size` bytes; false, and a note to be woken, when there is none.
    pub(crate) fn try_take(&self, size: u32, ack_required: bool) -> bool {
        if !self.output.has_room() || !self.channel.try_take(ack_required) {
            return false;
        }
        self.output.queued.fetch_add(delivery_cost(u64::from(size)), Ordering::SeqCst);
        true
    }

    /// Bytes that may be taken in one go by [`took`](Self::took). 0, and no note to be woken, when there is
    /// no room, or when the channel has a limit that wants each message to be asked for.
    pub(crate) fn room_of_unlimited(&self) -> u64 {
        let Self { output, channel } = self;
        if channel.limit.load(Ordering::SeqCst) != 0 || channel.stopped.load(Ordering::SeqCst) {
            return 0;
        }
        output.limit.saturating_sub(output.queued()).min(RUN_BYTES)
    }

    /// Takes what [`room_of_unlimited`](Self::room_of_unlimited) allowed.
    pub(crate) fn took(&self, messages: u32, bytes: u64, ack_required: bool) {
        self.output.queued.fetch_add(bytes, Ordering::SeqCst);
        if ack_required {
            self.channel.unacked.fetch_add(messages, Ordering::SeqCst);
        }
    }

    /// Undoes [`try_take`](Self::try_take). True when a queue waits: the connection's consumers are to be
    /// resumed.
    #[must_use = "somebody may wait for a resume"]
    pub(crate) fn give_back(&self, size: u32, ack_required: bool) -> bool {
        let output = self.output.released(delivery_cost(u64::from(size)));
        let channel = ack_required && self.channel.settled(1);
        output || channel
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(output_limit: u64) -> Gate {
        Gate::new(Arc::new(OutputGauge::new(output_limit)), Arc::new(ChannelLimit::new()))
    }

    #[test]
    fn the_message_that_crosses_the_output_limit_still_goes() {
        let gate = gate(1_000);
        assert!(gate.try_take(500, false));
        assert!(gate.try_take(10_000, false));
        assert!(!gate.may_take());
        assert!(!gate.output().released(delivery_cost(500)), "nobody waits");
        assert!(!gate.try_take(0, false));
        assert!(gate.output().released(delivery_cost(10_000)));
        assert!(!gate.output().released(0), "told once");
        assert!(gate.try_take(0, false));
    }

    #[test]
    fn a_waiting_queue_is_woken_at_half() {
        let gate = gate(1_000);
        gate.output().added(1_500);
        assert!(!gate.try_take(0, true));
        assert!(!gate.output().released(900), "600 of 1000: not yet");
        assert!(gate.may_take(), "but who asks may");
        assert!(gate.output().released(100));
    }

    #[test]
    fn global_prefetch_counts_only_those_that_ack() {
        let gate = gate(u64::MAX);
        assert!(gate.try_take(1, true));
        assert!(!gate.channel().set_limit(2));
        assert!(gate.try_take(1, false));
        assert!(gate.try_take(1, true));
        assert_eq!(gate.channel().unacked(), 2);
        assert!(!gate.try_take(1, true));
        assert!(!gate.try_take(1, false), "a full channel stops no-ack consumers too");
        assert!(gate.channel().settled(1));
        assert!(gate.try_take(1, true));
        assert!(!gate.try_take(1, true));
        assert!(gate.channel().set_limit(0), "no limit wakes as well");
        assert!(gate.try_take(1, true));
    }

    #[test]
    fn flow_stops_all() {
        let gate = gate(u64::MAX);
        assert!(!gate.channel().set_flow(false));
        assert!(!gate.may_take());
        assert!(!gate.try_take(1, false));
        assert!(!gate.try_take(1, true));
        assert!(gate.channel().set_flow(true));
        assert!(gate.try_take(1, true));
    }

    #[test]
    fn what_was_taken_can_be_given_back() {
        let gate = gate(200);
        assert!(gate.try_take(500, true));
        assert!(!gate.try_take(1, true));
        assert!(gate.give_back(500, true));
        assert_eq!((gate.output().queued(), gate.channel().unacked()), (0, 0));
    }
}
