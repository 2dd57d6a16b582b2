//! What took long lately: turns, waits, jobs of disks. And whether their thread had a processor meanwhile.
//!
//! Hot path: one subtraction per turn, of clock reads that the thread makes anyway, and a file of the system's that is read
//! every [`LOOK_US`].
//!
//! The [watchdog](crate::watchdog) reports what takes longer than a second. This page is about what takes longer than
//! [`LONG_US`]: too short for a person to look at, and long enough for a client to feel. Where the time went is told in three
//! parts. The thread ran; it was ready and waited for a processor, which other threads had; or it slept, as for a lock. Linux
//! counts the first two for each thread (`schedstat`). A thread reads them every [`LOOK_US`] while it has turns, and once more
//! after a long one: what it finds is right but for so much of the time before.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leveret_queue::Time;

use crate::clock::{now_with_us, wall};
use crate::locks::{Rank, Ranked};

/// What takes so long is kept, in us.
pub const LONG_US: u64 = 10_000;
/// How often a thread that has turns reads what it ran and waited, in us.
pub(crate) const LOOK_US: u64 = 5_000;
/// How many are kept.
const KEPT: usize = 512;

/// Something that took long.
#[derive(Clone, Debug)]
pub struct Long {
    /// When it began, by the system's clock.
    pub began: Time,
    /// How long it took.
    pub took: Duration,
    /// What it was.
    pub what: String,
    /// Which thread it was on.
    pub thread: String,
    /// Of which the thread ran so long, and waited so long for a processor. None where the system does not tell, and for a
    /// hold of the names.
    pub of_it: Option<(Duration, Duration)>,
    /// Of which it waited so long for the names.
    pub names: Duration,
}

/// The turns that took long lately.
#[derive(Debug)]
pub(crate) struct Lately {
    kept: Ranked<VecDeque<Long>>,
    count: AtomicU64,
}

/// What disks' threads did: a log is opened before there is a node.
pub(crate) static DISKS: Lately = Lately::new();

impl Default for Lately {
    fn default() -> Self {
        Self::new()
    }
}

impl Lately {
    const fn new() -> Self {
        Self { kept: Ranked::new(Rank::Watched, VecDeque::new()), count: AtomicU64::new(0) }
    }

    /// The oldest first.
    pub(crate) fn all(&self) -> Vec<Long> {
        self.kept.lock().iter().cloned().collect()
    }

    /// How many there were since the start.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    fn keep(&self, long: Long) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut kept = self.kept.lock();
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(long);
    }

    /// Does something that is no turn, and is rare enough for two looks at the clock.
    pub(crate) fn during<T>(
        &self,
        what: impl FnOnce() -> String,
        spent: &Cell<Spent>,
        work: impl FnOnce() -> T,
    ) -> T {
        let since_us = now_with_us().1;
        NAMES_US.set(0);
        let mut before = spent.get();
        before.look(since_us);
        spent.set(before);
        let done = work();
        let now_us = now_with_us().1;
        if now_us - since_us >= LONG_US {
            before.took(self, what(), since_us, now_us);
            spent.set(before);
        }
        done
    }

    /// The names were held by a thread that runs no turns, until now.
    #[cold]
    pub(crate) fn held_names(&self, took: Duration) {
        let now_us = now_with_us().1;
        let since_us = now_us - (took.as_micros() as u64).min(now_us);
        // It waited for them before.
        NAMES_US.set(0);
        Spent::default().took(self, "a page of names is copied".to_owned(), since_us, now_us);
    }
}

thread_local! {
    /// What this thread waited for the names since its last turn ended, in us.
    static NAMES_US: Cell<u64> = const { Cell::new(0) };
}

/// Waits for the names, which another thread has.
pub(crate) fn wait_for_names<T>(wait: impl FnOnce() -> T) -> T {
    let since = Instant::now();
    let had = wait();
    NAMES_US.set(NAMES_US.get() + since.elapsed().as_micros() as u64);
    had
}

/// What a thread did with its time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    looked_at_us: u64,
    /// It ran, it waited for a processor: since it began, in ns.
    ran_ns: u64,
    waited_ns: u64,
}

impl Spent {
    /// The thread is at work at this time.
    #[inline]
    pub(crate) fn look(&mut self, now_us: u64) {
        if now_us >= self.looked_at_us + LOOK_US {
            self.look_again(now_us);
        }
    }

