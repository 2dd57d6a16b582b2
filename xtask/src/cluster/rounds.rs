//! The rounds: what is done to the nodes, one fault after another.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::chance::Chance;
use super::member::Member;
use super::net::Net;
use super::traffic::Traffic;

mod processes;
mod stored;

/// How long clients may take to work again once everything is in order.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a node that was hit may take to have what the others have.
const CAUGHT_UP: Duration = Duration::from_secs(90);
/// How long somebody may take to lead.
const ELECTION: Duration = Duration::from_secs(30);
/// How long a node stays away: others have to lead meanwhile.
const AWAY: Duration = Duration::from_secs(3);

/// What a round does to the nodes.
pub(super) struct Bed<'a> {
    /// The nodes.
    pub(super) members: &'a mut [Member],
    /// The network; none where it cannot be made.
    pub(super) net: Option<&'a mut Net>,
    /// The clients.
    pub(super) traffic: &'a mut Traffic,
    /// What chooses the node.
    pub(super) chance: &'a mut Chance,
}

/// How many nodes a round is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nodes {
    /// One that is no cluster.
    Alone,
    /// Three and more.
    Cluster,
    /// Five and more: the loss of two leaves most of them.
    Five,
}

/// What a round needs besides nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Links that can be cut.
    Cuts,
    /// Disks that can be filled.
    SmallDisks,
    /// Nodes that soon let go of what one that is away lacks.
    LittleKept,
    /// Our own files, or words of our tools.
    Ours,
}

impl Need {
    /// What is missing where it is not there.
    pub(super) fn missing(self) -> &'static str {
        match self {
            Self::Cuts => "no links can be cut",
            Self::SmallDisks => "disks have no size (--disk)",
            Self::LittleKept => "nodes keep what others lack for too long (--kept)",
            Self::Ours => "it is another broker",
        }
    }
}

/// When a round is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Played {
    /// In every run of the tests, too.
    Always,
    /// In runs of this command.
    Here,
}

/// What clients over nodes that a fault does not hit are to see, if these are most of the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Felt {
    /// Their connections may end if sessions are on the node that leads; nothing, but for a pause, if they are on their own.
    ByRelayed,
    /// Nothing, but for a pause.
    Nowhere,
}

