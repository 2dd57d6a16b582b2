//! The end: signals, `leveret ctl stop`, clients that answer and clients that do not.

use std::time::Duration;

use rustix::process::Signal;

use crate::broker::{Broker, close_reason};
use crate::raw::Raw;

/// The broker waits three seconds for clients.
const STOP_MAX: Duration = Duration::from_secs(10);

#[test]
fn sigterm_closes_connections_with_320() {
    let mut broker = Broker::start();
    let mut clients: Vec<_> = (0..3).map(|_| broker.connect()).collect();
    broker.signal(Signal::TERM);
    for client in &mut clients {
        let reason = close_reason(client);
        assert_eq!(reason.code, 320);
        assert_eq!(
            reason.text,
            "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
        );
    }
    assert!(broker.ended(STOP_MAX).success());
    broker.assert_quiet();
    assert!(!broker.dir.path().join("leveret.sock").exists());
}

#[test]
fn a_client_that_does_not_answer_cannot_keep_it_running() {
    let mut broker = Broker::start();
    let mut logged_in = Raw::login(&broker);
    let silent = Raw::connect(&broker);
    broker.signal(Signal::TERM);
    logged_in.expect("connection.close");
    // It says nothing; nor does the one that never logged in.
    assert!(broker.ended(STOP_MAX).success());
    drop(silent);
    assert_eq!(broker.log.with("did not answer connection.close").len(), 1);
}

#[test]
fn sigint_and_ctl_stop_end_it_too() {
    let mut broker = Broker::start();
    broker.signal(Signal::INT);
    assert!(broker.ended(STOP_MAX).success());

    let mut broker = Broker::start();
    let (mut client, channel) = broker.channel();
    broker.told(&["stop"]);
    assert!(client.queue_purge(channel, "q").is_err(), "the connection is closed");
    assert!(broker.ended(STOP_MAX).success());
    assert_eq!(broker.ctl(&["ping"]).status.code(), Some(69));
    broker.told(&["stop", "--idempotent"]);
}

#[test]
fn nobody_is_let_in_while_it_stops() {
    let mut broker = Broker::start();
    let mut keeper = Raw::login(&broker);
    broker.signal(Signal::TERM);
    keeper.expect("connection.close");
    assert!(
        leveret_client::Connection::open(&broker.uri(), &leveret_client::Options::default())
            .is_err()
    );
    keeper.close_ok();
    assert!(broker.ended(STOP_MAX).success());
}
