//! Whether processors are short: threads that could run wait for one.
//!
//! Linux counts for each thread how long it was ready and did not run (`schedstat`). A broker at full load beside its
//! clients waits for a good part of the time; one whose clients wait for it, or think, hardly at all.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::long::{LOOK_US, Spent};

/// If a thread waits for so large a part of the time (in thousandths), processors are short.
const PART: u64 = 220;

/// How long that is believed, in us.
const BELIEVED_US: u64 = 200_000;

/// Until when processors are taken to be short, of the whole process: in us, as the broker counts time.
pub(crate) type PressedUntil = AtomicU64;

/// What a thread saw of its own waiting.
#[derive(Debug, Default)]
pub(crate) struct Pressure {
    looked_at_us: u64,
    waited_ns: u64,
    mean: u64,
}

impl Pressure {
    /// Whether processors are short at `now_us`, by what was last read of this thread. A system that does not tell is taken to
    /// have enough of them.
    #[inline]
    pub(crate) fn look(&mut self, until: &PressedUntil, spent: &Spent, now_us: u64) -> bool {
        if spent.looked_at_us() >= self.looked_at_us + LOOK_US {
            self.look_again(until, spent);
        }
        now_us < until.load(Ordering::Relaxed)
    }

    #[cold]
    fn look_again(&mut self, until: &PressedUntil, spent: &Spent) {
        let now_us = spent.looked_at_us();
        let passed_us = now_us - std::mem::replace(&mut self.looked_at_us, now_us);
        let Some(waited_ns) = spent.waited_ns() else { return };
        let waited_us = (waited_ns - self.waited_ns.min(waited_ns)) / 1000;
        let is_first = std::mem::replace(&mut self.waited_ns, waited_ns) == 0;
        let part = (waited_us * 1000 / passed_us.max(1)).min(1000);
        if !is_first {
            // One look after a rest says as much as many.
            let weight = (passed_us / LOOK_US).min(8);
            self.mean = ((8 - weight) * self.mean + weight * part) / 8;
        }
        if self.mean > PART {
            until.fetch_max(now_us + BELIEVED_US, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a thread reads of itself for its long turns is enough: nothing is read a second time.
    #[test]
    fn one_reading_counts_once() {
        let (until, mut pressure) = (PressedUntil::new(0), Pressure::default());
        let mut look = |at_us: u64, waited_us: u64, now_us: u64| {
            pressure.look(&until, &Spent::read_at(at_us, 1, 1 + waited_us * 1000), now_us)
        };
        assert!(!look(10_000, 0, 10_000), "the first one says nothing");
        // A third of the time, from then on.
        for at_us in (1..=8).map(|look| 10_000 + look * LOOK_US) {
            look(at_us, (at_us - 10_000) / 3, at_us);
        }
        let at_us = 10_000 + 8 * LOOK_US;
        assert!(!look(at_us, (at_us - 10_000) / 3, at_us));
        for at_us in (9..=16).map(|look| 10_000 + look * LOOK_US) {
            look(at_us, (at_us - 10_000) / 3, at_us);
        }
        let at_us = 10_000 + 16 * LOOK_US;
        assert!(look(at_us, 0, at_us + BELIEVED_US - 1));
        assert!(!look(at_us, 0, at_us + BELIEVED_US), "what was read once is believed once");
    }
}
