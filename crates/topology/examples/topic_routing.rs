//! How long routing takes by the number of bindings: `cargo run --release -p leveret-topology --example
//! topic_routing`.
//!
//! A broker with 100,000 topic bindings must be at least half as fast as one with 100. The steps of a route do not
//! grow (a test counts them); what grows is the share of them that misses the processor's caches, here with
//! keys in scattered order, which is the worst case.

#![allow(clippy::print_stdout, reason = "the result of the program")]

use std::time::Instant;

use leveret_amqp::table::Table;
use leveret_topology::{
    Destination, ExchangeId, ExchangeSpec, QueueSpec, Routable, Route, Topology, VhostId,
};

const ROUNDS: usize = 200;
const ROUTES: usize = 16_384;
const KEYS: usize = 16_384;

fn main() {
    for kind in ["topic", "direct", "topic, a third with wildcards"] {
        println!("{kind}");
        for count in [100, 1_000, 10_000, 100_000] {
            let (topology, vhost, exchange, keys) = build(kind, count);
            let mut route = Route::default();
            let mut reached = 0;
            // The best of several rounds: others use the machine too.
            let mut best = f64::MAX;
            for _ in 0..ROUNDS {
                let start = Instant::now();
                for at in 0..ROUTES {
                    let message = Routable { key: &keys[at % KEYS], ..Routable::default() };
                    topology.route(vhost, exchange, &message, &mut route);
                    reached += route.queues.len();
                }
                best = best.min(start.elapsed().as_nanos() as f64 / ROUTES as f64);
            }
            let queues = reached as f64 / (ROUTES * ROUNDS) as f64;
            println!("  {count:>7} bindings: {best:6.1} ns a route, to {queues:.2} queues");
        }
    }
}

/// Keys in a scattered order, each bound.
fn build(kind: &str, count: usize) -> (Topology, VhostId, ExchangeId, Vec<String>) {
    let mut topology = Topology::new();
    let vhost = topology.add_vhost("/").expect("a new vhost");
    let spec = ExchangeSpec {
        vhost,
        name: "x",
        kind: kind.split(',').next().unwrap_or(kind),
        durable: false,
        auto_delete: false,
        internal: false,
        arguments: Table::new(),
    };
    let exchange = topology.declare_exchange(spec).expect("a new exchange");
    let wildcards = kind.contains("wildcards");
    for number in 0..count {
        let name = format!("queue {number}");
        let queue = QueueSpec {
            vhost,
            name: &name,
            server_named: false,
            durable: false,
            auto_delete: false,
            exclusive_owner: None,
            arguments: Table::new(),
        };
        topology.declare_queue(queue).expect("a new queue");
        let key = match number % 6 {
            1 if wildcards => format!("site.{}.*.{}", number / 100, number % 100),
            3 if wildcards => format!("site.{}.sensor.{}.#", number / 100, number % 100),
            _ => key(number),
        };
        let to = Destination::Queue(&name);
        topology.bind(vhost, "x", to, &key, Table::new(), None).expect("a new binding");
    }
    let keys = (0..KEYS).map(|at| key(at.wrapping_mul(2_654_435_761) % count)).collect();
    (topology, vhost, exchange, keys)
}

fn key(number: usize) -> String {
    format!("site.{}.sensor.{}", number / 100, number % 100)
}
