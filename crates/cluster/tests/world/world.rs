//! Nodes, the links between them, and what goes wrong.

use std::collections::{BTreeMap, BTreeSet};

use leveret_cluster::{ClusterActions, ClusterStatus, GroupRow, Identity, NodeRow, Standing};
use leveret_link::hello::{Handshake, Members as _, Peer, RaftId, Secret, Urgency};
use leveret_link::letters::NodeLetter;
use leveret_log::disk::{Faults, SimDisk};
use leveret_replica::Refill;

use crate::broker::Shared;
use crate::dice::Dice;
use crate::node::Node;

/// Milliseconds of a step.
pub(crate) const STEP_MS: u64 = 10;

/// All of it.
pub(crate) struct World {
    pub(crate) nodes: Vec<Node>,
    pub(crate) now_ms: u64,
    pub(crate) dice: Dice,
    letters: BTreeMap<(u64, u64), OnItsWay>,
    count: u64,
    /// What one has of another, as it sees it: which connection.
    views: BTreeMap<(usize, usize), u64>,
    /// And under which Raft id.
    linked_as: BTreeMap<(usize, usize), RaftId>,
    epoch: u64,
    /// Nothing comes from one to another.
    pub(crate) cut: BTreeSet<(usize, usize)>,
    /// Letters are lost and late.
    pub(crate) is_rough: bool,
    /// A node hears all that came before it does what is to be done, as a program does.
    pub(crate) hears_first: bool,
    /// Whether a letter is lost: from, to, what. Nothing is without it.
    pub(crate) loses: Option<Loses>,
    pub(crate) shared: Shared,
    /// Every cluster that a disk ever named.
    pub(crate) clusters: BTreeSet<String>,
    /// The identity of each node that was looked at last.
    looked_at: Vec<Vec<u8>>,
    /// A node that is lost for good, with the Raft id that it had.
    pub(crate) lost: Option<Lost>,
    /// The node that was lost last, and came back with an empty disk.
    new: Option<usize>,
    /// How often one was lost, and came back.
    pub(crate) replaced: usize,
    /// Why handshakes failed.
    pub(crate) refused: BTreeSet<String>,
    pub(crate) told: Vec<String>,
    /// For so long somebody gave out.
    pub(crate) given_ms: u64,
    /// Bytes of files that each has asked for and that were not given, and the most there ever were.
    asked_bytes: BTreeMap<usize, u64>,
    pub(crate) asked_most: u64,
}

pub(crate) type Loses = Box<dyn Fn(usize, usize, &NodeLetter) -> bool>;

/// No batch comes to anybody.
pub(crate) fn all_batches() -> Loses {
    Box::new(|_, _, letter| has_batches(letter))
}

pub(crate) fn has_batches(letter: &NodeLetter) -> bool {
    matches!(letter, NodeLetter::Replica { copies, .. } if !copies.is_empty())
}

pub(crate) fn is_of_group(letter: &NodeLetter, of: u64) -> bool {
    matches!(letter, NodeLetter::Replica { group, .. } if *group == of)
}

/// A node that is lost for good.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lost {
    pub(crate) at: usize,
    id: RaftId,
}

struct OnItsWay {
    from: usize,
    to: usize,
    epoch: u64,
    letter: NodeLetter,
}

impl World {
    /// One in which a node leads, and the others follow it.
    pub(crate) fn led(count: usize, seed: u64) -> Self {
        let mut world = Self::new(count, seed);
        assert!(world.run_until(5_000, |it| it.leader().is_some()), "seed {seed}: nobody leads");
        world
    }

