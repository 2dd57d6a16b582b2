//! What a message must be before the engine sees it, which panics on what cannot be.

use leveret_log::BatchName;

use crate::batches::Batch;
use crate::entries::Entries;
use crate::members::MemberId;
use crate::message::{Body, Message};

/// Terms above this are from nobody: no group has had so many elections.
pub(crate) const TERM_MAX: u64 = u64::MAX / 2;

/// What a member cannot have said. It, or the link, is broken; or somebody's disk has lost what was synced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// A message of nobody, or of this member itself.
    #[error("a message from member {0}")]
    Sender(MemberId),
    /// A message of no term.
    #[error("a message of term {0}")]
    Term(u64),
    /// Batches that do not follow each other.
    #[error("{found} behind {before}")]
    Order {
        /// What is before.
        before: BatchName,
        /// What came.
        found: BatchName,
    },
    /// Others have agreed upon another batch of this number.
    #[error("{found}, where {agreed} is agreed upon")]
    Agreed {
        /// What came.
        found: BatchName,
        /// What is here.
        agreed: BatchName,
    },
    /// A second leader of one term.
    #[error("member {second} leads term {term}, as {first} does")]
    TwoLeaders {
        /// The term.
        term: u64,
        /// Who led before.
        first: MemberId,
        /// Who says so now.
        second: MemberId,
    },
    /// Something of a batch that is not in the log.
    #[error("member {from} speaks of batch {number}, and the last is {last}")]
    Above {
        /// Who does.
        from: MemberId,
        /// The batch.
        number: u64,
        /// The end of the log.
        last: u64,
    },
}

/// What the receiver is.
pub(crate) struct Receiver<'a> {
    pub(crate) id: MemberId,
    pub(crate) term: u64,
    /// Of this term, as far as it is known.
    pub(crate) leader: Option<MemberId>,
    pub(crate) agreed: u64,
    pub(crate) log: &'a Entries,
}

impl Receiver<'_> {
    /// Whether this can have been said.
    pub(crate) fn check(&self, from: MemberId, message: &Message) -> Result<(), Breach> {
        let term = message.term;
        if from.0 == 0 || from == self.id {
            return Err(Breach::Sender(from));
        }
        if term == 0 || term > TERM_MAX {
            return Err(Breach::Term(term));
        }
        let last = self.log.last().number;
        let is_present = term == self.term;
        let leads = self.leader == Some(self.id) && is_present;
        let bound = |number: u64, last: u64| {
            if number > last { Err(Breach::Above { from, number, last }) } else { Ok(()) }
        };
        match &message.body {
            Body::Append { before, batches, .. } => {
                self.check_leader(from, term)?;
                follows(*before, batches, term)?;
                if term >= self.term {
                    self.check_agreed(batches)?;
                }
            }
            // One of the past is answered, and does nothing. One that speaks of more than is here tells that something was lost.
            Body::Heartbeat { .. } => self.check_leader(from, term)?,
            Body::Behind { point } => {
                self.check_leader(from, term)?;
                if point.at.term > term || point.at.number == 0 {
                    return Err(Breach::Term(point.at.term));
                }
            }
            Body::Appended { number } if leads => bound(*number, last)?,
            Body::Refused { number, hint } => bound(hint.number, *number)?,
            Body::PreVote { last } | Body::Vote { last, .. } if last.term >= term => {
                return Err(Breach::Term(last.term));
            }
            _ => {}
        }
        Ok(())
    }

    fn check_leader(&self, from: MemberId, term: u64) -> Result<(), Breach> {
        match self.leader {
            Some(first) if term == self.term && first != from => {
                Err(Breach::TwoLeaders { term, first, second: from })
            }
            _ => Ok(()),
        }
    }

    fn check_agreed(&self, batches: &[Batch]) -> Result<(), Breach> {
        for Batch { name, .. } in batches.iter().take_while(|it| it.name.number <= self.agreed) {
            if let Some(term) = self.log.term_of(name.number).filter(|term| *term != name.term) {
                let agreed = BatchName { term, ..*name };
                return Err(Breach::Agreed { found: *name, agreed });
            }
        }
        Ok(())
    }
}

/// Whether these batches can be one behind the other in the log of a leader of this term.
fn follows(before: BatchName, batches: &[Batch], term: u64) -> Result<(), Breach> {
    // A group's log begins behind a point that says who was a member: without that nobody can make sense of a change.
    if before.term > term || before.number == 0 || before.term == 0 {
        return Err(Breach::Term(before.term));
    }
    let mut before = before;
    for Batch { name, .. } in batches {
        let is_next = before.number.checked_add(1) == Some(name.number);
        if !is_next || !(before.term..=term).contains(&name.term) {
            return Err(Breach::Order { before, found: *name });
        }
        before = *name;
    }
    Ok(())
}
