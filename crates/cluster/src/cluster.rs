//! A node of a cluster.

mod members;
mod told;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use leveret_link::hello::{ClusterId, NodeFacts, Peer, RaftId};
use leveret_link::letters::{Founding, GroupTold, NodeLetter, NodeNumbers, NodeStatus};
use leveret_log::disk::{Disk, DiskError};
use leveret_log::file::{Options, Report};
use leveret_replica::{
    BatchName, Content, GroupLog, Lease, LeftOut, Member, MemberError, MemberId, Members, Point,
    Reopened, Reopening, Settings, Ticket, Votes, Word,
};

use crate::clocks::{ClockNews, Clocks};
use crate::disks::{Disks, NodeDisk, of_majority};
use crate::formation::{KnownMembers, Linked, missing, refusal, why_not};
use crate::groups::{GroupActions, Groups};
use crate::identity::{Identity, IdentityError, KnownMember, Membership};
use crate::status::{ClusterStatus, GroupRow, NodeRow, Standing, bound};

pub use told::Remembered;

/// Between two tellings of a node's status, and of a founding, in ms.
const TELL_MS: u64 = 1_000;

/// A node that is asked to hand over tries it for so long, in ms: nobody is served meanwhile if no other one can lead.
const HAND_OVER_MS: u64 = 5_000;

/// A node of which nothing came for so long is not shown as running, linked or not: longer than the time between two statuses.
const SILENT_MS: u64 = TELL_MS + 500;

/// Why such a node is not shown as running.
const SAYS_NOTHING: &str = "it is linked, and says nothing";

/// A node that hears the time after so long has had no turns in between.
const STOOD_STILL_MS: u64 = 500;

/// What is told of groups in one status, at most.
const GROUPS_TOLD: usize = 1_100;

/// The batch that every group begins behind: it was never there.
pub(crate) const BEGINNING: BatchName = BatchName { number: 1, term: 1 };

/// A disk of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DiskOwner {
    /// The words of all members, which are a directory of their own.
    Words,
    /// The log of a group.
    Group(u64),
}

/// What a node is begun with.
pub struct Setup<D> {
    /// Its name.
    pub name: String,
    /// The names of all nodes that are to form a cluster, this one among them.
    pub listed: Vec<String>,
    /// How many groups of queues a cluster has that this node founds.
    pub shards: u32,
    /// How groups are driven.
    pub settings: Settings,
    /// Drawn at random, for elections.
    pub seed: u64,
    /// Drawn at random: what a directory is called that has no name yet, and a cluster that this node founds.
    pub drawn: (RaftId, ClusterId),
    /// What this process says of itself; the rest is filled in.
    pub status: NodeStatus,
    /// What the file `heard` has, by group: how far is known to be agreed upon.
    pub heard: Vec<BatchName>,
    /// The files are not where they were, or nobody knows: they may be an older copy.
    pub is_copy: bool,
    /// Opens the disk of a directory, which may not be there yet.
    pub open_disk: Box<dyn FnMut(DiskOwner) -> io::Result<D> + Send>,
    /// How the log of a group is opened, by its number and that of the shards.
    pub options: Box<dyn FnMut(u64, u32) -> Options + Send>,
}

/// Why a node cannot be a part of its cluster.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Nobody knows who it is.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// It was another one.
    #[error("the data directory is that of {found}, and this node is {own}")]
    Name {
        /// Whose it is.
        found: String,
        /// Who this is.
        own: String,
    },
    /// The cluster has members that are not in the list, so nobody knows where they are.
    #[error("the cluster has the nodes {found}, and {listed} are listed: each member has to be")]
    Listed {
        /// Who is a member.
        found: String,
        /// Who is listed.
        listed: String,
    },
    /// A directory cannot be opened.
    #[error("the disk of {owner:?} cannot be opened: {why}")]
    Directory {
        /// Whose.
        owner: DiskOwner,
        /// The operating system's answer.
        why: io::Error,
    },
    /// The file of words cannot be read.
    #[error("the file of words cannot be read: {0}")]
    Words(DiskError),
    /// A group's log, or its word, is not what it was.
    #[error("group {group}: {why}")]
    Group {
        /// Which.
        group: u64,
        /// What of it.
        why: MemberError,
    },
}

