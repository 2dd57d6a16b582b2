//! Clients come in before the queues are filled: who needs no queue is served, who needs one waits, and nothing is said of
//! what is not known yet.

use std::time::Duration;

use leveret_client::amqp::method::Method;
use leveret_client::{Event, Got, QueueDeclare};
use rustix::process::Signal;

use crate::broker::{Broker, Down, PATIENCE, wait_for_ack, wait_until};
use crate::raw::{Raw, publish_bytes};
use crate::restart::{durable, pairs, persistent, store, take_all};
use crate::shim::Shim;

/// A broker with messages `0` to `9` in the queue `old`, which ended.
fn with_ten(end: impl FnOnce(Broker) -> Down) -> tempfile::TempDir {
    let broker = Broker::with(&["shards=2"]);
    let (mut client, channel) = broker.channel();
    for queue in ["old", "gone", "empty"] {
        client.queue_declare(channel, queue, &durable(&[])).unwrap();
    }
    let bodies: Vec<_> = (0..10).map(|n| n.to_string()).collect();
    store(&mut client, "old", bodies.iter().map(|body| (persistent(), body.as_str())));
    store(&mut client, "gone", [(persistent(), "x")]);
    drop(client);
    end(broker).dir
}

fn ten(redelivered: bool) -> Vec<(String, bool)> {
    (0..10).map(|n| (n.to_string(), redelivered)).collect()
}