/// A kind of round.
pub(super) struct Round {
    /// Its name on the command line and in the table.
    pub(super) name: &'static str,
    /// What it does.
    pub(super) what: &'static str,
    pub(super) nodes: Nodes,
    pub(super) needs: &'static [Need],
    pub(super) played: Played,
    pub(super) felt: Felt,
    /// The longest pause over such nodes that is promised, in ms.
    pub(super) promise_ms: Option<u32>,
    pub(super) run: fn(&mut Bed<'_>, name: &str) -> anyhow::Result<()>,
}

/// How long a pause is promised to be at most, in ms: the leader's links end; it is silent; a follower is lost; a node is stopped in good order.
const KILLED: Option<u32> = Some(100);
const SILENT: Option<u32> = Some(1500);
const FOLLOWER: Option<u32> = Some(10);
const PLANNED: Option<u32> = Some(50);

use Felt::{ByRelayed, Nowhere};
use Need::{Cuts, LittleKept, Ours, SmallDisks};
use Nodes::{Alone, Cluster, Five};
use Played::{Always, Here};

/// All rounds.
#[rustfmt::skip] // a table
pub(super) static ALL: [Round; 24] = [
    Round { name: "alone",              what: "a node that is alone is killed and started again",                           nodes: Alone,   needs: &[],           played: Always,  felt: Nowhere,   promise_ms: None,     run: processes::all_killed },
    Round { name: "leader-killed",      what: "the node that leads is killed and started again",                            nodes: Cluster, needs: &[],           played: Always,  felt: ByRelayed, promise_ms: KILLED,   run: processes::leader_killed },
    Round { name: "leader-stopped",     what: "the node that leads stands still for 10 seconds",                            nodes: Cluster, needs: &[],           played: Always,  felt: ByRelayed, promise_ms: SILENT,   run: processes::leader_stopped },
    Round { name: "leader-cut-off",     what: "the node that leads and the others do not hear each other",                  nodes: Cluster, needs: &[Cuts],       played: Always,  felt: ByRelayed, promise_ms: SILENT,   run: |bed, name| processes::leader_cut(bed, name, Net::cut_off) },
    Round { name: "leader-unheard",     what: "the others do not hear the node that leads",                                 nodes: Cluster, needs: &[Cuts],       played: Always,  felt: ByRelayed, promise_ms: SILENT,   run: |bed, name| processes::leader_cut(bed, name, Net::cut_speech) },
    Round { name: "leader-deaf",        what: "the node that leads does not hear the others",                               nodes: Cluster, needs: &[Cuts],       played: Always,  felt: ByRelayed, promise_ms: SILENT,   run: |bed, name| processes::leader_cut(bed, name, Net::cut_hearing) },
    Round { name: "leader-vanished",    what: "nobody hears the node that leads, nor its clients",                          nodes: Cluster, needs: &[Cuts],       played: Always,  felt: ByRelayed, promise_ms: SILENT,   run: |bed, name| processes::leader_cut(bed, name, processes::vanish) },
    Round { name: "leader-disk-full",   what: "the disk of the node that leads is full for a while",                        nodes: Cluster, needs: &[SmallDisks], played: Here,    felt: ByRelayed, promise_ms: None,     run: stored::leader_disk_full },
    Round { name: "leader-replaced",    what: "the node that leads is lost with its data, forgotten, and a new one comes",  nodes: Cluster, needs: &[Ours],       played: Always,  felt: ByRelayed, promise_ms: KILLED,   run: stored::leader_replaced },
    Round { name: "follower-killed",    what: "a node that does not lead is killed and started again",                      nodes: Cluster, needs: &[],           played: Always,  felt: Nowhere,   promise_ms: FOLLOWER, run: processes::follower_killed },
    Round { name: "follower-stopped",   what: "a node that does not lead stands still for 10 seconds",                      nodes: Cluster, needs: &[],           played: Here,    felt: Nowhere,   promise_ms: FOLLOWER, run: processes::follower_stopped },
    Round { name: "follower-cut-off",   what: "a node that does not lead is cut off from the others",                       nodes: Cluster, needs: &[Cuts],       played: Always,  felt: Nowhere,   promise_ms: FOLLOWER, run: processes::follower_cut },
    Round { name: "follower-away",      what: "a node is away until the others keep no more what it lacks",                 nodes: Cluster, needs: &[LittleKept], played: Here,    felt: Nowhere,   promise_ms: FOLLOWER, run: stored::follower_away },
    Round { name: "follower-lost-files", what: "a node that does not lead loses the log of the names, or those of shards",  nodes: Cluster, needs: &[Ours],       played: Always,  felt: Nowhere,   promise_ms: FOLLOWER, run: stored::follower_lost_files },
    Round { name: "follower-disk-full", what: "the disk of a node that does not lead is full for a while",                  nodes: Cluster, needs: &[SmallDisks], played: Here,    felt: Nowhere,   promise_ms: FOLLOWER, run: stored::follower_disk_full },
    Round { name: "follower-wiped",     what: "a node with an empty disk under an old name is refused",                     nodes: Cluster, needs: &[Ours],       played: Always,  felt: Nowhere,   promise_ms: FOLLOWER, run: stored::follower_wiped },
    Round { name: "follower-replaced",  what: "a node that does not lead loses its data, is forgotten, and a new one comes", nodes: Cluster, needs: &[Ours],      played: Always,  felt: Nowhere,   promise_ms: FOLLOWER, run: stored::follower_replaced },
    Round { name: "two-killed",         what: "two nodes, one leads, are killed and started again",                         nodes: Cluster, needs: &[],           played: Always,  felt: ByRelayed, promise_ms: KILLED,   run: processes::two_killed },
    Round { name: "two-stopped",        what: "two nodes, one leads, stand still for 10 seconds",                           nodes: Five,    needs: &[],           played: Here,    felt: ByRelayed, promise_ms: SILENT,   run: processes::two_stopped },
    Round { name: "two-cut-off",        what: "two nodes, one leads, and the others do not hear each other",                nodes: Five,    needs: &[Cuts],       played: Here,    felt: ByRelayed, promise_ms: SILENT,   run: processes::two_cut_off },
    Round { name: "two-followers-killed", what: "two nodes that do not lead are killed and started again",                  nodes: Five,    needs: &[],           played: Here,    felt: Nowhere,   promise_ms: FOLLOWER, run: processes::two_followers_killed },
    Round { name: "all-killed",         what: "all nodes are killed at once and started again",                             nodes: Cluster, needs: &[],           played: Always,  felt: Nowhere,   promise_ms: None,     run: processes::all_killed },
    Round { name: "all-stopped",        what: "all nodes are stopped at once and started in reverse order",                 nodes: Cluster, needs: &[Ours],       played: Always,  felt: Nowhere,   promise_ms: None,     run: processes::all_stopped },
    Round { name: "rolling-restart",    what: "each node is stopped and started again, one by one",                         nodes: Cluster, needs: &[],           played: Always,  felt: ByRelayed, promise_ms: PLANNED,  run: processes::rolling_restart },
];

impl Round {
    /// The longest pause that is no finding, in ms: five times what is promised, and what a debug build on a busy machine needs in any case.
    pub(super) fn bound_ms(&self) -> Option<u32> {
        self.promise_ms.map(|it| (5 * it).max(1500))
    }
}

/// Whether most nodes are left without so many.
pub(super) fn goes_on_without(nodes: usize, lost: usize) -> bool {
    nodes.saturating_sub(lost) * 2 > nodes
}

/// The round of this name.
pub(super) fn find(name: &str) -> Option<&'static Round> {
    ALL.iter().find(|it| it.name == name)
}

