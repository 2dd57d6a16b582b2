//! Room for bodies that are being received: what all connections together may have announced and not sent
//! yet.
//!
//! A body takes its whole length when its header comes, before its bytes do. A connection whose body does
//! not fit stands in line and is not read any further, until others have ended theirs; the first in the line
//! is served first, however long its body is. A body that is longer than all of the room gets it when it is
//! empty. So whoever has begun can end, and whoever waits comes to the turn.
//!
//! A connection may have bodies on several channels at once. If it waits for another one it holds those it
//! has, and two that do so could wait for each other. This is seen at once: no room is held by a connection
//! that can go on. Then one of them gets what it asks in excess of the room ([`excess`]); if that is too
//! much, the last that came is refused, and its connection ends.
//!
//! Letters ([`ToSession::Room`]) tell those who waited. The room is a lock of its own that is held for some
//! instructions and in which nothing else is locked.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::message::{ConnectionId, Outbox, ToSession};

/// What bodies may take of the memory watermark: one part of so many.
const PART: u64 = 4;

/// A connection with less than this in unfinished bodies needs no room: 16 KiB, twice what it takes anyway.
pub const FREE_BYTES: u64 = 16 << 10;

/// What may be granted for the sake of those who hold room and wait, so that one of them can go on.
const fn excess(limit: u64) -> u64 {
    limit / 2
}

/// The room. Shared by all connections of a node.
#[derive(Debug)]
pub struct BodyRoom {
    /// A connection with no more than this needs none.
    free: u64,
    limit: AtomicU64,
    /// Mirror of [`Inner::taken`].
    taken: AtomicU64,
    /// Mirror of the line's length.
    waiting: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Bytes granted and not given back.
    taken: u64,
    /// Of these, bytes of connections that wait for more.
    held_waiting: u64,
    line: VecDeque<Waiter>,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    connection: ConnectionId,
    number: u64,
    wants: u64,
    holds: u64,
}

/// What became of a request for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoomAnswer {
    /// It is there.
    Granted,
    /// It will be told by a letter.
    Waits,
}

impl Default for BodyRoom {
    /// Without a limit.
    fn default() -> Self {
        Self::new(FREE_BYTES)
    }
}

impl BodyRoom {
    /// Without a limit, for connections with more than `free` bytes of unfinished bodies.
    pub fn new(free: u64) -> Self {
        Self {
            free,
            limit: AtomicU64::new(u64::MAX),
            taken: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            inner: Mutex::default(),
        }
    }

    /// Bytes of unfinished bodies for which a connection needs no room.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// Follows the memory watermark. Those who wait have more of it as soon as anything is given back.
    pub fn set_watermark(&self, bytes: u64) {
        self.limit.store(bytes / PART, Ordering::Relaxed);
    }

    /// Bytes for all bodies together.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Bytes for all bodies of one connection, if it has several.
    pub fn connection_limit(&self) -> u64 {
        self.limit() / 2
    }

    /// Bytes granted.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Connections in the line.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// A connection that holds `holds` bytes asks for `wants` more. It must not ask again before it was answered, or
    /// withdrew. The answer has the number of the question, as one that was withdrawn may be answered late.
    pub fn ask(
        &self,
        (connection, number): (ConnectionId, u64),
        holds: u64,
        wants: u64,
        outbox: &mut Outbox,
    ) -> RoomAnswer {
        let mut inner = self.lock();
        if inner.line.is_empty() && inner.fits(wants, self.limit()) {
            inner.taken += wants;
            self.show(&inner);
            return RoomAnswer::Granted;
        }
        inner.line.push_back(Waiter { connection, number, wants, holds });
        inner.held_waiting += holds;
        self.serve(&mut inner, outbox);
        RoomAnswer::Waits
    }

    /// Takes so many bytes if there are, and no one waits.
    pub fn take_now(&self, bytes: u64) -> bool {
        let mut inner = self.lock();
        let is_there = inner.line.is_empty() && inner.fits(bytes, self.limit());
        if is_there {
            inner.taken += bytes;
            self.show(&inner);
        }
        is_there
    }

    /// A connection that waits for nothing gives back so many bytes.
    pub fn give_back(&self, bytes: u64, outbox: &mut Outbox) {
        let mut inner = self.lock();
        inner.taken = inner.taken.saturating_sub(bytes);
        self.serve(&mut inner, outbox);
    }

    /// A connection that asked for `wants` bytes does not want them any more. They may have been granted
    /// or refused meanwhile, by a letter that comes too late. Who hears a refusal gives them back.
    pub fn withdraw(&self, connection: ConnectionId, wants: u64, outbox: &mut Outbox) {
        let mut inner = self.lock();
        match inner.line.iter().position(|waiter| waiter.connection == connection) {
            Some(at) => inner.leaves(at),
            None => inner.taken = inner.taken.saturating_sub(wants),
        }
        self.serve(&mut inner, outbox);
    }

    fn serve(&self, inner: &mut Inner, outbox: &mut Outbox) {
        let limit = self.limit();
        while let Some(first) = inner.line.front() {
            let at = if inner.fits(first.wants, limit) {
                0
            } else if inner.taken > inner.held_waiting {
                // A connection holds room and goes on: what it gives back will do.
                break;
            } else if let Some(at) = inner.first_within(limit.saturating_add(excess(limit))) {
                at
            } else {
                let Some(at) = inner.line.iter().rposition(|waiter| waiter.holds > 0) else {
                    break;
                };
                let Waiter { connection, number, wants, .. } = inner.line[at];
                inner.leaves(at);
                // It counts until the answer is heard, as a grant does: who withdraws meanwhile knows neither.
                inner.taken = inner.taken.saturating_add(wants);
                outbox.session(connection, ToSession::Room { number, is_granted: false });
                break;
            };
            let Waiter { connection, number, wants, .. } = inner.line[at];
            inner.leaves(at);
            inner.taken += wants;
            outbox.session(connection, ToSession::Room { number, is_granted: true });
        }
        self.show(inner);
    }

    fn show(&self, inner: &Inner) {
        self.taken.store(inner.taken, Ordering::Relaxed);
        self.waiting.store(inner.line.len() as u64, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Whether there is room for so many bytes; in an empty room there is for any.
    fn fits(&self, wants: u64, limit: u64) -> bool {
        self.taken == 0 || self.taken.saturating_add(wants) <= limit
    }

    fn first_within(&self, limit: u64) -> Option<usize> {
        self.line.iter().position(|waiter| self.fits(waiter.wants, limit))
    }

    fn leaves(&mut self, at: usize) {
        if let Some(waiter) = self.line.remove(at) {
            self.held_waiting -= waiter.holds;
        }
    }
}

#[cfg(test)]
mod tests;
