//! Dead-lettering: a message that left its queue by a reject, expiry or a limit is published again, to the queue's
//! dead-letter exchange, with its history in the headers.
//!
//! There are two strategies, as in RabbitMQ. *At most once* takes the message out of its queue as it routes it.
//! *At least once* keeps it there until every target has taken it, and tries again when there is no target: see
//! [`exits`](super::exits).
//!
//! Under both strategies the message's record stays on disk until the targets have the dead letter on theirs: after a crash
//! the message is in one of them, perhaps in two. A message whose record cannot be read stays in its queue, set aside. A
//! message that finds no room on the disk of a target is held in its queue from then on, under both strategies.
//!
//! A message that an operator [moves](super::moving) goes the same way.

use bytes::Bytes;
use leveret_amqp::content::{RawProperties, Rewrite};
use leveret_amqp::table::{RawArray, RawTable, RawValue, Table, Value};
use leveret_log::{Log, ReadError};
use leveret_queue::{Offset, Reason, Time};
use leveret_topology::{Exchange, HashProperties, QueueId, Routable, Route, Topology};
use smallvec::SmallVec;

use super::Shard;
use super::confirms::Way;
use super::exits::{LeftQueue, Sent, Stuck, Whereabouts};
use super::jobs::{Job, JobOrigin, cost};
use super::recover::marked;
use super::store::{Parked, Waiter};
use crate::message::{
    DeadLetterFrom, Homed, Message, Outbox, Publish, PutResult, Targets, ToShard, add_by_home,
};
use crate::record::{View, join_names};

/// Dead letters that are asked for at once.
const LETTERS_ASKED: usize = 64;

/// Dead letters that may wait for their targets' answers before more are read.
const LETTERS_UNDER_WAY: usize = 256;

/// Queues that the log names of which dead letters are given up.
const QUEUES_TOLD: usize = 20;

/// Why they are.
const GIVEN_UP: &str = "their queue is deleted, and they had not arrived where they were to go";

/// A message that is to be dead-lettered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dead {
    pub(super) id: QueueId,
    pub(super) offset: Offset,
    pub(super) reason: Reason,
    /// The queue holds it still.
    pub(super) held: bool,
    /// For the log, should it come back.
    pub(super) mark: u8,
}

impl<L: Log> Shard<L> {
    /// Publishes a message that left its queue to that queue's dead-letter exchange. One that is held
    /// stays in the queue until its targets took it (at-least-once strategy).
    pub(super) fn dead_letter(
        &mut self,
        dead: Dead,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) {
        let Dead { id, offset, reason, held, .. } = dead;
        if held {
            let letter = Stuck { offset, reason, taken: Vec::new() };
            // It may have waited.
            self.try_again(id, letter, topology, now, out);
            return;
        }
        let record = match self.store.read(offset) {
            Ok(record) => record.bytes,
            Err(error) => return self.set_dead_letter_aside(dead, error),
        };
        self.jobs.pay(cost::rewrite(&record));
        let mut way = Way::Lost;
        if let Some((letter, targets)) = self.make_dead_letter(dead, &record, topology, now) {
            if self.survives_crash(&letter, id) && !targets.is_empty() {
                self.send_dead_letter(dead, Vec::new(), (letter, targets), topology, out);
                return;
            }
            if !targets.is_empty() {
                way = Way::DeadLettered;
            }
            let mut homed = Homed::new();
            add_by_home(&targets, topology, &mut homed);
            for (home, targets) in homed {
                let message = Publish { targets, ..letter.clone() };
                // Its own shard too goes by letter: a chain of full queues must not become a recursion.
                out.shard(home, ToShard::DeadLetter { from: None, message });
            }
        }
        self.letter_gone(id, offset, way);
    }

    /// A dead letter is where it was to go, or nowhere: its record is let go of.
    fn letter_gone(&mut self, id: QueueId, offset: Offset, way: Way) {
        self.gone(offset, id, way);
        self.exits.letter_gone(id, offset);
    }

