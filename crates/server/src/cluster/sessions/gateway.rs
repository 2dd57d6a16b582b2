//! The end at the node that leads: what its broker has in the place of the sessions of other nodes.
//!
//! ```text
//!   a node's letters  ->  RemoteNode: are they its own?  ->  inboxes of shards, of the owner of the names, of sessions
//!   turns of shards   ->  RemoteNode: a line             ->  the task of its connection
//!   turns of Meta     ->  HeldTurns: until all nodes have the names that they changed
//! ```
//!
//! *Locks.* The state of all (who is here, which turns wait), then the list of nodes, then a node. A turn that writes to sessions takes
//! the last two, for a run of letters. *Names:* a turn of Meta tells what it changed under its own locks, and a node that comes is told
//! all names under the same, or once all are here, so nothing is between the two. What waited goes on in a turn of Meta, as what later
//! turns write is behind it.
//!
//! See `docs/decisions/0068-sessions-on-the-node-of-their-client.md`.

use std::borrow::Cow;
use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_broker::Meta;
use leveret_broker::command::{Answered, CommandStream};
use leveret_broker::message::{
    ConnectionId, FromLeader, LeaderTerms, NodeId, Outbox, SessionsHello, ShardTerm, ToLeader,
    ToMeta, ToShard,
};
use leveret_broker::stream::{StreamClass, StreamNews};
use leveret_link::frame::Letter;
use leveret_link::letters::{read_to_leader, write_from_leader};
use leveret_log::{Log as _, Offset};
use leveret_node::Run;
use leveret_node::remote::{
    Came, Counted, KEPT_MS, NodeHeard, Presence, Refused, RemoteNode, Went, node_of,
};
use leveret_topology::{Change, GroupId, Homes, Topology, UseWatch, UsedBy};
use tokio::net::TcpStream;
use tokio::sync::mpsc::Receiver;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use self::refusals::Refusals;
use super::away::REPLIES_LOST;
use super::seen::Happened;
use super::wire::{self, End, Outgoing};
use crate::clock::boot_ms;
use crate::cluster::arrivals::Arrival;
use crate::cluster::links::LinkSocket;
use crate::cluster::view::{ClusterView, NodeView, Views};
use crate::locks::{Rank, Ranked, RankedRw};
use crate::node::{Node, ShardActor};
use crate::runner::with_runner;
use crate::storage::NodeLog;
use crate::threads::Threads;

mod looks;
mod refusals;
pub(super) mod uses;

/// How long whoever connects has to say who it is, from the last bytes that came of that: it may bring very many exclusive queues.
const HELLO: Duration = Duration::from_secs(2);

/// How long a node has to take a batch of names: so long answers wait for it.
///
/// It counts from when the last of the batch is written, and again whenever bytes of a letter come that was begun before: what the
/// node says stands behind that.
const NAMES: Duration = Duration::from_secs(2);

/// The same for all names, however many there are.
const ALL_NAMES: Duration = Duration::from_secs(10);

/// A batch of more changes may take as long.
const MANY_NAMES: usize = 4096;

/// The longest that a batch may take to be written, and the answer to come, if bytes move all the time.
const SLOW_NAMES: Duration = Duration::from_secs(30);

/// How long a leader waits for members that are linked and have not called, from its beginning.
const COMING: Duration = Duration::from_secs(1);

/// How long sessions have to attach: nobody is given anything meanwhile.
const ATTACHING: Duration = Duration::from_secs(30);

/// How often it is looked at whether this node has a lease, in its beginning.
const LEASE_LOOK: Duration = Duration::from_millis(20);

/// How often it is looked at whether they have.
const LOOK: Duration = Duration::from_secs(1);

/// All nodes of sessions that are connected.
#[derive(Debug)]
pub(crate) struct Gateway {
    homes: Homes,
    /// In which this node leads each group: first that of the names.
    terms: Vec<u64>,
    views: Option<Views>,
    began: Instant,
    state: Ranked<State>,
    nodes: RankedRw<Nodes>,
    /// A node has come.
    came: Notify,
    /// All are here that are waited for, and are told the names.
    are_here: watch::Sender<bool>,
    /// Connections whose hello has come in part.
    greeting: AtomicUsize,
    /// How far the log of names is durable, as its last turn knew.
    durable: watch::Sender<Offset>,
    /// Whose connections and channels the broker's own sessions have changed.
    watch: Arc<UseWatch>,
    /// Somebody's have.
    noted: Arc<Notify>,
}

type Nodes = HashMap<NodeId, Arc<RemoteEnd>, FixedState>;

#[derive(Debug)]
struct State {
    /// Who is here, and how far this node is.
    presence: Presence,
    /// Of turns that wait no more: Meta's next turn sends it.
    free: Outbox,
    /// Once the term is noted: how far the log of names is to be durable for all to agree upon that.
    noted_until: Offset,
    /// Once they do: with whom the shards begin.
    counted: Option<Counted>,
    uses: uses::Counted,
}

