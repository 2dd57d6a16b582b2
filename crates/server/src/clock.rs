//! What time it is.
//!
//! The broker's own time begins with the system's clock and goes on by one that nobody can set: timeouts,
//! heartbeats and times to live neither stand still nor end all at once when an administrator or a time server
//! sets the system's clock. What others read (`x-death`, certificates) or another process will (when a message
//! was published) is by the system's clock, which may be a *step* away. In a cluster the next process is another node's: what most
//! nodes' clocks show bounds the step, so that one clock which is wrong stamps nothing.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use leveret_link::hello::CLOCK_MS_MAX;
use leveret_queue::Time;
use rustix::time::{ClockId, clock_gettime};

/// How often the system's clock is looked at, in ms.
const LOOK_MS: u64 = 1000;

/// Steps that are none: both clocks follow time servers in small steps, and are not read at the same moment.
const STEP_MIN_MS: u64 = 500;

struct Clock {
    /// When the broker's time began, by the system's clock and by the one that cannot be set, in microseconds.
    began_us: (u64, u64),
    /// By the broker's time.
    look_at_ms: AtomicU64,
    step_ms: AtomicI64,
}

static CLOCK: LazyLock<Clock> = LazyLock::new(|| Clock::new(system_ms(), boot_us()));

impl Clock {
    fn new(system_ms: u64, boot_us: u64) -> Self {
        let (look_at_ms, step_ms) = (AtomicU64::new(system_ms + LOOK_MS), AtomicI64::new(0));
        Self { began_us: (system_ms * 1000, boot_us), look_at_ms, step_ms }
    }

    fn now_us(&self, boot_us: u64, system_ms: impl FnOnce() -> u64) -> u64 {
        let now_us = self.began_us.0 + boot_us.saturating_sub(self.began_us.1);
        let now_ms = now_us / 1000;
        if now_ms >= self.look_at_ms.load(Ordering::Relaxed) {
            self.look_at_ms.store(now_ms + LOOK_MS, Ordering::Relaxed);
            self.look(system_ms() as i64 - now_ms as i64);
        }
        now_us
    }

    #[cold]
    fn look(&self, away_ms: i64) {
        let before = self.step_ms.load(Ordering::Relaxed);
        if away_ms.abs_diff(before) >= STEP_MIN_MS
            && self.step_ms.swap(away_ms, Ordering::Relaxed) == before
        {
            tracing::warn!(
                by_seconds = (away_ms - before) as f64 / 1e3,
                "the system's clock was set; no timeout or time to live of this process minds"
            );
        }
    }
}

/// Between which steps stamps lie, as the clocks of other nodes say, in ms.
static AMONG: [AtomicI64; 2] = [AtomicI64::new(i64::MIN), AtomicI64::new(i64::MAX)];

/// Now, as the broker counts time: ms since the Unix epoch, by the system's clock when the process began.
pub fn now() -> Time {
    now_with_us().0
}

/// [`now`], and the same moment in microseconds: for what is over within a millisecond.
pub fn now_with_us() -> (Time, u64) {
    let now_us = CLOCK.now_us(boot_us(), system_ms);
    (Time::from_ms(now_us / 1000), now_us)
}

/// How far stamps are ahead of [`now`], in ms: as far as the system's clock was set forward since the process began; negative for back.
pub fn step_ms() -> i64 {
    let [least, most] = AMONG.each_ref().map(|it| it.load(Ordering::Relaxed));
    among(CLOCK.step_ms.load(Ordering::Relaxed), least, most)
}

/// What the system's clock shows at a moment that [`now`] told, as far as [`step_ms`] knows.
pub fn wall(now: Time) -> Time {
    Time::from_ms(now.ms().saturating_add_signed(step_ms()))
}

/// What this machine's clock shows, whatever those of other nodes do.
pub(crate) fn own_wall() -> Time {
    Time::from_ms(now().ms().saturating_add_signed(CLOCK.step_ms.load(Ordering::Relaxed)))
}

/// Stamps are between these from now on, by how far what the others' clocks show is ahead of [`boot_ms`].
pub(crate) fn keep_among(ahead_ms: (i64, i64)) {
    let to_step = (boot_ms() as i64).saturating_sub(now().ms() as i64);
    for (bound, ahead_ms) in AMONG.iter().zip(<[i64; 2]>::from(ahead_ms)) {
        let is_none = [i64::MIN, i64::MAX].contains(&ahead_ms);
        let step_ms = if is_none { ahead_ms } else { ahead_ms.saturating_add(to_step) };
        bound.store(step_ms, Ordering::Relaxed);
    }
}

/// A step that others do not know is brought among theirs. Up to what a link allows it is as right as theirs.
fn among(step_ms: i64, least: i64, most: i64) -> i64 {
    let allowed = CLOCK_MS_MAX as i64;
    match step_ms {
        step if step < least.saturating_sub(allowed) => least,
        step if step > most.saturating_add(allowed) => most,
        step => step,
    }
}

fn system_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// Milliseconds of a clock that nobody sets, that does not go back, and that counts a suspended machine's sleep.
pub(crate) fn boot_ms() -> u64 {
    boot_us() / 1000
}

/// Goes on while the machine sleeps, as what waits for an hour does.
fn boot_us() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn a_step_that_others_do_not_know_is_brought_among_theirs() {
        const HOUR: i64 = 3_600_000;
        const NONE: (i64, i64) = (i64::MIN, i64::MAX);
        for (step, (least, most), want) in [
            (-HOUR,   NONE,                -HOUR),
            (-HOUR,   (-7, 5),             -7),
            (HOUR,    (-7, 5),             5),
            (-60_007, (-7, 5),             -60_007),
            (-60_008, (-7, 5),             -7),
            // Both others were set, too.
            (-HOUR,   (-HOUR, -HOUR),      -HOUR),
            (0,       (-HOUR, -HOUR),      -HOUR),
            // Of two the later one.
            (-HOUR,   (0, i64::MAX),       0),
            (HOUR,    (0, i64::MAX),       HOUR),
        ] {
            assert_eq!(among(step, least, most), want, "{step} {least} {most}");
        }
    }

    #[test]
    fn nobody_sets_it() {
        let clock = Clock::new(1_000_000, 50_999);
        let mut set = 0;
        // Passed, set by, and the step that is known then.
        for (passed, by, step) in [
            (0, 0, 0),
            (900, 7_000, 0),
            (1_000, 0, 7_000),
            (1_500, -90_000, 7_000),
            (2_100, 0, -83_000),
        ] {
            set += by;
            let system = || (1_000_000 + passed as i64 + set) as u64;
            let now_us = clock.now_us(50_999 + passed * 1000 + 7, system);
            assert_eq!(now_us, (1_000_000 + passed) * 1000 + 7);
            assert_eq!(clock.step_ms.load(Ordering::Relaxed), step, "after {passed}");
        }
        // A little is no step.
        clock.now_us(50_999 + 4_000_000, || (1_000_000 + 4_000 + set + 300) as u64);
        assert_eq!(clock.step_ms.load(Ordering::Relaxed), -83_000);
    }
}
