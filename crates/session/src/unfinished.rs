//! Bodies and frames that the connection has begun and not finished: the room that they take, and whether they move.
//!
//! A body claims its whole length once its header has come and its first read is over. A claim above a small size needs
//! room ([`BodyRoom`](leveret_broker::bodies::BodyRoom)). A connection that waits for room is not read. A connection that has
//! room is read, alarm or not, until no body is unfinished.
//!
//! Bodies of a connection that are small together have room of their own. With the body that makes them large all of them move to
//! the room for large ones, and stay there until the connection has none.
//!
//! A frame that is needed whole claims its length, too, once its header has come without all of the rest: every client that
//! may log in may send one. If the frame was the header of a body, it keeps its room until the body has its own. So the
//! connections that wait for a body's room hold little without room.
//!
//! A body, and a frame that is needed whole, has to move. The session looks at it once in each
//! [`unfinished_timeout_ms`](crate::Settings::unfinished_timeout_ms). The connection ends if one of them has grown by less than
//! [`LEAST_PER_S`] meanwhile. If other connections wait for its room that is [`LEAST_PER_S_IF_AWAITED`], and for a long body the
//! part of it that lets it end within [`LOOKS_IF_AWAITED`] looks: one that has most of the room gives it back in time. During a
//! memory alarm a connection also ends if its client took nothing of its output meanwhile: the alarm could not end because of it.
//! So does a connection whose transactions are open at two looks in a row, with the alarm, if less than half of what they kept
//! has ended meanwhile: what it publishes waits for the end of the alarm, so it cannot be committed, and what it keeps may be
//! what keeps the alarm up.

use leveret_broker::bodies::{BodyRoom, KINDS, Kind, Kinds, Question, RoomAnswer};
use leveret_queue::Time;

use crate::channel::content::Stake;
use crate::core::{Context, Core};
use crate::reply::{self, Fault};
use crate::session::Session;

/// Bytes a second that a body moves by, at least.
const LEAST_PER_S: u64 = 1 << 10;

/// The same while others wait for the room that it takes.
const LEAST_PER_S_IF_AWAITED: u64 = 16 << 10;

/// A body whose room others wait for ends within so many looks, however long it is.
const LOOKS_IF_AWAITED: u64 = 10;

/// What belongs to the connection of all this.
#[derive(Debug, Default)]
pub(crate) struct Unfinished {
    /// Contents that wait for more, but for the one in the read at hand.
    contents: u32,
    /// What they keep and will keep.
    stake: Stake,
    /// The length of the frame of which a part was left, if it is needed whole.
    frame: u64,
    /// Bytes of that part.
    frame_part: u64,
    /// Room that the connection has, by [`Kind`].
    granted: Kinds,
    /// Room that it stands in line for, and is not read meanwhile.
    asked: u64,
    asked_for: Kind,
    /// How often it asked.
    asks: u64,
    /// Bytes that were read of a body into memory of its own, and not taken yet.
    pub(crate) heard: u64,
    /// Bytes of a frame that were there when it was last looked whether it moves, and all bytes taken until then.
    mark: Option<(usize, u64)>,
    /// Bytes taken of the input.
    pub(crate) taken: u64,
    /// Since when nothing is read, if nothing is.
    held_from: Option<Time>,
    /// How long nothing was read since the last look, in ms.
    held_ms: u64,
    /// Bytes of transactions that were committed, rolled back or given up.
    pub(crate) tx_ended: u64,
    /// The same at the last look, and what open ones kept then, if it found some during a memory alarm.
    tx_open: Option<(u64, u64)>,
    /// Since the last look the socket took something.
    pub(crate) has_written: bool,
}

impl Unfinished {
    /// A content keeps, and claims, something else than it did.
    #[inline]
    pub(crate) fn change(&mut self, before: Stake, after: Stake) {
        if before != after {
            self.stake.kept =
                self.stake.kept.saturating_add(after.kept).saturating_sub(before.kept);
            self.stake.claimed =
                self.stake.claimed.saturating_add(after.claimed).saturating_sub(before.claimed);
            // Whatever is kept has names.
            let (was, is) = (before.kept > 0, after.kept > 0);
            self.contents = (self.contents + u32::from(is)).saturating_sub(u32::from(was));
        }
    }

    /// Whether a content waits for more.
    pub(crate) fn is_some(&self) -> bool {
        self.contents > 0
    }

    /// Whether room is waited for.
    pub(crate) fn waits(&self) -> bool {
        self.asked > 0
    }

    /// The frame that the last input ended in: its length and how much of it there is, nothing if it ended with one.
    #[inline]
    pub(crate) fn ends_in_frame(&mut self, len: usize, part: usize) {
        (self.frame, self.frame_part) = (len as u64, part as u64);
    }

    /// Bytes that count as held, but for input that was left: all that was granted, as it may come at any time.
    pub(crate) fn held(&self) -> u64 {
        (self.stake.kept + self.frame_part).max(self.has_room()) - self.frame_part
    }

    /// Room that the connection has.
    fn has_room(&self) -> u64 {
        self.granted.iter().sum()
    }

