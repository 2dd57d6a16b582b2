//! What came out: everything the report and the JSON file are made of.

use leveret_load::{Counter, Outcome, Percentiles};
use serde::Serialize;

use crate::case::{Case, Length, Measure};
use crate::catalogue::Experiment;
use crate::machine::Machine;

/// Everything that one command has measured.
#[derive(Debug, Serialize)]
pub(crate) struct Session {
    /// The version of this program.
    pub(crate) program: &'static str,
    /// When it began, UTC.
    pub(crate) started: String,
    /// The command, as it was given.
    pub(crate) command: String,
    /// Where it ran.
    pub(crate) machine: Machine,
    /// How long runs were.
    pub(crate) length: Length,
    /// Each message and each ack was a write of its own.
    pub(crate) flush_each: bool,
    /// The brokers, in the order of columns.
    pub(crate) brokers: Vec<Facts>,
    /// The experiments that were begun.
    pub(crate) experiments: Vec<Results>,
    /// Whether it was ended before it was done.
    pub(crate) interrupted: bool,
}

impl Results {
    /// How often cases ran.
    pub(crate) fn how_often(&self) -> String {
        match self.repeats {
            1 => "One run of each case.".to_owned(),
            count => format!("Medians of {count} runs, with the lowest and highest."),
        }
    }
}

impl Session {
    /// How the loads wrote: figures of one kind say little of the other.
    pub(crate) fn writes(&self) -> &'static str {
        if self.flush_each {
            "Each message and each ack was a write of its own (--flush-each), as with most clients."
        } else {
            "Messages that were due together were one write. With --flush-each each is a write of its own, as with most clients."
        }
    }

    /// Whether a run has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.experiments.iter().flat_map(|it| &it.measured).any(|it| it.failure.is_some())
    }

    /// The most that programs that are neither broker nor load had of all processors in any run, in percent.
    pub(crate) fn others_cpu_percent(&self) -> Option<f64> {
        let runs = self.experiments.iter().flat_map(|it| &it.measured).flat_map(|it| &it.runs);
        runs.filter_map(|run| run.others_cpu_percent).reduce(f64::max)
    }
}

/// What is known of a broker.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Facts {
    /// Product and version: a column in tables.
    pub(crate) name: String,
    /// Product, version and platform, as it tells its clients.
    pub(crate) told: String,
    /// Whether it is Leveret, and knows rules of confirms.
    pub(crate) is_leveret: bool,
    /// Where it is, without the password.
    pub(crate) uri: String,
    /// Whether it was started for this, and on which terms.
    pub(crate) started_here: bool,
    /// Whether its process was watched.
    pub(crate) is_watched: bool,
}

/// An experiment and what it gave.
#[derive(Debug, Serialize)]
pub(crate) struct Results {
    /// Which.
    pub(crate) experiment: &'static Experiment,
    /// How often each case was to run.
    pub(crate) repeats: usize,
    /// Each case on each broker that was begun.
    pub(crate) measured: Vec<Measured>,
}

/// One case on one broker.
#[derive(Debug, Serialize)]
pub(crate) struct Measured {
    /// The broker's place in [`Session::brokers`].
    pub(crate) broker: usize,
    /// What was run.
    pub(crate) case: Case,
    /// The loads, as they were given to the load tool.
    pub(crate) commands: Vec<String>,
    /// The load before them, which is not measured.
    pub(crate) prepare: Option<String>,
    /// What came of it, each time.
    pub(crate) runs: Vec<Run>,
    /// Why a run failed.
    pub(crate) failure: Option<String>,
}

/// One run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Run {
    /// How long messages were published, or consumed if none were.
    pub(crate) seconds: f64,
    /// Messages published.
    pub(crate) published: u64,
    /// Messages consumed.
    pub(crate) consumed: u64,
    /// Writes to sockets for all that.
    pub(crate) writes: u64,
    /// Their rate, over the time of publishing.
    pub(crate) published_per_s: f64,
    /// Their rate, until the last of them.
    pub(crate) consumed_per_s: f64,
    /// From publish to delivery.
    pub(crate) latency_us: Option<Times>,
    /// From publish to confirm.
    pub(crate) confirm_us: Option<Times>,
    /// CPU seconds of the broker for a million messages.
    pub(crate) broker_cpu_s_per_million: Option<f64>,
    /// The most memory of the broker's process.
    pub(crate) broker_peak_bytes: Option<u64>,
    /// CPU seconds of the load for a million messages.
    pub(crate) tool_cpu_s_per_million: f64,
    /// What programs that are neither broker nor load had of all processors, in percent. Known if
    /// the broker's process is.
    pub(crate) others_cpu_percent: Option<f64>,
    /// Second by second.
    pub(crate) intervals: Vec<Second>,
}

/// How long something took, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Times {
    /// The mean.
    pub(crate) mean: f64,
    /// Half took no longer than this.
    pub(crate) p50: f64,
    /// 99 in a hundred.
    pub(crate) p99: f64,
    /// 999 in a thousand.
    pub(crate) p999: f64,
    /// The longest.
    pub(crate) max: f64,
}

/// What happened in about a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Second {
    /// When it ended.
    pub(crate) end_s: f64,
    /// Messages published in a second.
    pub(crate) published_per_s: f64,
    /// Messages consumed in a second.
    pub(crate) consumed_per_s: f64,
    /// Memory of the broker's process at its end.
    pub(crate) broker_bytes: Option<u64>,
}

