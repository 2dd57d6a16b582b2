//! Who samples, and when: every interval, each second while somebody looks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foldhash::fast::FixedState;
use hashbrown::HashSet;
use leveret_broker::message::{Reply, ToShard};
use leveret_broker::numbers::{QueueNumbers, ShardRest};
use leveret_queue::Time;
use leveret_server::clock::now;
use leveret_server::connection::{Connection, Sampled};
use leveret_server::ended::{self, Sums};
use leveret_server::front::About;
use leveret_server::locks::{Rank, Ranked};
use leveret_server::node::Node;
use tokio::sync::Notify;

use super::history::{History, Kept};
use super::names;
use super::node::NodeFacts;
use super::pairs::{pairs, passages};
use super::snapshot::{ConnectionEntry, ExchangeEntry, Present, QueueEntry, Snapshot};
use crate::ops::ask::{Asker, Refusal};

/// How long one look makes samples come each second, in ms.
const LOOK_MS: u64 = 10_000;

/// Connections that are looked at before others have their turn on the thread.
const CONNECTIONS_PER_TURN: usize = 256;

/// Samples the node.
#[derive(Debug)]
pub struct Collector {
    node: Arc<Node>,
    about: About,
    interval: Duration,
    latest: Ranked<Arc<Snapshot>>,
    /// One sample at a time.
    sampling: tokio::sync::Mutex<()>,
    /// Somebody looks until then, in ms since the Unix epoch.
    looked_at_until: AtomicU64,
    looks: Notify,
}

/// What is read anew for a sample.
#[derive(Debug, Default)]
struct Fresh {
    /// In the pieces they came in: there may be very many, and each piece goes as it was taken in.
    queues: Vec<Vec<QueueNumbers>>,
    shards: Vec<ShardRest>,
    /// By id.
    connections: Vec<FreshConnection>,
    ended: ended::Totals,
}

/// A connection as it is now.
#[derive(Debug)]
struct FreshConnection {
    connection: Arc<Connection>,
    /// None when it had no turn since the last sample.
    news: Option<Box<Sampled>>,
}

impl Collector {
    /// For a node, with its `collect_statistics_interval`.
    pub fn new(node: Arc<Node>, about: About, interval: Duration) -> Self {
        Self {
            node,
            about,
            interval,
            latest: Ranked::new(Rank::Statistics, Arc::default()),
            sampling: tokio::sync::Mutex::default(),
            looked_at_until: AtomicU64::new(0),
            looks: Notify::new(),
        }
    }

    /// What was sampled last.
    pub fn latest(&self) -> Arc<Snapshot> {
        Arc::clone(&self.latest.lock())
    }

    /// The node it samples.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// What the node was started with.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Somebody looks: samples come each second for a while.
    pub fn look(&self) {
        let until = now().ms() + LOOK_MS;
        if self.looked_at_until.swap(until, Ordering::Relaxed) < now().ms() {
            self.looks.notify_one();
        }
    }

