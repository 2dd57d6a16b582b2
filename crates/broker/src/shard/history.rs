//! What recent-history exchanges remember, for queues bound later.
//!
//! RabbitMQ's plugin keeps the last messages in its metadata store; here the shard of
//! [`Topology::history_home`] keeps them, so routing stays free of messages.
//!
//! A message is remembered at once: putting it into a line would cost as much, and what its publisher has the confirm of
//! is there for whoever binds a queue then. Its connection pays. A queue gets what is remembered in pieces; meanwhile
//! nothing of that is dropped, and for no other queue is it more than is to be kept. When much is kept so beyond the limits,
//! whoever publishes to such an exchange is not read from until it is little: see [`flow`](crate::flow).
//!
//! Nobody is promised a history, and no consumer lets go of one: all of them together have a bound in bytes. What does not
//! fit is taken from the exchange that got the message, if no other remembers more, rounded to powers of two, or else from one of the longest:
//! the oldest messages first, even from under a replay. A message takes [`GIVEN_UP`] at once, and the rest of its room in pieces:
//! one of 128 MiB may push out half a million small ones. What is taken, or was of an exchange that is gone, is let go of in
//! pieces, too. It is beyond the bound until then, and as with what is beyond the limits, publishers wait until it is little.

use std::collections::{BTreeMap, VecDeque};

use foldhash::fast::FixedState;
use hashbrown::{HashMap, HashSet};
use leveret_log::Log;
use leveret_queue::Time;
use leveret_topology::{ExchangeId, QueueId, Topology};

use super::Shard;
use super::jobs::{Job, JobOrigin, cost};
use crate::flow::WAITING_BYTES_MAX;
use crate::message::{ConnectionId, Outbox, Publish, ToSession, ToShard};

/// The last messages of each recent-history exchange kept here.
#[derive(Debug, Default)]
pub(super) struct Histories {
    by_exchange: HashMap<ExchangeId, History, FixedState>,
    /// Those that remember something, by the logarithm of their bytes: in one list none is twice as long as another.
    by_length: Vec<Vec<ExchangeId>>,
    /// Of exchanges that are gone, to be let go of.
    gone: VecDeque<VecDeque<Publish>>,
    /// What it costs to let go of those.
    gone_units: u64,
    /// Exchanges that keep more than they are to, since a replay needed it.
    excessive: VecDeque<ExchangeId>,
    /// A [`Job::Forget`] waits, for all that is to be let go of.
    is_forgetting: bool,
    /// What all of them take.
    bytes: u64,
    /// What of it is of `gone`.
    gone_bytes: u64,
    /// What those of exchanges that are there may take. None before it was set: there is no bound then.
    bytes_max: Option<u64>,
    /// The last exchange that got a message which did not find all its room at once. None: all that is there has room.
    crowded_by: Option<ExchangeId>,
    /// That they took more was told.
    is_told: bool,
    /// What of it is beyond the limits of exchanges that are there.
    excess: u64,
    /// Connections that are not read from because of that.
    paused: HashSet<ConnectionId, FixedState>,
}

/// The last messages of one exchange.
#[derive(Debug, Default)]
struct History {
    /// Oldest first.
    messages: VecDeque<Publish>,
    /// The number of the first one; each has the next number.
    first: u64,
    /// How many are to be kept.
    limit: usize,
    bytes: u64,
    /// Where it is in `by_length`, if it remembers something.
    place: Option<LengthIndex>,
    /// Bytes of the messages that exceed the limit.
    excess: u64,
    /// How many replays have come to this number: what they have not come to is kept.
    replays: BTreeMap<u64, usize>,
    /// The exchange is gone, and a replay goes on.
    is_gone: bool,
}

/// Where a history is among those of its length.
#[derive(Clone, Copy, Debug)]
struct LengthIndex {
    /// The logarithm of its bytes.
    length: usize,
    /// Its index in that list.
    at: usize,
}

/// A queue that is to be sent what an exchange remembered when it was bound.
#[derive(Debug)]
pub(super) struct Replay {
    /// Who bound it.
    from: ConnectionId,
    exchange: ExchangeId,
    queue: QueueId,
    /// The number of the next message.
    next: u64,
    /// The number after the last one.
    end: u64,
}

