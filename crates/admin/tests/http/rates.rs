//! Totals, rates and samples, under RabbitMQ's names.

use serde_json::{Value, json};

use crate::node::{Node, wait_until};

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("not a number: {value}"))
}

/// Measured by the broker, and told in steps of time.
#[test]
fn confirms_are_timed() {
    let node = Node::with(&[("collect_statistics_interval", "100")]);
    let path = "/api/leveret/confirm-latency";
    let first = node.get(path);
    let bounds: Vec<_> =
        first["below_ms"].as_array().unwrap().iter().map(Value::to_string).collect();
    assert_eq!(bounds[..7], ["0.05", "0.1", "0.2", "0.5", "1", "2", "5"]);
    assert_eq!(bounds[19..], ["100000", "null"]);
    let (mut client, channel) = node.client();
    client.queue_declare(channel, "q", &Default::default()).unwrap();
    client.confirm_select(channel).unwrap();
    let counted_below_a_millisecond = |told: &Value| -> u64 {
        let steps = told["steps"].as_array().unwrap().iter();
        let counts = steps.flat_map(|step| &step["counts"].as_array().unwrap()[..5]);
        counts.map(|count| count.as_u64().unwrap()).sum()
    };
    wait_until("a quick one was timed", || {
        client.publish(channel, "", "q", &[0, 0], b"12345");
        client.flush().unwrap();
        counted_below_a_millisecond(&node.get(&format!("{path}?age=60&incr=1"))) > 0
    });
    let told = node.get(&format!("{path}?age=60&incr=1"));
    let steps = told["steps"].as_array().unwrap();
    assert!(
        steps
            .iter()
            .all(|step| step["counts"].as_array().is_some_and(|it| it.len() == bounds.len()))
    );
    let times: Vec<_> = steps.iter().map(|step| number(&step["timestamp"])).collect();
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] == 1000.0), "{times:?}");
    for bad in ["age=x", "incr=0", "age=100000&incr=1"] {
        node.must("GET", &format!("{path}?{bad}"), "", 400);
    }
    let waits = node.get("/api/leveret/waits");
    assert_eq!(waits["alarms"], json!([]));
    let none = json!({"alarm": 0, "disk": 0, "answer": 0, "rate": 0, "room": 0, "output": 0});
    assert_eq!(waits["connections"], none);
    assert!(waits["long"].is_array());
    assert!(waits["disk"]["unwritten_bytes"].is_u64() && waits["log"]["disk_bytes"].is_u64());
    node.must("PUT", "/api/users/m", r#"{"password": "m", "tags": "management"}"#, 201);
    for path in [path, "/api/leveret/waits"] {
        assert_eq!(node.ask_as(Some("m:m"), "GET", path, &[], b"").status, 401);
    }
}

/// Wherever a slow hash is looked at: beside sources of users that are asked, too.
#[test]
fn slow_hashes_are_told() {
    let slow = ("password_hashing_module", "leveret_password_hashing_argon2id");
    let sources: [&[(&str, &str)]; 2] = [
        &[slow],
        &[
            slow,
            ("auth_backends.1", "internal"),
            ("auth_backends.2", "ldap"),
            ("auth_ldap.servers.1", "127.0.0.1"),
        ],
    ];
    for settings in sources {
        let node = Node::with(settings);
        // Sixteen times the cost of one that is made here: it is long on any machine.
        let hash = "$argon2id$v=19$m=65536,t=8,p=1$c29tZXNhbHRzb21lc2FsdA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
        let user = json!({
            "password_hash": hash, "hashing_algorithm": slow.1, "tags": "administrator",
        });
        node.must("PUT", "/api/users/u", &user.to_string(), 201);
        assert_eq!(node.ask_as(Some("u:wrong"), "GET", "/api/whoami", &[], b"").status, 401);
        let told = node.get("/api/leveret/waits")["long"].clone();
        let is_told =
            |long: &Value| long["what"].as_str().is_some_and(|it| it.contains("password"));
        assert!(told.as_array().unwrap().iter().any(is_told), "{settings:?}: {told}");
    }
}