/// The connection of one node.
#[derive(Debug)]
struct RemoteEnd {
    /// From where.
    from: SocketAddr,
    /// Which nodes are heard.
    views: Option<Views>,
    sessions: Ranked<Sessions>,
    /// What is written next: of its task alone.
    line: Ranked<VecDeque<FromLeader>>,
    /// There is something to write.
    woken: Notify,
    /// Why it is to end.
    cut: OnceLock<String>,
    is_cut: Notify,
    /// It was told names, and had taken all before.
    names_told: Notify,
    /// One list at a time.
    listing: tokio::sync::Mutex<()>,
    /// The number of the last sample, if all of it was taken in. One at a time.
    sampling: tokio::sync::Mutex<Option<u64>>,
    /// The number of the last question. One at a time: a list, a sample and pages of one connection have a part in turn.
    asking: tokio::sync::Mutex<u64>,
    /// The node's name, once it has told it.
    name: OnceLock<String>,
    /// Its last answer to management did not come in time.
    is_silent: AtomicBool,
}

#[derive(Debug, Default)]
struct Sessions {
    /// None before hello, and when they are over.
    remote: Option<RemoteNode>,
    has_said_hello: bool,
    /// When bytes of its hello came last that is not whole.
    greets: Option<Instant>,
    /// Who said hello, by Raft id.
    caller: Option<u64>,
    /// Why it was refused.
    refused: Option<Box<str>>,
    /// Batches of names that it has not taken.
    untaken: VecDeque<Untaken>,
    /// For whom other nodes have more or fewer connections or channels than it was told.
    uses_to_tell: BTreeSet<UsedBy>,
    /// Management waits for the answer with this number.
    asked: Option<(u64, oneshot::Sender<Bytes>)>,
}

/// A batch of names that a node was told and has not taken.
#[derive(Clone, Copy, Debug)]
struct Untaken {
    number: u64,
    /// How long it may take.
    time: Duration,
    /// When it was told.
    told: Instant,
    /// When the last of it was written, or bytes of what its answer stands behind have come.
    moved: Option<Instant>,
}

impl Untaken {
    fn new(number: u64, time: Duration) -> Self {
        Self { number, time, told: Instant::now(), moved: None }
    }

    fn until(&self) -> Instant {
        let latest = self.told + SLOW_NAMES;
        self.moved.map_or(latest, |moved| latest.min(moved + self.time))
    }
}

impl Gateway {
    /// Of a node that leads each group in these terms, first that of the names: nobody is connected, and the shards are being filled.
    /// Members that are linked, by `views`, may come.
    pub(crate) fn new(homes: Homes, terms: Vec<u64>, views: Option<Views>) -> Self {
        let presence = Presence::new(homes, terms.first().copied().unwrap_or_default());
        let (free, uses) = (Outbox::default(), uses::Counted::new());
        let state = State { presence, free, noted_until: Offset::ZERO, counted: None, uses };
        let noted = Arc::new(Notify::new());
        let wakes = Arc::clone(&noted);
        Self {
            homes,
            terms,
            views,
            began: Instant::now(),
            state: Ranked::new(Rank::HeldTurns, state),
            nodes: RankedRw::new(Rank::RemoteNodes, HashMap::default()),
            came: Notify::new(),
            are_here: watch::Sender::new(false),
            greeting: AtomicUsize::new(0),
            durable: watch::Sender::new(Offset::ZERO),
            watch: Arc::new(UseWatch::new(move || wakes.notify_one())),
            noted,
        }
    }

    /// Before the first turn of the owner of the names.
    pub(crate) fn begin_names(&self, meta: &mut Meta<NodeLog>) {
        meta.begin_term(self.terms.first().copied().unwrap_or_default());
        meta.follow();
        let last = meta.last_term().cloned();
        let away = self.views.as_ref().map_or_else(Vec::new, |views| {
            may_act(&views.borrow(), last.as_ref().map(|last| last.term))
        });
        let mut state = self.state.lock();
        state.presence.found(last);
        state.presence.are_away(away);
    }

    /// What is answered waits for members that are not here, and may act by the names of the leader before, until they do so no more.
    pub(crate) async fn earlier_leases(&self, node: &Arc<Node>) {
        // A node without a lease, and so without others, has none to wait for.
        let ends_ms = || node.leading.as_ref().map_or(Some(0), |it| it.earlier_lease_ends());
        let ends_ms = loop {
            if let Some(ends_ms) = ends_ms() {
                break ends_ms;
            }
            sleep(LEASE_LOOK).await;
        };
        let until_ms = self.state.lock().presence.earlier_lease_ends(ends_ms);
        if let Some(until_ms) = until_ms {
            look_at(Arc::clone(node), ends_ms);
            look_at(Arc::clone(node), until_ms);
        }
    }

    /// Waits, not for long, until the members that are linked have called, and the sessions that were in this process before it led: each
    /// calls, whether it has sessions or not. The one that led before is none of them, though its link may be there: it stands still, or
    /// is about to end.
    async fn all_are_here(&self) {
        let Some(mut views) = self.views.clone() else { return };
        let all_came = async {
            loop {
                let awaited = awaited(&views.borrow_and_update());
                if self.state.lock().presence.have_called(awaited) {
                    return;
                }
                tokio::select! {
                    () = self.came.notified() => {}
                    // None follows: the process ends.
                    changed = views.changed() => if changed.is_err() { return },
                }
            }
        };
        let mut all_came = std::pin::pin!(all_came);
        // Who comes later is refused, if it has sessions of an earlier leader. One whose hello is long, and on its way, is here.
        let mut until = self.began + COMING;
        while timeout_at(until, &mut all_came).await.is_err()
            && self.greeting.load(Ordering::Relaxed) > 0
            && Instant::now() < self.began + ALL_NAMES
        {
            until = Instant::now() + COMING / 10;
        }
    }

