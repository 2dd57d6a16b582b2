//! A log whose disk does what the test tells it, when it tells it: [`State::finish`] lets it finish the batch it
//! has, [`HandLog::crash`] gives what would come back.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::cell::{RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use leveret_log::disk::FileName;
use leveret_log::*;

/// The test's end of a log, and the log: clones are the same one.
#[derive(Clone, Debug, Default)]
pub(crate) struct HandLog(Rc<RefCell<State>>);

/// What log and disk have, for tests to look at and to change.
#[derive(Debug, Default)]
pub(crate) struct State {
    end: u64,
    durable: u64,
    /// Records that have a holder.
    pub(crate) held: BTreeMap<u64, Stored>,
    /// Those of them that are to be on disk and are not.
    unsafe_yet: BTreeSet<u64>,
    /// Not handed to the disk: records, those too that are not to be, and releases of others.
    open: BTreeSet<u64>,
    released: Vec<(u64, Holder)>,
    /// How many releases of others there were.
    noted: u64,
    /// What others have of it, if there are others.
    pub(crate) agreed: Option<Moment>,
    /// They have what the disk has finished.
    pub(crate) agrees: bool,
    /// What all of them have that are in contact; as much as is agreed upon, if that is not said.
    pub(crate) on_all: Option<Moment>,
    /// What the log was told of them.
    pub(crate) all_use: (bool, bool),
    /// What others do not have is not to be read: as of a log that several nodes have.
    pub(crate) reads_agreed: bool,
    /// At the disk.
    running: Option<Batch>,
    /// What a crash leaves.
    disk: BTreeMap<u64, Stored>,
    /// Where the last batch ends of it: offsets from there on are given to others after a crash.
    disk_end: u64,
    pub(crate) cold: BTreeSet<u64>,
    /// Asked for, and not brought yet.
    pub(crate) fetching: Vec<u64>,
    fetched: Vec<u64>,
    /// Asked for, and not to be read yet.
    withheld: BTreeSet<Offset>,
    failure: Option<SyncError>,
    /// What is to be written from now on is not, and nothing after it.
    pub(crate) fails: bool,
    /// It has no room for what is to be durable.
    pub(crate) is_full: bool,
    /// So many records more are taken, and then none: another one leads.
    pub(crate) takes: Option<u64>,
    /// Nothing should be appended but what gives room.
    pub(crate) is_short: bool,
    /// There is room for no record that is longer.
    pub(crate) len_max: Option<usize>,
    /// Cannot be read any more.
    pub(crate) damaged: BTreeSet<u64>,
    /// What was noted of records and their holders.
    pub(crate) marks: BTreeMap<(u64, u64), u8>,
    /// What holders have is told in sums where these will do.
    pub(crate) sums_up: bool,
    /// More of what the log kept cannot be read.
    pub(crate) cannot_tell: bool,
    /// Added to what is to be written.
    pub(crate) more_unwritten: u64,
    /// That is written, which is found when it is next looked.
    pub(crate) has_written_more: bool,
    pub(crate) written_bytes: u64,
    /// Batches that were handed to the disk.
    pub(crate) syncs: u64,
    /// Batches that it has finished.
    pub(crate) batches: usize,
}

/// A record.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    head: Vec<u8>,
    /// The head too.
    bytes: Vec<u8>,
    holders: BTreeSet<Holder>,
}

#[derive(Debug)]
struct Batch {
    written: BTreeMap<u64, Stored>,
    released: Vec<(u64, Holder)>,
    until: Moment,
}

impl HandLog {
    /// The other end.
    pub(crate) fn hand(&self) -> RefMut<'_, State> {
        self.0.borrow_mut()
    }

    /// What is there after the process ended just now, or the power.
    pub(crate) fn crash(&self) -> Self {
        let State { disk_end: end, ref disk, .. } = *self.hand();
        Self(Rc::new(RefCell::new(State {
            end,
            disk_end: end,
            durable: end,
            held: disk.clone(),
            cold: disk.keys().copied().collect(),
            disk: disk.clone(),
            ..State::default()
        })))
    }
}

impl State {
    /// The disk finishes what it was given, reads too; false when it had nothing.
    pub(crate) fn finish_any(&mut self) -> bool {
        let reads = !self.fetching.is_empty();
        self.finish() || reads
    }

