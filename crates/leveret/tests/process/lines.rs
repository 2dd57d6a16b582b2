//! The log as operators search it: who did what, in RabbitMQ's words, and never more than a disk can take.

use leveret_client::amqp::method::{Method, queue};
use leveret_client::amqp::table::{Table, Value};
use leveret_client::{Connection, Event, Options, QueueDeclare};
use rustix::process::Signal;
use serde_json::json;

use crate::auth::request;
use crate::broker::{Broker, PATIENCE, close_reason, declare, wait_until};
use crate::metrics::fetch;
use crate::raw::Raw;
use crate::shim::Shim;

/// A client with a name of its own, and RabbitMQ's name for its connection.
fn named(broker: &Broker, name: &str) -> (Connection, u16) {
    let name = Some(name.to_owned());
    let options = Options { name, heartbeat_s: Some(0), ..Options::default() };
    let mut client = Connection::open(&broker.uri(), &options).unwrap();
    let channel = client.open_channel().unwrap();
    (client, channel)
}

#[track_caller]
fn has_all(line: &str, parts: &[&str]) {
    for part in parts {
        assert!(line.contains(part), "no {part:?} in {line}");
    }
}

#[test]
fn what_clients_do_is_told_in_rabbitmqs_words() {
    let broker = Broker::start();
    let to = format!(" -> {}", broker.address);
    let (mut client, channel) = named(&broker, "app\nERROR forged");
    let told = broker.log.wait_for("authenticated and granted access");
    let end = ": user 'guest' authenticated and granted access to vhost '/'";
    has_all(&told, &["INFO connection 127.0.0.1:", &to, " - app\\nERROR forged", end]);

    let missing = QueueDeclare { passive: true, ..QueueDeclare::default() };
    client.queue_declare(channel, "gone", &missing).unwrap_err();
    let told = broker.log.wait_for("caused a channel exception");
    let who = "app\\nERROR forged, vhost: '/', user: 'guest'), channel 1: operation queue.declare";
    let what = "caused a channel exception not_found: no queue 'gone' in vhost '/'";
    has_all(&told, &["ERROR Channel error on connection <connection.", &to, who, what]);

    let channel = client.open_channel().unwrap();
    declare(&mut client, channel, "work");
    client.publish(channel, "", "work", &[0, 0], b"x");
    assert_eq!(client.queue_delete(channel, "work").unwrap(), 1);
    let told = broker.log.wait_for("queue 'work' in vhost '/' deleted");
    has_all(&told, &["INFO", "by user 'guest' from connection 127.0.0.1:", &to, "messages=1"]);
    client.close().unwrap();
    let told = broker.log.wait_for("INFO closing AMQP connection (127.0.0.1:");
    has_all(&told, &[&to, "vhost: '/', user: 'guest', duration: '"]);

    let (mut client, _) = named(&broker, "unopened");
    client.output().put_method(7, &queue::Purge { queue: "q", ..Default::default() });
    client.flush().unwrap();
    close_reason(&mut client);
    let told = broker.log.wait_for("caused a connection exception");
    let who =
        "unopened, vhost: '/', user: 'guest', state: running), channel 7: operation queue.purge";
    let what = "caused a connection exception channel_error: \"expected 'channel.open'\"";
    has_all(&told, &["ERROR Error on AMQP connection <connection.", &to, who, what]);

    drop(named(&broker, "hasty"));
    let told = broker.log.wait_for("client unexpectedly closed TCP connection");
    has_all(&told, &["WARN closing AMQP connection <connection.", "hasty, vhost: '/'", "duration"]);

    let silent = Raw::login_with(&broker, 1);
    let told = broker.log.wait_for("missed heartbeats from client, timeout: 1s");
    let peer = silent.socket.local_addr().unwrap().to_string();
    has_all(&told, &["WARN closing AMQP connection <connection.", &peer, "user: 'guest'"]);

    let mut lost = Raw::connect(&broker);
    lost.send(b"GET / HTTP/1.1\r\n\r\n");
    has_all(&broker.log.wait_for("HTTP GET request detected on AMQP port"), &["WARN", "GET / HT"]);

    let (mut client, _) = named(&broker, "old");
    let pid = &broker.json(&["list_connections", "pid", "client_properties"]);
    let of_old = |it: &&serde_json::Value| it["client_properties"].to_string().contains("\"old\"");
    let pid = pid.as_array().unwrap().iter().find(of_old).unwrap()["pid"].as_str().unwrap();
    broker.told(&["close_connection", pid, "for tests"]);
    close_reason(&mut client);
    let told = broker.log.wait_for("WARN Closing AMQP connection");
    has_all(&told, &[pid, " - old, vhost: '/', user: 'guest')", "for tests"]);
    assert!(broker.log.with("ERROR forged").iter().all(|line| line.contains("\\nERROR forged")));
}

