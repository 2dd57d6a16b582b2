//! One channel of a producer: what it may publish now, and the batch it publishes from.

use std::sync::Arc;
use std::time::Duration;

use leveret_client::amqp::method::{basic, tx};
use leveret_client::{Connection, Error};

use crate::batch::{Batch, batches};
use crate::content::{KEY_BYTES, random_key};
use crate::pace::{Due, Pace};
use crate::plan::{Keys, Plan, Rate};
use crate::stamp::{self, Clock, now_ns};
use crate::stats::{Counter, Tally};
use crate::steps::Steps;
use crate::verbose::Verbose;
use crate::verify::{Head, Ledger};
use crate::window::Window;
use crate::worker::NAP;

/// A message that left this much after its time, without the producer having been held up, was late by
/// the timer alone.
const TIMER_NS: u64 = 1_000_000;

/// What a turn of a channel came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Published,
    /// Nothing is due before this time has passed.
    Rests(Duration),
    /// Only the broker can let it go on.
    Held,
    /// Its limit is reached.
    Done,
}

/// A channel and what was published there.
#[derive(Debug)]
pub(crate) struct Lane {
    channel: u16,
    /// One for each size of body.
    batches: Vec<Batch>,
    sizes: Option<Steps>,
    keys: Option<RandomKeys>,
    time_at: Option<usize>,
    clock: Clock,
    window: Option<Window>,
    held_since: Option<u64>,
    confirm_timeout_ns: u64,
    transaction: Option<Transaction>,
    rate: Option<Rate>,
    pace: Option<Pace>,
    /// The step of the rate that the pace is made for.
    step: usize,
    /// Messages that the pace has let go and that are not published yet.
    due: u64,
    has_rested: bool,
    left: Option<u64>,
    seq: u32,
    /// Messages published so far, over all connections.
    published: u64,
    seal: Option<Seal>,
    start_ns: Option<u64>,
    /// Tells every message, as this producer's.
    verbose: Option<(Verbose, usize)>,
}

/// Accounts for what is published.
#[derive(Debug)]
struct Seal {
    ledger: Arc<Ledger>,
    producer: usize,
    /// The number of the first message on this connection.
    first: u64,
}

#[derive(Debug)]
struct Transaction {
    size: u64,
    left: u64,
    is_committing: bool,
}

#[derive(Debug)]
struct RandomKeys {
    /// To choose from; none is a new one for each message.
    stock: Vec<[u8; KEY_BYTES]>,
    next: usize,
}

impl RandomKeys {
    fn next(&mut self) -> [u8; KEY_BYTES] {
        if self.stock.is_empty() {
            return random_key();
        }
        self.next = (self.next + 1) % self.stock.len();
        self.stock[self.next]
    }
}

impl Lane {
    /// Opens a channel for the producer of this number.
    pub(crate) fn open(
        plan: &Plan,
        connection: &mut Connection,
        producer: usize,
    ) -> Result<Self, Error> {
        let publishing = &plan.publishing;
        let channel = connection.open_channel()?;
        if publishing.confirm_window.is_some() {
            connection.confirm_select(channel)?;
        }
        if publishing.transaction.is_some() {
            connection.tx_select(channel)?;
        }
        let keys = match publishing.keys {
            Keys::Fixed => None,
            Keys::Random => Some(RandomKeys { stock: Vec::new(), next: 0 }),
            Keys::Some(count) => {
                let stock = (0..count).map(|_| random_key()).collect();
                Some(RandomKeys { stock, next: 0 })
            }
        };
        let placeholder = random_key();
        let publish = basic::Publish {
            exchange: &plan.topology.exchange,
            routing_key: match keys {
                None => plan.topology.key_of(producer),
                Some(_) => str::from_utf8(&placeholder).unwrap_or_default(),
            },
            mandatory: publishing.mandatory,
            ..Default::default()
        };
        let (batches, sizes) = batches(plan, connection.output(), channel, &publish);
        Ok(Self {
            channel,
            batches,
            sizes,
            keys,
            time_at: plan.content.time_at,
            clock: plan.clock,
            window: publishing.confirm_window.map(|limit| {
                let mut window = Window::new(limit);
                if plan.ledger.is_some() {
                    window.keep_refused();
                }
                window
            }),
            held_since: None,
            confirm_timeout_ns: publishing.confirm_timeout.as_nanos() as u64,
            transaction: publishing.transaction.map(|size| Transaction {
                size,
                left: size,
                is_committing: false,
            }),
            rate: publishing.rate.clone(),
            pace: None,
            step: 0,
            due: 0,
            has_rested: false,
            left: publishing.limit,
            seq: 0,
            published: 0,
            seal: plan.ledger.clone().map(|ledger| Seal { ledger, producer, first: 0 }),
            start_ns: None,
            verbose: plan.verbose.map(|verbose| (verbose, producer)),
        })
    }

