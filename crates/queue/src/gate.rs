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
//!
//! # Of a session elsewhere
//!
//! The session of another node shares no memory with the queue. Its shard has a gate of its own for it, which is
//! [closed](OutputGauge::closed) at first. What is given out is counted and never given back, and what may be given out is a
//! total, too, which letters [raise](OutputGauge::allow): the queue notices no difference. Who begins to wait is [told](Calls) to the
//! shard, which asks for more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;

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

/// Who is told when a queue begins to wait for a gate: the shard that made it for a session elsewhere.
#[derive(Clone, Debug)]
pub struct Calls {
    to: Sender<u32>,
    name: u32,
}

impl Calls {
    /// `name` goes to `to` each time.
    pub fn new(to: Sender<u32>, name: u32) -> Self {
        Self { to, name }
    }

    #[cold]
    fn call(&self) {
        // Without a receiver the shard has forgotten the gate: nobody waits for it any more.
        let _ = self.to.send(self.name);
    }
}

/// Bytes given out to one connection and not yet written to its socket.
#[derive(Debug)]
pub struct OutputGauge {
    queued: AtomicU64,
    limit: AtomicU64,
    /// So much has to be free before who waits is told.
    wakes_with: u64,
    waiting: AtomicBool,
    calls: Option<Calls>,
}

impl OutputGauge {
    /// An empty gauge that lets through until `limit` bytes are reached.
    pub fn new(limit: u64) -> Self {
        let wakes_with = limit - limit / 2;
        Self {
            queued: AtomicU64::new(0),
            limit: AtomicU64::new(limit),
            wakes_with,
            waiting: AtomicBool::new(false),
            calls: None,
        }
    }

    /// Of a connection elsewhere: lets nothing through until it is [allowed](Self::allow).
    pub fn closed(calls: Calls) -> Self {
        Self { wakes_with: 1, calls: Some(calls), ..Self::new(0) }
    }

    /// Of a connection elsewhere: `total` bytes may be given out, since the gauge was made. True when a queue waited and may go on.
    #[must_use = "somebody may wait for a resume"]
    pub fn allow(&self, total: u64) -> bool {
        self.limit.store(total, Ordering::SeqCst);
        self.queued() < total && take(&self.waiting)
    }

    /// Whether a queue waits.
    pub fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Bytes that it lets through before some are released.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Bytes until the limit.
    pub fn free(&self) -> u64 {
        self.limit.load(Ordering::Relaxed).saturating_sub(self.queued())
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
        self.wakes_at(before.wrapping_sub(bytes)) && take(&self.waiting)
    }

    /// Whether who waits is told when so much is queued.
    fn wakes_at(&self, queued: u64) -> bool {
        queued.saturating_add(self.wakes_with) <= self.limit.load(Ordering::Relaxed)
    }

    fn has_room(&self) -> bool {
        if self.queued.load(Ordering::SeqCst) < self.limit.load(Ordering::Relaxed) {
            return true;
        }
        waits(&self.waiting, &self.calls);
        // The session only looks at `waiting` below this mark, so that is where a wake-up could be missed.
        self.wakes_at(self.queued.load(Ordering::SeqCst))
    }
}

/// No limit.
const UNLIMITED: u64 = u64::MAX;

/// The limits of one channel: unacked messages over all its consumers, and flow.
#[derive(Debug)]
pub struct ChannelLimit {
    /// [`UNLIMITED`] for none.
    limit: AtomicU64,
    /// Counted with and without a limit, so that one can be set at any time.
    unacked: AtomicU64,
    stopped: AtomicBool,
    waiting: AtomicBool,
    calls: Option<Calls>,
}

impl Default for ChannelLimit {
    fn default() -> Self {
        Self {
            limit: AtomicU64::new(UNLIMITED),
            unacked: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
            calls: None,
        }
    }
}

impl ChannelLimit {
    /// No limit, flow on.
    pub fn new() -> Self {
        Self::default()
    }

    /// Of a channel elsewhere: lets nothing through until it is [allowed](Self::allow).
    pub fn closed(calls: Calls) -> Self {
        Self { limit: AtomicU64::new(0), calls: Some(calls), ..Self::default() }
    }

    /// Of a channel elsewhere: `total` messages that are to be acked may be given out, since the limit was made; `u64::MAX` for
    /// any number. True when a queue waited and may go on.
    #[must_use = "somebody may wait for a resume"]
    pub fn allow(&self, total: u64) -> bool {
        self.limit.store(total, Ordering::SeqCst);
        self.wakes()
    }

    /// Whether a queue waits.
    pub fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Unacked deliveries to the channel's consumers.
    pub fn unacked(&self) -> u64 {
        self.unacked.load(Ordering::Relaxed)
    }

    /// What holds now: how many may be unacked, none for any number. Nothing while flow is off.
    pub fn limit(&self) -> Option<u64> {
        if self.stopped.load(Ordering::Relaxed) {
            return Some(0);
        }
        Some(self.limit.load(Ordering::Relaxed)).filter(|&limit| limit != UNLIMITED)
    }

