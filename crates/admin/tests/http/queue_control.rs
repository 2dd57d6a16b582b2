//! What operators do to queues and their messages.

use leveret_client::{Connection, Consume, Event, QueueDeclare};
use serde_json::{Value, json};

use crate::node::{Node, wait_until};

/// A node with a durable queue `q` with these arguments.
fn node(arguments: &Value) -> Node {
    let node = Node::start();
    let body = json!({"arguments": arguments}).to_string();
    node.must("PUT", "/api/queues/%2F/q", &body, 201);
    node
}

/// Publishes to `q`: bodies `0`, `1`, ...
fn publish(client: &mut Connection, channel: u16, count: u32) {
    for number in 0..count {
        client.publish(channel, "", "q", &[0, 0], number.to_string().as_bytes());
    }
    client.flush().unwrap();
}

#[track_caller]
fn wait_ready(node: &Node, queue: &str, count: u64) {
    let path = format!("/api/queues/%2F/{queue}");
    wait_until("messages are ready", || node.get(&path)["messages_ready"] == count);
}

/// Dead letters that no target takes yet are in the queue: not to be consumed, but to be seen.
#[test]
fn held_dead_letters_are_shown() {
    let node = node(&json!({
        "x-queue-type": "quorum",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "later",
        "x-message-ttl": 1,
    }));
    let (mut client, channel) = node.client();
    publish(&mut client, channel, 3);
    let shown = |messages: u64| {
        let found = node.get("/api/queues/%2F/q");
        (found["messages_dlx"] == messages && found["messages"] == 0).then_some(found)
    };
    wait_until("all have expired", || shown(3).is_some_and(|it| it["message_bytes_dlx"] == 3));
    client.queue_declare(channel, "later", &QueueDeclare::default()).unwrap();
    wait_until("their target is there", || shown(0).is_some_and(|it| it["message_bytes_dlx"] == 0));
    wait_ready(&node, "later", 3);
}

/// A user of this name who may do everything, but not to `q` what `permission` says.
fn without(node: &Node, name: &str, permission: &str) {
    node.must(
        "PUT",
        &format!("/api/users/{name}"),
        r#"{"password": "p", "tags": "management"}"#,
        201,
    );
    let mut all = json!({"configure": ".*", "write": ".*", "read": ".*"});
    all[permission] = json!("^(?!q$).*");
    node.must("PUT", &format!("/api/permissions/%2F/{name}"), &all.to_string(), 201);
}

#[test]
fn a_paused_queue_gives_nothing() {
    let node = node(&json!({}));
    let (mut client, channel) = node.client();
    client.consume(channel, "q", &Consume { no_ack: true, ..Consume::default() }).unwrap();
    node.must("PUT", "/api/queues/%2F/q/pause", "", 204);
    node.must("PUT", "/api/queues/%2F/q/pause", "", 204);
    assert_eq!(node.get("/api/queues/%2F/q")["state"], "paused");
    assert_eq!(node.get("/api/queues")[0]["state"], "paused");
    publish(&mut client, channel, 3);
    wait_ready(&node, "q", 3);
    let body = r#"{"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}"#;
    assert_eq!(node.must("POST", "/api/queues/%2F/q/get", body, 200).json(), json!([]));
    node.must("PUT", "/api/queues/%2F/q/resume", "", 204);
    assert_eq!(node.get("/api/queues/%2F/q")["state"], "running");
    for number in 0..3 {
        let body = loop {
            match client.next_event().unwrap() {
                Some(Event::Content { body, .. }) => break body.to_vec(),
                Some(_) => {}
                None => assert!(client.wait(std::time::Duration::from_secs(30)).unwrap()),
            }
        };
        assert_eq!(body, number.to_string().as_bytes());
    }
}

#[test]
fn who_may_pause() {
    let node = node(&json!({}));
    without(&node, "u", "configure");
    let got = node.ask_as(Some("u:p"), "PUT", "/api/queues/%2F/q/pause", &[], b"");
    assert_eq!(got.status, 401, "{}", got.text());
    assert!(got.text().contains("configure access to queue 'q'"), "{}", got.text());
    node.must("PUT", "/api/queues/%2F/none/pause", "", 404);
    node.must("PUT", "/api/queues/none/q/resume", "", 404);
    let (mut client, channel) = node.client();
    let own = QueueDeclare { exclusive: true, ..QueueDeclare::default() };
    client.queue_declare(channel, "own", &own).unwrap();
    let got = node.must("PUT", "/api/queues/%2F/own/pause", "", 400);
    assert!(got.text().contains("cannot obtain exclusive access"), "{}", got.text());
    let got = node.must("DELETE", "/api/queues/%2F/own/contents", "", 400);
    let reason = got.json()["reason"].as_str().unwrap().to_owned();
    assert!(reason.starts_with("cannot obtain exclusive access"), "{reason}");
}

