//! Messages that are stored: a backlog that grows and is consumed, and confirms one at a time.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use leveret_client::{Connection, Options, Uri};
use serde_json::{Value, json};

use super::Workload;
use super::measure::{Bench, Figures, Place, named, number};
use super::target::Target;

/// Bodies of the messages here.
const BODY_BYTES: u64 = 1000;
/// How long a broker may take to give back the disk of messages that are gone.
const SETTLE: Duration = Duration::from_secs(2);

/// K1: persistent messages with confirms and no consumer, then one consumer with acks.
pub(crate) fn backlog(
    bench: &mut Bench,
    target: &Target,
    place: &Place<'_>,
) -> Result<(Figures, f64)> {
    bench.describe(
        Workload::K1,
        "leveret perf -x 1 -y 0 -e '' -u k1 -ad false -f persistent -s 1000 -c 1000 -z SECONDS -h URI; \
         leveret perf -x 0 -y 1 -e '' -u k1 -ad false -f persistent -q 1000 -A 100 -D COUNT -h URI",
    );
    delete_queue(place.uri, "k1")?;
    let published = publish(bench, place)?;
    let count = number(&published, "/published")?;
    let live = count * BODY_BYTES as f64;
    let disk_full = target.data().map(disk_bytes);
    let drained = drain(bench, place, count as u64)?;
    std::thread::sleep(SETTLE);
    let disk_empty = target.data().map(disk_bytes);
    delete_queue(place.uri, "k1")?;

    let idle = number(&published, "/broker/rss_before_bytes")?;
    let above_idle =
        |result| -> Result<f64> { Ok((number(result, "/broker/rss_peak_bytes")? - idle) / 1e6) };
    let mut figures = named([
        ("publish: CPU s per million", number(&published, "/broker/cpu_s_per_million")?),
        ("publish: messages/s", number(&published, "/publish_rate/mean")?),
        ("publish: worst second, % of the median", worst_second(&published, "/publish_rate")?),
        ("publish: peak memory above idle, MB", above_idle(&published)?),
        ("backlog, GB", live / 1e9),
        ("drain: CPU s per million", number(&drained, "/broker/cpu_s_per_million")?),
        ("drain: messages/s", number(&drained, "/consume_rate/mean")?),
        ("drain: peak memory above idle, MB", above_idle(&drained)?),
    ]);
    if let (Some(full), Some(empty)) = (disk_full, disk_empty) {
        figures.push(("disk after publishing, of live bytes".into(), full as f64 / live));
        figures.push(("disk after draining, MB".into(), empty as f64 / 1e6));
    }
    bench.details.extend(seconds("publish", "published", &published));
    bench.details.extend(seconds("drain", "consumed", &drained));
    Ok((figures, number(&published, "/tool/cpu_s")? + number(&drained, "/tool/cpu_s")?))
}

fn publish(bench: &mut Bench, place: &Place<'_>) -> Result<Value> {
    let seconds = bench.backlog_seconds.to_string();
    let size = BODY_BYTES.to_string();
    let mut flags = vec!["-x", "1", "-y", "0", "-e", "", "-u", "k1", "-ad", "false"];
    flags.extend(["-f", "persistent", "-s", &size, "-c", "1000", "-z", &seconds]);
    bench.perf(Workload::K1, place, &owned(&flags))
}

fn drain(bench: &mut Bench, place: &Place<'_>, count: u64) -> Result<Value> {
    let count = count.to_string();
    let mut flags = vec!["-x", "0", "-y", "1", "-e", "", "-u", "k1", "-ad", "false"];
    flags.extend(["-f", "persistent", "-q", "1000", "-A", "100", "-D", &count]);
    bench.perf(Workload::K1, place, &owned(&flags))
}

/// One message in flight: a confirm takes a whole sync.
pub(crate) fn sync(bench: &mut Bench, place: &Place<'_>) -> Result<(Figures, f64)> {
    delete_queue(place.uri, "sync")?;
    let seconds = bench.seconds.to_string();
    let size = BODY_BYTES.to_string();
    let mut flags = vec!["-x", "1", "-y", "0", "-e", "", "-u", "sync", "-ad", "false"];
    flags.extend(["-f", "persistent", "-s", &size, "-c", "1", "-z", &seconds]);
    let result = bench.perf(Workload::Sync, place, &owned(&flags))?;
    delete_queue(place.uri, "sync")?;
    let figures = named([
        ("mean, us", number(&result, "/confirm_latency_us/mean")?),
        ("p50, us", number(&result, "/confirm_latency_us/p50")?),
        ("p99, us", number(&result, "/confirm_latency_us/p99")?),
        ("messages/s", number(&result, "/publish_rate/mean")?),
        ("broker CPU s per million", number(&result, "/broker/cpu_s_per_million")?),
    ]);
    Ok((figures, number(&result, "/tool/cpu_s")?))
}

/// The slowest second of a run, in percent of the median. The first and the last do not count:
/// they are not whole.
fn worst_second(result: &Value, rate: &str) -> Result<f64> {
    let median = number(result, &format!("{rate}/median"))?;
    Ok(number(result, &format!("{rate}/min"))? / median * 100.0)
}

/// Rate and memory of every second.
fn seconds(phase: &str, counter: &str, result: &Value) -> Vec<Value> {
    let intervals = result.pointer("/intervals").and_then(Value::as_array);
    let line = |interval: &Value| {
        let count = interval.get(counter)?.as_f64()?;
        Some(json!({
            "workload": "K1",
            "phase": phase,
            "second": interval.get("end_s"),
            "messages_per_s": count / interval.get("length_s")?.as_f64()?,
            "rss_bytes": interval.get("broker_rss_bytes"),
        }))
    };
    intervals.into_iter().flatten().filter_map(line).collect()
}

/// Flags as [`Bench::perf`] takes them.
pub(crate) fn owned(flags: &[&str]) -> Vec<String> {
    flags.iter().map(|flag| (*flag).to_owned()).collect()
}

/// What earlier runs have left on a peer.
fn delete_queue(uri: &str, queue: &str) -> Result<()> {
    let uri: Uri = uri.parse()?;
    let mut connection = Connection::open(&uri, &Options::default())?;
    let channel = connection.open_channel()?;
    connection.queue_delete(channel, queue).with_context(|| format!("deleting {queue}"))?;
    Ok(connection.close()?)
}

/// Blocks in use below a directory. Files that vanish meanwhile count nothing.
fn disk_bytes(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(data) if data.is_dir() => disk_bytes(&entry.path()),
        Ok(data) => data.blocks() * 512,
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_rates() {
        let result = json!({
            "intervals": [
                { "end_s": 1.0, "length_s": 1.0, "published": 50, "broker_rss_bytes": 7 },
                { "end_s": 1.5, "length_s": 0.5, "published": 50, "broker_rss_bytes": null },
            ],
            "publish_rate": { "min": 50.0, "median": 200.0 },
        });
        let lines = seconds("publish", "published", &result);
        let rates: Vec<_> = lines.iter().map(|line| number(line, "/messages_per_s")).collect();
        assert!(matches!(rates[..], [Ok(50.0), Ok(100.0)]));
        assert_eq!(lines[0]["rss_bytes"], 7);
        assert!(matches!(worst_second(&result, "/publish_rate"), Ok(25.0)));
    }
}