    /// As [`letter_gone`](Self::letter_gone), when targets have answered. A queue that is there counts itself what is safe in all of
    /// them.
    fn answered_letter_gone(&mut self, id: QueueId, offset: Offset, way: Way, is_safe: bool) {
        if is_safe && let Some(kind @ (_, true)) = self.exits.former_kind(id) {
            self.count_confirmed(kind);
        }
        self.letter_gone(id, offset, way);
    }

    /// The dead letter and the queues it goes to; none when there is nowhere to go.
    fn make_dead_letter(
        &self,
        dead: Dead,
        record: &Bytes,
        topology: &Topology,
        now: Time,
    ) -> Option<(Publish, Vec<QueueId>)> {
        let named = topology.queue_by_id(dead.id).and_then(LeftQueue::of);
        let queue = named.or_else(|| self.exits.former(dead.id))?;
        make_dead_letter(dead, queue, record, topology, self.outside.wall(now))
    }

    /// Sends a held dead letter to each target that has not taken it yet, and waits for their answers.
    pub(super) fn try_dead_letter(
        &mut self,
        id: QueueId,
        letter: Stuck,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) {
        if self.store.is_to_come(letter.offset) {
            self.rests(id, letter.offset);
            self.store.park(letter.offset, Parked::Stuck(id, letter));
            return;
        }
        let Stuck { offset, reason, taken } = letter;
        // The queue knows itself what to write down of what it holds.
        let dead = Dead { id, offset, reason, held: true, mark: 0 };
        let record = match self.store.read(offset) {
            Ok(record) => record.bytes,
            Err(error) => return self.set_dead_letter_aside(dead, error),
        };
        self.jobs.pay(cost::rewrite(&record));
        let made = self.make_dead_letter(dead, &record, topology, now);
        let Some((letter, mut targets)) = made.filter(|(_, targets)| !targets.is_empty()) else {
            if self.gives_up(id) {
                self.let_held_go(id, offset, Way::Lost, false);
            } else {
                self.try_later(id, Stuck { offset, reason, taken }, now);
            }
            return;
        };
        targets.retain(|target| !taken.contains(target));
        if targets.is_empty() {
            // The one that refused is gone, and all others have it.
            self.let_held_go(id, offset, Way::DeadLettered, true);
            return;
        }
        self.send_dead_letter(dead, taken, (letter, targets), topology, out);
    }

    /// A dead letter that cannot be read stays in its queue, where nobody gets it. It is lost if its queue is deleted.
    #[cold]
    fn set_dead_letter_aside(&mut self, dead: Dead, error: ReadError) {
        let Dead { id, offset, held, mark, .. } = dead;
        let Some(hosted) = self.queues.get_mut(id) else {
            self.note_lost(id, error);
            return self.letter_gone(id, offset, Way::Lost);
        };
        if held {
            hosted.queue.dead_letter_goes(offset, false);
        } else {
            let (seen, delivery_count) = marked(mark);
            hosted.queue.hold_dead_letter(offset, seen, delivery_count);
        }
        self.note_aside(id, offset, error);
    }

    /// Whether a crash would find the message in its queue.
    fn survives_crash(&self, letter: &Publish, id: QueueId) -> bool {
        let is_durable = match self.queues.get(id) {
            Some(hosted) => hosted.is_durable,
            None => self.exits.was_durable(id),
        };
        letter.persistent && is_durable
    }

    /// Sends a dead letter to each target; its record stays until all have answered.
    fn send_dead_letter(
        &mut self,
        dead: Dead,
        taken: Vec<QueueId>,
        (letter, targets): (Publish, Vec<QueueId>),
        topology: &Topology,
        out: &mut Outbox,
    ) {
        let Dead { id, offset, reason, held, mark } = dead;
        let whereabouts =
            if held { Whereabouts::Held(reason) } else { Whereabouts::Departed { reason, mark } };
        self.send_on((id, offset), whereabouts, taken, (letter, targets), topology, out);
    }

