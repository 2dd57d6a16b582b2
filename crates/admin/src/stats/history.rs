//! Samples of some counters over time: fine ones of the last minute, coarser ones of longer ago.
//!
//! ```text
//!   tier    0: every sample, 65 s     1: every 5 s, 10 min     2: every minute, 1 h    ...
//! ```
//!
//! A sample that is too old for its tier goes to the next one if that has none so near. RabbitMQ keeps
//! the same steps (`sample_retention_policies`), but for the first. A sample that says the same as the one before is not
//! kept: the value at some moment is that of the last sample before it. So what rests costs nothing, and
//! what counts from zero has no sample before it begins to.

use std::collections::VecDeque;

/// How far apart samples of a tier are, and for how long they are kept, in seconds.
type Tier = (u32, u32);

/// Tiers of what there may be many of.
const OBJECT: &[Tier] = &[(1, 65), (5, 605), (60, 3720)];
/// The same when there are very many.
const CROWD: &[Tier] = &[(1, 65), (5, 125)];
/// Tiers of the node and its vhosts.
const GLOBAL: &[Tier] = &[(1, 65), (5, 605), (60, 3660), (600, 29_400), (1_800, 90_000)];

/// More of a kind are a crowd.
pub const CROWD_MIN: usize = 2_000;

/// A moment as samples know it: ms since the Unix epoch.
pub type Ms = u64;

/// Samples of one answer, but for the first: RabbitMQ refuses to give more.
const SAMPLES_MAX: u64 = 500;

/// Which samples are wanted: RabbitMQ's `_age` and `_incr`, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// How far back.
    pub age_s: u64,
    /// How far apart.
    pub incr_s: u64,
    /// When it was asked: none is newer.
    pub until: Ms,
}

impl Range {
    /// Whole multiples of the step, the newest first.
    fn moments(self, count_max: u64) -> impl Iterator<Item = Ms> {
        let step = self.incr_s.max(1) * 1000;
        let newest = self.until / step * step;
        let count = (self.age_s / self.incr_s.max(1)).min(count_max);
        (0..=count).map_while(move |n| newest.checked_sub(n * step))
    }
}

/// Samples of `N` counters. Takes next to nothing while all of them are zero, as they are of most things that
/// there are very many of.
#[derive(Clone, Debug, Default)]
pub struct History<const N: usize> {
    /// From then until the first sample that is kept all was zero; none if it was not, or is forgotten.
    zero_from: Option<Ms>,
    /// When it was looked at last, if all was zero until then.
    zero_at: Option<Ms>,
    counted: Option<Box<Counted<N>>>,
}

/// What is kept once something was counted.
#[derive(Clone, Debug)]
struct Counted<const N: usize> {
    tiers: Vec<VecDeque<(Ms, [u64; N])>>,
    /// The last two, whether they were kept or not.
    last: (Ms, [u64; N]),
    before: Option<(Ms, [u64; N])>,
}

/// How long samples are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// For a day: there is one of it, or a few.
    Global,
    /// For an hour.
    Object,
    /// For two minutes: there are very many.
    Crowd,
}

impl Retention {
    /// For things of which there are so many.
    pub const fn of(count: usize) -> Self {
        if count > CROWD_MIN { Self::Crowd } else { Self::Object }
    }

    const fn tiers(self) -> &'static [Tier] {
        match self {
            Self::Global => GLOBAL,
            Self::Object => OBJECT,
            Self::Crowd => CROWD,
        }
    }
}

impl<const N: usize> History<N> {
    /// The counters as they are now.
    pub fn push(&mut self, now: Ms, values: [u64; N], kept: Retention) {
        let Some(counted) = &mut self.counted else {
            if values == [0; N] {
                self.zero_from.get_or_insert(now);
                self.zero_at = Some(now);
            } else {
                let before = self.zero_at.map(|at| (at, [0; N]));
                let mut counted = Counted { tiers: Vec::new(), last: (now, values), before };
                counted.keep(now, Some(values), kept);
                self.counted = Some(Box::new(counted));
            }
            return;
        };
        let is_news = counted.last.1 != values;
        counted.before = Some(std::mem::replace(&mut counted.last, (now, values)));
        if counted.keep(now, is_news.then_some(values), kept) {
            self.zero_from = None;
        }
    }

    /// Since when all counters are what they are; none when the last two looks saw a change.
    pub fn idle_since(&self) -> Option<Ms> {
        let Some(counted) = &self.counted else {
            return self.zero_from.filter(|from| self.zero_at.is_some_and(|at| at > *from));
        };
        let (_, before) = counted.before?;
        // The newest one that was kept: it lasts until now.
        let newest = counted.tiers.iter().find_map(VecDeque::back);
        newest.filter(|_| before == counted.last.1).map(|&(ms, _)| ms)
    }

