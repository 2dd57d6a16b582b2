//! Recorded sessions with damage, from a seed: never a panic, never memory by a length that is only
//! claimed. `fuzz/` does the same with coverage to guide it; this runs with every test.

mod common;

use common::{Seeded, client_session, consumer_session, look_into};
use leveret_amqp::frame::Decoder;
use leveret_amqp::table::{RawTable, RawValue};

/// Inputs are below 8 KiB; owning a table takes some 60 bytes per entry of two, grown by doubling.
const LARGEST_MAX: usize = 1024 * 1024;

/// Bytes that mean something somewhere: lengths, kinds, ends, frame types.
const TELLING: &[u8] = b"\x00\x01\x02\x03\x08\x3c\x7f\x80\xce\xff\x20AFSxtbBsuIilLfdDTV";

fn damage(bytes: &mut Vec<u8>, rng: &mut Seeded) {
    for _ in 0..=rng.below(3) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.below(bytes.len());
        match rng.below(8) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = rng.next() as u8,
            2 | 3 => bytes[at] = TELLING[rng.below(TELLING.len())],
            4 => bytes.insert(at, TELLING[rng.below(TELLING.len())]),
            5 => drop(bytes.remove(at)),
            6 => bytes.truncate(at),
            _ => {
                let piece: Vec<u8> = bytes[at..].iter().copied().take(rng.below(16)).collect();
                let to = rng.below(bytes.len());
                bytes.splice(to..to, piece);
            }
        }
    }
}

/// Frames one by one, each damaged many times; sizes in frame headers are made right again in half of the
/// cases, so that damage reaches what is inside.
#[test]
fn frames() {
    let mut frames: Vec<Vec<u8>> = Vec::new();
    for session in [client_session(), consumer_session()] {
        let mut rest = &session[..];
        while let [_, _, _, s0, s1, s2, s3, ..] = rest {
            let len = u32::from_be_bytes([*s0, *s1, *s2, *s3]) as usize + 8;
            frames.push(rest[..len].to_vec());
            rest = &rest[len..];
        }
    }
    frames.retain(|frame| frame.len() < 400);
    let mut rng = Seeded(0x001e_7e7e);
    let (mut good, mut bad) = (0u64, 0u64);
    let mut bytes = Vec::with_capacity(1024);
    let mut round = || {
        bytes.clear();
        bytes.extend_from_slice(&frames[rng.below(frames.len())]);
        damage(&mut bytes, &mut rng);
        if rng.below(2) == 0 && bytes.len() >= 8 {
            let size = u32::try_from(bytes.len() - 8).unwrap();
            bytes[3..7].copy_from_slice(&size.to_be_bytes());
            *bytes.last_mut().unwrap() = 0xCE;
        }
        if read_all(&bytes, &mut rng) { good += 1 } else { bad += 1 }
    };
    let largest = leveret_counting::largest(|| (0..1_000_000).for_each(|_| round()));
    // Damage must pass the outer layer often, and be noticed often.
    assert!(good > 50_000 && bad > 50_000, "{good} good, {bad} bad");
    assert!(largest < LARGEST_MAX, "{largest} bytes at once");
}

/// Whole sessions with one damage each, cut at random places.
#[test]
fn sessions() {
    let mut rng = Seeded(42);
    let sessions = [client_session(), consumer_session()];
    let mut round = |number: usize| {
        let mut bytes = sessions[number % 2].clone();
        damage(&mut bytes, &mut rng);
        read_all(&bytes, &mut rng);
    };
    let largest = leveret_counting::largest(|| (0..20_000).for_each(&mut round));
    assert!(largest < LARGEST_MAX, "{largest} bytes at once");
}

/// False at the first mistake.
fn read_all(bytes: &[u8], rng: &mut Seeded) -> bool {
    let mut decoder = Decoder::new(4096);
    let (mut at, mut end, mut is_good) = (0, bytes.len(), true);
    if rng.below(4) == 0 {
        end = rng.below(bytes.len() + 1);
    }
    loop {
        match decoder.next(&bytes[at..end]) {
            Ok(Some((event, used))) => {
                assert!(used > 0 && at + used <= end);
                at += used;
                is_good &= look_into(&event);
            }
            Ok(None) if end == bytes.len() => return is_good,
            Ok(None) => end = bytes.len(),
            Err(error) => {
                assert!(error.to_string().starts_with("type "));
                return false;
            }
        }
    }
}

/// Tables of random letters: mostly wrong, often for several levels right.
#[test]
fn tables() {
    let mut rng = Seeded(7);
    let mut good = 0;
    for _ in 0..200_000 {
        let len = rng.below(60);
        let mut bytes: Vec<u8> = (0..len).map(|_| TELLING[rng.below(TELLING.len())]).collect();
        if rng.below(2) == 0 {
            wrap(&mut bytes, &mut rng);
        }
        let checked = RawTable::new(&bytes).is_ok();
        good += u32::from(checked);
        assert_eq!(checked, RawTable::unchecked(&bytes).to_table().is_ok());
        assert_eq!(checked, walk(RawTable::unchecked(&bytes)));
        let _ = RawTable::unchecked(&bytes).get("A");
    }
    assert!(good > 1000, "{good}");
}

/// Puts a well formed level around the bytes.
fn wrap(bytes: &mut Vec<u8>, rng: &mut Seeded) {
    for _ in 0..=rng.below(4) {
        let mut outer = vec![1, b'k', b"FSxA"[rng.below(4)]];
        outer.extend_from_slice(&u32::try_from(bytes.len()).unwrap().to_be_bytes());
        outer.append(bytes);
        *bytes = outer;
    }
}

/// Reads everything there is through the iterators.
fn walk(table: RawTable<'_>) -> bool {
    let mut tables = vec![table];
    let mut arrays = Vec::new();
    loop {
        let values: Vec<_> = if let Some(table) = tables.pop() {
            table.iter().map(|entry| entry.map(|(_, value)| value)).collect()
        } else if let Some(array) = arrays.pop() {
            let array: leveret_amqp::table::RawArray<'_> = array;
            array.iter().collect()
        } else {
            return true;
        };
        for value in values {
            match value {
                Ok(RawValue::Table(table)) => tables.push(table),
                Ok(RawValue::Array(array)) => arrays.push(array),
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }
}
