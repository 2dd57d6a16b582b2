//! What a start was told of stays so: files that are put back are used, numbers that were used are not used again, and
//! what is damaged again is kept again.

use std::collections::BTreeSet;

use leveret_log::disk::{Faults, FileName, SimDisk, Stage};
use leveret_log::file::{OnDamage, OpenError, Options, Report};
use leveret_log::suite::{drive, read_cold};
use leveret_log::{FileLog, Holder, Keep, Log, Offset};

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

fn append(log: &mut FileLog<SimDisk>, n: u64) -> Offset {
    log.append(b"h", &[&[n as u8; 100]], &[Holder::new(1)], Keep::Durable).unwrap()
}

fn recovered(log: &mut FileLog<SimDisk>) -> BTreeSet<u64> {
    let mut found = BTreeSet::new();
    log.recover(&mut |it| assert!(found.insert(it.at.get())));
    found
}

fn release(log: &mut FileLog<SimDisk>, at: u64) {
    log.release(Offset::new(at), Holder::new(1)).unwrap();
}

fn name(segment: u64) -> FileName {
    FileName { segment, generation: 0 }
}

/// A log of so many records, each in a batch of its own, about 20 in a file.
fn written(count: u64) -> SimDisk {
    let disk = SimDisk::new(3);
    let mut log = open(&disk).0;
    for n in 0..count {
        append(&mut log, n);
        drive(&mut log);
    }
    disk
}

/// Lets go of most, and goes on, so that files are rewritten.
fn thin_out(log: &mut FileLog<SimDisk>) {
    for at in recovered(log).iter().filter(|at| **at % 9 > 0) {
        release(log, *at);
    }
    drive(log);
    for n in 0..60 {
        let at = append(log, n);
        drive(log);
        release(log, at.get());
        drive(log);
    }
}

fn reads(log: &mut FileLog<SimDisk>, at: u64) -> bool {
    read_cold(log, Offset::new(at)).is_ok_and(|bytes| bytes[1..] == [at as u8; 100])
}

#[test]
fn a_missing_file_fits_whatever_was_rewritten_meanwhile() {
    let disk = written(200);
    let kept = disk.bytes_of(name(4));
    disk.lose(name(4));
    let (mut log, report) = open(&disk);
    let found = recovered(&mut log);
    let lost: BTreeSet<u64> = (0..200).filter(|at| !found.contains(at)).collect();
    assert_eq!(report.damaged[0].lost_records_max, Some(lost.len() as u64));
    thin_out(&mut log);
    assert!(disk.files().iter().any(|(it, _)| it.generation > 0), "{:?}", disk.files());
    drop(log);
    disk.put(name(4), kept);
    let (mut log, report) = open(&disk);
    assert_eq!(report.damaged, []);
    let found = recovered(&mut log);
    assert!(lost.iter().all(|at| found.contains(at)), "{lost:?} {found:?}");
    assert!(lost.iter().all(|at| reads(&mut log, *at)));
}

/// Whether or not the rest is taken away, as the text of the ERROR says.
#[test]
fn a_copy_takes_the_place_of_the_rest_of_a_damaged_file() {
    for takes_away in [false, true] {
        let disk = written(200);
        let kept = disk.bytes_of(name(4));
        disk.flip(name(4), 130, 1);
        let (mut log, report) = open(&disk);
        let rest = report.damaged[0].rest.unwrap();
        thin_out(&mut log);
        let files: Vec<_> = disk.files().into_iter().map(|it| it.0).collect();
        assert!(files.contains(&rest), "it is not rewritten: {files:?}");
        assert!(files.iter().any(|it| it.generation > 0 && it.segment != 4), "{files:?}");
        let before = recovered(&mut log);
        drop(log);
        if takes_away {
            disk.lose(rest);
        }
        disk.put(name(4), kept);
        let (mut log, report) = open(&disk);
        assert_eq!(report.damaged, []);
        let found = recovered(&mut log);
        assert!(before.is_subset(&found));
        assert_eq!(found.difference(&before).count(), 1, "the one that was damaged");
        assert!(!disk.files().iter().any(|(it, _)| *it == rest));
    }
}

