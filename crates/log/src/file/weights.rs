//! What each cold record weighs, by its offset: so that what somebody has of any offsets is known without a look at a record.
//!
//! The table of holders keeps it as long as nobody was told of the records. Who holds a record, [`Cold`] says: what is known
//! here of others says nothing, and goes when there is much of it.
//!
//! Offsets are in chunks, as there. Of one whose records weigh alike, as most do, a word is kept. Else it is two bytes an
//! offset, or four if some weigh very much more than others, or eight for each record that is held, if these are few.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;

use super::cold::{CHUNK, Cold, HeldChunk};
use crate::RecordWeight;

/// Offsets of a chunk.
const LEN: usize = CHUNK as usize;

/// Words of two bytes are these apart at most.
const NEAR: u32 = u16::MAX as u32;

/// Records of a chunk below which each of them has its word.
const FEW: usize = 512;

/// Bytes for each record that is held, and for nobody, with which all is looked through for what is not needed. One record
/// alone in its chunk takes less.
pub(super) const MOST_BYTES: (usize, usize) = (96, 64 << 10);

/// What a record weighs, and whether it is persistent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word(u32);

impl Word {
    /// It has to be looked at.
    const UNKNOWN: Self = Self(u32::MAX);

    pub(super) fn of(weight: RecordWeight) -> Self {
        let bytes = u32::try_from(weight.bytes).ok().filter(|bytes| *bytes < Self::UNKNOWN.0 >> 1);
        match (bytes, weight.persistent) {
            (Some(bytes), Some(persistent)) => Self(bytes << 1 | u32::from(persistent)),
            _ => Self::UNKNOWN,
        }
    }

    /// Of so many records that weigh as much. None if they have to be looked at.
    fn sum(self, count: u64) -> Option<WeightSum> {
        if self == Self::UNKNOWN {
            return None;
        }
        let bytes = count.saturating_mul(u64::from(self.0 >> 1));
        let (persistent, persistent_bytes) = if self.0 & 1 > 0 { (count, bytes) } else { (0, 0) };
        Some(WeightSum { count, bytes, persistent, persistent_bytes })
    }
}

/// Records, and what they weigh together. No sum of it goes beyond what there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WeightSum {
    pub(super) count: u64,
    pub(super) bytes: u64,
    pub(super) persistent: u64,
    pub(super) persistent_bytes: u64,
}

impl WeightSum {
    pub(super) fn add(&mut self, more: Self) {
        self.count = self.count.saturating_add(more.count);
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.persistent = self.persistent.saturating_add(more.persistent);
        self.persistent_bytes = self.persistent_bytes.saturating_add(more.persistent_bytes);
    }
}

/// The words of a chunk.
#[derive(Debug, PartialEq, Eq)]
enum Column {
    Alike(Word),
    /// Each with what is added to it.
    Near(u32, Box<[u16; LEN]>),
    Each(Box<[u32; LEN]>),
    /// By offset in the chunk, ascending.
    Few(Box<[(u16, u32)]>),
}

impl Column {
    fn get(&self, at: usize) -> Word {
        match self {
            Self::Alike(word) => *word,
            Self::Near(base, words) => {
                words.get(at).map_or(Word::UNKNOWN, |word| Word(base + u32::from(*word)))
            }
            Self::Each(words) => words.get(at).map_or(Word::UNKNOWN, |word| Word(*word)),
            Self::Few(few) => {
                let index = few.binary_search_by_key(&at, |(at, _)| usize::from(*at));
                index.ok().and_then(|index| few.get(index)).map_or(Word::UNKNOWN, |it| Word(it.1))
            }
        }
    }

    #[inline]
    fn set(&mut self, offsets: Range<usize>, word: Word) {
        match self {
            Self::Alike(all) if *all == word => {}
            Self::Near(base, words) if word.0.wrapping_sub(*base) <= NEAR => {
                words[offsets].fill((word.0 - *base) as u16);
            }
            Self::Each(words) => words[offsets].fill(word.0),
            _ => self.set_other(offsets, word),
        }
    }

    /// The same of a word for which there is no place yet.
    #[cold]
    fn set_other(&mut self, offsets: Range<usize>, word: Word) {
        match self {
            Self::Alike(all) if all.0.abs_diff(word.0) <= NEAR => {
                // Those that come may be less or more.
                let room = (NEAR - all.0.abs_diff(word.0)) / 2;
                let base = all.0.min(word.0).saturating_sub(room);
                *self = Self::Near(base, Box::new([(all.0 - base) as u16; LEN]));
            }
            _ => {
                let mut words = Box::new([0; LEN]);
                (0..).zip(words.iter_mut()).for_each(|(at, word)| *word = self.get(at).0);
                *self = Self::Each(words);
            }
        }
        self.set(offsets, word);
    }

