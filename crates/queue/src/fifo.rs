//! Hot path. First in, first out, in blocks: no element is ever moved because the queue grew.
//!
//! A backlog of millions neither doubles a buffer (a stall and twice the memory at the worst moment) nor
//! keeps it afterwards: blocks are freed as they are emptied. One emptied block is kept, so that a
//! queue of steady length does not allocate. A short queue lives in `front`, which grows like any vector.
//!
//! ```text
//!   front            rest
//!   [ . . . 4 5 6 ]  [ 7 ... 262 ]  [ 263 ... ]
//!           ^ head                          ^ pushed here
//! ```
//!
//! Invariants: `front` is empty only when everything is; every block of `rest` has elements;
//! `head < front.len()` unless empty, then both are 0.

use std::collections::VecDeque;

/// Elements of a block: 4 KiB of 16-byte entries.
const BLOCK: usize = 256;

/// Blocks whose directory may stay after a backlog is gone.
const DIRECTORY_KEPT: usize = 64;

#[derive(Debug)]
pub(crate) struct Fifo<T> {
    front: Vec<T>,
    head: usize,
    rest: VecDeque<Vec<T>>,
    spare: Vec<T>,
}

impl<T> Default for Fifo<T> {
    fn default() -> Self {
        Self { front: Vec::new(), head: 0, rest: VecDeque::new(), spare: Vec::new() }
    }
}

impl<T: Copy> Fifo<T> {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.front.is_empty()
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<&T> {
        self.front.get(self.head)
    }

    #[inline]
    pub(crate) fn push_back(&mut self, value: T) {
        let mut tail = self.rest.back_mut().unwrap_or(&mut self.front);
        if tail.len() == tail.capacity() {
            tail = self.make_room();
        }
        tail.push(value);
    }

    #[cold]
    fn make_room(&mut self) -> &mut Vec<T> {
        if self.rest.is_empty() {
            let len = self.front.len();
            if self.head > 0 && self.head >= len / 2 {
                self.front.drain(..self.head);
                self.head = 0;
                return &mut self.front;
            }
            if len < BLOCK {
                // 8, 16, ... BLOCK, from the start of the block.
                self.front.reserve_exact(len.max(8).min(BLOCK - len));
                return &mut self.front;
            }
        }
        let mut block = std::mem::take(&mut self.spare);
        if block.capacity() == 0 {
            block.reserve_exact(BLOCK);
        }
        self.rest.push_back(block);
        self.rest.back_mut().expect("just pushed")
    }

    #[inline]
    pub(crate) fn pop_front(&mut self) -> Option<T> {
        let value = *self.front.get(self.head)?;
        self.head += 1;
        if self.head == self.front.len() {
            self.next_block();
        }
        Some(value)
    }

    fn next_block(&mut self) {
        self.front.clear();
        self.head = 0;
        let Some(block) = self.rest.pop_front() else { return };
        let emptied = std::mem::replace(&mut self.front, block);
        if self.spare.capacity() == 0 && emptied.capacity() >= BLOCK {
            self.spare = emptied;
        }
        if self.rest.is_empty() && self.rest.capacity() > DIRECTORY_KEPT {
            self.rest = VecDeque::new();
        }
    }

    /// From the front to the back.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.front.iter().skip(self.head).chain(self.rest.iter().flatten())
    }

    /// Gives back memory that is kept for speed.
    pub(crate) fn relax(&mut self) {
        self.spare = Vec::new();
        if self.is_empty() {
            *self = Self::default();
        }
    }

    /// Bytes allocated.
    #[cfg(test)]
    pub(crate) fn allocated(&self) -> usize {
        let elements = self.front.capacity()
            + self.spare.capacity()
            + self.rest.iter().map(Vec::capacity).sum::<usize>();
        elements * size_of::<T>() + self.rest.capacity() * size_of::<Vec<T>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_kept_across_blocks() {
        for keep in [0, 1, 3, 100, 255, 256, 257, 600, 5_000] {
            let mut fifo = Fifo::default();
            let (mut pushed, mut popped) = (0_u64, 0_u64);
            while pushed < 20_000 {
                fifo.push_back(pushed);
                pushed += 1;
                while pushed - popped > keep {
                    assert_eq!(fifo.front(), Some(&popped));
                    assert_eq!(fifo.pop_front(), Some(popped));
                    popped += 1;
                }
                assert_eq!(fifo.is_empty(), pushed == popped);
            }
            while let Some(value) = fifo.pop_front() {
                assert_eq!(value, popped);
                popped += 1;
            }
            assert_eq!(popped, pushed);
            assert!(fifo.is_empty());
        }
    }

    #[test]
    fn memory_follows_length() {
        let mut fifo = Fifo::default();
        assert_eq!(fifo.allocated(), 0);
        fifo.push_back(0_u128);
        assert!(fifo.allocated() <= 8 * 16, "one message: {}", fifo.allocated());
        for value in 1..1_000_000 {
            fifo.push_back(value);
        }
        let full = fifo.allocated();
        assert!(full < 1_000_000 * 16 * 11 / 10 + 100_000, "a million: {full}");
        while fifo.pop_front().is_some() {}
        assert!(fifo.allocated() <= 3 * BLOCK * 16, "drained: {}", fifo.allocated());
        fifo.relax();
        assert_eq!(fifo.allocated(), 0);
    }
}
