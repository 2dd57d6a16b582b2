//! A producer: one connection, one thread, one channel or more.
//!
//! Hot path: no allocation, encoding or copy per message. A batch of messages is encoded once; a
//! turn stamps as many of them as are due and allowed, and writes them with one system call.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leveret_client::amqp::method::{Method, tx};
use leveret_client::{Connection, Error, Event};

use crate::lane::{Lane, Turn};
use crate::plan::Plan;
use crate::stamp::now_ns;
use crate::stats::{Counter, Tally};
use crate::verify::Head;
use crate::worker::{NAP, Worker, lane_of, pause};

/// Waits of a connection from this length on may take some milliseconds longer.
const COARSE: Duration = Duration::from_millis(50);

/// A producer that is connected and has not begun.
#[derive(Debug)]
pub(crate) struct Producer<'a> {
    plan: &'a Plan,
    number: usize,
    connection: Connection,
    lanes: Vec<Lane>,
}

impl<'a> Worker<'a> for Producer<'a> {
    const WHO: &'static str = "producer";

    fn open(plan: &'a Plan, number: usize) -> Result<Self, Error> {
        let mut connection = Connection::open(plan.uri(number), &plan.client)?;
        let channels = plan.publishing.channels;
        let lanes = (0..channels)
            .map(|at| Lane::open(plan, &mut connection, number * channels + at))
            .collect::<Result<_, _>>()?;
        Ok(Self { plan, number, connection, lanes })
    }

    fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Publishes until the limits are reached or `stop` is set, then waits for the last confirms.
    fn run(&mut self, tally: &Tally, stop: &AtomicBool) -> Result<(), Error> {
        let longest = self.plan.publishing.start_delay;
        if !longest.is_zero() && self.lanes.iter().all(Lane::is_new) {
            pause(longest.mul_f64(rand::random_range(0.0..1.0)), stop, &mut self.connection)?;
        }
        let start_ns = now_ns();
        self.lanes.iter_mut().for_each(|lane| lane.start(start_ns));
        // Those of opening.
        self.connection.take_writes();
        while !stop.load(Ordering::Relaxed) {
            let (mut has_published, mut is_done, mut rest) = (false, true, NAP);
            for lane in &mut self.lanes {
                match lane.turn(&mut self.connection, tally)? {
                    Turn::Published => has_published = true,
                    Turn::Rests(wait) => rest = rest.min(wait),
                    Turn::Held => {}
                    Turn::Done => continue,
                }
                is_done = false;
            }
            if is_done {
                break;
            }
            if has_published {
                // Confirms, returns, heartbeats, and closes that nobody else would read.
                while self.connection.poll()? {
                    self.take(tally)?;
                }
            } else {
                self.rest(rest, tally)?;
            }
        }
        let is_stopped = stop.load(Ordering::Relaxed);
        let publishing = &self.plan.publishing;
        self.finish(tally, if is_stopped { self.plan.shutdown } else { publishing.confirm_timeout })
    }

    fn reopen(&mut self) -> Result<(), Error> {
        let mut new = Self::open(self.plan, self.number)?;
        for (new, old) in new.lanes.iter_mut().zip(&mut self.lanes) {
            new.go_on(old);
        }
        *self = new;
        Ok(())
    }

    fn close(self) -> Result<(), Error> {
        self.connection.close()
    }
}

impl Producer<'_> {
    /// Waits for the time of the next message. Confirms are taken as they come.
    fn rest(&mut self, wait: Duration, tally: &Tally) -> Result<(), Error> {
        if self.lanes.iter().any(Lane::expects_answers) {
            // Long waits end by a coarse clock: the last part is waited for by a fine one.
            let wait = if wait >= COARSE { wait - COARSE / 2 } else { wait };
            if self.connection.wait(wait)? {
                self.take(tally)?;
            }
            return Ok(());
        }
        std::thread::sleep(wait);
        self.connection.keep_alive()
    }

    fn take(&mut self, tally: &Tally) -> Result<(), Error> {
        let now = now_ns();
        let mut returned = 0;
        while let Some(event) = self.connection.next_event()? {
            let (Event::Method { channel, .. } | Event::Content { channel, .. }) = event;
            let Some(lane) = self.lanes.get_mut(lane_of(channel)) else { continue };
            match event {
                Event::Method { method: Method::BasicAck(ack), .. } => {
                    lane.settle(ack.delivery_tag, ack.multiple, true, now);
                }
                Event::Method { method: Method::BasicNack(nack), .. } => {
                    lane.settle(nack.delivery_tag, nack.multiple, false, now);
                }
                Event::Method { method: Method::TxCommitOk(tx::CommitOk), .. } => lane.committed(),
                Event::Content { method: Method::BasicReturn(_), body, .. } => {
                    returned += 1;
                    if let (Some(ledger), Some(head)) = (&self.plan.ledger, Head::read(body)) {
                        ledger.excuse(head.producer as usize, [head.number]);
                    }
                }
                _ => {}
            }
        }
        self.connection.flush()?;
        self.lanes.iter_mut().for_each(|lane| lane.report(tally));
        if returned > 0 {
            tally.add(Counter::Returned, returned);
        }
        Ok(())
    }

    fn finish(&mut self, tally: &Tally, patience: Duration) -> Result<(), Error> {
        for lane in &mut self.lanes {
            lane.commit(&mut self.connection)?;
        }
        tally.add(Counter::Writes, self.connection.take_writes());
        let deadline = now_ns() + patience.as_nanos() as u64;
        while self.lanes.iter().any(|lane| !lane.is_settled()) {
            let left = Duration::from_nanos(deadline.saturating_sub(now_ns()));
            if left.is_zero() {
                break;
            }
            if self.connection.wait(left.min(NAP))? {
                self.take(tally)?;
            }
        }
        self.lanes.iter().for_each(Lane::account);
        Ok(())
    }
}
