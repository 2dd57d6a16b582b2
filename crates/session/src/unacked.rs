//! Hot path. What one channel was given and has not settled, in the order of delivery tags.
//!
//! Budget: no allocation per message once warm; 40 bytes per unacked message.
//!
//! ```text
//!   [ 4 ][ 5 ][ - ][ 7 ][ - ][ 12 ]      tags; `-` was settled; 8 to 11 went to no-ack consumers
//! ```
//!
//! Tags grow, but not by one, so an entry is first looked for where it would be if they did. A settled
//! entry in the middle stays as a hole; when holes outnumber entries they are squeezed out, so one
//! message that is never acked does not pin the room of all that came after it.

use std::collections::VecDeque;

use leveret_broker::message::UnackedDelivery;
use leveret_queue::Offset;
use leveret_topology::GroupId;

/// Which messages are taken.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Which {
    Nothing,
    /// The one with this tag.
    One(u64),
    /// Those up to a tag, oldest first, so many at most. It has to be there, as RabbitMQ has it.
    Through {
        tag: u64,
        max: usize,
    },
}

/// How many were taken to be settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settled {
    pub(crate) count: usize,
    /// Not all.
    pub(crate) is_some_left: bool,
}

/// The deque. Its first and last entries are never holes.
#[derive(Debug, Default)]
pub(crate) struct Unacked {
    entries: VecDeque<UnackedDelivery>,
    holes: usize,
}

impl Unacked {
    pub(crate) const fn new() -> Self {
        Self { entries: VecDeque::new(), holes: 0 }
    }

