//! What idle things cost, and that a burst leaves nothing behind.
//!
//! The bounds are looser than the goals (10 MB idle, 15 KB per connection, 2 KB per queue): this build is
//! not the one that users run. `docs/benchmarks.md` has the figures of that one.

use std::time::Duration;

use leveret_client::Consume;

use crate::broker::{Broker, PATIENCE, Publisher, declare, wait_for_ack, wait_until};
use crate::restart::{durable, persistent};

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
        assert!(client.wait(PATIENCE).unwrap());
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

/// What is on the disk only is counted apart; a restart has a backlog there, and what is consumed or purged counts nowhere.
#[test]
fn what_is_paged_out_is_told() {
    const COUNT: u64 = 400;
    const BODY: usize = 64 << 10;
    let settings = [
        "shards=1",
        "vm_memory_high_watermark.absolute=64MB",
        "vm_memory_high_watermark_paging_ratio=0.1",
    ];
    let broker = Broker::with(&settings);
    let (mut client, channel) = broker.channel();
    let queues = [("kept", persistent().to_bytes()), ("transient", vec![0, 0])];
    for (queue, properties) in &queues {
        client.queue_declare(channel, queue, &durable(&[])).unwrap();
        client.confirm_select(channel).unwrap();
        for _ in 0..COUNT {
            client.publish(channel, "", queue, properties, &vec![7; BODY]);
            client.flush().unwrap();
            wait_for_ack(&mut client);
        }
    }
    let told = |broker: &Broker, queue: &str| -> Vec<u64> {
        let columns = ["messages", "messages_ram", "message_bytes_ram", "messages_paged_out"];
        let more = ["message_bytes_paged_out", "messages_ready_ram", "messages_unacknowledged_ram"];
        let words = [&["list_queues", "name"], &columns[..], &more].concat();
        let all = broker.json(&words);
        let row = all.as_array().unwrap().iter().find(|row| row["name"] == queue).unwrap();
        columns.iter().chain(&more).map(|name| row[name].as_u64().unwrap()).collect()
    };
    let bytes = |count: u64| count * BODY as u64;
    wait_until(PATIENCE, "most of it has left memory", || told(&broker, "kept")[1] < COUNT / 2);
    wait_until(PATIENCE, "some transient ones have, too", || told(&broker, "transient")[3] > 0);
    let [kept, transient] = ["kept", "transient"].map(|queue| told(&broker, queue));
    assert_eq!(kept, [COUNT, kept[1], bytes(kept[1]), 0, 0, kept[1], 0]);
    let paged = transient[3];
    let ram = COUNT - paged;
    assert_eq!(transient, [COUNT, ram, bytes(ram), paged, bytes(paged), ram, 0]);
    drop(client);

    let broker = broker.stop().start_again();
    assert_eq!(told(&broker, "kept"), [COUNT, 0, 0, 0, 0, 0, 0]);
    let (mut client, channel) = broker.channel();
    let tags: Vec<_> = (0..10)
        .map(|_| client.get(channel, "kept", false).unwrap().unwrap().delivery_tag)
        .collect();
    client.ack(channel, tags[8], true);
    client.flush().unwrap();
    wait_until(PATIENCE, "nine are acked", || told(&broker, "kept")[0] == COUNT - 9);
    assert_eq!(told(&broker, "kept")[1..3], [0, 0]);
    broker.told(&["purge_queue", "kept"]);
    client.ack(channel, tags[9], true);
    client.publish(channel, "", "kept", &queues[0].1, b"small");
    client.flush().unwrap();
    wait_until(PATIENCE, "one is there", || told(&broker, "kept")[0] == 1);
    assert_eq!(told(&broker, "kept"), [1, 1, 5, 0, 0, 1, 0]);
}
