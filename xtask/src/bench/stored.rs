//! Messages that are stored: a backlog that grows and is consumed, and confirms one at a time.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use leveret_client::{Connection, Options, Uri};
use leveret_config::files::SOCKET_NAME;
use serde_json::{Value, json};

use super::Workload;
use super::measure::{Bench, BrokerAt, Figures, named, number};
use super::target::Target;

/// Bodies of the messages here.
pub(crate) const BODY_BYTES: u64 = 1000;
/// How long a broker may take to give back the disk of messages that are gone.
pub(crate) const SETTLE: Duration = Duration::from_secs(2);

/// K1: persistent messages with confirms and no consumer, then one consumer with acks.
pub(crate) fn backlog(
    bench: &mut Bench,
    target: &Target,
    place: &BrokerAt<'_>,
) -> Result<(Figures, f64)> {
    bench.describe(
        Workload::K1,
        "leveret perf -x 1 -y 0 -e '' -u k1 -ad false -f persistent -s 1000 -c 1000 -z SECONDS -h URI; \
         leveret perf -x 0 -y 1 -e '' -u k1 -ad false -f persistent -q 1000 -A 100 -D COUNT -h URI",
    );
    set_watermark(bench, target)?;
    delete_queue(place.uri, "k1")?;
    let published = publish(bench, Workload::K1, place)?;
    let disk_full = target.data().map(disk_bytes);
    let count = number(&published, "/published")?;
    let drained = drain(bench, Workload::K1, place, count as u64)?;
    std::thread::sleep(SETTLE);
    let disk_empty = target.data().map(disk_bytes);
    delete_queue(place.uri, "k1")?;
    let phases = Phases { published, disk_full, drained, disk_empty };
    phases.figures(bench, Workload::K1)
}

/// Memory above which our broker blocks publishers in K1: a backlog is never to come near.
const WATERMARK: u64 = 256 << 20;

/// Makes it so.
pub(crate) fn set_watermark(bench: &Bench, target: &Target) -> Result<()> {
    let bytes = WATERMARK.to_string();
    match target.data() {
        Some(data) => {
            let words = ["set_vm_memory_high_watermark", "absolute", &bytes];
            ctl(bench.tool(), data, &words).map(drop)
        }
        None => Ok(()),
    }
}

