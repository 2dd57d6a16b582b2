//! Tells the service manager that started the node how it is: systemd's `sd_notify`.
//!
//! That is a datagram to the socket in `NOTIFY_SOCKET`, and nothing at all if nobody named one. With a
//! watchdog (`WATCHDOG_USEC`) the manager hears from us twice in its time, each time after every thread and
//! every actor showed [our own](crate::watchdog) that it still works; if one hangs, it hears nothing and starts the node anew.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use crate::cluster::view::Views;
use crate::node::Node;

/// A service manager that wants to know.
#[derive(Debug)]
pub(crate) struct Supervisor {
    socket: UnixDatagram,
    address: SocketAddr,
    /// How often it wants to hear.
    watchdog: Option<Duration>,
}

impl Supervisor {
    /// The one that the environment names, if any.
    pub(crate) fn of_environment() -> Option<Self> {
        let set = |name: &str| std::env::var(name).ok().filter(|it| !it.is_empty());
        let is_ours = |pid: String| pid.parse() == Ok(std::process::id());
        let watchdog = set("WATCHDOG_USEC").filter(|_| set("WATCHDOG_PID").is_none_or(is_ours));
        let watchdog = watchdog.and_then(|us| us.parse().ok()).map(Duration::from_micros);
        let name = set("NOTIFY_SOCKET")?;
        match Self::open(&name, watchdog) {
            Ok(supervisor) => Some(supervisor),
            Err(error) => {
                tracing::warn!(%error, "the service manager cannot be told anything at {name}");
                None
            }
        }
    }

    /// `name` is a path, or after an `@` a name without a file.
    fn open(name: &str, watchdog: Option<Duration>) -> io::Result<Self> {
        let address = match name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        // A manager that does not listen must not hold the broker up.
        socket.set_nonblocking(true)?;
        Ok(Self { socket, address, watchdog: watchdog.filter(|it| !it.is_zero()) })
    }

    /// Clients are served from now on.
    pub(crate) fn is_ready(&self) {
        self.tell("READY=1\nSTATUS=Serving clients");
    }

    /// Clients are taken from now on, and another node serves them, or will.
    pub(crate) fn stands_by(&self) {
        self.tell("READY=1\nSTATUS=Standing by: the node of the cluster that leads serves clients");
    }

    /// The end has begun.
    pub(crate) fn is_stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=Stopping");
    }

    fn tell(&self, state: &str) {
        if let Err(error) = self.socket.send_to_addr(state.as_bytes(), &self.address) {
            tracing::debug!(%error, "the service manager was not told {state:?}");
        }
    }

    /// Tells a watchdog that all is well, as long as it is.
    pub(crate) async fn keep_telling(self: Arc<Self>, node: Arc<Node>) {
        let Some(watchdog) = self.watchdog else { return };
        let mut due = tokio::time::interval(watchdog / 2);
        loop {
            due.tick().await;
            // A round that began after this moment: the one after the one that is under way.
            let seen = node.watched.rounds();
            while node.watched.rounds() < seen + 2 {
                tokio::time::sleep(watchdog / 32).await;
            }
            self.tell("WATCHDOG=1");
        }
    }

    /// Tells a watchdog that all is well, while there is no broker here: as long as the cluster's thread goes on.
    pub(crate) async fn keep_telling_in_standby(self: Arc<Self>, mut views: Views) {
        let Some(watchdog) = self.watchdog else { return };
        let mut due = tokio::time::interval(watchdog / 2);
        loop {
            due.tick().await;
            // A view that is made after this moment. There is one each second.
            views.borrow_and_update();
            if views.changed().await.is_err() {
                return;
            }
            self.tell("WATCHDOG=1");
        }
    }

    /// How often every thread and every actor is to be asked, so that there is something to tell.
    pub(crate) fn round(&self) -> Option<Duration> {
        self.watchdog.map(|it| it / 16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manager_hears() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("notify");
        let manager = UnixDatagram::bind(&path).expect("a socket");
        let us = Supervisor::open(path.to_str().expect("a name"), None).expect("its address");
        us.is_ready();
        us.is_stopping();
        let mut heard = [0; 64];
        let mut next = || {
            let len = manager.recv(&mut heard).expect("a datagram");
            String::from_utf8_lossy(&heard[..len]).into_owned()
        };
        assert_eq!(next(), "READY=1\nSTATUS=Serving clients");
        assert_eq!(next(), "STOPPING=1\nSTATUS=Stopping");
    }

    /// Only the news of the cluster's thread are a sign of life.
    #[test]
    fn a_node_on_standby_is_well_while_it_hears_of_the_cluster() {
        let name = format!("leveret-standby-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let manager = UnixDatagram::bind_addr(&address).expect("a socket");
        manager.set_nonblocking(true).expect("a socket");
        let watchdog = Some(Duration::from_millis(2));
        let us = Arc::new(Supervisor::open(&format!("@{name}"), watchdog).expect("its address"));
        let heard = || manager.recv(&mut [0; 64]).is_ok();
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(async {
            let (views, seen) = tokio::sync::watch::channel(Arc::default());
            tokio::spawn(us.keep_telling_in_standby(seen));
            let later = || tokio::time::sleep(Duration::from_secs(1));
            later().await;
            assert!(!heard(), "nobody has told anything");
            views.send_replace(Arc::default());
            later().await;
            assert!(heard());
            later().await;
            assert!(!heard());
        });
    }

    #[test]
    fn names_without_a_file() {
        let name = format!("leveret-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let manager = UnixDatagram::bind_addr(&address).expect("a socket");
        let us = Supervisor::open(&format!("@{name}"), None).expect("its address");
        us.tell("WATCHDOG=1");
        let mut heard = [0; 64];
        let len = manager.recv(&mut heard).expect("a datagram");
        assert_eq!(&heard[..len], b"WATCHDOG=1");
    }
}
