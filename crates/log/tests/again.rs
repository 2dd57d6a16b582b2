//! What a log tells of at its start, in sums and by runs, and once more while it is in use: each record that is held then, as it is then.

use std::collections::BTreeMap;

use leveret_log::disk::SimDisk;
use leveret_log::file::{OnDamage, Options};
use leveret_log::suite::drive;
use leveret_log::{
    FileLog, Holder, Keep, Log, MemoryLog, Offset, RecordWeight, Recovered, RecoveredRun,
    RecoveredSum, RecoveryLimits, RecoverySink,
};

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
        Options { segment_bytes, cache_bytes: 0, on_damage, digests, weigh, ..Options::default() };
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

/// What a record of the test weighs: of a few it is not known.
fn weigh(head: &[u8]) -> RecordWeight {
    let bytes = 10 * head.len() as u64 + u64::from(head[0]) * u64::from(head[0]);
    RecordWeight { bytes, persistent: (head[0] < 250).then_some(head[0].is_multiple_of(2)) }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    count: u64,
    bytes: u64,
    persistent: u64,
    persistent_bytes: u64,
}

impl Sum {
    fn add(&mut self, weight: RecordWeight) {
        let persistent = u64::from(weight.persistent != Some(false));
        self.count += 1;
        self.bytes += weight.bytes;
        self.persistent += persistent;
        self.persistent_bytes += persistent * weight.bytes;
    }
}

/// Who wants to be told of so many records of each holder, and of all of some.
#[derive(Default)]
struct Listener {
    first: u64,
    needs_all: Vec<Holder>,
    next: u64,
    enough: bool,
    told: All,
    /// How many were told of each, and whether a sum does for the others.
    of: BTreeMap<Holder, (u64, bool)>,
    summed: BTreeMap<Holder, Vec<(std::ops::Range<Offset>, Sum)>>,
}

impl RecoverySink for Listener {
    fn takes_sum(&mut self, holder: Holder, is_enough: bool) -> bool {
        assert!(is_enough || !self.enough, "it does not become less");
        self.enough = is_enough;
        let (told, will_do) = self.of.entry(holder).or_default();
        let was = *will_do;
        *will_do |= (*told >= self.first || is_enough) && !self.needs_all.contains(&holder);
        assert!(*will_do || !was);
        *will_do
    }

    fn sum(&mut self, holder: Holder, sum: RecoveredSum) {
        assert!(self.of[&holder].1, "{holder:?} does not take sums");
        let RecoveredSum { offsets, count, bytes, persistent, persistent_bytes } = sum;
        let sum = Sum { count, bytes, persistent, persistent_bytes };
        self.summed.entry(holder).or_default().push((offsets, sum));
    }

    fn run(&mut self, run: RecoveredRun<'_>) {
        let RecoveredRun { at, count, head, holders } = run;
        assert!(at.get() >= self.next && count > 0, "ascending");
        self.next = at.get() + count;
        for at in at.get()..self.next {
            self.told.insert(at, told(head, holders));
        }
        holders.iter().for_each(|(holder, _)| self.of.entry(*holder).or_default().0 += count);
    }
}

