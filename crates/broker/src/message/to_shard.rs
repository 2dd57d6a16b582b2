//! Letters to a shard.

use std::sync::Arc;

use bytes::Bytes;
use leveret_amqp::table::Table;
use leveret_log::ReadError;
use leveret_queue::{Gate, LookAt, Offset};
use leveret_topology::{By, ExchangeId, GroupId, QueueId};

use super::{
    Allowance, Attached, Attachment, ChannelId, ConnectionId, ConsumerSlot, GivenBack, Publish,
    ReplyTo, Settlement,
};
use crate::stream::{AskedMessage, Numbered, StreamId};
use crate::transaction::TxId;

/// Letters to a shard.
#[derive(Clone, Debug)]
pub enum ToShard {
    /// Messages of one connection, in order.
    Publish {
        /// Who published.
        from: ConnectionId,
        /// In the order of publishing.
        messages: Vec<Publish>,
    },
    /// Settlements of one connection, in order. No answer.
    Settle {
        /// Who settles: the broker itself what was given to somebody who is gone.
        from: ConnectionId,
        /// In the order of settling.
        settlements: Vec<Settlement>,
    },
    /// Channels ended that had much unsettled: what came from here goes back. No answer.
    GiveBack {
        /// Whose channels.
        from: ConnectionId,
        /// What came from here, and from elsewhere.
        unsettled: Arc<GivenBack>,
    },
    /// With the number of a `Publish` that is agreed upon: its sender awaits the verdicts of these messages of it. Only in a
    /// [`Numbered`].
    Ask {
        /// Who published.
        from: ConnectionId,
        /// In the order of publishing.
        messages: Vec<AskedMessage>,
    },
    /// What waits for consumers in memory alone, of the letters of a stream up to this number, is to go to the log: its sender keeps
    /// much because of that. No answer.
    StoreWaiting {
        /// Which stream.
        stream: StreamId,
        /// The last letter.
        up_to: u64,
    },
    /// One of the letters above, or a transaction's below, with its number, to a group that has others: done once, though it come twice. See
    /// [`stream`](crate::stream).
    Numbered(Box<Numbered>),
    /// `tx.commit`'s part for this shard, applied whole. Answered by `Reply::Committed`.
    Commit {
        /// Who commits.
        reply: ReplyTo,
        /// Published in the transaction; `confirm` is 0.
        messages: Vec<Publish>,
        /// Settled in the transaction.
        settlements: Vec<Settlement>,
    },
    /// `tx.commit`'s part for this shard, where others have parts too: stored and held back, which
    /// `ToMeta::Prepared` says. Answered by `Reply::Committed` when it is decided.
    Prepare {
        /// Who commits.
        reply: ReplyTo,
        /// The transaction.
        tx: TxId,
        /// How many shards have a part. None: another part was refused, and this one is not to be, though it may have come before. It
        /// is answered as one that could not be stored.
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
    /// `basic.consume`. Answered by `Reply::Consuming` or `Reply::Refused`; deliveries follow.
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
        /// The connection's and channel's limits; none if the shard is told them by [`ToShard::Allow`].
        gate: Option<Gate>,
        /// Arguments, for listings.
        arguments: Arc<Table>,
    },
    /// From a session that was asked: what it has here. One of another term means nothing.
    Attach(Box<Attachment>),
    /// From a node: all of its sessions have answered.
    Attached(Attached),
    /// `basic.cancel`, or a channel that closes. Answered by `Reply::Cancelled` when `reply` is given.
    Cancel {
        /// Who asks, by name; empty for the broker itself.
        user: Box<str>,
        /// Who wants to know.
        reply: Option<ReplyTo>,
        /// The consumer's connection.
        connection: ConnectionId,
        /// The queue it consumes from.
        queue: QueueId,
        /// The consumer.
        slot: ConsumerSlot,
    },
    /// `basic.get`. Answered by `Reply::Got`, `Reply::GotNothing` or `Reply::Gone`.
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
        /// Groups whose shards are told next, the next one last.
        others: Vec<GroupId>,
    },
    /// From a session that shares no memory with the shard: what may be given to its consumers there.
    Allow {
        /// Whose.
        connection: ConnectionId,
        /// What has changed.
        allowances: Vec<Allowance>,
    },
    /// Counts for `queue.declare`. Answered by `Reply::Declared` or `Reply::Gone`.
    Count {
        /// Who.
        reply: ReplyTo,
        /// Which.
        queue: QueueId,
    },
    /// `queue.purge`. Answered by `Reply::Purged` or `Reply::Gone`.
    Purge {
        /// Who.
        reply: ReplyTo,
        /// Which.
        queue: QueueId,
        /// So many at most, the first ones.
        max: u64,
    },
    /// From an operator: some messages, as they are. Answered by `Reply::Looked` or `Reply::Gone`.
    Look {
        /// Who.
        reply: ReplyTo,
        /// Of which queue.
        queue: QueueId,
        /// Ready ones, or unacked ones.
        place: LookAt,
        /// From which on, in the order of offsets.
        from: Offset,
        /// So many at most.
        max: usize,
    },
    /// From an operator: purges single ready messages. Answered by `Reply::Purged` or `Reply::Gone`.
    Discard {
        /// Who.
        reply: ReplyTo,
        /// From which queue.
        queue: QueueId,
        /// Which; those that are not ready stay.
        offsets: Vec<Offset>,
    },
    /// From an operator: stores ready messages elsewhere, and lets them go when they are safe there.
    /// Answered by `Reply::Moved` or `Reply::Gone`.
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
    /// From Meta: the name of a deleted queue is gone, so its consumers that are not told yet are.
    CancelRest {
        /// Which.
        queue: QueueId,
    },
    /// `queue.delete`. The shard checks, lets the queue's messages go, names its consumers, and has
    /// `ToMeta::QueueGone` finish it, which answers `Reply::Deleted`; or `Reply::Refused` here, or
    /// `Reply::Gone` when it was deleted a moment before.
    Delete {
        /// Who asks, and from where.
        by: Box<By>,
        /// Who wants to know; none when an exclusive queue's connection ended.
        reply: Option<ReplyTo>,
        /// Which.
        queue: QueueId,
        /// Only when it has no consumers.
        if_unused: bool,
        /// Only when it holds no ready message.
        if_empty: bool,
    },
    /// From Meta: a queue was declared and lives here. Answers `Reply::Declared` to `reply`.
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
        /// What became of it there.
        taken: PutResult,
    },
    /// A message passed a recent-history exchange kept here.
    Remember {
        /// Who published it.
        from: ConnectionId,
        /// The exchange.
        exchange: ExchangeId,
        /// How many it keeps.
        limit: u32,
        /// The message, for no queue yet and with no confirm.
        message: Publish,
    },
    /// From Meta: a queue was bound to a recent-history exchange kept here: send it what is remembered.
    Replay {
        /// Who bound it.
        from: ConnectionId,
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
    /// The connection ended; everything it settled was sent before. Its port is forgotten. With `reply`,
    /// `Reply::Done` comes when that is so, and all that it wrote before is done.
    Disconnected {
        /// Which.
        connection: ConnectionId,
        /// Who waits.
        reply: Option<ReplyTo>,
    },
    /// From the driver: letters came faster than turns take them, and this connection, whose was among them, was told to
    /// pause: the turn that finds this has taken them.
    Crowded {
        /// Which.
        from: ConnectionId,
    },
    /// Whether it goes on: answered by `Reply::Done`.
    IsWell {
        /// Who wants to know.
        reply: ReplyTo,
    },
    /// From the driver: go on with queues whose budget ran out.
    Continue,
    /// From the driver: the disk of the shard's log finished something.
    LogWoke,
    /// From another shard, which refers to records here no more: see `leveret_log::shared`.
    Freed {
        /// Whose shard.
        by: GroupId,
        /// The records.
        records: Vec<leveret_log::Offset>,
    },
    /// From another shard, which wants bytes that are here. Answered by [`ToShard::Lent`].
    Lend {
        /// Whose shard.
        to: GroupId,
        /// Each record as it is called here, and there.
        records: Vec<(leveret_log::Offset, leveret_log::Offset)>,
    },
    /// Answer to [`ToShard::Lend`], of some of those records or all.
    Lent {
        /// As they are called here.
        records: Vec<(leveret_log::Offset, Result<Bytes, ReadError>)>,
    },
    /// Facts about some queues that are here, for a page of a list. Answered by `Reply::Queues`.
    List {
        /// Who.
        reply: ReplyTo,
        /// Which. One that is not here any more is left out.
        queues: Box<[QueueId]>,
        /// Which of their consumers are named, too.
        consumers: Named,
    },
    /// Numbers of the shard, for statistics. Answered by `Reply::Sampled` with the first piece, or
    /// the next one.
    Sample {
        /// Who.
        reply: ReplyTo,
        /// The first piece.
        begins: bool,
    },
}

