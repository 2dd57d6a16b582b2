//! Messages that left a queue all at once: by purge, with the queue itself, or because a consumer settled
//! very many with one method. Perhaps millions: let go of bit by bit, while clients have their answer
//! already. A process that is killed meanwhile may find some again, as one that is killed before the disk
//! heard of a release.

use std::collections::VecDeque;

use leveret_log::Log;
use leveret_queue::{Backlog, Left, Time};
use leveret_topology::{QueueId, Topology};

use super::Shard;
use super::recover::mark_of;
use super::unresolved::Way;
use crate::message::Outbox;

/// Messages released in one turn: about a millisecond. A dead letter counts for two.
const RELEASED_PER_TURN: u64 = 8192;

/// Messages that one letter may settle before they are let go of bit by bit.
pub(super) const SETTLED_AT_ONCE: usize = 4096;

/// What is to be let go of, oldest first.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    crowds: VecDeque<Crowd>,
    /// Of them, those that were settled.
    settled: usize,
}

/// What left together.
#[derive(Debug)]
enum Crowd {
    Backlog(QueueId, Backlog),
    Settled(std::vec::IntoIter<(QueueId, Left)>),
}

impl Leaving {
    /// About how many bytes it takes, without the records.
    pub(super) fn bytes(&self) -> u64 {
        let bytes = self.crowds.iter().map(|crowd| match crowd {
            Crowd::Backlog(_, backlog) => backlog.bytes(),
            Crowd::Settled(all) => (all.len() * size_of::<(QueueId, Left)>()) as u64,
        });
        bytes.sum()
    }

    /// Whether settled messages are among them: what is settled from now on goes behind those.
    pub(super) fn has_settled(&self) -> bool {
        self.settled > 0
    }

    /// How many of them are to be dead-lettered.
    pub(super) fn dead_letters(&self) -> u64 {
        let settled = self.crowds.iter().filter_map(|crowd| match crowd {
            Crowd::Backlog(..) => None,
            Crowd::Settled(all) => Some(all.as_slice()),
        });
        let is_dead = |(_, left): &&(QueueId, Left)| matches!(left, Left::DeadLetter { .. });
        settled.map(|all| all.iter().filter(is_dead).count() as u64).sum()
    }

    fn next(&mut self) -> Option<(QueueId, Left)> {
        while let Some(crowd) = self.crowds.front_mut() {
            let (next, is_settled) = match crowd {
                Crowd::Backlog(id, backlog) => (backlog.next().map(|left| (*id, left)), false),
                Crowd::Settled(all) => (all.next(), true),
            };
            if next.is_some() {
                return next;
            }
            self.settled -= usize::from(is_settled);
            self.crowds.pop_front();
        }
        None
    }
}

impl<L: Log> Shard<L> {
    /// These left the queue and are to be released.
    pub(super) fn let_go(&mut self, id: QueueId, backlog: Backlog) {
        if !backlog.is_empty() {
            self.leaving.crowds.push_back(Crowd::Backlog(id, backlog));
        }
    }

    /// These were settled, and are to be released or dead-lettered.
    pub(super) fn let_settled_go(&mut self, settled: Vec<(QueueId, Left)>) {
        if !settled.is_empty() {
            self.leaving.settled += 1;
            self.leaving.crowds.push_back(Crowd::Settled(settled.into_iter()));
        }
    }

    /// Lets some go. True when there are more.
    pub(super) fn release_leaving(
        &mut self,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) -> bool {
        let mut budget = RELEASED_PER_TURN;
        while budget > 0 {
            let Some((id, left)) = self.leaving.next() else { return false };
            budget -= if matches!(left, Left::DeadLetter { .. }) { budget.min(2) } else { 1 };
            self.work_off(id, left, topology, now, out);
        }
        !self.leaving.crowds.is_empty()
    }

    /// Lets all go that were settled: a queue is about to be deleted, and its dead letters would find
    /// neither it nor its dead-letter exchange.
    pub(super) fn release_settled(&mut self, topology: &Topology, now: Time, out: &mut Outbox) {
        while self.leaving.has_settled() {
            self.release_leaving(topology, now, out);
        }
    }

    /// The process stops: releases what is to be released. What was to be dead-lettered stays where it
    /// is, and comes back to its queue.
    pub(super) fn close_leaving(&mut self) {
        while let Some((id, left)) = self.leaving.next() {
            match left {
                Left::DeadLetter { offset, delivery_count, seen, .. } => {
                    self.mark_left(id, offset, mark_of(seen, delivery_count));
                }
                Left::Returned { .. } => {}
                _ => self.gone(left.offset(), id, Way::Lost),
            }
        }
    }
}
