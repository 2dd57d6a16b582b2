//! The data directory: what is in it, how it is opened, and how it is left.
//!
//! ```text
//!   leveret.lock      locked by the process that uses the directory, as the directory itself is
//!   layout            format of the directory and number of shards, as text
//!   clean             there when the last process left in good order: nothing was under way; which files it left
//!   orphans.kept      there while messages of queues that the names do not have are not let go: they may have lost some
//!   names/            log of vhosts, users, exchanges, queues, bindings, policies
//!   shards/0/ ...     log of the messages of each shard's queues
//! ```
//!
//! A queue stays in the shard of its home, whose record of the queue says so, or says nothing: then the number of shards tells
//! (`leveret_topology::Homes`). So that number is the directory's and stays: a machine with more cores later has no more shards.

mod damage;
mod left;
mod orphans;
mod private;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, OnceLock, Weak};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use leveret_config::{DamagedFiles, files};
use leveret_log::disk::FileName;
use leveret_log::file::{
    Damage, Inspected, OnDamage, OpenError, Options as LogOptions, Progress, Report,
    SEGMENT_GROWTH, Unmatched, match_up, match_up_at_rest,
};
use leveret_log::{FileLog, Holder, Log as _, LogNumber, Offset};
use leveret_replica::GroupLog;
use leveret_topology::{GroupId, Homes, QueueId, Topology};

use crate::cluster::{Bell, Rung};
use crate::disk::{ListState, Names, NamesReached, RealDisk, Start, Wake, sync_dir};
use crate::locks::{Rank, Ranked};
use crate::node::Node;
use crate::room::Room;
use crate::runner::{relax_alone, run_alone};
use leveret_broker::message::{ToMeta, ToShard};
use leveret_broker::shard::queue_of;

pub(crate) use damage::tell_damage;
pub(crate) use left::{Left, forget_clean, leave_clean};
pub(crate) use orphans::Orphans;
pub use orphans::drop_orphans;
pub(crate) use private::DirectoryLock;
pub(crate) use private::close_to_others;

/// The log of a node's actors: alone, or that of a group which this node leads.
pub(crate) type NodeLog = GroupLog<RealDisk>;

/// Format of the directory itself. That of log files is their own.
const FORMAT: u32 = 1;

/// The logs of a node, open.
#[derive(Debug)]
pub(crate) struct Storage {
    /// By shard.
    pub shards: Vec<NodeLog>,
    /// By shard: records below may have been delivered, though no mark says so. All, unless the last process left
    /// in good order and all that it left is there.
    pub seen_below: Vec<Offset>,
    /// What was damaged: the directory of the log and its file.
    pub damages: Vec<(PathBuf, Damage)>,
    /// What becomes of messages of queues that are not known.
    pub orphans: Orphans,
    /// The last queue that has a message.
    pub last_queue: Option<QueueId>,
    /// Wakes actors when their disk has done something.
    pub waker: Arc<Waker>,
}

/// Brings news from the disks to the actors.
#[derive(Debug)]
pub struct Waker {
    room: Arc<Room>,
    node: OnceLock<Weak<Node>>,
    give_back: OnceLock<fn()>,
    /// Of a node of a cluster: rung for each piece of news, too.
    bell: OnceLock<Arc<Bell>>,
    news: Ranked<u64>,
    changed: Condvar,
}

/// Whose disk it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskOwner {
    /// A shard, by its place.
    Shard(usize),
    /// The owner of the names.
    Names,
    /// A member of a cluster, who keeps its word there.
    Words,
}

impl Waker {
    /// For the disks of a directory, whose room this is.
    pub fn new(room: Room) -> Self {
        Self {
            room: Arc::new(room),
            node: OnceLock::new(),
            give_back: OnceLock::new(),
            bell: OnceLock::new(),
            news: Ranked::new(Rank::News, 0),
            changed: Condvar::new(),
        }
    }

    /// What is known of the room that the disks have.
    pub fn room(&self) -> &Arc<Room> {
        &self.room
    }

    /// From now on actors are given turns, and threads that rest call `give_back`.
    pub fn attach(&self, node: &Arc<Node>, give_back: fn()) {
        let _ = self.node.set(Arc::downgrade(node));
        let _ = self.give_back.set(give_back);
    }

    /// From now on this rings, too, whatever a disk has done.
    pub(crate) fn ring(&self, bell: &Arc<Bell>) {
        let _ = self.bell.set(Arc::clone(bell));
    }

    fn rests(&self) {
        relax_alone();
        if let Some(give_back) = self.give_back.get() {
            give_back();
        }
    }

    /// Waits until a disk has done something after `seen`, or a while; gives what to call with next.
    pub fn wait(&self, seen: u64) -> u64 {
        let patience = Duration::from_millis(100);
        *self.news.lock().wait_while(&self.changed, patience, |news| *news == seen)
    }

    fn wake(&self, owner: DiskOwner) {
        if let Some(bell) = self.bell.get() {
            bell.ring(Rung::Disk(owner));
        }
        self.wake_owner(owner);
    }

