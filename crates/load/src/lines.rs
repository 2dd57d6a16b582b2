//! What the user reads while a run goes on and at its end: PerfTest's lines.

use std::io::Write as _;

use crate::args::{Format, Options};
use crate::content::{Content, Savings};
use crate::outcome::{Interval, Outcome};
use crate::plan::Plan;
use crate::stamp::Clock;
use crate::stats::{Counter, Percentiles};

/// Percentiles of a line, in PerfTest's words.
const LATENCY: &str = "min/median/75th/95th/99th/max";

/// Which figures a run has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown {
    pub(crate) published: bool,
    pub(crate) returned: bool,
    pub(crate) confirmed: bool,
    pub(crate) received: bool,
    clock: Clock,
}

impl Shown {
    pub(crate) fn of(plan: &Plan) -> Self {
        let published = plan.publishing.producers > 0;
        Self {
            published,
            returned: published && plan.publishing.mandatory,
            confirmed: published && plan.publishing.confirm_window.is_some(),
            received: plan.consuming.consumers > 0,
            clock: plan.clock,
        }
    }

    /// The unit of latencies.
    pub(crate) fn unit(self) -> &'static str {
        if self.clock == Clock::Wall { "ms" } else { "µs" }
    }

    /// Minimum, median, 75th, 95th, 99th, maximum in that unit; zeros when nothing was timed.
    pub(crate) fn six(self, latency: Option<&Percentiles>) -> [u64; 6] {
        let unit_ns = if self.clock == Clock::Wall { 1_000_000 } else { 1000 };
        let Some(latency) = latency else { return [0; 6] };
        let Percentiles { min, p50, p75, p95, p99, max, .. } = *latency;
        [min, p50, p75, p95, p99, max].map(|ns| ns / unit_ns)
    }

    fn latency(self, latency: Option<&Percentiles>) -> String {
        let values = self.six(latency).map(|value| value.to_string());
        format!("{} {}", values.join("/"), self.unit())
    }

    /// Names and rates of an interval, in PerfTest's order.
    pub(crate) fn rates(self, interval: &Interval) -> Vec<(&'static str, f64)> {
        let rate = |what| interval.rate(what);
        [
            (self.published, "sent", Counter::Published),
            (self.returned, "returned", Counter::Returned),
            (self.confirmed, "confirmed", Counter::Confirmed),
            (self.confirmed, "nacked", Counter::Nacked),
            (self.received, "received", Counter::Consumed),
        ]
        .into_iter()
        .filter(|(is_shown, ..)| *is_shown)
        .map(|(_, name, what)| (name, rate(what)))
        .collect()
    }
}

/// A rate as PerfTest writes it: whole from ten on.
pub(crate) fn rate(value: f64) -> String {
    match value {
        0.0 => "0".into(),
        value if value < 1.0 => format!("{value:.2}"),
        value if value < 10.0 => format!("{value:.1}"),
        value => format!("{}", value as u64),
    }
}

/// Where lines go, and how they look.
#[derive(Clone, Debug)]
pub(crate) struct Lines {
    id: String,
    format: Format,
    to_stderr: bool,
    has_header: bool,
}

impl Lines {
    /// `to_stderr` leaves stdout to something else.
    pub(crate) fn new(options: &Options, to_stderr: bool) -> Self {
        let output = &options.output;
        let (id, format) = (output.id.clone(), output.metrics_format);
        Self { id, format, to_stderr, has_header: false }
    }

    /// One line as it is. A reader that has gone is no reason to stop a measurement.
    pub(crate) fn print(&self, text: &str) {
        let _ = if self.to_stderr {
            writeln!(std::io::stderr().lock(), "{text}")
        } else {
            writeln!(std::io::stdout().lock(), "{text}")
        };
    }

    /// One line under the run's name.
    pub(crate) fn say(&self, text: &str) {
        match self.format {
            Format::Default => self.print(&format!("id: {}, {text}", self.id)),
            Format::Compact => self.print(text),
        }
    }

    /// Who starts.
    pub(crate) fn starting(&self, plan: &Plan) {
        let crews = [
            ("consumer", plan.consuming.consumers, plan.consuming.channels),
            ("producer", plan.publishing.producers, plan.publishing.channels),
        ];
        for (who, count, channels) in crews {
            for number in 0..count {
                self.print(&format!("id: {}, starting {who} #{number}", self.id));
                for channel in 0..channels {
                    let text = format!("starting {who} #{number}, channel #{channel}");
                    self.print(&format!("id: {}, {text}", self.id));
                }
            }
        }
    }

    /// The line of an interval. There is none when nothing happened.
    pub(crate) fn interval(&mut self, shown: Shown, interval: &Interval) {
        if Counter::ALL.iter().all(|what| interval.totals.get(*what) == 0) {
            return;
        }
        match self.format {
            Format::Default => self.say(&spoken(shown, interval)),
            Format::Compact => {
                if !std::mem::replace(&mut self.has_header, true) {
                    self.print(&header(shown, interval));
                }
                self.print(&columns(shown, interval));
            }
        }
    }

