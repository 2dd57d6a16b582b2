//! Every option of the broker.
//!
//! Names and defaults are RabbitMQ's where it has the option; where we depart, the description says
//! so. Adding an option here is all that is needed: file key, environment name, flag, help, manual
//! and `docs/configuration.md` follow (refresh the page with `cargo xtask codegen`).

use crate::option::options;
use crate::setting::{CategoryLevels, Listeners, LogFile, Mechanisms, NameSet, Texts, Threshold};
use crate::value::{
    ByteSize, DamagedFiles, Fraction, Level, Limit, LogFormat, Millis, PasswordHashing, Product,
    QueueType, Seconds, Secret, Stream,
};

options! {
    /// Where the node lives on its machine.
    NodeOptions, "Node";

    /// Directory of everything the node must remember: messages, definitions, its identity.
    ///
    /// It is made if it does not exist. One directory serves one running node. When it is not set:
    /// `/var/lib/leveret` for the superuser, `leveret` in the user's data directory
    /// (`$XDG_DATA_HOME`, or `~/.local/share`) for anybody else.
    data_dir: Option<String> = None, keys = ["data_dir"],
        env = ["RABBITMQ_MNESIA_BASE" => "data_dir", "RABBITMQ_MNESIA_DIR" => "data_dir"],
        check = own_path;

    /// The node's name, as it stands in lists and in the name of the cluster.
    ///
    /// When it is not set, `rabbit@` and the machine's host name.
    name: Option<String> = None, keys = ["node_name"], env = ["RABBITMQ_NODENAME" => "node_name"];

    /// Path of the Unix socket on which `leveret ctl` finds the node.
    ///
    /// When it is not set, `leveret.sock` in the data directory. Whoever may connect to it is an
    /// administrator, so only its owner can.
    ctl_socket: Option<String> = None, keys = ["ctl.socket"], check = own_path;

    /// Threads that serve connections. 0 means one per processor.
    threads: u32 = 0, keys = ["threads"], range = 0..=1024;

    /// Shards that own the queues. 0 means one per thread.
    ///
    /// A queue belongs to one shard. More shards than threads bring nothing.
    shards: u32 = 0, keys = ["shards"], range = 0..=1024;

    /// Seconds that a turn, a lock or a thread may take before the process ends itself (by SIGABRT), so that systemd
    /// starts it again. 0 means that it never does.
    ///
    /// What takes longer than a second is told in the log and by `leveret_watchdog_stalls_total`.
    watchdog_timeout: Seconds = Seconds(60), keys = ["watchdog.timeout"],
        range = Seconds(0)..=Seconds(86_400);

    /// Name of the cluster, told to clients and tools. When it is not set, the node's name.
    cluster_name: Option<String> = None, keys = ["cluster_name"];
}

options! {
    /// Where clients connect.
    ListenerOptions, "Listeners";

    /// Addresses on which AMQP 0-9-1 is spoken: a port, or an address and a port.
    ///
    /// Any number can be given, each under a name of its choice. The first replaces the default.
    /// `listeners.tcp = none` means no listener without TLS.
    tcp: Listeners = Listeners::on_port(5672), keys = ["listeners.tcp.$name", "listeners.tcp"],
        env = [
            "LEVERET_LISTENERS_TCP_DEFAULT" => "listeners.tcp.default",
            "RABBITMQ_NODE_PORT" => "listeners.tcp.default"
        ],
        flags = ["listen" => "listeners.tcp.default", "port" => "listeners.tcp.default"];

    /// Addresses on which AMQP 0-9-1 is spoken over TLS, as for `listeners.tcp`; 5671 is the usual port.
    ///
    /// There is none unless it is asked for. It needs `ssl_options.certfile` and `ssl_options.keyfile`.
    ssl: Listeners = Listeners::none(), keys = ["listeners.ssl.$name", "listeners.ssl"];

    /// Whether every connection begins with a header of the PROXY protocol (versions 1 and 2), which
    /// names the client behind a proxy.
    ///
    /// The header is believed: nobody but the proxy must be able to reach the port.
    proxy_protocol: bool = false, keys = ["proxy_protocol"];

    /// Connections that may wait to be accepted.
    backlog: u32 = 128, keys = ["tcp_listen_options.backlog"], range = 1..=65_535;

    /// Send small packets at once (TCP_NODELAY).
    nodelay: bool = true, keys = ["tcp_listen_options.nodelay"];

    /// Probe idle connections by TCP. Heartbeats do this better.
    keepalive: bool = false, keys = ["tcp_listen_options.keepalive"];

    /// Size of the kernel's send buffer per connection. Not set: the kernel's choice.
    sndbuf: Option<ByteSize> = None, keys = ["tcp_listen_options.sndbuf"];

    /// Size of the kernel's receive buffer per connection. Not set: the kernel's choice.
    recbuf: Option<ByteSize> = None, keys = ["tcp_listen_options.recbuf"];
}

