//! The control socket: `leveret ctl` asks, the node answers. One JSON object a line, see
//! [`leveret_ctl::protocol`].
//!
//! Whoever can open the socket is an administrator, so only its owner can. A socket somebody listens on
//! means that the data directory is in use: the second node does not start.

mod lists;
mod requests;

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use leveret_broker::message::{ConnectionId, Reply, ReplyTo, ToSession};
use leveret_ctl::protocol::{Code, Fault, LINE_BYTES_MAX, Request, Response};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::sync::mpsc;

use crate::node::{Node, Recipient};

/// What answers need beside the node.
#[derive(Debug)]
pub struct About {
    /// `rabbit@host`.
    pub node_name: String,
    /// Product name for tools.
    pub product_name: String,
    /// Product version for tools.
    pub product_version: String,
    /// Where the node keeps its data.
    pub data_dir: PathBuf,
    /// Options and values as shown; secrets are hidden.
    pub environment: Vec<(&'static str, String)>,
    /// Addresses listened on.
    pub listeners: Vec<std::net::SocketAddr>,
    /// Threads that run turns.
    pub threads: usize,
    /// The machine's memory, in bytes.
    pub machine_memory: u64,
    /// When the process began.
    pub started: Instant,
}

/// Opens the socket and answers on it until the process ends. `stop` is notified by `leveret ctl stop`.
pub fn listen(
    path: &Path,
    node: Arc<Node>,
    about: Arc<About>,
    stop: Arc<Notify>,
) -> anyhow::Result<()> {
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        anyhow::bail!(
            "a node is running with this data directory already (it answers on {}); \
             stop it, or choose another directory with --data-dir",
            path.display()
        );
    }
    // What a node that was killed left behind; a missing file is the usual case.
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path)
        .with_context(|| format!("cannot open the control socket {}", path.display()))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((socket, _)) => {
                    let (node, about, stop) =
                        (Arc::clone(&node), Arc::clone(&about), Arc::clone(&stop));
                    tokio::spawn(async move {
                        if let Err(error) = serve(socket, &node, &about, &stop).await {
                            tracing::debug!(%error, "a control connection ended");
                        }
                    });
                }
                Err(error) => {
                    // Out of file descriptors, mostly: trying again at once would only fill the log.
                    tracing::warn!(%error, "the control socket could not be accepted");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            }
        }
    });
    Ok(())
}

async fn serve(
    socket: UnixStream,
    node: &Arc<Node>,
    about: &About,
    stop: &Notify,
) -> io::Result<()> {
    let (input, mut output) = socket.into_split();
    let mut input = BufReader::new(input);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut input).take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line).await?;
        if read == 0 {
            return Ok(());
        }
        if line.last() != Some(&b'\n') {
            let fault = Fault::new(Code::Usage, "the request is too long or was cut off");
            return output.write_all(&Response::Error(fault).to_line()).await;
        }
        let (response, stops) = match Request::from_line(&line) {
            Ok(Request::Stop) => (Response::DONE, true),
            Ok(request) => (requests::answer(node, about, request).await.into(), false),
            Err(fault) => (Response::Error(fault), false),
        };
        output.write_all(&response.to_line()).await?;
        if stops {
            stop.notify_one();
            // The tool waits for the end of the connection, which is the end of the process.
            return std::future::pending().await;
        }
    }
}

/// Somebody who sends commands to actors and waits for their answers.
struct Asker<'a> {
    node: &'a Arc<Node>,
    id: ConnectionId,
    answers: mpsc::UnboundedReceiver<ToSession>,
}

impl<'a> Asker<'a> {
    fn new(node: &'a Arc<Node>) -> Self {
        let id = node.new_id();
        let (sender, answers) = mpsc::unbounded_channel();
        node.register(id, Recipient::Request(sender));
        Self { node, id, answers }
    }

    fn reply_to(&self) -> ReplyTo {
        ReplyTo { connection: self.id, channel: 0 }
    }

    /// The next answer; refusals are faults.
    async fn answer(&mut self) -> Result<Reply, Fault> {
        loop {
            match self.answers.recv().await {
                Some(ToSession::Reply { reply: Reply::Refused { text, .. }, .. }) => {
                    return Err(Fault::new(Code::Data, text));
                }
                Some(ToSession::Reply { reply, .. }) => return Ok(reply),
                Some(_) => {}
                None => return Err(Fault::new(Code::Unavailable, "the node is stopping")),
            }
        }
    }
}

impl Drop for Asker<'_> {
    fn drop(&mut self) {
        self.node.forget(self.id);
    }
}
