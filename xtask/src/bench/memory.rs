//! Memory: what a stored message takes of it, and whether the broker counts what it takes.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use leveret_client::{Connection, Consume, Options, Uri};
use leveret_load::process;
use serde_json::Value;

use super::Workload;
use super::measure::{Bench, BrokerAt, Figures, named, number};
use super::spread::{self, Spread};
use super::stored::{SETTLE, ctl, disk_bytes, owned};
use super::target::Target;

/// What a process may be larger than what it counts: by this part of it, and by this much.
const FACTOR: f64 = 1.3;
const CONSTANT: f64 = 50e6;
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(500);

/// From one million stored messages of 16 bytes to as many as is said.
pub(crate) fn growth(
    bench: &mut Bench,
    target: &Target,
    place: &BrokerAt<'_>,
) -> Result<(Figures, f64)> {
    let mut tool_s = 0.0;
    let mut at = |bench: &mut Bench, count: u64| -> Result<[f64; 3]> {
        let count = count.to_string();
        let mut flags = vec!["-x", "1", "-y", "0", "-e", "", "-u", "growth", "-ad", "false"];
        flags.extend(["-f", "persistent", "-s", "16", "-c", "1000", "-C", &count]);
        let result = bench.perf(Workload::Growth, place, &owned(&flags))?;
        tool_s += number(&result, "/tool/cpu_s")?;
        std::thread::sleep(SETTLE);
        let rss = process::tree(place.pid).context("the broker has ended")?.rss_bytes as f64;
        let counted = match target.data() {
            Some(data) => Memory::of(bench.tool(), data)?.counted,
            None => 0.0,
        };
        Ok([rss, counted, target.data().map(disk_bytes).unwrap_or_default() as f64])
    };
    let millions = bench.millions.max(2);
    let first = at(bench, 1_000_000)?;
    let last = at(bench, (millions - 1) * 1_000_000)?;
    let more = (millions - 1) as f64 * 1e6;
    let each = |which: usize| (last[which] - first[which]) / more;
    let mut figures = named([
        ("memory at 1 million, MB", first[0] / 1e6),
        ("memory at all, MB", last[0] / 1e6),
        ("bytes of memory for each more", each(0)),
    ]);
    figures.push(("millions at the end".into(), millions as f64));
    if target.data().is_some() {
        figures.extend(named([
            ("bytes counted for each more", each(1)),
            ("bytes of disk for each more", each(2)),
        ]));
    }
    super::stored::delete_queue(place.uri, "growth")?;
    Ok((figures, tool_s))
}

/// What the node says of its memory at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    resident: f64,
    counted: f64,
}

impl Memory {
    fn of(tool: &Path, data: &Path) -> Result<Self> {
        let text = ctl(tool, data, &["status", "--formatter", "json"])?;
        let status: Value = serde_json::from_str(&text).context("reading the status")?;
        Ok(Self {
            resident: number(&status, "/memory/total/rss")?,
            counted: number(&status, "/message_bytes")?,
        })
    }

    /// Bytes that the process is larger than it may be; below zero there is room.
    pub(crate) fn over(self) -> f64 {
        self.resident - (self.counted * FACTOR + CONSTANT)
    }
}