/// What is to be done.
#[derive(Debug)]
pub struct ClusterActions<D> {
    /// For other nodes, in this order.
    pub send: Vec<(RaftId, NodeLetter)>,
    /// What the log of names is about, as far as all agree, in order.
    pub names: Vec<Content>,
    /// Logs that are lent: the shard of the group is to have a turn.
    pub wakes: Vec<u64>,
    /// Logs of groups that are to be opened anew, which takes as long as a start: on another thread. Then [`reopened`](Cluster::reopened).
    pub reopen: Vec<(u64, Reopening<D>)>,
    /// The file `cluster`: to be written whole under another name, synced, renamed, and its directory synced. Then
    /// [`identity_written`](Cluster::identity_written). Nothing else is to be written until then.
    pub write_identity: Option<Vec<u8>>,
    /// The file `heard`, to be written in the same manner, in its own time. Then [`heard_written`](Cluster::heard_written).
    pub write_heard: Option<Remembered>,
    /// What handshakes go by from now on.
    pub links: Option<(NodeFacts, KnownMembers)>,
    /// What this node is to the others, if that is something else now.
    pub standing: Option<Standing>,
    /// What is in memory is in part not agreed upon, and may not stay: the process begins anew.
    pub must_restart: bool,
    /// After [`stop`](Cluster::stop): nothing is left to wait for.
    pub left: bool,
    /// Bytes that a majority of the nodes has room for, if that was told anew; `u64::MAX` if nothing is known to bound it.
    pub room: Option<u64>,
    /// Between which this node's clock is, where it is the middle one, if that was told anew: by how much, in ms, those that others told
    /// are ahead of the time that this one is told; `i64::MIN` and `i64::MAX` if there is no such clock.
    pub clocks: Option<(i64, i64)>,
    /// A disk failed: the process ends.
    pub failed: Option<String>,
    /// Warnings for people, each once.
    pub told: Vec<String>,
    /// What is well again.
    pub noted: Vec<String>,
}

impl<D> Default for ClusterActions<D> {
    fn default() -> Self {
        let (send, wakes, names, reopen, told, noted) = Default::default();
        Self {
            send,
            wakes,
            names,
            reopen,
            write_identity: None,
            links: None,
            standing: None,
            must_restart: false,
            left: false,
            room: None,
            clocks: None,
            write_heard: None,
            failed: None,
            told,
            noted,
        }
    }
}

/// How far a node is with its cluster.
enum Phase<D: Disk> {
    /// It is in none.
    Blank,
    /// Its first words are being kept; then it says who it is. The number is of words that are not kept.
    Words(Membership, Votes<D>, usize),
    /// The identity is to be on the disk before anything is said.
    Written(Votes<D>),
    /// It is a member.
    Member(Box<Groups<D>>),
    /// Something failed, which was told.
    Failed,
}

/// A node of a cluster.
pub struct Cluster<D: Disk> {
    setup: Setup<D>,
    /// As it is to be on the disk.
    identity: Identity,
    /// As it is there.
    safe: Identity,
    /// It is to be written.
    is_changed: bool,
    /// It is being written.
    writing: Option<Identity>,
    is_written_once: bool,
    phase: Phase<D>,
    linked: BTreeMap<RaftId, Linked>,
    /// What each told last.
    statuses: BTreeMap<RaftId, NodeStatus>,
    disks: Disks,
    clocks: Clocks,
    /// Of nodes' disks, or of which nodes are there.
    has_disk_news: bool,
    /// Members of group 0 whose names nobody has told.
    nameless: Vec<RaftId>,
    /// What each told last of its groups.
    told: BTreeMap<RaftId, Vec<GroupTold>>,
    /// Of whom was told that confirms do not wait for them.
    left_out: BTreeMap<RaftId, LeftOut>,
    /// What the file `heard` has, and what is on its way there.
    heard_safe: Option<Remembered>,
    heard_writing: Option<Remembered>,
    /// It was told that this node votes for nobody.
    was_unsure: bool,
    /// Why nobody led a second ago, and what of that was told.
    why: Option<String>,
    why_told: Option<String>,
    now_ms: u64,
    told_ms: u64,
    standing: Standing,
    must_restart: bool,
    is_leaving: bool,
    /// Another node is to lead in place of this one, which goes on: until when that is tried.
    hands_over_until_ms: Option<u64>,
    failed: Option<String>,
    /// To be done.
    actions: ClusterActions<D>,
    /// What was told of foundings that were refused.
    warned: Vec<String>,
    reports: Vec<(u64, Report)>,
}

