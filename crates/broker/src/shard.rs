//! A shard: a set of queues, the log they write to, and the turn that moves messages through both.
//!
//! Hot path: no allocation per message once warm (a batch of deliveries is one `Vec`), one copy of
//! the body, into the log.
//!
//! ```text
//!  letters --> publish: append, enqueue --+
//!          --> settle ---------------------+--> touched queues --> dispatch --> deliveries by connection
//!          --> consume, get, purge, ... ---+          |
//!                                                     +--> messages that left --> release or dead-letter
//!                                                                                    |
//!                     confirms, in runs  <-- unresolved <-- durable, acked, gone <---+--- the disk
//! ```
//!
//! Everything that a turn finds in the inbox is applied first; then each touched queue is dispatched
//! once, and each touched connection gets one letter; then it is decided what the disk gets.
//!
//! The shard's parts are [`queues`], [`store`], [`confirms`], [`exits`], [`ports`] and [`jobs`]. Each has its fields for itself,
//! and calls no other part. What letters do with them is in [`publish`], [`settle`], [`consume`], [`dead_letter`],
//! [`lifecycle`]; what follows from the log's progress is in [`progress`].

mod allowances;
mod aside;
mod attach;
mod confirms;
mod consume;
mod dead_letter;
mod exits;
mod filling;
mod history;
mod jobs;
mod late;
mod lifecycle;
mod listing;
mod look;
mod lose;
mod moving;
mod numbered;
mod numbers;
mod outside;
mod pieces;
mod poison;
mod ports;
mod progress;
mod publish;
mod queues;
mod recover;
mod settle;
mod store;
mod streams;
mod transactions;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_log::{Log, Usage};
use leveret_queue::{Offset, Queue, Time};
use leveret_topology::{GroupId, QueueId, Topology};

use crate::flow::Alarm;
use crate::held::Bookmark;
use crate::message::{Outbox, Reply, ToSession, ToShard};
use allowances::Allowances;
use aside::Unreadable;
use attach::Attaching;
use confirms::Confirms;
use exits::Exits;
use history::Histories;
use jobs::Jobs;
use late::Late;
pub use late::LateLimits;
use lifecycle::Asked;
use listing::Listing;
use lose::CutOff;
pub use lose::Users;
use numbers::Sampling;
use outside::Outside;
use ports::Ports;
use queues::{Hosted, Queues};
pub use recover::{Restored, queue_of};
use settle::Pays;
use store::{Store, queue_offset};
use streams::Streams;
use transactions::Transactions;

pub use confirms::{Confirmed, NackReason, Nacked};
pub use store::{LAZY_MAX_MS, LAZY_MS};

type Map<K, V> = HashMap<K, V, FixedState>;

/// Queues, their log, and what a turn needs: parts that know nothing of each other, and that a turn lets work together.
/// Generic over the log so that no call to it is dynamic.
#[derive(Debug)]
pub struct Shard<L> {
    group: GroupId,
    queues: Queues,
    store: Store<L>,
    confirms: Confirms,
    exits: Exits,
    ports: Ports,
    allowances: Allowances,
    jobs: Jobs,
    late: Late,
    transactions: Transactions,
    streams: Streams,
    histories: Histories,
    outside: Outside,
    counters: Counters,
    sampling: Sampling,
    /// Of this turn, and not told yet.
    unreadable: Vec<Unreadable>,
    /// Messages of queues that are not known are not let go.
    keeps_orphans: bool,
    /// See [`close`](Self::close).
    is_closed: bool,
    cut_off: CutOff,
    attaching: Attaching,
    /// Nobody was cut off, and nobody attaches.
    hears_all: bool,
}

