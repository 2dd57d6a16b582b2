//! Messages whose records cannot be read.
//!
//! Such a message is *set aside*: its queue keeps it and delivers it to nobody, and the log keeps its record. So a start with a
//! whole file has the message again. A dead letter of a queue that is deleted has no queue that could keep it: it is lost.

use leveret_log::{Log, ReadError};
use leveret_queue::Offset;
use leveret_topology::{QueueId, Topology};

use super::confirms::Way;
use super::{Shard, describe};

/// A message that could not be read, of which the operator is not told yet.
#[derive(Debug)]
pub(super) struct Unreadable {
    queue: QueueId,
    error: ReadError,
    /// It is lost, as its queue is deleted.
    is_lost: bool,
    /// What the log calls that queue, as far as it is known.
    former: Option<Box<str>>,
}

impl<L: Log> Shard<L> {
    /// A message is set aside, once: a publisher who waits for its ack is told, and so is the operator at the end of the turn.
    #[cold]
    pub(super) fn note_aside(&mut self, queue: QueueId, at: Offset, error: ReadError) {
        self.counters.unreadable += 1;
        self.confirms.left(at.get(), queue, Way::Lost);
        self.unreadable.push(Unreadable { queue, error, is_lost: false, former: None });
    }

    /// A dead letter is lost, as its queue is deleted: the operator is told at the end of the turn.
    #[cold]
    pub(super) fn note_lost(&mut self, queue: QueueId, error: ReadError) {
        self.counters.unreadable += 1;
        let former = self.exits.former_description(queue).map(Into::into);
        self.unreadable.push(Unreadable { queue, error, is_lost: true, former });
    }

    /// Tells the operator what could not be read in this turn: a line for each queue.
    #[cold]
    pub(super) fn tell_unreadable(&mut self, topology: &Topology) {
        let mut all = std::mem::take(&mut self.unreadable);
        let key = |it: &Unreadable| (it.queue, it.is_lost);
        all.sort_by_key(key);
        for run in all.chunk_by(|a, b| key(a) == key(b)) {
            let Some(&Unreadable { queue: id, error, is_lost, ref former }) = run.first() else {
                continue;
            };
            if is_lost {
                tracing::error!(
                    queue = former.as_deref().map_or_else(|| id.to_string(), str::to_owned),
                    shard = self.group.get(),
                    messages = run.len(),
                    first = %error,
                    "dead letters are lost: their queue is deleted, and their records cannot be read"
                );
                continue;
            }
            let queue = topology.queue_by_id(id).map(|queue| describe(queue, topology));
            tracing::error!(
                queue = queue.unwrap_or_else(|| id.to_string()),
                shard = self.group.get(),
                messages = run.len(),
                first = %error,
                "messages cannot be read and are set aside. To get them back, stop the broker, restore the file \
                 from a copy, and start again"
            );
        }
    }
}
