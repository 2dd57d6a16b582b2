//! A node: every actor of the process, and who is who.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_broker::bodies::BodyRoom;
use leveret_broker::flow::AlarmChange;
use leveret_broker::message::{ConnectionId, NodeId, ToMeta, ToSession, ToShard};
use leveret_broker::{Meta, Shard};
use leveret_session::Settings;
use leveret_topology::{Homes, Topology};
use tokio::sync::{Notify, watch};

use crate::alarms::Alarms;
use crate::clock::now;
use crate::cluster::sessions::away::Away;
use crate::cluster::sessions::gateway::Gateway;
use crate::cluster::sessions::seen::{
    AnyConnection, Elsewheres, NotHeard, SampledElsewhere, Wanted,
};
use crate::connection::Connection;
use crate::ended::Ended;
use crate::events::Events;
use crate::handover::Handover;
use crate::lease::{Leading, NamesHold};
use crate::listener::ClientSuspension;
use crate::locks::{Rank, Ranked, RankedRw, ReadGuard, WriteGuard};
use crate::login::{self, Logins};
use crate::names::Names;
use crate::paths::Paths;
use crate::pressure::PressedUntil;
use crate::runner::{Due, Rest};
use crate::storage::{Memory, NodeLog};
use crate::tls::Certificates;
use crate::turn::Actor;
use crate::unread::Unread;
use crate::watchdog::Watched;

/// What the program takes when it is idle, in bytes, roughly: a watermark below is reached from the start,
/// which is how users of RabbitMQ raise an alarm on purpose (`set_vm_memory_high_watermark 0.0001`).
const PROGRAM_BYTES: u64 = 8 << 20;

/// How often an answer that waits for a lease looks for it.
const LOOK: Duration = Duration::from_millis(20);

/// All actors of a process, shared by its threads.
#[derive(Debug)]
pub struct Node {
    /// What sessions are told at their birth.
    pub settings: Arc<Settings>,
    /// Shards, by index.
    pub shards: Vec<ShardActor>,
    /// Which group each of them is.
    pub homes: Homes,
    /// The topology's owner; none of a node that only has a copy of the names.
    meta: Option<Actor<Meta<NodeLog>, ToMeta>>,
    names: Names<Topology>,
    recipients: RankedRw<Recipients>,
    /// AMQP connections among them.
    connection_count: AtomicUsize,
    next_connection: AtomicU64,
    /// Room of requests and answers of the HTTP API. Not that of bodies: who reads slowly lets no publisher wait.
    pub requests: BodyRoom,
    /// Bytes that connections hold: input not taken yet, output not written yet.
    connection_bytes: AtomicU64,
    /// Bodies in that output, which many may hold together.
    pub(crate) unread: Unread,
    /// Bytes that requests of the management API hold, and its answers.
    request_bytes: AtomicU64,
    /// [`Topology::weight`] after the last change.
    names_bytes: AtomicU64,
    /// Totals of connections that are over.
    pub ended: Ended,
    /// What happened last.
    pub events: Events,
    /// Where traced messages came.
    pub paths: Paths,
    /// What blocks publishers.
    pub alarms: Alarms,
    /// Decides who may come in.
    pub logins: Logins,
    /// Certificates in use, to be read again.
    pub certificates: Certificates,
    /// Whether all queues have the messages that the logs kept: shards have turns from then on.
    filled: AtomicBool,
    /// Whether clients may not come in: their listeners are closed.
    pub(crate) suspended: ClientSuspension,
    /// Part of the memory watermark that transient messages may take before they are written to disk.
    paging_ratio: f64,
    /// Of a node that leads its cluster, or may come to; none of one that is alone.
    pub(crate) leading: Option<Arc<Leading>>,
    /// Of a node of sessions: what it has in the place of shards.
    pub(crate) away: Option<Arc<Away>>,
    /// Sessions of other nodes; none of a node that has all sessions itself.
    pub(crate) gateway: Option<Arc<Gateway>>,
    /// Turns that wait for a thread at work.
    pub(crate) handover: Handover<Due>,
    pub(crate) pressed: PressedUntil,
    /// What takes long, and who.
    pub watched: Arc<Watched>,
    /// Of each thread that runs turns.
    rests: Ranked<Vec<Arc<Rest>>>,
    /// Woken when a shard's next timeout comes earlier than it was.
    pub timers_changed: Notify,
    /// Woken when a log failed: the process has to stop, as nothing may be confirmed any more.
    pub failed: Notify,
}

