//! Back after a restart: what the log kept goes back into the queues; and what is written down before
//! a clean stop.
//!
//! A mark in the log says what became of a message in a queue: bit 7, it may have been delivered;
//! bits 0 to 6, how often it came back, 127 for more. Marks are written when a message comes back and
//! at a clean stop. After a crash nobody knows what was delivered in the last moments, so everything
//! that comes back then is marked redelivered: a consumer may see the flag on a message that is new,
//! but never a message for the second time without it. At the next clean stop that is one offset, not a
//! mark for each message of a backlog.

use std::collections::BTreeSet;
use std::ops::Range;

use foldhash::fast::FixedState;
use hashbrown::HashSet;
use leveret_log::{Holder, Log};
use leveret_queue::{Incoming, Left, Offset, Time};
use leveret_topology::{Homes, QueueId, Topology};

use super::filling::Filling;
use super::store::{Parked, Store};
use super::{Shard, queue_offset};
use crate::message::{Outbox, ToShard};
use crate::record::Head;
use crate::stream::{NotePiece, Tag};
use crate::transaction::{Decided, Note, TxId};

const SEEN: u8 = 0x80;

/// What came back, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Messages, once per queue.
    pub messages: u64,
    /// Places in queues that are no more: let go, or [kept](Shard::keep_orphans).
    pub orphans: u64,
    /// The queues that those were in, if they are kept: some of them, in the order of their ids.
    pub orphaned: BTreeSet<QueueId>,
    /// Messages of transactions that were not decided when the process ended: let go, or kept with the orphans.
    pub undone: u64,
    /// Records whose head cannot be read. They stay in the log and are in no queue.
    pub damaged: u64,
}

impl Restored {
    /// What came back in another shard, too.
    pub fn add(&mut self, other: Self) {
        self.messages += other.messages;
        self.orphans += other.orphans;
        self.undone += other.undone;
        self.damaged += other.damaged;
        self.orphaned.extend(other.orphaned);
    }
}

/// The queue that a holder of records is. None if it is none.
pub fn queue_of(holder: Holder) -> Option<QueueId> {
    let is_queue = holder.as_log().is_none() && holder != Note::holder();
    is_queue.then(|| QueueId::new(holder.get()))
}

/// A part's record.
struct Part {
    at: leveret_log::Offset,
    tx: TxId,
    messages: u32,
    tag: Option<Tag>,
}

/// What becomes of the messages of a part that are in no queue.
#[derive(Clone, Copy)]
pub(super) enum PartFate {
    HeldBack,
    Undone,
}

/// Records of parts that are in no queue.
#[derive(Debug, Default)]
pub(super) struct Excluded {
    /// Ascending, and apart.
    ranges: Vec<Range<u64>>,
}

impl Excluded {
    pub(super) fn has(&self, at: u64) -> bool {
        let next = self.ranges.partition_point(|range| range.end <= at);
        self.ranges.get(next).is_some_and(|range| range.contains(&at))
    }

    /// These, and some more offsets: ascending, and apart.
    fn and_each(&self, offsets: impl Iterator<Item = u64>) -> Vec<Range<leveret_log::Offset>> {
        let each = offsets.filter(|at| !self.has(*at)).map(|at| at..at + 1);
        let mut all: Vec<_> = self.ranges.iter().cloned().chain(each).collect();
        all.sort_unstable_by_key(|range| range.start);
        all.dedup();
        let offset = leveret_log::Offset::new;
        all.into_iter().map(|range| offset(range.start)..offset(range.end)).collect()
    }
}

pub(super) fn complain(at: leveret_log::Offset) {
    tracing::error!(offset = %at, "a record in the log is not a message: left alone");
}

impl<L: Log> Shard<L> {
    /// What [`recover`](Self::recover) finds of queues that the topology does not have, and of transactions on which nothing
    /// was decided, stays in the log, in no queue: it is not the whole topology.
    pub fn keep_orphans(&mut self) {
        self.keeps_orphans = true;
    }

    /// [Hosts](Self::host) the queues and [fills](Self::fill) them.
    pub fn recover(
        &mut self,
        topology: &Topology,
        decided: &Decided,
        seen_below: leveret_log::Offset,
        now: Time,
    ) -> Restored {
        self.host(topology, now);
        self.fill(decided, seen_below, &mut |_| {})
    }

    /// Makes the queues of this shard that the topology has, without messages. To be called before letters come: later
    /// changes of the topology are letters.
    pub fn host(&mut self, topology: &Topology, now: Time) {
        // Those without messages, too: they are counted, and what nobody uses may expire.
        for queue in topology.vhosts().flat_map(|vhost| topology.queues(vhost.id)) {
            if queue.home == self.group && !self.queues.is_dying(queue.id) {
                self.queues.host(queue, now);
            }
        }
    }

