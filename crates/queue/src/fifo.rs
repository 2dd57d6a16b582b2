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

use crate::look::{Keyed, Lowest};

/// Elements of a block: 4 KiB of 16-byte entries.
const BLOCK: usize = 256;

/// Blocks whose directory may stay after a backlog is gone.
const DIRECTORY_KEPT: usize = 64;

/// What a packed block takes beside its bytes: its place in the directory and the allocator's rounding.
const PACKED_COST: usize = 48;

/// Blocks behind the front that stay open, so that a queue of a thousand messages never packs: packing costs some
/// seventy instructions a message, and an allocation for each block. With a thousand queues they are 16 MiB.
const OPEN_MIN: usize = 4;

/// What blocks can be packed of.
pub(crate) trait Pack: Keyed + Sized {
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
    Packed {
        bytes: Box<[u8]>,
        /// The least and the greatest key in it.
        keys: (u64, u64),
    },
}

/// How much of a fifo is packed.
#[derive(Clone, Copy, Debug, Default)]
struct Packed {
    blocks: usize,
    bytes: usize,
    elements: usize,
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
        if self.rest.len() >= OPEN_MIN {
            self.pack(self.rest.len() - 1);
        }
        let mut block = std::mem::take(&mut self.spare);
        if block.capacity() == 0 {
            block.reserve_exact(BLOCK);
        }
        self.rest.push_back(Block::Open(block));
        match self.rest.back_mut() {
            Some(Block::Open(tail)) => tail,
            _ => unreachable!("just pushed"),
        }
    }

    /// Packs a full block; its memory is the next spare one.
    fn pack(&mut self, at: usize) {
        let Some(Block::Open(block)) = self.rest.get_mut(at) else { return };
        let mut block = std::mem::take(block);
        let packed = Block::pack(&block);
        self.packed.add(&packed, block.len());
        self.rest[at] = packed;
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
            Some(Block::Packed { bytes, .. }) => {
                T::unpack(&bytes, &mut self.front);
                self.packed.remove(&bytes, self.front.len());
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
            Block::Packed { bytes, .. } => {
                let mut block = Vec::with_capacity(BLOCK);
                T::unpack(bytes, &mut block);
                block
            }
        });
        self.front.iter().skip(self.head).copied().chain(rest)
    }

    /// Offers its elements, but not those of packed blocks that are not wanted as a whole.
    pub(crate) fn search(&self, lowest: &mut Lowest<T>) {
        self.front.iter().skip(self.head).for_each(|&value| lowest.offer(value));
        let mut unpacked = Vec::new();
        for block in &self.rest {
            let block = match block {
                Block::Open(block) => block,
                Block::Packed { keys: (least, greatest), .. }
                    if !lowest.wants(*least, *greatest) =>
                {
                    continue;
                }
                Block::Packed { bytes, .. } => {
                    unpacked.clear();
                    T::unpack(bytes, &mut unpacked);
                    &unpacked
                }
            };
            block.iter().for_each(|&value| lowest.offer(value));
        }
    }

    /// Takes those out that have one of these keys, wherever they are. The keys ascend.
    #[cold]
    pub(crate) fn take(&mut self, keys: &[u64], taken: &mut Vec<T>) {
        let mut take_of = |block: &mut Vec<T>| {
            let (before, is_wanted) = (taken.len(), |one: &T| is_in(keys, one));
            taken.extend(block.extract_if(.., |one| is_wanted(one)));
            taken.len() > before
        };
        self.front.drain(..std::mem::take(&mut self.head));
        take_of(&mut self.front);
        for block in &mut self.rest {
            match block {
                Block::Open(open) => _ = take_of(open),
                Block::Packed { bytes, keys: range } if reaches(keys, *range) => {
                    let mut unpacked = Vec::with_capacity(BLOCK);
                    T::unpack(bytes, &mut unpacked);
                    let before = unpacked.len();
                    if take_of(&mut unpacked) {
                        self.packed.remove(bytes, before);
                        *block = if unpacked.is_empty() {
                            Block::Open(unpacked)
                        } else {
                            let packed = Block::pack(&unpacked);
                            self.packed.add(&packed, unpacked.len());
                            packed
                        };
                    }
                }
                Block::Packed { .. } => {}
            }
        }
        self.rest.retain(|block| !matches!(block, Block::Open(open) if open.is_empty()));
        if let Some(last) = self.rest.back_mut()
            && let Block::Packed { bytes, .. } = last
        {
            let mut open = Vec::with_capacity(BLOCK);
            T::unpack(bytes, &mut open);
            self.packed.remove(bytes, open.len());
            *last = Block::Open(open);
        }
        if self.front.is_empty() {
            self.next_block();
        }
    }

    /// Bytes that packed blocks take, and how many elements are in them.
    #[inline]
    pub(crate) fn packed(&self) -> (u64, u64) {
        let bytes = self.packed.bytes + self.packed.blocks * PACKED_COST;
        (bytes as u64, self.packed.elements as u64)
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
                    Block::Packed { .. } => 0,
                })
                .sum::<usize>();
        elements * size_of::<T>()
            + self.rest.capacity() * size_of::<Block<T>>()
            + self.packed().0 as usize
    }
}

