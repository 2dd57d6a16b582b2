//! From a publisher's batch into log and queues, and what its confirms wait for.
//!
//! Hot path: no allocation per message once warm; one copy of the body, into the log.
//!
//! Before a message is appended its queues are asked what they want of it (their rules may want it on
//! disk, or not); then it is appended once, put into each, and either its publisher is told at once or
//! what is missing is noted in [`confirms`](super::confirms).

use leveret_amqp::content::RawProperties;
use leveret_amqp::table::RawValue;
use leveret_log::{AppendError, Log};
use leveret_queue::{Incoming, Offset, Time};
use leveret_topology::{
    ConfirmOn, ConfirmOptions, QueueId, QueueKind, ReplicationConfirm, Topology,
};

use super::Shard;
use super::confirms::{Mixed, NackReason, UnresolvedMessage, Until, Wait};
use super::jobs::cost;
use super::queues::Hosted;
use super::settle::Pays;
use super::streams::WaitsWhere;
use crate::flow::QUEUE_BYTES_MAX;
use crate::message::{
    ConnectionId, Outbox, Publish, PutResult, STEP_QUEUES_MAX, Step, Targets, ToSession, What,
};

/// Whether it is for the firehose: on no channel of its connection. Events are nobody's.
fn is_copy(from: ConnectionId, message: &Publish) -> bool {
    message.channel == 0 && from != ConnectionId::NOBODY
}

/// What became of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Put {
    pub(super) taken: PutResult,
    /// It is safe when the log is durable up to here; none if it is already, or never is to be.
    pub(super) until: Option<u64>,
    /// Its publisher is told no, now or later.
    pub(super) fails: bool,
    /// A consumer's ack is waited for, and the message is there meanwhile. If it fails it is told so then.
    pub(super) waits: Option<WaitsWhere>,
}

/// What a message's queues want of it together.
#[derive(Debug, Default)]
pub(super) struct Wants {
    slot: UnresolvedMessage,
    /// Their rules, one by one, unless all are the same.
    mixed: Option<Mixed>,
    /// One of the queues would have it after a restart.
    pub(super) can_keep: bool,
    /// Its delivery mode says so, or it is stored as if that did.
    is_persistent: bool,
    /// A queue that would have it after a restart waits for its consumer.
    waits_in_memory: bool,
    /// A shard in an earlier term may have given it out.
    is_redelivered: bool,
    /// A queue gives it out before it is agreed upon.
    before_commit: bool,
    defer_ms: Option<u32>,
    timeout_ms: Option<u32>,
    /// A queue that is gone was to tell of its ack.
    is_lost: bool,
    /// A queue's consumers are not quicker than the disk, though they might be.
    is_slow: bool,
    /// Queues that want it on the disks of all members in contact.
    pub(super) for_all: u16,
}

impl<L: Log> Shard<L> {
    /// Takes a connection's messages, in order, for about so many units of work, and confirms those that nothing is
    /// missing of. How many it took: one at least.
    pub(super) fn publish(
        &mut self,
        from: ConnectionId,
        messages: &[Publish],
        allowed: u64,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) -> usize {
        // Not its own: what others rejected.
        self.work_off_left(Pays::Nobody, topology, now, out);
        let (mut count, is_traced) = (0, topology.traces_any());
        let is_short = self.outside.alarm.is_raised();
        for message in messages {
            if count > 0 && self.jobs.used() >= allowed {
                break;
            }
            count += 1;
            if is_short && is_copy(from, message) {
                self.enqueue_copy(message, from, topology, now);
            } else {
                let put = self.enqueue(message, Some(from), false, topology, now);
                // Nobody asks again what became of one that is not confirmed.
                if put.fails && message.confirm != 0 {
                    self.streams.refused(count - 1);
                    if put.waits.is_some() {
                        self.streams.waits(count - 1, WaitsWhere::Nowhere);
                    }
                } else if let Some(whereabouts) = put.waits {
                    self.waits(count - 1, whereabouts);
                }
                if is_traced && message.confirm != 0 && put.taken == PutResult::Yes {
                    self.note_stored(message, from, topology, out);
                }
            }
            if self.queues.has_left() {
                self.work_off_left(Pays::Cause, topology, now, out);
            }
        }
        let messages = messages.get(..count).unwrap_or_default();
        self.confirms.flush(out);
        if self.store.pause_if_far_behind(from, out) {
            self.note_flow(messages);
        }
        if self.outside.alarm.is_raised()
            && !self.outside.alarm.stops_all
            && self.is_into_full(messages)
        {
            out.session(from, ToSession::Stopped);
        }
        count
    }