/// What `leveret ctl` answers on the node whose data is there.
pub(crate) fn ctl(tool: &Path, data: &Path, words: &[&str]) -> Result<String> {
    let mut command = Command::new(tool);
    let output = command.args(["ctl", "--socket"]).arg(data.join(SOCKET_NAME)).args(words).output();
    let output = output.with_context(|| format!("running {}", tool.display()))?;
    if !output.status.success() {
        bail!("leveret ctl {}: {}", words[0], String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The results of both halves of a backlog, as the load tool gives them.
pub(crate) struct Phases {
    pub(crate) published: Value,
    pub(crate) disk_full: Option<u64>,
    pub(crate) drained: Value,
    pub(crate) disk_empty: Option<u64>,
}

impl Phases {
    /// The figures, and the CPU seconds of the load tool. Every second goes to the details.
    pub(crate) fn figures(self, bench: &mut Bench, workload: Workload) -> Result<(Figures, f64)> {
        let Self { published, drained, .. } = &self;
        let live = number(published, "/published")? * BODY_BYTES as f64;
        let idle = number(published, "/broker/rss_before_bytes")?;
        let peak = |result| number(result, "/broker/rss_peak_bytes");
        let mut figures = named([
            ("publish: CPU s per million", number(published, "/broker/cpu_s_per_million")?),
            ("publish: messages/s", number(published, "/publish_rate/mean")?),
            ("publish: worst second, % of the median", worst_second(published, "/publish_rate")?),
            ("publish: peak memory above idle, MB", (peak(published)? - idle) / 1e6),
            ("backlog, GB", live / 1e9),
            ("drain: CPU s per million", number(drained, "/broker/cpu_s_per_million")?),
            ("drain: messages/s", number(drained, "/consume_rate/mean")?),
            ("drain: worst second, % of the median", worst_second(drained, "/consume_rate")?),
            ("drain: peak memory above idle, MB", (peak(drained)? - idle) / 1e6),
        ]);
        if let (Some(full), Some(empty)) = (self.disk_full, self.disk_empty) {
            let peak = peak(published)?.max(peak(drained)?);
            figures.extend(named([
                ("peak memory, % of the watermark", peak / WATERMARK as f64 * 100.0),
                ("disk after publishing, of live bytes", full as f64 / live),
                ("disk after draining, MB", empty as f64 / 1e6),
            ]));
        }
        bench.details.extend(seconds(workload, "publish", "published", published));
        bench.details.extend(seconds(workload, "drain", "consumed", drained));
        let tool_s = number(published, "/tool/cpu_s")? + number(drained, "/tool/cpu_s")?;
        Ok((figures, tool_s))
    }
}

/// Publishes into the queue `k1` at full rate for as long as is said.
pub(crate) fn publish(
    bench: &mut Bench,
    workload: Workload,
    place: &BrokerAt<'_>,
) -> Result<Value> {
    let seconds = bench.backlog_seconds.to_string();
    let size = BODY_BYTES.to_string();
    let mut flags = vec!["-x", "1", "-y", "0", "-e", "", "-u", "k1", "-ad", "false"];
    flags.extend(["-f", "persistent", "-s", &size, "-c", "1000", "-z", &seconds]);
    bench.perf(workload, place, &owned(&flags))
}

/// Consumes so many messages from the queue `k1`.
pub(crate) fn drain(
    bench: &mut Bench,
    workload: Workload,
    place: &BrokerAt<'_>,
    count: u64,
) -> Result<Value> {
    let count = count.to_string();
    let mut flags = vec!["-x", "0", "-y", "1", "-e", "", "-u", "k1", "-ad", "false"];
    flags.extend(["-f", "persistent", "-q", "1000", "-A", "100", "-D", &count]);
    bench.perf(workload, place, &owned(&flags))
}

/// One message in flight: a confirm takes a whole sync.
pub(crate) fn sync(bench: &mut Bench, place: &BrokerAt<'_>) -> Result<(Figures, f64)> {
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
pub(crate) fn worst_second(result: &Value, rate: &str) -> Result<f64> {
    // A broker that does nothing in most seconds has a median of zero.
    let median = number(result, &format!("{rate}/median"))?.max(1.0);
    Ok(number(result, &format!("{rate}/min"))? / median * 100.0)
}

/// Rate and memory of every second.
pub(crate) fn seconds(
    workload: Workload,
    phase: &str,
    counter: &str,
    result: &Value,
) -> Vec<Value> {
    let intervals = result.pointer("/intervals").and_then(Value::as_array);
    let line = |interval: &Value| {
        let count = interval.get(counter)?.as_f64()?;
        Some(json!({
            "workload": format!("{workload:?}"),
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
pub(crate) fn delete_queue(uri: &str, queue: &str) -> Result<()> {
    let uri: Uri = uri.parse()?;
    let mut connection = Connection::open(&uri, &Options::default())?;
    let channel = connection.open_channel()?;
    connection.queue_delete(channel, queue).with_context(|| format!("deleting {queue}"))?;
    Ok(connection.close()?)
}

/// Blocks in use below a directory. Files that vanish meanwhile count nothing.
pub(crate) fn disk_bytes(directory: &Path) -> u64 {
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
        let lines = seconds(Workload::K1, "publish", "published", &result);
        let rates: Vec<_> = lines.iter().map(|line| number(line, "/messages_per_s")).collect();
        assert!(matches!(rates[..], [Ok(50.0), Ok(100.0)]));
        assert_eq!(lines[0]["rss_bytes"], 7);
        assert!(matches!(worst_second(&result, "/publish_rate"), Ok(25.0)));
    }
}
