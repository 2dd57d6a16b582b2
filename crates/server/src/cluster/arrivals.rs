//! Clients that connected to another node, which relays their bytes to this one. They enter as if they had connected here.

use std::fmt;
use std::net::TcpStream;

use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::proxy::Ends;

/// What a relayed client speaks, by the listener that it connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayedListener {
    /// AMQP.
    Amqp,
    /// AMQP over TLS.
    Amqps,
    /// The management API.
    Http,
    /// The management API over TLS.
    Https,
    /// Prometheus.
    Metrics,
    /// Prometheus over TLS.
    MetricsTls,
    /// The control socket: whoever could open it there may everything.
    Control,
    /// Nobody's client: the node itself has sessions, whose letters these are.
    Sessions,
}

impl RelayedListener {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Amqp,
        Self::Amqps,
        Self::Http,
        Self::Https,
        Self::Metrics,
        Self::MetricsTls,
        Self::Control,
        Self::Sessions,
    ];

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Amqp => "AMQP",
            Self::Amqps => "AMQP over TLS",
            Self::Http => "the management API",
            Self::Https => "the management API over TLS",
            Self::Metrics => "metrics",
            Self::MetricsTls => "metrics over TLS",
            Self::Control => "the control socket",
            Self::Sessions => "its own sessions",
        }
    }
}

/// A client whose bytes another node relays.
#[derive(Debug)]
pub struct Arrival {
    /// To the other node; what comes and goes is the client's. It does not block.
    pub socket: TcpStream,
    /// The client, and where it connected to; of [sessions](RelayedListener::Sessions) the nodes' own addresses.
    pub ends: Ends,
}

const FULL: &str = "too many wait";

/// Arrivals of a listener that nobody has taken yet: a broker that begins takes none.
const WAITING_MAX: usize = 1024;

/// The side of those who bring clients.
#[derive(Clone)]
pub struct Bringers([Sender<Arrival>; RelayedListener::ALL.len()]);

impl fmt::Debug for Bringers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bringers")
    }
}

/// The side of the listeners, each of which takes its own.
#[derive(Debug)]
pub struct Arrivals([Option<Receiver<Arrival>>; RelayedListener::ALL.len()]);

/// Both sides.
pub fn arrivals() -> (Bringers, Arrivals) {
    let (senders, receivers): (Vec<_>, Vec<_>) =
        RelayedListener::ALL.iter().map(|_| mpsc::channel(WAITING_MAX)).unzip();
    let mut receivers = receivers.into_iter();
    let senders = senders.try_into().unwrap_or_else(|_| unreachable!("one for each"));
    (Bringers(senders), Arrivals(std::array::from_fn(|_| receivers.next())))
}

impl Arrivals {
    /// Those of one listener; None if they are taken. Whoever comes for a listener that never takes its own is sent away.
    pub fn take(&mut self, listener: RelayedListener) -> Option<Receiver<Arrival>> {
        self.0[listener as usize].take()
    }
}

impl Bringers {
    /// Brings a client. One that nobody takes is told in the log, and its connection is closed.
    pub fn bring(&self, listener: RelayedListener, arrival: Arrival) {
        let Err(refused) = self.0[listener as usize].try_send(arrival) else { return };
        let (why, arrival) = match refused {
            mpsc::error::TrySendError::Full(it) => (FULL, it),
            mpsc::error::TrySendError::Closed(it) => ("this node does not serve that", it),
        };
        let peer = arrival.ends.source;
        if listener == RelayedListener::Sessions && why != FULL {
            // It calls again at once, and says itself what it waits for.
            tracing::debug!(%peer, "a node with sessions is sent away: {why}");
            return;
        }
        tracing::warn!(
            from = %peer.ip(), %peer,
            "a client of another node is sent away: it came for {}, and {why}",
            listener.name()
        );
    }
}
