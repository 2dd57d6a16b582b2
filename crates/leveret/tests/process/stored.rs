//! Starts with much stored. How long they take is measured by `cargo xtask bench --workloads recovery`; here
//! they are to be far from minutes, and to bring everything back.

use std::time::{Duration, Instant};

use leveret_client::amqp::content::Properties;
use leveret_client::amqp::method::queue;
use leveret_client::amqp::table::Table;
use leveret_client::{Connection, QueueDeclare};

use crate::broker::{Broker, PATIENCE, wait_for_ack, wait_until};

/// Kills the node and starts it again: how long that takes to the ready line.
fn kill_and_start(broker: Broker, most: Duration) -> Broker {
    let down = broker.kill();
    let began = Instant::now();
    let broker = down.start_again();
    let took = began.elapsed();
    eprintln!("ready after {took:?}");
    assert!(took < most, "{took:?}");
    broker
}

#[test]
fn fifty_thousand_messages() {
    let broker = Broker::with(&["disk_free_limit.absolute=1MB"]);
    let (mut client, channel) = broker.channel();
    let durable = QueueDeclare { durable: true, ..QueueDeclare::default() };
    client.queue_declare(channel, "q", &durable).unwrap();
    client.tx_select(channel).unwrap();
    let persistent = Properties { delivery_mode: Some(2), ..Properties::default() }.to_bytes();
    for _ in 0..50 {
        for _ in 0..1000 {
            client.publish(channel, "", "q", &persistent, &[7; 1024]);
        }
        client.tx_commit(channel).unwrap();
    }
    let broker = kill_and_start(broker, PATIENCE);
    let (mut client, channel) = broker.channel();
    assert_eq!(client.queue_declare(channel, "q", &durable).unwrap().message_count, 50_000);
    drop(client);
    let broker = broker.stop().start_again();
    let (mut client, channel) = broker.channel();
    assert_eq!(client.queue_declare(channel, "q", &durable).unwrap().message_count, 50_000);
}

/// Declares without waiting for answers, but for that to a look at the last one.
fn declare_many(client: &mut Connection, channel: u16, numbers: std::ops::RangeInclusive<u32>) {
    let last = format!("queue-{}", numbers.end());
    for number in numbers {
        let queue = format!("queue-{number}");
        let declare =
            queue::Declare { queue: &queue, durable: true, no_wait: true, ..Default::default() };
        client.output().put_method(channel, &declare);
    }
    let passive = QueueDeclare { passive: true, ..QueueDeclare::default() };
    client.queue_declare(channel, &last, &passive).unwrap();
}

#[test]
fn ten_thousand_queues() {
    let broker = Broker::start();
    let (mut client, channel) = broker.channel();
    for thousand in 0..10 {
        declare_many(&mut client, channel, thousand * 1000..=thousand * 1000 + 999);
    }
    let broker = kill_and_start(broker, PATIENCE);
    let (mut client, channel) = broker.channel();
    let passive = QueueDeclare { passive: true, ..QueueDeclare::default() };
    for number in [0, 5_000, 9_999] {
        client.queue_declare(channel, &format!("queue-{number}"), &passive).unwrap();
    }
}

/// Bytes of all files of stored messages.
fn segment_bytes(broker: &Broker) -> u64 {
    let shards = std::fs::read_dir(broker.dir.path().join("shards")).unwrap();
    let files = shards.flat_map(|shard| std::fs::read_dir(shard.unwrap().path()).unwrap());
    // A file may go in this moment.
    let lens = files.filter_map(|file| Some(file.ok()?.metadata().ok()?.len()));
    lens.sum()
}

/// Twenty queues on four shards get ten large messages: the disk gets each once, all queues have them after a kill, and
/// the disk is given back when the last queue is empty.
#[test]
fn a_large_message_for_many_queues_is_stored_once() {
    const QUEUES: u32 = 20;
    const BYTES: usize = 300_000;
    let settings = ["shards=4", "disk_free_limit.absolute=1MB", "storage.segment_size=1MiB"];
    let broker = Broker::with(&settings);
    let (mut client, channel) = broker.channel();
    let durable = QueueDeclare { durable: true, ..QueueDeclare::default() };
    for number in 0..QUEUES {
        let queue = format!("q-{number}");
        client.queue_declare(channel, &queue, &durable).unwrap();
        client.queue_bind(channel, &queue, "amq.fanout", "", &Table::default()).unwrap();
    }
    client.confirm_select(channel).unwrap();
    let persistent = Properties { delivery_mode: Some(2), ..Properties::default() }.to_bytes();
    for number in 0..10 {
        client.publish(channel, "amq.fanout", "", &persistent, &vec![number; BYTES]);
        wait_for_ack(&mut client);
    }
    let stored = segment_bytes(&broker);
    assert!(stored < 10 * BYTES as u64 + 200_000, "{stored} bytes");
    let broker = kill_and_start(broker, PATIENCE);
    let (mut client, channel) = broker.channel();
    for queue in (0..QUEUES).map(|number| format!("q-{number}")) {
        for number in 0..10 {
            let got = client.get(channel, &queue, true).unwrap().expect("a message");
            assert!(got.body.len() == BYTES && got.body.iter().all(|&byte| byte == number));
        }
        assert!(client.get(channel, &queue, true).unwrap().is_none());
    }
    wait_until(PATIENCE, "the disk is given back", || segment_bytes(&broker) < 1_500_000);
}
