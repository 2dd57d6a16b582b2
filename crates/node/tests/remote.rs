//! Both ends of the connection between nodes of sessions and the node that leads: real sessions and clients, real shards and owner of
//! the names, over connections that keep order and end, and leaders that come one after the other from the same logs.
//!
//! Each message is confirmed once and stored once, each ack counts, what somebody has is given to nobody else, each command is
//! answered once, and what was answered is so on all nodes.

#[path = "remote/client.rs"]
mod client;
#[path = "../../broker/tests/hand/log.rs"]
mod log;
#[path = "remote/sessions.rs"]
mod sessions;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::vec::Drain;

use client::{Client, Seen, Waits};
use leveret_amqp::method::{basic, exchange, queue};
use leveret_broker::command::Answered;
use leveret_broker::flow::Alarm;
use leveret_broker::login::{Asked, Login};
use leveret_broker::message::*;
use leveret_broker::stream::{StreamClass, StreamNews};
use leveret_broker::{Meta, Shard};
use leveret_log::Log as _;
use leveret_node::remote::{Heard, RemoteShards};
use leveret_node::start::{Filled, Past, host};
use leveret_node::{Inboxes, KeptMax, Run, post};
use leveret_queue::Time;
use leveret_session::Settings;
use leveret_topology::{
    Bootstrap, GroupId, Homes, NodeId, PasswordHash, QueueSpec, Topology, VhostId,
};
use log::HandLog;
use sessions::{HeardOf, RemoteSessions};

const SITES: usize = 2;
const CLIENTS: usize = 3;
const QUEUES: usize = 3;
const SHARDS: usize = 2;
const HOMES: Homes = Homes::among(SHARDS as u32);
/// Where a client waits for direct replies.
const DIRECT: usize = QUEUES;

type Random<'a> = &'a mut dyn FnMut(u64) -> u64;

fn queue_name(index: usize) -> String {
    if index == DIRECT { "amq.rabbitmq.reply-to".to_owned() } else { format!("q{index}") }
}

/// A node of sessions.
struct Site {
    raft_id: u64,
    start: u32,
    remote: RemoteShards,
    topology: Topology,
    /// To be applied.
    names: VecDeque<NamesBatch>,
    clients: Vec<Client>,
    next: u64,
    is_connected: bool,
    /// The leader knows it.
    is_known: bool,
    up: VecDeque<ToLeader>,
    down: VecDeque<FromLeader>,
}

struct Leader {
    meta_log: HandLog,
    logs: Vec<HandLog>,
    meta: Meta<HandLog>,
    topology: Topology,
    shards: Vec<Shard<HandLog>>,
    has_more: [bool; SHARDS],
    inboxes: [Vec<ToShard>; SHARDS],
    to_meta: Vec<ToMeta>,
    sessions: RemoteSessions,
    filled: Option<Filled>,
    has_begun: bool,
    term: u64,
    /// Whose turn it is.
    from: Option<GroupId>,
}

/// What became of a message.
#[derive(Clone, Debug, Default)]
struct Fate {
    confirmed: bool,
    /// Nobody waits for its confirm any more.
    is_given_up: bool,
    holder: Option<ConnectionId>,
    is_acked: bool,
    /// Its ack may be lost, with the node that read it.
    may_come_back: bool,
    /// It was given out.
    was_seen: bool,
}

#[derive(Debug, Default)]
struct Totals {
    leaders: u64,
    ends: u64,
    confirmed: u64,
    acked: u64,
    answers: BTreeMap<&'static str, u64>,
    redelivered: u64,
    direct: u64,
    given_up: u64,
}

struct World {
    now: Time,
    settings: Arc<Settings>,
    vhost: VhostId,
    sites: Vec<Site>,
    leader: Leader,
    messages: Vec<Fate>,
    /// Direct replies that came, by number of the request.
    replies: BTreeSet<u64>,
    requests: BTreeMap<u64, ConnectionId>,
    next_request: u64,
    totals: Totals,
    ends_nodes: bool,
}