    /// The disk finishes what it was given; false when it had nothing to write.
    pub(crate) fn finish(&mut self) -> bool {
        for at in std::mem::take(&mut self.fetching) {
            self.cold.remove(&at);
            self.fetched.push(at);
        }
        let Some(Batch { written, released, until }) = self.running.take() else { return false };
        if self.agrees {
            self.agreed = Some(until);
        }
        self.unsafe_yet.retain(|at| !written.contains_key(at));
        self.disk_end = until.end.get();
        // Released meanwhile or not: that is in the next batch.
        self.disk.extend(written);
        for (at, holder) in released {
            if let Some(stored) = self.disk.get_mut(&at) {
                stored.holders.remove(&holder);
            }
        }
        self.disk.retain(|_, stored| !stored.holders.is_empty());
        self.batches += 1;
        true
    }

    /// Offsets and holders that would be there after a crash now.
    pub(crate) fn on_disk(&self) -> Vec<(u64, Vec<u64>)> {
        let all = self.disk.iter();
        all.map(|(&at, stored)| (at, stored.holders.iter().map(|it| it.get()).collect())).collect()
    }

    /// The records that would be there after a crash now.
    pub(crate) fn bytes_on_disk(&self) -> BTreeMap<u64, Vec<u8>> {
        self.disk.iter().map(|(&at, stored)| (at, stored.bytes.clone())).collect()
    }

    /// Who holds what now.
    pub(crate) fn holders(&self) -> BTreeMap<u64, BTreeSet<u64>> {
        let all = self.held.iter();
        all.map(|(&at, stored)| (at, stored.holders.iter().map(|it| it.get()).collect())).collect()
    }

    /// Changes head and bytes of what is on the disk behind the log's back.
    pub(crate) fn damage(&mut self, change: impl Fn(&mut Vec<u8>, &mut Vec<u8>)) {
        self.disk.values_mut().for_each(|Stored { head, bytes, .. }| change(head, bytes));
    }

    /// Takes records off the disk behind the log's back.
    pub(crate) fn lose(&mut self, is_lost: impl Fn(&[u8]) -> bool) {
        self.disk.retain(|_, stored| !is_lost(&stored.bytes));
    }

    fn readable(&self) -> Offset {
        let agreed = self.agreed.filter(|_| self.reads_agreed);
        Offset::new(agreed.map_or(self.end, |moment| moment.end.get()))
    }

    fn withholds(&self, at: Offset) -> bool {
        at >= self.readable() && at.get() < self.end
    }

    /// What the next batch has of records.
    fn to_write(&self) -> impl Iterator<Item = (&u64, &Stored)> {
        let open = self.open.iter().filter(|at| self.unsafe_yet.contains(at));
        open.filter_map(|at| self.held.get_key_value(at))
    }

    /// Whether all is on the disk that is to be.
    fn is_written(&self) -> bool {
        self.running.is_none() && self.released.is_empty() && self.to_write().next().is_none()
    }

    fn collect(&mut self) -> Result<(), SyncError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        if std::mem::take(&mut self.has_written_more) {
            self.more_unwritten = 0;
        }
        let first = self.unsafe_yet.first().copied();
        self.durable = self.durable.max(first.unwrap_or(self.end));
        if self.agrees && self.is_written() {
            // What needs no batch is passed.
            self.agreed = Some(Moment { end: Offset::new(self.end), notes: self.noted });
        }
        if self.fails && first.is_some() {
            let reason = "no such luck".to_owned();
            let failure = SyncError { durable: Offset::new(self.durable), reason };
            self.failure = Some(failure.clone());
            return Err(failure);
        }
        Ok(())
    }

    fn unwritten(&self) -> u64 {
        let running = self.running.iter().flat_map(|batch| &batch.written);
        let records = self.to_write().chain(running).map(|(_, stored)| stored.bytes.len() as u64);
        records.sum::<u64>() + self.released.len() as u64 * 16 + self.more_unwritten
    }
}

impl Log for HandLog {
    fn append(
        &mut self,
        head: &[u8],
        parts: &[&[u8]],
        holders: &[Holder],
        keep: Keep,
    ) -> Result<Offset, AppendError> {
        let mut state = self.hand();
        if state.failure.is_some() {
            return Err(AppendError::Failed);
        }
        if let Some(takes) = &mut state.takes {
            *takes = takes.checked_sub(1).ok_or(AppendError::NoTerm)?;
        }
        let len = head.len() + parts.iter().map(|part| part.len()).sum::<usize>();
        let is_too_long = state.len_max.is_some_and(|max| len > max);
        if keep == Keep::Durable && (state.is_full || is_too_long) {
            return Err(AppendError::Full);
        }
        let at = state.end;
        state.end += 1;
        if !holders.is_empty() {
            let bytes = [head, &parts.concat()].concat();
            let holders = holders.iter().copied().collect();
            state.held.insert(at, Stored { head: head.to_vec(), bytes, holders });
            state.open.insert(at);
            if keep == Keep::Durable {
                state.unsafe_yet.insert(at);
            }
        }
        Ok(Offset::new(at))
    }

