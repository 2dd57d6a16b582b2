//! Connections of a node, for tests.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;

use leveret_session::{Peer, Session};

use crate::clock::now;
use crate::connection::Connection;
use crate::node::{Node, Recipient};
use crate::places::ConnectionPlaces;
use crate::proxy::Ends;

/// Clients that are connected and say nothing. No task drives the connections: who tests has their turns run.
pub(super) struct Clients {
    pub(super) connections: Vec<Arc<Connection>>,
    /// The clients' ends, in the same order.
    pub(super) sockets: Vec<TcpStream>,
}

impl Clients {
    /// To be called in a runtime.
    pub(super) fn of(node: &Arc<Node>, count: usize) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let places = ConnectionPlaces::default();
        let (mut connections, mut sockets) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (socket, peer) = listener.accept().unwrap();
            socket.set_nonblocking(true).unwrap();
            let ends = Ends::new(peer, socket.local_addr().unwrap());
            let id = node.new_id();
            let of = Peer {
                address: peer.to_string(),
                local: ends.destination,
                is_loopback: true,
                tls: None,
            };
            let session = Session::new(id, Arc::clone(&node.settings), of, 1, now());
            let place = places.take(peer.ip(), usize::MAX).place.unwrap();
            let connection = Connection::new(id, socket, ends, None, session, place).unwrap();
            let connection = Arc::new(connection);
            node.register(id, Recipient::Connection(Arc::clone(&connection)));
            connections.push(connection);
            sockets.push(client);
        }
        Self { connections, sockets }
    }
}
