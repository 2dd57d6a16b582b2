//! Who connects to the cluster's port.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use leveret_link::hello::Urgency;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::peer::Answered;
use super::{HANDSHAKES_MAX, Inner, LinkNews, relay, shake};
use crate::descriptors;

/// Accepts until the links are closed.
pub(super) async fn accept(inner: Arc<Inner>, listener: TcpListener) {
    tokio::select! {
        () = serve(&inner, listener) => {}
        () = inner.closes() => {}
    }
}

async fn serve(inner: &Arc<Inner>, listener: TcpListener) {
    // They end with this.
    let mut handshakes = JoinSet::new();
    let mut oldest_first = VecDeque::new();
    loop {
        let (socket, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                descriptors::not_accepted(&error, "a connection of another node").await;
                continue;
            }
        };
        if !descriptors::leave_room_for_files(&socket) {
            continue;
        }
        while handshakes.try_join_next().is_some() {}
        oldest_first.retain(|it: &tokio::task::AbortHandle| !it.is_finished());
        if oldest_first.len() >= HANDSHAKES_MAX
            && let Some(oldest) = oldest_first.pop_front()
        {
            oldest.abort();
            tracing::warn!(
                from = %from.ip(),
                "{HANDSHAKES_MAX} connections to the cluster's port have not said who they are: the oldest was closed"
            );
        }
        oldest_first.push_back(handshakes.spawn(begin(Arc::clone(inner), socket, from)));
    }
}

/// Finds out who it is, and gives the connection to whom it is for.
async fn begin(inner: Arc<Inner>, socket: TcpStream, from: SocketAddr) {
    let until = Instant::now() + inner.times.handshake;
    let Some(peer) = shake::answer(&inner, &socket, from, until).await else { return };
    if peer.urgency == Urgency::Relay {
        if !descriptors::leave_room(&socket) {
            return;
        }
        match relay::take(&socket, until).await {
            Ok((listener, ends)) => {
                let _ = inner.news.send(LinkNews::Relayed(listener, ends, socket)).await;
            }
            Err(error) => tracing::warn!(
                from = %from.ip(), peer = %from,
                "a client that node {} relays was not taken: {error}", peer.node.name
            ),
        }
        return;
    }
    let Some(at) = inner.place_of(&peer.node.name) else { return };
    match &inner.peers[at].answered {
        // Its task takes one at a time, and the newest counts: whoever calls faster than that waits for nothing.
        Some(answered) => drop(answered.try_send(Answered { peer, socket })),
        None => {
            inner.no_link(at, "it calls this node, and has the higher name: it is to be called")
        }
    }
}
