//! Which nodes of sessions are here, and how far the node that leads is: who is taken in, who is waited for, who is to hear what.
//!
//! ```text
//!   Gathers --gathered()--> Fills --begins()--> Begins --leads()--> Leads      ends(), from each: IsOver
//!   whoever comes           all are told       nobody comes        each that has the names is told that the
//!   brings its              the names          who attaches        shards hear; who goes then was heard, and
//!   exclusive queues                                               what it had is given to others
//! ```
//!
//! The rules are here, for whoever drives the shards and the owner of the names: the program with its threads, and the simulators.
//! See the invariants 1, 3, 4 and 6 of `docs/decisions/0068-sessions-on-the-node-of-their-client.md`.

use std::collections::{BTreeMap, BTreeSet};

use leveret_broker::Shard;
use leveret_broker::command::CommandStream;
use leveret_broker::message::{ConnectionId, NodeId, Outbox, SessionsHello};
use leveret_broker::meta::{AwaitedProcess, TermNote};
use leveret_broker::stream::StreamId;
use leveret_log::Log;
use leveret_queue::Offset;
use leveret_topology::Homes;

use super::{HeldTurns, RemoteNode, node_of};

/// How far the node that leads is: further from one to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Members are waited for: nobody is told names, as exclusive queues of others are not among them.
    Gathers,
    /// The shards are being filled.
    Fills,
    /// They are filled, and their terms begin: nobody is waited for who is not here.
    Begins,
    /// They have turns.
    Leads,
    /// Nobody hears of other nodes' sessions any more.
    IsOver,
}

/// Why a node is not taken in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Its sessions are over, and it is [told so](leveret_broker::message::FromLeader::Over).
    Over(String),
    /// It may come again.
    NotNow(String),
}

/// Whose streams and sessions count in the terms that begin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Nodes whose sessions are to attach.
    pub attaching: Vec<NodeId>,
    /// Of these, those that missed a term, and where that one began in each shard.
    missed: Vec<(NodeId, Vec<Offset>)>,
    /// Those that are [noted](Presence::notes) as awaited, and went: their end [is to be noted](leveret_broker::Meta::note_over).
    pub over: Vec<CommandStream>,
    /// All that are here.
    processes: Vec<CommandStream>,
    /// Connections whose exclusive queues were brought by a node that is gone: they are to be told to be
    /// [over](Outbox::disconnected).
    pub left: Vec<ConnectionId>,
}

/// A node is here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Came {
    /// The names are to be told it now, under this number. Else they are once all are [here](Presence::gathered).
    pub tells: Option<u64>,
    /// As [`Counted::left`], of an earlier process of it.
    pub left: Vec<ConnectionId>,
}

/// A node is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Went {
    /// The shards are in their terms, and [`Shard::node_is_gone`] is to be said to each, before what the node
    /// [leaves](RemoteNode::gone) is posted.
    pub leads: bool,
    /// Its sessions may act until then, in ms: the presence is to be [looked at](Presence::look) then.
    pub acts_until_ms: Option<u64>,
    /// Another leader would take in this process: its end [is to be noted](leveret_broker::Meta::note_over).
    pub over: Option<CommandStream>,
    /// As [`Counted::left`].
    pub left: Vec<ConnectionId>,
}

impl Counted {
    /// The shard with this index begins its term. To be called before its first turn.
    pub fn begin<L: Log>(&self, index: usize, term: u64, shard: &mut Shard<L>) {
        shard.keep_streams(|StreamId { node, start, .. }| {
            self.commands(CommandStream { node, start })
        });
        shard.succeed(term, &self.attaching);
        for (node, begins_at) in &self.missed {
            begins_at.get(index).into_iter().for_each(|it| shard.missed_a_term(*node, *it));
        }
    }