    /// Once [all are here](Self::all_are_here), with the exclusive queues of their sessions, they are told the names.
    pub(crate) async fn gather(&self, node: &Arc<Node>) {
        self.all_are_here().await;
        {
            // No turn of Meta is between these names and the first batch behind them.
            let _meta = node.meta().state();
            let (number, told) = self.state.lock().presence.gathered();
            let names = if told.is_empty() { Vec::new() } else { node.topology().snapshot() };
            for id in told {
                let end = self.nodes.read().get(&id).cloned();
                end.into_iter().for_each(|end| end.tell_names(number, true, (&names).into()));
            }
        }
        self.are_here.send_replace(true);
    }

    /// Waits until [all are here](Self::gather): who publishes before finds no exclusive queue of another node.
    pub(crate) async fn has_gathered(&self) {
        // It is told as long as the gateway is there.
        let _ = self.are_here.subscribe().wait_for(|it| *it).await;
    }

    /// Notes the term and who is waited for, and waits until all agree upon that: the next leader takes in these, and whom this one tells
    /// that it hears. May be called again if it was dropped before.
    pub(crate) async fn note_term(&self, node: &Node) {
        let ends: Vec<_> = node.shards.iter().map(|shard| shard.actor.state().end()).collect();
        let mut durable = self.durable.subscribe();
        loop {
            let until = {
                // No hello is half done: what it brought would stay.
                let mut meta = node.meta().state();
                let mut names = node.topology_mut();
                let mut state = self.state.lock();
                if state.counted.is_some() {
                    return;
                }
                if let Some(awaited) = state.presence.notes(&ends) {
                    // One whose log has failed gives nothing out, and is about to end.
                    let until = meta.note_term(awaited, &mut names);
                    state.noted_until =
                        until.map_or(Offset::new(u64::MAX), Option::unwrap_or_default);
                }
                self.names_are_durable(&meta);
                let until = state.noted_until;
                let is_noted = meta.log().durable() >= until;
                let has_room = until == Offset::new(u64::MAX) || meta.log().last_room() > 0;
                if !is_noted && !has_room {
                    tracing::warn!("there is no room on the disk to note that this node leads");
                }
                if is_noted || !has_room {
                    state.counted = Some(state.presence.begins());
                    return;
                }
                until
            };
            // It is told as long as the gateway is there.
            let _ = timeout(LOOK, durable.wait_for(|durable| *durable >= until)).await;
        }
    }

    /// How far the log of names is after a turn.
    pub(crate) fn names_are_durable(&self, meta: &Meta<NodeLog>) {
        let now = meta.log().durable();
        self.durable.send_if_modified(|durable| std::mem::replace(durable, now) != now);
    }

    /// The queues are filled, and [the term is noted](Self::note_term): the shards begin their terms. To be called before their first
    /// turns.
    pub(crate) fn begin(&self, node: &Arc<Node>) {
        let (counted, here) = {
            let mut state = self.state.lock();
            let counted = state.counted.take();
            (counted.unwrap_or_else(|| state.presence.begins()), self.here())
        };
        for (index, (shard, term)) in node.shards.iter().zip(self.terms.iter().skip(1)).enumerate()
        {
            counted.begin(index, term << 32, &mut shard.actor.state());
        }
        {
            let mut meta = node.meta().state();
            meta.keep_commands(|stream| counted.commands(stream));
            let mut names = node.topology_mut();
            counted.over.iter().for_each(|process| note_over(*process, &mut meta, &mut names));
        }
        let mut out = Outbox::default();
        out.disconnected(counted.left);
        if !out.is_empty() {
            with_runner(node, |runner| runner.run_outbox(out));
        }
        let (gone, all) = {
            let mut state = self.state.lock();
            // One that came meanwhile, and took the names, was told nothing.
            (state.presence.leads(), self.here())
        };
        for process in gone {
            node.shards.iter().for_each(|shard| shard.actor.state().node_is_gone(process));
        }
        for end in &all {
            if end.node().is_some_and(|id| self.state.lock().presence.is_to_hear(id)) {
                self.tell_begins(node, end);
            }
        }
        if !counted.attaching.is_empty() {
            tracing::info!(nodes = counted.attaching.len(), "sessions of other nodes attach");
            tokio::spawn(self.attach_in_time(node, here));
        }
    }

    /// Ends nodes whose sessions have not attached in time.
    fn attach_in_time(
        &self,
        node: &Arc<Node>,
        ends: Vec<Arc<RemoteEnd>>,
    ) -> impl Future<Output = ()> + use<> {
        let (node, until) = (Arc::clone(node), Instant::now() + ATTACHING);
        async move {
            let is_attaching = || node.shards.iter().any(|it| it.actor.state().is_attaching());
            while is_attaching() {
                sleep(LOOK).await;
                if Instant::now() < until {
                    continue;
                }
                let mut awaited = BTreeSet::new();
                node.shards.iter().for_each(|it| awaited.extend(it.actor.state().awaited()));
                for end in &ends {
                    if end.node().is_some_and(|id| awaited.contains(&id)) {
                        end.cut(format!(
                            "sessions did not all attach within {} s",
                            ATTACHING.as_secs()
                        ));
                    }
                }
                return;
            }
        }
    }

