//! From a configuration to the definite options of a node.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use leveret_auth::Sources;
use leveret_broker::Meta;
use leveret_config::{Config, Listeners, Loaded, PasswordHashing, Product, QueueType, files};
use leveret_log::Offset;
use leveret_session::{Mechanism, Settings};
use leveret_topology::{
    COMPATIBLE_VERSION, Hashing, Homes, Import, Password, PasswordHash, QueueKind, Topology,
};
use rustix::fs::Mode;

use crate::cluster;
use crate::front::{About, Fronts};
use crate::listener::{Preface, SocketOptions};
use crate::logging::{self, LAST_LINES, Logs};
use crate::login;
use crate::seeds;
use crate::serve::{AmqpListener, Options, run};
use crate::signals::Signals;
use crate::storage::{DirectoryLock, Files, Memory, NodeLog, Orphans, Storage, Waker, tell_damage};
use crate::tls::certificate::LoginFrom;
use crate::tls::{HandshakeShares, Tls};

/// Runs a node with this configuration until it is stopped.
///
/// `loaded` is where it came from and what reading it had to say, which is logged first. `give_back` is
/// called on a thread that worked and then had nothing to do for a while: it may return memory to the
/// system.
pub fn serve(
    loaded: &Loaded,
    signals: Signals,
    fronts: Fronts,
    give_back: fn(),
) -> anyhow::Result<()> {
    // Before anything is named: clients choose names.
    leveret_topology::hash::set_key(rand::random());
    let started = Instant::now();
    // Files are 0640 and directories 0750, whatever the umask was.
    rustix::process::umask(Mode::WGRP | Mode::RWXO);
    let config = &loaded.config;
    let log_dir = log_dir(config);
    let logs = logging::install(&config.log, &log_dir)?;
    let ended = serve_with(loaded, started, &logs, signals, fronts, give_back);
    // Whatever ended it, a start that was refused too.
    logs.flush(LAST_LINES);
    ended
}

fn serve_with(
    loaded: &Loaded,
    started: Instant,
    logs: &Logs,
    mut signals: Signals,
    fronts: Fronts,
    give_back: fn(),
) -> anyhow::Result<()> {
    for notice in &loaded.notices {
        if notice.is_warning {
            tracing::warn!("{}", notice.text);
        } else {
            tracing::info!("{}", notice.text);
        }
    }
    let config = loaded.config.clone();
    let formation = config.cluster.formation(&node_name(&config)).map_err(anyhow::Error::msg)?;
    if let Some(formation) = formation {
        return cluster::serve(loaded, formation, started, logs, signals, fronts, give_back);
    }
    let Some(options) = signals.unless_stopped(move || options(&config, started)) else {
        signals.leave();
        return Ok(());
    };
    let mut options = options?;
    options.about.config_files.clone_from(&loaded.files);
    options.about.logs = logs.clone();
    run(options, signals, fronts.broker, give_back)
}

/// The directory of log files.
fn log_dir(config: &Config) -> PathBuf {
    let data_dir = files::data_dir(config);
    config.log.dir.as_ref().map_or_else(|| data_dir.join("log"), Into::into)
}

/// Files and streams that are logged to, as tools show them.
pub(crate) fn log_files(config: &Config) -> Vec<String> {
    let console = config.log.console.then(|| match config.log.console_stream {
        leveret_config::Stream::Stdout => "<stdout>".to_owned(),
        leveret_config::Stream::Stderr => "<stderr>".to_owned(),
    });
    let file = config.log.file.0.as_ref().map(|name| log_dir(config).join(name));
    console.into_iter().chain(file.map(|path| path.display().to_string())).collect()
}

/// What is decided before the data directory is looked at.
#[derive(Debug)]
pub(crate) struct Basis {
    listeners: Vec<AmqpListener>,
    /// Threads that run turns.
    pub(crate) threads: usize,
    /// Shards of a new data directory.
    pub(crate) shards: usize,
    pub(crate) data_dir: PathBuf,
    directory_lock: DirectoryLock,
    /// The machine's memory, in bytes.
    pub(crate) machine_memory: u64,
    pub(crate) memory: Memory,
}