    pub(crate) fn new(count: usize, seed: u64) -> Self {
        let names: Vec<String> =
            ["a", "b", "c", "d", "e"].iter().take(count).map(|it| format!("rabbit@{it}")).collect();
        let shared = Shared::default();
        let nodes = (0..count).map(|at| Node::new(at, &names, seed, &shared)).collect();
        Self {
            nodes,
            now_ms: 0,
            dice: Dice::new(seed),
            letters: BTreeMap::new(),
            count: 0,
            views: BTreeMap::new(),
            linked_as: BTreeMap::new(),
            epoch: 0,
            cut: BTreeSet::new(),
            is_rough: false,
            hears_first: false,
            loses: None,
            shared,
            clusters: BTreeSet::new(),
            looked_at: vec![Vec::new(); count],
            lost: None,
            new: None,
            replaced: 0,
            refused: BTreeSet::new(),
            told: Vec::new(),
            given_ms: 0,
            asked_bytes: BTreeMap::new(),
            asked_most: 0,
        }
    }

    pub(crate) fn run_ms(&mut self, ms: u64) {
        let until = self.now_ms + ms;
        while self.now_ms < until {
            self.step();
        }
    }

    /// Runs until something is so, at most so long.
    pub(crate) fn run_until(&mut self, ms: u64, is_so: impl Fn(&Self) -> bool) -> bool {
        let until = self.now_ms + ms;
        while self.now_ms < until && !is_so(self) {
            self.step();
        }
        is_so(self)
    }

    pub(crate) fn step(&mut self) {
        self.now_ms += STEP_MS;
        self.starts();
        self.connect();
        self.deliver();
        for at in 0..self.nodes.len() {
            let actions = self.nodes[at].step(self.now_ms);
            self.act(at, actions);
        }
        self.look();
    }

    fn starts(&mut self) {
        for at in 0..self.nodes.len() {
            let is_lost = self.lost.is_some_and(|it| it.at == at);
            if !is_lost && self.nodes[at].starts_ms.is_some_and(|ms| ms <= self.now_ms) {
                self.nodes[at].start().unwrap_or_else(|why| panic!("node {at}: {why}"));
            }
            if self.nodes[at].wiped_ms.is_some_and(|ms| ms <= self.now_ms) {
                self.end(at, false, 10);
                self.nodes[at].wipe();
            }
            let process = self.nodes[at].process.as_ref();
            if process.and_then(|it| it.stops_ms).is_some_and(|ms| ms <= self.now_ms) {
                self.end(at, true, 100);
            }
        }
    }

    /// A process, or a machine, ends, and is started again.
    pub(crate) fn end(&mut self, at: usize, has_power: bool, for_ms: u64) {
        self.nodes[at].end(has_power);
        self.nodes[at].starts_ms = Some(self.now_ms + for_ms);
        self.views.retain(|(one, _), _| *one != at);
    }

    /// It is told to stop, and has so long.
    pub(crate) fn stop(&mut self, at: usize, patience_ms: u64) {
        let until = self.now_ms + patience_ms;
        if let Some(process) = &mut self.nodes[at].process {
            process.cluster.stop();
            process.stops_ms.get_or_insert(until);
        }
    }

    /// Another node is to lead in place of this one.
    pub(crate) fn hand_over(&mut self, at: usize) {
        if let Some(process) = &mut self.nodes[at].process {
            process.cluster.hand_over();
        }
    }

    fn act(&mut self, at: usize, actions: ClusterActions<SimDisk>) {
        self.told.extend(actions.told);
        if let Some((_, members)) = actions.links {
            let is_gone = |id: &RaftId| members.is_forgotten(*id);
            let linked = self.linked_as.iter().filter(|(view, id)| view.0 == at && is_gone(id));
            for view in linked.map(|(view, _)| *view).collect::<Vec<_>>() {
                self.unlink(view);
            }
        }
        for (id, letter) in actions.send {
            let is_to = |to: &usize| self.linked_as.get(&(at, *to)) == Some(&id);
            let Some(to) = (0..self.nodes.len()).find(is_to) else { continue };
            let Some(epoch) = self.views.get(&(at, to)).copied() else { continue };
            if self.is_rough && self.dice.one_in(20) {
                continue;
            }
            if self.loses.as_ref().is_some_and(|loses| loses(at, to, &letter)) {
                continue;
            }
            let late = match self.is_rough {
                true if self.dice.one_in(20) => self.dice.below(400),
                true => self.dice.below(30),
                false => 0,
            };
            self.count_files(at, to, &letter);
            self.count += 1;
            let way = OnItsWay { from: at, to, epoch, letter };
            self.letters.insert((self.now_ms + late, self.count), way);
        }
        let is_stopping = self.nodes[at].process.as_ref().is_some_and(|it| it.stops_ms.is_some());
        if actions.left && is_stopping {
            self.end(at, true, 100);
        } else if actions.must_restart {
            self.end(at, true, 10);
        }
    }

