//! One shard over a log whose disk is moved by hand, driven by words.

use std::cell::RefMut;
use std::collections::BTreeMap;
use std::sync::Arc;

use leveret_amqp::content::Properties;
use leveret_amqp::table::{Table, Value};
use leveret_broker::message::*;
use leveret_broker::record::join_names;
use leveret_broker::{Meta, Shard};
use leveret_log::MemoryLog;
use leveret_queue::{ChannelLimit, Gate, LookAt, Offset, OutputGauge, Time};
use leveret_topology::{GroupId, NodeId, PolicySpec, QueueId, Topology, VhostId};

use crate::log::{HandLog, State};

pub(crate) const PUBLISHER: ConnectionId = NodeId::ALONE.connection(1);
const CONSUMER: ConnectionId = NodeId::ALONE.connection(2);

pub(crate) struct Node {
    pub(crate) topology: Topology,
    meta: Meta<MemoryLog>,
    pub(crate) shard: Shard<HandLog>,
    pub(crate) now: Time,
    vhost: VhostId,
    queues: BTreeMap<char, QueueId>,
    slots: u32,
    /// Deliveries that wait for their ack, by queue.
    unacked: BTreeMap<QueueId, Vec<Delivery>>,
    /// Told and not looked at: `7`, `-7` for a nack, `!7` for a timeout.
    pub(crate) told: Vec<String>,
    /// The positions of the last page.
    pub(crate) looked: Vec<Offset>,
    /// Other letters, in short.
    pub(crate) said: Vec<String>,
    /// Of queues that are deleted: dead letters that are known to be safe in their targets.
    pub(crate) confirmed_letters: u64,
    pub(crate) failed: Option<String>,
}

impl Node {
    /// With the queues of such a text: `a b:ack c:enqueue,transient,ttl10`.
    pub(crate) fn new(queues: &str) -> Self {
        let mut topology = Topology::new();
        let vhost = topology.add_vhost("/").expect("a vhost");
        let mut node = Self {
            topology,
            meta: Meta::new(MemoryLog::new()),
            shard: Shard::new(GroupId::new(0), HandLog::default()),
            now: Time::from_ms(1_000_000),
            vhost,
            queues: BTreeMap::new(),
            slots: 0,
            unacked: BTreeMap::new(),
            told: Vec::new(),
            looked: Vec::new(),
            said: Vec::new(),
            confirmed_letters: 0,
            failed: None,
        };
        for queue in queues.split_whitespace() {
            node.declare(queue);
        }
        node
    }

    pub(crate) fn declare(&mut self, words: &str) {
        let (name, options) = words.split_once(':').unwrap_or((words, ""));
        let mut arguments = Table::default();
        let mut durable = true;
        for option in options.split(',').filter(|option| !option.is_empty()) {
            let digits = option.find(|c: char| c.is_ascii_digit()).unwrap_or(option.len());
            let number = Value::I32(option[digits..].parse().unwrap_or(0));
            let text = |text: &str| Value::LongStr(text.as_bytes().to_vec());
            let mut set = |name: &str, value| arguments.set(name, value);
            match &option[..digits] {
                "transient" => durable = false,
                "ttl" => set("x-message-ttl", number),
                "max" => set("x-max-length", number),
                "reject" => {
                    set("x-max-length", number);
                    set("x-overflow", text("reject-publish"));
                }
                "limit" => {
                    set("x-queue-type", text("quorum"));
                    set("x-delivery-limit", number);
                }
                "dlx" => {
                    set("x-dead-letter-exchange", text(""));
                    set("x-dead-letter-routing-key", text("z"));
                }
                "dla" => set("x-confirm-on-dead-letter", text("ack")),
                "timeout" => set("x-confirm-timeout", number),
                "defer" => set("x-confirm-defer", number),
                "hdr" => set("x-confirm-on-header", Value::Bool(true)),
                rule => set("x-confirm-on", text(rule)),
            }
        }
        let letter = ToMeta::DeclareQueue {
            by: Box::default(),
            reply: ReplyTo { connection: PUBLISHER, channel: 1 },
            vhost: self.vhost,
            name: name.into(),
            server_named: false,
            durable,
            exclusive: false,
            auto_delete: false,
            arguments,
            forbidden: None,
        };
        self.run(Outbox { meta: vec![letter], ..Outbox::default() });
        let found = self.topology.queue(self.vhost, name).expect("declared").id;
        self.queues.insert(name.chars().next().expect("a name"), found);
        self.said.clear();
    }

    pub(crate) fn queue(&self, name: char) -> QueueId {
        self.queues[&name]
    }

