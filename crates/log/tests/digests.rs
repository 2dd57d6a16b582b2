//! A start that reads digests finds what one that reads the files finds, whatever became of the digests; and what is
//! damaged is told of all the same.

use std::collections::{BTreeMap, BTreeSet};

use leveret_log::disk::{FileName, SimDisk};
use leveret_log::file::{OnDamage, Options, Report};
use leveret_log::suite::{drive, read_cold};
use leveret_log::{FileLog, Holder, Keep, Log, Offset, ReadError};

const RECORDS: u64 = 200;
/// So long that files are not rewritten for what is no body.
const LEN: usize = 400;

fn options() -> Options {
    let on_damage = OnDamage::Aside;
    Options { segment_bytes: 4000, cache_bytes: 0, on_damage, digests: true, ..Options::default() }
}

fn open(disk: &SimDisk) -> (FileLog<SimDisk>, Report) {
    FileLog::open(disk.clone(), options(), &mut |_| {}).expect("a log that goes on")
}

fn file(segment: u64) -> FileName {
    FileName { segment, generation: 0 }
}

/// Until the disk has nothing to do any more.
fn rest(log: &mut FileLog<SimDisk>, disk: &SimDisk) {
    log.reclaim();
    drive(log);
    while !disk.is_idle() {
        log.collect().expect("a good disk");
    }
}

/// Batches of one record each, 8 in a file; a third of them released, and some marked.
fn written() -> SimDisk {
    let disk = SimDisk::new(3);
    let mut log = open(&disk).0;
    for number in 0..RECORDS {
        let holders = [Holder::new(100 + number), Holder::new(7)];
        let body = [number as u8; LEN];
        log.append(b"h", &[&body], &holders, Keep::Durable).expect("room");
        drive(&mut log);
    }
    for number in 0..RECORDS {
        let at = Offset::new(number);
        match number % 3 {
            0 => log.release(at, Holder::new(7)).expect("held"),
            1 => log.mark(at, Holder::new(7), number as u8).expect("held"),
            _ => {}
        }
    }
    rest(&mut log, &disk);
    disk
}

/// How far a start is that has read all files, those with digests and those without.
#[test]
fn a_start_tells_when_it_has_read_all() {
    let disk = written();
    for has_digests in [true, false] {
        let options = Options { digests: has_digests, ..options() };
        let mut told = Vec::new();
        let tell = &mut |progress| told.push(progress);
        let report = FileLog::open(disk.clone(), options, tell).expect("a log that goes on").1;
        let total: u64 = disk.files().iter().map(|it| it.1).sum();
        assert_eq!(report.digests > 0, has_digests);
        assert!(told.iter().all(|it| it.total == total), "{told:?}");
        assert!(told.is_sorted_by_key(|it| it.done), "{told:?}");
        assert_eq!(told.last().map(|it| it.done), Some(total));
    }
}

type Found = BTreeMap<u64, Vec<(Holder, u8)>>;

fn recovered(log: &mut FileLog<SimDisk>) -> Found {
    let mut found = Found::new();
    log.recover(&mut |it| {
        assert_eq!(it.head, b"h");
        found.insert(it.at.get(), it.holders.to_vec());
    });
    found
}

#[test]
fn a_start_reads_digests_and_the_last_file() {
    let disk = written();
    let files = disk.files();
    assert_eq!(disk.digests().len(), files.len() - 1);
    let read_before = disk.work().read_bytes;
    let (mut log, report) = open(&disk);
    assert_eq!((report.digests, report.records), (files.len() as u64 - 1, RECORDS));
    let found = recovered(&mut log);
    let read = disk.work().read_bytes - read_before;
    let last = files.last().map_or(0, |it| it.1);
    assert!(read < 3 * last + 500 * files.len() as u64, "{read} bytes of {files:?}");
    for (&at, holders) in &found {
        let mut want = vec![(Holder::new(100 + at), 0)];
        match at % 3 {
            0 => {}
            1 => want.push((Holder::new(7), at as u8)),
            _ => want.push((Holder::new(7), 0)),
        }
        let mut holders = holders.clone();
        want.sort_unstable();
        holders.sort_unstable();
        assert_eq!(holders, want, "{at}");
        assert_eq!(read_cold(&mut log, Offset::new(at)).expect("whole")[1..], [at as u8; LEN]);
    }
    assert_eq!(found.len() as u64, RECORDS);
}

