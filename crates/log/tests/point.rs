//! The point in the list of files: nothing goes that is above it, and it is there before anything goes.

mod batches;

use batches::{append, drive, move_point, options, point};
use leveret_log::disk::{Faults, Point, SimDisk};
use leveret_log::file::Options;
use leveret_log::suite::numbers;
use leveret_log::{BatchName, FileLog, Log, Offset};

fn open(disk: &SimDisk, follows: Option<BatchName>) -> FileLog<SimDisk> {
    let options = Options { follows, ..options() };
    FileLog::open(disk.clone(), options, &mut |_| {}).unwrap().0
}

/// A leader of term 1 with so many batches of one record, most of which nobody holds.
fn released(disk: &SimDisk, count: u64) -> FileLog<SimDisk> {
    let mut log = open(disk, None);
    log.begin_term(1);
    for number in 0..count {
        append(&mut log, &[number as u8; 100]).unwrap();
        drive(&mut log);
        log.set_agreed(log.next_batch());
        if number % 20 > 0 {
            log.release(Offset::new(number), batches::ONE[0]).unwrap();
        }
    }
    settle(&mut log);
    log
}

fn settle(log: &mut FileLog<SimDisk>) {
    drive(log);
    for _ in 0..1000 {
        log.sync().unwrap();
    }
}

fn listed(log: &FileLog<SimDisk>) -> u64 {
    log.listed_point().map_or(0, |it| it.at.number)
}

#[test]
fn nothing_goes_that_is_above_the_point() {
    let disk = SimDisk::new(1);
    let mut log = released(&disk, 300);
    log.set_agreed(log.next_batch());
    let files = disk.files().len();
    settle(&mut log);
    assert_eq!((disk.files().len(), log.point()), (files, BatchName::NONE), "it was told none");
    assert!(log.wants_point());
    for number in [50, 120, 250] {
        log.set_point(point(&log, number));
        assert!(!log.wants_point(), "it knows one that is higher than the one it has");
        settle(&mut log);
        let (first, listed) = (log.point().number, log.listed_point().unwrap().clone());
        assert_eq!(listed, point(&log, number));
        assert!(first > number - 40 && first <= number, "{first} of {number}");
        assert!(log.wants_point());
        // A start has it, and knows that all up to it is agreed to.
        let copy = disk.copy_whole(1);
        assert_eq!(open(&copy, None).listed_point(), Some(&listed));
        let follower = open(&copy, Some(BatchName::NONE));
        assert_eq!(follower.listed_point(), Some(&listed));
        assert!(follower.applied().unwrap().number >= number);
    }
    let lower = point(&log, 100);
    log.set_point(lower);
    settle(&mut log);
    assert_eq!(listed(&log), 250);
}

/// What a log has from when it had no others is not above any.
#[test]
fn a_log_without_terms_needs_none() {
    let disk = batches::written(100);
    let mut log = open(&disk, None);
    let files = disk.files().len();
    log.begin_term(1);
    drive(&mut log);
    log.set_agreed(log.next_batch());
    (0..100).for_each(|at| log.release(Offset::new(at), batches::ONE[0]).unwrap());
    append(&mut log, b"more").unwrap();
    settle(&mut log);
    log.set_agreed(log.next_batch());
    settle(&mut log);
    assert!(disk.files().len() < files, "{:?}", disk.files());
    assert_eq!(log.listed_point(), None);
}

/// Whenever the power is cut: the list has the point before a file goes whose batches are above the one before.
#[test]
fn it_is_there_before_anything_goes() {
    let (mut moved, mut gone) = (0, 0);
    for seed in 0..150 {
        let mut below = numbers(seed);
        let disk = SimDisk::new(seed);
        drop(released(&disk, 200));
        disk.set_faults(Faults { delay: below(3) as u32, ..Faults::default() });
        let mut term = 1;
        for _ in 0..4 {
            let mut log = open(&disk, Some(BatchName::NONE));
            let (first, at) = (log.point(), listed(&log));
            assert!(first.number <= at, "seed {seed}: {first} is above {at}");
            assert!(log.applied().unwrap().number >= at);
            let members = log.listed_point().map(|it| it.members.to_vec());
            assert_eq!(
                members.unwrap_or_default(),
                if at > 0 { at.to_le_bytes().into() } else { vec![] }
            );
            (moved, gone) = (moved + u64::from(at > 0), gone + u64::from(first.number > 0));
            let last = log.last();
            log.apply_to(last).unwrap();
            term += 1;
            log.begin_term(term);
            for _ in 0..below(120) {
                log.sync().unwrap();
                log.set_agreed(log.stored().number + 1);
                if below(4) == 0 {
                    let stored = log.stored().number;
                    move_point(&mut log, stored - below(80).min(stored - 1));
                }
            }
            drop(log);
            disk.crash();
        }
    }
    assert!(moved > 150 && gone > 80, "{moved} {gone}");
}

/// Without room for it nothing goes, and the owner is asked again.
#[test]
fn a_list_without_room_keeps_the_one_before() {
    let disk = SimDisk::new(1);
    let mut log = released(&disk, 300);
    log.set_agreed(log.next_batch());
    settle(&mut log);
    let files = disk.files().len();
    disk.set_faults(Faults { full_list: true, ..Faults::default() });
    let point = Point { at: BatchName { number: 250, term: 1 }, members: Default::default() };
    for _ in 0..3 {
        assert!(log.wants_point());
        log.set_point(point.clone());
        settle(&mut log);
        assert_eq!((log.listed_point(), disk.files().len()), (None, files));
    }
    disk.set_faults(Faults::default());
    log.set_point(point.clone());
    settle(&mut log);
    assert_eq!(log.listed_point(), Some(&point));
    assert!(disk.files().len() < files);
}