impl<D: Disk> Cluster<D> {
    /// The node whose file `cluster` has these bytes, or that has none yet. It waits for disks, and reads its logs.
    ///
    /// # Errors
    ///
    /// When the data directory is another node's or another cluster's, or is damaged.
    pub fn open(identity: Option<&[u8]>, mut setup: Setup<D>) -> Result<Self, OpenError> {
        setup.listed.sort_unstable();
        let mut identity = match identity {
            Some(bytes) => Identity::read(bytes)?,
            None => Identity::new(setup.drawn.0, &setup.name),
        };
        if identity.name != setup.name {
            return Err(OpenError::Name { found: identity.name, own: setup.name });
        }
        identity.starts = identity.starts.saturating_add(1);
        if let Some(membership) = &identity.membership {
            let names: Vec<_> = membership.members.iter().map(|it| it.name.clone()).collect();
            if names.iter().any(|name| !setup.listed.contains(name)) {
                let (found, listed) = (names.join(", "), setup.listed.join(", "));
                return Err(OpenError::Listed { found, listed });
            }
        }
        let mut cluster = Self {
            setup,
            safe: identity.clone(),
            is_changed: true,
            writing: None,
            is_written_once: false,
            phase: Phase::Blank,
            linked: BTreeMap::new(),
            statuses: BTreeMap::new(),
            disks: Disks::default(),
            clocks: Clocks::default(),
            has_disk_news: false,
            nameless: Vec::new(),
            told: BTreeMap::new(),
            left_out: BTreeMap::new(),
            heard_safe: None,
            heard_writing: None,
            was_unsure: false,
            why: None,
            why_told: None,
            now_ms: 0,
            told_ms: 0,
            standing: Standing::Waits,
            must_restart: false,
            is_leaving: false,
            hands_over_until_ms: None,
            failed: None,
            actions: ClusterActions::default(),
            warned: Vec::new(),
            reports: Vec::new(),
            identity,
        };
        if cluster.identity.membership.is_some() {
            let votes = cluster.open_words()?;
            cluster.open_groups(votes)?;
        }
        cluster.standing = cluster.present_standing();
        cluster.actions.standing = Some(cluster.standing.clone());
        Ok(cluster)
    }

    /// What the logs of groups were found to be when they were opened, once.
    pub fn take_reports(&mut self) -> Vec<(u64, Report)> {
        std::mem::take(&mut self.reports)
    }

    /// Who this node is, as handshakes say it.
    pub fn facts(&self) -> NodeFacts {
        self.safe.facts()
    }

    /// What handshakes go by.
    pub fn known(&self) -> KnownMembers {
        KnownMembers::of(&self.safe, &self.nameless, &self.setup.listed)
    }

    /// The identity that was to be written is on the disk, for good.
    pub fn identity_written(&mut self) {
        let Some(written) = self.writing.take() else { return };
        self.safe = written;
        self.is_written_once = true;
        self.actions.links = Some((self.safe.facts(), self.known()));
        if self.safe.membership.is_none() || !matches!(self.phase, Phase::Written(_)) {
            return;
        }
        let Phase::Written(votes) = std::mem::replace(&mut self.phase, Phase::Failed) else {
            return;
        };
        if let Err(why) = self.open_groups(votes) {
            self.failed = Some(why.to_string());
            return;
        }
        self.tell_of_cluster();
        self.tell_status();
    }

    /// Both connections to another node are there.
    pub fn linked(&mut self, peer: &Peer) {
        let node = peer.node.clone();
        let id = node.raft_id;
        self.hear_start(id, node.start);
        let cluster = node.cluster;
        let (encrypted, heard_ms) = (peer.encrypted, self.now_ms);
        self.linked.insert(id, Linked { encrypted, node, listed: None, cluster, heard_ms });
        self.tell_of_cluster_to(id);
        let status = self.own_status();
        self.send_status(id, &status);
        self.found();
    }

    /// One of them is not.
    pub fn unlinked(&mut self, id: RaftId) {
        self.linked.remove(&id);
        self.clocks.lost(id);
        self.actions.clocks = Some(self.clocks.among());
        self.has_disk_news = true;
        if let Phase::Member(groups) = &mut self.phase {
            let linked = &self.linked;
            groups.lose_sight(id, |id| linked.contains_key(&id));
        }
    }

    /// A letter of a node that this one has a link to.
    pub fn letter(&mut self, from: RaftId, letter: NodeLetter) {
        let Some(linked) = self.linked.get_mut(&from) else { return };
        linked.heard_ms = self.now_ms;
        match letter {
            NodeLetter::Replica { group, .. }
            | NodeLetter::Record { group, .. }
            | NodeLetter::Refill { group, .. } => {
                let membership = self.safe.membership.as_ref();
                let is_member = membership.is_some_and(|it| it.member(from).is_some());
                if let (Phase::Member(groups), true) = (&mut self.phase, is_member) {
                    groups.letter(from, group, letter);
                }
            }
            NodeLetter::Found(founding) => self.found_by(from, Membership::of(&founding)),
            NodeLetter::Joining(joining) => self.found_by(from, Membership::told(&joining)),
            NodeLetter::Founded { cluster } => linked.cluster = Some(cluster),
            NodeLetter::Told(told) => self.hear_groups(from, told),
            NodeLetter::Status(status) => {
                linked.listed = Some(status.listed.clone());
                let disk = NodeDisk::of(&status.numbers);
                let told = self.disks.heard(from, &linked.node.name, disk);
                self.actions.told.extend(told.filter(|_| self.standing == Standing::Leads));
                let (name, clock_ms) = (&linked.node.name, status.numbers.clock_ms);
                match self.clocks.heard(from, name, clock_ms, self.now_ms) {
                    Some(ClockNews::Differs(text)) => self.actions.told.push(text),
                    Some(ClockNews::Agrees(text)) => self.actions.noted.push(text),
                    None => {}
                }
                self.actions.clocks = Some(self.clocks.among());
                self.statuses.insert(from, *status);
                self.has_disk_news = true;
                self.found();
            }
        }
    }