impl ToShard {
    /// Whose it is, if a session writes it, and its node keeps it until it is answered, or a shard in a new term can do without it.
    pub fn asker(&self) -> Option<ConnectionId> {
        match self {
            Self::Consume { reply, .. }
            | Self::Get { reply, .. }
            | Self::Count { reply, .. }
            | Self::Purge { reply, .. }
            | Self::Create { reply: Some(reply), .. }
            | Self::Delete { reply: Some(reply), .. } => Some(reply.connection),
            Self::Cancel { connection, .. }
            | Self::Disconnected { connection, .. }
            | Self::Resume { connection, .. } => Some(*connection),
            _ => None,
        }
    }

    /// What it is, in a word: for what tells that a turn took long.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Publish { .. } => "Publish",
            Self::Settle { .. } => "Settle",
            Self::GiveBack { .. } => "GiveBack",
            Self::Ask { .. } => "Ask",
            Self::StoreWaiting { .. } => "StoreWaiting",
            Self::Numbered(_) => "Numbered",
            Self::Commit { .. } => "Commit",
            Self::Prepare { .. } => "Prepare",
            Self::Decide { .. } => "Decide",
            Self::Consume { .. } => "Consume",
            Self::Attach(_) => "Attach",
            Self::Attached(_) => "Attached",
            Self::Cancel { .. } => "Cancel",
            Self::Get { .. } => "Get",
            Self::Resume { .. } => "Resume",
            Self::Allow { .. } => "Allow",
            Self::Count { .. } => "Count",
            Self::Purge { .. } => "Purge",
            Self::Look { .. } => "Look",
            Self::Discard { .. } => "Discard",
            Self::Move { .. } => "Move",
            Self::CancelRest { .. } => "CancelRest",
            Self::Delete { .. } => "Delete",
            Self::Create { .. } => "Create",
            Self::OptionsChanged { .. } => "OptionsChanged",
            Self::DeadLetter { .. } => "DeadLetter",
            Self::DeadLettered { .. } => "DeadLettered",
            Self::Remember { .. } => "Remember",
            Self::Replay { .. } => "Replay",
            Self::Forget { .. } => "Forget",
            Self::Disconnected { .. } => "Disconnected",
            Self::Crowded { .. } => "Crowded",
            Self::IsWell { .. } => "IsWell",
            Self::Continue => "Continue",
            Self::LogWoke => "LogWoke",
            Self::Freed { .. } => "Freed",
            Self::Lend { .. } => "Lend",
            Self::Lent { .. } => "Lent",
            Self::List { .. } => "List",
            Self::Sample { .. } => "Sample",
        }
    }
}

/// What became of a message that a shard was to put into queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutResult {
    /// The message is in all of the queues that are there.
    Yes,
    /// A queue was full, and refused the message.
    Refused,
    /// The disk has no room for the message.
    NotStored,
}

/// A dead letter's origin under the at-least-once strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadLetterFrom {
    /// Its shard's group.
    pub group: GroupId,
    /// Its queue.
    pub queue: QueueId,
    /// Its record there.
    pub offset: Offset,
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

/// Which consumers a list names: a queue may have hundreds of thousands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Named {
    /// None: they are counted.
    #[default]
    None,
    /// All.
    All,
    /// Those of a channel.
    OfChannel(ConnectionId, ChannelId),
}
