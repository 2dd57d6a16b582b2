//! Room for bodies that are being received: the bytes that all connections together may have announced and not sent
//! yet.
//!
//! A body takes its whole length when its header comes, before its bytes do. A connection whose body does
//! not fit stands in line and is not read any further until others have finished theirs. A body that is longer than all of the
//! room gets the room when nobody else has any. So a body that has begun can end, and a body that waits has its turn.
//!
//! Users have shares. A user who holds room gets more of it while that makes no more than [`SHARE`] times what is left for others. So
//! a user alone has two thirds of all, which is the limit, and who holds nothing finds a third of what others left, whether those who
//! have it go on or stand still. Who holds nothing is served in turn, however long the body is: nobody passes him. Who waits for its own
//! share keeps nobody waiting but those of the same user, so that the user comes to hold nothing and has a turn.
//!
//! A connection may have bodies on several channels at once. While it waits for room for one it keeps those it
//! has, and two such connections could wait for each other. The room sees this at once: then every connection of the user that holds
//! room of a kind waits. One of them gets more than the share ([`SHARE_IF_ALL_WAIT`]). If that is too much, and nobody who holds
//! room of the kind will give it back, the last one that asked is refused, and its connection ends.
//!
//! So a long body may wait for long, and keep others waiting. Bodies of connections that have little in all ([`BodyRoom::small`])
//! have a room of their own, with lines and shares of its own: they never wait for long bodies, whether those wait or stand still.
//!
//! A large frame that is needed whole (a table of arguments or of headers) takes its length as well, before
//! the broker knows what its sender may do. So all frames have a third room, and neither bodies nor frames wait for the other.
//!
//! Letters ([`ToSession::Room`]) tell the connections that waited. The room is a lock of its own that is held for some
//! instructions and in which nothing else is locked.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::message::{ConnectionId, Outbox, ToSession};

/// What bodies of one user may take of the memory watermark: one part of so many.
const PART: u64 = 4;

/// The rooms for small bodies and for frames, beside that for bodies: each is one part of it of so many.
const OTHERS: u64 = 4;

/// Bodies of a connection are small together if they are one part of the limit of so many, and no more than [`SMALL_BYTES_MAX`].
const SMALL: u64 = 64;

/// Longer bodies are never small: 1 MiB.
const SMALL_BYTES_MAX: u64 = 1 << 20;

/// A connection with less than this in unfinished bodies, or in an unfinished frame, needs no room: 16 KiB, twice what it takes anyway.
pub const FREE_BYTES: u64 = 16 << 10;

/// A user may hold so many times what it leaves to others. Two thirds of all room are the limit for one user.
const SHARE: u64 = 2;

/// The same for a user none of whose connections with room can go on.
const SHARE_IF_ALL_WAIT: u64 = 8;

/// Users of whom something is kept while they have and want nothing: who sends one body after the other is not forgotten between.
const IDLE_USERS: usize = 64;

/// What there is beside the limit: for other users, and for those who hold room and wait, so that one of them can go on.
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
    /// Bodies that wait, small or not.
    waiting: AtomicU64,
    /// Frames that wait.
    frames_waiting: AtomicU64,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Bytes granted and not given back, by [`Kind`].
    taken: Kinds,
    /// Of these, bytes of connections that wait for more: by the kind that they wait for, and the one that they hold.
    held_waiting: [Kinds; KINDS.len()],
    users: BTreeMap<Arc<str>, User>,
    /// The users that wait, each at the place of the first of its connections, by [`Kind`].
    lines: [BTreeMap<RoundOrder, Arc<str>>; KINDS.len()],
    /// How many connections wait.
    waiting: Kinds,
    /// The last turn that was served.
    rounds: Kinds,
    /// How many came to wait.
    came: u64,
}

/// What one user has and wants, by [`Kind`].
#[derive(Debug, Default)]
struct User {
    /// Bytes granted and not given back.
    held: Kinds,
    /// Of these, bytes of connections that wait for more, of any kind.
    held_waiting: Kinds,
    waiting: [VecDeque<Waiter>; KINDS.len()],
}

/// A turn, and who came when. In each turn one of each user is served: of those who waited when it began, and of those who came
/// meanwhile.
type RoundOrder = (u64, u64);

