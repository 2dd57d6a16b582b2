//! A result as JSON.

use std::io::Write as _;
use std::path::Path;

use anyhow::Context;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::outcome::{Interval, Outcome};
use crate::plan::{Plan, Rate};
use crate::stats::{Counter, Percentiles, median};

impl Serialize for Outcome {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        json(self).serialize(serializer)
    }
}

/// What a result repeats of what was asked for.
pub(crate) fn plan(plan: &Plan) -> Value {
    let (publishing, consuming) = (&plan.publishing, &plan.consuming);
    json!({
        "producers": publishing.producers,
        "producer_channels": publishing.channels,
        "consumers": consuming.consumers,
        "consumer_channels": consuming.channels,
        "queues": plan.topology.queues.len(),
        "body_bytes": plan.content.body_bytes(),
        "persistent": publishing.persistent,
        "flush_each": publishing.flush_each,
        "confirm_window": publishing.confirm_window,
        "prefetch": consuming.prefetch,
        "publish_rate": match publishing.rate {
            Some(Rate::Fixed(rate)) => Some(rate),
            _ => None,
        },
    })
}

/// The whole result.
pub(crate) fn json(outcome: &Outcome) -> Value {
    let mut result = json!({
        "id": outcome.id,
        "plan": outcome.plan,
        "reason": outcome.reason,
        "publish_s": outcome.publish_s,
        "consume_s": outcome.consume_s,
        "messages": outcome.messages(),
        "publish_rate": rates(outcome, Counter::Published, outcome.publish_s),
        "consume_rate": rates(outcome, Counter::Consumed, outcome.consume_s),
        "latency_us": outcome.latency.as_ref().map(percentiles),
        "confirm_latency_us": outcome.confirm_latency.as_ref().map(percentiles),
        "tool": cpu(outcome.own_cpu_s, outcome.messages()),
        "intervals": outcome.intervals.iter().map(interval).collect::<Vec<_>>(),
    });
    if let Some(verification) = &outcome.verification {
        result["verification"] = json!(verification);
    }
    for what in Counter::ALL {
        result[what.name()] = outcome.totals.get(what).into();
    }
    if let Some(broker) = &outcome.broker {
        let mut value = cpu(broker.cpu_s, outcome.messages());
        value["rss_before_bytes"] = broker.rss_before.into();
        value["rss_peak_bytes"] = broker.rss_peak.into();
        value["rss_after_bytes"] = broker.rss_after.into();
        result["broker"] = value;
    }
    result
}

fn cpu(seconds: f64, messages: u64) -> Value {
    json!({ "cpu_s": seconds, "cpu_s_per_million": seconds / messages.max(1) as f64 * 1e6 })
}

/// The mean over the run, and the median of its intervals but the first and the last.
fn rates(outcome: &Outcome, what: Counter, seconds: f64) -> Value {
    let all: Vec<f64> = outcome.intervals.iter().map(|interval| interval.rate(what)).collect();
    let steady = if all.len() > 3 { &all[1..all.len() - 1] } else { &all[..] };
    json!({
        "mean": outcome.totals.get(what) as f64 / seconds.max(1e-9),
        "median": median(steady),
        "min": steady.iter().copied().reduce(f64::min),
        "max": steady.iter().copied().reduce(f64::max),
    })
}

fn percentiles(latency: &Percentiles) -> Value {
    let us = |ns: u64| ns as f64 / 1e3;
    json!({
        "count": latency.count,
        "min": us(latency.min),
        "mean": latency.mean / 1e3,
        "p50": us(latency.p50),
        "p75": us(latency.p75),
        "p90": us(latency.p90),
        "p95": us(latency.p95),
        "p99": us(latency.p99),
        "p999": us(latency.p999),
        "max": us(latency.max),
    })
}

fn interval(interval: &Interval) -> Value {
    let mut value = json!({
        "end_s": interval.end_s,
        "length_s": interval.length_s,
        "broker_rss_bytes": interval.broker_rss,
        "latency_us": interval.latency.as_ref().map(percentiles),
        "confirm_latency_us": interval.confirm_latency.as_ref().map(percentiles),
    });
    for what in Counter::ALL {
        value[what.name()] = interval.totals.get(what).into();
    }
    value
}

/// Fails if a file could not be written, which is to be known before a long run and not after it. Leaves it as it was.
pub fn check_writable(path: &Path) -> anyhow::Result<()> {
    let is_new = !path.exists();
    let check = || -> std::io::Result<()> {
        std::fs::OpenOptions::new().append(true).create(true).open(path)?;
        if is_new { std::fs::remove_file(path) } else { Ok(()) }
    };
    check().with_context(|| format!("writing {}", path.display()))
}

/// Writes a result; `-` is stdout.
pub(crate) fn write(result: &Value, path: &Path) -> anyhow::Result<()> {
    let text = serde_json::to_string(result)? + "\n";
    if path == Path::new("-") {
        std::io::stdout().lock().write_all(text.as_bytes()).context("writing to stdout")
    } else {
        std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
    }
}
