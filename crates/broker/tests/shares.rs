//! Who causes work pays for it: what one connection brings is done in pieces, and others do not stand behind it.

use leveret_amqp::content::Properties;
use leveret_amqp::table::Table;
use leveret_broker::message::*;
use leveret_broker::record::join_names;
use leveret_broker::transaction::TxId;
use leveret_broker::work::Limits;
use leveret_broker::{Meta, Shard};
use leveret_log::disk::{Faults, SimDisk};
use leveret_log::file::Options;
use leveret_log::{FileLog, MemoryLog};
use leveret_queue::{Gate, Time};
use leveret_topology::{GroupId, Import, NodeId, QueueId, Topology, VhostId};

const FAN: ConnectionId = NodeId::ALONE.connection(1);
const PROBE: ConnectionId = NodeId::ALONE.connection(2);

/// A shard with so many queues.
struct Node {
    topology: Topology,
    meta: Meta<MemoryLog>,
    /// What the owner of the names is to be told.
    to_meta: Vec<ToMeta>,
    /// What the shard wrote to itself in its last turn.
    to_shard: Vec<ToShard>,
    shard: Shard<MemoryLog>,
    queues: Vec<QueueId>,
    /// What sessions got, in order.
    got: Vec<(ConnectionId, ToSession)>,
    /// Units that the most expensive turn cost.
    most: u64,
}

impl Node {
    fn new(queues: usize) -> Self {
        let queues: Vec<_> =
            (0..queues).map(|number| (format!("q{number}"), Table::default())).collect();
        Self::with(&queues)
    }

    /// A shard with these queues, with their arguments.
    fn with(queues: &[(String, Table)]) -> Self {
        let mut topology = Topology::new();
        let vhost = topology.add_vhost("/").expect("a vhost");
        let mut meta = Meta::new(MemoryLog::new());
        let mut out = Outbox::default();
        let named = |(name, arguments): &(String, Table)| {
            let mut letter = declare(vhost, name, reply(FAN));
            if let ToMeta::DeclareQueue { arguments: of_queue, .. } = &mut letter {
                *of_queue = arguments.clone();
            }
            letter
        };
        let mut letters: Vec<_> = queues.iter().map(named).collect();
        while !letters.is_empty() {
            meta.turn(&mut letters, &mut topology, &mut out);
            letters.append(&mut out.meta);
        }
        let id = |(name, _): &(String, Table)| topology.queue(vhost, name).expect("declared").id;
        let queues = queues.iter().map(id).collect();
        let shard = Shard::new(GroupId::new(0), MemoryLog::new());
        let (to_meta, to_shard, got) = (Vec::new(), Vec::new(), Vec::new());
        let mut node = Self { topology, meta, to_meta, to_shard, shard, queues, got, most: 0 };
        let letters: Vec<ToShard> = out.shards.drain(..).map(|(_, letter)| letter).collect();
        node.run(letters);
        (node.got, node.most) = (Vec::new(), 0);
        node
    }

    /// One turn. Whether there is more to do.
    fn turn(&mut self, letters: impl IntoIterator<Item = ToShard>) -> bool {
        let mut letters = letters.into_iter().collect();
        let mut out = Outbox::default();
        let more = self.shard.turn(&mut letters, &self.topology, Time::from_ms(1), &mut out);
        self.got.append(&mut out.sessions);
        self.to_meta.append(&mut out.meta);
        self.to_shard = out.shards.into_iter().map(|(_, letter)| letter).collect();
        self.most = self.most.max(self.shard.spent());
        more
    }

    /// Turns until all is done. How many.
    fn run(&mut self, letters: impl IntoIterator<Item = ToShard>) -> usize {
        let mut turns = 1;
        let mut more = self.turn(letters);
        while more {
            more = self.turn([]);
            turns += 1;
        }
        turns
    }

    /// A turn of the owner of the names. What the shard is told.
    fn meta_turn(&mut self) -> Vec<ToShard> {
        let mut out = Outbox::default();
        self.meta.turn(&mut self.to_meta, &mut self.topology, &mut out);
        self.got.append(&mut out.sessions);
        out.shards.into_iter().map(|(_, letter)| letter).collect()
    }

    /// So many consumers of the first queue, in slots from 0.
    fn consume(&mut self, count: u32) {
        let queue = self.queues[0];
        self.run((0..count).map(|slot| consume(queue, ConsumerSlot(slot))));
        self.got.clear();
        self.most = 0;
    }

    /// Slots of a connection's consumers that were told that they are gone.
    fn gone(&self, who: ConnectionId) -> Vec<u32> {
        let mine = self.got.iter().filter(|(to, _)| *to == who);
        let slots = mine.filter_map(|(_, letter)| match letter {
            ToSession::ConsumerGone { slot } => Some(slot.0),
            _ => None,
        });
        slots.collect()
    }

