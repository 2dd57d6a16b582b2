//! Hot path. Small values under numbers that are used again: unacked messages, what few messages need.
//!
//! In chunks, for the reasons of [`Fifo`](crate::fifo::Fifo): growing moves nothing, and a chunk whose
//! values are all gone gives its memory back. The lowest chunk with room is filled first, so that the
//! upper ones empty.
//!
//! Invariants: a chunk with room is in `open` (which may also name chunks without); the values of a chunk
//! are `live` in number; a chunk without any has no vacant list either.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Values of a chunk.
const CHUNK: usize = 256;
const CHUNK_BITS: u32 = CHUNK.trailing_zeros();
const NONE: u16 = u16::MAX;

#[derive(Debug)]
pub(crate) struct Slab<T> {
    chunks: Vec<Chunk<T>>,
    open: BinaryHeap<Reverse<u32>>,
    spare: Vec<SlabSlot<T>>,
    len: usize,
}

#[derive(Debug)]
struct Chunk<T> {
    slots: Vec<SlabSlot<T>>,
    /// First of the vacant slots, linked by `Vacant::next`; [`NONE`] at the end.
    vacant: u16,
    live: u16,
    is_open: bool,
}

#[derive(Debug)]
enum SlabSlot<T> {
    Vacant { next: u16 },
    Full(T),
}

/// The values of a slab that is no more. A chunk's memory goes with its last value.
#[derive(Debug)]
pub(crate) struct Drain<T> {
    chunks: Vec<Chunk<T>>,
    len: usize,
}

impl<T> Default for Drain<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }
}

impl<T> Drain<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl<T> Iterator for Drain<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        loop {
            match self.chunks.last_mut()?.slots.pop() {
                Some(SlabSlot::Full(value)) => {
                    self.len -= 1;
                    return Some(value);
                }
                Some(SlabSlot::Vacant { .. }) => {}
                None => _ = self.chunks.pop(),
            }
        }
    }
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), open: BinaryHeap::new(), spare: Vec::new(), len: 0 }
    }
}

