//! A log's end that others had to agree to, and did not: it is cut off, and nothing that it released is gone.

mod batches;

use batches::{FIRST, append, drive, open, options, read, recovered, written};
use leveret_log::disk::{Disk, DiskError, FileName, Reached, SimDisk};
use leveret_log::file::{OnDamage, OpenError, Options};
use leveret_log::suite::{AskingDisk, Deed};
use leveret_log::{FileLog, Log, Offset};

/// Batches of one record each, in some files.
const COUNT: u8 = 80;

fn until(count: u64) -> Options {
    Options { until: Some(Reached { end: count, sequence: count }), ..options() }
}

fn cut_off<D: Disk>(disk: D, count: u64) -> Result<FileLog<D>, OpenError> {
    FileLog::open(disk, until(count), &mut |_| {}).map(|(log, _)| log)
}

#[test]
fn a_log_is_cut_at_any_batch_and_goes_on_there() {
    let whole = written(COUNT);
    assert!(whole.files().len() > 3, "{:?}", whole.files());
    for count in 0..=u64::from(COUNT) {
        let disk = whole.copy_whole(count);
        let mut log = cut_off(disk.clone(), count).unwrap();
        assert_eq!(recovered(&mut log), (0..count).collect::<Vec<_>>());
        assert_eq!((log.end(), log.next_batch()), (Offset::new(count), count));
        assert_eq!(append(&mut log, b"another"), Ok(Offset::new(count)));
        drive(&mut log);
        assert_eq!(log.next_batch(), count + 1);
        drop(log);
        disk.crash();
        let mut log = open(&disk);
        assert_eq!(recovered(&mut log), (0..=count).collect::<Vec<_>>());
        assert_eq!(read(&mut log, Offset::new(count)).unwrap(), b"hanother");
        for at in 0..count {
            assert_eq!(read(&mut log, Offset::new(at)).unwrap()[1..], [at as u8; 100]);
        }
    }
}

#[test]
fn what_is_cut_is_told() {
    let disk = written(COUNT);
    let bytes = |disk: &SimDisk| disk.files().iter().map(|(_, len)| len).sum::<u64>();
    let before = bytes(&disk);
    let (_, report) = FileLog::open(disk.clone(), until(10), &mut |_| {}).unwrap();
    assert_eq!(report.unagreed_bytes, before - bytes(&disk));
    assert_eq!((report.files, report.records), (1, 10));
    assert_eq!((report.cut_bytes, report.foreign_bytes), (0, 0));
}

/// Of a log that is agreed to as a whole nothing is cut, and nothing is written.
#[test]
fn nothing_is_cut_of_what_is_agreed_to() {
    let disk = written(COUNT);
    let before = disk.files();
    let (_, report) = FileLog::open(disk.clone(), until(COUNT.into()), &mut |_| {}).unwrap();
    assert_eq!(report.unagreed_bytes, 0);
    assert_eq!(disk.files(), before);
}

/// A cut is first said, then made in the file that is left, then the files behind it go, the last one first: a crash between
/// leaves the whole log, or one that ends with that file, or the log that was to be.
#[test]
fn a_crash_in_the_middle_of_a_cut_leaves_a_log() {
    let whole = written(COUNT);
    let ends = ends_of_files(&whole);
    for count in 0..=u64::from(COUNT) {
        let kept = ends.iter().take_while(|&&(first, _)| first < count).count();
        let kept_end = kept.checked_sub(1).map_or(0, |last| ends[last].1);
        // What is left is made safe before anything else.
        let said = 1 + u32::from(kept > 0);
        let cut = said + u32::from(kept_end > count);
        let removed = (ends.len() - kept) as u32;
        for changes in 0..=cut + removed {
            let len = match changes {
                _ if changes < said => COUNT.into(),
                _ if changes < cut => kept_end,
                _ => count,
            };
            // A file that cannot be removed is no reason not to start.
            let left = ends.len() - changes.saturating_sub(cut) as usize;
            let want = (changes >= cut, left, len);
            assert_eq!(cut_in_part(&whole, count, changes), want, "{count} after {changes}");
        }
    }
}

/// The records of each file.
fn ends_of_files(disk: &SimDisk) -> Vec<(u64, u64)> {
    let mut listed = disk.listed();
    listed.sort_by_key(|it| it.file);
    let firsts = listed.iter().map(|it| it.heading.unwrap().first);
    firsts.zip(listed.iter().map(|it| it.reached.end)).collect()
}

