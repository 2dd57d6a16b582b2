//! Lists while clients come, declare and go: nothing waits for itself, and a lock that is taken in the wrong order
//! panics in this build (see `crates/server/src/locks.rs`), whoever else runs at that moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use leveret_client::{Consume, Event};

use crate::node::{Node, PATIENCE};

/// What shows names, connections, or both.
const LISTS: [&str; 27] = [
    "/api/overview",
    "/api/nodes",
    "/api/connections",
    "/api/connections?sort=recv_oct_details.rate&page=1",
    "/api/vhosts/%2F/connections",
    "/api/channels",
    "/api/vhosts/%2F/channels",
    "/api/consumers",
    "/api/consumers/%2F?slow=0",
    "/api/queues",
    "/api/queues/%2F/busy",
    "/api/queues/%2F/busy/bindings",
    "/api/queues?page=1&name=b&use_regex=true&sort=messages",
    "/api/users/guest/queues",
    "/api/exchanges",
    "/api/exchanges/%2F/amq.fanout",
    "/api/exchanges/%2F/amq.fanout/bindings/source",
    "/api/bindings",
    "/api/bindings/%2F/e/amq.fanout/q/busy",
    "/api/vhosts",
    "/api/vhosts/%2F",
    "/api/permissions",
    "/api/policies",
    "/api/parameters",
    "/api/definitions",
    "/api/definitions/%2F",
    "/api/health/checks/virtual-hosts",
];

const PAGES: [&str; 3] = [
    "/metrics",
    "/metrics/per-object",
    "/metrics/detailed?family=queue_metrics&family=exchange_bindings&family=vhost_status&queue=b",
];

/// Rounds through all lists.
const ROUNDS: usize = 12;

/// Ends the clients, however the test ends.
struct Over(Arc<AtomicBool>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn lists_while_clients_declare_and_consume() {
    let node = Node::with(&[("collect_statistics_interval", "100")]);
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Over(Arc::clone(&is_over));
    let rounds = Arc::new(AtomicUsize::new(0));
    let mut clients = Vec::new();
    // Its connection always has a turn: what it publishes it is sent.
    let (mut client, channel) = node.client();
    client.queue_declare(channel, "busy", &Default::default()).unwrap();
    client.queue_bind(channel, "busy", "amq.fanout", "", &Default::default()).unwrap();
    client.consume(channel, "busy", &Consume { no_ack: true, ..Consume::default() }).unwrap();
    let ends = Arc::clone(&is_over);
    clients.push(std::thread::spawn(move || {
        while !ends.load(Ordering::Relaxed) {
            client.publish(channel, "amq.fanout", "", &[0, 0], b"12345");
            client.flush().unwrap();
            let mut has_come = false;
            while !has_come {
                client.wait(PATIENCE).unwrap();
                while let Some(event) = client.next_event().unwrap() {
                    has_come |= matches!(event, Event::Content { .. });
                }
            }
        }
    }));
    for number in 0..3 {
        let (mut client, channel) = node.client();
        let (ends, rounds) = (Arc::clone(&is_over), Arc::clone(&rounds));
        clients.push(std::thread::spawn(move || {
            let queue = format!("comes and goes {number}");
            while !ends.load(Ordering::Relaxed) {
                client.queue_declare(channel, &queue, &Default::default()).unwrap();
                client
                    .queue_bind(channel, &queue, "amq.topic", "a.*", &Default::default())
                    .unwrap();
                client.queue_delete(channel, &queue).unwrap();
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    let connection = node.inner.connections()[0].name().replace(' ', "%20").replace('>', "%3E");
    for _ in 0..ROUNDS {
        let before = rounds.load(Ordering::Relaxed);
        for path in LISTS {
            node.get(path);
        }
        node.get(&format!("/api/connections/{connection}"));
        node.get(&format!("/api/connections/{connection}/channels"));
        node.get(&format!("/api/channels/{connection}%20(1)"));
        for path in PAGES {
            node.scrape(path);
        }
        let has_gone_on = || rounds.load(Ordering::Relaxed) > before;
        crate::node::wait_until("clients declared meanwhile", has_gone_on);
    }
    drop(over);
    for client in clients {
        client.join().expect("a client failed");
    }
}
