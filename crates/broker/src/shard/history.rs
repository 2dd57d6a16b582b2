//! What recent-history exchanges remember, for queues bound later.
//!
//! RabbitMQ's plugin keeps the last messages in its metadata store; here the shard
//! `exchange id % shards` keeps them, so routing stays free of messages.

use std::collections::VecDeque;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_log::Log;
use leveret_queue::Time;
use leveret_topology::{ExchangeId, QueueId, Topology};

use super::Shard;
use crate::message::{Message, Outbox, Publish, ToShard, shard_of};

/// The last messages of each recent-history exchange kept here, oldest first.
#[derive(Debug, Default)]
pub(super) struct Histories {
    by_exchange: HashMap<ExchangeId, VecDeque<Message>, FixedState>,
}

impl Histories {
    /// Adds a message and drops what exceeds `limit`.
    pub(super) fn remember(&mut self, exchange: ExchangeId, limit: u32, message: Message) {
        let history = self.by_exchange.entry(exchange).or_default();
        history.push_back(message.detached());
        while history.len() > limit as usize {
            history.pop_front();
        }
    }

    pub(super) fn forget(&mut self, exchange: ExchangeId) {
        self.by_exchange.remove(&exchange);
    }

    fn all(&self, exchange: ExchangeId) -> impl Iterator<Item = &Message> {
        self.by_exchange.get(&exchange).into_iter().flatten()
    }
}

impl<L: Log> Shard<L> {
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
            .map(|message| Publish {
                channel: 0,
                confirm: 0,
                targets: [queue].into_iter().collect(),
                persistent: false,
                priority: 0,
                expiration_ms: None,
                message: message.clone(),
            })
            .collect();
        let home = shard_of(queue, self.shards);
        for message in publishes {
            if home == self.index {
                self.enqueue(&message, topology, now);
            } else {
                out.shard(home, ToShard::DeadLetter { from: None, message });
            }
        }
    }
}
