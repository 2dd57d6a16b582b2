//! Shared records in a log in files: which log writes the bytes, and what the logs tell each other.
//!
//! See [`crate::shared`] for the whole. Cold path, except for a look whether there is any such record.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use smallvec::SmallVec;

use super::cold::Held;
use super::format::NUMBER_MAX;
use super::segments::Segment;
use super::sets::SetId;
use super::{FileLog, Tag};
use crate::disk::{Disk, FileName};
use crate::memory::MemoryLog;
use crate::shared::{BytesAt, Errand, LogNumber, Original, Progress, Shared};
use crate::{Holder, Log as _, Offset};

/// What is shared and not written, and what others are to be told.
#[derive(Debug, Default)]
pub(super) struct Lending {
    /// Records in memory that are not in a batch.
    shared: BTreeMap<u64, Arc<Shared>>,
    pub(super) errands: Vec<Errand>,
}

/// The shared records that a batch writes, refers to and gives up.
#[derive(Debug, Default)]
pub(super) struct SharedOfBatch {
    /// Others wait for these.
    pub(super) here: Vec<Arc<Shared>>,
    /// This batch waits for these.
    pub(super) there: Vec<Arc<Shared>>,
    /// Records of other logs that this one refers to no more.
    pub(super) freed: Vec<Original>,
}

impl Lending {
    pub(super) fn free(&mut self, places: Vec<Original>) {
        self.errands.extend(places.into_iter().map(Errand::Freed));
    }

    /// Says how far these are.
    pub(super) fn tell(&mut self, shared: &[Arc<Shared>], progress: Progress) {
        let logs: BTreeSet<_> = shared.iter().flat_map(|shared| shared.set(progress)).collect();
        self.errands.extend(logs.into_iter().map(Errand::Wake));
    }

    /// Bytes of memory.
    pub(super) fn held_bytes(&self) -> usize {
        self.shared.len() * 2 * size_of::<(u64, Arc<Shared>)>()
            + self.shared.len() * size_of::<Shared>()
            + self.errands.capacity() * size_of::<Errand>()
    }
}

impl<D: Disk> FileLog<D> {
    /// A shared record was appended; or was not, and is not going to be.
    pub(super) fn begin_shared(&mut self, at: Option<&Offset>, shared: &Arc<Shared>) {
        match at {
            Some(at) => drop(self.lending.shared.insert(at.get(), Arc::clone(shared))),
            None => self.leave(shared),
        }
    }

    /// This log does not want the bytes that another may have.
    fn leave(&mut self, shared: &Shared) {
        let place = shared.leave(self.options.number);
        self.lending.errands.extend(place.map(Errand::Freed));
    }

    /// A record was released that was not in a batch yet.
    pub(super) fn leave_shared(&mut self, at: Offset) {
        if !self.lending.shared.is_empty()
            && let Some(shared) = self.lending.shared.remove(&at.get())
        {
            self.leave(&shared);
        }
    }

    /// A holder has left; perhaps it was another log.
    pub(super) fn count_lent(&mut self, holder: Holder) {
        let left = u64::from(holder.as_log().is_some());
        // Of one that should not have been there it was not counted that it came.
        self.sums.lent = self.sums.lent.saturating_sub(left);
    }

    pub(super) fn is_elsewhere(&self, at: Offset) -> bool {
        !self.store.elsewhere.is_empty() && self.store.elsewhere.get(at.get()).is_some()
    }

    /// A written record was released, which is noted last.
    pub(super) fn leave_elsewhere(&mut self, at: Offset) {
        if !self.store.elsewhere.is_empty()
            && let Some(place) = self.store.elsewhere.remove(at.get())
        {
            let freed = self.writer.free(place);
            self.lending.errands.extend(freed.map(Errand::Freed));
        }
    }

    /// Asks for the bytes of a cold record if another log has them. False if they are here.
    pub(super) fn borrow(&mut self, at: Offset, ahead: bool) -> bool {
        let elsewhere = &self.store.elsewhere;
        let Some(of) = elsewhere.get(at.get()) else { return false };
        if self.fetch.borrow(at, elsewhere.mean_len(), ahead) {
            self.lending.errands.push(Errand::Lend { of, at });
        }
        true
    }