    fn sum(&self, offsets: Range<usize>) -> Option<WeightSum> {
        if let Self::Alike(word) = self {
            return word.sum(offsets.len() as u64);
        }
        let mut all = WeightSum::default();
        for at in offsets {
            all.add(self.get(at).sum(1)?);
        }
        Some(all)
    }

    /// The same of the records that are held, with less memory if these are few.
    fn of_held(self, held: HeldChunk<'_>) -> Self {
        if matches!(self, Self::Alike(_)) || held.count() >= FEW {
            return self;
        }
        let mut few = Vec::new();
        held.each_range(|run, _| few.extend(run.map(|at| (at, self.get(at.into()).0))));
        match few.first() {
            Some(&(_, word)) if few.iter().all(|it| it.1 == word) => Self::Alike(Word(word)),
            _ => Self::Few(few.into()),
        }
    }

    /// Bytes of memory.
    fn held_bytes(&self) -> usize {
        match self {
            Self::Alike(_) => 0,
            Self::Near(_, words) => size_of_val(&**words),
            Self::Each(words) => size_of_val(&**words),
            Self::Few(few) => size_of_val(&**few),
        }
    }
}

/// The weights of cold records, by offset.
#[derive(Debug, Default)]
pub(super) struct Weights {
    /// The chunks before the last.
    chunks: BTreeMap<u64, Column>,
    /// The last one that ever had a record, and its number.
    last: Option<(u64, Column)>,
    /// Of all chunks.
    bytes: usize,
}

impl Weights {
    /// These records, one after the other, weigh as much each.
    #[inline]
    pub(super) fn set_all(&mut self, records: Range<u64>, weight: RecordWeight) {
        let word = Word::of(weight);
        match &self.last {
            Some((last, Column::Alike(all)))
                if *all == word
                    && *last == records.start / CHUNK
                    && *last == records.end.saturating_sub(1) / CHUNK => {}
            _ => self.change_all(records, word),
        }
    }

    fn change_all(&mut self, records: Range<u64>, word: Word) {
        let mut at = records.start;
        while at < records.end {
            let number = at / CHUNK;
            let end = records.end.min((number + 1) * CHUNK);
            let offsets = (at % CHUNK) as usize..(end - number * CHUNK) as usize;
            self.change(number, offsets, word);
            at = end;
        }
    }

    fn change(&mut self, number: u64, offsets: Range<usize>, word: Word) {
        if self.last.as_ref().is_none_or(|(last, _)| *last < number) {
            let before = self.last.replace((number, Column::Alike(word)));
            self.chunks.extend(before);
            return;
        }
        let column = match &mut self.last {
            Some((last, column)) if *last == number => column,
            _ => self.chunks.entry(number).or_insert(Column::Alike(word)),
        };
        let before = column.held_bytes();
        column.set(offsets, word);
        self.bytes = self.bytes - before + column.held_bytes();
    }

    /// What these records of one chunk weigh, all of which are there. None if some have to be looked at.
    pub(super) fn of(&self, number: u64) -> Option<ChunkWeights<'_>> {
        let last = self.last.as_ref().filter(|(last, _)| *last == number).map(|it| &it.1);
        last.or_else(|| self.chunks.get(&number)).map(ChunkWeights)
    }

    /// Forgets what is not of records that are held, if it is much. So many are.
    pub(super) fn sweep(&mut self, cold: &Cold, records: u64) {
        let (each, first) = MOST_BYTES;
        let most = usize::try_from(records).unwrap_or(usize::MAX).saturating_mul(each);
        if self.held_bytes() > most.saturating_add(first) {
            self.sweep_all(cold);
        }
    }

    #[cold]
    fn sweep_all(&mut self, cold: &Cold) {
        let of_held =
            |(number, column): (u64, Column)| Some((number, column.of_held(cold.held_in(number)?)));
        self.chunks = mem::take(&mut self.chunks).into_iter().filter_map(of_held).collect();
        let all = self.chunks.values().chain(self.last.iter().map(|it| &it.1));
        self.bytes = all.map(Column::held_bytes).sum();
    }

    /// Bytes of memory.
    pub(super) fn held_bytes(&self) -> usize {
        // A node of the tree is for eleven chunks and half full at worst.
        self.chunks.len() * 2 * (size_of::<u64>() + size_of::<Column>()) + self.bytes
    }
}