    /// Whether it has no room, and may want some: it is read from a little at a time while there is none.
    pub(crate) fn is_without_room(&self) -> bool {
        self.has_room() == 0
    }

    /// Whether the session reads, now.
    #[inline]
    pub(crate) fn reads(&mut self, is_read: bool, now: Time) {
        if is_read == self.held_from.is_some() {
            let from = self.held_from.take();
            self.held_ms += from.map_or(0, |from| now.ms().saturating_sub(from.ms()));
            self.held_from = (!is_read).then_some(now);
        }
    }

    /// Room that it should have.
    fn needs(&self, kind: Kind, room: &BodyRoom) -> u64 {
        let claimed = match kind {
            Kind::Frame => self.frame,
            Kind::Small if self.is_small(room) => self.stake.claimed,
            Kind::Body if !self.is_small(room) => self.stake.claimed,
            Kind::Body | Kind::Small => 0,
        };
        if claimed > room.free() { claimed } else { 0 }
    }

    /// Whether the bodies have, or are to have, room of the small ones.
    fn is_small(&self, room: &BodyRoom) -> bool {
        self.granted[Kind::Body as usize] == 0 && self.stake.claimed <= room.small()
    }

    /// Room that it should have and has not.
    fn lacks(&self, kind: Kind, room: &BodyRoom) -> u64 {
        self.needs(kind, room).saturating_sub(self.granted[kind as usize])
    }
}

impl Core {
    /// Gives back the room that is not needed any more.
    #[inline]
    pub(crate) fn give_room_back(&mut self, cx: &mut Context<'_>) {
        let (unfinished, room) = (&self.unfinished, &self.settings.bodies);
        let needs = KINDS.map(|kind| unfinished.needs(kind, room)).iter().sum();
        if unfinished.has_room() + unfinished.asked > needs {
            self.give_back_now(cx);
        }
    }

    /// A look at the transactions: the fault of a connection that has to end because of one.
    fn ends_transaction(&mut self) -> Option<Fault> {
        let is_open = self.alarm.memory && self.kept > self.settings.bodies.free();
        let ended = self.unfinished.tx_ended;
        let open = is_open.then_some((ended, self.kept));
        let (ended_before, kept_before) = std::mem::replace(&mut self.unfinished.tx_open, open)?;
        // Small ones that end do not excuse a large one that stays.
        let is_moving = ended.saturating_sub(ended_before) >= kept_before / 2;
        if !is_open || is_moving {
            return None;
        }
        let timeout_ms = self.settings.unfinished_timeout_ms;
        tracing::warn!(
            from = &*self.identity.user,
            peer = self.peer.address,
            user = &*self.identity.user,
            bytes = self.kept,
            timeout_ms,
            "connection is closed: memory is low, and its transaction is not committed"
        );
        Some(reply::not_committed(self.kept, timeout_ms))
    }

    /// Room is not waited for any more, though it is needed.
    pub(crate) fn leave_line(&mut self, cx: &mut Context<'_>) {
        let asked = std::mem::take(&mut self.unfinished.asked);
        if asked > 0 {
            let kind = self.unfinished.asked_for;
            let user = &self.identity.user;
            self.settings.bodies.withdraw(self.id, user, kind, asked, cx.outbox);
        }
    }

    #[cold]
    fn give_back_now(&mut self, cx: &mut Context<'_>) {
        if self.unfinished.lacks(self.unfinished.asked_for, &self.settings.bodies) == 0 {
            self.leave_line(cx);
        }
        let (unfinished, room) = (&mut self.unfinished, &self.settings.bodies);
        if unfinished.asked > 0 {
            return;
        }
        for kind in KINDS {
            let needs = unfinished.needs(kind, room);
            let granted = &mut unfinished.granted[kind as usize];
            if *granted > needs {
                room.give_back(&self.identity.user, kind, *granted - needs, cx.outbox);
                *granted = needs;
            }
        }
    }
}

impl Session {
    /// Asks for room if more is needed than there is.
    #[inline]
    pub(crate) fn take_room(&mut self, cx: &mut Context<'_>) {
        let (unfinished, room) = (&self.core.unfinished, &self.core.settings.bodies);
        if unfinished.asked == 0
            && let Some(kind) = KINDS.into_iter().find(|&kind| unfinished.lacks(kind, room) > 0)
        {
            self.ask_for_room(kind, cx);
        }
    }

    #[cold]
    fn ask_for_room(&mut self, kind: Kind, cx: &mut Context<'_>) {
        let core = &mut self.core;
        if core.peer_closed {
            // What is read is no more than lies in the socket.
            return;
        }
        let (unfinished, room) = (&mut core.unfinished, &core.settings.bodies);
        if unfinished.contents > 1 && unfinished.stake.claimed > room.connection_limit() {
            return self.no_room(cx);
        }
        let wants = unfinished.lacks(kind, room);
        unfinished.asks += 1;
        let question = Question {
            connection: core.id,
            number: unfinished.asks,
            user: &core.identity.user,
            holds: unfinished.granted,
        };
        match room.ask(question, kind, wants, cx.outbox) {
            RoomAnswer::Granted => {
                unfinished.granted[kind as usize] += wants;
                self.take_room(cx);
            }
            RoomAnswer::Waits => (unfinished.asked, unfinished.asked_for) = (wants, kind),
        }
    }

