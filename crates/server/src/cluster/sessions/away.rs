//! The end at a node of sessions: what its sessions have in the place of shards and of the owner of the names.
//!
//! ```text
//!   turns of sessions  ->  Away: RemoteShards, behind a lock  ->  the task of the connection  ->  the node that leads
//!   names, inboxes of sessions  <-------------------------------  the same task               <-
//! ```
//!
//! One task keeps a connection to whoever leads. Where that ends it calls the next leader, or the same one, which says then that the
//! sessions are over. See `docs/decisions/0068-sessions-on-the-node-of-their-client.md`.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::vec::Drain;

use leveret_broker::flow::Alarm;
use leveret_broker::message::{
    ConnectionId, NamesBatch, NodeId, Outbox, Step, ToMeta, ToSession, ToShard,
};
use leveret_link::frame::Letter;
use leveret_link::letters::{read_from_leader, write_to_leader};
use leveret_node::KeptMax;
use leveret_node::remote::{ASK_MS, Heard, RemoteShards};
use leveret_topology::stored::StoredError;
use leveret_topology::{EntityKey, Event, GroupId, Homes, Topology, UseWatch, UsedBy};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tokio::sync::{Notify, watch};
use tokio::task::yield_now;
use tokio::time::sleep;

use super::gateway::uses;
use super::seen::{Happened, LOOKED_AT, Looks, Question};
use super::wire::{self, End, Outgoing};
use crate::clock::boot_ms;
use crate::cluster::arrivals::{Arrival, Bringers, RelayedListener};
use crate::cluster::links::LinkSocket;
use crate::cluster::standby::{Reception, Relay};
use crate::lease::{Leading, NamesHold};
use crate::locks::{Rank, Ranked};
use crate::node::Node;
use crate::proxy::Ends;
use crate::runner::with_runner;

/// When a leader that is not reached is called again.
const RETRY: Duration = Duration::from_millis(50);

/// The same of one that refuses this node, which has had no session yet: nothing is lost by it, and it may be mended there.
const REFUSED: Duration = Duration::from_secs(5);

/// Said once for each connection.
pub(super) const REPLIES_LOST: &str = "direct replies (amq.rabbitmq.reply-to) come faster than the connection between two nodes takes them: some are lost";

/// What a node of sessions has in the place of shards.
#[derive(Debug)]
pub(crate) struct Away {
    id: NodeId,
    shards: Ranked<RemoteShards>,
    /// There is something to write.
    woken: Arc<Notify>,
    /// Whose connections and channels here have changed.
    uses: Arc<UseWatch>,
    /// What clients that come get.
    reception: watch::Sender<Reception>,
    /// No leader is called any more.
    hangs_up: watch::Sender<bool>,
    /// Until when the names that are here hold.
    names: NamesHold,
    /// The node's name, as lists show it.
    name: String,
    /// What management is told.
    looks: tokio::sync::Mutex<Looks>,
    /// Events and steps that no leader is told, since the last connection ended.
    left_out: AtomicU64,
}

impl Away {
    /// Of the member's process at its `start`, of a cluster with so many shards. No leader is there yet.
    /// `reception` is told what clients get; `leads` is the lease of this process's broker.
    pub(crate) fn new(
        (name, raft_id, start): (String, u64, u32),
        homes: Homes,
        reception: watch::Sender<Reception>,
        leads: Arc<Leading>,
    ) -> Self {
        let shards = RemoteShards::new(raft_id, start, homes, KeptMax::default());
        let woken = Arc::new(Notify::new());
        let wakes = Arc::clone(&woken);
        Self {
            id: shards.node(),
            shards: Ranked::new(Rank::RemoteShards, shards),
            woken,
            uses: Arc::new(UseWatch::new(move || wakes.notify_one())),
            reception,
            hangs_up: watch::Sender::new(false),
            names: NamesHold::new(leads),
            name,
            looks: tokio::sync::Mutex::default(),
            left_out: AtomicU64::new(0),
        }
    }

