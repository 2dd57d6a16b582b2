//! Numbered letters, and what their sender hears of them.
//!
//! ```text
//! numbered   varint node | varint start | varint term | varint heard below | varint undecided from | u8 kind of the letter:
//!            1 publish, 2 settle, 3 commit, 4 prepare, 59 ask | its fields
//! stream     varint node | varint start | u8 class: 0 bodies, 1 acks
//! news       stream | u8: 0 agreed, 1 lacks, 2 waits in the log, 3 waits nowhere | varint number | of agreed: varint told
//!            | of those that wait: varint first, last | of those in the log: varint offset
//! asked      varint place | varint channel | varint confirm | u8: 0 in memory, 1 in the log, 2 nowhere
//!            | publish, or list of varint queues and varint offset
//! ```
//!
//! The number of a numbered letter is in its envelope, and so is the term of news. The class of its stream follows from the letter.

use leveret_broker::message::ToShard;
use leveret_broker::stream::{
    AskedMessage, Numbered, StreamClass, StreamEvent, StreamId, StreamNews, Whereabouts,
};
use leveret_queue::Offset;
use leveret_topology::{GroupId, NodeId};

use super::field::{Field, Reader, put_list};
use super::table::{ASK, COMMIT, Listed as _, PREPARE, PUBLISH, SETTLE};
use super::{LetterError, NotSent, messages};
use crate::payload::Writer;

const AGREED: u8 = 0;
const LACKS: u8 = 1;
const WAITS_IN_LOG: u8 = 2;
const WAITS_NOWHERE: u8 = 3;

const IN_MEMORY: u8 = 0;
const IN_LOG: u8 = 1;
const NOWHERE: u8 = 2;

/// Writes a numbered letter.
///
/// # Errors
///
/// When the letter in it is one that gets no number. Nothing is written then.
pub(super) fn put_numbered(
    numbered: &Numbered,
    group: GroupId,
    to: &mut Writer,
) -> Result<(), NotSent> {
    let Numbered { stream, term, heard_below, undecided_from, letter, .. } = numbered;
    let StreamId { node, start, class: _ } = stream;
    let kind @ (PUBLISH | SETTLE | COMMIT | PREPARE | ASK) = letter.number()? else {
        return Err(NotSent::NotYet(letter.kind()));
    };
    node.get().put(to);
    start.put(to);
    term.put(to);
    heard_below.put(to);
    undecided_from.put(to);
    to.put(&[kind]);
    match letter {
        ToShard::GiveBack { from, unsettled } => {
            from.put(to);
            messages::put_given_back(unsettled, group, to);
        }
        letter => letter.put_fields(to),
    }
    Ok(())
}

/// Reads the letter with this number.
pub(super) fn get_numbered(
    (number, is_again): (u64, bool),
    from: &mut Reader<'_>,
) -> Result<ToShard, LetterError> {
    let (node, start) = (get_node(from)?, from.get()?);
    let (term, heard_below, undecided_from) = (from.get()?, from.get()?, from.get()?);
    if number == 0 {
        return Err(LetterError::Stream("number"));
    }
    let kind = from.byte()?;
    let class = match kind {
        PUBLISH | COMMIT | PREPARE | ASK => StreamClass::Bodies,
        SETTLE => StreamClass::Acks,
        kind => {
            return Err(LetterError::Unknown { what: "numbered letter", number: kind.into() });
        }
    };
    let letter = ToShard::get_fields(kind, from)?;
    let stream = StreamId { node, start, class };
    let numbered = Numbered { stream, number, term, heard_below, undecided_from, is_again, letter };
    Ok(ToShard::Numbered(Box::new(numbered)))
}

pub(super) fn put_news(news: &StreamNews, to: &mut Writer) {
    let StreamNews { stream, term: _, what } = *news;
    stream.put(to);
    match what {
        StreamEvent::Agreed { low, told } => {
            to.put(&[AGREED]);
            low.put(to);
            told.put(to);
        }
        StreamEvent::Lacks(number) => {
            to.put(&[LACKS]);
            number.put(to);
        }
        StreamEvent::Waits { number, first, last, at } => {
            to.put(&[if at.is_some() { WAITS_IN_LOG } else { WAITS_NOWHERE }]);
            number.put(to);
            first.put(to);
            last.put(to);
            at.into_iter().for_each(|at| at.put(to));
        }
    }
}

/// Reads the news of a term.
pub(super) fn get_news(term: u64, from: &mut Reader<'_>) -> Result<StreamNews, LetterError> {
    let stream = from.get()?;
    let what = match from.byte()? {
        AGREED => StreamEvent::Agreed { low: from.get()?, told: from.get()? },
        LACKS => StreamEvent::Lacks(from.get()?),
        kind @ (WAITS_IN_LOG | WAITS_NOWHERE) => {
            let (number, first, last) = (from.get()?, from.get()?, from.get()?);
            let at: Option<Offset> = if kind == WAITS_IN_LOG { Some(from.get()?) } else { None };
            let is_run =
                |more: u32| at.is_none_or(|at| at.get().checked_add(u64::from(more)).is_some());
            if !u32::checked_sub(last, first).is_some_and(is_run) {
                return Err(LetterError::Stream("messages"));
            }
            StreamEvent::Waits { number, first, last, at }
        }
        number => return Err(LetterError::Unknown { what: "news", number: number.into() }),
    };
    Ok(StreamNews { stream, term, what })
}

impl Field for StreamId {
    const MIN: usize = 3;

    fn put(&self, to: &mut Writer) {
        self.node.get().put(to);
        self.start.put(to);
        to.put(&[match self.class {
            StreamClass::Bodies => 0,
            StreamClass::Acks => 1,
        }]);
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        let (node, start) = (get_node(from)?, from.get()?);
        let class = match from.byte()? {
            0 => StreamClass::Bodies,
            1 => StreamClass::Acks,
            number => {
                let number = number.into();
                return Err(LetterError::Unknown { what: "class of stream", number });
            }
        };
        Ok(Self { node, start, class })
    }
}

impl Field for AskedMessage {
    const MIN: usize = 4;

    fn put(&self, to: &mut Writer) {
        let Self { place, channel, confirm, whereabouts } = self;
        place.put(to);
        channel.put(to);
        confirm.put(to);
        match whereabouts {
            Whereabouts::Memory(message) => {
                to.put(&[IN_MEMORY]);
                message.put(to);
            }
            Whereabouts::Log(targets, at) => {
                to.put(&[IN_LOG]);
                put_list(targets, to);
                at.put(to);
            }
            Whereabouts::Nowhere => to.put(&[NOWHERE]),
        }
    }

    fn get(from: &mut Reader<'_>) -> Result<Self, LetterError> {
        let (place, channel, confirm) = (from.get()?, from.get()?, from.get()?);
        let whereabouts = match from.byte()? {
            IN_MEMORY => Whereabouts::Memory(from.get()?),
            IN_LOG => Whereabouts::Log(messages::get_targets(from)?, from.get()?),
            NOWHERE => Whereabouts::Nowhere,
            number => {
                let number = number.into();
                return Err(LetterError::Unknown { what: "whereabouts", number });
            }
        };
        Ok(Self { place, channel, confirm, whereabouts })
    }
}

pub(super) fn get_node(from: &mut Reader<'_>) -> Result<NodeId, LetterError> {
    NodeId::new(from.get()?).ok_or(LetterError::Stream("node"))
}
