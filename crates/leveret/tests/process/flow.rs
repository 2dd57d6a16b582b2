//! Nobody waits but the one who causes the load: slow consumers, fast publishers, the memory alarm.

use std::time::{Duration, Instant};

use leveret_client::amqp::method::{Method, basic};
use leveret_client::amqp::table::{Table, Value};
use leveret_client::{Connection, Consume, Event, QueueDeclare};

use crate::auth::api;
use crate::broker::{Broker, PATIENCE, Publisher, declare, wait_until};
use crate::raw::Raw;

const MIB: u64 = 1 << 20;

/// A small watermark, and no message is written to save memory: the alarm is what bounds memory.
const ALL_IN_MEMORY: [&str; 2] =
    ["vm_memory_high_watermark.absolute=20MiB", "vm_memory_high_watermark_paging_ratio=1"];

/// What a client may have in flight so that its own writing never blocks: it fits into the buffers of a
/// socket that nobody reads.
const IN_FLIGHT: u64 = 100;

/// A body of 4 KiB with a number in it.
fn numbered(number: u64) -> Vec<u8> {
    let mut body = vec![0; 4096];
    body[..8].copy_from_slice(&number.to_be_bytes());
    body
}

/// Publishes numbered bodies until the publisher is told that it is blocked.
fn publish_until_blocked(publisher: &mut Publisher) {
    let deadline = Instant::now() + PATIENCE;
    while !publisher.client.is_blocked() {
        assert!(Instant::now() < deadline, "never blocked, after {} messages", publisher.sent);
        if publisher.sent - publisher.confirmed < IN_FLIGHT {
            let number = publisher.sent;
            publisher.send(&numbered(number), 1);
        }
        publisher.read(Duration::from_micros(100));
    }
    // What was on its way when the alarm came.
    while publisher.sent - publisher.confirmed < IN_FLIGHT {
        let number = publisher.sent;
        publisher.send(&numbered(number), 1);
    }
}

/// The numbers of the messages that a consumer is given, acked as they come, until `enough`.
fn consume(client: &mut Connection, channel: u16, seen: &mut Vec<u64>, enough: usize) {
    let deadline = Instant::now() + PATIENCE;
    while seen.len() < enough {
        assert!(Instant::now() < deadline, "only {} of {enough} came", seen.len());
        client.wait(PATIENCE).unwrap();
        let mut last = 0;
        while let Some(event) = client.next_event().unwrap() {
            let Event::Content { method, body, .. } = event else { continue };
            let Method::BasicDeliver(deliver) = method else { continue };
            last = deliver.delivery_tag;
            seen.push(u64::from_be_bytes(body[..8].try_into().unwrap()));
        }
        if last > 0 {
            client.ack(channel, last, true);
            client.flush().unwrap();
        }
    }
}

#[test]
fn too_little_free_disk_space_blocks_publishers() {
    let broker = Broker::with(&["disk_free_limit.absolute=1PB"]);
    let mut publisher = Publisher::new(&broker, "q");
    publisher.send(&numbered(0), 1);
    wait_until(PATIENCE, "the publisher is told", || {
        publisher.read(Duration::from_millis(10));
        publisher.client.is_blocked()
    });
    assert_eq!(publisher.blocked, ["low on disk"]);
    assert_eq!(broker.json(&["status"])["alarms"][0], "disk");
    broker.told(&["set_disk_free_limit", "1MB"]);
    wait_until(PATIENCE, "the alarm is over and the message confirmed", || {
        publisher.read(Duration::from_millis(10));
        !publisher.client.is_blocked() && publisher.confirmed == 1
    });
}

