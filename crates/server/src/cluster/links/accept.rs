//! Who connects to the cluster's port.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use leveret_link::hello::Urgency;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::peer::Answered;
use super::{HANDSHAKES_MAX, Inner, LinkNews, LinkSocket, relay, shake};
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
        let begun = begin(Arc::clone(inner), socket, from);
        oldest_first.push_back(match &inner.encryption {
            Some(encryption) => handshakes.spawn_on(begun, encryption.handshakes()),
            None => handshakes.spawn(begun),
        });
    }
}

/// Finds out who it is, and gives the connection to whom it is for.
async fn begin(inner: Arc<Inner>, socket: TcpStream, from: SocketAddr) {
    let until = Instant::now() + inner.times.handshake;
    // On the thread that this is run by.
    let socket = match &inner.encryption {
        Some(_) => socket.into_std().and_then(TcpStream::from_std),
        None => Ok(socket),
    };
    let Ok(socket) = socket else { return };
    let Some((peer, socket)) = shake::answer(&inner, socket, from, until).await else { return };
    if peer.urgency == Urgency::Relay {
        let not_taken = |error: &io::Error| {
            tracing::warn!(
                from = %from.ip(), peer = %from,
                "a client that node {} relays was not taken: {error}", peer.node.name
            );
        };
        if !descriptors::leave_room(socket.tcp()) {
            return not_taken(&no_file_left());
        }
        match relay::take(&socket, until).await {
            Ok((listener, ends)) => match plain(&inner, socket) {
                Ok(socket) => {
                    let _ = inner.news.send(LinkNews::Relayed(listener, ends, socket)).await;
                }
                Err(error) => not_taken(&error),
            },
            Err(error) => not_taken(&error),
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

/// There is no descriptor for a client.
pub(super) fn no_file_left() -> io::Error {
    io::Error::other("only files for what is stored are left")
}

/// A socket with the bytes of a client as they are.
fn plain(inner: &Inner, socket: LinkSocket) -> io::Result<std::net::TcpStream> {
    match (socket.into_plain(), &inner.encryption) {
        (Ok(socket), _) => socket.into_std(),
        (Err(socket), Some(encryption)) => encryption.decrypted(socket, inner.times.rest),
        (Err(_), None) => Err(io::ErrorKind::Unsupported.into()),
    }
}
