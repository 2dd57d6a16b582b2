//! The rounds: what is done to the nodes, one fault after another.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rustix::process::Signal;
use serde_json::Value;

use super::chance::Chance;
use super::member::{Member, node_name};
use super::net::{Endpoint, Net};
use super::traffic::Traffic;

/// How long clients may take to work again once everything is in order.
const PATIENCE: Duration = Duration::from_secs(60);
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
}

/// A kind of round.
pub(super) struct Round {
    /// Its name on the command line and in the table.
    pub(super) name: &'static str,
    /// What it does.
    pub(super) what: &'static str,
    pub(super) nodes: Nodes,
    /// Whether it cuts links.
    pub(super) cuts: bool,
    pub(super) run: fn(&mut Bed<'_>, name: &str) -> anyhow::Result<()>,
}

/// All rounds.
#[rustfmt::skip] // a table
pub(super) const ALL: [Round; 13] = [
    Round { name: "alone",            what: "a node that is alone is killed and started again",          nodes: Nodes::Alone,   cuts: false, run: all_killed },
    Round { name: "leader-killed",    what: "the node that leads is killed and started again",           nodes: Nodes::Cluster, cuts: false, run: leader_killed },
    Round { name: "leader-stopped",   what: "the node that leads stands still for 10 seconds",           nodes: Nodes::Cluster, cuts: false, run: leader_stopped },
    Round { name: "leader-cut-off",   what: "the node that leads and the others do not hear each other", nodes: Nodes::Cluster, cuts: true,  run: |bed, name| leader_cut(bed, name, Net::cut_off) },
    Round { name: "leader-unheard",   what: "the others do not hear the node that leads",                nodes: Nodes::Cluster, cuts: true,  run: |bed, name| leader_cut(bed, name, Net::cut_speech) },
    Round { name: "leader-deaf",      what: "the node that leads does not hear the others",              nodes: Nodes::Cluster, cuts: true,  run: |bed, name| leader_cut(bed, name, Net::cut_hearing) },
    Round { name: "leader-vanished",  what: "nobody hears the node that leads, nor its clients",         nodes: Nodes::Cluster, cuts: true,  run: |bed, name| leader_cut(bed, name, vanish) },
    Round { name: "follower-killed",  what: "a node that does not lead is killed and started again",     nodes: Nodes::Cluster, cuts: false, run: follower_killed },
    Round { name: "follower-cut-off", what: "a node that does not lead is cut off from the others",      nodes: Nodes::Cluster, cuts: true,  run: follower_cut },
    Round { name: "two-killed",       what: "two nodes are killed and started again",                    nodes: Nodes::Cluster, cuts: false, run: two_killed },
    Round { name: "all-killed",       what: "all nodes are killed at once and started again",            nodes: Nodes::Cluster, cuts: false, run: all_killed },
    Round { name: "rolling-restart",  what: "each node is stopped and started again, one by one",        nodes: Nodes::Cluster, cuts: false, run: rolling_restart },
    Round { name: "follower-wiped",   what: "a node with an empty disk under an old name is refused",    nodes: Nodes::Cluster, cuts: false, run: follower_wiped },
];

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

    fn net(&mut self) -> anyhow::Result<&mut Net> {
        self.net.as_deref_mut().context("links cannot be cut here")
    }

    fn settle(&mut self) -> anyhow::Result<()> {
        self.traffic.settle(PATIENCE).map(|_| ())
    }

    fn start(&mut self, number: usize) -> anyhow::Result<()> {
        self.members[number].start()?;
        self.members[number].await_ready()
    }
}