    /// It is `now_ms`. To be told before what has come: all that was said before. A time that is too early has another node believe
    /// that a lease is over which is not.
    pub fn tell_time(&mut self, now_ms: u64) {
        let passed_ms = now_ms.saturating_sub(self.now_ms);
        if passed_ms > STOOD_STILL_MS {
            // What this node did not hear as it stood still is no silence.
            self.linked.values_mut().for_each(|it| it.heard_ms += passed_ms);
        }
        self.now_ms = self.now_ms.max(now_ms);
        if let Phase::Member(groups) = &mut self.phase {
            groups.tell_time(self.now_ms);
        }
    }

    /// Nodes that are linked and of which nothing has come for a while: what runs tells its status each second.
    pub fn silent(&self) -> impl Iterator<Item = RaftId> {
        let silent = self.linked.iter().filter(|(_, it)| self.is_silent(it));
        silent.map(|(id, _)| *id)
    }

    fn is_silent(&self, linked: &Linked) -> bool {
        self.now_ms.saturating_sub(linked.heard_ms) > SILENT_MS
    }

    /// From when until when this node may give out what it has, settle it, and answer for it. To be asked for after each call, and
    /// before anything is sent.
    pub fn lease(&self) -> Lease {
        match &self.phase {
            Phase::Member(groups) if !self.must_restart => groups.lease(),
            _ => Lease::NONE,
        }
    }

    /// It is `now_ms`.
    pub fn tick(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        if let Phase::Member(groups) = &mut self.phase {
            groups.tick(now_ms);
        }
        self.tell_left_out();
        if self.now_ms >= self.told_ms.saturating_add(TELL_MS) {
            self.tell_of_cluster();
            self.tell_status();
            self.remember();
            self.tell_why_nobody_leads();
        }
    }

    /// A disk did something.
    pub fn disk_woke(&mut self, owner: DiskOwner) {
        match (&mut self.phase, owner) {
            (Phase::Member(groups), DiskOwner::Group(group)) => groups.disk_woke(group),
            (Phase::Member(groups), DiskOwner::Words) => {
                if let Err(why) = groups.words_woke() {
                    self.failed.get_or_insert(why);
                }
            }
            (Phase::Words(..), DiskOwner::Words) => self.first_words(),
            _ => {}
        }
    }

    /// A log that is lent has left something for its member.
    pub fn log_woke(&mut self, group: u64) {
        if let Phase::Member(groups) = &mut self.phase {
            groups.log_woke(group);
        }
    }

    /// The log of a group was opened anew, as [`ClusterActions::reopen`] wanted.
    pub fn reopened(&mut self, group: u64, log: Reopened<D>) {
        if let Phase::Member(groups) = &mut self.phase {
            groups.reopened(group, log);
        }
    }

    /// What this process says of itself from now on; the rest is filled in. Its clock is as of `now_ms`.
    pub fn set_status(&mut self, status: NodeStatus, now_ms: u64) {
        self.clocks.set_own(status.numbers.clock_ms, now_ms);
        let alarm = |it: &NodeStatus| it.numbers.disk_free_alarm;
        let is_news = alarm(&status) != alarm(&self.setup.status);
        self.setup.status = status;
        self.has_disk_news = true;
        if is_news {
            self.tell_status();
        }
    }