/// Totals since the start, for metrics. Plain integers: published by whoever asks, once per turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages taken from publishers (dead letters too), once per target queue.
    pub enqueued: u64,
    /// Messages handed to consumers and to `basic.get`.
    pub delivered: u64,
    /// Messages acked, no-ack deliveries too.
    pub acked: u64,
    /// Messages dead-lettered.
    pub dead_lettered: u64,
    /// Messages dropped: expired, over a limit, rejected, purged.
    pub dropped: u64,
    /// Messages that an operator moved elsewhere.
    pub moved: u64,
    /// Messages refused to publishers.
    pub refused: u64,
    /// Messages that the log did not take.
    pub unstored: u64,
    /// Messages that could not be read, and were set aside in their queues.
    pub unreadable: u64,
    /// Copies for the firehose that full queues did not get during an alarm, once per queue.
    pub copies_left_out: u64,
}

/// What a queue takes that holds nothing, with its name and its place in the names: measured.
const QUEUE_BYTES: u64 = 1 << 10;

impl<L: Log> Shard<L> {
    /// The shard of a group.
    pub fn new(group: GroupId, log: L) -> Self {
        Self {
            group,
            queues: Queues::default(),
            store: Store::new(log),
            confirms: Confirms::default(),
            exits: Exits::default(),
            ports: Ports::default(),
            allowances: Allowances::default(),
            jobs: Jobs::default(),
            late: Late::default(),
            transactions: Transactions::default(),
            streams: Streams::default(),
            histories: Histories::default(),
            outside: Outside::default(),
            counters: Counters::default(),
            sampling: Sampling::default(),
            unreadable: Vec::new(),
            keeps_orphans: false,
            is_closed: false,
            cut_off: CutOff::default(),
            attaching: Attaching::default(),
            hears_all: true,
        }
    }

    /// Applies all letters, then dispatches. Returns whether queues have more to deliver than one turn
    /// may: the driver then gives the shard another turn soon.
    pub fn turn(
        &mut self,
        letters: &mut Vec<ToShard>,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) -> bool {
        let start = Bookmark::end_of(out);
        self.store.begins(now, self.outside.micros, self.outside.is_pressed);
        if self.is_closed {
            self.write_on(letters, topology.homes(), now, out);
            return false;
        }
        self.jobs.begin();
        for letter in letters.drain(..) {
            if self.hears_all {
                self.letter(letter, topology, now, out);
            } else if let Some(letter) = self.hear(letter, topology, now, out) {
                self.letter(letter, topology, now, out);
            }
        }
        self.fire_timers(topology, now, out);
        self.finish(start, topology, now, out)
    }

