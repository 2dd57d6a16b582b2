//! Conversations with a whole node: what a client sends and what it is answered.

mod node;

use leveret_amqp::content::Properties;
use leveret_amqp::method::*;
use node::Node;

fn consume(queue: &str) -> basic::Consume<'_> {
    basic::Consume { queue, consumer_tag: "c", ..Default::default() }
}

#[test]
fn publish_consume_ack() {
    let mut node = Node::new();
    let me = node.client();
    node.declare(me, "q");
    assert_eq!(node.publish(me, "", "q", "one"), "");
    assert_eq!(
        node.say(me, 1, &consume("q")),
        "1 basic.consume-ok c\n1 basic.deliver c 1 '' q =one"
    );
    assert_eq!(node.publish(me, "", "q", "two"), "1 basic.deliver c 2 '' q =two");
    assert_eq!(node.say(me, 1, &basic::Ack { delivery_tag: 2, multiple: true }), "");
    assert_eq!(
        node.say(me, 1, &basic::Cancel { consumer_tag: "c", no_wait: false }),
        "1 basic.cancel-ok c"
    );
    let passive = queue::Declare { queue: "q", passive: true, ..Default::default() };
    assert_eq!(node.say(me, 1, &passive), "1 queue.declare-ok q 0 0");
    assert_eq!(node.say(me, 1, &channel::Close::default()), "1 channel.close-ok");
    assert_eq!(node.say(me, 0, &connection::Close::default()), "0 connection.close-ok");
    assert!(node.ended(me).is_some());
}

/// `connection.close-ok` comes when shards that are behind have let the connection go, too: whoever reads it may consume
/// exclusively.
#[test]
fn a_close_waits_for_shards_that_are_behind() {
    let mut node = Node::new();
    let (me, other) = (node.client(), node.client());
    node.declare(me, "a");
    node.declare(me, "b");
    let consume = |queue| basic::Consume { queue, exclusive: true, ..Default::default() };
    for queue in ["a", "b"] {
        assert!(node.say(me, 1, &consume(queue)).starts_with("1 basic.consume-ok"));
    }
    (0..node::SHARDS).for_each(|shard| node.hold(shard));
    assert_eq!(node.say(me, 0, &connection::Close::default()), "");
    node.release(0);
    assert_eq!(node.read(me), "", "the other shard has not answered");
    node.release(1);
    assert_eq!(node.read(me), "0 connection.close-ok");
    for queue in ["a", "b"] {
        assert!(node.say(other, 1, &consume(queue)).starts_with("1 basic.consume-ok"));
    }
}

#[test]
fn get_and_confirm() {
    let mut node = Node::new();
    let me = node.client();
    node.declare(me, "q");
    let get = basic::Get { queue: "q", ..Default::default() };
    assert_eq!(node.say(me, 1, &get), "1 basic.get-empty");
    assert_eq!(node.say(me, 1, &confirm::Select { no_wait: false }), "1 confirm.select-ok");
    assert_eq!(node.publish(me, "", "q", "one"), "1 basic.ack 1");
    assert_eq!(node.publish(me, "", "nowhere", "two"), "1 basic.ack 2");
    let returned = node.publish_with(me, "", "nowhere", "x", &Properties::default(), true);
    assert_eq!(returned, "1 basic.return 312 NO_ROUTE '' nowhere =x\n1 basic.ack 3");
    assert_eq!(node.say(me, 1, &get), "1 basic.get-ok 1 '' q left 0 =one");
    let nack = basic::Nack { delivery_tag: 1, multiple: false, requeue: true };
    assert_eq!(node.say(me, 1, &nack), "");
    assert_eq!(node.say(me, 1, &get), "1 basic.get-ok 2 redelivered '' q left 0 =one");
}
