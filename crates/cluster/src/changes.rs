//! How members change after the cluster was founded.
//!
//! *Who is a member of group 0 is a member of the cluster.* A node that is forgotten leaves that group first, and a new one is added
//! there first, with its name. That is what is agreed upon, and all that there is of the wish: whoever leads another group makes its
//! members those of group 0, one step after the other. So a change of leaders in the middle is of no matter, and nothing has to be
//! begun anew.
//!
//! ```text
//!   forgotten   group 0: removed ---------------------------------------------> the others: removed
//!   new         group 0: learns -> the others: learns -> has all of all groups
//!                                        -> group 0: votes --------------------> the others: votes
//! ```
//!
//! - One change at a time in each group, each of one step: any majority of before and any of after have a member in common.
//! - Nobody votes before it has what there is: a learner that is far behind would stand in the way of every agreement.
//! - A removed data directory never comes back: nobody knows what it promised. Its node comes back with an empty one, under another
//!   Raft id.
//! - Who leads another group may not have all of group 0 yet, and undo what the one before began: it is done again later. A vote is
//!   given only to who has all.

use leveret_replica::{MemberId, Members, Step};

/// All members, voters and others, each once.
pub(crate) fn ids(members: &Members) -> impl Iterator<Item = MemberId> {
    let Members { voters, learners, outgoing, .. } = members;
    let left = outgoing.iter().filter(|id| !voters.contains(id) && !learners.contains(id));
    voters.iter().chain(learners).chain(left).copied()
}

/// The next step to group 0's members, the first ones here, of a group that has others. `has_all` says who lacks nothing of it.
pub(crate) fn next_step(
    first: &Members,
    own: &Members,
    has_all: impl Fn(MemberId) -> bool,
) -> Option<Step> {
    // Something is under way.
    if !first.outgoing.is_empty() || !own.outgoing.is_empty() {
        return None;
    }
    let gone = ids(own).find(|id| !first.has(*id)).map(Step::Remove);
    let new = || ids(first).find(|id| !own.has(*id)).map(Step::Learner);
    let ready = |id: &&MemberId| own.learners.contains(id) && has_all(**id);
    let voter = || first.voters.iter().find(ready).copied().map(Step::Voter);
    gone.or_else(new).or_else(voter)
}

/// Why a node is not forgotten.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForgetError {
    /// Another node is to be asked, or none can do it.
    #[error("this node does not lead the cluster: members are changed by the one that does")]
    LeadsNot,
    /// RabbitMQ's words.
    #[error("The node selected is not in the cluster.")]
    NoMember,
    /// It might go on as a member, as long as it has not heard of it.
    #[error(
        "node {0} is running: it has to be stopped before it can be removed ('leveret ctl stop' on its machine; 'stop_app' does not stop it)"
    )]
    Runs(String),
    /// The rest could agree upon nothing.
    #[error("{here} of the {of} members that are left are here: they would have no majority")]
    NoMajority {
        /// How many of them run.
        here: usize,
        /// How many there are.
        of: usize,
    },
    /// A node alone is no cluster.
    #[error("a cluster has two nodes at least")]
    TooFew,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `1 2 | 3` has the voters 1 and 2 and the learner 3.
    fn members(text: &str) -> Members {
        let (voters, learners) = text.split_once('|').unwrap_or((text, ""));
        let ids =
            |text: &str| text.split_whitespace().map(|it| MemberId(it.parse().unwrap())).collect();
        Members { voters: ids(voters), learners: ids(learners), ..Members::default() }
    }

    #[test]
    #[rustfmt::skip] // a table
    fn others_follow_group_0() {
        use Step::{Learner, Remove, Voter};
        let check = |first: &str, own: &str, has_all: bool, want: Option<Step>| {
            assert_eq!(next_step(&members(first), &members(own), |_| has_all), want, "{own} to {first}");
        };
        check("1 2 3",     "1 2 3",     true,  None);
        check("1 2",       "1 2 3",     true,  Some(Remove(MemberId(3))));
        check("1 2 | 4",   "1 2 3",     true,  Some(Remove(MemberId(3)))); // before anybody comes
        check("1 2 | 4",   "1 2",       false, Some(Learner(MemberId(4))));
        check("1 2 | 4",   "1 2 | 4",   true,  None);                      // group 0 is first
        check("1 2 4",     "1 2 | 4",   false, None);
        check("1 2 4",     "1 2 | 4",   true,  Some(Voter(MemberId(4))));
        check("1 2 4",     "1 2",       true,  Some(Learner(MemberId(4)))); // never at once
        check("1 2",       "1 2 | 4",   true,  Some(Remove(MemberId(4))));
    }
}
