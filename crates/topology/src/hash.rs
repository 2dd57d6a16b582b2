//! Hashes of what clients name, and of what is compared with it: with a key of the process, so that nobody can look for names
//! that all fall on one place, and have everybody pay for the search.
//!
//! The key is given once, by whoever starts a node. Without one it is 0, and all is the same on every machine, in every version: the
//! order of a simulation depends on it.

use std::hash::BuildHasher;
use std::sync::OnceLock;

use foldhash::fast::{FixedState, FoldHasher};

static KEY: OnceLock<u64> = OnceLock::new();

/// Gives the process its key: a random number. The first one holds, since what was hashed with it stays.
pub fn set_key(key: u64) {
    let _ = KEY.set(key);
}

#[inline]
fn key() -> u64 {
    *KEY.get_or_init(|| 0)
}

/// The hash of maps whose keys clients choose.
#[derive(Clone, Debug)]
pub struct Keyed(FixedState);

impl Default for Keyed {
    fn default() -> Self {
        Self(FixedState::with_seed(key()))
    }
}

impl BuildHasher for Keyed {
    type Hasher = FoldHasher<'static>;

    #[inline]
    fn build_hasher(&self) -> FoldHasher<'static> {
        self.0.build_hasher()
    }
}

/// Eight bytes at a time: xor, multiply, fold; finished by the mixer of SplitMix64.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hasher64(u64);

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher64 {
    #[inline]
    pub(crate) fn keyed() -> Self {
        Self(OFFSET ^ key())
    }

    /// The same in every process.
    pub(crate) const fn fixed() -> Self {
        Self(OFFSET)
    }

    #[inline]
    pub(crate) fn number(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(PRIME);
        self.0 ^= self.0 >> 32;
    }

    #[inline]
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            let mut word = [0; 8];
            word.copy_from_slice(chunk);
            self.number(u64::from_le_bytes(word));
        }
        let rest = chunks.remainder();
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        self.number(u64::from_le_bytes(word));
        self.number(bytes.len() as u64);
    }

    #[inline]
    pub(crate) fn finish(self) -> u64 {
        mix(self.0)
    }
}

/// The last step of SplitMix64.
#[inline]
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The hash of some bytes.
#[inline]
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = Hasher64::keyed();
    hasher.bytes(bytes);
    hasher.finish()
}