    /// Nobody hears of other nodes' sessions any more, and their connections end: they are another leader's. What waited for their
    /// names waits no more.
    pub(crate) fn end(&self, node: &Arc<Node>) {
        {
            let mut state = self.state.lock();
            let State { presence, free, .. } = &mut *state;
            presence.ends(free);
            for (_, end) in self.nodes.write().drain() {
                {
                    let mut sessions = end.sessions.lock();
                    (sessions.remote, sessions.asked) = (None, None);
                }
                end.cut("this node leads no more".to_owned());
            }
        }
        with_runner(node, |runner| runner.run_meta(ToMeta::Continue));
    }

    /// A node says who it is.
    fn hello(
        &self,
        node: &Arc<Node>,
        end: &Arc<RemoteEnd>,
        hello: &SessionsHello,
    ) -> Result<(), Refused> {
        let mut out = Outbox::default();
        let (back, left) = loop {
            // No turn of Meta is between these names and the first batch behind them, and terms do not begin meanwhile.
            let mut meta = node.meta().state();
            let id = self.state.lock().presence.admit(hello)?.node();
            let earlier = self.nodes.read().get(&id).cloned();
            if let Some(earlier) = earlier {
                drop(meta);
                earlier.cut("the node has called again".to_owned());
                self.gone(node, &earlier, true);
                continue;
            }
            let back = self.bring_back(node, &mut meta, hello, &mut out)?;
            let has_gathered = *self.are_here.borrow();
            let names = has_gathered.then(|| node.topology().snapshot());
            let mut state = self.state.lock();
            // It may lead no more.
            let remote = state.presence.admit(hello)?;
            let Came { tells, left } = state.presence.comes(&remote);
            {
                let mut sessions = end.sessions.lock();
                sessions.has_said_hello = true;
                sessions.remote = Some(remote);
            }
            if let Some(number) = tells {
                let names = names.unwrap_or_else(|| node.topology().snapshot());
                end.tell_names(number, true, names.into());
            }
            self.nodes.write().insert(id, Arc::clone(end));
            break (back, left);
        };
        if back > 0 {
            tracing::info!(queues = back, peer = %end.from, "exclusive queues are made again for the sessions of a node");
        }
        out.disconnected(left);
        // Who follows hears of what came back in Meta's next turn.
        out.meta.push(ToMeta::Continue);
        with_runner(node, |runner| runner.run_outbox(out));
        self.came.notify_one();
        Ok(())
    }

    /// The exclusive queues of a node's sessions are there again. How many were made.
    fn bring_back(
        &self,
        node: &Node,
        meta: &mut Meta<NodeLog>,
        hello: &SessionsHello,
        out: &mut Outbox,
    ) -> Result<usize, Refused> {
        if hello.queues.is_empty() {
            return Ok(0);
        }
        let own: BTreeSet<_> = hello.connections.iter().collect();
        let mut names = node.topology_mut();
        let process = CommandStream { node: node_of(hello.raft_id), start: hello.start };
        let is_own = |id| own.contains(&id);
        let back = meta.bring_back(process, &hello.queues, is_own, &mut names, out);
        node.count_names(&names);
        back.map_err(|error| Refused::NotNow(error.to_string()))
    }

    /// A member was refused: nobody waits for it.
    fn is_refused(&self, raft_id: u64) {
        self.state.lock().presence.refuse(raft_id);
        self.came.notify_one();
    }

    /// A node has names up to this batch.
    fn names_taken(&self, node: &Arc<Node>, end: &RemoteEnd, number: u64) -> Result<(), String> {
        let begins = {
            let mut state = self.state.lock();
            let mut sessions = end.sessions.lock();
            let Some(id) = sessions.remote.as_ref().map(RemoteNode::node) else { return Ok(()) };
            sessions.untaken.retain(|untaken| untaken.number > number);
            let State { presence, free, .. } = &mut *state;
            presence.taken(id, number, free)?
        };
        if begins {
            self.tell_begins(node, end);
        }
        Ok(())
    }

    /// The shards hear a node from now on.
    fn tell_begins(&self, node: &Node, end: &RemoteEnd) {
        let who = |sessions: &Sessions| {
            let remote = sessions.remote.as_ref()?;
            Some((remote.node(), StreamClass::BOTH.map(|class| remote.stream(class))))
        };
        let Some((id, streams)) = who(&end.sessions.lock()) else { return };
        let term = |(index, shard): (usize, &ShardActor)| {
            let (group, state) = (self.homes.group_at(index), shard.actor.state());
            let streams = streams.map(|stream| state.stream_place(stream));
            ShardTerm { group, begins_at: state.term_begins_at(id), streams }
        };
        let shards = node.shards.iter().enumerate().map(term).collect();
        let uses = self.all_uses_elsewhere(node, id);
        let names = self.terms.first().copied().unwrap_or_default();
        {
            let mut state = self.state.lock();
            let mut sessions = end.sessions.lock();
            let Some(remote) = &mut sessions.remote else { return };
            // What is short is looked at under the lock: see `alarm`.
            if remote.begins(uses, LeaderTerms { names, shards }, node.alarms.alarm()) {
                state.presence.hears(remote);
            }
        }
        end.woken.notify_one();
    }

