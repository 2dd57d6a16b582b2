//! A message whose publisher waits, and the rules of its queues.

use leveret_topology::QueueId;

use super::runs::Verdict;
use crate::message::{ChannelId, ConnectionId};

/// When one queue has resolved one message: its rule, applied to what the message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Until {
    /// At once: nothing of it is to be on disk.
    Now,
    /// Durable, or gone from the queue.
    First,
    /// Durable.
    Durable,
    /// Acked by a consumer.
    Acked {
        /// A dead letter counts as acked.
        dead_letter_acks: bool,
    },
}

/// How a message left a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Way {
    /// A consumer acked it, or never acks and was given it.
    Acked,
    /// It is in another queue now.
    DeadLettered,
    /// Any other way.
    Lost,
}

/// The rules of a message's queues, if they differ, or of some if one was changed. Rare: it should not make every
/// message's notes longer.
pub(in super::super) type Mixed = Vec<(QueueId, Until)>;

/// One message.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct UnresolvedMessage {
    pub(super) to: ConnectionId,
    /// 0: its publisher wants no confirm, or was told.
    pub(super) seq: u64,
    pub(super) channel: ChannelId,
    /// Queues that wait for the disk or for their consumer.
    pub(super) firsts: u16,
    /// Queues that wait for their consumer.
    pub(super) acks: u16,
    pub(super) bits: u16,
    /// Low bits of the time when it is made durable, if it [`DEFERS`].
    pub(super) defer_at: u32,
    /// Low bits of the time when its publisher is told that it waited long enough, if it [`TIMES_OUT`].
    pub(super) timeout_at: u32,
}

pub(super) const TAKEN: u16 = 1;
/// A queue waits for the disk alone.
const DISK: u16 = 2;
pub(super) const FAILED: u16 = 4;
pub(super) const MIXED: u16 = 8;
const DEAD_LETTER_ACKS: u16 = 16;
pub(super) const DEFERS: u16 = 32;
pub(super) const TIMES_OUT: u16 = 64;
/// A queue's rule was changed: queues that are not in `mixed` have the one that all had.
pub(super) const CHANGED: u16 = 128;
/// The disk is that of all members in contact.
const ALL: u16 = 256;
/// Its node keeps it, as it is in memory alone.
pub(super) const KEPT: u16 = 512;
/// What a queue did with it may be undone with the log's end: it dropped it, or a transaction acks it.
pub(super) const UNDOABLE: u16 = 1024;

impl UnresolvedMessage {
    /// What a message takes.
    pub(super) const BYTES: u64 = size_of::<Self>() as u64;

    /// Counts one of the message's queues.
    pub(in super::super) fn count(&mut self, until: Until) {
        match until {
            Until::Now => {}
            Until::First => match self.firsts.checked_add(1) {
                Some(firsts) => self.firsts = firsts,
                // More than can be counted: the disk has it for all of them.
                None => self.bits |= DISK,
            },
            Until::Durable => self.bits |= DISK,
            Until::Acked { dead_letter_acks } => {
                match self.acks.checked_add(1) {
                    Some(acks) => self.acks = acks,
                    // More than can be counted cannot be said to have acked.
                    None => self.fail(),
                }
                self.set(DEAD_LETTER_ACKS, dead_letter_acks);
            }
        }
    }

    /// Whose message it is, and its number: what is told of it goes there.
    pub(in super::super) fn is_of(&mut self, to: ConnectionId, channel: ChannelId, seq: u64) {
        (self.to, self.channel, self.seq) = (to, channel, seq);
    }

    /// Whether it is the same publisher's message.
    pub(in super::super) fn is_that_of(self, other: Self) -> bool {
        (self.to, self.channel, self.seq) == (other.to, other.channel, other.seq)
    }

    /// One of the queues did not do what its rule wants.
    pub(in super::super) fn fail(&mut self) {
        self.bits |= FAILED;
    }

    pub(in super::super) fn waits_for_disk(self) -> bool {
        self.firsts > 0 || self.has(DISK)
    }

    /// Whether a consumer may resolve it before the disk does.
    pub(in super::super) fn may_be_acked_first(self) -> bool {
        self.firsts > 0
    }

    /// Those of its queues that wait for the disk or their consumer wait for the disk.
    pub(in super::super) fn waits_for_disk_alone(&mut self) {
        self.firsts = 0;
        self.bits |= DISK;
    }

    /// One of those that wait for the disk waits for that of all members in contact: so do all.
    pub(in super::super) fn waits_for_all_disks(&mut self) {
        self.bits |= ALL;
    }

    /// Whether it waits for the disk, and that is not the leader's with a majority.
    pub(super) fn is_for_all(self) -> bool {
        self.has(ALL)
    }

    /// A majority is enough.
    pub(super) fn is_for_majority(&mut self) {
        self.bits &= !ALL;
    }

    /// No queue took it: there is nothing to write.
    pub(in super::super) fn is_not_written(&mut self) {
        self.bits &= !DISK;
    }

    /// The record is durable, as far as its queues want that.
    pub(in super::super) fn is_durable(&mut self) {
        self.firsts = 0;
        self.bits &= !DISK;
    }

    /// Whether it is, or will be once it is durable.
    pub(in super::super) fn is_resolved_by_disk(self) -> bool {
        self.acks == 0
    }

    /// Whether its publisher is told no, whatever else comes.
    pub(in super::super) fn has_failed(self) -> bool {
        self.has(FAILED)
    }

    pub(in super::super) fn is_resolved(self) -> bool {
        self.acks == 0 && !self.waits_for_disk()
    }

    pub(super) fn verdict(self) -> Verdict {
        if self.has(FAILED) { Verdict::Failed } else { Verdict::Ok }
    }

    pub(super) fn has(self, bit: u16) -> bool {
        self.bits & bit != 0
    }

    fn set(&mut self, bit: u16, to: bool) {
        if to {
            self.bits |= bit;
        }
    }

    /// One of its queues let it go.
    pub(super) fn left(&mut self, until: Until, way: Way) {
        self.set(UNDOABLE, way != Way::Acked);
        match until {
            // Under `Durable` the disk decides: what was released before it was written passes as durable.
            Until::Now | Until::Durable => {}
            Until::First => self.firsts = self.firsts.saturating_sub(1),
            Until::Acked { dead_letter_acks } => {
                self.acks = self.acks.saturating_sub(1);
                let holds = match way {
                    Way::Acked => true,
                    Way::DeadLettered => dead_letter_acks,
                    Way::Lost => false,
                };
                if !holds {
                    self.fail();
                }
            }
        }
    }

    /// The rule of all its queues, if it is not [`MIXED`].
    pub(super) fn until(self) -> Until {
        if self.acks > 0 {
            Until::Acked { dead_letter_acks: self.has(DEAD_LETTER_ACKS) }
        } else if self.firsts > 0 {
            Until::First
        } else {
            Until::Now
        }
    }
}
