//! Opening goes on without what is damaged: all else is there, and it is said what is not.

use std::collections::BTreeSet;

use leveret_log::disk::{Faults, FileName, SimDisk};
use leveret_log::file::{Damage, OnDamage, OpenError, Options, Report};
use leveret_log::suite::{drive, read_cold};
use leveret_log::{FileLog, Holder, Keep, Log, Offset, ReadError};

const FIRST: FileName = FileName { segment: 0, generation: 0 };
const LAST: FileName = FileName { segment: 1, generation: 0 };
const RECORDS: u64 = 24;

fn options() -> Options {
    let on_damage = OnDamage::Aside;
    Options { segment_bytes: 4000, cache_bytes: 0, on_damage, ..Options::default() }
}

fn try_open(disk: &SimDisk) -> Result<(FileLog<SimDisk>, Report), OpenError> {
    FileLog::open(disk.clone(), options(), &mut |_| {})
}

#[track_caller]
fn open(disk: &SimDisk) -> (FileLog<SimDisk>, Report) {
    try_open(disk).unwrap()
}

fn append(log: &mut FileLog<SimDisk>, holder: u64, body: &[u8]) -> Offset {
    log.append(b"h", &[body], &[Holder::new(holder)], Keep::Durable).unwrap()
}

/// Two files with batches of one record each: record `n` is held by 100 + n.
fn written() -> SimDisk {
    let disk = SimDisk::new(3);
    let mut log = open(&disk).0;
    for number in 0..RECORDS {
        append(&mut log, 100 + number, &[number as u8; 100]);
        drive(&mut log);
    }
    assert_eq!(disk.files().len(), 2);
    disk
}

fn recovered(log: &mut FileLog<SimDisk>) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    log.recover(&mut |it| assert!(found.insert(it.at.get())));
    found
}

fn read(log: &mut FileLog<SimDisk>, at: u64) -> Result<Vec<u8>, ReadError> {
    read_cold(log, Offset::new(at))
}

/// Opens a damaged disk; what is there can be read, the damaged file is kept as it was, the log takes more, and
/// the next start finds nothing wrong. Gives what was lost, and what is said of it.
#[track_caller]
fn salvaged(disk: &SimDisk) -> (Vec<u64>, Damage) {
    let before: Vec<_> = disk.files().into_iter().map(|(it, _)| (it, disk.bytes_of(it))).collect();
    let (mut log, report) = open(disk);
    let [damage] = &report.damaged[..] else { panic!("{report:?}") };
    let was = before.iter().find(|(name, _)| *name == damage.file).unwrap();
    assert_eq!(disk.kept_aside(), [(damage.kept.clone().unwrap(), was.1.clone())]);
    assert!(disk.bytes_of(damage.file).is_empty(), "it is not in the log any more");
    let found = recovered(&mut log);
    let mut unreadable = 0;
    for &at in &found {
        match read(&mut log, at) {
            Ok(bytes) => assert_eq!(bytes[1..], [at as u8; 100]),
            Err(error) => {
                assert!(matches!(error, ReadError::Damaged { .. }), "{error}");
                unreadable += 1;
            }
        }
    }
    assert!(unreadable <= 1, "a hole has one edge in a body at most");
    let next = append(&mut log, 1, b"next");
    assert!(found.iter().all(|at| *at < next.get()));
    drive(&mut log);
    drop(log);
    disk.crash();
    let (mut log, report) = open(disk);
    assert_eq!(report.damaged, []);
    let mut again = recovered(&mut log);
    assert!(again.remove(&next.get()));
    assert_eq!(again, found);
    let damage = damage.clone();
    let lost: Vec<_> = (0..RECORDS).filter(|at| !found.contains(at)).collect();
    if let Some(most) = damage.lost_records_max {
        assert!(lost.len() as u64 <= most, "{lost:?}: {damage:?}");
    }
    (lost, damage)
}

