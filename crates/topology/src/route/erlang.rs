//! Hashes and random numbers as Erlang makes them, so that the hash exchanges choose the destinations that
//! RabbitMQ's choose. Hot path: arithmetic alone.

/// Hashes are told apart by so many bits.
const PHASH_BITS: u32 = 27;
/// Erlang's constants are multiples of this one.
const GOLDEN: u32 = 0x9e37_79b9;
/// `erlang:phash2(undefined)`.
const UNDEFINED: u32 = 45_914_356;
/// `erlang:phash2(false)` and `erlang:phash2(true)`.
const BOOL: [u32; 2] = [7_111_573, 506_293];

/// `erlang:phash2` of a binary.
pub(super) fn phash(bytes: &[u8]) -> u32 {
    binary(bytes, 0) % (1 << PHASH_BITS)
}

/// `erlang:phash2` of a list of binaries.
pub(super) fn phash_list<'a>(binaries: impl Iterator<Item = &'a [u8]>) -> u32 {
    let hash = binaries.fold(0, |hash, bytes| binary(bytes, hash));
    let tag = GOLDEN.wrapping_mul(2);
    mix(tag.wrapping_add(2), tag, hash) % (1 << PHASH_BITS)
}

/// `erlang:phash2` of a truth value.
pub(super) fn phash_bool(value: bool) -> u32 {
    BOOL[usize::from(value)]
}

/// `erlang:phash2` of what is not there.
pub(super) fn phash_undefined() -> u32 {
    UNDEFINED
}

fn binary(bytes: &[u8], hash: u32) -> u32 {
    let start = GOLDEN.wrapping_mul(13).wrapping_add(hash);
    if bytes.is_empty() { start } else { jenkins(bytes, start) }
}

/// Bob Jenkins' hash of 1996.
fn jenkins(bytes: &[u8], start: u32) -> u32 {
    let (mut a, mut b, mut c) = (GOLDEN, GOLDEN, start);
    let word = |chunk: &[u8], at: usize| {
        (0..4).rev().fold(0, |word, n| (word << 8) | u32::from(*chunk.get(at + n).unwrap_or(&0)))
    };
    let mut chunks = bytes.chunks_exact(12);
    for chunk in &mut chunks {
        a = a.wrapping_add(word(chunk, 0));
        b = b.wrapping_add(word(chunk, 4));
        c = c.wrapping_add(word(chunk, 8));
        (a, b, c) = mix_all(a, b, c);
    }
    let rest = chunks.remainder();
    a = a.wrapping_add(word(rest, 0));
    b = b.wrapping_add(word(rest, 4));
    // The lowest byte is the length's.
    c = c.wrapping_add(word(rest, 8) << 8).wrapping_add(bytes.len() as u32);
    mix(a, b, c)
}

fn mix(a: u32, b: u32, c: u32) -> u32 {
    mix_all(a, b, c).2
}

fn mix_all(mut a: u32, mut b: u32, mut c: u32) -> (u32, u32, u32) {
    for [first, second, third] in [[13, 8, 13], [12, 16, 5], [3, 10, 15]] {
        a = a.wrapping_sub(b).wrapping_sub(c) ^ (c >> first);
        b = b.wrapping_sub(c).wrapping_sub(a) ^ (a << second);
        c = c.wrapping_sub(a).wrapping_sub(b) ^ (b >> third);
    }
    (a, b, c)
}

/// Random numbers of `rand`'s `exs1024`: xorshift1024*.
pub(super) struct Exs1024 {
    words: [u64; 16],
    at: usize,
}

impl Exs1024 {
    /// `rand:seed_s(exs1024, {Key, Key, Key})`.
    pub(super) fn new(key: u32) -> Self {
        let part = |factor: u64| {
            let mask = (1 << 21) - 1;
            (((u64::from(key) & mask) + 1) * factor) & mask
        };
        let mut x = (part(2_097_131) << 43) | (part(2_097_133) << 22) | (part(2_097_143) << 1) | 1;
        let mut words = [0; 16];
        // xorshift64*, the last number first.
        for word in words.iter_mut().rev() {
            x ^= x >> 12;
            x ^= x << 25;
            x ^= x >> 27;
            *word = x.wrapping_mul(2_685_821_657_736_338_717);
        }
        Self { words, at: 0 }
    }

    /// From 0 to 1.
    pub(super) fn uniform(&mut self) -> f64 {
        let first = self.words[self.at];
        self.at = (self.at + 1) % self.words.len();
        let mut second = self.words[self.at];
        // Erlang shifts within 64 bits.
        second ^= second << 31;
        second ^= second >> 11;
        let next = first ^ (first >> 30) ^ second;
        self.words[self.at] = next;
        next.wrapping_mul(1_181_783_497_276_652_981) as f64 / 2_f64.powi(64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Both sides of each row are what Erlang/OTP says.
    #[test]
    #[rustfmt::skip] // a table
    fn hashes() {
        let check = |text: &str, want| assert_eq!(phash(text.as_bytes()), want, "{text:?}");
        check("",              13_708_901);
        check("a",             112_802_447);
        check("key1",          124_145_142);
        check("elevenbytes",   40_652_766);
        check("twelve bytes",  93_359_736);
        check("thirteenbytes", 11_161_851);
        check("a routing key of more than twenty-four bytes", 118_115_022);
    }

    #[test]
    #[rustfmt::skip] // a table
    fn hashes_of_lists() {
        let check = |keys: &[&str], want: u32| {
            let found = phash_list(keys.iter().map(|key| key.as_bytes()));
            assert_eq!(found, want % (1 << PHASH_BITS), "{keys:?}");
        };
        check(&[""],              440_873_397);
        check(&["a"],             3_543_352_798);
        check(&["key1"],          2_119_020_883);
        check(&["key1", "other"], 1_569_724_268);
    }
}
