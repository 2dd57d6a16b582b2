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
use leveret_log::Log;
use leveret_queue::{Queue, Time};
use leveret_topology::QueueId;

use super::Shard;
use super::consume::{Names, tell_consumer_deleted};
use super::jobs::{Job, Line, cost};
use super::ports::Chain;
use crate::message::{ConnectionId, ConsumerSlot, Outbox, ToSession};

/// Consumers that are told in one go with whoever deleted the queue.
const AT_ONCE: usize = 64;

/// Deleted queues that have consumers still.
#[derive(Debug, Default)]
pub(super) struct Ending(HashMap<QueueId, Ended, FixedState>);

/// What is left of a deleted queue.
#[derive(Debug)]
struct Ended {
    /// Empty but for what it knows of its consumers.
    queue: Queue,
    consumers: Chain,
    names: Option<Names>,
    /// Who deleted it.
    user: Box<str>,
}

impl<L: Log> Shard<L> {
    /// The queue was deleted. Takes its first consumers out, what they were given before on its way, and names them; tells
    /// whether there are more.
    pub(super) fn end_consumers(
        &mut self,
        id: QueueId,
        queue: Queue,
        consumers: Chain,
        (names, user): (Option<Names>, &str),
        now: Time,
        out: &mut Outbox,
    ) -> (Vec<(ConnectionId, ConsumerSlot)>, bool) {
        if consumers.is_empty() {
            return (Vec::new(), false);
        }
        self.ending.0.insert(id, Ended { queue, consumers, names, user: user.into() });
        let mut first = Vec::new();
        while first.len() < AT_ONCE
            && let Some(gone) = self.next_ending(id, now, out)
        {
            first.push(gone);
        }
        (first, self.ending.0.contains_key(&id))
    }

    /// The name is gone: those are told who have not been yet.
    pub(super) fn cancel_rest(&mut self, id: QueueId, out: &mut Outbox) {
        let left = self.ending_left(id);
        if left > 0 {
            self.jobs.wait_in(Line::Cancelling, Job::CancelRest(id), left, out);
        }
    }

    /// Tells some of them. What the others will cost.
    pub(super) fn cancel_some(
        &mut self,
        id: QueueId,
        allowed: u64,
        now: Time,
        out: &mut Outbox,
    ) -> u64 {
        while self.jobs.used() < allowed
            && let Some((connection, slot)) = self.next_ending(id, now, out)
        {
            out.session(connection, ToSession::ConsumerGone { slot });
        }
        self.ending_left(id)
    }

    fn ending_left(&self, id: QueueId) -> u64 {
        self.ending.0.get(&id).map_or(0, |ended| cost::CONSUMER * ended.consumers.len())
    }

    fn next_ending(
        &mut self,
        id: QueueId,
        now: Time,
        out: &mut Outbox,
    ) -> Option<(ConnectionId, ConsumerSlot)> {
        self.jobs.pay(cost::CONSUMER);
        let key = self.ending.0.get(&id)?.consumers.first()?;
        self.remove_from_ending(key, id, now, out)
    }

    /// Takes a consumer out of its queue, which was deleted.
    pub(super) fn remove_from_ending(
        &mut self,
        key: u32,
        id: QueueId,
        now: Time,
        out: &mut Outbox,
    ) -> Option<(ConnectionId, ConsumerSlot)> {
        let ended = self.ending.0.get_mut(&id)?;
        let consumer = self.ports.remove(key, &mut ended.consumers)?;
        // It holds nothing any more, so nothing leaves.
        ended.queue.remove_consumer(consumer.id, now, &mut Vec::new());
        tell_consumer_deleted(&consumer, &ended.user, ended.names.as_ref(), out);
        if ended.consumers.is_empty() {
            self.ending.0.remove(&id);
        }
        self.ports.flush(consumer.connection, out);
        Some((consumer.connection, consumer.slot))
    }
}
