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

use std::collections::BTreeMap;

use bytes::Bytes;
use leveret_amqp::reply::ReplyCode;
use leveret_amqp::table::Table;
use leveret_queue::{Gate, Look, Offset, Place, Time, UnackedId};
use leveret_topology::{
    ArgumentsChange, Event, ExchangeId, PasswordHash, QueueId, Topology, VhostId, connection_pid,
};
use smallvec::SmallVec;

use crate::flow::Alarm;
use crate::login::{Admitted, Asked, Decision, Login, Question};
use crate::numbers::{QueueNumbers, ShardNumbers};
use crate::transaction::{TxId, Vote};

/// Names a connection (or another client of the broker, such as the control socket) while the process lives.
/// Never used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(u64);

impl ConnectionId {
    /// The connection numbered `id`.
    pub const fn new(id: u64) -> Self {
        Self(id)
    }

    /// The bare number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// How listings and events name it.
    pub fn pid(self) -> String {
        connection_pid(self.0)
    }

    /// How listings and events name one of its channels.
    pub fn channel_pid(self, channel: ChannelId) -> String {
        format!("<connection.{}.{channel}>", self.0)
    }
}

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

    /// The same message in memory of its own: for keeping, since `wire` is a part of a whole read of a
    /// socket.
    pub fn detached(&self) -> Self {
        let mut body = Vec::with_capacity(usize::try_from(self.body_len()).unwrap_or_default());
        body.extend_from_slice(self.body());
        self.more.iter().for_each(|part| body.extend_from_slice(part));
        Self::from_parts(self.names(), self.properties(), &body)
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

/// Queues of one shard that a message goes to.
pub type Targets = SmallVec<[QueueId; 2]>;

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

/// To whom an answer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyTo {
    /// The connection.
    pub connection: ConnectionId,
    /// Its channel.
    pub channel: ChannelId,
}