/// Messages that one message may push out: two, so that what was kept for a replay goes, too.
const PUSHED_OUT: usize = 2;

/// A message takes room from so many exchanges at once.
const VICTIMS_MAX: usize = 16;

/// Messages whose room one message takes at once.
const GIVEN_UP: usize = 1000;

/// Units that a message costs that is sent to a queue.
fn price_of_one(message: &Publish) -> u64 {
    cost::APPEND + cost::PLACE + cost::carried(message)
}

impl Histories {
    /// What all of them may take, from the next message on.
    pub(super) fn set_bytes_max(&mut self, bytes: u64) {
        self.bytes_max = Some(bytes);
    }

    /// Takes what does not fit from the longest, to be let go of. `exchange` has got a message.
    fn make_room(&mut self, exchange: ExchangeId) {
        let mut count = GIVEN_UP;
        for _ in 0..VICTIMS_MAX {
            let over = self.over();
            if over == 0 || count == 0 {
                break;
            }
            let (old, bytes) = self.take_from(self.victim(exchange), over, count);
            count -= old.len();
            self.leave(old, bytes);
            if !std::mem::replace(&mut self.is_told, true) {
                let most = self.bytes_max.unwrap_or_default();
                tracing::warn!(
                    "recent-history exchanges remember no more than {most} bytes in a shard: \
                     the oldest messages of the longest histories are forgotten"
                );
            }
        }
        self.crowded_by = (self.over() > 0).then_some(exchange);
    }

    /// Takes the oldest messages of a history: as many as have so many bytes, but not more than `count`. These, and their bytes.
    fn take_from(
        &mut self,
        exchange: ExchangeId,
        bytes: u64,
        count: usize,
    ) -> (VecDeque<Publish>, u64) {
        let Some(history) = self.by_exchange.get_mut(&exchange) else { return Default::default() };
        let before = (history.bytes, history.excess);
        let old = history.give_up(bytes, count);
        let (bytes, excess) = (before.0 - history.bytes, before.1 - history.excess);
        self.excess -= excess;
        self.place(exchange);
        (old, bytes)
    }

    /// Bytes beyond the bound, without what is to be let go of.
    fn over(&self) -> u64 {
        let most = self.bytes_max.unwrap_or(u64::MAX);
        (self.bytes - self.gone_bytes).saturating_sub(most)
    }

    /// Bytes that are there until pieces of work have been done.
    fn leaving(&self) -> u64 {
        self.gone_bytes + self.crowded_by.map_or(0, |_| self.over())
    }

    /// One of the longest: this one, if it is among them.
    fn victim(&self, exchange: ExchangeId) -> ExchangeId {
        let own = self.by_exchange.get(&exchange).and_then(|it| it.place);
        let longest = self.by_length.iter().enumerate().rfind(|(_, list)| !list.is_empty());
        match longest {
            Some((length, list)) if own.is_none_or(|own| own.length < length) => {
                list.last().copied().unwrap_or(exchange)
            }
            _ => exchange,
        }
    }

    /// A history has another length.
    fn place(&mut self, exchange: ExchangeId) {
        let Some(history) = self.by_exchange.get_mut(&exchange) else { return };
        let length = history.bytes.checked_ilog2().map(|it| it as usize);
        if length == history.place.map(|it| it.length) {
            return;
        }
        let before = history.place.take();
        if let Some(length) = length {
            if self.by_length.len() <= length {
                self.by_length.resize_with(length + 1, Vec::new);
            }
            let list = &mut self.by_length[length];
            history.place = Some(LengthIndex { length, at: list.len() });
            list.push(exchange);
        }
        self.displace(before);
    }

    /// Nothing has this place any more.
    fn displace(&mut self, place: Option<LengthIndex>) {
        let Some(LengthIndex { length, at }) = place else { return };
        let list = &mut self.by_length[length];
        list.swap_remove(at);
        let last = list.get(at).and_then(|moved| self.by_exchange.get_mut(moved));
        if let Some(last) = last {
            last.place = place;
        }
    }

