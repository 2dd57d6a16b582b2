//! The beginning of a connection: both sides say hello.
//!
//! Not a byte behind the handshake is read: what follows, frames or a client's bytes, is there for whoever takes the socket.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use leveret_link::hello::{HANDSHAKE_MS, Handshake, MESSAGE_MAX, NoLink, Peer, Refusal, Urgency};
use rustix::net::{Shutdown, shutdown};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use super::{Inner, wall_ms};

/// A machine that does not answer is gone after so long.
const GONE: Duration = Duration::from_secs(10);

/// How long one address of a node is tried.
const CONNECT: Duration = Duration::from_secs(2);

/// What the kernel holds of bulk that is not on its way: what goes next is to be chosen late.
const UNSENT: u32 = 128 << 10;

/// Why a connection did not begin.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoConnection {
    /// One of the two does not want it.
    #[error(transparent)]
    Refused(#[from] NoLink),
    /// The other side ended it.
    #[error("it closed the connection in the middle of the handshake")]
    Closed,
    /// Nobody answers there.
    #[error("{0}")]
    Socket(io::Error),
    /// It takes too long.
    #[error("nothing answers within {} s", HANDSHAKE_MS / 1000)]
    Late,
}

impl From<io::Error> for NoConnection {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Socket(error),
        }
    }
}

/// Calls a configured node.
pub(super) async fn call(
    inner: &Inner,
    at: usize,
    urgency: Urgency,
) -> Result<(Peer, TcpStream), NoConnection> {
    let until = Instant::now() + inner.times.handshake;
    let peer = &inner.peers[at];
    let socket = match timeout_at(until, connect(&peer.address)).await {
        Ok(socket) => socket.map_err(NoConnection::Socket)?,
        Err(_) => return Err(NoConnection::Late),
    };
    prepare(&socket, urgency)?;
    let own = inner.state.lock().own.clone();
    let secret = inner.secret.clone();
    let call = Handshake::call(own, urgency, secret, None, rand::random(), wall_ms());
    let mut call = call.meant_for(&peer.name);
    let found = shake(inner, &socket, &mut call, until).await?;
    Ok((found, socket))
}

async fn connect(address: &str) -> io::Result<TcpStream> {
    // A name is looked up on a thread that may wait for it.
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "no address has this name");
    for address in tokio::net::lookup_host(address).await? {
        // The next one may answer where this one is silent.
        let error = match timeout(CONNECT, TcpStream::connect(address)).await {
            Ok(Ok(socket)) => return Ok(socket),
            Ok(Err(error)) => error,
            Err(_) => io::Error::new(io::ErrorKind::TimedOut, "nothing answers"),
        };
        failed = io::Error::new(error.kind(), format!("{address}: {error}"));
    }
    Err(failed)
}

/// Answers whoever connected.
pub(super) async fn answer(
    inner: &Inner,
    socket: &TcpStream,
    from: SocketAddr,
    until: Instant,
) -> Option<Peer> {
    let own = inner.state.lock().own.clone();
    let mut answer = Handshake::answer(own, inner.secret.clone(), None, rand::random());
    match shake(inner, socket, &mut answer, until).await {
        Ok(peer) if prepare(socket, peer.urgency).is_ok() => Some(peer),
        Ok(_) => None,
        Err(NoConnection::Refused(why)) => {
            inner.refused(from, answer.said().map(|node| &*node.name), &why);
            None
        }
        Err(why) => {
            tracing::debug!(from = %from.ip(), peer = %from, "a connection to the cluster's port ended: {why}");
            None
        }
    }
}

/// What a connection is asked for, once it is known what it is for.
fn prepare(socket: &TcpStream, urgency: Urgency) -> io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_tcp_nodelay(true)?;
    let probes = TcpKeepalive::new().with_time(GONE / 2).with_interval(GONE / 10).with_retries(5);
    socket.set_tcp_keepalive(&probes)?;
    match urgency {
        Urgency::Urgent => socket.set_tcp_user_timeout(Some(GONE)),
        Urgency::Bulk => {
            socket.set_tcp_notsent_lowat(UNSENT)?;
            socket.set_tcp_user_timeout(Some(GONE))
        }
        // A client that takes nothing for long is no machine that is gone.
        Urgency::Relay => Ok(()),
    }
}

/// Lets the handshake talk until it has ended, or until then.
async fn shake(
    inner: &Inner,
    socket: &TcpStream,
    handshake: &mut Handshake,
    until: Instant,
) -> Result<Peer, NoConnection> {
    let mut bytes = [0; MESSAGE_MAX];
    loop {
        let out = handshake.take_output();
        if timeout_at(until, write(socket, &out)).await.map_err(|_| NoConnection::Late)?.is_err() {
            return Err(NoConnection::Closed);
        }
        match handshake.outcome() {
            Some(Ok(peer)) => return Ok(peer.clone()),
            Some(Err(why)) => {
                let why = why.clone();
                if is_told(&why) {
                    leave(socket, until).await;
                }
                return Err(NoConnection::Refused(why));
            }
            None => {}
        }
        let wanted = handshake.wants().min(bytes.len());
        let Some(wanted) = bytes.get_mut(..wanted) else { return Err(NoConnection::Closed) };
        match timeout_at(until, read(socket, wanted)).await {
            Ok(count) => {
                let read = wanted.get(..count?).unwrap_or_default();
                handshake.input(read, wall_ms(), &*inner.state.lock());
            }
            Err(_) => {
                handshake.give_up();
                let _ = socket.try_write(&handshake.take_output());
                let why = handshake.outcome().and_then(|outcome| outcome.as_ref().err());
                return Err(
                    why.map_or(NoConnection::Late, |why| NoConnection::Refused(why.clone()))
                );
            }
        }
    }
}

/// Whether this side has told the other one why.
fn is_told(why: &NoLink) -> bool {
    matches!(why, NoLink::Refused { why, .. } if *why != Refusal::NotANode)
}

/// Closes so that what was told arrives: a socket that is closed with bytes in it takes back what it has sent.
async fn leave(socket: &TcpStream, until: Instant) {
    let _ = shutdown(socket, Shutdown::Write);
    let mut bytes = [0; MESSAGE_MAX];
    // The rest of a handshake is not longer.
    for _ in 0..4 {
        match timeout_at(until, read(socket, &mut bytes)).await {
            Ok(Ok(_)) => {}
            _ => return,
        }
    }
}

/// Reads what is there, and not nothing.
pub(super) async fn read(socket: &TcpStream, into: &mut [u8]) -> io::Result<usize> {
    loop {
        socket.readable().await?;
        match socket.try_read(into) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return read,
        }
    }
}

/// Writes all of it.
pub(super) async fn write(socket: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        socket.writable().await?;
        match socket.try_write(rest) {
            Ok(count) => rest = rest.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