/// Word of a missing file was taken away, so other files came to stand for its segment: what is put back after that is
/// told of and kept, and not just removed.
#[test]
fn a_file_that_comes_back_too_late_is_kept_and_told_of() {
    let disk = written(200);
    let kept = disk.bytes_of(name(4));
    disk.lose(name(4));
    drop(open(&disk));
    disk.drop_kept();
    let mut log = open(&disk).0;
    thin_out(&mut log);
    let before = recovered(&mut log);
    let log_files = disk.files();
    drop(log);
    disk.put(name(4), kept.clone());
    let refusing = Options { on_damage: OnDamage::Refuse, ..options() };
    let refused = FileLog::open(disk.clone(), refusing, &mut |_| {}).err();
    assert!(matches!(refused, Some(OpenError::Damaged { file, .. }) if file == name(4)));
    let (mut log, report) = open(&disk);
    let [damage] = &report.damaged[..] else { panic!("{report:?}") };
    assert_eq!((damage.file, damage.rest), (name(4), None));
    assert_eq!(disk.kept_aside(), [(name(4).aside(), kept)]);
    assert_eq!((recovered(&mut log), disk.files()), (before, log_files));
}

/// What a process removes while it is killed or the power is cut is no file that came back.
#[test]
fn a_removal_that_is_interrupted_is_gone_on_with() {
    let mut going = 0;
    for seed in 0..300 {
        let disk = written(60).copy_whole(seed);
        let mut log = open(&disk).0;
        for at in (0..60).filter(|at| at % 9 > 0) {
            release(&mut log, at);
        }
        for n in 0..seed % 40 {
            append(&mut log, n);
            drive(&mut log);
        }
        log.sync().unwrap();
        (0..seed % 7).for_each(|_| log.collect().unwrap());
        let kept: Vec<_> = recovered(&mut log).into_iter().filter(|at| at % 9 == 0).collect();
        drop(log);
        disk.crash();
        going += disk.listed().iter().filter(|it| it.stage == Stage::Going).count();
        let (mut log, report) = open(&disk);
        assert_eq!(report.damaged, [], "{seed}");
        let found = recovered(&mut log);
        assert!(kept.iter().all(|at| *at >= 60 || found.contains(at)), "{seed}");
    }
    assert!(going > 0);
}

#[test]
fn a_start_without_a_write_uses_no_number_again() {
    let disk = written(60);
    let files = disk.files();
    let last = files.last().unwrap().0;
    let kept = disk.bytes_of(last);
    disk.lose(last);
    let log = open(&disk).0;
    let first = (log.end(), log.next_batch());
    drop(log);
    let (mut log, report) = open(&disk);
    assert_eq!(report.damaged, [], "it is told once");
    assert_eq!((log.end(), log.next_batch()), first);
    let at = append(&mut log, 7);
    drive(&mut log);
    assert_eq!(at, first.0);
    assert!(!disk.files().iter().any(|(it, _)| *it == last), "its name is not used again");
    drop(log);
    disk.put(last, kept);
    let mut log = open(&disk).0;
    assert_eq!(recovered(&mut log), (0..61).collect());
    assert!((0..60).all(|at| reads(&mut log, at)));
}

#[test]
fn an_older_generation_does_not_hide_what_is_missing() {
    let disk = written(200);
    let old: Vec<_> = disk.files().into_iter().map(|(it, _)| (it, disk.bytes_of(it))).collect();
    let mut log = open(&disk).0;
    thin_out(&mut log);
    let held = recovered(&mut log);
    drop(log);
    let rewritten = disk.files().into_iter().map(|it| it.0).find(|it| it.generation > 0).unwrap();
    let line = disk.listed().into_iter().find(|it| it.file == rewritten).unwrap();
    assert!(line.through() > rewritten.segment && line.stage == Stage::Sealed, "{line:?}");
    disk.lose(rewritten);
    let put = |disk: &SimDisk, segments: std::ops::RangeInclusive<u64>| {
        for (it, bytes) in old.iter().filter(|(it, _)| segments.contains(&it.segment)) {
            disk.put(*it, bytes.clone());
        }
    };
    // The first of its segments alone: the others are missing.
    let copy = disk.copy_whole(0);
    put(&copy, rewritten.segment..=rewritten.segment);
    let (mut log, report) = open(&copy);
    let [damage] = &report.damaged[..] else { panic!("{report:?}") };
    let found = recovered(&mut log);
    let missing = held.iter().filter(|at| !found.contains(at)).count() as u64;
    assert!(missing > 0 && damage.lost_records_max.unwrap() >= missing, "{damage:?}");
    assert_eq!(damage.file, rewritten);
    // All of them: nothing is missing.
    let copy = disk.copy_whole(0);
    put(&copy, rewritten.segment..=line.through());
    let (mut log, report) = open(&copy);
    assert_eq!(report.damaged, []);
    assert!(held.is_subset(&recovered(&mut log)));
}

