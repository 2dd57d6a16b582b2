//! The heads of records that are held, in the order of their offsets.
//!
//! A digest tells of neighbours that are alike at once, and may be asked once more, bit by bit, while the log is in use: a
//! record has the offset that it had, whichever file has it by then, and who holds it the table of cold records says.

use std::collections::{BTreeMap, VecDeque};

use super::window::Window;
use super::{OpenError, damaged, on};
use crate::disk::Disk;
use crate::file::cold::{Ascending, Held};
use crate::file::digest::{Alike, Digest, Mixed, PausedRows, Rows};
use crate::file::format::{BatchHeader, FILE_HEADER, Malformed};
use crate::file::segments::{Digested, Segment};
use crate::file::sets::{SetId, Sets};
use crate::file::walk::{Batch, Step, Walk};
use crate::file::{Marks, Store};
use crate::{Holder, Offset, Recovered, RecoveredRun};

/// The digests whose records can be told of once more.
#[derive(Debug, Default)]
pub(in crate::file) struct Again {
    /// Ascending.
    digests: VecDeque<Box<Digest>>,
    /// How far the first one was read.
    paused: Option<Paused>,
    bytes: usize,
}

#[derive(Debug)]
struct Paused {
    rows: PausedRows,
    /// The offset that the batch begins with: what has a lower one is a straggler.
    first: u64,
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

/// Tells of every record that is held, in the order of offsets. Gives their bytes together, and the digests that tell of some of
/// them again. With `has_digests` sealed segments may have some that were not read yet.
pub(in crate::file) fn tell<D: Disk>(
    disk: &mut D,
    store: &mut Store,
    has_digests: bool,
    each: &mut dyn FnMut(RecoveredRun<'_>),
) -> Result<(u64, Again), OpenError> {
    let Store { segments, sets, cold, marks, .. } = store;
    let mut live_bytes = 0_u64;
    let mut again = Again::default();
    let mut names = Names::default();
    // Stragglers are few; their heads wait until it is their turn.
    let mut heads = BTreeMap::<u64, Vec<u8>>::new();
    for segment in &segments.all {
        let range = segment.file.segment..=segment.through;
        if segments.stragglers.values().any(|(number, _)| range.contains(number)) {
            let digest = match &segment.digest {
                Digested::Read(digest) => Some(&**digest),
                _ => None,
            };
            each_run(disk, segment, digest, &mut |it| {
                if it.is_straggler && cold.get(it.at).is_some() {
                    heads.insert(it.at, it.head.to_vec());
                }
            })?;
        }
    }
    let mut held_by = cold.ascending();
    for segment in &mut segments.all {
        let digest = take_digest(disk, segment, has_digests);
        let comes_again = digest.is_some();
        let mut bytes = 0_u64;
        each_run(disk, segment, digest.as_deref(), &mut |it| {
            if it.is_straggler {
                let is_here = cold.get(it.at).is_some();
                bytes = bytes.saturating_add(if is_here { it.stored_len } else { 0 });
                return;
            }
            while let Some(first) = heads.first_entry()
                && *first.key() < it.at
            {
                let (at, head) = first.remove_entry();
                if let Some(held) = cold.get(at) {
                    let holders = names.of(at, held.set, sets, marks);
                    let (at, head) = (Offset::new(at), &*head);
                    each(RecoveredRun { at, count: 1, head, holders, comes_again: false });
                }
            }
            let (mut at, end) = (it.at, it.at.saturating_add(it.count));
            while at < end {
                let (held, mut count) = held_by.run(at, end);
                if let Some(Held { set, .. }) = held {
                    if !marks.is_empty() {
                        count = 1;
                    }
                    bytes = bytes.saturating_add(it.stored_len.saturating_mul(count));
                    let holders = names.of(at, set, sets, marks);
                    let (at, head) = (Offset::new(at), it.head);
                    each(RecoveredRun { at, count, head, holders, comes_again });
                }
                at = at.saturating_add(count);
            }
        })?;
        segment.live_bytes = bytes;
        live_bytes = live_bytes.saturating_add(bytes);
        if let Some(digest) = digest {
            again.bytes = again.bytes.saturating_add(digest.held_bytes());
            again.digests.push_back(digest);
        }
    }
    for (at, head) in heads {
        if let Some(held) = cold.get(at) {
            let holders = names.of(at, held.set, sets, marks);
            let (at, head) = (Offset::new(at), &*head);
            each(RecoveredRun { at, count: 1, head, holders, comes_again: false });
        }
    }
    Ok((live_bytes, again))
}

/// The digest of a segment: the one that was read when the log was opened, or one that was made since.
fn take_digest<D: Disk>(
    disk: &mut D,
    segment: &mut Segment,
    has_digests: bool,
) -> Option<Box<Digest>> {
    match std::mem::replace(&mut segment.digest, Digested::Unchecked) {
        Digested::Read(digest) => return Some(digest),
        other => segment.digest = other,
    }
    if !has_digests || !segment.is_sealed || segment.is_damaged {
        return None;
    }
    let bytes = disk.digest(segment.file).unwrap_or_default();
    Digest::read(bytes, segment.file, segment.heading(), segment.written).map(Box::new)
}

impl Again {
    /// Bytes of memory.
    pub(in crate::file) fn held_bytes(&self) -> usize {
        self.bytes
    }

    /// Tells of the next records from an offset on that are held: looks at so many at most. Where it goes on.
    pub(in crate::file) fn tell(
        &mut self,
        from: Offset,
        most: u32,
        store: &Store,
        each: &mut dyn FnMut(Recovered<'_>),
    ) -> Option<Offset> {
        let mut teller = Teller {
            store,
            from: from.get(),
            left: most.max(1),
            held_by: store.cold.ascending(),
            names: Names::default(),
            next: from.get(),
        };
        while let Some(digest) = self.digests.front() {
            if digest.end() > teller.from {
                let paused = self.paused.take();
                let is_all = teller.digest(digest, paused, each);
                if let Ok(Some(paused)) = is_all {
                    self.paused = Some(paused);
                    return Some(Offset::new(teller.next));
                }
                debug_assert!(is_all.is_ok(), "it was read before");
            }
            self.paused = None;
            self.bytes = self.bytes.saturating_sub(digest.held_bytes());
            self.digests.pop_front();
        }
        None
    }
}

/// Tells of records once more.
struct Teller<'a> {
    store: &'a Store,
    from: u64,
    /// So many may be looked at.
    left: u32,
    held_by: Ascending<'a>,
    names: Names,
    /// Behind the last one that was looked at.
    next: u64,
}

impl Teller<'_> {
    /// Goes on with a digest. Gives how far that is, unless it was read to its end.
    fn digest(
        &mut self,
        digest: &Digest,
        paused: Option<Paused>,
        each: &mut dyn FnMut(Recovered<'_>),
    ) -> Result<Option<Paused>, Malformed> {
        let mut is_in_batch = paused.is_some();
        let (mut rows, mut first) = match paused {
            Some(Paused { rows, first }) => (digest.resume(rows), first),
            None => (digest.rows(), 0),
        };
        let mut mixed = Mixed::default();
        loop {
            if !std::mem::take(&mut is_in_batch) {
                let Some((header, _)) = rows.batch()? else { return Ok(None) };
                first = header.first;
            }
            while rows.has_rows() {
                if self.left == 0 {
                    return Ok(Some(Paused { rows: rows.pause(), first }));
                }
                next_run(&mut rows, &mut mixed, self.left, &mut |it| {
                    self.run(&it, first, each);
                })?;
            }
            rows.notes()?;
        }
    }

    /// Neighbours that are alike. What is before `first` is a straggler.
    fn run(&mut self, it: &SegmentRun<'_>, first: u64, each: &mut dyn FnMut(Recovered<'_>)) {
        let Store { sets, marks, .. } = self.store;
        let end = it.at.saturating_add(it.count);
        let mut at = it.at.max(self.from).max(first);
        // To look at those costs something, too.
        self.left = self.left.saturating_sub(1);
        while at < end {
            let (held, count) = self.held_by.run(at, end);
            let Some(Held { set, .. }) = held else {
                at = at.saturating_add(count);
                continue;
            };
            let holders = self.names.of(at, set, sets, marks);
            each(Recovered { at: Offset::new(at), head: it.head, holders });
            self.left = self.left.saturating_sub(1);
            at = at.saturating_add(1);
        }
        self.next = self.next.max(end);
    }
}

/// A record of a segment, whoever holds it, or neighbours that are alike.
#[derive(Clone, Copy)]
struct SegmentRun<'a> {
    at: u64,
    count: u64,
    is_straggler: bool,
    /// Bytes of each in the segment.
    stored_len: u64,
    head: &'a [u8],
}

