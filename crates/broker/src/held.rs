//! Answers and letters that wait for a log: parts of an outbox, taken out of it and put back later.
//!
//! A turn writes everything into the one outbox, in order. What depends on the log is then taken out and held until the
//! log has what the turn did: the owner of the names holds answers until its log is durable, a shard until its log is
//! [agreed](leveret_log::Log::agreed) upon. With a log that is durable at once, nothing is moved at all.
//!
//! Some letters of a shard pass those that are held. Deliveries were agreed upon before they were made, or their queue does not wait for
//! that; flow control, statistics and the end of a connection stand on nothing, and neither does what a consumer's ack confirms. A letter
//! that passes makes nothing untrue in those that come later: a consumer's place in its session is free for another one only after a letter
//! that does not pass.

use std::collections::VecDeque;
use std::ops::Range;

use crate::message::{Outbox, Reply, ToSession, ToShard};

/// A place between two letters of an outbox. What the names' owner writes to itself waits for nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bookmark {
    shards: usize,
    sessions: usize,
    events: usize,
    meta: usize,
    answers: usize,
}

impl Bookmark {
    pub(crate) fn end_of(out: &Outbox) -> Self {
        let (shards, sessions) = (out.shards.len(), out.sessions.len());
        let (events, meta, answers) = (out.events.len(), out.meta.len(), out.answers.len());
        Self { shards, sessions, events, meta, answers }
    }

    /// Letters to shards before it.
    pub(crate) fn shards(self) -> usize {
        self.shards
    }

    /// Letters to sessions before it.
    pub(crate) fn sessions(self) -> usize {
        self.sessions
    }

    pub(crate) fn to(self, end: Self) -> Span {
        Span {
            shards: self.shards..end.shards,
            sessions: self.sessions..end.sessions,
            events: self.events..end.events,
            answers: self.answers..end.answers,
        }
    }
}

/// What one letter wrote into an outbox.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    shards: Range<usize>,
    sessions: Range<usize>,
    events: Range<usize>,
    answers: Range<usize>,
}

/// Parts of outboxes, each with how far a log has to be before it is sent. What came first goes first.
#[derive(Debug)]
pub(crate) struct Held<U> {
    parts: VecDeque<(U, Outbox)>,
}

impl<U> Default for Held<U> {
    fn default() -> Self {
        Self { parts: VecDeque::new() }
    }
}

impl<U> Held<U> {
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// How many turns wait.
    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    /// Holds a part until the log is so far.
    pub(crate) fn hold(&mut self, until: U, part: Outbox) {
        self.parts.push_back((until, part));
    }

    /// Sends the parts that the log is far enough for.
    pub(crate) fn free(&mut self, out: &mut Outbox, is_so_far: impl Fn(&U) -> bool) {
        while let Some((_, part)) = self.parts.pop_front_if(|(until, _)| is_so_far(until)) {
            part.append_to(out);
        }
    }

    /// Takes all parts: they are not to be sent.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = Outbox> {
        self.parts.drain(..).map(|(_, part)| part)
    }
}

/// Takes parts of an outbox out; the parts ascend. Both keep their order.
pub(crate) fn take_out(spans: &[Span], out: &mut Outbox) -> Outbox {
    Outbox {
        shards: take_ranges(&mut out.shards, spans.iter().map(|span| span.shards.clone())),
        sessions: take_ranges(&mut out.sessions, spans.iter().map(|span| span.sessions.clone())),
        events: take_ranges(&mut out.events, spans.iter().map(|span| span.events.clone())),
        answers: take_ranges(&mut out.answers, spans.iter().map(|span| span.answers.clone())),
        ..Outbox::default()
    }
}

/// Takes out what a shard wrote since `start` and what stands on its log.
pub(crate) fn take_since(start: Bookmark, out: &mut Outbox) -> Outbox {
    Outbox {
        shards: out.shards.extract_if(start.shards.., |(_, letter)| is_effect(letter)).collect(),
        sessions: out.sessions.extract_if(start.sessions.., |(_, it)| is_answer(it)).collect(),
        events: out.events.split_off(start.events),
        meta: out.meta.split_off(start.meta),
        ..Outbox::default()
    }
}

/// Whether a letter of a shard to another one stands on its log. The others are about flow, memory and lent bytes.
fn is_effect(letter: &ToShard) -> bool {
    matches!(letter, ToShard::DeadLetter { .. } | ToShard::DeadLettered { .. })
}

/// Whether a letter of a shard to a session stands on its log.
fn is_answer(letter: &ToSession) -> bool {
    !matches!(
        letter,
        ToSession::Deliver(_)
            | ToSession::AllowanceStates { .. }
            | ToSession::Paused(_)
            | ToSession::Stopped
            | ToSession::Attach { .. }
            | ToSession::Reply {
                reply: Reply::Got { .. }
                    | Reply::Consuming { .. }
                    | Reply::Done
                    | Reply::Queues(_)
                    | Reply::Sampled(_),
                ..
            }
    )
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
