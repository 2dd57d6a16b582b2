//! The node that leads: shards, the owner of the names, and what it has of the nodes of sessions.

use std::collections::BTreeMap;
use std::vec::Drain;

use leveret_amqp::table::{Table, Value};
use leveret_broker::command::{Answered, CommandStream};
use leveret_broker::flow::Alarm;
use leveret_broker::login::{Asked, Login};
use leveret_broker::message::*;
use leveret_broker::shard::LateLimits;
use leveret_broker::stream::{StreamClass, StreamNews};
use leveret_broker::{Meta, Shard};
use leveret_log::{Log, Offset, RecoveryLimits};
use leveret_node::remote::{Came, Counted, NodeHeard, Presence, Refused, RemoteNode, Stage, Went};
use leveret_node::start::{Filled, Past, host};
use leveret_node::{Inboxes, Run, post};
use leveret_queue::Time;
use leveret_topology::{
    Bootstrap, Destination, GroupId, Homes, NodeId, PasswordHash, QueueSpec, Topology,
};

use crate::traffic::{
    ACKED, COPIED, DEAD_LETTERS, EXPIRING, QUEUES, SHARED, TO_BOTH, TO_NOBODY, UNCOMMITTED,
    queue_name, waits_for_all,
};

pub(crate) const SHARDS: usize = 2;
pub(crate) const HOMES: Homes = Homes::among(SHARDS as u32);

/// Processes whose sessions are over, as others agree, and the last term in which that was noted.
pub(crate) type Over = BTreeMap<CommandStream, u64>;

/// See the [module](self).
pub(crate) struct Leader<L> {
    pub(crate) meta: Meta<L>,
    pub(crate) topology: Topology,
    pub(crate) shards: Vec<Shard<L>>,
    pub(crate) inboxes: [Vec<ToShard>; SHARDS],
    pub(crate) to_meta: Vec<ToMeta>,
    pub(crate) presence: Presence,
    pub(crate) nodes: BTreeMap<NodeId, RemoteNode>,
    filled: Option<Filled>,
    /// Its term is noted, once the log of names is durable so far.
    noted_until: Offset,
    /// Of shards whose terms have begun: with whom, and how many.
    beginning: Option<(Counted, usize)>,
    /// In which it leads each group: first that of the names.
    terms: Vec<u64>,
    /// Exclusive queues that were made again.
    pub(crate) back: u64,
    /// Processes that are noted as over, and how far the log of names is to be for that.
    over: Vec<(CommandStream, Offset)>,
    /// Whose turn it is.
    from: Option<GroupId>,
    /// What would have messages given out, and waits for that.
    held: Vec<(GroupId, ToShard)>,
    /// No lease of another leader may last.
    gives_out: bool,
    /// By the clock of its lease.
    now_ms: u64,
    /// Its lease holds.
    may_run: bool,
    /// The names' owner and the shards that are to have a turn though they may have no letters: something was done to them, or their
    /// last turn had more to do.
    pub(crate) awake: [bool; 1 + SHARDS],
}

/// How much of its queues a leader has at first: in half of the cases so little that nearly all comes late, in many turns.
pub(crate) fn late_limits(number: u64) -> LateLimits {
    match number % 2 {
        0 => {
            let turn = RecoveryLimits { records: 1 + (number / 8 % 6) as u32, bytes: u64::MAX };
            LateLimits { first: number / 2 % 4, turn, ..LateLimits::default() }
        }
        _ => LateLimits::default(),
    }
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
        // Of all members in contact, and of a majority.
        let copies = if waits_for_all(index) { "all" } else { "majority" };
        let copies = ("x-replication-confirm".to_owned(), copies.into());
        let on = if index == ACKED { "ack" } else { "first" };
        let on = ("x-confirm-on".to_owned(), on.into());
        let defer = ("x-confirm-defer".to_owned(), Value::I32(200));
        let before_commit = Value::Bool([ACKED, UNCOMMITTED].contains(&index));
        let before_commit = ("x-deliver-before-commit".to_owned(), before_commit);
        let expires = (index == EXPIRING).then(|| {
            let key = queue_name(DEAD_LETTERS);
            [
                ("x-message-ttl".to_owned(), Value::I32(500)),
                ("x-dead-letter-exchange".to_owned(), "".into()),
                ("x-dead-letter-routing-key".to_owned(), key.as_str().into()),
            ]
        });
        let expires = expires.into_iter().flatten();
        let arguments = [copies, on, defer, before_commit].into_iter().chain(expires).collect();
        declare(&mut topology, &queue_name(index), arguments);
    }
    let keeps_nothing =
        [("x-confirm-on".to_owned(), "ack".into()), ("x-message-ttl".to_owned(), Value::I32(0))];
    for index in 0..SHARDS {
        declare(&mut topology, &nobody(index), keeps_nothing.clone().into_iter().collect());
    }
    let mut bind = |key, queue: &str| {
        let to = Destination::Queue(queue);
        topology.bind(vhost, SHARED, to, key, Table::default(), None).expect("bound");
    };
    // In the same shard: homes go round.
    bind(TO_NOBODY, &nobody(ACKED % SHARDS));
    bind(TO_NOBODY, &queue_name(ACKED));
    bind(TO_BOTH, &queue_name(UNCOMMITTED));
    COPIED.into_iter().for_each(|index| bind(TO_BOTH, &queue_name(index)));
    topology
}

