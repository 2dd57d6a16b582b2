//! Reading cold records: from an offset to its place, and from there to its bytes.
//!
//! Nothing is kept in memory of where a cold record is but the *stretch* of the file, of a quarter of
//! a megabyte or one batch. So a read takes two steps: the indexes of the stretch, which are kept for
//! a while, then the bodies, neighbours together. Where a stretch is read whole anyway, its bodies
//! are taken from it at once.
//!
//! What was read stays until it is taken or released, or until there is too much of it; then it is asked for
//! again. Somebody waits for what is *wanted*: it is read in any case, and the oldest of what was read before goes
//! for it. What is only asked for *ahead* is read while there is room, so that it is not read in vain. Both are read in ascending order: those who
//! are behind come first, and many who read the same stretches go through them together.

mod index;
mod kept;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::Store;
use super::segments::Stretch;
use super::walk::{Step, Walk};
use crate::Offset;
use crate::disk::{DiskError, FileName, Op, Token};
use index::{Indexes, Place, find};
use kept::Kept;

/// The longest read, unless one record is longer.
const READ_MAX: u64 = 1 << 20;

/// The first read of a stretch that is longer than [`READ_MAX`]: one batch, of which only the index is
/// wanted.
const READ_INDEX: u64 = 64 << 10;

/// Bytes between two records that are read in vain rather than reading twice.
const GAP_MAX: u64 = 16 << 10;

/// Reads under way at a time.
const JOBS_MAX: usize = 8;

#[derive(Debug)]
enum Job {
    Load { stretch: Stretch, walk: Walk, position: u64, places: Vec<Place> },
    Bodies { file: FileName, position: u64, places: Vec<Place> },
}

impl Job {
    fn file(&self) -> FileName {
        match self {
            Self::Load { stretch, .. } => stretch.file,
            Self::Bodies { file, .. } => *file,
        }
    }

    fn loads(&self, other: &Stretch) -> bool {
        matches!(self, Self::Load { stretch, .. } if stretch == other)
    }
}

/// What is known of a cold record.
#[derive(Debug)]
pub(super) enum Warm {
    Here(Bytes),
    Damaged(FileName),
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
    kept: Kept,
    /// What cannot be read, and where it should be.
    damaged: BTreeMap<u64, FileName>,
}

