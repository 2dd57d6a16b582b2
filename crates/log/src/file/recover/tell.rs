//! The heads of records that are held, in the order of their offsets.

use std::collections::BTreeMap;

use super::window::Window;
use super::{OpenError, damaged, on};
use crate::disk::Disk;
use crate::file::Store;
use crate::file::format::FILE_HEADER;
use crate::file::segments::Segment;
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
    let mut tell_one = |at: u64, head: &[u8]| {
        let Some(held) = cold.get(at) else { return };
        let marks = marks.get(&at);
        holders.clear();
        sets.each(held.set, |name| {
            let found = marks.into_iter().flatten().find(|(it, _)| *it == name);
            holders.push((name, found.map_or(0, |(_, mark)| *mark)));
        });
        each(Recovered { at: Offset::new(at), head, holders: &holders });
    };
    // Stragglers are few; their heads wait until it is their turn.
    let mut heads = BTreeMap::<u64, Vec<u8>>::new();
    for pass in [Pass::Stragglers, Pass::InOrder] {
        for segment in &mut segments.all {
            if pass == Pass::Stragglers
                && !segments
                    .stragglers
                    .values()
                    .any(|(number, _)| (segment.file.segment..=segment.through).contains(number))
            {
                continue;
            }
            let mut bytes = 0_u64;
            let mut failed = None;
            walk_all(disk, segment, &mut |batch| {
                let told = batch.records(&mut |record, _| {
                    let is_here = cold.get(record.at).is_some();
                    let is_straggler = record.at < batch.header.first;
                    if is_here {
                        bytes = bytes.saturating_add(u64::from(record.stored_len()));
                    }
                    match pass {
                        Pass::Stragglers if is_straggler && is_here => {
                            heads.insert(record.at, record.head.to_vec());
                        }
                        Pass::InOrder if !is_straggler => {
                            while let Some(first) = heads.first_entry()
                                && *first.key() < record.at
                            {
                                let (at, head) = first.remove_entry();
                                tell_one(at, &head);
                            }
                            tell_one(record.at, record.head);
                        }
                        _ => {}
                    }
                });
                if told.is_err() {
                    failed = Some(batch.position);
                }
            })?;
            if let Some(position) = failed {
                let what = "the index of a batch is not readable";
                return Err(damaged(segment.file, position, what));
            }
            if pass == Pass::InOrder {
                segment.live_bytes = bytes;
                live_bytes = live_bytes.saturating_add(bytes);
            }
        }
    }
    heads.into_iter().for_each(|(at, head)| tell_one(at, &head));
    Ok(live_bytes)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    Stragglers,
    InOrder,
}

/// Calls `each` for every batch of a segment that was opened.
fn walk_all<D: Disk>(
    disk: &mut D,
    segment: &Segment,
    each: &mut dyn FnMut(&Batch<'_>),
) -> Result<(), OpenError> {
    let name = segment.file;
    let len = segment.written;
    let mut window = Window::new(disk, name, len);
    let mut walk = Walk::new(FILE_HEADER as u64, len, segment.mark);
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
