//! Storage that grows without a pause: who adds to it holds the lock of the names, and everybody waits for that.
//!
//! A vector or a table that doubles moves all that is in it at once: 25 s for a trie of 77 million words. These grow piece by
//! piece, and no step moves more than a piece.

use hashbrown::HashTable;

/// Places in a piece: a power of two.
const PIECE: usize = 4096;

/// Values that stay where they are, found by their number.
#[derive(Debug)]
pub(crate) struct Arena<T> {
    /// All are full but for the last one. The first one grows as a vector does, so that few values take little.
    pieces: Vec<Vec<T>>,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self { pieces: Vec::new() }
    }
}

impl<T> Arena<T> {
    pub(crate) fn len(&self) -> usize {
        let full = self.pieces.len().saturating_sub(1) * PIECE;
        full + self.pieces.last().map_or(0, Vec::len)
    }

    #[inline]
    pub(crate) fn get(&self, at: u32) -> Option<&T> {
        self.pieces.get(at as usize / PIECE)?.get(at as usize % PIECE)
    }

    /// Its number.
    pub(crate) fn push(&mut self, value: T) -> u32 {
        let at = u32::try_from(self.len()).expect("fewer than 2^32 places");
        match self.pieces.last_mut().filter(|piece| piece.len() < PIECE) {
            Some(piece) => piece.push(value),
            None => {
                let capacity = if self.pieces.is_empty() { 1 } else { PIECE };
                let mut piece = Vec::with_capacity(capacity);
                piece.push(value);
                self.pieces.push(piece);
            }
        }
        at
    }

    /// In the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.pieces.iter().flatten()
    }
}

impl<T> std::ops::Index<u32> for Arena<T> {
    type Output = T;

    #[inline]
    fn index(&self, at: u32) -> &T {
        &self.pieces[at as usize / PIECE][at as usize % PIECE]
    }
}

impl<T> std::ops::IndexMut<u32> for Arena<T> {
    #[inline]
    fn index_mut(&mut self, at: u32) -> &mut T {
        &mut self.pieces[at as usize / PIECE][at as usize % PIECE]
    }
}

/// Numbers found by a hash, as in a [`HashTable`], in tables of which each is split in two when it is full (extendible hashing).
///
/// Which table a number is in is said by bits of its hash that the tables themselves do not look at.
#[derive(Debug)]
pub(crate) struct SplitTable {
    /// Tables, by the first `depth` of those bits.
    directory: Vec<u32>,
    depth: u32,
    tables: Vec<Part>,
    len: usize,
}

#[derive(Debug, Default)]
struct Part {
    table: HashTable<u32>,
    /// How many of the bits all in it have in common.
    depth: u32,
}

/// Numbers in a table: splitting it takes about a millisecond.
const FULL: usize = 1 << 13;
/// A table takes the low bits of a hash, up to [`FULL`], and the highest seven.
const FIRST_BIT: u32 = 50;
/// Where so many bits are the same, hashes are: splitting is no use.
const DEPTH_MAX: u32 = 24;

impl Default for SplitTable {
    fn default() -> Self {
        Self { directory: vec![0], depth: 0, tables: vec![Part::default()], len: 0 }
    }
}

/// The first `depth` of the bits that say in which table a hash is.
#[inline]
fn place(hash: u64, depth: u32) -> usize {
    ((hash >> (FIRST_BIT - depth)) & ((1 << depth) - 1)) as usize
}

impl SplitTable {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(crate) fn find(&self, hash: u64, is_it: impl FnMut(&u32) -> bool) -> Option<u32> {
        let part = self.directory[place(hash, self.depth)];
        self.tables[part as usize].table.find(hash, is_it).copied()
    }

    /// Inserts what is not there. `hash_of` gives the hash of any number that is.
    pub(crate) fn insert(&mut self, hash: u64, number: u32, hash_of: impl Fn(&u32) -> u64) {
        loop {
            let at = self.directory[place(hash, self.depth)] as usize;
            let part = &mut self.tables[at];
            if part.table.len() < FULL || part.depth == DEPTH_MAX {
                part.table.insert_unique(hash, number, hash_of);
                self.len += 1;
                return;
            }
            self.split(at, &hash_of);
        }
    }

