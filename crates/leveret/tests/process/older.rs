//! Data directories that earlier versions left: each is opened, and all is there.
//!
//! `tests/data/VERSION` is a directory as that version left it when it was stopped, and `VERSION.json` its
//! definitions. Each version adds its own: the first run of these tests writes it, and fails until it is kept.
//!
//! All of them hold the same, so that one test reads them all. What is new goes into a directory of its own, with a
//! test of its own.

use std::fs;
use std::path::{Path, PathBuf};

use leveret_client::amqp::content::Properties;
use leveret_client::amqp::table::{Table, Value};
use leveret_client::{Connection, ExchangeDeclare, QueueDeclare};

use crate::broker::{Broker, leveret, wait_until};
use crate::restart::{durable, headers, pairs, persistent, store, take_all, text};

const SETTINGS: [&str; 1] = ["shards=2"];

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// Copies the files of a directory, and those below it.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => copy(&entry.path(), &to),
            kind if kind.is_file() => _ = fs::copy(entry.path(), to).unwrap(),
            _ => {}
        }
    }
}

/// A body of several frames.
fn large() -> String {
    "large body ".repeat(1000)
}

/// What every directory holds.
fn fill(broker: &Broker) {
    broker.told(&["add_user", "older", "kept secret"]);
    broker.told(&["set_user_tags", "older", "monitoring"]);
    broker.told(&["add_vhost", "other"]);
    broker.told(&["set_permissions", "-p", "other", "older", "^a", "^b", "^c"]);
    broker.told(&["set_policy", "--apply-to", "queues", "limits", "^lim", r#"{"max-length":2}"#]);
    let (mut client, channel) = broker.channel();
    let declare = |client: &mut Connection, queue: &str, arguments: &[(&str, Value)]| {
        client.queue_declare(channel, queue, &durable(arguments)).unwrap();
    };
    declare(&mut client, "plain", &[]);
    declare(&mut client, "priority", &[("x-max-priority", Value::I32(5))]);
    declare(&mut client, "quorum", &[("x-queue-type", text("quorum"))]);
    declare(&mut client, "dead", &[]);
    let dead = [("x-dead-letter-exchange", text("")), ("x-dead-letter-routing-key", text("dead"))];
    declare(&mut client, "rejects", &dead);
    declare(&mut client, "limited", &[]);
    declare(&mut client, "fan-1", &[]);
    declare(&mut client, "fan-2", &[]);
    client.queue_declare(channel, "transient", &QueueDeclare::default()).unwrap();
    let exchange = ExchangeDeclare { durable: true, ..ExchangeDeclare::default() };
    client.exchange_declare(channel, "topic", "topic", &exchange).unwrap();
    client.exchange_declare(channel, "by-headers", "headers", &exchange).unwrap();
    for queue in ["fan-1", "fan-2"] {
        client.queue_bind(channel, queue, "topic", "fan.#", &Table::default()).unwrap();
    }
    let mut matches = Table::default();
    matches.set("x-match", text("all"));
    matches.set("kind", text("a"));
    client.queue_bind(channel, "plain", "by-headers", "", &matches).unwrap();

    store(&mut client, "plain", ["a", "b", "c", "d"].map(|body| (persistent(), body)));
    let with = |priority| Properties { priority: Some(priority), ..persistent() };
    let mixed = [(1, "low"), (5, "high"), (5, "high too"), (0, "none")];
    store(&mut client, "priority", mixed.map(|(priority, body)| (with(priority), body)));
    let mut own = Table::default();
    own.set("mine", Value::I64(-7));
    let marked = Properties { message_id: Some("id".into()), headers: Some(own), ..persistent() };
    store(&mut client, "quorum", [(marked, "counted")]);
    store(&mut client, "rejects", [(persistent(), "rejected"), (persistent(), "stays")]);
    store(&mut client, "limited", ["1", "2", "3"].map(|body| (persistent(), body)));
    store(&mut client, "transient", [(persistent(), "gone")]);
    store(&mut client, "dead", [(persistent(), &*large())]);
    client.tx_select(channel).unwrap();
    client.publish(channel, "topic", "fan.out", &persistent().to_bytes(), b"both");
    client.tx_commit(channel).unwrap();
    client.close_channel(channel).unwrap();

    let channel = client.open_channel().unwrap();
    let mut get = |queue: &str| client.get(channel, queue, false).unwrap().unwrap().delivery_tag;
    // One is acked, one comes back, one is out when the broker stops.
    let [first, second, _third] = [get("plain"), get("plain"), get("plain")];
    let (counted, rejected, fanned) = (get("quorum"), get("rejects"), get("fan-1"));
    client.ack(channel, first, false);
    client.ack(channel, fanned, false);
    client.nack(channel, second, false, true);
    client.nack(channel, counted, false, true);
    client.reject(channel, rejected, false);
    client.flush().unwrap();
    let passive = QueueDeclare { passive: true, ..QueueDeclare::default() };
    wait_until(crate::broker::PATIENCE, "the rejected message is in its new queue", || {
        client.queue_declare(channel, "dead", &passive).unwrap().message_count == 2
    });
    client.close().unwrap();
}

/// Whether all that was then is now.
fn has(now: &serde_json::Value, then: &serde_json::Value) -> bool {
    use serde_json::Value::{Array, Object};
    match (now, then) {
        (Object(now), Object(then)) => {
            then.iter().all(|(key, then)| now.get(key).is_some_and(|now| has(now, then)))
        }
        (Array(now), Array(then)) => then.iter().all(|then| now.iter().any(|now| has(now, then))),
        _ => now == then,
    }
}

fn definitions(broker: &Broker) -> serde_json::Value {
    let mut all: serde_json::Value =
        serde_json::from_str(&broker.told(&["export_definitions", "-"])).unwrap();
    // All but who wrote it, and what ends with the process.
    let object = all.as_object_mut().unwrap();
    object.retain(|_, part| part.is_array());
    for part in object.values_mut() {
        part.as_array_mut().unwrap().retain(|one| one["durable"] != false);
    }
    all
}

/// Takes all messages out, and tells whether they are those of [`fill`]. After a kill nobody knows what
/// was delivered.
fn check(broker: &Broker, is_clean: bool) {
    let (mut client, channel) = broker.channel();
    let seen = |seen: bool| seen || !is_clean;
    let mut check = |queue: &str, want: &[(&str, bool)]| {
        let want: Vec<_> = want.iter().map(|&(body, was)| (body, seen(was))).collect();
        assert_eq!(take_all(&mut client, channel, queue), pairs(&want), "{queue}");
    };
    check("plain", &[("b", true), ("c", true), ("d", false)]);
    check("priority", &[("high", false), ("high too", false), ("low", false), ("none", false)]);
    check("rejects", &[("stays", false)]);
    check("limited", &[("2", false), ("3", false)]);
    check("fan-1", &[]);
    check("fan-2", &[("both", false)]);
    let got = client.get(channel, "quorum", true).unwrap().unwrap();
    assert_eq!((&*got.body, got.redelivered), (&b"counted"[..], true));
    let kept = headers(&got);
    assert_eq!(kept.get("mine"), Some(&Value::I64(-7)));
    assert_eq!(kept.get("x-delivery-count"), Some(&Value::I64(1)));
    let got = client.get(channel, "dead", true).unwrap().unwrap();
    assert_eq!(String::from_utf8(got.body), Ok(large()));
    let got = client.get(channel, "dead", true).unwrap().unwrap();
    assert_eq!(got.body, b"rejected");
    let kept = headers(&got);
    assert_eq!(kept.get("x-first-death-reason"), Some(&text("rejected")));
    assert!(matches!(kept.get("x-death"), Some(Value::Array(deaths)) if deaths.len() == 1));
    assert!(client.get(channel, "dead", true).unwrap().is_none());
    assert_eq!(broker.told(&["-s", "list_queues", "-p", "/", "name"]).lines().count(), 8);
    broker.told(&["authenticate_user", "older", "kept secret"]);
}

#[test]
fn what_earlier_versions_left_is_all_there() {
    let mut versions = 0;
    for entry in fs::read_dir(data()).unwrap() {
        let left = entry.unwrap().path();
        if !left.is_dir() {
            continue;
        }
        versions += 1;
        let file = fs::read_to_string(left.with_added_extension("json")).unwrap();
        let then: serde_json::Value = serde_json::from_str(&file).unwrap();
        for is_clean in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            copy(&left, dir.path());
            if !is_clean {
                fs::remove_file(dir.path().join("clean")).unwrap();
            }
            let broker = Broker::spawn(leveret(&["serve", "--listen", "127.0.0.1:0"]), dir);
            broker.assert_quiet();
            let now = definitions(&broker);
            assert!(has(&now, &then), "{}: {now:#} lacks some of {then:#}", left.display());
            check(&broker, is_clean);
        }
    }
    assert!(versions > 0, "none in {}", data().display());
}

#[test]
fn the_directory_of_this_version_is_kept() {
    let left = data().join(env!("CARGO_PKG_VERSION"));
    if left.exists() {
        return;
    }
    let broker = Broker::with(&SETTINGS);
    fill(&broker);
    let definitions = definitions(&broker);
    let down = broker.stop();
    copy(down.dir.path(), &left);
    let text = serde_json::to_string_pretty(&definitions).unwrap() + "\n";
    fs::write(left.with_added_extension("json"), text).unwrap();
    panic!("{} is written: keep it with the sources", left.display());
}