/// Waits until one node leads and all that run know: its number.
pub(super) fn leader(members: &[Member]) -> anyhow::Result<usize> {
    let deadline = Instant::now() + ELECTION;
    loop {
        let say = |it: &Member| leader_in(&it.status()?, members.len());
        let said: Vec<_> = members.iter().filter(|it| it.is_up()).map(say).collect();
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

/// Who leads, as a node's `cluster_status` says.
fn leader_in(status: &Value, nodes: usize) -> Option<usize> {
    let leader = status["leader"].as_str()?;
    (0..nodes).find(|it| node_name(*it) == leader)
}

fn leader_killed(bed: &mut Bed<'_>, name: &str) -> anyhow::Result<()> {
    let leader = bed.leader()?;
    bed.traffic.fault(name, Some(leader))?;
    kill_and_start(bed, leader)
}

fn follower_killed(bed: &mut Bed<'_>, name: &str) -> anyhow::Result<()> {
    let follower = bed.follower()?;
    bed.traffic.fault(name, Some(follower))?;
    kill_and_start(bed, follower)
}

fn kill_and_start(bed: &mut Bed<'_>, number: usize) -> anyhow::Result<()> {
    bed.members[number].kill()?;
    sleep(AWAY);
    bed.start(number)?;
    bed.settle()
}

fn leader_stopped(bed: &mut Bed<'_>, name: &str) -> anyhow::Result<()> {
    let leader = bed.leader()?;
    bed.traffic.fault(name, Some(leader))?;
    bed.members[leader].signal(Signal::STOP)?;
    sleep(Duration::from_secs(10));
    bed.members[leader].signal(Signal::CONT)?;
    bed.settle()
}

fn leader_cut(
    bed: &mut Bed<'_>,
    name: &str,
    cut: fn(&mut Net, usize) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let leader = bed.leader()?;
    cut_and_heal(bed, name, leader, cut)
}

fn follower_cut(bed: &mut Bed<'_>, name: &str) -> anyhow::Result<()> {
    let follower = bed.follower()?;
    cut_and_heal(bed, name, follower, Net::cut_off)
}

fn cut_and_heal(
    bed: &mut Bed<'_>,
    name: &str,
    number: usize,
    cut: fn(&mut Net, usize) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    bed.traffic.fault(name, Some(number))?;
    cut(bed.net()?, number)?;
    sleep(2 * AWAY);
    bed.net()?.heal()?;
    bed.settle()
}

/// Cuts a node off from the others and from clients.
fn vanish(net: &mut Net, number: usize) -> anyhow::Result<()> {
    net.cut_off(number)?;
    net.cut(Endpoint::Node(number), Endpoint::Clients)?;
    net.cut(Endpoint::Clients, Endpoint::Node(number))
}

fn two_killed(bed: &mut Bed<'_>, name: &str) -> anyhow::Result<()> {
    let first = bed.leader()?;
    let second = bed.follower()?;
    bed.traffic.fault(name, None)?;
    let two = [first, second];
    for number in two {
        bed.members[number].kill()?;
    }
    sleep(AWAY);
    two.iter().try_for_each(|number| bed.members[*number].start())?;
    two.iter().try_for_each(|number| bed.members[*number].await_ready())?;
    bed.settle()
}

fn all_killed(bed: &mut Bed<'_>, name: &str) -> anyhow::Result<()> {
    bed.traffic.fault(name, None)?;
    // All signals first: nobody sees another one go and lives on.
    bed.members.iter().try_for_each(|it| it.signal(Signal::KILL))?;
    for member in bed.members.iter_mut() {
        member.await_end()?;
    }
    let first = bed.chance.below(bed.members.len() as u64) as usize;
    for place in 0..bed.members.len() {
        let number = (first + place) % bed.members.len();
        bed.members[number].start()?;
        sleep(Duration::from_millis(bed.chance.below(1000)));
    }
    bed.members.iter_mut().try_for_each(Member::await_ready)?;
    bed.settle()
}

fn rolling_restart(bed: &mut Bed<'_>, name: &str) -> anyhow::Result<()> {
    for number in 0..bed.members.len() {
        bed.traffic.fault(name, Some(number))?;
        bed.members[number].stop()?;
        bed.start(number)?;
        bed.settle()?;
    }
    Ok(())
}

fn follower_wiped(bed: &mut Bed<'_>, name: &str) -> anyhow::Result<()> {
    let follower = bed.follower()?;
    bed.traffic.fault(name, Some(follower))?;
    bed.members[follower].kill()?;
    bed.members[follower].lose_data()?;
    let before = bed.members[follower].logged().len();
    bed.members[follower].start()?;
    let deadline = Instant::now() + ELECTION;
    // Either it ends, or it stays without the others; both with a reason.
    let said = loop {
        let said = bed.members[follower].logged().split_off(before);
        if said.lines().any(|line| REFUSALS.iter().any(|it| line.contains(it))) {
            break said;
        }
        if Instant::now() > deadline {
            bail!("node {follower} says nothing of why it is not a part of the cluster:\n{said}");
        }
        sleep(Duration::from_millis(50));
    };
    println!(
        "   {}",
        said.lines().find(|line| REFUSALS.iter().any(|it| line.contains(it))).unwrap_or_default()
    );
    if bed.members[follower].has_ended()?.is_none() {
        bed.members[follower].signal(Signal::KILL)?;
    }
    bed.members[follower].await_end()?;
    bed.members[follower].find_data()?;
    ensure!(fs::exists(bed.members[follower].data_dir())?, "its data is not back");
    bed.start(follower)?;
    bed.settle()
}

/// What a node with an empty disk says when the others are a cluster that knows its name.
const REFUSALS: [&str; 2] = ["forget_cluster_node", "is refused"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (at, round) in ALL.iter().enumerate() {
            assert!(!round.name.contains(' ') && !round.what.is_empty());
            assert!(ALL[..at].iter().all(|it| it.name != round.name), "{}", round.name);
        }
    }

    #[test]
    fn who_leads() {
        let status = serde_json::json!({"leader": "rabbit@node-2"});
        assert_eq!(leader_in(&status, 3), Some(2));
        assert_eq!(leader_in(&status, 2), None);
        assert_eq!(leader_in(&serde_json::json!({"leader": null}), 3), None);
    }
}
