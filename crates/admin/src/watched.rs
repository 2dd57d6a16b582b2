//! A socket of HTTP that is one of a bounded number, and whose client takes what is written to it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// Connections of one door at a time.
const MAX: usize = 1024;

/// How long a client may take nothing of what waits for it.
const STALL: Duration = Duration::from_secs(60);

/// Counts the connections of a door.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places(Arc<AtomicUsize>);

/// One of them.
#[derive(Debug)]
pub(crate) struct Place(Arc<AtomicUsize>);

impl Places {
    /// One more, if there may be.
    pub(crate) fn take(&self) -> Option<Place> {
        let more = |count| (count < MAX).then_some(count + 1);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Place(Arc::clone(&self.0)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What a client reads for whom there is no place.
pub(crate) fn no_place() -> String {
    let body =
        r#"{"error":"service_unavailable","reason":"too many connections; try again later"}"#;
    format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The socket.
pub(crate) struct Watched<S> {
    socket: S,
    _place: Place,
    patience: Duration,
    /// Set while the socket is full.
    stall: Option<Pin<Box<Sleep>>>,
}

impl<S> Watched<S> {
    pub(crate) fn new(socket: S, place: Place) -> Self {
        Self { socket, _place: place, patience: STALL, stall: None }
    }

    /// A write that waits does so for a while, and no longer.
    fn watch<T>(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.stall = None;
            return outcome;
        }
        let patience = self.patience;
        let until = || Box::pin(tokio::time::sleep(patience));
        match Future::poll(self.stall.get_or_insert_with(until).as_mut(), cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.watch(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.socket).poll_write_vectored(cx, pieces);
        self.watch(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.socket).poll_flush(cx);
        self.watch(cx, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.socket).poll_shutdown(cx);
        self.watch(cx, outcome)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[test]
    fn places_end() {
        let places = Places::default();
        let all: Vec<_> = std::iter::from_fn(|| places.take()).collect();
        assert_eq!(all.len(), MAX);
        drop(all);
        assert!(places.take().is_some());
    }

    /// A client that takes nothing is given up.
    #[test]
    fn a_client_that_takes_nothing() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(async {
            let (ours, _theirs) = tokio::io::duplex(1000);
            let place = Places::default().take().expect("a place");
            let mut socket =
                Watched { patience: Duration::from_millis(20), ..Watched::new(ours, place) };
            let outcome = socket.write_all(&[7; 10_000]).await;
            assert_eq!(outcome.expect_err("nobody reads").kind(), io::ErrorKind::TimedOut);
        });
    }
}
