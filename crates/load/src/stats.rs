//! What the worker threads count, and what is made of it.
//!
//! A worker adds to its own counters once per batch; the reporter reads all of them once per
//! interval. A worker's histogram is behind a lock that is taken once per batch and contended once
//! per interval.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use hdrhistogram::Histogram;

/// Counters and latencies of one worker. Aligned so that two workers share no cache line.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Tally {
    count: [AtomicU64; Counter::ALL.len()],
    latency_ns: Mutex<Histogram<u64>>,
    /// Confirms in a frame.
    confirm_sizes: Mutex<Histogram<u64>>,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Counter {
    /// Messages written to the broker.
    Published,
    /// Positive confirms.
    Confirmed,
    /// Negative confirms.
    Nacked,
    /// Unroutable messages that came back.
    Returned,
    /// Deliveries.
    Consumed,
    /// Those of them that were delivered before.
    Redelivered,
    /// Connections that were lost and made again.
    Reconnected,
    /// Bodies that were taken out of packed messages.
    Unpacked,
    /// Writes to the sockets of producers and consumers while they ran.
    Writes,
}

impl Counter {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Published,
        Self::Confirmed,
        Self::Nacked,
        Self::Returned,
        Self::Consumed,
        Self::Redelivered,
        Self::Reconnected,
        Self::Unpacked,
        Self::Writes,
    ];

    /// The word in lines and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Published => "published",
            Self::Confirmed => "confirmed",
            Self::Nacked => "nacked",
            Self::Returned => "returned",
            Self::Consumed => "consumed",
            Self::Redelivered => "redelivered",
            Self::Reconnected => "reconnected",
            Self::Unpacked => "unpacked",
            Self::Writes => "writes",
        }
    }
}

/// The longest latency that is told apart; longer ones count as this one.
const LATENCY_MAX_NS: u64 = 600_000_000_000;

/// An empty histogram: 1 ns to 10 minutes at three significant digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX_NS, 3).unwrap_or_else(|error| {
        unreachable!("the bounds are constants: {error}");
    })
}

/// More confirms in one frame count as so many.
const CONFIRMS_MAX: u64 = 1 << 24;

/// An empty histogram for how many confirms a frame brings.
pub(crate) fn sizes() -> Histogram<u64> {
    Histogram::new_with_bounds(1, CONFIRMS_MAX, 2).unwrap_or_else(|error| {
        unreachable!("the bounds are constants: {error}");
    })
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            count: Default::default(),
            latency_ns: Mutex::new(histogram()),
            confirm_sizes: Mutex::new(sizes()),
        }
    }
}

impl Tally {
    pub(crate) fn add(&self, what: Counter, count: u64) {
        // One writer: a load and a store are enough, and cheaper than a locked addition.
        let slot = &self.count[what as usize];
        slot.store(slot.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self, what: Counter) -> u64 {
        self.count[what as usize].load(Ordering::Relaxed)
    }

    /// Adds latencies, each with the number of messages that had it.
    pub(crate) fn record_all(&self, latencies: &[(u64, u64)]) {
        record(&self.latency_ns, latencies);
    }

    /// Adds numbers of confirms, each with the number of frames that brought so many.
    pub(crate) fn record_sizes(&self, sizes: &[(u64, u64)]) {
        record(&self.confirm_sizes, sizes);
    }

    /// Moves the latencies that were recorded since the last time into `into`.
    pub(crate) fn drain(&self, into: &mut Histogram<u64>) {
        drain(&self.latency_ns, into);
    }

    /// The same for the confirms in a frame.
    pub(crate) fn drain_sizes(&self, into: &mut Histogram<u64>) {
        drain(&self.confirm_sizes, into);
    }
}

fn record(histogram: &Mutex<Histogram<u64>>, values: &[(u64, u64)]) {
    let mut mine = histogram.lock().unwrap_or_else(PoisonError::into_inner);
    for (value, count) in values {
        mine.saturating_record_n(*value, *count);
    }
}

fn drain(histogram: &Mutex<Histogram<u64>>, into: &mut Histogram<u64>) {
    let mut mine = histogram.lock().unwrap_or_else(PoisonError::into_inner);
    if !mine.is_empty() {
        // Same bounds: adding cannot fail.
        let _ = into.add(&*mine);
        mine.reset();
    }
}

/// Sums over all workers at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals([u64; Counter::ALL.len()]);

impl Totals {
    pub(crate) fn of<'a>(tallies: impl IntoIterator<Item = &'a Tally>) -> Self {
        let mut sum = Self::default();
        for tally in tallies {
            for what in Counter::ALL {
                sum.0[what as usize] += tally.get(what);
            }
        }
        sum
    }

    /// How many there were.
    pub fn get(&self, what: Counter) -> u64 {
        self.0[what as usize]
    }

    /// What came on top of `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let mut diff = *self;
        for (new, old) in diff.0.iter_mut().zip(earlier.0) {
            *new = new.saturating_sub(old);
        }
        diff
    }
}

/// The figures of a histogram that are reported: nanoseconds, or confirms in a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Percentiles {
    /// Messages that were timed.
    pub count: u64,
    /// The shortest.
    pub min: u64,
    /// The mean.
    pub mean: f64,
    /// Half were no longer than this.
    pub p50: u64,
    /// 75 in a hundred.
    pub p75: u64,
    /// 90 in a hundred.
    pub p90: u64,
    /// 95 in a hundred.
    pub p95: u64,
    /// 99 in a hundred.
    pub p99: u64,
    /// 999 in a thousand.
    pub p999: u64,
    /// The longest.
    pub max: u64,
}

impl Percentiles {
    /// `None` when nothing was recorded.
    pub fn of(histogram: &Histogram<u64>) -> Option<Self> {
        let at = |quantile| histogram.value_at_quantile(quantile);
        (!histogram.is_empty()).then(|| Self {
            count: histogram.len(),
            min: histogram.min(),
            mean: histogram.mean(),
            p50: at(0.5),
            p75: at(0.75),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            p999: at(0.999),
            max: histogram.max(),
        })
    }
}

/// The middle of `values`; the mean of the two in the middle of an even number.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = *sorted.get((sorted.len() - 1) / 2)?;
    Some((lower + upper) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(&[9.0, 1.0, 5.0, 6.0]), Some(5.5));
    }

    #[test]
    fn tallies_add_up() {
        let tallies = [Tally::default(), Tally::default()];
        tallies[0].add(Counter::Published, 3);
        let before = Totals::of(&tallies);
        tallies[1].add(Counter::Published, 4);
        tallies[1].add(Counter::Consumed, 1);
        let diff = Totals::of(&tallies).since(&before);
        assert_eq!((diff.get(Counter::Published), diff.get(Counter::Consumed)), (4, 1));
    }

    #[test]
    fn drained_latencies_are_gone() {
        let tally = Tally::default();
        tally.record_all(&[(1000, 5)]);
        let mut all = histogram();
        tally.drain(&mut all);
        tally.drain(&mut all);
        let figures = Percentiles::of(&all).unwrap();
        assert_eq!((figures.count, figures.p50), (5, 1000));
        assert_eq!(Percentiles::of(&histogram()), None);
    }
}
