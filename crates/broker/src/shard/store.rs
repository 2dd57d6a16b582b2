//! The records of a shard: its log, what the disk gets of it and when, and what waits for a record or for the disk.
//!
//! Hot path: nothing here costs more than the log itself and a few comparisons.
//!
//! Others name a record by its message's offset, and a holder by its queue. What is appended, released, marked or made durable
//! goes through here, so that the log and the timetable of its disk ([`disk`]) always know the same. What follows from
//! the log's progress for others is in [`progress`](super::progress).

mod agreement;
mod cold;
mod disk;
mod lending;
mod race;

use std::ops::Range;

use leveret_log::{
    AppendError, HoldError, Holder, Keep, Log, Moment, PagedOut, ReadError, Record, Recovered,
    RecoveryLimits, RecoverySink, SyncError, Usage,
};
use leveret_queue::{Offset, Time};
use leveret_topology::QueueId;
use smallvec::SmallVec;

use crate::held::Held;
use crate::message::Publish;
use crate::record::{HEAD, Head};
use crate::stream::NoteHead;
use crate::transaction::{NOTES, Note};
use cold::Cold;
use disk::Disk;

pub(super) use cold::{Parked, Reading};
pub(super) use disk::Waiter;
pub use disk::{LAZY_MAX_MS, LAZY_MS};
pub(super) use race::Odds;

/// How often the log gives back what it kept and did not need, in ms.
const SPARES_MS: u64 = 1000;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Store<L> {
    log: L,
    disk: Disk,
    cold: Cold,
    /// What turns told of their doings, until the log is agreed upon so far.
    held: Held<Moment>,
    /// Messages below came back from before a crash, and may have been delivered.
    seen_below: leveret_log::Offset,
    /// Messages below are given out once they are agreed upon.
    commits_below: u64,
    /// When to look at what the log keeps for later records; none while it keeps nothing.
    spares_at: Option<Time>,
    /// When the log was last said to take no messages.
    complained_at: Option<Time>,
    /// What the log was told of all members in contact.
    all_use: (bool, bool),
}

/// Records that are no messages were appended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noted {
    pub(super) first: Offset,
    pub(super) count: u64,
    /// When that was done.
    pub(super) moment: Moment,
}

impl<L: Log> Store<L> {
    pub(super) fn new(log: L) -> Self {
        Self {
            log,
            disk: Disk::default(),
            cold: Cold::default(),
            held: Held::default(),
            seen_below: leveret_log::Offset::default(),
            commits_below: 0,
            spares_at: None,
            complained_at: None,
            all_use: (false, false),
        }
    }

    pub(super) fn log(&self) -> &L {
        &self.log
    }

    pub(super) fn log_mut(&mut self) -> &mut L {
        &mut self.log
    }

    pub(super) fn usage(&self) -> Usage {
        self.log.usage()
    }

    /// What of a queue's records is on the disk alone.
    pub(super) fn paged_out(&self, queue: QueueId) -> PagedOut {
        self.log.paged_out(holder(queue))
    }

    /// Bytes that may still be written.
    pub(super) fn last_room(&self) -> u64 {
        self.log.last_room()
    }

    /// Appends a message, for all of its queues. `is_persistent` is what a start is told of it, and `is_durable` that the disk is
    /// to have it now.
    pub(super) fn append(
        &mut self,
        publish: &Publish,
        is_persistent: bool,
        is_durable: bool,
        wall: Time,
        now: Time,
    ) -> Result<Offset, AppendError> {
        let message = &publish.message;
        let head = Head { persistent: is_persistent, ..Head::of(publish, wall.ms()) };
        let (one, all): ([Holder; 1], SmallVec<[Holder; 8]>);
        let holders: &[Holder] = match publish.targets[..] {
            [id] => {
                one = [holder(id)];
                &one
            }
            ref targets => {
                all = targets.iter().map(|&id| holder(id)).collect();
                &all
            }
        };
        let keep = if is_durable { Keep::Durable } else { Keep::Volatile };
        let record = message.record().filter(|record| head.begins(record));
        let at = match (record, &publish.shared) {
            (Some(record), Some(shared)) => {
                self.log.append_shared(record, HEAD, holders, keep, shared)?
            }
            (Some(record), None) => self.log.append_whole(record, HEAD, holders, keep)?,
            (None, shared) => {
                debug_assert!(shared.is_none(), "shared, and no whole record");
                let first = [message.names(), message.properties(), message.body()];
                let pieces: SmallVec<[&[u8]; 8]>;
                let parts: &[&[u8]] = match message.more() {
                    [] => &first,
                    more => {
                        let more = more.iter().map(|part| &part[..]);
                        pieces = first.into_iter().chain(more).collect();
                        &pieces
                    }
                };
                self.log.append(&head.encode(), parts, holders, keep)?
            }
        };
        if is_durable && self.log.durable() <= at {
            self.appended(at.get(), now);
        }
        Ok(queue_offset(at))
    }

