//! Queues that are made again: what the log kept goes back into them.

use std::iter::Peekable;
use std::ops::Range;
use std::vec::IntoIter;

use foldhash::fast::FixedState;
use hashbrown::HashSet;
use leveret_log::{Holder, Offset, RecoveredRun, RecoveredSum, RecoverySink};
use leveret_queue::Time;
use leveret_topology::QueueId;

use super::queue_offset;
use super::queues::Queues;
use super::recover::{PartFate, Restored, complain, incoming, queue_of};
use crate::record::Head;

/// How many queues that are not known are told of by their ids.
const ORPHANED_MAX: usize = 100;

/// Records between two words on how far it is.
const TELLS_EVERY: u64 = 4096;

/// Queues that get what the log kept. Of each the first messages have entries at once, and the others are counted: one by one
/// where they lie among those, and else in sums.
pub(super) struct Filling<'a> {
    pub(super) queues: &'a mut Queues,
    /// Messages of parts that are not decided.
    pub(super) there: &'a mut HashSet<leveret_queue::Offset, FixedState>,
    /// What decided transactions acked.
    pub(super) acked: &'a HashSet<(QueueId, leveret_queue::Offset), FixedState>,
    /// Ascending.
    pub(super) parts: Peekable<IntoIter<(Range<u64>, PartFate)>>,
    /// Of neighbours that are alike all is alike: there are neither parts nor acks.
    pub(super) is_plain: bool,
    pub(super) keeps_orphans: bool,
    pub(super) seen_below: Offset,
    /// Messages of a queue that have entries.
    pub(super) first: u64,
    pub(super) restored: Restored,
    pub(super) orphans: Vec<(Offset, Holder)>,
    /// What transactions leave behind.
    pub(super) finished: Vec<(Offset, Holder)>,
    /// How many are counted only, and from where on there are some.
    pub(super) deferred: u64,
    pub(super) from: Option<Offset>,
    /// Records since the last word on how far it is.
    pub(super) passed: u64,
    pub(super) progress: &'a mut dyn FnMut(u64),
}

impl Filling<'_> {
    fn passed(&mut self, records: u64) {
        self.passed += records;
        if self.passed >= TELLS_EVERY {
            (self.progress)(std::mem::take(&mut self.passed));
        }
    }

    /// So many messages are counted only, the first of them there or later.
    fn defer(&mut self, from: Offset, count: u64) {
        self.deferred += count;
        self.from = Some(self.from.map_or(from, |first| first.min(from)));
    }

    /// Neighbours that are alike in all that matters.
    fn alike(&mut self, record: RecoveredRun<'_>) {
        self.passed(record.count);
        if let [(Holder::OWNER, _)] = record.holders {
            return;
        }
        let at = record.at.get();
        while self.parts.next_if(|(messages, _)| messages.end <= at).is_some() {}
        match self.parts.peek().filter(|(messages, _)| messages.contains(&at)) {
            Some((_, PartFate::HeldBack)) => {
                self.there.insert(queue_offset(record.at));
                return;
            }
            Some((_, PartFate::Undone)) => {
                self.restored.undone += 1;
                if !self.keeps_orphans {
                    let all = record.holders.iter().map(|&(holder, _)| (record.at, holder));
                    self.finished.extend(all);
                }
                return;
            }
            None => {}
        }
        let all = (at..at + record.count).map(Offset::new);
        let Some(head) = Head::decode(record.head) else {
            self.restored.damaged += record.count;
            all.for_each(complain);
            return;
        };
        // What other shards hold is in their queues.
        let own = record.holders.iter().filter(|(holder, _)| holder.as_log().is_none());
        for &(holder, mark) in own {
            let id = QueueId::new(holder.get());
            if self.acked.contains(&(id, queue_offset(record.at))) {
                self.finished.push((record.at, holder));
                continue;
            }
            let Some(hosted) = self.queues.get_mut(id) else {
                self.restored.orphans += record.count;
                if !self.keeps_orphans {
                    self.orphans.extend(all.clone().map(|at| (at, holder)));
                } else if self.restored.orphaned.len() < ORPHANED_MAX {
                    self.restored.orphaned.insert(id);
                }
                continue;
            };
            self.restored.messages += record.count;
            let published = Time::from_ms(head.published_ms);
            for (done, offset) in (0..).zip(all.clone()) {
                let is_seen = offset < self.seen_below;
                let message = incoming(queue_offset(offset), &head, mark, is_seen);
                let count = record.count - done;
                if hosted.queue.defer(message, count, self.first) {
                    self.defer(offset, count);
                    break;
                }
                hosted.queue.restore(message, published);
            }
        }
    }
}

impl RecoverySink for Filling<'_> {
    fn takes_sum(&mut self, holder: Holder, is_enough: bool) -> bool {
        if is_enough {
            self.first = 0;
        }
        if holder.as_log().is_some() || holder == Holder::OWNER {
            return true;
        }
        // Of those that are in no queue the offsets are needed.
        let hosted = self.queues.get(QueueId::new(holder.get()));
        hosted.map_or(self.keeps_orphans, |hosted| hosted.queue.may_defer(self.first))
    }

    fn sum(&mut self, holder: Holder, sum: RecoveredSum) {
        let RecoveredSum { offsets, count, bytes, persistent, persistent_bytes } = sum;
        self.passed(count);
        let Some(id) = queue_of(holder) else { return };
        let Some(hosted) = self.queues.get_mut(id) else {
            self.restored.orphans += count;
            if self.restored.orphaned.len() < ORPHANED_MAX {
                self.restored.orphaned.insert(id);
            }
            return;
        };
        self.restored.messages += count;
        let from = offsets.start;
        let offsets = queue_offset(offsets.start)..queue_offset(offsets.end);
        hosted.queue.defer_sum(offsets, (count, bytes), (persistent, persistent_bytes));
        self.defer(from, count);
    }

    fn run(&mut self, run: RecoveredRun<'_>) {
        if self.is_plain || run.count == 1 {
            return self.alike(run);
        }
        for at in run.at.get()..run.at.get() + run.count {
            self.alike(RecoveredRun { at: Offset::new(at), count: 1, ..run });
        }
    }
}
