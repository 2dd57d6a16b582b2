//! `basic.consume`, `basic.cancel`, `basic.get`.

use std::sync::Arc;

use leveret_amqp::method::basic;
use leveret_amqp::table::Table;
use leveret_broker::message::{ConsumerSlot, ToShard};
use leveret_topology::{Permission, Queue, QueueKind, ResourceKind, weight};

use crate::channel::{Channel, Channels, DirectReply};
use crate::consumers::Consumer;
use crate::core::{Context, Core};
use crate::declare::{queue_name, to_table};
use crate::direct;
use crate::reply::{self, Fault};
use crate::waiting::{Awaited, WaitingCommand};

const CONSUME: (u16, u16) = (60, 20);
const CANCEL: (u16, u16) = (60, 30);
const GET: (u16, u16) = (60, 70);

/// Bytes of a consumer without its arguments.
const CONSUMER: u64 = 300;

/// The queue, if it is there and not another connection's, after the user's permission to read from it.
pub(crate) fn readable<'t>(core: &Core, name: &str, cx: &Context<'t>) -> Result<&'t Queue, Fault> {
    core.check(Permission::Read, ResourceKind::Queue, name, cx)?;
    accessible(core, name, cx)
}

/// The queue, if it is there and not another connection's.
pub(crate) fn accessible<'t>(
    core: &Core,
    name: &str,
    cx: &Context<'t>,
) -> Result<&'t Queue, Fault> {
    let identity = &core.identity;
    let queue = cx
        .topology
        .queue(identity.vhost, name)
        .ok_or_else(|| reply::no_queue(name, &identity.vhost_name))?;
    if !identity.is_operator {
        queue.check_exclusive(core.id, &identity.vhost_name)?;
    }
    Ok(queue)
}

/// `basic.consume`.
pub(crate) fn consume(
    core: &mut Core,
    channel: &mut Channel,
    method: &basic::Consume<'_>,
    cx: &mut Context<'_>,
) -> Result<(), Fault> {
    let tag = method.consumer_tag;
    if !tag.is_empty() && find(core, channel, tag).is_some() {
        return Err(reply::tag_in_use(tag));
    }
    if let Some(max) = core.settings.consumer_max_per_channel
        && channel.tags.len() >= max as usize
    {
        return Err(reply::too_many_consumers(max));
    }
    let tag: Box<str> = match tag {
        "" => core.random.name("amq.ctag").into(),
        tag => tag.into(),
    };
    if method.queue == direct::NAME {
        return consume_replies(core, channel, method, tag, cx);
    }
    let name = queue_name(channel, method.queue)?;
    let queue = readable(core, &name, cx)?;
    let arguments = to_table(method.arguments)?;
    core.check_memory_for("a consumer", &arguments)?;
    let (priority, timeout_ms) = options(core, &name, &arguments)?;
    if queue.kind == QueueKind::Quorum && channel.global_prefetch > 0 {
        return Err(reply::no_global_prefetch(&name, &core.identity.vhost_name));
    }
    let timeout_ms = timeout_ms
        .or_else(|| queue.consumer_timeout_ms())
        .or(core.settings.consumer_timeout_ms)
        .filter(|&ms| ms > 0);
    if let (Some(timeout_ms), false, true) = (timeout_ms, method.no_ack, core.timers.is_watching())
    {
        core.timers.watch_unacked(timeout_ms, cx.now);
    }
    let (queue, home) = (queue.id, queue.home);
    let weight = u32::try_from(CONSUMER + weight::table(&arguments)).unwrap_or(u32::MAX);
    let arguments = Arc::new(arguments);

    let consumer = Consumer {
        channel: channel.number,
        tag: tag.clone(),
        queue,
        home,
        timeout_ms,
        no_ack: method.no_ack,
        number: None,
        exclusive: method.exclusive,
        priority,
        prefetch: channel.prefetch,
        arguments: Arc::clone(&arguments),
        weight,
        delivered: 0,
        redelivered: 0,
    };
    let Some(slot) = core.consumers.insert(consumer) else {
        return Err(reply::too_many_consumers(1 << 20));
    };
    let consumers = &core.consumers;
    let hash_of = |slot: &ConsumerSlot| hash(consumers.get(*slot).map_or("", |c| &c.tag));
    channel.tags.insert_unique(hash(&tag), slot, hash_of);
    if let Some(allowances) = &mut core.allowances {
        allowances.consumer_came(channel.number, &channel.limit, home);
    }
    let letter = ToShard::Consume {
        user: core.identity.user.clone(),
        reply: core.reply_to(channel.number),
        queue,
        slot,
        tag,
        no_ack: method.no_ack,
        exclusive: method.exclusive,
        priority,
        prefetch: channel.prefetch,
        gate: core.gate(channel),
        arguments,
    };
    core.send_to(home, letter, cx);
    core.waiting = Some(WaitingCommand {
        channel: channel.number,
        method: CONSUME,
        no_wait: method.no_wait,
        what: Awaited::Consume { slot, queue: name },
    });
    Ok(())
}

/// `x-priority` and `x-consumer-timeout`.
fn options(core: &Core, queue: &str, arguments: &Table) -> Result<(i32, Option<u64>), Fault> {
    let vhost = &core.identity.vhost_name;
    let integer = |name: &'static str| match arguments.get(name) {
        None => Ok(None),
        Some(value) => match value.as_i64() {
            Some(number) => Ok(Some(number)),
            None => {
                let why = format!("\"expected integer, got {}\"", value.kind_name());
                Err(reply::invalid_consumer_argument(name, queue, vhost, &why))
            }
        },
    };
    let priority = integer("x-priority")?.unwrap_or(0);
    let priority = priority.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32;
    let timeout_ms = match integer("x-consumer-timeout")? {
        None => None,
        Some(ms) => Some(u64::try_from(ms).map_err(|_| {
            let why = format!("{{value_negative,{ms}}}");
            reply::invalid_consumer_argument("x-consumer-timeout", queue, vhost, &why)
        })?),
    };
    Ok((priority, timeout_ms))
}

