//! A log in files gives back its space: on disk and in memory.

use leveret_log::disk::{Faults, SimDisk};
use leveret_log::file::Options;
use leveret_log::suite::drive;
use leveret_log::{FileLog, Holder, Keep, Log, Offset, ReadError, Usage};

const MIB: u64 = 1 << 20;

fn options() -> Options {
    Options { segment_bytes: MIB, cache_bytes: MIB / 4, warm_bytes: MIB, ..Options::default() }
}

fn open(disk: &SimDisk) -> FileLog<SimDisk> {
    FileLog::open(disk.clone(), options(), &mut |_| {}).unwrap().0
}

fn append(log: &mut FileLog<SimDisk>, body: &[u8], holders: &[Holder]) -> u64 {
    log.append(b"head", &[body], holders, Keep::Durable).unwrap().get()
}

fn one(name: u64) -> [Holder; 1] {
    [Holder::new(name)]
}

/// What is on the disk, as the disk has it.
fn files(disk: &SimDisk) -> u64 {
    disk.files().iter().map(|(_, len)| *len).sum()
}

#[track_caller]
fn check_disk(disk: &SimDisk, usage: Usage) {
    let bytes = files(disk);
    assert_eq!(bytes, usage.disk_bytes, "{usage:?}");
    let most = usage.live_bytes * 13 / 10 + 4 * MIB;
    assert!(bytes <= most, "{bytes} bytes for {usage:?}");
}

/// Files are longer with a backlog, so that they stay few, and short again when it is gone; what is too long for the next
/// is not kept for it.
#[test]
fn files_grow_with_what_is_in_them() {
    let disk = SimDisk::new(1);
    disk.keep_spare(vec![0; 1000]);
    let mut log = open(&disk);
    let mut held = std::collections::VecDeque::new();
    let mut pass = |log: &mut FileLog<SimDisk>, bytes: u64, keeps: u64| {
        for number in 0..bytes / 4000 {
            held.push_back(append(log, &[1; 4000], &one(1)));
            while held.len() as u64 > keeps / 4000 {
                log.release(Offset::new(held.pop_front().unwrap()), Holder::new(1)).unwrap();
            }
            if number % 20 == 0 {
                log.sync().unwrap();
            }
        }
        drive(log);
        let (used, usage) = (disk.used(), log.usage());
        assert!(used <= usage.live_bytes * 13 / 10 + 4 * MIB, "{used} for {usage:?}");
        disk.files().len()
    };
    assert!(pass(&mut log, 20 * MIB, MIB) <= 3);
    let count = pass(&mut log, 80 * MIB, 80 * MIB);
    assert!((35..50).contains(&count), "{count}");
    // What flows through a long backlog is in long files, which are made of each other.
    let count = pass(&mut log, 120 * MIB, 80 * MIB);
    assert!((15..25).contains(&count), "{count}");
    let reused = disk.work().reused;
    pass(&mut log, 40 * MIB, 80 * MIB);
    assert!(disk.work().reused > reused + 5, "{:?}", disk.work());
    pass(&mut log, 20 * MIB, MIB);
    let files = disk.files();
    assert!(files.len() <= 3 && files.iter().all(|(_, len)| *len < 2 * MIB), "{files:?}");
}

#[track_caller]
fn read(log: &mut FileLog<SimDisk>, at: u64) -> bytes::Bytes {
    let at = Offset::new(at);
    for _ in 0..1000 {
        match log.read(at) {
            Ok(record) => return record.bytes,
            Err(ReadError::Cold { .. }) => log.fetch(&[at]),
            Err(error) => panic!("{error}"),
        }
        log.collect().unwrap();
    }
    panic!("{at} stays cold");
}

#[test]
fn nothing_is_written_of_what_is_acked_before_its_batch() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk);
    for number in 0..1_000_000_u64 {
        let at = append(&mut log, &[5; 16], &one(number % 50));
        log.release(Offset::new(at), Holder::new(number % 50)).unwrap();
        if number % 100 == 0 {
            log.sync().unwrap();
        }
    }
    drive(&mut log);
    assert_eq!(disk.work().written_bytes, 0);
    assert_eq!(log.durable(), log.end());
}