/// What is told of singly and what is summed is together what there is.
fn sums(log: &mut impl Log, held: &All, random: &mut Random) -> u64 {
    let mut to = Listener {
        first: [0, 3, 300, u64::MAX][random.below(4) as usize],
        needs_all: (random.below(3) == 0).then(|| Holder::new(2)).into_iter().collect(),
        ..Listener::default()
    };
    let mut apart = Vec::new();
    let mut end = 0;
    for _ in 0..random.below(3) {
        let from = end + random.below(300);
        end = from + 1 + random.below(10);
        apart.push(Offset::new(from)..Offset::new(end));
    }
    let limits = match random.below(3) {
        0 => RecoveryLimits::NONE,
        1 => RecoveryLimits { records: random.below(400) as u32, bytes: u64::MAX },
        _ => RecoveryLimits { records: u32::MAX, bytes: random.below(100_000) },
    };
    log.recover_sums(&apart, limits, &mut to);
    let (mut want, mut got) = (BTreeMap::<Holder, Sum>::new(), BTreeMap::<Holder, Sum>::new());
    for (at, one) in held {
        let is_apart = apart.iter().any(|range| range.contains(&Offset::new(*at)));
        assert!(to.told.contains_key(at) || !is_apart, "{at} is summed");
        one.holders.keys().for_each(|it| want.entry(*it).or_default().add(weigh(&one.head)));
    }
    for (at, one) in &to.told {
        assert_eq!(Some(one), held.get(at), "{at}");
        one.holders.keys().for_each(|it| got.entry(*it).or_default().add(weigh(&one.head)));
    }
    let mut summed = 0;
    for (holder, all) in &to.summed {
        let all_of = held.iter().filter(|(_, it)| it.holders.contains_key(holder));
        let left: Vec<u64> =
            all_of.map(|it| *it.0).filter(|at| !to.told.contains_key(at)).collect();
        let here = |at: &u64| all.iter().any(|(range, _)| range.contains(&Offset::new(*at)));
        assert!(left.iter().all(here), "they are where the sum says");
        for (_, sum) in all {
            let got = got.entry(*holder).or_default();
            got.count += sum.count;
            got.bytes += sum.bytes;
            got.persistent += sum.persistent;
            got.persistent_bytes += sum.persistent_bytes;
            summed += sum.count;
        }
    }
    assert_eq!(got, want);
    summed
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
    let mut volatile = Vec::new();
    for _ in 0..random.below(40) {
        let at = Offset::new(random.below(log.end().get().max(1)));
        match random.below(8) {
            0..3 => {
                let mut holders: Vec<Holder> =
                    (1..4).map(Holder::new).filter(|_| random.below(3) == 0).collect();
                if random.below(60) == 0 {
                    holders = vec![Holder::OWNER];
                }
                let mut head = vec![random.below(3) as u8 / 2; 1 + random.below(12) as usize / 11];
                if random.below(9) == 0 {
                    head[0] = random.below(256) as u8;
                }
                let body = vec![7; random.below(4) as usize / 3 * 300];
                let is_volatile = random.below(10) == 0;
                let keep = if is_volatile { Keep::Volatile } else { Keep::Durable };
                let many = random.below(60) / 59 * 3_000;
                for _ in 0..1 + random.below(9 + many) {
                    let at = log.append(&head, &[&body], &holders, keep).expect("room");
                    if is_volatile && random.below(2) == 0 {
                        volatile.push((at, head.clone(), holders.clone()));
                    }
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
            7 if random.below(2) == 0 && !volatile.is_empty() => {
                // It is written behind later ones.
                let nth = random.below(volatile.len() as u64) as usize;
                let (at, head, holders) = volatile.swap_remove(nth);
                if log.persist(at).is_ok() && keeps {
                    let holders: Vec<_> = holders.iter().map(|it| (*it, 0)).collect();
                    held.insert(at.get(), told(&head, &holders));
                }
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
    let has_digests = random.below(3) > 0;
    let mut log = open(&disk, segment_bytes, has_digests);
    let summed = sums(&mut log, &held, &mut random);
    let end = log.end().get();
    let (mut from, mut found) = (Some(random.below(2) * random.below(end / 2 + 1)), 0);
    while let Some(here) = from {
        use_it(&mut log, &mut random, &mut held, false);
        if random.below(5) == 0 {
            rest(&mut log, &disk);
        }
        let mut told_now = All::new();
        let few = random.below(2) == 0;
        let most = 1 + random.below(if few { 3 } else { 100 }) as u32;
        let bytes = if random.below(2) == 0 { u64::MAX } else { 1 + random.below(5_000) };
        let limits = RecoveryLimits { records: most, bytes };
        let next = log.recover_more(Offset::new(here), limits, &mut |it| {
            let last = told_now.insert(it.at.get(), told(it.head, it.holders));
            assert!(last.is_none() && it.at.get() >= here);
        });
        let next = next.expect("a good disk").map(Offset::get);
        assert!(told_now.len() <= most as usize + 30, "{} of {most}", told_now.len());
        let until = next.unwrap_or(end);
        assert!(until >= here);
        assert!(told_now.iter().eq(held.range(here..until)), "from {here} to {until}");
        found += told_now.len();
        from = next;
    }
    log.recovered_all();
    let mut none = |_: Recovered<'_>| panic!("all is told");
    assert_eq!(log.recover_more(Offset::ZERO, RecoveryLimits::NONE, &mut none), Ok(None));
    (summed as usize, found)
}

#[test]
fn each_record_that_is_held_is_told_of_or_counted_and_comes_again() {
    let (mut summed, mut found) = (0, 0);
    for seed in 0..60 {
        let run = std::panic::catch_unwind(|| run(seed));
        let (those, told) = run.unwrap_or_else(|_| panic!("seed {seed}"));
        summed += those;
        found += told;
    }
    assert!(summed > 20_000 && found > 20_000, "{summed} {found}");
}

/// Neighbours that are alike cost one word, however many they are.
#[test]
fn neighbours_are_told_of_together() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk, 4_000, true);
    for _ in 0..3_000 {
        log.append(&[0], &[b"body"], &[Holder::new(1)], Keep::Durable).expect("room");
    }
    rest(&mut log, &disk);
    log.append(&[0], &[b"body"], &[Holder::new(1)], Keep::Durable).expect("room");
    rest(&mut log, &disk);
    drop(log);
    struct Runs(Vec<u64>);
    impl RecoverySink for Runs {
        fn takes_sum(&mut self, _: Holder, _: bool) -> bool {
            false
        }
        fn sum(&mut self, _: Holder, _: RecoveredSum) {
            panic!("nobody wanted it");
        }
        fn run(&mut self, run: RecoveredRun<'_>) {
            self.0.push(run.count);
        }
    }
    let (mut log, mut runs) = (open(&disk, 4_000, true), Runs(Vec::new()));
    log.recover_sums(&[], RecoveryLimits::NONE, &mut runs);
    assert!(runs.0.len() < 10, "{:?}", runs.0);
    assert_eq!(runs.0.iter().sum::<u64>(), 3_001);
}

/// A log that keeps nothing has nothing to tell of.
#[test]
fn nothing_comes_again_in_memory() {
    let mut log = MemoryLog::new();
    log.recover_sums(&[], RecoveryLimits::NONE, &mut Listener::default());
    let more = log.recover_more(Offset::ZERO, RecoveryLimits::NONE, &mut |_| panic!("none"));
    assert_eq!(more, Ok(None));
}

/// As of a shared record, which logs agree about when they are open and nobody was told of anything.
#[test]
fn what_is_let_go_of_before_it_is_told_of_is_not_counted() {
    let disk = SimDisk::new(1);
    let mut log = open(&disk, 4_000, true);
    let holders = [Holder::new(1), Holder::new(2)];
    for _ in 0..10 {
        log.append(&[0], &[b"body"], &holders, Keep::Durable).expect("room");
    }
    rest(&mut log, &disk);
    drop(log);
    let mut log = open(&disk, 4_000, true);
    log.release(Offset::new(3), holders[0]).expect("held");
    let mut to = Listener::default();
    log.recover_sums(&[], RecoveryLimits::NONE, &mut to);
    let count = |holder: Holder| to.summed[&holder].iter().map(|it| it.1.count).sum::<u64>();
    assert_eq!((count(holders[0]), count(holders[1])), (9, 10));
}
