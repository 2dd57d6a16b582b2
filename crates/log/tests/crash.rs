//! A log in files through crashes at any moment, compared with what was promised.

use std::collections::{BTreeMap, BTreeSet};

use leveret_log::disk::{Faults, SimDisk};
use leveret_log::file::{OnDamage, OpenError, Options, Report};
use leveret_log::{AppendError, FileLog, Holder, Keep, LARGE, Log, Moment, Offset, ReadError};

#[test]
fn promises_hold_through_power_cuts() {
    for seed in 0..80 {
        run(seed, Crash::PowerCut);
    }
}

#[test]
fn promises_hold_through_kills() {
    for seed in 1000..1040 {
        run(seed, Crash::Kill);
    }
}

#[test]
fn promises_hold_on_full_disks() {
    for seed in 2000..2080 {
        let crash = if seed % 2 == 0 { Crash::PowerCut } else { Crash::Kill };
        run_on(seed, crash, (true, false));
    }
}

/// A file that is made of one that was removed has old batches behind the new ones.
#[test]
fn promises_hold_where_files_are_used_again() {
    for seed in 3000..3100 {
        let crash = if seed % 2 == 0 { Crash::PowerCut } else { Crash::Kill };
        run_on(seed, crash, (seed % 3 == 0, true));
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Crash {
    PowerCut,
    Kill,
}

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }
}

/// A record as the test knows it.
#[derive(Clone, Debug)]
struct Known {
    head: Vec<u8>,
    bytes: Vec<u8>,
    /// Who has it, with every mark since the last that is safe.
    holders: BTreeMap<u64, Vec<u8>>,
    /// Who released it, and that is not safe yet.
    leaving: BTreeSet<u64>,
    is_durable: bool,
    /// Where `durable` has to be for the record to be safe.
    safe_at: u64,
}

/// A record that went from one holder to another: appended anew and released, in one batch.
struct Move {
    old: u64,
    holder: u64,
    new: u64,
    /// Whether the old one was safe.
    was_safe: bool,
}

struct Test {
    seed: u64,
    rng: Rng,
    disk: SimDisk,
    delay: u32,
    log: FileLog<SimDisk>,
    options: Options,
    known: BTreeMap<u64, Known>,
    moves: Vec<Move>,
    /// The end of the log at a moment before.
    moment: Moment,
    /// No record that survived has an offset as high.
    highest: u64,
}

/// Whichever write fails, at a change of segments too: nothing is written behind it, so the next start
/// finds an interrupted write and no damage. What was durable is there.
#[test]
fn a_write_that_fails_is_the_last_one() {
    let options = Options { segment_bytes: 4096, ..Options::default() };
    let kinds = [
        Faults { fail_write: true, ..Faults::default() },
        Faults { fail_sync: true, ..Faults::default() },
        Faults { capacity: Some(0), ..Faults::default() },
    ];
    for (kind, faults) in kinds.into_iter().enumerate() {
        for good in 0..12 {
            for seed in 0..16 {
                let disk = SimDisk::new(seed);
                if seed % 2 == 0 {
                    disk.keep_spare(vec![seed as u8; 6000]);
                }
                let (mut log, _) = open(&disk, &options).expect("empty");
                for _ in 0..good {
                    append_and_sync(&mut log);
                }
                let durable = log.durable();
                assert_eq!(durable.get(), good);
                // Some of it fits.
                let used: u64 = disk.files().iter().map(|&(_, len)| len).sum();
                let capacity = faults.capacity.map(|_| used + seed * 20);
                disk.set_faults(Faults { capacity, ..faults });
                append_and_sync(&mut log);
                disk.crash();
                disk.set_faults(Faults::default());
                let found = open(&disk, &options);
                let (mut log, _) = found.unwrap_or_else(|error| {
                    panic!("fault {kind} after {good} batches, seed {seed}: {error}")
                });
                let mut seen = 0;
                log.recover(&mut |record| seen += u64::from(record.at < durable));
                assert_eq!(seen, good, "fault {kind}, seed {seed}");
            }
        }
    }
}

