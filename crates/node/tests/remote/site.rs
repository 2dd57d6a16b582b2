//! A node of sessions, with its clients.

use std::collections::VecDeque;
use std::sync::Arc;
use std::vec::Drain;

use leveret_broker::login::{Asked, Login};
use leveret_broker::message::*;
use leveret_log::Log;
use leveret_node::remote::{Heard, Refused, RemoteShards};
use leveret_node::{Inboxes, KeptMax, Run, post};
use leveret_queue::Time;
use leveret_session::Settings;
use leveret_topology::{EntityKey, GroupId, Topology};

use crate::client::Client;
use crate::leader::{HOMES, Leader};
use crate::traffic::Random;
use crate::wire;

/// A node of sessions.
pub(crate) struct Site {
    pub(crate) raft_id: u64,
    pub(crate) remote: RemoteShards,
    pub(crate) topology: Topology,
    /// To be applied.
    pub(crate) names: VecDeque<NamesBatch>,
    pub(crate) clients: Vec<Client>,
    /// By the clock of its leases.
    pub(crate) now_ms: u64,
    pub(crate) next: u64,
    pub(crate) is_connected: bool,
    /// The leader knows it.
    pub(crate) is_known: bool,
    /// Exclusive queues of clients that stay, which another leader did not know.
    pub(crate) lost_queues: u64,
    pub(crate) up: VecDeque<ToLeader>,
    pub(crate) down: VecDeque<FromLeader>,
}

impl Site {
    pub(crate) fn new(raft_id: u64, start: u32, max: KeptMax) -> Self {
        let mut topology = Topology::new();
        topology.set_homes(HOMES);
        Self {
            raft_id,
            remote: RemoteShards::new(raft_id, start, HOMES, max),
            topology,
            names: VecDeque::new(),
            clients: Vec::new(),
            now_ms: 0,
            next: 1 + (u64::from(start) << 20),
            is_connected: false,
            is_known: false,
            lost_queues: 0,
            up: VecDeque::new(),
            down: VecDeque::new(),
        }
    }

    /// Its sessions take what clients send.
    pub(crate) fn acts(&self) -> bool {
        self.now_ms < self.remote.acts_until_ms()
    }

    pub(crate) fn post(&mut self, mut outbox: Outbox) {
        post(&mut outbox, self);
    }

    /// The connection to the leader is gone.
    pub(crate) fn cut(&mut self) {
        self.up.clear();
        self.down.clear();
        (self.is_connected, self.is_known) = (false, false);
        self.names.clear();
        self.remote.lost();
    }

    /// There is a connection to another leader.
    pub(crate) fn begin(&mut self) {
        let brings = self.remote.owners().brings(&self.topology);
        self.remote.begin(brings);
        self.is_connected = true;
    }

    pub(crate) fn connect(&mut self, settings: &Arc<Settings>, now: Time) {
        let id = self.remote.node().connection(self.next);
        self.next += 1;
        self.remote.opened(id);
        self.clients.push(Client::new(id, settings, now));
    }

    /// Who is over and has no letters is buried.
    pub(crate) fn bury(&mut self) {
        let Self { clients, remote, .. } = self;
        clients.retain(|client| {
            let is_over = client.is_gone && client.inbox.is_empty();
            if is_over {
                remote.forgotten(client.id);
            }
            !is_over
        });
    }

    pub(crate) fn turn(&mut self, index: usize, letters: usize, now: Time) {
        let mut out = Outbox::default();
        let names = (&self.topology, self.acts());
        self.clients[index].turn(letters, names, now, &mut out);
        self.post(out);
    }

    /// A letter to the leader.
    fn up<L: Log>(&mut self, leader: &mut Leader<L>) -> Result<(), Refused> {
        let node = self.remote.node();
        match self.up.pop_front() {
            Some(ToLeader::Hello(hello)) => match leader.hello(&hello) {
                Ok(it) => {
                    assert_eq!(it, node);
                    self.is_known = true;
                }
                Err(Refused::Over(why)) => self.down.push_back(FromLeader::Over(why.into())),
                Err(not_now) => return Err(not_now),
            },
            Some(letter) if self.is_known => leader.hear(node, letter),
            // One that was refused writes on until it hears of it.
            Some(_) | None => {}
        }
        Ok(())
    }

    /// A letter from the leader.
    fn down(&mut self) -> Result<(), Refused> {
        let Some(letter) = self.down.pop_front() else { return Ok(()) };
        let mut out = Outbox::default();
        match self.remote.hear(letter, &mut out).expect("what a leader says") {
            Heard::Done
            | Heard::Begins
            | Heard::Alarm(_)
            | Heard::Lease
            | Heard::Look(..)
            | Heard::Uses(_) => {}
            Heard::Names(batch) => self.names.push_back(batch),
            Heard::Over(why) => return Err(Refused::Over(why.into())),
        }
        self.post(out);
        Ok(())
    }

    /// Nothing is on its way, and nobody waits for anything.
    pub(crate) fn is_at_rest(&self, now: Time) -> bool {
        let is_at_rest = |client: &Client| {
            client.is_free() && client.unconfirmed.is_empty() && client.is_idle(now)
        };
        let is_empty = self.up.is_empty() && self.down.is_empty() && self.names.is_empty();
        is_empty
            && self.remote.is_open()
            && !self.remote.has_next()
            && self.clients.iter().all(is_at_rest)
    }

    pub(crate) fn describe(&self) -> String {
        let Self { up, down, is_connected, is_known, names, .. } = self;
        let mut text = format!(
            "node {}: connected={is_connected} known={is_known} up={} down={} names={} {}",
            self.remote.node(),
            up.len(),
            down.len(),
            names.len(),
            self.remote.describe()
        );
        for client in &self.clients {
            text += &format!("    {} inbox={:?}\n", client.describe(), client.inbox);
        }
        text
    }

    pub(crate) fn apply_names(&mut self) {
        let Some(batch) = self.names.pop_front() else { return };
        let changes = match batch.is_whole {
            true => self.topology.changes_towards(batch.changes),
            false => batch.changes,
        };
        let gone = changes.iter().filter(|it| batch.is_whole && it.record.is_none());
        let gone = gone.filter_map(|it| match it.key {
            EntityKey::Queue(id) => self.topology.queue_by_id(id)?.exclusive_owner,
            _ => None,
        });
        let is_here =
            |owner: &ConnectionId| self.clients.iter().any(|it| it.id == *owner && !it.is_gone);
        // A program tells their clients that they are gone.
        self.lost_queues += gone.filter(is_here).count() as u64;
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

/// Letters go a step further between a node of sessions and the node that leads, if there is a connection.
///
/// # Errors
///
/// Why the node's sessions are over, or the connection is.
pub(crate) fn exchange<L: Log>(
    site: &mut Site,
    leader: &mut Leader<L>,
    random: Random<'_>,
) -> Result<(), Refused> {
    if !site.is_connected {
        return Ok(());
    }
    site.remote.ask_for_lease(site.now_ms);
    for _ in 0..random(4) {
        let has_next = site.remote.has_next();
        let letter = site.remote.send_next();
        assert!(has_next || letter.is_none(), "{letter:?} is not announced");
        site.up.extend(letter.map(wire::to_leader));
    }
    if site.is_known
        && let Some(node) = leader.nodes.get_mut(&site.remote.node())
    {
        site.down.extend(node.answer_lease().map(wire::from_leader));
        for _ in 0..random(4) {
            site.down.extend(node.send_next().map(wire::from_leader));
        }
    }
    (0..random(4)).try_for_each(|_| site.up(leader))?;
    (0..random(4)).try_for_each(|_| site.down())
}
