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

    /// Directory of the node's data: messages, definitions, its identity.
    ///
    /// The node makes the directory if it does not exist. One directory serves one running node. Not set:
    /// `/var/lib/leveret` for the superuser, `leveret` in the user's data directory
    /// (`$XDG_DATA_HOME`, or `~/.local/share`) for others.
    data_dir: Option<String> = None, keys = ["data_dir"],
        env = ["RABBITMQ_MNESIA_BASE" => "data_dir", "RABBITMQ_MNESIA_DIR" => "data_dir"],
        check = own_path;

    /// Name of the node, in lists and as the default name of the cluster.
    ///
    /// Not set: `rabbit@` and the machine's host name.
    name: Option<String> = None, keys = ["node_name"], env = ["RABBITMQ_NODENAME" => "node_name"];

    /// Path of the Unix socket that `leveret ctl` connects to.
    ///
    /// Not set: `leveret.sock` in the data directory. A user of the socket is an administrator, so only its
    /// owner can connect.
    ctl_socket: Option<String> = None, keys = ["ctl.socket"], check = own_path;

    /// Threads that serve connections. 0 means one per processor.
    threads: u32 = 0, keys = ["threads"], range = 0..=1024;

    /// Shards that own the queues. 0 means one per thread.
    ///
    /// A queue belongs to one shard. The first start decides; the data directory keeps the number. More shards than
    /// threads bring nothing.
    shards: u32 = 0, keys = ["shards"], range = 0..=1024;

    /// Whether a thread waits for 50 us before it reads again, while its clients publish single messages fast and nobody waits
    /// for what comes of them.
    ///
    /// Publishers without confirms then cost less CPU time. Nothing is read later when messages come slowly, or for 2 ms after
    /// a client sent something that is answered, confirmed or settled; later than that a client of the same thread may be
    /// read 50 us later.
    gather_reads: bool = true, keys = ["gather_reads"];

    /// Seconds that a turn, a lock or a thread may take before the process ends itself (by SIGABRT), so that systemd
    /// starts it again. 0 means never.
    ///
    /// The log and `leveret_watchdog_stalls_total` report each that takes longer than a second.
    watchdog_timeout: Seconds = Seconds(60), keys = ["watchdog.timeout"],
        range = Seconds(0)..=Seconds(86_400);

    /// Name of the cluster, for clients and tools. Not set: the node's name.
    cluster_name: Option<String> = None, keys = ["cluster_name"];
}

options! {
    /// Where clients connect.
    ListenerOptions, "Listeners";

    /// Addresses for AMQP 0-9-1: a port, or an address and a port.
    ///
    /// There may be any number, each under a name of your choice. The first replaces the default.
    /// `listeners.tcp = none` means no listener without TLS.
    tcp: Listeners = Listeners::on_port(5672), keys = ["listeners.tcp.$name", "listeners.tcp"],
        env = [
            "LEVERET_LISTENERS_TCP_DEFAULT" => "listeners.tcp.default",
            "RABBITMQ_NODE_PORT" => "listeners.tcp.default"
        ],
        flags = ["listen" => "listeners.tcp.default", "port" => "listeners.tcp.default"];

    /// Addresses for AMQP 0-9-1 over TLS, as for `listeners.tcp`; 5671 is the usual port.
    ///
    /// By default there is none. `ssl_options.certfile` and `ssl_options.keyfile` must be set, too.
    ssl: Listeners = Listeners::none(), keys = ["listeners.ssl.$name", "listeners.ssl"];

    /// Whether every connection begins with a header of the PROXY protocol (versions 1 and 2), which
    /// names the client behind a proxy.
    ///
    /// The broker believes the header, so only the proxy may be able to reach the port.
    proxy_protocol: bool = false, keys = ["proxy_protocol"];

    /// Connections that may wait to be accepted.
    backlog: u32 = 4096, keys = ["tcp_listen_options.backlog"], range = 1..=65_535;

    /// Send small packets at once (TCP_NODELAY).
    nodelay: bool = true, keys = ["tcp_listen_options.nodelay"];

    /// Probe idle connections by TCP. Heartbeats are better.
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
    /// The connection of a client that is silent for two intervals is closed.
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
    /// The default is that of RabbitMQ 3.13; from 4.0 on it is 16 MiB there.
    max_message_size: ByteSize = ByteSize::mib(128), keys = ["max_message_size"],
        range = ByteSize(1)..=ByteSize::mib(512);

    /// Time after which a connection is closed if a body, or a frame, stands still: if it brings less than 1 KiB for
    /// each second of this time.
    ///
    /// While other connections wait for the memory that the body takes, the limits are 16 KiB for each second, and a tenth
    /// of the body in this time.
    unfinished_timeout: Millis = Millis::seconds(60), keys = ["unfinished_timeout"],
        range = Millis(100)..=Millis::seconds(86_400);

    /// Time that a consumer has to ack a delivery before its channel is closed.
    consumer_timeout: Millis = Millis::seconds(1800), keys = ["consumer_timeout"],
        range = Millis(1)..=Millis(u64::MAX / 2);
}