/// Letters to a shard.
#[derive(Debug)]
pub enum ToShard {
    /// Messages of one connection, in order.
    Publish {
        /// Who published.
        from: ConnectionId,
        /// In the order of publishing.
        messages: Vec<Publish>,
    },
    /// Settlements of one connection, in order. No answer.
    Settle(Vec<Settlement>),
    /// `tx.commit`'s part for this shard, applied whole. Answered by [`Reply::Committed`].
    Commit {
        /// Who commits.
        reply: ReplyTo,
        /// Published in the transaction; `confirm` is 0.
        messages: Vec<Publish>,
        /// Settled in the transaction.
        settlements: Vec<Settlement>,
    },
    /// `tx.commit`'s part for this shard, where others have parts too: stored and held back, which
    /// [`ToMeta::Prepared`] says. Answered by [`Reply::Committed`] when it is decided.
    Prepare {
        /// Who commits.
        reply: ReplyTo,
        /// The transaction.
        tx: TxId,
        /// How many shards have a part.
        parts: u32,
        /// As in [`ToShard::Commit`].
        messages: Vec<Publish>,
        /// As there.
        settlements: Vec<Settlement>,
    },
    /// From Meta: what becomes of a part that is held back.
    Decide {
        /// The transaction.
        tx: TxId,
        /// It is to be; else it never was.
        commit: bool,
    },
    /// `basic.consume`. Answered by [`Reply::Consuming`] or [`Reply::Refused`]; deliveries follow.
    Consume {
        /// Who asks, by name; empty for the broker itself.
        user: Box<str>,
        /// Who.
        reply: ReplyTo,
        /// From where.
        queue: QueueId,
        /// The session's name for the consumer.
        slot: ConsumerSlot,
        /// The consumer tag, for listings.
        tag: Box<str>,
        /// Acked on delivery.
        no_ack: bool,
        /// Refuses others.
        exclusive: bool,
        /// `x-priority`.
        priority: i32,
        /// Unacked messages allowed, 0 for no limit.
        prefetch: u16,
        /// The connection's and channel's limits.
        gate: Gate,
        /// Arguments, for listings.
        arguments: Table,
    },
    /// `basic.cancel`, or a channel that closes. Answered by [`Reply::Cancelled`] when `reply` is given.
    Cancel {
        /// Who wants to know.
        reply: Option<ReplyTo>,
        /// The consumer's connection.
        connection: ConnectionId,
        /// The queue it consumes from.
        queue: QueueId,
        /// The consumer.
        slot: ConsumerSlot,
    },
    /// `basic.get`. Answered by [`Reply::Got`], [`Reply::GotNothing`] or [`Reply::Gone`].
    Get {
        /// Who.
        reply: ReplyTo,
        /// From where.
        queue: QueueId,
        /// Acked on delivery.
        no_ack: bool,
    },
    /// A gate of this connection opened again (output drained, channel limit raised, acks came): its
    /// consumers here may be given more, then those on other shards. In turn: there may not be room for all, and
    /// whoever looks first takes it.
    Resume {
        /// Whose.
        connection: ConnectionId,
        /// Shards that are told next, the next one last.
        others: Vec<usize>,
    },
    /// Counts for `queue.declare`. Answered by [`Reply::Declared`] or [`Reply::Gone`].
    Count {
        /// Who.
        reply: ReplyTo,
        /// Which.
        queue: QueueId,
    },
    /// `queue.purge`. Answered by [`Reply::Purged`] or [`Reply::Gone`].
    Purge {
        /// Who.
        reply: ReplyTo,
        /// Which.
        queue: QueueId,
        /// So many at most, the first ones.
        max: u64,
    },
    /// From an operator: some messages, as they are. Answered by [`Reply::Looked`] or [`Reply::Gone`].
    Look {
        /// Who.
        reply: ReplyTo,
        /// Of which queue.
        queue: QueueId,
        /// Ready ones, or unacked ones.
        place: Place,
        /// From which on, in the order of offsets.
        from: Offset,
        /// So many at most.
        max: usize,
    },
    /// From an operator: purges single ready messages. Answered by [`Reply::Purged`] or [`Reply::Gone`].
    Discard {
        /// Who.
        reply: ReplyTo,
        /// From which queue.
        queue: QueueId,
        /// Which; those that are not ready stay.
        offsets: Vec<Offset>,
    },
    /// From an operator: stores ready messages elsewhere, and lets them go when they are safe there.
    /// Answered by [`Reply::Moved`] or [`Reply::Gone`].
    Move {
        /// Who: moves one lot at a time.
        reply: ReplyTo,
        /// From which queue.
        queue: QueueId,
        /// Which; those that are not ready stay.
        offsets: Vec<Offset>,
        /// Where to.
        to: MoveTo,
    },
    /// `queue.delete`. The shard checks, lets the queue's messages go, tells its consumers, and has
    /// [`ToMeta::QueueGone`] finish it, which answers [`Reply::Deleted`]; or [`Reply::Refused`] here.
    Delete {
        /// Who asks, by name; empty for the broker itself.
        user: Box<str>,
        /// Who wants to know; none when an exclusive queue's connection ended.
        reply: Option<ReplyTo>,
        /// Which.
        queue: QueueId,
        /// Only when it has no consumers.
        if_unused: bool,
        /// Only when it holds no ready message.
        if_empty: bool,
    },
    /// From Meta: a queue was declared and lives here. Answers [`Reply::Declared`] to `reply`.
    Create {
        /// Who declared.
        reply: Option<ReplyTo>,
        /// Which; its options are in the topology.
        queue: QueueId,
    },
    /// From Meta: a policy or argument changed; read the options again.
    OptionsChanged {
        /// Which.
        queue: QueueId,
    },
    /// From another shard: a dead letter, or what an operator moves, routed here. With `from` it has one
    /// target and is answered by [`ToShard::DeadLettered`].
    DeadLetter {
        /// The shard and message that wait for it (at-least-once strategy).
        from: Option<DeadLetterFrom>,
        /// The message; `confirm` is 0.
        message: Publish,
    },
    /// Answer to [`ToShard::DeadLetter`], of its one target.
    DeadLettered {
        /// Whose message it was.
        from: DeadLetterFrom,
        /// The queue it was for.
        target: QueueId,
        /// False when the target is full and refused it.
        taken: bool,
    },
    /// A message passed a recent-history exchange kept here (`exchange id % shards`).
    Remember {
        /// The exchange.
        exchange: ExchangeId,
        /// How many it keeps.
        limit: u32,
        /// The message, for no queue yet and with no confirm.
        message: Publish,
    },
    /// From Meta: a queue was bound to a recent-history exchange kept here: send it what is remembered.
    Replay {
        /// The exchange.
        exchange: ExchangeId,
        /// The new destination.
        queue: QueueId,
    },
    /// From Meta: the exchange was deleted.
    Forget {
        /// The exchange.
        exchange: ExchangeId,
    },
    /// The connection ended; everything it settled was sent before. Its port is forgotten.
    Disconnected(ConnectionId),
    /// From the driver: who was asked something is gone, and this says so: [`Reply::Gone`].
    Nobody {
        /// Who asked.
        reply: ReplyTo,
    },
    /// From the driver: go on with queues whose budget ran out.
    Continue,
    /// From the driver: the disk of the shard's log finished something.
    LogWoke,
    /// Facts about the queues here, for listings. Answered by [`Reply::Queues`].
    List {
        /// Who.
        reply: ReplyTo,
    },
    /// Numbers of the shard, for statistics. Answered by [`Reply::Sampled`] with the first piece, or
    /// the next one.
    Sample {
        /// Who.
        reply: ReplyTo,
        /// The first piece.
        begins: bool,
    },
}

