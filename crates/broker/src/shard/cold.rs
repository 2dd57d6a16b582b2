//! Records that cannot be read yet, and what waits for a record: those that are on disk and not in memory, which are
//! read ahead, and those of a replicated log that are not agreed upon.
//!
//! A turn never waits for a disk or for another node. A queue whose next record is to come stops at this message, so its
//! order stands. A `basic.get` that needs such a record is parked. When the log has new records, all of them go on.
//! Dead letters wait in a line of their own, as there may be millions: only the first ones are read, and only as many are
//! on their way to their targets as a turn or two take.
//!
//! A queue that has met a cold record reads ahead: while consumers take the records that were fetched, the next piece is
//! on its way. [`Ahead`] counts how far from its front the queue has asked for records.
//!
//! A message whose record cannot be read is *set aside*: its queue keeps it and delivers it to nobody, and the log keeps
//! its record. So a start with a whole file has the message again.

use std::collections::{BTreeSet, VecDeque};

use leveret_log::{Log, ReadError};
use leveret_queue::{Left, Offset, Queue, Time};
use leveret_topology::{QueueId, Topology};

use super::confirms::{Confirms, Way};
use super::recover::mark_of_left;
use super::stuck::Stuck;
use super::{Counters, Shard, describe, log_offset};
use crate::message::{Outbox, ToShard};

/// Bytes that one queue asks for at once, and messages. Small messages lie close together on disk.
const AHEAD_BYTES: u64 = 1 << 20;
const AHEAD_MESSAGES: usize = 4096;

/// So many queues may read ahead that much; more share it. What all of them ask for has to fit into the
/// memory for what was read, or it is dropped before they come to it.
const AHEAD_QUEUES: usize = 4;
const AHEAD_MESSAGES_MIN: usize = 16;

/// Dead letters that are asked for at once.
const LETTERS_ASKED: usize = 64;

/// Dead letters that may wait for their targets' answers before more are read.
const LETTERS_UNDER_WAY: usize = 256;

/// How much of a queue's front was asked for. Zero for a queue that never ran into the cold.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ahead {
    /// Messages from the front on that were asked for and not delivered yet.
    messages: u32,
    /// How many the last request was for.
    asked: u32,
}

impl Ahead {
    /// So many were delivered. Returns whether it is time to ask for more.
    pub(super) fn delivered(&mut self, count: u32) -> bool {
        self.messages = self.messages.saturating_sub(count);
        self.asked > 0 && self.messages <= self.asked / 2
    }
}

/// What cannot go on before a record can be read.
#[derive(Debug)]
pub(super) enum Parked {
    /// Of somebody who asked for it.
    Letter(ToShard),
    /// A dead letter that was tried before.
    Stuck(QueueId, Stuck),
}

/// All that waits for records.
#[derive(Debug, Default)]
pub(super) struct Cold {
    /// Each by the record that it stopped at.
    queues: BTreeSet<(leveret_log::Offset, QueueId)>,
    /// How many queues waited when records came last.
    crowd: usize,
    parked: Vec<Parked>,
    /// Messages that left their queues and wait here to be dead-lettered, in order.
    left: VecDeque<(QueueId, Left)>,
}

impl Cold {
    /// About how many bytes it takes.
    pub(super) fn bytes(&self) -> u64 {
        (self.left.len() * size_of::<(QueueId, Left)>()) as u64
    }

    /// Parks what waits for records that were asked for.
    pub(super) fn park_letter(&mut self, what: Parked) {
        self.parked.push(what);
    }

    /// Dead letters that were tried before, and wait here to be tried again.
    pub(super) fn retries(&self) -> u64 {
        self.parked.iter().filter(|what| matches!(what, Parked::Stuck(..))).count() as u64
    }

    /// Messages that left their queues and wait here, with what the log is to know of each. Their queues
    /// tell of those that they hold.
    pub(super) fn marks(&self) -> impl Iterator<Item = (QueueId, Offset, u8)> {
        self.left.iter().filter_map(|&(id, left)| mark_of_left(id, left))
    }
}

/// Who hears of a message that is set aside.
#[derive(Debug)]
pub(super) struct Aside<'a> {
    pub(super) unreadable: &'a mut Vec<(QueueId, ReadError)>,
    pub(super) counters: &'a mut Counters,
    pub(super) confirms: &'a mut Confirms,
}

impl Aside<'_> {
    /// A message is set aside, once: tells the operator, and a publisher who waits for its ack.
    #[cold]
    pub(super) fn note(&mut self, queue: QueueId, at: Offset, error: ReadError) {
        self.counters.unreadable += 1;
        self.confirms.left(at.get(), queue, Way::Lost);
        self.unreadable.push((queue, error));
    }
}

