//! Chance, by a seed.

/// SplitMix64: a number says what comes next.
#[derive(Clone, Debug)]
pub(crate) struct Chance(u64);

impl Chance {
    /// The one of this thread, of this seed.
    pub(crate) fn new(seed: u64, thread: u64) -> Self {
        Self(seed ^ thread.wrapping_mul(0xA076_1D64_78BD_642F))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// Once in so many times.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of them.
    pub(crate) fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_the_same_choices() {
        let choices = |seed, thread| {
            let mut chance = Chance::new(seed, thread);
            [(); 8].map(|()| chance.below(1000))
        };
        assert_eq!(choices(7, 1), choices(7, 1));
        assert_ne!(choices(7, 1), choices(7, 2));
        assert_ne!(choices(7, 1), choices(8, 1));
    }
}
