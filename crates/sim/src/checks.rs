//! What must hold in the broker after every turn, and what its turns give out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use leveret_amqp::content::RawProperties;
use leveret_broker::bodies::BodyRoom;
use leveret_broker::message::{ConnectionId, Delivery, Reply, ToSession};
use leveret_broker::record::View;
use leveret_log::Log as _;
use leveret_queue::{Overflow, Time};
use leveret_session::Settings;
use leveret_topology::{ConfirmOn, QueueId};

use crate::disk::Store;
use crate::mover::{MOVER, MoverAnswer};
use crate::node::{Actor, Node};
use crate::policies::OPERATOR;
use crate::random::Random;
use crate::shadow::{Check, Shadow};

/// Bytes a session may have waiting for its socket before it is given nothing more: small, so that the
/// limit is reached all the time.
const OUTPUT_BYTES_MAX: u64 = 16 << 10;

/// What one connection's output may exceed its limit by: one message, the answers to what it sent in
/// one read, and what other shards gave it at the same moment.
const OUTPUT_SLACK: u64 = 128 << 10;

/// Bytes of files that a log without messages may have: some segments of the largest size they are
/// given here.
const DISK_BYTES_MAX: u64 = 192 << 10;

/// The watermark that the room for bodies goes by: half of it is enough for those of all channels of a client.
const BODIES_WATERMARK: u64 = 8 * (56 << 10);

/// Bytes of bodies that need no room.
const BODIES_FREE: u64 = 300;

/// How long a client may keep a delivery.
pub(crate) const ACK_TIMEOUT_MS: u64 = 20_000;

/// The names of queues, those too that are gone while their messages are on the way.
pub(crate) type Names = BTreeMap<QueueId, String>;

/// What is known of a node besides what it says itself.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Over all its lives.
    pub(crate) names: Names,
    /// What came back at its start, by shard.
    /// Less what was counted before, of a shard that lost the end of its log: wraps around.
    pub(crate) restored: Vec<u64>,
    /// The watermarks of each shard's log after its last turn.
    pub(crate) marks: Vec<[u64; 3]>,
    /// By shard, the queues that were paused after its last turn and had nothing on its way.
    pub(crate) paused: BTreeMap<usize, BTreeSet<QueueId>>,
    /// What the mover is told, in order; for him to take.
    pub(crate) mover_told: Vec<MoverAnswer>,
    /// Whether what he asked for was done, in order; for the operator to take.
    pub(crate) operator_told: Vec<bool>,
}

/// What sessions of simulations are told. A turn of half of them takes little, so that methods for many are done in pieces.
pub(crate) fn settings(seed: u64) -> Settings {
    let usual = Settings::default();
    let turn_spent_max = match seed >> 8 & 1 {
        0 => 1 + (seed >> 9 & 7) as usize,
        _ => usual.turn_spent_max,
    };
    // So little that large bodies wait for each other.
    let bodies = Arc::new(BodyRoom::new(BODIES_FREE));
    bodies.set_watermark(BODIES_WATERMARK);
    Settings {
        bodies,
        output_bytes_max: OUTPUT_BYTES_MAX,
        consumer_timeout_ms: Some(ACK_TIMEOUT_MS),
        embed_bytes_below: 40,
        turn_spent_max,
        ..usual
    }
}

/// One turn over some of what an actor finds, checked.
pub(crate) fn turn(
    node: &mut Node<Store>,
    actor: Actor,
    now: Time,
    random: &mut Random,
    watch: &mut Watch,
    shadow: &mut Shadow,
) -> Check {
    if let Actor::Connection(id) = actor {
        // The gauge bounds this together with the output.
        let coming = node.coming(id) as u64;
        if coming > OUTPUT_BYTES_MAX + OUTPUT_SLACK {
            return Err(format!("{coming} bytes wait for one session, {OUTPUT_BYTES_MAX} may"));
        }
    }
    node.turn(actor, now, |all| random.part(all));
    if actor == Actor::Meta {
        operator_is_obeyed(node, watch, shadow)?;
    }
    if let Actor::Shard(index) = actor {
        shard_is_sound(node, index, watch)?;
        paused_give_nothing(node, index, watch)?;
        for (_, letter) in node.outbox().sessions.iter().filter(|(to, _)| *to == MOVER) {
            let ToSession::Reply { reply, .. } = letter else { continue };
            if let Reply::Looked(page) = reply {
                let records = page.messages.iter().filter_map(|one| one.record.as_ref());
                shadow.looked_at.extend(records.filter_map(message_id));
            }
            watch.mover_told.push(MoverAnswer::of(reply)?);
        }
        given_out(node, &mut watch.names, shadow)?;
        only_what_is_agreed_upon(node, index)?;
    }
    if node.longest_output() as u64 > OUTPUT_BYTES_MAX + OUTPUT_SLACK {
        let longest = node.longest_output();
        return Err(format!("{longest} bytes wait for one socket, {OUTPUT_BYTES_MAX} may"));
    }
    node.post();
    Ok(())
}