    /// Takes over what is left to do from a channel whose connection was lost.
    pub(crate) fn go_on(&mut self, lost: &mut Self) {
        self.left = lost.left;
        self.seq = lost.seq;
        self.published = lost.published;
        lost.account();
        if let Some(seal) = &mut self.seal {
            seal.first = lost.published;
        }
        self.start_ns = lost.start_ns;
        self.pace = lost.pace.take();
        self.step = lost.step;
    }

    /// Whether it has never been started.
    pub(crate) fn is_new(&self) -> bool {
        self.start_ns.is_none()
    }

    pub(crate) fn start(&mut self, now_ns: u64) {
        if self.start_ns.is_some() {
            return;
        }
        self.start_ns = Some(now_ns);
        self.pace = match &self.rate {
            None => None,
            Some(Rate::Fixed(rate)) => Some(Pace::new(*rate, now_ns)),
            Some(Rate::Steps(steps)) => pace_of(steps.at(0), now_ns),
        };
    }

    /// Publishes what is due and allowed.
    pub(crate) fn turn(
        &mut self,
        connection: &mut Connection,
        tally: &Tally,
    ) -> Result<Turn, Error> {
        if self.left == Some(0) {
            // What is not a whole transaction is committed at the end.
            return Ok(Turn::Done);
        }
        let varying = self.varying();
        let size = match &self.sizes {
            Some(sizes) if sizes.varies() => sizes.number_at(varying),
            _ => 0,
        };
        let batch = &self.batches[size];
        let mut count = batch.most.min(batch.messages.count() - batch.at);
        if let Some(left) = self.left {
            count = count.min(usize::try_from(left).unwrap_or(usize::MAX));
        }
        if let Some(window) = &self.window {
            count = count.min(window.room());
        }
        if let Some(transaction) = &self.transaction {
            count = count.min(usize::try_from(transaction.left).unwrap_or(usize::MAX));
        }
        if count == 0 {
            return self.held();
        }
        self.held_since = None;
        self.change_pace(varying);
        if let Some(pace) = &self.pace {
            if self.due == 0 {
                match pace.due(now_ns()) {
                    Due::Now(due) => self.due = due,
                    Due::After(wait_ns) => {
                        self.has_rested = true;
                        return Ok(Turn::Rests(Duration::from_nanos(wait_ns)));
                    }
                }
            }
            count = count.min(usize::try_from(self.due).unwrap_or(usize::MAX));
        } else if self.rate.is_some() {
            // A pause between two rates.
            return Ok(Turn::Rests(NAP));
        }
        self.publish(connection, size, count, tally)?;
        self.due = self.due.saturating_sub(count as u64);
        // What is due with these has rested as long.
        self.has_rested &= self.due > 0;
        Ok(Turn::Published)
    }

    /// Nanoseconds since the start, if something depends on them.
    fn varying(&self) -> u64 {
        let varies = matches!(self.rate, Some(Rate::Steps(_)))
            || self.sizes.as_ref().is_some_and(Steps::varies);
        if varies { now_ns() - self.start_ns.unwrap_or_default() } else { 0 }
    }

    fn change_pace(&mut self, elapsed_ns: u64) {
        let Some(Rate::Steps(steps)) = &self.rate else { return };
        let step = steps.number_at(elapsed_ns);
        if step != self.step {
            self.step = step;
            self.due = 0;
            self.pace = pace_of(steps.at(elapsed_ns), now_ns());
        }
    }

    fn held(&mut self) -> Result<Turn, Error> {
        let now = now_ns();
        let since = *self.held_since.get_or_insert(now);
        if self.confirm_timeout_ns > 0 && now.saturating_sub(since) > self.confirm_timeout_ns {
            return Err(Error::TimedOut("published messages (--confirm-timeout)"));
        }
        self.has_rested = false;
        Ok(Turn::Held)
    }

