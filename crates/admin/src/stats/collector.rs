//! Who samples, and when: every interval, each second while somebody looks.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foldhash::fast::FixedState;
use hashbrown::HashSet;
use leveret_broker::message::{ConnectionId, NodeId, Reply, ToShard};
use leveret_broker::numbers::{QueueNumbers, ShardRest};
use leveret_queue::{Time, Totals};
use leveret_server::clock::now;
use leveret_server::cluster::sessions::seen::{AnyConnection, SampleTold, SampledElsewhere};
use leveret_server::connection::{Connection, Io, Sampled};
use leveret_server::ended::{self, Passages, Sums};
use leveret_server::front::About;
use leveret_server::locks::{Guard, Rank, Ranked};
use leveret_server::node::Node;
use leveret_session::SessionTotals;
use leveret_topology::{QueueId, QueueKind, Topology, VhostId};
use tokio::sync::Notify;
use tokio::task::yield_now;

use super::history::{History, Retention};
use super::names;
use super::node::NodeFacts;
use super::pairs::{pairs, passages};
use super::snapshot::{ConnectionEntry, ExchangeEntry, Present, QueueEntry, Snapshot, VhostEntry};
use crate::ops::ask::{Asker, Refusal};
use crate::ops::{pages, system};

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
    /// Changed in pieces while a sample is taken in: what it tells of one object is of one moment.
    latest: Ranked<Snapshot>,
    /// One sample at a time: whoever has it samples.
    sampling: tokio::sync::Mutex<FarNodes>,
    /// Somebody looks until then, in ms since the Unix epoch.
    looked_at_until: AtomicU64,
    looks: Notify,
}

/// Nodes of sessions that are here, by number.
type FarNodes = BTreeMap<NodeId, FarNode>;

/// A node of sessions, as of what it told last: that counts while it says nothing, and is left when its start is over.
#[derive(Debug)]
struct FarNode {
    start: u32,
    connections: Vec<ConnectionId>,
    ended: ended::Totals,
}

/// What is read anew for a sample, before queues are.
#[derive(Debug, Default)]
struct Fresh {
    /// By id.
    connections: Vec<FreshConnection>,
    /// Of each node.
    ended: Vec<ended::Totals>,
}

/// A connection as it is now.
#[derive(Debug)]
struct FreshConnection {
    id: ConnectionId,
    /// None when it had no turn since the last sample.
    news: Option<(AnyConnection, Box<Sampled>)>,
}

impl Collector {
    /// For a node, with its `collect_statistics_interval`.
    pub fn new(node: Arc<Node>, about: About, interval: Duration) -> Self {
        Self {
            node,
            about,
            interval,
            latest: Ranked::new(Rank::Statistics, Snapshot::default()),
            sampling: tokio::sync::Mutex::default(),
            looked_at_until: AtomicU64::new(0),
            looks: Notify::new(),
        }
    }

    /// What was sampled last, as long as the guard lives: for a page of rows, and never while something is waited for.
    pub fn now(&self) -> Guard<'_, Snapshot> {
        self.latest.lock()
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

    /// Samples, if what is known is older than that.
    pub async fn refresh(self: &Arc<Self>, within: Duration) {
        let oldest = now().ms().saturating_sub(within.as_millis() as u64);
        if self.is_older(oldest) {
            // A node that stops has nothing newer.
            let _ = self.sample_if(move |it| it.is_older(oldest)).await;
        }
    }

    fn is_older(&self, than_ms: u64) -> bool {
        self.now().at.is_none_or(|at| at.ms() < than_ms)
    }

    /// Samples now.
    ///
    /// # Errors
    ///
    /// When the node stops.
    pub async fn sample(self: &Arc<Self>) -> Result<(), Refusal> {
        self.sample_if(|_| true).await
    }