    /// Delivers letters until there are none.
    pub(crate) fn run(&mut self, mut out: Outbox) {
        loop {
            for (_, letter) in out.sessions.drain(..) {
                self.hear(letter);
            }
            self.failed = out.failed.take().or_else(|| self.failed.take());
            let mut meta = std::mem::take(&mut out.meta);
            let mut letters: Vec<ToShard> = out.shards.drain(..).map(|(_, it)| it).collect();
            if meta.is_empty() && letters.is_empty() {
                return;
            }
            self.meta.turn(&mut meta, &mut self.topology, &mut out);
            if !letters.is_empty()
                && self.shard.turn(&mut letters, &self.topology, self.now, &mut out)
            {
                out.shard(GroupId::new(0), ToShard::Continue);
            }
        }
    }

    fn hear(&mut self, letter: ToSession) {
        match letter {
            ToSession::Confirm { first, last, ok, .. } => {
                let sign = if ok { "" } else { "-" };
                self.told.extend((first..=last).map(|seq| format!("{sign}{seq}")));
            }
            ToSession::ConfirmTimeout { first, last, .. } => {
                self.told.extend((first..=last).map(|seq| format!("!{seq}")));
            }
            ToSession::Deliver(deliveries) => {
                for delivery in deliveries.into_iter().filter(|it| it.unacked.is_some()) {
                    self.unacked.entry(delivery.queue).or_default().push(delivery);
                }
            }
            ToSession::Reply { reply: Reply::Refused { code, text }, .. } => {
                self.said.push(format!("refused {} {text}", code.code()));
            }
            ToSession::Reply { reply: Reply::Queues(facts), .. } => {
                let in_flow = facts.iter().filter(|one| one.numbers.is_in_flow);
                self.said.extend(in_flow.map(|_| "in flow".to_owned()));
            }
            ToSession::Reply { reply: Reply::Looked(page), .. } => {
                self.looked = page.messages.iter().map(|one| one.look.offset).collect();
            }
            ToSession::Reply { reply: Reply::Sampled(piece), .. } => {
                let gone = piece.rest.iter().flat_map(|rest| &rest.gone);
                self.confirmed_letters = gone.map(|it| it.totals.dead_letters_confirmed).sum();
            }
            ToSession::Stopped => self.said.push("Stopped".to_owned()),
            ToSession::Reply { reply, .. } => {
                let text = format!("{reply:?}");
                let word = text.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
                self.said.push(word.to_owned());
            }
            ToSession::Paused(paused) => self.said.push(format!("Paused({paused})")),
            _ => {}
        }
    }

    pub(crate) fn turn(&mut self, letter: ToShard) {
        self.turns([letter]);
    }

    /// Letters that one turn finds.
    pub(crate) fn turns(&mut self, letters: impl IntoIterator<Item = ToShard>) {
        let mut out = Outbox::default();
        letters.into_iter().for_each(|letter| out.shard(GroupId::new(0), letter));
        self.run(out);
    }

