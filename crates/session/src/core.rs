//! What belongs to the connection as a whole, apart from its channels.
//!
//! [`Session`](crate::Session) is a [`Core`] and its channels; the code of one channel is given both, so
//! that it can borrow them apart.

use std::sync::Arc;

use leveret_amqp::frame::Decoder;
use leveret_amqp::outbuf::OutBuf;
use leveret_broker::flow::Alarm;
use leveret_broker::message::{
    ConnectionId, ConsumerSlot, Outbox, ReplyTo, Settle, ToMeta, ToShard, UnackedDelivery,
};
use leveret_queue::{Gate, OutputGauge, Time};
use leveret_topology::rights::Admitted;
use leveret_topology::{ByGroup, CountedConnection, GroupId, Topology, VhostId};

use crate::access::Elsewhere;
use crate::allowances::Allowances;
use crate::batch::Batch;
use crate::brought::Brought;
use crate::cache::RouteCache;
use crate::channel::Channel;
use crate::connection::Stage;
use crate::connection::timers::Timers;
use crate::consumers::{Consumer, Consumers};
use crate::pace::Pace;
use crate::random::Random;
use crate::settings::{Peer, Settings};
use crate::totals::SessionTotals;
use crate::unfinished::Unfinished;
use crate::waiting::WaitingCommand;

/// What a session works with in one turn.
#[derive(Debug)]
pub struct Context<'a> {
    /// The topology, as it is in this turn.
    pub topology: &'a Topology,
    /// Now.
    pub now: Time,
    /// Now, in microseconds, for what is timed finer; only the time between two of them says something.
    pub now_us: u64,
    /// Now by the clock that messages are stamped with, which may be set.
    pub wall: Time,
    /// The bytes waiting for the socket.
    pub out: &'a mut OutBuf,
    /// Letters to send when the turn is over.
    pub outbox: &'a mut Outbox,
}

/// How the server ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Write what waits, then close the socket.
    AfterFlush,
    /// Write what waits, which ends in `connection.close-ok`; then the client closes the socket, and the
    /// server only if it does not. Clients may still write frames of other channels behind their close
    /// (amqplib does), and must be able to.
    AfterPeer,
    /// Close the socket whatever waits.
    Now,
}

/// What the client said it can do, as far as the server acts on it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Capabilities {
    pub(crate) consumer_cancel_notify: bool,
    pub(crate) connection_blocked: bool,
    pub(crate) authentication_failure_close: bool,
}

/// What is known once the client has logged in and opened its vhost.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) user: Box<str>,
    /// The operator on the node's own machine, who may everything and is no user of the topology.
    pub(crate) is_operator: bool,
    /// The node itself, in the user's name.
    pub(crate) is_inside: bool,
    /// Tags beyond those that the names know.
    pub(crate) tags: Vec<String>,
    /// Who says what the user may do, if the names do not.
    pub(crate) elsewhere: Option<Box<Elsewhere>>,
    pub(crate) vhost: VhostId,
    pub(crate) vhost_name: Box<str>,
    pub(crate) mechanism: &'static str,
    /// The table of `connection.start-ok`, as on the wire.
    pub(crate) client_properties: Box<[u8]>,
    pub(crate) connected: Time,
}

impl Identity {
    /// The client is this user.
    pub(crate) fn admit(&mut self, admitted: Admitted) {
        self.user = admitted.user;
        self.is_operator = admitted.is_operator;
        self.tags = admitted.tags;
        self.elsewhere = admitted.rights.map(|rights| Box::new(Elsewhere::new(rights)));
    }
}