    /// Messages for all queues.
    fn fan_out(&self, messages: u64) -> ToShard {
        let publish = |seq| publish(seq, &self.queues);
        ToShard::Publish { from: FAN, messages: (1..=messages).map(publish).collect() }
    }

    /// What was told to a connection, in words.
    fn told(&self, who: ConnectionId) -> Vec<String> {
        let mine = self.got.iter().filter(|(to, _)| *to == who);
        let word = |letter: &ToSession| match letter {
            ToSession::Confirm { first, last, .. } => format!("{first}..{last}"),
            ToSession::Paused(is) => format!("paused {is}"),
            other => format!("{other:?}"),
        };
        mine.map(|(_, letter)| word(letter)).collect()
    }

    /// Offsets of the first messages of a queue that are ready.
    fn first_ready(&self, queue: QueueId, max: usize) -> Vec<u64> {
        let found = self.shard.queues().find(|(id, _)| *id == queue);
        let mut first = Vec::new();
        if let Some((_, queue)) = found {
            queue.upcoming(0, max, |at, _| first.push(at.get()));
        }
        first
    }

    fn ready(&self) -> Vec<u64> {
        let count =
            |id| self.shard.queues().find(|(other, _)| *other == id).map(|(_, it)| it.counts());
        self.queues.iter().map(|&id| count(id).map_or(0, |counts| counts.ready)).collect()
    }
}

fn publish(confirm: u64, targets: &[QueueId]) -> Publish {
    let mut properties = Vec::new();
    Properties::default().encode(&mut properties);
    Publish {
        channel: 1,
        confirm,
        targets: targets.iter().copied().collect(),
        persistent: false,
        priority: 0,
        expiration_ms: None,
        message: Message::from_parts(&join_names("", "q"), &properties, b"x"),
        shared: None,
    }
}

fn declare(vhost: VhostId, name: &str, reply: ReplyTo) -> ToMeta {
    ToMeta::DeclareQueue {
        by: Box::default(),
        reply,
        vhost,
        name: name.into(),
        server_named: false,
        durable: true,
        exclusive: false,
        auto_delete: false,
        arguments: Table::default(),
        forbidden: None,
    }
}

fn consume(queue: QueueId, slot: ConsumerSlot) -> ToShard {
    ToShard::Consume {
        user: Box::default(),
        reply: reply(FAN),
        queue,
        slot,
        tag: format!("t{}", slot.0).into(),
        no_ack: false,
        exclusive: false,
        priority: 0,
        prefetch: 1,
        gate: Some(Gate::open()),
        arguments: Default::default(),
    }
}

fn reply(connection: ConnectionId) -> ReplyTo {
    ReplyTo { connection, channel: 1 }
}

#[test]
fn a_fan_out_does_not_keep_others_waiting() {
    let mut node = Node::new(1_000);
    let fan_out = node.fan_out(400);
    assert!(node.turn([fan_out]), "400,000 messages into queues are more than a turn");
    assert_eq!(node.told(FAN)[0], "paused true", "who brings so much is not read from");
    let one = publish(1, &node.queues[..1]);
    assert!(node.turn([ToShard::Publish { from: PROBE, messages: vec![one] }]));
    assert_eq!(node.told(PROBE), ["1..1"], "in the next turn, and without a pause");
    let count = ToShard::Count { reply: reply(PROBE), queue: node.queues[0] };
    assert!(node.turn([count]));
    assert_eq!(node.told(PROBE).len(), 2);
    // Its own letters keep their order.
    let count = ToShard::Count { reply: reply(FAN), queue: node.queues[0] };
    node.run([count]);
    let told = node.told(FAN);
    let pauses: Vec<_> = told.iter().filter(|word| word.starts_with("paused")).collect();
    assert_eq!(pauses, ["paused true", "paused false"]);
    assert!(told.last().is_some_and(|last| last.contains("messages: 401")), "{told:?}");
    assert!(node.most <= 2 * node.shard.limits().turn, "{} units in one turn", node.most);
    assert_eq!(node.shard.counters().enqueued, 400_001);
}

/// The connection that was paused ends, the one way or the other: nothing is kept of it.
#[test]
fn no_pause_is_for_ever() {
    let mut node = Node::new(1_000);
    let fan_out = node.fan_out(400);
    node.turn([fan_out]);
    assert_eq!(node.told(FAN)[0], "paused true");
    node.run([ToShard::Disconnected { connection: FAN, reply: None }]);
    node.got.clear();
    let fan_out = node.fan_out(400);
    node.run([fan_out]);
    let told = node.told(FAN);
    assert_eq!(told.iter().filter(|word| *word == "paused true").count(), 1, "{told:?}");
    assert_eq!(told.iter().filter(|word| *word == "paused false").count(), 1, "{told:?}");
}