/// A shard and what others may know of it without its turn.
#[derive(Debug)]
pub struct ShardActor {
    /// State and inbox.
    pub actor: Actor<Shard<NodeLog>, ToShard>,
    /// When it must run by itself, or earlier, ms since the epoch; `u64::MAX` for never.
    pub due_ms: AtomicU64,
    /// Bytes it holds.
    pub held_bytes: AtomicU64,
}

type Recipients = HashMap<ConnectionId, Recipient, FixedState>;

/// Somebody who gets letters under a [`ConnectionId`].
#[derive(Clone, Debug)]
pub enum Recipient {
    /// An AMQP connection.
    Connection(Arc<Connection>),
    /// A request of the management API: it waits for one answer.
    Request(tokio::sync::mpsc::UnboundedSender<ToSession>),
}

/// Bytes that names may take however low the memory watermark is: it can be put down to stop publishers, and nobody's queues.
const NAMES_LEAST: u64 = 128 << 20;

/// Of the 40 bits of a connection's number, those that count connections of one start; and how many starts have numbers of their own.
const START_BITS: u32 = 24;
const STARTS: u32 = (1 << 15) - 1;

impl Node {
    /// A node of these shards, whose queues are not filled yet. `meta` keeps `topology`.
    ///
    /// Letters to the shards wait until [`Runner::begin_shards`](crate::runner::Runner::begin_shards): their duties are taken.
    pub fn new(
        settings: Arc<Settings>,
        meta: Meta<NodeLog>,
        topology: Topology,
        shards: Vec<Shard<NodeLog>>,
        paging_ratio: f64,
        logins: Logins,
    ) -> Self {
        let meta = Some(Actor::new(Rank::Meta, meta));
        Self::with(settings, meta, topology, shards, paging_ratio, logins)
    }

    /// A node without actors, for a copy of names whose owner is elsewhere. None of its turns is ever run.
    pub fn standing_by() -> Self {
        let logins = Logins::new(login::Options::default(), [0; 32]);
        Self::with(Arc::default(), None, Topology::new(), Vec::new(), 1.0, logins)
    }

    /// A node of sessions, whose shards and owner of the names are those of the node that leads.
    /// Of `start`s that are near each other none names a connection as another one does: what is on its way to one that is over is not
    /// to come to another one.
    pub(crate) fn of_sessions(
        settings: Arc<Settings>,
        logins: Logins,
        away: Arc<Away>,
        start: u32,
        leading: Arc<Leading>,
    ) -> Self {
        let mut node = Self::with(settings, None, Topology::new(), Vec::new(), 1.0, logins);
        node.away = Some(away);
        node.leading = Some(leading);
        let before = u64::from(start & STARTS) << START_BITS;
        node.next_connection = AtomicU64::new(before + 1);
        node.filled.store(true, Ordering::SeqCst);
        node
    }

    fn with(
        settings: Arc<Settings>,
        meta: Option<Actor<Meta<NodeLog>, ToMeta>>,
        topology: Topology,
        shards: Vec<Shard<NodeLog>>,
        paging_ratio: f64,
        logins: Logins,
    ) -> Self {
        let shards = shards.into_iter().map(|shard| {
            let shard = ShardActor {
                due_ms: AtomicU64::new(u64::MAX),
                held_bytes: AtomicU64::new(shard.held_bytes() + shard.idle_bytes()),
                actor: Actor::new(Rank::Shard, shard),
            };
            // What came back may expire: the first turn sets its timers.
            let is_taken = shard.actor.post_one(ToShard::Continue);
            debug_assert!(is_taken, "nobody else knows the shard");
            shard
        });
        let names_bytes = AtomicU64::new(topology.weight());
        Self {
            shards: shards.collect(),
            homes: topology.homes(),
            meta,
            names: Names::new(topology),
            recipients: RankedRw::new(Rank::Recipients, HashMap::default()),
            connection_count: AtomicUsize::new(0),
            next_connection: AtomicU64::new(1),
            requests: BodyRoom::default(),
            connection_bytes: AtomicU64::new(0),
            unread: Unread::default(),
            request_bytes: AtomicU64::new(0),
            names_bytes,
            ended: Ended::default(),
            events: Events::default(),
            paths: Paths::default(),
            alarms: Alarms::new(u64::MAX),
            logins,
            certificates: Certificates::default(),
            filled: AtomicBool::new(false),
            suspended: ClientSuspension::default(),
            paging_ratio,
            leading: None,
            away: None,
            gateway: None,
            handover: Handover::default(),
            pressed: PressedUntil::default(),
            watched: Arc::default(),
            rests: Ranked::new(Rank::Rests, Vec::new()),
            timers_changed: Notify::new(),
            failed: Notify::new(),
            settings,
        }
    }

