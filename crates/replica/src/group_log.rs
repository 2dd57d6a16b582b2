//! The log that actors use: in files, and alone or that of a group's leader.
//!
//! A log alone is as it is. One that was lent by its [member](crate::Member) leaves each batch that it makes on a [`Desk`], and
//! takes from there how far all agree, and which of that all members in contact have. So `readable`, `durable` and `agreed` are where
//! the last batch ends that is agreed upon, and pass what needs no batch once there is none that is not.

use std::collections::{BTreeSet, VecDeque};
use std::ops::{Deref, DerefMut, Range, RangeInclusive};
use std::sync::Arc;

use bytes::Bytes;
use leveret_log::disk::Disk;
use leveret_log::file::{Mended, NoBatch};
use leveret_log::{
    AppendError, BatchName, BatchUnderWay, Errand, FileLog, HoldError, Holder, Keep, Log, Moment,
    Offset, PagedOut, ReadError, Record, Recovered, RecoveryLimits, RecoverySink, Shared,
    SyncError, Usage,
};

use crate::desk::{AllUse, Desk, Hold, Reports};
use crate::files::Wanted;

/// Bytes of batches that are given at once to who lacks some.
pub(crate) const GIVEN_BYTES: u64 = 1 << 20;

/// A log in files that is alone, or the leader's of a group. See the [module](self).
#[derive(Debug)]
pub struct GroupLog<D> {
    log: FileLog<D>,
    lent: Option<Box<Lent>>,
}

/// A batch that is not agreed upon, and where it ends.
#[derive(Clone, Copy, Debug)]
struct Unagreed {
    batch: BatchUnderWay,
    end: Moment,
}

/// What a lent log is besides.
#[derive(Debug)]
struct Lent {
    desk: Arc<Desk>,
    /// Batches that are not agreed upon.
    ends: VecDeque<Unagreed>,
    agreed: Moment,
    /// Those that are, and that not all members in contact have.
    not_on_all: VecDeque<(u64, Moment)>,
    on_all: Moment,
    all_use: AllUse,
    /// What the member was told of.
    last: BatchName,
    stored: BatchName,
    point: BatchName,
    /// Batches that are being read for others.
    wanted: Vec<RangeInclusive<u64>>,
    /// Files that are wanted by others.
    files: Wanted,
    hold: Hold,
    /// What was held when there was little room.
    wants_room: bool,
    pause: Option<u64>,
    /// What was asked for before it was readable.
    asked: BTreeSet<Offset>,
    /// Records that are damaged here, and asked of other members.
    mending: BTreeSet<Offset>,
    /// Those that nobody has whole, and what is to be told of them.
    lost: BTreeSet<Offset>,
    told: Vec<Offset>,
    /// The shard is to have a turn for some of that.
    has_called: bool,
    /// How far all agreed when a point was asked for.
    point_asked: BatchName,
    has_failed: bool,
}

impl<D> From<FileLog<D>> for GroupLog<D> {
    /// A log alone.
    fn from(log: FileLog<D>) -> Self {
        Self { log, lent: None }
    }
}

impl<D> Deref for GroupLog<D> {
    type Target = FileLog<D>;

    fn deref(&self) -> &FileLog<D> {
        &self.log
    }
}

impl<D> DerefMut for GroupLog<D> {
    fn deref_mut(&mut self) -> &mut FileLog<D> {
        &mut self.log
    }
}

impl<D: Disk> GroupLog<D> {
    /// A leader's log: all that it has is agreed upon.
    pub(crate) fn lent(log: FileLog<D>, desk: Arc<Desk>) -> Self {
        let lent = Lent {
            desk,
            ends: VecDeque::new(),
            agreed: log.gathered(),
            // What it begins with may be on a majority alone.
            not_on_all: VecDeque::from([(log.last().number, log.gathered())]),
            on_all: Moment::default(),
            all_use: AllUse::default(),
            last: log.last(),
            stored: BatchName::NONE,
            point: BatchName::NONE,
            wanted: Vec::new(),
            files: Wanted::default(),
            hold: Hold::default(),
            wants_room: false,
            pause: None,
            asked: BTreeSet::new(),
            mending: BTreeSet::new(),
            lost: BTreeSet::new(),
            told: Vec::new(),
            has_called: false,
            point_asked: BatchName::NONE,
            has_failed: false,
        };
        Self { log, lent: Some(Box::new(lent)) }
    }

    /// Whether others have the log, too.
    pub fn is_replicated(&self) -> bool {
        self.lent.is_some()
    }

    /// The log itself.
    pub fn into_log(self) -> FileLog<D> {
        self.log
    }

    /// Takes what the member wants, and says what became of the log.
    fn attend(&mut self, result: Result<(), SyncError>) -> Result<(), SyncError> {
        if let Some(lent) = &mut self.lent {
            lent.attend(&mut self.log, result.as_ref().err());
        }
        result
    }

