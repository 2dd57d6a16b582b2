//! The brokers that are measured: ours, started fresh for each workload, and those that run.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::slow::SlowDisk;

/// How long our broker may take to answer.
const START_MAX: Duration = Duration::from_secs(60);

/// A broker that runs already.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    title: String,
    uri: String,
    pid: u32,
}

impl std::str::FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.rsplitn(3, ',');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(pid), Some(uri), Some(title)) => Ok(Self {
                title: title.into(),
                uri: uri.into(),
                pid: pid.parse().map_err(|_| format!("bad process id '{pid}'"))?,
            }),
            _ => Err("expected TITLE,URI,PID".into()),
        }
    }
}

/// A broker under measurement.
#[derive(Debug)]
pub(crate) enum Target {
    /// Started by us.
    Ours { command: String, data: PathBuf, slow: Option<SlowDisk>, running: Option<Running> },
    /// Somebody else's.
    Peer(Peer),
}

#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    uri: String,
    start: Duration,
}

impl Target {
    /// Ours, on a disk as it is or on a slow one.
    pub(crate) fn ours(command: &str, slow: Option<SlowDisk>) -> Self {
        let data = std::env::temp_dir().join(format!("leveret-bench-{}", std::process::id()));
        Self::Ours { command: command.into(), data, slow, running: None }
    }

    pub(crate) fn running(peer: Peer) -> Self {
        Self::Peer(peer)
    }

    pub(crate) fn title(&self) -> &str {
        match self {
            Self::Ours { slow: None, .. } => "Leveret",
            Self::Ours { slow: Some(_), .. } => "Leveret, slow sync",
            Self::Peer(peer) => &peer.title,
        }
    }

    /// Starts ours anew; a peer runs on. Gives the URI and the process.
    pub(crate) fn fresh(&mut self) -> Result<(String, u32)> {
        self.fresh_on(None)
    }

    /// The same, with so many cores for ours.
    pub(crate) fn fresh_on(&mut self, cores: Option<usize>) -> Result<(String, u32)> {
        self.stop();
        match self {
            Self::Peer(peer) => Ok((peer.uri.clone(), peer.pid)),
            Self::Ours { command, data, slow, running } => {
                let started = start(command, data, slow.as_ref(), cores)?;
                let place = (started.uri.clone(), started.child.id());
                *running = Some(started);
                Ok(place)
            }
        }
    }

    /// Where ours keeps its data, and its control socket.
    pub(crate) fn data(&self) -> Option<&Path> {
        match self {
            Self::Ours { data, .. } => Some(data),
            Self::Peer(_) => None,
        }
    }

    pub(crate) fn is_peer(&self) -> bool {
        matches!(self, Self::Peer(_))
    }

    /// Kills ours in the middle of its work and starts it on the data it left.
    pub(crate) fn restart(&mut self) -> Result<(String, u32)> {
        let Self::Ours { command, data, slow, running } = self else {
            bail!("a peer is not restarted");
        };
        if let Some(mut running) = running.take() {
            running.child.kill()?;
            running.child.wait()?;
        }
        let started = start(command, data, slow.as_ref(), None)?;
        let place = (started.uri.clone(), started.child.id());
        *running = Some(started);
        Ok(place)
    }

    /// From the start of the process to its first `connection.start`.
    pub(crate) fn start_time(&self) -> Option<Duration> {
        match self {
            Self::Ours { running: Some(running), .. } => Some(running.start),
            _ => None,
        }
    }

    pub(crate) fn stop(&mut self) {
        if let Self::Ours { running, data, .. } = self {
            if let Some(mut running) = running.take() {
                // It may have ended by itself; the result of its run is known either way.
                let _ = running.child.kill();
                let _ = running.child.wait();
            }
            let _ = std::fs::remove_dir_all(data);
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.stop();
    }
}

fn start(
    command: &str,
    data: &Path,
    slow: Option<&SlowDisk>,
    cores: Option<usize>,
) -> Result<Running> {
    std::fs::create_dir_all(data).with_context(|| format!("creating {}", data.display()))?;
    // A port that was free a moment ago; nobody else is expected to take it meanwhile.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let words: Vec<String> = command
        .split_whitespace()
        .map(|word| {
            word.replace("{port}", &port.to_string()).replace("{data}", &data.to_string_lossy())
        })
        .collect();
    let (program, arguments) = words.split_first().ok_or_else(|| anyhow!("--command is empty"))?;
    let log = std::fs::File::create(data.join("bench.log"))?;
    let began = Instant::now();
    let mut command = Command::new(program);
    if let Some(slow) = slow {
        command.env("LD_PRELOAD", slow.library());
    }
    // Its input ends with this process, however that ends: see `serve --until-eof`.
    command.args(arguments).stdin(Stdio::piped()).stdout(log.try_clone()?).stderr(log);
    let mut child = spawn_on(&mut command, cores).with_context(|| format!("starting {program}"))?;
    while !answers(port) {
        if let Some(status) = child.try_wait()? {
            let said = std::fs::read_to_string(data.join("bench.log")).unwrap_or_default();
            bail!("the broker ended with {status}: {said}");
        }
        if began.elapsed() > START_MAX {
            let _ = child.kill();
            bail!("the broker does not answer on port {port}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let uri = format!("amqp://guest:guest@127.0.0.1:{port}/%2F");
    Ok(Running { child, uri, start: began.elapsed() })
}

/// Starts it with the first so many of our cores, if not all: a process has those of the thread that started it.
pub(crate) fn spawn_on(command: &mut Command, cores: Option<usize>) -> std::io::Result<Child> {
    let Some(count) = cores else { return command.spawn() };
    let spawn = || {
        let ours = sched_getaffinity(None)?;
        let mut few = CpuSet::new();
        (0..CpuSet::MAX_CPU).filter(|it| ours.is_set(*it)).take(count).for_each(|it| few.set(it));
        sched_setaffinity(None, &few)?;
        command.spawn()
    };
    std::thread::scope(|scope| scope.spawn(spawn).join())
        .unwrap_or_else(|_| Err(std::io::Error::other("the thread that starts it has died")))
}

/// Whether a `connection.start` comes back.
fn answers(port: u16) -> bool {
    let Ok(mut socket) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let mut head = [0; 11];
    socket.set_read_timeout(Some(Duration::from_secs(2))).is_ok()
        && socket.write_all(b"AMQP\x00\x00\x09\x01").is_ok()
        && socket.read_exact(&mut head).is_ok()
        && head[7..] == [0, 10, 0, 10]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_as_many_cores_as_it_is_given() {
        let mut command = Command::new("nproc");
        let child = spawn_on(command.stdout(Stdio::piped()), Some(1)).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "1");
        // Only that process.
        let all = std::thread::available_parallelism().unwrap().get();
        let output = Command::new("nproc").output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), all.to_string());
    }
}
