//! Records that several logs share: the bytes are written once, and every promise of each log holds.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use leveret_log::disk::{Faults, FileName, SimDisk};
use leveret_log::file::{OnDamage, Options, Unmatched, match_up};
use leveret_log::shared::Original;
use leveret_log::suite::numbers;
use leveret_log::{
    Errand, FileLog, Holder, Keep, LARGE, Log, LogNumber, Offset, ReadError, Shared,
};

const LOGS: usize = 3;

/// Bytes of a record that are its head, and name it.
const HEAD: usize = 8;

fn options(number: usize) -> Options {
    Options { number: LogNumber::at(number), ..Options::default() }
}

fn open_all(disks: &[SimDisk], options: &[Options]) -> (Vec<FileLog<SimDisk>>, Unmatched) {
    open_without(&[], disks, options)
}

fn open_without(
    has_lost: &[bool],
    disks: &[SimDisk],
    options: &[Options],
) -> (Vec<FileLog<SimDisk>>, Unmatched) {
    let open = |(disk, options): (&SimDisk, &Options)| {
        FileLog::open(disk.clone(), options.clone(), &mut |_| {}).expect("opens").0
    };
    let mut logs: Vec<_> = disks.iter().zip(options).map(open).collect();
    let lost_before = |&it: &bool| Offset::new(if it { u64::MAX } else { 0 });
    let lost_before: Vec<_> = has_lost.iter().map(lost_before).collect();
    let unmatched = match_up(&mut logs, &lost_before);
    (logs, unmatched)
}

fn record(id: u64, len: usize) -> Bytes {
    let mut bytes = id.to_le_bytes().to_vec();
    bytes.extend((0..len).map(|at| (id as usize).wrapping_mul(31).wrapping_add(at) as u8));
    bytes.into()
}

fn share(among: &[usize]) -> Arc<Shared> {
    Shared::among(among.iter().map(|&log| LogNumber::at(log)))
}

/// Logs, and what they have to tell each other.
struct Logs {
    all: Vec<FileLog<SimDisk>>,
    letters: VecDeque<(usize, Errand)>,
}

impl Logs {
    fn gather_errands(&mut self) {
        for (from, log) in self.all.iter_mut().enumerate() {
            log.errands(&mut |errand| self.letters.push_back((from, errand)));
        }
    }

    /// Does one errand.
    fn deliver(&mut self) {
        let Some((from, errand)) = self.letters.pop_front() else { return };
        match errand {
            Errand::Wake(log) => self.all[log.index()].collect().expect("good"),
            Errand::Freed(place) => {
                let holder = Holder::of_log(LogNumber::at(from));
                self.all[place.log.index()].release(place.at, holder).expect("held");
            }
            Errand::Lend { of, at } => {
                let home = &mut self.all[of.log.index()];
                match home.read(of.at) {
                    Err(ReadError::Cold { .. }) => {
                        home.fetch(&[of.at]);
                        home.collect().expect("good");
                        self.letters.push_back((from, errand));
                    }
                    result => {
                        home.taken(of.at);
                        self.all[from].lent(at, result.map(|record| record.bytes));
                    }
                }
            }
        }
    }

    /// Until nothing is to do anywhere.
    fn settle(&mut self) {
        for _ in 0..200_000 {
            for log in &mut self.all {
                log.sync().expect("good");
            }
            self.gather_errands();
            let had_letters = !self.letters.is_empty();
            self.deliver();
            let is_idle = |log: &mut FileLog<SimDisk>| {
                log.durable() == log.end() && log.disk().is_idle() && !log.is_writing()
            };
            if !had_letters && self.all.iter_mut().all(is_idle) {
                return;
            }
        }
        panic!("the logs do not come to rest");
    }

