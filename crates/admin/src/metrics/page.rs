//! The pages: which metrics, of which objects, under which prefix.

use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_queue::Totals as QueueTotals;
use leveret_server::login::attempts::Counts;
use leveret_topology::{ExchangeId, QueueId, Topology};

use super::families::{MEMORY, METRICS, Of};
use super::text::{Kind, Number, Text, label, labels};
use super::{global, own};
use crate::stats::names::channel_pid;
use crate::stats::names::connection_pid;
use crate::stats::{QueueEntry, Snapshot};

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
    pub(crate) queue: Option<fancy_regex::Regex>,
}

impl Filter {
    fn has(&self, family: &str) -> bool {
        self.families.iter().any(|wanted| wanted == family)
    }

    fn takes_vhost(&self, vhost: &str) -> bool {
        self.vhosts.as_ref().is_none_or(|wanted| wanted.iter().any(|it| it == vhost))
    }

    fn takes_queue(&self, vhost: &str, name: &str) -> bool {
        let found = |regex: &fancy_regex::Regex| regex.is_match(name).unwrap_or(false);
        self.takes_vhost(vhost) && self.queue.as_ref().is_none_or(found)
    }
}

/// What a page is made of.
pub(crate) struct Source<'a> {
    pub(crate) snapshot: &'a Arc<Snapshot>,
    pub(crate) topology: &'a Topology,
    pub(crate) node_name: &'a str,
    pub(crate) cluster_name: &'a str,
    pub(crate) cluster_id: &'a str,
    pub(crate) product: (&'a str, &'a str),
    /// Logins by protocol.
    pub(crate) attempts: Vec<(&'static str, Counts)>,
}

/// A queue and its labels.
struct Row<'a> {
    entry: &'a QueueEntry,
    vhost: &'a str,
    name: &'a str,
    labels: String,
}

/// Labels of exchanges, by id.
type Exchanges = HashMap<ExchangeId, String, FixedState>;

/// Writes pages.
pub(crate) struct Pages<'a> {
    source: Source<'a>,
    queues: Vec<Row<'a>>,
    exchanges: Exchanges,
}

impl<'a> Pages<'a> {
    /// With the labels of everything that the filter lets through. None are needed for sums.
    pub(crate) fn new(source: Source<'a>, endpoint: Endpoint, filter: &Filter) -> Self {
        let mut pages = Self { queues: Vec::new(), exchanges: Exchanges::default(), source };
        if matches!(endpoint, Endpoint::PerObject | Endpoint::Detailed) {
            pages.find_names(filter);
        }
        pages
    }

    fn find_names(&mut self, filter: &Filter) {
        let topology = self.source.topology;
        let vhost_name = |id| topology.vhost_by_id(id).map(|vhost| &*vhost.name);
        for entry in self.source.snapshot.queues.values() {
            let Some(named) = topology.queue_by_id(entry.numbers.queue) else { continue };
            let Some(vhost) = vhost_name(named.vhost) else { continue };
            if filter.takes_queue(vhost, &named.name) {
                let labels = labels(&[("vhost", vhost), ("queue", &named.name)]);
                self.queues.push(Row { entry, vhost, name: &named.name, labels });
            }
        }
        self.queues.sort_by_key(|row| row.entry.numbers.queue);
        for &id in self.source.snapshot.exchanges.keys() {
            let Some(exchange) = topology.exchange_by_id(id) else { continue };
            let Some(vhost) = vhost_name(exchange.vhost) else { continue };
            if filter.takes_vhost(vhost) {
                let labels = labels(&[("vhost", vhost), ("exchange", &exchange.name)]);
                self.exchanges.insert(id, labels);
            }
        }
    }

    /// A page.
    pub(crate) fn write(&self, endpoint: Endpoint, filter: &Filter, text: &mut Text) {
        self.identity(endpoint, text);
        match endpoint {
            Endpoint::Aggregated | Endpoint::PerObject => {
                let each = endpoint == Endpoint::PerObject;
                for (at, metric) in METRICS.iter().enumerate() {
                    // The same metric is in two groups.
                    if !METRICS[..at].iter().any(|before| before.1 == metric.1) {
                        self.metric(metric, "rabbitmq_", each, text);
                    }
                }
                self.totals(text);
                if each {
                    self.queue_info("rabbitmq_", text);
                }
                global::write(&self.source.snapshot.overview, text);
                let queues = each.then(|| self.queues.iter().map(|row| (&*row.labels, row.entry)));
                own::write(self.source.snapshot, queues, text);
            }
            Endpoint::Detailed => self.detailed(filter, text),
            Endpoint::MemoryBreakdown => {
                let rows = self.source.snapshot.overview.node.memory.rows();
                for (name, help, key) in MEMORY {
                    let bytes = rows.iter().find(|(row, _)| row == key).map_or(0, |row| row.1);
                    text.one(&format!("rabbitmq_{name}"), Kind::Gauge, help, bytes);
                }
            }
        }
    }

