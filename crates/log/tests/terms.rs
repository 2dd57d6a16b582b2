//! Batches with terms: what a leader writes, and what a start makes of it.

mod batches;

use batches::{FIRST, append, drive, open, options, recovered, try_open};
use leveret_log::disk::{FileName, Reached, SimDisk};
use leveret_log::file::{OnDamage, Options};
use leveret_log::{AppendError, BatchName, FileLog, Keep, Log, Offset};

/// Bytes of the headers of a file and of a batch.
const FILE_HEADER: usize = 128;
const HEADER: usize = 112;

fn name(number: u64, term: u64) -> BatchName {
    BatchName { number, term }
}

/// The files that were written to, and their formats.
fn formats(disk: &SimDisk) -> Vec<u8> {
    let files = disk.files().into_iter();
    files.filter(|(file, _)| file.generation == 0).map(|(file, _)| disk.bytes_of(file)[8]).collect()
}

/// The terms of a log's batches, as far as they are known.
fn terms(log: &FileLog<SimDisk>) -> Vec<(u64, u64)> {
    (0..=log.last().number).filter_map(|it| Some((it, log.term_of(it)?))).collect()
}

/// Batches of three terms: 1 and 2 of term 3; 3 to 5 of term 4; 6 and 7 of term 9.
fn three_terms() -> SimDisk {
    let disk = SimDisk::new(5);
    let mut log = open(&disk);
    for (term, records) in [(3, 1), (4, 2), (9, 1)] {
        log.begin_term(term);
        drive(&mut log);
        for _ in 0..records {
            append(&mut log, &[term as u8; 100]).unwrap();
            drive(&mut log);
        }
    }
    disk
}

#[test]
fn a_term_begins_a_segment_with_a_batch_of_its_own() {
    let disk = three_terms();
    assert_eq!(formats(&disk), [4, 4, 4]);
    let mut log = open(&disk);
    assert_eq!(recovered(&mut log), [0, 1, 2, 3]);
    assert_eq!((log.last(), log.stored()), (name(7, 9), name(7, 9)));
    assert_eq!(log.point(), BatchName::NONE);
    let want = [(0, 0), (1, 3), (2, 3), (3, 4), (4, 4), (5, 4), (6, 9), (7, 9)];
    assert_eq!(terms(&log), want);
    assert_eq!(log.term_of(8), None);
}

/// Whoever opens a log with terms knows nothing of what others agreed to, and leads no term yet.
#[test]
fn nothing_is_written_before_a_term_begins() {
    let disk = three_terms();
    let mut log = open(&disk);
    assert_eq!(recovered(&mut log).len(), 4);
    let before: Vec<_> = disk.files().into_iter().map(|(it, _)| disk.bytes_of(it)).collect();
    assert_eq!(append(&mut log, b"more"), Err(AppendError::NoTerm));
    assert_eq!(log.append(b"", &[], &[], Keep::Volatile), Err(AppendError::NoTerm));
    assert_eq!(log.append_members(b"members"), Err(AppendError::NoTerm));
    for at in 0..4 {
        log.release(Offset::new(at), batches::ONE[0]).unwrap();
    }
    log.reclaim();
    for _ in 0..20 {
        log.sync().unwrap();
    }
    let now: Vec<_> = disk.files().into_iter().map(|(it, _)| disk.bytes_of(it)).collect();
    assert!(now == before && log.last() == name(7, 9));
    log.begin_term(10);
    append(&mut log, b"more").unwrap();
    drive(&mut log);
    drive(&mut log);
    assert_eq!(log.last(), name(9, 10));
    drop(log);
    disk.crash();
    assert_eq!(recovered(&mut open(&disk)), [4]);
}

/// What is under way has a name, and is stored when it is synced.
#[test]
fn a_batch_is_stored_when_it_is_synced() {
    let disk = SimDisk::new(5);
    let mut log = open(&disk);
    log.begin_term(2);
    assert_eq!((log.last(), log.stored(), log.notes()), (BatchName::NONE, BatchName::NONE, 1));
    log.sync().unwrap();
    assert_eq!((log.last(), log.stored(), log.notes()), (name(1, 2), BatchName::NONE, 0));
    drive(&mut log);
    assert_eq!(log.stored(), name(1, 2));
}

