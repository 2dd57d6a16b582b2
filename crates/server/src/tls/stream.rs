//! The bytes of an established TLS connection, read and written in its turns.
//!
//! The socket is read in blocks as large as without TLS, so that records cost no system call each. What was
//! decrypted is given out at once: between turns rustls keeps part of a record at most, and on the way out
//! no more than [`UNSENT_MAX`] that the socket did not take.

use std::io::{self, BufRead as _, Write as _};
use std::net::TcpStream;

use leveret_amqp::outbuf::OutBuf;
use leveret_session::TlsFacts;
use rustls::{ProtocolVersion, ServerConnection};

use super::certificate::{self, LoginFrom};
use super::suites;
use crate::writing::SLICES;

/// Encrypted bytes that wait for the socket before more are encrypted.
const UNSENT_MAX: usize = 64 << 10;

/// Encrypted bytes asked of a socket at once.
const READ_BYTES: usize = 64 << 10;

/// An established connection, without its socket.
#[derive(Debug)]
pub struct TlsStream {
    connection: ServerConnection,
    /// The client said that it sends nothing more.
    has_ended: bool,
}

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// Something, perhaps not a whole record. `drained`: the socket had no more.
    Some {
        /// The socket had no more.
        drained: bool,
    },
    /// The socket has nothing now.
    Nothing,
    /// The client sends nothing more.
    End,
}

impl TlsStream {
    /// After the handshake.
    pub fn new(mut connection: ServerConnection) -> Self {
        connection.set_buffer_limit(Some(UNSENT_MAX));
        Self { connection, has_ended: false }
    }

    /// What was agreed on, and what the client showed, in RabbitMQ's words.
    pub fn facts(&self, login: LoginFrom) -> TlsFacts {
        let connection = &self.connection;
        let [key_exchange, cipher, hash] =
            connection.negotiated_cipher_suite().map_or(["", "", ""], suites::words);
        let shown = connection.peer_certificates().and_then(|chain| chain.first());
        TlsFacts {
            protocol: match connection.protocol_version() {
                Some(ProtocolVersion::TLSv1_3) => "tlsv1.3",
                Some(ProtocolVersion::TLSv1_2) => "tlsv1.2",
                _ => "",
            }
            .into(),
            key_exchange: key_exchange.into(),
            cipher: cipher.into(),
            hash: hash.into(),
            certificate: shown.and_then(|der| certificate::facts(der, login)),
        }
    }

    /// What was decrypted with the handshake's last bytes.
    pub fn early(&mut self) -> io::Result<Vec<u8>> {
        let mut plain = Vec::new();
        self.take(&mut plain)?;
        Ok(plain)
    }

    /// Reads the socket once, by way of `cipher`, and puts what it decrypts behind `plain`.
    pub fn read(
        &mut self,
        socket: &TcpStream,
        cipher: &mut Vec<u8>,
        plain: &mut Vec<u8>,
    ) -> io::Result<Read> {
        if self.has_ended {
            return Ok(Read::End);
        }
        cipher.clear();
        cipher.reserve(READ_BYTES);
        let room = cipher.capacity();
        let read = match rustix::io::read(socket, rustix::buffer::spare_capacity(cipher)) {
            Ok(0) => return Ok(Read::End),
            Ok(read) => read,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(Read::Nothing),
            Err(error) => return Err(error.into()),
        };
        let mut rest = cipher.as_slice();
        while !rest.is_empty() && !self.has_ended {
            self.connection.read_tls(&mut rest)?;
            let state = self.connection.process_new_packets().map_err(|error| {
                // The alert that tells the client why. Whether it is taken changes nothing.
                let _ = self.connection.write_tls(&mut &*socket);
                io::Error::new(io::ErrorKind::InvalidData, error)
            })?;
            self.has_ended = state.peer_has_closed();
            self.take(plain)?;
        }
        // The end is told by the next read, after the bytes that came before it.
        Ok(Read::Some { drained: read < room && !self.has_ended })
    }

    /// Takes what is decrypted.
    fn take(&mut self, plain: &mut Vec<u8>) -> io::Result<()> {
        let mut reader = self.connection.reader();
        loop {
            let taken = match reader.fill_buf() {
                Ok([]) => return Ok(()),
                Ok(bytes) => {
                    plain.extend_from_slice(bytes);
                    bytes.len()
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // The socket ended without a word: that is seen when it is read.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(error),
            };
            reader.consume(taken);
        }
    }

    /// Whether there are encrypted bytes that the socket did not take.
    pub fn has_unsent(&self) -> bool {
        self.connection.wants_write()
    }

    /// Encrypts and writes at most so many bytes. Whether the socket takes no more.
    pub fn write(
        &mut self,
        mut socket: &TcpStream,
        out: &mut OutBuf,
        most: usize,
    ) -> io::Result<bool> {
        let mut left = most.min(out.len());
        loop {
            if left > 0 {
                let mut slices = [io::IoSlice::new(&[]); SLICES];
                let filled = out.slices(&mut slices, left);
                let taken = self.connection.writer().write_vectored(&slices[..filled])?;
                out.advance(taken);
                left -= taken;
            }
            while self.connection.wants_write() {
                match self.connection.write_tls(&mut socket) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            if left == 0 {
                return Ok(false);
            }
        }
    }

    /// Tells the client that nothing more comes, as far as the socket takes it.
    pub fn close(&mut self, mut socket: &TcpStream) {
        self.connection.send_close_notify();
        while self.connection.wants_write() {
            if self.connection.write_tls(&mut socket).is_err() {
                return;
            }
        }
    }
}