    fn read(&mut self, log: usize, at: Offset) -> Result<Bytes, ReadError> {
        for _ in 0..100_000 {
            match self.all[log].read(at) {
                Ok(record) => return Ok(record.bytes),
                Err(ReadError::Cold { .. }) => self.all[log].fetch(&[at]),
                Err(error) => return Err(error),
            }
            self.all.iter_mut().for_each(|log| log.collect().expect("good"));
            self.gather_errands();
            self.deliver();
        }
        panic!("record {at} does not come");
    }
}

fn new_logs(change: impl Fn(&mut Options)) -> (Vec<SimDisk>, Vec<Options>, Logs) {
    let disks: Vec<_> = (0..LOGS as u64).map(SimDisk::new).collect();
    let mut options: Vec<_> = (0..LOGS).map(options).collect();
    options.iter_mut().for_each(change);
    let (all, unmatched) = open_all(&disks, &options);
    assert_eq!(unmatched, Unmatched::default());
    (disks, options, Logs { all, letters: VecDeque::new() })
}

/// The logs agree on one writer; all of them give the bytes back, before and after a start; and when the last
/// holder of the last log has left nothing is left.
#[test]
fn the_bytes_are_written_once() {
    let (disks, options, mut logs) = new_logs(|options| options.cache_bytes = 0);
    let mut held = Vec::new();
    for id in 0..50 {
        let shared = share(&[0, 1, 2]);
        let bytes = record(id, 10_000);
        // Each log is the first one now and then.
        for log in (0..LOGS).map(|log| (log + id as usize) % LOGS) {
            let holders = [Holder::new(1), Holder::new(2)];
            let log_ = &mut logs.all[log];
            let at = log_.append_shared(&bytes, HEAD, &holders, Keep::Durable, &shared);
            held.push((log, at.expect("room"), id));
            log_.sync().expect("good");
        }
        logs.settle();
    }
    let written: u64 = disks.iter().map(|disk| disk.work().written_bytes).sum();
    assert!(written < 50 * 10_000 + 50 * 3 * 400, "{written}");
    for start in 0..2 {
        for &(log, at, id) in &held {
            assert_eq!(logs.read(log, at), Ok(record(id, 10_000)), "start {start}, {at} of {log}");
        }
        let lent: u64 = logs.all.iter().map(|log| log.usage().lent).sum();
        assert_eq!(lent, 100);
        disks.iter().for_each(SimDisk::crash);
        let (all, unmatched) = open_all(&disks, &options);
        assert_eq!(unmatched, Unmatched::default());
        logs = Logs { all, letters: VecDeque::new() };
        for log in &mut logs.all {
            let mut found = 0;
            log.recover(&mut |_| found += 1);
            assert_eq!(found, 50);
        }
    }
    for (log, at, _) in held {
        for holder in [Holder::new(1), Holder::new(2)] {
            logs.all[log].release(at, holder).expect("held");
        }
        logs.settle();
    }
    for log in &logs.all {
        let usage = log.usage();
        assert_eq!((usage.records, usage.live_bytes, usage.lent), (0, 0, 0));
    }
}

/// What every log releases before it is written is written by none, and nobody says a word about it.
#[test]
fn what_is_released_at_once_is_never_written() {
    let (disks, _, mut logs) = new_logs(|_| {});
    for id in 0..100 {
        let shared = share(&[0, 2]);
        for log in [0, 2] {
            let one = [Holder::new(1)];
            let at =
                logs.all[log].append_shared(&record(id, 5000), HEAD, &one, Keep::Durable, &shared);
            logs.all[log].release(at.expect("room"), one[0]).expect("held");
        }
        logs.settle();
        logs.gather_errands();
        assert!(logs.letters.is_empty());
    }
    assert_eq!(disks.iter().map(|disk| disk.work().written_bytes).sum::<u64>(), 0);
}

