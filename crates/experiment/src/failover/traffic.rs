//! The traffic that is accounted for: a publisher through each node, consumers through each node, several queues.
//!
//! Clients do what the libraries of real ones do: after an error they wait a moment and connect again to the node that they were given.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use leveret_client::amqp::method::{Method, basic};
use leveret_client::amqp::table::{Table, Value};
use leveret_client::{Connection, Consume, Error, Event, Options, QueueDeclare, Uri};

use super::account::{Account, Audience, Deed, Id, Link};
use super::phases::Pulse;
use crate::everything::chance::Chance;
use crate::everything::journal::Journal;
use crate::loads::Confirms;

/// Persistent: the flags of the properties, and the delivery mode.
pub(super) const PERSISTENT: [u8; 3] = [0x10, 0x00, 2];
/// Messages that a publisher has without an answer, at most.
const WINDOW: usize = 200;
/// Messages that a consumer has without an ack, at most.
const PREFETCH: u16 = 100;
/// Messages that a consumer keeps back from its acks, so that it always has some when its connection ends.
const HELD: usize = 20;
/// Of the messages of queues with several consumers, one of so many is given back.
const GIVEN_BACK: u64 = 97;
/// The longest body, in bytes.
const BODY_MAX: u64 = 2000;
/// What a body begins with: publisher, queue and number.
const BODY_MIN: u64 = 12;
/// Longest time for the last confirms, and for the last messages of a queue.
const LAST: Duration = Duration::from_secs(30);
/// How long messages may take to come back that a connection had which ended without a word: its heartbeats tell.
const BACK: Duration = Duration::from_secs(12);
/// How long a consumer hears nothing at the end before it takes its queue for empty.
const QUIET: Duration = Duration::from_secs(1);

/// AMQP 0-9-1 §1.2: an operator closed the connection, such as by the stop of a node.
const CONNECTION_FORCED: u16 = 320;

/// What is sent where.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The nodes.
    pub(crate) nodes: Vec<Uri>,
    /// How many queues there are. Every other one has one consumer, the others one through each node.
    pub(crate) queues: usize,
    /// `x-queue-type`, if it is to be given.
    pub(crate) queue_type: Option<String>,
    /// From one message of a publisher to its next.
    pub(crate) pace: Duration,
    /// From an error to the next try.
    pub(crate) reconnect: Duration,
    /// What decides the bodies' lengths and which messages are given back.
    pub(crate) seed: u64,
}

impl Plan {
    /// The name of a queue.
    fn queue(number: usize) -> String {
        format!("failover-{number}")
    }

    /// Of every queue that is declared.
    pub(super) fn arguments(&self) -> Table {
        let mut arguments = Table::default();
        if let Some(kind) = &self.queue_type {
            arguments.set("x-queue-type", Value::LongStr(kind.as_bytes().to_vec()));
        }
        arguments
    }

    fn audience(number: usize) -> Audience {
        if number.is_multiple_of(2) { Audience::One } else { Audience::Several }
    }
}

/// A consumer: of which queue, through which node, and how it is.
#[derive(Debug)]
struct Consumer {
    queue: usize,
    node: usize,
    pulse: Pulse,
    /// Its place among all clients, for its chance.
    number: u64,
}

/// The traffic, as all its threads see it.
#[derive(Debug)]
pub(crate) struct Traffic<'a> {
    plan: &'a Plan,
    journal: &'a Journal,
    began: Instant,
    accounts: Vec<Mutex<Account>>,
    publishers: Vec<Pulse>,
    consumers: Vec<Consumer>,
    links: AtomicU32,
    /// Publishers that have not ended.
    publishing: AtomicUsize,
    /// Publishers are to end.
    stop: AtomicBool,
    /// Consumers are to end when they hear nothing more.
    last: AtomicBool,
}