    /// Gives the owner of a log a turn.
    pub(crate) fn wake_owner(&self, owner: DiskOwner) {
        *self.news.lock() += 1;
        self.changed.notify_all();
        let Some(node) = self.node.get().and_then(Weak::upgrade) else { return };
        run_alone(&node, |runner| match owner {
            DiskOwner::Shard(index) => {
                runner.run_shard(node.homes.group_at(index), ToShard::LogWoke)
            }
            DiskOwner::Names => runner.run_meta(ToMeta::LogWoke),
            DiskOwner::Words => {}
        });
    }

    fn for_owner(self: &Arc<Self>, owner: DiskOwner) -> Wake {
        let waker = Arc::clone(self);
        Arc::new(move || waker.wake(owner))
    }
}

/// Memory that messages may take before they are on disk only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    /// The memory watermark, in bytes.
    pub limit: u64,
    /// Part of it that transient messages may take before they are written, too.
    pub paging_ratio: f64,
}

/// The files of stored messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Files {
    /// What to do if one is damaged.
    pub damaged: DamagedFiles,
    /// The most bytes of one after which the next is begun.
    pub segment_bytes_max: u64,
}

/// Bytes of written messages that stay in memory, in all shards: what consumers that keep up need. More
/// would only repeat what the system keeps of the files anyway.
const CACHE_BYTES: u64 = 32 << 20;

/// The least cache that a shard has.
const CACHE_BYTES_MIN: u64 = 2 << 20;

/// The least that a shard has of what it read from the disk.
const WARM_BYTES_MIN: u64 = 512 << 10;

impl Memory {
    /// Bytes of transient messages that each of so many shards keeps in memory. A ratio of 1 turns paging off, as
    /// in RabbitMQ: publishers are blocked at the watermark, whatever the shard.
    pub(crate) fn spill_bytes(self, shards: usize) -> u64 {
        if self.paging_ratio >= 1.0 {
            return u64::MAX;
        }
        (self.limit as f64 * self.paging_ratio) as u64 / shards as u64
    }

    /// Bytes that recent-history exchanges remember in each of so many shards: an eighth of the watermark in all.
    pub(crate) fn history_bytes(self, shards: usize) -> u64 {
        self.limit / 8 / shards as u64
    }

    fn options(self, shards: usize) -> LogOptions {
        let cache = CACHE_BYTES.min(self.limit / 4);
        let cache_bytes = (cache / shards as u64).max(CACHE_BYTES_MIN);
        LogOptions {
            cache_bytes,
            warm_bytes: (cache_bytes / 8).max(WARM_BYTES_MIN),
            spill_bytes: self.spill_bytes(shards),
            weigh: leveret_broker::record::weigh,
            ..LogOptions::default()
        }
    }
}

/// A directory whose files were read and found to belong together. Nothing was changed yet.
#[derive(Debug)]
pub(crate) struct Checked {
    dir: PathBuf,
    shards: Vec<Inspected<RealDisk>>,
    names: Report,
    lost: Vec<left::Lost>,
    /// What the last stop left word of.
    word: left::Word,
    /// By shard: something is missing of it that is not a file which is known to be.
    is_short: Vec<bool>,
    /// The names may have lost some.
    are_names_short: bool,
    /// By shard: what its list says of the last start.
    starts: Vec<Start>,
    /// The same of the names. It is written last, so no shard that was there says less.
    names_start: Start,
    /// The number of this start.
    start: u64,
    waker: Arc<Waker>,
    started: Instant,
}