    /// Samples, once nobody else does, if that is wanted still: whoever was first has sampled for all who waited. It runs to its end
    /// though whoever asked may go, as what connections and nodes have told they do not tell again.
    async fn sample_if(
        self: &Arc<Self>,
        is_wanted: impl FnOnce(&Self) -> bool + Send + 'static,
    ) -> Result<(), Refusal> {
        let this = Arc::clone(self);
        let sampled = tokio::spawn(async move {
            let mut known = this.sampling.lock().await;
            match is_wanted(&this) {
                true => this.sample_alone(&mut known).await,
                false => Ok(()),
            }
        });
        // A panic aborts the process: the runtime ends.
        sampled.await.unwrap_or(Err(Refusal::Stopping))
    }

    /// Nobody else samples.
    async fn sample_alone(&self, known: &mut FarNodes) -> Result<(), Refusal> {
        let mut fresh = Fresh::default();
        // Before the totals of what is ended: those of a node that is gone are added there.
        self.ask_nodes(known, &mut fresh).await;
        self.node.ended.begin();
        self.ask_connections(&mut fresh).await;
        let (ended, late) = self.node.ended.finish();
        fresh.ended.push(ended);
        fresh.connections.retain(|it| !late.contains(&it.id));
        self.take_in(fresh).await
    }

    /// What nodes of sessions tell. Of one that tells nothing what is known stays as it was.
    async fn ask_nodes(&self, known: &mut FarNodes, fresh: &mut Fresh) {
        let here = self.node.sample_elsewhere().await;
        let is_here = |node, start| here.iter().any(|it| (it.node, it.start) == (node, start));
        let (still, over): (FarNodes, FarNodes) =
            std::mem::take(known).into_iter().partition(|(node, it)| is_here(*node, it.start));
        *known = still;
        for of_node in over.into_values() {
            self.is_over(of_node).await;
        }
        let rest = |id| FreshConnection { id, news: None };
        for SampledElsewhere { node, start, told } in here {
            let begun = fresh.connections.len();
            if let Some(SampleTold { news, rests, ended }) = told {
                let news = news.into_iter();
                let news = news.map(|it| FreshConnection { id: it.0.id(), news: Some(it) });
                fresh.connections.extend(news.chain(rests.into_iter().map(rest)));
                let connections = fresh.connections.iter().skip(begun).map(|it| it.id).collect();
                known.insert(node, FarNode { start, connections, ended });
            } else if let Some(of_node) = known.get(&node) {
                fresh.connections.extend(of_node.connections.iter().copied().map(rest));
            }
            fresh.ended.extend(known.get(&node).map(|it| it.ended.clone()));
            yield_now().await;
        }
    }

