//! The disks of a simulated node, and the logs in them.
//!
//! A [`SimDisk`] does its work when it is looked at. Here that is the scheduler's to say: it has one
//! operation done at a time, and later, by a letter, has the log's owner find what was done. So a crash
//! can come between what a log submitted, what the disk did and what the log knows of it.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use leveret_log::disk::{
    Disk, DiskError, Done, FileName, Op, Reached, Roster, RosterLines, SimDisk, Token,
};
use leveret_log::file::{OnDamage, Options as LogOptions, Report};
use leveret_log::{
    AppendError, BatchUnderWay, Errand, FileLog, HoldError, Holder, Keep, Log, LogNumber,
    MemoryLog, Moment, Offset, ReadError, Record, Recovered, RecoveryLimits, RecoverySink, Shared,
    SyncError, Usage,
};
use leveret_queue::Time;

use crate::random::{Random, Seed};

/// Whose disk it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskOwner {
    /// By index.
    Shard(usize),
    Names,
}

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// In good order: everything is on the disk, and it says so.
    Clean,
    /// The same, and then the machine is switched off.
    SwitchedOff,
    /// At once; the machine goes on, with what was written.
    Killed,
    /// The machine too: of what was not synced, anything may be missing.
    PowerCut,
}

/// A disk that works when [`step`](Self::step) is called. Clones are the same disk.
#[derive(Clone, Debug)]
pub(crate) struct StepDisk {
    disk: SimDisk,
    done: Rc<RefCell<VecDeque<(Token, Done)>>>,
}

impl StepDisk {
    fn new(seed: u64) -> Self {
        Self { disk: SimDisk::new(seed), done: Rc::default() }
    }

    /// Whether there is something to do.
    pub(crate) fn is_idle(&self) -> bool {
        self.disk.is_idle()
    }

    /// Does one thing that was submitted.
    pub(crate) fn step(&self) {
        let mut disk = self.disk.clone();
        if let Some(done) = disk.poll() {
            self.done.borrow_mut().push_back(done);
        }
    }

    /// The disk itself, for faults.
    pub(crate) fn sim(&self) -> &SimDisk {
        &self.disk
    }

    /// Bytes of all files.
    pub(crate) fn used(&self) -> u64 {
        self.disk.files().iter().map(|&(_, len)| len).sum()
    }

    fn end(&self, how: Ending) {
        self.done.borrow_mut().clear();
        match how {
            Ending::Clean | Ending::Killed => self.disk.kill(),
            Ending::PowerCut | Ending::SwitchedOff => self.disk.crash(),
        }
    }
}

impl Disk for StepDisk {
    fn submit(&mut self, token: Token, op: Op) {
        self.disk.submit(token, op);
    }

    fn poll(&mut self) -> Option<(Token, Done)> {
        self.done.borrow_mut().pop_front()
    }

    fn coming(&mut self) -> Result<Vec<(FileName, u64)>, DiskError> {
        self.disk.coming()
    }

    fn roster(&mut self) -> Result<Roster, DiskError> {
        self.disk.roster()
    }

    fn enlist(&mut self, lines: &RosterLines, is_needed: bool) -> Result<(), DiskError> {
        self.disk.enlist(lines, is_needed)
    }

    fn list(&mut self) -> Result<Vec<(FileName, u64)>, DiskError> {
        self.disk.list()
    }

    fn read_now(
        &mut self,
        file: FileName,
        position: u64,
        into: &mut [u8],
    ) -> Result<(), DiskError> {
        self.disk.read_now(file, position, into)
    }

    fn truncate_now(&mut self, file: FileName, len: u64) -> Result<(), DiskError> {
        self.disk.truncate_now(file, len)
    }

    fn write_now(&mut self, file: FileName, position: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.disk.write_now(file, position, bytes)
    }

    fn keep_aside(&mut self, file: FileName) -> Result<String, DiskError> {
        self.disk.keep_aside(file)
    }

    fn kept(&mut self) -> Result<Vec<FileName>, DiskError> {
        self.disk.kept()
    }

    fn digest(&mut self, file: FileName) -> Result<Vec<u8>, DiskError> {
        self.disk.digest(file)
    }

