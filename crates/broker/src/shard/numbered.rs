//! Numbered letters are done once: see [`stream`](crate::stream).
//!
//! What is missing between a number and the one before is asked for; a number that is done is answered, and nothing else. In this
//! term it is on its way to its publisher. From before nobody knows whether it came: then a message that was taken is
//! confirmed again, and one that was refused is refused again. A message that was to wait for its consumer (rules `ack`
//! and `ack-lean`) cannot be told from one that was acked: its publisher is told no, as after a time-out. By which rule it was taken the
//! note says: its queues may have another one by now.
//!
//! Such an answer stands on what is agreed upon. If one of the message's queues wants it on all members in contact now
//! (`replication-confirm`), the answer waits until these have what the log had when the term began. A letter that its sender knows to be
//! agreed upon comes without the queues of its messages: then one such queue in the shard is enough.

use leveret_amqp::reply::ReplyCode;
use leveret_log::{Log, Moment};
use leveret_queue::Time;
use leveret_topology::Topology;

use super::Shard;
use super::confirms::UnresolvedMessage;
use super::jobs::{Job, JobOrigin, cost, price_of, price_of_rest};
use super::store::{Noted, Waiter};
use super::streams::{NumberFate, Outcome};
use super::transactions::refuse;
use crate::message::{Outbox, Publish, Reply, ReplyTo, ToShard};
use crate::stream::{Numbered, StreamEvent, StreamId, StreamPlace, Tag};
use crate::transaction::Vote;

impl<L: Log> Shard<L> {
    /// A letter with a number came.
    pub(super) fn numbered(
        &mut self,
        numbered: Numbered,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) {
        let Numbered { stream, number, term, heard_below, undecided_from, letter } = numbered;
        if term < self.streams.term() {
            return self.jobs.count();
        }
        let tag = Tag { stream, number };
        if number == 1 {
            // All letters of its earlier starts came before.
            self.keep_streams(|it| it.node != stream.node || it.start >= stream.start);
        }
        self.forget_undecided(stream, undecided_from);
        match self.streams.take(stream, number, heard_below, undecided_from) {
            NumberFate::Next { done } => {
                let heard = match self.attaching.is_on() {
                    false => Some(letter),
                    true => self.attaching.hear_numbered(tag, done, letter),
                };
                if let Some(letter) = heard {
                    self.begin_numbered(tag, done, letter, topology, now, out);
                }
            }
            NumberFate::Earlier => {
                return self.answer(tag, &letter, usize::MAX, out);
            }
            NumberFate::Lacks(next) => {
                let news = self.streams.news(stream, StreamEvent::Lacks(next));
                out.news.push((self.group, news));
            }
            NumberFate::Again | NumberFate::StillLacks => {}
        }
        // What it cost is taken from the turn already.
        self.jobs.count();
    }

    /// The sender waits for the answer to no part in the letters below.
    #[inline]
    pub(super) fn forget_undecided(&mut self, stream: StreamId, undecided_from: u64) {
        while let Some(part) = self.streams.forgets_below(stream, undecided_from) {
            self.store.release_note(part);
        }
    }

    /// Does a letter of which so much is done.
    pub(super) fn begin_numbered(
        &mut self,
        tag: Tag,
        done: u32,
        letter: ToShard,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) {
        let heard = match self.cut_off.is_empty() {
            true => Some(letter),
            false => self.hear_cut_off(letter, topology, now, out),
        };
        match heard {
            Some(letter) if done > 0 => {
                self.answer(tag, &letter, done as usize, out);
                self.go_on_with(tag, letter, done as usize, out);
            }
            Some(letter) => {
                self.streams.begin(tag, 0, messages_of(&letter));
                self.letter(letter, topology, now, out);
                self.streams.end();
            }
            None => self.streams.is_done(tag),
        }
    }

    /// Tells the publishers of a letter's first messages again what became of them before this term.
    #[cold]
    fn answer(&mut self, tag: Tag, letter: &ToShard, count: usize, out: &mut Outbox) {
        let (from, messages) = match letter {
            ToShard::Publish { from, messages } => (from, messages),
            ToShard::Commit { reply, messages, .. } => {
                self.answer_commit(*reply, tag, messages, out);
                return;
            }
            ToShard::Prepare { reply, tx, parts, messages, .. } => {
                // One that is held back is answered once it is decided.
                if !self.transactions.is_held_back(*tx)
                    && self.answer_commit(*reply, tag, messages, out) != Outcome::Done
                {
                    // Other parts may wait for this one: an owner of the names that is new was told nothing.
                    self.say(reply.connection, *tx, *parts, Vote::No, out);
                }
                return;
            }
            _ => return,
        };
        for (place, message) in messages.iter().enumerate().take(count) {
            if message.confirm != 0 {
                let mut slot = UnresolvedMessage::default();
                let is_confirmed = self.streams.is_confirmed(tag, place);
                if !is_confirmed {
                    slot.fail();
                }
                slot.is_of(*from, message.channel, message.confirm);
                let until = self.streams.began_at();
                if is_confirmed && self.is_for_all(message) && self.store.on_all() < until {
                    self.confirms.tell_on_all(slot, until);
                } else {
                    self.confirms.tell_at_once(slot, true);
                }
            }
        }
        self.jobs.pay(cost::APPEND * messages.len().min(count) as u64);
    }