    fn is_short(&self) -> bool {
        let state = self.hand();
        state.is_short || state.is_full
    }

    fn last_room(&self) -> u64 {
        let state = self.hand();
        if state.is_full { 0 } else { state.len_max.map_or(u64::MAX, |max| max as u64) }
    }

    fn persist(&mut self, at: Offset) -> Result<Offset, HoldError> {
        let mut state = self.hand();
        if !state.held.contains_key(&at.get()) {
            return Err(HoldError::Released { at });
        }
        if state.open.contains(&at.get()) {
            state.unsafe_yet.insert(at.get());
        }
        if at.get() >= state.running.as_ref().map_or(state.durable, |it| it.until.end.get()) {
            // The next batch has it in its place.
            return Ok(at.next());
        }
        // A hole, as `durable` may be at the end already and cannot go back.
        state.end += 1;
        Ok(Offset::new(state.end))
    }

    fn readable(&self) -> Offset {
        self.0.borrow().readable()
    }

    fn durable(&self) -> Offset {
        Offset::new(self.0.borrow().durable)
    }

    fn end(&self) -> Offset {
        Offset::new(self.0.borrow().end)
    }

    fn read(&self, at: Offset) -> Result<Record, ReadError> {
        let state = self.0.borrow();
        if state.withholds(at) {
            return Err(ReadError::NotReadable { at, readable: state.readable() });
        }
        self.read_uncommitted(at)
    }

    fn read_uncommitted(&self, at: Offset) -> Result<Record, ReadError> {
        let state = self.0.borrow();
        if state.damaged.contains(&at.get()) {
            return Err(ReadError::Damaged { at, file: FileName::default(), position: 0 });
        }
        if state.cold.contains(&at.get()) {
            return Err(ReadError::Cold { at });
        }
        let stored = state.held.get(&at.get()).ok_or(ReadError::Released { at })?;
        Ok(Record { bytes: stored.bytes.clone().into() })
    }

    fn is_held(&self, at: Offset, holder: Holder) -> bool {
        self.0.borrow().held.get(&at.get()).is_some_and(|it| it.holders.contains(&holder))
    }

    fn fetch(&mut self, soon: &[Offset]) {
        let state = &mut *self.hand();
        let (withheld, soon): (Vec<Offset>, Vec<Offset>) =
            soon.iter().partition(|at| state.withholds(**at));
        state.withheld.extend(withheld);
        state.fetching.extend(soon.iter().map(|at| at.get()));
    }

    fn is_asked(&self, at: Offset) -> bool {
        let state = self.0.borrow();
        state.withholds(at) || state.fetching.contains(&at.get())
    }

    fn fetch_ahead(&mut self, soon: &[Offset]) {
        self.fetch(soon);
    }

    fn each_fetched(&mut self, each: &mut dyn FnMut(Offset)) {
        let mut state = self.hand();
        let fetched = std::mem::take(&mut state.fetched);
        let readable = state.readable();
        let later = state.withheld.split_off(&readable);
        let readable = std::mem::replace(&mut state.withheld, later);
        drop(state);
        fetched.into_iter().map(Offset::new).chain(readable).for_each(each);
    }

    fn release(&mut self, at: Offset, holder: Holder) -> Result<(), HoldError> {
        let state = &mut *self.hand();
        let number = at.get();
        let stored = state.held.get_mut(&number).ok_or(HoldError::Released { at })?;
        stored.holders.remove(&holder);
        let is_last = stored.holders.is_empty();
        if is_last {
            state.held.remove(&number);
        }
        if !state.open.contains(&number) {
            state.released.push((number, holder));
            state.noted += 1;
        } else if is_last {
            state.open.remove(&number);
            state.unsafe_yet.remove(&number);
        }
        Ok(())
    }

    fn mark(&mut self, at: Offset, holder: Holder, mark: u8) -> Result<(), HoldError> {
        self.hand().marks.insert((at.get(), holder.get()), mark);
        Ok(())
    }

    fn own(&mut self, each: &mut dyn FnMut(Offset, &[u8])) {
        let hand = self.0.borrow();
        let own = hand.held.iter().filter(|(_, stored)| stored.holders.contains(&Holder::OWNER));
        own.for_each(|(&at, stored)| each(Offset::new(at), &stored.head));
    }

