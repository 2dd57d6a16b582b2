//! Nodes of a cluster, and clients on all of them.

use std::collections::{BTreeMap, BTreeSet};

use leveret_broker::Shard;
use leveret_cluster::{ClusterStatus, Standing};
use leveret_node::remote::{self, KEPT_MS, Refused};
use leveret_queue::Time;
use leveret_topology::NodeId;

use crate::broker::{Broker, LeadsAll, Stage};
use crate::client::body_of;
use crate::dice::Dice;
use crate::leader::{Over, SHARDS};
use crate::node::Node;
use crate::site::{Site, exchange};
use crate::traffic::Traffic;
use crate::world::{World, all_batches};

/// How long a leader waits for members that are linked: a fifth of what a program does, as all times of a world.
const COMING_MS: u64 = 200;

/// Clocks differ by up to three times that: a message lives for about as long.
const AHEAD_MS: u64 = 150;

/// How long sessions have to attach: as long in proportion.
const ATTACHING_MS: u64 = 6_000;

/// So long at most a node of sessions does not notice that it is cut off.
const UNAWARE_MS: u64 = 4_000;

/// So long at most a client reads nothing of what its session was told.
const LATE_MS: u64 = 1_500;

/// All of it.
pub(crate) struct Whole {
    pub(crate) world: World,
    dice: Dice,
    /// The connections of sessions, by node.
    connections: BTreeMap<usize, Connection>,
    /// Those whose end the node that leads has not noticed.
    ended: Vec<(usize, Connection)>,
    /// Connections whose end the node of sessions has not noticed, and until when.
    unaware: BTreeMap<usize, (Connection, u64)>,
    over: Over,
    /// How often sessions of a node were over, though its process was not.
    pub(crate) overs: u64,
    /// How often sessions did not attach in time.
    pub(crate) cut_off: u64,
    /// Messages whose copies were looked for.
    pub(crate) on_all: u64,
}

/// A connection of the sessions of a node, to one that leads.
#[derive(Clone, Copy, Debug)]
struct Connection {
    node: NodeId,
    life: u64,
    leader: usize,
    leader_life: u64,
    since_ms: u64,
    /// Little of what is said comes at once.
    is_slow: bool,
    /// It is over, and the node of sessions said so.
    is_closed: bool,
}

fn broker(node: &mut Node) -> Option<&mut Broker> {
    node.process.as_mut().map(|it| &mut it.broker)
}

fn leader(node: &mut Node) -> Option<&mut LeadsAll> {
    match &mut broker(node)?.stage {
        Stage::Leads(leader) => Some(leader),
        _ => None,
    }
}

/// Nobody is waited for any more.
fn begins(leader: &LeadsAll) -> bool {
    leader.presence.stage() >= remote::Stage::Begins
}

impl Whole {
    pub(crate) fn new(count: usize, seed: u64) -> Self {
        let mut world = World::new(count, seed);
        world.hears_first = true;
        for (at, node) in (0..).zip(&mut world.nodes) {
            // What expires does so by the clock of whoever leads.
            node.shared.ahead_ms = AHEAD_MS * (seed >> (3 + at) & 3);
            node.options.weigh = leveret_broker::record::weigh;
            // What is in files of which a start reads digests comes late.
            if seed & 2 != 0 {
                node.options.segment_bytes = 1 << 10;
                node.options.digests = true;
                // Who was away for a while gets files.
                node.settings.held_bytes = 1 << 11;
            }
        }
        Self {
            world,
            dice: Dice::new(seed ^ 0x5EED),
            connections: BTreeMap::new(),
            ended: Vec::new(),
            unaware: BTreeMap::new(),
            over: Over::new(),
            overs: 0,
            cut_off: 0,
            on_all: 0,
        }
    }

    /// Time goes on. `acts`: clients do something.
    pub(crate) fn step(&mut self, acts: bool) {
        self.world.step();
        self.world.shared.now_ms.set(self.world.now_ms);
        self.notice();
        for at in 0..self.world.nodes.len() {
            self.disconnect(at);
            self.connect(at);
        }
        for _ in 0..3 {
            for at in 0..self.world.nodes.len() {
                if self.is_up(at) {
                    self.drive(at, acts);
                }
            }
        }
    }