#[test]
fn logins_and_names_do_not_wait_for_queues() {
    let shim = Shim::new();
    let broker = shim.filling(with_ten(Broker::kill));
    let told = broker.log.wait_for("clients may come in");
    assert!(told.contains("messages=11"), "{told}");

    // Names are there, and change.
    let (mut client, channel) = broker.channel();
    client
        .exchange_declare(channel, "new", "direct", &leveret_client::ExchangeDeclare::default())
        .unwrap();
    client.queue_bind(channel, "old", "new", "key", &Default::default()).unwrap();
    assert!(broker.told(&["list_exchanges", "name"]).contains("new\n"));
    broker.told(&["set_policy", "limit", "^empty$", r#"{"max-length":1}"#]);

    // A publisher waits for its confirm, a consumer for its queue; each hears that the broker lives.
    client.confirm_select(channel).unwrap();
    client.publish(channel, "new", "key", &persistent().to_bytes(), b"late");
    client.flush().unwrap();
    let waits = |work: fn(&mut leveret_client::Connection, u16)| {
        let (mut client, channel) = broker.channel();
        std::thread::spawn(move || work(&mut client, channel))
    };
    let deletes = waits(|client, channel| {
        assert_eq!(client.queue_delete(channel, "gone").unwrap(), 1);
    });
    let declares = waits(|client, channel| {
        client.queue_declare(channel, "fresh", &QueueDeclare::default()).unwrap();
        client.publish(channel, "", "fresh", &[0, 0], b"fresh");
        let got = client.get(channel, "fresh", true).unwrap();
        assert!(matches!(got, Some(Got { ref body, .. }) if body == b"fresh"), "{got:?}");
    });

    // What is known is told, and the rest is not waited for.
    let listed = broker.json(&["list_queues", "name", "state", "messages"]);
    let of =
        |name: &str| listed.as_array().unwrap().iter().find(|row| row["name"] == name).cloned();
    let row = of("old").unwrap();
    assert_eq!(row["state"], "starting", "{listed}");
    assert!(!row["messages"].is_number(), "{listed}");
    assert!(broker.told(&["list_connections", "name"]).contains("127.0.0.1"));
    broker.told(&["ping"]);
    broker.told(&["status"]);
    let refused = broker.refused(&["check_running"], 69);
    assert!(refused.contains("has not fully booted yet"), "{refused}");
    assert!(broker.told(&["is_booting"]).contains("is booting"));
    let refused = broker.refused(&["await_startup", "--timeout", "0"], 75);
    assert!(refused.contains("queues are being filled"), "{refused}");
    broker.refused(&["check_virtual_hosts"], 69);
    assert!(broker.log.with(" is ready").is_empty());
    // A turn of the client's own thread came in between, and no confirm with it.
    assert!(client.next_event().unwrap().is_none(), "confirmed before its queue was there");
    broker.told(&["set_vm_memory_high_watermark", "0.3"]);

    shim.set("");
    let ready = broker.log.wait_for(" is ready");
    assert!(ready.contains("messages=11"), "{ready}");
    wait_for_ack(&mut client);
    deletes.join().unwrap();
    declares.join().unwrap();
    broker.told(&["check_running"]);
    broker.told(&["await_startup"]);
    let mut all = ten(true);
    all.extend(pairs(&[("late", false)]));
    assert_eq!(take_all(&mut client, channel, "old"), all);
    let listed = broker.told(&["list_queues", "name", "state", "messages"]);
    assert!(listed.contains("old\trunning\t0\n") && !listed.contains("gone"), "{listed}");
    // The policy that was set meanwhile.
    for body in [b"1", b"2"] {
        client.publish(channel, "", "empty", &[0, 0], body);
    }
    assert_eq!(take_all(&mut client, channel, "empty"), pairs(&[("2", false)]));
    broker.assert_quiet();
}

/// What a clean stop knew is known after one in the middle of a start.
#[test]
fn a_stop_waits_until_the_queues_are_filled() {
    let shim = Shim::new();
    let mut broker = shim.filling(with_ten(Broker::stop));
    let (mut client, channel) = broker.channel();
    broker.signal(Signal::TERM);
    broker.log.wait_for("the stop waits until the queues are filled");
    // Who is in stays until then.
    client
        .exchange_declare(channel, "new", "direct", &leveret_client::ExchangeDeclare::default())
        .unwrap();
    shim.set("");
    assert!(client.wait(PATIENCE).unwrap());
    drop(client);
    assert!(broker.ended(PATIENCE).success(), "{:#?}", broker.log.with(""));
    assert!(broker.log.with(" is ready").is_empty());
    let broker = broker.down().start_again();
    let (mut client, channel) = broker.channel();
    assert_eq!(take_all(&mut client, channel, "old"), ten(false), "nobody had them");
    broker.assert_quiet();
}

#[test]
fn a_kill_in_the_middle_of_a_start_loses_nothing() {
    let shim = Shim::new();
    let mut dir = with_ten(Broker::kill);
    for _ in 0..2 {
        let broker = shim.filling(dir);
        let (mut client, channel) = broker.channel();
        client.publish(channel, "", "old", &persistent().to_bytes(), b"nobody was told");
        client.flush().unwrap();
        dir = broker.kill().dir;
    }
    shim.set("");
    let broker = shim.broker(dir);
    let (mut client, channel) = broker.channel();
    assert_eq!(take_all(&mut client, channel, "old"), ten(true));
    broker.assert_quiet();
}

/// Publishers pause while what they sent waits.
#[test]
fn what_waits_for_the_queues_is_bounded() {
    static BODY: [u8; 64 << 10] = [7; 64 << 10];
    const COUNT: u64 = 1500;
    let shim = Shim::new();
    let broker = shim.filling(with_ten(Broker::kill));
    let before = broker.own_memory();
    let mut publisher = std::thread::scope(|scope| {
        let publishing = scope.spawn(|| {
            let (mut client, channel) = broker.channel();
            client.confirm_select(channel).unwrap();
            for _ in 0..COUNT {
                client.publish(channel, "", "old", &[0, 0], &BODY);
                client.flush().unwrap();
            }
            client
        });
        // Its flush returns when the broker reads again.
        wait_until(PATIENCE, "the connection is paused", || {
            let rows = broker.json(&["list_connections", "recv_oct"]);
            let received = |row: &serde_json::Value| row["recv_oct"].as_u64().unwrap_or(0);
            let all: u64 = rows.as_array().unwrap().iter().map(received).sum();
            all > 4 << 20
        });
        for _ in 0..20 {
            broker.told(&["ping"]);
        }
        assert!(!publishing.is_finished(), "all of it was read");
        let grown = broker.own_memory().saturating_sub(before);
        assert!(grown < 48 << 20, "{grown} bytes more");
        shim.set("");
        publishing.join().unwrap()
    });
    let mut confirmed = 0;
    while confirmed < COUNT {
        match publisher.next_event().unwrap() {
            Some(Event::Method { method: Method::BasicAck(ack), .. }) => {
                confirmed = ack.delivery_tag
            }
            Some(_) => {}
            None => assert!(publisher.wait(PATIENCE).unwrap(), "{confirmed} confirms"),
        }
    }
    broker.assert_quiet();
}

/// Who publishes and goes, over and over, leaves no more than memory may have: what waits counts.
#[test]
fn what_clients_leave_for_the_queues_counts() {
    let shim = Shim::new();
    let broker = shim.filling(with_ten(Broker::kill));
    broker.told(&["set_vm_memory_high_watermark", "absolute", "40MB"]);
    let before = broker.own_memory();
    let bytes = publish_bytes("", "old", 1 << 20);
    let is_calm = || broker.json(&["status"])["alarms"].as_array().is_some_and(Vec::is_empty);
    let mut left = 0;
    while is_calm() {
        left += 1;
        assert!(left < 100, "no alarm");
        Raw::login(&broker).send(&bytes);
    }
    assert!(left > 10, "{left}");
    let grown = broker.own_memory().saturating_sub(before);
    assert!(grown < 80 << 20, "{grown} bytes more");
    shim.set("");
    broker.log.wait_for("is ready");
    broker.told(&["purge_queue", "old"]);
    wait_until(PATIENCE, "the alarm is over", is_calm);
}

/// A client that waits for its queue hears the broker's heartbeats, and its own are heard.
#[test]
fn heartbeats_go_on() {
    let shim = Shim::new();
    let broker = shim.filling(with_ten(Broker::kill));
    let options = leveret_client::Options { heartbeat_s: Some(1), ..Default::default() };
    let mut client = leveret_client::Connection::open(&broker.uri(), &options).unwrap();
    let channel = client.open_channel().unwrap();
    let waiting =
        std::thread::spawn(move || client.get(channel, "old", true).unwrap().unwrap().body);
    let began = std::time::Instant::now();
    let (mut other, _) = broker.channel();
    wait_until(PATIENCE, "three intervals have passed", || {
        other.wait(Duration::from_millis(100)).unwrap();
        began.elapsed() > Duration::from_secs(3)
    });
    assert!(!waiting.is_finished());
    shim.set("");
    assert_eq!(waiting.join().unwrap(), b"0");
    broker.assert_quiet();
}