/// A dead letter's origin under the at-least-once strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadLetterFrom {
    /// Its shard.
    pub shard: usize,
    /// Its queue.
    pub queue: QueueId,
    /// Its record there.
    pub offset: Offset,
}

/// Letters to the owner of the topology.
#[derive(Debug)]
pub enum ToMeta {
    /// `exchange.declare`, not passive. Answered by [`Reply::Done`] or [`Reply::Refused`].
    DeclareExchange {
        /// Who asks, by name; empty for the broker itself.
        user: Box<str>,
        /// Who.
        reply: ReplyTo,
        /// Where.
        vhost: VhostId,
        /// Name.
        name: Box<str>,
        /// Type, as the client wrote it.
        kind: Box<str>,
        /// Survives a restart.
        durable: bool,
        /// Deleted after its last binding.
        auto_delete: bool,
        /// Not for publishing.
        internal: bool,
        /// Arguments.
        arguments: Table,
    },
    /// `exchange.delete`. Answered by [`Reply::Done`] or [`Reply::Refused`].
    DeleteExchange {
        /// Who asks, by name; empty for the broker itself.
        user: Box<str>,
        /// Who.
        reply: ReplyTo,
        /// Where.
        vhost: VhostId,
        /// Name.
        name: Box<str>,
        /// Only without bindings.
        if_unused: bool,
    },
    /// `queue.declare`, not passive. Answered by [`Reply::Declared`] or [`Reply::Refused`].
    DeclareQueue {
        /// Who asks, by name; empty for the broker itself.
        user: Box<str>,
        /// Who.
        reply: ReplyTo,
        /// Where.
        vhost: VhostId,
        /// Name: never empty, the session makes one up.
        name: Box<str>,
        /// The session made the name up.
        server_named: bool,
        /// Survives a restart.
        durable: bool,
        /// Belongs to this connection only.
        exclusive: bool,
        /// Deleted after its last consumer.
        auto_delete: bool,
        /// Arguments.
        arguments: Table,
    },
    /// `queue.bind`, `exchange.bind`. Answered by [`Reply::Done`] or [`Reply::Refused`].
    Bind(Box<Binding>),
    /// `queue.unbind`, `exchange.unbind`. Answered by [`Reply::Done`] or [`Reply::Refused`].
    Unbind(Box<Binding>),
    /// From a shard: the queue is empty and has no consumers any more; take its name away.
    QueueGone {
        /// Who asks, by name; empty for the broker itself.
        user: Box<str>,
        /// Which.
        queue: QueueId,
        /// Who deleted it, and how many ready messages it had.
        reply: Option<(ReplyTo, u64)>,
        /// Who consumed from it: told when it is true, just before the one who asked.
        consumers: Vec<(ConnectionId, ConsumerSlot)>,
    },
    /// A connection ended: its exclusive queues go. With `reply`, [`Reply::Done`] comes when the last one
    /// is gone, as RabbitMQ waits for it before `connection.close-ok`.
    Disconnected {
        /// Which.
        connection: ConnectionId,
        /// Who waits.
        reply: Option<ReplyTo>,
    },
    /// From a shard: its part of a transaction can be, or cannot.
    Prepared {
        /// The transaction.
        tx: TxId,
        /// The shard.
        shard: usize,
        /// How many shards have a part.
        parts: u32,
        /// What it says.
        vote: Vote,
    },
    /// From a shard: what the transaction did there is on the disk.
    Applied {
        /// The transaction.
        tx: TxId,
    },
    /// From the node: the disk of Meta's log finished something. Who waits for it is answered.
    LogWoke,
    /// A change from the command line, applied to the topology; its result is given to `reply`.
    Admin {
        /// Who asks, by name; empty for the broker itself.
        user: Box<str>,
        /// Who.
        reply: ReplyTo,
        /// What.
        command: Box<AdminCommand>,
    },
}

