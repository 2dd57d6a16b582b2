//! Contents that go out from a [`Message`]: `basic.return`, direct replies.

use bytes::Bytes;
use leveret_amqp::method::basic;
use leveret_amqp::reply::ReplyCode;
use leveret_broker::message::Message;

use crate::core::Context;
use crate::publish::names;

const BASIC: u16 = 60;

/// `basic.return` of a mandatory message that went nowhere.
#[cold]
pub(crate) fn no_route(channel: u16, frame_max: u32, message: &Message, cx: &mut Context<'_>) {
    let (exchange, routing_key) = names(message);
    cx.out.put_method(
        channel,
        &basic::Return {
            reply_code: ReplyCode::NoRoute.code(),
            reply_text: ReplyCode::NoRoute.name(),
            exchange,
            routing_key,
        },
    );
    put_content(channel, frame_max, message, cx);
}

/// Header and body frames.
pub(crate) fn put_content(channel: u16, frame_max: u32, message: &Message, cx: &mut Context<'_>) {
    cx.out.put_header(channel, BASIC, message.body_len(), message.properties());
    if !message.body().is_empty() {
        cx.out.put_body(channel, &Bytes::copy_from_slice(message.body()), frame_max);
    }
    for part in message.more() {
        cx.out.put_body(channel, part, frame_max);
    }
}
