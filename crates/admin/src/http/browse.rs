//! Messages of a queue as they are: looked at, purged one by one. Nothing is taken and nothing is marked.
//!
//! Shards give pages by position, which is a message's offset: see [`crate::ops::messages`].

use leveret_amqp::content::RawProperties;
use leveret_broker::message::{Looked, Reply, ToShard};
use leveret_broker::record::View;
use leveret_queue::{LookAt, Offset};
use leveret_server::clock::{now, wall};
use leveret_topology::{Permission, QueueId};
use serde_json::{Value, json};

use super::answer::{Answer, Fault};
use super::call::Call;
use super::messages::{Payload, show_payload, show_properties};
use super::queue_control;
use crate::ops::ask;
use crate::ops::messages::{Filter, PAGE, page};

/// Messages of one answer, if nothing else is asked for, and at most.
const LIMIT: usize = 50;
const LIMIT_MAX: usize = 1000;

/// Messages that one request looks at, in search of some that a filter wants.
const LOOKED_MAX: usize = 100_000;

/// Bytes of a payload that are shown, if nothing else is asked for: what RabbitMQ's page shows.
const TRUNCATE: usize = 50_000;

/// What `header.NAME=VALUE`, `routing_key=` and `exchange=` of the query ask for.
fn filter(call: &Call) -> Filter {
    let headers = call.queries().filter_map(|(name, value)| {
        Some((name.strip_prefix("header.")?.to_owned(), value.to_owned()))
    });
    Filter {
        headers: headers.collect(),
        routing_key: call.query("routing_key").map(str::to_owned),
        exchange: call.query("exchange").map(str::to_owned),
    }
}

/// `GET /api/queues/{vhost}/{queue}/messages`.
pub(super) async fn list(call: Call) -> Result<Answer, Fault> {
    let (_, queue) = queue_control::queue(&call, Permission::Read).await?;
    let place = match call.query("state") {
        None | Some("ready") => LookAt::Ready,
        Some("unacked") => LookAt::Unacked,
        Some(other) => {
            let text = format!("unknown state '{other}'; there are ready and unacked");
            return Err(Fault::bad(text));
        }
    };
    let from = call.number("from")?.unwrap_or(0);
    let limit = call.number("limit")?.unwrap_or(LIMIT as u64);
    let limit = usize::try_from(limit).ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
    let limit =
        limit.ok_or_else(|| Fault::bad(format!("'limit' must be from 1 to {LIMIT_MAX}")))?;
    let truncate = call.number("truncate")?.map_or(TRUNCATE, |it| it as usize);
    let payload = Payload::of(call.query("encoding").unwrap_or("auto"), truncate)?;
    let filter = filter(&call);
    let mut rows: Vec<Value> = Vec::new();
    let mut next = Some(Offset::new(from));
    let mut looked_at = 0;
    while let Some(from) = next
        && rows.len() < limit
        && looked_at < LOOKED_MAX
    {
        let room = limit - rows.len();
        let max = if filter.wants_all() { room } else { PAGE };
        let page = page(call.node(), queue, place, from, max).await?;
        let page = page.ok_or_else(Fault::not_found)?;
        next = page.next;
        for looked in &page.messages {
            if rows.len() == limit {
                next = Some(looked.look.offset);
                break;
            }
            looked_at += 1;
            if filter.wants(looked) {
                rows.push(row(&call, looked, place, payload));
            }
        }
    }
    Ok(Answer::Json(json!({
        "messages": rows,
        "next": next.map(Offset::get),
        "looked_at": looked_at,
    })))
}

/// `DELETE /api/queues/{vhost}/{queue}/messages/{position}`.
pub(super) async fn delete(call: Call) -> Result<Answer, Fault> {
    let (_, queue) = queue_control::queue(&call, Permission::Read).await?;
    let offset = position(&call)?;
    let discard = |reply| ToShard::Discard { reply, queue, offsets: vec![offset] };
    match ask::shard(call.node(), queue, discard).await? {
        Reply::Purged(0) => Err(not_ready(&call, queue, offset).await?),
        Reply::Purged(_) => Ok(Answer::Done),
        _ => Err(Fault::not_found()),
    }
}

/// The position that the path names.
pub(super) fn position(call: &Call) -> Result<Offset, Fault> {
    let text = call.param("position");
    let number = text.parse().map_err(|_| Fault::bad(format!("'{text}' is not a position")))?;
    Ok(Offset::new(number))
}

/// Why nothing could be done with a message: it is with a consumer, or is not there.
pub(super) async fn not_ready(call: &Call, queue: QueueId, offset: Offset) -> Result<Fault, Fault> {
    let page = page(call.node(), queue, LookAt::Unacked, offset, 1).await?;
    let page = page.ok_or_else(Fault::not_found)?;
    let found = page.messages.first().filter(|looked| looked.look.offset == offset);
    Ok(match found {
        None => Fault::missing(format!("there is no message {}", offset.get())),
        Some(looked) => {
            let with = looked.holder.as_ref().map_or_else(
                || "is out for an ack".to_owned(),
                |it| format!("is with consumer '{}' of channel {}", it.tag, it.channel),
            );
            let text = format!(
                "message {} {with}; when its channel is closed it is ready again",
                offset.get()
            );
            Fault::bad(text)
        }
    })
}

fn row(call: &Call, looked: &Looked, place: LookAt, payload: Payload) -> Value {
    let look = &looked.look;
    let mut row = json!({
        "position": look.offset.get(),
        "state": match place { LookAt::Ready => "ready", LookAt::Unacked => "unacked" },
        "redelivered": look.redelivered,
        "delivery_count": look.delivery_count,
        "payload_bytes": look.size,
        "expires_at": look.expires_at.map(leveret_queue::Time::ms),
        "holder": holder(call, looked),
    });
    let view = looked.record.as_ref().and_then(View::of);
    row["is_readable"] = json!(view.is_some());
    let Some(view) = view else { return row };
    let (exchange, key) = view.exchange_and_key().unwrap_or_default();
    let (shown, encoding) = show_payload(view.body_bytes(), payload);
    let published_ms = view.head.published_ms;
    row["exchange"] = json!(exchange);
    row["routing_key"] = json!(key);
    row["properties"] = show_properties(RawProperties::new(view.properties));
    row["payload"] = json!(shown);
    row["payload_encoding"] = json!(encoding);
    row["published_at"] = json!(published_ms);
    row["age_ms"] = json!(wall(now()).ms().saturating_sub(published_ms));
    row
}

/// Who has an unacked message.
fn holder(call: &Call, looked: &Looked) -> Value {
    let Some(holder) = &looked.holder else { return Value::Null };
    let connection = call.connection(holder.connection);
    json!({
        "consumer_tag": holder.tag,
        "channel": holder.channel,
        "connection_name": connection.as_ref().map(|it| it.name()),
        "user": connection.map(|it| it.user()),
    })
}