    /// The last lines.
    pub(crate) fn summary(&self, shown: Shown, outcome: &Outcome) {
        self.print(&format!("test stopped ({})", outcome.reason));
        let rate = |what| rate(outcome.rate(what));
        self.say(&format!("sending rate avg: {} msg/s", rate(Counter::Published)));
        self.say(&format!("receiving rate avg: {} msg/s", rate(Counter::Consumed)));
        let latencies = [
            (shown.received, "consumer", &outcome.latency),
            (shown.confirmed, "confirm", &outcome.confirm_latency),
        ];
        for (is_shown, name, latency) in latencies {
            if is_shown {
                let text = shown.latency(latency.as_ref());
                self.say(&format!("{name} latency {LATENCY} {text}"));
            }
            if let Some(latency) = latency {
                self.say(&format!(
                    "{name} latency mean {:.1} µs, 99.9th {:.1} µs",
                    latency.mean / 1e3,
                    latency.p999 as f64 / 1e3
                ));
            }
        }
        let counts = Counter::ALL.map(|what| (what.name(), outcome.totals.get(what)));
        let counts = counts.iter().filter(|(_, count)| *count > 0);
        let counts: Vec<String> = counts.map(|(name, count)| format!("{name} {count}")).collect();
        self.say(&format!("counted: {}", counts.join(", ")));
        self.costs(outcome);
        if let Some(verification) = &outcome.verification {
            let verdict = if verification.is_good() { "good" } else { "NOT GOOD" };
            self.say(&format!("verification {verdict}: {verification}"));
        }
    }

    /// What packing and compressing came to.
    pub(crate) fn savings(&self, content: &Content, outcome: &Outcome) {
        if let Some(count) = content.packed {
            let sent = outcome.rate(Counter::Published) * count as f64;
            let received = outcome.rate(Counter::Unpacked);
            self.say(&format!(
                "packed {count} in a message: sending rate avg {}, receiving rate avg {} bodies/s",
                rate(sent),
                rate(received)
            ));
        }
        if let Some(Savings { before, after, took, bodies }) = content.compressed {
            let each = |all: f64| all / bodies.max(1) as f64;
            self.say(&format!(
                "compressed bodies: {:.0} -> {:.0} bytes ({:.0} %), {:.0} µs each",
                each(before as f64),
                each(after as f64),
                after as f64 / before.max(1) as f64 * 100.0,
                each(took.as_secs_f64() * 1e6)
            ));
        }
    }

    fn costs(&self, outcome: &Outcome) {
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

/// Each figure with its name.
fn spoken(shown: Shown, interval: &Interval) -> String {
    let mut line = format!("time {:.3} s", interval.end_s);
    for (name, value) in shown.rates(interval) {
        line += &format!(", {name}: {} msg/s", rate(value));
    }
    if shown.received || shown.confirmed {
        line += &format!(", {LATENCY} ");
    }
    if shown.received {
        line += &format!("consumer latency: {}", shown.latency(interval.latency.as_ref()));
    }
    if shown.received && shown.confirmed {
        line += ", ";
    }
    if shown.confirmed {
        line += &format!("confirm latency: {}", shown.latency(interval.confirm_latency.as_ref()));
    }
    line
}

fn header(shown: Shown, interval: &Interval) -> String {
    let mut line = format!("{:<9}", "time");
    for (name, _) in shown.rates(interval) {
        line += &format!("{name:>13}");
    }
    if shown.received {
        line += &format!("{:>27}", "consumer latency");
    }
    if shown.confirmed {
        line += &format!("{:>27}", "confirm latency");
    }
    line
}

fn columns(shown: Shown, interval: &Interval) -> String {
    let mut line = format!("{:<9}", format!("{:.3} s", interval.end_s));
    for (_, value) in shown.rates(interval) {
        line += &format!("{:>13}", format!("{} msg/s", rate(value)));
    }
    let latencies =
        [(shown.received, &interval.latency), (shown.confirmed, &interval.confirm_latency)];
    for (_, latency) in latencies.into_iter().filter(|(is_shown, _)| *is_shown) {
        line += &format!(" {:>26}", shown.latency(latency.as_ref()));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{Tally, Totals};

    fn shown() -> Shown {
        Shown {
            published: true,
            returned: false,
            confirmed: true,
            received: true,
            clock: Clock::Monotonic,
        }
    }

    fn interval() -> Interval {
        let tally = Tally::default();
        tally.add(Counter::Published, 2001);
        tally.add(Counter::Confirmed, 11);
        tally.add(Counter::Consumed, 1);
        let latency = Percentiles { min: 1999, max: 7_000_000, ..Percentiles::default() };
        Interval {
            end_s: 4.0,
            length_s: 2.0,
            totals: Totals::of([&tally]),
            latency: Some(latency),
            confirm_latency: None,
            confirm_size: None,
            broker_rss: None,
        }
    }

    #[test]
    fn lines_are_perftests() {
        assert_eq!(
            spoken(shown(), &interval()),
            "time 4.000 s, sent: 1000 msg/s, confirmed: 5.5 msg/s, nacked: 0 msg/s, received: 0.50 msg/s, \
             min/median/75th/95th/99th/max consumer latency: 1/0/0/0/0/7000 µs, \
             confirm latency: 0/0/0/0/0/0 µs"
        );
        let wall = Shown { clock: Clock::Wall, confirmed: false, ..shown() };
        assert!(spoken(wall, &interval()).ends_with("consumer latency: 0/0/0/0/0/7 ms"));
    }

    #[test]
    fn columns_stand_under_their_names() {
        let (header, columns) = (header(shown(), &interval()), columns(shown(), &interval()));
        let end = |line: &str, word| line.find(word).map(|at| at + str::len(word));
        assert_eq!(end(&header, "sent"), end(&columns, "1000 msg/s"));
        assert_eq!(end(&header, "received"), end(&columns, "0.50 msg/s"));
        assert_eq!(end(&header, "consumer latency").map(|at| at + 1), end(&columns, "7000 µs"));
    }
}
