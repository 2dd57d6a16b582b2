//! The letters of the broker's actors, as bytes and back.
//!
//! [`write_to_shard`], [`write_to_meta`], [`write_to_session`] and [`write_news`] make what goes over a link; [`read`] makes the letter
//! of it.
//! [`NodeLetter`] has those of nodes and replicated logs, which are not actors'.
//! `table.rs` has the letters and their fields, and which letters stay in their process.
//!
//! What is a place in the memory of one process does not travel:
//!
//! - A consumer's `Gate`: the leader has one of its own for each remote channel, which letters open.
//! - `Shared`, which logs of one process know together of a record: who reads gets none.
//! - An `UnackedId` travels, as a hint: who gets it back looks there first, and finds out by queue and offset if it is wrong.
//! - `GivenBack` becomes the settlements that it stands for.

mod attach;
mod field;
mod messages;
mod nodes;
mod numbers;
mod remote;
mod streams;
mod table;
mod values;

use leveret_amqp::table::TableError;
use leveret_broker::message::{ConnectionId, ToMeta, ToSession, ToShard};
use leveret_broker::stream::StreamNews;
use leveret_topology::GroupId;

use crate::frame::{Class, Envelope, Kind, Letter};
use crate::payload::Writer;
pub use nodes::{
    BEAT, Founding, GroupStatus, GroupTold, Joining, NodeLetter, NodeNumbers, NodeStatus, beat,
};

pub use remote::{read_from_leader, read_to_leader, write_from_leader, write_to_leader};

use field::{Field as _, Reader};
use table::Listed as _;

/// Numbers of groups are below it, as lists have a place for each.
const GROUPS_MAX: u32 = 1 << 16;

/// A letter that came, and who it is for.
#[derive(Debug)]
pub enum Arrived {
    /// The shard of the envelope's group.
    ToShard(ToShard),
    /// The owner of the names.
    ToMeta(ToMeta),
    /// A session of this node.
    ToSession(ConnectionId, ToSession),
    /// This node: what its streams to the envelope's group have come to.
    News(StreamNews),
}

