//! Connections as a shard sees them: their consumers here, and the deliveries they get this turn.
//!
//! Hot path: a delivery is an index and a push.
//!
//! A consumer is in two chains, that of its connection and that of its queue, and knows its place in both: it comes and goes
//! at the same cost, however many others there are.

mod ending;

use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_amqp::table::Table;
use leveret_queue::ConsumerId;
use leveret_topology::{GroupId, QueueId};

use crate::message::{ChannelId, ConnectionId, ConsumerSlot, Delivery, Outbox, ToSession, ToShard};
use ending::Ending;

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
    in_port: Links,
    in_queue: Links,
}

/// The neighbours in a chain.
#[derive(Clone, Copy, Debug)]
struct Links {
    before: u32,
    after: u32,
}

/// No neighbour.
const NONE: u32 = u32::MAX;

/// Consumers one after the other, oldest first, by their keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    first: u32,
    last: u32,
    len: u32,
}

impl Default for Chain {
    fn default() -> Self {
        Self { first: NONE, last: NONE, len: 0 }
    }
}

impl Chain {
    pub(super) fn len(&self) -> u64 {
        self.len.into()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The key of the oldest one.
    pub(super) fn first(&self) -> Option<u32> {
        (self.len > 0).then_some(self.first)
    }

    fn push(&mut self, all: &mut [Option<Consumer>], key: u32, of: Which) {
        if let Some(links) = links(all, key, of) {
            *links = Links { before: self.last, after: NONE };
        }
        match links(all, self.last, of) {
            Some(last) => last.after = key,
            None => self.first = key,
        }
        self.last = key;
        self.len += 1;
    }

    /// Takes a consumer out that had these links.
    fn remove(&mut self, all: &mut [Option<Consumer>], Links { before, after }: Links, of: Which) {
        match links(all, before, of) {
            Some(before) => before.after = after,
            None => self.first = after,
        }
        match links(all, after, of) {
            Some(after) => after.before = before,
            None => self.last = before,
        }
        self.len -= 1;
    }
}

/// Which of its chains is meant.
type Which = fn(&mut Consumer) -> &mut Links;

const OF_PORT: Which = |consumer| &mut consumer.in_port;
const OF_QUEUE: Which = |consumer| &mut consumer.in_queue;

fn links(all: &mut [Option<Consumer>], key: u32, of: Which) -> Option<&mut Links> {
    all.get_mut(key as usize)?.as_mut().map(of)
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
    consumers: Chain,
    /// The connection is gone, and its consumers go one after the other.
    is_ending: bool,
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
    /// Keys by port and slot.
    by_slot: HashMap<(u32, ConsumerSlot), u32, FixedState>,
    /// Ports with deliveries of this turn.
    touched: Vec<u32>,
    /// Connections whose gates opened, and shards that are told when this one has dispatched.
    resumed: Vec<(ConnectionId, Vec<GroupId>)>,
    ending: Ending,
    /// The number of the last consumer.
    last_number: u64,
}

impl Ports {
    /// The key the next consumer will get.
    pub(super) fn next_key(&self) -> u32 {
        self.free_consumers.last().copied().unwrap_or(self.consumers.len() as u32)
    }

    /// The number of the next consumer.
    pub(super) fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// A consumer of an earlier term has this number: later ones get greater ones.
    pub(super) fn is_past(&mut self, number: u64) {
        self.last_number = self.last_number.max(number);
    }

    /// Nobody is here any more, and whoever comes gets another number.
    pub(super) fn of_next_term(&self) -> Self {
        Self { last_number: self.last_number, ..Self::default() }
    }

