//! Metrics that RabbitMQ does not have: how long things wait, where, and what the log takes.

use leveret_broker::numbers::ShardRest;
use leveret_broker::shard::NackReason;
use leveret_queue::{Reason, Time};
use leveret_session::{CONFIRM_BOUNDS_US, ChannelFacts, Times};

use super::text::{Kind, Text, label, labels};
use crate::stats::Snapshot;
use Kind::{Counter, Gauge};

/// Age of the message that a queue delivers next.
pub(super) const QUEUE_AGE: (&str, &str) =
    ("leveret_queue_oldest_message_age_seconds", "Age of the message that a queue delivers next");
/// Age of the oldest delivery that a channel has not acked.
pub(super) const CHANNEL_AGE: (&str, &str) = (
    "leveret_channel_oldest_unacked_age_seconds",
    "How long the oldest delivery of a channel has waited for its ack",
);

/// All but the two ages, which are told of each object or in sum.
pub(super) fn write(snapshot: &Snapshot, text: &mut Text) {
    waits(snapshot, text);
    messages(snapshot, text);
    log(snapshot, text);
    alarms(snapshot, text);
    stalls(snapshot, text);
    // As programs of all kinds have it.
    let began_ms =
        snapshot.at.map_or(0, |at| at.ms()).saturating_sub(snapshot.overview.node.uptime_ms);
    let help = "Start time of the process since unix epoch in seconds.";
    text.one("process_start_time_seconds", Gauge, help, began_ms as f64 / 1e3);
}

/// The two ages of the node as a whole.
pub(super) fn ages(snapshot: &Snapshot, text: &mut Text) {
    let now = sampled(snapshot);
    let oldest = snapshot.queues.values().filter_map(|queue| queue.numbers.oldest_ms(now)).max();
    text.one(QUEUE_AGE.0, Gauge, QUEUE_AGE.1, seconds(oldest.unwrap_or(0)));
    let channels = snapshot.connections.values().flat_map(|entry| &entry.numbers.channels);
    let oldest = channels.filter_map(|facts| channel_age_ms(facts, now)).max();
    text.one(CHANNEL_AGE.0, Gauge, CHANNEL_AGE.1, seconds(oldest.unwrap_or(0)));
}

/// When statistics were taken.
pub(super) fn sampled(snapshot: &Snapshot) -> Time {
    snapshot.at.unwrap_or(Time::from_ms(0))
}

pub(super) fn channel_age_ms(channel: &ChannelFacts, now: Time) -> Option<u64> {
    Some(now.ms().saturating_sub(channel.oldest_unacked?.ms()))
}

fn stalls(snapshot: &Snapshot, text: &mut Text) {
    let (count, seconds) = snapshot.overview.stalls;
    let help = "Turns, locks and threads that took longer than a second; disks and checks of passwords that took longer than ten";
    text.one("leveret_watchdog_stalls_total", Counter, help, count);
    let help = "Turns, disks' jobs, checks of passwords and holds of the names that took longer than 10 ms";
    text.one("leveret_long_turns_total", Counter, help, snapshot.overview.long_turns);
    let help = "How long the longest stall has lasted up to now; 0 if there is none";
    text.one("leveret_watchdog_stall_seconds", Gauge, help, seconds);
}

fn waits(snapshot: &Snapshot, text: &mut Text) {
    let totals = &snapshot.overview.sums.session;
    let help = "Time of a message from publish to delivery";
    // Place n is below 2^n ms.
    let bounds_us = (0..Times::PLACES - 1).map(|place| 1000_u64 << place);
    let Times { counts, ms } = totals.in_broker;
    times("leveret_message_time_in_broker_seconds", help, bounds_us, &counts, ms * 1000, text);
    let help = "Time from publish to confirm, of one message per channel at a time";
    let (bounds_us, confirm) = (CONFIRM_BOUNDS_US.into_iter(), &totals.confirm);
    times("leveret_confirm_latency_seconds", help, bounds_us, &confirm.counts, confirm.us, text);
    let name = "leveret_connections_waiting";
    text.family(name, Gauge, "Connections that the broker does not read, by what they wait for");
    for (what, count) in snapshot.overview.now.waits.rows() {
        text.sample(name, &label("for", what), count);
    }
}

pub(super) fn seconds(ms: u64) -> f64 {
    ms as f64 / 1e3
}

/// A histogram of times: one count below each bound, and one more without a bound.
fn times(
    name: &str,
    help: &str,
    bounds_us: impl Iterator<Item = u64>,
    counts: &[u64],
    sum_us: u64,
    text: &mut Text,
) {
    let bounds = bounds_us.map(|us| format!("{:?}", us as f64 / 1e6));
    let bounds: Vec<_> = bounds.chain(["+Inf".to_owned()]).collect();
    let places = bounds.iter().map(String::as_str).zip(counts.iter().copied());
    text.histogram(name, help, "", places, sum_us as f64 / 1e6);
}

