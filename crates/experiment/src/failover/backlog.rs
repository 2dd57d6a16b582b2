//! A backlog: many messages that lie in a queue while nodes fail, and are read in the end, one after the other.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use leveret_client::amqp::method::{Method, basic};
use leveret_client::{Connection, Consume, Error, Event, QueueDeclare, Uri};

use super::traffic::{PERSISTENT, Plan, connect_to_any};
use crate::loads::Confirms;

/// The queue it lies in.
const QUEUE: &str = "failover-backlog";
/// Messages that are published without an answer, at most.
const WINDOW: usize = 5000;
/// Messages that are read without an ack, at most.
const PREFETCH: u16 = 2000;
/// Messages for each ack.
const ACKED_AT_ONCE: usize = 500;
/// How long nothing comes at the end before the queue is taken for empty: as long as a node may take to begin to give out a long backlog.
const QUIET: Duration = Duration::from_secs(30);
/// Connections that may fail while it is read.
const TRIES: usize = 10;

/// What a backlog is to be.
#[derive(Clone, Debug)]
pub(crate) struct Backlog {
    /// How many messages.
    pub(crate) count: u64,
    /// Their lengths, in bytes.
    pub(crate) sizes: RangeInclusive<u64>,
}

/// What a backlog came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub(crate) struct BacklogSum {
    /// Messages that were confirmed before the first fault.
    pub(crate) count: u64,
    /// Bytes of their bodies.
    pub(crate) bytes: u64,
    /// Seconds until all were confirmed.
    pub(crate) published_s: f64,
    /// Seconds until all were read.
    pub(crate) read_s: f64,
    /// Came never.
    pub(crate) lost: u64,
    /// Came again without the mark of a redelivery.
    pub(crate) duplicates: u64,
    /// Came first after one with a higher number.
    pub(crate) out_of_order: u64,
    /// Were never published, or not with these bytes.
    pub(crate) strange: u64,
}

impl Backlog {
    /// The body of a message: its number, and bytes that follow from it.
    fn body(&self, number: u64, into: &mut Vec<u8>) {
        let (least, most) = (*self.sizes.start(), *self.sizes.end());
        let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        let length = least + mixed % (most - least + 1);
        into.clear();
        into.extend(number.to_be_bytes());
        into.resize(length as usize, mixed as u8);
    }

    /// Publishes all of it, through the first node that takes a connection.
    pub(crate) fn publish(&self, plan: &Plan) -> Result<BacklogSum> {
        let began = Instant::now();
        let mut connection = connect_to_any(&plan.nodes, "leveret failover backlog")?;
        let channel = connection.open_channel()?;
        let how =
            QueueDeclare { durable: true, arguments: plan.arguments(), ..QueueDeclare::default() };
        connection.queue_delete(channel, QUEUE)?;
        connection.queue_declare(channel, QUEUE, &how)?;
        connection.confirm_select(channel)?;
        let (mut confirms, mut body, mut refused) = (Confirms::default(), Vec::new(), 0);
        let mut sum = BacklogSum::default();
        while sum.count < self.count || confirms.waiting() > 0 {
            let room = (WINDOW - confirms.waiting()).min(256) as u64;
            for _ in 0..room.min(self.count - sum.count) {
                self.body(sum.count, &mut body);
                let publish =
                    basic::Publish { routing_key: QUEUE, mandatory: true, ..Default::default() };
                connection.output().put_publish(channel, &publish, &PERSISTENT, &body);
                confirms.published();
                sum.count += 1;
                sum.bytes += body.len() as u64;
            }
            connection.flush()?;
            if room == 0 || sum.count == self.count {
                connection.wait(Duration::from_millis(100))?;
            } else {
                connection.poll()?;
            }
            while let Some(event) = connection.next_event()? {
                match event {
                    Event::Method { method: Method::BasicAck(it), .. } => {
                        confirms.answered(it.delivery_tag, it.multiple, |_| {});
                    }
                    Event::Method { method: Method::BasicNack(it), .. } => {
                        confirms.answered(it.delivery_tag, it.multiple, |_| refused += 1);
                    }
                    Event::Content { method: Method::BasicReturn(_), .. } => refused += 1,
                    _ => {}
                }
            }
        }
        ensure!(refused == 0, "{refused} messages of the backlog were refused");
        connection.close()?;
        sum.published_s = began.elapsed().as_secs_f64();
        Ok(sum)
    }

    /// Reads all of it, and completes the sum. Nothing else may read the queue, and all nodes have to be well.
    pub(crate) fn read(&self, nodes: &[Uri], sum: &mut BacklogSum) -> Result<()> {
        let began = Instant::now();
        let mut account = Account::new(self);
        let read = tried(TRIES, || account.read(nodes, sum));
        // What has not come when the queue could not be read counts as lost: nobody knows better.
        sum.lost = self.count - account.came;
        sum.read_s = began.elapsed().as_secs_f64();
        Ok(read?)
    }
}

/// Does it until it succeeds, so many times at most. Who read it before had messages unacked: they come again, with the mark of it.
fn tried<E>(times: usize, mut read: impl FnMut() -> Result<(), E>) -> Result<(), E> {
    for _ in 1..times {
        match read() {
            Ok(()) => return Ok(()),
            Err(_) => std::thread::sleep(Duration::from_millis(500)),
        }
    }
    read()
}

