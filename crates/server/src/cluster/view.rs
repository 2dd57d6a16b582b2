//! What a node knows of its cluster, as it tells those who ask: made by the cluster's thread when something changes and once a
//! second, and read by anybody without asking that thread.

mod status;

use std::sync::Arc;

use serde::Serialize;
use tokio::sync::watch;

use super::links::PeerState;

pub use crate::lease::Lapses;

/// Where the view is found. Its value is the last one.
pub type Views = watch::Receiver<Arc<ClusterView>>;

/// The cluster as one node sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ClusterView {
    /// The cluster's number; none before it is founded.
    pub cluster_id: Option<String>,
    /// The node whose view it is.
    pub node: String,
    /// What this node does now.
    pub standing: Standing,
    /// The node that leads all groups, if one is known to.
    pub leader: Option<String>,
    /// Its Raft id.
    #[serde(skip)]
    pub leader_id: Option<u64>,
    /// That of the last other node that this one has known to lead.
    #[serde(skip)]
    pub led_last: Option<u64>,
    /// In which term of the first group.
    #[serde(skip)]
    pub led_last_in: Option<u64>,
    /// All members, or all that are configured before there is a cluster; by name. This node is one of them.
    pub nodes: Vec<NodeView>,
    /// The groups.
    pub groups: Vec<GroupView>,
    /// Records that were damaged on this node's disk since its process began, and were had from other nodes.
    pub repaired: u64,
    /// How often and how long this node had no lease though it led on.
    pub lapses: Lapses,
    /// Why none of the nodes that are here can lead, though they may be enough.
    pub why: Option<String>,
}

/// What a node does in its cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// There is no cluster yet: not all nodes are there.
    #[default]
    Forming,
    /// It is in no cluster, and waits to be taken into that of the others.
    Joining,
    /// No node is known to lead.
    Waits,
    /// Another node leads.
    Follows,
    /// This node leads, and runs the broker.
    Leads,
}

/// A node, as another one or itself sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeView {
    /// `name@host`.
    pub name: String,
    /// Its Raft id, if it is known.
    #[serde(skip)]
    pub raft_id: Option<u64>,
    /// Linked with this one, or this one.
    #[serde(skip)]
    pub linked: bool,
    /// The same, and it said something just now: one that stands still does not run, though its link lasts for a while.
    pub running: bool,
    /// The link with it has TLS.
    pub encrypted: bool,
    /// It leads all groups.
    pub leads: bool,
    /// It is about to become a member: it has not all of all groups yet.
    pub joins: bool,
    /// Why it is not linked, in words.
    pub why_not: Option<String>,
    /// By how much its clock is ahead of this node's, in s, if that is more than nodes may differ.
    pub clock_ahead_s: Option<i64>,
    /// What it told last; none of one that was never heard of.
    pub told: Option<NodeTold>,
}

/// What a node tells of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeTold {
    /// Of the program.
    pub version: String,
    /// Since its process began, in ms, when it told this.
    pub uptime_ms: u64,
    /// Of its process.
    pub os_pid: u64,
    /// Bytes in the machine's memory.
    pub mem_used: u64,
    /// The memory watermark, in bytes.
    pub mem_limit: u64,
    /// It takes more, by what its process has in memory. A node that leads blocks publishers by its own account of what it holds.
    pub mem_alarm: bool,
    /// Free bytes of the disk.
    pub disk_free: u64,
    /// Their low watermark.
    pub disk_free_limit: u64,
    /// That node stores nothing for now, or has less than its limit. It blocks nobody by itself.
    pub disk_free_alarm: bool,
    /// It does so as a write has been under way for seconds, whatever is free.
    pub disk_hangs: bool,
    /// Open file descriptors.
    pub fd_used: u64,
    /// Their limit.
    pub fd_total: u64,
    /// Connections and listeners.
    pub sockets_used: u64,
    /// Threads that run turns.
    pub processors: u64,
    /// RabbitMQ's plugins whose work is done there; none of a version that does not tell.
    pub plugins: Option<Vec<&'static str>>,
    /// Clients whose bytes it relays.
    pub relayed: u64,
    /// Bytes that it has of files which it gets in place of logs, as it lacks more than the others keep.
    pub refill_here: u64,
    /// Of so many; 0 if it gets none.
    pub refill_of: u64,
    /// Its members of the groups.
    #[serde(skip)]
    pub members: Vec<MemberTold>,
}

