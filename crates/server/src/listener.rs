//! Listening sockets: accepts connections and gives each to a thread.
//!
//! What comes before AMQP, a header of the PROXY protocol or a handshake of TLS, is waited for by the
//! connection's own task, before there is a session.
//!
//! One task accepts for all threads and deals connections out in turn: the kernel's own spreading
//! (`SO_REUSEPORT`) hashes three connections onto one of two threads too often.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use leveret_broker::message::ConnectionId;
use leveret_session::{Peer, Session};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::TcpListener;
use tokio::sync::mpsc::Receiver;
use tokio::sync::watch;

use crate::clock::now;
use crate::cluster::arrivals::Arrival;
use crate::connection::{Connection, Letter};
use crate::descriptors;
use crate::node::{Node, Recipient};
use crate::pacing::Pacing;
use crate::places::{ConnectionPlace, ConnectionPlaces, Wish};
use crate::proxy::{self, Ends, plain};
use crate::runner::with_runner;
use crate::threads::Threads;
use crate::tls::certificate::LoginFrom;
use crate::tls::{self, HandshakeError, HandshakeShares, Tls, TlsStream};

/// What is asked of every socket.
#[derive(Clone, Debug)]
pub struct SocketOptions {
    /// Connections the kernel may keep waiting to be accepted.
    pub backlog: i32,
    /// Send small writes at once.
    pub nodelay: bool,
    /// TCP keep-alive.
    pub keepalive: bool,
    /// Kernel buffer to send from, in bytes; the kernel decides when absent.
    pub send_buffer: Option<usize>,
    /// Kernel buffer to receive into, in bytes; the kernel decides when absent.
    pub receive_buffer: Option<usize>,
    /// Connections open at once; the next one is closed.
    pub connections_max: Option<usize>,
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self {
            backlog: 4096,
            nodelay: true,
            keepalive: false,
            send_buffer: None,
            receive_buffer: None,
            connections_max: None,
        }
    }
}

/// Opens a listening socket. A port in use is an error that names the address.
pub fn bind(address: SocketAddr, options: &SocketOptions) -> io::Result<std::net::TcpListener> {
    let open = || -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        if address.is_ipv6() {
            // One listener serves both, as RabbitMQ's does.
            socket.set_only_v6(false)?;
        }
        socket.set_reuse_address(true)?;
        if let Some(bytes) = options.receive_buffer {
            socket.set_recv_buffer_size(bytes)?;
        }
        socket.bind(&address.into())?;
        socket.listen(options.backlog)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    let name = |error: io::Error| io::Error::new(error.kind(), format!("{address}: {error}"));
    Ok(open().map_err(name)?.into())
}

/// What comes before AMQP on a listener's connections.
#[derive(Clone, Debug)]
pub struct Preface {
    /// A header of the PROXY protocol.
    pub proxy: bool,
    /// A handshake of TLS.
    pub tls: Option<Arc<Tls>>,
    /// What handshakes may take, by thread.
    pub shares: Arc<[Arc<HandshakeShares>]>,
    /// How long a client may take for each of them.
    pub timeout: Duration,
    /// Whose certificate is whose.
    pub login: LoginFrom,
}

/// Whether clients may not come in by the listeners of a process. Connections stay.
#[derive(Clone, Debug, Default)]
pub struct ClientSuspension(Arc<watch::Sender<bool>>);

impl ClientSuspension {
    /// Closes the listeners, or opens them again.
    pub fn set(&self, is_suspended: bool) {
        self.0.send_replace(is_suspended);
    }

    /// Whether they are closed, or about to be.
    pub fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<bool> {
        self.0.subscribe()
    }
}

/// A listening socket that is closed while clients may not come in, so that they go elsewhere at once.
pub(crate) struct Gate {
    socket: Option<TcpListener>,
    address: SocketAddr,
    pacing: Pacing,
    suspended: watch::Receiver<bool>,
}

impl Gate {
    pub(crate) fn new(listener: TcpListener, suspended: watch::Receiver<bool>) -> io::Result<Self> {
        let (address, pacing) = (listener.local_addr()?, Pacing::of(SockRef::from(&listener)));
        Ok(Self { socket: Some(listener), address, pacing, suspended })
    }

    /// For sockets that came by it.
    pub(crate) fn pacing(&self) -> &Pacing {
        &self.pacing
    }

