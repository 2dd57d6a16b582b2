//! A log in files: what is in memory is a cache of it.
//!
//! ```text
//!              hot: a memory log                            cold: holders by runs of offsets
//!   append ->  | not written | being written | written |  -> evicted when memory is full
//!                    sync: one batch, one write                    fetch: warm for a while
//! ```
//!
//! Hot path: what the memory log costs, and one look at the set of holders. A record that is
//! released before it is written leaves nothing behind.
//!
//! | part | in |
//! |---|---|
//! | the bytes of a file | [`format`], and how they are walked: [`walk`] |
//! | what is handed to the disk, and what it answers | [`write`] |
//! | which file has what | [`segments`] |
//! | who holds what | [`sets`], of cold records [`cold`], in sums [`paged`], as the batches say [`table`] |
//! | what cold records weigh, until they are told of | [`weights`] |
//! | what several logs were given, and one writes | [`crate::shared`], [`lend`], [`elsewhere`] |
//! | reading what is cold | [`fetch`]; what was damaged here and is whole elsewhere: [`mend`] |
//! | opening | [`recover`], of damaged files [`salvage`], without reading all of them [`digest`] |
//! | giving back space | [`space`], [`rewrite`] |
//! | names of batches among all who have the log | [`terms`] |
//! | which batches others cannot have as such | [`point`] |
//! | batches for others to copy, and copies of others' | [`give`], [`follow`] |
//! | what a batch adds and takes away, for who follows the contents | [`contents`] |
//! | files for others, and files of others | [`manifest`], [`incoming`] |
//!
//! Batches are numbered. A batch with durable records or with notes is synced before the next one is
//! begun, so there is at most one whose fate is open, and spilled records that came after the last sync.

mod cold;
mod contents;
mod digest;
mod elsewhere;
mod fetch;
mod follow;
mod format;
mod give;
mod incoming;
mod lend;
mod manifest;
mod mend;
mod paged;
mod point;
mod recover;
mod rewrite;
mod salvage;
mod segments;
mod sets;
mod space;
mod table;
mod terms;
mod walk;
mod weights;
mod write;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::disk::{Disk, Done, Reached};
use crate::memory::{LARGE, MemoryLog, RecordBytes};
use crate::shared::{Errand, LogNumber, Shared};
use crate::{
    AppendError, BatchName, BatchUnderWay, HEAD_MAX, HoldError, Holder, Keep, Log, Moment, Offset,
    PagedOut, ReadError, Record, RecordWeight, Recovered, RecoveryLimits, RecoverySink, SyncError,
    Usage,
};
use cold::{Cold, Held};
use elsewhere::Elsewhere;
use fetch::{Fetch, Warm};
use lend::{Lending, Seen};
use paged::{Leaving, Paged};
use segments::Segments;
use sets::{SetId, Sets};
use weights::Weights;
use write::Writer;

pub use contents::BatchContents;
pub use digest::{Digester, ReadAt, Undigested};
pub use follow::{CopyError, CutError, OtherBatch, There};
pub(crate) use format::heading;
pub use give::{BatchCopy, NoBatch};
pub use incoming::{Checked, Fetched, Unfit, check};
pub use lend::{Unmatched, match_up, match_up_at_rest};
pub use manifest::{Manifest, ManifestFile, NoPiece, PIECE_MAX, PieceCopy, PieceName};
pub use mend::{Mended, OtherBytes};
pub use recover::{OnDamage, OpenError, Progress, Report, TOO_LATE};
pub use salvage::Damage;

