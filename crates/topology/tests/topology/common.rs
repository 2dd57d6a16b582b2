//! A broker's names by short calls, and a small seeded generator.

use leveret_amqp::table::{RawTable, Table, Value};
use leveret_topology::{
    BindError, Bound, ConnectionId, DeclareError, Declared, Destination, ExchangeId, ExchangeSpec,
    NodeId, QueueId, QueueSpec, Removed, Routable, Route, Topology, VhostId,
};

/// A connection that has exclusive queues.
pub(crate) const OWNER: ConnectionId = NodeId::ALONE.connection(1);

/// Another one.
pub(crate) const OTHER: ConnectionId = NodeId::ALONE.connection(2);

pub(crate) struct World {
    pub(crate) topology: Topology,
    pub(crate) vhost: VhostId,
}

pub(crate) fn table<'a>(entries: impl IntoIterator<Item = (&'a str, Value)>) -> Table {
    entries.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

pub(crate) fn text(text: &str) -> Value {
    Value::from(text)
}

impl World {
    pub(crate) fn new() -> Self {
        let mut topology = Topology::new();
        let vhost = topology.add_vhost("/").unwrap();
        Self { topology, vhost }
    }

    pub(crate) fn exchange_spec<'a>(&self, name: &'a str, kind: &'a str) -> ExchangeSpec<'a> {
        ExchangeSpec {
            vhost: self.vhost,
            name,
            kind,
            durable: false,
            auto_delete: false,
            internal: false,
            arguments: Table::new(),
        }
    }

    pub(crate) fn exchange(&mut self, name: &str, kind: &str) -> ExchangeId {
        let spec = self.exchange_spec(name, kind);
        self.topology.declare_exchange(spec).unwrap()
    }

    pub(crate) fn exchange_with(&mut self, name: &str, kind: &str, arguments: Table) -> ExchangeId {
        let spec = self.exchange_spec(name, kind);
        self.topology.declare_exchange(ExchangeSpec { arguments, ..spec }).unwrap()
    }

    pub(crate) fn exchange_id(&self, name: &str) -> ExchangeId {
        self.topology.exchange(self.vhost, name).unwrap().id
    }

    pub(crate) fn queue_spec<'a>(&self, name: &'a str) -> QueueSpec<'a> {
        QueueSpec {
            vhost: self.vhost,
            name,
            server_named: false,
            durable: false,
            auto_delete: false,
            exclusive_owner: None,
            arguments: Table::new(),
        }
    }

    pub(crate) fn queue(&mut self, name: &str) -> QueueId {
        let spec = self.queue_spec(name);
        self.topology.declare_queue(spec).unwrap().id
    }

    pub(crate) fn queue_with(
        &mut self,
        name: &str,
        arguments: Table,
    ) -> Result<Declared, DeclareError> {
        let spec = self.queue_spec(name);
        self.topology.declare_queue(QueueSpec { arguments, ..spec })
    }

    pub(crate) fn bind(&mut self, source: &str, queue: &str, key: &str) -> Bound {
        self.try_bind(source, Destination::Queue(queue), key, Table::new()).unwrap()
    }

    pub(crate) fn bind_exchange(&mut self, source: &str, to: &str, key: &str) -> Bound {
        self.try_bind(source, Destination::Exchange(to), key, Table::new()).unwrap()
    }

    pub(crate) fn try_bind(
        &mut self,
        source: &str,
        to: Destination<'_>,
        key: &str,
        arguments: Table,
    ) -> Result<Bound, BindError> {
        self.topology.bind(self.vhost, source, to, key, arguments, None)
    }

    pub(crate) fn unbind(&mut self, source: &str, queue: &str, key: &str) -> Removed {
        let to = Destination::Queue(queue);
        self.topology.unbind(self.vhost, source, to, key, Table::new(), None).unwrap()
    }

    pub(crate) fn route(&self, exchange: &str, message: &Routable<'_>) -> Route {
        let mut route = Route::default();
        self.topology.route(self.vhost, self.exchange_id(exchange), message, &mut route);
        route
    }

    /// The names of the queues a message reaches, sorted and joined by spaces.
    pub(crate) fn reached(&self, exchange: &str, key: &str) -> String {
        self.names(&self.route(exchange, &Routable { key, ..Routable::default() }))
    }

    pub(crate) fn reached_with(&self, exchange: &str, headers: &Table) -> String {
        let bytes = headers.to_bytes();
        let headers = Some(RawTable::new(&bytes).unwrap());
        self.names(&self.route(exchange, &Routable { headers, ..Routable::default() }))
    }

    pub(crate) fn names(&self, route: &Route) -> String {
        let queues = route.queues.iter().map(|&id| self.topology.queue_by_id(id).unwrap());
        let mut names: Vec<&str> = queues.map(|queue| &*queue.name).collect();
        names.sort_unstable();
        names.join(" ")
    }
}

/// SplitMix64.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub(crate) fn below(&mut self, count: usize) -> usize {
        (self.next() % count as u64) as usize
    }

    pub(crate) fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }

    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}
