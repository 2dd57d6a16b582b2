//! The pages: which metrics, of which objects, under which prefix.

use std::ops::Bound;
use std::sync::Arc;

use leveret_broker::message::ConnectionId;
use leveret_queue::Totals as QueueTotals;
use leveret_server::cluster::view::ClusterView;
use leveret_server::login::attempts::Counts;
use leveret_server::node::Node;
use leveret_session::ChannelFacts;
use leveret_topology::{ExchangeId, QueueId, Topology, VhostId};

use super::families::{MEMORY, METRICS, Of};
use super::text::{Kind, Number, Text, label, labels};
use super::{cluster, global, own};
use crate::http::pattern::Pattern;
use crate::http::stream::{CHUNK, Chunks, Cut};
use crate::ops::pages::{self, Slice};
use crate::room::Held;
use crate::stats::{Collector, ConnectionEntry, QueueEntry, Snapshot};

/// Which page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// Sums.
    Aggregated,
    /// Each object.
    PerObject,
    /// What was asked for.
    Detailed,
    /// Memory by what it is for.
    MemoryBreakdown,
}

impl Endpoint {
    /// Whether it tells of each object, and so may be long.
    pub(crate) const fn is_of_each(self) -> bool {
        matches!(self, Self::PerObject | Self::Detailed)
    }

    /// As `rabbitmq_identity_info` names it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Aggregated => "aggregated",
            Self::PerObject => "per-object",
            Self::Detailed => "detailed",
            Self::MemoryBreakdown => "memory-breakdown",
        }
    }
}

/// What a detailed page is to show.
#[derive(Debug, Default)]
pub(crate) struct Filter {
    /// Groups of metrics.
    pub(crate) families: Vec<String>,
    /// Only of these vhosts, if any are named.
    pub(crate) vhosts: Option<Vec<String>>,
    /// Only of queues whose name it is found in.
    pub(crate) queue: Option<Pattern>,
}

impl Filter {
    /// How many groups and vhosts it names.
    pub(crate) fn names(&self) -> usize {
        self.families.len() + self.vhosts.as_ref().map_or(0, Vec::len)
    }

    fn has(&self, family: &str) -> bool {
        self.families.iter().any(|wanted| wanted == family)
    }

    fn takes_vhost(&self, vhost: &str) -> bool {
        self.vhosts.as_ref().is_none_or(|wanted| wanted.iter().any(|it| it == vhost))
    }

    fn takes_queue(&self, vhost: &str, name: &str) -> Result<bool, String> {
        match &self.queue {
            Some(pattern) if self.takes_vhost(vhost) => pattern.is_in(name),
            _ => Ok(self.takes_vhost(vhost)),
        }
    }
}

/// What a page is made of.
#[derive(Debug)]
pub(crate) struct PageFacts {
    pub(crate) stats: Arc<Collector>,
    pub(crate) cluster_name: Arc<str>,
    /// The cluster, if the node is not alone.
    pub(crate) view: Option<Arc<ClusterView>>,
    /// Logins by protocol.
    pub(crate) attempts: Vec<(&'static str, Counts)>,
}

/// A queue or an exchange of this id with its names, while it is written.
#[derive(Debug)]
struct Row<I> {
    id: I,
    vhost: Arc<str>,
    name: Arc<str>,
    labels: String,
}

/// A sample of what passes between two things, before its names are looked up.
#[derive(Clone, Copy, Debug)]
struct Pair {
    of: Passes,
    exchange: Option<ExchangeId>,
    queue: Option<QueueId>,
    value: u64,
}

/// Whose messages a [`Pair`] counts.
#[derive(Clone, Copy, Debug)]
enum Passes {
    /// A channel's.
    Channel(ConnectionId, u16),
    /// A connection's.
    Connection(ConnectionId),
    /// All.
    All,
}

impl Pair {
    /// With names: those of the vhost, the exchange and the queue.
    fn labels(&self, vhost: &str, exchange: &str, queue: &str) -> String {
        match (self.of, self.queue) {
            (Passes::Channel(id, number), queue_id) => {
                let other =
                    if queue_id.is_some() { ("queue", queue) } else { ("exchange", exchange) };
                labels(&[("channel", &id.channel_pid(number)), ("vhost", vhost), other])
            }
            (Passes::Connection(id), _) => labels(&[
                ("channel", &id.pid()),
                ("queue_vhost", vhost),
                ("queue", queue),
                ("exchange_vhost", vhost),
                ("exchange", exchange),
            ]),
            (Passes::All, _) => {
                labels(&[("vhost", vhost), ("exchange", exchange), ("queue", queue)])
            }
        }
    }
}

/// Writes pages, some rows at a time: in between it holds nothing, the thread is shared, and what is written goes out.
pub(crate) struct Pages {
    source: PageFacts,
    shown: Shown,
    held: Held,
    text: Text,
    to: Chunks,
    slice: Slice,
    /// Sent so far.
    bytes: usize,
}

/// The queues and exchanges that a page is about, by id. Names are looked up for some rows at a time, whenever these are
/// written: a page that its reader leaves lying takes no more than this.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    queues: Vec<QueueId>,
    exchanges: Vec<ExchangeId>,
}

