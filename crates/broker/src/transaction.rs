//! Transactions over several shards: all of one is there after a crash, or nothing.
//!
//! A transaction that one shard can do alone is one batch of that shard's log. Over more of them it goes
//! in two steps, and between them stands one record in the log of names:
//!
//! ```text
//!  session --Prepare--> shard 1: part, messages  (batch) --Prepared--+
//!          --Prepare--> shard 2: part, messages  (batch) --Prepared--+--> meta: decision (batch)
//!                                                                               |
//!  session <--Committed-- shards: messages into queues, acks; part released <--Decide
//!                                     `- applied (batch) --Applied--> meta: decision released
//! ```
//!
//! Before the decision is on disk, no queue has a message of the transaction and no ack of it is applied.
//! A restart reads the names first: messages behind a part without a decision are let go of; with one
//! they are in their queues, and what the transaction acked, which the decision lists, is not. A
//! decision is forgotten when every shard has it on disk that its part is done with, or by a start at
//! which no shard finds a part of it.
//!
//! If one shard cannot store its part, the others let go of theirs; nothing has to be written for that.

use foldhash::fast::FixedState;
use hashbrown::HashSet;
use leveret_log::Holder;
use leveret_queue::Offset;
use leveret_topology::{NodeId, QueueId};
use smallvec::SmallVec;

use crate::stream::{StreamClass, StreamId, Tag};

/// Names a transaction over several shards: a random number, as an earlier process's may be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TxId(u64);

impl TxId {
    /// The transaction with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The bare number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// What a shard says of its part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vote {
    /// It could not be stored, and is undone already.
    No,
    /// It is on the disk, if it has to be.
    Yes {
        /// A restart would find it.
        is_kept: bool,
        /// Messages that leave their queues with the transaction.
        acked: Vec<(QueueId, Offset)>,
    },
}

/// What a restart has to know of transactions before it fills queues.
#[derive(Clone, Debug, Default)]
pub struct Decided {
    pub(crate) transactions: HashSet<TxId, FixedState>,
    pub(crate) acked: HashSet<(QueueId, Offset), FixedState>,
}

/// The holder of records that are no message, in a shard's log. No queue has this number.
pub(crate) const NOTES: QueueId = QueueId::new(Holder::OWNER.get());

/// The first bytes of records that are no message; see [`record`](crate::record) for those that are.
const PART: u8 = 0x21;
const APPLIED: u8 = 0x22;
const NOTE_HEAD: usize = 16;
const TAG: usize = 16;

/// A record of a shard's log that is no message. The letter that a part came with is there if that had a number.
///
/// ```text
///  0     1    4          8              16     20      24       32
///  | kind| 0  | messages | transaction | node | start | number |
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// So many records that follow are of the transaction.
    Part { tx: TxId, messages: u32, tag: Option<Tag> },
    /// What the transaction did here is on the disk if this is.
    Applied { tx: TxId },
}

impl Note {
    pub(crate) fn encode(self) -> SmallVec<[u8; NOTE_HEAD + TAG]> {
        let (kind, tx, messages, tag) = match self {
            Self::Part { tx, messages, tag } => (PART, tx, messages, tag),
            Self::Applied { tx } => (APPLIED, tx, 0, None),
        };
        let mut out = SmallVec::from_slice(&[kind, 0, 0, 0]);
        out.extend(messages.to_le_bytes());
        out.extend(tx.get().to_le_bytes());
        if let Some(Tag { stream, number }) = tag {
            out.extend(stream.node.get().to_le_bytes());
            out.extend(stream.start.to_le_bytes());
            out.extend(number.to_le_bytes());
        }
        out
    }

    /// None when it is something else.
    pub(crate) fn decode(head: &[u8]) -> Option<Self> {
        let (head, tag) = head.split_first_chunk::<NOTE_HEAD>()?;
        let messages = u32::from_le_bytes(head[4..8].try_into().ok()?);
        let tx = TxId(u64::from_le_bytes(head[8..].try_into().ok()?));
        match (head[0], tag) {
            (PART, []) => Some(Self::Part { tx, messages, tag: None }),
            (PART, tag) => Some(Self::Part { tx, messages, tag: Some(decode_tag(tag)?) }),
            (APPLIED, []) => Some(Self::Applied { tx }),
            _ => None,
        }
    }

