//! Answers of a shard whose log is agreed upon by others later than it is written.
//!
//! The shard applies what it is told at once. If it loses its log's end, it has done nothing of what stood there. So
//! what a turn tells of its doings is held until the log is agreed upon as far as that turn. A purge, a deletion, an ack in
//! a transaction, a dead letter: none is seen outside and then undone. Deliveries pass, as records are given out only when
//! they are agreed upon. What the end of a turn says of the log's progress (confirms, commits) is agreed upon by then.
//!
//! A log without others says so: nothing is held, and nothing is looked at.

use leveret_log::{Log, Moment};

use super::Store;
use crate::held::{Bookmark, take_since};
use crate::message::Outbox;

impl<L: Log> Store<L> {
    /// Holds what this turn wrote since `start`, if it is not agreed upon.
    #[inline]
    pub(in super::super) fn hold_answers(&mut self, start: Bookmark, out: &mut Outbox) {
        let Some(agreed) = self.log.agreed() else { return };
        let until = self.log.moment();
        if agreed.reaches(until) && self.held.is_empty() {
            return;
        }
        let part = take_since(start, out);
        if !part.is_empty() {
            self.held.hold(until, part);
        }
        // Somebody waits for whatever there is, releases too. The disk may have been busy when it was asked last.
        if !self.held.is_empty() {
            self.disk.hand_over_all();
        }
    }

    /// Sends what was held and is agreed upon now.
    #[inline]
    pub(in super::super) fn free_answers(&mut self, out: &mut Outbox) {
        let Some(agreed) = self.log.agreed() else { return };
        self.held.free(out, |&until| agreed.reaches(until));
    }

    /// Whether what was done until then stays, whatever becomes of the end of the log. Without others it does when it is on the
    /// disk.
    pub(in super::super) fn is_agreed(&self, until: Moment) -> bool {
        match self.log.agreed() {
            Some(agreed) => agreed.reaches(until),
            None => self.log.durable() >= until.end,
        }
    }

    /// Below it everything is on the disks of all members in contact, too.
    #[inline]
    pub(in super::super) fn on_all(&self) -> u64 {
        self.log.on_all().map_or_else(|| self.durable(), |moment| moment.end.get())
    }

    /// Whether what was done until then is on the disks of all members in contact.
    pub(in super::super) fn is_on_all(&self, until: Moment) -> bool {
        self.log.on_all().is_none_or(|moment| moment.reaches(until))
    }

    /// Tells the log whether somebody may wait for all members in contact, and whether somebody does.
    #[inline]
    pub(in super::super) fn use_all(&mut self, is_used: bool, is_awaited: bool) {
        if (is_used, is_awaited) != self.all_use {
            self.all_use = (is_used, is_awaited);
            self.log.use_all(is_used, is_awaited);
        }
    }

    /// Whether answers wait for others at all.
    pub(in super::super) fn has_others(&self) -> bool {
        self.log.agreed().is_some()
    }

    /// Takes what is held: it will not be agreed upon.
    pub(in super::super) fn take_held(&mut self) -> Vec<Outbox> {
        self.held.take().collect()
    }

    /// Turns whose answers are held.
    pub(in super::super) fn held_turns(&self) -> usize {
        self.held.len()
    }
}