impl<'a> Traffic<'a> {
    /// Makes the queues anew. Nothing flows before [`run`](Self::run).
    pub(crate) fn prepare(plan: &'a Plan, journal: &'a Journal) -> anyhow::Result<Self> {
        let mut connection = connect_to_any(&plan.nodes, "leveret failover")?;
        let channel = connection.open_channel()?;
        let how =
            QueueDeclare { durable: true, arguments: plan.arguments(), ..QueueDeclare::default() };
        for number in 0..plan.queues {
            let queue = Plan::queue(number);
            connection.queue_delete(channel, &queue)?;
            connection.queue_declare(channel, &queue, &how)?;
        }
        connection.close()?;
        let (began, nodes) = (Instant::now(), plan.nodes.len());
        let of_queue = |queue: usize| match Plan::audience(queue) {
            Audience::One => vec![queue / 2 % nodes],
            Audience::Several => (0..nodes).collect(),
        };
        let places = (0..plan.queues)
            .flat_map(|queue| of_queue(queue).into_iter().map(move |node| (queue, node)));
        let consumers = places.enumerate().map(|(number, (queue, node))| Consumer {
            queue,
            node,
            pulse: Pulse::new(began),
            number: 1000 + number as u64,
        });
        let account = |queue| Mutex::new(Account::new(Plan::audience(queue), nodes));
        Ok(Self {
            plan,
            journal,
            began,
            accounts: (0..plan.queues).map(account).collect(),
            publishers: (0..nodes).map(|_| Pulse::new(began)).collect(),
            consumers: consumers.collect(),
            // Line 0 of an account is nobody's connection.
            links: AtomicU32::new(1),
            publishing: AtomicUsize::new(nodes),
            stop: AtomicBool::new(false),
            last: AtomicBool::new(false),
        })
    }

