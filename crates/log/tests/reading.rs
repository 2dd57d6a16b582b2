//! What it costs to read cold records: bytes from the disk, and memory, whoever reads.

use std::collections::{BTreeSet, VecDeque};

use leveret_log::disk::SimDisk;
use leveret_log::file::Options;
use leveret_log::suite::{drive, numbers};
use leveret_log::{FileLog, Holder, Keep, Log, Offset, ReadError};

const MIB: u64 = 1 << 20;
const BODY: usize = 1000;

/// What one reader asks for ahead.
const AHEAD: usize = 16;

/// So few files that none is rewritten.
fn options() -> Options {
    Options { segment_bytes: 64 * MIB, cache_bytes: 0, warm_bytes: 4 * MIB, ..Options::default() }
}

/// A log in which so many holders have records in turn, all of them cold, and the offsets of each.
fn mixed(disk: &SimDisk, holders: u64, each: u64) -> (FileLog<SimDisk>, Vec<Reader>) {
    mixed_with(disk, options(), holders, each)
}

fn mixed_with(
    disk: &SimDisk,
    options: Options,
    holders: u64,
    each: u64,
) -> (FileLog<SimDisk>, Vec<Reader>) {
    let mut log = FileLog::open(disk.clone(), options, &mut |_| {}).unwrap().0;
    let reader = |number| Reader { holder: Holder::new(number), offsets: VecDeque::new() };
    let mut readers: Vec<_> = (0..holders).map(reader).collect();
    for _ in 0..each {
        for reader in &mut readers {
            let at = log.append(b"head", &[&[7; BODY]], &[reader.holder], Keep::Durable).unwrap();
            reader.offsets.push_back(at.get());
            if at.get() % 100 == 99 {
                log.sync().unwrap();
            }
        }
    }
    drive(&mut log);
    log.collect().unwrap();
    (log, readers)
}

/// Reads the records of a holder in order.
struct Reader {
    holder: Holder,
    offsets: VecDeque<u64>,
}

impl Reader {
    /// Takes what is there, at most so many. Asks for what is not.
    fn read(&mut self, log: &mut FileLog<SimDisk>, most: usize) -> Vec<Offset> {
        let mut taken = Vec::new();
        while taken.len() < most
            && let Some(&at) = self.offsets.front()
        {
            let at = Offset::new(at);
            match log.read(at) {
                Ok(record) => assert_eq!(record.bytes.len(), BODY + 4),
                Err(ReadError::Cold { .. }) => {
                    if !log.is_asked(at) {
                        let ahead = self.offsets.iter().take(AHEAD).map(|&at| Offset::new(at));
                        log.fetch_ahead(&ahead.collect::<Vec<_>>());
                    }
                    log.fetch(&[at]);
                    break;
                }
                Err(error) => panic!("{error}"),
            }
            log.taken(at);
            self.offsets.pop_front();
            taken.push(at);
        }
        taken
    }
}

/// A thousand queues that lie mixed and are emptied together, a hundred messages of each at most at a time and few
/// in all: the files are read about once, and memory does not follow the number of queues.
#[test]
fn many_who_read_the_same_files_read_them_once() {
    const HOLDERS: u64 = 1000;
    const EACH: u64 = 60;
    let disk = SimDisk::new(1);
    let (mut log, mut readers) = mixed(&disk, HOLDERS, EACH);
    let (held_before, read_before) = (log.usage().held_bytes, disk.work().read_bytes);
    let (mut left, mut most_held) = (HOLDERS * EACH, 0);
    let mut unacked = VecDeque::new();
    let mut rounds = 0;
    while left > 0 {
        let mut room = 900;
        // Who was given something goes to the back.
        let (mut served, mut waiting) = (Vec::new(), Vec::new());
        for mut reader in readers {
            let taken = reader.read(&mut log, room.min(100));
            room -= taken.len();
            let list = if taken.is_empty() { &mut waiting } else { &mut served };
            unacked.extend(taken.into_iter().map(|at| (at, reader.holder)));
            list.push(reader);
        }
        waiting.extend(served);
        readers = waiting;
        left -= 900 - room as u64;
        // What is out at the consumer is acked much later.
        while unacked.len() > if left > 0 { 20_000 } else { 0 } {
            let (at, holder) = unacked.pop_front().unwrap();
            log.release(at, holder).unwrap();
        }
        log.collect().unwrap();
        most_held = most_held.max(log.usage().held_bytes - held_before);
        rounds += 1;
        assert!(rounds < 100_000, "{left} are never read");
    }
    let (all, read) = (HOLDERS * EACH * BODY as u64, disk.work().read_bytes - read_before);
    assert!(read < all * 3 / 2, "{read} bytes read of {all}");
    assert!(most_held < 8 * MIB, "{most_held} bytes held");
}