    /// Removes a number; nothing happens if it is not there.
    pub(crate) fn remove(&mut self, hash: u64, number: u32) {
        let at = self.directory[place(hash, self.depth)] as usize;
        if let Ok(found) = self.tables[at].table.find_entry(hash, |&other| other == number) {
            found.remove();
            self.len -= 1;
        }
    }

    fn split(&mut self, at: usize, hash_of: &impl Fn(&u32) -> u64) {
        let depth = self.tables[at].depth + 1;
        if depth > self.depth {
            self.directory = self.directory.iter().flat_map(|&part| [part, part]).collect();
            self.depth = depth;
        }
        let is_second = |hash| place(hash, depth) & 1 == 1;
        let old = std::mem::take(&mut self.tables[at].table);
        let mut halves = [0; 2].map(|_| HashTable::with_capacity(FULL / 2));
        for number in old {
            let hash = hash_of(&number);
            halves[usize::from(is_second(hash))].insert_unique(hash, number, hash_of);
        }
        let new = u32::try_from(self.tables.len()).expect("fewer than 2^32 tables");
        let [first, second] = halves;
        self.tables[at] = Part { table: first, depth };
        self.tables.push(Part { table: second, depth });
        // Those of the old table are side by side; the second half of them are now the new one's.
        let shift = self.depth - depth;
        for (place, part) in self.directory.iter_mut().enumerate() {
            if *part as usize == at && place >> shift & 1 == 1 {
                *part = new;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_where_they_are() {
        let mut arena = Arena::default();
        let count = 3 * PIECE as u32 + 7;
        for number in 0..count {
            assert_eq!(arena.push(number), number);
            assert_eq!(arena.len(), number as usize + 1);
        }
        assert!((0..count).all(|at| arena[at] == at && arena.get(at) == Some(&at)));
        assert_eq!(arena.get(count), None);
        assert!(arena.iter().copied().eq(0..count));
        arena[PIECE as u32] = 0;
        assert_eq!(arena[PIECE as u32], 0);
    }

    /// Hashes of all kinds: spread, in few places, and all the same.
    #[test]
    fn what_was_inserted_is_found_until_it_is_removed() {
        let spread = |number: u32| u64::from(number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        type Kind = fn(u64) -> u64;
        let kinds: [(Kind, u32); 3] = [
            (|hash| hash, 200_000),
            (|hash| hash & 0xff | (hash & 3) << 48, 2 * FULL as u32),
            (|_| 17, FULL as u32 + 100),
        ];
        for (kind, count) in kinds {
            let hash = |number: u32| kind(spread(number));
            let mut table = SplitTable::default();
            for number in 0..count {
                table.insert(hash(number), number, |&it| hash(it));
            }
            let find = |table: &SplitTable, number| table.find(hash(number), |&it| it == number);
            let every = if count > 100_000 { 1 } else { 97 };
            for number in (0..count).step_by(every) {
                assert_eq!(find(&table, number), Some(number));
            }
            assert_eq!(find(&table, count), None);
            assert_eq!(table.len(), count as usize);
            for number in (0..count).filter(|number| number % 3 != 0) {
                table.remove(hash(number), number);
                table.remove(hash(number), number);
            }
            for number in (0..count).step_by(every) {
                assert_eq!(find(&table, number), (number % 3 == 0).then_some(number));
            }
        }
    }

    /// The promise, without a clock: no insertion asks for more hashes than two tables have.
    #[test]
    fn no_step_moves_more_than_a_piece() {
        let asked = std::cell::Cell::new(0);
        let hash = |number: u32| u64::from(number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut table = SplitTable::default();
        let mut most = 0;
        for number in 0..500_000 {
            asked.set(0);
            table.insert(hash(number), number, |&it| {
                asked.set(asked.get() + 1);
                hash(it)
            });
            most = most.max(asked.get());
        }
        assert!(most <= 2 * FULL, "{most}");
    }
}
