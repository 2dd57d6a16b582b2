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
use crate::file::weights::WeightSum;
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
const PLACES: usize = 1 << 17;

/// What there is of each set.
#[derive(Debug, Default)]
struct SetSums {
    /// For whose holders sums will do.
    known: Vec<bool>,
    places: Vec<SetSum>,
    /// The same of the other sets.
    others: HashMap<SetId, SetSum, FixedState>,
    /// Those that there are, in the order in which they came.
    sets: Vec<SetId>,
}

impl SetSums {
    fn place(set: SetId) -> Option<usize> {
        set.place().filter(|place| *place < PLACES)
    }

    #[inline]
    fn is_known(&self, set: SetId) -> bool {
        match Self::place(set) {
            Some(place) => self.known.get(place).is_some_and(|known| *known),
            None => self.others.contains_key(&set),
        }
    }

    fn set_known(&mut self, set: SetId) {
        let Some(place) = Self::place(set) else {
            self.others.insert(set, SetSum::default());
            return;
        };
        if place >= self.known.len() {
            self.known.resize(place.saturating_add(1), false);
            self.places.resize(place.saturating_add(1), SetSum::default());
        }
        if let Some(known) = self.known.get_mut(place) {
            *known = true;
        }
    }

    fn get(&mut self, set: SetId) -> Option<&mut SetSum> {
        match Self::place(set) {
            Some(place) => self.places.get_mut(place),
            None => self.others.get_mut(&set),
        }
    }

    /// Adds some to a set that is known, which are there from an offset on, to before another one.
    #[inline]
    fn add(&mut self, set: SetId, more: WeightSum, (from, end): (u64, u64)) {
        let Some(it) = self.get(set) else { return };
        let is_first = it.sum.count == 0;
        if is_first {
            it.from = from;
        }
        it.sum.add(more);
        it.end = end;
        if is_first {
            self.sets.push(set);
        }
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
    let mut sums = Sums { store, apart, all: SetSums::default() };
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
        let mut will_do = true;
        each_run(chunk, &places, |run, set| {
            will_do = will_do
                && weights.sum(run).is_some()
                && (self.all.is_known(set) || self.ask(set, is_enough, to));
        });
        if will_do {
            each_run(chunk, &places, |run, set| {
                let sum = weights.sum(run).unwrap_or_default();
                self.all.add(set, sum, (offsets.start, offsets.end));
            });
        }
        will_do
    }

    /// Whether sums will do for all holders of a set.
    fn ask(&mut self, set: SetId, is_enough: bool, to: &mut dyn RecoverySink) -> bool {
        let mut will_do = true;
        self.store.sets.each(set, |holder: Holder| {
            will_do = will_do && to.takes_sum(holder, is_enough);
        });
        if will_do {
            self.all.set_known(set);
        }
        will_do
    }

    /// Tells each holder's.
    fn tell(mut self, to: &mut dyn RecoverySink) {
        for set in std::mem::take(&mut self.all.sets) {
            let Some(&mut SetSum { sum, from, end }) = self.all.get(set) else { continue };
            let WeightSum { count, bytes, persistent, persistent_bytes } = sum;
            self.store.sets.each(set, |holder| {
                let offsets = Offset::new(from)..Offset::new(end);
                let sum = RecoveredSum { offsets, count, bytes, persistent, persistent_bytes };
                to.sum(holder, sum);
            });
        }
    }
}

/// Tells of neighbours in these places of a chunk that the same set holds.
fn each_run(chunk: HeldChunk<'_>, places: &Range<u16>, mut each: impl FnMut(Range<u16>, SetId)) {
    chunk.each_range(|run, set| {
        let run = run.start.max(places.start)..run.end.min(places.end);
        if !run.is_empty() {
            each(run, set);
        }
    });
}
