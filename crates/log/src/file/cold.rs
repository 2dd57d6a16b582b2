//! Who holds the records that are on disk and no longer in memory.
//!
//! Offsets are in chunks of [`CHUNK`]. A chunk is a sorted row of runs of neighbours that the same set holds, so an untouched
//! backlog of one queue costs next to nothing a record. Where that row would be long, as the messages of many queues lie mixed,
//! the chunk is a [`Table`]: two bytes a record.

mod table;

use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;

use super::sets::SetId;
use table::Table;

/// Offsets in a chunk.
pub(super) const CHUNK: u64 = 4096;

/// Runs above which a chunk becomes a table: they take as much memory.
const RUNS_MAX: usize = 1024;

/// Records of a table that are left when it becomes runs again: those of a consumer that has stopped among many.
const TABLE_MIN: usize = 256;

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

#[derive(Debug)]
enum Chunk {
    Runs(Vec<Run>),
    Table(Table),
}

/// The holders of cold records, by offset.
#[derive(Debug, Default)]
pub(super) struct Cold {
    /// The chunks before the last. None is empty.
    chunks: BTreeMap<u64, Chunk>,
    /// The last chunk that ever had a record, and its number. Most records come in order: they are spared the search.
    last: (u64, Chunk),
    /// Of all chunks.
    bytes: usize,
}

/// The records of a chunk that are held, of which there are some.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldChunk<'a>(&'a Chunk);

impl HeldChunk<'_> {
    /// How many they are.
    pub(super) fn count(self) -> usize {
        match self.0 {
            Chunk::Runs(runs) => runs.iter().map(|run| usize::from(run.len)).sum(),
            Chunk::Table(table) => table.count(),
        }
    }

    /// Tells of neighbours that the same set holds, by their places in the chunk, ascending.
    pub(super) fn each_range(self, mut each: impl FnMut(Range<u16>, SetId)) {
        self.0.each_run(|run| {
            if let Some(Held { set, .. }) = Held::unpack(run.held) {
                each(run.start..run.end(), set);
            }
        });
    }
}

/// Looks records up whose offsets ascend: each costs a step, not a search.
#[derive(Debug)]
pub(super) struct Ascending<'a> {
    cold: &'a Cold,
    number: u64,
    chunk: Option<&'a Chunk>,
    /// Of this chunk, without those that end before the last that was asked for.
    runs: &'a [Run],
    before: u64,
}

