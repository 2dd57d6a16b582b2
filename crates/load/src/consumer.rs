//! A consumer: one connection, one thread, one channel or more.
//!
//! Hot path: no allocation per message; acks leave together.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leveret_client::amqp::content::RawProperties;
use leveret_client::amqp::method::Method;
use leveret_client::{Connection, Consume, Error, Event};

use crate::intake::Intake;
use crate::pace::{Due, Pace};
use crate::plan::{Ack, Consuming, Plan, Requeue};
use crate::stamp::now_ns;
use crate::stats::{Counter, Tally};
use crate::verbose::Verbose;
use crate::worker::{NAP, Worker, lane_of, pause};

/// Shorter times are waited for without sleeping, which would take longer.
const SPIN_US: u64 = 1000;
/// Time between two consumers with `--slow-start`.
const SLOWLY: Duration = Duration::from_secs(1);

/// A consumer that is connected and has not begun.
#[derive(Debug)]
pub(crate) struct Consumer<'a> {
    plan: &'a Plan,
    number: usize,
    connection: Connection,
    lanes: Vec<Lane>,
    intake: Intake,
    is_subscribed: bool,
    start_ns: u64,
}

/// A channel, and what is to be acknowledged there.
#[derive(Debug)]
struct Lane {
    channel: u16,
    /// Tells every message, as this consumer's.
    verbose: Option<(Verbose, usize)>,
    /// The times of the messages that it told and that are not acked.
    told: VecDeque<u64>,
    queues: std::ops::Range<usize>,
    left: Option<u64>,
    /// The last delivery tag that came, and the last that was acked.
    seen: u64,
    acked: u64,
    /// Messages since the last commit.
    uncommitted: u64,
}

impl<'a> Worker<'a> for Consumer<'a> {
    const WHO: &'static str = "consumer";

    /// Connects, and subscribes unless that is for later: from then on messages come.
    fn open(plan: &'a Plan, number: usize) -> Result<Self, Error> {
        let mut consumer = Self::connect(plan, number)?;
        if consumer.start_delay().is_zero() {
            consumer.subscribe()?;
        }
        Ok(consumer)
    }

    fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Consumes until the limits are reached or `stop` is set. Acks what is left.
    fn run(&mut self, tally: &Tally, stop: &AtomicBool) -> Result<(), Error> {
        if !self.is_subscribed {
            pause(self.start_delay(), stop, &mut self.connection)?;
            self.subscribe()?;
        }
        if self.start_ns == 0 {
            self.start_ns = now_ns();
        }
        // Those of opening.
        self.connection.take_writes();
        match self.plan.consuming.polling {
            Some(interval) => self.fetch(interval, tally, stop)?,
            None => self.consume(tally, stop)?,
        }
        self.settle(true, tally)
    }

    fn reopen(&mut self) -> Result<(), Error> {
        let mut new = Self::connect(self.plan, self.number)?;
        for lane in &new.lanes {
            for queue in lane.queues.clone().filter(|_| !self.plan.topology.exclusive) {
                self.plan.topology.declare_queue(&mut new.connection, lane.channel, queue)?;
            }
        }
        new.subscribe()?;
        for (new, old) in new.lanes.iter_mut().zip(&self.lanes) {
            new.left = old.left;
        }
        new.start_ns = self.start_ns;
        std::mem::swap(&mut new.intake, &mut self.intake);
        *self = new;
        Ok(())
    }

    fn close(self) -> Result<(), Error> {
        self.connection.close()
    }
}

impl<'a> Consumer<'a> {
    fn connect(plan: &'a Plan, number: usize) -> Result<Self, Error> {
        let consuming = &plan.consuming;
        let mut client = plan.client.clone();
        if consuming.is_slow() {
            // A slow consumer must not hide a long backlog in its buffer.
            client.read_bytes = 16 * 1024;
        }
        // Consumers are the first to connect, producers the next.
        let mut connection = Connection::open(plan.uri(number), &client)?;
        let mut lanes = Vec::new();
        for at in 0..consuming.channels {
            let channel = connection.open_channel()?;
            let agent = number * consuming.channels + at;
            let queues = plan.topology.queues_of(agent);
            if plan.topology.exclusive {
                for queue in queues.clone() {
                    plan.topology.declare_queue(&mut connection, channel, queue)?;
                }
            }
            if consuming.transaction.is_some() {
                connection.tx_select(channel)?;
            }
            if let Some(prefetch) = consuming.prefetch {
                connection.qos(channel, prefetch, false)?;
            }
            if let Some(prefetch) = consuming.channel_prefetch {
                connection.qos(channel, prefetch, true)?;
            }
            let left = consuming.limit;
            let verbose = plan.verbose.map(|verbose| (verbose, agent));
            lanes.push(Lane {
                channel,
                verbose,
                told: VecDeque::new(),
                queues,
                left,
                seen: 0,
                acked: 0,
                uncommitted: 0,
            });
        }
        let intake = Intake::new(plan);
        Ok(Self { plan, number, connection, lanes, intake, is_subscribed: false, start_ns: 0 })
    }

