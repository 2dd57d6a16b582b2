//! A log whose disk is moved by hand.
//!
//! Bytes are in a [`MemoryLog`]; what a disk would have got is counted. [`HandLog::finish`] lets the disk
//! finish the batch it has; a [`crash`](HandLog::crash) tells what would come back.

use std::collections::{BTreeMap, BTreeSet};

use leveret_log::disk::FileName;
use leveret_log::{
    AppendError, HoldError, Holder, Keep, Log, MemoryLog, Offset, ReadError, Record, SyncError,
    Usage,
};

/// What the disk has, or gets, of a record.
#[derive(Clone, Debug, Default)]
struct Kept {
    holders: BTreeSet<Holder>,
    bytes: u64,
}

/// What happened since the last batch.
#[derive(Clone, Debug, Default)]
struct Batch {
    written: BTreeMap<u64, Kept>,
    released: Vec<(u64, Holder)>,
}

#[derive(Debug, Default)]
pub(crate) struct HandLog {
    memory: MemoryLog,
    /// Holders of records that are neither released nor handed to the disk, and whether they are to be.
    collected: BTreeMap<u64, (Kept, Keep)>,
    /// Releases of what was handed over.
    released: Vec<(u64, Holder)>,
    /// At the disk.
    busy: Option<Batch>,
    /// Safe.
    disk: BTreeMap<u64, Kept>,
    durable: u64,
    /// The next sync fails.
    pub(crate) fails: bool,
    has_failed: bool,
    pub(crate) is_full: bool,
    /// What was noted of records and their holders.
    pub(crate) marks: BTreeMap<(u64, u64), u8>,
    /// Cannot be read any more.
    pub(crate) damaged: BTreeSet<u64>,
    /// Added to what is to be written.
    pub(crate) more_unwritten: u64,
    pub(crate) written_bytes: u64,
    pub(crate) syncs: u64,
    pub(crate) calls: u64,
}

impl HandLog {
    /// The disk finishes what it has.
    pub(crate) fn finish(&mut self) {
        let Some(batch) = self.busy.take() else { return };
        self.disk.extend(batch.written);
        for (at, holder) in batch.released {
            if let Some(kept) = self.disk.get_mut(&at) {
                kept.holders.remove(&holder);
            }
        }
        self.disk.retain(|_, kept| !kept.holders.is_empty());
    }

    /// Offsets and holders that would be there after a crash now.
    pub(crate) fn crash(&self) -> Vec<(u64, Vec<u64>)> {
        let holders = |kept: &Kept| kept.holders.iter().map(|holder| holder.get()).collect();
        self.disk.iter().map(|(&at, kept)| (at, holders(kept))).collect()
    }

    /// Who holds what now.
    pub(crate) fn held(&self) -> BTreeMap<u64, BTreeSet<u64>> {
        let names = |kept: &Kept| kept.holders.iter().map(|holder| holder.get()).collect();
        let busy = self.busy.iter().flat_map(|batch| &batch.written);
        let collected = self.collected.iter().map(|(at, (kept, _))| (at, kept));
        let mut held: BTreeMap<u64, BTreeSet<u64>> = self
            .disk
            .iter()
            .chain(busy)
            .chain(collected)
            .map(|(&at, kept)| (at, names(kept)))
            .collect();
        let at_disk = self.busy.iter().flat_map(|batch| &batch.released);
        for (at, holder) in self.released.iter().chain(at_disk) {
            if let Some(holders) = held.get_mut(at) {
                holders.remove(&holder.get());
            }
        }
        held
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.busy.is_some()
    }

    fn unwritten(&self) -> u64 {
        let durable = self.collected.values().filter(|(_, keep)| *keep == Keep::Durable);
        let collected: u64 = durable.map(|(kept, _)| kept.bytes).sum();
        let busy = self.busy.iter().flat_map(|batch| batch.written.values());
        let releases = self.released.len() as u64 * 16;
        collected + busy.map(|kept| kept.bytes).sum::<u64>() + releases + self.more_unwritten
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
        if self.has_failed {
            return Err(AppendError::Failed);
        }
        if self.is_full {
            return Err(AppendError::Full);
        }
        let at = self.memory.append(head, parts, holders, keep)?;
        let bytes = head.len() + parts.iter().map(|part| part.len()).sum::<usize>();
        let kept = Kept { holders: holders.iter().copied().collect(), bytes: bytes as u64 };
        if !holders.is_empty() {
            self.collected.insert(at.get(), (kept, keep));
        }
        Ok(at)
    }

    fn persist(&mut self, at: Offset) -> Result<Offset, HoldError> {
        self.memory.persist(at)?;
        if let Some((_, keep)) = self.collected.get_mut(&at.get()) {
            *keep = Keep::Durable;
        }
        // A hole, as `durable` may be at the end already and cannot go back.
        if self.memory.append(&[], &[], &[], Keep::Durable).is_err() {
            panic!("holes need no room");
        }
        Ok(self.end())
    }

    fn readable(&self) -> Offset {
        self.memory.end()
    }

    fn durable(&self) -> Offset {
        Offset::new(self.durable)
    }

    fn end(&self) -> Offset {
        self.memory.end()
    }

    fn read(&self, at: Offset) -> Result<Record, ReadError> {
        if self.damaged.contains(&at.get()) {
            return Err(ReadError::Damaged { at, file: FileName::default() });
        }
        self.memory.read(at)
    }

    fn release(&mut self, at: Offset, holder: Holder) -> Result<(), HoldError> {
        self.memory.release(at, holder)?;
        match self.collected.get_mut(&at.get()) {
            Some((kept, _)) => {
                kept.holders.remove(&holder);
                if kept.holders.is_empty() {
                    self.collected.remove(&at.get());
                }
            }
            None => self.released.push((at.get(), holder)),
        }
        Ok(())
    }

    fn mark(&mut self, at: Offset, holder: Holder, mark: u8) -> Result<(), HoldError> {
        self.marks.insert((at.get(), holder.get()), mark);
        Ok(())
    }

    fn collect(&mut self) -> Result<(), SyncError> {
        if self.fails && self.is_busy() {
            self.has_failed = true;
            let reason = "no such luck".to_owned();
            return Err(SyncError { durable: self.durable(), reason });
        }
        // Holes and volatile records count as durable once all before them is.
        let at_disk = self.busy.iter().flat_map(|batch| batch.written.keys());
        let waits = |(_, (_, keep)): &(&u64, &(Kept, Keep))| *keep == Keep::Durable;
        let collected = self.collected.iter().filter(waits).map(|(at, _)| at);
        let first = at_disk.chain(collected).min().copied();
        self.durable = self.durable.max(first.unwrap_or_else(|| self.end().get()));
        Ok(())
    }

    fn sync(&mut self) -> Result<(), SyncError> {
        self.calls += 1;
        self.collect()?;
        if self.is_busy() {
            return Ok(());
        }
        let released = std::mem::take(&mut self.released);
        let mut batch = Batch { released, ..Batch::default() };
        self.collected.retain(|&at, (kept, keep)| {
            if *keep == Keep::Durable {
                batch.written.insert(at, kept.clone());
            }
            *keep == Keep::Volatile
        });
        if batch.written.is_empty() && batch.released.is_empty() {
            return Ok(());
        }
        self.written_bytes += batch.written.values().map(|kept| kept.bytes).sum::<u64>();
        self.syncs += 1;
        self.busy = Some(batch);
        Ok(())
    }

    fn usage(&self) -> Usage {
        Usage { unwritten_bytes: self.unwritten(), ..self.memory.usage() }
    }
}
