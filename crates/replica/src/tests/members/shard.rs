//! A shard over a lent log, and what all shards did: who holds what is known from that for each batch.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use leveret_log::disk::SimDisk;
use leveret_log::file::BatchCopy;
use leveret_log::{BatchName, FileLog, Holder, Keep, Log, Moment, Offset, ReadError};

use crate::GroupLog;
use crate::dice::Dice;

pub(super) const HOLDERS: u64 = 4;

/// Something that a shard did.
#[derive(Clone, Debug)]
enum Deed {
    Append(Offset, Vec<Holder>),
    Release(Offset, Holder),
    Mark(Offset, Holder, u8),
}

/// Who holds what, with the mark of each.
pub(super) type Held = BTreeMap<Offset, Vec<(Holder, u8)>>;

/// All batches that any leader made, and what is agreed upon.
#[derive(Debug, Default)]
pub(super) struct Made {
    /// What is in each, in one number, and what its leader's shard had done.
    batches: BTreeMap<(u64, u64), (u64, Vec<Deed>)>,
    /// The term of each batch that some member called agreed.
    pub(super) agreed: BTreeMap<u64, u64>,
    /// Clients were told of what is up to here.
    pub(super) told: u64,
}

pub(super) type SharedMade = Rc<RefCell<Made>>;

/// What a batch is to all members: all but what the writer's disk had synced.
pub(super) fn print(batch: &BatchCopy) -> u64 {
    let mut bytes = batch.pieces.concat();
    bytes[40..48].fill(0);
    bytes[108..112].fill(0);
    let place = [batch.segment.to_le_bytes(), batch.position.to_le_bytes()].concat();
    let first = crc32c::crc32c(&[&place[..], &batch.beginning].concat());
    u64::from(first) << 32 | u64::from(crc32c::crc32c(&bytes))
}

impl Made {
    /// A leader made this batch.
    fn make(&mut self, batch: &BatchCopy, deeds: Vec<Deed>) {
        let name = batch.name().expect("it has one");
        let was = self.batches.insert((name.number, name.term), (print(batch), deeds));
        assert!(was.is_none(), "{name} is made twice");
    }

    /// Whether this batch is what its leader made.
    pub(super) fn check(&self, batch: &BatchCopy) -> Result<(), String> {
        let name = batch.name().ok_or("a batch has no name")?;
        match self.batches.get(&(name.number, name.term)) {
            Some((made, _)) if *made == print(batch) => Ok(()),
            Some(_) => Err(format!("{name} has other bytes")),
            None => Err(format!("{name} was made by nobody")),
        }
    }

    pub(super) fn name_of(&self, number: u64) -> Option<BatchName> {
        self.agreed.get(&number).map(|&term| BatchName { number, term })
    }

    pub(super) fn is_agreed(&self, name: BatchName) -> bool {
        self.agreed.get(&name.number) == Some(&name.term)
    }

    /// The batches that a member made for its replica, before a shard had its log.
    pub(super) fn take_own(&mut self, log: &mut FileLog<SimDisk>) {
        let last = log.last();
        let is_known = |number, made: &Self| {
            let term = log.term_of(number).unwrap_or(0);
            term != last.term || made.batches.contains_key(&(number, term))
        };
        let mut first = last.number + 1;
        while first > 1 && !is_known(first - 1, self) {
            first -= 1;
        }
        for number in first..=last.number {
            let batch = log.batch(number).expect("it is in memory");
            self.make(&batch, Vec::new());
        }
    }

