//! Traces: what is written of messages, and what becomes of traces whose files or queues end.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use leveret_amqp::content::Properties;
use leveret_amqp::table::Table;
use leveret_broker::message::{AdminCommand, ToMeta, ToShard};
use leveret_client::QueueDeclare;
use leveret_server::runner::run_alone;
use serde_json::{Value, json};

use crate::node::{Node, wait_until};

const TRACE: &str = "/api/traces/%2F/t";
const FILE: &str = "/api/trace-files/t.log";

fn begin(node: &Node, body: Value) {
    node.must("PUT", TRACE, &body.to_string(), 201);
}

/// Waits until so many messages are in the trace's file, ends the trace and reads the file.
fn end_after(node: &Node, messages: u64) -> String {
    wait_until("the messages are written", || node.get(TRACE)["written"] == messages);
    node.must("DELETE", TRACE, "", 204);
    node.must("GET", FILE, "", 200).text()
}

/// Publishes a message that goes nowhere and one that is taken.
fn publish_and_deliver(node: &Node, body: &[u8]) {
    let (mut client, channel) = node.client();
    client.queue_declare(channel, "q", &QueueDeclare::default()).unwrap();
    let properties = Properties {
        content_type: Some("text/plain".to_owned()),
        delivery_mode: Some(1),
        ..Properties::default()
    };
    client.publish(channel, "amq.topic", "lost", &[0, 0], b"nowhere");
    client.publish(channel, "", "q", &properties.to_bytes(), body);
    // The broker does one after the other.
    client.get(channel, "q", true).unwrap().unwrap();
    client.close().unwrap();
}

/// The fields of RabbitMQ 4.3, and their order.
#[test]
fn json_lines_have_the_fields_of_rabbitmq() {
    let node = Node::start();
    assert_eq!(node.get("/api/traces"), json!([]));
    assert_eq!(node.get("/api/trace-files"), json!([]));
    begin(&node, json!({"format": "json", "pattern": "#"}));
    assert_eq!(node.get("/api/vhosts/%2F")["tracing"], true);
    publish_and_deliver(&node, b"Hello world");
    let row = node.get(TRACE);
    assert_eq!(
        [&row["name"], &row["vhost"], &row["format"], &row["pattern"], &row["state"]],
        ["t", "/", "json", "#", "running"]
    );
    assert!(row["queue"]["name"].as_str().unwrap().starts_with("amq.gen-trace-"), "{row}");
    assert_eq!(node.get("/api/traces/%2F")[0]["name"], "t");
    assert_eq!(node.get("/api/traces/node/rabbit@test/%2F/t")["name"], "t");
    let text = end_after(&node, 3);
    assert_eq!(node.get("/api/vhosts/%2F")["tracing"], false);
    node.must("GET", TRACE, "", 404);
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [lost, published, received] = &*lines else { panic!("{text}") };
    assert_eq!(lost["exchange"], "amq.topic");
    assert_eq!(lost["routed_queues"], json!([]));
    let names: Vec<_> = published.as_object().unwrap().keys().map(String::as_str).collect();
    let wanted = "channel connection exchange node payload properties queue routed_queues \
        routing_keys timestamp type user vhost";
    assert_eq!(names.join(" "), wanted);
    let of =
        |line: &Value, keys: &[&str]| keys.iter().map(|it| line[*it].clone()).collect::<Value>();
    let keys =
        ["type", "channel", "exchange", "queue", "routed_queues", "routing_keys", "properties"];
    let properties = json!({"content_type": "text/plain", "delivery_mode": 1});
    assert_eq!(of(published, &keys), json!(["published", 1, "", "none", ["q"], ["q"], properties]));
    assert_eq!(of(received, &keys), json!(["received", 1, "", "q", "none", ["q"], properties]));
    let keys = ["node", "user", "vhost", "payload"];
    let payload = STANDARD.encode("Hello world");
    assert_eq!(of(received, &keys), json!(["rabbit@test", "guest", "/", payload]));
    assert!(received["connection"].as_str().unwrap().contains("127.0.0.1:"), "{received}");
    // `2026-11-26T18:53:27.123+00:00`
    assert_eq!(received["timestamp"].as_str().unwrap().len(), 29);

    let files = node.get("/api/trace-files");
    assert_eq!(files, json!([{"name": "t.log", "size": text.len()}]));
    let got = node.must("GET", "/api/trace-files/node/rabbit@test/t.log", "", 200);
    assert_eq!(got.header("content-type"), "text/plain; charset=utf-8");
    node.must("DELETE", FILE, "", 204);
    node.must("DELETE", FILE, "", 404);
    node.must("GET", FILE, "", 404);
    assert_eq!(node.get("/api/trace-files"), json!([]));
}

