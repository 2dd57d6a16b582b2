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

use std::sync::{Mutex, MutexGuard, PoisonError};

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_broker::message::ConnectionId;
use leveret_session::SessionTotals;
use leveret_topology::{ExchangeId, VhostId};

use crate::connection::{Connection, Io, State};

/// Sums over connections.
#[derive(Clone, Debug, Default)]
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

/// Totals of connections that are over.
#[derive(Debug, Default)]
pub struct Ended(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    by_vhost: HashMap<VhostId, Sums, FixedState>,
    /// Those that ended since somebody began to add up; none while nobody does.
    since: Option<Vec<ConnectionId>>,
}

impl Ended {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection is over.
    pub(crate) fn keep(&self, id: ConnectionId, state: &mut State) {
        let mut ended = self.lock();
        if let Some(last) = Connection::last(state) {
            ended.by_vhost.entry(last.vhost).or_default().add(&last.totals, last.io);
            if let Some(since) = &mut ended.since {
                since.push(id);
            }
        }
    }

    /// What was done in a vhost over something that is no connection: its messages count, it does not.
    pub fn keep_messages(&self, vhost: VhostId, totals: &SessionTotals) {
        let messages = SessionTotals {
            connections_opened: 0,
            connections_closed: 0,
            channels_opened: 0,
            channels_closed: 0,
            auth_succeeded: 0,
            auth_failed: 0,
            ..totals.clone()
        };
        self.lock().by_vhost.entry(vhost).or_default().session.add(&messages);
    }

    /// Forgets what was published to exchanges that are gone.
    pub fn retain_exchanges(&self, is_there: impl Fn(ExchangeId) -> bool) {
        for sums in self.lock().by_vhost.values_mut() {
            sums.session.exchanges.retain(|&exchange, _| is_there(exchange));
        }
    }

    /// Somebody begins to add up. One at a time.
    pub fn begin(&self) {
        self.lock().since = Some(Vec::new());
    }

    /// Totals by vhost, and who is in them that was not when it [began](Self::begin).
    pub fn finish(&self) -> (Vec<(VhostId, Sums)>, Vec<ConnectionId>) {
        let mut ended = self.lock();
        let totals = ended.by_vhost.iter().map(|(&vhost, sums)| (vhost, sums.clone())).collect();
        (totals, ended.since.take().unwrap_or_default())
    }
}