/// The operator makes no mistakes. Notes what he is told.
fn operator_is_obeyed(node: &Node<Store>, watch: &mut Watch, shadow: &Shadow) -> Check {
    for (_, letter) in node.outbox().sessions.iter().filter(|(to, _)| *to == OPERATOR) {
        let is_done = matches!(letter, ToSession::Reply { reply: Reply::Done, .. });
        if !is_done && !shadow.has_trouble {
            return Err(format!("the operator is told: {letter:?}"));
        }
        watch.operator_told.push(is_done);
    }
    Ok(())
}

/// Everything is empty: nothing may be left in logs, nor memory be held for it.
pub(crate) fn is_drained(node: &Node<Store>, watch: &Watch, queues: usize) -> Check {
    node.is_followed()?;
    let left = node.topology().queue_count();
    if left != queues {
        return Err(format!("{left} queues are left, {queues} stand"));
    }
    let hosted = node.shards().map(|shard| shard.queues().count()).sum::<usize>();
    if hosted > queues {
        return Err(format!("shards have {hosted} queues, {queues} have a name"));
    }
    for (index, shard) in node.shards().enumerate() {
        for (id, queue) in shard.queues() {
            let Some(named) = node.topology().queue_by_id(id) else { continue };
            let (is, wanted) = (queue.options(), named.options());
            if *is != wanted {
                return Err(format!("{} has {is:?}, it is to have {wanted:?}", named.name));
            }
        }
        let counters = shard.counters();
        let out = counters.acked + counters.dead_lettered + counters.dropped + counters.moved;
        let restored = watch.restored.get(index).copied().unwrap_or_default();
        let taken = counters.enqueued + counters.refused - counters.unstored;
        if taken.wrapping_add(restored) != out {
            return Err(format!("{restored} restored, {counters:?}, and nothing is left"));
        }
        let usage = shard.usage();
        if usage.disk_bytes > DISK_BYTES_MAX {
            return Err(format!("all queues are empty, and the disk has {usage:?}"));
        }
        // What is noted of streams stays until a newer note comes. Bytes are estimated there.
        let notes = shard.stream_records();
        let is_empty = usage.records == notes && (notes > 0 || usage.live_bytes == 0);
        if !is_empty || usage.held_bytes > 1 << 20 {
            return Err(format!("all queues are empty, and the log holds {usage:?}"));
        }
    }
    Ok(())
}

/// What a shard's turn gave out, and to whom.
fn deliveries(node: &Node<Store>) -> impl Iterator<Item = (ConnectionId, &Delivery)> {
    node.outbox().sessions.iter().flat_map(|(connection, letter)| {
        let deliveries = match letter {
            ToSession::Deliver(deliveries) => &deliveries[..],
            ToSession::Reply { reply: Reply::Got { delivery, .. }, .. } => {
                std::slice::from_ref(delivery)
            }
            _ => &[],
        };
        deliveries.iter().map(|delivery| (*connection, delivery))
    })
}

/// Tells the model what a shard's turn gave out.
fn given_out(node: &Node<Store>, names: &mut Names, shadow: &mut Shadow) -> Check {
    for (connection, delivery) in deliveries(node) {
        let Delivery { queue, unacked, redelivered, ref record, .. } = *delivery;
        if let Some(queue) = node.topology().queue_by_id(queue) {
            names.entry(delivery.queue).or_insert_with(|| queue.name.to_string());
        }
        let index = names.get(&queue).and_then(|name| shadow.queue(name));
        let index = index.ok_or_else(|| format!("queue {queue:?} has no name"))?;
        let message = message_id(record).ok_or("a record without our message-id")?;
        if redelivered && node.is_held(queue, delivery.offset) {
            let name = shadow.name(index);
            return Err(format!("message {message} of {name} is given out, and somebody has it"));
        }
        shadow.given(connection, message, index, redelivered, unacked.is_none())?;
    }
    shadow.turn_is_over()
}

/// Nobody, and no operator either, gets what may be lost with the node that appended it.
fn only_what_is_agreed_upon(node: &Node<Store>, index: usize) -> Check {
    let Some(readable) = node.shards().nth(index).map(|shard| shard.log().readable()) else {
        return Ok(());
    };
    let looked_at = node.outbox().sessions.iter().flat_map(|(_, letter)| match letter {
        ToSession::Reply { reply: Reply::Looked(page), .. } => &page.messages[..],
        _ => &[],
    });
    let looked_at = looked_at.filter(|one| one.record.is_some()).map(|one| one.look.offset);
    let given = deliveries(node).map(|(_, delivery)| delivery.offset);
    match given.chain(looked_at).find(|at| at.get() >= readable.get()) {
        Some(at) => {
            Err(format!("shard {index} gives out {at:?}, agreed upon is what is below {readable}"))
        }
        None => Ok(()),
    }
}

