//! What is known of the node, as of one moment.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_broker::message::ConnectionId;
use leveret_broker::meta::MetaCounters;
use leveret_broker::numbers::{QueueNumbers, ShardRest};
use leveret_queue::{Time, Totals};
use leveret_server::cluster::sessions::seen::AnyConnection;
use leveret_server::connection::Io;
use leveret_server::ended::{Passages, Sums};
use leveret_session::{ConfirmTimes, ConnectionNumbers, ExchangeTotals, Passed};
use leveret_topology::{ExchangeId, QueueId, QueueKind, VhostId};

use super::busy::Busy;
use super::history::{History, Ms};
use super::names::{CHANNEL, CHURN, DATA, DISK, EXCHANGE, LENGTHS, NODE, QUEUE};
use super::node::NodeFacts;
use super::pairs::{Pair, Passage};

type Map<K, V> = HashMap<K, V, FixedState>;

/// Everything that was sampled.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// When; `None` before the first sample.
    pub at: Option<Time>,
    /// All of the node.
    pub overview: Overview,
    /// Queues.
    pub queues: Map<QueueId, Box<QueueEntry>>,
    /// Connections, oldest first.
    pub connections: BTreeMap<ConnectionId, Box<ConnectionEntry>>,
    /// Exchanges that were published to.
    pub exchanges: Map<ExchangeId, ExchangeEntry>,
    /// Vhosts.
    pub vhosts: BTreeMap<VhostId, VhostEntry>,
    /// What passed of connections that ended.
    pub ended: Arc<Passages>,
}

/// The node as a whole. Its totals never go back while the process lives.
#[derive(Clone, Debug, Default)]
pub struct Overview {
    /// What connections counted, those that ended too.
    pub sums: Sums,
    /// What queues counted, those that are gone too, by type and by whether dead letters are
    /// at-least-once.
    pub queues: BTreeMap<(QueueKind, bool), Totals>,
    /// What happened to names.
    pub meta: MetaCounters,
    /// What took longer than a second, and for how many seconds the longest does now.
    pub stalls: (u64, f64),
    /// What took longer than 10 ms.
    pub long_turns: u64,
    /// What shards tell besides queues.
    pub shards: Vec<ShardRest>,
    /// Threads and shards.
    pub busy: Busy,
    /// The process.
    pub node: NodeFacts,
    /// Messages and consumers there are.
    pub now: Present,
    /// `message_stats`, under [`CHANNEL`].
    pub messages: History<{ CHANNEL.len() }>,
    /// `queue_totals`, under [`LENGTHS`].
    pub lengths: History<{ LENGTHS.len() }>,
    /// Under [`DATA`].
    pub data: History<{ DATA.len() }>,
    /// `churn_rates`, under [`CHURN`].
    pub churn: History<{ CHURN.len() }>,
    /// Under [`NODE`].
    pub process: History<{ NODE.len() }>,
    /// Confirms by how long they took, as [`ConfirmTimes`] counts them.
    pub confirms: History<{ ConfirmTimes::PLACES }>,
    /// Under [`DISK`].
    pub disk: History<{ DISK.len() }>,
}

/// What there is now, of all or of a vhost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Present {
    /// Queues.
    pub queues: u64,
    /// Messages that wait for a consumer.
    pub ready: u64,
    /// Messages that wait for an ack.
    pub unacked: u64,
    /// Consumers.
    pub consumers: u64,
    /// Connections that are open.
    pub connections: u64,
    /// Channels that are open.
    pub channels: u64,
    /// Channels that have published something.
    pub publishers: u64,
    /// Connections that are not read because of an alarm, of the disk, of a command under way, of their
    /// output.
    pub waits: Waits,
}

/// Connections that are not read, by what they wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// The end of an alarm.
    pub alarm: u64,
    /// A disk that is far behind.
    pub disk: u64,
    /// The answer to a command.
    pub answer: u64,
    /// A rate that it is over.
    pub rate: u64,
    /// Room for a body.
    pub room: u64,
    /// A client that reads what it is sent.
    pub output: u64,
}

impl Waits {
    pub(super) fn count(&mut self, what: Option<&str>) {
        match what {
            Some("alarm") => self.alarm += 1,
            Some("disk") => self.disk += 1,
            Some("answer") => self.answer += 1,
            Some("rate") => self.rate += 1,
            Some("room") => self.room += 1,
            Some(_) => self.output += 1,
            None => {}
        }
    }

