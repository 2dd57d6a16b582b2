//! The log as the engine sees it: names, and changes of members.

use std::collections::BTreeMap;

use raft::eraftpb::{
    ConfChangeSingle, ConfChangeType, ConfChangeV2, ConfState, Entry, EntryType, HardState,
    Snapshot,
};
use raft::{Error, GetEntriesContext, RaftState, Storage, StorageError};

use leveret_log::BatchName;

use crate::batches::{Batch, Batches, Point};
use crate::members::{Change, MemberId, Members, Step};
use crate::output::Word;

/// The least that an entry takes in a message of the engine's, in its bytes.
pub(crate) const ENTRY_BYTES: u64 = 4;

/// The names of the batches of a log, in a few runs of one term each.
#[derive(Debug)]
pub(crate) struct Entries {
    point: Point,
    /// The first number of each term behind the point, ascending.
    runs: Vec<(u64, u64)>,
    last: u64,
    changes: BTreeMap<u64, Change>,
    /// What the engine starts with.
    start: HardState,
    /// The members as of the last batch that the engine has applied.
    applied: Point,
    /// Members that a change was applied to, behind the point.
    history: Vec<(u64, Members)>,
}

impl Entries {
    /// Those of a log that is opened.
    pub(crate) fn of<B: Batches>(batches: &B, word: &Word) -> Self {
        let point = batches.point();
        let known = batches.applied().clamp(point.at.number, batches.last().number);
        let start = HardState {
            term: word.term,
            vote: word.vote.map_or(0, |id| id.0),
            commit: batches.agreed().clamp(known, batches.last().number),
            ..HardState::default()
        };
        let last = point.at.number;
        let (runs, changes, history) = Default::default();
        let mut entries =
            Self { applied: point.clone(), point, runs, last, changes, start, history };
        for number in last + 1..=batches.last().number {
            entries.extend(batches.batch(number));
        }
        entries.applied.at = entries.name_of(known).unwrap_or_default();
        entries
    }

    pub(crate) fn point(&self) -> &Point {
        &self.point
    }

    pub(crate) fn last(&self) -> BatchName {
        self.name_of(self.last).unwrap_or_default()
    }

    pub(crate) fn term_of(&self, number: u64) -> Option<u64> {
        if number == self.point.at.number {
            return Some(self.point.at.term);
        }
        let run = self.runs.partition_point(|(first, _)| *first <= number).checked_sub(1)?;
        (number <= self.last).then(|| self.runs[run].1)
    }

    pub(crate) fn name_of(&self, number: u64) -> Option<BatchName> {
        self.term_of(number).map(|term| BatchName { number, term })
    }

    pub(crate) fn has(&self, name: BatchName) -> bool {
        self.term_of(name.number) == Some(name.term)
    }

    /// The last batch that is not ahead of this one; 0 if there is none.
    pub(crate) fn last_not_above(&self, name: BatchName) -> u64 {
        if self.point.at > name {
            return 0;
        }
        let BatchName { number, term } = name;
        let next = self.runs.iter().find(|(_, of)| *of > term);
        let end = next.map_or(self.last, |(first, _)| first - 1);
        let is_of = self.term_of(end) == Some(term);
        if is_of { end.min(number) } else { end }
    }

    pub(crate) fn batch(&self, number: u64) -> Option<Batch> {
        let name = self.name_of(number)?;
        Some(Batch { name, change: self.changes.get(&number).cloned() })
    }

    /// Adds batches behind the last.
    pub(crate) fn extend(&mut self, batches: impl IntoIterator<Item = Batch>) {
        for Batch { name: BatchName { number, term }, change } in batches {
            assert_eq!(number, self.last + 1, "batches follow each other");
            if self.last().term != term || self.runs.is_empty() {
                self.runs.push((number, term));
            }
            self.last = number;
            self.changes.extend(change.map(|change| (number, change)));
        }
    }

    /// Removes this batch and all behind.
    pub(crate) fn cut_from(&mut self, number: u64) {
        assert!(number > self.point.at.number, "what is before the point stays");
        self.last = self.last.min(number - 1);
        self.runs.retain(|(first, _)| *first < number);
        self.changes.split_off(&number);
    }

    /// The log is a snapshot.
    pub(crate) fn install(&mut self, point: Point) {
        self.last = point.at.number;
        self.runs.clear();
        self.changes.clear();
        self.history.clear();
        self.applied = point.clone();
        self.point = point;
    }

    /// The point that the log would have if it began behind this batch, if that is applied. (Behind one that a start found it has the
    /// members that this knew.)
    pub(crate) fn point_at(&self, number: u64) -> Option<Point> {
        if number < self.point.at.number || number > self.applied.at.number {
            return None;
        }
        let changed = self.history.iter().rev().find(|(at, _)| *at <= number);
        let members = changed.map_or(&self.point.members, |(_, members)| members).clone();
        Some(Point { at: self.name_of(number)?, members })
    }

