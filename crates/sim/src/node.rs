//! The broker: its actors, their inboxes, and the turns that the scheduler lets them have.
//!
//! Does what the server's threads do, on one thread and without a socket: the same calls in the same
//! order, but which actor runs, how many of its letters it finds, how many bytes a read or a write
//! moves and what time it is are given from outside.

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;
use std::sync::Arc;

use bytes::Bytes;
use leveret_amqp::content::RawProperties;
use leveret_amqp::outbuf::OutBuf;
use leveret_broker::message::{
    ConnectionId, Delivery, Outbox, Reply, Settle, Settlement, ToMeta, ToSession, ToShard, shard_of,
};
use leveret_broker::record::View;
use leveret_broker::{Meta, Shard};
use leveret_log::MemoryLog;
use leveret_queue::Time;
use leveret_session::{Context, End, Peer, Session, Settings};
use leveret_topology::{Bootstrap, QueueId, Topology};

use crate::random::Random;
use crate::shadow::{Check, Shadow};

/// Bytes a session may have waiting for its socket before it is given nothing more: small, so that the
/// limit is reached all the time.
const OUTPUT_BYTES_MAX: u64 = 16 << 10;

/// What one connection's output may exceed its limit by: one message, the answers to what it sent in
/// one read, and what other shards gave it at the same moment.
const OUTPUT_SLACK: usize = 128 << 10;

/// Who can have a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Actor {
    Shard(usize),
    Meta,
    Connection(ConnectionId),
}

/// The two directions of a connection, as the kernel would hold them.
#[derive(Debug, Default)]
pub(crate) struct Socket {
    pub(crate) to_server: VecDeque<u8>,
    pub(crate) to_client: VecDeque<u8>,
    /// Bytes that `to_client` takes.
    pub(crate) room: usize,
    /// The client is gone: what it sent may still be read.
    pub(crate) is_reset: bool,
    /// The server is gone: what it sent may still be read.
    pub(crate) is_closed: bool,
}

#[derive(Debug)]
struct Connection {
    session: Session,
    inbox: VecDeque<ToSession>,
    socket: Socket,
    input: Bytes,
    output: OutBuf,
    is_over: bool,
}

#[derive(Debug)]
struct ShardActor {
    shard: Shard<MemoryLog>,
    inbox: VecDeque<ToShard>,
    has_more: bool,
}

/// All actors.
#[derive(Debug)]
pub(crate) struct Node {
    settings: Arc<Settings>,
    topology: Topology,
    shards: Vec<ShardActor>,
    meta: Meta,
    meta_inbox: VecDeque<ToMeta>,
    connections: BTreeMap<ConnectionId, Connection>,
    names: BTreeMap<QueueId, String>,
    outbox: Outbox,
    next_connection: u64,
}

impl Node {
    pub(crate) fn new(shards: usize) -> Self {
        let mut topology = Topology::new();
        let bootstrap = Bootstrap {
            user: "guest",
            password: "guest",
            salt: [1, 2, 3, 4],
            tags: &["administrator"],
            vhost: "/",
            permissions: [".*", ".*", ".*"],
        };
        topology.bootstrap(&bootstrap).expect("an empty topology takes its first user");
        let settings = Settings {
            shards,
            output_bytes_max: OUTPUT_BYTES_MAX,
            heartbeat_s: 0,
            ..Settings::default()
        };
        Self {
            settings: Arc::new(settings),
            topology,
            shards: (0..shards)
                .map(|index| ShardActor {
                    shard: Shard::new(index, shards, MemoryLog::new()),
                    inbox: VecDeque::new(),
                    has_more: false,
                })
                .collect(),
            meta: Meta::new(shards),
            meta_inbox: VecDeque::new(),
            connections: BTreeMap::new(),
            names: BTreeMap::new(),
            outbox: Outbox::default(),
            next_connection: 1,
        }
    }

