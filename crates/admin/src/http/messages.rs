//! Messages over HTTP: publish to an exchange, get from a queue.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use leveret_amqp::content::{Properties, RawProperties};
use leveret_amqp::method::{Method, basic, confirm};
use leveret_amqp::table::SHORT_STR_MAX;
use leveret_client::Event;
use leveret_topology::table_to_json;
use serde_json::{Map, Value, json};

use super::answer::{Answer, Fault};
use super::call::{Call, Fields as _, short, table};
use super::exchanges::direct;
use crate::ops::direct::{Direct, is};
use crate::room::Held;

/// How long a confirm may take before the client is told that nobody knows.
const CONFIRM_PATIENCE: Duration = Duration::from_secs(15);

/// Bytes of an answer after which no further message is taken.
const GET_BYTES_MAX: usize = 16 << 20;

/// Most messages taken by one request.
const GET_MAX: u64 = 10_000;

/// `POST /api/exchanges/{vhost}/{exchange}/publish`.
pub(super) async fn publish(call: Call) -> Result<Answer, Fault> {
    let vhost = call.vhost()?;
    let name = call.exchange_param("exchange");
    {
        let topology = call.node().topology();
        let id = topology.vhost(&vhost).ok_or_else(Fault::not_found)?.id;
        topology.exchange(id, name).ok_or_else(|| Fault::missing("exchange_not_found"))?;
    }
    let body = call.object()?;
    body.must_have(&["routing_key", "properties", "payload", "payload_encoding"])?;
    let Some(Value::String(payload)) = body.get("payload") else {
        return Err(Fault::bad("payload_not_string"));
    };
    let payload = match &*body.text("payload_encoding")? {
        "string" => payload.clone().into_bytes(),
        "base64" => STANDARD
            .decode(payload)
            .map_err(|error| Fault::bad(format!("the payload is not base64: {error}")))?,
        other => {
            return Err(Fault::bad(format!(
                "unsupported payload_encoding '{other}'; there are string and base64"
            )));
        }
    };
    let properties = read_properties(&body.object("properties")?)?.to_bytes();
    if let Some(alarm) = call.node().alarms.alarm().reason() {
        return Err(Fault::unavailable(format!("publishers are blocked: {alarm}")));
    }
    let key = body.text("routing_key")?;
    short("routing_key", &key)?;
    let mut direct = direct(&call, &vhost).await?;
    let select = confirm::Select { no_wait: false };
    direct.call(&select, |it| is(it, |it| matches!(it, Method::ConfirmSelectOk(_)))).await?;
    let publish =
        basic::Publish { exchange: name, routing_key: &key, mandatory: true, ..Default::default() };
    direct.publish(&publish, &properties, &payload);
    let mut routed = true;
    let confirmed = direct.wait_for(|event| match event {
        Event::Content { method: Method::BasicReturn(_), .. } => {
            routed = false;
            None
        }
        Event::Method { method: Method::BasicAck(_), .. } => Some(true),
        Event::Method { method: Method::BasicNack(_), .. } => Some(false),
        _ => None,
    });
    match tokio::time::timeout(CONFIRM_PATIENCE, confirmed).await {
        Ok(Ok(true)) => Ok(Answer::Json(json!({"routed": routed}))),
        Ok(Ok(false)) => Err(Fault::bad("rejected Unable to publish message. Check queue limits.")),
        Ok(Err(closed)) => Err(closed.into()),
        Err(_) => Err(Fault::unavailable(format!(
            "the message was not confirmed within {} s; it may be in its queues",
            CONFIRM_PATIENCE.as_secs()
        ))),
    }
}