impl Run {
    /// What loads that ran at the same time gave together.
    ///
    /// Percentiles cannot be added up: the worse ones stand for all. CPU and memory are those of
    /// processes, which each load saw.
    pub(crate) fn of(outcomes: &[Outcome]) -> Self {
        let count = |what| -> u64 { outcomes.iter().map(|it| it.totals.get(what)).sum() };
        let longest =
            |seconds: fn(&Outcome) -> f64| outcomes.iter().map(seconds).fold(0.0, f64::max);
        let (published, consumed) = (count(Counter::Published), count(Counter::Consumed));
        let (publish_s, consume_s) = (longest(|it| it.publish_s), longest(|it| it.consume_s));
        let messages = if published == 0 { consumed } else { published };
        let per_million = |cpu_s: f64| cpu_s / messages.max(1) as f64 * 1e6;
        let brokers = || outcomes.iter().filter_map(|it| it.broker);
        Self {
            seconds: if published == 0 { consume_s } else { publish_s },
            published,
            consumed,
            writes: count(Counter::Writes),
            published_per_s: published as f64 / publish_s.max(1e-9),
            consumed_per_s: consumed as f64 / consume_s.max(1e-9),
            latency_us: Times::worst(outcomes.iter().filter_map(|it| it.latency.as_ref())),
            confirm_us: Times::worst(outcomes.iter().filter_map(|it| it.confirm_latency.as_ref())),
            broker_cpu_s_per_million: brokers().map(|it| per_million(it.cpu_s)).reduce(f64::max),
            broker_peak_bytes: brokers().map(|it| it.rss_peak).max(),
            tool_cpu_s_per_million: per_million(longest(|it| it.own_cpu_s)),
            others_cpu_percent: None,
            intervals: seconds(outcomes),
        }
    }
}

/// The seconds of all loads, side by side.
fn seconds(outcomes: &[Outcome]) -> Vec<Second> {
    let count = outcomes.iter().map(|it| it.intervals.len()).min().unwrap_or(0);
    let one = |index: usize| {
        let mut second = Second::default();
        for interval in outcomes.iter().filter_map(|it| it.intervals.get(index)) {
            second.end_s = second.end_s.max(interval.end_s);
            second.published_per_s += interval.rate(Counter::Published);
            second.consumed_per_s += interval.rate(Counter::Consumed);
            second.broker_bytes = second.broker_bytes.max(interval.broker_rss);
        }
        second
    };
    (0..count).map(one).collect()
}

impl Times {
    fn worst<'a>(all: impl Iterator<Item = &'a Percentiles>) -> Option<Self> {
        let us = |ns: u64| ns as f64 / 1e3;
        let each = all.map(|it| Self {
            mean: it.mean / 1e3,
            p50: us(it.p50),
            p99: us(it.p99),
            p999: us(it.p999),
            max: us(it.max),
        });
        each.reduce(|a, b| Self {
            mean: a.mean.max(b.mean),
            p50: a.p50.max(b.p50),
            p99: a.p99.max(b.p99),
            p999: a.p999.max(b.p999),
            max: a.max.max(b.max),
        })
    }
}

impl Measured {
    /// The median of a figure over the runs, and the lowest and highest.
    pub(crate) fn spread(&self, figure: impl Fn(&Run) -> Option<f64>) -> Option<Spread> {
        Spread::of(self.runs.iter().filter_map(figure).collect())
    }

    /// Its row, and its column if there are several.
    pub(crate) fn label(&self) -> String {
        if self.case.column.is_empty() {
            self.case.row.clone()
        } else {
            format!("{}, {}", self.case.row, self.case.column)
        }
    }
}

/// A figure of several runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    /// The middle one; of an even number, the mean of the two in the middle.
    pub(crate) median: f64,
    /// The lowest.
    pub(crate) low: f64,
    /// The highest.
    pub(crate) high: f64,
}

impl Spread {
    /// `None` of nothing.
    pub(crate) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (low, high) = (*values.first()?, *values.last()?);
        let upper = *values.get(values.len() / 2)?;
        let lower = *values.get((values.len() - 1) / 2)?;
        Some(Self { median: f64::midpoint(lower, upper), low, high })
    }
}

/// A row of an experiment on one broker: a case, or the second row that it has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure<'a> {
    /// The row.
    pub(crate) row: &'a str,
    /// Broker and column.
    pub(crate) series: Series,
    /// What is shown.
    pub(crate) measure: Measure,
    /// Over all runs.
    pub(crate) spread: Option<Spread>,
}

/// A column of measured figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Series {
    /// Whose.
    pub(crate) broker: usize,
    /// Which of the columns of that broker.
    pub(crate) column: &'static str,
}

impl Results {
    /// All figures, in the order of the cases.
    pub(crate) fn figures(&self) -> Vec<Figure<'_>> {
        let mut all = Vec::new();
        for it in &self.measured {
            let series = Series { broker: it.broker, column: it.case.column };
            let mut push = |row, measure: Measure| {
                let spread = it.spread(|run| measure.of(run));
                all.push(Figure { row, series, measure, spread });
            };
            push(it.case.row.as_str(), it.case.shows);
            if let Some((row, measure)) = it.case.also {
                push(row, measure);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads() {
        let spread =
            |values: &[f64]| Spread::of(values.to_vec()).map(|it| (it.low, it.median, it.high));
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[3.0]), Some((3.0, 3.0, 3.0)));
        assert_eq!(spread(&[9.0, 1.0, 4.0]), Some((1.0, 4.0, 9.0)));
        assert_eq!(spread(&[9.0, 1.0, 4.0, 6.0]), Some((1.0, 5.0, 9.0)));
    }
}