/// Cuts a copy on a disk that stops after so many changes. What is left is a log that ends with a batch, goes on there, and
/// can be cut again. Whether the log was opened, how many files were left, the first ones, and how many records.
fn cut_in_part(whole: &SimDisk, count: u64, changes: u32) -> (bool, usize, u64) {
    let disk = whole.copy_whole(u64::from(changes));
    let is_open = cut_off(stops(&disk, changes), count).is_ok();
    disk.crash();
    let names = |disk: &SimDisk| disk.files().into_iter().map(|(file, _)| file).collect::<Vec<_>>();
    let files = names(&disk);
    assert!(names(whole).starts_with(&files), "{files:?}");
    let left = disk.copy_whole(1);
    let mut log = open(&left);
    let found = recovered(&mut log);
    let len = found.len() as u64;
    assert_eq!(found, (0..len).collect::<Vec<_>>());
    for at in 0..len {
        assert_eq!(read(&mut log, Offset::new(at)).unwrap()[1..], [at as u8; 100]);
    }
    assert_eq!((log.end(), log.next_batch()), (Offset::new(len), len));
    append(&mut log, b"another").unwrap();
    drive(&mut log);
    drop(log);
    left.crash();
    assert_eq!(recovered(&mut open(&left)), (0..=len).collect::<Vec<_>>());
    let mut log = cut_off(disk, count).unwrap();
    assert_eq!(recovered(&mut log), (0..count).collect::<Vec<_>>());
    assert_eq!((log.end(), log.next_batch()), (Offset::new(count), count));
    (is_open, files.len(), len)
}

/// A file is sealed by the first batch of the next one, and says where that one begins. Without that batch it is not sealed, and
/// offsets between are free.
#[test]
fn what_sealed_a_file_is_cut_with_it() {
    let whole = SimDisk::new(3);
    let mut log = open(&whole);
    for number in 0..COUNT {
        // A record that no batch has.
        let at = append(&mut log, &[number; 100]).unwrap();
        log.release(at, batches::ONE[0]).unwrap();
        drive(&mut log);
        append(&mut log, &[number; 100]).unwrap();
        drive(&mut log);
    }
    for count in 1..=u64::from(COUNT) {
        let disk = whole.copy_whole(count);
        let end = 2 * count;
        let until = Some(Reached { end, sequence: count });
        let mut log =
            FileLog::open(disk.clone(), Options { until, ..options() }, &mut |_| {}).unwrap().0;
        let mut want: Vec<_> = (0..count).map(|number| 2 * number + 1).collect();
        assert_eq!(recovered(&mut log), want);
        assert_eq!((log.end(), log.next_batch()), (Offset::new(end), count));
        assert_eq!(append(&mut log, b"another"), Ok(Offset::new(end)));
        drive(&mut log);
        drop(log);
        disk.crash();
        want.push(end);
        assert_eq!(recovered(&mut open(&disk)), want);
    }
}

/// Neither a file that is empty nor one that is nearly empty goes, before others agree to what emptied it.
#[test]
fn what_is_released_behind_the_cut_is_back() {
    for kept in [0, 10] {
        let disk = written(COUNT);
        let mut log = open(&disk);
        recovered(&mut log);
        log.set_agreed(log.next_batch());
        for at in 0..u64::from(COUNT) {
            if kept == 0 || at % kept > 0 {
                log.release(Offset::new(at), batches::ONE[0]).unwrap();
            }
        }
        append(&mut log, &[0; 10_000]).unwrap();
        settle(&mut log);
        let files = disk.files();
        let mut log = cut_off(disk.copy_whole(1), COUNT.into()).unwrap();
        assert_eq!(recovered(&mut log), (0..u64::from(COUNT)).collect::<Vec<_>>());
        for at in 0..COUNT {
            assert_eq!(read(&mut log, Offset::new(at.into())).unwrap()[1..], [at; 100]);
        }
        drop(log);
        let mut log = open(&disk);
        log.set_agreed(log.next_batch());
        log.reclaim();
        settle(&mut log);
        let bytes = |files: &[(FileName, u64)]| files.iter().map(|(_, len)| len).sum::<u64>();
        assert!(bytes(&disk.files()) < bytes(&files), "{files:?}");
        assert!(!disk.files().iter().any(|&(file, _)| file == FIRST), "{files:?}");
    }
}