    /// Sends a message of a queue to each target, and waits for their answers.
    pub(super) fn send_on(
        &mut self,
        (queue, offset): (QueueId, Offset),
        whereabouts: Whereabouts,
        taken: Vec<QueueId>,
        (letter, targets): (Publish, Vec<QueueId>),
        topology: &Topology,
        out: &mut Outbox,
    ) {
        let answers = targets.len() as u32;
        for target in targets {
            let from = Some(DeadLetterFrom { group: self.group, queue, offset });
            let message = Publish { targets: Targets::one(target), ..letter.clone() };
            out.shard(topology.home(target), ToShard::DeadLetter { from, message });
        }
        self.exits.sent(queue, offset, whereabouts, taken, answers);
    }

    /// A dead letter for queues here.
    pub(super) fn take_dead_letter(
        &mut self,
        from: Option<DeadLetterFrom>,
        message: &Publish,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) {
        let must_keep = from.is_some();
        self.jobs.pay(cost::carried(message));
        let put = self.enqueue(message, None, must_keep, topology, now);
        let (Some(from), Some(&target)) = (from, message.targets.first()) else { return };
        match put.until {
            // The one that holds it must not let go of it before it is safe here.
            Some(until) if put.taken == PutResult::Yes => {
                self.store.wait(until, Waiter::DeadLetter(from, target))
            }
            _ => out.shard(from.group, ToShard::DeadLettered { from, target, taken: put.taken }),
        }
    }

    /// A target answered for a dead letter of ours. When all have, it is done with, or tried again later
    /// with those that refused.
    pub(super) fn dead_lettered(
        &mut self,
        from: DeadLetterFrom,
        target: QueueId,
        taken: PutResult,
        now: Time,
        out: &mut Outbox,
    ) {
        let DeadLetterFrom { queue, offset, .. } = from;
        let Some(sent) = self.exits.answered((queue, offset), target, taken) else { return };
        let Sent { mut whereabouts, taken, is_refused, is_unstored, .. } = sent;
        if let Whereabouts::Held(reason) = whereabouts
            && self.queues.get(queue).is_none()
            && !self.exits.holds(queue, offset)
        {
            // Its queue is deleted, and holds nothing.
            whereabouts = Whereabouts::Departed { reason, mark: 0 };
        }
        match whereabouts {
            Whereabouts::Departed { reason, mark } if is_unstored => {
                // It is safe where it is: that there is no room elsewhere is no reason to lose it.
                if let Some(hosted) = self.queues.get_mut(queue) {
                    let (seen, delivery_count) = marked(mark);
                    hosted.queue.hold_dead_letter(offset, seen, delivery_count);
                } else if !self.exits.hold(queue, offset) {
                    return self.gone(offset, queue, Way::Lost);
                }
                self.exits.try_later(queue, Stuck { offset, reason, taken }, now);
            }
            Whereabouts::Departed { .. } => {
                self.answered_letter_gone(queue, offset, way_of(&taken), !is_refused);
            }
            Whereabouts::Held(reason) if is_unstored || is_refused && !self.gives_up(queue) => {
                self.try_later(queue, Stuck { offset, reason, taken }, now);
            }
            Whereabouts::Held(_) => self.let_held_go(queue, offset, way_of(&taken), !is_refused),
            Whereabouts::Moved { id, by } => {
                self.end_move(queue, (id, offset), by, !is_refused, now, out);
            }
        }
    }

    /// A held dead letter that no target took, or not all of them, is tried again.
    fn try_later(&mut self, queue: QueueId, letter: Stuck, now: Time) {
        self.rests(queue, letter.offset);
        self.exits.try_later(queue, letter, now);
    }

    /// A held dead letter is not on its way: it goes with its queue, if that is deleted.
    fn rests(&mut self, queue: QueueId, offset: Offset) {
        if let Some(hosted) = self.queues.get_mut(queue) {
            hosted.queue.dead_letter_goes(offset, false);
        }
    }

