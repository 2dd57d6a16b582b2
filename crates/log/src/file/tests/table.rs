//! A table that is fed with one batch after the other, as they are written, is what a start finds.

use std::collections::BTreeSet;

use super::super::format::{FILE_HEADER, FileHeader};
use super::super::table::Table;
use super::super::walk::{Step, Walk};
use super::*;

/// Holders, besides those of large sets.
const HOLDERS: u64 = 5;

/// Who reads the batches of a log from its files as they come, and has nothing else.
struct Follower {
    table: Table,
    /// The segment that is read, and how far.
    segment: u64,
    position: u64,
}

impl Follower {
    fn new(options: &Options) -> Self {
        Self { table: Table::new(options.weigh), segment: 0, position: 0 }
    }

    /// Takes in what was written since. Rewritten files are not for others.
    fn follow(&mut self, disk: &SimDisk) {
        let first = self.segment;
        let files = disk.files().into_iter().map(|(file, _)| file);
        for file in files.filter(|file| file.generation == 0 && file.segment >= first) {
            let bytes = disk.bytes_of(file);
            let header = FileHeader::decode(&bytes).unwrap();
            if file.segment > self.segment || self.position == 0 {
                self.table.begin(file, &header).unwrap();
                (self.segment, self.position) = (file.segment, FILE_HEADER as u64);
            }
            let mut walk = Walk::new(self.position, bytes.len() as u64, header.framing());
            while let Step::Batch(batch) = walk.step(&bytes[walk.position() as usize..]) {
                self.table.batch(&batch).unwrap();
            }
            self.position = walk.position();
        }
    }
}

fn weight(bytes: u64) -> RecordWeight {
    RecordWeight { bytes, persistent: Some(!bytes.is_multiple_of(2)) }
}

/// What a table says of records, whatever files they are in.
#[derive(Debug, Default, PartialEq)]
struct Held {
    by: BTreeSet<(u64, Holder)>,
    marks: BTreeMap<(u64, Holder), u8>,
    own: BTreeMap<u64, Vec<u8>>,
    sums: Vec<PagedOut>,
}

fn held(store: &Store) -> Held {
    let mut held = Held::default();
    store.cold.each_run(|first, len, it| {
        assert!(!it.is_volatile);
        store.sets.each(it.set, |name| {
            held.by.extend((first..first + len).map(|at| (at, name)));
        });
    });
    for (&at, marks) in &store.marks {
        // Those of who has left are nobody's.
        let marks = marks.iter().filter(|(name, _)| held.by.contains(&(at, *name)));
        held.marks.extend(marks.map(|&(name, mark)| ((at, name), mark)));
    }
    held.own = store.own.iter().map(|(&at, head)| (at, head.to_vec())).collect();
    let own = held.by.iter().filter(|it| it.1 == Holder::OWNER);
    assert!(own.map(|it| &it.0).eq(held.own.keys()));
    held.sums = (0..=HOLDERS).map(|name| store.paged.get(Holder::new(name))).collect();
    let count = |name: &u64| held.by.iter().filter(|it| it.1 == Holder::new(*name)).count();
    assert!((0..=HOLDERS).map(|it| count(&it) as u64).eq(held.sums.iter().map(|it| it.records)));
    held
}

/// What a table says of files.
fn files(store: &Store) -> Vec<impl PartialEq + std::fmt::Debug> {
    let all = &store.segments.all;
    let about = |it: &Segment| {
        all.iter().map(|it| it.epoch()).map(|epoch| it.has_notes_on(epoch.into_iter())).collect()
    };
    let file = |it: &Segment| {
        let notes: Vec<bool> = about(it);
        let offsets = (it.first, it.end, it.as_of, it.last_noted);
        let bytes = (it.len, it.written, it.live_bytes, it.useful_bytes());
        (it.file, it.framing, it.is_sealed, it.live, offsets, bytes, notes)
    };
    all.iter().map(file).collect()
}

/// A log and what is known of it.
struct Test {
    below: Box<dyn FnMut(u64) -> u64>,
    options: Options,
    disk: SimDisk,
    log: FileLog<SimDisk>,
    follower: Follower,
    /// Who holds what, and whether it is to survive.
    held: Vec<(Offset, Holder)>,
    volatile: BTreeSet<Offset>,
    keeps_files: bool,
}