/// Calls `each` for all records of a segment that was opened: by its digest, if there is one.
fn each_run<D: Disk>(
    disk: &mut D,
    segment: &Segment,
    digest: Option<&Digest>,
    each: &mut dyn FnMut(SegmentRun<'_>),
) -> Result<(), OpenError> {
    if let Some(digest) = digest {
        let told = each_row(digest, each);
        return told.map_err(|Malformed| damaged(segment.file, 0, "its digest is not readable"));
    }
    let mut failed = None;
    walk_all(disk, segment, &mut |batch| {
        let first = batch.header.first;
        let told = batch.records(&mut |record, _| {
            let stored_len = record.stored_len().into();
            let (at, is_straggler, head) = (record.at, record.at < first, record.head);
            each(SegmentRun { at, count: 1, is_straggler, stored_len, head });
        });
        if told.is_err() {
            failed = Some(batch.position);
        }
    })?;
    let what = "the index of a batch is not readable";
    failed.map_or(Ok(()), |position| Err(damaged(segment.file, position, what)))
}

fn each_row(digest: &Digest, each: &mut dyn FnMut(SegmentRun<'_>)) -> Result<(), Malformed> {
    let mut rows = digest.rows();
    let mut mixed = Mixed::default();
    while let Some((BatchHeader { first, .. }, _)) = rows.batch()? {
        while rows.has_rows() {
            next_run(&mut rows, &mut mixed, u32::MAX, &mut |it| {
                let end = it.at.saturating_add(it.count);
                for at in it.at..end.min(first) {
                    each(SegmentRun { at, count: 1, is_straggler: true, ..it });
                }
                let at = it.at.max(first);
                if at < end {
                    each(SegmentRun { at, count: end.saturating_sub(at), ..it });
                }
            })?;
        }
        rows.notes()?;
    }
    Ok(())
}

/// The next records of a batch, of which some are left. Stragglers are not told from others.
fn next_run(
    rows: &mut Rows<'_>,
    mixed: &mut Mixed,
    most: u32,
    each: &mut dyn FnMut(SegmentRun<'_>),
) -> Result<(), Malformed> {
    let is_straggler = false;
    if let Some(Alike { at, count, len, head, .. }) = rows.alike_within(most)? {
        let (count, stored_len) = (count.into(), len.into());
        each(SegmentRun { at, count, is_straggler, stored_len, head });
    } else if rows.mixed(mixed)? {
        let (count, stored_len) = (mixed.sets().len() as u64, mixed.len.into());
        each(SegmentRun { at: mixed.at, count, is_straggler, stored_len, head: rows.head()? });
    } else if let Some(row) = rows.row()? {
        let (at, head, stored_len) = (row.at, row.head, row.stored_len().into());
        each(SegmentRun { at, count: 1, is_straggler, stored_len, head });
    }
    Ok(())
}

/// Calls `each` for every batch of a segment that was opened.
fn walk_all<D: Disk>(
    disk: &mut D,
    segment: &Segment,
    each: &mut dyn FnMut(&Batch<'_>),
) -> Result<(), OpenError> {
    let name = segment.file;
    let len = segment.written;
    if len <= FILE_HEADER as u64 {
        // The first batch of the term that the log leads is on its way: it has no records, and others may have it before.
        return Ok(());
    }
    let mut window = Window::new(disk, name, len);
    let mut walk = Walk::new(FILE_HEADER as u64, len, segment.framing);
    let mut need = 0;
    loop {
        let position = walk.position();
        let shown = on(name, window.show(position, need))?;
        match walk.step(shown) {
            Step::Need(bytes) => need = bytes,
            Step::Batch(batch) => {
                need = 0;
                each(&batch);
            }
            Step::End => return Ok(()),
            Step::Bad => return Err(damaged(name, position, "this is not a whole batch")),
        }
    }
}
