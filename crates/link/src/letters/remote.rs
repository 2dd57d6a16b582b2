//! What a node of sessions and the node that leads write to each other.
//!
//! Letters of actors among it are written as on any link; in the number of the envelope of a letter to a session is whether the shard
//! of the envelope's group writes it (1), or somebody else (0). All others are of one kind, and begin with what they are:
//!
//! ```text
//! hello        1 | 8 bytes Raft id | varint start | 0, or 1 and varint term: attaches | list of connections
//! opened       2 | connection
//! names taken  3 | varint number
//! names        4 | varint number | 1 whole, 2 goes on | list of changes
//! begins       5 | varint term of the names | list of: varint group, varint begins at, of each stream: varint term, next, agreed
//! answered     6 | varint node | varint start | varint term | varint number | 0 answer, or 1 varint queue | varint group
//! alarm        7 | 1 memory, 2 disk, 4 stops all
//! over         8 | text
//! ended        9 | connection
//! look        10 | varint number | bytes
//! seen        11 | varint number | bytes
//! told        12 | bytes
//! uses        13 | bytes
//! elsewhere   14 | bytes
//! asks lease  15 | varint number
//! lease       16 | varint number
//!
//! change       u8 kind of the key | its fields | stored | option of bytes: head and body
//! ```
//!
//! A numbered command is a letter to the owner of the names: varint node | varint start | varint term | varint kept from | 0, or the
//! kind of the letter in it and its fields; its number is in the envelope.

use bytes::Bytes;
use leveret_broker::command::{Answered, CommandAnswer, CommandStream, NumberedCommand};
use leveret_broker::flow::Alarm;
use leveret_broker::message::{
    Brought, ConnectionId, FromLeader, LeaderTerms, NamesBatch, SessionsHello, ShardTerm, ToLeader,
    ToMeta,
};
use leveret_broker::stream::StreamPlace;
use leveret_topology::{BindingId, Change, EntityKey, GroupId, VhostId};

use super::field::{Field, Reader, get_list, get_list_of, put_bytes, put_list};
use super::streams::get_node;
use super::table::{self, Listed as _};
use super::{
    Arrived, BEAT, LetterError, NotSent, WrongLetter, beat, enveloped, read_kind, write_news,
    write_to_meta, write_to_session, write_to_shard, wrong,
};
use crate::frame::Letter;
use crate::payload::Writer;

/// The group of what no shard says.
const NAMES: GroupId = GroupId::new(0);

const HELLO: u8 = 1;
const OPENED: u8 = 2;
const NAMES_TAKEN: u8 = 3;
const NAMES_TOLD: u8 = 4;
const BEGINS: u8 = 5;
const ANSWERED: u8 = 6;
const ALARM: u8 = 7;
const OVER: u8 = 8;
const ENDED: u8 = 9;
const LOOK: u8 = 10;
const SEEN: u8 = 11;
const TOLD: u8 = 12;
const USES: u8 = 13;
const ELSEWHERE: u8 = 14;
const ASKS_LEASE: u8 = 15;
const LEASE: u8 = 16;

const IS_WHOLE: u8 = 1;
const GOES_ON: u8 = 2;

const MEMORY: u8 = 1;
const DISK: u8 = 2;
const STOPS_ALL: u8 = 4;

/// Writes what a node of sessions says.
///
/// # Errors
///
/// When a letter in it does not go over a link. Nothing is written then.
pub fn write_to_leader(letter: &ToLeader, to: &mut Writer) -> Result<Letter, NotSent> {
    match letter {
        ToLeader::Shard(group, letter) => return write_to_shard(letter, *group, to),
        ToLeader::Meta(letter) => return write_to_meta(letter, NAMES, to),
        ToLeader::Session(id, letter) => return write_to_session(*id, letter, (NAMES, 0), to),
        ToLeader::Beat => return Ok(beat()),
        ToLeader::Hello(SessionsHello { raft_id, start, attaches, connections, queues }) => {
            to.put(&[HELLO]);
            raft_id.to_le_bytes().put(to);
            start.put(to);
            attaches.put(to);
            put_list(connections, to);
            put_list(queues, to);
        }
        ToLeader::Opened(id) => {
            to.put(&[OPENED]);
            id.put(to);
        }
        ToLeader::Ended(id) => {
            to.put(&[ENDED]);
            id.put(to);
        }
        ToLeader::NamesTaken(number) => {
            to.put(&[NAMES_TAKEN]);
            number.put(to);
        }
        ToLeader::Told(told) => {
            to.put(&[TOLD]);
            told.put(to);
        }
        ToLeader::Uses(uses) => {
            to.put(&[USES]);
            uses.put(to);
        }
        ToLeader::AsksLease(number) => {
            to.put(&[ASKS_LEASE]);
            number.put(to);
        }
        ToLeader::Seen(number, seen) => {
            to.put(&[SEEN]);
            number.put(to);
            seen.put(to);
        }
    }
    Ok(enveloped(table::REMOTE, NAMES, 0, to))
}

