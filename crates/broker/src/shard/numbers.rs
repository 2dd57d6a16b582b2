//! What is told of the shard in numbers: see [`numbers`](crate::numbers).
//!
//! A round goes over the queues there were when it began, [`PIECE`] of them per letter. A queue that is
//! deleted meanwhile is counted once: before it was looked at among those that are gone, after it as
//! it was then, and the difference comes with the next round.

use std::collections::BTreeMap;

use leveret_amqp::content::RawProperties;
use leveret_log::Log;
use leveret_queue::{Time, Totals};
use leveret_topology::{QueueId, QueueKind};

use super::Shard;
use super::queues::Hosted;
use crate::message::{ConnectionId, Outbox, Reply, ReplyTo};
use crate::numbers::{GoneQueues, HeadFacts, QueueNumbers, ShardNumbers, ShardRest};
use crate::record::View;

/// Queues looked at in one turn: well below a millisecond.
const PIECE: usize = 2048;

/// How a queue is used, in times.
#[derive(Debug)]
pub(super) struct Use {
    /// When it was last dispatched.
    used: Time,
    /// Since when messages are ready that no consumer can take.
    waits_since: Option<Time>,
    /// How long that was the case before.
    waited_ms: u64,
}

impl Use {
    pub(super) fn new(now: Time) -> Self {
        Self { used: now, waits_since: None, waited_ms: 0 }
    }

    /// The queue was dispatched; `waits`: messages are ready, and nobody can take them.
    #[inline]
    pub(super) fn dispatched(&mut self, waits: bool, now: Time) {
        self.used = now;
        if waits != self.waits_since.is_some() {
            self.waited_ms = self.waited_ms(now);
            self.waits_since = waits.then_some(now);
        }
    }

    fn waited_ms(&self, now: Time) -> u64 {
        let since = self.waits_since.map_or(0, |since| now.ms().saturating_sub(since.ms()));
        self.waited_ms + since
    }
}

/// Queues that are told apart when they are gone: by type, and by what their dead letters are worth.
pub(super) type Kind = (QueueKind, bool);

/// A round, and what is remembered of queues that are gone.
#[derive(Debug, Default)]
pub(super) struct Sampling {
    asker: ConnectionId,
    /// Of the round: marks the queues that were looked at.
    round: u32,
    /// Still to be looked at.
    queues: Vec<QueueId>,
    gone: BTreeMap<Kind, Totals>,
    /// Of those that are gone: what was looked at in this round before it went.
    seen: BTreeMap<Kind, Totals>,
}

impl<L: Log> Shard<L> {
    /// The next piece for whoever asks; the first one of a new round if it `begins`.
    pub(super) fn sample(&mut self, reply: ReplyTo, begins: bool, now: Time, out: &mut Outbox) {
        if begins || self.sampling.asker != reply.connection {
            self.sampling.asker = reply.connection;
            self.sampling.round = self.sampling.round.wrapping_add(1);
            self.sampling.queues.clear();
            self.sampling.queues.extend(self.queues.iter().map(|(id, _)| id));
            self.sampling.seen.clear();
        }
        let left = self.sampling.queues.len().saturating_sub(PIECE);
        let piece = self.sampling.queues.split_off(left);
        let mut queues = Vec::with_capacity(piece.len());
        for id in piece {
            if let Some(hosted) = self.queues.get_mut(id) {
                hosted.seen_in = self.sampling.round;
            }
            queues.extend(self.queue_numbers(id, now));
        }
        let rest = self.sampling.queues.is_empty().then(|| self.rest_numbers());
        let numbers = ShardNumbers { group: self.group, queues, rest };
        out.reply(reply, Reply::Sampled(Box::new(numbers)));
    }

    /// Numbers of one queue.
    pub(super) fn queue_numbers(&self, id: QueueId, now: Time) -> Option<QueueNumbers> {
        let hosted = self.queues.get(id)?;
        Some(QueueNumbers {
            queue: id,
            kind: hosted.kind,
            at_least_once: hosted.queue.options().at_least_once,
            counts: hosted.queue.counts(),
            paged_out: self.store.paged_out(id),
            totals: *hosted.queue.totals(),
            head: self.head(hosted),
            used: hosted.usage.used,
            waited_ms: hosted.usage.waited_ms(now),
            is_in_flow: self.store.is_in_flow(hosted.flow_in),
            memory_bytes: hosted.queue.message_bytes(),
        })
    }

    /// The message at the queue's head, unless it is on the disk only.
    fn head(&self, hosted: &Hosted) -> Option<HeadFacts> {
        let record = self.store.read(hosted.queue.head()?).ok()?;
        let view = View::of(&record.bytes)?;
        Some(HeadFacts {
            published_ms: view.head.published_ms.saturating_add_signed(-self.outside.clock_step_ms),
            timestamp_s: RawProperties::new(view.properties).timestamp(),
        })
    }

    fn rest_numbers(&self) -> ShardRest {
        let Sampling { gone, seen, .. } = &self.sampling;
        let gone = gone.iter().map(|(kind, totals)| {
            let mut totals = *totals;
            if let Some(seen) = seen.get(kind) {
                totals -= *seen;
            }
            GoneQueues { kind: kind.0, at_least_once: kind.1, totals }
        });
        ShardRest {
            gone: gone.collect(),
            counters: self.counters,
            confirmed: self.confirms.confirmed(),
            nacked: self.confirms.nacks(),
            log: self.store.usage(),
            queue_bytes: self.queues.bytes(),
            unresolved_bytes: self.confirms.bytes(),
            held_bytes: self.held_bytes(),
        }
    }

    /// A queue goes: its totals stay.
    pub(super) fn keep_totals(&mut self, hosted: &Hosted) {
        let kind = kind_of(hosted);
        let totals = *hosted.queue.totals();
        *self.sampling.gone.entry(kind).or_default() += totals;
        if hosted.seen_in == self.sampling.round {
            *self.sampling.seen.entry(kind).or_default() += totals;
        }
    }

    /// A dead letter of a queue that is gone is safe in its targets.
    pub(super) fn count_confirmed(&mut self, kind: Kind) {
        self.sampling.gone.entry(kind).or_default().dead_letters_confirmed += 1;
    }
}

/// By what the totals of a queue are kept when it goes.
pub(super) fn kind_of(hosted: &Hosted) -> Kind {
    (hosted.kind, hosted.queue.options().at_least_once)
}
