//! Gathering: a thread whose clients send single messages fast waits for a moment before it asks its sockets again.
//!
//! A client that writes each message by itself wakes the thread for a few messages at a time, and a wake-up costs as much as
//! they do. If the thread lets some more come before it looks, it takes them with one system call, writes what comes of them
//! with one, and the client need not share a processor with it meanwhile.
//!
//! A thread naps only
//!
//! * if it was about to sleep many times in a short while: below that rate a wake-up costs nothing that is missed;
//! * if it read messages, and for a while nothing that somebody may wait for: a confirm, a reply, an answer, more deliveries;
//! * if naps pay, and bring half as many messages again as sleeps without a nap; or three quarters again, if these are few.
//!
//! What it reads is what its own turns read. A turn that another thread runs for it is not noted here.
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

/// After something that is awaited there are no naps for so long, in us: what its client sends next may be on its way.
const AWAITED_US: u64 = 2_000;

/// Messages that a nap has to bring, if it brings half as many again as a sleep without one.
const PAYS: u64 = 4;

/// More messages say no more than so many.
const BROUGHT_MAX: u32 = 1 << 20;

/// One in so many naps is left out, to see what comes without.
const LEFT_OUT: u32 = 32;

/// After naps that did not pay the thread sleeps so many times at most before it tries the next one.
const SKIPPED_MAX: u32 = 1_024;

/// The mean of the last eight or so, in eighths. Begins with the first of them.
#[derive(Debug, Default)]
struct Mean(u64);

impl Mean {
    fn add(&mut self, value: u64) {
        self.0 = if self.0 == 0 { 8 * value } else { self.0 - self.0 / 8 + value };
    }
}

/// What a thread knows of its last sleeps.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    slept_at_us: u64,
    /// From one sleep to the next, in us.
    gap: Mean,
    brought: Brought,
    /// Nobody waits from then on, unless something comes.
    awaited_until_us: u64,
    /// Messages that came with a sleep, and with a nap before it.
    without: Mean,
    with: Mean,
    /// The last sleep came after a nap.
    has_napped: bool,
    naps: u32,
    /// How many sleeps follow without a nap.
    skips: u32,
    /// How many followed the last nap that did not pay.
    skipped: u32,
}

impl Gather {
    /// For this thread.
    pub(crate) fn new() -> Self {
        // Without it a nap is twice as long, and as useful.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(SLACK_NS));
        Self { gap: Mean(8 * GAP_MAX_US), ..Self::default() }
    }

    /// A connection was read.
    #[inline]
    pub(crate) fn reads(&mut self, brought: Brought) {
        self.brought.publishes = self.brought.publishes.saturating_add(brought.publishes);
        self.brought.is_awaited |= brought.is_awaited;
    }

    /// How long the thread, which is about to sleep, naps before it looks whether it has to.
    pub(crate) fn sleeps(&mut self, now_us: u64) -> Option<Duration> {
        let Brought { publishes, is_awaited } = std::mem::take(&mut self.brought);
        let gap_us = now_us.saturating_sub(std::mem::replace(&mut self.slept_at_us, now_us));
        self.gap.add(gap_us.min(GAP_MAX_US));
        if is_awaited {
            self.awaited_until_us = now_us + AWAITED_US;
        }
        self.judges(publishes.min(BROUGHT_MAX));
        if publishes == 0 || now_us < self.awaited_until_us || self.gap.0 / 8 >= BUSY_US {
            return None;
        }
        if self.skips > 0 {
            self.skips -= 1;
            return None;
        }
        self.naps = self.naps.wrapping_add(1);
        self.has_napped = !self.naps.is_multiple_of(LEFT_OUT);
        self.has_napped.then_some(NAP)
    }

