//! rabbitmqadmin v2, the one in Rust, by what it sends and what it has to find: building the program itself
//! takes longer than all other tests of the API.

use serde_json::Value;

use crate::node::Node;

/// See its first lines.
const RECORDED: &str = include_str!("rabbitmqadmin.txt");

/// Fields without which the program fails: those of its types that may not be missing, by the path of what
/// it reads into them. For a list they are its rows'.
#[rustfmt::skip] // a table
const FIELDS: &[(&str, &str)] = &[
    ("/api/overview", "cluster_name node erlang_full_version erlang_version rabbitmq_version product_name product_version \
        statistics_db_event_queue churn_rates queue_totals object_totals message_stats listeners"),
    ("/api/nodes", "name uptime run_queue processors os_pid fd_total proc_total mem_limit mem_alarm disk_free_limit \
        disk_free_alarm rates_mode enabled_plugins being_drained"),
    ("/api/nodes/NODE/memory", "memory"),
    ("/api/vhosts", "name tracing"),
    ("/api/users", "name tags password_hash"),
    ("/api/permissions", "user vhost configure write read"),
    ("/api/exchanges/ra", "name vhost type durable auto_delete internal arguments"),
    ("/api/queues/ra", "name vhost type durable auto_delete exclusive arguments"),
    ("/api/queues/ra/q", "name vhost type durable auto_delete exclusive arguments"),
    ("/api/bindings", "vhost source destination destination_type routing_key arguments properties_key"),
    ("/api/queues/ra/q/get", "payload_bytes redelivered exchange routing_key message_count properties payload payload_encoding"),
    ("/api/policies", "name vhost pattern apply-to priority definition"),
    ("/api/policies/ra/p", "name vhost pattern apply-to priority definition"),
    ("/api/operator-policies", "name vhost pattern apply-to priority definition"),
    ("/api/parameters", "component vhost name value"),
    ("/api/global-parameters", "name value"),
    ("/api/vhost-limits/ra", "vhost value"),
    ("/api/user-limits", "user value"),
    ("/api/connections", "name node protocol user connected_at client_properties"),
    ("/api/channels", "number name connection_details vhost state consumer_count confirm prefetch_count \
        messages_unacknowledged messages_unconfirmed"),
    ("/api/consumers", "consumer_tag active ack_required prefetch_count exclusive arguments consumer_timeout queue"),
    ("/api/feature-flags", "name state desc doc_url stability provided_by"),
    ("/api/deprecated-features", "name deprecation_phase desc doc_url provided_by"),
    ("/api/auth/attempts/NODE", "protocol auth_attempts auth_attempts_failed auth_attempts_succeeded"),
];

/// What the memory breakdown of a node must have.
const MEMORY: &str = "connection_readers connection_writers connection_channels connection_other queue_procs \
    quorum_queue_procs stream_queue_procs plugins other_proc metrics mgmt_db mnesia quorum_ets other_ets binary msg_index \
    code atom other_system allocated_unused reserved_unallocated strategy total";

#[test]
fn what_version_2_sends_is_answered() {
    let node = Node::start();
    // Somebody to be listed.
    let (mut client, channel) = node.client();
    client.queue_declare(channel, "listed", &Default::default()).unwrap();
    client.consume(channel, "listed", &Default::default()).unwrap();
    let port = node.amqp.port().to_string();
    let named = |text: &str| text.replace("NODE", "rabbit%40test").replace("PORT", &port);
    for line in RECORDED.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.splitn(4, ' ');
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        let status = words.next().unwrap().parse().unwrap();
        let body = match words.next().unwrap_or_default() {
            body if body.starts_with("GET ") => node.get(&named(&body[4..])).to_string(),
            body => body.to_owned(),
        };
        let got = node.must(method, &named(path), &body, status);
        if let Some((_, fields)) = FIELDS.iter().find(|(of, _)| *of == path)
            && status == 200
        {
            has_fields(path, &got.json(), fields);
        }
        if path.ends_with("/memory") {
            has_fields(path, &got.json()["memory"], MEMORY);
        }
    }
}

#[track_caller]
fn has_fields(path: &str, found: &Value, fields: &str) {
    let rows = found.as_array().map_or_else(|| std::slice::from_ref(found), Vec::as_slice);
    assert!(!rows.is_empty(), "{path} lists nothing");
    for row in rows {
        for field in fields.split_whitespace() {
            assert!(row.get(field).is_some(), "{path} has no {field}: {row:#}");
        }
    }
}
