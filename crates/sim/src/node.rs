//! The broker in one process without threads and sockets: its actors, their inboxes, and the turns
//! that whoever drives it lets them have.
//!
//! Does what the server's threads do, on one thread: the same calls in the same order, but which actor
//! runs, how many of its letters it finds, how many bytes a read or a write moves and what time it is
//! are given from outside. [`Node::run`] lets all run until nobody has anything to do.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::vec::Drain;

use bytes::Bytes;
use leveret_amqp::outbuf::OutBuf;
use leveret_amqp::reply::ReplyCode;
use leveret_broker::command::{Answered, CommandStream};
use leveret_broker::flow::Alarm;
use leveret_broker::login::{Asked, Login};
use leveret_broker::message::{
    ConnectionId, Delivery, NodeId, Outbox, Reply, Step, ToMeta, ToSession, ToShard,
};
use leveret_broker::shard::Users;
use leveret_broker::stream::StreamNews;
use leveret_broker::{Meta, Shard};
use leveret_log::disk::SimDisk;
use leveret_log::{Log, MemoryLog};
use leveret_node::connection::{self, Read, Written};
use leveret_node::start::Filled;
use leveret_node::{Inboxes, KeptMax, Run};
use leveret_queue::{Offset, Time};
use leveret_session::{AwaitedBody, Context, Peer, Session, Settings};
use leveret_topology::stored::StoredError;
use leveret_topology::{Bootstrap, GroupId, Homes, PasswordHash, QueueId, Topology};

use crate::commands::CommandLink;
use crate::disk::Store;
use crate::link::Arrived;
use crate::random::Random;
use crate::shadow::Check;
use crate::site::{Site, whose};

/// The node that outlives the one with the shards.
const SECOND: NodeId = NodeId::new(2).expect("a number of 24 bits");

/// Bytes asked of a socket at once, as the server does.
const READ_BYTES: usize = 64 * 1024;

/// Who can have a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    /// By index.
    Shard(usize),
    /// The topology's owner.
    Meta,
    /// One session.
    Connection(ConnectionId),
}

/// The two directions of a connection, as the kernel would hold them.
#[derive(Debug, Default)]
pub struct Socket {
    /// Sent by the client and not read.
    pub to_server: VecDeque<u8>,
    /// Written by the server and not read.
    pub to_client: VecDeque<u8>,
    /// Bytes that `to_client` takes.
    pub room: usize,
    /// The client is gone: what it sent may still be read.
    pub is_reset: bool,
    /// The server is gone: what it sent may still be read.
    pub is_closed: bool,
}

impl Socket {
    /// Moves so many bytes of the client's to the end of `to`.
    fn read(&mut self, count: usize, to: &mut Vec<u8>) {
        let (front, back) = self.to_server.as_slices();
        let from_front = count.min(front.len());
        to.extend_from_slice(&front[..from_front]);
        to.extend_from_slice(&back[..count - from_front]);
        self.to_server.drain(..count);
    }
}

#[derive(Debug)]
struct Connection {
    session: Session,
    inbox: VecDeque<ToSession>,
    socket: Socket,
    input: Bytes,
    /// As far as it came: the record of a large body.
    body: Vec<u8>,
    output: OutBuf,
    /// A shard lost what it had of it. Its session has still to hear of that.
    is_cut_off: bool,
    is_over: bool,
}

#[derive(Debug)]
struct ShardActor<L> {
    shard: Shard<L>,
    inbox: VecDeque<ToShard>,
    has_more: bool,
}

impl<L: Log> ShardActor<L> {
    /// What was said over the link before may be lost.
    fn link_is_new(&mut self, node: NodeId) {
        self.shard.link_is_new(node);
        self.has_more = true;
    }
}

/// All actors of a node, and the sockets of its clients.
#[derive(Debug)]
pub struct Node<L = MemoryLog> {
    settings: Arc<Settings>,
    topology: Topology,
    /// What another node would have of the names, if one is looked at: [`is_followed`](Self::is_followed).
    follower: Option<Topology>,
    shards: Vec<ShardActor<L>>,
    /// Their queues are not filled: they have no turns.
    are_shards_held: bool,
    meta: Meta<L>,
    meta_inbox: VecDeque<ToMeta>,
    connections: BTreeMap<ConnectionId, Connection>,
    outbox: Outbox,
    /// What is short, for the shards.
    alarm: Alarm,
    /// A log failed: the process has to stop.
    failed: Option<String>,
    longest_output: usize,
    scratch: Scratch,
    /// The nodes whose sessions these are: first the one that the shards and the owner of the names are on.
    sites: Vec<Site>,
    /// Nodes whose sessions used the shards of the process before this one.
    attaching: Vec<NodeId>,
    /// Who had the last turn.
    last: Option<Actor>,
}

/// What turns work with, kept from one to the next: empty in between.
#[derive(Debug, Default)]
struct Scratch {
    to_meta: Vec<ToMeta>,
    to_shard: Vec<ToShard>,
    to_session: Vec<ToSession>,
}

impl Node {
    /// A node with vhost `/` and user `guest`, and nobody connected. What it knows dies with it.
    pub fn new(settings: Settings) -> Self {
        Self::with_homes(Homes::default(), settings)
    }

    /// The same with as many shards as there are groups.
    pub fn with_homes(homes: Homes, settings: Settings) -> Self {
        let mut topology = Topology::new();
        bootstrap(&mut topology);
        topology.set_homes(homes);
        let groups = (0..homes.groups() as usize).map(|index| homes.group_at(index));
        let shards = groups.map(|group| Shard::new(group, MemoryLog::new())).collect();
        Self::with(settings, topology, Meta::new(MemoryLog::new()), shards)
    }
}

