//! Gathering: a thread whose clients send single messages fast waits for a moment before it asks its sockets again.
//!
//! A client that writes each message by itself wakes the thread for a few messages at a time, and a wake-up costs as much as
//! they do. If the thread lets some more come before it looks, it takes them with one system call, writes what comes of them
//! with one, and the client need not share a processor with it meanwhile.
//!
//! A thread naps only
//!
//! * if it was about to sleep many times in a short while: below that rate a wake-up costs nothing that is missed;
//! * if it read messages, and nothing that somebody may wait for: a confirm, a reply, an answer, more deliveries;
//! * if naps pay: one that brought few messages is not tried again soon.
//!
//! Figures: `docs/decisions/0054-single-messages-are-gathered.md`.

use std::num::NonZeroU64;
use std::time::Duration;

use leveret_session::Brought;

/// How long a thread naps.
const NAP: Duration = Duration::from_micros(50);

/// How exact the system's clock has to be for it, in ns. Linux rounds a sleep up to 50 us.
const SLACK_NS: u64 = 2_000;

/// Naps are for threads that would sleep more often than once in so many us.
const BUSY_US: u64 = 150;

/// A longer wait says no more than this, in us.
const GAP_MAX_US: u64 = 10_000;

/// Messages that a nap has to bring: what a wake-up brings without.
const PAYS: u32 = 4;

/// After naps that did not pay the thread sleeps so many times at most before it tries the next one.
const SKIPPED_MAX: u32 = 4_096;

/// What a thread knows of its last sleeps.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    is_on: bool,
    slept_at_us: u64,
    /// Mean time from one sleep to the next, in eighths of us.
    mean: u64,
    brought: Brought,
    /// The last sleep came after a nap.
    has_napped: bool,
    /// How many sleeps follow without a nap.
    skips: u32,
    /// How many followed the last nap that did not pay.
    skipped: u32,
}

impl Gather {
    /// For a thread that naps, or for one that does not.
    pub(crate) fn new(is_on: bool) -> Self {
        if is_on {
            // Without it a nap is twice as long, and as useful.
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(SLACK_NS));
        }
        Self { is_on, mean: 8 * GAP_MAX_US, ..Self::default() }
    }

    /// A connection was read.
    #[inline]
    pub(crate) fn reads(&mut self, brought: Brought) {
        self.brought.publishes = self.brought.publishes.saturating_add(brought.publishes);
        self.brought.is_awaited |= brought.is_awaited;
    }

    /// How long the thread, which is about to sleep, naps before it looks whether it has to. `now_us` is asked for if it is
    /// needed.
    #[inline]
    pub(crate) fn sleeps(&mut self, now_us: impl FnOnce() -> u64) -> Option<Duration> {
        let brought = std::mem::take(&mut self.brought);
        if !self.is_on {
            return None;
        }
        let now_us = now_us();
        let gap = now_us.saturating_sub(std::mem::replace(&mut self.slept_at_us, now_us));
        self.mean = self.mean - self.mean / 8 + gap.min(GAP_MAX_US);
        if std::mem::take(&mut self.has_napped) {
            self.judges(brought.publishes);
        }
        if brought.publishes == 0 || brought.is_awaited || self.mean / 8 >= BUSY_US {
            return None;
        }
        if self.skips > 0 {
            self.skips -= 1;
            return None;
        }
        self.has_napped = true;
        Some(NAP)
    }

    fn judges(&mut self, publishes: u32) {
        if publishes >= PAYS {
            self.skipped = 0;
            return;
        }
        self.skipped = (2 * self.skipped).clamp(8, SKIPPED_MAX);
        self.skips = self.skipped;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: bool = false;
    const SOMEBODY: bool = true;

    /// Naps of a thread that sleeps `sleeps` times, `gap_us` from one to the next, and reads so many messages in between.
    fn naps(sleeps: u64, gap_us: u64, publishes: u32, is_awaited: bool) -> u64 {
        let mut gather = Gather { is_on: true, mean: 8 * GAP_MAX_US, ..Gather::default() };
        let mut naps = 0;
        for sleep in 1..=sleeps {
            gather.reads(Brought { publishes, is_awaited });
            naps += u64::from(gather.sleeps(|| sleep * gap_us).is_some());
        }
        naps
    }

    #[test]
    fn who_reads_single_messages_fast_naps() {
        assert!(naps(1_000, 20, PAYS, NOBODY) > 900);
    }

    #[test]
    fn who_reads_them_slowly_does_not() {
        assert_eq!(naps(1_000, BUSY_US, PAYS, NOBODY), 0);
        assert_eq!(naps(1_000, 1_000, 1, NOBODY), 0, "one per ms");
    }

    #[test]
    fn nobody_who_waits_is_kept_waiting() {
        assert_eq!(naps(1_000, 20, PAYS, SOMEBODY), 0);
        let mut gather = Gather { is_on: true, ..Gather::default() };
        gather.reads(Brought { publishes: 9, is_awaited: NOBODY });
        gather.reads(Brought { publishes: 0, is_awaited: SOMEBODY });
        gather.reads(Brought { publishes: 9, is_awaited: NOBODY });
        assert_eq!(gather.sleeps(|| 1), None, "one of them waits");
        gather.reads(Brought { publishes: 9, is_awaited: NOBODY });
        assert_eq!(gather.sleeps(|| 2), Some(NAP));
    }

    #[test]
    fn nothing_read_is_nothing_to_gather() {
        assert_eq!(naps(1_000, 20, 0, NOBODY), 0);
    }

    /// A client that publishes the next message when it got the last one waits without a word of it.
    #[test]
    fn naps_that_do_not_pay_are_rare() {
        let some = naps(20_000, 20, 1, NOBODY);
        assert!((9..=16).contains(&some), "{some}");
    }

    #[test]
    fn naps_that_pay_again_are_as_many_as_before() {
        let mut gather = Gather { is_on: true, ..Gather::default() };
        let mut now_us = 0;
        let mut naps = |publishes, sleeps| {
            let mut naps = 0;
            for _ in 0..sleeps {
                now_us += 20;
                gather.reads(Brought { publishes, is_awaited: NOBODY });
                naps += u32::from(gather.sleeps(|| now_us).is_some());
            }
            naps
        };
        assert!(naps(1, 10_000) < 20);
        assert!(naps(PAYS, 10_000) > 5_000);
    }

    #[test]
    fn one_that_is_off_does_not_nap() {
        let mut gather = Gather::default();
        gather.reads(Brought { publishes: 9, is_awaited: NOBODY });
        assert_eq!(gather.sleeps(|| unreachable!("the clock costs something")), None);
    }
}