    pub(crate) fn log(&self) -> RefMut<'_, State> {
        self.shard.log().hand()
    }

    /// Lets the disk finish what it has, and the shard see it.
    pub(crate) fn disk(&mut self) {
        self.log().finish();
        self.turn(ToShard::LogWoke);
    }

    pub(crate) fn later(&mut self, ms: u64) {
        self.now = self.now.after_ms(ms);
        self.turn(ToShard::Continue);
    }

    pub(crate) fn message(
        &self,
        seq: u64,
        queues: &str,
        persistent: bool,
        rule: Option<&str>,
    ) -> Publish {
        let mut properties = Properties::default();
        if let Some(rule) = rule {
            let mut headers = Table::default();
            headers.set("x-confirm-on", Value::LongStr(rule.as_bytes().to_vec()));
            properties.headers = Some(headers);
        }
        let mut encoded = Vec::new();
        properties.encode(&mut encoded);
        Publish {
            channel: 1,
            confirm: seq,
            targets: queues.chars().map(|name| self.queue(name)).collect(),
            persistent,
            priority: 0,
            expiration_ms: None,
            message: Message::from_parts(&join_names("", "k"), &encoded, &[b'x'; 100]),
            shared: None,
        }
    }

    pub(crate) fn consume(&mut self, queue: QueueId, no_ack: bool, prefetch: u16) {
        let gate = Gate::new(Arc::new(OutputGauge::new(1 << 40)), Arc::new(ChannelLimit::new()));
        self.slots += 1;
        self.turn(ToShard::Consume {
            user: Box::default(),
            reply: ReplyTo { connection: CONSUMER, channel: 1 },
            queue,
            slot: ConsumerSlot(self.slots),
            tag: "c".into(),
            no_ack,
            exclusive: false,
            priority: 0,
            prefetch,
            gate: Some(gate),
            arguments: Default::default(),
        });
    }

    /// The next one of the queue that waits for its ack; `last` for the newest.
    pub(crate) fn settlement(
        &mut self,
        queue: QueueId,
        how: Settle,
        last: bool,
    ) -> Option<Settlement> {
        let unacked = self.unacked.get_mut(&queue).filter(|all| !all.is_empty())?;
        let delivery = unacked.remove(if last { unacked.len() - 1 } else { 0 });
        Some(Settlement {
            queue,
            unacked: delivery.unacked.expect("filtered"),
            offset: delivery.offset,
            how,
        })
    }

    /// How many of the queue's messages wait for their ack.
    pub(crate) fn unacked(&self, queue: QueueId) -> usize {
        self.unacked.get(&queue).map_or(0, Vec::len)
    }

    pub(crate) fn settle(&mut self, queue: QueueId, how: Settle, last: bool) {
        if let Some(settlement) = self.settlement(queue, how, last) {
            self.turn(ToShard::Settle {
                from: NodeId::ALONE.connection(1),
                settlements: vec![settlement],
            });
        }
    }

    pub(crate) fn policy(&mut self, definition: &str) {
        let spec = PolicySpec {
            name: "p",
            pattern: ".*",
            apply_to: leveret_topology::ApplyTo::All,
            priority: 0,
            definition: serde_json::from_str(definition).expect("JSON"),
        };
        for queue in self.topology.set_policy("/", spec).expect("a policy") {
            self.turn(ToShard::OptionsChanged { queue });
        }
    }

    /// What was told since the last call, in the order of telling.
    pub(crate) fn take_told(&mut self) -> String {
        std::mem::take(&mut self.told).join(" ")
    }

    /// Does what one word says; see `rules` in the tests.
    pub(crate) fn word(&mut self, word: &str) {
        let reply = ReplyTo { connection: PUBLISHER, channel: 1 };
        if let Some(ms) = word.strip_prefix('+') {
            return self.later(ms.parse().expect("ms"));
        }
        let (verb, names) = word.split_once(':').unwrap_or((word, ""));
        let queue = names.chars().next().map(|name| self.queue(name));
        let kind = &verb[..1];
        let number = verb[1..].parse::<u64>();
        match (verb, queue) {
            ("disk", _) => self.disk(),
            ("c", Some(queue)) => self.consume(queue, false, 0),
            ("c1", Some(queue)) => self.consume(queue, false, 1),
            ("c10", Some(queue)) => self.consume(queue, false, 10),
            ("x", Some(queue)) => self.consume(queue, true, 0),
            ("ack", Some(queue)) => self.settle(queue, Settle::Ack, false),
            ("acklast", Some(queue)) => self.settle(queue, Settle::Ack, true),
            ("rej", Some(queue)) => self.settle(queue, Settle::Reject, false),
            ("req", Some(queue)) => self.settle(queue, Settle::Requeue { counts: true }, false),
            ("get", Some(queue)) => self.turn(ToShard::Get { reply, queue, no_ack: true }),
            ("purge1", Some(queue)) => self.turn(ToShard::Purge { reply, queue, max: 1 }),
            ("discard", Some(queue)) => {
                let page = ToShard::Look {
                    reply,
                    queue,
                    place: LookAt::Ready,
                    from: Offset::new(0),
                    max: 2,
                };
                self.turn(page);
                let offsets = self.looked.drain(..).skip(1).collect();
                self.turn(ToShard::Discard { reply, queue, offsets });
            }
            ("mv", Some(queue)) => {
                let target = self.queue(names.chars().nth(1).expect("a target"));
                let (place, from, max) = (LookAt::Ready, Offset::new(0), 1);
                self.turn(ToShard::Look { reply, queue, place, from, max });
                let (offsets, to) = (self.looked.clone(), MoveTo::Queue(target));
                self.turn(ToShard::Move { reply, queue, offsets, to });
            }
            ("purge", Some(queue)) => self.turn(ToShard::Purge { reply, queue, max: u64::MAX }),
            ("del", Some(queue)) => {
                let (if_unused, if_empty) = (false, false);
                self.turn(ToShard::Delete {
                    by: Box::default(),
                    reply: Some(reply),
                    queue,
                    if_unused,
                    if_empty,
                });
            }
            (_, Some(_)) => {
                let rule = match kind {
                    "A" => Some("ack"),
                    "E" => Some("enqueue"),
                    _ => None,
                };
                let seq = if kind == "n" { 0 } else { number.expect("a number") };
                let message = self.message(seq, names, kind != "t", rule);
                self.turn(ToShard::Publish { from: PUBLISHER, messages: vec![message] });
            }
            _ => panic!("{word}"),
        }
    }
}