    /// Whose sessions these are.
    pub(crate) fn id(&self) -> NodeId {
        self.id
    }

    /// Whether sessions may take what clients send, by the names that are here.
    pub(crate) fn names_hold(&self) -> &NamesHold {
        &self.names
    }

    /// Where the names of this node note whose connections and channels change.
    pub(crate) fn uses(&self) -> Arc<UseWatch> {
        Arc::clone(&self.uses)
    }

    /// Calls no leader any more, and ends the connection to the one that hears.
    pub(crate) fn hang_up(&self) {
        self.hangs_up.send_replace(true);
    }

    /// A session begins.
    pub(crate) fn opened(&self, id: ConnectionId) {
        self.shards.lock().opened(id);
        self.woken.notify_one();
    }

    /// A session is over, and all that it wrote is posted.
    pub(crate) fn forgotten(&self, id: ConnectionId) {
        self.shards.lock().forgotten(id);
        self.woken.notify_one();
    }

    /// A letter of a session. What comes of it at once for sessions is left in `out`.
    pub(crate) fn to_shard(&self, group: GroupId, letter: ToShard, out: &mut Outbox) {
        self.shards.lock().to_shard(group, letter, out);
        self.woken.notify_one();
    }

    /// Letters of sessions.
    pub(crate) fn to_meta(&self, letters: Drain<'_, ToMeta>, out: &mut Outbox) {
        let mut shards = self.shards.lock();
        letters.for_each(|letter| shards.to_meta(letter, out));
        drop(shards);
        self.woken.notify_one();
    }

    /// What happened to connections of this node.
    pub(crate) fn events(&self, events: Vec<Event>) {
        self.tell(&Happened { events, ..Happened::default() });
    }

    /// What happened to traced messages.
    pub(crate) fn steps(&self, steps: Vec<Step>) {
        self.tell(&Happened { steps, ..Happened::default() });
    }

    fn tell(&self, told: &Happened) {
        let count = told.events.len() + told.steps.len();
        let told = serde_json::to_vec(told).unwrap_or_default();
        let is_told = self.shards.lock().told(told.into());
        match is_told {
            true => self.woken.notify_one(),
            false => {
                if self.left_out.fetch_add(count as u64, Ordering::Relaxed) == 0 {
                    tracing::warn!(
                        "the node that leads is not told of events of connections and of traced messages: none hears, or very much waits"
                    );
                }
            }
        }
    }

    /// Asks the leader, again and again, for how long these sessions may act.
    async fn ask_for_leases(&self) -> Infallible {
        loop {
            sleep(Duration::from_millis(ASK_MS)).await;
            self.shards.lock().ask_for_lease(boot_ms());
            self.woken.notify_one();
        }
    }

    /// Answers management. Waits for turns that run.
    async fn answer_look(&self, node: &Node, number: u64, question: Question) {
        let mut looks = self.looks.lock().await;
        let seen = looks.answer(node, &self.name, number, question).await;
        drop(looks);
        self.shards.lock().seen(number, seen.into());
        self.woken.notify_one();
    }

    /// Letters to a session of another node.
    pub(crate) fn to_session(&self, id: ConnectionId, letters: impl Iterator<Item = ToSession>) {
        let mut shards = self.shards.lock();
        letters.for_each(|letter| shards.to_session(id, letter));
        let begins_to_lose = shards.begins_to_lose_replies();
        drop(shards);
        if begins_to_lose {
            tracing::warn!(%id, "{REPLIES_LOST}");
        }
        self.woken.notify_one();
    }
}

/// Who is called.
#[derive(Debug)]
pub(crate) struct Called {
    /// How other nodes are reached.
    pub(crate) relay: Arc<dyn Relay>,
    /// This node's Raft id.
    pub(crate) own_id: u64,
    /// How the broker of this process is reached, when this node leads.
    pub(crate) own: Bringers,
    /// Who leads.
    pub(crate) leader: watch::Receiver<Option<u64>>,
}

/// How a connection is over.
enum Over {
    Ended(String),
    /// Another node leads.
    Another,
    /// See [`Away::hang_up`].
    HungUp,
}