    /// Some vhost is traced: if it is that of this message, which was appended last, tells where the message is.
    #[cold]
    fn note_stored(
        &self,
        message: &Publish,
        from: ConnectionId,
        topology: &Topology,
        out: &mut Outbox,
    ) {
        let queue = message.targets.iter().find_map(|&id| topology.queue_by_id(id));
        let vhost = queue.and_then(|queue| topology.vhost_by_id(queue.vhost));
        if !vhost.is_some_and(|vhost| vhost.is_traced) {
            return;
        }
        let queues = message.targets.iter().copied().take(STEP_QUEUES_MAX).collect();
        let offset = Offset::new(self.store.end().get().saturating_sub(1));
        let what = What::Stored { number: message.confirm, queues, offset };
        out.steps.push(Step { connection: from, channel: message.channel, what });
    }

    /// The queues of these messages are in RabbitMQ's state `flow` for as long as their publisher pauses.
    #[cold]
    fn note_flow(&mut self, messages: &[Publish]) {
        for id in messages.iter().flat_map(|message| &message.targets) {
            if let Some(hosted) = self.queues.get_mut(*id) {
                hosted.flow_in = self.store.flow_mark();
            }
        }
    }

    /// Whether one of these messages went where it keeps an alarm up.
    #[cold]
    fn is_into_full(&self, messages: &[Publish]) -> bool {
        // A copy for the firehose is not what a client publishes: one that only consumes is not to be stopped for it.
        let mut own = messages.iter().filter(|message| message.channel != 0);
        own.any(|message| message.targets.iter().any(|id| self.keeps_alarm(message, *id)))
    }

    /// Whether a message in this queue keeps the alarm up.
    fn keeps_alarm(&self, message: &Publish, id: QueueId) -> bool {
        let Some(hosted) = self.queues.get(id) else { return false };
        let on = hosted.confirm;
        let waits = matches!(on.on, ConfirmOn::Ack | ConfirmOn::AckLean) && !on.by_header;
        let is_written = hosted.is_durable && !waits && self.is_kept(message, hosted.kind, false);
        let counts = hosted.queue.counts();
        let bodies = counts.ready_bytes + counts.unacked_bytes;
        (self.outside.alarm.disk && is_written)
            || bodies + hosted.queue.message_bytes() > QUEUE_BYTES_MAX
    }

    /// While an alarm is on, a copy for the firehose stays out of queues that hold much. Nobody can be stopped for it: those
    /// who consume again and again what they return would fill memory and disk with copies that nobody reads.
    #[cold]
    fn enqueue_copy(&mut self, copy: &Publish, from: ConnectionId, topology: &Topology, now: Time) {
        let targets = copy.targets.iter().copied();
        let targets: Targets = targets.filter(|id| !self.keeps_alarm(copy, *id)).collect();
        let left_out = copy.targets.len() - targets.len();
        if left_out > 0 {
            self.jobs.pay(cost::APPEND);
            self.counters.copies_left_out += left_out as u64;
            self.outside.say_left_out(now);
        }
        if !targets.is_empty() {
            let copy = Publish { targets, ..copy.clone() };
            self.enqueue(&copy, Some(from), false, topology, now);
        }
    }

    /// Appends the message and puts it into its queues; its publisher, if it is given, is told now or
    /// later. With `must_keep` a persistent message goes to the disk whatever the queues' rules.
    pub(super) fn enqueue(
        &mut self,
        publish: &Publish,
        from: Option<ConnectionId>,
        must_keep: bool,
        topology: &Topology,
        now: Time,
    ) -> Put {
        self.jobs.pay(cost::APPEND + cost::PLACE * publish.targets.len() as u64);
        if publish.targets.is_empty() {
            // One of a letter that comes again, and has its confirm.
            return Put { taken: PutResult::Yes, until: None, fails: false, waits: None };
        }
        let mut wants = self.wants(publish, must_keep, topology, now);
        if self.attaching.has_again() && (wants.before_commit || !wants.slot.waits_for_disk()) {
            // It waited for no log: a shard that had it before may have given it out.
            let doing = self.streams.doing();
            wants.is_redelivered = doing.is_some_and(|tag| self.attaching.had_come(tag));
        }
        self.put(publish, from, wants, must_keep, now)
    }