/// Readers who are out of step, each by what it was given at once, and so by more records than there is room for whole
/// stretches: of what they lie in little is read besides them.
#[test]
fn many_who_are_out_of_step_read_little_twice() {
    const HOLDERS: u64 = 1000;
    const EACH: u64 = 120;
    let disk = SimDisk::new(5);
    let (mut log, mut readers) = mixed(&disk, HOLDERS, EACH);
    let (held_before, read_before) = (log.usage().held_bytes, disk.work().read_bytes);
    let (mut left, mut most_held) = (HOLDERS * EACH, 0);
    let mut below = numbers(1);
    // What each may be given.
    let mut places = vec![0; readers.len()];
    for round in 0.. {
        assert!(round < 100_000, "{left} are never read");
        for _ in 0..3 {
            let acked = below(places.len() as u64) as usize;
            places[acked] = 60;
        }
        for (reader, places) in readers.iter_mut().zip(&mut places) {
            let taken = reader.read(&mut log, *places);
            *places -= taken.len();
            left -= taken.len() as u64;
            taken.into_iter().for_each(|at| log.release(at, reader.holder).unwrap());
        }
        if left == 0 {
            break;
        }
        log.sync().unwrap();
        most_held = most_held.max(log.usage().held_bytes);
    }
    let (all, read) = (HOLDERS * EACH * BODY as u64, disk.work().read_bytes - read_before);
    assert!(read < all * 3 / 2, "{read} bytes read of {all}");
    assert!(most_held < held_before + 8 * MIB, "{most_held} bytes held, {held_before} before");
}

/// What was read ahead for readers who do not come makes room for one who does.
#[test]
fn what_nobody_takes_is_in_nobodys_way() {
    let disk = SimDisk::new(2);
    let (mut log, mut readers) = mixed(&disk, 100, 200);
    let mut last = readers.pop().unwrap();
    for reader in &readers {
        let all: Vec<_> = reader.offsets.iter().map(|&at| Offset::new(at)).collect();
        log.fetch_ahead(&all);
    }
    while !log.disk().is_idle() {
        log.collect().unwrap();
    }
    let held = log.usage().held_bytes;
    assert!(held < 7 * MIB, "{held} bytes of what nobody takes");
    let mut taken = 0;
    for _ in 0..100_000 {
        taken += last.read(&mut log, usize::MAX).len();
        log.collect().unwrap();
        if last.offsets.is_empty() {
            break;
        }
    }
    assert_eq!(taken, 200);
    // What was dropped for it is still to come.
    for &at in readers.iter().flat_map(|reader| &reader.offsets) {
        let at = Offset::new(at);
        assert!(log.read(at).is_ok() || log.is_asked(at), "{at} is forgotten");
    }
}

/// What is read ahead never drops what was read ahead before: where nobody takes it, both would be read for ever.
#[test]
fn what_nobody_takes_is_not_read_for_ever() {
    for seed in 0..100 {
        let disk = SimDisk::new(seed);
        let options = Options { warm_bytes: 1 << (10 + seed % 5), ..options() };
        let mut log = FileLog::open(disk.clone(), options, &mut |_| {}).unwrap().0;
        let mut below = numbers(seed);
        let mut all = Vec::new();
        for _ in 0..1000 {
            let body = vec![7; below(900) as usize];
            all.push(log.append(b"", &[&body], &[Holder::new(1)], Keep::Durable).unwrap());
        }
        drive(&mut log);
        log.collect().unwrap();
        // A few together here and there, with gaps between them.
        let (mut now, mut ahead) = (Vec::new(), Vec::new());
        for few in all.chunks(20) {
            let asked = few[..6].iter().copied().filter(|_| below(3) > 0).collect::<Vec<_>>();
            if below(4) == 0 { now.push(asked) } else { ahead.extend(asked) }
        }
        log.fetch_ahead(&ahead);
        for few in now {
            log.fetch(&few);
            for round in 0.. {
                log.collect().unwrap();
                if log.disk().is_idle() {
                    break;
                }
                assert!(round < 1000, "seed {seed}: the disk does not come to rest");
            }
        }
    }
}