impl Shown {
    /// About what it takes, of all.
    pub(crate) fn bytes(stats: &Collector) -> u64 {
        let stats = stats.now();
        ((stats.queues.len() + stats.exchanges.len()) * size_of::<QueueId>()) as u64
    }

    /// All that the filter lets through; none where only sums are told. What is wrong with the filter, in words, if it
    /// takes too long.
    pub(crate) async fn of(
        stats: &Collector,
        endpoint: Endpoint,
        filter: &Filter,
    ) -> Result<Self, String> {
        if !endpoint.is_of_each() {
            return Ok(Self::default());
        }
        let (mut queues, mut exchanges): (Vec<QueueId>, Vec<ExchangeId>) = {
            let stats = stats.now();
            (stats.queues.keys().copied().collect(), stats.exchanges.keys().copied().collect())
        };
        pages::sort(&mut queues, Ord::cmp).await;
        pages::sort(&mut exchanges, Ord::cmp).await;
        if filter.vhosts.is_none() && filter.queue.is_none() {
            return Ok(Self { queues, exchanges });
        }
        let mut shown = Self::default();
        let mut slice = Slice::begin();
        for some in queues.chunks(pages::ROWS) {
            for row in queues_named(stats.node(), some).await {
                if filter.takes_queue(&row.vhost, &row.name)? {
                    shown.queues.push(row.id);
                }
                slice.share().await;
            }
        }
        for some in exchanges.chunks(pages::ROWS) {
            let rows = exchanges_named(stats.node(), some).await.into_iter();
            shown.exchanges.extend(rows.filter(|it| filter.takes_vhost(&it.vhost)).map(|it| it.id));
            slice.share().await;
        }
        Ok(shown)
    }

    fn has(&self, pair: &Pair) -> bool {
        let has_queue = |id| self.queues.binary_search(&id).is_ok();
        let has_exchange = |id| self.exchanges.binary_search(&id).is_ok();
        pair.queue.is_none_or(has_queue) && pair.exchange.is_none_or(has_exchange)
    }
}

fn vhost_name(topology: &Topology, id: VhostId) -> Option<Arc<str>> {
    topology.vhost_by_id(id).map(|it| Arc::clone(&it.name))
}

/// These queues with their names, at most [`pages::ROWS`] of them.
async fn queues_named(node: &Node, ids: &[QueueId]) -> Vec<Row<QueueId>> {
    let named = |topology: &Topology, id| {
        let queue = topology.queue_by_id(id)?;
        Some((id, vhost_name(topology, queue.vhost)?, Arc::clone(&queue.name)))
    };
    let row = |(id, vhost, name): (_, Arc<str>, Arc<str>)| {
        let labels = labels(&[("vhost", &vhost), ("queue", &name)]);
        Row { id, vhost, name, labels }
    };
    pages::copied(node, ids.iter().copied(), named).await.into_iter().map(row).collect()
}