/// The bodies of a page of `q`.
#[track_caller]
fn bodies(node: &Node, query: &str) -> Vec<String> {
    let page = node.get(&format!("/api/queues/%2F/q/messages?{query}"));
    let messages = page["messages"].as_array().unwrap().iter();
    messages.map(|one| one["payload"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn messages_are_looked_at_and_stay_as_they_are() {
    let node = node(&json!({"x-message-ttl": 600_000}));
    let (mut client, channel) = node.client();
    let properties = json!({"headers": {"kind": "odd", "n": 7}, "content_type": "text/plain"});
    let body = json!({
        "routing_key": "q", "properties": properties, "payload": "/wA=", "payload_encoding": "base64",
    });
    publish(&mut client, channel, 5);
    wait_ready(&node, "q", 5);
    node.must("POST", "/api/exchanges/%2F/amq.default/publish", &body.to_string(), 200);
    assert_eq!(bodies(&node, ""), ["0", "1", "2", "3", "4", "/wA="]);

    let page = node.get("/api/queues/%2F/q/messages?limit=2");
    let first = &page["messages"][0];
    assert_eq!((&first["state"], &first["redelivered"]), (&json!("ready"), &json!(false)));
    assert_eq!((&first["routing_key"], &first["exchange"]), (&json!("q"), &json!("")));
    assert!(first["age_ms"].as_u64().unwrap() < 60_000 && first["expires_at"].is_u64(), "{first}");
    let from = page["next"].as_u64().unwrap();
    assert_eq!(bodies(&node, &format!("from={from}&limit=2")), ["2", "3"]);
    let filtered = node.get("/api/queues/%2F/q/messages?header.kind=odd&header.n=7&limit=1");
    let found = &filtered["messages"][0];
    assert_eq!((&found["properties"], &found["payload"]), (&properties, &json!("/wA=")));
    assert_eq!(found["payload_encoding"], "base64");
    assert_eq!(filtered["looked_at"], 6);
    assert_eq!(bodies(&node, "header.kind=even"), [""; 0]);
    assert_eq!(bodies(&node, "routing_key=q&exchange="), ["0", "1", "2", "3", "4", "/wA="]);
    assert_eq!(bodies(&node, "routing_key=other"), [""; 0]);
    assert_eq!(bodies(&node, "encoding=base64&truncate=1&limit=1"), ["MA=="]);

    // Two are out with a consumer; nobody was told of the others.
    client.qos(channel, 2, false).unwrap();
    client.consume(channel, "q", &Consume { consumer_tag: "me", ..Consume::default() }).unwrap();
    wait_ready(&node, "q", 4);
    assert_eq!(bodies(&node, "state=unacked"), ["0", "1"]);
    let page = node.get("/api/queues/%2F/q/messages?state=unacked");
    let holder = &page["messages"][0]["holder"];
    assert_eq!((&holder["consumer_tag"], &holder["channel"]), (&json!("me"), &json!(channel)));
    assert_eq!(holder["user"], "guest");
    assert!(holder["connection_name"].as_str().unwrap().contains("->"), "{holder}");
    drop(client);
    wait_ready(&node, "q", 6);
    let body = r#"{"count": 9, "ackmode": "ack_requeue_false", "encoding": "auto"}"#;
    let got = node.must("POST", "/api/queues/%2F/q/get", body, 200).json();
    let seen: Vec<_> = got.as_array().unwrap().iter().map(|one| &one["redelivered"]).collect();
    assert_eq!(seen, [true, true, false, false, false, false]);
    assert_eq!(node.get("/api/queues/%2F/q/messages")["next"], Value::Null);
}

#[test]
fn one_message_is_deleted_and_some_are_purged() {
    let node = node(&json!({}));
    let (mut client, channel) = node.client();
    publish(&mut client, channel, 6);
    wait_ready(&node, "q", 6);
    let page = node.get("/api/queues/%2F/q/messages?limit=4");
    let position = |at: usize| page["messages"][at]["position"].as_u64().unwrap();
    let path = |at: usize| format!("/api/queues/%2F/q/messages/{}", position(at));
    node.must("DELETE", &path(3), "", 204);
    node.must("DELETE", &path(3), "", 404);
    let got = client.get(channel, "q", false).unwrap().unwrap();
    assert_eq!(got.body, b"0");
    let refused = node.must("DELETE", &path(0), "", 400);
    assert!(refused.text().contains("is out for an ack"), "{}", refused.text());
    node.must("DELETE", "/api/queues/%2F/q/messages/x", "", 400);
    let purged = node.must("DELETE", "/api/queues/%2F/q/contents?count=2", "", 200);
    assert_eq!(purged.text(), r#"{"purged":2}"#);
    assert_eq!(bodies(&node, ""), ["4", "5"]);
    node.must("DELETE", "/api/queues/%2F/q/contents?count=x", "", 400);
    node.must("DELETE", "/api/queues/%2F/none/contents?count=1", "", 404);
    node.must("DELETE", "/api/queues/%2F/q/contents", "", 204);
    assert_eq!(bodies(&node, ""), [""; 0]);
    client.ack(channel, got.delivery_tag, false);
}

#[test]
fn bad_pages() {
    let node = node(&json!({}));
    for query in ["state=dead", "limit=0", "limit=5000", "from=x", "encoding=hex", "truncate=-1"] {
        node.must("GET", &format!("/api/queues/%2F/q/messages?{query}"), "", 400);
    }
    node.must("GET", "/api/queues/%2F/none/messages", "", 404);
    without(&node, "u", "read");
    for (method, path) in
        [("GET", "messages"), ("DELETE", "messages/1"), ("DELETE", "contents?count=1")]
    {
        let path = format!("/api/queues/%2F/q/{path}");
        let got = node.ask_as(Some("u:p"), method, &path, &[], b"");
        assert_eq!(got.status, 401, "{method} {path}: {}", got.text());
        assert!(got.text().contains("read access to queue 'q'"), "{}", got.text());
    }
}

const MOVE: &str = "/api/queues/%2F/q/move";

/// The bodies of a queue, taken.
fn take(node: &Node, queue: &str) -> Vec<String> {
    let body = r#"{"count": 99, "ackmode": "ack_requeue_false", "encoding": "auto"}"#;
    let got = node.must("POST", &format!("/api/queues/%2F/{queue}/get"), body, 200).json();
    let all = got.as_array().unwrap().iter();
    all.map(|one| one["payload"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn messages_are_moved() {
    let node = node(&json!({}));
    node.must("PUT", "/api/queues/%2F/other", "", 201);
    let (mut client, channel) = node.client();
    for (number, colour) in ["red", "blue", "red", "blue", "red", "red"].iter().enumerate() {
        let body = json!({
            "routing_key": "q",
            "properties": {"headers": {"colour": colour}, "delivery_mode": 2, "message_id": "m"},
            "payload": number.to_string(),
            "payload_encoding": "string",
        });
        node.must("POST", "/api/exchanges/%2F/amq.default/publish", &body.to_string(), 200);
    }
    let ask = |body: Value| node.must("POST", MOVE, &body.to_string(), 200).text();
    let moved = |moved: u64| format!(r#"{{"moved":{moved},"refused":0,"unrouted":0}}"#);
    let reds = json!({"headers": {"colour": "red"}});
    assert_eq!(ask(json!({"to_queue": "other", "filter": reds, "count": 2})), moved(2));
    assert_eq!(
        (bodies(&node, ""), take(&node, "other")),
        (["1", "3", "4", "5"].map(str::to_owned).into(), ["0", "2"].map(str::to_owned).into(),)
    );
    let page = node.get("/api/queues/%2F/q/messages");
    let second = page["messages"][1]["position"].as_u64().unwrap();
    assert_eq!(ask(json!({"to_queue": "other", "positions": [second, 1_u64 << 40]})), moved(1));
    let got = client.get(channel, "other", true).unwrap().unwrap();
    assert_eq!((&*got.body, got.redelivered, &*got.routing_key), (&b"3"[..], false, "q"));
    assert!(String::from_utf8_lossy(&got.properties).contains("colour"), "{got:?}");

    // By an exchange: those that it leads nowhere stay.
    node.must("POST", "/api/bindings/%2F/e/amq.direct/q/other", r#"{"routing_key": "k"}"#, 201);
    let nowhere = r#"{"moved":0,"refused":0,"unrouted":3}"#;
    assert_eq!(ask(json!({"to_exchange": "amq.direct"})), nowhere);
    assert_eq!(ask(json!({"to_exchange": "amq.direct", "routing_key": "k", "count": 1})), moved(1));
    let got = client.get(channel, "other", true).unwrap().unwrap();
    assert_eq!((&*got.body, &*got.exchange, &*got.routing_key), (&b"1"[..], "amq.direct", "k"));

    // A full target refuses: they are where they were.
    let full = r#"{"arguments": {"x-max-length": 1, "x-overflow": "reject-publish"}}"#;
    node.must("PUT", "/api/queues/%2F/full", full, 201);
    let refused = ask(json!({"to_queue": "full"}));
    assert_eq!(refused, r#"{"moved":1,"refused":1,"unrouted":0}"#);
    assert_eq!(bodies(&node, ""), ["5"]);
    // All of its own queue, once each.
    publish(&mut client, channel, 2);
    wait_ready(&node, "q", 3);
    assert_eq!(ask(json!({"to_queue": "q"})), moved(3));
    assert_eq!(bodies(&node, ""), ["5", "0", "1"]);
}

#[test]
fn one_message_goes_to_the_end_or_to_the_front() {
    let node = node(&json!({"x-max-priority": 3}));
    let (mut client, channel) = node.client();
    publish(&mut client, channel, 4);
    wait_ready(&node, "q", 4);
    let page = node.get("/api/queues/%2F/q/messages");
    let path =
        |at: usize| format!("/api/queues/%2F/q/messages/{}", page["messages"][at]["position"]);
    node.must("POST", &format!("{}/requeue", path(1)), "", 204);
    node.must("POST", &format!("{}/requeue?to=front", path(2)), "", 204);
    node.must("POST", &format!("{}/requeue", path(1)), "", 404);
    node.must("POST", &format!("{}/requeue?to=middle", path(0)), "", 400);
    assert_eq!(take(&node, "q"), ["2", "0", "3", "1"]);
}

#[test]
fn bad_moves() {
    let node = node(&json!({}));
    without(&node, "u", "write");
    node.must("PUT", "/api/queues/%2F/other", "", 201);
    #[rustfmt::skip] // a table
    let rows = [
        (json!({}),                                                  "name one target"),
        (json!({"to_queue": "q", "to_exchange": "amq.topic"}),       "name one target"),
        (json!({"to_queue": "q", "routing_key": "k"}),               "name one target"),
        (json!({"to_queue": "none"}),                                "no queue 'none'"),
        (json!({"to_exchange": "none"}),                             "no exchange 'none'"),
        (json!({"to_exchange": "amq.rabbitmq.trace"}),               "internal"),
        (json!({"to_queue": "q", "count": "x"}),                     "whole number"),
        (json!({"to_queue": "q", "positions": 7}),                   "list of at most"),
        (json!({"to_queue": "q", "positions": [1], "count": 1}),     "stand alone"),
        (json!({"to_queue": "q", "filter": {"size": 1}}),            "unknown filter 'size'"),
    ];
    for (body, part) in rows {
        let got = node.must("POST", MOVE, &body.to_string(), 400);
        assert!(got.text().contains(part), "{body}: {}", got.text());
    }
    let body = r#"{"to_queue": "q"}"#;
    let got = node.ask_as(Some("u:p"), "POST", "/api/queues/%2F/other/move", &[], body.as_bytes());
    assert_eq!(got.status, 401, "{}", got.text());
    assert!(got.text().contains("write access to queue 'q'"), "{}", got.text());
    let topics = r#"{"exchange": "amq.topic", "write": "^a", "read": ".*"}"#;
    node.must("PUT", "/api/topic-permissions/%2F/u", topics, 201);
    let (mut client, channel) = node.client();
    publish(&mut client, channel, 1);
    wait_ready(&node, "q", 1);
    let body = br#"{"to_exchange": "amq.topic", "routing_key": "b"}"#;
    let got = node.ask_as(Some("u:p"), "POST", MOVE, &[], body);
    assert_eq!(got.text(), r#"{"moved":0,"refused":1,"unrouted":0}"#);
}

#[test]
fn arguments_are_changed_while_the_queue_runs() {
    let node = node(&json!({"x-max-length": 10}));
    let path = "/api/queues/%2F/q/arguments";
    let (mut client, channel) = node.client();
    publish(&mut client, channel, 5);
    wait_ready(&node, "q", 5);
    node.must("PATCH", path, r#"{"x-max-length": 3}"#, 204);
    assert_eq!(bodies(&node, ""), ["2", "3", "4"]);
    node.must("PATCH", path, r#"{"x-max-length": null, "x-message-ttl": 0}"#, 204);
    assert_eq!(node.get("/api/queues/%2F/q")["arguments"], json!({"x-message-ttl": 0}));
    assert_eq!(take(&node, "q").len(), 3, "what came before keeps its time");
    publish(&mut client, channel, 2);
    assert!(client.get(channel, "q", true).unwrap().is_none());
    node.must("PUT", path, r#"{"x-expires": 600000, "x-single-active-consumer": true}"#, 204);
    let arguments = json!({"x-expires": 600_000, "x-single-active-consumer": true});
    assert_eq!(node.get("/api/queues/%2F/q")["arguments"], arguments);
    // A declaration is compared with what they are now, and with what was declared.
    let body = json!({"arguments": arguments}).to_string();
    node.must("PUT", "/api/queues/%2F/q", &body, 204);
    node.must("PUT", "/api/queues/%2F/q", r#"{"arguments": {"x-max-length": 10}}"#, 204);
    node.must("PUT", "/api/queues/%2F/q", r#"{"arguments": {"x-max-length": 3}}"#, 400);
    let mut second = node.client().0;
    let other = second.open_channel().unwrap();
    client.consume(channel, "q", &Consume { consumer_tag: "1", ..Consume::default() }).unwrap();
    second.consume(other, "q", &Consume { consumer_tag: "2", ..Consume::default() }).unwrap();
    assert_eq!(node.get("/api/queues/%2F/q")["single_active_consumer_tag"], "1");
    node.must("PATCH", path, r#"{"x-single-active-consumer": null}"#, 204);
    assert_eq!(node.get("/api/queues/%2F/q")["active_consumers"], 2);
}

#[test]
fn bad_arguments() {
    let node = node(&json!({}));
    let path = "/api/queues/%2F/q/arguments";
    #[rustfmt::skip] // a table
    let rows = [
        (r#"{"x-max-length": -1}"#,                    "x-max-length"),
        (r#"{"x-expires": 0}"#,                        "x-expires"),
        (r#"{"x-overflow": "burst"}"#,                 "invalid_overflow"),
        (r#"{"x-dead-letter-routing-key": "k"}"#,      "routing_key_but_no_dlx_defined"),
        (r#"{"x-queue-type": "quorum"}"#,              "the type of a queue cannot be changed"),
        (r#"{"x-delivery-limit": 3}"#,                 "x-delivery-limit"),
        ("[]",                                         "JSON object"),
    ];
    for (body, part) in rows {
        let got = node.must("PATCH", path, body, 400);
        assert!(got.text().contains(part), "{body}: {}", got.text());
    }
    let long = json!({"n".repeat(256): 1}).to_string();
    let nested = |levels: usize| format!("{}1{}", r#"{"a":"#.repeat(levels), "}".repeat(levels));
    for method in ["PUT", "PATCH"] {
        let text = node.must(method, path, &long, 400).text();
        assert!(text.contains("names in 'arguments' must have at most 255 bytes"), "{text}");
        let text = node.must(method, path, &nested(101), 400).text();
        assert!(text.contains("'arguments' must be at most 100 levels deep"), "{text}");
    }
    assert_eq!(node.get("/api/queues/%2F/q")["arguments"], json!({}));
    node.must("PUT", "/api/queues/%2F/none/arguments", "{}", 404);
    without(&node, "u", "configure");
    let got = node.ask_as(Some("u:p"), "PUT", path, &[], b"{}");
    assert!(got.text().contains("configure access to queue 'q'"), "{}", got.text());
}

/// Whoever sets arguments may not have dead letters go where a declaration could not send them.
#[test]
fn dead_letters_go_where_the_user_may_write() {
    let node = node(&json!({}));
    node.must("PUT", "/api/users/u", r#"{"password": "p", "tags": "management"}"#, 201);
    let own = json!({"configure": "^u", "write": "^u", "read": "^u"}).to_string();
    node.must("PUT", "/api/permissions/%2F/u", &own, 201);
    let blind = json!({"configure": "^q", "write": ".*", "read": "^u"}).to_string();
    node.must("PUT", "/api/users/blind", r#"{"password": "p", "tags": "management"}"#, 201);
    node.must("PUT", "/api/permissions/%2F/blind", &blind, 201);
    let others = r#"{"arguments": {"x-dead-letter-exchange": "amq.direct"}}"#;
    node.must("PUT", "/api/queues/%2F/u.dead", others, 201);
    node.must("PUT", "/api/queues/%2F/u", "", 201);
    let ask = |user: &str, method: &str, queue: &str, body: &str| {
        let path = format!("/api/queues/%2F/{queue}/arguments");
        node.ask_as(Some(&format!("{user}:p")), method, &path, &[], body.as_bytes())
    };
    let refused = "write access to exchange 'amq.direct' in vhost '/' refused for user 'u'";
    let default = "write access to exchange 'amq.default' in vhost '/' refused for user 'u'";
    #[rustfmt::skip] // a table
    let rows = [
        ("u",     "PUT",   "u",      r#"{"x-dead-letter-exchange": "amq.direct"}"#, refused),
        ("u",     "PATCH", "u",      r#"{"x-dead-letter-exchange": "amq.direct"}"#, refused),
        ("u",     "PATCH", "u",      r#"{"x-dead-letter-exchange": ""}"#,           default),
        ("blind", "PATCH", "q",      r#"{"x-dead-letter-exchange": "u.x"}"#,        "read access to queue 'q'"),
        // What leaves by an exchange of others' gets no other key.
        ("u",     "PATCH", "u.dead", r#"{"x-dead-letter-routing-key": "k"}"#,       refused),
        ("u",     "PUT",   "u.dead", r#"{"x-dead-letter-exchange": "amq.direct"}"#, refused),
    ];
    for (user, method, queue, body, why) in rows {
        let got = ask(user, method, queue, body);
        assert_eq!(got.status, 401, "{user} {method} {queue} {body}: {}", got.text());
        assert!(got.text().contains(why), "{user} {method} {queue} {body}: {}", got.text());
    }
    #[rustfmt::skip] // a table
    let rows = [
        ("PATCH", "u",      r#"{"x-dead-letter-exchange": "u.x", "x-dead-letter-routing-key": "k"}"#),
        ("PATCH", "u",      r#"{"x-dead-letter-routing-key": "l"}"#),
        ("PATCH", "u.dead", r#"{"x-max-length": 3}"#),
        ("PATCH", "u.dead", r#"{"x-dead-letter-exchange": null}"#),
        ("PUT",   "u.dead", "{}"),
    ];
    for (method, queue, body) in rows {
        let got = ask("u", method, queue, body);
        assert_eq!(got.status, 204, "{method} {queue} {body}: {}", got.text());
    }
    let arguments = json!({"x-dead-letter-exchange": "u.x", "x-dead-letter-routing-key": "l"});
    assert_eq!(node.get("/api/queues/%2F/u")["arguments"], arguments);
}

#[test]
fn slow_consumers_are_found() {
    let node = node(&json!({}));
    let (mut client, channel) = node.client();
    client.qos(channel, 2, false).unwrap();
    client.consume(channel, "q", &Consume { consumer_tag: "slow", ..Consume::default() }).unwrap();
    let rest = Consume { no_ack: true, consumer_tag: "rest", ..Consume::default() };
    client.consume(channel, "q", &rest).unwrap();
    publish(&mut client, channel, 3);
    let slow = || node.get("/api/consumers?slow=0");
    wait_until("it is seen", || slow().as_array().is_some_and(|all| all.len() == 1));
    let found = &slow()[0];
    assert_eq!(found["consumer_tag"], "slow");
    assert!(found["messages_unacknowledged"].as_u64().unwrap() > 0, "{found}");
    assert!(found["oldest_unacked_ms"].as_u64().unwrap() < 60_000, "{found}");
    assert_eq!(found["blocked"], false);
    assert_eq!(node.get("/api/consumers?slow=3600"), json!([]));
    assert_eq!(found.get("prefetch_full_ms"), None);
    // Without the other one, what comes has to wait for this one's acks.
    client.cancel(channel, "rest").unwrap();
    publish(&mut client, channel, 3);
    wait_until("it is full", || slow()[0]["prefetch_full_ms"].is_u64());
    assert_eq!(slow()[0]["blocked"], true);
    node.must("GET", "/api/consumers?slow=x", "", 400);
}
