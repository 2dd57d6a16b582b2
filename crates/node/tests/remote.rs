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
#[path = "remote/site.rs"]
mod site;
#[expect(dead_code, reason = "another world does more with its clients")]
#[path = "remote/traffic.rs"]
mod traffic;
/// Letters come as they are. In the cluster's simulation they are bytes on their way.
mod wire {
    pub(crate) fn to_leader<T>(letter: T) -> T {
        letter
    }

    pub(crate) use to_leader as from_leader;
}

use leveret_broker::message::ConnectionId;
use leveret_log::Log as _;
use leveret_node::KeptMax;
use leveret_node::remote::KEPT_MS;
use leveret_queue::Time;
use leveret_topology::VhostId;

use leader::{Leader, Over, SHARDS, late_limits};
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
    over: Over,
    traffic: Traffic,
    ends_nodes: bool,
    /// Nodes of sessions that ended.
    ends: u64,
    /// Exclusive queues that leaders made again.
    back: u64,
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
    Leader::new(
        meta_log.clone(),
        logs.to_vec(),
        vec![term; 1 + SHARDS],
        late_limits(term),
        now,
        wait,
    )
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
            over: Over::new(),
            traffic: Traffic::default(),
            ends_nodes,
            ends: 0,
            back: 0,
        }
    }

    /// The leader's process ends, and another one leads from what is on the disks.
    fn next_leader(&mut self) {
        self.sites.iter_mut().for_each(Site::cut);
        self.back += self.leader.back;
        self.meta_log = self.meta_log.crash();
        self.logs = self.logs.iter().map(HandLog::crash).collect();
        self.term += 1;
        self.leader = leads(&self.meta_log, &self.logs, self.term, self.now);
        self.leader.tell_time(self.now.ms(), true);
        let sites = self.sites.iter().map(|site| (Some(site.raft_id), KEPT_MS));
        self.leader.presence.are_away(sites);
        // The lease of the one before may last.
        self.leader.gives_out(false);
        self.traffic.another_leads();
    }

    /// The process of a node of sessions ends, and begins anew.
    fn end_site(&mut self, at: usize) {
        let site = &mut self.sites[at];
        let (node, was_known) = (site.remote.node(), site.is_known);
        self.traffic.all_give_up(node, &site.clients);
        self.ends += 1;
        let max = KeptMax { letters: 5, bytes: 1 << 12 };
        *site = Site::new(at as u64, self.ends as u32, max);
        if was_known {
            self.leader.gone(node, true);
        }
    }

    fn finish(&mut self) {
        self.meta_log.hand().finish();
        self.logs.iter().for_each(|log| _ = log.hand().finish_any());
    }

    /// What was answered is so on all nodes.
    fn is_so(&self, at: usize, name: &str, own: &str) {
        let open = self.sites.iter().filter(|site| site.remote.is_open());
        open.for_each(|site| Traffic::is_so(&site.topology, name, own));
        if self.sites[at].is_known || !Traffic::is_brought(name) {
            Traffic::is_so(&self.leader.topology, name, own);
        }
    }

    fn step(&mut self, is_calm: bool, random: Random<'_>) {
        self.now = self.now.after_ms(1);
        self.leader.tell_time(self.now.ms(), true);
        self.sites.iter_mut().for_each(|site| site.now_ms = self.now.ms());
        let at = random(SITES as u64) as usize;
        match random(16) {
            0 | 1 if !is_calm => self.traffic.act(&mut self.sites[at], self.now, random),
            2..=5 => {
                // Each leader waits for all.
                let done = exchange(&mut self.sites[at], &mut self.leader, random);
                done.expect("it is taken in");
            }
            6 | 7 => {
                let clients = self.sites[at].clients.len() as u64;
                if clients > 0 {
                    let index = random(clients) as usize;
                    let letters = self.sites[at].clients[index].inbox.len() as u64;
                    self.sites[at].turn(index, random(letters + 1) as usize, self.now);
                    let site = &mut self.sites[at];
                    for (name, own) in self.traffic.read(site, index, self.now, random) {
                        self.is_so(at, name, &own);
                    }
                    self.sites[at].bury();
                }
            }
            8 => self.sites[at].apply_names(),
            9 => {
                let letters = self.leader.to_meta.len() as u64;
                self.leader.meta_turn(random(letters + 1) as usize);
                self.leader.takes_in_nobody_of(&mut self.over);
            }
            10 | 11 => {
                let index = random(SHARDS as u64) as usize;
                let letters = self.leader.inboxes[index].len() as u64;
                self.leader.shard_turn(index, random(letters + 1) as usize, self.now);
            }
            // In some terms acks are quicker than others agree.
            12 if !is_calm && self.term.is_multiple_of(3) && random(12) > 0 => {}
            12 => {
                self.finish();
                if random(8) == 0 {
                    self.leader.gives_out(true);
                }
            }
            13 if !self.sites[at].is_connected => {
                self.sites[at].begin();
            }
            14 if !self.leader.has_begun() => {
                // One that has nothing of an earlier leader may come later.
                let awaited = self.sites.iter().filter(|it| it.remote.is_open());
                let all_are_here = self.leader.presence.have_called(awaited.map(|it| it.raft_id));
                if !self.leader.has_gathered() {
                    if all_are_here {
                        self.leader.gather();
                    }
                } else {
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
        self.leader.is_at_rest()
            && self.sites.iter().all(|site| site.is_at_rest(self.now))
            && self.have_all_names()
    }

    fn have_all_names(&self) -> bool {
        let names = self.leader.topology.describe();
        self.sites.iter().all(|site| site.topology.describe() == names)
    }

    fn check(&self) {
        self.traffic.check();
        for site in &self.sites {
            Traffic::have_their_own(&self.leader.topology, &site.clients);
        }
        let is_open = |owner: ConnectionId| {
            let mut clients = self.sites.iter().flat_map(|site| &site.clients);
            clients.any(|client| client.id == owner)
        };
        for queue in self.leader.topology.queues(self.vhost) {
            assert!(queue.exclusive_owner.is_none_or(is_open), "{} is left", queue.name);
        }
        for (site, node) in self.sites.iter().zip(self.leader.nodes.values()) {
            assert_eq!(node.held(), 0, "what {} holds is settled", site.remote.node());
        }
    }

    fn describe(&self) -> String {
        let mut text = String::new();
        self.sites.iter().for_each(|site| text += &site.describe());
        text += &self.leader.describe();
        text
    }
}

/// What many runs came to, how many nodes of sessions ended, and how many exclusive queues outlived a leader.
fn run(seeds: std::ops::Range<u64>, ends_nodes: bool) -> (Totals, u64, u64) {
    let (mut all, mut ends, mut back) = (Totals::default(), 0, 0);
    for seed in seeds {
        let mut random = leveret_log::suite::numbers(seed);
        let mut world = World::new(ends_nodes, &mut random);
        for _ in 0..8_000 {
            world.step(false, &mut random);
        }
        world.rest(&mut random);
        world.check();
        all.add(world.traffic.totals);
        ends += world.ends;
        back += world.back + world.leader.back;
        assert!(world.sites.iter().all(|it| it.lost_queues == 0), "{seed}");
    }
    (all, ends, back)
}

#[test]
fn sessions_go_on_from_leader_to_leader() {
    let (all, _, back) = run(0..26, false);
    assert!(back > 40, "{back}");
    assert!(all.leaders > 40 && all.confirmed > 1_000 && all.acked > 1_000, "{all:?}");
    assert!(all.redelivered > 100 && all.direct > 20 && all.answers.len() == 15, "{all:?}");
    assert!(all.nacked * 100 < all.confirmed, "verdicts that were under way: {all:?}");
}

#[test]
fn what_a_node_had_that_ended_comes_back() {
    let (all, ends, back) = run(100..130, true);
    assert!(back > 40, "{back}");
    assert!(ends > 40 && all.leaders > 40 && all.confirmed > 1_000, "{all:?}");
}

/// It is in no log: who leads next has it from nodes with sessions.
#[test]
fn tracing_outlives_the_leader() {
    let mut random = leveret_log::suite::numbers(7);
    let mut world = World::new(false, &mut random);
    for is_on in [true, false] {
        (0..2_000).for_each(|_| world.step(false, &mut random));
        world.rest(&mut random);
        world.leader.topology.set_tracing("/", is_on).expect("a vhost");
        world.leader.meta_turn(0);
        for _ in 0..2 {
            world.rest(&mut random);
            assert!(world.sites.iter().all(|it| it.topology.traces_any() == is_on));
            world.next_leader();
        }
        world.rest(&mut random);
        assert_eq!(world.leader.topology.traces_any(), is_on);
    }
}