    /// The answer to what was asked for.
    #[cold]
    pub(crate) fn room(&mut self, number: u64, is_granted: bool, cx: &mut Context<'_>) {
        let unfinished = &mut self.core.unfinished;
        if number != unfinished.asks {
            return;
        }
        let (asked, kind) = (std::mem::take(&mut unfinished.asked), unfinished.asked_for);
        match is_granted {
            true => unfinished.granted[kind as usize] += asked,
            false if asked > 0 => {
                let core = &self.core;
                core.settings.bodies.give_back(&core.identity.user, kind, asked, cx.outbox);
                self.no_room(cx);
            }
            false => {}
        }
        self.take_room(cx);
    }

    fn no_room(&mut self, cx: &mut Context<'_>) {
        let core = &self.core;
        let (contents, claimed) = (core.unfinished.contents, core.unfinished.stake.claimed);
        let limit = core.settings.bodies.connection_limit();
        tracing::warn!(
            from = &*core.identity.user,
            peer = core.peer.address,
            user = &*core.identity.user,
            bodies = contents,
            bytes = claimed,
            limit,
            "connection is closed: it has begun too many bodies at once"
        );
        self.fail(0, (60, 40), &reply::too_much_unfinished(contents, claimed, limit), cx);
    }

    /// Has it looked after whether what is unfinished moves, if anything is.
    #[inline]
    pub(crate) fn watch_unfinished(&mut self, cx: &Context<'_>) {
        let core = &mut self.core;
        if core.unfinished.is_some() || core.left_len > 0 || core.out_len > 0 || core.kept > 0 {
            core.timers.watch_unfinished(core.settings.unfinished_timeout_ms, cx.now);
        }
    }

    /// The time is up after which everything unfinished has come forward.
    pub(crate) fn check_unfinished(&mut self, cx: &mut Context<'_>) {
        let is_read = self.wants_input();
        let core = &mut self.core;
        // Output waits for its client for as long as the client likes, but for memory.
        let is_taken = std::mem::take(&mut core.unfinished.has_written);
        if core.out_len > 0 && !is_taken && core.alarm.memory {
            let bytes = core.out_len;
            let why = format_args!("memory is low, and the client does not read {bytes} bytes");
            core.say_lost(why, cx.now);
            return self.give_up(cx);
        }
        let timeout_ms = core.settings.unfinished_timeout_ms;
        if let Some(fault) = core.ends_transaction() {
            return self.fail(0, (60, 40), &fault, cx);
        }
        let (room, granted) = (&core.settings.bodies, core.unfinished.granted);
        let is_awaited = room.is_awaited(&core.identity.user, granted);
        let per_s = if is_awaited { LEAST_PER_S_IF_AWAITED } else { LEAST_PER_S };
        let least = (per_s * timeout_ms / 1000).max(1);
        let least_of = |size| if is_awaited { least.max(size / LOOKS_IF_AWAITED) } else { least };
        // Who is not read cannot show that it moves. It may keep its room from others for as long, and no longer.
        core.unfinished.reads(is_read, cx.now);
        let held_ms = std::mem::take(&mut core.unfinished.held_ms);
        let was_held = !is_read || held_ms >= timeout_ms / 2;
        let reads_nothing = core.out_len as u64 > core.settings.output_bytes_max;
        let is_excused = was_held && !(is_awaited && (core.is_blocked || reads_nothing));
        let reads_into = core.decoder.body_rest().map_or(0, |(number, _)| number);
        let mut still = None;
        for channel in self.channels.iter_mut() {
            let more = if channel.number == reads_into { core.unfinished.heard } else { 0 };
            let least = least_of(channel.content.size());
            if channel.content.stands_still(least, more) {
                let content = &channel.content;
                still = Some((channel.number, content.received() + more, content.size(), least));
            }
        }
        let now = (core.left_len, core.unfinished.taken);
        let before = core.unfinished.mark.replace(now);
        if !core.unfinished.is_some() && core.left_len > 0 {
            let is_same = |(_, taken): &(usize, u64)| *taken == core.unfinished.taken;
            if let Some((len, _)) = before.filter(is_same)
                && ((core.left_len - len.min(core.left_len)) as u64) < least
            {
                still = Some((0, core.left_len as u64, 0, least));
            }
        }
        match still.filter(|_| !is_excused) {
            Some((number, received, size, least)) => {
                tracing::warn!(
                    from = &*core.identity.user,
                    peer = core.peer.address,
                    user = &*core.identity.user,
                    channel = number,
                    received,
                    size,
                    least,
                    timeout_ms,
                    is_awaited,
                    "connection is closed: a body or a frame does not come forward"
                );
                let fault = reply::stands_still(number, received, size, least, timeout_ms);
                self.fail(0, (60, 40), &fault, cx);
            }
            None => self.watch_unfinished(cx),
        }
    }
}
