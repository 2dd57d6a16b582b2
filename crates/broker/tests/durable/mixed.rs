//! Everything that is long or makes names, at random and at once: names are whole after each turn, whoever asked is answered once,
//! and wherever the process ends, what comes back is whole.

use std::collections::{BTreeMap, BTreeSet};

use leveret_amqp::table::Table;
use leveret_broker::message::{
    AdminCommand, Binding, ConnectionId, NodeId, ToMeta, ToSession, ToShard,
};
use leveret_topology::{QueueId, VhostId};
use serde_json::json;

use crate::copy::Copy;
use crate::random::Rng;
use crate::{World, admin, declare_queue, delete_exchange, import, policy, reply};

/// Bindings of what is large.
const MANY: usize = 600;

/// Names, the shards' queues, and who waits for how many answers.
struct Node {
    world: World,
    there: BTreeSet<QueueId>,
    /// What shards have deleted and not told yet.
    gone: Vec<ToMeta>,
    asked: BTreeMap<u64, usize>,
    next: u64,
    /// One that makes exclusive queues.
    connection: u64,
}

impl Node {
    fn new(world: World) -> Self {
        let topology = &world.topology;
        let named = topology.vhosts().flat_map(|vhost| topology.queues(vhost.id));
        let going = topology.going_vhosts().flat_map(|vhost| topology.queues_of_going(vhost));
        let there = named.map(|queue| queue.id).chain(going).collect();
        let (gone, asked) = (Vec::new(), BTreeMap::new());
        Self { world, there, gone, asked, next: 1_000, connection: 100 }
    }

    fn ask(&mut self, who: u64) -> u64 {
        *self.asked.entry(who).or_default() += 1;
        who
    }

    fn ask_anew(&mut self) -> u64 {
        self.next += 1;
        self.ask(self.next)
    }

    fn answered(&mut self, who: ConnectionId) {
        let left = self.asked.get_mut(&who.number()).expect("it was asked");
        *left = left.checked_sub(1).expect("an answer is given once");
    }

    fn turn(&mut self, letters: Vec<ToMeta>) {
        self.world.turn(letters);
        self.world.topology.assert_structure();
        let out = &mut self.world.out;
        let (sessions, shards) =
            (std::mem::take(&mut out.sessions), std::mem::take(&mut out.shards));
        for (to, letter) in sessions {
            if let ToSession::Reply { .. } = letter {
                self.answered(to);
            }
        }
        for (_, letter) in shards {
            match letter {
                ToShard::Create { reply, queue } => {
                    self.there.insert(queue);
                    if let Some(reply) = reply {
                        self.answered(reply.connection);
                    }
                }
                ToShard::Count { reply, .. } => self.answered(reply.connection),
                ToShard::Delete { queue, .. } => self.delete(queue, None),
                _ => {}
            }
        }
    }

    /// Its shard deletes a queue, if it still has it.
    fn delete(&mut self, queue: QueueId, who: Option<u64>) {
        if self.there.remove(&queue) {
            self.gone.push(ToMeta::QueueGone {
                by: Box::default(),
                queue,
                reply: who.map(|who| (reply(who), 0)),
                consumers: Vec::new(),
                more: false,
            });
        }
    }

    /// What is left is done, and true on disk.
    fn end(&mut self) {
        for turns in 0.. {
            assert!(turns < 5_000, "it does not end");
            let mut letters = std::mem::take(&mut self.world.out.meta);
            letters.append(&mut self.gone);
            let is_idle = letters.is_empty();
            letters.push(ToMeta::LogWoke);
            self.turn(letters);
            let has_written = self.world.log.hand().finish();
            if is_idle && !has_written && self.gone.is_empty() && self.world.out.meta.is_empty() {
                break;
            }
        }
        assert!(!self.world.meta.has_work());
        self.world.topology.assert_invariants();
        assert_eq!(self.world.topology.going_vhosts().count(), 0);
        let waiting: Vec<_> = self.asked.iter().filter(|(_, count)| **count > 0).collect();
        assert!(waiting.is_empty(), "who asked is not answered: {waiting:?}");
        let after = self.world.crash();
        assert_eq!(after.topology.describe_durable(), self.world.topology.describe_durable());
    }

    /// The process ends here and another one goes on.
    fn cut(&self) {
        let mut after = Self::new(self.world.crash());
        // The first turn of a process is one that the node gives it.
        after.turn(vec![ToMeta::Continue]);
        after.end();
    }

    fn vhost(&self, rng: &mut Rng) -> Option<(&'static str, VhostId)> {
        let name = ["/", "v"][rng.at(2)];
        self.world.topology.vhost(name).map(|vhost| (name, vhost.id))
    }

