//! What a run does, made of the options: places, limits, and who publishes where.

use anyhow::{Context, Result};
use leveret_client::amqp::table::Table;
use leveret_client::{Connection, ExchangeDeclare, Options as ClientOptions, QueueDeclare, Uri};

use crate::args::{Flag, Mode, Options};

/// Messages of the latency mode that are left out while caches and code warm up.
const LATENCY_WARM_UP: u64 = 500;
/// Length of a latency run for which nothing else is said.
const LATENCY_SECONDS: f64 = 10.0;

/// A run that has been thought through.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) uri: Uri,
    pub(crate) client: ClientOptions,
    pub(crate) exchange: String,
    exchange_kind: String,
    routing_key: Option<String>,
    queues: Vec<String>,
    predeclared: bool,
    auto_delete: bool,
    pub(crate) persistent: bool,
    pub(crate) mandatory: bool,
    pub(crate) body_bytes: usize,
    pub(crate) producers: usize,
    pub(crate) consumers: usize,
    pub(crate) publish_rate: Option<f64>,
    pub(crate) consume_rate: Option<f64>,
    pub(crate) publish_limit: Option<u64>,
    pub(crate) consume_limit: Option<u64>,
    pub(crate) confirm_window: Option<usize>,
    pub(crate) prefetch: Option<u16>,
    pub(crate) ack: Ack,
    /// First messages of each consumer whose latency is not counted.
    pub(crate) warm_up: u64,
    pub(crate) seconds: Option<f64>,
}

/// How deliveries are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ack {
    /// By the broker itself.
    Auto,
    /// One ack for each message.
    Each,
    /// One ack for so many messages.
    Every(u32),
}

/// A queue and the key by which messages get there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) queue: String,
    pub(crate) routing_key: String,
}

impl Plan {
    pub(crate) fn new(options: &Options) -> Result<Self> {
        let uri: Uri = options.uri.parse().with_context(|| format!("--uri {}", options.uri))?;
        let queues = match (&options.queue_pattern, options.queue_pattern_to) {
            (Some(pattern), Some(last)) => (options.queue_pattern_from..=last)
                .map(|number| pattern.replace("%d", &number.to_string()))
                .collect(),
            _ => vec![options.queue.clone().unwrap_or_default()],
        };
        let latency = options.mode == Mode::Latency;
        let ack = match options.multi_ack_every {
            _ if options.autoack => Ack::Auto,
            Some(1) => Ack::Each,
            Some(count) => Ack::Every(count),
            None if latency => Ack::Auto,
            None => Ack::Each,
        };
        let unlimited = options.time.is_none() && options.pmessages.is_none();
        Ok(Self {
            uri,
            client: ClientOptions {
                name: Some(options.id.clone()),
                heartbeat_s: options.heartbeat,
                ..ClientOptions::default()
            },
            exchange: options.exchange.clone().unwrap_or_else(|| options.kind.clone()),
            exchange_kind: options.kind.clone(),
            routing_key: options.routing_key.clone(),
            queues,
            predeclared: options.predeclared,
            auto_delete: options.auto_delete,
            persistent: options.has(Flag::Persistent),
            mandatory: options.has(Flag::Mandatory),
            body_bytes: options.size,
            producers: options.producers,
            consumers: options.consumers,
            publish_rate: options.rate.or_else(|| latency.then_some(1000.0)),
            consume_rate: options.consumer_rate,
            publish_limit: options.pmessages,
            consume_limit: options.cmessages,
            confirm_window: options.confirm,
            prefetch: options.qos,
            ack,
            warm_up: if latency { LATENCY_WARM_UP } else { 0 },
            seconds: options.time.or_else(|| (latency && unlimited).then_some(LATENCY_SECONDS)),
        })
    }

    /// The `properties` of every message, as on the wire: flags, then the delivery mode if any.
    pub(crate) fn properties(&self) -> &'static [u8] {
        if self.persistent { &[0x10, 0x00, 2] } else { &[0, 0] }
    }

    /// Declares what the run needs, and says where messages go. Worker `i` uses route
    /// `i % routes.len()`.
    pub(crate) fn declare(&self) -> Result<Vec<Route>> {
        let route = |queue: String| Route {
            routing_key: self.routing_key.clone().unwrap_or_else(|| queue.clone()),
            queue,
        };
        if self.predeclared {
            return Ok(self.queues.iter().cloned().map(route).collect());
        }
        let mut connection = Connection::open(&self.uri, &self.client)
            .with_context(|| format!("connecting as {}", self.uri))?;
        let channel = connection.open_channel()?;
        let named = !self.exchange.is_empty();
        if named && !self.exchange.starts_with("amq.") {
            let how = ExchangeDeclare::default();
            connection.exchange_declare(channel, &self.exchange, &self.exchange_kind, &how)?;
        }
        let mut routes = Vec::new();
        for name in &self.queues {
            let how = QueueDeclare {
                durable: self.persistent,
                auto_delete: self.auto_delete,
                ..QueueDeclare::default()
            };
            let declared = connection.queue_declare(channel, name, &how)?;
            let route = route(declared.queue);
            if named {
                let Route { queue, routing_key } = &route;
                let none = Table::default();
                connection.queue_bind(channel, queue, &self.exchange, routing_key, &none)?;
            }
            routes.push(route);
        }
        connection.close()?;
        Ok(routes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(line: &str) -> Plan {
        let words = line.split_whitespace().map(Into::into);
        Plan::new(&Options::read(words).unwrap()).unwrap()
    }

    #[test]
    fn queue_patterns_count() {
        let plan = plan("-qp p%d-x -qpf 9 -qpt 11 -p -k key");
        let routes = plan.declare().unwrap();
        let queues: Vec<_> = routes.iter().map(|route| &*route.queue).collect();
        assert_eq!(queues, ["p9-x", "p10-x", "p11-x"]);
        assert!(routes.iter().all(|route| route.routing_key == "key"));
    }

    #[test]
    fn the_latency_mode_fills_in_what_is_not_given() {
        let short = plan("latency");
        assert_eq!((short.publish_rate, short.seconds), (Some(1000.0), Some(10.0)));
        assert_eq!((short.ack, short.warm_up), (Ack::Auto, 500));
        let long = plan("latency -r 200 -C 5000 -A 1");
        assert_eq!((long.publish_rate, long.seconds, long.ack), (Some(200.0), None, Ack::Each));
    }

    #[test]
    fn the_exchange_is_named_after_its_type() {
        assert_eq!(plan("-t topic").exchange, "topic");
        assert_eq!(plan("-t topic -e x").exchange, "x");
    }
}
