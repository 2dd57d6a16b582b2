//! The pages: which metrics, of which objects, under which prefix.

use std::ops::Bound;
use std::sync::Arc;

use leveret_broker::message::ConnectionId;
use leveret_queue::Totals as QueueTotals;
use leveret_server::login::attempts::Counts;
use leveret_session::ChannelFacts;
use leveret_topology::{ExchangeId, QueueId, Topology};

use super::families::{MEMORY, METRICS, Of};
use super::text::{Kind, Number, Text, label, labels};
use super::{global, own};
use crate::http::pattern::Pattern;
use crate::http::stream::{CHUNK, Chunks, Cut};
use crate::ops::pages::{self, Slice};
use crate::stats::names::channel_pid;
use crate::stats::names::connection_pid;
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
pub(crate) struct Source {
    pub(crate) stats: Arc<Collector>,
    pub(crate) cluster_name: Arc<str>,
    /// Logins by protocol.
    pub(crate) attempts: Vec<(&'static str, Counts)>,
}

/// A queue and its labels.
#[derive(Debug)]
struct Row {
    id: QueueId,
    vhost: Arc<str>,
    name: Arc<str>,
    labels: String,
}

/// An exchange and its labels.
#[derive(Debug)]
struct Exchange {
    id: ExchangeId,
    name: Arc<str>,
    labels: String,
}

/// Writes pages, some rows at a time: in between it holds nothing, the thread is shared, and what is written goes out.
pub(crate) struct Pages {
    source: Source,
    names: Names,
    text: Text,
    to: Chunks,
    slice: Slice,
    /// Sent so far.
    bytes: usize,
}

/// The queues and exchanges that a page is about.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// By id.
    queues: Vec<Row>,
    /// By id.
    exchanges: Vec<Exchange>,
}

impl Names {
    /// All that the filter lets through, with their labels; none where only sums are told. What is wrong with the
    /// filter, in words, if it takes too long.
    pub(crate) async fn of(
        stats: &Collector,
        endpoint: Endpoint,
        filter: &Filter,
    ) -> Result<Self, String> {
        let mut found = Self::default();
        if !matches!(endpoint, Endpoint::PerObject | Endpoint::Detailed) {
            return Ok(found);
        }
        let (mut queues, mut exchanges): (Vec<QueueId>, Vec<ExchangeId>) = {
            let stats = stats.now();
            (stats.queues.keys().copied().collect(), stats.exchanges.keys().copied().collect())
        };
        queues.sort_unstable();
        exchanges.sort_unstable();
        let vhost_name =
            |topology: &Topology, id| topology.vhost_by_id(id).map(|it| Arc::clone(&it.name));
        let named = |topology: &Topology, id| {
            let queue = topology.queue_by_id(id)?;
            Some((id, vhost_name(topology, queue.vhost)?, Arc::clone(&queue.name)))
        };
        let mut slice = Slice::begin();
        for (id, vhost, name) in pages::copied(stats.node(), queues, named).await {
            if filter.takes_queue(&vhost, &name)? {
                let labels = labels(&[("vhost", &vhost), ("queue", &name)]);
                found.queues.push(Row { id, vhost, name, labels });
            }
            slice.share().await;
        }
        let named = |topology: &Topology, id| {
            let exchange = topology.exchange_by_id(id)?;
            Some((id, vhost_name(topology, exchange.vhost)?, Arc::clone(&exchange.name)))
        };
        for (id, vhost, name) in pages::copied(stats.node(), exchanges, named).await {
            if filter.takes_vhost(&vhost) {
                let labels = labels(&[("vhost", &vhost), ("exchange", &name)]);
                found.exchanges.push(Exchange { id, name, labels });
            }
            slice.share().await;
        }
        Ok(found)
    }

    fn queue(&self, id: QueueId) -> Option<&Row> {
        let at = self.queues.binary_search_by_key(&id, |row| row.id).ok()?;
        self.queues.get(at)
    }

    fn exchange(&self, id: ExchangeId) -> Option<&Exchange> {
        let at = self.exchanges.binary_search_by_key(&id, |exchange| exchange.id).ok()?;
        self.exchanges.get(at)
    }
}