    /// Samples until the task is dropped.
    pub async fn run(self: Arc<Self>) {
        loop {
            if let Err(Refusal::Stopping) = self.sample().await {
                return;
            }
            let is_looked_at = self.looked_at_until.load(Ordering::Relaxed) > now().ms();
            let second = Duration::from_secs(1);
            let wait = if is_looked_at { second.min(self.interval) } else { self.interval };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.looks.notified() => {}
            }
        }
    }

    /// What is known, and not older than that.
    pub async fn fresh(&self, within: Duration) -> Arc<Snapshot> {
        let oldest = now().ms().saturating_sub(within.as_millis() as u64);
        if self.latest().at.is_none_or(|at| at.ms() < oldest) {
            // A node that stops has nothing newer.
            let _ = self.sample().await;
        }
        self.latest()
    }

    /// Samples now.
    ///
    /// # Errors
    ///
    /// When the node stops.
    pub async fn sample(&self) -> Result<(), Refusal> {
        let _one = self.sampling.lock().await;
        let mut fresh = Fresh::default();
        self.node.ended.begin();
        self.ask_connections(&mut fresh).await;
        let (ended, late) = self.node.ended.finish();
        fresh.ended = ended;
        fresh.connections.retain(|it| !late.contains(&it.connection.id()));
        self.ask_shards(&mut fresh).await?;
        let mut latest = self.latest.lock();
        // Copied only while somebody still holds the one before.
        self.take_in(Arc::make_mut(&mut latest), fresh);
        Ok(())
    }

    /// Most of very many rest: those are not asked, which would take their locks and copy what is known.
    async fn ask_connections(&self, fresh: &mut Fresh) {
        let connections = self.node.connections();
        for some in connections.chunks(CONNECTIONS_PER_TURN) {
            let rests: Vec<bool> = {
                let known = self.latest.lock();
                let turns = |it: &Connection| Some(known.connections.get(&it.id())?.turns);
                some.iter().map(|it| turns(it) == Some(it.turns())).collect()
            };
            for (connection, rests) in some.iter().zip(rests) {
                let news = match rests {
                    true => None,
                    false => match connection.sample() {
                        Some(sampled) => Some(Box::new(sampled)),
                        None => continue,
                    },
                };
                let connection = Arc::clone(connection);
                fresh.connections.push(FreshConnection { connection, news });
            }
            tokio::task::yield_now().await;
        }
    }

    async fn ask_shards(&self, fresh: &mut Fresh) -> Result<(), Refusal> {
        let mut asker = Asker::new(&self.node);
        let reply = asker.reply_to();
        for index in 0..self.node.shards.len() {
            let mut begins = true;
            loop {
                asker.tell_shard(index, ToShard::Sample { reply, begins });
                begins = false;
                let Reply::Sampled(piece) = asker.answer().await? else { continue };
                fresh.queues.push(piece.queues);
                if let Some(rest) = piece.rest {
                    fresh.shards.push(rest);
                    break;
                }
            }
        }
        Ok(())
    }

    /// Puts what was read anew in the place of what was known.
    fn take_in(&self, snapshot: &mut Snapshot, fresh: Fresh) {
        let at = now();
        let before = snapshot.at.replace(at);
        let Fresh { queues, shards, connections, ended } = fresh;
        snapshot.overview.now = Present::default();
        snapshot.overview.sums = Sums::default();
        for vhost in snapshot.vhosts.values_mut() {
            vhost.now = Present::default();
            vhost.sums = Sums::default();
        }
        let passed_ms = before.map_or(0, |before| at.ms().saturating_sub(before.ms()));
        take_connections(snapshot, connections, at, passed_ms);
        snapshot.ended = ended.passages;
        for (vhost, sums) in ended.by_vhost {
            let entry = snapshot.vhosts.entry(vhost).or_default();
            entry.sums.add(&sums.session, sums.io);
        }
        self.take_queues(snapshot, queues, &shards, before, at);
        self.sum_up(snapshot, shards, at);
    }

    fn take_queues(
        &self,
        snapshot: &mut Snapshot,
        queues: Vec<Vec<QueueNumbers>>,
        shards: &[ShardRest],
        before: Option<Time>,
        at: Time,
    ) {
        let Snapshot { overview, queues: known, vhosts, .. } = snapshot;
        overview.queues.clear();
        for gone in shards.iter().flat_map(|shard| &shard.gone) {
            let kind = (gone.kind, gone.at_least_once);
            *overview.queues.entry(kind).or_default() += gone.totals;
        }
        let seen: HashSet<_, FixedState> = queues.iter().flatten().map(|it| it.queue).collect();
        let kept = Kept::of(seen.len());
        known.retain(|id, _| seen.contains(id));
        let topology = self.node.topology();
        for numbers in queues.into_iter().flatten() {
            let named = topology.queue_by_id(numbers.queue);
            // As the shard says: the name may be gone before the queue is.
            let kind = (numbers.kind, numbers.at_least_once);
            *overview.queues.entry(kind).or_default() += numbers.totals;
            let entry = known.entry(numbers.queue).or_insert_with(|| {
                Box::new(QueueEntry {
                    numbers,
                    vhost: None,
                    messages: History::default(),
                    lengths: History::default(),
                    consumer_capacity: 0.0,
                })
            });
            entry.consumer_capacity = capacity(&entry.numbers, &numbers, before, at);
            entry.numbers = numbers;
            entry.vhost = named.map(|named| named.vhost);
            let counts = &numbers.counts;
            entry.messages.push(at.ms(), names::queue(&numbers), kept);
            entry.lengths.push(at.ms(), names::lengths(counts.ready, counts.unacked), kept);
            let mut all = vec![&mut overview.now];
            if let Some(vhost) = entry.vhost {
                all.push(&mut vhosts.entry(vhost).or_default().now);
            }
            for now in all {
                now.queues += 1;
                now.ready += counts.ready;
                now.unacked += counts.unacked;
                now.consumers += u64::from(counts.consumers);
            }
        }
    }

    /// Totals of vhosts, exchanges and the node.
    fn sum_up(&self, snapshot: &mut Snapshot, shards: Vec<ShardRest>, at: Time) {
        let statistics = snapshot.memory_bytes();
        let Snapshot { overview, vhosts, exchanges, .. } = snapshot;
        let topology = self.node.topology();
        for vhost in vhosts.values_mut() {
            overview.sums.add(&vhost.sums.session, vhost.sums.io);
            let (sums, now) = (&vhost.sums, &vhost.now);
            vhost.messages.push(at.ms(), names::channel(&sums.session.channels), Kept::Global);
            vhost.lengths.push(at.ms(), names::lengths(now.ready, now.unacked), Kept::Global);
            vhost.data.push(at.ms(), names::data(&sums.io), Kept::Global);
        }
        self.node.ended.forget_gone(&topology);
        exchanges.retain(|&id, _| topology.exchange_by_id(id).is_some());
        let published = &overview.sums.session.exchanges;
        let kept = Kept::of(published.len());
        for (&id, &totals) in published {
            if topology.exchange_by_id(id).is_some() {
                let entry = exchanges.entry(id).or_insert_with(ExchangeEntry::default);
                entry.totals = totals;
                entry.messages.push(at.ms(), names::exchange(&totals), kept);
            }
        }
        drop(topology);
        overview.meta = self.node.meta.state().counters();
        overview.node = NodeFacts::now(&self.node, &self.about, &shards, statistics);
        overview.shards = shards;
        let (sums, now) = (&overview.sums, &overview.now);
        let ms = at.ms();
        overview.messages.push(ms, names::channel(&sums.session.channels), Kept::Global);
        overview.lengths.push(ms, names::lengths(now.ready, now.unacked), Kept::Global);
        overview.data.push(ms, names::data(&sums.io), Kept::Global);
        overview.churn.push(ms, names::churn(&sums.session, &overview.meta), Kept::Global);
        overview.process.push(ms, overview.node.counters(), Kept::Global);
        overview.confirms.push(ms, sums.session.confirm.counts, Kept::Global);
        overview.disk.push(ms, names::disk(&overview.node.io), Kept::Global);
    }
}

