//! Fields that tools read: each is there, also while nothing has happened to what has it.

use leveret_client::{Consume, Event, ExchangeDeclare, QueueDeclare};
use serde_json::{Value, json};

use crate::node::{Node, wait_until};

/// Where, and what has to be there: `a.b` is in `a`, of every row of a list.
#[rustfmt::skip] // a table
const FIELDS: &[(&str, &str)] = &[
    ("overview", "rabbitmq_version erlang_version erlang_full_version product_name product_version management_version \
        cluster_name cluster_tags node_tags node rates_mode statistics_db_event_queue message_stats default_queue_type \
        churn_rates.connection_created churn_rates.connection_closed_details.rate churn_rates.channel_created \
        churn_rates.channel_closed churn_rates.queue_declared churn_rates.queue_created churn_rates.queue_deleted \
        queue_totals.messages queue_totals.messages_ready_details.rate queue_totals.messages_unacknowledged \
        object_totals.connections object_totals.channels object_totals.exchanges object_totals.queues \
        object_totals.consumers sample_retention_policies disable_stats is_op_policy_updating_enabled"),
    ("overview:listeners", "node protocol ip_address port socket_opts"),
    ("overview:contexts", "node description path port"),
    ("overview:exchange_types", "name description enabled"),
    ("nodes", "name type running uptime os_pid processors run_queue rates_mode being_drained enabled_plugins applications \
        exchange_types auth_mechanisms contexts config_files log_files db_dir net_ticktime partitions cluster_links mem_used \
        mem_limit mem_alarm mem_calculation_strategy disk_free disk_free_limit disk_free_alarm mem_alarm_count disk_free_alarm_count fd_used fd_total fd_refused sockets_used \
        sockets_total proc_used proc_total io_read_count io_write_bytes io_sync_avg_time msg_store_read_count \
        msg_store_write_count queue_index_read_count queue_index_write_count mnesia_ram_tx_count mnesia_disk_tx_count gc_num \
        gc_bytes_reclaimed context_switches metrics_gc_queue_length.connection_closed mem_used_details.rate fd_used_details.rate \
        connection_created connection_closed channel_created channel_closed queue_declared queue_created queue_deleted \
        connection_created_details.rate"),
    ("queues/%2F/used", "name vhost type durable auto_delete exclusive arguments node state policy operator_policy \
        effective_policy_definition messages messages_ready messages_unacknowledged messages_details.rate \
        messages_ready_details.rate messages_unacknowledged_details.rate messages_persistent messages_ram message_bytes \
        message_bytes_ready message_bytes_unacknowledged message_bytes_persistent message_bytes_ram messages_dlx \
        messages_paged_out message_bytes_paged_out messages_ready_ram messages_unacknowledged_ram reductions \
        reductions_details.rate backing_queue_status.q3 backing_queue_status.q4 backing_queue_status.delta \
        backing_queue_status.len \
        message_bytes_dlx consumers \
        consumer_utilisation consumer_capacity memory head_message_timestamp exclusive_consumer_tag \
        single_active_consumer_tag leader members storage_version active_consumers garbage_collection.minor_gcs \
        garbage_collection.fullsweep_after garbage_collection.max_heap_size garbage_collection.min_heap_size \
        garbage_collection.min_bin_vheap_size \
        message_stats.publish message_stats.deliver message_stats.deliver_get message_stats.deliver_no_ack message_stats.get \
        message_stats.get_no_ack message_stats.get_empty message_stats.ack message_stats.redeliver \
        message_stats.publish_details.rate message_stats.deliver_get_details.rate consumer_details deliveries incoming"),
    ("queues/%2F/idle", "idle_since messages message_bytes consumers memory state effective_policy_definition"),
    ("queues/%2F/quorum", "delivery_limit online leader members open_files"),
    ("queues/%2F/mine", "owner_pid_details.name owner_pid_details.peer_host owner_pid_details.peer_port"),
    ("exchanges/%2F/amq.default", "name vhost type durable auto_delete internal arguments message_stats.publish_in \
        message_stats.publish_in_details.rate message_stats.publish_out message_stats.confirm"),
    ("bindings", "source vhost destination destination_type routing_key arguments properties_key"),
    ("vhosts", "name description tags metadata tracing cluster_state protected_from_deletion messages messages_ready \
        messages_unacknowledged"),
    ("users", "name password_hash hashing_algorithm tags limits"),
    ("permissions", "user vhost configure write read"),
    ("connections", "name node state user vhost protocol host port peer_host peer_port ssl ssl_protocol ssl_cipher \
        peer_cert_subject peer_cert_issuer peer_cert_validity auth_mechanism frame_max channel_max channels timeout \
        connected_at client_properties recv_oct recv_cnt send_oct send_cnt send_pend reductions \
        reductions_details.rate \
        recv_oct_details.rate garbage_collection.minor_gcs \
        garbage_collection.fullsweep_after garbage_collection.max_heap_size garbage_collection.min_heap_size \
        garbage_collection.min_bin_vheap_size"),
    ("channels", "number name connection_details.name connection_details.peer_host connection_details.peer_port confirm \
        transactional prefetch_count global_prefetch_count messages_unacknowledged messages_unconfirmed messages_uncommitted \
        acks_uncommitted consumer_count state vhost user node reductions reductions_details.rate garbage_collection.minor_gcs \
        garbage_collection.fullsweep_after garbage_collection.max_heap_size garbage_collection.min_heap_size \
        garbage_collection.min_bin_vheap_size"),
    ("consumers", "consumer_tag active activity_status ack_required prefetch_count exclusive arguments consumer_timeout \
        queue.name queue.vhost channel_details.name"),
    ("feature-flags", "name state desc doc_url stability provided_by"),
    ("cluster-name", "name"),
];