    /// Whether a stream of commands stays: for [`Meta::keep_commands`](leveret_broker::Meta::keep_commands).
    pub fn commands(&self, stream: CommandStream) -> bool {
        self.processes.contains(&stream)
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct Presence {
    homes: Homes,
    /// In which this node leads the names.
    term: u64,
    /// Who led last.
    last: Option<TermNote>,
    /// Who is noted as awaited in this term.
    noted: Option<Vec<AwaitedProcess>>,
    stage: Stage,
    turns: HeldTurns,
    here: BTreeMap<NodeId, Here>,
    /// Members that called and were refused, by Raft id: they are not waited for.
    refused: BTreeSet<u64>,
    /// Nodes that went while the terms of shards began.
    gone: Vec<CommandStream>,
    /// What is there of nodes that went before, and may come again: Raft id and start, and whose exclusive queues they brought.
    left: BTreeMap<NodeId, ((u64, u32), Vec<ConnectionId>)>,
    /// The last start of each member that was told that the shards hear, by Raft id: that connection is the only one of that start.
    starts: BTreeMap<u64, u32>,
}

#[derive(Clone, Copy, Debug)]
struct Here {
    raft_id: u64,
    process: CommandStream,
    /// It has sessions of earlier leaders, the last of whom told it in this term that it is heard.
    attaches: Option<u64>,
}

impl Presence {
    /// Of a node that leads the names in this term: nobody is here.
    pub fn new(homes: Homes, term: u64) -> Self {
        Self {
            homes,
            term,
            last: None,
            noted: None,
            stage: Stage::Gathers,
            turns: HeldTurns::default(),
            here: BTreeMap::new(),
            refused: BTreeSet::new(),
            gone: Vec::new(),
            left: BTreeMap::new(),
            starts: BTreeMap::new(),
        }
    }

    /// The log of names has this note of who led last. To be told before anybody comes.
    pub fn found(&mut self, last: Option<TermNote>) {
        self.last = last;
    }

    /// How far this node is.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Whether a node may come in, by what it says of itself. If [an earlier connection](Self::is_here) of it is there, that is to
    /// [go](Self::goes) before it [comes](Self::comes). Nobody waits for one that was refused.
    ///
    /// # Errors
    ///
    /// Why it is not.
    pub fn admit(&mut self, hello: &SessionsHello) -> Result<RemoteNode, Refused> {
        let admitted = self.look_at(hello);
        if admitted.is_err() {
            self.refused.insert(hello.raft_id);
        }
        admitted
    }

    fn look_at(&self, hello: &SessionsHello) -> Result<RemoteNode, Refused> {
        let over = |why: &str| Err(Refused::Over(why.to_owned()));
        if hello.attaches.is_none() && !hello.queues.is_empty() {
            let why = "it brings exclusive queues, and no leader before has heard it".to_owned();
            return Err(Refused::NotNow(why));
        }
        let new = RemoteNode::new(hello, self.homes).map_err(Refused::Over)?;
        match self.stage {
            Stage::IsOver => return Err(Refused::NotNow("this node leads no more".to_owned())),
            Stage::Gathers | Stage::Fills => {}
            Stage::Begins | Stage::Leads if new.attaches() => {
                return over(
                    "the node that leads did not wait for the sessions of this one any more: what they held is given to others",
                );
            }
            Stage::Begins | Stage::Leads => {}
        }
        match new.was_known(self.term, self.last.as_ref()) {
            Ok(true) => {}
            Ok(false) => {
                return over(
                    "a node that led before did not hear this one, or not any more: what its sessions held is given to others",
                );
            }
            Err(why) => return Err(Refused::NotNow(why)),
        }
        if self.starts.get(&hello.raft_id).is_some_and(|last| hello.start <= *last) {
            return over(
                "the connection to the node that leads was lost, and the sessions of this one are over there",
            );
        }
        match self.here.get(&new.node()) {
            Some(other) if other.raft_id != hello.raft_id => Err(Refused::Over(format!(
                "members {:016x} and {:016x} of the cluster have the same number {}: only one of them can have sessions \
                 of its own. Set cluster.sessions = relayed on the other one, or begin it anew with an empty directory",
                other.raft_id,
                hello.raft_id,
                new.node()
            ))),
            _ => Ok(new),
        }
    }

    /// Whether a node is here.
    pub fn is_here(&self, node: NodeId) -> bool {
        self.here.contains_key(&node)
    }

    /// One that was [admitted](Self::admit), and is not here, comes, and what it brings is among the names. What is answered waits for it
    /// from now on.
    pub fn comes(&mut self, remote: &RemoteNode) -> Came {
        let (raft_id, process) = (remote.raft_id(), remote.commands());
        let here = Here { raft_id, process, attaches: remote.heard() };
        self.here.insert(remote.node(), here);
        self.turns.comes(remote.node());
        let tells = (self.stage != Stage::Gathers).then(|| self.turns.number());
        // The same process brought the same again.
        let own = (remote.raft_id(), remote.start());
        let left = self.left.remove(&remote.node()).filter(|(process, _)| *process != own);
        Came { tells, left: left.map(|(_, left)| left).unwrap_or_default() }
    }

    /// All are here that are waited for. All names are to be told to those that are returned, under this number.
    pub fn gathered(&mut self) -> (u64, Vec<NodeId>) {
        let told = match self.stage {
            Stage::Gathers => self.here.keys().copied().collect(),
            _ => Vec::new(),
        };
        self.stage = self.stage.max(Stage::Fills);
        (self.turns.number(), told)
    }

    /// A member was refused by somebody else: nobody waits for it.
    pub fn refuse(&mut self, raft_id: u64) {
        self.refused.insert(raft_id);
    }

    /// Whether all of these members, by Raft id, have called.
    pub fn have_called(&self, members: impl IntoIterator<Item = u64>) -> bool {
        let is_here = |id: &u64| self.here.values().any(|here| here.raft_id == *id);
        members.into_iter().all(|id| self.refused.contains(&id) || is_here(&id))
    }

    /// The queues are filled, and shards end there: those processes are to be [noted](leveret_broker::Meta::note_term) before this node
    /// [begins](Self::begins). None if all who are here are noted.
    pub fn notes(&mut self, ends: &[Offset]) -> Option<Vec<AwaitedProcess>> {
        let attaching = self.here.values().filter(|here| here.attaches.is_some());
        let new = attaching.filter(|here| !self.is_noted(here.process));
        let new: Vec<_> = new.map(|here| self.awaited(here, ends)).collect();
        if self.noted.is_some() && new.is_empty() {
            return None;
        }
        let noted = self.noted.get_or_insert_default();
        noted.extend(new);
        Some(noted.clone())
    }

    fn awaited(&self, here: &Here, ends: &[Offset]) -> AwaitedProcess {
        let missed = self.missed(here).unwrap_or_default();
        let missed = missed.iter().copied().chain(std::iter::repeat(Offset::new(u64::MAX)));
        let below = ends.iter().zip(missed).map(|(end, missed)| missed.min(*end)).collect();
        AwaitedProcess { process: here.process, below }
    }

    /// Where the terms of shards began that a node missed: who led last waited for it, and it was not told that it was heard.
    fn missed(&self, here: &Here) -> Option<&[Offset]> {
        let last = self.last.as_ref()?;
        here.attaches.filter(|heard| *heard < last.term)?;
        Some(&last.awaited(here.process)?.below)
    }

    fn is_noted(&self, process: CommandStream) -> bool {
        self.noted.iter().flatten().any(|it| it.process == process)
    }

    /// The queues are filled, and the shards begin their terms with those who are here: nobody else attaches.
    pub fn begins(&mut self) -> Counted {
        self.stage = self.stage.max(Stage::Begins);
        let attaching = self.here.iter().filter(|(_, here)| here.attaches.is_some());
        let missed =
            self.here.iter().filter_map(|(node, here)| Some((*node, self.missed(here)?.to_vec())));
        let processes: Vec<_> = self.here.values().map(|here| here.process).collect();
        let noted = self.noted.iter().flatten().map(|it| it.process);
        Counted {
            attaching: attaching.map(|(node, _)| *node).collect(),
            missed: missed.collect(),
            over: noted.filter(|it| !processes.contains(it)).collect(),
            processes,
            left: std::mem::take(&mut self.left).into_values().flat_map(|(_, left)| left).collect(),
        }
    }

    /// The shards are in their terms. [`Shard::node_is_gone`](leveret_broker::Shard::node_is_gone) is to be said to each one of the processes
    /// that are returned: they went meanwhile. Those that [are to hear](Self::is_to_hear) it are to be told.
    pub fn leads(&mut self) -> Vec<CommandStream> {
        if self.stage == Stage::Begins {
            self.stage = Stage::Leads;
        }
        std::mem::take(&mut self.gone)
    }

    /// Whether a node may be told that the shards hear: they do, and it has the names.
    pub fn is_to_hear(&self, node: NodeId) -> bool {
        self.stage == Stage::Leads && self.turns.has_names(node)
    }

    /// A node is [told](RemoteNode::begins) that the shards hear: this connection is the only one of its start.
    pub fn hears(&mut self, remote: &RemoteNode) {
        self.starts.insert(remote.raft_id(), remote.start());
    }

    /// The connection of a node has ended. What waited for it to have names goes to `out`, now or, if `is_over` is not known, once its
    /// sessions [act](RemoteNode::acts_until_ms) no more. `is_over`: it has closed the connection itself, or its process has ended.
    pub fn goes(&mut self, remote: &RemoteNode, is_over: bool, out: &mut Outbox) -> Went {
        let (node, process) = (remote.node(), remote.commands());
        self.here.remove(&node);
        let acts_until_ms = remote.acts_until_ms().filter(|_| !is_over);
        self.turns.goes(node, acts_until_ms, out);
        // Of one that was heard all connections are told to be over.
        let mut left: Vec<_> = remote.owners().collect();
        match self.stage {
            Stage::Gathers | Stage::Fills if !left.is_empty() => {
                let own = (remote.raft_id(), remote.start());
                self.left.insert(node, (own, std::mem::take(&mut left)));
            }
            Stage::Begins => self.gone.push(process),
            _ => {}
        }
        let is_taken_in = remote.is_heard() || self.is_noted(process);
        let has_begun = matches!(self.stage, Stage::Begins | Stage::Leads);
        let over = (has_begun && is_taken_in).then_some(process);
        Went { leads: self.stage == Stage::Leads, acts_until_ms, over, left }
    }

    /// This node leads no more: nobody is here, and nobody is to be told that anybody's sessions are over. What waited goes to `out`.
    pub fn ends(&mut self, out: &mut Outbox) {
        self.stage = Stage::IsOver;
        self.here.clear();
        self.turns.end(out);
    }

    /// These members, by Raft id if that is known, may act by names of the leader before, each for so many ms after the lease of that one:
    /// what is answered waits for that, or for them to [come](Self::comes). To be told before any turn of the owner of the names.
    pub fn are_away(&mut self, members: impl IntoIterator<Item = (Option<u64>, u64)>) {
        for (raft_id, for_ms) in members {
            let is_here = self.here.values().any(|here| Some(here.raft_id) == raft_id);
            if !is_here {
                self.turns.is_away(raft_id.map(node_of), for_ms);
            }
        }
    }

    /// The lease of the leader before is over then, in ms. Returns until when who [is away](Self::are_away) may act, if anybody may.
    pub fn earlier_lease_ends(&mut self, at_ms: u64) -> Option<u64> {
        self.turns.earlier_lease_ends(at_ms)
    }

    /// It is `now_ms`. What waited for nodes that act no more goes to `out`.
    pub fn look(&mut self, now_ms: u64, out: &mut Outbox) {
        self.turns.look(now_ms, out);
    }

    /// Turns whose letters wait for names.
    pub fn held(&self) -> usize {
        self.turns.len()
    }

    /// A turn of the owner of the names has made a batch of changes: all that are here are to be told it, under this number.
    pub fn changed(&mut self) -> u64 {
        self.turns.changed()
    }

    /// What the same turn wrote goes to `out` once all nodes have the names: see [`HeldTurns::hold`].
    pub fn hold(&mut self, turn: Outbox, out: &mut Outbox) {
        self.turns.hold(turn, out);
    }

    /// A node has the names up to this batch. What waited for that goes to `out`. Returns whether it is to be told now that the shards
    /// hear.
    ///
    /// # Errors
    ///
    /// A text, if it says what cannot be.
    pub fn taken(&mut self, node: NodeId, number: u64, out: &mut Outbox) -> Result<bool, String> {
        Ok(self.turns.taken(node, number, out)? && self.stage == Stage::Leads)
    }
}

#[cfg(test)]
mod tests {
    use leveret_broker::message::{Brought, LeaderTerms, Reply, ReplyTo};

    use super::*;

    fn hello(raft_id: u64, start: u32, attaches: bool) -> SessionsHello {
        let attaches = attaches.then_some(3);
        let connections = vec![node_of(raft_id).connection(1)];
        SessionsHello { raft_id, start, attaches, connections, queues: Vec::new() }
    }

    fn brings(start: u32) -> SessionsHello {
        let key = leveret_topology::EntityKey::Ids;
        let change = leveret_topology::Change { key, is_stored: false, record: None };
        let queues = vec![Brought { change, unbinds: Vec::new() }];
        SessionsHello { queues, ..hello(5, start, true) }
    }

    fn fresh() -> Presence {
        Presence::new(Homes::among(2), 9)
    }

    fn come(presence: &mut Presence, hello: &SessionsHello) -> RemoteNode {
        let remote = presence.admit(hello).expect("it may come");
        presence.comes(&remote);
        remote
    }

    fn is_over<T>(it: Result<T, Refused>) -> bool {
        matches!(it, Err(Refused::Over(_)))
    }

    #[test]
    fn who_comes_too_late_or_twice_is_refused() {
        let mut presence = fresh();
        let mut remote = come(&mut presence, &hello(5, 2, true));
        assert_eq!(presence.gathered(), (1, vec![remote.node()]));
        assert_eq!(presence.gathered(), (1, vec![]), "they are told once");
        let node = remote.node();
        assert!(is_over(presence.admit(&hello(5 + (1 << 24) - 2, 0, false))), "its number is");
        let of_another = SessionsHello { raft_id: 8, ..hello(5, 2, false) };
        assert!(is_over(presence.admit(&of_another)), "it has sessions of another node");
        let counted = presence.begins();
        assert_eq!(counted.attaching, [node]);
        let stream = |start| CommandStream { node, start };
        assert!(counted.commands(stream(2)) && !counted.commands(stream(1)));
        assert!(is_over(presence.admit(&hello(6, 0, true))), "nobody waits");
        assert!(presence.admit(&hello(6, 0, false)).is_ok(), "nothing was to be waited for");
        let mut out = Outbox::default();
        assert!(!presence.is_to_hear(node), "it has no names");
        assert_eq!(presence.taken(node, 1, &mut out), Ok(false), "shards have no turns yet");
        assert!(presence.leads().is_empty() && presence.is_to_hear(node));
        let terms = LeaderTerms { names: 9, shards: Vec::new() };
        assert!(remote.begins(None, terms, Default::default()));
        presence.hears(&remote);
        assert!(presence.goes(&remote, true, &mut out).leads && !presence.is_here(node));
        assert!(is_over(presence.admit(&hello(5, 2, false))), "its sessions are over");
        assert!(presence.admit(&hello(5, 3, false)).is_ok(), "another process");
    }

    #[test]
    fn who_calls_again_unheard_attaches() {
        let mut presence = fresh();
        let remote = come(&mut presence, &hello(5, 2, true));
        let went = presence.goes(&remote, true, &mut Outbox::default());
        let nothing = Went { leads: false, acts_until_ms: None, over: None, left: vec![] };
        assert_eq!(went, nothing, "shards know of nobody");
        let alien = SessionsHello { attaches: None, ..brings(2) };
        assert!(matches!(presence.admit(&alien), Err(Refused::NotNow(_))));
        come(&mut presence, &hello(5, 2, true));
        assert_eq!(presence.begins().attaching, [remote.node()]);
    }

    /// What a node brings stays for its process until nobody is waited for.
    #[test]
    fn what_is_brought_goes_with_whoever_brought_it() {
        let owner = node_of(5).connection(1);
        let mut out = Outbox::default();
        let mut presence = fresh();
        let one = presence.admit(&brings(2)).expect("it may come");
        assert_eq!(presence.comes(&one), Came { tells: None, left: vec![] });
        assert_eq!(presence.goes(&one, true, &mut out).left, [], "it may come again");
        let again = presence.admit(&brings(2)).expect("it may come");
        assert_eq!(presence.comes(&again).left, []);
        presence.goes(&again, true, &mut out);
        // Its session is over, and its end not heard.
        let rest = presence.admit(&hello(5, 2, true)).expect("it may come");
        assert_eq!(presence.comes(&rest).left, []);
        presence.goes(&rest, true, &mut out);
        let other = presence.admit(&brings(3)).expect("another process");
        assert_eq!(presence.comes(&other).left, [owner]);
        presence.gathered();
        assert_eq!(presence.goes(&other, true, &mut out).left, []);
        assert_eq!(presence.begins().left, [owner]);

        let mut presence = fresh();
        presence.gathered();
        let late = presence.admit(&brings(2)).expect("it may come");
        assert_eq!(presence.comes(&late), Came { tells: Some(1), left: vec![] });
        assert_eq!(presence.begins().left, []);
        assert_eq!(presence.goes(&late, true, &mut out).left, [owner], "nobody waits for it");
    }

    #[test]
    fn who_goes_while_terms_begin_is_told_of_behind_that() {
        let mut presence = fresh();
        let remote = come(&mut presence, &hello(5, 2, true));
        assert_eq!(presence.begins().attaching, [remote.node()]);
        assert!(!presence.goes(&remote, true, &mut Outbox::default()).leads);
        assert_eq!(presence.leads(), [remote.commands()]);
        assert!(presence.leads().is_empty());
    }

    /// Of one that has closed its connection nothing is waited for; of one that was cut off its lease.
    #[test]
    fn the_lease_of_who_is_cut_off_is_waited_for() {
        for (is_over, is_told) in [(true, true), (false, false)] {
            let (mut presence, mut out) = (fresh(), Outbox::default());
            let mut remote = come(&mut presence, &hello(5, 2, false));
            presence.gathered();
            presence.taken(remote.node(), 1, &mut out).unwrap();
            remote.asks_for_lease(1, 1_000);
            assert!(remote.answer_lease().is_none(), "the shards do not hear it");
            let shards = Vec::new();
            remote.begins(None, LeaderTerms { names: 9, shards }, Default::default());
            assert!(remote.answer_lease().is_some() && remote.answer_lease().is_none());
            presence.goes(&remote, is_over, &mut out);
            presence.changed();
            let mut turn = Outbox::default();
            let connection = NodeId::ALONE.connection(1);
            turn.reply(ReplyTo { connection, channel: 1 }, Reply::Done);
            presence.hold(turn, &mut out);
            presence.look(1_000 + crate::remote::KEPT_MS - 1, &mut out);
            assert_eq!(out.sessions.len(), usize::from(is_told));
            presence.look(1_000 + crate::remote::KEPT_MS, &mut out);
            assert_eq!(out.sessions.len(), 1);
        }
    }

    #[test]
    fn nobody_waits_for_who_was_refused() {
        let mut presence = fresh();
        come(&mut presence, &hello(5, 2, true));
        assert!(presence.have_called([5]) && !presence.have_called([5, 6]));
        presence.refuse(6);
        assert!(presence.have_called([5, 6]) && !presence.have_called([7]));
        let alien = SessionsHello { raft_id: 7, ..hello(5, 2, false) };
        assert!(is_over(presence.admit(&alien)));
        assert!(presence.have_called([5, 6, 7]));
    }

    #[test]
    fn whom_the_leader_before_did_not_tell_that_it_hears_is_refused() {
        let is_refused = |term, over: &[u32], attaches| {
            let process = |&start: &u32| CommandStream { node: node_of(5), start };
            let over = over.iter().map(process).collect();
            let note = TermNote { term, over, awaited: Vec::new() };
            let mut presence = fresh();
            presence.found(Some(note));
            is_over(presence.admit(&hello(5, 2, attaches)))
        };
        assert!(is_refused(4, &[], true));
        assert!(!is_refused(4, &[], false), "it has nothing of an earlier leader");
        assert!(!is_refused(3, &[], true) && !is_refused(3, &[1], true));
        assert!(is_refused(3, &[2], true), "its sessions are over");
        let mut presence = Presence::new(Homes::among(2), 2);
        let later = presence.admit(&hello(5, 2, true));
        assert!(matches!(later, Err(Refused::NotNow(_))), "another one leads since: {later:?}");
    }

    /// Whom a leader waited for counts at the next one, though it did not hear of that; not if it went, and others have what it had.
    #[test]
    fn whom_the_leader_before_waited_for_is_taken_in() {
        let offsets = |all: [u64; 2]| all.map(Offset::new).to_vec();
        let mut presence = fresh();
        let gone = come(&mut presence, &hello(4, 2, true));
        let stays = come(&mut presence, &hello(5, 2, true));
        come(&mut presence, &hello(6, 0, false));
        let noted = presence.notes(&offsets([7, 9])).expect("nobody is noted");
        let below = offsets([7, 9]);
        let of = |remote: &RemoteNode| AwaitedProcess {
            process: remote.commands(),
            below: below.clone(),
        };
        assert_eq!(noted, [of(&gone), of(&stays)]);
        assert_eq!(presence.notes(&below), None);
        let mut out = Outbox::default();
        assert_eq!(presence.goes(&gone, true, &mut out).over, None, "it may come again");
        let late = come(&mut presence, &hello(7, 1, true));
        assert_eq!(presence.notes(&below).map(|it| it.len()), Some(3));
        let counted = presence.begins();
        assert_eq!((&counted.over[..], &counted.missed[..]), (&[gone.commands()][..], &[][..]));
        assert_eq!(presence.goes(&late, true, &mut out).over, Some(late.commands()));
        presence.leads();
        assert_eq!(presence.goes(&stays, true, &mut out).over, Some(stays.commands()), "unheard");

        // Others have the offsets from there on, until it hears of a leader.
        let mut next = Presence::new(Homes::among(2), 10);
        next.found(Some(TermNote { term: 9, over: vec![], awaited: vec![of(&stays)] }));
        assert!(is_over(next.admit(&hello(4, 2, true))));
        come(&mut next, &hello(5, 2, true));
        let heard = SessionsHello { attaches: Some(9), ..hello(8, 2, true) };
        come(&mut next, &heard);
        let noted = next.notes(&offsets([8, 8])).expect("a term without a note");
        let below: Vec<_> = noted.into_iter().map(|it| it.below).collect();
        assert_eq!(below, [offsets([7, 8]), offsets([8, 8])]);
        assert_eq!(next.begins().missed, [(stays.node(), offsets([7, 9]))]);
    }

    #[test]
    fn nobody_is_here_once_it_leads_no_more() {
        let mut presence = fresh();
        let remote = come(&mut presence, &hello(5, 2, false));
        let node = remote.node();
        let (mut turn, mut out) = (Outbox::default(), Outbox::default());
        let reply = ReplyTo { connection: node.connection(1), channel: 1 };
        turn.reply(reply, Reply::Done);
        presence.hold(turn, &mut out);
        assert!(out.is_empty(), "it has no names");
        presence.ends(&mut out);
        assert!(!out.is_empty() && !presence.is_here(node));
        assert!(!presence.goes(&remote, true, &mut out).leads && presence.stage() == Stage::IsOver);
        assert!(matches!(presence.admit(&hello(5, 3, false)), Err(Refused::NotNow(_))));
    }
}