options! {
    /// What a connection and its channels may do.
    ConnectionOptions, "Connections and channels";

    /// Time a client has from connecting to `connection.open`.
    handshake_timeout: Millis = Millis::seconds(10), keys = ["handshake_timeout"],
        range = Millis(100)..=Millis::seconds(3600);

    /// Time a client has for the handshake of TLS, and for the header of the PROXY protocol.
    tls_handshake_timeout: Millis = Millis::seconds(5), keys = ["ssl_handshake_timeout"],
        range = Millis(100)..=Millis::seconds(3600);

    /// Heartbeat interval proposed to clients, in seconds. 0 leaves the choice to the client.
    ///
    /// A peer that is silent for two intervals is closed.
    heartbeat: Seconds = Seconds(60), keys = ["heartbeat"], env = ["RABBITMQ_HEARTBEAT" => "heartbeat"],
        range = Seconds(0)..=Seconds(65_535);

    /// Largest frame, agreed on with each client. 0 means no limit.
    frame_max: ByteSize = ByteSize::kib(128), keys = ["frame_max"],
        range = ByteSize(0)..=ByteSize(u32::MAX as u64), check = frame_max;

    /// Largest frame before a client has authenticated.
    initial_frame_max: ByteSize = ByteSize::kib(8), keys = ["initial_frame_max"],
        range = ByteSize::kib(4)..=ByteSize(u32::MAX as u64);

    /// Channels per connection, agreed on with each client. 0 means no limit.
    channel_max: u16 = 2047, keys = ["channel_max"], aliases = ["max_channels_per_connection"];

    /// Connections of the whole node.
    connection_max: Limit = Limit::INFINITY, keys = ["connection_max"], aliases = ["max_connections"];

    /// Channels of the whole node.
    channel_max_per_node: Limit = Limit::INFINITY, keys = ["channel_max_per_node"];

    /// Consumers per channel.
    consumer_max_per_channel: Limit = Limit::INFINITY, keys = ["consumer_max_per_channel"];

    /// Largest body of a message; a larger one closes the publisher's channel.
    ///
    /// The default is that of the version of RabbitMQ that is claimed; from 4.0 on it is 16 MiB there.
    max_message_size: ByteSize = ByteSize::mib(128), keys = ["max_message_size"],
        range = ByteSize(1)..=ByteSize::mib(512);

    /// Time in which a body that is being received has to move by 1 KiB for each second of it.
    ///
    /// A connection with a body, or a frame, that stands still for as long is closed. While others wait for the
    /// memory that the body takes it has to be 16 KiB a second, and a tenth of the body in this time.
    unfinished_timeout: Millis = Millis::seconds(60), keys = ["unfinished_timeout"],
        range = Millis(100)..=Millis::seconds(86_400);

    /// Time a consumer may keep a delivery unacknowledged before its channel is closed.
    consumer_timeout: Millis = Millis::seconds(1800), keys = ["consumer_timeout"],
        range = Millis(1)..=Millis(u64::MAX / 2);
}