impl Test {
    fn new(seed: u64, keeps_files: bool) -> Self {
        let mut below = numbers(seed);
        let options = Options {
            segment_bytes: 1 << (10 + below(3)),
            cache_bytes: below(3) * 1000,
            spill_bytes: below(2) * 1000,
            spill_batch_bytes: 1 + below(2000),
            // A start that reads other files meets the records in another order, and averages are others.
            weigh: if keeps_files { |head| weight(head[0].into()) } else { |_| weight(1) },
            digests: !keeps_files,
            on_damage: OnDamage::Aside,
            ..Options::default()
        };
        let disk = SimDisk::new(seed);
        let log = open(&disk, options.clone());
        let follower = Follower::new(&options);
        let (held, volatile) = Default::default();
        let below = Box::new(below);
        let mut test = Self { below, options, disk, log, follower, held, volatile, keeps_files };
        test.begin();
        test
    }

    fn step(&mut self) {
        let below = &mut self.below;
        let any = below(self.held.len().max(1) as u64) as usize;
        match below(14) {
            0..=3 => {
                let mut keep = if below(4) == 0 { Keep::Volatile } else { Keep::Durable };
                let head = [below(200) as u8; 3];
                let body = vec![7; below(300) as usize];
                let count = if below(40) == 0 { 60 + below(20) } else { 1 + below(3) };
                let first = below(HOLDERS);
                let mut holders: Vec<_> = (first..first + count).map(Holder::new).collect();
                if below(10) == 0 {
                    keep = Keep::Durable;
                    holders.truncate(below(2) as usize);
                    holders.push(Holder::OWNER);
                }
                let at = self.log.append(&head, &[&body], &holders, keep).unwrap();
                self.held.extend(holders.into_iter().map(|holder| (at, holder)));
                if keep == Keep::Volatile {
                    self.volatile.insert(at);
                }
            }
            4..=7 if !self.held.is_empty() => {
                let (at, holder) = self.held.swap_remove(any);
                self.log.release(at, holder).unwrap();
            }
            8 if !self.held.is_empty() => {
                let (at, holder) = self.held[any];
                self.log.mark(at, holder, 1 + below(9) as u8).unwrap();
            }
            9 if !self.held.is_empty() => {
                let at = self.held[any].0;
                self.log.persist(at).unwrap();
                self.volatile.remove(&at);
            }
            10 if below(80) == 0 => self.restart(),
            _ => self.log.sync().unwrap(),
        }
        self.follow();
    }

    /// The follower has all that was written, and says so.
    fn follow(&mut self) {
        self.follower.follow(&self.disk);
        if !self.keeps_files {
            self.log.set_agreed(self.follower.table.reached.sequence);
        }
    }

    fn settle(&mut self) {
        while self.log.durable() < self.log.end() || self.log.notes() > 0 || !self.disk.is_idle() {
            self.log.sync().unwrap();
            self.follow();
        }
    }

    fn begin(&mut self) {
        match self.keeps_files {
            true => self.log.hold_files(),
            // From now on nothing goes that others have not agreed to.
            false => self.log.set_agreed(self.follower.table.reached.sequence),
        }
    }

    /// The log goes on in another process.
    fn restart(&mut self) {
        self.settle();
        self.log = open(&self.disk, self.options.clone());
        self.begin();
        let (mut held, mut own) = (Vec::new(), BTreeMap::new());
        self.log.own(&mut |at, head| assert_eq!(own.insert(at, head.to_vec()), None));
        self.log.recover(&mut |it| {
            held.extend(it.holders.iter().map(|&(by, _)| (it.at, by)));
            if it.holders.iter().any(|&(by, _)| by == Holder::OWNER) {
                assert_eq!(own.remove(&it.at), Some(it.head.to_vec()));
            }
        });
        assert!(own.is_empty());
        self.held = held;
        self.volatile.clear();
    }

    /// So many steps, compared now and then and at the end.
    fn run(&mut self, steps: usize) {
        for step in 0..steps {
            self.step();
            if step % 50 == 0 {
                self.check();
            }
        }
        self.check();
    }

    fn check(&mut self) {
        self.settle();
        let known = self.held.iter().filter(|(at, _)| !self.volatile.contains(at));
        let known: BTreeSet<_> = known.map(|(at, holder)| (at.get(), *holder)).collect();
        let (table, start) =
            (&self.follower.table, open(&self.disk.copy_whole(1), self.options.clone()));
        let fed = held(&table.store);
        assert_eq!(fed.by, known);
        assert_eq!(fed, held(&start.store));
        if self.keeps_files {
            assert_eq!(files(&table.store), files(&start.store));
            assert_eq!(table.reached.end, start.end().get());
            assert_eq!(table.reached.sequence, start.next_batch());
            let stragglers = table.store.segments.stragglers.iter();
            let are_held = stragglers.filter(|(at, _)| table.store.cold.get(**at).is_some());
            assert!(are_held.eq(&start.store.segments.stragglers));
        }
        table.store.segments.assert_sums();
        assert_counts(&table.store);
    }
}