    pub(crate) async fn accept(
        &mut self,
        options: &SocketOptions,
    ) -> io::Result<(tokio::net::TcpStream, SocketAddr)> {
        loop {
            if let Some(socket) = &self.socket {
                tokio::select! {
                    accepted = socket.accept() => return accepted.map(|(socket, peer)| (socket, plain(peer))),
                    // An error means that the node is gone, and this task with it.
                    _ = self.suspended.wait_for(|it| *it) => self.socket = None,
                }
            } else {
                let _ = self.suspended.wait_for(|it| !*it).await;
                let socket = TcpListener::from_std(bind(self.address, options)?)?;
                self.pacing = Pacing::of(SockRef::from(&socket));
                self.socket = Some(socket);
            }
        }
    }
}

/// What a listener's connections get.
#[derive(Clone)]
pub(crate) struct Entrance {
    pub(crate) node: Arc<Node>,
    pub(crate) threads: Arc<Threads>,
    pub(crate) options: SocketOptions,
    pub(crate) preface: Preface,
    pub(crate) places: ConnectionPlaces,
}

/// Accepts until the task is dropped.
pub(crate) async fn accept(listener: TcpListener, entrance: Entrance) {
    let mut gate = match Gate::new(listener, entrance.node.watch_suspension()) {
        Ok(gate) => gate,
        Err(error) => return tracing::error!(%error, "a listener cannot be served"),
    };
    loop {
        let (socket, peer) = match gate.accept(&entrance.options).await {
            Ok(accepted) => accepted,
            Err(error) => {
                descriptors::not_accepted(&error, "a connection").await;
                continue;
            }
        };
        let Some(place) = entrance.admit(&socket, peer) else { continue };
        let socket = prepare(socket, &entrance.options, gate.pacing())
            .and_then(|socket| Ok((Ends::new(peer, socket.local_addr()?), socket)));
        match socket {
            Ok((ends, socket)) => entrance.enter(socket, ends, place),
            Err(error) => tracing::debug!(%peer, %error, "a connection ended before it began"),
        }
    }
}

/// Takes the clients that other nodes relay, until the task is dropped. Those nodes have read what proxies say, and let nobody in
/// whom they are not to.
pub(crate) async fn take_arrivals(mut arrivals: Receiver<Arrival>, mut entrance: Entrance) {
    entrance.preface.proxy = false;
    while let Some(Arrival { socket, ends }) = arrivals.recv().await {
        let Some(place) = entrance.admit(&socket, ends.source) else { continue };
        // With TLS between nodes it is no socket of TCP, and has no such thing.
        let _ = socket.set_nodelay(entrance.options.nodelay);
        entrance.enter(socket, ends, place);
    }
}

impl Entrance {
    /// A place for a connection, if there is one and a file for it.
    fn admit(&self, socket: &impl AsRawFd, peer: SocketAddr) -> Option<ConnectionPlace> {
        if !descriptors::leave_room(socket) {
            close(&self.node, self.places.make_room(peer.ip()));
            return None;
        }
        let most = self.options.connections_max.unwrap_or(usize::MAX);
        let Wish { place, closes } = self.places.take(peer.ip(), most);
        close(&self.node, closes);
        if place.is_none() {
            tracing::warn!(from = "connection_max", %peer, "connection refused: connection_max is reached");
        }
        place
    }

    /// Gives a connection to a thread.
    fn enter(&self, socket: TcpStream, ends: Ends, place: ConnectionPlace) {
        let (node, preface, peer) = (Arc::clone(&self.node), self.preface.clone(), ends.source);
        let (thread, handle) = self.threads.next();
        handle.spawn(async move {
            // In memory of its own, which is gone when the connection lives: an idle one is to be small.
            match Box::pin(begin(socket, ends, &preface, thread, place)).await {
                Ok(Some(begun)) => {
                    if let Err(error) = serve(node, begun, preface.login).await {
                        tracing::warn!(from = %peer.ip(), %peer, %error, "a connection could not be served");
                    }
                }
                Ok(None) => {}
                Err(error) => tracing::warn!(from = %peer.ip(), %peer, %error, "a connection could not be served"),
            }
        });
    }
}

/// Has a session closed that lost its place: it has not logged in.
fn close(node: &Arc<Node>, session: Option<ConnectionId>) {
    let Some(Recipient::Connection(connection)) = session.and_then(|id| node.recipient(id)) else {
        return;
    };
    tracing::warn!(
        from = %connection.peer().ip(), peer = %connection.peer(),
        "connection closed: it has not logged in, and others need its place"
    );
    let text = "others need its place".to_owned();
    with_runner(node, |runner| runner.close_connection(&connection, text));
}

pub(crate) fn prepare(
    socket: tokio::net::TcpStream,
    options: &SocketOptions,
    pacing: &Pacing,
) -> io::Result<TcpStream> {
    let socket = Socket::from(socket.into_std()?);
    socket.set_tcp_nodelay(options.nodelay)?;
    if options.keepalive {
        socket.set_tcp_keepalive(&TcpKeepalive::new())?;
    }
    if let Some(bytes) = options.send_buffer {
        socket.set_send_buffer_size(bytes)?;
    }
    pacing.accepted(&socket)?;
    Ok(socket.into())
}