/// A batch is not durable before what it refers to is.
#[test]
fn a_batch_waits_for_what_it_refers_to() {
    let (disks, _, mut logs) = new_logs(|_| {});
    disks[0].set_faults(Faults { stall: true, ..Faults::default() });
    let shared = share(&[0, 1]);
    let one = [Holder::new(1)];
    for log in [0, 1] {
        let appended =
            logs.all[log].append_shared(&record(1, 5000), HEAD, &one, Keep::Durable, &shared);
        assert_eq!(appended, Ok(Offset::ZERO));
        logs.all[log].sync().expect("good");
    }
    for _ in 0..20 {
        logs.all[1].sync().expect("good");
    }
    assert_eq!((logs.all[1].durable(), logs.all[1].is_writing()), (Offset::ZERO, true));
    disks[0].set_faults(Faults::default());
    logs.settle();
    assert_eq!(logs.all[1].durable(), Offset::new(1));
}

/// One disk is full: whoever refers to what it is to have waits, takes nothing more, and what is released elsewhere
/// makes room all the same.
#[test]
fn a_full_disk_gets_room_by_what_others_release() {
    let (disks, _, mut logs) = new_logs(|options| {
        options.cache_bytes = 0;
        options.segment_bytes = 4096;
    });
    let one = [Holder::new(1)];
    for id in 0..10 {
        let shared = share(&[0, 1]);
        for log in [0, 1] {
            let at =
                logs.all[log].append_shared(&record(id, 3000), HEAD, &one, Keep::Durable, &shared);
            assert_eq!(at, Ok(Offset::new(id)));
            logs.all[log].sync().expect("good");
        }
        logs.settle();
        // Only the other log holds it now.
        logs.all[0].release(Offset::new(id), one[0]).expect("held");
    }
    logs.settle();
    let used = disks[0].files().iter().map(|(_, len)| len).sum::<u64>();
    disks[0].set_faults(Faults { capacity: Some(used), ..Faults::default() });
    let shared = share(&[0, 1]);
    for log in [0, 1] {
        let bytes = record(10, 3000);
        let appended = logs.all[log].append_shared(&bytes, HEAD, &one, Keep::Durable, &shared);
        assert_eq!(appended, Ok(Offset::new(10)));
        logs.all[log].sync().expect("good");
    }
    for _ in 0..50 {
        logs.all.iter_mut().for_each(|log| log.sync().expect("good"));
        logs.gather_errands();
        logs.deliver();
    }
    assert!(logs.all.iter().take(2).all(|log| log.durable() == Offset::new(10)));
    let refused = logs.all[1].append(b"more", &[], &one, Keep::Durable);
    assert_eq!(refused, Err(leveret_log::AppendError::Full));
    for at in 0..10 {
        logs.all[1].release(Offset::new(at), one[0]).expect("held");
    }
    logs.settle();
    assert!(logs.all.iter().take(2).all(|log| log.durable() >= Offset::new(11)));
    assert_eq!(logs.read(1, Offset::new(10)), Ok(record(10, 3000)));
}

/// What gives the other log room may be in the very batch that waits for it.
#[test]
fn a_full_disk_gets_room_by_what_was_released_with_what_waits_for_it() {
    let (disks, _, mut logs) = new_logs(|options| {
        options.cache_bytes = 0;
        options.segment_bytes = 4096;
    });
    let one = [Holder::new(1)];
    let append = |logs: &mut Logs, id| {
        let shared = share(&[0, 1]);
        for log in [0, 1] {
            let bytes = record(id, 3000);
            let at = logs.all[log].append_shared(&bytes, HEAD, &one, Keep::Durable, &shared);
            assert_eq!(at, Ok(Offset::new(id)));
        }
    };
    for id in 0..10 {
        append(&mut logs, id);
        logs.settle();
        logs.all[0].release(Offset::new(id), one[0]).expect("held");
    }
    logs.settle();
    let used = disks[0].files().iter().map(|(_, len)| len).sum::<u64>();
    disks[0].set_faults(Faults { capacity: Some(used), ..Faults::default() });
    append(&mut logs, 10);
    for at in 0..10 {
        logs.all[1].release(Offset::new(at), one[0]).expect("held");
    }
    logs.settle();
    assert!(logs.all.iter().take(2).all(|log| log.durable() == Offset::new(11)));
}