    /// Nobody is to get these any more.
    fn leave(&mut self, messages: VecDeque<Publish>, bytes: u64) {
        self.gone_units += cost::LEFT * (messages.len() as u64 + 1);
        self.gone_bytes += bytes;
        self.gone.push_back(messages);
    }

    /// Adds a message and drops what exceeds `limit`.
    fn remember(&mut self, exchange: ExchangeId, limit: u32, message: Publish) {
        let message = Publish { message: message.message.detached(), ..message };
        let history = self.by_exchange.entry(exchange).or_default();
        let before = (history.bytes, history.excess);
        history.add(message, limit as usize);
        history.trim(PUSHED_OUT);
        self.bytes = self.bytes + history.bytes - before.0;
        self.excess = self.excess + history.excess - before.1;
        self.place(exchange);
        self.make_room(exchange);
    }

    /// Has a connection pause that published to an exchange, while much is kept beyond the limits and some of it there, or
    /// much is to be let go of.
    fn pause_if_much(&mut self, exchange: ExchangeId, from: ConnectionId, out: &mut Outbox) {
        let is_part = || self.by_exchange.get(&exchange).is_some_and(|it| it.excess > 0);
        let is_much =
            self.leaving() > WAITING_BYTES_MAX || (self.excess > WAITING_BYTES_MAX && is_part());
        if is_much && from != ConnectionId::NOBODY && self.paused.insert(from) {
            out.session(from, ToSession::Paused(true));
        }
    }

    /// Who paused goes on when little is kept beyond the limits, and little is to be let go of.
    fn resume_if_little(&mut self, out: &mut Outbox) {
        if self.excess.max(self.leaving()) <= WAITING_BYTES_MAX / 2 {
            self.end_pauses(out);
        }
    }

    /// Who paused goes on.
    pub(super) fn end_pauses(&mut self, out: &mut Outbox) {
        for who in self.paused.drain() {
            out.session(who, ToSession::Paused(false));
        }
    }

    /// The connection ended.
    pub(super) fn forget_pause(&mut self, connection: ConnectionId) {
        self.paused.remove(&connection);
    }

    /// What a replay costs, about.
    pub(super) fn price_of(&self, exchange: ExchangeId) -> u64 {
        let Some(history) = self.by_exchange.get(&exchange) else { return cost::LETTER };
        let messages = history.kept() as u64;
        cost::LETTER + (cost::APPEND + cost::PLACE) * messages + history.bytes / 1024
    }

    /// Begins to send a queue what is remembered now.
    pub(super) fn replay(
        &mut self,
        from: ConnectionId,
        exchange: ExchangeId,
        queue: QueueId,
    ) -> Replay {
        let history = self.by_exchange.get_mut(&exchange);
        let history = history.filter(|it| !it.is_gone && !it.messages.is_empty());
        let (next, end) = history.map_or((0, 0), |history| {
            let next = history.end() - history.kept() as u64;
            *history.replays.entry(next).or_default() += 1;
            (next, history.end())
        });
        Replay { from, exchange, queue, next, end }
    }

    /// The number of the first message there is.
    fn first(&self, exchange: ExchangeId) -> u64 {
        self.by_exchange.get(&exchange).map_or(0, |it| it.first)
    }

    /// Messages from `next` on.
    fn from(&self, exchange: ExchangeId, next: u64) -> impl Iterator<Item = &Publish> {
        let history = self.by_exchange.get(&exchange);
        history.into_iter().flat_map(move |history| {
            let skipped = usize::try_from(next.saturating_sub(history.first)).unwrap_or(usize::MAX);
            history.messages.range(skipped.min(history.messages.len())..)
        })
    }

    /// A replay came from one number to another, or, with none, is done with.
    fn came(&mut self, exchange: ExchangeId, from: u64, to: Option<u64>) {
        let Some(history) = self.by_exchange.get_mut(&exchange) else { return };
        if let Some(count) = history.replays.get_mut(&from) {
            *count -= 1;
            if *count == 0 {
                history.replays.remove(&from);
            }
        }
        if let Some(to) = to {
            *history.replays.entry(to).or_default() += 1;
        } else if history.is_gone && history.replays.is_empty() {
            self.let_go(exchange);
        } else if history.has_excess() {
            self.excessive.push_back(exchange);
        }
    }