fn queue_names(topology: &Topology) -> Vec<String> {
    let queues = topology.vhosts().flat_map(|vhost| topology.queues(vhost.id));
    let mut names: Vec<String> =
        queues.map(|queue| format!("{} {}", queue.vhost.get(), queue.name)).collect();
    names.sort_unstable();
    names
}

/// What a node has at its first start.
pub(crate) fn bootstrap(topology: &mut Topology) {
    let bootstrap = Bootstrap {
        user: "guest",
        password: PasswordHash::new("guest", [1, 2, 3, 4]),
        tags: &["administrator"],
        vhost: "/",
        permissions: [".*", ".*", ".*"],
    };
    topology.bootstrap(&bootstrap).expect("an empty topology takes its first user");
}

impl<L: Log> Node<L> {
    /// A node of these parts, with nobody connected.
    pub fn with(
        settings: Settings,
        topology: Topology,
        meta: Meta<L>,
        shards: Vec<Shard<L>>,
    ) -> Self {
        // A shard that was recovered has queues to look at.
        let actor = |shard| ShardActor { shard, inbox: VecDeque::new(), has_more: true };
        Self {
            settings: Arc::new(settings),
            topology,
            follower: None,
            shards: shards.into_iter().map(actor).collect(),
            are_shards_held: false,
            meta,
            meta_inbox: VecDeque::new(),
            connections: BTreeMap::new(),
            outbox: Outbox::default(),
            alarm: Alarm::default(),
            failed: None,
            longest_output: 0,
            scratch: Scratch::default(),
            sites: vec![Site::new(NodeId::ALONE)],
            attaching: Vec::new(),
            last: None,
        }
    }

    /// From now on letters to shards go over links; with `has_second` those of a second node, too.
    pub(crate) fn link(&mut self, max: KeptMax, has_second: bool) {
        // Sessions of links share no memory with shards.
        self.settings = Arc::new(Settings { allows_by_letters: true, ..(*self.settings).clone() });
        self.sites.extend(has_second.then(|| Site::new(SECOND)));
        let shards = self.shards.len();
        self.sites.iter_mut().for_each(|site| site.link(shards, max));
    }

    /// From now on commands of sessions to the owner of the names go over links, so many at a time.
    pub(crate) fn link_names(&mut self, max: u64) {
        self.sites.iter_mut().for_each(|site| site.link_names(max));
    }

    /// The process goes on where an earlier one ended: connections are named as if the last one of that were the one before. If a
    /// second node outlives it, its sessions are here from now on. Those of them are told to close whose command to the owner of
    /// the names is under way without a number: nobody knows what became of it.
    pub(crate) fn go_on_after(
        &mut self,
        mut earlier: Self,
        outlives: bool,
    ) -> Result<Vec<ConnectionId>, StoredError> {
        let mut closed = Vec::new();
        for (index, before) in std::mem::take(&mut earlier.sites).into_iter().enumerate() {
            if index == 0 || !outlives {
                self.sites[index].begin_after(&before);
                continue;
            }
            // Both processes' memory is one here: what the shards were about to give has taken room.
            earlier.shards.iter_mut().for_each(|actor| actor.shard.give_up_early());
            self.attaching.push(before.node);
            self.connections = earlier.connections.split_off(&before.node.connection(0));
            self.sites[index] = before;
            let Site { commands, leaving, .. } = &mut self.sites[index];
            closed.extend(std::mem::take(commands).into_keys());
            let leaving: Vec<_> = leaving.clone().into_iter().collect();
            for (connection, reply) in leaving {
                self.tell_meta(ToMeta::Disconnected { connection, reply: Some(reply) });
            }
        }
        let term = u64::from(self.sites[0].start);
        self.meta.begin_term(term);
        for link in self.sites.iter_mut().filter_map(|site| site.command_link.as_mut()) {
            link.begin(term, false);
        }
        closed.retain(|&id| self.connections.get(&id).is_some_and(|it| !it.is_over));
        for &id in &closed {
            let text =
                "the node that owns the names ended while a command was under way".to_owned();
            self.tell(id, ToSession::Close { code: ReplyCode::ConnectionForced, text });
        }
        if outlives && let Some(follower) = earlier.follower {
            self.follow_on(follower)?;
        }
        Ok(closed)
    }

    /// A second topology, of whoever followed an owner of names before this one, follows from now on.
    fn follow_on(&mut self, mut follower: Topology) -> Result<(), StoredError> {
        let batch = follower.changes_towards(self.topology.snapshot());
        follower.follow(&batch)?;
        self.follower = Some(follower);
        Ok(())
    }

    /// From now on a second topology begins with what is there, and has nothing but the changes that are told. It knows one group
    /// of its own, so that homes are told, too.
    pub(crate) fn begin_to_follow(&mut self) -> Result<(), StoredError> {
        self.meta.follow();
        self.follow_on(Topology::new())
    }

    /// While no change of names is under way the topology that follows is the same.
    pub(crate) fn is_followed(&self) -> Check {
        let Some(follower) = &self.follower else { return Ok(()) };
        follower.assert_invariants();
        let (own, other) = (self.topology.describe(), follower.describe());
        if own == other && self.topology.queue_count() == follower.queue_count() {
            return Ok(());
        }
        Err(format!("names:\n{own}\nand by changes alone:\n{other}"))
    }

