//! Letters to a session.

use bytes::Bytes;
use leveret_amqp::reply::ReplyCode;
use leveret_queue::{Offset, UnackedId};
use leveret_topology::{GroupId, QueueId};

use super::{AllowanceState, ChannelId, ConsumerSlot, Message, Reply, ReplyTo};
use crate::flow::Alarm;
use leveret_topology::rights::{Admitted, Decision, Question};

/// A message on its way to a consumer.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The consumer, by the session's name.
    pub slot: ConsumerSlot,
    /// The queue it comes from.
    pub queue: QueueId,
    /// The group that the queue lives in.
    pub home: GroupId,
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
    /// The shard of a group is filled anew: it is to be told what this connection has there, by
    /// [`ToShard::Attach`](super::ToShard::Attach). Everything from before is in front of this letter.
    Attach {
        /// Which.
        group: GroupId,
        /// Its term.
        term: u64,
        /// Records from this offset on are of this term: what the session was given before with such an offset was in no batch, and is lost.
        begins_at: Offset,
    },
    /// What a shard may give consumers of this connection that has no gate of theirs, behind all deliveries that this counts.
    /// Answered by [`ToShard::Allow`](super::ToShard::Allow), now or when there is something to allow.
    AllowanceStates {
        /// Whose shard.
        group: GroupId,
        /// Of some accounts.
        states: Vec<AllowanceState>,
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
    /// The answer to the session's [`Login`](crate::login::Login): who was let in, if anybody was.
    LoggedIn(Option<Box<Admitted>>),
    /// The answer to what the session [`Asked`](crate::login::Asked).
    Decided(Box<(Question, Decision)>),
    /// Something is short, or no longer.
    Alarm(Alarm),
    /// While an alarm is raised: what the connection published into is full.
    Stopped,
    /// The connection stood in line for room: it has it now, or cannot have it. See [`bodies`](crate::bodies).
    Room {
        /// What the connection called its question.
        number: u64,
        /// It goes on; otherwise it ends.
        is_granted: bool,
    },
    /// Close the connection with this code and text (operator, shutdown).
    Close {
        /// Why.
        code: ReplyCode,
        /// In words.
        text: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deliveries_stay_small() {
        assert_eq!(size_of::<Delivery>(), 72);
    }
}