/// What many queues get in turn: of more sets than a byte counts, some of them of two holders, and runs between.
#[test]
fn records_of_many_holders_in_turn_are_found() {
    let disk = SimDisk::new(5);
    let options = Options { segment_bytes: 100_000, ..options() };
    let open = |disk: &SimDisk| FileLog::open(disk.clone(), options.clone(), &mut |_| {});
    let (mut log, _) = open(&disk).expect("empty");
    for number in 0..3_000 {
        let turn = if number % 700 < 40 { 1 } else { number % 300 };
        let holders = [Holder::new(1 + turn), Holder::new(1_000_000 + turn % 5)];
        let count = if turn % 7 == 0 { 2 } else { 1 };
        log.append(b"h", &[&[1; 50]], &holders[..count], Keep::Durable).expect("room");
        if number % 400 == 0 {
            drive(&mut log);
        }
    }
    rest(&mut log, &disk);
    // Every third is gone, which later batches say.
    for number in (0..3_000).step_by(3) {
        let turn = if number % 700 < 40 { 1 } else { number % 300 };
        log.release(Offset::new(number), Holder::new(1 + turn)).expect("held");
    }
    rest(&mut log, &disk);
    let all = |log: &FileLog<SimDisk>| {
        let mut all = BTreeSet::new();
        log.each_holder(|holder| assert!(all.insert(holder), "{holder:?} was told of"));
        all
    };
    let (mut plain, report) = open(&disk.copy(0)).expect("whole");
    assert_eq!(report.digests, 0);
    let (mut short, report) = open(&disk.copy_whole(1)).expect("whole");
    assert!(report.digests > 0);
    assert_eq!(all(&short), all(&plain));
    let found = recovered(&mut short);
    assert!(found.len() > 2_000, "{}", found.len());
    assert_eq!(found, recovered(&mut plain));
}

/// Every bit of a digest flipped, every end, no digest, those of other files.
#[test]
fn a_digest_that_is_not_whole_is_none() {
    let disk = written();
    let mut plain = FileLog::open(disk.copy(0), options(), &mut |_| {}).expect("whole").0;
    let want = recovered(&mut plain);
    let digests = disk.digests();
    let (victim, bytes) = &digests[3];
    let mut cases = vec![Vec::new(), digests[4].1.clone(), vec![0; bytes.len()]];
    for position in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[position] ^= 1 << (position % 8);
        cases.push(flipped);
        cases.push(bytes[..position].to_vec());
    }
    for (number, case) in cases.into_iter().enumerate() {
        let copy = disk.copy_whole(1);
        copy.put_digest(*victim, case);
        let (mut log, report) = open(&copy);
        assert_eq!(report.digests, digests.len() as u64 - 1, "case {number}");
        assert_eq!((report.damaged.len(), recovered(&mut log)), (0, want.clone()), "{number}");
        if number % 100 == 0 {
            rest(&mut log, &copy);
            let again = copy.digests().into_iter().find(|(name, _)| name == victim);
            assert_eq!(again, Some((*victim, bytes.clone())), "it is made anew");
        }
    }
}

/// A digest that has its checksums and is not what a log writes: the files are asked.
#[test]
fn a_digest_that_lies_is_not_believed() {
    let disk = written();
    let (victim, bytes) = disk.digests()[3].clone();
    let sets = u64::from_le_bytes(bytes[80..88].try_into().expect("8 bytes")) as usize;
    for position in 128 + sets..bytes.len() {
        for change in [0x01, 0x80, 0xff] {
            let mut lie = bytes.clone();
            lie[position] ^= change;
            let crc = crc32c::crc32c(&lie[128..]);
            lie[120..124].copy_from_slice(&crc.to_le_bytes());
            let crc = crc32c::crc32c(&lie[..124]);
            lie[124..128].copy_from_slice(&crc.to_le_bytes());
            let copy = disk.copy_whole(1);
            copy.put_digest(victim, lie);
            // Nothing more can be asked for: such a lie may be a digest of another file.
            let (mut log, report) = open(&copy);
            assert_eq!(report.damaged, [], "{position}");
            recovered_whatever(&mut log);
        }
    }
}

fn recovered_whatever(log: &mut FileLog<SimDisk>) {
    log.recover(&mut |_| {});
}

