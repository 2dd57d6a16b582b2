//! Parts of a file, in a few ranges.

use std::collections::BTreeMap;

/// Ranges of bytes that do not touch: where each begins, and the byte behind it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    pub(super) fn add(&mut self, start: u64, end: u64) {
        let (mut from, mut to) = (start, end);
        while let Some((&first, &last)) =
            self.0.range(..=to).next_back().filter(|(_, last)| **last >= from)
        {
            self.0.remove(&first);
            (from, to) = (from.min(first), to.max(last));
        }
        if from < to {
            self.0.insert(from, to);
        }
    }

    pub(super) fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        while let Some((&first, &last)) =
            self.0.range(..end).next_back().filter(|(_, last)| **last > start)
        {
            self.0.remove(&first);
            if first < start {
                self.0.insert(first, start);
            }
            if end < last {
                self.0.insert(end, last);
            }
        }
    }

    pub(super) fn has(&self, start: u64, end: u64) -> bool {
        self.0.range(..=start).next_back().is_some_and(|(_, last)| *last >= end)
    }

    pub(super) fn sum(&self) -> u64 {
        self.0.iter().map(|(first, last)| last.saturating_sub(*first)).fold(0, u64::saturating_add)
    }

    /// The first bytes below `end` that are neither here nor in `others`: `most` at most.
    pub(super) fn gap(&self, others: &Self, end: u64, most: u64) -> Option<(u64, u64)> {
        let mut start = 0;
        loop {
            let of = |it: &Self| it.0.range(..=start).next_back().map_or(0, |(_, last)| *last);
            let next = of(self).max(of(others)).max(start);
            if next == start {
                break;
            }
            start = next;
        }
        let of = |it: &Self| it.0.range(start..).next().map_or(end, |(first, _)| *first);
        let to = of(self).min(of(others)).min(end).min(start.saturating_add(most));
        (start < to).then_some((start, to))
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "a test may panic")]
mod tests {
    use super::*;

    /// Compared with a set of bytes.
    #[test]
    fn ranges_are_sets() {
        let mut below = crate::suite::numbers(1);
        for _ in 0..300 {
            let (mut ranges, mut bytes) = (Ranges::default(), [false; 40]);
            for _ in 0..12 {
                let start = below(40);
                let end = start + below(40 - start + 1);
                let adds = below(3) > 0;
                if adds {
                    ranges.add(start, end)
                } else {
                    ranges.remove(start, end)
                }
                bytes[start as usize..end as usize].fill(adds);
                assert_eq!(ranges.sum(), bytes.iter().filter(|it| **it).count() as u64);
                for start in 0..40 {
                    for end in start + 1..=40 {
                        let want = bytes[start..end].iter().all(|it| *it);
                        assert_eq!(ranges.has(start as u64, end as u64), want);
                    }
                }
                let first = bytes.iter().position(|it| !it);
                let gap = ranges.gap(&Ranges::default(), 40, 5);
                let want = first.map(|first| {
                    let len = bytes[first..].iter().take(5).take_while(|it| !**it).count();
                    (first as u64, (first + len) as u64)
                });
                assert_eq!(gap, want, "{ranges:?}");
            }
        }
    }
}