    /// Adds a consumer under [`next_key`](Self::next_key), and to those of its queue.
    #[expect(clippy::too_many_arguments, reason = "what a consumer is")]
    pub(super) fn add(
        &mut self,
        connection: ConnectionId,
        channel: ChannelId,
        slot: ConsumerSlot,
        queue: QueueId,
        id: ConsumerId,
        facts: Listed,
        of_queue: &mut Chain,
    ) -> u32 {
        let port = match self.by_connection.get(&connection) {
            Some(&port) => port,
            None => {
                let made = Port {
                    connection,
                    consumers: Chain::default(),
                    is_ending: false,
                    deliveries: Vec::new(),
                    delivered: 0,
                };
                let port = insert(&mut self.ports, &mut self.free_ports, made);
                self.by_connection.insert(connection, port);
                port
            }
        };
        let facts = Box::new(facts);
        let unlinked = Links { before: NONE, after: NONE };
        let (in_port, in_queue) = (unlinked, unlinked);
        let consumer =
            Consumer { connection, channel, slot, queue, id, facts, port, in_port, in_queue };
        let key = insert(&mut self.consumers, &mut self.free_consumers, consumer);
        self.by_slot.insert((port, slot), key);
        if let Some(Some(port)) = self.ports.get_mut(port as usize) {
            port.consumers.push(&mut self.consumers, key, OF_PORT);
        }
        of_queue.push(&mut self.consumers, key, OF_QUEUE);
        key
    }

    pub(super) fn consumer(&self, key: u32) -> Option<&Consumer> {
        self.consumers.get(key as usize)?.as_ref()
    }

    /// The key of a session's consumer.
    pub(super) fn find(&self, connection: ConnectionId, slot: ConsumerSlot) -> Option<u32> {
        let port = *self.by_connection.get(&connection)?;
        self.by_slot.get(&(port, slot)).copied()
    }

    fn port(&self, connection: ConnectionId) -> Option<&Port> {
        let port = *self.by_connection.get(&connection)?;
        self.ports.get(port as usize)?.as_ref()
    }

    /// How many consumers a connection has.
    pub(super) fn count_of(&self, connection: ConnectionId) -> u64 {
        self.port(connection).map_or(0, |port| port.consumers.len())
    }

    /// A connection's consumers, oldest first; none once it has ended.
    pub(super) fn consumers_of(
        &self,
        connection: ConnectionId,
    ) -> impl Iterator<Item = &Consumer> + '_ {
        let port = self.port(connection).filter(|port| !port.is_ending);
        let mut next = port.map_or(NONE, |port| port.consumers.first);
        std::iter::from_fn(move || {
            let consumer = self.consumer(next)?;
            next = consumer.in_port.after;
            Some(consumer)
        })
    }

    /// The connection has ended: the key of the oldest consumer that it still has.
    pub(super) fn next_of_ended(&mut self, connection: ConnectionId) -> Option<u32> {
        let port = *self.by_connection.get(&connection)?;
        let port = self.ports.get_mut(port as usize)?.as_mut()?;
        port.is_ending = true;
        port.consumers.first()
    }

    /// Takes a consumer out, and out of those of its queue. Deliveries made to it before stay in the port's batch.
    pub(super) fn remove(&mut self, key: u32, of_queue: &mut Chain) -> Option<Consumer> {
        let consumer = self.consumers.get_mut(key as usize)?.take()?;
        self.free_consumers.push(key);
        self.by_slot.remove(&(consumer.port, consumer.slot));
        if let Some(Some(port)) = self.ports.get_mut(consumer.port as usize) {
            port.consumers.remove(&mut self.consumers, consumer.in_port, OF_PORT);
        }
        of_queue.remove(&mut self.consumers, consumer.in_queue, OF_QUEUE);
        Some(consumer)
    }

    /// Adds a delivery to the batch of the consumer's connection.
    #[inline]
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

    /// A gate of the connection opened; the others are told when this shard has dispatched.
    pub(super) fn resumed(&mut self, connection: ConnectionId, others: Vec<GroupId>) {
        self.resumed.push((connection, others));
    }

    /// Whether a gate opened in this turn.
    pub(super) fn has_resumed(&self) -> bool {
        !self.resumed.is_empty()
    }

    /// Tells the next shard of each connection whose gate opened.
    pub(super) fn pass_on_resumed(&mut self, out: &mut Outbox) {
        for (connection, mut others) in self.resumed.drain(..) {
            if let Some(next) = others.pop() {
                out.shard(next, ToShard::Resume { connection, others });
            }
        }
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