    /// The queues that others keep when this node is gone and was the last member of all its groups, as the topology that
    /// follows has them.
    pub(crate) fn queues_without_us(&mut self) -> Option<Vec<String>> {
        let homes = self.topology.homes();
        let groups = (0..homes.groups() as usize).map(|index| homes.group_at(index));
        let groups: Vec<GroupId> = groups.collect();
        let follower = self.follower.as_mut()?;
        let mut sweep = follower.node_is_gone(NodeId::ALONE, &groups);
        while !sweep.is_done() {
            follower.sweep(&mut sweep, u64::MAX);
        }
        follower.assert_invariants();
        Some(queue_names(follower))
    }

    /// The queues that there are.
    pub(crate) fn queue_names(&self) -> Vec<String> {
        queue_names(&self.topology)
    }

    /// Letters to shards wait: their queues are not filled.
    pub(crate) fn hold_shards(&mut self) {
        self.are_shards_held = true;
    }

    /// All queues are filled.
    pub(crate) fn begin_shards(&mut self, filled: Filled) {
        filled.end(&mut self.meta);
        let attaching = std::mem::take(&mut self.attaching);
        let term = u64::from(self.sites[0].start) << 32;
        for actor in &mut self.shards {
            // Of earlier lives nothing comes any more.
            actor.shard.keep_streams(|stream| self.sites.iter().any(|site| site.numbers(stream)));
            actor.shard.succeed(term, &attaching);
        }
        self.meta.keep_commands(|CommandStream { node, start }| {
            self.sites.iter().any(|site| site.node == node && site.start == start)
        });
        self.are_shards_held = false;
        for index in 0..self.shards.len() {
            self.begin_links(index, true, false);
            self.attach(index, |site| attaching.contains(&site.node));
        }
    }

    /// Whether the queues are filled.
    pub(crate) fn is_filled(&self) -> bool {
        !self.are_shards_held
    }

