//! The pages for Prometheus, compared with what is said of them.

use std::collections::BTreeSet;

use serde_json::json;

use crate::node::{Node, wait_until};

/// One row a metric of RabbitMQ's: name, family, and whether it is here.
const PARITY: &str = include_str!("../../../../docs/metrics-parity.md");

struct Row {
    name: &'static str,
    family: &'static str,
    is_here: bool,
}

fn rows() -> Vec<Row> {
    let lines = PARITY.lines().filter(|line| line.starts_with("| `"));
    let row = |line: &'static str| {
        let mut cells = line.split('|').skip(1).map(|cell| cell.trim().trim_matches('`'));
        let (name, family) = (cells.next().unwrap(), cells.next().unwrap());
        let is_here = match cells.next().unwrap().split(':').next() {
            Some("yes" | "0") => true,
            Some("no") => false,
            other => panic!("{name}: {other:?}"),
        };
        Row { name, family, is_here }
    };
    lines.map(row).collect()
}

/// Metrics of a page.
fn names(page: &str) -> BTreeSet<String> {
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types.filter_map(|line| Some(line.split(' ').next()?.to_owned())).collect()
}

#[test]
fn the_pages_are_what_the_table_says() {
    let node = Node::start();
    let rows = rows();
    assert!(rows.len() > 150, "{}", rows.len());
    let all: BTreeSet<_> = rows.iter().map(|row| row.family).filter(|it| !it.is_empty()).collect();
    let query: Vec<_> = all.iter().map(|family| format!("family={family}")).collect();
    let detailed = names(&node.scrape(&format!("/metrics/detailed?{}", query.join("&"))));
    // What scrapes cost is told by those that follow.
    let pages = ["/metrics/per-object", "/metrics/per-object", "/metrics/memory-breakdown"];
    let mut here: BTreeSet<String> = pages.iter().flat_map(|it| names(&node.scrape(it))).collect();
    here.extend(detailed.iter().filter(|it| it.starts_with("rabbitmq_cluster_")).cloned());
    for Row { name, family, is_here } in &rows {
        let found = match name.strip_suffix('*') {
            Some(start) => here.iter().any(|it| it.starts_with(start)),
            None => here.contains(*name),
        };
        assert_eq!(found, *is_here, "{name}");
        let of_family = match name.strip_prefix("rabbitmq_") {
            Some(rest) if !rest.starts_with("cluster_") => format!("rabbitmq_detailed_{rest}"),
            _ => (*name).to_owned(),
        };
        if !family.is_empty() {
            assert_eq!(detailed.contains(&of_family), *is_here, "{of_family}");
        }
    }
    let told: BTreeSet<_> = rows.iter().map(|row| row.name).collect();
    for name in here.iter().filter(|it| !it.starts_with("leveret_")) {
        assert!(told.contains(&**name), "{name} is not in the table");
    }
}