/// Why a letter does not go over a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSent {
    /// It concerns its process only.
    #[error(
        "the letter {0} does not leave its process: whoever posts it to another node has a fault"
    )]
    Stays(&'static str),
    /// It has to, and there are no bytes for it yet.
    #[error("the letter {0} cannot be sent to another node yet")]
    NotYet(&'static str),
}

/// A letter that came and is none.
#[derive(Debug, thiserror::Error)]
#[error("a letter of kind {kind} for group {group}, number {number}, is wrong: {why}")]
pub struct WrongLetter {
    /// The kind of its envelope.
    pub kind: u8,
    /// The group.
    pub group: GroupId,
    /// The number.
    pub number: u64,
    /// What is wrong.
    pub why: LetterError,
}

/// What is wrong with the bytes of a letter.
#[derive(Debug, thiserror::Error)]
pub enum LetterError {
    /// It ends before what it has.
    #[error("it is shorter than it says")]
    Truncated,
    /// Something follows its last field.
    #[error("{0} bytes too many")]
    TooLong(usize),
    /// A number of more bits than it may have.
    #[error("a number that is too large")]
    Number,
    /// A group above which there is none.
    #[error("group {0}, which cannot be")]
    Group(u32),
    /// A text.
    #[error("a text that is not UTF-8")]
    NotText,
    /// A number that stands for one of a few things.
    #[error("unknown {what} {number}")]
    Unknown {
        /// Of what.
        what: &'static str,
        /// The number.
        number: u16,
    },
    /// Flags.
    #[error("unknown flags {0:#04x}")]
    Flags(u8),
    /// An argument table.
    #[error(transparent)]
    Table(#[from] TableError),
    /// What clients would be sent as it is.
    #[error("a message whose {0} are none")]
    Message(&'static str),
    /// What a stream cannot have: no node, no number.
    #[error("a stream whose {0} cannot be")]
    Stream(&'static str),
    /// It refers to the one before it, and is the first.
    #[error("an entry as the one before it, and there is none")]
    NoneBefore,
}

/// The letter that `group`'s shard is to get. Its number is that of a [`Numbered`](leveret_broker::stream::Numbered) one, 0 of
/// others. The writer has nothing else.
///
/// # Errors
///
/// When it does not go over a link. Nothing is written then.
pub fn write_to_shard(
    letter: &ToShard,
    group: GroupId,
    to: &mut Writer,
) -> Result<Letter, NotSent> {
    let number = letter.number()?;
    let (mut of_stream, mut again) = (0, false);
    match letter {
        ToShard::GiveBack { from, unsettled } => {
            from.put(to);
            messages::put_given_back(unsettled, group, to);
        }
        ToShard::Consume { .. } => values::put_consume(letter, to),
        ToShard::Attach(attachment) => attach::put(attachment, to),
        ToShard::Numbered(numbered) => {
            (of_stream, again) = (numbered.number, numbered.is_again);
            streams::put_numbered(numbered, group, to)?;
        }
        letter => letter.put_fields(to),
    }
    let Letter { envelope, payload } = enveloped(number, group, of_stream, to);
    Ok(Letter { envelope: Envelope { again, ..envelope }, payload })
}

/// The letter that the owner of the names is to get, whose group is `group`. Its number is that of a
/// [`NumberedCommand`](leveret_broker::command::NumberedCommand), 0 of others.
///
/// # Errors
///
/// As [`write_to_shard`].
pub fn write_to_meta(letter: &ToMeta, group: GroupId, to: &mut Writer) -> Result<Letter, NotSent> {
    let number = letter.number()?;
    let mut of_stream = 0;
    match letter {
        ToMeta::Numbered(command) => {
            of_stream = command.number;
            remote::put_command(command, to)?;
        }
        letter => letter.put_fields(to),
    }
    Ok(enveloped(number, group, of_stream, to))
}

/// The letter that the session of a connection is to get, from the leader of `group` in a term.
///
/// # Errors
///
/// As [`write_to_shard`].
pub fn write_to_session(
    session: ConnectionId,
    letter: &ToSession,
    (group, term): (GroupId, u64),
    to: &mut Writer,
) -> Result<Letter, NotSent> {
    let number = letter.number()?;
    if let ToSession::Reply { reply, .. } = letter {
        reply.number()?;
    }
    session.put(to);
    letter.put_fields(to);
    Ok(enveloped(number, group, term, to))
}

/// What a node is to hear of its streams to `group`.
pub fn write_news(news: &StreamNews, group: GroupId, to: &mut Writer) -> Letter {
    streams::put_news(news, to);
    enveloped(table::NEWS, group, news.term, to)
}

/// What was written, as a letter.
fn enveloped(kind: u8, group: GroupId, number: u64, to: &mut Writer) -> Letter {
    let kind = Kind::new(Class::Letters, kind);
    Letter { envelope: Envelope { kind, again: false, group, number }, payload: to.finish() }
}

/// The letter that came.
///
/// # Errors
///
/// When the bytes are no letter. The link is to be closed then, with this text.
pub fn read(letter: &Letter) -> Result<Arrived, WrongLetter> {
    let envelope = &letter.envelope;
    let mut from = Reader::new(&letter.payload);
    let arrived = read_kind(envelope, &mut from);
    wrong(envelope, arrived.and_then(|arrived| from.end().map(|()| arrived)))
}

/// What was read, or what is wrong with the letter of this envelope.
fn wrong<T>(envelope: &Envelope, read: Result<T, LetterError>) -> Result<T, WrongLetter> {
    let Envelope { kind, group, number, .. } = *envelope;
    read.map_err(|why| WrongLetter { kind: kind.byte(), group, number, why })
}

/// Whether there can be such a group.
fn check_group(group: GroupId) -> Result<(), LetterError> {
    if group.get() < GROUPS_MAX { Ok(()) } else { Err(LetterError::Group(group.get())) }
}

fn read_kind(envelope: &Envelope, from: &mut Reader<'_>) -> Result<Arrived, LetterError> {
    let Envelope { kind, group, number, again } = *envelope;
    check_group(group)?;
    let unknown = LetterError::Unknown { what: "kind of letter", number: kind.byte().into() };
    if kind.class() != Class::Letters {
        return Err(unknown);
    }
    match kind.number() {
        table::CONSUME => values::get_consume(from).map(Arrived::ToShard),
        table::ATTACH => attach::get(from).map(Arrived::ToShard),
        table::NUMBERED => streams::get_numbered((number, again), from).map(Arrived::ToShard),
        listed @ (1..=24 | table::ALLOW | table::ASK | table::STORE_WAITING) => {
            ToShard::get_fields(listed, from).map(Arrived::ToShard)
        }
        table::COMMAND => remote::get_command(number, from).map(Arrived::ToMeta),
        listed @ 25..=39 => ToMeta::get_fields(listed, from).map(Arrived::ToMeta),
        listed @ 40..=55 => {
            let session = ConnectionId::get(from)?;
            Ok(Arrived::ToSession(session, ToSession::get_fields(listed, from)?))
        }
        table::NEWS => streams::get_news(number, from).map(Arrived::News),
        _ => Err(unknown),
    }
}
