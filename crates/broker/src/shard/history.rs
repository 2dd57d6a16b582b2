//! What recent-history exchanges remember, for queues bound later.
//!
//! RabbitMQ's plugin keeps the last messages in its metadata store; here the shard of
//! [`Topology::history_home`] keeps them, so routing stays free of messages.

use std::collections::VecDeque;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_log::Log;
use leveret_queue::Time;
use leveret_topology::{ExchangeId, QueueId, Topology};

use super::Shard;
use crate::message::{Outbox, Publish, ToShard};

/// The last messages of each recent-history exchange kept here, oldest first.
#[derive(Debug, Default)]
pub(super) struct Histories {
    by_exchange: HashMap<ExchangeId, VecDeque<Publish>, FixedState>,
    /// What all of them take.
    bytes: u64,
}

impl Histories {
    /// Adds a message and drops what exceeds `limit`.
    fn remember(&mut self, exchange: ExchangeId, limit: u32, message: Publish) {
        let message = Publish { message: message.message.detached(), ..message };
        let history = self.by_exchange.entry(exchange).or_default();
        self.bytes += taken_by(&message);
        history.push_back(message);
        while history.len() > limit as usize {
            self.bytes -= history.pop_front().map_or(0, |message| taken_by(&message));
        }
    }

    pub(super) fn forget(&mut self, exchange: ExchangeId) {
        let gone = self.by_exchange.remove(&exchange);
        self.bytes -= gone.iter().flatten().map(taken_by).sum::<u64>();
    }

    /// Memory that they take, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn all(&self, exchange: ExchangeId) -> impl Iterator<Item = &Publish> {
        self.by_exchange.get(&exchange).into_iter().flatten()
    }
}

fn taken_by(message: &Publish) -> u64 {
    size_of::<Publish>() as u64 + message.message.len()
}

impl<L: Log> Shard<L> {
    /// A message passed an exchange. It may have been on its way while the exchange was deleted, and what is
    /// kept for one that is gone would never be forgotten.
    pub(super) fn remember(
        &mut self,
        exchange: ExchangeId,
        limit: u32,
        message: Publish,
        topology: &Topology,
    ) {
        if topology.exchange_by_id(exchange).is_some() {
            self.histories.remember(exchange, limit, message);
        }
    }

    /// Sends a newly bound queue what its exchange remembers.
    pub(super) fn replay(
        &mut self,
        exchange: ExchangeId,
        queue: QueueId,
        topology: &Topology,
        now: Time,
        out: &mut Outbox,
    ) {
        let publishes: Vec<Publish> = self
            .histories
            .all(exchange)
            .map(|message| Publish { targets: [queue].into_iter().collect(), ..message.clone() })
            .collect();
        let home = topology.home(queue);
        for message in publishes {
            if home == self.group {
                self.enqueue(&message, None, false, topology, now);
            } else {
                out.shard(home, ToShard::DeadLetter { from: None, message });
            }
        }
    }
}
