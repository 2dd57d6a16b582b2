//! Lists of what there is, with columns to choose from.

use super::{Command, Tools, Word, flag, ignored, ignored_value, many};

const COLUMNS: Word = many("columns", "What to show of each");

const QUEUES: &[&str] = &[
    "name",
    "durable",
    "auto_delete",
    "arguments",
    "policy",
    "operator_policy",
    "effective_policy_definition",
    "replication_confirm",
    "pid",
    "owner_pid=owner_pid_details.name",
    "exclusive",
    "exclusive_consumer_pid",
    "exclusive_consumer_tag",
    "messages_ready",
    "messages_unacknowledged",
    "messages",
    "messages_ready_ram",
    "messages_unacknowledged_ram",
    "messages_ram",
    "messages_paged_out",
    "messages_persistent",
    "message_bytes",
    "message_bytes_ready",
    "message_bytes_unacknowledged",
    "message_bytes_ram",
    "message_bytes_paged_out",
    "message_bytes_persistent",
    "messages_dlx",
    "message_bytes_dlx",
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

const EXCHANGES: &[&str] =
    &["name", "type", "durable", "auto_delete", "internal", "arguments", "policy"];

const BINDINGS: &[&str] = &[
    "source_name=source",
    "source_kind='exchange",
    "destination_name=destination",
    "destination_kind=destination_type",
    "routing_key",
    "arguments",
];

const CONSUMERS: &[&str] = &[
    "queue_name=queue.name",
    "channel_pid=channel_details.pid",
    "consumer_tag",
    "ack_required",
    "prefetch_count",
    "active",
    "activity_status",
    "arguments",
    "messages_unacknowledged",
    "oldest_unacked_ms",
    "blocked",
    "prefetch_full_ms",
];

const CONNECTIONS: &[&str] = &[
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

const CHANNELS: &[&str] = &[
    "pid",
    "connection=connection_pid",
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

const VHOSTS: &[&str] = &[
    "name",
    "description",
    "tags",
    "default_queue_type",
    "protected_from_deletion",
    "tracing",
    "cluster_state",
    "metadata",
];

const FLAGS: &[&str] = &["name", "state", "stability", "provided_by", "desc", "doc_url"];

const DEPRECATED: &[&str] =
    &["name", "deprecation_phase", "state", "provided_by", "desc", "doc_url"];

pub(super) const COMMANDS: &[Command] = &[
    Command::new("list_queues", Tools::CTL_AND_DIAGNOSTICS, "List queues", |it| {
        it.list("/api/queues/{vhost}", &["name", "messages"], QUEUES)
    })
    .takes(&[ignored("online"), ignored("offline"), ignored("local"), COLUMNS])
    .says("Timeout: {timeout}.0 seconds ...\nListing queues for vhost {vhost} ..."),
    Command::new(
        "list_unresponsive_queues",
        Tools::CTL_AND_DIAGNOSTICS,
        "List queues that do not answer in time",
        |it| {
            let chosen = crate::columns::choose(it.words("columns"), &["name"], QUEUES)?;
            // Queues answer or not by shard: if one does not, neither does the check.
            it.get("/api/health/checks/virtual-hosts")?;
            Ok(crate::call::Call::rows_of(&serde_json::Value::Null, chosen))
        },
    )
    .takes(&[ignored("local"), ignored_value("queue-timeout"), COLUMNS])
    .says("Listing unresponsive queues for vhost {vhost} ..."),
    Command::new("list_exchanges", Tools::CTL_AND_DIAGNOSTICS, "List exchanges", |it| {
        it.list("/api/exchanges/{vhost}", &["name", "type"], EXCHANGES)
    })
    .takes(&[COLUMNS])
    .says("Listing exchanges for vhost {vhost} ..."),
    Command::new("list_bindings", Tools::CTL_AND_DIAGNOSTICS, "List bindings", |it| {
        let names = [
            "source_name",
            "source_kind",
            "destination_name",
            "destination_kind",
            "routing_key",
            "arguments",
        ];
        it.list("/api/bindings/{vhost}", &names, BINDINGS)
    })
    .takes(&[COLUMNS])
    .says("Listing bindings for vhost {vhost}..."),
    Command::new("list_consumers", Tools::CTL_AND_DIAGNOSTICS, "List consumers", |it| {
        let names = [
            "queue_name",
            "channel_pid",
            "consumer_tag",
            "ack_required",
            "prefetch_count",
            "active",
            "arguments",
        ];
        it.list("/api/consumers/{vhost}", &names, CONSUMERS)
    })
    .takes(&[COLUMNS])
    .says("Listing consumers in vhost {vhost} ..."),
    Command::new("list_connections", Tools::CTL_AND_DIAGNOSTICS, "List connections", |it| {
        it.list("/api/connections", &["user", "peer_host", "peer_port", "state"], CONNECTIONS)
    })
    .takes(&[COLUMNS])
    .says("Listing connections ..."),
    Command::new("list_channels", Tools::CTL_AND_DIAGNOSTICS, "List channels", |it| {
        let names = ["pid", "user", "consumer_count", "messages_unacknowledged"];
        it.list("/api/channels", &names, CHANNELS)
    })
    .takes(&[COLUMNS])
    .says("Listing channels ..."),
    Command::new("list_vhosts", Tools::CTL_AND_DIAGNOSTICS, "List virtual hosts", |it| {
        it.list("/api/vhosts", &["name"], VHOSTS)
    })
    .takes(&[COLUMNS])
    .says("Listing vhosts ..."),
    Command::new("list_feature_flags", Tools::CTL_AND_DIAGNOSTICS, "List feature flags", |it| {
        it.list("/api/feature-flags", &["name", "state"], FLAGS)
    })
    .takes(&[COLUMNS])
    .says("Listing feature flags ..."),
    Command::new(
        "list_deprecated_features",
        Tools::CTL_AND_DIAGNOSTICS,
        "List what RabbitMQ takes away one day",
        |it| {
            let path = match it.flag("used") {
                true => "/api/deprecated-features/used",
                false => "/api/deprecated-features",
            };
            it.list(path, &["name", "deprecation_phase", "state"], DEPRECATED)
        },
    )
    .takes(&[flag("used", "Only what is in use"), COLUMNS])
    .says("Listing deprecated features ..."),
    Command::new(
        "shovel_status",
        Tools::CTL_AND_DIAGNOSTICS,
        "List shovels, of which there are none",
        |it| it.table("/api/shovels", &["name", "vhost", "type", "state"]),
    )
    .says("Shovel status on node {node}"),
    Command::new(
        "federation_status",
        Tools::CTL_AND_DIAGNOSTICS,
        "List federation links, of which there are none",
        |it| it.table("/api/federation-links", &["exchange", "queue", "vhost", "status"]),
    )
    .says("Listing federation links on node {node}..."),
];