    /// Whether a dead letter of the queue that no target takes is not tried again, though it is held: it was for want
    /// of room on the disk.
    fn gives_up(&self, queue: QueueId) -> bool {
        self.queues.get(queue).is_none_or(|hosted| !hosted.queue.dead_letters_at_least_once())
    }

    /// The queue no longer holds a dead letter: all its targets have it, or it was given up.
    fn let_held_go(&mut self, queue: QueueId, offset: Offset, way: Way, is_safe: bool) {
        if let Some(hosted) = self.queues.get_mut(queue)
            && hosted.queue.dead_lettered(offset, is_safe)
        {
            self.gone(offset, queue, way);
            self.queues.touch(queue);
            self.exits.went(queue);
        } else if self.exits.holds(queue, offset) {
            self.answered_letter_gone(queue, offset, way, is_safe);
            self.exits.went(queue);
        }
    }

    /// What a process that stops waits for a while: dead letters that are on their way to their targets,
    /// or will be when the disk has brought them, what has to wait for later turns (those that it leaves behind
    /// come back to their queues, though a target may have them already), transactions that are not
    /// decided, and turns whose answers are held.
    pub fn under_way(&self) -> u64 {
        let sent = self.exits.sent_len() as u64;
        sent + self.parked()
            + self.jobs.units()
            + self.store.parked_retries()
            + self.transactions.undecided()
            + self.held_turns() as u64
    }

    /// Whether more turns get on with what is under way, without waiting for anything.
    pub fn has_work(&self) -> bool {
        self.jobs.units() > 0
    }

    /// The process stops: writes down of dead letters that are not where they go what the next one is to
    /// know of them, as they come back to their queues.
    pub(super) fn close_dead_letters(&mut self) {
        for (queue, offset, mark) in self.exits.marks().filter(|&(.., mark)| mark != 0) {
            self.store.mark(offset, queue, mark);
        }
    }

    /// Dead letters of deleted queues are given up, as the process ends or the log lost its end: the operator is told how many
    /// of which queues. Those of other queues come back to these.
    pub fn tell_given_up(&self) {
        let mut lost: Vec<(u64, &str)> =
            self.exits.homeless().map(|(queue, letters)| (letters, queue)).collect();
        lost.sort_unstable_by(|a, b| b.cmp(a));
        let shard = self.group.get();
        let (named, others) = lost.split_at(lost.len().min(QUEUES_TOLD));
        for &(messages, queue) in named {
            tracing::warn!(queue, shard, messages, "dead letters are lost: {GIVEN_UP}");
        }
        if !others.is_empty() {
            let messages = others.iter().map(|(messages, _)| messages).sum::<u64>();
            let queues = others.len();
            tracing::warn!(
                queues,
                shard,
                messages,
                "dead letters of more queues are lost: {GIVEN_UP}"
            );
        }
    }

    /// Whether more dead letters would only take memory: as many are to be read as a turn takes, or the disk is far behind.
    pub(super) fn are_letters_too_many(&self) -> bool {
        self.exits.parked_len() >= self.jobs.limits().turn || self.store.is_far_behind()
    }

    /// Lets the lines of dead letters go on that waited until there is room.
    pub(super) fn go_on_with_lines(&mut self, out: &mut Outbox) {
        if !self.exits.has_held_lines() || self.are_letters_too_many() {
            return;
        }
        for id in self.exits.take_held_lines() {
            let units = cost::DEAD_LETTER * self.exits.line_len(id);
            self.jobs.wait_in(JobOrigin::DeadLetters(id), Job::DeadLetters(id), units, out);
        }
    }