    /// Fills the queues with what the log kept. To be called once for a log, after [`host`](Self::host) and before the first turn.
    /// `seen_below`: what is below may have been delivered, and of the rest the marks tell all; that is what
    /// [`seen_below`](Self::seen_below) said if the process before called [`close`](Self::close), and
    /// [`Offset::MAX`](leveret_log::Offset::MAX) if it did not. Of long queues the first messages have entries then, and the
    /// others are counted: see [`late`](super::late). `decided`: what
    /// [`Meta::decided`](crate::Meta::decided) says of transactions. `progress` is told now and then how many records were
    /// read since the last time.
    pub fn fill(
        &mut self,
        decided: &Decided,
        seen_below: leveret_log::Offset,
        progress: &mut dyn FnMut(u64),
    ) -> Restored {
        let keeps_orphans = self.keeps_orphans;
        let Self { store, queues, transactions, streams, late, .. } = self;
        let mut restored = Restored::default();
        // What transactions leave behind.
        let mut finished: Vec<(leveret_log::Offset, Holder)> = Vec::new();
        // The messages of parts that are in no queue, in order: those of transactions that never were, and those of
        // transactions that are not decided.
        let mut parts: Vec<(Range<u64>, PartFate)> = Vec::new();
        let mut found: Vec<Part> = Vec::new();
        store.own(&mut |at, head| match Note::decode(head) {
            Some(Note::Part { tx, messages, tag }) => {
                found.push(Part { at, tx, messages, tag });
            }
            Some(Note::Applied { tx }) => {
                transactions.applied.push(tx);
                finished.push((at, Holder::OWNER));
            }
            None => match NotePiece::decode(head) {
                Some(piece) => streams.found(queue_offset(at), piece),
                None => {
                    restored.damaged += 1;
                    complain(at);
                }
            },
        });
        streams.all_found(store.moment());
        // A part may have come again, and is in the log twice: the last one counts, and of the one before the record is there.
        let mut counted: HashSet<TxId, FixedState> = HashSet::default();
        let mut count: Vec<bool> = found.iter().rev().map(|part| counted.insert(part.tx)).collect();
        count.reverse();
        for (Part { at, tx, messages, tag }, counts) in found.into_iter().zip(count) {
            let range = at.get() + 1..at.get() + 1 + u64::from(messages);
            if counts && transactions.is_held_back(tx) {
                parts.push((range, PartFate::HeldBack));
                continue;
            }
            if counts {
                transactions.found.push(tx);
            }
            if counts && decided.transactions.contains(&tx) {
                finished.push((at, Holder::OWNER));
                continue;
            }
            parts.push((range, PartFate::Undone));
            match tag {
                // With names that are lost what was decided may be.
                Some(tag) if keeps_orphans => streams.is_unknown(tag),
                None if keeps_orphans => {}
                Some(tag) if counts && streams.reopen(tag, queue_offset(at)) => {}
                _ => finished.push((at, Holder::OWNER)),
            }
        }
        let excluded = Excluded { ranges: parts.iter().map(|(range, _)| range.clone()).collect() };
        debug_assert!(excluded.ranges.is_sorted_by(|a, b| a.end <= b.start), "parts are apart");
        let apart = excluded.and_each(decided.acked.iter().map(|(_, offset)| offset.get()));
        let limits = late.limits;
        late.end();
        let mut filling = Filling {
            queues,
            there: &mut transactions.there,
            acked: &decided.acked,
            parts: parts.into_iter().peekable(),
            is_plain: apart.is_empty(),
            keeps_orphans,
            seen_below,
            first: limits.first,
            restored,
            orphans: Vec::new(),
            finished,
            deferred: 0,
            from: None,
            passed: 0,
            progress,
        };
        store.recover(seen_below, (&apart, limits.enough), &mut filling);
        let Filling { restored, orphans, finished, deferred, from, .. } = filling;
        match from {
            Some(from) => late.begin(from, deferred, seen_below, excluded),
            None => store.recovered_all(),
        }
        self.store.let_go(orphans.into_iter().chain(finished));
        restored
    }

    /// The transactions of earlier processes that [`recover`](Self::recover) found parts of.
    pub fn transactions_found(&mut self) -> Vec<TxId> {
        std::mem::take(&mut self.transactions.found)
    }