/// Connections as they are, with the histories of those that were there before.
fn take_connections(
    snapshot: &mut Snapshot,
    fresh: Vec<FreshConnection>,
    at: Time,
    passed_ms: u64,
) {
    let kept = Kept::of(fresh.len());
    // There may be very many: those that stay keep their place in memory.
    let mut before = std::mem::take(&mut snapshot.connections);
    for FreshConnection { connection, news } in fresh {
        let id = connection.id();
        let mut entry = match (before.remove(&id), news.map(|news| *news)) {
            (Some(known), None) => known,
            (Some(mut known), Some(Sampled { turns, session, io })) => {
                (known.turns, known.numbers, known.io) = (turns, session, io);
                known
            }
            (None, Some(Sampled { turns, session, io })) => Box::new(ConnectionEntry {
                connection,
                turns,
                numbers: session,
                io,
                data: History::default(),
                channels: Vec::new(),
                pairs: Vec::new(),
                passages: Vec::new(),
            }),
            // Who is not known was asked.
            (None, None) => continue,
        };
        entry.pairs = pairs(&entry.pairs, &entry.numbers, passed_ms);
        entry.passages = passages(&entry.passages, &entry.numbers, passed_ms);
        entry.data.push(at.ms(), names::data(&entry.io), kept);
        take_channels(&mut entry, at, kept);
        let numbers = &entry.numbers;
        let vhost = snapshot.vhosts.entry(numbers.vhost).or_default();
        vhost.sums.add(&numbers.totals, entry.io);
        let both = [&mut snapshot.overview.now, &mut vhost.now];
        for now in both.into_iter().filter(|_| numbers.is_open) {
            let open = || numbers.channels.iter().filter(|channel| !channel.is_closing);
            now.connections += 1;
            now.channels += open().count() as u64;
            let published = open().filter(|channel| channel.totals.published.publish > 0);
            now.publishers += published.count() as u64;
            now.waits.count(numbers.waits_for);
        }
        snapshot.connections.insert(id, entry);
    }
}

/// The channels that there are now, with what is known of them; both lists are by number.
fn take_channels(entry: &mut ConnectionEntry, at: Time, kept: Kept) {
    let mut known = std::mem::take(&mut entry.channels).into_iter().peekable();
    entry.channels.reserve_exact(entry.numbers.channels.len());
    for facts in &entry.numbers.channels {
        while known.next_if(|(number, _)| *number < facts.number).is_some() {}
        let known = known.next_if(|(number, _)| *number == facts.number);
        let mut channel = known.map(|(_, channel)| channel).unwrap_or_default();
        channel.messages.push(at.ms(), names::channel(&facts.totals), kept);
        entry.channels.push((facts.number, channel));
    }
}

/// The part of the time between two looks at a queue in which consumers could take all there was.
fn capacity(then: &QueueNumbers, now: &QueueNumbers, before: Option<Time>, at: Time) -> f64 {
    if now.counts.consumers == 0 {
        return 0.0;
    }
    let passed = before.map_or(0, |before| at.ms().saturating_sub(before.ms()));
    let waited = now.waited_ms.saturating_sub(then.waited_ms);
    if passed == 0 { 1.0 } else { 1.0 - (waited as f64 / passed as f64).clamp(0.0, 1.0) }
}
