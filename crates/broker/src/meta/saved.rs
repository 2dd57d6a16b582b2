//! The topology's log: a record for each durable thing, and none for what is gone.
//!
//! A thing that changed gets a new record and the old one is released; both, and all else that happens
//! between two syncs, are one batch of the log, there after a crash as a whole or not at all.
//!
//! ```text
//!   turn 1                     turn 2                 turn 3 (only deletes)
//!   [queue 5][binding][mark]   [policy'][mark]        [mark]
//!                       |                  |              `- until: who waits for turn 3
//!                       `- until           `- until
//! ```
//!
//! A turn that changed something ends with a *mark*, the record of promised ids: when it is durable, so
//! is the batch. It is needed because a log tells nobody when a release is on disk, and because a
//! record that is released before it was written is a hole that `durable` passes: no other record of a
//! turn can be waited for. So a mark is released only when a later one is durable.

use std::collections::VecDeque;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_log::{AppendError, Holder, Keep, Log, Offset, SyncError};
use leveret_topology::{Change, EntityKey, Topology};

use super::terms::{TERM_HEAD, TermNote};
use crate::command::{COMMAND_HEAD, CommandNote};
use crate::transaction::DECISION_HEAD;

/// The one holder of every record.
pub(super) const META: Holder = Holder::new(0);

/// Why a change is not on disk.
///
/// The text has the cause in it, so there is no source: who prints both would say it twice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SaveError {
    /// The log did not take a record.
    #[error("the change could not be written to disk: {0}")]
    Append(AppendError),
    /// The log failed, for good.
    #[error("the change could not be written to disk: {0}")]
    Sync(SyncError),
}

impl From<AppendError> for SaveError {
    fn from(error: AppendError) -> Self {
        Self::Append(error)
    }
}

impl From<SyncError> for SaveError {
    fn from(error: SyncError) -> Self {
        Self::Sync(error)
    }
}

#[derive(Debug)]
pub(super) struct Saved<L> {
    log: L,
    /// Where the record of each thing is.
    places: HashMap<EntityKey, Offset, FixedState>,
    /// The marks that are not released, oldest first. All but the first of them may not be durable.
    marks: VecDeque<Offset>,
    /// Something changed since the last mark.
    is_open: bool,
    /// How far the log has to be durable for what it had no room for when it was appended.
    late: Offset,
    /// All that changed since it was last taken, if somebody follows: in batches.
    followed: Option<Vec<Vec<Change>>>,
    body: Vec<u8>,
    failure: Option<SyncError>,
}

impl<L: Log> Saved<L> {
    pub(super) fn new(log: L) -> Self {
        Self {
            log,
            places: HashMap::default(),
            marks: VecDeque::new(),
            is_open: false,
            late: Offset::ZERO,
            followed: None,
            body: Vec::new(),
            failure: None,
        }
    }

    pub(super) fn log(&self) -> &L {
        &self.log
    }

    pub(super) fn log_mut(&mut self) -> &mut L {
        &mut self.log
    }

    pub(super) fn into_log(self) -> L {
        self.log
    }

    pub(super) fn failure(&self) -> Option<&SyncError> {
        self.failure.as_ref()
    }

    /// Goes on with what is in the log already: the place of each thing, and the marks, which ascend.
    pub(super) fn take_over(
        &mut self,
        places: HashMap<EntityKey, Offset, FixedState>,
        marks: Vec<Offset>,
    ) {
        (self.places, self.marks) = (places, marks.into());
    }

    /// Appends and releases records until the log says what the topology does.
    pub(super) fn write(&mut self, topology: &mut Topology) -> Result<(), SaveError> {
        self.is_open |= topology.has_changes();
        let mut result = Ok(());
        let mut batch = Vec::new();
        for noted in topology.take_changes() {
            if noted.is_stored
                && let Err(error) = self.write_one(&noted.key, topology)
            {
                result = Err(error);
            }
            if self.followed.is_some() {
                batch.push(topology.change(noted));
            }
        }
        if let Some(followed) = &mut self.followed
            && !batch.is_empty()
        {
            followed.push(batch);
        }
        result.map_err(|error| self.save_error(error))
    }

    /// Takes in changes of which none is to be stored.
    pub(super) fn pass(&mut self, topology: &mut Topology) -> Result<(), SaveError> {
        if topology.has_only_transient_changes() { self.write(topology) } else { Ok(()) }
    }

    /// From now on changes are kept until they are taken.
    pub(super) fn follow(&mut self) {
        self.followed.get_or_insert_default();
    }

