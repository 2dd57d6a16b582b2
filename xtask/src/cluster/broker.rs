//! What the nodes run: this broker, or RabbitMQ beside it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::member::Site;
use super::net;
use crate::install;

/// A broker.
#[derive(Clone, Debug)]
pub(super) enum Broker {
    /// This program.
    Leveret {
        program: PathBuf,
        /// MiB that the node that leads keeps of each log for those that are away; none is the default.
        kept_mib: Option<u64>,
        /// `cluster.sessions`
        sessions: &'static str,
    },
    /// Debian's RabbitMQ, whose programs are here. Its queues are quorum queues.
    RabbitMq { programs: PathBuf },
}

/// Where Debian has RabbitMQ.
const RABBITMQ: &str = "/usr/lib/rabbitmq/lib";

impl Broker {
    /// RabbitMQ, which is installed if it is not there.
    pub(super) fn rabbitmq() -> anyhow::Result<Self> {
        install::program("rabbitmq-server", "rabbitmq-server")
            .context("RabbitMQ is Debian's package rabbitmq-server, and it cannot be had here")?;
        let entries = fs::read_dir(RABBITMQ).with_context(|| {
            format!("rabbitmq-server is not Debian's package: {RABBITMQ} is not there")
        })?;
        let programs = |it: fs::DirEntry| it.path().join("sbin");
        let found = entries.flatten().map(programs).find(|it| it.join("rabbitmq-server").exists());
        let programs =
            found.with_context(|| format!("there is no rabbitmq-server in {RABBITMQ}"))?;
        Ok(Self::RabbitMq { programs })
    }

    pub(super) fn is_rabbitmq(&self) -> bool {
        matches!(self, Self::RabbitMq { .. })
    }

