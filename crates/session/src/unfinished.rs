//! Bodies that the connection has begun and not ended: what they take, whether they move.
//!
//! A body claims its whole length once its header came and its read has gone; more than a little of it needs room
//! ([`BodyRoom`](leveret_broker::bodies::BodyRoom)). While that is waited for, nothing is read. Whoever has it is
//! read from, alarm or not, until no body is unfinished.
//!
//! A body, and a frame that is needed whole, has to move: it is looked at once in each
//! [`unfinished_timeout_ms`](crate::Settings::unfinished_timeout_ms), and the connection ends in which one came
//! forward by less than [`LEAST_PER_S`] meanwhile; by less than [`LEAST_PER_S_IF_AWAITED`], if others wait for its room.
//! So does one whose client took nothing of its output meanwhile, during a memory alarm: the alarm could not end for it.

use leveret_broker::bodies::{BodyRoom, RoomAnswer};
use leveret_queue::Time;

use crate::channel::content::Stake;
use crate::core::{Context, Core};
use crate::reply;
use crate::session::Session;

/// Bytes a second that a body moves by, at least.
const LEAST_PER_S: u64 = 1 << 10;

/// The same while others wait for the room that it takes.
const LEAST_PER_S_IF_AWAITED: u64 = 16 << 10;

/// What belongs to the connection of all this.
#[derive(Debug, Default)]
pub(crate) struct Unfinished {
    /// Contents that wait for more, but for the one in the read at hand.
    contents: u32,
    /// What they keep and will keep.
    stake: Stake,
    /// Room that the connection has.
    granted: u64,
    /// Room that it stands in line for, and is not read meanwhile.
    asked: u64,
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

    /// Bytes that count as held: all that was granted, as it may come at any time.
    pub(crate) fn held(&self) -> u64 {
        self.stake.kept.max(self.granted)
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
    fn needs(&self, room: &BodyRoom) -> u64 {
        if self.stake.claimed > room.free() { self.stake.claimed } else { 0 }
    }
}

impl Core {
    /// Gives back the room that is not needed any more.
    #[inline]
    pub(crate) fn give_room_back(&mut self, cx: &mut Context<'_>) {
        let unfinished = &self.unfinished;
        if unfinished.granted + unfinished.asked > unfinished.needs(&self.settings.bodies) {
            self.give_back_now(cx);
        }
    }

    /// Room is not waited for any more, though it is needed.
    pub(crate) fn leave_line(&mut self, cx: &mut Context<'_>) {
        let asked = std::mem::take(&mut self.unfinished.asked);
        if asked > 0 {
            self.settings.bodies.withdraw(self.id, asked, cx.outbox);
        }
    }

    #[cold]
    fn give_back_now(&mut self, cx: &mut Context<'_>) {
        let room = &self.settings.bodies;
        let unfinished = &mut self.unfinished;
        let needs = unfinished.needs(room);
        if unfinished.asked > 0 && unfinished.granted >= needs {
            room.withdraw(self.id, std::mem::take(&mut unfinished.asked), cx.outbox);
        }
        if unfinished.asked == 0 && unfinished.granted > needs {
            room.give_back(unfinished.granted - needs, cx.outbox);
            unfinished.granted = needs;
        }
    }
}

impl Session {
    /// Asks for room if more is needed than there is.
    #[inline]
    pub(crate) fn take_room(&mut self, cx: &mut Context<'_>) {
        let unfinished = &self.core.unfinished;
        if unfinished.needs(&self.core.settings.bodies) > unfinished.granted
            && unfinished.asked == 0
        {
            self.ask_for_room(cx);
        }
    }

    #[cold]
    fn ask_for_room(&mut self, cx: &mut Context<'_>) {
        let core = &mut self.core;
        if core.peer_closed {
            // What is read is no more than lies in the socket.
            return;
        }
        let unfinished = &mut core.unfinished;
        let (needs, limit) =
            (unfinished.needs(&core.settings.bodies), core.settings.bodies.connection_limit());
        if unfinished.contents > 1 && needs > limit {
            return self.no_room(cx);
        }
        let wants = needs - unfinished.granted;
        unfinished.asks += 1;
        let question = (core.id, unfinished.asks);
        match core.settings.bodies.ask(question, unfinished.granted, wants, cx.outbox) {
            RoomAnswer::Granted => unfinished.granted += wants,
            RoomAnswer::Waits => unfinished.asked = wants,
        }
    }

    /// The answer to what was asked for.
    #[cold]
    pub(crate) fn room(&mut self, number: u64, is_granted: bool, cx: &mut Context<'_>) {
        let unfinished = &mut self.core.unfinished;
        if number != unfinished.asks {
            return;
        }
        let asked = std::mem::take(&mut unfinished.asked);
        match is_granted {
            true => unfinished.granted += asked,
            false if asked > 0 => {
                self.core.settings.bodies.give_back(asked, cx.outbox);
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
            peer = %core.peer.address, user = %core.identity.user, bodies = contents, bytes = claimed, limit,
            "connection is closed: it has begun too many bodies at once"
        );
        self.fail(0, (60, 40), &reply::too_much_unfinished(contents, claimed, limit), cx);
    }

    /// Has it looked after whether what is unfinished moves, if anything is.
    #[inline]
    pub(crate) fn watch_unfinished(&mut self, cx: &Context<'_>) {
        let core = &mut self.core;
        if core.unfinished.is_some() || core.left_len > 0 || core.out_len > 0 {
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
            tracing::warn!(
                peer = %core.peer.address, user = %core.identity.user, bytes = core.out_len,
                "connection is closed: memory is low, and its client does not read"
            );
            return self.give_up(cx);
        }
        let timeout_ms = core.settings.unfinished_timeout_ms;
        let is_awaited = core.settings.bodies.waiting() > 0 && core.unfinished.granted > 0;
        let per_s = if is_awaited { LEAST_PER_S_IF_AWAITED } else { LEAST_PER_S };
        let least = (per_s * timeout_ms / 1000).max(1);
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
            if channel.content.stands_still(least, more) {
                let content = &channel.content;
                still = Some((channel.number, content.received() + more, content.size()));
            }
        }
        let now = (core.left_len, core.unfinished.taken);
        let before = core.unfinished.mark.replace(now);
        if !core.unfinished.is_some() && core.left_len > 0 {
            let is_same = |(_, taken): &(usize, u64)| *taken == core.unfinished.taken;
            if let Some((len, _)) = before.filter(is_same)
                && ((core.left_len - len.min(core.left_len)) as u64) < least
            {
                still = Some((0, core.left_len as u64, 0));
            }
        }
        match still.filter(|_| !is_excused) {
            Some((number, received, size)) => {
                tracing::warn!(
                    peer = %core.peer.address, user = %core.identity.user, channel = number, received, size,
                    least, timeout_ms, is_awaited, "connection is closed: a body or a frame does not come forward"
                );
                let fault = reply::stands_still(number, received, size, least, timeout_ms);
                self.fail(0, (60, 40), &fault, cx);
            }
            None => self.watch_unfinished(cx),
        }
    }
}