impl Bed<'_> {
    fn leader(&self) -> anyhow::Result<usize> {
        leader(self.members)
    }

    /// A node that does not lead.
    fn follower(&mut self) -> anyhow::Result<usize> {
        let leader = self.leader()?;
        let behind = 1 + self.chance.below(self.members.len() as u64 - 1) as usize;
        Ok((leader + behind) % self.members.len())
    }

    /// Another node than these.
    fn other_than(&mut self, taken: &[usize]) -> usize {
        let left: Vec<_> = (0..self.members.len()).filter(|it| !taken.contains(it)).collect();
        left[self.chance.below(left.len() as u64) as usize]
    }

    fn net(&mut self) -> anyhow::Result<&mut Net> {
        self.net.as_deref_mut().context("links cannot be cut here")
    }

    /// A fault begins: none is under way any more, as two at once may be too many.
    fn fault(&mut self, name: &str, nodes: &[usize]) -> anyhow::Result<()> {
        if self.members.len() > 1 && self.members[0].says_who_lacks() {
            let leader = self.leader()?;
            let others = (0..self.members.len()).filter(|&number| number != leader);
            let up: Vec<_> = others.filter(|&number| self.members[number].is_up()).collect();
            up.into_iter().try_for_each(|number| self.await_complete(number, CAUGHT_UP))?;
        }
        self.traffic.fault(name, nodes)
    }

    /// Waits until all clients work.
    fn settle(&mut self) -> anyhow::Result<()> {
        self.settle_without(&[])
    }

    /// Waits until all clients work that are not over these nodes.
    fn settle_without(&mut self, away: &[usize]) -> anyhow::Result<()> {
        self.traffic.settle(PATIENCE, away)
    }

    /// Waits until all clients work that are not over these nodes, if the others are most of them.
    fn settle_if_most(&mut self, away: &[usize]) -> anyhow::Result<()> {
        if goes_on_without(self.members.len(), away.len()) {
            self.settle_without(away)?;
        }
        Ok(())
    }

    fn start(&mut self, number: usize) -> anyhow::Result<()> {
        self.members[number].start()?;
        self.members[number].await_ready()
    }

    /// Waits until the node is a member, and has all that was agreed upon when this was called.
    fn await_complete(&self, number: usize, patience: Duration) -> anyhow::Result<()> {
        let (name, deadline) = (self.members[number].name(), Instant::now() + patience);
        let leader = leader(self.members)?;
        let mut wanted = None;
        loop {
            let status = self.members[leader].status().unwrap_or_default();
            let list = |key: &str| status[key].as_array().cloned().unwrap_or_default();
            // Who joins has no vote yet.
            let is_member = list("disk_nodes").iter().any(|it| *it == *name);
            let groups = list("groups");
            let agreed = |it: &serde_json::Value| it["agreed"].as_u64().unwrap_or_default();
            if !groups.is_empty() && wanted.is_none() {
                wanted = Some(groups.iter().map(agreed).collect::<Vec<_>>());
            }
            let has = |group: &serde_json::Value| {
                let matched = group["matched"].as_array().into_iter().flatten();
                matched.filter(|it| it[0] == *name).find_map(|it| it[1].as_u64())
            };
            let lacking: Vec<_> = groups
                .iter()
                .zip(wanted.iter().flatten())
                .filter(|(group, wanted)| has(group).is_none_or(|it| it < **wanted))
                .map(|(group, _)| group.to_string())
                .collect();
            if is_member && !groups.is_empty() && lacking.is_empty() {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "node {number} (a member: {is_member}) still lacks batches after {patience:?}: {}",
                lacking.join(", ")
            );
            sleep(Duration::from_millis(200));
        }
    }
}

/// Waits until one node leads and all that run know: its number.
pub(super) fn leader(members: &[Member]) -> anyhow::Result<usize> {
    let deadline = Instant::now() + ELECTION;
    loop {
        let said: Vec<_> =
            members.iter().filter(|it| it.is_up()).map(|it| it.leader(members.len())).collect();
        if let Some(Some(first)) = said.first()
            && said.iter().all(|it| *it == Some(*first))
        {
            return Ok(*first);
        }
        ensure!(
            Instant::now() < deadline,
            "the nodes agree on no leader for {ELECTION:?}; they say {said:?}"
        );
        sleep(Duration::from_millis(100));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (at, round) in ALL.iter().enumerate() {
            assert!(!round.name.contains(' ') && !round.what.is_empty());
            assert!(ALL[..at].iter().all(|it| it.name != round.name), "{}", round.name);
        }
        assert_eq!(find("alone").map(|it| it.nodes), Some(Alone));
        assert!(find("nothing").is_none());
    }
}
