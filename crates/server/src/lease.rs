//! What a node that leads its cluster does without a lease: nothing.
//!
//! A node that is cut off from the others, or stood still, does not know whether another one leads. So each turn looks whether the
//! lease holds, by a clock that counts a suspended machine's sleep, before it begins, and a connection's turn once more before it
//! writes. Without one the duty is *parked*: letters stay in their inboxes, and clients' bytes in the kernel, as if the node were
//! busy. When the lease is back the duties go on; if it is not, the process begins anew, with nothing given out, settled or answered.
//!
//! A node that was elected may have to wait before it gives anything out, as the lease of the one before may hold. Meanwhile it does
//! everything else: what would have it give out messages is *held*. Nobody consumes before, so that is all.
//!
//! Sessions that were here before the node led have a [`Leading`] of their own, which always holds until then.
//!
//! ```text
//!   the cluster's thread: set(from, until)      a turn: until, else parked      a letter to a shard: from, else held
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use leveret_broker::message::{ConnectionId, ToShard};
use leveret_cluster::Lease;
use leveret_topology::GroupId;
use serde::Serialize;
use tokio::sync::Notify;

use crate::clock::boot_ms;
use crate::locks::{Rank, Ranked};
use crate::runner::Due;

/// Of sessions while this process leads nothing: they hold what they have until their leader says otherwise, and need none.
pub(crate) const ALWAYS: Lease = Lease { from_ms: 0, until_ms: u64::MAX };

/// The lease of a node that leads, and what waits for it.
#[derive(Debug)]
pub(crate) struct Leading {
    /// In ms of [`boot_ms`].
    from_ms: AtomicU64,
    until_ms: AtomicU64,
    waiting: Ranked<WaitingTurns>,
    /// Whether anything waits.
    has_some: AtomicBool,
    /// Whether letters are held: those that follow are, too, until all are gone.
    has_held: AtomicBool,
    /// Clients are told to go, lease or not.
    is_ending: AtomicBool,
    /// No client is left: turns put away what there is.
    is_over: AtomicBool,
    back: Notify,
    lapses: AtomicU64,
    lapsed_ms: AtomicU64,
}

/// How often a lease was over before the next heartbeat was answered, and how long these times were, in ms: nothing was given out,
/// taken or answered then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Lapses {
    /// Times, since the process began.
    pub count: u64,
    /// All of them together, in ms.
    pub ms: u64,
}

#[derive(Debug, Default)]
struct WaitingTurns {
    parked: Vec<Due>,
    held: Vec<(GroupId, ToShard)>,
    /// Whose letters are held.
    holders: BTreeSet<ConnectionId>,
}

impl Leading {
    /// There is no lease.
    pub(crate) fn new() -> Self {
        Self {
            from_ms: AtomicU64::new(u64::MAX),
            until_ms: AtomicU64::new(0),
            waiting: Ranked::new(Rank::Lease, WaitingTurns::default()),
            has_some: AtomicBool::new(false),
            has_held: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            back: Notify::new(),
            lapses: AtomicU64::new(0),
            lapsed_ms: AtomicU64::new(0),
        }
    }

    /// For the cluster's thread: the lease as it is now. Gives for how long there was none, in ms, if one is back that was over
    /// while this node led on.
    pub(crate) fn set(&self, lease: Lease) -> Option<u64> {
        self.from_ms.store(lease.from_ms, Ordering::Release);
        let before_ms = self.until_ms.swap(lease.until_ms, Ordering::AcqRel);
        if self.has_some.load(Ordering::SeqCst) && (self.holds() || self.gives_out()) {
            self.back.notify_one();
        }
        let now_ms = boot_ms();
        let lapsed_ms = now_ms.saturating_sub(before_ms);
        if before_ms == 0 || lapsed_ms == 0 || lease.until_ms <= now_ms {
            return None;
        }
        self.lapses.fetch_add(1, Ordering::Relaxed);
        self.lapsed_ms.fetch_add(lapsed_ms, Ordering::Relaxed);
        Some(lapsed_ms)
    }

    /// How often there was none, and for how long.
    pub(crate) fn lapses(&self) -> Lapses {
        Lapses {
            count: self.lapses.load(Ordering::Relaxed),
            ms: self.lapsed_ms.load(Ordering::Relaxed),
        }
    }

    /// Whether turns may run.
    #[inline]
    pub(crate) fn holds(&self) -> bool {
        self.leads() || self.is_over.load(Ordering::Relaxed)
    }

    /// Whether there is a lease: who was told to put away leads no more.
    fn leads(&self) -> bool {
        boot_ms() < self.until_ms.load(Ordering::Acquire)
    }

    /// When the lease of the leader before is over, in ms of [`boot_ms`], once this node has one.
    pub(crate) fn earlier_lease_ends(&self) -> Option<u64> {
        let has_one = self.until_ms.load(Ordering::Acquire) > 0;
        has_one.then(|| self.from_ms.load(Ordering::Acquire))
    }

