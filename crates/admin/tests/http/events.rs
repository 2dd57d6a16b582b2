//! The event exchange, beside RabbitMQ's; and the last events over HTTP.

use std::collections::BTreeMap;

use leveret_client::amqp::table::Table;
use leveret_client::{Connection, Consume, ExchangeDeclare, Options, QueueDeclare, Uri};
use serde_json::{Value, json};

use crate::node::{Node, wait_until};

/// Events and their headers, recorded from RabbitMQ.
const RECORDED: &str = include_str!("events.txt");

fn bind(node: &Node, key: &str) {
    node.must("PUT", "/api/queues/%2F/ev", r#"{"durable":true}"#, 201);
    let body = json!({"routing_key": key}).to_string();
    node.must("POST", "/api/bindings/%2F/e/amq.rabbitmq.event/q/ev", &body, 201);
}

/// Takes all messages out of the queue: routing key, properties, headers.
fn told(node: &Node) -> Vec<(String, Value)> {
    let body = json!({"count": 1000, "ackmode": "ack_requeue_false", "encoding": "auto"});
    let got = node.must("POST", "/api/queues/%2F/ev/get", &body.to_string(), 200).json();
    let messages = got.as_array().unwrap().iter();
    let one = |it: &Value| (it["routing_key"].as_str().unwrap().to_owned(), it.clone());
    messages.map(one).collect()
}

/// What the recording did.
fn do_everything(node: &Node) {
    let put = |path: &str, body: Value| node.ask("PUT", path, &body.to_string());
    let delete = |path: &str| node.must("DELETE", path, "", 204);
    let uri = Uri { host: node.amqp.ip().to_string(), port: node.amqp.port(), ..Uri::default() };
    let name = Some("me".to_owned());
    let own = Options { heartbeat_s: Some(0), name, ..Options::default() };
    let mut client = Connection::open(&uri, &own).unwrap();
    let channel = client.open_channel().unwrap();
    put("/api/queues/%2F/q1", json!({"durable": true, "arguments": {"x-max-length": 10}}));
    let exclusive = QueueDeclare { exclusive: true, ..QueueDeclare::default() };
    client.queue_declare(channel, "q2", &exclusive).unwrap();
    client.exchange_declare(channel, "x1", "topic", &ExchangeDeclare::default()).unwrap();
    client.queue_bind(channel, "q1", "x1", "k", &Table::new()).unwrap();
    let consume = Consume { consumer_tag: "t", ..Consume::default() };
    client.consume(channel, "q1", &consume).unwrap();
    client.cancel(channel, "t").unwrap();
    let definition =
        json!({"pattern": "^q", "definition": {"max-length": 5}, "apply-to": "queues"});
    put("/api/policies/%2F/p", definition.clone());
    delete("/api/policies/%2F/p");
    put("/api/operator-policies/%2F/op", definition);
    delete("/api/operator-policies/%2F/op");
    put("/api/global-parameters/gp", json!({"name": "gp", "value": {"a": 1}}));
    delete("/api/global-parameters/gp");
    put("/api/vhosts/v1", json!({"description": "d", "tags": "a,b"}));
    put("/api/vhost-limits/v1/max-queues", json!({"value": 4}));
    delete("/api/vhost-limits/v1/max-queues");
    put("/api/users/u1", json!({"password": "p", "tags": "management"}));
    put("/api/users/u1", json!({"password": "p2", "tags": ""}));
    put("/api/user-limits/u1/max-channels", json!({"value": 4}));
    delete("/api/user-limits/u1/max-channels");
    put("/api/permissions/v1/u1", json!({"configure": ".*", "write": "", "read": "a"}));
    delete("/api/permissions/v1/u1");
    put(
        "/api/topic-permissions/v1/u1",
        json!({"exchange": "amq.topic", "write": "w", "read": "r"}),
    );
    delete("/api/topic-permissions/v1/u1");
    delete("/api/users/u1");
    delete("/api/vhosts/v1");
    client.queue_unbind(channel, "q1", "x1", "k", &Table::new()).unwrap();
    client.exchange_delete(channel, "x1", false).unwrap();
    delete("/api/queues/%2F/q1");
    let wrong = Uri { password: "wrong".to_owned(), ..uri };
    Connection::open(&wrong, &own).unwrap_err();
    client.close_channel(channel).unwrap();
    client.close().unwrap();
}

#[test]
fn events_have_the_headers_of_rabbitmq() {
    let node = Node::start();
    bind(&node, "#");
    do_everything(&node);
    let mut all = told(&node);
    wait_until("the connection is told to be over", || {
        all.extend(told(&node));
        all.iter().any(|(key, _)| key == "connection.closed")
    });
    for line in RECORDED.lines().filter(|line| !line.starts_with('#')) {
        let (event, headers) = line.split_once(": ").unwrap();
        let found: Vec<_> = all.iter().filter(|(key, _)| key == event).collect();
        assert!(!found.is_empty(), "no {event} among {all:#?}");
        for (_, message) in found {
            // RabbitMQ tells the values of parameters to whoever may bind.
            for header in headers.split(' ').filter(|it| (event, *it) != ("parameter.set", "value"))
            {
                let value = &message["properties"]["headers"][header];
                assert!(!value.is_null(), "{event} has no {header}: {message:#}");
            }
        }
    }
    let of = |event: &str| -> BTreeMap<String, Value> {
        let (_, message) = all.iter().find(|(key, _)| key == event).unwrap();
        assert_eq!(message["properties"]["delivery_mode"], 2);
        assert_eq!(message["payload"], "");
        let seconds = message["properties"]["timestamp"].as_u64().unwrap();
        let ms = message["properties"]["headers"]["timestamp_in_ms"].as_u64().unwrap();
        assert_eq!(ms / 1000, seconds);
        serde_json::from_value(message["properties"]["headers"].clone()).unwrap()
    };
    for event in ["exchange.created", "exchange.deleted", "binding.created", "binding.deleted"] {
        // The binding that tells of all this, and the vhost, went over HTTP.
        let headers = |it: &Value| it["properties"]["headers"].clone();
        let mut all = all.iter().filter(|(key, _)| key == event).map(|(_, it)| headers(it));
        let facts = all.find(|it| it["vhost"] == "/" && it["destination_name"] != "ev").unwrap();
        assert_eq!(facts["connection_name"], of("connection.created")["name"], "{event}");
        assert_eq!(facts["connection"], of("connection.created")["pid"], "{event}");
        assert_eq!(facts["peer_host"], "127.0.0.1", "{event}");
        assert_eq!(facts["peer_port"], of("connection.created")["peer_port"], "{event}");
    }
    // The exclusive one is the client's; the other one came over HTTP.
    let created = |name: &str| {
        let mut all = all.iter().filter(|(key, _)| key == "queue.created");
        all.find(|(_, it)| it["properties"]["headers"]["name"] == name).unwrap().1.clone()
    };
    let (q1, q2) = (created("q1"), created("q2"));
    let connection = |it: &Value| it["properties"]["headers"]["connection"].clone();
    assert_eq!(connection(&q2), of("connection.created")["pid"]);
    assert_eq!(connection(&q1), Value::Null);
    for event in ["queue.created", "queue.deleted", "policy.set", "parameter.set", "user.created"] {
        let facts = of(event);
        assert_eq!(facts["peer_host"], "127.0.0.1", "{event}");
        assert!(facts["peer_port"].as_u64().unwrap() > 1024, "{event}");
        assert!(!facts.contains_key("connection_name"), "{event}");
    }
    let queue = of("queue.created");
    assert_eq!((&queue["name"], &queue["vhost"]), (&json!("q1"), &json!("/")));
    assert_eq!(queue["arguments"]["x-max-length"], 10);
    assert_eq!(
        (&queue["type"], &queue["members"]),
        (&json!("rabbit_classic_queue"), &json!(["rabbit@test"]))
    );
    assert_eq!(queue["user_who_performed_action"], "guest");
    assert_eq!(of("consumer.deleted")["user_who_performed_action"], "guest");
    let metadata = json!({"description": "d", "tags": ["a", "b"]});
    assert!(all.iter().any(|(key, it)| key.starts_with("vhost.")
        && it["properties"]["headers"]["metadata"] == metadata));
    assert_eq!(of("connection.created")["user_provided_name"], "me");
    assert_eq!(of("connection.created")["pid"], of("channel.created")["connection"]);
    assert_eq!(of("binding.deleted")["destination_name"], "q1");
    assert_eq!(of("policy.set")["definition"], json!({"max-length": 5}));
    assert_eq!(of("user.authentication.failure")["name"], "guest");
    // What went with its connection was nobody's doing.
    let (_, exclusive) = all.iter().rfind(|(key, _)| key == "queue.deleted").unwrap();
    assert_eq!(exclusive["properties"]["headers"]["name"], "q2");
    assert_eq!(exclusive["properties"]["headers"]["user_who_performed_action"], "rmq-internal");
}

#[test]
fn the_last_events_are_listed() {
    let node = Node::start();
    let last = node.get("/api/events")["last"].as_u64().unwrap();
    node.must("PUT", "/api/queues/%2F/q", r#"{"durable":true}"#, 201);
    node.must("DELETE", "/api/queues/%2F/q", "", 204);
    let got = node.get(&format!("/api/events?since={last}"));
    let names: Vec<_> = got["events"].as_array().unwrap().iter().map(|it| &it["name"]).collect();
    assert_eq!(names, ["queue.created", "queue.deleted"]);
    assert_eq!(got["last"], last + 2);
    let event = &got["events"][0];
    assert_eq!(event["facts"]["name"], "q");
    assert_eq!(event["facts"]["user_who_performed_action"], "guest");
    assert_eq!(event["facts"]["timestamp_in_ms"], event["timestamp"]);
    node.must("GET", "/api/events?since=x", "", 400);
    node.must("PUT", "/api/users/m", r#"{"password":"p","tags":"monitoring"}"#, 201);
    assert_eq!(node.ask_as(Some("m:p"), "GET", "/api/events", &[], b"").status, 401);
}

#[test]
fn the_exchange_is_the_brokers() {
    let node = Node::start();
    // The exchange is there, and only the broker publishes to it.
    let exchange = node.get("/api/exchanges/%2F/amq.rabbitmq.event");
    assert_eq!((&exchange["type"], &exchange["internal"]), (&json!("topic"), &json!(true)));
    let body =
        json!({"routing_key": "k", "properties": {}, "payload": "", "payload_encoding": "string"});
    node.must("POST", "/api/exchanges/%2F/amq.rabbitmq.event/publish", &body.to_string(), 401);
    node.must("PUT", "/api/vhosts/v", "", 201);
    node.must("GET", "/api/exchanges/v/amq.rabbitmq.event", "", 404);
}

/// Who may read from the event exchange need not be one of those to whom the API shows values.
#[test]
fn parameters_are_told_without_their_values() {
    let node = Node::start();
    bind(&node, "parameter.*");
    let value = json!({"src-uri": "amqp://u:hidden@h1/v", "ack-mode": "hidden"});
    let body = json!({"value": value}).to_string();
    node.must("PUT", "/api/global-parameters/g", &body, 201);
    let told = told(&node);
    let facts: Vec<_> = told.iter().map(|(_, it)| &it["properties"]["headers"]).collect();
    let names: Vec<_> = facts.iter().map(|it| (&it["component"], &it["name"])).collect();
    assert_eq!(names, [(&json!("global"), &json!("g"))]);
    assert!(!format!("{told:?}").contains("hidden"), "{told:#?}");
    assert!(!node.ask("GET", "/api/events", "").text().contains("hidden"));
    // Who may set it may see it.
    assert_eq!(node.get("/api/global-parameters/g")["value"], value);
}
