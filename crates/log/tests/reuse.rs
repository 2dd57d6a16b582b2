//! Files that are made of removed ones: what those had is behind the last batch, and is never read.

mod batches;

use batches::{FIRST, ONE, append, drive, open, options, read, recovered, try_open, written};
use leveret_log::disk::SimDisk;
use leveret_log::file::Options;
use leveret_log::{FileLog, Log, Offset};

/// `count` batches of one record in a file that was made of another, and how much of it they are.
fn written_over(count: u8) -> (SimDisk, usize) {
    let old = SimDisk::new(3);
    let other = Options { seed: 5, segment_bytes: 1 << 20, ..options() };
    let mut log = FileLog::open(old.clone(), other, &mut |_| {}).unwrap().0;
    for number in 0..40 {
        append(&mut log, &[100 + number; 90]).unwrap();
        drive(&mut log);
    }
    let disk = SimDisk::new(3);
    disk.keep_spare(old.bytes_of(FIRST));
    let mut log = open(&disk);
    for number in 0..count {
        append(&mut log, &[number; 100]).unwrap();
        drive(&mut log);
    }
    assert_eq!(disk.bytes_of(FIRST).len(), old.bytes_of(FIRST).len());
    (disk, written(count).bytes_of(FIRST).len())
}

/// What is behind the last batch is no damage and no interrupted write, whatever it is.
#[test]
fn what_a_file_had_before_is_not_read() {
    let (disk, len) = written_over(8);
    let whole = disk.bytes_of(FIRST);
    let rests = [whole[len..].to_vec(), vec![0; 5000], vec![0; 1], vec![255; 300], Vec::new()];
    for rest in rests {
        for position in (0..rest.len()).step_by(7) {
            let copy = SimDisk::new(0);
            copy.put(FIRST, [&whole[..len], &rest].concat());
            copy.flip(FIRST, (len + position) as u64, (position % 8) as u8);
            let (mut log, report) = try_open(&copy).unwrap();
            assert_eq!(recovered(&mut log).len(), 8, "{position}");
            let is_told = rest.len() < 40; // too short to tell
            assert_eq!(report.cut_bytes > 0, is_told, "{position}: {report:?}");
            assert_eq!(copy.bytes_of(FIRST).len(), len);
        }
    }
}

/// An interrupted write over an older file is cut off, wherever it ended, and told if it had begun.
#[test]
fn a_torn_tail_over_an_older_file_is_cut() {
    let (disk, len) = written_over(8);
    let (before, before_len) = written_over(7);
    let (new, old) = (disk.bytes_of(FIRST), before.bytes_of(FIRST));
    for end in before_len..len {
        let copy = SimDisk::new(0);
        copy.put(FIRST, [&new[..end], &old[end..]].concat());
        let (mut log, report) = try_open(&copy).unwrap();
        assert_eq!(recovered(&mut log).len(), 7, "{end}");
        assert_eq!(report.cut_bytes > 0, end >= before_len + 8, "{end}");
        append(&mut log, b"next").unwrap();
        drive(&mut log);
        drop(log);
        assert_eq!(recovered(&mut open(&copy)).len(), 8);
    }
}

/// A flipped bit in what was written is seen as in any file.
#[test]
fn no_flipped_bit_goes_unseen_before_older_bytes() {
    let (disk, len) = written_over(8);
    let (_, before_len) = written_over(7);
    for position in (0..len).step_by(3) {
        let copy = disk.copy(0);
        copy.flip(FIRST, position as u64, (position % 8) as u8);
        let Ok((mut log, report)) = try_open(&copy) else {
            assert!(position < before_len, "{position}");
            continue;
        };
        let found = recovered(&mut log);
        if found.len() < 8 {
            assert!(found.len() == 7 && report.cut_bytes > 100, "{position}: {report:?}");
            continue;
        }
        let read: Vec<_> = found.iter().map(|at| read(&mut log, Offset::new(*at))).collect();
        assert_eq!(read.iter().filter(|it| it.is_ok()).count(), 7, "{position}");
    }
}

/// The end of a segment cuts off what its file had before; the next one is made of a file that went.
#[test]
fn a_file_that_ends_has_nothing_behind() {
    let disk = SimDisk::new(3);
    disk.keep_spare(vec![9; 20_000]);
    let mut log = open(&disk);
    let mut held = std::collections::VecDeque::new();
    for _ in 0..100 {
        held.push_back(append(&mut log, &[1; 500]).unwrap());
        if held.len() > 12 {
            log.release(held.pop_front().unwrap(), ONE[0]).unwrap();
        }
        drive(&mut log);
        let files = disk.files();
        let before = &files[..files.len() - 1];
        assert!(before.iter().all(|(_, len)| *len < 6000), "{files:?}");
    }
    assert!(disk.work().reused > 5, "{:?}", disk.work());
    disk.crash();
    let found = recovered(&mut open(&disk));
    assert_eq!(found, held.iter().map(|at| at.get()).collect::<Vec<_>>());
}
