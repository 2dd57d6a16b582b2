//! A log in files on a disk that fails, and over files that are not what was written.

mod batches;

use batches::{FIRST, ONE, append, drive, open, options, read, recovered, try_open, written};
use leveret_log::disk::{Faults, SimDisk};
use leveret_log::file::{OnDamage, OpenError, Options};
use leveret_log::suite::numbers;
use leveret_log::{AppendError, FileLog, Holder, Keep, Log, Offset, ReadError};

#[test]
fn a_full_disk_refuses_and_recovers() {
    let disk = SimDisk::new(5);
    disk.set_faults(Faults { capacity: Some(6000), ..Faults::default() });
    let mut log = open(&disk);
    let mut count = 0;
    let refused = loop {
        match append(&mut log, &[1; 500]) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
        (0..3).for_each(|_| log.sync().unwrap());
    };
    assert_eq!(refused, AppendError::Full);
    assert!((5..12).contains(&count), "{count}");
    let durable = log.durable();
    assert!(durable < log.end());
    // Whoever waits for no disk is served, and what is there can be read and released.
    let volatile = log.append(b"v", &[], &ONE, Keep::Volatile).unwrap();
    assert_eq!(log.read(volatile).unwrap().bytes, b"v"[..]);
    assert_eq!(read(&mut log, Offset::ZERO).unwrap().len(), 501);
    for _ in 0..10 {
        log.sync().unwrap();
        assert_eq!((log.durable(), append(&mut log, b"x")), (durable, Err(AppendError::Full)));
    }
    // With room it goes on as if nothing had been.
    let held = log.end().get() - 1;
    for at in 0..held - 1 {
        log.release(Offset::new(at), ONE[0]).unwrap();
    }
    disk.set_faults(Faults { capacity: Some(6500), ..Faults::default() });
    drive(&mut log);
    assert_eq!(disk.files().len(), 1, "nothing of the first file is needed");
    let at = append(&mut log, b"again").unwrap();
    drive(&mut log);
    drop(log);
    let mut log = open(&disk);
    assert_eq!(recovered(&mut log), [held - 1, at.get()]);
}

/// What consumers take makes room by itself: whole files go without anything being written.
#[test]
fn a_full_disk_gets_room_from_what_is_released() {
    for seed in 0..20 {
        let disk = SimDisk::new(seed);
        let capacity = Some(20_000 + seed * 37);
        disk.set_faults(Faults { capacity, delay: 2, ..Faults::default() });
        let mut log = open(&disk);
        let mut held = std::collections::VecDeque::new();
        for _ in 0..20 {
            while let Ok(at) = append(&mut log, &[7; 500]) {
                held.push_back(at);
                log.sync().unwrap();
            }
            let full_at = log.durable();
            // From the oldest on, no more than it takes.
            while append(&mut log, b"again").is_err() {
                let at = held.pop_front().expect("there is room before all is released");
                log.release(at, ONE[0]).unwrap();
                (0..20).for_each(|_| log.sync().unwrap());
            }
            held.push_back(Offset::new(log.end().get() - 1));
            (0..200).for_each(|_| log.sync().unwrap());
            assert!(log.durable() > full_at);
        }
        disk.crash();
        let mut log = open(&disk);
        let found = recovered(&mut log);
        let durable: Vec<_> =
            held.iter().map(|at| at.get()).filter(|at| found.contains(at)).collect();
        assert!(durable.len() + 3 >= held.len(), "seed {seed}: {found:?} of {held:?}");
    }
}

/// What was released together with what finds no room: its files go as soon as that is released, too, though the batch
/// that says so is not written.
#[test]
fn a_full_disk_gets_room_from_what_was_released_in_the_batch_that_found_none() {
    for seed in 0..40 {
        let disk = SimDisk::new(seed);
        let mut log = open(&disk);
        while disk.used() < 15_000 {
            append(&mut log, &[1; 500]).unwrap();
            drive(&mut log);
        }
        let old = log.end().get();
        let capacity = Some(disk.used() + seed * 40);
        disk.set_faults(Faults { capacity, delay: 2, ..Faults::default() });
        let new: Vec<_> = (0..4).map(|_| append(&mut log, &[2; 500]).unwrap()).collect();
        (0..old).for_each(|at| log.release(Offset::new(at), ONE[0]).unwrap());
        (0..50).for_each(|_| log.sync().unwrap());
        assert_eq!((append(&mut log, b"x"), log.durable().get()), (Err(AppendError::Full), old));
        new.into_iter().for_each(|at| log.release(at, ONE[0]).unwrap());
        (0..200).for_each(|_| log.sync().unwrap());
        let at = append(&mut log, &[3; 500]).expect("room");
        drive(&mut log);
        disk.crash();
        assert_eq!(recovered(&mut open(&disk)), [at.get()], "seed {seed}");
    }
}