impl<L: Log> Shard<L> {
    /// See [`Aside`].
    pub(super) fn aside(&mut self) -> Aside<'_> {
        let Self { unreadable, counters, confirms, .. } = self;
        Aside { unreadable, counters, confirms }
    }

    /// Tells the operator what was set aside in this turn: a line for each queue.
    #[cold]
    pub(super) fn tell_unreadable(&mut self, topology: &Topology) {
        let mut all = std::mem::take(&mut self.unreadable);
        all.sort_by_key(|&(queue, _)| queue);
        for run in all.chunk_by(|(a, _), (b, _)| a == b) {
            let Some(&(id, error)) = run.first() else { continue };
            let queue = topology.queue_by_id(id).map(|queue| describe(queue, topology));
            tracing::error!(
                queue = queue.unwrap_or_else(|| id.to_string()),
                shard = self.group.get(),
                messages = run.len(),
                first = %error,
                "messages cannot be read and are set aside. To get them back, stop the broker, restore the file \
                 from a copy, and start again"
            );
        }
    }

    /// A queue's next record is to come: asks for it and, unless that was on its way, for what follows.
    pub(super) fn wait_for_next(&mut self, id: QueueId) {
        let Some(hosted) = self.queues.get_mut(&id) else { return };
        let Some(at) = next(&hosted.queue).map(log_offset) else { return };
        if let Some(before) = hosted.waits_for.replace(at).filter(|&before| before != at) {
            self.cold.queues.remove(&(before, id));
        }
        self.cold.queues.insert((at, id));
        if !self.log.is_asked(at) {
            self.read_ahead(id, true);
        }
        self.log.fetch(&[at]);
    }

    /// Asks for the next piece of a queue. `is_stopped`: from the very front on.
    pub(super) fn read_ahead(&mut self, id: QueueId, is_stopped: bool) {
        let Some(hosted) = self.queues.get_mut(&id) else { return };
        let skip = if is_stopped { 0 } else { hosted.ahead.messages as usize };
        let share = self.cold.queues.len().max(self.cold.crowd).div_ceil(AHEAD_QUEUES).max(1);
        let soon = soon(&hosted.queue, skip, share);
        hosted.ahead = match soon.len() as u32 {
            0 => Ahead::default(),
            count => Ahead { messages: skip as u32 + count, asked: count },
        };
        self.log.fetch_ahead(&soon);
    }

    /// Parks what needs the record `at`, which is to come.
    pub(super) fn park(&mut self, at: Offset, what: Parked) {
        self.log.fetch(&[log_offset(at)]);
        self.cold.parked.push(what);
    }

    /// A dead letter whose record is to come waits for those before it.
    pub(super) fn park_dead_letter(&mut self, id: QueueId, left: Left) {
        self.cold.left.push_back((id, left));
    }

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
            let Some(&(id, left)) = self.cold.left.front() else { return false };
            let at = left.offset();
            if self.is_to_come(at) {
                let is_asked = self.log.is_asked(log_offset(at));
                let count = if is_asked { 1 } else { LETTERS_ASKED };
                let first = self.cold.left.iter().take(count);
                let soon: Vec<_> = first.map(|(_, left)| log_offset(left.offset())).collect();
                self.log.fetch(&soon);
                return false;
            }
            self.cold.left.pop_front();
            self.work_off(id, left, topology, now, out);
        }
        // The others go on when these have their answers; those of transient ones nobody waits for.
        !self.cold.left.is_empty() && self.awaited.len() < LETTERS_UNDER_WAY
    }

    /// Whether the record cannot be read now, and will be. One that is damaged or gone will not: reading it says so.
    pub(super) fn is_to_come(&self, at: Offset) -> bool {
        self.log.read(log_offset(at)).is_err_and(|error| error.is_to_come())
    }

    /// Messages that left their queue and are to be dead-lettered, but have to be read from the disk first, or
    /// wait for a turn with room for them.
    pub fn parked(&self) -> u64 {
        self.cold.left.len() as u64 + self.letters_waiting + self.leaving()
    }

    /// Records came, from the disk or by agreement: lets all that waits try again.
    pub(super) fn warmed(&mut self, topology: &Topology, now: Time, out: &mut Outbox) {
        // A failure is final, and comes again at the end of the turn.
        let _ = self.log.collect();
        self.cold.crowd = self.cold.queues.len();
        let Self { cold, log, queues, touched, .. } = self;
        log.each_fetched(&mut |at| {
            let from = (at, QueueId::new(0));
            while let Some(&(_, id)) = cold.queues.range(from..).next().filter(|it| it.0 == at) {
                cold.queues.remove(&(at, id));
                if let Some(hosted) = queues.get_mut(&id) {
                    // It may have been dropped again: then the queue asks again.
                    hosted.waits_for = None;
                    super::touch(hosted, id, touched);
                }
            }
        });
        for parked in std::mem::take(&mut self.cold.parked) {
            match parked {
                Parked::Letter(letter) => self.do_now(letter, topology, now, out),
                Parked::Stuck(id, stuck) => self.try_again(id, stuck, topology, now, out),
            }
        }
    }
}

/// The message that a queue waits for.
fn next(queue: &Queue) -> Option<Offset> {
    let mut next = None;
    queue.upcoming(0, 1, |at, _| next = Some(at));
    next
}

/// The next messages of a queue that fit one request, of which it has one part in `share`.
fn soon(queue: &Queue, skip: usize, share: usize) -> Vec<leveret_log::Offset> {
    let (mut soon, mut bytes) = (Vec::new(), 0);
    let messages = (AHEAD_MESSAGES / share).max(AHEAD_MESSAGES_MIN);
    let bytes_max = AHEAD_BYTES / share as u64;
    queue.upcoming(skip, messages, |at, size| {
        if bytes < bytes_max {
            bytes += u64::from(size);
            soon.push(log_offset(at));
        }
    });
    soon
}
