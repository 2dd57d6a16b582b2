//! Hot path. Messages on their way to a shard and to a consumer, and what becomes of them.
//!
//! ```text
//! message     varint bytes of the names | varint of the properties | varint of the body | names | properties | body
//! publish     flags: 1 persistent, 2 it expires, 4 the targets of the one before, 8 a priority |
//!             varint channel | varint confirm | [list of varint queues] | [varint expiration in ms] | [u8 priority] | message
//! settlement  u8 how: 0 ack, 1 reject, 2 requeue, 3 requeue that counts; 4 more: of the queue of the one before |
//!             [varint queue] | step of the offset | varint hint
//! delivery    flags: 1 redelivered, 2 to be acked, 4 came back before, 8 of queue and home of the one before |
//!             varint slot | [varint queue | varint home] | step of the offset | [varint hint] |
//!             [varint how often it came back] | varint bytes of the record | record
//! ```
//!
//! Lists are a varint count and the entries. Their first entry refers to none before it, and steps begin with 0.

use bytes::Bytes;
use leveret_amqp::content::RawProperties;
use leveret_broker::message::{
    Delivery, GivenBack, Message, Publish, Settle, Settlement, Span, Targets,
};
use leveret_broker::record::{View, are_names};
use leveret_queue::{Offset, UnackedId};
use leveret_topology::{GroupId, QueueId};

use super::LetterError;
use super::field::{Field, Reader, put_varint, step, stepped};
use crate::payload::Writer;

const PERSISTENT: u8 = 1;
const EXPIRES: u8 = 2;
const SAME_TARGETS: u8 = 4;
const PRIORITY: u8 = 8;

const REDELIVERED: u8 = 1;
const TO_BE_ACKED: u8 = 2;
const CAME_BACK: u8 = 4;
const SAME_QUEUE: u8 = 8;

const ACK: u8 = 0;
const REJECT: u8 = 1;
const REQUEUE: u8 = 2;
const REQUEUE_THAT_COUNTS: u8 = 3;
/// Of the queue of the one before.
const OF_SAME: u8 = 4;

/// Lists up to this length are compared, longer ones are alike if they are one.
const COMPARED: usize = 8;

impl Field for Message {
    /// Two empty names, and the flags of no property.
    const MIN: usize = 7;

    fn put(&self, to: &mut Writer) {
        let (names, properties) = (self.names(), self.properties());
        put_varint(to, names.len() as u64);
        put_varint(to, properties.len() as u64);
        put_varint(to, self.body_len());
        to.put(names);
        to.put(properties);
        to.share(&self.first_piece());
        self.more().iter().for_each(|piece| to.share(piece));
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        let (names, properties, body): (usize, usize, u32) =
            (from.get()?, from.get()?, from.get()?);
        let front = names.checked_add(properties).ok_or(LetterError::Truncated)?;
        let all = front.checked_add(body as usize).ok_or(LetterError::Truncated)?;
        // The body's beginning comes with the names, where it lies behind them; of what is in several pieces the names are
        // copied, and never the body.
        let here = from.in_piece().min(all).max(front);
        let wire = from.take(if from.in_piece() < front { front } else { here })?;
        let more = from.pieces(all.saturating_sub(wire.len()))?;
        if !are_names(wire.get(..names).unwrap_or_default()) {
            return Err(LetterError::Message("names"));
        }
        let of_wire = wire.get(names..front).unwrap_or_default();
        if RawProperties::new(of_wire).peek().is_err() {
            return Err(LetterError::Message("properties"));
        }
        let (names, properties, body) =
            (Span::new(0, names), Span::new(names, front), Span::new(front, wire.len()));
        Ok(Self::new(wire, names, properties, body, more))
    }
}

fn put_publish(publish: &Publish, before: Option<&Publish>, to: &mut Writer) {
    let Publish { channel, confirm, targets, persistent, priority, expiration_ms, message, .. } =
        publish;
    let is_same = before.is_some_and(|before| are_same(targets, &before.targets));
    let mut flags = if *persistent { PERSISTENT } else { 0 };
    flags |= if expiration_ms.is_some() { EXPIRES } else { 0 };
    flags |= if is_same { SAME_TARGETS } else { 0 };
    flags |= if *priority > 0 { PRIORITY } else { 0 };
    to.put(&[flags]);
    channel.put(to);
    confirm.put(to);
    if !is_same {
        super::field::put_list(targets, to);
    }
    if let Some(ms) = expiration_ms {
        ms.put(to);
    }
    if *priority > 0 {
        to.put(&[*priority]);
    }
    message.put(to);
}