    fn detailed(&self, filter: &Filter, text: &mut Text) {
        for metric in METRICS.iter().filter(|metric| filter.has(metric.0)) {
            // `queue_consumer_count` is a part of `queue_metrics`.
            if metric.0 != "queue_consumer_count" || !filter.has("queue_metrics") {
                self.metric(metric, "rabbitmq_detailed_", true, text);
            }
        }
        let of_queues = ["queue_coarse_metrics", "queue_consumer_count", "queue_metrics"];
        if of_queues.iter().any(|family| filter.has(family)) {
            self.queue_info("rabbitmq_detailed_", text);
        }
        if filter.has("node_memory") {
            let rows = self.source.snapshot.overview.node.memory.rows();
            for (name, help, key) in MEMORY {
                let bytes = rows.iter().find(|(row, _)| row == key).map_or(0, |row| row.1);
                text.one(&format!("rabbitmq_detailed_{name}"), Kind::Gauge, help, bytes);
            }
        }
        self.cluster(filter, text);
    }

    /// Who is asked.
    fn identity(&self, endpoint: Endpoint, text: &mut Text) {
        let Source { node_name, cluster_name, cluster_id, product, .. } = self.source;
        let name = "rabbitmq_identity_info";
        text.family(name, Kind::Untyped, "RabbitMQ node & cluster identity info");
        let who = labels(&[
            ("rabbitmq_node", node_name),
            ("rabbitmq_cluster", cluster_name),
            ("rabbitmq_cluster_permanent_id", cluster_id),
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
    fn metric(&self, metric: &super::families::Metric, prefix: &str, each: bool, text: &mut Text) {
        let (_, name, kind, help, of) = *metric;
        let name = &*format!("{prefix}{name}");
        let overview = &self.source.snapshot.overview;
        let all = &overview.sums.session.channels;
        if !each && matches!(of, Of::Head(_)) {
            return;
        }
        text.family(name, kind, help);
        match of {
            Of::Node(value) => text.sample(name, "", value(overview)),
            Of::Attempts(value) => {
                for (protocol, counts) in &self.source.attempts {
                    text.sample(name, &label("protocol", protocol), value(counts));
                }
            }
            _ if each => self.each(name, of, text),
            Of::Queue(value) => {
                let queues = self.source.snapshot.queues.values();
                text.sample(name, "", sum(queues.map(|queue| value(queue))));
            }
            Of::Head(_) => {}
            Of::Totals(value) => text.sample(name, "", sum_totals(overview, value)),
            Of::Passed { .. } => text.sample(name, "", all.published.routed),
            Of::Channel(value) => {
                let connections = self.source.snapshot.connections.values();
                let channels = connections.flat_map(|it| &it.numbers.channels);
                text.sample(name, "", channels.map(value).sum::<u64>());
            }
            Of::Counted(value) => text.sample(name, "", value(all)),
            Of::Published(value) => text.sample(name, "", value(&all.published)),
            Of::Taken(value) => text.sample(name, "", value(&all.taken)),
            Of::Connection(value) if kind == Kind::Counter => {
                text.sample(name, "", value(&overview.sums.io, 0));
            }
            Of::Connection(value) => {
                let connections = self.source.snapshot.connections.values();
                let values = connections.map(|it| value(&it.io, it.numbers.channels.len() as u64));
                text.sample(name, "", values.sum::<u64>());
            }
            Of::Exchange(value) => text.sample(name, "", value(&all.published)),
        }
    }

    fn each(&self, name: &str, of: Of, text: &mut Text) {
        match of {
            Of::Node(_) | Of::Attempts(_) => {}
            Of::Queue(value) => {
                self.queues.iter().for_each(|row| text.sample(name, &row.labels, value(row.entry)));
            }
            Of::Head(value) => {
                for row in &self.queues {
                    if let Some(value) = value(row.entry) {
                        text.sample(name, &row.labels, value);
                    }
                }
            }
            Of::Totals(value) => {
                for row in &self.queues {
                    text.sample(name, &row.labels, value(&row.entry.numbers.totals));
                }
            }
            Of::Passed { by_connection } => self.passed(name, by_connection, text),
            Of::Exchange(value) => {
                for (id, entry) in &self.source.snapshot.exchanges {
                    if let Some(labels) = self.exchanges.get(id) {
                        text.sample(name, labels, value(&entry.totals));
                    }
                }
            }
            Of::Connection(value) => {
                for (&id, entry) in &self.source.snapshot.connections {
                    let label = labels(&[("channel", &connection_pid(id))]);
                    let channels = entry.numbers.channels.len() as u64;
                    text.sample(name, &label, value(&entry.io, channels));
                }
            }
            Of::Channel(_) | Of::Counted(_) | Of::Published(..) | Of::Taken(..) => {
                self.each_channel(name, of, text);
            }
        }
    }

    fn each_channel(&self, name: &str, of: Of, text: &mut Text) {
        for (&id, entry) in &self.source.snapshot.connections {
            for facts in &entry.numbers.channels {
                let label = labels(&[("channel", &channel_pid(id, facts.number))]);
                match of {
                    Of::Channel(value) => text.sample(name, &label, value(facts)),
                    Of::Counted(value) => text.sample(name, &label, value(&facts.totals)),
                    Of::Published(value) => {
                        for (exchange, totals) in &facts.exchanges {
                            if let Some(exchange) = self.exchanges.get(exchange) {
                                text.sample(name, &format!("{label},{exchange}"), value(totals));
                            }
                        }
                    }
                    Of::Taken(value) => {
                        for (queue, totals) in &facts.taken {
                            if let Some(row) = self.row(*queue) {
                                text.sample(
                                    name,
                                    &format!("{label},{}", row.labels),
                                    value(totals),
                                );
                            }
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    /// Messages by queue and exchange, which are in the same vhost.
    fn passed(&self, name: &str, by_connection: bool, text: &mut Text) {
        let snapshot = self.source.snapshot;
        let exchange_name = |id| Some(&*self.source.topology.exchange_by_id(id)?.name);
        if by_connection {
            for (&id, entry) in &snapshot.connections {
                for passage in &entry.passages {
                    let (exchange, queue) = passage.pair;
                    let Some(row) = self.row(queue) else { continue };
                    let Some(exchange) = exchange_name(exchange) else { continue };
                    let labels = labels(&[
                        ("channel", &connection_pid(id)),
                        ("queue_vhost", row.vhost),
                        ("queue", row.name),
                        ("exchange_vhost", row.vhost),
                        ("exchange", exchange),
                    ]);
                    text.sample(name, &labels, passage.count);
                }
            }
            return;
        }
        for ((exchange, queue), (count, _)) in snapshot.passages(|_| true) {
            let Some(row) = self.row(queue) else { continue };
            let Some(exchange) = exchange_name(exchange) else { continue };
            let labels =
                labels(&[("vhost", row.vhost), ("exchange", exchange), ("queue", row.name)]);
            text.sample(name, &labels, count);
        }
    }

    /// A queue that the filter lets through.
    fn row(&self, queue: QueueId) -> Option<&Row<'a>> {
        let at = self.queues.binary_search_by_key(&queue, |row| row.entry.numbers.queue).ok()?;
        self.queues.get(at)
    }

    /// How many objects there are.
    fn totals(&self, text: &mut Text) {
        let now = &self.source.snapshot.overview.now;
        for (name, help, count) in [
            ("connections", "Connections currently open", now.connections),
            ("channels", "Channels currently open", now.channels),
            ("consumers", "Consumers currently connected", now.consumers),
            ("queues", "Queues available", now.queues),
        ] {
            text.one(&format!("rabbitmq_{name}"), Kind::Gauge, help, count);
        }
    }

    fn queue_info(&self, prefix: &str, text: &mut Text) {
        let name = &format!("{prefix}queue_info");
        let help = "A metric with a constant '1' value and labels that provide some queue details";
        text.family(name, Kind::Gauge, help);
        for row in &self.queues {
            let kind = row.entry.numbers.kind.module();
            let more = labels(&[("queue_type", kind), ("membership", "leader")]);
            text.sample(name, &format!("{},{more}", row.labels), 1);
        }
    }

    /// What RabbitMQ counts once per cluster.
    fn cluster(&self, filter: &Filter, text: &mut Text) {
        let topology = self.source.topology;
        if filter.has("vhost_status") {
            let name = "rabbitmq_cluster_vhost_status";
            text.family(name, Kind::Gauge, "Whether a given vhost is running");
            for vhost in topology.vhosts() {
                text.sample(name, &labels(&[("vhost", &vhost.name)]), 1);
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
                text.family(metric, Kind::Gauge, help);
                self.each_exchange(metric, family == "exchange_bindings", filter, text);
            }
        }
    }

    fn each_exchange(&self, metric: &str, counts: bool, filter: &Filter, text: &mut Text) {
        let topology = self.source.topology;
        for vhost in topology.vhosts().filter(|vhost| filter.takes_vhost(&vhost.name)) {
            let mut bindings: HashMap<ExchangeId, u64, FixedState> = HashMap::default();
            if counts {
                topology
                    .bindings(vhost.id)
                    .for_each(|it| *bindings.entry(it.source).or_default() += 1);
            }
            for exchange in topology.exchanges(vhost.id) {
                if exchange.internal || exchange.name.is_empty() {
                    continue;
                }
                let labels = labels(&[
                    ("vhost", &vhost.name),
                    ("exchange", &exchange.name),
                    ("type", exchange.kind.name()),
                ]);
                let count = bindings.get(&exchange.id).copied().unwrap_or(0);
                text.sample(metric, &labels, if counts { count } else { 1 });
            }
        }
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