/// Who deletes over HTTP, or with `leveret ctl`, is told with where it comes from; a request that is refused is an answer
/// and no line of an exception.
#[test]
fn a_queue_that_was_deleted_over_http_is_told_with_its_peer() {
    let broker = Broker::start();
    let (mut client, channel) = broker.channel();
    declare(&mut client, channel, "one");
    declare(&mut client, channel, "two");
    let delete = |queue: &str| {
        let path = format!("/api/queues/%2F/{queue}");
        request(&broker, "DELETE", &path, "Basic Z3Vlc3Q6Z3Vlc3Q=", "")
    };
    assert_eq!(delete("one").0, 204);
    let told = broker.log.wait_for("queue 'one' in vhost '/' deleted");
    has_all(&told, &["by user 'guest' from 127.0.0.1:"]);
    broker.told(&["delete_queue", "two"]);
    let told = broker.log.wait_for("queue 'two' in vhost '/' deleted");
    has_all(&told, &["by user 'rmq-cli' from control socket"]);
    assert_eq!(delete("one").0, 404);
    broker.assert_quiet();
}

/// Queues that go by themselves, or with others.
#[test]
fn queues_that_nobody_deletes_are_told() {
    let broker = Broker::start();
    let (mut client, channel) = broker.channel();
    let mut arguments = Table::new();
    arguments.push("x-expires", Value::I32(1));
    let expires = QueueDeclare { arguments, ..QueueDeclare::default() };
    client.queue_declare(channel, "unused", &expires).unwrap();
    let told = broker.log.wait_for("queue 'unused' in vhost '/' expired");
    has_all(&told, &["INFO ", "x-expires", "messages=0"]);
    broker.told(&["add_vhost", "v"]);
    broker.told(&["set_permissions", "-p", "v", "guest", ".*", ".*", ".*"]);
    for queue in ["a", "b"] {
        let path = format!("/api/queues/v/{queue}");
        assert_eq!(request(&broker, "PUT", &path, "Basic Z3Vlc3Q6Z3Vlc3Q=", "{}").0, 201);
    }
    broker.told(&["delete_vhost", "v"]);
    broker.log.wait_for("vhost 'v' deleted, and 2 queues with it");
    broker.assert_quiet();
}

#[test]
fn a_message_that_came_back_too_often_is_told() {
    let broker = Broker::start();
    let (mut client, channel) = broker.channel();
    let mut arguments = Table::new();
    arguments.push("x-queue-type", "quorum");
    arguments.push("x-delivery-limit", Value::I32(1));
    let durable = QueueDeclare { durable: true, arguments, ..QueueDeclare::default() };
    client.queue_declare(channel, "q", &durable).unwrap();
    client.publish(channel, "", "q", b"\x00\x80\x04id-7", b"poison");
    client.flush().unwrap();
    for _ in 0..2 {
        let mut got = None;
        while got.is_none() {
            got = client.get(channel, "q", false).unwrap();
        }
        client.nack(channel, got.unwrap().delivery_tag, false, true);
    }
    client.flush().unwrap();
    let told = broker.log.wait_for("dropped at its delivery limit of 1");
    let published = "published to exchange '' with routing key 'q', message_id 'id-7'";
    has_all(&told, &["WARN queue 'q' in vhost '/': message ", published]);
}

