//! Connections as a shard sees them: their consumers here, and the deliveries they get this turn.
//!
//! Hot path: a delivery is an index and a push.

use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_amqp::table::Table;
use leveret_queue::ConsumerId;
use leveret_topology::QueueId;

use crate::message::{ChannelId, ConnectionId, ConsumerSlot, Delivery, Outbox, ToSession};

/// A consumer of a queue of this shard. Its index is the key the queue knows it by.
#[derive(Debug)]
pub(super) struct Consumer {
    pub(super) connection: ConnectionId,
    pub(super) channel: ChannelId,
    pub(super) slot: ConsumerSlot,
    pub(super) queue: QueueId,
    pub(super) id: ConsumerId,
    pub(super) facts: Box<Listed>,
    port: u32,
}

/// What listings show of a consumer and nothing else needs.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) tag: Box<str>,
    pub(super) no_ack: bool,
    pub(super) prefetch: u16,
    /// Shared with lists that are being made.
    pub(super) arguments: Arc<Table>,
}

#[derive(Debug)]
struct Port {
    connection: ConnectionId,
    consumers: Vec<u32>,
    deliveries: Vec<Delivery>,
    /// How many the last batch had: room for the next one is made at once.
    delivered: usize,
}

/// Room made at once for a batch, whatever the last one was.
const ROOM_MAX: usize = 512;

impl Port {
    fn take(&mut self) -> Vec<Delivery> {
        self.delivered = self.deliveries.len();
        std::mem::take(&mut self.deliveries)
    }
}

/// All connections that consume here.
#[derive(Debug, Default)]
pub(super) struct Ports {
    consumers: Vec<Option<Consumer>>,
    free_consumers: Vec<u32>,
    ports: Vec<Option<Port>>,
    free_ports: Vec<u32>,
    by_connection: HashMap<ConnectionId, u32, FixedState>,
    /// Ports with deliveries of this turn.
    touched: Vec<u32>,
}

impl Ports {
    /// The key the next consumer will get.
    pub(super) fn next_key(&self) -> u32 {
        self.free_consumers.last().copied().unwrap_or(self.consumers.len() as u32)
    }

    /// Adds a consumer under [`next_key`](Self::next_key).
    pub(super) fn add(
        &mut self,
        connection: ConnectionId,
        channel: ChannelId,
        slot: ConsumerSlot,
        queue: QueueId,
        id: ConsumerId,
        facts: Listed,
    ) -> u32 {
        let port = match self.by_connection.get(&connection) {
            Some(&port) => port,
            None => {
                let made = Port {
                    connection,
                    consumers: Vec::new(),
                    deliveries: Vec::new(),
                    delivered: 0,
                };
                let port = insert(&mut self.ports, &mut self.free_ports, made);
                self.by_connection.insert(connection, port);
                port
            }
        };
        let facts = Box::new(facts);
        let consumer = Consumer { connection, channel, slot, queue, id, facts, port };
        let key = insert(&mut self.consumers, &mut self.free_consumers, consumer);
        if let Some(Some(port)) = self.ports.get_mut(port as usize) {
            port.consumers.push(key);
        }
        key
    }

    pub(super) fn consumer(&self, key: u32) -> Option<&Consumer> {
        self.consumers.get(key as usize)?.as_ref()
    }

    /// The key of a session's consumer.
    pub(super) fn find(&self, connection: ConnectionId, slot: ConsumerSlot) -> Option<u32> {
        self.keys_of(connection)
            .iter()
            .copied()
            .find(|&key| self.consumer(key).is_some_and(|consumer| consumer.slot == slot))
    }

    /// The keys of a connection's consumers, oldest first.
    pub(super) fn keys_of(&self, connection: ConnectionId) -> &[u32] {
        let port =
            self.by_connection.get(&connection).and_then(|&port| self.ports.get(port as usize));
        port.and_then(Option::as_ref).map_or(&[], |port| &port.consumers)
    }

    /// Takes the keys of a connection that ended, oldest first: the consumers are to be [removed](Self::remove).
    pub(super) fn take_keys_of(&mut self, connection: ConnectionId) -> Vec<u32> {
        let port = self.by_connection.get(&connection).copied();
        let port = port.and_then(|port| self.ports.get_mut(port as usize)?.as_mut());
        port.map(|port| std::mem::take(&mut port.consumers)).unwrap_or_default()
    }

    /// Takes a consumer out. Deliveries made to it before stay in the port's batch.
    pub(super) fn remove(&mut self, key: u32) -> Option<Consumer> {
        let consumer = self.consumers.get_mut(key as usize)?.take()?;
        self.free_consumers.push(key);
        if let Some(Some(port)) = self.ports.get_mut(consumer.port as usize) {
            port.consumers.retain(|&other| other != key);
        }
        Some(consumer)
    }

    /// Adds a delivery to the batch of the consumer's connection.
    pub(super) fn deliver(&mut self, key: u64, make: impl FnOnce(ConsumerSlot) -> Delivery) {
        let Some(Some(consumer)) = self.consumers.get(key as usize) else {
            debug_assert!(false, "a delivery to a consumer that is gone");
            return;
        };
        let Some(Some(port)) = self.ports.get_mut(consumer.port as usize) else { return };
        if port.deliveries.is_empty() {
            self.touched.push(consumer.port);
            port.deliveries.reserve(port.delivered.min(ROOM_MAX));
        }
        port.deliveries.push(make(consumer.slot));
    }

    /// Sends a connection what it got so far, before a letter that must come after it.
    pub(super) fn flush(&mut self, connection: ConnectionId, out: &mut Outbox) {
        let Some(&port) = self.by_connection.get(&connection) else { return };
        if let Some(Some(port)) = self.ports.get_mut(port as usize)
            && !port.deliveries.is_empty()
        {
            out.session(connection, ToSession::Deliver(port.take()));
        }
    }

    /// Sends every connection its batch.
    pub(super) fn hand_out(&mut self, out: &mut Outbox) {
        for port in self.touched.drain(..) {
            if let Some(Some(port)) = self.ports.get_mut(port as usize)
                && !port.deliveries.is_empty()
            {
                let deliveries = port.take();
                out.session(port.connection, ToSession::Deliver(deliveries));
            }
        }
    }

    /// Forgets a connection whose consumers were all removed.
    pub(super) fn forget(&mut self, connection: ConnectionId) {
        if let Some(port) = self.by_connection.remove(&connection) {
            self.touched.retain(|&other| other != port);
            if let Some(place) = self.ports.get_mut(port as usize) {
                *place = None;
                self.free_ports.push(port);
            }
        }
    }
}

/// Puts `value` into a free place and returns its index.
fn insert<T>(places: &mut Vec<Option<T>>, free: &mut Vec<u32>, value: T) -> u32 {
    if let Some(index) = free.pop()
        && let Some(place) = places.get_mut(index as usize)
    {
        *place = Some(value);
        return index;
    }
    places.push(Some(value));
    (places.len() - 1) as u32
}