/// A crowded inbox: who was told to pause goes on with the turn that takes it.
#[test]
fn a_crowd_goes_on_with_the_next_turn() {
    let mut node = Node::new(1);
    let one = publish(1, &node.queues);
    node.turn([
        ToShard::Publish { from: FAN, messages: vec![one] },
        ToShard::Crowded { from: FAN },
    ]);
    assert!(node.told(FAN).contains(&"paused false".to_owned()));
}

/// Wherever the work is cut, the end is that of one uncut turn, and what connections are told is the same.
#[test]
fn the_end_is_the_same_wherever_it_is_cut() {
    let run = |limits: Limits| {
        let mut node = Node::new(30);
        node.shard.set_limits(limits);
        let few = |seq| publish(seq, &node.queues[..7]);
        let letters = [
            node.fan_out(20),
            ToShard::Publish { from: PROBE, messages: (1..=9).map(few).collect() },
            ToShard::Purge { reply: reply(FAN), queue: node.queues[9], max: 5 },
            ToShard::Get { reply: reply(PROBE), queue: node.queues[2], no_ack: true },
            ToShard::Count { reply: reply(FAN), queue: node.queues[9] },
        ];
        node.run(letters);
        let told: Vec<_> = [FAN, PROBE]
            .map(|who| {
                let mut confirmed = Vec::new();
                let mut others = Vec::new();
                for (_, letter) in node.got.iter().filter(|(to, _)| *to == who) {
                    match letter {
                        ToSession::Confirm { first, last, ok: true, .. } => {
                            confirmed.extend(*first..=*last)
                        }
                        ToSession::Reply { reply: Reply::Got { remaining, .. }, .. } => {
                            // How many of the other connection's came before is open.
                            others.push(format!("got, {}", *remaining >= 8));
                        }
                        other => others.push(format!("{other:?}")),
                    }
                }
                (confirmed, others)
            })
            .into();
        (node.ready(), node.shard.counters(), node.shard.usage().records, told)
    };
    let whole = run(Limits { turn: 1 << 40, share: 1 << 40 });
    for turn in [1, 2, 3, 5, 8, 31, 40, 64, 100] {
        for share in [1, 2, 7, 30] {
            assert_eq!(run(Limits { turn, share }), whole, "turn {turn}, share {share}");
        }
    }
}

/// Very much that leaves at once is let go of in pieces, and a list of many queues is one answer.
#[test]
fn purges_and_lists_are_done_in_pieces() {
    let mut node = Node::new(2_000);
    let fan_out = node.fan_out(30);
    node.run([fan_out]);
    node.most = 0;
    let purge = |&queue| ToShard::Purge { reply: reply(PROBE), queue, max: u64::MAX };
    let purges: Vec<_> = node.queues.iter().map(purge).collect();
    let list = ToShard::List {
        reply: reply(FAN),
        queues: node.queues.clone().into(),
        consumers: Named::None,
    };
    assert!(node.run(purges.into_iter().chain([list])) > 4);
    assert!(node.most <= 2 * node.shard.limits().turn, "{} units in one turn", node.most);
    assert_eq!(node.shard.usage().records, 0);
    let lists = node.got.iter().filter_map(|(_, letter)| match letter {
        ToSession::Reply { reply: Reply::Queues(facts), .. } => Some(facts.len()),
        _ => None,
    });
    assert_eq!(lists.collect::<Vec<_>>(), [2_000]);
}

/// So many that whoever looks at all of them for each does not come to an end.
const MANY: u32 = 100_000;

/// A queue with very many consumers is gone at once; those are told in pieces.
#[test]
fn consumers_of_a_deleted_queue_are_told_in_pieces() {
    let mut node = Node::new(1);
    node.consume(MANY);
    let queue = node.queues[0];
    let (if_unused, if_empty) = (false, false);
    let delete = ToShard::Delete {
        by: Box::default(),
        reply: Some(reply(PROBE)),
        queue,
        if_unused,
        if_empty,
    };
    node.run([delete]);
    assert!(node.gone(FAN).is_empty(), "the name is there still");
    let letters = node.meta_turn();
    assert!(node.told(PROBE)[0].contains("Deleted(0)"), "{:?}", node.told(PROBE));
    let first = node.gone(FAN);
    assert!((1..=100).contains(&first.len()), "{} in one go", first.len());
    // One is cancelled by its client, which does not know yet.
    let (connection, slot) = (FAN, ConsumerSlot(MANY - 1));
    node.turn([ToShard::Cancel {
        user: Box::default(),
        reply: Some(reply(FAN)),
        connection,
        queue,
        slot,
    }]);
    assert!(node.run(letters) > 100);
    assert!(node.most <= 2 * node.shard.limits().turn, "{} units in one turn", node.most);
    assert_eq!(node.gone(FAN), (0..MANY - 1).collect::<Vec<_>>(), "each once, oldest first");
    let cancelled = node.told(FAN).iter().filter(|told| told.contains("Cancelled")).count();
    assert_eq!(cancelled, 1);
}

