//! The segments of a log: what is in which file, and what of it still matters.
//!
//! A segment can go when none of its records is held *and* none of its notes is needed: a note on a
//! record is needed until the file that has the record is gone or rewritten. So each segment counts
//! its notes by the [`Epoch`] of the file they are about.

use std::collections::{BTreeMap, VecDeque};

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::digest::Digest;
use super::format::{BatchHeader, Framing, Kind};
use crate::disk::{FileName, Heading};

/// Bytes of a file between two places of which it is remembered which offset is where.
const STRETCH: u64 = 256 << 10;

/// What a record and a note take in a file besides the record's bytes, about.
const RECORD_COST: u64 = 48;
const NOTE_COST: u64 = 8;

/// The name of one state of a segment's records: a new one begins when it is rewritten, and with it
/// the notes on the old one stop to matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Epoch(u64);

#[derive(Clone, Copy, Debug)]
struct Waypoint {
    position: u64,
    /// No record in order before it has this offset or a higher one.
    first: u64,
    /// The number of the batch there.
    sequence: u64,
}

/// A part of a file that is read in one go: some batches, or one large one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) file: FileName,
    pub(super) framing: Framing,
    pub(super) position: u64,
    pub(super) end: u64,
    /// None of its records that are in order has this offset or a higher one.
    pub(super) next: u64,
}

/// The terms of a segment's batches. A term's first batch begins a segment, so all of a segment have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentTerms {
    pub(super) term: u64,
    /// Of the batch before the first one.
    pub(super) before: u64,
}

#[derive(Debug)]
pub(super) struct Segment {
    pub(super) file: FileName,
    /// The last segment that this file stands for.
    pub(super) through: u64,
    pub(super) framing: Framing,
    /// Of its batches, and of the batch before its first one: of a file that has them as they were written, with terms.
    pub(super) terms: Option<SegmentTerms>,
    /// Offsets of records that are in order are in `first..end`.
    pub(super) first: u64,
    pub(super) end: u64,
    /// Bytes of the file, those being written included, and those known to be there.
    pub(super) len: u64,
    pub(super) written: u64,
    pub(super) is_sealed: bool,
    /// Its records are being copied to a new file.
    pub(super) is_rewriting: bool,
    /// Its indexes could not be read: it cannot be rewritten.
    pub(super) is_damaged: bool,
    /// In a format whose files are in no list: nothing is added to it.
    pub(super) is_old: bool,
    /// Bytes of the file that are neither records nor notes, if that is known.
    overhead: u64,
    /// Notes in earlier batches on its records are in it already.
    pub(super) as_of: u64,
    /// The number behind that of its last batch.
    pub(super) next_batch: u64,
    /// Records that are held. Bytes are an estimate once cold records were released.
    pub(super) live: u64,
    pub(super) live_bytes: u64,
    /// Volatile records of a leader, in the log of its follower: a later batch may make them durable.
    pub(super) lost: u64,
    /// The batch of the last note on its records.
    pub(super) last_noted: u64,
    /// The last one is current; the others are those of rewritings that failed.
    pub(super) epochs: Vec<Epoch>,
    /// How many notes it has on which segments.
    about: HashMap<Epoch, u32, FixedState>,
    waypoints: Vec<Waypoint>,
    /// One of its batches is a change of members: a start reads it.
    has_members: bool,
    /// What is known of its digest.
    pub(super) digest: Digested,
}

/// How far a segment is with its digest.
#[derive(Debug)]
pub(super) enum Digested {
    /// There is none.
    Not,
    /// There is one, which was read when the log was opened; its records were not told of yet.
    Read(Box<Digest>),
    /// It was read instead of the segment, which may be damaged.
    Unchecked,
    /// One was made by this process, or none can be made.
    Done,
}

/// Of all segments: bytes of their files, and of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    disk: u64,
    held: usize,
}

/// All segments, and records that are not where their offset says.
#[derive(Debug, Default)]
pub(super) struct Segments {
    /// Ascending. Only the last may not be sealed. Whoever changes how large a file is, or what memory is
    /// held for it, does so by [`Segments::change`]: sums are kept.
    pub(super) all: VecDeque<Segment>,
    sums: Sums,
    /// Records that were written after later ones: segment, and position of the batch.
    pub(super) stragglers: BTreeMap<u64, (u64, u64)>,
    last_epoch: u64,
}

impl Segment {
    /// What the header of its file says and its name does not.
    pub(super) fn heading(&self) -> Heading {
        let Self { through, first, as_of, framing, .. } = *self;
        Heading { through, first, as_of, mark: framing.mark }
    }

    pub(super) fn new(
        file: FileName,
        framing: Framing,
        first: u64,
        as_of: u64,
        epoch: Epoch,
    ) -> Self {
        Self {
            file,
            through: file.segment,
            framing,
            terms: None,
            first,
            end: first,
            len: 0,
            written: 0,
            is_sealed: false,
            is_rewriting: false,
            is_damaged: false,
            is_old: false,
            overhead: 256,
            as_of,
            next_batch: as_of,
            live: 0,
            live_bytes: 0,
            lost: 0,
            last_noted: 0,
            epochs: vec![epoch],
            about: HashMap::default(),
            waypoints: Vec::new(),
            has_members: false,
            digest: Digested::Not,
        }
    }

