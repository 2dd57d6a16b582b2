//! The beginning of a connection: TLS if links have it, then both sides say hello.
//!
//! Not a byte behind the handshake is read: what follows, frames or a client's bytes, is there for whoever takes the socket.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use leveret_link::hello::{HANDSHAKE_MS, Handshake, MESSAGE_MAX, NoLink, Peer, Refusal, Urgency};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use super::encryption::{Encryption, FIRST_OF_TLS, NoTls, alerted};
use super::{Inner, LinkSocket, wall_ms};

/// A machine that does not answer is gone after so long.
const GONE: Duration = Duration::from_secs(10);

/// The urgent connection is given up if nothing of it is acknowledged for so long, and with it the link. The longer that lasts the later
/// the system tries again: a node that was cut off for some seconds would be heard again after as many more. A new connection is there
/// sooner. The system of a process that stands still takes as much all the same; of the other connection it does not.
const UNACKNOWLEDGED: Duration = Duration::from_secs(2);

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
    /// The other side says that it speaks no TLS.
    #[error("{0}")]
    TlsRefused(NoLink),
    /// It was called with TLS, and says something that is neither that nor TLS.
    #[error("it was called with TLS, and answers something else: it may be no node")]
    NotTls,
    /// It takes too long.
    #[error("nothing answers within {} s", HANDSHAKE_MS / 1000)]
    Late,
}

