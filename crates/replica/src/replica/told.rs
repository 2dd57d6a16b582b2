//! What others tell of a group, so that no member decides by less than anybody here knows.
//!
//! A data directory may be an older copy of itself: a restored snapshot of a disk, a copy made while the node ran. It has forgotten
//! batches that it acknowledged and votes that it gave, and nothing in it says so. Others know:
//!
//! 1. *What is agreed upon* is with every later leader. So nobody stands, or votes for a log, that is behind what anybody has told.
//! 2. *A term that is there when a process hears of others first* may be one in which this member voted before. It votes in none of
//!    these: its vote is its own.
//! 3. *A leader* may count what the process before had: its heartbeat says so, and is answered with where the log ends.
//! 4. Who knows that it is a copy hears all others before it votes at all, and votes for no log that is behind the best of theirs.
//!
//! And what is told to be agreed upon, and is here, is agreed upon here. Who votes no more may be the only one that knows so, and may have
//! more than those who ask it for its vote: it neither gives that nor stands.

use raft::StateRole;

use leveret_log::BatchName;

use super::Replica;
use super::engine::NewEntries;
use crate::check::TERM_MAX;
use crate::members::MemberId;
use crate::output::Output;

/// So far nobody is ahead: what is told is kept for good, and nothing takes it back if it was wrong.
const LEAP: u64 = 1 << 32;

/// What a member tells the others now and then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupFacts {
    /// The highest term that it knows of.
    pub term: u64,
    /// The last batch that it knows to be agreed upon, whether it has that or not.
    pub agreed: BatchName,
    /// The end of its log.
    pub last: BatchName,
}

impl Replica {
    /// What this one tells.
    pub fn tells(&self) -> GroupFacts {
        GroupFacts { term: self.term(), agreed: self.known(), last: self.last() }
    }

    /// The last batch that anybody has told to be agreed upon.
    pub fn known(&self) -> BatchName {
        self.known.max(self.agreed)
    }

    /// This was known to be agreed upon before this process began.
    pub fn remember(&mut self, agreed: BatchName) {
        self.known = self.known.max(agreed);
    }

    /// Its log and its word may be older than what it promised.
    pub fn distrust(&mut self) {
        self.is_unsure = true;
    }

    /// Whether it still has to hear others before it votes.
    pub fn is_unsure(&self) -> bool {
        self.is_unsure
    }

    /// Another member tells this.
    pub fn hear(&mut self, from: MemberId, told: GroupFacts) -> Output {
        let mut output = Output::default();
        let GroupFacts { term, agreed, last } = told;
        let terms = [term, agreed.term, last.term];
        let is_much = |number: u64, known: u64| number > known.saturating_add(LEAP);
        let is_wrong = terms.iter().any(|it| *it > TERM_MAX || is_much(*it, self.term()))
            || is_much(agreed.number, self.last().number.max(self.known.number));
        if from == self.id || is_wrong {
            return output;
        }
        self.known = self.known.max(agreed);
        self.agree(agreed);
        if !self.heard.contains(&from) {
            self.heard.push(from);
            if self.is_unsure {
                self.floor = self.floor.max(last);
            }
            self.give_up_vote(term);
        }
        let members = self.members();
        let mut others =
            members.voters.iter().chain(&members.outgoing).filter(|it| **it != self.id);
        self.is_unsure &= !others.all(|it| self.heard.contains(it));
        self.drain(NewEntries::Engine, &mut output);
        output
    }

    /// This is agreed upon, if it is here. The engine's own way to tell that are the answers of those who refuse their votes.
    fn agree(&mut self, agreed: BatchName) {
        let raft = &mut self.node.raft;
        if raft.state == StateRole::Leader
            || !raft.raft_log.maybe_commit(agreed.number, agreed.term)
        {
            return;
        }
        if raft.state != StateRole::Follower {
            // Others may be asked from now on.
            let term = raft.term;
            raft.become_follower(term, 0);
        }
    }

    /// In this term, and in those before, it votes for nobody any more.
    fn give_up_vote(&mut self, term: u64) {
        let raft = &mut self.node.raft;
        if term > raft.term {
            raft.become_follower(term, 0);
        }
        if term == raft.term && raft.vote == 0 {
            raft.vote = raft.id;
        }
    }

    /// Whether a log that ends so may lack what is agreed upon.
    pub(super) fn is_behind(&self, last: BatchName) -> bool {
        last < self.known || last < self.floor
    }
}
