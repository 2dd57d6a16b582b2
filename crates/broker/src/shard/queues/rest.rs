//! Memory of queues: counted while a queue is used, given back when the queue rests.
//!
//! A queue keeps some memory for speed when its messages are gone. A queue that was dispatched and is empty
//! is put on a list. If it is not used for a while after that, it gives the memory back. The work is a
//! look at two fields per queue and turn, and one pass over the list every [`REST_MS`].

use leveret_queue::Time;
use leveret_topology::QueueId;

use super::{Hosted, Map};

/// How long a queue is unused and empty before it gives memory back, in ms; at most twice as long.
const REST_MS: u64 = 5000;

/// What a session keeps for a delivery until it is acked: 40 bytes in a deque that doubles.
const SESSION_BYTES: u64 = 60;

/// A queue's part in the matter.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// It is on the list.
    is_listed: bool,
    /// It was dispatched since the last pass over the list.
    was_used: bool,
}

/// Queues that were empty when they were last listed.
#[derive(Debug, Default)]
pub(super) struct Resting {
    queues: Vec<QueueId>,
    /// When to look at them; none while there are none.
    at: Option<Time>,
}

impl Resting {
    pub(super) fn at(&self) -> Option<Time> {
        self.at
    }

    /// A queue was dispatched: counts what it takes, and lists it if it is empty. How many bytes it takes now.
    #[inline]
    pub(super) fn used(&mut self, hosted: &mut Hosted, id: QueueId, now: Time) -> u64 {
        let bytes = hosted.queue.message_bytes() + hosted.queue.unacked_len() * SESSION_BYTES;
        hosted.counted_bytes = bytes;
        hosted.rest.was_used = true;
        if !hosted.rest.is_listed && hosted.queue.is_empty() {
            hosted.rest.is_listed = true;
            self.queues.push(id);
            self.at.get_or_insert_with(|| now.after_ms(REST_MS));
        }
        bytes
    }

    /// Has queues that rested give back what they keep for speed.
    pub(super) fn relax(&mut self, all: &mut Map<QueueId, Box<Hosted>>, now: Time) {
        if self.at.is_none_or(|at| at > now) {
            return;
        }
        self.queues.retain(|id| {
            let Some(hosted) = all.get_mut(id) else { return false };
            if std::mem::take(&mut hosted.rest.was_used) {
                return true;
            }
            hosted.rest.is_listed = false;
            if hosted.queue.is_empty() {
                hosted.queue.relax();
            }
            false
        });
        self.queues.shrink_to(self.queues.len() * 2);
        self.at = (!self.queues.is_empty()).then(|| now.after_ms(REST_MS));
    }
}