/// RabbitMQ's Go client takes the first of them without a look.
#[test]
fn a_queue_that_was_not_sampled_yet_has_as_many_samples_as_were_asked_for() {
    let node = Node::with(&[("collect_statistics_interval", "3600000")]);
    let (mut client, channel) = node.client();
    client.queue_declare(channel, "q", &Default::default()).unwrap();
    let queue = node.get("/api/queues/%2F/q?lengths_age=60&lengths_incr=5");
    for details in ["messages_details", "messages_ready_details"] {
        let samples = queue[details]["samples"].as_array().expect(details);
        assert_eq!(samples.len(), 13, "{samples:?}");
        assert!(samples.iter().all(|sample| sample["sample"] == 0), "{samples:?}");
        assert_eq!(number(&samples[0]["timestamp"]) % 5000.0, 0.0);
    }
    let totals = node.get("/api/overview?lengths_age=600&lengths_incr=5");
    let samples = totals["queue_totals"]["messages_details"]["samples"].as_array();
    assert_eq!(samples.map(Vec::len), Some(121));
}

#[test]
fn totals_rates_and_samples() {
    let node = Node::with(&[("collect_statistics_interval", "100")]);
    assert_eq!(node.get("/api/overview")["message_stats"], json!({}));
    let (mut client, channel) = node.client();
    client.queue_declare(channel, "q", &Default::default()).unwrap();
    assert!(node.get("/api/queues/%2F/q").get("message_stats").is_none());
    client.confirm_select(channel).unwrap();

    // One after the other until a sample falls among them.
    let mut sent = 0_u64;
    let mut queue = Value::Null;
    wait_until("somebody saw a rate", || {
        client.publish(channel, "", "q", &[0, 0], b"12345");
        client.flush().unwrap();
        sent += 1;
        queue = node.get(
            "/api/queues/%2F/q?lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5",
        );
        queue["message_stats"]["publish_details"]["rate"].as_f64().is_some_and(|rate| rate > 0.0)
    });
    assert!(number(&queue["messages_ready_details"]["rate"]) > 0.0);
    let samples = queue["message_stats"]["publish_details"]["samples"].as_array().unwrap();
    let newest = samples.first().map(|sample| number(&sample["timestamp"]));
    assert!(newest.is_none_or(|ms| ms % 5000.0 == 0.0), "{samples:?}");
    assert!(queue["messages_details"]["samples"].is_array());

    let stats = |path: &str| node.get(path)["message_stats"].clone();
    wait_until("everything is counted everywhere", || {
        let overview = stats("/api/overview");
        overview["publish"] == sent
            && overview["confirm"] == sent
            && stats("/api/vhosts/%2F")["publish"] == sent
            && stats("/api/exchanges/%2F/amq.default")["publish_in"] == sent
    });
    assert_eq!(stats("/api/exchanges/%2F/amq.default")["publish_out"], sent);
    assert_eq!(stats("/api/exchanges/%2F/amq.default")["confirm"], sent);
    assert_eq!(node.get("/api/channels")[0]["message_stats"]["publish"], sent);
    let overview = node.get("/api/overview?msg_rates_age=60&msg_rates_incr=1");
    assert_eq!(overview["queue_totals"]["messages"], sent);
    assert_eq!(overview["churn_rates"]["connection_created"], 1);
    assert_eq!(overview["churn_rates"]["queue_created"], 1);
    let connection = &node.get("/api/connections")[0];
    assert!(number(&connection["recv_oct"]) > 5.0 * sent as f64);
    assert!(connection["recv_oct_details"]["rate"].is_number());

    // It all stays when the connection goes.
    client.close().unwrap();
    wait_until("the connection is closed", || {
        node.get("/api/overview")["churn_rates"]["connection_closed"] == 1
    });
    let overview = node.get("/api/overview");
    assert_eq!(overview["message_stats"]["publish"], sent);
    assert_eq!(overview["object_totals"]["connections"], 0);
}