/// Each file counts the records that are in it.
fn assert_counts(store: &Store) {
    let segments = &store.segments;
    let mut live = vec![0; segments.all.len()];
    store.cold.each_run(|first, len, _| {
        (first..first + len).for_each(|at| live[segments.of(at).unwrap()] += 1);
    });
    assert!(live.into_iter().eq(segments.all.iter().map(|it| it.live)));
}

/// Also of the files: a start finds all that were written.
#[test]
fn what_is_fed_is_what_a_start_finds_in_the_same_files() {
    for seed in 0..30 {
        let mut test = Test::new(seed, true);
        test.run(1500);
    }
}

/// Files are rewritten, digested and removed meanwhile: who holds what does not change with that.
#[test]
fn what_is_fed_is_what_a_start_finds_in_files_that_were_rewritten() {
    let (mut removed, mut rewritten) = (0, 0);
    for seed in 100..130 {
        let mut test = Test::new(seed, false);
        test.run(2000);
        let files = test.disk.files();
        rewritten += files.iter().filter(|(file, _)| file.generation > 0).count();
        removed += test.follower.table.store.segments.all.len() - files.len();
        assert!(!test.disk.digests().is_empty());
    }
    assert!(removed > 100 && rewritten > 30, "{removed} {rewritten}");
}

/// The log as a start finds it, once what is full has its digests.
fn opened_again(
    disk: &SimDisk,
    mut log: FileLog<SimDisk>,
    options: Options,
) -> (FileLog<SimDisk>, Report) {
    log.reclaim();
    drive(&mut log);
    while !disk.is_idle() {
        log.collect().unwrap();
    }
    FileLog::open(disk.copy_whole(1), options, &mut |_| {}).unwrap()
}

/// A backlog of many queues in turn has batches that are each of all of them: a start adds to the sum of a queue once for
/// each digest, and not once for each batch.
#[test]
fn a_start_counts_what_many_hold_in_turn_by_digests_not_by_batches() {
    const HOLDERS: u64 = 100;
    const RECORDS: u64 = 20_000;
    let disk = SimDisk::new(1);
    let options = Options {
        segment_bytes: 60_000,
        on_damage: OnDamage::Aside,
        digests: true,
        ..Options::default()
    };
    let mut log = open(&disk, options.clone());
    for number in 0..RECORDS {
        let holders = [Holder::new(1 + number % HOLDERS)];
        log.append(b"head", &[&[7; 16]], &holders, Keep::Durable).unwrap();
        if number % HOLDERS == HOLDERS - 1 {
            drive(&mut log);
        }
    }
    let (log, report) = opened_again(&disk, log, options);
    assert!(report.digests > 3 && report.files == report.digests + 1, "{report:?}");
    let tail = log.store.segments.all.back().unwrap();
    // The first record of a digest has none before it to be like, and is a row of its own.
    let most = report.digests * (HOLDERS + 1) + tail.live;
    let additions = log.store.paged.additions;
    assert!(additions <= most && most < RECORDS / 2, "{additions} of {RECORDS}, {most} at most");
    for holder in 1..=HOLDERS {
        assert_eq!(log.store.paged.get(Holder::new(holder)).records, RECORDS / HOLDERS);
    }
}

/// The owner's records are told of with what they are, also where they differ from their neighbours by their holder alone.
#[test]
fn the_owners_records_are_told_of_wherever_they_lie() {
    const RECORDS: u64 = 2_000;
    let disk = SimDisk::new(1);
    let options = Options {
        segment_bytes: 20_000,
        on_damage: OnDamage::Aside,
        digests: true,
        ..Options::default()
    };
    let mut log = open(&disk, options.clone());
    let mut own = Vec::new();
    for number in 0..RECORDS {
        // One in the midst of others, several one after the other, and one that others hold, too.
        let holders = match number % 40 {
            7 | 20..23 => vec![Holder::OWNER],
            30 => vec![Holder::OWNER, Holder::new(3)],
            other => vec![Holder::new(1 + other % 5)],
        };
        let at = log.append(b"head", &[&[7; 16]], &holders, Keep::Durable).unwrap();
        if holders[0] == Holder::OWNER {
            own.push((at, b"head".to_vec()));
        }
        if number % 100 == 99 {
            drive(&mut log);
        }
    }
    // What the owner has let go of is not its own any more, whoever else holds it.
    for (at, _) in own.extract_if(.., |(at, _)| at.get() % 80 == 30) {
        log.release(at, Holder::OWNER).unwrap();
    }
    let (mut log, report) = opened_again(&disk, log, options);
    assert!(report.digests > 2, "{report:?}");
    let mut told = Vec::new();
    log.own(&mut |at, head| told.push((at, head.to_vec())));
    assert_eq!(told, own);
    assert_eq!(log.store.paged.get(Holder::OWNER).records, own.len() as u64);
}