/// The connection ends while its consumers are being told.
#[test]
fn consumers_of_a_deleted_queue_whose_connection_ends() {
    let mut node = Node::new(1);
    node.consume(2_000);
    let (queue, if_unused, if_empty) = (node.queues[0], false, false);
    node.run([ToShard::Delete { by: Box::default(), reply: None, queue, if_unused, if_empty }]);
    let letters = node.meta_turn();
    node.turn(letters);
    node.run([ToShard::Disconnected { connection: FAN, reply: None }]);
    let told = node.gone(FAN).len();
    assert!((1..2_000).contains(&told), "{told}");
    // What it had is free for others.
    node.got.clear();
    node.run([ToShard::Count { reply: reply(PROBE), queue }]);
    assert!(node.told(PROBE)[0].contains("Gone"), "{:?}", node.told(PROBE));
}

/// A connection with very many consumers cancels some, and ends.
#[test]
fn many_consumers_of_one_connection_go_in_pieces() {
    let mut node = Node::new(1);
    node.consume(MANY);
    let (queue, connection) = (node.queues[0], FAN);
    let cancel = |slot| {
        let slot = ConsumerSlot(slot);
        ToShard::Cancel { user: Box::default(), reply: None, connection, queue, slot }
    };
    // From the middle outward: none is at an end of anything.
    node.run((1..MANY / 4).flat_map(|at| [MANY / 2 - at, MANY / 2 + at]).map(cancel));
    let count = |node: &Node| node.shard.queues().next().map(|(_, it)| it.counts().consumers);
    assert_eq!(count(&node), Some(MANY - 2 * (MANY / 4 - 1)));
    // Who is told of the end is told when all have gone.
    let mut more =
        node.turn([ToShard::Disconnected { connection: FAN, reply: Some(reply(PROBE)) }]);
    let mut turns = 1;
    while more {
        assert_eq!(node.told(PROBE), [""; 0]);
        more = node.turn([]);
        turns += 1;
    }
    assert!(turns > 50, "{turns}");
    assert!(node.most <= 2 * node.shard.limits().turn, "{} units in one turn", node.most);
    assert_eq!(count(&node), Some(0));
    assert_eq!(node.told(PROBE).len(), 1);
}

/// A list counts consumers at no cost; it names them in pieces, all of them or those of a channel.
#[test]
fn consumers_are_counted_or_named_in_pieces() {
    let mut node = Node::new(1);
    node.consume(MANY);
    let list = |node: &mut Node, consumers| {
        node.got.clear();
        node.most = 0;
        let queues = node.queues.clone().into();
        let turns = node.run([ToShard::List { reply: reply(PROBE), queues, consumers }]);
        let facts = node.got.iter().find_map(|(_, letter)| match letter {
            ToSession::Reply { reply: Reply::Queues(facts), .. } => Some(facts[0].clone()),
            _ => None,
        });
        (turns, node.most, facts.expect("a list"))
    };
    let (turns, units, facts) = list(&mut node, Named::None);
    assert!(turns == 1 && units < 16, "as a queue without consumers: {units} units");
    assert_eq!((facts.numbers.counts.consumers, facts.active_consumers), (MANY, MANY));
    assert!(facts.consumers.is_empty() && facts.exclusive.is_none());

    let (turns, units, facts) = list(&mut node, Named::All);
    assert!(turns > 50 && units <= 2 * node.shard.limits().turn, "{turns} turns of {units}");
    let tags: Vec<_> = facts.consumers.iter().map(|it| it.tag.to_string()).collect();
    assert_eq!(tags, (0..MANY).map(|slot| format!("t{slot}")).collect::<Vec<_>>());

    let (turns, units, facts) = list(&mut node, Named::OfChannel(FAN, 2));
    assert!(turns > 1 && units <= 2 * node.shard.limits().turn, "{turns} turns of {units}");
    assert!(facts.consumers.is_empty());

    // One is left in the last place: who has gone costs little.
    let (queue, connection) = (node.queues[0], FAN);
    let cancel = |slot| {
        let slot = ConsumerSlot(slot);
        ToShard::Cancel { user: Box::default(), reply: None, connection, queue, slot }
    };
    node.run((0..MANY - 1).map(cancel));
    let (_, units, facts) = list(&mut node, Named::All);
    assert!(units <= 2 * node.shard.limits().turn, "{units}");
    assert_eq!(facts.consumers.len(), 1);
}

