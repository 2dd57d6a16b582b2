use super::segments::Segment;
use super::*;
use crate::disk::{Faults, FileName, SimDisk};
use crate::suite::{drive, numbers};

fn open(disk: &SimDisk, options: Options) -> FileLog<SimDisk> {
    FileLog::open(disk.clone(), options, &mut |_| {}).unwrap().0
}

mod contract {
    use super::*;

    crate::log_suite!(
        || open(&SimDisk::new(0), Options { cache_bytes: 1 << 30, ..Options::default() }),
        drive
    );
}

/// What `usage` says without looking at every file is what looking at every file says, whatever happened.
#[test]
fn sums_agree_with_the_files() {
    for seed in 0..30 {
        let mut below = numbers(seed);
        let disk = SimDisk::new(seed);
        let options = Options {
            segment_bytes: 1 << (10 + below(3)),
            cache_bytes: below(3) * 1000,
            spill_bytes: below(2) * 1000,
            spill_batch_bytes: 1 + below(2000),
            weigh: |_| RecordWeight { bytes: 1, persistent: Some(true) },
            ..Options::default()
        };
        let mut log = open(&disk, options.clone());
        let mut held = Vec::new();
        for _ in 0..2500 {
            match below(12) {
                0..=3 => {
                    let keep = if below(4) == 0 { Keep::Volatile } else { Keep::Durable };
                    let body = vec![7; below(300) as usize];
                    let holders: Vec<_> = (0..=below(3)).map(Holder::new).collect();
                    let at = log.append(b"head", &[&body], &holders, keep).unwrap();
                    held.extend(holders.into_iter().map(|holder| (at, holder)));
                }
                4..=7 if !held.is_empty() => {
                    let (at, holder) = held.swap_remove(below(held.len() as u64) as usize);
                    log.release(at, holder).unwrap();
                }
                8 if !held.is_empty() => {
                    let (at, holder) = held[below(held.len() as u64) as usize];
                    log.mark(at, holder, 3).unwrap();
                    log.persist(at).unwrap();
                }
                9 if below(100) == 0 => {
                    drive(&mut log);
                    drop(log);
                    log = open(&disk, options.clone());
                    log.store.segments.assert_sums();
                    held.clear();
                    log.recover(&mut |it| {
                        held.extend(it.holders.iter().map(|&(holder, _)| (it.at, holder)));
                    });
                }
                _ => log.sync().unwrap(),
            }
            log.store.segments.assert_sums();
            log.fetch.assert_sums();
            assert_paged_out(&log, &held);
        }
        held.into_iter().for_each(|(at, holder)| log.release(at, holder).unwrap());
        drive(&mut log);
        log.store.segments.assert_sums();
        assert_eq!(log.usage().disk_bytes, disk.files().iter().map(|&(_, len)| len).sum::<u64>());
    }
}

/// What each holder has on the disk only is what looking for each record finds.
fn assert_paged_out(log: &FileLog<SimDisk>, held: &[(Offset, Holder)]) {
    let mut found = BTreeMap::<Holder, PagedOut>::new();
    for &(at, holder) in held {
        let Some(cold) = log.store.cold.get(at.get()) else { continue };
        assert_eq!(log.read(at), Err(ReadError::Cold { at }), "nobody asked for it");
        let paged = found.entry(holder).or_default();
        (paged.records, paged.bytes) = (paged.records + 1, paged.bytes + 1);
        if cold.is_volatile {
            paged.volatile += 1;
            paged.volatile_bytes += 1;
        }
    }
    for holder in (0..4).map(Holder::new) {
        assert_eq!(log.paged_out(holder), found.remove(&holder).unwrap_or_default(), "{holder:?}");
    }
}

/// What need not be written is passed though nothing is handed over, or the next record that has to be would have all of it looked at.
#[test]
fn many_that_need_not_be_written_are_passed() {
    let mut log = open(&SimDisk::new(0), Options::default());
    let holder = Holder::new(1);
    let first = log.append(b"", &[b"volatile"], &[holder], Keep::Volatile).unwrap();
    log.collect().unwrap();
    assert_eq!(log.durable(), first, "not for one of them");
    while log.durable() == first {
        for _ in 0..4096 {
            log.append(b"", &[b"volatile"], &[holder], Keep::Volatile).unwrap();
        }
        log.collect().unwrap();
        assert!(log.end().get() < 100_000);
    }
    assert_eq!(log.durable(), log.end());
    // One of those is to be durable after all.
    let until = log.persist(first).unwrap();
    assert!(log.durable() < until);
    drive(&mut log);
    assert!(log.durable() >= until);
    // Nothing is passed that waits.
    let durable = log.append(b"", &[b"durable"], &[holder], Keep::Durable).unwrap();
    for _ in 0..100_000 {
        log.append(b"", &[b"volatile"], &[holder], Keep::Volatile).unwrap();
    }
    log.collect().unwrap();
    assert_eq!(log.durable(), durable);
}

