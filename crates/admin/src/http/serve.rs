//! Accepts connections and serves HTTP/1.1 on them until the node stops.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::task::JoinSet;

use super::call::Peer;
use super::{App, routes, shell};
use crate::control;
use crate::doors::{Door, Stream};
use crate::front::Ended;

/// How long a client may take to send the head of a request.
const HEAD_PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of a head, which come before it is known who asks.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Where requests come in.
pub(crate) enum Entrance {
    /// From the network, with a password.
    Network(Door),
    /// From the machine itself, without one.
    Local(control::Door),
}

impl Entrance {
    async fn accept(&mut self) -> (Stream, Peer) {
        match self {
            Self::Network(door) => {
                let (stream, peer) = door.accept().await;
                (stream, Peer::Network(peer))
            }
            Self::Local(door) => door.accept().await,
        }
    }
}

/// Answers until `ended`; then requests under way are finished.
pub(crate) async fn serve(mut door: Entrance, app: Arc<App>, mut ended: Ended) {
    let router = routes::router(Arc::clone(&app));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = ended.comes() => break,
            Some(_) = connections.join_next() => {}
            (socket, peer) = door.accept() => {
                let connection =
                    converse(socket, peer, Arc::clone(&app), router.clone(), ended.clone());
                connections.spawn(connection);
            }
        }
    }
    drop(door);
    while connections.join_next().await.is_some() {}
}

async fn converse(socket: Stream, peer: Peer, app: Arc<App>, router: Router, mut ended: Ended) {
    let service = service_fn(move |request| {
        let (app, router) = (Arc::clone(&app), router.clone());
        async move {
            Ok::<_, std::convert::Infallible>(shell::answer(&app, router, peer, request).await)
        }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_PATIENCE);
    builder.max_buf_size(HEAD_BYTES_MAX);
    let connection = builder.serve_connection(TokioIo::new(socket), service);
    let mut connection = std::pin::pin!(connection);
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        () = ended.comes() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(%peer, %error, "a connection of the management API ended");
    }
}