/// These exchanges with their names.
async fn exchanges_named(node: &Node, ids: &[ExchangeId]) -> Vec<Row<ExchangeId>> {
    let named = |topology: &Topology, id| {
        let exchange = topology.exchange_by_id(id)?;
        Some((id, vhost_name(topology, exchange.vhost)?, Arc::clone(&exchange.name)))
    };
    let row = |(id, vhost, name): (_, Arc<str>, Arc<str>)| {
        let labels = labels(&[("vhost", &vhost), ("exchange", &name)]);
        Row { id, vhost, name, labels }
    };
    pages::copied(node, ids.iter().copied(), named).await.into_iter().map(row).collect()
}

impl Pages {
    /// Nothing yet. What is shown has taken its room.
    pub(crate) fn new(source: PageFacts, shown: Shown, held: Held, to: Chunks) -> Self {
        Self { source, shown, held, text: Text::default(), to, slice: Slice::begin(), bytes: 0 }
    }

    /// Sends what is written, if it is much, and lets others have their turn on the thread.
    async fn share(&mut self) -> Result<(), Cut> {
        if self.text.len() >= CHUNK {
            self.bytes += self.text.len();
            self.to.send(self.text.take()).await?;
        }
        self.slice.share().await;
        Ok(())
    }

    /// Sends the last of it, with `more` behind it. How much it was.
    pub(crate) async fn finish(mut self, more: impl FnOnce(&mut Text)) -> Result<usize, Cut> {
        more(&mut self.text);
        let rest = self.text.finish();
        let bytes = self.bytes + rest.len();
        self.to.send(rest).await?;
        Ok(bytes)
    }

    /// A page.
    pub(crate) async fn write(&mut self, endpoint: Endpoint, filter: &Filter) -> Result<(), Cut> {
        self.identity(endpoint);
        match endpoint {
            Endpoint::Aggregated | Endpoint::PerObject => {
                let each = endpoint == Endpoint::PerObject;
                for (at, metric) in METRICS.iter().enumerate() {
                    // The same metric is in two groups.
                    if !METRICS[..at].iter().any(|before| before.1 == metric.1) {
                        self.metric(metric, "rabbitmq_", each).await?;
                    }
                }
                self.totals();
                if each {
                    self.queue_info("rabbitmq_").await?;
                }
                global::write(&self.source.stats.now().overview, &mut self.text);
                if each {
                    self.ages().await?;
                } else {
                    own::ages(&self.source.stats.now(), &mut self.text);
                }
                own::write(&self.source.stats.now(), &mut self.text);
                if let Some(view) = &self.source.view {
                    cluster::write(view, &mut self.text);
                }
            }
            Endpoint::Detailed => self.detailed(filter).await?,
            Endpoint::MemoryBreakdown => self.memory("rabbitmq_"),
        }
        self.share().await
    }

    fn memory(&mut self, prefix: &str) {
        let rows = self.source.stats.now().overview.node.memory.rows();
        for (name, help, key) in MEMORY {
            let bytes = rows.iter().find(|(row, _)| row == key).map_or(0, |row| row.1);
            self.text.one(&format!("{prefix}{name}"), Kind::Gauge, help, bytes);
        }
    }

    /// How old what waits is, of each queue and channel.
    async fn ages(&mut self) -> Result<(), Cut> {
        let (name, help) = own::QUEUE_AGE;
        self.text.family(name, Kind::Gauge, help);
        self.each_queue(|snapshot, row, entry, text| {
            if let Some(ms) = entry.numbers.oldest_ms(own::sampled(snapshot)) {
                text.sample(name, &row.labels, own::seconds(ms));
            }
        })
        .await?;
        let (name, help) = own::CHANNEL_AGE;
        self.text.family(name, Kind::Gauge, help);
        self.each_connection(|snapshot, id, entry, text| {
            for facts in &entry.numbers.channels {
                if let Some(ms) = own::channel_age_ms(facts, own::sampled(snapshot)) {
                    let label = label("channel", &id.channel_pid(facts.number));
                    text.sample(name, &label, own::seconds(ms));
                }
            }
        })
        .await
    }

