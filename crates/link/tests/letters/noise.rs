//! Damaged letters, and letters of noise: they are read or refused, and take what their bytes pay for.

use std::fmt::Debug;

use bytes::Bytes;
use leveret_counting as counting;
use leveret_link::frame::{Class, Envelope, Kind, Letter};

use crate::any::Seeded;
use crate::{GROUP, split};

/// What a letter may take in memory for each of its bytes: a table's entry of two bytes takes some 60, and lists grow.
const FACTOR: u64 = 100;

/// Letters like these, some of them of any kind of this class; `again` looks at what could be read.
pub(crate) fn check<T: Debug, E: Debug>(
    letters: &[Letter],
    class: Class,
    read: impl Fn(&Letter) -> Result<T, E>,
    again: impl Fn(&T),
) {
    for seed in 0..30_000_u64 {
        let mut any = Seeded::new(seed);
        let Letter { envelope: Envelope { mut kind, .. }, payload } =
            letters[any.below(letters.len())].clone();
        let mut bytes = payload.to_vec();
        match any.below(4) {
            0 => {
                kind = Kind::new(Class::ALL[any.below(3)], any.next() as u8);
                bytes = (0..any.below(200)).map(|_| any.next() as u8).collect();
            }
            1 => bytes.truncate(any.below(bytes.len() + 1)),
            2 => kind = Kind::new(class, any.next() as u8),
            _ => {}
        }
        for _ in 0..any.below(4) {
            if let Some(last) = bytes.len().checked_sub(1) {
                let at = any.below(last + 1);
                bytes[at] = [any.next() as u8, 0xff, 0x80, 0][any.below(4)];
            }
        }
        let len = bytes.len() as u64;
        let payload = split(&Bytes::from(bytes).into(), &mut any);
        let letter =
            Letter { envelope: Envelope { kind, again: false, group: GROUP, number: 17 }, payload };
        let before = counting::allocated_bytes();
        let came = read(&letter);
        let taken = counting::allocated_bytes() - before;
        assert!(taken <= 1024 + FACTOR * len, "seed {seed}: {taken} bytes for {len}: {came:?}");
        if let Ok(came) = came {
            again(&came);
        }
    }
}
