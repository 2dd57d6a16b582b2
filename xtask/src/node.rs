//! A node of our own for a chore: started on a free port, stopped when it is dropped.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

use crate::root;
use crate::steps::{cargo, succeed};

/// Longest time from start to ready; the promise is a tenth of a second.
const START: Duration = Duration::from_secs(10);

/// A running node.
pub(crate) struct Node {
    program: PathBuf,
    child: Child,
    data_dir: PathBuf,
    /// Where it speaks AMQP.
    pub(crate) address: SocketAddr,
    /// Where its management API is.
    pub(crate) http: SocketAddr,
}

/// Builds the program as users run it.
pub(crate) fn build() -> anyhow::Result<()> {
    succeed(&mut cargo(&["build", "--quiet", "--release", "--package", "leveret"]))
}

/// The program that [`build`] makes.
pub(crate) fn program() -> Command {
    Command::new(root().join("target/release/leveret"))
}

impl Node {
    /// Starts the built program with these words after `serve`.
    pub(crate) fn start(words: &[&str]) -> anyhow::Result<Self> {
        Self::start_program(program().get_program().as_ref(), words)
    }

    /// Starts another build of it.
    pub(crate) fn start_program(program: &Path, words: &[&str]) -> anyhow::Result<Self> {
        // Ask the system for a free port, and give it back for the node to take.
        let free = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr();
        let (address, http) = (free()?, free()?);
        let data_dir = root().join(format!("target/node-{}", address.port()));
        std::fs::create_dir_all(&data_dir)?;
        let log = std::fs::File::create(data_dir.join("output"))?;
        let child = Command::new(program)
            .arg("serve")
            .args(["--port", &address.to_string()])
            .args(["--management-tcp-port", &http.port().to_string()])
            .args(["--prometheus-tcp-port", "0"])
            .arg("--data-dir")
            .arg(&data_dir)
            .args(words)
            .stdout(log.try_clone()?)
            .stderr(log)
            .stdin(Stdio::null())
            .spawn()
            .context("starting the node")?;
        let mut node = Self { program: program.to_owned(), child, data_dir, address, http };
        node.await_ready()?;
        Ok(node)
    }

    fn await_ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START;
        while TcpStream::connect(self.address).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("the node ended with {status}:\n{}", self.output());
            }
            if Instant::now() > deadline {
                bail!("the node is not ready after {START:?}:\n{}", self.output());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Where it keeps its data, and its control socket.
    pub(crate) fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// Stops it as an operator would, and waits for its end.
    pub(crate) fn stop(&mut self) -> anyhow::Result<()> {
        let mut stop = Command::new(&self.program);
        stop.args(["ctl", "-q", "stop"]).env("LEVERET_DATA_DIR", &self.data_dir);
        succeed(&mut stop)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "the node ended with {status}:\n{}", self.output());
        Ok(())
    }

    fn output(&self) -> String {
        std::fs::read_to_string(self.data_dir.join("output")).unwrap_or_default()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.data_dir);
    }
}
