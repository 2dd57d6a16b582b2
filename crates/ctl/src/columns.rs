//! The columns of the lists, in the order in which help names them, under RabbitMQ's names.

use crate::protocol::{Code, Fault};

/// Columns of `list_queues`.
pub const QUEUES: &[&str] = &[
    "name",
    "durable",
    "auto_delete",
    "arguments",
    "policy",
    "operator_policy",
    "effective_policy_definition",
    "pid",
    "owner_pid",
    "exclusive",
    "exclusive_consumer_pid",
    "exclusive_consumer_tag",
    "messages_ready",
    "messages_unacknowledged",
    "messages",
    "messages_ready_ram",
    "messages_unacknowledged_ram",
    "messages_ram",
    "messages_persistent",
    "message_bytes",
    "message_bytes_ready",
    "message_bytes_unacknowledged",
    "message_bytes_ram",
    "message_bytes_persistent",
    "head_message_timestamp",
    "disk_reads",
    "disk_writes",
    "consumers",
    "consumer_utilisation",
    "consumer_capacity",
    "memory",
    "state",
    "type",
    "leader",
    "members",
    "online",
    // Of RabbitMQ 3.x; scripts still ask for them.
    "slave_pids",
    "synchronised_slave_pids",
];

/// Columns of `list_exchanges`.
pub const EXCHANGES: &[&str] =
    &["name", "type", "durable", "auto_delete", "internal", "arguments", "policy"];

/// Columns of `list_bindings`.
pub const BINDINGS: &[&str] = &[
    "source_name",
    "source_kind",
    "destination_name",
    "destination_kind",
    "routing_key",
    "arguments",
];

/// Columns of `list_consumers`.
pub const CONSUMERS: &[&str] = &[
    "queue_name",
    "channel_pid",
    "consumer_tag",
    "ack_required",
    "prefetch_count",
    "active",
    "activity_status",
    "arguments",
];

/// Columns of `list_connections`.
pub const CONNECTIONS: &[&str] = &[
    "pid",
    "name",
    "port",
    "host",
    "peer_port",
    "peer_host",
    "ssl",
    "ssl_protocol",
    "ssl_key_exchange",
    "ssl_cipher",
    "ssl_hash",
    "peer_cert_subject",
    "peer_cert_issuer",
    "peer_cert_serial_number",
    "peer_cert_validity",
    "state",
    "channels",
    "protocol",
    "auth_mechanism",
    "user",
    "vhost",
    "container_id",
    "timeout",
    "frame_max",
    "channel_max",
    "client_properties",
    "recv_oct",
    "recv_cnt",
    "send_oct",
    "send_cnt",
    "send_pend",
    "connected_at",
];

/// Columns of `list_channels`.
pub const CHANNELS: &[&str] = &[
    "pid",
    "connection",
    "name",
    "number",
    "user",
    "vhost",
    "transactional",
    "confirm",
    "consumer_count",
    "messages_unacknowledged",
    "messages_uncommitted",
    "acks_uncommitted",
    "messages_unconfirmed",
    "prefetch_count",
    // Of RabbitMQ 3.x.
    "global_prefetch_count",
];

/// Columns of `list_vhosts`.
pub const VHOSTS: &[&str] = &[
    "name",
    "description",
    "tags",
    "default_queue_type",
    "protected_from_deletion",
    "tracing",
    "cluster_state",
    "metadata",
];

/// The columns asked for, or the default ones; RabbitMQ also takes several in one word.
pub(crate) fn choose(
    asked: &[String],
    default: &[&str],
    known: &[&str],
) -> Result<Vec<String>, Fault> {
    let asked: Vec<&str> =
        asked.iter().flat_map(|word| word.split([' ', ','])).filter(|it| !it.is_empty()).collect();
    let chosen = if asked.is_empty() { default } else { &asked };
    let unknown: Vec<_> = chosen.iter().filter(|it| !known.contains(it)).copied().collect();
    if !unknown.is_empty() {
        let text = format!(
            "Info key(s) {} are not supported; there are {}",
            unknown.join(", "),
            known.join(", ")
        );
        return Err(Fault::new(Code::Usage, text));
    }
    Ok(chosen.iter().map(|it| (*it).to_owned()).collect())
}