/// A sync that failed, or that a kill came before, leaves bytes that are there and not safe. The next start
/// builds on them, so it makes them safe first: the end of a file, and a rewritten file before those that it
/// was made from go.
#[test]
fn what_a_start_builds_on_is_safe() {
    let options = Options { segment_bytes: 2048, cache_bytes: 0, ..Options::default() };
    for good in 0..40 {
        for seed in 0..8 {
            let disk = SimDisk::new(seed);
            let (mut log, _) = open(&disk, &options).expect("empty");
            let mut held = Vec::new();
            for number in 0..40 + good {
                if number == 40 {
                    disk.set_faults(Faults { delay: 2, ..Faults::default() });
                }
                held.push(log.end());
                log.append(b"head", &[&[7; 300]], &[Holder::new(1)], Keep::Durable).expect("good");
                if number % 5 > 0 {
                    log.release(held.remove(number / 5), Holder::new(1)).expect("held");
                }
                let _ = log.sync();
            }
            disk.set_faults(Faults { fail_sync: true, ..Faults::default() });
            while log.sync().is_ok() && log.durable() < log.end() {}
            let durable = log.durable();
            disk.kill();
            disk.set_faults(Faults::default());
            let (mut log, _) = open(&disk, &options).expect("after a kill");
            log.recover(&mut |_| {});
            append_and_sync(&mut log);
            disk.crash();
            let (mut log, _) = open(&disk, &options)
                .unwrap_or_else(|error| panic!("{good} batches, seed {seed}: {error}"));
            let mut found = Vec::new();
            log.recover(&mut |record| found.push(record.at));
            for at in held.into_iter().filter(|at| *at < durable) {
                assert!(found.contains(&at), "{at} is lost, {good} batches, seed {seed}");
            }
        }
    }
}

/// Nothing else is written after them: they are safe all the same.
#[test]
fn notes_alone_survive_a_power_cut() {
    for seed in 0..16 {
        let disk = SimDisk::new(seed);
        let (mut log, _) = open(&disk, &Options::default()).expect("empty");
        append_and_sync(&mut log);
        append_and_sync(&mut log);
        log.release(Offset::ZERO, Holder::new(1)).expect("held");
        log.mark(Offset::new(1), Holder::new(1), 7).expect("held");
        for _ in 0..8 {
            log.sync().expect("a good disk");
        }
        assert_eq!(log.usage().unwritten_bytes, 0);
        disk.crash();
        let (mut log, _) = open(&disk, &Options::default()).expect("a log");
        let mut found = Vec::new();
        log.recover(&mut |record| found.push((record.at.get(), record.holders.to_vec())));
        assert_eq!(found, [(1, vec![(Holder::new(1), 7)])], "seed {seed}");
    }
}

fn append_and_sync(log: &mut FileLog<SimDisk>) {
    let appended = log.append(b"head", &[&[7; 900]], &[Holder::new(1)], Keep::Durable);
    appended.expect("a log that has not failed");
    for _ in 0..8 {
        let _ = log.sync();
    }
}

fn open(disk: &SimDisk, options: &Options) -> Result<(FileLog<SimDisk>, Report), OpenError> {
    FileLog::open(disk.clone(), options.clone(), &mut |_| {})
}

/// Head, and holders with their marks, by offset.
type Found = BTreeMap<u64, (Vec<u8>, BTreeMap<u64, u8>)>;

fn recovered(log: &mut FileLog<SimDisk>, seed: u64) -> Found {
    let (mut found, mut last) = (Found::new(), None);
    log.recover(&mut |it| {
        assert!(last < Some(it.at), "seed {seed}: {} comes after {last:?}", it.at);
        last = Some(it.at);
        let holders = it.holders.iter().map(|(name, mark)| (name.get(), *mark)).collect();
        found.insert(it.at.get(), (it.head.to_vec(), holders));
    });
    found
}

/// What else two logs that were just opened and told of their records have to agree about.
fn facts(log: &FileLog<SimDisk>) -> (Offset, u64, u64, u64, u64) {
    let usage = log.usage();
    (log.end(), log.next_batch(), usage.records, usage.live_bytes, usage.disk_bytes)
}

fn run(seed: u64, crash: Crash) {
    run_on(seed, crash, (false, false));
}

