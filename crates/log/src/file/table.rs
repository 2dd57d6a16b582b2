//! The table of holders, as one batch after the other says: who holds what, and which file has it.
//!
//! A start feeds it with the files of a log or with their digests. A follower feeds it with the batches that its leader
//! sent, once all agreed to them. So both come to the same table, and all of its records are cold.
//!
//! What was fed stays: a batch that may be cut off is not for the table yet.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::arithmetic_side_effects)]

use std::collections::BTreeMap;

use bytes::Bytes;
use smallvec::SmallVec;

use super::Store;
use super::cold::Held;
use super::digest::{Alike, Digest, MIXED, Mixed};
use super::format::{
    BatchEntry, BatchHeader, FILE_HEADER, FileHeader, IndexReader, Kind, LISTED_SINCE, Malformed,
    NoteEntry, NoteKind, RecordEntry,
};
use super::segments::{Digested, Epoch, Segment, SegmentTerms};
use super::sets::{SetId, Sets};
use super::walk::Batch;
use crate::disk::{FileName, Reached};
use crate::shared::Original;
use crate::{Holder, RecordWeight};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Table {
    pub(super) store: Store,
    /// Volatile records that no note has made durable: nobody has them but the process that wrote them.
    lost: BTreeMap<u64, Lost>,
    /// How far the log is.
    pub(super) reached: Reached,
    pub(super) next_segment: u64,
    /// Bytes of records that notes let go of, about.
    pub(super) freed: u64,
    /// Changes of members, each with the number of its batch.
    pub(super) members: Vec<(u64, Bytes)>,
    /// What a record weighs, by its head.
    weigh: fn(&[u8]) -> RecordWeight,
}

/// A volatile record on disk: lost, unless a note says otherwise.
#[derive(Debug)]
struct Lost {
    segment: u64,
    len: u32,
    weight: RecordWeight,
}

/// What there is to know of a record besides who holds it.
#[derive(Clone, Copy)]
struct Fact<'a> {
    at: u64,
    len: u32,
    /// Needed of those that other logs have to do with.
    crc: Option<u32>,
    is_volatile: bool,
    elsewhere: Option<Original>,
    head: &'a [u8],
}

/// The batch that a record is in.
#[derive(Clone, Copy)]
struct BatchAt {
    /// Of its segment.
    index: usize,
    position: u64,
    first: u64,
}

/// Records in order ascend within the offsets of their batch.
struct Order {
    first: u64,
    next: u64,
    end: u64,
}

impl Order {
    fn of(header: &BatchHeader) -> Self {
        Self { first: header.first, next: header.first, end: header.end }
    }

    fn check(&mut self, at: u64) -> Result<(), Malformed> {
        if at < self.first {
            return Ok(());
        }
        let is_in_order = (self.next..self.end).contains(&at);
        self.next = next(at);
        if is_in_order { Ok(()) } else { Err(Malformed) }
    }

    /// Of neighbours, `last` included: those between are in order if the first and the last are.
    fn check_all(&mut self, first: u64, last: u64) -> Result<(), Malformed> {
        self.check(first)?;
        if last > first {
            self.next = last;
            self.check(last)?;
        }
        Ok(())
    }
}

/// How many records each set of a digest has, of those that were taken in together and not told of yet. They weigh alike.
///
/// They are told of before a note says that one of them was released, and no earlier: a log has many batches, and each of
/// them may be of all queues.
struct Tally {
    /// By the number of the set.
    of: Vec<Counted>,
    /// Sets that have a count.
    counted: Vec<u32>,
    weight: RecordWeight,
    /// Some of the sets have the log's owner.
    has_own: bool,
}

#[derive(Clone, Copy, Default)]
struct Counted {
    /// The set that the table has, while there is a count.
    set: Option<SetId>,
    count: u32,
}

impl Tally {
    fn of(digest: &Digest) -> Self {
        let of = vec![Counted::default(); digest.sets.len()];
        let has_own = digest.sets.iter().any(|names| is_own(names));
        Self { of, counted: Vec::new(), weight: RecordWeight::default(), has_own }
    }

