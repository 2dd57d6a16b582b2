//! Numbered letters are done once: see [`stream`](crate::stream).
//!
//! What is missing between a number and the one before is asked for; a number that is done is answered, and nothing else. In this
//! term it is on its way to its publisher. From before nobody knows whether it came: then a message that was taken is
//! confirmed again, and one that was refused is refused again. By which rule it was taken the note says: its queues may have another one
//! by now.
//!
//! A message that was to wait for its consumer (rules `ack` and `ack-lean`) waits on if it is in the log. If it was in the memory of the
//! shard of before, its node has it still, and it is taken once more; it may have been given out, so it is redelivered then. What is in
//! the log no more was acked, or refused, and its verdict was lost: its publisher is told no, as after a time-out. If it was to be acked in
//! several queues, one of them that has it no more is enough for that. So is it told of one that was nowhere but in memory, such as a
//! transient one.
//!
//! Such an answer stands on what is agreed upon. If one of the message's queues wants it on all members in contact now
//! (`replication-confirm`), the answer waits until these have what the log had when the term began. A letter that its sender knows to be
//! agreed upon comes without the queues of its messages: then one such queue in the shard is enough.
//!
//! A log that has failed takes nothing more: letters that come, or wait in lines, are the next leader's.

use leveret_amqp::reply::ReplyCode;
use leveret_log::{Log, Moment};
use leveret_queue::{Offset, Time};
use leveret_topology::{ConfirmOn, ConfirmOptions, QueueId, Topology};
use smallvec::SmallVec;