    /// Decides who writes the shared records that are going to be gathered: those of `first..end`, and
    /// earlier ones that are to persist.
    pub(super) fn share_out(&mut self, first: Offset, end: Offset) -> SharedOfBatch {
        let mut shares = SharedOfBatch::default();
        if self.lending.shared.is_empty() {
            return shares;
        }
        let shared = self.lending.shared.range(first.get()..end.get());
        let late =
            self.writer.persists().iter().filter_map(|at| self.lending.shared.get_key_value(at));
        let all: Vec<_> =
            late.chain(shared).map(|(&at, shared)| (at, Arc::clone(shared))).collect();
        for (at, shared) in all {
            let at = Offset::new(at);
            let Ok(place) = self.hot.place(at) else { continue };
            let facts = self.hot.facts(place);
            let (tag, Some(set)) = (Tag(facts.tag), SetId::new(facts.held)) else { continue };
            if tag.is(Tag::VOLATILE) {
                // What is lost with the process is no good for others, nor does it need them.
                if tag.is(Tag::SPILL) {
                    self.leave_shared(at);
                }
                continue;
            }
            self.lending.shared.remove(&at.get());
            match shared.take(self.options.number, at) {
                BytesAt::Here(others) if others.is_empty() => {}
                BytesAt::Here(others) => {
                    let sets = &mut self.store.sets;
                    let mut names: SmallVec<[Holder; 8]> = SmallVec::new();
                    sets.each(set, |name| names.push(name));
                    names.extend(others.iter().map(|&log| Holder::of_log(log)));
                    let with_others = sets.get(&names);
                    sets.drop_use(set);
                    self.hot.set_held(place, with_others.get());
                    self.sums.lent += others.len() as u64;
                    shares.here.push(shared);
                }
                BytesAt::There(place, progress) => {
                    self.store.elsewhere.insert(at.get(), place, facts.len);
                    self.sums.live_bytes -= u64::from(facts.len);
                    if progress != Progress::Safe {
                        shares.there.push(shared);
                    }
                }
            }
        }
        shares
    }

    /// Forgets a record that is not to be told of: its bytes are nowhere.
    fn forget_dangling(&mut self, at: u64) {
        self.store.elsewhere.remove(at);
        let Some(Held { set, .. }) = self.store.cold.get(at) else { return };
        let mut holders = Vec::new();
        self.store.sets.each(set, |holder| holders.push(holder));
        for holder in holders {
            let _ = self.release(Offset::new(at), holder);
        }
    }
}

/// What logs that share records did not agree about when they were opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unmatched {
    /// Records whose bytes are not where they should be: let go. They are of a batch that was not durable, or were
    /// released.
    pub dangling: u64,
    /// The same, but in a log that has lost something: kept, and there again once that log has it back. Who
    /// reads one is told [`ReadError::Elsewhere`](crate::ReadError::Elsewhere).
    pub lost: u64,
    /// Records whose bytes are those of another record by now, as the logs are not of one time: kept, and never
    /// read.
    pub strange: u64,
    /// Records that were kept for another log, which has no use for them, and has lost nothing.
    pub unneeded: u64,
}

/// Has logs that share records agree about them: to be called when all of them are open, before the first
/// [`recover`](crate::Log::recover). Each is to be at the index that is its number. `lost_before`: of each log, the
/// offset before which it may have lost records with a file or a part of one; [`Offset::ZERO`] if none is missing.
///
/// What a batch refers to is durable before the batch is, and is let go only after the last reference's release is
/// durable. So of what was confirmed and not released nothing is let go here, unless a file is gone.
pub fn match_up<D: Disk>(logs: &mut [FileLog<D>], lost_before: &[Offset]) -> Unmatched {
    agree(logs, lost_before, false)
}

/// The same, of logs whose owner ended in good order: nothing was on its way, so that bytes that are not where they should
/// be were lost, whatever is known of that.
pub fn match_up_at_rest<D: Disk>(logs: &mut [FileLog<D>], lost_before: &[Offset]) -> Unmatched {
    agree(logs, lost_before, true)
}