/// Keeps a connection to whoever leads, until the sessions are over: why, in words. On a thread of the node's.
pub(crate) async fn keep_leader(node: Arc<Node>, away: Arc<Away>, mut called: Called) -> String {
    let (mut told, mut hangs_up) = (String::new(), away.hangs_up.subscribe());
    loop {
        let Some(leader) = *called.leader.borrow_and_update() else {
            if called.leader.changed().await.is_err() {
                // The process ends.
                return std::future::pending().await;
            }
            continue;
        };
        let caller = Caller {
            node: &node,
            away: &away,
            is_own: leader == called.own_id,
            over: OnceLock::new(),
            has_names: AtomicBool::new(false),
        };
        let mut leads = called.leader.clone();
        let talks = async {
            match called.reach(leader).await {
                Ok(socket) => {
                    // Dropped before the socket: a leader that sees this end close waits for these sessions no more.
                    let _gives_up = GivesUp(&away.names);
                    let owners = away.shards.lock().owners();
                    let brings = owners.brings(&node.topology());
                    away.shards.lock().begin(brings);
                    tokio::select! {
                        over = wire::call(&socket, &caller, &away.woken) => over.why,
                        never = away.ask_for_leases() => match never {},
                    }
                }
                Err(error) => format!("it is not reached: {error}"),
            }
        };
        // One that leads no more may take a call and say nothing, and the next one does not wait long for this node.
        let over = tokio::select! {
            why = talks => Over::Ended(why),
            _ = leads.wait_for(|now| now.is_some_and(|now| now != leader)) => Over::Another,
            _ = hangs_up.wait_for(|it| *it) => Over::HungUp,
        };
        let lost_replies = {
            let mut shards = away.shards.lock();
            let lost = shards.lost_replies();
            shards.lost();
            lost
        };
        if lost_replies > 0 {
            tracing::info!(lost_replies, "direct replies that no leader was told");
        }
        let is_refused = caller.over.get().is_some();
        // Before any leader has heard this node nothing is lost by it.
        away.reception.send_replace(if is_refused { Reception::Relayed } else { Reception::Waits });
        let left_out = away.left_out.swap(0, Ordering::Relaxed);
        if left_out > 0 {
            tracing::info!(
                left_out,
                "events of connections and steps of traced messages that no leader was told"
            );
        }
        let why = match over {
            Over::Ended(why) => why,
            Over::Another => continue,
            Over::HungUp => return std::future::pending().await,
        };
        if is_refused && away.shards.lock().is_open() {
            return why;
        }
        if why != told {
            match is_refused {
                true => tracing::warn!(
                    "the node that leads takes no sessions of this one, so clients are relayed to it: {why}"
                ),
                false => tracing::info!("sessions wait for a node that leads: {why}"),
            }
        }
        told = why;
        // Another leader may take this one, and waits for it.
        let has_hung_up = tokio::select! {
            () = sleep(if is_refused { REFUSED } else { RETRY }) => false,
            _ = leads.wait_for(|now| now.is_some_and(|now| now != leader)) => false,
            _ = hangs_up.wait_for(|it| *it) => true,
        };
        if has_hung_up {
            return std::future::pending().await;
        }
    }
}

/// The names hold no more when this is dropped.
struct GivesUp<'a>(&'a NamesHold);

impl Drop for GivesUp<'_> {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

impl Called {
    async fn reach(&self, leader: u64) -> std::io::Result<LinkSocket> {
        let nobody = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let ends = Ends::new(nobody, nobody);
        if leader != self.own_id {
            return self.relay.relay(leader, RelayedListener::Sessions, ends).await;
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (here, there) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // Nothing but bytes is asked of either.
        let stream = |end: OwnedFd| TcpStream::from(end);
        self.own.bring(RelayedListener::Sessions, Arrival { socket: stream(there), ends });
        Ok(tokio::net::TcpStream::from_std(stream(here))?.into())
    }
}

/// The end of a connection.
struct Caller<'a> {
    node: &'a Arc<Node>,
    away: &'a Arc<Away>,
    /// The broker of this process leads.
    is_own: bool,
    /// Why the sessions are over, if they are.
    over: OnceLock<String>,
    /// The leader's names are here, and it was told what is counted here.
    has_names: AtomicBool,
}

