//! Locks of the node, and the one order in which a thread takes them.
//!
//! Hot path: with optimisation a lock here is the standard library's, without a byte or an instruction more.
//!
//! Two threads that take two locks in two orders wait for each other for ever. So each lock of the node has a
//! [`Rank`], and a thread takes only locks of a higher rank than all that it holds:
//!
//! ```text
//!   a connection's state -> a shard's state -> meta's state -> the names -> locks that are held for a moment
//! ```
//!
//! A second lock of the same rank is refused too. That goes for reading the names twice on one thread: the standard
//! library's lock admits no reader while a writer waits, so the inner read would wait for the writer, the writer for the
//! outer read.
//!
//! A debug build knows what each thread holds, and panics with both names before it waits in the wrong order, whether
//! another thread is in the way that time or not.
//!
//! What a thread does while it holds the names is short: see [`Node::topology`](crate::node::Node::topology). Locks of
//! the crates below (a shared body's in `log`, caches and keys of `auth`) are not ranked: no code takes another lock, or
//! waits, while it holds one.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{
    Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
    TryLockError,
};
use std::time::Duration;

/// Names each rank once: a list that is kept beside the type would miss the next one.
macro_rules! ranks {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// What a lock guards. A thread takes them from the first to the last, never back.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Rank {
            $($(#[$doc])+ $name,)+
        }

        #[cfg(debug_assertions)]
        impl Rank {
            const ALL: &[Self] = &[$(Self::$name),+];
        }
    };
}

ranks! {
    /// A connection's session and socket.
    Connection,
    /// A shard.
    Shard,
    /// The owner of the names.
    Meta,
    /// The names.
    Names,
    /// Statistics as last sampled.
    Statistics,
    /// What connections counted that are over.
    Ended,
    /// The events that are kept.
    Events,
    /// Steps of traced messages.
    Paths,
    /// The memory alarm.
    Alarms,
    /// Addresses that failed to log in.
    Throttle,
    /// Passwords that were right.
    LoginCache,
    /// Kinds of hashes that are in use.
    LoginKinds,
    /// Logins by address and user.
    Attempts,
    /// Logins that wait for a thread.
    LoginJobs,
    /// Who gets letters under which number.
    Recipients,
    /// Letters of turns that wait until nodes of sessions have the names.
    HeldTurns,
    /// Nodes of sessions that are connected.
    RemoteNodes,
    /// Those that were refused.
    RefusedNodes,
    /// What is about to be written to one of them.
    RemoteLine,
    /// The sessions of one of them.
    RemoteNode,
    /// Letters of an actor.
    Inbox,
    /// What a node of sessions has in the place of shards.
    RemoteShards,
    /// Turns that wait for a thread.
    Handover,
    /// Turns that wait for a lease.
    Lease,
    /// Threads that rest.
    Rests,
    /// What the watchdog looks at.
    Watched,
    /// News from the disks.
    News,
    /// Who has something for the cluster's thread.
    Bell,
    /// Shares of unfinished handshakes.
    Handshakes,
    /// TLS settings by listener.
    Certificates,
    /// Stamps of one listener's certificate files.
    CertificateStamps,
    /// One listener's certificates.
    Certificate,
    /// What a crate above the server keeps.
    Above,
    /// Who holds which memory of output that waits.
    Unread,
    /// Blocks to read into: given back wherever the last byte of one is let go.
    Buffers,
    /// Links to other nodes.
    Links,
    /// One connection's end of TLS.
    LinkTls,
    /// Places of connections: given back wherever the last of one is let go.
    Places,
    /// The list of a log's files.
    FileList,
    /// What clients may write to the log: a line may be written anywhere.
    LogLimits,
    /// Lines that wait for the log file, or for the console.
    LogOutput,
}

/// A mutex that knows its place in the order.
pub struct Ranked<T> {
    place: RankCheck,
    inner: Mutex<T>,
}

/// A reader-writer lock that knows its place in the order.
pub struct RankedRw<T> {
    place: RankCheck,
    inner: RwLock<T>,
}