/// A disk that was full and has room is no reason any more for what is released to go before what was appended with
/// it, though its batch still waits for another log.
#[test]
fn what_moves_is_not_gone_from_both_when_a_full_disk_has_room() {
    let (disks, options, mut logs) = new_logs(|options| options.segment_bytes = 1024);
    let one = [Holder::new(1)];
    let append = |logs: &mut Logs, log: usize, id| {
        let at = logs.all[log].append_whole(&record(id, 3000), HEAD, &one, Keep::Durable);
        at.expect("room")
    };
    let old = append(&mut logs, 1, 1);
    logs.settle();
    append(&mut logs, 1, 2);
    logs.settle();
    let used = disks[1].files().iter().map(|(_, len)| len).sum::<u64>();
    disks[0].set_faults(Faults { stall: true, ..Faults::default() });
    disks[1].set_faults(Faults { capacity: Some(used), ..Faults::default() });
    let shared = share(&[0, 1]);
    for log in [0, 1] {
        let bytes = record(3, 3000);
        logs.all[log].append_shared(&bytes, HEAD, &one, Keep::Durable, &shared).expect("room");
    }
    let sync = |logs: &mut Logs| logs.all.iter_mut().for_each(|log| log.sync().expect("good"));
    (0..10).for_each(|_| sync(&mut logs));
    disks[1].set_faults(Faults::default());
    // The batch is on its own disk, and waits for the other.
    (0..10).for_each(|_| logs.all[1].collect().expect("good"));
    assert!(logs.all[1].is_writing());
    let new = append(&mut logs, 1, 1);
    logs.all[1].release(old, one[0]).expect("held");
    (0..10).for_each(|_| logs.all[1].collect().expect("good"));
    disks.iter().for_each(SimDisk::crash);
    let (mut all, _) = open_all(&disks, &options);
    let mut found = Vec::new();
    all[1].recover(&mut |it| found.push(it.at));
    assert!(found.contains(&old) || found.contains(&new), "{found:?}");
}

/// One log has lost its files, and gets them back: whichever it is, what they refer to is still there.
#[test]
fn what_is_lost_and_comes_back_is_whole() {
    for lost in [0, 1] {
        let (disks, options, mut logs) = new_logs(|_| {});
        let shared = share(&[0, 1]);
        for log in &mut logs.all[..2] {
            let (bytes, one) = (record(1, 5000), [Holder::new(1)]);
            log.append_shared(&bytes, HEAD, &one, Keep::Durable, &shared).expect("room");
            log.sync().expect("good");
        }
        // The one that has the bytes has no use for them.
        logs.all[0].release(Offset::ZERO, Holder::new(1)).expect("held");
        logs.settle();
        disks.iter().for_each(SimDisk::crash);
        let (mut without, mut has_lost) = (disks.clone(), [false; LOGS]);
        (without[lost], has_lost[lost]) = (SimDisk::new(9), true);
        let (all, _) = open_without(&has_lost, &without, &options);
        logs = Logs { all, letters: VecDeque::new() };
        logs.all.iter_mut().for_each(|log| log.recover(&mut |_| {}));
        logs.settle();
        disks.iter().for_each(SimDisk::crash);
        let (all, unmatched) = open_all(&disks, &options);
        assert_eq!(unmatched, Unmatched::default(), "{lost} was lost");
        logs = Logs { all, letters: VecDeque::new() };
        assert_eq!(logs.read(1, Offset::ZERO), Ok(record(1, 5000)), "{lost} was lost");
    }
}

