//! When the next messages are due: a rate from a start, without drift.
//!
//! Times are nanoseconds of the machine's monotonic clock.

/// For how long messages are gathered that leave together. A producer of a high rate that wrote each as soon as it is
/// due would never rest: it would take a core from those it measures, for a system call for every few messages.
const TOGETHER_NS: f64 = 100e3;

/// A rate limit. What was missed is made up for at once, so the mean rate is the one asked for.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    start_ns: u64,
    interval_ns: f64,
    /// So many leave together.
    together: u64,
    done: u64,
}

/// What a [`Pace`] says now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// So many messages, at least one.
    Now(u64),
    /// The next ones leave after so many nanoseconds.
    After(u64),
}

impl Pace {
    /// The first message is due one interval after the start.
    pub(crate) fn new(per_second: f64, start_ns: u64) -> Self {
        let interval_ns = 1e9 / per_second;
        let together = (TOGETHER_NS / interval_ns).max(1.0) as u64;
        Self { start_ns, interval_ns, together, done: 0 }
    }

    pub(crate) fn due(&self, now_ns: u64) -> Due {
        let elapsed = now_ns.saturating_sub(self.start_ns);
        let owed = (elapsed as f64 / self.interval_ns) as u64;
        match owed.checked_sub(self.done) {
            Some(count) if count >= self.together => Due::Now(count),
            // Rounding may say "zero" while the count above still says "not yet".
            _ => Due::After(self.time_of(self.together - 1).saturating_sub(now_ns).max(1)),
        }
    }

    /// When the message after `ahead` others is meant to leave.
    pub(crate) fn time_of(&self, ahead: u64) -> u64 {
        self.start_ns + ((self.done + ahead + 1) as f64 * self.interval_ns) as u64
    }

    pub(crate) fn did(&mut self, count: u64) {
        self.done += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owed_messages_follow_the_clock() {
        const MS: u64 = 1_000_000;
        let mut pace = Pace::new(1000.0, 7);
        let at = |ms: u64| 7 + ms * MS;
        assert_eq!(pace.due(at(0)), Due::After(MS));
        assert_eq!(pace.due(at(1)), Due::Now(1));
        pace.did(1);
        assert_eq!(pace.due(at(1)), Due::After(MS));
        assert_eq!(pace.due(at(51)), Due::Now(50)); // a stall is made up for
        assert_eq!((pace.time_of(0), pace.time_of(49)), (at(2), at(51))); // from when it was meant
        pace.did(50);
        assert_eq!(pace.due(at(50)), Due::After(2 * MS));
    }

    #[test]
    fn a_high_rate_rests_between_writes() {
        let mut pace = Pace::new(1e6, 0);
        assert_eq!(pace.due(60_000), Due::After(40_000));
        assert_eq!(pace.due(130_000), Due::Now(130));
        pace.did(130);
        assert_eq!(pace.due(150_000), Due::After(80_000));
        // Below ten thousand a second each leaves at its time.
        assert_eq!(Pace::new(9999.0, 0).due(100_011), Due::Now(1));
    }
}
