//! The names as their log has them, record by record: how a start reads them, and how a node that does not own them follows.
//!
//! ```text
//!   all records of a log, once      -> restore     -.
//!   batches that are agreed upon    -> apply         > Topology, and which record is of which thing
//!                                                  -'      |
//!                                       Meta::take_over  <-'   a node that is to own them goes on with both
//! ```
//!
//! After each batch the topology is what a start would read of a log that ends with it. A batch is whole: nobody is shown half of one.

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_log::file::BatchContents;
use leveret_log::{BatchName, Log, Offset};
use leveret_topology::stored::{HEAD, Kind, Restored};
use leveret_topology::{EntityKey, Homes, Topology};

use super::Meta;
use super::recover::RecoverError;
use super::terms::{EARLIER_TERM_HEAD, TERM_HEAD, TermNote};
use crate::command::{COMMAND_HEAD, CommandNote};
use crate::transaction::DECISION_HEAD;

/// Which record is of which thing, for a topology that follows the log of names. See the [module](self).
#[derive(Debug, Default)]
pub struct NamesCopy {
    /// Where the record of each thing is.
    places: HashMap<EntityKey, Offset, FixedState>,
    /// What each record is of.
    records: HashMap<Offset, RecordOf, FixedState>,
    volatile: Volatile,
}

/// Records of which a later batch says whether they stay.
#[derive(Debug, Default)]
struct Volatile {
    records: HashMap<Offset, Bytes, FixedState>,
    /// Of the last batch.
    term: u64,
}

impl Volatile {
    /// Takes in a batch: gives the records that are there from now on.
    fn take(&mut self, batch: &BatchContents) -> Vec<(Offset, Bytes)> {
        if std::mem::replace(&mut self.term, batch.name.term) != batch.name.term {
            // Nobody has them but who led before.
            self.records.clear();
        }
        self.records.extend(batch.volatile.iter().cloned());
        let persisted = batch.persisted.iter().filter_map(|at| self.records.remove_entry(at));
        let there = persisted.chain(batch.records.iter().cloned()).collect();
        batch.released.iter().for_each(|(at, _)| drop(self.records.remove(at)));
        there
    }
}

/// What a record is of.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RecordOf {
    Thing(EntityKey),
    /// The end of a turn's changes.
    Mark,
    /// What was decided on a transaction, without its head.
    Decision(Bytes),
    /// A numbered command was done.
    Command(CommandNote),
    /// Who led.
    Term(TermNote),
    /// Of something whose other half is not there: whoever owns the names lets go of it.
    Orphan,
}

impl NamesCopy {
    /// How many records it knows.
    pub fn records(&self) -> usize {
        self.records.len()
    }

    /// Takes in a record of the log. Records are to come in the order of their kinds, those of one kind the oldest first, and the topology is
    /// [told](Topology::has_restored) when it has a batch of them.
    ///
    /// # Errors
    ///
    /// The record is not what it should be.
    pub fn restore(
        &mut self,
        at: Offset,
        record: &Bytes,
        topology: &mut Topology,
    ) -> Result<(), RecoverError> {
        let Some(kind) = kind_of(at, record)? else {
            let body = record.slice(HEAD..);
            let of = if record.starts_with(&COMMAND_HEAD) {
                let note = CommandNote::decode(&body);
                note.map(RecordOf::Command).ok_or(RecoverError::Command { at })?
            } else if record.starts_with(&TERM_HEAD) {
                let note = TermNote::decode(&body);
                note.map(RecordOf::Term).ok_or(RecoverError::Term { at })?
            } else if record.starts_with(&EARLIER_TERM_HEAD) {
                let note = TermNote::decode_earlier(&body);
                note.map(RecordOf::Term).ok_or(RecoverError::Term { at })?
            } else {
                RecordOf::Decision(body)
            };
            self.records.insert(at, of);
            return Ok(());
        };
        let restored = topology.restore(record);
        let of = match restored.map_err(|error| RecoverError::Body { at, kind, error })? {
            Restored::There(EntityKey::Ids) => RecordOf::Mark,
            Restored::There(key) => {
                self.places.insert(key.clone(), at);
                RecordOf::Thing(key)
            }
            Restored::InsteadOf(key, old) => {
                self.places.remove(&old);
                self.places.insert(key.clone(), at);
                RecordOf::Thing(key)
            }
            Restored::Orphan(what) => {
                tracing::warn!(%at, "left out of the topology, since it lost an end: {what}");
                RecordOf::Orphan
            }
        };
        self.records.insert(at, of);
        Ok(())
    }

    /// Takes in the next batch of the log.
    ///
    /// # Errors
    ///
    /// A record of it is not what it should be. The copy is of no use any more.
    pub fn apply(
        &mut self,
        batch: &BatchContents,
        topology: &mut Topology,
    ) -> Result<(), RecoverError> {
        let mut there = self.volatile.take(batch);
        order(&mut there)?;
        for (at, record) in &there {
            self.restore(*at, record, topology)?;
        }
        // After what is there: a thing that has a newer record stays.
        for &(at, _) in &batch.released {
            self.release(at, topology)?;
        }
        topology.has_restored();
        Ok(())
    }

    fn release(&mut self, at: Offset, topology: &mut Topology) -> Result<(), RecoverError> {
        let Some(RecordOf::Thing(key)) = self.records.remove(&at) else { return Ok(()) };
        if self.places.get(&key) == Some(&at) {
            self.places.remove(&key);
            let gone = topology.unrestore(&key);
            gone.map_err(|error| RecoverError::Body { at, kind: key.kind(), error })?;
        }
        Ok(())
    }
}

