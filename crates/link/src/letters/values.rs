//! What letters say besides messages.
//!
//! ```text
//! who asks       user text | 0 from nowhere, 1 from address, 2 from address, connection, our address
//! address        4 | 4 bytes | varint port, or 6 | 16 bytes | varint port | varint flow | varint scope
//! consume        user text | reply | varint queue | varint slot | tag text | no_ack | exclusive | step priority from 0 |
//!                varint prefetch | table
//! allowance      option of varint channel | varint term, varint number of the account | varint version | varint total |
//!                is called back; in a state: is waiting
//! ```

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use leveret_amqp::reply::ReplyCode;
use leveret_broker::message::{
    AccountId, Allowance, AllowanceState, Binding, Claim, DeadLetterFrom, Holding, Looked, MoveTo,
    Moved, Named, Page, PutResult, Refusal, ToShard,
};
use leveret_broker::transaction::Vote;
use leveret_queue::{Look, LookAt};
use leveret_topology::{By, Link, Origin};

use super::LetterError;
use super::field::{Field, Reader};
use crate::payload::Writer;

/// Writes the fields of a [`ToShard::Consume`] but for its gate.
pub(super) fn put_consume(letter: &ToShard, to: &mut Writer) {
    let ToShard::Consume {
        user,
        reply,
        queue,
        slot,
        tag,
        no_ack,
        exclusive,
        priority,
        prefetch,
        gate: _,
        arguments,
    } = letter
    else {
        return;
    };
    user.put(to);
    reply.put(to);
    queue.put(to);
    slot.put(to);
    tag.put(to);
    no_ack.put(to);
    exclusive.put(to);
    priority.put(to);
    prefetch.put(to);
    arguments.put(to);
}

/// Reads them: the shard has a gate of its own for the channel.
pub(super) fn get_consume(from: &mut Reader<'_>) -> Result<ToShard, LetterError> {
    Ok(ToShard::Consume {
        user: from.get()?,
        reply: from.get()?,
        queue: from.get()?,
        slot: from.get()?,
        tag: from.get()?,
        no_ack: from.get()?,
        exclusive: from.get()?,
        priority: from.get()?,
        prefetch: from.get()?,
        arguments: from.get()?,
        gate: None,
    })
}

/// Structures whose fields are written one after the other.
macro_rules! structures {
    ($($name:ident { $($field:ident),* })*) => {$(
        impl Field for $name {
            fn put(&self, to: &mut Writer) {
                let Self { $($field),* } = self;
                $($field.put(to);)*
            }

            fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
                Ok(Self { $($field: from.get()?),* })
            }
        }
    )*};
}

pub(super) use structures;

structures! {
    By { user, origin }
    Link { id, local }
    Binding { by, reply, vhost, source, destination, to_queue, key, arguments }
    Refusal { code, text }
    DeadLetterFrom { group, queue, offset }
    Moved { moved, refused, unrouted, cold }
    Page { messages, next, end }
    Looked { look, holder, record }
    Look { offset, size, redelivered, delivery_count, expires_at, consumer_key }
    Holding { connection, channel, tag }
    Claim { queue, offset, slot }
    AccountId { term, number }
    Allowance { of, account, version, total, is_called_back }
    AllowanceState { of, account, version, total, is_waiting }
}

