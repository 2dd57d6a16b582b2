//! What a run has given, as a whole and interval by interval.

use crate::stats::{Counter, Percentiles, Totals};
use crate::verify::Verification;

/// What a run has given. Serializes to what `--json` writes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// The run's name.
    pub id: String,
    /// What was asked for, as the result repeats it.
    pub plan: serde_json::Value,
    /// Why it ended, in PerfTest's words.
    pub reason: String,
    /// Everything that was counted.
    pub totals: Totals,
    /// Seconds in which producers published.
    pub publish_s: f64,
    /// Seconds until the last message was consumed.
    pub consume_s: f64,
    /// The run, interval by interval.
    pub intervals: Vec<Interval>,
    /// From publish to delivery; `None` when nothing with a stamp was consumed.
    pub latency: Option<Percentiles>,
    /// From publish to confirm; `None` without confirms.
    pub confirm_latency: Option<Percentiles>,
    /// CPU of this process while the workers ran, in seconds.
    pub own_cpu_s: f64,
    /// What the broker has used, when its process was given.
    pub broker: Option<Broker>,
    /// What became of each message, when that was asked for.
    pub verification: Option<Verification>,
}

/// What the broker's process tree has used, from the first publish to the last message consumed.
#[derive(Clone, Copy, Debug)]
pub struct Broker {
    /// User and system time in seconds.
    pub cpu_s: f64,
    /// Resident memory before the run, in bytes.
    pub rss_before: u64,
    /// The most resident memory at the end of an interval, in bytes.
    pub rss_peak: u64,
    /// Resident memory after the run, in bytes.
    pub rss_after: u64,
}

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
    /// How many messages each confirm that came in it was for.
    pub confirm_size: Option<Percentiles>,
    /// Memory of the broker at its end in bytes, when that is measured.
    pub broker_rss: Option<u64>,
}

impl Outcome {
    /// Messages that CPU seconds are divided by: those published, or consumed if none were.
    pub fn messages(&self) -> u64 {
        match self.totals.get(Counter::Published) {
            0 => self.totals.get(Counter::Consumed),
            published => published,
        }
    }

    /// Mean rate over the time in which such things happened.
    pub fn rate(&self, what: Counter) -> f64 {
        let seconds = match what {
            Counter::Consumed | Counter::Redelivered | Counter::Unpacked => self.consume_s,
            _ => self.publish_s,
        };
        self.totals.get(what) as f64 / seconds.max(1e-9)
    }
}

impl Interval {
    /// How many in a second.
    pub fn rate(&self, what: Counter) -> f64 {
        self.totals.get(what) as f64 / self.length_s.max(1e-9)
    }
}