/// What becomes of one that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Fits,
    /// It waits for others of the same user.
    OverShare,
    /// Others wait behind it.
    NoRoom,
}

/// What room is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// A body; a request or an answer, in the room of these.
    #[default]
    Body,
    /// Bodies of a connection that are [small](BodyRoom::small) together.
    Small,
    /// A frame that is needed whole.
    Frame,
}

/// All kinds, in the order in which they are served.
pub const KINDS: [Kind; 3] = [Kind::Body, Kind::Small, Kind::Frame];

/// A number for each kind.
pub type Kinds = [u64; KINDS.len()];

/// Who asks, and with what.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// Who is told.
    pub connection: ConnectionId,
    /// The answer has it, as one that was withdrawn may be answered late.
    pub number: u64,
    /// The user of the connection: users take turns, and have shares.
    pub user: &'a str,
    /// Bytes of room that it has.
    pub holds: Kinds,
}

#[derive(Debug)]
struct Waiter {
    connection: ConnectionId,
    number: u64,
    wants: u64,
    holds: Kinds,
    place: RoundOrder,
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

    /// Bytes for all bodies of one user; half as many more are for others.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Bytes of all bodies of a connection that are small together, at most: they have a room of their own.
    pub fn small(&self) -> u64 {
        (self.limit() / SMALL).min(SMALL_BYTES_MAX)
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

    /// Whether a connection of this user, with so much room, keeps others waiting: of the same user, or who have nothing.
    pub fn is_awaited(&self, user: &str, granted: Kinds) -> bool {
        if granted == Kinds::default() || self.waiting() + self.frames_waiting() == 0 {
            return false;
        }
        let inner = self.lock();
        KINDS.into_iter().any(|kind| granted[kind as usize] > 0 && inner.awaits(kind, user))
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
        let name = inner.name_of(user);
        if inner.is_next(kind)
            && inner.judge(&name, kind, (holds, wants), self.all()) == Verdict::Fits
        {
            inner.take(&name, kind, wants);
            self.show(&inner);
            return RoomAnswer::Granted;
        }
        inner.line_up(&name, kind, Waiter { connection, number, wants, holds, place: (0, 0) });
        self.serve(&mut inner, outbox);
        RoomAnswer::Waits
    }

    /// Takes so many bytes for this user if there are, and no body waits.
    pub fn take_now(&self, user: &str, bytes: u64) -> bool {
        let mut inner = self.lock();
        let name = inner.name_of(user);
        let is_there = inner.is_next(Kind::Body)
            && inner.judge(&name, Kind::Body, (Kinds::default(), bytes), self.all())
                == Verdict::Fits;
        if is_there {
            inner.take(&name, Kind::Body, bytes);
            self.show(&inner);
        } else {
            inner.forget_idle(&name);
        }
        is_there
    }

    /// A connection of this user that waits for nothing gives back so many bytes.
    pub fn give_back(&self, user: &str, kind: Kind, bytes: u64, outbox: &mut Outbox) {
        let mut inner = self.lock();
        inner.free(user, kind, bytes);
        self.serve(&mut inner, outbox);
    }

    /// A connection of this user that asked for `wants` bytes does not want them any more. They may have been granted
    /// or refused meanwhile, by a letter that comes too late. Who hears a refusal gives them back.
    pub fn withdraw(
        &self,
        connection: ConnectionId,
        user: &str,
        kind: Kind,
        wants: u64,
        outbox: &mut Outbox,
    ) {
        let mut inner = self.lock();
        match inner.place_of(connection, user, kind) {
            Some(at) => drop(inner.leaves(user, kind, at)),
            None => inner.free(user, kind, wants),
        }
        inner.forget_idle(user);
        self.serve(&mut inner, outbox);
    }

    /// What all users together may take.
    fn all(&self) -> u64 {
        let limit = self.limit();
        limit.saturating_add(excess(limit))
    }

    fn serve(&self, inner: &mut Inner, outbox: &mut Outbox) {
        while let Some((name, kind, at, is_granted)) = self.next(inner) {
            let Some(waiter) = inner.leaves(&name, kind, at) else { break };
            // What is refused counts until the answer is heard, as a grant does: who withdraws meanwhile knows neither.
            inner.take(&name, kind, waiter.wants);
            let number = waiter.number;
            outbox.session(waiter.connection, ToSession::Room { number, is_granted });
            if !is_granted {
                break;
            }
        }
        self.show(inner);
    }

    /// Who is answered next: the user, the kind, the connection's place among those of the user, and whether it gets room.
    fn next(&self, inner: &mut Inner) -> Option<(Arc<str>, Kind, usize, bool)> {
        let all = self.all();
        for kind in KINDS {
            if let Some((place, name)) = inner.first(kind, all, false) {
                let round = &mut inner.rounds[kind as usize];
                *round = place.0.max(*round);
                return Some((name, kind, 0, true));
            }
        }
        // Where a connection that holds room goes on, what it gives back will do.
        let goes_on = inner.goes_on();
        let is_stuck = |kind: &Kind| !goes_on[*kind as usize] && !inner.is_next(*kind);
        KINDS.into_iter().filter(is_stuck).find_map(|kind| {
            if let Some((_, name)) = inner.first(kind, all, true) {
                return Some((name, kind, 0, true));
            }
            let (name, line, at) = inner.last_with_room(kind)?;
            Some((name, line, at, false))
        })
    }

    fn show(&self, inner: &Inner) {
        let [bodies, small, frames] = inner.waiting;
        self.taken.store(inner.taken.iter().sum(), Ordering::Relaxed);
        self.waiting.store(bodies + small, Ordering::Relaxed);
        self.frames_waiting.store(frames, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// The name as a key. The user has an entry from now on.
    fn name_of(&mut self, user: &str) -> Arc<str> {
        if let Some((name, _)) = self.users.get_key_value(user) {
            return Arc::clone(name);
        }
        let name: Arc<str> = user.into();
        self.users.insert(Arc::clone(&name), User::default());
        name
    }

    fn forget_idle(&mut self, user: &str) {
        if self.users.len() > IDLE_USERS && self.users.get(user).is_some_and(User::is_idle) {
            self.users.remove(user);
        }
    }

    /// Whether nobody waits who may be served before.
    fn is_next(&self, kind: Kind) -> bool {
        self.waiting[kind as usize] == 0
    }

    /// Of which kinds some room will be given back: a connection that holds it does not wait, or waits for room of such a kind.
    fn goes_on(&self) -> [bool; KINDS.len()] {
        let mut goes_on = KINDS.map(|kind| {
            let waiting: u64 = self.held_waiting.iter().map(|held| held[kind as usize]).sum();
            self.taken[kind as usize] > waiting
        });
        for _ in KINDS {
            goes_on = KINDS.map(|kind| {
                let mut lines = self.held_waiting.iter().zip(goes_on);
                let by_others = lines.any(|(held, goes_on)| goes_on && held[kind as usize] > 0);
                goes_on[kind as usize] || by_others
            });
        }
        goes_on
    }

    /// Whether some wait who would be helped by room of this user.
    fn awaits(&self, kind: Kind, user: &str) -> bool {
        self.lines[kind as usize].values().any(|name| {
            **name == *user || self.users.get(name).is_some_and(|it| it.held[kind as usize] == 0)
        })
    }

    /// Whether there is room for so many bytes more than a connection holds. Where there is nothing else there is room for any.
    fn judge(&self, name: &str, kind: Kind, (holds, wants): (Kinds, u64), all: u64) -> Verdict {
        let at = kind as usize;
        if self.taken[at] <= holds[at] {
            return Verdict::Fits;
        }
        let all = if kind == Kind::Body { all } else { all / OTHERS };
        let left = all.checked_sub(self.taken[at].saturating_add(wants));
        match self.users.get(name).filter(|user| user.held[at] > 0) {
            Some(user) => {
                let share = if user.all_wait(kind) { SHARE_IF_ALL_WAIT } else { SHARE };
                let would_have = user.held[at].saturating_add(wants);
                let is_within = left.is_some_and(|left| would_have <= left.saturating_mul(share));
                if is_within { Verdict::Fits } else { Verdict::OverShare }
            }
            None if left.is_some() => Verdict::Fits,
            None => Verdict::NoRoom,
        }
    }

    /// The first that gets room. Nobody passes one for whom there is none, unless nobody goes on.
    fn first(&self, kind: Kind, all: u64, nobody_goes_on: bool) -> Option<(RoundOrder, Arc<str>)> {
        for (&place, name) in &self.lines[kind as usize] {
            let first = self.users.get(name).and_then(|user| user.waiting[kind as usize].front());
            let Some(waiter) = first else { continue };
            match self.judge(name, kind, (waiter.holds, waiter.wants), all) {
                Verdict::Fits => return Some((place, Arc::clone(name))),
                Verdict::NoRoom if !nobody_goes_on => return None,
                Verdict::NoRoom | Verdict::OverShare => {}
            }
        }
        None
    }

    /// Who came last of those that hold room of this kind and wait, and in which line; for frames rather than for bodies.
    fn last_with_room(&self, kind: Kind) -> Option<(Arc<str>, Kind, usize)> {
        KINDS.into_iter().rev().find_map(|line| {
            let users = self.lines[line as usize].values();
            let last = users.filter_map(|name| {
                let waiting = &self.users.get(name)?.waiting[line as usize];
                let at = waiting.iter().rposition(|waiter| waiter.holds[kind as usize] > 0)?;
                Some((waiting.get(at)?.place, name, at))
            });
            last.max_by_key(|(place, ..)| *place).map(|(_, name, at)| (Arc::clone(name), line, at))
        })
    }

    fn take(&mut self, name: &Arc<str>, kind: Kind, bytes: u64) {
        let user = self.users.entry(Arc::clone(name)).or_default();
        for all in [&mut self.taken, &mut user.held] {
            all[kind as usize] = all[kind as usize].saturating_add(bytes);
        }
    }

    fn free(&mut self, name: &str, kind: Kind, bytes: u64) {
        let user = self.users.get_mut(name);
        for all in [Some(&mut self.taken), user.map(|user| &mut user.held)].into_iter().flatten() {
            all[kind as usize] = all[kind as usize].saturating_sub(bytes);
        }
        self.forget_idle(name);
    }

    fn line_up(&mut self, name: &Arc<str>, kind: Kind, mut waiter: Waiter) {
        let kind = kind as usize;
        add(&mut self.held_waiting[kind], waiter.holds);
        self.waiting[kind] += 1;
        self.came += 1;
        let user = self.users.entry(Arc::clone(name)).or_default();
        add(&mut user.held_waiting, waiter.holds);
        let round = self.rounds[kind];
        let turn = user.waiting[kind].back().map_or(round, |last| round.max(last.place.0 + 1));
        waiter.place = (turn, self.came);
        if user.waiting[kind].is_empty() {
            self.lines[kind].insert(waiter.place, Arc::clone(name));
        }
        user.waiting[kind].push_back(waiter);
    }

    fn place_of(&self, connection: ConnectionId, user: &str, kind: Kind) -> Option<usize> {
        let waiting = &self.users.get(user)?.waiting[kind as usize];
        waiting.iter().position(|waiter| waiter.connection == connection)
    }

    fn leaves(&mut self, name: &str, kind: Kind, at: usize) -> Option<Waiter> {
        let kind = kind as usize;
        let user = self.users.get_mut(name)?;
        let waiter = user.waiting[kind].remove(at)?;
        subtract(&mut self.held_waiting[kind], waiter.holds);
        subtract(&mut user.held_waiting, waiter.holds);
        self.waiting[kind] -= 1;
        if at == 0
            && let Some(key) = self.lines[kind].remove(&waiter.place)
            && let Some(next) = user.waiting[kind].front()
        {
            self.lines[kind].insert(next.place, key);
        }
        Some(waiter)
    }
}

impl User {
    /// Whether none of its connections with room of this kind goes on.
    fn all_wait(&self, kind: Kind) -> bool {
        self.held[kind as usize] <= self.held_waiting[kind as usize]
    }

    fn is_idle(&self) -> bool {
        self.held == Kinds::default() && self.waiting.iter().all(VecDeque::is_empty)
    }
}

fn add(to: &mut Kinds, more: Kinds) {
    to.iter_mut().zip(more).for_each(|(it, more)| *it += more);
}

fn subtract(from: &mut Kinds, less: Kinds) {
    from.iter_mut().zip(less).for_each(|(it, less)| *it -= less);
}

#[cfg(test)]
mod tests;