/// Who reads the files knows by which batch each was emptied: one that others have not agreed to yet leaves the file there,
/// in the next process, too.
#[test]
fn what_is_released_behind_the_cut_is_back_after_another_start() {
    for digests in [false, true] {
        let options = Options { digests, on_damage: OnDamage::Aside, ..options() };
        let open = |disk: &SimDisk| {
            let (mut log, report) =
                FileLog::open(disk.clone(), options.clone(), &mut |_| {}).unwrap();
            recovered(&mut log);
            (log, report)
        };
        let disk = written(COUNT);
        let (mut log, _) = open(&disk);
        log.set_agreed(COUNT.into());
        for at in 0..u64::from(COUNT) / 2 {
            log.release(Offset::new(at), batches::ONE[0]).unwrap();
        }
        for _ in 0..COUNT / 2 {
            append(&mut log, &[1; 100]).unwrap();
            drive(&mut log);
        }
        settle(&mut log);
        let written = || disk.files().into_iter().filter(|(file, _)| file.generation == 0);
        let files: Vec<_> = written().collect();
        drop(log);
        let (mut log, report) = open(&disk);
        assert_eq!(report.digests > 0, digests);
        log.set_agreed(COUNT.into());
        settle(&mut log);
        assert_eq!(written().collect::<Vec<_>>(), files);
        drop(log);
        let mut log = cut_off(disk.copy_whole(1), COUNT.into()).unwrap();
        assert_eq!(recovered(&mut log), (0..u64::from(COUNT)).collect::<Vec<_>>());
        // Once others agree it goes.
        let (mut log, _) = open(&disk);
        log.set_agreed(log.next_batch());
        settle(&mut log);
        assert!(!disk.files().iter().any(|&(file, _)| file == FIRST));
    }
}

/// What was agreed to when the log was opened is so before anybody tells it more, and stays so.
#[test]
fn a_log_that_was_cut_knows_what_was_agreed_to() {
    let disk = written(COUNT);
    let mut log = cut_off(disk.clone(), COUNT.into()).unwrap();
    recovered(&mut log);
    for at in 0..u64::from(COUNT) {
        log.release(Offset::new(at), batches::ONE[0]).unwrap();
    }
    append(&mut log, &[1; 100]).unwrap();
    settle(&mut log);
    let is_there = || disk.files().iter().any(|&(file, _)| file == FIRST);
    assert!(is_there());
    log.set_agreed(10);
    log.set_agreed(log.next_batch());
    log.set_agreed(10);
    settle(&mut log);
    assert!(!is_there());
}

/// What others agreed to and is not there is missed, also if the end of the last file is torn.
#[test]
fn a_log_that_ends_before_what_was_agreed_to_is_refused() {
    let disk = written(COUNT);
    let count = u64::from(COUNT);
    let before = disk.files();
    for until in [(count + 1, count + 1), (count, count + 1), (count + 1, count)] {
        let until = Some(Reached { end: until.0, sequence: until.1 });
        let options = Options { until, ..options() };
        let result = FileLog::open(disk.clone(), options, &mut |_| {}).map(|_| ());
        assert!(matches!(result, Err(OpenError::Short { .. })), "{result:?}");
    }
    assert_eq!(disk.files(), before);
    let mut log = open(&disk);
    append(&mut log, &[1; 2000]).unwrap();
    log.sync().unwrap();
    drop(log);
    disk.crash();
    let mut torn = open(&disk);
    let found = recovered(&mut torn).len() as u64;
    drop(torn);
    let result = cut_off(disk.clone(), found + 1).map(|_| ());
    let (end, until) = (found, found + 1);
    let [end, until] = [end, until].map(|count| Reached { end: count, sequence: count });
    assert_eq!(result, Err(OpenError::Short { end, until }));
    let mut log = cut_off(disk, found).unwrap();
    assert_eq!(recovered(&mut log).len() as u64, found);
}

/// What may be cut off is not digested.
#[test]
fn digests_are_of_what_is_agreed_to() {
    let disk = SimDisk::new(3);
    let digests = Options { digests: true, on_damage: OnDamage::Aside, ..options() };
    let (mut log, _) = FileLog::open(disk.clone(), digests, &mut |_| {}).unwrap();
    log.set_agreed(20);
    for number in 0..COUNT {
        append(&mut log, &[number; 100]).unwrap();
        settle(&mut log);
    }
    let digested = |disk: &SimDisk| {
        let files = disk.files();
        let has = |file| !disk.clone().digest(file).unwrap().is_empty();
        files.iter().filter(|&&(file, _)| has(file)).count()
    };
    assert_eq!(digested(&disk), 1);
    log.set_agreed(COUNT.into());
    settle(&mut log);
    assert_eq!(digested(&disk), disk.files().len() - 1);
}

/// Until everything is done, whatever there is to do.
fn settle(log: &mut FileLog<SimDisk>) {
    drive(log);
    for _ in 0..1000 {
        log.sync().unwrap();
    }
}

/// A disk that does so many changes of files and of their list, and then nothing.
fn stops(disk: &SimDisk, mut left: u32) -> impl Disk {
    AskingDisk::new(disk.clone(), move |deed| {
        if deed != Deed::Poll {
            let stopped = DiskError::Failed("switched off".to_owned());
            left = left.checked_sub(1).ok_or(stopped)?;
        }
        Ok(())
    })
}