fn are_same(targets: &Targets, others: &Targets) -> bool {
    let is_one = targets.as_ptr() == others.as_ptr() && targets.len() == others.len();
    is_one || targets.len() <= COMPARED && targets[..] == others[..]
}

/// A list of queues.
pub(super) fn get_targets(from: &mut Reader<'_>) -> Result<Targets, LetterError> {
    let count = from.count(QueueId::MIN)?;
    (0..count).map(|_| from.get::<QueueId>()).collect()
}

fn get_publish(from: &mut Reader<'_>, before: Option<&Publish>) -> Result<Publish, LetterError> {
    let flags = from.flags(PERSISTENT | EXPIRES | SAME_TARGETS | PRIORITY)?;
    let (channel, confirm) = (from.get()?, from.get()?);
    let targets = match flags & SAME_TARGETS {
        0 => get_targets(from)?,
        _ => before.ok_or(LetterError::NoneBefore)?.targets.clone(),
    };
    let expiration_ms = if flags & EXPIRES != 0 { Some(from.get()?) } else { None };
    let priority = if flags & PRIORITY != 0 { from.byte()? } else { 0 };
    Ok(Publish {
        channel,
        confirm,
        targets,
        persistent: flags & PERSISTENT != 0,
        priority,
        expiration_ms,
        message: from.get()?,
        shared: None,
    })
}

impl Field for Publish {
    /// Flags, channel, confirm, no targets.
    const MIN: usize = 3 + Message::MIN;

    fn put(&self, to: &mut Writer) {
        put_publish(self, None, to);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        get_publish(from, None)
    }
}