impl Ascending<'_> {
    pub(super) fn get(&mut self, at: u64) -> Option<Held> {
        let number = at / CHUNK;
        if number != self.number || at < self.before {
            self.number = number;
            self.chunk = self.cold.chunk(number);
            self.runs = match self.chunk {
                Some(Chunk::Runs(runs)) => runs,
                _ => &[],
            };
        }
        self.before = at;
        let at = (at % CHUNK) as u16;
        if let Some(Chunk::Table(table)) = self.chunk {
            return Held::unpack(table.get(at)?.get());
        }
        while let [run, rest @ ..] = self.runs
            && run.end() <= at
        {
            self.runs = rest;
        }
        let run = self.runs.first().filter(|run| run.start <= at)?;
        Held::unpack(run.held)
    }

    /// Who holds the record, and of how many from it on before `end` that is known to be so, itself included.
    pub(super) fn run(&mut self, at: u64, end: u64) -> (Option<Held>, u64) {
        let held = self.get(at);
        let in_chunk = (at % CHUNK) as u16;
        let until = match (self.chunk, self.runs.first()) {
            (Some(Chunk::Table(_)), _) => in_chunk + 1,
            (_, Some(run)) if held.is_some() => run.end(),
            (_, Some(run)) => run.start,
            (_, None) => CHUNK as u16,
        };
        (held, u64::from(until.saturating_sub(in_chunk)).min(end.saturating_sub(at)).max(1))
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

impl Default for Chunk {
    fn default() -> Self {
        Self::Runs(Vec::new())
    }
}

impl Chunk {
    fn get(&self, at: u16) -> Option<Held> {
        let word = match self {
            Self::Runs(runs) => runs[find(runs, at).ok()?].held,
            Self::Table(table) => table.get(at)?.get(),
        };
        Held::unpack(word)
    }

    /// Adds a record, or changes who holds it.
    fn insert(&mut self, at: u16, held: u32) {
        match self {
            Self::Table(table) => table.set(at, held),
            Self::Runs(runs) => {
                insert(runs, at, held);
                if runs.len() > RUNS_MAX {
                    *self = Self::Table(Table::new(runs));
                }
            }
        }
    }

    /// The same of several, one after the other.
    fn insert_each(&mut self, at: u16, held: &[Held]) {
        if let Self::Table(table) = self {
            return table.set_each(at, held);
        }
        for (at, held) in (at..).zip(held) {
            self.insert(at, held.pack());
        }
        // With as many runs among so few, the whole chunk would have too many.
        let runs_max = held.len() * RUNS_MAX / CHUNK as usize;
        if let Self::Runs(runs) = self
            && held.len() >= TABLE_MIN
            && runs.len() > runs_max
            && runs[runs.len() - runs_max - 1].start >= at
        {
            *self = Self::Table(Table::new(runs));
        }
    }

    fn remove(&mut self, at: u16) -> Option<Held> {
        let word = match self {
            Self::Runs(runs) => {
                let index = find(runs, at).ok()?;
                let word = runs[index].held;
                cut(runs, index, at);
                if runs.is_empty() {
                    *runs = Vec::new();
                } else if runs.len() < runs.capacity() / 4 {
                    runs.shrink_to(2 * runs.len());
                }
                word
            }
            Self::Table(table) => {
                let word = table.get(at)?.get();
                table.clear(at);
                if table.count() < TABLE_MIN {
                    let mut runs = Vec::new();
                    table.each_run(|run| runs.push(run));
                    *self = Self::Runs(runs);
                }
                word
            }
        };
        Held::unpack(word)
    }

    /// The run that ends where the chunk does so far.
    fn last_run(&mut self) -> Option<&mut Run> {
        match self {
            Self::Runs(runs) => runs.last_mut(),
            Self::Table(_) => None,
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self, Self::Runs(runs) if runs.is_empty())
    }

    fn each_run(&self, mut each: impl FnMut(Run)) {
        match self {
            Self::Runs(runs) => runs.iter().copied().for_each(each),
            Self::Table(table) => table.each_run(&mut each),
        }
    }

    /// Bytes of memory.
    fn held_bytes(&self) -> usize {
        match self {
            Self::Runs(runs) => runs.capacity() * size_of::<Run>(),
            Self::Table(table) => table.held_bytes(),
        }
    }
}

impl Cold {
    fn chunk(&self, number: u64) -> Option<&Chunk> {
        match &self.last {
            (last, chunk) if *last == number => Some(chunk),
            _ => self.chunks.get(&number),
        }
    }

    /// Goes on to a chunk behind the last.
    fn begin_chunk(&mut self, number: u64) {
        let (before, chunk) = mem::replace(&mut self.last, (number, Chunk::default()));
        if !chunk.is_empty() {
            self.chunks.insert(before, chunk);
        }
    }

    pub(super) fn get(&self, at: u64) -> Option<Held> {
        self.chunk(at / CHUNK)?.get((at % CHUNK) as u16)
    }

    /// Adds a record, or changes who holds it.
    pub(super) fn insert(&mut self, at: u64, held: Held) {
        self.change(at / CHUNK, |chunk| chunk.insert((at % CHUNK) as u16, held.pack()));
    }

    /// Changes a chunk, which may not be there yet.
    fn change(&mut self, number: u64, change: impl FnOnce(&mut Chunk)) {
        if number > self.last.0 {
            self.begin_chunk(number);
        }
        let chunk = match &mut self.last {
            (last, chunk) if *last == number => chunk,
            _ => self.chunks.entry(number).or_default(),
        };
        self.bytes -= chunk.held_bytes();
        change(chunk);
        self.bytes += chunk.held_bytes();
    }

    /// Adds records one after the other that the same set holds, or changes who holds them.
    pub(super) fn insert_all(&mut self, records: Range<u64>, held: Held) {
        let mut at = records.start;
        while at < records.end {
            let end = records.end.min((at / CHUNK + 1) * CHUNK);
            self.insert(at, held);
            let is_last = self.last.0 == at / CHUNK;
            match self.last.1.last_run().filter(|_| is_last) {
                // The one that was added was the last of the chunk: the others follow it.
                Some(run) if u64::from(run.end()) == at % CHUNK + 1 => {
                    run.len += (end - at - 1) as u16
                }
                _ => (at + 1..end).for_each(|at| self.insert(at, held)),
            }
            at = end;
        }
    }

    /// Adds records one after the other, or changes who holds them.
    pub(super) fn insert_each(&mut self, first: u64, mut held: &[Held]) {
        let mut at = first;
        while !held.is_empty() {
            let left = (CHUNK - at % CHUNK) as usize;
            let (here, behind) = held.split_at(left.min(held.len()));
            self.change(at / CHUNK, |chunk| chunk.insert_each((at % CHUNK) as u16, here));
            at += here.len() as u64;
            held = behind;
        }
    }

    /// Takes a record out.
    pub(super) fn remove(&mut self, at: u64) -> Option<Held> {
        let number = at / CHUNK;
        let is_last = self.last.0 == number;
        let chunk = if is_last { &mut self.last.1 } else { self.chunks.get_mut(&number)? };
        self.bytes -= chunk.held_bytes();
        let held = chunk.remove((at % CHUNK) as u16);
        self.bytes += chunk.held_bytes();
        if chunk.is_empty() && !is_last {
            self.chunks.remove(&number);
        }
        held
    }

    /// For those who ask for one record after the other.
    pub(super) fn ascending(&self) -> Ascending<'_> {
        Ascending { cold: self, number: u64::MAX, chunk: None, runs: &[], before: 0 }
    }

    /// The chunk of this number, if it has records.
    pub(super) fn held_in(&self, number: u64) -> Option<HeldChunk<'_>> {
        self.chunk(number).filter(|chunk| !chunk.is_empty()).map(HeldChunk)
    }

    /// All chunks with records, ascending, each with its number.
    pub(super) fn chunks(&self) -> impl Iterator<Item = (u64, HeldChunk<'_>)> {
        let (last, chunk) = &self.last;
        let all = self.chunks.iter().chain([(last, chunk)]).filter(|(_, chunk)| !chunk.is_empty());
        all.map(|(number, chunk)| (*number, HeldChunk(chunk)))
    }

    /// Tells of all records: the first of a run of neighbours that the same set holds, and how many those are.
    pub(super) fn each_run(&self, mut each: impl FnMut(u64, u64, Held)) {
        for (number, chunk) in self.chunks() {
            chunk.0.each_run(|run| {
                if let Some(held) = Held::unpack(run.held) {
                    each(number * CHUNK + u64::from(run.start), u64::from(run.len), held);
                }
            });
        }
    }

    /// Bytes of memory.
    pub(super) fn held_bytes(&self) -> usize {
        // A node of the tree is for eleven chunks and half full at worst.
        self.chunks.len() * 2 * (size_of::<u64>() + size_of::<Chunk>()) + self.bytes
    }
}

