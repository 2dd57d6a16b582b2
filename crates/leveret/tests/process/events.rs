//! What happens, told over AMQP to whoever binds to the event exchange.

use leveret_client::amqp::content::{Properties, RawProperties};
use leveret_client::amqp::table::{Table, Value};
use leveret_client::{Connection, Consume, QueueDeclare};
use rustix::process::Signal;

use crate::auth::request;
use crate::broker::{Broker, PATIENCE, declare, wait_until};
use crate::shim::Shim;

/// `guest:guest`.
const GUEST: &str = "Basic Z3Vlc3Q6Z3Vlc3Q=";

/// The next event: its routing key and one of its headers.
#[track_caller]
fn next(client: &mut Connection, channel: u16, header: &str) -> (String, String) {
    let mut found = None;
    wait_until(PATIENCE, "an event comes", || {
        found = client.get(channel, "ev", true).unwrap();
        found.is_some()
    });
    let got = found.unwrap();
    let headers = RawProperties::new(&got.properties).to_owned().unwrap().headers.unwrap();
    let value = headers.get(header).and_then(Value::as_str).unwrap_or_default();
    (got.routing_key, value.to_owned())
}

#[test]
fn alarms_and_the_tools_are_told() {
    let broker = Broker::start();
    let (mut client, channel) = broker.channel();
    declare(&mut client, channel, "ev");
    for key in ["alarm.*", "policy.#", "user.created"] {
        client.queue_bind(channel, "ev", "amq.rabbitmq.event", key, &Table::new()).unwrap();
    }
    declare(&mut client, channel, "nobody is told of this one");
    broker.told(&["set_vm_memory_high_watermark", "absolute", "1"]);
    assert_eq!(next(&mut client, channel, "source"), ("alarm.set".into(), "memory".into()));
    broker.told(&["set_vm_memory_high_watermark", "absolute", "1GB"]);
    assert_eq!(next(&mut client, channel, "source"), ("alarm.cleared".into(), "memory".into()));
    broker.told(&["set_policy", "p", "^q", r#"{"max-length":5}"#]);
    let by = "user_who_performed_action";
    assert_eq!(next(&mut client, channel, by), ("policy.set".into(), "rmq-cli".into()));
    broker.told(&["add_user", "eve", "secret"]);
    assert_eq!(next(&mut client, channel, "name"), ("user.created".into(), "eve".into()));
    assert!(client.get(channel, "ev", true).unwrap().is_none());
}

/// A watermark that is reached from the start on is told before anybody connects, and the queue that it is told to goes on.
#[test]
fn an_alarm_of_the_start_is_told() {
    let broker = Broker::start();
    let (mut client, channel) = broker.channel();
    let durable = QueueDeclare { durable: true, ..QueueDeclare::default() };
    client.queue_declare(channel, "ev", &durable).unwrap();
    client.queue_bind(channel, "ev", "amq.rabbitmq.event", "alarm.*", &Table::new()).unwrap();
    let mut down = broker.stop();
    down.set("vm_memory_high_watermark.absolute=1");
    let broker = down.start_again();
    let (mut client, channel) = broker.channel();
    assert_eq!(next(&mut client, channel, "source"), ("alarm.set".into(), "memory".into()));
}

/// Definitions of the first start may bind to the exchange before the broker has told anything.
#[test]
fn definitions_of_the_first_start_bind_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("definitions.json");
    let definitions = r#"{
        "vhosts": [{"name": "/"}],
        "users": [{"name": "guest", "password": "guest", "tags": "administrator"}],
        "permissions": [{"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
        "queues": [{"vhost": "/", "name": "ev", "durable": true, "auto_delete": false, "arguments": {}}],
        "bindings": [{"vhost": "/", "source": "amq.rabbitmq.event", "destination": "ev", "destination_type": "queue",
                      "routing_key": "user.created", "arguments": {}}]}"#;
    std::fs::write(&file, definitions).unwrap();
    let broker = Broker::with(&[&format!("load_definitions={}", file.display())]);
    let (mut client, channel) = broker.channel();
    broker.told(&["add_user", "eve", "secret"]);
    assert_eq!(next(&mut client, channel, "name"), ("user.created".into(), "eve".into()));
}

#[test]
fn bindings_to_it_survive_a_restart_and_nobody_has_to_look() {
    let broker = Broker::with(&["management.enabled=false", "event_exchange.vhost=/"]);
    let (mut client, channel) = broker.channel();
    let durable = QueueDeclare { durable: true, ..QueueDeclare::default() };
    client.queue_declare(channel, "ev", &durable).unwrap();
    client.queue_bind(channel, "ev", "amq.rabbitmq.event", "vhost.*", &Table::new()).unwrap();
    let broker = broker.stop().start_again();
    let (mut client, channel) = broker.channel();
    broker.told(&["add_vhost", "other"]);
    assert_eq!(next(&mut client, channel, "name"), ("vhost.created".into(), "other".into()));
}

/// A copy of a message: routing key, headers, body.
#[track_caller]
fn copied(client: &mut Connection, channel: u16) -> (String, Table, Vec<u8>) {
    let mut found = None;
    wait_until(PATIENCE, "a copy comes", || {
        found = client.get(channel, "tr", true).unwrap();
        found.is_some()
    });
    let got = found.unwrap();
    let properties = RawProperties::new(&got.properties).to_owned().unwrap();
    (got.routing_key, properties.headers.unwrap(), got.body)
}

/// A trace of all that is published, and a thousand messages.
fn trace(broker: &Broker) {
    let asked = r#"{"format":"text","pattern":"publish.#"}"#;
    assert_eq!(request(broker, "PUT", "/api/traces/%2F/t", GUEST, asked).0, 201);
    let (mut client, channel) = broker.channel();
    for _ in 0..1_000 {
        client.publish(channel, "amq.topic", "lost", &[0, 0], b"traced");
    }
    client.flush().unwrap();
    // The copies are on their way to the file: at a stop the queue has none left.
    wait_until(PATIENCE, "the trace has all copies", || {
        let (status, row) = request(broker, "GET", "/api/traces/%2F/t", GUEST, "");
        assert_eq!(status, 200, "{row}");
        let row: serde_json::Value = serde_json::from_str(&row).unwrap();
        row["queue"]["message_stats"]["deliver_no_ack"] == 1_000
    });
}

/// What was traced is in the file after a clean stop.
#[test]
fn a_stop_writes_what_was_traced() {
    let broker = Broker::start();
    trace(&broker);
    let down = broker.stop();
    let file = std::fs::read_to_string(down.dir.path().join("trace/t.log")).unwrap();
    assert_eq!(file.matches("\ntraced\n").count(), 1_000);
}

/// A disk that takes nothing of a trace holds the stop up for seconds, and what it may miss is told.
#[test]
fn a_stop_tells_what_was_not_traced() {
    let shim = Shim::new();
    let mut broker = shim.with(&[]);
    shim.set("hold_log=1");
    trace(&broker);
    broker.signal(Signal::TERM);
    assert!(broker.ended(PATIENCE).success());
    let told = broker.log.wait_for("a trace has ended, and its disk does not answer");
    assert!(told.contains("ERROR") && told.contains("1000 messages may not be"), "{told}");
    assert!(told.contains("written=0") && told.contains("not_written=0"), "{told}");
    assert_eq!(broker.log.with("were cut off"), Vec::<String>::new());
}

/// As RabbitMQ 4.0.5 does it, by the same steps.
#[test]
fn a_traced_vhost_copies_what_is_published_and_delivered() {
    let broker = Broker::start();
    let (mut client, channel) = broker.channel();
    declare(&mut client, channel, "q");
    declare(&mut client, channel, "tr");
    client.queue_bind(channel, "tr", "amq.rabbitmq.trace", "#", &Table::new()).unwrap();
    let mut cc = Table::new();
    cc.push("CC", Value::Array(vec!["q2".into()]));
    let properties = Properties {
        content_type: Some("text/plain".to_owned()),
        delivery_mode: Some(2),
        headers: Some(cc),
        ..Properties::default()
    };
    let properties = properties.to_bytes();
    // Routed before, and so remembered.
    client.publish(channel, "", "q", &properties, b"before");
    declare(&mut client, channel, "q");
    broker.told(&["trace_on"]);
    assert_eq!(broker.json(&["list_vhosts", "name", "tracing"])[0]["tracing"], true);
    let big = vec![b'x'; 300_000];
    client.publish(channel, "", "q", &properties, &big);
    client.publish(channel, "amq.topic", "nowhere", &[0, 0], b"lost");
    client.flush().unwrap();

    let (key, headers, body) = copied(&mut client, channel);
    assert!(key == "publish." && body == big, "{key}: {} bytes", body.len());
    let text =
        |headers: &Table, name: &str| headers.get(name).and_then(Value::as_str).unwrap().to_owned();
    assert_eq!(text(&headers, "exchange_name"), "");
    assert_eq!(text(&headers, "user"), "guest");
    assert_eq!(text(&headers, "vhost"), "/");
    assert!(text(&headers, "connection").ends_with(&format!("-> {}", broker.address)));
    assert_eq!(headers.get("channel"), Some(&Value::I32(1)));
    let names = |names: &[&str]| Value::Array(names.iter().map(|&name| name.into()).collect());
    assert_eq!(headers.get("routing_keys"), Some(&names(&["q", "q2"])));
    assert_eq!(headers.get("routed_queues"), Some(&names(&["q"])));
    let Some(Value::Table(own)) = headers.get("properties") else { panic!("{headers:?}") };
    assert_eq!(own.get("content_type"), Some(&"text/plain".into()));
    assert_eq!(own.get("delivery_mode"), Some(&Value::I32(2)));
    let (key, headers, body) = copied(&mut client, channel);
    assert_eq!((key.as_str(), &body[..]), ("publish.amq.topic", &b"lost"[..]));
    assert_eq!(headers.get("routed_queues"), Some(&names(&[])));

    client.get(channel, "q", true).unwrap().unwrap();
    let (key, headers, body) = copied(&mut client, channel);
    assert_eq!((key.as_str(), &body[..]), ("deliver.q", &b"before"[..]));
    assert_eq!(headers.get("redelivered"), Some(&Value::I32(0)));
    let consume = Consume { no_ack: true, ..Consume::default() };
    client.consume(channel, "q", &consume).unwrap();
    let (key, _, body) = copied(&mut client, channel);
    assert!(key == "deliver.q" && body == big, "{key}: {} bytes", body.len());

    broker.told(&["trace_off"]);
    client.publish(channel, "", "q", &[0, 0], b"after");
    client.flush().unwrap();
    declare(&mut client, channel, "q");
    assert!(client.get(channel, "tr", true).unwrap().is_none());
}