/// Every bit: what is lost is one batch at most, and who held it is known unless the names are what is damaged.
#[test]
fn a_flipped_bit_costs_one_batch() {
    let disk = written();
    let mut without_names = 0;
    for (name, len) in disk.files() {
        for position in (0..len).step_by(3) {
            let copy = disk.copy(0);
            copy.flip(name, position, (position % 8) as u8);
            let refusing = Options { on_damage: OnDamage::Refuse, ..options() };
            let refused = FileLog::open(copy.clone(), refusing, &mut |_| {}).err();
            let Some(OpenError::Damaged { file, position: place, .. }) = refused else {
                continue; // in a body: found when it is read
            };
            // Refusing changed nothing.
            let copy = disk.copy(0);
            copy.flip(name, position, (position % 8) as u8);
            let (lost, damage) = salvaged(&copy);
            assert_eq!((damage.file, damage.position), (file, place));
            assert!(lost.len() <= 1, "{name} {position}: {lost:?}");
            let held: Vec<_> = lost.iter().map(|at| Holder::new(100 + at)).collect();
            if damage.are_all_holders {
                assert_eq!(damage.holders, held, "{name} {position}");
            } else {
                without_names += 1;
            }
            assert!(damage.rest.is_some());
        }
    }
    // The names are in the index, a sixth of what is not a body.
    assert!(without_names > 30, "{without_names}");
}

#[test]
fn a_hole_costs_what_is_in_it() {
    let disk = written();
    let whole = disk.bytes_of(FIRST);
    for (start, len) in [(128, 512), (700, 512), (1024, 1024), (128, whole.len() - 128)] {
        let copy = disk.copy(0);
        let mut bytes = whole.clone();
        let end = (start + len).min(bytes.len());
        bytes[start..end].fill(0);
        copy.put(FIRST, bytes);
        let (lost, damage) = salvaged(&copy);
        assert!(!lost.is_empty() && !damage.are_all_holders, "{damage:?}");
        // About 200 bytes each, and those at both ends.
        assert!(lost.len() <= len / 200 + 2, "{lost:?}");
        assert!(damage.lost_bytes >= len as u64 / 2 && damage.lost_bytes <= len as u64 + 400);
        assert!(lost.len() as u64 <= damage.lost_records_max.unwrap());
    }
}

#[test]
fn a_file_without_its_header_is_read_all_the_same() {
    let disk = written();
    for name in [FIRST, LAST] {
        let mut bytes = disk.bytes_of(name);
        bytes[..128].fill(0);
        disk.put(name, bytes);
        let (lost, damage) = salvaged(&disk.copy(0));
        assert_eq!((lost, damage.position, damage.lost_bytes), (vec![], 0, 0));
        disk.put(name, written().bytes_of(name));
    }
}

#[test]
fn a_file_without_anything_is_put_aside() {
    let disk = written();
    for len in [0, 60, 4000] {
        let copy = disk.copy(0);
        copy.put(FIRST, vec![0; len]);
        let (lost, damage) = salvaged(&copy);
        assert_eq!((damage.rest, damage.lost_bytes), (None, len as u64));
        assert!(lost.len() > 15 && !damage.are_all_holders);
    }
}

#[test]
fn an_end_that_is_missing_is_counted() {
    let disk = written();
    let whole = disk.bytes_of(FIRST);
    for len in (128..whole.len()).step_by(7) {
        let copy = disk.copy(0);
        copy.put(FIRST, whole[..len].to_vec());
        let (lost, damage) = salvaged(&copy);
        assert_eq!(lost.len() as u64, damage.lost_records_max.unwrap(), "{len}");
        assert!(lost.is_empty() || !damage.are_all_holders);
    }
}