/// The last file was rewritten, and is replaced by a copy from before it was full.
#[test]
fn an_earlier_copy_that_ends_too_soon_is_damaged() {
    let disk = SimDisk::new(3);
    let mut log = open(&disk).0;
    let mut early = Vec::new();
    for n in 0..40 {
        append(&mut log, n);
        drive(&mut log);
        if n == 5 {
            early = disk.bytes_of(name(0));
        }
    }
    for at in (0..20).filter(|at| at % 9 > 0) {
        release(&mut log, at);
    }
    thin_out(&mut log);
    let held = recovered(&mut log);
    drop(log);
    let files: Vec<_> = disk.files().into_iter().map(|it| it.0).collect();
    let rewritten = files.iter().copied().find(|it| it.generation > 0).unwrap();
    assert_eq!(rewritten.segment, 0);
    files.iter().for_each(|it| disk.lose(*it));
    disk.put(name(0), early);
    let (mut log, report) = open(&disk);
    let found = recovered(&mut log);
    assert!(!held.is_subset(&found));
    assert!(
        report.damaged.iter().any(|it| it.file == rewritten || it.file == name(0)),
        "{report:?}"
    );
}

/// What it was made of is still there, as it is for as long as somebody reads it, but not the notes on it: those went
/// once the rewritten file was safe.
#[test]
fn a_rewritten_file_that_was_safe_is_no_interrupted_rewriting() {
    let disk = written(200);
    let old = disk.bytes_of(name(0));
    let mut log = open(&disk).0;
    thin_out(&mut log);
    let held = recovered(&mut log);
    drop(log);
    let line = disk.listed().into_iter().find(|it| it.file.generation > 0).unwrap();
    assert_eq!((line.file.segment, line.stage), (0, Stage::Sealed));
    // Its seal, and its header.
    for position in [line.len - 3, 70] {
        let copy = disk.copy_whole(0);
        copy.put(name(0), old.clone());
        copy.flip(line.file, position, 1);
        let (mut log, report) = open(&copy);
        assert!(report.damaged.iter().any(|it| it.file == line.file), "{report:?}");
        let found = recovered(&mut log);
        assert!(held.is_subset(&found), "{position}");
    }
}

#[test]
fn a_lost_first_sector_costs_what_is_in_it() {
    let disk = written(60);
    for file in [name(0), disk.files().last().unwrap().0] {
        let copy = disk.copy_whole(0);
        let mut bytes = copy.bytes_of(file);
        bytes[..512].fill(0);
        copy.put(file, bytes);
        let (mut log, report) = open(&copy);
        let found = recovered(&mut log);
        let lost = (0..60).filter(|at| !found.contains(at)).count() as u64;
        assert!(lost > 0 && lost <= 3, "{file}: {lost}");
        assert_eq!(report.damaged[0].lost_records_max, Some(lost));
    }
}

#[test]
fn a_second_damage_of_a_name_is_kept_too() {
    let disk = written(60);
    let good = disk.bytes_of(name(0));
    let mut bad = good.clone();
    bad[130] ^= 1;
    disk.put(name(0), bad.clone());
    let (log, report) = open(&disk);
    let rest = report.damaged[0].rest.unwrap();
    drop(log);
    // A copy, as the ERROR says, which is damaged elsewhere.
    disk.lose(rest);
    let mut copy = good;
    copy[128..1500].fill(0);
    disk.put(name(0), copy.clone());
    let (_log, report) = open(&disk);
    let second = name(0).aside_again(2);
    assert_eq!(report.damaged[0].kept.as_ref(), Some(&second));
    assert_eq!(disk.kept_aside(), [(name(0).aside(), bad), (second, copy)]);
}