    /// All that is to be done now.
    #[must_use]
    pub fn take_actions(&mut self) -> ClusterActions<D> {
        self.tell_room();
        self.give_way();
        if matches!(self.phase, Phase::Member(_)) {
            self.follow_members();
            self.take_in();
        }
        if let Phase::Member(groups) = &mut self.phase {
            let linked = &self.linked;
            groups.look(self.now_ms, |id| linked.contains_key(&id));
            let mut done = GroupActions::default();
            groups.take_actions(&mut done);
            let name = |id| linked.get(&id).map(|it| it.node.name.to_string());
            self.actions.noted.extend(groups.told_leaders(name));
            let leads = |id: &RaftId| self.statuses.get(id).is_some_and(|it| it.leads);
            let told = |id| linked.contains_key(&id).then(|| leads(&id));
            let left = self.is_leaving && groups.has_left(told);
            self.actions.send.extend(done.send);
            self.actions.wakes.extend(done.wakes);
            self.actions.reopen.extend(done.reopen);
            self.actions.told.extend(done.told);
            self.actions.names.extend(done.names);
            self.actions.noted.extend(done.noted);
            self.actions.left = left;
            self.must_restart |= done.must_restart;
            if let Some(why) = done.failed {
                self.failed.get_or_insert(why);
            }
        } else {
            self.actions.left = self.is_leaving;
        }
        let standing = self.present_standing();
        if standing != self.standing {
            self.standing = standing.clone();
            self.actions.standing = Some(standing);
            self.tell_of_disks();
            self.tell_status();
        }
        if self.is_changed && self.writing.is_none() {
            self.is_changed = false;
            self.actions.write_identity = Some(self.identity.bytes());
            self.writing = Some(self.identity.clone());
        }
        self.actions.must_restart = self.must_restart;
        self.actions.failed.clone_from(&self.failed);
        std::mem::take(&mut self.actions)
    }

    /// The logs of all groups by number, once this node leads all of them, each with the term in which it does. `wake` has [`log_woke`](Self::log_woke) called soon.
    /// None if it does not, or they are lent already.
    pub fn lend_logs(
        &mut self,
        wake: impl Fn(u64) -> Arc<dyn Fn() + Send + Sync>,
    ) -> Option<Vec<(u64, GroupLog<D>)>> {
        match &mut self.phase {
            Phase::Member(groups) if !self.is_leaving => groups.lend(wake),
            _ => None,
        }
    }

    /// This node is going to stop: another one is to lead what it leads. Its broker has stopped. [`ClusterActions::left`] says
    /// when that is so, or cannot be.
    pub fn stop(&mut self) {
        self.is_leaving = true;
        if let Phase::Member(groups) = &mut self.phase {
            groups.leave();
        }
    }

    /// Another node is to lead what this one leads, if one takes over within some seconds. This one goes on.
    pub fn hand_over(&mut self) {
        self.hands_over_until_ms = Some(self.now_ms.saturating_add(HAND_OVER_MS));
    }

    /// How many groups of queues the cluster has; none while this node is in none.
    pub fn shards(&self) -> Option<u32> {
        self.safe.membership.as_ref().map(|it| it.shards)
    }

    /// What this node is to the others.
    pub fn standing(&self) -> &Standing {
        &self.standing
    }

    /// All that is known here of the cluster.
    pub fn status(&self) -> ClusterStatus {
        let membership = self.safe.membership.as_ref();
        let deciders = self.deciders();
        let row = |it: &KnownMember| self.node_row(&it.name, Some(it.raft_id), deciders.as_deref());
        let nodes = match membership {
            Some(it) => it.members.iter().map(row),
            None => return self.forming_status(),
        };
        let name_of = |id: RaftId| {
            let members = membership.map_or(&[][..], |it| it.members.as_slice());
            let member = members.iter().find(|member| member.raft_id == id);
            member.map_or_else(|| id.to_string(), |member| member.name.clone())
        };
        let leader = match self.standing {
            Standing::Leads => Some(self.safe.name.clone()),
            Standing::Follows(id) => Some(name_of(id)),
            _ => None,
        };
        let statuses = match &self.phase {
            Phase::Member(groups) => groups.statuses(),
            _ => Vec::new(),
        };
        let left_out = |group| {
            let all = match &self.phase {
                Phase::Member(groups) => groups.left_out(group).collect(),
                _ => Vec::new(),
            };
            all.into_iter().map(|(id, why)| (name_of(id), why)).collect()
        };
        let groups = statuses.into_iter().map(|it| GroupRow {
            group: it.group,
            term: it.term,
            leader: it.leader.map(name_of),
            last: it.last,
            stored: it.stored,
            agreed: it.agreed,
            matched: it.matched.into_iter().map(|(id, number)| (name_of(id), number)).collect(),
            left_out: left_out(it.group),
        });
        ClusterStatus {
            cluster: membership.map(|it| it.cluster),
            own: self.safe.name.clone(),
            standing: self.standing.clone(),
            leader,
            nodes: nodes.collect(),
            groups: groups.collect(),
            repaired: match &self.phase {
                Phase::Member(groups) => groups.repaired(),
                _ => 0,
            },
            why: self.why_nobody_leads(),
        }
    }

    fn forming_status(&self) -> ClusterStatus {
        ClusterStatus {
            cluster: None,
            own: self.safe.name.clone(),
            standing: self.standing.clone(),
            leader: None,
            nodes: self.setup.listed.iter().map(|name| self.node_row(name, None, None)).collect(),
            groups: Vec::new(),
            repaired: 0,
            why: None,
        }
    }

