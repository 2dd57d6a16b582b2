//! Starts with much stored. How long they take is measured by `cargo xtask bench --workloads recovery`; here
//! they are to be far from minutes, and to bring everything back.

use std::time::{Duration, Instant};

use leveret_client::amqp::content::Properties;
use leveret_client::amqp::method::queue;
use leveret_client::{Connection, QueueDeclare};

use crate::broker::{Broker, PATIENCE};

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
