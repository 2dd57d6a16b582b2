//! Messages whose records cannot be read.
//!
//! Such a message is *set aside*: its queue keeps it and delivers it to nobody, and the log keeps its record. So a start with a
//! whole file has the message again.

use leveret_log::{Log, ReadError};
use leveret_queue::Offset;
use leveret_topology::{QueueId, Topology};

use super::confirms::Way;
use super::{Shard, describe};

impl<L: Log> Shard<L> {
    /// A message is set aside, once: a publisher who waits for its ack is told, and so is the operator at the end of the turn.
    #[cold]
    pub(super) fn note_aside(&mut self, queue: QueueId, at: Offset, error: ReadError) {
        self.counters.unreadable += 1;
        self.confirms.left(at.get(), queue, Way::Lost);
        self.unreadable.push((queue, error));
    }

    /// Tells the operator what was set aside in this turn: a line for each queue.
    #[cold]
    pub(super) fn tell_unreadable(&mut self, topology: &Topology) {
        let mut all = std::mem::take(&mut self.unreadable);
        all.sort_by_key(|&(queue, _)| queue);
        for run in all.chunk_by(|(a, _), (b, _)| a == b) {
            let Some(&(id, error)) = run.first() else { continue };
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