/// What rests says since when, and what is used does not.
#[test]
fn idle_things_say_since_when() {
    let node = Node::with(&[("collect_statistics_interval", "100")]);
    let (mut client, channel) = node.client();
    client.queue_declare(channel, "q", &Default::default()).unwrap();
    let since = |path: &str| node.get(path)["idle_since"].as_str().map(str::to_owned);
    let channel_path = || {
        let name = node.get("/api/channels")[0]["name"].as_str().unwrap().replace(' ', "%20");
        format!("/api/channels/{}", name.replace('>', "%3E"))
    };
    assert_eq!(node.get("/api/queues/%2F/q")["oldest_ready_ms"], Value::Null);
    let (mut of_queue, mut of_channel) = (None, None);
    wait_until("nothing happens", || {
        (of_queue, of_channel) = (since("/api/queues/%2F/q"), since(&channel_path()));
        of_queue.is_some() && of_channel.is_some()
    });
    assert!(of_queue.as_deref().is_some_and(|at| at.ends_with("+00:00")), "{of_queue:?}");
    wait_until("something happens", || {
        client.publish(channel, "", "q", &[0, 0], b"12345");
        client.flush().unwrap();
        since("/api/queues/%2F/q").is_none() && since(&channel_path()).is_none()
    });
    let queue = node.get("/api/queues/%2F/q");
    assert!(queue["oldest_ready_ms"].is_u64(), "{queue}");
    wait_until("it rests again, since later", || {
        since("/api/queues/%2F/q") > of_queue && since(&channel_path()) > of_channel
    });
}

/// Which channel publishes where, and is given what: with rates, once a sample falls among messages.
#[test]
fn pairs_have_rates() {
    let node = Node::with(&[("collect_statistics_interval", "100")]);
    let (mut client, channel) = node.client();
    client.queue_declare(channel, "q", &Default::default()).unwrap();
    let no_ack = leveret_client::Consume { no_ack: true, ..Default::default() };
    client.consume(channel, "q", &no_ack).unwrap();
    client.confirm_select(channel).unwrap();
    let name = node.get("/api/channels")[0]["name"].as_str().unwrap().to_owned();
    let path = format!("/api/channels/{}", name.replace(' ', "%20").replace('>', "%3E"));
    let rate = |row: &Value, list: &str, what: &str| {
        row[list][0]["stats"][format!("{what}_details")]["rate"].as_f64().unwrap_or_default()
    };
    wait_until("every pair has a rate", || {
        for _ in 0..50 {
            client.publish(channel, "", "q", &[0, 0], b"");
        }
        client.flush().unwrap();
        client.poll().unwrap();
        while client.next_event().unwrap().is_some() {}
        let queue = node.get("/api/queues/%2F/q");
        let exchange = node.get("/api/exchanges/%2F/amq.default");
        let channel = node.get(&path);
        rate(&queue, "deliveries", "deliver_no_ack") > 0.0
            && queue["deliveries"][0]["channel_details"]["name"] == name
            && rate(&exchange, "incoming", "publish") > 0.0
            && rate(&queue, "incoming", "publish") > 0.0
            && queue["incoming"][0]["exchange"] == json!({"name": "", "vhost": "/"})
            && rate(&exchange, "outgoing", "publish") > 0.0
            && exchange["outgoing"][0]["queue"] == json!({"name": "q", "vhost": "/"})
            && rate(&channel, "publishes", "publish") > 0.0
            && rate(&channel, "publishes", "confirm") > 0.0
            && rate(&channel, "deliveries", "deliver_get") > 0.0
            && channel["deliveries"][0]["queue"]["name"] == "q"
    });
}

#[test]
fn a_node_tells_what_it_takes() {
    let node = Node::start();
    let row = &node.get("/api/nodes")[0];
    for name in ["mem_used", "fd_used", "fd_total", "disk_free", "mem_limit", "proc_used", "uptime"]
    {
        assert!(number(&row[name]) > 0.0, "{name}: {}", row[name]);
    }
    assert!(row["mem_used_details"]["rate"].is_number());
    let path = "/api/nodes/rabbit@test/memory";
    let memory = node.get(path)["memory"].clone();
    let parts = memory.as_object().unwrap().values().filter_map(Value::as_u64).sum::<u64>();
    assert_eq!(json!(parts), memory["total"]["rss"]);
    let relative = node.get(&format!("{path}/relative"))["memory"].clone();
    assert_eq!(relative["total"], 100);
    assert_eq!(
        node.get(&format!("{}?memory=true", "/api/nodes/rabbit@test"))["memory"]["strategy"],
        "rss"
    );
}