    async fn detailed(&mut self, filter: &Filter) -> Result<(), Cut> {
        for metric in METRICS.iter().filter(|metric| filter.has(metric.0)) {
            // `queue_consumer_count` is a part of `queue_metrics`.
            if metric.0 != "queue_consumer_count" || !filter.has("queue_metrics") {
                self.metric(metric, "rabbitmq_detailed_", true).await?;
            }
        }
        let of_queues = ["queue_coarse_metrics", "queue_consumer_count", "queue_metrics"];
        if of_queues.iter().any(|family| filter.has(family)) {
            self.queue_info("rabbitmq_detailed_").await?;
        }
        if filter.has("node_memory") {
            self.memory("rabbitmq_detailed_");
        }
        self.cluster(filter).await
    }

    /// Writes something of each queue that the filter lets through.
    async fn each_queue(
        &mut self,
        mut write: impl FnMut(&Snapshot, &Row<QueueId>, &QueueEntry, &mut Text) + Send,
    ) -> Result<(), Cut> {
        let mut done = 0;
        while done < self.shown.queues.len() {
            let end = self.shown.queues.len().min(done + pages::ROWS);
            let rows = queues_named(self.source.stats.node(), &self.shown.queues[done..end]).await;
            {
                let stats = self.source.stats.now();
                for row in &rows {
                    if let Some(entry) = stats.queues.get(&row.id) {
                        write(&stats, row, entry, &mut self.text);
                    }
                }
            }
            done = end;
            self.share().await?;
        }
        Ok(())
    }

    /// Writes something of each connection, oldest first.
    async fn each_connection(
        &mut self,
        mut write: impl FnMut(&Snapshot, ConnectionId, &ConnectionEntry, &mut Text) + Send,
    ) -> Result<(), Cut> {
        let mut from = Bound::Unbounded;
        loop {
            let before = from;
            {
                let stats = self.source.stats.now();
                let began = self.text.len();
                for (&id, entry) in stats.connections.range((from, Bound::Unbounded)) {
                    write(&stats, id, entry, &mut self.text);
                    from = Bound::Excluded(id);
                    // One may have two thousand channels.
                    if self.text.len() - began > CHUNK {
                        break;
                    }
                }
            }
            if before == from {
                return Ok(());
            }
            self.share().await?;
        }
    }

    /// Who is asked.
    fn identity(&mut self, endpoint: Endpoint) {
        let Self { source: PageFacts { stats, cluster_name, view, .. }, text, .. } = self;
        let about = stats.about();
        let (node_name, product) =
            (&*about.node_name, (&*about.product_name, &*about.product_version));
        let name = "rabbitmq_identity_info";
        text.family(name, Kind::Untyped, "RabbitMQ node & cluster identity info");
        let who = labels(&[
            ("rabbitmq_node", node_name),
            ("rabbitmq_cluster", cluster_name),
            (
                "rabbitmq_cluster_permanent_id",
                view.as_ref().and_then(|it| it.cluster_id.as_deref()).unwrap_or(node_name),
            ),
            ("rabbitmq_endpoint", endpoint.name()),
        ]);
        text.sample(name, &who, 1);
        let name = "rabbitmq_build_info";
        text.family(name, Kind::Untyped, "RabbitMQ & Erlang/OTP version info");
        let ours = env!("CARGO_PKG_VERSION");
        let what = labels(&[
            ("product_name", product.0),
            ("product_version", product.1),
            ("leveret_version", ours),
            ("rabbitmq_version", leveret_server::COMPATIBLE_VERSION),
            ("prometheus_plugin_version", ours),
            ("prometheus_client_version", ours),
            ("erlang_version", "none"),
        ]);
        text.sample(name, &what, 1);
    }

    /// One metric, of each object or in sum.
    async fn metric(
        &mut self,
        metric: &super::families::Metric,
        prefix: &str,
        each: bool,
    ) -> Result<(), Cut> {
        let (_, name, kind, help, of) = *metric;
        let name = &*format!("{prefix}{name}");
        if !each && matches!(of, Of::Head(_)) {
            return Ok(());
        }
        self.text.family(name, kind, help);
        match of {
            Of::Attempts(value) => {
                for (protocol, counts) in &self.source.attempts {
                    self.text.sample(name, &label("protocol", protocol), value(counts));
                }
            }
            of if each && !matches!(of, Of::Node(_)) => return self.each(name, of).await,
            of => {
                let value = in_sum(&self.source.stats.now(), kind, of);
                self.text.sample(name, "", value);
            }
        }
        self.share().await
    }