options! {
    /// Who may log in, and what exists on the first start.
    AccessOptions, "Users and definitions";

    /// Type of queues that are declared without one, in vhosts that are made from now on without a type of their own:
    /// `classic` or `quorum`. Not set: `classic`.
    ///
    /// As with RabbitMQ, a vhost keeps the type that it was made with. Queues that cannot be of it are classic.
    default_queue_type: Option<QueueType> = None, keys = ["default_queue_type"];

    /// User made on the first start.
    default_user: String = "guest".to_owned(), keys = ["default_user"],
        env = ["RABBITMQ_DEFAULT_USER" => "default_user"];

    /// Password of the user made on the first start. The default is `guest`.
    default_pass: Secret = Secret::new("guest"), keys = ["default_pass"],
        env = ["RABBITMQ_DEFAULT_PASS" => "default_pass"];

    /// Virtual host made on the first start.
    default_vhost: String = "/".to_owned(), keys = ["default_vhost"],
        env = ["RABBITMQ_DEFAULT_VHOST" => "default_vhost"];

    /// Tags of the user made on the first start.
    default_user_tags: NameSet = NameSet::of("administrator"), keys = ["default_user_tags.$tag"];

    /// What the user made on the first start may configure, as a pattern.
    default_configure: String = ".*".to_owned(), keys = ["default_permissions.configure"];

    /// What the user made on the first start may write to, as a pattern.
    default_write: String = ".*".to_owned(), keys = ["default_permissions.write"];

    /// What the user made on the first start may read, as a pattern.
    default_read: String = ".*".to_owned(), keys = ["default_permissions.read"];

    /// Users that can log in only from the node's own machine.
    ///
    /// The first key replaces the default; `loopback_users = none` lets every user in from
    /// anywhere, which is dangerous while `guest` has its default password.
    loopback_users: NameSet = NameSet::of("guest"), keys = ["loopback_users.$user", "loopback_users"];

    /// Authentication mechanisms offered, in the order of the words that name them.
    auth_mechanisms: Mechanisms = Mechanisms::default(), keys = ["auth_mechanisms.$name"];

    /// User that a client becomes by the mechanism ANONYMOUS; `none` turns it away.
    anonymous_login_user: String = "guest".to_owned(), keys = ["anonymous_login_user"];

    /// Password of that user. The default is `guest`.
    anonymous_login_pass: Secret = Secret::new("guest"), keys = ["anonymous_login_pass"];

    /// How passwords of new users, and new passwords, are hashed.
    ///
    /// Definitions with hashes of `leveret_password_hashing_argon2id` cannot go back to RabbitMQ.
    password_hashing: PasswordHashing = PasswordHashing::Sha256, keys = ["password_hashing_module"];

    /// Refused logins from one address after which its next ones are answered later and later. 0: never.
    ///
    /// Each further one doubles the delay. Ten seconds without any take one of them back.
    throttle_threshold: u32 = 10, keys = ["login_throttle.threshold"], range = 0..=1_000_000;

    /// The longest that a login waits for its answer after too many refused ones.
    throttle_delay_max: Millis = Millis::seconds(5), keys = ["login_throttle.delay_max"],
        range = Millis(0)..=Millis::seconds(60);

    /// Whether the system may write the broker's memory to a core file when it fails.
    ///
    /// A core holds messages, and may hold passwords and keys.
    core_dumps: bool = false, keys = ["core_dumps"];

    /// A definitions file, or a directory of them, imported at every start.
    ///
    /// The format is that of RabbitMQ's `export_definitions`. While it is set, the default user,
    /// virtual host and permissions are not made.
    load_definitions: Option<String> = None, keys = ["load_definitions"],
        aliases = ["management.load_definitions", "definitions.local.path"];

    /// Whether what cannot be here is left out of these definitions, with a warning for each: streams, what belongs to plugins that
    /// are not there, and what needs something that is neither here nor in the file.
    ///
    /// Without it such a file keeps the broker from starting, as it does RabbitMQ.
    skip_unsupported_definitions: bool = false, keys = ["definitions.skip_unsupported"];
}