    /// Whether a queue of a message of an earlier term wants it on all members in contact.
    fn is_for_all(&self, message: &Publish) -> bool {
        let has_others = self.store.has_others();
        has_others
            && match &message.targets[..] {
                [] => self.queues.are_for_all(),
                ids => self.queues.is_one_for_all(ids),
            }
    }

    fn answer_commit(
        &mut self,
        reply: ReplyTo,
        tag: Tag,
        messages: &[Publish],
        out: &mut Outbox,
    ) -> Outcome {
        let outcome = self.streams.outcome(tag);
        match outcome {
            Outcome::Done if messages.iter().any(|message| self.is_for_all(message)) => {
                // What was decided may have been applied in this term.
                let end = self.store.end().get();
                self.store.wait_for_all(end, Waiter::Decided(reply));
            }
            Outcome::Done => out.reply(reply, Reply::Committed),
            Outcome::Refused => refuse(reply, "it was refused before", out),
            Outcome::Unknown => {
                let text = "it is not known whether the transaction was committed: what was \
                            decided is among names that were lost";
                let (code, text) = (ReplyCode::InternalError, text.to_owned());
                out.reply(reply, Reply::Refused { code, text });
            }
        }
        outcome
    }

    /// The first messages or settlements of a letter were done before: the others are to be.
    #[cold]
    fn go_on_with(&mut self, tag: Tag, letter: ToShard, done: usize, out: &mut Outbox) {
        let (from, units) = match &letter {
            ToShard::Publish { from, messages } => {
                (*from, price_of(messages.get(done..).unwrap_or_default()))
            }
            ToShard::Settle { from, settlements } => {
                (*from, cost::SETTLE * settlements.len().saturating_sub(done) as u64)
            }
            ToShard::GiveBack { from, unsettled } => {
                (*from, price_of_rest(unsettled, done.min(unsettled.len())))
            }
            _ => return self.streams.is_done(tag),
        };
        let job = Job::Numbered(tag, Box::new(Job::of(letter).from(done)));
        self.jobs.wait_in(JobOrigin::Connection(from), job, units, out);
    }

    /// A job, which is the rest of a numbered letter if one is being done.
    #[cold]
    pub(super) fn rest_of_letter(&mut self, job: Job) -> Job {
        let done = u32::try_from(job.progress()).unwrap_or(u32::MAX);
        match self.streams.leaves(done) {
            Some(tag) => Job::Numbered(tag, Box::new(job)),
            None => job,
        }
    }

    /// Notes how far streams are: in the batch that has what was done. A note that finds no room is written in a later turn.
    #[cold]
    pub(super) fn write_notes(&mut self, now: Time) {
        for (stream, pieces) in self.streams.next_notes() {
            self.jobs.pay(cost::APPEND * pieces.len() as u64);
            let heads: Vec<Vec<u8>> = pieces.iter().map(|piece| piece.encode()).collect();
            let Noted { first, count, moment } = match self.store.append_notes(&heads, now) {
                Ok(noted) => noted,
                Err(error) => {
                    self.store.complain_of_note(error, now);
                    break;
                }
            };
            let durable = self.store.durable();
            for old in self.streams.noted(stream, first, count, moment, durable) {
                self.jobs.pay(cost::LEFT);
                self.store.release_note(old);
            }
        }
        self.jobs.spend();
    }

    /// Tells nodes how far their streams are agreed upon, behind the verdicts of this turn that stand on that.
    #[cold]
    pub(super) fn tell_agreed(&mut self, out: &mut Outbox) {
        let Self { streams, store, confirms, group, .. } = self;
        let waits = confirms.wait_for_all() || store.waits_for_all();
        let end = (waits || store.held_turns() > 0).then(|| store.moment());
        let is_agreed = |until: &Moment| store.is_agreed(*until);
        // Those who wait for all were there before.
        let is_told =
            |until: &Moment| store.is_agreed(*until) && (!waits || store.is_on_all(*until));
        streams.agreed(end, is_agreed, is_told, |news| out.news.push((*group, news)));
    }

    /// How far the shard has taken a stream: what its node is told when it begins to talk to this shard.
    pub fn stream_place(&self, stream: StreamId) -> StreamPlace {
        self.streams.place(stream)
    }

    /// Forgets the streams of processes that are not alive: nothing comes of them any more.
    pub fn keep_streams(&mut self, is_alive: impl Fn(StreamId) -> bool) {
        for old in self.streams.keep_only(is_alive) {
            self.store.release_note(old);
        }
    }

    /// Records that say how far streams are.
    pub fn stream_records(&self) -> u64 {
        self.streams.records()
    }
}

/// How many verdicts a letter has.
pub(super) fn messages_of(letter: &ToShard) -> usize {
    match letter {
        ToShard::Publish { messages, .. } => messages.len(),
        ToShard::Commit { .. } | ToShard::Prepare { .. } => 1,
        _ => 0,
    }
}