#[test]
fn what_is_under_way_when_terms_begin_is_not_stored() {
    let disk = batches::written(3);
    let mut log = open(&disk);
    append(&mut log, b"record").unwrap();
    log.sync().unwrap();
    assert_eq!((log.last(), log.stored()), (name(3, 0), name(2, 0)));
    log.begin_term(1);
    assert_eq!((log.last(), log.stored()), (name(3, 0), name(2, 0)));
    drive(&mut log);
    drive(&mut log);
    assert_eq!((log.last(), log.stored()), (name(4, 1), name(4, 1)));
}

/// A log of one alone goes on with terms: what it had stays as it is, and is below the point.
#[test]
fn a_log_without_terms_gets_them() {
    for count in [0_u64, 1, 2, 60] {
        let disk = batches::written(count as u8);
        let before: Vec<_> = disk.files().iter().map(|(file, _)| disk.bytes_of(*file)).collect();
        let mut log = open(&disk);
        assert_eq!(log.point(), name(count.saturating_sub(1), 0));
        log.begin_term(6);
        append(&mut log, b"more").unwrap();
        drive(&mut log);
        drive(&mut log);
        // The name of no batch is nobody's point.
        let point = if count == 1 { 1 } else { count.saturating_sub(1) };
        for log in [&log, &open(&disk)] {
            assert_eq!((log.point(), log.last()), (name(point, 0), name(point + 2, 6)));
            assert_eq!(terms(log), [(point, 0), (point + 1, 6), (point + 2, 6)]);
        }
        assert_eq!(formats(&disk).last(), Some(&4));
        for (number, was) in before.iter().enumerate() {
            let file = FileName { segment: number as u64, generation: 0 };
            assert!(disk.bytes_of(file).starts_with(was), "a seal may be new");
        }
        assert_eq!(recovered(&mut open(&disk)), (0..=count).collect::<Vec<_>>());
    }
}

#[test]
fn a_change_of_members_is_a_batch() {
    let disk = three_terms();
    let mut log = open(&disk);
    log.begin_term(10);
    log.append_members(b"one, two, three").unwrap();
    append(&mut log, b"more").unwrap();
    for _ in 0..3 {
        drive(&mut log);
    }
    assert_eq!(log.last(), name(10, 10));
    drop(log);
    disk.crash();
    let mut log = open(&disk);
    assert_eq!((recovered(&mut log).len(), log.last()), (5, name(10, 10)));
}

/// Changes the header of a batch in the bytes of a file.
fn change(bytes: &mut [u8], at: usize, field: usize, number: u64) {
    bytes[at + field..at + field + 8].copy_from_slice(&number.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[at..at + HEADER - 4]);
    bytes[at + HEADER - 4..at + HEADER].copy_from_slice(&crc.to_le_bytes());
}

/// Where the last batch of a file begins. The file is not sealed.
fn last_batch(bytes: &[u8]) -> usize {
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let mut at = FILE_HEADER;
    loop {
        let next = at + HEADER + number(at + 16) + number(at + 24);
        if next >= bytes.len() {
            return at;
        }
        at = next;
    }
}

/// A batch that does not follow on the one before it was cut off before that was written: the log ends before it, also if the
/// list says that it was synced.
#[test]
fn a_log_ends_where_a_batch_does_not_follow() {
    const NUMBER: usize = 32;
    const TERM: usize = 76;
    const BEFORE: usize = 84;
    let last = FileName { segment: 2, generation: 0 };
    let check = |at: Option<usize>, field, number, want: BatchName, files: usize| {
        let disk = three_terms();
        let mut bytes = disk.bytes_of(last);
        let at = at.unwrap_or_else(|| last_batch(&bytes));
        change(&mut bytes, at, field, number);
        disk.put(last, bytes);
        let mut log = open(&disk);
        let case = format!("{field} is {number}");
        assert_eq!((log.last(), disk.files().len()), (want, files), "{case}");
        assert_eq!(recovered(&mut log), [0, 1, 2], "{case}");
        log.begin_term(12);
        append(&mut log, b"more").unwrap();
        drive(&mut log);
        drive(&mut log);
        drop(log);
        disk.crash();
        let mut log = open(&disk);
        assert_eq!(log.last(), name(want.number + 2, 12), "{case}");
        assert_eq!(recovered(&mut log).len(), 4, "{case}");
    };
    // In the file.
    check(None, BEFORE, 8, name(6, 9), 3);
    check(None, TERM, 10, name(6, 9), 3);
    check(None, NUMBER, 8, name(6, 9), 3);
    // At its beginning: the term before is another, as late as it may be.
    check(Some(FILE_HEADER), BEFORE, 3, name(5, 4), 2);
    check(Some(FILE_HEADER), BEFORE, 9, name(5, 4), 2);
}

