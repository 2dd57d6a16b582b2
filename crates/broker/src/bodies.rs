//! Room for bodies that are being received: the bytes that all connections together may have announced and not sent
//! yet.
//!
//! A body takes its whole length when its header comes, before its bytes do. A connection whose body does
//! not fit stands in line and is not read any further until others have finished theirs. The first in the line
//! is served first, however long its body is. A body that is longer than all of the room gets the room when it is
//! empty. So a body that has begun can end, and a body that waits has its turn. Users take turns: a user with many
//! bodies, or with bodies that stand still, makes another user wait for those that have begun, not for those that wait.
//!
//! A connection may have bodies on several channels at once. While it waits for room for one it keeps those it
//! has, and two such connections could wait for each other. The room sees this at once: then every connection that holds room
//! waits. One of them gets the room that it asks for in excess of the limit ([`excess`]). If that is too
//! much, the last one that asked is refused, and its connection ends.
//!
//! A large frame that is needed whole (a table of arguments or of headers) takes its length as well, before
//! the broker knows what its sender may do. So all frames have a part of the room ([`FRAMES`]), and bodies never wait
//! for frames that wait.
//!
//! Letters ([`ToSession::Room`]) tell the connections that waited. The room is a lock of its own that is held for some
//! instructions and in which nothing else is locked.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::message::{ConnectionId, Outbox, ToSession};

/// What bodies may take of the memory watermark: one part of so many.
const PART: u64 = 4;

/// What frames may take of the room: one part of so many.
const FRAMES: u64 = 4;

/// A connection with less than this in unfinished bodies, or in an unfinished frame, needs no room: 16 KiB, twice what it takes anyway.
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
    /// Mirror of [`Inner::bodies`].
    waiting: AtomicU64,
    /// Mirror of the length of the rest of the line.
    frames_waiting: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Bytes granted and not given back.
    taken: u64,
    /// Of these, bytes of connections that wait for more.
    held_waiting: u64,
    /// Of those that are taken, bytes of frames.
    frames: u64,
    /// How many in front of the line want room for a body; those behind them for a frame.
    bodies: usize,
    line: VecDeque<Waiter>,
    /// The turn of the last that was first in the line of bodies, and in that of frames.
    rounds: [u64; 2],
}

/// What room is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// A body; a request or an answer, in the room of these.
    #[default]
    Body,
    /// A frame that is needed whole.
    Frame,
}

/// Who asks, and with what.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// Who is told.
    pub connection: ConnectionId,
    /// The answer has it, as one that was withdrawn may be answered late.
    pub number: u64,
    /// The user of the connection: users take turns.
    pub user: &'a str,
    /// Bytes of room that it has, of both kinds.
    pub holds: u64,
}