    /// A client connects.
    pub(crate) fn connect(&mut self, seed: u64, room: usize, now: Time) -> ConnectionId {
        let id = ConnectionId::new(self.next_connection);
        self.next_connection += 1;
        let peer = Peer { address: format!("127.0.0.1:{}", id.get()), is_loopback: true };
        let session = Session::new(id, Arc::clone(&self.settings), peer, seed, now);
        let connection = Connection {
            session,
            inbox: VecDeque::new(),
            socket: Socket { room, ..Socket::default() },
            input: Bytes::new(),
            output: OutBuf::new(),
            is_over: false,
        };
        self.connections.insert(id, connection);
        id
    }

    /// The socket of a connection that is not over.
    pub(crate) fn socket(&mut self, id: ConnectionId) -> Option<&mut Socket> {
        self.connections.get_mut(&id).map(|connection| &mut connection.socket)
    }

    /// Writes to a session.
    pub(crate) fn tell(&mut self, id: ConnectionId, letter: ToSession) {
        if let Some(connection) = self.connections.get_mut(&id).filter(|it| !it.is_over) {
            connection.inbox.push_back(letter);
        }
    }

    /// Writes to every session, those too whose client is gone.
    pub(crate) fn tell_all(&mut self, letter: impl Fn() -> ToSession) {
        for connection in self.connections.values_mut().filter(|it| !it.is_over) {
            connection.inbox.push_back(letter());
        }
    }

    /// Forgets connections both sides of which are done.
    pub(crate) fn bury(&mut self) {
        self.connections.retain(|_, connection| {
            !(connection.is_over && connection.inbox.is_empty() && connection.socket.is_reset)
        });
    }

    /// Everybody who has something to do.
    pub(crate) fn ready(&self, now: Time, ready: &mut Vec<Actor>) {
        for (index, ShardActor { shard, inbox, has_more }) in self.shards.iter().enumerate() {
            let is_due = shard.next_timeout().is_some_and(|at| at <= now);
            if !inbox.is_empty() || *has_more || is_due {
                ready.push(Actor::Shard(index));
            }
        }
        if !self.meta_inbox.is_empty() {
            ready.push(Actor::Meta);
        }
        for (&id, connection) in &self.connections {
            if connection.is_ready(now) {
                ready.push(Actor::Connection(id));
            }
        }
    }