    /// Does what a letter wants, whatever it costs.
    fn do_now(&mut self, letter: ToShard, topology: &Topology, now: Time, out: &mut Outbox) {
        self.jobs.pay(jobs::cost::LETTER);
        match letter {
            ToShard::Publish { from, messages } => {
                // What it makes leave full queues may cost much more than was known.
                let allowed = self.jobs.limits().turn;
                let done = self.publish(from, &messages, allowed, topology, now, out);
                if done < messages.len() {
                    self.publish_rest(from, messages, done, out);
                }
            }
            ToShard::Settle { settlements, .. } => self.settle(&settlements, now),
            ToShard::GiveBack { from, unsettled } => {
                self.give_back_first(from, unsettled, now, out);
            }
            ToShard::Numbered(it) => self.numbered(*it, topology, now, out),
            // Without a number that is known it asks for nothing.
            ToShard::Ask { .. } => {}
            ToShard::StoreWaiting { stream, up_to } => self.store_waiting(stream, up_to),
            ToShard::Commit { reply, messages, settlements } => {
                self.commit(reply, &messages, settlements, topology, now, out);
            }
            ToShard::Prepare { reply, tx, parts, messages, settlements } => {
                self.prepare(reply, tx, parts, messages, settlements, topology, now, out);
            }
            ToShard::Decide { tx, commit } => self.decide(tx, commit, now, out),
            ToShard::Consume { .. } => self.consume(letter, topology, now, out),
            ToShard::Attach(attachment) => self.attach(*attachment),
            ToShard::Attached(attached) => self.attached(attached),
            ToShard::Cancel { user, reply, connection, slot, queue: _ } => {
                self.cancel(&user, reply, connection, slot, topology, now, out);
            }
            ToShard::Get { reply, queue, no_ack } => {
                self.get(reply, queue, no_ack, topology, now, out);
            }
            ToShard::Resume { connection, others } => {
                self.resume(connection);
                self.ports.resumed(connection, others);
            }
            ToShard::Allow { connection, allowances } => {
                self.allow(connection, &allowances);
            }
            ToShard::Count { reply, queue } => self.count(reply, queue, topology, now, out),
            ToShard::Purge { reply, queue, max } => {
                self.purge(reply, queue, |it| it.purge(max), topology, now, out);
            }
            ToShard::Look { .. } => self.look(letter, topology, now, out),
            ToShard::Move { .. } => self.move_some(letter, topology, now, out),
            ToShard::Discard { reply, queue, mut offsets } => {
                offsets.sort_unstable();
                self.purge(reply, queue, |it| it.discard(&offsets), topology, now, out);
            }
            ToShard::Delete { by, reply, queue, if_unused, if_empty } => {
                let asked = Asked { by, reply };
                self.delete(asked, queue, if_unused, if_empty, topology, now, out);
            }
            ToShard::CancelRest { queue } => self.cancel_rest(queue, out),
            ToShard::Create { reply, queue } => self.create(reply, queue, topology, now, out),
            ToShard::OptionsChanged { queue } => self.options_changed(queue, topology, now),
            ToShard::DeadLetter { from, message } => {
                self.take_dead_letter(from, &message, topology, now, out);
            }
            ToShard::DeadLettered { from, target, taken } => {
                self.dead_lettered(from, target, taken, now, out);
            }
            ToShard::Remember { from, exchange, limit, message } => {
                self.remember(from, exchange, limit, message, topology, out);
            }
            ToShard::Replay { from, exchange, queue } => {
                let mut replay = self.histories.replay(from, exchange, queue);
                self.replay(&mut replay, u64::MAX, topology, now, out);
            }
            ToShard::Forget { exchange } => self.forget(exchange, out),
            ToShard::Disconnected { connection, reply } => {
                while let Some(key) = self.ports.next_of_ended(connection) {
                    self.consumer_gone(connection, key, topology, now, out);
                }
                self.disconnected(connection, reply, out);
            }
            // Its letters are in lines now, or done.
            ToShard::Crowded { from } => out.session(from, ToSession::Paused(false)),
            ToShard::IsWell { reply } => out.reply(reply, Reply::Done),
            // What is to go on was touched at the start of the turn.
            ToShard::Continue => {}
            ToShard::Freed { by, records } => self.store.freed(by, topology.homes(), &records),
            ToShard::Lend { to, records } => self.store.lend(to, records, out),
            ToShard::Lent { records } => {
                self.store.lent(records);
                self.warmed(topology, now, out);
            }
            // The rest of what it finished is taken in at the end of the turn.
            ToShard::LogWoke => self.warmed(topology, now, out),
            ToShard::List { reply, queues, consumers } => {
                self.list(Listing::new(reply, queues, consumers), u64::MAX, now, out);
            }
            ToShard::Sample { reply, begins } => self.sample(reply, begins, now, out),
        }
    }

    /// Ends a turn: works off what left, dispatches, until neither brings more; then hands out what
    /// connections get.
    fn finish(
        &mut self,
        start: Bookmark,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) -> bool {
        self.jobs.count();
        if self.late.has_waiting() {
            self.go_on_with_whole(topology, now, out);
        }
        self.work_off_left(Pays::Nobody, topology, now, out);
        self.jobs.spend();
        self.work_on(topology, now, out);
        if self.attaching.is_on() {
            self.attach_on(topology, now, out);
        }
        if !self.streams.is_empty() {
            self.note_waiting();
        }
        if self.streams.is_changed() {
            self.write_notes(now);
        }
        if self.late.is_coming() {
            self.bring_late();
        }
        if self.ports.has_resumed() {
            self.queues.order_touched();
        }
        self.dispatch_touched(topology, now, out);
        self.ports.pass_on_resumed(out);
        self.go_on_with_lines(out);
        let has_letters = self.dead_letter_parked(topology, now, out);
        self.ports.hand_out(out);
        if !self.allowances.is_empty() {
            self.allowances.tell(self.group, self.streams.term(), out);
        }
        self.confirms.flush(out);
        self.store.hold_answers(start, out);
        self.confirms.flush_acked(out);
        self.settle_with_disk(now, out);
        self.store.free_answers(out);
        if !self.streams.is_empty() {
            self.tell_agreed(out);
        }
        self.store.send_errands(self.group, topology.homes(), out);
        if !self.unreadable.is_empty() {
            self.tell_unreadable(topology);
        }
        self.confirms.say_nacks(topology, now);
        self.queues.end_turn(topology);
        self.store.watch_spares(now);
        // What is due still, or again, had more to do than one turn may.
        let is_due = self.queues.are_due(now) || self.exits.are_due(now);
        let has_more = self.queues.are_touched() || self.late.has_more();
        has_letters || is_due || has_more || !self.jobs.is_empty()
    }

