//! What a log tells of at its start, by runs, and once more while it is in use: each record that is held then, as it is then.

use std::collections::BTreeMap;

use leveret_log::disk::SimDisk;
use leveret_log::file::{OnDamage, Options};
use leveret_log::suite::drive;
use leveret_log::{FileLog, Holder, Keep, Log, MemoryLog, Offset, Recovered, RecoveredRun};

/// splitmix64: a seed gives the same run everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Told {
    head: Vec<u8>,
    /// Each with its mark.
    holders: BTreeMap<Holder, u8>,
}

type All = BTreeMap<u64, Told>;

fn told(head: &[u8], holders: &[(Holder, u8)]) -> Told {
    let names: BTreeMap<_, _> = holders.iter().copied().collect();
    assert_eq!(names.len(), holders.len(), "nobody is named twice");
    Told { head: head.to_vec(), holders: names }
}

fn open(disk: &SimDisk, segment_bytes: u64, digests: bool) -> FileLog<SimDisk> {
    let on_damage = OnDamage::Aside;
    let options =
        Options { segment_bytes, cache_bytes: 0, on_damage, digests, ..Options::default() };
    FileLog::open(disk.clone(), options, &mut |_| {}).expect("a log that goes on").0
}

fn recovered(log: &mut impl Log) -> All {
    let mut all = All::new();
    let mut last = None;
    log.recover(&mut |Recovered { at, head, holders }| {
        assert!(last.replace(at) < Some(at), "ascending");
        all.insert(at.get(), told(head, holders));
    });
    all
}

/// All, and those that come again.
fn recovered_runs(log: &mut impl Log) -> (All, All) {
    let (mut all, mut again) = (All::new(), All::new());
    let mut next = 0;
    log.recover_runs(&mut |RecoveredRun { at, count, head, holders, comes_again }| {
        assert!(at.get() >= next && count > 0, "ascending");
        next = at.get() + count;
        for at in at.get()..next {
            all.insert(at, told(head, holders));
            if comes_again {
                again.insert(at, told(head, holders));
            }
        }
    });
    (all, again)
}

/// Until the disk has nothing to do any more.
fn rest(log: &mut FileLog<SimDisk>, disk: &SimDisk) {
    log.reclaim();
    drive(log);
    while !disk.is_idle() {
        log.collect().expect("a good disk");
    }
}

/// Some are added, released and marked. `held` is what there is of those that matter.
fn use_it(log: &mut FileLog<SimDisk>, random: &mut Random, held: &mut All, keeps: bool) {
    for _ in 0..random.below(40) {
        let at = Offset::new(random.below(log.end().get().max(1)));
        match random.below(8) {
            0..3 => {
                let mut holders: Vec<Holder> =
                    (1..4).map(Holder::new).filter(|_| random.below(3) == 0).collect();
                if random.below(60) == 0 {
                    holders = vec![Holder::OWNER];
                }
                let head = vec![random.below(3) as u8 / 2; 1 + random.below(12) as usize / 11];
                let body = vec![7; random.below(4) as usize / 3 * 300];
                let is_volatile = random.below(10) == 0;
                let keep = if is_volatile { Keep::Volatile } else { Keep::Durable };
                for _ in 0..1 + random.below(9) {
                    let at = log.append(&head, &[&body], &holders, keep).expect("room");
                    if keeps && !is_volatile && !holders.is_empty() {
                        let holders: Vec<_> = holders.iter().map(|it| (*it, 0)).collect();
                        held.insert(at.get(), told(&head, &holders));
                    }
                }
            }
            3..6 => {
                let Some(one) = held.get_mut(&at.get()) else { continue };
                let nth = random.below(one.holders.len() as u64) as usize;
                let holder = *one.holders.keys().nth(nth).expect("held");
                log.release(at, holder).expect("held");
                one.holders.remove(&holder);
                if one.holders.is_empty() {
                    held.remove(&at.get());
                }
            }
            6 => {
                let Some(one) = held.get_mut(&at.get()).filter(|_| random.below(4) == 0) else {
                    continue;
                };
                let (holder, mark) =
                    (*one.holders.keys().next().expect("held"), 1 + random.below(200) as u8);
                log.mark(at, holder, mark).expect("held");
                one.holders.insert(holder, mark);
            }
            _ => drive(log),
        }
    }
}