/// One log's directory is of another day: what a reference names there is another record, and its bytes are not taken
/// for those that were lent.
#[test]
fn what_is_another_record_by_now_is_not_lent() {
    let (disks, options, mut logs) = new_logs(|options| options.cache_bytes = 0);
    let one = [Holder::new(1)];
    let append = |logs: &mut Logs, ids: [u64; 2]| {
        for id in ids {
            let shared = share(&[0, 1]);
            for log in [0, 1] {
                let (bytes, into) = (record(id, 3000), &mut logs.all[log]);
                into.append_shared(&bytes, HEAD, &one, Keep::Durable, &shared).expect("room");
                into.sync().expect("good");
            }
        }
        logs.settle();
    };
    let other_day = disks[0].copy(7);
    append(&mut logs, [1, 2]);
    // What log 0 would have written had it gone on from that day.
    let mixed = vec![other_day, SimDisk::new(8), SimDisk::new(9)];
    logs = Logs { all: open_all(&mixed, &options).0, letters: VecDeque::new() };
    append(&mut logs, [3, 2]);
    let mixed = vec![mixed[0].clone(), disks[1].clone(), disks[2].clone()];
    for start in 0..2 {
        mixed.iter().for_each(SimDisk::crash);
        let (all, unmatched) = open_all(&mixed, &options);
        assert_eq!(unmatched, Unmatched { strange: 1, ..Unmatched::default() }, "start {start}");
        logs = Logs { all, letters: VecDeque::new() };
        logs.all.iter_mut().for_each(|log| log.recover(&mut |_| {}));
        let of = Original { log: LogNumber::new(0), at: Offset::ZERO };
        let error = ReadError::Elsewhere { at: Offset::ZERO, of, file: None };
        assert_eq!(logs.read(1, Offset::ZERO), Err(error));
        assert_eq!(logs.read(0, Offset::ZERO), Ok(record(3, 3000)));
        assert_eq!(logs.read(1, Offset::new(1)), Ok(record(2, 3000)));
        logs.settle();
    }
    // With the right directory all is there.
    let (all, unmatched) = open_all(&disks, &options);
    assert_eq!(unmatched, Unmatched::default());
    logs = Logs { all, letters: VecDeque::new() };
    assert_eq!(logs.read(1, Offset::ZERO), Ok(record(1, 3000)));
}

/// A damaged file that somebody keeps says nothing of what was written after it was found.
#[test]
fn what_was_never_durable_is_not_lost_for_a_file_that_was_damaged_long_ago() {
    let (disks, options, mut logs) = new_logs(|options| options.on_damage = OnDamage::Aside);
    let one = [Holder::new(1)];
    let append = |logs: &mut Logs, id| {
        let shared = share(&[0, 1]);
        for log in [0, 1] {
            let (bytes, into) = (record(id, 3000), &mut logs.all[log]);
            into.append_shared(&bytes, HEAD, &one, Keep::Durable, &shared).expect("room");
            into.sync().expect("good");
        }
    };
    append(&mut logs, 1);
    logs.settle();
    append(&mut logs, 2);
    logs.settle();
    disks.iter().for_each(SimDisk::crash);
    let first = FileName { segment: 0, generation: 0 };
    disks[0].flip(first, 128, 0);
    let kept = |logs: &Logs| [logs.all[0].begun_after(first), Offset::ZERO, Offset::ZERO];
    let reopen = || {
        let open = |(disk, options): (&SimDisk, &Options)| {
            FileLog::open(disk.clone(), options.clone(), &mut |_| {}).expect("opens").0
        };
        let all = disks.iter().zip(&options).map(open).collect();
        let mut logs = Logs { all, letters: VecDeque::new() };
        let lost_before = kept(&logs);
        let unmatched = match_up(&mut logs.all, &lost_before);
        logs.all.iter_mut().for_each(|log| log.recover(&mut |_| {}));
        (logs, unmatched)
    };
    let (mut logs, unmatched) = reopen();
    assert_eq!(unmatched, Unmatched { lost: 1, ..Unmatched::default() });
    append(&mut logs, 3);
    logs.settle();
    // Log 1 gets its batch to the disk, and log 0 does not.
    disks[0].set_faults(Faults { stall: true, ..Faults::default() });
    append(&mut logs, 4);
    (0..20).for_each(|_| logs.all.iter_mut().for_each(|log| log.sync().expect("good")));
    disks.iter().for_each(SimDisk::kill);
    disks[0].set_faults(Faults::default());
    let (mut logs, unmatched) = reopen();
    assert_eq!(unmatched, Unmatched { lost: 1, dangling: 1, ..Unmatched::default() });
    assert_eq!(logs.read(1, Offset::new(2)), Ok(record(3, 3000)));
    assert_eq!(logs.read(1, Offset::new(1)), Ok(record(2, 3000)));
}