    /// Dispatches touched queues, one after the other, for as long as the turn lasts: half of one at least. What is left
    /// is first in the next turn.
    fn dispatch_touched(&mut self, topology: &Topology, now: Time, out: &mut Outbox) {
        let mut left = self.jobs.left().max(self.jobs.half_turn());
        while left > 0
            && let Some(id) = self.queues.next_touched()
        {
            self.jobs.count();
            if self.exits.has_line(id) && self.queues.is_to_be_cut(id) {
                // First the dead letters that it has: more would only wait. It is touched again after the last one.
                self.queues.untouch(id);
            } else if self.dispatch_some(id, left, now) {
                self.queues.touch(id);
            }
            self.work_off_left(Pays::Nobody, topology, now, out);
            left = left.saturating_sub(self.jobs.used());
            self.jobs.spend();
        }
    }

    /// Whether somebody waited for what the disk did before this turn, so that what follows from it should not wait for
    /// anything else.
    pub fn is_awaited(&self) -> bool {
        self.store.is_awaited()
    }

    /// Turns whose answers are held.
    pub fn held_turns(&self) -> usize {
        self.store.held_turns()
    }

    /// The queue, made now if the topology knows it and its `Create` has not come yet.
    fn hosted(&mut self, id: QueueId, topology: &Topology, now: Time) -> Option<&mut Hosted> {
        if self.queues.get(id).is_none() {
            let queue = topology.queue_by_id(id)?;
            if queue.home != self.group || self.queues.is_dying(id) {
                return None;
            }
            self.queues.host(queue, now);
        }
        self.queues.get_mut(id)
    }

    /// When the shard must run although nobody wrote to it. One that is closed has no time of its own: whoever closed it
    /// calls [`sync`](Self::sync).
    pub fn next_timeout(&self) -> Option<Time> {
        if self.is_closed {
            return None;
        }
        let (queues, stuck) = (self.queues.next_timeout(), self.exits.next_timeout());
        let waiting = [queues, stuck, self.confirms.next_timeout(), self.store.next_timeout()];
        waiting.into_iter().flatten().min()
    }

    /// Runs the queues whose time has come: expiry of messages, of unused queues.
    fn fire_timers(&mut self, topology: &Topology, now: Time, out: &mut Outbox) {
        self.jobs.count();
        while self.jobs.used() < self.jobs.half_turn()
            && let Some((at, id)) = self.queues.next_due(now)
        {
            let Some(hosted) = self.queues.get(id) else { continue };
            if hosted.queue.is_expired_unused(now) {
                if self.changes_later(id) {
                    // It is looked at again then.
                    continue;
                }
                self.say_expired(id, topology);
                self.delete_unused(id, topology, now, out);
                continue;
            }
            self.jobs.pay(jobs::cost::DISPATCH);
            if self.exits.has_line(id) {
                // First these: more would only wait. It is looked at again after the last one.
                continue;
            }
            let expired = self.queues.change(id, |hosted, left| hosted.queue.expire(now, left));
            if expired == Some(true) {
                self.queues.is_due_still(at, id);
            }
            self.work_off_left(Pays::Nobody, topology, now, out);
        }
        self.jobs.spend();
        self.retry_dead_letters(topology, now, out);
        self.queues.relax(now);
        self.store.relax(now);
        self.fire_confirms(now);
    }

