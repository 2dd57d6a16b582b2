//! Bodies that are half received at a low watermark: none of them stops the node.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use leveret_client::amqp::method::confirm;
use leveret_client::{Consume, Event};

use crate::broker::{Broker, PATIENCE, Publisher, declare, wait_until};
use crate::raw::{Raw, publish_bytes};

const MIB: u64 = 1 << 20;

fn alarms(broker: &Broker) -> String {
    broker.json(&["status"])["alarms"].to_string()
}

/// Each has begun before any ends; all get through, and the node does not take what all of them are.
#[test]
fn thirty_publishers_of_large_bodies() {
    let broker = Broker::with(&["vm_memory_high_watermark.absolute=200MB"]);
    let before = broker.own_memory();
    let bytes = publish_bytes("amq.fanout", "", 15 * MIB as usize);
    let (first, rest) = bytes.split_at(200_000);
    let have_begun = Barrier::new(30);
    let most = std::thread::scope(|scope| {
        let publishers: Vec<_> = (0..30)
            .map(|_| {
                let mut raw = Raw::login(&broker);
                let have_begun = &have_begun;
                scope.spawn(move || {
                    raw.method(1, &confirm::Select { no_wait: false });
                    raw.expect("confirm.select-ok");
                    raw.send(first);
                    have_begun.wait();
                    raw.send(rest);
                    raw.expect("basic.ack");
                })
            })
            .collect();
        let mut most = 0;
        while publishers.iter().any(|publisher| !publisher.is_finished()) {
            most = most.max(broker.own_memory());
            assert_eq!(alarms(&broker), "[]");
        }
        most
    });
    let grown = most.saturating_sub(before);
    assert!(grown < 200 * MIB, "{} MiB", grown / MIB);
    Publisher::new(&broker, "q").publish(b"after", 10);
}

/// However fast a client reads, a large body is written a piece a turn: turns of others come in between.
#[test]
fn a_large_body_is_written_by_many_turns() {
    const PIECE: u64 = 256 << 10;
    let broker = Broker::start();
    let (mut client, channel) = broker.channel();
    declare(&mut client, channel, "q");
    client.consume(channel, "q", &Consume { no_ack: true, ..Consume::default() }).unwrap();
    let body: Vec<u8> = (0..15 * MIB).map(|at| (at.wrapping_mul(31) >> 3) as u8).collect();
    let mut publisher = Publisher::new(&broker, "q");
    publisher.publish(&body, 1);
    loop {
        match client.next_event().unwrap() {
            Some(Event::Content { body: got, .. }) => {
                assert!(got == body, "{} bytes came", got.len());
                break;
            }
            Some(_) => {}
            None => assert!(client.wait(PATIENCE).unwrap()),
        }
    }
    let least = (body.len() as u64 - 2 * MIB) / PIECE;
    wait_until(PATIENCE, "the turns that wrote it are counted", || {
        let rows = broker.json(&["list_connections", "send_oct", "send_cnt"]);
        rows.as_array().unwrap().iter().any(|row| {
            let number = |key: &str| row[key].as_u64().unwrap_or_default();
            number("send_oct") > body.len() as u64 && number("send_cnt") >= least
        })
    });
    broker.assert_quiet();
}

/// A user who may nothing is told so before the body, and holds nothing by it.
#[test]
fn bodies_of_a_user_without_permissions() {
    let broker = Broker::with(&["vm_memory_high_watermark.absolute=200MB"]);
    broker.told(&["add_user", "none", "none"]);
    broker.told(&["set_permissions", "none", "^$", "^$", "^$"]);
    let before = broker.own_memory();
    let bytes = publish_bytes("amq.fanout", "", 15 * MIB as usize);
    let mut raws: Vec<Raw> = (0..15).map(|_| Raw::login_as(&broker, 0, "none")).collect();
    for raw in &mut raws {
        raw.send(&bytes[..200_000]);
        raw.expect("channel.close");
        raw.send(&bytes[200_000..bytes.len() - 1]);
    }
    let mut publisher = Publisher::new(&broker, "q");
    publisher.publish(&[7; 1000], 10_000);
    assert_eq!(publisher.blocked, [""; 0]);
    assert_eq!(alarms(&broker), "[]");
    let grown = broker.own_memory().saturating_sub(before);
    assert!(grown < 60 * MIB, "{} MiB", grown / MIB);
}

