//! What listings and statistics show of a connection.

use std::borrow::Cow;
use std::sync::Arc;

use leveret_amqp::table::{RawTable, Table};
use leveret_broker::message::ConnectionId;
use leveret_queue::Time;
use leveret_topology::{ExchangeId, QueueId, VhostId};
use serde::{Deserialize, Serialize};

use crate::channel::{Channel, Mode};
use crate::connection::Stage;
use crate::session::Session;
use crate::settings::TlsFacts;
use crate::totals::{ChannelTotals, ExchangeTotals, SessionTotals, TakenTotals};

/// A connection, for `list_connections`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConnectionFacts {
    /// Its name inside the broker.
    pub id: ConnectionId,
    /// The other end of the socket.
    pub peer: String,
    /// How it is encrypted, if it is.
    pub tls: Option<Arc<TlsFacts>>,
    /// Empty until it has logged in.
    pub user: String,
    /// Empty until it is open.
    pub vhost: String,
    /// RabbitMQ's word: `running`, `blocked`, `closing`, ...
    pub state: Cow<'static, str>,
    /// `PLAIN`, ...; empty until it has logged in.
    pub mechanism: Cow<'static, str>,
    /// Negotiated, in bytes.
    pub frame_max: u32,
    /// Negotiated.
    pub channel_max: u16,
    /// Negotiated, in seconds; 0 for none.
    pub heartbeat_s: u16,
    /// When it was accepted.
    pub connected: Time,
    /// As the client gave them.
    #[serde(with = "leveret_topology::table_bytes")]
    pub client_properties: Table,
    /// Its channels, by number.
    pub channels: Vec<ChannelFacts>,
}

/// What changes of a connection while it lives.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConnectionNumbers {
    /// As in [`ConnectionFacts::state`].
    pub state: Cow<'static, str>,
    /// Whether it has a vhost, and was not told to close.
    pub is_open: bool,
    /// Where it is, once it is open.
    pub vhost: VhostId,
    /// What its client waits for, if it is not read now: `alarm`, `disk`, `answer` or `output`.
    pub waits_for: Option<Cow<'static, str>>,
    /// Its channels, by number.
    pub channels: Vec<ChannelFacts>,
    /// Messages it published, by exchange and by queue they were routed to, in that order.
    pub passed: Vec<Passed>,
    /// Of all channels, those that are closed too.
    pub totals: SessionTotals,
}

/// Messages by the exchange they were published to and the queue they were routed to.
pub type Passed = ((ExchangeId, QueueId), u64);

/// A channel, for `list_channels`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChannelFacts {
    /// Its number.
    pub number: u16,
    /// Prefetch of consumers to come.
    pub prefetch: u16,
    /// Prefetch of the channel as a whole.
    pub global_prefetch: u16,
    /// Deliveries that wait for an ack.
    pub unacked: usize,
    /// Since when the oldest of them waits, to the second.
    pub oldest_unacked: Option<Time>,
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
    /// What was counted.
    pub totals: ChannelTotals,
    /// What was published, by exchange.
    pub exchanges: Vec<(ExchangeId, ExchangeTotals)>,
    /// What was taken, by queue, in the order of these.
    pub taken: Vec<(QueueId, TakenTotals)>,
}

impl Session {
    /// What listings show. Not for hot paths: it copies.
    pub fn facts(&self) -> ConnectionFacts {
        let core = &self.core;
        let identity = &core.identity;
        ConnectionFacts {
            id: core.id,
            peer: core.peer.address.clone(),
            tls: core.peer.tls.clone(),
            user: identity.user.to_string(),
            vhost: identity.vhost_name.to_string(),
            state: core.state_name().into(),
            mechanism: identity.mechanism.into(),
            frame_max: core.frame_max,
            channel_max: core.channel_max,
            heartbeat_s: core.timers.heartbeat_s(),
            connected: identity.connected,
            client_properties: RawTable::unchecked(&identity.client_properties)
                .to_table()
                .unwrap_or_default(),
            channels: self.channel_facts(),
        }
    }