/// As RabbitMQ 4.3 writes it, but for the moment and the connection.
#[test]
fn text_is_that_of_rabbitmq() {
    let node = Node::start();
    begin(&node, json!({"format": "text", "pattern": "#.q", "max_payload_bytes": 5}));
    publish_and_deliver(&node, b"Hello world");
    let text = end_after(&node, 1);
    let connection = text.lines().find(|it| it.starts_with("Connection: ")).unwrap();
    let moment = text.lines().nth(2).unwrap().split(": ").next().unwrap();
    let line = "=".repeat(80);
    let want = format!(
        "\n{line}\n{moment}: Message received\n\nNode:         rabbit@test\n{connection}\nVirtual host: /\n\
         User:         guest\nChannel:      1\nExchange:     \nRouting keys: [<<\"q\">>]\nQueue:        q\n\
         Properties:   [{{<<\"content_type\">>,longstr,<<\"text/plain\">>}},\n               \
         {{<<\"delivery_mode\">>,signedint,1}}]\nPayload: \nHello\n"
    );
    assert_eq!(text, want);
    // A second trace goes on with the file. What is no UTF-8 is written as Latin-1.
    begin(&node, json!({"format": "text", "pattern": "publish."}));
    publish_and_deliver(&node, b"caf\xe9");
    let text = end_after(&node, 1);
    let more = text.strip_prefix(&want).unwrap();
    assert!(more.contains(": Message published\n"), "{more}");
    assert!(more.contains("Routing keys: [<<\"q\">>]\nRouted queues: [<<\"q\">>]\n"), "{more}");
    assert!(more.ends_with("Payload: \ncaf\u{e9}\n"), "{more}");
}

