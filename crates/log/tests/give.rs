//! Batches that a log gives to others are what it wrote, from memory or from its files.

mod batches;

use batches::{append, drive, options};
use leveret_log::disk::{Faults, FileName, SimDisk};
use leveret_log::file::{BatchCopy, NoBatch, Options};
use leveret_log::{BatchName, FileLog, Holder, Keep, Log, Offset};

fn open(disk: &SimDisk, copies_bytes: u64) -> FileLog<SimDisk> {
    let options = Options { copies_bytes, ..options() };
    FileLog::open(disk.clone(), options, &mut |_| {}).unwrap().0
}

/// Some batches of two terms in some files: records of all sizes, notes, changes of members.
fn write(log: &mut FileLog<SimDisk>) {
    for term in [2, 5] {
        log.begin_term(term);
        drive(log);
        for number in 0..60_u64 {
            let len = if number % 17 == 0 { 700_000 } else { number as usize * 3 };
            let at = append(log, &vec![number as u8; len]).unwrap();
            if number % 5 == 0 {
                let first = at.get() - at.get() / 2;
                log.mark(Offset::new(first), batches::ONE[0], number as u8 + 1).unwrap();
            }
            if number % 13 == 0 {
                log.append_members(&number.to_le_bytes()).unwrap();
            }
            drive(log);
        }
    }
}

/// Waits for a batch as long as it is to come.
fn get(log: &mut FileLog<SimDisk>, number: u64) -> Result<BatchCopy, NoBatch> {
    loop {
        match log.batch(number) {
            Err(NoBatch::ToCome) => log.collect().unwrap(),
            result => return result,
        }
    }
}

/// The batches above the point are what is in the files, one behind the other.
fn check(disk: &SimDisk, log: &mut FileLog<SimDisk>) {
    let mut position = 0;
    let mut before = log.point();
    let mut segment = None;
    for number in log.point().number + 1..=log.last().number {
        let batch = get(log, number).unwrap();
        let name = BatchName { number, term: log.term_of(number).unwrap() };
        assert_eq!((batch.name(), batch.before()), (Some(name), Some(before)));
        let bytes = disk.bytes_of(FileName { segment: batch.segment, generation: 0 });
        if segment.replace(batch.segment) != Some(batch.segment) {
            position = batch.beginning.len() as u64;
            assert_eq!(batch.beginning, bytes[..128]);
        } else {
            assert!(batch.beginning.is_empty());
        }
        assert_eq!(batch.position, position);
        position += batch.len();
        assert_eq!(batch.pieces.concat(), bytes[batch.position as usize..position as usize]);
        before = name;
    }
    assert_eq!(log.batch(before.number + 1), Err(NoBatch::NotYet));
}

#[test]
fn batches_are_given_as_they_were_written() {
    for copies_bytes in [0, 1 << 20, u64::MAX] {
        for delay in [0, 3] {
            let disk = SimDisk::new(copies_bytes ^ u64::from(delay));
            disk.set_faults(Faults { delay, ..Faults::default() });
            let mut log = open(&disk, copies_bytes);
            write(&mut log);
            let reads = disk.work().reads;
            check(&disk, &mut log);
            let is_all_here = copies_bytes == u64::MAX;
            assert_eq!(disk.work().reads == reads, is_all_here);
            assert!(disk.work().reads - reads < 80, "some are read in one go");
            check(&disk, &mut open(&disk, copies_bytes));
        }
    }
}

/// Several who are behind, each somewhere else, all get what they lack.
#[test]
fn many_may_be_behind() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk, 0);
    write(&mut log);
    let last = log.last().number;
    let want: Vec<_> = (1..=last).map(|number| get(&mut log, number).unwrap()).collect();
    let mut next: Vec<u64> = (0..7).map(|follower| 1 + follower * last / 7).collect();
    let mut rounds = 0;
    while next.iter().any(|&number| number <= last) {
        for number in &mut next {
            if let Ok(batch) = log.batch(*number) {
                assert_eq!(batch, want[*number as usize - 1]);
                *number += 1;
            }
        }
        log.collect().unwrap();
        rounds += 1;
        assert!(rounds < 100_000);
    }
}