impl From<io::Error> for NoConnection {
    fn from(error: io::Error) -> Self {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        if let Some(rustls::Error::AlertReceived(alert)) = inner {
            return Self::Refused(alerted(*alert));
        }
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
) -> Result<(Peer, LinkSocket), NoConnection> {
    let until = Instant::now() + inner.times.handshake;
    let with_tls = match &inner.encryption {
        Some(encryption) => match encrypt(inner, encryption, at, urgency, until).await {
            // Only who says so is called without: one that is gone for a moment may have TLS.
            Err(NoConnection::TlsRefused(_)) if encryption.accepts_plain => None,
            socket => Some(socket?),
        },
        None => None,
    };
    let socket = match with_tls {
        Some(socket) => socket,
        None => reach(inner, at, urgency, until).await?.into(),
    };
    let mut call = handshake(inner, at, urgency, socket.exporter());
    let found = shake(inner, &socket, &mut call, until).await?;
    Ok((found, socket))
}

/// This side of a call.
fn handshake(inner: &Inner, at: usize, urgency: Urgency, exporter: Option<Box<[u8]>>) -> Handshake {
    let own = inner.state.lock().own.clone();
    let secret = inner.secret.clone();
    let call = Handshake::call(own, urgency, secret, exporter, rand::random(), wall_ms());
    call.meant_for(&inner.peers[at].name)
}

/// A socket to a configured node.
async fn reach(
    inner: &Inner,
    at: usize,
    urgency: Urgency,
    until: Instant,
) -> Result<TcpStream, NoConnection> {
    let socket = match timeout_at(until, connect(&inner.peers[at].address)).await {
        Ok(socket) => socket.map_err(NoConnection::Socket)?,
        Err(_) => return Err(NoConnection::Late),
    };
    prepare(&socket, urgency)?;
    Ok(socket)
}

/// The same with TLS.
async fn encrypt(
    inner: &Inner,
    encryption: &Encryption,
    at: usize,
    urgency: Urgency,
    until: Instant,
) -> Result<LinkSocket, NoConnection> {
    let socket = reach(inner, at, urgency, until).await?;
    let called = timeout_at(until, encryption.call(socket)).await;
    let (socket, why) = match called.map_err(|_| NoConnection::Late)? {
        Ok(socket) => return Ok(socket),
        Err(failed) => failed,
    };
    if let Some(socket) = socket.map(LinkSocket::from) {
        if matches!(why, NoTls::NotSpoken) {
            let mut call = handshake(inner, at, urgency, None);
            let said = refusal(inner, &socket, &mut call, until).await;
            return Err(said.map_or(NoConnection::NotTls, NoConnection::TlsRefused));
        }
        // The alert is to arrive.
        leave(&socket, until).await;
    }
    Err(no_tls(inner, Some(&inner.peers[at].name), why))
}

/// Why two have no TLS together, of which one is this node.
fn no_tls(inner: &Inner, other: Option<&str>, why: NoTls) -> NoConnection {
    match why {
        NoTls::Socket(error) => error.into(),
        NoTls::Told(why) => NoConnection::Refused(why),
        NoTls::NotSpoken => NoConnection::Closed,
        NoTls::Refused(text) => {
            let own = inner.state.lock().own.name.clone();
            let why = Refusal::Encryption(text.into());
            NoConnection::Refused(NoLink::Refused { own, other: other.map(Into::into), why })
        }
    }
}

/// The refusal of one that was called with TLS and does not speak it. It is told nothing, whatever it says.
async fn refusal(
    inner: &Inner,
    socket: &LinkSocket,
    call: &mut Handshake,
    until: Instant,
) -> Option<NoLink> {
    let mut bytes = [0; MESSAGE_MAX];
    while call.outcome().is_none() && call.said().is_none() {
        let wanted = call.wants().min(bytes.len());
        let Some(wanted) = bytes.get_mut(..wanted) else { break };
        let Ok(Ok(count)) = timeout_at(until, read(socket, wanted)).await else { break };
        let read = wanted.get(..count).unwrap_or_default();
        call.input(read, wall_ms(), &*inner.state.lock());
    }
    match call.outcome() {
        Some(Err(why @ NoLink::Told(_))) => Some(why.clone()),
        _ => None,
    }
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
    socket: TcpStream,
    from: SocketAddr,
    until: Instant,
) -> Option<(Peer, LinkSocket)> {
    match answered(inner, socket, from, until).await {
        Ok((peer, socket)) if prepare(socket.tcp(), peer.urgency).is_ok() => Some((peer, socket)),
        Ok(_) => None,
        Err((said, NoConnection::Refused(why))) => {
            inner.refused(from, said.as_deref(), &why);
            None
        }
        Err((_, why)) => {
            tracing::debug!(from = %from.ip(), peer = %from, "a connection to the cluster's port ended: {why}");
            None
        }
    }
}

/// The same. What goes wrong has the name that was said.
async fn answered(
    inner: &Inner,
    socket: TcpStream,
    from: SocketAddr,
    until: Instant,
) -> Result<(Peer, LinkSocket), (Option<Box<str>>, NoConnection)> {
    let mut first = [0];
    // Who says nothing has until then to say it without TLS, too.
    let begun = timeout_at(until, socket.peek(&mut first)).await;
    let begins_tls = matches!(begun, Ok(Ok(1))) && first[0] == FIRST_OF_TLS;
    let socket = match &inner.encryption {
        Some(encryption) if begins_tls => {
            match timeout_at(until, encryption.answer(socket, from)).await {
                Ok(Ok(socket)) => socket,
                Ok(Err((socket, why))) => {
                    leave(&socket.into(), until).await;
                    return Err((None, no_tls(inner, None, why)));
                }
                Err(_) => {
                    let own = inner.state.lock().own.name.clone();
                    let why = NoLink::Refused { own, other: None, why: Refusal::Silent };
                    return Err((None, NoConnection::Refused(why)));
                }
            }
        }
        _ => socket.into(),
    };
    let own = inner.state.lock().own.clone();
    let exporter = socket.exporter();
    let mut answer = Handshake::answer(own, inner.secret.clone(), exporter, rand::random());
    match &inner.encryption {
        Some(encryption) if !encryption.accepts_plain => answer = answer.with_tls_only(),
        None if begins_tls => answer.refuse_tls(),
        _ => {}
    }
    let shaken = shake(inner, &socket, &mut answer, until).await;
    let said = || answer.said().map(|node| node.name.clone());
    shaken.map_err(|why| (said(), why)).map(|peer| (peer, socket))
}

/// What a connection is asked for, once it is known what it is for.
fn prepare(socket: &TcpStream, urgency: Urgency) -> io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_tcp_nodelay(true)?;
    let probes = TcpKeepalive::new().with_time(GONE / 2).with_interval(GONE / 10).with_retries(5);
    socket.set_tcp_keepalive(&probes)?;
    match urgency {
        Urgency::Urgent => socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED)),
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
    socket: &LinkSocket,
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
async fn leave(socket: &LinkSocket, until: Instant) {
    if !matches!(timeout_at(until, socket.shutdown()).await, Ok(Ok(()))) {
        return;
    }
    let mut bytes = [0; MESSAGE_MAX];
    // The rest of a handshake, of TLS with long certificates, is not longer.
    for _ in 0..64 {
        match timeout_at(until, read(socket, &mut bytes)).await {
            Ok(Ok(_)) => {}
            _ => return,
        }
    }
}

/// Reads what is there, and not nothing.
pub(super) async fn read(socket: &LinkSocket, into: &mut [u8]) -> io::Result<usize> {
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
pub(super) async fn write(socket: &LinkSocket, bytes: &[u8]) -> io::Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        socket.writable().await?;
        match socket.try_write(rest) {
            Ok(count) => rest = rest.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    socket.flush().await
}