/// A queue that keeps nothing: each shard has one.
fn nobody(index: usize) -> String {
    format!("{TO_NOBODY}{index}")
}

fn declare(topology: &mut Topology, name: &str, arguments: Table) {
    let vhost = topology.vhost("/").expect("there").id;
    let spec = QueueSpec {
        vhost,
        name,
        server_named: false,
        durable: true,
        auto_delete: false,
        exclusive_owner: None,
        arguments,
    };
    topology.declare_queue(spec).expect("declared");
}

impl<L: Log> Leader<L> {
    /// Begins with what the logs have, in these terms. What is in queues comes `late` in part. `wait` is called while the log of the names has to become durable.
    pub(crate) fn new(
        meta_log: L,
        logs: Vec<L>,
        terms: Vec<u64>,
        late: LateLimits,
        now: Time,
        wait: &mut dyn FnMut(),
    ) -> Self {
        let (mut meta, mut topology) =
            Meta::recover(HOMES, meta_log, &mut *wait).expect("what was written");
        if topology.vhost("/").is_none() {
            topology = first_names();
            meta.adopt(&mut topology, wait).expect("room");
        }
        meta.follow();
        meta.begin_term(terms[0]);
        let mut presence = Presence::new(HOMES, terms[0]);
        presence.found(meta.last_term().cloned());
        let mut shards = host(logs.into_iter(), &topology, false, now);
        let (past, mut filled) = (Past::new(&meta, Vec::new()), Filled::default());
        for (index, shard) in shards.iter_mut().enumerate() {
            shard.set_late_limits(late);
            filled.add(past.fill(index, shard, &mut |_| {}));
        }
        Self {
            meta,
            topology,
            shards,
            inboxes: Default::default(),
            to_meta: Vec::new(),
            presence,
            nodes: BTreeMap::new(),
            filled: Some(filled),
            noted_until: Offset::ZERO,
            beginning: None,
            terms,
            back: 0,
            over: Vec::new(),
            from: None,
            held: Vec::new(),
            gives_out: true,
            now_ms: 0,
            may_run: true,
            awake: [true; 1 + SHARDS],
        }
    }

    /// It is `now_ms` by the clock of its lease, which holds or not.
    pub(crate) fn tell_time(&mut self, now_ms: u64, may_run: bool) {
        (self.now_ms, self.may_run) = (now_ms, may_run);
        let mut out = Outbox::default();
        self.presence.look(now_ms, &mut out);
        self.post(out, None);
    }

    /// A lease of another leader may last: what would have messages given out waits. Or it does not any more.
    pub(crate) fn gives_out(&mut self, gives_out: bool) {
        self.gives_out = gives_out;
        if gives_out {
            self.presence.earlier_lease_ends(self.now_ms);
            let held = std::mem::take(&mut self.held);
            held.into_iter().for_each(|(group, letter)| self.inboxes[group.index()].push(letter));
        }
    }

    fn post(&mut self, mut outbox: Outbox, from: Option<GroupId>) {
        self.from = from;
        post(&mut outbox, self);
    }

    fn change_names(&mut self) {
        for batch in self.meta.take_changes() {
            let number = self.presence.changed();
            for it in self.nodes.values_mut().filter(|it| it.has_names()) {
                it.tell_names(number, false, batch.clone());
            }
        }
    }

    /// The shards have turns.
    pub(crate) fn has_begun(&self) -> bool {
        self.presence.stage() == Stage::Leads
    }

    /// Nothing is in a queue, or on its way between shards, and nobody is to have a turn.
    pub(crate) fn is_at_rest(&self) -> bool {
        let is_at_rest = |shard: &Shard<L>| {
            let counts = shard.queues().map(|(_, queue)| queue.counts());
            let is_empty = counts.map(|it| it.ready + it.unacked).sum::<u64>() == 0;
            is_empty && shard.under_way() + shard.held_turns() as u64 == 0 && !shard.is_attaching()
        };
        let has_letters = self.presence.held() > 0
            || !self.to_meta.is_empty()
            || self.inboxes.iter().any(|it| !it.is_empty());
        self.has_begun() && !has_letters && self.shards.iter().all(is_at_rest)
    }

