//! How long starts take with much stored. Only an optimized build says something:
//! `cargo test --profile fast -p leveret --test process speed -- --ignored --nocapture --test-threads 1`

use std::time::{Duration, Instant};

use leveret_client::amqp::content::Properties;
use leveret_client::amqp::method::queue;
use leveret_client::{Connection, QueueDeclare};

use crate::broker::Broker;

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
#[ignore = "a measurement"]
fn a_million_messages() {
    let broker = Broker::with(&["disk_free_limit.absolute=1MB"]);
    let (mut client, channel) = broker.channel();
    let durable = QueueDeclare { durable: true, ..QueueDeclare::default() };
    client.queue_declare(channel, "q", &durable).unwrap();
    client.tx_select(channel).unwrap();
    let persistent = Properties { delivery_mode: Some(2), ..Properties::default() }.to_bytes();
    for _ in 0..1000 {
        for _ in 0..1000 {
            client.publish(channel, "", "q", &persistent, &[7; 1024]);
        }
        client.tx_commit(channel).unwrap();
    }
    let broker = kill_and_start(broker, Duration::from_secs(1));
    let (mut client, channel) = broker.channel();
    assert_eq!(client.queue_declare(channel, "q", &durable).unwrap().message_count, 1_000_000);
    let began = Instant::now();
    drop(client);
    broker.stop();
    eprintln!("stopped after {:?}", began.elapsed());
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
#[ignore = "a measurement"]
fn a_hundred_thousand_queues() {
    let broker = Broker::start();
    let (mut client, channel) = broker.channel();
    for thousand in 0..100 {
        declare_many(&mut client, channel, thousand * 1000..=thousand * 1000 + 999);
    }
    let broker = kill_and_start(broker, Duration::from_secs(5));
    let (mut client, channel) = broker.channel();
    let passive = QueueDeclare { passive: true, ..QueueDeclare::default() };
    for number in [0, 50_000, 99_999] {
        client.queue_declare(channel, &format!("queue-{number}"), &passive).unwrap();
    }
}