    fn count_files(&mut self, from: usize, to: usize, letter: &NodeLetter) {
        let NodeLetter::Refill { refill, .. } = letter else { return };
        match refill {
            Refill::WantPieces(names) => {
                let asked = self.asked_bytes.entry(from).or_default();
                *asked += names.iter().map(|it| u64::from(it.len)).sum::<u64>();
                self.asked_most = self.asked_most.max(*asked);
            }
            Refill::Piece(piece) => {
                let asked = self.asked_bytes.entry(to).or_default();
                *asked = asked.saturating_sub(piece.name.len.into());
            }
            _ => {}
        }
    }

    fn deliver(&mut self) {
        let later = self.letters.split_off(&(self.now_ms + 1, 0));
        for way in std::mem::replace(&mut self.letters, later).into_values() {
            let OnItsWay { from, to, epoch, letter } = way;
            let is_up = self.views.get(&(to, from)) == Some(&epoch);
            if !is_up || self.cut.contains(&(from, to)) {
                continue;
            }
            let Some(id) = self.linked_as.get(&(to, from)).copied() else { continue };
            let now_ms = self.now_ms;
            let node = &mut self.nodes[to];
            if node.process.is_some() && node.paused_ms <= now_ms {
                node.hear(id, letter, now_ms);
                if !self.hears_first {
                    let actions = self.nodes[to].act(now_ms);
                    self.act(to, actions);
                }
            }
        }
    }

    /// Links come and go.
    fn connect(&mut self) {
        let count = self.nodes.len();
        for one in 0..count {
            for other in one + 1..count {
                let cut = self.cut.contains(&(one, other)) || self.cut.contains(&(other, one));
                let pair = [(one, other), (other, one)];
                let views = pair.map(|it| self.views.get(&it).copied());
                match views {
                    // A connection that is dead is noticed some time.
                    [Some(_), Some(_)] if cut && self.dice.one_in(50) => {
                        let side = self.dice.below(2) as usize;
                        self.unlink(pair[side]);
                    }
                    [Some(_), None] => self.notice(pair[0]),
                    [None, Some(_)] => self.notice(pair[1]),
                    [None, None] if !cut && self.dice.one_in(5) => self.link(one, other),
                    _ => {}
                }
            }
        }
    }

    fn notice(&mut self, view: (usize, usize)) {
        if self.dice.one_in(5) {
            self.unlink(view);
        }
    }

    /// Both connections of a link end, as both sides see at once.
    pub(crate) fn reset(&mut self, one: usize, other: usize) {
        self.unlink((one, other));
        self.unlink((other, one));
    }

    pub(crate) fn unlink(&mut self, view: (usize, usize)) {
        self.views.remove(&view);
        let Some(id) = self.linked_as.remove(&view) else { return };
        if let Some(process) = &mut self.nodes[view.0].process {
            process.cluster.unlinked(id);
        }
    }

