//! What a leader leaves on its disk of whom nobody heard.

mod batches;

use batches::{append, drive, options};
use leveret_log::disk::SimDisk;
use leveret_log::file::{BatchCopy, OnDamage, Options};
use leveret_log::{BatchName, FileLog, Log};

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