    fn node_row(
        &self,
        name: &str,
        raft_id: Option<RaftId>,
        deciders: Option<&[RaftId]>,
    ) -> NodeRow {
        let linked = self.linked_named(name);
        let is_own = name == self.safe.name;
        let raft_id = raft_id
            .or_else(|| linked.map(|it| it.node.raft_id))
            .or_else(|| is_own.then_some(self.safe.raft_id));
        let decides = |id: RaftId| deciders.is_none_or(|it| it.contains(&id));
        let joins = raft_id.is_some_and(|id| !decides(id));
        let is_blank = self.safe.membership.is_none() && !is_own;
        let is_silent = linked.is_some_and(|it| self.is_silent(it));
        let why_not = linked.filter(|_| is_blank).and_then(|it| why_not(it, &self.setup.listed));
        let why_not = why_not.or_else(|| is_silent.then(|| SAYS_NOTHING.to_owned()));
        let status = if is_own {
            Some(self.own_status())
        } else {
            raft_id.and_then(|id| self.statuses.get(&id).cloned())
        };
        NodeRow {
            name: name.to_owned(),
            raft_id,
            joins,
            is_linked: is_own || linked.is_some(),
            is_running: is_own || linked.is_some() && !is_silent,
            encrypted: linked.is_some_and(|it| it.encrypted),
            why_not,
            clock_ahead_ms: linked.and_then(|it| self.clocks.difference(it.node.raft_id)),
            status,
        }
    }

    fn linked_named(&self, name: &str) -> Option<&Linked> {
        self.linked.values().find(|it| &*it.node.name == name)
    }

    fn present_standing(&self) -> Standing {
        let groups = match &self.phase {
            Phase::Member(groups) => groups,
            Phase::Blank => {
                if let Some(cluster) = self.linked.values().find_map(|it| it.cluster) {
                    return Standing::Joining(cluster);
                }
                let others = self.setup.listed.iter().filter(|name| **name != self.setup.name);
                let missing = others
                    .filter_map(|name| missing(name, self.linked_named(name), &self.setup.listed));
                return Standing::Forming { missing: missing.collect() };
            }
            _ => return Standing::Forming { missing: Vec::new() },
        };
        if groups.leads_all() && !self.must_restart {
            return Standing::Leads;
        }
        let own = self.safe.raft_id;
        match groups.first_leader().filter(|id| *id != own && self.linked.contains_key(id)) {
            Some(id) if self.statuses.get(&id).is_some_and(|it| it.leads) => Standing::Follows(id),
            _ => Standing::Waits,
        }
    }

    /// The disks of the other nodes that are there, as they told last, and of how many members in all.
    fn disks_of_others(&self) -> (Vec<(RaftId, NodeDisk)>, usize) {
        let deciders = self.deciders();
        let decides = |id: RaftId| deciders.as_ref().is_none_or(|it| it.contains(&id));
        let here = self.statuses.iter().filter(|(id, _)| self.linked.contains_key(id));
        let told = here.filter(|(id, _)| decides(**id));
        let told = told.map(|(id, status)| (*id, NodeDisk::of(&status.numbers))).collect();
        let count = match &self.safe.membership {
            Some(it) => it.members.iter().filter(|it| decides(it.raft_id)).count(),
            None => self.setup.listed.len(),
        };
        (told, count)
    }

    /// Once for all that came in a round: a status comes from each node each second.
    fn tell_room(&mut self) {
        if !std::mem::take(&mut self.has_disk_news) {
            return;
        }
        let (others, count) = self.disks_of_others();
        let own = NodeDisk::of(&self.setup.status.numbers);
        if let Phase::Member(groups) = &mut self.phase {
            let hung = others.iter().filter(|(_, disk)| disk.hung_lately()).map(|(id, _)| *id);
            groups.set_hung(own.hung_lately(), hung.collect());
        }
        let others: Vec<_> = others.into_iter().map(|(_, disk)| disk).collect();
        self.actions.room = Some(of_majority(own, &others, count));
    }

    /// Who begins to lead tells of which disks it knows that they are short, or hung: it may lead for one of them.
    fn tell_of_disks(&mut self) {
        if self.standing != Standing::Leads {
            return;
        }
        let deciders = self.deciders().unwrap_or_default();
        let told = self.statuses.iter().filter(|(id, _)| deciders.contains(id));
        let words = told.filter_map(|(id, status)| {
            NodeDisk::of(&status.numbers).at_beginning(&status.name, self.linked.contains_key(id))
        });
        self.actions.told.extend(words);
    }