    /// What its samples take, in bytes.
    pub fn bytes(&self) -> u64 {
        let Some(counted) = &self.counted else { return 0 };
        let samples: usize = counted.tiers.iter().map(VecDeque::capacity).sum();
        (size_of::<Counted<N>>() + samples * size_of::<(Ms, [u64; N])>()) as u64
    }

    /// The counters as they were when last looked at.
    pub fn values(&self) -> [u64; N] {
        self.counted.as_ref().map_or([0; N], |counted| counted.last.1)
    }

    /// Change per second between the last two samples; negative for what is not a counter and shrinks.
    pub fn rate(&self, at: usize) -> f64 {
        let Some(counted) = &self.counted else { return 0.0 };
        let ((now, last), Some((then, before))) = (counted.last, counted.before) else {
            return 0.0;
        };
        per_second(last[at], before[at], now.saturating_sub(then))
    }

    /// The counters at some moment; none when that is longer ago than is known.
    fn at(&self, ms: Ms) -> Option<[u64; N]> {
        let kept = self.counted.as_ref().and_then(|counted| counted.at(ms));
        kept.or_else(|| self.zero_from.filter(|&from| from <= ms).map(|_| [0; N]))
    }

    /// When it was looked at last.
    pub fn looked_at(&self) -> Option<Ms> {
        self.counted.as_ref().map(|counted| counted.last.0).or(self.zero_at)
    }

    /// Samples of one counter, the newest first, at whole multiples of the step. As many as asked for, as from RabbitMQ:
    /// clients count on it. 0 where nothing is known.
    pub fn samples(&self, at: usize, range: Range) -> Vec<(Ms, u64)> {
        let sample = |ms| (ms, self.at(ms).map_or(0, |values| values[at]));
        range.moments(SAMPLES_MAX).map(sample).collect()
    }

    /// The same, but at most `count_max` and one more, and as far back as is known.
    pub fn known_samples(&self, at: usize, range: Range, count_max: u64) -> Vec<(Ms, u64)> {
        range.moments(count_max).map_while(|ms| Some((ms, self.at(ms)?[at]))).collect()
    }
}

impl<const N: usize> Counted<N> {
    /// Keeps a sample if it is news, and lets go of what is too old. True when something was forgotten.
    fn keep(&mut self, now: Ms, news: Option<[u64; N]>, kept: Retention) -> bool {
        let tiers = kept.tiers();
        if self.tiers.len() != tiers.len() {
            // What does not fit any more is let go.
            self.tiers.resize_with(tiers.len(), VecDeque::new);
        }
        self.tiers[0].extend(news.map(|values| (now, values)));
        let mut has_forgotten = false;
        for (at, &(_, span_s)) in tiers.iter().enumerate() {
            let oldest = now.saturating_sub(u64::from(span_s) * 1000);
            // One holds until the next: as long as that one is young, it is not too old.
            while self.next_after_front(at).is_some_and(|ms| ms <= oldest) {
                let Some(old) = self.tiers[at].pop_front() else { break };
                let Some(&(step_s, _)) = tiers.get(at + 1) else {
                    has_forgotten = true;
                    continue;
                };
                let coarser = &mut self.tiers[at + 1];
                let is_far = |&(ms, _): &(Ms, _)| old.0 >= ms + u64::from(step_s) * 1000;
                if coarser.back().is_none_or(is_far) {
                    coarser.push_back(old);
                }
            }
        }
        has_forgotten
    }

    fn at(&self, ms: Ms) -> Option<[u64; N]> {
        self.tiers.iter().find_map(|tier| {
            let end = tier.partition_point(|&(at, _)| at <= ms);
            end.checked_sub(1).and_then(|at| tier.get(at)).map(|&(_, values)| values)
        })
    }

    /// When the sample came that is next to the oldest one of a tier; none if a tier is empty, or has the
    /// newest of all.
    fn next_after_front(&self, at: usize) -> Option<Ms> {
        self.tiers[at].front()?;
        let finer = self.tiers[..at].iter().rev().find_map(VecDeque::front);
        self.tiers[at].get(1).or(finer).map(|&(ms, _)| ms)
    }
}

/// Change per second.
fn per_second(now: u64, then: u64, ms: u64) -> f64 {
    if ms == 0 {
        return 0.0;
    }
    (now as f64 - then as f64) * 1000.0 / ms as f64
}