    /// A node of sessions is gone, or begins anew: what it counted is left, as by connections that are over.
    async fn is_over(&self, FarNode { connections, ended, .. }: FarNode) {
        for some in connections.chunks(CONNECTIONS_PER_TURN) {
            let mut left = ended::Totals::default();
            {
                let snapshot = self.latest.lock();
                for entry in some.iter().filter_map(|id| snapshot.connections.get(id)) {
                    let totals = &entry.numbers.totals;
                    let session = SessionTotals {
                        connections_closed: totals.connections_opened,
                        channels_closed: totals.channels_opened,
                        ..totals.clone()
                    };
                    let io = Io { send_pend: 0, ..entry.io };
                    left.by_vhost.push((entry.numbers.vhost, Sums { session, io }));
                    let passages = Arc::make_mut(&mut left.passages);
                    for (pair, messages) in &entry.numbers.passed {
                        *passages.entry(*pair).or_default() += messages;
                    }
                }
            }
            self.node.ended.keep_of_node(&left);
            yield_now().await;
        }
        self.node.ended.keep_of_node(&ended);
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
                        Some(sampled) => {
                            let connection = AnyConnection::Here(Arc::clone(connection));
                            Some((connection, Box::new(sampled)))
                        }
                        None => continue,
                    },
                };
                fresh.connections.push(FreshConnection { id: connection.id(), news });
            }
            yield_now().await;
        }
    }

    /// Puts what was read anew in the place of what was known: objects some at a time, sums at the end.
    async fn take_in(&self, fresh: Fresh) -> Result<(), Refusal> {
        let at = now();
        let before = self.latest.lock().at;
        let Fresh { connections, ended } = fresh;
        let mut sums = SumsSoFar::default();
        let passed_ms = before.map_or(0, |before| at.ms().saturating_sub(before.ms()));
        self.take_connections(connections, at, passed_ms, &mut sums).await;
        let mut passages = Arc::<Passages>::default();
        for of_node in ended {
            for (vhost, of_vhost) in of_node.by_vhost {
                sums.vhosts.entry(vhost).or_default().1.add(&of_vhost.session, of_vhost.io);
            }
            if passages.is_empty() {
                passages = of_node.passages;
            } else if !of_node.passages.is_empty() {
                let all = Arc::make_mut(&mut passages);
                of_node.passages.iter().for_each(|(pair, n)| *all.entry(*pair).or_default() += n);
            }
        }
        let shards = self.take_queues((before, at), &mut sums).await?;
        for gone in shards.iter().flat_map(|shard| &shard.gone) {
            let kind = (gone.kind, gone.at_least_once);
            *sums.queues.entry(kind).or_default() += gone.totals;
        }
        self.sum_up(sums, shards, passages, at);
        Ok(())
    }

    /// Connections as they are, with the histories of those that were there before.
    async fn take_connections(
        &self,
        fresh: Vec<FreshConnection>,
        at: Time,
        passed_ms: u64,
        sums: &mut SumsSoFar,
    ) {
        let kept = Retention::of(fresh.len());
        sums.connections = fresh.iter().map(|it| it.id).collect();
        let mut fresh = fresh.into_iter().peekable();
        while fresh.peek().is_some() {
            {
                let mut snapshot = self.latest.lock();
                let some = fresh.by_ref().take(CONNECTIONS_PER_TURN);
                some.for_each(|one| {
                    take_connection(&mut snapshot, one, (at, passed_ms), kept, sums)
                });
            }
            yield_now().await;
        }
    }

    /// Queues as shards tell them. There may be very many: a piece is taken in before the next is asked for. Shards tell
    /// nothing while their queues are being filled.
    async fn take_queues(
        &self,
        moments: (Option<Time>, Time),
        sums: &mut SumsSoFar,
    ) -> Result<Vec<ShardRest>, Refusal> {
        let mut shards = Vec::new();
        let known = self.latest.lock().queues.len();
        let mut seen: HashSet<QueueId, FixedState> = HashSet::default();
        let asked = if self.node.is_filled() { self.node.shards.len() } else { 0 };
        let mut asker = Asker::new(&self.node);
        let reply = asker.reply_to();
        for index in 0..asked {
            let mut begins = true;
            loop {
                asker
                    .tell_shard(self.node.homes.group_at(index), ToShard::Sample { reply, begins });
                begins = false;
                let Reply::Sampled(piece) = asker.answer().await? else { continue };
                seen.extend(piece.queues.iter().map(|it| it.queue));
                let kept = Retention::of(known.max(seen.len()));
                self.take_some_queues(&piece.queues, moments, kept, sums).await;
                if let Some(rest) = piece.rest {
                    shards.push(rest);
                    break;
                }
            }
        }
        self.latest.lock().queues.retain(|id, _| seen.contains(id));
        Ok(shards)
    }

    async fn take_some_queues(
        &self,
        queues: &[QueueNumbers],
        moments: (Option<Time>, Time),
        kept: Retention,
        sums: &mut SumsSoFar,
    ) {
        for some in queues.chunks(pages::ROWS) {
            let ids: Vec<_> = some.iter().map(|numbers| numbers.queue).collect();
            let vhost =
                |topology: &Topology, id| Some(topology.queue_by_id(id).map(|queue| queue.vhost));
            let vhosts = pages::copied(&self.node, ids, vhost).await;
            {
                let mut snapshot = self.latest.lock();
                for (numbers, vhost) in some.iter().zip(vhosts) {
                    take_queue(&mut snapshot, *numbers, vhost, moments, kept, sums);
                }
            }
            yield_now().await;
        }
    }

    /// Totals of vhosts, exchanges and the node.
    fn sum_up(&self, sums: SumsSoFar, shards: Vec<ShardRest>, passages: Arc<Passages>, at: Time) {
        let SumsSoFar { now, mut vhosts, queues, connections } = sums;
        let mut all = Sums::default();
        vhosts.values().for_each(|(_, sums)| all.add(&sums.session, sums.io));
        let meta = self.node.meta().state().counters();
        let mut published = std::mem::take(&mut all.session.exchanges);
        {
            let topology = self.node.topology();
            self.node.ended.forget_gone(&topology);
            published.retain(|&id, _| topology.exchange_by_id(id).is_some());
        }
        let statistics = self.latest.lock().memory_bytes();
        let facts = NodeFacts::now(&self.node, &self.about, &shards, statistics);
        let threads = system::threads();
        let mut snapshot = self.latest.lock();
        let Snapshot {
            overview,
            vhosts: known,
            connections: known_connections,
            exchanges,
            ended,
            at: sampled_at,
            ..
        } = &mut *snapshot;
        let ms = at.ms();
        *sampled_at = Some(at);
        // At once: what passed of one that ended is in one of the two.
        known_connections.retain(|id, _| connections.contains(id));
        *ended = passages;
        for (id, vhost) in known.iter_mut() {
            (vhost.now, vhost.sums) = vhosts.remove(id).unwrap_or_default();
        }
        for (id, (now, sums)) in vhosts {
            known.insert(id, VhostEntry { now, sums, ..VhostEntry::default() });
        }
        for vhost in known.values_mut() {
            let (sums, now) = (&vhost.sums, &vhost.now);
            vhost.messages.push(ms, names::channel(&sums.session.channels), Retention::Global);
            vhost.lengths.push(ms, names::lengths(now.ready, now.unacked), Retention::Global);
            vhost.data.push(ms, names::data(&sums.io), Retention::Global);
        }
        exchanges.retain(|id, _| published.contains_key(id));
        let kept = Retention::of(published.len());
        for (&id, &totals) in &published {
            let entry = exchanges.entry(id).or_insert_with(ExchangeEntry::default);
            entry.totals = totals;
            entry.messages.push(ms, names::exchange(&totals), kept);
        }
        all.session.exchanges = published;
        (overview.sums, overview.now, overview.queues) = (all, now, queues);
        overview.busy = overview.busy.next(ms, threads, &shards);
        (overview.meta, overview.node, overview.shards) = (meta, facts, shards);
        let watched = &self.node.watched;
        let longest_s = watched.stall().map_or(0.0, |(longest, _)| longest.as_secs_f64());
        overview.stalls = (watched.stalls(), longest_s);
        overview.long_turns = watched.long_count();
        let (sums, now) = (&overview.sums, &overview.now);
        overview.messages.push(ms, names::channel(&sums.session.channels), Retention::Global);
        overview.lengths.push(ms, names::lengths(now.ready, now.unacked), Retention::Global);
        overview.data.push(ms, names::data(&sums.io), Retention::Global);
        overview.churn.push(ms, names::churn(&sums.session, &overview.meta), Retention::Global);
        overview.process.push(ms, overview.node.counters(), Retention::Global);
        overview.confirms.push(ms, sums.session.confirm.counts, Retention::Global);
        overview.disk.push(ms, names::disk(&overview.node.io), Retention::Global);
    }
}

