//! Whether processors are short: threads that could run wait for one.
//!
//! Linux counts for each thread how long it was ready and did not run (`schedstat`). A broker at full load beside its
//! clients waits for a good part of the time; one whose clients wait for it, or think, hardly at all.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::long::schedstat;

/// How often a thread looks, in us, while it is at work.
const LOOK_US: u64 = 5_000;

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
    /// Whether processors are short at `now_us`. A system that does not tell is taken to have enough of them.
    #[inline]
    pub(crate) fn look(&mut self, until: &PressedUntil, now_us: u64) -> bool {
        if now_us >= self.looked_at_us + LOOK_US {
            self.look_again(until, now_us);
        }
        now_us < until.load(Ordering::Relaxed)
    }

    #[cold]
    fn look_again(&mut self, until: &PressedUntil, now_us: u64) {
        let passed_us = now_us - std::mem::replace(&mut self.looked_at_us, now_us);
        let Some(waited_ns) = Self::read() else { return };
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

    /// Nanoseconds that this thread waited for a processor since it began.
    fn read() -> Option<u64> {
        schedstat().map(|(_, waited_ns)| waited_ns)
    }
}
