//! Memory to read into, used again and again.
//!
//! Hot path: one lock and one small allocation for each read of a socket.
//!
//! What is read is dropped by whoever was the last to need it, on whatever thread. Left to the allocator,
//! reads of a megabyte from a disk are some tens of megabytes of freed memory that wait to be given back,
//! and fresh pages each time; reads of a socket are in memory that is not in the cache.

use std::sync::Arc;

use bytes::Bytes;
use zeroize::Zeroize as _;

use crate::locks::{Rank, Ranked};

/// The shortest buffer; longer ones are a few times as long. One that is up to half longer than what is asked for
/// will do: what comes back is used again, and few bytes pin no long buffer.
const LEN_MIN: usize = 64 << 10;

/// Buffers that come back. Its clones have the same ones.
#[derive(Clone, Debug)]
pub struct Buffers {
    home: Arc<Ranked<Home>>,
}

/// The steps of [`Buffers::exact`].
const PAGE: usize = 4 << 10;

/// Where a buffer comes back to.
#[derive(Debug, Default)]
struct Home {
    /// Buffers are as long as what they are asked for, in steps of a page.
    is_exact: bool,
    /// The last one in is the first one out, since the cache has it.
    idle: Vec<Vec<u8>>,
    idle_bytes: usize,
    lent_bytes: usize,
    idle_max: usize,
    /// Of idle and lent ones together: above it nothing is kept.
    all_max: usize,
    /// Nobody reads: what comes back is not kept.
    is_closed: bool,
}

/// A buffer in use.
#[derive(Debug)]
pub(crate) struct Lent {
    buffer: Vec<u8>,
    len: usize,
    /// A password may be in it: it is wiped before somebody else has it.
    is_secret: bool,
    home: Arc<Ranked<Home>>,
}

impl Buffers {
    /// None yet; keeps at most `idle_max` bytes that nobody uses.
    pub(crate) fn new(idle_max: usize) -> Self {
        Self::with(idle_max, usize::MAX)
    }

    /// As [`new`](Self::new), of buffers for what stays for long: none is longer than it has to be.
    pub(crate) fn exact(idle_max: usize) -> Self {
        let buffers = Self::new(idle_max);
        buffers.home.lock().is_exact = true;
        buffers
    }

    /// None yet; keeps so many bytes, less what somebody uses.
    pub(crate) fn of_all(all_max: usize) -> Self {
        Self::with(all_max, all_max)
    }

    fn with(idle_max: usize, all_max: usize) -> Self {
        let home = Home { idle_max, all_max, ..Home::default() };
        Self { home: Arc::new(Ranked::new(Rank::Buffers, home)) }
    }

    /// A buffer of `len` bytes at least, with anything in it.
    pub(crate) fn lend(&self, len: usize) -> Lent {
        let (idle, size) = self.home.lock().take(len);
        let buffer = idle.unwrap_or_else(|| vec![0; size]);
        Lent { buffer, len: 0, is_secret: false, home: Arc::clone(&self.home) }
    }

    /// Bytes that nobody uses.
    pub(crate) fn idle_bytes(&self) -> usize {
        self.home.lock().idle_bytes
    }

    /// Gives back what is idle, and what becomes idle before the next loan.
    pub(crate) fn close(&self) {
        let mut home = self.home.lock();
        home.is_closed = true;
        home.idle = Vec::new();
        home.idle_bytes = 0;
    }
}

impl Home {
    /// The newest buffer of the right size, and that size. With none, one of it is lent all the same.
    fn take(&mut self, len: usize) -> (Option<Vec<u8>>, usize) {
        self.is_closed = false;
        let step = if self.is_exact { PAGE } else { LEN_MIN };
        let least = len.max(1).next_multiple_of(step);
        let most = if self.is_exact { least } else { least + least / 2 };
        let will_do = |buffer: &Vec<u8>| (least..=most).contains(&buffer.len());
        let Some(index) = self.idle.iter().rposition(will_do) else {
            self.lent_bytes += least;
            return (None, least);
        };
        let buffer = self.idle.remove(index);
        self.idle_bytes -= buffer.len();
        self.lent_bytes += buffer.len();
        (Some(buffer), least)
    }

    /// Keeps it; those that nobody wanted for longest go for it.
    fn put(&mut self, buffer: Vec<u8>) {
        self.lent_bytes -= buffer.len();
        if self.is_closed {
            return;
        }
        self.idle_bytes += buffer.len();
        self.idle.push(buffer);
        let most = self.idle_max.min(self.all_max.saturating_sub(self.lent_bytes));
        let mut goes = 0;
        while self.idle_bytes > most
            && let Some(buffer) = self.idle.get(goes)
        {
            self.idle_bytes -= buffer.len();
            goes += 1;
        }
        self.idle.drain(..goes);
    }
}