/// The same, but what found no room was appended again first, as a message that moves on: it is there after a crash
/// at any time.
#[test]
fn what_moves_on_a_full_disk_is_never_gone() {
    for seed in 0..300 {
        let disk = SimDisk::new(seed);
        let mut log = open(&disk);
        let mut last = append(&mut log, &[7; 500]).unwrap();
        drive(&mut log);
        while disk.used() < 9000 {
            let at = append(&mut log, &[1; 500]).unwrap();
            drive(&mut log);
            log.release(at, ONE[0]).unwrap();
        }
        let capacity = Some(disk.used() + seed % 7 * 100);
        disk.set_faults(Faults { capacity, delay: 3, ..Faults::default() });
        let mut below = numbers(seed);
        for _ in 0..below(40) {
            if below(3) == 0
                && let Ok(at) = append(&mut log, &[7; 500])
            {
                log.release(std::mem::replace(&mut last, at), ONE[0]).unwrap();
            }
            log.sync().unwrap();
        }
        disk.crash();
        let mut log = open(&disk);
        let mut found = 0;
        for at in recovered(&mut log) {
            found += u64::from(read(&mut log, Offset::new(at)).unwrap()[1..] == [7; 500]);
        }
        assert!(found > 0, "seed {seed}");
    }
}

/// A full disk has no room for the end of a file, and then nothing in the file is needed any more: it goes, and its end
/// is not written when there is room.
#[test]
fn the_end_of_a_file_that_went_is_not_written() {
    for more in 0..400 {
        let disk = SimDisk::new(more);
        let mut log = open(&disk);
        while disk.used() < 4000 {
            append(&mut log, &[1; 500]).unwrap();
            drive(&mut log);
        }
        let durable = log.durable();
        disk.set_faults(Faults { capacity: Some(disk.used() + more), ..Faults::default() });
        let last = append(&mut log, &[2; 500]).unwrap();
        (0..10).for_each(|_| log.sync().unwrap());
        (0..durable.get()).for_each(|at| log.release(Offset::new(at), ONE[0]).unwrap());
        drive(&mut log);
        assert_eq!(disk.files().len(), 1, "{more}: {:?}", disk.files());
        drop(log);
        assert_eq!(recovered(&mut open(&disk)), [last.get()], "{more}");
    }
}

#[test]
fn a_crash_while_the_disk_is_full_loses_nothing_that_was_safe() {
    for seed in 0..100 {
        let disk = SimDisk::new(seed);
        disk.set_faults(Faults { capacity: Some(5000), ..Faults::default() });
        let mut log = open(&disk);
        while append(&mut log, &[seed as u8; 300]).is_ok() {
            (0..3).for_each(|_| log.sync().unwrap());
        }
        let durable = log.durable().get();
        disk.crash();
        let mut log = open(&disk);
        let found = recovered(&mut log);
        assert!(found.len() as u64 >= durable, "seed {seed}: {found:?} of {durable}");
    }
}

#[test]
fn a_failed_sync_is_final() {
    for faults in [
        Faults { fail_sync: true, ..Faults::default() },
        Faults { fail_write: true, ..Faults::default() },
    ] {
        let disk = SimDisk::new(1);
        let mut log = open(&disk);
        let safe = append(&mut log, b"safe").unwrap();
        drive(&mut log);
        disk.set_faults(faults);
        append(&mut log, b"not").unwrap();
        let error = loop {
            if let Err(error) = log.sync() {
                break error;
            }
        };
        assert_eq!(error.durable, safe.next());
        assert!(error.to_string().contains("0000000000000000.0.seg: simulated"), "{error}");
        assert_eq!(append(&mut log, b"x"), Err(AppendError::Failed));
        assert_eq!(log.append(b"", &[], &ONE, Keep::Volatile), Err(AppendError::Failed));
        for _ in 0..10 {
            assert!(log.sync().is_err() && log.collect().is_err());
            assert_eq!(log.durable(), safe.next());
        }
    }
}

