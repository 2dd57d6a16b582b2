//! Who is in a group.

use std::fmt;

/// A member: the Raft id of a data directory, drawn at random when it joined. Never 0, and never used for another directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u64);

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The members of a group, as of one batch.
///
/// While members are exchanged there are two sets of voters, and a majority of each has to agree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// Who votes, and whose copies count.
    pub voters: Vec<MemberId>,
    /// Who gets the log and does neither.
    pub learners: Vec<MemberId>,
    /// The voters of before, until the exchange is over.
    pub outgoing: Vec<MemberId>,
    /// Of those the ones that are learners afterwards.
    pub learners_next: Vec<MemberId>,
}

impl Members {
    /// A group in which all vote.
    pub fn of(voters: &[MemberId]) -> Self {
        Self { voters: voters.to_vec(), ..Self::default() }
    }

    /// Whether this one gets the log.
    pub fn has(&self, id: MemberId) -> bool {
        [&self.voters, &self.learners, &self.outgoing].iter().any(|of| of.contains(&id))
    }

    /// Whether this one votes, now or until an exchange is over.
    pub fn has_voter(&self, id: MemberId) -> bool {
        self.voters.contains(&id) || self.outgoing.contains(&id)
    }
}

/// A change of members. Of one step it takes place at once; of several it is an exchange: first both sets of voters count,
/// then, by a second change of no steps that the leader makes by itself, the new one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// What becomes of whom.
    pub steps: Vec<Step>,
    /// What new members are called by whoever made this; nothing here goes by it. They are in the bytes of the batch alone, and
    /// messages do not say them. Of 255 bytes each at most.
    pub names: Vec<(MemberId, String)>,
}

impl Change {
    /// One without names.
    pub fn of(steps: Vec<Step>) -> Self {
        Self { steps, names: Vec::new() }
    }
}

/// What becomes of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It votes from now on.
    Voter(MemberId),
    /// It gets the log, and does not vote.
    Learner(MemberId),
    /// It is a member no more.
    Remove(MemberId),
}

impl Step {
    /// Of whom it speaks.
    pub fn of(self) -> MemberId {
        let (Self::Voter(id) | Self::Learner(id) | Self::Remove(id)) = self;
        id
    }
}
