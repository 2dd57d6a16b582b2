//! The handshake of a connection, on its own task: whoever is slow holds up nobody. Nor do many at once, by their
//! [`shares`](super::shares).

use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{
    ClientConfig, ClientConnection, ConnectionCommon, InvalidMessage, ServerConfig,
    ServerConnection, SideData,
};
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
pub(crate) struct AtOnce<'a>(pub(crate) &'a TcpStream);

impl io::Read for AtOnce<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buf)
    }
}

impl io::Write for AtOnce<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.try_write(buf)
    }

    fn write_vectored(&mut self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(slices)
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
    run(socket, &mut connection, Some(&mut share)).await?;
    Ok(connection)
}

/// The same with a server that this node has called, which takes what it takes.
pub(crate) async fn handshake_with_server(
    socket: &TcpStream,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
) -> Result<ClientConnection, HandshakeError> {
    let mut connection = ClientConnection::new(config, name)?;
    send(socket, &mut connection).await?;
    // What else it says is left there. Who says nothing may know TLS.
    let mut first = [0];
    if socket.peek(&mut first).await? == 0 {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    if !RECORDS.contains(&first[0]) {
        return Err(HandshakeError::NotTls);
    }
    run(socket, &mut connection, None).await?;
    Ok(connection)
}

/// What the first byte of a record of TLS may be.
const RECORDS: RangeInclusive<u8> = 20..=23;

/// Writes what there is to write.
async fn send<S: SideData>(
    socket: &TcpStream,
    connection: &mut ConnectionCommon<S>,
) -> io::Result<()> {
    while connection.wants_write() {
        match connection.write_tls(&mut AtOnce(socket)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => socket.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn run<S: SideData>(
    socket: &TcpStream,
    connection: &mut ConnectionCommon<S>,
    mut share: Option<&mut HandshakeShare>,
) -> Result<(), HandshakeError> {
    let mut has_heard = false;
    loop {
        send(socket, connection).await?;
        if !connection.is_handshaking() {
            return Ok(());
        }
        match connection.read_tls(&mut AtOnce(socket)) {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(bytes) => {
                let processed = match &mut share {
                    Some(share) => {
                        share.received(bytes)?;
                        share.process(connection).await
                    }
                    None => connection.process_new_packets().map(drop),
                };
                if let Err(error) = processed {
                    // The alert that tells the other side why. Whether it is taken changes nothing.
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
