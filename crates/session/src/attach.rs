//! A shard in a new term is told what the connection has there.

use std::sync::Arc;

use leveret_broker::message::{
    AttachedConsumer, Attachment, Claim, ConsumerSlot, ToShard, UnackedDelivery,
};
use leveret_queue::Offset;
use leveret_topology::GroupId;

use crate::channel::{Channels, Mode};
use crate::core::{Context, Core};
use crate::waiting::{Awaited, WaitingCommand};

/// Writes what there is: behind all settlements, as these are of what is not claimed any more. What is not among the records from before
/// the term was in no batch, and lost with the leader: it is claimed by nobody.
#[cold]
pub(crate) fn attach(
    core: &mut Core,
    channels: &mut Channels,
    (group, term, begins_at): (GroupId, u64, Offset),
    cx: &mut Context<'_>,
) {
    let going = match &core.waiting {
        Some(WaitingCommand { what: Awaited::Cancel { slot, .. }, .. }) => Some(*slot),
        _ => None,
    };
    let mut consumers = Vec::new();
    for (slot, one) in core.consumers.iter().filter(|(_, one)| one.home == group) {
        // One that has no number was not answered, and is asked for again.
        let (Some(number), Some(channel)) = (one.number, channels.get(one.channel)) else {
            continue;
        };
        consumers.push(AttachedConsumer {
            number,
            channel: one.channel,
            queue: one.queue,
            slot,
            tag: one.tag.clone(),
            no_ack: one.no_ack,
            exclusive: one.exclusive,
            priority: one.priority,
            prefetch: one.prefetch,
            is_going: going == Some(slot),
            gate: core.gate(channel),
            arguments: Arc::clone(&one.arguments),
        });
    }
    let mut claims = Vec::new();
    for channel in channels.iter_mut() {
        channel.unacked.lose(group, begins_at);
        // What is settled in a transaction that is not committed may be unacked again.
        let settled = match &mut channel.mode {
            Mode::Tx(tx) => {
                tx.lose(group, begins_at);
                tx.settled()
            }
            _ => &[],
        };
        let held = channel.unacked.iter().chain(settled);
        claims.extend(held.filter(|it| it.home == group).map(claim));
    }
    let attachment = Attachment { connection: core.id, term, behind: [0; 2], consumers, claims };
    if let Some(allowances) = &mut core.allowances {
        allowances.begin_term(group);
    }
    core.send_to(group, ToShard::Attach(Box::new(attachment)), cx);
    // Room that the shard gave back may be what others wait for.
    core.resumes = true;
}

fn claim(of: &UnackedDelivery) -> Claim {
    let slot = (of.slot != UnackedDelivery::GOT).then_some(ConsumerSlot(of.slot));
    Claim { queue: of.queue, offset: of.offset, slot }
}
