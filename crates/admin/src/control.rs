//! The control socket: `leveret ctl` asks, the node answers. One JSON object a line, see
//! [`leveret_ctl::protocol`].
//!
//! Whoever can open the socket is an administrator, so only its owner can. A socket somebody listens on
//! means that the data directory is in use: the second node does not start.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use leveret_ctl::protocol::{Code, Fault, LINE_BYTES_MAX, Request, Response};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use crate::front::Ended;
use crate::ops::{Ops, requests};

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

/// Answers until `ended`; then the tools' connections end, but for the one that waits for the end of
/// the process.
pub(crate) async fn serve(listener: StdListener, ops: Arc<Ops>, mut ended: Ended) {
    let listener = match UnixListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "the control socket cannot be served"),
    };
    // Dropped at the end, and the connections with it.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = ended.comes() => return,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) => {
                    let ops = Arc::clone(&ops);
                    connections.spawn(async move {
                        if let Err(error) = converse(socket, &ops).await {
                            tracing::debug!(%error, "a control connection ended");
                        }
                    });
                }
                Err(error) => {
                    // Out of file descriptors, mostly: trying again at once would only fill the log.
                    tracing::warn!(%error, "the control socket could not be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
        }
    }
}

async fn converse(socket: UnixStream, ops: &Arc<Ops>) -> io::Result<()> {
    let mut socket = BufReader::new(socket);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut socket).take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line).await?;
        if read == 0 {
            return Ok(());
        }
        if line.last() != Some(&b'\n') {
            let fault = Fault::new(Code::Usage, "the request is too long or was cut off");
            return socket.get_mut().write_all(&Response::Error(fault).to_line()).await;
        }
        let (response, stops) = match Request::from_line(&line) {
            Ok(Request::Stop) => (Response::DONE, true),
            Ok(request) => (requests::answer(ops, request).await.into(), false),
            Err(fault) => (Response::Error(fault), false),
        };
        socket.get_mut().write_all(&response.to_line()).await?;
        if stops {
            // The tool waits for the end of the connection, which is the end of the process.
            ops.stop.ask("leveret ctl stop", Box::new(socket.into_inner().into_std()?));
            return Ok(());
        }
    }
}
