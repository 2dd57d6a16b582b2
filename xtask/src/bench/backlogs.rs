//! K1's variants: what makes a backlog harder to store and to give back than one queue does.

use std::time::Duration;

use anyhow::{Result, bail};
use leveret_client::{Connection, Consume, Options, QueueDeclare, Uri};

use super::Workload;
use super::measure::{Bench, BrokerAt, Figures, named, number};
use super::memory;
use super::spread::{self, Spread};
use super::stored::{self, BODY_BYTES, Phases, SETTLE, disk_bytes, worst_second};
use super::target::Target;

/// Queues of the variants with many.
const QUEUES: usize = 1000;
/// The queue whose consumer has stopped.
const STOPPED: &str = "stopped";
/// What the consumer that stops has taken and not acked.
const TAKEN: u16 = 100;

fn load<'a>(bench: &Bench, target: &'a Target) -> Spread<'a> {
    Spread {
        publish: &[],
        consume: &[],
        time: Duration::from_secs(bench.backlog_seconds.into()),
        count: u64::MAX,
        consumed: None,
        body_bytes: BODY_BYTES as usize,
        persistent: true,
        data: target.data(),
    }
}

fn names() -> Vec<String> {
    (0..QUEUES).map(|number| format!("k1-{number}")).collect()
}

/// The backlog lies in a thousand queues, in turn: the worst order for whoever reads one of them.
pub(crate) fn queues(
    bench: &mut Bench,
    target: &Target,
    place: &BrokerAt<'_>,
) -> Result<(Figures, f64)> {
    bench.describe(
        Workload::K1Queues,
        "one connection publishes in turn to 1,000 queues, 1000 in flight; then one consumes from all, \
         prefetch 100, an ack for each 100",
    );
    stored::set_watermark(bench, target)?;
    let names = names();
    spread::declare(place, &names, true)?;
    let load = load(bench, target);
    let work = |_: &mut Bench| -> Result<Phases> {
        let published = Spread { publish: &names, ..load }.run(place)?;
        let disk_full = target.data().map(disk_bytes);
        let count = number(&published, "/published")? as u64;
        let drained = Spread { consume: &names, consumed: Some(count), ..load }.run(place)?;
        std::thread::sleep(SETTLE);
        let disk_empty = target.data().map(disk_bytes);
        Ok(Phases { published, disk_full, drained, disk_empty })
    };
    let (watched, phases) = match target.data() {
        Some(data) => {
            let (watched, phases) = memory::watch(bench, data, work)?;
            (Some(watched), phases)
        }
        None => (None, work(bench)?),
    };
    spread::delete(place, &names)?;
    let (mut figures, tool_s) = phases.figures(bench, Workload::K1Queues)?;
    let over = watched.map(|watched| (OVER.into(), watched.worst.over() / 1e6));
    figures.extend(over);
    Ok((figures, tool_s))
}

/// How far the process was above what it may be for what it counts.
const OVER: &str = "memory over the bound at the worst moment, MB";

/// The oldest message is with a consumer that neither acks nor goes, while all others pass.
pub(crate) fn unacked(
    bench: &mut Bench,
    target: &Target,
    place: &BrokerAt<'_>,
) -> Result<(Figures, f64)> {
    bench.describe(Workload::K1Unacked, "as K1, with the first message unacked all the time");
    stored::set_watermark(bench, target)?;
    stored::delete_queue(place.uri, "k1")?;
    spread::declare(place, &["k1".to_owned()], true)?;
    let holder = Holder::of(place, "k1", 1)?;
    let published = stored::publish(bench, Workload::K1Unacked, place)?;
    let disk_full = target.data().map(disk_bytes);
    let count = number(&published, "/published")? as u64;
    let drained = stored::drain(bench, Workload::K1Unacked, place, count)?;
    std::thread::sleep(SETTLE);
    let disk_empty = target.data().map(disk_bytes);
    holder.close()?;
    stored::delete_queue(place.uri, "k1")?;
    Phases { published, disk_full, drained, disk_empty }.figures(bench, Workload::K1Unacked)
}