/// A method for many that settled some messages, and not all.
#[derive(Debug)]
pub(crate) struct HalfSettled {
    pub(crate) channel: u16,
    /// The tag of the last one that it is about.
    pub(crate) through: u64,
    /// None for `basic.recover`.
    pub(crate) how: Option<Settle>,
}

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) id: ConnectionId,
    pub(crate) settings: Arc<Settings>,
    pub(crate) peer: Peer,
    pub(crate) stage: Stage,
    pub(crate) decoder: Decoder,
    /// Negotiated, in bytes; 0 for no limit.
    pub(crate) frame_max: u32,
    pub(crate) channel_max: u16,
    pub(crate) identity: Box<Identity>,
    /// Its places among the connections of the vhost and of the user.
    pub(crate) counted: CountedConnection,
    pub(crate) capabilities: Capabilities,
    /// The command that no answer came to yet. Nothing more is read.
    pub(crate) waiting: Option<WaitingCommand>,
    pub(crate) batch: Batch,
    /// Made by the first publish.
    pub(crate) cache: Option<Box<RouteCache>>,
    pub(crate) consumers: Consumers,
    pub(crate) gauge: Arc<OutputGauge>,
    /// What [`gauge`](Self::gauge) holds for deliveries that are in the output buffer.
    pub(crate) gauged: u64,
    /// What consumers may be given by shards that share no memory with the session; none if all do.
    pub(crate) allowances: Option<Box<Allowances>>,
    /// A consumer waits for room that was made in this turn.
    pub(crate) resumes: bool,
    /// How often shards were told so.
    pub(crate) resumes_made: usize,
    pub(crate) random: Random,
    /// The alarm that blocks publishers.
    pub(crate) alarm: Alarm,
    /// It published while there was an alarm: it is not read until the alarm is over.
    pub(crate) is_blocked: bool,
    /// Its next publish waits for the end of the alarm, whatever else is unfinished.
    pub(crate) holds_publish: bool,
    /// No alarm blocks it any more: it sends nothing after what it has sent.
    pub(crate) peer_closed: bool,
    /// Shards that it publishes to and that are far behind with their disk.
    pub(crate) pauses: u32,
    /// The rates that it keeps to, if there are any.
    pub(crate) pace: Option<Box<Pace>>,
    /// The topology's generation of access in which [`pace`](Self::pace) was looked up.
    pub(crate) paced_at: u64,
    /// It published faster than it may, and is not read for a while.
    pub(crate) is_slowed: bool,
    /// See [`Session::has_names`](crate::Session::has_names).
    pub(crate) lacks_names: bool,
    pub(crate) timers: Timers,
    /// Bytes in the output buffer when they were last looked at.
    pub(crate) out_len: usize,
    pub(crate) end: Option<End>,
    /// The log has its end.
    pub(crate) is_end_said: bool,
    /// The topology and the shards know that the connection is gone.
    pub(crate) is_told: bool,
    /// The channel whose content lies in the read at hand; 0 when none does.
    pub(crate) in_read: u16,
    /// Channels that the client closed in the read at hand. RabbitMQ ends a channel while it reads on, so
    /// what was sent in one go with the close is thrown away, not a mistake.
    pub(crate) closed: Vec<u16>,
    /// Input left by the last turn, in bytes.
    pub(crate) left_len: usize,
    /// Bytes that transactions keep which are not committed.
    pub(crate) kept: u64,
    pub(crate) unfinished: Unfinished,
    /// Queues that messages of this turn go to, and messages that methods for many settled in it.
    pub(crate) turn_spent: usize,
    /// The method that the input begins with has settled some messages, and not all.
    pub(crate) half_settled: Option<Box<HalfSettled>>,
    pub(crate) brought: Brought,
    /// A channel's confirms are to be sent.
    pub(crate) confirms_dirty: bool,
    /// The highest sequence number of a channel that is closed.
    pub(crate) confirm_base: u64,
    /// What is counted of the connection itself and of channels that are closed.
    pub(crate) totals: Box<SessionTotals>,
}

impl Core {
    pub(crate) fn reply_to(&self, channel: u16) -> ReplyTo {
        ReplyTo { connection: self.id, channel }
    }

    /// Sends a letter to a queue's home, after what was gathered for it.
    pub(crate) fn send_to(&mut self, home: GroupId, letter: ToShard, cx: &mut Context<'_>) {
        self.batch.letter(home, self.id, letter, cx.outbox);
    }