    /// A turn of Meta made these changes, and wrote what is in `out`. What is left there is to be sent now: of earlier turns, too. To
    /// be called with the locks of that turn.
    pub(crate) fn names_changed(&self, changes: Vec<Vec<Change>>, out: &mut Outbox) {
        let mut state = self.state.lock();
        let State { presence, free, .. } = &mut *state;
        let turn = std::mem::take(out);
        std::mem::take(free).append_to(out);
        let nodes = self.nodes.read();
        if !nodes.is_empty() {
            for batch in changes {
                uses::limits_of(&batch).iter().for_each(|by| self.watch.note(by));
                let number = presence.changed();
                nodes.values().for_each(|end| end.tell_names(number, false, (&batch).into()));
            }
        }
        presence.hold(turn, out);
    }

    /// Letters to a session of another node, from the shard of a group or somebody else. Those to a node that is not here are left.
    #[inline]
    pub(crate) fn to_session(
        &self,
        id: ConnectionId,
        from: Option<GroupId>,
        letters: &mut Run<'_, '_>,
    ) {
        let nodes = self.nodes.read();
        let Some(end) = nodes.get(&id.node()) else { return };
        {
            let mut sessions = end.sessions.lock();
            let Some(remote) = &mut sessions.remote else { return };
            letters.for_each(|letter| remote.tell(FromLeader::Session(id, from, letter)));
            if remote.begins_to_lose_replies() {
                tracing::warn!(%id, peer = %end.from, "{REPLIES_LOST}");
            }
        }
        end.woken.notify_one();
    }

    /// What shards tell of streams.
    #[cold]
    pub(crate) fn news(&self, news: &mut Vec<(GroupId, StreamNews)>) {
        let nodes = self.nodes.read();
        for (group, news) in news.drain(..) {
            if let Some(end) = nodes.get(&news.stream.node) {
                end.tell(FromLeader::News(group, news));
            }
        }
    }

    /// What the owner of the names answers.
    #[cold]
    pub(crate) fn answers(&self, answers: &mut Vec<Answered>) {
        let nodes = self.nodes.read();
        for answered in answers.drain(..) {
            if let Some(end) = nodes.get(&answered.stream.node) {
                end.tell(FromLeader::Answered(answered));
            }
        }
    }

    fn here(&self) -> Vec<Arc<RemoteEnd>> {
        self.nodes.read().values().cloned().collect()
    }

    /// What is short has changed.
    pub(crate) fn alarm(&self, node: &Node) {
        for end in self.nodes.read().values() {
            let mut sessions = end.sessions.lock();
            if let Some(remote) = sessions.remote.as_mut().filter(|it| it.is_heard()) {
                // Under the lock: the one that is told last is the one that holds.
                remote.tell(FromLeader::Alarm(node.alarms.alarm()));
            }
            drop(sessions);
            end.woken.notify_one();
        }
    }

    /// The connection of a node has ended, and with it its sessions: as if each of their clients had gone. One that was not told that
    /// the shards hear may call again, and nobody has heard of its sessions.
    /// `is_closed`: the node has closed it, or its process has ended. Else its sessions may act for a while.
    fn gone(&self, node: &Arc<Node>, end: &Arc<RemoteEnd>, is_closed: bool) {
        let (remote, Went { leads, acts_until_ms, over, left }) = {
            let mut state = self.state.lock();
            let remote = {
                let mut sessions = end.sessions.lock();
                let Some(remote) = sessions.remote.take() else { return };
                sessions.asked = None;
                remote
            };
            let id = remote.node();
            self.nodes.write().remove(&id);
            let State { presence, free, .. } = &mut *state;
            let went = presence.goes(&remote, is_closed, free);
            (remote, went)
        };
        let id = remote.node();
        if let Some(until_ms) = acts_until_ms {
            look_at(Arc::clone(node), until_ms);
        }
        if remote.lost_replies() > 0 {
            tracing::info!(peer = %end.from, lost_replies = remote.lost_replies(), "direct replies that a node was not told");
        }
        self.forget_uses(node, id);
        let mut out = Outbox::default();
        if leads {
            let process = remote.commands();
            node.shards.iter().for_each(|shard| shard.actor.state().node_is_gone(process));
        }
        if let Some(process) = over {
            note_over(process, &mut node.meta().state(), &mut node.topology_mut());
        }
        remote.gone(&mut out);
        out.disconnected(left);
        for index in 0..node.shards.len() {
            out.shard(self.homes.group_at(index), ToShard::Continue);
        }
        // What waited for its names.
        out.meta.push(ToMeta::Continue);
        with_runner(node, |runner| runner.run_outbox(out));
    }
}