/// What is in memory is not copied, before and after it was written.
#[test]
fn a_batch_in_memory_is_shared() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk, u64::MAX);
    log.begin_term(1);
    drive(&mut log);
    append(&mut log, &[1; 50_000]).unwrap();
    append(&mut log, &[2; 100]).unwrap();
    log.sync().unwrap();
    let (under_way, again) = (log.batch(2).unwrap(), log.batch(2).unwrap());
    drive(&mut log);
    for other in [again, log.batch(2).unwrap()] {
        let addresses = |batch: &BatchCopy| -> Vec<_> {
            batch.pieces.iter().map(|piece| piece.as_ptr()).collect()
        };
        assert_eq!(addresses(&under_way), addresses(&other));
        assert_eq!(
            other.pieces.len(),
            3,
            "the index, the large one where it is, and the small one"
        );
    }
    log.let_go_of(2);
    assert_eq!(log.batch(1), Err(NoBatch::ToCome));
    assert!(log.batch(2).is_ok());
}

#[test]
fn a_change_of_members_can_be_read() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk, 0);
    write(&mut log);
    let batches: Vec<_> =
        (1..=log.last().number).map(|number| get(&mut log, number).unwrap()).collect();
    let members: Vec<_> = batches.iter().filter_map(|it| it.members()).collect();
    let want: Vec<_> = [0, 13, 26, 39, 52].map(|it: u64| it.to_le_bytes().to_vec()).into();
    assert_eq!(members, [&want[..], &want].concat());
}

/// What was written without terms, removed or rewritten is not for others; what others lack stays as it is.
#[test]
fn what_is_not_as_it_was_is_gone() {
    let disk = batches::written(3);
    let mut log = open(&disk, 0);
    assert_eq!(log.batch(1), Err(NoBatch::Gone));
    log.begin_term(1);
    for number in 0..100_u8 {
        append(&mut log, &[number; 100]).unwrap();
        drive(&mut log);
    }
    log.set_agreed(log.next_batch());
    log.hold_batches(40);
    for at in 0..90 {
        if at != 60 {
            log.release(Offset::new(at), batches::ONE[0]).unwrap();
        }
    }
    let go_on = |log: &mut FileLog<SimDisk>| {
        for _ in 0..40 {
            log.append(b"h", &[&[0; 100]], &[Holder::new(2)], Keep::Durable).unwrap();
            drive(log);
            log.set_agreed(log.next_batch());
            let last = log.next_batch() - 1;
            batches::move_point(log, last);
        }
        log.reclaim();
        for _ in 0..1000 {
            log.sync().unwrap();
        }
    };
    go_on(&mut log);
    let point = log.point().number;
    assert!((4..40).contains(&point), "{point}");
    check(&disk, &mut log);
    assert_eq!(log.batch(point), Err(NoBatch::Gone));
    log.hold_batches(u64::MAX);
    go_on(&mut log);
    assert!(log.point().number > 60, "{}", log.point());
    check(&disk, &mut log);
}

/// A damaged batch is not given, those before it are.
#[test]
fn a_damaged_batch_is_told() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk, 0);
    write(&mut log);
    let batch = get(&mut log, 20).unwrap();
    let file = FileName { segment: batch.segment, generation: 0 };
    for position in [batch.position + 3, batch.position + 115, batch.position + batch.len() - 1] {
        // A start would find it.
        let mut log = open(&disk, 0);
        disk.flip(file, position, 3);
        let before = get(&mut log, 19).unwrap();
        assert_eq!(before.name().unwrap().number, 19);
        assert!(matches!(get(&mut log, 20), Err(NoBatch::Damaged { file: it, .. }) if it == file));
        disk.flip(file, position, 3);
        assert_eq!(get(&mut log, 20).as_ref(), Ok(&batch));
    }
}

/// Others may have stored a batch before this disk has, and one of them may ask for it again.
#[test]
fn what_is_being_written_is_here_though_all_have_it() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk, u64::MAX);
    log.begin_term(1);
    drive(&mut log);
    disk.set_faults(Faults { delay: 1000, ..Faults::default() });
    append(&mut log, b"record").unwrap();
    log.sync().unwrap();
    assert_eq!((log.last().number, log.stored().number), (2, 1));
    log.let_go_of(3);
    assert_eq!(get(&mut log, 2).map(|it| it.name()), Ok(Some(log.last())));
}
