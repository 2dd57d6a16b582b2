//! The control socket: the management API for the operator of this machine, who needs no password.
//!
//! Whoever can open the socket may everything, so only its owner can open it. A socket somebody listens on
//! means that the data directory is in use: the second node does not start.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;

use anyhow::Context as _;
use leveret_server::descriptors;
use tokio::net::{UnixListener, UnixStream};

use crate::doors::Stream;
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
pub(crate) struct Door(UnixListener);

impl Door {
    /// On a socket that [`bind`] opened; in the runtime that accepts.
    pub(crate) fn new(listener: StdListener) -> std::io::Result<Self> {
        UnixListener::from_std(listener).map(Self)
    }

    /// The next connection.
    pub(crate) async fn accept(&mut self) -> (Stream, Peer) {
        loop {
            match self.0.accept().await {
                Ok((socket, _)) => {
                    let peer = Peer::Local { uid: uid(&socket) };
                    return (Box::new(socket), peer);
                }
                Err(error) => {
                    descriptors::not_accepted(&error, "a control connection").await;
                }
            }
        }
    }
}

fn uid(socket: &UnixStream) -> Option<u32> {
    socket.peer_cred().ok().map(|of_peer| of_peer.uid())
}
