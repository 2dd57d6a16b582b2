//! Messages on their way from one queue to others: dead letters, and what operators move.
//!
//! ```text
//!   left --> in the line of their queue --> parked --> sent ---> gone
//!             until a turn has room         until they | ^
//!                                           are read   v |
//!                                                     stuck
//! ```
//!
//! There may be millions of dead letters: a limit of a long queue was set, or its messages' time is over. They stay in their queue
//! while others of it are in line, and in line while as many are parked as a turn takes or the disk is far behind. Of those that are
//! parked only the first ones are read, and only as many are on their way to their targets as a turn or two take. So they take no more
//! memory than they took in their queue, and come back from the disk no faster than it takes them elsewhere.

mod former;
mod moves;
mod parked;
mod stuck;

use std::collections::{BTreeMap, VecDeque};

use leveret_queue::{Left, Offset, Reason, Time, UnackedId};
use leveret_topology::QueueId;

use super::Map;
use super::recover::mark_of_left;
use crate::message::{ConnectionId, PutResult, ReplyTo, ToShard};
use former::Formers;
use parked::ParkedLetters;
use stuck::Retries;

pub(super) use former::LeftQueue;
pub(super) use moves::Moving;
pub(super) use stuck::Stuck;

/// Where a message is while its targets take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whereabouts {
    /// The queue holds it: the at-least-once strategy.
    Held(Reason),
    /// It has left, but for its record.
    Departed {
        reason: Reason,
        /// For the log, should the process stop before the targets have it.
        mark: u8,
    },
    /// An operator moves it: it is unacked, and nobody's.
    Moved {
        /// The queue's name for it.
        id: UnackedId,
        /// Who waits for it.
        by: ConnectionId,
    },
}

/// A message that was sent to its targets.
#[derive(Debug)]
pub(super) struct Sent {
    /// Those who have not answered.
    pub(super) answers: u32,
    pub(super) whereabouts: Whereabouts,
    /// Targets that have it, from this try and earlier ones.
    pub(super) taken: Vec<QueueId>,
    pub(super) is_refused: bool,
    /// A target had no room on its disk.
    pub(super) is_unstored: bool,
}

/// All of a shard.
#[derive(Debug, Default)]
pub(super) struct Exits {
    /// Dead letters that wait for a turn with room for them. No line is empty.
    lines: Map<QueueId, VecDeque<Left>>,
    /// How many that are.
    in_lines: u64,
    /// Those that go on when there is room behind them.
    held_lines: Vec<QueueId>,
    /// Who asks by `basic.get` for a message that is behind the line of its queue, and whether without an ack. No list is empty.
    behind_lines: Map<QueueId, Vec<(ReplyTo, bool)>>,
    parked: ParkedLetters,
    sent: BTreeMap<(QueueId, Offset), Sent>,
    /// Those that found no target, or no room there, and are tried again.
    retries: Retries,
    /// What operators move, by who waits for it.
    moves: Map<ConnectionId, Moving>,
    formers: Formers,
}

impl Exits {
    /// About how many bytes lines take. What is tried again counts in the queue that holds it.
    pub(super) fn bytes(&self) -> u64 {
        self.in_lines * size_of::<Left>() as u64 + self.parked.bytes() + self.formers.bytes()
    }

    /// Dead letters that are not sent yet.
    pub(super) fn waiting(&self) -> u64 {
        self.in_lines + self.parked.len()
    }

    /// Whether dead letters of the queue wait for a turn.
    #[inline]
    pub(super) fn has_line(&self, queue: QueueId) -> bool {
        self.in_lines > 0 && self.lines.contains_key(&queue)
    }

    /// The line of a queue waits until there is room behind it.
    pub(super) fn hold_line(&mut self, queue: QueueId) {
        self.held_lines.push(queue);
    }

    /// Whether lines wait so.
    #[inline]
    pub(super) fn has_held_lines(&self) -> bool {
        !self.held_lines.is_empty()
    }

    /// A `basic.get` waits until the line of its queue is empty.
    pub(super) fn wait_behind_line(&mut self, queue: QueueId, reply: ReplyTo, no_ack: bool) {
        self.behind_lines.entry(queue).or_default().push((reply, no_ack));
    }

    /// The line of the queue is empty: these go on.
    pub(super) fn take_behind_line(&mut self, queue: QueueId) -> Vec<(ReplyTo, bool)> {
        self.behind_lines.remove(&queue).unwrap_or_default()
    }

    /// All that wait behind lines.
    pub(super) fn take_behind_lines(&mut self) -> Vec<ToShard> {
        let all = std::mem::take(&mut self.behind_lines).into_iter();
        let get = |queue, (reply, no_ack)| ToShard::Get { reply, queue, no_ack };
        all.flat_map(|(queue, those)| those.into_iter().map(move |it| get(queue, it))).collect()
    }

