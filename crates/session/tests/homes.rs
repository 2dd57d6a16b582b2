//! Messages for groups that have no shard here.

mod node;

use std::sync::Arc;

use leveret_amqp::content::Properties;
use leveret_amqp::table::{Table, Value};
use leveret_broker::message::ToShard;
use leveret_topology::{Homes, QueueSpec, Topology};
use node::{Node, SHARDS};

/// One of the logs that are here writes it for all of these. A group that has none here gets a message of its own.
#[test]
fn a_large_message_is_shared_among_the_logs_of_its_node() {
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