    /// Who holds what behind these batches.
    pub(super) fn held_at(&self, names: impl Iterator<Item = BatchName>) -> Held {
        let mut held = Held::new();
        for BatchName { number, term } in names {
            for deed in &self.batches[&(number, term)].1 {
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
}

/// What a log tells that was just opened.
pub(super) fn found(log: &mut impl Log) -> Held {
    let mut found = Held::new();
    log.recover(&mut |it| {
        let mut holders = it.holders.to_vec();
        holders.sort_unstable();
        found.insert(it.at, holders);
    });
    found
}

/// A shard.
pub(super) struct Shard {
    pub(super) log: GroupLog<SimDisk>,
    dice: Dice,
    /// The last batch that was noted.
    noted: u64,
    deeds: Vec<Deed>,
    held: Vec<(Offset, Holder)>,
    /// Those of its records that no other leader has.
    volatile: BTreeMap<Offset, Vec<Holder>>,
    /// Its batches, and how far it was when it handed each over.
    ends: Vec<(BatchName, Moment)>,
    /// Those that not all members in contact have, and the number of the last one that they do.
    not_on_all: Vec<(u64, Moment)>,
    pub(super) on_all: u64,
    /// Records of this shard, and the batch of each.
    written: BTreeMap<Offset, Option<BatchName>>,
    /// What it waits for.
    asked: BTreeSet<Offset>,
    made: SharedMade,
}

impl Shard {
    /// Over a log that holds this.
    pub(super) fn new(
        mut log: GroupLog<SimDisk>,
        want: &Held,
        seed: u64,
        made: &SharedMade,
    ) -> Result<Self, String> {
        let found = found(&mut log);
        if found != *want {
            return Err(format!("a leader holds {found:?}, not {want:?}"));
        }
        let each = |(at, holders): (Offset, Vec<(Holder, u8)>)| {
            holders.into_iter().map(move |(holder, _)| (at, holder))
        };
        made.borrow_mut().take_own(&mut log);
        Ok(Self {
            noted: log.last().number,
            held: found.into_iter().flat_map(each).collect(),
            log,
            dice: Dice::new(seed),
            deeds: Vec::new(),
            volatile: BTreeMap::new(),
            ends: Vec::new(),
            not_on_all: Vec::new(),
            on_all: 0,
            written: BTreeMap::new(),
            asked: BTreeSet::new(),
            made: made.clone(),
        })
    }

    /// A turn: takes in what came, does something if it `works`, and hands it over.
    pub(super) fn turn(&mut self, works: bool) -> Result<(), String> {
        self.collect()?;
        for _ in 0..if works { 1 + self.dice.below(3) } else { 0 } {
            self.act();
        }
        self.ask();
        // Not each turn ends with a batch.
        if works && self.dice.below(5) > 0 || self.log.notes() > 0 {
            self.sync()?;
        }
        self.collect()
    }

    /// Hands over all there is.
    pub(super) fn sync(&mut self) -> Result<(), String> {
        let moment = self.log.moment();
        self.log.sync().map_err(|error| error.to_string())?;
        self.note(moment);
        self.check()
    }

    fn collect(&mut self) -> Result<(), String> {
        let moment = self.log.moment();
        self.log.collect().map_err(|error| error.to_string())?;
        self.note(moment);
        let asked = &mut self.asked;
        self.log.each_fetched(&mut |at| _ = asked.remove(&at));
        self.check()
    }

    /// Takes note of what the log made of all that was done until a moment.
    fn note(&mut self, moment: Moment) {
        while self.noted < self.log.last().number {
            self.noted += 1;
            let batch = self.log.batch(self.noted).expect("it is in memory");
            let name = batch.name().expect("it has one");
            let deeds = match batch.members() {
                Some(_) => Vec::new(),
                None => std::mem::take(&mut self.deeds),
            };
            if batch.members().is_none() {
                let open = self.written.values_mut().filter(|it| it.is_none());
                open.for_each(|it| *it = Some(name));
                self.ends.push((name, moment));
                self.not_on_all.push((name.number, moment));
            }
            self.made.borrow_mut().make(&batch, deeds);
        }
    }

    /// Whether all that may be told is agreed upon.
    fn check(&mut self) -> Result<(), String> {
        let mut made = self.made.borrow_mut();
        let agreed = self.log.agreed().ok_or("it has no others")?;
        let early = |name| format!("{name} is told of, and not agreed upon");
        while let Some((name, moment)) = self.ends.first().copied() {
            if !agreed.reaches(moment) {
                break;
            }
            if !made.is_agreed(name) {
                return Err(early(name));
            }
            made.told = made.told.max(name.number);
            self.ends.remove(0);
        }
        let on_all = self.log.on_all().ok_or("it has no others")?;
        if !agreed.reaches(on_all) {
            return Err(format!("{on_all:?} is on all, and {agreed:?} agreed"));
        }
        while let Some((number, moment)) = self.not_on_all.first().copied() {
            if !on_all.reaches(moment) {
                break;
            }
            self.on_all = number;
            self.not_on_all.remove(0);
        }
        let readable = self.log.readable();
        if readable != agreed.end || self.log.durable() != readable {
            return Err(format!("{readable} is readable, and {agreed:?} agreed"));
        }
        let late = |name: &Option<BatchName>| name.is_none_or(|name| !made.is_agreed(name));
        let open = self.written.iter().find(|(at, name)| **at < readable && late(name));
        if let Some((at, name)) = open {
            return Err(format!("record {at}: {}", early(name.unwrap_or_default())));
        }
        self.written.retain(|at, _| *at >= readable);
        Ok(())
    }

    fn act(&mut self) {
        let any = self.dice.below(self.held.len().max(1) as u64) as usize;
        if self.held.len() > 8 && self.dice.below(2) == 0 {
            return self.change_held(any);
        }
        let first = self.dice.below(HOLDERS);
        let holders: Vec<_> = (first..HOLDERS).map(Holder::new).collect();
        let len = if self.dice.below(20) == 0 { 5_000 } else { self.dice.below(300) };
        let body = vec![self.dice.below(256) as u8; len as usize];
        let keep = if self.dice.below(4) == 0 { Keep::Volatile } else { Keep::Durable };
        // There may be no room.
        let Ok(at) = self.log.append(&[1; 3], &[&body], &holders, keep) else { return };
        self.held.extend(holders.iter().map(|holder| (at, *holder)));
        match keep {
            Keep::Durable => {
                self.deeds.push(Deed::Append(at, holders));
                self.written.insert(at, None);
            }
            Keep::Volatile => _ = self.volatile.insert(at, holders),
        }
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
                if !self.held.iter().any(|(it, _)| *it == at) {
                    // Nobody reads it any more.
                    self.written.remove(&at);
                    self.asked.remove(&at);
                }
            }
        }
    }

    /// Asks for a record that is to come.
    fn ask(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let any = self.dice.below(self.held.len() as u64) as usize;
        // The newest is the one that is not readable yet.
        let newest = self.held.iter().map(|(at, _)| *at).max();
        for at in newest.into_iter().chain([self.held[any].0]) {
            match self.log.read(at) {
                Err(error) if error.is_to_come() => {
                    self.log.fetch(&[at]);
                    self.asked.insert(at);
                }
                Ok(_) => {}
                // Its batch may be on its way to the disk, and not in memory any more.
                Err(ReadError::Damaged { .. }) => {}
                Err(error) => panic!("record {at}: {error}"),
            }
        }
    }

    /// Whether nothing waits any more.
    pub(super) fn is_at_rest(&self) -> bool {
        let moment = self.log.moment();
        let is_agreed = self.log.agreed().is_some_and(|it| it.reaches(moment));
        let is_on_all = self.log.on_all().is_some_and(|it| it.reaches(moment));
        is_agreed && is_on_all && self.asked.is_empty() && self.log.notes() == 0
    }
}
