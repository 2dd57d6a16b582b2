//! Spilled records that their batch does not bring: who waits for what, and what becomes of them.

use leveret_log::disk::{Faults, SimDisk};
use leveret_log::file::Options;
use leveret_log::suite::{drive, read_cold};
use leveret_log::{FileLog, Holder, Keep, Log, Offset};

const MIB: u64 = 1 << 20;
const PIECE: u64 = 4 * MIB;
const ONE: [Holder; 1] = [Holder::new(1)];

fn options() -> Options {
    Options { spill_bytes: 0, cache_bytes: 0, ..Options::default() }
}

fn open(disk: &SimDisk, options: Options) -> FileLog<SimDisk> {
    FileLog::open(disk.clone(), options, &mut |_| {}).unwrap().0
}

/// A record of so many bytes that has a number in it.
fn append(log: &mut FileLog<SimDisk>, number: u8, len: u64, keep: Keep) -> Offset {
    log.append(b"head", &[&vec![number; len as usize]], &ONE, keep).unwrap()
}

fn is_whole(record: &[u8], number: u8, len: u64) -> bool {
    record.len() as u64 == len + 4 && record[4..].iter().all(|&byte| byte == number)
}

/// Does one thing after the other until a record is durable, and tells what was written meanwhile.
fn written_until(log: &mut FileLog<SimDisk>, disk: &SimDisk, at: Offset) -> u64 {
    let before = disk.work().written_bytes;
    log.sync().unwrap();
    while log.durable() <= at {
        log.sync().unwrap();
    }
    disk.work().written_bytes - before
}

/// A publisher who waits for one small record waits for little else, though much was spilled before it. The rest is
/// written when nobody waits for it, and leaves memory.
#[test]
fn a_batch_that_is_awaited_brings_little_that_was_spilled() {
    for (len, count) in [(MIB, 19), (100, 100_000), (64 * MIB, 1)] {
        let disk = SimDisk::new(1);
        let mut log = open(&disk, options());
        for number in 0..count {
            append(&mut log, number as u8, len, Keep::Volatile);
        }
        let small = append(&mut log, 200, 16, Keep::Durable);
        // Of each small one there is a line in the index.
        let least = if len < MIB { count * 30 } else { 0 };
        let written = written_until(&mut log, &disk, small);
        assert!(written < least + PIECE, "{written} bytes before {count} of {len} are confirmed");
        assert!(log.unwritten_bytes() > 5 * MIB, "the rest counts, so that publishers are slowed");
        drive(&mut log);
        assert_eq!(log.unwritten_bytes(), 0);
        while log.keeps_spares() {
            log.relax();
        }
        let usage = log.usage();
        assert!(usage.held_bytes < 2 * MIB, "{usage:?}");
        for number in (0..count).step_by(count.div_ceil(20) as usize) {
            let record = read_cold(&mut log, Offset::new(number)).unwrap();
            assert!(is_whole(&record, number as u8, len), "{number}");
        }
    }
}

/// While the rest of what was spilled is written, a confirm waits for a piece of it.
#[test]
fn confirms_come_between_the_pieces() {
    let disk = SimDisk::new(2);
    let mut log = open(&disk, options());
    append(&mut log, 0, 40 * MIB, Keep::Volatile);
    append(&mut log, 1, 40 * MIB, Keep::Volatile);
    let mut confirms = 0;
    while log.unwritten_bytes() > 0 || confirms == 0 {
        let at = append(&mut log, 2, 16, Keep::Durable);
        let written = written_until(&mut log, &disk, at);
        assert!(written <= PIECE, "{written} bytes");
        confirms += 1;
    }
    assert!(confirms > 10, "{confirms}");
}

/// What is released before its bytes are written costs no write.
#[test]
fn what_is_released_in_time_is_never_written() {
    let disk = SimDisk::new(3);
    let mut log = open(&disk, options());
    let all: Vec<_> = (0..20).map(|it| append(&mut log, it, 2 * MIB, Keep::Volatile)).collect();
    let small = append(&mut log, 200, 16, Keep::Durable);
    written_until(&mut log, &disk, small);
    all.iter().for_each(|&at| log.release(at, ONE[0]).unwrap());
    log.release(small, ONE[0]).unwrap();
    drive(&mut log);
    let written_bytes = disk.work().written_bytes;
    assert!(written_bytes < PIECE, "{written_bytes}");
    assert_eq!((log.unwritten_bytes(), log.usage().records), (0, 0));
}

