//! TLS of links: handshakes of those who call and are called, and clients that come by other nodes.
//!
//! A step of a handshake takes milliseconds of a processor, and the cluster's thread has none to spare. So all handshakes, of callers
//! and of those who are called, have a thread of their own; callers take [turns by address](crate::tls::HandshakeShares). A client of
//! another node comes in as a socket that has its bytes as they are, whatever it speaks: other threads move them there and back.
//!
//! ```text
//!   other node --- TLS ---> [thread: decrypts] --- pair of sockets ---> whoever serves the client
//! ```

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leveret_link::hello::NoLink;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, Error};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::accept::no_file_left;
use super::{LinkSocket, socket};
use crate::cluster::relay::{Moved, relay};
use crate::descriptors;
use crate::tls::certificate::in_words;
use crate::tls::{HandshakeError, HandshakeShares, Tls, handshake, handshake_with_server};

/// TLS of a node's links.
#[derive(Debug)]
pub struct LinkTls {
    /// Certificates and authorities.
    pub tls: Arc<Tls>,
    /// Nodes without TLS are let in, too, and called without it.
    pub accepts_plain: bool,
    /// Threads that decrypt what clients of other nodes send.
    pub threads: usize,
}

/// The same at work.
pub(super) struct Encryption {
    tls: Arc<Tls>,
    pub(super) accepts_plain: bool,
    shares: Arc<HandshakeShares>,
    handshakes: Handle,
    /// Where clients of other nodes come in. At least one.
    threads: Vec<Handle>,
    next: AtomicUsize,
    /// Dropped, they end the threads.
    _ends: Vec<oneshot::Sender<()>>,
}

impl fmt::Debug for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Encryption")
    }
}

/// The first byte of a conversation that begins with TLS: a record of its handshake.
pub(super) const FIRST_OF_TLS: u8 = 22;

/// A name that is not sent, and not looked at.
const NO_NAME: &str = "node.invalid";

/// How long a client that is gone is heard, whose last bytes nobody takes.
const FAREWELL: Duration = Duration::from_millis(100);

/// Why the two have no TLS together.
#[derive(Debug)]
pub(super) enum NoTls {
    /// The socket is gone.
    Socket(io::Error),
    /// The other side does not speak it.
    NotSpoken,
    /// This side does not take the other's.
    Refused(String),
    /// The other side does not take this one's.
    Told(NoLink),
}

impl From<HandshakeError> for NoTls {
    fn from(error: HandshakeError) -> Self {
        match error {
            HandshakeError::Socket(error) => Self::Socket(error),
            HandshakeError::NotTls => Self::NotSpoken,
            HandshakeError::NoRoom => Self::Refused(error.to_string()),
            HandshakeError::Tls(Error::AlertReceived(alert)) => Self::Told(alerted(alert)),
            HandshakeError::Tls(Error::InvalidCertificate(why)) => {
                Self::Refused(format!("its certificate is not taken: {}", in_words(&why)))
            }
            HandshakeError::Tls(Error::NoCertificatesPresented) => {
                Self::Refused("it shows no certificate".to_owned())
            }
            HandshakeError::Tls(error) => Self::Refused(format!("TLS: {error}")),
        }
    }
}

/// What the other side's alert means.
pub(super) fn alerted(alert: AlertDescription) -> NoLink {
    use AlertDescription as A;
    let why = match alert {
        A::CertificateExpired => "it has expired, or is not valid yet",
        A::UnknownCA => "no authority of its cacertfile has signed it",
        A::UnsupportedCertificate => {
            "its extended key usage has not both serverAuth and clientAuth"
        }
        A::CertificateRequired => "there is none",
        A::DecryptError => {
            "a signature is wrong: an authority of its cacertfile may have the same name and another key"
        }
        A::CertificateUnknown => {
            "its chain is longer than its depth allows, or has two certificates with the same subject"
        }
        A::BadCertificate | A::CertificateRevoked => "it is not good",
        alert => return NoLink::told_by_alert(&format!("TLS ends with the alert {alert:?}")),
    };
    NoLink::told_by_alert(&format!("this node's certificate is not taken: {why}"))
}

impl Encryption {
    /// With threads of its own.
    pub(super) fn start(of: LinkTls) -> io::Result<Self> {
        let (handshakes, end) = thread("link-shake".to_owned())?;
        let threads = (0..of.threads.max(1)).map(|index| thread(format!("link-tls-{index}")));
        let threads = threads.collect::<io::Result<Vec<_>>>()?;
        let (threads, mut ends): (Vec<_>, Vec<_>) = threads.into_iter().unzip();
        ends.push(end);
        let made = Self::on(of.tls, of.accepts_plain, handshakes);
        Ok(Self { threads, _ends: ends, ..made })
    }

    /// All on one thread.
    pub(super) fn on(tls: Arc<Tls>, accepts_plain: bool, thread: Handle) -> Self {
        Self {
            tls,
            accepts_plain,
            shares: HandshakeShares::of_one(),
            threads: vec![thread.clone()],
            handshakes: thread,
            next: AtomicUsize::new(0),
            _ends: Vec::new(),
        }
    }

