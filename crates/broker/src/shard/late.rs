//! Messages that the log kept over a restart and that come late: of a long queue only the first ones have entries when the shard
//! begins, and the others are counted. The shard goes on with them bit by bit, in the order of the log, turn by turn, until there are none.
//!
//! ```text
//!   fill: all are counted ----> turns: some records a turn ----> the last one: queues as any others
//!         first ones restored    queues that ran out first give on
//! ```
//!
//! Invariants: a record that a queue counts and has no entry of is held by it, and by it alone is let go of, which needs an entry:
//! so it is there when its turn comes. What needs more than a queue's counts and its head waits for the messages that it
//! needs, while others have their turns: letters of clients in their lines, and here other options, and the end of a queue that
//! nobody uses or consumes from any more. What needs the head alone has it in the same turn if it is near; `basic.get` waits for
//! later turns else.
//!
//! What a turn brings is bounded by records and by what is read for it. A log that cannot be read has failed, and the process ends or
//! another one leads: until then queues stand still where they have no entries, count what they counted, and nobody is told anything
//! of it that is not so.

use std::collections::BTreeSet;

use leveret_log::{Log, Recovered, RecoveryLimits};
use leveret_queue::{Offset, Queue, Time};
use leveret_topology::{QueueId, Topology};

use super::jobs::cost;
use super::lifecycle::Asked;
use super::queues::{Hosted, Queues};
use super::recover::{Excluded, incoming};
use super::store::log_offset;
use super::{Shard, queue_offset};
use crate::message::{Outbox, Settlement, ToShard};
use crate::record::Head;

/// How much of its queues a shard has at first, and brings later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateLimits {
    /// Messages of a queue that are restored before the shard begins: more than a consumer usually has at once.
    pub first: u64,
    /// What is looked at for that, in all: some 20 ms. With more no queue gets entries that can do without.
    pub enough: RecoveryLimits,
    /// What is looked at in a turn: some 0.3 ms, unless the disk has to be waited for.
    pub turn: RecoveryLimits,
}

impl Default for LateLimits {
    fn default() -> Self {
        let enough = RecoveryLimits { records: 1 << 17, bytes: 16 << 20 };
        let turn = RecoveryLimits { records: 4_096, bytes: 512 << 10 };
        Self { first: 1_024, enough, turn }
    }
}

/// Records that are looked at for what needs a queue's head, in one go: some 20 ms.
const HEAD_RECORDS: u32 = 1 << 18;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Late {
    pub(super) limits: LateLimits,
    /// Unless all came.
    coming: Option<Box<Coming>>,
    /// Queues that are to have other options once all of their messages came,
    changed: BTreeSet<QueueId>,
    /// and those that are to go then, unless somebody consumes from them.
    unused: BTreeSet<QueueId>,
}

#[derive(Debug)]
struct Coming {
    /// Where the log is asked to go on.
    from: leveret_log::Offset,
    /// Messages that are counted only, of all queues.
    messages: u64,
    /// The log could not be read: nothing comes any more.
    has_failed: bool,
    /// What is below may have been delivered.
    seen_below: leveret_log::Offset,
    /// Records that are in no queue though queues hold them.
    excluded: Excluded,
}

impl Late {
    /// So many messages of the log are counted only, the first of them at `from`.
    pub(super) fn begin(
        &mut self,
        from: leveret_log::Offset,
        messages: u64,
        seen_below: leveret_log::Offset,
        excluded: Excluded,
    ) {
        self.coming =
            Some(Box::new(Coming { from, messages, has_failed: false, seen_below, excluded }));
    }

    /// All came, or are not to come.
    pub(super) fn end(&mut self) {
        self.coming = None;
    }

    /// Whether messages are to come.
    #[inline]
    pub(super) fn is_coming(&self) -> bool {
        self.coming.as_ref().is_some_and(|coming| !coming.has_failed)
    }

    /// Whether messages that are counted cannot be brought.
    pub(super) fn has_failed(&self) -> bool {
        self.coming.as_ref().is_some_and(|coming| coming.has_failed)
    }