#[derive(Debug)]
struct Waiter {
    connection: ConnectionId,
    number: u64,
    kind: Kind,
    wants: u64,
    holds: u64,
    user: Box<str>,
    /// In each turn one of each user is served: of those who waited when it began, and of those who came meanwhile.
    turn: u64,
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
            frames_waiting: AtomicU64::new(0),
            inner: Mutex::default(),
        }
    }

    /// Bytes of unfinished bodies, and of an unfinished frame, for which a connection needs no room.
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

    /// Connections in the line for bodies.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Connections in the line for frames.
    pub fn frames_waiting(&self) -> u64 {
        self.frames_waiting.load(Ordering::Relaxed)
    }

    /// A connection asks for `wants` bytes more than it holds. It must not ask again before it was answered, or
    /// withdrew.
    pub fn ask(
        &self,
        question: Question<'_>,
        kind: Kind,
        wants: u64,
        outbox: &mut Outbox,
    ) -> RoomAnswer {
        let Question { connection, number, user, holds } = question;
        let mut inner = self.lock();
        if inner.is_next(kind) && inner.fits(kind, wants, self.limit()) {
            inner.take(kind, wants);
            self.show(&inner);
            return RoomAnswer::Granted;
        }
        let user = user.into();
        inner.line_up(Waiter { connection, number, kind, wants, holds, user, turn: 0 });
        self.serve(&mut inner, outbox);
        RoomAnswer::Waits
    }

    /// Takes so many bytes if there are, and no body waits.
    pub fn take_now(&self, bytes: u64) -> bool {
        let mut inner = self.lock();
        let is_there = inner.is_next(Kind::Body) && inner.fits(Kind::Body, bytes, self.limit());
        if is_there {
            inner.take(Kind::Body, bytes);
            self.show(&inner);
        }
        is_there
    }

    /// A connection that waits for nothing gives back so many bytes.
    pub fn give_back(&self, kind: Kind, bytes: u64, outbox: &mut Outbox) {
        let mut inner = self.lock();
        inner.free(kind, bytes);
        self.serve(&mut inner, outbox);
    }

    /// A connection that asked for `wants` bytes does not want them any more. They may have been granted
    /// or refused meanwhile, by a letter that comes too late. Who hears a refusal gives them back.
    pub fn withdraw(&self, connection: ConnectionId, kind: Kind, wants: u64, outbox: &mut Outbox) {
        let mut inner = self.lock();
        match inner.line.iter().position(|waiter| waiter.connection == connection) {
            Some(at) => drop(inner.leaves(at)),
            None => inner.free(kind, wants),
        }
        self.serve(&mut inner, outbox);
    }

    fn serve(&self, inner: &mut Inner, outbox: &mut Outbox) {
        let limit = self.limit();
        while let Some(first) = inner.line.front() {
            let (at, is_granted) = if inner.fits_waiter(first, limit) {
                (0, true)
            } else if inner.taken > inner.held_waiting {
                // A connection holds room and goes on: what it gives back will do.
                break;
            } else if let Some(at) = inner.first_within(limit.saturating_add(excess(limit))) {
                (at, true)
            } else if let Some(at) = inner.line.iter().rposition(|waiter| waiter.holds > 0) {
                (at, false)
            } else {
                break;
            };
            let Some(waiter) = inner.leaves(at) else { break };
            if at == 0 {
                inner.rounds[waiter.kind as usize] = waiter.turn;
            }
            // What is refused counts until the answer is heard, as a grant does: who withdraws meanwhile knows neither.
            inner.take(waiter.kind, waiter.wants);
            let number = waiter.number;
            outbox.session(waiter.connection, ToSession::Room { number, is_granted });
            if !is_granted {
                break;
            }
        }
        self.show(inner);
    }

    fn show(&self, inner: &Inner) {
        self.taken.store(inner.taken, Ordering::Relaxed);
        self.waiting.store(inner.bodies as u64, Ordering::Relaxed);
        self.frames_waiting.store((inner.line.len() - inner.bodies) as u64, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Whether nobody waits who would be served before.
    fn is_next(&self, kind: Kind) -> bool {
        match kind {
            Kind::Body => self.bodies == 0,
            Kind::Frame => self.line.is_empty(),
        }
    }

    /// Whether there is room for so many bytes. Where there is no body there is for any: those that hold room for the
    /// frame that their header came in wait for that for their body.
    fn fits(&self, kind: Kind, wants: u64, limit: u64) -> bool {
        let (others, has_part) = match kind {
            Kind::Body => (self.taken - self.frames, true),
            Kind::Frame => {
                let frames = self.frames.saturating_add(wants);
                (self.taken, self.frames == 0 || frames <= limit / FRAMES)
            }
        };
        has_part && (others == 0 || self.taken.saturating_add(wants) <= limit)
    }

    fn fits_waiter(&self, waiter: &Waiter, limit: u64) -> bool {
        self.fits(waiter.kind, waiter.wants, limit)
    }

    fn first_within(&self, limit: u64) -> Option<usize> {
        self.line.iter().position(|waiter| self.fits_waiter(waiter, limit))
    }

    fn take(&mut self, kind: Kind, bytes: u64) {
        self.taken = self.taken.saturating_add(bytes);
        if kind == Kind::Frame {
            self.frames = self.frames.saturating_add(bytes);
        }
    }

    fn free(&mut self, kind: Kind, bytes: u64) {
        self.taken = self.taken.saturating_sub(bytes);
        if kind == Kind::Frame {
            self.frames = self.frames.saturating_sub(bytes);
        }
        self.frames = self.frames.min(self.taken);
    }

    /// Bodies stand before frames, and both by their turn.
    fn line_up(&mut self, mut waiter: Waiter) {
        self.held_waiting += waiter.holds;
        let (begin, end) = match waiter.kind {
            Kind::Body => (0, self.bodies),
            Kind::Frame => (self.bodies, self.line.len()),
        };
        let round = self.rounds[waiter.kind as usize];
        let last = self.line.range(begin..end).rfind(|other| other.user == waiter.user);
        waiter.turn = last.map_or(round, |last| round.max(last.turn + 1));
        let before = self.line.range(begin..end).rposition(|other| other.turn <= waiter.turn);
        self.bodies += usize::from(waiter.kind == Kind::Body);
        self.line.insert(before.map_or(begin, |before| begin + before + 1), waiter);
    }

    fn leaves(&mut self, at: usize) -> Option<Waiter> {
        let waiter = self.line.remove(at)?;
        self.held_waiting -= waiter.holds;
        self.bodies -= usize::from(waiter.kind == Kind::Body);
        Some(waiter)
    }
}

#[cfg(test)]
mod tests;
