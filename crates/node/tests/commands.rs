//! Commands of two nodes over links that lose what they carry, to owners of the names that lose the ends of their logs: each is
//! answered once and done once.

#[path = "../../broker/tests/hand/log.rs"]
mod log;

use std::collections::{BTreeMap, VecDeque};

use leveret_broker::Meta;
use leveret_broker::command::{Answered, NumberedCommand};
use leveret_broker::message::*;
use leveret_log::Log as _;
use leveret_node::CommandSender;
use leveret_topology::{Homes, Topology, VhostId};
use log::HandLog;

const NODES: usize = 2;

/// Names that come and go, each with somebody who makes it and takes it away.
const NAMES: usize = 3;

/// What becomes of an exchange: who asks for the next change has the answer to the one before, or sees that it is made, and that it
/// is on the disk, before whoever made it has the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Gone,
    Declared { by: u64 },
    There,
    Deleted { by: u64 },
}

/// Between a node and the owner of the names.
#[derive(Debug)]
struct Link {
    sender: CommandSender,
    commands: VecDeque<NumberedCommand>,
    answers: VecDeque<Answered>,
}

struct World {
    log: HandLog,
    meta: Meta<HandLog>,
    topology: Topology,
    vhost: VhostId,
    inbox: Vec<ToMeta>,
    links: [Link; NODES],
    phases: [Phase; NAMES],
    /// Who has asked for something else, and waits.
    others: BTreeMap<u64, usize>,
    /// How many answers each has.
    answers: BTreeMap<u64, u32>,
    owners: u64,
}

fn name(index: usize) -> String {
    format!("x{index}")
}

impl World {
    fn new(random: &mut impl FnMut(u64) -> u64) -> Self {
        let log = HandLog::default();
        let mut topology = Topology::new();
        let vhost = topology.add_vhost("/").expect("the first one");
        let mut meta = Meta::new(log.clone());
        let disk = log.clone();
        meta.adopt(&mut topology, &mut || assert!(disk.hand().finish())).expect("room");
        let link = |node: usize, max| {
            let node = NodeId::new(1 + node as u32).expect("a node");
            let sender = CommandSender::new(node, 0, max);
            Link { sender, commands: VecDeque::new(), answers: VecDeque::new() }
        };
        let links = [0, 1].map(|node| link(node, 1 + random(4)));
        let phases = [Phase::Gone; NAMES];
        let (inbox, others, answers) = Default::default();
        let mut world =
            Self { log, meta, topology, vhost, inbox, links, phases, others, answers, owners: 0 };
        world.begin(|_| false);
        world
    }

    /// Somebody else owns the names.
    fn next_owner(&mut self, keeps_flights: impl FnMut(usize) -> bool) {
        self.log = self.log.crash();
        let disk = self.log.clone();
        let wait = &mut || assert!(disk.hand().finish_any());
        let recovered = Meta::recover(Homes::default(), self.log.clone(), wait);
        (self.meta, self.topology) = recovered.expect("what was written");
        self.inbox.clear();
        self.owners += 1;
        self.begin(keeps_flights);
    }

    fn begin(&mut self, mut keeps_flights: impl FnMut(usize) -> bool) {
        self.meta.begin_term(self.owners);
        for (index, link) in self.links.iter_mut().enumerate() {
            link.begin(self.owners, keeps_flights(index));
        }
    }

    /// A session of one of the nodes wants something, and waits for the answer.
    fn asks(
        &mut self,
        random: &mut impl FnMut(u64) -> u64,
        command: impl FnOnce(ReplyTo) -> ToMeta,
    ) -> u64 {
        let me = 1 + self.answers.len() as u64;
        let link = &mut self.links[random(NODES as u64) as usize];
        let connection = link.sender.stream().node.connection(me);
        self.answers.insert(me, 0);
        link.sender.keep(command(ReplyTo { connection, channel: 1 }));
        me
    }

    /// Somebody does something.
    fn act(&mut self, random: &mut impl FnMut(u64) -> u64) {
        let (index, vhost) = (random(NAMES as u64) as usize, self.vhost);
        if random(3) == 0 {
            let me = self.asks(random, |reply| declare_queue(vhost, reply, index));
            self.others.insert(me, index);
            return;
        }
        let is_there = self.topology.exchange(vhost, &name(index)).is_some();
        let is_stored = self.meta.log().durable() == self.meta.log().end();
        self.phases[index] = match self.phases[index] {
            Phase::Declared { .. } if is_there && is_stored => Phase::There,
            Phase::Deleted { .. } if !is_there && is_stored => Phase::Gone,
            phase => phase,
        };
        self.phases[index] = match self.phases[index] {
            Phase::Gone => {
                let by = self.asks(random, |reply| declare_exchange(vhost, reply, index));
                Phase::Declared { by }
            }
            Phase::There => {
                let by = self.asks(random, |reply| delete_exchange(vhost, reply, index));
                Phase::Deleted { by }
            }
            waits => waits,
        };
    }

    fn turn(&mut self, letters: usize) {
        let mut letters: Vec<_> = self.inbox.drain(..letters).collect();
        letters.push(ToMeta::LogWoke);
        let mut out = Outbox::default();
        self.meta.turn(&mut letters, &mut self.topology, &mut out);
        assert!(out.sessions.is_empty(), "an answer without a number: {:?}", out.sessions);
        for answered in out.answers {
            let mut links = self.links.iter_mut();
            let link = links.find(|link| link.sender.stream() == answered.stream);
            link.expect("a stream of these nodes").answers.push_back(answered);
        }
    }

