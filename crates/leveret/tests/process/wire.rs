//! The wire seen from the socket: who the broker says it is, heartbeats, and clients that are slow.

use std::time::Duration;

use leveret_client::amqp::method::queue;
use leveret_client::amqp::table::Value;
use leveret_client::{Connection, Consume, Options};

use crate::broker::{Broker, PATIENCE, declare};
use crate::raw::{Raw, hello, method_bytes};

#[test]
fn tells_the_product_that_is_asked_for() {
    for (settings, want) in [
        (&[][..], "RabbitMQ"),
        (&["server_properties.product=Leveret"], "Leveret"),
        (&["server_properties.product=RabbitMQ"], "RabbitMQ"),
    ] {
        let broker = Broker::with(settings);
        let properties = Raw::connect(&broker).server_properties();
        let text = |key| match properties.get(key) {
            Some(Value::LongStr(text)) => String::from_utf8(text.clone()).unwrap(),
            other => panic!("{key}: {other:?}"),
        };
        assert_eq!(text("product"), want, "{settings:?}");
        assert_eq!(text("version"), "3.13.7", "clients branch on RabbitMQ's version");
        assert_eq!(text("leveret_version"), env!("CARGO_PKG_VERSION"));
        let told = broker.json(&["product_info"]);
        assert_eq!(told["product_name"], want);
        let version = if want == "RabbitMQ" { "3.13.7" } else { env!("CARGO_PKG_VERSION") };
        assert_eq!(told["product_version"], version);
        assert_eq!(told["leveret_version"], env!("CARGO_PKG_VERSION"));
        assert!(matches!(properties.get("capabilities"), Some(Value::Table(_))));
    }
}

#[test]
fn another_protocol_is_answered_with_ours() {
    let broker = Broker::start();
    for header in [&b"HTTP/1.1"[..], b"AMQP\x02\x01\x00\x00"] {
        let mut raw = Raw::connect(&broker);
        raw.send(header);
        assert_eq!(raw.bytes(), b"AMQP\0\0\x09\x01", "{header:?}");
        let (seen, _) = raw.until_closed();
        assert!(seen.is_empty(), "{seen:?}");
    }
}

#[test]
fn sends_heartbeats_and_ends_a_client_that_sends_none() {
    let broker = Broker::start();
    // One that sends its own: it hears from the broker twice as often as it must.
    let options = Options { heartbeat_s: Some(1), ..Options::default() };
    let mut alive = Connection::open(&broker.uri(), &options).unwrap();
    // One that goes silent: told nothing, as RabbitMQ does it, and closed after two intervals.
    let silent = Raw::login_with(&broker, 1);
    let watch = std::thread::spawn(move || silent.until_closed());
    for _ in 0..4 {
        // The client fails by itself when it hears nothing for two intervals.
        assert!(alive.wait(PATIENCE).unwrap(), "no heartbeat came");
    }
    while !watch.is_finished() {
        alive.wait(Duration::from_millis(100)).unwrap();
    }
    let (seen, took) = watch.join().unwrap();
    assert!(seen.is_empty(), "{seen:?}");
    assert!(took > Duration::from_millis(900), "{took:?}");
    assert!(alive.open_channel().is_ok());
    assert_eq!(broker.log.wait_for("missed heartbeats").matches("client").count(), 1);
}

#[test]
fn who_does_not_log_in_is_closed() {
    let broker = Broker::with(&["handshake_timeout=300"]);
    let steps = hello(0);
    // Nothing, half a header, a header, all but the end of start-ok, all but the open.
    let cut = &steps[1][..steps[1].len() - 1];
    let prefixes: [&[&[u8]]; 5] = [
        &[],
        &[&steps[0][..4]],
        &[&steps[0]],
        &[&steps[0], cut],
        &[&steps[0], &steps[1], &steps[2]],
    ];
    let raws: Vec<Raw> = prefixes
        .iter()
        .map(|prefix| {
            let mut raw = Raw::connect(&broker);
            prefix.iter().for_each(|bytes| raw.send(bytes));
            raw
        })
        .collect();
    for raw in raws {
        let (seen, took) = raw.until_closed();
        assert!(took < PATIENCE, "{seen:?} {took:?}");
    }
    // The time limit is over with the login.
    let mut raw = Raw::login(&broker);
    assert_eq!(broker.json(&["status"])["totals"]["connection_count"], 1);
    let late = Raw::connect(&broker);
    late.until_closed();
    raw.method(1, &queue::Declare { queue: "q", ..Default::default() });
    raw.expect("queue.declare-ok");
}

#[test]
fn a_client_may_send_one_byte_at_a_time() {
    let broker = Broker::start();
    let mut raw = Raw::connect(&broker);
    for step in hello(0) {
        step.chunks(1).for_each(|byte| raw.send(byte));
    }
    raw.expect("channel.open-ok");
    for byte in method_bytes(1, &queue::Declare { queue: "q", ..Default::default() }).chunks(1) {
        raw.send(byte);
    }
    raw.expect("queue.declare-ok");
    raw.output.clear();
    let publish =
        leveret_client::amqp::method::basic::Publish { routing_key: "q", ..Default::default() };
    raw.output.put_publish(1, &publish, &[0, 0], &[7; 300]);
    let bytes = raw.output.bytes().to_vec();
    bytes.chunks(1).for_each(|byte| raw.send(byte));
    let (mut client, channel) = broker.channel();
    crate::broker::wait_until(PATIENCE, "the message is there", || {
        let got = client.get(channel, "q", true).unwrap();
        got.is_some_and(|got| got.body == [7; 300])
    });
}

#[test]
fn half_open_connections_are_nobody_elses_trouble() {
    let broker = Broker::start();
    let steps = hello(0);
    let half: Vec<Raw> = (0..200)
        .map(|n| {
            let mut raw = Raw::connect(&broker);
            steps[..n % 4].iter().for_each(|step| raw.send(step));
            raw.send(&steps[n % 4][..3]);
            raw
        })
        .collect();
    let (mut client, channel) = broker.channel();
    declare(&mut client, channel, "q");
    for n in 0..100_u8 {
        client.publish(channel, "", "q", &[0, 0], &[n]);
        let got = client.get(channel, "q", true).unwrap().expect("just published");
        assert_eq!(got.body, [n]);
    }
    assert_eq!(broker.json(&["status"])["totals"]["connection_count"], 201);
    drop(half);
    crate::broker::wait_until(PATIENCE, "the others are forgotten", || {
        broker.json(&["status"])["totals"]["connection_count"] == 1
    });
    broker.assert_quiet();
}

/// Whoever looks for a stuck consumer finds it in the log: which, of which queue, and what it holds.
#[test]
fn a_consumer_that_does_not_ack_is_told() {
    let broker = Broker::with(&["consumer_timeout=1000"]);
    let (mut client, channel) = broker.channel();
    declare(&mut client, channel, "work");
    client
        .consume(channel, "work", &Consume { consumer_tag: "idler", ..Default::default() })
        .unwrap();
    client.publish(channel, "", "work", &[0, 0], b"x");
    client.flush().unwrap();
    let said = broker.log.wait_for("has not acked a delivery in time");
    for part in [
        "connection=\"127.0.0.1:",
        "consumer_tag=\"idler\"",
        "queue=\"work\"",
        "vhost=\"/\"",
        "delivery_tag=1",
        "timeout_ms=1000",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
}