    async fn each(&mut self, name: &str, of: Of) -> Result<(), Cut> {
        match of {
            Of::Node(_) | Of::Attempts(_) => Ok(()),
            Of::Queue(value) => {
                self.each_queue(|_, row, entry, text| text.sample(name, &row.labels, value(entry)))
                    .await
            }
            Of::Head(value) => {
                self.each_queue(|_, row, entry, text| {
                    if let Some(value) = value(entry) {
                        text.sample(name, &row.labels, value);
                    }
                })
                .await
            }
            Of::Totals(value) => {
                self.each_queue(|_, row, entry, text| {
                    text.sample(name, &row.labels, value(&entry.numbers.totals));
                })
                .await
            }
            Of::Passed { by_connection: true } => self.passed_by_connection(name).await,
            Of::Passed { by_connection: false } => self.passed(name).await,
            Of::Exchange(value) => {
                let mut done = 0;
                while done < self.shown.exchanges.len() {
                    let end = self.shown.exchanges.len().min(done + pages::ROWS);
                    let some = &self.shown.exchanges[done..end];
                    for row in exchanges_named(self.source.stats.node(), some).await {
                        let stats = self.source.stats.now();
                        if let Some(entry) = stats.exchanges.get(&row.id) {
                            self.text.sample(name, &row.labels, value(&entry.totals));
                        }
                    }
                    done = end;
                    self.share().await?;
                }
                Ok(())
            }
            Of::Connection(value) => {
                self.each_connection(|_, id, entry, text| {
                    let label = labels(&[("channel", &id.pid())]);
                    let channels = entry.numbers.channels.len() as u64;
                    text.sample(name, &label, value(&entry.io, channels));
                })
                .await
            }
            Of::Channel(value) => {
                self.each_channel(|id, facts, text| {
                    let label = label("channel", &id.channel_pid(facts.number));
                    text.sample(name, &label, value(facts));
                })
                .await
            }
            Of::Counted(value) => {
                self.each_channel(|id, facts, text| {
                    let label = label("channel", &id.channel_pid(facts.number));
                    text.sample(name, &label, value(&facts.totals));
                })
                .await
            }
            Of::Published(value) => {
                self.each_pair(name, |id, entry, pairs| {
                    for facts in &entry.numbers.channels {
                        let of = Passes::Channel(id, facts.number);
                        pairs.extend(facts.exchanges.iter().map(|(exchange, totals)| Pair {
                            of,
                            exchange: Some(*exchange),
                            queue: None,
                            value: value(totals),
                        }));
                    }
                })
                .await
            }
            Of::Taken(value) => {
                self.each_pair(name, |id, entry, pairs| {
                    for facts in &entry.numbers.channels {
                        let of = Passes::Channel(id, facts.number);
                        pairs.extend(facts.taken.iter().map(|(queue, totals)| Pair {
                            of,
                            exchange: None,
                            queue: Some(*queue),
                            value: value(totals),
                        }));
                    }
                })
                .await
            }
        }
    }

    /// Writes something of each channel.
    async fn each_channel(
        &mut self,
        mut write: impl FnMut(ConnectionId, &ChannelFacts, &mut Text) + Send,
    ) -> Result<(), Cut> {
        self.each_connection(|_, id, entry, text| {
            entry.numbers.channels.iter().for_each(|facts| write(id, facts, text));
        })
        .await
    }

    /// Writes what each connection has to do with exchanges and queues: pairs first, then their names, since these are
    /// not read while statistics are.
    async fn each_pair(
        &mut self,
        name: &str,
        mut find: impl FnMut(ConnectionId, &ConnectionEntry, &mut Vec<Pair>) + Send,
    ) -> Result<(), Cut> {
        let mut from = Bound::Unbounded;
        loop {
            let before = from;
            let mut pairs = Vec::new();
            {
                let stats = self.source.stats.now();
                for (&id, entry) in
                    stats.connections.range((from, Bound::Unbounded)).take(pages::ROWS)
                {
                    find(id, entry, &mut pairs);
                    from = Bound::Excluded(id);
                    if pairs.len() > pages::ROWS {
                        break;
                    }
                }
            }
            if before == from {
                return Ok(());
            }
            self.pairs(name, &pairs).await?;
        }
    }