/// What the data directory has, open.
pub(crate) struct Stored {
    pub(crate) meta: Meta<NodeLog>,
    pub(crate) topology: Topology,
    pub(crate) shards: Vec<NodeLog>,
    pub(crate) seen_below: Vec<Offset>,
    pub(crate) orphans: Orphans,
    pub(crate) waker: Arc<Waker>,
}

impl Basis {
    /// Makes the data directory, and takes it.
    pub(crate) fn of(config: &Config) -> anyhow::Result<Self> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = match config.node.threads {
            0 => cores,
            n => n as usize,
        };
        let shards = match config.node.shards {
            0 => threads,
            n => n as usize,
        };
        let listeners = amqp_listeners(config, threads)?;
        let machine_memory =
            config.resources.total_memory.map_or_else(machine_memory, |bytes| bytes.get());
        let data_dir = files::data_dir(config);
        std::fs::create_dir_all(&data_dir).with_context(|| {
            format!(
                "cannot make the data directory {}; choose another one with --data-dir",
                data_dir.display()
            )
        })?;
        let directory_lock = DirectoryLock::take(&data_dir)?;
        let memory = Memory {
            limit: config.resources.memory_high_watermark.resolve(machine_memory),
            paging_ratio: config.resources.paging_ratio.0,
        };
        Ok(Self { listeners, threads, shards, data_dir, directory_lock, machine_memory, memory })
    }

    /// What front ends tell.
    pub(crate) fn about(&self, config: &Config, started: Instant) -> About {
        let ((product, version), identity) = (product_of(config), &config.identity);
        About {
            node_name: node_name(config),
            product_name: identity.product_name.clone().unwrap_or_else(|| product.to_owned()),
            product_version: identity.product_version.clone().unwrap_or_else(|| version.to_owned()),
            data_dir: self.data_dir.clone(),
            config_files: Vec::new(),
            log_files: log_files(config),
            logs: Logs::default(),
            plugins: leveret_config::plugins::running(config),
            environment: config.shown(),
            listeners: Vec::new(),
            threads: self.threads,
            machine_memory: self.machine_memory,
            memory_limit: self.memory.limit,
            disk_free_limit: config.resources.disk_free_limit.resolve(self.machine_memory),
            started,
        }
    }

    /// With what is stored, all that a node is started with.
    pub(crate) fn with(
        self,
        stored: Stored,
        config: &Config,
        started: Instant,
    ) -> anyhow::Result<Options> {
        let about = self.about(config, started);
        let Self { listeners, threads, directory_lock, memory, .. } = self;
        let Stored { meta, topology, shards, seen_below, orphans, waker } = stored;
        Ok(Options {
            directory_lock,
            seen_below,
            orphans,
            waker,
            listeners,
            threads,
            logins: login_options(config)?,
            settings: settings(config),
            shards,
            topology,
            meta,
            paging_ratio: memory.paging_ratio,
            core_dumps: config.access.core_dumps,
            gather_reads: config.node.gather_reads,
            watchdog_timeout: std::time::Duration::from_secs(config.node.watchdog_timeout.get()),
            sockets: socket_options(config),
            led: None,
            own_sessions: None,
            about,
            arrivals: None,
            views: None,
            remote_sessions: None,
            members: None,
        })
    }
}

/// Makes every choice that the configuration leaves open.
pub fn options(config: &Config, started: Instant) -> anyhow::Result<Options> {
    let basis = Basis::of(config)?;
    cluster::refuse_of_a_member(&basis.data_dir)?;
    let stored = read(config, &basis)?;
    basis.with(stored, config, started)
}

