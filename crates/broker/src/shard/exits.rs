//! Dead letters that have to be read first. There may be millions of them: they wait in a line of their own, only the first ones
//! are read, and only as many are on their way to their targets as a turn or two take.

use std::collections::VecDeque;

use leveret_log::Log;
use leveret_queue::{Left, Offset, Time};
use leveret_topology::{QueueId, Topology};

use super::Shard;
use super::recover::mark_of_left;
use crate::message::Outbox;

/// Dead letters that are asked for at once.
const LETTERS_ASKED: usize = 64;

/// Dead letters that may wait for their targets' answers before more are read.
const LETTERS_UNDER_WAY: usize = 256;

/// Messages that left their queues and wait to be dead-lettered, in order.
#[derive(Debug, Default)]
pub(super) struct Exits {
    left: VecDeque<(QueueId, Left)>,
}

impl Exits {
    /// About how many bytes it takes.
    pub(super) fn bytes(&self) -> u64 {
        (self.left.len() * size_of::<(QueueId, Left)>()) as u64
    }

    pub(super) fn len(&self) -> u64 {
        self.left.len() as u64
    }

    /// A dead letter whose record is to come waits for those before it.
    pub(super) fn park(&mut self, id: QueueId, left: Left) {
        self.left.push_back((id, left));
    }

    /// What the log is to know of each. Their queues tell of those that they hold.
    pub(super) fn marks(&self) -> impl Iterator<Item = (QueueId, Offset, u8)> {
        self.left.iter().filter_map(|&(id, left)| mark_of_left(id, left))
    }
}

impl<L: Log> Shard<L> {
    /// Lets dead letters go on, in order, up to one that is to come, which is asked for together with some behind it.
    /// True when there are more than one turn takes.
    pub(super) fn dead_letter_parked(
        &mut self,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) -> bool {
        self.used = 0;
        for _ in self.awaited.len()..LETTERS_UNDER_WAY {
            if self.used >= self.work.limits().share {
                return true;
            }
            let Some(&(id, left)) = self.exits.left.front() else { return false };
            let at = left.offset();
            if self.store.is_to_come(at) {
                let count = if self.store.is_asked(at) { 1 } else { LETTERS_ASKED };
                let first = self.exits.left.iter().take(count);
                self.store.fetch(first.map(|(_, left)| left.offset()));
                return false;
            }
            self.exits.left.pop_front();
            self.work_off(id, left, topology, now, out);
        }
        // The others go on when these have their answers; those of transient ones nobody waits for.
        !self.exits.left.is_empty() && self.awaited.len() < LETTERS_UNDER_WAY
    }

    /// Messages that left their queue and are to be dead-lettered, but have to be read from the disk first, or
    /// wait for a turn with room for them.
    pub fn parked(&self) -> u64 {
        self.exits.len() + self.letters_waiting + self.leaving()
    }
}
