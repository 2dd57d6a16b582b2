//! The handshake of a connection, on its own task: whoever is slow holds up nobody. Nor do many at once, by their
//! [`shares`](super::shares).

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use rustls::{InvalidMessage, ServerConfig, ServerConnection};
use tokio::net::TcpStream;

use super::shares::{HandshakeShare, HandshakeShares};

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The socket failed or was closed before anything was said.
    #[error(transparent)]
    Socket(#[from] io::Error),
    /// What came is not TLS at all.
    #[error("the client does not speak TLS")]
    NotTls,
    /// Unfinished handshakes of others, or of the same address, have all the memory that there is for long ones.
    #[error("it is long, and there is no room for more long ones")]
    NoRoom,
    /// The two could not agree, or a certificate is bad.
    #[error("{0}")]
    Tls(#[from] rustls::Error),
}

/// A socket of tokio as rustls wants it: an answer at once, be it [`WouldBlock`](io::ErrorKind::WouldBlock).
struct AtOnce<'a>(&'a TcpStream);

impl io::Read for AtOnce<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buf)
    }
}

impl io::Write for AtOnce<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.try_write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs the handshake to its end. Takes as long as the client does: the caller limits it.
///
/// `address` is the client's, whose share it takes of `shares`.
///
/// The connection may have decrypted bytes of the client by then, and part of a record.
pub async fn handshake(
    socket: &TcpStream,
    address: IpAddr,
    config: Arc<ServerConfig>,
    shares: Arc<HandshakeShares>,
) -> Result<ServerConnection, HandshakeError> {
    let mut connection = ServerConnection::new(config)?;
    let mut share = HandshakeShare::new(shares, address);
    let mut has_heard = false;
    loop {
        while connection.wants_write() {
            match connection.write_tls(&mut AtOnce(socket)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    socket.writable().await?
                }
                Err(error) => return Err(error.into()),
            }
        }
        if !connection.is_handshaking() {
            return Ok(connection);
        }
        match connection.read_tls(&mut AtOnce(socket)) {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(bytes) => {
                share.received(bytes)?;
                if let Err(error) = share.process(&mut connection).await {
                    // The alert that tells the client why. Whether it is taken changes nothing.
                    let _ = connection.write_tls(&mut AtOnce(socket));
                    return Err(match error {
                        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)
                            if !has_heard =>
                        {
                            HandshakeError::NotTls
                        }
                        error => error.into(),
                    });
                }
                has_heard = true;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => socket.readable().await?,
            Err(error) => return Err(error.into()),
        }
    }
}