    /// The exchange is gone.
    fn forget(&mut self, exchange: ExchangeId) {
        let Some(history) = self.by_exchange.get_mut(&exchange) else { return };
        history.is_gone = true;
        if history.replays.is_empty() {
            self.let_go(exchange);
        }
    }

    fn let_go(&mut self, exchange: ExchangeId) {
        if let Some(history) = self.by_exchange.remove(&exchange) {
            self.displace(history.place);
            self.excess -= history.excess;
            self.leave(history.messages, history.bytes);
        }
    }

    /// Lets go of about so many messages that nobody is to get any more. What that cost.
    fn let_go_of(&mut self, allowed: u64) -> u64 {
        let mut used = 0;
        while used < allowed && self.let_one_go() {
            used += cost::LEFT;
        }
        used
    }

    /// Lets go of one message, or of a list without any. Whether there was something.
    fn let_one_go(&mut self) -> bool {
        if let Some(messages) = self.gone.front_mut() {
            self.gone_units -= cost::LEFT;
            match messages.pop_front() {
                Some(message) => {
                    self.bytes -= taken_by(&message);
                    self.gone_bytes -= taken_by(&message);
                }
                None => drop(self.gone.pop_front()),
            }
            return true;
        }
        if let Some(exchange) = self.crowded_by {
            let over = self.over();
            let (old, bytes) = self.take_from(self.victim(exchange), over, 1);
            self.bytes -= bytes;
            if old.is_empty() || bytes >= over {
                self.crowded_by = None;
            }
            return true;
        }
        let Some(&exchange) = self.excessive.front() else { return false };
        let history = self.by_exchange.get_mut(&exchange);
        let dropped = history.map_or(0, |history| {
            let before = history.bytes;
            history.trim(1);
            before - history.bytes
        });
        self.bytes -= dropped;
        self.excess -= dropped;
        self.place(exchange);
        if dropped == 0 {
            self.excessive.pop_front();
        }
        true
    }

    /// What it costs to let go of the rest, as far as is known: of what exceeds a limit or the bound is not, as more passes
    /// meanwhile.
    fn price_of_rest(&self) -> u64 {
        let crowded = u64::from(self.crowded_by.is_some());
        self.gone_units + cost::LEFT * (self.excessive.len() as u64 + crowded)
    }

    /// Memory that they take, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl History {
    /// The number of the next message.
    fn end(&self) -> u64 {
        self.first + self.messages.len() as u64
    }

    /// How many a queue gets that is bound now.
    fn kept(&self) -> usize {
        self.messages.len().min(self.limit)
    }

    /// Adds a message. Of those that are kept, so many are for whoever binds a queue now.
    fn add(&mut self, message: Publish, limit: usize) {
        self.bytes += taken_by(&message);
        self.messages.push_back(message);
        let beyond = self.messages.len().saturating_sub(limit);
        if self.limit == limit {
            let next = beyond.checked_sub(1).and_then(|at| self.messages.get(at));
            self.excess += next.map_or(0, taken_by);
        } else {
            self.limit = limit;
            self.excess = self.messages.iter().take(beyond).map(taken_by).sum();
        }
    }

    /// Gives up the oldest messages: so many bytes, but not more than `most` messages, or all.
    fn give_up(&mut self, bytes: u64, most: usize) -> VecDeque<Publish> {
        let (mut count, mut given) = (0, 0);
        for message in &self.messages {
            if given >= bytes || count == most {
                break;
            }
            given += taken_by(message);
            if self.messages.len() - count > self.limit {
                self.excess -= taken_by(message);
            }
            count += 1;
        }
        self.bytes -= given;
        self.first += count as u64;
        self.messages.drain(..count).collect()
    }

    /// Whether the first message is neither to be kept nor needed by a replay.
    fn has_excess(&self) -> bool {
        let is_needed = self.replays.first_key_value().is_some_and(|it| *it.0 <= self.first);
        self.messages.len() > self.limit && !is_needed
    }

