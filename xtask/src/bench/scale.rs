//! How throughput and latency hold near a limit: at four fifths of the highest rate, on more cores, beside what is idle.

use anyhow::{Result, bail};
use leveret_load::{Held, Idle};
use serde_json::Value;

use super::Workload;
use super::measure::{Bench, BrokerAt, Busy, Figures, named, number};
use super::stored::owned;
use super::target::Target;

/// Idle queues or connections beside a load.
const IDLE_COUNT: usize = 10_000;
/// Part of the highest rate at which latency is looked at.
const SHARE: f64 = 0.8;

/// The highest rate of messages of 1 KiB, and latency at four fifths of it.
pub(crate) fn latency_below_the_limit(
    bench: &mut Bench,
    place: &BrokerAt<'_>,
) -> Result<(Figures, f64)> {
    bench.describe(
        Workload::P99,
        "leveret perf -e '' -u p99 -a -s 1024 -z N; leveret perf latency, the same, -r four fifths of its rate",
    );
    let seconds = bench.seconds.to_string();
    let mut flags = owned(&["-e", "", "-u", "p99", "-a", "-s", "1024", "-z", &seconds]);
    let highest = bench.perf(Workload::P99, place, &flags)?;
    let rate = number(&highest, "/publish_rate/mean")?.min(consumed(&highest)?);
    flags.insert(0, "latency".to_owned());
    flags.extend(["-r".to_owned(), format!("{:.0}", rate * SHARE)]);
    let below = bench.perf(Workload::P99, place, &flags)?;
    let figures = named([
        ("highest rate, messages/s", rate),
        ("messages/s at 80 %", consumed(&below)?),
        ("mean at 80 %, us", number(&below, "/latency_us/mean")?),
        ("p50 at 80 %, us", number(&below, "/latency_us/p50")?),
        ("p99 at 80 %, us", number(&below, "/latency_us/p99")?),
        ("p99.9 at 80 %, us", number(&below, "/latency_us/p999")?),
    ]);
    Ok((figures, number(&highest, "/tool/cpu_s")? + number(&below, "/tool/cpu_s")?))
}

/// One queue on a machine with one core and with two: broker and clients have the same ones. Were the second core only
/// the broker's, a machine of two would have it taken from the clients, who use it as well: nothing could be gained.
pub(crate) fn cores(bench: &mut Bench, target: &mut Target) -> Result<Figures> {
    bench.describe(
        Workload::Cores,
        "taskset -c 0 (then 0,1) leveret serve; with the same taskset leveret perf -x 2 -y 2 -e '' -u one \
         -ad false -a -s 1024 -z N, with -c 1000 too, and -f persistent -c 200 -q 200 -A 10 -s 1500 in place of -a -s 1024",
    );
    if std::thread::available_parallelism()?.get() < 2 {
        bail!("this machine has one core");
    }
    let seconds = bench.seconds.to_string();
    let loads: [(_, &[&str]); 3] = [
        ("transient", &["-a", "-s", "1024"]),
        ("transient, confirmed", &["-a", "-s", "1024", "-c", "1000"]),
        ("persistent", &["-f", "persistent", "-c", "200", "-q", "200", "-A", "10", "-s", "1500"]),
    ];
    let mut figures = Figures::new();
    let (busy, mut known_s) = (Busy::start(), 0.0);
    for (name, load) in loads {
        let mut rates = [0.0; 2];
        for (rate, count) in rates.iter_mut().zip(1..) {
            let (uri, pid) = target.fresh_on(Some(count))?;
            let place = BrokerAt { uri: &uri, pid };
            let mut flags = owned(&["-x", "2", "-y", "2", "-e", "", "-u", "one", "-ad", "false"]);
            flags.extend(owned(load));
            flags.extend(owned(&["-z", &seconds]));
            let result = bench.perf_on(Some(count), Workload::Cores, &place, &flags)?;
            known_s += number(&result, "/broker/cpu_s")? + number(&result, "/tool/cpu_s")?;
            *rate = consumed(&result)?;
            let plural = if count == 1 { "" } else { "s" };
            figures.push((format!("{name}, {count} core{plural}: messages/s").into(), *rate));
        }
        figures.push((format!("{name}: two cores, of one").into(), rates[1] / rates[0]));
    }
    figures.push(("others' CPU, %".into(), busy.others(known_s)));
    Ok(figures)
}

/// A load with nothing idle, beside 10,000 idle things, and with nothing again.
pub(crate) fn beside_idle(
    bench: &mut Bench,
    workload: Workload,
    place: &BrokerAt<'_>,
    what: Idle,
) -> Result<(Figures, f64)> {
    let seconds = bench.seconds.to_string();
    let flags = owned(&["-e", "", "-u", "beside", "-a", "-s", "1024", "-z", &seconds]);
    let before = bench.perf(workload, place, &flags)?;
    let held = Held::open(place.uri, what, IDLE_COUNT)?;
    let beside = bench.perf(workload, place, &flags)?;
    held.close()?;
    let after = bench.perf(workload, place, &flags)?;
    let mean =
        |of: fn(&Value) -> Result<f64>| -> Result<f64> { Ok((of(&before)? + of(&after)?) / 2.0) };
    let cpu = |it: &Value| number(it, "/broker/cpu_s_per_million");
    let (alone, with) = (mean(consumed)?, consumed(&beside)?);
    let figures = named([
        ("messages/s alone", alone),
        ("messages/s beside 10,000", with),
        ("throughput beside 10,000, % of that alone", with / alone * 100.0),
        ("broker CPU s per million alone", mean(cpu)?),
        ("broker CPU s per million beside 10,000", cpu(&beside)?),
        ("peak RSS, MB", number(&beside, "/broker/rss_peak_bytes")? / 1e6),
    ]);
    let tool = |it: &Value| number(it, "/tool/cpu_s");
    Ok((figures, tool(&before)? + tool(&beside)? + tool(&after)?))
}

fn consumed(result: &Value) -> Result<f64> {
    number(result, "/consume_rate/mean")
}