impl Lent {
    /// To write into.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.buffer
    }

    /// What is read into it may be a password.
    pub(crate) fn keep_secret(&mut self) {
        self.is_secret = true;
    }

    /// Its first bytes, at most all. The buffer comes back when the last part of them is dropped.
    pub(crate) fn freeze(mut self, len: usize) -> Bytes {
        self.len = len.min(self.buffer.len());
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.is_secret {
            self.buffer[..self.len].zeroize();
        }
        self.home.lock().put(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 4 << 20;

    fn read(buffers: &Buffers, len: usize, byte: u8) -> Bytes {
        let mut lent = buffers.lend(len);
        lent.bytes()[..len].fill(byte);
        lent.freeze(len)
    }

    #[test]
    fn memory_is_used_again_when_its_last_reader_has_gone() {
        let buffers = Buffers::new(MAX);
        let first = read(&buffers, 1 << 20, 1);
        let place = first.as_ptr();
        let part = first.slice(1000..2000);
        drop(first);
        let second = read(&buffers, 1 << 20, 2);
        assert_ne!(second.as_ptr(), place, "part of it is still in use");
        assert!(part.iter().all(|&byte| byte == 1));
        drop(part);
        let third = read(&buffers, 900_000, 3);
        assert_eq!((third.as_ptr(), third.len()), (place, 900_000));
        assert!(second.iter().all(|&byte| byte == 2));
    }

    #[test]
    fn secrets_are_wiped() {
        let buffers = Buffers::new(MAX);
        let mut lent = buffers.lend(LEN_MIN);
        lent.keep_secret();
        lent.bytes()[..100].fill(7);
        let place = lent.bytes().as_ptr();
        drop(lent.freeze(100));
        let mut again = buffers.lend(LEN_MIN);
        assert_eq!(again.bytes().as_ptr(), place);
        assert!(again.bytes()[..100].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn few_bytes_pin_no_large_buffer() {
        let buffers = Buffers::new(MAX);
        drop(read(&buffers, 1 << 20, 1));
        let small = read(&buffers, 1000, 2);
        assert_eq!(buffers.idle_bytes(), 1 << 20);
        drop(small);
        assert_eq!(buffers.idle_bytes(), (1 << 20) + LEN_MIN);
    }

    #[test]
    fn exact_buffers_are_for_about_the_same_length() {
        let buffers = Buffers::exact(MAX);
        let mut lent = buffers.lend(65_600);
        assert_eq!(lent.bytes().len(), 17 * PAGE);
        let place = lent.bytes().as_ptr();
        drop(lent.freeze(65_600));
        assert_eq!(buffers.idle_bytes(), 17 * PAGE);
        assert_ne!(read(&buffers, 60_000, 1).as_ptr(), place);
        assert_eq!(read(&buffers, 65_700, 2).as_ptr(), place);
    }

    #[test]
    fn what_nobody_wanted_for_longest_goes() {
        let buffers = Buffers::new(1 << 20);
        let large = read(&buffers, 1 << 20, 1);
        let small: Vec<_> = (0..16).map(|n| read(&buffers, LEN_MIN, n)).collect();
        drop(large);
        drop(small);
        assert_eq!(buffers.idle_bytes(), 1 << 20);
        assert!(buffers.home.lock().idle.iter().all(|buffer| buffer.len() == LEN_MIN));
    }

    #[test]
    fn what_is_in_use_counts_where_all_is_bounded() {
        let buffers = Buffers::of_all(1 << 20);
        let mut held: Vec<_> = (0..15).map(|n| read(&buffers, LEN_MIN, n)).collect();
        drop(read(&buffers, LEN_MIN, 15));
        assert_eq!(buffers.idle_bytes(), LEN_MIN);
        held.push(read(&buffers, LEN_MIN, 16));
        drop(read(&buffers, LEN_MIN, 17));
        assert_eq!(buffers.idle_bytes(), 0, "all that may be kept is in use");
        drop(held);
        assert_eq!(buffers.idle_bytes(), 1 << 20);
    }

    #[test]
    fn what_is_idle_is_bounded_and_given_back() {
        let buffers = Buffers::new(MAX);
        let held: Vec<_> = (0..20).map(|n| read(&buffers, 1 << 20, n)).collect();
        let kept = held[0].clone();
        drop(held);
        assert_eq!(buffers.idle_bytes(), MAX);
        buffers.close();
        drop(kept);
        assert_eq!(buffers.idle_bytes(), 0);
        drop(read(&buffers, 1 << 20, 1));
        assert_eq!(buffers.idle_bytes(), 1 << 20, "somebody reads again");
    }
}