impl Field for Vec<Publish> {
    fn put(&self, to: &mut Writer) {
        put_varint(to, self.len() as u64);
        let mut before = None;
        for publish in self {
            put_publish(publish, before, to);
            before = Some(publish);
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        let count = from.count(Publish::MIN)?;
        let mut list = Self::with_capacity(count);
        for _ in 0..count {
            let publish = get_publish(from, list.last())?;
            list.push(publish);
        }
        Ok(list)
    }
}

/// What an entry of a list may refer to.
#[derive(Clone, Copy, Default)]
struct Before {
    queue: Option<(QueueId, Option<GroupId>)>,
    offset: u64,
}

fn put_settlement(settlement: &Settlement, before: &mut Before, to: &mut Writer) {
    let Settlement { queue, unacked, offset, how } = *settlement;
    let is_same = before.queue == Some((queue, None));
    let how = match how {
        Settle::Ack => ACK,
        Settle::Reject => REJECT,
        Settle::Requeue { counts: false } => REQUEUE,
        Settle::Requeue { counts: true } => REQUEUE_THAT_COUNTS,
    };
    to.put(&[how | if is_same { OF_SAME } else { 0 }]);
    if !is_same {
        queue.put(to);
    }
    put_varint(to, step(before.offset, offset.get()));
    unacked.put(to);
    *before = Before { queue: Some((queue, None)), offset: offset.get() };
}

fn get_settlement(from: &mut Reader<'_>, before: &mut Before) -> Result<Settlement, LetterError> {
    let how = from.flags(REQUEUE_THAT_COUNTS | OF_SAME)?;
    let queue = match before.queue {
        _ if how & OF_SAME == 0 => from.get()?,
        Some((queue, _)) => queue,
        None => return Err(LetterError::NoneBefore),
    };
    let how = match how & REQUEUE_THAT_COUNTS {
        ACK => Settle::Ack,
        REJECT => Settle::Reject,
        how => Settle::Requeue { counts: how == REQUEUE_THAT_COUNTS },
    };
    let offset = stepped(before.offset, from.varint()?);
    *before = Before { queue: Some((queue, None)), offset };
    Ok(Settlement { queue, unacked: from.get()?, offset: Offset::new(offset), how })
}

/// A list of what is written beside the one before, each of `min` bytes at least.
fn get_list<T>(
    from: &mut Reader<'_>,
    min: usize,
    get: fn(&mut Reader<'_>, &mut Before) -> Result<T, LetterError>,
) -> Result<Vec<T>, LetterError> {
    let count = from.count(min)?;
    let (mut list, mut before) = (Vec::with_capacity(count), Before::default());
    for _ in 0..count {
        list.push(get(from, &mut before)?);
    }
    Ok(list)
}

/// Bytes of a settlement at least.
const SETTLEMENT_MIN: usize = 3;

impl Field for Vec<Settlement> {
    fn put(&self, to: &mut Writer) {
        put_varint(to, self.len() as u64);
        let mut before = Before::default();
        self.iter().for_each(|settlement| put_settlement(settlement, &mut before, to));
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        get_list(from, SETTLEMENT_MIN, get_settlement)
    }
}

/// The settlements that it stands for in a group, as a list of them.
pub(super) fn put_given_back(given: &GivenBack, group: GroupId, to: &mut Writer) {
    let all = || given.of(group, 0, usize::MAX);
    put_varint(to, all().count() as u64);
    let mut before = Before::default();
    all().for_each(|settlement| put_settlement(&settlement, &mut before, to));
}

fn put_delivery(delivery: &Delivery, before: &mut Before, to: &mut Writer) {
    let Delivery { slot, queue, home, unacked, offset, redelivered, delivery_count, record } =
        delivery;
    let of = Some((*queue, Some(*home)));
    let is_same = before.queue == of;
    let mut flags = if *redelivered { REDELIVERED } else { 0 };
    flags |= if unacked.is_some() { TO_BE_ACKED } else { 0 };
    flags |= if *delivery_count > 0 { CAME_BACK } else { 0 };
    flags |= if is_same { SAME_QUEUE } else { 0 };
    to.put(&[flags]);
    slot.put(to);
    if !is_same {
        queue.put(to);
        home.put(to);
    }
    put_varint(to, step(before.offset, offset.get()));
    if let Some(unacked) = unacked {
        unacked.put(to);
    }
    if *delivery_count > 0 {
        delivery_count.put(to);
    }
    record.put(to);
    *before = Before { queue: of, offset: offset.get() };
}

fn get_delivery(from: &mut Reader<'_>, before: &mut Before) -> Result<Delivery, LetterError> {
    let flags = from.flags(REDELIVERED | TO_BE_ACKED | CAME_BACK | SAME_QUEUE)?;
    let slot = from.get()?;
    let (queue, home) = match before.queue {
        _ if flags & SAME_QUEUE == 0 => (from.get()?, from.get()?),
        Some((queue, Some(home))) => (queue, home),
        _ => return Err(LetterError::NoneBefore),
    };
    let offset = stepped(before.offset, from.varint()?);
    *before = Before { queue: Some((queue, Some(home))), offset };
    let unacked: Option<UnackedId> = match flags & TO_BE_ACKED {
        0 => None,
        _ => Some(from.get()?),
    };
    let delivery_count = if flags & CAME_BACK != 0 { from.get()? } else { 0 };
    let record: Bytes = from.get()?;
    // One that cannot be read is for the session to tell. Names would go to the client as they are.
    if View::of(&record).is_some_and(|view| !are_names(view.names)) {
        return Err(LetterError::Message("names"));
    }
    let (offset, redelivered) = (Offset::new(offset), flags & REDELIVERED != 0);
    Ok(Delivery { slot, queue, home, unacked, offset, redelivered, delivery_count, record })
}

/// Bytes of a delivery at least.
const DELIVERY_MIN: usize = 4;

impl Field for Delivery {
    const MIN: usize = DELIVERY_MIN;

    fn put(&self, to: &mut Writer) {
        put_delivery(self, &mut Before::default(), to);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        get_delivery(from, &mut Before::default())
    }
}

impl Field for Vec<Delivery> {
    fn put(&self, to: &mut Writer) {
        put_varint(to, self.len() as u64);
        let mut before = Before::default();
        self.iter().for_each(|delivery| put_delivery(delivery, &mut before, to));
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        get_list(from, DELIVERY_MIN, get_delivery)
    }
}
