//! Numbered letters: streams from a node to a group, so that what changes the group's log is done once.
//!
//! A group of several members may lose the end of its log with its leader, and a link may lose what it carries. So a node
//! numbers such letters, keeps them until their numbers are agreed upon, and sends the rest again to whoever leads. A batch
//! of the log says in the *note* of a stream which of its letters it contains. A group of one gets no numbers.
//! See `docs/decisions/0061-letters-over-links.md`.
//!
//! ```text
//!   node:   [ 4 ][ 5 ][ 6 ][ 7 ]  kept              shard:  low 4, above it 6, of 7 the first two messages
//!                                  --- letters -->
//!                                  <-- low 3 is agreed upon: 1 to 3 are let go of
//! ```

use leveret_queue::Offset;
use leveret_topology::NodeId;
use smallvec::SmallVec;

use crate::message::{ChannelId, Publish, Targets, ToShard};

/// What a stream carries. The letters of one connection in one stream are done in their order; between the two nothing is
/// promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StreamClass {
    /// Messages.
    Bodies,
    /// Settlements.
    Acks,
}

impl StreamClass {
    /// Both, in the order in which numbers and places of a node's two streams are told.
    pub const BOTH: [Self; 2] = [Self::Bodies, Self::Acks];
}

/// A stream to one group: its numbers begin with 1 and have no gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId {
    /// Who numbers.
    pub node: NodeId,
    /// How often it was started before: a process that begins anew begins new streams.
    pub start: u32,
    /// What it carries.
    pub class: StreamClass,
}

/// Which letter of which stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    pub(crate) stream: StreamId,
    pub(crate) number: u64,
}

/// A letter with its number.
#[derive(Clone, Debug)]
pub struct Numbered {
    /// Of which stream.
    pub stream: StreamId,
    /// Its place there, from 1.
    pub number: u64,
    /// The term of the shard, as its sender knows it: what was sent to an earlier one is not taken. It comes again, if it is to.
    pub term: u64,
    /// The sender has heard of each message of the letters below whether it was stored, or refused, or waits for a consumer: in the
    /// log, or for good outside of it.
    pub heard_below: u64,
    /// Of no transaction, and of no part of one, in a letter below the sender waits for an answer.
    pub undecided_from: u64,
    /// The shard of an earlier term may have had it, too.
    pub is_again: bool,
    /// `Publish`, `Settle`, `GiveBack`, `Commit` or `Prepare`; `Ask` if the shard is known to have the letter.
    pub letter: ToShard,
}

/// A message of a letter that is agreed upon, whose verdict is awaited: its node asks each new shard of the group for it.
#[derive(Clone, Debug)]
pub struct AskedMessage {
    /// Its place in the letter, from 0.
    pub place: u32,
    /// Where its publisher is told.
    pub channel: ChannelId,
    /// Its number there.
    pub confirm: u64,
    /// What is known of it.
    pub whereabouts: Whereabouts,
}

/// Where a message is that has no verdict, as its node knows it.
#[derive(Clone, Debug)]
pub enum Whereabouts {
    /// In the memory of the shard of before, if it waits for a consumer. Then it is to be taken again.
    Memory(Publish),
    /// It waits for consumers of these queues, and is in the log.
    Log(Targets, Offset),
    /// It waits for a consumer, and is in no log: with the shard of before it is gone.
    Nowhere,
}

/// What a shard tells the node of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamNews {
    /// Which.
    pub stream: StreamId,
    /// Grows whenever the shard is filled anew: what came before may have been lost with the end of its log.
    pub term: u64,
    /// What is new.
    pub what: StreamEvent,
}

/// See [`StreamNews`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEvent {
    /// What is agreed upon.
    Agreed {
        /// All letters up to this number are done, and that is.
        low: u64,
        /// Of all messages of the letters up to this number that came in this term a verdict was told before this, or that
        /// they [wait](StreamEvent::Waits).
        told: u64,
    },
    /// A letter came before this one, which is missing: all from here on are to come again, in order.
    Lacks(u64),
    /// The messages `first..=last` of a letter wait for a consumer.
    Waits {
        /// Which letter.
        number: u64,
        /// From 0.
        first: u32,
        /// The last one.
        last: u32,
        /// Where they are in the log, one behind the other, and that is agreed upon. None if they are not to be there: nobody
        /// needs to keep them for the shard.
        at: Option<Offset>,
    },
}

/// How far a shard has taken a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPlace {
    /// As in [`StreamNews`].
    pub term: u64,
    /// The number that it takes next.
    pub next: u64,
    /// All up to this one are done, and that is agreed upon, as far as the shard has said so in this term.
    pub agreed: u64,
}