impl<T> Slab<T> {
    /// What a value takes, in bytes.
    pub(crate) const VALUE_BYTES: usize = size_of::<SlabSlot<T>>();

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Puts `value` somewhere.
    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        let at = self.chunk_with_room();
        let chunk = &mut self.chunks[at as usize];
        chunk.live += 1;
        self.len += 1;
        let slot = if chunk.vacant == NONE {
            if chunk.slots.capacity() == 0 && at > 0 {
                chunk.slots = std::mem::take(&mut self.spare);
                chunk.slots.reserve_exact(CHUNK);
            }
            chunk.slots.push(SlabSlot::Full(value));
            chunk.slots.len() as u32 - 1
        } else {
            let slot = chunk.vacant;
            let before = std::mem::replace(&mut chunk.slots[slot as usize], SlabSlot::Full(value));
            let SlabSlot::Vacant { next } = before else { unreachable!("vacant slots are linked") };
            chunk.vacant = next;
            u32::from(slot)
        };
        (at << CHUNK_BITS) | slot
    }

    #[inline]
    fn chunk_with_room(&mut self) -> u32 {
        loop {
            let Some(&Reverse(at)) = self.open.peek() else { return self.add_chunk() };
            match self.chunks.get_mut(at as usize) {
                Some(chunk) if usize::from(chunk.live) < CHUNK => return at,
                Some(chunk) => chunk.is_open = false,
                None => {}
            }
            self.open.pop();
        }
    }

    #[cold]
    fn add_chunk(&mut self) -> u32 {
        let at = u32::try_from(self.chunks.len()).expect("fewer than 2^40 values");
        assert!(at < 1 << (32 - CHUNK_BITS), "fewer than 2^32 values");
        self.chunks.push(Chunk { slots: Vec::new(), vacant: NONE, live: 0, is_open: true });
        self.open.push(Reverse(at));
        at
    }

    #[inline]
    pub(crate) fn get(&self, id: u32) -> Option<&T> {
        let chunk = self.chunks.get((id >> CHUNK_BITS) as usize)?;
        match chunk.slots.get(id as usize % CHUNK)? {
            SlabSlot::Full(value) => Some(value),
            SlabSlot::Vacant { .. } => None,
        }
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        let chunk = self.chunks.get_mut((id >> CHUNK_BITS) as usize)?;
        match chunk.slots.get_mut(id as usize % CHUNK)? {
            SlabSlot::Full(value) => Some(value),
            SlabSlot::Vacant { .. } => None,
        }
    }

    /// Takes the value `id` out if there is one and it passes `check`.
    #[inline]
    pub(crate) fn take_if(&mut self, id: u32, check: impl FnOnce(&T) -> bool) -> Option<T> {
        let at = id >> CHUNK_BITS;
        let chunk = self.chunks.get_mut(at as usize)?;
        let slot = chunk.slots.get_mut(id as usize % CHUNK)?;
        match slot {
            SlabSlot::Full(value) if check(value) => {}
            _ => return None,
        }
        let before = std::mem::replace(slot, SlabSlot::Vacant { next: chunk.vacant });
        chunk.vacant = (id as usize % CHUNK) as u16;
        chunk.live -= 1;
        self.len -= 1;
        if !chunk.is_open {
            chunk.is_open = true;
            self.open.push(Reverse(at));
        }
        if chunk.live == 0 {
            self.empty_chunk(at);
        }
        match before {
            SlabSlot::Full(value) => Some(value),
            SlabSlot::Vacant { .. } => None,
        }
    }

    fn empty_chunk(&mut self, at: u32) {
        let chunk = &mut self.chunks[at as usize];
        chunk.slots.clear();
        chunk.vacant = NONE;
        if at > 0 {
            let slots = std::mem::take(&mut chunk.slots);
            if self.spare.capacity() == 0 {
                self.spare = slots;
            }
        }
        // Names in `open` of chunks that are gone are passed over when they come up.
        while self.chunks.len() > 1 && self.chunks.last().is_some_and(|chunk| chunk.live == 0) {
            self.chunks.pop();
        }
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flat_map(|chunk| &chunk.slots).filter_map(|slot| match slot {
            SlabSlot::Full(value) => Some(value),
            SlabSlot::Vacant { .. } => None,
        })
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.chunks.iter_mut().flat_map(|chunk| &mut chunk.slots).filter_map(|slot| match slot {
            SlabSlot::Full(value) => Some(value),
            SlabSlot::Vacant { .. } => None,
        })
    }

    /// All values, to be taken out one by one.
    pub(crate) fn drain(self) -> Drain<T> {
        Drain { chunks: self.chunks, len: self.len }
    }

    /// Gives back memory that is kept for speed.
    pub(crate) fn relax(&mut self) {
        self.spare = Vec::new();
        if self.len == 0 {
            *self = Self::default();
        }
    }

    /// Bytes allocated.
    #[cfg(test)]
    pub(crate) fn allocated(&self) -> usize {
        let slots =
            self.spare.capacity() + self.chunks.iter().map(|c| c.slots.capacity()).sum::<usize>();
        slots * size_of::<SlabSlot<T>>()
            + self.chunks.capacity() * size_of::<Chunk<T>>()
            + self.open.capacity() * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_only_what_is_there() {
        let mut slab = Slab::default();
        let a = slab.insert('a');
        let b = slab.insert('b');
        assert_eq!(slab.take_if(a, |&v| v == 'b'), None);
        assert_eq!(slab.take_if(a, |&v| v == 'a'), Some('a'));
        assert_eq!(slab.take_if(a, |_| true), None);
        assert_eq!(slab.insert('c'), a, "used again");
        assert_eq!(slab.get(b), Some(&'b'));
        assert_eq!(slab.get(77), None);
        assert_eq!(slab.get(u32::MAX), None);
        assert_eq!(slab.len(), 2);
    }

    #[test]
    fn values_stay_under_their_numbers() {
        // First in first out, last in first out, and every third.
        let orders: [fn(usize, usize) -> usize; 3] =
            [|_, _| 0, |_, len| len - 1, |turn, len| (turn * 3) % len];
        for order in orders {
            for window in [1, 2, 255, 256, 257, 1_000] {
                let mut slab = Slab::default();
                let mut held: Vec<(u32, usize)> = Vec::new();
                for turn in 0..5_000 {
                    held.push((slab.insert(turn), turn));
                    if held.len() > window {
                        let (id, value) = held.remove(order(turn, held.len()));
                        assert_eq!(slab.take_if(id, |_| true), Some(value));
                    }
                    assert_eq!(slab.len(), held.len());
                }
                for &(id, value) in &held {
                    assert_eq!(slab.get(id), Some(&value));
                }
                assert_eq!(slab.values().count(), held.len());
                let mut drain = slab.drain();
                let mut drained: Vec<_> = drain.by_ref().collect();
                drained.sort_unstable();
                assert!(drained.into_iter().eq(held.iter().map(|&(_, value)| value)));
                assert_eq!(drain.len(), 0);
            }
        }
    }

    #[test]
    fn memory_follows_what_is_held() {
        let mut slab = Slab::default();
        let ids: Vec<u32> = (0..100_000_u64).map(|value| slab.insert(value)).collect();
        // All but the last: only its chunk keeps its slots.
        for &id in &ids[..99_999] {
            slab.take_if(id, |_| true);
        }
        let kept = 4 * CHUNK * size_of::<SlabSlot<u64>>();
        let directory = 100_000 / CHUNK * 2 * (size_of::<Chunk<u64>>() + 4);
        assert!(slab.allocated() < kept + directory, "{}", slab.allocated());
        assert_eq!(slab.get(ids[99_999]), Some(&99_999));
        slab.take_if(ids[99_999], |_| true);
        slab.relax();
        assert_eq!(slab.allocated(), 0);
    }
}
