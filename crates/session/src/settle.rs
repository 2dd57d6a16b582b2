//! Hot path. `basic.ack`, `basic.nack`, `basic.reject`, `basic.recover`, `basic.qos`.
//!
//! Budget: no allocation per message once warm (the batch's own vector apart).

use leveret_amqp::method::basic;
use leveret_broker::message::Settle;

use crate::channel::{Channel, Mode};
use crate::core::{Context, Core};
use crate::reply::{self, Fault};
use crate::trace;
use crate::unacked::{Entry, GOT};

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
    if trace::is_on(core, cx) {
        trace::note_settled(core, channel.number, (tag, multiple, how), cx);
    }
    settle(core, channel, tag, multiple, how)
}

/// Settles one message, or all up to it. Tag 0 with `multiple` means all there are.
pub(crate) fn settle(
    core: &mut Core,
    channel: &mut Channel,
    tag: u64,
    multiple: bool,
    how: Settle,
) -> Result<(), Fault> {
    let Channel { unacked, mode, limit, totals, taken, .. } = channel;
    if let Mode::Tx(tx) = mode {
        // Remembered until the commit, which tells the shards and the channel's limit.
        return tx.settle(unacked, tag, multiple, how);
    }
    let (mut consumed, mut settled) = (0, 0);
    let acks = u64::from(matches!(how, Settle::Ack));
    let mut each = |entry: Entry| {
        consumed += u32::from(entry_is_consumed(&entry));
        settled += 1;
        taken.of(entry.queue).ack += acks;
        core.settle(&entry, how);
    };
    if !multiple {
        each(unacked.take(tag).ok_or_else(|| reply::unknown_tag(tag))?);
    } else if tag == 0 {
        unacked.take_all(each);
    } else if !unacked.take_through(tag, each) {
        return Err(reply::unknown_tag(tag));
    }
    match how {
        Settle::Ack => totals.taken.ack += settled,
        Settle::Reject | Settle::Requeue { .. } => totals.reject += settled,
    }
    if consumed > 0 && limit.settled(consumed) {
        core.resumes = true;
    }
    Ok(())
}

/// Whether it counts towards the channel's limit.
pub(crate) fn entry_is_consumed(entry: &Entry) -> bool {
    entry.slot != GOT
}

/// How `basic.nack` and `basic.reject` settle.
pub(crate) fn refusal(requeue: bool) -> Settle {
    if requeue { Settle::Requeue { counts: true } } else { Settle::Reject }
}

/// `basic.recover` and `basic.recover-async`.
pub(crate) fn recover(core: &mut Core, channel: &mut Channel, requeue: bool) -> Result<(), Fault> {
    if !requeue {
        return Err(reply::recover_without_requeue());
    }
    let mut consumed = 0;
    channel.unacked.take_all(|entry| {
        consumed += u32::from(entry_is_consumed(&entry));
        core.settle(&entry, Settle::Requeue { counts: true });
    });
    if consumed > 0 && channel.limit.settled(consumed) {
        core.resumes = true;
    }
    Ok(())
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
    if channel.limit.set_limit(u32::from(channel.global_prefetch)) {
        core.resumes = true;
    }
    cx.out.put_method(channel.number, &basic::QosOk);
    Ok(())
}
