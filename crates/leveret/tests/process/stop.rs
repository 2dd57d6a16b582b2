//! The end: signals, `leveret ctl stop`, clients that answer and clients that do not.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::broker::{Broker, PATIENCE, close_reason, leveret};
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
    broker.log.once("did not answer connection.close");
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

/// The rest of a body that nobody reads is waited for while the node runs, and is no request that a stop cuts off.
#[test]
fn a_refused_body_that_stands_still_is_not_cut_off() {
    let mut broker = Broker::start();
    let mut socket = TcpStream::connect(broker.listens("http")).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
        .write_all(b"PUT /api/nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        .unwrap();
    let mut status = [0; 12];
    socket.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 404");
    broker.signal(Signal::TERM);
    assert!(broker.ended(STOP_MAX).success());
    broker.assert_quiet();
}

/// How far a start is, as its files show.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// The directory is taken; nothing is read.
    Locked,
    /// The word of the last stop is taken back: the ports are open.
    Forgotten,
    /// The control socket is there.
    Reachable,
}

impl Moment {
    fn has_come(self, dir: &Path) -> bool {
        match self {
            Self::Locked => dir.join("leveret.lock").exists(),
            Self::Forgotten => !dir.join("clean").exists(),
            Self::Reachable => dir.join("leveret.sock").exists(),
        }
    }
}

/// A node that is starting. Killed when dropped.
struct Starting<'a> {
    dir: &'a Path,
    child: Child,
}

impl<'a> Starting<'a> {
    /// On the directory of one that was stopped.
    fn on(dir: &'a Path) -> Self {
        std::fs::remove_file(dir.join("leveret.lock")).unwrap();
        let mut command = leveret(&["serve", "--listen", "127.0.0.1:0", "--data-dir"]);
        let child = command.arg(dir).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Self { dir, child: child.unwrap() }
    }

    /// Sends a signal as soon as the moment has come: there are some microseconds between.
    #[track_caller]
    fn signal_at(&mut self, moment: Moment, signal: Signal) {
        let deadline = Instant::now() + PATIENCE;
        while !moment.has_come(self.dir) {
            let has_ended = self.child.try_wait().unwrap();
            assert!(Instant::now() < deadline && has_ended.is_none(), "{moment:?}: {has_ended:?}");
            std::hint::spin_loop();
        }
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), signal).unwrap();
    }
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whenever it comes: in the middle of a start, too.
#[test]
fn a_start_that_is_asked_to_stop_ends_in_good_order() {
    let down = Broker::start().stop();
    let dir = down.dir.path();
    for moment in [Moment::Locked, Moment::Forgotten, Moment::Reachable] {
        for signal in [Signal::TERM, Signal::INT, Signal::TERM] {
            let mut node = Starting::on(dir);
            node.signal_at(moment, signal);
            let status = node.child.wait().unwrap();
            assert!(status.success(), "{moment:?} {signal:?}: {status}");
            assert!(dir.join("clean").exists(), "{moment:?} {signal:?}: no word is left");
        }
    }
}

#[test]
fn sighup_ends_no_start() {
    let down = Broker::start().stop();
    let dir = down.dir.path();
    for moment in [Moment::Locked, Moment::Forgotten, Moment::Reachable] {
        let mut node = Starting::on(dir);
        node.signal_at(moment, Signal::HUP);
        node.signal_at(Moment::Reachable, Signal::TERM);
        let status = node.child.wait().unwrap();
        assert!(status.success(), "{moment:?}: {status}");
    }
}
