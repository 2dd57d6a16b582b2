//! The lock of the names, which lets those have it who wait for it.
//!
//! The standard library's lock goes to whoever comes first: a thread that runs one turn after the other, or copies one page of
//! names after the other, would have it again before one that waits is awake, and that one would wait for as long as there are
//! turns or pages. So waiting is counted. A thread looks between two turns whether somebody waits, and before it reads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::locks::{Rank, RankedRw, ReadGuard, WriteGuard};
use crate::long::wait_for_names;

/// What is read by each turn, and changed by those of one actor.
#[derive(Debug)]
pub(crate) struct Names<T> {
    lock: RankedRw<T>,
    /// Threads that wait for it.
    awaited: AtomicUsize,
}

/// A thread waits for it: counted until it has it, or ends in its place.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn begin(awaited: &'a AtomicUsize) -> Self {
        awaited.fetch_add(1, Ordering::Relaxed);
        Self(awaited)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Longest time that a thread stays back for others who wait, and find it free.
const STAYS_BACK: Duration = Duration::from_millis(1);

impl<T> Names<T> {
    pub(crate) const fn new(names: T) -> Self {
        Self { lock: RankedRw::new(Rank::Names, names), awaited: AtomicUsize::new(0) }
    }

    /// Waits for it, to read: behind those who wait already.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn read(&self) -> ReadGuard<'_, T> {
        if self.awaited.load(Ordering::Relaxed) == 0
            && let Some(names) = self.lock.try_read()
        {
            return names;
        }
        wait_for_names(|| {
            self.let_others_in();
            let _waits = Waits::begin(&self.awaited);
            self.lock.read()
        })
    }

    /// Whether it can be read at this moment without a wait.
    pub(crate) fn is_free(&self) -> bool {
        self.lock.try_read().is_some()
    }

    /// Waits for it, to change.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn write(&self) -> WriteGuard<'_, T> {
        let _waits = Waits::begin(&self.awaited);
        wait_for_names(|| self.lock.write())
    }

    /// Lets those have it who wait for it, between two turns or two reads: they have been woken, and need a processor. While
    /// somebody has it nobody can be let in.
    #[inline]
    pub(crate) fn let_others_in(&self) {
        if self.awaited.load(Ordering::Relaxed) > 0 {
            self.stay_back();
        }
    }

    /// How often it gave the processor away.
    #[cold]
    fn stay_back(&self) -> usize {
        let (since, mut count) = (Instant::now(), 0);
        while self.awaited.load(Ordering::Relaxed) > 0
            && self.is_free()
            && since.elapsed() < STAYS_BACK
        {
            std::thread::yield_now();
            count += 1;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use std::thread::{Scope, ScopedJoinHandle};

    use super::*;

    /// Begins what waits for the names, and goes on when it is counted.
    #[track_caller]
    fn waiting<'s>(
        scope: &'s Scope<'s, '_>,
        names: &Names<()>,
        wait: impl FnOnce() + Send + 's,
    ) -> ScopedJoinHandle<'s, ()> {
        let waiting = scope.spawn(wait);
        while names.awaited.load(Ordering::Relaxed) == 0 {
            assert!(!waiting.is_finished(), "it did not wait, or was not counted");
            std::thread::yield_now();
        }
        waiting
    }

    /// Who gives the lock back while another thread waits, and then wants it `again` and again, does not go on before that one has
    /// it.
    #[track_caller]
    fn lets_in<T>(held: T, names: &Names<()>, wait: impl FnOnce() + Send, mut again: impl FnMut()) {
        std::thread::scope(|scope| {
            waiting(scope, names, wait);
            drop(held);
            // Once is enough but on a machine that is very busy; without it there are many thousands.
            let mut turns = 0;
            while names.awaited.load(Ordering::Relaxed) > 0 {
                again();
                turns += 1;
            }
            assert!(turns <= 100, "{turns} turns came before");
        });
        assert!(names.is_free());
    }

    /// A debug build's thread that takes it out of order panics in the place of waiting.
    #[cfg(debug_assertions)]
    #[test]
    fn who_panics_waits_no_more() {
        use std::panic::{AssertUnwindSafe, catch_unwind};
        let names = Names::new(());
        let held = names.write();
        assert!(catch_unwind(AssertUnwindSafe(|| drop(names.write()))).is_err());
        drop(held);
        assert_eq!(names.awaited.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn who_waits_is_let_in() {
        let names = Names::new(());
        let turn = || {
            drop(names.write());
            names.let_others_in();
        };
        lets_in(names.read(), &names, || drop(names.write()), turn);
        lets_in(names.write(), &names, || drop(names.read()), turn);
    }

    /// As one who copies page after page: it has no turns to look between.
    #[test]
    fn who_reads_again_and_again_lets_a_change_in() {
        let names = Names::new(());
        lets_in(names.read(), &names, || drop(names.write()), || drop(names.read()));
    }

    /// While another thread changes them nobody can be let in, and there is nothing to stay back for.
    #[test]
    fn nobody_stays_back_for_what_is_held() {
        let names = Names::new(());
        let held = names.write();
        std::thread::scope(|scope| {
            let waiting = waiting(scope, &names, || drop(names.read()));
            let looks = scope.spawn(|| names.stay_back());
            assert_eq!(looks.join().unwrap(), 0);
            assert!(!waiting.is_finished());
            drop(held);
        });
    }
}