    /// Something goes wrong, or well again.
    pub(crate) fn trouble(&mut self) {
        let Self { world, dice, .. } = self;
        world.trouble();
        if world.loses.is_none() {
            world.loses = dice.one_in(200).then(all_batches);
        } else if dice.one_in(15) {
            // What was given out meanwhile is agreed upon, or lost.
            world.loses = None;
            if let Some(at) = world.leader().filter(|_| dice.one_in(2)) {
                let for_ms = dice.below(500);
                world.end(at, false, for_ms);
            }
        }
    }

    fn is_up(&self, at: usize) -> bool {
        let node = &self.world.nodes[at];
        let process = node.process.as_ref();
        process.is_some_and(|it| it.stops_ms.is_none()) && node.paused_ms <= self.world.now_ms
    }

    fn is_cut(&self, one: usize, other: usize) -> bool {
        self.world.cut.contains(&(one, other)) || self.world.cut.contains(&(other, one))
    }

    fn has_life(&mut self, at: usize, life: u64) -> bool {
        broker(&mut self.world.nodes[at]).is_some_and(|it| it.life == life)
    }

    /// A node that leads notices that connections have ended: so have the sessions.
    fn notice(&mut self) {
        for (at, ended) in std::mem::take(&mut self.ended) {
            if self.is_up(ended.leader) && self.dice.one_in(20) {
                self.is_gone(at, ended);
            } else if self.has_life(ended.leader, ended.leader_life) {
                self.ended.push((at, ended));
            }
        }
    }

    fn is_gone(&mut self, at: usize, ended: Connection) {
        if !self.has_life(ended.leader, ended.leader_life) {
            return;
        }
        let Some(leader) = leader(&mut self.world.nodes[ended.leader]) else { return };
        leader.gone(ended.node, ended.is_closed);
        // One that was not heard may call again, and attach.
        if begins(leader) && self.has_life(at, ended.life) {
            self.doom(at);
        }
    }

    /// What a node's clients have is others', though they do not know.
    fn doom(&mut self, at: usize) {
        let Some(broker) = broker(&mut self.world.nodes[at]) else { return };
        if let Some(site) = &mut broker.site {
            let mut traffic = self.world.shared.traffic.borrow_mut();
            traffic.loses(site.remote.node(), &mut site.clients);
            (broker.is_doomed, broker.is_left_out) = (true, true);
        }
    }

    /// The node of which this one thinks that it leads, if it does.
    fn leader_of(&mut self, at: usize) -> Option<usize> {
        let leads = match self.world.standing(at)? {
            Standing::Leads => at,
            Standing::Follows(of) => {
                let id = *of;
                let is_it = |it: &Node| {
                    it.process.as_ref().is_some_and(|it| it.cluster.facts().raft_id == id)
                };
                self.world.nodes.iter().position(is_it)?
            }
            _ => return None,
        };
        leader(&mut self.world.nodes[leads]).map(|_| leads)
    }

    fn disconnect(&mut self, at: usize) {
        self.becomes_aware(at);
        let Some(&connection) = self.connections.get(&at) else { return };
        let is_here = self.has_life(at, connection.life);
        let leader_is_here = self.has_life(connection.leader, connection.leader_life);
        let other = self.leader_of(at).is_some_and(|leader| leader != connection.leader);
        let is_lost = self.is_cut(at, connection.leader) && self.dice.one_in(50);
        if is_here && leader_is_here && !(self.is_up(at) && other) && !is_lost {
            return;
        }
        self.connections.remove(&at);
        if is_here && is_lost && leader_is_here && self.dice.one_in(2) {
            let until_ms = self.world.now_ms + self.dice.below(UNAWARE_MS);
            self.unaware.insert(at, (connection, until_ms));
        } else if is_here && let Some(site) = self.site(at) {
            site.cut();
        }
        if leader_is_here {
            self.ended.push((at, Connection { is_closed: !is_lost, ..connection }));
        }
    }

    /// A node of sessions notices that its connection has ended, after a while or as another node leads.
    fn becomes_aware(&mut self, at: usize) {
        let Some(&(of, until_ms)) = self.unaware.get(&at) else { return };
        let other = self.leader_of(at).is_some_and(|leader| leader != of.leader);
        let is_over = until_ms <= self.world.now_ms || other;
        if self.site(at).is_none_or(|site| !site.is_connected) {
            self.unaware.remove(&at);
        } else if is_over && self.is_up(at) {
            self.unaware.remove(&at);
            self.site(at).into_iter().for_each(Site::cut);
        }
    }