options! {
    /// Who may log in, and what exists on the first start.
    AccessOptions, "Users and definitions";

    /// Type of queues that are declared without a type: `classic` or `quorum`. Not set: `classic`.
    ///
    /// It holds for new vhosts without a type of their own. As in RabbitMQ, a vhost keeps the type that it was made with.
    /// Queues that cannot have this type are classic.
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
    /// The first key replaces the default. `loopback_users = none` admits every user from
    /// anywhere: a danger while `guest` has its default password.
    loopback_users: NameSet = NameSet::of("guest"), keys = ["loopback_users.$user", "loopback_users"];

    /// Authentication mechanisms that clients are offered, in the order of the last words of the keys.
    auth_mechanisms: Mechanisms = Mechanisms::default(), keys = ["auth_mechanisms.$name"];

    /// User of clients that log in by the mechanism ANONYMOUS; `none` refuses them.
    anonymous_login_user: String = "guest".to_owned(), keys = ["anonymous_login_user"];

    /// Password of that user. The default is `guest`.
    anonymous_login_pass: Secret = Secret::new("guest"), keys = ["anonymous_login_pass"];

    /// How new passwords are hashed.
    ///
    /// RabbitMQ refuses definitions with hashes of `leveret_password_hashing_argon2id`.
    password_hashing: PasswordHashing = PasswordHashing::Sha256, keys = ["password_hashing_module"];

    /// Refused logins from one address after which its next logins are delayed. 0: never.
    ///
    /// Each further refusal doubles the delay. The count falls by one every ten seconds without a refusal.
    throttle_threshold: u32 = 10, keys = ["login_throttle.threshold"], range = 0..=1_000_000;

    /// The longest delay of a login after too many refusals.
    throttle_delay_max: Millis = Millis::seconds(5), keys = ["login_throttle.delay_max"],
        range = Millis(0)..=Millis::seconds(60);

    /// Whether the system may write a core file when the broker fails.
    ///
    /// A core file holds messages, and may hold passwords and keys.
    core_dumps: bool = false, keys = ["core_dumps"];

    /// A definitions file, or a directory of them, imported at every start.
    ///
    /// The format is that of RabbitMQ's `export_definitions`. With this option the default user,
    /// virtual host and permissions are not made.
    load_definitions: Option<String> = None, keys = ["load_definitions"],
        aliases = ["management.load_definitions", "definitions.local.path"];

    /// Whether unsupported entries of these definitions are left out, with a warning for each: streams, entries of
    /// plugins that are not there, and entries that need something that is neither here nor in the file.
    ///
    /// Otherwise such a file keeps the broker from starting, as in RabbitMQ.
    skip_unsupported_definitions: bool = false, keys = ["definitions.skip_unsupported"];
}

