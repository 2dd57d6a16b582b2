//! Whether a rate stays what it is, second by second.

use crate::outcome::{Run, Second, Spread};

/// How steady a run was.
pub(crate) struct Steady {
    /// The rate of the second in the middle.
    pub(crate) median: f64,
    /// That of the slowest.
    pub(crate) worst: f64,
    /// Seconds below nine tenths of the median.
    pub(crate) slow: usize,
    /// How many of them came one after the other.
    pub(crate) longest_slow: usize,
}

impl Steady {
    /// `None` of a run without seconds. The first and the last second are not whole and do not count.
    pub(crate) fn of(run: &Run) -> Option<Self> {
        let rate = |it: &Second| it.published_per_s.max(it.consumed_per_s);
        let all: Vec<f64> = run.intervals.iter().map(rate).collect();
        let steady = if all.len() > 3 { all.get(1..all.len() - 1)? } else { &all };
        let median = Spread::of(steady.to_vec())?.median;
        let is_slow: Vec<bool> = steady.iter().map(|rate| *rate < median * 0.9).collect();
        Some(Self {
            median,
            worst: steady.iter().copied().fold(f64::INFINITY, f64::min),
            slow: is_slow.iter().filter(|it| **it).count(),
            longest_slow: is_slow.split(|it| !it).map(<[bool]>::len).max().unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Median, worst, slow seconds, the most of them in a row.
    #[track_caller]
    fn check(rates: &[f64], want: Option<(f64, f64, usize, usize)>) {
        let second = |rate: &f64| Second { published_per_s: *rate, ..Second::default() };
        let run = Run { intervals: rates.iter().map(second).collect(), ..Run::default() };
        let got = Steady::of(&run).map(|it| (it.median, it.worst, it.slow, it.longest_slow));
        assert_eq!(got, want, "{rates:?}");
    }

    #[test]
    #[rustfmt::skip] // a table
    fn slow_seconds() {
        check(&[],                                              None);
        check(&[5.0],                                           Some((5.0, 5.0, 0, 0)));
        check(&[1.0, 10.0, 10.0, 10.0, 1.0],                    Some((10.0, 10.0, 0, 0))); // ends do not count
        check(&[9.0, 10.0, 8.9, 10.0, 9.0, 10.0, 10.0, 1.0],    Some((10.0, 8.9, 1, 1)));
        check(&[0.0, 9.0, 10.0, 5.0, 5.0, 10.0, 2.0, 10.0, 10.0, 0.0], Some((9.5, 2.0, 3, 2)));
    }
}
