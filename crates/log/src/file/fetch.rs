//! Reading cold records: from an offset to its place, and from there to its bytes.
//!
//! Nothing is kept in memory of where a cold record is but the *stretch* of the file, of a quarter of
//! a megabyte or one batch. So a read takes two steps: the indexes of the stretch, which are kept for
//! a while, then the bodies, neighbours together. Where a stretch is read whole anyway, its bodies
//! are taken from it at once.
//!
//! What was read stays until it is released, or until there is too much of it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::Store;
use super::segments::Stretch;
use super::walk::{Step, Walk};
use crate::Offset;
use crate::disk::{DiskError, FileName, Op, Token};

/// The longest read, unless one record is longer.
const READ_MAX: u64 = 1 << 20;

/// The first read of a stretch that is longer than [`READ_MAX`]: one batch, of which only the index is
/// wanted.
const READ_INDEX: u64 = 64 << 10;

/// Bytes between two records that are read in vain rather than reading twice.
const GAP_MAX: u64 = 16 << 10;

/// Reads under way at a time.
const JOBS_MAX: usize = 8;

/// Records in the indexes that are kept.
const LOADED_MAX: usize = 64 << 10;

#[derive(Clone, Copy, Debug)]
struct Place {
    at: u64,
    position: u64,
    len: u32,
    crc: u32,
}

/// The index of a stretch.
#[derive(Debug)]
struct Loaded {
    stretch: Stretch,
    /// Ascending by offset.
    places: Vec<Place>,
}

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
}

/// A piece of memory with records that were read.
#[derive(Debug)]
struct Block {
    bytes: u64,
    offsets: Vec<u64>,
    /// Records that are still wanted.
    left: usize,
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
    jobs: HashMap<Token, Job, FixedState>,
    /// Records that jobs read, so that they are not read twice.
    under_way: BTreeSet<u64>,
    /// The least recently used first.
    loaded: VecDeque<Loaded>,
    /// Places in `loaded`, and room for them.
    places: usize,
    places_room: usize,
    records: HashMap<u64, (u64, Bytes), FixedState>,
    /// By number, from `first_block` on.
    blocks: VecDeque<Block>,
    first_block: u64,
    block_bytes: u64,
    bytes_max: u64,
    /// What cannot be read, and where it should be.
    damaged: BTreeMap<u64, FileName>,
}

