//! What happens, told over AMQP to whoever binds to the event exchange.

use leveret_client::amqp::content::RawProperties;
use leveret_client::amqp::table::{Table, Value};
use leveret_client::{Connection, QueueDeclare};

use crate::broker::{Broker, PATIENCE, declare, wait_until};

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