/// What waits for nodes that act no more from then on is sent.
fn look_at(node: Arc<Node>, until_ms: u64) {
    tokio::spawn(async move {
        loop {
            let now_ms = boot_ms();
            if now_ms >= until_ms {
                break;
            }
            sleep(Duration::from_millis(until_ms - now_ms)).await;
        }
        let Some(gateway) = &node.gateway else { return };
        {
            let mut state = gateway.state.lock();
            let State { presence, free, .. } = &mut *state;
            presence.look(boot_ms(), free);
        }
        with_runner(&node, |runner| runner.run_meta(ToMeta::Continue));
    });
}

/// What the sessions of a process held is given to others.
fn note_over(process: CommandStream, meta: &mut Meta<NodeLog>, names: &mut Topology) {
    // What cannot be written another leader does not know: that one's sessions are heard there.
    let _ = meta.note_over(process, names);
}

/// Members that may act by the names of the leader before when its lease is over, by Raft id if that is known, and for how long. `last`: the
/// last term that began.
///
/// The own sessions of a node that leads act while its lease holds. But which node that was is sure only if none began a term after it.
fn may_act(view: &ClusterView, last: Option<u64>) -> Vec<(Option<u64>, u64)> {
    let others = view.nodes.iter().filter(|it| it.name != view.node);
    let for_ms = |it: &NodeView| {
        let led = it.raft_id.is_some() && it.raft_id == view.led_last;
        if led && last.is_some() && last == view.led_last_in { 0 } else { KEPT_MS }
    };
    others.map(|it| (it.raft_id, for_ms(it))).collect()
}

/// The members for which a leader waits, by Raft id.
fn awaited(view: &ClusterView) -> BTreeSet<u64> {
    let linked = view.nodes.iter().filter(|it| it.linked).filter_map(|it| it.raft_id);
    linked.filter(|id| Some(*id) != view.led_last).collect()
}

impl RemoteEnd {
    fn new(from: SocketAddr, views: Option<Views>) -> Self {
        Self {
            from,
            views,
            sessions: Ranked::new(Rank::RemoteNode, Sessions::default()),
            line: Ranked::new(Rank::RemoteLine, VecDeque::new()),
            woken: Notify::new(),
            cut: OnceLock::new(),
            is_cut: Notify::new(),
            names_told: Notify::new(),
            is_silent: AtomicBool::new(false),
            listing: tokio::sync::Mutex::default(),
            sampling: tokio::sync::Mutex::default(),
            // An answer to another leader, which may come by this connection, is not to be taken for one to this one.
            asking: tokio::sync::Mutex::new(u64::from(rand::random::<u32>()) << 20),
            name: OnceLock::new(),
        }
    }

    /// Its number, while it is here.
    fn node(&self) -> Option<NodeId> {
        self.sessions.lock().remote.as_ref().map(RemoteNode::node)
    }

    fn tell(&self, letter: FromLeader) {
        if let Some(remote) = &mut self.sessions.lock().remote {
            remote.tell(letter);
        }
        self.woken.notify_one();
    }

    /// Leaves a batch of names for it; `is_whole`: all that there are. Who was not told these needs no batch.
    fn tell_names(&self, number: u64, is_whole: bool, changes: Cow<'_, [Change]>) {
        {
            let mut sessions = self.sessions.lock();
            let Some(remote) = &mut sessions.remote else { return };
            if !is_whole && !remote.has_names() {
                return;
            }
            // Very many at once are what a node has brought.
            let is_long = is_whole || changes.len() > MANY_NAMES;
            remote.tell_names(number, is_whole, changes.into_owned());
            let time = if is_long { ALL_NAMES } else { NAMES };
            sessions.untaken.push_back(Untaken::new(number, time));
        }
        self.names_told.notify_one();
        self.woken.notify_one();
    }

    /// Its connection is to end.
    fn cut(&self, why: String) {
        // The first reason is told.
        let _ = self.cut.set(why);
        self.is_cut.notify_one();
    }

    /// The last of a batch of names is written.
    fn names_written(&self, number: u64) {
        let mut sessions = self.sessions.lock();
        if let Some(untaken) = sessions.untaken.iter_mut().find(|it| it.number == number) {
            untaken.moved = Some(Instant::now());
        }
        drop(sessions);
        self.names_told.notify_one();
    }

    async fn is_cut(&self) -> String {
        loop {
            if let Some(why) = self.cut.get() {
                return why.clone();
            }
            self.is_cut.notified().await;
        }
    }

