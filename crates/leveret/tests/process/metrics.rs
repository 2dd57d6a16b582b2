//! Metrics as Prometheus scrapes them, and what RabbitMQ's official dashboard needs of them.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use leveret_client::{Consume, Event, QueueDeclare};

use crate::broker::{Broker, PATIENCE, Publisher, declare, wait_until};

/// Every metric that RabbitMQ's Grafana dashboard "RabbitMQ-Overview" asks for, and labels that its
/// expressions name; `instance`, `job` and `namespace` come from the scraper.
#[rustfmt::skip] // a table
const OVERVIEW: &[(&str, &[&str])] = &[
    ("rabbitmq_identity_info", &["rabbitmq_node", "rabbitmq_cluster", "rabbitmq_endpoint"]),
    ("rabbitmq_build_info", &["rabbitmq_version", "erlang_version"]),
    ("rabbitmq_erlang_uptime_seconds", &[]),
    ("rabbitmq_queue_messages_ready", &[]),
    ("rabbitmq_queue_messages_unacked", &[]),
    ("rabbitmq_queues", &[]),
    ("rabbitmq_channels", &[]),
    ("rabbitmq_connections", &[]),
    ("rabbitmq_process_resident_memory_bytes", &[]),
    ("rabbitmq_resident_memory_limit_bytes", &[]),
    ("rabbitmq_disk_space_available_bytes", &[]),
    ("rabbitmq_disk_space_available_limit_bytes", &[]),
    ("rabbitmq_process_max_fds", &[]),
    ("rabbitmq_process_open_fds", &[]),
    ("rabbitmq_channels_closed_total", &[]),
    ("rabbitmq_channels_opened_total", &[]),
    ("rabbitmq_connections_closed_total", &[]),
    ("rabbitmq_connections_opened_total", &[]),
    ("rabbitmq_queues_created_total", &[]),
    ("rabbitmq_queues_declared_total", &[]),
    ("rabbitmq_queues_deleted_total", &[]),
    ("rabbitmq_global_publishers", &["protocol"]),
    ("rabbitmq_global_consumers", &["protocol"]),
    ("rabbitmq_global_messages_received_total", &["protocol"]),
    ("rabbitmq_global_messages_received_confirm_total", &["protocol"]),
    ("rabbitmq_global_messages_confirmed_total", &["protocol"]),
    ("rabbitmq_global_messages_routed_total", &["protocol"]),
    ("rabbitmq_global_messages_unroutable_dropped_total", &["protocol"]),
    ("rabbitmq_global_messages_unroutable_returned_total", &["protocol"]),
    ("rabbitmq_global_messages_delivered_total", &["protocol", "queue_type"]),
    ("rabbitmq_global_messages_delivered_consume_auto_ack_total", &["protocol", "queue_type"]),
    ("rabbitmq_global_messages_delivered_consume_manual_ack_total", &["protocol", "queue_type"]),
    ("rabbitmq_global_messages_delivered_get_auto_ack_total", &["protocol", "queue_type"]),
    ("rabbitmq_global_messages_delivered_get_manual_ack_total", &["protocol", "queue_type"]),
    ("rabbitmq_global_messages_get_empty_total", &["protocol", "queue_type"]),
    ("rabbitmq_global_messages_redelivered_total", &["protocol", "queue_type"]),
    ("rabbitmq_global_messages_acknowledged_total", &["protocol", "queue_type"]),
    ("rabbitmq_message_size_bytes_bucket", &["le"]),
    ("rabbitmq_message_size_bytes_sum", &[]),
    ("rabbitmq_message_size_bytes_count", &[]),
];

/// The bounds that the dashboard names, letter by letter.
const BOUNDS: [&str; 9] =
    ["100.0", "1000.0", "10000.0", "100000.0", "1e+06", "1e+07", "5e+07", "1e+08", "+Inf"];

/// A page: values by name and labels.
#[derive(Debug, Default)]
struct Page {
    values: BTreeMap<String, f64>,
    bytes: usize,
}

impl Page {
    /// Values of a metric, by labels.
    fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        self.values.iter().filter_map(move |(key, &value)| {
            let rest = key.strip_prefix(name)?;
            (rest.is_empty() || rest.starts_with('{')).then_some((rest, value))
        })
    }

    fn sum(&self, name: &str) -> f64 {
        self.of(name).map(|(_, value)| value).sum()
    }

    /// Of the default exchange, whatever the other labels are.
    fn of_default_exchange(&self, name: &str) -> f64 {
        let of_it = self.of(name).filter(|(labels, _)| labels.contains("exchange=\"\""));
        of_it.map(|(_, value)| value).sum()
    }

    #[track_caller]
    fn value(&self, key: &str) -> f64 {
        *self.values.get(key).unwrap_or_else(|| panic!("no {key} among {:#?}", self.values))
    }
}

