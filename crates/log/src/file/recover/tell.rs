//! The heads of records that are held, in the order of their offsets, from any offset on.
//!
//! They are in the digest of a segment, if it has one, and in its file; those of stragglers the store has. A log that is in use may
//! be asked, bit by bit: a record has the offset that it had, whichever file has it by then, and who holds it the table of cold
//! records says.

use std::collections::VecDeque;
use std::collections::btree_map::Range as MapRange;
use std::iter::Peekable;

use smallvec::SmallVec;

use super::window::Window;
use super::{OpenError, damaged, on};
use crate::disk::{Disk, FileName};
use crate::file::cold::{Ascending, Held};
use crate::file::digest::{Alike, Digest, Mixed, PausedRows, Rows};
use crate::file::format::{BatchEntry, FILE_HEADER, IndexReader, Malformed, RecordEntry};
use crate::file::segments::{Digested, Segment};
use crate::file::sets::{SetId, Sets};
use crate::file::walk::{Step, Walk};
use crate::file::{Marks, Store};
use crate::{Holder, Offset, RecoveredRun, RecoveryLimits};

type Head = SmallVec<[u8; 16]>;

/// Tells of records from an offset on, and goes on where it stopped.
#[derive(Debug, Default)]
pub(in crate::file) struct Again {
    /// Those that were read, ascending.
    digests: VecDeque<Box<Digest>>,
    /// Behind the last record that is told of.
    end: u64,
    /// How far a segment was told of, and the offset before which nothing of it is to be told any more.
    paused: Option<(u64, Paused)>,
    /// The last file that was found to have no digest.
    undigested: Option<FileName>,
    /// Segments may have digests that were not read.
    has_digests: bool,
    /// Of the digests.
    bytes: usize,
}

#[derive(Debug)]
enum Paused {
    Digest {
        /// Which it is, by its end.
        end: u64,
        rows: PausedRows,
        /// The offset that the batch begins with: what has a lower one is a straggler.
        first: u64,
        rest: Option<Run<Head>>,
    },
    File {
        name: FileName,
        /// Of the next batch.
        position: u64,
        batch: Option<PausedBatch>,
    },
}

/// What is left of the index of a batch.
#[derive(Debug)]
struct PausedBatch {
    first: u64,
    index: Vec<u8>,
    before: u64,
    records: u32,
}

/// Records one after the other with the same head, whoever holds them.
#[derive(Clone, Debug)]
struct Run<H> {
    at: u64,
    count: u64,
    head: H,
}

impl Run<&[u8]> {
    fn kept(&self) -> Run<Head> {
        Run { at: self.at, count: self.count, head: SmallVec::from_slice(self.head) }
    }
}

/// Where the next records are.
enum RecordPlace {
    Digest(usize),
    /// The file of a segment.
    File(usize),
    /// Behind this offset.
    Behind(u64),
}

impl Again {
    /// Of the records before `end`. `has_digests`: sealed segments may have some that were not read yet.
    pub(in crate::file) fn new(store: &mut Store, end: u64, has_digests: bool) -> Self {
        let mut again = Self { end, has_digests, ..Self::default() };
        for segment in &mut store.segments.all {
            match std::mem::replace(&mut segment.digest, Digested::Unchecked) {
                Digested::Read(digest) => again.keep(digest),
                other => segment.digest = other,
            }
        }
        again
    }

    fn keep(&mut self, digest: Box<Digest>) {
        let index = self.digests.partition_point(|it| it.end() <= digest.first());
        self.bytes = self.bytes.saturating_add(digest.held_bytes());
        self.digests.insert(index, digest);
    }

    /// Behind the last record that is told of.
    pub(in crate::file) fn end(&self) -> u64 {
        self.end
    }

    /// Bytes of memory.
    pub(in crate::file) fn held_bytes(&self) -> usize {
        self.bytes
    }

    /// What is before an offset is not asked for any more.
    pub(in crate::file) fn pass(&mut self, from: u64) {
        while let Some(digest) = self.digests.pop_front_if(|it| it.end() <= from) {
            self.bytes = self.bytes.saturating_sub(digest.held_bytes());
        }
    }