    /// Something that somebody asks for.
    fn letter(&mut self, rng: &mut Rng) -> Option<ToMeta> {
        let Some((vhost_name, vhost)) = self.vhost(rng) else {
            let name = ["/", "v"][rng.at(2)].into();
            return Some(admin(self.ask_anew(), AdminCommand::AddVhost { name }));
        };
        let exchange = ["x", "y", "auto"][rng.at(3)];
        let queue = ["q", "q1", "r"][rng.at(3)];
        Some(match rng.at(14) {
            0 | 1 => {
                let definitions = definitions(vhost_name, exchange, queue, rng.at(2));
                admin(self.ask_anew(), import(&definitions))
            }
            2 => delete_exchange(vhost, self.ask_anew(), exchange),
            3 => {
                let id = self.world.topology.queue(vhost, queue)?.id;
                if self.there.contains(&id) {
                    let who = self.ask_anew();
                    self.delete(id, Some(who));
                }
                return None;
            }
            4 => {
                let name = vhost_name.into();
                admin(self.ask_anew(), AdminCommand::DeleteVhost { name })
            }
            5 => policy(self.ask_anew(), ["a", "b"][rng.at(2)], rng.at(9) as u64),
            6 => {
                let name = ["a", "b"][rng.at(2)].into();
                admin(self.ask_anew(), AdminCommand::ClearPolicy { vhost: "/".into(), name })
            }
            7 => {
                let (vhost, component) = (vhost_name.to_owned(), "policy".to_owned());
                let value = json!({ "pattern": "^(?!r)", "definition": { "max-length": 1 } });
                let name = "c".to_owned();
                admin(self.ask_anew(), AdminCommand::SetParameter { vhost, component, name, value })
            }
            8 | 9 => {
                let name = format!("e{}", rng.at(400));
                let who = self.ask(self.connection);
                declare_queue(vhost, who, &name, false, true)
            }
            10 if rng.at(3) == 0 => {
                let who = self.ask(self.connection);
                self.connection += 1;
                ToMeta::Disconnected {
                    connection: NodeId::ALONE.connection(who),
                    reply: Some(reply(who)),
                }
            }
            10 => declare_queue(vhost, self.ask_anew(), queue, true, false),
            11 => ToMeta::DeclareExchange {
                by: Box::default(),
                reply: reply(self.ask_anew()),
                vhost,
                name: exchange.into(),
                kind: "direct".into(),
                durable: true,
                auto_delete: exchange == "auto",
                internal: false,
                arguments: Table::new(),
                forbidden: None,
            },
            _ => {
                let binding = Binding {
                    by: Box::default(),
                    reply: reply(self.ask_anew()),
                    vhost,
                    source: exchange.into(),
                    destination: queue.into(),
                    to_queue: true,
                    key: rng.at(MANY).to_string().into(),
                    arguments: Table::new(),
                };
                match rng.at(2) {
                    0 => ToMeta::Bind(Box::new(binding)),
                    _ => ToMeta::Unbind(Box::new(binding)),
                }
            }
        })
    }
}

/// An exchange and a queue with very many bindings, or many queues.
fn definitions(vhost: &str, exchange: &str, queue: &str, kind: usize) -> String {
    let names =
        (0..MANY).filter(|_| kind == 1).map(|at| format!("n{at}")).chain([queue.to_owned()]);
    let queues: Vec<_> = names.map(|name| json!({ "vhost": vhost, "name": name })).collect();
    let bindings: Vec<_> = (0..MANY)
        .filter(|_| kind == 0)
        .map(|at| {
            json!({ "vhost": vhost, "source": exchange, "destination": queue, "destination_type": "queue",
                    "routing_key": at.to_string() })
        })
        .collect();
    let auto_delete = exchange == "auto";
    json!({
        "vhosts": [{ "name": vhost }],
        "exchanges": [{ "vhost": vhost, "name": exchange, "type": "direct", "auto_delete": auto_delete }],
        "queues": queues,
        "bindings": bindings,
    })
    .to_string()
}

#[test]
fn everything_at_once() {
    for seed in 0..12 {
        let mut rng = Rng(seed);
        let mut node = Node::new(World::new());
        for _ in 0..100 {
            let mut letters = Vec::new();
            for _ in 0..rng.at(4) {
                letters.extend(node.letter(&mut rng));
            }
            if rng.at(3) > 0 {
                letters.append(&mut node.world.out.meta);
            }
            while !node.gone.is_empty() && rng.at(4) > 0 {
                let at = rng.at(node.gone.len());
                letters.push(node.gone.swap_remove(at));
            }
            if rng.at(3) > 0 && node.world.log.hand().finish() {
                letters.push(ToMeta::LogWoke);
            }
            node.turn(letters);
            if rng.at(25) == 0 {
                node.cut();
            }
        }
        node.end();
    }
}

/// A node follows the log of names, is what a start would read after each batch, and takes over now and then: what was being deleted
/// goes on to go, and its own log is followed from then on.
#[test]
fn who_follows_takes_over() {
    for seed in 0..8 {
        let mut rng = Rng(seed);
        let mut node = Node::new(World::new());
        let mut copy = Copy::of(&node.world.log, &mut rng);
        for _ in 0..100 {
            let mut letters = Vec::new();
            for _ in 0..rng.at(4) {
                letters.extend(node.letter(&mut rng));
            }
            letters.append(&mut node.world.out.meta);
            letters.append(&mut node.gone);
            if rng.at(3) > 0 && node.world.log.hand().finish() {
                copy.follow(&node.world.log, &mut rng);
                letters.push(ToMeta::LogWoke);
            }
            node.turn(letters);
            if rng.at(25) == 0 {
                let next = Node::new(copy.take_over(&node.world.log));
                node = next;
                node.turn(vec![ToMeta::Continue]);
                copy = Copy::of(&node.world.log, &mut rng);
            }
        }
        node.end();
        copy.follow(&node.world.log, &mut rng);
    }
}