    /// Lets it flow while `director` runs, then until all that was sent has come.
    pub(crate) fn run<T>(&self, director: impl FnOnce(&Self) -> T) -> T {
        std::thread::scope(|scope| {
            for node in 0..self.publishers.len() {
                scope.spawn(move || self.publish(node));
            }
            let consuming: Vec<_> = self
                .consumers
                .iter()
                .map(|consumer| scope.spawn(move || self.consume(consumer)))
                .collect();
            let directed = director(self);
            self.stop.store(true, Ordering::Release);
            let end = Instant::now() + LAST;
            while self.publishing.load(Ordering::Acquire) > 0 && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(20));
            }
            self.last.store(true, Ordering::Release);
            for thread in consuming {
                // A panic of it comes out of the scope.
                let _ = thread.join();
            }
            directed
        })
    }

    /// Takes what is left in the queues; the number of messages that stay all the same, or the text of why nobody knows.
    pub(crate) fn drain(&self) -> anyhow::Result<u64> {
        let mut connection = connect_to_any(&self.plan.nodes, "leveret failover drain")?;
        let channel = connection.open_channel()?;
        let mut left = 0;
        for number in 0..self.plan.queues {
            let (queue, link) = (Plan::queue(number), self.link());
            let end = Instant::now() + BACK;
            loop {
                while let Some(got) = connection.get(channel, &queue, false)? {
                    let id = read(&got.body, number);
                    let (mut account, now_ms) = (self.account(number), self.now_ms());
                    self.note(number, account.deliver(link, id, got.redelivered, now_ms));
                    if let Some(id) = id {
                        account.ack(id, now_ms);
                    }
                    connection.ack(channel, got.delivery_tag, false);
                }
                connection.flush()?;
                if self.account(number).sum().0.lost == 0 || Instant::now() > end {
                    break;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
            let passive = QueueDeclare { passive: true, ..QueueDeclare::default() };
            left += u64::from(connection.queue_declare(channel, &queue, &passive)?.message_count);
        }
        connection.close()?;
        Ok(left)
    }

    /// What the account of each queue comes to, and what is wrong with it.
    pub(crate) fn sums(&self) -> Vec<(String, super::account::Sum, Vec<String>)> {
        let of = |number| {
            let (sum, lines) = self.account(number).sum();
            (Plan::queue(number), sum, lines)
        };
        (0..self.plan.queues).map(of).collect()
    }

    /// Waits until each publisher had a confirm, and each consumer a message, after `since`: how long after it that was, or who had none in time.
    /// Clients over the nodes that are `away` are not waited for.
    pub(crate) fn settle(
        &self,
        since: Instant,
        patience: Duration,
        away: &[usize],
    ) -> Result<Duration, String> {
        loop {
            let waiting = self.waiting(since, away);
            let now = Instant::now();
            if waiting.is_empty() {
                return Ok(now - since);
            }
            if now > since + patience {
                return Err(waiting.join(", "));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn waiting(&self, since: Instant, away: &[usize]) -> Vec<String> {
        let publishers = self.publishers.iter().enumerate();
        let mut waiting: Vec<_> = publishers
            .filter(|(node, it)| !away.contains(node) && it.last() <= since)
            .map(|(node, _)| format!("the publisher through node {node}"))
            .collect();
        let consumers = self.consumers.iter();
        let consumers = consumers.filter(|it| !away.contains(&it.node) && it.pulse.last() <= since);
        waiting.extend(consumers.map(|it| {
            format!("the consumer of {} through node {}", Plan::queue(it.queue), it.node)
        }));
        waiting
    }

    /// Tells when everything that counts for a fault happened, in ms since the beginning.
    pub(crate) fn moments(&self, mut tell: impl FnMut(Deed, u32)) {
        for queue in 0..self.plan.queues {
            self.account(queue).moments(&mut tell);
        }
    }

    /// Errors that clients over other nodes than these have had since [`take`](Self::take).
    pub(crate) fn errors_elsewhere(&self, nodes: &[usize]) -> u64 {
        let publishers = self.publishers.iter().enumerate();
        let consumers = self.consumers.iter().map(|it| (it.node, &it.pulse));
        let elsewhere = publishers.chain(consumers).filter(|(node, _)| !nodes.contains(node));
        elsewhere.map(|(_, pulse)| pulse.errors()).sum()
    }

    /// The longest pause of each node's publisher since this was asked last, and the errors of all its clients.
    pub(crate) fn take(&self) -> (Vec<Duration>, Vec<u64>) {
        let now = Instant::now();
        let (pauses, mut errors): (Vec<_>, Vec<_>) =
            self.publishers.iter().map(|it| it.take(now)).unzip();
        for consumer in &self.consumers {
            errors[consumer.node] += consumer.pulse.take(now).1;
        }
        (pauses, errors)
    }

    fn account(&self, queue: usize) -> MutexGuard<'_, Account> {
        self.accounts[queue].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, queue: usize, wrong: Option<String>) {
        if let Some(wrong) = wrong {
            self.journal.note(&format!("{}: {wrong}", Plan::queue(queue)));
        }
    }

    fn link(&self) -> Link {
        Link(self.links.fetch_add(1, Ordering::Relaxed))
    }

    /// Since the beginning.
    pub(crate) fn now_ms(&self) -> u32 {
        u32::try_from(self.began.elapsed().as_millis()).unwrap_or(u32::MAX)
    }

    fn publish(&self, node: usize) {
        let mut chance = Chance::new(self.plan.seed, node as u64);
        let mut turn = node as u64;
        while let Err(error) = self.publish_once(node, &mut chance, &mut turn) {
            let who = format!("the publisher through node {node}");
            self.failed(&self.publishers[node], &who, &error);
            if self.stop.load(Ordering::Acquire) {
                break;
            }
        }
        self.publishing.fetch_sub(1, Ordering::Release);
    }

    /// Publishes until it is time to stop and all is answered.
    fn publish_once(&self, node: usize, chance: &mut Chance, turn: &mut u64) -> Result<(), Error> {
        let mut connection = Connection::open(&self.plan.nodes[node], &options("publisher"))?;
        let channel = connection.open_channel()?;
        connection.confirm_select(channel)?;
        let names: Vec<_> = (0..self.plan.queues).map(Plan::queue).collect();
        let (mut confirms, mut waiting, mut first) = (Confirms::default(), VecDeque::new(), 1);
        let (mut due, mut end) = (Instant::now(), None);
        loop {
            let now = Instant::now();
            if end.is_none() && self.stop.load(Ordering::Acquire) {
                end = Some(now + LAST);
            }
            match end {
                Some(_) if confirms.waiting() == 0 => return connection.close(),
                Some(end) if now > end => return Err(Error::TimedOut("the last confirms")),
                _ => {}
            }
            while end.is_none() && confirms.waiting() < WINDOW && now >= due {
                // What was missed while nothing was answered is not made up for.
                due = (due + self.plan.pace).max(now - self.plan.pace);
                *turn += 1;
                let queue = (*turn % self.plan.queues as u64) as usize;
                let id = self.account(queue).publish(node as u16);
                let body = body(queue, id, chance.below(BODY_MAX));
                let publish = basic::Publish {
                    routing_key: &names[queue],
                    mandatory: true,
                    ..Default::default()
                };
                connection.output().put_publish(channel, &publish, &PERSISTENT, &body);
                confirms.published();
                waiting.push_back((queue, id));
            }
            connection.flush()?;
            let pause = due.saturating_duration_since(Instant::now());
            connection.wait(pause.clamp(Duration::from_millis(1), Duration::from_millis(50)))?;
            let (came, came_ms) = (Instant::now(), self.now_ms());
            while let Some(event) = connection.next_event()? {
                let (tag, multiple, is_taken) = match event {
                    Event::Method { method: Method::BasicAck(it), .. } => {
                        (it.delivery_tag, it.multiple, true)
                    }
                    Event::Method { method: Method::BasicNack(it), .. } => {
                        (it.delivery_tag, it.multiple, false)
                    }
                    Event::Content { method: Method::BasicReturn(it), body, .. } => {
                        let what = format!("returned: {} {}", it.reply_code, it.reply_text);
                        self.returned(body, &what);
                        continue;
                    }
                    _ => continue,
                };
                confirms.answered(tag, multiple, |tag| {
                    let Some((queue, id)) = waiting.get((tag - first) as usize).copied() else {
                        return;
                    };
                    if is_taken {
                        self.account(queue).confirm(id, came_ms);
                    } else {
                        self.account(queue).refuse(id);
                    }
                });
                if is_taken {
                    self.publishers[node].beat(came);
                }
            }
            while waiting.len() > confirms.waiting() {
                waiting.pop_front();
                first += 1;
            }
        }
    }

    /// A message came back: its queue is not there.
    fn returned(&self, body: &[u8], what: &str) {
        let place = (0..self.plan.queues).find_map(|it| Some((it, read(body, it)?)));
        if let Some((queue, id)) = place {
            self.account(queue).refuse(id);
            self.journal.find(&format!("{}: a message was {what}", Plan::queue(queue)));
        }
    }

    fn consume(&self, consumer: &Consumer) {
        let mut chance = Chance::new(self.plan.seed, consumer.number);
        let name = || {
            format!(
                "the consumer of {} through node {}",
                Plan::queue(consumer.queue),
                consumer.node
            )
        };
        let mut end = None;
        loop {
            let link = self.link();
            let Err(error) = self.consume_once(consumer, link, &mut chance) else { return };
            self.account(consumer.queue).end(link, self.now_ms());
            let Link(number) = link;
            self.failed(&consumer.pulse, &format!("{}, connection {number}", name()), &error);
            if self.last.load(Ordering::Acquire)
                && Instant::now() > *end.get_or_insert_with(|| Instant::now() + LAST)
            {
                return;
            }
        }
    }

    /// Consumes until nothing more is to come.
    fn consume_once(
        &self,
        consumer: &Consumer,
        link: Link,
        chance: &mut Chance,
    ) -> Result<(), Error> {
        let queue = consumer.queue;
        let is_alone = Plan::audience(queue) == Audience::One;
        let uri = &self.plan.nodes[consumer.node];
        let mut connection = Connection::open(uri, &options("consumer"))?;
        let channel = connection.open_channel()?;
        connection.qos(channel, PREFETCH, false)?;
        let consumer_tag = connection.consume(channel, &Plan::queue(queue), &Consume::default())?;
        let mut held: VecDeque<(u64, Option<Id>, bool)> = VecDeque::new();
        let mut heard = Instant::now();
        loop {
            let has_some = connection.wait(Duration::from_millis(100))?;
            let is_last = self.last.load(Ordering::Acquire);
            while let Some(event) = connection.next_event()? {
                match event {
                    Event::Content { method: Method::BasicDeliver(it), body, .. } => {
                        let id = read(body, queue);
                        let now_ms = self.now_ms();
                        let wrong = self.account(queue).deliver(link, id, it.redelivered, now_ms);
                        self.note(queue, wrong);
                        held.push_back((it.delivery_tag, id, it.redelivered));
                        heard = Instant::now();
                        consumer.pulse.beat(heard);
                    }
                    Event::Method { method: Method::BasicCancel(_), .. } => {
                        return Err(Error::Unexpected {
                            expected: "deliveries",
                            got: "basic.cancel",
                        });
                    }
                    _ => {}
                }
            }
            let kept = if has_some && !is_last { HELD } else { 0 };
            let (now_ms, mut newest) = (self.now_ms(), None);
            while held.len() > kept
                && let Some((tag, id, redelivered)) = held.pop_front()
            {
                if !is_alone && !is_last && !redelivered && chance.once_in(GIVEN_BACK) {
                    connection.nack(channel, tag, false, true);
                    continue;
                }
                if let Some(id) = id {
                    self.account(queue).ack(id, now_ms);
                }
                if is_alone {
                    newest = Some(tag);
                } else {
                    connection.ack(channel, tag, false);
                }
            }
            if let Some(tag) = newest {
                connection.ack(channel, tag, true);
            }
            connection.flush()?;
            if is_last && heard.elapsed() > QUIET {
                connection.cancel(channel, &consumer_tag)?;
                // What was on its way is given back by the end of the channel.
                return connection.close();
            }
        }
    }

    /// Something failed: it is tried again a moment later.
    fn failed(&self, pulse: &Pulse, who: &str, error: &Error) {
        pulse.fail();
        self.journal.note(&format!("{who}: {error}"));
        if !is_an_end(error) {
            self.journal.find(&format!("{who}: no fault of a node explains '{error}'"));
        }
        std::thread::sleep(self.plan.reconnect);
    }
}

/// Whether it is what a client sees of a node that ends or is not heard: its connection ends, or is not made. Everything else is the broker's
/// answer to what the client asked, and there is nothing wrong with that.
fn is_an_end(error: &Error) -> bool {
    match error {
        Error::Io { .. } | Error::HeartbeatMissed(_) | Error::TimedOut(_) | Error::NotTaken => true,
        Error::ConnectionClosed(reason) => reason.code == CONNECTION_FORCED,
        _ => false,
    }
}

fn options(name: &str) -> Options {
    Options {
        name: Some(format!("leveret failover {name}")),
        heartbeat_s: Some(4),
        timeout: Duration::from_secs(5),
        write_timeout: Some(Duration::from_secs(8)),
        ..Options::default()
    }
}

/// A connection to the first node that takes one.
pub(super) fn connect_to_any(nodes: &[Uri], name: &str) -> anyhow::Result<Connection> {
    let options = Options { timeout: LAST, ..options(name) };
    let mut last = None;
    for uri in nodes {
        match Connection::open(uri, &options) {
            Ok(connection) => return Ok(connection),
            Err(error) => last = Some(error),
        }
    }
    Err(last.context("no node was named")?.into())
}

/// A body that says whose it is. Its length is by chance, and the rest of it is one byte again and again.
fn body(queue: usize, id: Id, length: u64) -> Vec<u8> {
    let mut body = Vec::with_capacity((BODY_MIN + length) as usize);
    body.extend(id.publisher.to_be_bytes());
    body.extend((queue as u16).to_be_bytes());
    body.extend(id.number.to_be_bytes());
    body.resize((BODY_MIN + length) as usize, filler(id));
    body
}

/// Whose body it is; none if no publisher made it for this queue.
fn read(body: &[u8], queue: usize) -> Option<Id> {
    let (publisher, rest) = body.split_first_chunk::<2>()?;
    let (of, rest) = rest.split_first_chunk::<2>()?;
    let (number, rest) = rest.split_first_chunk::<8>()?;
    let id = Id { publisher: u16::from_be_bytes(*publisher), number: u64::from_be_bytes(*number) };
    let is_whole = rest.iter().all(|byte| *byte == filler(id));
    (usize::from(u16::from_be_bytes(*of)) == queue && is_whole).then_some(id)
}

fn filler(id: Id) -> u8 {
    (id.number.wrapping_mul(31) as u8) ^ id.publisher as u8
}

#[cfg(test)]
mod tests {
    use leveret_client::CloseReason;

    use super::*;

    #[test]
    fn errors_that_faults_explain() {
        let closed = |code| CloseReason { code, text: "bye".to_owned(), method: (0, 0) };
        let gone = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        assert!(is_an_end(&Error::Io { doing: "reading".to_owned(), error: gone }));
        assert!(is_an_end(&Error::ConnectionClosed(closed(320))));
        assert!(!is_an_end(&Error::ConnectionClosed(closed(541))));
        assert!(!is_an_end(&Error::ChannelClosed { channel: 1, reason: closed(404) }));
    }

    #[test]
    fn bodies() {
        let id = Id { publisher: 2, number: 70_000 };
        let mut bytes = body(3, id, 100);
        assert_eq!((read(&bytes, 3), read(&bytes, 2)), (Some(id), None));
        bytes[50] ^= 1;
        assert_eq!(read(&bytes, 3), None);
        assert_eq!(read(&body(3, id, 0), 3), Some(id));
        assert_eq!(read(b"short", 0), None);
    }
}
