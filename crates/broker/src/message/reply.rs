//! Answers to commands, and what they tell of queues.

use std::sync::Arc;

use bytes::Bytes;
use leveret_amqp::reply::ReplyCode;
use leveret_amqp::table::Table;
use leveret_queue::{Look, Offset, Time};
use leveret_topology::{Imported, QueueId};

use super::{ChannelId, ConnectionId, ConsumerSlot, Delivery};
use crate::numbers::{QueueNumbers, ShardNumbers};

/// Answers to commands.
#[derive(Debug)]
pub enum Reply {
    /// Bind, unbind, exchange declare and delete, admin commands.
    Done,
    /// Definitions imported, but for what this tells.
    Imported(Box<Imported>),
    /// Queue declared (or counted).
    Declared {
        /// Its id.
        queue: QueueId,
        /// Ready messages.
        messages: u64,
        /// Consumers.
        consumers: u64,
    },
    /// The queue vanished in the meantime: look it up again.
    Gone,
    /// `basic.consume` done.
    Consuming {
        /// The shard's number for the consumer: a later one has a greater number, in whatever term of the shard.
        number: u64,
    },
    /// `basic.cancel` done; no delivery follows.
    Cancelled {
        /// The consumer.
        slot: ConsumerSlot,
    },
    /// `basic.get` found this one.
    Got {
        /// The message; its `slot` means nothing.
        delivery: Delivery,
        /// Ready messages left.
        remaining: u64,
    },
    /// `basic.get` found nothing.
    GotNothing,
    /// Ready messages purged.
    Purged(u64),
    /// What became of messages to be moved.
    Moved(Moved),
    /// Messages as they are in a queue.
    Looked(Box<Page>),
    /// Queue deleted, by whom this is told, with that many ready messages.
    Deleted(u64),
    /// This shard's part of the transaction is done.
    Committed,
    /// Facts about one shard's queues.
    Queues(Vec<QueueFacts>),
    /// One piece of a shard's numbers.
    Sampled(Box<ShardNumbers>),
    /// Refused: a channel (or connection) exception with RabbitMQ's text, without the code's name.
    Refused {
        /// The code.
        code: ReplyCode,
        /// The text.
        text: String,
    },
}

/// What became of messages that were to be moved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// They are where they were to go.
    pub moved: u64,
    /// A target refused them, or could not store them: they are where they were.
    pub refused: u64,
    /// The exchange leads them nowhere: they are where they were.
    pub unrouted: u64,
    /// They are on the disk only and will be at hand soon: to be asked for again.
    pub cold: Vec<Offset>,
}

/// Some messages of a queue, which stay as they are.
#[derive(Clone, Debug)]
pub struct Page {
    /// In the order of offsets.
    pub messages: Vec<Looked>,
    /// Where to go on; none when there are no more.
    pub next: Option<Offset>,
    /// The offset of the message that comes next: all that is in the queue now is below.
    pub end: Offset,
}

/// A message as it is in a queue.
#[derive(Clone, Debug)]
pub struct Looked {
    /// What the queue knows of it.
    pub look: Look,
    /// The consumer that has it, if one has.
    pub holder: Option<Holding>,
    /// The record; none when it cannot be read.
    pub record: Option<Bytes>,
}

/// A consumer, by name.
#[derive(Clone, Debug)]
pub struct Holding {
    /// Its connection.
    pub connection: ConnectionId,
    /// Its channel.
    pub channel: ChannelId,
    /// Its tag.
    pub tag: Box<str>,
}

/// What a shard knows of one queue, for listings.
#[derive(Clone, Debug)]
pub struct QueueFacts {
    /// Which.
    pub queue: QueueId,
    /// How much is in it, and what happened to its messages.
    pub numbers: QueueNumbers,
    /// How many consumers may be given messages.
    pub active_consumers: u32,
    /// The consumer that alone is given messages, on a queue with a single active consumer.
    pub single_active: Option<Holding>,
    /// The consumer that excludes others.
    pub exclusive: Option<Holding>,
    /// The consumers that were asked for.
    pub consumers: Vec<ConsumerFacts>,
}

/// What a shard knows of one consumer, for listings.
#[derive(Clone, Debug)]
pub struct ConsumerFacts {
    /// Its connection.
    pub connection: ConnectionId,
    /// Its channel.
    pub channel: ChannelId,
    /// Its tag.
    pub tag: Box<str>,
    /// Whether acks are expected.
    pub ack_required: bool,
    /// Its prefetch.
    pub prefetch: u16,
    /// Whether it is the active one (always, but on single active consumer queues).
    pub active: bool,
    /// Whether it excludes others.
    pub exclusive: bool,
    /// `x-priority`.
    pub priority: i32,
    /// Messages it has not acked.
    pub unacked: u32,
    /// It could not take its next message when it was last tried: its prefetch is reached, or its
    /// connection does not read.
    pub is_blocked: bool,
    /// Since when its prefetch is reached: a message was there that it could not be given.
    pub prefetch_full_since: Option<Time>,
    /// Its arguments.
    pub arguments: Arc<Table>,
}

/// Why something is not done, as a client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// AMQP's code.
    pub code: ReplyCode,
    /// In words.
    pub text: String,
}