    /// Entries that are not settled.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.holes
    }

    /// The one that waits longest.
    pub(crate) fn oldest(&self) -> Option<&UnackedDelivery> {
        self.entries.front()
    }

    /// The one that was delivered last.
    pub(crate) fn newest(&self) -> Option<&UnackedDelivery> {
        self.entries.back()
    }

    /// All of them, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &UnackedDelivery> {
        self.entries.iter().filter(|entry| entry.slot != UnackedDelivery::HOLE)
    }

    /// What was lost with a leader is settled nowhere: see [`UnackedDelivery::lose`].
    pub(crate) fn lose(&mut self, group: GroupId, begins_at: Offset) {
        self.entries.iter_mut().for_each(|entry| entry.lose(group, begins_at));
    }

    /// Adds a delivery. Its tag is above all before it.
    pub(crate) fn push(&mut self, entry: UnackedDelivery) {
        debug_assert!(self.entries.back().is_none_or(|last| last.tag < entry.tag));
        self.entries.push_back(entry);
    }

    /// Takes the entry with that tag.
    pub(crate) fn take(&mut self, tag: u64) -> Option<UnackedDelivery> {
        let at = self.find(tag)?;
        let entry = self.entries[at];
        if at == 0 {
            self.entries.pop_front();
        } else if at + 1 == self.entries.len() {
            self.entries.pop_back();
        } else {
            self.entries[at].slot = UnackedDelivery::HOLE;
            self.holes += 1;
            if self.holes > 32 && self.holes > self.entries.len() / 2 {
                self.squeeze();
            }
            return Some(entry);
        }
        self.trim();
        Some(entry)
    }

    /// Takes some. None, and nothing taken, when a tag is not there.
    #[inline]
    pub(crate) fn take_some(
        &mut self,
        which: Which,
        mut each: impl FnMut(UnackedDelivery),
    ) -> Option<Settled> {
        match which {
            Which::Nothing => Some(Settled::default()),
            Which::One(tag) => {
                each(self.take(tag)?);
                Some(Settled { count: 1, is_some_left: false })
            }
            Which::Through { tag, max } => self.take_through(tag, max, each),
        }
    }

    fn take_through(
        &mut self,
        tag: u64,
        max: usize,
        mut each: impl FnMut(UnackedDelivery),
    ) -> Option<Settled> {
        let all = self.find(tag)? + 1;
        // Holes count: they are looked at.
        let looked_at = all.min(max);
        let mut count = 0;
        for entry in self.entries.drain(..looked_at) {
            if entry.slot == UnackedDelivery::HOLE {
                self.holes -= 1;
            } else {
                count += 1;
                each(entry);
            }
        }
        self.trim();
        Some(Settled { count, is_some_left: looked_at < all })
    }

    /// Takes everything as it lies there, oldest first, with the holes between.
    pub(crate) fn take_all(&mut self) -> VecDeque<UnackedDelivery> {
        self.holes = 0;
        std::mem::take(&mut self.entries)
    }

    /// Puts entries back (`tx.rollback`). Cold.
    pub(crate) fn restore(&mut self, settled: Vec<UnackedDelivery>) {
        let mut all = settled;
        all.extend(self.iter().copied());
        // Most often it is in order already, or two runs that are; this sort then only merges them.
        all.sort_by_key(|entry| entry.tag);
        self.entries = all.into();
        self.holes = 0;
    }

    fn find(&self, tag: u64) -> Option<usize> {
        let first = self.entries.front()?.tag;
        let guess = usize::try_from(tag.checked_sub(first)?).unwrap_or(usize::MAX);
        let at = match self.entries.get(guess) {
            Some(entry) if entry.tag == tag => guess,
            _ => self.entries.binary_search_by_key(&tag, |entry| entry.tag).ok()?,
        };
        (self.entries[at].slot != UnackedDelivery::HOLE).then_some(at)
    }

    /// Holes at the ends go.
    fn trim(&mut self) {
        if self.holes > 0 {
            while self.entries.front().is_some_and(|entry| entry.slot == UnackedDelivery::HOLE) {
                self.entries.pop_front();
                self.holes -= 1;
            }
            while self.entries.back().is_some_and(|entry| entry.slot == UnackedDelivery::HOLE) {
                self.entries.pop_back();
                self.holes -= 1;
            }
        }
        if self.entries.is_empty() {
            self.shrink();
        }
    }

    #[cold]
    fn squeeze(&mut self) {
        self.entries.retain(|entry| entry.slot != UnackedDelivery::HOLE);
        self.holes = 0;
    }

    /// A burst's room is given back once the burst is settled.
    fn shrink(&mut self) {
        if self.entries.capacity() > 4096 {
            self.entries = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use leveret_queue::{Offset, UnackedId};
    use leveret_topology::{GroupId, QueueId};

    use super::*;
    use crate::random::Random;

    fn entry(tag: u64) -> UnackedDelivery {
        UnackedDelivery {
            tag,
            offset: Offset::new(tag),
            queue: QueueId::new(1),
            home: GroupId::new(0),
            unacked: UnackedId::new(0),
            slot: 0,
            delivered_s: 0,
        }
    }

    /// Against a sorted list of tags.
    #[test]
    fn agrees_with_a_plain_list() {
        let mut random = Random::new(11);
        for _ in 0..200 {
            let mut unacked = Unacked::new();
            let mut model: Vec<u64> = Vec::new();
            let mut next = 1;
            for _ in 0..400 {
                match random.next() % 8 {
                    0..4 => {
                        unacked.push(entry(next));
                        model.push(next);
                        next += 1;
                    }
                    4 => next += random.next() % 3,
                    5 | 6 => {
                        let tag = random.next() % (next + 1);
                        let had = model.iter().position(|&t| t == tag).map(|at| model.remove(at));
                        assert_eq!(unacked.take(tag).map(|e| e.tag), had);
                    }
                    _ if random.next().is_multiple_of(8) => {
                        let tag = random.next() % (next + 1);
                        let at = model.iter().position(|&t| t == tag);
                        let want: Vec<u64> =
                            at.map_or_else(Vec::new, |at| model.drain(..=at).collect());
                        let max = 1 + (random.next() % 400) as usize;
                        let mut got = Vec::new();
                        let mut taken = None;
                        loop {
                            let which = Which::Through { tag, max };
                            let some = unacked.take_some(which, |e| got.push(e.tag));
                            taken = taken.or(some);
                            if !some.is_some_and(|it| it.is_some_left) {
                                break;
                            }
                        }
                        assert_eq!(taken.is_some(), at.is_some());
                        assert_eq!(got, want);
                    }
                    _ => {}
                }
                assert_eq!(unacked.len(), model.len());
                assert_eq!(unacked.oldest().map(|e| e.tag), model.first().copied());
            }
            assert_eq!(unacked.iter().map(|e| e.tag).collect::<Vec<_>>(), model);
        }
    }

    #[test]
    fn one_old_message_does_not_pin_what_was_settled() {
        let mut unacked = Unacked::new();
        for tag in 1..100_000 {
            unacked.push(entry(tag));
            if tag > 10 {
                assert!(unacked.take(tag - 5).is_some());
            }
        }
        assert!(unacked.entries.len() < 200, "{}", unacked.entries.len());
    }
}