    /// Nobody waits for the rest of its hello.
    fn has_greeted(&self, node: &Node) {
        let was_greeting = self.sessions.lock().greets.take().is_some();
        if was_greeting && let Some(gateway) = &node.gateway {
            gateway.greeting.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Waits until it has not said who it is in time.
    async fn says_no_hello(&self) -> String {
        let latest = Instant::now() + SLOW_NAMES;
        let mut until = Instant::now() + HELLO;
        loop {
            sleep_until(until).await;
            let moved = {
                let sessions = self.sessions.lock();
                if sessions.has_said_hello { None } else { Some(sessions.greets) }
            };
            match moved {
                None => std::future::pending().await,
                Some(Some(moved)) if latest.min(moved + HELLO) > until => {
                    until = latest.min(moved + HELLO);
                }
                Some(_) => break,
            }
        }
        format!("it did not say who it is within {} s", HELLO.as_secs())
    }

    /// Waits until it has not taken names in time.
    async fn takes_no_names(&self) -> String {
        loop {
            let until = self.sessions.lock().untaken.front().map(Untaken::until);
            match until {
                None => self.names_told.notified().await,
                Some(until) if until <= Instant::now() => {
                    return "it did not take the names in time".to_owned();
                }
                // It may end sooner once they are written, and later once more has come.
                Some(until) => tokio::select! {
                    () = sleep_until(until) => {}
                    () = self.names_told.notified() => {}
                },
            }
        }
    }
}

/// Takes the connections of nodes of sessions, until the task is dropped.
pub(crate) async fn take_nodes(
    mut arrivals: Receiver<Arrival>,
    node: Arc<Node>,
    threads: Arc<Threads>,
) {
    let refusals = Arc::new(Refusals::new());
    while let Some(arrival) = arrivals.recv().await {
        let (_, thread) = threads.next();
        thread.spawn(serve(Arc::clone(&node), Arc::clone(&refusals), arrival));
    }
}

/// One connection, to its end.
async fn serve(node: Arc<Node>, refusals: Arc<Refusals>, Arrival { socket, ends }: Arrival) {
    let views = node.gateway.as_ref().and_then(|gateway| gateway.views.clone());
    let end = Arc::new(RemoteEnd::new(ends.source, views));
    // With TLS between nodes it is no socket of TCP, and has no such thing.
    let _ = socket.set_nodelay(true);
    let (why, is_closed) = match TcpStream::from_std(socket).map(LinkSocket::from) {
        Err(error) => (error.to_string(), false),
        Ok(socket) => {
            let caller = Caller { node: &node, end: &end };
            tokio::select! {
                over = wire::answer(&socket, &caller, &end.woken) => (over.why, over.is_closed),
                why = end.says_no_hello() => (why, false),
                why = end.takes_no_names() => (why, false),
                why = end.is_cut() => (why, false),
            }
        }
    };
    let from = end.from;
    let (caller, refused) = {
        let mut sessions = end.sessions.lock();
        (sessions.caller, sessions.refused.take())
    };
    let is_new = caller.is_none_or(|caller| refusals.is_new(caller, refused.as_deref()));
    let why = refused.map_or(why, String::from);
    match is_new {
        true => {
            tracing::warn!(from = %from.ip(), peer = %from, "the connection of a node with sessions has ended: {why}")
        }
        false => {
            tracing::debug!(peer = %from, "a node with sessions is refused again: {why}")
        }
    }
    end.has_greeted(&node);
    if let Some(gateway) = &node.gateway {
        gateway.gone(&node, &end, is_closed);
    }
}

/// The end of a connection that another node has called.
struct Caller<'a> {
    node: &'a Arc<Node>,
    end: &'a Arc<RemoteEnd>,
}

impl End for Caller<'_> {
    fn say(&self, to: &mut Outgoing) -> Result<(), String> {
        let gateway = self.node.gateway.as_ref();
        if let Some(uses) = gateway.and_then(|it| it.uses_elsewhere(self.node, self.end)) {
            self.end.tell(uses);
        }
        let mut line = self.end.line.lock();
        let lease = self.end.sessions.lock().remote.as_mut().and_then(RemoteNode::answer_lease);
        if let Some(lease) = lease {
            let lease = write_from_leader(&lease, to.writer()).map_err(|it| it.to_string())?;
            to.put(lease);
        }
        while to.has_room() {
            if line.is_empty() {
                let mut sessions = self.end.sessions.lock();
                if let Some(refused) = &sessions.refused {
                    let over = FromLeader::Over(refused.clone());
                    let over = write_from_leader(&over, to.writer());
                    to.put(over.map_err(|it| it.to_string())?);
                    to.ends();
                    break;
                }
                if let Some(remote) = &mut sessions.remote {
                    remote.take_line(&mut line);
                }
            }
            let Some(letter) = line.pop_front() else { break };
            let names = match &letter {
                FromLeader::Names(batch) if !batch.goes_on => Some(batch.number),
                _ => None,
            };
            let letter = write_from_leader(&letter, to.writer()).map_err(|it| it.to_string())?;
            to.put(letter);
            names.inspect(|number| self.end.names_written(*number));
        }
        Ok(())
    }

    fn more_of_a_letter(&self) {
        let mut sessions = self.end.sessions.lock();
        if !sessions.has_said_hello
            && sessions.greets.replace(Instant::now()).is_none()
            && let Some(gateway) = &self.node.gateway
        {
            gateway.greeting.fetch_add(1, Ordering::Relaxed);
        }
        for untaken in sessions.untaken.iter_mut().filter(|it| it.moved.is_some()) {
            untaken.moved = Some(Instant::now());
        }
    }