/// Of each that somebody waits for it is told once that it came, or that it never will.
#[test]
fn who_waits_is_told() {
    let disk = SimDisk::new(6);
    let (mut log, readers) = mixed(&disk, 1, 300);
    let wanted = [10, 11, 250].map(Offset::new);
    log.fetch(&wanted);
    log.release(wanted[1], readers[0].holder).unwrap();
    while !log.disk().is_idle() {
        log.collect().unwrap();
    }
    let mut told = BTreeSet::new();
    log.each_fetched(&mut |at| assert!(told.insert(at), "{at} again"));
    assert!(wanted.iter().all(|at| told.contains(at)), "{told:?}");
    log.each_fetched(&mut |at| panic!("{at} once more"));
}

/// One of many, whose messages lie far apart, is not read for through all the files before the others come.
#[test]
fn who_comes_first_is_not_read_for_far_ahead() {
    let disk = SimDisk::new(4);
    let (mut log, readers) = mixed(&disk, 1000, 60);
    let read_before = disk.work().read_bytes;
    let all: Vec<_> = readers[0].offsets.iter().map(|&at| Offset::new(at)).collect();
    log.fetch_ahead(&all);
    log.fetch(&all[..1]);
    while !log.disk().is_idle() {
        log.collect().unwrap();
    }
    assert!(log.read(all[0]).is_ok());
    let read = disk.work().read_bytes - read_before;
    assert!(read < 10 * MIB, "{read} bytes read for one reader of a thousand");
}

/// What was written last stays for those who keep up. While others read a backlog, what they have read takes its place.
#[test]
fn what_is_read_takes_the_place_of_what_was_written() {
    const CACHE: u64 = 16 * MIB;
    const EACH: u64 = 60;
    let disk = SimDisk::new(5);
    let options = Options { cache_bytes: CACHE, warm_bytes: 2 * MIB, ..options() };
    let (mut log, readers) = mixed_with(&disk, options, 1000, EACH);
    // Of the newer half, which nobody asks for.
    let cached = |log: &FileLog<SimDisk>| {
        let newer = 1000 * EACH / 2..1000 * EACH;
        newer.filter(|&at| log.read(Offset::new(at)).is_ok()).count() as u64 * BODY as u64
    };
    let all = cached(&log);
    assert!((CACHE / 10..CACHE / 7).contains(&all), "{all} bytes of a long backlog");
    for reader in &readers {
        let soon: Vec<_> = reader.offsets.iter().take(4).map(|&at| Offset::new(at)).collect();
        log.fetch_ahead(&soon);
    }
    log.fetch(&[Offset::new(0)]);
    while !log.disk().is_idle() {
        log.collect().unwrap();
    }
    let left = cached(&log);
    assert!((CACHE / 40..CACHE / 24).contains(&left), "{left} bytes beside what was read");
}

/// Those that are few in what was read pin no more than themselves.
#[test]
fn few_records_do_not_pin_what_they_lie_in() {
    let disk = SimDisk::new(3);
    let (mut log, mut readers) = mixed(&disk, 1000, 30);
    let held_before = log.usage().held_bytes;
    let first = &mut readers[0];
    let all: Vec<_> = first.offsets.iter().map(|&at| Offset::new(at)).collect();
    log.fetch(&all);
    let mut records = Vec::new();
    for at in all {
        records.push(loop {
            match log.read(at) {
                Ok(record) => break record.bytes,
                Err(ReadError::Cold { .. }) => log.fetch(&[at]),
                Err(error) => panic!("{error}"),
            }
            log.collect().unwrap();
        });
    }
    // Thirty stretches of a quarter of a megabyte.
    let held = log.usage().held_bytes - held_before;
    assert!(held < 30 * 2000 + 30 * 300 * 24 + MIB, "{held} bytes held");
    assert!(records.iter().all(|record| record.len() == BODY + 4));
}