/// A file that is cut, gone or another one is so, whatever its digest says.
#[test]
fn a_digest_hides_no_file_that_is_missing() {
    let disk = written();
    for case in 0..4 {
        let copy = disk.copy_whole(1);
        let bytes = disk.bytes_of(file(3));
        match case {
            0 => copy.lose(file(3)),
            1 => copy.put(file(3), bytes[..bytes.len() - 1].to_vec()),
            2 => copy.put(file(3), disk.bytes_of(file(4))),
            _ => copy.flip(file(3), bytes.len() as u64 - 20, 0),
        }
        let (mut log, report) = open(&copy);
        assert_eq!(report.damaged.len(), 1, "case {case}");
        assert_eq!(report.digests, 0, "all is read");
        let found = recovered(&mut log).len() as u64;
        assert!(found < RECORDS || case > 0 && found == RECORDS, "case {case}: {found}");
    }
}

/// Damage in the middle of a file is found when its records are read, or when its digest is made again; and the start after that
/// goes on without it.
#[test]
fn damage_in_the_middle_is_found_later() {
    let disk = written();
    let bytes = disk.bytes_of(file(3));
    for place in (128..bytes.len() - 88).step_by(7) {
        let copy = disk.copy_whole(1);
        copy.flip(file(3), place as u64, 0);
        let (mut log, report) = open(&copy);
        assert_eq!((report.damaged.len(), report.records), (0, RECORDS));
        let found = recovered(&mut log);
        let mut unreadable = Vec::new();
        for &at in found.keys() {
            match read_cold(&mut log, Offset::new(at)) {
                Ok(bytes) => assert_eq!(bytes[1..], [at as u8; LEN]),
                Err(ReadError::Damaged { file: damaged, .. }) => {
                    assert_eq!(damaged, file(3));
                    unreadable.push(at);
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(!unreadable.is_empty(), "{place}");
        rest(&mut log, &copy);
        drop(log);
        copy.kill();
        let is_seen = copy.digests().iter().all(|(name, _)| *name != file(3));
        let (mut log, report) = open(&copy);
        // In a body it is found when that is read, as ever.
        assert_eq!(report.damaged.len(), usize::from(is_seen), "{place}");
        let lost = RECORDS as usize - recovered(&mut log).len();
        assert_eq!(lost, usize::from(is_seen), "{place}");
    }
}

/// With damage to be refused no digest is believed.
#[test]
fn who_refuses_damage_reads_all() {
    let disk = written();
    let refusing = Options { on_damage: OnDamage::Refuse, ..options() };
    let (_, report) =
        FileLog::open(disk.copy_whole(1), refusing.clone(), &mut |_| {}).expect("whole");
    assert_eq!(report.digests, 0);
    let copy = disk.copy_whole(1);
    copy.flip(file(3), 130, 0);
    assert!(FileLog::open(copy, refusing, &mut |_| {}).is_err());
}

/// What is released, rewritten and removed takes its digest with it.
#[test]
fn digests_go_with_their_files() {
    let disk = written();
    let mut log = open(&disk).0;
    for at in recovered(&mut log).keys().filter(|at| **at % 9 > 0) {
        for holder in [100 + at, 7] {
            let _ = log.release(Offset::new(*at), Holder::new(holder));
        }
    }
    for _ in 0..60 {
        let at = log.append(b"h", &[&[1; 100]], &[Holder::new(1)], Keep::Durable).expect("room");
        drive(&mut log);
        log.release(at, Holder::new(1)).expect("held");
    }
    rest(&mut log, &disk);
    let files: Vec<_> = disk.files().into_iter().map(|it| it.0).collect();
    assert!(files.iter().any(|it| it.generation > 0), "{files:?}");
    let digests: Vec<_> = disk.digests().into_iter().map(|it| it.0).collect();
    assert!(digests.iter().all(|it| files.contains(it)), "{digests:?} {files:?}");
    assert!(digests.iter().any(|it| it.generation > 0), "{digests:?}");
    let want = log.usage();
    drop(log);
    let mut plain = FileLog::open(disk.copy(0), options(), &mut |_| {}).expect("whole").0;
    let (mut log, report) = open(&disk);
    assert!(report.digests > 0);
    assert_eq!(recovered(&mut log), recovered(&mut plain));
    assert_eq!(log.usage().records, want.records);
}