/// Opens the logs of a node that is alone.
fn read(config: &Config, basis: &Basis) -> anyhow::Result<Stored> {
    let (names, mut checked) = Storage::check(
        &basis.data_dir,
        basis.shards,
        basis.memory,
        Files {
            damaged: config.resources.damaged_files,
            segment_bytes_max: config.resources.segment_size.get(),
        },
    )?;
    let (mut meta, mut topology) = read_names(config, names, checked.homes(), checked.waker())?;
    checked.refuse_strangers(&topology)?;
    // Nothing of what is on the disk refuses the start any more.
    checked.note()?;
    meta.log_mut().settle().context("in the log of names")?;
    let Storage { shards, seen_below, damages, orphans, last_queue, waker } = checked.open()?;
    // Whatever comes next: the files are put aside, and the next start does not find them damaged.
    tell_damage(&damages, &topology);
    // Names that lost some may have lost which ids were used.
    if let Some(last) = last_queue {
        topology.go_on_behind_queue(last);
    }
    add_names(config, true, &mut meta, &mut topology, &waker)?;
    Ok(Stored { meta, topology, shards, seen_below, orphans, waker })
}

/// How logins are treated.
pub(crate) fn login_options(config: &Config) -> anyhow::Result<login::Options> {
    Ok(login::Options {
        hashing: hashing(config),
        throttle_threshold: config.access.throttle_threshold,
        throttle_delay_max: config.access.throttle_delay_max.into(),
        sources: Sources::new(config, &crate::tls::client::config, rand::random())?,
    })
}

/// What is asked of every socket of a client.
pub(crate) fn socket_options(config: &Config) -> SocketOptions {
    let listeners = &config.listeners;
    SocketOptions {
        backlog: listeners.backlog as i32,
        nodelay: listeners.nodelay,
        keepalive: listeners.keepalive,
        send_buffer: listeners.sndbuf.map(|bytes| bytes.get() as usize),
        receive_buffer: listeners.recbuf.map(|bytes| bytes.get() as usize),
        connections_max: config.connections.connection_max.0.map(|max| max as usize),
    }
}

/// Where AMQP is spoken, without TLS and with it.
pub(crate) fn amqp_listeners(config: &Config, threads: usize) -> anyhow::Result<Vec<AmqpListener>> {
    let with = &config.listeners;
    let mut preface = Preface {
        proxy: with.proxy_protocol,
        tls: None,
        shares: HandshakeShares::of_threads(threads),
        timeout: config.connections.tls_handshake_timeout.into(),
        login: LoginFrom {
            from: config.certificates.from,
            kind: config.certificates.san_type,
            index: config.certificates.san_index as usize,
        },
    };
    let mut listeners = Vec::new();
    let mut add = |of: &Listeners, kind: &str, preface: &Preface| -> anyhow::Result<()> {
        for (key, address) in addresses(of, kind) {
            listeners.push(AmqpListener { key, address: address?, preface: preface.clone() });
        }
        Ok(())
    };
    add(&with.tcp, "tcp", &preface)?;
    if !with.ssl.is_empty() {
        preface.tls = Some(Tls::load(config.tls.settings())?);
        add(&with.ssl, "ssl", &preface)?;
    }
    Ok(listeners)
}

/// The key of each of these listeners, and its address.
pub(crate) fn addresses<'a>(
    of: &'a Listeners,
    kind: &'a str,
) -> impl Iterator<Item = (String, anyhow::Result<SocketAddr>)> + 'a {
    of.iter().map(move |(name, address)| {
        let key = format!("listeners.{kind}.{name}");
        let found = resolve(address.host.as_deref(), address.port)
            .with_context(|| format!("{key} = {address}"));
        (key, found)
    })
}

/// How new passwords are hashed.
fn hashing(config: &Config) -> Hashing {
    match config.access.password_hashing {
        PasswordHashing::Sha256 => Hashing::Sha256,
        PasswordHashing::Sha512 => Hashing::Sha512,
        PasswordHashing::Argon2id => Hashing::Argon2id,
    }
}

/// The product and its version, as they are told. Clients are told RabbitMQ's version in both cases.
fn product_of(config: &Config) -> (&'static str, &'static str) {
    match config.identity.product {
        Product::Leveret => ("Leveret", env!("CARGO_PKG_VERSION")),
        Product::RabbitMq => ("RabbitMQ", COMPATIBLE_VERSION),
    }
}

