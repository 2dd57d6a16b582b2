//! The topology as it was, from its log; and a first one into an empty log.
//!
//! Outside of turns, when nothing else runs: here one waits for the disk, by a callback.

use leveret_log::{AppendError, Log, Offset, ReadError, Record, SyncError};
use leveret_topology::stored::{Kind, StoredError};
use leveret_topology::{Homes, Topology};

use super::Meta;
use super::copy::{NamesCopy, kind_of};
use super::saved::SaveError;
use crate::transaction::{Decided, TxId};

/// Records that are asked for at once: enough to keep a disk busy, and little memory.
const READ_AHEAD: usize = 1024;

/// Why the topology did not come back. The log is as it was.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// A record's head.
    #[error("record {at} of the topology's log: {error}")]
    Head {
        /// Which.
        at: Offset,
        /// What is wrong with it.
        error: StoredError,
    },
    /// A record's body.
    #[error("record {at} of the topology's log, of the kind {kind}: {error}")]
    Body {
        /// Which.
        at: Offset,
        /// What it is of.
        kind: Kind,
        /// What is wrong with it.
        error: StoredError,
    },
    /// A record could not be read.
    #[error("record {at} of the topology's log, of the kind {kind}: {error}")]
    Read {
        /// Which.
        at: Offset,
        /// What it is of.
        kind: Kind,
        /// Why not.
        error: ReadError,
    },
    /// What was decided on a transaction, or a record about no name that could not be read.
    #[error("record {at} of the topology's log, about no name: {reason}")]
    Decision {
        /// Which.
        at: Offset,
        /// What is wrong with it.
        reason: String,
    },
    /// What was done of a numbered command.
    #[error(
        "record {at} of the topology's log, of a command that was done: it is not what it should be"
    )]
    Command {
        /// Which.
        at: Offset,
    },
    /// Who led.
    #[error("record {at} of the topology's log, of a leader: it is not what it should be")]
    Term {
        /// Which.
        at: Offset,
    },
    /// The log failed.
    #[error(transparent)]
    Log(#[from] SyncError),
    /// What was missing could not be written.
    #[error(transparent)]
    Save(#[from] SaveError),
}

impl<L: Log> Meta<L> {
    /// The topology that a log holds, in a log that was just opened, and who keeps it from now on: [read](Self::read),
    /// and with new ids [promised](Self::promise).
    pub fn recover(
        homes: Homes,
        log: L,
        wait: &mut dyn FnMut(),
    ) -> Result<(Self, Topology), RecoverError> {
        let (mut meta, mut topology) = Self::read(homes, log, wait)?;
        meta.promise(&mut topology, wait)?;
        Ok((meta, topology))
    }

    /// The topology that a log holds, in a log that was just opened, of which nothing is changed.
    ///
    /// `wait` returns when the log's disk has finished something; it is called only while something is
    /// under way. On a log that was never used the topology is empty: see [`is_new`](Self::is_new).
    pub fn read(
        homes: Homes,
        log: L,
        wait: &mut dyn FnMut(),
    ) -> Result<(Self, Topology), RecoverError> {
        let mut reading = Self::new(log);
        let mut topology = Topology::new();
        topology.set_homes(homes);
        let mut copy = NamesCopy::default();
        let records = reading.records()?;
        for some in records.chunks(READ_AHEAD) {
            for (index, &(kind, at)) in some.iter().enumerate() {
                let ahead = some[index..].iter().map(|&(_, at)| at);
                let record = reading.read_record(at, ahead, wait)?;
                let record = record.map_err(|error| unread(at, kind, error))?;
                copy.restore(at, &record.bytes, &mut topology)?;
            }
        }
        let meta = Self::take_over(reading.saved.into_log(), copy, &mut topology)?;
        Ok((meta, topology))
    }

    /// Promises ids, on disk, before anybody uses one: those that were promised are taken to be used. Without effect in
    /// a log that was never used. To be called once, after [`read`](Self::read).
    pub fn promise(
        &mut self,
        topology: &mut Topology,
        wait: &mut dyn FnMut(),
    ) -> Result<(), SaveError> {
        if self.is_new() {
            return Ok(());
        }
        self.saved.reopen();
        self.save(topology, wait)
    }

    /// Nothing was ever written to the log: a first start.
    pub fn is_new(&self) -> bool {
        self.saved.until() == Offset::ZERO
    }

    /// Writes a whole topology into the log and waits for it, in one batch: that of a first start. Of what
    /// is in the log already it is written again.
    pub fn adopt(
        &mut self,
        topology: &mut Topology,
        wait: &mut dyn FnMut(),
    ) -> Result<(), SaveError> {
        topology.note_all();
        self.save(topology, wait)
    }

    /// Writes what changed in the topology outside of turns (definitions loaded at a start) and waits
    /// for it. One batch. Without room it is written later, but for that of a first start: who is to make room must be able
    /// to start.
    pub fn save(
        &mut self,
        topology: &mut Topology,
        wait: &mut dyn FnMut(),
    ) -> Result<(), SaveError> {
        let is_new = self.is_new();
        self.saved.write(topology)?;
        self.saved.seal(topology)?;
        self.saved.sync()?;
        while self.saved.durable() < self.saved.until() {
            if self.saved.log().last_room() == 0 {
                let full = SaveError::Append(AppendError::Full);
                if is_new {
                    return Err(full);
                }
                tracing::warn!("{full}: what this start changed is written when there is room");
                return Ok(());
            }
            wait();
            self.saved.sync()?;
        }
        Ok(())
    }

    /// What is to be known of transactions when shards fill their queues.
    pub fn decided(&self) -> &Decided {
        &self.decisions.earlier
    }

    /// What is to be known of transactions when a shard [loses](crate::Shard::lose) the end of its log.
    pub fn decided_so_far(&self) -> Decided {
        self.decisions.so_far(self.saved.durable())
    }

    /// To be called when the shards have filled their queues, with the parts of transactions that they
    /// found: decisions that nobody needs are forgotten.
    pub fn forget_decisions(&mut self, parts: impl Iterator<Item = TxId>) {
        self.decisions.keep_found(parts);
    }

    /// All records in the order in which they are restored; those without a kind are about no name.
    fn records(&mut self) -> Result<Vec<(Option<Kind>, Offset)>, RecoverError> {
        let mut records = Vec::new();
        let mut bad = None;
        self.saved.log_mut().recover(&mut |record| match kind_of(record.at, record.head) {
            Ok(kind) => records.push((kind, record.at)),
            Err(error) => {
                bad.get_or_insert(error);
            }
        });
        if let Some(bad) = bad {
            return Err(bad);
        }
        records.sort_unstable();
        Ok(records)
    }

    /// Reads the first of `ahead`, which is `at`, from disk if it must, and then the others too.
    fn read_record(
        &mut self,
        at: Offset,
        ahead: impl Iterator<Item = Offset>,
        wait: &mut dyn FnMut(),
    ) -> Result<Result<Record, ReadError>, SyncError> {
        let mut ahead = Some(ahead);
        loop {
            match self.saved.log().read(at) {
                Err(ReadError::Cold { .. }) => {
                    // The second time it is not there yet, but the others have been asked for.
                    let soon = ahead.take().map_or_else(|| vec![at], Iterator::collect);
                    self.saved.log_mut().fetch(&soon);
                    wait();
                    self.saved.log_mut().collect()?;
                }
                read => return Ok(read),
            }
        }
    }
}

fn unread(at: Offset, kind: Option<Kind>, error: ReadError) -> RecoverError {
    match kind {
        Some(kind) => RecoverError::Read { at, kind, error },
        None => RecoverError::Decision { at, reason: error.to_string() },
    }
}