/// Adds an offset to a row of runs, or changes who holds it.
fn insert(runs: &mut Vec<Run>, at: u16, held: u32) {
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
        // Of a few sets, of many that are close, and of some that are far apart.
        for (span, sets, step) in
            [(10, 3, 1), (300, 3, 1), (20_000, 3, 1), (9_000, 500, 1), (9_000, 9, 50_000)]
        {
            let (mut cold, mut map) = (Cold::default(), BTreeMap::new());
            for _ in 0..60_000 {
                let at = 4000 + rng(span);
                let set = SetId::new(1 + step * rng(sets) as u32).unwrap();
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
            let mut runs = BTreeMap::new();
            cold.each_run(|first, len, held| {
                runs.extend((first..first + len).map(|at| (at, held)));
            });
            assert_eq!(runs, map);
            for at in 4000..4000 + span {
                assert_eq!(cold.get(at), map.get(&at).copied());
                assert_eq!(cold.remove(at), map.remove(&at));
            }
            assert_eq!(cold.held_bytes(), 0);
        }
    }

    #[test]
    fn each_of_many_is_as_one_after_the_other() {
        let mut rng = crate::suite::numbers(13);
        // Chunks of runs, narrow tables, wide ones; the last chunk and others.
        for (sets, step) in [(3, 1), (500, 1), (500, 50_000)] {
            let (mut at_once, mut singly) = (Cold::default(), Cold::default());
            for _ in 0..100 {
                let at = rng(30_000);
                let held: Vec<Held> = (0..rng(600))
                    .map(|_| SetId::new(1 + step * rng(sets) as u32).unwrap())
                    .map(|set| Held { set, is_volatile: false })
                    .collect();
                at_once.insert_each(at, &held);
                (at..).zip(&held).for_each(|(at, held)| singly.insert(at, *held));
            }
            for at in 0..31_000 {
                assert_eq!(at_once.get(at), singly.get(at), "{at}");
            }
            for at in 0..31_000 {
                assert_eq!(at_once.remove(at), singly.get(at), "{at}");
            }
            assert_eq!(at_once.held_bytes(), 0);
        }
    }

    /// Queues whose messages lie in turn: the first records of a chunk need not be those of the least queue.
    #[test]
    fn what_lies_mixed_costs_two_bytes_a_record() {
        let mut cold = Cold::default();
        let set = |at: u64| SetId::new(1_000_000 + ((at + 700) % 1000) as u32).unwrap();
        let held: Vec<_> =
            (0..100_000).map(|at| Held { set: set(at), is_volatile: false }).collect();
        for (first, held) in (0..).step_by(256).zip(held.chunks(256)) {
            cold.insert_each(first, held);
        }
        assert!(cold.held_bytes() < 215_000, "{}", cold.held_bytes());
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

    /// A thousand queues that lie mixed.
    fn mixed(count: u64) -> Cold {
        let mut cold = Cold::default();
        for at in 0..count {
            let set = SetId::new((1 << 30) + 7 + (at % 1000) as u32).unwrap();
            cold.insert(at, Held { set, is_volatile: false });
        }
        cold
    }

    #[test]
    fn a_mixed_backlog_costs_two_bytes_a_record() {
        let mut cold = mixed(1_000_000);
        assert!(cold.held_bytes() < 2_060_000, "{}", cold.held_bytes());
        // All but one of the queues are empty.
        (0..1_000_000).filter(|at| at % 1000 != 5).for_each(|at| _ = cold.remove(at));
        assert!(cold.held_bytes() < 60_000, "{}", cold.held_bytes());
        (0..1000).for_each(|n| assert!(cold.remove(1000 * n + 5).is_some()));
        assert_eq!(cold.held_bytes(), 0);
    }

    #[test]
    fn sets_that_are_far_apart_fit_one_chunk() {
        let mut cold = mixed(4096);
        let set = SetId::new(1).unwrap();
        let held = Held { set, is_volatile: true };
        let before = cold.get(7);
        cold.insert(5000, held);
        (5000..5100).for_each(|at| cold.insert(at % CHUNK, held));
        assert_eq!((cold.get(7), cold.get(910)), (before, Some(held)));
    }
}
