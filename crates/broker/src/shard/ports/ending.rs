//! Consumers of queues that were deleted: told in pieces.
//!
//! The queue is gone at once, for everybody. Its first consumers are named to the owner of the names, who tells them when the
//! name is gone, just before the one who asked; the others, who may be hundreds of thousands, are told from here after that.
//!
//! ```text
//!   delete --QueueGone { first ones, more }--> Meta --CancelRest--> a job, until nobody is left
//! ```
//!
//! A consumer that is cancelled or whose connection ends meanwhile goes as usual.

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_queue::{Queue, Time};
use leveret_topology::QueueId;

use super::super::consume::{Names, tell_consumer_deleted};
use super::{Chain, Consumer, Ports};
use crate::message::Outbox;

/// Deleted queues that have consumers still.
pub(super) type Ending = HashMap<QueueId, Box<Ended>, FixedState>;

/// What is left of a deleted queue.
#[derive(Debug)]
pub(super) struct Ended {
    /// Empty but for what it knows of its consumers.
    queue: Queue,
    consumers: Chain,
    names: Option<Names>,
    /// Who deleted it.
    user: Box<str>,
}

impl Ports {
    /// The queue was deleted, by this user: its consumers are to be told, one after the other.
    pub(in super::super) fn end_queue(
        &mut self,
        id: QueueId,
        queue: Queue,
        consumers: Chain,
        names: Option<Names>,
        user: &str,
    ) {
        if !consumers.is_empty() {
            let ended = Ended { queue, consumers, names, user: user.into() };
            self.ending.insert(id, Box::new(ended));
        }
    }

    /// How many consumers of a deleted queue are not told yet.
    pub(in super::super) fn count_of_ended(&self, id: QueueId) -> u64 {
        self.ending.get(&id).map_or(0, |ended| ended.consumers.len())
    }

    /// The oldest consumer of a deleted queue, by its key.
    pub(in super::super) fn next_of_ending(&self, id: QueueId) -> Option<u32> {
        self.ending.get(&id)?.consumers.first()
    }

    /// Takes a consumer out of a deleted queue, what it was given before on its way.
    pub(in super::super) fn end(
        &mut self,
        key: u32,
        id: QueueId,
        now: Time,
        out: &mut Outbox,
    ) -> Option<Consumer> {
        let mut ended = self.ending.remove(&id)?;
        let consumer = self.remove(key, &mut ended.consumers);
        if let Some(consumer) = &consumer {
            // It holds nothing any more, so nothing leaves.
            ended.queue.remove_consumer(consumer.id, now, &mut Vec::new());
            tell_consumer_deleted(consumer, &ended.user, ended.names.as_ref(), out);
        }
        if !ended.consumers.is_empty() {
            self.ending.insert(id, ended);
        }
        let consumer = consumer?;
        self.flush(consumer.connection, out);
        Some(consumer)
    }
}
