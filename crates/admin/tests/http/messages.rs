//! Messages over HTTP, and what is seen of clients.

use leveret_client::{Consume, QueueDeclare};
use serde_json::{Value, json};

use crate::node::{Node, wait_until};

fn message(payload: &str, encoding: &str, properties: &Value) -> String {
    json!({
        "routing_key": "q",
        "properties": properties,
        "payload": payload,
        "payload_encoding": encoding,
    })
    .to_string()
}

const PUBLISH: &str = "/api/exchanges/%2F/amq.default/publish";
const GET: &str = "/api/queues/%2F/q/get";

#[track_caller]
fn get(node: &Node, count: u64, ackmode: &str) -> Value {
    let body = json!({"count": count, "ackmode": ackmode, "encoding": "auto"});
    node.must("POST", GET, &body.to_string(), 200).json()
}

#[test]
fn messages_go_in_and_out() {
    let node = Node::start();
    let unrouted = node.must("POST", PUBLISH, &message("x", "string", &json!({})), 200);
    assert_eq!(unrouted.text(), r#"{"routed":false}"#);
    node.must("PUT", "/api/queues/%2F/q", "", 201);
    let properties = json!({
        "delivery_mode": 2, "headers": {"a": 1, "b": "c"}, "content_type": "text/plain",
        "priority": 3, "timestamp": 1_700_000_000, "type": "t", "expiration": "600000",
    });
    let routed = node.must("POST", PUBLISH, &message("one", "string", &properties), 200);
    assert_eq!(routed.text(), r#"{"routed":true}"#);
    node.must("POST", PUBLISH, &message("/wA=", "base64", &json!({})), 200);

    let got = get(&node, 5, "ack_requeue_true");
    assert_eq!(got[0]["payload"], "one");
    assert_eq!(got[0]["payload_encoding"], "string");
    assert_eq!(got[0]["payload_bytes"], 3);
    assert_eq!(got[0]["properties"], properties);
    assert_eq!(got[0]["redelivered"], false);
    assert_eq!(got[0]["message_count"], 1);
    assert_eq!(got[0]["routing_key"], "q");
    assert_eq!(got[1]["payload"], "/wA=");
    assert_eq!(got[1]["payload_encoding"], "base64");
    assert_eq!(got[1]["properties"], json!([]), "as an empty list of Erlang is written");
    assert_eq!(got.as_array().unwrap().len(), 2);
    // They are back, in their order.
    let got = get(&node, 1, "reject_requeue_true");
    assert_eq!((&got[0]["payload"], &got[0]["redelivered"]), (&json!("one"), &json!(true)));
    let body =
        json!({"count": 1, "ackmode": "ack_requeue_false", "encoding": "base64", "truncate": 2});
    let got = node.must("POST", GET, &body.to_string(), 200).json();
    assert_eq!(got[0]["payload"], "b24=");
    assert_eq!(get(&node, 1, "reject_requeue_false").as_array().unwrap().len(), 1);
    assert_eq!(get(&node, 1, "ack_requeue_true"), json!([]));
    let queue = node.get("/api/queues/%2F/q");
    assert_eq!((&queue["messages"], &queue["messages_unacknowledged"]), (&json!(0), &json!(0)));
}

/// What goes in over HTTP counts as what goes in over AMQP, but no connection was opened for it.
#[test]
fn messages_over_http_are_counted() {
    let node = Node::with(&[("collect_statistics_interval", "100")]);
    node.must("PUT", "/api/queues/%2F/q", "", 201);
    node.must("POST", PUBLISH, &message("one", "string", &json!({})), 200);
    get(&node, 1, "ack_requeue_false");
    wait_until("everything is counted", || {
        let overview = node.get("/api/overview");
        let exchange = node.get("/api/exchanges/%2F/amq.default");
        let (all, of_exchange) = (&overview["message_stats"], &exchange["message_stats"]);
        let counts = (&all["publish"], &all["confirm"], &all["get"], &all["get_no_ack"]);
        counts == (&json!(1), &json!(1), &json!(0), &json!(1))
            && of_exchange["publish_in"] == 1
            && of_exchange["publish_out"] == 1
            && of_exchange["confirm"] == 1
    });
    let churn = &node.get("/api/overview")["churn_rates"];
    assert_eq!((&churn["connection_created"], &churn["channel_created"]), (&json!(0), &json!(0)));
}

#[test]
fn bad_messages() {
    let node = Node::start();
    node.must("PUT", "/api/queues/%2F/q", "", 201);
    let ask = |path: &str, body: &str, part: &str| {
        let got = node.must("POST", path, body, 400);
        assert!(got.text().contains(part), "{body}: {}", got.text());
    };
    ask(
        PUBLISH,
        "{}",
        "[{key_missing,routing_key},{key_missing,properties},{key_missing,payload},{key_missing,payload_encoding}]",
    );
    ask(PUBLISH, &message("?", "base64", &json!({})), "not base64");
    ask(PUBLISH, &message("?", "rot13", &json!({})), "rot13");
    ask(PUBLISH, &message("", "string", &json!({"priority": 256})), "priority");
    ask(PUBLISH, &message("", "string", &json!({"type": "x".repeat(256)})), "255 bytes");
    ask(PUBLISH, &message("", "string", &json!({"expiration": "x"})), "expiration");
    ask(PUBLISH, &message("", "string", &json!({"delivery_mode": 7})), "7");
    let nested = |levels: usize| {
        let (open, close) = (r#"{"a":"#.repeat(levels), "}".repeat(levels));
        serde_json::from_str(&format!(r#"{{"headers":{open}1{close}}}"#)).unwrap()
    };
    let lists = format!(r#"{{"headers":{{"a":{}{}}}}}"#, "[".repeat(100), "]".repeat(100));
    ask(PUBLISH, &message("", "string", &nested(101)), "'headers' must be at most 100 levels deep");
    let lists = serde_json::from_str(&lists).unwrap();
    ask(PUBLISH, &message("", "string", &lists), "'headers' must be at most 100 levels deep");
    let deep = "[".repeat(100_000);
    ask(PUBLISH, &deep, "not_json");
    node.must("POST", PUBLISH, &message("", "string", &nested(100)), 200);
    let got = get(&node, 1, "ack_requeue_false");
    assert_eq!(got[0]["properties"], nested(100));
    ask(GET, "{}", "[{key_missing,ackmode},{key_missing,count},{key_missing,encoding}]");
    let body = |ackmode: &str, count: Value, encoding: &str| {
        json!({"count": count, "ackmode": ackmode, "encoding": encoding}).to_string()
    };
    ask(GET, &body("keep", json!(1), "auto"), "unknown ackmode");
    ask(GET, &body("ack_requeue_true", json!("x"), "auto"), "whole number");
    ask(GET, &body("ack_requeue_true", json!(1_000_000), "auto"), "at most");
    ask(GET, &body("ack_requeue_true", json!(1), "hex"), "auto or base64");
    let message = message("", "string", &json!({}));
    node.must("POST", "/api/exchanges/%2F/no/publish", &message, 404);
    let ok = body("ack_requeue_true", json!(1), "auto");
    node.must("POST", "/api/queues/%2F/no/get", &ok, 404);
}

/// What AMQP forbids HTTP forbids, whatever tags a user has.
#[test]
fn permissions_hold() {
    let node = Node::start();
    node.must("PUT", "/api/queues/%2F/q", "", 201);
    node.must("PUT", "/api/users/u", r#"{"password": "p", "tags": "administrator"}"#, 201);
    let permissions = r#"{"configure": "^mine", "write": "^mine", "read": "^mine"}"#;
    node.must("PUT", "/api/permissions/%2F/u", permissions, 201);
    let ask = |method: &str, path: &str, body: &str, status: u16| {
        let got = node.ask_as(Some("u:p"), method, path, &[], body.as_bytes());
        assert_eq!(got.status, status, "{method} {path}: {}", got.text());
        if status == 401 {
            assert!(got.text().contains("access to"), "{}", got.text());
        }
    };
    ask("PUT", "/api/queues/%2F/mine", "", 201);
    ask("PUT", "/api/queues/%2F/yours", "", 401);
    ask("DELETE", "/api/queues/%2F/q", "", 401);
    ask("DELETE", "/api/queues/%2F/q/contents", "", 401);
    ask("POST", "/api/bindings/%2F/e/amq.direct/q/mine", "{}", 401);
    ask("POST", PUBLISH, &message("", "string", &json!({})), 401);
    let body = r#"{"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}"#;
    ask("POST", GET, body, 401);
    ask("POST", "/api/queues/%2F/mine/get", body, 200);
}

#[test]
fn clients_are_seen_and_closed() {
    let node = Node::start();
    let (mut client, channel) = node.client();
    client
        .queue_declare(channel, "q", &QueueDeclare { exclusive: true, ..Default::default() })
        .unwrap();
    client.qos(channel, 7, false).unwrap();
    client.consume(channel, "q", &Consume { consumer_tag: "me", ..Consume::default() }).unwrap();
    client.confirm_select(channel).unwrap();

    let connections = node.get("/api/connections");
    let connection = &connections[0];
    assert_eq!(connection["user"], "guest");
    assert_eq!(connection["state"], "running");
    assert_eq!(connection["protocol"], "AMQP 0-9-1");
    assert_eq!(connection["channels"], 1);
    let name = connection["name"].as_str().unwrap().to_owned();
    let path = format!("/api/connections/{}", name.replace(' ', "%20").replace('>', "%3E"));
    assert_eq!(node.get(&path)["name"], *name);
    assert_eq!(node.get("/api/connections/username/guest")[0]["name"], *name);
    assert_eq!(node.get("/api/connections/username/other"), json!([]));
    assert_eq!(node.get("/api/vhosts/%2F/connections")[0]["name"], *name);

    let channels = node.get("/api/channels");
    assert_eq!(channels[0]["name"], format!("{name} (1)"));
    assert_eq!(
        (&channels[0]["prefetch_count"], &channels[0]["confirm"]),
        (&json!(7), &json!(true))
    );
    assert_eq!(channels[0]["connection_details"]["name"], *name);
    assert_eq!(node.get(&format!("{path}/channels")), channels);
    assert_eq!(node.get("/api/vhosts/%2F/channels"), channels);
    let one = format!("/api/channels/{}%20(1)", name.replace(' ', "%20").replace('>', "%3E"));
    assert_eq!(node.get(&one)["consumer_count"], 1);
    node.must("GET", "/api/channels/none", "", 404);

    let consumers = node.get("/api/consumers");
    assert_eq!(consumers[0]["consumer_tag"], "me");
    assert_eq!(consumers[0]["queue"], json!({"name": "q", "vhost": "/"}));
    assert_eq!(consumers[0]["channel_details"]["connection_name"], *name);
    assert_eq!(node.get("/api/consumers/%2F"), consumers);
    let queue = node.get("/api/queues/%2F/q");
    assert_eq!(queue["consumer_details"], consumers);
    assert_eq!((&queue["exclusive"], &queue["consumers"]), (&json!(true), &json!(1)));
    assert_eq!(queue["owner_pid_details"]["name"], *name);
    let got = node.ask("DELETE", "/api/queues/%2F/q", "");
    assert_eq!(got.status, 400, "exclusive to another connection: {}", got.text());
    assert_eq!(node.get("/api/overview")["object_totals"]["consumers"], 1);

    let reason = [("X-Reason", "enough")];
    let got = node.ask_as(Some("guest:guest"), "DELETE", &path, &reason, b"");
    assert_eq!(got.status, 204, "{}", got.text());
    let text = loop {
        match client.next_event() {
            Ok(Some(_)) => {}
            Ok(None) => assert!(client.wait(std::time::Duration::from_secs(30)).unwrap()),
            Err(error) => break error.close_reason().unwrap().text.to_string(),
        }
    };
    assert_eq!(text, "CONNECTION_FORCED - enough");
    drop(client);
    wait_until("it is gone", || node.ask("GET", &path, "").status == 404);
    node.must("DELETE", &path, "", 404);
    let (_other, _) = node.client();
    wait_until("it is seen", || node.get("/api/connections") != json!([]));
    node.must("DELETE", "/api/connections/username/guest", "", 204);
}