    /// The term of its batches: 0 if they have none.
    pub(super) fn term(&self) -> u64 {
        self.terms.map_or(0, |it| it.term)
    }

    /// Takes note of a batch at `position`.
    pub(super) fn add_batch(&mut self, position: u64, len: u64, header: &BatchHeader) {
        let BatchHeader { first, end, sequence, .. } = *header;
        let is_near = self.waypoints.last().is_some_and(|last| {
            let from = position.saturating_sub(last.position);
            from < STRETCH && len < STRETCH
        });
        if !is_near {
            self.waypoints.push(Waypoint { position, first, sequence });
        }
        self.len = position.saturating_add(len);
        self.end = self.end.max(end);
        self.next_batch = sequence.saturating_add(1);
        self.has_members |= header.kind == Kind::Members;
    }

    /// Where a batch is that has a record, or one before it.
    pub(super) fn near_record(&self, at: u64) -> Option<u64> {
        let after = self.waypoints.partition_point(|point| point.first <= at);
        Some(self.waypoints.get(after.checked_sub(1)?)?.position)
    }

    /// Where a batch of this number is, or one before it.
    pub(super) fn near_batch(&self, number: u64) -> Option<u64> {
        let after = self.waypoints.partition_point(|point| point.sequence <= number);
        Some(self.waypoints.get(after.checked_sub(1)?)?.position)
    }

    pub(super) fn add_record(&mut self, len: u32) {
        self.add_records(1, len);
    }

    /// Adds so many of the same length.
    pub(super) fn add_records(&mut self, count: u64, len: u32) {
        self.live += count;
        self.live_bytes += count * u64::from(len);
    }

    /// A record is held no more. `len` is not known of a cold one: then the mean is taken.
    pub(super) fn drop_record(&mut self, len: Option<u32>) -> u64 {
        let mean = self.live_bytes / self.live.max(1);
        self.live = self.live.saturating_sub(1);
        let bytes = if self.live == 0 { self.live_bytes } else { len.map_or(mean, u64::from) };
        let bytes = bytes.min(self.live_bytes);
        self.live_bytes -= bytes;
        bytes
    }

    /// Counts a note, unless it goes together with what it is about.
    pub(super) fn add_note(&mut self, about: Epoch) {
        if self.epochs.contains(&about) {
            return;
        }
        *self.about.entry(about).or_default() += 1;
    }

    pub(super) fn retire(&mut self, epoch: Epoch) {
        self.about.remove(&epoch);
    }

    pub(super) fn has_notes(&self) -> bool {
        !self.about.is_empty()
    }

    pub(super) fn has_notes_on(&self, mut epochs: impl Iterator<Item = Epoch>) -> bool {
        epochs.any(|epoch| self.about.contains_key(&epoch))
    }

    /// Whether nothing of it is needed.
    pub(super) fn is_dead(&self) -> bool {
        self.is_sealed && self.live == 0 && self.lost == 0 && !self.has_notes()
    }

    /// Bytes of the file that would be left if it were rewritten, about.
    pub(super) fn useful_bytes(&self) -> u64 {
        let notes: u64 = self.about.values().map(|count| u64::from(*count)).sum();
        self.overhead + self.live_bytes + self.live * RECORD_COST + notes * NOTE_COST
    }

    /// Was just rewritten: whatever it has is useful, or at least cannot be got rid of.
    pub(super) fn set_overhead(&mut self) {
        self.overhead = 0;
        self.overhead = self.len.saturating_sub(self.useful_bytes());
    }

    pub(super) fn epoch(&self) -> Option<Epoch> {
        self.epochs.last().copied()
    }

    fn stretch(&self, index: usize) -> Option<Stretch> {
        let position = self.waypoints.get(index)?.position;
        let (end, next) = match self.waypoints.get(index + 1) {
            Some(waypoint) => (waypoint.position.min(self.written), waypoint.first),
            None => (self.written, self.end),
        };
        Some(Stretch { file: self.file, framing: self.framing, position, end, next })
    }

    fn held_bytes(&self) -> usize {
        size_of::<Self>()
            + self.about.allocation_size()
            + self.waypoints.capacity() * size_of::<Waypoint>()
            + self.epochs.capacity() * size_of::<Epoch>()
    }
}

impl Segments {
    pub(super) fn new_epoch(&mut self) -> Epoch {
        self.last_epoch += 1;
        Epoch(self.last_epoch)
    }

    /// Adds the newest segment.
    pub(super) fn push(&mut self, segment: Segment) {
        self.insert(self.all.len(), segment);
    }

    pub(super) fn insert(&mut self, index: usize, segment: Segment) {
        self.sums.add(&segment);
        self.all.insert(index, segment);
    }

    pub(super) fn remove(&mut self, index: usize) -> Option<Segment> {
        let segment = self.all.remove(index)?;
        self.sums.take(&segment);
        Some(segment)
    }