/// `basic.nack` has no reason; the log and the metrics do.
#[test]
fn why_a_publisher_is_nacked_is_told() {
    let broker = Broker::start();
    let (mut client, channel) = broker.channel();
    client.confirm_select(channel).unwrap();
    let mut arguments = Table::new();
    arguments.push("x-max-length", Value::I32(1));
    arguments.push("x-overflow", "reject-publish");
    let full = QueueDeclare { arguments, ..QueueDeclare::default() };
    client.queue_declare(channel, "full", &full).unwrap();
    for _ in 0..5 {
        client.publish(channel, "", "full", &[0, 0], b"x");
    }
    client.flush().unwrap();
    let told = broker.log.wait_for("publishers are nacked");
    has_all(&told, &["WARN queue 'full' in vhost '/': ", "it is full", "reason=\"full\""]);
    let mut nacked = 0;
    while nacked < 5 {
        match client.next_event().unwrap() {
            // One may be for several.
            Some(Event::Method { method: Method::BasicNack(nack), .. }) => {
                nacked = nack.delivery_tag;
            }
            Some(_) => {}
            None => assert!(client.wait(PATIENCE).unwrap(), "no nack comes"),
        }
    }
    broker.log.once("publishers are nacked");
    wait_until(PATIENCE, "the metrics count them", || {
        let page = fetch(broker.listens("metrics"), "/metrics").1;
        page.contains("leveret_nacks_total{reason=\"full\"} 4")
    });
}

#[test]
fn a_client_in_a_loop_is_told_in_few_lines() {
    const LOOPS: usize = 300;
    let broker = Broker::start();
    let mut client = broker.connect();
    for n in 0..LOOPS {
        let channel = client.open_channel().unwrap();
        let missing = QueueDeclare { passive: true, ..QueueDeclare::default() };
        client.queue_declare(channel, &format!("q{n}"), &missing).unwrap_err();
        // Each of these says hello and goodbye.
        broker.connect().close().unwrap();
    }
    client.close().unwrap();
    let log = broker.stop_with_log();
    let more_of = |part: &str| -> (usize, u64) {
        let about = log.iter().filter(|line| line.contains(part));
        let (told, written): (Vec<_>, Vec<_>) = about.partition(|it| it.contains("more like it"));
        let counts = told.iter().map(|line| {
            let (before, _) = line.split_once(" more like it from guest@127.0.0.1").unwrap();
            before.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()
        });
        (written.len(), counts.sum())
    };
    for (part, all) in [
        ("Channel error on connection", LOOPS),
        ("authenticated and granted access", LOOPS + 1),
        ("closing AMQP connection (", LOOPS + 1),
    ] {
        let (written, more) = more_of(part);
        assert_eq!(written as u64 + more, all as u64, "{part}: {written} lines, {more} more");
        // As many periods as a slow machine may need.
        assert!(written < all / 2, "{part}: {written} lines");
    }
}

/// Sets a parameter of this name, which is a line of the audit log.
fn set_parameter(broker: &Broker, name: &str) {
    let path = format!("/api/global-parameters/{name}");
    let body = r#"{"value": 1}"#;
    let status = request(broker, "PUT", &path, "Basic Z3Vlc3Q6Z3Vlc3Q=", body).0;
    assert!(matches!(status, 201 | 204), "{status}");
}

/// More lines than may wait, of a few kilobytes each: slashes at the end of a path mean nothing, and are told.
fn chatter(broker: &Broker) {
    let name = format!("x{}", "/".repeat(4000));
    for _ in 0..500 {
        set_parameter(broker, &name);
    }
}