    /// What is up to this point was removed.
    pub(crate) fn begin_behind(&mut self, point: Point) {
        let number = point.at.number;
        let next = self.term_of(number + 1).map(|term| (number + 1, term));
        self.runs.retain(|(first, _)| *first > number + 1);
        self.runs.splice(0..0, next);
        self.changes = self.changes.split_off(&(number + 1));
        self.history.retain(|(at, _)| *at > number);
        self.point = point;
    }

    /// The engine has applied all up to this batch; what is a change there made these members.
    pub(crate) fn apply_to(&mut self, number: u64, changed: Option<Members>) {
        if let Some(members) = changed {
            self.applied.members = members.clone();
            self.history.push((number, members));
        }
        self.applied.at = self.name_of(number).unwrap_or_default();
    }

    pub(crate) fn members(&self) -> &Members {
        &self.applied.members
    }

    /// What a snapshot made now would end with.
    pub(crate) fn applied(&self) -> &Point {
        &self.applied
    }

    /// What the last change that names a member calls it.
    pub(crate) fn named(&self, id: MemberId) -> Option<&str> {
        let names = self.changes.values().rev().flat_map(|change| &change.names);
        names.into_iter().find(|(of, _)| *of == id).map(|(_, name)| name.as_str())
    }

    pub(crate) fn change_at(&self, number: u64) -> Option<&Change> {
        self.changes.get(&number)
    }
}

impl Storage for Entries {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.start.clone(), conf_state(&self.point.members)))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.point.at.number {
            return Err(Error::Store(StorageError::Compacted));
        }
        let most = max_size.into().map_or(u64::MAX, |bytes| bytes / ENTRY_BYTES).max(1);
        let end = high.min(low.saturating_add(most));
        let found = (low..end).map(|number| self.batch(number).as_ref().map(entry));
        found.collect::<Option<_>>().ok_or(Error::Store(StorageError::Unavailable))
    }

    fn term(&self, number: u64) -> raft::Result<u64> {
        if number < self.point.at.number {
            return Err(Error::Store(StorageError::Compacted));
        }
        self.term_of(number).ok_or(Error::Store(StorageError::Unavailable))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.point.at.number + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last)
    }

    /// The pair that was applied: with the members as of another batch a new one would not find itself among them.
    fn snapshot(&self, least: u64, to: u64) -> raft::Result<Snapshot> {
        let Point { at, members } = &self.applied;
        if at.number == 0 || at.number < least || !members.has(MemberId(to)) {
            return Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        }
        Ok(snapshot(&self.applied))
    }
}

/// An entry for the engine. What a change says it does not look at, but where it is proposed.
pub(crate) fn entry(batch: &Batch) -> Entry {
    let BatchName { number: index, term } = batch.name;
    let mut entry = Entry { index, term, ..Entry::default() };
    if batch.change.is_some() {
        entry.set_entry_type(EntryType::EntryConfChangeV2);
    }
    entry
}

pub(crate) fn snapshot(point: &Point) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let of = snapshot.mut_metadata();
    of.index = point.at.number;
    of.term = point.at.term;
    of.set_conf_state(conf_state(&point.members));
    snapshot
}

pub(crate) fn point(snapshot: &Snapshot) -> Point {
    let of = snapshot.get_metadata();
    let at = BatchName { number: of.index, term: of.term };
    Point { at, members: members(of.get_conf_state()) }
}

fn conf_state(members: &Members) -> ConfState {
    let ids = |of: &[MemberId]| of.iter().map(|id| id.0).collect::<Vec<_>>();
    let mut state = ConfState::from((ids(&members.voters), ids(&members.learners)));
    state.set_voters_outgoing(ids(&members.outgoing));
    state.set_learners_next(ids(&members.learners_next));
    state.auto_leave = !members.outgoing.is_empty();
    state
}

pub(crate) fn members(state: &ConfState) -> Members {
    let ids = |of: &[u64]| {
        let mut ids: Vec<_> = of.iter().map(|id| MemberId(*id)).collect();
        ids.sort_unstable();
        ids
    };
    Members {
        voters: ids(state.get_voters()),
        learners: ids(state.get_learners()),
        outgoing: ids(state.get_voters_outgoing()),
        learners_next: ids(state.get_learners_next()),
    }
}

pub(crate) fn conf_change(change: &Change) -> ConfChangeV2 {
    let mut made = ConfChangeV2::default();
    for step in &change.steps {
        let node_id = step.of().0;
        let mut single = ConfChangeSingle { node_id, ..ConfChangeSingle::default() };
        single.set_change_type(match step {
            Step::Voter(_) => ConfChangeType::AddNode,
            Step::Learner(_) => ConfChangeType::AddLearnerNode,
            Step::Remove(_) => ConfChangeType::RemoveNode,
        });
        made.mut_changes().push(single);
    }
    made
}