    /// Why a log failed, if one did.
    pub fn failure(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// How many letters wait for the topology's owner.
    pub(crate) fn letters_to_meta(&self) -> usize {
        self.meta_inbox.len()
    }

    /// What shards say of transactions, among the letters after so many.
    pub(crate) fn votes(&self, skipped: usize) -> Vec<ToMeta> {
        let votes = self.meta_inbox.iter().skip(skipped).filter_map(|letter| match *letter {
            ToMeta::Prepared { from, tx, group, parts, ref vote } => {
                Some(ToMeta::Prepared { from, tx, group, parts, vote: vote.clone() })
            }
            ToMeta::Applied { tx, group } => Some(ToMeta::Applied { tx, group }),
            _ => None,
        });
        votes.collect()
    }

    /// Who keeps the names.
    pub fn meta(&self) -> &Meta<L> {
        &self.meta
    }

    /// Something is short, or no longer: everybody is told, as the server does.
    pub fn set_alarm(&mut self, alarm: Alarm) {
        self.alarm = alarm;
        self.tell_all(|| ToSession::Alarm(alarm));
    }

    /// Writes to a shard.
    pub fn tell_shard(&mut self, index: usize, letter: ToShard) {
        if let Some(actor) = self.shards.get_mut(index) {
            actor.inbox.push_back(letter);
        }
    }

    /// The shards, outside of turns.
    pub(crate) fn shards_mut(&mut self) -> impl Iterator<Item = &mut Shard<L>> {
        self.shards.iter_mut().map(|actor| &mut actor.shard)
    }

    /// The topology's owner, outside of turns.
    pub(crate) fn meta_mut(&mut self) -> &mut Meta<L> {
        &mut self.meta
    }

    /// A shard, outside of turns.
    pub fn shard_mut(&mut self, index: usize) -> Option<&mut Shard<L>> {
        self.shards.get_mut(index).map(|actor| &mut actor.shard)
    }

    /// The names.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Whether a shard has more to do than its last turn could.
    pub(crate) fn has_more(&self, index: usize) -> bool {
        self.shards.get(index).is_some_and(|actor| actor.has_more)
    }

    /// The shards, by index.
    pub fn shards(&self) -> impl Iterator<Item = &Shard<L>> {
        self.shards.iter().map(|actor| &actor.shard)
    }

    /// Letters that a turn wrote and that are not in inboxes yet.
    pub fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// What waits for a client's socket.
    pub fn output(&self, id: ConnectionId) -> Option<&OutBuf> {
        self.connections.get(&id).map(|connection| &connection.output)
    }

    /// The most bytes that ever waited for one socket.
    pub fn longest_output(&self) -> usize {
        self.longest_output
    }

    /// A client connects from this machine. Its socket takes `room` bytes that it has not read.
    pub fn connect(&mut self, seed: u64, room: usize, now: Time) -> ConnectionId {
        self.connect_to(0, seed, room, now)
    }

    /// The same, to the first node or the second one.
    pub(crate) fn connect_to(
        &mut self,
        site: usize,
        seed: u64,
        room: usize,
        now: Time,
    ) -> ConnectionId {
        let id = self.sites[site].name_connection();
        let (address, local) =
            (format!("127.0.0.1:{}", id.number()), ([127, 0, 0, 1], 5672).into());
        let peer = Peer { address, local, is_loopback: true, tls: None };
        let session = Session::new(id, Arc::clone(&self.settings), peer, seed, now);
        let connection = Connection {
            session,
            inbox: VecDeque::new(),
            socket: Socket { room, ..Socket::default() },
            input: Bytes::new(),
            body: Vec::new(),
            output: OutBuf::new(),
            is_cut_off: false,
            is_over: false,
        };
        self.connections.insert(id, connection);
        id
    }

    /// The socket of a connection that is not over.
    pub fn socket(&mut self, id: ConnectionId) -> Option<&mut Socket> {
        self.connections.get_mut(&id).map(|connection| &mut connection.socket)
    }

    /// Writes to a session.
    pub fn tell(&mut self, id: ConnectionId, letter: ToSession) {
        if let Some(connection) = self.connections.get_mut(&id).filter(|it| !it.is_over) {
            connection.inbox.push_back(letter);
        }
    }

    /// Writes to every session, those too whose client is gone.
    pub fn tell_all(&mut self, letter: impl Fn() -> ToSession) {
        for connection in self.connections.values_mut().filter(|it| !it.is_over) {
            connection.inbox.push_back(letter());
        }
    }

    /// Writes to the owner of the topology.
    pub fn tell_meta(&mut self, letter: ToMeta) {
        self.meta_inbox.push_back(letter);
    }

    /// Forgets connections both sides of which are done.
    pub fn bury(&mut self) {
        self.connections.retain(|_, connection| {
            !(connection.is_over && connection.inbox.is_empty() && connection.socket.is_reset)
        });
    }

    /// Everybody who has something to do.
    pub fn ready(&self, now: Time, ready: &mut Vec<Actor>) {
        for (index, ShardActor { shard, inbox, has_more }) in self.shards.iter().enumerate() {
            let is_due = shard.next_timeout().is_some_and(|at| at <= now);
            if self.is_filled() && (!inbox.is_empty() || *has_more || is_due) {
                ready.push(Actor::Shard(index));
            }
        }
        if !self.meta_inbox.is_empty() {
            ready.push(Actor::Meta);
        }
        for (&id, connection) in &self.connections {
            if connection.is_ready(now) {
                ready.push(Actor::Connection(id));
            }
        }
    }

    /// When the first actor wants to run by itself.
    pub fn next_timeout(&self) -> Option<Time> {
        let shards = self.shards.iter().filter_map(|actor| actor.shard.next_timeout());
        let sessions = self
            .connections
            .values()
            .filter(|connection| !connection.is_over)
            .filter_map(|connection| connection.session.next_timeout());
        shards.chain(sessions).min()
    }

    /// The letters that an actor will find, in words.
    pub fn letters(&self, actor: Actor) -> Vec<String> {
        fn words<L: std::fmt::Debug>(letters: &VecDeque<L>) -> Vec<String> {
            let words = |letter: &L| format!("    {:.6000}", format!("{letter:?}"));
            letters.iter().map(words).collect()
        }
        match actor {
            Actor::Meta => Some(words(&self.meta_inbox)),
            Actor::Shard(index) => self.shards.get(index).map(|actor| words(&actor.inbox)),
            Actor::Connection(id) => self.connections.get(&id).map(|it| words(&it.inbox)),
        }
        .unwrap_or_default()
    }

    /// Lets everybody have turns until nobody has anything to do but wait for time to pass.
    pub fn run(&mut self, now: Time) {
        let mut ready = Vec::new();
        loop {
            self.ready(now, &mut ready);
            if ready.is_empty() {
                return;
            }
            for actor in ready.drain(..) {
                self.turn(actor, now, |all| all.min(READ_BYTES));
                self.post();
            }
        }
    }

    /// One turn of one actor. `part` says how many of so many letters it finds, and how many of so many
    /// bytes a read or a write moves. Its own letters are then in [`outbox`](Self::outbox), to be
    /// [posted](Self::post).
    pub fn turn(&mut self, actor: Actor, now: Time, mut part: impl FnMut(usize) -> usize) {
        self.last = Some(actor);
        let Self { topology, outbox, scratch, .. } = self;
        match actor {
            Actor::Meta => {
                let count = part(self.meta_inbox.len()).min(self.meta_inbox.len());
                scratch.to_meta.extend(self.meta_inbox.drain(..count));
                self.meta.turn(&mut scratch.to_meta, topology, outbox);
                if let Some(follower) = &mut self.follower {
                    for batch in self.meta.take_changes() {
                        follower.follow(&batch).expect("a change of this process is whole");
                    }
                }
            }
            Actor::Shard(index) => {
                let Some(actor) = self.shards.get_mut(index) else { return };
                let count = part(actor.inbox.len()).min(actor.inbox.len());
                scratch.to_shard.extend(actor.inbox.drain(..count));
                actor.shard.set_alarm(self.alarm);
                actor.has_more = actor.shard.turn(&mut scratch.to_shard, topology, now, outbox);
            }
            Actor::Connection(id) => {
                let Some(connection) = self.connections.get_mut(&id) else { return };
                let count = part(connection.inbox.len()).min(connection.inbox.len());
                scratch.to_session.extend(connection.inbox.drain(..count));
                let letters = scratch.to_session.drain(..);
                // A second node has the names by what it is told.
                let names = match &self.follower {
                    Some(follower) if id.node() != NodeId::ALONE => follower,
                    _ => topology,
                };
                if connection.is_over {
                    connection::undelivered(id, letters, outbox);
                } else {
                    let waiting = connection.turn(letters, names, outbox, now, &mut part);
                    self.longest_output = self.longest_output.max(waiting);
                }
            }
        }
    }

    /// Puts letters into inboxes, in the order in which they were written.
    pub fn post(&mut self) {
        let mut outbox = std::mem::take(&mut self.outbox);
        leveret_node::post(&mut outbox, self);
        self.outbox = outbox;
    }

    /// No letter waits, no byte is under way, no message is left.
    pub fn is_idle(&self) -> bool {
        self.meta_inbox.is_empty()
            && self.sites.iter().all(|site| {
                let mut links = site.links.iter().zip(&self.shards);
                links.all(|(link, actor)| link.is_idle(&actor.shard))
            })
            && self.ready_command_links().next().is_none()
            && self.shards.iter().all(|actor| actor.inbox.is_empty() && !actor.has_more)
            && !self.shards.iter().any(|actor| actor.shard.is_attaching())
            && self.connections.values().all(|connection| connection.inbox.is_empty())
    }

    /// Nobody is connected, and no session waits for an answer that its client will not see.
    pub fn all_have_left(&self) -> bool {
        self.connections.values().all(|connection| connection.is_over)
    }

    /// Bytes of messages that shards sent to a session and that it has not seen yet.
    pub fn coming(&self, id: ConnectionId) -> usize {
        let connection = self.connections.get(&id).filter(|connection| !connection.is_over);
        connection.map_or(0, |it| it.inbox.iter().map(delivered_bytes).sum())
    }

    /// A session closes its connection by itself: the answer is waited for.
    pub fn has_closed(&self, id: ConnectionId) -> bool {
        let connection = self.connections.get(&id).filter(|connection| !connection.is_over);
        connection.is_some_and(|it| it.session.facts().state == "closed")
    }

    /// A connection's client has nothing to read, and nothing that it sent waits.
    pub fn has_read_all(&self, id: ConnectionId) -> bool {
        self.connections.get(&id).is_some_and(|connection| {
            let Socket { to_client, to_server, .. } = &connection.socket;
            to_client.is_empty() && to_server.is_empty() && connection.output.is_empty()
        })
    }

    /// Messages in all queues.
    pub fn messages(&self) -> u64 {
        let queues = self.shards.iter().flat_map(|actor| actor.shard.queues());
        queues.map(|(_, queue)| queue.counts()).map(|c| c.ready + c.unacked + c.held).sum()
    }

    /// What is in the queues that are not empty, for reading.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        for (id, queue) in self.shards.iter().flat_map(|actor| actor.shard.queues()) {
            let counts = queue.counts();
            if counts.ready + counts.unacked + counts.held > 0 || counts.consumers > 0 {
                let name = self.topology.queue_by_id(id).map_or("?", |queue| &*queue.name);
                text.push_str(&format!("{name}: {counts:?}\n"));
                for consumer in queue.consumers() {
                    text.push_str(&format!("    {consumer:?}\n"));
                }
            }
        }
        for site in &self.sites {
            for (link, actor) in site.links.iter().zip(&self.shards) {
                text.push_str(&format!("{}: {}", site.node, link.describe(&actor.shard)));
            }
            if let Some(link) = &site.command_link {
                text.push_str(&format!("{}: {}", site.node, link.describe()));
            }
        }
        for (id, connection) in &self.connections {
            text.push_str(&format!(
                "connection {}: over={} inbox={} input={} output={} wants_input={} end={:?} sockets={}/{}\n",
                id,
                connection.is_over,
                connection.inbox.len(),
                connection.input.len(),
                connection.output.len(),
                connection.session.wants_input(),
                connection.session.end(),
                connection.socket.to_server.len(),
                connection.socket.to_client.len(),
            ));
        }
        text
    }
}

