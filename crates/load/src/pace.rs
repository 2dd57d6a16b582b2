//! When the next messages are due: a fixed rate from a fixed start, without drift.

use std::time::{Duration, Instant};

/// A rate limit. What was missed is made up for at once, so the mean rate is the one asked for.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    start: Instant,
    per_second: f64,
    done: u64,
}

/// What a [`Pace`] says now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// So many messages, at least one.
    Now(u64),
    /// The next one is due after this time.
    After(Duration),
}

impl Pace {
    pub(crate) fn new(per_second: f64, start: Instant) -> Self {
        Self { start, per_second, done: 0 }
    }

    /// The first message is due one interval after the start.
    pub(crate) fn due(&self, now: Instant) -> Due {
        let elapsed = now.saturating_duration_since(self.start).as_secs_f64();
        let owed = (elapsed * self.per_second) as u64;
        match owed.checked_sub(self.done) {
            Some(count) if count > 0 => Due::Now(count),
            _ => {
                let at = Duration::from_secs_f64((self.done + 1) as f64 / self.per_second);
                let wait = (self.start + at).saturating_duration_since(now);
                // Rounding may say "zero" while the count above still says "not yet".
                Due::After(wait.max(Duration::from_nanos(1)))
            }
        }
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
        let start = Instant::now();
        let ms = |ms| start + Duration::from_millis(ms);
        let mut pace = Pace::new(1000.0, start);
        assert_eq!(pace.due(start), Due::After(Duration::from_millis(1)));
        assert_eq!(pace.due(ms(1)), Due::Now(1));
        pace.did(1);
        assert_eq!(pace.due(ms(1)), Due::After(Duration::from_millis(1)));
        assert_eq!(pace.due(ms(51)), Due::Now(50)); // a stall is made up for
        pace.did(50);
        assert_eq!(pace.due(ms(50)), Due::After(Duration::from_millis(2)));
    }
}