/// What a log in files may use.
#[derive(Clone, Debug)]
pub struct Options {
    /// Written next to the format in each file: who made it.
    pub writer: String,
    /// Any number that those who publish cannot guess: it marks what is the log's in a file, so that
    /// a message cannot pass for it.
    pub seed: u64,
    /// Its number among the logs that it shares records with, the same each time it is opened.
    pub number: LogNumber,
    /// Bytes of a file after which the next is begun while little is held: with more, up to
    /// [`SEGMENT_GROWTH`] times as many.
    pub segment_bytes: u64,
    /// Bytes of written records that stay in memory, at most: an eighth of it while a backlog is on the disk only, and that less
    /// what was read of the backlog, but a part of 32 in any case.
    pub cache_bytes: u64,
    /// Bytes of volatile records above which new ones are written to save memory.
    pub spill_bytes: u64,
    /// Bytes of them that one batch takes, or one record: others wait for what is in the batch. What is left goes into
    /// later batches. Records of at most a part of 64 are taken with what is around them, however many there are: each
    /// that is left costs memory until its last holder leaves.
    pub spill_batch_bytes: u64,
    /// Bytes that may wait to be written; appending more is refused.
    pub unwritten_bytes_max: u64,
    /// Bytes of records that were fetched and not read yet.
    pub warm_bytes: u64,
    /// Bytes of batches that stay in memory for others to copy, in a log with terms, and of those that were read for that.
    pub copies_bytes: u64,
    /// Bytes of files that nothing needs but a [manifest](FileLog::manifest): with more it is let go of.
    pub manifest_bytes: u64,
    /// What to do about a damaged file when the log is opened.
    pub on_damage: OnDamage,
    /// How much a record counts in [`PagedOut::bytes`] and in [sums](Log::recover_sums), of its head or of all its bytes.
    pub weigh: fn(&[u8]) -> RecordWeight,
    /// Where the log ends, if others had to agree: the batches from this number on are cut off when it is opened, and the
    /// next record has this offset, or a later one. Up to there all has to be there, but what is gone as nobody needs it: a
    /// log that ends before is refused.
    pub until: Option<Reached>,
    /// The log is that of a follower ([`FileLog::copy`]), and the batches up to this one are committed, itself included, if the log
    /// has it; or more, as headers of batches tell. What is not known to be committed is not applied. If the log has another
    /// batch of that number, it is not opened.
    pub follows: Option<BatchName>,
    /// The batch behind which a follower's log begins that has none: of a group that was founded without any. Its number and its
    /// term are not 0.
    pub begins_behind: Option<BatchName>,
    /// Whether sealed segments get digests, which a start reads instead of them, unless damage is to be refused: that in
    /// the middle of a segment is found when its records are read.
    pub digests: bool,
}

/// How much longer files are with a long backlog than with none: what is held for a while besides what is live is
/// counted in files, and should be little of what is live or little at all; and files should not be too many.
pub const SEGMENT_GROWTH: u64 = 4;

/// Files that a backlog lies in, about, unless they were shorter or longer than they may be.
const SEGMENTS: u64 = 16;

impl Default for Options {
    fn default() -> Self {
        Self {
            writer: format!("leveret {}", env!("CARGO_PKG_VERSION")),
            seed: 0,
            number: LogNumber::new(0),
            segment_bytes: 16 << 20,
            cache_bytes: 16 << 20,
            spill_bytes: 64 << 20,
            spill_batch_bytes: 2 << 20,
            unwritten_bytes_max: 1 << 30,
            warm_bytes: 8 << 20,
            copies_bytes: 16 << 20,
            manifest_bytes: 4 << 30,
            on_damage: OnDamage::default(),
            weigh: |record| RecordWeight { bytes: record.len() as u64, persistent: Some(true) },
            until: None,
            follows: None,
            begins_behind: None,
            digests: false,
        }
    }
}

/// What is known of a record in memory besides who holds it: its tag.
#[derive(Clone, Copy, Debug)]
struct Tag(u16);

impl Tag {
    /// Bits for the length of the head.
    const HEAD: u16 = 0x7f;
    /// In a batch that was handed to the disk.
    const WRITTEN: u16 = 1 << 7;
    const VOLATILE: u16 = 1 << 8;
    /// To be written although it is volatile.
    const SPILL: u16 = 1 << 9;

    fn new(head: usize, flags: u16) -> Self {
        Self(head as u16 & Self::HEAD | flags)
    }

    fn head(self) -> usize {
        usize::from(self.0 & Self::HEAD)
    }

    fn is(self, flag: u16) -> bool {
        self.0 & flag > 0
    }
}

type Heads = BTreeMap<u64, SmallVec<[u8; 16]>>;

type Marks = HashMap<u64, SmallVec<[(Holder, u8); 1]>, FixedState>;

/// Who holds what, and where it is on disk.
#[derive(Debug, Default)]
struct Store {
    segments: Segments,
    sets: Sets,
    cold: Cold,
    paged: Paged,
    /// Of records that are held.
    marks: Marks,
    /// Written records that are held, and whose bytes are in another log.
    elsewhere: Elsewhere,
    seen: Seen,
    /// The heads of records that the log's owner holds, until they are told of.
    own: Heads,
    /// Those of stragglers, and what all records weigh, until nobody is to be told of them.
    heads: Heads,
    weights: Weights,
}

/// Sums, kept step by step.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    records: u64,
    live_bytes: u64,
    /// Durable records in memory that were not handed to the disk.
    unwritten: u64,
    /// Records of any length that batches are to have,
    waiting: u64,
    /// and the bytes of those that it does not copy.
    large: u64,
    /// Volatile records that are only in memory.
    volatile: u64,
    /// Those of them that are to be written to save memory.
    spilled: u64,
    /// Records in memory that are also on disk.
    cached: u64,
    /// Other logs that hold records.
    lent: u64,
}

