//! Reading cold records: from an offset to a place in a file, and from there to the bytes.
//!
//! Memory does not have the place of a cold record. It has only the *stretch* of the file, a quarter of
//! a megabyte or one batch. So a read takes two steps: first the indexes of the stretch, which are kept for
//! a while, then the bodies, those that lie together in one piece. If most of a stretch is asked for, the stretch is read
//! whole, and its bodies are taken from it at once.
//!
//! Bytes that were read stay until they are taken or released, or until there are too many; then they are asked for
//! again. A *wanted* record, for which a consumer waits, is read in any case, and displaces the oldest bytes that were read.
//! A record that is asked for *ahead* is read only while there is room, so that it is not read in vain. Both are read in
//! ascending order: queues that are behind come first, and queues that read the same stretches go through them together.

mod index;
mod kept;
mod places;
mod plan;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::Store;
use super::segments::Stretch;
use super::walk::{Step, Walk};
use crate::disk::{DiskError, FileName, Op, Piece, Token};
use crate::{Offset, ReadError, shared};
use index::Indexes;
use kept::FetchedRecords;
use places::RecordPlace;
use plan::{Plan, Spread};

/// What is read at least to see the header and the index of a batch behind another one.
const NEXT_INDEX: u64 = 4 << 10;

/// Batches that are shorter, about, are not worth a read for the index of each.
const BATCH_MIN: u64 = 32 << 10;

/// What was done and not told of: room for so many stays.
const DONE_KEPT: usize = 1024;

/// Reads under way at a time.
const JOBS_MAX: usize = 8;

#[derive(Debug)]
enum Job {
    Load(Load),
    /// Each with where it begins in what is read.
    Bodies {
        file: FileName,
        places: Vec<(RecordPlace, usize)>,
    },
}

/// The index of a stretch is being read.
#[derive(Debug)]
struct Load {
    stretch: Stretch,
    walk: Walk,
    /// Of what is read.
    position: u64,
    /// So far, and of how many batches.
    places: Vec<RecordPlace>,
    batches: u64,
}

impl Job {
    fn file(&self) -> FileName {
        match self {
            Self::Load(load) => load.stretch.file,
            Self::Bodies { file, .. } => *file,
        }
    }

    fn loads(&self, other: &Stretch) -> bool {
        matches!(self, Self::Load(load) if load.stretch == *other)
    }
}

/// What is known of a cold record.
#[derive(Debug)]
pub(super) enum Warm {
    Here(Bytes),
    Damaged(ReadError),
    No,
}

/// Reads, and what they brought.
#[derive(Debug)]
pub(super) struct Fetch {
    wanted: BTreeSet<u64>,
    ahead: BTreeSet<u64>,
    /// With their lengths.
    jobs: HashMap<Token, (Job, u64), FixedState>,
    /// Bytes that they read.
    flying: u64,
    /// Records that jobs read, so that they are not read twice.
    under_way: BTreeSet<u64>,
    indexes: Indexes,
    kept: FetchedRecords,
    /// What cannot be read, and why.
    damaged: BTreeMap<u64, ReadError>,
    /// Records whose bytes were asked of another log, and whether nobody waits for them.
    borrowed: BTreeMap<u64, bool>,
    /// The first block of what other logs lent since [`Self::first_new`] was asked.
    lent_from: Option<u64>,
    /// What was asked for and is not any more: it is here, damaged or released. Each that was ever wanted gets here.
    done: Vec<u64>,
}

