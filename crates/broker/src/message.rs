//! What sessions, shards and the topology's owner say to each other.
//!
//! Every actor is a state behind an inbox; these are the letters. A letter is moved, never shared, and
//! holds no lock and no reference into another actor.
//!
//! ```text
//!            ToMeta                        ToShard
//!  Session ----------> Meta ------------------------------> Shard
//!     |  \                \______ Reply ______                | |
//!     |   \_________________________ ToShard _\______________/  |
//!     |<----------------------------- ToSession ----------------/
//! ```
//!
//! A session that sent a command with a reply reads nothing more from its socket until the
//! [`ToSession::Reply`] comes, so what a client sends keeps its order whatever the number of shards.

mod allowance;
mod attach;
mod outbox;
mod remote;
mod reply;
mod step;
mod targets;
mod to_meta;
mod to_session;
mod to_shard;
mod unacked;

use std::sync::Arc;

use bytes::Bytes;
use leveret_queue::{Offset, UnackedId};
use leveret_topology::QueueId;

use crate::record::{HEAD, Head};

pub use allowance::{AccountId, Allowance, AllowanceState, UNLIMITED};
pub use attach::{Attached, AttachedConsumer, Attachment, Claim};
pub use leveret_log::Shared;
pub use leveret_topology::{ConnectionId, NodeId};
pub use outbox::Outbox;
pub use remote::{
    Brought, FromLeader, LeaderTerms, NamesBatch, SessionsHello, ShardTerm, ToLeader,
};
pub use reply::{ConsumerFacts, Holding, Looked, Moved, Page, QueueFacts, Refusal, Reply};
pub use step::{STEP_QUEUES_MAX, Step, What};
pub use targets::{Homed, Targets, add_by_home, log_of};
pub use to_meta::{AdminCommand, Binding, ToMeta};
pub use to_session::{Delivery, ToSession};
pub use to_shard::{DeadLetterFrom, MoveTo, Named, PutResult, ToShard};
pub use unacked::{GivenBack, UnackedDelivery};

/// Names a channel of one connection: the number on the wire.
pub type ChannelId = u16;

/// A consumer's place in its session: an index the session gave, free again after
/// [`Reply::Cancelled`] or [`ToSession::ConsumerGone`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConsumerSlot(pub u32);

/// One message as it came from the wire, on its way into a log.
///
/// `wire` holds, somewhere in it, the exchange name and the routing key as two wire short strings (just
/// as `basic.publish` and `basic.deliver` carry them), the property flags and list, and the body's first
/// piece. A body that came in several reads has its other pieces in `more`.
///
/// Names that begin [`HEAD`] bytes behind the beginning of `wire` say that it is the whole record that the
/// message becomes: see [`Message::record`].
#[derive(Clone, Debug, Default)]
pub struct Message {
    wire: Bytes,
    names: Span,
    properties: Span,
    body: Span,
    more: Vec<Bytes>,
    more_len: u64,
}

/// A range of bytes inside [`Message`]'s `wire`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Span {
    start: u32,
    end: u32,
}