impl Fetch {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self {
            wanted: BTreeSet::new(),
            jobs: HashMap::default(),
            under_way: BTreeSet::new(),
            loaded: VecDeque::new(),
            places: 0,
            places_room: 0,
            records: HashMap::default(),
            blocks: VecDeque::new(),
            first_block: 0,
            block_bytes: 0,
            bytes_max,
            damaged: BTreeMap::new(),
        }
    }

    pub(super) fn warm(&self, at: Offset) -> Warm {
        let at = at.get();
        match (self.records.get(&at), self.damaged.get(&at)) {
            (Some((_, bytes)), _) => Warm::Here(bytes.clone()),
            (None, Some(&file)) => Warm::Damaged(file),
            (None, None) => Warm::No,
        }
    }

    /// A cold record is going to be read.
    pub(super) fn want(&mut self, at: Offset) {
        let at = at.get();
        let is_known = self.records.contains_key(&at)
            || self.under_way.contains(&at)
            || self.damaged.contains_key(&at);
        if !is_known {
            self.wanted.insert(at);
        }
    }

    /// A cold record was released. Tells its length, if it is known.
    pub(super) fn forget(&mut self, at: Offset) -> Option<u32> {
        let at = at.get();
        self.wanted.remove(&at);
        self.damaged.remove(&at);
        if let Some((block, bytes)) = self.records.remove(&at) {
            self.leave(block);
            return Some(bytes.len() as u32);
        }
        self.loaded.iter().find_map(|loaded| loaded.find(at)).map(|place| place.len)
    }

    fn leave(&mut self, block: u64) {
        let Some(block) = self.blocks.get_mut((block - self.first_block) as usize) else { return };
        block.left -= 1;
        if block.left == 0 {
            self.block_bytes -= block.bytes;
            *block = Block { bytes: 0, offsets: Vec::new(), left: 0 };
        }
        while self.blocks.front().is_some_and(|front| front.left == 0) {
            self.blocks.pop_front();
            self.first_block += 1;
        }
        if self.records.is_empty() {
            self.records = HashMap::default();
            self.blocks = VecDeque::new();
        }
    }

    /// Whether a read of this file is under way.
    pub(super) fn reads(&self, file: FileName) -> bool {
        self.jobs.values().any(|job| job.file() == file)
    }

    /// A file was rewritten: the places in it do not matter any more.
    pub(super) fn file_gone(&mut self, file: FileName) {
        self.unload(|stretch| stretch.file == file);
    }

    /// Whether something is being read.
    pub(super) fn is_busy(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Starts reads of what is wanted, the oldest first: who asked for more than is kept needs those
    /// before all others, and what was read too early is dropped before it is of use.
    pub(super) fn pump(&mut self, store: &Store, submit: &mut dyn FnMut(Op) -> Token) {
        let free = JOBS_MAX.saturating_sub(self.jobs.len());
        if self.wanted.is_empty() || free == 0 {
            return;
        }
        let mut bodies: Vec<(FileName, Place)> = Vec::new();
        let mut loads: Vec<Stretch> = Vec::new();
        let mut idle = Vec::new();
        let (mut groups, mut group_end) = (0, None);
        // The stretch looked at last and where its index is: neighbours are in the same.
        let mut near: Option<(Stretch, Option<usize>)> = None;
        for &at in &self.wanted {
            if loads.len() + groups > free {
                break;
            }
            let Some(stretch) =
                store.segments.stretch_of(at).filter(|_| store.cold.get(at).is_some())
            else {
                idle.push(at); // released meanwhile
                continue;
            };
            let loaded = match near {
                Some((it, loaded)) if it == stretch => loaded,
                _ => self.loaded.iter().position(|it| it.stretch == stretch),
            };
            near = Some((stretch, loaded));
            let Some(loaded) = loaded else {
                let is_loading =
                    |job: &Job| matches!(job, Job::Load { stretch: it, .. } if *it == stretch);
                if !loads.contains(&stretch) && !self.jobs.values().any(is_loading) {
                    loads.push(stretch);
                }
                continue;
            };
            match self.loaded[loaded].find(at) {
                Some(place) => {
                    let end = (stretch.file, place.position);
                    let is_near = group_end.is_some_and(|(file, from, to)| {
                        file == end.0
                            && (to..=to + GAP_MAX).contains(&end.1)
                            && place.end() - from <= READ_MAX
                    });
                    groups += usize::from(!is_near);
                    let from = group_end.filter(|_| is_near).map_or(end.1, |(_, from, _)| from);
                    group_end = Some((stretch.file, from, place.end()));
                    bodies.push((stretch.file, place));
                }
                None => {
                    self.damaged.insert(at, stretch.file);
                    idle.push(at);
                }
            }
        }
        for at in idle {
            self.wanted.remove(&at);
        }
        bodies.sort_unstable_by_key(|(file, place)| (*file, place.position));
        let mut rest = &bodies[..];
        while let Some((file, first)) = rest.first() {
            let count = together(rest);
            let (job, after) = rest.split_at(count);
            rest = after;
            if self.jobs.len() >= JOBS_MAX {
                break;
            }
            for (_, place) in job {
                self.wanted.remove(&place.at);
            }
            let places: Vec<_> = job.iter().map(|(_, place)| *place).collect();
            let end = places.iter().map(Place::end).max().unwrap_or_default();
            let (file, position) = (*file, first.position);
            let token = submit(Op::Read { file, position, len: (end - position) as usize });
            self.under_way.extend(places.iter().map(|place| place.at));
            self.jobs.insert(token, Job::Bodies { file, position, places });
        }
        for stretch in loads {
            if self.jobs.len() >= JOBS_MAX {
                break;
            }
            let len = stretch.end.saturating_sub(stretch.position);
            let len = if len <= READ_MAX { len } else { READ_INDEX };
            let Stretch { file, position, end, mark } = stretch;
            let token = submit(Op::Read { file, position, len: len as usize });
            let walk = Walk::new(position, end, mark);
            self.jobs.insert(token, Job::Load { stretch, walk, position, places: Vec::new() });
        }
    }

    /// A read has completed. Gives what is to be read next, if it was not enough.
    pub(super) fn input(
        &mut self,
        token: Token,
        result: Result<Bytes, DiskError>,
        store: &Store,
        submit: &mut dyn FnMut(Op) -> Token,
    ) {
        let Some(job) = self.jobs.remove(&token) else { return };
        match job {
            Job::Bodies { file, position, places } => {
                for place in &places {
                    self.under_way.remove(&place.at);
                }
                let Ok(bytes) = result else {
                    self.damaged.extend(places.iter().map(|place| (place.at, file)));
                    return;
                };
                self.take(&bytes, (file, position), &places, store);
            }
            Job::Load { stretch, mut walk, position, mut places } => {
                let Ok(bytes) = result else { return self.lose(stretch, store) };
                let from = places.len();
                loop {
                    let skip = (walk.position() - position) as usize;
                    match walk.step(bytes.get(skip..).unwrap_or_default()) {
                        Step::Need(len) => {
                            self.take_wanted(
                                &bytes,
                                (stretch.file, position),
                                &places[from..],
                                store,
                            );
                            let (file, position) = (stretch.file, walk.position());
                            let token = submit(Op::Read { file, position, len });
                            let job = Job::Load { stretch, walk, position, places };
                            self.jobs.insert(token, job);
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
                self.take_wanted(&bytes, (stretch.file, position), &places[from..], store);
                places.sort_unstable_by_key(|place| place.at);
                self.keep(Loaded { stretch, places });
            }
        }
    }

    fn keep(&mut self, mut loaded: Loaded) {
        let Stretch { file, position, .. } = loaded.stretch;
        self.unload(|it| (it.file, it.position) == (file, position));
        loaded.places.shrink_to_fit();
        self.places += loaded.places.len();
        self.places_room += loaded.places.capacity();
        self.loaded.push_back(loaded);
        while self.places > LOADED_MAX && self.loaded.len() > 1 {
            let Some(oldest) = self.loaded.pop_front() else { return };
            self.places -= oldest.places.len();
            self.places_room -= oldest.places.capacity();
        }
    }

    /// Drops the indexes of some stretches.
    fn unload(&mut self, is_it: impl Fn(&Stretch) -> bool) {
        let (places, places_room) = (&mut self.places, &mut self.places_room);
        self.loaded.retain(|loaded| {
            let goes = is_it(&loaded.stretch);
            if goes {
                *places -= loaded.places.len();
                *places_room -= loaded.places.capacity();
            }
            !goes
        });
    }

    /// The sums are those of the indexes.
    #[cfg(test)]
    pub(super) fn assert_sums(&self) {
        let places = self.loaded.iter().map(|it| it.places.len()).sum::<usize>();
        let room = self.loaded.iter().map(|it| it.places.capacity()).sum::<usize>();
        assert_eq!((self.places, self.places_room), (places, room));
    }

    /// The indexes of a stretch cannot be read.
    fn lose(&mut self, stretch: Stretch, store: &Store) {
        let is_in = |at: &u64| store.segments.stretch_of(*at) == Some(stretch);
        let lost: Vec<_> = self.wanted.iter().copied().filter(is_in).collect();
        for at in lost {
            self.wanted.remove(&at);
            self.damaged.insert(at, stretch.file);
        }
    }

    /// Takes what is wanted out of bytes that were read for their index.
    fn take_wanted(
        &mut self,
        bytes: &Bytes,
        from: (FileName, u64),
        places: &[Place],
        store: &Store,
    ) {
        let end = from.1 + bytes.len() as u64;
        let is_here = |place: &&Place| self.wanted.contains(&place.at) && place.end() <= end;
        let here: Vec<_> = places.iter().filter(is_here).copied().collect();
        for place in &here {
            self.wanted.remove(&place.at);
        }
        self.take(bytes, from, &here, store);
    }

    /// Keeps records that were read from a place in a file.
    fn take(
        &mut self,
        bytes: &Bytes,
        (file, position): (FileName, u64),
        places: &[Place],
        store: &Store,
    ) {
        let number = self.first_block + self.blocks.len() as u64;
        let mut offsets = Vec::new();
        for place in places.iter().filter(|place| store.cold.get(place.at).is_some()) {
            let start = (place.position - position) as usize;
            let record = match bytes.get(start..start + place.len as usize) {
                Some(range) if crc32c::crc32c(range) == place.crc => bytes.slice_ref(range),
                _ => {
                    self.damaged.insert(place.at, file);
                    continue;
                }
            };
            if let Some((before, _)) = self.records.insert(place.at, (number, record)) {
                self.leave(before);
            }
            offsets.push(place.at);
        }
        if offsets.is_empty() {
            return;
        }
        let (bytes, left) = (bytes.len() as u64, offsets.len());
        self.blocks.push_back(Block { bytes, offsets, left });
        self.block_bytes += bytes;
    }

    /// Drops the oldest of what was read before `keep`, a number of blocks from the newest on, if
    /// there is too much of it.
    pub(super) fn trim(&mut self, first_kept: u64) {
        while self.block_bytes > self.bytes_max && self.first_block < first_kept {
            let Some(block) = self.blocks.pop_front() else { return };
            let number = self.first_block;
            self.first_block += 1;
            self.block_bytes -= block.bytes;
            for at in block.offsets {
                if self.records.get(&at).is_some_and(|(it, _)| *it == number) {
                    self.records.remove(&at);
                }
            }
        }
    }

    /// The number that the next piece of memory gets.
    pub(super) fn next_block(&self) -> u64 {
        self.first_block + self.blocks.len() as u64
    }

    /// Bytes of memory.
    pub(super) fn held_bytes(&self) -> usize {
        self.places_room * size_of::<Place>()
            + self.loaded.capacity() * size_of::<Loaded>()
            + self.block_bytes as usize
            + self.records.allocation_size()
            + (self.wanted.len() + self.under_way.len()) * 2 * size_of::<u64>()
            + self.damaged.len() * 2 * size_of::<(u64, FileName)>()
            + self.jobs.allocation_size()
    }
}

impl Place {
    fn end(&self) -> u64 {
        self.position + u64::from(self.len)
    }
}

impl Loaded {
    fn find(&self, at: u64) -> Option<Place> {
        let index = self.places.binary_search_by_key(&at, |place| place.at).ok()?;
        Some(self.places[index])
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
