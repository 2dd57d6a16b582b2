//! The letters, the numbers of their kinds, and their fields in the order in which they are written.
//!
//! Each letter is in one of three places of its table: it has a number and fields; it `stays` in its process; or it is `not yet`
//! written for a link. The tables are matches without a wildcard, so a new letter is put in its place or is not compiled.
//! `docs/decisions/0061-letters-over-links.md` says why a letter travels and how often.
//!
//! A number is never given to another letter, and the fields of a letter stay as they are: a letter that changes gets a new number.

use leveret_broker::message::{Reply, ToMeta, ToSession, ToShard};

use super::field::{Field, Reader};
use super::{LetterError, NotSent};
use crate::frame::{Class, Kind};
use crate::payload::Writer;

/// The kind of [`ToShard::Consume`], whose gate stays in its process.
pub(super) const CONSUME: u8 = 6;
/// The kind of [`ToShard::Attach`], whose consumers' gates stay.
pub(super) const ATTACH: u8 = 24;
/// The kind of [`ToShard::Allow`].
pub(super) const ALLOW: u8 = 57;
/// The kind of [`ToShard::Ask`].
pub(super) const ASK: u8 = 59;
/// The kind of [`ToShard::StoreWaiting`].
pub(super) const STORE_WAITING: u8 = 60;
/// The kind of [`ToShard::Numbered`], whose number is in its envelope.
pub(super) const NUMBERED: u8 = 22;
/// The kinds of the letters that may be in one: [`ToShard::Publish`], [`ToShard::Settle`], as which [`ToShard::GiveBack`] comes,
/// transactions, and [`ToShard::Ask`].
pub(super) const PUBLISH: u8 = 1;
pub(super) const SETTLE: u8 = 2;
pub(super) const COMMIT: u8 = 3;
pub(super) const PREPARE: u8 = 4;
/// The kind of [`StreamNews`](leveret_broker::stream::StreamNews).
pub(super) const NEWS: u8 = 56;

/// The kind of [`ToMeta::Numbered`], whose number is in its envelope.
pub(super) const COMMAND: u8 = 35;
/// The kind of what a node of sessions and the node that leads say besides letters of actors.
pub(super) const REMOTE: u8 = 58;

/// Whether a letter is of that kind.
pub(super) fn is_remote(kind: Kind) -> bool {
    kind == Kind::new(Class::Letters, REMOTE)
}

/// What is in a table.
pub(super) trait Listed: Sized {
    /// Its number.
    fn number(&self) -> Result<u8, NotSent>;

    /// Writes its fields, if it has a number.
    fn put_fields(&self, to: &mut Writer);