    /// Where hands are shaken.
    pub(super) fn handshakes(&self) -> &Handle {
        &self.handshakes
    }

    /// Files and certificates.
    pub(super) fn tls(&self) -> &Arc<Tls> {
        &self.tls
    }

    /// Shakes hands with a node that was called. It takes as long as that takes, and ends with this. The connection is of the
    /// runtime that asks. Where it comes to nothing and the socket is there still, it is given back.
    pub(super) async fn call(
        &self,
        socket: TcpStream,
    ) -> Result<LinkSocket, (Option<TcpStream>, NoTls)> {
        let gone = |error| (None, NoTls::Socket(error));
        let socket = socket.into_std().map_err(gone)?;
        let mut shaking = JoinSet::new();
        shaking.spawn_on(called(Arc::clone(&self.tls), socket), &self.handshakes);
        match shaking.join_next().await {
            Some(Ok(Ok(socket))) => socket.here().map_err(gone),
            Some(Ok(Err(failed))) => Err(failed),
            // That thread has ended.
            Some(Err(_)) | None => Err(gone(io::ErrorKind::ConnectionAborted.into())),
        }
    }

    /// Shakes hands with a caller.
    pub(super) async fn answer(
        &self,
        socket: TcpStream,
        from: SocketAddr,
    ) -> Result<LinkSocket, (TcpStream, NoTls)> {
        let (config, shares) = (self.tls.config_at_hand(), Arc::clone(&self.shares));
        match handshake(&socket, from.ip(), config, shares).await {
            Ok(connection) => wrapped(socket, connection),
            Err(why) => Err((socket, why.into())),
        }
    }

    /// A socket with the bytes of a client as they are, where they come encrypted. Once one end has said all, the rest has so long.
    pub(super) fn decrypted(
        &self,
        link: LinkSocket,
        rest: Duration,
    ) -> io::Result<std::net::TcpStream> {
        let (ours, theirs) = StdUnixStream::pair()?;
        ours.set_nonblocking(true)?;
        theirs.set_nonblocking(true)?;
        if !descriptors::leave_room(&ours) {
            return Err(no_file_left());
        }
        let at = self.next.fetch_add(1, Ordering::Relaxed) % self.threads.len();
        self.threads[at].spawn(async move {
            let moves = async {
                let (link, ours) = (link.here()?, UnixStream::from_std(ours)?);
                decrypt(&link, &ours, rest).await
            };
            if let Err(error) = moves.await {
                tracing::debug!(%error, "a client that another node relays has ended");
            }
        });
        // A stream socket is one to whoever serves it: its addresses come with the client.
        Ok(OwnedFd::from(theirs).into())
    }
}

/// Moves a client's bytes. Whoever does not read does not keep what the other end has closed: it is closed without being asked whether
/// all has been taken, once that took as long as this.
pub(super) async fn decrypt(
    link: &LinkSocket,
    ours: &UnixStream,
    rest: Duration,
) -> io::Result<()> {
    let is_over = async {
        tokio::select! {
            ended = link.ended() => ended?,
            ended = socket::ended(|| ours.ready(Interest::PRIORITY)) => ended?,
        }
        tokio::time::sleep(rest).await;
        Err::<(), io::Error>(io::ErrorKind::TimedOut.into())
    };
    let moved = Moved::default();
    tokio::select! {
        ended = relay(link, ours, &moved, FAREWELL) => ended,
        over = is_over => over,
    }
}

/// Shakes hands with a node that was called, in the runtime that runs it.
async fn called(
    tls: Arc<Tls>,
    socket: std::net::TcpStream,
) -> Result<LinkSocket, (Option<TcpStream>, NoTls)> {
    let socket = TcpStream::from_std(socket).map_err(|error| (None, NoTls::Socket(error)))?;
    let (config, name) = (tls.client_config_at_hand(), ServerName::try_from(NO_NAME));
    let (Some(config), Ok(name)) = (config, name) else {
        let why = NoTls::Refused("there are no certificates for calls".to_owned());
        return Err((Some(socket), why));
    };
    let shaken = match handshake_with_server(&socket, name, config).await {
        Ok(connection) => wrapped(socket, connection),
        Err(why) => Err((socket, why.into())),
    };
    shaken.map_err(|(socket, why)| (Some(socket), why))
}

fn wrapped(
    socket: TcpStream,
    connection: impl Into<rustls::Connection>,
) -> Result<LinkSocket, (TcpStream, NoTls)> {
    let made = LinkSocket::encrypted(socket, connection);
    made.map_err(|(socket, error)| (socket, HandshakeError::Tls(error).into()))
}

fn thread(name: String) -> io::Result<(Handle, oneshot::Sender<()>)> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let (end, ended) = oneshot::channel::<()>();
    std::thread::Builder::new().name(name).spawn(move || {
        // An error is the end.
        let _ = runtime.block_on(ended);
        runtime.shutdown_background();
    })?;
    Ok((handle, end))
}