impl Sums {
    /// The next batch has to have a record of so many bytes.
    fn wait(&mut self, len: u64) {
        self.waiting += 1;
        self.large += if len > LARGE as u64 { len } else { 0 };
    }

    /// A batch has it, or none needs it any more.
    fn wait_no_more(&mut self, len: u64) {
        self.waiting -= 1;
        self.large -= if len > LARGE as u64 { len } else { 0 };
    }
}

/// A [`Log`] in the files of a [`Disk`]. See the [module](self).
#[derive(Debug)]
pub struct FileLog<D> {
    disk: D,
    /// To be made before anything is written.
    changes: recover::Changes,
    options: Options,
    hot: MemoryLog,
    store: Store,
    sums: Sums,
    writer: Writer,
    fetch: Fetch,
    space: space::Space,
    lending: Lending,
    giving: give::Giving,
    point: point::Known,
    mending: mend::Mending,
    /// What comes of another log's files.
    incoming: Option<Box<incoming::Incoming>>,
    /// Unless the log leads, or has no others.
    following: Option<Box<follow::Following>>,
    /// What tells of records that are left for later.
    again: Option<Box<recover::Again>>,
    /// What is in memory before it was looked at for eviction.
    evicted: Offset,
    next_token: u64,
    /// Of what was submitted, how much is done.
    done: u64,
}

/// A log whose files were read, and not changed.
#[derive(Debug)]
pub enum Inspected<D> {
    /// All of it is there. It may be read, and is to be [settled](FileLog::settle) before it is written to.
    Whole(Box<FileLog<D>>, Report),
    /// Something is damaged or missing, and it is to be gone on without that: what a start that refuses damage would say.
    Damaged(D, Options, OpenError),
}

impl<D: Disk> Inspected<D> {
    /// Who holds its records; where something is damaged, also who did before. Nothing is changed.
    pub fn each_holder(&mut self, mut each: impl FnMut(Holder)) -> Result<(), OpenError> {
        match self {
            Self::Whole(log, _) => {
                log.each_holder(each);
                Ok(())
            }
            Self::Damaged(disk, ..) => recover::each_named(disk, &mut each),
        }
    }

