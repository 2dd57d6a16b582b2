//! From the outbox of a turn into inboxes.
//!
//! Hot path: once or twice a turn; no allocation unless a letter comes back or an inbox is crowded.
//!
//! The order is the same for everybody who drives actors:
//!
//! 1. What is for others than actors: logins, events, steps of traced messages. Their answers may be letters, which go with the rest.
//! 2. Letters to shards, then to the topology's owner, then to sessions. Letters to one actor keep their order.
//! 3. Letters that come of the second. To shards: what a session that is gone was to get, and what ends the pause of a
//!    connection that brings more letters than a shard takes; the pause itself is posted before. To sessions: that whom they
//!    asked is gone.

use std::iter::Peekable;
use std::vec::Drain;

use leveret_broker::command::Answered;
use leveret_broker::flow::INBOX_LETTERS_MAX;
use leveret_broker::login::{Asked, Login};
use leveret_broker::message::{ConnectionId, Outbox, Step, ToMeta, ToSession, ToShard};
use leveret_broker::stream::StreamNews;
use leveret_topology::GroupId;

use crate::return_undelivered;

/// Letters that an outbox keeps room for.
const KEPT_LETTERS: usize = 4096;

/// Whoever drives actors: where their letters wait, and what is outside of the broker.
pub trait Inboxes {
    /// Leaves a letter with one of them. How many wait there now.
    fn to_shard(&mut self, group: GroupId, letter: ToShard) -> usize;

    /// Leaves letters with the topology's owner.
    fn to_meta(&mut self, letters: Drain<'_, ToMeta>);

    /// Leaves letters with a session. One that is gone takes none: they go back to where they came from.
    fn to_session(&mut self, id: ConnectionId, letters: &mut Run<'_, '_>);

    /// A client wants to come in. The answer, if there is one at once, goes to `outbox`.
    fn login(&mut self, login: Login, outbox: &mut Outbox);

    /// Somebody else than the topology's owner has to decide.
    fn asked(&mut self, asked: Asked);

    /// Takes the events of `outbox`; for those who consume them letters may be left there.
    fn events(&mut self, outbox: &mut Outbox);

    /// Takes steps of messages in traced vhosts.
    fn steps(&mut self, steps: &mut Vec<Step>);

    /// Takes what shards tell of streams: whoever numbers no letters is told nothing.
    fn news(&mut self, news: &mut Vec<(GroupId, StreamNews)>) {
        news.clear();
    }

    /// Takes what the owner of the names answers to numbered commands: whoever numbers none is told nothing.
    fn answers(&mut self, answers: &mut Vec<Answered>, outbox: &mut Outbox) {
        let _ = outbox;
        answers.clear();
    }

    /// A log failed: nothing may be confirmed any more.
    fn failed(&mut self, why: String);
}

/// Letters in a row for one session.
#[derive(Debug)]
pub struct Run<'a, 'b> {
    to: ConnectionId,
    first: Option<ToSession>,
    rest: &'a mut Peekable<Drain<'b, (ConnectionId, ToSession)>>,
}

impl Iterator for Run<'_, '_> {
    type Item = ToSession;

