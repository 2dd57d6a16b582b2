//! What a thread allocates, in counts: for tests, since a count cannot be argued with. Not shipped.
//!
//! A test that links this crate has its allocator. Threads are counted apart, so tests may run beside each other.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

#[derive(Clone, Copy)]
struct Counts {
    allocations: u64,
    bytes: u64,
    live_bytes: i64,
    largest: usize,
}

thread_local! {
    static COUNTS: Cell<Counts> =
        const { Cell::new(Counts { allocations: 0, bytes: 0, live_bytes: 0, largest: 0 }) };
}

/// Allocations of this thread so far; one that grows is one more.
pub fn allocations() -> u64 {
    COUNTS.get().allocations
}

/// Bytes that this thread has allocated so far, freed or not.
pub fn allocated_bytes() -> u64 {
    COUNTS.get().bytes
}

/// Bytes that this thread has allocated and not freed; it may have freed those of others.
pub fn live_bytes() -> i64 {
    COUNTS.get().live_bytes
}

/// The largest single allocation that `work` makes on this thread, in bytes.
pub fn largest(work: impl FnOnce()) -> usize {
    let set = |largest| COUNTS.set(Counts { largest, ..COUNTS.get() });
    let before = COUNTS.get().largest;
    set(0);
    work();
    let found = COUNTS.get().largest;
    set(found.max(before));
    found
}

fn allocated(size: usize, instead_of: usize) {
    // A thread that ends allocates after its counts are gone.
    let _ = COUNTS.try_with(|counts| {
        let Counts { allocations, bytes, live_bytes, largest } = counts.get();
        counts.set(Counts {
            allocations: allocations + 1,
            bytes: bytes + size as u64,
            live_bytes: live_bytes + size as i64 - instead_of as i64,
            largest: largest.max(size),
        });
    });
}

/// Counts, and hands everything on.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: everything is handed on to the system's allocator as it came.
#[expect(unsafe_code, reason = "only a global allocator sees every allocation")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        allocated(layout.size(), 0);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let _ = COUNTS.try_with(|counts| {
            let live_bytes = counts.get().live_bytes - layout.size() as i64;
            counts.set(Counts { live_bytes, ..counts.get() });
        });
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        allocated(size, layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_the_thread_does() {
        let before = (allocations(), allocated_bytes(), live_bytes());
        let largest = largest(|| {
            let mut grows: Vec<u8> = Vec::with_capacity(100);
            grows.reserve_exact(1000);
            std::hint::black_box(&mut grows);
            assert_eq!((allocations() - before.0, allocated_bytes() - before.1), (2, 1100));
            assert_eq!(live_bytes() - before.2, 1000);
        });
        assert_eq!((largest, live_bytes()), (1000, before.2));
    }
}