/// A stop while acks wait for their turn: they are kept, and what was only rejected comes back.
#[test]
fn acks_that_wait_are_kept_by_a_stop() {
    let mut node = Node::new(1);
    let queue = node.queues[0];
    let few = (1..=20).map(|seq| publish(seq, &node.queues)).collect();
    node.run([ToShard::Publish { from: PROBE, messages: few }]);
    let get = |_| ToShard::Get { reply: reply(PROBE), queue, no_ack: false };
    node.run((0..20).map(get));
    let settlements = node.got.iter().filter_map(|(_, letter)| match letter {
        ToSession::Reply { reply: Reply::Got { delivery, .. }, .. } => {
            let how = if delivery.offset.get() == 19 { Settle::Reject } else { Settle::Ack };
            Some(Settlement { queue, unacked: delivery.unacked?, offset: delivery.offset, how })
        }
        _ => None,
    });
    let settlements: Vec<_> = settlements.collect();
    assert_eq!(settlements.len(), 20);
    node.shard.set_limits(Limits { turn: 1, share: 1 });
    assert!(node.turn([ToShard::Settle { from: PROBE, settlements }]), "more than a turn");
    assert!(node.shard.usage().records > 1);
    node.shard.close();
    assert_eq!(node.shard.usage().records, 1, "the one that was rejected");
}

/// The disk always has something of many who ask for little, one after the other: a long command goes on beside them.
#[test]
fn a_long_command_goes_on_beside_many_short_ones() {
    const CLIENTS: u64 = 20;
    let disk = SimDisk::new(7);
    let log = FileLog::open(disk.clone(), Options::default(), &mut |_| {}).expect("an empty disk");
    let mut meta = Meta::new(log.0);
    let mut topology = Topology::new();
    let vhost = topology.add_vhost("/").expect("a vhost");
    let mut out = Outbox::default();
    let queue =
        |at| serde_json::json!({"name": format!("long {at}"), "vhost": "/", "durable": true});
    let queues: Vec<_> = (0..20_000).map(queue).collect();
    let document = serde_json::json!({ "queues": queues });
    let definitions = Box::new(Import::read(&document.to_string()).unwrap());
    let command = AdminCommand::ImportDefinitions { definitions };
    out.meta.push(ToMeta::Admin { by: Box::default(), reply: reply(FAN), command: command.into() });
    for round in 0..200 {
        disk.set_faults(Faults { stall: true, ..Faults::default() });
        for client in 0..CLIENTS {
            let mut letters = std::mem::take(&mut out.meta);
            let from = reply(NodeId::ALONE.connection(100 + client));
            letters.push(declare(vhost, &format!("short {round} {client}"), from));
            meta.turn(&mut letters, &mut topology, &mut out);
        }
        disk.set_faults(Faults::default());
        out.meta.push(ToMeta::LogWoke);
        meta.turn(&mut std::mem::take(&mut out.meta), &mut topology, &mut out);
        if out.sessions.iter().any(|(to, _)| *to == FAN) {
            return;
        }
    }
    panic!("it is not done");
}

/// Dead letters that go round a ring of queues whose time is over at once are done in pieces, whatever their history makes
/// them cost: what somebody else asks is answered soon.
#[test]
fn a_ring_of_dead_letters_does_not_keep_others_waiting() {
    let names: Vec<String> = (0..30).map(|number| format!("l{number}")).collect();
    let ring = |number: usize| {
        let next = &names[(number + 1) % names.len()];
        let mut arguments = Table::new();
        arguments.set("x-message-ttl", 0);
        arguments.set("x-dead-letter-exchange", "");
        arguments.set("x-dead-letter-routing-key", next.as_str());
        arguments
    };
    let mut declared: Vec<_> = (0..names.len()).map(|it| (names[it].clone(), ring(it))).collect();
    declared.push(("probe".to_owned(), Table::new()));
    let mut node = Node::with(&declared);
    let (first, probe) = (node.queues[0], node.queues[names.len()]);
    let messages = (0..500).map(|_| publish(0, &[first])).collect();
    node.turn([ToShard::Publish { from: FAN, messages }]);
    let mut more = true;
    let (mut turns, mut asked) = (1, 0);
    let turn = node.shard.limits().turn;
    while more {
        let get = ToShard::Get { reply: reply(PROBE), queue: probe, no_ack: true };
        let letters = std::mem::take(&mut node.to_shard).into_iter().chain([get]);
        more = node.turn(letters.collect::<Vec<_>>()) || !node.to_shard.is_empty();
        (turns, asked) = (turns + 1, asked + 1);
        let answers = node.told(PROBE).len();
        assert!(asked - answers <= 8, "turn {turns}: {} wait for their answer", asked - answers);
    }
    // A publish, then 30 times a dead letter that is written and stored.
    assert!(turns > 100, "{turns} turns");
    assert!(node.most <= 2 * turn, "{} units in one turn", node.most);
    assert_eq!(node.shard.counters().dead_lettered, 15_000, "once round, and no more");
    assert_eq!(node.shard.usage().records, 0);
}

/// A queue whose dead letters go to another one, and what rejects so many messages of it, which a consumer has.
fn with_rejected(many: usize) -> (Node, ToShard) {
    let mut arguments = Table::new();
    arguments.set("x-dead-letter-exchange", "");
    arguments.set("x-dead-letter-routing-key", "dead");
    let mut node =
        Node::with(&[("q".to_owned(), arguments), ("dead".to_owned(), Table::default())]);
    let given = given_out(&mut node, many);
    let settlements = given.iter().map(|it| it.settled(Settle::Reject)).collect();
    node.most = 0;
    (node, ToShard::Settle { from: FAN, settlements })
}