/// Writes what the node that leads says.
///
/// # Errors
///
/// As [`write_to_leader`].
pub fn write_from_leader(letter: &FromLeader, to: &mut Writer) -> Result<Letter, NotSent> {
    match letter {
        FromLeader::Session(id, group, letter) => {
            let whose = group.map_or((NAMES, 0), |group| (group, 1));
            return write_to_session(*id, letter, whose, to);
        }
        FromLeader::News(group, news) => return Ok(write_news(news, *group, to)),
        FromLeader::Beat => return Ok(beat()),
        FromLeader::Names(NamesBatch { number, is_whole, goes_on, changes }) => {
            to.put(&[NAMES_TOLD]);
            number.put(to);
            let is_whole = if *is_whole { IS_WHOLE } else { 0 };
            to.put(&[is_whole | if *goes_on { GOES_ON } else { 0 }]);
            put_list(changes, to);
        }
        FromLeader::Begins(LeaderTerms { names, shards }) => {
            to.put(&[BEGINS]);
            names.put(to);
            put_list(shards, to);
        }
        FromLeader::Answered(answered) => {
            // Whether it can be written is known before anything is.
            if let CommandAnswer::Reply(reply) = &answered.answer {
                reply.number()?;
            }
            to.put(&[ANSWERED]);
            answered.put(to);
        }
        FromLeader::Alarm(Alarm { memory, disk, stops_all }) => {
            let flag = |is_set: &bool, flag| if *is_set { flag } else { 0 };
            let flags = flag(memory, MEMORY) | flag(disk, DISK) | flag(stops_all, STOPS_ALL);
            to.put(&[ALARM, flags]);
        }
        FromLeader::Over(why) => {
            to.put(&[OVER]);
            why.put(to);
        }
        FromLeader::Uses(uses) => {
            to.put(&[ELSEWHERE]);
            uses.put(to);
        }
        FromLeader::Lease(number) => {
            to.put(&[LEASE]);
            number.put(to);
        }
        FromLeader::Look(number, question) => {
            to.put(&[LOOK]);
            number.put(to);
            question.put(to);
        }
    }
    Ok(enveloped(table::REMOTE, NAMES, 0, to))
}

/// What a node of sessions says.
///
/// # Errors
///
/// When the bytes are no such letter. The connection is to be closed then, with this text.
pub fn read_to_leader(letter: &Letter) -> Result<ToLeader, WrongLetter> {
    if letter.envelope.kind == BEAT {
        return Ok(ToLeader::Beat);
    }
    let mut from = Reader::new(&letter.payload);
    let read = if table::is_remote(letter.envelope.kind) {
        get_to_leader(&mut from)
    } else {
        let arrived = read_kind(&letter.envelope, &mut from);
        arrived.and_then(|arrived| match arrived {
            Arrived::ToShard(of) => Ok(ToLeader::Shard(letter.envelope.group, of)),
            Arrived::ToMeta(of) => Ok(ToLeader::Meta(of)),
            Arrived::ToSession(id, of) => Ok(ToLeader::Session(id, of)),
            Arrived::News(_) => Err(unknown("letter to a leader", table::NEWS)),
        })
    };
    wrong(&letter.envelope, read.and_then(|read| from.end().map(|()| read)))
}

/// What the node that leads says.
///
/// # Errors
///
/// As [`read_to_leader`].
pub fn read_from_leader(letter: &Letter) -> Result<FromLeader, WrongLetter> {
    let envelope = &letter.envelope;
    if envelope.kind == BEAT {
        return Ok(FromLeader::Beat);
    }
    let mut from = Reader::new(&letter.payload);
    let read = if table::is_remote(envelope.kind) {
        get_from_leader(&mut from)
    } else {
        let arrived = read_kind(envelope, &mut from);
        arrived.and_then(|arrived| match (arrived, envelope.number) {
            (Arrived::ToSession(id, of), 0) => Ok(FromLeader::Session(id, None, of)),
            (Arrived::ToSession(id, of), 1) => {
                Ok(FromLeader::Session(id, Some(envelope.group), of))
            }
            (Arrived::News(news), _) => Ok(FromLeader::News(envelope.group, news)),
            _ => Err(unknown("letter of a leader", envelope.kind.byte())),
        })
    };
    wrong(envelope, read.and_then(|read| from.end().map(|()| read)))
}

