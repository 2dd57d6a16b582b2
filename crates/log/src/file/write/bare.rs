//! Terms in what is written, and batches without records.

use super::Writer;
use crate::disk::{Body, Disk};
use crate::file::FileLog;
use crate::file::format::{BatchHeader, Kind, Terms};
use crate::file::lend::SharedOfBatch;

/// A batch without records.
#[derive(Debug)]
pub(super) enum BareBatch {
    /// The first of a term.
    Term,
    /// A change of members: bytes that are not the log's.
    Members(Vec<u8>),
}

impl Writer {
    /// What the header of the next batch has besides, if the log has terms.
    pub(super) fn terms(&self) -> Option<Terms> {
        let Self { term, last_term: before, .. } = *self;
        // A group of one agrees with itself.
        let committed = self.agreed.min(self.sequence);
        (term > 0).then_some(Terms { term, before, committed })
    }

    /// The log was opened, and its last batch has this term: others that are written without a new term have it, too.
    pub(in crate::file) fn go_on_in(&mut self, term: u64) {
        (self.term, self.last_term) = (term, term);
    }

    /// The next batch is the first of a term.
    pub(in crate::file) fn begin_term(&mut self, term: u64) {
        if self.term == 0 {
            // All that is there is below: the batches of a group of one, or none, and 0 is the name of none.
            self.sequence = if self.sequence > 0 { self.sequence.max(2) } else { 1 };
            self.synced = self.sequence;
        }
        let agreed = self.agreed.min(self.sequence);
        self.agreed = agreed;
        self.term = term;
        self.bare.push_back(BareBatch::Term);
    }

    pub(in crate::file) fn append_members(&mut self, bytes: &[u8]) {
        self.bare.push_back(BareBatch::Members(bytes.to_vec()));
    }

    /// The term of the batches that are gathered.
    pub(in crate::file) fn term(&self) -> u64 {
        self.term
    }

    /// The first batch that is not known to be synced.
    pub(in crate::file) fn synced(&self) -> u64 {
        self.synced
    }
}

impl<D: Disk> FileLog<D> {
    /// Submits a batch without records.
    pub(super) fn gather_bare(&mut self, bare: BareBatch) {
        let (kind, index) = match bare {
            BareBatch::Term => (Kind::Term, Vec::new()),
            BareBatch::Members(bytes) => (Kind::Members, bytes),
        };
        let writer = &mut self.writer;
        let at = writer.gathered.get();
        let (sequence, synced, terms) = (writer.sequence, writer.synced, writer.terms());
        let header = BatchHeader {
            kind,
            sequence,
            synced,
            first: at,
            end: at,
            terms,
            ..BatchHeader::default()
        };
        (writer.sequence, writer.last_term) = (sequence + 1, writer.term);
        let mut head = vec![0; header.header_len()];
        head.extend_from_slice(&index);
        self.submit_batch(header, (head, Body::default()), true, SharedOfBatch::default());
    }
}