    fn link(&mut self, one: usize, other: usize) {
        let mut peers = Vec::new();
        {
            let ready = |at: usize| {
                let node = &self.nodes[at];
                let now_ms = self.now_ms;
                node.process.as_ref().filter(|it| it.is_known && node.paused_ms <= now_ms)
            };
            let (Some(caller), Some(callee)) = (ready(one), ready(other)) else { return };
            let (caller, callee) = (&caller.cluster, &callee.cluster);
            let secret = || Secret::new(b"a secret of some length").unwrap();
            let urgency = Urgency::Urgent;
            let mut call = Handshake::call(caller.facts(), urgency, secret(), None, [1; 32], 0);
            let mut answer = Handshake::answer(callee.facts(), secret(), None, [2; 32]);
            for _ in 0..4 {
                answer.input(&call.take_output(), 0, &callee.known());
                call.input(&answer.take_output(), 0, &caller.known());
            }
            for outcome in [call.outcome(), answer.outcome()] {
                match outcome {
                    Some(Ok(peer)) => peers.push(peer.clone()),
                    Some(Err(why)) => {
                        self.refused.insert(why.to_string());
                    }
                    None => panic!("the handshake does not end"),
                }
            }
        }
        if peers.len() < 2 {
            return;
        }
        self.epoch += 1;
        for (at, view, peer) in [(one, (one, other), &peers[0]), (other, (other, one), &peers[1])] {
            self.views.insert(view, self.epoch);
            self.linked_as.insert(view, peer.node.raft_id);
            self.linked(at, peer);
        }
    }

    fn linked(&mut self, at: usize, peer: &Peer) {
        if let Some(process) = &mut self.nodes[at].process {
            process.cluster.linked(peer);
        }
        let actions = self.nodes[at].act(self.now_ms);
        self.act(at, actions);
    }

    /// What has to be so at any time.
    fn look(&mut self) {
        for (node, looked_at) in self.nodes.iter().zip(&mut self.looked_at) {
            let Some(bytes) = node.identity.as_ref().filter(|it| **it != *looked_at) else {
                continue;
            };
            let identity = Identity::read(bytes).expect("it is whole");
            self.clusters.extend(identity.membership.map(|it| it.cluster.to_string()));
            looked_at.clone_from(bytes);
        }
        assert!(self.clusters.len() < 2, "two clusters: {:?}", self.clusters);
        let gives = |it: &&Node| it.gives(self.now_ms);
        let giving: Vec<_> = self.nodes.iter().filter(gives).map(|it| it.name.as_str()).collect();
        assert!(giving.len() < 2, "they give out at once: {giving:?}");
        self.given_ms += giving.len() as u64 * STEP_MS;
    }

    /// Something goes wrong, or well again.
    pub(crate) fn trouble(&mut self) {
        if !self.dice.one_in(40) {
            return;
        }
        let count = self.nodes.len() as u64;
        let at = self.dice.below(count) as usize;
        match self.dice.below(12) {
            0 | 1 => {
                let for_ms = self.dice.below(1_000);
                let has_power = self.dice.one_in(2);
                self.end(at, has_power, for_ms);
            }
            2 if self.dice.one_in(4) => {
                for at in 0..self.nodes.len() {
                    let for_ms = self.dice.below(500);
                    self.end(at, false, for_ms);
                }
            }
            3 => self.isolate(at),
            4 => {
                let side = self.dice.next();
                for one in 0..self.nodes.len() {
                    for other in 0..self.nodes.len() {
                        if side >> one & 1 != side >> other & 1 {
                            self.cut.insert((one, other));
                        }
                    }
                }
            }
            // One way only.
            5 => {
                let other = self.dice.below(count) as usize;
                self.cut.insert((at, other));
            }
            6 | 7 => self.cut.clear(),
            8 => self.nodes[at].paused_ms = self.now_ms + self.dice.below(1_000),
            9 => {
                let delay = self.dice.below(40) as u32;
                for disk in self.nodes[at].disks() {
                    disk.set_faults(Faults { delay, ..Faults::default() });
                }
            }
            10 => self.stop(at, 1_000),
            _ => {}
        }
    }