    pub(crate) const fn holder() -> Holder {
        Holder::OWNER
    }
}

fn decode_tag(tag: &[u8]) -> Option<Tag> {
    let tag: &[u8; TAG] = tag.try_into().ok()?;
    let node = NodeId::new(u32::from_le_bytes(tag[..4].try_into().ok()?))?;
    let start = u32::from_le_bytes(tag[4..8].try_into().ok()?);
    let number = u64::from_le_bytes(tag[8..].try_into().ok()?);
    Some(Tag { stream: StreamId { node, start, class: StreamClass::Bodies }, number })
}

/// The head of a decision in the log of names: a kind that no thing of the topology has.
pub(crate) const DECISION_HEAD: [u8; 2] = [1, 64];

/// The body of a decision: the transaction, then queue and offset of each message it acked.
pub(crate) fn encode_decision(tx: TxId, acked: &[(QueueId, Offset)]) -> Vec<u8> {
    let numbers = acked.iter().flat_map(|(queue, at)| [queue.get(), at.get()]);
    [tx.get()].into_iter().chain(numbers).flat_map(u64::to_le_bytes).collect()
}

/// What the body of a decision says. None when it is none.
pub(crate) fn decode_decision(body: &[u8]) -> Option<(TxId, Vec<(QueueId, Offset)>)> {
    let (numbers, rest) = body.as_chunks::<8>();
    let (&tx, acked) = numbers.split_first()?;
    if !rest.is_empty() || acked.len() % 2 != 0 {
        return None;
    }
    let acked = acked.as_chunks::<2>().0.iter().map(|&[queue, at]| {
        (QueueId::new(u64::from_le_bytes(queue)), Offset::new(u64::from_le_bytes(at)))
    });
    Some((TxId(u64::from_le_bytes(tx)), acked.collect()))
}

impl Decided {
    /// A decision, and what it acked.
    pub(crate) fn add(&mut self, tx: TxId, acked: &[(QueueId, Offset)]) {
        self.transactions.insert(tx);
        self.acked.extend(acked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let tx = TxId(0x0123_4567_89ab_cdef);
        let stream = StreamId { node: NodeId::ALONE, start: 9, class: StreamClass::Bodies };
        let tag = Some(Tag { stream, number: u64::MAX });
        let part = |tag| Note::Part { tx, messages: 7, tag };
        for note in [part(None), part(tag), Note::Applied { tx }] {
            assert_eq!(Note::decode(&note.encode()), Some(note));
            assert_eq!(crate::record::Head::decode(&note.encode()), None, "no message");
        }
        for len in [0, 15, 17, 31, 33] {
            assert_eq!(Note::decode(&vec![PART; len]), None, "{len}");
        }
        assert_eq!(Note::decode(&[0x11; 16]), None);

        let acked = [(QueueId::new(3), Offset::new(9)), (QueueId::new(4), Offset::new(1))];
        let body = encode_decision(tx, &acked);
        assert_eq!(decode_decision(&body), Some((tx, acked.to_vec())));
        for len in [0, 7, 9, 16, body.len() - 1] {
            assert_eq!(decode_decision(&body[..len]), None, "{len}");
        }
    }

    #[test]
    fn any_bytes_are_a_note_or_none() {
        let mut below = leveret_log::suite::numbers(5);
        for _ in 0..20_000 {
            let mut bytes: Vec<u8> = (0..below(40)).map(|_| below(256) as u8).collect();
            if let Some(first) = bytes.first_mut().filter(|_| below(2) == 0) {
                *first = PART;
            }
            if let Some(note) = Note::decode(&bytes) {
                assert_eq!(bytes.len(), note.encode().len());
            }
            let added = decode_decision(&bytes);
            assert_eq!(added.is_some(), bytes.len() % 16 == 8);
        }
    }
}
