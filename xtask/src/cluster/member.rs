//! The nodes: their processes, their files, their logs.

use std::fs::{self, OpenOptions};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::broker::{Broker, Start};
use super::disk::Disk;
use super::net;

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
    broker: Broker,
    /// Has its configuration, its data and its log.
    dir: PathBuf,
    pub(super) site: Site,
    child: Option<Child>,
    /// A disk of its own, if it is to be filled.
    disk: Option<Disk>,
}

impl Member {
    /// One of these, with an empty directory; on a disk of its own with so many MiB, if there is to be one.
    pub(super) fn new(
        number: usize,
        broker: &Broker,
        dir: &Path,
        sites: &[Site],
        disk_mib: Option<u64>,
    ) -> anyhow::Result<Self> {
        let dir = dir.join(format!("node-{number}"));
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        let disk_dir = dir.join("disk");
        fs::create_dir_all(&disk_dir)?;
        broker.configure(number, sites, &dir)?;
        let site = sites[number].clone();
        let disk = disk_mib.map(|mib| Disk::make(&disk_dir, mib)).transpose()?;
        Ok(Self { number, broker: broker.clone(), dir, site, child: None, disk })
    }

    /// Its data directory.
    pub(super) fn data_dir(&self) -> PathBuf {
        self.dir.join("disk/data")
    }

    /// Its full name.
    pub(super) fn name(&self) -> String {
        self.broker.node_name(self.number)
    }

    /// Its disk, if that can be filled.
    pub(super) fn disk(&self) -> anyhow::Result<&Disk> {
        self.disk.as_ref().context("the node has no disk of its own")
    }

    /// Its process.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
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
        let Start { words: started, variables } =
            self.broker.command(self.number, &self.dir, &self.data_dir());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(started).envs(variables);
        command.stdout(log.try_clone()?).stderr(log).stdin(Stdio::null());
        self.child = Some(command.spawn().context("starting a node")?);
        Ok(())
    }

    /// Waits until it takes connections.
    pub(super) fn await_ready(&mut self) -> anyhow::Result<()> {
        let patience = self.broker.start_patience();
        let deadline = Instant::now() + patience;
        while TcpStream::connect((&*self.site.host, self.site.ports[0])).is_err() {
            if let Some(status) = self.has_ended()? {
                bail!("node {} ended with {status} while it started", self.number);
            }
            ensure!(
                Instant::now() < deadline,
                "node {} takes no clients after {patience:?}",
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
        self.await_good_end()
    }

    /// Waits for the end of its process, which was told to stop.
    pub(super) fn await_good_end(&mut self) -> anyhow::Result<()> {
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

    /// Whether what it says of the cluster tells what others lack.
    pub(super) fn says_who_lacks(&self) -> bool {
        !self.broker.is_rabbitmq()
    }

    /// What it says of the cluster.
    pub(super) fn status(&self) -> Option<Value> {
        self.broker.status(self.number, &self.dir, &self.data_dir())
    }

    /// Who leads, by what it says: a number below this.
    pub(super) fn leader(&self, nodes: usize) -> Option<usize> {
        let status = self.status()?;
        let leader = status["leader"].as_str()?;
        (0..nodes).find(|it| self.broker.node_name(*it) == leader)
    }

    /// Runs the tool for operators on it.
    pub(super) fn ask(&self, words: &[&str]) -> anyhow::Result<Vec<u8>> {
        self.broker.ask(self.number, &self.dir, &self.data_dir(), words)
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
        if self.broker.is_rabbitmq() {
            return Vec::new();
        }
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
        Ok(fs::rename(self.data_dir(), self.aside())?)
    }

    /// Gives it its data back.
    pub(super) fn find_data(&self) -> anyhow::Result<()> {
        if self.data_dir().exists() {
            fs::remove_dir_all(self.data_dir())?;
        }
        Ok(fs::rename(self.aside(), self.data_dir())?)
    }

    /// Loses what was put aside for good.
    pub(super) fn forget_data(&self) -> anyhow::Result<()> {
        Ok(fs::remove_dir_all(self.aside())?)
    }

    fn aside(&self) -> PathBuf {
        self.dir.join("disk/data-aside")
    }

    /// Loses a file of its data, or a directory with all that is in it.
    pub(super) fn lose(&self, name: &str) -> anyhow::Result<()> {
        let path = self.data_dir().join(name);
        let lost = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        lost.with_context(|| path.display().to_string())
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