/// Sums over what was taken in so far. They take the place of those before when all is in: no total goes back.
#[derive(Debug, Default)]
struct SumsSoFar {
    now: Present,
    vhosts: BTreeMap<VhostId, (Present, Sums)>,
    queues: BTreeMap<(QueueKind, bool), Totals>,
    /// Those that there are.
    connections: HashSet<ConnectionId, FixedState>,
}

/// A queue as it is now.
fn take_queue(
    snapshot: &mut Snapshot,
    numbers: QueueNumbers,
    vhost: Option<VhostId>,
    (before, at): (Option<Time>, Time),
    kept: Retention,
    sums: &mut SumsSoFar,
) {
    // As the shard says: the name may be gone before the queue is.
    let kind = (numbers.kind, numbers.at_least_once);
    *sums.queues.entry(kind).or_default() += numbers.totals;
    let entry = snapshot.queues.entry(numbers.queue).or_insert_with(|| {
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
    entry.vhost = vhost;
    let counts = &numbers.counts;
    entry.messages.push(at.ms(), names::queue(&numbers), kept);
    entry.lengths.push(at.ms(), names::lengths(counts.ready, counts.unacked), kept);
    let of_vhost = vhost.map(|vhost| &mut sums.vhosts.entry(vhost).or_default().0);
    for now in of_vhost.into_iter().chain([&mut sums.now]) {
        now.queues += 1;
        now.ready += counts.ready;
        now.unacked += counts.unacked;
        now.consumers += u64::from(counts.consumers);
    }
}

/// A connection as it is now.
fn take_connection(
    snapshot: &mut Snapshot,
    FreshConnection { id, news }: FreshConnection,
    (at, passed_ms): (Time, u64),
    kept: Retention,
    sums: &mut SumsSoFar,
) {
    // There may be very many: those that stay keep their place in memory.
    let known = snapshot.connections.entry(id);
    let entry = match (known, news.map(|(connection, news)| (connection, *news))) {
        (Entry::Occupied(known), None) => known.into_mut(),
        (Entry::Occupied(known), Some((connection, news))) => {
            let Sampled { turns, session, io, held_bytes, letters } = news;
            let known = known.into_mut();
            // One of another node is as of when it was asked.
            known.connection = connection;
            (known.turns, known.numbers, known.io) = (turns, session, io);
            (known.held_bytes, known.letters) = (held_bytes, letters);
            known
        }
        (Entry::Vacant(place), Some((connection, news))) => {
            let Sampled { turns, session, io, held_bytes, letters } = news;
            place.insert(Box::new(ConnectionEntry {
                connection,
                turns,
                numbers: session,
                io,
                held_bytes,
                letters,
                data: History::default(),
                channels: Vec::new(),
                pairs: Vec::new(),
                passages: Vec::new(),
            }))
        }
        // Who is not known was asked.
        (Entry::Vacant(_), None) => return,
    };
    entry.pairs = pairs(&entry.pairs, &entry.numbers, passed_ms);
    entry.passages = passages(&entry.passages, &entry.numbers, passed_ms);
    entry.data.push(at.ms(), names::data(&entry.io), kept);
    take_channels(entry, at, kept);
    let numbers = &entry.numbers;
    let vhost = sums.vhosts.entry(numbers.vhost).or_default();
    vhost.1.add(&numbers.totals, entry.io);
    let both = [&mut sums.now, &mut vhost.0];
    for now in both.into_iter().filter(|_| numbers.is_open) {
        let open = || numbers.channels.iter().filter(|channel| !channel.is_closing);
        now.connections += 1;
        now.channels += open().count() as u64;
        let published = open().filter(|channel| channel.totals.published.publish > 0);
        now.publishers += published.count() as u64;
        now.waits.count(numbers.waits_for.as_deref());
    }
}

/// The channels that there are now, with what is known of them; both lists are by number.
fn take_channels(entry: &mut ConnectionEntry, at: Time, kept: Retention) {
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
