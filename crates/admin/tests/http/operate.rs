//! What only an operator asks for: paths below `/api/leveret`.

use leveret_client::{Consume, Event};
use serde_json::{Value, json};

use crate::node::{Node, wait_until};

#[test]
fn the_node_at_a_glance() {
    let node = Node::start();
    let status = node.get("/api/leveret/status");
    assert_eq!(status["totals"]["virtual_host_count"], 1);
    assert_eq!(status["is_under_maintenance"], false);
    assert_eq!(status["listeners"][0]["protocol"], "amqp");
    assert!(status["memory"]["total"]["rss"].as_u64() > Some(1_000_000));
    // The program itself is a part of what the watermark is compared with.
    let held = status["message_bytes"].as_u64().unwrap();
    assert!(status["memory"]["compared"].as_u64() >= Some(held + (8 << 20)), "{status}");
}

#[test]
#[rustfmt::skip] // a table
fn watermarks_and_passwords() {
    let node = Node::start();
    let limit = || node.get("/api/leveret/status")["vm_memory_high_watermark_limit"].clone();
    let configured = limit();
    let check = |method: &str, path: &str, body: &str, want: u16| {
        assert_eq!(node.ask(method, &format!("/api/leveret/{path}"), body).status, want, "{path} {body}");
    };
    check("PUT",    "watermarks/memory", r#"{"absolute": 5000000000}"#,                 204);
    assert_eq!(limit(), json!(5_000_000_000_u64));
    check("PUT",    "watermarks/memory", r#"{"relative": 1.5}"#,                        400);
    check("PUT",    "watermarks/memory", r#"{"relative": 0.5, "absolute": 1}"#,         400);
    check("PUT",    "watermarks/memory", r#"{}"#,                                       400);
    check("DELETE", "watermarks/memory", "",                                            204);
    assert_eq!(limit(), configured);
    check("PUT",    "watermarks/disk",   r#"{"relative": 0.001}"#,                      204);
    check("DELETE", "watermarks/disk",   "",                                            204);
    check("POST",   "authenticate",      r#"{"username": "guest", "password": "guest"}"#, 204);
    check("POST",   "authenticate",      r#"{"username": "guest", "password": "no"}"#,  400);
    check("POST",   "authenticate",      r#"{"username": "guest"}"#,                    400);
    check("GET",    "log",               "",                                            404);
    check("POST",   "log/rotate",        "",                                            404);
    check("PUT",    "log/level",         r#"{"level": "error"}"#,                       204);
    check("PUT",    "log/level",         r#"{"level": "loud"}"#,                        400);
    check("PUT",    "log/level",         r#"{}"#,                                       400);
    check("GET",    "log?from=x",        "",                                            400);
    check("POST",   "stop",              "",                                            401);
}

#[test]
fn what_tools_look_at() {
    let node = Node::start();
    let threads = node.get("/api/leveret/threads");
    let own = threads["threads"].as_array().unwrap();
    assert!(own.iter().any(|it| it["user_ms"].is_u64() && it["name"].is_string()), "{threads}");
    assert!(threads["at_ms"].is_u64());
    let tls = node.get("/api/leveret/tls");
    assert_eq!(tls["versions"], json!(["tlsv1.3", "tlsv1.2"]));
    assert_eq!(tls["listeners"], json!([]));
    assert_eq!(tls["cipher_suites"], tls["enabled_cipher_suites"]);
    let (mut client, channel) = node.client();
    for bytes in [10, 100, 101, 5000] {
        client.publish(channel, "", "q", &[0, 0], &vec![0; bytes]);
    }
    client.flush().unwrap();
    let sizes = || node.get("/api/leveret/message-sizes");
    wait_until("all are counted", || sizes()["bytes"] == 5211);
    let sizes = sizes();
    let first = [(100, 2), (1000, 1), (10_000, 1), (100_000, 0)];
    for (at, (at_most, count)) in first.into_iter().enumerate() {
        assert_eq!(sizes["sizes"][at], json!({"at_most": at_most, "count": count}));
    }
    assert_eq!(sizes["sizes"][8], json!({"at_most": null, "count": 0}));
}

/// Each sort of what the node consists of, the busiest first, in the form of RabbitMQ's top plugin.
#[test]
fn what_is_busiest() {
    let node = Node::with(&[("collect_statistics_interval", "100")]);
    let path = format!("/api/top/{}", node.get("/api/overview")["node"].as_str().unwrap());
    let mut clients = Vec::new();
    for (body, name) in [(100_000, "large"), (10, "small")] {
        node.must("PUT", &format!("/api/queues/%2F/{name}"), "{}", 201);
        let (mut client, channel) = node.client();
        for _ in 0..if name == "small" { 300 } else { 1 } {
            client.publish(channel, "", name, &[0, 0], &vec![0; body]);
        }
        client.flush().unwrap();
        clients.push(client);
    }
    let rows = |query: &str| {
        let top = node.get(&format!("{path}?{query}"));
        top["processes"].as_array().unwrap().clone()
    };
    let queue = |row: &Value| row["name"]["queue_name"].as_str().unwrap_or_default().to_owned();
    wait_until("all was counted", || {
        let rows = rows("type=queue&sort=reductions");
        rows.iter().map(|row| row["reductions"].as_u64().unwrap()).eq([300, 1])
    });
    assert_eq!(
        rows("type=queue&sort=reductions").iter().map(queue).collect::<Vec<_>>(),
        ["small", "large"]
    );
    let upwards = rows("type=queue&sort=reductions&sort_reverse=true&row_count=1");
    assert_eq!(upwards.iter().map(queue).collect::<Vec<_>>(), ["large"]);
    let bytes = rows("type=connection&sort=reductions");
    assert!(bytes[0]["reductions"].as_u64() > Some(100_000) && bytes.len() == 2, "{bytes:?}");
    assert!(bytes.iter().all(|row| row["memory"].as_u64() > Some(0)), "{bytes:?}");
    // A sample looks at connections before it looks at queues.
    wait_until("all was counted of channels, too", || {
        let channels = rows("type=channel&sort=reductions");
        (channels.len(), &channels[0]["reductions"]) == (2, &json!(300))
    });
    let channels = rows("type=channel&sort=reductions");
    assert_eq!(
        channels[0]["name"]["connection_name"],
        rows("type=connection")[0]["name"]["connection_name"]
    );
    assert!(rows("type=thread").iter().any(|row| row["name"]["name"].is_string()));
    let shards = rows("type=shard&sort=memory");
    assert!(shards[0]["memory"].as_u64() > Some(100_000), "{shards:?}");
    // All together, and what RabbitMQ's page reads of each.
    let all = rows("row_count=500");
    for field in [
        "pid",
        "name",
        "memory",
        "reductions",
        "reduction_delta",
        "message_queue_len",
        "buffer_len",
        "status",
    ] {
        assert!(all.iter().all(|row| !row[field].is_null()), "{field}");
    }
    assert!(rows("row_count=3").len() == 3 && rows("").len() <= 20);
    let ets = node.get(&path.replace("/top/", "/top/ets/"));
    assert_eq!(ets["ets_tables"], json!([]));
    node.must("GET", "/api/top/rabbit@other", "", 404);
}

/// In a traced vhost the last confirmed message's way is told, from its publish to its confirm.
#[test]
fn the_way_of_a_message() {
    let node = Node::start();
    let path = "/api/leveret/path/%2F";
    assert_eq!(node.get(path)["steps"], json!([]));
    node.must("PUT", "/api/vhosts/%2F", r#"{"tracing": true}"#, 204);
    let ((mut publisher, from), (mut consumer, to)) = (node.client(), node.client());
    node.must("PUT", "/api/queues/%2F/q", r#"{"arguments": {"x-confirm-on": "ack"}}"#, 201);
    consumer.consume(to, "q", &Consume { consumer_tag: "t", ..Consume::default() }).unwrap();
    publisher.confirm_select(from).unwrap();
    publisher.publish(from, "", "q", &[0, 0], b"seen");
    publisher.flush().unwrap();
    while !matches!(consumer.next_event().unwrap(), Some(Event::Content { .. })) {
        consumer.wait(crate::node::PATIENCE).unwrap();
    }
    consumer.ack(to, 1, false);
    consumer.flush().unwrap();
    let steps = || -> Vec<Value> { node.get(path)["steps"].as_array().unwrap().clone() };
    wait_until("it is confirmed", || steps().len() == 5);
    let steps = steps();
    let names: Vec<_> = steps.iter().map(|step| step["step"].as_str().unwrap()).collect();
    assert_eq!(names, ["published", "stored", "delivered", "acked", "confirmed"]);
    let times: Vec<_> = steps.iter().map(|step| step["at_us"].as_u64().unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");
    assert_eq!(steps[0]["routing_key"], "q");
    assert_eq!(steps[1]["record"], steps[2]["record"]);
    assert_eq!(steps[2]["queues"], json!(["q"]));
    assert_eq!(steps[3]["connection"], steps[2]["connection"]);
    assert_eq!(steps[4]["connection"], steps[0]["connection"]);
    node.must("GET", "/api/leveret/path/none", "", 404);
}

/// Who may see everything may change nothing.
#[test]
fn monitoring_is_no_administrator() {
    let node = Node::start();
    node.ask("PUT", "/api/users/m", r#"{"password": "m", "tags": "monitoring"}"#);
    let ask = |method, path: &str| {
        node.ask_as(Some("m:m"), method, &format!("/api/leveret/{path}"), &[], b"{}").status
    };
    assert_eq!(ask("GET", "status"), 200);
    for (method, path) in [
        ("PUT", "watermarks/memory"),
        ("PUT", "watermarks/disk"),
        ("POST", "listeners/suspend"),
        ("POST", "certificates/reload"),
        ("POST", "authenticate"),
        ("GET", "log"),
        ("POST", "log/rotate"),
        ("PUT", "log/level"),
    ] {
        assert_eq!(ask(method, path), 401, "{path}");
    }
}