/// The list of files that cannot be written is as a file that cannot.
#[test]
fn a_failed_write_of_the_list_is_final() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk);
    let safe = append(&mut log, b"safe").unwrap();
    drive(&mut log);
    disk.set_faults(Faults { fail_list: true, ..Faults::default() });
    append(&mut log, b"not").unwrap();
    let error = loop {
        if let Err(error) = log.sync() {
            break error;
        }
    };
    assert!(error.reason.contains("list"), "{error}");
    assert_eq!(log.durable().get(), safe.get() + 1);
    assert!(append(&mut log, b"no more").is_err() && log.sync().is_err());
    drop(log);
    assert!(recovered(&mut open(&disk)).contains(&safe.get()));
}

/// A file stays whose removal the list does not have.
#[test]
fn a_removal_that_cannot_be_listed_is_final() {
    let mut removals = 0;
    for steps in 0..8 {
        let disk = SimDisk::new(1);
        let mut log = open(&disk);
        while disk.files().len() < 3 {
            append(&mut log, &[1; 500]).unwrap();
            drive(&mut log);
        }
        let files = disk.files();
        (0..log.end().get() - 1).for_each(|at| log.release(Offset::new(at), ONE[0]).unwrap());
        (0..steps).for_each(|_| log.sync().unwrap());
        let (syncs, before) = (disk.work().syncs, disk.files());
        disk.set_faults(Faults { fail_list: true, ..Faults::default() });
        if before == files && (0..50).any(|_| log.sync().is_err()) && disk.work().syncs == syncs {
            assert_eq!(disk.files(), files);
            removals += 1;
        }
    }
    assert!(removals > 0);
}

/// A list for which there is no room says so until there is some.
#[test]
fn a_list_without_room_is_told() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk);
    while disk.files().len() < 3 {
        append(&mut log, &[1; 500]).unwrap();
        drive(&mut log);
    }
    disk.set_faults(Faults { full_list: true, ..Faults::default() });
    let at = append(&mut log, b"safe").unwrap();
    drive(&mut log);
    assert!(log.durable() > at, "messages have room");
    let copy = disk.copy_whole(2);
    let refused = try_open(&copy).err();
    assert!(matches!(refused, Some(OpenError::List { .. })), "{refused:?}");
    let aside = Options { on_damage: OnDamage::Aside, ..options() };
    let (mut again, report) = FileLog::open(copy, aside, &mut |_| {}).unwrap();
    assert!(report.list.is_some_and(|what| what.contains("given up")));
    assert!(recovered(&mut again).contains(&at.get()));
    disk.set_faults(Faults::default());
    append(&mut log, b"more").unwrap();
    drive(&mut log);
    drop(log);
    disk.crash();
    disk.lose(disk.files()[1].0);
    assert!(matches!(try_open(&disk).err(), Some(OpenError::Missing { .. })));
}

#[test]
fn a_failed_read_tells_of_its_record_only() {
    let disk = written(20);
    let mut log = open(&disk);
    disk.set_faults(Faults { fail_read: true, ..Faults::default() });
    let (at, other) = (Offset::new(3), Offset::new(19));
    let position = 128;
    assert_eq!(read(&mut log, at), Err(ReadError::Damaged { at, file: FIRST, position }));
    assert_eq!(read(&mut log, other).unwrap()[1..], [19; 100]);
}

/// Records that lie apart are read together, and one by one where that fails.
#[test]
fn a_place_that_cannot_be_read_damages_its_record_only() {
    let disk = SimDisk::new(6);
    let options = Options { cache_bytes: 0, ..Options::default() };
    let mut log = FileLog::open(disk.clone(), options, &mut |_| {}).unwrap().0;
    for number in 0..200 {
        append(&mut log, &[number; 1000]).unwrap();
    }
    drive(&mut log);
    let bytes = disk.bytes_of(FIRST);
    let bad = bytes.windows(1000).position(|it| it == [160; 1000]).unwrap() as u64;
    disk.set_faults(Faults { unreadable: Some((FIRST, bad + 500)), ..Faults::default() });
    let before = disk.work().reads;
    let wanted = [100, 120, 140, 160, 180].map(Offset::new);
    log.fetch(&wanted);
    for at in wanted {
        match read(&mut log, at) {
            Ok(record) => assert_eq!(record[1..], [at.get() as u8; 1000]),
            Err(error) => {
                let at = Offset::new(160);
                let position = bad - 1; // behind the head
                assert_eq!(error, ReadError::Damaged { at, file: FIRST, position });
            }
        }
    }
    assert!(matches!(log.read(wanted[3]), Err(ReadError::Damaged { .. })));
    // The index; three before the bad one, read with it; then the four others.
    assert_eq!(disk.work().reads - before, 1 + 3 + 4);
}