/// Something that a note says of a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NoteItem {
    /// The letters `first..=last`, above the low number, are done.
    Done { first: u64, last: u64 },
    /// The first messages, or settlements, of a letter are done.
    Part { number: u64, count: u32 },
    /// Messages `first..=last` of a letter were refused.
    Refused { number: u64, first: u32, last: u32 },
    /// All messages of the letters `first..=last` were.
    AllRefused { first: u64, last: u64 },
    /// The parts of transactions that the letters `first..=last` brought were undone.
    Undone { first: u64, last: u64 },
    /// Messages `first..=last` of a letter were taken in, and that does not confirm them: a consumer's ack would.
    Waits { number: u64, first: u32, last: u32 },
    /// That holds for all messages of the letters `first..=last`.
    AllWait { first: u64, last: u64 },
    /// Of those that wait, messages `first..=last` of a letter are in the log, one behind the other from `at` on.
    InLog { number: u64, first: u32, last: u32, at: u64 },
}

impl NoteItem {
    /// How many items of the usual length it is as long as.
    pub(crate) fn len(&self) -> usize {
        if matches!(self, Self::InLog { .. }) { 2 } else { 1 }
    }
}

/// What a record of a note is to those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PieceRole {
    /// It begins a note that says all anew.
    Whole,
    /// It goes on with the note of the record before.
    GoesOn,
    /// It begins a note that adds to what the notes before it say.
    Adds,
}

/// A record of a shard's log that is no message: what the batches up to this one contain of a stream. A note that is longer goes
/// on in the records that follow.
///
/// ```text
///  0     1      2   3      4      8       12     20
///  | kind| class| 0 | role | node | start | low  | items of 16 bytes
///                                                    done:        first, last
///                                                    in log:      1 << 61 | number, first, last; 0, at
///                                                    part:        2 << 61 | number, count
///                                                    undone:      3 << 61 | first, last
///                                                    refused:     4 << 61 | number, first, last
///                                                    waits:       5 << 61 | number, first, last
///                                                    all refused: 6 << 61 | first, last
///                                                    all wait:    7 << 61 | first, last
/// ```
///
/// `role` is 0 where a whole note begins, 1 in a record that goes on with the one before, 2 where a note begins that adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NotePiece {
    pub(crate) stream: StreamId,
    pub(crate) role: PieceRole,
    pub(crate) low: u64,
    pub(crate) items: NoteItems,
}

/// Of one record: as many as it has room for.
pub(crate) type NoteItems = SmallVec<[NoteItem; NOTE_ITEMS]>;

/// The head of a record.
pub(crate) type NoteHead = SmallVec<[u8; leveret_log::HEAD_MAX]>;

/// The first byte; see [`transaction`](crate::transaction) for others.
const STREAM: u8 = 0x23;
const NOTE_HEAD: usize = 20;
const ITEM: usize = 16;

/// As many as the head of a record has room for.
pub(crate) const NOTE_ITEMS: usize = (leveret_log::HEAD_MAX - NOTE_HEAD) / ITEM;

/// Items in pieces that fit a record each.
pub(crate) fn pieces_of(items: &[NoteItem]) -> Vec<&[NoteItem]> {
    let (mut pieces, mut rest) = (Vec::new(), items);
    while !rest.is_empty() {
        let lens = rest.iter().scan(0, |sum, item| {
            *sum += item.len();
            Some(*sum)
        });
        let count = lens.take_while(|sum| *sum <= NOTE_ITEMS).count().max(1);
        let (piece, others) = rest.split_at(count);
        pieces.push(piece);
        rest = others;
    }
    pieces
}

const KIND_SHIFT: u32 = 61;
const NUMBER_MAX: u64 = (1 << KIND_SHIFT) - 1;

impl NotePiece {
    pub(crate) fn encode(&self) -> NoteHead {
        let class = match self.stream.class {
            StreamClass::Bodies => 0,
            StreamClass::Acks => 1,
        };
        let role = match self.role {
            PieceRole::Whole => 0,
            PieceRole::GoesOn => 1,
            PieceRole::Adds => 2,
        };
        let mut out = NoteHead::from_slice(&[STREAM, class, 0, role]);
        out.extend_from_slice(&self.stream.node.get().to_le_bytes());
        out.extend_from_slice(&self.stream.start.to_le_bytes());
        out.extend_from_slice(&self.low.to_le_bytes());
        for item in &self.items {
            let run = |first: u32, last: u32| u64::from(first) | u64::from(last) << 32;
            let mut more = None;
            let (kind, number, rest) = match *item {
                NoteItem::Done { first, last } => (0, first, last),
                NoteItem::InLog { number, first, last, at } => {
                    more = Some(at);
                    (1, number, run(first, last))
                }
                NoteItem::Part { number, count } => (2, number, u64::from(count)),
                NoteItem::Refused { number, first, last } => (4, number, run(first, last)),
                NoteItem::Waits { number, first, last } => (5, number, run(first, last)),
                NoteItem::Undone { first, last } => (3, first, last),
                NoteItem::AllRefused { first, last } => (6, first, last),
                NoteItem::AllWait { first, last } => (7, first, last),
            };
            out.extend_from_slice(&(number | kind << KIND_SHIFT).to_le_bytes());
            out.extend_from_slice(&rest.to_le_bytes());
            if let Some(at) = more {
                out.extend_from_slice(&0_u64.to_le_bytes());
                out.extend_from_slice(&at.to_le_bytes());
            }
        }
        out
    }