/// With RabbitMQ's words, where it has any.
#[test]
fn what_is_no_trace_is_refused() {
    let node = Node::start();
    let good = json!({"format": "text", "pattern": "#"});
    let refused = |path: &str, body: Value| {
        let got = node.ask("PUT", path, &body.to_string());
        (got.status, got.json()["reason"].as_str().unwrap().to_owned())
    };
    let bad = |body: Value| refused(TRACE, body);
    let reason = |reason: &str| (400, reason.to_owned());
    assert_eq!(bad(json!({"pattern": "#"})), reason("[{key_missing,format}]"));
    assert_eq!(bad(json!({"format": "json"})), reason("[{key_missing,pattern}]"));
    let with = |key: &str, value: Value| {
        let mut body = good.clone();
        body[key] = value;
        body
    };
    assert_eq!(bad(with("format", json!("ebcdic"))), reason("format not json or text"));
    for bytes in [json!("abc"), json!(-1), json!(null)] {
        assert_eq!(bad(with("max_payload_bytes", bytes)), reason("max_payload_bytes not integer"));
    }
    for name in [
        "..%2F..%2Fetc%2Fcron.d%2Fpwned",
        "foo%2F..%2F..%2Fbar",
        "%2Fa",
        "a%5Cb",
        "a%00",
        ".a",
        &"x".repeat(201),
    ] {
        let path = format!("/api/traces/%2F/{name}");
        assert_eq!(refused(&path, good.clone()), reason("invalid trace name"), "{name}");
    }
    let (status, why) = bad(with("tracer_connection_username", json!("nobody")));
    assert!(status == 400 && why.starts_with("user 'nobody' cannot have"), "{why}");
    let (status, why) = bad(with("pattern", json!("x".repeat(300))));
    assert!(status == 400 && why.starts_with("pattern should be less than"), "{why}");
    assert_eq!(refused("/api/traces/nowhere/t", good.clone()).0, 404);
    let other = "/api/traces/node/rabbit@other/%2F/t";
    assert_eq!(refused(other, good.clone()), reason("Node is not a cluster member"));
    // A user needs the vhost, and permissions in it.
    node.must("PUT", "/api/users/u", r#"{"password":"p","tags":""}"#, 201);
    let with_user = || {
        let body = with("tracer_connection_username", json!("u"));
        bad([body, json!({"tracer_connection_password": "p"})].into_iter().fold(
            json!({}),
            |mut all, it| {
                all.as_object_mut().unwrap().extend(it.as_object().unwrap().clone());
                all
            },
        ))
    };
    assert!(with_user().1.contains("it may not open the vhost"), "{:?}", with_user());
    node.must("PUT", "/api/permissions/%2F/u", r#"{"configure":"","write":"","read":""}"#, 201);
    assert!(with_user().1.contains("ACCESS_REFUSED"), "{:?}", with_user());
    assert_eq!(node.get("/api/traces"), json!([]));
    assert_eq!(node.get("/api/vhosts/%2F")["tracing"], false);
    for file in ["..%2F..%2Fsecret", "%2Fetc%2Fpasswd", "..", "a%00"] {
        let path = format!("/api/trace-files/{file}");
        node.must("GET", &path, "", 404);
        node.must("DELETE", &path, "", 404);
    }

    begin(&node, good.clone());
    assert_eq!(bad(good.clone()), reason("the trace is there already: stop it first"));
    node.must("PUT", "/api/vhosts/v", "{}", 201);
    let (status, why) = refused("/api/traces/v/t", good.clone());
    assert!(status == 400 && why.contains("is written by the trace of this name"), "{why}");
    let got = node.must("DELETE", FILE, "", 400);
    assert!(got.text().contains("writes to the file"), "{}", got.text());
    for n in 1..16 {
        node.must("PUT", &format!("/api/traces/v/t{n}"), &good.to_string(), 201);
    }
    let (status, why) = refused("/api/traces/v/one-more", good);
    assert!(status == 400 && why.contains("there are 16 traces"), "{why}");
}

/// Traces end with what they need, and a vhost is traced as long as one of its traces wants it.
#[test]
fn traces_end() {
    let node = Node::with(&[("tracing.max_file_size", "4096")]);
    let good = r##"{"format": "text", "pattern": "#"}"##;
    let is_traced = |vhost: &str| node.get(&format!("/api/vhosts/{vhost}"))["tracing"] == true;
    node.must("PUT", "/api/vhosts/v", "{}", 201);
    for name in ["a", "b"] {
        node.must("PUT", &format!("/api/traces/v/{name}"), good, 201);
    }
    node.must("DELETE", "/api/traces/v/a", "", 204);
    assert!(is_traced("v"));
    node.must("DELETE", "/api/traces/v/b", "", 204);
    assert!(!is_traced("v"));
    // One that was traced before stays so.
    node.must("PUT", "/api/vhosts/v", r#"{"tracing":true}"#, 204);
    node.must("PUT", "/api/traces/v/a", good, 201);
    node.must("DELETE", "/api/traces/v/a", "", 204);
    assert!(is_traced("v"));
    // With the vhost.
    node.must("PUT", "/api/traces/v/a", good, 201);
    node.must("DELETE", "/api/vhosts/v", "", 204);
    wait_until("the trace ends", || node.get("/api/traces")[0]["state"] == "stopped");
    let row = &node.get("/api/traces")[0];
    assert_eq!(row["reason"], "no more messages come: the queue is gone");
    node.must("DELETE", "/api/traces/v/a", "", 204);
    // With the size of its file: what was written before it is there, what was not is counted.
    begin(&node, serde_json::from_str(good).unwrap());
    for _ in 0..10 {
        publish_and_deliver(&node, &[b'x'; 500]);
    }
    wait_until("the trace ends", || node.get(TRACE)["state"] == "stopped");
    wait_until("the vhost is traced no more", || !is_traced("%2F"));
    let row = node.get(TRACE);
    let why = row["reason"].as_str().unwrap();
    assert!(why.contains("tracing.max_file_size, 4096 bytes"), "{why}");
    let text = node.must("GET", FILE, "", 200).text();
    assert!(text.len() <= 4096 && text.ends_with("x\n"), "{text}");
    assert_eq!(row["written"], text.matches("\nNode: ").count());
    assert_eq!(row["file_bytes"], text.len());
    assert!(row["not_written"].as_u64().unwrap() > 0, "{row}");
    // A new one takes its place once there is room.
    node.must("PUT", TRACE, good, 201);
    node.must("DELETE", TRACE, "", 204);
    node.must("DELETE", FILE, "", 204);
    node.must("PUT", TRACE, good, 201);
    assert_eq!(node.get(TRACE)["file_bytes"], 0);
}

/// What does not fit is counted and told in the file, in both formats, and what still waits at the end, too.
#[test]
fn what_is_left_out_is_told() {
    let node = Node::with(&[("tracing.max_waiting", "65536")]);
    for format in ["text", "json"] {
        // A user who gets one message, and then nothing more.
        node.must("PUT", &format!("/api/users/{format}"), r#"{"password":"p","tags":""}"#, 201);
        let all = r#"{"configure":".*","write":".*","read":".*"}"#;
        node.must("PUT", &format!("/api/permissions/%2F/{format}"), all, 201);
        let limit = format!("/api/user-limits/{format}/max-deliver-rate");
        assert!(node.ask("PUT", &limit, r#"{"value":0}"#).status < 300);
        begin(
            &node,
            json!({
                "format": format, "pattern": "publish.amq.fanout",
                "tracer_connection_username": format, "tracer_connection_password": "p",
            }),
        );
        let (mut client, channel) = node.client();
        let mut publish = |body: &str| {
            client.publish(channel, "amq.fanout", "", &[0, 0], body.repeat(40_000).as_bytes());
            client.flush().unwrap();
        };
        publish("a");
        wait_until("the first is written", || node.get(TRACE)["written"] == 1);
        // One of these may wait.
        ["b", "c", "d"].into_iter().for_each(publish);
        wait_until("the others are counted", || node.get(TRACE)["not_written"] == 2);
        let text = end_after(&node, 1);
        let lines: Vec<_> = text.lines().collect();
        if format == "text" {
            let told = lines.iter().filter(|line| line.ends_with(" messages were not written"));
            let counts: Vec<_> = told.map(|line| line.split(' ').nth(1).unwrap()).collect();
            assert_eq!(counts, ["2", "1"]);
        } else {
            let told = lines[1..].iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
            let told: Vec<_> = told.map(|it| json!([it["type"], it["messages"]])).collect();
            assert_eq!(told, [json!(["not_written", 2]), json!(["not_written", 1])]);
        }
        node.must("DELETE", FILE, "", 204);
    }
}

/// A trace stops before the node is short of disk space, and says why. What it cannot write is counted.
#[test]
fn a_disk_that_is_nearly_full_stops_a_trace() {
    let node = Node::start();
    let (mut client, channel) = node.client();
    client.queue_declare(channel, "q", &QueueDeclare::default()).unwrap();
    client.publish(channel, "", "q", &[0, 0], b"x");
    client.queue_declare(channel, "q", &QueueDeclare::default()).unwrap();
    // Those who publish are blocked by the alarm that comes.
    let (mut client, channel) = node.client();
    begin(&node, json!({"format": "text", "pattern": "deliver.#"}));
    node.must("PUT", "/api/leveret/watermarks/disk", r#"{"absolute":4000000000000000}"#, 204);
    client.get(channel, "q", true).unwrap().unwrap();
    wait_until("the trace ends", || node.get(TRACE)["state"] == "stopped");
    let row = node.get(TRACE);
    let why = row["reason"].as_str().unwrap();
    assert!(why.starts_with("the disk has ") && why.contains("disk_free_limit"), "{why}");
    assert_eq!([&row["written"], &row["not_written"]], [0, 1]);
    wait_until("the vhost is traced no more", || node.get("/api/vhosts/%2F")["tracing"] == false);
}

/// The operator's wish outlives traces, and does not blind them.
#[test]
fn a_vhost_is_traced_as_long_as_somebody_wishes() {
    let node = Node::start();
    let is_traced = || node.get("/api/vhosts/%2F")["tracing"] == true;
    let good = || json!({"format": "text", "pattern": "#"});
    let wish = |body| node.must("PUT", "/api/vhosts/%2F", body, 204);
    begin(&node, good());
    wish(r#"{"tracing":true}"#);
    node.must("DELETE", TRACE, "", 204);
    assert!(is_traced());
    begin(&node, good());
    wish(r#"{"tracing":false}"#);
    assert!(is_traced());
    node.must("DELETE", TRACE, "", 204);
    assert!(!is_traced());
    wish(r#"{"tracing":true}"#);
    wish(r#"{"tracing":false}"#);
    assert!(!is_traced());
}

/// Policies do not send copies of everything elsewhere, or make them fewer, and no client has such a queue.
#[test]
fn no_policy_holds_for_a_traces_queue() {
    let node = Node::start();
    let policy = json!({
        "pattern": ".*", "apply-to": "queues",
        "definition": {"dead-letter-exchange": "amq.fanout", "max-length": 0, "message-ttl": 0},
    });
    node.must("PUT", "/api/policies/%2F/before", &policy.to_string(), 201);
    begin(&node, json!({"format": "text", "pattern": "publish.#"}));
    let mut operator = policy;
    operator["definition"] = json!({"max-length": 0});
    node.must("PUT", "/api/operator-policies/%2F/after", &operator.to_string(), 201);
    let row = node.get(TRACE);
    assert_eq!(row["queue"]["policy"], Value::Null, "{row}");
    assert_eq!(row["queue"]["operator_policy"], Value::Null, "{row}");
    let (mut client, channel) = node.client();
    client.publish(channel, "amq.topic", "lost", &[0, 0], b"nowhere");
    client.flush().unwrap();
    end_after(&node, 1);
    let mut arguments = Table::new();
    arguments.push("x-name-prefix", "amq.gen-trace");
    let declare = QueueDeclare { arguments, ..QueueDeclare::default() };
    let refused = client.queue_declare(channel, "", &declare).unwrap_err().to_string();
    assert!(refused.contains("ACCESS_REFUSED"), "{refused}");
}

/// What asks for a trace in the name of the user `u`, who is made.
fn in_the_name_of_a_user(node: &Node) -> Value {
    node.must("PUT", "/api/users/u", r#"{"password":"p","tags":""}"#, 201);
    let all = r#"{"configure":".*","write":".*","read":".*"}"#;
    node.must("PUT", "/api/permissions/%2F/u", all, 201);
    json!({
        "format": "text", "pattern": "#",
        "tracer_connection_username": "u", "tracer_connection_password": "p",
    })
}

/// A trace ends with the user in whose name it gets its messages.
#[test]
fn a_trace_does_not_outlive_its_user() {
    let node = Node::start();
    let body = in_the_name_of_a_user(&node);
    begin(&node, body);
    node.must("DELETE", "/api/users/u", "", 204);
    let row = node.get(TRACE);
    assert_eq!([&row["state"], &row["reason"]], ["stopped", "user 'u' was deleted"]);
    assert_eq!(node.get("/api/vhosts/%2F")["tracing"], false);
}

/// Whether a vhost is traced, as long as no shard answers.
fn is_traced(node: &Node, vhost: &str) -> bool {
    node.inner.topology().vhost(vhost).unwrap().is_traced
}

/// All that a trace does has ended when its end is answered, whatever it waited for when that was asked.
#[test]
fn a_trace_ends_whose_queue_does_not_answer() {
    let node = Node::with(&[("collect_statistics_interval", "3600000")]);
    begin(&node, json!({"format": "text", "pattern": "#"}));
    let stalled = node.stall();
    stalled.wait_for("the trace asks for its queue", |it| matches!(it, ToShard::List { .. }));
    node.must("DELETE", TRACE, "", 204);
    assert!(!is_traced(&node, "/"));
    node.must("DELETE", FILE, "", 204);
    drop(stalled);
    wait_until("its queue goes", || node.get("/api/queues") == json!([]));
}

/// A trace that is under way when its user is deleted does not begin, and nothing is left of it.
#[test]
fn a_trace_does_not_begin_without_its_user() {
    let node = Node::start();
    let body = in_the_name_of_a_user(&node);
    let (status, why) = ended_early(&node, &body, || {
        node.must("DELETE", "/api/users/u", "", 204);
    });
    assert_eq!(status, 400);
    assert!(why.contains("cannot have its messages: user 'u' was deleted"), "{why}");
    assert_eq!(node.get("/api/traces"), json!([]));
    assert!(!is_traced(&node, "/"));
    wait_until("its queue goes", || node.get("/api/queues") == json!([]));
    // Its name and its file are free.
    begin(&node, json!({"format": "text", "pattern": "#"}));
}

/// A trace that is under way when the node stops does not begin, and does not hold up the stop.
#[test]
fn a_trace_does_not_begin_while_the_node_stops() {
    let node = Node::start();
    let body = json!({"format": "text", "pattern": "#"});
    let (status, why) = ended_early(&node, &body, || node.ask_to_stop());
    assert_eq!(status, 503);
    assert!(why.contains("the node is stopping"), "{why}");
}

/// A trace that is refused is not there, even if who asked for it has left before.
#[test]
fn nothing_is_left_of_a_trace_that_is_refused_when_nobody_waits_for_it() {
    let node = Node::start();
    let body = in_the_name_of_a_user(&node);
    std::thread::scope(|scope| {
        // Whoever has a vhost traced waits for this.
        let held = node.hold_meta();
        let wish = scope.spawn(|| node.must("PUT", "/api/vhosts/%2F", r#"{"tracing":false}"#, 204));
        let letter = held.take_out("the vhost is changed", |letter| {
            matches!(letter, ToMeta::Admin { command, .. }
                if matches!(**command, AdminCommand::PutVhost { .. }))
        });
        node.ask_and_leave("PUT", TRACE, &body.to_string(), || {
            node.ask("GET", TRACE, "").status == 200
        });
        let deleted = scope.spawn(|| node.must("DELETE", "/api/users/u", "", 204));
        wait_until("the trace is to end", || node.get(TRACE)["state"] == "stopped");
        run_alone(&node.inner, |runner| runner.run_meta(letter));
        deleted.join().unwrap();
        wish.join().unwrap();
    });
    assert_eq!(node.get("/api/traces"), json!([]));
}

/// A vhost that is deleted while a trace of it begins stays so, and the trace does not begin.
#[test]
fn a_trace_does_not_bring_its_vhost_back() {
    let node = Node::start();
    deleted_while_a_trace_begins(&node, || {});
    node.must("GET", "/api/vhosts/v", "", 404);
}

/// Nor is another vhost of that name traced.
#[test]
fn a_trace_is_of_one_vhost_and_not_of_its_name() {
    let node = Node::start();
    deleted_while_a_trace_begins(&node, || drop(node.must("PUT", "/api/vhosts/v", "", 201)));
    assert!(!is_traced(&node, "v"));
}

/// A vhost `v` is deleted, and `then` done, between a trace's wish that it be traced and its being so.
fn deleted_while_a_trace_begins(node: &Node, then: impl FnOnce()) {
    node.must("PUT", "/api/vhosts/v", "", 201);
    let body = json!({"format": "text", "pattern": "#"}).to_string();
    let stalled = node.stall();
    std::thread::scope(|scope| {
        // It does not wait for ever if this panics.
        let stalled = stalled;
        let asked = scope.spawn(|| node.ask("PUT", "/api/traces/v/t", &body));
        stalled.wait_for("its queue is declared", |it| matches!(it, ToShard::Create { .. }));
        let held = node.hold_meta();
        drop(stalled);
        let bind = held.take_out("the queue is bound", |it| matches!(it, ToMeta::Bind { .. }));
        let stalled = node.stall();
        run_alone(&node.inner, |runner| runner.run_meta(bind));
        stalled.wait_for("it is consumed", |it| matches!(it, ToShard::Consume { .. }));
        let held = node.hold_meta();
        drop(stalled);
        let change = held.take_out("the vhost is to be traced", |letter| {
            matches!(letter, ToMeta::Admin { command, .. }
                if matches!(**command, AdminCommand::SetTracing { .. }))
        });
        node.must("DELETE", "/api/vhosts/v", "", 204);
        then();
        run_alone(&node.inner, |runner| runner.run_meta(change));
        let got = asked.join().unwrap();
        assert_eq!(got.status, 400);
        let why = got.text();
        assert!(why.contains("cannot have its messages: vhost 'v' was deleted"), "{why}");
    });
    assert_eq!(node.get("/api/traces"), json!([]));
}

/// What is answered to whoever asks for a trace that `end` ends while it waits for its queue, which no shard answers.
fn ended_early(node: &Node, body: &Value, end: impl FnOnce()) -> (u16, String) {
    let stalled = node.stall();
    std::thread::scope(|scope| {
        // It does not wait for ever if this panics.
        let stalled = stalled;
        let asked = scope.spawn(|| node.ask("PUT", TRACE, &body.to_string()));
        stalled.wait_for("its queue is declared", |it| matches!(it, ToShard::Create { .. }));
        end();
        let got = asked.join().unwrap();
        (got.status, got.text())
    })
}

/// As many small copies wait as `tracing.max_waiting` has times 512 bytes.
#[test]
fn small_copies_that_wait_are_bounded() {
    let node = Node::with(&[("tracing.max_waiting", "65536")]);
    begin(&node, json!({"format": "text", "pattern": "#"}));
    let queue = &node.get(TRACE)["queue"];
    assert_eq!(queue["arguments"]["x-max-length"], 128);
    assert_eq!(queue["arguments"]["x-max-length-bytes"], 65536);
}

/// Under a flow that does not stop, each message is in the file or counted in it as missing, and both numbers are those told.
#[test]
fn each_message_of_a_flow_is_written_or_counted() {
    const MESSAGES: u64 = 30_000;

    let node = Node::with(&[("tracing.max_waiting", "65536")]);
    begin(
        &node,
        json!({"format": "json", "pattern": "publish.amq.fanout", "max_payload_bytes": 8}),
    );
    let (mut client, channel) = node.client();
    for number in 0..MESSAGES {
        let body = number.to_string();
        client.publish(channel, "amq.fanout", "", &[0, 0], body.as_bytes());
        if number % 100 == 99 {
            client.flush().unwrap();
        }
    }
    client.flush().unwrap();
    let sum = || {
        let row = node.get(TRACE);
        (row["written"].as_u64().unwrap(), row["not_written"].as_u64().unwrap())
    };
    wait_until("each is written or counted", || sum().0 + sum().1 == MESSAGES);
    let (written, not_written) = sum();
    let text = end_after(&node, written);
    let (mut found, mut missing, mut last) = (0, 0, None);
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        if line["type"] == "not_written" {
            missing += line["messages"].as_u64().unwrap();
            continue;
        }
        found += 1;
        let body = STANDARD.decode(line["payload"].as_str().unwrap()).unwrap();
        let number: u64 = std::str::from_utf8(&body).unwrap().parse().unwrap();
        assert!(last < Some(number), "{number} after {last:?}");
        last = Some(number);
    }
    assert_eq!((found, missing), (written, not_written));
}

/// A trace ends while messages come: what it had until then is whole and counted, and the next trace goes on with its file.
#[test]
fn a_trace_ends_in_the_middle_of_a_flow() {
    let node = Node::start();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut client, channel) = node.client();
            while !is_over.load(Ordering::Relaxed) {
                for _ in 0..100 {
                    client.publish(channel, "amq.fanout", "", &[0, 0], b"x");
                }
                client.flush().unwrap();
            }
        });
        let _over = Over(&is_over);
        for _ in 0..3 {
            begin(&node, json!({"format": "json", "pattern": "#"}));
            let is_flowing = || node.get(TRACE)["written"].as_u64() > Some(1_000);
            wait_until("messages are written", is_flowing);
            node.must("DELETE", TRACE, "", 204);
            let text = node.must("GET", FILE, "", 200).text();
            assert!(text.ends_with('\n'), "half a record");
            for line in text.lines() {
                serde_json::from_str::<Value>(line).unwrap();
            }
            // Nothing more comes.
            assert_eq!(node.get("/api/trace-files")[0]["size"], text.len());
        }
    });
}

/// Told however a scope ends.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Who asks for a file and does not read it holds up neither the trace nor those who delete the file.
#[test]
fn a_reader_that_hangs_holds_up_nobody() {
    let node = Node::start();
    begin(&node, json!({"format": "text", "pattern": "publish.#"}));
    let (mut client, channel) = node.client();
    let mut publish = |count: usize| {
        for _ in 0..count {
            client.publish(channel, "amq.fanout", "", &[0, 0], &[b'x'; 1 << 20]);
        }
        client.flush().unwrap();
    };
    publish(24);
    wait_until("the messages are written", || node.get(TRACE)["written"] == 24);
    let hung: Vec<_> = (0..4).map(|_| node.leave_api_unread(FILE)).collect();
    publish(1);
    wait_until("one more is written", || node.get(TRACE)["written"] == 25);
    node.must("DELETE", TRACE, "", 204);
    node.must("DELETE", FILE, "", 204);
    begin(&node, json!({"format": "text", "pattern": "publish.#"}));
    assert_eq!(node.get(TRACE)["file_bytes"], 0);
    drop(hung);
}

/// Of many who ask for one trace or one file at once, one gets it, whatever the vhosts.
#[test]
fn a_file_has_one_writer() {
    let node = Node::start();
    node.must("PUT", "/api/vhosts/v", "{}", 201);
    let good = r##"{"format": "text", "pattern": "#"}"##;
    let statuses: Vec<_> = std::thread::scope(|scope| {
        let ask = |vhost| {
            let node = &node;
            scope.spawn(move || node.ask("PUT", &format!("/api/traces/{vhost}/t"), good).status)
        };
        let asked: Vec<_> = (0..8).map(|n| ask(["%2F", "v"][n % 2])).collect();
        asked.into_iter().map(|it| it.join().unwrap()).collect()
    });
    let count = |status| statuses.iter().filter(|it| **it == status).count();
    assert_eq!((count(201), count(400)), (1, 7), "{statuses:?}");
    assert_eq!(node.get("/api/traces").as_array().unwrap().len(), 1);
}

/// A trace takes its share of `tracing.max_waiting_total` from its beginning to its end.
#[test]
fn what_waits_for_all_traces_is_bounded() {
    let node =
        Node::with(&[("tracing.max_waiting", "65536"), ("tracing.max_waiting_total", "150000")]);
    let good = r##"{"format": "text", "pattern": "#"}"##;
    let put = |name: &str, status| {
        node.must("PUT", &format!("/api/traces/%2F/{name}"), good, status).text()
    };
    put("a", 201);
    put("b", 201);
    let why = put("c", 400);
    assert!(why.contains("tracing.max_waiting_total, 150000 bytes"), "{why}");
    node.must("DELETE", "/api/traces/%2F/a", "", 204);
    put("c", 201);
}

/// What is wrong with the disk is no fault of the request; what is wrong with the directory is for the operator to mend.
#[test]
fn a_directory_that_cannot_be_used_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let good = r##"{"format": "text", "pattern": "#"}"##;
    std::fs::write(dir.path().join("file"), "").unwrap();
    let inside = dir.path().join("file/trace").display().to_string();
    let node = Node::with(&[("tracing.dir", &inside)]);
    let why = node.must("PUT", TRACE, good, 503).text();
    assert!(why.contains("cannot be written"), "{why}");
    node.must("GET", "/api/trace-files", "", 503);
    // Nothing is left of it.
    assert_eq!(node.get("/api/traces"), json!([]));
    assert_eq!(node.get("/api/vhosts/%2F")["tracing"], false);
    assert_eq!(node.get("/api/queues"), json!([]));
    drop(node);

    let shared = dir.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o770)).unwrap();
    let node = Node::with(&[("tracing.dir", &shared.display().to_string())]);
    let why = node.must("PUT", TRACE, good, 400).text();
    assert!(why.contains("others may write to its directory"), "{why}");
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o750)).unwrap();
    node.must("PUT", TRACE, good, 201);
}
