//! A clean stop and a start: everything durable is as it was, to the flag; nothing else is there.

use std::time::{Duration, Instant};

use leveret_client::amqp::content::{Properties, RawProperties};
use leveret_client::amqp::table::{Table, Value};
use leveret_client::{Connection, ExchangeDeclare, Got, QueueDeclare};

use crate::broker::{Broker, PATIENCE, wait_for_ack, wait_until};

pub(crate) fn text(text: &str) -> Value {
    Value::LongStr(text.as_bytes().to_vec())
}

pub(crate) fn durable(arguments: &[(&str, Value)]) -> QueueDeclare {
    let mut how = QueueDeclare { durable: true, ..QueueDeclare::default() };
    arguments.iter().for_each(|(key, value)| how.arguments.set(key, value.clone()));
    how
}

pub(crate) fn persistent() -> Properties {
    Properties { delivery_mode: Some(2), ..Properties::default() }
}

/// Publishes to a queue in a transaction: it is on the disk afterwards.
pub(crate) fn store<'a>(
    client: &mut Connection,
    queue: &str,
    messages: impl IntoIterator<Item = (Properties, &'a str)>,
) {
    let channel = client.open_channel().unwrap();
    client.tx_select(channel).unwrap();
    for (properties, body) in messages {
        client.publish(channel, "", queue, &properties.to_bytes(), body.as_bytes());
    }
    client.tx_commit(channel).unwrap();
    client.close_channel(channel).unwrap();
}

/// Takes all that a queue has: bodies and whether they were delivered before.
pub(crate) fn take_all(client: &mut Connection, channel: u16, queue: &str) -> Vec<(String, bool)> {
    let mut all = Vec::new();
    while let Some(got) = client.get(channel, queue, true).unwrap() {
        all.push((String::from_utf8(got.body).unwrap(), got.redelivered));
    }
    all
}

pub(crate) fn headers(got: &Got) -> Table {
    let properties = RawProperties::new(&got.properties).to_owned().unwrap();
    properties.headers.unwrap_or_default()
}

pub(crate) fn pairs(expected: &[(&str, bool)]) -> Vec<(String, bool)> {
    expected.iter().map(|(body, redelivered)| ((*body).to_owned(), *redelivered)).collect()
}

/// A queue without messages is there, is counted, and expires when nobody uses it.
#[test]
fn empty_queues_survive() {
    let broker = Broker::with(&["shards=2"]);
    let (mut client, channel) = broker.channel();
    let expires = durable(&[("x-expires", Value::I32(1500))]);
    for (name, how) in [("a", durable(&[])), ("b", durable(&[])), ("short", expires)] {
        client.queue_declare(channel, name, &how).unwrap();
    }
    drop(client);
    let broker = broker.stop().start_again();
    let listed = broker.told(&["list_queues", "name", "messages", "consumers"]);
    assert!(listed.contains("a\t0\t0\n") && listed.contains("b\t0\t0\n"), "{listed}");
    wait_until(PATIENCE, "the one that nobody uses has expired", || {
        !broker.told(&["list_queues", "name"]).contains("short")
    });
    broker.assert_quiet();
}

#[test]
fn order_priorities_and_flags_survive_a_clean_stop() {
    let broker = Broker::with(&["shards=2"]);
    let (mut client, channel) = broker.channel();
    client.queue_declare(channel, "plain", &durable(&[])).unwrap();
    let priorities = durable(&[("x-max-priority", Value::I32(5))]);
    client.queue_declare(channel, "priority", &priorities).unwrap();
    store(&mut client, "plain", ["a", "b", "c", "d", "e"].map(|body| (persistent(), body)));
    let with = |priority| Properties { priority: Some(priority), ..persistent() };
    let mixed = [(1, "low"), (5, "high"), (3, "mid"), (5, "high too"), (0, "none")];
    store(&mut client, "priority", mixed.map(|(priority, body)| (with(priority), body)));
    // One is acked, one comes back, one is out at the stop.
    let first = client.get(channel, "plain", false).unwrap().unwrap();
    client.ack(channel, first.delivery_tag, false);
    let second = client.get(channel, "plain", false).unwrap().unwrap();
    let third = client.get(channel, "plain", false).unwrap().unwrap();
    client.nack(channel, second.delivery_tag, false, true);
    assert_eq!(client.get(channel, "priority", false).unwrap().unwrap().body, b"high");
    assert_eq!(third.body, b"c");
    client.close().unwrap();

    // Twice: what is not touched stays as it is.
    let broker = broker.stop().start_again();
    let broker = broker.stop().start_again();
    broker.assert_quiet();
    let (mut client, channel) = broker.channel();
    let plain = pairs(&[("b", true), ("c", true), ("d", false), ("e", false)]);
    assert_eq!(take_all(&mut client, channel, "plain"), plain);
    let by_priority = pairs(&[
        ("high", true),
        ("high too", false),
        ("mid", false),
        ("low", false),
        ("none", false),
    ]);
    assert_eq!(take_all(&mut client, channel, "priority"), by_priority);
}