/// Properties as a request has them.
fn read_properties(body: &Map<String, Value>) -> Result<Properties, Fault> {
    let number = |key: &str, max: u64| match body.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let read = value.as_u64().or_else(|| value.as_str().and_then(|it| it.parse().ok()));
            let bad = || Fault::bad(format!("'{key}' must be a number up to {max}, got {value}"));
            read.filter(|number| *number <= max).map(Some).ok_or_else(bad)
        }
    };
    let text = |key: &str| {
        // Some tools write an expiration as a number.
        let text = match body.get(key) {
            Some(Value::Number(number)) => Some(number.to_string()),
            _ => body.optional_text(key)?,
        };
        match text {
            Some(text) if text.len() > SHORT_STR_MAX => {
                Err(Fault::bad(format!("'{key}' is longer than 255 bytes")))
            }
            text => Ok(text),
        }
    };
    let headers = match body.get("headers") {
        None | Some(Value::Null) => None,
        Some(_) => Some(table("headers", &body.object("headers")?)?),
    };
    let byte = |key: &str| Ok::<_, Fault>(number(key, 255)?.and_then(|it| u8::try_from(it).ok()));
    Ok(Properties {
        content_type: text("content_type")?,
        content_encoding: text("content_encoding")?,
        headers,
        delivery_mode: byte("delivery_mode")?,
        priority: byte("priority")?,
        correlation_id: text("correlation_id")?,
        reply_to: text("reply_to")?,
        expiration: text("expiration")?,
        message_id: text("message_id")?,
        timestamp: number("timestamp", u64::MAX)?,
        kind: text("type")?,
        user_id: text("user_id")?,
        app_id: text("app_id")?,
        cluster_id: text("cluster_id")?,
    })
}

/// Properties as an answer has them: only those that are there.
pub(super) fn show_properties(raw: RawProperties<'_>) -> Value {
    let Ok(properties) = raw.to_owned() else { return json!({}) };
    let headers = properties.headers.as_ref().map(table_to_json);
    let all = json!({
        "content_type": properties.content_type,
        "content_encoding": properties.content_encoding,
        "headers": headers,
        "delivery_mode": properties.delivery_mode,
        "priority": properties.priority,
        "correlation_id": properties.correlation_id,
        "reply_to": properties.reply_to,
        "expiration": properties.expiration,
        "message_id": properties.message_id,
        "timestamp": properties.timestamp,
        "type": properties.kind,
        "user_id": properties.user_id,
        "app_id": properties.app_id,
        "cluster_id": properties.cluster_id,
    });
    match all {
        Value::Object(map) => map.into_iter().filter(|(_, value)| !value.is_null()).collect(),
        other => other,
    }
}

/// What a request to get messages says.
#[derive(Debug)]
struct Wanted {
    count: u64,
    no_ack: bool,
    /// Put back, when not taken for good.
    requeue: bool,
    payload: Payload,
}

impl Wanted {
    fn of(body: &Map<String, Value>) -> Result<Self, Fault> {
        body.must_have(&["ackmode", "count", "encoding"])?;
        let number = |key: &str| {
            let value = body.get(key).unwrap_or(&Value::Null);
            let read = value.as_u64().or_else(|| value.as_str().and_then(|it| it.parse().ok()));
            read.ok_or_else(|| Fault::bad(format!("'{key}' must be a whole number, got {value}")))
        };
        let (no_ack, requeue) = match &*body.text("ackmode")? {
            "ack_requeue_true" | "reject_requeue_true" => (false, true),
            "ack_requeue_false" => (true, false),
            "reject_requeue_false" => (false, false),
            other => {
                return Err(Fault::bad(format!(
                    "unknown ackmode '{other}'; there are ack_requeue_true, ack_requeue_false, \
                     reject_requeue_true and reject_requeue_false"
                )));
            }
        };
        let truncate = match body.get("truncate") {
            None | Some(Value::Null) => usize::MAX,
            Some(_) => usize::try_from(number("truncate")?).unwrap_or(usize::MAX),
        };
        let payload = Payload::of(&body.text("encoding")?, truncate)?;
        let count = number("count")?;
        if count > GET_MAX {
            return Err(Fault::bad(format!("'count' must be at most {GET_MAX}, got {count}")));
        }
        Ok(Self { count, no_ack, requeue, payload })
    }
}