options! {
    /// When the node says that it has enough.
    ResourceOptions, "Memory and disk";

    /// Memory use at which publishers are blocked that publish into what is full (10 % above it all
    /// publishers are): a part of the machine's memory
    /// (`relative`), or a number of bytes (`absolute`), which counts if both are set.
    memory_high_watermark: Threshold = Threshold::part(0.6),
        keys = ["vm_memory_high_watermark.relative", "vm_memory_high_watermark.absolute"],
        aliases = ["vm_memory_high_watermark"],
        env = ["RABBITMQ_VM_MEMORY_HIGH_WATERMARK" => "vm_memory_high_watermark"];

    /// Memory of the machine, in place of what the operating system tells.
    total_memory: Option<ByteSize> = None, keys = ["total_memory_available_override_value"],
        env = [
            "RABBITMQ_TOTAL_MEMORY_AVAILABLE_OVERRIDE_VALUE" => "total_memory_available_override_value"
        ];

    /// Part of the watermark that transient messages may take before new ones are written to the disk, too;
    /// each shard has its share of it. 1 turns this off: publishers are blocked at the watermark.
    paging_ratio: Fraction = Fraction(0.5), keys = ["vm_memory_high_watermark_paging_ratio"],
        range = Fraction(0.0)..=Fraction(1.0);

    /// Free disk space under which publishers are blocked whose messages are to be written (under half
    /// of it all publishers are): a number of bytes (`absolute`), which
    /// counts if both are set, or a part of the machine's memory (`relative`).
    disk_free_limit: Threshold = Threshold::bytes(50_000_000),
        keys = ["disk_free_limit.absolute", "disk_free_limit.relative"], aliases = ["disk_free_limit"];

    /// What a start does when a file of stored messages is damaged.
    ///
    /// `aside`: it goes on with every message that is whole, keeps the file as it was under a name with
    /// `.damaged`, and an ERROR names file, position, what was lost, from which queues, and what can be done.
    /// `refuse`: it ends there and changes nothing, so that nobody publishes or consumes before somebody has
    /// looked. A damaged log of names, or a format that is too new, is always refused.
    damaged_files: DamagedFiles = DamagedFiles::Aside, keys = ["storage.damaged_files"];

    /// Size from which on a file of stored messages is full and the next one is begun, at most.
    ///
    /// Files have a quarter of it while little is in the queues, and get longer with a long backlog. For each shard the disk
    /// may hold about as much as this more than 1.3 times what is in the queues. Smaller files give that back sooner, and there
    /// are more of them to open at a start.
    segment_size: ByteSize = ByteSize::mib(64), keys = ["storage.segment_size"],
        range = ByteSize::mib(1)..=ByteSize::mib(1024);

    /// Size from which on a message that is routed to several queues is stored only once.
    ///
    /// Names, properties and body count. Of a shorter one each shard that has a queue for it keeps a copy, which is
    /// quicker to write and to read.
    embed_msgs_below: ByteSize = ByteSize::kib(4), keys = ["queue_index_embed_msgs_below"];
}

options! {
    /// What is logged, how and where.
    LogOptions, "Logs and statistics";

    /// Log to an output stream.
    ///
    /// RabbitMQ logs to a file unless told otherwise; Leveret to the console.
    console: bool = true, keys = ["log.console"];

    /// Least level logged to the console, whatever a category says. Not set: as the categories say.
    console_level: Option<Level> = None, keys = ["log.console.level"];

    /// Shape of entries on the console.
    console_format: LogFormat = LogFormat::Plaintext, keys = ["log.console.formatter"];

    /// Which stream the console is.
    console_stream: Stream = Stream::Stdout, keys = ["log.console.stdio"];

    /// File to log to, relative to `log.dir`; `false` for none.
    file: LogFile = LogFile(None), keys = ["log.file"], env = ["RABBITMQ_LOGS" => "log.file"];

    /// Least level logged to the file, whatever a category says. Not set: as the categories say.
    file_level: Option<Level> = None, keys = ["log.file.level"];

    /// Shape of entries in the file.
    file_format: LogFormat = LogFormat::Plaintext, keys = ["log.file.formatter"];

    /// Size at which the file is rotated. 0 means never.
    file_rotation_size: ByteSize = ByteSize(0), keys = ["log.file.rotation.size"];

    /// Rotated files that are kept.
    file_rotation_count: u32 = 10, keys = ["log.file.rotation.count"], range = 0..=10_000;

    /// Directory of log files. Not set: `log` in the data directory.
    dir: Option<String> = None, keys = ["log.dir"], env = ["RABBITMQ_LOG_BASE" => "log.dir"],
        check = own_path;

    /// Least level by category: default, connection, channel, queue, federation, upgrade, user, audit.
    ///
    /// A category that is not set has the level of `default`, which is `info`.
    levels: CategoryLevels = CategoryLevels::default(), keys = ["log.$category.level"],
        aliases = ["log.level"],
        env = ["LEVERET_LOG_LEVEL" => "log.level"],
        flags = ["log-level" => "log.level"];

    /// Interval at which statistics are collected and emitted.
    statistics_interval: Millis = Millis::seconds(5), keys = ["collect_statistics_interval"],
        range = Millis(100)..=Millis::seconds(86_400);
}

