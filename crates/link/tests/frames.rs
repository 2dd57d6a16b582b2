//! Letters go in at one end of a connection and come out at the other.

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;

use bytes::Bytes;
use leveret_counting as counting;
use leveret_link::frame::{Class, Envelope, FRAME_MAX, FrameError, HEAD, Kind, Letter, PIECE_MAX};
use leveret_link::payload::{Payload, SHARE_MIN, Writer};
use leveret_link::receiver::{Limits, Receiver};
use leveret_link::sender::{OUTPUT_MAX, Sender};
use leveret_topology::GroupId;
use proptest::collection::vec;
use proptest::prelude::*;

const LIMITS: Limits = Limits { letter: 8 << 20, unfinished: 64 << 20 };

fn letter(class: Class, group: u32, number: u64, pieces: &[Bytes]) -> Letter {
    let envelope =
        Envelope { kind: Kind::new(class, 5), again: false, group: GroupId::new(group), number };
    let mut writer = Writer::default();
    pieces.iter().for_each(|piece| writer.share(piece));
    Letter { envelope, payload: writer.finish() }
}

/// Bytes that differ from place to place.
fn bytes(len: usize, seed: u64) -> Bytes {
    let mut word = seed | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.truncate(len);
    bytes.into()
}

/// Up to `max` bytes of what a sender has to write.
fn write(sender: &mut Sender, max: usize) -> Vec<u8> {
    sender.fill();
    assert!(sender.output_len() <= OUTPUT_MAX);
    let mut slices = [IoSlice::new(&[]); 64];
    let count = sender.slices(&mut slices);
    let mut written: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
    written.truncate(max);
    sender.advance(written.len());
    written
}

/// All that is left.
fn write_all(sender: &mut Sender) -> Vec<u8> {
    let mut written = Vec::new();
    loop {
        let some = write(sender, usize::MAX);
        if some.is_empty() {
            assert_eq!((sender.output_len(), sender.waiting_len()), (0, 0));
            return written;
        }
        written.extend(some);
    }
}

/// What a receiver makes of a read.
fn read(receiver: &mut Receiver, read: &[u8]) -> Result<Vec<Letter>, FrameError> {
    receiver.buffer().extend_from_slice(read);
    let mut letters = Vec::new();
    while let Some(letter) = receiver.next()? {
        letters.push(letter);
    }
    Ok(letters)
}

fn class() -> impl Strategy<Value = Class> {
    prop_oneof![Just(Class::Batches), Just(Class::Letters), Just(Class::Snapshots)]
}

fn pieces() -> impl Strategy<Value = Vec<Bytes>> {
    let len = prop_oneof![
        20 => 0..200_usize,
        5 => SHARE_MIN - 2..SHARE_MIN + 2,
        3 => 5_000..70_000_usize,
        1 => PIECE_MAX - 2..PIECE_MAX + 2,
        1 => 300_000..900_000_usize,
    ];
    vec((len, any::<u64>()).prop_map(|(len, seed)| bytes(len, seed)), 0..4)
}

fn letters() -> impl Strategy<Value = Letter> {
    (class(), 1..4_u8, any::<bool>(), 0..3_u32, any::<u64>(), pieces()).prop_map(
        |(class, kind, again, group, number, pieces)| {
            let mut letter = letter(class, group, number, &pieces);
            letter.envelope.kind = Kind::new(class, kind);
            letter.envelope.again = again;
            letter
        },
    )
}