impl Storage {
    /// Reads the directory, or lays it out for `shards` shards if it is new. Gives the log of names, to be read, and
    /// [settled](FileLog::settle) before it is written to.
    ///
    /// All that may refuse the start looks before anything is changed.
    pub(crate) fn check(
        dir: &Path,
        shards: usize,
        memory: Memory,
        files: Files,
    ) -> anyhow::Result<(NodeLog, Checked)> {
        let started = Instant::now();
        let names_dir = dir.join("names");
        let lost = left::lost(dir)?;
        let (count, lost) = match layout(dir, shards)? {
            Some(count) => (count, lost),
            None => {
                refuse_without_layout(dir)?;
                left::tell_anew(&lost);
                lay_out(dir, shards)?;
                // What somebody moved away is not missed.
                forget_clean(dir)?;
                (shards, Vec::new())
            }
        };
        left::refuse(dir, &lost, files.damaged)?;
        let waker = Arc::new(Waker::new(Room::of(dir)));
        if !names_dir.exists() {
            if has_messages(dir, count)? {
                return Err(without_names(dir, None));
            }
            std::fs::create_dir_all(&names_dir)
                .and_then(|()| sync_dir(dir))
                .with_context(|| format!("cannot make {}", names_dir.display()))?;
        }
        let reached = NamesReached::default();
        // Without a part of the names, messages of queues nobody knows would be let go.
        let disk = disk_of(&names_dir, &waker, DiskOwner::Names, &reached)?;
        let says = disk.list_says();
        let says = says.with_context(|| format!("cannot read {}", names_dir.display()))?;
        let (names_start, last_start) = (disk.start_of(), says.start);
        let mut are_names_short = says.state == ListState::Empty;
        let names = inspect(&names_dir, disk, DiskOwner::Names, memory.options(1))?;
        let Inspected::Whole(mut names, report) = names else {
            anyhow::bail!("the log {} was to be refused", names_dir.display())
        };
        reached.store(names.next_batch(), Ordering::Relaxed);
        let on_damage = match files.damaged {
            DamagedFiles::Aside => OnDamage::Aside,
            DamagedFiles::Refuse => OnDamage::Refuse,
        };
        let segment_bytes = files.segment_bytes_max / SEGMENT_GROWTH;
        // Where damage is to be refused all of each file is read.
        let digests = on_damage == OnDamage::Aside;
        let options = LogOptions { on_damage, segment_bytes, digests, ..memory.options(count) };
        let mut shards = Vec::new();
        let (mut messages, mut is_damaged) = (0, false);
        // How far the names were, as each shard knows.
        let mut seen = Vec::new();
        let word = left::word(dir, count);
        let (mut is_short, mut starts, mut start) = (Vec::new(), Vec::new(), last_start);
        let mut disks = Vec::new();
        for index in 0..count {
            let dir = shard_dir(dir, index);
            let owner = DiskOwner::Shard(index);
            let number = LogNumber::at(index);
            let options = LogOptions { number, ..options.clone() };
            let disk = disk_of(&dir, &waker, owner, &reached)?;
            let says = disk.list_says();
            let says = says.with_context(|| format!("cannot read {}", dir.display()))?;
            seen.push(says.names);
            start = start.max(says.start);
            starts.push(disk.start_of());
            if says.state == ListState::Missing && last_start > 0 && !has_files(&dir)? {
                return Err(emptied(&dir));
            }
            disks.push((says, move || inspect(&dir, disk, owner, options)));
        }
        for (index, (says, log)) in all_at_once("open", disks)?.into_iter().enumerate() {
            let dir = shard_dir(dir, index);
            let log = log?;
            let mut is_unlisted = match (says.state, &log) {
                (ListState::Whole, _) => false,
                (ListState::Empty | ListState::Damaged, _) => true,
                // An older version had none.
                (ListState::Missing, Inspected::Whole(_, report)) => report.list.is_some(),
                (ListState::Missing, Inspected::Damaged(..)) => true,
            };
            // Nor does anybody know then how far the names were.
            are_names_short |= is_unlisted;
            if says.state == ListState::Empty {
                tell_empty(&dir);
            }
            let mut is_older = !is_unlisted && says.start < last_start;
            match &log {
                Inspected::Whole(log, report) => {
                    messages += report.records;
                    // After a stop in good order its word is asked, which knows whether anything was stored since.
                    is_older &= !word.knows(index);
                    if let Some(left) = word.is_short(index, log.next_batch()) {
                        // An empty list is the owner's word that the log goes on with what is there.
                        let is_said = says.state == ListState::Empty;
                        let damaged = if is_said { DamagedFiles::Aside } else { files.damaged };
                        left::refuse_short(&dir, log.next_batch(), left, damaged)?;
                        is_unlisted = true;
                    }
                }
                Inspected::Damaged(..) => is_damaged = true,
            }
            if is_older {
                left::refuse_older(&dir, says.start, last_start, files.damaged)?;
                is_unlisted = true;
            }
            is_short.push(is_unlisted || lost.iter().any(|it| it.path.starts_with(&dir)));
            shards.push(log);
        }
        // Messages know their queues by number: without the names nobody could find them, and they would be let go.
        if report.records == 0 && (messages > 0 || is_damaged) {
            return Err(without_names(dir, Some(messages)));
        }
        for (index, &seen) in seen.iter().enumerate() {
            refuse_older_names(&names_dir, &shard_dir(dir, index), names.next_batch(), seen)?;
        }
        names.hold_files();
        let dir = dir.to_owned();
        let names_report = report;
        let checked = Checked {
            dir,
            shards,
            names: names_report,
            lost,
            word,
            is_short,
            are_names_short,
            starts,
            names_start,
            start: start.saturating_add(1),
            waker,
            started,
        };
        Ok(((*names).into(), checked))
    }
}

impl Checked {
    /// Wakes actors when their disk has done something.
    pub(crate) fn waker(&self) -> &Arc<Waker> {
        &self.waker
    }

    /// A group for each shard that there is, as queues knew no others when their homes were not written down.
    pub(crate) fn homes(&self) -> Homes {
        Homes::among(self.shards.len() as u32)
    }

    /// Refuses logs with messages of queues that live elsewhere: each log has to be where it was.
    pub(crate) fn refuse_strangers(&mut self, topology: &Topology) -> anyhow::Result<()> {
        for (index, log) in self.shards.iter_mut().enumerate() {
            let (dir, group) = (shard_dir(&self.dir, index), topology.homes().group_at(index));
            refuse_stranger(&dir, |each| log.each_holder(each), group, topology)
                .context("Nothing was changed in the data directory")?;
        }
        Ok(())
    }

