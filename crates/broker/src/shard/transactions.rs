//! A transaction's part for this shard.
//!
//! All that a turn appends and releases is in one batch of the log, so a crash takes or leaves it as a
//! whole; the answer comes when that batch is on the disk. A part that stands alone needs no more. If
//! other shards have parts, this one is stored and held back until it is decided: see
//! [`transaction`](crate::transaction).
//!
//! So a part is done in one go, and is the largest thing that a turn does: its line pays for it in later turns, but others wait
//! for the turn. One that is held back is paid for in two steps, as it is done: its messages are stored first, and put into
//! their queues with its settlements once it is decided on it. That, too, waits in the line of its connection. To cut a part
//! the shard would have to keep the batch open meanwhile, for as long in which no publisher would be confirmed; and others would
//! see half of its messages, which they do not even now. What a part that is refused was to settle comes back in pieces.
//!
//! Acks alone, with no message to write, are answered at once if no other shard has a part: lost in a
//! crash they bring messages back, as any ack may.

use foldhash::fast::FixedState;
use hashbrown::HashSet;
use leveret_amqp::reply::ReplyCode;
use leveret_log::{AppendError, Log};
use leveret_queue::{Offset, Time};
use leveret_topology::{QueueId, Topology};

use super::jobs::{Job, JobOrigin, cost, price_of_places};
use super::publish::Wants;
use super::store::Waiter;
use super::{Map, Shard};
use crate::message::{ConnectionId, Outbox, Publish, Reply, ReplyTo, Settle, Settlement, ToMeta};
use crate::stream::Tag;
use crate::transaction::{Decided, NOTES, Note, TxId, Vote};

/// Parts that are held back until it is decided on them.
#[derive(Debug, Default)]
pub(super) struct Transactions {
    prepared: Map<TxId, Prepared>,
    /// Bytes of their messages.
    bytes: u64,
    /// Records of this shard's log that are no messages.
    notes: u64,
    /// What the log had of earlier processes' transactions.
    pub(super) found: Vec<TxId>,
    /// What it had of transactions that are done.
    pub(super) applied: Vec<TxId>,
    /// Messages of parts that are held back, as far as the log has them.
    pub(super) there: HashSet<Offset, FixedState>,
}

#[derive(Debug)]
struct Prepared {
    reply: ReplyTo,
    parts: u32,
    messages: Vec<Publish>,
    /// One for each message.
    offsets: Vec<Offset>,
    /// Likewise.
    wants: Vec<Wants>,
    settlements: Vec<Settlement>,
    /// The record that says what the messages are, if anything here outlives the process.
    part: Option<Offset>,
    bytes: u64,
    /// The letter that it came with, if that has a number.
    tag: Option<Tag>,
}

impl Transactions {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a part is here and not decided.
    pub(super) fn is_held_back(&self, tx: TxId) -> bool {
        self.prepared.contains_key(&tx)
    }

    /// Whether the letter that brought a part which is held back has a number.
    pub(super) fn has_number(&self, tx: TxId) -> bool {
        self.prepared.get(&tx).is_some_and(|it| it.tag.is_some())
    }

    /// Whose part it is, and what it will cost when it is decided on it. None if no such part is held back.
    pub(super) fn price_of_part(&self, tx: TxId) -> Option<(ConnectionId, u64)> {
        let Prepared { reply, messages, settlements, .. } = self.prepared.get(&tx)?;
        let units = price_of_places(messages) + cost::SETTLE * settlements.len() as u64;
        Some((reply.connection, units))
    }

    /// Transactions that are not decided.
    pub(super) fn undecided(&self) -> u64 {
        self.prepared.len() as u64
    }

    /// Records that are no messages, and messages that are in no queue yet.
    pub(super) fn records(&self) -> u64 {
        let messages = self.prepared.values().map(|prepared| prepared.messages.len() as u64);
        self.notes + messages.sum::<u64>()
    }
}

