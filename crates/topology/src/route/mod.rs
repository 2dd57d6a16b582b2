//! Routing: from an exchange and a message's keys and headers to queues.
//!
//! Hot path. No allocation as long as a message reaches at most four queues through at most eight
//! exchanges; no string is hashed but the routing key.
//!
//! ```text
//!   exchange --router--> destinations --> queues
//!                             |
//!                             +---------> exchanges, each visited once --> ...
//!   an exchange without any destination: its alternate exchange instead
//! ```
//!
//! One message has a [`cost`](Route::cost), of which there is a largest one, [`ROUTE_COST_MAX`]: whoever publishes is in
//! the way of others for no longer. What a single exchange can cost is bounded when it is bound, see [`headers`] and
//! [`topic`]; many of them in a row, or many keys, are bounded here.

mod dests;
mod erlang;
mod hashing;
mod headers;
mod out;
mod topic;

use leveret_amqp::table::{RawTable, Table, Value};
use smallvec::SmallVec;

use crate::binding::{Binding, BindingIx, Target};
use crate::error::BindError;
use crate::exchange::{Exchange, ExchangeKind};
use crate::id::{BindingId, ExchangeId, QueueId, VhostId};
use crate::topology::Topology;
use crate::value;

use dests::{Dests, KeyMap};
pub(crate) use hashing::HASH_PROPERTIES;
use hashing::{ConsistentHash, ModulusHash};
use headers::Headers;
use out::{RouteSink, deduplicate};
use topic::Topics;

/// What routing looks at in a message.
#[derive(Clone, Copy, Debug, Default)]
pub struct Routable<'a> {
    /// The routing key.
    pub key: &'a str,
    /// The `CC` and `BCC` headers' keys. [`Route::cacheable`] is false when there are any.
    pub more_keys: &'a [&'a str],
    /// The headers, for headers exchanges and `hash-header`.
    pub headers: Option<RawTable<'a>>,
    /// For `hash-property`.
    pub properties: HashProperties<'a>,
    /// A new random number, for the random kinds.
    pub seed: u64,
}

/// The properties a consistent-hash exchange may hash.
#[derive(Clone, Copy, Debug, Default)]
pub struct HashProperties<'a> {
    /// `correlation-id`.
    pub correlation_id: Option<&'a str>,
    /// `message-id`.
    pub message_id: Option<&'a str>,
    /// `timestamp`.
    pub timestamp: Option<u64>,
}

/// Where a message goes. Kept by the caller and used again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// The queues, each once.
    pub queues: SmallVec<[QueueId; 4]>,
    /// Recent-history exchanges that the message passed and that have to remember it.
    pub remember: SmallVec<[ExchangeId; 1]>,
    /// It is the same for every message of this exchange and routing key (without `CC` and `BCC`) while
    /// [`Topology::generation`] stands.
    pub cacheable: bool,
    /// What finding it took, in units of one look into a table (about 10 ns); four destinations are one, too.
    pub cost: u32,
}

/// What finding a message's queues may cost: some milliseconds. One that costs more goes nowhere.
pub const ROUTE_COST_MAX: u32 = 1 << 19;

impl Route {
    /// Forgets everything, keeps the room.
    pub fn clear(&mut self) {
        self.queues.clear();
        self.remember.clear();
        self.cacheable = false;
        self.cost = 0;
    }

    /// Finding the queues would have cost more than [`ROUTE_COST_MAX`]: there are none, and the message is to be
    /// refused.
    #[inline]
    pub fn is_too_costly(&self) -> bool {
        self.cost > ROUTE_COST_MAX
    }
}

/// The heaviest binding of a consistent-hash exchange.
const WEIGHT_MAX: u32 = 10_000;

/// What each kind asks of a binding, but for its destination.
pub(crate) fn check_binding_key(
    kind: ExchangeKind,
    key: &str,
    arguments: &Table,
) -> Result<(), BindError> {
    match kind {
        ExchangeKind::Headers => match arguments.get("x-match") {
            None => Ok(()),
            Some(Value::LongStr(_)) => {
                let name = arguments.get("x-match").map(value::plain).unwrap_or_default();
                headers::Match::parse(&name).map(|_| ()).ok_or(BindError::MatchValue(name))
            }
            Some(other) => {
                Err(BindError::MatchType { found: other.kind_name(), value: value::term(other) })
            }
        },
        ExchangeKind::ConsistentHash => match key.parse::<i64>() {
            Err(_) => Err(BindError::WeightNotNumber(key.to_owned())),
            Ok(weight) if weight < 1 => Err(BindError::WeightTooSmall),
            Ok(weight) if weight > WEIGHT_MAX.into() => Err(BindError::WeightTooLarge(WEIGHT_MAX)),
            Ok(_) => Ok(()),
        },
        ExchangeKind::LocalRandom if !key.is_empty() => Err(BindError::KeyNotEmpty(key.to_owned())),
        _ => Ok(()),
    }
}

/// The bindings of an exchange, arranged for its kind.
#[derive(Debug)]
pub(crate) enum Router {
    Direct(KeyMap),
    Fanout(Dests),
    Topic(Box<Topics>),
    Headers(Box<Headers>),
    ConsistentHash(Box<ConsistentHash>),
    ModulusHash(ModulusHash),
    Random(Dests),
    RecentHistory(Dests),
}

