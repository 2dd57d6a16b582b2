//! The brokers that are measured: one that is started for it, or one that runs.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use leveret_client::amqp::table::Value;
use leveret_client::{Connection, Options, Uri};

use crate::outcome::Facts;

/// Longest time from its start until a broker is ready.
const START: Duration = Duration::from_secs(20);

/// The broker that an experiment loads.
#[derive(Clone, Debug)]
pub(crate) enum BrokerChoice {
    /// This program, started for each experiment.
    Own,
    /// A running broker, and its process if that is on this machine.
    Running {
        /// Where it is.
        uri: String,
        /// What is watched for CPU and memory.
        pid: Option<u32>,
    },
}

/// What loads make on a broker, by name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Made {
    /// Queues that do not go with their consumers.
    pub(crate) queues: Vec<String>,
    /// Exchanges that a broker does not have by itself.
    pub(crate) exchanges: Vec<String>,
}

/// A broker that can be loaded.
#[derive(Debug)]
pub(crate) struct Broker {
    /// Where it is.
    pub(crate) uri: String,
    /// What is watched.
    pub(crate) pid: Option<u32>,
    own: Option<Own>,
}

impl Broker {
    /// Starts it with these settings, or only takes note of where it is.
    pub(crate) fn open(source: &BrokerChoice, settings: &[&str]) -> Result<Self> {
        match source {
            BrokerChoice::Running { uri, pid } => {
                Ok(Self { uri: uri.clone(), pid: *pid, own: None })
            }
            BrokerChoice::Own => {
                let (own, address) = Own::start(settings)?;
                let pid = Some(own.child.id());
                let uri = format!("amqp://guest:guest@{address}/%2F");
                Ok(Self { uri, pid, own: Some(own) })
            }
        }
    }

    /// Its control socket, if it was started here.
    pub(crate) fn socket(&self) -> Option<PathBuf> {
        self.own.as_ref().map(|own| own.dir.path().join("data/leveret.sock"))
    }

    /// What it has logged at the levels WARN and ERROR, and when it panicked, since this was asked last.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let Some(own) = &self.own else { return Vec::new() };
        let is_one =
            |line: &String| [" WARN ", "ERROR ", "panicked"].iter().any(|it| line.contains(it));
        let lines = own.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.try_iter().filter(is_one).collect()
    }

    /// Whether its process lives, if it was started here.
    pub(crate) fn has_ended(&mut self) -> Option<ExitStatus> {
        self.own.as_mut()?.child.try_wait().ok().flatten()
    }

    /// Who it says it is.
    pub(crate) fn facts(&self) -> Result<Facts> {
        let uri: Uri = self.uri.parse().with_context(|| format!("the address {}", self.uri))?;
        let connection = self.connect(&uri)?;
        let told = |key| match connection.server_properties().get(key) {
            Some(Value::LongStr(text)) => String::from_utf8_lossy(text).into_owned(),
            _ => String::new(),
        };
        let (product, version) = (told("product"), told("version"));
        // Leveret also tells clients which RabbitMQ they may take it for.
        let leveret = connection.leveret_version();
        let name = match leveret {
            Some(version) => format!("Leveret {version}"),
            None => format!("{product} {version}"),
        };
        let is_leveret = leveret.is_some();
        let facts = Facts {
            name: name.trim().to_owned(),
            told: [product, version, told("platform")].join(" ").trim().to_owned(),
            is_leveret,
            uri: uri.to_string(),
            started_here: self.own.is_some(),
            is_watched: self.pid.is_some(),
        };
        // It has told what was asked; how it says goodbye does not matter.
        let _ = connection.close();
        Ok(facts)
    }

    /// Deletes these, so that no run finds what another left, and none of it stays.
    pub(crate) fn delete(&self, made: &Made) -> Result<()> {
        let mut connection = self.connect(&self.uri.parse()?)?;
        let channel = connection.open_channel()?;
        for queue in &made.queues {
            connection.queue_delete(channel, queue)?;
        }
        for exchange in &made.exchanges {
            connection.exchange_delete(channel, exchange, false)?;
        }
        Ok(connection.close()?)
    }

    fn connect(&self, uri: &Uri) -> Result<Connection> {
        Connection::open(uri, &Options::default()).with_context(|| format!("connecting as {uri}"))
    }
}

/// What the names of directories for brokers begin with; the process that made one, and a dash, follow.
const PREFIX: &str = "leveret-experiment-";

