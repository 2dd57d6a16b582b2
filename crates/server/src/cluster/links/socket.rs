//! Hot path. A connection to another node, with TLS or without.
//!
//! Bytes go in and out as they do of a plain socket: at once, or [`WouldBlock`](io::ErrorKind::WouldBlock). With TLS, what was taken
//! and is encrypted may wait for the socket, [`UNSENT_MAX`] at most: who has nothing more to say [flushes](LinkSocket::flush).

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, BufRead as _, IoSlice, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use rustix::net::Shutdown;
use rustls::Connection;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use tokio::net::TcpStream;

use crate::locks::{Rank, Ranked};
use crate::tls::AtOnce;

/// Encrypted bytes that wait for the socket before more are encrypted.
const UNSENT_MAX: usize = 64 << 10;

/// Encrypted bytes that are asked of a socket at once.
const READ_BYTES: usize = 64 << 10;

thread_local! {
    static CIPHER: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into());
}

/// A connection to another node.
#[derive(Debug)]
pub struct LinkSocket {
    socket: TcpStream,
    /// Whoever reads and whoever writes are of one task: nobody waits for the lock.
    tls: Option<Box<Ranked<TlsEnd>>>,
}

/// This end of TLS.
#[derive(Debug)]
struct TlsEnd {
    connection: Connection,
    /// What both ends export, and nobody in between has.
    exported: [u8; 32],
    /// What was decrypted and not taken.
    plain: BytesMut,
    /// The other side said that it sends nothing more.
    has_ended: bool,
}

impl From<TcpStream> for LinkSocket {
    /// Without TLS.
    fn from(socket: TcpStream) -> Self {
        Self { socket, tls: None }
    }
}

impl LinkSocket {
    /// With TLS, after its handshake.
    ///
    /// # Errors
    ///
    /// When what came behind the handshake is wrong.
    pub(in crate::cluster) fn encrypted(
        socket: TcpStream,
        connection: impl Into<Connection>,
    ) -> Result<Self, (TcpStream, rustls::Error)> {
        match TlsEnd::of(connection.into()) {
            Ok(end) => Ok(Self { socket, tls: Some(Box::new(Ranked::new(Rank::LinkTls, end))) }),
            Err(error) => Err((socket, error)),
        }
    }

    /// The socket below.
    pub fn tcp(&self) -> &TcpStream {
        &self.socket
    }

    /// The socket, if there is no TLS; else the connection.
    pub(super) fn into_plain(self) -> Result<TcpStream, Self> {
        match self.tls {
            None => Ok(self.socket),
            Some(_) => Err(self),
        }
    }

    /// Whether there is TLS.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// What both ends of the TLS connection export, and nobody in between has; none without TLS.
    pub(super) fn exporter(&self) -> Option<Box<[u8]>> {
        self.tls.as_ref().map(|tls| tls.lock().exported.into())
    }

    /// The same in the runtime that this is called in, which polls it from then on.
    pub(super) fn here(self) -> io::Result<Self> {
        let socket = TcpStream::from_std(self.socket.into_std()?)?;
        Ok(Self { socket, tls: self.tls })
    }

    /// Waits until something can be read.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        if self.tls.as_ref().is_some_and(|tls| tls.lock().has_some()) {
            return Ok(());
        }
        self.socket.readable().await
    }

    /// Reads what is there; 0 is the end.
    pub(crate) fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &self.tls else { return self.socket.try_read(into) };
        let mut tls = tls.lock();
        if tls.plain.is_empty() {
            tls.read(&self.socket, None)?;
        }
        let count = tls.plain.len().min(into.len());
        tls.plain.copy_to_slice(&mut into[..count]);
        if tls.plain.is_empty() {
            // A connection that rests holds nothing.
            tls.plain = BytesMut::new();
        }
        Ok(count)
    }

    /// The same, behind what is there.
    pub(crate) fn try_read_buf(&self, into: &mut BytesMut) -> io::Result<usize> {
        let Some(tls) = &self.tls else { return self.socket.try_read_buf(into) };
        let mut tls = tls.lock();
        if tls.plain.is_empty() {
            return tls.read(&self.socket, Some(into));
        }
        let plain = std::mem::take(&mut tls.plain);
        into.extend_from_slice(&plain);
        Ok(plain.len())
    }

    /// Waits until the other end sends nothing more, or is gone. Bytes that it sent before may be there still.
    pub(super) async fn ended(&self) -> io::Result<()> {
        ended(|| self.socket.ready(Interest::PRIORITY)).await
    }

    /// Waits until something can be written.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        self.socket.writable().await
    }

    /// Writes what is taken.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        self.try_write_vectored(&[IoSlice::new(bytes)])
    }

    /// The same of several slices.
    pub(crate) fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(tls) = &self.tls else { return self.socket.try_write_vectored(slices) };
        let mut tls = tls.lock();
        tls.flush(&self.socket)?;
        let taken = tls.connection.writer().write_vectored(slices)?;
        if taken == 0 && slices.iter().any(|slice| !slice.is_empty()) {
            // Its keys are used up.
            return Err(io::ErrorKind::WriteZero.into());
        }
        match tls.flush(&self.socket) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    /// Whether bytes were taken that the socket has not.
    pub(crate) fn has_unsent(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.lock().connection.wants_write())
    }

    /// Waits until the socket has all that was taken.
    pub(crate) async fn flush(&self) -> io::Result<()> {
        if self.tls.is_none() {
            return Ok(());
        }
        poll_fn(|cx| self.poll_sent(cx)).await
    }

    /// Tells the other side that nothing more comes.
    pub(crate) async fn shutdown(&self) -> io::Result<()> {
        if let Some(tls) = &self.tls {
            tls.lock().connection.send_close_notify();
        }
        self.flush().await?;
        Ok(rustix::net::shutdown(&self.socket, Shutdown::Write)?)
    }

    fn poll_sent(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(tls) = &self.tls else { return Poll::Ready(Ok(())) };
        loop {
            let sent = tls.lock().flush(&self.socket);
            match sent {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(self.socket.poll_write_ready(cx))?;
                }
                sent => return Poll::Ready(sent),
            }
        }
    }
}