fn agree<D: Disk>(logs: &mut [FileLog<D>], lost_before: &[Offset], is_at_rest: bool) -> Unmatched {
    let mut unmatched = Unmatched::default();
    let lost_before = |log: usize| lost_before.get(log).copied().unwrap_or_default();
    let seen: Vec<_> = logs.iter_mut().map(|log| std::mem::take(&mut log.store.seen)).collect();
    let seen: Vec<_> = seen.into_iter().map(Seen::sorted).collect();
    let mut needed: Vec<(LogNumber, Original)> = Vec::new();
    for number in 0..logs.len() {
        let own = LogNumber::at(number);
        let refers: Vec<_> = logs[number].store.elsewhere.iter().collect();
        for (at, place) in refers {
            let home = place.log.index();
            let is_there = |log: &FileLog<D>| log.lends(place.at, Holder::of_log(own));
            if logs.get(home).is_some_and(is_there) {
                needed.push((own, place));
                if seen[home].get(place.at.get()) != seen[number].get(at) {
                    logs[number].fetch.never(Offset::new(at), place);
                    unmatched.strange += 1;
                }
                continue;
            }
            if is_at_rest || place.at < lost_before(home) {
                unmatched.lost += 1;
            } else {
                logs[number].forget_dangling(at);
                unmatched.dangling += 1;
            }
            // It is kept, or that it was forgotten is not safe yet: no other record may be called so.
            if let Some(home) = logs.get_mut(home) {
                home.go_on_behind(place.at);
            }
        }
    }
    needed.sort_unstable();
    for (index, home) in logs.iter_mut().enumerate() {
        let log = LogNumber::at(index);
        let all = home.all_lent();
        home.sums.lent += all.len() as u64;
        for (to, at) in all {
            // What that one has lost may come back, and need it then.
            let is_awaited = lost_before(to.index()) > Offset::ZERO;
            if !is_awaited && needed.binary_search(&(to, Original { log, at })).is_err() {
                let _ = home.release(at, Holder::of_log(to));
                unmatched.unneeded += 1;
            }
        }
    }
    unmatched
}

/// What the files say of the bytes of records that are shared, until the logs have agreed about them.
#[derive(Debug, Default)]
pub(super) struct Seen(Vec<(u64, Print)>);

/// By which two records are told from each other: length and checksum.
type Print = (u32, u32);

impl Seen {
    pub(super) fn add(&mut self, at: u64, print: Print) {
        self.0.push((at, print));
    }

    fn sorted(mut self) -> Self {
        self.0.sort_unstable();
        self
    }

    fn get(&self, at: u64) -> Option<Print> {
        let index = self.0.binary_search_by_key(&at, |(at, _)| *at).ok()?;
        self.0.get(index).map(|(_, print)| *print)
    }
}

impl<D: Disk> FileLog<D> {
    /// The offset before which all records were that a file had, which was found damaged: no later one was in it.
    pub fn begun_after(&self, file: FileName) -> Offset {
        let later = |it: &&Segment| it.file.segment > file.segment;
        let later = self.store.segments.all.iter().find(later);
        later.map_or(Offset::MAX, |segment| Offset::new(segment.first))
    }

    /// Tells of everybody who holds a cold record. Takes as long as there are holders, however many records they have.
    pub fn each_holder(&self, each: impl FnMut(Holder)) {
        self.store.paged.each_holder(each);
    }

    /// The next record comes behind this offset. Nothing has been appended since the log was opened.
    fn go_on_behind(&mut self, at: Offset) {
        let next = Offset::new(at.get().saturating_add(1));
        if next > self.hot.end() && next.get() < NUMBER_MAX {
            self.hot = MemoryLog::starting_at(next);
            self.writer.go_on_at(next);
            self.evicted = next;
        }
    }

    /// Whether it has the bytes of a record, for this holder.
    fn lends(&self, at: Offset, holder: Holder) -> bool {
        let mut is_held = false;
        if let Some(Held { set, .. }) = self.store.cold.get(at.get()) {
            self.store.sets.each(set, |name| is_held |= name == holder);
        }
        is_held && !self.is_elsewhere(at)
    }

    /// Cold records that other logs hold, with each of those.
    fn all_lent(&self) -> Vec<(LogNumber, Offset)> {
        let mut all = Vec::new();
        let mut has_lent = false;
        self.each_holder(|name| has_lent |= name.as_log().is_some());
        if !has_lent {
            return all;
        }
        self.store.cold.each_run(|first, len, Held { set, .. }| {
            self.store.sets.each(set, |name| {
                if let Some(log) = name.as_log() {
                    all.extend((first..first.saturating_add(len)).map(|at| (log, Offset::new(at))));
                }
            });
        });
        all
    }
}