    /// Appends what a transaction notes: [`release`](Self::release) lets go of it as [`NOTES`](crate::transaction::NOTES).
    pub(super) fn append_note(&mut self, note: Note, now: Time) -> Result<Offset, AppendError> {
        let at = self.log.append(&note.encode(), &[], &[Note::holder()], Keep::Durable)?;
        self.appended(at.get(), now);
        Ok(queue_offset(at))
    }

    /// Appends records that are no messages, one after the other, all or none: [`release_note`](Self::release_note) lets go of
    /// them one by one.
    pub(super) fn append_notes(
        &mut self,
        heads: &[NoteHead],
        now: Time,
    ) -> Result<Noted, AppendError> {
        let first = self.log.end();
        for (count, head) in heads.iter().enumerate() {
            match self.log.append(head, &[], &[Note::holder()], Keep::Durable) {
                Ok(at) => self.appended(at.get(), now),
                Err(error) => {
                    let appended = first.get()..first.get() + count as u64;
                    appended.for_each(|at| self.release_note(Offset::new(at)));
                    return Err(error);
                }
            }
        }
        let (first, count) = (queue_offset(first), heads.len() as u64);
        Ok(Noted { first, count, moment: self.log.moment() })
    }

    /// What was done so far.
    pub(super) fn moment(&self) -> Moment {
        self.log.moment()
    }

    /// Lets go of such a record.
    pub(super) fn release_note(&mut self, at: Offset) {
        self.release(at, NOTES);
    }

    /// Messages are not stored, so many since the start: one line a second.
    #[cold]
    pub(super) fn complain(&mut self, error: AppendError, unstored: u64, now: Time) {
        if self.complains(now) {
            tracing::error!(%error, unstored, "messages are not stored; publishers that want confirms are told");
        }
    }

    /// The same of a note, which each turn tries to write.
    #[cold]
    pub(super) fn complain_of_note(&mut self, error: AppendError, now: Time) {
        if self.complains(now) {
            tracing::error!(%error, "what was done of numbered letters is not noted yet");
        }
    }

    /// Whether it is a second since the last complaint of an append.
    fn complains(&mut self, now: Time) -> bool {
        let is_due = self.complained_at.is_none_or(|at| at.after_ms(1_000) <= now);
        if is_due {
            self.complained_at = Some(now);
        }
        is_due
    }

    /// A queue lets go of a record.
    #[inline]
    pub(super) fn release(&mut self, at: Offset, queue: QueueId) {
        self.released(at.get(), queue);
        if let Err(error) = self.log.release(log_offset(at), holder(queue)) {
            // A message that leaves a queue twice is a bug of ours: loud in tests, survivable in use.
            debug_assert!(false, "{error}");
            tracing::error!(%error, "a record was released twice");
        }
    }

    /// Notes what the next start is to know of a message in a queue.
    pub(super) fn mark(&mut self, at: Offset, queue: QueueId, mark: u8) {
        // Transient ones take no mark; they are gone anyway. What is not written is not marked either.
        let _ = self.log.mark(log_offset(at), holder(queue), mark);
    }

    /// A record that was not to be durable is to be: it is below what this returns, which can be [asked](Self::ask) for.
    pub(super) fn persist(&mut self, at: Offset) -> Result<u64, HoldError> {
        self.log.persist(log_offset(at)).map(leveret_log::Offset::get)
    }

    /// A record that was deferred is to be durable now. Whether it is there.
    pub(super) fn persist_now(&mut self, at: u64) -> bool {
        match self.log.persist(leveret_log::Offset::new(at)) {
            Ok(until) => {
                self.disk.persist(until.get());
                return true;
            }
            // Lent: its publisher waits, its record is not needed any more.
            Err(HoldError::Released { .. }) => {}
            Err(error) => {
                debug_assert!(false, "{error}");
                tracing::error!(%error, "a message could not be made durable");
            }
        }
        false
    }

    /// Whether a queue holds the record.
    pub(super) fn is_held(&self, at: Offset, queue: QueueId) -> bool {
        self.log.is_held(log_offset(at), holder(queue))
    }

    /// What was [persisted](Self::persist) is to be durable now: somebody waits.
    pub(super) fn persist_all(&mut self, end: u64) {
        self.disk.persist(end);
    }

    #[inline]
    pub(super) fn read(&self, at: Offset) -> Result<Record, ReadError> {
        self.log.read(log_offset(at))
    }