    fn keep_digests(&mut self, of: &[FileName]) {
        self.disk.keep_digests(of);
    }

    fn disown_now(&mut self) -> Result<(), DiskError> {
        self.disk.disown_now()
    }

    fn remove_now(&mut self, file: FileName) -> Result<(), DiskError> {
        self.disk.remove_now(file)
    }
}

/// All disks of a node: one per shard, and one for names.
#[derive(Debug)]
pub(crate) struct Disks {
    shards: Vec<StepDisk>,
    names: StepDisk,
    /// Until when each does nothing, names last.
    slow_until: Vec<Time>,
}

impl Disks {
    pub(crate) fn new(seed: Seed, shards: usize) -> Self {
        let mut random = Random::new(seed, 5);
        Self {
            shards: (0..shards).map(|_| StepDisk::new(random.next())).collect(),
            names: StepDisk::new(random.next()),
            slow_until: vec![Time::from_ms(0); shards + 1],
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.shards.len() + 1
    }

    /// By number, names last.
    pub(crate) fn owner(&self, index: usize) -> DiskOwner {
        if index < self.shards.len() { DiskOwner::Shard(index) } else { DiskOwner::Names }
    }

    pub(crate) fn disk(&self, index: usize) -> &StepDisk {
        self.shards.get(index).unwrap_or(&self.names)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &StepDisk> {
        self.shards.iter().chain([&self.names])
    }

    /// Those that have something to do and are not slow.
    pub(crate) fn ready(&self, now: Time) -> impl Iterator<Item = usize> {
        let slow = self.slow_until.iter();
        let disks = self.all().zip(slow).enumerate();
        disks.filter(move |(_, (disk, slow))| !disk.is_idle() && **slow <= now).map(|(at, _)| at)
    }

    /// When the first of the slow ones that have something to do goes on.
    pub(crate) fn next(&self) -> Option<Time> {
        let disks = self.all().zip(&self.slow_until);
        disks.filter(|(disk, _)| !disk.is_idle()).map(|(_, &at)| at).min()
    }

    /// A disk takes its time.
    pub(crate) fn slow_down(&mut self, index: usize, until: Time) {
        if let Some(slow) = self.slow_until.get_mut(index) {
            *slow = until;
        }
    }

    /// What a process leaves behind.
    pub(crate) fn end(&mut self, how: Ending) {
        self.all().for_each(|disk| disk.end(how));
        self.slow_until.fill(Time::from_ms(0));
    }

    /// A crash loses what a log has that was not agreed upon: a shard's, or that of names.
    pub(crate) fn put_back(&mut self, index: usize, agreed: SimDisk) {
        let disk = self.shards.get_mut(index).unwrap_or(&mut self.names);
        *disk = StepDisk { disk: agreed, done: Rc::default() };
    }

    /// Opens the log of a shard, which is in use, without what was not agreed upon. It has then what its disk had when that was
    /// all.
    pub(crate) fn cut(
        &self,
        index: usize,
        agreed: &SimDisk,
        random: &mut Random,
    ) -> Result<FileLog<StepDisk>, String> {
        let disk = self.disk(index);
        disk.end(Ending::Killed);
        let usual = LogOptions { on_damage: OnDamage::Aside, ..LogOptions::default() };
        let want = Found::of(agreed, &usual)?;
        let until = Some(want.reached);
        let found = Found::of(disk.sim(), &LogOptions { until, ..usual })?;
        if found != want {
            return Err(format!("log {index} has {found:?} when it is cut, and had {want:?}"));
        }
        self.open_until(index, until, random)
    }

    /// Opens one log.
    pub(crate) fn open(
        &self,
        index: usize,
        random: &mut Random,
    ) -> Result<FileLog<StepDisk>, String> {
        self.open_until(index, None, random)
    }

    /// Opens one log, with options that make small runs visit what large ones do.
    fn open_until(
        &self,
        index: usize,
        until: Option<Reached>,
        random: &mut Random,
    ) -> Result<FileLog<StepDisk>, String> {
        let kib = |random: &mut Random, most: usize| (1 + random.below(most) as u64) << 10;
        let seed = random.next();
        let options = LogOptions {
            seed,
            until,
            weigh: leveret_broker::record::weigh,
            digests: seed.is_multiple_of(2),
            on_damage: OnDamage::Aside,
            number: LogNumber::at(index),
            segment_bytes: kib(random, 64),
            cache_bytes: random.below(3) as u64 * kib(random, 16),
            spill_bytes: kib(random, 32),
            spill_batch_bytes: 1 + seed % 4096,
            warm_bytes: kib(random, 32),
            ..LogOptions::default()
        };
        if options.digests {
            agree(self.disk(index).sim(), &options)?;
        }
        let disk = self.disk(index).clone();
        let opened = FileLog::open(disk, options, &mut |_| ());
        let (log, report) =
            opened.map_err(|error| format!("log {index} does not open: {error}"))?;
        if report.damaged.is_empty() { Ok(log) } else { Err(format!("log {index}: {report:?}")) }
    }
}

/// A start that reads digests finds what is in the files.
fn agree(disk: &SimDisk, options: &LogOptions) -> Result<(), String> {
    let found = |digests| {
        let options = LogOptions { digests, ..options.clone() };
        let (found, log, report) = Found::open(disk, &options)?;
        let usage = log.usage();
        let bytes = (usage.live_bytes, usage.disk_bytes);
        Ok::<_, String>((found, bytes, Report { digests: 0, ..report }))
    };
    if found(true)? == found(false)? {
        Ok(())
    } else {
        Err("a digest says other than its file".to_owned())
    }
}

/// What a log has when it is opened.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    reached: Reached,
    records: Vec<FoundRecord>,
}

#[derive(Debug, PartialEq, Eq)]
struct FoundRecord {
    at: Offset,
    head: Vec<u8>,
    /// Each with its mark.
    holders: Vec<(Holder, u8)>,
}

impl Found {
    /// Opens a copy of a disk.
    fn open(
        disk: &SimDisk,
        options: &LogOptions,
    ) -> Result<(Self, FileLog<SimDisk>, Report), String> {
        let (mut log, report) =
            FileLog::open(disk.copy_whole(options.seed), options.clone(), &mut |_| ())
                .map_err(|error| error.to_string())?;
        let mut records = Vec::new();
        log.recover(&mut |it| {
            let (head, holders) = (it.head.to_vec(), it.holders.to_vec());
            records.push(FoundRecord { at: it.at, head, holders });
        });
        let reached = Reached { end: log.end().get(), sequence: log.next_batch() };
        Ok((Self { reached, records }, log, report))
    }

