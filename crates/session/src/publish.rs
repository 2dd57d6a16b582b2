//! Hot path. `basic.publish`, from its method frame to the shards' batches.
//!
//! Budget: no allocation per message once warm (the batch's own vector apart), no copy of the body, one
//! hash of the names; nothing by name but on a miss of the route cache.
//!
//! The checks and their order are RabbitMQ's: size, permission, exchange, reply-to, expiration, routing
//! headers, topic permission, user-id. What is rare (a miss, `CC`, direct replies, transactions, returns)
//! is in [`route`](crate::route), [`properties`](crate::properties), [`direct`](crate::direct) and
//! [`tx`](crate::tx).

use bytes::Bytes;
use leveret_amqp::content::{ContentHeader, RawProperties};
use leveret_amqp::method::basic;
use leveret_broker::message::{Message, Publish, Targets};
use leveret_broker::record::split_names;

use crate::cache::{RouteCache, Routed};
use crate::channel::content::Stage;
use crate::channel::{Channel, Mode};
use crate::core::{Context, Core};
use crate::reply::{self, Fault};
use crate::{direct, properties, returned, route};

const BASIC: u16 = 60;

/// `basic.publish`: the content comes next.
pub(crate) fn begin(
    core: &mut Core,
    channel: &mut Channel,
    method: &basic::Publish<'_>,
    payload: &[u8],
    read: &Bytes,
) -> Result<(), Fault> {
    if method.immediate {
        return Err(reply::immediate());
    }
    // Class, method and ticket before the two names, the bits after them.
    let names = payload.get(6..payload.len().saturating_sub(1)).unwrap_or_default();
    channel.content.begin(read, names, method.mandatory);
    core.in_read = channel.number;
    Ok(())
}

/// A content header frame.
pub(crate) fn header(
    core: &mut Core,
    channel: &mut Channel,
    payload: &[u8],
    read: &Bytes,
    cx: &mut Context<'_>,
) -> Result<(), Fault> {
    match channel.content.stage {
        Stage::Header => {}
        Stage::Idle => return Err(reply::expected_method_frame()),
        Stage::Body => return Err(reply::expected_body()),
    }
    let header = ContentHeader::decode(payload).map_err(|error| reply::bad_content(&error))?;
    if header.class != BASIC {
        return Err(reply::header_of_other_class(header.class));
    }
    if header.weight != 0 {
        return Err(reply::expected_header());
    }
    let max = core.settings.max_message_size;
    if header.body_size > max {
        // RabbitMQ waits for the body first; it could be told by nobody.
        return Err(if header.body_size > reply::BODY_SIZE_LIMIT {
            reply::claims_too_much(header.body_size)
        } else {
            reply::message_too_large(header.body_size, max)
        });
    }
    core.publish_received(cx);
    if channel.content.header(read, header.properties.as_bytes(), header.body_size) {
        return complete(core, channel, read, cx);
    }
    Ok(())
}

/// A piece of a content body frame.
pub(crate) fn body(
    core: &mut Core,
    channel: &mut Channel,
    part: &[u8],
    ends_frame: bool,
    read: &Bytes,
    cx: &mut Context<'_>,
) -> Result<(), Fault> {
    match channel.content.stage {
        Stage::Body => {}
        Stage::Idle => return Err(reply::expected_method_frame()),
        Stage::Header => return Err(reply::expected_header()),
    }
    match channel.content.body(read, part, ends_frame) {
        Some(true) => complete(core, channel, read, cx),
        Some(false) => Ok(()),
        None => Err(reply::body_too_long()),
    }
}

/// The message is whole.
fn complete(
    core: &mut Core,
    channel: &mut Channel,
    read: &Bytes,
    cx: &mut Context<'_>,
) -> Result<(), Fault> {
    core.in_read = 0;
    let mandatory = channel.content.mandatory;
    let message = channel.content.take(read);

    // Borrowed apart from the rest of the core.
    let mut cache = core.cache.take().unwrap_or_default();
    let result = checked(core, &mut cache, channel, message, mandatory, cx);
    core.cache = Some(cache);
    result
}

/// All checks, the route, and off.
fn checked(
    core: &mut Core,
    cache: &mut RouteCache,
    channel: &mut Channel,
    message: Message,
    mandatory: bool,
    cx: &mut Context<'_>,
) -> Result<(), Fault> {
    let place = match cache.find(message.names()) {
        Some(place) => place,
        None => route::resolve(core, cache, &message, cx)?,
    };
    let raw = RawProperties::new(message.properties());
    let peek = raw.peek().map_err(|error| reply::bad_content(&error))?;
    let rewritten = if properties::needs_rewrite(&peek) {
        Some(properties::rewrite(core, channel, &message, &peek)?)
    } else {
        None
    };
    let expiration_ms = match peek.expiration {
        Some(text) => Some(properties::expiration(text)?),
        None => None,
    };
    let persistent = match peek.delivery_mode {
        None | Some(1) => false,
        Some(2) => true,
        Some(mode) => return Err(reply::delivery_mode(mode)),
    };
    let is_routed = route::find(core, cache, place, &message, &peek, cx)?;
    if let Some(claimed) = peek.user_id {
        properties::check_user(core, claimed, cx)?;
    }
    let head = Publish {
        channel: channel.number,
        confirm: 0,
        targets: Targets::new(),
        persistent,
        priority: peek.priority.unwrap_or(0),
        expiration_ms,
        message: Message::default(),
    };
    let message = rewritten.unwrap_or(message);
    let routed = match cache.get(place) {
        Some(entry) if is_routed => &entry.routed,
        _ => &cache.scratch,
    };
    send(core, channel, routed, head, message, mandatory, cx);
    Ok(())
}

/// Puts a routed message into the batches of its shards, or keeps it for `tx.commit`.
fn send(
    core: &mut Core,
    channel: &mut Channel,
    routed: &Routed,
    mut publish: Publish,
    message: Message,
    mandatory: bool,
    cx: &mut Context<'_>,
) {
    if !routed.remember.is_empty() {
        route::remember(core, routed, &message, cx);
    }
    if let Mode::Tx(tx) = &mut channel.mode {
        tx.publish(routed, publish, message, mandatory);
        return;
    }
    if routed.is_unroutable() && mandatory {
        returned::no_route(channel.number, core.frame_max, &message, cx);
    }
    if let Mode::Confirm(confirms) = &mut channel.mode {
        publish.confirm = confirms.publish(routed.targets.len());
        if routed.targets.is_empty() {
            core.confirms_dirty = true;
        }
    }
    if let Some(to) = routed.direct {
        direct::send(to, message, cx);
        return;
    }
    gather(core, routed, publish, message);
}

/// Puts a message into the batches of its shards; moved to the last, shared by the others.
pub(crate) fn gather(core: &mut Core, routed: &Routed, publish: Publish, message: Message) {
    let shards = core.shards();
    let Some(((last, targets), others)) = routed.targets.split_last() else { return };
    for (shard, targets) in others {
        let message = message.clone();
        let publish = Publish { targets: targets.clone(), message, ..publish.clone() };
        core.batch.publish(*shard as usize, shards, publish);
    }
    let publish = Publish { targets: targets.clone(), message, ..publish };
    core.batch.publish(*last as usize, shards, publish);
}

/// Exchange and routing key of a message from the wire.
pub(crate) fn names(message: &Message) -> (&str, &str) {
    split_names(message.names()).unwrap_or_default()
}