use super::Shard;
use super::confirms::{Mixed, UnresolvedMessage, Until};
use super::jobs::{Job, JobOrigin, cost, price_of, price_of_rest};
use super::publish::{at_most, until};
use super::store::{Noted, Waiter};
use super::streams::{EarlierMessage, HeldVerdicts, NumberFate, Outcome, WaitsWhere};
use super::transactions::refuse;
use crate::message::{ConnectionId, Outbox, Publish, Reply, ReplyTo, Targets, ToShard};
use crate::stream::{
    AskedMessage, NoteHead, Numbered, StreamEvent, StreamId, StreamPlace, Tag, Whereabouts,
};
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
        let Numbered { stream, number, term, heard_below, undecided_from, is_again, letter } =
            numbered;
        if term < self.streams.term() || self.store.has_failed() {
            return self.jobs.count();
        }
        let tag = Tag { stream, number };
        if number == 1 {
            // All letters of its earlier starts came before.
            self.keep_streams(|it| it.node != stream.node || it.start >= stream.start);
        }
        self.forget_undecided(stream, undecided_from);
        if is_again {
            self.attaching.came_again(tag);
        }
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
                return self.answer(tag, &letter, usize::MAX, topology, now, out);
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
                self.answer(tag, &letter, done as usize, topology, now, out);
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
    fn answer(
        &mut self,
        tag: Tag,
        letter: &ToShard,
        count: usize,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) {
        match letter {
            ToShard::Publish { from, messages } => {
                for (place, message) in (0..).zip(messages).take(count) {
                    if message.confirm != 0 {
                        self.answer_message(tag, place, *from, message, topology, now);
                    }
                }
                self.jobs.pay(cost::APPEND * messages.len().min(count) as u64);
            }
            ToShard::Ask { from, messages } => {
                for asked in messages {
                    self.answer_asked(tag, *from, asked, topology, now);
                }
                self.jobs.pay(cost::APPEND * messages.len() as u64);
            }
            ToShard::Commit { reply, messages, .. } => {
                self.answer_commit(*reply, tag, messages, out);
            }
            // One that is held back is answered once it is decided.
            ToShard::Prepare { tx, .. } if self.transactions.is_held_back(*tx) => {}
            ToShard::Prepare { reply, tx, parts, messages, .. } => {
                let outcome = self.answer_commit(*reply, tag, messages, out);
                if outcome != Outcome::Done {
                    // Other parts may wait for this one: an owner of the names that is new was told nothing.
                    self.say(reply.connection, *tx, *parts, Vote::No, out);
                }
            }
            _ => {}
        }
    }

    fn answer_message(
        &mut self,
        tag: Tag,
        place: u32,
        from: ConnectionId,
        message: &Publish,
        topology: &Topology,
        now: Time,
    ) {
        let mut slot = UnresolvedMessage::default();
        slot.is_of(from, message.channel, message.confirm);
        match self.streams.earlier_message(tag, place) {
            EarlierMessage::Stored => self.tell_stored(slot, &message.targets),
            EarlierMessage::Refused => self.tell_refused(slot),
            EarlierMessage::WaitsInLog(at) => {
                if self.wait_on(slot, &message.targets, at, now) {
                    self.streams.waits_at(tag, place, WaitsWhere::Log(at));
                }
            }
            EarlierMessage::Waits => self.take_again(tag, place, from, message, topology, now),
        }
    }

    /// The same of a message whose letter is known to be agreed upon.
    fn answer_asked(
        &mut self,
        tag: Tag,
        from: ConnectionId,
        asked: &AskedMessage,
        topology: &Topology,
        now: Time,
    ) {
        let AskedMessage { place, channel, confirm, ref whereabouts } = *asked;
        let mut slot = UnresolvedMessage::default();
        slot.is_of(from, channel, confirm);
        match whereabouts {
            Whereabouts::Memory(message) => {
                let message = Publish { channel, confirm, ..message.clone() };
                self.answer_message(tag, place, from, &message, topology, now);
            }
            Whereabouts::Log(targets, at) => _ = self.wait_on(slot, targets, *at, now),
            Whereabouts::Nowhere => match self.streams.earlier_message(tag, place) {
                EarlierMessage::Stored => self.tell_stored(slot, &Targets::default()),
                _ => self.tell_refused(slot),
            },
        }
    }

    fn tell_stored(&mut self, slot: UnresolvedMessage, targets: &[QueueId]) {
        let until = self.streams.began_at();
        if self.is_for_all(targets) && self.store.on_all() < until {
            self.confirms.tell_on_all(slot, until);
        } else {
            self.confirms.tell_at_once(slot, true);
        }
    }

    fn tell_refused(&mut self, mut slot: UnresolvedMessage) {
        slot.fail();
        self.confirms.tell_at_once(slot, true);
    }

    /// A message waits for a consumer, and was in the log. A queue that has it no more had its ack, or lost it: nobody knows which, as
    /// that went with the shard of before. Whether it waits on.
    fn wait_on(
        &mut self,
        mut slot: UnresolvedMessage,
        targets: &[QueueId],
        at: Offset,
        now: Time,
    ) -> bool {
        match self.confirms.waits_at(at.get()) {
            // It was asked for in this term before.
            Some(before) if before.is_that_of(slot) => return true,
            None if at.get() < self.streams.began_at() => {}
            // Another one's, or one that has had its verdict in this term.
            _ => {
                self.tell_refused(slot);
                return false;
            }
        }
        let (mut rules, mut is_doubtful, mut timeout_ms) = (Mixed::new(), false, None);
        for &id in targets {
            let options = self.queues.get(id).map(|hosted| hosted.confirm);
            match options.filter(|_| self.store.is_held(at, id)) {
                Some(options) => {
                    let until = until_now(&options);
                    slot.count(until);
                    rules.push((id, until));
                    timeout_ms = at_most(timeout_ms, options.timeout_ms);
                }
                None => is_doubtful |= options.is_none_or(|it| until_now(&it) != Until::Now),
            }
        }
        if is_doubtful || rules.is_empty() {
            self.tell_refused(slot);
            return false;
        }
        if slot.is_resolved_by_disk() {
            self.tell_stored(slot, targets);
            return false;
        }
        let mixed = rules.iter().any(|(_, until)| *until != rules[0].1).then_some(rules);
        self.confirms.add_earlier(at.get(), slot, mixed, timeout_ms, now);
        true
    }

    /// A message waited for a consumer in the memory of a shard that is gone, who may have been given it.
    fn take_again(
        &mut self,
        tag: Tag,
        place: u32,
        from: ConnectionId,
        message: &Publish,
        topology: &Topology,
        now: Time,
    ) {
        if !self.streams.take_again(tag, place) {
            // It was in this term before: what comes of it is on its way.
            return;
        }
        let put = self.enqueue_again(message, from, topology, now);
        if put.fails {
            self.streams.refused_again(tag, place);
            if put.waits.is_some() {
                self.streams.waits_at(tag, place, WaitsWhere::Nowhere);
            }
            return;
        }
        // A later term is not to take it once more, by whatever rule it was taken now.
        let stored = || put.until.map(|end| WaitsWhere::Log(Offset::new(end - 1)));
        let whereabouts = put.waits.or_else(stored).unwrap_or(WaitsWhere::Nowhere);
        if let WaitsWhere::Memory(at) = whereabouts {
            self.confirms.kept(at.get());
        }
        self.streams.waits_at(tag, place, whereabouts);
    }

    /// Of what waits for a consumer in memory alone some has its verdict by now. Where too much is to be said of streams because of the
    /// others, these go to the log.
    pub(super) fn note_waiting(&mut self) {
        for at in self.confirms.kept_no_more() {
            self.streams.is_resolved(Offset::new(at));
        }
        let crowded = self.streams.crowded();
        crowded.into_iter().for_each(|at| self.send_to_log(at));
    }

    /// What waits in memory alone of a stream's letters goes to the log, up to this letter: its node has much to keep.
    #[cold]
    pub(super) fn store_waiting(&mut self, stream: StreamId, up_to: u64) {
        let all = self.streams.in_memory(stream, up_to);
        self.jobs.pay(cost::APPEND * all.len() as u64);
        all.into_iter().for_each(|at| self.send_to_log(at));
    }

    #[cold]
    fn send_to_log(&mut self, at: Offset) {
        self.confirms.goes_to_log(at.get());
        let is_there = self.store.persist_now(at.get());
        self.streams.goes(at, is_there);
    }

    /// Whether a queue of a message of an earlier term wants it on all members in contact.
    fn is_for_all(&self, targets: &[QueueId]) -> bool {
        self.store.has_others() && self.queues.is_one_for_all(targets)
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
            Outcome::Done if messages.iter().any(|message| self.is_for_all(&message.targets)) => {
                // What was decided may have been applied in this term.
                let end = self.store.end().get();
                let for_all = self.queues.those_for_all(messages);
                self.store.wait_for_all(end, for_all, Waiter::Decided(reply));
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
            let heads: SmallVec<[NoteHead; 1]> = pieces.iter().map(|it| it.encode()).collect();
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
        if self.streams.has_gone() {
            // A batch may end where an earlier turn ended. It has all below that is to be there, so what went to the log with this turn would
            // be in it without its note.
            self.store.ask_for_all();
        }
        self.jobs.spend();
    }

    /// Tells nodes how far their streams are agreed upon, behind the verdicts of this turn that stand on that.
    #[cold]
    pub(super) fn tell_agreed(&mut self, out: &mut Outbox) {
        let Self { streams, store, confirms, group, .. } = self;
        let held = HeldVerdicts {
            until: store.moment(),
            for_all: confirms.wait_for_all() || store.waits_for_all(),
            in_turns: store.held_turns() > 0,
        };
        let is_agreed = |until: &Moment| store.is_agreed(*until);
        let is_on_all = |until: &Moment| store.is_on_all(*until);
        streams.agreed(held, is_agreed, is_on_all, |news| out.news.push((*group, news)));
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

/// What a queue's rule means now for a message that waits for a consumer: by that rule, or by one of its own.
fn until_now(options: &ConfirmOptions) -> Until {
    match options.on {
        ConfirmOn::AckLean => until(ConfirmOn::AckLean, options, false),
        _ if options.by_header => until(ConfirmOn::Ack, options, false),
        on => until(on, options, false),
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