fn unknown(what: &'static str, number: u8) -> LetterError {
    LetterError::Unknown { what, number: number.into() }
}

fn get_to_leader(from: &mut Reader<'_>) -> Result<ToLeader, LetterError> {
    Ok(match from.byte()? {
        HELLO => ToLeader::Hello(SessionsHello {
            raft_id: u64::from_le_bytes(from.get()?),
            start: from.get()?,
            attaches: from.get()?,
            connections: get_list_of(ConnectionId::MIN, from)?,
            queues: get_list_of(Brought::MIN, from)?,
        }),
        OPENED => ToLeader::Opened(from.get()?),
        ENDED => ToLeader::Ended(from.get()?),
        NAMES_TAKEN => ToLeader::NamesTaken(from.get()?),
        SEEN => ToLeader::Seen(from.get()?, from.get()?),
        TOLD => ToLeader::Told(from.get()?),
        USES => ToLeader::Uses(from.get()?),
        ASKS_LEASE => ToLeader::AsksLease(from.get()?),
        number => return Err(unknown("letter to a leader", number)),
    })
}

fn get_from_leader(from: &mut Reader<'_>) -> Result<FromLeader, LetterError> {
    Ok(match from.byte()? {
        NAMES_TOLD => {
            let (number, flags) = (from.get()?, from.flags(IS_WHOLE | GOES_ON)?);
            FromLeader::Names(NamesBatch {
                number,
                is_whole: flags & IS_WHOLE != 0,
                goes_on: flags & GOES_ON != 0,
                changes: get_list_of(Change::MIN, from)?,
            })
        }
        BEGINS => {
            let names = from.get()?;
            let shards = get_list_of(ShardTerm::MIN, from)?;
            FromLeader::Begins(LeaderTerms { names, shards })
        }
        ANSWERED => FromLeader::Answered(from.get()?),
        ALARM => {
            let flags = from.flags(MEMORY | DISK | STOPS_ALL)?;
            FromLeader::Alarm(Alarm {
                memory: flags & MEMORY != 0,
                disk: flags & DISK != 0,
                stops_all: flags & STOPS_ALL != 0,
            })
        }
        OVER => FromLeader::Over(from.get()?),
        LOOK => FromLeader::Look(from.get()?, from.get()?),
        ELSEWHERE => FromLeader::Uses(from.get()?),
        LEASE => FromLeader::Lease(from.get()?),
        number => return Err(unknown("letter of a leader", number)),
    })
}

/// A command with its number, which is in the envelope.
pub(super) fn put_command(command: &NumberedCommand, to: &mut Writer) -> Result<(), NotSent> {
    let NumberedCommand { stream, term, number: _, kept_from, command } = command;
    let kind = match command {
        Some(command) if command.numbered_asker().is_some() => command.number()?,
        Some(command) => return Err(NotSent::NotYet(command.kind())),
        None => 0,
    };
    stream.node.get().put(to);
    stream.start.put(to);
    term.put(to);
    kept_from.put(to);
    to.put(&[kind]);
    if let Some(command) = command {
        command.put_fields(to);
    }
    Ok(())
}

/// Reads the command with this number.
pub(super) fn get_command(number: u64, from: &mut Reader<'_>) -> Result<ToMeta, LetterError> {
    let stream = CommandStream { node: get_node(from)?, start: from.get()? };
    let (term, kept_from) = (from.get()?, from.get()?);
    if number == 0 {
        return Err(LetterError::Stream("number"));
    }
    let command = match from.byte()? {
        0 => None,
        kind => {
            let command = ToMeta::get_fields(kind, from)?;
            if command.numbered_asker().is_none() {
                return Err(unknown("numbered command", kind));
            }
            Some(command)
        }
    };
    Ok(ToMeta::Numbered(Box::new(NumberedCommand { stream, term, number, kept_from, command })))
}