    /// Lets dead letters go on that have to be read, in order, up to one that is to come, which is asked for together with
    /// some behind it. True when there are more than one turn takes.
    pub(super) fn dead_letter_parked(
        &mut self,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) -> bool {
        self.jobs.count();
        if self.store.is_far_behind() {
            // What it would bring back from the disk would wait for it in memory.
            return false;
        }
        for _ in self.exits.sent_len()..LETTERS_UNDER_WAY {
            if self.jobs.used() >= self.jobs.limits().share {
                return true;
            }
            let Some(&(id, left)) = self.exits.parked().next() else { return false };
            let at = left.offset();
            if self.store.is_to_come(at) {
                let count = if self.store.is_asked(at) { 1 } else { LETTERS_ASKED };
                self.store.fetch(self.exits.parked().take(count).map(|(_, left)| left.offset()));
                return false;
            }
            self.exits.unpark();
            self.work_off(id, left, topology, now, out);
        }
        // The others go on when these have their answers; those of transient ones nobody waits for.
        self.exits.parked().next().is_some() && self.exits.sent_len() < LETTERS_UNDER_WAY
    }

    /// Tries dead letters again whose pause is over, or whose target has room again: for half of a turn at most.
    pub(super) fn retry_dead_letters(&mut self, topology: &Topology, now: Time, out: &mut Outbox) {
        self.jobs.count();
        while self.exits.are_due(now) && self.jobs.used() < self.jobs.half_turn() {
            for (queue, letter) in self.exits.take_due(now) {
                self.jobs.pay(cost::DEAD_LETTER);
                self.try_again(queue, letter, topology, now, out);
            }
        }
        self.jobs.spend();
    }

    /// Tries a dead letter again, if its queue holds it still.
    pub(super) fn try_again(
        &mut self,
        queue: QueueId,
        letter: Stuck,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) {
        let is_held = match self.queues.get_mut(queue) {
            Some(hosted) => hosted.queue.dead_letter_goes(letter.offset, true),
            None => self.exits.holds(queue, letter.offset),
        };
        if is_held {
            self.try_dead_letter(queue, letter, topology, now, out);
        }
    }

    /// Messages that left their queue and are to be dead-lettered, but have to be read from the disk first, or
    /// wait for a turn with room for them.
    pub fn parked(&self) -> u64 {
        self.exits.waiting() + self.jobs.leaving()
    }
}

/// How a message left whose targets have answered, of which these took it.
fn way_of(taken: &[QueueId]) -> Way {
    if taken.is_empty() { Way::Lost } else { Way::DeadLettered }
}

/// A dead letter of a queue.
fn make_dead_letter(
    dead: Dead,
    queue: LeftQueue<'_>,
    record: &Bytes,
    topology: &Topology,
    wall: Time,
) -> Option<(Publish, Vec<QueueId>)> {
    let Dead { offset, reason, .. } = dead;
    let LeftQueue { vhost, name, exchange: exchange_name, key: new_key } = queue;
    let exchange = topology.exchange(vhost, exchange_name)?;
    let view = View::of(record)?;
    let (old_exchange, old_key) = view.exchange_and_key()?;
    // Whatever the application wrote there goes on as it is, to the byte: only headers and expiration change.
    let properties = RawProperties::new(view.properties);
    let peek = properties.peek().ok()?;
    let headers = peek.headers.unwrap_or_default();

    let death = Death {
        reason: reason.name(),
        queue: name,
        exchange: old_exchange,
        key: old_key,
        expiration: peek.expiration,
        time: wall,
    };
    let cc = match headers.get("CC") {
        Ok(Some(RawValue::Array(cc))) => raw_strings(cc),
        _ => Vec::new(),
    };
    let headers = stamp(headers, &death, &cc, new_key.is_none());
    let headers = RawTable::unchecked(&headers);
    // A key of the queue's own replaces all keys the message had.
    let (key, more_keys) = match new_key {
        Some(key) => (key, Vec::new()),
        None => (old_key, cc),
    };

    let mut encoded = Vec::with_capacity(view.properties.len() + NEW_ENTRIES);
    let change = Rewrite { headers: Some(headers), drop_expiration: true, reply_to: None };
    properties.rewrite(change, &mut encoded).ok()?;
    let keys = (key, &more_keys[..]);
    let mut targets = targets(topology, exchange, keys, RawProperties::new(&encoded), offset);
    if reason != Reason::Rejected {
        targets.retain(|&target| !is_cycle(topology, target, headers));
    }
    let publish = Publish {
        channel: 0,
        confirm: 0,
        targets: Targets::new(),
        persistent: view.head.persistent,
        priority: peek.priority.unwrap_or(0),
        expiration_ms: None,
        message: Message::from_parts(&join_names(exchange_name, key), &encoded, view.body_bytes()),
        shared: None,
    };
    Some((publish, targets))
}