    pub(crate) fn meta_turn(&mut self, count: usize) {
        self.awake[0] = false;
        let mut letters: Vec<_> = self.to_meta.drain(..count).collect();
        letters.push(ToMeta::LogWoke);
        let mut turn = Outbox::default();
        self.meta.turn(&mut letters, &mut self.topology, &mut turn);
        self.change_names();
        let mut out = Outbox::default();
        self.presence.hold(turn, &mut out);
        self.post(out, None);
    }

    pub(crate) fn shard_turn(&mut self, index: usize, count: usize, now: Time) {
        if !self.has_begun() {
            return;
        }
        let mut letters: Vec<_> = self.inboxes[index].drain(..count).collect();
        letters.push(ToShard::LogWoke);
        let mut out = Outbox::default();
        let shard = &mut self.shards[index];
        self.awake[1 + index] = shard.turn(&mut letters, &self.topology, now, &mut out);
        self.post(out, Some(HOMES.group_at(index)));
    }

    pub(crate) fn hear(&mut self, node: NodeId, letter: ToLeader) {
        let mut out = Outbox::default();
        let remote = self.nodes.get_mut(&node).expect("it has said hello");
        let is_to_hear = match remote.hear(letter, &mut out).expect("its own letter") {
            NodeHeard::NamesTaken(number) => {
                self.presence.taken(node, number, &mut out).expect("its names")
            }
            NodeHeard::AsksLease(number) => {
                if self.may_run {
                    remote.asks_for_lease(number, self.now_ms);
                }
                false
            }
            _ => false,
        };
        self.post(out, None);
        if is_to_hear {
            self.tell_begins(node);
        }
    }

    pub(crate) fn hello(&mut self, hello: &SessionsHello) -> Result<NodeId, Refused> {
        self.awake[0] = true;
        let mut remote = self.presence.admit(hello)?;
        let node = remote.node();
        if self.presence.is_here(node) {
            self.gone(node, true);
        }
        let mut out = Outbox::default();
        let is_own = |id| hello.connections.contains(&id);
        let process = remote.commands();
        let back =
            self.meta.bring_back(process, &hello.queues, is_own, &mut self.topology, &mut out);
        self.back += back.expect("its own queues") as u64;
        let Came { tells, left } = self.presence.comes(&remote);
        if let Some(number) = tells {
            remote.tell_names(number, true, self.topology.snapshot());
        }
        self.nodes.insert(node, remote);
        out.disconnected(left);
        self.post(out, None);
        Ok(node)
    }

    /// All are here for whom it waits: they are told the names.
    pub(crate) fn gather(&mut self) {
        let (number, told) = self.presence.gathered();
        for node in told {
            let remote = self.nodes.get_mut(&node).expect("it is here");
            remote.tell_names(number, true, self.topology.snapshot());
        }
    }

    /// The names are told to whoever is here.
    pub(crate) fn has_gathered(&self) -> bool {
        self.presence.stage() != Stage::Gathers
    }

    fn tell_begins(&mut self, node: NodeId) {
        let remote = self.nodes.get_mut(&node).expect("it is here");
        let classes = StreamClass::BOTH.map(|class| remote.stream(class));
        let terms = self.shards.iter().enumerate().map(|(index, shard)| ShardTerm {
            group: HOMES.group_at(index),
            begins_at: shard.term_begins_at(node),
            streams: classes.map(|stream| shard.stream_place(stream)),
        });
        let terms = LeaderTerms { names: self.meta.term(), shards: terms.collect() };
        if remote.begins(None, terms, Alarm::default()) {
            self.presence.hears(remote);
        }
    }