    /// The topology's owner.
    ///
    /// # Panics
    ///
    /// Of a node on standby, which runs no turn.
    pub fn meta(&self) -> &Actor<Meta<NodeLog>, ToMeta> {
        self.meta.as_ref().expect("a node on standby runs no turn")
    }

    /// Whether it has the names and nothing else: no queue, and none of what is in no log.
    pub fn is_copy(&self) -> bool {
        self.meta.is_none()
    }

    /// Whether all queues are filled. Until then no shard answers, and their locks are held.
    pub fn is_filled(&self) -> bool {
        self.filled.load(Ordering::SeqCst)
    }

    /// All queues are filled.
    pub(crate) fn is_filled_now(&self) {
        self.filled.store(true, Ordering::SeqCst);
        // A limit that was moved meanwhile, too.
        self.limit_shards();
    }

    /// Closes the listeners for clients, or opens them again. Connections stay.
    pub fn suspend(&self, is_suspended: bool) {
        self.suspended.set(is_suspended);
    }

    /// Whether the listeners for clients are closed, or about to be.
    pub fn is_suspended(&self) -> bool {
        self.suspended.is_set()
    }

    pub(crate) fn watch_suspension(&self) -> watch::Receiver<bool> {
        self.suspended.watch()
    }

    pub(crate) fn add_rest(&self, rest: Arc<Rest>) {
        self.rests.lock().push(rest);
    }

    pub(crate) fn each_rest(&self, f: impl FnMut(&Arc<Rest>)) {
        self.rests.lock().iter().for_each(f);
    }

    /// Whether a turn may give out, take and answer now. False: not before the lease is back.
    #[inline]
    pub(crate) fn has_lease(&self) -> bool {
        self.leading.as_ref().is_none_or(|it| it.holds())
    }

    /// Of a node of sessions: whether these may take what their clients send.
    #[inline]
    pub(crate) fn names_hold(&self) -> Option<&NamesHold> {
        self.away.as_ref().map(|away| away.names_hold())
    }

    /// The connections, of those that are wanted, of nodes of sessions whose shards are here.
    pub fn connections_elsewhere(&self, wanted: &Wanted) -> Elsewheres {
        match &self.gateway {
            Some(gateway) => gateway.connections(wanted),
            None => Elsewheres::new(),
        }
    }

    /// The connection that [is called](AnyConnection::is_called) so, wherever its client is connected.
    ///
    /// # Errors
    ///
    /// Nodes that did not answer in time, if no other one has it.
    pub async fn connection_called(&self, name: &str) -> Result<Option<AnyConnection>, NotHeard> {
        let here = self.connections().into_iter().map(AnyConnection::Here);
        if let Some(here) = here.into_iter().find(|it| it.is_called(name)) {
            return Ok(Some(here));
        }
        match &self.gateway {
            Some(gateway) => gateway.connection(name).await,
            None => Ok(None),
        }
    }

    /// What statistics are made of that nodes of sessions count, of each that is here. What is told is to be taken in: only what
    /// changes is told the next time.
    pub async fn sample_elsewhere(&self) -> Vec<SampledElsewhere> {
        match &self.gateway {
            Some(gateway) => gateway.sample().await,
            None => Vec::new(),
        }
    }

    /// Waits until this node may answer for what it has: one that leads a cluster needs to know that it still does. One that does not
    /// ends soon, and whoever asked it with it.
    pub async fn may_answer(&self) {
        while !self.has_lease() {
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The names, to read. Held for one turn, or to copy a page of names: never while something is formatted, sorted or
    /// waited for, and never twice by one thread.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn topology(&self) -> ReadGuard<'_, Topology> {
        self.names.read()
    }

    /// Between two turns: lets those read or change the names who wait for that.
    #[inline]
    pub(crate) fn let_others_in(&self) {
        self.names.let_others_in();
    }

    /// Whether the names can be read at this moment without a wait.
    pub fn names_are_free(&self) -> bool {
        self.names.is_free()
    }

    /// The names, to change: for the turn of [`Meta`] alone.
    pub(crate) fn topology_mut(&self) -> WriteGuard<'_, Topology> {
        self.names.write()
    }

    /// A number no other connection of this process has or had.
    pub fn new_id(&self) -> ConnectionId {
        let node = self.away.as_ref().map_or(NodeId::ALONE, |away| away.id());
        node.connection(self.next_connection.fetch_add(1, Ordering::Relaxed))
    }