/// A thousand queues are consumed as fast as they fill; one more fills as they do, and its consumer has
/// stopped. What it holds is all that is live.
pub(crate) fn stopped(
    bench: &mut Bench,
    target: &Target,
    place: &BrokerAt<'_>,
) -> Result<(Figures, f64)> {
    bench.describe(
        Workload::K1Stopped,
        "one connection publishes in turn to 1,001 queues, 1000 in flight; one consumes from 1,000 of \
         them meanwhile, prefetch 100, an ack for each 100",
    );
    stored::set_watermark(bench, target)?;
    let live = names();
    let all: Vec<String> = live.iter().cloned().chain([STOPPED.to_owned()]).collect();
    spread::declare(place, &all, true)?;
    let holder = Holder::of(place, STOPPED, TAKEN)?;
    let load = load(bench, target);
    let passed = Spread { publish: &all, consume: &live, ..load }.run(place)?;
    std::thread::sleep(SETTLE);
    let disk_full = target.data().map(disk_bytes);
    holder.close()?;
    let held = messages_in(place, STOPPED)?;
    let stopped = [STOPPED.to_owned()];
    let rest = Spread { consume: &stopped, consumed: Some(held), ..load }.run(place)?;
    std::thread::sleep(SETTLE);
    let disk_empty = target.data().map(disk_bytes);
    spread::delete(place, &all)?;

    let above_idle = (number(&passed, "/broker/rss_peak_bytes")?
        - number(&passed, "/broker/rss_before_bytes")?)
        / 1e6;
    let mut figures = named([
        ("passing: CPU s per million", number(&passed, "/broker/cpu_s_per_million")?),
        ("passing: messages/s", number(&passed, "/publish_rate/mean")?),
        ("passing: worst second, % of the median", worst_second(&passed, "/publish_rate")?),
        ("passing: peak memory above idle, MB", above_idle),
        ("held by the stopped consumer's queue, MB", (held * BODY_BYTES) as f64 / 1e6),
    ]);
    if let (Some(full), Some(empty)) = (disk_full, disk_empty) {
        let seconds = passed["intervals"].as_array().into_iter().flatten();
        let peak = seconds.filter_map(|second| second["disk_bytes"].as_u64()).max().unwrap_or(full);
        figures.extend(named([
            ("disk in the worst second, MB", peak as f64 / 1e6),
            ("disk after passing, MB", full as f64 / 1e6),
            ("disk after draining, MB", empty as f64 / 1e6),
        ]));
    }
    bench.details.extend(stored::seconds(Workload::K1Stopped, "passing", "published", &passed));
    let tool_s = number(&passed, "/tool/cpu_s")? + number(&rest, "/tool/cpu_s")?;
    Ok((figures, tool_s))
}

/// A consumer that takes messages and does nothing more.
struct Holder {
    connection: Connection,
}

impl Holder {
    /// Holds the first `count` messages of an empty queue.
    fn of(place: &BrokerAt<'_>, queue: &str, count: u16) -> Result<Self> {
        let uri: Uri = place.uri.parse()?;
        // It says nothing for longer than any heartbeat would allow.
        let options = Options { heartbeat_s: Some(0), ..Options::default() };
        let mut connection = Connection::open(&uri, &options)?;
        let channel = connection.open_channel()?;
        connection.qos(channel, count, false)?;
        connection.consume(channel, queue, &Consume::default())?;
        for _ in 0..count {
            connection.publish(channel, "", queue, &[0x10, 0x00, 2], &[b'x'; BODY_BYTES as usize]);
        }
        connection.flush()?;
        let mut held = 0;
        while held < count {
            if !connection.wait(Duration::from_secs(10))? {
                bail!("only {held} messages came to the consumer that is to stop");
            }
            while connection.next_event()?.is_some() {
                held += 1;
            }
        }
        Ok(Self { connection })
    }

    /// What it held goes back to the queue.
    fn close(self) -> Result<()> {
        Ok(self.connection.close()?)
    }
}

fn messages_in(place: &BrokerAt<'_>, queue: &str) -> Result<u64> {
    let uri: Uri = place.uri.parse()?;
    let mut connection = Connection::open(&uri, &Options::default())?;
    let channel = connection.open_channel()?;
    let passive = QueueDeclare { passive: true, ..QueueDeclare::default() };
    let count = connection.queue_declare(channel, queue, &passive)?.message_count;
    connection.close()?;
    Ok(count.into())
}