    fn connect(&mut self, at: usize) {
        let is_connected = self.connections.contains_key(&at) || self.unaware.contains_key(&at);
        if is_connected || !self.is_up(at) || !self.dice.one_in(3) {
            return;
        }
        let Some(to) = self.leader_of(at).filter(|to| self.is_up(*to) && !self.is_cut(at, *to))
        else {
            return;
        };
        let Some(leader_life) = broker(&mut self.world.nodes[to]).map(|it| it.life) else { return };
        let Some(own) = broker(&mut self.world.nodes[at]) else { return };
        let (life, Some(site)) = (own.life, &mut own.site) else { return };
        site.begin();
        let node = site.remote.node();
        let since_ms = self.world.now_ms;
        let is_slow = self.dice.one_in(8);
        let is_closed = false;
        let connection =
            Connection { node, life, leader: to, leader_life, since_ms, is_slow, is_closed };
        self.connections.insert(at, connection);
        // Who calls again says that an earlier connection is over.
        let again =
            |it: &mut (usize, Connection)| it.1.node == node && it.1.leader_life == leader_life;
        let earlier: Vec<_> = self.ended.extract_if(.., again).collect();
        earlier.into_iter().for_each(|(at, ended)| self.is_gone(at, ended));
    }

    fn site(&mut self, at: usize) -> Option<&mut Site> {
        broker(&mut self.world.nodes[at])?.site.as_mut()
    }

    /// A node's process goes on.
    fn drive(&mut self, at: usize, acts: bool) {
        let now_ms = self.world.now_ms;
        let (may_run, gives_out) = self.world.nodes[at].lease(now_ms);
        let leads = self.world.nodes[at].has_broker();
        let clock_ms = self.world.nodes[at].clock(now_ms);
        self.wait_for_earlier_leases(at);
        if let Some(leader) = leader(&mut self.world.nodes[at]) {
            leader.tell_time(clock_ms, may_run);
        }
        if let Some(site) = self.site(at) {
            site.now_ms = clock_ms;
        }
        if may_run {
            self.lead(at, gives_out);
        }
        self.exchange(at);
        if !leads || may_run {
            self.run_sessions(at, acts);
        }
    }

    fn lead(&mut self, at: usize, gives_out: bool) {
        let now = self.world.nodes[at].shared.now();
        self.begin(at);
        self.cut_off_late(at);
        let Self { world, dice, .. } = self;
        // A disk that does something wakes whoever has its log.
        let works: [bool; 1 + SHARDS] =
            std::array::from_fn(|group| world.nodes[at].disk_works(group as u64));
        let Some(leader) = leader(&mut world.nodes[at]) else { return };
        leader.gives_out(gives_out);
        let letters = dice.below(leader.to_meta.len() as u64 + 1) as usize;
        if letters > 0 || works[0] || leader.awake[0] {
            leader.meta_turn(letters);
        }
        for index in 0..SHARDS {
            let letters = dice.below(leader.inboxes[index].len() as u64 + 1) as usize;
            let is_due = leader.shards[index].next_timeout().is_some_and(|due| due <= now);
            if letters > 0 || works[1 + index] || is_due || leader.awake[1 + index] {
                leader.shard_turn(index, letters, now);
            }
        }
        leader.takes_in_nobody_of(&mut self.over);
        let is_attaching = leader.shards.iter().any(Shard::is_attaching);
        if is_attaching && world.is_rough && dice.one_in(100) {
            // Another process ends before all know of this term.
            let other = dice.below(world.nodes.len() as u64) as usize;
            let (has_power, for_ms) = (dice.one_in(2), dice.below(500));
            world.end(other, has_power, for_ms);
        }
    }

    /// Other nodes may act by the names of the leader before. That one itself does so under its own lease.
    fn wait_for_earlier_leases(&mut self, at: usize) {
        let Some(own) = broker(&mut self.world.nodes[at]) else { return };
        let leads = matches!(own.stage, Stage::Leads(_));
        if !leads || std::mem::replace(&mut own.knows_who_is_away, true) {
            return;
        }
        let others = (0..self.world.nodes.len()).filter(|of| *of != at);
        let away: Vec<_> = others
            .map(|of| {
                let for_ms = if self.world.nodes[of].has_broker() { 0 } else { KEPT_MS };
                (self.site(of).map(|site| site.raft_id), for_ms)
            })
            .collect();
        let Some(leader) = leader(&mut self.world.nodes[at]) else { return };
        leader.presence.are_away(away);
    }

