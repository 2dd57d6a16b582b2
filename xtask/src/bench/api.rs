//! The management API with ten thousand queues: what its lists take, and what a load minds somebody who asks for them
//! all the time.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use leveret_load::process;
use serde_json::Value;

use super::Workload;
use super::measure::{Bench, BrokerAt, Figures, number};
use super::spread::{self, Spread};
use super::target::Target;

/// Queues.
const QUEUES: usize = 10_000;
/// Messages published to them, in turn, so that none of their counts is 0.
const MESSAGES: u64 = 20_000;
/// Requests of a kind; their median counts.
const REQUESTS: usize = 11;
/// Until the broker has sampled them, by itself.
const SAMPLED: Duration = Duration::from_secs(6);
/// How often somebody asks.
const POLL: Duration = Duration::from_secs(1);

const LISTS: [(&str, &str); 4] = [
    ("all", "/api/queues"),
    ("a page of 100", "/api/queues?page=1&page_size=100"),
    (
        "a page of 100 by messages",
        "/api/queues?page=1&page_size=100&sort=messages&sort_reverse=true",
    ),
    ("all, two columns", "/api/queues?columns=name,messages"),
];

/// Lists one by one, and a load without and with somebody who asks each second.
pub(crate) fn lists(
    bench: &mut Bench,
    target: &Target,
    place: &BrokerAt<'_>,
) -> Result<(Figures, f64)> {
    let data = target.data().context("the control socket of a broker that we started")?;
    let names: Vec<String> = (0..QUEUES).map(|number| format!("api-{number}")).collect();
    spread::declare(place, &names, false)?;
    let fill = Spread {
        publish: &names,
        consume: &[],
        time: Duration::from_secs(60),
        count: MESSAGES,
        consumed: None,
        body_bytes: 16,
        persistent: false,
        data: None,
    };
    fill.run(place)?;
    std::thread::sleep(SAMPLED);
    let mut figures = Figures::new();
    for (name, path) in LISTS {
        for (kind, gzip) in [("", false), (", gzip", true)] {
            let (ms, cpu_ms) = cost(place, || api(data, path, gzip))?;
            figures.push((format!("{name}{kind}: ms").into(), ms));
            figures.push((format!("{name}{kind}: CPU ms").into(), cpu_ms));
        }
    }
    let metrics = metrics_port(data)?;
    let (ms, cpu_ms) = cost(place, || per_object(metrics))?;
    figures.push(("metrics of each: ms".into(), ms));
    figures.push(("metrics of each: CPU ms".into(), cpu_ms));

    let seconds = bench.seconds.to_string();
    let flags = ["-e", "", "-u", "beside", "-a", "-s", "1024", "-z", &*seconds].map(str::to_owned);
    let before = bench.perf(Workload::Api, place, &flags)?;
    let polled = {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let poller = scope.spawn(|| poll(data, metrics, &is_over));
            let polled = bench.perf(Workload::Api, place, &flags);
            is_over.store(true, Ordering::Release);
            match poller.join() {
                Ok(asked) => asked?,
                Err(_) => bail!("the thread that asks has died"),
            }
            polled
        })?
    };
    let after = bench.perf(Workload::Api, place, &flags)?;
    let rate = |it: &Value| number(it, "/consume_rate/mean");
    let alone = (rate(&before)? + rate(&after)?) / 2.0;
    figures.push(("messages/s alone".into(), alone));
    figures.push(("messages/s while asked".into(), rate(&polled)?));
    figures
        .push(("throughput while asked, % of that alone".into(), rate(&polled)? / alone * 100.0));
    spread::delete(place, &names)?;
    let tool = |it: &Value| number(it, "/tool/cpu_s");
    Ok((figures, tool(&before)? + tool(&polled)? + tool(&after)?))
}

/// The median time of a request, and the mean CPU time of the broker meanwhile, both in ms.
fn cost(place: &BrokerAt<'_>, mut ask: impl FnMut() -> Result<Vec<u8>>) -> Result<(f64, f64)> {
    let cpu_s = || process::tree(place.pid).map(|it| it.cpu_s).context("the broker has ended");
    let (mut times, before) = (Vec::new(), cpu_s()?);
    for _ in 0..REQUESTS {
        let began = Instant::now();
        ask()?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok((times[REQUESTS / 2], (cpu_s()? - before) / REQUESTS as f64 * 1e3))
}

/// Asks for all queues and for the metrics of each, until it is over.
fn poll(data: &Path, metrics: u16, is_over: &AtomicBool) -> Result<()> {
    let mut next = Instant::now();
    while !is_over.load(Ordering::Acquire) {
        if Instant::now() < next {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        }
        api(data, "/api/queues", false)?;
        per_object(metrics)?;
        next += POLL;
    }
    Ok(())
}

/// A document of the management API, by the control socket.
pub(crate) fn api(data: &Path, path: &str, gzip: bool) -> Result<Vec<u8>> {
    let socket = UnixStream::connect(data.join("leveret.sock")).context("the control socket")?;
    get(socket, path, gzip)
}

/// The metrics of each object.
fn per_object(port: u16) -> Result<Vec<u8>> {
    get(TcpStream::connect(("127.0.0.1", port))?, "/metrics/per-object", false)
}

/// Where the metrics are.
fn metrics_port(data: &Path) -> Result<u16> {
    let overview: Value = serde_json::from_slice(&api(data, "/api/overview", false)?)?;
    let listeners = overview["listeners"].as_array().context("no listeners")?;
    let of_metrics = listeners.iter().find(|it| it["protocol"] == "http/prometheus");
    let port = of_metrics.and_then(|it| it["port"].as_u64()).context("no port of metrics")?;
    Ok(u16::try_from(port)?)
}

/// The body of an answer that must be good.
fn get(mut socket: impl Read + Write, path: &str, gzip: bool) -> Result<Vec<u8>> {
    let accepted = if gzip { "Accept-Encoding: gzip\r\n" } else { "" };
    write!(socket, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{accepted}\r\n")?;
    let mut all = Vec::new();
    socket.read_to_end(&mut all)?;
    let end = all.windows(4).position(|it| it == b"\r\n\r\n").context("no answer")?;
    ensure!(
        all.starts_with(b"HTTP/1.1 200 "),
        "{path}: {}",
        String::from_utf8_lossy(&all[..end.min(200)])
    );
    Ok(all.split_off(end + 4))
}
