//! What idle things cost, and that a burst leaves nothing behind.
//!
//! The bounds are looser than the goals (10 MB idle, 15 KB per connection, 2 KB per queue): this build is
//! not the one that users run. `docs/benchmarks.md` has the figures of that one.

use std::time::Duration;

use leveret_client::Consume;

use crate::broker::{Broker, Publisher, declare, wait_until};

const MIB: u64 = 1 << 20;

/// Queues give back what they kept for speed after some seconds.
const REST: Duration = Duration::from_secs(60);

#[test]
fn idle_things_are_cheap() {
    let broker = Broker::start();
    let mut client = broker.connect();
    let channel = client.open_channel().unwrap();
    declare(&mut client, channel, "first");
    // Its own: how much of this build's file is mapped says nothing of the other one's.
    assert!(broker.own_memory() < 8 * MIB, "{}", broker.own_memory());

    let before = broker.own_memory();
    for number in 0..10_000 {
        declare(&mut client, channel, &format!("queue-{number}"));
    }
    let each = broker.own_memory().saturating_sub(before) / 10_000;
    assert!(each < 3 * 1024, "{each} bytes for a queue");

    let before = broker.own_memory();
    let clients: Vec<_> = (0..500).map(|_| broker.channel()).collect();
    let each = broker.own_memory().saturating_sub(before) / 500;
    assert!(each < 24 * 1024, "{each} bytes for a connection");
    // What is compared with the watermark has them, too.
    let counted = broker.json(&["status"])["message_bytes"].as_u64().unwrap();
    assert!(counted >= 10_000 * 1024 + 500 * 8 * 1024, "{counted}");

    // A look at the queues that were just made is due once or twice; then nothing is.
    wait_until(REST, "nothing is done where there is nothing to do", || {
        let before = broker.cpu_ms();
        assert!(!client.wait(Duration::from_secs(2)).unwrap(), "nothing is sent");
        broker.cpu_ms() == before
    });
    drop(clients);
}

#[test]
fn a_burst_leaves_no_memory_behind() {
    let broker = Broker::start();
    let mut publisher = Publisher::new(&broker, "q");
    publisher.publish(&[7; 100], 1000);
    broker.told(&["purge_queue", "q"]);
    let before = broker.own_memory();
    let counted = || broker.json(&["status"])["message_bytes"].as_u64().unwrap();
    let idle = counted();
    publisher.publish(&[7; 100], 300_000);
    assert!(broker.own_memory() > before + 30 * MIB);
    let (mut client, channel) = broker.channel();
    client.consume(channel, "q", &Consume::default()).unwrap();
    let mut last = 0;
    while last < 300_000 {
        assert!(client.wait(crate::broker::PATIENCE).unwrap());
        while let Some(event) = client.next_event().unwrap() {
            last += u64::from(matches!(event, leveret_client::Event::Content { .. }));
        }
    }
    client.ack(channel, last, true);
    client.flush().unwrap();
    wait_until(REST, "the count is back", || counted() <= idle + MIB);
    wait_until(REST, "the memory is back", || broker.own_memory() < before + 16 * MIB);
    // And once more, by a purge.
    publisher.publish(&[7; 100], 300_000);
    broker.told(&["purge_queue", "q"]);
    wait_until(REST, "the memory is back after a purge", || {
        broker.own_memory() < before + 16 * MIB
    });
}