    fn of(disk: &SimDisk, options: &LogOptions) -> Result<Self, String> {
        Self::open(disk, options).map(|(found, ..)| found)
    }
}

/// Where the records of a log are: in memory, or in a simulated disk.
#[derive(Debug)]
enum Records {
    Memory(MemoryLog),
    File(Box<FileLog<StepDisk>>),
}

/// The log of an actor.
#[derive(Debug)]
pub(crate) struct Store {
    records: Records,
    agreement: Option<Agreement>,
}

/// How far a log is agreed upon, as a replicated one is by its members: what is appended is readable, and durable,
/// some time after it is on the disk here. The unit is a batch, as it is one entry.
#[derive(Debug)]
pub(crate) struct Agreement {
    agreed: Stage,
    /// Later ones that are on the disk here, the oldest first.
    proposed: VecDeque<Stage>,
    /// As far as the batch goes that the disk is writing.
    flight: Option<Moment>,
    /// Releases and marks of a log in memory, which does not count them.
    notes: u64,
    /// What was asked for before it was readable.
    asked: BTreeSet<Offset>,
    mistake: Mistake,
    /// A crash loses what is not agreed upon.
    is_cut: bool,
}

/// A mistake that simulations must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    None,
    /// What is not readable is read.
    ReadsEarly,
    /// Nobody waits for what is not agreed upon.
    AnswersEarly,
    /// What is on the disk here counts as agreed upon.
    CountsEarly,
}

/// How far a log was when it had a batch on the disk.
#[derive(Clone, Debug)]
struct Stage {
    moment: Moment,
    durable: Offset,
    /// The number of the next batch, of a log in files.
    batch: u64,
    /// What the disk had.
    image: Option<SimDisk>,
}