    pub(super) fn take_followed(&mut self) -> Vec<Vec<Change>> {
        self.followed.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn write_one(&mut self, key: &EntityKey, topology: &Topology) -> Result<(), AppendError> {
        // Ids are the mark's.
        if *key == EntityKey::Ids {
            return Ok(());
        }
        let old = match self.append(key, topology)? {
            Some(at) => self.places.insert(key.clone(), at),
            None => self.places.remove(key),
        };
        if let Some(old) = old {
            self.release(old);
        }
        Ok(())
    }

    /// None when the thing is gone. Without room it is written once there is some: what is done cannot be refused.
    fn append(
        &mut self,
        key: &EntityKey,
        topology: &Topology,
    ) -> Result<Option<Offset>, AppendError> {
        self.body.clear();
        if !topology.store(key, &mut self.body) {
            return Ok(None);
        }
        let head = topology.head(key);
        self.append_body(&head).map(Some)
    }

    /// A record with this head, and the body that was made.
    fn append_body(&mut self, head: &[u8]) -> Result<Offset, AppendError> {
        match self.log.append(head, &[&self.body], &[META], Keep::Durable) {
            Err(AppendError::Full) => {}
            appended => return appended,
        }
        let at = self.log.append(head, &[&self.body], &[META], Keep::Volatile)?;
        if let Ok(safe) = self.log.persist(at) {
            self.late = self.late.max(safe);
        }
        Ok(at)
    }

    /// A record that is about no thing: a numbered command was done. Without room it is written once there is some, as what it did.
    pub(super) fn append_note(&mut self, note: &CommandNote) -> Result<Offset, SaveError> {
        self.body = note.encode();
        let at = self.append_body(&COMMAND_HEAD).map_err(|error| self.save_error(error))?;
        self.is_open = true;
        Ok(at)
    }

    /// A record that is about no thing: who leads. It is not written later: that would be too late.
    pub(super) fn append_term(&mut self, note: &TermNote) -> Result<Offset, SaveError> {
        let appended = self.append_now(&TERM_HEAD, &note.encode());
        appended.map_err(|error| self.save_error(error))
    }

    pub(super) fn release(&mut self, at: Offset) {
        // Only who lost count of his records can hear of an error here.
        if let Err(error) = self.log.release(at, META) {
            debug_assert!(false, "{error}");
            tracing::error!(%error, "a record of the topology was released twice");
        }
    }

    /// A record that is about no thing: a transaction is to be.
    pub(super) fn append_decision(&mut self, body: &[u8]) -> Result<Offset, AppendError> {
        self.append_now(&DECISION_HEAD, body)
    }

    /// A record that is not written later, if there is no room for it.
    fn append_now(&mut self, head: &[u8], body: &[u8]) -> Result<Offset, AppendError> {
        let at = self.log.append(head, &[body], &[META], Keep::Durable)?;
        self.is_open = true;
        Ok(at)
    }

    /// The next batch has a mark, even if it has nothing else.
    pub(super) fn reopen(&mut self) {
        self.is_open = true;
    }

    /// Ends what was written since the last mark with a mark, if there is anything.
    pub(super) fn seal(&mut self, topology: &mut Topology) -> Result<(), SaveError> {
        if !self.is_open {
            return Ok(());
        }
        // Here and not as soon as they are passed: a batch of its own would cost a sync.
        while self.marks.get(1).is_some_and(|&later| later < self.log.durable()) {
            if let Some(passed) = self.marks.pop_front() {
                self.release(passed);
            }
        }
        topology.promise_ids();
        match self.append(&EntityKey::Ids, topology) {
            Ok(at) => {
                self.marks.extend(at);
                self.is_open = false;
                Ok(())
            }
            Err(error) => Err(self.save_error(error)),
        }
    }

    /// Hands what was written to the disk and takes in what the disk did.
    pub(super) fn sync(&mut self) -> Result<(), SaveError> {
        if let Err(error) = self.log.sync() {
            if self.failure.is_none() {
                tracing::error!(%error, "the topology's log failed: nothing can be changed any more");
                self.failure = Some(error.clone());
            }
            return Err(error.into());
        }
        Ok(())
    }

    /// How far the log has to be durable for all that was sealed to be on disk.
    pub(super) fn until(&self) -> Offset {
        self.marks.back().map_or(Offset::ZERO, |mark| mark.next().max(self.late))
    }

    /// Records that are not durable, of what was sealed.
    pub(super) fn behind(&self) -> u64 {
        self.until().get().saturating_sub(self.durable().get())
    }

    pub(super) fn durable(&self) -> Offset {
        self.log.durable()
    }

    fn save_error(&self, error: AppendError) -> SaveError {
        match (&self.failure, error) {
            (Some(failure), AppendError::Failed) => SaveError::Sync(failure.clone()),
            _ => SaveError::Append(error),
        }
    }
}