impl<L: Log> Node<L> {
    /// Letters to sessions that come of what links do.
    fn tell_now(&mut self, out: Outbox) {
        out.sessions.into_iter().for_each(|(id, letter)| self.tell(id, letter));
    }

    /// The site and the shard of a link.
    fn of_link(&self, link: usize) -> (usize, usize) {
        (link / self.shards.len(), link % self.shards.len())
    }

    /// Links on which something may happen.
    pub(crate) fn ready_links(&self) -> impl Iterator<Item = usize> {
        let sites = self.sites.iter().enumerate();
        let links = sites.flat_map(move |(at, site)| {
            let first = at * self.shards.len();
            site.links.iter().zip(&self.shards).enumerate().map(move |(i, pair)| (first + i, pair))
        });
        let ready =
            links.filter(|(_, (link, actor))| self.is_filled() && link.is_ready(&actor.shard));
        ready.map(|(index, _)| index)
    }

    /// Something happens on a link.
    pub(crate) fn step_link(&mut self, link: usize, random: &mut Random) {
        let (site, index) = self.of_link(link);
        let link = &mut self.sites[site].links[index];
        let Arrived { letters, told, is_cut } = link.step(&self.shards[index].shard, random);
        self.shards[index].inbox.extend(letters);
        told.into_iter().for_each(|(id, letter)| self.tell(id, letter));
        if is_cut {
            self.begin_link(site, index, false, false);
        }
    }

    /// Nodes on whose link to the owner of the names something may happen.
    pub(crate) fn ready_command_links(&self) -> impl Iterator<Item = usize> {
        let links = self.sites.iter().map(|site| site.command_link.as_ref()).enumerate();
        links.filter(|(_, link)| link.is_some_and(CommandLink::is_ready)).map(|(site, _)| site)
    }

    /// Something happens on the link of a node to the owner of the names.
    pub(crate) fn step_command_link(&mut self, site: usize, random: &mut Random) {
        let Some(link) = &mut self.sites[site].command_link else { return };
        let mut out = Outbox::default();
        self.meta_inbox.extend(link.step(random, &mut out));
        self.answer(out);
    }

    /// Answers of the owner of the names came, and what a shard is asked for them.
    fn answer(&mut self, out: Outbox) {
        out.append_to(&mut self.outbox);
        self.last = Some(Actor::Meta);
        self.post();
    }

