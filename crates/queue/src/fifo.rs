//! Hot path. First in, first out, in blocks: no element is ever moved because the queue grew.
//!
//! A backlog of millions neither doubles a buffer (a stall and twice the memory at the worst moment) nor
//! keeps it afterwards: blocks are freed as they are emptied. One emptied block is kept, so that a
//! queue of steady length does not allocate. A short queue lives in `front`, which grows like any vector.
//! Far behind the front, and where nobody takes, blocks are *packed*: what is alike in neighbours is written once, and
//! blocks that go on alike are one, so that a long backlog costs next to nothing per message.
//!
//! ```text
//!   front            rest
//!   [ . . . 4 5 6 ]  [ 7 ... 134 ]  [ ... ]  ( 263 ... )  ( ... )  [ ... ]
//!           ^ head     open           open     packed       packed   open: pushed here
//! ```
//!
//! Invariants: `front` is empty only when everything is; every block of `rest` but the last has elements;
//! `head < front.len()` unless empty, then both are 0; the last block of `rest` is open, and behind a packed one
//! no other is.

use std::borrow::Cow;
use std::collections::VecDeque;

use crate::look::{Keyed, Lowest};

/// Elements of a block: 2 KiB of 16-byte entries. A queue with a backlog has two blocks that are open.
pub(crate) const BLOCK: usize = 128;

/// Blocks whose directory may stay after a backlog is gone.
const DIRECTORY_KEPT: usize = 64;

/// What a packed block takes beside its bytes: its place in the directory and the allocator's rounding.
const PACKED_COST: usize = 48;

/// Blocks behind the front that stay open, so that a queue of a thousand messages never packs while somebody takes
/// them: packing costs some seventy instructions a message, and an allocation for each block.
const OPEN_MIN: usize = 8;

/// What blocks can be packed of.
pub(crate) trait Pack: Keyed + Sized {
    /// As few bytes as can be.
    fn pack(block: &[Self]) -> Box<[u8]>;

    /// Packs a block with the one before it, if both take about as few bytes as one.
    fn pack_behind(before: &mut Box<[u8]>, block: &[Self]) -> bool;