/// What a channel published through an exchange, and what it took from a queue, is told apart, and stays with
/// the exchange and the queue when it ends.
#[test]
fn messages_are_counted_by_channel_queue_and_exchange() {
    let node = Node::with(&[("collect_statistics_interval", "100")]);
    let (mut client, channel) = node.client();
    for queue in ["a", "b"] {
        client.queue_declare(channel, queue, &Default::default()).unwrap();
        client.queue_bind(channel, queue, "amq.fanout", "", &Default::default()).unwrap();
    }
    client.publish(channel, "amq.fanout", "", &[0, 0], b"to both");
    client.publish(channel, "", "a", &[0, 0], b"to one");
    client.flush().unwrap();
    let get = |client: &mut leveret_client::Connection, queue: &str, no_ack: bool| {
        client.get(channel, queue, no_ack).unwrap()
    };
    let tag = get(&mut client, "a", false).unwrap().delivery_tag;
    get(&mut client, "b", true).unwrap();
    assert!(get(&mut client, "b", true).is_none());
    client.ack(channel, tag, false);
    client.flush().unwrap();

    let families = "family=queue_exchange_metrics&family=channel_queue_exchange_metrics\
                    &family=channel_queue_metrics";
    let samples = || node.scrape(&format!("/metrics/detailed?{families}"));
    // Of the channel, whatever its name.
    let value = |page: &str, metric: &str, labels: &str| -> Option<u64> {
        let start = format!("rabbitmq_detailed_{metric}{{");
        let is_it = |line: &&str| line.starts_with(&start) && line.contains(labels);
        let sample = page.lines().rfind(is_it)?;
        sample.rsplit(' ').next()?.parse().ok()
    };
    let of_queue = |queue: &str| format!("vhost=\"/\",queue=\"{queue}\"}}");
    let of_exchange = |exchange: &str, queue: &str| {
        format!("queue_vhost=\"/\",queue=\"{queue}\",exchange_vhost=\"/\",exchange=\"{exchange}\"")
    };
    // The numbers of a session and those of a shard come in samples of their own.
    wait_until("the ack and the last publish are counted", || {
        let page = samples();
        value(&page, "channel_messages_acked_total", &of_queue("a")) == Some(1)
            && value(&page, "queue_messages_published_total", &of_exchange("", "a")) == Some(1)
    });
    let page = samples();
    let of_channel = |metric: &str, queue: &str| value(&page, metric, &of_queue(queue)).unwrap();
    assert_eq!(of_channel("channel_get_ack_total", "a"), 1);
    assert_eq!(of_channel("channel_get_total", "a"), 0);
    assert_eq!(of_channel("channel_get_total", "b"), 1);
    assert_eq!(of_channel("channel_get_empty_total", "b"), 1);
    assert_eq!(of_channel("channel_messages_acked_total", "b"), 0);
    let passed = [("amq.fanout", "a", 1), ("amq.fanout", "b", 1), ("", "a", 1)];
    for (exchange, queue, count) in passed {
        let labels = of_exchange(exchange, queue);
        assert_eq!(value(&page, "queue_messages_published_total", &labels), Some(count));
    }
    let deliveries = node.get("/api/queues/%2F/a")["deliveries"][0]["stats"].clone();
    for (name, count) in [("ack", 1), ("get", 1), ("deliver_get", 1), ("deliver", 0)] {
        assert_eq!(deliveries[name], count, "{deliveries}");
    }

    drop(client);
    wait_until("the connection's own are gone", || {
        !samples().contains("rabbitmq_detailed_queue_messages_published_total{")
    });
    let page = samples();
    for (exchange, queue, count) in passed {
        let labels = format!("vhost=\"/\",exchange=\"{exchange}\",queue=\"{queue}\"");
        assert_eq!(value(&page, "queue_exchange_messages_published_total", &labels), Some(count));
    }
    let incoming = node.get("/api/queues/%2F/b")["incoming"].clone();
    assert_eq!(incoming[0]["exchange"], json!({"name": "amq.fanout", "vhost": "/"}));
    assert_eq!(incoming[0]["stats"]["publish"], 1);
    node.must("DELETE", "/api/queues/%2F/a", "", 204);
    wait_until("what passed to it is forgotten", || !samples().contains("queue=\"a\""));
}

#[test]
fn metrics_may_ask_for_a_password() {
    let node = Node::with(&[("prometheus.authentication.enabled", "true")]);
    for (name, tags) in [("m", "monitoring"), ("u", "management")] {
        let body = format!(r#"{{"password": "p", "tags": "{tags}"}}"#);
        node.must("PUT", &format!("/api/users/{name}"), &body, 201);
    }
    let rows = [(None, 401), (Some("m:wrong"), 401), (Some("u:p"), 401), (Some("m:p"), 200)];
    for (user, want) in rows {
        for path in ["/metrics", "/metrics/per-object"] {
            let got = node.scrape_as(user, path);
            assert_eq!(got.status, want, "{user:?} {path}: {}", got.text());
        }
    }
}

/// Pages of each object are long, and need no login: who leaves them unread keeps only a few, and the others are told.
#[test]
fn pages_that_are_left_unread_are_few() {
    let node = Node::start();
    let queues: Vec<_> = (0..3000)
        .map(|n| json!({"name": format!("{n:05}{}", "q".repeat(200)), "vhost": "/", "durable": true}))
        .collect();
    node.must("POST", "/api/definitions", &json!({"queues": queues}).to_string(), 204);
    wait_until("all queues are sampled", || {
        node.scrape("/metrics").contains("\nrabbitmq_queues 3000\n")
    });
    let mut unread: Vec<_> = (0..4).map(|_| node.leave_unread("/metrics/per-object")).collect();
    let refused = node.scrape_as(None, "/metrics/per-object");
    assert_eq!((refused.status, refused.header("retry-after")), (503, "5"), "{}", refused.text());
    assert_eq!(node.scrape_as(None, "/metrics").status, 200, "sums are short");
    unread.pop();
    let page = node.scrape("/metrics/per-object");
    assert_eq!(page.matches("\nrabbitmq_queue_info{").count(), 3000);
}