type Fill = fn(&mut Bench, &BrokerAt<'_>) -> Result<Option<Connection>>;

/// Ways to fill memory. A connection that has to stay until all is measured is given back.
const CASES: [(&str, Fill); 5] = [
    ("1 M transient messages of 100 B in 10,000 queues", many_queues),
    ("300 transient messages of 1 MB", large_bodies),
    ("8,000 idle connections", connections),
    ("2 M persistent messages of 1 KB", cold),
    ("1 M unacked transient messages of 16 B", unacked),
];

/// Resident memory beside what the broker counts, which is what its watermark looks at.
pub(crate) fn resident(bench: &mut Bench, target: &mut Target) -> Result<Figures> {
    bench.describe(
        Workload::Resident,
        "leveret ctl status --formatter json, twice a second, while each of these is filled",
    );
    let mut figures = Figures::new();
    for (name, fill) in CASES {
        let (uri, pid) = target.fresh()?;
        let place = BrokerAt { uri: &uri, pid };
        let data = target.data().context("a peer does not say what it counts")?;
        let (watched, _filled) = watch(bench, data, |bench| fill(bench, &place)).context(name)?;
        let mut add = |what: &str, value| figures.push((format!("{name}: {what}").into(), value));
        add("resident at its most, MB", watched.most.resident / 1e6);
        add("counted then, MB", watched.most.counted / 1e6);
        add("over the bound at the worst moment, MB", watched.worst.over() / 1e6);
    }
    Ok(figures)
}

/// Two moments of many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watched {
    /// The process was largest.
    most: Memory,
    /// It was farthest above its bound, or the least below.
    pub(crate) worst: Memory,
}

/// Looks at the broker while `work` runs and a little longer.
pub(crate) fn watch<T>(
    bench: &mut Bench,
    data: &Path,
    work: impl FnOnce(&mut Bench) -> Result<T>,
) -> Result<(Watched, T)> {
    let tool = bench.tool().to_owned();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looker = scope.spawn(|| -> Result<Watched> {
            let first = Memory::of(&tool, data)?;
            let mut watched = Watched { most: first, worst: first };
            while !is_over.load(Ordering::Acquire) {
                std::thread::sleep(LOOK);
                let now = Memory::of(&tool, data)?;
                if now.resident > watched.most.resident {
                    watched.most = now;
                }
                if now.over() > watched.worst.over() {
                    watched.worst = now;
                }
            }
            Ok(watched)
        });
        let done = work(bench);
        std::thread::sleep(SETTLE);
        is_over.store(true, Ordering::Release);
        let watched = looker.join().map_err(|_| anyhow!("the watching thread has died"))?;
        let done = done?;
        Ok((watched?, done))
    })
}

fn many_queues(_: &mut Bench, place: &BrokerAt<'_>) -> Result<Option<Connection>> {
    let queues: Vec<String> = (0..10_000).map(|number| format!("resident-{number}")).collect();
    store(place, &queues, 1_000_000, 100, false)
}

fn large_bodies(_: &mut Bench, place: &BrokerAt<'_>) -> Result<Option<Connection>> {
    store(place, &["resident".to_owned()], 300, 1_000_000, false)
}

fn connections(bench: &mut Bench, place: &BrokerAt<'_>) -> Result<Option<Connection>> {
    bench.perf(Workload::Resident, place, &owned(&["--idle-connections", "8000"]))?;
    Ok(None)
}

fn cold(_: &mut Bench, place: &BrokerAt<'_>) -> Result<Option<Connection>> {
    store(place, &["resident".to_owned()], 2_000_000, 1000, true)
}

fn unacked(_: &mut Bench, place: &BrokerAt<'_>) -> Result<Option<Connection>> {
    const COUNT: u64 = 1_000_000;
    let queue = "resident";
    store(place, &[queue.to_owned()], COUNT, 16, false)?;
    let uri: Uri = place.uri.parse()?;
    let mut connection = Connection::open(&uri, &Options::default())?;
    let channel = connection.open_channel()?;
    connection.consume(channel, queue, &Consume::default())?;
    let mut taken = 0;
    while taken < COUNT {
        while connection.next_event()?.is_some() {
            taken += 1;
        }
        if taken < COUNT && !connection.wait(Duration::from_secs(30))? {
            bail!("{taken} messages came, and no more");
        }
    }
    Ok(Some(connection))
}

fn store(
    place: &BrokerAt<'_>,
    queues: &[String],
    count: u64,
    body_bytes: usize,
    persistent: bool,
) -> Result<Option<Connection>> {
    spread::declare(place, queues, persistent)?;
    let load = Spread {
        publish: queues,
        consume: &[],
        time: Duration::MAX,
        count,
        consumed: None,
        body_bytes,
        persistent,
        data: None,
    };
    load.run(place)?;
    Ok(None)
}