impl Field for Option<Origin> {
    fn put(&self, to: &mut Writer) {
        match self {
            None => to.put(&[0]),
            Some(Origin { peer, connection: None }) => {
                to.put(&[1]);
                peer.put(to);
            }
            Some(Origin { peer, connection: Some(link) }) => {
                to.put(&[2]);
                peer.put(to);
                link.put(to);
            }
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        match from.byte()? {
            0 => Ok(None),
            1 => Ok(Some(Origin { peer: from.get()?, connection: None })),
            2 => Ok(Some(Origin { peer: from.get()?, connection: Some(from.get()?) })),
            number => Err(LetterError::Unknown { what: "origin", number: number.into() }),
        }
    }
}

impl Field for SocketAddr {
    fn put(&self, to: &mut Writer) {
        match self {
            Self::V4(address) => {
                to.put(&[4]);
                address.ip().octets().put(to);
                address.port().put(to);
            }
            Self::V6(address) => {
                to.put(&[6]);
                address.ip().octets().put(to);
                address.port().put(to);
                address.flowinfo().put(to);
                address.scope_id().put(to);
            }
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        match from.byte()? {
            4 => {
                let ip = Ipv4Addr::from(from.get::<[u8; 4]>()?);
                Ok(Self::new(IpAddr::V4(ip), from.get()?))
            }
            6 => {
                let ip = Ipv6Addr::from(from.get::<[u8; 16]>()?);
                let (port, flow, scope) = (from.get()?, from.get()?, from.get()?);
                Ok(Self::V6(SocketAddrV6::new(ip, port, flow, scope)))
            }
            number => Err(LetterError::Unknown { what: "kind of address", number: number.into() }),
        }
    }
}

impl Field for ReplyCode {
    fn put(&self, to: &mut Writer) {
        self.code().put(to);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        let number = from.get()?;
        Self::from_code(number).ok_or(LetterError::Unknown { what: "reply code", number })
    }
}

impl Field for Vote {
    fn put(&self, to: &mut Writer) {
        match self {
            Self::No => to.put(&[0]),
            Self::Yes { is_kept, acked } => {
                to.put(&[1]);
                is_kept.put(to);
                acked.put(to);
            }
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        Ok(match from.get()? {
            false => Self::No,
            true => Self::Yes { is_kept: from.get()?, acked: from.get()? },
        })
    }
}

impl Field for MoveTo {
    fn put(&self, to: &mut Writer) {
        match self {
            Self::Queue(queue) => {
                to.put(&[0]);
                queue.put(to);
            }
            Self::Exchange { exchange, key } => {
                to.put(&[1]);
                exchange.put(to);
                key.put(to);
            }
            Self::Front => to.put(&[2]),
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        match from.byte()? {
            0 => Ok(Self::Queue(from.get()?)),
            1 => Ok(Self::Exchange { exchange: from.get()?, key: from.get()? }),
            2 => Ok(Self::Front),
            number => Err(LetterError::Unknown { what: "way to move", number: number.into() }),
        }
    }
}

impl Field for Named {
    fn put(&self, to: &mut Writer) {
        match self {
            Self::None => to.put(&[0]),
            Self::All => to.put(&[1]),
            Self::OfChannel(connection, channel) => {
                to.put(&[2]);
                connection.put(to);
                channel.put(to);
            }
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        match from.byte()? {
            0 => Ok(Self::None),
            1 => Ok(Self::All),
            2 => Ok(Self::OfChannel(from.get()?, from.get()?)),
            number => {
                Err(LetterError::Unknown { what: "choice of consumers", number: number.into() })
            }
        }
    }
}

/// Things of a few, each a byte.
macro_rules! bytes {
    ($($name:ident: $what:literal { $($number:literal $variant:ident),* })*) => {$(
        impl Field for $name {
            fn put(&self, to: &mut Writer) {
                to.put(&[match self { $(Self::$variant => $number),* }]);
            }

            fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
                match from.byte()? {
                    $($number => Ok(Self::$variant),)*
                    number => Err(LetterError::Unknown { what: $what, number: number.into() }),
                }
            }
        }
    )*};
}

bytes! {
    LookAt: "place of messages" { 0 Ready, 1 Unacked }
    PutResult: "result" { 0 Yes, 1 Refused, 2 NotStored }
}

/// Lists of structures, with the bytes that one has at least.
macro_rules! lists_of {
    ($($name:ty: $min:literal)*) => {$(
        impl Field for Vec<$name> {
            fn put(&self, to: &mut Writer) {
                $crate::letters::field::put_list(self, to);
            }

            fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
                $crate::letters::field::get_list_of($min, from)
            }
        }
    )*};
}

pub(super) use lists_of;

lists_of! { Looked: 8 Allowance: 6 AllowanceState: 6 }
