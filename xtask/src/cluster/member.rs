//! The nodes: their configuration, their processes, their logs.

use std::fs::{self, OpenOptions};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::net;

/// Longest time from start to taking clients, for a debug build on a busy machine.
const START: Duration = Duration::from_secs(30);
/// Longest time of a clean stop.
const STOP: Duration = Duration::from_secs(60);
/// Lines of a log that are shown when something failed.
const SHOWN: usize = 40;

/// Where a node is.
#[derive(Clone, Debug)]
pub(super) struct Site {
    /// Its address.
    pub(super) host: String,
    /// Its ports: AMQP, the management API, the other nodes.
    pub(super) ports: [u16; 3],
    /// Whether it has a namespace of its own.
    pub(super) is_apart: bool,
}

impl Site {
    /// In the namespace of this node.
    pub(super) fn apart(number: usize) -> Self {
        Self { host: net::address(number), ports: [5672, 15_672, 25_672], is_apart: true }
    }

    /// On ports of this machine that are free now.
    pub(super) fn here() -> anyhow::Result<Self> {
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?);
        }
        let mut ports = [0; 3];
        for (port, listener) in ports.iter_mut().zip(&held) {
            *port = listener.local_addr()?.port();
        }
        Ok(Self { host: Ipv4Addr::LOCALHOST.to_string(), ports, is_apart: false })
    }
}

/// A node, whether it runs or not.
pub(super) struct Member {
    number: usize,
    program: PathBuf,
    /// Has its configuration, its data and its log.
    dir: PathBuf,
    pub(super) site: Site,
    child: Option<Child>,
}

/// The name of a node.
pub(super) fn node_name(number: usize) -> String {
    format!("rabbit@node-{number}")
}

impl Member {
    /// One of these, with an empty directory.
    pub(super) fn new(
        number: usize,
        program: &Path,
        dir: &Path,
        sites: &[Site],
    ) -> anyhow::Result<Self> {
        let dir = dir.join(format!("node-{number}"));
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        fs::create_dir_all(&dir)?;
        fs::write(dir.join("leveret.conf"), configuration(number, sites))?;
        let site = sites[number].clone();
        Ok(Self { number, program: program.to_owned(), dir, site, child: None })
    }

