//! One connection of HTTP/1.1: its requests are answered until it ends, or the node does.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};

use crate::doors::Stream;
use crate::front::Ended;
use crate::host;
use crate::places::{self, ConnectionPlace};
use crate::unread;

/// How long a client may take to send the head of its first request. A place costs it nothing.
const FIRST_PATIENCE: Duration = Duration::from_secs(10);

/// How long it may take for one more.
const HEAD_PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of a head, which come before it is known who asks, and of an answer that waits for the socket.
const BUFFER_BYTES_MAX: usize = 64 << 10;

/// Answers what comes. `peer` is for the log.
pub(crate) async fn converse<F, R>(
    stream: Stream,
    place: Option<Arc<ConnectionPlace>>,
    peer: impl std::fmt::Display,
    answer: F,
    mut ended: Ended,
) where
    F: Fn(Request<Body>) -> R,
    R: Future<Output = Response<Body>>,
{
    let has_asked = Arc::new(AtomicBool::new(false));
    let asks = Arc::clone(&has_asked);
    let end = ended.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        asks.store(true, Ordering::Relaxed);
        let (head, body) = request.into_parts();
        let (body, unread) = unread::lend(&head.headers, body);
        let answer = host::is_clear(&head).then(|| answer(Request::from_parts(head, body)));
        let end = end.clone();
        async move {
            let response = match answer {
                Some(answer) => answer.await,
                None => host::refusal(),
            };
            Ok::<_, Infallible>(unread.after(response, end))
        }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_PATIENCE);
    builder.max_buf_size(BUFFER_BYTES_MAX);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let is_silent = async {
        tokio::time::sleep(FIRST_PATIENCE).await;
        if has_asked.load(Ordering::Relaxed) {
            std::future::pending().await
        }
    };
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        () = places::is_lost(place.as_deref()) => {
            tracing::debug!(%peer, "an HTTP connection without a login made room for another");
            return;
        }
        () = is_silent => {
            tracing::debug!(%peer, "an HTTP connection ended without a request");
            return;
        }
        () = ended.comes() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(%peer, %error, "an HTTP connection ended");
    }
}