    fn start_delay(&self) -> Duration {
        let consuming = &self.plan.consuming;
        let slowly =
            if consuming.slow_start { SLOWLY * self.number as u32 } else { Duration::ZERO };
        consuming.start_delay + slowly
    }

    fn subscribe(&mut self) -> Result<(), Error> {
        self.is_subscribed = true;
        let consuming = &self.plan.consuming;
        if consuming.polling.is_some() {
            return Ok(());
        }
        for lane in &self.lanes {
            for queue in lane.queues.clone() {
                // Whoever accounts for messages has to know their queue.
                let tag = self.plan.ledger.as_ref().map(|_| queue.to_string()).unwrap_or_default();
                let how = Consume {
                    consumer_tag: &tag,
                    no_ack: consuming.ack == Ack::Auto,
                    arguments: consuming.arguments.clone(),
                    ..Consume::default()
                };
                let queue = &self.plan.topology.queues[queue];
                self.connection.consume(lane.channel, queue, &how)?;
            }
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.lanes.iter().all(|lane| lane.left == Some(0))
    }

    fn consume(&mut self, tally: &Tally, stop: &AtomicBool) -> Result<(), Error> {
        let consuming = &self.plan.consuming;
        let mut pace =
            consuming.rate.map(|rate| Pace::new(rate * consuming.channels as f64, now_ns()));
        // Messages may have come with the answer to `basic.consume`.
        let mut came = true;
        while !stop.load(Ordering::Relaxed) && !self.is_done() {
            if !came {
                // A pause: settle what an ack for several messages has not covered yet.
                self.settle(true, tally)?;
            } else if consuming.is_slow() {
                self.take_slowly(pace.as_mut(), tally, stop)?;
            } else {
                self.take(u64::MAX, tally)?;
            }
            if !self.is_done() {
                came = self.connection.wait(NAP)?;
            }
        }
        Ok(())
    }

    /// Takes up to `limit` messages of those at hand, and says how many there were.
    fn take(&mut self, limit: u64, tally: &Tally) -> Result<u64, Error> {
        self.intake.begin();
        let mut taken = 0;
        while taken < limit {
            let Some(event) = self.connection.next_event()? else { break };
            let (channel, deliver, properties, body) = match event {
                Event::Content {
                    channel,
                    method: Method::BasicDeliver(deliver),
                    properties,
                    body,
                } => (channel, deliver, properties, body),
                Event::Method { method: Method::BasicCancel(_), .. } => {
                    return Err(Error::Unexpected { expected: "a message", got: "basic.cancel" });
                }
                _ => continue,
            };
            let Some(lane) = self.lanes.get_mut(lane_of(channel)) else { continue };
            // What comes after the limit goes back to its queue in the end.
            if lane.takes(deliver.delivery_tag) {
                taken += 1;
                if let Some((verbose, consumer)) = lane.verbose {
                    let tag = deliver.delivery_tag;
                    lane.told.push_back(verbose.received(consumer, tag, properties, body));
                }
                // The tag is the queue's number, if it is ours.
                let queue = || deliver.consumer_tag.parse().unwrap_or(lane.queues.start);
                self.intake.take(deliver.redelivered, properties, body, queue);
            }
        }
        self.intake.report(tally);
        if taken > 0 {
            self.think(taken);
        }
        self.settle(false, tally)?;
        Ok(taken)
    }

    /// Takes the messages at hand one by one, as they become due.
    fn take_slowly(
        &mut self,
        mut pace: Option<&mut Pace>,
        tally: &Tally,
        stop: &AtomicBool,
    ) -> Result<(), Error> {
        while !stop.load(Ordering::Relaxed) && !self.is_done() {
            if let Some(Due::After(wait_ns)) = pace.as_ref().map(|pace| pace.due(now_ns())) {
                std::thread::sleep(Duration::from_nanos(wait_ns).min(NAP));
                self.connection.keep_alive()?;
                continue;
            }
            if self.take(1, tally)? == 0 {
                return Ok(());
            }
            self.connection.keep_alive()?;
            if let Some(pace) = &mut pace {
                pace.did(1);
            }
        }
        Ok(())
    }

    /// The time that messages take a consumer.
    fn think(&mut self, messages: u64) {
        let Some(steps) = &self.plan.consuming.latency_us else { return };
        let now = now_ns();
        let each_us = steps.at(now - self.start_ns);
        let end = now + each_us * 1000 * messages;
        if each_us >= SPIN_US {
            std::thread::sleep(Duration::from_nanos(end - now));
        }
        while now_ns() < end {
            std::hint::spin_loop();
        }
    }

    /// Fetches messages one by one.
    fn fetch(&mut self, interval: Duration, tally: &Tally, stop: &AtomicBool) -> Result<(), Error> {
        let no_ack = self.plan.consuming.ack == Ack::Auto;
        let queues = &self.plan.topology.queues;
        while !stop.load(Ordering::Relaxed) && !self.is_done() {
            for at in 0..self.lanes.len() {
                for queue in self.lanes[at].queues.clone() {
                    let lane = &mut self.lanes[at];
                    if lane.left == Some(0) || stop.load(Ordering::Relaxed) {
                        break;
                    }
                    if let Some(got) = self.connection.get(lane.channel, &queues[queue], no_ack)? {
                        lane.takes(got.delivery_tag);
                        self.intake.begin();
                        let properties = RawProperties::new(&got.properties);
                        if let Some((verbose, consumer)) = lane.verbose {
                            let (tag, body) = (got.delivery_tag, &got.body);
                            lane.told.push_back(verbose.received(consumer, tag, properties, body));
                        }
                        self.intake.take(got.redelivered, properties, &got.body, || queue);
                        self.intake.report(tally);
                        self.think(1);
                        self.settle(false, tally)?;
                    }
                    if !interval.is_zero() {
                        pause(interval, stop, &mut self.connection)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Acks what is due; with `all` also what waits for its number to fill.
    fn settle(&mut self, all: bool, tally: &Tally) -> Result<(), Error> {
        for lane in &mut self.lanes {
            lane.settle(&mut self.connection, &self.plan.consuming, all)?;
        }
        self.connection.flush()?;
        tally.add(Counter::Writes, self.connection.take_writes());
        Ok(())
    }
}

impl Consuming {
    /// Whether messages are taken one by one.
    fn is_slow(&self) -> bool {
        self.rate.is_some() || self.latency_us.is_some()
    }
}

impl Lane {
    /// Whether the message with this tag is within the limit.
    fn takes(&mut self, delivery_tag: u64) -> bool {
        match &mut self.left {
            Some(0) => return false,
            Some(left) => *left -= 1,
            None => {}
        }
        self.seen = delivery_tag;
        true
    }

    fn settle(
        &mut self,
        connection: &mut Connection,
        how: &Consuming,
        all: bool,
    ) -> Result<(), Error> {
        let waiting = self.seen - self.acked;
        // Tags of a channel are consecutive.
        match how.ack {
            Ack::Auto => {
                self.told.clear();
                self.settled(connection, how, waiting)?;
            }
            Ack::Each => {
                for _ in 0..waiting {
                    self.answer(connection, how, self.acked + 1, false)?;
                    self.settled(connection, how, 1)?;
                }
            }
            Ack::Every(_) if all && waiting > 0 => {
                self.answer(connection, how, self.seen, true)?;
                self.settled(connection, how, waiting)?;
            }
            Ack::Every(count) => {
                for _ in 0..waiting / count {
                    self.answer(connection, how, self.acked + count, true)?;
                    self.settled(connection, how, count)?;
                }
            }
        }
        if all && self.uncommitted > 0 {
            self.uncommitted = 0;
            connection.tx_commit(self.channel)?;
        }
        Ok(())
    }

    fn answer(
        &mut self,
        connection: &mut Connection,
        how: &Consuming,
        tag: u64,
        multiple: bool,
    ) -> Result<(), Error> {
        match how.nack {
            None => connection.ack(self.channel, tag, multiple),
            Some(Requeue(requeue)) => connection.nack(self.channel, tag, multiple, requeue),
        }
        if let Some((verbose, consumer)) = self.verbose {
            let count = tag - self.acked;
            let mut times = self.told.drain(..self.told.len().min(count as usize));
            verbose.acknowledged(consumer, tag, count, times.next_back().unwrap_or_default());
        }
        if how.flush_each { connection.flush() } else { Ok(()) }
    }

    /// So many messages more are acked; a transaction that is full is committed.
    fn settled(
        &mut self,
        connection: &mut Connection,
        how: &Consuming,
        messages: u64,
    ) -> Result<(), Error> {
        self.acked += messages;
        let Some(size) = how.transaction else { return Ok(()) };
        self.uncommitted += messages;
        if self.uncommitted >= size {
            self.uncommitted = 0;
            connection.tx_commit(self.channel)?;
        }
        Ok(())
    }
}