    /// Opens it: damaged files are put aside, and what is built on is made safe.
    pub fn open(
        self,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(FileLog<D>, Report), OpenError> {
        let (mut log, report) = match self {
            Self::Whole(log, report) => (*log, report),
            Self::Damaged(mut disk, options, _) => {
                let (store, found, changes) = recover::repair(&mut disk, &options, progress)?;
                let (log, report) = FileLog::of(disk, options, store, found);
                (FileLog { changes, ..log }, report)
            }
        };
        log.settle()?;
        Ok((log, report))
    }
}

impl<D: Disk> FileLog<D> {
    /// Opens the log in a disk, or begins one if the disk is empty. `progress` is told now and then
    /// how far reading is.
    pub fn open(
        disk: D,
        options: Options,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(Self, Report), OpenError> {
        Self::inspect(disk, options, progress)?.open(progress)
    }

    /// Reads the log in a disk, and changes nothing: a start that is refused for another log leaves this one as it was.
    pub fn inspect(
        disk: D,
        options: Options,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Inspected<D>, OpenError> {
        let mut disk = disk;
        match recover::inspect(&mut disk, &options, progress)? {
            recover::Inspected::Whole(whole) => {
                let (store, found, changes) = *whole;
                let (mut log, report) = Self::of(disk, options, store, found);
                log.changes = changes;
                Ok(Inspected::Whole(Box::new(log), report))
            }
            recover::Inspected::Damaged(why) => Ok(Inspected::Damaged(disk, options, why)),
        }
    }

    fn of(disk: D, options: Options, store: Store, found: recover::Found) -> (Self, Report) {
        let Reached { end, sequence } = found.reached;
        let end = Offset::new(end);
        let mut sums = Sums::default();
        for segment in &store.segments.all {
            sums.records += segment.live;
            sums.live_bytes += segment.live_bytes;
        }
        let mut writer = Writer::new(end, sequence, found.next_segment, options.seed);
        writer.go_on_in(found.last_term);
        if found.last_term > 0 {
            writer.await_term();
        }
        if let Some(until) = options.until {
            writer.set_agreed(until.sequence);
        }
        let mut log = Self {
            disk,
            changes: recover::Changes::default(),
            hot: MemoryLog::starting_at(end),
            store,
            sums,
            writer,
            fetch: Fetch::new(options.warm_bytes),
            space: space::Space::awaiting(found.kept),
            lending: Lending::default(),
            giving: give::Giving::new(options.copies_bytes),
            point: point::Known::of(found.point),
            mending: mend::Mending::default(),
            incoming: None,
            following: None,
            again: None,
            evicted: end,
            next_token: 0,
            done: 0,
            options,
        };
        if let Some((table, tail)) = found.followed {
            log.follow(table, tail);
        }
        (log, found.report)
    }

    /// Makes the changes that [`inspect`](Self::inspect) found to be needed. To be called before anything is written:
    /// until then the log can be read only.
    pub fn settle(&mut self) -> Result<(), OpenError> {
        let stuck = std::mem::take(&mut self.changes).make(&mut self.disk)?;
        stuck.into_iter().for_each(|file| self.space.stays(file));
        Ok(())
    }

    /// The number of the next batch.
    pub fn next_batch(&self) -> u64 {
        self.writer.sequence()
    }

    /// Batches from this number on may be cut off when the log is opened next: others have not agreed to them. So what only they
    /// release stays in the files. A log that is told nothing has no others, unless it was opened with [`Options::until`]: then
    /// it begins with that. A lower number than before changes nothing.
    pub fn set_agreed(&mut self, batch: u64) {
        self.writer.set_agreed(batch);
        self.space.look();
        self.space.sealed();
    }

    /// Changes from how many bytes on volatile records are written to save memory.
    pub fn set_spill_bytes(&mut self, bytes: u64) {
        self.options.spill_bytes = bytes;
    }

    /// The disk, with which another log may be opened once nothing is under way: a leader that is one no longer forgets what it
    /// did, and reads its files as a follower.
    pub fn into_disk(self) -> D {
        self.disk
    }

    /// The disk, for those who made it.
    pub fn disk(&mut self) -> &mut D {
        &mut self.disk
    }

    /// Whether the disk has done all that it was asked for, as far as was [collected](Log::collect): then another log may be opened
    /// with it.
    pub fn is_idle(&self) -> bool {
        self.done == self.next_token
    }

    /// Whether there is so little room on the disk that what is kept for others alone is to go.
    pub fn wants_room(&self) -> bool {
        self.writer.is_full() || self.disk.wants_room()
    }

    /// Whether a batch is under way, so that [`sync`](Log::sync) would hand the disk nothing.
    pub fn is_writing(&self) -> bool {
        self.writer.is_writing()
    }

    /// Appends a record, whose head has so many bytes.
    fn add(
        &mut self,
        source: RecordBytes<'_>,
        head_len: usize,
        holders: &[Holder],
        keep: Keep,
    ) -> Result<Offset, AppendError> {
        assert!(head_len <= HEAD_MAX, "a head of {head_len} bytes");
        let record_len = source.len()?;
        let len = record_len as u64;
        let is_volatile = keep == Keep::Volatile;
        self.writer.admits(is_volatile)?;
        if holders.is_empty() {
            return Ok(self.hot.append_hole());
        }
        let flags = if is_volatile {
            let spill = self.sums.volatile + len > self.options.spill_bytes;
            Tag::VOLATILE | if spill { Tag::SPILL } else { 0 }
        } else {
            let waiting = self.sums.unwritten;
            if waiting > 0 && waiting + len > self.options.unwritten_bytes_max
                || waiting + self.writer.flying_bytes() + len > self.disk.room()
            {
                return Err(AppendError::Full);
            }
            0
        };
        let set = self.store.sets.get(holders);
        let tag = Tag::new(head_len, flags);
        let at = self.hot.append_tagged(source, record_len, (set.get(), tag.0));
        self.sums.records += 1;
        self.sums.live_bytes += len;
        if is_volatile {
            self.sums.volatile += len;
            if Tag(tag.0).is(Tag::SPILL) {
                self.sums.spilled += len;
                self.sums.wait(len);
            }
        } else {
            self.sums.unwritten += len;
            self.sums.wait(len);
        }
        Ok(at)
    }

    /// Takes in what the disk has done, as it was done.
    fn take_completions(&mut self) -> Result<(), SyncError> {
        let first_kept = self.fetch.first_new();
        while let Some((token, done)) = self.disk.poll() {
            self.done += u64::from(!matches!(done, Done::Failed(_)));
            match done {
                Done::Written { head, body, result } => {
                    match self.rewrite_written(token, head, &result) {
                        Some(head) if self.following.is_some() => {
                            self.copied(token, (head, body), result);
                        }
                        Some(head) => self.written(token, (head, body), result),
                        None => {}
                    }
                }
                Done::Read(result) => {
                    let Some(result) = self.rewrite_read(token, result) else { continue };
                    let Some(result) = self.given_read(token, result) else { continue };
                    let Some(result) = self.piece_read(token, result) else { continue };
                    let Self { disk, fetch, store, next_token, .. } = self;
                    let mut submit = |op| submit(disk, next_token, op);
                    fetch.input(token, result, store, &mut submit);
                }
                Done::Removed(result) => {
                    if let Some(result) = self.cut_done(token, result) {
                        self.removed(token, &result);
                    }
                }
                Done::Cut(result) => drop(self.cut_done(token, result)),
                Done::Mended(result) => self.mending.written(token, result),
                Done::PointSet(result) => self.point_set(token, result),
                Done::Received(result) => self.received(token, result),
                Done::Checked(result) => self.checked(token, result),
                Done::Installed(result) => self.installed(token, result),
                Done::Digested(result) => self.digested(token, &result),
                Done::Failed(error) => self.writer.fail(error.to_string()),
            }
        }
        self.end_flight();
        let elsewhere = &self.store.elsewhere;
        self.fetch.trim(first_kept, |at| elsewhere.get(at).is_some());
        self.evict();
        self.space_step();
        self.install_if_idle();
        self.pump_reads();
        self.writer.check()
    }

    fn pump_reads(&mut self) {
        let Self { disk, fetch, store, next_token, .. } = self;
        fetch.pump(store, &mut |op| submit(disk, next_token, op));
    }

    /// Bytes of a file after which the next is begun.
    fn segment_len(&self) -> u64 {
        let least = self.options.segment_bytes;
        (self.sums.live_bytes / SEGMENTS).clamp(least, least.saturating_mul(SEGMENT_GROWTH))
    }

    /// Bytes of written records that stay in memory. The more is on the disk only, the farther its readers are
    /// from what was written last, and the less they have of it. What they have read and not taken counts with it.
    fn cache_bytes(&self) -> u64 {
        let most = self.options.cache_bytes;
        let cold = self.sums.live_bytes.saturating_sub(self.hot.live_bytes());
        let left = most.saturating_sub(cold / 4).max(most / 8);
        left.saturating_sub(self.fetch.kept_bytes()).max(most / 32)
    }

    /// Drops written records from memory, oldest first, until the cache is within its limit.
    fn evict(&mut self) {
        let safe = self.writer.settled();
        let mut leaving = Leaving::default();
        while self.sums.cached > self.cache_bytes() {
            if let Some(at) = self.writer.next_late() {
                self.evict_between(Offset::new(at), Offset::new(at).next(), &mut leaving);
            } else if self.evicted < safe {
                let end = self.hot.block_end(self.evicted).min(safe);
                self.evict_between(self.evicted, end, &mut leaving);
                self.evicted = end;
            } else {
                break;
            }
        }
        self.store.paged.left(leaving, &self.store.sets);
    }

    fn evict_between(&mut self, from: Offset, end: Offset, leaving: &mut Leaving) {
        let mut written = Vec::new();
        let weigh = self.options.weigh;
        self.hot.walk(from, end, &mut |at, tag, held, bytes| {
            let tag = Tag(*tag);
            if tag.is(Tag::WRITTEN) {
                written.push(Offset::new(at));
                let (records, sum) = leaving.entry((held, tag.is(Tag::VOLATILE))).or_default();
                *records += 1;
                *sum += weigh(&bytes).bytes;
            }
        });
        written.into_iter().for_each(|at| self.evict_one(at));
    }

    fn evict_one(&mut self, at: Offset) {
        let Ok(place) = self.hot.place(at) else { return };
        let facts = self.hot.facts(place);
        if let Some(set) = SetId::new(facts.held) {
            let is_volatile = Tag(facts.tag).is(Tag::VOLATILE);
            self.store.cold.insert(at.get(), Held { set, is_volatile });
        }
        self.hot.drop_record(place);
        self.sums.cached -= u64::from(facts.len);
    }

    /// The last holder of a record in memory left.
    fn drop_hot(&mut self, at: Offset, tag: Tag, len: u32) {
        let bytes = u64::from(len);
        self.sums.records -= 1;
        let mut live_bytes = bytes;
        if tag.is(Tag::WRITTEN) {
            self.sums.cached -= bytes;
            // The sum of the segments is kept, which may be an estimate.
            let stored = if self.is_elsewhere(at) { 0 } else { len };
            let counted = self.drop_from_segment(at, Some(stored));
            live_bytes = counted.unwrap_or_else(|| u64::from(stored));
            self.forget_straggler(at);
            self.leave_elsewhere(at);
            self.writer.forget(at.get(), stored);
        } else if tag.is(Tag::VOLATILE) {
            self.sums.volatile -= bytes;
            if tag.is(Tag::SPILL) {
                self.sums.spilled -= bytes;
                self.sums.wait_no_more(bytes);
            }
        } else {
            self.sums.unwritten -= bytes;
            self.sums.wait_no_more(bytes);
        }
        self.sums.live_bytes -= live_bytes;
        self.forget_marks(at);
        if !tag.is(Tag::WRITTEN) {
            self.leave_shared(at);
        }
    }

    /// The last holder of a written record left: its segment has one less, of `len` bytes if that is known.
    /// Gives the bytes that the segment counted for it; none if no segment has it.
    fn drop_from_segment(&mut self, at: Offset, len: Option<u32>) -> Option<u64> {
        let index = self.store.segments.of(at.get())?;
        let segment = &mut self.store.segments.all[index];
        let bytes = segment.drop_record(len);
        if segment.live == 0 {
            self.space.look();
        }
        self.space.freed(bytes, self.options.segment_bytes);
        Some(bytes)
    }

    fn forget_marks(&mut self, at: Offset) {
        if !self.store.marks.is_empty() {
            self.store.marks.remove(&at.get());
        }
    }

    fn forget_straggler(&mut self, at: Offset) {
        if !self.store.segments.stragglers.is_empty() {
            self.store.segments.stragglers.remove(&at.get());
        }
    }

    /// A record was read. If it is cold and another holder may read it, too, it stays.
    fn take_warm(&mut self, at: Offset) {
        let held = self.store.cold.get(at.get());
        if held.is_some_and(|held| self.store.sets.len(held.set) == 1) {
            self.fetch.taken(at);
        }
    }

    /// What tells of the records that are there now.
    fn again(&mut self) -> recover::Again {
        recover::Again::new(&mut self.store, self.hot.end().get(), self.options.digests)
    }

    /// Tells of records from an offset on. Where it goes on.
    fn tell(
        &mut self,
        again: &mut recover::Again,
        from: u64,
        most: RecoveryLimits,
        each: &mut dyn FnMut(Recovered<'_>),
    ) -> Result<u64, OpenError> {
        let (range, mut left) = ((from, again.end()), most);
        again.tell(&mut self.disk, &self.store, range, &mut left, &mut |run| {
            for at in run.at.get()..run.at.get().saturating_add(run.count) {
                each(Recovered { at: Offset::new(at), head: run.head, holders: run.holders });
            }
        })
    }

    fn release_cold(&mut self, at: Offset, holder: Holder) -> Result<(), HoldError> {
        let released = HoldError::Released { at };
        let store = &mut self.store;
        let Held { set, is_volatile } = store.cold.get(at.get()).ok_or(released)?;
        let rest = store.sets.without(set, holder).map_err(|()| released)?;
        let bytes = self.fetch.bytes(at).map(|bytes| (self.options.weigh)(bytes).bytes);
        store.paged.released(holder, is_volatile, bytes);
        match rest {
            Some(rest) if rest == set => {}
            Some(rest) => store.cold.insert(at.get(), Held { set: rest, is_volatile }),
            None => {
                if is_volatile {
                    self.note_lost(at, holder);
                }
                self.store.cold.remove(at.get());
                self.sums.records -= 1;
                let len = self.fetch.forget(at, &self.store);
                let len = if self.is_elsewhere(at) { Some(0) } else { len };
                self.sums.live_bytes -= self.drop_from_segment(at, len).unwrap_or(0);
                self.forget_marks(at);
            }
        }
        if !is_volatile {
            self.note_release(at, holder);
        }
        if self.store.cold.get(at.get()).is_none() {
            self.forget_straggler(at);
            self.leave_elsewhere(at);
        }
        Ok(())
    }
}

/// Submits with a name of its own.
fn submit<D: Disk>(disk: &mut D, next_token: &mut u64, op: crate::disk::Op) -> crate::disk::Token {
    let token = crate::disk::Token(*next_token);
    *next_token += 1;
    disk.submit(token, op);
    token
}

impl<D: Disk> Log for FileLog<D> {
    fn append(
        &mut self,
        head: &[u8],
        parts: &[&[u8]],
        holders: &[Holder],
        keep: Keep,
    ) -> Result<Offset, AppendError> {
        self.add(RecordBytes::Pieces(head, parts), head.len(), holders, keep)
    }

    fn append_whole(
        &mut self,
        record: &Bytes,
        head_len: usize,
        holders: &[Holder],
        keep: Keep,
    ) -> Result<Offset, AppendError> {
        self.add(RecordBytes::Whole(record), head_len, holders, keep)
    }

    fn append_shared(
        &mut self,
        record: &Bytes,
        head_len: usize,
        holders: &[Holder],
        keep: Keep,
        shared: &Arc<Shared>,
    ) -> Result<Offset, AppendError> {
        let result = self.add(RecordBytes::Whole(record), head_len, holders, keep);
        self.begin_shared(result.as_ref().ok().filter(|_| !holders.is_empty()), shared);
        result
    }

    fn errands(&mut self, each: &mut dyn FnMut(Errand)) {
        self.lending.errands.drain(..).for_each(each);
    }

    fn lent(&mut self, at: Offset, bytes: Result<Bytes, ReadError>) {
        self.fetch.lent(at, bytes, &self.store);
    }

    fn persist(&mut self, at: Offset) -> Result<Offset, HoldError> {
        self.make_durable(at)
    }

    fn readable(&self) -> Offset {
        self.hot.end()
    }

    fn durable(&self) -> Offset {
        self.writer.durable()
    }

    fn end(&self) -> Offset {
        self.hot.end()
    }

    fn read(&self, at: Offset) -> Result<Record, ReadError> {
        match self.hot.read(at) {
            Err(ReadError::Released { at }) if self.store.cold.get(at.get()).is_some() => {
                match self.fetch.warm(at) {
                    Warm::Here(bytes) => Ok(Record { bytes }),
                    Warm::Damaged(error) => Err(error),
                    Warm::No => Err(ReadError::Cold { at }),
                }
            }
            result => result,
        }
    }

    fn fetch_ahead(&mut self, soon: &[Offset]) {
        for &at in soon {
            if self.store.cold.get(at.get()).is_some() && !self.borrow(at, true) {
                self.fetch.want_ahead(at);
            }
        }
    }

    fn is_asked(&self, at: Offset) -> bool {
        self.fetch.is_asked(at)
    }

    fn each_fetched(&mut self, each: &mut dyn FnMut(Offset)) {
        self.fetch.each_done(each);
    }

    #[inline]
    fn taken(&mut self, at: Offset) {
        if !self.fetch.is_empty() {
            self.take_warm(at);
        }
    }

    fn fetch(&mut self, soon: &[Offset]) {
        for &at in soon {
            if self.store.cold.get(at.get()).is_some() && !self.borrow(at, false) {
                self.fetch.want(at);
            }
        }
        // While something is read, more may be asked for that lies beside this and is read with it.
        if !self.fetch.is_busy() {
            self.pump_reads();
        }
    }

    fn release(&mut self, at: Offset, holder: Holder) -> Result<(), HoldError> {
        let place = match self.hot.place(at) {
            Ok(place) => place,
            Err(HoldError::Released { .. }) => {
                self.release_cold(at, holder)?;
                self.count_lent(holder);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let facts = self.hot.facts(place);
        let (tag, released) = (Tag(facts.tag), HoldError::Released { at });
        let set = SetId::new(facts.held).ok_or(released)?;
        let rest = self.store.sets.without(set, holder).map_err(|()| released)?;
        if tag.is(Tag::WRITTEN) && !tag.is(Tag::VOLATILE) {
            self.note_release(at, holder);
        }
        match rest {
            Some(rest) => self.hot.set_held(place, rest.get()),
            None => {
                if tag.is(Tag::WRITTEN) && tag.is(Tag::VOLATILE) {
                    self.note_lost(at, holder);
                }
                self.hot.drop_record(place);
                self.drop_hot(at, tag, facts.len);
            }
        }
        self.count_lent(holder);
        Ok(())
    }

    fn is_held(&self, at: Offset, holder: Holder) -> bool {
        let set = match self.hot.place(at) {
            Ok(place) => SetId::new(self.hot.facts(place).held),
            Err(_) => self.store.cold.get(at.get()).map(|held| held.set),
        };
        set.is_some_and(|set| self.store.sets.has(set, holder))
    }

    fn mark(&mut self, at: Offset, holder: Holder, mark: u8) -> Result<(), HoldError> {
        let is_noted = match self.hot.place(at) {
            Ok(place) => {
                let tag = Tag(self.hot.facts(place).tag);
                tag.is(Tag::WRITTEN) && !tag.is(Tag::VOLATILE)
            }
            Err(HoldError::Released { .. }) => {
                let held = self.store.cold.get(at.get());
                !held.ok_or(HoldError::Released { at })?.is_volatile
            }
            Err(error) => return Err(error),
        };
        let marks = self.store.marks.entry(at.get()).or_default();
        match marks.iter_mut().find(|(name, _)| *name == holder) {
            Some((_, was)) => *was = mark,
            None => marks.push((holder, mark)),
        }
        if is_noted {
            self.note_mark(at, holder, mark);
        }
        Ok(())
    }

    fn own(&mut self, each: &mut dyn FnMut(Offset, &[u8])) {
        let own = std::mem::take(&mut self.store.own);
        own.iter().for_each(|(&at, head)| each(Offset::new(at), head));
    }

    fn recover(&mut self, each: &mut dyn FnMut(Recovered<'_>)) {
        let mut again = self.again();
        let mut at = 0;
        while at < again.end() {
            match self.tell(&mut again, at, RecoveryLimits::NONE, each) {
                Ok(next) => at = next,
                Err(error) => return self.writer.fail(error.to_string()),
            }
        }
        self.recovered_all();
    }

    fn recover_sums(
        &mut self,
        apart: &[Range<Offset>],
        enough: RecoveryLimits,
        to: &mut dyn RecoverySink,
    ) {
        let mut again = self.again();
        let Self { disk, store, .. } = self;
        match recover::count(&mut again, disk, store, (apart, enough), to) {
            Ok(()) => self.again = Some(Box::new(again)),
            Err(error) => self.writer.fail(error.to_string()),
        }
        self.store.weights = Weights::default();
    }

    fn recover_more(
        &mut self,
        from: Offset,
        most: RecoveryLimits,
        each: &mut dyn FnMut(Recovered<'_>),
    ) -> Result<Option<Offset>, SyncError> {
        self.writer.check()?;
        let Some(mut again) = self.again.take() else { return Ok(None) };
        again.pass(from.get());
        let told = self.tell(&mut again, from.get(), most, each);
        let end = again.end();
        self.again = Some(again);
        match told {
            Ok(next) => Ok((next < end).then_some(Offset::new(next))),
            Err(error) => {
                self.writer.fail(error.to_string());
                self.writer.check().map(|()| None)
            }
        }
    }

    fn recovered_all(&mut self) {
        self.again = None;
        (self.store.heads, self.store.weights) = Default::default();
    }

    fn collect(&mut self) -> Result<(), SyncError> {
        self.take_completions()?;
        self.pass_many();
        Ok(())
    }

    fn sync(&mut self) -> Result<(), SyncError> {
        self.sync_until(self.now())
    }

    fn moment(&self) -> Moment {
        self.now()
    }

    fn sync_until(&mut self, until: Moment) -> Result<(), SyncError> {
        self.take_completions()?;
        self.hand_over(until);
        Ok(())
    }

    fn under_way(&self) -> Option<BatchUnderWay> {
        self.writer.under_way()
    }

    fn notes(&self) -> usize {
        let copies = self.following.as_ref().map_or(0, |following| following.waiting());
        self.writer.notes() + copies
    }

    fn keeps_spares(&self) -> bool {
        self.hot.keeps_spares()
    }

    fn relax(&mut self) {
        self.hot.relax();
    }

    fn usage(&self) -> Usage {
        let hot = self.hot.usage();
        let store = self.store.segments.held_bytes()
            + self.store.sets.held_bytes()
            + self.store.cold.held_bytes()
            + self.store.paged.held_bytes()
            + self.store.marks.allocation_size()
            + self.store.elsewhere.held_bytes()
            + self.store.weights.held_bytes()
            + self.store.heads.len() * 2 * size_of::<(u64, SmallVec<[u8; 16]>)>()
            + self.lending.held_bytes();
        let held = store + self.fetch.held_bytes() + self.writer.held_bytes();
        let held = held + self.space.held_bytes() + self.giving.held_bytes();
        let held = held + self.again.as_ref().map_or(0, |again| again.held_bytes());
        Usage {
            live_bytes: self.sums.live_bytes,
            held_bytes: hot.held_bytes + held as u64 + self.disk.held_bytes(),
            records: self.sums.records,
            blocks: hot.blocks,
            unwritten_bytes: self.unwritten_bytes(),
            disk_bytes: self.store.segments.disk_bytes() + self.space.disk_bytes(),
            lent: self.sums.lent,
        }
    }

    fn paged_out(&self, holder: Holder) -> PagedOut {
        self.store.paged.get(holder)
    }

    fn is_short(&self) -> bool {
        let is_behind = self.sums.unwritten > self.options.unwritten_bytes_max;
        self.writer.is_full() || self.disk.is_short() || is_behind
    }

    fn last_room(&self) -> u64 {
        if self.writer.is_full() {
            return 0;
        }
        self.disk.last_room().saturating_sub(self.sums.unwritten + self.writer.flying_bytes())
    }

    fn unwritten_bytes(&self) -> u64 {
        self.sums.unwritten + self.spilled_bytes() + self.writer.flying_bytes()
    }

    fn spilled_bytes(&self) -> u64 {
        // A full disk takes no spilled ones: they stay in memory, and nobody is to wait for them.
        if self.writer.is_full() { 0 } else { self.sums.spilled }
    }
}

#[cfg(test)]
mod tests;
