//! What a shard tells of itself in numbers: states as they are, and totals that only grow.
//!
//! Asked for with [`ToShard::Sample`](crate::message::ToShard::Sample), piece by piece, so that a shard
//! of a hundred thousand queues has turns for messages in between. Totals of queues that are gone come
//! with the last piece: all pieces of one round together never show less than an earlier round did.

pub use leveret_log::{PagedOut, Usage};
use leveret_queue::{Counts, Time, Totals};
use leveret_topology::GroupId;
use leveret_topology::{QueueId, QueueKind};

use crate::shard::{Confirmed, Counters, Nacked};

/// Numbers of one queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueNumbers {
    /// Which.
    pub queue: QueueId,
    /// Its type.
    pub kind: QueueKind,
    /// Whether its dead letters are at-least-once.
    pub at_least_once: bool,
    /// What is in it.
    pub counts: Counts,
    /// What of it is on the disk only, dead letters that wait too.
    pub paged_out: PagedOut,
    /// What happened to its messages since it was made, or since the process began.
    pub totals: Totals,
    /// The ready message that goes out next, if it is in memory.
    pub head: Option<HeadFacts>,
    /// When somebody last published, consumed, acked or asked.
    pub used: Time,
    /// How long messages were ready and no consumer could take them, in all, in ms.
    pub waited_ms: u64,
    /// Those who publish into it pause, as its shard's disk is far behind.
    pub is_in_flow: bool,
    /// Memory it takes for its messages, in bytes; their bodies apart.
    pub memory_bytes: u64,
}

impl QueueNumbers {
    /// How long the message at the head has been in the broker, in ms.
    pub fn oldest_ms(&self, now: Time) -> Option<u64> {
        Some(now.ms().saturating_sub(self.head?.published_ms))
    }
}

/// Where the messages of a queue are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct States {
    /// Ready, and in memory.
    pub ready_ram: u64,
    /// Unacked, and in memory.
    pub unacked_ram: u64,
    /// Bytes of the bodies of both.
    pub ram_bytes: u64,
    /// Ready, on the disk only, and known in memory one by one.
    pub ready_indexed: u64,
    /// Ready, on the disk only, and known in memory as part of a row of like ones.
    pub ready_packed: u64,
    /// On the disk only though they are transient, or in a queue that is.
    pub transient_paged: u64,
    /// About how many bytes their bodies have.
    pub transient_paged_bytes: u64,
}

impl QueueNumbers {
    /// Which of its messages are in memory. Those that are not are its oldest, and so are unacked ones: where there are
    /// both, it is unacked ones that left memory first.
    pub fn states(&self) -> States {
        let (Counts { ready, unacked, .. }, paged) = (self.counts, self.paged_out);
        let bytes = self.counts.ready_bytes + self.counts.unacked_bytes;
        let all = ready + unacked;
        let records = paged.records.min(all);
        // Of the last ones it is not known what they weigh, but all are what all weigh.
        let paged_bytes = if records == all { bytes } else { paged.bytes.min(bytes) };
        let unacked_paged = records.min(unacked);
        let ready_paged = records - unacked_paged;
        let ready_packed = self.counts.packed.min(ready_paged);
        States {
            ready_ram: ready - ready_paged,
            unacked_ram: unacked - unacked_paged,
            ram_bytes: bytes - paged_bytes,
            ready_indexed: ready_paged - ready_packed,
            ready_packed,
            transient_paged: paged.volatile.min(records),
            transient_paged_bytes: paged.volatile_bytes.min(paged_bytes),
        }
    }
}

/// A message that waits at a queue's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadFacts {
    /// When the broker took it, in ms since the Unix epoch.
    pub published_ms: u64,
    /// Its property `timestamp`, in seconds.
    pub timestamp_s: Option<u64>,
}

/// Totals of the queues of one kind that are gone.
#[derive(Clone, Copy, Debug)]
pub struct GoneQueues {
    /// Their type.
    pub kind: QueueKind,
    /// Whether their dead letters were at-least-once.
    pub at_least_once: bool,
    /// Sums.
    pub totals: Totals,
}

/// One piece of what a shard tells.
#[derive(Clone, Debug)]
pub struct ShardNumbers {
    /// The shard's group.
    pub group: GroupId,
    /// Some of its queues, each in one piece of a round.
    pub queues: Vec<QueueNumbers>,
    /// The round is over: what follows holds.
    pub rest: Option<ShardRest>,
}

/// What a shard tells besides its queues.
#[derive(Clone, Debug)]
pub struct ShardRest {
    /// Queues that are not there any more.
    pub gone: Vec<GoneQueues>,
    /// Its totals.
    pub counters: Counters,
    /// What publishers were told.
    pub confirmed: Confirmed,
    /// Those of them that were told no, by reason.
    pub nacked: Nacked,
    /// Its log.
    pub log: Usage,
    /// Memory that queues take for their messages, in bytes.
    pub queue_bytes: u64,
    /// Memory for messages whose publishers are not told yet, in bytes.
    pub unresolved_bytes: u64,
    /// Everything that its messages take, in bytes.
    pub held_bytes: u64,
}
