//! A log whose disk does what the test tells it, when it tells it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use leveret_log::*;

/// The test's end of a log, and the log: clones are the same one.
#[derive(Clone, Debug, Default)]
pub(crate) struct HandLog(Rc<RefCell<State>>);

#[derive(Debug, Default)]
struct State {
    end: u64,
    durable: u64,
    /// Records that have a holder.
    held: BTreeMap<u64, Stored>,
    /// Those of them that are not on disk.
    unsafe_yet: BTreeSet<u64>,
    /// Not handed to the disk, and what it works on.
    open: Vec<Op>,
    running: Option<Vec<Op>>,
    /// What a crash leaves.
    disk: BTreeMap<u64, Stored>,
    cold: BTreeSet<u64>,
    fetching: Vec<u64>,
    failure: Option<SyncError>,
    fails: bool,
    is_full: bool,
    batches: usize,
}

/// Head, and all bytes.
type Stored = (Vec<u8>, Vec<u8>);

#[derive(Debug)]
enum Op {
    Append(u64, Stored),
    Release(u64),
}

impl HandLog {
    /// The disk finishes what it was given, reads too; false when it had nothing.
    pub(crate) fn finish_any(&self) -> bool {
        let reads = !self.0.borrow().fetching.is_empty();
        self.finish() || reads
    }

    /// The disk finishes what it was given; false when it had nothing.
    pub(crate) fn finish(&self) -> bool {
        let state = &mut *self.0.borrow_mut();
        for at in std::mem::take(&mut state.fetching) {
            state.cold.remove(&at);
        }
        let Some(batch) = state.running.take() else { return false };
        for op in batch {
            match op {
                // Released meanwhile or not: that is in the next batch.
                Op::Append(at, record) => {
                    state.disk.insert(at, record);
                    state.unsafe_yet.remove(&at);
                }
                Op::Release(at) => drop(state.disk.remove(&at)),
            }
        }
        state.batches += 1;
        true
    }

    /// The next sync fails, and all after it.
    pub(crate) fn break_down(&self) {
        self.0.borrow_mut().fails = true;
    }

    pub(crate) fn set_full(&self, is_full: bool) {
        self.0.borrow_mut().is_full = is_full;
    }

    /// How many batches the disk has finished.
    pub(crate) fn batches(&self) -> usize {
        self.0.borrow().batches
    }

    /// Records that have a holder.
    pub(crate) fn held(&self) -> usize {
        self.0.borrow().held.len()
    }

    /// What is there after the process ended just now, or the power.
    pub(crate) fn crash(&self) -> Self {
        let state = self.0.borrow();
        Self(Rc::new(RefCell::new(State {
            end: state.end,
            durable: state.end,
            held: state.disk.clone(),
            cold: state.disk.keys().copied().collect(),
            disk: state.disk.clone(),
            ..State::default()
        })))
    }

    /// Changes bytes on the disk behind the log's back.
    pub(crate) fn damage(&self, change: impl Fn(&mut Vec<u8>, &mut Vec<u8>)) {
        let state = &mut *self.0.borrow_mut();
        state.disk.values_mut().for_each(|(head, bytes)| change(head, bytes));
    }

    /// Takes records off the disk behind the log's back.
    pub(crate) fn lose(&self, is_lost: impl Fn(&[u8]) -> bool) {
        self.0.borrow_mut().disk.retain(|_, (_, bytes)| !is_lost(bytes));
    }
}

impl State {
    fn collect(&mut self) -> Result<(), SyncError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        self.durable = self.unsafe_yet.first().copied().unwrap_or(self.end).max(self.durable);
        if self.fails {
            let reason = "no luck".to_owned();
            let failure = SyncError { durable: Offset::new(self.durable), reason };
            self.failure = Some(failure.clone());
            return Err(failure);
        }
        Ok(())
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
        let state = &mut *self.0.borrow_mut();
        assert_eq!((holders, keep), (&[Holder::new(0)][..], Keep::Durable));
        if state.failure.is_some() {
            return Err(AppendError::Failed);
        }
        if state.is_full {
            return Err(AppendError::Full);
        }
        let at = state.end;
        state.end += 1;
        let record = (head.to_vec(), [head, &parts.concat()].concat());
        state.held.insert(at, record.clone());
        state.unsafe_yet.insert(at);
        state.open.push(Op::Append(at, record));
        Ok(Offset::new(at))
    }

    fn persist(&mut self, _: Offset) -> Result<Offset, HoldError> {
        unreachable!("everything is durable")
    }

    fn readable(&self) -> Offset {
        self.end()
    }

    fn durable(&self) -> Offset {
        Offset::new(self.0.borrow().durable)
    }

    fn end(&self) -> Offset {
        Offset::new(self.0.borrow().end)
    }

    fn read(&self, at: Offset) -> Result<Record, ReadError> {
        let state = self.0.borrow();
        if state.cold.contains(&at.get()) {
            return Err(ReadError::Cold { at });
        }
        let (_, bytes) = state.held.get(&at.get()).ok_or(ReadError::Released { at })?;
        Ok(Record { bytes: bytes.clone().into() })
    }

    fn fetch(&mut self, soon: &[Offset]) {
        self.0.borrow_mut().fetching.extend(soon.iter().map(|at| at.get()));
    }

    fn release(&mut self, at: Offset, _: Holder) -> Result<(), HoldError> {
        let state = &mut *self.0.borrow_mut();
        state.held.remove(&at.get()).ok_or(HoldError::Released { at })?;
        let is_it = |op: &Op| matches!(op, Op::Append(other, _) if *other == at.get());
        if let Some(unwritten) = state.open.iter().position(is_it) {
            state.open.remove(unwritten);
            state.unsafe_yet.remove(&at.get());
        } else {
            state.open.push(Op::Release(at.get()));
        }
        Ok(())
    }

    fn recover(&mut self, each: &mut dyn FnMut(Recovered<'_>)) {
        let holders = [(Holder::new(0), 0)];
        for (&at, (head, _)) in &self.0.borrow().held {
            each(Recovered { at: Offset::new(at), head, holders: &holders });
        }
    }

    fn collect(&mut self) -> Result<(), SyncError> {
        self.0.borrow_mut().collect()
    }

    fn sync(&mut self) -> Result<(), SyncError> {
        let state = &mut *self.0.borrow_mut();
        state.collect()?;
        if state.running.is_none() && !state.open.is_empty() {
            state.running = Some(std::mem::take(&mut state.open));
        }
        Ok(())
    }

    fn usage(&self) -> Usage {
        Usage::default()
    }
}