#[test]
fn the_alarm_blocks_those_who_cause_it_and_nothing_is_lost() {
    let broker = Broker::with(&ALL_IN_MEMORY);
    let mut other = Publisher::new(&broker, "other");
    // So few that the alarm does not end with them.
    other.publish(&numbered(0), 50);
    let mut publisher = Publisher::new(&broker, "q");
    publish_until_blocked(&mut publisher);
    assert_eq!(publisher.blocked, ["low on memory"]);
    assert_eq!(broker.json(&["status"])["alarms"][0], "memory");
    assert!(publisher.confirmed < publisher.sent, "it is not read any more");
    let states = broker.json(&["list_connections", "state"]).to_string();
    assert!(states.contains("blocked"), "{states}");

    // Who publishes into a queue that holds little goes on, and who only consumes is served.
    let mut late = Publisher::new(&broker, "other");
    late.publish(&numbered(0), 1);
    assert_eq!(late.blocked, [""; 0]);
    let stuck = publisher.confirmed;
    let (mut client, channel) = broker.channel();
    client.consume(channel, "other", &Consume::default()).unwrap();
    consume(&mut client, channel, &mut Vec::new(), 51);
    publisher.read(Duration::from_millis(1));
    assert!(publisher.client.is_blocked());

    let (mut client, channel) = broker.channel();
    client.consume(channel, "q", &Consume::default()).unwrap();
    let mut seen = Vec::new();
    consume(&mut client, channel, &mut seen, stuck as usize);
    wait_until(PATIENCE, "the alarm is over", || {
        publisher.read(Duration::from_millis(10));
        !publisher.client.is_blocked()
    });
    wait_until(PATIENCE, "everything is confirmed", || {
        publisher.read(Duration::from_millis(10));
        publisher.confirmed == publisher.sent
    });
    consume(&mut client, channel, &mut seen, publisher.sent as usize);
    let all: Vec<u64> = (0..publisher.sent).collect();
    assert_eq!(seen, all);
    assert_eq!(broker.json(&["status"])["alarms"], serde_json::json!([]));
    let told = broker.log.with("memory resource limit alarm set on node ");
    assert_eq!(told.len(), 1);
    for part in ["are in use, vm_memory_high_watermark is 21.0 MB;", "are blocked until it clears"]
    {
        assert!(told[0].contains(part), "{told:?}");
    }
    broker.log.wait_for("memory resource limit alarm cleared on node ");
    let (_, node) = api(&broker, "/api/nodes", "Basic Z3Vlc3Q6Z3Vlc3Q=");
    assert!(node.contains("\"mem_alarm_count\":1,"), "{node}");
}

/// A client that publishes and consumes over one connection, and stops publishing when it is told, takes what it published
/// itself: its acks end the alarm.
#[test]
fn a_blocked_connection_goes_on_consuming() {
    let broker = Broker::with(&ALL_IN_MEMORY);
    let (mut client, channel) = broker.channel();
    declare(&mut client, channel, "q");
    let mut sent = 0;
    let deadline = Instant::now() + PATIENCE;
    while !client.is_blocked() {
        assert!(Instant::now() < deadline, "never blocked, after {sent} messages");
        client.publish(channel, "", "q", &[0, 0], &numbered(sent));
        sent += 1;
        // Its answer comes behind what the message before it led to: none is on its way when the client is told.
        let passive = QueueDeclare { passive: true, ..QueueDeclare::default() };
        client.queue_declare(channel, "q", &passive).unwrap();
    }
    let consuming = client.open_channel().unwrap();
    client.qos(consuming, 100, false).unwrap();
    client.consume(consuming, "q", &Consume::default()).unwrap();
    let mut seen = Vec::new();
    wait_until(PATIENCE, "its acks end the alarm", || {
        client.wait(Duration::from_millis(10)).unwrap();
        let mut last = 0;
        while let Some(event) = client.next_event().unwrap() {
            if let Event::Content { method: Method::BasicDeliver(deliver), body, .. } = event {
                last = deliver.delivery_tag;
                seen.push(u64::from_be_bytes(body[..8].try_into().unwrap()));
            }
        }
        if last > 0 {
            client.ack(consuming, last, true);
            client.flush().unwrap();
        }
        !client.is_blocked() && seen.len() as u64 == sent
    });
    assert!(seen.iter().copied().eq(0..sent));
}

/// Nobody reads from a blocked connection, and without heartbeats nothing is due; its end is seen all
/// the same, and what was sent before it is not lost.
#[test]
fn a_blocked_client_that_goes_is_noticed() {
    let broker = Broker::start();
    let (mut client, channel) = broker.channel();
    declare(&mut client, channel, "q");
    broker.told(&["set_vm_memory_high_watermark", "absolute", "0"]);
    let count = || broker.json(&["status"])["totals"]["connection_count"].as_u64().unwrap();
    let publish = |raw: &mut Raw| {
        let publish = basic::Publish { routing_key: "q", ..Default::default() };
        raw.method(1, &publish);
        // A header without properties, and a body of one byte.
        raw.send(b"\x02\0\x01\0\0\0\x0e\0\x3c\0\0\0\0\0\0\0\0\0\x01\0\0\xce");
        raw.send(b"\x03\0\x01\0\0\0\x01x\xce");
    };
    let mut blocked: Vec<Raw> = (0..3).map(|_| Raw::login(&broker)).collect();
    for raw in &mut blocked {
        publish(raw);
    }
    wait_until(PATIENCE, "all are blocked", || {
        let states = broker.json(&["list_connections", "state"]).to_string();
        states.matches("\"blocked\"").count() == 3
    });
    for raw in &mut blocked {
        publish(raw);
    }
    drop(blocked);
    wait_until(PATIENCE, "they are gone", || count() == 1);
    let ready = &broker.json(&["list_queues", "messages_ready"])[0]["messages_ready"];
    assert_eq!(*ready, 6);
}

