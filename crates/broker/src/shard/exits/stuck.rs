//! Held dead letters that found no target, or not all of their targets: they are tried again, few at a time.
//! There may be millions of them, and each try costs as much as a publish.
//!
//! After each pause the [`TRIES`] dead letters of a queue that wait longest are tried. One more is tried for each dead letter of
//! that queue that reached all of its targets. So they cost nearly nothing while their target is away or full, and
//! move as quickly as the target takes them when it is back.

use std::collections::{BTreeSet, VecDeque};

use leveret_queue::{Offset, Reason, Time};
use leveret_topology::QueueId;

use super::Map;

/// Pause before dead letters of a queue are tried again, in ms.
const RETRY_MS: u64 = 1_000;

/// Dead letters of one queue that are tried after a pause: as many as RabbitMQ has under way.
const TRIES: usize = 32;

/// A held dead letter that waits for its next try.
#[derive(Clone, Debug)]
pub(in super::super) struct Stuck {
    pub(in super::super) offset: Offset,
    pub(in super::super) reason: Reason,
    /// Targets that have it already and do not get it again.
    pub(in super::super) taken: Vec<QueueId>,
}

/// All of a shard.
#[derive(Debug, Default)]
pub(super) struct Retries {
    /// Those that have some.
    queues: Map<QueueId, WaitingLetters>,
    /// When each of these is due.
    due: BTreeSet<(Time, QueueId)>,
    /// A dead letter of one of these went, as often as it is named.
    went: Vec<QueueId>,
}

/// The dead letters of one queue that wait for their next try.
#[derive(Debug)]
struct WaitingLetters {
    due: Time,
    /// Those that wait longest first.
    letters: VecDeque<Stuck>,
}

impl Retries {
    /// It was tried.
    pub(super) fn add(&mut self, queue: QueueId, letter: Stuck, now: Time) {
        let waiting = self.queues.entry(queue).or_insert_with(|| {
            let due = now.after_ms(RETRY_MS);
            self.due.insert((due, queue));
            WaitingLetters { due, letters: VecDeque::new() }
        });
        waiting.letters.push_back(letter);
    }

    /// A dead letter of the queue got where it was to go: so may another one.
    pub(super) fn went(&mut self, queue: QueueId) {
        if self.queues.contains_key(&queue) {
            self.went.push(queue);
        }
    }

    /// The queue is gone.
    pub(super) fn forget(&mut self, queue: QueueId) {
        if let Some(waiting) = self.queues.remove(&queue) {
            self.due.remove(&(waiting.due, queue));
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.due.first().map(|&(at, _)| at)
    }

    /// Whether some are to be tried now.
    pub(super) fn is_due(&self, now: Time) -> bool {
        !self.went.is_empty() || self.next_timeout().is_some_and(|at| at <= now)
    }

    /// Those of one queue that are to be tried now.
    pub(super) fn take(&mut self, now: Time) -> Vec<(QueueId, Stuck)> {
        let mut taken = Vec::new();
        if let Some(queue) = self.went.pop() {
            self.take_of(queue, 1, &mut taken);
        } else if let Some(&(_, queue)) = self.due.first().filter(|(at, _)| *at <= now) {
            self.put_off(queue, now.after_ms(RETRY_MS));
            self.take_of(queue, TRIES, &mut taken);
        }
        taken
    }

    fn put_off(&mut self, queue: QueueId, due: Time) {
        if let Some(waiting) = self.queues.get_mut(&queue) {
            self.due.remove(&(std::mem::replace(&mut waiting.due, due), queue));
            self.due.insert((due, queue));
        }
    }

    fn take_of(&mut self, queue: QueueId, count: usize, taken: &mut Vec<(QueueId, Stuck)>) {
        let Some(waiting) = self.queues.get_mut(&queue) else { return };
        let count = count.min(waiting.letters.len());
        taken.extend(waiting.letters.drain(..count).map(|letter| (queue, letter)));
        if waiting.letters.is_empty() {
            self.forget(queue);
        }
    }
}
