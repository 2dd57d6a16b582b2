//! The allocator, and how to make it give memory back.

#![allow(unsafe_code, reason = "a call into the allocator, see there")]

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Returns this thread's free memory to the system.
///
/// The allocator does so by itself while the thread allocates. What other threads free of a thread that
/// has nothing to do any more, it keeps: a backlog of gigabytes would stay when its consumers are done.
pub(crate) fn give_back() {
    // SAFETY: may be called by any thread at any time; it touches only memory that is free.
    unsafe { libmimalloc_sys::mi_collect(true) }
}