/// A broker of our own: killed when dropped, with all its data.
///
/// If this process is killed, the broker sees the end of its standard input and stops; its data goes when
/// the next is started.
#[derive(Debug)]
struct Own {
    child: Child,
    dir: tempfile::TempDir,
    /// What it says after its ready line.
    lines: Mutex<mpsc::Receiver<String>>,
}

impl Own {
    fn start(settings: &[&str]) -> Result<(Self, String)> {
        remove_left_behind(&std::env::temp_dir());
        let prefix = format!("{PREFIX}{}-", std::process::id());
        let dir = tempfile::Builder::new().prefix(&prefix).tempdir()?;
        let config = dir.path().join("leveret.conf");
        std::fs::write(&config, "").with_context(|| config.display().to_string())?;
        let mut command = Command::new(std::env::current_exe().context("finding this program")?);
        command.args(["serve", "--until-eof", "--listen", "127.0.0.1:0"]);
        command.arg("--config").arg(&config);
        command.arg("--data-dir").arg(dir.path().join("data"));
        for setting in ["management.tcp.port=0", "prometheus.tcp.port=0", "log.console.level=info"]
            .iter()
            .chain(settings)
        {
            command.args(["--set", setting]);
        }
        // What is set for the user's own broker is not for this one.
        for (name, _) in std::env::vars_os() {
            if ["LEVERET_", "RABBITMQ_"].iter().any(|it| name.to_string_lossy().starts_with(it)) {
                command.env_remove(name);
            }
        }
        // In a group of its own, so that Ctrl-C reaches it through us, after its figures are read.
        command
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().context("starting the broker")?;
        let (said, lines) = mpsc::channel();
        for output in [
            child.stdout.take().map(|it| Box::new(it) as Box<dyn std::io::Read + Send>),
            child.stderr.take().map(|it| Box::new(it) as Box<dyn std::io::Read + Send>),
        ] {
            let said = said.clone();
            let output = BufReader::new(output.context("its output is piped")?);
            // Reads to the end whether or not anybody listens: a full pipe would stop the broker.
            std::thread::spawn(move || {
                // Logins are told by the hundred, and nobody asks.
                let lines = output.lines().map_while(Result::ok);
                lines
                    .filter(|line| !line.contains(" audit: "))
                    .for_each(|line| drop(said.send(line)));
            });
        }
        drop(said);
        let mut own = Self { child, dir, lines: Mutex::new(lines) };
        let mut told = String::new();
        let lines = own.lines.get_mut().unwrap_or_else(PoisonError::into_inner);
        while let Ok(line) = lines.recv_timeout(START) {
            if let Some(address) = address(&line) {
                return Ok((own, address));
            }
            told += &line;
            told.push('\n');
        }
        bail!("the broker that was started here is not ready:\n{told}");
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Removes the directories of processes that were killed.
fn remove_left_behind(temporary: &Path) {
    for entry in std::fs::read_dir(temporary).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let maker = name.to_str().and_then(|it| it.strip_prefix(PREFIX)?.split('-').next());
        let is_gone = |pid: u32| !Path::new("/proc").join(pid.to_string()).exists();
        if maker.and_then(|it| it.parse().ok()).is_some_and(is_gone) {
            // Another may be at it, too.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// The address in the line that says that the broker is ready.
fn address(line: &str) -> Option<String> {
    let (_, rest) = line.split_once(" is ready")?;
    let (_, rest) = rest.split_once("amqp=\"")?;
    rest.split_once('"').map(|(address, _)| address.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nobody_uses_is_removed() {
        let temporary = tempfile::tempdir().unwrap();
        let ours = format!("{PREFIX}{}-x", std::process::id());
        // Processes have smaller numbers.
        let all = [ours.as_str(), "leveret-experiment-4294967295-x", "another-4294967295-x"];
        for name in all {
            std::fs::create_dir(temporary.path().join(name)).unwrap();
        }
        remove_left_behind(temporary.path());
        let left = all.map(|name| temporary.path().join(name).exists());
        assert_eq!(left, [true, false, true]);
    }

    #[test]
    fn the_line_of_a_ready_broker() {
        let line = "INFO leveret 0.1.0 is ready amqp=\"127.0.0.1:4711\" data=\"x\"";
        assert_eq!(address(line).as_deref(), Some("127.0.0.1:4711"));
        assert_eq!(address("INFO starting amqp=\"127.0.0.1:4711\""), None);
    }
}
