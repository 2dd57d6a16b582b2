//! A topic exchange with many bindings, and messages each of which fits one of them.

use leveret_amqp::method::{exchange, queue};
use leveret_amqp::outbuf::OutBuf;
use leveret_broker::message::ConnectionId;
use leveret_session::Settings;
use leveret_sim::Node;

use crate::client::{call, consume, declare, log_in, publish, read, send};

const QUEUES: usize = 10;

/// Different keys: more than a session remembers routes for.
const KEYS: usize = 5_000;

/// A node with one such exchange.
pub(crate) struct Topics {
    node: Node,
    publisher: ConnectionId,
    consumer: ConnectionId,
    wire: Vec<u8>,
}

impl Topics {
    pub(crate) fn new(bindings: usize) -> Self {
        let mut node = Node::new(Settings::default());
        let publisher = log_in(&mut node, 1);
        let consumer = log_in(&mut node, 2);
        let topic = exchange::Declare { exchange: "t", kind: "topic", ..Default::default() };
        call(&mut node, publisher, &topic);
        for queue in 0..QUEUES {
            declare(&mut node, consumer, &queue_name(queue));
            consume(&mut node, consumer, &queue_name(queue), true);
        }
        let mut out = OutBuf::new();
        for index in 0..bindings {
            let (queue, routing_key) = (&*queue_name(index % QUEUES), &*binding_key(index));
            let bind = queue::Bind { queue, exchange: "t", routing_key, ..Default::default() };
            out.put_method(1, &bind);
        }
        send(&mut node, consumer, &out.take_rest());
        // One bind-ok for each, of 12 bytes.
        assert_eq!(read(&mut node, consumer), 12 * bindings);
        let spread = |index: usize| index * 7919 % bindings;
        let keys = (0..KEYS).map(|index| routing_key(spread(index), index));
        let wire = keys.flat_map(|key| publish("t", &key, b"0123456789abcdef")).collect();
        Self { node, publisher, consumer, wire }
    }

    /// Publishes a message for each key, all of which are delivered once. Returns how many there are.
    pub(crate) fn round(&mut self) -> usize {
        send(&mut self.node, self.publisher, &self.wire);
        let delivered = self.node.shards().map(|shard| shard.counters().delivered).sum::<u64>();
        assert_eq!(delivered % KEYS as u64, 0);
        assert!(read(&mut self.node, self.consumer) > KEYS * 16);
        KEYS
    }
}

fn queue_name(index: usize) -> String {
    format!("q{index}")
}

/// Four kinds: exact, with a `*` in front or in the middle, with a `#` at the end.
fn binding_key(index: usize) -> String {
    match index % 4 {
        0 => format!("order.w{index}.eu"),
        1 => format!("*.w{index}.eu"),
        2 => format!("stock.w{index}.*.changed"),
        _ => format!("stock.w{index}.#"),
    }
}

/// Fits the binding with this index and no other.
fn routing_key(index: usize, number: usize) -> String {
    match index % 4 {
        0 => format!("order.w{index}.eu"),
        1 => format!("n{number}.w{index}.eu"),
        2 => format!("stock.w{index}.n{number}.changed"),
        _ => format!("stock.w{index}.n{number}.a.b"),
    }
}