/// Which messages have come.
struct Account<'a> {
    backlog: &'a Backlog,
    /// A bit for each.
    seen: Vec<u64>,
    came: u64,
    /// Above all that have come.
    next: u64,
    expected: Vec<u8>,
}

impl<'a> Account<'a> {
    fn new(backlog: &'a Backlog) -> Self {
        let seen = vec![0; backlog.count.div_ceil(64) as usize];
        Self { backlog, seen, came: 0, next: 0, expected: Vec::new() }
    }

    fn is_complete(&self) -> bool {
        self.came == self.backlog.count
    }

    fn deliver(&mut self, body: &[u8], redelivered: bool, sum: &mut BacklogSum) {
        let number = body.first_chunk::<8>().map(|it| u64::from_be_bytes(*it));
        let Some(number) = number.filter(|it| *it < self.backlog.count) else {
            sum.strange += 1;
            return;
        };
        self.backlog.body(number, &mut self.expected);
        if self.expected != body {
            sum.strange += 1;
            return;
        }
        let bit = 1 << (number % 64);
        let word = &mut self.seen[(number / 64) as usize];
        if *word & bit > 0 {
            sum.duplicates += u64::from(!redelivered);
            return;
        }
        *word |= bit;
        self.came += 1;
        sum.out_of_order += u64::from(number < self.next);
        self.next = self.next.max(number + 1);
    }

    /// Reads until the queue is empty.
    fn read(&mut self, nodes: &[Uri], sum: &mut BacklogSum) -> Result<(), Error> {
        let connected = connect_to_any(nodes, "leveret failover backlog");
        let mut connection: Connection = connected.map_err(|_| Error::TimedOut("a connection"))?;
        let channel = connection.open_channel()?;
        connection.qos(channel, PREFETCH, false)?;
        connection.consume(channel, QUEUE, &Consume::default())?;
        let (mut unacked, mut heard) = (VecDeque::new(), Instant::now());
        loop {
            let has_some = connection.wait(Duration::from_millis(100))?;
            while let Some(event) = connection.next_event()? {
                match event {
                    Event::Content { method: Method::BasicDeliver(it), body, .. } => {
                        self.deliver(body, it.redelivered, sum);
                        unacked.push_back(it.delivery_tag);
                        heard = Instant::now();
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
            if (unacked.len() >= ACKED_AT_ONCE || !has_some)
                && let Some(tag) = unacked.pop_back()
            {
                connection.ack(channel, tag, true);
                unacked.clear();
            }
            connection.flush()?;
            // Nothing is to come behind the last one but what came before: that is waited for shortly.
            let patience = if self.is_complete() { Duration::from_secs(1) } else { QUIET };
            if unacked.is_empty() && heard.elapsed() > patience {
                connection.queue_delete(channel, QUEUE)?;
                return connection.close();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Deliveries in this order, `r` with the mark of a redelivery, `x` with another byte: what they come to.
    #[track_caller]
    fn check(deliveries: &str, want: [u64; 4]) {
        let backlog = Backlog { count: 4, sizes: 16..=200 };
        let (mut account, mut sum) = (Account::new(&backlog), BacklogSum::default());
        for word in deliveries.split(' ') {
            let mut body = Vec::new();
            backlog.body(word[..1].parse().unwrap(), &mut body);
            if word.ends_with('x') {
                *body.last_mut().unwrap() ^= 1;
            }
            account.deliver(&body, word.ends_with('r'), &mut sum);
        }
        let lost = backlog.count - account.came;
        assert_eq!([lost, sum.duplicates, sum.out_of_order, sum.strange], want, "{deliveries}");
    }

    #[test]
    #[rustfmt::skip] // a table
    fn deliveries() {
        check("0 1 2 3",        [0, 0, 0, 0]);
        check("0 1 2",          [1, 0, 0, 0]);
        check("0 1 1r 2 3",     [0, 0, 0, 0]);
        check("0 1 1 2 3",      [0, 1, 0, 0]);
        check("0 2 1 3",        [0, 0, 1, 0]);
        check("0 1 2x 3",       [1, 0, 0, 1]);
        check("0 1 2 9 3",      [0, 0, 0, 1]);
    }

    /// The queue is gone once it was read to its end: what it had no more is lost, and nobody asks again.
    #[test]
    fn what_was_read_to_the_end_is_not_read_again() {
        let mut answers = vec![Ok(()), Err("a node went")];
        let mut count = 0;
        let read = || {
            count += 1;
            answers.pop().unwrap_or(Err("no such queue"))
        };
        assert_eq!(tried(2, read), Ok(()));
        assert_eq!(count, 2);
        assert_eq!(tried(1, || Err("a node went")), Err("a node went"));
    }

    #[test]
    fn bodies_have_the_lengths_that_were_asked_for() {
        let backlog = Backlog { count: 1000, sizes: 16..=1024 };
        let mut body = Vec::new();
        let lengths: Vec<_> = (0..1000)
            .map(|number| {
                backlog.body(number, &mut body);
                body.len()
            })
            .collect();
        assert!(lengths.iter().all(|it| (16..=1024).contains(it)));
        assert!(*lengths.iter().min().unwrap() < 50 && *lengths.iter().max().unwrap() > 990);
    }
}
