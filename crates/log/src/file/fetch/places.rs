//! Where the records of a stretch are, in a third of what the plain numbers take.
//!
//! Every [`BLOCK`]th place is plain, and is found by its offset. The others of its block follow it as they differ
//! from the one before:
//!
//! ```text
//!   varint 2 * step of the offset + 1 if a gap follows | varint zigzag gap from the end of the one before |
//!   varint zigzag(length - length before) | u32 crc32c
//! ```

use super::super::format::{put_varint, take_varint, unzigzag, zigzag};

/// Places of which one is plain.
const BLOCK: usize = 16;

/// Where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordPlace {
    pub(super) at: u64,
    pub(super) position: u64,
    pub(super) len: u32,
    pub(super) crc: u32,
}

#[derive(Debug)]
struct Block {
    first: RecordPlace,
    /// Where the others begin.
    from: u32,
}

/// Places by offset.
#[derive(Debug)]
pub(super) struct RecordPlaces {
    blocks: Vec<Block>,
    others: Vec<u8>,
}

impl RecordPlace {
    pub(super) fn end(&self) -> u64 {
        self.position.saturating_add(u64::from(self.len))
    }

    fn put_after(&self, before: &Self, out: &mut Vec<u8>) {
        let gap = self.position.wrapping_sub(before.end());
        put_varint(out, self.at.wrapping_sub(before.at) << 1 | u64::from(gap != 0));
        if gap != 0 {
            put_varint(out, zigzag(gap));
        }
        put_varint(out, zigzag(u64::from(self.len).wrapping_sub(u64::from(before.len))));
        out.extend_from_slice(&self.crc.to_le_bytes());
    }

    fn take_after(before: &Self, rest: &mut &[u8]) -> Option<Self> {
        let word = take_varint(rest)?;
        let gap = if word & 1 > 0 { unzigzag(take_varint(rest)?) } else { 0 };
        let longer = unzigzag(take_varint(rest)?);
        let (crc, after) = rest.split_first_chunk()?;
        *rest = after;
        Some(Self {
            at: before.at.wrapping_add(word >> 1),
            position: before.end().wrapping_add(gap),
            len: u64::from(before.len).wrapping_add(longer) as u32,
            crc: u32::from_le_bytes(*crc),
        })
    }
}

impl RecordPlaces {
    pub(super) fn new(mut places: Vec<RecordPlace>) -> Self {
        places.sort_unstable_by_key(|place| place.at);
        let mut blocks = Vec::with_capacity(places.len().div_ceil(BLOCK));
        let mut others = Vec::new();
        for block in places.chunks(BLOCK) {
            let Some(&first) = block.first() else { continue };
            blocks.push(Block { first, from: others.len() as u32 });
            for pair in block.windows(2) {
                pair[1].put_after(&pair[0], &mut others);
            }
        }
        others.shrink_to_fit();
        Self { blocks, others }
    }

    /// The place of a record.
    pub(super) fn find(&self, at: u64) -> Option<RecordPlace> {
        let after = self.blocks.partition_point(|block| block.first.at <= at);
        let Block { first, from } = self.blocks.get(after.checked_sub(1)?)?;
        let end = self.blocks.get(after).map_or(self.others.len(), |next| next.from as usize);
        let mut rest = self.others.get(*from as usize..end)?;
        let mut place = *first;
        while place.at < at {
            place = RecordPlace::take_after(&place, &mut rest)?;
        }
        (place.at == at).then_some(place)
    }

    /// Bytes of memory.
    pub(super) fn held_bytes(&self) -> usize {
        self.blocks.capacity() * size_of::<Block>() + self.others.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records of these lengths one behind the other, but for gaps, every `step`th offset.
    fn places(
        count: u64,
        step: u64,
        len: impl Fn(u64) -> u32,
        gap: impl Fn(u64) -> u64,
    ) -> Vec<RecordPlace> {
        let mut position = 1 << 33;
        let place = |n: u64| {
            position += gap(n);
            let it = RecordPlace {
                at: 1000 + n * step,
                position,
                len: len(n),
                crc: n as u32 ^ 0x8000_0001,
            };
            position = it.end();
            it
        };
        (0..count).map(place).collect()
    }

    #[track_caller]
    fn check(plain: Vec<RecordPlace>) -> usize {
        let packed = RecordPlaces::new(plain.iter().rev().copied().collect());
        for place in &plain {
            assert_eq!(packed.find(place.at), Some(*place));
        }
        let is_there = |at| plain.iter().any(|place| place.at == at);
        for at in (0..3000).chain([u64::MAX]).filter(|&at| !is_there(at)) {
            assert_eq!(packed.find(at), None, "{at}");
        }
        packed.held_bytes()
    }

    #[test]
    fn what_is_packed_is_found() {
        check(Vec::new());
        check(places(1, 1, |_| 7, |_| 0));
        check(places(16, 1, |_| 7, |_| 0));
        check(places(17, 1, |_| 7, |_| 0));
        check(places(1000, 1, |n| (n % 7 * 1000) as u32, |n| n % 3));
        check(places(500, 3, |n| u32::MAX - n as u32, |_| 0));
        // Stragglers lie behind those that came after them.
        let mut late = places(100, 2, |_| 100, |_| 0);
        let mut more = places(99, 2, |_| 50, |_| 0);
        more.iter_mut().for_each(|place| place.at += 1);
        late.extend(more);
        late.sort_unstable_by_key(|place| place.at);
        check(late);
        check(vec![
            RecordPlace { at: 0, position: u64::MAX, len: u32::MAX, crc: u32::MAX },
            RecordPlace { at: 1 << 60, position: 0, len: 0, crc: 0 },
        ]);
    }

    #[test]
    fn a_place_takes_a_third() {
        let plain =
            places(2000, 1, |n| 1000 + n as u32 % 3, |n| if n % 100 == 0 { 4000 } else { 0 });
        let held = check(plain);
        assert!(held < 2000 * size_of::<RecordPlace>() * 2 / 5, "{held} bytes");
    }
}