    /// [All are here](Self::gather): its term is noted and, once that is agreed upon, the shards begin, one after the other. Whether
    /// it has got a step further.
    pub(crate) fn begin(&mut self) -> bool {
        self.awake = [true; 1 + SHARDS];
        let Self { shards, meta, topology, presence, beginning, .. } = self;
        if beginning.is_none() {
            let ends: Vec<_> = shards.iter().map(Shard::end).collect();
            if let Some(awaited) = presence.notes(&ends) {
                let noted = meta.note_term(awaited, topology);
                self.noted_until = noted.expect("its log").unwrap_or_default();
            }
            if meta.log().durable() < self.noted_until {
                return false;
            }
        }
        let (counted, begun) = beginning.get_or_insert_with(|| (presence.begins(), 0));
        for process in counted.over.drain(..) {
            meta.note_over(process, topology).expect("its log");
            self.over.push((process, meta.log().end()));
        }
        if let Some((shard, term)) = shards.iter_mut().zip(&self.terms[1..]).nth(*begun) {
            counted.begin(*begun, term << 32, shard);
            *begun += 1;
            return true;
        }
        meta.keep_commands(|stream| counted.commands(stream));
        let (mut out, left) = (Outbox::default(), std::mem::take(&mut counted.left));
        self.filled.take().expect("filled").end(meta);
        out.disconnected(left);
        self.post(out, None);
        for gone in self.presence.leads() {
            self.shards.iter_mut().for_each(|shard| shard.node_is_gone(gone));
        }
        let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
        for node in nodes {
            if self.presence.is_to_hear(node) {
                self.tell_begins(node);
            }
        }
        true
    }

    /// Nobody is here with sessions whose end was noted in an earlier term, if others have agreed upon that.
    pub(crate) fn takes_in_nobody_of(&mut self, over: &mut Over) {
        let (term, durable) = (self.meta.term(), self.meta.log().durable());
        let noted = self.over.extract_if(.., |(_, until)| *until <= durable);
        over.extend(noted.map(|(process, _)| (process, term)));
        // One that had none any more, and was heard later, has those of then.
        let is_over = |it: &&RemoteNode| {
            let noted = over.get(&it.commands()).filter(|noted| **noted < term);
            noted.is_some_and(|noted| it.heard().is_some_and(|heard| heard <= *noted))
        };
        let taken_in = self.nodes.values().find(is_over).map(RemoteNode::commands);
        assert_eq!(taken_in, None, "its sessions are over");
    }

    /// `is_closed`: the node has closed its connection, or its process has ended.
    pub(crate) fn gone(&mut self, node: NodeId, is_closed: bool) {
        let Some(remote) = self.nodes.remove(&node) else { return };
        self.awake = [true; 1 + SHARDS];
        let mut out = Outbox::default();
        let Went { leads, over, left, .. } = self.presence.goes(&remote, is_closed, &mut out);
        if leads {
            let process = remote.commands();
            self.shards.iter_mut().for_each(|shard| shard.node_is_gone(process));
        }
        if let Some(process) = over {
            self.meta.note_over(process, &mut self.topology).expect("its log");
            self.over.push((process, self.meta.log().end()));
        }
        remote.gone(&mut out);
        out.disconnected(left);
        self.post(out, None);
    }

    pub(crate) fn describe(&self) -> String {
        let Self { presence, to_meta, inboxes, shards, .. } = self;
        let mut text = format!(
            "leader: {presence:?} meta={to_meta:?} inboxes={inboxes:?} held={:?}\n",
            self.held
        );
        for shard in shards {
            let awaited: Vec<_> = shard.awaited().collect();
            let (under_way, held) = (shard.under_way(), shard.held_turns());
            text += &format!("    attaching={} awaits {awaited:?}", shard.is_attaching());
            text += &format!(" {under_way} under way, {held} turns are held\n");
            for (_, queue) in shard.queues() {
                text += &format!("        {:?}\n", queue.counts());
            }
        }
        text
    }
}

impl<L: Log> Inboxes for Leader<L> {
    fn to_shard(&mut self, group: GroupId, letter: ToShard) -> usize {
        let may_wait = matches!(
            letter,
            ToShard::Consume { .. }
                | ToShard::Get { .. }
                | ToShard::Attached(_)
                | ToShard::Disconnected { .. }
        );
        if may_wait && !self.gives_out {
            self.held.push((group, letter));
            return 0;
        }
        let inbox = &mut self.inboxes[group.index()];
        inbox.push(letter);
        inbox.len()
    }

    fn to_meta(&mut self, letters: Drain<'_, ToMeta>) {
        self.to_meta.extend(letters);
    }

    fn to_session(&mut self, id: ConnectionId, letters: &mut Run<'_, '_>) {
        if let Some(node) = self.nodes.get_mut(&id.node()) {
            letters.for_each(|letter| node.tell(FromLeader::Session(id, self.from, letter)));
        }
    }

    fn news(&mut self, news: &mut Vec<(GroupId, StreamNews)>) {
        for (group, news) in news.drain(..) {
            if let Some(node) = self.nodes.get_mut(&news.stream.node) {
                node.tell(FromLeader::News(group, news));
            }
        }
    }

    fn answers(&mut self, answers: &mut Vec<Answered>, _: &mut Outbox) {
        for answered in answers.drain(..) {
            if let Some(node) = self.nodes.get_mut(&answered.stream.node) {
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