options! {
    /// When alarms block publishers, and how messages are stored.
    ResourceOptions, "Memory and disk";

    /// Memory use that raises the memory alarm: a part of the machine's memory (`relative`), or a number of bytes
    /// (`absolute`), which holds if both are set.
    ///
    /// The alarm blocks connections that publish into long queues; 10 % above the watermark, all that publish.
    memory_high_watermark: Threshold = Threshold::part(0.6),
        keys = ["vm_memory_high_watermark.relative", "vm_memory_high_watermark.absolute"],
        aliases = ["vm_memory_high_watermark"],
        env = ["RABBITMQ_VM_MEMORY_HIGH_WATERMARK" => "vm_memory_high_watermark"];

    /// Memory of the machine, in place of the operating system's figure.
    total_memory: Option<ByteSize> = None, keys = ["total_memory_available_override_value"],
        env = [
            "RABBITMQ_TOTAL_MEMORY_AVAILABLE_OVERRIDE_VALUE" => "total_memory_available_override_value"
        ];

    /// Part of the watermark that transient messages may take before new ones are written to the disk, too.
    ///
    /// The part is divided among the shards. 1 means that they are not written: publishers are blocked at the watermark.
    paging_ratio: Fraction = Fraction(0.5), keys = ["vm_memory_high_watermark_paging_ratio"],
        range = Fraction(0.0)..=Fraction(1.0);

    /// Free disk space below which the disk alarm is raised: a number of bytes (`absolute`), which holds if both are
    /// set, or a part of the machine's memory (`relative`).
    ///
    /// The alarm blocks connections that publish to the disk; below half of the limit, all that publish.
    /// Less than 2 MiB counts as 2 MiB; 0 blocks nobody.
    disk_free_limit: Threshold = Threshold::bytes(50_000_000),
        keys = ["disk_free_limit.absolute", "disk_free_limit.relative"], aliases = ["disk_free_limit"];

    /// What a start does when a file of messages is damaged.
    ///
    /// `aside`: the start goes on with every whole message and keeps the damaged file under a name with `.damaged`.
    /// An ERROR names the file, the position, the loss, the queues, and what to do. `refuse`: the start ends and
    /// changes nothing, so that nobody publishes or consumes before an operator has looked. A damaged log of names, or
    /// a format that is too new, is always refused.
    damaged_files: DamagedFiles = DamagedFiles::Aside, keys = ["storage.damaged_files"];

    /// Largest size of a file of messages. A file of this size is full, and the next one begins.
    ///
    /// With short queues files have a quarter of this size; they get longer with a long backlog. The disk holds at most
    /// about 1.3 times the contents of the queues, and for each shard this size. Smaller files free space sooner, but
    /// a start has to open more of them.
    segment_size: ByteSize = ByteSize::mib(64), keys = ["storage.segment_size"],
        range = ByteSize::mib(1)..=ByteSize::mib(1024);

    /// Size from which on a message for queues of several shards is stored only once.
    ///
    /// The size is that of names, properties and body. Of a smaller message each shard keeps a copy, which is quicker to
    /// write and to read.
    embed_msgs_below: ByteSize = ByteSize::kib(4), keys = ["queue_index_embed_msgs_below"];
}

