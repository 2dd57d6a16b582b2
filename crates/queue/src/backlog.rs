//! Messages that left a queue all at once.
//!
//! To let go of millions takes long, so it is done bit by bit; but they left at one moment, as clients
//! see it. So they are taken out together, which costs a look at each, and let go of by whoever takes
//! them from here.

use crate::message::{Left, Offset};
use crate::ready::Ready;

/// What was purged, or was in a queue that is deleted. Each is given as [`Left::Purged`],
/// those that were ready in the order in which they were.
#[derive(Debug, Default)]
pub struct Backlog {
    ready: Ready,
    others: Vec<Offset>,
}

impl Backlog {
    pub(crate) fn new(ready: Ready, others: Vec<Offset>) -> Self {
        Self { ready, others }
    }

    /// Messages that were ready, of those not taken yet.
    pub fn ready(&self) -> u64 {
        self.ready.len()
    }

    /// Messages that are not taken yet.
    pub fn len(&self) -> u64 {
        self.ready.len() + self.others.len() as u64
    }

    /// Whether all are taken.
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.others.is_empty()
    }

    /// About how many bytes it takes.
    pub fn bytes(&self) -> u64 {
        let others = self.others.capacity() * size_of::<Offset>();
        self.ready.allocated_bytes() + others as u64
    }
}

impl Iterator for Backlog {
    type Item = Left;

    fn next(&mut self) -> Option<Left> {
        let offset = match self.ready.pop() {
            Some((_, entry)) => Offset::new(entry.offset),
            None => self.others.pop()?,
        };
        Some(Left::Purged(offset))
    }
}