    /// Writes pairs whose ends are shown.
    async fn pairs(&mut self, name: &str, pairs: &[Pair]) -> Result<(), Cut> {
        for some in pairs.chunks(pages::ROWS) {
            let shown = some.iter().filter(|pair| self.shown.has(pair)).copied();
            let named = |topology: &Topology, pair: Pair| {
                let queue = pair.queue.map(|id| topology.queue_by_id(id));
                let exchange = pair.exchange.map(|id| topology.exchange_by_id(id));
                let (queue, exchange) = match (queue, exchange) {
                    (Some(None), _) | (_, Some(None)) => return None,
                    (queue, exchange) => (queue.flatten(), exchange.flatten()),
                };
                let vhost = queue.map(|it| it.vhost).or_else(|| exchange.map(|it| it.vhost))?;
                let exchange = exchange.map(|it| Arc::clone(&it.name)).unwrap_or_default();
                let queue = queue.map(|it| Arc::clone(&it.name)).unwrap_or_default();
                Some((pair, vhost_name(topology, vhost)?, exchange, queue))
            };
            let shown: Vec<_> = shown.collect();
            for (pair, vhost, exchange, queue) in
                pages::copied(self.source.stats.node(), shown, named).await
            {
                self.text.sample(name, &pair.labels(&vhost, &exchange, &queue), pair.value);
            }
            self.share().await?;
        }
        Ok(())
    }

    /// Messages by queue and exchange, which are in the same vhost, of each connection.
    async fn passed_by_connection(&mut self, name: &str) -> Result<(), Cut> {
        self.each_pair(name, |id, entry, pairs| {
            pairs.extend(entry.passages.iter().map(|passage| Pair {
                of: Passes::Connection(id),
                exchange: Some(passage.pair.0),
                queue: Some(passage.pair.1),
                value: passage.count,
            }));
        })
        .await
    }

    /// Messages by queue and exchange.
    async fn passed(&mut self, name: &str) -> Result<(), Cut> {
        let passages = self.source.stats.now().passages(|_| true);
        let pair = |((exchange, queue), (value, _))| Pair {
            of: Passes::All,
            exchange: Some(exchange),
            queue: Some(queue),
            value,
        };
        let pairs: Vec<Pair> = passages.into_iter().map(pair).collect();
        if !self.held.take(size_of_val(&*pairs) as u64).await {
            return Err(Cut);
        }
        self.pairs(name, &pairs).await
    }

    /// How many objects there are.
    fn totals(&mut self) {
        let now = self.source.stats.now().overview.now;
        for (name, help, count) in [
            ("connections", "Connections currently open", now.connections),
            ("channels", "Channels currently open", now.channels),
            ("consumers", "Consumers currently connected", now.consumers),
            ("queues", "Queues available", now.queues),
        ] {
            self.text.one(&format!("rabbitmq_{name}"), Kind::Gauge, help, count);
        }
    }

    async fn queue_info(&mut self, prefix: &str) -> Result<(), Cut> {
        let name = &*format!("{prefix}queue_info");
        let help = "A metric with a constant '1' value and labels that provide some queue details";
        self.text.family(name, Kind::Gauge, help);
        self.each_queue(|_, row, entry, text| {
            let kind = entry.numbers.kind.module();
            let more = labels(&[("queue_type", kind), ("membership", "leader")]);
            text.sample(name, &format!("{},{more}", row.labels), 1);
        })
        .await
    }