#[test]
fn a_flipped_bit_in_a_body_damages_its_record_only() {
    let disk = written(20);
    let bytes = disk.bytes_of(FIRST);
    let place = bytes.windows(50).position(|it| it == [3; 50]).unwrap();
    disk.flip(FIRST, place as u64, 2);
    let mut log = open(&disk);
    let (at, other) = (Offset::new(3), Offset::new(4));
    assert_eq!(recovered(&mut log).len(), 20);
    let position = place as u64 - 1;
    assert_eq!(read(&mut log, at), Err(ReadError::Damaged { at, file: FIRST, position }));
    assert_eq!(read(&mut log, other).unwrap()[1..], [4; 100]);
}

/// A volatile record that is made durable late is written behind others. While it is being written it is
/// read from memory: its file does not have it yet.
#[test]
fn a_record_that_is_being_written_late_is_not_looked_for_on_disk() {
    for segment_bytes in [250, 4000] {
        for seed in 0..40 {
            let disk = SimDisk::new(seed);
            let options = Options { segment_bytes, cache_bytes: 300, ..Options::default() };
            let mut log = FileLog::open(disk.clone(), options, &mut |_| {}).unwrap().0;
            let late = log.append(b"h", &[&[1; 100]], &ONE, Keep::Volatile).unwrap();
            append(&mut log, &[2; 100]).unwrap();
            drive(&mut log);
            disk.set_faults(Faults { delay: 5, ..Faults::default() });
            log.persist(late).unwrap();
            append(&mut log, &[3; 1000]).unwrap();
            for _ in 0..20 {
                log.sync().unwrap();
                assert_eq!(read(&mut log, late).unwrap()[1..], [1; 100], "seed {seed}");
            }
            drive(&mut log);
            assert_eq!(read(&mut log, late).unwrap()[1..], [1; 100], "seed {seed}");
        }
    }
}

/// Every bit of every file but the last batch's: found at once, or when the record is read.
#[test]
fn no_flipped_bit_goes_unseen() {
    let disk = written(24);
    let files = disk.files();
    assert_eq!(files.len(), 2);
    for (name, len) in files {
        for position in (0..len).step_by(3) {
            let copy = disk.copy(0);
            copy.flip(name, position, (position % 8) as u8);
            match try_open(&copy) {
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.contains(&name.to_string()), "{text}");
                    assert!(text.contains("is damaged at byte"), "{text}");
                    assert!(text.contains("Restore the file from a copy"), "{text}");
                }
                Ok((mut log, report)) => {
                    let found = recovered(&mut log);
                    if found.len() < 24 {
                        // What was written last cannot be told from what was being written.
                        assert!(found.len() == 23 && report.cut_bytes > 100, "{name} {position}");
                        continue;
                    }
                    let read: Vec<_> =
                        found.iter().map(|at| read(&mut log, Offset::new(*at))).collect();
                    let whole = read.iter().filter(|it| it.is_ok()).count();
                    assert_eq!(whole, 23, "{name} {position}");
                }
            }
        }
    }
}

#[test]
fn a_torn_tail_is_cut() {
    let disk = written(8);
    let bytes = disk.bytes_of(FIRST);
    for len in 128..bytes.len() {
        let copy = SimDisk::new(0);
        copy.put(FIRST, bytes[..len].to_vec());
        let (mut log, _) = try_open(&copy).unwrap();
        let found = recovered(&mut log);
        assert!(found.len() < 8);
        let next = append(&mut log, b"next").unwrap();
        assert_eq!(next.get(), found.len() as u64);
        drive(&mut log);
        drop(log);
        assert_eq!(recovered(&mut open(&copy)).len(), found.len() + 1);
    }
    // Less than a header: the file was just begun.
    for len in 0..128 {
        let copy = SimDisk::new(0);
        copy.put(FIRST, bytes[..len].to_vec());
        assert!(recovered(&mut open(&copy)).is_empty());
        assert!(copy.files().is_empty());
    }
}

