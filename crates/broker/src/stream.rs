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

use leveret_topology::NodeId;

use crate::message::ToShard;

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
    /// The sender has let go of the letters below: it asks for nothing of them any more.
    pub kept_from: u64,
    /// `Publish`, `Settle`, `GiveBack`, `Commit` or `Prepare`.
    pub letter: ToShard,
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
    /// All letters up to this number are done, and that is agreed upon.
    Agreed(u64),
    /// A letter came before this one, which is missing: all from here on are to come again, in order.
    Lacks(u64),
    /// There is too much to say of the letters from `kept_from` on, which their sender keeps: none from `next` on is taken. They are
    /// to come again, in order, when it has let go of one, or when the shard says that it lacks `next`.
    Full {
        /// The first letter that was not taken.
        next: u64,
        /// See [`Numbered::kept_from`]: what came with it.
        kept_from: u64,
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
///                                                    part:        1 << 62 | number, count
///                                                    refused:     2 << 62 | number, first, last
///                                                    all refused: 3 << 62 | first, last
/// ```
///
/// `role` is 0 where a whole note begins, 1 in a record that goes on with the one before, 2 where a note begins that adds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NotePiece {
    pub(crate) stream: StreamId,
    pub(crate) role: PieceRole,
    pub(crate) low: u64,
    pub(crate) items: Vec<NoteItem>,
}

/// The first byte; see [`transaction`](crate::transaction) for others.
const STREAM: u8 = 0x23;
const NOTE_HEAD: usize = 20;
const ITEM: usize = 16;

/// As many as the head of a record has room for.
pub(crate) const NOTE_ITEMS: usize = (leveret_log::HEAD_MAX - NOTE_HEAD) / ITEM;

const KIND_SHIFT: u32 = 62;
const NUMBER_MAX: u64 = (1 << KIND_SHIFT) - 1;

impl NotePiece {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let class = match self.stream.class {
            StreamClass::Bodies => 0,
            StreamClass::Acks => 1,
        };
        let role = match self.role {
            PieceRole::Whole => 0,
            PieceRole::GoesOn => 1,
            PieceRole::Adds => 2,
        };
        let mut out = vec![STREAM, class, 0, role];
        out.extend(self.stream.node.get().to_le_bytes());
        out.extend(self.stream.start.to_le_bytes());
        out.extend(self.low.to_le_bytes());
        for item in &self.items {
            let (kind, number, rest) = match *item {
                NoteItem::Done { first, last } => (0, first, last),
                NoteItem::Part { number, count } => (1, number, u64::from(count)),
                NoteItem::Refused { number, first, last } => {
                    (2, number, u64::from(first) | u64::from(last) << 32)
                }
                NoteItem::AllRefused { first, last } => (3, first, last),
            };
            out.extend((number | kind << KIND_SHIFT).to_le_bytes());
            out.extend(rest.to_le_bytes());
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
        let items: Option<Vec<NoteItem>> = items.iter().map(decode_item).collect();
        let stream = StreamId { node, start, class };
        Some(Self { stream, role, low, items: items? })
    }
}

fn decode_item(item: &[u8; ITEM]) -> Option<NoteItem> {
    let (first, rest) = item.split_first_chunk::<8>()?;
    let (first, rest) = (u64::from_le_bytes(*first), u64::from_le_bytes(rest.try_into().ok()?));
    let number = first & NUMBER_MAX;
    match first >> KIND_SHIFT {
        0 => (number <= rest).then_some(NoteItem::Done { first: number, last: rest }),
        1 => Some(NoteItem::Part { number, count: u32::try_from(rest).ok()? }),
        2 => {
            let (first, last) = (rest as u32, (rest >> 32) as u32);
            (first <= last).then_some(NoteItem::Refused { number, first, last })
        }
        _ => (number <= rest).then_some(NoteItem::AllRefused { first: number, last: rest }),
    }
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
                ];
                let stream = StreamId { node: NodeId::ALONE, start: 9, class };
                for items in items.chunks(NOTE_ITEMS) {
                    let items = items.to_vec();
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
                assert_eq!(piece.encode(), bytes);
            }
        }
    }
}
