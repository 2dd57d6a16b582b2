//! Clients that are connected to one node, and are served by another one.
//!
//! ```text
//!   hello, proof, welcome  |  listener (1 byte)  |  PROXY header, version 2  |  the client's bytes, both ways
//! ```

use std::io;

use leveret_link::hello::{RaftId, Urgency};
use tokio::time::{Instant, timeout_at};

use super::shake::{self, NoConnection};
use super::{LinkSocket, Links};
use crate::cluster::arrivals::RelayedListener;
use crate::cluster::standby::{Relay, Relaying};
use crate::proxy::{self, Ends};

/// Why a client cannot be relayed.
#[derive(Debug, thiserror::Error)]
pub enum NoRelay {
    /// No configured node is this, as far as it is known.
    #[error("no configured node is known to have the Raft id {0}")]
    Nobody(RaftId),
    /// There is no connection.
    #[error("{name}: {why}")]
    NoConnection {
        /// The node.
        name: String,
        /// Why.
        why: String,
    },
}

impl Links {
    /// A connection to a member, on which a client's bytes follow. The client is connected to a listener of this kind; these are its
    /// ends. From any runtime: the connection is of the one that asks.
    ///
    /// # Errors
    ///
    /// When that member cannot be reached, or refuses.
    pub async fn relay_to(
        &self,
        peer: RaftId,
        listener: RelayedListener,
        ends: Ends,
    ) -> Result<LinkSocket, NoRelay> {
        let inner = &*self.0;
        let at = inner.place_of_id(peer).ok_or(NoRelay::Nobody(peer))?;
        let fails = |why: String| NoRelay::NoConnection { name: inner.peers[at].name.clone(), why };
        // Nobody closes it.
        let _permit = inner.relays.acquire().await;
        let called = shake::call(inner, at, Urgency::Relay).await;
        let (found, socket) = called.map_err(|why| fails(why.to_string()))?;
        if found.node.raft_id != peer {
            return Err(NoRelay::Nobody(peer));
        }
        let mut preface = vec![byte(listener)];
        preface.extend(proxy::header(&ends));
        let written =
            timeout_at(Instant::now() + inner.times.handshake, shake::write(&socket, &preface))
                .await;
        let written = written.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        written.map_err(|error| fails(NoConnection::from(error).to_string()))?;
        Ok(socket)
    }
}

impl Relay for Links {
    fn relay(&self, leader: u64, listener: RelayedListener, ends: Ends) -> Relaying {
        let links = self.clone();
        Box::pin(async move {
            links.relay_to(RaftId(leader), listener, ends).await.map_err(io::Error::other)
        })
    }
}

/// Takes what comes before the client's bytes.
pub(super) async fn take(
    socket: &LinkSocket,
    until: Instant,
) -> io::Result<(RelayedListener, Ends)> {
    let taking = async {
        let mut first = [0];
        read_exact(socket, &mut first).await?;
        let listener = RelayedListener::ALL.into_iter().find(|it| byte(*it) == first[0]);
        let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
        let listener = listener.ok_or_else(|| invalid(format!("unknown listener {}", first[0])))?;
        let mut header = vec![0; proxy::V2_HEAD];
        read_exact(socket, &mut header).await?;
        let len = proxy::len_of(&header).map_err(|error| invalid(error.to_string()))?;
        header.resize(len, 0);
        read_exact(socket, header.get_mut(proxy::V2_HEAD..).unwrap_or_default()).await?;
        let header = proxy::parse(&header).map_err(|error| invalid(error.to_string()))?;
        let ends = header.and_then(|header| header.ends);
        Ok((listener, ends.ok_or_else(|| invalid("it has no address".to_owned()))?))
    };
    timeout_at(until, taking).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

async fn read_exact(socket: &LinkSocket, into: &mut [u8]) -> io::Result<()> {
    let mut at = 0;
    while let Some(rest) = into.get_mut(at..).filter(|rest| !rest.is_empty()) {
        at += shake::read(socket, rest).await?;
    }
    Ok(())
}

/// As a relay says it. A number is never given to another listener.
fn byte(listener: RelayedListener) -> u8 {
    match listener {
        RelayedListener::Amqp => 1,
        RelayedListener::Amqps => 2,
        RelayedListener::Http => 3,
        RelayedListener::Https => 4,
        RelayedListener::Metrics => 5,
        RelayedListener::MetricsTls => 6,
        RelayedListener::Control => 7,
        RelayedListener::Sessions => 8,
    }
}
