//! Accepts connections and serves HTTP/1.1 on them until the node stops.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::call::Peer;
use super::{App, routes, shell};
use crate::control;
use crate::conversation::converse;
use crate::doors::{Door, Stream};
use crate::front::Ended;
use crate::places::ConnectionPlace;

/// Where requests come in.
pub(crate) enum Entrance {
    /// From the network, with a password.
    Network(Door),
    /// From the machine itself, without one.
    Local(control::Door),
}

impl Entrance {
    async fn accept(&mut self) -> (Stream, Peer, Option<Arc<ConnectionPlace>>) {
        match self {
            Self::Network(door) => {
                let (stream, peer, place) = door.accept().await;
                (stream, Peer::Network(peer), Some(place))
            }
            Self::Local(door) => {
                let (stream, peer) = door.accept().await;
                (stream, peer, None)
            }
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
            (socket, peer, place) = door.accept() => {
                let (app, router, own) = (Arc::clone(&app), router.clone(), place.clone());
                let answer = move |request| {
                    let (app, router, place) = (Arc::clone(&app), router.clone(), own.clone());
                    async move { shell::answer(&app, router, peer, place, request).await }
                };
                connections.spawn(converse(socket, place, peer, answer, ended.clone()));
            }
        }
    }
    drop(door);
    while connections.join_next().await.is_some() {}
}