    /// Whether one of these sets has the log's owner.
    fn is_own(&self, sets: &[u32], digest: &Digest) -> bool {
        let names = |set: &u32| digest.sets.get(*set as usize);
        self.has_own && sets.iter().filter_map(names).any(|names| is_own(names))
    }

    /// One more record has a set of the digest: which that is.
    fn count(&mut self, set: u32, digest: &Digest, sets: &mut Sets) -> Result<SetId, Malformed> {
        let it = self.of.get_mut(set as usize).ok_or(Malformed)?;
        it.count = it.count.checked_add(1).ok_or(Malformed)?;
        if let Some(known) = it.set {
            return Ok(known);
        }
        let names = digest.sets.get(set as usize).ok_or(Malformed)?;
        self.counted.push(set);
        Ok(*it.set.insert(sets.get(names)))
    }

    /// Tells of all of them, and begins anew.
    fn tell(&mut self, store: &mut Store, digest: &Digest) -> Result<(), Malformed> {
        let Store { sets, paged, .. } = store;
        for set in self.counted.drain(..) {
            let names = digest.sets.get(set as usize).ok_or(Malformed)?;
            let it = self.of.get_mut(set as usize).map(std::mem::take).unwrap_or_default();
            let Some(id) = it.set else { continue };
            // One was counted when the set was asked for.
            sets.add_uses(id, it.count.saturating_sub(1).into());
            paged.found(names, it.count.into(), self.weight.bytes);
        }
        Ok(())
    }
}

impl Table {
    pub(super) fn new(weigh: fn(&[u8]) -> RecordWeight) -> Self {
        let (store, lost, reached, members) = Default::default();
        Self { store, lost, reached, next_segment: 0, freed: 0, members, weigh }
    }

    /// The batches that follow are those of this file.
    pub(super) fn begin(&mut self, name: FileName, header: &FileHeader) -> Result<(), Malformed> {
        let records = self.store.segments.all.iter().map(|it| it.live).fold(0, u64::saturating_add);
        self.store.weights.sweep(&self.store.cold, records);
        let last = self.store.segments.all.back();
        if header.first < self.reached.end || last.is_some_and(|last| name.segment <= last.through)
        {
            return Err(Malformed);
        }
        let epoch = self.store.segments.new_epoch();
        let mut segment = Segment::new(name, header.framing(), header.first, header.as_of, epoch);
        segment.through = header.through;
        segment.is_old = header.format < LISTED_SINCE;
        (segment.len, segment.written) = (FILE_HEADER as u64, FILE_HEADER as u64);
        self.store.segments.push(segment);
        self.reached = self.reached.max(Reached { end: header.first, sequence: header.as_of });
        self.next_segment = self.next_segment.max(next(header.through));
        Ok(())
    }

    /// These are the terms of the file that was begun last.
    ///
    /// Volatile records of an earlier term are lost: nobody has them but who led then.
    pub(super) fn set_terms(&mut self, terms: SegmentTerms) {
        if terms.term != terms.before {
            self.lost.clear();
            self.store.segments.all.iter_mut().for_each(|segment| segment.lost = 0);
        }
        if let Some(segment) = self.store.segments.all.back_mut() {
            segment.terms = Some(terms);
        }
    }

    /// The next batch of the file, or the one that seals it.
    pub(super) fn batch(&mut self, batch: &Batch<'_>) -> Result<(), Malformed> {
        let header = &batch.header;
        if header.is_seal() {
            self.seal(header.end, batch.end());
            return Ok(());
        }
        let at = self.begin_batch(batch.position, batch.len(), header)?;
        if header.kind == Kind::Members {
            self.members.push((header.sequence, Bytes::copy_from_slice(batch.index)));
            return Ok(());
        }
        let mut order = Order::of(header);
        let mut bodies = header.bodies_len;
        let mut names: SmallVec<[Holder; 4]> = SmallVec::new();
        let mut marks: SmallVec<[(Holder, u8); 4]> = SmallVec::new();
        let mut entries = batch.entries();
        for _ in 0..header.records {
            let Some(BatchEntry::Record(record)) = entries.next()? else { return Err(Malformed) };
            order.check(record.at)?;
            bodies = bodies.checked_sub(u64::from(record.stored_len())).ok_or(Malformed)?;
            names.clear();
            marks.clear();
            for (name, mark) in record.holders() {
                names.push(name);
                if mark > 0 {
                    marks.push((name, mark));
                }
            }
            if names.len() > 1 {
                names.sort_unstable();
                names.dedup();
            }
            let RecordEntry { at: offset, len, crc, is_volatile, elsewhere, head, .. } = record;
            let fact = Fact { at: offset, len, crc: Some(crc), is_volatile, elsewhere, head };
            self.record(at, fact, &names, &marks)?;
        }
        self.notes(at.index, header.sequence, entries)
    }