    /// Reads the fields of the one with this number.
    fn get_fields(number: u8, from: &mut Reader<'_>) -> Result<Self, LetterError>;
}

/// A table: each letter with its number and fields, or why it has none. Those that are written `by hand` are so by whoever calls.
macro_rules! table {
    (
        $to:ident: $what:literal;
        $($number:literal $variant:ident { $($field:ident),* })*
        of one value: $($of_value:literal $value:ident)*;
        by hand: $($of_hand:literal $by_hand:ident)*;
        stays: $($stays:ident)*;
        not yet: $($not_yet:ident)*;
    ) => {
        impl Listed for $to {
            fn number(&self) -> Result<u8, NotSent> {
                match self {
                    $(Self::$variant { .. } => Ok($number),)*
                    $(Self::$value(..) => Ok($of_value),)*
                    $(Self::$by_hand { .. } => Ok($of_hand),)*
                    $(Self::$stays { .. } => Err(NotSent::Stays(stringify!($stays))),)*
                    $(Self::$not_yet { .. } => Err(NotSent::NotYet(stringify!($not_yet))),)*
                }
            }

            fn put_fields(&self, to: &mut Writer) {
                match self {
                    $(Self::$variant { $($field),* } => { $($field.put(to);)* })*
                    $(Self::$value(value) => value.put(to),)*
                    _ => {}
                }
            }

            fn get_fields(number: u8, from: &mut Reader<'_>) -> Result<Self, LetterError> {
                match number {
                    $($number => Ok(Self::$variant { $($field: from.get()?),* }),)*
                    $($of_value => Ok(Self::$value(from.get()?)),)*
                    _ => Err(LetterError::Unknown { what: $what, number: number.into() }),
                }
            }
        }
    };
}

table! {
    ToShard: "letter to a shard";
    1 Publish { from, messages }
    2 Settle { from, settlements }
    3 Commit { reply, messages, settlements }
    4 Prepare { reply, tx, parts, messages, settlements }
    5 Decide { tx, commit }
    7 Cancel { user, reply, connection, queue, slot }
    8 Get { reply, queue, no_ack }
    9 Count { reply, queue }
    10 Purge { reply, queue, max }
    11 Look { reply, queue, place, from, max }
    12 Discard { reply, queue, offsets }
    13 Move { reply, queue, offsets, to }
    14 Delete { by, reply, queue, if_unused, if_empty }
    15 DeadLetter { from, message }
    16 DeadLettered { from, target, taken }
    17 Remember { from, exchange, limit, message }
    18 Disconnected { connection, reply }
    19 IsWell { reply }
    20 List { reply, queues, consumers }
    21 Sample { reply, begins }
    57 Allow { connection, allowances }
    59 Ask { from, messages }
    60 StoreWaiting { stream, up_to }
    of one value: 23 Attached;
    // What was given back is settlements; a consumer's gate is not written; a numbered letter has another one in it.
    by hand: 2 GiveBack 6 Consume 22 Numbered 24 Attach;
    stays: Resume CancelRest Create OptionsChanged Replay Forget Crowded Continue LogWoke Freed Lend Lent;
    not yet:;
}

table! {
    ToMeta: "letter to the owner of the names";
    25 DeclareExchange { by, reply, vhost, name, kind, durable, auto_delete, internal, arguments, forbidden }
    26 DeleteExchange { by, reply, vhost, name, if_unused }
    27 DeclareQueue { by, reply, vhost, name, server_named, durable, exclusive, auto_delete, arguments, forbidden }
    30 QueueGone { by, queue, reply, consumers, more }
    31 Disconnected { connection, reply }
    32 Prepared { from, tx, group, parts, vote }
    33 Applied { tx, group }
    34 IsWell { reply }
    of one value: 28 Bind 29 Unbind;
    // It has another one in it.
    by hand: 35 Numbered;
    stays: VhostGoes Continue LogWoke;
    not yet: Admin;
}

table! {
    ToSession: "letter to a session";
    41 Confirm { channel, first, last, ok }
    42 ConfirmTimeout { channel, first, last }
    43 Reply { channel, reply }
    44 ConsumerGone { slot }
    45 DirectReply { channel, token, message }
    46 DirectReplyAsked { reply, channel, token }
    47 Attach { group, term, begins_at }
    48 AllowanceStates { group, states }
    50 Close { code, text }
    51 Stopped {}
    of one value: 40 Deliver 49 Paused;
    by hand:;
    stays: LoggedIn Decided Alarm Room;
    not yet:;
}

table! {
    Reply: "answer";
    1 Done {}
    2 Declared { queue, messages, consumers }
    3 Gone {}
    16 Consuming { number }
    5 Cancelled { slot }
    6 Got { delivery, remaining }
    7 GotNothing {}
    12 Committed {}
    13 Refused { code, text }
    of one value: 8 Purged 9 Moved 10 Looked 11 Deleted 14 Queues 15 Sampled;
    by hand:;
    stays:;
    not yet: Imported;
}

/// Its number, and its fields. Whoever writes an answer has asked for its number before.
impl Field for Reply {
    fn put(&self, to: &mut Writer) {
        if let Ok(number) = self.number() {
            to.put(&[number]);
            self.put_fields(to);
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        let number = from.byte()?;
        Self::get_fields(number, from)
    }
}
