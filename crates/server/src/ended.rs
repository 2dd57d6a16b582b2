//! What connections counted that are over.
//!
//! A node's totals are the sums over its connections, and this. Who adds them up looks at one connection
//! after the other while others end, and must count none twice or not at all, or a total goes back:
//!
//! 1. [`Ended::begin`]: from now on it is remembered who ends.
//! 2. Each connection of the node is looked at; those that say that they were counted are passed over.
//! 3. [`Ended::finish`]: the totals here, and who ended since 1. Those were counted here, so what was
//!    seen of them in 2 does not count.
//!
//! A connection gets here under its own lock, before the node forgets it.

use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_broker::message::ConnectionId;
use leveret_session::{Passed, SessionTotals};
use leveret_topology::{ExchangeId, QueueId, Topology, VhostId};
use serde::{Deserialize, Serialize};

use crate::connection::{Connection, ConnectionState, Io};
use crate::locks::{Guard, Rank, Ranked};

/// Sums over connections.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sums {
    /// What sessions counted.
    pub session: SessionTotals,
    /// What went through their sockets.
    pub io: Io,
}

impl Sums {
    /// Adds a connection.
    pub fn add(&mut self, session: &SessionTotals, io: Io) {
        self.session.add(session);
        self.io.recv_oct += io.recv_oct;
        self.io.recv_cnt += io.recv_cnt;
        self.io.send_oct += io.send_oct;
        self.io.send_cnt += io.send_cnt;
        self.io.send_pend += io.send_pend;
    }
}

/// Messages by the exchange they were published to and the queue they were routed to.
pub type Passages = HashMap<(ExchangeId, QueueId), u64, FixedState>;

/// Pairs that are kept of connections that are over; more are not, until some of these are gone.
const PASSAGES_MAX: usize = 65_536;

/// What connections that are over left.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Sums.
    pub by_vhost: Vec<(VhostId, Sums)>,
    /// What passed from which exchange to which queue.
    pub passages: Arc<Passages>,
}

/// Totals of connections that are over.
#[derive(Debug)]
pub struct Ended(Ranked<EndedSums>);

impl Default for Ended {
    fn default() -> Self {
        Self(Ranked::new(Rank::Ended, EndedSums::default()))
    }
}

/// Sums over the connections that ended.
#[derive(Debug, Default)]
struct EndedSums {
    by_vhost: HashMap<VhostId, Sums, FixedState>,
    /// Copied only while somebody looks at what it was.
    passages: Arc<Passages>,
    /// Routes as they were when what is gone was forgotten last.
    generation: u64,
    /// Those that ended since somebody began to add up; none while nobody does.
    since: Option<Vec<ConnectionId>>,
}

impl EndedSums {
    fn pass(&mut self, passed: impl ExactSizeIterator<Item = Passed>) {
        if passed.len() == 0 {
            return;
        }
        let passages = Arc::make_mut(&mut self.passages);
        for (pair, messages) in passed {
            if passages.len() < PASSAGES_MAX || passages.contains_key(&pair) {
                *passages.entry(pair).or_default() += messages;
            }
        }
    }
}

impl Ended {
    fn lock(&self) -> Guard<'_, EndedSums> {
        self.0.lock()
    }

    /// The connection is over.
    pub(crate) fn keep(&self, id: ConnectionId, state: &mut ConnectionState) {
        let mut ended = self.lock();
        if let Some(last) = Connection::last(state) {
            ended.by_vhost.entry(last.vhost).or_default().add(&last.totals, last.io);
            ended.pass(last.passed.into_iter());
            if let Some(since) = &mut ended.since {
                since.push(id);
            }
        }
    }

    /// Connections are over that another node counted: what it told of them last.
    pub fn keep_of_node(&self, totals: &Totals) {
        let mut ended = self.lock();
        for (vhost, sums) in &totals.by_vhost {
            ended.by_vhost.entry(*vhost).or_default().add(&sums.session, sums.io);
        }
        ended.pass(totals.passages.iter().map(|(pair, messages)| (*pair, *messages)));
    }

    /// What was done in a vhost over something that is no connection: its messages count, it does not.
    pub fn keep_messages(&self, vhost: VhostId, totals: &SessionTotals, passed: &[Passed]) {
        let messages = SessionTotals {
            connections_opened: 0,
            connections_closed: 0,
            channels_opened: 0,
            channels_closed: 0,
            auth_succeeded: 0,
            auth_failed: 0,
            ..totals.clone()
        };
        let mut ended = self.lock();
        ended.by_vhost.entry(vhost).or_default().session.add(&messages);
        ended.pass(passed.iter().copied());
    }

    /// Forgets what was published to exchanges that are gone, and what passed to queues that are.
    pub fn forget_gone(&self, topology: &Topology) {
        let mut ended = self.lock();
        if std::mem::replace(&mut ended.generation, topology.generation()) == topology.generation()
        {
            return;
        }
        let is_exchange = |id: ExchangeId| topology.exchange_by_id(id).is_some();
        for sums in ended.by_vhost.values_mut() {
            sums.session.exchanges.retain(|&exchange, _| is_exchange(exchange));
        }
        let is_there = |(exchange, queue): &(ExchangeId, QueueId)| {
            is_exchange(*exchange) && topology.queue_by_id(*queue).is_some()
        };
        if !ended.passages.keys().all(is_there) {
            Arc::make_mut(&mut ended.passages).retain(|pair, _| is_there(pair));
        }
    }

    /// Somebody begins to add up. One at a time.
    pub fn begin(&self) {
        self.lock().since = Some(Vec::new());
    }

    /// Totals, and who is in them that was not when it [began](Self::begin).
    pub fn finish(&self) -> (Totals, Vec<ConnectionId>) {
        let mut ended = self.lock();
        let by_vhost = ended.by_vhost.iter().map(|(&vhost, sums)| (vhost, sums.clone())).collect();
        let totals = Totals { by_vhost, passages: Arc::clone(&ended.passages) };
        (totals, ended.since.take().unwrap_or_default())
    }
}