    /// The same of a message that a shard in an earlier term had in memory alone.
    #[cold]
    pub(super) fn enqueue_again(
        &mut self,
        publish: &Publish,
        from: ConnectionId,
        topology: &Topology,
        now: Time,
    ) -> Put {
        let mut wants = self.wants(publish, false, topology, now);
        wants.is_redelivered = true;
        // One that is gone may have been to tell of an ack: it is not known by which rule the message waited there.
        wants.is_lost |= publish.targets.iter().any(|id| self.queues.get(*id).is_none());
        self.put(publish, Some(from), wants, false, now)
    }

    fn put(
        &mut self,
        publish: &Publish,
        from: Option<ConnectionId>,
        mut wants: Wants,
        must_keep: bool,
        now: Time,
    ) -> Put {
        match self.append(publish, &mut wants, must_keep, now) {
            Ok(at) => self.place(at, publish, from, wants, now),
            Err(error) => {
                self.append_failed(error, now);
                if from.is_some() && publish.confirm != 0 {
                    let first = publish.targets.first().copied();
                    self.confirms.nacked(first, NackReason::NotStored);
                }
                let mut slot = wants.slot;
                slot.fail();
                self.tell_now(publish, from, slot, false);
                Put { taken: PutResult::NotStored, until: None, fails: true, waits: None }
            }
        }
    }

    /// A message of the letter that is being done waits for a consumer.
    #[cold]
    fn waits(&mut self, place: usize, whereabouts: WaitsWhere) {
        if self.streams.doing().is_none() {
            return;
        }
        if let WaitsWhere::Memory(at) = whereabouts {
            self.confirms.kept(at.get());
        }
        self.streams.waits(place, whereabouts);
    }

    /// Whether a durable queue of this kind keeps the message over a restart, and somebody is told that it is stored if it
    /// `is_awaited`. Where others have the log that means that a majority has it, whatever its delivery mode says, so it is
    /// written; and a replicated queue keeps all, as RabbitMQ's does.
    #[inline]
    fn is_kept(&self, publish: &Publish, kind: QueueKind, is_awaited: bool) -> bool {
        publish.persistent
            || self.store.has_others()
                && (is_awaited || publish.confirm != 0 || kind != QueueKind::Classic)
    }

    /// Asks the message's queues what they want of it. With `is_awaited` somebody but its publisher is told that it is stored.
    #[inline]
    pub(super) fn wants(
        &mut self,
        publish: &Publish,
        is_awaited: bool,
        topology: &Topology,
        now: Time,
    ) -> Wants {
        let mut wants = Wants::default();
        let mut own = None;
        let mut first = None;
        let are_new_quick = self.store.are_new_quick();
        let facts =
            |it: &Hosted| (it.confirm, it.is_durable, it.kind, it.odds.is_quick(are_new_quick));
        let targets = &publish.targets[..];
        for &id in targets {
            let (options, is_durable, kind, is_quick) = match self.queues.get(id) {
                Some(hosted) => facts(hosted),
                None => match self.hosted(id, topology, now) {
                    Some(hosted) => facts(hosted),
                    None => {
                        wants.is_lost |= self.confirms.is_gone(id);
                        continue;
                    }
                },
            };
            let keeps = is_durable && self.is_kept(publish, kind, is_awaited);
            let mut on = options.on;
            if options.by_header && on != ConfirmOn::AckLean {
                on = own.get_or_insert_with(|| own_rule(publish)).unwrap_or(on);
            }
            let until = until(on, &options, keeps);
            let is_lent = on == ConfirmOn::AckLean && publish.confirm != 0;
            if keeps && matches!(until, Until::Acked { .. }) {
                wants.waits_in_memory = true;
                if !is_lent {
                    wants.defer_ms = at_most(wants.defer_ms, Some(options.defer_ms));
                }
            }
            wants.timeout_ms = at_most(wants.timeout_ms, options.timeout_ms);
            wants.before_commit |= options.before_commit;
            wants.can_keep |= keeps;
            wants.is_slow |= until == Until::First && !is_quick;
            if options.replication == ReplicationConfirm::All
                && matches!(until, Until::First | Until::Durable)
                && self.store.has_others()
            {
                wants.for_all = wants.for_all.saturating_add(1);
            }
            wants.add(id, until, &mut first, targets);
        }
        wants.is_persistent = publish.persistent || wants.can_keep;
        if wants.is_slow {
            wants.slot.waits_for_disk_alone();
        }
        wants
    }