    /// All links to a shard begin anew. The shard may have, too.
    pub(crate) fn begin_links(&mut self, index: usize, is_new_term: bool, keeps_flights: bool) {
        for site in 0..self.sites.len() {
            self.begin_link(site, index, is_new_term, keeps_flights);
        }
    }

    fn begin_link(&mut self, site: usize, index: usize, is_new_term: bool, keeps_flights: bool) {
        let site = &mut self.sites[site];
        let Some(link) = site.links.get_mut(index) else { return };
        let mut out = Outbox::default();
        let actor = &mut self.shards[index];
        link.begin(&actor.shard, is_new_term, keeps_flights, &mut out);
        actor.link_is_new(site.node);
        self.tell_now(out);
    }

    /// A shard is in a new term: every connection of these nodes is asked what it has there, one that is over, too, if letters
    /// wait for it.
    pub(crate) fn attach(&mut self, index: usize, attaches: impl Fn(&Site) -> bool) {
        let actor = &mut self.shards[index];
        let (group, term) = (self.topology.homes().group_at(index), actor.shard.term());
        for site in self.sites.iter_mut().filter(|site| attaches(site)) {
            let Some(link) = site.links.get_mut(index) else { continue };
            let is_asked_here =
                |letter: &ToShard| is_question(letter).is_some_and(|id| id.node() == site.node);
            actor.inbox.retain(|letter| !is_asked_here(letter));
            let begins_at = actor.shard.term_begins_at(site.node);
            let all = self.connections.range_mut(site.node.connections());
            let asked = all.filter(|(_, it)| !it.is_over || !it.inbox.is_empty());
            let asked: Vec<ConnectionId> = asked
                .map(|(&id, connection)| {
                    connection.inbox.push_back(ToSession::Attach { group, term, begins_at });
                    id
                })
                .collect();
            link.sender.attach(group, begins_at, asked);
        }
    }

    /// What is on links comes at once.
    pub(crate) fn flush_links(&mut self) {
        let mut out = Outbox::default();
        for site in &mut self.sites {
            for (link, actor) in site.links.iter_mut().zip(&mut self.shards) {
                let Arrived { letters, told, is_cut } = link.flush(&actor.shard, &mut out);
                actor.inbox.extend(letters);
                out.sessions.extend(told);
                if is_cut {
                    actor.link_is_new(site.node);
                }
            }
        }
        self.tell_now(out);
        let mut out = Outbox::default();
        for link in self.sites.iter_mut().filter_map(|site| site.command_link.as_mut()) {
            self.meta_inbox.extend(link.flush(&mut out));
        }
        self.answer(out);
    }

    /// Letters that were numbered in this life.
    pub(crate) fn numbered_letters(&self) -> u64 {
        self.sites.iter().map(Site::numbered).sum()
    }

    /// Letters that are kept for shards.
    pub(crate) fn kept_letters(&self) -> usize {
        self.sites.iter().map(Site::kept).sum()
    }

    /// The letters on a link, in words.
    pub(crate) fn letters_on(&self, link: usize) -> Vec<String> {
        let (site, index) = self.of_link(link);
        self.sites[site].links[index].letters()
    }

    /// The node that a connection is of.
    fn site_of(&mut self, id: ConnectionId) -> &mut Site {
        let at = self.sites.iter().position(|site| site.node == id.node()).unwrap_or_default();
        &mut self.sites[at]
    }
}

impl<L: Log> Inboxes for Node<L> {
    fn to_shard(&mut self, group: GroupId, letter: ToShard) -> usize {
        let Some(index) = self.topology.homes().index_of(group) else { return 0 };
        let mut letter = letter;
        let whose = whose(&letter);
        // What the owner of the names asks for a session is kept for it.
        let of_session = match self.last {
            Some(Actor::Connection(id)) => Some(whose.unwrap_or(id)),
            Some(Actor::Meta) if is_asked_for(&letter) => whose,
            _ => None,
        };
        let last = self.last;
        let site = self.site_of(of_session.or(whose).unwrap_or_default());
        if let (Some(Actor::Meta), Some(id)) = (last, of_session) {
            site.commands.remove(&id);
        }
        if let Some(link) = site.links.get_mut(index) {
            let mut out = Outbox::default();
            let rest = link.post(letter, of_session.is_some(), &mut out);
            self.tell_now(out);
            let Some(rest) = rest else { return 0 };
            letter = rest;
        }
        let Some(actor) = self.shards.get_mut(index) else { return 0 };
        actor.inbox.push_back(letter);
        actor.inbox.len()
    }

    fn to_meta(&mut self, letters: Drain<'_, ToMeta>) {
        let asker = match self.last {
            Some(Actor::Connection(id)) => Some(id),
            _ => None,
        };
        for letter in letters {
            let comes = match asker {
                Some(id) => self.site_of(id).asks(id, letter),
                None => Some(letter),
            };
            self.meta_inbox.extend(comes);
        }
    }