    /// All batches of the file, as its digest has them. The file has so many bytes.
    pub(super) fn digest(&mut self, digest: Digest, len: u64) -> Result<(), Malformed> {
        let mut rows = digest.rows();
        let (mut mixed, mut tally) = (Mixed::default(), Tally::of(&digest));
        let mut position = FILE_HEADER as u64;
        while let Some((header, len)) = rows.batch()? {
            let at = self.begin_batch(position, len, &header)?;
            let mut order = Order::of(&header);
            loop {
                if let Some(alike) = rows.alike()? {
                    let names = digest.sets.get(alike.set).ok_or(Malformed)?;
                    self.alike(at, &mut order, alike, names)?;
                }
                if rows.mixed(&mut mixed)? {
                    let weight = (self.weigh)(rows.head()?);
                    if weight != tally.weight {
                        tally.tell(&mut self.store, &digest)?;
                        tally.weight = weight;
                    }
                    self.mixed(at, &mut order, &mixed, &digest, &mut tally, rows.head()?)?;
                    continue;
                }
                let Some(row) = rows.row()? else { break };
                order.check(row.at)?;
                let names = digest.sets.get(row.set).ok_or(Malformed)?;
                let fact = Fact {
                    at: row.at,
                    len: row.len,
                    crc: row.crc,
                    is_volatile: row.is_volatile,
                    elsewhere: row.elsewhere,
                    head: row.head,
                };
                self.record(at, fact, names, row.marks)?;
            }
            if header.notes > 0 {
                tally.tell(&mut self.store, &digest)?;
            }
            self.notes(at.index, header.sequence, rows.notes()?)?;
            position = position.checked_add(len).ok_or(Malformed)?;
        }
        tally.tell(&mut self.store, &digest)?;
        self.store.paged.found_all();
        let index = self.last();
        let last = self.store.segments.all.get(index).ok_or(Malformed)?;
        if position.checked_add(last.framing.header_len() as u64) != Some(len) {
            return Err(Malformed);
        }
        self.seal(digest.end, len);
        let keep = |segment: &mut Segment| segment.digest = Digested::Read(Box::new(digest));
        self.store.segments.change(index, keep);
        Ok(())
    }

    /// The file ends there, and nothing is written behind it.
    fn seal(&mut self, end: u64, len: u64) {
        // Of a file that was rewritten the last batches may have nothing left and not be there.
        self.reached.end = self.reached.end.max(end);
        self.store.segments.change(self.last(), |segment| {
            (segment.len, segment.written) = (len, len);
            segment.is_sealed = true;
        });
    }

    /// The file that was begun last.
    fn last(&self) -> usize {
        self.store.segments.all.len().saturating_sub(1)
    }

    fn begin_batch(
        &mut self,
        position: u64,
        len: u64,
        header: &BatchHeader,
    ) -> Result<BatchAt, Malformed> {
        let BatchHeader { first, end, sequence, .. } = *header;
        if first < self.reached.end {
            return Err(Malformed);
        }
        let index = self.last();
        let add = |segment: &mut Segment| {
            segment.add_batch(position, len, header);
            segment.written = segment.len;
        };
        self.store.segments.change(index, add).ok_or(Malformed)?;
        self.reached = self.reached.max(Reached { end, sequence: next(sequence) });
        Ok(BatchAt { index, position, first })
    }