/// A binding to make or to undo.
#[derive(Debug)]
pub struct Binding {
    /// Who asks, by name.
    pub user: Box<str>,
    /// Who.
    pub reply: ReplyTo,
    /// Where.
    pub vhost: VhostId,
    /// The exchange that is published to.
    pub source: Box<str>,
    /// Queue or exchange that receives.
    pub destination: Box<str>,
    /// Whether `destination` names a queue.
    pub to_queue: bool,
    /// Binding key.
    pub key: Box<str>,
    /// Arguments.
    pub arguments: Table,
}

/// Changes of users, vhosts, policies, parameters and definitions: the command line's and the HTTP API's.
#[derive(Debug)]
#[expect(missing_docs, reason = "the fields carry the names of rabbitmqctl's arguments")]
pub enum AdminCommand {
    ImportDefinitions {
        json: String,
    },
    AddUser {
        name: String,
        password: PasswordHash,
        tags: Vec<String>,
    },
    DeleteUser {
        name: String,
    },
    ChangePassword {
        name: String,
        password: PasswordHash,
    },
    SetUserTags {
        name: String,
        tags: Vec<String>,
    },
    SetPermissions {
        user: String,
        vhost: String,
        configure: String,
        write: String,
        read: String,
    },
    ClearPermissions {
        user: String,
        vhost: String,
    },
    SetTopicPermissions {
        user: String,
        vhost: String,
        exchange: String,
        write: String,
        read: String,
    },
    /// Adds the user if there is none, else changes it.
    PutUser {
        name: String,
        /// It stays without.
        password: Option<PasswordHash>,
        tags: Vec<String>,
    },
    /// All of the vhost without `exchange`.
    ClearTopicPermissions {
        user: String,
        vhost: String,
        exchange: Option<String>,
    },
    AddVhost {
        name: String,
    },
    /// Adds the vhost if there is none. What is not given stays.
    PutVhost {
        name: String,
        description: Option<String>,
        tags: Option<Vec<String>>,
        default_queue_type: Option<String>,
        tracing: Option<bool>,
    },
    SetTracing {
        vhost: String,
        is_on: bool,
    },
    DeleteVhost {
        name: String,
    },
    /// Protects a vhost from being deleted, or no longer.
    ProtectVhost {
        name: String,
        is_protected: bool,
    },
    SetVhostLimits {
        vhost: String,
        limits: BTreeMap<String, i64>,
    },
    /// All of them without `limit`.
    ClearVhostLimits {
        vhost: String,
        limit: Option<String>,
    },
    /// Limits that are not named stay.
    SetUserLimits {
        name: String,
        limits: BTreeMap<String, i64>,
    },
    /// All of them without `limit`.
    ClearUserLimits {
        name: String,
        limit: Option<String>,
    },
    SetPolicy {
        vhost: String,
        name: String,
        pattern: String,
        definition: serde_json::Map<String, serde_json::Value>,
        priority: i64,
        apply_to: String,
    },
    ClearPolicy {
        vhost: String,
        name: String,
    },
    SetOperatorPolicy {
        vhost: String,
        name: String,
        pattern: String,
        definition: serde_json::Map<String, serde_json::Value>,
        priority: i64,
        apply_to: String,
    },
    ClearOperatorPolicy {
        vhost: String,
        name: String,
    },
    /// Nobody is given anything of a queue, or as usual.
    PauseQueue {
        vhost: String,
        name: String,
        paused: bool,
    },
    SetQueueArguments {
        vhost: String,
        name: String,
        change: ArgumentsChange,
    },
    SetParameter {
        vhost: String,
        component: String,
        name: String,
        value: serde_json::Value,
    },
    ClearParameter {
        vhost: String,
        component: String,
        name: String,
    },
    SetGlobalParameter {
        name: String,
        value: serde_json::Value,
    },
    ClearGlobalParameter {
        name: String,
    },
}