#[test]
fn a_queue_that_flows_leaves_no_files() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk);
    for number in 0..60_000_u64 {
        append(&mut log, &[1; 1000], &one(1));
        if number >= 500 {
            log.release(Offset::new(number - 500), Holder::new(1)).unwrap();
        }
        if number % 50 == 0 {
            log.sync().unwrap();
            assert!(files(&disk) < 6 * MIB, "{}", files(&disk));
        }
    }
    // No file was rewritten.
    let work = disk.work();
    assert!(work.written_bytes < 61_000 * 1100 && work.reads == 0, "{work:?}");
}

/// One record that nobody releases, and one queue of fifty that stands still.
#[test]
fn what_stands_still_pins_no_other() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk);
    let pinned = append(&mut log, b"pinned", &one(3));
    let mut kept = Vec::new();
    for number in 1..100_000_u64 {
        let name = number % 500;
        let at = append(&mut log, &number.to_le_bytes().repeat(100), &one(name));
        if name == 0 {
            kept.push(at);
        }
        if let Some(old) = at.checked_sub(2000).filter(|old| *old > 0 && old % 500 != 0) {
            log.release(Offset::new(old), Holder::new(old % 500)).unwrap();
        }
        if number % 100 == 0 {
            log.sync().unwrap();
        }
    }
    drive(&mut log);
    check_disk(&disk, log.usage());
    // What stood still was copied a few times at most.
    let once = 100_000 * 870;
    assert!(disk.work().written_bytes < once * 13 / 10, "{:?}", disk.work());
    assert_eq!(read(&mut log, pinned), b"headpinned"[..]);
    for &at in &kept {
        let bytes = read(&mut log, at);
        assert_eq!(bytes[4..12], at.to_le_bytes());
    }
    // And when it goes, no file stays for the sake of another.
    log.release(Offset::new(pinned), Holder::new(3)).unwrap();
    kept.into_iter().for_each(|at| log.release(Offset::new(at), Holder::new(0)).unwrap());
    (98_000..100_000).filter(|at| at % 500 != 0).for_each(|at| {
        log.release(Offset::new(at), Holder::new(at % 500)).unwrap();
    });
    let reads = disk.work().reads;
    drive(&mut log);
    assert_eq!(log.usage().records, 0);
    assert!(disk.files().len() <= 2 && disk.work().reads == reads, "{:?}", disk.files());
}

#[test]
fn scattered_records_pin_no_other() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk);
    for number in 0..40_000_u64 {
        append(&mut log, &number.to_le_bytes().repeat(40), &one(number % 7));
        if number % 100 == 0 {
            log.sync().unwrap();
        }
    }
    drive(&mut log);
    // Round by round a third of what is left goes, without an order.
    let mut left: Vec<u64> = (0..40_000).collect();
    for round in 1..10_u64 {
        let keeps =
            |at: &u64| (at ^ round << 32).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40 & 3 != 0;
        for &at in left.iter().filter(|at| !keeps(at)) {
            log.release(Offset::new(at), Holder::new(at % 7)).unwrap();
        }
        left.retain(keeps);
        drive(&mut log);
        assert_eq!(log.usage().records, left.len() as u64);
        check_disk(&disk, log.usage());
    }
    for at in left.iter().copied() {
        assert_eq!(read(&mut log, at)[4..12], at.to_le_bytes());
    }
    drop(log);
    let mut log = open(&disk);
    let mut found = Vec::new();
    log.recover(&mut |it| found.push(it.at.get()));
    assert_eq!(found, left);
    assert_eq!(log.usage().live_bytes, left.len() as u64 * 324);
}