    /// Has a batch made, if one may be.
    fn hand_over(&mut self, until: Option<Moment>) -> Result<(), SyncError> {
        if self.lent.is_some() {
            // A pause counts at once.
            self.attend(Ok(()))?;
        }
        let is_paused = self.lent.as_ref().is_some_and(|lent| lent.pause.is_some());
        let result = match until {
            _ if is_paused => self.log.sync_made(),
            Some(until) => self.log.sync_until(until),
            None => self.log.sync(),
        };
        self.attend(result)
    }
}

impl Lent {
    /// Whether a record is damaged here and may be had from another member.
    fn may_mend<D: Disk>(&self, at: Offset, log: &FileLog<D>) -> bool {
        matches!(log.read(at), Err(ReadError::Damaged { .. })) && !self.lost.contains(&at)
    }

    /// Asks other members for those of these records that are damaged here, once; the others are left.
    fn ask_for_damaged<D: Disk>(&mut self, records: &mut Vec<Offset>, log: &FileLog<D>) {
        let mut damaged = Vec::new();
        records.retain(|&at| {
            let may_mend = self.may_mend(at, log);
            if may_mend && self.mending.insert(at) {
                damaged.push(at);
            }
            !may_mend
        });
        self.desk.report(Reports { damaged, ..Reports::default() });
    }

    /// Takes records as other members have them.
    fn mend<D: Disk>(
        &mut self,
        mended: Vec<(Offset, Option<Bytes>)>,
        log: &mut FileLog<D>,
        reports: &mut Reports,
    ) {
        for (at, bytes) in mended {
            let mended = bytes.map(|bytes| log.mend(at, &bytes));
            reports.taken.extend(mended.map(|it| (at, it.is_ok())));
            let mended = match mended {
                // Another member is asked.
                Some(Err(_)) => continue,
                Some(Ok(mended)) => Some(mended),
                None => None,
            };
            self.mending.remove(&at);
            match mended {
                None => _ = self.lost.insert(at),
                Some(Mended::InMemory) => reports.mended.push((at, Ok(()))),
                Some(Mended::OnDisk | Mended::Needless) => {}
            }
            // The log tells of what it did.
            if mended.is_none_or(|mended| mended == Mended::Needless) {
                self.told.push(at);
            }
        }
    }

    /// Whether a record is there and not readable yet.
    fn withholds<D: Disk>(&self, at: Offset, log: &FileLog<D>) -> bool {
        at >= self.agreed.end && at < log.end()
    }

    fn attend<D: Disk>(&mut self, log: &mut FileLog<D>, failed: Option<&SyncError>) {
        let orders = self.desk.take_orders(self.all_use);
        let mut reports = Reports::default();
        let mut failed = failed.map(ToString::to_string);
        if let Err(error) = log.apply_to(orders.agreed) {
            failed.get_or_insert_with(|| error.to_string());
        }
        for bytes in &orders.members {
            let result = log.append_members(bytes).map_err(|error| error.to_string());
            let made = result.and_then(|()| log.sync_made().map_err(|error| error.to_string()));
            made.err().into_iter().for_each(|error| _ = failed.get_or_insert(error));
        }
        self.mend(orders.mended, log, &mut reports);
        reports.mended.extend(log.take_mended());
        orders.point.into_iter().for_each(|point| log.set_point(point));
        // Once for each batch that all agree upon: a later point may do.
        if log.wants_point() && self.point_asked != orders.agreed {
            (self.point_asked, reports.wants_point) = (orders.agreed, true);
        }
        reports.pause = orders.pause.filter(|_| orders.pause != self.pause);
        self.pause = orders.pause;
        log.let_go_of(orders.let_go_of);
        let wants_room = log.wants_room();
        // Of what somebody lacks the newest bytes stay: others with each batch.
        let moves = orders.hold != Hold::default();
        if moves || (orders.hold, wants_room) != (self.hold, self.wants_room) {
            (self.hold, self.wants_room) = (orders.hold, wants_room);
            self.hold.apply(log);
        }
        self.take_made(log, &mut reports, &mut failed);
        let was = self.agreed;
        let agreed = orders.agreed.number;
        while let Some(it) = self.ends.pop_front_if(|it| it.batch.number <= agreed) {
            self.agreed = it.end;
            self.not_on_all.push_back((it.batch.number, it.end));
        }
        while let Some((_, end)) = self.not_on_all.pop_front_if(|it| it.0 <= orders.on_all) {
            self.on_all = end;
        }
        let is_passed = self.ends.is_empty() && self.agreed != log.gathered();
        if is_passed {
            self.agreed = log.gathered();
        }
        if self.not_on_all.is_empty() {
            self.on_all = self.agreed;
        }
        // Nobody else knows that this has become readable.
        let is_awaited = self.asked.first().is_some_and(|&at| at < self.agreed.end);
        let calls = is_awaited && !self.has_called || is_passed && was != self.agreed;
        self.has_called |= calls;
        reports.wants_turn = calls;
        self.wanted.extend(orders.wanted);
        self.read(log, &mut reports);
        self.files.add(orders.files);
        if !self.files.is_empty() {
            self.files.look(log, &mut reports.files);
        }
        let (stored, point) = (log.stored(), log.point());
        reports.stored = (stored != self.stored).then_some(stored);
        reports.point = (point != self.point).then_some(point);
        (self.stored, self.point) = (stored, point);
        reports.failed = failed.filter(|_| !std::mem::replace(&mut self.has_failed, true));
        self.desk.report(reports);
    }

