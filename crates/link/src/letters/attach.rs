//! What a shard in a new term is told.
//!
//! ```text
//! attach     connection | varint term | varint behind which number of messages | varint of settlements | list of consumers | list of claims
//! consumer   varint number | varint channel | varint queue | varint slot | tag text | no_ack | exclusive | step priority from 0 |
//!            varint prefetch | is going | table
//! claim      varint queue | varint offset | option of varint slot
//! attached   varint node | varint start | varint term | varint last number of messages | varint last number of settlements
//! ```

use leveret_broker::message::{
    Attached, AttachedConsumer, Attachment, Claim, ConnectionId, ToShard,
};

use super::LetterError;
use super::field::{Field, Reader};
use super::streams::get_node;
use super::values::lists_of;
use crate::payload::Writer;

/// Bytes that a consumer has at least.
const CONSUMER_MIN: usize = 11;

lists_of! { Claim: 3 }

pub(super) fn put(attachment: &Attachment, to: &mut Writer) {
    let Attachment { connection, term, behind: [bodies, acks], consumers, claims } = attachment;
    connection.put(to);
    term.put(to);
    bodies.put(to);
    acks.put(to);
    (consumers.len() as u64).put(to);
    for consumer in consumers {
        let AttachedConsumer { number, channel, queue, slot, tag, no_ack, exclusive, .. } =
            consumer;
        let AttachedConsumer { priority, prefetch, is_going, gate: _, arguments, .. } = consumer;
        number.put(to);
        channel.put(to);
        queue.put(to);
        slot.put(to);
        tag.put(to);
        no_ack.put(to);
        exclusive.put(to);
        priority.put(to);
        prefetch.put(to);
        is_going.put(to);
        arguments.put(to);
    }
    claims.put(to);
}

/// Reads it: the shard has gates of its own for the channels.
pub(super) fn get(from: &mut Reader<'_>) -> Result<ToShard, LetterError> {
    let (connection, term) = (from.get::<ConnectionId>()?, from.get()?);
    let behind = [from.get()?, from.get()?];
    let count = from.count(CONSUMER_MIN)?;
    let mut consumers = Vec::with_capacity(count);
    for _ in 0..count {
        let (number, channel) = (from.get()?, from.get()?);
        consumers.push(AttachedConsumer {
            number,
            channel,
            queue: from.get()?,
            slot: from.get()?,
            tag: from.get()?,
            no_ack: from.get()?,
            exclusive: from.get()?,
            priority: from.get()?,
            prefetch: from.get()?,
            is_going: from.get()?,
            arguments: from.get()?,
            gate: None,
        });
    }
    let attachment = Attachment { connection, term, behind, consumers, claims: from.get()? };
    Ok(ToShard::Attach(Box::new(attachment)))
}

impl Field for Attached {
    const MIN: usize = 6;

    fn put(&self, to: &mut Writer) {
        let Self { node, start, term, last: [bodies, acks], undecided_from } = self;
        node.get().put(to);
        start.put(to);
        term.put(to);
        bodies.put(to);
        acks.put(to);
        undecided_from.put(to);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        let node = get_node(from)?;
        let (start, term) = (from.get()?, from.get()?);
        let last = [from.get()?, from.get()?];
        Ok(Self { node, start, term, last, undecided_from: from.get()? })
    }
}