    /// Tells of the records of `from..until` that are held: looks at as much as `left` says, and takes it from that. Gives where
    /// it goes on.
    pub(in crate::file) fn tell<D: Disk>(
        &mut self,
        disk: &mut D,
        store: &Store,
        (from, until): (u64, u64),
        left: &mut RecoveryLimits,
        each: &mut dyn FnMut(RecoveredRun<'_>),
    ) -> Result<u64, OpenError> {
        let mut teller = Teller {
            store,
            at: from,
            until,
            left,
            held_by: store.cold.ascending(),
            heads: store.heads.range(from..until).peekable(),
            names: Names::default(),
            each,
        };
        while !teller.is_done() {
            match self.source(disk, &mut teller)? {
                RecordPlace::Digest(index) => self.tell_digest(index, &mut teller),
                RecordPlace::File(index) => self.tell_file(disk, index, &mut teller)?,
                RecordPlace::Behind(next) => teller.pass_to(next),
            }
        }
        Ok(teller.at)
    }

    /// Where the record is that comes next, or one near it.
    fn source<D: Disk>(
        &mut self,
        disk: &mut D,
        teller: &mut Teller<'_, '_>,
    ) -> Result<RecordPlace, OpenError> {
        let at = teller.at;
        let index = self.digests.partition_point(|it| it.end() <= at);
        let next_digest = self.digests.get(index).map_or(u64::MAX, |digest| digest.first());
        if next_digest <= at {
            return Ok(RecordPlace::Digest(index));
        }
        let segments = &teller.store.segments.all;
        let after = segments.partition_point(|segment| segment.first <= at);
        let index = after.saturating_sub(1);
        let Some(segment) = segments.get(index).filter(|it| it.first <= at && at < it.end) else {
            let next_segment = segments.get(after).map_or(u64::MAX, |segment| segment.first);
            return Ok(RecordPlace::Behind(next_digest.min(next_segment)));
        };
        let is_paused =
            matches!(&self.paused, Some((_, Paused::File { name, .. })) if *name == segment.file);
        let may_have = self.has_digests && segment.is_sealed && !segment.is_damaged;
        if !may_have || is_paused || self.undigested == Some(segment.file) {
            return Ok(RecordPlace::File(index));
        }
        let bytes = disk.digest(segment.file).unwrap_or_default();
        teller.has_read(bytes.len() as u64);
        match Digest::read(bytes, segment.file, segment.heading(), segment.written) {
            Some(digest) => self.keep(Box::new(digest)),
            None => self.undigested = Some(segment.file),
        }
        Ok(RecordPlace::Behind(at))
    }

    fn tell_digest(&mut self, index: usize, teller: &mut Teller<'_, '_>) {
        let (at, paused) = (teller.at, self.paused.take());
        let Some(digest) = self.digests.get(index) else { return };
        let (mut rows, mut first, rest) = match paused {
            Some((before, Paused::Digest { end, rows, first, rest }))
                if end == digest.end() && before <= at =>
            {
                (digest.resume(rows), first, rest)
            }
            _ => (digest.rows(), 0, None),
        };
        let end = digest.end();
        match teller.rows(&mut rows, &mut first, rest) {
            Ok(None) => teller.pass_to(end),
            Ok(Some(rest)) => {
                let rows = rows.pause();
                self.paused = Some((teller.at, Paused::Digest { end, rows, first, rest }));
            }
            // It has its checksum: the file tells what it should.
            Err(Malformed) => {
                let segments = &teller.store.segments.all;
                self.undigested = segments.iter().find(|it| it.end == end).map(|it| it.file);
                let digest = self.digests.remove(index);
                self.bytes = self.bytes.saturating_sub(digest.map_or(0, |it| it.held_bytes()));
            }
        }
    }

    fn tell_file<D: Disk>(
        &mut self,
        disk: &mut D,
        index: usize,
        teller: &mut Teller<'_, '_>,
    ) -> Result<(), OpenError> {
        let Some(segment) = teller.store.segments.all.get(index) else { return Ok(()) };
        let name = segment.file;
        let near = segment.near_record(teller.at).unwrap_or(FILE_HEADER as u64);
        let (position, batch) = match self.paused.take() {
            Some((before, Paused::File { name: of, position, batch }))
                if of == name && before <= teller.at && near <= position =>
            {
                (position, batch)
            }
            _ => (near, None),
        };
        let mut pause = |at: u64, position: u64, batch: Option<PausedBatch>| {
            self.paused = Some((at, Paused::File { name, position, batch }));
        };
        if let Some(PausedBatch { first, index, before, records }) = batch {
            let mut entries = IndexReader::of_records(&index, before, records);
            if let Some(rest) = teller.batch(segment, position, &mut entries, first)? {
                pause(teller.at, position, Some(rest));
                return Ok(());
            }
        }
        let mut window = Window::new(disk, name, segment.written);
        let mut walk = Walk::new(position, segment.written, segment.framing);
        let mut need = 0;
        loop {
            let position = walk.position();
            if teller.is_done() {
                pause(teller.at, position, None);
                return Ok(());
            }
            let before = window.done();
            let shown = on(name, window.show(position, need));
            let step = walk.step(shown?);
            let rest = match step {
                Step::Need(bytes) => {
                    need = bytes;
                    None
                }
                Step::Batch(batch) => {
                    need = 0;
                    let first = batch.header.first;
                    match batch.header.end > teller.at {
                        true => teller.batch(segment, position, &mut batch.entries(), first)?,
                        false => None,
                    }
                }
                Step::End => {
                    teller.pass_to(segment.end);
                    return Ok(());
                }
                Step::Bad => return Err(damaged(name, position, "this is not a whole batch")),
            };
            teller.has_read(window.done().saturating_sub(before));
            if let Some(rest) = rest {
                pause(teller.at, walk.position(), Some(rest));
                return Ok(());
            }
        }
    }
}

/// Tells of records.
struct Teller<'a, 'b> {
    store: &'a Store,
    /// What is before it was told of.
    at: u64,
    until: u64,
    /// So much may be looked at.
    left: &'b mut RecoveryLimits,
    held_by: Ascending<'a>,
    /// Of stragglers. They are few, and wait here until it is their turn.
    heads: Peekable<MapRange<'a, u64, Head>>,
    names: Names,
    each: &'b mut dyn FnMut(RecoveredRun<'_>),
}