    #[cold]
    fn look_again(&mut self, now_us: u64) {
        let (ran_ns, waited_ns) = schedstat().unwrap_or_default();
        *self = Self { looked_at_us: now_us, ran_ns, waited_ns };
    }

    /// When it was last read.
    #[inline]
    pub(crate) fn looked_at_us(&self) -> u64 {
        self.looked_at_us
    }

    /// What the thread had waited for a processor by then, if the system tells.
    pub(crate) fn waited_ns(&self) -> Option<u64> {
        (self.ran_ns > 0).then_some(self.waited_ns)
    }

    /// A turn is over. What it waited for names counts no more.
    #[inline]
    pub(crate) fn is_over(&self) {
        NAMES_US.set(0);
    }

    /// Something took from then to now, and that is long.
    #[cold]
    pub(crate) fn took(&mut self, lately: &Lately, what: String, since_us: u64, now_us: u64) {
        let before = *self;
        self.look_again(now_us);
        let took = Duration::from_micros(now_us - since_us);
        let part = |now: u64, then: u64| Duration::from_nanos(now.saturating_sub(then)).min(took);
        let is_told = self.ran_ns > 0 && before.ran_ns > 0;
        let of_it = is_told
            .then(|| (part(self.ran_ns, before.ran_ns), part(self.waited_ns, before.waited_ns)));
        let thread = std::thread::current().name().unwrap_or("without a name").to_owned();
        let began = wall(Time::from_ms(since_us / 1000));
        let names = Duration::from_micros(NAMES_US.get()).min(took);
        lately.keep(Long { began, took, what, thread, of_it, names });
    }
}

#[cfg(test)]
impl Spent {
    pub(crate) fn read_at(looked_at_us: u64, ran_ns: u64, waited_ns: u64) -> Self {
        Self { looked_at_us, ran_ns, waited_ns }
    }
}

/// For how long this thread ran, and was ready and did not run: in ns since it began.
fn schedstat() -> Option<(u64, u64)> {
    thread_local! {
        // Kept open: one call in place of four, and a busy thread looks 200 times a second.
        static FILE: Option<File> = File::open("/proc/thread-self/schedstat").ok();
    }
    // Three numbers.
    let mut text = [0; 64];
    let len = FILE.with(|file| file.as_ref()?.read_at(&mut text, 0).ok())?;
    let mut words = std::str::from_utf8(&text[..len]).ok()?.split_ascii_whitespace();
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For something that does not come.
    fn waits(long: Duration) {
        let (_sender, receiver) = std::sync::mpsc::channel::<()>();
        assert!(receiver.recv_timeout(long).is_err());
    }

    fn sleeps(lately: &Lately, long_ms: u64) {
        lately.during(
            || "sleep".to_owned(),
            &Cell::default(),
            || waits(Duration::from_millis(long_ms)),
        );
    }

    /// A thread that slept neither ran nor waited for a processor: that is told apart.
    #[test]
    fn what_is_long_is_kept_with_its_parts() {
        let lately = Lately::default();
        sleeps(&lately, 2 * LONG_US / 1000);
        let all = lately.all();
        let [long] = &all[..] else { panic!("{all:?}") };
        assert_eq!((long.what.as_str(), lately.count()), ("sleep", 1));
        assert!(long.took >= Duration::from_micros(2 * LONG_US), "{long:?}");
        if let Some((ran, _)) = long.of_it {
            assert!(ran < long.took / 2, "{long:?}");
        }
        assert_eq!(long.names, Duration::ZERO);
    }

    #[test]
    fn what_waits_for_the_names_says_so() {
        let (lately, mut spent) = (Lately::default(), Spent::default());
        let since_us = now_with_us().1;
        wait_for_names(|| waits(Duration::from_micros(LONG_US)));
        spent.took(&lately, "a turn".to_owned(), since_us, now_with_us().1);
        spent.is_over();
        spent.took(&lately, "the next".to_owned(), since_us, since_us + LONG_US);
        let all = lately.all();
        assert!(all[0].names >= Duration::from_micros(LONG_US), "{all:?}");
        assert_eq!(all[1].names, Duration::ZERO);
    }

    #[test]
    fn the_oldest_go_first() {
        let (lately, mut spent) = (Lately::default(), Spent::default());
        for number in 0..KEPT as u64 + 3 {
            spent.took(&lately, number.to_string(), 0, LONG_US);
        }
        let all = lately.all();
        assert_eq!((all.len(), all[0].what.as_str()), (KEPT, "3"));
        assert_eq!(lately.count(), KEPT as u64 + 3);
    }
}