    fn to_session(&mut self, id: ConnectionId, letters: &mut Run<'_, '_>) {
        let at = self.sites.iter().position(|site| site.node == id.node()).unwrap_or_default();
        let site = &mut self.sites[at];
        let connection = self.connections.get_mut(&id).filter(|it| !it.is_over);
        let Some(Actor::Shard(index)) = self.last else {
            let Some(connection) = connection else { return };
            for letter in letters {
                if let ToSession::Reply { channel, reply } = &letter {
                    site.is_answered(id, *channel, reply);
                }
                connection.inbox.push_back(letter);
            }
            return;
        };
        if site.links.is_empty() {
            let Some(connection) = connection else { return };
            return connection.inbox.extend(letters);
        }
        let is_over = connection.is_none();
        let (mut out, mut returned) = (Outbox::default(), Outbox::default());
        for letter in letters {
            // Of a part of a transaction the link wants to hear though the session is over.
            let is_for_link = matches!(
                letter,
                ToSession::Reply { reply: Reply::Committed | Reply::Refused { .. }, .. }
            );
            match is_over && !is_for_link {
                true => connection::undelivered(id, [letter].into_iter(), &mut returned),
                false => site.tell(index, id, letter, &mut out),
            }
        }
        self.tell_now(out);
        for (group, letter) in returned.shards {
            self.to_shard(group, letter);
        }
    }

    fn news(&mut self, news: &mut Vec<(GroupId, StreamNews)>) {
        for (group, news) in news.drain(..) {
            let Some(index) = self.topology.homes().index_of(group) else { continue };
            for link in self.sites.iter_mut().filter_map(|site| site.links.get_mut(index)) {
                link.hear(news);
            }
        }
    }

    fn answers(&mut self, answers: &mut Vec<Answered>, _: &mut Outbox) {
        for answered in answers.drain(..) {
            let node = answered.stream.node;
            let site = self.sites.iter_mut().find(|site| site.node == node);
            if let Some(link) = site.and_then(|site| site.command_link.as_mut()) {
                link.answered(answered);
            }
        }
    }

    fn login(&mut self, login: Login, outbox: &mut Outbox) {
        outbox.session(login.connection, login.answer(&self.topology));
    }

    fn asked(&mut self, asked: Asked) {
        unreachable!("no user is known elsewhere: {asked:?}");
    }

    fn events(&mut self, outbox: &mut Outbox) {
        // Nobody consumes them here.
        outbox.events.clear();
    }

    fn steps(&mut self, steps: &mut Vec<Step>) {
        steps.clear();
    }

    fn failed(&mut self, why: String) {
        self.failed.get_or_insert(why);
    }
}

impl Connection {
    fn is_ready(&self, now: Time) -> bool {
        if self.is_over {
            return !self.inbox.is_empty();
        }
        let wants = self.session.wants_input();
        let leaves_some = wants && self.session.leaves_some() && !self.input.is_empty();
        leaves_some
            || !self.inbox.is_empty()
            || self.socket.is_reset && (wants || !self.output.is_empty())
            || wants && !self.socket.to_server.is_empty()
            || !self.output.is_empty() && self.socket.to_client.len() < self.socket.room
            || self.session.next_timeout().is_some_and(|at| at <= now)
    }

    /// A turn as the server's: letters, timeouts, one read, one write. Returns how many bytes waited for
    /// the socket before the write.
    fn turn(
        &mut self,
        letters: impl Iterator<Item = ToSession>,
        topology: &Topology,
        outbox: &mut Outbox,
        now: Time,
        part: &mut impl FnMut(usize) -> usize,
    ) -> usize {
        let Self { session, input, body, output, socket, .. } = self;
        let mut cx =
            Context { topology, now, now_us: now.ms() * 1000, wall: now, out: output, outbox };
        for letter in letters {
            session.receive(letter, &mut cx);
        }
        if session.next_timeout().is_some_and(|at| at <= now) {
            session.timeout(&mut cx);
        }
        let mut reader = SocketReader { socket, body, part };
        if !connection::read(session, input, &mut reader, &mut cx) {
            self.is_over = true;
            return 0;
        }
        let waiting = output.len();
        let mut none = OutBuf::new();
        let mut cx =
            Context { topology, now, now_us: now.ms() * 1000, wall: now, out: &mut none, outbox };
        let mut writer = SocketWriter { socket, part };
        if let Written::Over { .. } = connection::write(session, &mut writer, output, &mut cx) {
            self.is_over = true;
            socket.is_closed = true;
        }
        waiting
    }
}

/// A socket to read from, and how many of so many bytes a read brings.
struct SocketReader<'a, P> {
    socket: &'a mut Socket,
    /// As far as it came: the record of a large body.
    body: &'a mut Vec<u8>,
    part: &'a mut P,
}

impl<P: FnMut(usize) -> usize> connection::ReadHalf for SocketReader<'_, P> {
    fn may_have_bytes(&self) -> bool {
        !self.socket.to_server.is_empty() || self.socket.is_reset
    }

    fn read(&mut self, session: &mut Session, input: &mut Bytes, cx: &mut Context<'_>) -> Read {
        let Self { socket, body, part } = self;
        if socket.to_server.is_empty() {
            return Read::End;
        }
        let awaited = if input.is_empty() { session.awaited_body() } else { None };
        let Some(AwaitedBody { front, rest }) = awaited else {
            let count = part(socket.to_server.len()).min(session.read_max());
            let mut block = Vec::with_capacity(input.len() + count);
            block.extend_from_slice(input);
            socket.read(count, &mut block);
            *input = Bytes::from(block);
            return Read::Some;
        };
        if body.is_empty() {
            body.reserve_exact(front + rest);
            body.resize(front, 0);
        }
        let missing = front + rest - body.len();
        let count = part(missing.min(socket.to_server.len()));
        socket.read(count, body);
        session.heard(count);
        if count == missing {
            session.write_front(&mut body[..front], cx.wall);
            session.input_body(&Bytes::from(std::mem::take(*body)), front, cx);
        }
        Read::Some
    }

    fn goes_on(&mut self, _: &mut Session, _: &Context<'_>) -> bool {
        false
    }
}