options! {
    /// What the broker logs, how and where.
    LogOptions, "Logs and statistics";

    /// Log to an output stream.
    ///
    /// RabbitMQ logs to a file unless told otherwise; Leveret to the console.
    console: bool = true, keys = ["log.console"];

    /// Lowest level that is logged to the console, whatever the categories have. Not set: the levels of the categories.
    console_level: Option<Level> = None, keys = ["log.console.level"];

    /// Format of lines on the console.
    console_format: LogFormat = LogFormat::Plaintext, keys = ["log.console.formatter"];

    /// Which stream the console is.
    console_stream: Stream = Stream::Stdout, keys = ["log.console.stdio"];

    /// File to log to, relative to `log.dir`; `false` for none.
    file: LogFile = LogFile(None), keys = ["log.file"], env = ["RABBITMQ_LOGS" => "log.file"];

    /// Lowest level that is logged to the file, whatever the categories have. Not set: the levels of the categories.
    file_level: Option<Level> = None, keys = ["log.file.level"];

    /// Format of lines in the file.
    file_format: LogFormat = LogFormat::Plaintext, keys = ["log.file.formatter"];

    /// Size at which the file is rotated. 0 means never.
    file_rotation_size: ByteSize = ByteSize(0), keys = ["log.file.rotation.size"];

    /// Number of rotated files that are kept.
    file_rotation_count: u32 = 10, keys = ["log.file.rotation.count"], range = 0..=10_000;

    /// Directory of log files. Not set: `log` in the data directory.
    dir: Option<String> = None, keys = ["log.dir"], env = ["RABBITMQ_LOG_BASE" => "log.dir"],
        check = own_path;

    /// Lowest level by category: default, connection, channel, queue, federation, upgrade, user, audit.
    ///
    /// A category that is not set has the level of `default`, which is `info`.
    levels: CategoryLevels = CategoryLevels::default(), keys = ["log.$category.level"],
        aliases = ["log.level"],
        env = ["LEVERET_LOG_LEVEL" => "log.level"],
        flags = ["log-level" => "log.level"];

    /// Interval at which statistics are sampled.
    statistics_interval: Millis = Millis::seconds(5), keys = ["collect_statistics_interval"],
        range = Millis(100)..=Millis::seconds(86_400);
}

options! {
    /// The names and versions that clients and tools see.
    IdentityOptions, "Identity";

    /// Name of the broker for clients (`product`), in the API and in metrics (`product_name`): `RabbitMQ`, because many
    /// clients decide by it, or `Leveret`.
    ///
    /// Both names have the same version of RabbitMQ. Leveret's own version is always beside it, as `leveret_version`.
    product: Product = Product::RabbitMq, keys = ["server_properties.product"];

    /// Product name in the API and in metrics, in place of `server_properties.product`.
    product_name: Option<String> = None, keys = ["product.name"],
        env = ["RABBITMQ_PRODUCT_NAME" => "product.name"];

    /// Product version in the API and in metrics, in place of the default.
    product_version: Option<String> = None, keys = ["product.version"],
        env = ["RABBITMQ_PRODUCT_VERSION" => "product.version"];
}

options! {
    /// Events of the node.
    EventOptions, "Events";

    /// The vhost of the exchange `amq.rabbitmq.event`, see the page about events. Not set: `default_vhost`.
    ///
    /// The exchange is always there; no plugin has to be enabled. Without a binding it costs nothing.
    vhost: Option<String> = None, keys = ["event_exchange.vhost"];
}

options! {
    /// The HTTP API and the page for people.
    ManagementOptions, "Management";

    /// Whether the HTTP API and the page are there. No plugin has to be enabled.
    enabled: bool = true, keys = ["management.enabled"];

    /// Port of the HTTP API and the page. 0 lets the operating system choose one.
    port: u16 = 15_672, keys = ["management.tcp.port"], aliases = ["management.listener.port"];

    /// Address of the HTTP API and the page. Not set: all addresses, IPv6 and IPv4.
    ip: Option<String> = None, keys = ["management.tcp.ip"], aliases = ["management.listener.ip"];

    /// Port of the HTTP API and the page over TLS; 15671 is the usual one. Not set: there is none.
    ///
    /// `management.ssl.certfile` and `management.ssl.keyfile` must be set, too. The port without TLS stays open: bind it
    /// to an address that only this machine reaches (`management.tcp.ip = 127.0.0.1`).
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

    /// Seconds for which a browser may remember the permissions of another site.
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

    /// Whether the management API takes tokens alone, and no names with passwords. The control socket asks for neither.
    disable_basic_auth: bool = false, keys = ["management.disable_basic_auth"];

    /// Whether operator policies can be changed only from the command line.
    no_operator_policy_changes: bool = false,
        keys = ["management.restrictions.operator_policy_changes.disabled"];
}

