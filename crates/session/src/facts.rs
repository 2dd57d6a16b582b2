//! What listings show of a connection.

use leveret_amqp::table::{RawTable, Table};
use leveret_broker::message::ConnectionId;
use leveret_queue::Time;

use crate::channel::Mode;
use crate::session::Session;

/// A connection, for `list_connections`.
#[derive(Clone, Debug)]
pub struct ConnectionFacts {
    /// Its name inside the broker.
    pub id: ConnectionId,
    /// The other end of the socket.
    pub peer: String,
    /// Empty until it has logged in.
    pub user: String,
    /// Empty until it is open.
    pub vhost: String,
    /// RabbitMQ's word: `running`, `blocked`, `closing`, ...
    pub state: &'static str,
    /// `PLAIN`, ...; empty until it has logged in.
    pub mechanism: &'static str,
    /// Negotiated, in bytes.
    pub frame_max: u32,
    /// Negotiated.
    pub channel_max: u16,
    /// When it was accepted.
    pub connected: Time,
    /// As the client gave them.
    pub client_properties: Table,
    /// Its channels, by number.
    pub channels: Vec<ChannelFacts>,
}

/// A channel, for `list_channels`.
#[derive(Clone, Debug)]
pub struct ChannelFacts {
    /// Its number.
    pub number: u16,
    /// Prefetch of consumers to come.
    pub prefetch: u16,
    /// Prefetch of the channel as a whole.
    pub global_prefetch: u16,
    /// Deliveries that wait for an ack.
    pub unacked: usize,
    /// Whether it has chosen confirms.
    pub confirms: bool,
    /// Messages that wait for a confirm.
    pub unconfirmed: u64,
    /// Whether it has chosen transactions.
    pub transactional: bool,
    /// Messages that wait for a commit.
    pub uncommitted: usize,
    /// Acks that wait for a commit.
    pub acks_uncommitted: usize,
    /// Consumers.
    pub consumers: usize,
    /// Whether it waits for the client's `channel.close-ok`.
    pub is_closing: bool,
}

impl Session {
    /// What listings show. Not for hot paths: it copies.
    pub fn facts(&self) -> ConnectionFacts {
        let core = &self.core;
        let identity = &core.identity;
        ConnectionFacts {
            id: core.id,
            peer: core.peer.address.clone(),
            user: identity.user.to_string(),
            vhost: identity.vhost_name.to_string(),
            state: core.state_name(),
            mechanism: identity.mechanism,
            frame_max: core.frame_max,
            channel_max: core.channel_max,
            connected: identity.connected,
            client_properties: RawTable::unchecked(&identity.client_properties)
                .to_table()
                .unwrap_or_default(),
            channels: self
                .channels
                .iter()
                .map(|channel| {
                    let unconfirmed = match &channel.mode {
                        Mode::Confirm(confirms) => confirms.outstanding(),
                        _ => 0,
                    };
                    let (uncommitted, acks_uncommitted) = match &channel.mode {
                        Mode::Tx(tx) => tx.uncommitted(),
                        _ => (0, 0),
                    };
                    ChannelFacts {
                        number: channel.number,
                        prefetch: channel.prefetch,
                        global_prefetch: channel.global_prefetch,
                        unacked: channel.unacked.len(),
                        confirms: matches!(channel.mode, Mode::Confirm(_)),
                        unconfirmed,
                        transactional: matches!(channel.mode, Mode::Tx(_)),
                        uncommitted,
                        acks_uncommitted,
                        consumers: channel.tags.len() + usize::from(channel.direct_reply.is_some()),
                        is_closing: channel.is_closing,
                    }
                })
                .collect(),
        }
    }
}