fn first_names() -> Topology {
    let mut topology = Topology::new();
    topology.set_homes(HOMES);
    let bootstrap = Bootstrap {
        user: "guest",
        password: PasswordHash::new("guest", [1, 2, 3, 4]),
        tags: &["administrator"],
        vhost: "/",
        permissions: [".*"; 3],
    };
    topology.bootstrap(&bootstrap).expect("a fresh topology");
    let vhost = topology.vhost("/").expect("there").id;
    for index in 0..QUEUES {
        let spec = QueueSpec {
            vhost,
            name: &queue_name(index),
            server_named: false,
            durable: true,
            auto_delete: false,
            exclusive_owner: None,
            arguments: Default::default(),
        };
        topology.declare_queue(spec).expect("declared");
    }
    topology
}

fn agrees(log: &HandLog) {
    let moment = log.moment();
    let mut hand = log.hand();
    (hand.agrees, hand.reads_agreed, hand.agreed) = (true, true, Some(moment));
}

impl Leader {
    fn new(meta_log: HandLog, logs: Vec<HandLog>, term: u64, now: Time) -> Self {
        let disk = meta_log.clone();
        let wait = &mut || assert!(disk.hand().finish_any());
        let (mut meta, topology) = if meta_log.end().get() == 0 {
            let (mut meta, mut topology) = (Meta::new(meta_log.clone()), first_names());
            meta.adopt(&mut topology, wait).expect("room");
            (meta, topology)
        } else {
            Meta::recover(HOMES, meta_log.clone(), wait).expect("what was written")
        };
        meta.follow();
        meta.begin_term(term);
        logs.iter().for_each(agrees);
        let mut shards = host(logs.iter().cloned(), &topology, false, now);
        let (past, mut filled) = (Past::new(&meta, Vec::new()), Filled::default());
        for (index, shard) in shards.iter_mut().enumerate() {
            filled.add(past.fill(index, shard, &mut |_| {}));
        }
        Self {
            meta_log,
            logs,
            meta,
            topology,
            shards,
            has_more: [true; SHARDS],
            inboxes: Default::default(),
            to_meta: Vec::new(),
            sessions: RemoteSessions::new(HOMES),
            filled: Some(filled),
            has_begun: false,
            term,
            from: None,
        }
    }

    /// The next one, from what the disks have.
    fn next(&self, now: Time) -> Self {
        let logs = self.logs.iter().map(HandLog::crash).collect();
        Self::new(self.meta_log.crash(), logs, self.term + 1, now)
    }

    fn post(&mut self, mut outbox: Outbox, from: Option<GroupId>) {
        self.from = from;
        post(&mut outbox, self);
    }

    fn change_names(&mut self) {
        let changes = self.meta.take_changes();
        self.sessions.change(changes);
    }

    fn meta_turn(&mut self, count: usize) {
        let mut letters: Vec<_> = self.to_meta.drain(..count).collect();
        letters.push(ToMeta::LogWoke);
        let mut turn = Outbox::default();
        self.meta.turn(&mut letters, &mut self.topology, &mut turn);
        self.change_names();
        let mut out = Outbox::default();
        self.sessions.hold(turn, &mut out);
        self.post(out, None);
    }

    fn shard_turn(&mut self, index: usize, count: usize, now: Time) {
        if !self.has_begun {
            return;
        }
        let mut letters: Vec<_> = self.inboxes[index].drain(..count).collect();
        letters.push(ToShard::LogWoke);
        let mut out = Outbox::default();
        let shard = &mut self.shards[index];
        self.has_more[index] = shard.turn(&mut letters, &self.topology, now, &mut out);
        self.post(out, Some(HOMES.group_at(index)));
    }

    fn hear(&mut self, node: NodeId, letter: ToLeader) {
        let mut out = Outbox::default();
        let heard = self.sessions.hear(node, letter, &mut out).expect("its own letter");
        self.post(out, None);
        if heard == HeardOf::HasNames && self.has_begun {
            self.tell_begins(node);
        }
    }

    fn hello(&mut self, hello: &SessionsHello) -> Result<NodeId, String> {
        let node = self.sessions.hello(hello, self.has_begun)?;
        self.change_names();
        self.sessions.names(node, self.topology.snapshot());
        Ok(node)
    }

    fn tell_begins(&mut self, node: NodeId) {
        let remote = self.sessions.node(node).expect("it is here");
        let classes = StreamClass::BOTH.map(|class| remote.stream(class));
        let places = self.shards.iter().enumerate().map(|(index, shard)| {
            (HOMES.group_at(index), classes.map(|stream| shard.stream_place(stream)))
        });
        let terms = LeaderTerms { names: self.meta.term(), shards: places.collect() };
        remote.tell(FromLeader::Begins(terms));
        remote.tell(FromLeader::Alarm(Alarm::default()));
    }

