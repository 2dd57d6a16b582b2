//! What one that is elected does before its log leads, and what a leader leaves on its disk of whom nobody heard.

mod batches;

use batches::{append, drive, options};
use leveret_log::disk::{Faults, SimDisk};
use leveret_log::file::{BatchCopy, OnDamage, Options};
use leveret_log::{AppendError, BatchName, FileLog, Keep, Log, Offset};

fn open(disk: &SimDisk, follows: Option<BatchName>) -> FileLog<SimDisk> {
    let on_damage = OnDamage::Aside;
    let options =
        Options { digests: true, on_damage, follows, segment_bytes: 1 << 20, ..options() };
    FileLog::open(disk.clone(), options, &mut |_| {}).unwrap().0
}

/// A batch that is in memory.
fn get(log: &mut FileLog<SimDisk>, number: u64) -> BatchCopy {
    log.batch(number).unwrap()
}

/// The seal goes with the batch for which it was made: then the file goes on, and a digest would have it that nothing follows.
#[test]
fn a_seal_that_may_be_cut_is_in_no_digest() {
    let disk = SimDisk::new(1);
    let mut leader = open(&disk, None);
    leader.begin_term(2);
    for _ in 0..6 {
        drive(&mut leader);
        append(&mut leader, b"record").unwrap();
    }
    drive(&mut leader);
    let last = leader.last().number;
    let other = SimDisk::new(2);
    let mut log = open(&other, Some(BatchName::NONE));
    for number in 1..last {
        log.copy(&get(&mut leader, number)).unwrap();
    }
    drive(&mut log);
    log.apply_to(BatchName { number: last - 1, term: 2 }).unwrap();
    // It leads a term that nobody hears of.
    log.begin_term(3);
    drive(&mut log);
    assert!(log.lead());
    for _ in 0..20 {
        log.sync().unwrap();
        drive(&mut log);
        log.reclaim();
        log.collect().unwrap();
    }
    assert_eq!(log.last(), BatchName { number: last, term: 3 });
    drop(log);
    let mut log = open(&other, Some(BatchName { number: last - 1, term: 2 }));
    log.cut_from(last).unwrap();
    let batch = get(&mut leader, last);
    assert_eq!(log.copy(&batch), Ok(leader.last()));
}

/// What was copied comes first: a record has no place before that is on the disk.
#[test]
fn who_is_about_to_lead_takes_no_records() {
    let mut leader = open(&SimDisk::new(1), None);
    leader.begin_term(1);
    for _ in 0..3 {
        drive(&mut leader);
        append(&mut leader, b"record").unwrap();
    }
    drive(&mut leader);
    let disk = SimDisk::new(2);
    disk.set_faults(Faults { delay: 3, ..Faults::default() });
    let mut follower = open(&disk, Some(BatchName::NONE));
    let refused = Err(AppendError::NoTerm);
    for number in 1..=4 {
        follower.copy(&get(&mut leader, number)).unwrap();
    }
    assert_eq!(append(&mut follower, b"record"), refused);
    assert_eq!(follower.append_members(b"members"), Err(AppendError::NoTerm));
    follower.begin_term(2);
    follower.append_members(b"members").unwrap();
    assert_eq!(follower.last(), BatchName { number: 6, term: 2 });
    while !follower.lead() {
        let end = follower.end();
        assert_eq!(append(&mut follower, b"record"), refused);
        assert_eq!(follower.append(b"", &[], &[], Keep::Volatile), refused);
        assert_eq!(follower.end(), end);
        follower.sync().unwrap();
    }
    assert_eq!(append(&mut follower, b"record"), Ok(Offset::new(3)));
    follower.append_members(b"members").unwrap();
    drive(&mut follower);
    assert_eq!(
        (follower.last(), follower.end()),
        (BatchName { number: 8, term: 2 }, Offset::new(4))
    );
}

/// What is left of a file that was cut off is none of the file that comes in its place.
#[test]
fn a_term_that_is_begun_again_has_another_mark() {
    let mut log = open(&SimDisk::new(1), Some(BatchName::NONE));
    let firsts = [2, 3].map(|term| {
        log.begin_term(term);
        let first = log.batch(1).unwrap();
        log.cut_from(1).unwrap();
        first
    });
    let [first, again] = firsts.each_ref().map(|it| (it.segment, it.position));
    assert_eq!(first, again);
    let [first, again] = firsts.each_ref().map(|it| &it.pieces[0][..8]);
    assert_ne!(first, again);
}