    /// When the first actor wants to run by itself.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        let shards = self.shards.iter().filter_map(|actor| actor.shard.next_timeout());
        let sessions = self
            .connections
            .values()
            .filter(|connection| !connection.is_over)
            .filter_map(|connection| connection.session.next_timeout());
        shards.chain(sessions).min()
    }

    /// The letters that an actor will find, in words.
    pub(crate) fn letters(&self, actor: Actor) -> Vec<String> {
        fn words<L: std::fmt::Debug>(letters: &VecDeque<L>) -> Vec<String> {
            let words = |letter: &L| format!("    {:.6000}", format!("{letter:?}"));
            letters.iter().map(words).collect()
        }
        match actor {
            Actor::Meta => Some(words(&self.meta_inbox)),
            Actor::Shard(index) => self.shards.get(index).map(|actor| words(&actor.inbox)),
            Actor::Connection(id) => self.connections.get(&id).map(|it| words(&it.inbox)),
        }
        .unwrap_or_default()
    }

    /// One turn of one actor, over some of its letters.
    pub(crate) fn turn(
        &mut self,
        actor: Actor,
        now: Time,
        random: &mut Random,
        shadow: &mut Shadow,
    ) -> Check {
        match actor {
            Actor::Meta => {
                let count = random.part(self.meta_inbox.len());
                let mut letters = self.meta_inbox.drain(..count).collect();
                self.meta.turn(&mut letters, &mut self.topology, &mut self.outbox);
            }
            Actor::Shard(index) => {
                let Some(actor) = self.shards.get_mut(index) else { return Ok(()) };
                let count = random.part(actor.inbox.len()).min(actor.inbox.len());
                let mut letters = actor.inbox.drain(..count).collect();
                actor.has_more =
                    actor.shard.turn(&mut letters, &self.topology, now, &mut self.outbox);
                self.check_shard(index)?;
                self.given_out(shadow)?;
            }
            Actor::Connection(id) => {
                let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
                let count = random.part(connection.inbox.len()).min(connection.inbox.len());
                let letters: Vec<_> = connection.inbox.drain(..count).collect();
                if connection.is_over {
                    for letter in letters {
                        return_undelivered(letter, self.shards.len(), &mut self.outbox);
                    }
                } else {
                    let (topology, outbox) = (&self.topology, &mut self.outbox);
                    connection.turn(letters, topology, outbox, now, random)?;
                }
            }
        }
        self.post();
        Ok(())
    }

    /// Puts letters into inboxes, in the order in which they were written.
    fn post(&mut self) {
        while !self.outbox.is_empty() {
            for (index, letter) in self.outbox.shards.drain(..) {
                if let Some(actor) = self.shards.get_mut(index) {
                    actor.inbox.push_back(letter);
                }
            }
            self.meta_inbox.extend(self.outbox.meta.drain(..));
            for (id, letter) in std::mem::take(&mut self.outbox.sessions) {
                match self.connections.get_mut(&id).filter(|connection| !connection.is_over) {
                    Some(connection) => connection.inbox.push_back(letter),
                    None => return_undelivered(letter, self.shards.len(), &mut self.outbox),
                }
            }
        }
    }

    /// Tells the model what a shard's turn gave out.
    fn given_out(&mut self, shadow: &mut Shadow) -> Check {
        let Self { outbox, names, topology, .. } = self;
        for (connection, letter) in &outbox.sessions {
            let deliveries = match letter {
                ToSession::Deliver(deliveries) => &deliveries[..],
                ToSession::Reply { reply: Reply::Got { delivery, .. }, .. } => {
                    std::slice::from_ref(delivery)
                }
                _ => continue,
            };
            for delivery in deliveries {
                let Delivery { queue, unacked, redelivered, ref record, .. } = *delivery;
                if let Some(queue) = topology.queue_by_id(queue) {
                    names.entry(delivery.queue).or_insert_with(|| queue.name.to_string());
                }
                let index = names.get(&queue).and_then(|name| shadow.queue(name));
                let index = index.ok_or_else(|| format!("queue {queue:?} has no name"))?;
                let message = message_id(record).ok_or("a record without our message-id")?;
                shadow.given(connection.get(), message, index, redelivered, unacked.is_none())?;
            }
        }
        shadow.turn_is_over()
    }

    /// What must hold in a shard after every turn.
    fn check_shard(&self, index: usize) -> Check {
        let Some(ShardActor { shard, .. }) = self.shards.get(index) else { return Ok(()) };
        let (mut here, mut held) = (0, 0);
        for (id, queue) in shard.queues() {
            let counts = queue.counts();
            here += counts.ready + counts.unacked;
            held += counts.held;
            let active = queue.consumers().filter(|consumer| consumer.active).count();
            if queue.options().single_active && active > 1 {
                return Err(format!("{active} active consumers on queue {id:?}"));
            }
            for consumer in queue.consumers() {
                let limit = u32::from(consumer.prefetch);
                if limit > 0 && consumer.unacked > limit && !consumer.no_ack {
                    return Err(format!("{} unacked, prefetch {limit}", consumer.unacked));
                }
            }
        }
        let usage = shard.usage();
        if usage.records > here + held {
            let (records, messages) = (usage.records, here + held);
            return Err(format!("shard {index} holds {records} records for {messages} messages"));
        }
        let counters = shard.counters();
        let out = counters.acked + counters.dead_lettered + counters.dropped;
        // What a full queue refuses leaves like any other, without having been in it. A dead letter that
        // is held until it is safe has left already.
        if counters.enqueued + counters.refused != here + out {
            return Err(format!("shard {index}: {here} here, {counters:?} do not add up"));
        }
        Ok(())
    }

    /// No letter waits, no byte is under way, no message is left.
    pub(crate) fn is_idle(&self) -> bool {
        self.meta_inbox.is_empty()
            && self.shards.iter().all(|actor| actor.inbox.is_empty() && !actor.has_more)
            && self.connections.values().all(|connection| connection.inbox.is_empty())
    }

    /// Queues that have a name.
    pub(crate) fn queue_count(&self) -> usize {
        self.topology.queue_count()
    }

    /// Messages in all queues.
    pub(crate) fn messages(&self) -> u64 {
        let queues = self.shards.iter().flat_map(|actor| actor.shard.queues());
        queues.map(|(_, queue)| queue.counts()).map(|c| c.ready + c.unacked + c.held).sum()
    }

    /// Everything is empty: nothing may be left in logs, nor memory be held for it.
    pub(crate) fn check_drained(&self, queues: usize) -> Check {
        let left = self.queue_count();
        if left != queues {
            return Err(format!("{left} queues are left, {queues} stand"));
        }
        let hosted = self.shards.iter().map(|actor| actor.shard.queues().count()).sum::<usize>();
        if hosted > queues {
            return Err(format!("shards have {hosted} queues, {queues} have a name"));
        }
        for ShardActor { shard, .. } in &self.shards {
            let usage = shard.usage();
            if usage.records != 0 || usage.live_bytes != 0 || usage.held_bytes > 1 << 20 {
                return Err(format!("all queues are empty, and the log holds {usage:?}"));
            }
        }
        Ok(())
    }

    /// What is in the queues that are not empty, for reading.
    pub(crate) fn describe(&self) -> String {
        let mut text = String::new();
        for (id, queue) in self.shards.iter().flat_map(|actor| actor.shard.queues()) {
            let counts = queue.counts();
            if counts.ready + counts.unacked + counts.held > 0 || counts.consumers > 0 {
                let name = self.topology.queue_by_id(id).map_or("?", |queue| &*queue.name);
                text.push_str(&format!("{name}: {counts:?}\n"));
                for consumer in queue.consumers() {
                    text.push_str(&format!("    {consumer:?}\n"));
                }
            }
        }
        for (id, connection) in &self.connections {
            text.push_str(&format!(
                "connection {}: over={} inbox={} input={} output={} wants_input={} end={:?} sockets={}/{}\n",
                id.get(),
                connection.is_over,
                connection.inbox.len(),
                connection.input.len(),
                connection.output.len(),
                connection.session.wants_input(),
                connection.session.end(),
                connection.socket.to_server.len(),
                connection.socket.to_client.len(),
            ));
        }
        text
    }
}