/// What sessions are told at their birth.
pub(crate) fn settings(config: &Config) -> Settings {
    let connections = &config.connections;
    let access = &config.access;
    let (product, _) = product_of(config);
    let known = [Mechanism::Plain, Mechanism::AmqPlain, Mechanism::Anonymous, Mechanism::External];
    let asked = access.auth_mechanisms.iter();
    let mechanisms = asked.filter_map(|name| known.into_iter().find(|it| it.name() == name));
    let anonymous = (access.anonymous_login_user != "none").then(|| {
        let password = Password::new(access.anonymous_login_pass.reveal());
        (access.anonymous_login_user.clone(), password)
    });
    let consumers = connections.consumer_max_per_channel.0;
    Settings {
        product: product.to_owned(),
        version: COMPATIBLE_VERSION.to_owned(),
        cluster_name: cluster_name(config),
        frame_max: u32::try_from(connections.frame_max.get()).unwrap_or(u32::MAX),
        initial_frame_max: u32::try_from(connections.initial_frame_max.get()).unwrap_or(u32::MAX),
        channel_max: connections.channel_max,
        heartbeat_s: u16::try_from(connections.heartbeat.get()).unwrap_or(u16::MAX),
        handshake_timeout_ms: connections.handshake_timeout.get(),
        max_message_size: connections.max_message_size.get(),
        unfinished_timeout_ms: connections.unfinished_timeout.get(),
        embed_bytes_below: config.resources.embed_msgs_below.get(),
        loopback_users: access.loopback_users.iter().map(str::to_owned).collect(),
        mechanisms: mechanisms.collect(),
        anonymous_login: anonymous,
        consumer_timeout_ms: Some(connections.consumer_timeout.get()),
        consumer_max_per_channel: consumers.map(|max| u32::try_from(max).unwrap_or(u32::MAX)),
        default_vhost: access.default_vhost.clone(),
        ..Settings::default()
    }
}

/// The node's name, as `rabbitmqctl` users know it.
pub fn node_name(config: &Config) -> String {
    config.node.name.clone().unwrap_or_else(|| {
        let uname = rustix::system::uname();
        let host = uname.nodename().to_string_lossy();
        let short = host.split('.').next().unwrap_or("localhost");
        format!("rabbit@{short}")
    })
}

/// The cluster's name: that of the first node, unless it was given one. It is the same whichever node leads.
fn cluster_name(config: &Config) -> String {
    let first = || {
        let own = node_name(config);
        let formation = config.cluster.formation(&own).ok().flatten();
        formation.and_then(|it| it.nodes.into_iter().next()).map_or(own, |first| first.name)
    };
    config.node.cluster_name.clone().unwrap_or_else(first)
}

/// The names that a node had, without a change.
pub(crate) fn read_names(
    config: &Config,
    log: NodeLog,
    homes: Homes,
    waker: &Waker,
) -> anyhow::Result<(Meta<NodeLog>, Topology)> {
    let mut seen = 0;
    let wait = &mut || seen = waker.wait(seen);
    Meta::read(homes, log, wait).with_context(|| {
        let names = files::data_dir(config).join("names");
        format!("cannot read the names in {}, which is to be restored from a copy", names.display())
    })
}

/// The names a node knows before anybody connects besides those it had: the definitions, if it `imports` or is new; on a first
/// start without definitions the default user and vhost.
pub(crate) fn add_names(
    config: &Config,
    imports: bool,
    meta: &mut Meta<NodeLog>,
    topology: &mut Topology,
    waker: &Waker,
) -> anyhow::Result<()> {
    let access = &config.access;
    let mut seen = 0;
    let wait = &mut || seen = waker.wait(seen);
    meta.promise(topology, wait).context("cannot store the names of this node")?;
    choose_defaults(config, topology)?;
    let events = config.events.vhost.as_deref().unwrap_or(&access.default_vhost);
    topology.open_events(&node_name(config), events);
    match &access.load_definitions {
        // At every start, as in RabbitMQ: what is there stays, but for what definitions replace.
        Some(path) if imports || meta.is_new() => {
            import_files(Path::new(path), access.skip_unsupported_definitions, topology)?;
        }
        Some(_) => {}
        None if meta.is_new() => bootstrap(config, topology)?,
        None => {}
    }
    topology.limit_channels(&node_name(config), config.connections.channel_max_per_node.0);
    if config.events.vhost.is_some() && topology.vhost(events).is_none() {
        tracing::warn!(
            vhost = events,
            "event_exchange.vhost names no vhost: nothing is told until it is there"
        );
    }
    if config.management.enabled {
        topology.keep_events();
    }
    meta.save(topology, wait).context("cannot store the names of this node")
}