fn run_on(seed: u64, crash: Crash, (gets_full, keeps_spare): (bool, bool)) {
    let mut rng = Rng(seed);
    let disk = SimDisk::new(seed);
    if keeps_spare {
        disk.keep_spare(Vec::new());
    }
    let delay = rng.below(4) as u32;
    disk.set_faults(Faults { delay, ..Faults::default() });
    let options = Options {
        seed,
        segment_bytes: 1 << (10 + rng.below(6)),
        cache_bytes: rng.below(3) * 1500,
        spill_bytes: [0, 1000, 1 << 20][rng.below(3) as usize],
        spill_batch_bytes: 1 + seed % 2000,
        warm_bytes: 4096,
        digests: rng.below(3) > 0,
        on_damage: OnDamage::Aside,
        ..Options::default()
    };
    let (log, _) = open(&disk, &options).unwrap();
    let mut test = Test {
        seed,
        rng,
        disk,
        delay,
        log,
        options,
        known: BTreeMap::new(),
        moves: Vec::new(),
        moment: Moment::default(),
        highest: 0,
    };
    for _ in 0..6 {
        for _ in 0..test.rng.below(400) {
            if gets_full {
                test.change_room();
            }
            test.step();
        }
        test.set_capacity(None);
        if test.rng.below(3) == 0 {
            test.settle();
        }
        test.crash(crash);
    }
    test.settle();
    test.read_all();
    let all: Vec<_> = test.known.keys().copied().collect();
    for at in all {
        test.release_all(at);
    }
    test.settle();
    // One sentinel stays, so at most what two files may hold.
    assert_eq!(test.log.usage().records, test.known.len() as u64, "seed {seed}");
}

impl Test {
    fn step(&mut self) {
        match self.rng.below(20) {
            0..=6 => self.append(),
            7..=10 => {
                if let Some((at, holder)) = self.pick() {
                    self.release(at, holder);
                }
            }
            11 => self.move_one(),
            12 => {
                if let Some((at, holder)) = self.pick() {
                    let mark = 1 + self.rng.below(250) as u8;
                    self.log.mark(Offset::new(at), Holder::new(holder), mark).unwrap();
                    self.known.get_mut(&at).unwrap().holders.get_mut(&holder).unwrap().push(mark);
                }
            }
            13 => self.persist(),
            14 => self.read_one(),
            15 => {
                if let Some((at, _)) = self.pick().filter(|_| self.rng.below(4) == 0) {
                    self.release_all(at);
                }
            }
            16 => {
                self.log.collect().unwrap();
                self.moment = self.log.moment();
            }
            17 => self.log.sync_until(self.moment).unwrap(),
            _ => self.log.sync().unwrap(),
        }
    }

    /// The disk gets full now and then, or there is room again.
    fn change_room(&mut self) {
        if self.rng.below(40) == 0 {
            let used: u64 = self.disk.files().iter().map(|(_, len)| len).sum();
            let more = self.rng.below(1500);
            self.set_capacity(Some(used + more));
        } else if self.rng.below(80) == 0 {
            self.set_capacity(None);
        }
    }

    fn set_capacity(&mut self, capacity: Option<u64>) {
        self.disk.set_faults(Faults { delay: self.delay, capacity, ..Faults::default() });
    }

    fn append(&mut self) {
        let rng = &mut self.rng;
        let head: Vec<u8> = (0..rng.below(30)).map(|_| rng.below(256) as u8).collect();
        let size = match rng.below(500) {
            0 => LARGE as u64 + rng.below(2000),
            1..=10 => rng.below(6000),
            _ => rng.below(200),
        };
        let fill = rng.below(256) as u8;
        let body: Vec<u8> = (0..size).map(|index| fill.wrapping_add(index as u8)).collect();
        let count = if rng.below(3) == 0 { 1 + rng.below(80) } else { 1 };
        let start = rng.below(5);
        let names: Vec<_> = (start..start + count).collect();
        let holders: Vec<_> = names.iter().map(|name| Holder::new(*name)).collect();
        let is_durable = rng.below(4) > 0;
        let keep = if is_durable { Keep::Durable } else { Keep::Volatile };
        let at = match self.log.append(&head, &[&body], &holders, keep) {
            Err(AppendError::Full) => return,
            at => at.unwrap().get(),
        };
        assert!(at >= self.highest, "{at} was used, {}", self.highest);
        let known = Known {
            bytes: [&head[..], &body].concat(),
            head,
            holders: names.into_iter().map(|name| (name, vec![0])).collect(),
            leaving: BTreeSet::new(),
            is_durable,
            safe_at: at + 1,
        };
        self.known.insert(at, known);
    }

    fn pick(&mut self) -> Option<(u64, u64)> {
        let held: Vec<_> =
            self.known.iter().filter(|(_, it)| !it.holders.is_empty()).map(|(at, _)| *at).collect();
        let index = self.rng.below(held.len().max(1) as u64) as usize;
        let at = *held.get(index)?;
        let holders = &self.known[&at].holders;
        let index = self.rng.below(holders.len() as u64) as usize;
        Some((at, *holders.keys().nth(index)?))
    }