/// Files that are emptied while another is rewritten that has notes on them stay until the turn of each to be removed comes.
/// What was released of them long before does not come back if the process ends between.
#[test]
fn notes_on_what_waits_for_its_removal_outlive_a_rewriting() {
    let options = Options { segment_bytes: 40_000, cache_bytes: 0, ..Options::default() };
    let (purged, other) = (Holder::new(1), Holder::new(2));
    for steps in (0..60).step_by(5) {
        let disk = SimDisk::new(1);
        let mut log = open(&disk, options.clone());
        let append = |log: &mut FileLog<SimDisk>, holder| {
            for _ in 0..5 {
                log.append(b"h", &[&[7; 1000]], &[holder], Keep::Durable).unwrap();
            }
            drive(log);
        };
        while log.store.segments.all.len() < 42 {
            append(&mut log, purged);
        }
        let last = &log.store.segments.all[40];
        let (early, target) = (last.first..last.first + 4, last.epochs.clone());
        let first_other = log.end().get();
        for number in 0..200 {
            if number < 4 {
                log.release(Offset::new(early.start + number), purged).unwrap();
            }
            append(&mut log, other);
        }
        for at in first_other..log.end().get() {
            if at % 20 > 0 && !log.space.is_rewriting() {
                log.release(Offset::new(at), other).unwrap();
                log.sync().unwrap();
            }
        }
        let has_notes = |it: &Segment| it.has_notes_on(target.iter().copied());
        let mut all = log.store.segments.all.iter();
        assert!(all.any(|it| it.is_rewriting && has_notes(it)));
        // Now the files go that the notes are about.
        for at in (0..first_other).filter(|at| !early.contains(at)) {
            log.release(Offset::new(at), purged).unwrap();
        }
        for _ in 0..steps {
            log.sync().unwrap();
        }
        let is_there = disk.files().iter().any(|(file, _)| file.segment == 40);
        let are_needed = log.store.segments.all.iter().any(has_notes);
        drop(log);
        disk.kill();
        let mut log = open(&disk, options.clone());
        let mut back = Vec::new();
        log.recover(&mut |it| back.extend(early.contains(&it.at.get()).then_some(it.at)));
        assert_eq!(back, [], "after {steps} steps");
        assert_eq!(is_there, are_needed, "after {steps} steps");
    }
}

/// A file that was rewritten and is still there, as it is being read or cannot be removed, stands behind the new one: that one
/// stays as long, though nothing of it is needed. Else a start that found the old one alone would have what was released of it.
#[test]
fn what_a_file_stands_for_goes_before_it() {
    for seed in 0..20 {
        goes_before_it(seed, false, |old| Faults { slow: Some(old), ..Faults::default() });
        for restarts in [false, true] {
            goes_before_it(seed, restarts, |old| Faults { stuck: Some(old), ..Faults::default() });
        }
    }
}

fn goes_before_it(seed: u64, restarts: bool, faults: fn(FileName) -> Faults) {
    let options = Options { segment_bytes: 40_000, cache_bytes: 0, ..Options::default() };
    let holder = Holder::new(1);
    let disk = SimDisk::new(seed);
    let mut log = open(&disk, options.clone());
    let append = |log: &mut FileLog<SimDisk>, count| {
        for _ in 0..count {
            log.append(b"h", &[&[7; 1000]], &[holder], Keep::Durable).unwrap();
            log.sync().unwrap();
        }
        drive(log);
    };
    append(&mut log, 800);
    disk.set_faults(Faults { delay: 50, ..Faults::default() });
    let mut next = 0;
    while !log.space.is_rewriting() {
        if next % 20 > 0 {
            log.release(Offset::new(next), holder).unwrap();
        }
        next += 1;
        log.sync().unwrap();
    }
    // A record of the old file is asked for when all of it was copied.
    let source = log.store.segments.all.iter().find(|it| it.is_rewriting).unwrap();
    let (old, range) = (source.file, source.first..source.end);
    let names = || disk.files().into_iter().map(|(file, _)| file);
    let stands_for = |it: &FileName| it.segment == old.segment && it.generation > 0;
    while !names().any(|it| stands_for(&it)) {
        log.sync().unwrap();
    }
    disk.set_faults(faults(old));
    if faults(old).slow.is_some() {
        let at = range.into_iter().find(|at| log.store.cold.get(*at).is_some()).unwrap();
        log.fetch(&[Offset::new(at)]);
        assert!(log.fetch.reads(old), "seed {seed}");
    }
    while log.space.is_rewriting() {
        log.sync().unwrap();
    }
    if restarts {
        drive(&mut log);
        drop(log);
        log = open(&disk, options.clone());
        log.recover(&mut |_| {});
    }
    // Now what is left of it goes, and then what says so.
    let mut end = 0;
    for _ in 0..3 {
        for at in 0..log.end().get() {
            let _ = log.release(Offset::new(at), holder);
        }
        end = log.end().get();
        for _ in 0..100 {
            log.append(b"h", &[&[7; 1000]], &[holder], Keep::Durable).unwrap();
            for _ in 0..20 {
                log.sync().unwrap();
            }
        }
    }
    assert!(names().any(|it| it == old), "seed {seed}");
    // Nor does a list that is lost bring anything back: it would say of a file that it is going.
    for is_lost in [false, true] {
        let (copy, mut options) = (disk.copy_whole(1), options.clone());
        if is_lost {
            copy.lose_list();
            options.on_damage = OnDamage::Aside;
        }
        let (mut next, _) = FileLog::open(copy, options, &mut |_| {}).unwrap();
        let mut back = Vec::new();
        next.recover(&mut |it| back.push(it.at.get()));
        assert_eq!(back, (end..end + 100).collect::<Vec<_>>(), "seed {seed}, lost: {is_lost}");
    }
    // Once it was read, or as soon as another file could be removed, it goes, and the new one too.
    disk.set_faults(Faults::default());
    for at in 0..log.end().get() {
        let _ = log.release(Offset::new(at), holder);
    }
    append(&mut log, 100);
    for _ in 0..1000 {
        log.sync().unwrap();
    }
    assert!(!names().any(|it| it == old || stands_for(&it)), "seed {seed}");
}

mod crafted;
mod table;