#[derive(Clone, Debug)]
enum Step {
    Put(Letter),
    Write(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let write = prop_oneof![0..100_usize, 0..3_000_000_usize];
    vec(prop_oneof![3 => letters().prop_map(Step::Put), 2 => write.prop_map(Step::Write)], 0..30)
}

type ByLine = BTreeMap<(Class, u32), VecDeque<Letter>>;

fn line(letter: &Letter) -> (Class, u32) {
    (letter.envelope.kind.class(), letter.envelope.group.get())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Whatever is put when, however it is written and read: each line's letters come whole and in order.
    #[test]
    fn letters_come_as_they_go(
        steps in steps(),
        reads in vec(prop_oneof![1..50_usize, 1..200_000_usize], 1..20),
        has_checksums in any::<bool>(),
    ) {
        let (mut sender, mut receiver) = (Sender::new(has_checksums), Receiver::new(has_checksums, LIMITS));
        let (mut sent, mut wire) = (ByLine::new(), Vec::new());
        for step in steps {
            match step {
                Step::Put(letter) => {
                    sent.entry(line(&letter)).or_default().push_back(letter.clone());
                    sender.put(letter);
                }
                Step::Write(max) => wire.extend(write(&mut sender, max)),
            }
        }
        wire.extend(write_all(&mut sender));
        let (mut rest, mut lengths) = (&wire[..], reads.iter().cycle());
        while !rest.is_empty() {
            let (some, left) = rest.split_at(rest.len().min(*lengths.next().unwrap()));
            rest = left;
            for letter in read(&mut receiver, some).unwrap() {
                let first = sent.get_mut(&line(&letter)).and_then(VecDeque::pop_front);
                prop_assert!(first.as_ref() == Some(&letter), "another letter of {:?}", letter.envelope);
            }
        }
        prop_assert!(sent.values().all(VecDeque::is_empty));
        prop_assert_eq!(receiver.unfinished_len(), 0);
    }

    /// Bytes at random, and heads at random before bytes: no panic, and no memory but for what came.
    #[test]
    fn noise(
        frames in vec((vec(any::<u8>(), HEAD), 0..4_u32, 0..3000_u32, any::<bool>()), 0..20),
        has_checksums in any::<bool>(),
        reads in vec(1..2000_usize, 1..20),
    ) {
        let mut wire = Vec::new();
        for (mut head, kind, len, is_well_formed) in frames {
            if is_well_formed {
                head[..4].copy_from_slice(&len.to_le_bytes());
                head[4] = (kind << 6) as u8;
                head[5] &= 2;
                head[6..8].fill(0);
                head[12..16].fill(0);
            }
            wire.extend(head);
            wire.extend(bytes(len as usize, len.into()));
        }
        let before = counting::live_bytes();
        let mut receiver = Receiver::new(has_checksums, LIMITS);
        let (mut rest, mut lengths) = (&wire[..], reads.iter().cycle());
        let mut result = Ok(Vec::new());
        while !rest.is_empty() && result.is_ok() {
            let (some, left) = rest.split_at(rest.len().min(*lengths.next().unwrap()));
            rest = left;
            let largest = counting::largest(|| result = read(&mut receiver, some));
            prop_assert!(largest <= FRAME_MAX, "{} bytes at once", largest);
        }
        if let Err(error) = result {
            prop_assert_eq!(receiver.next(), Err(error), "and from then on");
        }
        prop_assert!(counting::live_bytes() - before <= 256 * 1024);
    }
}

/// Heads of the frames of a stream: class, group, length, whether more follows.
fn heads(mut wire: &[u8]) -> Vec<(Class, u32, usize, bool)> {
    let mut found = Vec::new();
    while let Some((head, rest)) = wire.split_first_chunk::<HEAD>() {
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        let kind = Kind::from_byte(head[4]).unwrap();
        found.push((kind.class(), word(8), word(0) as usize, head[5] & 1 != 0));
        wire = &rest[word(0) as usize..];
    }
    found
}

#[test]
fn what_is_urgent_goes_first() {
    use Class::{Batches, Letters, Snapshots};
    let mut sender = Sender::new(true);
    let long = |class, group| letter(class, group, 1, &[bytes(1_000_000, 1)]);
    sender.put(long(Snapshots, 1));
    sender.put(long(Snapshots, 2));
    sender.fill();
    let chosen = sender.output_len();
    assert!((OUTPUT_MAX - FRAME_MAX..=OUTPUT_MAX).contains(&chosen), "{chosen}");
    // Nothing overtakes what was chosen.
    sender.put(letter(Letters, 1, 1, &[bytes(10, 1)]));
    sender.put(long(Letters, 2));
    sender.put(letter(Letters, 1, 2, &[bytes(20, 1)]));
    sender.put(letter(Batches, 7, 1, &[bytes(30, 1)]));
    sender.fill();
    assert_eq!(sender.output_len(), chosen, "there is no room");
    let frames = heads(&write_all(&mut sender));
    let (full, last) = (PIECE_MAX, 1_000_000 - 3 * PIECE_MAX);
    assert_eq!(
        frames,
        [
            (Snapshots, 1, full, true),
            (Snapshots, 2, full, true),
            (Snapshots, 1, full, true),
            (Snapshots, 2, full, true),
            (Batches, 7, 30, false),
            (Letters, 1, 10, false),
            (Letters, 2, full, true),
            (Letters, 1, 20, false),
            (Letters, 2, full, true),
            (Letters, 2, full, true),
            (Letters, 2, last, false),
            (Snapshots, 1, full, true),
            (Snapshots, 2, full, true),
            (Snapshots, 1, last, false),
            (Snapshots, 2, last, false),
        ]
    );
}

#[test]
fn long_bodies_are_not_copied() {
    let (short, long) = (bytes(SHARE_MIN - 1, 1), bytes(SHARE_MIN, 2));
    let mut sender = Sender::new(true);
    sender.put(letter(Class::Letters, 1, 1, &[short.clone(), long.clone(), short]));
    sender.fill();
    let mut slices = [IoSlice::new(&[]); 8];
    assert_eq!(sender.slices(&mut slices), 3);
    assert_eq!(slices[1].as_ptr(), long.as_ptr(), "written from where it is");
    assert_eq!(slices[0].len(), HEAD + SHARE_MIN - 1);
    let wire = write_all(&mut sender);

    let mut receiver = Receiver::new(true, LIMITS);
    receiver.buffer().extend_from_slice(&wire);
    let block = receiver.buffer().as_ptr_range();
    let letter = receiver.next().unwrap().unwrap();
    let [piece] = letter.payload.pieces() else { panic!("one piece") };
    assert!(block.contains(&piece.as_ptr()), "a slice of the read");
}

/// The other side sends byte by byte: that costs neither a copy each nor a piece each.
#[test]
fn dripping_bytes_are_few_pieces() {
    let mut sender = Sender::new(true);
    sender.put(letter(Class::Letters, 1, 1, &[bytes(700_000, 1)]));
    let wire = write_all(&mut sender);
    let mut receiver = Receiver::new(true, LIMITS);
    let (before, bytes_before) = (counting::allocations(), counting::allocated_bytes());
    let mut found = None;
    for byte in wire {
        receiver.buffer().extend_from_slice(&[byte]);
        found = receiver.next().unwrap().or(found);
    }
    let found = found.unwrap();
    assert!(found.payload.pieces().len() <= 700_000 / SHARE_MIN + 3);
    assert!(counting::allocations() - before <= 100, "{}", counting::allocations() - before);
    assert!(counting::allocated_bytes() - bytes_before <= 1_000_000, "no byte of it twice");
}

/// Every bit counts, whatever it is of.
#[test]
fn each_flipped_bit_is_found() {
    /// So much at least follows, so that a length that became larger is found out, too.
    const LONG: usize = 140_000;
    let sent: Vec<_> = (0..4)
        .map(|at| letter(Class::ALL[at % 3], 1, 1 + at as u64, &[bytes(20 * at, 1)]))
        .chain([letter(Class::Batches, 2, 9, &[bytes(LONG, 1)])])
        .collect();
    let mut sender = Sender::new(true);
    sent.iter().for_each(|letter| sender.put(letter.clone()));
    let wire = write_all(&mut sender);
    let mut by_line = ByLine::new();
    for letter in &sent {
        by_line.entry(line(letter)).or_default().push_back(letter.clone());
    }
    for bit in (0..250 * 8).chain((wire.len() - 40) * 8..wire.len() * 8) {
        let mut wire = wire.clone();
        wire[bit / 8] ^= 1 << (bit % 8);
        wire.extend_from_slice(&[0xff; LONG]);
        let mut receiver = Receiver::new(true, LIMITS);
        receiver.buffer().extend_from_slice(&wire);
        let mut expected = by_line.clone();
        let error = loop {
            match receiver.next() {
                Ok(letter) => {
                    let letter = letter.expect("it is found");
                    let first = expected.get_mut(&line(&letter)).and_then(VecDeque::pop_front);
                    assert_eq!(first.as_ref(), Some(&letter), "bit {bit}");
                }
                Err(error) => break error,
            }
        };
        // Found where it is, and not by what follows all.
        let at_end = FrameError::Length(u32::MAX);
        assert!(error != at_end, "bit {bit}: {error}");
    }
}

/// A frame as bytes. The head's fields in order, but for the checksum.
fn frame(len: u32, kind: u8, flags: u8, spare: u16, number: u64) -> Vec<u8> {
    let mut wire = [&len.to_le_bytes()[..], &[kind, flags]].concat();
    wire.extend(spare.to_le_bytes());
    wire.extend(7_u32.to_le_bytes());
    wire.extend(0_u32.to_le_bytes());
    wire.extend(number.to_le_bytes());
    wire.extend(bytes(len.min(PIECE_MAX as u32) as usize, 1));
    wire
}

#[test]
fn refusals() {
    let full = PIECE_MAX as u32;
    let limits = Limits { letter: 500_000, unfinished: 300_000 };
    let check = |frames: &[Vec<u8>], has_checksums: bool, want: &str| {
        let mut receiver = Receiver::new(has_checksums, limits);
        let found = read(&mut receiver, &frames.concat());
        assert_eq!(found.unwrap_err().to_string(), want);
    };
    check(
        &[frame(full + 1, 64, 0, 0, 1)],
        false,
        "a frame says that 262121 bytes follow its head; 262120 are allowed",
    );
    check(&[frame(1, 0xc1, 0, 0, 1)], false, "a frame of the unknown kind 193");
    check(&[frame(1, 64, 4, 0, 1)], false, "a frame with unknown flags: 0x04, 0x0000");
    check(&[frame(1, 64, 0, 256, 1)], false, "a frame with unknown flags: 0x00, 0x0100");
    check(
        &[frame(full - 1, 64, 1, 0, 1)],
        false,
        "a frame of 262119 bytes says that more of its letter follows; such a frame has 262120",
    );
    for other in [frame(1, 65, 0, 0, 1), frame(1, 64, 0, 0, 2)] {
        let (kind, number) = (other[4], other[16]);
        check(
            &[frame(full, 64, 1, 0, 1), other],
            false,
            &format!(
                "a frame of kind {kind}, number {number}, where a letter of kind 64, number 1, goes on"
            ),
        );
    }
    check(
        &[frame(full, 64, 1, 0, 1), frame(full, 64, 0, 0, 1)],
        false,
        "a letter of more than 500000 bytes",
    );
    check(
        &[frame(full, 64, 1, 0, 1), frame(full, 128, 1, 0, 1)],
        false,
        "letters that have begun have more than 300000 bytes together",
    );
    check(
        &[frame(0, 64, 0, 0, 1)],
        true,
        "a frame's checksum is 00000000, its bytes have 3b34a575: the network, or a machine's memory, changes bytes",
    );
    let mut summed = frame(0, 64, 0, 0, 1);
    summed[12] = 1;
    check(&[summed], false, "a frame has a checksum, which it has not under TLS");
}

/// The bytes that another version has to understand.
#[test]
fn golden() {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    for (has_checksums, checksum) in [(true, "5da2c092"), (false, "00000000")] {
        let mut sender = Sender::new(has_checksums);
        let mut letter = letter(Class::Letters, 0x0102, 0x03_04, &[Bytes::from_static(b"abc")]);
        letter.envelope.again = true;
        sender.put(letter);
        let want = format!("030000004502000002010000{checksum}0403000000000000616263");
        assert_eq!(hex(&write_all(&mut sender)), want);
    }
}

/// Letters of one message each: neither end allocates for each of them.
#[test]
fn allocations() {
    const LETTERS: u64 = 10_000;
    let (mut sender, mut receiver) = (Sender::new(true), Receiver::new(true, LIMITS));
    let (body, mut writer) = (bytes(100, 1), Writer::default());
    let mut wire = Vec::with_capacity(1 << 20);
    let mut round = |count: u64| {
        let mut came = 0;
        for number in 0..count {
            writer.put(&number.to_le_bytes());
            writer.share(&body);
            let envelope = Envelope {
                kind: Kind::new(Class::Letters, 1),
                again: false,
                group: GroupId::new(1),
                number,
            };
            sender.put(Letter { envelope, payload: writer.finish() });
            if number % 10 != 9 {
                continue;
            }
            sender.fill();
            let mut slices = [IoSlice::new(&[]); 16];
            let slots = sender.slices(&mut slices);
            wire.clear();
            slices[..slots].iter().for_each(|slice| wire.extend_from_slice(slice));
            sender.advance(wire.len());
            receiver.buffer().extend_from_slice(&wire);
            while receiver.next().unwrap().is_some() {
                came += 1;
            }
        }
        came
    };
    round(1_000);
    let before = counting::allocations();
    assert_eq!(round(LETTERS), LETTERS);
    let each = (counting::allocations() - before) as f64 / LETTERS as f64;
    assert!(each < 0.02, "{each} allocations for a letter");
}

#[test]
fn payloads_are_equal_by_their_bytes() {
    let mut pieces = Payload::from(Bytes::from_static(b"ab"));
    pieces.push(Bytes::new());
    pieces.push(Bytes::from_static(b"c"));
    assert_eq!((pieces.len(), pieces.pieces().len()), (3, 2));
    assert_eq!(pieces, Payload::from(Bytes::from_static(b"abc")));
    assert_ne!(pieces, Payload::from(Bytes::from_static(b"abd")));
}