    pub(super) fn append(
        &mut self,
        publish: &Publish,
        wants: &mut Wants,
        must_keep: bool,
        now: Time,
    ) -> Result<Offset, AppendError> {
        let is_durable = wants.slot.waits_for_disk() || (must_keep && wants.can_keep);
        let (is_persistent, wall) = (wants.is_persistent, self.outside.wall(now));
        let at = self.store.append(publish, is_persistent, is_durable, wall, now)?;
        if is_durable {
            wants.defer_ms = None;
        }
        Ok(at)
    }

    /// A message is not stored.
    #[cold]
    pub(super) fn append_failed(&mut self, error: AppendError, now: Time) {
        self.counters.refused += 1;
        self.counters.unstored += 1;
        self.store.complain(error, self.counters.unstored, now);
    }

    /// Puts an appended message into its queues, and notes what its publisher waits for.
    pub(super) fn place(
        &mut self,
        at: Offset,
        publish: &Publish,
        from: Option<ConnectionId>,
        wants: Wants,
        now: Time,
    ) -> Put {
        if from.is_none() {
            // Of a transaction, a dead letter: what is lost of these with the end of the log comes once more, as if for the first time.
            self.store.commit_first();
        }
        let incoming = Incoming {
            offset: at,
            size: u32::try_from(publish.message.body_len()).unwrap_or(u32::MAX),
            priority: publish.priority,
            persistent: wants.is_persistent,
            expiration_ms: publish.expiration_ms,
            redelivered: wants.is_redelivered,
            delivery_count: 0,
        };
        let Wants {
            mut slot,
            mixed,
            can_keep,
            waits_in_memory,
            defer_ms,
            timeout_ms,
            is_lost,
            is_slow,
            for_all,
            ..
        } = wants;
        let wants_disk = slot.waits_for_disk();
        let is_safe = match for_all {
            0 => self.store.is_durable(at),
            _ => self.store.on_all() > at.get(),
        };
        // The disk is asked for at once where a queue's rule waits for it alone; where a consumer may be
        // quicker, dispatch looks whether there is one.
        let is_told = from.is_some() && publish.confirm != 0;
        let is_awaited = is_told && !is_safe && slot.may_be_acked_first();
        let targets = &publish.targets[..];
        if is_told && is_slow && !is_safe {
            targets.iter().for_each(|&id| self.store.watch(at, id));
        }
        let (mut refused, mut full) = (0, None);
        for &id in targets {
            if !self.place_one(id, incoming, is_told, is_awaited, now) {
                refused += 1;
                full = Some(id);
            }
        }
        let taken = if refused == 0 { PutResult::Yes } else { PutResult::Refused };
        if refused > 0 || is_lost {
            slot.fail();
            if is_told {
                let reason = if refused > 0 { NackReason::Full } else { NackReason::Lost };
                self.confirms.nacked(full, reason);
            }
        }
        if refused == targets.len() {
            slot.is_not_written();
        }
        if is_safe {
            slot.is_durable();
        }
        let until = (!is_safe && can_keep).then_some(at.get() + 1);
        let confirm = if from.is_some() { publish.confirm } else { 0 };
        let waits = (confirm != 0 && !slot.is_resolved_by_disk()).then_some(match wants_disk {
            true => WaitsWhere::Log(at),
            false if waits_in_memory => WaitsWhere::Memory(at),
            false => WaitsWhere::Nowhere,
        });
        let put = Put { taken, until, fails: slot.has_failed(), waits };
        if slot.is_resolved() {
            self.tell_now(publish, from, slot, wants_disk);
            return put;
        }
        if confirm == 0 && defer_ms.is_none() {
            return put;
        }
        if confirm != 0 && slot.waits_for_disk() && !slot.may_be_acked_first() {
            self.store.ask(at.get() + 1);
        }
        slot.is_of(from.unwrap_or_default(), publish.channel, confirm);
        let timeout_ms = timeout_ms.filter(|_| confirm != 0);
        let for_all = if slot.waits_for_disk() { for_all } else { 0 };
        self.confirms.add(at.get(), slot, mixed, Wait { now, defer_ms, timeout_ms, for_all });
        put
    }