/// What is to be read next.
#[derive(Debug, Default)]
struct Plan {
    loads: Vec<Stretch>,
    bodies: Vec<(FileName, Place)>,
    /// Released meanwhile.
    idle: Vec<u64>,
    /// Not where they should be.
    lost: Vec<(u64, FileName)>,
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
            kept: Kept::new(bytes_max),
            damaged: BTreeMap::new(),
        }
    }

    pub(super) fn warm(&self, at: Offset) -> Warm {
        let at = at.get();
        match (self.kept.get(at), self.damaged.get(&at)) {
            (Some(bytes), _) => Warm::Here(bytes.clone()),
            (None, Some(&file)) => Warm::Damaged(file),
            (None, None) => Warm::No,
        }
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
        self.ahead.contains(&at) || self.wanted.contains(&at) || self.under_way.contains(&at)
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
        self.strike(at);
        self.damaged.remove(&at);
        if let Some(bytes) = self.kept.remove(at) {
            return Some(bytes.len() as u32);
        }
        let places = self.indexes.get(&store.segments.stretch_of(at)?)?;
        find(places, at).map(|place| place.len)
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

    /// Whether so much may be read ahead.
    fn has_room(&self, len: u64) -> bool {
        self.kept.has_room(self.flying + len) || self.flying == 0 && self.kept.is_empty()
    }

    /// Starts reads of what is wanted, and ahead of it while there is room.
    pub(super) fn pump(&mut self, store: &Store, submit: &mut dyn FnMut(Op) -> Token) {
        if !self.wanted.is_empty() && self.jobs.len() < JOBS_MAX {
            let plan = self.plan(&self.wanted, Some(&self.ahead), store);
            self.start(plan, submit, |_, _| true);
        }
        if !self.ahead.is_empty() && self.jobs.len() < JOBS_MAX && self.has_room(0) {
            let plan = self.plan(&self.ahead, None, store);
            self.start(plan, submit, Self::has_room);
        }
    }

    /// What is read first of what is asked for: as much as there may be jobs for. What lies in the same
    /// stretches comes `along`.
    fn plan(&self, asked: &BTreeSet<u64>, along: Option<&BTreeSet<u64>>, store: &Store) -> Plan {
        let free = JOBS_MAX.saturating_sub(self.jobs.len());
        let mut plan = Plan::default();
        let (mut groups, mut group): (usize, Option<(FileName, u64, u64)>) = (0, None);
        let (mut from, mut along_until) = (0, 0);
        // The index looked at last: neighbours are in the same.
        let mut near: Option<(Stretch, Option<&[Place]>)> = None;
        while plan.loads.len() + groups <= free
            && let along =
                along.filter(|_| from < along_until).map(|set| set.range(from..along_until))
            && let beside = along.and_then(|mut range| range.next())
            && let Some(&at) = asked.range(from..).next().into_iter().chain(beside).min()
        {
            from = at + 1;
            let stretch = store.segments.stretch_of(at).filter(|_| store.cold.get(at).is_some());
            let Some(stretch) = stretch else {
                plan.idle.push(at);
                continue;
            };
            let places = match near {
                Some((it, places)) if it == stretch => places,
                _ => self.indexes.get(&stretch),
            };
            near = Some((stretch, places));
            let Some(places) = places else {
                let is_loading = self.jobs.values().any(|(job, _)| job.loads(&stretch));
                if !is_loading && !plan.loads.contains(&stretch) {
                    plan.loads.push(stretch);
                }
                // All that is asked for there comes with it.
                from = from.max(stretch.next);
                continue;
            };
            along_until = stretch.next;
            let Some(place) = find(places, at) else {
                plan.lost.push((at, stretch.file));
                continue;
            };
            let is_near = group.is_some_and(|(file, start, end)| {
                file == stretch.file
                    && (end..=end + GAP_MAX).contains(&place.position)
                    && place.end() - start <= READ_MAX
            });
            groups += usize::from(!is_near);
            let start = group.filter(|_| is_near).map_or(place.position, |(_, start, _)| start);
            group = Some((stretch.file, start, place.end()));
            plan.bodies.push((stretch.file, place));
        }
        plan
    }

    /// Starts what was planned, as long as so much may be read.
    fn start(
        &mut self,
        plan: Plan,
        submit: &mut dyn FnMut(Op) -> Token,
        may: impl Fn(&Self, u64) -> bool,
    ) {
        let Plan { loads, mut bodies, idle, lost } = plan;
        for at in idle {
            self.strike(at);
        }
        for (at, file) in lost {
            self.strike(at);
            self.damaged.insert(at, file);
        }
        bodies.sort_unstable_by_key(|(file, place)| (*file, place.position));
        let mut rest = &bodies[..];
        while let Some((file, first)) = rest.first()
            && self.jobs.len() < JOBS_MAX
        {
            let (file, position, count) = (*file, first.position, together(rest));
            let (job, after) = rest.split_at(count);
            rest = after;
            let places: Vec<_> = job.iter().map(|(_, place)| *place).collect();
            let end = places.iter().map(Place::end).max().unwrap_or_default();
            if !may(self, end - position) {
                break;
            }
            for place in &places {
                self.strike(place.at);
                self.under_way.insert(place.at);
            }
            let job = Job::Bodies { file, position, places };
            self.submit(job, (file, position, end - position), submit);
        }
        for stretch in loads {
            let len = stretch.end.saturating_sub(stretch.position);
            let len = if len <= READ_MAX { len } else { READ_INDEX };
            if self.jobs.len() >= JOBS_MAX || !may(self, len) {
                break;
            }
            let Stretch { file, position, end, mark, .. } = stretch;
            let walk = Walk::new(position, end, mark);
            let job = Job::Load { stretch, walk, position, places: Vec::new() };
            self.submit(job, (file, position, len), submit);
        }
    }

    fn submit(
        &mut self,
        job: Job,
        (file, position, len): (FileName, u64, u64),
        submit: &mut dyn FnMut(Op) -> Token,
    ) {
        let token = submit(Op::Read { file, position, len: len as usize });
        self.flying += len;
        self.jobs.insert(token, (job, len));
    }

    /// A record is not asked for any more. Tells whether it was.
    fn strike(&mut self, at: u64) -> bool {
        self.wanted.remove(&at) | self.ahead.remove(&at)
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
            Job::Bodies { file, position, places } => {
                for place in &places {
                    self.under_way.remove(&place.at);
                }
                let Ok(bytes) = result else {
                    self.damaged.extend(places.iter().map(|place| (place.at, file)));
                    return;
                };
                self.take(&bytes, (file, position), places, store);
            }
            Job::Load { stretch, mut walk, position, mut places } => {
                let Ok(bytes) = result else { return self.lose(stretch, store) };
                let from = places.len();
                loop {
                    let skip = (walk.position() - position) as usize;
                    match walk.step(bytes.get(skip..).unwrap_or_default()) {
                        Step::Need(len) => {
                            self.take_asked(
                                &bytes,
                                (stretch.file, position),
                                &places[from..],
                                store,
                            );
                            let (file, position) = (stretch.file, walk.position());
                            let job = Job::Load { stretch, walk, position, places };
                            self.submit(job, (file, position, len as u64), submit);
                            return;
                        }
                        Step::Batch(batch) => {
                            let taken = batch.records(&mut |record, position| {
                                let (at, len, crc) = (record.at, record.len, record.crc);
                                places.push(Place { at, position, len, crc });
                            });
                            if taken.is_err() {
                                return self.lose(stretch, store);
                            }
                        }
                        Step::End => break,
                        Step::Bad => return self.lose(stretch, store),
                    }
                }
                self.take_asked(&bytes, (stretch.file, position), &places[from..], store);
                self.indexes.keep(&stretch, places);
            }
        }
    }

    /// The indexes of a stretch cannot be read.
    fn lose(&mut self, stretch: Stretch, store: &Store) {
        let is_in = |at: &u64| store.segments.stretch_of(*at) == Some(stretch);
        let asked = self.wanted.iter().chain(&self.ahead);
        let lost: Vec<_> = asked.copied().filter(is_in).collect();
        for at in lost {
            self.strike(at);
            self.damaged.insert(at, stretch.file);
        }
    }

    /// Takes what is asked for out of bytes that were read for their index.
    fn take_asked(
        &mut self,
        bytes: &Bytes,
        from: (FileName, u64),
        places: &[Place],
        store: &Store,
    ) {
        let end = from.1 + bytes.len() as u64;
        let here = places.iter().filter(|place| place.end() <= end);
        let here: Vec<_> = here.copied().filter(|place| self.strike(place.at)).collect();
        self.take(bytes, from, here, store);
    }

    /// Keeps records that were read from a place in a file.
    fn take(
        &mut self,
        bytes: &Bytes,
        (file, position): (FileName, u64),
        mut places: Vec<Place>,
        store: &Store,
    ) {
        places.retain(|place| store.cold.get(place.at).is_some());
        let Self { kept, damaged, .. } = self;
        kept.take(bytes, position, &places, |at| _ = damaged.insert(at, file));
    }

    /// Drops the oldest of what was read before the block `first_kept`, if there is too much of it. It is
    /// going to be read all the same: when there is room again.
    pub(super) fn trim(&mut self, first_kept: u64) {
        let Self { kept, ahead, .. } = self;
        kept.trim(first_kept, |at| _ = ahead.insert(at));
    }

    /// The number of the next block.
    pub(super) fn next_block(&self) -> u64 {
        self.kept.next_block()
    }

    /// Bytes of memory.
    pub(super) fn held_bytes(&self) -> usize {
        self.kept.held_bytes()
            + self.indexes.held_bytes()
            + self.flying as usize
            + (self.wanted.len() + self.ahead.len() + self.under_way.len()) * 2 * size_of::<u64>()
            + self.damaged.len() * 2 * size_of::<(u64, FileName)>()
            + self.jobs.allocation_size()
    }

    /// The sums are those of what there is.
    #[cfg(test)]
    pub(super) fn assert_sums(&self) {
        self.indexes.assert_sums();
        assert_eq!(self.flying, self.jobs.values().map(|(_, len)| len).sum::<u64>());
    }
}

/// How many of the first places are read in one go.
fn together(places: &[(FileName, Place)]) -> usize {
    let Some((file, first)) = places.first() else { return 0 };
    let mut end = first.end();
    let mut count = 1;
    for (other, place) in &places[1..] {
        let is_near = other == file
            && place.position <= end.saturating_add(GAP_MAX)
            && place.end() - first.position <= READ_MAX;
        if !is_near {
            break;
        }
        end = end.max(place.end());
        count += 1;
    }
    count
}