/// A connection that is ready for AMQP.
struct Begun {
    socket: TcpStream,
    ends: Ends,
    tls: Option<Box<TlsStream>>,
    place: ConnectionPlace,
}

/// Socket, ends and encryption of a connection that is ready for AMQP.
type Prefaced = (TcpStream, Ends, Option<Box<TlsStream>>);

/// Waits for what comes before AMQP, on the connection's thread. `None` when it went wrong and was logged.
async fn begin(
    socket: TcpStream,
    ends: Ends,
    preface: &Preface,
    thread: usize,
    mut place: ConnectionPlace,
) -> io::Result<Option<Begun>> {
    let peer = ends.source;
    if !preface.proxy && preface.tls.is_none() {
        return Ok(Some(Begun { socket, ends, tls: None, place }));
    }
    let lost = place.loss();
    tokio::select! {
        begun = preface.take(socket, ends, thread, &mut place) => {
            Ok(begun?.map(|(socket, ends, tls)| Begun { socket, ends, tls, place }))
        }
        () = lost.comes() => {
            tracing::warn!(from = %peer.ip(), %peer, "connection closed: it has not logged in, and others need its place");
            Ok(None)
        }
    }
}

impl Preface {
    /// What is left when the client has sent it. `None` when it went wrong and was logged.
    async fn take(
        &self,
        socket: TcpStream,
        mut ends: Ends,
        thread: usize,
        place: &mut ConnectionPlace,
    ) -> io::Result<Option<Prefaced>> {
        let peer = ends.source;
        let socket = tokio::net::TcpStream::from_std(socket)?;
        if self.proxy {
            match tokio::time::timeout(self.timeout, proxy::take_header(&socket)).await {
                Ok(Ok(told)) => ends = told.unwrap_or(ends),
                Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
                    tracing::warn!(from = %peer.ip(), %peer, "connection closed: {error}");
                    return Ok(None);
                }
                Ok(Err(error)) => {
                    tracing::debug!(%peer, %error, "a connection ended before its PROXY header");
                    return Ok(None);
                }
                Err(_) => {
                    tracing::warn!(from = %peer.ip(), %peer, "connection closed: no PROXY header came in time");
                    return Ok(None);
                }
            }
        }
        let peer = ends.source;
        place.is_of(peer.ip());
        let mut tls = None;
        if let Some(of_listener) = &self.tls {
            let handshake = {
                let shares = &self.shares[thread % self.shares.len()];
                let (config, shares) = (of_listener.config(), Arc::clone(shares));
                tls::handshake(&socket, peer.ip(), config, shares)
            };
            match tokio::time::timeout(self.timeout, handshake).await {
                Ok(Ok(connection)) => tls = Some(Box::new(TlsStream::new(connection))),
                Ok(Err(HandshakeError::Socket(error))) => {
                    tracing::debug!(%peer, %error, "a connection ended in its TLS handshake");
                    return Ok(None);
                }
                Ok(Err(error)) => {
                    tracing::warn!(from = %peer.ip(), %peer, "TLS handshake failed: {error}");
                    return Ok(None);
                }
                Err(_) => {
                    tracing::warn!(from = %peer.ip(), %peer, "TLS handshake took too long");
                    return Ok(None);
                }
            }
        }
        Ok(Some((socket.into_std()?, ends, tls)))
    }
}

/// Runs one connection to its end, on its thread.
async fn serve(node: Arc<Node>, begun: Begun, login: LoginFrom) -> io::Result<()> {
    let id = node.new_id();
    let Begun { socket, ends, tls, place } = begun;
    let peer = Peer {
        address: ends.source.to_string(),
        local: ends.destination,
        is_loopback: ends.source.ip().to_canonical().is_loopback(),
        tls: tls.as_ref().map(|tls| Arc::new(tls.facts(login))),
    };
    // Only to spread generated names and random exchanges; nothing secret hangs on it.
    let seed = rand::random();
    let session = Session::new(id, Arc::clone(&node.settings), peer, seed, now());
    let connection = Arc::new(Connection::new(id, socket, ends, tls, session, place)?);
    node.register(id, Recipient::Connection(Arc::clone(&connection)));
    if !connection.place().begins(id) {
        close(&node, Some(id));
    }
    if node.alarms.any() {
        with_runner(&node, |runner| runner.run_connection(&connection, Letter::Alarm));
    }
    Arc::clone(&connection).drive(node).await;
    connection.place().is_over();
    Ok(())
}
