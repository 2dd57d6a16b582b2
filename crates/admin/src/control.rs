//! The control socket: the management API for the operator of this machine, who needs no password.
//!
//! Whoever can open the socket may everything, so only its owner can open it. A socket somebody listens on
//! means that the data directory is in use: the second node does not start.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;

use anyhow::Context as _;
use leveret_server::cluster::arrivals::Arrival;
use leveret_server::descriptors;
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::sync::mpsc::Receiver;

use crate::doors::{Stream, arrival};
use crate::http::Peer;

/// Opens the socket.
pub(crate) fn bind(path: &Path) -> anyhow::Result<StdListener> {
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        anyhow::bail!(
            "a node is running with this data directory already (it answers on {}); \
             stop it, or choose another directory with --data-dir",
            path.display()
        );
    }
    // What a node that was killed left behind; a missing file is the usual case.
    let _ = std::fs::remove_file(path);
    let listener = StdListener::bind(path)
        .with_context(|| format!("cannot open the control socket {}", path.display()))?;
    listener.set_nonblocking(true)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Accepts connections.
#[derive(Debug)]
pub(crate) struct Door {
    listener: UnixListener,
    /// Operators of other nodes; none of a node that is alone.
    arrivals: Option<Receiver<Arrival>>,
}

impl Door {
    /// On a socket that [`bind`] opened; in the runtime that accepts.
    pub(crate) fn new(
        listener: StdListener,
        arrivals: Option<Receiver<Arrival>>,
    ) -> std::io::Result<Self> {
        Ok(Self { listener: UnixListener::from_std(listener)?, arrivals })
    }

    /// The next connection.
    pub(crate) async fn accept(&mut self) -> (Stream, Peer) {
        loop {
            let Self { listener, arrivals } = self;
            let come = tokio::select! {
                accepted = listener.accept() => accepted.map(|(socket, _)| {
                    let peer = Peer::Local { uid: uid(&socket) };
                    (Box::new(socket) as Stream, peer)
                }),
                Arrival { socket, .. } = arrival(arrivals) => {
                    TcpStream::from_std(socket).map(|socket| (Box::new(socket) as Stream, Peer::OtherNode))
                }
            };
            match come {
                Ok(come) => return come,
                Err(error) => descriptors::not_accepted(&error, "a control connection").await,
            }
        }
    }
}

fn uid(socket: &UnixStream) -> Option<u32> {
    socket.peer_cred().ok().map(|of_peer| of_peer.uid())
}