    /// Whether something waits until all of a queue came.
    #[inline]
    pub(super) fn has_waiting(&self) -> bool {
        !self.changed.is_empty() || !self.unused.is_empty()
    }

    /// Whether there is something to do in the next turn.
    #[inline]
    pub(super) fn has_more(&self) -> bool {
        self.is_coming() || self.has_waiting() && !self.has_failed()
    }

    /// How often some are brought for what needs a queue's head.
    pub(super) fn brings_for_head(&self) -> u32 {
        HEAD_RECORDS / self.limits.turn.records.max(1)
    }
}

impl Coming {
    /// A record that is held, perhaps by queues that count it.
    fn record(&mut self, record: Recovered<'_>, queues: &mut Queues) {
        let (at, offset) = (record.at, queue_offset(record.at));
        let mut read = None;
        for &(holder, mark) in record.holders {
            let id = QueueId::new(holder.get());
            let Some(hosted) = queues.get_mut(id).filter(|it| it.queue.is_in_rest(offset)) else {
                continue;
            };
            if self.excluded.has(at.get()) {
                return;
            }
            if read.is_none() {
                read = Head::decode(record.head);
            }
            // One that is damaged was told of, and was not counted.
            let Some(head) = &read else { return };
            let was_at_rest = hosted.queue.is_at_rest();
            let message = incoming(offset, head, mark, at < self.seen_below);
            hosted.queue.restore_of_rest(message, Time::from_ms(head.published_ms));
            self.messages -= 1;
            if was_at_rest {
                queues.touch(id);
            }
        }
    }
}

/// The queue all of whose messages a client's letter needs, or an operator's.
fn needed_queue(letter: &ToShard) -> Option<QueueId> {
    match letter {
        ToShard::Purge { queue, .. }
        | ToShard::Look { queue, .. }
        | ToShard::Discard { queue, .. }
        | ToShard::Move { queue, .. }
        | ToShard::Delete { queue, .. } => Some(*queue),
        _ => None,
    }
}

impl<L: Log> Shard<L> {
    /// Changes how much is restored before the shard begins, and later. To be called before [`fill`](Self::fill).
    pub fn set_late_limits(&mut self, limits: LateLimits) {
        self.late.limits = limits;
    }

    /// Messages that are counted, and whose entries are to come.
    pub fn late_messages(&self) -> u64 {
        self.late.coming.as_ref().map_or(0, |coming| coming.messages)
    }

    /// Goes on with the messages that come late: with as many as a turn does.
    #[cold]
    pub(super) fn bring_late(&mut self) {
        let Self { late, queues, store, jobs, .. } = self;
        let (most, Some(coming)) = (late.limits.turn, &mut late.coming) else { return };
        jobs.pay(u64::from(most.records) / cost::LATE_A_UNIT);
        let from = coming.from;
        let told = store.recover_more(from, most, &mut |record| coming.record(record, queues));
        let Ok(next) = told else {
            // The log says why when it is asked to go on, at the end of the turn.
            coming.has_failed = true;
            return;
        };
        if let Some(next) = next.filter(|_| coming.messages > 0) {
            coming.from = next;
            return;
        }
        if coming.messages > 0 {
            self.forget_late();
        }
        self.late.end();
        self.store.recovered_all();
    }

    /// The log does not tell of messages that it had told of: there are none, and queues that wait for them go on.
    #[cold]
    fn forget_late(&mut self) {
        let lacking: Vec<QueueId> =
            self.queues.iter().filter(|(_, it)| it.queue.rest() > 0).map(|(id, _)| id).collect();
        for id in lacking {
            let count = self.queues.change(id, |hosted, _| hosted.queue.forget_rest());
            debug_assert_eq!(count, Some(0), "messages of {id:?} are not there");
            tracing::error!(
                queue = id.get(),
                messages = count,
                "messages that a queue counted are not there: they are in no queue until the next start"
            );
        }
    }

    /// Brings messages while the queue is as it is to be no longer.
    fn bring_while(&mut self, id: QueueId, lacks: impl Fn(&Queue) -> bool) {
        while self.late.is_coming() && self.queues.get(id).is_some_and(|it| lacks(&it.queue)) {
            self.bring_late();
        }
    }