/// `basic.consume` from `amq.rabbitmq.reply-to`.
fn consume_replies(
    core: &mut Core,
    channel: &mut Channel,
    method: &basic::Consume<'_>,
    tag: Box<str>,
    cx: &mut Context<'_>,
) -> Result<(), Fault> {
    if !method.no_ack {
        return Err(reply::reply_consumer_acks());
    }
    if channel.direct_reply.is_some() {
        return Err(reply::reply_consumer_set());
    }
    if !method.no_wait {
        cx.out.put_method(channel.number, &basic::ConsumeOk { consumer_tag: &tag });
    }
    channel.direct_reply = Some(Box::new(DirectReply { tag, token: core.random.next() }));
    Ok(())
}

/// The channel's consumer with that tag.
fn find(core: &Core, channel: &Channel, tag: &str) -> Option<ConsumerSlot> {
    let is_it = |slot: &ConsumerSlot| core.consumers.get(*slot).is_some_and(|c| *c.tag == *tag);
    channel.tags.find(hash(tag), is_it).copied()
}

fn hash(tag: &str) -> u64 {
    use std::hash::BuildHasher;
    leveret_topology::hash::Keyed::default().hash_one(tag)
}

/// Forgets the channel's consumer with that slot and tag.
pub(crate) fn forget(channel: &mut Channel, slot: ConsumerSlot, tag: &str) {
    if let Ok(found) = channel.tags.find_entry(hash(tag), |&other| other == slot) {
        found.remove();
    }
}

/// `basic.cancel`. A tag that nobody has is no mistake.
pub(crate) fn cancel(
    core: &mut Core,
    channel: &mut Channel,
    method: &basic::Cancel<'_>,
    cx: &mut Context<'_>,
) {
    let tag = method.consumer_tag;
    if channel.direct_reply.as_ref().is_some_and(|consumer| *consumer.tag == *tag) {
        channel.direct_reply = None;
    } else if let Some(slot) = find(core, channel, tag)
        && let Some(&Consumer { queue, home, .. }) = core.consumers.get(slot)
    {
        let reply = Some(core.reply_to(channel.number));
        let user = core.identity.user.clone();
        let letter = ToShard::Cancel { user, reply, connection: core.id, queue, slot };
        core.send_to(home, letter, cx);
        core.waiting = Some(WaitingCommand {
            channel: channel.number,
            method: CANCEL,
            no_wait: method.no_wait,
            what: Awaited::Cancel { slot, tag: tag.into() },
        });
        return;
    }
    if !method.no_wait {
        cx.out.put_method(channel.number, &basic::CancelOk { consumer_tag: tag });
    }
}

/// `basic.get`.
pub(crate) fn get(
    core: &mut Core,
    channel: &mut Channel,
    method: &basic::Get<'_>,
    cx: &mut Context<'_>,
) -> Result<(), Fault> {
    let name = queue_name(channel, method.queue)?;
    let queue = readable(core, &name, cx)?;
    let (queue, home) = (queue.id, queue.home);
    let reply = core.reply_to(channel.number);
    core.send_to(home, ToShard::Get { reply, queue, no_ack: method.no_ack }, cx);
    core.waiting = Some(WaitingCommand {
        channel: channel.number,
        method: GET,
        no_wait: false,
        what: Awaited::Get { queue: name },
    });
    Ok(())
}

/// The user's rights are others now: consumers that may not read from their queues any more are cancelled.
pub(crate) fn recheck(core: &mut Core, channels: &mut Channels, cx: &mut Context<'_>) {
    let may_not_read = |consumer: &Consumer| {
        let queue = cx.topology.queue_by_id(consumer.queue)?;
        let checked = core.check(Permission::Read, ResourceKind::Queue, &queue.name, cx);
        checked.err().filter(|fault| fault.undecided.is_none())
    };
    let consumers = core.consumers.iter();
    let lost: Vec<_> = consumers
        .filter_map(|(slot, consumer)| {
            let queue = (consumer.queue, consumer.home);
            may_not_read(consumer).map(|fault| (slot, consumer.channel, queue, fault.text))
        })
        .collect();
    for (slot, number, (queue, home), why) in lost {
        tracing::warn!(from = &*core.identity.user, user = &*core.identity.user, %why, "a consumer is cancelled: its secret was updated");
        let letter =
            ToShard::Cancel { user: Box::default(), reply: None, connection: core.id, queue, slot };
        core.send_to(home, letter, cx);
        gone(core, channels.get(number), slot, cx);
    }
}

/// A consumer is gone, without its channel having asked for it.
pub(crate) fn gone(
    core: &mut Core,
    channel: Option<&mut Channel>,
    slot: ConsumerSlot,
    cx: &mut Context<'_>,
) {
    let Some(consumer) = core.remove_consumer(slot) else { return };
    let Some(channel) = channel else { return };
    channel.keep_totals_of(&consumer);
    forget(channel, slot, &consumer.tag);
    if core.capabilities.consumer_cancel_notify && !channel.is_closing {
        let method = basic::Cancel { consumer_tag: &consumer.tag, no_wait: true };
        cx.out.put_method(channel.number, &method);
    }
}
