//! Logs in files for the world's machines: over simulated disks that tear writes, lose what was not synced, and are full.
//!
//! The shard is a list of who holds what. What it is after each batch is known from what leaders did for that batch, and all
//! logs are compared with it: their batches byte for byte, and their tables of holders.
//!
//! Files are neither removed nor rewritten, so nobody needs a snapshot: those are not built.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use leveret_log::disk::{Faults, SimDisk};
use leveret_log::file::{BatchCopy, NoBatch, Options};
use leveret_log::{FileLog, Holder, Keep, Log, Offset};

use super::store::Store;
use crate::dice::Dice;
use crate::{Batch, BatchName, Batches, Change, MemberId, NoBytes, Point, Step, Stored, Task};

const HOLDERS: u64 = 4;

/// Something that a shard did.
#[derive(Clone, Debug)]
enum Deed {
    Append(Offset, Vec<Holder>),
    Release(Offset, Holder),
    Mark(Offset, Holder, u8),
}

/// Who holds what, with the mark of each.
type Held = BTreeMap<Offset, Vec<(Holder, u8)>>;

/// All batches that any leader made.
#[derive(Debug, Default)]
pub(in crate::tests) struct Made {
    /// What is in each, in one number, and what its leader's shard had done.
    batches: BTreeMap<(u64, u64), (u64, Vec<Deed>)>,
    founder: Option<SimDisk>,
}

type Shared = Rc<RefCell<Made>>;

/// A log in files, its disk, and the shard over it.
pub(in crate::tests) struct Files {
    disk: SimDisk,
    log: FileLog<SimDisk>,
    seed: u64,
    point: Point,
    /// A term was begun, since it was opened.
    leads: bool,
    /// It leads, and has a shard.
    has_shard: bool,
    /// Bytes that fit on the disk, if there is a limit.
    capacity: Option<u64>,
    /// What the log was told to be agreed upon. The replica may know of more, of batches that come after a cut.
    agreed: BatchName,
    dice: Dice,
    /// Bytes of batches in number, and changes of members.
    prints: BTreeMap<u64, u64>,
    changes: BTreeMap<u64, Change>,
    /// Handed to the log, and not stored yet.
    waiting: VecDeque<Stored>,
    done: VecDeque<Stored>,
    deeds: Vec<Deed>,
    held: Vec<(Offset, Holder)>,
    /// Those of the shard's records that no other leader has.
    volatile: BTreeMap<Offset, Vec<Holder>>,
    shared: Shared,
}

fn open(disk: &SimDisk, seed: u64, follows: Option<BatchName>) -> FileLog<SimDisk> {
    let options = Options {
        seed,
        segment_bytes: 4_000,
        cache_bytes: 0,
        copies_bytes: 3_000,
        spill_bytes: 300,
        follows,
        ..Options::default()
    };
    let mut log = FileLog::open(disk.clone(), options, &mut |_| {}).expect("the log opens").0;
    log.hold_files();
    log
}

/// What a batch is to all members: all but what the writer's disk had synced.
fn print(batch: &BatchCopy) -> u64 {
    let mut bytes = batch.pieces.concat();
    bytes[40..48].fill(0);
    bytes[108..112].fill(0);
    let place = [batch.segment.to_le_bytes(), batch.position.to_le_bytes()].concat();
    let first = crc32c::crc32c(&[&place[..], &batch.beginning].concat());
    u64::from(first) << 32 | u64::from(crc32c::crc32c(&bytes))
}

/// A batch, however long it takes.
fn read(log: &mut FileLog<SimDisk>, number: u64) -> BatchCopy {
    loop {
        match log.batch(number) {
            Ok(batch) => return batch,
            Err(NoBatch::ToCome) => log.collect().expect("the disk works"),
            Err(error) => panic!("batch {number}: {error}, the last is {}", log.last()),
        }
    }
}

fn encode(change: &Change) -> Vec<u8> {
    let step = |step: &Step| {
        let kind = match step {
            Step::Voter(_) => 0,
            Step::Learner(_) => 1,
            Step::Remove(_) => 2,
        };
        [&[kind], &step.of().0.to_le_bytes()[..]].concat()
    };
    change.steps.iter().flat_map(step).collect()
}

fn decode(bytes: &[u8]) -> Change {
    let step = |bytes: &[u8]| {
        let id = MemberId(u64::from_le_bytes(bytes[1..].try_into().expect("eight bytes")));
        [Step::Voter(id), Step::Learner(id), Step::Remove(id)][usize::from(bytes[0])]
    };
    Change { steps: bytes.chunks(9).map(step).collect() }
}