    /// Whoever leads with a full or slow disk has another one lead, if a majority has room, or stores sooner; and who was asked to.
    fn give_way(&mut self) {
        let Phase::Member(groups) = &self.phase else { return };
        let leads = self.standing == Standing::Leads && !self.is_leaving && !self.must_restart;
        let own = NodeDisk::of(&self.setup.status.numbers);
        let (mut others, mut count) = (Vec::new(), 0);
        // Nobody asks for more where there is room, and this is looked at in every turn.
        if leads && own.is_bad() {
            let (disks, members) = self.disks_of_others();
            others.extend(disks.into_iter().map(|(id, disk)| (id, disk, groups.lag_of(id))));
            count = members;
        }
        let heir = self.disks.heir(leads, own, &others, count, self.now_ms);
        self.hands_over_until_ms.take_if(|until_ms| !leads || self.now_ms >= *until_ms);
        if self.hands_over_until_ms.is_some()
            && let Phase::Member(groups) = &mut self.phase
        {
            let linked = &self.linked;
            let heir = groups.next_heir(self.now_ms, |id| linked.contains_key(&id));
            groups.give_way(heir);
            return;
        }
        let name = heir.and_then(|id| Some(self.linked.get(&id)?.node.name.clone()));
        if let Phase::Member(groups) = &mut self.phase
            && groups.give_way(heir)
            && let Some(name) = name
        {
            let text = match (own.hangs(), own.is_short()) {
                (true, _) => "its disk does not end a write",
                (_, true) => "has little room on its disk",
                _ => "its disk is slow",
            };
            self.actions.told.push(format!(
                "this node leads, and {text}: {name} stores more, or sooner, and is to lead"
            ));
        }
    }

    fn own_status(&self) -> NodeStatus {
        let mut groups = match &self.phase {
            Phase::Member(groups) => groups.statuses(),
            _ => Vec::new(),
        };
        groups.truncate(GROUPS_TOLD);
        bound(&mut groups);
        let lacking = match &self.phase {
            Phase::Member(groups) => groups.lacking().count() as u64,
            _ => 0,
        };
        NodeStatus {
            name: self.safe.name.clone(),
            leads: self.standing == Standing::Leads,
            groups,
            listed: self.setup.listed.clone(),
            numbers: NodeNumbers { lacking, ..self.setup.status.numbers },
            ..self.setup.status.clone()
        }
    }

    fn send_status(&mut self, to: RaftId, status: &NodeStatus) {
        // First, so that it votes by it.
        self.tell_groups(to);
        self.actions.send.push((to, NodeLetter::Status(Box::new(status.clone()))));
    }

    fn tell_status(&mut self) {
        self.told_ms = self.now_ms;
        let status = self.own_status();
        for id in self.linked.keys().copied().collect::<Vec<_>>() {
            self.send_status(id, &status);
        }
    }

    /// Blank nodes that are members are told so; and those who told this one hear that it knows.
    fn tell_of_cluster(&mut self) {
        for id in self.linked.keys().copied().collect::<Vec<_>>() {
            self.tell_of_cluster_to(id);
        }
    }

    fn tell_of_cluster_to(&mut self, id: RaftId) {
        let (Some(membership), Some(linked)) = (&self.safe.membership, self.linked.get(&id)) else {
            return;
        };
        let is_member = membership.member(id).is_some();
        if !is_member || linked.cluster.is_some() || !matches!(self.phase, Phase::Member(_)) {
            return;
        }
        let cluster = membership.cluster;
        let letter = match membership.is_as_founded() {
            true => NodeLetter::Found(membership.founding()),
            false => NodeLetter::Joining(membership.joining()),
        };
        self.actions.send.push((id, letter));
        self.actions.send.push((id, NodeLetter::Founded { cluster }));
    }

    /// Founds the cluster, if that is for this node to do, and all are there.
    fn found(&mut self) {
        let is_first = self.setup.listed.first() == Some(&self.setup.name);
        let may = is_first && matches!(self.phase, Phase::Blank) && self.is_written_once;
        let mut others = self.setup.listed.iter().filter(|name| **name != self.setup.name);
        if !may
            || others
                .any(|name| missing(name, self.linked_named(name), &self.setup.listed).is_some())
        {
            return;
        }
        let own = (self.safe.raft_id, self.safe.name.clone());
        let named = |it: &Linked| (it.node.raft_id, it.node.name.to_string());
        let is_listed = |it: &&Linked| self.setup.listed.iter().any(|name| **name == *it.node.name);
        let members = self.linked.values().filter(is_listed).map(named);
        let founding = Founding {
            cluster: self.setup.drawn.1,
            members: std::iter::once(own).chain(members).collect(),
            shards: self.setup.shards,
        };
        self.begin(Membership::of(&founding));
    }