fn run(seed: u64) -> (usize, usize) {
    let mut random = Random(seed);
    let disk = SimDisk::new(seed);
    let segment_bytes = 1_000 + random.below(8_000);
    let mut held = All::new();
    for _ in 0..1 + random.below(3) {
        let mut log = open(&disk, segment_bytes, true);
        assert_eq!(recovered(&mut log), held);
        for _ in 0..random.below(12) {
            use_it(&mut log, &mut random, &mut held, true);
            if random.below(4) == 0 {
                rest(&mut log, &disk);
            }
        }
        rest(&mut log, &disk);
        drop(log);
        disk.kill();
    }
    let mut plain = open(&disk.copy(1), segment_bytes, false);
    assert_eq!(recovered(&mut plain), held);
    let mut log = open(&disk, segment_bytes, true);
    let (all, again) = recovered_runs(&mut log);
    assert_eq!(all, held);
    let mut first = again.keys().next().copied().unwrap_or(0);
    if random.below(3) == 0 {
        first += random.below(100);
    }
    let (mut from, mut found) = (Some(first), 0);
    while let Some(here) = from {
        use_it(&mut log, &mut random, &mut held, false);
        if random.below(5) == 0 {
            rest(&mut log, &disk);
        }
        let mut told_now = All::new();
        let most = 1 + random.below(20) as u32;
        let next = log.recover_more(Offset::new(here), most, &mut |it| {
            let last = told_now.insert(it.at.get(), told(it.head, it.holders));
            assert!(last.is_none() && it.at.get() >= here);
        });
        let next = next.map(Offset::get);
        assert!(told_now.len() <= most as usize + 300);
        let end = next.unwrap_or(u64::MAX);
        assert!(end >= here);
        let want = held.range(here..end).filter(|(at, _)| again.contains_key(at));
        assert!(told_now.iter().eq(want), "from {here} to {end}");
        found += told_now.len();
        from = next;
    }
    log.recovered_all();
    assert_eq!(log.recover_more(Offset::ZERO, 1, &mut |_| panic!("all is told")), None);
    (again.len(), found)
}

#[test]
fn each_record_that_is_held_comes_again() {
    let (mut again, mut found) = (0, 0);
    for seed in 0..60 {
        let run = std::panic::catch_unwind(|| run(seed));
        let (those, told) = run.unwrap_or_else(|_| panic!("seed {seed}"));
        again += those;
        found += told;
    }
    assert!(again > 5_000 && found > 2_000, "{again} {found}");
}

/// Neighbours that are alike cost one word, however many they are.
#[test]
fn neighbours_are_told_of_together() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk, 4_000, true);
    for _ in 0..3_000 {
        log.append(b"h", &[b"body"], &[Holder::new(1)], Keep::Durable).expect("room");
    }
    rest(&mut log, &disk);
    log.append(b"h", &[b"body"], &[Holder::new(1)], Keep::Durable).expect("room");
    rest(&mut log, &disk);
    drop(log);
    let mut log = open(&disk, 4_000, true);
    let mut runs = Vec::new();
    log.recover_runs(&mut |it| runs.push((it.at.get(), it.count, it.comes_again)));
    assert!(runs.len() < 10 && runs[0].2, "{runs:?}");
    assert_eq!(runs.iter().map(|it| it.1).sum::<u64>(), 3_001);
}

/// A log that keeps nothing has nothing to tell of.
#[test]
fn nothing_comes_again_in_memory() {
    let mut log = MemoryLog::new();
    assert_eq!(recovered_runs(&mut log), Default::default());
    assert_eq!(log.recover_more(Offset::ZERO, 1, &mut |_| {}), None);
}
