//! What is told at the end of a stop.

#[path = "../../broker/tests/hand/lines.rs"]
mod lines;
#[path = "../../broker/tests/hand/log.rs"]
mod log;

use leveret_amqp::content::Properties;
use leveret_amqp::table::{Table, Value};
use leveret_broker::message::*;
use leveret_broker::record::join_names;
use leveret_broker::{Meta, Shard};
use leveret_node::stop::{Next, PutAway, Stopping};
use leveret_queue::Time;
use leveret_topology::{GroupId, NodeId, QueueId, QueueSpec, Topology};
use lines::logged;
use log::HandLog;

const CLIENT: ReplyTo = ReplyTo { connection: NodeId::ALONE.connection(1), channel: 1 };

/// A node with one shard, whose letters to shards are lost on their way.
struct Node {
    topology: Topology,
    meta: Meta<HandLog>,
    shard: Shard<HandLog>,
}

impl Node {
    fn turn(&mut self, letter: ToShard) -> Vec<ToSession> {
        let mut out = Outbox::default();
        self.shard.turn(&mut vec![letter], &self.topology, Time::from_ms(1_000), &mut out);
        out.sessions.into_iter().map(|(_, letter)| letter).collect()
    }

    /// With a queue `a` whose dead letters go to a queue `z`.
    fn new() -> (Self, QueueId) {
        let mut topology = Topology::new();
        let vhost = topology.add_vhost("/").expect("a vhost");
        let to_z = [("x-dead-letter-exchange", ""), ("x-dead-letter-routing-key", "z")];
        let queues = [("a", &to_z[..]), ("z", &[])].map(|(name, arguments)| {
            let arguments =
                arguments.iter().map(|&(key, text)| (key.to_owned(), Value::from(text)));
            let spec = QueueSpec {
                vhost,
                name,
                server_named: false,
                durable: true,
                auto_delete: false,
                exclusive_owner: None,
                arguments: arguments.collect::<Table>(),
            };
            topology.declare_queue(spec).expect("declared").id
        });
        let shard = Shard::new(GroupId::new(0), HandLog::default());
        (Self { topology, meta: Meta::new(HandLog::default()), shard }, queues[0])
    }

    /// A dead letter is on its way, and its queue is deleted.
    fn leave_a_dead_letter(&mut self, queue: QueueId) {
        let mut properties = Vec::new();
        Properties::default().encode(&mut properties);
        let message = Publish {
            channel: 1,
            confirm: 0,
            targets: [queue].into_iter().collect(),
            persistent: true,
            priority: 0,
            expiration_ms: None,
            message: Message::from_parts(&join_names("", "a"), &properties, b"a body"),
            shared: None,
        };
        self.turn(ToShard::Publish { from: CLIENT.connection, messages: vec![message] });
        let got = self.turn(ToShard::Get { reply: CLIENT, queue, no_ack: false });
        let settlements = got.into_iter().filter_map(|letter| match letter {
            ToSession::Reply { reply: Reply::Got { delivery, .. }, .. } => Some(Settlement {
                queue,
                unacked: delivery.unacked?,
                offset: delivery.offset,
                how: Settle::Reject,
            }),
            _ => None,
        });
        let settlements = settlements.collect();
        self.turn(ToShard::Settle { from: CLIENT.connection, settlements });
        let (by, reply) = (Box::default(), Some(CLIENT));
        let (if_unused, if_empty) = (false, false);
        self.turn(ToShard::Delete { by, reply, queue, if_unused, if_empty });
        assert_eq!(self.shard.departing(), 1);
    }
}

impl Stopping for Node {
    type Log = HandLog;

    fn shards(&self) -> usize {
        1
    }

    fn shard<T>(&mut self, _: usize, look: impl FnOnce(&mut Shard<HandLog>) -> T) -> T {
        look(&mut self.shard)
    }

    fn meta<T>(&mut self, look: impl FnOnce(&mut Meta<HandLog>) -> T) -> T {
        look(&mut self.meta)
    }

    fn run_shard(&mut self, _: usize, letter: ToShard) {
        self.turn(letter);
        self.shard.log().hand().finish();
    }

    fn run_meta(&mut self, letter: ToMeta) {
        self.meta.turn(&mut vec![letter], &mut self.topology, &mut Outbox::default());
        self.meta.log().hand().finish();
    }
}

/// Dead letters whose queue is deleted come back to none: they are told of once, also if the disk fails in the end.
#[test]
fn dead_letters_that_are_lost_are_told() {
    for disk_fails in [false, true] {
        let (mut node, queue) = Node::new();
        node.leave_a_dead_letter(queue);
        let lines = logged(|| {
            let mut stop = PutAway::default();
            assert_eq!(stop.round(&mut node), Ok(Next::Waits), "for the one on its way");
            stop.give_up_departing(&mut node);
            node.shard.log().hand().fails = disk_fails;
            let mut rounds = (0..10).map(|_| stop.round(&mut node));
            let last = rounds.find(|round| *round != Ok(Next::Waits)).expect("an end");
            assert_eq!(last.is_err(), disk_fails, "{last:?}");
        });
        let told = lines.iter().filter(|line| line.contains("dead letters are lost")).count();
        assert_eq!(told, 1, "disk_fails={disk_fails}: {lines:?}");
    }
}
