//! Rates of publishing and delivering.

use std::time::{Duration, Instant};

use leveret_client::{Consume, Event};
use serde_json::json;

use crate::broker::{Broker, PATIENCE, Publisher, declare, wait_until};

fn in_queue(broker: &Broker, name: &str) -> u64 {
    let rows = broker.json(&["list_queues", "name", "messages"]);
    let row = rows.as_array().unwrap().iter().find(|row| row["name"] == name);
    row.and_then(|row| row["messages"].as_u64()).unwrap_or_default()
}

/// A publisher over its rate waits, is shown, and nobody else waits.
#[test]
fn a_publisher_is_slowed() {
    let broker = Broker::with(&["threads=1"]);
    broker.told(&["add_user", "other", "p"]);
    broker.told(&["set_permissions", "other", ".*", ".*", ".*"]);
    broker.told(&["set_user_limits", "guest", r#"{"max-publish-rate": 500}"#]);
    let mut slow = Publisher::new(&broker, "slow");
    let began = Instant::now();
    slow.send(b"x", 1500);
    wait_until(PATIENCE, "it is shown", || {
        broker.json(&["list_connections", "state"])[0]["state"] == json!("flow")
    });
    // Who is under no limit is served at once, also while the other waits.
    let uri = leveret_client::Uri { user: "other".into(), password: "p".into(), ..broker.uri() };
    let mut other = broker.connect_as(&uri);
    let channel = other.open_channel().unwrap();
    declare(&mut other, channel, "other");
    wait_until(PATIENCE, "all are there", || in_queue(&broker, "slow") >= 1500);
    let took = began.elapsed();
    assert!(
        took >= Duration::from_millis(1900),
        "a burst of a second, then 1000 at 500/s: {took:?}"
    );
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert!(!other.is_blocked());
    // Without the limit there is none.
    broker.told(&["clear_user_limits", "guest", "all"]);
    let began = Instant::now();
    slow.send(b"x", 5000);
    wait_until(PATIENCE, "more are there", || in_queue(&broker, "slow") >= 6500);
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
}

/// Who may publish nothing is read no further, and still found out when it goes.
#[test]
fn a_slowed_publisher_that_leaves() {
    let broker = Broker::start();
    broker.told(&["set_user_limits", "guest", r#"{"max-publish-rate": 0}"#]);
    let mut publisher = Publisher::new(&broker, "q");
    publisher.send(b"x", 5);
    let state = || broker.json(&["list_connections", "state"]);
    wait_until(PATIENCE, "it is shown", || state()[0]["state"] == json!("flow"));
    drop(publisher);
    wait_until(PATIENCE, "it is gone", || state() == json!([]));
    // New limits do not remember it.
    broker.told(&["set_user_limits", "guest", r#"{"max-publish-rate": 100}"#]);
    let mut publisher = Publisher::new(&broker, "q");
    publisher.send(b"x", 50);
    wait_until(PATIENCE, "they are there", || in_queue(&broker, "q") >= 50);
}

#[test]
fn a_consumer_is_slowed() {
    let broker = Broker::start();
    let mut publisher = Publisher::new(&broker, "q");
    publisher.send(&[0; 8192], 600);
    wait_until(PATIENCE, "all are there", || in_queue(&broker, "q") == 600);
    broker.told(&["set_vhost_limits", r#"{"max-deliver-rate": 200}"#]);
    let (mut client, channel) = broker.channel();
    let began = Instant::now();
    client.consume(channel, "q", &Consume { no_ack: true, ..Consume::default() }).unwrap();
    let mut got = 0;
    while got < 600 {
        match client.next_event().unwrap() {
            Some(Event::Content { .. }) => got += 1,
            Some(_) => {}
            None => assert!(client.wait(PATIENCE).unwrap()),
        }
    }
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(1000), "{took:?}");
    client.close().unwrap();
}