    /// A node is lost for good, is forgotten while all else goes wrong, and comes back: some time with what it had, and then with an
    /// empty disk. One that is new may be lost again at any moment, another one once the new one votes.
    pub(crate) fn replace(&mut self) {
        self.forget_ghosts();
        let Some(Lost { at, id }) = self.lost else {
            let any = self.dice.below(self.nodes.len() as u64) as usize;
            let at = if self.all_are_members() { any } else { self.new.unwrap_or(any) };
            let is_safe = self.all_are_members() || self.new.is_some();
            if is_safe && self.dice.one_in(150) {
                self.lose(at);
            }
            return;
        };
        let name = self.nodes[at].name.clone();
        let mut is_forgotten = false;
        for node in &mut self.nodes {
            let Some(process) = node.process.as_mut().filter(|_| node.paused_ms <= self.now_ms)
            else {
                continue;
            };
            if self.dice.one_in(20) {
                let _ = process.cluster.forget(&name);
            }
            is_forgotten |= process.cluster.has_forgotten(id) == Ok(true);
        }
        if is_forgotten {
            let late = self.dice.below(300);
            self.lost = None;
            self.new = Some(at);
            self.replaced += 1;
            self.nodes[at].starts_ms = Some(self.now_ms + late);
            if self.dice.one_in(3) {
                // It does not know yet.
                self.nodes[at].wiped_ms = Some(self.now_ms + late + self.dice.below(1_000));
            } else {
                self.nodes[at].wipe();
            }
        }
    }

    /// Who operates the cluster sees [such names](Self::ghosts), sooner or later.
    pub(crate) fn forget_ghosts(&mut self) {
        let ghosts = self.ghosts();
        if ghosts.is_empty() || !self.dice.one_in(20) {
            return;
        }
        for name in ghosts {
            let all = self.nodes.iter_mut().filter_map(|it| it.process.as_mut());
            all.for_each(|it| _ = it.cluster.forget(&name));
        }
    }

    /// It does not come back with what it has, unless it is forgotten.
    pub(crate) fn lose(&mut self, at: usize) {
        let Some(id) = id_of(&self.nodes[at]) else { return };
        self.end(at, false, 0);
        self.nodes[at].wiped_ms = None;
        self.lost = Some(Lost { at, id });
    }

    /// Names that belong to a data directory which is there no more, though nobody is lost: it was about to become a member when that
    /// was forgotten, and did so then.
    pub(crate) fn ghosts(&self) -> Vec<String> {
        let leads = self.nodes.iter().filter(|it| it.has_broker() && self.lost.is_none());
        let rows = leads.filter_map(|it| it.process.as_ref());
        let rows = rows.flat_map(|it| it.cluster.status().nodes);
        let is_ghost = |row: &NodeRow| {
            let node = self.nodes.iter().find(|it| it.name == row.name);
            node.and_then(id_of) != row.raft_id
        };
        rows.filter(is_ghost).map(|row| row.name).collect()
    }

    /// All nodes vote in all groups, as one knows that leads.
    pub(crate) fn all_are_members(&self) -> bool {
        if self.nodes.iter().any(|it| it.wiped_ms.is_some()) {
            return false;
        }
        let ids: Vec<_> = self.nodes.iter().map(id_of).collect();
        let knows = |node: &Node| {
            let Some(process) = node.process.as_ref().filter(|_| node.has_broker()) else {
                return false;
            };
            let rows = process.cluster.status().nodes;
            let known: Vec<_> = rows.iter().filter(|it| !it.joins).map(|it| it.raft_id).collect();
            ids.iter().all(|id| known.contains(id)) && known.len() == ids.len()
        };
        self.nodes.iter().any(knows)
    }

    pub(crate) fn isolate(&mut self, at: usize) {
        for other in 0..self.nodes.len() {
            self.cut.insert((at, other));
            self.cut.insert((other, at));
        }
    }