    fn publish(
        &mut self,
        connection: &mut Connection,
        size: usize,
        count: usize,
        tally: &Tally,
    ) -> Result<(), Error> {
        let now = now_ns();
        let at_once = self.clock.stamp(now, now);
        let batch = &mut self.batches[size];
        let start = batch.at;
        for index in 0..count {
            let (mut sent, mut stamp) = (now, at_once);
            if let Some(pace) = &self.pace {
                // Latency counts from when a message was meant to leave, so that a broker that holds
                // the producer up cannot hide behind the messages that did not come meanwhile.
                let meant = pace.time_of(index as u64).min(now);
                if !self.has_rested || now - meant > TIMER_NS {
                    (sent, stamp) = (meant, self.clock.stamp(meant, now));
                }
                if let Some(window) = &mut self.window {
                    window.publish(1, sent);
                }
            }
            match self.time_at {
                None => stamp::write(batch.messages.body_mut(start + index), self.seq, stamp),
                Some(at) => {
                    let time = &mut batch.messages.properties_mut(start + index)[at..at + 8];
                    time.copy_from_slice(&stamp.to_be_bytes());
                }
            }
            if let Some(keys) = &mut self.keys {
                batch.messages.key_mut(start + index).copy_from_slice(&keys.next());
            }
            if let Some(seal) = &self.seal {
                let head = Head {
                    run: seal.ledger.run(),
                    producer: seal.producer as u32,
                    number: self.published + index as u64,
                };
                head.write(batch.messages.body_mut(start + index), batch.filler_sum);
            }
            self.seq = self.seq.wrapping_add(1);
        }
        self.published += count as u64;
        if let Some(seal) = &self.seal {
            seal.ledger.published(seal.producer, self.published);
        }
        if let (Some(window), None) = (&mut self.window, &self.pace) {
            window.publish(count, now);
        }
        connection.publish_batch(&batch.messages, start, count)?;
        if let Some((verbose, producer)) = self.verbose {
            // Without confirms there are no numbers.
            let first = self.window.as_ref().map(|it| it.next_tag() - count as u64);
            for index in 0..count {
                let id = first.map_or(0, |first| first + index as u64);
                let properties = batch.messages.properties_mut(start + index).to_vec();
                let body = batch.messages.body_mut(start + index);
                verbose.published(producer, id, &properties, body);
            }
        }
        // Zeros are all the same: those at the front are in the cache.
        if self.sizes.is_none() {
            batch.at = (start + count) % batch.messages.count();
        }
        tally.add(Counter::Published, count as u64);
        tally.add(Counter::Writes, connection.take_writes());
        if let Some(left) = &mut self.left {
            *left -= count as u64;
        }
        if let Some(pace) = &mut self.pace {
            pace.did(count as u64);
        }
        if let Some(transaction) = &mut self.transaction {
            transaction.left -= count as u64;
            if transaction.left == 0 {
                self.commit(connection)?;
            }
        }
        Ok(())
    }

    /// Commits what was published since the last time, and waits for the answer with the next turns.
    pub(crate) fn commit(&mut self, connection: &mut Connection) -> Result<(), Error> {
        let Some(transaction) = &mut self.transaction else { return Ok(()) };
        if transaction.left == transaction.size || transaction.is_committing {
            return Ok(());
        }
        transaction.left = 0;
        transaction.is_committing = true;
        connection.output().put_method(self.channel, &tx::Commit);
        connection.flush()
    }

    pub(crate) fn committed(&mut self) {
        if let Some(transaction) = &mut self.transaction {
            transaction.is_committing = false;
            transaction.left = transaction.size;
        }
    }

    /// A confirm has come.
    pub(crate) fn settle(&mut self, tag: u64, multiple: bool, ack: bool, now_ns: u64) {
        let Some(window) = &mut self.window else { return };
        if let Some((verbose, producer)) = self.verbose {
            verbose.confirmed(producer, tag, ack, &window.covered(tag, multiple));
        }
        window.settle(tag, multiple, ack, now_ns);
        if let (false, Some(seal)) = (ack, &self.seal) {
            seal.excuse(window.take_refused());
        }
    }

    /// What is not confirmed by now may be missing.
    pub(crate) fn account(&self) {
        if let (Some(seal), Some(window)) = (&self.seal, &self.window) {
            seal.excuse(window.unconfirmed());
        }
    }

    pub(crate) fn report(&mut self, tally: &Tally) {
        if let Some(window) = &mut self.window {
            window.report(tally);
        }
    }

    /// Whether the broker answers what is published.
    pub(crate) fn expects_answers(&self) -> bool {
        self.window.is_some() || self.transaction.is_some()
    }

    /// Whether everything published is confirmed and committed.
    pub(crate) fn is_settled(&self) -> bool {
        let is_committing = self.transaction.as_ref().is_some_and(|it| it.is_committing);
        !is_committing && self.window.as_ref().is_none_or(Window::is_settled)
    }
}

impl Seal {
    fn excuse(&self, tags: impl IntoIterator<Item = u64>) {
        self.ledger.excuse(self.producer, tags.into_iter().map(|tag| self.first + tag - 1));
    }
}

/// No pace is a pause.
fn pace_of(rate: u64, now_ns: u64) -> Option<Pace> {
    (rate > 0).then(|| Pace::new(rate as f64, now_ns))
}