impl Teller<'_, '_> {
    fn is_done(&self) -> bool {
        self.at >= self.until || self.left.records == 0 || self.left.bytes == 0
    }

    fn has_read(&mut self, bytes: u64) {
        self.left.bytes = self.left.bytes.saturating_sub(bytes);
    }

    fn looked_at(&mut self, records: u64) {
        let records = u32::try_from(records).unwrap_or(u32::MAX);
        self.left.records = self.left.records.saturating_sub(records);
    }

    /// There are no records before an offset but stragglers.
    fn pass_to(&mut self, end: u64) {
        let end = end.min(self.until);
        while let Some((&at, head)) = self.heads.next_if(|(at, _)| **at < end) {
            if let Some(Held { set, .. }) = self.held_by.get(at) {
                self.tell(at, 1, head, set);
            }
        }
        self.at = self.at.max(end);
    }

    fn tell(&mut self, at: u64, count: u64, head: &[u8], set: SetId) {
        let holders = self.names.of(at, set, &self.store.sets, &self.store.marks);
        (self.each)(RecoveredRun { at: Offset::new(at), count, head, holders });
        self.looked_at(count);
    }

    /// The rows of a digest. None if these were all: else the rest of a run of which there was no room for all.
    fn rows(
        &mut self,
        rows: &mut Rows<'_>,
        first: &mut u64,
        rest: Option<Run<Head>>,
    ) -> Result<Option<Option<Run<Head>>>, Malformed> {
        if let Some(Run { at, count, head }) = rest
            && let Some(rest) = self.run(Run { at, count, head: &head }, *first)
        {
            return Ok(Some(Some(rest.kept())));
        }
        let mut mixed = Mixed::default();
        loop {
            while rows.has_rows() {
                if self.is_done() {
                    return Ok(Some(None));
                }
                let run = next_run(rows, &mut mixed)?;
                let Some(run) = run else { continue };
                if let Some(rest) = self.run(run, *first) {
                    return Ok(Some(Some(rest.kept())));
                }
            }
            rows.notes()?;
            let Some((header, _)) = rows.batch()? else { return Ok(None) };
            *first = header.first;
        }
    }

