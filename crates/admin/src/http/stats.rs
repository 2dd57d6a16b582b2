//! Counts and rates under RabbitMQ's names: `x`, and `x_details` with the rate.

use leveret_queue::Totals;
use leveret_session::ChannelTotals;
use leveret_topology::{ExchangeId, QueueId};
use serde_json::{Map, Value, json};

use crate::stats::Snapshot;
use crate::stats::pairs::{Pair, With};

/// What Erlang tells of a process's memory. Nothing here has such memory, but clients count on numbers: those of a new
/// process of Erlang. RabbitMQ's Rust client tests that `fullsweep_after` is large.
pub(super) fn garbage_collection() -> Value {
    json!({
        "minor_gcs": 0,
        "fullsweep_after": 65_535,
        "min_heap_size": 233,
        "min_bin_vheap_size": 46_422,
        "max_heap_size": 0,
    })
}

/// Some counts with their names, and with rates of 0 until they are sampled. None when nothing was counted,
/// as RabbitMQ leaves out what has no events.
fn counted<const N: usize>(counts: [(&str, u64); N]) -> Option<Value> {
    if counts.iter().all(|(_, count)| *count == 0) {
        return None;
    }
    let mut map = Map::new();
    for (name, count) in counts {
        map.insert(name.to_owned(), json!(count));
        map.insert(format!("{name}_details"), json!({"rate": 0.0}));
    }
    Some(map.into())
}

/// `message_stats` of a queue.
pub(super) fn of_queue(totals: &Totals) -> Option<Value> {
    let deliver_get = totals.delivered + totals.delivered_no_ack + totals.got + totals.got_no_ack;
    counted([
        ("publish", totals.enqueued),
        ("deliver", totals.delivered),
        ("deliver_no_ack", totals.delivered_no_ack),
        ("get", totals.got),
        ("get_no_ack", totals.got_no_ack),
        ("get_empty", totals.get_empty),
        ("deliver_get", deliver_get),
        ("redeliver", totals.redelivered),
        ("ack", totals.acked),
    ])
}

/// `message_stats` of a channel.
pub(super) fn of_channel(totals: &ChannelTotals) -> Option<Value> {
    let taken = &totals.taken;
    counted([
        ("publish", totals.published.publish),
        ("confirm", totals.published.confirm),
        ("return_unroutable", totals.published.return_unroutable),
        ("drop_unroutable", totals.published.drop_unroutable),
        ("deliver", taken.deliver),
        ("deliver_no_ack", taken.deliver_no_ack),
        ("get", taken.get),
        ("get_no_ack", taken.get_no_ack),
        ("get_empty", taken.get_empty),
        ("deliver_get", taken.deliver_get()),
        ("redeliver", taken.redeliver),
        ("ack", taken.ack),
    ])
}

/// Counts and rates of a channel and something.
pub(super) fn of_pair(pair: &Pair) -> Value {
    let mut map = Map::new();
    for (name, count, rate) in pair.counts() {
        map.insert(name.to_owned(), json!(count));
        map.insert(format!("{name}_details"), json!({"rate": rate}));
    }
    map.into()
}

/// What passed from an exchange to a queue, for each `partner` of the thing in hand: the exchange or the queue at the
/// other end.
pub(super) fn passages<K>(
    snapshot: &Snapshot,
    partner: impl Fn((ExchangeId, QueueId)) -> Option<K>,
) -> Vec<(K, Value)> {
    let passages = snapshot.passages(|pair| partner(pair).is_some()).into_iter();
    let stats = |(pair, (count, rate))| {
        Some((partner(pair)?, json!({"publish": count, "publish_details": {"rate": rate}})))
    };
    passages.filter_map(stats).collect()
}

/// What the channels of all connections have to do with something, a row a channel.
pub(super) fn by_channel(snapshot: &Snapshot, with: With) -> Value {
    let mut rows = Vec::new();
    for entry in snapshot.connections.values() {
        for pair in entry.pairs.iter().filter(|pair| pair.with == with) {
            let name = entry.connection.name();
            rows.push(json!({
                "channel_details": {
                    "name": format!("{name} ({})", pair.channel),
                    "number": pair.channel,
                    "connection_name": name,
                },
                "stats": of_pair(pair),
            }));
        }
    }
    Value::Array(rows)
}