/// Rules that wait for a consumer in place of the disk lose nothing by a stop.
#[test]
fn what_waits_for_its_ack_survives_a_clean_stop() {
    let broker = Broker::with(&["shards=2"]);
    let (mut client, channel) = broker.channel();
    client.confirm_select(channel).unwrap();
    let rules = ["ack", "ack-lean"];
    for rule in rules {
        let ten_minutes = Value::I32(600_000);
        let how = durable(&[("x-confirm-on", text(rule)), ("x-confirm-defer", ten_minutes)]);
        client.queue_declare(channel, rule, &how).unwrap();
        client.publish(channel, "", rule, &persistent().to_bytes(), b"kept");
        client.publish(channel, "", rule, &Properties::default().to_bytes(), b"not kept");
    }
    client.close().unwrap();
    let broker = broker.stop().start_again();
    let (mut client, channel) = broker.channel();
    for rule in rules {
        assert_eq!(take_all(&mut client, channel, rule), pairs(&[("kept", false)]), "{rule}");
    }
}

/// Those who wait for a consumer are told when a policy says that the disk is enough: it has the message by then.
#[test]
fn what_a_changed_rule_confirms_survives_a_kill() {
    let broker = Broker::with(&["shards=2"]);
    let (mut client, channel) = broker.channel();
    client.confirm_select(channel).unwrap();
    let rule = |rule: &str| {
        broker.told(&["set_policy", "rule", "^q$", &format!(r#"{{"confirm-on": "{rule}"}}"#)]);
    };
    rule("ack");
    client.queue_declare(channel, "q", &durable(&[])).unwrap();
    client.publish(channel, "", "q", &persistent().to_bytes(), b"first");
    client.publish(channel, "", "q", &persistent().to_bytes(), b"second");
    // Both are in the queue by now.
    client.queue_declare(channel, "q", &durable(&[])).unwrap();
    rule("enqueue");
    wait_for_ack(&mut client);
    let broker = broker.kill().start_again();
    let (mut client, channel) = broker.channel();
    let want = pairs(&[("first", true), ("second", true)]);
    assert_eq!(take_all(&mut client, channel, "q"), want);
}

#[test]
fn a_paused_queue_stays_paused() {
    let broker = Broker::start();
    let (mut client, channel) = broker.channel();
    client.queue_declare(channel, "q", &durable(&[])).unwrap();
    store(&mut client, "q", [(persistent(), "a")]);
    broker.told(&["pause_queue", "q"]);
    assert!(client.get(channel, "q", true).unwrap().is_none());
    let broker = broker.stop().start_again().kill().start_again();
    assert_eq!(broker.told(&["-s", "list_queues", "name", "messages", "state"]), "q\t1\tpaused\n");
    let (mut client, channel) = broker.channel();
    assert!(client.get(channel, "q", true).unwrap().is_none());
    broker.told(&["resume_queue", "q"]);
    assert_eq!(take_all(&mut client, channel, "q").len(), 1);
    broker.refused(&["pause_queue", "none"], 65);
}

#[test]
fn after_a_kill_everything_is_marked_redelivered() {
    let broker = Broker::start();
    let (mut client, channel) = broker.channel();
    client.queue_declare(channel, "q", &durable(&[])).unwrap();
    store(&mut client, "q", ["a", "b"].map(|body| (persistent(), body)));
    let broker = broker.kill().start_again();
    let (mut client, channel) = broker.channel();
    assert_eq!(take_all(&mut client, channel, "q"), pairs(&[("a", true), ("b", true)]));
}

/// What a kill made uncertain stays so over later stops. That is noted once, not for each message of a backlog: a stop
/// would take long, and so would every start from then on.
#[test]
fn after_a_kill_stops_are_as_cheap_as_before() {
    let count = 50_000;
    let broker = Broker::with(&["shards=2"]);
    let (mut client, channel) = broker.channel();
    client.queue_declare(channel, "q", &durable(&[])).unwrap();
    client.queue_declare(channel, "other", &durable(&[])).unwrap();
    store(&mut client, "q", (0..count).map(|_| (persistent(), "old")));
    let broker = broker.kill().start_again();
    let mut client = broker.connect();
    store(&mut client, "q", [(persistent(), "new")]);
    store(&mut client, "other", [(persistent(), "new")]);
    client.close().unwrap();
    let before = stored_bytes(broker.dir.path());
    let mut broker = broker.stop().start_again();
    for _ in 0..2 {
        let after = stored_bytes(broker.dir.path());
        assert!(after < before + count, "{before} and {after} bytes");
        broker = broker.stop().start_again();
    }
    let (mut client, channel) = broker.channel();
    let q = take_all(&mut client, channel, "q");
    let old = vec![("old".to_owned(), true); count as usize];
    assert!(q[..count as usize] == old[..]);
    assert_eq!(q[count as usize..], pairs(&[("new", false)]));
    assert_eq!(take_all(&mut client, channel, "other"), pairs(&[("new", false)]));
}

/// Bytes of the files of messages.
fn stored_bytes(dir: &std::path::Path) -> u64 {
    let logs = std::fs::read_dir(dir.join("shards")).unwrap();
    let files = logs.flat_map(|log| std::fs::read_dir(log.unwrap().path()).unwrap());
    files.map(|file| file.unwrap().metadata().unwrap().len()).sum()
}

#[test]
fn delivery_counts_of_quorum_queues_survive_a_clean_stop() {
    let broker = Broker::start();
    let (mut client, channel) = broker.channel();
    let quorum = durable(&[("x-queue-type", text("quorum"))]);
    client.queue_declare(channel, "q", &quorum).unwrap();
    store(&mut client, "q", [(persistent(), "m")]);
    for _ in 0..3 {
        let got = client.get(channel, "q", false).unwrap().unwrap();
        client.nack(channel, got.delivery_tag, false, true);
    }
    client.close().unwrap();
    let broker = broker.stop().start_again();
    let (mut client, channel) = broker.channel();
    let got = client.get(channel, "q", false).unwrap().unwrap();
    assert!(got.redelivered);
    assert_eq!(headers(&got).get("x-delivery-count"), Some(&Value::I64(3)));
}

/// A message that kills whoever takes it must not come for ever: what it came back is on the disk soon, whatever
/// else happens.
#[test]
fn delivery_counts_of_quorum_queues_survive_a_kill() {
    let broker = Broker::start();
    let (mut client, channel) = broker.channel();
    let quorum = durable(&[("x-queue-type", text("quorum"))]);
    client.queue_declare(channel, "q", &quorum).unwrap();
    store(&mut client, "q", [(persistent(), "m")]);
    let stored = || stored_bytes(broker.dir.path());
    let before = stored();
    let got = client.get(channel, "q", false).unwrap().unwrap();
    client.nack(channel, got.delivery_tag, false, true);
    client.flush().unwrap();
    wait_until(PATIENCE, "the count is on the disk", || stored() > before);
    let broker = broker.kill().start_again();
    let (mut client, channel) = broker.channel();
    let got = client.get(channel, "q", false).unwrap().unwrap();
    assert_eq!(headers(&got).get("x-delivery-count"), Some(&Value::I64(1)));
}

/// Declares `q` with these arguments, whose dead letters go to `dead`.
fn with_graveyard(client: &mut Connection, channel: u16, arguments: &[(&str, Value)]) {
    let mut all = arguments.to_vec();
    all.push(("x-dead-letter-exchange", text("")));
    all.push(("x-dead-letter-routing-key", text("dead")));
    client.queue_declare(channel, "q", &durable(&all)).unwrap();
    client.queue_declare(channel, "dead", &durable(&[])).unwrap();
}

#[test]
fn what_is_left_of_a_time_to_live_survives_a_stop_and_a_kill() {
    let ttl = Duration::from_secs(3);
    for kill in [false, true] {
        let broker = Broker::start();
        let (mut client, channel) = broker.channel();
        with_graveyard(&mut client, channel, &[]);
        let expires = |ttl: Duration| {
            let expiration = Some(ttl.as_millis().to_string());
            Properties { expiration, ..persistent() }
        };
        let published = Instant::now();
        store(&mut client, "q", [(expires(ttl / 2), "clock"), (expires(ttl), "late")]);
        let dead = |client: &mut Connection, channel| client.get(channel, "dead", true).unwrap();
        wait_until(PATIENCE, "half of the time is over", || {
            dead(&mut client, channel).is_some_and(|got| got.body == b"clock")
        });
        client.close().unwrap();
        let down = if kill { broker.kill() } else { broker.stop() };
        let broker = down.start_again();
        let started = Instant::now();
        let (mut client, channel) = broker.channel();
        wait_until(PATIENCE, "all of it is over", || {
            dead(&mut client, channel).is_some_and(|got| got.body == b"late")
        });
        assert!(published.elapsed() >= ttl, "too early: {:?}", published.elapsed());
        let counted_again = started.elapsed() >= ttl;
        assert!(!counted_again, "{:?} after the start, kill: {kill}", started.elapsed());
    }
}

#[test]
fn the_history_of_a_dead_letter_survives() {
    let broker = Broker::start();
    let (mut client, channel) = broker.channel();
    with_graveyard(&mut client, channel, &[("x-message-ttl", Value::I32(0))]);
    store(&mut client, "q", [(persistent(), "m")]);
    let mut before = None;
    wait_until(PATIENCE, "it is dead", || {
        before = client.get(channel, "dead", false).unwrap();
        before.is_some()
    });
    let before = headers(&before.unwrap());
    let Some(Value::Array(deaths)) = before.get("x-death") else { panic!("{before:?}") };
    let Some(Value::Table(death)) = deaths.first() else { panic!("{deaths:?}") };
    assert_eq!(death.get("reason"), Some(&text("expired")));
    assert_eq!(death.get("count"), Some(&Value::I64(1)));
    client.close().unwrap();
    let broker = broker.stop().start_again();
    let broker = broker.kill().start_again();
    let (mut client, channel) = broker.channel();
    assert_eq!(headers(&client.get(channel, "dead", true).unwrap().unwrap()), before);
}

/// At least once: it waits for a target, over a restart too, and then its record is on disk only.
#[test]
fn a_dead_letter_without_a_target_finds_one_after_a_restart() {
    let broker = Broker::start();
    let (mut client, channel) = broker.channel();
    let exchange = ExchangeDeclare { durable: true, ..ExchangeDeclare::default() };
    client.exchange_declare(channel, "graves", "fanout", &exchange).unwrap();
    let safe = durable(&[
        ("x-queue-type", text("quorum")),
        ("x-message-ttl", Value::I32(0)),
        ("x-overflow", text("reject-publish")),
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-dead-letter-exchange", text("graves")),
    ]);
    client.queue_declare(channel, "q", &safe).unwrap();
    store(&mut client, "q", [(persistent(), "m")]);
    let broker = broker.kill().start_again();
    let (mut client, channel) = broker.channel();
    wait_until(PATIENCE, "it has left the queue and waits for a target", || {
        broker.json(&["list_queues", "name", "messages_ready"])[0]["messages_ready"] == 0
    });
    client.queue_declare(channel, "dead", &durable(&[])).unwrap();
    client.queue_bind(channel, "dead", "graves", "", &Table::default()).unwrap();
    wait_until(PATIENCE, "it arrives", || {
        client.get(channel, "dead", true).unwrap().is_some_and(|got| got.body == b"m")
    });
}

#[test]
fn what_is_not_durable_is_gone() {
    for kill in [false, true] {
        let broker = Broker::start();
        let (mut client, channel) = broker.channel();
        client.queue_declare(channel, "durable", &durable(&[])).unwrap();
        let transient = QueueDeclare { auto_delete: true, ..QueueDeclare::default() };
        client.queue_declare(channel, "transient", &transient).unwrap();
        let exclusive = QueueDeclare { exclusive: true, ..durable(&[]) };
        client.queue_declare(channel, "exclusive", &exclusive).unwrap();
        client.exchange_declare(channel, "passing", "fanout", &ExchangeDeclare::default()).unwrap();
        let none = Table::default();
        client.queue_bind(channel, "durable", "passing", "", &none).unwrap();
        client.queue_bind(channel, "transient", "amq.topic", "#", &none).unwrap();
        for queue in ["durable", "transient", "exclusive"] {
            let passing = (Properties::default(), "passing");
            store(&mut client, queue, [(persistent(), "kept"), passing]);
        }
        drop(client);
        let down = if kill { broker.kill() } else { broker.stop() };
        let broker = down.start_again();
        assert_eq!(broker.told(&["-s", "list_queues", "name", "messages"]), "durable\t1\n");
        assert!(!broker.told(&["-s", "list_exchanges"]).contains("passing"));
        let bindings = broker.told(&["-s", "list_bindings", "source_name"]);
        assert!(!bindings.contains("passing") && !bindings.contains("amq.topic"), "{bindings}");
        let (mut client, channel) = broker.channel();
        assert_eq!(take_all(&mut client, channel, "durable"), pairs(&[("kept", kill)]));
    }
}

/// A build without optimization on a machine that does other things.
const STOP_MAX: Duration = Duration::from_secs(5);

#[test]
fn a_stop_with_much_stored_is_quick() {
    let broker = Broker::start();
    let (mut client, channel) = broker.channel();
    client.queue_declare(channel, "q", &durable(&[])).unwrap();
    store(&mut client, "q", (0..100_000).map(|_| (persistent(), "some message")));
    client.close().unwrap();
    let began = Instant::now();
    let down = broker.stop();
    assert!(began.elapsed() < STOP_MAX, "{:?}", began.elapsed());
    let broker = down.start_again();
    let listed = broker.told(&["-s", "list_queues", "name", "messages"]);
    assert_eq!(listed, "q\t100000\n");
}