    /// The name of its directories.
    pub(super) fn name(&self) -> &'static str {
        if self.is_rabbitmq() { "rabbitmq" } else { "cluster" }
    }

    /// What it is called in reports.
    pub(super) fn title(&self) -> String {
        match self {
            Self::Leveret { .. } => format!("Leveret {}", env!("CARGO_PKG_VERSION")),
            Self::RabbitMq { programs } => {
                let name = programs.parent().and_then(Path::file_name).unwrap_or_default();
                let name = name.to_string_lossy();
                format!("RabbitMQ {}, quorum queues", name.trim_start_matches("rabbitmq_server-"))
            }
        }
    }

    /// `x-queue-type` of the queues.
    pub(super) fn queue_type(&self) -> Option<&'static str> {
        self.is_rabbitmq().then_some("quorum")
    }

    /// Longest time from start to taking clients, for a debug build on a busy machine.
    pub(super) fn start_patience(&self) -> Duration {
        Duration::from_secs(if self.is_rabbitmq() { 180 } else { 30 })
    }

    /// The full name of a node.
    pub(super) fn node_name(&self, number: usize) -> String {
        match self {
            Self::Leveret { .. } => format!("rabbit@node-{number}"),
            // Names are addresses: nothing has to resolve them.
            Self::RabbitMq { .. } => format!("rabbit@{}", net::address(number)),
        }
    }

    /// Writes the configuration of a node: alone, or one of these.
    pub(super) fn configure(
        &self,
        number: usize,
        sites: &[Site],
        dir: &Path,
    ) -> anyhow::Result<()> {
        let lines = match self {
            Self::Leveret { kept_mib, sessions, .. } => {
                let mut lines = self.of_leveret(number, sites);
                if sites.len() > 1 {
                    lines.push(format!("cluster.sessions = {sessions}"));
                }
                if let Some(mib) = kept_mib.filter(|_| sites.len() > 1) {
                    lines.push(format!("cluster.kept_size = {mib}MiB"));
                    // Files go as a whole.
                    lines.push("storage.segment_size = 1MiB".to_owned());
                }
                lines
            }
            Self::RabbitMq { .. } => {
                fs::write(dir.join("enabled_plugins"), "[].\n")?;
                // What all nodes know of each other.
                let cookie = dir.parent().unwrap_or(dir).join(".erlang.cookie");
                if !cookie.exists() {
                    fs::write(&cookie, "LEVERETCLUSTER")?;
                    fs::set_permissions(&cookie, fs::Permissions::from_mode(0o400))?;
                }
                self.of_rabbitmq(number, sites)
            }
        };
        Ok(fs::write(dir.join("broker.conf"), lines.join("\n") + "\n")?)
    }

    fn listed(&self, sites: &[Site]) -> Vec<String> {
        let listed = |number| {
            let name = self.node_name(number);
            format!("cluster_formation.classic_config.nodes.{} = {name}", number + 1)
        };
        let mut lines =
            vec!["cluster_formation.peer_discovery_backend = classic_config".to_owned()];
        lines.extend((0..sites.len()).map(listed));
        lines
    }

    fn of_leveret(&self, number: usize, sites: &[Site]) -> Vec<String> {
        let Site { host, ports: [amqp, http, cluster], .. } = &sites[number];
        let mut lines = vec![
            format!("node_name = {}", self.node_name(number)),
            format!("listeners.tcp.default = {host}:{amqp}"),
            format!("management.tcp.ip = {host}"),
            format!("management.tcp.port = {http}"),
            "prometheus.enabled = false".to_owned(),
            // Clients come over the bridge.
            "loopback_users = none".to_owned(),
        ];
        if sites.len() > 1 {
            lines.extend(self.listed(sites));
            lines.push("cluster.secret = only for tests of a cluster".to_owned());
            lines.push(format!("cluster.listen = {host}"));
            lines.push(format!("cluster.port = {cluster}"));
            for (other, Site { host, ports: [_, _, port], .. }) in sites.iter().enumerate() {
                let key = "cluster_formation.classic_config.addresses";
                lines.push(format!("{key}.{} = {host}:{port}", other + 1));
            }
        }
        lines
    }

    fn of_rabbitmq(&self, number: usize, sites: &[Site]) -> Vec<String> {
        let Site { host, ports: [amqp, ..], .. } = &sites[number];
        let mut lines = self.listed(sites);
        lines.push(format!("listeners.tcp.default = {host}:{amqp}"));
        lines.push("loopback_users = none".to_owned());
        // What its documentation recommends for three nodes. With the default a cluster stays in two parts after a cut.
        lines.push("cluster_partition_handling = pause_minority".to_owned());
        lines
    }

    /// What starts a node whose files are here and whose data is there.
    pub(super) fn command(&self, number: usize, dir: &Path, data_dir: &Path) -> Start {
        let config = dir.join("broker.conf");
        match self {
            Self::Leveret { program, .. } => {
                let mut words = vec![program.clone().into_os_string(), "serve".into()];
                words.extend(["--config".into(), config.into_os_string()]);
                words.extend(["--data-dir".into(), data_dir.as_os_str().to_owned()]);
                Start { words, variables: Vec::new() }
            }
            Self::RabbitMq { programs } => {
                let mut variables = self.variables(number, dir);
                let mut set = |name: &str, value: &Path| {
                    variables.push((name.to_owned(), value.display().to_string()));
                };
                set("RABBITMQ_CONFIG_FILE", &config);
                set("RABBITMQ_MNESIA_BASE", data_dir);
                set("RABBITMQ_LOG_BASE", &dir.join("logs"));
                set("RABBITMQ_LOGS", Path::new("-"));
                set("RABBITMQ_ENABLED_PLUGINS_FILE", &dir.join("enabled_plugins"));
                // Its script becomes the node, and is no parent that a signal would hit instead.
                set("RUNNING_UNDER_SYSTEMD", Path::new("true"));
                let words = vec![programs.join("rabbitmq-server").into_os_string()];
                Start { words, variables }
            }
        }
    }

    /// What the programs of RabbitMQ are told by their environment.
    fn variables(&self, number: usize, dir: &Path) -> Vec<(String, String)> {
        let dir_text = dir.display().to_string();
        [
            // With a cookie of its own. All nodes have one parent.
            ("HOME", dir.parent().unwrap_or(dir).display().to_string()),
            ("RABBITMQ_NODENAME", self.node_name(number)),
            ("RABBITMQ_USE_LONGNAME", "true".to_owned()),
            // Nothing of this machine's own.
            ("RABBITMQ_CONF_ENV_FILE", format!("{dir_text}/none")),
            ("RABBITMQ_ADVANCED_CONFIG_FILE", format!("{dir_text}/none.config")),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }

    /// What a node says of the cluster: with the keys `leader`, `running_nodes` and `groups` of ours.
    pub(super) fn status(&self, number: usize, dir: &Path, data_dir: &Path) -> Option<Value> {
        match self {
            Self::Leveret { .. } => {
                let words = ["-q", "-t", "2", "cluster_status", "--formatter", "json"];
                serde_json::from_slice(&self.ask(number, dir, data_dir, &words).ok()?).ok()
            }
            Self::RabbitMq { .. } => {
                let words = ["-q", "-t", "20", "list_queues", "--formatter", "json"];
                let words = [&words[..], &["name", "leader"]].concat();
                let told = self.ask(number, dir, data_dir, &words).ok()?;
                let queues: Vec<Value> = serde_json::from_slice(&told).ok()?;
                let mut leaders: Vec<_> =
                    queues.iter().filter_map(|it| it["leader"].as_str()).collect();
                leaders.sort_unstable();
                // Who leads most of them.
                let mut runs: Vec<_> = leaders.chunk_by(|one, other| one == other).collect();
                runs.sort_by_key(|run| run.len());
                Some(serde_json::json!({"leader": runs.last().and_then(|run| run.first())}))
            }
        }
    }

    /// Runs the tool for operators on a node: what it prints.
    pub(super) fn ask(
        &self,
        number: usize,
        dir: &Path,
        data_dir: &Path,
        words: &[&str],
    ) -> anyhow::Result<Vec<u8>> {
        let mut command = match self {
            Self::Leveret { program, .. } => {
                let mut command = Command::new(program);
                command.args(["ctl", "--socket"]).arg(data_dir.join("leveret.sock"));
                command
            }
            Self::RabbitMq { programs } => {
                let inside = net::in_namespace(number);
                let mut command = Command::new(&inside[0]);
                command.args(&inside[1..]).arg(programs.join("rabbitmqctl"));
                command.envs(self.variables(number, dir));
                command
            }
        };
        let output = command.args(words).stdin(Stdio::null()).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "node {number}, {}: {said}", words.join(" "));
        Ok(output.stdout)
    }
}

/// How a process is started.
pub(super) struct Start {
    pub(super) words: Vec<std::ffi::OsString>,
    pub(super) variables: Vec<(String, String)>,
}