    /// Takes in records that have nothing but their holders.
    fn alike(
        &mut self,
        batch: BatchAt,
        order: &mut Order,
        alike: Alike<'_>,
        names: &[Holder],
    ) -> Result<(), Malformed> {
        let Alike { at, count, len, head, .. } = alike;
        let end = at.saturating_add(count.into());
        if at < batch.first || is_own(names) {
            let fact = |at| Fact { at, len, crc: None, is_volatile: false, elsewhere: None, head };
            for at in at..end {
                order.check(at)?;
                self.record(batch, fact(at), names, &[])?;
            }
            return Ok(());
        }
        order.check_all(at, end.saturating_sub(1))?;
        let weight = (self.weigh)(head);
        let Store { segments, sets, cold, paged, weights, .. } = &mut self.store;
        let segment = segments.all.get_mut(batch.index).ok_or(Malformed)?;
        segment.add_records(count.into(), len);
        let set = sets.get_for(names, count.into());
        cold.insert_all(at..end, Held { set, is_volatile: false });
        weights.set_all(at..end, weight);
        paged.found(names, count.into(), weight.bytes);
        Ok(())
    }

    /// Takes in records that have all but their sets in common.
    fn mixed(
        &mut self,
        batch: BatchAt,
        order: &mut Order,
        mixed: &Mixed,
        digest: &Digest,
        tally: &mut Tally,
        head: &[u8],
    ) -> Result<(), Malformed> {
        let (at, len) = (mixed.at, mixed.len);
        if at < batch.first || tally.is_own(mixed.sets(), digest) {
            for (at, set) in (at..).zip(mixed.sets()) {
                order.check(at)?;
                let names = digest.sets.get(*set as usize).ok_or(Malformed)?;
                let fact = Fact { at, len, crc: None, is_volatile: false, elsewhere: None, head };
                self.record(batch, fact, names, &[])?;
            }
            return Ok(());
        }
        let count = mixed.sets().len() as u64;
        order.check_all(at, at.saturating_add(count).saturating_sub(1))?;
        let Store { segments, sets, cold, weights, .. } = &mut self.store;
        weights.set_all(at..at.saturating_add(count), tally.weight);
        let segment = segments.all.get_mut(batch.index).ok_or(Malformed)?;
        segment.add_records(count, len);
        let mut held = SmallVec::<[Held; MIXED]>::new();
        for &set in mixed.sets() {
            held.push(Held { set: tally.count(set, digest, sets)?, is_volatile: false });
        }
        cold.insert_each(at, &held);
        Ok(())
    }

    /// Takes in a record, whose holders are `names`, none of them twice.
    fn record(
        &mut self,
        batch: BatchAt,
        fact: Fact<'_>,
        names: &[Holder],
        list: &[(Holder, u8)],
    ) -> Result<(), Malformed> {
        let Store { segments, sets, cold, marks, elsewhere, seen, paged, own, heads, weights } =
            &mut self.store;
        let Fact { at, len, .. } = fact;
        let weight = (self.weigh)(fact.head);
        let segment = segments.all.get_mut(batch.index).ok_or(Malformed)?;
        let number = segment.file.segment;
        let is_straggler = at < batch.first;
        if is_straggler {
            // One that is there already.
            if cold.get(at).is_some() || self.lost.contains_key(&at) {
                return Err(Malformed);
            }
            segments.stragglers.insert(at, (number, batch.position));
            heads.insert(at, SmallVec::from_slice(fact.head));
        }
        if fact.is_volatile {
            segment.lost = next(segment.lost);
            self.lost.insert(at, Lost { segment: number, len, weight });
            return Ok(());
        }
        segment.add_record(if fact.elsewhere.is_some() { 0 } else { len });
        cold.insert(at, Held { set: sets.get(names), is_volatile: false });
        weights.set_all(at..next(at), weight);
        paged.found(names, 1, weight.bytes);
        if is_own(names) {
            own.insert(at, SmallVec::from_slice(fact.head));
        }
        if let Some(crc) = fact.crc
            && (fact.elsewhere.is_some() || names.iter().any(|name| name.as_log().is_some()))
        {
            seen.add(at, (len, crc));
        }
        if let Some(place) = fact.elsewhere {
            elsewhere.insert(at, place, len);
        }
        if !list.is_empty() {
            marks.insert(at, SmallVec::from_slice(list));
        }
        Ok(())
    }

