//! What a start would refuse, found without one: nothing is changed, bound or locked.
//!
//! All faults are collected. What is stored, and ports that others have, are for the start to find: a node may be running
//! with the same configuration.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use leveret_auth::Sources;
use leveret_config::tls::TlsSettings;
use leveret_config::{Config, Loaded, files};
use leveret_topology::Topology;
use rustix::fs::{Access, access};

use crate::startup::{
    addresses, bootstrap, choose_defaults, import_files, log_files, node_name, resolve,
};
use crate::storage::check_layout;
use crate::tls::Tls;

/// What was looked at, and what is wrong with it.
#[derive(Debug, Default)]
pub struct Checked {
    /// What was looked at, in words.
    pub looked_at: Vec<String>,
    /// What a start would refuse.
    pub faults: Vec<String>,
}

impl Checked {
    fn look<T>(&mut self, what: impl Into<String>, found: anyhow::Result<T>) -> Option<T> {
        self.looked_at.push(what.into());
        found.map_err(|error| self.faults.push(format!("{error:#}"))).ok()
    }

    fn address(&mut self, key: &str, ip: Option<&str>, port: u16) {
        let shown = ip.unwrap_or_default();
        let found = resolve(ip, port).with_context(|| format!("{key}.ip = {shown}"));
        self.look(key, found);
    }

    fn tls(&mut self, what: &str, settings: TlsSettings) {
        self.look(format!("TLS of {what}"), Tls::load(settings));
    }
}

/// Looks at all that the configuration names. What is only worth a warning is written to stderr.
pub fn check(loaded: &Loaded) -> Checked {
    let told = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN);
    let told = told.with_writer(std::io::stderr).with_ansi(false).with_target(false).without_time();
    tracing::subscriber::with_default(told.finish(), || look(loaded))
}

fn look(loaded: &Loaded) -> Checked {
    leveret_topology::hash::set_key(rand::random());
    let config = &loaded.config;
    let mut checked = Checked::default();
    checked.looked_at.extend(loaded.files.iter().map(|file| format!("configuration {file}")));
    let (tcp, ssl) = (&config.listeners.tcp, &config.listeners.ssl);
    for (key, found) in addresses(tcp, "tcp").chain(addresses(ssl, "ssl")) {
        checked.look(key, found);
    }
    let (http, metrics) = (&config.management, &config.prometheus);
    if http.enabled {
        checked.address("management.tcp", http.ip.as_deref(), http.port);
    }
    if metrics.enabled {
        checked.address("prometheus.tcp", metrics.ip.as_deref(), metrics.port);
    }
    if !config.listeners.ssl.is_empty() {
        checked.tls("listeners.ssl", config.tls.settings());
    }
    if http.enabled && http.ssl_port.is_some() {
        checked.tls("management.ssl", config.management_tls.settings());
    }
    if metrics.enabled && metrics.ssl_port.is_some() {
        checked.tls("prometheus.ssl", config.prometheus_tls.settings());
    }
    let own = node_name(config);
    let formation = config.cluster.formation(&own).map_err(anyhow::Error::msg);
    let formation = checked.look(format!("the cluster of {own}"), formation);
    // A node that is alone has no links.
    if let (Some(Some(_)), Some(settings)) = (formation, config.cluster_tls.settings()) {
        checked.look("TLS of links to other nodes", Tls::load_for_nodes(settings));
    }
    let sources = Sources::new(config, &crate::tls::client::config, rand::random());
    checked.look("sources of users", sources);
    let data_dir = files::data_dir(config);
    let what = format!("data directory {}", data_dir.display());
    checked.look(what, writable(&data_dir).and_then(|()| check_layout(&data_dir)));
    let logs = log_files(config).into_iter().filter(|name| !name.starts_with('<'));
    for file in logs.map(PathBuf::from) {
        let dir = file.parent().unwrap_or_else(|| Path::new("/"));
        checked.look(format!("log file {}", file.display()), writable(dir));
    }
    match &config.access.load_definitions {
        Some(path) => {
            let found = definitions(config, &data_dir, Path::new(path), &mut checked);
            checked.look(format!("definitions {path}"), found);
        }
        None => {
            checked.look("default users, policies and limits", first(config, &data_dir));
        }
    }
    checked
}

/// Makes what the first start would.
fn first(config: &Config, data_dir: &Path) -> anyhow::Result<()> {
    let mut topology = Topology::new();
    choose_defaults(config, &mut topology)?;
    match data_dir.join("names").exists() {
        true => Ok(()),
        false => bootstrap(config, &mut topology),
    }
}

/// Imports the definitions as the first start would. A node that has names may have the vhosts that are missed.
fn definitions(
    config: &Config,
    data_dir: &Path,
    path: &Path,
    checked: &mut Checked,
) -> anyhow::Result<()> {
    let mut topology = Topology::new();
    choose_defaults(config, &mut topology)?;
    if data_dir.join("names").exists() {
        bootstrap(config, &mut topology)?;
        checked
            .looked_at
            .push("definitions as if the node had the default user and vhost alone".to_owned());
    }
    import_files(path, config.access.skip_unsupported_definitions, &mut topology)
}

/// Whether a directory can be written to, or made.
fn writable(dir: &Path) -> anyhow::Result<()> {
    // The last of a relative path's is empty, which is the directory in which this runs.
    let mut all = dir.ancestors().map(|it| if it == Path::new("") { Path::new(".") } else { it });
    let there = all.find(|it| it.exists()).unwrap_or_else(|| Path::new("/"));
    anyhow::ensure!(there.is_dir(), "{} is no directory", there.display());
    access(there, Access::WRITE_OK | Access::EXEC_OK)
        .with_context(|| format!("{} cannot be written to", there.display()))
}
