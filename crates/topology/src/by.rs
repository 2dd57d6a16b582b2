//! Who changes names, and from where: what events say of it.

use core::net::SocketAddr;

use crate::connection::ConnectionId;
use crate::event::Event;

/// Who has a name changed. The broker itself has no name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct By {
    /// The user.
    pub user: Box<str>,
    /// From where, if a client asked over the network and somebody wants to be told.
    pub origin: Option<Origin>,
}

/// Where a change comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The client's address.
    pub peer: SocketAddr,
    /// The AMQP connection, if it is one.
    pub connection: Option<Link>,
}

/// An AMQP connection as events name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub id: ConnectionId,
    /// The end that is the broker's.
    pub local: SocketAddr,
}

impl By {
    /// A user, from nowhere in particular.
    pub fn user(user: &str) -> Self {
        Self { user: user.into(), origin: None }
    }

    /// The event says whose doing it was. RabbitMQ tells the user alone; the names of the other headers are those of
    /// its `connection.created` and `user.authentication.success`.
    pub fn did(&self, event: Event) -> Event {
        let event = event.by(&self.user);
        let Some(Origin { peer, connection }) = &self.origin else { return event };
        let event = event
            .with("peer_host", &*peer.ip().to_string())
            .with("peer_port", i64::from(peer.port()));
        let Some(Link { id, local }) = connection else { return event };
        event.with("connection", &*id.pid()).with("connection_name", &*format!("{peer} -> {local}"))
    }
}