    /// None when it is something else.
    pub(crate) fn decode(head: &[u8]) -> Option<Self> {
        let (fixed, items) = head.split_first_chunk::<NOTE_HEAD>()?;
        let (items, rest) = items.as_chunks::<ITEM>();
        if fixed[0] != STREAM || fixed[2] != 0 || !rest.is_empty() || items.len() > NOTE_ITEMS {
            return None;
        }
        let class = match fixed[1] {
            0 => StreamClass::Bodies,
            1 => StreamClass::Acks,
            _ => return None,
        };
        let role = match fixed[3] {
            0 => PieceRole::Whole,
            1 => PieceRole::GoesOn,
            2 => PieceRole::Adds,
            _ => return None,
        };
        let node = NodeId::new(u32::from_le_bytes(fixed[4..8].try_into().ok()?))?;
        let start = u32::from_le_bytes(fixed[8..12].try_into().ok()?);
        let low = u64::from_le_bytes(fixed[12..20].try_into().ok()?);
        let mut rest = items.iter();
        let mut items = NoteItems::new();
        while let Some(item) = rest.next() {
            items.push(decode_item(item, &mut rest)?);
        }
        let stream = StreamId { node, start, class };
        Some(Self { stream, role, low, items })
    }
}

/// The two numbers of an item.
fn numbers_of(item: &[u8; ITEM]) -> Option<(u64, u64)> {
    let (first, second) = item.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*first), u64::from_le_bytes(second.try_into().ok()?)))
}

/// An item, which may go on in those that follow.
fn decode_item<'a>(
    item: &[u8; ITEM],
    more: &mut impl Iterator<Item = &'a [u8; ITEM]>,
) -> Option<NoteItem> {
    let (head, rest) = numbers_of(item)?;
    let number = head & NUMBER_MAX;
    // Of letters, or of messages of one.
    let letters = || (number <= rest).then_some((number, rest));
    let run = || Some((rest as u32, (rest >> 32) as u32)).filter(|(first, last)| first <= last);
    Some(match head >> KIND_SHIFT {
        0 => letters().map(|(first, last)| NoteItem::Done { first, last })?,
        1 => {
            let ((first, last), at) = (run()?, numbers_of(more.next()?)?);
            let (0, at) = at else { return None };
            at.checked_add(u64::from(last - first))?;
            NoteItem::InLog { number, first, last, at }
        }
        2 => NoteItem::Part { number, count: u32::try_from(rest).ok()? },
        3 => letters().map(|(first, last)| NoteItem::Undone { first, last })?,
        4 => run().map(|(first, last)| NoteItem::Refused { number, first, last })?,
        5 => run().map(|(first, last)| NoteItem::Waits { number, first, last })?,
        6 => letters().map(|(first, last)| NoteItem::AllRefused { first, last })?,
        7 => letters().map(|(first, last)| NoteItem::AllWait { first, last })?,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for class in StreamClass::BOTH {
            for role in [PieceRole::Whole, PieceRole::GoesOn, PieceRole::Adds] {
                let items = [
                    NoteItem::Done { first: 1 << 40, last: NUMBER_MAX },
                    NoteItem::Part { number: 7, count: u32::MAX },
                    NoteItem::Refused { number: 8, first: 3, last: u32::MAX },
                    NoteItem::AllRefused { first: 9, last: u64::MAX },
                    NoteItem::Waits { number: NUMBER_MAX, first: 0, last: 0 },
                    NoteItem::AllWait { first: 10, last: 10 },
                    NoteItem::Undone { first: 11, last: 12 },
                    NoteItem::Done { first: 13, last: 13 },
                    NoteItem::InLog { number: 12, first: 0, last: 7, at: u64::MAX - 7 },
                ];
                let stream = StreamId { node: NodeId::ALONE, start: 9, class };
                for items in pieces_of(&items) {
                    let items = items.into();
                    let piece = NotePiece { stream, role, low: u64::MAX, items };
                    let bytes = piece.encode();
                    assert!(bytes.len() <= leveret_log::HEAD_MAX);
                    assert_eq!(NotePiece::decode(&bytes), Some(piece));
                    assert_eq!(crate::record::Head::decode(&bytes), None, "no message");
                    assert_eq!(crate::transaction::Note::decode(&bytes), None);
                }
            }
        }
    }

    #[test]
    fn any_bytes_are_a_note_or_none() {
        let mut below = leveret_log::suite::numbers(6);
        for _ in 0..20_000 {
            let mut bytes: Vec<u8> = (0..below(70)).map(|_| below(256) as u8).collect();
            // Often enough nearly one.
            for (byte, value) in bytes.iter_mut().zip([STREAM, 1, 0, 0, 1, 0, 0, 0]) {
                *byte = value;
            }
            if let Some(piece) = NotePiece::decode(&bytes) {
                assert_eq!(piece.encode()[..], bytes[..]);
            }
        }
    }
}