impl Connection {
    fn is_ready(&self, now: Time) -> bool {
        if self.is_over {
            return !self.inbox.is_empty();
        }
        let wants = self.session.wants_input();
        !self.inbox.is_empty()
            || self.socket.is_reset && (wants || !self.output.is_empty())
            || wants && !self.socket.to_server.is_empty()
            || !self.output.is_empty() && self.socket.to_client.len() < self.socket.room
            || self.session.next_timeout().is_some_and(|at| at <= now)
    }

    /// A turn as the server's: letters, timeouts, one read, one write.
    fn turn(
        &mut self,
        letters: Vec<ToSession>,
        topology: &Topology,
        outbox: &mut Outbox,
        now: Time,
        random: &mut Random,
    ) -> Check {
        // Sent by shards and not seen yet: the gauge bounds this together with the output.
        let coming = self.inbox.iter().chain(&letters).map(delivered_bytes).sum::<usize>();
        if coming > OUTPUT_BYTES_MAX as usize + OUTPUT_SLACK {
            return Err(format!("{coming} bytes wait for one session, {OUTPUT_BYTES_MAX} may"));
        }
        let Self { session, input, output, socket, .. } = self;
        let mut cx = Context { topology, now, out: output, outbox };
        for letter in letters {
            session.receive(letter, &mut cx);
        }
        if session.next_timeout().is_some_and(|at| at <= now) {
            session.timeout(&mut cx);
        }
        if !input.is_empty() && session.wants_input() {
            session.input(input, &mut cx);
        }
        if session.wants_input() && session.end().is_none() {
            if !socket.to_server.is_empty() {
                let count = random.part(socket.to_server.len());
                let mut block = input.to_vec();
                block.extend(socket.to_server.drain(..count));
                *input = Bytes::from(block);
                session.input(input, &mut cx);
                // What is left must not pin the block it came in.
                *input = Bytes::copy_from_slice(input);
            } else if socket.is_reset {
                session.disconnected(&mut cx);
                self.is_over = true;
                return Ok(());
            }
        }
        self.write(topology, outbox, now, random)
    }