/// What a node tells of its member of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberTold {
    /// The group.
    pub group: u64,
    /// The term.
    pub term: u64,
    /// The last batch of the log.
    pub last: u64,
    /// The last one that is on its disk.
    pub stored: u64,
    /// The last one that it knows to be agreed upon.
    pub agreed: u64,
}

/// A group, as this node's member of it knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GroupView {
    /// 0 is the names' group, 1 + i that of shard i.
    pub group: u64,
    /// The term.
    pub term: u64,
    /// Who leads it.
    pub leader: Option<String>,
    /// The last batch of the log.
    pub last: u64,
    /// The last one that is agreed upon.
    pub agreed: u64,
    /// How far the other members' logs are, for all this one knows: a leader does.
    pub matched: Vec<(String, u64)>,
    /// Members that this one is not in contact with, if it leads: confirms of queues with `replication-confirm: all` do not wait for them.
    pub left_out: Vec<LeftOutView>,
}

/// A member of a group whose leader is not in contact with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeftOutView {
    /// `name@host`.
    pub node: String,
    /// Why, in words.
    pub reason: &'static str,
}

impl GroupView {
    /// Batches that each other member lacks, as far as that is known.
    pub fn lags(&self) -> impl Iterator<Item = (&str, u64)> {
        self.matched.iter().map(|(name, matched)| (&**name, self.last.saturating_sub(*matched)))
    }
}

impl ClusterView {
    /// Has the nodes that are not linked say what their links say, if nothing else is known.
    pub(super) fn explain(&mut self, peers: Vec<PeerState>) {
        for peer in peers {
            let node = self.nodes.iter_mut().find(|it| it.name == peer.name && !it.running);
            if let Some(node) = node
                && node.why_not.is_none()
            {
                node.why_not = peer.why_not;
            }
        }
    }

    /// Members that decide, whether they run or not.
    pub fn deciding(&self) -> impl Iterator<Item = &NodeView> {
        self.nodes.iter().filter(|it| !it.joins)
    }

    /// Members that are running, this one among them, without those that join.
    pub fn running(&self) -> usize {
        self.deciding().filter(|it| it.running).count()
    }

    /// Fewer running nodes than this decide nothing.
    pub fn majority(&self) -> usize {
        self.deciding().count() / 2 + 1
    }

    /// Whether nothing would be decided any more without the node that has this view.
    pub fn is_critical(&self) -> bool {
        self.running() <= self.majority()
    }

    /// The node of a name.
    pub fn named(&self, name: &str) -> Option<&NodeView> {
        self.nodes.iter().find(|it| it.name == name)
    }

    /// Whether a node is there whose disk hangs.
    pub fn hangs(&self, name: &str) -> bool {
        let node = self.named(name).filter(|it| it.running);
        node.and_then(|it| it.told.as_ref()).is_some_and(|told| told.disk_hangs)
    }

