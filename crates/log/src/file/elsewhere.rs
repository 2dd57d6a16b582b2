//! Which records of this log have their bytes in another one, and where.
//!
//! Records that were shared one after the other lie one after the other in both logs, so a run of them is one entry.

use std::collections::BTreeMap;

use crate::Offset;
use crate::shared::Original;

/// Records from an offset on, each of which follows the one before it in both logs.
#[derive(Clone, Copy, Debug)]
struct Run {
    len: u64,
    first: Original,
}

/// Places by offset.
#[derive(Debug, Default)]
pub(super) struct Elsewhere {
    runs: BTreeMap<u64, Run>,
    records: u64,
    /// Of all records, those that are no more as long as the others on average.
    bytes: u64,
}

impl Run {
    fn place(&self, skip: u64) -> Original {
        let at = self.first.at.get().saturating_add(skip);
        Original { at: Offset::new(at), ..self.first }
    }
}

impl Elsewhere {
    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Where the bytes of a record are, if not here.
    pub(super) fn get(&self, at: u64) -> Option<Original> {
        let (start, run) = self.runs.range(..=at).next_back()?;
        let skip = at - start;
        (skip < run.len).then(|| run.place(skip))
    }

    /// Adds a record of `len` bytes.
    pub(super) fn insert(&mut self, at: u64, place: Original, len: u32) {
        self.remove(at);
        self.records += 1;
        self.bytes += u64::from(len);
        if let Some((start, run)) = self.runs.range_mut(..at).next_back()
            && start + run.len == at
            && run.place(run.len) == place
        {
            run.len += 1;
            return;
        }
        self.runs.insert(at, Run { len: 1, first: place });
    }

    /// Takes a record out.
    pub(super) fn remove(&mut self, at: u64) -> Option<Original> {
        let (&start, run) = self.runs.range_mut(..=at).next_back()?;
        let (skip, len) = (at - start, run.len);
        if skip >= len {
            return None;
        }
        let place = run.place(skip);
        let after = Run { len: len - skip - 1, first: run.place(skip + 1) };
        run.len = skip;
        if skip == 0 {
            self.runs.remove(&start);
        }
        if after.len > 0 {
            self.runs.insert(at + 1, after);
        }
        self.bytes -= self.mean_len();
        self.records -= 1;
        Some(place)
    }

    /// All records, with where each is.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, Original)> {
        self.runs.iter().flat_map(|(&start, run)| {
            (0..run.len).map(move |skip| (start.saturating_add(skip), run.place(skip)))
        })
    }

    /// Bytes of a record, about.
    pub(super) fn mean_len(&self) -> u64 {
        self.bytes / self.records.max(1)
    }

    /// Bytes of memory: a node of the tree is for eleven runs and half full at worst.
    pub(super) fn held_bytes(&self) -> usize {
        self.runs.len() * 2 * size_of::<(u64, Run)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::LogNumber;
    use crate::suite::numbers;

    fn place(log: u32, at: u64) -> Original {
        Original { log: LogNumber::new(log), at: Offset::new(at) }
    }

    #[test]
    fn a_backlog_is_one_run() {
        let mut all = Elsewhere::default();
        (0..1000).for_each(|at| all.insert(5 + at, place(1, 70 + at), 100));
        assert_eq!((all.runs.len(), all.mean_len()), (1, 100));
        (0..999).for_each(|at| assert_eq!(all.remove(5 + at), Some(place(1, 70 + at))));
        assert_eq!((all.runs.len(), all.get(1004)), (1, Some(place(1, 1069))));
        assert_eq!(all.remove(1004), Some(place(1, 1069)));
        assert!(all.is_empty() && all.mean_len() == 0);
    }

    #[test]
    fn agrees_with_a_map() {
        for seed in 0..50 {
            let mut below = numbers(seed);
            let (mut all, mut model) = (Elsewhere::default(), BTreeMap::new());
            for _ in 0..1000 {
                let at = below(40);
                match below(3) {
                    0 => assert_eq!(all.remove(at), model.remove(&at)),
                    _ => {
                        let place = place(below(2) as u32, at + 3 * below(2));
                        all.insert(at, place, below(1000) as u32);
                        model.insert(at, place);
                    }
                }
                assert!(all.iter().eq(model.iter().map(|(&at, &place)| (at, place))), "{seed}");
                (0..42).for_each(|at| assert_eq!(all.get(at), model.get(&at).copied()));
                assert_eq!(all.records, model.len() as u64);
            }
        }
    }
}
