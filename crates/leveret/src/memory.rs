//! The allocator, and how memory goes back to the system.

#![allow(unsafe_code, reason = "calls into the allocator and the system, see there")]

use std::ffi::{c_int, c_long, c_void};
use std::fs;
use std::sync::Once;

use rustix::mm::{Advice, madvise};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The allocator's option `purge_delay` (mimalloc.h), for which its crate has no name.
const PURGE_DELAY: c_int = 15;

/// For how long the allocator keeps free memory for its next use, in milliseconds. Its own choice is a second, in
/// which reading a backlog frees more than a hundred megabytes.
const PURGE_DELAY_MS: c_long = 50;

/// Has the allocator return memory soon, unless its own variable in the environment says when.
pub(crate) fn keep_little() {
    // SAFETY: sets a number that is looked at when memory is freed.
    unsafe { libmimalloc_sys::mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MS) }
}

/// Returns this thread's free memory to the system; the first time, the program's pages that only
/// starting has used as well.
///
/// The allocator returns memory by itself while the thread allocates. What other threads free of a thread that
/// has nothing to do any more, it keeps: a backlog of gigabytes would stay when its consumers are done.
pub(crate) fn give_back() {
    static STARTED: Once = Once::new();
    STARTED.call_once(unmap_code);
    // SAFETY: may be called by any thread at any time; it touches only memory that is free.
    unsafe { libmimalloc_sys::mi_collect(true) }
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

    #[test]
    fn the_option_is_the_one_that_is_meant() {
        const THEIRS_MS: c_long = 1000;
        // SAFETY: reads a number.
        let now = || unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) };
        assert_eq!(now(), THEIRS_MS);
        keep_little();
        assert_eq!(now(), PURGE_DELAY_MS);
    }

    #[test]
    fn code_that_was_unmapped_runs() {
        unmap_code();
        assert_eq!(code("1000-2000 r-xp 0 0 0 x"), Some((0x1000, 0x1000)));
    }
}
