//! The allocator, and how memory goes back to the system.

#![allow(unsafe_code, reason = "calls into the allocator and the system, see there")]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::fs;
use std::ptr;
use std::sync::Once;

use rustix::mm::{Advice, madvise};
use tikv_jemalloc_sys::mallctl;
use tikv_jemallocator::Jemalloc;

mod leaving;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// jemalloc, which is told when much was freed in large pieces. By itself it looks at what is to go back once in a thousand calls:
/// blocks of a backlog are fifty megabytes then, and would all go back in one go while a shard's turn waits.
struct Allocator;

/// What a piece is at least that is counted.
const LARGE: usize = 32 << 10;

/// What a thread frees in such pieces before what is due goes back: some two milliseconds' work. With a quarter of that,
/// bodies of 64 KiB cost 4 % more CPU time.
const FREED_MAX: usize = 8 << 20;

/// What is freed by a thread of its own: what a body may be only by a larger `max_message_size`. In one go the system takes ten
/// milliseconds and more for it, and the allocator gives it back in no pieces.
const HUGE: usize = 32 << 20;

thread_local! {
    /// What this thread has freed in large pieces, in bytes.
    static FREED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: each call is passed on as it is, to an allocator.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's.
        unsafe { Jemalloc.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's.
        unsafe { Jemalloc.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's.
        unsafe { Jemalloc.realloc(at, layout, size) }
    }

    #[inline]
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if layout.size() >= HUGE && leaving::take(at, layout) {
            return;
        }
        // SAFETY: the caller's.
        unsafe { Jemalloc.dealloc(at, layout) };
        if layout.size() >= LARGE {
            count_freed(layout.size());
        }
    }
}

#[cold]
fn count_freed(bytes: usize) {
    let freed = FREED.get() + bytes;
    FREED.set(freed % FREED_MAX);
    if freed >= FREED_MAX {
        // 4096 is MALLCTL_ARENAS_ALL. Those of all cores, as what a thread frees belongs to the cores that asked for it: of
        // its own alone, the rest would wait until somebody has called theirs a thousand times. One that somebody is at is
        // passed by, and one with nothing due costs a look: microseconds for a hundred cores.
        tell(c"arena.4096.decay");
    }
}

/// What the allocator is told (jemalloc(3), "tuning"), by the name it looks for when it starts.
///
/// - Memory belongs to the core that asked for it: with two cores there are two heaps to be fragmented, not one for each thread.
/// - What is free goes back after 50 ms. Its own choice is ten seconds, in which reading a backlog frees gigabytes.
/// - No huge pages, whatever the system's default: the first ones alone would be 8 MB of an idle broker.
#[unsafe(export_name = "_rjem_malloc_conf")]
static SETTINGS: Option<&'static c_char> = Some({
    let settings = c"percpu_arena:percpu,dirty_decay_ms:50,muzzy_decay_ms:0,thp:never";
    // SAFETY: a string has a first byte; the allocator reads on from there to its end.
    unsafe { &*settings.as_ptr() }
});

/// Returns this thread's free memory, and what is free of all, to the system; the first time, the program's pages that only
/// starting has used as well.
///
/// The allocator returns memory by itself while somebody allocates. What is freed last it keeps until then, and what each
/// thread keeps at hand: a backlog of gigabytes would stay when its consumers are done.
pub(crate) fn give_back() {
    static STARTED: Once = Once::new();
    STARTED.call_once(unmap_code);
    tell(c"thread.tcache.flush");
    tell(c"arena.4096.purge");
}

/// Has the allocator do something that takes no value and gives none.
fn tell(name: &CStr) {
    // SAFETY: no value is passed, and it may be called by any thread at any time; both commands touch only memory
    // that is free. An error, of a name that is not known, would be seen by the test.
    let _ = unsafe { mallctl(name.as_ptr(), ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), 0) };
}

/// Takes the pages of the program's file out of this process. Those that are needed come back from the
/// page cache, sixteen at a time; reading a configuration and recovering a directory has touched
/// several megabytes more that are not.
fn unmap_code() {
    let (Ok(program), Ok(maps)) =
        (fs::read_link("/proc/self/exe"), fs::read_to_string("/proc/self/maps"))
    else {
        return;
    };
    for line in
        maps.lines().filter(|line| program.to_str().is_some_and(|path| line.ends_with(path)))
    {
        if let Some((start, length)) = code(line) {
            // SAFETY: a mapping of a file that is never written to: what is dropped is read again. The
            // worst that may happen to a range that is gone meanwhile is an error.
            let _ = unsafe { madvise(start as *mut c_void, length, Advice::LinuxDontNeed) };
        }
    }
}

/// Start and length of a mapping of code or constants, from its line in `/proc/self/maps` (proc(5)): the constants
/// are what the file begins with. Tables of addresses, further behind, have been written to by the loader, though they
/// may not be written to any more: those, and all else, stay.
fn code(line: &str) -> Option<(usize, usize)> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let start = usize::from_str_radix(start, 16).ok()?;
    let length = usize::from_str_radix(end, 16).ok()?.checked_sub(start)?;
    let is_code = rest.starts_with("r-xp ") || rest.starts_with("r--p 00000000 ");
    is_code.then_some((start, length))
}

/// For tests that look at the memory of the process, one after the other.
#[cfg(test)]
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// What this process has in memory, in bytes.
#[cfg(test)]
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/statm").expect("statm");
    let pages = status.split(' ').nth(1).expect("resident").parse::<usize>();
    pages.expect("a number") * rustix::param::page_size()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_and_constants_are_unmapped() {
        for (line, expected) in [
            ("5000-9000 r-xp 00379000 fe:00 96 /usr/bin/leveret", Some((0x5000, 0x4000))),
            ("5000-9000 r--p 00000000 fe:00 96 /usr/bin/leveret", Some((0x5000, 0x4000))),
            ("5000-9000 r--p 00ee3000 fe:00 96 /usr/bin/leveret", None),
            ("5000-9000 rw-p 00f77000 fe:00 96 /usr/bin/leveret", None),
            ("9000-5000 r-xp 00379000 fe:00 96 /usr/bin/leveret", None),
            ("", None),
        ] {
            assert_eq!(code(line), expected, "{line}");
        }
    }

    /// The allocator's number of that name.
    fn number(name: &CStr) -> isize {
        let mut value = 0_isize;
        let mut length = size_of_val(&value);
        // SAFETY: the value has the size that is told, and the allocator refuses another one.
        let code = unsafe {
            mallctl(name.as_ptr(), (&raw mut value).cast(), &raw mut length, ptr::null_mut(), 0)
        };
        assert_eq!((code, length), (0, size_of_val(&value)), "{name:?}");
        value
    }

    #[test]
    fn the_allocator_has_read_its_settings() {
        assert_eq!(number(c"opt.dirty_decay_ms"), 50);
        assert_eq!(number(c"opt.muzzy_decay_ms"), 0);
    }

    #[test]
    fn freed_memory_goes_back() {
        const LENGTH: usize = 64 << 20;
        let _alone = ALONE.lock();
        let blocks: Vec<_> = (0..LENGTH >> 10).map(|_| vec![1_u8; 1 << 10]).collect();
        let full = resident();
        assert!(full >= LENGTH, "{full}");
        drop(blocks);
        give_back();
        let after = resident();
        assert!(after < full - LENGTH / 2, "{full} and {after}");
    }

    #[test]
    fn code_that_was_unmapped_runs() {
        unmap_code();
        assert_eq!(code("1000-2000 r-xp 0 0 0 x"), Some((0x1000, 0x1000)));
    }
}