/// So many messages of the first queue, which a consumer has.
fn given_out(node: &mut Node, many: usize) -> Vec<UnackedDelivery> {
    let queue = node.queues[0];
    let mut consumer = consume(queue, ConsumerSlot(0));
    if let ToShard::Consume { prefetch, .. } = &mut consumer {
        *prefetch = 0;
    }
    node.run([consumer]);
    let messages = (0..many).map(|_| publish(0, &[queue])).collect();
    node.run([ToShard::Publish { from: FAN, messages }]);
    let given = node.got.drain(..).filter_map(|(_, letter)| match letter {
        ToSession::Deliver(deliveries) => Some(deliveries),
        _ => None,
    });
    let unsettled = |it: Delivery| UnackedDelivery {
        tag: it.offset.get() + 1,
        offset: it.offset,
        queue: it.queue,
        home: it.home,
        unacked: it.unacked.expect("to be acked"),
        slot: it.slot.0,
        delivered_s: 0,
    };
    let all: Vec<_> = given.flatten().map(unsettled).collect();
    assert_eq!(all.len(), many);
    node.most = 0;
    all
}

/// What others reject is not a publisher's to pay for: dead letters wait, and go in pieces.
#[test]
fn a_publish_does_not_pay_for_what_others_reject() {
    const MANY: usize = 2_000;
    let (mut node, rejects) = with_rejected(MANY);
    let dead = node.queues[1];
    let one = ToShard::Publish { from: PROBE, messages: vec![publish(1, &[dead])] };
    let mut more = node.turn([rejects, one]);
    assert_eq!(node.told(PROBE), ["1..1"]);
    assert!(node.shard.parked() > 0, "{} units were enough for all", node.most);
    while more || !node.to_shard.is_empty() {
        let letters = std::mem::take(&mut node.to_shard);
        more = node.turn(letters);
    }
    let turn = node.shard.limits().turn;
    assert!(node.most <= 2 * turn, "{} units in one turn", node.most);
    assert_eq!(node.shard.counters().dead_lettered, MANY as u64);
    assert_eq!(node.ready(), [0, 1 + MANY as u64]);
}

/// Whoever deletes a queue does not wait for its dead letters, nor does anybody else: they go on in pieces, in their order.
#[test]
fn dead_letters_of_a_deleted_queue_do_not_keep_others_waiting() {
    const MANY: usize = 20_000;
    for limits in [None, Some(Limits { turn: 400, share: 50 })] {
        let (mut node, rejects) = with_rejected(MANY);
        node.shard.set_limits(limits.unwrap_or_else(|| node.shard.limits()));
        let (queue, dead) = (node.queues[0], node.queues[1]);
        node.turn([rejects]);
        while node.shard.parked() < MANY as u64 / 2 {
            let letters = std::mem::take(&mut node.to_shard);
            node.turn(letters);
        }
        node.most = 0;
        // What is rejected later is not.
        let dead_letters = node.shard.counters().dead_lettered + node.shard.parked();
        let (if_unused, if_empty, by) = (false, false, Box::default());
        let mut letters = std::mem::take(&mut node.to_shard);
        letters.push(ToShard::Delete { by, reply: Some(reply(PROBE)), queue, if_unused, if_empty });
        node.turn(letters);
        let mut letters = std::mem::take(&mut node.to_shard);
        letters.extend(node.meta_turn());
        assert!(node.told(PROBE)[0].contains("Deleted(0)"), "{:?}", node.told(PROBE));
        letters.push(ToShard::Publish { from: PROBE, messages: vec![publish(1, &[dead])] });
        let mut more = node.turn(letters);
        assert!(node.told(PROBE).contains(&"1..1".to_owned()), "{:?}", node.told(PROBE));
        while more || !node.to_shard.is_empty() {
            let letters = std::mem::take(&mut node.to_shard);
            more = node.turn(letters);
        }
        let turn = node.shard.limits().turn;
        assert!(node.most <= 2 * turn, "{} units in one turn of {turn}", node.most);
        assert_eq!(node.shard.counters().dead_lettered, dead_letters);
        assert_eq!(node.ready(), [0, 1 + dead_letters]);
    }
}

