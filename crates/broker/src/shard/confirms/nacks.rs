//! Why publishers are told no: a count for each reason, and a line of the log for each queue that has it.
//!
//! `basic.nack` has no place for a reason, so who wonders looks here. A queue is named once in [`TELL_MS`] for each reason.

use foldhash::fast::FixedState;
use hashbrown::HashSet;
use leveret_queue::Time;
use leveret_topology::{QueueId, Topology};

use super::super::describe;

/// How long a queue that was named is not named again for the same reason.
const TELL_MS: u64 = 10_000;

/// Queues that are named in that time; those beyond are counted only.
const NAMED_MAX: usize = 1024;

/// Why a message was not confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NackReason {
    /// A queue is full and refuses messages.
    Full,
    /// It left a queue that was to have it acked in another way, or the queue itself is gone.
    Lost,
    /// The log did not take it.
    NotStored,
    /// What it waits for did not come in time.
    TimedOut,
}

impl NackReason {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Full, Self::Lost, Self::NotStored, Self::TimedOut];

    /// As metrics name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Lost => "lost",
            Self::NotStored => "not_stored",
            Self::TimedOut => "timed_out",
        }
    }

    const fn words(self) -> &'static str {
        match self {
            Self::Full => "it is full, and its overflow is reject-publish",
            Self::Lost => {
                "messages left it without the ack of a consumer that its rule wants (confirm-on), or it was deleted"
            }
            Self::NotStored => "messages could not be stored",
            Self::TimedOut => "what their messages wait for did not come in confirm-timeout",
        }
    }
}

/// Messages that were nacked, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nacked([u64; NackReason::ALL.len()]);

impl Nacked {
    /// From the [counts](Self::counts) of other ones.
    pub const fn from_counts(counts: [u64; NackReason::ALL.len()]) -> Self {
        Self(counts)
    }

    /// The counts, in the order of [`NackReason::ALL`].
    pub const fn counts(&self) -> [u64; NackReason::ALL.len()] {
        self.0
    }

    /// How many for this reason.
    pub const fn of(&self, reason: NackReason) -> u64 {
        self.0[reason as usize]
    }
}

/// All of a shard.
#[derive(Debug, Default)]
pub(super) struct Nacks {
    counts: Nacked,
    /// Those to be named at the end of the turn.
    noted: Vec<(Option<QueueId>, NackReason)>,
    named: HashSet<(Option<QueueId>, NackReason), FixedState>,
    /// Until then those that were named are not named again.
    until: Option<Time>,
}

impl Nacks {
    pub(super) fn counts(&self) -> Nacked {
        self.counts
    }

    /// A message is nacked because of this queue, if it is one that is known.
    #[cold]
    pub(super) fn add(&mut self, queue: Option<QueueId>, reason: NackReason) {
        self.counts.0[reason as usize] += 1;
        if self.named.len() < NAMED_MAX && self.named.insert((queue, reason)) {
            self.noted.push((queue, reason));
        }
    }

    /// Whether there is a queue to be named, or the time is over for those that were.
    fn is_due(&self, now: Time) -> bool {
        !self.noted.is_empty() || self.until.is_some_and(|until| until <= now)
    }

    /// Those to be named now.
    fn take(&mut self, now: Time) -> Vec<(Option<QueueId>, NackReason)> {
        let noted = std::mem::take(&mut self.noted);
        if self.until.is_none_or(|until| until <= now) {
            self.until = (!noted.is_empty()).then(|| now.after_ms(TELL_MS));
            // What is named now is not named again before that.
            self.named = noted.iter().copied().collect();
        }
        noted
    }

    /// Names those that are to be named now.
    #[inline]
    pub(super) fn say(&mut self, topology: &Topology, now: Time) {
        if self.is_due(now) {
            self.say_each(topology, now);
        }
    }

    #[cold]
    fn say_each(&mut self, topology: &Topology, now: Time) {
        for (queue, reason) in self.take(now) {
            let queue = queue.and_then(|id| topology.queue_by_id(id));
            let name = queue.map_or_else(|| "a queue".to_owned(), |it| describe(it, topology));
            let (why, nacked) = (reason.words(), self.counts.of(reason));
            tracing::warn!(
                target: "queue", from = name, reason = reason.name(), nacked,
                "{name}: publishers are nacked: {why}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_named_once_in_a_while() {
        let mut nacks = Nacks::default();
        let at = Time::from_ms;
        let (one, two) = (Some(QueueId::new(1)), Some(QueueId::new(2)));
        let mut named = |queue, reason, ms| {
            nacks.add(queue, reason);
            // As at the end of a turn.
            if nacks.is_due(at(ms)) { nacks.take(at(ms)).len() } else { 0 }
        };
        assert_eq!(named(one, NackReason::Full, 0), 1);
        assert_eq!(named(one, NackReason::Full, 1), 0);
        assert_eq!(named(one, NackReason::Lost, 2), 1);
        assert_eq!(named(two, NackReason::Full, 3), 1);
        // The time is over with the first that comes later.
        assert_eq!(named(two, NackReason::Full, TELL_MS), 0);
        assert_eq!(named(two, NackReason::Full, TELL_MS + 1), 1);
        assert_eq!(named(two, NackReason::Full, 5 * TELL_MS), 0);
        assert_eq!(named(two, NackReason::Full, 5 * TELL_MS + 1), 1);
        assert_eq!(nacks.counts().of(NackReason::Full), 7);
        for n in 0..10_000 {
            nacks.add(Some(QueueId::new(n)), NackReason::Lost);
        }
        assert!(nacks.take(at(0)).len() <= NAMED_MAX);
        assert_eq!(nacks.counts().of(NackReason::Lost), 10_001);
    }
}
