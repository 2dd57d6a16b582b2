//! Messages that left a queue by purge or with the queue itself, perhaps millions: released bit by bit,
//! while clients have their answer already. A process that is killed meanwhile may find some again, as one
//! that is killed before the disk heard of a release.

use std::collections::VecDeque;

use leveret_log::Log;
use leveret_queue::Backlog;
use leveret_topology::QueueId;

use super::Shard;
use super::unresolved::Way;

/// Messages released in one turn: about a millisecond.
const RELEASED_PER_TURN: u64 = 8192;

/// What is to be released, oldest first.
#[derive(Debug, Default)]
pub(super) struct Leaving(VecDeque<(QueueId, Backlog)>);

impl Leaving {
    /// About how many bytes it takes, without the records.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|(_, backlog)| backlog.bytes()).sum()
    }
}

impl<L: Log> Shard<L> {
    /// These left the queue and are to be released.
    pub(super) fn let_go(&mut self, id: QueueId, backlog: Backlog) {
        if !backlog.is_empty() {
            self.leaving.0.push_back((id, backlog));
        }
    }

    /// Releases some. True when there are more.
    pub(super) fn release_leaving(&mut self) -> bool {
        for _ in 0..RELEASED_PER_TURN {
            let Some((id, backlog)) = self.leaving.0.front_mut() else { return false };
            match backlog.next() {
                Some(left) => {
                    let id = *id;
                    self.counters.dropped += 1;
                    self.gone(left.offset(), id, Way::Lost);
                }
                None => drop(self.leaving.0.pop_front()),
            }
        }
        !self.leaving.0.is_empty()
    }
}
