//! What a node of the world runs: it appends to the logs that it leads, and follows the names that another one leads.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use leveret_link::hello::NodeFacts;
use leveret_log::disk::SimDisk;
use leveret_log::file::BatchContents;
use leveret_log::{BatchName, Holder, Keep, Log as _, Offset};
use leveret_replica::{Content, GroupLog};

use crate::dice::Dice;

/// Who is there at most.
const HOLDER: Holder = Holder::new(1);

/// What was confirmed, by group: the record at an offset.
type Confirmed = Rc<RefCell<BTreeMap<(u64, Offset), u64>>>;

/// What all nodes of a world have together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared {
    confirmed: Confirmed,
    pub(crate) told: SharedTold,
    /// Names go, too: then files go.
    pub(crate) lets_names_go: Rc<Cell<bool>>,
}

impl Shared {
    /// How far each group has confirmed: names go meanwhile, so a count of them says nothing.
    pub(crate) fn confirmed(&self) -> BTreeMap<u64, Offset> {
        self.confirmed.borrow().keys().copied().collect()
    }
}

/// What the log of names is about, as followers are told.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// The same to all: a sum of all that is there as of a batch.
    as_of: BTreeMap<u64, (u64, u32)>,
    /// How often a node that began to lead had been told all, and how often not.
    pub(crate) whole: u64,
    pub(crate) parts: u64,
}

type SharedTold = Rc<RefCell<Told>>;

type Records = BTreeMap<Offset, Bytes>;

/// Follows the log of names.
#[derive(Debug, Default)]
struct Follower {
    records: Records,
    is_whole: bool,
}

impl Follower {
    fn take(&mut self, content: Content, told: &SharedTold) {
        match content {
            Content::Anew => *self = Self::default(),
            Content::Records(records) => self.records.extend(records),
            Content::Batch(BatchContents { records, volatile, persisted, released, .. }) => {
                assert!(volatile.is_empty() && persisted.is_empty(), "nobody makes such");
                self.records.extend(records);
                released.iter().for_each(|(at, _)| drop(self.records.remove(at)));
            }
            Content::UpTo(name) => {
                self.is_whole = true;
                self.check(name, told);
            }
            Content::Lent { .. } => {}
        }
    }

    /// Nobody else has anything else as of this batch.
    fn check(&self, BatchName { number, term }: BatchName, told: &SharedTold) {
        let mut bytes = Vec::new();
        for (at, record) in &self.records {
            bytes.extend(at.get().to_le_bytes());
            bytes.extend(&record[..]);
        }
        let sum = (term, crc32c::crc32c(&bytes));
        let was = *told.borrow_mut().as_of.entry(number).or_insert(sum);
        assert_eq!(was, sum, "batch {number}: {} records", self.records.len());
    }

    /// The log has what was told.
    fn check_found(&self, found: &BTreeMap<Offset, u64>) {
        let which = |record: &Bytes| u64::from_le_bytes(record[..8].try_into().unwrap());
        let records: BTreeMap<_, _> =
            self.records.iter().map(|(at, record)| (*at, which(record))).collect();
        assert_eq!(records, *found);
    }
}

/// Logs that are lent.
struct Lent {
    /// Names that are held and agreed upon.
    held: Vec<Offset>,
    /// What the log of names had.
    found: BTreeMap<Offset, u64>,
    logs: Vec<GroupLog<SimDisk>>,
    wakes: Vec<Arc<AtomicBool>>,
    /// What was appended and is not confirmed: group, offset, which.
    waiting: Vec<(usize, Offset, u64)>,
}

/// See the [module](self).
pub(crate) struct Broker {
    name: String,
    shared: Shared,
    logs: Option<Lent>,
    follower: Follower,
}

impl Broker {
    /// Of a node with this name, which others know so.
    pub(crate) fn new(facts: NodeFacts, shared: &Shared) -> Self {
        Self {
            name: facts.name.into(),
            shared: shared.clone(),
            logs: None,
            follower: Follower::default(),
        }
    }

    pub(crate) fn leads(&self) -> bool {
        self.logs.is_some()
    }

    /// News of the names that another node leads.
    pub(crate) fn names(&mut self, content: Content) {
        if let (Content::Lent { is_whole }, Some(lent)) = (&content, &self.logs) {
            let mut told = self.shared.told.borrow_mut();
            if *is_whole {
                assert!(self.follower.is_whole);
                self.follower.check_found(&lent.found);
                told.whole += 1;
            } else {
                told.parts += 1;
            }
        } else {
            self.follower.take(content, &self.shared.told);
        }
    }

    /// A log of a group that it leads wants to be looked at.
    pub(crate) fn wake(&mut self, group: u64) {
        if let Some(lent) = &mut self.logs {
            lent.logs[group as usize].sync().expect("its disk works");
        }
    }

    /// It leads all groups, in these terms, and has their logs. `wakes` are set by the logs.
    pub(crate) fn lead(
        &mut self,
        logs: Vec<(u64, GroupLog<SimDisk>)>,
        wakes: Vec<Arc<AtomicBool>>,
    ) {
        let mut logs: Vec<_> = logs.into_iter().map(|(_, log)| log).collect();
        let mut names = BTreeMap::new();
        for (group, log) in (0..).zip(&mut logs) {
            let mut found = BTreeMap::new();
            log.recover(&mut |it| {
                found.insert(it.at, u64::from_le_bytes(it.head.try_into().unwrap()));
            });
            for ((of, at), which) in &*self.shared.confirmed.borrow() {
                let there = found.get(at);
                assert!(
                    *of != group || there == Some(which),
                    "{} leads group {group} without record {which} at {at}: {there:?}",
                    self.name
                );
            }
            if group == 0 {
                names = found;
            }
        }
        let held = names.keys().copied().collect();
        self.logs = Some(Lent { logs, wakes, waiting: Vec::new(), held, found: names });
    }

    /// It appends, and confirms what is agreed upon. The groups whose members have to look at their logs.
    pub(crate) fn work(&mut self, is_stopping: bool, dice: &mut Dice) -> Vec<u64> {
        let Some(lent) = &mut self.logs else { return Vec::new() };
        for (group, log) in lent.logs.iter_mut().enumerate() {
            if dice.one_in(4) && !is_stopping {
                let which = dice.next();
                let body = vec![7; dice.below(300) as usize];
                let at = log.append(&which.to_le_bytes(), &[&body], &[HOLDER], Keep::Durable);
                lent.waiting.extend(at.map(|at| (group, at, which)));
            }
            // A name goes.
            let goes = group == 0 && self.shared.lets_names_go.get() && !lent.held.is_empty();
            if goes && dice.one_in(6) {
                let at = dice.below(lent.held.len() as u64) as usize;
                let at = lent.held.swap_remove(at);
                log.release(at, HOLDER).expect("it is held");
                self.shared.confirmed.borrow_mut().remove(&(0, at));
            }
            log.sync().expect("its disk works");
        }
        let logs = &lent.logs;
        for (group, at, which) in lent.waiting.extract_if(.., |it| logs[it.0].durable() > it.1) {
            let was = self.shared.confirmed.borrow_mut().insert((group as u64, at), which);
            assert_eq!(was, None, "{}: group {group} agreed upon {at} twice", self.name);
            if group == 0 {
                lent.held.push(at);
            }
        }
        let wakes = (0..).zip(&lent.wakes);
        wakes.filter(|(_, wake)| wake.swap(false, Ordering::Relaxed)).map(|it| it.0).collect()
    }
}