    /// Tells the publisher of a message that nothing is missing of.
    #[inline]
    fn tell_now(
        &mut self,
        publish: &Publish,
        from: Option<ConnectionId>,
        mut slot: UnresolvedMessage,
        by_disk: bool,
    ) {
        if let Some(from) = from
            && publish.confirm != 0
        {
            slot.is_of(from, publish.channel, publish.confirm);
            self.confirms.tell_at_once(slot, by_disk);
        }
    }

    /// Puts an appended message into one queue. False when the queue refused it.
    fn place_one(
        &mut self,
        id: QueueId,
        incoming: Incoming,
        is_told: bool,
        is_awaited: bool,
        now: Time,
    ) -> bool {
        let result = self.queues.change(id, |hosted, left| {
            if is_awaited {
                hosted.awaited_in = self.store.hold(incoming.offset, id);
            }
            // What nobody waits for is never lent: nobody could be told that it was lost.
            if is_told && hosted.confirm.on == ConfirmOn::AckLean {
                hosted.queue.enqueue_lean(incoming, now, left)
            } else {
                hosted.queue.enqueue(incoming, now, left)
            }
        });
        match result {
            Some(Ok(())) => {
                self.counters.enqueued += 1;
                true
            }
            Some(Err(_full)) => {
                // It has left: dropped or dead-lettered.
                self.counters.refused += 1;
                false
            }
            None => {
                // Deleted between routing and now: the message has left with the queue.
                self.release(incoming.offset, id);
                true
            }
        }
    }
}

impl Wants {
    /// Adds a queue's rule.
    #[inline]
    fn add(&mut self, id: QueueId, until: Until, first: &mut Option<Until>, all: &[QueueId]) {
        self.slot.count(until);
        match (&mut self.mixed, *first) {
            (Some(mixed), _) => mixed.push((id, until)),
            (None, None) => *first = Some(until),
            (None, Some(same)) if same == until => {}
            (None, Some(other)) => {
                // Those before this one had the other rule.
                let before = all.iter().take_while(|&&before| before != id);
                let mut mixed: Mixed = before.map(|&before| (before, other)).collect();
                mixed.push((id, until));
                self.mixed = Some(mixed);
            }
        }
    }
}

/// What a queue's rule means for a message that it keeps over a restart, or does not.
pub(super) fn until(on: ConfirmOn, options: &ConfirmOptions, keeps: bool) -> Until {
    match on {
        ConfirmOn::AckLean => Until::Acked { dead_letter_acks: false },
        ConfirmOn::Ack => Until::Acked { dead_letter_acks: options.dead_letter_acks },
        _ if !keeps => Until::Now,
        ConfirmOn::First => Until::First,
        ConfirmOn::Enqueue => Until::Durable,
    }
}

/// The rule that the message itself asks for. What is not a rule's name is the application's own.
#[cold]
fn own_rule(publish: &Publish) -> Option<ConfirmOn> {
    let peek = RawProperties::new(publish.message.properties()).peek().ok()?;
    match peek.headers?.get("x-confirm-on") {
        Ok(Some(RawValue::LongStr(name))) => ConfirmOn::parse(std::str::from_utf8(name).ok()?)
            .filter(|rule| *rule != ConfirmOn::AckLean),
        _ => None,
    }
}

/// The smaller of two limits.
pub(super) fn at_most(a: Option<u32>, b: Option<u32>) -> Option<u32> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
