//! Connections within one machine are not paced.
//!
//! Some systems send by BBR, which spreads what it sends over time to find a path's bottleneck. Within one
//! machine there is none, and each spread burst costs a timer, a wake-up and an answer: two thirds more CPU
//! for messages of 1 KiB. A connection that began paced stays so, whatever is asked of it later. So all
//! begin without, and those from elsewhere are given what the system sends by before they send anything.

use std::io;

use socket2::{Domain, SockAddr, SockRef, Socket, Type};

/// What does not pace, best first. The second is in every kernel.
const PLAIN: [&[u8]; 2] = [b"cubic", b"reno"];

/// What a listener's connections send by.
#[derive(Debug)]
pub(crate) struct Pacing {
    /// The system's congestion control; none if it is plain, or nothing else can be had.
    usual: Option<Vec<u8>>,
}

impl Pacing {
    /// Makes a listener's connections begin without.
    pub(crate) fn of(listener: SockRef<'_>) -> Self {
        let usual = usual().filter(|usual| !PLAIN.contains(&&usual[..]));
        let is_plain = || PLAIN.iter().any(|plain| listener.set_tcp_congestion(plain).is_ok());
        Self { usual: usual.filter(|_| is_plain()) }
    }

    /// A connection was accepted: one from elsewhere sends as the system does.
    pub(crate) fn accepted(&self, socket: &Socket) -> io::Result<()> {
        match &self.usual {
            Some(usual) if !is_local(socket) => socket.set_tcp_congestion(usual),
            _ => Ok(()),
        }
    }
}

/// The name of the system's congestion control.
fn usual() -> Option<Vec<u8>> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).ok()?;
    let name = socket.tcp_congestion().ok()?;
    Some(name.into_iter().take_while(|&octet| octet != 0).collect())
}

/// Whether both ends are of this machine.
fn is_local(socket: &Socket) -> bool {
    let ip = |address: io::Result<SockAddr>| Some(address.ok()?.as_socket()?.ip());
    ip(socket.peer_addr()).is_some_and(|peer| Some(peer) == ip(socket.local_addr()))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn sends_by(socket: &Socket) -> Vec<u8> {
        let name = socket.tcp_congestion().unwrap();
        name.into_iter().take_while(|&octet| octet != 0).collect()
    }

    /// Whatever the system's own is: what comes from this machine is plain, what does not would get it back.
    #[test]
    fn local_connections_are_plain() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut pacing = Pacing::of(SockRef::from(&listener));
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = Socket::from(listener.accept().unwrap().0);
        pacing.accepted(&socket).unwrap();
        assert!(PLAIN.contains(&&sends_by(&socket)[..]), "{:?}", sends_by(&socket));
        assert!(is_local(&socket));
        // From elsewhere: 127.0.0.2 is not the address that was connected to.
        pacing.usual = Some(b"reno".to_vec());
        let client = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        client.bind(&SockAddr::from(std::net::SocketAddr::from(([127, 0, 0, 2], 0)))).unwrap();
        client.connect(&listener.local_addr().unwrap().into()).unwrap();
        let socket = Socket::from(listener.accept().unwrap().0);
        assert!(!is_local(&socket));
        pacing.accepted(&socket).unwrap();
        assert_eq!(sends_by(&socket), b"reno");
    }
}