    /// Counts messages as unacked that queues elsewhere may give out, or have given out.
    pub fn added(&self, count: u64) {
        self.unacked.fetch_add(count, Ordering::SeqCst);
    }

    /// `count` messages that consumers of the channel were given (not those of `basic.get`) were settled.
    /// True when a queue waits: the connection's consumers are to be resumed.
    #[must_use = "somebody may wait for a resume"]
    pub fn settled(&self, count: u32) -> bool {
        self.removed(count.into())
    }

    /// Undoes [`added`](Self::added), as [`settled`](Self::settled) does.
    #[must_use = "somebody may wait for a resume"]
    pub fn removed(&self, count: u64) -> bool {
        let before = self.unacked.fetch_sub(count, Ordering::SeqCst);
        debug_assert!(before >= count, "settled {count} of {before}");
        self.wakes()
    }

    /// `basic.qos` with `global`: at most `limit` unacked messages, 0 for any number. True when a queue
    /// waits: the connection's consumers are to be resumed.
    #[must_use = "somebody may wait for a resume"]
    pub fn set_limit(&self, limit: u32) -> bool {
        let limit = if limit == 0 { UNLIMITED } else { u64::from(limit) };
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
        !self.stopped.load(Ordering::SeqCst)
            && self.unacked.load(Ordering::SeqCst) < self.limit.load(Ordering::SeqCst)
    }

    /// Takes a place if there is one. Consumers that never ack wait for a place but take none, as
    /// RabbitMQ's do.
    fn try_take(&self, ack_required: bool) -> bool {
        if self.limit.load(Ordering::SeqCst) == UNLIMITED && !self.stopped.load(Ordering::SeqCst) {
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
        waits(&self.waiting, &self.calls);
        self.reserve(ack_required)
    }

    /// Queues of several shards may race for the last place: only one gets it.
    fn reserve(&self, ack_required: bool) -> bool {
        let limit = self.limit.load(Ordering::SeqCst);
        if self.stopped.load(Ordering::SeqCst) {
            false
        } else if ack_required {
            let add = |unacked| (unacked < limit).then_some(unacked + 1);
            self.unacked.fetch_update(Ordering::SeqCst, Ordering::SeqCst, add).is_ok()
        } else {
            self.unacked.load(Ordering::SeqCst) < limit
        }
    }
}

/// A queue waits: whoever wants to know is told, once until it goes on.
#[cold]
fn waits(flag: &AtomicBool, calls: &Option<Calls>) {
    if !flag.swap(true, Ordering::SeqCst)
        && let Some(calls) = calls
    {
        calls.call();
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
        self.output.free() > 0 && self.channel.has_room()
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
        if channel.limit.load(Ordering::SeqCst) != UNLIMITED
            || channel.stopped.load(Ordering::SeqCst)
        {
            return 0;
        }
        output.free().min(RUN_BYTES)
    }

    /// Takes what [`room_of_unlimited`](Self::room_of_unlimited) allowed.
    pub(crate) fn took(&self, messages: u32, bytes: u64, ack_required: bool) {
        self.output.queued.fetch_add(bytes, Ordering::SeqCst);
        if ack_required {
            self.channel.added(messages.into());
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

    /// What letters allow is a total, and who waits is told once, until he may go on.
    #[test]
    fn a_gate_of_a_session_elsewhere() {
        let (to, calls) = std::sync::mpsc::channel();
        let output = Arc::new(OutputGauge::closed(Calls::new(to.clone(), 1)));
        let channel = Arc::new(ChannelLimit::closed(Calls::new(to, 2)));
        let gate = Gate::new(Arc::clone(&output), Arc::clone(&channel));
        let called = || calls.try_iter().collect::<Vec<_>>();
        assert!(!gate.try_take(10, true) && !gate.try_take(10, true));
        assert_eq!((called(), output.is_awaited()), (vec![1], true));
        assert!(output.allow(1_000));
        assert!(!gate.try_take(10, false));
        assert_eq!((called(), gate.room_of_unlimited()), (vec![2], 0));
        assert!(!channel.allow(0));
        assert!(channel.allow(2));
        assert!(gate.try_take(10, true) && gate.try_take(10, true) && !gate.try_take(10, true));
        assert!(!gate.try_take(10, false), "a full channel stops no-ack consumers too");
        assert_eq!((called(), channel.unacked()), (vec![2], 2));
        // A consumer goes, and what was meant for it has not left: another one may have the place.
        assert!(gate.give_back(10, true));
        assert!(gate.try_take(10, true));
        assert!(!channel.allow(1), "fewer than were given out");
        assert!(!gate.try_take(10, true));
        assert!(channel.allow(u64::MAX));
        assert_eq!(gate.room_of_unlimited(), 1_000 - 2 * delivery_cost(10));
        assert!(gate.try_take(800, true), "the message that crosses the total goes");
        assert!(!gate.try_take(0, true) && output.is_awaited());
        assert!(!output.allow(1_100) && output.is_awaited(), "less than was given out");
        assert!(output.allow(1_300));
        assert_eq!(called(), [2, 1]);
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
