//! Both ends of the connection between nodes of sessions and the node that leads: real sessions and clients, real shards and owner of
//! the names, over connections that keep order and end, and leaders that come one after the other from the same logs.
//!
//! Each message is confirmed once and stored once, each ack counts, what somebody has is given to nobody else, each command is
//! answered once, and what was answered is so on all nodes.

#[path = "remote/client.rs"]
mod client;
#[path = "remote/leader.rs"]
mod leader;
#[path = "../../broker/tests/hand/log.rs"]
mod log;
#[path = "remote/sessions.rs"]
mod sessions;
#[path = "remote/site.rs"]
mod site;
#[path = "remote/traffic.rs"]
mod traffic;

use leveret_broker::message::ConnectionId;
use leveret_log::Log as _;
use leveret_node::KeptMax;
use leveret_queue::Time;
use leveret_topology::VhostId;

use leader::{Leader, SHARDS};
use log::HandLog;
use site::{Site, exchange};
use traffic::{Random, Totals, Traffic};

const SITES: usize = 2;
struct World {
    now: Time,
    vhost: VhostId,
    sites: Vec<Site>,
    leader: Leader<HandLog>,
    meta_log: HandLog,
    logs: Vec<HandLog>,
    term: u64,
    traffic: Traffic,
    ends_nodes: bool,
}

fn agrees(log: &HandLog) {
    let moment = log.moment();
    let mut hand = log.hand();
    (hand.agrees, hand.reads_agreed, hand.agreed) = (true, true, Some(moment));
}

/// Another one leads, from what these logs have.
fn leads(meta_log: &HandLog, logs: &[HandLog], term: u64, now: Time) -> Leader<HandLog> {
    let disk = meta_log.clone();
    let wait = &mut || assert!(disk.hand().finish_any());
    logs.iter().for_each(agrees);
    Leader::new(meta_log.clone(), logs.to_vec(), vec![term; 1 + SHARDS], now, wait)
}

impl World {
    fn new(ends_nodes: bool, random: Random<'_>) -> Self {
        let now = Time::from_ms(1_000_000);
        let meta_log = HandLog::default();
        let logs: Vec<_> = (0..SHARDS).map(|_| HandLog::default()).collect();
        let leader = leads(&meta_log, &logs, 1, now);
        let mut max = || KeptMax { letters: 1 + random(12) as usize, bytes: 1 << (8 + random(8)) };
        let sites = (0..SITES as u64).map(|raft_id| Site::new(raft_id, 0, max())).collect();
        Self {
            now,
            vhost: leader.topology.vhost("/").expect("there").id,
            sites,
            leader,
            meta_log,
            logs,
            term: 1,
            traffic: Traffic::new(),
            ends_nodes,
        }
    }

    /// The leader's process ends, and another one leads from what is on the disks.
    fn next_leader(&mut self) {
        self.sites.iter_mut().for_each(Site::cut);
        self.meta_log = self.meta_log.crash();
        self.logs = self.logs.iter().map(HandLog::crash).collect();
        self.term += 1;
        self.leader = leads(&self.meta_log, &self.logs, self.term, self.now);
        // The lease of the one before may last.
        self.leader.gives_out(false);
        self.traffic.totals.leaders += 1;
    }

    /// The process of a node of sessions ends, and begins anew.
    fn end_site(&mut self, at: usize) {
        let site = &mut self.sites[at];
        let (node, was_known) = (site.remote.node(), site.is_known);
        self.traffic.all_give_up(&site.clients);
        let (raft_id, start) = (site.raft_id, site.start + 1);
        *site = Site::new(raft_id, start, KeptMax { letters: 5, bytes: 1 << 12 });
        if was_known {
            self.leader.gone(node);
        }
        self.traffic.totals.ends += 1;
    }

    fn finish(&mut self) {
        self.meta_log.hand().finish();
        self.logs.iter().for_each(|log| _ = log.hand().finish_any());
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
            0 | 1 if !is_calm => self.traffic.act(&mut self.sites[at], self.now, random),
            2..=5 => {
                let done = exchange(&mut self.sites[at], &mut self.leader, random);
                assert_eq!(done, Ok(()));
            }
            6 | 7 => {
                let clients = self.sites[at].clients.len() as u64;
                if clients > 0 {
                    let index = random(clients) as usize;
                    let letters = self.sites[at].clients[index].inbox.len() as u64;
                    self.sites[at].turn(index, random(letters + 1) as usize, self.now);
                    let site = &mut self.sites[at];
                    for (name, own) in self.traffic.read(site, index, self.now, random) {
                        self.is_so(name, &own);
                    }
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
            12 => {
                self.finish();
                if random(8) == 0 {
                    self.leader.gives_out(true);
                }
            }
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
            for site in &mut self.sites {
                self.traffic.drain(site, self.now, random);
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
        for (number, fate) in self.traffic.messages.iter().enumerate() {
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
            world.traffic.totals;
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