    /// Changes a segment in whatever way.
    pub(super) fn change<R>(
        &mut self,
        index: usize,
        change: impl FnOnce(&mut Segment) -> R,
    ) -> Option<R> {
        let segment = self.all.get_mut(index)?;
        self.sums.take(segment);
        let result = change(segment);
        self.sums.add(segment);
        Some(result)
    }

    /// A segment has one volatile record less that is lost unless a note says otherwise.
    pub(super) fn lose(&mut self, number: u64) {
        if let Some(index) = self.by_number(number)
            && let Some(segment) = self.all.get_mut(index)
        {
            segment.lost = segment.lost.saturating_sub(1);
        }
    }

    /// The segment of a number, also of one that a file stands for.
    pub(super) fn by_number(&self, number: u64) -> Option<usize> {
        let after = self.all.partition_point(|segment| segment.file.segment <= number);
        let index = after.checked_sub(1)?;
        (number <= self.all[index].through).then_some(index)
    }

    pub(super) fn is_straggler(&self, at: u64) -> bool {
        !self.stragglers.is_empty() && self.stragglers.contains_key(&at)
    }

    /// The segment that has a record, by its number if that does not follow from its offset. The number is that of a file
    /// of whoever made the note, where that file may stand for several segments: what is known here of the record counts.
    pub(super) fn of_note(&self, at: u64, number: Option<u64>) -> Option<usize> {
        if let Some(number) = number {
            let own = self.stragglers.get(&at).map(|(own, _)| *own);
            return self.by_number(own.unwrap_or(number));
        }
        let after = self.all.partition_point(|segment| segment.first <= at);
        let index = after.checked_sub(1)?;
        (at < self.all[index].end).then_some(index)
    }

    /// The segment that has a record that is held.
    pub(super) fn of(&self, at: u64) -> Option<usize> {
        if let Some(last) = self.all.back()
            && (last.first..last.end).contains(&at)
        {
            return Some(self.all.len() - 1);
        }
        if !self.stragglers.is_empty()
            && let Some((number, _)) = self.stragglers.get(&at)
        {
            return self.by_number(*number);
        }
        self.of_note(at, None)
    }

    /// The part of a file that has a record.
    pub(super) fn stretch_of(&self, at: u64) -> Option<Stretch> {
        let segment = &self.all[self.of(at)?];
        let after = match self.stragglers.get(&at) {
            Some((_, position)) => {
                segment.waypoints.partition_point(|point| point.position <= *position)
            }
            None => segment.waypoints.partition_point(|point| point.first <= at),
        };
        segment.stretch(after.checked_sub(1)?)
    }

    /// Bytes of a record that is held, about: the mean of those in the segment of this one.
    pub(super) fn mean_len(&self, at: u64) -> u64 {
        let segment = self.of(at).and_then(|index| self.all.get(index));
        segment.map_or(0, |segment| segment.live_bytes / segment.live.max(1))
    }

    /// The segment that is written to, if one is.
    pub(super) fn active(&self) -> Option<usize> {
        let last = self.all.len().checked_sub(1)?;
        (!self.all[last].is_sealed).then_some(last)
    }

    /// Notes on this state of a segment do not matter any more.
    pub(super) fn retire(&mut self, epoch: Epoch) {
        self.all.iter_mut().for_each(|segment| segment.retire(epoch));
    }

    /// The files whose digests were read.
    pub(super) fn digested(&self) -> Vec<FileName> {
        let is_read = |it: &&Segment| matches!(it.digest, Digested::Read(_));
        self.all.iter().filter(is_read).map(|it| it.file).collect()
    }

    /// The oldest segment that is to have a digest, or else whose digest was taken for the segment so far: also if that was
    /// found damaged since.
    pub(super) fn undigested(&self) -> Option<&Segment> {
        let can =
            |it: &&Segment| it.is_sealed && !it.is_rewriting && it.live > 0 && !it.has_members;
        let lacks_one = |it: &&Segment| matches!(it.digest, Digested::Not) && !it.is_damaged;
        let is_unchecked = |it: &&Segment| matches!(it.digest, Digested::Unchecked);
        let mut all = self.all.iter().filter(can);
        all.clone().find(lacks_one).or_else(|| all.find(is_unchecked))
    }

    /// Bytes of all files.
    pub(super) fn disk_bytes(&self) -> u64 {
        self.sums.disk
    }

    /// Bytes of memory.
    pub(super) fn held_bytes(&self) -> usize {
        self.sums.held + self.stragglers.len() * 2 * size_of::<(u64, u64, u64)>()
    }

    /// The sums are those of the segments.
    #[cfg(test)]
    pub(super) fn assert_sums(&self) {
        let mut sums = Sums::default();
        self.all.iter().for_each(|segment| sums.add(segment));
        assert_eq!(self.sums, sums);
    }
}

impl Sums {
    fn add(&mut self, segment: &Segment) {
        self.disk += segment.len;
        self.held += segment.held_bytes();
    }

    fn take(&mut self, segment: &Segment) {
        self.disk -= segment.len;
        self.held -= segment.held_bytes();
    }
}
