//! How much each holder has on the disk only, in sums that are kept step by step.
//!
//! A record that leaves memory is weighed by what it says of itself; one that is released when nobody has its bytes
//! at hand counts as its holder's average. So counts of records are exact, and weights are where records weigh alike.

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::sets::{SetId, Sets};
use crate::{Holder, PagedOut};

/// Records that leave memory together: each set's are counted at once.
pub(super) type Leaving = HashMap<(u32, bool), (u64, u64), FixedState>;

/// The sums, of holders that have something.
#[derive(Debug, Default)]
pub(super) struct Paged {
    of: HashMap<Holder, PagedOut, FixedState>,
    /// Of the holder that was counted last, and not added yet.
    last: Option<(Holder, PagedOut)>,
    /// How often a sum was looked up to be added to.
    #[cfg(test)]
    pub(super) additions: u64,
}

impl Paged {
    /// What a holder has.
    pub(super) fn get(&self, holder: Holder) -> PagedOut {
        self.of.get(&holder).copied().unwrap_or_default()
    }

    /// Tells of all who have something.
    pub(super) fn each_holder(&self, each: impl FnMut(Holder)) {
        self.of.keys().copied().for_each(each);
    }

    /// Records left memory.
    pub(super) fn left(&mut self, leaving: Leaving, sets: &Sets) {
        for ((set, is_volatile), (records, bytes)) in leaving {
            let Some(set) = SetId::new(set) else { continue };
            let all = PagedOut::of(records, bytes, is_volatile);
            sets.each(set, |holder| self.add(holder, all));
        }
    }

    fn add(&mut self, holder: Holder, more: PagedOut) {
        #[cfg(test)]
        {
            self.additions += 1;
        }
        self.of.entry(holder).or_default().add(more);
    }

    /// Records of a batch, which weigh alike, of holders who have had the ones before, most likely.
    pub(super) fn found(&mut self, holders: &[Holder], records: u64, weight: u64) {
        let more = PagedOut::of(records, records.saturating_mul(weight), false);
        for &holder in holders {
            match &mut self.last {
                Some((last, all)) if *last == holder => all.add(more),
                _ => {
                    self.found_all();
                    self.last = Some((holder, more));
                }
            }
        }
    }

    /// All records of the batch were found.
    pub(super) fn found_all(&mut self) {
        if let Some((holder, all)) = self.last.take() {
            self.add(holder, all);
        }
    }

    /// A holder let go of a record, which weighed so much if that is known.
    pub(super) fn released(&mut self, holder: Holder, is_volatile: bool, bytes: Option<u64>) {
        let Some(paged) = self.of.get_mut(&holder) else { return };
        paged.remove_one(is_volatile, bytes);
        if paged.records == 0 {
            self.of.remove(&holder);
            // What was long ago needs no memory.
            if self.of.capacity() > 8 * self.of.len() + 64 {
                self.of.shrink_to(2 * self.of.len());
            }
        }
    }

    /// A volatile record is to survive after all.
    pub(super) fn persisted(&mut self, set: SetId, sets: &Sets) {
        sets.each(set, |holder| {
            if let Some(paged) = self.of.get_mut(&holder) {
                let bytes = paged.volatile_average();
                paged.volatile = paged.volatile.saturating_sub(1);
                paged.volatile_bytes = paged.volatile_bytes.saturating_sub(bytes);
            }
        });
    }

    /// Bytes of memory.
    pub(super) fn held_bytes(&self) -> usize {
        self.of.allocation_size()
    }
}

impl PagedOut {
    fn of(records: u64, bytes: u64, is_volatile: bool) -> Self {
        let (volatile, volatile_bytes) = if is_volatile { (records, bytes) } else { (0, 0) };
        Self { records, bytes, volatile, volatile_bytes }
    }

    fn add(&mut self, more: Self) {
        self.records += more.records;
        self.bytes += more.bytes;
        self.volatile += more.volatile;
        self.volatile_bytes += more.volatile_bytes;
    }

    fn remove_one(&mut self, is_volatile: bool, bytes: Option<u64>) {
        let (records, all) = match is_volatile {
            true => (self.volatile, self.volatile_bytes),
            false => (self.records - self.volatile, self.bytes - self.volatile_bytes),
        };
        // The last one takes what is left, whatever was guessed of the others.
        let bytes = match bytes {
            _ if records <= 1 => all,
            Some(bytes) => bytes.min(all),
            None => average(all, records),
        };
        self.records = self.records.saturating_sub(1);
        self.bytes -= bytes;
        if is_volatile {
            self.volatile = self.volatile.saturating_sub(1);
            self.volatile_bytes -= bytes;
        }
    }

    fn volatile_average(&self) -> u64 {
        average(self.volatile_bytes, self.volatile)
    }
}

fn average(bytes: u64, records: u64) -> u64 {
    bytes.checked_div(records).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unknown_is_the_average_and_nothing_is_left_over() {
        let holder = Holder::new(1);
        let mut paged = Paged::default();
        paged.add(holder, PagedOut::of(3, 30, false));
        paged.add(holder, PagedOut::of(2, 100, true));
        paged.released(holder, false, None);
        assert_eq!(
            paged.get(holder),
            PagedOut { records: 4, bytes: 120, volatile: 2, volatile_bytes: 100 }
        );
        paged.released(holder, true, Some(90));
        assert_eq!(
            paged.get(holder),
            PagedOut { records: 3, bytes: 30, volatile: 1, volatile_bytes: 10 }
        );
        paged.released(holder, true, None);
        paged.released(holder, false, Some(1_000));
        paged.released(holder, false, None);
        assert_eq!(paged.get(holder), PagedOut::default());
        assert!(paged.of.is_empty());
    }
}