/// A message on its way to a consumer.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The consumer, by the session's name.
    pub slot: ConsumerSlot,
    /// The queue it comes from.
    pub queue: QueueId,
    /// What to settle; none when no ack is expected.
    pub unacked: Option<UnackedId>,
    /// Its record's offset.
    pub offset: Offset,
    /// It was delivered before.
    pub redelivered: bool,
    /// Earlier deliveries that came back, for `x-delivery-count`; only on queues that count.
    pub delivery_count: u32,
    /// The record; see [`record`](crate::record).
    pub record: Bytes,
}

/// Letters to a session.
#[derive(Debug)]
pub enum ToSession {
    /// Messages for consumers, in order.
    Deliver(Vec<Delivery>),
    /// Messages `first..=last` of the channel were resolved by one shard: `basic.ack` or `basic.nack`.
    Confirm {
        /// The channel.
        channel: ChannelId,
        /// First sequence number.
        first: u64,
        /// Last sequence number, included.
        last: u64,
        /// Ack or nack.
        ok: bool,
    },
    /// The publisher of messages `first..=last` of the channel waited as long as a queue allows:
    /// `basic.nack`, whatever other shards would say.
    ConfirmTimeout {
        /// The channel.
        channel: ChannelId,
        /// First sequence number.
        first: u64,
        /// Last sequence number, included.
        last: u64,
    },
    /// A shard that this connection publishes to is far behind with its disk, or no longer: nothing more
    /// is read meanwhile. Each `true` is followed by a `false` of the same shard.
    Paused(bool),
    /// The answer to the command the session waits for.
    Reply {
        /// The channel that asked.
        channel: ChannelId,
        /// The answer.
        reply: Reply,
    },
    /// The queue was deleted: `basic.cancel` to the client if it can take it. The slot is free.
    ConsumerGone {
        /// The consumer.
        slot: ConsumerSlot,
    },
    /// A reply for a direct reply-to consumer of `channel`.
    DirectReply {
        /// The channel that consumes from `amq.rabbitmq.reply-to`.
        channel: ChannelId,
        /// The consumer's key as in the reply-to name, checked by the receiver.
        token: u64,
        /// The message.
        message: Message,
    },
    /// Whether a direct reply-to consumer is still there: [`Reply::Done`] or [`Reply::Gone`].
    DirectReplyAsked {
        /// Who.
        reply: ReplyTo,
        /// As in [`DirectReply`](Self::DirectReply).
        channel: ChannelId,
        /// As there.
        token: u64,
    },
    /// The answer to the session's [`Login`]: who was let in, if anybody was.
    LoggedIn(Option<Box<Admitted>>),
    /// The answer to what the session [`Asked`].
    Decided(Box<(Question, Decision)>),
    /// Something is short, or no longer.
    Alarm(Alarm),
    /// While an alarm is raised: what the connection published into is full.
    Stopped,
    /// Close the connection with this code and text (operator, shutdown).
    Close {
        /// Why.
        code: ReplyCode,
        /// In words.
        text: String,
    },
}