/// Change per second over all samples, and their mean.
pub fn averages(samples: &[(Ms, u64)]) -> Option<(f64, f64)> {
    let (&(now, last), &(then, first)) = (samples.first()?, samples.last()?);
    let sum: f64 = samples.iter().map(|&(_, value)| value as f64).sum();
    Some((per_second(last, first, now.saturating_sub(then)), sum / samples.len() as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples that are kept.
    fn kept<const N: usize>(history: &History<N>) -> usize {
        let tiers = history.counted.iter().flat_map(|counted| &counted.tiers);
        tiers.map(VecDeque::len).sum()
    }

    /// Counts 10 per second from second 0 on.
    fn counted(seconds: impl Iterator<Item = u64>, kept: Retention) -> History<1> {
        let mut history = History::default();
        seconds.for_each(|s| history.push(s * 1000, [s * 10], kept));
        history
    }

    #[test]
    fn rates_and_samples_of_the_last_minute() {
        let history = counted((0..=120).step_by(5), Retention::Object);
        assert_eq!(history.values(), [1200]);
        assert_eq!(history.rate(0), 10.0);
        let samples = history.samples(0, Range { age_s: 20, incr_s: 5, until: 123_000 });
        let want = [(120, 1200), (115, 1150), (110, 1100), (105, 1050), (100, 1000)];
        assert_eq!(samples, want.map(|(s, value)| (s * 1000, value)));
        assert_eq!(averages(&samples), Some((10.0, 1100.0)));
        // Finer than is known.
        let range = Range { age_s: 600, incr_s: 1, until: 120_999 };
        let all = history.known_samples(0, range, 2_000);
        assert_eq!(all.len(), 121);
        assert_eq!(all[1], (119_000, 1150), "the last one before it");
    }

    #[test]
    fn there_are_as_many_samples_as_were_asked_for() {
        let until = 1_000_000;
        let range = Range { age_s: 60, incr_s: 5, until };
        let never = History::<1>::default();
        let zeros: Vec<_> = (0..=12).map(|n| (until - n * 5_000, 0)).collect();
        assert_eq!(never.samples(0, range), zeros);
        assert_eq!(never.known_samples(0, range, 500), []);
        let mut young = never;
        young.push(991_000, [7], Retention::Object);
        let samples = young.samples(0, range);
        assert_eq!(samples.len(), 13);
        assert_eq!(samples[..3], [(1_000_000, 7), (995_000, 7), (990_000, 0)]);
        let many = Range { age_s: 3_600, incr_s: 1, until: 10_000_000 };
        assert_eq!(young.samples(0, many).len() as u64, SAMPLES_MAX + 1);
    }

    #[test]
    fn older_samples_are_coarser_and_bounded() {
        let history = counted(0..=100_000, Retention::Global);
        let count = kept(&history);
        assert!(count < 450, "{count}");
        for (age_s, incr_s) in [(60, 1), (600, 5), (3_600, 60), (28_800, 600), (86_400, 1_800)] {
            let samples = history.samples(0, Range { age_s, incr_s, until: 100_000_000 });
            assert_eq!(samples.len() as u64, age_s / incr_s + 1, "{age_s}");
            for &(ms, value) in &samples {
                let off = (ms / 100).saturating_sub(value);
                assert!(off <= incr_s * 10 * 2, "{ms} {value} {incr_s}");
            }
        }
    }

    #[test]
    fn what_rests_keeps_one_sample_and_its_value() {
        let mut history = History::default();
        for s in 0..10_000 {
            history.push(s * 1000, [7], Retention::Object);
        }
        assert_eq!(kept(&history), 1);
        assert_eq!(history.rate(0), 0.0);
        let samples = history.samples(0, Range { age_s: 60, incr_s: 5, until: 9_999_000 });
        assert_eq!(samples.len(), 13);
        assert!(samples.iter().all(|&(_, value)| value == 7));
        // A burst after a long rest.
        history.push(10_000_000, [1007], Retention::Object);
        assert_eq!(history.rate(0), 1000.0);
        assert_eq!(history.samples(0, Range { age_s: 10, incr_s: 5, until: 10_000_000 }).len(), 3);
    }

    #[test]
    fn a_crowd_keeps_little() {
        let history = counted(0..=3_000, Retention::Crowd);
        let count = kept(&history);
        assert!(count < 100, "{count}");
        assert_eq!(history.samples(0, Range { age_s: 60, incr_s: 5, until: 3_000_000 }).len(), 13);
    }
}