    fn release(&mut self, at: u64, holder: u64) {
        self.log.release(Offset::new(at), Holder::new(holder)).unwrap();
        let known = self.known.get_mut(&at).unwrap();
        known.holders.remove(&holder);
        known.leaving.insert(holder);
    }

    fn release_all(&mut self, at: u64) {
        let holders: Vec<_> = self.known[&at].holders.keys().copied().collect();
        for holder in holders {
            self.release(at, holder);
        }
    }

    fn is_safe(&self, known: &Known) -> bool {
        known.is_durable && known.safe_at <= self.log.durable().get()
    }

    fn move_one(&mut self) {
        let Some((old, holder)) = self.pick() else { return };
        let known = &self.known[&old];
        let was_safe = self.is_safe(known);
        let bytes = known.bytes.clone();
        let holders = [Holder::new(99)];
        let new = match self.log.append(&[], &[&bytes], &holders, Keep::Durable) {
            Err(AppendError::Full) => return,
            new => new.unwrap().get(),
        };
        let holders = [(99, vec![0])].into_iter().collect();
        let (head, leaving) = (Vec::new(), BTreeSet::new());
        let is_durable = true;
        self.known
            .insert(new, Known { head, bytes, holders, leaving, is_durable, safe_at: new + 1 });
        self.release(old, holder);
        self.moves.push(Move { old, holder, new, was_safe });
    }

    fn persist(&mut self) {
        let Some((at, _)) = self.pick() else { return };
        let safe_at = self.log.persist(Offset::new(at)).unwrap().get();
        let known = self.known.get_mut(&at).unwrap();
        if !known.is_durable {
            known.is_durable = true;
            known.safe_at = safe_at;
            known.leaving.clear();
        }
    }

    fn read_one(&mut self) {
        let Some((at, _)) = self.pick() else { return };
        match self.log.read(Offset::new(at)) {
            Ok(record) => assert_eq!(record.bytes, self.known[&at].bytes, "seed {}", self.seed),
            Err(ReadError::Cold { at }) => self.log.fetch(&[at]),
            Err(error) => panic!("seed {}: {error}", self.seed),
        }
    }

    fn drive(&mut self) {
        for _ in 0..10_000 {
            self.log.sync().unwrap();
            if self.log.durable() == self.log.end() && self.disk.is_idle() {
                return;
            }
        }
        panic!("seed {}: {} of {}", self.seed, self.log.durable(), self.log.end());
    }

    /// Gets everything safe: releases and marks too, by a record that comes after them.
    fn settle(&mut self) {
        self.drive();
        let holders = [Holder::new(7)];
        let at = self.log.append(b"s", &[], &holders, Keep::Durable).unwrap().get();
        self.drive();
        self.moves.clear();
        for known in self.known.values_mut() {
            known.leaving.clear();
            for marks in known.holders.values_mut() {
                marks.drain(..marks.len() - 1);
            }
        }
        self.known.retain(|_, known| !known.holders.is_empty());
        let known = Known {
            head: b"s".into(),
            bytes: b"s".into(),
            holders: [(7, vec![0])].into_iter().collect(),
            leaving: BTreeSet::new(),
            is_durable: true,
            safe_at: at + 1,
        };
        self.known.insert(at, known);
    }

    fn read_all(&mut self) {
        let all: Vec<_> = self.known.keys().copied().collect();
        for at in all {
            if self.known[&at].holders.is_empty() {
                continue;
            }
            let at = Offset::new(at);
            let mut tries = 0;
            let record = loop {
                match self.log.read(at) {
                    Ok(record) => break record,
                    Err(ReadError::Cold { .. }) if tries < 1000 => {
                        self.log.fetch(&[at]);
                        self.log.collect().unwrap();
                        tries += 1;
                    }
                    Err(error) => panic!("seed {}: {error}", self.seed),
                }
            };
            assert_eq!(record.bytes, self.known[&at.get()].bytes, "seed {} {at}", self.seed);
        }
    }