/// Answers to commands.
#[derive(Debug)]
pub enum Reply {
    /// Bind, unbind, exchange declare and delete, admin commands.
    Done,
    /// Done, with a text for the operator.
    Told(String),
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
    Consuming,
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
    /// Queue deleted with that many ready messages.
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

/// Where an operator moves messages to.
#[derive(Clone, Debug)]
pub enum MoveTo {
    /// The end of a queue, perhaps of their own; they keep exchange and routing key.
    Queue(QueueId),
    /// Where this exchange leads them.
    Exchange {
        /// Which.
        exchange: ExchangeId,
        /// With this routing key; without, each with its own.
        key: Option<Box<str>>,
    },
    /// The front of their own queue, until a restart.
    Front,
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

/// A consumer that has a message.
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
    /// Consumers.
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
    pub arguments: Table,
}

/// What a turn wants sent. The driver hands each letter to its actor's inbox, in order.
#[derive(Debug, Default)]
pub struct Outbox {
    /// To shards, by index.
    pub shards: Vec<(usize, ToShard)>,
    /// To the topology's owner.
    pub meta: Vec<ToMeta>,
    /// To sessions.
    pub sessions: Vec<(ConnectionId, ToSession)>,
    /// Clients that want to come in.
    pub logins: Vec<Login>,
    /// What happened, for those who want to know.
    pub events: Vec<Event>,
    /// What others have to decide who keep users.
    pub asked: Vec<Asked>,
    /// A log failed, in words: the process has to stop, as nothing may be confirmed any more.
    pub failed: Option<String>,
}

impl Outbox {
    /// Whether nothing is to be sent.
    pub fn is_empty(&self) -> bool {
        self.shards.is_empty()
            && self.meta.is_empty()
            && self.sessions.is_empty()
            && self.logins.is_empty()
            && self.events.is_empty()
            && self.asked.is_empty()
            && self.failed.is_none()
    }

    /// Moves all letters to the end of another outbox.
    pub fn append_to(mut self, other: &mut Self) {
        other.shards.append(&mut self.shards);
        other.meta.append(&mut self.meta);
        other.sessions.append(&mut self.sessions);
        other.logins.append(&mut self.logins);
        other.events.append(&mut self.events);
        other.asked.append(&mut self.asked);
        other.failed = other.failed.take().or(self.failed);
    }

    /// Answers logins by the names alone: for a driver that has nothing else to decide by.
    pub fn answer_logins(&mut self, topology: &Topology) {
        for login in self.logins.drain(..) {
            let admitted = login.judge(topology).ok().map(Box::new);
            let answer = ToSession::LoggedIn(admitted);
            self.sessions.push((login.connection, answer));
        }
    }

    /// Sends `letter` to the shard with that index.
    pub fn shard(&mut self, index: usize, letter: ToShard) {
        self.shards.push((index, letter));
    }

    /// Sends `letter` to a session.
    pub fn session(&mut self, to: ConnectionId, letter: ToSession) {
        self.sessions.push((to, letter));
    }

    /// Answers a command.
    pub fn reply(&mut self, to: ReplyTo, reply: Reply) {
        self.sessions.push((to.connection, ToSession::Reply { channel: to.channel, reply }));
    }
}

/// The shard a queue lives in.
pub fn shard_of(queue: QueueId, shards: usize) -> usize {
    (queue.get() % shards as u64) as usize
}
