//! Hot path. `basic.ack`, `basic.nack`, `basic.reject`, `basic.recover`, `basic.qos`.
//!
//! Budget: no allocation per message once warm (the batch's own vector apart).
//!
//! A method for many settles as many as fit the turn. Its frame is given again in the next one, and nothing behind it is
//! read before it is done. `basic.recover` is answered in the first one: in a later one, what comes back could be delivered
//! before the answer. The end of a channel or connection hands over what does not fit the turn as it lies there: shards look at
//! it in pieces. `tx.commit` hands each shard its settlements as they were gathered. What an end cuts off of a method for many is
//! settled in that turn, as it is to be counted.

use leveret_amqp::method::basic;
use leveret_broker::message::{Settle, UnackedDelivery};

use crate::channel::{Channel, Mode};
use crate::core::{Context, Core, HalfSettled};
use crate::reply::{self, Fault};
use crate::trace;
use crate::unacked::{Settled, Which};

/// [`settle`]s, and notes it where messages are traced.
#[inline]
pub(crate) fn traced(
    core: &mut Core,
    channel: &mut Channel,
    tag: u64,
    multiple: bool,
    how: Settle,
    cx: &mut Context<'_>,
) -> Result<(), Fault> {
    if trace::is_on(core, cx) && core.half_settled.is_none() {
        trace::note_settled(core, channel.number, (tag, multiple, how), cx);
    }
    settle(core, channel, tag, multiple, how)
}

/// Settles one message, or all up to it, as many as fit the turn. Tag 0 with `multiple` means all there are.
fn settle(
    core: &mut Core,
    channel: &mut Channel,
    tag: u64,
    multiple: bool,
    how: Settle,
) -> Result<(), Fault> {
    let which = if multiple { through(core, channel, tag) } else { Which::One(tag) };
    let Some(taken) = take(core, channel, which, how) else { return Err(reply::unknown_tag(tag)) };
    if multiple {
        note_left(core, channel.number, which, taken, Some(how));
    }
    Ok(())
}

/// Settles what is left of a method for many: its channel goes.
pub(crate) fn settle_rest(core: &mut Core, channel: &mut Channel) {
    let half = core.half_settled.take_if(|half| half.channel == channel.number);
    if let Some(HalfSettled { through, how: Some(how), .. }) = half.as_deref() {
        take(core, channel, Which::Through { tag: *through, max: usize::MAX }, *how);
    }
}

/// All up to a tag, or all that were there when the method came; as many as fit the turn.
fn through(core: &Core, channel: &Channel, tag: u64) -> Which {
    let through = match (tag, &core.half_settled) {
        (0, Some(half)) => half.through,
        (0, None) => match channel.unacked.newest() {
            Some(newest) => newest.tag,
            None => return Which::Nothing,
        },
        (tag, _) => tag,
    };
    let max = core.settings.turn_spent_max.saturating_sub(core.turn_spent).max(1);
    Which::Through { tag: through, max }
}

/// Takes messages of a channel, and has them settled. None if the tag is not there.
#[inline]
fn take(core: &mut Core, channel: &mut Channel, which: Which, how: Settle) -> Option<Settled> {
    let Channel { unacked, mode, limit, totals, taken, .. } = channel;
    if let Mode::Tx(tx) = mode {
        // Remembered until the commit, which tells the shards and the channel's limit.
        return tx.settle(unacked, which, how);
    }
    let mut consumed = 0;
    let acks = u64::from(matches!(how, Settle::Ack));
    let done = unacked.take_some(which, |entry| {
        consumed += u32::from(entry_is_consumed(&entry));
        taken.of(entry.queue).ack += acks;
        core.settle(&entry, how);
    })?;
    match how {
        Settle::Ack => totals.taken.ack += done.count as u64,
        Settle::Reject | Settle::Requeue { .. } => totals.reject += done.count as u64,
    }
    if consumed > 0 {
        let wakes = limit.settled(consumed);
        core.places_changed(channel.number, wakes);
    }
    Some(done)
}

/// Counts what a method for many took of the turn, and notes that its frame is to be given again if some is left.
fn note_left(core: &mut Core, channel: u16, which: Which, taken: Settled, how: Option<Settle>) {
    core.turn_spent += taken.count;
    core.half_settled = match which {
        Which::Through { tag: through, .. } if taken.is_some_left => {
            core.turn_spent = core.settings.turn_spent_max;
            Some(Box::new(HalfSettled { channel, through, how }))
        }
        _ => None,
    };
}

/// Whether it counts towards the channel's limit.
pub(crate) fn entry_is_consumed(entry: &UnackedDelivery) -> bool {
    entry.slot != UnackedDelivery::GOT
}

/// How `basic.nack` and `basic.reject` settle.
pub(crate) fn refusal(requeue: bool) -> Settle {
    if requeue { Settle::Requeue { counts: true } } else { Settle::Reject }
}

/// `basic.recover` and `basic.recover-async`, as many as fit the turn. Whether these are the first ones.
pub(crate) fn recover(
    core: &mut Core,
    channel: &mut Channel,
    requeue: bool,
) -> Result<bool, Fault> {
    if !requeue {
        return Err(reply::recover_without_requeue());
    }
    let (which, is_begun) = (through(core, channel, 0), core.half_settled.is_some());
    let mut consumed = 0;
    let taken = channel.unacked.take_some(which, |entry| {
        consumed += u32::from(entry_is_consumed(&entry));
        core.settle(&entry, Settle::Requeue { counts: true });
    });
    note_left(core, channel.number, which, taken.unwrap_or_default(), None);
    if consumed > 0 {
        let wakes = channel.limit.settled(consumed);
        core.places_changed(channel.number, wakes);
    }
    Ok(!is_begun)
}

/// `basic.qos`. Without `global` it holds for consumers to come and, as in RabbitMQ, ends a global limit.
pub(crate) fn qos(
    core: &mut Core,
    channel: &mut Channel,
    method: &basic::Qos,
    cx: &mut Context<'_>,
) -> Result<(), Fault> {
    if method.prefetch_size != 0 {
        return Err(reply::prefetch_size(method.prefetch_size));
    }
    if method.global {
        channel.global_prefetch = method.prefetch_count;
    } else {
        channel.prefetch = method.prefetch_count;
        channel.global_prefetch = 0;
    }
    let wakes = channel.limit.set_limit(u32::from(channel.global_prefetch));
    core.places_changed(channel.number, wakes);
    cx.out.put_method(channel.number, &basic::QosOk);
    Ok(())
}
