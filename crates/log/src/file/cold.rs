//! Who holds the records that are on disk and no longer in memory.
//!
//! Offsets are in chunks of [`CHUNK`]; a chunk is a sorted row of runs of neighbours that the same
//! set holds. So an untouched backlog costs next to nothing a record, and one full of holes 8 bytes.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;

use super::sets::SetId;

/// Offsets in a chunk.
const CHUNK: u64 = 4096;

/// Marks the set of a record that does not survive the process.
const VOLATILE: u32 = 1 << 31;

/// Who holds a cold record, and whether it is to survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) set: SetId,
    pub(super) is_volatile: bool,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    start: u16,
    len: u16,
    held: u32,
}

/// The holders of cold records, by offset.
#[derive(Debug, Default)]
pub(super) struct Cold {
    /// The chunks before the last.
    chunks: BTreeMap<u64, Vec<Run>>,
    /// The last chunk that ever had a record, and its number. Most records come in order: they are spared the search.
    last: (u64, Vec<Run>),
    /// Runs that the chunks have room for.
    capacity: usize,
}

/// Looks records up whose offsets ascend: each costs a step, not a search.
#[derive(Debug)]
pub(super) struct Ascending<'a> {
    cold: &'a Cold,
    chunk: u64,
    /// Of this chunk, without those that end before the last that was asked for.
    runs: &'a [Run],
    before: u64,
}

impl Ascending<'_> {
    pub(super) fn get(&mut self, at: u64) -> Option<Held> {
        let chunk = at / CHUNK;
        if chunk != self.chunk || at < self.before {
            self.chunk = chunk;
            self.runs = self.cold.runs(chunk);
        }
        self.before = at;
        let at = (at % CHUNK) as u16;
        while let [run, rest @ ..] = self.runs
            && run.end() <= at
        {
            self.runs = rest;
        }
        let run = self.runs.first().filter(|run| run.start <= at)?;
        Held::unpack(run.held)
    }
}

impl Held {
    fn pack(self) -> u32 {
        self.set.get() | if self.is_volatile { VOLATILE } else { 0 }
    }

    fn unpack(word: u32) -> Option<Self> {
        let set = SetId::new(word & !VOLATILE)?;
        Some(Self { set, is_volatile: word & VOLATILE > 0 })
    }
}

impl Run {
    fn end(self) -> u16 {
        self.start + self.len
    }
}

/// The run that has an offset of the chunk, or where it would be.
fn find(runs: &[Run], at: u16) -> Result<usize, usize> {
    let after = runs.partition_point(|run| run.start <= at);
    match after.checked_sub(1) {
        Some(index) if at < runs[index].end() => Ok(index),
        _ => Err(after),
    }
}

impl Cold {
    fn runs(&self, chunk: u64) -> &[Run] {
        match &self.last {
            (number, runs) if *number == chunk => runs,
            _ => self.chunks.get(&chunk).map_or(&[], Vec::as_slice),
        }
    }

    /// Goes on to a chunk behind the last.
    fn begin_chunk(&mut self, chunk: u64) {
        let (number, runs) = mem::replace(&mut self.last, (chunk, Vec::new()));
        if !runs.is_empty() {
            self.chunks.insert(number, runs);
        }
    }

    pub(super) fn get(&self, at: u64) -> Option<Held> {
        let runs = self.runs(at / CHUNK);
        let index = find(runs, (at % CHUNK) as u16).ok()?;
        Held::unpack(runs[index].held)
    }

    /// Adds a record, or changes who holds it.
    pub(super) fn insert(&mut self, at: u64, held: Held) {
        let chunk = at / CHUNK;
        if chunk > self.last.0 {
            self.begin_chunk(chunk);
        }
        let runs = match &mut self.last {
            (number, runs) if *number == chunk => runs,
            _ => self.chunks.entry(chunk).or_default(),
        };
        self.capacity -= runs.capacity();
        let (at, held) = ((at % CHUNK) as u16, held.pack());
        match runs.last_mut() {
            Some(last) if last.end() == at && last.held == held => last.len += 1,
            Some(last) if last.end() > at => {
                let index = match find(runs, at) {
                    Ok(index) if runs[index].held == held => None,
                    Ok(index) => Some(cut(runs, index, at)),
                    Err(index) => Some(index),
                };
                if let Some(index) = index {
                    runs.insert(index, Run { start: at, len: 1, held });
                    join(runs, index);
                }
            }
            _ => runs.push(Run { start: at, len: 1, held }),
        }
        self.capacity += runs.capacity();
    }

    /// Adds records one after the other that the same set holds, or changes who holds them.
    pub(super) fn insert_all(&mut self, records: Range<u64>, held: Held) {
        let mut at = records.start;
        while at < records.end {
            let end = records.end.min((at / CHUNK + 1) * CHUNK);
            self.insert(at, held);
            let is_last = self.last.0 == at / CHUNK;
            match self.last.1.last_mut().filter(|_| is_last) {
                // The one that was added was the last of the chunk: the others follow it.
                Some(run) if u64::from(run.end()) == at % CHUNK + 1 => {
                    run.len += (end - at - 1) as u16
                }
                _ => (at + 1..end).for_each(|at| self.insert(at, held)),
            }
            at = end;
        }
    }