impl Span {
    /// From `start` to `end`, excluded. The caller keeps them inside the bytes they are about.
    pub fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    fn of(self, bytes: &[u8]) -> &[u8] {
        bytes.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

impl Message {
    /// A message whose parts lie in `wire`; `more` continues the body.
    pub fn new(wire: Bytes, names: Span, properties: Span, body: Span, more: Vec<Bytes>) -> Self {
        let more_len = more.iter().map(|part| part.len() as u64).sum();
        Self { wire, names, properties, body, more, more_len }
    }

    /// A message of nothing, which takes no memory of its own: without names, properties and body.
    pub fn empty() -> Self {
        // The lengths of two short strings, and the flags of no property.
        let wire = Bytes::from_static(&[0; 4]);
        Self::new(wire, Span::new(0, 2), Span::new(2, 4), Span::new(4, 4), Vec::new())
    }

    /// A message joined from separate parts: cold path (dead-letters, replies, tests).
    /// `names` is the exchange and the routing key as two wire short strings.
    pub fn from_parts(names: &[u8], properties: &[u8], body: &[u8]) -> Self {
        let mut wire = Vec::with_capacity(names.len() + properties.len() + body.len());
        wire.extend_from_slice(names);
        let names = Span::new(0, wire.len());
        wire.extend_from_slice(properties);
        let properties = Span::new(names.end as usize, wire.len());
        wire.extend_from_slice(body);
        let body = Span::new(properties.end as usize, wire.len());
        Self { wire: wire.into(), names, properties, body, more: Vec::new(), more_len: 0 }
    }

    /// A message with its own names and properties and the body of another one, whose memory it shares.
    /// `names` is the exchange and the routing key as two wire short strings.
    pub fn with_body(names: &[u8], properties: &[u8], body: Vec<Bytes>) -> Self {
        let head = Self::from_parts(names, properties, b"");
        let Self { wire, names, properties, body: nothing, .. } = head;
        Self::new(wire, names, properties, nothing, body)
    }

    /// The body's [first piece](Self::body), which shares its memory.
    pub fn first_piece(&self) -> Bytes {
        self.wire.slice(self.body.start as usize..self.body.end as usize)
    }

    /// The pieces of the body, in order, which share its memory.
    pub fn body_pieces(&self) -> Vec<Bytes> {
        let mut pieces = Vec::with_capacity(1 + self.more.len());
        pieces.push(self.first_piece());
        pieces.extend_from_slice(&self.more);
        pieces
    }

    /// The same message in memory of its own: for keeping, since `wire` is a part of a whole read of a
    /// socket. One that is a record has such memory already.
    pub fn detached(&self) -> Self {
        if self.record().is_some() { self.clone() } else { self.joined(&[]) }
    }

    /// The same message as the record that it becomes, in memory of its own. It stays as it is if it lies so.
    pub fn into_record(self, head: &Head) -> Self {
        if self.record().is_some() {
            return self;
        }
        self.joined(&head.encode())
    }

    /// The same message behind a head, in one piece.
    fn joined(&self, head: &[u8]) -> Self {
        let len = usize::try_from(self.len()).unwrap_or_default();
        let mut wire = Vec::with_capacity(head.len() + len);
        wire.extend_from_slice(head);
        wire.extend_from_slice(self.names());
        let names = Span::new(head.len(), wire.len());
        wire.extend_from_slice(self.properties());
        let properties = Span::new(names.end as usize, wire.len());
        wire.extend_from_slice(self.body());
        self.more.iter().for_each(|part| wire.extend_from_slice(part));
        let body = Span::new(properties.end as usize, wire.len());
        Self { wire: wire.into(), names, properties, body, more: Vec::new(), more_len: 0 }
    }

    /// The record that the message becomes, if it lies as such in memory of its own.
    pub fn record(&self) -> Option<&Bytes> {
        let is_record = self.names.start as usize == HEAD
            && self.body.end as usize == self.wire.len()
            && self.more.is_empty();
        is_record.then_some(&self.wire)
    }

    /// Exchange and routing key, as two wire short strings.
    pub fn names(&self) -> &[u8] {
        self.names.of(&self.wire)
    }

    /// Property flags and list, as on the wire.
    pub fn properties(&self) -> &[u8] {
        self.properties.of(&self.wire)
    }

    /// The body's first piece (all of it, unless [`more`](Self::more) has more).
    pub fn body(&self) -> &[u8] {
        self.body.of(&self.wire)
    }

    /// The body's other pieces, in order.
    pub fn more(&self) -> &[Bytes] {
        &self.more
    }

    /// Length of the whole body, in bytes.
    pub fn body_len(&self) -> u64 {
        u64::from(self.body.end - self.body.start) + self.more_len
    }

    /// Bytes of all parts together.
    pub fn len(&self) -> u64 {
        self.names().len() as u64 + self.properties().len() as u64 + self.body_len()
    }

    /// Whether there is not even a name.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// One routed message. `targets` are queues of the shard it is sent to, without repetition.
#[derive(Clone, Debug)]
pub struct Publish {
    /// Channel it was published on; confirms go back there.
    pub channel: ChannelId,
    /// The channel's sequence number for the confirm, from 1; 0 when none is wanted.
    pub confirm: u64,
    /// Where it goes.
    pub targets: Targets,
    /// Delivery mode 2.
    pub persistent: bool,
    /// Property `priority`, 0 when absent.
    pub priority: u8,
    /// Property `expiration`, in ms.
    pub expiration_ms: Option<u64>,
    /// Names, properties, body.
    pub message: Message,
    /// What the shards of this node know together of a message that several of them store, if it is worth that. The message
    /// is a whole record then, the same for each.
    pub shared: Option<Arc<Shared>>,
}

/// How a consumer ends with one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settle {
    /// `basic.ack`.
    Ack,
    /// `basic.reject` or `basic.nack` without requeue: dead-lettered or dropped.
    Reject,
    /// Back to its place. `counts` is false when the consumer never looked at it (its channel closed
    /// before it could have, `basic.recover`): RabbitMQ's delivery limit counts it either way today,
    /// so the session decides.
    Requeue {
        /// Whether the delivery counts towards the delivery limit.
        counts: bool,
    },
}

/// One settled message.
#[derive(Clone, Copy, Debug)]
pub struct Settlement {
    /// The queue it was delivered from.
    pub queue: QueueId,
    /// The queue's own name for the unacked message.
    pub unacked: UnackedId,
    /// Its record.
    pub offset: Offset,
    /// How.
    pub how: Settle,
}

impl Settlement {
    /// No record has this offset.
    pub(crate) const LOST: Offset = Offset::new(u64::MAX);

    /// A term of a shard begins, and of records from this offset on. If the message is one of an earlier term it is lost, and its
    /// settlement is about nothing: not of this term, nor of those to come.
    pub fn lose(&mut self, begins_at: Offset) {
        if self.offset >= begins_at {
            self.offset = Self::LOST;
        }
    }
}

/// To whom an answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyTo {
    /// The connection.
    pub connection: ConnectionId,
    /// Its channel.
    pub channel: ChannelId,
}