#[test]
fn a_missing_end_of_an_earlier_file_is_damage() {
    let disk = written(24);
    let bytes = disk.bytes_of(FIRST);
    for len in (0..bytes.len()).step_by(7) {
        let copy = disk.copy(0);
        copy.put(FIRST, bytes[..len].to_vec());
        assert!(matches!(try_open(&copy), Err(OpenError::Damaged { file: FIRST, .. })), "{len}");
    }
}

#[test]
fn a_newer_format_is_refused_with_its_writer() {
    let disk = written(1);
    let mut bytes = disk.bytes_of(FIRST);
    bytes[8] = 9;
    bytes[16..48].copy_from_slice(b"leveret 7.8.9\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    let crc = crc32c::crc32c(&bytes[..124]);
    bytes[124..128].copy_from_slice(&crc.to_le_bytes());
    disk.put(FIRST, bytes);
    let error = try_open(&disk).unwrap_err().to_string();
    assert_eq!(
        error,
        "0000000000000000.0.seg has format 9 and was written by leveret 7.8.9; this version reads \
         formats up to 4. Start that version or a later one"
    );
}

/// Bytes of a message cannot pass for the log's own.
#[test]
fn a_batch_in_a_body_is_not_a_batch() {
    let disk = written(3);
    let whole = disk.bytes_of(FIRST);
    let other = SimDisk::new(1);
    let guess = Options { seed: 1, ..options() };
    let mut log = FileLog::open(other.clone(), guess, &mut |_| {}).unwrap().0;
    append(&mut log, &whole).unwrap();
    drive(&mut log);
    drop(log);
    let bytes = other.bytes_of(FIRST);
    // As a crash leaves it that comes before the write is safe.
    let torn = other.copy(0);
    torn.put(FIRST, bytes[..bytes.len() - 10].to_vec());
    assert!(recovered(&mut open(&torn)).is_empty());
}

/// A message that moves is released where it was in the batch in which it is appended again: until
/// that is safe, the file where it was stays.
#[test]
fn a_file_stays_until_what_emptied_it_is_safe() {
    let disk = written(24);
    let mut log = open(&disk);
    (1..24).for_each(|at| log.release(Offset::new(at), ONE[0]).unwrap());
    drive(&mut log);
    assert_eq!(disk.files().len(), 2);
    // While one batch is under way ...
    append(&mut log, b"another").unwrap();
    log.sync().unwrap();
    // ... the last record of the first file moves, ...
    append(&mut log, b"moved").unwrap();
    log.release(Offset::ZERO, ONE[0]).unwrap();
    while !disk.is_idle() {
        log.collect().unwrap();
    }
    // ... and the power goes before the next batch.
    disk.crash();
    assert_eq!(recovered(&mut open(&disk)), [0, 24]);
}

/// Files changed in any way are opened or refused, and read or not: nothing panics.
#[test]
fn recovery_survives_any_bytes() {
    let disk = SimDisk::new(9);
    let mut log = open(&disk);
    let names: Vec<_> = (0..70).map(Holder::new).collect();
    for number in 0..60_u64 {
        let many = if number % 7 == 0 { &names[..] } else { &names[..2] };
        let keep = if number % 5 == 0 { Keep::Volatile } else { Keep::Durable };
        log.set_spill_bytes(number % 2 * 1000);
        let at = log.append(b"head", &[&[number as u8; 80]], many, keep).unwrap();
        log.mark(at, Holder::new(1), 9).unwrap();
        if number % 10 == 5 {
            let _ = log.persist(Offset::new(number - 5));
        }
        drive(&mut log);
        log.release(at, Holder::new(0)).unwrap();
        if number % 3 == 0 {
            many[1..].iter().for_each(|name| log.release(at, *name).unwrap());
        }
    }
    drive(&mut log);
    drop(log);
    let mut below = numbers(11);
    let mut rng = move |bound: u64| below(bound.max(1));
    let files = disk.files();
    assert!(files.len() > 2);
    let mut opened = 0;
    for round in 0..4000 {
        let copy = disk.copy(0);
        for _ in 0..1 + rng(3) {
            let (name, _) = files[rng(files.len() as u64) as usize];
            let mut bytes = copy.bytes_of(name);
            let at = rng(bytes.len() as u64) as usize;
            match rng(6) {
                0 => bytes.truncate(at),
                1 => bytes[at] = rng(256) as u8,
                2 => {
                    let end = (at + 1 + rng(40) as usize).min(bytes.len());
                    bytes[at..end].fill(rng(2) as u8 * 255);
                }
                3 => bytes.extend((0..rng(300)).map(|it| it as u8)),
                4 => drop(bytes.drain(at..(at + rng(100) as usize).min(bytes.len()))),
                _ => repair(&mut bytes, at, &mut rng),
            }
            copy.put(name, bytes);
        }
        let on_damage = if round % 2 == 0 { OnDamage::Refuse } else { OnDamage::Aside };
        let options = Options { on_damage, ..options() };
        let result = FileLog::open(copy.clone(), options, &mut |_| {});
        if on_damage == OnDamage::Aside {
            let is_newer = matches!(result, Err(OpenError::Newer { .. }));
            assert!(is_newer || result.is_ok(), "{result:?}");
        }
        if let Ok((mut log, _)) = result {
            opened += 1;
            for at in recovered(&mut log) {
                let _ = log.read(Offset::new(at));
                log.fetch(&[Offset::new(at)]);
                let _ = log.collect();
                let _ = log.release(Offset::new(at), Holder::new(1));
            }
            let _ = append(&mut log, b"more");
            (0..20).for_each(|_| drop(log.sync()));
        }
    }
    assert!(opened > 100, "{opened} were opened");
}

/// Changes a byte of a header or an index and makes the checksums right again.
fn repair(bytes: &mut [u8], at: usize, rng: &mut impl FnMut(u64) -> u64) {
    let mark = bytes.get(88..96).unwrap_or_default().to_vec();
    let starts: Vec<_> =
        (128..bytes.len().saturating_sub(88)).filter(|&it| bytes[it..it + 8] == mark[..]).collect();
    let Some(&start) = starts.iter().rev().find(|&&it| it <= at) else { return };
    let len = u64::from_le_bytes(bytes[start + 16..start + 24].try_into().unwrap()) as usize;
    let Some(end) = (start + 88).checked_add(len).filter(|&end| end <= bytes.len()) else { return };
    let place = if rng(2) == 0 {
        start + 8 + rng(64) as usize
    } else {
        start + 88 + rng(len as u64) as usize
    };
    if place < end {
        bytes[place] = rng(256) as u8;
    }
    let index = crc32c::crc32c(&bytes[start + 88..end]);
    bytes[start + 72..start + 76].copy_from_slice(&index.to_le_bytes());
    let header = crc32c::crc32c(&bytes[start..start + 84]);
    bytes[start + 84..start + 88].copy_from_slice(&header.to_le_bytes());
}

/// A rewriting that is given up leaves a file that goes; the next one, of the same segments perhaps, may be done before
/// that: its file is another.
#[test]
fn what_was_given_up_takes_nothing_along() {
    let options = Options { segment_bytes: 1 << 20, cache_bytes: 0, ..Options::default() };
    let open =
        |disk: &SimDisk| FileLog::open(disk.clone(), options.clone(), &mut |_| {}).unwrap().0;
    for seed in 0..4 {
        let disk = SimDisk::new(seed);
        let mut log = open(&disk);
        let mut held = std::collections::VecDeque::new();
        let mut below = numbers(seed);
        let mut stall = false;
        for number in 0..6000_u64 {
            let fail_read = below(4) == 0;
            if below(200) == 0 {
                stall = !stall;
            }
            disk.set_faults(Faults { delay: 2, fail_read, stall, ..Faults::default() });
            let body = number.to_le_bytes().repeat(2000);
            held.push_back((append(&mut log, &body).unwrap(), body));
            if held.len() > 2600 {
                let (at, _) = held.remove(below(2600) as usize).unwrap();
                log.release(at, ONE[0]).unwrap();
            }
            log.sync().unwrap();
        }
        disk.set_faults(Faults::default());
        drive(&mut log);
        drop(log);
        let mut log = open(&disk);
        let want: Vec<_> = held.iter().map(|(at, _)| at.get()).collect();
        assert_eq!(recovered(&mut log), want, "seed {seed}");
        for (at, body) in held {
            assert_eq!(read(&mut log, at).unwrap()[1..], body, "seed {seed}: {at}");
        }
    }
}
