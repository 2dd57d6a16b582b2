//! `leveret ctl` against a running node: what it shows, what it changes, and with which status it ends.

use leveret_client::{Consume, Error, Options, Uri};
use serde_json::json;

use crate::broker::{Broker, PATIENCE, Publisher, close_reason, declare, wait_until};
use crate::raw::{Raw, hello};

#[test]
fn shows_what_is_there() {
    let broker = Broker::start();
    let mut publisher = Publisher::new(&broker, "q");
    publisher.publish(b"12345", 3);
    let (mut client, channel) = broker.channel();
    client.qos(channel, 2, false).unwrap();
    let how = Consume { consumer_tag: "me", ..Consume::default() };
    client.consume(channel, "q", &how).unwrap();

    let status = broker.json(&["status"]);
    assert_eq!(status["pid"], broker.pid());
    assert_eq!(status["totals"]["connection_count"], 2);
    assert_eq!(status["totals"]["queue_count"], 1);
    assert_eq!(status["listeners"][0]["port"], broker.address.port());
    assert_eq!(status["alarms"], json!([]));

    let columns = ["list_queues", "name", "messages_ready", "messages_unacknowledged", "consumers"];
    let queues = broker.json(&columns);
    let want = json!([{
        "name": "q", "messages_ready": 1, "messages_unacknowledged": 2, "consumers": 1
    }]);
    assert_eq!(queues, want);
    let table = broker.told(&["list_queues", "name", "messages"]);
    assert_eq!(table, "name\tmessages\nq\t3\n");
    assert_eq!(broker.told(&["-s", "list_queues"]), "q\t3\n");

    let connections = broker.json(&["list_connections", "user", "state", "channels"]);
    let one = json!({ "user": "guest", "state": "running", "channels": 1 });
    assert_eq!(connections, json!([one, one]));

    let channels =
        broker.json(&["list_channels", "consumer_count", "messages_unacknowledged", "confirm"]);
    let want = json!([
        { "consumer_count": 0, "messages_unacknowledged": 0, "confirm": true },
        { "consumer_count": 1, "messages_unacknowledged": 2, "confirm": false },
    ]);
    assert_eq!(channels, want);

    let consumers = broker.json(&["list_consumers"]);
    assert_eq!(consumers[0]["queue_name"], "q");
    assert_eq!(consumers[0]["consumer_tag"], "me");
    assert_eq!(consumers[0]["prefetch_count"], 2);
    assert_eq!(consumers[0]["ack_required"], true);
    broker.assert_quiet();
}