impl Router {
    pub(crate) fn new(kind: ExchangeKind, arguments: &Table) -> Self {
        match kind {
            ExchangeKind::Direct => Self::Direct(KeyMap::default()),
            ExchangeKind::Fanout => Self::Fanout(Dests::default()),
            ExchangeKind::Topic => Self::Topic(Box::default()),
            ExchangeKind::Headers => Self::Headers(Box::default()),
            ExchangeKind::ConsistentHash => {
                let on = hashing::HashOn::from_arguments(arguments);
                Self::ConsistentHash(Box::new(ConsistentHash::new(on)))
            }
            ExchangeKind::ModulusHash => Self::ModulusHash(ModulusHash::default()),
            ExchangeKind::Random | ExchangeKind::LocalRandom => Self::Random(Dests::default()),
            ExchangeKind::RecentHistory => Self::RecentHistory(Dests::default()),
        }
    }

    /// `name` is the destination's.
    pub(crate) fn bind(&mut self, ix: BindingIx, id: BindingId, binding: &Binding, name: &str) {
        match self {
            Self::Direct(keys) => keys.bind(&binding.key, binding.target),
            Self::Fanout(dests) | Self::Random(dests) | Self::RecentHistory(dests) => {
                dests.add(binding.target);
            }
            Self::Topic(topics) => topics.bind(&binding.key, binding.target),
            Self::Headers(headers) => headers.bind(ix, binding),
            Self::ConsistentHash(ring) => ring.bind(id, binding),
            Self::ModulusHash(sorted) => sorted.bind(name, binding.target),
        }
    }

    pub(crate) fn unbind(&mut self, ix: BindingIx, id: BindingId, binding: &Binding, name: &str) {
        match self {
            Self::Direct(keys) => keys.unbind(&binding.key, binding.target),
            Self::Fanout(dests) | Self::Random(dests) | Self::RecentHistory(dests) => {
                dests.remove(binding.target);
            }
            Self::Topic(topics) => topics.unbind(&binding.key, binding.target),
            Self::Headers(headers) => headers.unbind(ix),
            Self::ConsistentHash(ring) => ring.unbind(id, binding.target),
            Self::ModulusHash(sorted) => sorted.unbind(name, binding.target),
        }
    }

    /// What a message may cost here if there is one more binding, and what is allowed; none if that is not over it.
    pub(crate) fn exceeds(&self, key: &str, arguments: &Table) -> Option<(u64, u64)> {
        match self {
            Self::Topic(topics) => topics.exceeds(key),
            Self::Headers(headers) => headers.exceeds(arguments),
            _ => None,
        }
    }

    /// Writes the destinations; false when they depend on more than the routing key.
    fn route(&self, message: &Routable<'_>, out: &mut RouteSink<'_>) -> bool {
        match self {
            Self::Direct(keys) => {
                keys.route(message.key, out);
                for key in message.more_keys {
                    keys.route(key, out);
                    if out.is_over() {
                        break;
                    }
                }
                true
            }
            Self::Fanout(dests) | Self::RecentHistory(dests) => {
                out.all(dests);
                true
            }
            Self::Topic(topics) => {
                topics.route(message.key, out);
                for key in message.more_keys {
                    topics.route(key, out);
                    if out.is_over() {
                        break;
                    }
                }
                true
            }
            Self::Headers(headers) => {
                headers.route(message.headers, out);
                headers.is_empty()
            }
            Self::ConsistentHash(ring) => ring.route(message, out),
            Self::ModulusHash(sorted) => {
                sorted.route(message, out);
                true
            }
            Self::Random(dests) => {
                if let Some(target) = dests.pick(message.seed) {
                    out.one(target);
                }
                dests.len() < 2
            }
        }
    }
}

impl Topology {
    /// Finds the queues of a message published to an exchange. `out` is cleared first.
    ///
    /// An exchange that is gone routes nowhere. `vhost` is the exchange's.
    pub fn route(
        &self,
        vhost: VhostId,
        exchange: ExchangeId,
        message: &Routable<'_>,
        out: &mut Route,
    ) {
        out.clear();
        out.cacheable = message.more_keys.is_empty();
        let Some(place) = self.vhost_by_id(vhost) else { return };
        if exchange == place.default_exchange {
            out.cost = u32::try_from(message.more_keys.len() + 1).unwrap_or(u32::MAX);
            for key in core::iter::once(&message.key).chain(message.more_keys) {
                if let Some(queue) = place.queue_id(key) {
                    out.queues.push(queue);
                }
            }
            deduplicate(&mut out.queues);
            return;
        }

        let mut out = RouteSink::new(out, self);
        out.exchange(exchange);
        let mut next = 0;
        while let Some(&id) = out.exchanges.get(next) {
            next += 1;
            out.pay(1);
            // A destination is removed from its sources before it goes: only the first one can be gone.
            let Some(exchange) = self.exchange_by_id(id) else { continue };
            out.found = false;
            if exchange.id == place.default_exchange {
                // Reached as an alternate exchange.
                for key in core::iter::once(&message.key).chain(message.more_keys) {
                    out.pay(1);
                    if let Some(queue) = place.queue_id(key) {
                        out.one(Target::Queue(queue));
                    }
                }
                continue;
            }
            if exchange.kind == ExchangeKind::RecentHistory {
                out.route.remember.push(id);
            }
            out.route.cacheable &= exchange.router.route(message, &mut out);
            if out.is_over() {
                out.route.queues.clear();
                out.route.remember.clear();
                out.route.cacheable = false;
                return;
            }
            if !out.found
                && let Some(alternate) = alternate(place, exchange)
            {
                out.target(Target::Exchange(alternate));
            }
        }
        if out.sets > 1 {
            deduplicate(&mut out.route.queues);
        }
    }
}

#[cold]
fn alternate(vhost: &crate::vhost::Vhost, exchange: &Exchange) -> Option<ExchangeId> {
    vhost.exchange_id(exchange.alternate()?)
}