    /// Appends the first [`BLOCK`] of what was packed, or all if there are fewer. Gives the others, packed.
    fn unpack(bytes: &[u8], into: &mut Vec<Self>) -> Option<Box<[u8]>>;
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
        if (self.rest.len() >= OPEN_MIN || self.packed.blocks > 0)
            && let Some(Block::Open(mut block)) = self.rest.pop_back()
        {
            self.packed.push(&block, &mut self.rest);
            block.clear();
            if self.spare.capacity() == 0 {
                self.spare = block;
            }
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

    /// Packs all that is behind the front, but for the block that is pushed to: nobody takes from it soon.
    #[inline]
    pub(crate) fn settle(&mut self) {
        if self.rest.len() > self.packed.blocks + 1 {
            self.pack_open();
        }
    }

    #[cold]
    fn pack_open(&mut self) {
        let mut packed = VecDeque::new();
        while self.rest.len() > 1
            && let Some(Block::Open(block)) =
                self.rest.pop_front_if(|block| matches!(block, Block::Open(_)))
        {
            self.packed.push(&block, &mut packed);
        }
        packed.into_iter().rev().for_each(|block| self.rest.push_front(block));
        self.spare = Vec::new();
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
            Some(Block::Packed { bytes, keys }) => {
                let others = T::unpack(&bytes, &mut self.front);
                self.packed.pop(self.front.len(), &bytes, others.as_deref());
                if let Some(bytes) = others {
                    self.rest.push_front(Block::Packed { bytes, keys });
                }
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
        let rest = self.rest.iter().flat_map(Block::pieces).flatten();
        self.front.iter().skip(self.head).copied().chain(rest)
    }

    /// Offers its elements, but not those of packed blocks that are not wanted as a whole.
    pub(crate) fn search(&self, lowest: &mut Lowest<T>) {
        self.front.iter().skip(self.head).for_each(|&value| lowest.offer(value));
        for block in &self.rest {
            match block {
                Block::Open(block) => block.iter().for_each(|&value| lowest.offer(value)),
                Block::Packed { keys: (least, greatest), .. }
                    if !lowest.wants(*least, *greatest) => {}
                Block::Packed { .. } => {
                    block.pieces().flatten().for_each(|value| lowest.offer(value));
                }
            }
        }
    }

    /// Takes those out that have one of these keys, wherever they are. The keys ascend.
    #[cold]
    pub(crate) fn take(&mut self, keys: &[u64], taken: &mut Vec<T>) {
        let mut take_of =
            |block: &mut Vec<T>| taken.extend(block.extract_if(.., |one| is_in(keys, one)));
        self.front.drain(..std::mem::take(&mut self.head));
        take_of(&mut self.front);
        let last = self.rest.len().saturating_sub(1);
        for (index, mut block) in std::mem::take(&mut self.rest).into_iter().enumerate() {
            let stays = match &mut block {
                Block::Open(open) => {
                    take_of(open);
                    // The last one is pushed to.
                    index == last || !open.is_empty()
                }
                Block::Packed { bytes, keys: range } if reaches(keys, *range) => {
                    self.packed.blocks -= 1;
                    self.packed.bytes -= bytes.len();
                    for mut piece in block.pieces() {
                        self.packed.elements -= piece.len();
                        take_of(&mut piece);
                        if !piece.is_empty() {
                            self.packed.push(&piece, &mut self.rest);
                        }
                    }
                    false
                }
                Block::Packed { .. } => true,
            };
            if stays {
                self.rest.push_back(block);
            }
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

    /// Bytes of the blocks that are not packed, however little is in them.
    #[inline]
    pub(crate) fn open_bytes(&self) -> u64 {
        if self.is_empty() {
            return 0;
        }
        let blocks = self.rest.len() - self.packed.blocks;
        let elements = self.front.capacity() + self.spare.capacity() + blocks * BLOCK;
        (elements * size_of::<T>()) as u64
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

impl<T: Copy + Pack> Block<T> {
    /// Its elements, [`BLOCK`] at a time.
    fn pieces(&self) -> impl Iterator<Item = Vec<T>> {
        let (mut open, mut packed) = match self {
            Self::Open(block) => (Some(block.clone()), None),
            Self::Packed { bytes, .. } => (None, Some(Cow::from(&**bytes))),
        };
        std::iter::from_fn(move || {
            let Some(bytes) = packed.take() else { return open.take() };
            let mut piece = Vec::with_capacity(BLOCK);
            packed = T::unpack(&bytes, &mut piece).map(|others| Cow::from(others.into_vec()));
            Some(piece)
        })
    }
}

impl Packed {
    /// Packs a block behind the last one of `rest`.
    fn push<T: Pack>(&mut self, block: &[T], rest: &mut VecDeque<Block<T>>) {
        self.elements += block.len();
        let reach = |(least, greatest): (u64, u64), one: &T| {
            (least.min(one.key()), greatest.max(one.key()))
        };
        if let Some(Block::Packed { bytes, keys }) = rest.back_mut() {
            let len = bytes.len();
            if T::pack_behind(bytes, block) {
                self.bytes = self.bytes - len + bytes.len();
                *keys = block.iter().fold(*keys, reach);
                return;
            }
        }
        let bytes = T::pack(block);
        self.bytes += bytes.len();
        self.blocks += 1;
        let keys = block.iter().fold((u64::MAX, 0), reach);
        rest.push_back(Block::Packed { bytes, keys });
    }

    /// So many elements left the front of a packed block; `others` are what is left of it.
    fn pop(&mut self, elements: usize, bytes: &[u8], others: Option<&[u8]>) {
        self.elements -= elements;
        self.bytes = self.bytes - bytes.len() + others.map_or(0, <[u8]>::len);
        self.blocks -= usize::from(others.is_none());
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

                fn pack_behind(before: &mut Box<[u8]>, block: &[Self]) -> bool {
                    let is_alike = before.len() < 3 * BLOCK * size_of::<Self>();
                    if is_alike {
                        *before = [&before[..], &Self::pack(block)].concat().into();
                    }
                    is_alike
                }

                fn unpack(bytes: &[u8], into: &mut Vec<Self>) -> Option<Box<[u8]>> {
                    let (now, others) = bytes.split_at(bytes.len().min(BLOCK * size_of::<Self>()));
                    let numbers = now.chunks_exact(size_of::<Self>());
                    into.extend(numbers.map(|one| Self::from_le_bytes(one.try_into().unwrap())));
                    (!others.is_empty()).then(|| others.into())
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
                if random(3) == 0 {
                    fifo.settle();
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
    fn what_nobody_takes_is_packed_but_for_its_ends() {
        let mut fifo = Fifo::default();
        for value in 0..1_000_u64 {
            fifo.push_back(value);
            fifo.settle();
        }
        let (bytes, elements) = fifo.packed();
        assert_eq!(elements, 1_000 - 1_000 % BLOCK as u64 - BLOCK as u64);
        let ends = (2 * BLOCK + 8) * size_of::<u64>() + 8 * size_of::<Block<u64>>();
        assert!(fifo.allocated() <= ends + bytes as usize, "{}", fifo.allocated());
        // Packed blocks behind which others came while somebody took.
        (1_000..2_000).for_each(|value| fifo.push_back(value));
        assert!(fifo.iter().eq(0..2_000));
        (0..2_000).for_each(|value| assert_eq!(fifo.pop_front(), Some(value)));
        assert_eq!((fifo.pop_front(), fifo.packed()), (None, (0, 0)));
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
