//! Direct reply-to: requests carry a name that says which channel waits for the answer, and an answer
//! published to that name goes there, past any queue.
//!
//! ```text
//!   amq.rabbitmq.reply-to . connection . channel . token        (in hex)
//! ```
//!
//! The token is random and checked by the receiver: who was not given the name cannot answer.

use leveret_amqp::method::basic;
use leveret_broker::message::{ConnectionId, Message, Reply, ToSession};

use crate::channel::Channel;
use crate::core::{Context, Core};
use crate::publish::names;
use crate::returned::put_content;

/// Where an answer goes: connection, channel, token.
pub(crate) type Address = (ConnectionId, u16, u64);

/// The pseudo-queue that clients name.
pub(crate) const NAME: &str = "amq.rabbitmq.reply-to";

/// The name that a request carries.
pub(crate) fn name(connection: ConnectionId, channel: u16, token: u64) -> String {
    format!("{NAME}.{:x}.{channel:x}.{token:016x}", connection.bits())
}

/// Whether it is the pseudo-queue's or such a name.
pub(crate) fn is_name(name: &str) -> bool {
    name.starts_with(NAME)
}

/// Takes such a name apart.
pub(crate) fn parse(name: &str) -> Option<Address> {
    let mut parts = name.strip_prefix(NAME)?.strip_prefix('.')?.split('.');
    let connection = u64::from_str_radix(parts.next()?, 16).ok()?;
    let channel = u16::from_str_radix(parts.next()?, 16).ok()?;
    let token = u64::from_str_radix(parts.next()?, 16).ok()?;
    parts.next().is_none().then_some((ConnectionId::from_bits(connection), channel, token))
}

/// An answer was published.
pub(crate) fn send(to: Address, message: Message, cx: &mut Context<'_>) {
    let (connection, channel, token) = to;
    cx.outbox.session(connection, ToSession::DirectReply { channel, token, message });
}

/// Whether the channel that a name is of still waits under it.
pub(crate) fn answer(channel: Option<&Channel>, token: u64) -> Reply {
    let consumer = channel.and_then(|channel| channel.direct_reply.as_ref());
    if consumer.is_some_and(|consumer| consumer.token == token) { Reply::Done } else { Reply::Gone }
}

/// An answer came. It is dropped when the consumer is gone, or so slow that many times the output limit
/// waits for it: a direct reply is delivered at most once.
pub(crate) fn deliver(
    core: &mut Core,
    channel: &mut Channel,
    token: u64,
    message: &Message,
    cx: &mut Context<'_>,
) {
    let Some(consumer) = channel.direct_reply.as_ref().filter(|c| c.token == token) else { return };
    if channel.is_closing || cx.out.len() as u64 > core.settings.output_bytes_max * 16 {
        return;
    }
    channel.totals.taken.deliver_no_ack += 1;
    let (exchange, routing_key) = names(message);
    let delivery_tag = channel.next_tag;
    channel.next_tag += 1;
    cx.out.put_method(
        channel.number,
        &basic::Deliver {
            consumer_tag: &consumer.tag,
            delivery_tag,
            redelivered: false,
            exchange,
            routing_key,
        },
    );
    put_content(channel.number, core.frame_max, message, cx);
}

#[cfg(test)]
mod tests {
    use leveret_broker::message::NodeId;

    use super::*;

    #[test]
    fn names_are_read_back() {
        let id = NodeId::ALONE.connection(77);
        assert_eq!(parse(&name(id, 3, u64::MAX)), Some((id, 3, u64::MAX)));
        for other in [NAME, "amq.rabbitmq.reply-to.", "amq.rabbitmq.reply-to.1.2", "q", ""] {
            assert_eq!(parse(other), None, "{other}");
        }
        assert_eq!(parse(&format!("{}.1", name(id, 3, 1))), None);
    }
}