/// What was synced is known beside the files: a file that is gone, an end that is cut off or zeroed, also of the last
/// file, and one that is another.
#[test]
fn what_was_safe_is_missed() {
    let disk = written();
    let other = SimDisk::new(77);
    let seed = Options { seed: 5, ..options() };
    let mut log = FileLog::open(other.clone(), seed, &mut |_| {}).unwrap().0;
    append(&mut log, 1, b"of another log");
    drive(&mut log);
    for name in [FIRST, LAST] {
        let whole = disk.bytes_of(name);
        let mut ways =
            vec![None, Some(vec![]), Some(b"garbage".to_vec()), Some(other.bytes_of(FIRST))];
        for at in (0..whole.len()).step_by(9) {
            ways.push(Some(whole[..at].to_vec()));
            // A body alone is looked at when it is read.
            if at < whole.len() - 110 {
                let mut zeroed = whole.clone();
                zeroed[at..].fill(0);
                ways.push(Some(zeroed));
            }
        }
        for way in ways {
            let copy = disk.copy_whole(0);
            match &way {
                Some(bytes) => copy.put(name, bytes.clone()),
                None => copy.lose(name),
            }
            let refusing = Options { on_damage: OnDamage::Refuse, ..options() };
            let before = copy.files();
            let refused = FileLog::open(copy.clone(), refusing, &mut |_| {}).err();
            assert!(
                matches!(refused, Some(OpenError::Damaged { .. } | OpenError::Missing { .. })),
                "{name} {way:?}: {refused:?}"
            );
            assert_eq!(copy.files(), before);
            let (mut log, report) = open(&copy);
            let [damage] = &report.damaged[..] else { panic!("{name} {way:?}: {report:?}") };
            let found = recovered(&mut log);
            let readable: Vec<_> = found.iter().filter(|&&at| read(&mut log, at).is_ok()).collect();
            let lost = RECORDS - found.len() as u64;
            assert!(lost <= damage.lost_records_max.unwrap_or(u64::MAX), "{lost} {damage:?}");
            assert!(found.len() - readable.len() <= 1);
            // What comes next is not taken for what was there, which may come back.
            assert_eq!(log.end(), Offset::new(RECORDS));
            append(&mut log, 1, b"next");
            drive(&mut log);
            drop(log);
            copy.crash();
            assert_eq!(open(&copy).1.damaged, [], "it is told once");
        }
        assert_eq!(open(&disk.copy_whole(0)).1.damaged, []);
    }
}

/// What was released in a batch that is lost comes back; what was released in others does not.
#[test]
fn releases_that_are_lost_are_undone() {
    let disk = SimDisk::new(5);
    let mut log = open(&disk).0;
    for number in 0..6 {
        append(&mut log, 100 + number, &[number as u8; 100]);
        drive(&mut log);
    }
    for at in [1, 2, 3] {
        log.release(Offset::new(at), Holder::new(100 + at)).unwrap();
        drive(&mut log);
    }
    append(&mut log, 106, &[6; 100]);
    drive(&mut log);
    drop(log);
    // The second of the three batches with a release: they are short, and the record's is behind them.
    let bytes = disk.bytes_of(FIRST);
    let mark = &bytes[88..96];
    let starts: Vec<_> = (128..bytes.len() - 8).filter(|&at| bytes[at..at + 8] == *mark).collect();
    assert_eq!(starts.len(), 10);
    disk.flip(FIRST, starts[7] as u64 + 88, 0);
    let (mut log, report) = open(&disk);
    assert_eq!(recovered(&mut log), BTreeSet::from([0, 2, 4, 5, 6]));
    let [damage] = &report.damaged[..] else { panic!("{report:?}") };
    assert_eq!((damage.lost_records_max, &damage.holders[..]), (Some(0), &[][..]));
}

/// Two files, and a full disk in between: nothing is lost by trying again.
#[test]
fn all_damaged_files_are_put_aside() {
    let disk = written();
    disk.flip(FIRST, 130, 0);
    disk.flip(LAST, 130, 0);
    let used: u64 = disk.files().iter().map(|(_, len)| len).sum();
    let mut refused = 0;
    let mut log = loop {
        let capacity = Some(used + refused * 500);
        disk.set_faults(Faults { capacity, ..Faults::default() });
        match try_open(&disk) {
            Ok((log, _)) => break log,
            Err(error) => assert!(matches!(error, OpenError::Disk { .. }), "{error}"),
        }
        refused += 1;
    };
    assert!(refused > 4, "{refused}");
    assert_eq!(recovered(&mut log).len(), 22);
    assert_eq!(disk.kept_aside().len(), 2);
}
