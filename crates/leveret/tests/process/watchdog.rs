//! The watchdog: a node whose threads hang ends itself.

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use leveret_client::{Connection, Options};
use rustix::process::Signal;

use crate::broker::{Broker, PATIENCE};
use crate::shim::Shim;

#[test]
fn a_node_that_hangs_ends_itself() {
    let shim = Shim::new();
    let mut broker = shim.with(&["watchdog.timeout=2"]);
    shim.set("hold_turns=1");
    let status = broker.ended(PATIENCE);
    assert_eq!(status.signal(), Some(Signal::ABORT.as_raw()), "{status}");
    broker.errors.wait_for("the process is ended (watchdog.timeout)");
}

/// A process that was stopped for longer than the timeout goes on as if nothing had been.
#[test]
fn a_node_that_was_stopped_goes_on() {
    let broker = Broker::with(&["watchdog.timeout=1"]);
    broker.signal(Signal::STOP);
    // As long as this login waits for an answer, and more than twice the timeout.
    let options = Options { timeout: Duration::from_millis(2500), ..Options::default() };
    Connection::open(&broker.uri(), &options).unwrap_err();
    broker.signal(Signal::CONT);
    broker.connect().close().unwrap();
}