    #[inline]
    fn next(&mut self) -> Option<ToSession> {
        let first = self.first.take();
        first.or_else(|| self.rest.next_if(|(to, _)| *to == self.to).map(|(_, letter)| letter))
    }
}

/// Puts all letters of `outbox` into their inboxes: it is empty afterwards.
pub fn post(outbox: &mut Outbox, to: &mut impl Inboxes) {
    outside(outbox, to);
    let mut crowded = Vec::new();
    for (group, letter) in outbox.shards.drain(..) {
        let from = who_publishes(&letter);
        let waiting = to.to_shard(group, letter);
        if waiting > INBOX_LETTERS_MAX
            && let Some(from) = from
        {
            // The shard does not keep up: this connection pauses until a turn has taken all of them.
            outbox.sessions.push((from, ToSession::Paused(true)));
            crowded.push((group, ToShard::Crowded { from }));
        }
    }
    if outbox.shards.capacity() > KEPT_LETTERS {
        outbox.shards = Vec::new();
    }
    if !outbox.meta.is_empty() {
        to.to_meta(outbox.meta.drain(..));
    }
    let mut returned = Outbox::default();
    to_sessions(&mut outbox.sessions, to, &mut returned);
    if outbox.sessions.capacity() > KEPT_LETTERS {
        outbox.sessions = Vec::new();
    }
    // Behind the verdicts that it stands on.
    if !outbox.news.is_empty() {
        to.news(&mut outbox.news);
    }
    // Only now, after the letter that pauses the connection: the shard answers with the letter that ends the pause.
    for (group, letter) in returned.shards.drain(..).chain(crowded) {
        to.to_shard(group, letter);
    }
    // Nothing comes of these, whether those who asked are there or not.
    let mut answers = std::mem::take(&mut returned.sessions);
    to_sessions(&mut answers, to, &mut returned);
    debug_assert!(returned.is_empty(), "an answer that nobody takes is followed by {returned:?}");
}

/// Puts letters into the inboxes of sessions. What comes of those that a session does not take is in `returned`.
fn to_sessions(
    letters: &mut Vec<(ConnectionId, ToSession)>,
    to: &mut impl Inboxes,
    returned: &mut Outbox,
) {
    let mut rest = letters.drain(..).peekable();
    while let Some((id, first)) = rest.next() {
        // Most turns write to few connections: letters in a row for one of them are one run.
        let mut run = Run { to: id, first: Some(first), rest: &mut rest };
        to.to_session(id, &mut run);
        run.for_each(|letter| return_undelivered(id, letter, returned));
    }
}

/// What is not for actors. It may leave letters for them.
fn outside(outbox: &mut Outbox, to: &mut impl Inboxes) {
    for login in std::mem::take(&mut outbox.logins) {
        to.login(login, outbox);
    }
    if !outbox.events.is_empty() {
        to.events(outbox);
    }
    if !outbox.steps.is_empty() {
        to.steps(&mut outbox.steps);
    }
    if let Some(why) = outbox.failed.take() {
        to.failed(why);
    }
    if !outbox.answers.is_empty() {
        let mut answers = std::mem::take(&mut outbox.answers);
        to.answers(&mut answers, outbox);
    }
    for asked in std::mem::take(&mut outbox.asked) {
        to.asked(asked);
    }
}

/// The connection whose messages or settlements a letter brings.
fn who_publishes(letter: &ToShard) -> Option<ConnectionId> {
    match letter {
        ToShard::Publish { from, .. }
        | ToShard::Settle { from, .. }
        | ToShard::GiveBack { from, .. } => {
            Some(*from).filter(|from| *from != ConnectionId::NOBODY)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use leveret_broker::message::{ConsumerSlot, Delivery, NodeId, Reply, ReplyTo};
    use leveret_queue::{Offset, UnackedId};
    use leveret_topology::{Event, QueueId};

    use super::*;

    const GONE: ConnectionId = NodeId::ALONE.connection(9);

    /// Writes down who gets what; nobody reads.
    #[derive(Default)]
    struct Diary {
        lines: Vec<String>,
        inboxes: [VecDeque<ToShard>; 2],
    }

    impl Inboxes for Diary {
        fn to_shard(&mut self, group: GroupId, letter: ToShard) -> usize {
            let index = group.index();
            let words = match &letter {
                ToShard::Settle { from, settlements } => {
                    let offsets = settlements.iter().map(|it| it.offset.get().to_string());
                    format!("Settle of {from}: {}", offsets.collect::<Vec<_>>().join(","))
                }
                other => format!("{other:?}"),
            };
            self.lines.push(format!("shard {index}: {words}"));
            self.inboxes[index].push_back(letter);
            self.inboxes[index].len()
        }

        fn to_meta(&mut self, letters: Drain<'_, ToMeta>) {
            self.lines.extend(letters.map(|letter| format!("meta: {letter:?}")));
        }

        fn to_session(&mut self, id: ConnectionId, letters: &mut Run<'_, '_>) {
            if id != GONE {
                let letters: Vec<_> = letters.map(|letter| format!("{letter:?}")).collect();
                self.lines.push(format!("session {}: {}", id, letters.join(" ")));
            }
        }

        fn login(&mut self, _: Login, _: &mut Outbox) {}

        fn asked(&mut self, _: Asked) {}

        fn events(&mut self, outbox: &mut Outbox) {
            for event in outbox.events.drain(..) {
                self.lines.push(event.name.to_string());
                outbox.shards.push((GroupId::at(1), ToShard::LogWoke));
            }
        }

        fn steps(&mut self, _: &mut Vec<Step>) {}

        fn failed(&mut self, why: String) {
            self.lines.push(why);
        }
    }

    fn posted(mut outbox: Outbox, diary: &mut Diary) -> Vec<String> {
        post(&mut outbox, diary);
        assert!(outbox.is_empty());
        std::mem::take(&mut diary.lines)
    }

    fn delivery(queue: u64, home: u32, offset: u64) -> Delivery {
        Delivery {
            slot: ConsumerSlot(0),
            queue: QueueId::new(queue),
            home: GroupId::new(home),
            unacked: Some(UnackedId::new(1)),
            offset: Offset::new(offset),
            redelivered: false,
            delivery_count: 0,
            record: Default::default(),
        }
    }

    fn settle(from: ConnectionId) -> ToShard {
        ToShard::Settle { from, settlements: Vec::new() }
    }

    #[test]
    fn everybody_gets_his_letters_in_one_order() {
        let (one, other) = (NodeId::ALONE.connection(1), NodeId::ALONE.connection(2));
        let mut outbox = Outbox::default();
        outbox.session(one, ToSession::Stopped);
        outbox.session(one, ToSession::Paused(true));
        outbox.session(other, ToSession::Stopped);
        outbox.session(one, ToSession::Paused(false));
        outbox.meta.push(ToMeta::LogWoke);
        outbox.shard(GroupId::at(0), ToShard::Continue);
        outbox.events.push(Event::new("queue.created"));
        outbox.failed = Some("no disk".to_owned());
        let lines = posted(outbox, &mut Diary::default());
        let want = [
            "queue.created",
            "no disk",
            "shard 0: Continue",
            "shard 1: LogWoke",
            "meta: LogWoke",
            "session 1: Stopped Paused(true)",
            "session 2: Stopped",
            "session 1: Paused(false)",
        ];
        assert_eq!(lines, want);
    }

    /// Messages that were on their way to it are in their queues again.
    #[test]
    fn letters_to_a_session_that_is_gone_come_back() {
        let mut outbox = Outbox::default();
        outbox.session(GONE, ToSession::Deliver(vec![delivery(2, 1, 7), delivery(3, 0, 8)]));
        outbox.session(GONE, ToSession::Stopped);
        outbox.session(GONE, ToSession::Deliver(vec![delivery(2, 1, 9)]));
        outbox.session(NodeId::ALONE.connection(1), ToSession::Stopped);
        let lines = posted(outbox, &mut Diary::default());
        let want = [
            "session 1: Stopped",
            "shard 1: Settle of 9: 7",
            "shard 0: Settle of 9: 8",
            "shard 1: Settle of 9: 9",
        ];
        assert_eq!(lines, want);
    }

    /// Whoever asks one that is gone is told, without a shard. If he is gone, too, that is all.
    #[test]
    fn a_question_to_a_session_that_is_gone_is_answered() {
        let asker = NodeId::ALONE.connection(1);
        let ask = |asker| ToSession::DirectReplyAsked {
            reply: ReplyTo { connection: asker, channel: 3 },
            channel: 7,
            token: 0,
        };
        let mut outbox = Outbox::default();
        outbox.session(GONE, ask(asker));
        outbox.session(GONE, ask(GONE));
        outbox.session(asker, ToSession::Stopped);
        let lines = posted(outbox, &mut Diary::default());
        let answer =
            format!("session 1: {:?}", ToSession::Reply { channel: 3, reply: Reply::Gone });
        assert_eq!(lines, ["session 1: Stopped", &answer]);
    }

    /// Its pause is in its inbox before the shard can end it.
    #[test]
    fn who_brings_more_than_a_shard_takes_pauses() {
        let from = NodeId::ALONE.connection(1);
        let mut diary = Diary::default();
        diary.inboxes[0].extend((1..INBOX_LETTERS_MAX).map(|_| ToShard::LogWoke));
        let mut outbox = Outbox::default();
        outbox.shard(GroupId::at(0), settle(from));
        assert_eq!(posted(outbox, &mut diary), ["shard 0: Settle of 1: "]);
        let mut outbox = Outbox::default();
        outbox.shard(GroupId::at(0), settle(from));
        outbox.shard(GroupId::at(0), settle(ConnectionId::NOBODY));
        outbox.shard(GroupId::at(0), ToShard::Continue);
        let lines = posted(outbox, &mut diary);
        let crowded = format!("shard 0: {:?}", ToShard::Crowded { from });
        let want = [
            "shard 0: Settle of 1: ",
            "shard 0: Settle of 0@0: ",
            "shard 0: Continue",
            "session 1: Paused(true)",
            &crowded,
        ];
        assert_eq!(lines, want);
    }
}
