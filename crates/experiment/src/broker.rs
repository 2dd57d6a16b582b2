//! The brokers that are measured: one that is started for it, or one that runs.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use leveret_client::amqp::table::Value;
use leveret_client::{Connection, Options, Uri};

use crate::outcome::Facts;

/// Longest time from its start until a broker is ready.
const START: Duration = Duration::from_secs(20);

/// Where a broker is to be had.
#[derive(Clone, Debug)]
pub(crate) enum Source {
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
    pub(crate) fn open(source: &Source, settings: &[&str]) -> Result<Self> {
        match source {
            Source::Running { uri, pid } => Ok(Self { uri: uri.clone(), pid: *pid, own: None }),
            Source::Own => {
                let (own, address) = Own::start(settings)?;
                let pid = Some(own.child.id());
                let uri = format!("amqp://guest:guest@{address}/%2F");
                Ok(Self { uri, pid, own: Some(own) })
            }
        }
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
        let is_leveret = product == "Leveret";
        // Leveret tells clients which RabbitMQ they may take it for, not which of its own versions it is.
        let name = match (is_leveret, &self.own) {
            (true, Some(_)) => format!("Leveret {}", env!("CARGO_PKG_VERSION")),
            (true, None) => "Leveret".to_owned(),
            (false, _) => format!("{product} {version}"),
        };
        let facts = Facts {
            name: name.trim().to_owned(),
            told: [product, version, told("platform")].join(" ").trim().to_owned(),
            is_leveret,
            place: uri.to_string(),
            started_here: self.own.is_some(),
            is_watched: self.pid.is_some(),
        };
        // It has told what was asked; how it says goodbye does not matter.
        let _ = connection.close();
        Ok(facts)
    }

    /// Deletes these queues, so that no run finds what another left.
    pub(crate) fn delete(&self, queues: &[String]) -> Result<()> {
        if queues.is_empty() {
            return Ok(());
        }
        let mut connection = self.connect(&self.uri.parse()?)?;
        let channel = connection.open_channel()?;
        for queue in queues {
            connection.queue_delete(channel, queue)?;
        }
        Ok(connection.close()?)
    }

    fn connect(&self, uri: &Uri) -> Result<Connection> {
        Connection::open(uri, &Options::default()).with_context(|| format!("connecting as {uri}"))
    }
}

/// A broker of our own: killed when dropped, with all its data.
#[derive(Debug)]
struct Own {
    child: Child,
    _dir: tempfile::TempDir,
}

impl Own {
    fn start(settings: &[&str]) -> Result<(Self, String)> {
        let dir = tempfile::Builder::new().prefix("leveret-experiment-").tempdir()?;
        let config = dir.path().join("leveret.conf");
        std::fs::write(&config, "").with_context(|| config.display().to_string())?;
        let mut command = Command::new(std::env::current_exe().context("finding this program")?);
        command.args(["serve", "--listen", "127.0.0.1:0"]).arg("--config").arg(&config);
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
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
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
                output.lines().map_while(Result::ok).for_each(|line| drop(said.send(line)));
            });
        }
        drop(said);
        let own = Self { child, _dir: dir };
        let mut told = String::new();
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
    fn the_line_of_a_ready_broker() {
        let line = "INFO leveret 0.1.0 is ready amqp=\"127.0.0.1:4711\" data=\"x\"";
        assert_eq!(address(line).as_deref(), Some("127.0.0.1:4711"));
        assert_eq!(address("INFO starting amqp=\"127.0.0.1:4711\""), None);
    }
}