    /// Brings all of a queue: for what is decided by more than its counts and its head. Who waited in a line has all of it. False
    /// if they cannot be brought: then nothing is to be decided.
    #[inline]
    pub(super) fn bring_all(&mut self, id: QueueId) -> bool {
        if self.late.is_coming() {
            self.bring_while(id, |queue| queue.rest() > 0);
        }
        !self.waits_for_all(id)
    }

    /// Whether a queue lacks messages.
    #[inline]
    pub(super) fn waits_for_all(&self, id: QueueId) -> bool {
        self.late.coming.is_some() && self.queues.get(id).is_some_and(|it| it.queue.rest() > 0)
    }

    /// A queue has other options. True if that has to wait until all of its messages came.
    pub(super) fn changes_later(&mut self, id: QueueId) -> bool {
        let waits = self.waits_for_all(id);
        if waits {
            self.late.changed.insert(id);
        }
        waits
    }

    /// A queue goes as nobody consumes from it any more. True if that has to wait until all of its messages came.
    pub(super) fn goes_later(&mut self, id: QueueId) -> bool {
        let waits = self.waits_for_all(id);
        if waits {
            self.late.unused.insert(id);
        }
        waits
    }

    /// Does what waited for all messages of a queue.
    #[cold]
    pub(super) fn go_on_with_whole(&mut self, topology: &Topology, now: Time, out: &mut Outbox) {
        let waiting = [&self.late.changed, &self.late.unused].into_iter().flatten();
        let whole: BTreeSet<_> = waiting.copied().filter(|id| !self.waits_for_all(*id)).collect();
        for id in whole {
            if self.late.changed.remove(&id) {
                self.options_changed(id, topology, now);
            }
            let is_unused = |hosted: &Hosted| hosted.consumers.is_empty();
            if self.late.unused.remove(&id) && self.queues.get(id).is_some_and(is_unused) {
                self.delete_for_good(id, Asked::default(), topology, now, out);
            }
        }
    }

    /// What it costs about to bring all of the queue whose messages a letter needs: more than a turn has room for, so that it waits.
    #[inline]
    pub(super) fn price_of_late(&self, letter: &ToShard) -> u64 {
        match &self.late.coming {
            None => 0,
            Some(coming) => {
                let needs = needed_queue(letter).is_some_and(|id| self.waits_for_all(id));
                let least = self.jobs.limits().turn;
                if needs { 1 + least.max(coming.messages / cost::LATE_A_UNIT) } else { 0 }
            }
        }
    }

    /// Brings messages for a letter that waits in its line, for as long as a piece of a turn lasts. What it costs to bring the others.
    #[cold]
    pub(super) fn bring_for(&mut self, letter: &ToShard, allowed: u64) -> u64 {
        loop {
            let price = self.price_of_late(letter);
            if price == 0 || self.late.has_failed() || self.jobs.used() >= allowed {
                return price;
            }
            self.bring_late();
        }
    }

    /// Brings what a queue has up to an offset: for what names its messages.
    #[inline]
    pub(super) fn bring_to(&mut self, id: QueueId, offset: Offset) {
        if self.late.is_coming() {
            let from = log_offset(offset);
            while self.late.is_coming()
                && self.late.coming.as_ref().is_some_and(|coming| coming.from <= from)
                && self.queues.get(id).is_some_and(|it| it.queue.has_rest_to(offset))
            {
                self.bring_late();
            }
        }
    }

    /// Brings what these name.
    #[cold]
    pub(super) fn bring_to_all(&mut self, settlements: &[Settlement]) {
        settlements.iter().for_each(|it| self.bring_to(it.queue, it.offset));
    }

    /// Whether the message that a queue gives out next is to come.
    #[inline]
    pub(super) fn is_at_rest(&self, id: QueueId) -> bool {
        self.late.coming.is_some() && self.queues.get(id).is_some_and(|it| it.queue.is_at_rest())
    }
}