/// The queues that an exchange leads a message to.
pub(super) fn targets(
    topology: &Topology,
    exchange: &Exchange,
    (key, more_keys): (&str, &[String]),
    properties: RawProperties<'_>,
    offset: Offset,
) -> Vec<QueueId> {
    let headers = properties.peek().ok().and_then(|peek| peek.headers);
    // What an exchange may hash of them; the headers, which may be long, are not copied.
    let mut bare = Vec::new();
    let owned = properties.rewrite(Rewrite::default(), &mut bare);
    let properties = owned.and_then(|()| RawProperties::new(&bare).to_owned()).unwrap_or_default();
    let more_keys: SmallVec<[&str; 4]> = more_keys.iter().map(String::as_str).collect();
    let message = Routable {
        key,
        more_keys: &more_keys,
        headers,
        properties: HashProperties {
            correlation_id: properties.correlation_id.as_deref(),
            message_id: properties.message_id.as_deref(),
            timestamp: properties.timestamp,
        },
        seed: offset.get(),
    };
    let mut route = Route::default();
    topology.route(exchange.vhost, exchange.id, &message, &mut route);
    if route.is_too_costly() {
        tracing::warn!(
            exchange = &*exchange.name,
            "a message goes nowhere: it would be compared with too many bindings"
        );
    }
    route.queues.to_vec()
}

/// One event of a message's history.
struct Death<'a> {
    reason: &'static str,
    queue: &'a str,
    exchange: &'a str,
    key: &'a str,
    expiration: Option<&'a str>,
    time: Time,
}

/// About what the entries of an event take that is the first one.
const NEW_ENTRIES: usize = 512;

/// The headers with the event in them, and without `CC` unless it is kept.
///
/// `x-death` has one entry per queue and reason, the newest first, with a count; `x-first-death-*`
/// stay as they are once written, `x-last-death-*` follow (RabbitMQ 3.13 and later). All that stays is copied, not
/// read: a message that went through a hundred queues has a hundred entries, and each queue on its way writes them
/// again.
fn stamp(old: RawTable<'_>, death: &Death<'_>, cc: &[String], keeps_cc: bool) -> Vec<u8> {
    // What is not there yet, in the order in which it is added, and whether it changes with each event.
    let mut missing: SmallVec<[Header<'_>; 7]> = SmallVec::from_buf([
        ("x-death", "", true),
        ("x-first-death-reason", death.reason, false),
        ("x-last-death-reason", death.reason, true),
        ("x-first-death-queue", death.queue, false),
        ("x-last-death-queue", death.queue, true),
        ("x-first-death-exchange", death.exchange, false),
        ("x-last-death-exchange", death.exchange, true),
    ]);

    let mut out = Vec::with_capacity(old.as_bytes().len() + NEW_ENTRIES);
    let mut entries = old.iter();
    loop {
        let before = entries.rest();
        let Some(Ok((key, value))) = entries.next() else { break };
        if key == b"CC" && !keeps_cc {
            continue;
        }
        let known = missing.iter().position(|(name, ..)| name.as_bytes() == key);
        match known.map(|at| missing.remove(at)) {
            Some(entry) if entry.2 => put_entry(&mut out, &entry, Some(value), death, cc),
            _ => out.extend_from_slice(passed(before, entries.rest())),
        }
    }
    for entry in &missing {
        put_entry(&mut out, entry, None, death, cc);
    }
    out
}