    /// Tells publishers that waited long enough, and has deferred messages made durable.
    fn fire_confirms(&mut self, now: Time) {
        let Self { confirms, store, streams, .. } = self;
        confirms.fire(now, |at| {
            let is_there = store.persist_now(at);
            streams.goes(Offset::new(at), is_there);
        });
    }

    /// What is short now: to be said before a turn.
    pub fn set_alarm(&mut self, alarm: Alarm) {
        self.outside.alarm = alarm;
    }

    /// How far the system's clock has been set away from the time that turns are told, in ms: to be said before
    /// a turn. What is stamped for others, or for another process, is stamped by the system's clock.
    pub fn set_clock_step(&mut self, ms: i64) {
        self.outside.clock_step_ms = ms;
    }

    /// The time of the next turn, in microseconds: to be said before it. What is over within a millisecond is measured by
    /// it; without it times are whole milliseconds.
    pub fn set_micros(&mut self, us: u64) {
        self.outside.micros = us;
    }

    /// Whether processors are short: to be said before a turn. Messages and acks are on their way for long then, and
    /// what is written takes from all. Without it they are not.
    pub fn set_pressed(&mut self, is_pressed: bool) {
        self.outside.is_pressed = is_pressed;
    }

    /// What recent-history exchanges may remember here, in bytes, all together: what is more is forgotten, the oldest first.
    /// There is no bound before.
    pub fn set_history_bytes_max(&mut self, bytes: u64) {
        self.histories.set_bytes_max(bytes);
    }

    /// Memory and records of the log.
    pub fn usage(&self) -> Usage {
        self.store.usage()
    }

    /// Where its records are, for checks of where bodies lie.
    pub fn log(&self) -> &L {
        self.store.log()
    }

    /// The log, for the owner of its disk.
    pub fn log_mut(&mut self) -> &mut L {
        self.store.log_mut()
    }

    /// Memory that the queues take by being there, in bytes.
    pub fn idle_bytes(&self) -> u64 {
        self.queues.len() as u64 * QUEUE_BYTES
    }

    /// Memory that messages take here and in the sessions they were delivered to, in bytes; what
    /// recent-history exchanges remember and unresolved confirms too.
    pub fn held_bytes(&self) -> u64 {
        self.store.usage().held_bytes
            + self.queues.bytes()
            + self.jobs.bytes()
            + self.exits.bytes()
            + self.histories.bytes()
            + self.confirms.bytes()
            + self.transactions.bytes()
            + self.attaching.bytes()
            + self.streams.bytes()
    }

    /// Totals since the start.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// What publishers were told since the start.
    pub fn confirmed(&self) -> Confirmed {
        self.confirms.confirmed()
    }

    /// Messages that were nacked since the start, by reason.
    pub fn nacked(&self) -> Nacked {
        self.confirms.nacks()
    }

    /// Dead letters that left their queue and whose record stays until their targets are safe.
    pub fn departing(&self) -> u64 {
        self.exits.departing(|queue| self.queues.get(queue).is_some()) + self.jobs.leaving_held()
    }

    /// Records of transactions that are in no queue: what is not decided, and what is noted of it.
    pub fn transaction_records(&self) -> u64 {
        self.transactions.records()
    }

    /// The shard's queues, for checks of the simulator.
    pub fn queues(&self) -> impl Iterator<Item = (QueueId, &Queue)> {
        self.queues.iter().map(|(id, hosted)| (id, &hosted.queue))
    }
}

/// `queue 'q' in vhost '/'`, as RabbitMQ's texts name it.
fn describe(queue: &leveret_topology::Queue, topology: &Topology) -> String {
    let vhost = topology.vhost_by_id(queue.vhost).map_or("", |vhost| &vhost.name);
    format!("queue '{}' in vhost '{vhost}'", queue.name)
}
