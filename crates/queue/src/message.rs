//! What goes into a queue, what comes out, and the words for it.

use serde::{Deserialize, Serialize};

/// Names a message: the offset of its record in the log the queue's shard writes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Offset(u64);

impl Offset {
    /// The record numbered `offset`.
    pub const fn new(offset: u64) -> Self {
        Self(offset)
    }

    /// The bare number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// Names an unacked message inside its queue. Used again after the message is settled, so it is only
/// valid together with the message's [`Offset`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnackedId(pub(crate) u32);

impl UnackedId {
    /// The name numbered `id`, as [`get`](Self::get) gave it. A wrong number is found out by
    /// [`Queue::settle`](crate::Queue::settle).
    pub const fn new(id: u32) -> Self {
        Self(id)
    }

    /// The bare number.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Names a message that is lent, by who has it: more than 2^31 unacked ones fit in no memory.
    pub(crate) const fn lent(consumer: Option<u32>) -> Self {
        match consumer {
            Some(consumer) => Self(LENT | consumer),
            None => Self(LENT | NOBODY),
        }
    }

    /// Whether only the consumer's channel knows the message: the queue has let it go.
    pub const fn is_lent(self) -> bool {
        self.0 & LENT != 0
    }

    /// Who a lent message was given to; none for `basic.get`.
    pub(crate) const fn borrower(self) -> Option<u32> {
        let consumer = self.0 & !LENT;
        if consumer == NOBODY { None } else { Some(consumer) }
    }
}

const LENT: u32 = 1 << 31;
const NOBODY: u32 = LENT - 1;

/// A message on its way in.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    /// Its record. Larger than every offset this queue was given before.
    pub offset: Offset,
    /// Length of the body, in bytes.
    pub size: u32,
    /// Property `priority`, 0 when absent. Capped to the queue's `x-max-priority`.
    pub priority: u8,
    /// Delivery mode 2.
    pub persistent: bool,
    /// Property `expiration`, in ms from now.
    pub expiration_ms: Option<u64>,
    /// It may have been delivered before: a queue that is rebuilt from its log.
    pub redelivered: bool,
    /// Deliveries that came back before: a queue that is rebuilt from its log.
    pub delivery_count: u32,
}

impl Incoming {
    /// A transient message of `size` bytes with nothing special about it.
    pub const fn new(offset: Offset, size: u32) -> Self {
        Self {
            offset,
            size,
            priority: 0,
            persistent: false,
            expiration_ms: None,
            redelivered: false,
            delivery_count: 0,
        }
    }
}

/// A message was not taken; a publisher that asked for confirms gets `basic.nack`.
///
/// The message has left the queue by a [`Left`] all the same, so the caller releases it as any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// `max-length` or `max-length-bytes` is reached and `overflow` says reject.
    #[error("the queue is full")]
    Full,
}

/// A message on its way to a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The consumer, by the caller's name for it.
    pub consumer_key: u64,
    /// What to settle; none when no ack is expected.
    pub unacked: Option<UnackedId>,
    /// Its record.
    pub offset: Offset,
    /// It was delivered before.
    pub redelivered: bool,
    /// Deliveries that came back before this one.
    pub delivery_count: u32,
    /// Length of the body, in bytes.
    pub size: u32,
}

/// A message taken by `basic.get`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Got {
    /// What to settle; none when no ack is expected.
    pub unacked: Option<UnackedId>,
    /// Its record.
    pub offset: Offset,
    /// It was delivered before.
    pub redelivered: bool,
    /// Deliveries that came back before this one.
    pub delivery_count: u32,
    /// Length of the body, in bytes.
    pub size: u32,
    /// Ready messages left, for `basic.get-ok`.
    pub remaining: u64,
}

/// How a consumer ends with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settle {
    /// `basic.ack`.
    Ack,
    /// `basic.reject` or `basic.nack` without requeue: dead-lettered or dropped.
    Reject,
    /// Back to its place, marked redelivered.
    Requeue {
        /// Whether it counts towards the delivery limit.
        counts: bool,
    },
}

/// Why a message is dead-lettered or dropped; the words of the `x-death` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// A consumer rejected it.
    Rejected,
    /// Its time to live ended.
    Expired,
    /// The queue was full.
    Maxlen,
    /// It came back too often.
    DeliveryLimit,
}

impl Reason {
    /// The word in `x-death`, `x-first-death-reason` and `x-last-death-reason`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::Maxlen => "maxlen",
            Self::DeliveryLimit => "delivery_limit",
        }
    }
}

/// A message left the queue. The caller releases its record, for [`DeadLetter`](Self::DeadLetter) when it
/// has been published again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Acked, or handed to a consumer that never acks.
    Acked(Offset),
    /// To be published to the dead-letter exchange.
    DeadLetter {
        /// Its record.
        offset: Offset,
        /// Why.
        reason: Reason,
        /// At-least-once: the queue holds it until [`Queue::dead_lettered`](crate::Queue::dead_lettered).
        held: bool,
        /// Deliveries that came back.
        delivery_count: u32,
        /// It may have been delivered.
        seen: bool,
    },
    /// Gone for good: there is no dead-letter exchange.
    Dropped {
        /// Its record.
        offset: Offset,
        /// Why.
        reason: Reason,
    },
    /// Gone by `queue.purge` or with its queue.
    Purged(Offset),
    /// A dead letter that was held by a queue that is deleted.
    Held {
        /// Its record.
        offset: Offset,
        /// It is on its way to its targets, and goes on without its queue. Else nobody tries it again.
        goes: bool,
    },
    /// Handed out, and from now on known to the consumer's channel alone: its record is not needed any
    /// more. A [`Returned`](Self::Returned) follows, unless the queue is deleted.
    Lent(Offset),
    /// A lent message was settled. Its record is gone already.
    Returned {
        /// Its record.
        offset: Offset,
        /// By `basic.ack`; else it is lost here.
        acked: bool,
    },
}

impl Left {
    /// The message's record.
    pub const fn offset(&self) -> Offset {
        match *self {
            Self::Acked(offset)
            | Self::DeadLetter { offset, .. }
            | Self::Dropped { offset, .. }
            | Self::Purged(offset)
            | Self::Held { offset, .. }
            | Self::Lent(offset)
            | Self::Returned { offset, .. } => offset,
        }
    }
}
