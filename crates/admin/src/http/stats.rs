//! Counts and rates under RabbitMQ's names: `x`, and `x_details` with the rate.

use leveret_queue::Totals;
use leveret_session::{ChannelTotals, ExchangeTotals};
use serde_json::{Map, Value, json};

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
    let deliver_get = totals.deliver + totals.deliver_no_ack + totals.get + totals.get_no_ack;
    counted([
        ("publish", totals.published.publish),
        ("confirm", totals.confirm),
        ("return_unroutable", totals.published.return_unroutable),
        ("drop_unroutable", totals.published.drop_unroutable),
        ("deliver", totals.deliver),
        ("deliver_no_ack", totals.deliver_no_ack),
        ("get", totals.get),
        ("get_no_ack", totals.get_no_ack),
        ("get_empty", totals.get_empty),
        ("deliver_get", deliver_get),
        ("redeliver", totals.redeliver),
        ("ack", totals.ack),
    ])
}

/// `message_stats` of a channel's publishes to one exchange.
pub(super) fn of_publishes(totals: &ExchangeTotals) -> Option<Value> {
    counted([
        ("publish", totals.publish),
        ("return_unroutable", totals.return_unroutable),
        ("drop_unroutable", totals.drop_unroutable),
    ])
}
