//! Terms: the names of batches that others have, too ([decision 0056](../../../../docs/decisions/0056-the-replicated-log.md)).
//!
//! A group of several members agrees on batches. The number of a batch and its term name it among all members. A term's first
//! batch begins a segment, so all batches of a segment have one term, and nothing is kept for each.

use super::FileLog;
use super::format::Kind;
use super::segments::Segment;
use crate::disk::Disk;
use crate::{AppendError, BatchName, Moment, SyncError};

impl<D: Disk> FileLog<D> {
    /// Begins a term, as the leader of a group: the next batch is one without records, in a new segment, and has the term, as
    /// those that follow. It is written by the next [`sync`](crate::Log::sync) while no batch is under way. Nothing that was
    /// appended before and not handed over has an earlier term.
    ///
    /// The log of a follower stays one: it has the batch written as one that it [copied](Self::copy), and takes no records before it
    /// [leads](Self::lead). Another leader may have the batch [cut off](Self::cut_from). A log with terms that was opened as no
    /// follower's writes nothing, and takes no records, before this.
    ///
    /// A log that had no terms has them from now on, and older programs refuse it. Its batches from then on are numbered from 1
    /// at least: 0 is the name of none. What it had is agreed to.
    ///
    /// # Panics
    ///
    /// If the term is not above that of the last batch.
    pub fn begin_term(&mut self, term: u64) {
        let last = self.last();
        assert!(term > last.term, "term {term} begins behind {last}");
        match &self.following {
            Some(_) => _ = self.make(Kind::Term, term, &[]),
            None => self.writer.begin_term(term, !self.store.segments.all.is_empty()),
        }
    }

    /// Has bytes that are not the log's written as a batch of their own: a change of the group's members. It is refused unless
    /// a term was begun, or when it has failed.
    pub fn append_members(&mut self, bytes: &[u8]) -> Result<(), AppendError> {
        if self.following.is_none() {
            return self.writer.append_members(bytes);
        }
        self.writer.check().map_err(|_| AppendError::Failed)?;
        let term = self.last().term;
        self.make(Kind::Members, term, bytes).map(|_| ()).ok_or(AppendError::NoTerm)
    }

    /// Hands over what others wait for, as [`sync`](crate::Log::sync) does, but no records and notes: a leader that may make no
    /// batch now still copies, begins its term and changes its members, and tries again when its disk was full.
    pub fn sync_made(&mut self) -> Result<(), SyncError> {
        crate::Log::collect(self)?;
        self.hand_over_made();
        Ok(())
    }

    /// The last batch, written or not. [`BatchName::NONE`] if there is none.
    pub fn last(&self) -> BatchName {
        if let Some(following) = &self.following {
            return following.last();
        }
        self.name(self.writer.sequence())
    }

    /// Until when what was done is in batches that were made, or needs none. Just after a call that made one it is where that one
    /// ends.
    pub fn gathered(&self) -> Moment {
        self.writer.gathered()
    }

    /// The last batch that is on this disk for good, as all before it.
    pub fn stored(&self) -> BatchName {
        if let Some(following) = &self.following {
            return self.name(following.stored() + 1);
        }
        self.name(self.writer.synced())
    }

    /// The batch before number `next`, which is here or is the one before those that are.
    fn name(&self, next: u64) -> BatchName {
        let Some(number) = next.checked_sub(1) else { return BatchName::NONE };
        BatchName { number, term: self.term_of(number).unwrap_or(0) }
    }

    /// The batch before the first one that is here as it was written, as all behind it. What is not above was rewritten, or
    /// removed, or has no term: others cannot have it as batches.
    pub fn point(&self) -> BatchName {
        match self.as_written().last() {
            Some(segment) => before(segment),
            None => match &self.following {
                Some(following) => following.applied(),
                None => BatchName { number: self.writer.sequence().saturating_sub(1), term: 0 },
            },
        }
    }

    /// The term of a batch that is above the [`point`](Self::point), or is that.
    pub fn term_of(&self, number: u64) -> Option<u64> {
        if let Some(following) = self.following.as_ref().filter(|it| number > it.applied().number) {
            return following.term_of(number);
        }
        if number >= self.writer.sequence() {
            return None;
        }
        let mut first = None;
        for segment in self.as_written() {
            if number >= segment.as_of {
                return Some(segment.term());
            }
            first = Some(segment);
        }
        let point = first.map_or_else(|| self.point(), before);
        (point.number == number).then_some(point.term)
    }

    /// The segments whose batches are here as they were written, as all behind them: the last one first.
    pub(super) fn as_written(&self) -> impl Iterator<Item = &Segment> {
        // Files between those that are applied and the tail may be gone.
        let mut next = self.following.as_ref().map(|it| it.applied().number.saturating_add(1));
        self.store.segments.all.iter().rev().take_while(move |segment| {
            let is_next = next.is_none_or(|next| segment.next_batch == next);
            next = Some(segment.as_of);
            is_next && segment.terms.is_some()
        })
    }
}

/// The batch before the first one of a segment.
fn before(segment: &Segment) -> BatchName {
    let term = segment.terms.map_or(0, |terms| terms.before);
    BatchName { number: segment.as_of.saturating_sub(1), term }
}