impl<T: Pack> Block<T> {
    fn pack(block: &[T]) -> Self {
        let keys = |least: (u64, u64), one: &T| (least.0.min(one.key()), least.1.max(one.key()));
        Self::Packed { bytes: T::pack(block), keys: block.iter().fold((u64::MAX, 0), keys) }
    }
}

impl Packed {
    fn add<T>(&mut self, block: &Block<T>, elements: usize) {
        if let Block::Packed { bytes, .. } = block {
            self.blocks += 1;
            self.bytes += bytes.len();
            self.elements += elements;
        }
    }

    fn remove(&mut self, bytes: &[u8], elements: usize) {
        self.blocks -= 1;
        self.bytes -= bytes.len();
        self.elements -= elements;
    }
}

fn is_in(keys: &[u64], one: &impl Keyed) -> bool {
    keys.binary_search(&one.key()).is_ok()
}

/// Whether one of the keys is from `least` to `greatest`.
fn reaches(keys: &[u64], (least, greatest): (u64, u64)) -> bool {
    let next = keys.partition_point(|&key| key < least);
    keys.get(next).is_some_and(|&key| key <= greatest)
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Keyed for u128 {
        fn key(&self) -> u64 {
            *self as u64
        }
    }

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

    /// Out of the middle, against a plain list; then it goes on as a fifo.
    #[test]
    fn some_are_taken_wherever_they_are() {
        let mut number = 1_u64;
        let mut random = move |below: u64| {
            number = number.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (number >> 33) % below
        };
        for round in 0..20 {
            let mut fifo = Fifo::default();
            let mut model: VecDeque<u64> = VecDeque::new();
            let mut next = 0;
            for _ in 0..40 {
                for _ in 0..random(600) {
                    // Nearly in order, as with transactions.
                    let value = if random(50) == 0 { next ^ 1 } else { next };
                    next += 2;
                    fifo.push_back(value);
                    model.push_back(value);
                }
                for _ in 0..random(300) {
                    assert_eq!(fifo.pop_front(), model.pop_front());
                }
                let few = if round % 2 == 0 { 3 } else { 1_000 };
                let from = random(next + 1);
                let keys = from..next.min(from + random(few));
                let mut taken = Vec::new();
                fifo.take(&keys.clone().collect::<Vec<_>>(), &mut taken);
                let wanted = |value: &u64| keys.contains(value);
                assert!(taken.iter().copied().eq(model.iter().copied().filter(wanted)));
                model.retain(|value| !wanted(value));
                assert!(fifo.iter().eq(model.iter().copied()));
                assert_eq!(fifo.is_empty(), model.is_empty());
                let mut lowest = Lowest::new(from, 5);
                fifo.search(&mut lowest);
                let mut want: Vec<_> = model.iter().copied().filter(|&it| it >= from).collect();
                want.sort_unstable();
                want.truncate(5);
                assert_eq!(lowest.finish(), want);
            }
            model.iter().for_each(|value| assert_eq!(fifo.pop_front(), Some(*value)));
            assert_eq!((fifo.pop_front(), fifo.packed()), (None, (0, 0)));
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
