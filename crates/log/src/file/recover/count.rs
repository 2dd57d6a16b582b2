//! What holders have of what is held, in sums: of that no record is looked at.
//!
//! ```text
//!   told of  |  summed  | told of |  summed ...       a chunk, or what is left of it, is summed if that will do for all
//! ```
//!
//! Who holds the records of a chunk the table of cold records says, and [`Weights`](crate::file::weights) what they weigh.

use std::ops::Range;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::OpenError;
use super::tell::Again;
use crate::disk::Disk;
use crate::file::Store;
use crate::file::cold::{CHUNK, HeldChunk};
use crate::file::sets::SetId;
use crate::file::weights::{ChunkWeights, WeightSum};
use crate::{Holder, Offset, RecoveredSum, RecoveryLimits, RecoverySink};

/// What is told of before it is looked again whether sums will do for the rest.
const STEP: RecoveryLimits = RecoveryLimits { records: 1_024, bytes: 1 << 20 };

/// What there is of a set.
#[derive(Clone, Copy, Debug, Default)]
struct SetSum {
    sum: WeightSum,
    from: u64,
    end: u64,
}

/// So many sets, of those that are one holder each, have their place without a search.
const PLACES: usize = 1 << 16;

/// What there is of each set.
#[derive(Debug, Default)]
struct SetSums {
    places: Vec<SetSum>,
    others: HashMap<SetId, SetSum, FixedState>,
    /// Those that there are, in the order in which they came.
    sets: Vec<SetId>,
}

impl SetSums {
    fn get(&mut self, set: SetId) -> &mut SetSum {
        let place = set.place().filter(|place| *place < PLACES);
        let sum = match place {
            Some(place) => {
                if place >= self.places.len() {
                    self.places.resize(place.saturating_add(1), SetSum::default());
                }
                self.places.get_mut(place)
            }
            None => None,
        };
        sum.unwrap_or_else(|| self.others.entry(set).or_default())
    }

    /// Adds some, that are there from an offset on, to before another one.
    #[inline]
    fn add(&mut self, set: SetId, more: WeightSum, offsets: Range<u64>) {
        let it = self.get(set);
        let is_first = it.sum.count == 0;
        if is_first {
            it.from = offsets.start;
        }
        it.sum.add(more);
        it.end = offsets.end;
        if is_first {
            self.sets.push(set);
        }
    }

    fn has(&mut self, set: SetId) -> bool {
        self.get(set).sum.count > 0
    }

    fn clear(&mut self) {
        for set in std::mem::take(&mut self.sets) {
            *self.get(set) = SetSum::default();
        }
        self.others.clear();
    }
}

/// See [`Log::recover_sums`](crate::Log::recover_sums).
pub(in crate::file) fn count<D: Disk>(
    again: &mut Again,
    disk: &mut D,
    store: &Store,
    (apart, enough): (&[Range<Offset>], RecoveryLimits),
    to: &mut dyn RecoverySink,
) -> Result<(), OpenError> {
    let mut sums = Sums { store, apart, here: SetSums::default(), all: SetSums::default() };
    let (mut left, end) = (enough, again.end());
    for (number, chunk) in store.cold.chunks() {
        let first = number.saturating_mul(CHUNK);
        let (mut at, end) = (first, first.saturating_add(CHUNK).min(end));
        while at < end {
            let is_enough = left.records == 0 || left.bytes == 0;
            if sums.add(chunk, (number, at..end), is_enough, to) {
                break;
            }
            let mut step = STEP;
            at = again.tell(disk, store, (at, end), &mut step, &mut |run| to.run(run))?;
            left.records = left.records.saturating_sub(STEP.records.saturating_sub(step.records));
            left.bytes = left.bytes.saturating_sub(STEP.bytes.saturating_sub(step.bytes));
        }
    }
    sums.tell(to);
    Ok(())
}

struct Sums<'a> {
    store: &'a Store,
    apart: &'a [Range<Offset>],
    /// Of the chunk.
    here: SetSums,
    /// Sums will do for all holders of these sets.
    all: SetSums,
}

impl Sums<'_> {
    /// Adds what is held with these offsets, which are of one chunk, unless its records have to be told of.
    fn add(
        &mut self,
        chunk: HeldChunk<'_>,
        (number, offsets): (u64, Range<u64>),
        is_enough: bool,
        to: &mut dyn RecoverySink,
    ) -> bool {
        let next = self.apart.partition_point(|range| range.end.get() <= offsets.start);
        let is_apart = self.apart.get(next).is_some_and(|it| it.start.get() < offsets.end);
        let Some(weights) = self.store.weights.of(number).filter(|_| !is_apart) else {
            return false;
        };
        let first = number.saturating_mul(CHUNK);
        let place = |at: u64| u16::try_from(at.saturating_sub(first)).unwrap_or(u16::MAX);
        let places = place(offsets.start)..place(offsets.end);
        self.here.clear();
        if !self.add_here(chunk, weights, places) {
            return false;
        }
        let Self { store, here, all, .. } = self;
        let mut will_do = |set: SetId| {
            let mut is_all = true;
            if !all.has(set) {
                store.sets.each(set, |holder: Holder| {
                    is_all = is_all && to.takes_sum(holder, is_enough);
                });
            }
            is_all
        };
        if !here.sets.iter().all(|set| will_do(*set)) {
            return false;
        }
        for set in here.sets.clone() {
            all.add(set, here.get(set).sum, offsets.clone());
        }
        true
    }

    /// Sums up what is held in these places of a chunk. False if something has to be looked at.
    fn add_here(
        &mut self,
        chunk: HeldChunk<'_>,
        weights: ChunkWeights<'_>,
        places: Range<u16>,
    ) -> bool {
        let mut is_all = true;
        chunk.each_range(|run, set| {
            let run = run.start.max(places.start)..run.end.min(places.end);
            if run.is_empty() {
                return;
            }
            match weights.sum(run) {
                Some(sum) => self.here.add(set, sum, 0..0),
                None => is_all = false,
            }
        });
        is_all
    }

    /// Tells each holder's.
    fn tell(mut self, to: &mut dyn RecoverySink) {
        for set in std::mem::take(&mut self.all.sets) {
            let SetSum { sum, from, end } = *self.all.get(set);
            let WeightSum { count, bytes, persistent, persistent_bytes } = sum;
            self.store.sets.each(set, |holder| {
                let offsets = Offset::new(from)..Offset::new(end);
                let sum = RecoveredSum { offsets, count, bytes, persistent, persistent_bytes };
                to.sum(holder, sum);
            });
        }
    }
}
