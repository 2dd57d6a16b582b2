//! From names to queues, past the route cache.

use leveret_amqp::content::{Peek, RawProperties};
use leveret_amqp::table::{RawTable, RawValue};
use leveret_broker::message::{Message, Targets, ToShard, add_by_home};
use leveret_broker::record::split_names;
use leveret_topology::{
    Exchange, ExchangeKind, HashProperties, Permission, ROUTE_COST_MAX, ResourceKind, Routable,
    Route,
};
use smallvec::SmallVec;

use crate::cache::{RouteCache, Routed};
use crate::core::{Context, Core};
use crate::direct;
use crate::properties::more_keys;
use crate::publish::Head;
use crate::reply::{self, Fault};
use crate::trace;

/// Names that the cache does not know: may the user write there, does it exist, does it take messages
/// from clients? Gives the place of the new entry, which is not routed yet.
#[cold]
pub(crate) fn resolve(
    core: &Core,
    cache: &mut RouteCache,
    names: &[u8],
    cx: &Context<'_>,
) -> Result<usize, Fault> {
    let (name, key) = split_names(names).unwrap_or_default();
    let identity = &core.identity;
    let found = cx.topology.exchange(identity.vhost, name);
    if !found.is_some_and(|exchange| cache.is_writable(exchange.id)) {
        core.check(Permission::Write, ResourceKind::Exchange, name, cx)?;
    }
    let Some(exchange) = found else {
        return Err(reply::no_exchange(name, &identity.vhost_name));
    };
    if exchange.internal {
        return Err(reply::internal_exchange(name, &identity.vhost_name));
    }
    core.check_topic(Permission::Write, exchange, key, cx)?;
    let is_topic = exchange.kind == ExchangeKind::Topic;
    if !cache.is_writable(exchange.id) {
        cache.set_writable(exchange.id);
    }
    Ok(cache.insert(names, exchange.id, is_topic))
}

/// Finds where the message goes: into the entry at `place` when that holds for all with its names (true),
/// else into the cache's scratch.
#[inline]
pub(crate) fn find(
    core: &mut Core,
    cache: &mut RouteCache,
    place: usize,
    names: &[u8],
    raw: RawProperties<'_>,
    peek: &Peek<'_>,
    cx: &Context<'_>,
) -> Result<bool, Fault> {
    let Some(entry) = cache.get(place) else { return Ok(false) };
    let has_more_keys = peek.headers.is_some_and(has_routing_headers);
    if entry.is_routed && !has_more_keys {
        return Ok(true);
    }
    route(core, cache, place, names, (raw, peek), has_more_keys, cx)
}

/// Whether there is a `CC` or a `BCC`.
fn has_routing_headers(headers: RawTable<'_>) -> bool {
    !matches!(headers.get("CC"), Ok(None)) || !matches!(headers.get("BCC"), Ok(None))
}

#[cold]
fn route(
    core: &mut Core,
    cache: &mut RouteCache,
    place: usize,
    names: &[u8],
    (raw, peek): (RawProperties<'_>, &Peek<'_>),
    has_more_keys: bool,
    cx: &Context<'_>,
) -> Result<bool, Fault> {
    let Some(entry) = cache.get(place) else { return Ok(false) };
    let (id, is_topic) = (entry.exchange, entry.is_topic);
    let (name, key) = split_names(names).unwrap_or_default();
    let identity = &core.identity;
    let exchange = cx.topology.exchange_by_id(id);
    let more = match peek.headers {
        Some(headers) if has_more_keys => checked_keys(core, exchange, is_topic, headers, cx)?,
        _ => SmallVec::new(),
    };
    // Only consistent-hash exchanges look at other properties than the headers.
    let owned = exchange
        .filter(|exchange| exchange.kind == ExchangeKind::ConsistentHash)
        .and_then(|_| raw.to_owned().ok())
        .unwrap_or_default();
    let message = Routable {
        key,
        more_keys: &more,
        headers: peek.headers,
        properties: HashProperties {
            correlation_id: owned.correlation_id.as_deref(),
            message_id: owned.message_id.as_deref(),
            timestamp: owned.timestamp,
        },
        seed: core.random.next(),
    };
    let mut found = std::mem::take(&mut cache.route);
    cx.topology.route(identity.vhost, id, &message, &mut found);
    if found.is_too_costly() {
        cache.route = found;
        return Err(reply::route_too_costly(name, &identity.vhost_name, ROUTE_COST_MAX));
    }
    let routed = &mut cache.scratch;
    fill(routed, &found, cx);
    routed.is_traced = trace::is_on(core, cx);
    if name.is_empty() {
        routed.direct = direct::parse(key);
    }
    let is_cacheable = found.cacheable;
    cache.route = found;
    if is_cacheable {
        cache.set_routed(place);
    }
    Ok(is_cacheable)
}

/// The keys of `CC` and `BCC`, which the user may write with.
fn checked_keys<'a>(
    core: &Core,
    exchange: Option<&Exchange>,
    is_topic: bool,
    headers: RawTable<'a>,
    cx: &Context<'_>,
) -> Result<SmallVec<[&'a str; 4]>, Fault> {
    let more = more_keys(headers)?;
    if let Some(exchange) = exchange.filter(|_| is_topic) {
        for key in &more {
            core.check_topic(Permission::Write, exchange, key, cx)?;
        }
    }
    Ok(more)
}

/// The checks of a route, for a message that is not whole yet.
pub(crate) fn check_more_keys(
    core: &Core,
    cache: &RouteCache,
    place: usize,
    peek: &Peek<'_>,
    cx: &Context<'_>,
) -> Result<(), Fault> {
    let (Some(entry), Some(headers)) = (cache.get(place), peek.headers) else {
        return Ok(());
    };
    if has_routing_headers(headers) {
        let exchange = cx.topology.exchange_by_id(entry.exchange);
        checked_keys(core, exchange, entry.is_topic, headers, cx)?;
    }
    Ok(())
}

fn fill(routed: &mut Routed, found: &Route, cx: &Context<'_>) {
    routed.clear();
    add_by_home(&found.queues, cx.topology, &mut routed.targets);
    for &exchange in &found.remember {
        let limit = cx.topology.exchange_by_id(exchange).map_or(0, |e| e.history_length());
        routed.remember.push((exchange, u32::try_from(limit).unwrap_or(u32::MAX)));
    }
}

/// Whether recent-history exchanges are to keep the message.
#[cold]
pub(crate) fn is_to_be_remembered(message: &Message) -> bool {
    let headers =
        RawProperties::new(message.properties()).peek().ok().and_then(|peek| peek.headers);
    let no_store =
        headers.and_then(|headers| headers.get("x-recent-history-no-store").ok().flatten());
    !matches!(no_store, Some(RawValue::Bool(true)))
}

/// Tells recent-history exchanges what passed them.
#[cold]
pub(crate) fn remember(
    core: &Core,
    routed: &Routed,
    head: Head,
    message: &Message,
    cx: &mut Context<'_>,
) {
    if !is_to_be_remembered(message) {
        return;
    }
    for &(exchange, limit) in &routed.remember {
        let message = head.publish(0, &Targets::new(), message.clone());
        let home = cx.topology.history_home(exchange);
        let letter = ToShard::Remember { from: core.id, exchange, limit, message };
        cx.outbox.shard(home, letter);
    }
}
