//! Huge pieces of memory on their way back to the system.
//!
//! Whoever drops the last reference to a body of a hundred megabytes is in the middle of a turn, and the system takes some forty
//! milliseconds for so many pages. A thread gives them back, a little at a time, so that others who ask the system for memory
//! come in between. It is there only while there is such memory.

use std::alloc::{GlobalAlloc as _, Layout};
use std::sync::{Mutex, PoisonError};

use rustix::mm::{Advice, madvise};
use tikv_jemallocator::Jemalloc;

/// Bytes that go back in one call.
const PIECE: usize = 1 << 20;

/// Memory that its owner has freed.
struct Freed {
    at: *mut u8,
    layout: Layout,
}

// SAFETY: nobody but the thread that frees it has the address any more.
unsafe impl Send for Freed {}

/// Memory that its owner has freed and the system does not have yet.
struct WaitingMemory {
    freed: Vec<Freed>,
    /// A thread is there, and looks again before it ends.
    is_served: bool,
    /// Bytes that went back this way.
    #[cfg(test)]
    gone: usize,
}

static WAITING: Mutex<WaitingMemory> = Mutex::new(WaitingMemory {
    freed: Vec::new(),
    is_served: false,
    #[cfg(test)]
    gone: 0,
});

/// Takes memory that was allocated with this layout and is freed now. False if there is no thread for it: it stays the caller's.
#[cold]
pub(super) fn take(at: *mut u8, layout: Layout) -> bool {
    let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    waiting.freed.push(Freed { at, layout });
    if !waiting.is_served {
        let thread = std::thread::Builder::new().name("leveret-memory".to_owned());
        waiting.is_served = thread.spawn(serve).is_ok();
    }
    if !waiting.is_served {
        waiting.freed.pop();
    }
    waiting.is_served
}

/// Frees what waits, until nothing does.
fn serve() {
    while let Some(Freed { at, layout }) = next() {
        give_back(at, layout.size());
        // SAFETY: it was allocated there with this layout, and whoever had it has freed it.
        unsafe { Jemalloc.dealloc(at, layout) };
        #[cfg(test)]
        {
            WAITING.lock().unwrap_or_else(PoisonError::into_inner).gone += layout.size();
        }
    }
}

fn next() -> Option<Freed> {
    let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    let next = waiting.freed.pop();
    waiting.is_served = next.is_some();
    next
}

/// Gives the pages back that lie in it whole. The allocator takes them for used, and finds nothing in them to give back later.
fn give_back(at: *mut u8, length: usize) {
    let page = rustix::param::page_size();
    let first = at.addr().next_multiple_of(page);
    let end = (at.addr() + length) & !(page - 1);
    for start in (first..end).step_by(PIECE) {
        let place = at.with_addr(start).cast();
        // SAFETY: pages of memory that nobody reads any more, private and of no file. An error leaves them to the allocator.
        let _ = unsafe { madvise(place, PIECE.min(end - start), Advice::LinuxDontNeed) };
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::{ALONE, HUGE, resident};
    use super::*;

    fn gone() -> usize {
        WAITING.lock().unwrap_or_else(PoisonError::into_inner).gone
    }

    /// Each piece goes back once, by a thread that ends afterwards; smaller ones are freed where they are dropped.
    #[test]
    fn huge_memory_leaves_by_a_thread_of_its_own() {
        const PIECES: usize = 3;
        let _alone = ALONE.lock();
        drop(vec![1_u8; HUGE - 1]);
        assert_eq!(gone(), 0);
        let pieces: Vec<_> = (0..PIECES).map(|_| vec![1_u8; HUGE]).collect();
        let full = resident();
        drop(pieces);
        let end = Instant::now() + Duration::from_secs(60);
        while gone() < PIECES * HUGE {
            assert!(Instant::now() < end, "{} bytes went back", gone());
            std::thread::yield_now();
        }
        let after = resident();
        assert!(after < full - (PIECES - 1) * HUGE, "{full} and {after}");
        while WAITING.lock().unwrap_or_else(PoisonError::into_inner).is_served {
            assert!(Instant::now() < end, "the thread is still there");
            std::thread::yield_now();
        }
    }
}
