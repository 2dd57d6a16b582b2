//! What a node knows of its cluster, for people.

use leveret_link::hello::{ClusterId, RaftId};
use leveret_link::letters::{GroupStatus, NodeStatus};
use leveret_replica::LeftOut;

/// What this node is to the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is in no cluster yet.
    Forming {
        /// Who is missing, some with why: `rabbit@b (lists other nodes: rabbit@a)`.
        missing: Vec<String>,
    },
    /// It is in none, and others are: it waits to be taken into that one.
    Joining(ClusterId),
    /// Nobody leads all groups, as far as it knows.
    Waits,
    /// This one does, and has said so.
    Follows(RaftId),
    /// It does: the logs are to be had ([`lend_logs`](crate::Cluster::lend_logs)).
    Leads,
}

impl Standing {
    /// A word for it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Forming { .. } => "forming",
            Self::Joining(_) => "joining",
            Self::Waits => "waits",
            Self::Follows(_) => "follows",
            Self::Leads => "leads",
        }
    }
}

/// Places of members that are told in one status, at most: it fits a letter of the urgent connection.
const MATCHED_TOLD: usize = 16_384;

/// Leaves out how far other members are, of the last groups, where all would be too long for a letter.
pub(crate) fn bound(groups: &mut [GroupStatus]) {
    let mut left = MATCHED_TOLD;
    for group in groups {
        match left.checked_sub(group.matched.len()) {
            Some(rest) => left = rest,
            None => group.matched.clear(),
        }
    }
}

/// All that a node knows of its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterStatus {
    /// None while it is formed.
    pub cluster: Option<ClusterId>,
    /// This node.
    pub own: String,
    /// What it is to the others.
    pub standing: Standing,
    /// The node that leads all groups.
    pub leader: Option<String>,
    /// All members by name, this node among them; while the cluster is formed those that are listed.
    pub nodes: Vec<NodeRow>,
    /// All groups by number; none while the cluster is formed.
    pub groups: Vec<GroupRow>,
    /// Records that were damaged on this node's disk since its process began, and were had from other nodes.
    pub repaired: u64,
    /// Why no node can lead, though a majority may be here; none if there is nothing to say.
    pub why: Option<String>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRow {
    /// `name@host`.
    pub name: String,
    /// Its data directory, as far as it is known.
    pub raft_id: Option<RaftId>,
    /// It has not all of all groups yet, or does not vote in all: no majority has it.
    pub joins: bool,
    /// There is a link to it, or it is this node.
    pub is_linked: bool,
    /// The same, and something came of it just now.
    pub is_running: bool,
    /// The link to it has TLS.
    pub encrypted: bool,
    /// Why it is not a part of the cluster, if that is known here.
    pub why_not: Option<String>,
    /// By how much its clock is ahead of this node's, in ms, if that is more than a link allows.
    pub clock_ahead_ms: Option<i64>,
    /// As it told last.
    pub status: Option<NodeStatus>,
}

/// A group, as this node's member knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRow {
    /// 0 is the names, `1 + i` is shard `i`.
    pub group: u64,
    /// The highest term it knows of.
    pub term: u64,
    /// Who leads in it.
    pub leader: Option<String>,
    /// The number of the last batch.
    pub last: u64,
    /// The last one that is on the disk.
    pub stored: u64,
    /// The last one that is agreed upon.
    pub agreed: u64,
    /// How far each other member has the log, if this one leads.
    pub matched: Vec<(String, u64)>,
    /// Members that this one is not in contact with, if it leads: where confirms wait for all that are, they do not wait for these.
    pub left_out: Vec<(String, LeftOut)>,
}

#[cfg(test)]
mod tests {
    use leveret_link::letters::NodeLetter;
    use leveret_link::payload::Writer;

    use super::*;

    /// What an urgent connection takes is a mebibyte: a longer letter would end the link.
    #[test]
    fn the_longest_status_fits_a_letter() {
        let matched: Vec<_> = (0..63).map(|id| (RaftId(id), u64::MAX)).collect();
        let (last, stored, agreed, term) = (u64::MAX, u64::MAX, u64::MAX, u64::MAX);
        let group = |group| GroupStatus {
            group,
            term,
            leader: Some(RaftId(1)),
            last,
            stored,
            agreed,
            matched: matched.clone(),
            refill_here: u64::MAX,
            refill_of: u64::MAX,
        };
        let mut groups: Vec<_> = (0..=1_024).map(group).collect();
        bound(&mut groups);
        assert_eq!(groups[0].matched.len(), 63);
        let listed = vec!["n".repeat(255); 64];
        let status = NodeStatus { groups, listed, ..NodeStatus::default() };
        let letter = NodeLetter::Status(Box::new(status)).write(&mut Writer::default());
        assert!(letter.payload.len() < 1 << 20, "{}", letter.payload.len());
    }
}
