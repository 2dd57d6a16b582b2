//! The node at a glance, and who it is.

use std::time::Duration;

use leveret_broker::message::QueueFacts;
use leveret_server::COMPATIBLE_VERSION;
use leveret_topology::{ExchangeKind, QueueId};
use serde_json::{Value, json};

use super::answer::{Answer, Fault};
use super::call::Call;
use super::{cluster, connections, listing};
use crate::ops::facts;
use crate::stats::format::put_details;
use crate::stats::{LENGTHS, Overview};

/// Statistics that are older are taken anew.
const FRESH: Duration = Duration::from_secs(1);

/// What tools get in the place of Erlang's version.
pub(crate) const NO_ERLANG: &str = "0";

/// `GET /api/overview`.
pub(super) async fn get(call: Call) -> Result<Answer, Fault> {
    let node = call.node();
    let about = &call.app.ops.about;
    call.app.ops.stats.refresh(FRESH).await;
    // Who monitors sees what every vhost adds to the whole.
    let vhosts = if call.login.is_monitor() { every_vhost(&call) } else { call.vhosts()? };
    let vhosts_seen: Vec<(usize, Vec<QueueId>)> = {
        let topology = node.topology();
        let ids = vhosts.iter().filter_map(|name| Some(topology.vhost(name)?.id));
        ids.map(|id| (topology.exchange_ids(id).len(), topology.queue_ids(id))).collect()
    };
    let mut totals = facts::Totals::default();
    let (mut queues, mut exchanges, mut consumers) = (0, 0, 0);
    for (exchange_count, ids) in vhosts_seen {
        exchanges += exchange_count;
        queues += ids.len();
        let count = |facts: QueueFacts| {
            totals.add(&facts);
            consumers += u64::from(facts.numbers.counts.consumers);
        };
        facts::each(node, &ids, count).await?;
    }
    let seen = |vhost: &str, user: &str| {
        let is_mine = call.login.is_monitor() || user == call.login.name;
        is_mine && (call.login.is_monitor() || vhosts.iter().any(|one| one == vhost))
    };
    let (connections, channels) = connections::counts(&call, |vhost, user| seen(vhost, user)).await;
    let (cluster_name, cluster_tags) = (cluster::name(&call), cluster::tags(&call));
    let default_queue_type = call.node().topology().default_queue_type();
    let default_queue_type = default_queue_type.map_or("classic", |kind| kind.name());
    // Of all vhosts: for those who may see them.
    let stats = call.stats();
    let all = Some(&stats.overview).filter(|_| call.login.is_monitor());
    let mut row = json!({
        "management_version": COMPATIBLE_VERSION,
        "rabbitmq_version": COMPATIBLE_VERSION,
        "product_name": about.product_name,
        "product_version": about.product_version,
        "erlang_version": NO_ERLANG,
        "leveret_version": env!("CARGO_PKG_VERSION"),
        "erlang_full_version": "none: Leveret is not written in Erlang",
        "release_series_support_status": "supported",
        "rates_mode": "basic",
        "sample_retention_policies":
            {"global": [600, 3600, 28800, 86400], "basic": [600, 3600], "detailed": [600]},
        "exchange_types": exchange_types(),
        "cluster_name": cluster_name,
        "cluster_tags": cluster_tags,
        "node_tags": {},
        "node": about.node_name,
        "default_queue_type": default_queue_type,
        "disable_stats": false,
        "enable_queue_totals": true,
        "is_op_policy_updating_enabled": !call.app.options.no_operator_policy_changes,
        "statistics_db_event_queue": 0,
        "message_stats": all.map_or_else(|| json!({}), |all| all.message_stats(&call.ranges)),
        "churn_rates": all.map_or_else(|| Overview::default().churn_rates(&call.ranges), |all| all.churn_rates(&call.ranges)),
        "queue_totals": {},
    });
    let mut totals = totals.row();
    if let (Value::Object(totals), Some(all)) = (&mut totals, all) {
        put_details(totals, &LENGTHS, &all.lengths, call.ranges.lengths);
    }
    drop(stats);
    row["queue_totals"] = totals;
    row["object_totals"] = json!({
        "connections": connections,
        "channels": channels,
        "exchanges": exchanges,
        "queues": queues,
        "consumers": consumers,
    });
    if call.login.is_monitor() {
        row["listeners"] = listeners(&call);
        row["contexts"] = contexts(&call);
    }
    Ok(listing::one(&call, row))
}

fn every_vhost(call: &Call) -> Vec<String> {
    call.node().topology().vhosts().map(|vhost| vhost.name.to_string()).collect()
}

/// The kinds of exchanges that can be declared.
pub(super) fn exchange_types() -> Value {
    let kinds = ExchangeKind::ALL.iter().map(|kind| {
        let described = match kind.name() {
            "direct" => "AMQP direct exchange, as per the AMQP specification",
            "fanout" => "AMQP fanout exchange, as per the AMQP specification",
            "topic" => "AMQP topic exchange, as per the AMQP specification",
            "headers" => "AMQP headers exchange, as per the AMQP specification",
            "x-local-random" => "Picks one random local binding (queue) to route via",
            "x-random" => "Picks one random binding (queue) to route via",
            "x-consistent-hash" => "Consistent Hashing Exchange",
            "x-modulus-hash" => "Modulus Hashing Exchange",
            "x-recent-history" => "Recent History Exchange",
            _ => "",
        };
        json!({"name": kind.name(), "description": described, "enabled": true})
    });
    kinds.collect()
}

/// Where the node listens.
pub(super) fn listeners(call: &Call) -> Value {
    let about = &call.app.ops.about;
    let rows = about.listeners.iter().map(|listener| {
        json!({
            "node": about.node_name,
            "protocol": listener.protocol,
            "ip_address": listener.address.ip().to_string(),
            "port": listener.address.port(),
            "socket_opts": {"backlog": 128, "nodelay": true},
        })
    });
    rows.collect()
}

/// What is served over HTTP.
pub(super) fn contexts(call: &Call) -> Value {
    let about = &call.app.ops.about;
    let http = about.listeners.iter().filter(|listener| listener.protocol.starts_with("http"));
    let rows = http.map(|listener| {
        let is_ours = listener.protocol.starts_with("http") && !listener.protocol.contains('/');
        let path = call.app.options.path_prefix.as_deref().filter(|_| is_ours);
        json!({
            "node": about.node_name,
            "description": if is_ours { "RabbitMQ Management" } else { listener.purpose },
            "path": path.filter(|path| !path.is_empty()).unwrap_or("/"),
            "ip": listener.address.ip().to_string(),
            "port": listener.address.port().to_string(),
            "cowboy_opts": "[]",
        })
    });
    rows.collect()
}
