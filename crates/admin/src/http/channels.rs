//! Channels.

use std::borrow::Cow;
use std::sync::Arc;

use leveret_broker::message::{ConnectionId, Named};
use leveret_server::cluster::sessions::seen::Wanted;
use leveret_session::ChannelFacts;
use leveret_topology::Topology;
use serde_json::{Value, json};

use super::answer::{Answer, Fault};
use super::call::Call;
use super::connections::{self, Seen};
use super::consumers::{Consumer, Consumers};
use super::listing::{Listed, Why};
use super::{consumers, listing, queues, stats};
use crate::ops::facts;
use crate::ops::pages::{self, Slice};
use crate::stats::pairs::With;
use crate::stats::snapshot::ChannelEntry;

/// A connection and one of its channels, by place.
type ChannelAt = (Arc<Seen>, usize);

/// A list of channels.
struct Channels;

impl Listed for Channels {
    type Item = ChannelAt;

    fn name<'a>(&self, (seen, at): &'a ChannelAt) -> Cow<'a, str> {
        let channel = seen.1.channels.get(*at);
        channel.map_or_else(String::new, |channel| channel_name(&seen.0.name(), channel)).into()
    }

    async fn rows(&self, call: &Call, items: &[ChannelAt], _: Why) -> Result<Vec<Value>, Fault> {
        let mut rows = Vec::with_capacity(items.len());
        let mut slice = Slice::begin();
        for (seen, at) in items {
            let channel = seen.1.channels.get(*at);
            rows.push(channel.map_or(Value::Null, |channel| row(call, seen, channel)));
            slice.share().await;
        }
        Ok(rows)
    }
}

/// `GET /api/channels`.
pub(super) async fn list(mut call: Call) -> Result<Answer, Fault> {
    let (seen, silent) = connections::seen(&mut call, Wanted::default()).await?;
    listed(call, seen, silent).await
}

/// `GET /api/vhosts/{vhost}/channels`.
pub(super) async fn list_of_vhost(mut call: Call) -> Result<Answer, Fault> {
    let wanted = Wanted { vhost: Some(call.visible_vhost()?), ..Wanted::default() };
    let (seen, silent) = connections::seen(&mut call, wanted).await?;
    listed(call, seen, silent).await
}

/// A list of the channels of these connections; those of some nodes are not all there.
pub(super) async fn listed(
    call: Call,
    seen: Vec<Seen>,
    silent: Vec<String>,
) -> Result<Answer, Fault> {
    let channels = |seen: Seen| {
        let seen = Arc::new(seen);
        (0..seen.1.channels.len()).map(move |at| (Arc::clone(&seen), at))
    };
    let items = seen.into_iter().flat_map(channels).collect();
    Ok(connections::lacks(listing::list(call, Channels, items).await?, silent))
}

/// `GET /api/channels/{channel}`.
pub(super) async fn get(mut call: Call) -> Result<Answer, Fault> {
    let name = call.param("channel").to_owned();
    // As `channel_name` puts it together.
    let (of, _) = name.rsplit_once(" (").ok_or_else(Fault::not_found)?;
    let (connection, facts) = connections::called(&call, of).await?;
    let is_it = |channel: &ChannelFacts| channel_name(of, channel) == name;
    let at = facts.channels.iter().position(is_it).ok_or_else(Fault::not_found)?;
    let seen: Seen = (connection, facts);
    call.login.must_be(&seen.1.user, false)?;
    let channel = &seen.1.channels[at];
    let mut row = row(&call, &seen, channel);
    let channel = (seen.0.id(), channel.number);
    (row["publishes"], row["deliveries"]) = by_partner(&call, channel).await;
    call.hold(consumers::bytes(seen.1.channels[at].consumers)).await?;
    let consumers = consumers(&mut call, &seen.1.vhost, channel).await?;
    listing::one_with(call, row, "consumer_details", Consumers, consumers).await
}

/// What a channel published by exchange, and was given by queue.
async fn by_partner(call: &Call, (connection, number): (ConnectionId, u16)) -> (Value, Value) {
    let pairs: Vec<(With, Value)> = {
        let stats = call.stats();
        let found = stats.connections.get(&connection).into_iter();
        let own = found.flat_map(|it| it.pairs.iter().filter(|pair| pair.channel == number));
        own.map(|pair| (pair.with, stats::of_pair(pair))).collect()
    };
    let named = |topology: &Topology, (with, stats)| {
        let (name, vhost) = match with {
            With::Exchange(id) => topology.exchange_by_id(id).map(|it| (&it.name, it.vhost))?,
            With::Queue(id) => topology.queue_by_id(id).map(|it| (&it.name, it.vhost))?,
        };
        let vhost = topology.vhost_by_id(vhost).map(|vhost| Arc::clone(&vhost.name));
        Some((with, Arc::clone(name), vhost.unwrap_or_default(), stats))
    };
    let (mut publishes, mut deliveries) = (Vec::new(), Vec::new());
    for (with, name, vhost, stats) in pages::copied(call.node(), pairs, named).await {
        let names = json!({"name": &*name, "vhost": &*vhost});
        match with {
            With::Exchange(_) => publishes.push(json!({"exchange": names, "stats": stats})),
            With::Queue(_) => deliveries.push(json!({"queue": names, "stats": stats})),
        }
    }
    (publishes.into(), deliveries.into())
}

/// The consumers of a channel, which is in this vhost.
async fn consumers(
    call: &mut Call,
    vhost: &str,
    channel: (ConnectionId, u16),
) -> Result<Vec<Consumer>, Fault> {
    let queues = queues::all(call, &[vhost.to_owned()], |_| true).await?;
    let mut found = Vec::new();
    for some in queues.chunks(pages::ROWS) {
        let ids: Vec<_> = some.iter().map(|queue| queue.id).collect();
        let of_channel = Named::OfChannel(channel.0, channel.1);
        let mut facts = facts::with(call.node(), &ids, of_channel).await?;
        for queue in some {
            let own = facts.remove(&queue.id).into_iter().flat_map(|it| it.consumers);
            found.extend(own.map(|facts| {
                let (vhost, queue) = (Arc::clone(&queue.vhost), Arc::clone(&queue.name));
                Consumer { vhost, queue, facts }
            }));
        }
        tokio::task::yield_now().await;
    }
    Ok(found)
}

fn channel_name(connection: &str, channel: &ChannelFacts) -> String {
    format!("{connection} ({})", channel.number)
}

fn row(call: &Call, (connection, facts): &Seen, channel: &ChannelFacts) -> Value {
    let mut row = json!({
        "name": channel_name(&connection.name(), channel),
        "number": channel.number,
        "pid": connection.id().channel_pid(channel.number),
        "connection_pid": connection.id().pid(),
        "node": connections::node_name(call, connection),
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
        "garbage_collection": stats::garbage_collection(),
        "reductions": 0,
        "reductions_details": {"rate": 0.0},
    });
    if let Some(stats) = stats::of_channel(&channel.totals) {
        row["message_stats"] = stats;
    }
    let stats = call.stats();
    let sampled = stats.connections.get(&connection.id());
    let sampled = sampled.and_then(|entry| entry.channel(channel.number));
    if let Value::Object(row) = &mut row {
        ChannelEntry::put_rates(sampled, row, &call.ranges);
    }
    drop(stats);
    row
}