/// The weights of the records of a chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkWeights<'a>(&'a Column);

impl ChunkWeights<'_> {
    /// Of records that are there, by their places in the chunk. None if some have to be looked at.
    pub(super) fn sum(self, places: Range<u16>) -> Option<WeightSum> {
        self.0.sum(places.start.into()..places.end.into())
    }
}

#[cfg(test)]
mod tests {
    use super::super::cold::Held;
    use super::super::sets::SetId;
    use super::*;

    fn weight(bytes: u64) -> RecordWeight {
        RecordWeight { bytes, persistent: Some(!bytes.is_multiple_of(3)) }
    }

    fn held() -> Held {
        Held { set: SetId::new(5).unwrap(), is_volatile: false }
    }

    /// Of records with random weights some are held: what these weigh is known, whatever went.
    #[test]
    fn agrees_with_a_map() {
        let mut rng = crate::suite::numbers(5);
        let sizes: [&dyn Fn(u64) -> u64; 4] =
            [&|_| 100, &|n| n % 2 * 7, &|n| n % 30_000, &|n| n * 9_000_000 % (1 << 33)];
        for size in sizes {
            let (mut weights, mut cold, mut map) =
                (Weights::default(), Cold::default(), BTreeMap::new());
            let mut end = 3_000;
            for _ in 0..400 {
                let (first, bytes) = (end + rng(9), size(rng(1 << 20)));
                let late = rng(20) == 0;
                end = first + 1 + rng(if late { 3_000 } else { 30 });
                weights.set_all(first..end, weight(bytes));
                cold.insert_all(first..end, held());
                map.extend((first..end).map(|at| (at, weight(bytes))));
                // One that comes late.
                let at = rng(end);
                map.entry(at).or_insert_with(|| {
                    weights.set_all(at..at + 1, weight(bytes));
                    cold.insert(at, held());
                    weight(bytes)
                });
                for _ in 0..rng(60) {
                    let at = rng(end);
                    assert_eq!(cold.remove(at).is_some(), map.remove(&at).is_some());
                }
                if rng(3) == 0 {
                    weights.sweep_all(&cold);
                }
            }
            for (&at, &it) in &map {
                let place = (at % CHUNK) as u16;
                let sum = weights.of(at / CHUNK).unwrap().sum(place..place + 1);
                assert_eq!(sum, Word::of(it).sum(1), "{at}");
                let persistent = u64::from(it.persistent == Some(true));
                let is_known = sum
                    .is_none_or(|it_is| (it_is.bytes, it_is.persistent) == (it.bytes, persistent));
                assert!(is_known && (sum.is_some() || it.bytes >= 1 << 31), "{at}");
            }
            assert!(map.len() > 3_000);
        }
    }

    /// So many bytes for each of a million records: of one size nearly none, of any sizes two, or four, however many hold them.
    #[test]
    fn a_backlog_takes_as_much_as_its_sizes_differ() {
        const COUNT: u64 = 1_000_000;
        let mut rng = crate::suite::numbers(6);
        for (range, most) in
            [(1, COUNT / 50), (16_000, COUNT * 21 / 10), (1 << 30, COUNT * 41 / 10)]
        {
            let mut weights = Weights::default();
            (0..COUNT).for_each(|at| weights.set_all(at..at + 1, weight(rng(range))));
            assert!(weights.held_bytes() as u64 <= most, "{} of {range}", weights.held_bytes());
        }
    }

    /// What was let go of takes no memory for long: neither all of a chunk, nor all but one.
    #[test]
    fn what_is_left_of_a_backlog_bounds_what_is_kept() {
        for step in [1, 30, 4_096, u64::MAX] {
            let mut rng = crate::suite::numbers(step);
            let (mut weights, mut cold) = (Weights::default(), Cold::default());
            let mut records = 0;
            for at in 0..600_000 {
                weights.set_all(at..at + 1, weight(rng(16_000)));
                cold.insert(at, held());
                records += 1;
                if at >= 10_000 && (at - 10_000) % step != 0 {
                    cold.remove(at - 10_000);
                    records -= 1;
                }
                if at % 100 == 0 {
                    weights.sweep(&cold, records);
                    let most = MOST_BYTES.0 * records as usize + MOST_BYTES.1 + 2 * LEN;
                    assert!(weights.held_bytes() <= most, "{} of {records}", weights.held_bytes());
                }
            }
        }
    }
}