    /// The batches that were made since.
    fn take_made<D: Disk>(
        &mut self,
        log: &mut FileLog<D>,
        reports: &mut Reports,
        failed: &mut Option<String>,
    ) {
        let (last, end) = (log.last(), log.gathered());
        while self.last.number < last.number {
            let number = self.last.number + 1;
            self.last = BatchName { number, term: last.term };
            let mut bytes = 0;
            match log.batch(number) {
                Ok(batch) => {
                    bytes = batch.len();
                    reports.made.push((self.last, batch));
                }
                Err(error) => _ = failed.get_or_insert(format!("{}: {error}", self.last)),
            }
            self.ends.push_back(Unagreed { batch: BatchUnderWay { number, bytes }, end });
        }
    }

    /// Gives batches that somebody lacks, as far as they are in memory now.
    fn read<D: Disk>(&mut self, log: &mut FileLog<D>, reports: &mut Reports) {
        self.wanted.retain(|range| {
            let mut bytes = 0;
            for number in range.clone() {
                match log.batch(number) {
                    Ok(batch) => {
                        bytes += batch.len();
                        reports.read.push((number, Ok(batch)));
                    }
                    // The last ones may not be made yet.
                    Err(NoBatch::ToCome | NoBatch::NotYet) => return number == *range.start(),
                    Err(error) => {
                        reports.read.push((number, Err(error)));
                        return false;
                    }
                }
                if bytes > GIVEN_BYTES {
                    return false;
                }
            }
            false
        });
    }
}

impl<D: Disk> Log for GroupLog<D> {
    fn append(
        &mut self,
        head: &[u8],
        parts: &[&[u8]],
        holders: &[Holder],
        keep: Keep,
    ) -> Result<Offset, AppendError> {
        self.log.append(head, parts, holders, keep)
    }

    fn append_whole(
        &mut self,
        record: &Bytes,
        head_len: usize,
        holders: &[Holder],
        keep: Keep,
    ) -> Result<Offset, AppendError> {
        self.log.append_whole(record, head_len, holders, keep)
    }

    /// Who has a copy of this log has none of the others' records: it writes its own.
    fn append_shared(
        &mut self,
        record: &Bytes,
        head_len: usize,
        holders: &[Holder],
        keep: Keep,
        shared: &Arc<Shared>,
    ) -> Result<Offset, AppendError> {
        match &self.lent {
            Some(_) => self.log.append_whole(record, head_len, holders, keep),
            None => self.log.append_shared(record, head_len, holders, keep, shared),
        }
    }

    fn errands(&mut self, each: &mut dyn FnMut(Errand)) {
        self.log.errands(each);
    }

    fn lent(&mut self, at: Offset, bytes: Result<Bytes, ReadError>) {
        Log::lent(&mut self.log, at, bytes);
    }

    fn persist(&mut self, at: Offset) -> Result<Offset, HoldError> {
        self.log.persist(at)
    }

    fn readable(&self) -> Offset {
        self.lent.as_ref().map_or_else(|| self.log.readable(), |lent| lent.agreed.end)
    }

    fn durable(&self) -> Offset {
        self.lent.as_ref().map_or_else(|| self.log.durable(), |lent| lent.agreed.end)
    }

    fn end(&self) -> Offset {
        self.log.end()
    }

    fn read(&self, at: Offset) -> Result<Record, ReadError> {
        match &self.lent {
            Some(lent) if lent.withholds(at, &self.log) => {
                Err(ReadError::NotReadable { at, readable: lent.agreed.end })
            }
            _ => self.read_uncommitted(at),
        }
    }

    fn read_uncommitted(&self, at: Offset) -> Result<Record, ReadError> {
        match (self.log.read(at), &self.lent) {
            (Err(ReadError::Damaged { .. }), Some(lent)) if !lent.lost.contains(&at) => {
                Err(ReadError::Cold { at })
            }
            (read, _) => read,
        }
    }

