//! Answers and letters that wait for the log: parts of an outbox, taken out of it and put back later.
//!
//! A turn writes everything into the one outbox, in order, and notes which parts depend on the log.
//! With a log that is durable at once, nothing is moved at all.

use std::ops::Range;

use leveret_amqp::reply::ReplyCode;
use leveret_log::Offset;

use super::saved::SaveError;
use crate::message::{Outbox, Reply, ToSession, ToShard};

/// A place between two letters of an outbox. What Meta writes to itself waits for nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    shards: usize,
    sessions: usize,
    events: usize,
}

impl Place {
    pub(super) fn end_of(out: &Outbox) -> Self {
        let (shards, sessions) = (out.shards.len(), out.sessions.len());
        Self { shards, sessions, events: out.events.len() }
    }

    pub(super) fn to(self, end: Self) -> Span {
        Span {
            shards: self.shards..end.shards,
            sessions: self.sessions..end.sessions,
            events: self.events..end.events,
        }
    }
}

/// What one letter wrote into an outbox.
#[derive(Clone, Debug)]
pub(super) struct Span {
    shards: Range<usize>,
    sessions: Range<usize>,
    events: Range<usize>,
}

/// What is sent once the log is durable up to `until`.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) until: Offset,
    pub(super) out: Outbox,
}

/// Takes parts of an outbox out; the parts ascend. Both keep their order.
pub(super) fn take_out(spans: &[Span], out: &mut Outbox) -> Outbox {
    Outbox {
        shards: take_ranges(&mut out.shards, spans.iter().map(|span| span.shards.clone())),
        sessions: take_ranges(&mut out.sessions, spans.iter().map(|span| span.sessions.clone())),
        events: take_ranges(&mut out.events, spans.iter().map(|span| span.events.clone())),
        meta: Vec::new(),
        logins: Vec::new(),
        steps: Vec::new(),
        asked: Vec::new(),
        failed: None,
    }
}

fn take_ranges<T>(from: &mut Vec<T>, ranges: impl Iterator<Item = Range<usize>>) -> Vec<T> {
    let mut ranges = ranges.filter(|range| !range.is_empty()).peekable();
    let Some(first) = ranges.peek().map(|range| range.start) else { return Vec::new() };
    let mut taken = Vec::new();
    let rest: Vec<T> = from.drain(first..).collect();
    for (at, letter) in (first..).zip(rest) {
        while ranges.next_if(|range| range.end <= at).is_some() {}
        if ranges.peek().is_some_and(|range| range.contains(&at)) {
            taken.push(letter);
        } else {
            from.push(letter);
        }
    }
    taken
}

/// Refuses parts of an outbox; the parts ascend.
pub(super) fn refuse(spans: &[Span], out: &mut Outbox, error: &SaveError) {
    let held = take_out(spans, out);
    refuse_all(held, out, error);
}

/// Tells everybody who would have been answered that it did not happen.
pub(super) fn refuse_all(held: Outbox, out: &mut Outbox, error: &SaveError) {
    let refused = || Reply::Refused { code: ReplyCode::InternalError, text: error.to_string() };
    for (shard, letter) in held.shards {
        match letter {
            ToShard::Create { reply: Some(reply), .. } | ToShard::Count { reply, .. } => {
                out.reply(reply, refused());
            }
            // It is not decided, and will not be.
            ToShard::Decide { tx, .. } if matches!(error, SaveError::Append(_)) => {
                out.shard(shard, ToShard::Decide { tx, commit: false });
            }
            // The topology has changed all the same, and is written when there is room: shards are to be
            // like it. After a failed sync the process ends.
            other if matches!(error, SaveError::Append(_)) => out.shard(shard, other),
            _ => {}
        }
    }
    // As with what shards are told: it is so, if not yet on disk.
    if matches!(error, SaveError::Append(_)) {
        out.events.extend(held.events);
    }
    for (connection, letter) in held.sessions {
        let letter = match letter {
            ToSession::Reply { reply: reply @ Reply::Refused { .. }, channel } => {
                ToSession::Reply { channel, reply }
            }
            ToSession::Reply { channel, .. } => ToSession::Reply { channel, reply: refused() },
            other => other,
        };
        out.session(connection, letter);
    }
}
