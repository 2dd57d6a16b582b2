//! Messages that left a queue all at once.
//!
//! To let go of millions takes long, so it is done bit by bit; but they left at one moment, as clients
//! see it. So they are taken out together, and let go of by whoever takes them from here. A queue that is deleted gives
//! its lists away as they are; a purge looks at each message that was ready, or at those that stay.

use hashbrown::hash_map::IntoIter;

use crate::message::{Left, Offset};
use crate::queue::HeldLetter;
use crate::ready::Ready;
use crate::slab::Drain;
use crate::unacked::{Unacked, UnackedMessage};

/// What was purged, or was in a queue that is deleted. Each is given as [`Left::Purged`],
/// those that were ready in the order in which they were, and dead letters that were held as [`Left::Held`] after them.
#[derive(Debug, Default)]
pub struct Backlog {
    ready: Ready,
    unacked: Drain<UnackedMessage>,
    held: IntoIter<Offset, HeldLetter>,
}

impl Backlog {
    /// Messages that were ready.
    pub(crate) fn of(ready: Ready) -> Self {
        Self { ready, ..Self::default() }
    }

    /// All messages of a queue.
    pub(crate) fn new(
        ready: Ready,
        unacked: Drain<UnackedMessage>,
        held: IntoIter<Offset, HeldLetter>,
    ) -> Self {
        Self { ready, unacked, held }
    }

    /// Messages that were ready, of those not taken yet.
    pub fn ready(&self) -> u64 {
        self.ready.len()
    }

    /// Dead letters that were held, of those not taken yet.
    pub fn held(&self) -> u64 {
        self.held.len() as u64
    }

    /// Messages that are not taken yet, dead letters that were held too.
    pub fn len(&self) -> u64 {
        self.ready.len() + self.unacked.len() as u64 + self.held()
    }

    /// Whether all are taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// About how many bytes it takes.
    pub fn bytes(&self) -> u64 {
        let held = self.held.len() * size_of::<(Offset, HeldLetter)>();
        let unacked = self.unacked.len() as u64 * Unacked::MESSAGE_BYTES;
        self.ready.allocated_bytes() + unacked + held as u64
    }
}

impl Iterator for Backlog {
    type Item = Left;

    fn next(&mut self) -> Option<Left> {
        let offset = match self.ready.pop() {
            Some((_, entry)) => Offset::new(entry.offset),
            None => match self.unacked.next() {
                Some(out) => Offset::new(out.entry.offset),
                None => {
                    let (offset, HeldLetter { goes, .. }) = self.held.next()?;
                    return Some(Left::Held { offset, goes });
                }
            },
        };
        Some(Left::Purged(offset))
    }
}