/// A backlog costs nearly no memory, whatever its size, and neither does its fan-out.
#[test]
fn memory_of_a_backlog_is_flat() {
    for (size, fan_out) in [(100, 1), (400, 10), (1000, 1)] {
        let disk = SimDisk::new(1);
        let mut log = open(&disk);
        let names: Vec<_> = (0..fan_out).map(Holder::new).collect();
        let count = 300_000 * 100 / size;
        for number in 0..count {
            append(&mut log, &vec![1; size as usize], &names);
            if number % 200 == 0 {
                log.sync().unwrap();
            }
        }
        drive(&mut log);
        let held = log.usage().held_bytes;
        // The cache, its entries, and a quarter of a byte for each record.
        assert!(held < MIB * 3 / 4 + count / 4, "{size} {fan_out}: {held} for {count}");
        // And all queues but one take it.
        if fan_out > 1 {
            for number in 0..count {
                for name in 1..fan_out {
                    log.release(Offset::new(number), Holder::new(name)).unwrap();
                }
                if number % 200 == 0 {
                    log.sync().unwrap();
                }
            }
            drive(&mut log);
            let held = log.usage().held_bytes;
            assert!(held < MIB * 3 / 4 + count / 4, "{size} {fan_out}: {held} for {count}");
        }
    }
}

#[test]
fn volatile_records_are_written_when_memory_is_short() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk);
    log.set_spill_bytes(MIB);
    for number in 0..50_000_u64 {
        let body = number.to_le_bytes().repeat(50);
        log.append(b"head", &[&body], &one(1), Keep::Volatile).unwrap();
        log.sync().unwrap();
    }
    drive(&mut log);
    let usage = log.usage();
    assert!(usage.held_bytes < 3 * MIB, "{usage:?}");
    assert_eq!(usage.unwritten_bytes, 0);
    assert_eq!(
        disk.work().syncs,
        u64::from(disk.files().len() as u32 * 2 - 1),
        "headers and footers"
    );
    for at in 0..50_000_u64 {
        assert_eq!(read(&mut log, at)[4..12], at.to_le_bytes());
        log.release(Offset::new(at), Holder::new(1)).unwrap();
    }
    drive(&mut log);
    check_disk(&disk, log.usage());
}

/// Large records that are written to save memory do not go into one batch with what somebody waits for: a batch takes
/// one of them, and the others come after it. They are read, survive when they are told to, and leave their room, as all.
#[test]
fn a_batch_takes_little_of_what_only_saves_memory() {
    let batch = Options::default().spill_batch_bytes;
    let disk = SimDisk::new(1);
    let mut log = open(&disk);
    log.set_spill_bytes(0);
    let large = vec![3; 3 * MIB as usize];
    let volatile: Vec<_> =
        (0..8).map(|_| log.append(b"head", &[&large], &one(1), Keep::Volatile).unwrap()).collect();
    append(&mut log, b"awaited", &one(1));
    let awaited = log.end();
    assert_eq!(log.spilled_bytes(), 8 * (3 * MIB + 4));
    let mut longest = 0;
    log.sync().unwrap();
    while log.durable() < awaited {
        longest = longest.max(log.under_way().map_or(0, |batch| batch.bytes));
        log.sync().unwrap();
    }
    assert!(longest > 3 * MIB && longest < 3 * MIB + batch / 2, "{longest} bytes in a batch");
    assert!(log.spilled_bytes() >= 6 * (3 * MIB + 4), "only the first came with it");

    // One of those that are left is to survive, another is not wanted any more.
    let kept = volatile[5];
    let end = log.persist(kept).unwrap();
    log.release(volatile[6], Holder::new(1)).unwrap();
    while log.durable() < end {
        log.sync().unwrap();
    }
    drive(&mut log);
    assert_eq!((log.spilled_bytes(), log.unwritten_bytes()), (0, 0));
    while log.keeps_spares() {
        log.relax();
    }
    let usage = log.usage();
    assert!(usage.held_bytes < MIB, "{usage:?}");
    for at in &volatile[..6] {
        assert_eq!(read(&mut log, at.get()).len(), large.len() + 4);
    }
    drop(log);
    disk.kill();

    let mut log = open(&disk);
    let mut found = Vec::new();
    log.recover(&mut |record| found.push(record.at));
    found.sort_unstable();
    assert_eq!(found, [kept, Offset::new(awaited.get() - 1)]);
    assert_eq!(read(&mut log, kept.get()).len(), large.len() + 4);
    for at in found {
        log.release(at, Holder::new(1)).unwrap();
    }
    drive(&mut log);
    check_disk(&disk, log.usage());
}

