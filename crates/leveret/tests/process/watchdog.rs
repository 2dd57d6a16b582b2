//! The watchdog: a node whose threads hang ends itself.

use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;
use std::time::Duration;

use leveret_client::{Connection, Options, Uri};
use rustix::process::{Pid, Signal, kill_process};

use crate::broker::{PATIENCE, leveret, wait_until};

/// A node that writes its log to a pipe which is not read any further: sooner or later each thread that logs something hangs.
struct Hanging {
    child: std::process::Child,
    uri: Uri,
    /// Not read: what hangs is whoever writes to it.
    _log: BufReader<std::process::ChildStdout>,
    _dir: tempfile::TempDir,
}

impl Hanging {
    fn start(timeout_s: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let timeout = format!("watchdog.timeout={timeout_s}");
        let mut command = leveret(&["serve", "--listen", "127.0.0.1:0", "--set", &timeout]);
        command.arg("--data-dir").arg(dir.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut log = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains(" is ready") {
            line.clear();
            assert!(log.read_line(&mut line).unwrap() > 0, "it ended before it was ready");
        }
        let address = line.split("amqp=\"").nth(1).unwrap().split('"').next().unwrap();
        let uri = format!("amqp://{address}").parse().unwrap();
        Self { child, uri, _log: log, _dir: dir }
    }

    /// Logs in and out until there is no answer any more: each login is told in the log.
    fn fill_the_log(&self) {
        let options = Options { timeout: Duration::from_millis(500), ..Options::default() };
        while let Ok(connection) = Connection::open(&self.uri, &options) {
            let _ = connection.close();
        }
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_node_that_hangs_ends_itself() {
    let mut node = Hanging::start(2);
    node.fill_the_log();
    let mut ended = None;
    wait_until(PATIENCE, "the node has ended", || {
        ended = node.child.try_wait().unwrap();
        ended.is_some()
    });
    let status = ended.unwrap();
    assert_eq!(status.signal(), Some(Signal::ABORT.as_raw()), "{status}");
    let mut told = String::new();
    node.child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert!(told.contains("the process is ended (watchdog.timeout)"), "{told}");
}

/// A process that was stopped for longer than the timeout goes on as if nothing had been.
#[test]
fn a_node_that_was_stopped_goes_on() {
    let node = Hanging::start(1);
    let pid = Pid::from_child(&node.child);
    kill_process(pid, Signal::STOP).unwrap();
    // As long as this login waits for an answer, and more than twice the timeout.
    let options = Options { timeout: Duration::from_millis(2500), ..Options::default() };
    Connection::open(&node.uri, &options).unwrap_err();
    kill_process(pid, Signal::CONT).unwrap();
    let connection = Connection::open(&node.uri, &Options::default()).unwrap();
    connection.close().unwrap();
}