/// Follows the log of names of another node: gathers what is told of it, until that is all as of one batch, and then applies batch
/// after batch.
#[derive(Debug)]
pub struct NamesFollower {
    homes: Homes,
    /// All that is there; none once it is in a topology.
    gathered: Option<HashMap<Offset, Bytes, FixedState>>,
    /// Which record is of what, once it is.
    copy: NamesCopy,
    up_to: BatchName,
}

impl NamesFollower {
    /// One that knows nothing yet, of names whose queues have these homes.
    pub fn new(homes: Homes) -> Self {
        let (copy, gathered) = (NamesCopy::default(), Some(HashMap::default()));
        Self { homes, gathered, copy, up_to: BatchName::NONE }
    }

    /// Whether it has all as of some batch.
    pub fn is_whole(&self) -> bool {
        self.gathered.is_none()
    }

    /// The last batch that the topology has.
    pub fn up_to(&self) -> BatchName {
        self.up_to
    }

    /// Records that are there, in any order, as of one batch or a little later: the batches behind it follow.
    pub fn found(&mut self, records: impl IntoIterator<Item = (Offset, Bytes)>) {
        if let Some(gathered) = &mut self.gathered {
            gathered.extend(records);
        }
    }

    /// The next batch. `topology` is what [`whole`](Self::whole) gave, or not used.
    ///
    /// # Errors
    ///
    /// A record of it is not what it should be: this follower is of no use any more.
    pub fn batch(
        &mut self,
        batch: &BatchContents,
        topology: &mut Topology,
    ) -> Result<(), RecoverError> {
        let Some(gathered) = &mut self.gathered else {
            self.up_to = batch.name;
            return self.copy.apply(batch, topology);
        };
        gathered.extend(self.copy.volatile.take(batch));
        batch.released.iter().for_each(|(at, _)| drop(gathered.remove(at)));
        Ok(())
    }

    /// All up to this batch was told. Gives the topology the first time that this is so.
    ///
    /// # Errors
    ///
    /// A record is not what it should be: this follower is of no use any more.
    pub fn whole(&mut self, up_to: BatchName) -> Result<Option<Topology>, RecoverError> {
        self.up_to = up_to;
        let Some(gathered) = self.gathered.take() else { return Ok(None) };
        let mut records: Vec<_> = gathered.into_iter().collect();
        order(&mut records)?;
        let mut topology = Topology::new();
        topology.set_homes(self.homes);
        for (at, record) in &records {
            self.copy.restore(*at, record, &mut topology)?;
        }
        topology.has_restored();
        Ok(Some(topology))
    }

    /// Which record is of what, for who [takes the names over](Meta::take_over). None before it is whole.
    pub fn into_copy(self) -> Option<NamesCopy> {
        self.is_whole().then_some(self.copy)
    }
}

/// Of which kind a record is; none if it is about no name: a decision on a transaction, a note of a command, or of who led.
pub(super) fn kind_of(at: Offset, record: &[u8]) -> Result<Option<Kind>, RecoverError> {
    let head = record.get(..HEAD).unwrap_or(record);
    if [DECISION_HEAD, COMMAND_HEAD, TERM_HEAD, EARLIER_TERM_HEAD].iter().any(|it| head == it) {
        return Ok(None);
    }
    Kind::of_head(head).map(Some).map_err(|error| RecoverError::Head { at, error })
}

/// Puts records in the order in which they are restored: of one kind the oldest first.
///
/// # Errors
///
/// One is of no kind that is known.
fn order(records: &mut [(Offset, Bytes)]) -> Result<(), RecoverError> {
    for (at, record) in records.iter() {
        kind_of(*at, record)?;
    }
    records.sort_by_cached_key(|(at, record)| (kind_of(*at, record).ok().flatten(), *at));
    Ok(())
}

impl<L: Log> Meta<L> {
    /// Who keeps the names of a copy from now on, in the log that the copy is of, up to its end. Nothing is changed in the log before
    /// the first turn or [`promise`](Self::promise).
    ///
    /// # Errors
    ///
    /// A decision on a transaction is not what it should be.
    pub fn take_over(
        log: L,
        copy: NamesCopy,
        topology: &mut Topology,
    ) -> Result<Self, RecoverError> {
        let NamesCopy { mut places, records, .. } = copy;
        let mut meta = Self::new(log);
        let mut marks = Vec::new();
        for (at, of) in records {
            match of {
                RecordOf::Mark => marks.push(at),
                RecordOf::Decision(body) => {
                    if !meta.decisions.found(at, &body) {
                        let reason = "truncated".to_owned();
                        return Err(RecoverError::Decision { at, reason });
                    }
                }
                RecordOf::Command(note) => meta.commands.found(at, &note),
                RecordOf::Term(note) => {
                    let earlier = meta.last_term.found(at, note);
                    earlier.into_iter().for_each(|earlier| meta.saved.release(earlier));
                }
                RecordOf::Thing(key) if places.get(&key) != Some(&at) => {
                    tracing::warn!(%at, "an older record of a {} was still in the log", key.kind());
                    meta.saved.release(at);
                }
                // It went with something else.
                RecordOf::Thing(key) if !topology.has(&key) => {
                    places.remove(&key);
                    meta.saved.release(at);
                }
                RecordOf::Thing(_) => {}
                RecordOf::Orphan => meta.saved.release(at),
            }
        }
        marks.sort_unstable();
        meta.saved.take_over(places, marks);
        topology.finish_restoring();
        meta.take_up(topology);
        Ok(meta)
    }
}