/// A pipe that nobody reads takes no more after a while. Then lines are lost, and nothing else is.
#[test]
fn a_log_that_nobody_reads_stops_nobody() {
    let broker = Broker::start();
    let held = broker.log.hold();
    chatter(&broker);
    let (mut client, channel) = broker.channel();
    declare(&mut client, channel, "q");
    client.close().unwrap();
    drop(held);
    wait_until(PATIENCE, "it is read again", || {
        set_parameter(&broker, "last");
        !broker.log.with("/last").is_empty()
    });
    let told = broker.log.wait_for("lines of the log were not written to the console");
    assert!(told.contains("WARN") && told.contains("lost="), "{told}");
}

/// The disk of the log hangs: clients come, publish and go, and the node stops in good order.
#[test]
fn a_log_whose_disk_hangs_stops_nobody() {
    let shim = Shim::new();
    let mut broker = shim.with(&["log.file=x.log"]);
    let file = broker.dir.path().join("log/x.log");
    let read = || std::fs::read_to_string(&file).unwrap();
    wait_until(PATIENCE, "the file has it", || read().contains(" is ready"));
    shim.set("hold_log=1");
    let (mut client, channel) = broker.channel();
    client.confirm_select(channel).unwrap();
    let how = QueueDeclare { durable: true, ..QueueDeclare::default() };
    client.queue_declare(channel, "q", &how).unwrap();
    client.publish(channel, "", "q", &[0, 0], b"x");
    client.flush().unwrap();
    assert!(client.wait(PATIENCE).unwrap(), "it is confirmed");
    client.close().unwrap();
    // There is room for it behind the lines that wait. It is not made up for later.
    assert!(broker.refused(&["rotate_logs"], 69).contains("takes too long"));
    chatter(&broker);
    // The other output tells.
    let told = broker.log.wait_for("lines of the log were not written to");
    assert!(told.contains("x.log: it was too slow") && told.contains("lost="), "{told}");
    assert!(!read().contains("authenticated and granted access"));
    shim.set("");
    wait_until(PATIENCE, "the file tells, too", || {
        read().contains("lines of the log were not written to")
    });
    let text = read();
    assert!(text.contains("authenticated and granted access"), "what fitted is there");
    assert!(text.lines().all(|line| line.starts_with("20")), "whole lines");
    shim.set("hold_log=1");
    broker.signal(Signal::TERM);
    assert!(broker.ended(PATIENCE).success());
}

/// The tenths of long work that the log has: done, and of how many.
fn tenths(broker: &Broker, what: &str) -> Vec<(u64, u64)> {
    let lines = broker.log.with(&format!("{what}: "));
    let tenth = |line: &String| {
        has_all(line, &[" INFO ", "user=\"rmq-cli\""]);
        let (_, told) = line.split_once(&format!("{what}: ")).unwrap();
        let mut numbers =
            told.split(|c: char| !c.is_ascii_digit()).filter_map(|it| it.parse().ok());
        (numbers.next().unwrap(), numbers.next().unwrap())
    };
    lines.iter().map(tenth).collect()
}

#[test]
fn long_work_tells_how_far_it_is() {
    const QUEUES: u64 = 5_000;
    let broker = Broker::start();
    let queue = |number: u64| json!({"name": format!("q{number}"), "vhost": "v", "durable": true, "auto_delete": false, "arguments": {}});
    let queues: Vec<_> = (0..QUEUES).map(queue).collect();
    let definitions = json!({"vhosts": [{"name": "v"}], "queues": queues}).to_string();
    let file = broker.dir.path().join("definitions.json");
    std::fs::write(&file, definitions).unwrap();
    broker.told(&["import_definitions", file.to_str().unwrap()]);
    broker.told(&["delete_vhost", "v"]);
    for (what, total) in [("import of definitions", QUEUES + 1), ("deletion of a vhost", QUEUES)] {
        wait_until(PATIENCE, what, || tenths(&broker, what).len() >= 2);
        let told = tenths(&broker, what);
        assert!(told.len() <= 10, "{what}: {told:?}");
        assert!(told.is_sorted_by(|one, next| one.0 < next.0), "{what}: {told:?}");
        assert!(told.iter().all(|&(done, of)| done < of && of == total), "{what}: {told:?}");
    }
    broker.assert_quiet();
}