    /// Before a clean stop, when no more letters come: releases what left, marks what may have been delivered, and
    /// keeps what is persistent and was not written so far because a consumer was waited for.
    /// [`sync`](Self::sync) until [`is_durable`](Self::is_durable) is to follow.
    ///
    /// A later turn does nothing but get on with the log, and with the logs that share records with it, and hears of dead
    /// letters that are safe where they went. Other letters are
    /// lost with the process: what they were to do is as the shard wrote it down. So nothing is given out after the last marks.
    pub fn close(&mut self) {
        self.is_closed = true;
        self.close_jobs();
        self.close_dead_letters();
        let Self { store, queues, confirms, streams, .. } = self;
        let mut keep = |store: &mut Store<L>, at| {
            if store.persist(at).is_ok() {
                streams.goes(at, true);
            }
        };
        for at in confirms.deferred() {
            keep(store, Offset::new(at));
        }
        for (id, hosted) in queues.iter() {
            if hosted.is_durable {
                hosted.queue.to_be_lent(|at| keep(store, at));
            }
            hosted.queue.seen(|at, count| {
                if at < queue_offset(store.seen_below()) && count == 0 {
                    return;
                }
                store.mark(at, id, mark(count));
            });
        }
        // In the batch of what they are about. Nobody waits for it by the clock any more.
        self.write_notes(Time::from_ms(self.outside.micros / 1000));
    }

    /// A turn of a shard that is closed: see [`close`](Self::close). Those are told who waited for the log, and others for
    /// what it was to be agreed upon.
    #[cold]
    pub(super) fn write_on(
        &mut self,
        letters: &mut Vec<ToShard>,
        homes: Homes,
        now: Time,
        out: &mut Outbox,
    ) {
        for letter in letters.drain(..) {
            match letter {
                // The copy was durable before this shard closed, or is now: here it is not to come back.
                ToShard::DeadLettered { from, target, taken } => {
                    self.dead_lettered(from, target, taken, now, out);
                    self.let_left_go();
                }
                letter => self.store.hear(letter, homes, out),
            }
        }
        // What another log wants may have come from the disk.
        for parked in self.store.came(|_| {}) {
            if let Parked::Letter(letter) = parked {
                self.store.hear(letter, homes, out);
            }
        }
        self.confirms.flush_acked(out);
        self.settle_with_disk(now, out);
        self.store.free_answers(out);
        self.store.send_errands(self.group, homes, out);
    }

    /// What is below this offset may have been delivered: what the next start has to be told after a
    /// [`close`](Self::close).
    pub fn seen_below(&self) -> leveret_log::Offset {
        self.store.seen_below()
    }

    /// Hands what waits to the disk, and takes in what it has finished.
    pub fn sync(&mut self) -> Result<(), leveret_log::SyncError> {
        self.store.sync()
    }

    /// Whether nothing waits for the disk.
    pub fn is_durable(&self) -> bool {
        self.store.is_all_durable()
    }
}

/// The mark of a message that came back so often, 0 for one that was delivered only.
pub(super) fn mark(delivery_count: u32) -> u8 {
    SEEN | u8::try_from(delivery_count).unwrap_or(u8::MAX).min(!SEEN)
}

/// The mark of a message that came back so often and may have been delivered; 0 says nothing.
pub(super) fn mark_of(seen: bool, delivery_count: u32) -> u8 {
    if seen { mark(delivery_count) } else { mark(delivery_count) & !SEEN }
}

/// What the log is to know of a dead letter that waits; its queue tells of those that it holds.
pub(super) fn mark_of_left(id: QueueId, left: Left) -> Option<(QueueId, Offset, u8)> {
    match left {
        Left::DeadLetter { offset, delivery_count, seen, held: false, .. } => {
            Some((id, offset, mark_of(seen, delivery_count)))
        }
        _ => None,
    }
}

/// Whether a message with this mark may have been delivered, and how often it came back.
pub(super) fn marked(mark: u8) -> (bool, u32) {
    (mark & SEEN != 0, u32::from(mark & !SEEN))
}

pub(super) fn incoming(offset: Offset, head: &Head, mark: u8, is_seen: bool) -> Incoming {
    let (seen, delivery_count) = marked(mark);
    Incoming {
        offset,
        size: head.body_len,
        priority: head.priority,
        persistent: head.persistent,
        expiration_ms: head.expiration_ms,
        redelivered: is_seen || seen,
        delivery_count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_says_how_often_it_came_back() {
        let offset = Offset::new(7);
        let head = Head { body_len: 5, ..Head::default() };
        for (count, want) in [(0, 0), (1, 1), (126, 126), (127, 127), (128, 127), (u32::MAX, 127)] {
            let message = incoming(offset, &head, mark(count), false);
            assert_eq!((message.redelivered, message.delivery_count), (true, want), "{count}");
        }
        assert!(!incoming(offset, &head, 0, false).redelivered, "nobody saw it");
        assert!(incoming(offset, &head, 0, true).redelivered, "nobody knows");
    }
}