    /// Makes letters to `id` reach `recipient`.
    pub fn register(&self, id: ConnectionId, recipient: Recipient) {
        if let Some(away) = &self.away {
            away.opened(id);
        }
        let mut recipients = self.recipients.write();
        let is_connection = |it: &Recipient| matches!(it, Recipient::Connection(_));
        let is_new = is_connection(&recipient);
        let was = recipients.insert(id, recipient).is_some_and(|before| is_connection(&before));
        self.connection_count.fetch_add(usize::from(is_new), Ordering::Relaxed);
        self.connection_count.fetch_sub(usize::from(was), Ordering::Relaxed);
    }

    /// Letters to `id` go nowhere from now on.
    pub fn forget(&self, id: ConnectionId) {
        let mut recipients = self.recipients.write();
        let is_connection = matches!(recipients.remove(&id), Some(Recipient::Connection(_)));
        self.connection_count.fetch_sub(usize::from(is_connection), Ordering::Relaxed);
        drop(recipients);
        if let Some(away) = &self.away {
            away.forgotten(id);
        }
    }

    /// Who gets letters to `id`.
    pub fn recipient(&self, id: ConnectionId) -> Option<Recipient> {
        self.recipients.read().get(&id).cloned()
    }

    /// Every AMQP connection, oldest first.
    pub fn connections(&self) -> Vec<Arc<Connection>> {
        let of_client = |recipient: &Recipient| match recipient {
            Recipient::Connection(connection) => Some(Arc::clone(connection)),
            Recipient::Request(_) => None,
        };
        let mut connections: Vec<_> =
            self.recipients.read().values().filter_map(of_client).collect();
        connections.sort_by_key(|connection| connection.id());
        connections
    }

    /// How many AMQP connections there are.
    pub fn connection_count(&self) -> usize {
        self.connection_count.load(Ordering::Relaxed)
    }

    /// Memory in use, in bytes: what the watermark is compared with.
    pub fn used_bytes(&self) -> u64 {
        PROGRAM_BYTES + self.held_bytes()
    }

    /// Memory that messages, queues and connections take, in bytes.
    pub fn held_bytes(&self) -> u64 {
        let shards = self.shards.iter().map(|shard| shard.held_bytes.load(Ordering::Relaxed));
        shards.sum::<u64>() + self.connection_bytes() + self.request_bytes() + self.names_bytes()
    }

    /// Memory that connections hold: input not taken yet, output not written yet, in bytes.
    pub fn connection_bytes(&self) -> u64 {
        self.connection_bytes.load(Ordering::Relaxed) + self.unread.bytes()
    }

    /// Memory that requests of the management API and their answers hold, in bytes.
    pub fn request_bytes(&self) -> u64 {
        self.request_bytes.load(Ordering::Relaxed)
    }

    /// A request holds `now` bytes after it held `before`.
    pub fn count_held_by_requests(&self, before: u64, now: u64) {
        // Wraps when it shrinks, and back.
        self.request_bytes.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Memory that names with their arguments, policies and parameters take, in bytes.
    pub fn names_bytes(&self) -> u64 {
        self.names_bytes.load(Ordering::Relaxed)
    }

    /// The names have changed.
    pub(crate) fn count_names(&self, topology: &Topology) {
        self.names_bytes.store(topology.weight(), Ordering::Relaxed);
    }

    /// A connection holds `now` bytes after it held `before`.
    pub(crate) fn count_held_by_connections(&self, before: u64, now: u64) {
        // Wraps when it shrinks, and back.
        self.connection_bytes.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Moves the memory watermark.
    pub fn set_memory_limit(&self, limit: u64) -> Option<AlarmChange> {
        self.alarms.set_memory_limit(limit);
        self.settings.bodies.set_watermark(limit);
        // A third of what bodies have.
        self.requests.set_watermark(limit / 3);
        self.topology_mut().set_weight_max(limit.max(NAMES_LEAST));
        if self.is_filled() {
            self.limit_shards();
        }
        self.alarms.update_memory(|| self.used_bytes(), now())
    }

    /// Tells the shards how much memory transient messages and histories may take.
    fn limit_shards(&self) {
        let memory = Memory { limit: self.alarms.memory_limit(), paging_ratio: self.paging_ratio };
        let shards = self.shards.len();
        for shard in &self.shards {
            let mut state = shard.actor.state();
            state.log_mut().set_spill_bytes(memory.spill_bytes(shards));
            state.set_history_bytes_max(memory.history_bytes(shards));
        }
    }

    /// Compares the memory in use with the watermark; cheap when nothing changes.
    pub fn check_memory(&self) -> Option<AlarmChange> {
        self.alarms.check_memory(|| self.used_bytes())
    }
}
