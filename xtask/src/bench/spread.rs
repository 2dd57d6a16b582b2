//! Load on a thousand queues from one connection, which the load tool does not do: its producers have
//! a queue each.
//!
//! One thread publishes in turn to all queues, one consumes from some or all of them, and this one takes
//! the rate, the broker's memory and its disk every second. The result has the shape of the load
//! tool's.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use leveret_client::amqp::method::Method;
use leveret_client::{Connection, Consume, Event, Options, QueueDeclare, Uri};
use leveret_load::process;
use serde_json::{Value, json};

use super::measure::BrokerAt;
use super::stored::disk_bytes;

/// Messages that may wait for their confirms.
const WINDOW: usize = 1000;
/// Messages written at once.
const BURST: usize = 100;
/// Deliveries that one ack is for.
const ACK_EVERY: u64 = 100;
/// How long to wait at most before looking whether all is done.
const NAP: Duration = Duration::from_millis(50);
/// A broker that does nothing for so long does nothing any more.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is to be done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread<'a> {
    /// Queues published to, in turn.
    pub(crate) publish: &'a [String],
    /// Queues consumed from.
    pub(crate) consume: &'a [String],
    /// How long to publish at most.
    pub(crate) time: Duration,
    /// How many to publish at most.
    pub(crate) count: u64,
    /// How many are to be consumed in the end; with none said, all that went to queues consumed from.
    pub(crate) consumed: Option<u64>,
    pub(crate) body_bytes: usize,
    pub(crate) persistent: bool,
    /// The broker's directory, if its size is to be seen.
    pub(crate) data: Option<&'a Path>,
}

/// What the threads tell each other.
#[derive(Debug, Default)]
struct Shared {
    published: AtomicU64,
    /// Of them, how many went to queues that are consumed from.
    wanted: AtomicU64,
    is_published: AtomicBool,
    consumed: AtomicU64,
    is_consumed: AtomicBool,
    has_failed: AtomicBool,
}

/// What one thread does.
type Work<'a> = fn(&Spread<'a>, &Uri, &Shared) -> Result<()>;