/// A header that tells of an event: its name, its value unless that is made of more, whether it changes.
type Header<'a> = (&'static str, &'a str, bool);

/// Writes one of the entries that tell of an event.
fn put_entry(
    out: &mut Vec<u8>,
    &(name, value, _): &Header<'_>,
    old: Option<RawValue<'_>>,
    death: &Death<'_>,
    cc: &[String],
) {
    out.push(name.len() as u8);
    out.extend_from_slice(name.as_bytes());
    if name == "x-death" {
        let deaths = match old {
            Some(RawValue::Array(deaths)) => deaths,
            _ => RawArray::default(),
        };
        let deaths = deaths_with(deaths, death, cc);
        out.push(b'A');
        out.extend_from_slice(&(deaths.len() as u32).to_be_bytes());
        out.extend_from_slice(&deaths);
    } else {
        long(value).encode(out);
    }
}

/// The entries of `x-death` with the event as the first one. Of those that a client wrote for the same queue and reason
/// the first counts, as in RabbitMQ: it has one for each.
fn deaths_with(old: RawArray<'_>, death: &Death<'_>, cc: &[String]) -> Vec<u8> {
    let all = old.as_bytes();
    let mut out = Vec::with_capacity(all.len() + NEW_ENTRIES);
    let mut others: SmallVec<[&[u8]; 2]> = SmallVec::new();
    let mut first: Option<RawTable<'_>> = None;
    let mut same = 0;
    let mut deaths = old.iter();
    let mut from = all;
    loop {
        let before = deaths.rest();
        let Some(Ok(value)) = deaths.next() else { break };
        let RawValue::Table(known) = value else { continue };
        if is_text(known, "queue", death.queue) && is_text(known, "reason", death.reason) {
            others.push(passed(from, before));
            from = deaths.rest();
            first.get_or_insert(known);
            same += 1;
        }
    }
    if let Some(known) = first {
        let mut known = known.to_table_within_depth();
        // One without a count has as many as there are of it.
        let count = known.get("count").and_then(Value::as_i64).unwrap_or(same);
        known.set("count", Value::I64(count.saturating_add(1)));
        Value::Table(known).encode(&mut out);
        others.iter().for_each(|others| out.extend_from_slice(others));
        out.extend_from_slice(from);
        return out;
    }
    let keys = std::iter::once(death.key).chain(cc.iter().map(String::as_str));
    let mut entry = Table::default();
    entry.push("count", Value::I64(1));
    entry.push("reason", long(death.reason));
    entry.push("queue", long(death.queue));
    entry.push("time", Value::Timestamp(death.time.ms() / 1000));
    entry.push("exchange", long(death.exchange));
    entry.push("routing-keys", Value::Array(keys.map(long).collect()));
    if let Some(expiration) = death.expiration {
        entry.push("original-expiration", long(expiration));
    }
    Value::Table(entry).encode(&mut out);
    out.extend_from_slice(all);
    out
}

/// What was read of `before`, when `rest` of it is still to be read.
fn passed<'a>(before: &'a [u8], rest: &[u8]) -> &'a [u8] {
    before.get(..before.len().saturating_sub(rest.len())).unwrap_or_default()
}

fn is_text(table: RawTable<'_>, key: &str, text: &str) -> bool {
    table.get(key) == Ok(Some(RawValue::LongStr(text.as_bytes())))
}

fn long(text: &str) -> Value {
    Value::LongStr(text.as_bytes().to_vec())
}

/// The strings of an array.
fn raw_strings(values: RawArray<'_>) -> Vec<String> {
    let strings = values.iter().filter_map(|value| match value {
        Ok(RawValue::LongStr(bytes)) => std::str::from_utf8(bytes).ok().map(str::to_owned),
        _ => None,
    });
    strings.collect()
}

/// The strings of an array header, such as `CC`.
pub(super) fn string_list(value: Option<&Value>) -> Vec<String> {
    let Some(Value::Array(values)) = value else { return Vec::new() };
    let strings = values.iter().filter_map(|value| match value {
        Value::LongStr(bytes) => String::from_utf8(bytes.clone()).ok(),
        _ => None,
    });
    strings.collect()
}