/// How many stages are proposed at most: then the last ones are one.
const STAGES_MAX: usize = 6;

impl Agreement {
    fn readable(&self) -> Offset {
        self.agreed.durable
    }

    /// Whether so far is not readable yet.
    fn withholds(&self, at: Offset) -> bool {
        at >= self.readable()
    }
}

macro_rules! both {
    ($store:expr, $log:ident => $call:expr) => {
        match $store.records {
            Records::Memory(ref $log) => $call,
            Records::File(ref $log) => $call,
        }
    };
    (mut $store:expr, $log:ident => $call:expr) => {
        match $store.records {
            Records::Memory(ref mut $log) => $call,
            Records::File(ref mut $log) => $call,
        }
    };
}

impl Store {
    /// Without a disk.
    pub(crate) fn in_memory() -> Self {
        Self { records: Records::Memory(MemoryLog::new()), agreement: None }
    }

    /// Over what a disk has.
    pub(crate) fn on_disk(log: FileLog<StepDisk>) -> Self {
        Self { records: Records::File(Box::new(log)), agreement: None }
    }

    /// From now on what is appended is readable when [`agree`](Self::agree) says so; what is there is.
    pub(crate) fn agree_later(&mut self, mistake: Mistake, is_cut: bool) {
        let agreed = self.stage(both!(self, log => log.moment()), is_cut);
        self.tell_agreed(agreed.batch, is_cut);
        self.agreement = Some(Agreement {
            agreed,
            proposed: VecDeque::new(),
            flight: None,
            notes: 0,
            asked: BTreeSet::new(),
            mistake,
            is_cut,
        });
    }

    /// How many stages are on the disk here, and may be agreed upon next.
    pub(crate) fn proposed(&self) -> usize {
        self.agreement.as_ref().map_or(0, |it| it.proposed.len())
    }

    /// The first of the stages that are proposed are agreed upon. The log's owner is to be woken.
    pub(crate) fn agree(&mut self, count: usize) {
        let Some(agreement) = &mut self.agreement else { return };
        let Some(last) = agreement.proposed.drain(..count).next_back() else { return };
        let (batch, is_cut) = (last.batch, agreement.is_cut);
        agreement.agreed = last;
        self.tell_agreed(batch, is_cut);
    }

    /// A log whose end may be cut off keeps what it needs then.
    fn tell_agreed(&mut self, batch: u64, is_cut: bool) {
        if is_cut && let Records::File(log) = &mut self.records {
            log.set_agreed(batch);
        }
    }

    /// What a disk has of all that is agreed upon, if the rest is lost in a crash.
    pub(crate) fn agreed_image(&self) -> Option<SimDisk> {
        self.agreement.as_ref()?.agreed.image.clone()
    }

    fn stage(&mut self, moment: Moment, has_image: bool) -> Stage {
        let durable = both!(self, log => log.durable());
        let image = match &mut self.records {
            Records::File(log) if has_image => Some(log.disk().sim().copy_whole(durable.get())),
            _ => None,
        };
        let batch = match &self.records {
            Records::File(log) => log.next_batch(),
            Records::Memory(_) => 0,
        };
        Stage { moment, durable, batch, image }
    }

    /// What was done until a moment is on the disk.
    fn propose(&mut self, moment: Moment) {
        let Some(agreement) = &self.agreement else { return };
        let last = agreement.proposed.back().unwrap_or(&agreement.agreed);
        let durable = both!(self, log => log.durable());
        if last.moment.reaches(moment) && last.durable == durable {
            return;
        }
        let stage = self.stage(moment, agreement.is_cut);
        if let Some(Agreement { proposed, .. }) = &mut self.agreement {
            proposed.truncate(STAGES_MAX - 1);
            proposed.push_back(stage);
        }
    }

    /// Takes in what the disk did.
    fn look(&mut self) {
        let now = self.moment();
        let is_writing = matches!(&self.records, Records::File(log) if log.is_writing());
        let Some(agreement) = self.agreement.as_mut().filter(|_| !is_writing) else { return };
        if let Some(done) = agreement.flight.take() {
            self.propose(done);
        }
        if both!(self, log => log.notes() == 0 && log.durable() == log.end()) {
            self.propose(now);
        }
    }