    /// Takes in the notes of a batch, behind its records.
    fn notes(
        &mut self,
        index: usize,
        sequence: u64,
        mut notes: IndexReader<'_>,
    ) -> Result<(), Malformed> {
        self.store.paged.found_all();
        let mut about = Vec::new();
        while let Some(entry) = notes.next()? {
            if let BatchEntry::Note(note) = entry {
                about.extend(self.note(sequence, note));
            }
        }
        self.store.segments.change(index, |segment| {
            about.into_iter().for_each(|epoch| segment.add_note(epoch));
        });
        Ok(())
    }

    /// Gives the state of the segment that a note is about, if the note matters.
    fn note(&mut self, sequence: u64, note: NoteEntry<'_>) -> Option<Epoch> {
        let NoteEntry { at, segment, kind } = note;
        let segments = &mut self.store.segments;
        let target = segments.of_note(at, segment)?;
        let about = segments.all.get_mut(target).filter(|about| sequence >= about.as_of)?;
        about.last_noted = about.last_noted.max(sequence);
        let epoch = about.epoch();
        self.change(target, at, kind);
        epoch
    }

    /// Does to a record what a note says.
    fn change(&mut self, target: usize, at: u64, kind: NoteKind<'_>) {
        let Self { store, freed, lost, .. } = self;
        let Store { segments, sets, cold, marks, elsewhere, paged, own, heads, weights, .. } =
            store;
        match kind {
            NoteKind::Release(holder) => {
                let Some(held) = cold.get(at) else {
                    // Of a volatile record the last release alone is noted.
                    if let Some(lost) = lost.remove(&at) {
                        segments.lose(lost.segment);
                        heads.remove(&at);
                    }
                    return;
                };
                let Ok(rest) = sets.without(held.set, holder) else { return };
                paged.released(holder, false, None);
                if holder == Holder::OWNER {
                    own.remove(&at);
                }
                match rest {
                    Some(set) => cold.insert(at, Held { set, ..held }),
                    None => {
                        cold.remove(at);
                        elsewhere.remove(at);
                        marks.remove(&at);
                        segments.stragglers.remove(&at);
                        heads.remove(&at);
                        if let Some(segment) = segments.all.get_mut(target) {
                            *freed = freed.saturating_add(segment.drop_record(None));
                        }
                    }
                }
            }
            NoteKind::Mark(holder, mark) => {
                if cold.get(at).is_some() {
                    let list = marks.entry(at).or_default();
                    list.retain(|(name, _)| *name != holder);
                    list.push((holder, mark));
                }
            }
            NoteKind::Persist(holders) => {
                let Some(lost) = lost.remove(&at) else { return };
                segments.lose(lost.segment);
                let names = distinct(holders.map(|(name, _)| name).collect());
                let number = segments.all.get(target).map(|it| it.file.segment);
                if cold.get(at).is_none() && number == Some(lost.segment) {
                    cold.insert(at, Held { set: sets.get(&names), is_volatile: false });
                    weights.set_all(at..next(at), lost.weight);
                    paged.found(&names, 1, lost.weight.bytes);
                    paged.found_all();
                    if let Some(segment) = segments.all.get_mut(target) {
                        segment.add_record(lost.len);
                    }
                }
            }
        }
    }
}

/// Whether the log's owner is among these, which ascend.
fn is_own(names: &[Holder]) -> bool {
    names.last() == Some(&Holder::OWNER)
}

/// A set of holders has none of them twice, whatever a file says.
fn distinct(mut names: Vec<Holder>) -> Vec<Holder> {
    names.sort_unstable();
    names.dedup();
    names
}

fn next(number: u64) -> u64 {
    number.saturating_add(1)
}