options! {
    /// Traces: copies of a vhost's messages, written to files.
    TracingOptions, "Traces";

    /// Directory of the files. Not set: `trace` in the data directory. RabbitMQ's default is `/var/tmp/rabbitmq-tracing`.
    ///
    /// It belongs to the broker's user or to root, and nobody else may write to it, nor may its group. The packaged systemd
    /// service writes nowhere but to its own directories: another one needs `ReadWritePaths=` in a drop-in of the service.
    dir: Option<String> = None, keys = ["tracing.dir"], check = own_path;

    /// User in whose name a trace gets its messages, unless it is made with another one.
    ///
    /// The user needs permissions in the vhost: to configure and write `amq.gen-.*`, to read that and `amq.rabbitmq.trace`.
    username: String = "guest".to_owned(), keys = ["tracing.username"];

    /// Password of that user.
    password: Secret = Secret::new("guest"), keys = ["tracing.password"];

    /// Largest size of a file. The trace that would make it larger stops.
    ///
    /// RabbitMQ has no such limit. Before the disk has less than `disk_free_limit` and 64 MiB, traces stop, too.
    max_file_size: ByteSize = ByteSize::mib(1024), keys = ["tracing.max_file_size"],
        range = ByteSize::kib(4)..=ByteSize(1 << 50);

    /// Most bytes of copies that may wait for the file of a trace, by the sizes of their bodies.
    ///
    /// One copy may wait for each 512 of these bytes, however small it is. Older ones than these are left out, counted, and
    /// told in the file. Each trace has as much for itself, within `tracing.max_waiting_total`. RabbitMQ keeps all; its memory
    /// alarm then blocks publishers.
    max_waiting: ByteSize = ByteSize::mib(32), keys = ["tracing.max_waiting"],
        range = ByteSize::kib(64)..=ByteSize::mib(1024);

    /// Most bytes of copies that may wait for the files of all traces together.
    ///
    /// Each trace takes `tracing.max_waiting` of it from its beginning to its end. A trace for which there is not as much left
    /// is refused. It is at least `tracing.max_waiting`.
    max_waiting_total: ByteSize = ByteSize::mib(512), keys = ["tracing.max_waiting_total"],
        range = ByteSize::kib(64)..=ByteSize::mib(16 << 10);
}

options! {
    /// Metrics for Prometheus.
    PrometheusOptions, "Metrics";

    /// Whether metrics are served. No plugin has to be enabled.
    enabled: bool = true, keys = ["prometheus.enabled"];

    /// Port of the metrics. 0 lets the operating system choose one.
    port: u16 = 15_692, keys = ["prometheus.tcp.port"];

    /// Address of the metrics. Not set: all addresses, IPv6 and IPv4.
    ip: Option<String> = None, keys = ["prometheus.tcp.ip"];

    /// Port of the metrics over TLS; 15691 is the usual one. Not set: there is none.
    ssl_port: Option<u16> = None, keys = ["prometheus.ssl.port"];

    /// Address of the metrics over TLS. Not set: all addresses, IPv6 and IPv4.
    ssl_ip: Option<String> = None, keys = ["prometheus.ssl.ip"];

    /// Path of the metrics. Pages such as `per-object` are below it.
    path: String = "/metrics".to_owned(), keys = ["prometheus.path"], check = metrics_path;

    /// Whether the page at `prometheus.path` shows each object, as `per-object` does.
    return_per_object_metrics: bool = false, keys = ["prometheus.return_per_object_metrics"];

    /// Whether metrics need the password or token of a user with the tag `monitoring`.
    ///
    /// Otherwise whoever reaches the port sees the names of vhosts, queues and connections.
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