/// A record that is to survive after all is as safe as any other when its promise is kept, also while its bytes are
/// missing: the batch that says so brings them.
#[test]
fn what_is_to_persist_is_brought() {
    for seed in 0..60 {
        let disk = SimDisk::new(seed);
        disk.set_faults(Faults { delay: seed as u32 % 3, ..Faults::default() });
        let options = Options {
            spill_piece_bytes: [64, 1000, MIB][seed as usize % 3],
            // The record's file is sealed, or is not.
            segment_bytes: if seed % 2 == 0 { 4096 } else { MIB },
            ..options()
        };
        let mut log = open(&disk, options.clone());
        let all: Vec<_> = (0..8).map(|it| append(&mut log, it, 3000, Keep::Volatile)).collect();
        let small = append(&mut log, 100, 16, Keep::Durable);
        written_until(&mut log, &disk, small);
        for _ in 0..seed % 7 {
            log.collect().unwrap();
        }
        let until = all[2..4].iter().map(|&at| log.persist(at).unwrap()).max().unwrap();
        while log.durable() < until {
            log.sync().unwrap();
        }
        disk.crash();
        let mut log = open(&disk, options);
        let mut found = Vec::new();
        log.recover(&mut |it| found.push(it.at));
        assert_eq!(found, [all[2], all[3], small], "{seed}");
        for (&at, number) in all[2..4].iter().zip(2..) {
            let record = read_cold(&mut log, at).unwrap();
            assert!(is_whole(&record, number, 3000), "{seed}");
        }
    }
}

/// A crash may leave anything in the room of what was spilled. What was confirmed with it is there.
#[test]
fn a_crash_among_the_pieces_loses_what_was_spilled_and_nothing_else() {
    for seed in 0..100 {
        let disk = SimDisk::new(seed);
        disk.keep_spare(vec![7; 1 << 16]);
        disk.set_faults(Faults { delay: 2, ..Faults::default() });
        let options = Options { spill_piece_bytes: 700, ..options() };
        let mut log = open(&disk, options.clone());
        let mut kept = Vec::new();
        for round in 0..4 {
            (0..3).for_each(|it| _ = append(&mut log, it, 1500, Keep::Volatile));
            kept.push(append(&mut log, 50 + round, 16, Keep::Durable));
            (0..2).for_each(|it| _ = append(&mut log, it, 1500, Keep::Volatile));
            written_until(&mut log, &disk, kept[usize::from(round)]);
            (0..seed % 5).for_each(|_| log.collect().unwrap());
        }
        if seed % 2 == 0 {
            disk.crash()
        } else {
            disk.kill()
        }
        let mut log = open(&disk, options);
        let mut found = Vec::new();
        log.recover(&mut |it| found.push(it.at));
        assert_eq!(found, kept, "{seed}");
        log.reclaim();
        drive(&mut log);
        for (&at, number) in kept.iter().zip(50..) {
            assert!(is_whole(&read_cold(&mut log, at).unwrap(), number, 16), "{seed}");
        }
    }
}

/// A full disk takes nothing of what was spilled: it stays in memory, nobody waits for it, and it goes on when there is
/// room.
#[test]
fn a_full_disk_keeps_it_in_memory() {
    let disk = SimDisk::new(4);
    let mut log = open(&disk, options());
    let first = append(&mut log, 9, 8 * MIB, Keep::Volatile);
    let small = append(&mut log, 100, 16, Keep::Durable);
    log.sync().unwrap();
    while log.durable() <= small {
        log.collect().unwrap();
    }
    let behind = append(&mut log, 8, 8 * MIB, Keep::Volatile);
    disk.set_faults(Faults { capacity: Some(0), ..Faults::default() });
    for _ in 0..20 {
        log.collect().unwrap();
    }
    assert!(log.read(behind).is_ok());
    disk.set_faults(Faults::default());
    drive(&mut log);
    for (at, number) in [(first, 9), (behind, 8)] {
        assert!(is_whole(&read_cold(&mut log, at).unwrap(), number, 8 * MIB));
    }
}