    /// Takes a record out.
    pub(super) fn remove(&mut self, at: u64) -> Option<Held> {
        let chunk = at / CHUNK;
        let is_last = self.last.0 == chunk;
        let runs = if is_last { &mut self.last.1 } else { self.chunks.get_mut(&chunk)? };
        let at = (at % CHUNK) as u16;
        let index = find(runs, at).ok()?;
        let held = Held::unpack(runs[index].held);
        self.capacity -= runs.capacity();
        cut(runs, index, at);
        if runs.is_empty() && is_last {
            *runs = Vec::new();
        } else if runs.is_empty() {
            self.chunks.remove(&chunk);
        } else {
            if runs.len() < runs.capacity() / 4 {
                runs.shrink_to(2 * runs.len());
            }
            self.capacity += runs.capacity();
        }
        held
    }

    /// For those who ask for one record after the other.
    pub(super) fn ascending(&self) -> Ascending<'_> {
        Ascending { cold: self, chunk: u64::MAX, runs: &[], before: 0 }
    }

    /// Tells of all records: the first of a run of neighbours that the same set holds, and how many those are.
    pub(super) fn each_run(&self, mut each: impl FnMut(u64, u64, Held)) {
        let (last, runs) = &self.last;
        for (chunk, runs) in self.chunks.iter().chain([(last, runs)]) {
            for run in runs {
                if let Some(held) = Held::unpack(run.held) {
                    each(chunk * CHUNK + u64::from(run.start), u64::from(run.len), held);
                }
            }
        }
    }

    /// Bytes of memory.
    pub(super) fn held_bytes(&self) -> usize {
        // A node of the tree is for eleven chunks and half full at worst.
        self.chunks.len() * 2 * (size_of::<u64>() + size_of::<Vec<Run>>())
            + self.capacity * size_of::<Run>()
    }
}

/// Takes one offset out of a run, and tells where a run of it alone would be.
fn cut(runs: &mut Vec<Run>, index: usize, at: u16) -> usize {
    let run = runs[index];
    let (before, after) = (at - run.start, run.end() - at - 1);
    match (before, after) {
        (0, 0) => {
            runs.remove(index);
            index
        }
        (0, _) => {
            runs[index] = Run { start: at + 1, len: after, held: run.held };
            index
        }
        (_, 0) => {
            runs[index].len = before;
            index + 1
        }
        _ => {
            runs[index].len = before;
            runs.insert(index + 1, Run { start: at + 1, len: after, held: run.held });
            index + 1
        }
    }
}

/// Joins a run with its neighbours.
fn join(runs: &mut Vec<Run>, index: usize) {
    if let Some(&next) = runs.get(index + 1)
        && runs[index].end() == next.start
        && runs[index].held == next.held
    {
        runs[index].len += next.len;
        runs.remove(index + 1);
    }
    if let Some(before) = index.checked_sub(1)
        && runs[before].end() == runs[index].start
        && runs[before].held == runs[index].held
    {
        runs[before].len += runs[index].len;
        runs.remove(index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_map() {
        let mut rng = crate::suite::numbers(7);
        for span in [10, 300, 20_000] {
            let (mut cold, mut map) = (Cold::default(), BTreeMap::new());
            for _ in 0..30_000 {
                let at = 4000 + rng(span);
                let set = SetId::new(1 + rng(3) as u32).unwrap();
                let held = Held { set, is_volatile: rng(5) == 0 };
                match rng(3) {
                    0 => assert_eq!(cold.remove(at), map.remove(&at)),
                    _ => {
                        cold.insert(at, held);
                        map.insert(at, held);
                    }
                }
                let other = 4000 + rng(span);
                assert_eq!(cold.get(other), map.get(&other).copied());
            }
            let mut ascending = cold.ascending();
            for at in (3990..4010 + span).chain(4000..4000 + span) {
                assert_eq!(ascending.get(at), map.get(&at).copied());
            }
            for at in 4000..4000 + span {
                assert_eq!(cold.get(at), map.get(&at).copied());
                cold.remove(at);
            }
            assert_eq!(cold.held_bytes(), 0);
        }
    }

    #[test]
    fn many_at_once_are_as_one_after_the_other() {
        let mut rng = crate::suite::numbers(11);
        for (span, times) in [(50, 2_000), (9_000, 100)] {
            let (mut at_once, mut singly) = (Cold::default(), Cold::default());
            for _ in 0..times {
                let set = SetId::new(1 + rng(3) as u32).unwrap();
                let held = Held { set, is_volatile: rng(9) == 0 };
                let at = 4000 + rng(20_000);
                let records = at..at + rng(span);
                at_once.insert_all(records.clone(), held);
                records.for_each(|at| singly.insert(at, held));
                let gone = 4000 + rng(20_000);
                assert_eq!(at_once.remove(gone), singly.remove(gone));
            }
            for at in 4000..34_000 {
                assert_eq!(at_once.get(at), singly.get(at), "{at}");
            }
        }
    }

    #[test]
    fn an_untouched_backlog_costs_nearly_nothing() {
        let mut cold = Cold::default();
        let held = Held { set: SetId::new(5).unwrap(), is_volatile: false };
        (0..1_000_000).for_each(|at| cold.insert(at, held));
        assert!(cold.held_bytes() < 30_000, "{}", cold.held_bytes());
    }
}