    /// An answer arrives, whose change is there.
    fn arrive(&mut self, index: usize) {
        let Some(answered) = self.links[index].answers.pop_front() else { return };
        let mut out = Outbox::default();
        self.links[index].sender.hear(answered, &mut out);
        for (to, letter) in out.sessions {
            let me = to.number();
            let ToSession::Reply { reply: Reply::Done, .. } = letter else { panic!("{letter:?}") };
            *self.answers.get_mut(&me).expect("who has asked") += 1;
            for phase in &mut self.phases {
                match *phase {
                    Phase::Declared { by } if by == me => *phase = Phase::There,
                    Phase::Deleted { by } if by == me => *phase = Phase::Gone,
                    _ => {}
                }
            }
        }
        for (_, letter) in out.shards {
            let ToShard::Count { reply, queue } = letter else { panic!("{letter:?}") };
            let me = reply.connection.number();
            let index = self.others.remove(&me).expect("who has asked");
            let found = self.topology.queue_by_id(queue).map(|queue| queue.name.to_string());
            assert_eq!(found, Some(format!("q{index}")), "what was answered is there");
            *self.answers.get_mut(&me).expect("who has asked") += 1;
        }
    }

    /// What was answered is so, whoever owns the names, until the next one asks for something else.
    fn check(&self) {
        for (index, phase) in self.phases.iter().enumerate() {
            let is_there = self.topology.exchange(self.vhost, &name(index)).is_some();
            match phase {
                Phase::There => assert!(is_there, "exchange {index} is gone"),
                Phase::Gone => assert!(!is_there, "exchange {index} is there"),
                Phase::Declared { .. } | Phase::Deleted { .. } => {}
            }
        }
        assert!(self.answers.values().all(|&count| count <= 1), "somebody is answered twice");
    }

    fn step(&mut self, random: &mut impl FnMut(u64) -> u64, is_calm: bool) {
        let index = random(NODES as u64) as usize;
        let loses = |random: &mut dyn FnMut(u64) -> u64| !is_calm && random(8) == 0;
        match random(8) {
            0 if !is_calm => self.act(random),
            1 | 2 => {
                if let Some(command) = self.links[index].sender.send_next()
                    && !loses(random)
                {
                    self.links[index].commands.push_back(command);
                }
            }
            3 => {
                let command = self.links[index].commands.pop_front();
                self.inbox.extend(command.map(|it| ToMeta::Numbered(Box::new(it))));
            }
            4 => self.turn(random(1 + self.inbox.len() as u64) as usize),
            5 => {
                self.log.hand().finish();
                self.turn(0);
            }
            6 if loses(random) => _ = self.links[index].answers.pop_front(),
            6 => self.arrive(index),
            _ if is_calm || random(6) == 0 => {
                let keeps_flights = random(2) == 0;
                self.links[index].begin(self.owners, keeps_flights);
            }
            _ if random(4) == 0 => self.next_owner(|_| random(2) == 0),
            _ => {}
        }
        self.check();
    }
}

impl Link {
    /// It begins anew, to an owner of this term: what is on its way from before is lost, or comes all the same.
    fn begin(&mut self, term: u64, keeps_flights: bool) {
        if !keeps_flights {
            self.commands.clear();
            self.answers.clear();
        }
        self.sender.begins(term);
    }
}

fn declare_exchange(vhost: VhostId, reply: ReplyTo, index: usize) -> ToMeta {
    ToMeta::DeclareExchange {
        by: Box::default(),
        reply,
        vhost,
        name: name(index).into(),
        kind: "fanout".into(),
        durable: true,
        auto_delete: false,
        internal: false,
        arguments: Default::default(),
        forbidden: None,
    }
}

fn delete_exchange(vhost: VhostId, reply: ReplyTo, index: usize) -> ToMeta {
    let name = name(index).into();
    ToMeta::DeleteExchange { by: Box::default(), reply, vhost, name, if_unused: false }
}

fn declare_queue(vhost: VhostId, reply: ReplyTo, index: usize) -> ToMeta {
    ToMeta::DeclareQueue {
        by: Box::default(),
        reply,
        vhost,
        name: format!("q{index}").into(),
        server_named: false,
        durable: true,
        exclusive: false,
        auto_delete: false,
        arguments: Default::default(),
        forbidden: None,
    }
}

#[test]
fn each_command_is_answered_once_and_done_once() {
    let (mut owners, mut answered) = (0, 0);
    for seed in 0..60 {
        let mut random = leveret_log::suite::numbers(seed);
        let mut world = World::new(&mut random);
        for _ in 0..600 {
            world.step(&mut random, false);
        }
        for _ in 0..100_000 {
            if world.links.iter().all(|link| link.sender.kept() == 0) {
                break;
            }
            world.step(&mut random, true);
        }
        let states = world.links.each_ref().map(|link| link.sender.describe());
        assert!(world.answers.values().all(|&count| count == 1), "seed {seed}: {states:?}");
        owners += world.owners;
        answered += world.answers.len();
        let kept: u64 = world.links.iter().map(|link| link.sender.numbered()).sum();
        assert_eq!(kept, world.answers.len() as u64, "numbers have no gaps");
    }
    assert!(owners > 100 && answered > 600, "{owners} owners, {answered} answers");
}