impl Spread<'_> {
    /// Runs it to its end.
    pub(crate) fn run(self, place: &BrokerAt<'_>) -> Result<Value> {
        let uri: Uri = place.uri.parse()?;
        let shared = Shared::default();
        shared.is_published.store(self.publish.is_empty(), Ordering::Release);
        shared.is_consumed.store(self.consume.is_empty(), Ordering::Release);
        let before = process::tree(place.pid).context("the broker has ended")?;
        let own_before = process::own().cpu_s;
        let seconds = std::thread::scope(|scope| {
            let work: [(_, Work<'_>); 2] =
                [(&self.publish, Self::publish), (&self.consume, Self::consume)];
            let (it, uri, shared) = (&self, &uri, &shared);
            let threads: Vec<_> = work
                .into_iter()
                .filter(|(queues, _)| !queues.is_empty())
                .map(|(_, work)| {
                    scope.spawn(move || {
                        let result = work(it, uri, shared);
                        shared.has_failed.fetch_or(result.is_err(), Ordering::Release);
                        result
                    })
                })
                .collect();
            let seconds = self.watch(place, shared);
            for thread in threads {
                match thread.join() {
                    Ok(result) => result?,
                    Err(_) => bail!("a thread of the load has died"),
                }
            }
            Ok(seconds)
        })?;
        let after = process::tree(place.pid).context("the broker has ended")?;
        let messages = match shared.published.into_inner() {
            0 => shared.consumed.into_inner(),
            published => published,
        };
        let rss = seconds.iter().filter_map(|second| second["broker_rss_bytes"].as_u64());
        let cpu_s = after.cpu_s - before.cpu_s;
        Ok(json!({
            "published": seconds.iter().filter_map(|it| it["published"].as_u64()).sum::<u64>(),
            "consumed": seconds.iter().filter_map(|it| it["consumed"].as_u64()).sum::<u64>(),
            "publish_rate": rates(&seconds, "published"),
            "consume_rate": rates(&seconds, "consumed"),
            "broker": {
                "cpu_s": cpu_s,
                "cpu_s_per_million": cpu_s / messages.max(1) as f64 * 1e6,
                "rss_before_bytes": before.rss_bytes,
                "rss_peak_bytes": rss.max().unwrap_or(after.rss_bytes).max(after.rss_bytes),
            },
            "tool": { "cpu_s": process::own().cpu_s - own_before },
            "intervals": seconds,
        }))
    }

    fn publish(&self, uri: &Uri, shared: &Shared) -> Result<()> {
        let mut connection = Connection::open(uri, &Options::default())?;
        let channel = connection.open_channel()?;
        connection.confirm_select(channel)?;
        let properties: &[u8] = if self.persistent { &[0x10, 0x00, 2] } else { &[0, 0] };
        let body = vec![b'x'; self.body_bytes];
        let burst = BURST.min((1 << 20) / self.body_bytes.max(1)).max(1);
        let is_consumed = |queue: &&String| self.consume.contains(queue);
        let ours: Vec<bool> = self.publish.iter().map(|queue| is_consumed(&queue)).collect();
        let mut targets = self.publish.iter().zip(ours).cycle();
        let mut waiting = Unconfirmed::default();
        let (mut left, began) = (self.count, Instant::now());
        while left > 0 && began.elapsed() < self.time {
            let room = (WINDOW - waiting.count).min(usize::try_from(left).unwrap_or(WINDOW));
            if room < burst && (room as u64) < left {
                waiting.await_some(&mut connection)?;
                continue;
            }
            let mut wanted = 0;
            let count = room.min(burst);
            for (queue, is_consumed) in targets.by_ref().take(count) {
                connection.publish(channel, "", queue, properties, &body);
                wanted += u64::from(is_consumed);
            }
            waiting.publish(count);
            connection.flush()?;
            left -= count as u64;
            shared.wanted.fetch_add(wanted, Ordering::Relaxed);
            shared.published.fetch_add(count as u64, Ordering::Release);
            while connection.poll()? {
                waiting.take(&mut connection)?;
            }
        }
        while waiting.count > 0 {
            waiting.await_some(&mut connection)?;
        }
        shared.is_published.store(true, Ordering::Release);
        Ok(connection.close()?)
    }

    fn consume(&self, uri: &Uri, shared: &Shared) -> Result<()> {
        let mut connection = Connection::open(uri, &Options::default())?;
        let channel = connection.open_channel()?;
        connection.qos(channel, 100, false)?;
        let (mut seen, mut acked, mut last_came) = (0, 0, Instant::now());
        let mut queues = self.consume.iter();
        loop {
            let begins = queues.next();
            if let Some(queue) = begins {
                connection.consume(channel, queue, &Consume::default())?;
            }
            while let Some(event) = connection.next_event()? {
                if let Event::Content { method: Method::BasicDeliver(deliver), .. } = event {
                    seen = deliver.delivery_tag;
                    last_came = Instant::now();
                }
                // A long read holds more than a window: acks leave while it is taken.
                if seen >= acked + ACK_EVERY {
                    acked = seen;
                    connection.ack(channel, acked, true);
                }
            }
            shared.consumed.store(seen, Ordering::Relaxed);
            if begins.is_some() {
                continue;
            }
            let all = match self.consumed {
                Some(count) => Some(count),
                None => shared
                    .is_published
                    .load(Ordering::Acquire)
                    .then(|| shared.wanted.load(Ordering::Relaxed)),
            };
            let is_all = all.is_some_and(|all| seen >= all);
            if seen > acked && (is_all || last_came.elapsed() > NAP) {
                acked = seen;
                connection.ack(channel, acked, true);
            }
            connection.flush()?;
            if is_all {
                break;
            }
            if last_came.elapsed() > PATIENCE || shared.has_failed.load(Ordering::Acquire) {
                bail!("{seen} messages came, and no more");
            }
            connection.wait(NAP)?;
        }
        shared.is_consumed.store(true, Ordering::Release);
        Ok(connection.close()?)
    }

    /// A line for each second until all is done, and one for what is left of the last.
    fn watch(&self, place: &BrokerAt<'_>, shared: &Shared) -> Vec<Value> {
        let is_over = || {
            let is_done = shared.is_published.load(Ordering::Acquire)
                && shared.is_consumed.load(Ordering::Acquire);
            is_done || shared.has_failed.load(Ordering::Acquire)
        };
        let began = Instant::now();
        let (mut lines, mut last, mut totals) = (Vec::new(), Duration::ZERO, (0, 0));
        loop {
            let due = last + Duration::from_secs(1);
            while began.elapsed() < due && !is_over() {
                std::thread::sleep(NAP.min(due.saturating_sub(began.elapsed())));
            }
            let was_over = is_over();
            let now = began.elapsed();
            let published = shared.published.load(Ordering::Relaxed);
            let consumed = shared.consumed.load(Ordering::Relaxed);
            lines.push(json!({
                "end_s": now.as_secs_f64(),
                "length_s": (now - last).as_secs_f64(),
                "published": published - totals.0,
                "consumed": consumed - totals.1,
                "broker_rss_bytes": process::tree(place.pid).map(|usage| usage.rss_bytes),
                "disk_bytes": self.data.map(disk_bytes),
            }));
            (last, totals) = (now, (published, consumed));
            if was_over {
                return lines;
            }
        }
    }
}

/// The mean over the run, and the median and the lowest of its seconds but the first and the last.
fn rates(seconds: &[Value], what: &str) -> Value {
    let number = |second: &Value, key: &str| second[key].as_f64().unwrap_or_default();
    let rate = |second: &Value| number(second, what) / number(second, "length_s").max(1e-9);
    let mut steady: Vec<f64> = match seconds {
        [_, middle @ .., _] if middle.len() > 1 => middle.iter().map(rate).collect(),
        all => all.iter().map(rate).collect(),
    };
    steady.sort_by(f64::total_cmp);
    let sum = |key: &str| seconds.iter().map(|second| number(second, key)).sum::<f64>();
    json!({
        "mean": sum(what) / sum("length_s").max(1e-9),
        "median": steady.get(steady.len() / 2),
        "min": steady.first(),
    })
}

/// Messages whose confirm has not come. Tags count from 1; confirms come in any order.
#[derive(Debug, Default)]
struct Unconfirmed {
    /// Of each message from tag `first + 1` on, whether it is confirmed.
    settled: VecDeque<bool>,
    first: u64,
    count: usize,
}

impl Unconfirmed {
    fn publish(&mut self, count: usize) {
        self.settled.extend(std::iter::repeat_n(false, count));
        self.count += count;
    }

    fn settle(&mut self, tag: u64, multiple: bool) {
        let Some(last) = tag.checked_sub(self.first + 1) else { return };
        let Some(newest) = self.settled.len().checked_sub(1) else { return };
        let last = usize::try_from(last).unwrap_or(usize::MAX).min(newest);
        for is_settled in self.settled.range_mut(if multiple { 0 } else { last }..=last) {
            self.count -= usize::from(!std::mem::replace(is_settled, true));
        }
        while self.settled.front() == Some(&true) {
            self.settled.pop_front();
            self.first += 1;
        }
    }

    /// Takes what has come.
    fn take(&mut self, connection: &mut Connection) -> Result<()> {
        while let Some(event) = connection.next_event()? {
            let Event::Method { method, .. } = event else { continue };
            match method {
                Method::BasicAck(ack) => self.settle(ack.delivery_tag, ack.multiple),
                Method::BasicNack(_) => bail!("the broker refused a message"),
                _ => {}
            }
        }
        Ok(())
    }

    fn await_some(&mut self, connection: &mut Connection) -> Result<()> {
        if !connection.wait(PATIENCE)? {
            bail!("no confirm has come for {PATIENCE:?}");
        }
        self.take(connection)
    }
}

/// Declares queues, durable ones if what is published is.
pub(crate) fn declare(place: &BrokerAt<'_>, queues: &[String], durable: bool) -> Result<()> {
    each_queue(place, queues, |connection, channel, queue| {
        let how = QueueDeclare { durable, ..QueueDeclare::default() };
        Ok(connection.queue_declare(channel, queue, &how).map(drop)?)
    })
}

/// Deletes queues with all they hold.
pub(crate) fn delete(place: &BrokerAt<'_>, queues: &[String]) -> Result<()> {
    each_queue(place, queues, |connection, channel, queue| {
        Ok(connection.queue_delete(channel, queue).map(drop)?)
    })
}

fn each_queue(
    place: &BrokerAt<'_>,
    queues: &[String],
    mut act: impl FnMut(&mut Connection, u16, &str) -> Result<()>,
) -> Result<()> {
    let uri: Uri = place.uri.parse()?;
    let mut connection = Connection::open(&uri, &Options::default())?;
    let channel = connection.open_channel()?;
    for queue in queues {
        act(&mut connection, channel, queue).with_context(|| queue.clone())?;
    }
    Ok(connection.close()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confirms_come_in_any_order() {
        let mut waiting = Unconfirmed::default();
        waiting.publish(5);
        waiting.settle(3, false);
        waiting.settle(3, false);
        assert_eq!(waiting.count, 4);
        waiting.settle(4, true);
        assert_eq!((waiting.count, waiting.first), (1, 4));
        waiting.settle(2, true); // late, and known
        waiting.publish(1);
        waiting.settle(6, true);
        assert_eq!((waiting.count, waiting.first), (0, 6));
    }

    #[test]
    fn the_first_and_the_last_second_do_not_count() {
        let second =
            |length_s: f64, published: u64| json!({ "length_s": length_s, "published": published });
        let seconds = [second(1.0, 1), second(1.0, 90), second(1.0, 100), second(0.5, 9)];
        let rates = rates(&seconds, "published");
        assert_eq!(rates["min"], 90.0);
        assert_eq!(rates["median"], 100.0);
        assert_eq!(rates["mean"], 200.0 / 3.5);
    }
}