impl<L: Log> Shard<L> {
    /// Applies a transaction that no other shard has a part of: all of it, or none and a refusal.
    pub(super) fn commit(
        &mut self,
        reply: ReplyTo,
        messages: &[Publish],
        settlements: Vec<Settlement>,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) {
        let mut wants: Vec<Wants> =
            messages.iter().map(|message| self.wants(message, true, topology, now)).collect();
        let offsets = match self.append_all(messages, &mut wants, now) {
            Ok(offsets) => offsets,
            Err(error) => {
                self.is_given_up();
                self.give_back(reply.connection, settlements, now);
                refuse(reply, &error.to_string(), out);
                return;
            }
        };
        self.jobs.pay(price_of_places(messages));
        let for_all = self.those_for_all(messages, &wants);
        let mut until = None;
        for ((at, wants), message) in offsets.into_iter().zip(wants).zip(messages) {
            until = self.place(at, message, None, wants, now).until.or(until);
        }
        // Who has not heard of it may be gone with the leader, and then it was never done.
        settlements.iter().for_each(|it| self.confirms.is_in_transaction(it.offset.get()));
        self.settle(&settlements, now);
        match until {
            Some(until) if !for_all.is_empty() => {
                self.store.wait_for_all(until, for_all, Waiter::Commit(reply));
            }
            Some(until) => self.store.wait(until, Waiter::Commit(reply)),
            None => out.reply(reply, Reply::Committed),
        }
    }

    /// The queues whose messages are to be on all members in contact before their publisher is told, of a transaction's.
    fn those_for_all(&self, messages: &[Publish], wants: &[Wants]) -> Vec<QueueId> {
        let waiting = messages.iter().zip(wants).filter(|(_, wants)| wants.for_all > 0);
        self.queues.those_for_all(waiting.map(|(message, _)| message))
    }

    /// Stores a part and holds it back.
    #[expect(clippy::too_many_arguments, reason = "the letter's fields and the turn's")]
    pub(super) fn prepare(
        &mut self,
        reply: ReplyTo,
        tx: TxId,
        parts: u32,
        messages: Vec<Publish>,
        mut settlements: Vec<Settlement>,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) {
        if parts == 0 {
            self.is_given_up();
            refuse(reply, OTHER_REFUSED, out);
            return self.say(reply.connection, tx, parts, Vote::No, out);
        }
        self.take_out_for_part(&mut settlements);
        let mut wants: Vec<Wants> =
            messages.iter().map(|message| self.wants(message, true, topology, now)).collect();
        // One that has a number is known to be done by the log: so the log has to have the part.
        let tag = self.streams.doing();
        let is_kept =
            !settlements.is_empty() || wants.iter().any(|wants| wants.can_keep) || tag.is_some();
        // The vote names them.
        self.jobs.pay(settlements.len() as u64 / cost::LOOKED_AT_A_UNIT);
        // Before the messages: whoever recovers them has to know.
        let note = Note::Part { tx, messages: messages.len() as u32, tag };
        let part = if is_kept { self.append_note(note, now).map(Some) } else { Ok(None) };
        let stored = part.and_then(|part| match self.append_all(&messages, &mut wants, now) {
            Ok(offsets) => Ok((part, offsets)),
            Err(error) => {
                self.release_note(part);
                Err(error)
            }
        });
        let (part, offsets) = match stored {
            Ok(stored) => stored,
            Err(error) => {
                self.is_given_up();
                self.give_back(reply.connection, settlements, now);
                refuse(reply, &error.to_string(), out);
                self.say(reply.connection, tx, parts, Vote::No, out);
                return;
            }
        };
        let bytes = messages.iter().map(|message| message.message.len()).sum::<u64>()
            + (messages.len() * size_of::<(Publish, Offset, Wants)>()) as u64;
        self.transactions.bytes += bytes;
        let prepared =
            Prepared { reply, parts, messages, offsets, wants, settlements, part, bytes, tag };
        self.transactions.prepared.insert(tx, prepared);
        if is_kept {
            // With the part everything before it is on the disk: the messages that are acked, too.
            let end = self.store.end().get();
            self.store.wait(end, Waiter::Prepared(reply, tx));
        } else {
            self.vote(tx, out);
        }
    }

    /// The transaction, or the part, that is being done is not to be. That is said until its sender has the answer: of a letter that comes again
    /// others behind it may have been heard of.
    fn is_given_up(&mut self) {
        self.streams.doing().into_iter().for_each(|tag| self.streams.was_given_up(tag));
    }