    fn crash(&mut self, crash: Crash) {
        let seed = self.seed;
        let durable = self.log.durable().get();
        match crash {
            Crash::PowerCut => self.disk.crash(),
            Crash::Kill => self.disk.kill(),
        }
        // What the files say, whatever their digests do.
        let files = self.disk.copy_whole(seed);
        let options = Options { digests: false, ..self.options.clone() };
        let opened = |disk: &SimDisk, options: &Options| {
            let (log, report) =
                open(disk, options).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert_eq!(report.damaged, [], "seed {seed}");
            (log, Report { digests: 0, ..report })
        };
        let (mut plain, plain_report) = opened(&files, &options);
        let (log, report) = opened(&self.disk, &self.options);
        assert_eq!(report, plain_report, "seed {seed}");
        self.log = log;
        self.moment = Moment::default();
        let found = recovered(&mut self.log, seed);
        assert_eq!(found, recovered(&mut plain, seed), "seed {seed}");
        assert_eq!(facts(&self.log), facts(&plain), "seed {seed}");
        self.log.collect().unwrap();
        assert_eq!(self.log.usage().records, found.len() as u64, "seed {seed}");
        for (at, known) in &self.known {
            let is_safe = known.is_durable && known.safe_at <= durable;
            if let Some((head, holders)) = found.get(at) {
                assert!(known.is_durable, "seed {seed}: {at} is volatile");
                assert_eq!(*head, known.head, "seed {seed}: head of {at}");
                for (holder, mark) in holders {
                    let marks = known.holders.get(holder);
                    assert!(
                        marks.is_some() || known.leaving.contains(holder),
                        "seed {seed}: {at} came back to {holder}"
                    );
                    if let Some(marks) = marks {
                        assert!(
                            marks.contains(mark),
                            "seed {seed}: {at} {holder}: {mark} of {marks:?}"
                        );
                    }
                }
                for holder in known.holders.keys() {
                    assert!(holders.contains_key(holder), "seed {seed}: {at} lost {holder}");
                }
            } else {
                let is_wanted = is_safe && !known.holders.is_empty();
                assert!(!is_wanted, "seed {seed}: {at} is lost, {durable} was durable");
            }
        }
        let has =
            |at: u64, holder: u64| found.get(&at).is_some_and(|it| it.1.contains_key(&holder));
        for Move { old, holder, new, was_safe } in self.moves.drain(..) {
            let is_held = self.known.get(&new).is_some_and(|it| it.holders.contains_key(&99));
            if has(new, 99) {
                assert!(!has(old, holder), "seed {seed}: {old} and {new}");
            } else if is_held && was_safe {
                assert!(has(old, holder), "seed {seed}: neither {old} nor {new}");
            }
        }
        let old = std::mem::take(&mut self.known);
        for (at, (head, holders)) in found {
            let bytes = old.get(&at).unwrap_or_else(|| panic!("seed {seed}: {at} came back"));
            let known = Known {
                head,
                bytes: bytes.bytes.clone(),
                holders: holders.into_iter().map(|(name, mark)| (name, vec![mark])).collect(),
                leaving: BTreeSet::new(),
                is_durable: true,
                safe_at: 0,
            };
            self.highest = self.highest.max(at + 1);
            self.known.insert(at, known);
        }
        self.highest = self.highest.max(durable.min(self.log.end().get()));
        assert!(self.log.end().get() >= self.highest, "seed {seed}");
        if self.rng.below(2) == 0 {
            self.read_all();
        }
    }
}

/// What was appended and is released leaves no record, but the log's end: an offset is not given out twice.
#[test]
fn the_end_stays_when_nothing_else_does() {
    let options = Options { segment_bytes: 2200, ..Options::default() };
    for steps in 0..40 {
        for crash in [Crash::PowerCut, Crash::Kill] {
            let disk = SimDisk::new(steps);
            let (mut log, _) = open(&disk, &options).expect("empty");
            for _ in 0..2 {
                append_and_sync(&mut log);
            }
            for at in 0..2 {
                log.release(Offset::new(at), Holder::new(1)).expect("held");
            }
            (0..8).for_each(|_| log.sync().expect("a good disk"));
            // The next one begins a file.
            disk.set_faults(Faults { delay: 2, ..Faults::default() });
            log.append(b"head", &[], &[Holder::new(1)], Keep::Durable).expect("good");
            log.sync().expect("a good disk");
            (0..steps).for_each(|_| log.collect().expect("a good disk"));
            match crash {
                Crash::PowerCut => disk.crash(),
                Crash::Kill => disk.kill(),
            }
            let (log, _) = open(&disk, &options).expect("a log");
            assert!(log.end() >= Offset::new(2), "{} after {steps} steps", log.end());
        }
    }
}