impl Fetch {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self {
            wanted: BTreeSet::new(),
            ahead: BTreeSet::new(),
            jobs: HashMap::default(),
            flying: 0,
            under_way: BTreeSet::new(),
            indexes: Indexes::default(),
            kept: FetchedRecords::new(bytes_max),
            damaged: BTreeMap::new(),
            borrowed: BTreeMap::new(),
            lent_from: None,
            done: Vec::new(),
        }
    }

    pub(super) fn warm(&self, at: Offset) -> Warm {
        let at = at.get();
        match (self.kept.get(at), self.damaged.get(&at)) {
            (Some(bytes), _) => Warm::Here(bytes.clone()),
            (None, Some(&error)) => Warm::Damaged(error),
            (None, None) => Warm::No,
        }
    }

    /// The bytes of a cold record, if they are here.
    pub(super) fn bytes(&self, at: Offset) -> Option<&Bytes> {
        self.kept.get(at.get())
    }

    fn is_known(&self, at: u64) -> bool {
        self.kept.get(at).is_some()
            || self.under_way.contains(&at)
            || self.damaged.contains_key(&at)
    }

    /// Somebody waits for a cold record.
    pub(super) fn want(&mut self, at: Offset) {
        let at = at.get();
        if !self.wanted.contains(&at) && !self.is_known(at) {
            self.ahead.remove(&at);
            self.wanted.insert(at);
        }
    }

    /// A cold record is going to be read.
    pub(super) fn want_ahead(&mut self, at: Offset) {
        let at = at.get();
        if !self.wanted.contains(&at) && !self.is_known(at) {
            self.ahead.insert(at);
        }
    }

    /// Whether it was asked for, and is not here.
    pub(super) fn is_asked(&self, at: Offset) -> bool {
        let at = at.get();
        self.ahead.contains(&at)
            || self.wanted.contains(&at)
            || self.under_way.contains(&at)
            || self.borrowed.contains_key(&at)
    }

    /// Whether the bytes of a record that another log has are to be asked for. `len`: of such records, about. Those
    /// that nobody waits for are `ahead`.
    pub(super) fn borrow(&mut self, at: Offset, len: u64, ahead: bool) -> bool {
        let at = at.get();
        let flying = self.flying + self.borrowed.len() as u64 * len;
        let has_room = self.kept.room(flying) > 0 || self.kept.is_empty() && flying == 0;
        if let Some(is_ahead) = self.borrowed.get_mut(&at) {
            *is_ahead &= ahead;
            return false;
        }
        let is_asked = (has_room || !ahead) && !self.is_known(at);
        is_asked && self.borrowed.insert(at, ahead).is_none()
    }

    /// What was asked of another log came, or cannot be had.
    pub(super) fn lent(&mut self, name: Offset, bytes: Result<Bytes, ReadError>, store: &Store) {
        let at = name.get();
        let Some(is_ahead) = self.borrowed.remove(&at) else { return };
        self.done.push(at);
        if store.cold.get(at).is_none() {
            return;
        }
        let next = self.kept.next_block();
        self.lent_from.get_or_insert(next);
        match bytes {
            // It may be longer than most: as in `take_asked`.
            Ok(bytes) if is_ahead && !self.kept.is_empty() => {
                if bytes.len() as u64 <= self.kept.room(self.flying) {
                    self.kept.add(at, bytes);
                }
            }
            Ok(bytes) => self.kept.add(at, bytes),
            Err(error) => {
                let Some(of) = store.elsewhere.get(at) else { return };
                let file = match error {
                    ReadError::Damaged { file, .. } => Some(file),
                    _ => None,
                };
                self.damaged.insert(at, ReadError::Elsewhere { at: name, of, file });
            }
        }
    }

    /// Whether the record was found damaged.
    pub(super) fn is_damaged(&self, at: Offset) -> bool {
        matches!(self.damaged.get(&at.get()), Some(ReadError::Damaged { .. }))
    }

    /// A damaged record was had elsewhere: where its bytes are to be, if that is known. An error if these are not they.
    pub(super) fn mend(
        &mut self,
        at: Offset,
        bytes: &Bytes,
        store: &Store,
    ) -> Result<Option<(FileName, u64)>, ()> {
        let at = at.get();
        let place = store.segments.stretch_of(at).and_then(|stretch| {
            let place = self.indexes.get(&stretch)?.find(at)?;
            Some((stretch.file, place))
        });
        let is_it = |place: &RecordPlace| {
            place.len as usize == bytes.len() && place.crc == crc32c::crc32c(bytes)
        };
        if place.is_some_and(|(_, place)| !is_it(&place)) {
            return Err(());
        }
        self.damaged.remove(&at);
        let next = self.kept.next_block();
        self.lent_from.get_or_insert(next);
        self.kept.add(at, bytes.clone());
        self.done.push(at);
        Ok(place.map(|(file, place)| (file, place.position)))
    }

    /// What another log would lend is not this record.
    pub(super) fn never(&mut self, at: Offset, of: shared::Original) {
        self.damaged.insert(at.get(), ReadError::Elsewhere { at, of, file: None });
    }

    /// Tells of what was done since the last call.
    pub(super) fn each_done(&mut self, each: &mut dyn FnMut(Offset)) {
        self.done.drain(..).for_each(|at| each(Offset::new(at)));
        self.done.shrink_to(DONE_KEPT);
    }

    /// Whether nothing that was read is here.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// A record was read by the only one who wants it.
    pub(super) fn taken(&mut self, at: Offset) {
        self.kept.remove(at.get());
    }

    /// A cold record was released. Tells its length, if it is known.
    pub(super) fn forget(&mut self, at: Offset, store: &Store) -> Option<u32> {
        let at = at.get();
        self.settle(at);
        self.damaged.remove(&at);
        if self.borrowed.remove(&at).is_some() {
            self.done.push(at);
        }
        if let Some(bytes) = self.kept.remove(at) {
            return Some(bytes.len() as u32);
        }
        let places = self.indexes.get(&store.segments.stretch_of(at)?)?;
        places.find(at).map(|place| place.len)
    }

    /// Whether a read of this file is under way.
    pub(super) fn reads(&self, file: FileName) -> bool {
        self.jobs.values().any(|(job, _)| job.file() == file)
    }

    /// A file was rewritten: the places in it do not matter any more.
    pub(super) fn file_gone(&mut self, file: FileName) {
        self.indexes.file_gone(file);
    }

    /// Whether something is being read.
    pub(super) fn is_busy(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Starts reads of what is wanted, and ahead of it while there is room.
    pub(super) fn pump(&mut self, store: &Store, submit: &mut dyn FnMut(Op) -> Token) {
        if !self.wanted.is_empty() && self.jobs.len() < JOBS_MAX {
            let plan = self.plan(&self.wanted, u64::MAX, store);
            self.start(plan, submit);
        }
        let room = self.kept.room(self.flying);
        let has_room = room > 0 || self.flying == 0 && self.kept.is_empty();
        if !self.ahead.is_empty() && self.jobs.len() < JOBS_MAX && has_room {
            let plan = self.plan(&self.ahead, room, store);
            self.start(plan, submit);
        }
    }

    /// Starts what was planned.
    fn start(&mut self, plan: Plan, submit: &mut dyn FnMut(Op) -> Token) {
        for at in plan.idle {
            self.settle(at);
        }
        for (at, stretch) in plan.lost {
            self.settle(at);
            self.damaged.insert(at, damaged_in(stretch.file, stretch.position, at));
        }
        for spread in plan.bodies {
            for (place, _) in &spread.places {
                self.strike(place.at);
                self.under_way.insert(place.at);
            }
            self.read(spread, submit);
        }
        for (stretch, len) in plan.loads {
            let Stretch { position, end, framing, .. } = stretch;
            let walk = Walk::new(position, end, framing);
            self.load(
                Load { stretch, walk, position, places: Vec::new(), batches: 0 },
                len,
                submit,
            );
        }
    }

    fn read(&mut self, spread: Spread, submit: &mut dyn FnMut(Op) -> Token) {
        let Spread { file, pieces, places, len, .. } = spread;
        let token = submit(Op::Read { file, pieces });
        self.flying += len;
        self.jobs.insert(token, (Job::Bodies { file, places }, len));
    }

    fn load(&mut self, load: Load, len: u64, submit: &mut dyn FnMut(Op) -> Token) {
        let (file, position) = (load.stretch.file, load.position);
        let token = submit(Op::Read { file, pieces: vec![Piece { position, len: len as usize }] });
        self.flying += len;
        self.jobs.insert(token, (Job::Load(load), len));
    }

    /// A record is not asked for any more. Tells whether it was.
    fn strike(&mut self, at: u64) -> bool {
        self.wanted.remove(&at) | self.ahead.remove(&at)
    }

    /// A record that is not under way is not asked for any more, as it is known what became of it. Tells whether it was.
    fn settle(&mut self, at: u64) -> bool {
        let was_asked = self.strike(at);
        if was_asked {
            self.done.push(at);
        }
        was_asked
    }

    /// A read has completed. Gives what is to be read next, if it was not enough.
    pub(super) fn input(
        &mut self,
        token: Token,
        result: Result<Bytes, DiskError>,
        store: &Store,
        submit: &mut dyn FnMut(Op) -> Token,
    ) {
        let Some((job, len)) = self.jobs.remove(&token) else { return };
        self.flying -= len;
        match job {
            Job::Bodies { file, places } => match result {
                Ok(bytes) => {
                    self.no_longer_under_way(&places);
                    self.take(&bytes, file, places, store);
                }
                // Perhaps only one of them cannot be read.
                Err(_) if places.len() > 1 => {
                    let alone = places.into_iter().map(|(place, _)| Spread::new(file, place));
                    alone.for_each(|spread| self.read(spread, submit));
                }
                Err(_) => {
                    self.no_longer_under_way(&places);
                    let all = places.iter().map(|(place, _)| (place.at, place.damaged(file)));
                    self.damaged.extend(all);
                }
            },
            Job::Load(mut load) => {
                let Ok(bytes) = result else { return self.lose(load.stretch, store) };
                let from = load.places.len();
                let next = loop {
                    match load.step(&bytes) {
                        Step::Need(least) => break Some(load.next_read(least as u64)),
                        Step::Batch(batch) => {
                            let places = &mut load.places;
                            let taken = batch.records(&mut |record, position| {
                                let (at, len, crc) = (record.at, record.len, record.crc);
                                if record.elsewhere.is_none() {
                                    places.push(RecordPlace { at, position, len, crc });
                                }
                            });
                            if taken.is_err() {
                                return self.lose(load.stretch, store);
                            }
                            load.batches += 1;
                        }
                        Step::End => break None,
                        Step::Bad => return self.lose(load.stretch, store),
                    }
                };
                self.take_asked(&bytes, &load, from, store);
                match next {
                    Some(len) => {
                        load.position = load.walk.position();
                        self.load(load, len, submit);
                    }
                    None => self.indexes.keep(&load.stretch, load.places),
                }
            }
        }
    }

    fn no_longer_under_way(&mut self, places: &[(RecordPlace, usize)]) {
        for (place, _) in places {
            self.under_way.remove(&place.at);
            self.done.push(place.at);
        }
    }

    /// The indexes of a stretch cannot be read.
    fn lose(&mut self, stretch: Stretch, store: &Store) {
        let is_in = |at: &u64| store.segments.stretch_of(*at) == Some(stretch);
        let asked = self.wanted.iter().chain(&self.ahead);
        let lost: Vec<_> = asked.copied().filter(is_in).collect();
        for at in lost {
            self.settle(at);
            self.damaged.insert(at, damaged_in(stretch.file, stretch.position, at));
        }
    }

    /// Takes what is asked for, of the places from `from` on, out of bytes that were read for their index. An index may be
    /// longer than was planned: then only what is wanted is taken. Whatever is read ahead would drop something else for
    /// want of room, which would be read again and drop this, for ever.
    fn take_asked(&mut self, bytes: &Bytes, load: &Load, from: usize, store: &Store) {
        let (start, end) = (load.position, load.position + bytes.len() as u64);
        let has_room = self.kept.is_empty() || bytes.len() as u64 <= self.kept.room(self.flying);
        let here = load.places[from..].iter().filter(|place| place.end() <= end);
        let here = here
            .filter(|place| (has_room || self.wanted.contains(&place.at)) && self.settle(place.at));
        let here = here.map(|place| (*place, (place.position - start) as usize));
        let here = here.collect();
        self.take(bytes, load.stretch.file, here, store);
    }

    /// Keeps records that were read.
    fn take(
        &mut self,
        bytes: &Bytes,
        file: FileName,
        mut places: Vec<(RecordPlace, usize)>,
        store: &Store,
    ) {
        places.retain(|(place, _)| store.cold.get(place.at).is_some());
        let Self { kept, damaged, .. } = self;
        kept.take(bytes, &places, |place| _ = damaged.insert(place.at, place.damaged(file)));
    }

    /// Drops the oldest of what was read before the block `first_kept`, if there is too much of it. It is
    /// going to be read all the same: when there is room again.
    pub(super) fn trim(&mut self, first_kept: u64, is_lent: impl Fn(u64) -> bool) {
        let Self { kept, ahead, .. } = self;
        kept.trim(first_kept, |at| {
            // Whoever wants what another log lent asks again.
            if !is_lent(at) {
                ahead.insert(at);
            }
        });
    }

    /// The number of the first block that nobody has had a look at: what other logs lent, or the next one.
    pub(super) fn first_new(&mut self) -> u64 {
        let next = self.kept.next_block();
        self.lent_from.take().unwrap_or(next)
    }

    /// Bytes that were read and not taken.
    pub(super) fn kept_bytes(&self) -> u64 {
        self.kept.bytes()
    }

    /// Bytes of memory.
    pub(super) fn held_bytes(&self) -> usize {
        self.kept.held_bytes()
            + self.indexes.held_bytes()
            + self.flying as usize
            + (self.wanted.len() + self.ahead.len() + self.under_way.len() + self.borrowed.len())
                * 2
                * size_of::<u64>()
            + self.damaged.len() * 2 * size_of::<(u64, ReadError)>()
            + self.done.capacity() * size_of::<u64>()
            + self.jobs.allocation_size()
    }

    /// The sums are those of what there is.
    #[cfg(test)]
    pub(super) fn assert_sums(&self) {
        self.indexes.assert_sums();
        assert_eq!(self.flying, self.jobs.values().map(|(_, len)| len).sum::<u64>());
    }
}

fn damaged_in(file: FileName, position: u64, at: u64) -> ReadError {
    ReadError::Damaged { at: Offset::new(at), file, position }
}

impl RecordPlace {
    fn damaged(&self, file: FileName) -> ReadError {
        damaged_in(file, self.position, self.at)
    }
}

impl Load {
    /// Goes on with what was read.
    fn step<'a>(&mut self, bytes: &'a Bytes) -> Step<'a> {
        let skip = (self.walk.position() - self.position) as usize;
        self.walk.step(bytes.get(skip..).unwrap_or_default())
    }

    /// How much is read next, to see `least` bytes.
    fn next_read(&self, least: u64) -> u64 {
        let seen = self.walk.position() - self.stretch.position;
        let rest = self.walk.end().saturating_sub(self.walk.position());
        match seen.checked_div(self.batches) {
            None => least,
            Some(mean) if mean < BATCH_MIN => rest,
            Some(_) => least.max(NEXT_INDEX).min(rest),
        }
    }
}