    /// The records of a batch in a file. None if these were all.
    fn batch(
        &mut self,
        segment: &Segment,
        position: u64,
        entries: &mut IndexReader<'_>,
        first: u64,
    ) -> Result<Option<PausedBatch>, OpenError> {
        loop {
            let (index, before, records) = entries.records_left();
            if records == 0 {
                return Ok(None);
            }
            if self.is_done() {
                return Ok(Some(PausedBatch { first, index: index.to_vec(), before, records }));
            }
            let Ok(Some(BatchEntry::Record(record))) = entries.next() else {
                let what = "the index of a batch is not readable";
                return Err(damaged(segment.file, position, what));
            };
            let RecordEntry { at, head, .. } = record;
            if at >= self.until {
                self.pass_to(self.until);
                return Ok(Some(PausedBatch { first, index: index.to_vec(), before, records }));
            }
            // Stragglers come before it, and may have taken the room.
            if self.run(Run { at, count: 1, head }, first).is_some() {
                return Ok(Some(PausedBatch { first, index: index.to_vec(), before, records }));
            }
        }
    }

    /// Neighbours that are alike. What is before `first` is a straggler. Gives those for which there was no room.
    fn run<'h>(&mut self, run: Run<&'h [u8]>, first: u64) -> Option<Run<&'h [u8]>> {
        let Run { at, count, head } = run;
        let end = at.saturating_add(count);
        let from = at.max(self.at).max(first);
        if from >= end {
            // To look at those costs something, too.
            self.looked_at(1);
            return None;
        }
        self.pass_to(from);
        while self.at < end {
            if self.is_done() {
                let at = self.at.max(from);
                return Some(Run { at, count: end.saturating_sub(at), head });
            }
            let most = end.min(self.until).min(self.at.saturating_add(self.left.records.into()));
            let (held, mut count) = self.held_by.run(self.at, most);
            match held {
                Some(Held { set, .. }) => {
                    if !self.store.marks.is_empty() {
                        count = 1;
                    }
                    self.tell(self.at, count, head, set);
                }
                None => self.looked_at(1),
            }
            self.at = self.at.saturating_add(count);
        }
        None
    }
}

/// Who holds a record, with the last mark of each.
#[derive(Default)]
struct Names {
    holders: Vec<(Holder, u8)>,
}

impl Names {
    fn of(&mut self, at: u64, set: SetId, sets: &Sets, marks: &Marks) -> &[(Holder, u8)] {
        let marks = if marks.is_empty() { None } else { marks.get(&at) };
        self.holders.clear();
        sets.each(set, |name| {
            let found = marks.into_iter().flatten().find(|(it, _)| *it == name);
            self.holders.push((name, found.map_or(0, |(_, mark)| *mark)));
        });
        &self.holders
    }
}

/// The next records of a batch, of which some are left.
fn next_run<'a>(
    rows: &'a mut Rows<'_>,
    mixed: &mut Mixed,
) -> Result<Option<Run<&'a [u8]>>, Malformed> {
    if let Some((at, count)) = rows.alike()?.map(|Alike { at, count, .. }| (at, count)) {
        return Ok(Some(Run { at, count: count.into(), head: rows.head()? }));
    }
    if rows.mixed(mixed)? {
        let count = mixed.sets().len() as u64;
        return Ok(Some(Run { at: mixed.at, count, head: rows.head()? }));
    }
    let row = rows.row()?;
    Ok(row.map(|row| Run { at: row.at, count: 1, head: row.head }))
}