options! {
    /// What clients and tools are told about the product.
    IdentityOptions, "Identity";

    /// Who the broker says it is, to clients (`product`), in the API and in metrics (`product_name`): `RabbitMQ`, by which
    /// many of them decide, or `Leveret`.
    ///
    /// Clients are told the same version of RabbitMQ in both cases. Leveret's own is always beside it, as `leveret_version`.
    product: Product = Product::RabbitMq, keys = ["server_properties.product"];

    /// Product name in the API and in metrics, in place of that.
    product_name: Option<String> = None, keys = ["product.name"],
        env = ["RABBITMQ_PRODUCT_NAME" => "product.name"];

    /// Product version in the API and in metrics, in place of its own.
    product_version: Option<String> = None, keys = ["product.version"],
        env = ["RABBITMQ_PRODUCT_VERSION" => "product.version"];
}

options! {
    /// Who is told what happens on the node.
    EventOptions, "Events";

    /// The vhost that has the exchange `amq.rabbitmq.event`, see the page about events. Not set:
    /// `default_vhost`.
    ///
    /// RabbitMQ asks for its plugin to be enabled; here the exchange is always there, and costs nothing
    /// while nothing is bound to it.
    vhost: Option<String> = None, keys = ["event_exchange.vhost"];
}

options! {
    /// The HTTP API and the page for people.
    ManagementOptions, "Management";

    /// Whether the HTTP API is there at all.
    ///
    /// RabbitMQ asks for its plugin to be enabled; here it is a part of the broker.
    enabled: bool = true, keys = ["management.enabled"];

    /// Port of the HTTP API and the page. 0 lets the operating system choose one.
    port: u16 = 15_672, keys = ["management.tcp.port"], aliases = ["management.listener.port"];

    /// Address of the HTTP API and the page. Not set: all addresses, IPv6 and IPv4.
    ip: Option<String> = None, keys = ["management.tcp.ip"], aliases = ["management.listener.ip"];

    /// Port of the HTTP API and the page over TLS; 15671 is the usual one. Not set: there is none.
    ///
    /// It needs `management.ssl.certfile` and `management.ssl.keyfile`. The port without TLS stays, unless
    /// its `ip` is one that nobody else reaches.
    ssl_port: Option<u16> = None, keys = ["management.ssl.port"];

    /// Address of the HTTP API over TLS. Not set: all addresses, IPv6 and IPv4.
    ssl_ip: Option<String> = None, keys = ["management.ssl.ip"];

    /// Beginning of every path of the API and the page, for a proxy that serves more than one node.
    path_prefix: Option<String> = None, keys = ["management.path_prefix"], check = path_prefix;

    /// Largest body of a request.
    max_body_size: ByteSize = ByteSize(20_000_000), keys = ["management.http.max_body_size"],
        range = ByteSize(1)..=ByteSize::mib(1024);

    /// Other sites whose pages may use the API from a browser: an origin such as `https://example.com`,
    /// or `*` for every site.
    cors_origins: Texts = Texts::none(),
        keys = ["management.cors.allow_origins.$name", "management.cors.allow_origins"];

    /// Seconds for which a browser may remember what another site may do.
    cors_max_age: Seconds = Seconds(1800), keys = ["management.cors.max_age"],
        range = Seconds(0)..=Seconds(86_400);

    /// Whether answers leave out the header `Allow`, which names the methods of a path.
    hide_allow_header: bool = false, keys = ["management.http.hide_allow_header"];

    /// Header `Content-Security-Policy` of every answer. Not set: scripts and objects of the node itself.
    csp: Option<String> = None, keys = ["management.csp.policy"];

    /// Header `Strict-Transport-Security` of every answer.
    hsts: Option<String> = None, keys = ["management.hsts.policy"];

    /// Header `X-Content-Type-Options` of every answer.
    content_type_options: Option<String> = Some("nosniff".to_owned()),
        keys = ["management.headers.content_type_options"];

    /// Header `X-Frame-Options` of every answer.
    frame_options: Option<String> = None, keys = ["management.headers.frame_options"];

    /// Header `X-XSS-Protection` of every answer.
    xss_protection: Option<String> = None, keys = ["management.headers.xss_protection"];

    /// Header `Referrer-Policy` of every answer.
    referrer_policy: Option<String> = None, keys = ["management.headers.referrer_policy"];

    /// Whether operator policies can be changed only from the command line.
    no_operator_policy_changes: bool = false,
        keys = ["management.restrictions.operator_policy_changes.disabled"];
}