    /// Why clients cannot be served now, in words; none if a node leads.
    pub fn why_not_served(&self) -> Option<String> {
        if self.leader.is_some() {
            return None;
        }
        let what = match self.standing {
            Standing::Forming => "the cluster is not founded yet",
            Standing::Joining => {
                let cluster = self.cluster_id.as_deref().unwrap_or_default();
                return Some(format!(
                    "this node waits to be taken into cluster {cluster}: the node that leads that one does so if it lists this one's \
                     name, and this one lists all members"
                ));
            }
            _ => "no node leads the cluster now",
        };
        let (here, all) = (self.running(), self.deciding().count());
        let are = if here == 1 { "is" } else { "are" };
        let are_needed = match self.standing {
            Standing::Waits if here < self.majority() => {
                format!(", {} are needed", self.majority())
            }
            _ => String::new(),
        };
        let missing: Vec<&str> =
            self.deciding().filter(|it| !it.running).map(|it| &*it.name).collect();
        let missing = match missing.is_empty() {
            true => String::new(),
            false => format!(", missing {}", missing.join(", ")),
        };
        let why = self.why.as_ref().map_or_else(String::new, |why| format!("; {why}"));
        Some(format!("{what}: {here} of {all} nodes {are} here{are_needed}{missing}{why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(standing: Standing, running: [bool; 3]) -> ClusterView {
        let names = ["rabbit@a", "rabbit@b", "rabbit@c"].into_iter().zip(running);
        let nodes = names.map(|(name, running)| NodeView {
            name: name.to_owned(),
            running,
            ..NodeView::default()
        });
        ClusterView { standing, nodes: nodes.collect(), ..ClusterView::default() }
    }

    /// A node that the others refuse shows what they say.
    #[test]
    fn links_say_why_a_node_is_not_there() {
        let mut view = view(Standing::Waits, [true, false, false]);
        view.nodes[2].why_not = Some("lists other nodes".to_owned());
        let peer = |name: &str, why: &str| PeerState {
            name: name.to_owned(),
            why_not: Some(why.to_owned()),
            ..PeerState::default()
        };
        let peers = vec![
            peer("rabbit@a", "of this one nobody asks"),
            peer("rabbit@b", "the other side says: was forgotten"),
            peer("rabbit@c", "nobody answers"),
        ];
        view.explain(peers);
        let whys: Vec<_> = view.nodes.iter().map(|it| it.why_not.as_deref()).collect();
        let want = [None, Some("the other side says: was forgotten"), Some("lists other nodes")];
        assert_eq!(whys, want);
    }

    #[test]
    fn who_is_missing_is_told() {
        let why = view(Standing::Waits, [true, false, false]).why_not_served();
        let want = "no node leads the cluster now: 1 of 3 nodes is here, 2 are needed, missing rabbit@b, rabbit@c";
        assert_eq!(why.as_deref(), Some(want));
        let why = view(Standing::Waits, [true, true, true]).why_not_served();
        assert_eq!(why.as_deref(), Some("no node leads the cluster now: 3 of 3 nodes are here"));
        let why = view(Standing::Forming, [true, true, false]).why_not_served();
        let want = "the cluster is not founded yet: 2 of 3 nodes are here, missing rabbit@c";
        assert_eq!(why.as_deref(), Some(want));
        let behind = ClusterView {
            why: Some("batch 7 is with rabbit@a".to_owned()),
            ..view(Standing::Waits, [true, true, true])
        };
        let want = "no node leads the cluster now: 3 of 3 nodes are here; batch 7 is with rabbit@a";
        assert_eq!(behind.why_not_served().as_deref(), Some(want));
        let led = ClusterView {
            leader: Some("rabbit@b".to_owned()),
            ..view(Standing::Follows, [true, true, false])
        };
        assert_eq!(led.why_not_served(), None);
    }

    /// A node that is about to become a member is in no majority.
    #[test]
    fn who_joins_does_not_count() {
        let mut view = view(Standing::Waits, [true, false, true]);
        view.nodes[2].joins = true;
        assert_eq!((view.running(), view.majority()), (1, 2));
        let want =
            "no node leads the cluster now: 1 of 2 nodes is here, 2 are needed, missing rabbit@b";
        assert_eq!(view.why_not_served().as_deref(), Some(want));
        view.standing = Standing::Joining;
        view.cluster_id = Some("c0ffee".to_owned());
        let why = view.why_not_served().unwrap();
        assert!(why.starts_with("this node waits to be taken into cluster c0ffee"), "{why}");
    }

    #[test]
    fn a_majority_that_needs_all_who_are_left_is_critical() {
        let critical = |running| view(Standing::Leads, running).is_critical();
        assert!(!critical([true, true, true]));
        assert!(critical([true, true, false]));
        assert!(critical([true, false, false]));
    }

    #[test]
    fn lags() {
        let matched = vec![("rabbit@b".to_owned(), 7), ("rabbit@c".to_owned(), 9)];
        let group = GroupView { last: 9, matched, ..GroupView::default() };
        assert_eq!(group.lags().collect::<Vec<_>>(), [("rabbit@b", 2), ("rabbit@c", 0)]);
    }
}
