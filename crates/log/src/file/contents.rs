//! What batches have, for those who follow what a log is about: the records that are there at one batch, and what each later one
//! adds and takes away.
//!
//! Bytes from others never panic: this module neither indexes nor computes unchecked.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::arithmetic_side_effects)]

use bytes::Bytes;

use super::FileLog;
use super::format::{BatchEntry, Kind, NoteKind};
use super::give::BatchCopy;
use super::walk::Batch;
use crate::disk::Disk;
use crate::{BatchName, Holder, Offset};

/// What a batch adds to a log and takes away from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchContents {
    /// Which batch.
    pub name: BatchName,
    /// Records that are there from now on, with their bytes.
    pub records: Vec<(Offset, Bytes)>,
    /// Records that are lost with the term of the batch unless they are `persisted`.
    pub volatile: Vec<(Offset, Bytes)>,
    /// Volatile records that are to stay after all.
    pub persisted: Vec<Offset>,
    /// Who holds a record no more.
    pub released: Vec<(Offset, Holder)>,
}

impl BatchCopy {
    /// What it has; nothing of a batch without records and notes. None if these are not the bytes of a batch: of one that a
    /// log [copied](FileLog::copy) or gave they are.
    pub fn contents(&self) -> Option<BatchContents> {
        let bytes = match self.pieces.as_slice() {
            [bytes] => bytes.clone(),
            pieces => Bytes::from(pieces.concat()),
        };
        let header = self.header()?;
        let name = self.name()?;
        let mut contents = BatchContents { name, ..BatchContents::default() };
        if header.kind != Kind::Data {
            return Some(contents);
        }
        let begin = header.header_len();
        let end = begin.checked_add(usize::try_from(header.index_len).ok()?)?;
        let batch = Batch { position: 0, header, index: bytes.get(begin..end)? };
        let mut is_whole = true;
        let read = batch.records(&mut |record, place| {
            // What is in another log has no bytes here.
            let len = record.stored_len() as usize;
            let range = usize::try_from(place).ok().and_then(|at| Some(at..at.checked_add(len)?));
            let Some(range) = range.filter(|it| it.end <= bytes.len()) else {
                is_whole = false;
                return;
            };
            let record_bytes = (Offset::new(record.at), bytes.slice(range));
            match record.is_volatile {
                true => contents.volatile.push(record_bytes),
                false => contents.records.push(record_bytes),
            }
        });
        read.ok().filter(|()| is_whole)?;
        let mut entries = batch.entries();
        while let Some(entry) = entries.next().ok()? {
            let BatchEntry::Note(note) = entry else { continue };
            let at = Offset::new(note.at);
            match note.kind {
                NoteKind::Release(holder) => contents.released.push((at, holder)),
                NoteKind::Persist(_) => contents.persisted.push(at),
                NoteKind::Mark(..) => {}
            }
        }
        Some(contents)
    }
}

impl<D: Disk> FileLog<D> {
    /// The records that somebody holds and that are on the disk only, as those of a log are that nobody has added to since it was
    /// opened: their offsets, ascending. Of a follower's those are the ones as of the last batch that is
    /// [applied](Self::applied).
    pub fn each_cold(&self, mut each: impl FnMut(Offset)) {
        self.store.cold.each_run(|at, count, held| {
            if !held.is_volatile {
                (at..at.saturating_add(count)).for_each(|at| each(Offset::new(at)));
            }
        });
    }
}