    /// Its data directory.
    pub(super) fn data_dir(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Where it speaks AMQP.
    pub(super) fn uri(&self) -> String {
        format!("amqp://guest:guest@{}:{}/%2F", self.site.host, self.site.ports[0])
    }

    /// Starts its process.
    pub(super) fn start(&mut self) -> anyhow::Result<()> {
        ensure!(self.child.is_none(), "node {} runs already", self.number);
        let log = OpenOptions::new().create(true).append(true).open(self.log())?;
        let mut words =
            if self.site.is_apart { net::in_namespace(self.number) } else { Vec::new() };
        // It does not outlive the thread that starts it.
        words.extend(["setpriv", "--pdeathsig", "KILL"].map(str::to_owned));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(&self.program).arg("serve");
        command.arg("--config").arg(self.dir.join("leveret.conf"));
        command.arg("--data-dir").arg(self.data_dir());
        command.stdout(log.try_clone()?).stderr(log).stdin(Stdio::null());
        self.child = Some(command.spawn().context("starting a node")?);
        Ok(())
    }

    /// Waits until it takes connections.
    pub(super) fn await_ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START;
        while TcpStream::connect((&*self.site.host, self.site.ports[0])).is_err() {
            if let Some(status) = self.has_ended()? {
                bail!("node {} ended with {status} while it started", self.number);
            }
            ensure!(
                Instant::now() < deadline,
                "node {} takes no clients after {START:?}",
                self.number
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Sends its process a signal.
    pub(super) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let child = self.child.as_ref().with_context(|| format!("node {} is down", self.number))?;
        let pid = Pid::from_child(child);
        kill_process(pid, signal).with_context(|| format!("a signal for node {}", self.number))
    }

    /// Waits for the end of its process, which was told to end.
    pub(super) fn await_end(&mut self) -> anyhow::Result<ExitStatus> {
        let deadline = Instant::now() + STOP;
        loop {
            if let Some(status) = self.has_ended()? {
                self.child = None;
                return Ok(status);
            }
            ensure!(Instant::now() < deadline, "node {} has not ended after {STOP:?}", self.number);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// `kill -9`.
    pub(super) fn kill(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::KILL)?;
        self.await_end().map(|_| ())
    }

    /// Stops it as systemd does.
    pub(super) fn stop(&mut self) -> anyhow::Result<()> {
        self.signal(Signal::TERM)?;
        let status = self.await_end()?;
        ensure!(status.success(), "node {} ended with {status} when it was stopped", self.number);
        Ok(())
    }

    /// How it ended, if it did.
    pub(super) fn has_ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        match &mut self.child {
            Some(child) => Ok(child.try_wait()?),
            None => Ok(None),
        }
    }

    /// Whether its process was started, and not ended by us.
    pub(super) fn is_up(&self) -> bool {
        self.child.is_some()
    }

    /// What it says of the cluster, over its control socket.
    pub(super) fn status(&self) -> Option<Value> {
        let mut command = Command::new(&self.program);
        command
            .args(["ctl", "-q", "-t", "2", "--socket"])
            .arg(self.data_dir().join("leveret.sock"));
        command.args(["cluster_status", "--formatter", "json"]).stderr(Stdio::null());
        let output = command.output().ok()?;
        serde_json::from_slice(&output.stdout).ok()
    }

    fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// Its log so far.
    pub(super) fn logged(&self) -> String {
        fs::read(self.log()).map(|it| String::from_utf8_lossy(&it).into_owned()).unwrap_or_default()
    }

    /// Lines of its log that no fault explains.
    pub(super) fn complaints(&self) -> Vec<String> {
        let is_one = |line: &&str| ["panicked at", "watchdog: "].iter().any(|it| line.contains(it));
        self.logged().lines().filter(is_one).map(str::to_owned).collect()
    }

    /// Prints the last lines of its log.
    pub(super) fn show(&self) {
        let text = self.logged();
        let lines: Vec<_> = text.lines().collect();
        println!("-- node {}, the last lines of {}", self.number, self.log().display());
        for line in lines.iter().skip(lines.len().saturating_sub(SHOWN)) {
            println!("   {line}");
        }
    }

    /// Puts its data aside, as if its disk was a new one.
    pub(super) fn lose_data(&self) -> anyhow::Result<()> {
        Ok(fs::rename(self.data_dir(), self.dir.join("data-aside"))?)
    }

    /// Gives it its data back.
    pub(super) fn find_data(&self) -> anyhow::Result<()> {
        if self.data_dir().exists() {
            fs::remove_dir_all(self.data_dir())?;
        }
        Ok(fs::rename(self.dir.join("data-aside"), self.data_dir())?)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The configuration of a node: alone, or one of these.
fn configuration(number: usize, sites: &[Site]) -> String {
    let Site { host, ports: [amqp, http, cluster], .. } = &sites[number];
    let mut lines = vec![
        format!("node_name = {}", node_name(number)),
        format!("listeners.tcp.default = {host}:{amqp}"),
        format!("management.tcp.ip = {host}"),
        format!("management.tcp.port = {http}"),
        "prometheus.enabled = false".to_owned(),
        // Clients come over the bridge.
        "loopback_users = none".to_owned(),
    ];
    if sites.len() > 1 {
        lines.push("cluster_formation.peer_discovery_backend = classic_config".to_owned());
        lines.push("cluster.secret = only for tests of a cluster".to_owned());
        lines.push(format!("cluster.listen = {host}"));
        lines.push(format!("cluster.port = {cluster}"));
        for (other, Site { host, ports: [_, _, port], .. }) in sites.iter().enumerate() {
            let key = "cluster_formation.classic_config";
            lines.push(format!("{key}.nodes.{} = {}", other + 1, node_name(other)));
            lines.push(format!("{key}.addresses.{} = {host}:{port}", other + 1));
        }
    }
    lines.join("\n") + "\n"
}