    /// Hands a batch to the disk, and notes how far it goes.
    fn hand_over(
        &mut self,
        until: Moment,
        hand_over: impl FnOnce(&mut Self) -> Result<(), SyncError>,
    ) -> Result<(), SyncError> {
        both!(mut self, log => log.collect())?;
        self.look();
        let is_writing =
            |store: &Self| matches!(&store.records, Records::File(log) if log.is_writing());
        let was_writing = is_writing(self);
        hand_over(self)?;
        if !was_writing
            && is_writing(self)
            && let Some(agreement) = &mut self.agreement
        {
            agreement.flight = Some(until);
        }
        self.look();
        Ok(())
    }

    fn note(&mut self) {
        if let (Some(agreement), Records::Memory(_)) = (&mut self.agreement, &self.records) {
            agreement.notes += 1;
        }
    }

    /// Hands over what somebody waits for: a record that needs no disk is otherwise passed when the next one that does
    /// is handed over. A failure is final, and the log's owner is told of it by the end of its turn.
    fn propose_what_is_asked(&mut self) {
        let last = self.agreement.as_ref().and_then(|it| it.asked.last());
        if last.is_some_and(|&at| at >= both!(self, log => log.durable())) {
            let _ = self.sync();
        }
    }
}

impl Log for Store {
    fn append(
        &mut self,
        head: &[u8],
        parts: &[&[u8]],
        holders: &[Holder],
        keep: Keep,
    ) -> Result<Offset, AppendError> {
        both!(mut self, log => log.append(head, parts, holders, keep))
    }

    fn append_whole(
        &mut self,
        record: &Bytes,
        head_len: usize,
        holders: &[Holder],
        keep: Keep,
    ) -> Result<Offset, AppendError> {
        both!(mut self, log => log.append_whole(record, head_len, holders, keep))
    }

    fn append_shared(
        &mut self,
        record: &Bytes,
        head_len: usize,
        holders: &[Holder],
        keep: Keep,
        shared: &Arc<Shared>,
    ) -> Result<Offset, AppendError> {
        // Others may not have the end of their logs after a crash.
        if self.agreement.as_ref().is_some_and(|it| it.is_cut) {
            return self.append_whole(record, head_len, holders, keep);
        }
        both!(mut self, log => log.append_shared(record, head_len, holders, keep, shared))
    }

    fn errands(&mut self, each: &mut dyn FnMut(Errand)) {
        both!(mut self, log => log.errands(each));
    }

    fn lent(&mut self, at: Offset, bytes: Result<Bytes, ReadError>) {
        both!(mut self, log => log.lent(at, bytes));
    }

    fn is_held(&self, at: Offset, holder: Holder) -> bool {
        both!(self, log => log.is_held(at, holder))
    }

    fn is_asked(&self, at: Offset) -> bool {
        let is_withheld = self.agreement.as_ref().is_some_and(|it| it.withholds(at));
        is_withheld || both!(self, log => log.is_asked(at))
    }

    fn persist(&mut self, at: Offset) -> Result<Offset, HoldError> {
        both!(mut self, log => log.persist(at))
    }

    fn is_short(&self) -> bool {
        both!(self, log => log.is_short())
    }

    fn last_room(&self) -> u64 {
        both!(self, log => log.last_room())
    }

    fn readable(&self) -> Offset {
        match &self.agreement {
            Some(agreement) if agreement.mistake != Mistake::CountsEarly => agreement.readable(),
            Some(_) => both!(self, log => log.durable()),
            None => both!(self, log => log.readable()),
        }
    }

    fn durable(&self) -> Offset {
        let durable = both!(self, log => log.durable());
        match &self.agreement {
            Some(agreement) if agreement.mistake != Mistake::CountsEarly => {
                durable.min(agreement.readable())
            }
            _ => durable,
        }
    }

    fn end(&self) -> Offset {
        both!(self, log => log.end())
    }

