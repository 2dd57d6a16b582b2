//! Events on their way to the event exchange: each a message of its own, for whoever is bound.
//!
//! They are published as RabbitMQ publishes them: at most once, with nobody waiting for a confirm.

use bytes::Bytes;
use leveret_amqp::content::{Properties, RawProperties};
use leveret_amqp::table::Table;
use leveret_queue::Time;
use leveret_topology::{Event, Exchange, GroupId, HashProperties, Routable, Route, Topology};

use crate::message::{ConnectionId, Homed, Message, Outbox, Publish, ToShard, add_by_home};
use crate::record::join_names;

/// Delivery mode of what is to survive a restart.
const PERSISTENT: u8 = 2;

/// The headers of an event's message: its facts by name, and when it was.
pub fn headers(event: &Event, at: Time) -> Table {
    let facts = event.facts.iter();
    let mut facts: Vec<_> = facts.map(|(name, value)| (name.to_owned(), value.clone())).collect();
    facts.push(("timestamp_in_ms".to_owned(), (at.ms() as i64).into()));
    facts.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut headers = Table::new();
    for (name, value) in facts {
        headers.push(name, value);
    }
    headers
}

/// Sends an event to the queues that the event exchange routes it to.
pub fn publish(event: &Event, headers: Table, at: Time, topology: &Topology, out: &mut Outbox) {
    let Some(exchange) = topology.event_exchange() else { return };
    let properties = Properties {
        headers: Some(headers),
        delivery_mode: Some(PERSISTENT),
        timestamp: Some(at.ms() / 1000),
        ..Properties::default()
    };
    publish_to(
        exchange,
        &event.name,
        (&properties, Vec::new()),
        at.ms(),
        topology,
        |home, publish| {
            // Nobody's connection: nobody is told to pause.
            let letter = ToShard::Publish { from: ConnectionId::NOBODY, messages: vec![publish] };
            out.shard(home, letter);
        },
    );
}

/// Publishes a message of the node's own to an exchange: `put` is given what goes to each group. `seed` is for exchanges that
/// route at random. The pieces of the body are shared.
pub fn publish_to(
    exchange: &Exchange,
    key: &str,
    (properties, body): (&Properties, Vec<Bytes>),
    seed: u64,
    topology: &Topology,
    mut put: impl FnMut(GroupId, Publish),
) {
    let encoded = properties.to_bytes();
    // What is nested too deeply for the wire nobody could read.
    let Ok(peek) = RawProperties::new(&encoded).peek() else { return };
    let routable = Routable {
        key,
        more_keys: &[],
        headers: peek.headers,
        properties: HashProperties::default(),
        seed,
    };
    let mut route = Route::default();
    topology.route(exchange.vhost, exchange.id, &routable, &mut route);
    let message = Message::with_body(&join_names(&exchange.name, key), &encoded, body);
    let mut homed = Homed::new();
    add_by_home(&route.queues, topology, &mut homed);
    for (home, targets) in homed {
        let publish = Publish {
            channel: 0,
            confirm: 0,
            targets,
            persistent: properties.delivery_mode == Some(PERSISTENT),
            priority: 0,
            expiration_ms: None,
            message: message.clone(),
            shared: None,
        };
        put(home, publish);
    }
}