#[test]
fn the_watermark_moves_at_run_time() {
    let broker = Broker::start();
    let mut publisher = Publisher::new(&broker, "q");
    publisher.publish(&numbered(0), 1000);
    let alarms = || broker.json(&["status"])["alarms"].to_string();
    for low in ["2MiB", "0"] {
        assert_eq!(alarms(), "[]");
        broker.told(&["set_vm_memory_high_watermark", "absolute", low]);
        assert_eq!(alarms(), r#"["memory"]"#);
        publish_until_blocked(&mut publisher);
        broker.told(&["set_vm_memory_high_watermark", "0.6"]);
        wait_until(PATIENCE, "the publisher goes on", || {
            publisher.read(Duration::from_millis(10));
            !publisher.client.is_blocked() && publisher.confirmed == publisher.sent
        });
    }
    assert_eq!(publisher.blocked.len(), 2);
}

#[test]
fn a_client_that_reads_no_deliveries_costs_little_and_slows_nobody() {
    let broker = Broker::start();
    let mut publisher = Publisher::new(&broker, "other");
    let (mut client, channel) = broker.channel();
    let mut arguments = Table::default();
    arguments.set("x-max-length-bytes", Value::I64(4 * MIB as i64));
    let short = QueueDeclare { arguments, ..QueueDeclare::default() };
    client.queue_declare(channel, "q", &short).unwrap();
    client.queue_bind(channel, "q", "amq.fanout", "", &Table::default()).unwrap();
    let mut deaf = Raw::login(&broker);
    let consume = basic::Consume { queue: "q", no_ack: true, ..Default::default() };
    deaf.method(1, &consume);
    deaf.expect("basic.consume-ok");
    publisher.publish(b"warm", 1000);
    let before = broker.own_memory();
    client.confirm_select(channel).unwrap();
    let body = vec![7; 64 * 1024];
    let mut worst = Duration::ZERO;
    // 200 MB past a client that reads none of it.
    for _ in 0..100 {
        for _ in 0..32 {
            client.publish(channel, "amq.fanout", "", &[0, 0], &body);
        }
        client.flush().unwrap();
        let began = Instant::now();
        publisher.publish(b"other", 10);
        worst = worst.max(began.elapsed());
        while client.next_event().unwrap().is_some() {}
        client.poll().unwrap();
    }
    // An answer comes after all that was published before.
    declare(&mut client, channel, "last");
    let grown = broker.own_memory().saturating_sub(before);
    assert!(grown < 32 * MIB, "{} MiB", grown / MIB);
    assert!(worst < Duration::from_secs(2), "others waited {worst:?}");
    drop(deaf);
    wait_until(PATIENCE, "the deaf client is gone", || {
        broker.json(&["status"])["totals"]["connection_count"] == 2
    });
}

/// What the alarm goes by must be what the process really takes.
#[test]
fn what_messages_take_is_counted_honestly() {
    let broker = Broker::start();
    let mut publisher = Publisher::new(&broker, "q");
    let check = |what: &str| {
        let status = broker.json(&["status"]);
        let counted = status["message_bytes"].as_u64().unwrap();
        let resident = broker.resident();
        assert!(
            resident <= counted * 13 / 10 + 50 * MIB,
            "{what}: {} MiB resident, {} MiB counted",
            resident / MIB,
            counted / MIB
        );
        counted
    };
    check("idle");
    publisher.publish(b"0123456789abcdef", 400_000);
    let ready = check("ready");
    assert!(ready > 400_000 * 60, "{ready}");
    let (mut client, channel) = broker.channel();
    client.consume(channel, "q", &Consume::default()).unwrap();
    let mut seen = 0;
    while seen < 400_000 {
        assert!(client.wait(PATIENCE).unwrap(), "only {seen} came");
        while let Some(event) = client.next_event().unwrap() {
            seen += u64::from(matches!(event, Event::Content { .. }));
        }
    }
    assert!(check("unacked") > ready);
}

/// A few large messages that many clients do not take are a few large messages, and stop nobody.
#[test]
fn a_fan_out_to_clients_that_do_not_read_counts_once() {
    let broker = Broker::with(&["vm_memory_high_watermark.absolute=80MB"]);
    let (mut client, channel) = broker.channel();
    let mut publisher = Publisher::new(&broker, "other");
    let mut deaf = Vec::new();
    for number in 0..60 {
        let queue = format!("q{number}");
        declare(&mut client, channel, &queue);
        client.queue_bind(channel, &queue, "amq.fanout", "", &Table::default()).unwrap();
        let mut raw = Raw::login(&broker);
        raw.method(1, &basic::Consume { queue: &queue, no_ack: true, ..Default::default() });
        raw.expect("basic.consume-ok");
        deaf.push(raw);
    }
    client.confirm_select(channel).unwrap();
    for _ in 0..12 {
        client.publish(channel, "amq.fanout", "", &[0, 0], &vec![7; MIB as usize]);
        client.flush().unwrap();
        declare(&mut client, channel, "other");
        publisher.publish(b"other", 10);
    }
    assert_eq!(broker.json(&["status"])["alarms"].to_string(), "[]");
    assert_eq!(publisher.blocked, [""; 0]);
}