    fn fetch(&mut self, soon: &[Offset]) {
        let Self { log, lent } = self;
        let Some(lent) = lent else { return log.fetch(soon) };
        let (withheld, mut soon): (Vec<_>, Vec<_>) =
            soon.iter().partition(|&&at| lent.withholds(at, log));
        lent.ask_for_damaged(&mut soon, log);
        // What needs no disk wants a batch, which ends with the turn.
        lent.asked.extend(withheld);
        log.fetch(&soon);
    }

    fn fetch_ahead(&mut self, soon: &[Offset]) {
        self.log.fetch_ahead(soon);
    }

    fn is_asked(&self, at: Offset) -> bool {
        let is_to_come = |lent: &Lent| lent.withholds(at, &self.log) || lent.mending.contains(&at);
        self.lent.as_ref().is_some_and(|lent| is_to_come(lent)) || self.log.is_asked(at)
    }

    fn each_fetched(&mut self, each: &mut dyn FnMut(Offset)) {
        if let Some(lent) = &mut self.lent {
            let later = lent.asked.split_off(&lent.agreed.end);
            std::mem::replace(&mut lent.asked, later).into_iter().for_each(&mut *each);
            lent.has_called = false;
            let mut came = Vec::new();
            self.log.each_fetched(&mut |at| came.push(at));
            lent.ask_for_damaged(&mut came, &self.log);
            came.into_iter().chain(lent.told.drain(..)).for_each(each);
            return;
        }
        self.log.each_fetched(each);
    }

    #[inline]
    fn taken(&mut self, at: Offset) {
        self.log.taken(at);
    }

    fn release(&mut self, at: Offset, holder: Holder) -> Result<(), HoldError> {
        self.log.release(at, holder)
    }

    fn is_held(&self, at: Offset, holder: Holder) -> bool {
        self.log.is_held(at, holder)
    }

    fn mark(&mut self, at: Offset, holder: Holder, mark: u8) -> Result<(), HoldError> {
        self.log.mark(at, holder, mark)
    }

    fn own(&mut self, each: &mut dyn FnMut(Offset, &[u8])) {
        self.log.own(each);
    }

    fn recover(&mut self, each: &mut dyn FnMut(Recovered<'_>)) {
        self.log.recover(each);
    }

    fn recover_sums(
        &mut self,
        apart: &[Range<Offset>],
        enough: RecoveryLimits,
        to: &mut dyn RecoverySink,
    ) {
        self.log.recover_sums(apart, enough, to);
    }

    fn recover_more(
        &mut self,
        from: Offset,
        most: RecoveryLimits,
        each: &mut dyn FnMut(Recovered<'_>),
    ) -> Result<Option<Offset>, SyncError> {
        self.log.recover_more(from, most, each)
    }

    fn recovered_all(&mut self) {
        self.log.recovered_all();
    }

    fn collect(&mut self) -> Result<(), SyncError> {
        let result = self.log.collect();
        self.attend(result)
    }

    fn wants_batch(&self) -> bool {
        let last = self.lent.as_ref().and_then(|lent| lent.asked.last());
        last.is_some_and(|&at| at >= self.log.gathered().end)
    }

    fn sync(&mut self) -> Result<(), SyncError> {
        self.hand_over(None)
    }

    fn moment(&self) -> Moment {
        self.log.moment()
    }

    fn agreed(&self) -> Option<Moment> {
        self.lent.as_ref().map(|lent| lent.agreed)
    }

    fn on_all(&self) -> Option<Moment> {
        self.lent.as_ref().map(|lent| lent.on_all)
    }

    fn use_all(&mut self, is_used: bool, is_awaited: bool) {
        if let Some(lent) = &mut self.lent {
            lent.all_use = AllUse { is_used, is_awaited };
        }
    }

    fn sync_until(&mut self, until: Moment) -> Result<(), SyncError> {
        self.hand_over(Some(until))
    }

    fn under_way(&self) -> Option<BatchUnderWay> {
        match &self.lent {
            Some(lent) => lent.ends.front().map(|it| it.batch),
            None => self.log.under_way(),
        }
    }

    fn notes(&self) -> usize {
        self.log.notes()
    }

    fn keeps_spares(&self) -> bool {
        self.log.keeps_spares()
    }

    fn relax(&mut self) {
        self.log.relax();
    }

    fn usage(&self) -> Usage {
        self.log.usage()
    }

    fn paged_out(&self, holder: Holder) -> PagedOut {
        self.log.paged_out(holder)
    }

    fn is_short(&self) -> bool {
        self.log.is_short()
    }

    fn last_room(&self) -> u64 {
        self.log.last_room()
    }

    fn unwritten_bytes(&self) -> u64 {
        self.log.unwritten_bytes()
    }

    fn spilled_bytes(&self) -> u64 {
        self.log.spilled_bytes()
    }
}
