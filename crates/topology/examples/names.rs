//! How long declaring, binding and removing take by how many there are: `cargo run --release -p
//! leveret-topology --example names`. The time of each must not grow with the number.

#![allow(clippy::print_stdout, reason = "the result of the program")]

use std::time::Instant;

use leveret_amqp::table::Table;
use leveret_topology::{Destination, QueueId, QueueSpec, Topology};

fn main() {
    println!(
        "   queues    declare       bind     remove   (ns each; bind and remove: 10 bindings)"
    );
    for count in [1_000, 10_000, 100_000] {
        let mut topology = Topology::new();
        let vhost = topology.add_vhost("/").expect("a new vhost");
        let names: Vec<String> = (0..count).map(|number| format!("queue.{number}")).collect();

        let start = Instant::now();
        let ids: Vec<QueueId> = names
            .iter()
            .map(|name| {
                let spec = QueueSpec {
                    vhost,
                    name,
                    server_named: false,
                    durable: true,
                    auto_delete: false,
                    exclusive_owner: None,
                    arguments: Table::new(),
                };
                topology.declare_queue(spec).expect("a new queue").id
            })
            .collect();
        let declare = start.elapsed().as_nanos() / count;

        let start = Instant::now();
        for name in &names {
            for (exchange, key) in
                [("amq.direct", "shared"), ("amq.fanout", ""), ("amq.topic", "#")]
            {
                let to = Destination::Queue(name);
                topology.bind(vhost, exchange, to, key, Table::new(), None).expect("a new binding");
            }
            for number in 0..7 {
                let key = format!("{name}.{number}.*");
                let to = Destination::Queue(name);
                topology.bind(vhost, "amq.topic", to, &key, Table::new(), None).expect("new");
            }
        }
        let bind = start.elapsed().as_nanos() / count;

        let start = Instant::now();
        for id in ids {
            topology.remove_queue(id);
        }
        let remove = start.elapsed().as_nanos() / count;
        println!("{count:>9} {declare:>10} {bind:>10} {remove:>10}");
    }
}