/// What seals a file has the place of the next batch, which may be another when that is cut off.
#[test]
fn what_seals_a_file_is_cut_with_the_next_batch() {
    let ends = [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 3), (7, 3), (8, 4)];
    for (sequence, end) in ends {
        let disk = three_terms();
        let until = Some(Reached { end, sequence });
        let (mut log, _) =
            FileLog::open(disk.clone(), Options { until, ..options() }, &mut |_| {}).unwrap();
        let term = [0, 3, 3, 4, 4, 4, 9, 9][sequence as usize - 1];
        assert_eq!((log.last(), log.end()), (name(sequence - 1, term), Offset::new(end)));
        let files = [0, 1, 1, 2, 2, 2, 3, 3][sequence as usize - 1];
        assert_eq!(disk.files().len(), files);
        assert_eq!(recovered(&mut log), (0..end).collect::<Vec<_>>());
        if term > 0 {
            log.begin_term(term + 1);
            append(&mut log, b"more").unwrap();
            drive(&mut log);
            drive(&mut log);
            assert_eq!(log.last(), name(sequence + 1, term + 1));
            drop(log);
            disk.crash();
            assert_eq!(recovered(&mut open(&disk)), (0..=end).collect::<Vec<_>>());
        }
    }
}

/// Two terms that begin a segment of the same number with the same batch have two marks.
#[test]
fn the_mark_of_a_segment_is_that_of_its_term() {
    let mark = |term| {
        let disk = SimDisk::new(5);
        let mut log = open(&disk);
        log.begin_term(term);
        drive(&mut log);
        disk.bytes_of(FIRST)[88..96].to_vec()
    };
    assert_eq!(mark(1), mark(1));
    assert_ne!(mark(1), mark(2));
}

/// Terms are known where the digests are read instead of the segments, and behind a file that was rewritten nothing is
/// missed; above that one alone is everything as it was written.
#[test]
fn terms_are_known_beside_digests_and_rewritten_files() {
    let disk = SimDisk::new(5);
    let digests = Options { digests: true, on_damage: OnDamage::Aside, ..options() };
    let open = || FileLog::open(disk.clone(), digests.clone(), &mut |_| {}).unwrap();
    let (mut log, _) = open();
    log.begin_term(1);
    for number in 0..160_u8 {
        append(&mut log, &[number; 100]).unwrap();
        drive(&mut log);
        if number == 100 {
            log.begin_term(2);
        }
    }
    log.set_agreed(log.next_batch());
    settle(&mut log);
    let (mut log, report) = open();
    assert!(report.digests > 2);
    recovered(&mut log);
    assert_eq!((log.term_of(102), log.term_of(103)), (Some(1), Some(2)));
    assert_eq!((log.point(), log.last()), (BatchName::NONE, name(162, 2)));
    for at in 10..100 {
        if at % 10 > 0 {
            log.release(Offset::new(at), batches::ONE[0]).unwrap();
        }
    }
    log.set_agreed(log.next_batch() + 1);
    log.begin_term(3);
    for _ in 0..60 {
        append(&mut log, &[0; 100]).unwrap();
        drive(&mut log);
        log.set_agreed(log.next_batch());
        let last = log.next_batch() - 1;
        batches::move_point(&mut log, last);
    }
    log.reclaim();
    settle(&mut log);
    assert!(disk.files().iter().any(|(file, _)| file.generation > 0), "{:?}", disk.files());
    let (point, last) = (log.point(), log.last());
    assert!(point > name(50, 1) && point < last, "{point}");
    assert_eq!(log.term_of(point.number), Some(point.term));
    assert_eq!(log.term_of(point.number - 1), None);
    drop(log);
    let (log, _) = open();
    assert_eq!((log.point(), log.last()), (point, last));
    drop(log);
    let (log, _) = try_open(&disk).unwrap();
    assert_eq!((log.point(), log.last()), (point, last));
}

/// Until everything is done, whatever there is to do.
fn settle(log: &mut FileLog<SimDisk>) {
    drive(log);
    for _ in 0..1000 {
        log.sync().unwrap();
    }
}
