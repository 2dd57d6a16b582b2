//! The firehose: in a vhost that is traced, a copy of each message that is published and of each that is
//! delivered goes to `amq.rabbitmq.trace`, under RabbitMQ's keys and with its headers.
//!
//! Copies go with what the connection itself sends: whoever is copied pays for it, as [`flow`](leveret_broker::flow) has it.
//!
//! Cold: a vhost that is not traced is told apart by a flag of the route on publishing, and by one look a
//! batch on delivering.

use bytes::Bytes;
use leveret_amqp::content::{Properties, RawProperties};
use leveret_amqp::table::{RawValue, Table, Value};
use leveret_broker::events::publish_to;
use leveret_broker::message::{
    ConnectionId, Delivery, Message, STEP_QUEUES_MAX, Settle, Step, What,
};
use leveret_broker::record::{View, split_names};

use crate::cache::Routed;
use crate::core::{Context, Core};

/// Where copies go. What comes from there is not copied.
const TRACE_EXCHANGE: &str = "amq.rabbitmq.trace";

/// Whether messages of the connection's vhost are copied.
#[inline]
pub(crate) fn is_on(core: &Core, cx: &Context<'_>) -> bool {
    cx.topology.traces_any() && is_traced(core, cx)
}

/// The connection, if messages of its vhost are copied.
#[inline]
pub(crate) fn traced(core: &Core, cx: &Context<'_>) -> Option<ConnectionId> {
    is_on(core, cx).then_some(core.id)
}

#[cold]
fn is_traced(core: &Core, cx: &Context<'_>) -> bool {
    cx.topology.vhost_by_id(core.identity.vhost).is_some_and(|vhost| vhost.is_traced)
}

/// Copies a message that was published and routed.
#[cold]
pub(crate) fn published(
    core: &mut Core,
    channel: u16,
    routed: &Routed,
    message: &Message,
    cx: &mut Context<'_>,
) {
    let (exchange, _) = split_names(message.names()).unwrap_or_default();
    let queues = routed.targets.iter().flat_map(|(_, targets)| targets);
    let queues = queues.filter_map(|&id| cx.topology.queue_by_id(id));
    let queues = Value::Array(queues.map(|queue| (&*queue.name).into()).collect());
    let body = message.body_pieces();
    let copy = Copied { names: message.names(), properties: message.properties(), body };
    let key = format!("publish.{exchange}");
    tap(core, channel, &key, copy, ("routed_queues", queues), cx);
}

/// Copies a message that is being delivered.
#[cold]
pub(crate) fn delivered(
    core: &mut Core,
    (channel, tag): (u16, u64),
    delivery: &Delivery,
    view: &View<'_>,
    cx: &mut Context<'_>,
) {
    let (offset, redelivered) = (delivery.offset, delivery.redelivered);
    note(core, channel, What::Delivered { tag, queue: delivery.queue, offset, redelivered }, cx);
    let Some(queue) = cx.topology.queue_by_id(delivery.queue) else { return };
    let key = format!("deliver.{}", queue.name);
    let copy = Copied { names: view.names, properties: view.properties, body: vec![view.body()] };
    let redelivered = Value::I32(i32::from(delivery.redelivered));
    tap(core, channel, &key, copy, ("redelivered", redelivered), cx);
}

/// Notes where a message has come.
pub(crate) fn note(core: &Core, channel: u16, what: What, cx: &mut Context<'_>) {
    cx.outbox.steps.push(Step { connection: core.id, channel, what });
}

/// Notes a message that has a number to be confirmed by, before it goes to its shards.
#[cold]
pub(crate) fn note_published(
    core: &Core,
    channel: u16,
    number: u64,
    routed: &Routed,
    message: &Message,
    cx: &mut Context<'_>,
) {
    let (exchange, key) = split_names(message.names()).unwrap_or_default();
    if exchange == TRACE_EXCHANGE {
        return;
    }
    let queues = routed.targets.iter().flat_map(|(_, targets)| targets);
    let queues = queues.copied().take(STEP_QUEUES_MAX).collect();
    let (vhost, exchange, key) = (core.identity.vhost, exchange.into(), key.into());
    note(core, channel, What::Published { vhost, number, exchange, key, queues }, cx);
}