    /// Whether no lease of another node holds.
    fn gives_out(&self) -> bool {
        boot_ms() >= self.from_ms.load(Ordering::Acquire) || self.is_over.load(Ordering::Relaxed)
    }

    /// Whether letters that have messages given out wait.
    pub(crate) fn holds_back(&self) -> bool {
        self.has_held.load(Ordering::SeqCst) || !self.gives_out()
    }

    /// Gives the duty back if its turn may run now, and keeps it if not.
    pub(crate) fn park(&self, due: Due) -> Option<Due> {
        if self.may_run(&due) {
            return Some(due);
        }
        let mut waiting = self.waiting.lock();
        self.has_some.store(true, Ordering::SeqCst);
        // Whoever set it meanwhile may have seen nothing that waits.
        if self.may_run(&due) {
            return Some(due);
        }
        waiting.parked.push(due);
        None
    }

    fn may_run(&self, due: &Due) -> bool {
        self.holds() || self.is_ending() && matches!(due, Due::Connection(_))
    }

    /// Keeps a letter back that has messages given out, or that has to stay behind such a one. Gives back any other.
    pub(crate) fn hold(&self, group: GroupId, letter: ToShard) -> Option<ToShard> {
        let (connection, gives_out) = match &letter {
            ToShard::Consume { reply, .. } | ToShard::Get { reply, .. } => (reply.connection, true),
            // Its sessions may hold what the lease before has given to others.
            ToShard::Attached(attached) => (attached.node.connection(0), true),
            ToShard::Disconnected { connection, .. } => (*connection, false),
            _ => return Some(letter),
        };
        let mut waiting = self.waiting.lock();
        let has_held = !waiting.held.is_empty() || self.has_held.load(Ordering::SeqCst);
        if !(gives_out && (has_held || !self.gives_out())) && !waiting.holders.contains(&connection)
        {
            return Some(letter);
        }
        waiting.holders.insert(connection);
        waiting.held.push((group, letter));
        self.has_held.store(true, Ordering::SeqCst);
        self.has_some.store(true, Ordering::SeqCst);
        None
    }

    /// Waits until something that waits may go on.
    pub(crate) async fn is_back(&self) {
        self.back.notified().await;
    }

    /// Duties that go on.
    pub(crate) fn take_parked(&self) -> Vec<Due> {
        let mut waiting = self.waiting.lock();
        let may = |due: &mut Due| self.may_run(due);
        let parked = waiting.parked.extract_if(.., may).collect();
        self.has_some.store(!waiting.is_empty(), Ordering::SeqCst);
        parked
    }

    /// Letters that go on. To be asked for until there is none: what follows a letter that is taken is held until it is posted.
    pub(crate) fn take_held(&self) -> Vec<(GroupId, ToShard)> {
        let mut waiting = self.waiting.lock();
        let held = if self.gives_out() { std::mem::take(&mut waiting.held) } else { Vec::new() };
        if waiting.held.is_empty() && held.is_empty() {
            waiting.holders.clear();
            self.has_held.store(false, Ordering::SeqCst);
        }
        self.has_some.store(!waiting.is_empty(), Ordering::SeqCst);
        held
    }

    /// From now on clients may be told to go, and nothing else without a lease.
    pub(crate) fn ends(&self) {
        self.is_ending.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::SeqCst)
    }

    /// From now on turns run: nobody gets anything from them.
    pub(crate) fn puts_away(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }
}

/// Until when the sessions of this process may take what their clients send, by the names that they have: see
/// `leveret_node::remote::lease`.
#[derive(Debug)]
pub(crate) struct NamesHold {
    /// In ms of [`boot_ms`], twice; and 1 if it is of the broker of this process, which holds while that one leads.
    until: AtomicU64,
    /// Somebody was told that it does not hold.
    is_missed: AtomicBool,
    leads: Arc<Leading>,
}

impl NamesHold {
    /// They may take nothing. `leads`: the lease of this process's broker.
    pub(crate) fn new(leads: Arc<Leading>) -> Self {
        Self { until: AtomicU64::new(0), is_missed: AtomicBool::new(false), leads }
    }

    /// They may until then; `is_own`: if the broker of this process leads. Returns whether any has waited for that.
    pub(crate) fn set(&self, until_ms: u64, is_own: bool) -> bool {
        self.until.store(until_ms << 1 | u64::from(is_own), Ordering::SeqCst);
        self.is_missed.swap(false, Ordering::SeqCst)
    }

    /// They may no more.
    pub(crate) fn give_up(&self) {
        self.until.store(0, Ordering::Release);
    }

    /// Whether they may now.
    #[inline]
    pub(crate) fn holds(&self) -> bool {
        self.is_held() || {
            self.is_missed.store(true, Ordering::SeqCst);
            // Whoever set it meanwhile may have seen nobody who waits.
            self.is_held()
        }
    }