/// Whether the message was in the target before and came round with no consumer's reject since: it
/// would go round for ever. The rule of RabbitMQ: such a target is left out.
fn is_cycle(topology: &Topology, target: QueueId, headers: RawTable<'_>) -> bool {
    let Some(queue) = topology.queue_by_id(target) else { return false };
    let Ok(Some(RawValue::Array(deaths))) = headers.get("x-death") else { return false };
    for death in deaths {
        let Ok(RawValue::Table(death)) = death else { continue };
        if is_text(death, "reason", "rejected") {
            return false;
        }
        if is_text(death, "queue", &queue.name) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn death<'a>(reason: &'static str, queue: &'a str) -> Death<'a> {
        let (exchange, key, time) = ("x", "k", Time::from_ms(5_000));
        Death { reason, queue, exchange, key, expiration: None, time }
    }

    #[test]
    fn the_same_death_counts_up_and_moves_to_the_front() {
        let mut headers = Vec::new();
        for death in [death("expired", "a"), death("rejected", "b"), death("expired", "a")] {
            headers = stamp(RawTable::new(&headers).expect("a table"), &death, &[], true);
        }
        let headers = RawTable::new(&headers).and_then(RawTable::to_table).expect("a table");
        let Some(Value::Array(deaths)) = headers.get("x-death") else { panic!("x-death") };
        let summary: Vec<_> = deaths
            .iter()
            .map(|death| match death {
                Value::Table(table) => (table.get("queue"), table.get("count")),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(
            summary,
            [(Some(&long("a")), Some(&Value::I64(2))), (Some(&long("b")), Some(&Value::I64(1)))]
        );
        assert_eq!(headers.get("x-first-death-queue"), Some(&long("a")));
        assert_eq!(headers.get("x-last-death-queue"), Some(&long("a")));
        assert_eq!(headers.get("x-first-death-reason"), Some(&long("expired")));
    }

    #[test]
    fn entries_of_a_client_for_one_queue_and_reason_become_one() {
        let entry = |queue, reason, count: Option<Value>, is_first: bool| {
            let mut entry = Table::default();
            entry.push("queue", long(queue));
            entry.push("reason", long(reason));
            count.into_iter().for_each(|count| entry.push("count", count));
            entry.push("first", Value::Bool(is_first));
            Value::Table(entry)
        };
        let other = entry("b", "rejected", Some(Value::I64(7)), true);
        let check = |entries: &[Value], count: i64, others: &[Value]| {
            let mut headers = Table::default();
            headers.push("x-death", Value::Array(entries.to_vec()));
            let raw = headers.to_bytes();
            let headers = RawTable::new(&raw).expect("a table");
            let stamped = stamp(headers, &death("rejected", "a"), &[], true);
            let stamped = RawTable::new(&stamped).and_then(RawTable::to_table).expect("a table");
            let Some(Value::Array(deaths)) = stamped.get("x-death") else { panic!("x-death") };
            let Some(Value::Table(first)) = deaths.first() else { panic!("{deaths:?}") };
            assert_eq!(first.get("count"), Some(&Value::I64(count)));
            assert_eq!(first.get("first"), Some(&Value::Bool(true)));
            assert_eq!(&deaths[1..], others);
        };
        let a = |count, is_first| entry("a", "rejected", count, is_first);
        let (first, again) = (a(Some(Value::I64(3)), true), a(Some(Value::I64(5)), false));
        check(&[first.clone(), again.clone()], 4, &[]);
        check(
            &[other.clone(), first, long("text"), again.clone(), other.clone()],
            4,
            &[other.clone(), long("text"), other.clone()],
        );
        check(&[a(Some(Value::I32(3)), true), other.clone()], 4, std::slice::from_ref(&other));
        check(&[a(None, true), other.clone(), again], 3, &[other]);
    }
}