/// Fifteen bodies that stand still: their connections end, and others get through.
#[test]
fn bodies_that_stand_still() {
    let broker =
        Broker::with(&["vm_memory_high_watermark.absolute=200MB", "unfinished_timeout=1000"]);
    let bytes = publish_bytes("amq.fanout", "", 15 * MIB as usize);
    let mut still: Vec<Raw> = (0..15).map(|_| Raw::login(&broker)).collect();
    for raw in &mut still {
        raw.send(&bytes[..200_000]);
    }
    let mut raw = Raw::login(&broker);
    raw.method(1, &confirm::Select { no_wait: false });
    raw.expect("confirm.select-ok");
    raw.send(&bytes);
    raw.expect("basic.ack");
    for mut raw in still {
        let text = raw.close_text();
        assert!(text.contains("stands still"), "{text}");
    }
    assert_eq!(alarms(&broker), "[]");
    wait_until(PATIENCE + Duration::from_secs(30), "they are gone", || {
        broker.json(&["status"])["totals"]["connection_count"] == 1
    });
    wait_until(PATIENCE, "each is told", || broker.log.with("does not come forward").len() == 15);
}

/// A crowd that may nothing and sends frames but for their last bytes raises no alarm, and keeps no body waiting.
#[test]
fn frames_of_a_crowd_that_are_not_whole() {
    let broker = Broker::with(&["vm_memory_high_watermark.absolute=40MB"]);
    broker.told(&["add_user", "none", "none"]);
    broker.told(&["set_permissions", "none", "^$", "^$", "^$"]);
    let frame = [&b"\x01\0\x01\0\x01\xff\xf8\0\x32\0\x0a"[..], &[7; 131_000]].concat();
    let crowd: Vec<Raw> = (0..300)
        .map(|_| {
            let mut raw = Raw::login_as(&broker, 0, "none");
            raw.send(&frame);
            raw
        })
        .collect();
    let mut raw = Raw::login(&broker);
    raw.method(1, &confirm::Select { no_wait: false });
    raw.expect("confirm.select-ok");
    raw.send(&publish_bytes("amq.fanout", "", MIB as usize));
    raw.expect("basic.ack");
    assert_eq!(alarms(&broker), "[]");
    drop(crowd);
}

/// Half bodies and long frames of one user that stand still, twice as many as there is room for: another user has bodies
/// and frames under way at once, and not after the time-outs.
#[test]
fn what_one_user_stalls_keeps_no_other_waiting() {
    let broker = Broker::with(&["vm_memory_high_watermark.absolute=40MB"]);
    broker.told(&["add_user", "still", "still"]);
    broker.told(&["set_permissions", "still", ".*", ".*", ".*"]);
    let bytes = publish_bytes("amq.fanout", "", MIB as usize);
    let frame = [&b"\x01\0\x01\0\x01\xff\xf8\0\x32\0\x0a"[..], &[7; 131_000]].concat();
    let still: Vec<Raw> = (0..60)
        .map(|number| {
            let mut raw = Raw::login_as(&broker, 0, "still");
            raw.send(if number < 25 { &bytes[..bytes.len() / 2] } else { &frame });
            raw
        })
        .collect();
    let from = Instant::now();
    let mut raw = Raw::login(&broker);
    raw.method(1, &confirm::Select { no_wait: false });
    raw.expect("confirm.select-ok");
    for _ in 0..20 {
        raw.send(&bytes);
        raw.expect("basic.ack");
    }
    // A body that is too long for what they left keeps only long ones waiting.
    let mut long = Raw::login(&broker);
    long.send(&publish_bytes("amq.fanout", "", 8 * MIB as usize)[..200_000]);
    let small = publish_bytes("amq.fanout", "", 100_000);
    for _ in 0..20 {
        raw.send(&small);
        raw.expect("basic.ack");
    }
    let took = from.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert_eq!(broker.json(&["status"])["totals"]["connection_count"], 62);
    drop((still, long));
}
