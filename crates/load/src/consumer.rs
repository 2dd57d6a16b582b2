//! A consumer: one connection, one thread.
//!
//! Hot path: no allocation per message, one clock call per read; messages published together are
//! recorded together, acks leave together.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leveret_client::amqp::method::Method;
use leveret_client::{Connection, Consume, Error, Event};

use crate::pace::{Due, Pace};
use crate::plan::{Ack, Plan, Route};
use crate::stamp;
use crate::stats::{Counter, Tally};

/// How long to wait at most before looking whether the run is over.
const NAP: Duration = Duration::from_millis(100);

/// A consumer that is connected and has not begun.
#[derive(Debug)]
pub(crate) struct Consumer {
    connection: Connection,
    channel: u16,
    ack: Ack,
    rate: Option<f64>,
    left: Option<u64>,
    warm_up: u64,
    /// The last delivery tag that came, and the last that was acked.
    seen: u64,
    acked: u64,
    latencies: Vec<(u64, u64)>,
}

impl Consumer {
    /// Connects and subscribes: from now on messages come.
    pub(crate) fn open(plan: &Plan, route: &Route) -> Result<Self, Error> {
        let mut client = plan.client.clone();
        if plan.consume_rate.is_some() {
            // A slow consumer must not hide a long backlog in its buffer.
            client.read_bytes = 16 * 1024;
        }
        let mut connection = Connection::open(&plan.uri, &client)?;
        let channel = connection.open_channel()?;
        if let Some(prefetch) = plan.prefetch {
            connection.qos(channel, prefetch, false)?;
        }
        let how = Consume { no_ack: plan.ack == Ack::Auto, ..Consume::default() };
        connection.consume(channel, &route.queue, &how)?;
        Ok(Self {
            connection,
            channel,
            ack: plan.ack,
            rate: plan.consume_rate,
            left: plan.consume_limit,
            warm_up: plan.warm_up,
            seen: 0,
            acked: 0,
            latencies: Vec::new(),
        })
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Says goodbye to the broker.
    pub(crate) fn close(self) -> Result<(), Error> {
        self.connection.close()
    }

    /// Consumes until the limit is reached or `stop` is set. Acks what is left.
    pub(crate) fn run(&mut self, tally: &Tally, stop: &AtomicBool) -> Result<(), Error> {
        let mut pace = self.rate.map(|rate| Pace::new(rate, Instant::now()));
        // Messages may have come with the answer to `basic.consume`.
        let mut came = true;
        while !stop.load(Ordering::Relaxed) && self.left != Some(0) {
            if came {
                match &mut pace {
                    None => _ = self.take(u64::MAX, tally)?,
                    Some(pace) => self.take_slowly(pace, tally, stop)?,
                }
            } else {
                // A pause: settle what an ack for several messages has not covered yet.
                self.send_acks(true)?;
            }
            if self.left != Some(0) {
                came = self.connection.wait(NAP)?;
            }
        }
        self.send_acks(true)
    }

    /// Takes up to `limit` messages of those at hand, and says how many there were.
    fn take(&mut self, limit: u64, tally: &Tally) -> Result<u64, Error> {
        let limit = limit.min(self.left.unwrap_or(u64::MAX));
        let now = stamp::now_ns();
        let (mut consumed, mut redelivered) = (0, 0);
        let (mut run_stamp, mut run_count) = (0, 0);
        while consumed < limit {
            let Some(event) = self.connection.next_event()? else { break };
            let (deliver, body) = match event {
                Event::Content { method: Method::BasicDeliver(deliver), body, .. } => {
                    (deliver, body)
                }
                Event::Method { method: Method::BasicCancel(_), .. } => {
                    return Err(Error::Unexpected { expected: "a message", got: "basic.cancel" });
                }
                _ => continue,
            };
            consumed += 1;
            redelivered += u64::from(deliver.redelivered);
            self.seen = deliver.delivery_tag;
            if self.warm_up > 0 {
                self.warm_up -= 1;
            } else if let Some(stamp) = stamp::read(body) {
                if stamp != run_stamp && run_count > 0 {
                    self.latencies.push((now.saturating_sub(run_stamp), run_count));
                    run_count = 0;
                }
                run_stamp = stamp;
                run_count += 1;
            }
        }
        if run_count > 0 {
            self.latencies.push((now.saturating_sub(run_stamp), run_count));
        }
        self.send_acks(false)?;
        if let Some(left) = &mut self.left {
            *left -= consumed;
        }
        tally.add(Counter::Consumed, consumed);
        if redelivered > 0 {
            tally.add(Counter::Redelivered, redelivered);
        }
        if !self.latencies.is_empty() {
            tally.record_all(&self.latencies);
            self.latencies.clear();
        }
        Ok(consumed)
    }

    /// Takes the messages at hand as they become due.
    fn take_slowly(
        &mut self,
        pace: &mut Pace,
        tally: &Tally,
        stop: &AtomicBool,
    ) -> Result<(), Error> {
        while !stop.load(Ordering::Relaxed) && self.left != Some(0) {
            match pace.due(Instant::now()) {
                Due::After(wait) => {
                    std::thread::sleep(wait.min(NAP));
                    self.connection.keep_alive()?;
                }
                Due::Now(_) => {
                    if self.take(1, tally)? == 0 {
                        return Ok(());
                    }
                    pace.did(1);
                }
            }
        }
        Ok(())
    }

    /// Acks what is due; with `all` also what waits for its number to fill.
    fn send_acks(&mut self, all: bool) -> Result<(), Error> {
        let waiting = self.seen - self.acked;
        match self.ack {
            Ack::Auto => return Ok(()),
            Ack::Each => {
                // Tags of a channel are consecutive.
                for tag in self.acked + 1..=self.seen {
                    self.connection.ack(self.channel, tag, false);
                }
                self.acked = self.seen;
            }
            Ack::Every(_) if all && waiting > 0 => {
                self.connection.ack(self.channel, self.seen, true);
                self.acked = self.seen;
            }
            Ack::Every(count) => {
                let count = u64::from(count);
                for _ in 0..waiting / count {
                    self.acked += count;
                    self.connection.ack(self.channel, self.acked, true);
                }
            }
        }
        self.connection.flush()
    }
}