    fn begin(&mut self) {
        let Self { shards, meta, sessions, .. } = self;
        let attaching = sessions.attaching();
        for shard in shards {
            shard.keep_streams(|stream| sessions.numbers(stream));
            shard.succeed(self.term << 32, &attaching);
        }
        self.filled.take().expect("filled").end(meta);
        meta.keep_commands(|stream| sessions.commands(stream));
        self.has_begun = true;
        let nodes: Vec<NodeId> = self.sessions.nodes().map(|node| node.node()).collect();
        let has_names = |node: &NodeId| self.sessions.turns().has_names(*node);
        let nodes: Vec<NodeId> = nodes.into_iter().filter(has_names).collect();
        nodes.into_iter().for_each(|node| self.tell_begins(node));
    }

    fn gone(&mut self, node: NodeId) {
        let mut out = Outbox::default();
        self.sessions.gone(node, &mut out);
        self.shards.iter_mut().for_each(|shard| shard.node_is_gone(node));
        self.has_more = [true; SHARDS];
        self.post(out, None);
    }

    fn finish(&mut self) -> bool {
        let mut has_done = self.meta_log.hand().finish();
        for log in &self.logs {
            has_done |= log.hand().finish_any();
        }
        has_done
    }
}

impl Inboxes for Leader {
    fn to_shard(&mut self, group: GroupId, letter: ToShard) -> usize {
        let inbox = &mut self.inboxes[group.index()];
        inbox.push(letter);
        inbox.len()
    }

    fn to_meta(&mut self, letters: Drain<'_, ToMeta>) {
        self.to_meta.extend(letters);
    }

    fn to_session(&mut self, id: ConnectionId, letters: &mut Run<'_, '_>) {
        if let Some(node) = self.sessions.node(id.node()) {
            letters.for_each(|letter| node.tell(FromLeader::Session(id, self.from, letter)));
        }
    }

    fn news(&mut self, news: &mut Vec<(GroupId, StreamNews)>) {
        for (group, news) in news.drain(..) {
            if let Some(node) = self.sessions.node(news.stream.node) {
                node.tell(FromLeader::News(group, news));
            }
        }
    }

    fn answers(&mut self, answers: &mut Vec<Answered>, _: &mut Outbox) {
        for answered in answers.drain(..) {
            if let Some(node) = self.sessions.node(answered.stream.node) {
                node.tell(FromLeader::Answered(answered));
            }
        }
    }

    fn login(&mut self, login: Login, _: &mut Outbox) {
        unreachable!("nobody logs in here: {login:?}");
    }

    fn asked(&mut self, asked: Asked) {
        unreachable!("no user is known elsewhere: {asked:?}");
    }

    fn events(&mut self, outbox: &mut Outbox) {
        outbox.events.clear();
    }

    fn steps(&mut self, steps: &mut Vec<Step>) {
        steps.clear();
    }

    fn failed(&mut self, why: String) {
        panic!("a log failed: {why}");
    }
}

impl Site {
    fn new(raft_id: u64, start: u32, max: KeptMax) -> Self {
        let mut topology = Topology::new();
        topology.set_homes(HOMES);
        Self {
            raft_id,
            start,
            remote: RemoteShards::new(raft_id, start, HOMES, max),
            topology,
            names: VecDeque::new(),
            clients: Vec::new(),
            next: 1 + (u64::from(start) << 20),
            is_connected: false,
            is_known: false,
            up: VecDeque::new(),
            down: VecDeque::new(),
        }
    }

    fn post(&mut self, mut outbox: Outbox) {
        post(&mut outbox, self);
    }

    fn cut(&mut self) {
        self.up.clear();
        self.down.clear();
        (self.is_connected, self.is_known) = (false, false);
        self.names.clear();
        self.remote.lost();
    }

    fn connect(&mut self, settings: &Arc<Settings>, now: Time) {
        let id = self.remote.node().connection(self.next);
        self.next += 1;
        self.remote.opened(id);
        self.clients.push(Client::new(id, settings, now));
    }