    /// The shards begin their terms, once those are here who are waited for.
    fn begin(&mut self, at: usize) {
        let count = self.world.nodes.len();
        let is_awaited = |whole: &mut Self, of: usize| {
            let is_linked = of == at || whole.world.sees(at, of);
            // Whoever led before is not.
            is_linked
                && (of == at || !whole.world.nodes[of].has_broker())
                && whole.site(of).is_some()
        };
        let awaited: Vec<_> = (0..count).filter(|of| is_awaited(self, *of)).collect();
        let awaited: Vec<u64> =
            awaited.iter().filter_map(|of| self.site(*of).map(|it| it.raft_id)).collect();
        let now_ms = self.world.now_ms;
        let Some(own) = broker(&mut self.world.nodes[at]) else { return };
        let is_late = now_ms - own.since_ms >= COMING_MS;
        let Stage::Leads(leader) = &mut own.stage else { return };
        if leader.has_begun() {
            return;
        }
        if !leader.has_gathered() {
            if is_late || leader.presence.have_called(awaited) {
                leader.gather();
            }
            return;
        }
        if begins(leader) {
            leader.begin();
            return;
        }
        let has_begun = leader.begin();
        let here: Vec<_> = leader.nodes.keys().copied().collect();
        for of in 0..count {
            let is_here = self
                .site(of)
                .is_none_or(|site| here.contains(&site.remote.node()) && site.is_known);
            if is_here {
                continue;
            }
            // Nobody waits for what it had.
            if has_begun {
                self.doom(of);
            } else if let Some(broker) = broker(&mut self.world.nodes[of]) {
                broker.is_left_out = true;
            }
        }
        if !has_begun {
            return;
        }
        self.world.shared.traffic.borrow_mut().another_leads();
    }

    /// Nodes whose sessions do not attach in time are cut off.
    fn cut_off_late(&mut self, at: usize) {
        let now_ms = self.world.now_ms;
        let Some(own) = broker(&mut self.world.nodes[at]) else { return };
        let is_late = now_ms - own.since_ms >= ATTACHING_MS;
        let Stage::Leads(leader) = &mut own.stage else { return };
        if !leader.has_begun() || !is_late {
            return;
        }
        let awaited: BTreeSet<_> = leader.shards.iter().flat_map(|it| it.awaited()).collect();
        let is_awaited =
            |it: &(&usize, &Connection)| it.1.leader == at && awaited.contains(&it.1.node);
        let late = self.connections.iter().find(is_awaited).map(|(of, it)| (*of, *it));
        if let Some((of, connection)) = late {
            self.cut_off += 1;
            self.connections.remove(&of);
            if let Some(site) = self.site(of) {
                site.cut();
            }
            self.is_gone(of, connection);
        }
    }

    /// Letters go between the sessions of a node and the one that leads.
    fn exchange(&mut self, at: usize) {
        let Some(&Connection { leader: to, is_slow, .. }) = self.connections.get(&at) else {
            return;
        };
        let is_later = is_slow && self.world.is_rough && !self.dice.one_in(10);
        if is_later || !self.is_up(to) || self.is_cut(at, to) {
            return;
        }
        let Some(mut site) = broker(&mut self.world.nodes[at]).and_then(|it| it.site.take()) else {
            return;
        };
        let dice = &mut self.dice;
        let done = match leader(&mut self.world.nodes[to]) {
            Some(leader) => exchange(&mut site, leader, &mut |bound| dice.below(bound)),
            None => Ok(()),
        };
        if let Some(own) = broker(&mut self.world.nodes[at]) {
            own.site = Some(site);
        }
        if let Err(refused) = done {
            let connection = self.connections.remove(&at);
            if matches!(refused, Refused::NotNow(_)) {
                self.site(at).into_iter().for_each(Site::cut);
                self.ended.extend(connection.map(|it| (at, it)));
                return;
            }
            self.overs += 1;
            let is_left_out = broker(&mut self.world.nodes[at]).is_some_and(|it| it.is_left_out);
            assert!(is_left_out, "node {at} is refused, though all waited for it: {refused:?}");
            match broker(&mut self.world.nodes[at]).filter(|it| it.leads()) {
                Some(own) => own.ends_sessions(),
                None => self.world.end(at, true, 10),
            }
        }
    }