/// What the first start makes.
pub(crate) fn bootstrap(config: &Config, topology: &mut Topology) -> anyhow::Result<()> {
    let access = &config.access;
    let tags: Vec<&str> = access.default_user_tags.iter().collect();
    topology.defaults().passwords.check(access.default_pass.reveal()).context("default_pass")?;
    topology.bootstrap(&leveret_topology::Bootstrap {
        user: &access.default_user,
        password: PasswordHash::with(hashing(config), access.default_pass.reveal(), rand::random()),
        tags: &tags,
        vhost: &access.default_vhost,
        permissions: [&access.default_configure, &access.default_write, &access.default_read],
    })?;
    Ok(())
}

/// What vhosts have that are made, and what passwords have to be like.
pub(crate) fn choose_defaults(config: &Config, topology: &mut Topology) -> anyhow::Result<()> {
    topology.choose_defaults(seeds::defaults(&config.seeds, hashing(config))?);
    topology.choose_default_queue_type(config.access.default_queue_type.map(|kind| match kind {
        QueueType::Classic => QueueKind::Classic,
        QueueType::Quorum => QueueKind::Quorum,
    }));
    Ok(())
}

/// The longest file of definitions, in bytes: several million queues.
const DEFINITIONS_MAX: u64 = 1 << 30;

/// Imports definitions; what is left out is logged, if it may be.
pub(crate) fn import_files(
    path: &Path,
    skips: bool,
    topology: &mut Topology,
) -> anyhow::Result<()> {
    let files = definition_files(path);
    for file in files.with_context(|| format!("load_definitions = {}", path.display()))? {
        let json = files::read_text(&file, DEFINITIONS_MAX)
            .with_context(|| format!("cannot read the definitions {}", file.display()))?;
        let imported = Import::read(&json)
            .and_then(|import| topology.import(import.skip_unsupported(skips)))
            .with_context(|| format!("in the definitions {}", file.display()))?;
        for text in imported.skipped.iter().chain(&imported.without_effect) {
            tracing::warn!("definitions {}: {text}", file.display());
        }
    }
    Ok(())
}

/// One file, or all `.json` files of a directory by name.
fn definition_files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let file = entry?.path();
        if file.extension().is_some_and(|ending| ending == "json") {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

/// All addresses when no host is named: IPv6, which takes IPv4 too where the system has it.
pub fn resolve(host: Option<&str>, port: u16) -> anyhow::Result<SocketAddr> {
    match host {
        None => {
            let any = std::net::Ipv6Addr::UNSPECIFIED;
            let has_ipv6 = std::net::UdpSocket::bind((any, 0)).is_ok();
            let any4 = std::net::Ipv4Addr::UNSPECIFIED;
            Ok(if has_ipv6 { (any, port).into() } else { (any4, port).into() })
        }
        Some(host) => (host, port)
            .to_socket_addrs()?
            .next()
            .with_context(|| format!("the host '{host}' has no address")),
    }
}

/// The machine's memory in bytes, or what the control group allows of it.
fn machine_memory() -> u64 {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
        let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
        Some(kib * 1024)
    });
    let group = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"]
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok());
    let known = machine.into_iter().chain(group).min();
    // RabbitMQ assumes 1 GiB where it cannot tell.
    known.unwrap_or(1 << 30)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A default that is not the same in all versions of RabbitMQ is that of the version that is claimed.
    #[test]
    fn bodies_may_be_as_large_as_in_the_version_that_is_claimed() {
        let (major, _) = COMPATIBLE_VERSION.split_once('.').expect("a version");
        let mib = if major == "3" { 128 } else { 16 };
        assert_eq!(settings(&Config::default()).max_message_size, mib << 20);
    }
}