#[test]
fn tools_find_what_they_read() {
    let node = Node::with(&[("collect_statistics_interval", "100")]);
    let (mut client, channel) = node.client();
    for name in ["used", "idle", "mine"] {
        let how = QueueDeclare { exclusive: name == "mine", ..QueueDeclare::default() };
        client.queue_declare(channel, name, &how).unwrap();
    }
    let quorum = json!({"arguments": {"x-queue-type": "quorum"}}).to_string();
    node.must("PUT", "/api/queues/%2F/quorum", &quorum, 201);
    client.confirm_select(channel).unwrap();
    client.consume(channel, "used", &Consume { consumer_tag: "me", ..Consume::default() }).unwrap();
    client.publish(channel, "", "used", &[0, 0], b"12345");
    client.flush().unwrap();
    while !matches!(client.next_event().unwrap(), Some(Event::Content { .. })) {
        client.wait(crate::node::PATIENCE).unwrap();
    }
    wait_until("it was counted, and the idle queue was looked at twice", || {
        let exchange = node.get("/api/exchanges/%2F/amq.default");
        exchange["message_stats"]["confirm"] == 1
            && node.get("/api/queues/%2F/idle")["idle_since"].is_string()
    });
    let mut missing = Vec::new();
    for (place, fields) in FIELDS {
        let (path, part) = place.split_once(':').unwrap_or((place, ""));
        let found = node.get(&format!("/api/{path}"));
        let found = if part.is_empty() { &found } else { &found[part] };
        let rows = found.as_array().map_or_else(|| std::slice::from_ref(found), Vec::as_slice);
        assert!(!rows.is_empty(), "{place} lists nothing");
        for field in fields.split_whitespace() {
            let has = |row: &Value| row.pointer(&format!("/{}", field.replace('.', "/"))).is_some();
            missing.extend((!rows.iter().all(has)).then(|| format!("{place}: {field}")));
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    // Debian's rabbitmqadmin lists every column of these, and ends at a null.
    for path in
        ["consumers", "bindings", "vhosts", "users", "permissions", "parameters", "policies"]
    {
        for row in node.get(&format!("/api/{path}")).as_array().unwrap() {
            let nulls: Vec<_> =
                row.as_object().unwrap().iter().filter(|it| it.1.is_null()).collect();
            assert!(nulls.is_empty(), "{path}: {nulls:?}");
        }
    }
}

/// Who made an exchange: a client, who made its vhost, the broker itself; an import and a transient one tell it, too.
#[test]
fn exchanges_tell_who_made_them() {
    let node = Node::start();
    let (mut client, channel) = node.client();
    let transient = ExchangeDeclare::default();
    client.exchange_declare(channel, "by-client", "direct", &transient).unwrap();
    node.must("PUT", "/api/exchanges/%2F/by-api", r#"{"type": "fanout"}"#, 201);
    node.must("PUT", "/api/vhosts/v", "", 201);
    let imported = r#"{"exchanges": [{"name": "imported", "type": "topic", "vhost": "v"}]}"#;
    node.must("POST", "/api/definitions", imported, 204);
    let all = node.get("/api/exchanges");
    let by = |vhost: &str, name: &str| {
        let all = all.as_array().unwrap().iter();
        let found = all.filter(|it| it["vhost"] == vhost && it["name"] == name);
        found.map(|it| it["user_who_performed_action"].as_str().unwrap()).collect::<Vec<_>>()
    };
    for (vhost, name) in
        [("/", "by-client"), ("/", "by-api"), ("v", "imported"), ("v", "amq.topic"), ("v", "")]
    {
        assert_eq!(by(vhost, name), ["guest"], "{vhost} {name}");
    }
    assert_eq!(by("/", "amq.topic"), ["rmq-internal"]);
}