    /// Drops so many messages at most that exceed the limit.
    fn trim(&mut self, max: usize) {
        for _ in 0..max {
            if !self.has_excess() {
                break;
            }
            let dropped = self.messages.pop_front().map_or(0, |message| taken_by(&message));
            self.bytes -= dropped;
            self.excess -= dropped;
            self.first += 1;
        }
    }
}

fn taken_by(message: &Publish) -> u64 {
    size_of::<Publish>() as u64 + message.message.len()
}

impl<L: Log> Shard<L> {
    /// A message passed an exchange. It may have been on its way while the exchange was deleted, and what is
    /// kept for one that is gone would never be forgotten.
    pub(super) fn remember(
        &mut self,
        from: ConnectionId,
        exchange: ExchangeId,
        limit: u32,
        message: Publish,
        topology: &Topology,
        out: &mut Outbox,
    ) {
        // One that is a record is not copied.
        let is_copied = message.message.record().is_none();
        let copied = if is_copied { cost::carried(&message) } else { 0 };
        self.jobs.charge(JobOrigin::Connection(from), cost::APPEND + copied);
        if topology.exchange_by_id(exchange).is_some() {
            self.histories.remember(exchange, limit, message);
            self.histories.pause_if_much(exchange, from, out);
            self.let_forgotten_go(out);
        }
    }

    /// Sends a newly bound queue some of what its exchange remembers. What is left will cost so much.
    pub(super) fn replay(
        &mut self,
        replay: &mut Replay,
        allowed: u64,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) -> u64 {
        let Replay { from, exchange, queue, next, end } = *replay;
        let is_there = topology.queue_by_id(queue).is_some();
        // What was given up meanwhile is passed.
        let at = next.max(self.histories.first(exchange)).min(end);
        let count = if is_there { usize::try_from(end - at).unwrap_or(usize::MAX) } else { 0 };
        let (mut used, mut messages) = (0, Vec::new());
        for message in self.histories.from(exchange, at).take(count) {
            if used >= allowed {
                break;
            }
            used += price_of_one(message);
            messages.push(Publish { targets: [queue].into_iter().collect(), ..message.clone() });
        }
        replay.next = at + messages.len() as u64;
        let is_done = !is_there || replay.next >= end;
        if next < end {
            self.histories.came(exchange, next, (!is_done).then_some(replay.next));
            self.let_forgotten_go(out);
        }
        let home = topology.home(queue);
        if messages.is_empty() {
            self.jobs.pay(cost::LETTER);
        } else if home == self.group {
            self.jobs.pay(messages.iter().map(cost::carried).sum());
            self.publish(from, &messages, u64::MAX, topology, now, out);
        } else {
            self.jobs.pay(used);
            out.shard(home, ToShard::Publish { from, messages });
        }
        if is_done { 0 } else { (cost::APPEND + cost::PLACE) * (end - replay.next) }
    }

    /// The exchange was deleted.
    pub(super) fn forget(&mut self, exchange: ExchangeId, out: &mut Outbox) {
        self.histories.forget(exchange);
        self.let_forgotten_go(out);
    }

    /// Lets go of what is remembered for nobody any more, now or in pieces.
    fn let_forgotten_go(&mut self, out: &mut Outbox) {
        self.let_go_or_wait(out);
        self.histories.resume_if_little(out);
    }

    fn let_go_or_wait(&mut self, out: &mut Outbox) {
        let units = self.histories.price_of_rest();
        if units == 0 || self.histories.is_forgetting {
            return;
        }
        if self.jobs.fits(JobOrigin::Leaving, units) {
            self.histories.let_go_of(units);
        }
        let units = self.histories.price_of_rest();
        if units > 0 {
            self.histories.is_forgetting = true;
            self.jobs.wait_in(JobOrigin::Leaving, Job::Forget, units, out);
        }
    }

    /// Lets go of some of it. What the rest will cost.
    pub(super) fn forget_some(&mut self, allowed: u64, out: &mut Outbox) -> u64 {
        let used = self.histories.let_go_of(allowed);
        self.histories.resume_if_little(out);
        self.jobs.pay(used);
        let units = self.histories.price_of_rest();
        self.histories.is_forgetting = units > 0;
        units
    }
}