/// A socket to write to, and how many of so many bytes a write takes.
struct SocketWriter<'a, P> {
    socket: &'a mut Socket,
    part: &'a mut P,
}

impl<P: FnMut(usize) -> usize> connection::WriteHalf for SocketWriter<'_, P> {
    fn write(&mut self, out: &mut OutBuf) -> io::Result<()> {
        let Self { socket, part } = self;
        // A reset is also found by writing.
        if socket.is_reset && !out.is_empty() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let count = socket.room.saturating_sub(socket.to_client.len()).min(out.len());
        if count > 0 {
            let count = part(count);
            let mut left = count;
            let mut slices = [IoSlice::new(&[]); 8];
            let filled = out.slices(&mut slices, usize::MAX);
            for slice in slices.iter().take(filled) {
                let bytes = slice.get(..left).unwrap_or(slice);
                socket.to_client.extend(bytes);
                left -= bytes.len();
            }
            // Only so many slices fit into one write.
            out.advance(count - left);
        }
        Ok(())
    }
}

impl Node<Store> {
    /// The log of a shard lost its end, and this is what is there. What came back.
    pub(crate) fn lose(
        &mut self,
        index: usize,
        log: Store,
        now: Time,
    ) -> Option<leveret_broker::shard::Restored> {
        let Self { shards, meta, topology, outbox, connections, .. } = self;
        let actor = shards.get_mut(index)?;
        let decided = meta.decided_so_far();
        let last: Vec<ConnectionId> = self.sites.iter().map(Site::last_connection).collect();
        let nodes: Vec<NodeId> = self.sites.iter().map(|site| site.node).collect();
        let users = match self.sites[0].links.is_empty() {
            true => {
                connections.values_mut().for_each(|it| it.is_cut_off = true);
                Users::AreCutOff(&last)
            }
            false => Users::Attach(&nodes),
        };
        let restored = actor.shard.lose(log, users, topology, &decided, now, outbox);
        actor.has_more = true;
        self.last = Some(Actor::Shard(index));
        self.post();
        Some(restored)
    }

    /// Whether some shard waits for those who use it.
    pub(crate) fn is_attaching(&self) -> bool {
        self.shards.iter().any(|actor| actor.shard.is_attaching())
    }

    /// Whether a session, or what is on its way to one, has a message that it did not settle, and that its shard did not take
    /// back.
    pub(crate) fn is_held(&self, queue: QueueId, offset: Offset) -> bool {
        let is_it =
            |it: &Delivery| it.unacked.is_some() && it.queue == queue && it.offset == offset;
        let is_on_its_way = |letter: &ToSession| match letter {
            ToSession::Deliver(deliveries) => deliveries.iter().any(is_it),
            ToSession::Reply { reply: Reply::Got { delivery, .. }, .. } => is_it(delivery),
            _ => false,
        };
        self.connections.values().filter(|connection| !connection.is_cut_off).any(|connection| {
            !connection.is_over && connection.session.holds(queue, offset)
                || connection.inbox.iter().any(is_on_its_way)
        })
    }

    /// How many stages of a log may be agreed upon next: a shard's, or that of names, which is the last one.
    pub(crate) fn proposed(&self, index: usize) -> usize {
        let shard = self.shards.get(index).map(|actor| actor.shard.log());
        shard.unwrap_or_else(|| self.meta.log()).proposed()
    }

    /// What the disks have of all that is agreed upon, names last, if the rest is lost in a crash.
    pub(crate) fn agreed_images(&self) -> Vec<Option<SimDisk>> {
        let shards = self.shards.iter().map(|actor| actor.shard.log());
        shards.chain([self.meta.log()]).map(Store::agreed_image).collect()
    }

    /// The first stages of a log are agreed upon, and its owner is woken.
    pub(crate) fn agree(&mut self, index: usize, count: usize) {
        let count = count.min(self.proposed(index));
        if count == 0 {
            return;
        }
        match self.shards.get_mut(index) {
            Some(actor) => {
                actor.shard.log_mut().agree(count);
                actor.inbox.push_back(ToShard::LogWoke);
            }
            None => {
                self.meta.log_mut().agree(count);
                self.meta_inbox.push_back(ToMeta::LogWoke);
            }
        }
    }
}

/// Whether the owner of the names asks a shard something that it will tell a session.
fn is_asked_for(letter: &ToShard) -> bool {
    match letter {
        ToShard::Create { reply: Some(reply), .. }
        | ToShard::Count { reply, .. }
        | ToShard::Delete { reply: Some(reply), .. } => reply.connection.number() != 0,
        _ => false,
    }
}

/// The session that a letter without a number comes from, if one does. Number 0 of a node is no session's.
fn is_question(letter: &ToShard) -> Option<ConnectionId> {
    let asker = match letter {
        ToShard::Consume { reply, .. }
        | ToShard::Get { reply, .. }
        | ToShard::Purge { reply, .. } => reply.connection,
        ToShard::Cancel { connection, .. }
        | ToShard::Disconnected { connection, .. }
        | ToShard::Resume { connection, .. } => *connection,
        letter => whose(letter).filter(|_| is_asked_for(letter))?,
    };
    Some(asker).filter(|asker| asker.number() != 0)
}

/// Bytes of messages in a letter.
fn delivered_bytes(letter: &ToSession) -> usize {
    match letter {
        ToSession::Deliver(deliveries) => deliveries.iter().map(|one| one.record.len()).sum(),
        _ => 0,
    }
}
