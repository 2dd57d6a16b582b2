//! Channels.

use std::sync::Arc;

use leveret_broker::message::ConnectionId;
use leveret_session::ChannelFacts;
use serde_json::{Value, json};

use super::answer::{Answer, Fault};
use super::call::Call;
use super::connections::{self, Seen};
use super::{consumers, listing, stats};
use crate::ops::facts;
use crate::stats::pairs::With;

/// `GET /api/channels`.
pub(super) async fn list(call: Call) -> Result<Answer, Fault> {
    let rows = rows(&call, &connections::seen(&call));
    listing::rows(&call, rows)
}

/// `GET /api/vhosts/{vhost}/channels`.
pub(super) async fn list_of_vhost(call: Call) -> Result<Answer, Fault> {
    let vhost = call.visible_vhost()?;
    let mut seen = connections::seen(&call);
    seen.retain(|(_, facts)| facts.vhost == vhost);
    let rows = rows(&call, &seen);
    listing::rows(&call, rows)
}

/// `GET /api/channels/{channel}`.
pub(super) async fn get(call: Call) -> Result<Answer, Fault> {
    let name = call.param("channel");
    // Names of channels begin with their connection's.
    let all = call.node().connections().into_iter();
    let of_name = all.filter(|connection| name.starts_with(&connection.name()));
    let mut of_name = of_name.map(|connection| {
        let facts = connection.facts();
        (connection, facts)
    });
    let found = of_name.find_map(|seen| {
        let connection = seen.0.name();
        let is_it = |channel: &ChannelFacts| channel_name(&connection, channel) == name;
        let at = seen.1.channels.iter().position(is_it)?;
        Some((seen, at))
    });
    let (seen, at) = found.ok_or_else(Fault::not_found)?;
    call.login.must_be(&seen.1.user, false)?;
    let channel = &seen.1.channels[at];
    let mut row = row(&call, &seen, channel);
    let channel = (seen.0.id(), channel.number);
    (row["publishes"], row["deliveries"]) = by_partner(&call, channel);
    row["consumer_details"] = consumers(&call, channel).await?;
    Ok(listing::one(&call, row))
}

/// What a channel published by exchange, and was given by queue.
fn by_partner(call: &Call, (connection, number): (ConnectionId, u16)) -> (Value, Value) {
    let topology = call.node().topology();
    let vhost = |id| topology.vhost_by_id(id).map_or("", |vhost| &vhost.name);
    let (mut publishes, mut deliveries) = (Vec::new(), Vec::new());
    let found = call.stats.connections.get(&connection).into_iter();
    let pairs = found.flat_map(|entry| entry.pairs.iter().filter(|pair| pair.channel == number));
    for pair in pairs {
        let stats = stats::of_pair(pair);
        match pair.with {
            With::Exchange(id) => {
                let Some(exchange) = topology.exchange_by_id(id) else { continue };
                let names = json!({"name": &*exchange.name, "vhost": vhost(exchange.vhost)});
                publishes.push(json!({"exchange": names, "stats": stats}));
            }
            With::Queue(id) => {
                let Some(queue) = topology.queue_by_id(id) else { continue };
                let names = json!({"name": &*queue.name, "vhost": vhost(queue.vhost)});
                deliveries.push(json!({"queue": names, "stats": stats}));
            }
        }
    }
    (publishes.into(), deliveries.into())
}

/// The consumers of a channel.
async fn consumers(call: &Call, channel: (ConnectionId, u16)) -> Result<Value, Fault> {
    let facts = facts::queues(call.node()).await?;
    let mut found = Vec::new();
    {
        let topology = call.node().topology();
        let own = facts.iter().flat_map(|(id, it)| it.consumers.iter().map(move |one| (id, one)));
        for (id, consumer) in own.filter(|(_, one)| (one.connection, one.channel) == channel) {
            let Some(queue) = topology.queue_by_id(*id) else { continue };
            let vhost = topology.vhost_by_id(queue.vhost).map(|vhost| Arc::clone(&vhost.name));
            found.push((vhost.unwrap_or_default(), Arc::clone(&queue.name), consumer));
        }
    }
    let rows =
        found.into_iter().map(|(vhost, queue, one)| consumers::row(call, &vhost, &queue, one));
    Ok(rows.collect())
}

fn channel_name(connection: &str, channel: &ChannelFacts) -> String {
    format!("{connection} ({})", channel.number)
}

pub(super) fn rows(call: &Call, seen: &[Seen]) -> Vec<Value> {
    let all = seen.iter().flat_map(|seen| seen.1.channels.iter().map(move |one| (seen, one)));
    all.map(|(seen, channel)| row(call, seen, channel)).collect()
}

fn row(call: &Call, (connection, facts): &Seen, channel: &ChannelFacts) -> Value {
    let mut row = json!({
        "name": channel_name(&connection.name(), channel),
        "number": channel.number,
        "pid": connection.id().channel_pid(channel.number),
        "connection_pid": connection.id().pid(),
        "node": call.node_name(),
        "user": facts.user,
        "user_who_performed_action": facts.user,
        "vhost": facts.vhost,
        "state": if channel.is_closing { "closing" } else { "running" },
        "connection_details": connections::details(connection),
        "confirm": channel.confirms,
        "transactional": channel.transactional,
        "consumer_count": channel.consumers,
        "messages_unacknowledged": channel.unacked,
        "messages_unconfirmed": channel.unconfirmed,
        "messages_uncommitted": channel.uncommitted,
        "acks_uncommitted": channel.acks_uncommitted,
        "pending_raft_commands": 0,
        "prefetch_count": channel.prefetch,
        "global_prefetch_count": channel.global_prefetch,
        "garbage_collection": {"minor_gcs": 0, "fullsweep_after": 0},
        "reductions": 0,
    });
    if let Some(stats) = stats::of_channel(&channel.totals) {
        row["message_stats"] = stats;
    }
    let sampled = call.stats.connections.get(&connection.id());
    let sampled = sampled.and_then(|entry| entry.channel(channel.number));
    if let (Value::Object(row), Some(entry)) = (&mut row, sampled) {
        entry.put_rates(row, &call.ranges);
    }
    row
}