/// Spilled records do not outlive the process, and neither does their room on the disk, though nothing is written. Not
/// before it is known that this start is one.
#[test]
fn what_was_spilled_goes_at_the_next_start() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk);
    log.set_spill_bytes(0);
    for _ in 0..10_000 {
        log.append(b"head", &[&[1; 1000]], &one(1), Keep::Volatile).unwrap();
        log.sync().unwrap();
    }
    append(&mut log, b"kept", &one(1));
    drive(&mut log);
    drop(log);
    disk.kill();
    let before = disk.files();
    assert!(before.len() > 5, "{before:?}");

    let mut log = open(&disk);
    log.hold_files();
    log.recover(&mut |_| {});
    drive(&mut log);
    assert_eq!(disk.files(), before);
    log.reclaim();
    drive(&mut log);
    assert!(files(&disk) < 3 * MIB, "{:?}", disk.files());
    assert_eq!(log.usage().records, 1);
    check_disk(&disk, log.usage());
}

/// Many queues that lie mixed in a long log, and each asks for its own: what lies together is read
/// together, the oldest first.
#[test]
fn many_that_ask_for_neighbours_are_read_for_together() {
    const RECORDS: u64 = 20_000;
    const QUEUES: u64 = 100;
    const AHEAD: u64 = 10;
    let disk = SimDisk::new(1);
    let mut log = open(&disk);
    for at in 0..RECORDS {
        append(&mut log, &[6; 1000], &one(at % QUEUES));
        if at % 1000 == 999 {
            log.sync().unwrap();
        }
    }
    drive(&mut log);
    disk.set_faults(Faults { delay: 3, ..Faults::default() });
    let (before, mut rounds) = (disk.work().reads, 0);
    // Each takes what has come from its front on, and asks for what follows.
    let mut fronts: Vec<u64> = (0..QUEUES).collect();
    while fronts.iter().any(|&at| at < RECORDS) {
        for front in &mut fronts {
            let was = *front;
            while *front < RECORDS && log.read(Offset::new(*front)).is_ok() {
                log.release(Offset::new(*front), Holder::new(*front % QUEUES)).unwrap();
                *front += QUEUES;
            }
            if was == *front && was >= QUEUES {
                continue; // asked for before
            }
            for at in (*front..RECORDS).step_by(QUEUES as usize).take(AHEAD as usize) {
                log.fetch(&[Offset::new(at)]);
            }
        }
        log.collect().unwrap();
        rounds += 1;
        let reads = disk.work().reads - before;
        assert!(reads < 100 && rounds < 500, "{reads} reads in {rounds} rounds");
    }
}

/// Many files that go at once keep no write waiting: it is done behind one removal at most.
#[test]
fn a_write_comes_between_removals() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk);
    for number in 0..20_000 {
        append(&mut log, &[1; 1000], &one(1));
        if number % 50 == 0 {
            log.sync().unwrap();
        }
    }
    drive(&mut log);
    let before = disk.files().len();
    assert!(before > 10, "{before} files");
    (0..20_000).for_each(|at| log.release(Offset::new(at), Holder::new(1)).unwrap());
    let wait = |log: &mut FileLog<SimDisk>| {
        append(log, b"kept", &one(2));
        log.sync().unwrap();
        while log.durable() < log.end() {
            log.collect().unwrap();
        }
    };
    wait(&mut log);
    // Now all may go.
    for written in 1..5 {
        wait(&mut log);
        let left = disk.files().len();
        // One whose removal had begun, and one that was begun before the write.
        assert!(left + 2 * written >= before - 1, "{left} of {before} files, {written} writes");
    }
    drive(&mut log);
    assert!(disk.files().len() <= 3, "{:?}", disk.files());
}
