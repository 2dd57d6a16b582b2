//! Hot path. First in, first out, in blocks: no element is ever moved because the queue grew.
//!
//! A backlog of millions neither doubles a buffer (a stall and twice the memory at the worst moment) nor
//! keeps it afterwards: blocks are freed as they are emptied. One emptied block is kept, so that a
//! queue of steady length does not allocate. A short queue lives in `front`, which grows like any vector.
//! Far behind the front blocks are *packed*: what is alike in neighbours is written once, so that a long
//! backlog costs next to nothing per message.
//!
//! ```text
//!   front            rest
//!   [ . . . 4 5 6 ]  [ 7 ... 262 ]  ( 263 ... )  ( ... )  [ ... ]  [ ... ]
//!           ^ head     open           packed      packed    open     pushed here
//! ```
//!
//! Invariants: `front` is empty only when everything is; every block of `rest` has elements;
//! `head < front.len()` unless empty, then both are 0; the last block of `rest` is open.

use std::collections::VecDeque;

/// Elements of a block: 4 KiB of 16-byte entries.
const BLOCK: usize = 256;

/// Blocks whose directory may stay after a backlog is gone.
const DIRECTORY_KEPT: usize = 64;

/// What a packed block takes beside its bytes: its place in the directory and the allocator's rounding.
const PACKED_COST: usize = 40;

/// Blocks behind the front that stay open, so that a queue of some thousand messages never packs.
const OPEN_MIN: usize = 16;

/// What blocks can be packed of.
pub(crate) trait Pack: Sized {
    /// As few bytes as can be.
    fn pack(block: &[Self]) -> Box<[u8]>;

    /// Appends what [`pack`](Self::pack) was given.
    fn unpack(bytes: &[u8], into: &mut Vec<Self>);
}

#[derive(Debug)]
pub(crate) struct Fifo<T> {
    front: Vec<T>,
    head: usize,
    rest: VecDeque<Block<T>>,
    spare: Vec<T>,
    packed: Packed,
}

#[derive(Debug)]
enum Block<T> {
    Open(Vec<T>),
    Packed(Box<[u8]>),
}

/// How much of a fifo is packed.
#[derive(Clone, Copy, Debug, Default)]
struct Packed {
    blocks: usize,
    bytes: usize,
}

impl<T> Default for Fifo<T> {
    fn default() -> Self {
        Self {
            front: Vec::new(),
            head: 0,
            rest: VecDeque::new(),
            spare: Vec::new(),
            packed: Packed::default(),
        }
    }
}

impl<T: Copy + Pack> Fifo<T> {
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
        let mut tail = match self.rest.back_mut() {
            Some(Block::Open(tail)) => tail,
            _ => &mut self.front,
        };
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
        self.rest.push_back(Block::Open(block));
        if self.rest.len() > OPEN_MIN {
            self.pack(self.rest.len() - 2);
        }
        match self.rest.back_mut() {
            Some(Block::Open(tail)) => tail,
            _ => unreachable!("just pushed"),
        }
    }

    /// Packs a full block; its memory is the next spare one.
    fn pack(&mut self, at: usize) {
        let Some(Block::Open(block)) = self.rest.get_mut(at) else { return };
        let mut block = std::mem::take(block);
        let packed = T::pack(&block);
        self.packed.blocks += 1;
        self.packed.bytes += packed.len();
        self.rest[at] = Block::Packed(packed);
        block.clear();
        if self.spare.capacity() == 0 {
            self.spare = block;
        }
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
        match self.rest.pop_front() {
            None => return,
            Some(Block::Packed(packed)) => {
                self.packed.blocks -= 1;
                self.packed.bytes -= packed.len();
                T::unpack(&packed, &mut self.front);
            }
            Some(Block::Open(block)) => {
                let emptied = std::mem::replace(&mut self.front, block);
                if self.spare.capacity() == 0 && emptied.capacity() >= BLOCK {
                    self.spare = emptied;
                }
            }
        }
        if self.rest.is_empty() && self.rest.capacity() > DIRECTORY_KEPT {
            self.rest = VecDeque::new();
        }
    }

    /// From the front to the back.
    pub(crate) fn iter(&self) -> impl Iterator<Item = T> {
        let rest = self.rest.iter().flat_map(|block| match block {
            Block::Open(block) => block.clone(),
            Block::Packed(packed) => {
                let mut block = Vec::with_capacity(BLOCK);
                T::unpack(packed, &mut block);
                block
            }
        });
        self.front.iter().skip(self.head).copied().chain(rest)
    }

    /// Bytes that packed blocks take, and how many elements are in them.
    #[inline]
    pub(crate) fn packed(&self) -> (u64, u64) {
        let bytes = self.packed.bytes + self.packed.blocks * PACKED_COST;
        (bytes as u64, (self.packed.blocks * BLOCK) as u64)
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
            + self
                .rest
                .iter()
                .map(|block| match block {
                    Block::Open(block) => block.capacity(),
                    Block::Packed(_) => 0,
                })
                .sum::<usize>();
        elements * size_of::<T>()
            + self.rest.capacity() * size_of::<Block<T>>()
            + self.packed().0 as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    macro_rules! packed_as_it_is {
        ($($number:ty),*) => {$(
            impl Pack for $number {
                fn pack(block: &[Self]) -> Box<[u8]> {
                    block.iter().flat_map(|number| number.to_le_bytes()).collect()
                }

                fn unpack(bytes: &[u8], into: &mut Vec<Self>) {
                    let numbers = bytes.chunks_exact(size_of::<Self>());
                    into.extend(numbers.map(|one| Self::from_le_bytes(one.try_into().unwrap())));
                }
            }
        )*};
    }
    packed_as_it_is!(u64, u128);

    #[test]
    fn order_is_kept_across_blocks() {
        for keep in [0, 1, 3, 100, 255, 256, 257, 600, 4_300, 5_000, 9_000] {
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
                if pushed % 977 == 0 {
                    assert!(fifo.iter().eq(popped..pushed));
                }
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