fn messages(snapshot: &Snapshot, text: &mut Text) {
    let overview = &snapshot.overview;
    let name = "leveret_messages_confirmed_total";
    text.family(name, Counter, "Messages confirmed at once, by the disk or by a consumer's ack");
    let sum = |of: fn(&leveret_broker::shard::Confirmed) -> u64| -> u64 {
        overview.shards.iter().map(|shard| of(&shard.confirmed)).sum()
    };
    text.sample(name, &label("by", "at_once"), sum(|it| it.at_once));
    text.sample(name, &label("by", "disk"), sum(|it| it.durable));
    text.sample(name, &label("by", "consumer"), sum(|it| it.acked));
    let nacked = overview.sums.session.channels.nack;
    let help = "Messages whose publishers got basic.nack";
    text.one("leveret_messages_nacked_total", Counter, help, nacked);
    let name = "leveret_nacks_total";
    text.family(name, Counter, "Messages whose publishers got basic.nack, by reason");
    for reason in NackReason::ALL {
        let count = overview.shards.iter().map(|shard| shard.nacked.of(reason)).sum::<u64>();
        text.sample(name, &label("reason", reason.name()), count);
    }
    let name = "leveret_messages_refused_total";
    text.family(name, Counter, "Messages that a full queue refused (reject-publish)");
    let by_type = |of: fn(&leveret_queue::Totals) -> u64| {
        let all = overview.queues.iter();
        all.map(move |((kind, safe), totals)| (kind.module(), *safe, of(totals)))
    };
    let strategy = |safe| if safe { "at_least_once" } else { "at_most_once" };
    for (kind, safe, count) in by_type(|it| it.refused) {
        let labels = labels(&[("queue_type", kind), ("dead_letter_strategy", strategy(safe))]);
        text.sample(name, &labels, count);
    }
    let name = "leveret_messages_requeued_total";
    text.family(name, Counter, "Messages that came back from consumers");
    for (kind, safe, count) in by_type(|it| it.requeued) {
        let labels = labels(&[("queue_type", kind), ("dead_letter_strategy", strategy(safe))]);
        text.sample(name, &labels, count);
    }
    let name = "leveret_messages_dropped_total";
    text.family(
        name,
        Counter,
        "Messages that left without an ack and without a dead-letter exchange, by reason",
    );
    let reasons = [Reason::Expired, Reason::Maxlen, Reason::Rejected, Reason::DeliveryLimit];
    for reason in reasons {
        let count = overview.queues.values().map(|it| it.dropped.get(reason)).sum::<u64>();
        text.sample(name, &label("reason", reason.name()), count);
    }
    let purged = overview.queues.values().map(|it| it.purged).sum::<u64>();
    text.sample(name, &label("reason", "purged"), purged);
    let copies = overview.shards.iter().map(|shard| shard.counters.copies_left_out).sum::<u64>();
    text.sample(name, &label("reason", "alarm"), copies);
    let unreadable = overview.shards.iter().map(|shard| shard.counters.unreadable).sum::<u64>();
    let help = "Messages set aside because the disk could not read them";
    text.one("leveret_messages_unreadable_total", Counter, help, unreadable);
    let moved = overview.queues.values().map(|it| it.moved).sum::<u64>();
    let help = "Messages that an operator moved to another queue";
    text.one("leveret_messages_moved_total", Counter, help, moved);
}

fn log(snapshot: &Snapshot, text: &mut Text) {
    let sum = |of: fn(&ShardRest) -> u64| -> u64 { snapshot.overview.shards.iter().map(of).sum() };
    let (live, disk) = (sum(|shard| shard.log.live_bytes), sum(|shard| shard.log.disk_bytes));
    let held = sum(|shard| shard.log.held_bytes);
    for (name, help, bytes) in [
        ("live_bytes", "Bytes of messages that a queue holds", live),
        (
            "memory_bytes",
            "Bytes of messages in memory; less than live_bytes when they are paged out",
            held,
        ),
        ("disk_bytes", "Bytes of files", disk),
        ("unwritten_bytes", "Bytes that wait for the disk", sum(|shard| shard.log.unwritten_bytes)),
        (
            "records",
            "Number of messages that a queue holds, once each",
            sum(|shard| shard.log.records),
        ),
    ] {
        text.one(&format!("leveret_log_{name}"), Gauge, help, bytes);
    }
    let paged = live.saturating_sub(held);
    let help = "Bytes of messages that are on the disk and not in memory";
    text.one("leveret_paged_out_bytes", Gauge, help, paged);
    if live > 0 {
        let help = "Bytes of files per byte of messages that a queue holds";
        text.one("leveret_disk_amplification_ratio", Gauge, help, disk as f64 / live as f64);
    }
}

fn alarms(snapshot: &Snapshot, text: &mut Text) {
    let node = &snapshot.overview.node;
    let name = "leveret_alarm";
    text.family(name, Gauge, "1 while an alarm blocks publishers, by resource");
    text.sample(name, &label("resource", "memory"), u64::from(node.mem_alarm));
    text.sample(name, &label("resource", "disk"), u64::from(node.disk_free_alarm));
    let name = "leveret_alarms_raised_total";
    text.family(name, Counter, "Alarms that were raised, by resource");
    text.sample(name, &label("resource", "memory"), node.mem_alarms);
    text.sample(name, &label("resource", "disk"), node.disk_free_alarms);
    let help = "Connections that were closed because the limit of open files was reached";
    text.one("leveret_connections_refused_total", Counter, help, node.fd_refused);
    let help =
        "Memory of messages, names, connections and requests. The watermark is compared with it";
    text.one("leveret_memory_held_bytes", Gauge, help, node.mem_held);
}