    fn recover(&mut self, each: &mut dyn FnMut(Recovered<'_>)) {
        for (&at, stored) in &self.0.borrow().held {
            let holders: Vec<_> = stored.holders.iter().map(|&holder| (holder, 0)).collect();
            each(Recovered { at: Offset::new(at), head: &stored.head, holders: &holders });
        }
    }

    /// Each record by itself: its holders may be counted, or are told of.
    fn recover_sums(
        &mut self,
        apart: &[Range<Offset>],
        enough: RecoveryLimits,
        to: &mut dyn RecoverySink,
    ) {
        let (mut left, sums_up) = (enough.records, self.hand().sums_up);
        let mut sums = Vec::new();
        self.recover(&mut |Recovered { at, head, holders }| {
            let is_apart = apart.iter().any(|range| range.contains(&at));
            let will_do = sums_up
                && !is_apart
                && holders.iter().all(|&(holder, _)| to.takes_sum(holder, left == 0));
            if !will_do {
                left = left.saturating_sub(1);
                return to.run(RecoveredRun { at, count: 1, head, holders });
            }
            let RecordWeight { bytes, persistent } = leveret_broker::record::weigh(head);
            let (persistent, offsets) = (persistent == Some(true), at..at.next());
            let of = |all: u64| if persistent { all } else { 0 };
            let (persistent, persistent_bytes) = (of(1), of(bytes));
            let sum = RecoveredSum { offsets, count: 1, bytes, persistent, persistent_bytes };
            sums.extend(holders.iter().map(|&(holder, _)| (holder, sum.clone())));
        });
        sums.into_iter().for_each(|(holder, sum)| to.sum(holder, sum));
    }

    fn recover_more(
        &mut self,
        from: Offset,
        most: RecoveryLimits,
        each: &mut dyn FnMut(Recovered<'_>),
    ) -> Result<Option<Offset>, SyncError> {
        if self.hand().cannot_tell {
            let (durable, reason) = (self.durable(), "a file cannot be read".to_owned());
            self.hand().failure = Some(SyncError { durable, reason });
        }
        self.hand().collect()?;
        let (mut looked_at, mut next) = (0, None);
        self.recover(&mut |record| {
            if record.at >= from && looked_at < most.records {
                looked_at += 1;
                each(record);
            } else if record.at >= from && next.is_none() {
                next = Some(record.at);
            }
        });
        Ok(next)
    }

    fn collect(&mut self) -> Result<(), SyncError> {
        self.hand().collect()
    }

    fn sync(&mut self) -> Result<(), SyncError> {
        self.sync_until(self.moment())
    }

    fn sync_until(&mut self, until: Moment) -> Result<(), SyncError> {
        let state = &mut *self.hand();
        state.collect()?;
        if state.running.is_some() {
            return Ok(());
        }
        let old = state.to_write().filter(|(at, _)| **at < until.end.get());
        let written: BTreeMap<u64, Stored> =
            old.map(|(&at, stored)| (at, stored.clone())).collect();
        if written.is_empty() && state.released.is_empty() {
            return Ok(());
        }
        state.open.retain(|at| !written.contains_key(at));
        state.written_bytes += written.values().map(|it| it.bytes.len() as u64).sum::<u64>();
        state.syncs += 1;
        let released = std::mem::take(&mut state.released);
        state.running = Some(Batch { written, released, until });
        Ok(())
    }

    fn moment(&self) -> Moment {
        Moment { end: self.end(), notes: self.0.borrow().noted }
    }

    fn agreed(&self) -> Option<Moment> {
        self.0.borrow().agreed
    }

    fn on_all(&self) -> Option<Moment> {
        let state = self.0.borrow();
        state.agreed.map(|agreed| state.on_all.unwrap_or(agreed))
    }

    fn use_all(&mut self, is_used: bool, is_awaited: bool) {
        self.hand().all_use = (is_used, is_awaited);
    }

    fn under_way(&self) -> Option<BatchUnderWay> {
        let state = self.0.borrow();
        let lens = state.running.as_ref()?.written.values().map(|it| it.bytes.len() as u64);
        Some(BatchUnderWay { number: state.batches as u64, bytes: lens.sum() })
    }

    fn notes(&self) -> usize {
        self.0.borrow().released.len()
    }

    fn usage(&self) -> Usage {
        let state = self.0.borrow();
        Usage {
            records: state.held.len() as u64,
            live_bytes: state.held.values().map(|it| it.bytes.len() as u64).sum(),
            unwritten_bytes: state.unwritten(),
            ..Usage::default()
        }
    }
}