    /// Whether the last nap paid, if there was one.
    fn judges(&mut self, publishes: u32) {
        if !std::mem::take(&mut self.has_napped) {
            return self.without.add(publishes.into());
        }
        self.with.add(publishes.into());
        let Self { with: Mean(with), without: Mean(without), .. } = *self;
        // The second is for a client that sends one message for each wake-up, and is held up by these.
        let pays = with >= 8 * PAYS && 2 * with >= 3 * without || 4 * with >= 7 * without;
        if pays {
            self.skipped = 0;
        } else {
            self.skipped = (2 * self.skipped).clamp(8, SKIPPED_MAX);
            self.skips = self.skipped;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: bool = false;
    const SOMEBODY: bool = true;

    /// A thread that is read from.
    #[derive(Default)]
    struct Thread {
        gather: Gather,
        now_us: u64,
        naps: u64,
    }

    impl Thread {
        fn new() -> Self {
            Self {
                gather: Gather { gap: Mean(8 * GAP_MAX_US), ..Gather::default() },
                ..Self::default()
            }
        }

        /// So many messages come, and the thread sleeps.
        fn reads(&mut self, publishes: u32, is_awaited: bool) -> bool {
            self.gather.reads(Brought { publishes, is_awaited });
            let naps = self.gather.sleeps(self.now_us).is_some();
            self.naps += u64::from(naps);
            naps
        }

        /// Sleeps so many times, `gap_us` from one to the next; after a nap there are `with` messages, otherwise `without`.
        fn sleeps(&mut self, count: u64, gap_us: u64, (without, with): (u32, u32)) -> u64 {
            let before = self.naps;
            let mut has_napped = false;
            for _ in 0..count {
                self.now_us += gap_us;
                has_napped = self.reads(if has_napped { with } else { without }, NOBODY);
            }
            self.naps - before
        }
    }

    #[test]
    fn who_reads_single_messages_fast_naps() {
        assert!(Thread::new().sleeps(1_000, 20, (4, 7)) > 850);
        assert!(Thread::new().sleeps(1_000, 20, (1, 4)) > 750);
        assert!(Thread::new().sleeps(1_000, 40, (1, 2)) > 750);
        assert!(Thread::new().sleeps(1_000, 20, (2, 3)) < 40, "too few more");
    }

    #[test]
    fn who_reads_them_slowly_does_not() {
        assert_eq!(Thread::new().sleeps(1_000, BUSY_US, (4, 7)), 0);
        assert_eq!(Thread::new().sleeps(1_000, 1_000, (1, 1)), 0, "one per ms");
    }

    #[test]
    fn nothing_read_is_nothing_to_gather() {
        assert_eq!(Thread::new().sleeps(1_000, 20, (0, 0)), 0);
    }

    /// What a client sends next comes soon after what it waits for.
    #[test]
    fn nobody_who_waits_is_kept_waiting() {
        let mut thread = Thread::new();
        assert!(thread.sleeps(1_000, 20, (4, 7)) > 0);
        thread.reads(0, SOMEBODY);
        assert_eq!(thread.sleeps(AWAITED_US / 20 - 1, 20, (4, 7)), 0);
        assert!(thread.sleeps(100, 20, (4, 7)) > 0, "there was no more of it");
        let mut naps = 0;
        for _ in 0..1_000 {
            thread.now_us += AWAITED_US / 2;
            naps += u32::from(thread.reads(0, SOMEBODY));
            naps += thread.sleeps(20, 20, (4, 7)) as u32;
        }
        assert_eq!(naps, 0);
    }

    /// A client that publishes the next messages when it got the last ones waits without a word of it.
    #[test]
    fn naps_that_do_not_pay_are_rare() {
        for batch in [1, 4, 10, 1_000] {
            let naps = Thread::new().sleeps(20_000, 60, (batch, batch));
            assert!((9..=40).contains(&naps), "{naps} with {batch}");
        }
    }

    #[test]
    fn naps_that_pay_again_are_as_many_as_before() {
        let mut thread = Thread::new();
        assert!(thread.sleeps(20_000, 20, (1, 1)) < 40);
        thread.sleeps(40_000, 20, (4, 7));
        assert!(thread.sleeps(1_000, 20, (4, 7)) > 900);
    }
}