fn metrics_address(broker: &Broker) -> SocketAddr {
    let ready = broker.log.wait_for(" is ready");
    let (_, rest) = ready.split_once("metrics=\"").expect("the ready line has it");
    let (address, _) = rest.split_once('"').unwrap();
    let port = address.parse::<SocketAddr>().unwrap().port();
    ([127, 0, 0, 1], port).into()
}

/// Status and body.
pub(crate) fn fetch(address: SocketAddr, path: &str) -> (u16, String) {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    // Version 1.0 has no chunks: a long page ends with its connection.
    let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
    socket.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split_whitespace().nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

/// A page that is there and well-formed: every value under its own TYPE and HELP, none of them twice.
#[track_caller]
fn scrape(address: SocketAddr, path: &str) -> Page {
    let (status, body) = fetch(address, path);
    assert_eq!(status, 200, "{path}: {body}");
    let mut page = Page { bytes: body.len(), ..Page::default() };
    let (mut family, mut seen) = (String::new(), Vec::new());
    let mut lines = body.lines().filter(|line| !line.is_empty());
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            family = rest.split(' ').next().unwrap().to_owned();
            assert!(!seen.contains(&family), "{family} twice in {path}");
            seen.push(family.clone());
            let help = lines.next().unwrap();
            assert!(help.starts_with(&format!("# HELP {family} ")), "{help}");
            continue;
        }
        let (key, value) = line.rsplit_once(' ').unwrap();
        assert!(key.starts_with(&*family), "{line} under {family}");
        let before = page.values.insert(key.to_owned(), value.parse().unwrap());
        assert_eq!(before, None, "{key} twice in {path}");
    }
    page
}

#[test]
fn the_official_dashboard_finds_everything() {
    let broker = Broker::start();
    let address = metrics_address(&broker);
    for path in ["/metrics", "/metrics/per-object"] {
        // Nothing has happened yet: counters are there all the same.
        let page = scrape(address, path);
        let missing: Vec<_> = OVERVIEW
            .iter()
            .filter(|(name, labels)| {
                let of_queues = name.starts_with("rabbitmq_queue_messages");
                let mut all = page.of(name).peekable();
                let is_there = all.peek().is_some() || (of_queues && path != "/metrics");
                let has = |label: &str, text: &str| text.contains(&format!("{label}=\""));
                !is_there || !all.all(|(text, _)| labels.iter().all(|label| has(label, text)))
            })
            .collect();
        assert!(missing.is_empty(), "{missing:#?}");
        for bound in BOUNDS {
            let key = format!(
                "rabbitmq_message_size_bytes_bucket{{protocol=\"amqp091\",le=\"{bound}\"}}"
            );
            page.value(&key);
        }
        let endpoint = if path == "/metrics" { "aggregated" } else { "per-object" };
        let (who, _) = page.of("rabbitmq_identity_info").next().unwrap();
        assert!(who.contains(&format!("rabbitmq_endpoint=\"{endpoint}\"")), "{who}");
    }
    let memory = scrape(address, "/metrics/memory-breakdown");
    assert!(memory.value("rabbitmq_memory_other_system_bytes") > 0.0);
    assert_eq!(fetch(address, "/metrics/nonsense").0, 404);
    assert_eq!(fetch(address, "/").0, 404);
    assert_eq!(fetch(address, "/metrics/detailed?queue=(").0, 400);
    broker.assert_quiet();
}