/// A transaction over several shards is not to be, and had very many to settle: these come back in pieces, the oldest first, and
/// others go on meanwhile. What its own connection asks for then finds all of them there. While it waited they counted as memory.
#[test]
fn what_a_transaction_was_to_settle_comes_back_in_pieces() {
    const MANY: usize = 100_000;
    for limits in [None, Some(Limits { turn: 400, share: 50 })] {
        let mut node = Node::new(2);
        let given = given_out(&mut node, MANY);
        node.shard.set_limits(limits.unwrap_or_else(|| node.shard.limits()));
        let (queue, other) = (node.queues[0], node.queues[1]);
        node.turn([ToShard::Cancel {
            user: Box::default(),
            reply: None,
            connection: FAN,
            queue,
            slot: ConsumerSlot(0),
        }]);
        let settlements: Vec<_> = given.iter().map(|it| it.settled(Settle::Ack)).collect();
        let settlement_bytes = (settlements.len() * size_of::<Settlement>()) as u64;
        let tx = TxId::new(7);
        let prepare =
            ToShard::Prepare { reply: reply(FAN), tx, parts: 2, messages: vec![], settlements };
        // It waits behind others of its connection.
        let before = (0..limits.map_or(10_000, |it| it.turn)).map(|_| publish(0, &[other]));
        let held_bytes = node.shard.held_bytes();
        node.turn([ToShard::Publish { from: FAN, messages: before.collect() }, prepare]);
        assert!(node.shard.held_bytes() > held_bytes + settlement_bytes);
        node.run([]);
        assert!(matches!(node.to_meta.pop(), Some(ToMeta::Prepared { .. })));
        assert_eq!(node.ready()[0], 0, "it holds them");
        node.most = 0;
        let decide = ToShard::Decide { tx, commit: false };
        let count = ToShard::Count { reply: reply(FAN), queue };
        node.got.clear();
        assert!(node.turn([decide, count]));
        let mut turns = 0;
        loop {
            let one = ToShard::Publish { from: PROBE, messages: vec![publish(1, &[other])] };
            let more = node.turn([one]);
            let told = std::mem::take(&mut node.got);
            let (to_probe, to_fan): (Vec<_>, Vec<_>) =
                told.into_iter().partition(|(to, _)| *to == PROBE);
            assert_eq!(to_probe.len(), 1, "in the same turn");
            let back = node.first_ready(queue, 20);
            assert_eq!(back, (0..20).collect::<Vec<_>>(), "the oldest first");
            let counts: Vec<_> = to_fan
                .iter()
                .filter(|(_, it)| {
                    matches!(it, ToSession::Reply { reply: Reply::Declared { .. }, .. })
                })
                .collect();
            if !counts.is_empty() {
                assert_eq!(node.ready()[0], MANY as u64, "its connection sees all of them");
                break;
            }
            assert!(more);
            turns += 1;
        }
        assert!(turns > 10, "{turns}");
        let turn = node.shard.limits().turn;
        assert!(node.most <= 2 * turn, "{} units in one turn of {turn}", node.most);
    }
}

/// A channel ends with very many unacked: they come back in pieces, the oldest first, and others go on meanwhile. What their own
/// connection asks for then finds all of them there.
#[test]
fn an_end_does_not_keep_others_waiting() {
    const MANY: usize = 100_000;
    for limits in [None, Some(Limits { turn: 40, share: 12 })] {
        let mut node = Node::new(2);
        let mut given = given_out(&mut node, MANY);
        if let Some(limits) = limits {
            node.shard.set_limits(limits);
        }
        // One is settled already, and one is elsewhere.
        let ack = ToShard::Settle { from: FAN, settlements: vec![given[7].settled(Settle::Ack)] };
        given[7].slot = UnackedDelivery::HOLE;
        given[9].home = GroupId::new(1);
        let unsettled = GivenBack::new(vec![given.into()], 2).into();
        let (queue, other) = (node.queues[0], node.queues[1]);
        let slot = ConsumerSlot(0);
        let cancel =
            ToShard::Cancel { user: Box::default(), reply: None, connection: FAN, queue, slot };
        node.turn([ack]);
        node.most = 0;
        let count = ToShard::Count { reply: reply(FAN), queue };
        assert!(node.turn([cancel, ToShard::GiveBack { from: FAN, unsettled }, count]));
        let one = publish(1, &[other]);
        node.turn([ToShard::Publish { from: PROBE, messages: vec![one] }]);
        assert_eq!(node.told(PROBE), ["1..1"], "in the next turn");
        assert!(node.told(FAN).is_empty(), "it stands behind what comes back");
        while node.turn([]) {
            let back: Vec<_> = node.first_ready(queue, 20);
            let want = (0..20).filter(|offset| ![7, 9].contains(offset));
            assert!(want.zip(back).all(|(want, back)| want == back), "not the oldest first");
        }
        assert!(node.told(FAN)[0].contains(&format!("messages: {}", MANY - 2)));
        let turn = node.shard.limits().turn;
        assert!(node.most <= 2 * turn, "{} units in one turn", node.most);
        assert_eq!(node.ready(), [MANY as u64 - 2, 1]);
    }
}