/// Notes what a consumer did with its deliveries.
#[cold]
pub(crate) fn note_settled(
    core: &Core,
    channel: u16,
    (tag, multiple, how): (u64, bool, Settle),
    cx: &mut Context<'_>,
) {
    let how = match how {
        Settle::Ack => "acked",
        Settle::Reject => "rejected",
        Settle::Requeue { .. } => "requeued",
    };
    note(core, channel, What::Settled { tag, multiple, how: how.into() }, cx);
}

/// What is copied. The log makes the only copy of the body.
struct Copied<'a> {
    names: &'a [u8],
    properties: &'a [u8],
    body: Vec<Bytes>,
}

fn tap(
    core: &mut Core,
    channel: u16,
    key: &str,
    of: Copied<'_>,
    (name, value): (&str, Value),
    cx: &mut Context<'_>,
) {
    let (exchange, first_key) = split_names(of.names).unwrap_or_default();
    if exchange == TRACE_EXCHANGE {
        return;
    }
    let identity = &core.identity;
    let Some(trace) = cx.topology.exchange(identity.vhost, TRACE_EXCHANGE) else { return };
    let properties = RawProperties::new(of.properties).to_owned().unwrap_or_default();
    let mut headers = Table::new();
    headers.push("exchange_name", exchange);
    headers.push("routing_keys", Value::Array(routing_keys(first_key, of.properties)));
    headers.push("properties", as_table(properties));
    headers.push("node", cx.topology.event_node());
    headers.push("vhost", &*identity.vhost_name);
    headers.push("connection", &*core.name());
    headers.push("channel", i32::from(channel));
    headers.push("user", &*identity.user);
    headers.push(name, value);
    let properties = Properties { headers: Some(headers), ..Properties::default() };
    let seed = cx.now.ms();
    publish_to(trace, key, (&properties, of.body), seed, cx.topology, |home, copy| {
        core.turn_spent += copy.targets.len();
        core.batch.publish(home, copy);
    });
}

/// The routing key, and those of the header `CC`.
fn routing_keys(first: &str, properties: &[u8]) -> Vec<Value> {
    let mut keys = vec![first.into()];
    let headers = RawProperties::new(properties).peek().ok().and_then(|peek| peek.headers);
    if let Some(Ok(Some(RawValue::Array(more)))) = headers.map(|headers| headers.get("CC")) {
        keys.extend(more.iter().filter_map(|key| match key {
            Ok(RawValue::LongStr(text)) => Some(Value::LongStr(text.to_vec())),
            _ => None,
        }));
    }
    keys
}

/// Properties that are set, under RabbitMQ's names and with its kinds.
fn as_table(of: Properties) -> Table {
    let mut table = Table::new();
    let mut text = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            table.push(name, &*value);
        }
    };
    text("content_type", of.content_type);
    text("content_encoding", of.content_encoding);
    text("correlation_id", of.correlation_id);
    text("reply_to", of.reply_to);
    text("expiration", of.expiration);
    text("message_id", of.message_id);
    text("type", of.kind);
    text("user_id", of.user_id);
    text("app_id", of.app_id);
    text("cluster_id", of.cluster_id);
    if let Some(headers) = of.headers {
        table.push("headers", headers);
    }
    for (name, value) in [("delivery_mode", of.delivery_mode), ("priority", of.priority)] {
        if let Some(value) = value {
            table.push(name, i32::from(value));
        }
    }
    if let Some(seconds) = of.timestamp {
        // A signed integer of 32 bits at RabbitMQ, which a moment does not fit into for ever.
        table.push(
            "timestamp",
            i32::try_from(seconds).map_or(Value::I64(seconds as i64), Value::I32),
        );
    }
    table
}