/// A queue that was paused before a shard's turn and is after it gave nothing out in it.
fn paused_give_nothing(node: &Node<Store>, index: usize, watch: &mut Watch) -> Check {
    let queues = node.shards().nth(index).into_iter().flat_map(|shard| shard.queues());
    let silent = queues.filter(|(_, it)| it.options().paused && it.next_early().is_none());
    let silent: BTreeSet<QueueId> = silent.map(|(id, _)| id).collect();
    let before = watch.paused.entry(index).or_default();
    let mut given = deliveries(node).map(|(_, delivery)| delivery.queue);
    if let Some(id) = given.find(|id| before.contains(id) && silent.contains(id)) {
        return Err(format!("queue {id:?} is paused, and gives"));
    }
    *before = silent;
    Ok(())
}

/// Units of the largest things that are done in one go here.
const PIECE_MAX: u64 = 2048;

/// What must hold in a shard after every turn.
fn shard_is_sound(node: &Node<Store>, index: usize, watch: &mut Watch) -> Check {
    let Some(shard) = node.shards().nth(index) else { return Ok(()) };
    let (limits, spent) = (shard.limits(), shard.spent());
    if spent > 2 * limits.turn + PIECE_MAX {
        return Err(format!("a turn of shard {index} cost {spent}, of {limits:?}"));
    }
    let (mut here, mut held) = (shard.parked(), 0);
    for (id, queue) in shard.queues() {
        let counts = queue.counts();
        here += counts.ready + counts.unacked + counts.early;
        held += counts.held;
        let options = queue.options();
        let is_long = options.max_length.is_some_and(|max| counts.ready > max)
            || options.max_length_bytes.is_some_and(|max| counts.ready_bytes > max);
        // What a later turn is to look at may be over its length until then: whoever asks has it looked at first. So may one
        // whose dead letters wait for the disk.
        let is_later = node.has_more(index) || shard.parked() > 0;
        if is_long && options.overflow == Overflow::DropHead && !is_later {
            return Err(format!("queue {id:?} has {counts:?}, and {options:?}"));
        }
        let active = queue.consumers().filter(|consumer| consumer.active).count();
        if counts.consumers > 1 && queue.consumers().any(|consumer| consumer.exclusive) {
            return Err(format!("queue {id:?} has an exclusive consumer, and {counts:?}"));
        }
        if queue.options().single_active && active > 1 {
            return Err(format!("{active} active consumers on queue {id:?}"));
        }
        for consumer in queue.consumers() {
            let limit = u32::from(consumer.prefetch);
            if limit > 0 && consumer.unacked > limit && !consumer.no_ack {
                return Err(format!("{} unacked, prefetch {limit}", consumer.unacked));
            }
        }
    }
    let usage = shard.usage();
    let messages = here + held + shard.departing();
    let messages = messages + shard.transaction_records() + shard.stream_records();
    if usage.records > messages + usage.lent {
        let records = usage.records;
        return Err(format!("shard {index} holds {records} records for {messages} messages"));
    }
    let counters = shard.counters();
    let out = counters.acked + counters.dead_lettered + counters.dropped + counters.moved;
    // What a full queue refuses leaves like any other, without having been in it. A dead letter that
    // is held until it is safe has left already.
    let restored = watch.restored.get(index).copied().unwrap_or_default();
    // What the log did not take was never here.
    let came = (counters.enqueued + counters.refused - counters.unstored).wrapping_add(restored);
    let lends = shard.queues().any(|(id, _)| {
        let queue = node.topology().queue_by_id(id);
        queue.is_some_and(|queue| queue.confirm_options().on == ConfirmOn::AckLean)
    });
    // What is lent is nowhere until it is acked.
    if came != here + out && !(lends && came > here + out) {
        return Err(format!(
            "shard {index}: {here} here, {restored} restored, {counters:?} do not add up"
        ));
    }
    let log = shard.log();
    let marks = [log.durable().get(), log.readable().get(), log.end().get()];
    let Some(before) = watch.marks.get_mut(index) else { return Ok(()) };
    let has_gone_back = marks.iter().zip(&*before).any(|(now, before)| now < before);
    if !marks.is_sorted() || has_gone_back {
        return Err(format!("watermarks of shard {index}: {marks:?} after {before:?}"));
    }
    *before = marks;
    Ok(())
}

/// The message of the simulation that a record carries.
fn message_id(record: &Bytes) -> Option<usize> {
    let view = View::of(record)?;
    let properties = RawProperties::new(view.properties).to_owned().ok()?;
    properties.message_id?.parse().ok()
}
