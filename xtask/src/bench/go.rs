//! The same loads by a Go program on RabbitMQ's own Go client: what users' programs see.
//!
//! The program is called `gobench MODE -uri URI -queue Q [-n N] [-size S]` and prints one JSON
//! object on its last line.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use leveret_load::process;
use serde_json::Value;

use super::Workload;
use super::measure::{BrokerAt, Figures, S1_COUNT, number};

/// Messages of S3: ten seconds of them.
const S3_COUNT: u64 = 10_000;

/// Figures, CPU seconds of the program, and the command.
pub(crate) fn run(
    gobench: &Path,
    workload: Workload,
    place: &BrokerAt<'_>,
) -> Result<(Figures, f64, String)> {
    let (mode, count) = match workload {
        Workload::GoS1 => ("s1", S1_COUNT),
        Workload::GoS2 => ("s2", S1_COUNT),
        _ => ("s3", S3_COUNT),
    };
    let flags = format!("{mode} -durable -queue go-{mode} -n {count}");
    let cpu = || process::tree(place.pid).map(|usage| usage.cpu_s).context("the broker has ended");
    let (before, own_before) = (cpu()?, process::children_cpu_s());
    let output = Command::new(gobench)
        .args(flags.split(' '))
        .args(["-uri", place.uri])
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("running {}", gobench.display()))?;
    if !output.status.success() {
        bail!("gobench {flags} failed");
    }
    let (cpu_s, own_s) = (cpu()? - before, process::children_cpu_s() - own_before);
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_default();
    let result: Value = serde_json::from_str(last).context("reading gobench's JSON")?;
    let rates: &[(&'static str, &str)] = match workload {
        Workload::GoS1 => &[("published/s", "/pub_rate"), ("in the queue/s", "/all_rate")],
        Workload::GoS2 => &[("published/s", "/pub_rate"), ("consumed/s", "/consume_rate")],
        _ => &[
            ("mean, us", "/mean_us"),
            ("p50, us", "/p50_us"),
            ("p90, us", "/p90_us"),
            ("p99, us", "/p99_us"),
            ("p99.9, us", "/p999_us"),
            ("max, us", "/max_us"),
        ],
    };
    let per_million = |seconds: f64| seconds / count as f64 * 1e6;
    let mut figures = Vec::new();
    for (name, path) in rates {
        figures.push(((*name).into(), number(&result, path)?));
    }
    figures.push(("broker CPU s per million".into(), per_million(cpu_s)));
    figures.push(("tool CPU s per million".into(), per_million(own_s)));
    Ok((figures, own_s, format!("gobench {flags} -uri URI")))
}