    /// What RabbitMQ counts once per cluster.
    async fn cluster(&mut self, filter: &Filter) -> Result<(), Cut> {
        if filter.has("vhost_status") {
            let name = "rabbitmq_cluster_vhost_status";
            self.text.family(name, Kind::Gauge, "Whether a given vhost is running");
            let vhosts: Vec<Arc<str>> = {
                let topology = self.source.stats.node().topology();
                topology.vhosts().map(|vhost| Arc::clone(&vhost.name)).collect()
            };
            for vhost in vhosts {
                self.text.sample(name, &labels(&[("vhost", &vhost)]), 1);
                self.share().await?;
            }
        }
        let bindings = "Number of bindings for an exchange. This value is cluster-wide.";
        let names = "Enumerates exchanges without any additional info. This value is cluster-wide. \
            A cheaper alternative to `exchange_bindings`";
        for (family, metric, help) in [
            ("exchange_bindings", "rabbitmq_cluster_exchange_bindings", bindings),
            ("exchange_names", "rabbitmq_cluster_exchange_name", names),
        ] {
            if filter.has(family) {
                self.text.family(metric, Kind::Gauge, help);
                self.each_exchange(metric, family == "exchange_bindings", filter).await?;
            }
        }
        Ok(())
    }

    async fn each_exchange(
        &mut self,
        metric: &str,
        counts: bool,
        filter: &Filter,
    ) -> Result<(), Cut> {
        let node = Arc::clone(self.source.stats.node());
        let vhosts: Vec<(Arc<str>, VhostId)> = {
            let topology = node.topology();
            let vhosts = topology.vhosts().filter(|vhost| filter.takes_vhost(&vhost.name));
            vhosts.map(|it| (Arc::clone(&it.name), it.id)).collect()
        };
        for (vhost, id) in vhosts {
            let mut ids = node.topology().exchange_ids(id);
            pages::sort(&mut ids, Ord::cmp).await;
            for some in ids.chunks(pages::ROWS) {
                let named = |topology: &Topology, id| {
                    let exchange = topology.exchange_by_id(id)?;
                    let is_shown = !exchange.internal && !exchange.name.is_empty();
                    let kind = exchange.kind.name();
                    let count = exchange.binding_count();
                    is_shown.then(|| (Arc::clone(&exchange.name), kind, count))
                };
                for (name, kind, count) in pages::copied(&node, some.iter().copied(), named).await {
                    let labels = labels(&[("vhost", &vhost), ("exchange", &name), ("type", kind)]);
                    self.text.sample(metric, &labels, if counts { count as u64 } else { 1 });
                }
                self.share().await?;
            }
        }
        Ok(())
    }
}

/// A metric of the node as a whole.
fn in_sum(snapshot: &Snapshot, kind: Kind, of: Of) -> Number {
    let overview = &snapshot.overview;
    let all = &overview.sums.session.channels;
    let channels = || snapshot.connections.values().flat_map(|it| &it.numbers.channels);
    match of {
        Of::Node(value) => value(overview),
        Of::Queue(value) => sum(snapshot.queues.values().map(|queue| value(queue))),
        Of::Totals(value) => sum_totals(overview, value).into(),
        Of::Passed { .. } => all.published.routed.into(),
        Of::Channel(value) => channels().map(value).sum::<u64>().into(),
        Of::Counted(value) => value(all).into(),
        Of::Published(value) | Of::Exchange(value) => value(&all.published).into(),
        Of::Taken(value) => value(&all.taken).into(),
        Of::Connection(value) if kind == Kind::Counter => value(&overview.sums.io, 0).into(),
        Of::Connection(value) => {
            let connections = snapshot.connections.values();
            let values = connections.map(|it| value(&it.io, it.numbers.channels.len() as u64));
            values.sum::<u64>().into()
        }
        // They have one of each object, or one of each protocol.
        Of::Head(_) | Of::Attempts(_) => 0.into(),
    }
}

fn sum_totals(overview: &crate::stats::Overview, value: impl Fn(&QueueTotals) -> u64) -> u64 {
    overview.queues.values().map(value).sum()
}

/// The sum; whole if all of it is.
fn sum(numbers: impl Iterator<Item = Number>) -> Number {
    numbers.fold(Number::Int(0), |sum, one| match (sum, one) {
        (Number::Int(sum), Number::Int(one)) => Number::Int(sum + one),
        (Number::Int(sum), Number::Float(one)) => Number::Float(sum as f64 + one),
        (Number::Float(sum), Number::Int(one)) => Number::Float(sum + one as f64),
        (Number::Float(sum), Number::Float(one)) => Number::Float(sum + one),
    })
}