/// A lock that is held: given back before the thread may take it again. `G` is the standard library's guard.
#[derive(Debug)]
pub struct Locked<G> {
    guard: G,
    _held: Held,
}

/// [`Ranked`], held.
pub type Guard<'a, T> = Locked<MutexGuard<'a, T>>;
/// [`RankedRw`], held to read.
pub type ReadGuard<'a, T> = Locked<RwLockReadGuard<'a, T>>;
/// [`RankedRw`], held to write.
pub type WriteGuard<'a, T> = Locked<RwLockWriteGuard<'a, T>>;

impl<T> Ranked<T> {
    /// In this place of the order.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self { place: RankCheck::new(rank), inner: Mutex::new(value) }
    }

    /// Waits for it.
    ///
    /// # Panics
    ///
    /// In debug builds when the thread holds one that comes later in the order, or another of this rank.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn lock(&self) -> Guard<'_, T> {
        let held = self.place.take();
        // A poisoned lock means a turn panicked; the process aborts on panic, so only tests see one.
        Locked { guard: self.inner.lock().unwrap_or_else(PoisonError::into_inner), _held: held }
    }
}

impl<T> RankedRw<T> {
    /// In this place of the order.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self { place: RankCheck::new(rank), inner: RwLock::new(value) }
    }

    /// Waits for it, to read.
    ///
    /// # Panics
    ///
    /// As [`Ranked::lock`]. A thread that reads already must not read again.
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn read(&self) -> ReadGuard<'_, T> {
        let held = self.place.take();
        Locked { guard: self.inner.read().unwrap_or_else(PoisonError::into_inner), _held: held }
    }

    /// Takes it to read, if no thread is in the way.
    ///
    /// # Panics
    ///
    /// As [`read`](Self::read).
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn try_read(&self) -> Option<ReadGuard<'_, T>> {
        let held = self.place.take();
        match self.inner.try_read() {
            Ok(guard) => Some(Locked { guard, _held: held }),
            Err(TryLockError::Poisoned(guard)) => {
                Some(Locked { guard: guard.into_inner(), _held: held })
            }
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits for it, to write.
    ///
    /// # Panics
    ///
    /// As [`Ranked::lock`].
    #[inline]
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn write(&self) -> WriteGuard<'_, T> {
        let held = self.place.take();
        Locked { guard: self.inner.write().unwrap_or_else(PoisonError::into_inner), _held: held }
    }
}

impl<T> Guard<'_, T> {
    /// Waits for the condition; the lock is free meanwhile.
    #[must_use]
    pub fn wait(self, condition: &Condvar) -> Self {
        let Self { guard, _held } = self;
        Self { guard: condition.wait(guard).unwrap_or_else(PoisonError::into_inner), _held }
    }

    /// Waits for the condition, not longer than that; the lock is free meanwhile.
    #[must_use]
    pub fn wait_timeout(self, condition: &Condvar, patience: Duration) -> Self {
        let Self { guard, _held } = self;
        let waited = condition.wait_timeout(guard, patience);
        Self { guard: waited.unwrap_or_else(PoisonError::into_inner).0, _held }
    }

    /// Waits while `stays`, not longer than that; the lock is free meanwhile.
    #[must_use]
    pub fn wait_while(
        self,
        condition: &Condvar,
        patience: Duration,
        stays: impl FnMut(&mut T) -> bool,
    ) -> Self {
        let Self { guard, _held } = self;
        let waited = condition.wait_timeout_while(guard, patience, stays);
        Self { guard: waited.unwrap_or_else(PoisonError::into_inner).0, _held }
    }
}

impl<G: Deref> Deref for Locked<G> {
    type Target = G::Target;

    #[inline]
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Locked<G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

impl<T: fmt::Debug> fmt::Debug for Ranked<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: fmt::Debug> fmt::Debug for RankedRw<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[cfg(debug_assertions)]
use checked::{Held, RankCheck};
#[cfg(not(debug_assertions))]
use unchecked::{Held, RankCheck};

/// What a debug build knows: each lock its rank, each thread the ranks that it holds.
#[cfg(debug_assertions)]
mod checked {
    use std::cell::Cell;
    use std::marker::PhantomData;