    /// The part is as safe as it has to be.
    pub(super) fn vote(&mut self, tx: TxId, out: &mut Outbox) {
        let Some(prepared) = self.transactions.prepared.get(&tx) else { return };
        let leaves = |one: &&Settlement| match one.how {
            _ if one.unacked.is_lent() => false,
            Settle::Ack => true,
            // A dead letter is in one queue or the other after a crash.
            Settle::Reject => {
                let hosted = self.queues.get(one.queue);
                hosted.is_some_and(|hosted| !hosted.queue.options().dead_letter)
            }
            Settle::Requeue { .. } => false,
        };
        let acked = prepared.settlements.iter().filter(leaves);
        let acked = acked.map(|one| (one.queue, one.offset)).collect();
        let vote = Vote::Yes { is_kept: prepared.part.is_some(), acked };
        let (from, parts) = (prepared.reply.connection, prepared.parts);
        self.say(from, tx, parts, vote, out);
    }

    /// Says whether the part of a connection's transaction can be.
    pub(super) fn say(
        &self,
        from: ConnectionId,
        tx: TxId,
        parts: u32,
        vote: Vote,
        out: &mut Outbox,
    ) {
        out.meta.push(ToMeta::Prepared { from, tx, group: self.group, parts, vote });
    }

    /// It is decided on a part.
    pub(super) fn decide(&mut self, tx: TxId, commit: bool, now: Time, out: &mut Outbox) {
        let Some(prepared) = self.transactions.prepared.remove(&tx) else { return };
        let Prepared { reply, messages, offsets, wants, settlements, part, bytes, tag, .. } =
            prepared;
        self.transactions.bytes -= bytes;
        self.release_note(part);
        if let Some(before) = tag.and_then(|tag| self.streams.closes(tag)) {
            self.store.release_note(before);
        }
        if !commit {
            tag.into_iter().for_each(|tag| self.streams.was_given_up(tag));
            self.release_all(&offsets, &messages);
            self.give_back(reply.connection, settlements, now);
            refuse(reply, OTHER_REFUSED, out);
            return;
        }
        self.jobs.pay(price_of_places(&messages));
        let for_all = match part {
            Some(_) => self.those_for_all(&messages, &wants),
            None => Vec::new(),
        };
        for ((at, wants), message) in offsets.into_iter().zip(wants).zip(&messages) {
            self.place(at, message, None, wants, now);
        }
        self.settle(&settlements, now);
        if for_all.is_empty() {
            out.reply(reply, Reply::Committed);
        }
        if part.is_none() {
            return;
        }
        // Nobody waits for it, so the disk is not asked. If it cannot be written, the decision stays
        // until the next start.
        if let Ok(at) = self.append_note(Note::Applied { tx }, now) {
            self.store.wait_lazily(at.get() + 1, Waiter::Applied(tx, at));
        }
        if !for_all.is_empty() {
            // Who has the batch of this turn needs no decision: the record of the part is let go of in it.
            let end = self.store.end().get();
            self.store.wait_for_all(end, for_all, Waiter::Decided(reply));
        }
    }

    /// What the transaction did here is on the disk.
    pub(super) fn applied(&mut self, tx: TxId, note: Offset, out: &mut Outbox) {
        self.release_note(Some(note));
        out.meta.push(ToMeta::Applied { tx, group: self.group });
    }

    /// The log lost what is not below `end`: of the parts that are not decided those stay that are there. The others are
    /// voted against. What is decided is in the log as it is after a start.
    pub(super) fn give_up_parts(&mut self, end: u64, decided: &Decided, out: &mut Outbox) {
        let before = std::mem::take(&mut self.transactions);
        for (tx, prepared) in before.prepared {
            let Prepared { reply, parts, part, bytes, .. } = prepared;
            // Whose node attaches asks again, and sends what is lost again.
            let asks = self.attaching.has(reply.connection);
            if decided.transactions.contains(&tx) {
                // The letter that tells of it may be on its way, and will find nothing.
                if !asks {
                    out.reply(reply, Reply::Committed);
                }
                continue;
            }
            if part.is_some_and(|at| at.get() < end) {
                self.transactions.bytes += bytes;
                self.transactions.notes += 1;
                self.transactions.prepared.insert(tx, prepared);
            } else if !asks {
                refuse(reply, "the end of the log was lost", out);
                self.say(reply.connection, tx, parts, Vote::No, out);
            }
        }
    }

