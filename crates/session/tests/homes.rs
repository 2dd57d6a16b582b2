//! Messages for groups that have no shard here.

mod node;

use std::sync::Arc;

use leveret_amqp::content::Properties;
use leveret_amqp::method::basic;
use leveret_amqp::table::{Table, Value};
use leveret_broker::message::{AccountId, AllowanceState, ToSession, ToShard};
use leveret_topology::{GroupId, Homes, QueueSpec, Topology};
use node::{Node, SHARDS};

/// With the queues a, b and c, each in another group.
fn node_that_knows_a_group_more() -> Node {
    // Names that others decided on, who know a group more.
    let mut others = node::names(SHARDS + 1);
    let vhost = others.vhost("/").expect("the first vhost").id;
    for name in ["a", "b", "c"] {
        let spec = QueueSpec {
            vhost,
            name,
            server_named: false,
            durable: true,
            auto_delete: false,
            exclusive_owner: None,
            arguments: Table::new(),
        };
        others.declare_queue(spec).expect("a queue");
    }
    let mut node = Node::new();
    node.topology = Topology::new();
    node.topology.set_homes(Homes::among(SHARDS as u32));
    node.topology.apply(&others.snapshot()).expect("names of others");
    node
}

/// One of the logs that are here writes it for all of these. A group that has none here gets a message of its own.
#[test]
fn a_large_message_is_shared_among_the_logs_of_its_node() {
    let mut node = node_that_knows_a_group_more();
    (0..SHARDS).for_each(|shard| node.hold(shard));

    let link = node.client();
    let copies = Value::Array(["b", "c"].map(|name| Value::LongStr(name.into())).to_vec());
    let mut headers = Table::new();
    headers.push("CC", copies);
    let properties =
        Properties { delivery_mode: Some(2), headers: Some(headers), ..Default::default() };
    let body = "x".repeat(node.settings.embed_bytes_below as usize);
    assert_eq!(node.publish_with(link, "", "a", &body, &properties, false), "");

    let shared = (0..=SHARDS).map(|group| match node.held(group) {
        [ToShard::Publish { messages, .. }] => messages[0].shared.clone(),
        other => panic!("{other:?}"),
    });
    let shared: Vec<_> = shared.collect();
    let [Some(one), Some(other), None] = &shared[..] else { panic!("{shared:?}") };
    assert!(Arc::ptr_eq(one, other));
}

/// Two shards have places and need none, and a third one waits. One of the two is called back, and the other one when that has said nothing
/// for a tenth of a second.
#[test]
fn another_shard_is_called_back_when_one_is_silent() {
    let mut node = node_that_knows_a_group_more();
    node.settings.allows_by_letters = true;
    let link = node.client();
    let qos = basic::Qos { prefetch_count: 3, global: true, ..Default::default() };
    assert_eq!(node.say(link, 1, &qos), "1 basic.qos-ok");
    let consume = |queue| basic::Consume { queue, ..Default::default() };
    ["a", "b"].iter().for_each(|queue| _ = node.say(link, 1, &consume(queue)));
    // The first one has given all of it up for the second one, which got two. Now it is filled up.
    assert!(node.publish(link, "", "a", "x").starts_with("1 basic.deliver"));
    node.say(link, 1, &basic::Ack { delivery_tag: 1, multiple: false });
    node.say(link, 1, &consume("c"));
    (0..SHARDS).for_each(|shard| node.hold(shard));
    let account = AccountId { term: 0, number: 1 };
    let (of, version, total, is_waiting) = (Some(1), 0, 0, true);
    let states = vec![AllowanceState { of, account, version, total, is_waiting }];
    let states = ToSession::AllowanceStates { group: GroupId::at(SHARDS), states };
    node.letter(link, states);
    let called = |node: &Node| {
        let is_called = |letter: &ToShard| match letter {
            ToShard::Allow { allowances, .. } => allowances.iter().any(|it| it.is_called_back),
            _ => false,
        };
        (0..SHARDS).filter(|&shard| node.held(shard).iter().any(is_called)).count()
    };
    assert_eq!(called(&node), 1);
    node.later(99);
    assert_eq!(called(&node), 1);
    node.later(1);
    assert_eq!(called(&node), 2);
}