    /// Sends a letter to the topology's owner, after everything gathered: what it changes must not be
    /// seen by messages published before.
    pub(crate) fn send_to_meta(&mut self, letter: ToMeta, cx: &mut Context<'_>) {
        self.batch.flush(self.id, cx.outbox);
        cx.outbox.meta.push(letter);
    }

    /// The limits of a channel's consumers; none if their shards are told them by letters.
    pub(crate) fn gate(&self, channel: &Channel) -> Option<Gate> {
        let here = self.allowances.is_none();
        here.then(|| Gate::new(Arc::clone(&self.gauge), Arc::clone(&channel.limit)))
    }

    /// Messages of the channel were settled, or its prefetch is another one. With `wakes` a queue of this process waits for that.
    pub(crate) fn places_changed(&mut self, channel: u16, wakes: bool) {
        self.resumes |= wakes;
        if let Some(allowances) = &mut self.allowances {
            allowances.change(channel);
        }
    }

    /// Takes a consumer out of the table.
    pub(crate) fn remove_consumer(&mut self, slot: ConsumerSlot) -> Option<Consumer> {
        let consumer = self.consumers.remove(slot)?;
        if let Some(allowances) = &mut self.allowances {
            allowances.consumer_left(consumer.channel, consumer.home);
        }
        Some(consumer)
    }

    /// Gathers a settlement.
    pub(crate) fn settle(&mut self, entry: &UnackedDelivery, how: Settle) {
        if entry.is_lost() {
            return;
        }
        self.batch.settle(entry.home, entry.settled(how));
    }

    /// How long a delivery to this consumer (or by `basic.get`) may stay unacked, in ms.
    pub(crate) fn timeout_of(&self, slot: u32) -> Option<u64> {
        match self.consumers.get(ConsumerSlot(slot)) {
            Some(consumer) => consumer.timeout_ms,
            None => self.settings.consumer_timeout_ms,
        }
    }

    /// The shortest time that anything here may stay unacked, in ms.
    pub(crate) fn shortest_timeout(&self) -> Option<u64> {
        let consumers = self.consumers.iter().filter(|(_, consumer)| !consumer.no_ack);
        let of_consumers = consumers.filter_map(|(_, consumer)| consumer.timeout_ms);
        of_consumers.chain(self.settings.consumer_timeout_ms).min()
    }

    /// A transaction keeps `now` bytes after it kept `before`.
    #[inline]
    pub(crate) fn count_kept(&mut self, before: u64, now: u64) {
        self.kept = self.kept.saturating_add(now).saturating_sub(before);
        self.unfinished.tx_ended += before.saturating_sub(now);
    }

    /// Sends what the turn gathered.
    pub(crate) fn finish(&mut self, cx: &mut Context<'_>) {
        self.batch.flush(self.id, cx.outbox);
        self.give_room_back(cx);
        let resumes = std::mem::take(&mut self.resumes);
        if let Some(allowances) = &mut self.allowances {
            if allowances.tell(self.id, cx.outbox) {
                self.timers.watch_calls(cx.now);
            }
        } else if resumes {
            self.resume(cx);
        }
        self.out_len = cx.out.len();
    }

    /// Has every group look again at this connection's consumers, each time another one first.
    #[cold]
    fn resume(&mut self, cx: &mut Context<'_>) {
        let mut has_some = ByGroup::<bool>::default();
        for (_, consumer) in self.consumers.iter() {
            *has_some.of(consumer.home) = true;
        }
        let groups = has_some.iter().filter(|(_, has_some)| **has_some);
        let mut others: Vec<_> = groups.map(|(group, _)| group).collect();
        if others.is_empty() {
            return;
        }
        self.resumes_made = self.resumes_made.wrapping_add(1);
        let first = self.resumes_made % others.len();
        others.rotate_left(first);
        if let Some(first) = others.pop() {
            cx.outbox.shard(first, ToShard::Resume { connection: self.id, others });
        }
    }
}