    use super::Rank;

    thread_local! {
        /// The ranks that the thread holds, a bit each.
        static HELD: Cell<u64> = const { Cell::new(0) };
    }

    /// The place of a lock in the order.
    pub(super) struct RankCheck(Rank);

    /// That this thread holds a lock of a rank.
    #[derive(Debug)]
    pub(super) struct Held(Rank, PhantomData<*const ()>);

    impl RankCheck {
        pub(super) const fn new(rank: Rank) -> Self {
            Self(rank)
        }

        #[track_caller]
        pub(super) fn take(&self) -> Held {
            let (held, rank) = (HELD.get(), self.0);
            let highest = Rank::ALL.iter().copied().rev().find(|rank| held & bit(*rank) != 0);
            if let Some(highest) = highest
                && highest >= rank
                // A thread that unwinds is lost already, and what it lets go may need any lock.
                && !std::thread::panicking()
            {
                panic!(
                    "wrong order of locks: {rank:?} is taken while {highest:?} is held; the order is in \
                     crates/server/src/locks.rs"
                );
            }
            HELD.set(held | bit(rank));
            Held(rank, PhantomData)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            HELD.set(HELD.get() & !bit(self.0));
        }
    }

    const fn bit(rank: Rank) -> u64 {
        1 << rank as u8
    }
}

/// A release build knows nothing: no byte in a lock, no instruction where one is taken.
#[cfg(not(debug_assertions))]
mod unchecked {
    use super::Rank;

    pub(super) struct RankCheck;

    #[derive(Debug)]
    pub(super) struct Held;

    impl RankCheck {
        #[inline]
        pub(super) const fn new(_: Rank) -> Self {
            Self
        }

        #[inline]
        pub(super) const fn take(&self) -> Held {
            Held
        }
    }
}

// As large as the standard library's where nothing is checked.
#[cfg(not(debug_assertions))]
const _: () = assert!(
    size_of::<Ranked<u64>>() == size_of::<Mutex<u64>>()
        && size_of::<Guard<'static, u64>>() == size_of::<MutexGuard<'static, u64>>()
);

#[cfg(all(test, debug_assertions))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// What the second lock's panic says, if there is one.
    fn refused(first: impl FnOnce(), then: impl FnOnce()) -> String {
        let caught = catch_unwind(AssertUnwindSafe(|| {
            first();
            then();
        }));
        let text = caught.err().and_then(|payload| payload.downcast::<String>().ok());
        text.map_or_else(String::new, |text| *text)
    }

    #[test]
    fn the_order_is_kept() {
        let state = Ranked::new(Rank::Connection, 1);
        let names = RankedRw::new(Rank::Names, 2);
        let inbox = Ranked::new(Rank::Inbox, 3);
        let (state, inbox) = (state.lock(), (names.read(), inbox.lock()));
        // In whatever order they are given back.
        drop(state);
        drop(inbox);
        drop(names.write());
    }

    #[test]
    fn a_wrong_order_is_found_without_another_thread() {
        let state = Ranked::new(Rank::Connection, ());
        let names = RankedRw::new(Rank::Names, ());
        let mut held = None;
        let text = refused(|| held = Some(names.read()), || drop(state.lock()));
        assert!(text.contains("Connection is taken while Names is held"), "{text:?}");
        drop(held);
        drop(state.lock());
    }

    /// A writer that waits between the two keeps the second reader out.
    #[test]
    fn names_are_not_read_twice_on_one_thread() {
        let names = RankedRw::new(Rank::Names, ());
        let mut held = None;
        let text = refused(|| held = Some(names.read()), || drop(names.read()));
        assert!(text.contains("Names is taken while Names is held"), "{text:?}");
    }

    #[test]
    fn one_state_at_a_time() {
        let (one, other) = (Ranked::new(Rank::Shard, ()), Ranked::new(Rank::Shard, ()));
        let mut held = None;
        let text = refused(|| held = Some(one.lock()), || drop(other.lock()));
        assert!(text.contains("Shard is taken while Shard is held"), "{text:?}");
    }
}