    fn is_held(&self) -> bool {
        let until = self.until.load(Ordering::SeqCst);
        boot_ms() < until >> 1 && (until & 1 == 0 || self.leads.leads())
    }
}

impl WaitingTurns {
    fn is_empty(&self) -> bool {
        self.parked.is_empty() && self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use leveret_broker::message::{Attached, NodeId, ReplyTo};
    use leveret_topology::QueueId;

    use super::*;

    fn until(from_ms: u64, until_ms: u64) -> Lease {
        Lease { from_ms, until_ms }
    }

    #[test]
    fn a_duty_waits_for_the_lease() {
        let leading = Leading::new();
        assert!(leading.park(Due::Shard(1)).is_none());
        assert!(leading.take_parked().is_empty());
        let now_ms = boot_ms();
        leading.set(until(0, now_ms));
        assert!(leading.park(Due::Meta).is_none(), "it is over just now");
        leading.set(until(0, now_ms + 60_000));
        assert!(leading.park(Due::Meta).is_some());
        let parked = leading.take_parked();
        assert!(matches!(parked[..], [Due::Shard(1), Due::Meta]), "{parked:?}");
        leading.set(Lease::NONE);
        leading.ends();
        assert!(leading.park(Due::Meta).is_none(), "only clients are told");
        leading.puts_away();
        assert!(leading.park(Due::Meta).is_some());
    }

    #[test]
    fn a_lease_that_lapsed_is_counted() {
        let leading = Leading::new();
        let now_ms = boot_ms();
        assert_eq!(leading.set(until(0, now_ms + 60_000)), None, "the first one");
        assert_eq!(leading.set(until(0, now_ms + 60_001)), None);
        assert_eq!(leading.set(until(0, now_ms - 700)), None, "it is over");
        let lapsed_ms = leading.set(until(0, now_ms + 60_000)).unwrap();
        assert!(lapsed_ms >= 700, "{lapsed_ms}");
        assert_eq!(leading.lapses(), Lapses { count: 1, ms: lapsed_ms });
        assert_eq!(leading.set(Lease::NONE), None, "it is given up");
        assert_eq!(leading.set(until(0, now_ms + 60_000)), None);
        assert_eq!(leading.lapses().count, 1);
    }

    #[test]
    fn names_hold_until_then_and_while_this_process_leads() {
        let leads = Arc::new(Leading::new());
        let hold = NamesHold::new(Arc::clone(&leads));
        let now_ms = boot_ms();
        assert!(!hold.holds());
        assert!(hold.set(now_ms + 60_000, false), "somebody has waited");
        assert!(hold.holds() && !hold.set(now_ms + 60_001, false));
        hold.give_up();
        assert!(!hold.holds() && hold.set(now_ms + 60_000, true));
        assert!(!hold.holds(), "this process does not lead");
        leads.set(until(now_ms, now_ms + 60_000));
        assert_eq!(leads.earlier_lease_ends(), Some(now_ms));
        assert!(hold.holds());
        leads.set(Lease::NONE);
        assert!(!hold.holds() && leads.earlier_lease_ends().is_none());
    }

    #[test]
    fn a_letter_waits_for_the_lease_before() {
        let leading = Leading::new();
        let now_ms = boot_ms();
        leading.set(until(now_ms + 60_000, now_ms + 60_000));
        let (one, other) = (NodeId::ALONE.connection(1), NodeId::ALONE.connection(2));
        let get = |connection| ToShard::Get {
            reply: ReplyTo { connection, channel: 1 },
            queue: QueueId::new(1),
            no_ack: true,
        };
        let gone = |connection| ToShard::Disconnected { connection, reply: None };
        let group = GroupId::new(1);
        let attached = |node| {
            ToShard::Attached(Attached { node, start: 0, term: 1, last: [0; 2], undecided_from: 1 })
        };
        assert!(leading.holds_back());
        assert!(leading.hold(group, ToShard::Continue).is_some());
        assert!(leading.hold(group, gone(one)).is_some(), "nothing of it waits");
        assert!(leading.hold(group, get(one)).is_none());
        assert!(leading.hold(group, gone(one)).is_none(), "it comes behind");
        assert!(leading.hold(group, gone(other)).is_some());
        let far = NodeId::new(7).unwrap();
        assert!(leading.hold(group, attached(far)).is_none(), "nothing is given out before");
        assert!(leading.take_held().is_empty());
        leading.set(until(now_ms, now_ms + 60_000));
        assert!(leading.holds_back(), "what waits is before");
        assert_eq!(leading.take_held().len(), 3);
        assert!(leading.hold(group, get(other)).is_none(), "not all are posted");
        assert_eq!(leading.take_held().len(), 1);
        assert!(leading.take_held().is_empty());
        assert!(!leading.holds_back());
    }
}
