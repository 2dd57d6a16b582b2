//! Terms in what is written, and batches without records.

use super::Writer;
use crate::disk::{Body, Disk, FileName, Reached};
use crate::file::FileLog;
use crate::file::format::{BatchHeader, Kind, Terms};
use crate::file::lend::SharedOfBatch;
use crate::{AppendError, BatchName, Moment, Offset};

impl Writer {
    /// The number that begins each batch of a file. As hard to guess as the seed.
    pub(in crate::file) fn new_mark(&self, file: FileName) -> u64 {
        self.mark_of(file, self.sequence, self.term)
    }

    /// The same of a file that is begun by this batch of a term, or of none.
    pub(in crate::file) fn mark_of(&self, file: FileName, batch: u64, term: u64) -> u64 {
        let numbers = [file.segment, file.generation, batch];
        let mark = numbers.iter().fold(mix(self.seed), |mark, number| mix(mark ^ mix(*number)));
        // In another term the same numbers may be another file's.
        if term > 0 { mix(mark ^ mix(term)) } else { mark }
    }

    /// What the header of the next batch has besides, if the log has terms.
    pub(super) fn terms(&self) -> Option<Terms> {
        let Self { term, last_term: before, .. } = *self;
        // A group of one agrees with itself.
        let committed = self.agreed.min(self.sequence);
        (term > 0).then_some(Terms { term, before, committed })
    }

    /// Others have the log, too: nothing is appended or written before a term begins.
    pub(in crate::file) fn await_term(&mut self) {
        self.refuses = self.refuses.or(Some(AppendError::NoTerm));
    }

    /// Whether a term has to begin before anything is written.
    pub(in crate::file) fn has_no_term(&self) -> bool {
        self.refuses == Some(AppendError::NoTerm)
    }

    /// The last batch has this term.
    pub(in crate::file) fn go_on_in(&mut self, term: u64) {
        (self.term, self.last_term) = (term, term);
    }

    /// The next batch is the first of a term.
    pub(in crate::file) fn begin_term(&mut self, term: u64, has_batches: bool) {
        if self.term == 0 {
            // All that is there is below: the batches of a group of one, or none, and 0 is the name of none.
            let sequence = self.sequence.max(if has_batches { 2 } else { 1 });
            // What is under way is not synced by that.
            if self.synced == self.sequence {
                self.synced = sequence;
            }
            self.sequence = sequence;
        }
        let agreed = self.agreed.min(self.sequence);
        self.agreed = agreed;
        self.term = term;
        self.refuses = self.refuses.filter(|error| *error != AppendError::NoTerm);
        self.bare.push_back((Kind::Term, Vec::new()));
    }

    pub(in crate::file) fn append_members(&mut self, bytes: &[u8]) -> Result<(), AppendError> {
        match self.refuses {
            Some(error) => Err(error),
            None if self.term == 0 => Err(AppendError::NoTerm),
            None => {
                self.bare.push_back((Kind::Members, bytes.to_vec()));
                Ok(())
            }
        }
    }

    /// A follower has applied all up to this batch, the next offset is `end`, and others have agreed to all before `agreed`.
    pub(in crate::file) fn set_applied(&mut self, last: BatchName, end: Offset, agreed: u64) {
        self.sequence = last.number + 1;
        self.synced = self.sequence;
        self.go_on_in(last.term);
        self.go_on_at(end);
        self.set_agreed(agreed);
    }

    /// A follower leads, and has this batch as its last one. Others have agreed to all before `agreed`.
    pub(in crate::file) fn lead_from(&mut self, last: BatchName, end: Offset, agreed: u64) {
        self.agreed = u64::MAX;
        self.set_applied(last, end, agreed);
        self.refuses = self.refuses.filter(|error| *error != AppendError::NoTerm);
    }

    /// Until when what was done is in a batch that was made, or needs none.
    pub(in crate::file) fn gathered(&self) -> Moment {
        Moment { end: self.gathered, notes: self.notes_before }
    }

    /// The next segment has this number.
    pub(in crate::file) fn set_next_segment(&mut self, number: u64) {
        self.next_segment = number;
    }

    /// The disk has room, or not.
    pub(in crate::file) fn set_full(&mut self, is_full: bool) {
        self.is_full = is_full;
    }

    /// The first batch that is not known to be synced.
    pub(in crate::file) fn synced(&self) -> u64 {
        self.synced
    }
}

/// SplitMix64's step.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

impl<D: Disk> FileLog<D> {
    /// Submits a batch without records.
    pub(super) fn gather_bare(&mut self, (kind, index): (Kind, Vec<u8>)) {
        let writer = &mut self.writer;
        let at = Reached { end: writer.gathered.get(), sequence: writer.sequence };
        let header = BatchHeader::bare(kind, at, writer.synced, writer.terms());
        (writer.sequence, writer.last_term) = (at.sequence + 1, writer.term);
        for note in &writer.notes {
            // It waits for the batch after this one.
            if let Some(index) = self.store.segments.by_number(note.segment) {
                self.store.segments.all[index].last_noted = writer.sequence;
            }
        }
        let mut head = vec![0; header.header_len()];
        head.extend_from_slice(&index);
        self.submit_batch(header, (head, Body::default()), true, SharedOfBatch::default());
    }
}
