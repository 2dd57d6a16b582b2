//! What a member's log is about, for who follows that without a log of its own: all records as of one batch, then what each batch
//! that is agreed upon adds and takes away.
//!
//! ```text
//!   Anew -> Records .. -> Batch .. -> UpTo -> Batch .. UpTo ..      -> Lent
//!              read from the disk      |  from memory, as they came
//!                                      `- from here on it is all there
//! ```
//!
//! Records are read while batches go on, so some of them are gone before they are read. What follows says so: it is all there at
//! the first [`Content::UpTo`], and not before.

use std::collections::BTreeMap;

use bytes::Bytes;
use leveret_log::disk::Disk;
use leveret_log::file::{BatchContents, BatchCopy, NoBatch};
use leveret_log::{BatchName, FileLog, Log as _, Offset, ReadError};

/// Records that are asked for at once.
const READ_AHEAD: usize = 1024;

/// Bytes of batches that are kept until they are agreed upon. Beyond that they are read.
const KEPT_BYTES: u64 = 4 << 20;

/// A piece of what a log is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// What was told before counts no more.
    Anew,
    /// Records that are there.
    Records(Vec<(Offset, Bytes)>),
    /// The next batch.
    Batch(BatchContents),
    /// All up to this batch was told.
    UpTo(BatchName),
    /// The log is lent, and no more is told. Whether all that it has was.
    Lent {
        /// The last [`UpTo`](Self::UpTo) is the log's end.
        is_whole: bool,
    },
}

/// How far it is.
#[derive(Debug)]
enum Phase {
    /// To be begun as of the last batch that is applied.
    Begin,
    /// These records are to be read, the last one first.
    Read(Vec<Offset>),
    /// Batch after batch.
    Follow,
    /// Something of it cannot be read.
    Broken,
}

/// Tells what a log is about.
#[derive(Debug)]
pub(super) struct Telling {
    phase: Phase,
    /// The last batch that was told, or that the records are as of.
    told: u64,
    /// The records are as of no batch before this one: see [`FileLog::was_applied_to`].
    whole_from: u64,
    /// The number of the last `UpTo`.
    said: Option<u64>,
    /// The newest batches that were not told, or some of them.
    kept: BTreeMap<u64, BatchCopy>,
    kept_bytes: u64,
}

impl Telling {
    pub(super) fn new() -> Self {
        let (kept, kept_bytes) = (BTreeMap::new(), 0);
        Self { phase: Phase::Begin, told: 0, whole_from: 0, said: None, kept, kept_bytes }
    }

    /// A batch came, and may be cut off again.
    pub(super) fn keep(&mut self, number: u64, batch: &BatchCopy) {
        self.kept_bytes += batch.len();
        if self.kept_bytes > KEPT_BYTES {
            (self.kept, self.kept_bytes) = (BTreeMap::new(), 0);
            return;
        }
        self.kept.insert(number, batch.clone());
    }

    /// Batches from this number on are cut off.
    pub(super) fn cut_from(&mut self, number: u64) {
        self.whole_from = self.whole_from.min(number.saturating_sub(1));
        for (_, batch) in self.kept.split_off(&number) {
            self.kept_bytes -= batch.len();
        }
    }

    fn take_kept(&mut self, number: u64) -> Option<BatchCopy> {
        // Those below came before it began.
        while let Some(first) = self.kept.first_entry()
            && *first.key() <= number
        {
            let (found, batch) = first.remove_entry();
            self.kept_bytes -= batch.len();
            if found == number {
                return Some(batch);
            }
        }
        None
    }

    /// Tells what can be told, of a log that all agree upon up to `agreed`. Gives what is broken, for people, once.
    pub(super) fn go_on<D: Disk>(
        &mut self,
        log: &mut FileLog<D>,
        agreed: BatchName,
        to: &mut Vec<Content>,
    ) -> Option<String> {
        loop {
            let result = match &mut self.phase {
                Phase::Begin => {
                    // Of a log that leads more may be applied than is agreed upon.
                    let as_of = log.applied()?;
                    let mut left = Vec::new();
                    log.each_cold(|at| left.push(at));
                    left.reverse();
                    (self.told, self.said) = (as_of.number, None);
                    self.whole_from = log.was_applied_to();
                    to.push(Content::Anew);
                    self.phase = Phase::Read(left);
                    continue;
                }
                Phase::Read(_) if log.applied().is_none() => {
                    self.phase = Phase::Begin;
                    return None;
                }
                Phase::Read(left) => read(left, log, to),
                Phase::Follow => self.follow(log, agreed, to),
                Phase::Broken => return None,
            };
            match result {
                Ok(true) if matches!(self.phase, Phase::Read(_)) => self.phase = Phase::Follow,
                Ok(true) => self.phase = Phase::Begin,
                Ok(false) => return None,
                Err(what) => {
                    to.push(Content::Anew);
                    self.phase = Phase::Broken;
                    return Some(what);
                }
            }
        }
    }

    /// True if it has to begin anew.
    fn follow<D: Disk>(
        &mut self,
        log: &mut FileLog<D>,
        agreed: BatchName,
        to: &mut Vec<Content>,
    ) -> Result<bool, String> {
        while self.told < agreed.number {
            let number = self.told + 1;
            let kept = self.take_kept(number);
            let batch = match kept.map_or_else(|| log.batch(number), Ok) {
                Ok(batch) => batch,
                Err(NoBatch::ToCome | NoBatch::NotYet) => return Ok(false),
                Err(NoBatch::Gone) => return Ok(true),
                Err(error) => return Err(format!("batch {number}: {error}")),
            };
            let contents = batch.contents();
            to.push(Content::Batch(contents.ok_or_else(|| format!("batch {number} is damaged"))?));
            self.told = number;
        }
        // Records that were read may be gone by a batch that is applied.
        let applied = log.applied().map_or(0, |it| it.number);
        if self.told >= applied.max(self.whole_from) && self.said != Some(self.told) {
            self.said = Some(self.told);
            let term = log.term_of(self.told).unwrap_or(0);
            to.push(Content::UpTo(BatchName { number: self.told, term }));
        }
        Ok(false)
    }

    /// Whether all was told that a log has.
    pub(super) fn is_whole<D: Disk>(&self, log: &FileLog<D>) -> bool {
        matches!(self.phase, Phase::Follow) && self.said == Some(log.last().number)
    }
}

/// True once all is read.
fn read<D: Disk>(
    left: &mut Vec<Offset>,
    log: &mut FileLog<D>,
    to: &mut Vec<Content>,
) -> Result<bool, String> {
    let mut records = Vec::new();
    while let Some(&at) = left.last() {
        match log.read(at) {
            Ok(record) => {
                log.taken(at);
                records.push((at, record.bytes));
            }
            Err(ReadError::Cold { .. }) => {
                let soon: Vec<_> = left.iter().rev().take(READ_AHEAD).copied().collect();
                log.fetch(&soon);
                break;
            }
            // A batch that follows says so.
            Err(ReadError::Released { .. } | ReadError::NotAppended { .. }) => {}
            Err(error) => return Err(error.to_string()),
        }
        left.pop();
    }
    log.each_fetched(&mut |_| {});
    if !records.is_empty() {
        to.push(Content::Records(records));
    }
    Ok(left.is_empty())
}