#[test]
fn totals_are_true_and_outlive_connections() {
    let broker = Broker::start();
    let address = metrics_address(&broker);
    let mut publisher = Publisher::new(&broker, "q");
    publisher.publish(&[b'x'; 500], 10);
    let (mut client, channel) = broker.channel();
    client.publish(channel, "", "nowhere", &[0, 0], b"lost");
    assert!(client.get(channel, "q", true).unwrap().is_some());
    let how = Consume { consumer_tag: "me", ..Consume::default() };
    client.consume(channel, "q", &how).unwrap();
    let mut got = 0;
    while got < 9 {
        match client.next_event().unwrap() {
            Some(Event::Content { .. }) => got += 1,
            Some(_) => {}
            None => assert!(client.wait(PATIENCE).unwrap(), "only {got} came"),
        }
    }
    // Of the nine, tags 2 to 10, five are acked and one comes back.
    client.ack(channel, 6, true);
    client.nack(channel, 7, false, true);
    client.flush().unwrap();
    let global = |name: &str| format!("rabbitmq_global_messages_{name}_total");
    let want = [
        ("received", 11.0),
        ("received_confirm", 10.0),
        ("confirmed", 10.0),
        ("routed", 10.0),
        ("unroutable_dropped", 1.0),
        ("delivered", 11.0),
        ("delivered_consume_manual_ack", 10.0),
        ("delivered_get_auto_ack", 1.0),
        ("acknowledged", 5.0),
    ];
    let mut page = Page::default();
    wait_until(PATIENCE, "the message came back, and all is counted", || {
        page = scrape(address, "/metrics");
        let is_there = |(name, value): &(&str, f64)| page.sum(&global(name)) >= *value;
        page.sum(&global("redelivered")) == 1.0 && want.iter().all(is_there)
    });
    let check = |page: &Page| {
        for (name, value) in want {
            assert_eq!(page.sum(&global(name)), value, "{name}");
        }
        assert_eq!(page.sum("rabbitmq_message_size_bytes_sum"), 5004.0);
        assert_eq!(page.sum("rabbitmq_message_size_bytes_count"), 11.0);
        assert_eq!(page.sum("rabbitmq_channel_messages_published_total"), 11.0);
    };
    check(&page);
    assert_eq!(page.value("rabbitmq_queue_messages_unacked"), 4.0);
    assert_eq!(page.value("rabbitmq_connections"), 2.0);
    assert_eq!(page.value("rabbitmq_global_publishers{protocol=\"amqp091\"}"), 2.0);
    assert!(page.sum("rabbitmq_connection_incoming_bytes_total") > 5000.0);

    let objects = scrape(address, "/metrics/per-object");
    let queue = "{vhost=\"/\",queue=\"q\"}";
    assert_eq!(objects.value(&format!("rabbitmq_queue_messages_unacked{queue}")), 4.0);
    assert_eq!(objects.value(&format!("rabbitmq_queue_messages_acked_total{queue}")), 5.0);
    let confirmed = objects.of_default_exchange("rabbitmq_exchange_messages_confirmed_total");
    assert_eq!(confirmed, 10.0);
    let confirmed = objects.of_default_exchange("rabbitmq_channel_messages_confirmed_total");
    assert_eq!(confirmed, 10.0);
    let logins = "rabbitmq_auth_attempts_succeeded_total{protocol=\"amqp091\"}";
    assert_eq!((objects.value(logins), page.value(logins)), (2.0, 2.0));
    let info = "rabbitmq_queue_info{vhost=\"/\",queue=\"q\",\
        queue_type=\"rabbit_classic_queue\",membership=\"leader\"}";
    assert_eq!(objects.value(info), 1.0);
    let detailed = "/metrics/detailed?family=queue_coarse_metrics&vhost=%2F&queue=%5Eq";
    let detailed = scrape(address, detailed);
    assert_eq!(detailed.value(&format!("rabbitmq_detailed_queue_messages{queue}")), 4.0);
    assert!(detailed.of("rabbitmq_detailed_queue_consumers").next().is_none());
    let none = scrape(address, "/metrics/detailed?family=queue_coarse_metrics&vhost=other");
    assert!(none.of("rabbitmq_detailed_queue_messages").next().is_none());

    our_dashboard_finds_everything(&page);
    client.close().unwrap();
    publisher.client.close().unwrap();
    wait_until(PATIENCE, "the connections are closed", || {
        page = scrape(address, "/metrics");
        page.value("rabbitmq_connections_closed_total") == 2.0
    });
    assert_eq!(page.value("rabbitmq_connections"), 0.0);
    assert_eq!(page.value("rabbitmq_channels_closed_total"), 2.0);
    check(&page);
    assert_eq!(page.value("rabbitmq_queue_messages_ready"), 4.0);
    // Deleting a queue takes its messages away, not what was counted.
    let (mut client, channel) = broker.channel();
    client.queue_delete(channel, "q").unwrap();
    wait_until(PATIENCE, "the queue is gone", || {
        page = scrape(address, "/metrics");
        page.value("rabbitmq_queues_deleted_total") == 1.0
    });
    check(&page);
    broker.assert_quiet();
}

/// The dashboard in `docs` asks for what there is.
#[track_caller]
fn our_dashboard_finds_everything(page: &Page) {
    let dashboard = include_str!("../../../../docs/grafana-leveret.json");
    let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
    let words = dashboard.split(|c| !is_name(c));
    let names: Vec<_> =
        words.filter(|it| it.starts_with("leveret_") || it.starts_with("rabbitmq_")).collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        assert!(page.of(name).next().is_some(), "no {name}");
    }
}

/// Each of ten thousand queues on one page. How long it takes is told, not asserted: see the output.
#[test]
fn ten_thousand_queues_are_scraped() {
    const QUEUES: usize = 10_000;
    let broker = Broker::start();
    let address = metrics_address(&broker);
    let (mut client, channel) = broker.channel();
    let how = QueueDeclare::default();
    for n in 0..QUEUES {
        client.queue_declare(channel, &format!("queue-{n}"), &how).unwrap();
    }
    declare(&mut client, channel, "last");
    for path in ["/metrics", "/metrics/per-object"] {
        let all = QUEUES as f64 + 1.0;
        // A sample of a moment ago may be shown.
        wait_until(PATIENCE, "all are shown", || {
            scrape(address, path).value("rabbitmq_queues") == all
        });
        let start = Instant::now();
        let page = scrape(address, path);
        let took = start.elapsed();
        eprintln!("{path}: {} bytes in {took:?}", page.bytes);
        assert_eq!(page.value("rabbitmq_queues"), all);
        let rows = page.of("rabbitmq_queue_messages_ready").count();
        assert_eq!(rows, if path == "/metrics" { 1 } else { QUEUES + 1 });
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
}
