//! Numbered letters, and what their sender hears of them.
//!
//! ```text
//! numbered   varint node | varint start | varint kept from | u8 kind of the letter: 1 publish, 2 settle, 3 commit,
//!            4 prepare | its fields
//! news       varint node | varint start | u8 class: 0 bodies, 1 acks | u8: 0 agreed, 1 lacks, 2 full | varint number
//!            | of full: varint kept from
//! ```
//!
//! The number of a numbered letter is in its envelope, and so is the term of news. The class of its stream follows from the letter.

use leveret_broker::message::ToShard;
use leveret_broker::stream::{Numbered, StreamClass, StreamEvent, StreamId, StreamNews};
use leveret_topology::{GroupId, NodeId};

use super::field::{Field as _, Reader};
use super::table::{COMMIT, Listed as _, PREPARE, PUBLISH, SETTLE};
use super::{LetterError, NotSent, messages};
use crate::payload::Writer;

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
    let Numbered { stream, number: _, term, heard_below, undecided_from, letter } = numbered;
    let StreamId { node, start, class: _ } = stream;
    let kind @ (PUBLISH | SETTLE | COMMIT | PREPARE) = letter.number()? else {
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
pub(super) fn get_numbered(number: u64, from: &mut Reader<'_>) -> Result<ToShard, LetterError> {
    let (node, start) = (get_node(from)?, from.get()?);
    let (term, heard_below, undecided_from) = (from.get()?, from.get()?, from.get()?);
    if number == 0 {
        return Err(LetterError::Stream("number"));
    }
    let kind = from.byte()?;
    let class = match kind {
        PUBLISH | COMMIT | PREPARE => StreamClass::Bodies,
        SETTLE => StreamClass::Acks,
        kind => {
            return Err(LetterError::Unknown { what: "numbered letter", number: kind.into() });
        }
    };
    let letter = ToShard::get_fields(kind, from)?;
    let stream = StreamId { node, start, class };
    let numbered = Numbered { stream, number, term, heard_below, undecided_from, letter };
    Ok(ToShard::Numbered(Box::new(numbered)))
}

pub(super) fn put_news(news: &StreamNews, to: &mut Writer) {
    let StreamNews { stream: StreamId { node, start, class }, term: _, what } = *news;
    node.get().put(to);
    start.put(to);
    let class = match class {
        StreamClass::Bodies => 0,
        StreamClass::Acks => 1,
    };
    let (what, number, told) = match what {
        StreamEvent::Agreed { low, told } => (0, low, Some(told)),
        StreamEvent::Lacks(number) => (1, number, None),
    };
    to.put(&[class, what]);
    number.put(to);
    told.into_iter().for_each(|it| it.put(to));
}

/// Reads the news of a term.
pub(super) fn get_news(term: u64, from: &mut Reader<'_>) -> Result<StreamNews, LetterError> {
    let (node, start) = (get_node(from)?, from.get()?);
    let class = match from.byte()? {
        0 => StreamClass::Bodies,
        1 => StreamClass::Acks,
        number => {
            return Err(LetterError::Unknown { what: "class of stream", number: number.into() });
        }
    };
    let what = match from.byte()? {
        0 => StreamEvent::Agreed { low: from.get()?, told: from.get()? },
        1 => StreamEvent::Lacks(from.get()?),
        number => return Err(LetterError::Unknown { what: "news", number: number.into() }),
    };
    Ok(StreamNews { stream: StreamId { node, start, class }, term, what })
}

pub(super) fn get_node(from: &mut Reader<'_>) -> Result<NodeId, LetterError> {
    NodeId::new(from.get()?).ok_or(LetterError::Stream("node"))
}