    /// Before the first change: writes down what is not known any more after it.
    pub(crate) fn note(&self) -> anyhow::Result<()> {
        let note = || {
            if self.are_names_short {
                orphans::keep(&self.dir)?;
            }
            for (index, _) in self.is_short.iter().enumerate().filter(|(_, is_short)| **is_short) {
                damage::note_short(&shard_dir(&self.dir, index), Offset::MAX)?;
            }
            Ok::<_, io::Error>(())
        };
        note().with_context(|| format!("cannot write to {}", self.dir.display()))
    }

    /// Opens the logs of messages: from here on the directory is changed.
    pub(crate) fn open(self) -> anyhow::Result<Storage> {
        let Self { dir, shards: inspected, names, lost, word, is_short, waker, started, .. } = self;
        let (starts, start) = (self.starts, self.start);
        starts.iter().for_each(|it| it.set(start));
        let count = inspected.len();
        tell_of(&dir.join("names"), &names, started, true);
        left::tell(&lost);
        // A start that fails after this one was told of damage leaves it to the next to know that messages were seen.
        if inspected.iter().any(|log| matches!(log, Inspected::Damaged(..))) {
            forget_clean(&dir)?;
        }
        let (mut shards, mut damages) = (Vec::new(), Vec::new());
        for (index, log) in inspected.into_iter().enumerate() {
            let dir = shard_dir(&dir, index);
            let is_whole = lost.iter().all(|lost| !lost.path.starts_with(&dir));
            let opened = log.open(&mut progress_of(&dir));
            let (mut log, report) =
                opened.with_context(|| format!("in the log {}", dir.display()))?;
            // A start that fails later leaves the files that it found.
            log.hold_files();
            tell_of(&dir, &report, started, is_whole);
            shards.push(log);
            damages.extend(report.damaged.into_iter().map(|damage| (dir.clone(), damage)));
        }
        // Where one had no room to say so, or an older version left it without a list, nobody is asked for it yet.
        if starts.iter().all(Start::is_written) {
            let written = self.names_start.write(start);
            written.with_context(|| format!("cannot write to {}", dir.join("names").display()))?;
        }
        let lost_before = shards.iter().enumerate();
        let lost_before =
            lost_before.map(|(index, log)| damage::lost_before(&shard_dir(&dir, index), log));
        let lost_before: Vec<_> = lost_before.collect();
        let batches: Vec<_> = shards.iter().map(FileLog::next_batch).collect();
        // The last stop left nothing on its way, unless its word is of an earlier one.
        let is_at_rest = word.is_of_last(&batches);
        let unmatched = match is_at_rest {
            true => match_up_at_rest(&mut shards, &lost_before),
            false => match_up(&mut shards, &lost_before),
        };
        for (index, log) in shards.iter().enumerate() {
            // Known from now on: what comes later is not lost.
            if is_short[index] || is_at_rest && unmatched.lost > 0 {
                let dir = shard_dir(&dir, index);
                damage::note_short(&dir, log.end())
                    .with_context(|| format!("cannot write to {}", dir.display()))?;
            }
        }
        tell_unmatched(unmatched);
        let is_whole = damages.is_empty() && lost.is_empty() && !is_short.contains(&true);
        let seen_below = match is_whole {
            true => word.seen_below(&dir, &batches),
            false => vec![Offset::MAX; count],
        };
        let mut last_queue = None;
        for log in &shards {
            log.each_holder(|holder| {
                last_queue = last_queue.max(queue_of(holder));
            });
        }
        let orphans = Orphans::of(&dir);
        let shards = shards.into_iter().map(NodeLog::from).collect();
        Ok(Storage { shards, seen_below, damages, orphans, last_queue, waker })
    }
}

/// What becomes of messages whose queue is not among the names that are gone on with.
const KEPT: &str = "messages of queues that are not named any more are kept then, in no queue, until they are let go by \
                    `leveret drop-orphans`";

fn shard_dir(dir: &Path, index: usize) -> PathBuf {
    dir.join("shards").join(index.to_string())
}