/// Each group looks at all that a channel had unacked, and pays for what lives in it: what lives elsewhere costs next to nothing.
#[test]
fn an_end_costs_a_group_what_lives_there() {
    const MANY: usize = 64_000;
    for own in [0, 10, MANY / 16, MANY] {
        let mut node = Node::new(1);
        let mut given = given_out(&mut node, MANY);
        let stays = |at: usize| (at * own) / MANY < ((at + 1) * own) / MANY;
        let elsewhere = given.iter_mut().enumerate().filter(|(at, _)| !stays(*at));
        elsewhere.for_each(|(_, it)| it.home = GroupId::new(1));
        let unsettled = GivenBack::new(vec![given.into()], 2).into();
        let (queue, slot) = (node.queues[0], ConsumerSlot(0));
        let cancel =
            ToShard::Cancel { user: Box::default(), reply: None, connection: FAN, queue, slot };
        let mut more = node.turn([cancel, ToShard::GiveBack { from: FAN, unsettled }]);
        let mut units = node.shard.spent();
        while more {
            more = node.turn([]);
            units += node.shard.spent();
        }
        let want = own as u64 + MANY as u64 / 32;
        assert!(units <= want + want / 8 + 100, "{own} of {MANY}: {units} units");
        let turn = node.shard.limits().turn;
        assert!(node.most <= 2 * turn, "{} units in one turn", node.most);
        assert_eq!(node.ready(), [own as u64]);
    }
}

/// A connection's transaction here: all of it, or the part of one over two shards, which is decided on next.
fn transaction(
    node: &mut Node,
    reply: ReplyTo,
    messages: Vec<Publish>,
    settlements: Vec<Settlement>,
    is_part: bool,
) -> ToShard {
    if !is_part {
        return ToShard::Commit { reply, messages, settlements };
    }
    let tx = TxId::new(reply.connection.number());
    node.run([ToShard::Prepare { reply, tx, parts: 2, messages, settlements }]);
    ToShard::Decide { tx, commit: true }
}

/// A transaction is done in one go, but not together with those of others: its line pays for each message and settlement, in one
/// shard or in several.
#[test]
fn transactions_share_the_turns() {
    const MANY: u64 = 1_000;
    // Messages of a part are stored before it is decided on it, which is half of what they cost.
    let cases = [(false, false, 3), (false, true, 5), (true, false, 3), (true, true, 3)];
    for (are_acks, is_part, most_in_turn) in cases {
        let mut node = Node::new(1);
        let mut acks = match are_acks {
            true => given_out(&mut node, 10 * MANY as usize),
            false => Vec::new(),
        };
        let mut letters = Vec::new();
        for number in 10..20 {
            let own = acks.split_off(acks.len() - acks.len().min(MANY as usize));
            let acks = own.iter().map(|it| it.settled(Settle::Ack)).collect();
            let messages = match are_acks {
                true => Vec::new(),
                false => (0..MANY).map(|_| publish(0, &node.queues)).collect(),
            };
            let reply = reply(NodeId::ALONE.connection(number));
            letters.push(transaction(&mut node, reply, messages, acks, is_part));
        }
        let before = node.shard.counters();
        node.most = 0;
        let mut more = node.turn(letters);
        let mut turns = 1;
        loop {
            let now = node.shard.counters();
            let done = (now.enqueued - before.enqueued + now.acked - before.acked) / MANY;
            assert!(done <= most_in_turn * turns, "{done} transactions in {turns} turns");
            if !more {
                break;
            }
            more = node.turn([]);
            turns += 1;
        }
        assert_eq!(node.ready(), [if are_acks { 0 } else { 10 * MANY }]);
        assert_eq!(node.told(NodeId::ALONE.connection(10)).len(), 1);
        let turn = node.shard.limits().turn;
        assert!(node.most <= 2 * turn, "{} units in one turn", node.most);
    }
}

/// Whoever commits very many acks pays for them before anything else of his is done, if others wait.
#[test]
fn very_many_acks_of_a_transaction_are_paid_for() {
    const ACKS: usize = 20_000;
    for is_part in [false, true] {
        let mut node = Node::new(3);
        let given = given_out(&mut node, ACKS);
        let acks = given.iter().map(|it| it.settled(Settle::Ack)).collect();
        let commit = transaction(&mut node, reply(FAN), Vec::new(), acks, is_part);
        let [_, of_others, own] = node.queues[..] else { panic!("three queues") };
        let others = (0..4 * ACKS).map(|_| publish(0, &[of_others])).collect();
        let others = ToShard::Publish { from: PROBE, messages: others };
        let own = ToShard::Publish { from: FAN, messages: vec![publish(0, &[own])] };
        let mut more = node.turn([others, commit, own]);
        while more && node.ready()[2] == 0 {
            more = node.turn([]);
        }
        // Each costs two units, as an ack does with what leaves its queue.
        let done = node.ready()[1] as usize;
        assert!((ACKS / 2..2 * ACKS).contains(&done), "{done} messages of others, part: {is_part}");
    }
}
