//! Chance, by a seed.

/// SplitMix64: a number says what comes next.
pub(super) struct Chance(pub(super) u64);

impl Chance {
    /// A number below.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }

    /// Brings them into an order by chance.
    pub(super) fn shuffle<T>(&mut self, all: &mut [T]) {
        for end in (2..=all.len()).rev() {
            all.swap(end - 1, self.below(end as u64) as usize);
        }
    }
}
