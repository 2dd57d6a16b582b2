//! The heads of records that are held, in the order of their offsets.

use std::collections::BTreeMap;

use super::window::Window;
use super::{OpenError, damaged, on};
use crate::disk::Disk;
use crate::file::Store;
use crate::file::cold::Held;
use crate::file::digest::Digest;
use crate::file::format::{FILE_HEADER, Malformed};
use crate::file::segments::{Digested, Segment};
use crate::file::walk::{Batch, Step, Walk};
use crate::{Offset, Recovered};

/// Tells of every record that is held, in the order of offsets, and gives their bytes together.
pub(in crate::file) fn tell<D: Disk>(
    disk: &mut D,
    store: &mut Store,
    each: &mut dyn FnMut(Recovered<'_>),
) -> Result<u64, OpenError> {
    let Store { segments, sets, cold, marks, .. } = store;
    let mut live_bytes = 0_u64;
    let mut holders = Vec::new();
    let mut tell_one = |at: u64, held: Held, head: &[u8]| {
        let marks = if marks.is_empty() { None } else { marks.get(&at) };
        holders.clear();
        sets.each(held.set, |name| {
            let found = marks.into_iter().flatten().find(|(it, _)| *it == name);
            holders.push((name, found.map_or(0, |(_, mark)| *mark)));
        });
        each(Recovered { at: Offset::new(at), head, holders: &holders });
    };
    // Stragglers are few; their heads wait until it is their turn.
    let mut heads = BTreeMap::<u64, Vec<u8>>::new();
    for segment in &segments.all {
        let range = segment.file.segment..=segment.through;
        if segments.stragglers.values().any(|(number, _)| range.contains(number)) {
            each_record(disk, segment, &mut |it| {
                if it.is_straggler && cold.get(it.at).is_some() {
                    heads.insert(it.at, it.head.to_vec());
                }
            })?;
        }
    }
    let mut held_by = cold.ascending();
    for segment in &mut segments.all {
        let mut bytes = 0_u64;
        each_record(disk, segment, &mut |it| {
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
                    tell_one(at, held, &head);
                }
            }
            if let Some(held) = held_by.get(it.at) {
                bytes = bytes.saturating_add(it.stored_len);
                tell_one(it.at, held, it.head);
            }
        })?;
        segment.live_bytes = bytes;
        live_bytes = live_bytes.saturating_add(bytes);
        if matches!(segment.digest, Digested::Read(_)) {
            segment.digest = Digested::Unchecked;
        }
    }
    for (at, head) in heads {
        if let Some(held) = cold.get(at) {
            tell_one(at, held, &head);
        }
    }
    Ok(live_bytes)
}

/// A record of a segment, whoever holds it.
struct SegmentRecord<'a> {
    at: u64,
    is_straggler: bool,
    /// Bytes of it in the segment.
    stored_len: u64,
    head: &'a [u8],
}

/// Calls `each` for every record of a segment that was opened: by its digest, if that was read.
fn each_record<D: Disk>(
    disk: &mut D,
    segment: &Segment,
    each: &mut dyn FnMut(SegmentRecord<'_>),
) -> Result<(), OpenError> {
    if let Digested::Read(digest) = &segment.digest {
        let told = each_row(digest, each);
        return told.map_err(|Malformed| damaged(segment.file, 0, "its digest is not readable"));
    }
    let mut failed = None;
    walk_all(disk, segment, &mut |batch| {
        let first = batch.header.first;
        let told = batch.records(&mut |record, _| {
            let stored_len = record.stored_len().into();
            let is_straggler = record.at < first;
            each(SegmentRecord { at: record.at, is_straggler, stored_len, head: record.head });
        });
        if told.is_err() {
            failed = Some(batch.position);
        }
    })?;
    let what = "the index of a batch is not readable";
    failed.map_or(Ok(()), |position| Err(damaged(segment.file, position, what)))
}

fn each_row(digest: &Digest, each: &mut dyn FnMut(SegmentRecord<'_>)) -> Result<(), Malformed> {
    let mut rows = digest.rows();
    while let Some((header, _)) = rows.batch()? {
        while let Some(row) = rows.row()? {
            let (stored_len, is_straggler) = (row.stored_len().into(), row.at < header.first);
            each(SegmentRecord { at: row.at, is_straggler, stored_len, head: row.head });
        }
        rows.notes()?;
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
