//! Records that cannot be read yet, and what waits for a record: those that are on disk and not in memory, which are
//! read ahead, and those of a replicated log that are not agreed upon.
//!
//! A turn never waits for a disk or for another node. A queue whose next record is to come stops at this message, so its
//! order stands. A `basic.get` that needs such a record is parked. When the log has new records, all of them go on.
//! Dead letters that are not tried yet wait in a [line of their own](super::super::exits).
//!
//! A queue that has met a cold record reads ahead: while consumers take the records that were fetched, the next piece is
//! on its way. [`Reading`] counts how far from its front the queue has asked for records.

use std::collections::BTreeSet;

use leveret_log::Log;
use leveret_queue::{Offset, Queue};
use leveret_topology::QueueId;

use super::super::exits::Stuck;
use super::{Store, log_offset};
use crate::message::ToShard;

/// Bytes that one queue asks for at once, and messages. Small messages lie close together on disk.
const AHEAD_BYTES: u64 = 1 << 20;
const AHEAD_MESSAGES: usize = 4096;

/// So many queues may read ahead that much; more share it. What all of them ask for has to fit into the
/// memory for what was read, or it is dropped before they come to it.
const AHEAD_QUEUES: usize = 4;
const AHEAD_MESSAGES_MIN: usize = 16;

/// What a queue asks for at first; each next time it may be twice as much. Of queues whose consumers come one after the other
/// the first ones would ask for a piece each of that length, as if they were alone.
const AHEAD_MESSAGES_FIRST: usize = 64;

/// What a queue waits for, and how much of its front was asked for: nothing for one that never ran into the cold.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct Reading {
    /// The record that is to come before the queue goes on, by which [`Cold`] has it.
    waits_for: Option<leveret_log::Offset>,
    /// Messages from the front on that were asked for and not delivered yet.
    messages: u32,
    /// How many the last request was for.
    asked: u32,
}

impl Reading {
    /// Whether the queue stands still until a record comes.
    pub(in super::super) fn waits(&self) -> bool {
        self.waits_for.is_some()
    }

    /// So many were delivered. Returns whether it is time to ask for more.
    pub(in super::super) fn delivered(&mut self, count: u32) -> bool {
        self.messages = self.messages.saturating_sub(count);
        self.asked > 0 && self.messages <= self.asked / 2
    }

    /// The record came. It may have been dropped again: then the queue asks again.
    pub(in super::super) fn goes_on(&mut self) {
        self.waits_for = None;
    }
}

/// What cannot go on before a record can be read.
#[derive(Debug)]
pub(in super::super) enum Parked {
    /// Of somebody who asked for it.
    Letter(ToShard),
    /// A dead letter that was tried before.
    Stuck(QueueId, Stuck),
}

/// All that waits for records, but for dead letters that are not tried yet.
#[derive(Debug, Default)]
pub(super) struct Cold {
    /// Each by the record that it stopped at.
    queues: BTreeSet<(leveret_log::Offset, QueueId)>,
    /// How many queues waited when records came last.
    crowd: usize,
    parked: Vec<Parked>,
}

impl Cold {
    /// Parks what waits for records that were asked for.
    pub(super) fn park(&mut self, what: Parked) {
        self.parked.push(what);
    }
}

impl<L: Log> Store<L> {
    /// A queue's next record is to come: asks for it and, unless that was on its way, for what follows.
    pub(in super::super) fn wait_for_next(
        &mut self,
        id: QueueId,
        queue: &Queue,
        reading: &mut Reading,
    ) {
        let Some(at) = next(queue).map(log_offset) else { return };
        if let Some(before) = reading.waits_for.replace(at).filter(|&before| before != at) {
            self.cold.queues.remove(&(before, id));
        }
        self.cold.queues.insert((at, id));
        if !self.log.is_asked(at) {
            self.read_from(0, queue, reading);
        }
        self.log.fetch(&[at]);
    }

    /// Asks for the next piece of a queue.
    pub(in super::super) fn read_ahead(&mut self, queue: &Queue, reading: &mut Reading) {
        self.read_from(reading.messages as usize, queue, reading);
    }

    /// Asks for a piece of a queue, without its first messages.
    fn read_from(&mut self, skip: usize, queue: &Queue, reading: &mut Reading) {
        let share = self.cold.queues.len().max(self.cold.crowd).div_ceil(AHEAD_QUEUES).max(1);
        let most = (2 * reading.asked as usize).max(AHEAD_MESSAGES_FIRST);
        let soon = soon(queue, skip, share, most);
        (reading.messages, reading.asked) = match soon.len() as u32 {
            0 => (0, 0),
            count => (skip as u32 + count, count),
        };
        self.log.fetch_ahead(&soon);
    }

    /// Asks for records that are wanted soon.
    pub(in super::super) fn fetch(&mut self, soon: impl Iterator<Item = Offset>) {
        self.log.fetch(&soon.map(log_offset).collect::<Vec<_>>());
    }

    /// Whether a record that is to come was asked for.
    pub(in super::super) fn is_asked(&self, at: Offset) -> bool {
        self.log.is_asked(log_offset(at))
    }

    /// Parks what needs the record `at`, which is to come.
    pub(in super::super) fn park(&mut self, at: Offset, what: Parked) {
        self.log.fetch(&[log_offset(at)]);
        self.cold.park(what);
    }

    /// Takes all that is parked.
    pub(in super::super) fn take_parked(&mut self) -> Vec<Parked> {
        std::mem::take(&mut self.cold.parked)
    }

    /// Dead letters that were tried before, and wait here to be tried again.
    pub(in super::super) fn parked_retries(&self) -> u64 {
        self.cold.parked.iter().filter(|what| matches!(what, Parked::Stuck(..))).count() as u64
    }

    /// Records came, from the disk or by agreement: names the queues that waited for them, and returns what else did.
    pub(in super::super) fn came(&mut self, mut each: impl FnMut(QueueId)) -> Vec<Parked> {
        // A failure is final, and comes again at the end of the turn.
        let _ = self.log.collect();
        let Self { cold, log, .. } = self;
        cold.crowd = cold.queues.len();
        log.each_fetched(&mut |at| {
            let from = (at, QueueId::new(0));
            while let Some(&(_, id)) = cold.queues.range(from..).next().filter(|it| it.0 == at) {
                cold.queues.remove(&(at, id));
                each(id);
            }
        });
        std::mem::take(&mut cold.parked)
    }
}

/// The message that a queue waits for.
fn next(queue: &Queue) -> Option<Offset> {
    let mut next = None;
    queue.upcoming(0, 1, |at, _| next = Some(at));
    next
}

/// The next messages of a queue that fit one request, of which it has one part in `share`: at most so many.
fn soon(queue: &Queue, skip: usize, share: usize, most: usize) -> Vec<leveret_log::Offset> {
    let (mut soon, mut bytes) = (Vec::new(), 0);
    let messages = (AHEAD_MESSAGES / share).max(AHEAD_MESSAGES_MIN).min(most);
    let bytes_max = AHEAD_BYTES / share as u64;
    queue.upcoming(skip, messages, |at, size| {
        if bytes < bytes_max {
            bytes += u64::from(size);
            soon.push(log_offset(at));
        }
    });
    soon
}