impl Files {
    /// Nothing is written but when the world says so. What is read is read at once, or a little later.
    fn stall(&self, stall: bool) {
        let capacity = self.capacity;
        self.disk.set_faults(Faults { delay: 1, stall, capacity, ..Faults::default() });
    }

    /// Opens the log as a follower's.
    fn follow(&mut self) {
        self.log = open(&self.disk, self.seed, Some(self.agreed));
        (self.leads, self.has_shard) = (false, false);
        self.deeds.clear();
        self.held.clear();
        self.volatile.clear();
        self.prints.clear();
        self.changes.clear();
        // A start has to look at all, as nothing else tells which are changes of members; and a follower gives out none of what
        // is not applied.
        let mut whole = open(&self.disk.copy_whole(1), self.seed, None);
        assert_eq!(whole.last(), self.log.last());
        for number in self.point.at.number + 1..=self.log.last().number {
            let batch = read(&mut whole, number);
            let name = batch.name().expect("it has one");
            assert_eq!(self.log.term_of(number), Some(name.term));
            self.note(name, &batch);
        }
    }

    /// Takes note of a batch that is here, and compares it with what its leader made.
    fn note(&mut self, name: BatchName, batch: &BatchCopy) {
        let print = print(batch);
        let made = self.shared.borrow();
        let known = made.batches.get(&(name.number, name.term)).map(|(print, _)| *print);
        assert_eq!(known, Some(print), "{name} of member {}", self.seed);
        self.prints.insert(name.number, print);
        let change = batch.members().map(|bytes| (name.number, decode(&bytes)));
        self.changes.extend(change);
    }

    /// Takes note of the batches that the log made for itself.
    fn note_made(&mut self) {
        let mut next = self.prints.last_key_value().map_or(self.point.at.number, |(it, _)| *it) + 1;
        while next <= self.log.last().number {
            let batch = self.log.batch(next).expect("it is in memory");
            let name = batch.name().expect("it has one");
            let deeds = match self.waiting.iter().any(|it| it.name == name) {
                // The replica wanted it.
                true => Vec::new(),
                false => std::mem::take(&mut self.deeds),
            };
            let made = (print(&batch), deeds);
            let was = self.shared.borrow_mut().batches.insert((next, name.term), made);
            assert!(was.is_none(), "{name} is made twice");
            self.note(name, &batch);
            next += 1;
        }
    }

    /// Who holds what behind this batch.
    fn held_at(&self, number: u64) -> Held {
        let mut held = Held::new();
        let made = self.shared.borrow();
        for number in self.point.at.number + 1..=number {
            let term = self.log.term_of(number).expect("it is here");
            for deed in &made.batches[&(number, term)].1 {
                match deed {
                    Deed::Append(at, holders) => {
                        let was = held.insert(*at, holders.iter().map(|it| (*it, 0)).collect());
                        assert_eq!(was, None, "record {at} is there twice");
                    }
                    Deed::Release(at, holder) => {
                        let left = held.get_mut(at).expect("it is held");
                        left.retain(|(it, _)| it != holder);
                        if left.is_empty() {
                            held.remove(at);
                        }
                    }
                    Deed::Mark(at, holder, mark) => {
                        let all = held.get_mut(at).expect("it is held");
                        all.iter_mut().filter(|(it, _)| it == holder).for_each(|it| it.1 = *mark);
                    }
                }
            }
        }
        held
    }

    /// Something becomes of a record that somebody holds.
    fn change_held(&mut self, index: usize) {
        let (at, holder) = self.held[index];
        match (self.dice.below(6), self.volatile.contains_key(&at)) {
            (0, false) => {
                let mark = 1 + self.dice.below(9) as u8;
                self.log.mark(at, holder, mark).expect("it is held");
                self.deeds.push(Deed::Mark(at, holder, mark));
            }
            (0 | 1, true) => {
                self.log.persist(at).expect("it is held");
                let holders = self.volatile.remove(&at).expect("it is there");
                self.deeds.push(Deed::Append(at, holders));
            }
            (_, is_volatile) => {
                self.held.swap_remove(index);
                self.log.release(at, holder).expect("it is held");
                match self.volatile.get_mut(&at).filter(|_| is_volatile) {
                    Some(holders) => holders.retain(|it| *it != holder),
                    None => self.deeds.push(Deed::Release(at, holder)),
                }
            }
        }
    }

    fn found(log: &mut FileLog<SimDisk>) -> Held {
        let mut found = Held::new();
        log.recover(&mut |it| {
            let mut holders = it.holders.to_vec();
            holders.sort_unstable();
            found.insert(it.at, holders);
        });
        found
    }

    fn settle(&mut self) {
        while let Some(stored) =
            self.waiting.pop_front_if(|it| it.name.number <= self.log.stored().number)
        {
            self.done.push_back(stored);
        }
    }
}

