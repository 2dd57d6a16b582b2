//! Writing a connection's socket: what there is, or a piece of it if there is very much.
//!
//! Hot path: one vectored write, as a rule.
//!
//! Very much are large bodies alone: everything else that a session sends is held back by its output's limit. A client on
//! the same machine reads a large body about as fast as it is written, and its socket is never full. Written whole, a
//! hundred megabytes would take a thread for as long as that, and ten of them everybody's threads in turn.

use std::io::{self, IoSlice, Write as _};
use std::net::TcpStream;

use leveret_amqp::outbuf::OutBuf;

/// Output of so many bytes is written in one turn, if the socket takes it: twice what a session's output may have before
/// deliveries wait.
const WHOLE: usize = 2 << 20;

/// Of more a turn writes so much, which takes some hundred microseconds: as much as a turn reads.
const PIECE: usize = 256 << 10;

/// Pieces of memory that are written at once.
pub(crate) const SLICES: usize = 64;

/// Bytes that a turn may write of an output of so many.
pub(crate) fn most(bytes: usize) -> usize {
    if bytes <= WHOLE { bytes } else { PIECE }
}

/// Writes at most so many bytes. Whether the socket takes no more.
pub(crate) fn write(mut socket: &TcpStream, out: &mut OutBuf, most: usize) -> io::Result<bool> {
    let mut left = most.min(out.len());
    while left > 0 {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let filled = out.slices(&mut slices, left);
        match socket.write_vectored(&slices[..filled]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(taken) => {
                out.advance(taken);
                left -= taken;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::TcpListener;

    use bytes::Bytes;

    use super::*;

    fn ends() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (listener.accept().unwrap().0, client)
    }

    fn body(len: usize) -> Bytes {
        (0..len).map(|at| (at * 7 / 5) as u8).collect::<Vec<_>>().into()
    }

    /// The client takes all that comes, and the socket is never full (it is a blocking one): still no turn writes more
    /// than its piece, and all comes in order.
    #[test]
    fn much_is_written_in_pieces() {
        let (socket, mut client) = ends();
        let reading = std::thread::spawn(move || {
            let mut came = Vec::new();
            client.read_to_end(&mut came).map(|_| came)
        });
        let mut out = OutBuf::new();
        out.put_body(1, &body(5 << 20), 0);
        out.put_body(1, &body(1 << 20), 128 << 10);
        let mut rest = OutBuf::new();
        rest.put_body(1, &body(5 << 20), 0);
        rest.put_body(1, &body(1 << 20), 128 << 10);
        let (whole, mut turns) = (rest.take_rest(), 0);
        while !out.is_empty() {
            let (before, most) = (out.len(), most(out.len()));
            assert!(most == if before > WHOLE { PIECE } else { before });
            assert!(!write(&socket, &mut out, most).unwrap());
            assert_eq!(before - out.len(), most);
            turns += 1;
        }
        assert_eq!(turns, (whole.len() - WHOLE).div_ceil(PIECE) + 1);
        drop(socket);
        assert!(reading.join().unwrap().unwrap() == whole);
    }

    #[test]
    fn a_full_socket_is_told() {
        let (socket, client) = ends();
        socket.set_nonblocking(true).unwrap();
        let mut out = OutBuf::new();
        while !write(&socket, &mut out, usize::MAX).unwrap() {
            out.put_body(1, &body(1 << 20), 0);
        }
        assert!(!out.is_empty());
        drop(client);
    }
}
