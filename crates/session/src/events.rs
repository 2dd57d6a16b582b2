//! What a connection tells of itself: it opened, its channels came and went, it is over.
//!
//! Under RabbitMQ's names and with its facts; addresses and tables are plain where RabbitMQ prints Erlang
//! terms.

use core::net::SocketAddr;

use leveret_amqp::table::{RawTable, Table, Value};
use leveret_topology::{By, Event, Link, Origin};

use crate::channel::Channel;
use crate::core::{Context, Core};

/// The protocol, as RabbitMQ prints it.
const PROTOCOL: &str = "{0,9,1}";

impl Core {
    /// Connections of the node's own are nobody's business.
    fn tells(&self, cx: &Context<'_>) -> bool {
        self.totals.connections_opened > 0 && cx.topology.wants_events()
    }

    /// Who changes names here. From where is put together only for those who are told.
    pub(crate) fn by(&self, cx: &Context<'_>) -> Box<By> {
        let mut by = By::user(&self.identity.user);
        if cx.topology.wants_events() {
            let is_clients = self.totals.connections_opened > 0;
            let connection = is_clients.then_some(Link { id: self.id, local: self.peer.local });
            // An operator on the node's own machine has no address.
            let peer: Option<SocketAddr> = self.peer.address.parse().ok();
            by.origin = peer.map(|peer| Origin { peer, connection });
        }
        by.into()
    }

    /// The connection is open.
    pub(crate) fn tell_opened(&self, cx: &mut Context<'_>) {
        if !self.tells(cx) {
            return;
        }
        let identity = &self.identity;
        let tls = self.peer.tls.as_deref();
        let certificate = tls.and_then(|tls| tls.certificate.as_ref());
        let client: Option<SocketAddr> = self.peer.address.parse().ok();
        let address =
            |of: Option<SocketAddr>| of.map_or_else(String::new, |it| it.ip().to_string());
        let port = |of: Option<SocketAddr>| of.map_or(0, |it| i64::from(it.port()));
        let of_tls = |fact: fn(&crate::settings::TlsFacts) -> &str| tls.map_or("", fact);
        let of_certificate =
            |fact: fn(&crate::settings::CertificateFacts) -> &str| certificate.map_or("", fact);
        let local = Some(self.peer.local);
        let event = self
            .about("connection.created", cx)
            .with("type", "network")
            .with("host", &*address(local))
            .with("port", port(local))
            .with("peer_host", &*address(client))
            .with("peer_port", port(client))
            .with("ssl", tls.is_some())
            .with("ssl_protocol", of_tls(|it| &it.protocol))
            .with("ssl_key_exchange", of_tls(|it| &it.key_exchange))
            .with("ssl_cipher", of_tls(|it| &it.cipher))
            .with("ssl_hash", of_tls(|it| &it.hash))
            .with("peer_cert_subject", of_certificate(|it| &it.subject))
            .with("peer_cert_issuer", of_certificate(|it| &it.issuer))
            .with("peer_cert_validity", of_certificate(|it| &it.validity))
            .with("auth_mechanism", identity.mechanism)
            .with("protocol", PROTOCOL)
            .with("user", &*identity.user)
            .with("vhost", &*identity.vhost_name)
            .with("timeout", i64::from(self.timers.heartbeat_s()))
            .with("frame_max", i64::from(self.frame_max))
            .with("channel_max", i64::from(self.channel_max))
            .with("connected_at", identity.connected.ms() as i64)
            .by(&identity.user);
        cx.outbox.events.push(event);
    }

    /// The connection is over.
    pub(crate) fn tell_closed(&self, cx: &mut Context<'_>) {
        if self.tells(cx) {
            let event = self.about("connection.closed", cx);
            cx.outbox.events.push(event);
        }
    }

    fn about(&self, name: &'static str, cx: &Context<'_>) -> Event {
        let properties = RawTable::unchecked(&self.identity.client_properties).to_table();
        let properties: Table = properties.unwrap_or_default();
        let event = Event::new(name)
            .with("name", &*self.name())
            .with("pid", &*self.id.pid())
            .with("node", cx.topology.event_node());
        let event = match properties.get("connection_name").and_then(Value::as_str) {
            Some(own) => event.with("user_provided_name", own),
            None => event,
        };
        event.with("client_properties", properties)
    }

    /// A channel is open.
    pub(crate) fn tell_channel_opened(&self, number: u16, cx: &mut Context<'_>) {
        if !self.tells(cx) {
            return;
        }
        let identity = &self.identity;
        let event = Event::new("channel.created")
            .with("name", &*format!("{} ({number})", self.name()))
            .with("number", i64::from(number))
            .with("pid", &*self.id.channel_pid(number))
            .with("connection", &*self.id.pid())
            .with("user", &*identity.user)
            .with("vhost", &*identity.vhost_name)
            .by(&identity.user);
        cx.outbox.events.push(event);
    }

    /// A channel is about to be over.
    pub(crate) fn tell_channel_closed(&self, channel: &Channel, cx: &mut Context<'_>) {
        if !self.tells(cx) || channel.is_closing {
            return;
        }
        let event = Event::new("channel.closed")
            .with("pid", &*self.id.channel_pid(channel.number))
            .with("consumer_count", channel.tags.len() as i64)
            .by(&self.identity.user);
        cx.outbox.events.push(event);
    }

    /// RabbitMQ's name of the connection: `127.0.0.1:50000 -> 127.0.0.1:5672`.
    pub(crate) fn name(&self) -> String {
        format!("{} -> {}", self.peer.address, self.peer.local)
    }
}