    fn run_sessions(&mut self, at: usize, acts: bool) {
        let now = self.world.nodes[at].shared.now();
        let Self { world, dice, .. } = self;
        let traffic = world.shared.traffic.clone();
        let mut traffic = traffic.borrow_mut();
        let Some(own) = broker(&mut world.nodes[at]) else { return };
        let Some(site) = &mut own.site else { return };
        site.apply_names();
        let random = &mut |bound| dice.below(bound);
        if own.is_doomed && site.remote.is_open() {
            // It goes on without those who did not hear that they had lost what they had.
            while let Some(index) = site.clients.iter().position(|client| !client.is_gone) {
                traffic.leave(site, index, now);
            }
            own.is_doomed = false;
        }
        if acts && !own.is_doomed {
            traffic.act(site, now, random);
        }
        let mut answers = Vec::new();
        for _ in 0..2 {
            let clients = site.clients.len() as u64;
            if clients > 0 {
                let index = random(clients) as usize;
                let letters = random(site.clients[index].inbox.len() as u64 + 1) as usize;
                if letters > 0 || !site.clients[index].is_idle(now) {
                    site.turn(index, letters, now);
                }
                answers.extend(traffic.read(site, index, now, random));
                site.bury();
            }
        }
        let confirmed = std::mem::take(&mut traffic.on_all);
        drop(traffic);
        confirmed.into_iter().for_each(|number| self.is_on_all(at, number));
        if !answers.is_empty() {
            answers.iter().for_each(|(name, own)| self.is_so(at, name, own));
        }
    }

    /// What is confirmed by all is in the logs of all that the leader does not show as left out.
    fn is_on_all(&mut self, at: usize, number: u64) {
        let Some(&Connection { leader: to, leader_life, since_ms, .. }) = self.connections.get(&at)
        else {
            return;
        };
        // The leader before may have said so, to a client that reads late.
        if self.world.now_ms - since_ms < LATE_MS || !self.has_life(to, leader_life) {
            return;
        }
        let Some(process) = &self.world.nodes[to].process else { return };
        let ClusterStatus { standing, groups, .. } = process.cluster.status();
        if standing != Standing::Leads {
            return;
        }
        let body = body_of(number);
        let has = |node: &&Node| {
            let disks = node.disks();
            let mut files = disks
                .iter()
                .flat_map(|disk| disk.files().into_iter().map(move |it| disk.bytes_of(it.0)));
            files.any(|bytes| bytes.windows(body.len()).any(|it| it == body))
        };
        let is_left_out = |node: &&Node| {
            groups.iter().flat_map(|it| &it.left_out).any(|(name, _)| *name == node.name)
        };
        // Who got it for good, and has not read it yet, leaves nothing of it.
        if !has(&&self.world.nodes[to]) {
            return;
        }
        self.on_all += 1;
        let lacks = self.world.nodes.iter().find(|it| !is_left_out(it) && !has(it));
        let lacks = lacks.map(|it| &it.name);
        assert_eq!(lacks, None, "{number} is confirmed by all, {}", self.world.picture());
    }

    /// What was answered is so on all nodes that the same leader has.
    fn is_so(&mut self, at: usize, name: &str, own: &str) {
        let Some(&Connection { leader_life, leader: to, .. }) = self.connections.get(&at) else {
            return;
        };
        let with = self.connections.iter().filter(|(_, it)| it.leader_life == leader_life);
        let with: Vec<usize> = with.map(|(at, _)| *at).collect();
        let is_known = self.site(at).is_some_and(|it| it.is_known);
        if let Some(leader) = leader(&mut self.world.nodes[to])
            && (is_known || !Traffic::is_brought(name))
        {
            Traffic::is_so(&leader.topology, name, own);
        }
        // Who is cut off, and does not know, takes nothing from its clients by names that are not so any more. That something is not there
        // sessions say by their names, which those of another leader's need not have.
        for of in 0..self.world.nodes.len() {
            let (clock_ms, acts) = {
                let (node, now_ms) = (&self.world.nodes[of], self.world.now_ms);
                (node.clock(now_ms), !node.has_broker() || node.lease(now_ms).0)
            };
            let Some(site) = self.site(of) else { continue };
            let acts = acts && clock_ms < site.remote.acts_until_ms();
            let unaware = self.unaware.get(&of).map(|(it, _)| it.leader_life);
            let is_said_by_owner = name.starts_with("declare") || unaware == Some(leader_life);
            if acts && is_said_by_owner && !Traffic::is_brought(name) {
                let site = self.site(of).expect("it is there");
                Traffic::is_so(&site.topology, name, own);
            }
        }
        for of in with {
            let Some(broker) = broker(&mut self.world.nodes[of]).filter(|it| !it.is_doomed) else {
                continue;
            };
            // One that calls again is told that its sessions are over.
            let site = broker.site.as_ref().filter(|it| it.is_known && it.remote.is_open());
            site.into_iter().for_each(|it| Traffic::is_so(&it.topology, name, own));
        }
    }