    fn hear(&self, letters: &mut Vec<Letter>) -> Result<(), String> {
        let mut wrong = None;
        let mut read = VecDeque::with_capacity(letters.len());
        for letter in letters.drain(..) {
            match read_to_leader(&letter) {
                Ok(letter) if wrong.is_none() => read.push_back(letter),
                Ok(_) => {}
                Err(why) => _ = wrong.get_or_insert_with(|| why.to_string()),
            }
        }
        if !self.end.sessions.lock().has_said_hello
            && let Some(first) = read.pop_front()
        {
            self.begins_with(first)?;
        }
        let mut out = Outbox::default();
        let (mut taken, mut told, mut uses) = (Vec::new(), Vec::new(), Vec::new());
        let node = {
            let mut sessions = self.end.sessions.lock();
            // One that was refused, or that is over, is not heard.
            let Sessions { remote, asked, .. } = &mut *sessions;
            let Some(remote) = remote else { return Ok(()) };
            let node = remote.node();
            for letter in read {
                match remote.hear(letter, &mut out) {
                    Ok(NodeHeard::Done) => {}
                    Ok(NodeHeard::NamesTaken(number)) => taken.push(number),
                    Ok(NodeHeard::Told(it)) => told.push(it),
                    Ok(NodeHeard::Uses(it)) => uses.push(it),
                    Ok(NodeHeard::AsksLease(number)) => {
                        // Another one may lead by now.
                        if self.node.has_lease() {
                            remote.asks_for_lease(number, boot_ms());
                            self.end.woken.notify_one();
                        }
                    }
                    Ok(NodeHeard::Seen(number, seen)) => {
                        if let Some((_, answer)) = asked.take_if(|(asked, _)| *asked == number) {
                            // Who asked may have gone.
                            let _ = answer.send(seen);
                        }
                    }
                    Err(why) => {
                        // What came before it counts: what of it is settled is not given back at the end.
                        wrong = Some(why);
                        break;
                    }
                }
            }
            node
        };
        for told in told {
            match serde_json::from_slice::<Happened>(&told) {
                Ok(told) => {
                    if let Some(id) = told.stranger_to(node) {
                        wrong.get_or_insert_with(|| {
                            format!("{id}, which it tells of, is no session of node {node}")
                        });
                        break;
                    }
                    out.events.extend(told.events);
                    out.steps.extend(told.steps);
                }
                // Of another version, perhaps: nobody waits for it.
                Err(error) => tracing::debug!(%error, "what a node tells is not understood"),
            }
        }
        if let Some(gateway) = &self.node.gateway {
            for uses in uses {
                match serde_json::from_slice(&uses) {
                    Ok(uses) => gateway.hear_uses(self.node, node, uses),
                    Err(error) => tracing::debug!(%error, "what a node counts is not understood"),
                }
            }
            for number in taken {
                // What waited for it.
                out.meta.push(ToMeta::Continue);
                if let Err(why) = gateway.names_taken(self.node, self.end, number) {
                    wrong.get_or_insert(why);
                }
            }
        }
        if !out.is_empty() {
            with_runner(self.node, |runner| runner.run_outbox(out));
        }
        wrong.map_or(Ok(()), Err)
    }
}

impl Caller<'_> {
    fn begins_with(&self, first: ToLeader) -> Result<(), String> {
        let begun = self.begin_with(first);
        self.end.has_greeted(self.node);
        begun
    }

    fn begin_with(&self, first: ToLeader) -> Result<(), String> {
        let ToLeader::Hello(hello) = first else {
            return Err("it does not begin with who it is".to_owned());
        };
        self.end.sessions.lock().caller = Some(hello.raft_id);
        let refused = match &self.node.gateway {
            None => Refused::Over(
                "the node that leads has cluster.sessions = relayed: sessions are its own, and clients are relayed to it. Set it \
                 on all nodes, or on none"
                    .to_owned(),
            ),
            Some(gateway) => match gateway.hello(self.node, self.end, &hello) {
                Ok(()) => {
                    tracing::info!(
                        node = %format_args!("{:016x}", hello.raft_id), peer = %self.end.from,
                        attaches = hello.attaches.is_some(), sessions = hello.connections.len(),
                        "a node with sessions is here"
                    );
                    return Ok(());
                }
                Err(refused) => refused,
            },
        };
        if let Some(gateway) = &self.node.gateway {
            gateway.is_refused(hello.raft_id);
        }
        let why = match refused {
            Refused::NotNow(why) => return Err(why),
            Refused::Over(why) => why,
        };
        let mut sessions = self.end.sessions.lock();
        sessions.has_said_hello = true;
        sessions.refused = Some(why.into());
        drop(sessions);
        self.end.woken.notify_one();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::view::NodeView;

    #[test]
    fn a_leader_waits_for_linked_members_but_not_for_who_led_before() {
        let node = |raft_id, linked| NodeView { raft_id, linked, ..NodeView::default() };
        let nodes = vec![
            node(Some(1), true),
            node(Some(2), true),
            node(Some(3), true),
            node(Some(4), false),
            node(None, true),
        ];
        let mut view = ClusterView { nodes, ..ClusterView::default() };
        assert_eq!(awaited(&view), [1, 2, 3].into());
        view.led_last = Some(2);
        assert_eq!(awaited(&view), [1, 3].into());
    }

    #[test]
    fn names_are_to_be_taken_soon_after_they_are_written() {
        let mut untaken = Untaken::new(3, NAMES);
        let told = untaken.told;
        assert_eq!(untaken.until(), told + SLOW_NAMES, "it waits behind what is written before");
        let after = |seconds| told + Duration::from_secs(seconds);
        untaken.moved = Some(after(5));
        assert_eq!(untaken.until(), after(7));
        untaken.moved = Some(after(29));
        assert_eq!(untaken.until(), told + SLOW_NAMES, "others do not wait for ever");
    }
}
