//! What a shard in a new term is told of those who use it.
//!
//! A shard that is filled anew knows its messages, and not who has them. Each node that is alive *attaches*: it asks its sessions
//! ([`ToSession::Attach`](super::ToSession::Attach)), each of which answers with one [`Attachment`], and then says how far its
//! streams are. Until all have, the shard gives nothing out and answers nothing. See rules 1 to 4 of "Deliveries" in
//! `docs/decisions/0061-letters-over-links.md`.

use std::sync::Arc;

use leveret_amqp::table::Table;
use leveret_queue::{Gate, Offset};
use leveret_topology::QueueId;

use super::{ChannelId, ConnectionId, ConsumerSlot, NodeId};

/// What one connection has at a shard.
#[derive(Clone, Debug)]
pub struct Attachment {
    /// Whose.
    pub connection: ConnectionId,
    /// Of the shard, as it was asked.
    pub term: u64,
    /// It stands behind these numbers of its node's streams, of messages and of settlements: letters with greater ones are from
    /// after it. Whoever numbers letters writes it.
    pub behind: [u64; 2],
    /// Its consumers there.
    pub consumers: Vec<AttachedConsumer>,
    /// What it was given there, and did not settle, in no order.
    pub claims: Vec<Claim>,
}

/// A consumer that a shard of an earlier term had.
#[derive(Clone, Debug)]
pub struct AttachedConsumer {
    /// What [`Reply::Consuming`](super::Reply::Consuming) called it.
    pub number: u64,
    /// Its channel.
    pub channel: ChannelId,
    /// From where.
    pub queue: QueueId,
    /// The session's name for it.
    pub slot: ConsumerSlot,
    /// The consumer tag, for listings.
    pub tag: Box<str>,
    /// Acked on delivery.
    pub no_ack: bool,
    /// Refuses others.
    pub exclusive: bool,
    /// `x-priority`.
    pub priority: i32,
    /// Unacked messages allowed, 0 for no limit.
    pub prefetch: u16,
    /// Its `basic.cancel` is under way: whoever came when it was gone is there by right.
    pub is_going: bool,
    /// The connection's and channel's limits; none if the shard is told them by letters.
    pub gate: Option<Gate>,
    /// Arguments, for listings.
    pub arguments: Arc<Table>,
}

/// A message that a connection holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// From where.
    pub queue: QueueId,
    /// Its record.
    pub offset: Offset,
    /// The consumer that got it, which may be gone; none for `basic.get`.
    pub slot: Option<ConsumerSlot>,
}

/// All connections of a node have attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Which.
    pub node: NodeId,
    /// How often it was started before.
    pub start: u32,
    /// Of the shard.
    pub term: u64,
    /// The last numbers of its streams: of messages, and of settlements.
    pub last: [u64; 2],
    /// It waits for the answer to no transaction in the letters below: those that were undone do not come again.
    pub undecided_from: u64,
}