impl Batches for Files {
    type Bytes = BatchCopy;

    fn point(&self) -> Point {
        self.point.clone()
    }

    fn last(&self) -> BatchName {
        self.log.last()
    }

    fn batch(&self, number: u64) -> Option<Batch> {
        let term = self.log.term_of(number).filter(|_| number > self.point.at.number)?;
        let name = BatchName { number, term };
        Some(Batch { name, change: self.changes.get(&number).cloned() })
    }

    fn agreed(&self) -> u64 {
        let applied = self.log.applied().map_or(0, |it| it.number);
        applied.max(self.point.at.number)
    }

    fn copy(&mut self, name: BatchName) -> Result<BatchCopy, NoBytes> {
        let is_to_come = self.waiting.iter().any(|it| it.name == name) && self.leads;
        match self.log.term_of(name.number) {
            Some(term) if term != name.term => return Err(NoBytes::Gone),
            Some(_) => {}
            None if is_to_come => return Err(NoBytes::ToCome),
            None => return Err(NoBytes::Gone),
        }
        match self.log.batch(name.number) {
            Ok(batch) if batch.name() == Some(name) => Ok(batch),
            Err(NoBatch::ToCome | NoBatch::NotYet) if self.leads => Err(NoBytes::ToCome),
            _ => Err(NoBytes::Gone),
        }
    }

    fn append(&mut self, batch: Batch, bytes: Option<BatchCopy>, cuts: u64) {
        let Batch { name, change } = batch;
        self.waiting.push_back(Stored { name, cuts });
        match (bytes, change) {
            (Some(bytes), change) => {
                assert_eq!(self.log.copy(&bytes), Ok(name));
                self.note(name, &bytes);
                assert_eq!(self.changes.get(&name.number), change.as_ref());
            }
            (None, None) => {
                self.log.begin_term(name.term);
                self.leads = true;
            }
            (None, Some(change)) => {
                self.log.append_members(&encode(&change)).expect("the log leads");
            }
        }
    }

    fn cut_from(&mut self, number: u64) {
        self.log.cut_from(number).expect("it is not agreed upon");
        self.waiting.retain(|it| it.name.number < number);
        self.prints.split_off(&number);
        self.changes.split_off(&number);
    }

    fn apply_to(&mut self, agreed: BatchName) {
        self.log.apply_to(agreed).expect("the log has no other batch");
        self.agreed = agreed;
    }

    fn install(&mut self, _: Point, _: u64) {
        unreachable!("nobody offers a snapshot");
    }

    fn collect(&mut self) -> Option<Stored> {
        self.done.pop_front()
    }
}

impl Store for Files {
    type Shared = Shared;

    const HAS_SNAPSHOTS: bool = false;

    /// All have the files of one, who was alone before.
    fn found(point: Point, seed: u64, shared: &Shared) -> Self {
        let mut made = shared.borrow_mut();
        let founder = made.founder.get_or_insert_with(|| {
            let disk = SimDisk::new(0);
            let mut log = open(&disk, 0, None);
            log.begin_term(point.at.term);
            leveret_log::suite::drive(&mut log);
            assert_eq!(log.last(), point.at);
            disk
        });
        let disk = founder.copy_whole(seed);
        drop(made);
        let files = Self {
            log: open(&disk, seed, Some(point.at)),
            disk,
            seed,
            point,
            leads: false,
            has_shard: false,
            capacity: None,
            agreed: BatchName::NONE,
            dice: Dice::new(seed),
            prints: BTreeMap::new(),
            changes: BTreeMap::new(),
            waiting: VecDeque::new(),
            done: VecDeque::new(),
            deeds: Vec::new(),
            held: Vec::new(),
            volatile: BTreeMap::new(),
            shared: shared.clone(),
        };
        files.stall(true);
        files
    }

    fn unsynced(&self) -> usize {
        usize::from(!self.disk.is_idle()) + self.waiting.len() + self.log.notes()
    }

    fn sync(&mut self, _: usize) {
        self.stall(false);
        for _ in 0..1 + self.dice.below(12) {
            self.log.sync_made().expect("the disk works");
            self.note_made();
        }
        self.stall(true);
        self.settle();
    }

    fn crash(&mut self, _: usize) {
        // Not only the machine may end, but the process alone, too.
        match self.dice.below(3) {
            0 => self.disk.kill(),
            _ => self.disk.crash(),
        }
        self.waiting.clear();
        self.done.clear();
        self.agreed = BatchName::NONE;
        self.follow();
    }

    fn lose(&mut self, _: usize) {
        unreachable!("nobody has a snapshot for who lost something");
    }