impl End for Caller<'_> {
    fn say(&self, to: &mut Outgoing) -> Result<(), String> {
        self.tell_changed_uses();
        while to.has_room() {
            let Some(letter) = self.away.shards.lock().send_next() else { break };
            let letter = write_to_leader(&letter, to.writer()).map_err(|why| why.to_string())?;
            to.put(letter);
        }
        Ok(())
    }

    fn hear(&self, letters: &mut Vec<Letter>) -> Result<(), String> {
        let mut out = Outbox::default();
        let heard = letters.drain(..).try_for_each(|letter| self.one(&letter, &mut out));
        if !out.is_empty() {
            with_runner(self.node, |runner| runner.run_outbox(out));
        }
        let shards = self.away.shards.lock();
        if shards.has_next() {
            self.away.woken.notify_one();
        }
        heard
    }
}

impl Caller<'_> {
    fn one(&self, letter: &Letter, out: &mut Outbox) -> Result<(), String> {
        let letter = read_from_leader(letter).map_err(|why| why.to_string())?;
        let heard = self.away.shards.lock().hear(letter, out)?;
        match heard {
            Heard::Done => {}
            Heard::Lease => {
                let until_ms = self.away.shards.lock().acts_until_ms();
                if self.away.names.set(until_ms, self.is_own) {
                    with_runner(self.node, |runner| runner.go_on_reading());
                }
            }
            Heard::Begins => _ = self.away.reception.send_replace(Reception::Own),
            Heard::Uses(uses) => match serde_json::from_slice::<uses::ToldUses>(&uses) {
                Ok(told) => {
                    let names = self.node.topology();
                    told.iter().for_each(|(by, uses)| names.set_uses_elsewhere(by, *uses));
                }
                // Of another version, perhaps.
                Err(error) => tracing::debug!(%error, "what other nodes count is not understood"),
            },
            Heard::Names(batch) => self.apply(batch)?,
            Heard::Alarm(alarm) => self.raise(alarm),
            Heard::Look(number, question) => {
                // One of another version is answered with the end of what was asked before.
                let question = serde_json::from_slice(&question).unwrap_or(Question::More);
                let (node, away) = (Arc::clone(self.node), Arc::clone(self.away));
                tokio::spawn(async move { away.answer_look(&node, number, question).await });
            }
            Heard::Over(why) => {
                let _ = self.over.set(why.to_string());
                return Err(why.into());
            }
        }
        Ok(())
    }

    /// Of whose connections and channels the leader is to hear anew.
    fn tell_changed_uses(&self) {
        if self.has_names.load(Ordering::Relaxed) {
            self.tell_uses(self.away.uses.take().into_iter().collect());
        }
    }

    fn tell_uses(&self, of: Vec<UsedBy>) {
        if of.is_empty() {
            return;
        }
        let told: uses::ToldUses = {
            let names = self.node.topology();
            let with_uses = |by| {
                let uses = names.uses(&by);
                (by, uses)
            };
            of.into_iter().map(with_uses).collect()
        };
        let told = serde_json::to_vec(&told).unwrap_or_default();
        self.away.shards.lock().uses(told.into());
    }

    fn apply(&self, batch: NamesBatch) -> Result<(), String> {
        let (number, is_whole) = (batch.number, batch.is_whole);
        let limits = uses::limits_of(&batch.changes);
        let (gone, counted) = {
            let mut names = self.node.topology_mut();
            let gone = apply(batch, &mut names);
            let gone = gone.map_err(|error| format!("names that are none: {error}"))?;
            self.node.count_names(&names);
            let counted = match is_whole {
                true => {
                    // It is told of all.
                    self.away.uses.take();
                    names.limited()
                }
                false => limits.into_iter().filter(|by| names.watches(by)).collect(),
            };
            (gone, counted)
        };
        // Before it is said that the names are here: so the leader knows what is counted by a limit when it answers for that, and of all
        // who have limits when it begins.
        self.tell_uses(counted);
        self.has_names.store(true, Ordering::Relaxed);
        {
            let mut shards = self.away.shards.lock();
            shards.names_taken(number);
            if is_whole {
                shards.ask_for_lease(boot_ms());
            }
        }
        if !gone.is_empty() {
            self.close_those_of(gone);
        }
        Ok(())
    }

    /// Whose user or vhost was deleted is told to go, as by the broker's management. There may be very many connections, and this task
    /// has the letters of all: another one looks for them.
    fn close_those_of(&self, gone: AllGone) {
        let (node, connections) = (Arc::clone(self.node), self.node.connections());
        tokio::spawn(async move {
            for some in connections.chunks(LOOKED_AT) {
                for connection in some {
                    let text = connection.with_names(|user, vhost| {
                        gone.names.iter().find_map(|gone| gone.text(user, vhost))
                    });
                    let is_owner = || gone.owners.contains(&connection.id());
                    let text = text.or_else(|| is_owner().then(|| QUEUES_ENDED.to_owned()));
                    if let Some(text) = text {
                        with_runner(&node, |runner| runner.close_connection(connection, text));
                    }
                }
                yield_now().await;
            }
        });
    }

    /// What is short at the node that leads.
    fn raise(&self, alarm: Alarm) {
        if self.node.alarms.set_elsewhere(alarm) {
            with_runner(self.node, |runner| runner.tell_connections_of_alarm());
        }
    }
}