    /// Who is over and has no letters is buried.
    fn bury(&mut self) {
        let Self { clients, remote, .. } = self;
        clients.retain(|client| {
            let is_over = client.is_gone && client.inbox.is_empty();
            if is_over {
                remote.forgotten(client.id);
            }
            !is_over
        });
    }

    fn turn(&mut self, index: usize, letters: usize, now: Time) {
        let mut out = Outbox::default();
        self.clients[index].turn(letters, &self.topology, now, &mut out);
        self.post(out);
    }

    fn apply_names(&mut self) {
        let Some(batch) = self.names.pop_front() else { return };
        let changes = match batch.is_whole {
            true => self.topology.changes_towards(batch.changes),
            false => batch.changes,
        };
        self.topology.follow(&changes).expect("whole records");
        self.remote.names_taken(batch.number);
    }
}

impl Inboxes for Site {
    fn to_shard(&mut self, group: GroupId, letter: ToShard) -> usize {
        let mut out = Outbox::default();
        self.remote.to_shard(group, letter, &mut out);
        self.tell(out);
        0
    }

    fn to_meta(&mut self, letters: Drain<'_, ToMeta>) {
        let mut out = Outbox::default();
        letters.for_each(|letter| self.remote.to_meta(letter, &mut out));
        self.tell(out);
    }

    fn to_session(&mut self, id: ConnectionId, letters: &mut Run<'_, '_>) {
        if id.node() != self.remote.node() {
            return letters.for_each(|letter| self.remote.to_session(id, letter));
        }
        if let Some(client) = self.clients.iter_mut().find(|it| it.id == id && !it.is_gone) {
            client.inbox.extend(letters);
        }
    }

    fn login(&mut self, login: Login, outbox: &mut Outbox) {
        outbox.session(login.connection, login.answer(&self.topology));
    }

    fn asked(&mut self, asked: Asked) {
        unreachable!("no user is known elsewhere: {asked:?}");
    }

    fn events(&mut self, outbox: &mut Outbox) {
        outbox.events.clear();
    }

    fn steps(&mut self, steps: &mut Vec<Step>) {
        steps.clear();
    }

    fn failed(&mut self, why: String) {
        panic!("there is no log: {why}");
    }
}

impl Site {
    /// Pauses and refusals.
    fn tell(&mut self, out: Outbox) {
        assert!(out.shards.is_empty() && out.meta.is_empty(), "{out:?}");
        for (id, letter) in out.sessions {
            if let Some(client) = self.clients.iter_mut().find(|it| it.id == id && !it.is_gone) {
                client.inbox.push(letter);
            }
        }
    }
}

impl World {
    fn new(ends_nodes: bool, random: Random<'_>) -> Self {
        let now = Time::from_ms(1_000_000);
        let leader =
            Leader::new(HandLog::default(), vec![HandLog::default(), HandLog::default()], 1, now);
        let mut max = || KeptMax { letters: 1 + random(12) as usize, bytes: 1 << (8 + random(8)) };
        let sites = (0..SITES as u64).map(|raft_id| Site::new(raft_id, 0, max())).collect();
        let settings = Settings { allows_by_letters: true, heartbeat_s: 0, ..Settings::default() };
        Self {
            now,
            settings: Arc::new(settings),
            vhost: leader.topology.vhost("/").expect("there").id,
            sites,
            leader,
            messages: Vec::new(),
            replies: BTreeSet::new(),
            requests: BTreeMap::new(),
            next_request: 0,
            totals: Totals::default(),
            ends_nodes,
        }
    }

    /// The leader's process ends, and another one leads from what is on the disks.
    fn next_leader(&mut self) {
        self.sites.iter_mut().for_each(Site::cut);
        self.leader = self.leader.next(self.now);
        self.totals.leaders += 1;
    }

    /// The process of a node of sessions ends, and begins anew.
    fn end_site(&mut self, at: usize) {
        let site = &mut self.sites[at];
        let (node, was_known) = (site.remote.node(), site.is_known);
        for client in std::mem::take(&mut site.clients) {
            gives_up(&mut self.messages, &client, &mut self.totals);
        }
        for fate in &mut self.messages {
            // What is agreed upon of that nobody can tell any more.
            fate.may_come_back |= fate.is_acked;
        }
        let (raft_id, start) = (site.raft_id, site.start + 1);
        *site = Site::new(raft_id, start, KeptMax { letters: 5, bytes: 1 << 12 });
        if was_known {
            self.leader.gone(node);
        }
        self.totals.ends += 1;
    }

