//! Sockets of HTTP, with or without TLS.
//!
//! A handshake runs by itself until it is done or its time is up, so a slow one holds up nobody who
//! comes after it.

use std::future::pending;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use leveret_config::tls::TlsSettings;
use leveret_server::cluster::arrivals::Arrival;
use leveret_server::descriptors;
use leveret_server::listener::SocketOptions;
use leveret_server::node::Node;
use leveret_server::proxy::plain;
use leveret_server::tls::{HandshakeShare, HandshakeShares, Tls};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::server::Acceptor;

use crate::places::{ConnectionPlace, ConnectionPlaces, no_place};
use crate::watched::{Pace, Watched};

/// How long a client may take for its handshake.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(5);
/// Connections whose handshake is done and which nobody has taken yet.
const DONE_MAX: usize = 64;

/// An accepted connection.
pub(crate) type Stream = Box<dyn Io>;

/// What HTTP needs of a socket.
pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Opens a listening socket. `purpose` and `key` are for the error.
pub(crate) fn bind(
    ip: Option<&str>,
    port: u16,
    purpose: &str,
    key: &str,
) -> anyhow::Result<StdListener> {
    let address = leveret_server::resolve(ip, port)
        .with_context(|| format!("{key}.ip = {}", ip.unwrap_or_default()))?;
    leveret_server::listener::bind(address, &SocketOptions::default()).with_context(|| {
        format!(
            "cannot listen on {address} for {purpose}; is another broker running? \
             choose another port with {key}.port"
        )
    })
}

/// Reads certificate and key of a group of options, to be read again when the node's are.
pub(crate) fn tls(settings: TlsSettings, node: &Node) -> anyhow::Result<Arc<Tls>> {
    let tls = Tls::load(settings)?;
    node.certificates.add(Arc::clone(&tls));
    Ok(tls)
}

/// Accepts connections.
#[derive(Debug)]
pub(crate) struct Door {
    listener: TcpListener,
    tls: Option<Arc<Tls>>,
    /// What handshakes may take: one thread has all of them.
    shares: Arc<HandshakeShares>,
    places: ConnectionPlaces,
    pace: Pace,
    /// A client was sent away, and nobody came in since.
    is_full: bool,
    done: mpsc::Sender<Encrypted>,
    ready: mpsc::Receiver<Encrypted>,
    /// Clients that come by other nodes; none of a node that is alone.
    arrivals: Option<mpsc::Receiver<Arrival>>,
}

/// The next client that comes by another node. Never if there is none to come.
pub(crate) async fn arrival(arrivals: &mut Option<mpsc::Receiver<Arrival>>) -> Arrival {
    let next = match arrivals {
        Some(arrivals) => arrivals.recv().await,
        None => None,
    };
    match next {
        Some(arrival) => arrival,
        None => pending().await,
    }
}

/// A connection whose handshake is done.
type Encrypted =
    (tokio_rustls::server::TlsStream<Watched<TcpStream>>, SocketAddr, Arc<ConnectionPlace>);

impl Door {
    /// On a socket that [`bind`] opened; in the runtime that accepts. Its clients take their answers at this pace.
    pub(crate) fn new(
        listener: StdListener,
        tls: Option<Arc<Tls>>,
        pace: Pace,
        arrivals: Option<mpsc::Receiver<Arrival>>,
    ) -> std::io::Result<Self> {
        let (done, ready) = mpsc::channel(DONE_MAX);
        let listener = TcpListener::from_std(listener)?;
        let places = ConnectionPlaces::default();
        Ok(Self {
            listener,
            tls,
            shares: HandshakeShares::of_one(),
            places,
            pace,
            is_full: false,
            done,
            ready,
            arrivals,
        })
    }

    /// The next connection that is ready for HTTP.
    pub(crate) async fn accept(&mut self) -> (Stream, SocketAddr, Arc<ConnectionPlace>) {
        loop {
            let Self { listener, tls, shares, places, pace, is_full, done, ready, arrivals } = self;
            let come = tokio::select! {
                Some((stream, peer, place)) = ready.recv() => return (Box::new(stream), peer, place),
                accepted = listener.accept() => accepted.map(|(socket, peer)| (socket, plain(peer))),
                Arrival { socket, ends } = arrival(arrivals) => {
                    TcpStream::from_std(socket).map(|socket| (socket, ends.source))
                }
            };
            let (socket, peer) = match come {
                Ok(come) => come,
                Err(error) => {
                    descriptors::not_accepted(&error, "an HTTP connection").await;
                    continue;
                }
            };
            if !descriptors::leave_room(&socket) {
                continue;
            }
            // Answers are written whole; a delay would only wait for more.
            let _ = socket.set_nodelay(true);
            let Some(place) = places.take(peer.ip()) else {
                if !std::mem::replace(is_full, true) {
                    tracing::warn!(from = "HTTP", %peer, "HTTP connections are refused: there are too many");
                }
                // In plain words, if anybody reads them.
                let _ = socket.try_write(no_place().as_bytes());
                continue;
            };
            *is_full = false;
            let (socket, place) = (Watched::new(socket, *pace), Arc::new(place));
            let Some(tls) = tls else { return (Box::new(socket), peer, place) };
            let with = (tls.config(), Arc::clone(shares));
            tokio::spawn(handshake(with, socket, (peer, place), done.clone()));
        }
    }
}

async fn handshake(
    (config, shares): (Arc<ServerConfig>, Arc<HandshakeShares>),
    socket: Watched<TcpStream>,
    (peer, place): (SocketAddr, Arc<ConnectionPlace>),
    done: mpsc::Sender<Encrypted>,
) {
    let accepting = async {
        let socket = socket.counted(HandshakeShare::new(Arc::clone(&shares), peer.ip()));
        let hello = LazyConfigAcceptor::new(Acceptor::default(), socket).await?;
        // The answer to the hello is what takes long.
        shares.step(peer.ip(), || hello.into_stream(config)).await.await
    };
    let shaken = tokio::select! {
        shaken = tokio::time::timeout(HANDSHAKE_PATIENCE, accepting) => shaken,
        () = place.is_lost() => return,
    };
    match shaken {
        // An error means that the door was closed.
        Ok(Ok(mut stream)) => {
            stream.get_mut().0.counted_no_more();
            drop(done.send((stream, peer, place)).await);
        }
        Ok(Err(error)) => {
            tracing::info!(from = %peer.ip(), %peer, "TLS handshake of HTTP failed: {error}")
        }
        Err(_) => tracing::info!(from = %peer.ip(), %peer, "TLS handshake of HTTP took too long"),
    }
}