/// Waits for the end of what a socket can read, whether or not that is read. `ready` waits for priority: of what tokio tells with
/// that, a socket that was not registered for it has the end alone.
pub(super) async fn ended<F: Future<Output = io::Result<Ready>>>(
    ready: impl Fn() -> F,
) -> io::Result<()> {
    while !ready().await?.is_read_closed() {}
    Ok(())
}

/// What is exported is for this.
const EXPORTER: &[u8] = b"EXPORTER-leveret-link";

impl TlsEnd {
    fn of(mut connection: Connection) -> Result<Self, rustls::Error> {
        connection.set_buffer_limit(Some(UNSENT_MAX));
        let exported = connection.export_keying_material([0; 32], EXPORTER, None)?;
        let has_ended = connection.process_new_packets()?.peer_has_closed();
        let mut end = Self { connection, exported, plain: BytesMut::new(), has_ended };
        let taken = end.take(None);
        taken.map_err(|error| rustls::Error::General(error.to_string()))?;
        Ok(end)
    }

    /// Whether a read has something without the socket.
    fn has_some(&self) -> bool {
        !self.plain.is_empty() || self.has_ended
    }

    /// Reads the socket once, and decrypts: to `into`, or to what is not taken. Returns how much; 0 is the end.
    fn read(&mut self, socket: &TcpStream, mut into: Option<&mut BytesMut>) -> io::Result<usize> {
        CIPHER.with_borrow_mut(|cipher| {
            if self.has_ended {
                return Ok(0);
            }
            let mut rest = match socket.try_read(cipher)? {
                // Without a word: somebody may have cut it.
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => &cipher[..read],
            };
            let mut count = 0;
            while !rest.is_empty() && !self.has_ended {
                self.connection.read_tls(&mut rest)?;
                let state = self.connection.process_new_packets().map_err(|error| {
                    // The alert that tells the other side why. Whether it is taken changes nothing.
                    let _ = self.connection.write_tls(&mut AtOnce(socket));
                    io::Error::other(error)
                })?;
                self.has_ended = state.peer_has_closed();
                count += self.take(into.as_deref_mut())?;
            }
            match count == 0 && !self.has_ended {
                // A part of a record: the socket may have more, which is read after others had their turn.
                true => Err(io::ErrorKind::WouldBlock.into()),
                false => Ok(count),
            }
        })
    }

    /// Takes what is decrypted.
    fn take(&mut self, into: Option<&mut BytesMut>) -> io::Result<usize> {
        let into = into.unwrap_or(&mut self.plain);
        let mut reader = self.connection.reader();
        let before = into.len();
        loop {
            let taken = match reader.fill_buf() {
                Ok([]) => break,
                Ok(bytes) => {
                    into.extend_from_slice(bytes);
                    bytes.len()
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            };
            reader.consume(taken);
        }
        Ok(into.len() - before)
    }

    /// Writes what is encrypted, as far as the socket takes it.
    fn flush(&mut self, socket: &TcpStream) -> io::Result<()> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut AtOnce(socket)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl AsyncRead for LinkSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            match self.try_read(into.initialize_unfilled()) {
                Ok(count) => {
                    into.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(self.socket.poll_read_ready(cx))?;
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for LinkSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            match self.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(self.socket.poll_write_ready(cx))?;
                }
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_sent(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(tls) = &self.tls {
            tls.lock().connection.send_close_notify();
        }
        ready!(self.poll_sent(cx))?;
        Poll::Ready(Ok(rustix::net::shutdown(&self.socket, Shutdown::Write)?))
    }
}
