//! Streams over TCP.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::peer::{Connect, Input, Stream};

/// A broker at an address.
#[derive(Debug)]
pub struct Tcp {
    address: SocketAddr,
}

impl Tcp {
    /// The broker at `address`.
    pub fn new(address: SocketAddr) -> Self {
        Self { address }
    }
}

impl Connect for Tcp {
    fn connect(&mut self) -> io::Result<Box<dyn Stream>> {
        let stream = TcpStream::connect_timeout(&self.address, Duration::from_secs(10))?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(Duration::from_secs(30)))?;
        Ok(Box::new(TcpPeer { stream }))
    }
}

struct TcpPeer {
    stream: TcpStream,
}

impl Stream for TcpPeer {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    fn receive(&mut self, within: Duration) -> io::Result<Input> {
        self.stream.set_read_timeout(Some(within.max(Duration::from_millis(1))))?;
        let mut buffer = vec![0; 64 * 1024];
        match self.stream.read(&mut buffer) {
            Ok(0) => Ok(Input::End),
            Ok(n) => {
                buffer.truncate(n);
                Ok(Input::Bytes(buffer))
            }
            Err(e) => match e.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Ok(Input::Nothing),
                io::ErrorKind::Interrupted => Ok(Input::Nothing),
                _ => Ok(Input::End),
            },
        }
    }
}