    /// Nothing goes wrong any more.
    pub(crate) fn calm(&mut self) {
        self.cut.clear();
        self.is_rough = false;
        for node in &mut self.nodes {
            node.paused_ms = 0;
            for disk in node.disks() {
                disk.set_faults(Faults::default());
            }
        }
    }

    pub(crate) fn standing(&self, at: usize) -> Option<&Standing> {
        self.nodes[at].process.as_ref().map(|it| it.cluster.standing())
    }

    /// What each node knows, for whoever has to find out what went wrong.
    pub(crate) fn picture(&self) -> String {
        let mut text = format!("{:?}", self.told);
        for node in &self.nodes {
            text += &format!("\n{}", node.name);
            let Some(process) = &node.process else { continue };
            let status = process.cluster.status();
            text += &format!(" {:?}, wiped {:?}", status.standing, node.wiped_ms);
            for row in status.nodes {
                text += &format!(
                    "\n    {} {:?} {} joins {}",
                    row.name, row.raft_id, row.is_running, row.joins
                );
            }
            for group in status.groups {
                text += &format!("\n    {group:?}");
            }
        }
        text
    }

    /// Whether one has a link to another, as it thinks.
    pub(crate) fn sees(&self, at: usize, other: usize) -> bool {
        self.views.contains_key(&(at, other))
    }

    /// Whether anybody has a link to it.
    pub(crate) fn is_linked(&self, at: usize) -> bool {
        (0..self.nodes.len()).any(|other| self.sees(other, at))
    }

    /// The node that leads, if all others follow it.
    pub(crate) fn leader(&self) -> Option<usize> {
        let leader = (0..self.nodes.len()).find(|at| self.nodes[*at].has_broker())?;
        let id = id_of(&self.nodes[leader])?;
        let follows = |at: usize| match self.standing(at) {
            Some(Standing::Leads) => at == leader,
            Some(Standing::Follows(of)) => *of == id,
            _ => false,
        };
        (0..self.nodes.len()).all(follows).then_some(leader)
    }

    /// Whether a node leads a group, as it knows.
    pub(crate) fn leads_group(&self, at: usize, group: u64) -> bool {
        let leads = |it: &GroupRow| it.leader.as_ref() == Some(&self.nodes[at].name);
        let rows = self.status(at).map(|it| it.groups).unwrap_or_default();
        rows.iter().any(|it| it.group == group && leads(it))
    }

    /// The last batch of each group at the node that leads.
    pub(crate) fn lasts(&self) -> Vec<u64> {
        let status = self.leader_status();
        status.map_or_else(Vec::new, |it| it.groups.iter().map(|it| it.last).collect())
    }

    /// Whether all members have these batches of each group.
    pub(crate) fn all_have(&self, lasts: &[u64]) -> bool {
        let Some(status) = self.leader_status() else { return false };
        let others = self.nodes.len() - 1;
        let has = |(row, last): (&GroupRow, &u64)| {
            row.matched.iter().filter(|it| it.1 >= *last).count() == others
        };
        status.groups.len() == lasts.len() && status.groups.iter().zip(lasts).all(has)
    }

    fn leader_status(&self) -> Option<ClusterStatus> {
        self.status(self.leader()?)
    }

    /// What a node that runs says of the cluster.
    pub(crate) fn status(&self, at: usize) -> Option<ClusterStatus> {
        Some(self.nodes[at].process.as_ref()?.cluster.status())
    }

    /// The cluster of each node that runs.
    pub(crate) fn memberships(&self) -> BTreeSet<Option<String>> {
        let processes = self.nodes.iter().filter_map(|it| it.process.as_ref());
        processes.map(|it| it.cluster.status().cluster.map(|id| id.to_string())).collect()
    }
}

pub(crate) fn id_of(node: &Node) -> Option<RaftId> {
    Identity::read(node.identity.as_ref()?).ok().map(|it| it.raft_id)
}