impl Field for Answered {
    fn put(&self, to: &mut Writer) {
        let Self { stream, term, number, answer } = self;
        stream.node.get().put(to);
        stream.start.put(to);
        term.put(to);
        number.put(to);
        match answer {
            CommandAnswer::Reply(reply) => {
                to.put(&[0]);
                reply.put(to);
            }
            CommandAnswer::AskShard(queue, group) => {
                to.put(&[1]);
                queue.put(to);
                group.put(to);
            }
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        let stream = CommandStream { node: get_node(from)?, start: from.get()? };
        let (term, number) = (from.get()?, from.get()?);
        let answer = match from.byte()? {
            0 => CommandAnswer::Reply(from.get()?),
            1 => CommandAnswer::AskShard(from.get()?, from.get()?),
            other => return Err(unknown("answer to a command", other)),
        };
        Ok(Self { stream, term, number, answer })
    }
}

impl Field for StreamPlace {
    const MIN: usize = 3;

    fn put(&self, to: &mut Writer) {
        let Self { term, next, agreed } = self;
        term.put(to);
        next.put(to);
        agreed.put(to);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        Ok(Self { term: from.get()?, next: from.get()?, agreed: from.get()? })
    }
}

impl Field for ShardTerm {
    const MIN: usize = 2 + 2 * StreamPlace::MIN;

    fn put(&self, to: &mut Writer) {
        let Self { group, begins_at, streams } = self;
        group.put(to);
        begins_at.put(to);
        streams.iter().for_each(|place| place.put(to));
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        let (group, begins_at) = (from.get()?, from.get()?);
        Ok(Self { group, begins_at, streams: [from.get()?, from.get()?] })
    }
}

impl Field for Change {
    const MIN: usize = 3;

    fn put(&self, to: &mut Writer) {
        let Self { key, is_stored, record } = self;
        key.put(to);
        is_stored.put(to);
        record.is_some().put(to);
        if let Some(record) = record {
            put_bytes(to, record);
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        let (key, is_stored) = (from.get()?, from.get()?);
        let record = from.get::<Option<Bytes>>()?;
        Ok(Self { key, is_stored, record: record.map(|record| record[..].into()) })
    }
}

impl Field for Brought {
    const MIN: usize = Change::MIN + 1;

    fn put(&self, to: &mut Writer) {
        self.change.put(to);
        put_list(&self.unbinds, to);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        Ok(Self { change: from.get()?, unbinds: get_list(from)? })
    }
}

fn put_pair(kind: u8, vhost: VhostId, names: &(Box<str>, Box<str>), to: &mut Writer) {
    to.put(&[kind]);
    vhost.put(to);
    names.0.put(to);
    names.1.put(to);
}

impl Field for EntityKey {
    fn put(&self, to: &mut Writer) {
        match self {
            Self::Ids => to.put(&[0]),
            Self::Vhost(id) => {
                to.put(&[1]);
                id.put(to);
            }
            Self::User(name) => {
                to.put(&[2]);
                name.put(to);
            }
            Self::Permission(vhost, user) => {
                to.put(&[3]);
                vhost.put(to);
                user.put(to);
            }
            Self::TopicPermission(vhost, names) => put_pair(4, *vhost, names, to),
            Self::GlobalParameter(name) => {
                to.put(&[5]);
                name.put(to);
            }
            Self::Parameter(vhost, names) => put_pair(6, *vhost, names, to),
            Self::Policy(vhost, name) => {
                to.put(&[7]);
                vhost.put(to);
                name.put(to);
            }
            Self::OperatorPolicy(vhost, name) => {
                to.put(&[8]);
                vhost.put(to);
                name.put(to);
            }
            Self::Exchange(id) => {
                to.put(&[9]);
                id.put(to);
            }
            Self::Queue(id) => {
                to.put(&[10]);
                id.put(to);
            }
            Self::Binding(id) => {
                to.put(&[11]);
                id.get().put(to);
            }
            Self::Tracing(vhost) => {
                to.put(&[12]);
                vhost.put(to);
            }
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        Ok(match from.byte()? {
            0 => Self::Ids,
            1 => Self::Vhost(from.get()?),
            2 => Self::User(from.get()?),
            3 => Self::Permission(from.get()?, from.get()?),
            4 => Self::TopicPermission(from.get()?, from.get()?),
            5 => Self::GlobalParameter(from.get()?),
            6 => Self::Parameter(from.get()?, from.get()?),
            7 => Self::Policy(from.get()?, from.get()?),
            8 => Self::OperatorPolicy(from.get()?, from.get()?),
            9 => Self::Exchange(from.get()?),
            10 => Self::Queue(from.get()?),
            11 => Self::Binding(BindingId::new(from.get()?)),
            12 => Self::Tracing(from.get()?),
            number => return Err(unknown("name of a thing", number)),
        })
    }
}