impl Pages {
    /// Nothing yet.
    pub(crate) fn new(source: Source, names: Names, to: Chunks) -> Self {
        Self { source, names, text: Text::default(), to, slice: Slice::begin(), bytes: 0 }
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
        self.each_connection(|_, snapshot, id, entry, text| {
            for facts in &entry.numbers.channels {
                if let Some(ms) = own::channel_age_ms(facts, own::sampled(snapshot)) {
                    let label = label("channel", &channel_pid(id, facts.number));
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
        mut write: impl FnMut(&Snapshot, &Row, &QueueEntry, &mut Text) + Send,
    ) -> Result<(), Cut> {
        let mut done = 0;
        while done < self.names.queues.len() {
            let end = self.names.queues.len().min(done + pages::ROWS);
            {
                let stats = self.source.stats.now();
                for row in &self.names.queues[done..end] {
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
        mut write: impl FnMut(&Names, &Snapshot, ConnectionId, &ConnectionEntry, &mut Text) + Send,
    ) -> Result<(), Cut> {
        let mut from = Bound::Unbounded;
        loop {
            let before = from;
            {
                let stats = self.source.stats.now();
                let began = self.text.len();
                for (&id, entry) in stats.connections.range((from, Bound::Unbounded)) {
                    write(&self.names, &stats, id, entry, &mut self.text);
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
        let Self { source: Source { stats, cluster_name, .. }, text, .. } = self;
        let about = stats.about();
        let (node_name, product) =
            (&*about.node_name, (&*about.product_name, &*about.product_version));
        let name = "rabbitmq_identity_info";
        text.family(name, Kind::Untyped, "RabbitMQ node & cluster identity info");
        let who = labels(&[
            ("rabbitmq_node", node_name),
            ("rabbitmq_cluster", cluster_name),
            ("rabbitmq_cluster_permanent_id", node_name),
            ("rabbitmq_endpoint", endpoint.name()),
        ]);
        text.sample(name, &who, 1);
        let name = "rabbitmq_build_info";
        text.family(name, Kind::Untyped, "RabbitMQ & Erlang/OTP version info");
        let ours = env!("CARGO_PKG_VERSION");
        let what = labels(&[
            ("product_name", product.0),
            ("product_version", product.1),
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
                {
                    let stats = self.source.stats.now();
                    for exchange in &self.names.exchanges {
                        if let Some(entry) = stats.exchanges.get(&exchange.id) {
                            self.text.sample(name, &exchange.labels, value(&entry.totals));
                        }
                    }
                }
                self.share().await
            }
            Of::Connection(value) => {
                self.each_connection(|_, _, id, entry, text| {
                    let label = labels(&[("channel", &connection_pid(id))]);
                    let channels = entry.numbers.channels.len() as u64;
                    text.sample(name, &label, value(&entry.io, channels));
                })
                .await
            }
            Of::Channel(_) | Of::Counted(_) | Of::Published(..) | Of::Taken(..) => {
                self.each_connection(|names, _, id, entry, text| {
                    for facts in &entry.numbers.channels {
                        channel(name, of, names, (id, facts), text);
                    }
                })
                .await
            }
        }
    }

    /// Messages by queue and exchange, which are in the same vhost, of each connection.
    async fn passed_by_connection(&mut self, name: &str) -> Result<(), Cut> {
        self.each_connection(|names, _, id, entry, text| {
            for passage in &entry.passages {
                let (exchange, queue) = passage.pair;
                let Some(row) = names.queue(queue) else { continue };
                let Some(exchange) = names.exchange(exchange) else { continue };
                let labels = labels(&[
                    ("channel", &connection_pid(id)),
                    ("queue_vhost", &row.vhost),
                    ("queue", &row.name),
                    ("exchange_vhost", &row.vhost),
                    ("exchange", &exchange.name),
                ]);
                text.sample(name, &labels, passage.count);
            }
        })
        .await
    }

    /// Messages by queue and exchange.
    async fn passed(&mut self, name: &str) -> Result<(), Cut> {
        let passages = self.source.stats.now().passages(|_| true);
        for ((exchange, queue), (count, _)) in passages {
            {
                let names = &self.names;
                let Some(row) = names.queue(queue) else { continue };
                let Some(exchange) = names.exchange(exchange) else { continue };
                let labels = labels(&[
                    ("vhost", &row.vhost),
                    ("exchange", &exchange.name),
                    ("queue", &row.name),
                ]);
                self.text.sample(name, &labels, count);
            }
            self.share().await?;
        }
        Ok(())
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
        let vhosts: Vec<(Arc<str>, Vec<ExchangeId>)> = {
            let topology = node.topology();
            let vhosts = topology.vhosts().filter(|vhost| filter.takes_vhost(&vhost.name));
            vhosts.map(|it| (Arc::clone(&it.name), topology.exchange_ids(it.id))).collect()
        };
        for (vhost, ids) in vhosts {
            let named = |topology: &Topology, id| {
                let exchange = topology.exchange_by_id(id)?;
                let is_shown = !exchange.internal && !exchange.name.is_empty();
                let kind = exchange.kind.name();
                let count = exchange.binding_count();
                is_shown.then(|| (Arc::clone(&exchange.name), kind, count))
            };
            let mut exchanges = pages::copied(&node, ids, named).await;
            exchanges.sort_unstable();
            for (name, kind, count) in exchanges {
                let labels = labels(&[("vhost", &vhost), ("exchange", &name), ("type", kind)]);
                self.text.sample(metric, &labels, if counts { count as u64 } else { 1 });
                self.share().await?;
            }
        }
        Ok(())
    }
}

/// A metric of one channel, or of the channel and each of its partners.
fn channel(
    name: &str,
    of: Of,
    names: &Names,
    (connection, facts): (ConnectionId, &ChannelFacts),
    text: &mut Text,
) {
    let label = labels(&[("channel", &channel_pid(connection, facts.number))]);
    match of {
        Of::Channel(value) => text.sample(name, &label, value(facts)),
        Of::Counted(value) => text.sample(name, &label, value(&facts.totals)),
        Of::Published(value) => {
            for (exchange, totals) in &facts.exchanges {
                if let Some(exchange) = names.exchange(*exchange) {
                    text.sample(name, &format!("{label},{}", exchange.labels), value(totals));
                }
            }
        }
        Of::Taken(value) => {
            for (queue, totals) in &facts.taken {
                if let Some(row) = names.queue(*queue) {
                    text.sample(name, &format!("{label},{}", row.labels), value(totals));
                }
            }
        }
        _ => {}
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