    /// Who logged in; empty before.
    pub fn user(&self) -> &str {
        &self.core.identity.user
    }

    /// The vhost that it is connected to; empty before.
    pub fn vhost(&self) -> &str {
        &self.core.identity.vhost_name
    }

    /// What statistics are made of. Cheaper than [`facts`](Self::facts): it copies no names.
    pub fn numbers(&self) -> ConnectionNumbers {
        let core = &self.core;
        let channels = self.channel_facts();
        let mut totals = SessionTotals::clone(&core.totals);
        for channel in channels.iter() {
            totals.channels += channel.totals;
            for (exchange, counted) in &channel.exchanges {
                *totals.exchanges.entry(*exchange).or_default() += *counted;
            }
        }
        ConnectionNumbers {
            state: core.state_name().into(),
            is_open: core.stage == Stage::Running,
            vhost: core.identity.vhost,
            waits_for: self.waits_for().map(Cow::Borrowed),
            channels,
            passed: core.cache.as_ref().map_or_else(Vec::new, |cache| cache.passed()),
            totals,
        }
    }

    fn waits_for(&self) -> Option<&'static str> {
        let core = &self.core;
        match core.stage {
            Stage::Running if core.is_blocked && !core.ends_bodies() => Some("alarm"),
            Stage::Running if core.pauses > 0 => Some("disk"),
            Stage::Running if core.lacks_names => Some("names"),
            Stage::Running if core.is_slowed => Some("rate"),
            Stage::Running if core.unfinished.waits() => Some("room"),
            Stage::Running if core.waiting.is_some() => Some("answer"),
            Stage::Running if !self.wants_input() => Some("output"),
            _ => None,
        }
    }

    fn channel_facts(&self) -> Vec<ChannelFacts> {
        let mut all: Vec<_> = self.channels.iter().map(|it| self.one_channel(it)).collect();
        for (_, consumer) in self.core.consumers.iter() {
            let found = all.binary_search_by_key(&consumer.channel, |channel| channel.number);
            let Some(channel) = found.ok().and_then(|at| all.get_mut(at)) else { continue };
            channel.totals.taken += consumer.taken();
            channel.taken.push((consumer.queue, consumer.taken()));
        }
        for channel in &mut all {
            channel.taken.sort_unstable_by_key(|(queue, _)| *queue);
            channel.taken.dedup_by(|(next, more), (queue, totals)| {
                let is_same = next == queue;
                if is_same {
                    *totals += *more;
                }
                is_same
            });
        }
        all
    }

    fn one_channel(&self, channel: &Channel) -> ChannelFacts {
        let unconfirmed = match &channel.mode {
            Mode::Confirm(confirms) => confirms.outstanding(),
            _ => 0,
        };
        let (uncommitted, acks_uncommitted) = match &channel.mode {
            Mode::Tx(tx) => tx.uncommitted(),
            _ => (0, 0),
        };
        let connected = self.core.identity.connected;
        let oldest = channel.unacked.oldest();
        ChannelFacts {
            number: channel.number,
            prefetch: channel.prefetch,
            global_prefetch: channel.global_prefetch,
            unacked: channel.unacked.len(),
            oldest_unacked: oldest.map(|it| connected.after_ms(u64::from(it.delivered_s) * 1000)),
            confirms: matches!(channel.mode, Mode::Confirm(_)),
            unconfirmed,
            transactional: matches!(channel.mode, Mode::Tx(_)),
            uncommitted,
            acks_uncommitted,
            consumers: channel.tags.len() + usize::from(channel.direct_reply.is_some()),
            is_closing: channel.is_closing,
            totals: channel.counted(),
            exchanges: channel.published.iter().collect(),
            taken: channel.taken.iter().collect(),
        }
    }
}