    /// The queues were filled anew: parts that are not decided have their messages as far as the log has these, and hold
    /// what they are to settle. They vote once more: perhaps they had not yet.
    pub(super) fn hold_back_parts(&mut self, out: &mut Outbox) {
        let held = self.transactions.prepared.values().flat_map(|it| it.settlements.iter());
        let held: Vec<_> = held.map(|it| (it.queue, it.offset)).collect();
        held.into_iter().for_each(|(id, offset)| self.bring_to(id, offset));
        let Self { transactions, queues, .. } = self;
        let there = std::mem::take(&mut transactions.there);
        for prepared in transactions.prepared.values_mut() {
            let Prepared { messages, offsets, wants, settlements, .. } = prepared;
            let are_there: Vec<bool> = offsets.iter().map(|at| there.contains(at)).collect();
            keep(messages, &are_there);
            keep(offsets, &are_there);
            keep(wants, &are_there);
            queues.take_out_all(settlements);
        }
        let all: Vec<TxId> = transactions.prepared.keys().copied().collect();
        all.into_iter().for_each(|tx| self.vote(tx, out));
    }

    /// The queues were filled anew: transactions that are decided are applied with that, once it is on the disk.
    pub(super) fn finish_parts(&mut self, decided: &Decided, now: Time, out: &mut Outbox) {
        for tx in std::mem::take(&mut self.transactions.applied) {
            out.meta.push(ToMeta::Applied { tx, group: self.group });
        }
        let mut found = self.transactions_found();
        found.retain(|tx| decided.transactions.contains(tx));
        for tx in found {
            if let Ok(at) = self.append_note(Note::Applied { tx }, now) {
                self.store.wait_lazily(at.get() + 1, Waiter::Applied(tx, at));
            }
        }
    }

    /// All messages, or none.
    fn append_all(
        &mut self,
        messages: &[Publish],
        wants: &mut [Wants],
        now: Time,
    ) -> Result<Vec<Offset>, AppendError> {
        self.jobs.pay(cost::APPEND * messages.len() as u64);
        let mut offsets = Vec::with_capacity(messages.len());
        for (message, wants) in messages.iter().zip(wants) {
            match self.append(message, wants, true, now) {
                Ok(at) => offsets.push(at),
                Err(error) => {
                    self.append_failed(error, now);
                    self.release_all(&offsets, messages);
                    return Err(error);
                }
            }
        }
        Ok(offsets)
    }

    /// Lets messages go that were appended and are in no queue.
    fn release_all(&mut self, offsets: &[Offset], messages: &[Publish]) {
        for (&at, message) in offsets.iter().zip(messages) {
            message.targets.iter().for_each(|&id| self.release(at, id));
        }
    }

    /// What a connection's transaction that is not to be was to settle: the session has forgotten it, and its client goes. What
    /// is too much for now comes back before anything else is done for the connection.
    fn give_back(&mut self, from: ConnectionId, mut settlements: Vec<Settlement>, now: Time) {
        let done = self.give_some_of(&mut settlements, self.jobs.limits().share, now);
        if done < settlements.len() {
            let units = cost::SETTLE * (settlements.len() - done) as u64;
            let rest = Job::Return { settlements, done };
            self.jobs.wait_first(JobOrigin::Connection(from), rest, units);
        }
    }

    /// The first `allowed` of these come back. How many that are.
    pub(super) fn give_some_of(
        &mut self,
        settlements: &mut [Settlement],
        allowed: u64,
        now: Time,
    ) -> usize {
        let count = usize::try_from(allowed).unwrap_or(usize::MAX).min(settlements.len());
        let back = settlements.get_mut(..count).unwrap_or_default();
        back.iter_mut().for_each(|it| it.how = Settle::Requeue { counts: true });
        self.settle(back, now);
        count
    }

    fn append_note(&mut self, note: Note, now: Time) -> Result<Offset, AppendError> {
        let at = self.store.append_note(note, now)?;
        self.transactions.notes += 1;
        Ok(at)
    }

    fn release_note(&mut self, at: Option<Offset>) {
        if let Some(at) = at {
            self.transactions.notes -= 1;
            self.release(at, NOTES);
        }
    }
}

const OTHER_REFUSED: &str = "another part of it was not";

/// Keeps what is marked.
fn keep<T>(all: &mut Vec<T>, marks: &[bool]) {
    let mut marks = marks.iter();
    all.retain(|_| marks.next() == Some(&true));
}

pub(super) fn refuse(reply: ReplyTo, why: &str, out: &mut Outbox) {
    let text = format!("the transaction could not be stored: {why}");
    out.reply(reply, Reply::Refused { code: ReplyCode::ResourceError, text });
}