    fn read(&self, at: Offset) -> Result<Record, ReadError> {
        let readable = self.readable();
        let reads_early =
            self.agreement.as_ref().is_none_or(|it| it.mistake == Mistake::ReadsEarly);
        if (readable..self.end()).contains(&at) && !reads_early {
            return Err(ReadError::NotReadable { at, readable });
        }
        both!(self, log => log.read(at))
    }

    fn fetch(&mut self, soon: &[Offset]) {
        let Some(agreement) = &mut self.agreement else {
            return both!(mut self, log => log.fetch(soon));
        };
        let (withheld, soon): (Vec<_>, Vec<_>) =
            soon.iter().partition(|&&at| agreement.withholds(at));
        // What needs no disk is handed over at the end of the turn, where a batch may end.
        agreement.asked.extend(withheld);
        both!(mut self, log => log.fetch(&soon));
    }

    fn fetch_ahead(&mut self, soon: &[Offset]) {
        both!(mut self, log => log.fetch_ahead(soon));
    }

    fn each_fetched(&mut self, each: &mut dyn FnMut(Offset)) {
        if let Some(agreement) = &mut self.agreement {
            let later = agreement.asked.split_off(&agreement.readable());
            std::mem::replace(&mut agreement.asked, later).into_iter().for_each(&mut *each);
        }
        both!(mut self, log => log.each_fetched(each));
    }

    fn taken(&mut self, at: Offset) {
        both!(mut self, log => log.taken(at));
    }

    fn release(&mut self, at: Offset, holder: Holder) -> Result<(), HoldError> {
        self.note();
        both!(mut self, log => log.release(at, holder))
    }

    fn mark(&mut self, at: Offset, holder: Holder, mark: u8) -> Result<(), HoldError> {
        self.note();
        both!(mut self, log => log.mark(at, holder, mark))
    }

    fn own(&mut self, each: &mut dyn FnMut(Offset, &[u8])) {
        both!(mut self, log => log.own(each));
    }

    fn recover(&mut self, each: &mut dyn FnMut(Recovered<'_>)) {
        both!(mut self, log => log.recover(each));
    }

    fn recover_sums(
        &mut self,
        apart: &[Range<Offset>],
        enough: RecoveryLimits,
        to: &mut dyn RecoverySink,
    ) {
        both!(mut self, log => log.recover_sums(apart, enough, to));
    }

    fn recover_more(
        &mut self,
        from: Offset,
        most: RecoveryLimits,
        each: &mut dyn FnMut(Recovered<'_>),
    ) -> Result<Option<Offset>, SyncError> {
        both!(mut self, log => log.recover_more(from, most, each))
    }

    fn recovered_all(&mut self) {
        both!(mut self, log => log.recovered_all());
    }

    fn collect(&mut self) -> Result<(), SyncError> {
        let collected = both!(mut self, log => log.collect());
        self.look();
        // The disk may have been busy when it was asked for.
        self.propose_what_is_asked();
        collected
    }

    fn sync(&mut self) -> Result<(), SyncError> {
        let until = self.moment();
        self.hand_over(until, |it| both!(mut it, log => log.sync()))
    }

    fn moment(&self) -> Moment {
        let Moment { end, notes } = both!(self, log => log.moment());
        Moment { end, notes: notes + self.agreement.as_ref().map_or(0, |it| it.notes) }
    }

    fn agreed(&self) -> Option<Moment> {
        let agreement = self.agreement.as_ref()?;
        (agreement.mistake != Mistake::AnswersEarly).then_some(agreement.agreed.moment)
    }

    fn sync_until(&mut self, until: Moment) -> Result<(), SyncError> {
        self.hand_over(until, |it| both!(mut it, log => log.sync_until(until)))
    }

    fn under_way(&self) -> Option<BatchUnderWay> {
        both!(self, log => log.under_way())
    }

    fn spilled_bytes(&self) -> u64 {
        both!(self, log => log.spilled_bytes())
    }

    fn notes(&self) -> usize {
        both!(self, log => log.notes())
    }

    fn keeps_spares(&self) -> bool {
        both!(self, log => log.keeps_spares())
    }

    fn relax(&mut self) {
        both!(mut self, log => log.relax());
    }

    fn usage(&self) -> Usage {
        both!(self, log => log.usage())
    }
}