    /// A letter to the leader.
    fn up(&mut self, at: usize) {
        let site = &mut self.sites[at];
        let Some(letter) = site.up.pop_front() else { return };
        let node = site.remote.node();
        match letter {
            ToLeader::Hello(hello) => {
                assert_eq!(self.leader.hello(&hello), Ok(node));
                site.is_known = true;
            }
            letter => self.leader.hear(node, letter),
        }
    }

    /// A letter from the leader.
    fn down(&mut self, at: usize) {
        let site = &mut self.sites[at];
        let Some(letter) = site.down.pop_front() else { return };
        let mut out = Outbox::default();
        match site.remote.hear(letter, &mut out).expect("what a leader says") {
            Heard::Done | Heard::Alarm(_) | Heard::Look(..) | Heard::Uses(_) => {}
            Heard::Names(batch) => site.names.push_back(batch),
            Heard::Over(why) => panic!("{why}"),
        }
        site.post(out);
    }

    fn move_letters(&mut self, at: usize, random: Random<'_>) {
        let site = &mut self.sites[at];
        if !site.is_connected {
            return;
        }
        for _ in 0..random(4) {
            let has_next = site.remote.has_next();
            let letter = site.remote.send_next();
            assert!(has_next || letter.is_none(), "{letter:?} is not announced");
            site.up.extend(letter);
        }
        if site.is_known
            && let Some(node) = self.leader.sessions.node(site.remote.node())
        {
            for _ in 0..random(4) {
                site.down.extend(node.send_next());
            }
        }
        (0..random(4)).for_each(|_| self.up(at));
        (0..random(4)).for_each(|_| self.down(at));
    }

    fn act(&mut self, at: usize, random: Random<'_>) {
        let site = &mut self.sites[at];
        if !site.remote.is_open() {
            return;
        }
        if site.clients.len() < CLIENTS {
            return site.connect(&self.settings, self.now);
        }
        let index = random(CLIENTS as u64) as usize;
        let client = &mut site.clients[index];
        if !client.is_free() {
            return;
        }
        let queue = random(QUEUES as u64) as usize;
        let name = queue_name(queue);
        let own = format!("own{}", client.id.bits());
        match random(24) {
            0..=5 => {
                let number = self.messages.len() as u64;
                self.messages.push(Fate::default());
                client.publish(&name, number, None, true);
            }
            6..=10 => self.settle(at, index, random),
            11 | 12 if !client.consumes.contains(&queue) => {
                let tag = format!("c{queue}");
                let method =
                    basic::Consume { queue: &name, consumer_tag: &tag, ..Default::default() };
                client.say(1, &method);
                client.waits = Waits::Consume(queue);
            }
            13 if !client.consumes.contains(&DIRECT) => {
                let name = queue_name(DIRECT);
                let method = basic::Consume {
                    queue: &name,
                    consumer_tag: "direct",
                    no_ack: true,
                    ..Default::default()
                };
                client.say(1, &method);
                client.waits = Waits::Consume(DIRECT);
            }
            14 if client.consumes.contains(&queue) => {
                let consumer_tag = &*format!("c{queue}");
                client.say(1, &basic::Cancel { consumer_tag, no_wait: false });
                client.waits = Waits::Cancel(queue);
            }
            15 | 16 => {
                client.say(1, &basic::Get { ticket: 0, queue: &name, no_ack: false });
                client.waits = Waits::Get;
            }
            17 => {
                let (prefetch_count, global) = (random(4) as u16, random(2) == 0);
                client.say(1, &basic::Qos { prefetch_size: 0, prefetch_count, global });
                client.waits = Waits::Qos;
            }
            18 | 19 if client.has_exchange => {
                let method = exchange::Delete { exchange: &own, ..Default::default() };
                client.say(1, &method);
                client.waits = Waits::DeleteExchange;
            }
            18 | 19 => {
                let method = exchange::Declare {
                    exchange: &own,
                    kind: "fanout",
                    durable: true,
                    ..Default::default()
                };
                client.say(1, &method);
                client.waits = Waits::DeclareExchange;
            }
            20 if client.has_queue => {
                client.say(1, &queue::Delete { queue: &own, ..Default::default() });
                client.waits = Waits::DeleteQueue;
            }
            20 => {
                let method = queue::Declare { queue: &own, durable: true, ..Default::default() };
                client.say(1, &method);
                client.waits = Waits::DeclareQueue;
            }
            21 if client.consumes.contains(&DIRECT) => {
                let number = REQUEST + self.next_request;
                self.next_request += 1;
                self.requests.insert(number, client.id);
                client.publish(&name, number, Some(&queue_name(DIRECT)), false);
            }
            23 => {
                let queue = &*format!("exclusive{}", client.id.bits());
                client.say(1, &queue::Declare { queue, exclusive: true, ..Default::default() });
                client.waits = Waits::DeclareExclusive;
            }
            22 if random(4) == 0 && client.sent.is_empty() => self.leave(at, index),
            _ => {}
        }
    }