    /// A member has told of the cluster.
    fn found_by(&mut self, from: RaftId, told: Membership) {
        let Some(linked) = self.linked.get(&from) else { return };
        let teller = linked.node.clone();
        if let Some(membership) = &self.safe.membership {
            let cluster = membership.cluster;
            if cluster == told.cluster {
                self.actions.send.push((from, NodeLetter::Founded { cluster }));
            } else {
                let (own, name) = (&self.safe.name, &teller.name);
                let theirs = told.cluster;
                self.warn(format!("{name} founds cluster {theirs}, and {own} is in {cluster}"));
            }
            return;
        }
        if !matches!(self.phase, Phase::Blank) || !self.is_written_once {
            return;
        }
        match refusal(&told, &self.safe, &self.setup.listed, &teller) {
            Some(why) => {
                let cluster = told.cluster;
                self.warn(format!("this node does not become a part of cluster {cluster}: {why}"));
            }
            None => self.begin(told),
        }
    }

    fn warn(&mut self, text: String) {
        if !self.warned.contains(&text) && self.warned.len() < 100 {
            self.actions.told.push(text.clone());
            self.warned.push(text);
        }
    }

    /// Becomes a member: first words, then the identity, then the rest. So a member without a word has lost it.
    fn begin(&mut self, membership: Membership) {
        let mut votes = match self.open_words() {
            Ok(votes) => votes,
            Err(why) => {
                self.failed = Some(why.to_string());
                return;
            }
        };
        let groups = u64::from(membership.shards).saturating_add(1);
        for group in 0..groups {
            let word = Word { term: BEGINNING.term, vote: None, mark: BEGINNING };
            votes.keep(group, word, Ticket(0));
        }
        votes.sync();
        self.phase = Phase::Words(membership, votes, groups as usize);
        self.first_words();
    }

    /// The disk of words did something, and may have all of the first ones.
    fn first_words(&mut self) {
        let Phase::Words(_, votes, left) = &mut self.phase else { return };
        match votes.collect() {
            Ok(kept) => *left = left.saturating_sub(kept.len()),
            Err(why) => {
                self.failed = Some(OpenError::Words(why).to_string());
                return;
            }
        }
        if *left > 0 {
            return;
        }
        let words = std::mem::replace(&mut self.phase, Phase::Failed);
        if let Phase::Words(membership, votes, _) = words {
            self.identity.membership = Some(membership);
            self.is_changed = true;
            self.phase = Phase::Written(votes);
        }
    }

    /// A member was started so often.
    fn hear_start(&mut self, id: RaftId, start: u64) {
        let Some(membership) = &mut self.identity.membership else { return };
        let member = membership.members.iter_mut().find(|it| it.raft_id == id);
        if let Some(member) = member.filter(|it| it.start < start) {
            member.start = start;
            self.is_changed = true;
        }
    }

    fn open_words(&mut self) -> Result<Votes<D>, OpenError> {
        let owner = DiskOwner::Words;
        let disk =
            (self.setup.open_disk)(owner).map_err(|why| OpenError::Directory { owner, why })?;
        Votes::open(disk, MemberId(self.identity.raft_id.0)).map_err(OpenError::Words)
    }

    fn open_groups(&mut self, votes: Votes<D>) -> Result<(), OpenError> {
        let Some(membership) = &self.identity.membership else { return Ok(()) };
        let id = MemberId(self.identity.raft_id.0);
        let voters: Vec<_> = membership.founders.iter().map(|id| MemberId(id.0)).collect();
        let point = Point { at: BEGINNING, members: Members::of(&voters) };
        let mut members = Vec::new();
        for group in 0..=u64::from(membership.shards) {
            let owner = DiskOwner::Group(group);
            let disk =
                (self.setup.open_disk)(owner).map_err(|why| OpenError::Directory { owner, why })?;
            let options = (self.setup.options)(group, membership.shards);
            // One seed for all groups: who stands first in one stands first in all, and there is less to transfer.
            let opened = Member::open(
                id,
                self.setup.settings,
                self.setup.seed,
                votes.word(group),
                disk,
                options,
                point.clone(),
            );
            let (mut member, report) = opened.map_err(|why| OpenError::Group { group, why })?;
            let heard = self.setup.heard.get(group as usize).copied().unwrap_or_default();
            member.remember(heard, self.setup.is_copy);
            self.reports.push((group, report));
            members.push(member);
        }
        let mut groups = Groups::new(id, votes, members);
        if self.is_leaving {
            groups.leave();
        }
        self.phase = Phase::Member(Box::new(groups));
        // Its own disk may be one that hung lately.
        self.has_disk_news = true;
        self.look_whether_sure();
        Ok(())
    }
}
