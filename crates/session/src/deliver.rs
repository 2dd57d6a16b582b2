//! Hot path. Messages on their way to the client.
//!
//! Budget: no allocation per message once warm; heads and small bodies are copied into the output buffer,
//! other bodies borrowed from the log's block.
//!
//! A delivery to a consumer that is gone (its channel closed while the letter was underway) goes back to
//! its queue at once.

use leveret_amqp::method::basic;
use leveret_broker::message::{Delivery, Settle, Settlement, UnackedDelivery};
use leveret_broker::record::View;
use leveret_queue::{Time, delivery_cost};

use crate::channel::{Channel, Channels};
use crate::core::{Context, Core};
use crate::totals::TakenTotals;
use crate::{properties, trace};

/// A letter of deliveries.
pub(crate) fn deliver(
    core: &mut Core,
    channels: &mut Channels,
    deliveries: &[Delivery],
    cx: &mut Context<'_>,
) {
    let delivered_s = seconds(core, cx.now);
    core.pace_deliveries(deliveries.len(), cx);
    let is_traced = trace::is_on(core, cx);
    for delivery in deliveries {
        let Some(view) = View::of(&delivery.record) else {
            tracing::error!(queue = %delivery.queue, "a record that cannot be read is not delivered");
            continue;
        };
        let cost = delivery_cost(view.head.body_len.into());
        let consumer = core.consumers.get_mut(delivery.slot);
        let channel = consumer.as_ref().and_then(|consumer| channels.get(consumer.channel));
        if let Some(allowances) = &mut core.allowances {
            let place_of = channel.as_ref().filter(|_| delivery.unacked.is_some());
            allowances.came(delivery.home, cost, place_of.map(|channel| channel.number));
        }
        let (Some(consumer), Some(channel)) = (consumer, channel) else {
            core.resumes |= core.gauge.released(cost);
            stray(core, delivery);
            continue;
        };
        core.gauged += cost;
        consumer.delivered += 1;
        consumer.redelivered += u64::from(delivery.redelivered);
        core.totals.in_broker.count(cx.wall.ms().saturating_sub(view.head.published_ms));
        let tag = channel.tag();
        let rewritten;
        let mut properties = view.properties;
        if delivery.delivery_count > 0 {
            rewritten = properties::with_delivery_count(properties, delivery.delivery_count);
            properties = rewritten.as_deref().unwrap_or(properties);
        }
        cx.out.put_deliver(
            channel.number,
            &consumer.tag,
            tag,
            delivery.redelivered,
            view.names,
            properties,
            &delivery.record,
            view.body_at,
            core.frame_max,
        );
        if is_traced {
            trace::delivered(core, (channel.number, tag), delivery, &view, cx);
        }
        if let Some(unacked) = delivery.unacked {
            channel.unacked.push(UnackedDelivery {
                tag,
                offset: delivery.offset,
                queue: delivery.queue,
                home: delivery.home,
                unacked,
                slot: delivery.slot.0,
                delivered_s,
            });
            if !core.timers.is_watching() {
                watch(core, delivery.slot.0, cx.now);
            }
        }
    }
}

/// Something unacked is there, and perhaps nobody watches how long it stays. What comes later is not looked at here,
/// so the watch is one for the shortest time.
#[cold]
pub(crate) fn watch(core: &mut Core, slot: u32, now: Time) {
    if core.timers.is_watching() || core.timeout_of(slot).is_none() {
        return;
    }
    if let Some(timeout_ms) = core.shortest_timeout() {
        core.timers.watch_unacked(timeout_ms, now);
    }
}

/// Nobody is there for it: back to its queue. It was never seen, so it does not count as delivered.
#[cold]
pub(crate) fn stray(core: &mut Core, delivery: &Delivery) {
    if let Some(unacked) = delivery.unacked {
        let (queue, offset) = (delivery.queue, delivery.offset);
        let how = Settle::Requeue { counts: false };
        core.batch.settle(delivery.home, Settlement { queue, unacked, offset, how });
    }
}

/// `basic.get` found a message.
pub(crate) fn got(
    core: &mut Core,
    channel: &mut Channel,
    delivery: &Delivery,
    remaining: u64,
    cx: &mut Context<'_>,
) {
    let Some(view) = View::of(&delivery.record) else {
        tracing::error!(queue = %delivery.queue, "a record that cannot be read is not delivered");
        channel.count(delivery.queue, TakenTotals { get_empty: 1, ..TakenTotals::default() });
        cx.out.put_method(channel.number, &basic::GetEmpty { cluster_id: "" });
        return;
    };
    let (get, get_no_ack) = if delivery.unacked.is_some() { (1, 0) } else { (0, 1) };
    let redeliver = u64::from(delivery.redelivered);
    let taken = TakenTotals { get, get_no_ack, redeliver, ..TakenTotals::default() };
    channel.count(delivery.queue, taken);
    core.totals.in_broker.count(cx.wall.ms().saturating_sub(view.head.published_ms));
    let (exchange, routing_key) = view.exchange_and_key().unwrap_or_default();
    let delivery_tag = channel.tag();
    cx.out.put_method(
        channel.number,
        &basic::GetOk {
            delivery_tag,
            redelivered: delivery.redelivered,
            exchange,
            routing_key,
            message_count: u32::try_from(remaining).unwrap_or(u32::MAX),
        },
    );
    let rewritten = (delivery.delivery_count > 0)
        .then(|| properties::with_delivery_count(view.properties, delivery.delivery_count))
        .flatten();
    let properties = rewritten.as_deref().unwrap_or(view.properties);
    cx.out.put_header(channel.number, 60, view.head.body_len.into(), properties);
    cx.out.put_body(channel.number, &view.body(), core.frame_max);
    if trace::is_on(core, cx) {
        trace::delivered(core, (channel.number, delivery_tag), delivery, &view, cx);
    }
    if let Some(unacked) = delivery.unacked {
        channel.unacked.push(UnackedDelivery {
            tag: delivery_tag,
            offset: delivery.offset,
            queue: delivery.queue,
            home: delivery.home,
            unacked,
            slot: UnackedDelivery::GOT,
            delivered_s: seconds(core, cx.now),
        });
        watch(core, UnackedDelivery::GOT, cx.now);
    }
}

/// Seconds since the connection began.
pub(crate) fn seconds(core: &Core, now: Time) -> u32 {
    let ms = now.ms().saturating_sub(core.identity.connected.ms());
    u32::try_from(ms / 1000).unwrap_or(u32::MAX)
}