    fn write(
        &mut self,
        topology: &Topology,
        outbox: &mut Outbox,
        now: Time,
        random: &mut Random,
    ) -> Check {
        let Self { session, output, socket, is_over, .. } = self;
        let before = output.len();
        if before as u64 > OUTPUT_BYTES_MAX + OUTPUT_SLACK as u64 {
            return Err(format!("{before} bytes wait for one socket, {OUTPUT_BYTES_MAX} may"));
        }
        let room = socket.room.saturating_sub(socket.to_client.len());
        let count = room.min(before);
        if count > 0 && !socket.is_reset {
            let count = random.part(count);
            let mut left = count;
            let mut slices = [IoSlice::new(&[]); 8];
            let filled = output.slices(&mut slices);
            for slice in slices.iter().take(filled) {
                let part = slice.get(..left).unwrap_or(slice);
                socket.to_client.extend(part);
                left -= part.len();
            }
            // Only so many slices fit into one write.
            output.advance(count - left);
        }
        let remaining = output.len();
        let mut none = OutBuf::new();
        let mut cx = Context { topology, now, out: &mut none, outbox };
        if before > 0 && !socket.is_reset {
            session.flushed(remaining, remaining < before, &mut cx);
        }
        let over = match session.end() {
            Some(End::Now) => true,
            Some(End::AfterFlush | End::AfterPeer) => remaining == 0,
            None => false,
        };
        // A reset is also found by writing.
        if over || socket.is_reset && before > 0 {
            session.disconnected(&mut cx);
            *is_over = true;
            socket.is_closed = true;
        }
        Ok(())
    }
}

/// Bytes of messages in a letter.
fn delivered_bytes(letter: &ToSession) -> usize {
    match letter {
        ToSession::Deliver(deliveries) => deliveries.iter().map(|one| one.record.len()).sum(),
        _ => 0,
    }
}

/// The message of the simulation that a record carries.
fn message_id(record: &Bytes) -> Option<usize> {
    let view = View::of(record)?;
    let properties = RawProperties::new(view.properties).to_owned().ok()?;
    properties.message_id?.parse().ok()
}

/// A letter to a connection that ended: what was given out and never reached anybody goes back.
fn return_undelivered(letter: ToSession, shards: usize, outbox: &mut Outbox) {
    let deliveries = match letter {
        ToSession::Deliver(deliveries) => deliveries,
        ToSession::Reply { reply: Reply::Got { delivery, .. }, .. } => vec![delivery],
        _ => return,
    };
    for delivery in deliveries {
        let Some(unacked) = delivery.unacked else { continue };
        let settlement = Settlement {
            queue: delivery.queue,
            unacked,
            offset: delivery.offset,
            how: Settle::Requeue { counts: false },
        };
        outbox.shard(shard_of(delivery.queue, shards), ToShard::Settle(vec![settlement]));
    }
}
