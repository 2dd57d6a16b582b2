//! Channels.

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
    let name = call.param("channel").to_owned();
    let all = call.node().connections().into_iter().map(|connection| {
        let facts = connection.facts();
        (connection, facts)
    });
    // Names of channels begin with their connection's.
    let of_name: Vec<Seen> =
        all.filter(|(connection, _)| name.starts_with(&connection.name())).collect();
    let found = rows(&call, &of_name).into_iter().find(|row| row["name"] == *name);
    let mut row = found.ok_or_else(Fault::not_found)?;
    call.login.must_be(row["user"].as_str().unwrap_or_default(), false)?;
    (row["publishes"], row["deliveries"]) = by_partner(&call, &of_name, &name);
    row["consumer_details"] = consumers(&call, &name).await?;
    Ok(listing::one(&call, row))
}

/// What a channel published by exchange, and was given by queue.
fn by_partner(call: &Call, of_name: &[Seen], name: &str) -> (Value, Value) {
    let topology = call.node().topology();
    let vhost = |id| topology.vhost_by_id(id).map_or("", |vhost| &vhost.name);
    let found = of_name.iter().find_map(|(connection, facts)| {
        let is_it = |channel: &&ChannelFacts| channel_name(&connection.name(), channel) == name;
        let channel = facts.channels.iter().find(is_it)?;
        Some((call.stats.connections.get(&connection.id())?, channel.number))
    });
    let (mut publishes, mut deliveries) = (Vec::new(), Vec::new());
    let pairs = found
        .into_iter()
        .flat_map(|(entry, number)| entry.pairs.iter().filter(move |pair| pair.channel == number));
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
async fn consumers(call: &Call, name: &str) -> Result<Value, Fault> {
    let facts = facts::queues(call.node()).await?;
    let topology = call.node().topology();
    let mut rows = Vec::new();
    for (id, facts) in &facts {
        for consumer in &facts.consumers {
            let Some(queue) = topology.queue_by_id(*id) else { continue };
            let vhost = topology.vhost_by_id(queue.vhost).map_or("", |vhost| &vhost.name);
            let row = consumers::row(call, vhost, &queue.name, consumer);
            if row["channel_details"]["name"] == name {
                rows.push(row);
            }
        }
    }
    Ok(Value::Array(rows))
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
