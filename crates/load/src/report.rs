//! What the user reads: PerfTest's lines, a summary, and the same as JSON.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use anyhow::Context;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::plan::Plan;
use crate::run::Outcome;
use crate::stats::{Counter, Percentiles, Totals, median};

/// What happened between two lines.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Interval {
    /// When it ended, seconds after the start.
    pub end_s: f64,
    /// How long it was, in seconds.
    pub length_s: f64,
    /// What was counted in it.
    pub totals: Totals,
    /// From publish to delivery, of the messages that came in it.
    pub latency: Option<Percentiles>,
    /// From publish to confirm, of the confirms that came in it.
    pub confirm_latency: Option<Percentiles>,
    /// Memory of the broker at its end in bytes, when that is measured.
    pub broker_rss: Option<u64>,
}

impl Interval {
    /// How many in a second.
    pub fn rate(&self, what: Counter) -> f64 {
        self.totals.get(what) as f64 / self.length_s.max(1e-9)
    }
}

/// Where lines go, and what they begin with.
#[derive(Debug)]
pub(crate) struct Lines {
    id: String,
    to_stderr: bool,
}

impl Lines {
    /// `to_stderr` leaves stdout to something else.
    pub(crate) fn new(id: &str, to_stderr: bool) -> Self {
        Self { id: id.into(), to_stderr }
    }

    /// One line. A reader that has gone is no reason to stop a measurement.
    pub(crate) fn say(&self, text: &str) {
        let _ = if self.to_stderr {
            writeln!(std::io::stderr().lock(), "id: {}, {text}", self.id)
        } else {
            writeln!(std::io::stdout().lock(), "id: {}, {text}", self.id)
        };
    }

    /// The line of an interval, in the words of PerfTest.
    pub(crate) fn interval(&self, plan: &Plan, interval: &Interval) {
        let mut line = format!("time {:.3} s", interval.end_s);
        let mut rate = |name: &str, what| {
            let _ = write!(line, ", {name}: {:.0} msg/s", interval.rate(what));
        };
        if plan.producers > 0 {
            rate("sent", Counter::Published);
            if plan.mandatory {
                rate("returned", Counter::Returned);
            }
            if plan.confirm_window.is_some() {
                rate("confirmed", Counter::Confirmed);
                rate("nacked", Counter::Nacked);
            }
        }
        if plan.consumers > 0 {
            rate("received", Counter::Consumed);
        }
        for (name, latency) in
            [("confirm", &interval.confirm_latency), ("consumer", &interval.latency)]
        {
            if let Some(latency) = latency {
                let _ = write!(
                    line,
                    ", min/median/75th/95th/99th {name} latency: {}",
                    in_us(&five(latency))
                );
            }
        }
        self.say(&line);
    }

    /// The last lines.
    pub(crate) fn summary(&self, plan: &Plan, outcome: &Outcome) {
        let totals = &outcome.totals;
        if plan.producers > 0 {
            let count = totals.get(Counter::Published);
            let rate = count as f64 / outcome.publish_s.max(1e-9);
            self.say(&format!("sending rate avg: {rate:.0} msg/s, {count} messages"));
        }
        if plan.consumers > 0 {
            let count = totals.get(Counter::Consumed);
            let rate = count as f64 / outcome.consume_s.max(1e-9);
            self.say(&format!("receiving rate avg: {rate:.0} msg/s, {count} messages"));
        }
        for what in [Counter::Nacked, Counter::Returned, Counter::Redelivered] {
            if totals.get(what) > 0 {
                self.say(&format!("{}: {} messages", what.name(), totals.get(what)));
            }
        }
        for (name, latency) in
            [("confirm", &outcome.confirm_latency), ("consumer", &outcome.latency)]
        {
            if let Some(latency) = latency {
                self.say(&format!(
                    "{name} latency min/median/75th/95th/99th {}",
                    in_us(&five(latency))
                ));
                self.say(&format!(
                    "{name} latency mean {:.1} µs, 99.9th {:.1} µs, max {:.1} µs",
                    latency.mean / 1e3,
                    latency.p999 as f64 / 1e3,
                    latency.max as f64 / 1e3
                ));
            }
        }
        let per_million = |seconds: f64| seconds / outcome.messages().max(1) as f64 * 1e6;
        self.say(&format!(
            "tool CPU: {:.2} s, {:.3} s per million messages",
            outcome.own_cpu_s,
            per_million(outcome.own_cpu_s)
        ));
        if let Some(broker) = &outcome.broker {
            let mb = |bytes| bytes as f64 / 1e6;
            self.say(&format!(
                "broker CPU: {:.2} s, {:.3} s per million messages; RSS before/peak/after: \
                 {:.1}/{:.1}/{:.1} MB",
                broker.cpu_s,
                per_million(broker.cpu_s),
                mb(broker.rss_before),
                mb(broker.rss_peak),
                mb(broker.rss_after)
            ));
        }
    }
}

fn five(latency: &Percentiles) -> [u64; 5] {
    [latency.min, latency.p50, latency.p75, latency.p95, latency.p99]
}

fn in_us(values_ns: &[u64]) -> String {
    let texts: Vec<String> = values_ns.iter().map(|ns| (ns / 1000).to_string()).collect();
    texts.join("/") + " µs"
}

impl Serialize for Outcome {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        json(self).serialize(serializer)
    }
}

/// What a result repeats of what was asked for.
pub(crate) fn plan(plan: &Plan) -> Value {
    json!({
        "producers": plan.producers,
        "consumers": plan.consumers,
        "body_bytes": plan.body_bytes,
        "persistent": plan.persistent,
        "confirm_window": plan.confirm_window,
        "prefetch": plan.prefetch,
        "publish_rate": plan.publish_rate,
    })
}

/// The whole result.
pub(crate) fn json(outcome: &Outcome) -> Value {
    let mut result = json!({
        "id": outcome.id,
        "plan": outcome.plan,
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

/// Writes a result; `-` is stdout.
pub(crate) fn write(result: &Value, path: &Path) -> anyhow::Result<()> {
    let text = serde_json::to_string(result)? + "\n";
    if path == Path::new("-") {
        std::io::stdout().lock().write_all(text.as_bytes()).context("writing to stdout")
    } else {
        std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
    }
}