/// Whether any of the shards has a file of messages.
fn has_messages(dir: &Path, shards: usize) -> anyhow::Result<bool> {
    for index in 0..shards {
        if has_files(&shard_dir(dir, index))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a log has files. None has one of which there is no directory.
fn has_files(dir: &Path) -> anyhow::Result<bool> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        entries => entries.with_context(|| format!("cannot read {}", dir.display()))?,
    };
    for entry in entries {
        if entry?.file_name().to_str().and_then(FileName::parse).is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn without_names(dir: &Path, messages: Option<u64>) -> anyhow::Error {
    let messages = messages.map_or_else(String::new, |messages| format!("{messages} "));
    anyhow::anyhow!(
        "{} is empty, but there are {messages}messages, whose queues are not known without it. Nothing was changed. \
         Restore it from a copy; or, to go on without them, move {} and {} away too and start again",
        dir.join("names").display(),
        dir.join("shards").display(),
        dir.join("layout").display()
    )
}

/// A shard has a list from its first start on, also without messages.
fn emptied(shard: &Path) -> anyhow::Error {
    anyhow::anyhow!(
        "{shard} is empty, and had a list of files at least when the node started last: perhaps it is a mount point, and \
         nothing is mounted. Nothing was changed. Restore it from a copy; or, to go on without the messages of its queues, \
         make an empty file {list} and start again",
        shard = shard.display(),
        list = shard.join("files").display(),
    )
}

/// Names of an earlier time do not have the queues that messages came to later, which would be let go.
fn refuse_older_names(names: &Path, shard: &Path, batch: u64, seen: u64) -> anyhow::Result<()> {
    anyhow::ensure!(
        batch >= seen,
        "{names} is of an earlier time than {shard}: it ends before change {batch}, and {seen} were there when the \
         last message was stored. Nothing was changed. Restore both from one copy; or, to go on with these names, make {list} \
         empty and start again: {KEPT}",
        names = names.display(),
        shard = shard.display(),
        list = shard.join("files").display(),
    );
    Ok(())
}

/// Whether a start would take the layout of a directory, if there is one.
pub(crate) fn check_layout(dir: &Path) -> anyhow::Result<()> {
    layout(dir, 0).map(drop)
}

/// Reads the layout of a directory: its number of shards, which need not be the one that is wanted. None if it has none.
fn layout(dir: &Path, shards: usize) -> anyhow::Result<Option<usize>> {
    let path = dir.join("layout");
    match files::read_text(&path, files::BYTES_MAX) {
        Ok(text) => {
            let found = parse_layout(&text).with_context(|| {
                format!(
                    "{} is damaged: it should be two lines, `format {FORMAT}` and `shards N`, with as many \
                     shards as there are directories in {}",
                    path.display(),
                    dir.join("shards").display()
                )
            })?;
            let (format, found) = found;
            anyhow::ensure!(
                format <= FORMAT,
                "{} has format {format}; this version knows formats up to {FORMAT}. Start the version that \
                 wrote it, or a later one",
                dir.display()
            );
            refuse_other_shards(dir, &path, found)?;
            if found != shards {
                tracing::info!(shards = found, "the data directory keeps its number of shards");
            }
            Ok(Some(found))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Refuses if the directories of shards that are there are not those of the layout in the file at `path`: queues would be
/// looked for where their messages are not.
fn refuse_other_shards(dir: &Path, path: &Path, count: usize) -> anyhow::Result<()> {
    let there = shard_dirs(dir)?;
    let shards = dir.join("shards");
    let expected: Vec<PathBuf> = (0..count).map(|index| shards.join(index.to_string())).collect();
    let missing = expected.iter().find(|shard| !there.contains(shard));
    let more = there.iter().find(|shard| !expected.contains(shard));
    let path = path.display();
    match (missing, more) {
        (None, None) => Ok(()),
        (Some(missing), None) => anyhow::bail!(
            "{path} says that there are {count} shards, and {} is not there, with the messages of its queues. Restore \
             it from a copy",
            missing.display()
        ),
        (Some(missing), Some(more)) => anyhow::bail!(
            "{path} says that there are {count} shards, and {} is not there, with the messages of its queues, while \
             {} is the directory of no shard. If it was renamed, give it its name back; else restore what is missing \
             from a copy",
            missing.display(),
            more.display()
        ),
        (None, Some(more)) => anyhow::bail!(
            "{} is the directory of no shard: {path} says that there {} {count}, counted from 0. If it came here by \
             mistake, move it away; if {path} is of another time, restore that from a copy",
            more.display(),
            if count == 1 { "is" } else { "are" },
        ),
    }
}

/// Refuses to lay out a directory anew that has something of an earlier one.
fn refuse_without_layout(dir: &Path) -> anyhow::Result<()> {
    let layout = dir.join("layout");
    for left in shard_dirs(dir)? {
        for entry in std::fs::read_dir(&left)? {
            anyhow::ensure!(
                entry?.file_name() == "LOCK",
                "{} is missing, and {} has messages. Nothing was changed. Restore it from a copy, or choose another \
                 directory with --data-dir",
                layout.display(),
                left.display()
            );
        }
    }
    let names = dir.join("names");
    let is_of_use = |entry: io::Result<std::fs::DirEntry>| {
        entry.map_or(true, |entry| entry.file_name() != "LOCK")
    };
    anyhow::ensure!(
        !names.exists() || !list(&names)?.any(is_of_use),
        "{layout} is missing, and {shards} has no messages, but {names} has the names of queues: their messages may have \
         been there. Nothing was changed. Restore {layout} and {shards} from a copy; or, to begin anew, without names and \
         messages, move {names} away too and start again",
        layout = layout.display(),
        shards = dir.join("shards").display(),
        names = names.display(),
    );
    Ok(())
}

/// What is in a directory.
fn list(dir: &Path) -> anyhow::Result<std::fs::ReadDir> {
    std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))
}

/// Makes the directories of the logs, then the file that says so: whole or not at all.
fn lay_out(dir: &Path, shards: usize) -> anyhow::Result<()> {
    let path = dir.join("layout");
    // Left by a first start that was interrupted: without anything in them but locks.
    for left in shard_dirs(dir)? {
        std::fs::remove_dir_all(&left)?;
    }
    let all = dir.join("shards");
    let new = dir.join("layout.new");
    let text = format!("format {FORMAT}\nshards {shards}\n");
    let write = || {
        for index in 0..shards {
            std::fs::create_dir_all(all.join(index.to_string()))?;
        }
        std::fs::create_dir_all(dir.join("names"))?;
        sync_dir(&all)?;
        // The directory may be new itself.
        if let Some(parent) = dir.canonicalize()?.parent() {
            match sync_dir(parent) {
                // Who may not read it has not made it.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                synced => synced?,
            }
        }
        std::fs::write(&new, text)?;
        std::fs::File::open(&new)?.sync_all()?;
        std::fs::rename(&new, &path)?;
        sync_dir(dir)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// The directories of shards that are there.
fn shard_dirs(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let shards = dir.join("shards");
    let mut found = Vec::new();
    if !shards.exists() {
        return Ok(found);
    }
    let read = std::fs::read_dir(&shards);
    for entry in read.with_context(|| format!("cannot read {}", shards.display()))? {
        let entry = entry?;
        let is_number = entry.file_name().to_str().is_some_and(|it| it.parse::<usize>().is_ok());
        if is_number && entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

fn parse_layout(text: &str) -> Option<(u32, usize)> {
    let mut lines = text.lines();
    let format = lines.next()?.strip_prefix("format ")?.parse().ok()?;
    let shards = lines.next()?.strip_prefix("shards ")?.parse().ok()?;
    (shards > 0).then_some((format, shards))
}

/// The disk of a member of a cluster: one of its logs, or its words.
pub(crate) fn disk_of_member(
    dir: &Path,
    waker: &Arc<Waker>,
    owner: DiskOwner,
) -> anyhow::Result<RealDisk> {
    let path = match owner {
        DiskOwner::Shard(index) => shard_dir(dir, index),
        DiskOwner::Names => dir.join("names"),
        DiskOwner::Words => dir.join("words"),
    };
    // How far the names are is no matter of one process: who leads has all of them that are agreed upon.
    disk_of(&path, waker, owner, &NamesReached::default())
}

/// How the log of a member of a cluster is kept, of so many shards.
pub(crate) fn options_of_member(
    owner: DiskOwner,
    memory: Memory,
    segment_bytes_max: u64,
    shards: usize,
) -> LogOptions {
    let options = LogOptions { seed: rand::random(), ..memory.options(shards) };
    match owner {
        DiskOwner::Shard(index) => LogOptions {
            number: LogNumber::at(index),
            segment_bytes: segment_bytes_max / SEGMENT_GROWTH,
            digests: true,
            ..options
        },
        DiskOwner::Names | DiskOwner::Words => {
            LogOptions { seed: options.seed, ..memory.options(1) }
        }
    }
}

/// Tells what was found in the log of a member of a cluster.
pub(crate) fn tell_of_member(dir: &Path, owner: DiskOwner, report: &Report) {
    let dir = match owner {
        DiskOwner::Shard(index) => shard_dir(dir, index),
        DiskOwner::Names | DiskOwner::Words => dir.join("names"),
    };
    tell_of(&dir, report, Instant::now(), true);
}

/// Refuses a directory that a node alone has used: what is in it would not be the cluster's.
pub(crate) fn refuse_of_one_alone(dir: &Path) -> anyhow::Result<()> {
    let shards = layout(dir, 0)?.unwrap_or_default();
    let names = dir.join("names");
    anyhow::ensure!(
        !has_files(&names)? && !has_messages(dir, shards)?,
        "{} has the names and messages of a node that was alone, and a cluster cannot take them over yet. Nothing was          changed. Start the cluster with empty data directories, and move what is here by `leveret migrate`; or take the keys          cluster_formation.classic_config.nodes out, and the node is alone as before",
        dir.display()
    );
    Ok(())
}

/// How long opening may take before it tells how far it is.
const PATIENCE: Duration = Duration::from_secs(1);

fn disk_of(
    dir: &Path,
    waker: &Arc<Waker>,
    owner: DiskOwner,
    names: &NamesReached,
) -> anyhow::Result<RealDisk> {
    let (name, names) = match owner {
        DiskOwner::Shard(index) => (format!("shard-{index}"), Names::Other(Arc::clone(names))),
        DiskOwner::Names => ("names".to_owned(), Names::Own(Arc::clone(names))),
        DiskOwner::Words => ("words".to_owned(), Names::Other(Arc::clone(names))),
    };
    let resting = Arc::clone(waker);
    let rests = Arc::new(move || resting.rests());
    let mut disk = RealDisk::open(dir, &name, names, waker.for_owner(owner), rests, waker.room())
        .with_context(|| format!("cannot make {}", dir.display()))?;
    if matches!(owner, DiskOwner::Names) {
        disk.use_kept_room();
    }
    Ok(disk)
}

/// Does what is to be done for each of some, all at the same time, in threads of this name and their number. What became of
/// each, in their order.
pub(crate) fn all_at_once<A, T: Send>(
    name: &str,
    all: Vec<(A, impl FnOnce() -> T + Send)>,
) -> io::Result<Vec<(A, T)>> {
    std::thread::scope(|scope| {
        let mut begun = Vec::new();
        for (index, (about, work)) in all.into_iter().enumerate() {
            let thread = std::thread::Builder::new().name(format!("{name}-{index}"));
            begun.push((about, thread.spawn_scoped(scope, work)?));
        }
        let end = |work: std::thread::ScopedJoinHandle<'_, T>| match work.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        Ok(begun.into_iter().map(|(about, work)| (about, end(work))).collect())
    })
}

/// Tells now and then how far something is.
#[derive(Debug)]
pub(crate) struct Pace(Instant);

impl Pace {
    pub(crate) fn begin() -> Self {
        Self(Instant::now())
    }

    /// How far it is, if that was not told for a while.
    pub(crate) fn percent(&mut self, done: u64, total: u64) -> Option<u64> {
        if self.0.elapsed() < PATIENCE {
            return None;
        }
        *self = Self::begin();
        Some(done.saturating_mul(100) / total.max(1))
    }
}

/// Tells how far reading a log is.
fn progress_of(dir: &Path) -> impl FnMut(Progress) {
    let mut pace = Pace::begin();
    move |Progress { done, total }| {
        if let Some(percent) = pace.percent(done, total) {
            tracing::info!(log = %dir.display(), percent, megabytes = total >> 20, "reading the log");
        }
    }
}

/// Reads the log in a directory, and changes nothing.
fn inspect(
    dir: &Path,
    disk: RealDisk,
    owner: DiskOwner,
    options: LogOptions,
) -> anyhow::Result<Inspected<RealDisk>> {
    let options = LogOptions { seed: rand::random(), ..options };
    let inspected = FileLog::inspect(disk, options, &mut progress_of(dir));
    let inspected = inspected.map_err(|error| {
        let is_damage = matches!(
            error,
            OpenError::Damaged { .. } | OpenError::Missing { .. } | OpenError::List { .. }
        );
        match owner {
            DiskOwner::Shard(_) if is_damage => anyhow::anyhow!(
                "{error}. With storage.damaged_files = aside a start goes on with all that is whole"
            ),
            DiskOwner::Names if is_damage => anyhow::anyhow!("{error}: {KEPT}"),
            _ => error.into(),
        }
    });
    inspected.with_context(|| format!("in the log {}, in which nothing was changed", dir.display()))
}

/// Messages of another shard's queues are not those of queues that are gone, and are not to be let go as such.
fn refuse_stranger(
    dir: &Path,
    holders: impl FnOnce(&mut dyn FnMut(Holder)) -> Result<(), OpenError>,
    group: GroupId,
    topology: &Topology,
) -> anyhow::Result<()> {
    let mut stranger = None;
    let named = holders(&mut |holder| {
        // Of a queue that is gone nobody knows where it lived: what is left of it may be anywhere.
        let queue = queue_of(holder).and_then(|queue| topology.queue_by_id(queue));
        let home = queue.map(|queue| queue.home).filter(|&home| home != group);
        stranger = stranger.or(home);
    });
    named.with_context(|| format!("in the log {}", dir.display()))?;
    let Some(stranger) = stranger else { return Ok(()) };
    anyhow::bail!(
        "{} has messages of queues of shard {stranger}, so it is not the directory that was written under this name: \
         perhaps two were swapped, or one was copied over another. Give each its name back, or \
         restore all of them, and `layout`, from one copy",
        dir.display()
    )
}

/// An operator wants to go on with the files that are there.
fn tell_empty(dir: &Path) {
    tracing::warn!(
        log = %dir.display(),
        "the list of files, `files`, is empty: the files that are there are taken for all. What was in others is lost; messages \
         of other shards whose bodies it had keep their places, in case it comes back"
    );
}

/// What the logs of shards did not agree about.
fn tell_unmatched(unmatched: Unmatched) {
    let Unmatched { dangling, lost, strange, unneeded } = unmatched;
    if strange > 0 {
        tracing::error!(
            messages = strange,
            "messages cannot be delivered whose bodies are not in the file that should have them, which has others in \
             their place: the directories of the shards are of different times. To get them back, stop the broker, \
             restore all of them from one copy, and start again"
        );
    }
    if lost > 0 {
        tracing::error!(
            messages = lost,
            "messages cannot be delivered whose bodies were in what is damaged, missing or of an earlier time of another \
             shard: a large message for queues of several shards is stored once. They keep their places. To get them \
             back, stop the broker, restore the file or the shard's directory from a copy, and start again"
        );
    }
    if dangling + unneeded > 0 {
        // After every crash under load: what was on its way between shards.
        tracing::info!(
            dangling,
            unneeded,
            "the shards' logs agree about the messages that they share"
        );
    }
}

/// `is_whole`: no file is known to have been longer.
fn tell_of(dir: &Path, report: &Report, started: Instant, is_whole: bool) {
    if report.cut_bytes > 0 && is_whole {
        tracing::warn!(
            log = %dir.display(),
            bytes = report.cut_bytes,
            "the last write was interrupted; its part was cut off, nothing of it was confirmed"
        );
    }
    if report.foreign_bytes > 0 {
        // After every crash under load, so it is no warning.
        tracing::info!(
            log = %dir.display(),
            bytes = report.foreign_bytes,
            "what was behind the last write was cut off: it was no write to this file, but what was left of a file that was used again"
        );
    }
    if let Some(what) = &report.list {
        tracing::warn!(
            log = %dir.display(),
            "the list of files, `files`, {what}: nobody can say whether a file is missing. It was written anew"
        );
    }
    damage::tell_of_earlier(dir, report);
    if report.records > 0 {
        tracing::info!(
            log = %dir.display(),
            records = report.records,
            files = report.files,
            digests = report.digests,
            megabytes = report.bytes >> 20,
            ms = started.elapsed().as_millis() as u64,
            "log opened"
        );
    }
}

#[cfg(test)]
mod tests {
    use leveret_topology::QueueSpec;

    use super::*;

    /// As `docs/storage.md` has it: of all shards together.
    #[test]
    #[rustfmt::skip] // a table
    fn caches_of_all_shards() {
        //    watermark  shards  cache     read ahead
        check(4096,      1,      32_768,   4_096);
        check(4096,      8,      32_768,   4_096);
        check(4096,      16,     32_768,   8_192);
        check(4096,      32,     65_536,   16_384);
        check(64,        1,      16_384,   2_048);
        check(64,        8,      16_384,   4_096);

        #[track_caller]
        fn check(limit_mib: u64, shards: usize, cache_kib: u64, ahead_kib: u64) {
            let options = Memory { limit: limit_mib << 20, paging_ratio: 0.5 }.options(shards);
            let all = |bytes: u64| (bytes * shards as u64) >> 10;
            assert_eq!((all(options.cache_bytes), all(options.warm_bytes)), (cache_kib, ahead_kib));
        }
    }

    #[test]
    fn paging_begins_at_a_shards_part_and_can_be_turned_off() {
        let spill = |paging_ratio, shards| Memory { limit: 1000, paging_ratio }.spill_bytes(shards);
        assert_eq!((spill(0.0, 1), spill(0.5, 1), spill(0.5, 4)), (0, 500, 125));
        assert_eq!((spill(1.0, 1), spill(1.0, 4)), (u64::MAX, u64::MAX));
    }

    #[test]
    fn a_layout_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(layout(dir.path(), 3).expect("new"), None);
        lay_out(dir.path(), 3).expect("written");
        assert_eq!(layout(dir.path(), 8).expect("old"), Some(3));
        assert!(dir.path().join("names").is_dir(), "its name is as safe as the layout's");
        for bad in ["", "format 1", "format 1\nshards 0\n", "format one\nshards 2\n"] {
            std::fs::write(dir.path().join("layout"), bad).expect("write");
            let error = format!("{:#}", layout(dir.path(), 2).expect_err(bad));
            assert!(error.contains("is damaged"), "{error}");
        }
        std::fs::write(dir.path().join("layout"), "format 9\nshards 2\n").expect("write");
        let error = format!("{:#}", layout(dir.path(), 2).expect_err("newer"));
        assert!(error.contains("has format 9"), "{error}");
    }

    /// The names know that a queue is gone before its shard's log has let its messages go, and a crash comes between.
    #[test]
    fn a_log_may_have_messages_of_a_queue_that_is_gone_and_lived_anywhere() {
        let homes = Homes::among(2);
        let mut topology = Topology::new();
        topology.set_homes(homes.by_chance(1));
        let vhost = topology.add_vhost("/").expect("a vhost");
        let declared = (0..20).map(|number| {
            let spec = QueueSpec {
                vhost,
                name: &format!("q{number}"),
                server_named: false,
                durable: true,
                auto_delete: false,
                exclusive_owner: None,
                arguments: Default::default(),
            };
            topology.declare_queue(spec).expect("a queue").id
        });
        let declared: Vec<_> = declared.collect();
        let elsewhere = |id: &&QueueId| topology.home(**id) != homes.usual(**id);
        let queue = *declared.iter().find(elsewhere).expect("a queue that lives elsewhere");
        let look = |group, topology: &Topology| {
            let holders = |each: &mut dyn FnMut(Holder)| {
                each(Holder::new(queue.get()));
                Ok(())
            };
            refuse_stranger(Path::new("0"), holders, group, topology)
        };
        let (home, usual) = (topology.home(queue), homes.usual(queue));
        look(home, &topology).expect("where it lives");
        look(usual, &topology).expect_err("where it does not");
        topology.remove_queue(queue);
        look(home, &topology).expect("where it lived");
    }
}