/// All that is there is used, and that it may not be all is told; or refused, if damage is.
#[test]
fn a_list_that_is_lost_or_damaged_costs_nothing_and_is_told() {
    let ways: [fn(&SimDisk); 2] = [SimDisk::lose_list, SimDisk::damage_list];
    for (way, seed) in ways.into_iter().flat_map(|way| (0..20).map(move |seed| (way, seed))) {
        let disk = written(200);
        let mut log = open(&disk).0;
        thin_out(&mut log);
        let (held, end) = (recovered(&mut log), log.end());
        drop(log);
        let disk = disk.copy_whole(seed);
        way(&disk);
        let refusing = Options { on_damage: OnDamage::Refuse, ..options() };
        let refused = FileLog::open(disk.clone(), refusing, &mut |_| {}).err();
        assert!(matches!(refused, Some(OpenError::List { .. })), "{refused:?}");
        let (mut log, report) = open(&disk);
        assert!(report.list.is_some() && report.damaged.is_empty(), "{report:?}");
        assert_eq!((recovered(&mut log), log.end()), (held.clone(), end));
        drop(log);
        // It was written anew.
        let last = disk.files().last().unwrap().0;
        let (log, report) = open(&disk);
        assert_eq!((log.end(), report.list, report.damaged), (end, None, vec![]));
        drop(log);
        disk.lose(last);
        assert_eq!(open(&disk).1.damaged.len(), 1, "it is missed from then on");
    }
}

/// Of a log that never rests and removes nothing, too: each file that something was stored in is missed.
#[test]
fn a_file_is_missed_after_a_power_cut() {
    for seed in 0..20 {
        let disk = SimDisk::new(seed);
        let mut log = open(&disk).0;
        for n in 0..100 {
            append(&mut log, n);
            drive(&mut log);
        }
        drop(log);
        disk.crash();
        let names: Vec<_> = disk.files().into_iter().map(|(name, _)| name).collect();
        assert!(names.len() > 3, "{names:?}");
        for lost in names {
            let copy = disk.copy_whole(seed);
            copy.lose(lost);
            let report = open(&copy).1;
            let told: Vec<_> = report.damaged.iter().map(|it| it.file).collect();
            assert_eq!(told, [lost], "seed {seed}");
        }
    }
}

/// What was released does not come back because its file stays; and a start that cannot remove it either goes on.
#[test]
fn a_file_that_cannot_be_removed_is_removed_by_a_later_start() {
    for is_power_cut in [false, true] {
        let disk = written(200);
        let mut log = open(&disk).0;
        disk.set_faults(Faults { fail_remove: true, ..Faults::default() });
        // Some are rewritten, and some of those need nothing any more later.
        thin_out(&mut log);
        let most: Vec<_> = recovered(&mut log).into_iter().filter(|at| at % 27 > 0).collect();
        most.iter().for_each(|at| release(&mut log, *at));
        drive(&mut log);
        let held = recovered(&mut log);
        let going =
            |disk: &SimDisk| disk.listed().iter().filter(|it| it.stage == Stage::Going).count();
        assert!(going(&disk) > 3, "{:?}", disk.listed());
        for fails in [true, true, false] {
            drop(log);
            if is_power_cut {
                disk.crash()
            } else {
                disk.kill()
            };
            disk.set_faults(Faults { fail_remove: fails, ..Faults::default() });
            let opened = open(&disk);
            log = opened.0;
            assert_eq!((recovered(&mut log), opened.1.damaged), (held.clone(), vec![]));
            assert_eq!(going(&disk) > 0, fails);
            let at = append(&mut log, 1);
            drive(&mut log);
            release(&mut log, at.get());
            log.reclaim();
            drive(&mut log);
            assert_eq!(recovered(&mut log), held);
        }
    }
}