    /// Nothing goes wrong any more, and clients settle what there is.
    pub(crate) fn rest(&mut self, seed: u64) {
        self.world.calm();
        self.world.loses = None;
        let mut rests = 0;
        for _ in 0..4_000 {
            self.step(false);
            let traffic = self.world.shared.traffic.clone();
            for at in 0..self.world.nodes.len() {
                let now = self.world.nodes[at].shared.now();
                let Some(own) = broker(&mut self.world.nodes[at]).filter(|it| !it.is_doomed) else {
                    continue;
                };
                let Some(site) = &mut own.site else { continue };
                let dice = &mut self.dice;
                traffic.borrow_mut().drain(site, now, &mut |bound| dice.below(bound));
            }
            // What the owner of the names has begun is seen nowhere.
            rests = if self.is_at_rest() { rests + 1 } else { 0 };
            if rests == 30 {
                return;
            }
        }
        panic!("seed {seed}: it does not come to an end:\n{}", self.describe());
    }

    fn is_at_rest(&mut self) -> bool {
        let now = Time::from_ms(self.world.now_ms);
        let Some(at) = self.world.leader() else { return false };
        let Some(leader) = leader(&mut self.world.nodes[at]) else { return false };
        if !leader.is_at_rest() || !self.ended.is_empty() || !self.unaware.is_empty() {
            return false;
        }
        (0..self.world.nodes.len()).all(|of| {
            let is_connected = self.connections.get(&of).is_some_and(|it| it.leader == at);
            self.site(of).is_none_or(|site| is_connected && site.is_at_rest(now))
        })
    }

    /// What has to be so at rest.
    pub(crate) fn check(&mut self, seed: u64) {
        self.world.shared.traffic.borrow().check();
        let at = self.world.leader().expect("one leads");
        let mut open = Vec::new();
        for of in 0..self.world.nodes.len() {
            open.extend(self.site(of).into_iter().flat_map(|it| it.clients.iter().map(|it| it.id)));
        }
        for of in 0..self.world.nodes.len() {
            let site = self.site(of).into_iter();
            site.for_each(|it| Traffic::have_their_own(&it.topology, &it.clients));
        }
        let all: Vec<String> = (0..self.world.nodes.len())
            .filter_map(|of| Some(self.site(of)?.topology.describe()))
            .collect();
        let leader = leader(&mut self.world.nodes[at]).expect("it leads");
        assert!(all.iter().all(|it| *it == leader.topology.describe()), "seed {seed}: names");
        for node in leader.nodes.values() {
            assert_eq!(node.held(), 0, "seed {seed}: what {} holds is settled", node.node());
        }
        let vhost = leader.topology.vhost("/").expect("there").id;
        for queue in leader.topology.queues(vhost) {
            let has_owner = queue.exclusive_owner.is_none_or(|owner| open.contains(&owner));
            assert!(
                has_owner,
                "seed {seed}: {} is left, of {:?}\n",
                queue.name, queue.exclusive_owner
            );
        }
    }

    fn describe(&mut self) -> String {
        let mut text = self.world.picture();
        for at in 0..self.world.nodes.len() {
            let connection = self.connections.get(&at).copied();
            let Some(own) = broker(&mut self.world.nodes[at]) else { continue };
            text += &format!("\nnode {at}: doomed={} {connection:?}", own.is_doomed);
            if let Some(site) = &own.site {
                text += &site.describe();
            }
            if let Stage::Leads(leader) = &own.stage {
                text += &leader.describe();
            }
        }
        text
    }
}