/// `POST /api/queues/{vhost}/{queue}/get`.
pub(super) async fn get(call: Call) -> Result<Answer, Fault> {
    let vhost = call.vhost()?;
    let found = super::queues::find(&call, &vhost, |_| ());
    found.ok_or_else(|| Fault::missing("queue_not_found"))?;
    let wanted = Wanted::of(&call.object()?)?;
    let _one = call.app.requests.get().await;
    let mut direct = direct(&call, &vhost).await?;
    let mut rows = vec![b'['];
    let mut tags = Vec::new();
    let mut held = Held::nothing(call.node(), &call.login.name);
    // Held until all are there: one that is put back would come again at once.
    for _ in 0..wanted.count {
        let Some((tag, row)) = take(&mut direct, call.param("queue"), &wanted).await? else {
            break;
        };
        if !tags.is_empty() {
            rows.push(b',');
        }
        let before = rows.len();
        serde_json::to_writer(&mut rows, &row).map_err(|error| Fault::bad(error.to_string()))?;
        tags.push(tag);
        // What was taken is told, and nothing more is taken than there is room for.
        let has_room = held.take_now((rows.len() - before) as u64);
        if !has_room || rows.len() > GET_BYTES_MAX {
            break;
        }
    }
    rows.push(b']');
    if !wanted.no_ack && !tags.is_empty() {
        for delivery_tag in tags {
            direct.say(&basic::Reject { delivery_tag, requeue: wanted.requeue });
        }
        // The answer to this comes when the rejects are done.
        let select = confirm::Select { no_wait: false };
        direct.call(&select, |it| is(it, |it| matches!(it, Method::ConfirmSelectOk(_)))).await?;
    }
    Ok(Answer::Held(rows, Arc::new(held)))
}

/// One message and its tag.
async fn take(
    direct: &mut Direct,
    queue: &str,
    wanted: &Wanted,
) -> Result<Option<(u64, Value)>, Fault> {
    let get = basic::Get { queue, no_ack: wanted.no_ack, ..Default::default() };
    let taken = direct
        .call(&get, |event| match event {
            Event::Method { method: Method::BasicGetEmpty(_), .. } => Some(None),
            Event::Content { method: Method::BasicGetOk(ok), properties, body, .. } => {
                let (payload, encoding) = show_payload(body, wanted.payload);
                let mut shown = show_properties(*properties);
                if shown.as_object().is_some_and(Map::is_empty) {
                    // As RabbitMQ writes a list of Erlang without entries.
                    shown = json!([]);
                }
                let row = json!({
                    "payload_bytes": body.len(),
                    "redelivered": ok.redelivered,
                    "exchange": ok.exchange,
                    "routing_key": ok.routing_key,
                    "message_count": ok.message_count,
                    "properties": shown,
                    "payload": payload,
                    "payload_encoding": encoding,
                });
                Some(Some((ok.delivery_tag, row)))
            }
            _ => None,
        })
        .await?;
    Ok(taken)
}

/// How payloads are shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Payload {
    pub(super) always_base64: bool,
    /// Bytes after which it is cut.
    pub(super) truncate: usize,
}

impl Payload {
    /// By the name of an encoding.
    pub(super) fn of(encoding: &str, truncate: usize) -> Result<Self, Fault> {
        let always_base64 = match encoding {
            "auto" => false,
            "base64" => true,
            _ => return Err(Fault::bad("Unsupported encoding. Please use auto or base64.")),
        };
        Ok(Self { always_base64, truncate })
    }
}

/// The payload as text, and how it is encoded.
pub(super) fn show_payload(body: &[u8], how: Payload) -> (String, &'static str) {
    let part = &body[..body.len().min(how.truncate)];
    match std::str::from_utf8(part) {
        Ok(text) if !how.always_base64 => (text.to_owned(), "string"),
        _ => (STANDARD.encode(part), "base64"),
    }
}
