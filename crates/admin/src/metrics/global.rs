//! RabbitMQ's `rabbitmq_global_*`, message sizes and alarms: totals of the node, by protocol and type of
//! queue.

use leveret_queue::{Reason, Totals};
use leveret_session::SessionTotals;
use leveret_topology::QueueKind;

use super::text::{Kind, Text, label, labels};
use crate::stats::Overview;
use Kind::{Counter, Gauge, Untyped};

const PROTOCOL: &str = "amqp091";

/// Bounds of message sizes as RabbitMQ writes them.
const SIZES: [&str; 9] =
    ["100.0", "1000.0", "10000.0", "100000.0", "1e+06", "1e+07", "5e+07", "1e+08", "+Inf"];

type ByProtocol = (&'static str, &'static str, fn(&SessionTotals) -> u64);

#[rustfmt::skip] // a table
const BY_PROTOCOL: &[ByProtocol] = &[
    ("messages_received_total", "Total number of messages received from publishers", |it| it.channels.published.publish),
    ("messages_received_confirm_total", "Total number of messages received from publishers expecting confirmations", |it| it.channels.publish_confirm),
    ("messages_routed_total", "Total number of messages routed to queues or streams", |it| it.channels.published.routed),
    ("messages_unroutable_dropped_total", "Total number of messages published as non-mandatory into an exchange and dropped as unroutable", |it| it.channels.published.drop_unroutable),
    ("messages_unroutable_returned_total", "Total number of messages published as mandatory into an exchange and returned to the publisher as unroutable", |it| it.channels.published.return_unroutable),
    ("messages_confirmed_total", "Total number of messages confirmed to publishers", |it| it.channels.published.confirm),
];

type ByType = (&'static str, &'static str, fn(&Totals) -> u64);

#[rustfmt::skip] // a table
const BY_TYPE: &[ByType] = &[
    ("messages_delivered_total", "Total number of messages delivered to consumers", |it| it.delivered + it.delivered_no_ack + it.got + it.got_no_ack),
    ("messages_delivered_consume_manual_ack_total", "Total number of messages delivered to consumers using basic.consume with manual acknowledgment", |it| it.delivered),
    ("messages_delivered_consume_auto_ack_total", "Total number of messages delivered to consumers using basic.consume with automatic acknowledgment", |it| it.delivered_no_ack),
    ("messages_delivered_get_manual_ack_total", "Total number of messages delivered to consumers using basic.get with manual acknowledgment", |it| it.got),
    ("messages_delivered_get_auto_ack_total", "Total number of messages delivered to consumers using basic.get with automatic acknowledgment", |it| it.got_no_ack),
    ("messages_get_empty_total", "Total number of times basic.get operations fetched no message", |it| it.get_empty),
    ("messages_redelivered_total", "Total number of messages redelivered to consumers", |it| it.redelivered),
    ("messages_acknowledged_total", "Total number of messages acknowledged by consumers", |it| it.acked),
];

const DEAD_LETTERS: [(&str, &str, Reason); 4] = [
    (
        "maxlen",
        "Total number of messages dead-lettered due to overflow drop-head or reject-publish-dlx",
        Reason::Maxlen,
    ),
    (
        "expired",
        "Total number of messages dead-lettered due to message TTL exceeded",
        Reason::Expired,
    ),
    (
        "rejected",
        "Total number of messages dead-lettered due to basic.reject or basic.nack",
        Reason::Rejected,
    ),
    (
        "delivery_limit",
        "Total number of messages dead-lettered due to delivery-limit exceeded",
        Reason::DeliveryLimit,
    ),
];

/// What each type of queue counted, whatever it does with dead letters.
fn by_type(overview: &Overview, kind: QueueKind) -> Totals {
    let mut sum = Totals::default();
    let all = overview.queues.iter().filter(|((of, _), _)| *of == kind);
    all.for_each(|(_, totals)| sum += *totals);
    sum
}

const KINDS: [QueueKind; 2] = [QueueKind::Classic, QueueKind::Quorum];

pub(super) fn write(overview: &Overview, text: &mut Text) {
    let protocol = label("protocol", PROTOCOL);
    for (name, help, value) in BY_PROTOCOL {
        let name = &format!("rabbitmq_global_{name}");
        text.family(name, Counter, help);
        text.sample(name, &protocol, value(&overview.sums.session));
    }
    for (name, help, count) in [
        ("publishers", "Current number of publishers", overview.now.publishers),
        ("consumers", "Current number of consumers", overview.now.consumers),
    ] {
        let name = &format!("rabbitmq_global_{name}");
        text.family(name, Gauge, help);
        text.sample(name, &protocol, count);
    }
    for (name, help, value) in BY_TYPE {
        let name = &format!("rabbitmq_global_{name}");
        text.family(name, Counter, help);
        for kind in KINDS {
            let labels = labels(&[("protocol", PROTOCOL), ("queue_type", kind.module())]);
            text.sample(name, &labels, value(&by_type(overview, kind)));
        }
        let streams = labels(&[("protocol", PROTOCOL), ("queue_type", "rabbit_stream_queue")]);
        text.sample(name, &streams, 0);
    }
    dead_letters(overview, text);
    sizes(overview, text);
    let alarm = |on: bool| u64::from(on);
    let node = &overview.node;
    text.one(
        "rabbitmq_alarms_free_disk_space_watermark",
        Untyped,
        "is 1 if free disk space watermark alarm is in effect",
        alarm(node.disk_free_alarm),
    );
    text.one(
        "rabbitmq_alarms_memory_used_watermark",
        Untyped,
        "is 1 if VM memory watermark alarm is in effect",
        alarm(node.mem_alarm),
    );
    text.one(
        "rabbitmq_unreachable_cluster_peers_count",
        Gauge,
        "Number of peers in the cluster the current node cannot reach.",
        0,
    );
}

fn dead_letters(overview: &Overview, text: &mut Text) {
    let of = |kind: QueueKind, safe: bool| {
        overview.queues.get(&(kind, safe)).copied().unwrap_or_default()
    };
    let who = |kind: QueueKind, strategy| {
        labels(&[("queue_type", kind.module()), ("dead_letter_strategy", strategy)])
    };
    for (name, help, reason) in DEAD_LETTERS {
        let name = &format!("rabbitmq_global_messages_dead_lettered_{name}_total");
        text.family(name, Counter, help);
        for kind in KINDS {
            let (once, safe) = (of(kind, false), of(kind, true));
            let dropped = once.dropped.get(reason) + safe.dropped.get(reason);
            text.sample(name, &who(kind, "disabled"), dropped);
            text.sample(name, &who(kind, "at_most_once"), once.dead_lettered.get(reason));
            text.sample(name, &who(kind, "at_least_once"), safe.dead_lettered.get(reason));
        }
    }
    let name = "rabbitmq_global_messages_dead_lettered_confirmed_total";
    text.family(
        name,
        Counter,
        "Total number of messages dead-lettered and confirmed by target queues",
    );
    for kind in KINDS {
        text.sample(name, &who(kind, "at_least_once"), of(kind, true).dead_letters_confirmed);
    }
}

fn sizes(overview: &Overview, text: &mut Text) {
    let sizes = &overview.sums.session.sizes;
    text.histogram(
        "rabbitmq_message_size_bytes",
        "Size of messages received from publishers",
        &label("protocol", PROTOCOL),
        SIZES.into_iter().zip(sizes.counts),
        sizes.bytes,
    );
}