#[test]
fn promises_hold_through_power_cuts() {
    (0..150).for_each(|seed| run(seed, true, false));
}

#[test]
fn promises_hold_through_kills() {
    (1000..1080).for_each(|seed| run(seed, false, false));
}

#[test]
fn promises_hold_on_full_disks() {
    (2000..2100).for_each(|seed| run(seed, seed % 2 == 0, true));
}

/// A record in one log.
#[derive(Clone, Debug)]
struct Known {
    id: u64,
    len: usize,
    holders: BTreeSet<u64>,
    /// Released, and perhaps back after a crash.
    leaving: BTreeSet<u64>,
    is_durable: bool,
}

fn run(seed: u64, is_power_cut: bool, gets_full: bool) {
    let mut below = numbers(seed);
    let disks: Vec<_> = (0..LOGS as u64).map(|log| SimDisk::new(seed * 10 + log)).collect();
    let delays: Vec<_> = (0..LOGS).map(|_| below(4) as u32).collect();
    let set = |log: usize, capacity| {
        disks[log].set_faults(Faults { delay: delays[log], capacity, ..Faults::default() });
    };
    (0..LOGS).for_each(|log| set(log, None));
    let options: Vec<_> = (0..LOGS)
        .map(|log| Options {
            seed,
            segment_bytes: 1 << (10 + below(5)),
            cache_bytes: below(3) * 1500,
            spill_bytes: [0, 1000, 1 << 20][below(3) as usize],
            spill_batch_bytes: 1 + seed * 37 % 2000,
            warm_bytes: 4096,
            ..options(log)
        })
        .collect();
    let (all, _) = open_all(&disks, &options);
    let mut logs = Logs { all, letters: VecDeque::new() };
    let mut known: Vec<BTreeMap<Offset, Known>> = vec![BTreeMap::new(); LOGS];
    let mut next_id = 0;
    for life in 0..5 {
        for _ in 0..below(500) {
            let log = below(LOGS as u64) as usize;
            match below(14) {
                0..=3 => {
                    next_id += 1;
                    let first = below(LOGS as u64) as usize;
                    let among: Vec<_> = (first..first + 1 + below(LOGS as u64) as usize)
                        .map(|it| it % LOGS)
                        .collect();
                    let shared = share(&among);
                    let (len, keep) = (below(900) as usize, below(4));
                    let len = if below(100) == 0 { LARGE + len } else { len };
                    for &log in &among {
                        let count = 1 + below(3);
                        let holders: Vec<_> = (0..count).map(Holder::new).collect();
                        let keep = if keep + below(2) > 0 { Keep::Durable } else { Keep::Volatile };
                        let bytes = record(next_id, len);
                        let into = &mut logs.all[log];
                        let appended = match among.len() {
                            1 => into.append_whole(&bytes, HEAD, &holders, keep),
                            _ => into.append_shared(&bytes, HEAD, &holders, keep, &shared),
                        };
                        let Ok(at) = appended else { continue };
                        let it = Known {
                            id: next_id,
                            len,
                            holders: (0..count).collect(),
                            leaving: BTreeSet::new(),
                            is_durable: keep == Keep::Durable,
                        };
                        known[log].insert(at, it);
                    }
                }
                4..=7 if !known[log].is_empty() => {
                    let index = below(known[log].len() as u64) as usize;
                    let (&at, it) = known[log].iter_mut().nth(index).expect("there");
                    if let Some(holder) = it.holders.pop_first() {
                        logs.all[log].release(at, Holder::new(holder)).expect("held");
                        it.leaving.insert(holder);
                    }
                }
                8 if !known[log].is_empty() => {
                    let index = below(known[log].len() as u64) as usize;
                    let (&at, it) = known[log].iter().nth(index).expect("there");
                    if !it.holders.is_empty() {
                        let want = record(it.id, it.len);
                        // On a disk that is full the bytes may still be on their way: they are in memory then.
                        assert_eq!(logs.read(log, at), Ok(want), "seed {seed}, {at} of {log}");
                    }
                }
                9 if gets_full => {
                    let used: u64 = disks[log].files().iter().map(|(_, len)| len).sum();
                    set(log, (below(3) > 0).then(|| used + below(1500)));
                }
                10 | 11 => {
                    logs.gather_errands();
                    logs.deliver();
                }
                _ => logs.all[log].sync().expect("good"),
            }
        }
        (0..LOGS).for_each(|log| set(log, None));
        if below(3) == 0 {
            logs.settle();
        }
        let durable: Vec<_> = logs.all.iter().map(Log::durable).collect();
        for disk in &disks {
            if is_power_cut { disk.crash() } else { disk.kill() }
        }
        let (all, _) = open_all(&disks, &options);
        logs = Logs { all, letters: VecDeque::new() };
        for log in 0..LOGS {
            let mut found = BTreeMap::new();
            logs.all[log].recover(&mut |it| {
                let names = it.holders.iter().map(|(name, _)| *name);
                let names: BTreeSet<_> =
                    names.filter(|it| it.as_log().is_none()).map(Holder::get).collect();
                if !names.is_empty() {
                    found.insert(it.at, (it.head.to_vec(), names));
                }
            });
            let place = format!("seed {seed}, life {life}, log {log}");
            for (at, it) in &known[log] {
                let is_safe = it.is_durable && *at < durable[log];
                let back = found.get(at).map(|(_, names)| names.clone()).unwrap_or_default();
                assert!(!is_safe || back.is_superset(&it.holders), "{place}: {at} lost {it:?}");
                let may_be: BTreeSet<_> = it.holders.union(&it.leaving).copied().collect();
                assert!(back.is_subset(&may_be), "{place}: {at} has {back:?}, {it:?}");
            }
            let before = std::mem::take(&mut known[log]);
            for (at, (head, names)) in found {
                let it = before.get(&at).unwrap_or_else(|| panic!("{place}: {at} never was"));
                assert_eq!(head, it.id.to_le_bytes(), "{place}: {at}");
                let it =
                    Known { holders: names, leaving: BTreeSet::new(), is_durable: true, ..*it };
                known[log].insert(at, it);
            }
        }
        let all = known.iter().enumerate();
        let all = all.flat_map(|(log, it)| it.keys().map(move |at| (log, *at)));
        for (log, at) in all.collect::<Vec<_>>() {
            let it = &known[log][&at];
            let want = record(it.id, it.len);
            assert_eq!(logs.read(log, at), Ok(want), "seed {seed}, life {life}, {at} of {log}");
        }
    }
    for (log, records) in known.into_iter().enumerate() {
        for (at, it) in records {
            for holder in it.holders {
                logs.all[log].release(at, Holder::new(holder)).expect("held");
            }
        }
    }
    logs.settle();
    for log in &logs.all {
        let usage = log.usage();
        assert_eq!((usage.records, usage.live_bytes, usage.lent), (0, 0, 0), "seed {seed}");
    }
}