options! {
    /// Metrics for Prometheus.
    PrometheusOptions, "Metrics";

    /// Whether metrics are served at all.
    ///
    /// RabbitMQ asks for its plugin to be enabled; here it is a part of the broker.
    enabled: bool = true, keys = ["prometheus.enabled"];

    /// Port of the metrics. 0 lets the operating system choose one.
    port: u16 = 15_692, keys = ["prometheus.tcp.port"];

    /// Address of the metrics. Not set: all addresses, IPv6 and IPv4.
    ip: Option<String> = None, keys = ["prometheus.tcp.ip"];

    /// Port of the metrics over TLS; 15691 is the usual one. Not set: there is none.
    ssl_port: Option<u16> = None, keys = ["prometheus.ssl.port"];

    /// Address of the metrics over TLS. Not set: all addresses, IPv6 and IPv4.
    ssl_ip: Option<String> = None, keys = ["prometheus.ssl.ip"];

    /// Where the metrics are; those of each object are under it.
    path: String = "/metrics".to_owned(), keys = ["prometheus.path"], check = metrics_path;

    /// Whether the plain path shows each object, as `/metrics/per-object` does.
    return_per_object_metrics: bool = false, keys = ["prometheus.return_per_object_metrics"];

    /// Whether metrics are for users with the tag `monitoring` only, who show name and password or a token.
    ///
    /// Without it whoever reaches the port sees the names of vhosts, queues and connections.
    asks_password: bool = false, keys = ["prometheus.authentication.enabled"];
}

#[expect(clippy::ptr_arg, reason = "checks take the option's own type")]
fn metrics_path(value: &String) -> Result<(), String> {
    match value.as_str() {
        "" => Err("expected a path such as /metrics".to_owned()),
        _ => path_prefix(&Some(value.clone())),
    }
}

/// A path at which the broker writes. The empty one would be the directory in which it is started.
fn own_path(value: &Option<String>) -> Result<(), String> {
    match value.as_deref() {
        Some("") => Err("expected a path; without the key the default counts".to_owned()),
        _ => Ok(()),
    }
}

/// A path that begins with a slash and ends without one.
fn path_prefix(value: &Option<String>) -> Result<(), String> {
    let Some(value) = value else { return Ok(()) };
    let is_path = value.is_empty() || value.starts_with('/') && !value.ends_with('/');
    let is_plain = value.bytes().all(|byte| byte.is_ascii_graphic() && !b"{}?#%".contains(&byte));
    if is_path && is_plain {
        return Ok(());
    }
    Err("expected a path such as /rabbit, without a slash at its end".to_owned())
}

/// AMQP 0-9-1 section 4.2.3: every peer must accept frames of 4096 bytes.
fn frame_max(value: &ByteSize) -> Result<(), String> {
    match value.get() {
        1..4096 => Err("expected 0 (no limit) or at least 4096".to_owned()),
        _ => Ok(()),
    }
}
