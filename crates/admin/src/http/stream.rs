//! Answers that are sent while they are made, a chunk at a time.
//!
//! What is made waits until what was made before is on its way, so a long answer takes the memory of a few chunks; who
//! does not read it for a while gets no more of it, nor who reads it too slowly (see [`crate::watched`]).

use std::fmt::Debug;
use std::future::Future;
use std::io::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::body::{Body, Frame};
use leveret_server::locks::{Rank, Ranked};
use tokio::sync::mpsc;

use super::answer::Fault;
use super::call::Call;

/// About as many bytes are sent at once. What is shorter is sent as a whole, with a length and an `ETag`.
pub(crate) const CHUNK: usize = 64 << 10;

/// Chunks that wait for the socket.
const WAITING: usize = 2;

/// What an answer takes while it is sent: chunks, what is made for the next, what waits for the socket.
pub(crate) const BYTES: usize = 8 * CHUNK;

/// How long a client may take for a chunk.
const PATIENCE: Duration = Duration::from_secs(30);

/// The rest of an answer will not come: its maker failed, or its reader went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer was cut off")]
pub(crate) struct Cut;

/// Where chunks go.
#[derive(Debug)]
pub(crate) struct Chunks(mpsc::Sender<Result<Bytes, Cut>>);

impl Chunks {
    /// Waits until there is room for it.
    pub(crate) async fn send(&mut self, chunk: impl Into<Bytes>) -> Result<(), Cut> {
        let chunk = chunk.into();
        if chunk.is_empty() {
            return Ok(());
        }
        match tokio::time::timeout(PATIENCE, self.0.send(Ok(chunk))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Cut),
        }
    }
}

/// An answer that is written piece by piece.
pub(crate) trait Pieces: Send + 'static {
    /// Writes some. False when these were the last.
    fn more(&mut self, out: &mut Vec<u8>) -> impl Future<Output = Result<bool, Fault>> + Send;

    /// Whose answer it is.
    fn call(&mut self) -> &mut Call;
}

/// What became of an answer.
pub(crate) enum Written {
    /// It is short, and there as a whole.
    Whole(Vec<u8>),
    /// It is long, and sent while it is made.
    Long(Made),
}

/// Writes an answer: as a whole if it is short.
pub(crate) async fn written(mut pieces: impl Pieces) -> Result<Written, Fault> {
    let mut text = Vec::new();
    while text.len() < CHUNK {
        if !pieces.more(&mut text).await? {
            return Ok(Written::Whole(text));
        }
    }
    pieces.call().hold(BYTES).await?;
    let made = made(|mut to| async move {
        loop {
            to.send(std::mem::take(&mut text)).await?;
            // The answer has begun: all that can be told of a fault is that it is not whole.
            if !pieces.more(&mut text).await.map_err(|_| Cut)? {
                return to.send(text).await;
            }
        }
    });
    Ok(Written::Long(made))
}

/// The body of an answer that is being made.
#[derive(Debug)]
pub(crate) struct Made {
    chunks: mpsc::Receiver<Result<Bytes, Cut>>,
    zip: Option<GzEncoder<Vec<u8>>>,
    is_over: bool,
    /// What it takes, until its reader has it.
    _kept: Option<Box<dyn Debug + Send + Sync>>,
}

/// Has `make` send chunks. An answer of which the last one did not come ends in a way that its reader sees.
pub(crate) fn made<F>(make: impl FnOnce(Chunks) -> F) -> Made
where
    F: Future<Output = Result<(), Cut>> + Send + 'static,
{
    let (sender, chunks) = mpsc::channel(WAITING);
    let making = make(Chunks(sender.clone()));
    tokio::spawn(async move {
        if let Err(cut) = making.await {
            // Who reads nothing does not read this either; then its connection ends when the queue is dropped.
            let _ = sender.try_send(Err(cut));
        } else {
            let _ = sender.send(Ok(Bytes::new())).await;
        }
    });
    Made { chunks, zip: None, is_over: false, _kept: None }
}

/// An answer's body on its way through the layers that dress it. They take only what can be cloned: clones share the body.
#[derive(Clone, Debug)]
pub(crate) struct SharedBody(Arc<Ranked<Option<Made>>>);

impl SharedBody {
    /// A body to be passed on.
    pub(crate) fn of(made: Made) -> Self {
        Self(Arc::new(Ranked::new(Rank::Above, Some(made))))
    }

    /// The body, for the first who asks.
    pub(crate) fn take(&self) -> Option<Made> {
        self.0.lock().take()
    }
}

impl Made {
    /// Has something of which there are few, until the reader has all, or goes.
    pub(crate) fn keeping(self, kept: impl Debug + Send + Sync + 'static) -> Self {
        Self { _kept: Some(Box::new(kept)), ..self }
    }

    /// Compressed.
    pub(crate) fn zipped(self) -> Self {
        Self { zip: Some(GzEncoder::new(Vec::new(), Compression::fast())), ..self }
    }
}

impl Body for Made {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        let this = &mut *self;
        loop {
            if this.is_over {
                return Poll::Ready(None);
            }
            let chunk = match std::task::ready!(this.chunks.poll_recv(cx)) {
                Some(Ok(chunk)) => chunk,
                Some(Err(Cut)) | None => {
                    this.is_over = true;
                    return Poll::Ready(Some(Err(Cut)));
                }
            };
            // An empty one is the end.
            this.is_over = chunk.is_empty();
            let chunk = match &mut this.zip {
                None => chunk,
                Some(zip) => zipped(zip, &chunk),
            };
            if !chunk.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(chunk))));
            }
        }
    }
}

/// What the encoder has after this chunk; an empty one is the last.
fn zipped(zip: &mut GzEncoder<Vec<u8>>, chunk: &[u8]) -> Bytes {
    // Writing to memory cannot fail.
    let _ = if chunk.is_empty() { zip.try_finish() } else { zip.write_all(chunk) };
    std::mem::take(zip.get_mut()).into()
}