    fn begin_behind(&mut self, _: Point) {
        unreachable!("nobody has a snapshot for who lacks what is before");
    }

    fn print(&self, name: BatchName) -> Option<u64> {
        let is_here = self.log.term_of(name.number) == Some(name.term);
        self.prints.get(&name.number).copied().filter(|_| is_here)
    }

    fn own(&mut self, name: BatchName, what: u64, cuts: u64) -> bool {
        if !self.has_shard || self.log.last().number + 1 != name.number {
            return false;
        }
        for _ in 0..1 + self.dice.below(3) {
            let any = self.dice.below(self.held.len().max(1) as u64) as usize;
            if self.held.len() > 8 && self.dice.below(2) == 0 {
                self.change_held(any);
                continue;
            }
            let first = self.dice.below(HOLDERS);
            let holders: Vec<_> = (first..HOLDERS).map(Holder::new).collect();
            let len = if self.dice.below(20) == 0 { 5_000 } else { self.dice.below(300) };
            let body = vec![what as u8; len as usize];
            let keep = if self.dice.below(4) == 0 { Keep::Volatile } else { Keep::Durable };
            // There may be no room.
            let Ok(at) = self.log.append(&[1; 3], &[&body], &holders, keep) else { continue };
            self.held.extend(holders.iter().map(|holder| (at, *holder)));
            match keep {
                Keep::Durable => self.deeds.push(Deed::Append(at, holders)),
                Keep::Volatile => _ = self.volatile.insert(at, holders),
            }
        }
        self.log.sync().expect("the disk works");
        let is_made = self.log.last() == name;
        self.note_made();
        if is_made {
            self.waiting.push_back(Stored { name, cuts });
        }
        is_made
    }

    fn is_ready(&mut self, task: &Task) -> bool {
        let must_follow = match task {
            Task::Keep(..) => return true,
            // It is not to be confused with the first batch of the term, which may have to wait for the disk.
            Task::Make(Batch { change: Some(_), .. }) => return self.log.applied().is_none(),
            Task::Cut(_) | Task::Copy(_) | Task::Make(_) | Task::Install(_) => self.leads,
        };
        if must_follow && self.disk.is_idle() {
            self.settle();
            self.follow();
            self.settle();
        }
        !self.leads || !must_follow
    }

    fn leads(&mut self) -> Result<(), String> {
        let want = self.held_at(self.log.last().number);
        let found = Self::found(&mut self.log);
        if found != want {
            return Err(format!("leader {}: {found:?} is held, not {want:?}", self.seed));
        }
        let all = found.into_iter();
        let each = |(at, holders): (Offset, Vec<(Holder, u8)>)| {
            holders.into_iter().map(move |(holder, _)| (at, holder))
        };
        (self.held, self.has_shard) = (all.flat_map(each).collect(), true);
        Ok(())
    }

    fn deposed(&mut self) {
        self.has_shard = false;
    }

    fn check(&mut self) -> Result<(), String> {
        let Some(applied) = self.log.applied() else { return Ok(()) };
        let held = self.held_at(applied.number);
        let counts =
            |holder| held.values().flatten().filter(|(it, _)| *it == holder).count() as u64;
        for holder in (0..HOLDERS).map(Holder::new) {
            let (found, want) = (self.log.paged_out(holder).records, counts(holder));
            if found != want {
                let whose = format!("holder {holder:?} of member {}", self.seed);
                return Err(format!("{whose} has {found} and not {want} as of {applied}"));
            }
        }
        match self.log.usage().records == held.len() as u64 {
            true => Ok(()),
            false => Err(format!("member {} has other records as of {applied}", self.seed)),
        }
    }

    fn check_all(&mut self) -> Result<(), String> {
        self.stall(false);
        for _ in 0..1_000 {
            self.log.sync_made().expect("the disk works");
        }
        self.note_made();
        let copy = self.disk.copy_whole(1);
        let mut whole = open(&copy, 0, None);
        if (whole.last(), self.log.stored()) != (self.log.last(), self.log.last()) {
            return Err(format!("member {} does not come to rest", self.seed));
        }
        let (want, found) = (self.held_at(self.log.last().number), Self::found(&mut whole));
        for number in self.point.at.number + 1..=self.log.last().number {
            let batch = read(&mut whole, number);
            let name = batch.name().expect("it has one");
            self.note(name, &batch);
        }
        match found == want {
            true => Ok(()),
            false => Err(format!("member {}: {found:?} is held, not {want:?}", self.seed)),
        }
    }

    fn fill_disk(&mut self, is_full: bool) {
        self.capacity = is_full.then(|| self.disk.used() + 500);
        self.stall(true);
    }
}