    /// The same of a record that is to be given out, by a queue that may do so `before_commit`.
    #[inline]
    pub(super) fn read_to_give(
        &self,
        at: Offset,
        before_commit: bool,
    ) -> Result<Record, ReadError> {
        match before_commit && at.get() >= self.commits_below {
            true => self.log.read_uncommitted(log_offset(at)),
            false => self.read(at),
        }
    }

    /// What was appended so far is given out once it is agreed upon, whatever its queues say.
    #[inline]
    pub(super) fn commit_first(&mut self) {
        self.commits_below = self.log.end().get();
    }

    /// Whether the record cannot be read now, and will be. One that is damaged or gone will not: reading it says so.
    pub(super) fn is_to_come(&self, at: Offset) -> bool {
        self.read(at).is_err_and(|error| error.is_to_come())
    }

    /// The record was given to a consumer.
    #[inline]
    pub(super) fn taken(&mut self, at: Offset) {
        self.log.taken(log_offset(at));
    }

    /// Below it everything is durable.
    #[inline]
    pub(super) fn durable(&self) -> u64 {
        self.log.durable().get()
    }

    /// Whether the disk has the record.
    #[inline]
    pub(super) fn is_durable(&self, at: Offset) -> bool {
        self.durable() > at.get()
    }

    /// The offset of the next record.
    pub(super) fn end(&self) -> Offset {
        queue_offset(self.log.end())
    }

    /// Hands what waits to the disk, and takes in what it has finished.
    pub(super) fn sync(&mut self) -> Result<(), SyncError> {
        self.log.sync()
    }

    /// Whether nothing waits for the disk but what is to be written only to save memory.
    pub(super) fn is_all_durable(&self) -> bool {
        let unwritten = self.log.unwritten_bytes().saturating_sub(self.log.spilled_bytes());
        self.log.durable() == self.log.end() && unwritten == 0
    }

    /// What the log kept that is no message.
    pub(super) fn own(&mut self, each: &mut dyn FnMut(leveret_log::Offset, &[u8])) {
        self.log.own(each);
    }

    /// What the log kept: see [`Log::recover_sums`]. Messages below `seen_below` may have been delivered.
    pub(super) fn recover(
        &mut self,
        seen_below: leveret_log::Offset,
        (apart, enough): (&[Range<leveret_log::Offset>], RecoveryLimits),
        to: &mut dyn RecoverySink,
    ) {
        self.seen_below = seen_below.min(self.log.end());
        self.log.recover_sums(apart, enough, to);
        self.opened();
    }

    /// Tells of records from an offset on, of so many at most: where it goes on, unless that is all. An error is told when the log
    /// is asked for more.
    pub(super) fn recover_more(
        &mut self,
        from: leveret_log::Offset,
        most: RecoveryLimits,
        each: &mut dyn FnMut(Recovered<'_>),
    ) -> Result<Option<leveret_log::Offset>, SyncError> {
        self.log.recover_more(from, most, each)
    }

    /// Of no record it is to be told once more.
    pub(super) fn recovered_all(&mut self) {
        self.log.recovered_all();
    }

    /// Lets go of records that came back and are nobody's.
    pub(super) fn let_go(&mut self, records: impl Iterator<Item = (leveret_log::Offset, Holder)>) {
        for (at, holder) in records {
            if let Err(error) = self.log.release(at, holder) {
                tracing::error!(%error, "a message of a queue that is gone could not be let go");
            }
        }
    }

    /// What is below this offset may have been delivered.
    pub(super) fn seen_below(&self) -> leveret_log::Offset {
        self.seen_below
    }

    /// Has the log give back what it kept for later records and did not need, now and then.
    pub(super) fn relax(&mut self, now: Time) {
        if self.spares_at.is_some_and(|at| at <= now) {
            self.spares_at = None;
            self.log.relax();
        }
    }

    /// A turn ends.
    pub(super) fn watch_spares(&mut self, now: Time) {
        if self.log.keeps_spares() {
            self.spares_at.get_or_insert_with(|| now.after_ms(SPARES_MS));
        }
    }

    /// When the shard must run for the disk's sake, or the log's.
    pub(super) fn next_timeout(&self) -> Option<Time> {
        self.disk.next_timeout().into_iter().chain(self.spares_at).min()
    }
}

/// A queue as the log names those who hold its records.
fn holder(queue: QueueId) -> Holder {
    Holder::new(queue.get())
}

/// A log's offset as queues name it.
pub(super) fn queue_offset(at: leveret_log::Offset) -> Offset {
    Offset::new(at.get())
}

/// A queue's offset as the log names it.
pub(super) fn log_offset(at: Offset) -> leveret_log::Offset {
    leveret_log::Offset::new(at.get())
}