#[test]
fn a_policy_takes_effect_on_a_live_queue() {
    let broker = Broker::start();
    let mut publisher = Publisher::new(&broker, "q");
    publisher.publish(b"x", 10);
    let ready = || broker.json(&["list_queues", "messages_ready"])[0]["messages_ready"].clone();
    assert_eq!(ready(), 10);
    broker.told(&["set_policy", "--apply-to", "queues", "short", "^q$", r#"{"max-length": 4}"#]);
    wait_until(PATIENCE, "the queue is cut", || ready() == 4);
    publisher.publish(b"y", 3);
    assert_eq!(ready(), 4);
    assert_eq!(broker.json(&["list_policies"])[0]["name"], "short");
    broker.told(&["clear_policy", "short"]);
    // The answer may come a turn before the queue knows.
    wait_until(PATIENCE, "the queue is long again", || {
        publisher.publish(b"z", 1);
        ready().as_u64() > Some(4)
    });
    broker.refused(&["set_policy", "bad", "^q$", r#"{"max-length": "four"}"#], 69);
    broker.refused(&["set_policy", "bad", "^q$", "no json"], 69);
    broker.refused(&["-p", "nowhere", "set_policy", "bad", "^q$", r#"{"max-length": 4}"#], 65);
    broker.refused(&["clear_policy", "short"], 69);
}

/// Counted exactly however a connection ends: here its client just goes.
#[test]
fn limits_hold_and_end_with_what_they_count() {
    let broker = Broker::with(&["channel_max_per_node=1"]);
    let nobody = || {
        wait_until(PATIENCE, "nobody is connected", || {
            broker.json(&["list_connections", "pid"]).as_array().is_some_and(Vec::is_empty)
        });
    };
    let first = Raw::login(&broker);
    broker.told(&["set_vhost_limits", r#"{"max-connections": 1}"#]);
    refused_with(&broker, "access to vhost '/' refused for user 'guest': connection limit (1)");
    drop(first);
    nobody();
    let second = Raw::login(&broker);
    broker.told(&["clear_vhost_limits"]);
    broker.told(&["set_user_limits", "guest", r#"{"max-connections": 1, "max-channels": 1}"#]);
    refused_with(&broker, "connection refused for user 'guest': user connection limit (1)");
    broker.told(&["clear_user_limits", "guest", "max-connections"]);
    refused_with(&broker, "has reached the maximum allowed user limit of 1");
    broker.told(&["clear_user_limits", "guest", "all"]);
    refused_with(&broker, "has reached the maximum allowed limit of 1");
    drop(second);
    nobody();
    drop(Raw::login(&broker));
    broker.refused(&["set_user_limits", "guest", r#"{"max-queues": 1}"#], 69);
    broker.refused(&["set_user_limits", "nobody", r#"{"max-channels": 1}"#], 67);
    broker.refused(&["clear_user_limits", "guest", "some"], 64);
}

/// Logs in, and is told why it may not.
#[track_caller]
fn refused_with(broker: &Broker, text: &str) {
    let mut raw = Raw::connect(broker);
    for step in hello(0) {
        raw.send(&step);
    }
    let told = raw.close_text();
    assert!(told.contains(text), "{told}");
}

#[test]
fn definitions_go_out_and_in() {
    let broker = Broker::start();
    let (mut client, channel) = broker.channel();
    let own = leveret_client::QueueDeclare { exclusive: true, ..Default::default() };
    client.queue_declare(channel, "my-own", &own).unwrap();
    let durable = leveret_client::QueueDeclare { durable: true, ..Default::default() };
    client.queue_declare(channel, "kept", &durable).unwrap();
    client.queue_bind(channel, "kept", "amq.topic", "a.#", &Default::default()).unwrap();
    broker.told(&["add_user", "u", "secret"]);
    broker.told(&["add_vhost", "v"]);
    broker.told(&["set_permissions", "-p", "v", "u", "^a", "^b", ".*"]);
    broker.told(&["set_policy", "p", ".*", r#"{"max-length": 4}"#]);
    let file = broker.dir.path().join("definitions.json").display().to_string();
    broker.told(&["export_definitions", &file]);
    let exported = std::fs::read_to_string(&file).unwrap();
    assert!(!exported.contains("secret"), "passwords are hashes: {exported}");
    assert!(!exported.contains("my-own"), "exclusive queues cannot be made for somebody else");

    let other = Broker::start();
    other.told(&["import_definitions", &file]);
    let (mut client, channel) = other.channel();
    let passive = leveret_client::QueueDeclare { passive: true, ..Default::default() };
    client.queue_declare(channel, "kept", &passive).unwrap();
    client.publish(channel, "amq.topic", "a.b", &[0, 0], b"routed");
    assert_eq!(client.get(channel, "kept", true).unwrap().unwrap().body, b"routed");
    let uri = Uri { user: "u".into(), password: "secret".into(), vhost: "v".into(), ..other.uri() };
    other.connect_as(&uri).close().unwrap();
    assert_eq!(other.json(&["list_policies"])[0]["name"], "p");

    let bad = broker.dir.path().join("bad.json");
    std::fs::write(&bad, r#"{"queues": [{"name": 7}]}"#).unwrap();
    other.refused(&["import_definitions", &bad.display().to_string()], 65);
    std::fs::write(&bad, "{").unwrap();
    other.refused(&["import_definitions", &bad.display().to_string()], 65);
}

/// All that cannot be is told, by the tool and in the log; the flag leaves it out.
#[test]
fn definitions_that_cannot_be() {
    let broker = Broker::start();
    let file = broker.dir.path().join("much.json");
    let stream = r#"{"name": "log", "vhost": "/", "arguments": {"x-queue-type": "stream"}}"#;
    let shovel = r#"{"vhost": "/", "component": "shovel", "name": "s", "value": {}}"#;
    let text = format!(
        r#"{{"queues": [{stream}, {{"name": "q", "vhost": "/"}}], "parameters": [{shovel}]}}"#
    );
    std::fs::write(&file, text).unwrap();
    let file = file.display().to_string();
    let lines = [
        "parameters[0]: parameter 's' in vhost '/': component shovel not found",
        "queues[0]: queue type 'stream' of queue 'log' in vhost '/' is not supported",
    ];
    let told = broker.refused(&["import_definitions", &file], 65);
    assert!(lines.iter().all(|line| told.contains(line)), "{told}");
    assert_eq!(broker.json(&["list_queues", "name"]), serde_json::json!([]));

    let output = broker.ctl(&["import_definitions", "--skip-unsupported", &file]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{told}");
    for line in lines {
        assert!(told.contains(&format!("left out: {line}\n")), "{told}");
        broker.log.wait_for(&format!("definitions: {line}"));
    }
    assert_eq!(broker.json(&["list_queues", "name"])[0]["name"], "q");
}

#[test]
fn users_come_and_go() {
    let broker = Broker::start();
    let uri = Uri { user: "u".into(), password: "one".into(), ..broker.uri() };
    let login = |uri: &Uri| leveret_client::Connection::open(uri, &Options::default());
    assert!(matches!(login(&uri), Err(Error::LoginRefused(_))));
    broker.told(&["add_user", "u", "one"]);
    broker.refused(&["add_user", "u", "two"], 70);
    // Without a permission in the vhost nobody gets in.
    assert!(login(&uri).is_err());
    broker.told(&["set_permissions", "u", "^mine", "^mine", "^mine"]);
    let mut client = login(&uri).unwrap();
    let channel = client.open_channel().unwrap();
    declare(&mut client, channel, "mine");
    let refused = client.queue_declare(channel, "yours", &Default::default());
    assert!(
        matches!(&refused, Err(Error::ChannelClosed { reason, .. }) if reason.code == 403),
        "{refused:?}"
    );
    broker.told(&["authenticate_user", "u", "one"]);
    broker.refused(&["authenticate_user", "u", "two"], 65);
    broker.told(&["change_password", "u", "two"]);
    assert!(login(&uri).is_err());
    broker.told(&["set_user_tags", "u", "monitoring"]);
    let users = broker.json(&["list_users"]).to_string();
    assert!(users.contains("monitoring"), "{users}");
    broker.told(&["clear_permissions", "u"]);
    broker.told(&["delete_user", "u"]);
    broker.refused(&["delete_user", "u"], 67);
    broker.refused(&["set_permissions", "u", "", "", ""], 67);
}

#[test]
fn messages_are_moved_and_arguments_set() {
    let broker = Broker::start();
    let mut publisher = Publisher::new(&broker, "q");
    publisher.publish(b"x", 5);
    let _other = Publisher::new(&broker, "other");
    let moved = broker.json(&["move_messages", "q", "--to-queue", "other", "--count", "3"]);
    assert_eq!(moved, serde_json::json!({"moved": 3, "refused": 0, "unrouted": 0}));
    broker.told(&["purge_queue", "--count", "1", "q"]);
    broker.told(&["set_queue_arguments", "other", r#"{"x-max-length": 2}"#]);
    let listed = broker.told(&["-s", "list_queues", "name", "messages"]);
    assert_eq!(listed, "other\t2\nq\t1\n");
    broker.refused(&["move_messages", "q", "--to-queue", "none"], 65);
    broker.refused(&["move_messages", "q", "--to-exchange", "none"], 65);
    broker.refused(&["set_queue_arguments", "q", r#"{"x-max-length": -1}"#], 65);
    broker.refused(&["set_queue_arguments", "q", "[]"], 65);
}

#[test]
fn purges_deletes_and_closes() {
    let broker = Broker::start();
    let mut publisher = Publisher::new(&broker, "q");
    publisher.publish(b"x", 5);
    broker.refused(&["delete_queue", "--if-empty", "q"], 69);
    broker.told(&["purge_queue", "q"]);
    assert_eq!(broker.told(&["-s", "list_queues"]), "q\t0\n");
    let (mut client, channel) = broker.channel();
    client.consume(channel, "q", &Consume::default()).unwrap();
    broker.refused(&["delete_queue", "--if-unused", "q"], 69);
    broker.told(&["delete_queue", "q"]);
    assert_eq!(broker.told(&["-s", "list_queues"]), "");
    broker.refused(&["purge_queue", "q"], 65);
    broker.refused(&["delete_queue", "q"], 64);

    let connections = broker.json(&["list_connections", "pid"]);
    let pid = connections[1]["pid"].as_str().unwrap();
    broker.told(&["close_connection", pid, "enough"]);
    let reason = close_reason(&mut client);
    assert_eq!((reason.code, &*reason.text), (320, "CONNECTION_FORCED - enough"));
    broker.refused(&["close_connection", "no-such", "enough"], 65);
    wait_until(PATIENCE, "it is gone", || {
        broker.json(&["status"])["totals"]["connection_count"] == 1
    });
    broker.told(&["close_all_connections", "--global", "all of you"]);
    assert_eq!(close_reason(&mut publisher.client).text, "CONNECTION_FORCED - all of you");
}

#[test]
fn statuses_say_what_is_wrong() {
    let broker = Broker::start();
    broker.refused(&["fly"], 64);
    broker.refused(&["-p", "nowhere", "list_queues"], 65);
    broker.refused(&["list_queues", "no_such_column"], 64);
    broker.refused(&["set_vm_memory_high_watermark", "1.5"], 65);
    broker.refused(&["set_vm_memory_high_watermark", "absolute", "lots"], 65);
    let mut elsewhere = broker.ctl_command(&["ping"]);
    elsewhere.env("LEVERET_DATA_DIR", "/nonexistent");
    let output = elsewhere.output().unwrap();
    assert_eq!(output.status.code(), Some(69));
}
