//! A producer: one connection, one thread.
//!
//! Hot path: no allocation, encoding or copy per message. A batch of messages is encoded once; a
//! round stamps as many of them as are due and allowed, and writes them with one system call.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leveret_client::amqp::method::{Method, basic};
use leveret_client::{Connection, Error, Event, PublishBatch};

use crate::pace::{Due, Pace};
use crate::plan::{Plan, Route};
use crate::stamp;
use crate::stats::{Counter, Tally};
use crate::window::Window;

/// Bytes written at once. Larger writes gained nothing on loopback.
const BATCH_BYTES: usize = 64 * 1024;
/// How long to sleep or wait at most before looking whether the run is over.
const NAP: Duration = Duration::from_millis(100);
/// How long the last confirms may take after the last publish.
const LAST_CONFIRMS: Duration = Duration::from_secs(5);

/// A producer that is connected and has not begun.
#[derive(Debug)]
pub(crate) struct Producer {
    connection: Connection,
    batch: PublishBatch,
    window: Option<Window>,
    rate: Option<f64>,
    left: Option<u64>,
    seq: u32,
}

impl Producer {
    pub(crate) fn open(plan: &Plan, route: &Route) -> Result<Self, Error> {
        let mut connection = Connection::open(&plan.uri, &plan.client)?;
        let channel = connection.open_channel()?;
        if plan.confirm_window.is_some() {
            connection.confirm_select(channel)?;
        }
        let publish = basic::Publish {
            exchange: &plan.exchange,
            routing_key: &route.routing_key,
            mandatory: plan.mandatory,
            ..Default::default()
        };
        let body = vec![0; plan.body_bytes];
        let properties = plan.properties();
        let output = connection.output();
        let one = PublishBatch::new(output, channel, &publish, properties, &body, 1);
        let mut count = (BATCH_BYTES / one.stride()).max(1);
        if let Some(window) = plan.confirm_window {
            count = count.min(window);
        }
        let batch = PublishBatch::new(output, channel, &publish, properties, &body, count);
        Ok(Self {
            connection,
            batch,
            window: plan.confirm_window.map(Window::new),
            rate: plan.publish_rate,
            left: plan.publish_limit,
            seq: 0,
        })
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Says goodbye to the broker.
    pub(crate) fn close(self) -> Result<(), Error> {
        self.connection.close()
    }

    /// Publishes until the limit is reached or `stop` is set, then waits for the last confirms.
    pub(crate) fn run(&mut self, tally: &Tally, stop: &AtomicBool) -> Result<(), Error> {
        let mut pace = self.rate.map(|rate| Pace::new(rate, Instant::now()));
        while !stop.load(Ordering::Relaxed) && self.left != Some(0) {
            let mut count = self.batch.count();
            if let Some(left) = self.left {
                count = count.min(usize::try_from(left).unwrap_or(usize::MAX));
            }
            if let Some(window) = &self.window {
                count = count.min(window.room());
                if count == 0 {
                    self.connection.wait(NAP)?;
                    self.take(tally)?;
                    continue;
                }
            }
            if let Some(pace) = &pace {
                match pace.due(Instant::now()) {
                    Due::Now(due) => count = count.min(usize::try_from(due).unwrap_or(usize::MAX)),
                    Due::After(wait) => {
                        self.rest(wait.min(NAP), tally)?;
                        continue;
                    }
                }
            }
            self.publish(count, tally)?;
            if let Some(pace) = &mut pace {
                pace.did(count as u64);
            }
        }
        self.finish(tally)
    }

    fn publish(&mut self, count: usize, tally: &Tally) -> Result<(), Error> {
        let now = stamp::now_ns();
        for index in 0..count {
            stamp::write(self.batch.body_mut(index), self.seq, now);
            self.seq = self.seq.wrapping_add(1);
        }
        if let Some(window) = &mut self.window {
            window.publish(count, now);
        }
        self.connection.publish_batch(&self.batch, count)?;
        tally.add(Counter::Published, count as u64);
        if let Some(left) = &mut self.left {
            *left -= count as u64;
        }
        // Confirms, returns, heartbeats, and closes that nobody else would read.
        while self.connection.poll()? {
            self.take(tally)?;
        }
        Ok(())
    }

    /// Waits for the time of the next message. With confirms they are taken as they come.
    fn rest(&mut self, wait: Duration, tally: &Tally) -> Result<(), Error> {
        if self.window.is_some() {
            if self.connection.wait(wait)? {
                self.take(tally)?;
            }
            return Ok(());
        }
        std::thread::sleep(wait);
        self.connection.keep_alive()
    }

    fn take(&mut self, tally: &Tally) -> Result<(), Error> {
        let now = stamp::now_ns();
        let mut returned = 0;
        while let Some(event) = self.connection.next_event()? {
            match (event, &mut self.window) {
                (Event::Method { method: Method::BasicAck(ack), .. }, Some(window)) => {
                    window.settle(ack.delivery_tag, ack.multiple, true, now);
                }
                (Event::Method { method: Method::BasicNack(nack), .. }, Some(window)) => {
                    window.settle(nack.delivery_tag, nack.multiple, false, now);
                }
                (Event::Content { method: Method::BasicReturn(_), .. }, _) => returned += 1,
                _ => {}
            }
        }
        self.connection.flush()?;
        if let Some(window) = &mut self.window {
            window.report(tally);
        }
        if returned > 0 {
            tally.add(Counter::Returned, returned);
        }
        Ok(())
    }

    fn finish(&mut self, tally: &Tally) -> Result<(), Error> {
        let deadline = Instant::now() + LAST_CONFIRMS;
        while self.window.as_ref().is_some_and(|window| !window.is_settled()) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if self.connection.wait(left.min(NAP))? {
                self.take(tally)?;
            }
        }
        Ok(())
    }
}