/// A leader makes exclusive queues again, but where their names are others' now, or their vhost is gone. A connection without the ones that
/// it made is of no use to its client, who may not look at cancelled consumers, and makes all anew with a new one.
const QUEUES_ENDED: &str =
    "the node that led the cluster is gone, and with it the exclusive queues of this connection";

/// All that connections end with.
#[derive(Debug, Default, PartialEq, Eq)]
struct AllGone {
    /// Users and vhosts.
    names: Vec<Gone>,
    /// Who had exclusive queues.
    owners: BTreeSet<ConnectionId>,
}

impl AllGone {
    fn is_empty(&self) -> bool {
        self.names.is_empty() && self.owners.is_empty()
    }
}

/// What connections end with.
#[derive(Debug, PartialEq, Eq)]
enum Gone {
    User(Box<str>),
    Vhost(Box<str>),
}

impl Gone {
    /// What a connection of this user to this vhost is told, if it is to end.
    fn text(&self, user: &str, vhost: &str) -> Option<String> {
        match self {
            Self::User(name) if **name == *user => Some(format!("user '{name}' was deleted")),
            Self::Vhost(name) if **name == *vhost => Some(format!("vhost '{name}' is deleted")),
            _ => None,
        }
    }
}

/// Makes the names what a batch says. Returned is what went that connections end with. Whole names are another leader's: what is not
/// among them did not go by anybody's wish.
fn apply(batch: NamesBatch, names: &mut Topology) -> Result<AllGone, StoredError> {
    let NamesBatch { is_whole, changes, .. } = batch;
    let changes = if is_whole { names.changes_towards(changes) } else { changes };
    let mut gone = AllGone::default();
    for change in changes.iter().filter(|change| change.record.is_none()) {
        match &change.key {
            EntityKey::User(name) => gone.names.push(Gone::User(name.clone())),
            EntityKey::Vhost(id) => {
                let vhost = names.vhost_by_id(*id);
                gone.names.extend(vhost.map(|it| Gone::Vhost(Box::from(&*it.name))));
            }
            EntityKey::Queue(id) if is_whole => {
                gone.owners.extend(names.queue_by_id(*id).and_then(|it| it.exclusive_owner));
            }
            _ => {}
        }
    }
    names.follow(&changes)?;
    Ok(gone)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::AtomicU32;

    use leveret_broker::message::{FromLeader, LeaderTerms, ShardTerm, ToLeader};
    use leveret_broker::stream::StreamPlace;
    use leveret_link::letters::write_from_leader;
    use leveret_link::payload::Writer;
    use leveret_queue::Offset;
    use leveret_topology::{Bootstrap, Change, PasswordHash, QueueSpec, Uses};

    use tokio::net::TcpListener;
    use tokio::sync::mpsc;
    use tokio::time::timeout;

    use super::*;
    use crate::cluster::arrivals::arrivals;
    use crate::cluster::standby::Relaying;
    use crate::lease::Leading;
    use crate::login::{self, Logins};

    fn batch(is_whole: bool, changes: Vec<Change>) -> NamesBatch {
        NamesBatch { number: 1, is_whole, goes_on: false, changes }
    }

    fn names_of(user: &str, vhost: &str) -> Topology {
        let mut names = Topology::new();
        let bootstrap = Bootstrap {
            user,
            password: PasswordHash::new("guest", [1, 2, 3, 4]),
            tags: &["administrator"],
            vhost,
            permissions: [".*", ".*", ".*"],
        };
        names.bootstrap(&bootstrap).unwrap();
        names
    }

    /// Of whole names what is not among them is gone; of others what they say.
    #[test]
    fn who_is_gone_is_told() {
        let mut names = Topology::new();
        names.pass_events_on("rabbit@here");
        let whole = batch(true, names_of("one", "/").snapshot());
        assert_eq!(apply(whole, &mut names).unwrap(), AllGone::default());
        let whole = batch(true, names_of("other", "/").snapshot());
        assert_eq!(apply(whole, &mut names).unwrap().names, [Gone::User("one".into())]);
        assert!(names.user("other").is_some() && names.user("one").is_none());

        let id = names.vhost("/").unwrap().id;
        let goes = |key| Change { key, is_stored: true, record: None };
        let permission = goes(EntityKey::Permission(id, "other".into()));
        let changes = vec![permission, goes(EntityKey::User("other".into()))];
        let gone = apply(batch(false, changes), &mut names).unwrap().names;
        assert_eq!(gone, [Gone::User("other".into())]);
        let told = |user, vhost| gone[0].text(user, vhost);
        assert_eq!(told("other", "/").as_deref(), Some("user 'other' was deleted"));
        assert_eq!([told("one", "/"), told("", "other")], [None, None]);
        assert!(names.user("other").is_none());
        assert_eq!(names.take_events(), [], "who owns the names tells them");
    }

    /// Whose exclusive queues another leader does not know, but not whose were deleted.
    #[test]
    fn who_had_exclusive_queues_is_told() {
        let mut leader = names_of("one", "/");
        let vhost = leader.vhost("/").unwrap().id;
        let owners = [1, 2].map(|number| NodeId::ALONE.connection(number));
        let queues = owners.map(|owner| {
            let name = &*format!("of {owner}");
            let exclusive_owner = Some(owner);
            let (server_named, durable, auto_delete, arguments) = Default::default();
            let spec = QueueSpec {
                vhost,
                name,
                server_named,
                durable,
                auto_delete,
                exclusive_owner,
                arguments,
            };
            leader.declare_queue(spec).unwrap().id
        });
        let mut names = Topology::new();
        let whole = batch(true, leader.snapshot());
        assert_eq!(apply(whole, &mut names).unwrap(), AllGone::default());
        let change = Change { key: EntityKey::Queue(queues[0]), is_stored: false, record: None };
        assert_eq!(apply(batch(false, vec![change]), &mut names).unwrap(), AllGone::default());
        let whole = batch(true, names_of("one", "/").snapshot());
        assert_eq!(apply(whole, &mut names).unwrap().owners, [owners[1]].into());
    }

    /// A leader that takes no sessions.
    #[derive(Default)]
    struct Refuses {
        heard: AtomicU32,
        woken: Notify,
    }

    impl End for Refuses {
        fn say(&self, to: &mut Outgoing) -> Result<(), String> {
            if self.heard.load(Ordering::Relaxed) > 0 && to.has_room() {
                let over = FromLeader::Over("no".into());
                let over = write_from_leader(&over, to.writer()).map_err(|it| it.to_string())?;
                to.put(over);
                to.ends();
            }
            Ok(())
        }

        fn hear(&self, letters: &mut Vec<Letter>) -> Result<(), String> {
            letters.clear();
            self.heard.fetch_add(1, Ordering::Relaxed);
            self.woken.notify_one();
            Ok(())
        }
    }

    /// Tells who is called: each takes no sessions.
    #[derive(Debug)]
    struct Calls(mpsc::UnboundedSender<u64>);

    impl Relay for Calls {
        fn relay(&self, leader: u64, _: RelayedListener, _: Ends) -> Relaying {
            let _ = self.0.send(leader);
            Box::pin(async {
                let listener = TcpListener::bind("127.0.0.1:0").await?;
                let near = tokio::net::TcpStream::connect(listener.local_addr()?).await?;
                let far = LinkSocket::from(listener.accept().await?.0);
                tokio::spawn(async move {
                    let end = Refuses::default();
                    wire::answer(&far, &end, &end.woken).await
                });
                Ok(near.into())
            })
        }
    }

    /// Who is refused is called again after a while, and the next leader at once: it waits for this node.
    #[tokio::test]
    async fn the_next_leader_is_called_at_once() {
        let (reception, mut receives) = watch::channel(Reception::Waits);
        let away = Away::new(
            ("rabbit@far".to_owned(), 7, 0),
            Homes::among(1),
            reception,
            Arc::new(Leading::new()),
        );
        let away = Arc::new(away);
        let logins = Logins::new(login::Options::default(), [0; 32]);
        let leading = Arc::new(Leading::new());
        let node = Node::of_sessions(Arc::default(), logins, Arc::clone(&away), 0, leading);
        let (says, mut called) = mpsc::unbounded_channel();
        let (leads, leader) = watch::channel(Some(1));
        let relay = Arc::new(Calls(says));
        let calls = Called { relay, own_id: 7, own: arrivals().0, leader };
        let keeps = tokio::spawn(keep_leader(Arc::new(node), away, calls));
        assert_eq!(called.recv().await, Some(1));
        let is_relayed = receives.wait_for(|it| *it == Reception::Relayed);
        timeout(REFUSED, is_relayed).await.unwrap().unwrap();
        leads.send_replace(Some(2));
        let next = timeout(REFUSED / 2, called.recv()).await;
        assert_eq!(next.unwrap(), Some(2));
        keeps.abort();
    }

    /// What has a limit is told before it is said that the names are here, when it changes, and when it gets the limit; what others have
    /// counts here, whoever leads, until the leader tells something else.
    #[tokio::test]
    async fn counts_go_to_the_leader_and_come_from_it() {
        let homes = Homes::among(1);
        let reception = watch::Sender::new(Reception::Waits);
        let away =
            Away::new(("rabbit@far".to_owned(), 7, 0), homes, reception, Arc::new(Leading::new()));
        let away = Arc::new(away);
        let logins = Logins::new(login::Options::default(), [0; 32]);
        let leading = Arc::new(Leading::new());
        let node = Node::of_sessions(Arc::default(), logins, Arc::clone(&away), 0, leading);
        node.topology_mut().watch_uses(away.uses());
        let node = Arc::new(node);
        let has_names = AtomicBool::new(false);
        let (is_own, over) = (false, OnceLock::new());
        let caller = Caller { node: &node, away: &away, is_own, over, has_names };
        let hears = |letter: &FromLeader| {
            let letter = write_from_leader(letter, &mut Writer::default()).unwrap();
            caller.hear(&mut vec![letter]).unwrap();
        };
        let has_taken_names = std::cell::Cell::new(false);
        let tells = || {
            caller.tell_changed_uses();
            let next = || away.shards.lock().send_next();
            let told = std::iter::from_fn(next).filter_map(|letter| match letter {
                ToLeader::Uses(uses) => {
                    assert!(!has_taken_names.get(), "it is told behind that the names are here");
                    serde_json::from_slice::<uses::ToldUses>(&uses).ok()
                }
                ToLeader::NamesTaken(_) => {
                    has_taken_names.set(true);
                    None
                }
                _ => None,
            });
            let told = told.collect::<Vec<_>>().concat();
            has_taken_names.set(false);
            told
        };
        let receives = || *away.reception.borrow();
        let limits = |count| BTreeMap::from([("max-connections".to_owned(), count)]);
        let mut names = names_of("u", "/");
        names.set_user_limits("u", limits(3)).unwrap();
        names.add_user("v", PasswordHash::new("p", [0; 4]), &[]).unwrap();
        away.shards.lock().begin(Vec::new());
        assert_eq!(tells(), []);
        let held = node.topology().count_connection("u", "/").unwrap();
        assert_eq!(tells(), [], "nobody knows of limits");
        hears(&FromLeader::Names(batch(true, names.snapshot())));
        let place = StreamPlace { term: 1 << 32, next: 1, agreed: 0 };
        let (group, begins_at) = (homes.group_at(0), Offset::new(0));
        let shards = vec![ShardTerm { group, begins_at, streams: [place; 2] }];
        let user = UsedBy::User("u".into());
        let has = |connections| (user.clone(), Uses { connections, channels: 0 });
        assert_eq!(tells(), [has(0)], "before the leader begins");
        assert_eq!((tells(), receives()), (vec![], Reception::Waits));
        drop(held);
        let open = || node.topology().count_connection("u", "/");
        let held = open().unwrap();
        assert_eq!(tells(), [has(1)]);
        hears(&FromLeader::Begins(LeaderTerms { names: 1, shards }));
        assert_eq!((tells(), receives()), (vec![], Reception::Own));
        let more = open().unwrap();
        assert_eq!(tells(), [has(2)]);
        let others = |connections| {
            let told: uses::ToldUses = vec![has(connections)];
            hears(&FromLeader::Uses(serde_json::to_vec(&told).unwrap().into()));
        };
        others(1);
        let refused = open().unwrap_err().to_string();
        assert_eq!(
            refused,
            "connection refused for user 'u': user connection limit (3) is reached"
        );
        assert_eq!(tells(), [], "what others have it does not tell");
        drop(more);
        assert_eq!(tells(), [has(1)]);
        drop(open().unwrap());
        // Another leader tells anew what others have: what the one before told counts until then.
        others(2);
        assert!(open().is_err());
        assert_eq!(tells(), [has(1)]);
        away.shards.lock().lost();
        away.reception.send_replace(Reception::Waits);
        caller.has_names.store(false, Ordering::Relaxed);
        away.shards.lock().begin(Vec::new());
        away.uses.note(&user);
        assert_eq!(tells(), [], "the leader's names are not here");
        hears(&FromLeader::Names(batch(true, names.snapshot())));
        assert_eq!(tells(), [has(1)]);
        let shards = vec![ShardTerm { group, begins_at, streams: [place; 2] }];
        hears(&FromLeader::Begins(LeaderTerms { names: 2, shards }));
        assert!(open().is_err());
        others(1);
        drop(open().unwrap());
        assert_eq!(tells(), [has(1)]);
        // Another user gets a limit: of what was there before, too.
        let _of_other = node.topology().count_connection("v", "/").unwrap();
        assert_eq!(tells(), []);
        names.set_user_limits("v", limits(1)).unwrap();
        let key = EntityKey::User("v".into());
        let changes = names.snapshot().into_iter().filter(|it| it.key == key).collect();
        hears(&FromLeader::Names(NamesBatch { number: 2, ..batch(false, changes) }));
        assert_eq!(tells(), [(UsedBy::User("v".into()), Uses { connections: 1, channels: 0 })]);
        drop(held);
        assert_eq!(tells(), [has(0)]);
    }
}
