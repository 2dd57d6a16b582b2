//! Numbered commands: the stream from a node to the owner of the names, so that each change of names is made once.
//!
//! The owner of the names may lose the end of its log with its node, and a link may lose what it carries. So a node whose names are
//! owned by one of several numbers what its sessions want changed, keeps it until it has the answer, and sends it again to whoever
//! owns the names. The batch of their log that has what a command changed has its *note*, too. A node alone gives no numbers.
//! See `docs/decisions/0061-letters-over-links.md`.
//!
//! ```text
//!   node:   [ 4 ][ . ][ 6 ][ 7 ]  kept         owner:  4 is under way, 6 done: noted, and 7 is the next one
//!                 `- answered      --- commands -->
//!                                  <-- the answer of 6, once its note is agreed upon
//! ```

use leveret_topology::{GroupId, NodeId, QueueId};

use crate::message::{Reply, ToMeta};

/// The commands of one node: their numbers begin with 1 and have no gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommandStream {
    /// Who numbers.
    pub node: NodeId,
    /// How often it was started before: a process that begins anew begins a new stream.
    pub start: u32,
}

/// A command with its number.
#[derive(Debug)]
pub struct NumberedCommand {
    /// Of which stream.
    pub stream: CommandStream,
    /// The term of the owner that it is sent to: no other one takes it.
    pub term: u64,
    /// Its place, from 1.
    pub number: u64,
    /// The sender has let go of those below: it has their answers.
    pub kept_from: u64,
    /// One that gets a [number](ToMeta::again). None: the sender has its answer, though not those of all before it.
    pub command: Option<ToMeta>,
}

/// What a node is told of a command that it numbered.
#[derive(Debug)]
pub struct Answered {
    /// Of which stream.
    pub stream: CommandStream,
    /// The term of the owner that answers. A refusal holds in its term only: an owner after it may do the command.
    pub term: u64,
    /// Of which command.
    pub number: u64,
    /// What came of it.
    pub answer: CommandAnswer,
}

/// See [`Answered`].
#[derive(Debug)]
pub enum CommandAnswer {
    /// As it is told to the session.
    Reply(Reply),
    /// A queue is there as declared: its shard is asked [how many messages](crate::message::ToShard::Count) it has, and tells the
    /// session.
    AskShard(QueueId, GroupId),
}

/// How many commands a node keeps under numbers, from the first one without an answer on: the owner of the names takes no more. Of
/// each at most one note is in its log.
pub const COMMANDS_MAX: u64 = 1024;

/// What a note says: the command was done, and this is the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Noted {
    Done,
    AskShard(QueueId, GroupId),
}

impl Noted {
    pub(crate) fn answer(self) -> CommandAnswer {
        match self {
            Self::Done => CommandAnswer::Reply(Reply::Done),
            Self::AskShard(queue, home) => CommandAnswer::AskShard(queue, home),
        }
    }
}

/// A record of the log of names that is about no name: this command was done.
///
/// ```text
///  0      4       8        16   17      25
///  | node | start | number | 0 |
///  | node | start | number | 1 | queue | home |
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommandNote {
    pub(crate) stream: CommandStream,
    pub(crate) number: u64,
    pub(crate) noted: Noted,
}

/// The head of a note in the log of names: a kind that no thing of the topology has.
pub(crate) const COMMAND_HEAD: [u8; 2] = [1, 65];

impl CommandNote {
    /// The body of the record.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let Self { stream: CommandStream { node, start }, number, noted } = self;
        let mut out = Vec::with_capacity(29);
        out.extend(node.get().to_le_bytes());
        out.extend(start.to_le_bytes());
        out.extend(number.to_le_bytes());
        match noted {
            Noted::Done => out.push(0),
            Noted::AskShard(queue, home) => {
                out.push(1);
                out.extend(queue.get().to_le_bytes());
                out.extend(home.get().to_le_bytes());
            }
        }
        out
    }

    /// None when the body is not one.
    pub(crate) fn decode(body: &[u8]) -> Option<Self> {
        let (node, rest) = body.split_first_chunk::<4>()?;
        let (start, rest) = rest.split_first_chunk::<4>()?;
        let (number, rest) = rest.split_first_chunk::<8>()?;
        let noted = match rest.split_first()? {
            (0, []) => Noted::Done,
            (1, rest) => {
                let (queue, home) = rest.split_first_chunk::<8>()?;
                let home = u32::from_le_bytes(home.try_into().ok()?);
                Noted::AskShard(QueueId::new(u64::from_le_bytes(*queue)), GroupId::new(home))
            }
            _ => return None,
        };
        let node = NodeId::new(u32::from_le_bytes(*node))?;
        let stream = CommandStream { node, start: u32::from_le_bytes(*start) };
        Some(Self { stream, number: u64::from_le_bytes(*number), noted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let stream = CommandStream { node: NodeId::ALONE, start: 7 };
        for noted in [Noted::Done, Noted::AskShard(QueueId::new(1 << 40), GroupId::new(3))] {
            let note = CommandNote { stream, number: u64::MAX, noted };
            let body = note.encode();
            assert_eq!(CommandNote::decode(&body), Some(note));
            for len in 0..body.len() {
                assert_eq!(CommandNote::decode(&body[..len]), None, "{len}");
            }
            assert_eq!(CommandNote::decode(&[&body[..], &[0]].concat()), None);
        }
    }

    #[test]
    fn any_bytes_are_a_note_or_none() {
        let mut below = leveret_log::suite::numbers(7);
        let mut found = 0;
        for _ in 0..20_000 {
            let mut bytes: Vec<u8> = (0..below(40)).map(|_| below(256) as u8).collect();
            // Often enough nearly one.
            bytes.iter_mut().skip(1).take(3).for_each(|byte| *byte = 0);
            bytes.iter_mut().skip(16).take(1).for_each(|kind| *kind %= 3);
            if let Some(note) = CommandNote::decode(&bytes) {
                assert_eq!(note.encode(), bytes);
                found += 1;
            }
        }
        assert!(found > 100, "{found} were notes");
    }
}