    /// The client leaves without a word.
    fn leave(&mut self, at: usize, index: usize) {
        let site = &mut self.sites[at];
        let mut out = Outbox::default();
        let client = &mut site.clients[index];
        gives_up(&mut self.messages, client, &mut self.totals);
        client.leaves(&site.topology, self.now, &mut out);
        site.post(out);
        site.bury();
    }

    /// One of the messages that a client has is acked, or goes back.
    fn settle(&mut self, at: usize, index: usize, random: Random<'_>) {
        let client = &mut self.sites[at].clients[index];
        let count = client.held.len() as u64;
        let Some((&delivery_tag, &number)) = client.held.iter().nth(random(count.max(1)) as usize)
        else {
            return;
        };
        client.held.remove(&delivery_tag);
        if number >= REQUEST {
            client.say(1, &basic::Ack { delivery_tag, multiple: false });
            return;
        }
        let fate = &mut self.messages[number as usize];
        fate.holder = None;
        if random(4) == 0 {
            client.say(1, &basic::Nack { delivery_tag, multiple: false, requeue: true });
        } else {
            fate.is_acked = true;
            self.totals.acked += 1;
            client.say(1, &basic::Ack { delivery_tag, multiple: false });
        }
    }

    fn read(&mut self, at: usize, index: usize, random: Random<'_>) {
        let client = &mut self.sites[at].clients[index];
        if client.is_gone {
            return;
        }
        let (id, own) = (client.id, format!("own{}", client.id.bits()));
        for seen in client.read() {
            match seen {
                Seen::In => {}
                Seen::Closed => return self.leave(at, index),
                Seen::Confirmed(u64::MAX) => {}
                Seen::Confirmed(number) => {
                    let fate = &mut self.messages[number as usize];
                    assert!(!std::mem::replace(&mut fate.confirmed, true), "{number} twice");
                    self.totals.confirmed += 1;
                }
                Seen::Given { body, is_direct: true, .. } => {
                    let number = u64::from_le_bytes(body.try_into().expect("eight bytes"));
                    assert_eq!(self.requests.get(&number), Some(&id), "of another one");
                    assert!(self.replies.insert(number), "reply {number} comes twice");
                    self.totals.direct += 1;
                }
                Seen::Given { tag, body, redelivered, reply_to, .. } => {
                    let number = u64::from_le_bytes(body.try_into().expect("eight bytes"));
                    self.given(at, index, tag, number, redelivered, reply_to, random);
                }
                Seen::Answer(name) => {
                    *self.totals.answers.entry(name).or_default() += 1;
                    self.is_so(name, &own);
                }
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what a delivery has")]
    fn given(
        &mut self,
        at: usize,
        index: usize,
        tag: u64,
        number: u64,
        redelivered: bool,
        reply_to: Option<String>,
        random: Random<'_>,
    ) {
        let client = &mut self.sites[at].clients[index];
        client.held.insert(tag, number);
        if number >= REQUEST {
            let Some(reply_to) = reply_to else { panic!("a request without an address") };
            // One that came before is answered by who had it.
            if !redelivered {
                client.publish(&reply_to, number, None, false);
            } else if client.is_free() && random(2) == 0 {
                let method =
                    queue::Declare { queue: &reply_to, passive: true, ..Default::default() };
                client.say(1, &method);
                client.waits = Waits::Asks;
            }
            return;
        }
        let id = client.id;
        let fate = &mut self.messages[number as usize];
        assert!(!fate.is_acked || fate.may_come_back, "{number} comes again, and was acked");
        assert_eq!(fate.holder, None, "{number} is given to {id}");
        assert!(redelivered || !fate.was_seen, "{number} was given out before");
        self.totals.redelivered += u64::from(redelivered);
        (fate.holder, fate.was_seen, fate.is_acked) = (Some(id), true, false);
    }

    /// What was answered is so on all nodes.
    fn is_so(&self, name: &str, own: &str) {
        let open = self.sites.iter().filter(|site| site.remote.is_open());
        for topology in open.map(|site| &site.topology).chain([&self.leader.topology]) {
            let has_exchange = topology.exchange(self.vhost, own).is_some();
            let has_queue = topology.queue(self.vhost, own).is_some();
            match name {
                "declare exchange" => assert!(has_exchange, "{own} is nowhere"),
                "delete exchange" => assert!(!has_exchange, "{own} is there"),
                "declare queue" => assert!(has_queue, "{own} is nowhere"),
                "delete queue" => assert!(!has_queue, "{own} is there"),
                _ => {}
            }
        }
    }

    fn step(&mut self, is_calm: bool, random: Random<'_>) {
        self.now = self.now.after_ms(1);
        let at = random(SITES as u64) as usize;
        match random(16) {
            0 | 1 if !is_calm => self.act(at, random),
            2..=5 => self.move_letters(at, random),
            6 | 7 => {
                let clients = self.sites[at].clients.len() as u64;
                if clients > 0 {
                    let index = random(clients) as usize;
                    let letters = self.sites[at].clients[index].inbox.len() as u64;
                    self.sites[at].turn(index, random(letters + 1) as usize, self.now);
                    self.read(at, index, random);
                    self.sites[at].bury();
                }
            }
            8 => self.sites[at].apply_names(),
            9 => {
                let letters = self.leader.to_meta.len() as u64;
                self.leader.meta_turn(random(letters + 1) as usize);
            }
            10 | 11 => {
                let index = random(SHARDS as u64) as usize;
                let letters = self.leader.inboxes[index].len() as u64;
                self.leader.shard_turn(index, random(letters + 1) as usize, self.now);
            }
            12 => _ = self.leader.finish(),
            13 if !self.sites[at].is_connected => {
                self.sites[at].remote.begin();
                self.sites[at].is_connected = true;
            }
            14 if !self.leader.has_begun => {
                let has_names = |site: &Site| {
                    site.is_known && self.leader.sessions.turns().has_names(site.remote.node())
                };
                // One that has nothing of an earlier leader may come later.
                if self.sites.iter().all(|it| has_names(it) || !it.remote.is_open()) {
                    self.leader.begin();
                }
            }
            15 if !is_calm && random(120) == 0 => self.next_leader(),
            15 if !is_calm && self.ends_nodes && random(160) == 0 => self.end_site(at),
            _ => {}
        }
    }

    /// All goes on without trouble, and clients settle what they have, until nothing is left to do.
    fn rest(&mut self, random: Random<'_>) {
        for _ in 0..4_000 {
            for _ in 0..60 {
                self.step(true, random);
            }
            for at in 0..SITES {
                let is_open = self.sites[at].remote.is_open();
                if is_open && self.sites[at].clients.is_empty() {
                    self.sites[at].connect(&self.settings, self.now);
                }
                for index in 0..self.sites[at].clients.len() {
                    let client = &mut self.sites[at].clients[index];
                    if !client.is_free() {
                        continue;
                    }
                    let wanted = (0..QUEUES).find(|queue| !client.consumes.contains(queue));
                    if let Some(queue) = wanted {
                        let (name, tag) = (queue_name(queue), format!("c{queue}"));
                        let method = basic::Consume {
                            queue: &name,
                            consumer_tag: &tag,
                            ..Default::default()
                        };
                        client.say(1, &method);
                        client.waits = Waits::Consume(queue);
                    }
                    while !self.sites[at].clients[index].held.is_empty() {
                        self.settle(at, index, random);
                    }
                }
            }
            if self.is_at_rest() {
                return;
            }
        }
        panic!("it does not come to an end:\n{}", self.describe());
    }

    fn is_at_rest(&self) -> bool {
        let counts = self.leader.shards.iter().flat_map(|shard| shard.queues());
        let are_empty =
            counts.map(|(_, queue)| queue.counts()).all(|it| it.ready + it.unacked == 0);
        are_empty
            && self.leader.has_begun
            && !self.leader.shards.iter().any(|shard| shard.is_attaching())
            && self.sites.iter().all(|site| {
                site.remote.is_open()
                    && !site.remote.has_next()
                    && site.clients.iter().all(|it| it.is_free() && it.unconfirmed.is_empty())
            })
    }

    fn check(&self) {
        for (number, fate) in self.messages.iter().enumerate() {
            assert!(fate.confirmed || fate.is_given_up, "{number}: {fate:?}");
            assert!(!fate.confirmed || fate.is_acked, "{number} is lost: {fate:?}");
            assert_eq!(fate.holder, None, "{number}: {fate:?}");
        }
        let is_open = |owner: ConnectionId| {
            let mut clients = self.sites.iter().flat_map(|site| &site.clients);
            clients.any(|client| client.id == owner)
        };
        for queue in self.leader.topology.queues(self.vhost) {
            assert!(queue.exclusive_owner.is_none_or(is_open), "{} is left", queue.name);
        }
        for (site, node) in self.sites.iter().zip(self.leader.sessions.nodes()) {
            assert_eq!(node.held(), 0, "what {} holds is settled", site.remote.node());
            assert_eq!(site.topology.describe(), self.leader.topology.describe());
        }
    }

    fn describe(&self) -> String {
        let mut text = String::new();
        for site in &self.sites {
            let Site { up, down, is_connected, is_known, names, .. } = site;
            text += &format!(
                "node {}: connected={is_connected} known={is_known} up={} down={} names={} {}",
                site.remote.node(),
                up.len(),
                down.len(),
                names.len(),
                site.remote.describe()
            );
            for client in &site.clients {
                text += &format!("    {} inbox={:?}\n", client.describe(), client.inbox);
            }
        }
        let Leader { has_begun, to_meta, inboxes, shards, .. } = &self.leader;
        text += &format!("leader: begun={has_begun} meta={to_meta:?} inboxes={inboxes:?}\n");
        for shard in shards {
            text += &format!("    attaching={}\n", shard.is_attaching());
            for (_, queue) in shard.queues() {
                text += &format!("        {:?}\n", queue.counts());
            }
        }
        text
    }
}

/// Bodies from here on are requests, which are not counted.
const REQUEST: u64 = 1 << 40;

/// A client is gone: what it published may be there or not, what it has comes back.
fn gives_up(messages: &mut [Fate], client: &Client, totals: &mut Totals) {
    for &number in client.unconfirmed.values().filter(|number| **number < REQUEST) {
        messages[number as usize].is_given_up = true;
        totals.given_up += 1;
    }
    for &number in client.held.values().filter(|number| **number < REQUEST) {
        messages[number as usize].holder = None;
    }
}

fn run(seeds: std::ops::Range<u64>, ends_nodes: bool) -> Totals {
    let mut all = Totals::default();
    for seed in seeds {
        let mut random = leveret_log::suite::numbers(seed);
        let mut world = World::new(ends_nodes, &mut random);
        for _ in 0..8_000 {
            world.step(false, &mut random);
        }
        world.rest(&mut random);
        world.check();
        let Totals { leaders, ends, confirmed, acked, answers, redelivered, direct, given_up } =
            world.totals;
        all.leaders += leaders;
        all.ends += ends;
        all.confirmed += confirmed;
        all.acked += acked;
        all.redelivered += redelivered;
        all.direct += direct;
        all.given_up += given_up;
        answers
            .into_iter()
            .for_each(|(name, count)| *all.answers.entry(name).or_default() += count);
    }
    all
}

#[test]
fn sessions_go_on_from_leader_to_leader() {
    let all = run(0..20, false);
    assert!(all.leaders > 40 && all.confirmed > 1_000 && all.acked > 1_000, "{all:?}");
    assert!(all.redelivered > 100 && all.direct > 20 && all.answers.len() == 11, "{all:?}");
}

#[test]
fn what_a_node_had_that_ended_comes_back() {
    let all = run(100..120, true);
    assert!(all.ends > 40 && all.leaders > 40 && all.confirmed > 1_000, "{all:?}");
}
