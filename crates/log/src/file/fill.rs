//! Spilled records that are more than their batch may bring: it has room for their bytes, which are written later, a
//! piece at a time.
//!
//! So a publisher who waits for a batch waits for little that was spilled, and for one piece at most that is being written,
//! however much there is. A record stays in memory until all of it is written. It is lost with the process, so what a crash
//! leaves in its room does not matter. A record that is to become durable is brought by the batch that says so.

use std::collections::{BTreeMap, BTreeSet};

use super::{FileLog, Tag, submit};
use crate::Offset;
use crate::disk::{Body, Disk, DiskError, FileName, Op, Token};
use crate::memory::{MemoryLog, Stored};

/// Room for a record in a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fill {
    pub(super) file: FileName,
    pub(super) position: u64,
    /// Bytes of it that were written.
    pub(super) done: usize,
}

/// What is missing.
#[derive(Debug, Default)]
pub(super) struct Fills {
    /// Records in memory, of batches that are written. Rooms ascend as offsets do.
    rooms: BTreeMap<u64, Fill>,
    /// How many of them each file has.
    files: BTreeMap<FileName, u64>,
    /// Files that were filled since a batch with notes on records of theirs.
    unsynced: BTreeSet<FileName>,
    /// Records that are being written, each with its bytes that are there afterwards.
    under_way: Option<(Token, Vec<(u64, usize)>)>,
    /// The disk had no room.
    are_stuck: bool,
}

impl Fills {
    /// A batch is written that has this room.
    fn add(&mut self, at: u64, fill: Fill) {
        *self.files.entry(fill.file).or_default() += 1;
        self.rooms.insert(at, fill);
    }

    /// A record was released, or is written.
    pub(super) fn remove(&mut self, at: u64) {
        let Some(Fill { file, .. }) = self.rooms.remove(&at) else { return };
        if let Some(count) = self.files.get_mut(&file) {
            *count -= 1;
            if *count == 0 {
                self.files.remove(&file);
            }
        }
    }

    /// Whether this is the name of what is under way.
    pub(super) fn are(&self, token: Token) -> bool {
        self.under_way.as_ref().is_some_and(|(it, _)| *it == token)
    }

    pub(super) fn are_stuck(&self) -> bool {
        self.are_stuck
    }

    /// A file goes.
    pub(super) fn forget(&mut self, file: FileName) {
        self.unsynced.remove(&file);
    }

    /// There may be room.
    pub(super) fn retry(&mut self) {
        self.are_stuck = false;
    }

    /// Whether records of this file are missing in it.
    pub(super) fn are_in(&self, file: FileName) -> bool {
        self.files.contains_key(&file)
    }

    /// Bytes of memory: a node of the tree is for eleven records and half full at worst.
    pub(super) fn held_bytes(&self) -> usize {
        self.rooms.len() * 2 * size_of::<(u64, Fill)>()
    }
}

/// Adds bytes of a record to what is written, without a copy if it has memory of its own.
fn push_part(body: &mut Body, bytes: Stored<'_>, range: std::ops::Range<usize>) {
    match bytes {
        Stored::Among(bytes) => body.push(&bytes[range]),
        Stored::Own(bytes) => body.push_whole(bytes.slice(range)),
    }
}

/// Bytes of a record that is missing, from `from` on, behind what `body` has. Gives how many of the record are there then.
fn push(
    hot: &mut MemoryLog,
    at: u64,
    (from, most): (usize, usize),
    body: &mut Body,
) -> Option<usize> {
    let at = Offset::new(at);
    let mut done = None;
    hot.walk(at, at.next(), &mut |_, _, _, bytes| {
        let end = bytes.len().min(from.saturating_add(most));
        push_part(body, bytes, from..end);
        done = Some(end);
    });
    done
}

impl<D: Disk> FileLog<D> {
    /// A batch is written that has these rooms.
    pub(super) fn add_fills(&mut self, fills: Vec<(u64, Fill)>) {
        for (at, fill) in fills {
            if self.hot.place(Offset::new(at)).is_ok() {
                self.fills.add(at, fill);
            }
        }
    }

    /// Has the disk write the next piece of what is missing, unless one is under way.
    pub(super) fn pump_fills(&mut self) {
        let Self { fills, hot, options, writer, .. } = self;
        let Some((_, &Fill { file, position, done })) = fills.rooms.first_key_value() else {
            return;
        };
        if fills.under_way.is_some() || fills.are_stuck || writer.has_failed() {
            return;
        }
        let begin = position + done as u64;
        let most = usize::try_from(options.spill_piece_bytes.max(1)).unwrap_or(usize::MAX);
        let (mut body, mut parts) = (Body::default(), Vec::new());
        for (&at, fill) in &fills.rooms {
            let left = most.saturating_sub(body.written_len());
            if fill.file != file || left == 0 {
                break;
            }
            let place = fill.position + fill.done as u64;
            let gap = place.saturating_sub(begin + body.len() as u64) as usize;
            if gap > 0 {
                body.push_gap(gap);
            }
            parts.extend(push(hot, at, (fill.done, left), &mut body).map(|done| (at, done)));
        }
        let op = Op::Fill { file, position: begin, body, sync: false };
        let token = submit(&mut self.disk, &mut self.next_token, op);
        self.fills.unsynced.insert(file);
        self.fills.under_way = Some((token, parts));
    }

    /// A piece was written.
    pub(super) fn filled(&mut self, result: Result<(), DiskError>) {
        let Some((_, parts)) = self.fills.under_way.take() else { return };
        match result {
            Ok(()) => {
                let whole = parts.into_iter().filter(|&(at, done)| self.is_filled(at, done));
                let whole = whole.map(|(at, _)| at).collect();
                self.writer.add_late(whole, self.evicted, &self.hot);
            }
            Err(DiskError::Full) => self.fills.are_stuck = true,
            Err(DiskError::Failed(reason)) => self.writer.fail(reason),
        }
    }

    /// So many bytes of a record are written. True if it is whole: then it may leave memory.
    fn is_filled(&mut self, at: u64, done: usize) -> bool {
        let Some(fill) = self.fills.rooms.get_mut(&at) else { return false };
        fill.done = done;
        let Ok(place) = self.hot.place(Offset::new(at)) else { return false };
        let facts = self.hot.facts(place);
        if done < facts.len as usize {
            return false;
        }
        self.hot.set_tag(place, facts.tag & !Tag::UNFILLED);
        self.sums.unfilled -= u64::from(facts.len);
        self.sums.cached += u64::from(facts.len);
        self.fills.remove(at);
        true
    }

    /// What is to be written and synced before a batch that says that these records, of these files, persist: their bytes
    /// if they are missing, or nothing but a sync.
    pub(super) fn bring(&mut self, persisted: Vec<(u64, FileName)>) -> Vec<(FileName, u64, Body)> {
        let mut brought = Vec::new();
        for (at, file) in persisted {
            let mut body = Body::default();
            let room = self.fills.rooms.get(&at).map(|fill| fill.position);
            if room.is_some() {
                push(&mut self.hot, at, (0, usize::MAX), &mut body);
            }
            if room.is_some() || self.fills.unsynced.remove(&file) {
                brought.push((file, room.unwrap_or(0), body));
            }
        }
        brought
    }
}
