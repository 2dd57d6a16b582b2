//! Where a message of a traced vhost has come: noted for whoever wants to see its path.

use std::borrow::Cow;

use leveret_queue::Offset;
use leveret_topology::{QueueId, VhostId};
use serde::{Deserialize, Serialize};

use super::ConnectionId;

/// Queues that a step names at most.
pub const STEP_QUEUES_MAX: usize = 64;

/// What happened to a message on a channel, or because of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The publisher's connection, or the consumer's.
    pub connection: ConnectionId,
    /// Its channel.
    pub channel: u16,
    /// What.
    pub what: What,
}

/// The steps, in their order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// It came whole, and was routed.
    Published {
        /// Where.
        vhost: VhostId,
        /// Its number among those that are confirmed on the channel.
        number: u64,
        /// To which exchange.
        exchange: Box<str>,
        /// With which key.
        key: Box<str>,
        /// The queues.
        queues: Box<[QueueId]>,
    },
    /// Its shard has it in its log and in these queues.
    Stored {
        /// As it was published.
        number: u64,
        /// Those of its queues that the shard has.
        queues: Box<[QueueId]>,
        /// Its record.
        offset: Offset,
    },
    /// It was written to a consumer.
    Delivered {
        /// With this tag.
        tag: u64,
        /// From this queue.
        queue: QueueId,
        /// Its record.
        offset: Offset,
        /// It was delivered before.
        redelivered: bool,
    },
    /// The consumer is done with what it was given.
    Settled {
        /// Of this delivery tag.
        tag: u64,
        /// And all before it.
        multiple: bool,
        /// `acked`, `rejected` or `requeued`.
        how: Cow<'static, str>,
    },
    /// The publisher was told.
    Confirmed {
        /// Of this number.
        number: u64,
        /// And all before it.
        multiple: bool,
        /// By `basic.ack`.
        ok: bool,
    },
}
