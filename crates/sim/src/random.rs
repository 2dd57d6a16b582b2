//! The one source of chance of a simulation: everything in it follows from the seed.

/// What a whole simulation follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub u64);

/// SplitMix64: small, seeded, the same everywhere.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// A stream of its own per `purpose`, so that drawing more for one purpose changes no other.
    pub(crate) fn new(seed: Seed, purpose: u64) -> Self {
        let mut random = Self(seed.0 ^ purpose.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        random.next();
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 when that is 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { (self.next() % bound as u64) as usize }
    }

    /// True once in `n` times on average.
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// A number from 1 to `max`, often small, often all: for splitting what should not mind.
    pub(crate) fn part(&mut self, max: usize) -> usize {
        let part = match self.below(8) {
            0 => 1,
            1 | 2 => 1 + self.below(16),
            3 | 4 => 1 + self.below(max),
            _ => max,
        };
        part.clamp(1, max.max(1))
    }

    /// One of these.
    pub(crate) fn pick<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        all.get(self.below(all.len()))
    }
}
