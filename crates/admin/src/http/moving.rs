//! Messages are moved: to another queue, to an exchange, to the end or the front of their own queue.

use leveret_broker::message::{ConnectionId, MoveTo, Moved};
use leveret_queue::Offset;
use leveret_topology::{Permission, ResourceKind};
use serde_json::{Map, Value, json};

use super::answer::{Answer, Fault};
use super::browse;
use super::call::{Call, Fields as _};
use super::queue_control;
use crate::ops::messages::{Filter, Wanted, header_text, move_messages};

/// Positions that one request may name.
const POSITIONS_MAX: usize = 1000;

/// `POST /api/queues/{vhost}/{queue}/move`.
pub(super) async fn post(call: Call) -> Result<Answer, Fault> {
    let (vhost, queue) = queue_control::queue(&call, Permission::Read).await?;
    let body = call.object()?;
    let wanted = wanted(&body)?;
    let to = target(&call, &vhost, &body).await?;
    let (asking, target) = (&call, &to);
    let may_write = |key: String| async move { may_write(asking, target, &key).await };
    let moved = move_messages(call.node(), queue, wanted, to.clone(), may_write).await?;
    Ok(answer(&moved.ok_or_else(Fault::not_found)?))
}

/// `POST /api/queues/{vhost}/{queue}/messages/{position}/requeue`.
pub(super) async fn requeue(call: Call) -> Result<Answer, Fault> {
    let (_, queue) = queue_control::queue(&call, Permission::Read).await?;
    let to = match call.query("to") {
        None | Some("end") => MoveTo::Queue(queue),
        Some("front") => MoveTo::Front,
        Some(other) => {
            return Err(Fault::bad(format!("unknown place '{other}'; there are end and front")));
        }
    };
    let offset = browse::position(&call)?;
    let wanted = Wanted::These(vec![offset]);
    let moved = move_messages(call.node(), queue, wanted, to, |_| std::future::ready(true)).await?;
    match moved.ok_or_else(Fault::not_found)? {
        Moved { moved: 1, .. } => Ok(Answer::Done),
        Moved { refused: 0, .. } => Err(browse::not_ready(&call, queue, offset).await?),
        _ => Err(Fault::unavailable("the queue is full, or its disk: the message stays")),
    }
}

fn answer(moved: &Moved) -> Answer {
    let Moved { moved, refused, unrouted, .. } = moved;
    Answer::Json(json!({"moved": moved, "refused": refused, "unrouted": unrouted}))
}

/// Which messages the body asks for.
fn wanted(body: &Map<String, Value>) -> Result<Wanted, Fault> {
    let filter = body.object("filter")?;
    if let Some(positions) = body.get("positions").filter(|it| !it.is_null()) {
        if body.contains_key("count") || !filter.is_empty() {
            return Err(Fault::bad("'positions' stand alone, without 'count' and 'filter'"));
        }
        let bad = || {
            Fault::bad(format!("'positions' must be a list of at most {POSITIONS_MAX} positions"))
        };
        let list = positions.as_array().filter(|it| it.len() <= POSITIONS_MAX).ok_or_else(bad)?;
        let positions = list.iter().map(|it| it.as_u64().map(Offset::new).ok_or_else(bad));
        return Ok(Wanted::These(positions.collect::<Result<_, _>>()?));
    }
    let count = match body.get("count") {
        None | Some(Value::Null) => u64::MAX,
        Some(count) => count
            .as_u64()
            .ok_or_else(|| Fault::bad(format!("'count' must be a whole number, got {count}")))?,
    };
    if let Some(other) = filter.keys().find(|key| !FILTERS.contains(&key.as_str())) {
        let known = FILTERS.join(", ");
        return Err(Fault::bad(format!("unknown filter '{other}'; there are {known}")));
    }
    let headers = filter.object("headers")?;
    let headers = headers.iter().map(|(name, value)| (name.clone(), header_text(value)));
    let filter = Filter {
        headers: headers.collect(),
        routing_key: filter.optional_text("routing_key")?,
        exchange: filter.optional_text("exchange")?,
    };
    Ok(Wanted::First(count, filter))
}

const FILTERS: [&str; 3] = ["headers", "routing_key", "exchange"];

/// Where the body wants them to go: the user may write there.
async fn target(call: &Call, vhost: &str, body: &Map<String, Value>) -> Result<MoveTo, Fault> {
    let key = body.optional_text("routing_key")?;
    let targets = (body.optional_text("to_queue")?, body.optional_text("to_exchange")?);
    let (kind, name) = match &targets {
        (Some(name), None) if key.is_none() => (ResourceKind::Queue, name.as_str()),
        (None, Some(name)) if name == "amq.default" => (ResourceKind::Exchange, ""),
        (None, Some(name)) => (ResourceKind::Exchange, name.as_str()),
        _ => {
            return Err(Fault::bad(
                "name one target: 'to_queue', or 'to_exchange' with or without 'routing_key'",
            ));
        }
    };
    let to = existing(call, vhost, kind, name, key)?;
    call.login.must_have(call.node(), vhost, Permission::Write, kind, name).await?;
    Ok(to)
}

/// The target of this name.
fn existing(
    call: &Call,
    vhost: &str,
    kind: ResourceKind,
    name: &str,
    key: Option<String>,
) -> Result<MoveTo, Fault> {
    let topology = call.node().topology();
    let vhost = topology.vhost(vhost).ok_or_else(Fault::not_found)?.id;
    if kind == ResourceKind::Queue {
        let queue = topology.existing_queue(vhost, name, ConnectionId::NOBODY);
        return queue
            .map(|queue| MoveTo::Queue(queue.id))
            .map_err(|error| Fault::bad(error.to_string()));
    }
    let exchange = topology
        .exchange(vhost, name)
        .ok_or_else(|| Fault::bad(format!("there is no exchange '{name}'")))?;
    if exchange.internal {
        return Err(Fault::bad(format!("exchange '{name}' is internal")));
    }
    Ok(MoveTo::Exchange { exchange: exchange.id, key: key.map(Into::into) })
}

/// Whether the user's topic permissions let a message with its own key, or the given one, go there.
async fn may_write(call: &Call, to: &MoveTo, own: &str) -> bool {
    let MoveTo::Exchange { exchange, key } = to else { return true };
    let key = key.as_deref().unwrap_or(own);
    call.login.may_use_key(call.node(), *exchange, Permission::Write, key).await
}