    /// With the words of [`ConnectionNumbers::waits_for`].
    pub fn rows(&self) -> [(&'static str, u64); 6] {
        [
            ("alarm", self.alarm),
            ("disk", self.disk),
            ("answer", self.answer),
            ("rate", self.rate),
            ("room", self.room),
            ("output", self.output),
        ]
    }
}

/// A queue.
#[derive(Clone, Debug)]
pub struct QueueEntry {
    /// As last told.
    pub numbers: QueueNumbers,
    /// Its vhost; none when its name is gone already.
    pub vhost: Option<VhostId>,
    /// `message_stats`, under [`QUEUE`].
    pub messages: History<{ QUEUE.len() }>,
    /// Under [`LENGTHS`].
    pub lengths: History<{ LENGTHS.len() }>,
    /// Part of the time since the sample before in which consumers could take all there was; 0 without
    /// consumers. RabbitMQ's `consumer_capacity`.
    pub consumer_capacity: f64,
}

impl QueueEntry {
    /// Since when nothing came, went or was asked for, in ms of the Unix epoch; none while something does.
    pub fn idle_since(&self) -> Option<Ms> {
        Some(self.messages.idle_since()?.max(self.lengths.idle_since()?))
    }
}

/// A connection.
#[derive(Clone, Debug)]
pub struct ConnectionEntry {
    /// The connection itself.
    pub connection: AnyConnection,
    /// The turns it had when it was last asked.
    pub turns: u64,
    /// As last told.
    pub numbers: ConnectionNumbers,
    /// What went through its socket.
    pub io: Io,
    /// What it holds, in bytes.
    pub held_bytes: u64,
    /// Letters that waited for its turn.
    pub letters: u64,
    /// Under [`DATA`].
    pub data: History<{ DATA.len() }>,
    /// Its channels, by number.
    pub channels: Vec<(u16, ChannelEntry)>,
    /// What its channels have to do with exchanges and queues, by channel.
    pub pairs: Vec<Pair>,
    /// What it published, by exchange and queue.
    pub passages: Vec<Passage>,
}

impl ConnectionEntry {
    /// A channel of this number.
    pub fn channel(&self, number: u16) -> Option<&ChannelEntry> {
        let at = self.channels.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        self.channels.get(at).map(|(_, channel)| channel)
    }
}

/// A channel's history. What it told last is in [`ConnectionNumbers::channels`].
#[derive(Clone, Debug, Default)]
pub struct ChannelEntry {
    /// `message_stats`, under [`CHANNEL`].
    pub messages: History<{ CHANNEL.len() }>,
}

/// An exchange that was published to.
#[derive(Clone, Debug, Default)]
pub struct ExchangeEntry {
    /// By all connections, those that ended too.
    pub totals: ExchangeTotals,
    /// Under [`EXCHANGE`].
    pub messages: History<{ EXCHANGE.len() }>,
}

/// A vhost.
#[derive(Clone, Debug, Default)]
pub struct VhostEntry {
    /// What its connections counted, those that ended too.
    pub sums: Sums,
    /// What is in it.
    pub now: Present,
    /// `message_stats`, under [`CHANNEL`].
    pub messages: History<{ CHANNEL.len() }>,
    /// Under [`LENGTHS`].
    pub lengths: History<{ LENGTHS.len() }>,
    /// Under [`DATA`].
    pub data: History<{ DATA.len() }>,
}

impl Snapshot {
    /// About how many bytes it takes.
    pub fn memory_bytes(&self) -> u64 {
        let queues = self.queues.values().map(|it| it.messages.bytes() + it.lengths.bytes());
        let exchanges = self.exchanges.values().map(|it| it.messages.bytes());
        let channels = |it: &ConnectionEntry| -> u64 {
            let histories = it.channels.iter().map(|(_, it)| it.messages.bytes()).sum::<u64>();
            histories + (it.channels.len() * size_of::<(u16, ChannelEntry)>()) as u64
        };
        let pairs =
            |it: &ConnectionEntry| (size_of_val(&*it.pairs) + size_of_val(&*it.passages)) as u64;
        let connections =
            self.connections.values().map(|it| it.data.bytes() + channels(it) + pairs(it));
        let entries = self.queues.len() * size_of::<QueueEntry>()
            + self.connections.len() * size_of::<ConnectionEntry>()
            + self.ended.len() * size_of::<Passed>();
        queues.chain(exchanges).chain(connections).sum::<u64>() + entries as u64
    }
}