    /// There is room: these lines go on.
    pub(super) fn take_held_lines(&mut self) -> Vec<QueueId> {
        std::mem::take(&mut self.held_lines)
    }

    /// Dead letters that are to be read.
    pub(super) fn parked_len(&self) -> u64 {
        self.parked.len()
    }

    /// How many of them.
    pub(super) fn line_len(&self, queue: QueueId) -> u64 {
        self.lines.get(&queue).map_or(0, |line| line.len() as u64)
    }

    /// A dead letter waits for a turn.
    pub(super) fn line_up(&mut self, queue: QueueId, left: Left) {
        self.lines.entry(queue).or_default().push_back(left);
        self.in_lines += 1;
    }

    /// The dead letter of the queue that waits longest.
    pub(super) fn next_in_line(&mut self, queue: QueueId) -> Option<Left> {
        let line = self.lines.get_mut(&queue)?;
        let left = line.pop_front()?;
        self.in_lines -= 1;
        if line.is_empty() {
            self.lines.remove(&queue);
        }
        Some(left)
    }

    /// A dead letter whose record is to come waits for those before it.
    pub(super) fn park(&mut self, queue: QueueId, left: Left) {
        self.parked.push(queue, left);
    }

    /// Those that wait to be read, the first one first.
    pub(super) fn parked(&self) -> impl Iterator<Item = &(QueueId, Left)> {
        self.parked.iter()
    }

    /// The first one can be read.
    pub(super) fn unpark(&mut self) {
        self.parked.pop();
    }

    /// A message was sent to so many targets; others have it already.
    pub(super) fn sent(
        &mut self,
        queue: QueueId,
        offset: Offset,
        whereabouts: Whereabouts,
        taken: Vec<QueueId>,
        answers: u32,
    ) {
        let sent = Sent { answers, whereabouts, taken, is_refused: false, is_unstored: false };
        self.sent.insert((queue, offset), sent);
    }

    /// Messages that wait for answers.
    pub(super) fn sent_len(&self) -> usize {
        self.sent.len()
    }

    /// A target answered. Returns what all have answered for.
    pub(super) fn answered(
        &mut self,
        (queue, offset): (QueueId, Offset),
        target: QueueId,
        taken: PutResult,
    ) -> Option<Sent> {
        // An answer to what was sent before the end of the log was lost may come beside that to what was sent again.
        let sent = self.sent.get_mut(&(queue, offset)).filter(|it| !it.taken.contains(&target))?;
        match taken {
            PutResult::Yes => sent.taken.push(target),
            PutResult::Refused => sent.is_refused = true,
            PutResult::NotStored => (sent.is_refused, sent.is_unstored) = (true, true),
        }
        sent.answers -= 1;
        if sent.answers > 0 {
            return None;
        }
        self.sent.remove(&(queue, offset))
    }

    /// Dead letters that left their queue and whose record stays until their targets are safe. `is_here`: whether a queue is.
    pub(super) fn departing(&self, is_here: impl Fn(QueueId) -> bool) -> u64 {
        let departed = self.sent.iter().filter(|&(&(queue, offset), it)| match it.whereabouts {
            Whereabouts::Departed { .. } => true,
            Whereabouts::Held(_) => !is_here(queue) && !self.holds(queue, offset),
            Whereabouts::Moved { .. } => false,
        });
        departed.count() as u64 + self.formers.held()
    }

    /// A dead letter that no target took, or not all of them, is tried again.
    pub(super) fn try_later(&mut self, queue: QueueId, letter: Stuck, now: Time) {
        self.retries.add(queue, letter, now);
    }

    /// A dead letter of the queue got where it was to go: so may another one.
    pub(super) fn went(&mut self, queue: QueueId) {
        self.retries.went(queue);
    }

    /// Whether some are to be tried now.
    pub(super) fn are_due(&self, now: Time) -> bool {
        self.retries.is_due(now)
    }

    /// Those of one queue that are to be tried now.
    pub(super) fn take_due(&mut self, now: Time) -> Vec<(QueueId, Stuck)> {
        self.retries.take(now)
    }

    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.retries.next_timeout()
    }

    /// What the log is to know of dead letters that are not where they go. Their queues tell of those that they hold.
    pub(super) fn marks(&self) -> impl Iterator<Item = (QueueId, Offset, u8)> {
        let sent = self.sent.iter().filter_map(|(&(queue, offset), sent)| {
            let Whereabouts::Departed { mark, .. } = sent.whereabouts else { return None };
            Some((queue, offset, mark))
        });
        let lines =
            self.lines.iter().flat_map(|(&queue, line)| line.iter().map(move |it| (queue, *it)));
        let waiting = lines.chain(self.parked.iter().copied());
        sent.chain(waiting.filter_map(|(queue, left)| mark_of_left(queue, left)))
    }
}
