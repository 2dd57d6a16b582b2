//! Bindings.

use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use foldhash::fast::FixedState;
use leveret_amqp::method::{Method, exchange, queue};
use leveret_amqp::table::{RawTable, Table};
use leveret_topology::{
    Binding, ExchangeId, Queue, Target, Topology, VhostId, table_from_json, table_to_json,
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde_json::{Value, json};

use super::answer::{Answer, Fault};
use super::call::{Call, Fields as _};
use super::exchanges::direct;
use super::listing::{self, Listed, Why};
use super::queues;
use crate::ops::direct::is;
use crate::ops::pages;

/// One binding, with names.
#[derive(Clone, Debug, PartialEq)]
struct Bound {
    vhost: Arc<str>,
    source: Arc<str>,
    to_queue: bool,
    destination: Arc<str>,
    key: Arc<str>,
    arguments: Table,
}

impl Bound {
    fn row(&self) -> Value {
        json!({
            "source": &*self.source,
            "vhost": &*self.vhost,
            "destination": &*self.destination,
            "destination_type": if self.to_queue { "queue" } else { "exchange" },
            "routing_key": &*self.key,
            "arguments": table_to_json(&self.arguments),
            "properties_key": properties_key(&self.key, &self.arguments),
        })
    }
}

/// What names a binding among those of one source and one destination: its key, `~` for an empty one, and
/// after a `~` a hash of its arguments if there are any.
fn properties_key(key: &str, arguments: &Table) -> String {
    match (key.is_empty(), arguments.is_empty()) {
        (true, true) => "~".to_owned(),
        (_, true) => quote(key),
        (_, false) => {
            let mut hasher = FixedState::default().build_hasher();
            hasher.write(&arguments.to_bytes());
            let hash = (hasher.finish() as u32).to_be_bytes();
            format!("{}~{}", quote(key), URL_SAFE_NO_PAD.encode(hash))
        }
    }
}

/// What a binding's key keeps as it is.
const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'-').remove(b'_').remove(b' ');

/// As RabbitMQ quotes it: a space is a plus.
fn quote(text: &str) -> String {
    utf8_percent_encode(text, KEPT).to_string().replace(' ', "+")
}

/// What a part of a path keeps as it is.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'-').remove(b'_').remove(b'~');

fn segment(text: &str) -> String {
    utf8_percent_encode(text, IN_PATH).to_string()
}

/// A list of bindings.
struct AllBound;

impl Listed for AllBound {
    type Item = Bound;

    async fn rows(&self, _: &Call, items: &[Bound], _: Why) -> Result<Vec<Value>, Fault> {
        Ok(items.iter().map(Bound::row).collect())
    }
}

/// With its names, if both ends are there and in one of these vhosts.
fn bound(topology: &Topology, binding: &Binding, vhosts: &[VhostId]) -> Option<Bound> {
    let source = topology.exchange_by_id(binding.source)?;
    if !vhosts.contains(&source.vhost) {
        return None;
    }
    let (to_queue, destination) = match binding.target {
        Target::Queue(id) => (true, &topology.queue_by_id(id)?.name),
        Target::Exchange(id) => (false, &topology.exchange_by_id(id)?.name),
    };
    Some(Bound {
        vhost: Arc::clone(&topology.vhost_by_id(source.vhost)?.name),
        source: Arc::clone(&source.name),
        to_queue,
        destination: Arc::clone(destination),
        key: (&*binding.key).into(),
        arguments: binding.arguments.clone(),
    })
}

/// Every queue is bound to the default exchange under its name.
fn implied(vhost: Arc<str>, queue: Arc<str>) -> Bound {
    let (source, arguments) = (Arc::default(), Table::new());
    Bound { vhost, source, to_queue: true, destination: Arc::clone(&queue), key: queue, arguments }
}

/// A vhost by its name.
fn seen_vhost(call: &Call, name: &str) -> Result<(VhostId, Arc<str>), Fault> {
    let topology = call.node().topology();
    let vhost = topology.vhost(name).ok_or_else(Fault::not_found)?;
    Ok((vhost.id, Arc::clone(&vhost.name)))
}

/// The bindings in these places of the arena, as far as they are in the vhost and wanted.
async fn made(
    call: &Call,
    places: impl IntoIterator<Item = u32, IntoIter: Send> + Send,
    vhosts: &[VhostId],
    is_wanted: impl Fn(&Binding) -> bool + Send + Sync,
) -> Vec<Bound> {
    let copy = |topology: &Topology, place| {
        let binding = topology.binding_at(place).filter(|it| is_wanted(it))?;
        bound(topology, binding, vhosts)
    };
    pages::copied(call.node(), places, copy).await
}

/// Answers a list, in the order of names.
async fn answer(call: Call, mut found: Vec<Bound>) -> Result<Answer, Fault> {
    let order = |a: &Bound, b: &Bound| {
        (&a.vhost, &a.source, &a.destination, &a.key).cmp(&(
            &b.vhost,
            &b.source,
            &b.destination,
            &b.key,
        ))
    };
    pages::sort(&mut found, order).await;
    // One that was unbound and bound again meanwhile may have been seen in two places.
    found.dedup();
    listing::list(call, AllBound, found).await
}

/// `GET /api/bindings` and `/{vhost}`.
pub(super) async fn list(call: Call) -> Result<Answer, Fault> {
    let vhosts = call.vhosts()?;
    let queues = queues::all(&call, &vhosts, |_| true).await.into_iter();
    let mut found: Vec<_> = queues.map(|queue| implied(queue.vhost, queue.name)).collect();
    let (vhosts, places) = {
        let topology = call.node().topology();
        let ids = vhosts.iter().filter_map(|name| Some(topology.vhost(name)?.id));
        (ids.collect::<Vec<_>>(), topology.binding_places())
    };
    found.append(&mut made(&call, 0..places, &vhosts, |_| true).await);
    answer(call, found).await
}

/// `GET /api/queues/{vhost}/{queue}/bindings`.
pub(super) async fn list_of_queue(call: Call) -> Result<Answer, Fault> {
    let vhost = call.visible_vhost()?;
    let find = |queue: &Queue| (queue.id, Arc::clone(&queue.name));
    let (id, name) = queues::find(&call, &vhost, find).ok_or_else(Fault::not_found)?;
    let (vhost_id, vhost) = seen_vhost(&call, &vhost)?;
    let target = Target::Queue(id);
    let places = call.node().topology().places_to(target);
    let mut found = made(&call, places, &[vhost_id], |it| it.target == target).await;
    found.push(implied(vhost, name));
    answer(call, found).await
}

/// `GET /api/exchanges/{vhost}/{exchange}/bindings/source`.
pub(super) async fn list_from(call: Call) -> Result<Answer, Fault> {
    let (vhost, vhost_id, id) = exchange_of(&call)?;
    let found = if call.exchange_param("exchange").is_empty() {
        let queues = queues::all(&call, &[vhost], |_| true).await.into_iter();
        queues.map(|queue| implied(queue.vhost, queue.name)).collect()
    } else {
        let places = call.node().topology().places_from(id);
        made(&call, places, &[vhost_id], |it| it.source == id).await
    };
    answer(call, found).await
}

/// `GET /api/exchanges/{vhost}/{exchange}/bindings/destination`.
pub(super) async fn list_to(call: Call) -> Result<Answer, Fault> {
    let (_, vhost, id) = exchange_of(&call)?;
    let target = Target::Exchange(id);
    let places = call.node().topology().places_to(target);
    let found = made(&call, places, &[vhost], |it| it.target == target).await;
    answer(call, found).await
}

fn exchange_of(call: &Call) -> Result<(String, VhostId, ExchangeId), Fault> {
    let vhost = call.visible_vhost()?;
    let topology = call.node().topology();
    let id = topology.vhost(&vhost).ok_or_else(Fault::not_found)?.id;
    let exchange = topology.exchange(id, call.exchange_param("exchange"));
    let exchange = exchange.ok_or_else(Fault::not_found)?.id;
    Ok((vhost, id, exchange))
}

/// Source, whether the destination is a queue, destination.
fn ends(call: &Call) -> Result<(String, bool, String), Fault> {
    let to_queue = match call.param("dtype") {
        "q" => true,
        "e" => false,
        _ => return Err(Fault::not_found()),
    };
    let destination =
        if to_queue { call.param("destination") } else { call.exchange_param("destination") };
    Ok((call.exchange_param("source").to_owned(), to_queue, destination.to_owned()))
}

/// The bindings of one source and one destination; none if one of the two is not there.
async fn between(call: &Call, vhost: &str) -> Result<Vec<Bound>, Fault> {
    let (source, to_queue, destination) = ends(call)?;
    let (vhost, vhost_name) = seen_vhost(call, vhost)?;
    let (from, target, places) = {
        let topology = call.node().topology();
        let target = match to_queue {
            true => topology.queue(vhost, &destination).map(|it| Target::Queue(it.id)),
            false => topology.exchange(vhost, &destination).map(|it| Target::Exchange(it.id)),
        };
        let (Some(source), Some(target)) = (topology.exchange(vhost, &source), target) else {
            return Ok(Vec::new());
        };
        (source.id, target, topology.places_to(target))
    };
    if source.is_empty() {
        let is_queue = to_queue.then(|| implied(vhost_name, destination.into()));
        return Ok(is_queue.into_iter().collect());
    }
    let is_wanted = |it: &Binding| it.source == from && it.target == target;
    Ok(made(call, places, &[vhost], is_wanted).await)
}

/// `GET /api/bindings/{vhost}/e/{source}/{q|e}/{destination}`.
pub(super) async fn list_between(call: Call) -> Result<Answer, Fault> {
    let found = between(&call, &call.visible_vhost()?).await?;
    answer(call, found).await
}

/// `GET .../{props}`.
pub(super) async fn get(call: Call) -> Result<Answer, Fault> {
    let found = named(&call, &call.visible_vhost()?).await?;
    Ok(listing::one(&call, found.row()))
}

/// The binding whose properties' key is in the path.
async fn named(call: &Call, vhost: &str) -> Result<Bound, Fault> {
    let props = call.param("props");
    let is_it = |bound: &Bound| {
        let key = properties_key(&bound.key, &bound.arguments);
        // A key may come quoted once more or less; some tools write it without quoting at all.
        let plain = percent_decode_str(&key).decode_utf8_lossy();
        key == props || *plain == *props || bound.arguments.is_empty() && *bound.key == *props
    };
    between(call, vhost).await?.into_iter().find(is_it).ok_or_else(Fault::not_found)
}

/// `POST /api/bindings/{vhost}/e/{source}/{q|e}/{destination}`.
pub(super) async fn post(call: Call) -> Result<Answer, Fault> {
    let vhost = call.vhost()?;
    let (source, to_queue, destination) = ends(&call)?;
    let body = call.object()?;
    let key = body.optional_text("routing_key")?.unwrap_or_default();
    let arguments = table_from_json(&body.object("arguments")?);
    let bytes = arguments.to_bytes();
    let raw = RawTable::unchecked(&bytes);
    let mut direct = direct(&call, &vhost).await?;
    if to_queue {
        let bind = queue::Bind {
            queue: &destination,
            exchange: &source,
            routing_key: &key,
            arguments: raw,
            ..Default::default()
        };
        direct.call(&bind, |it| is(it, |it| matches!(it, Method::QueueBindOk(_)))).await?;
    } else {
        let bind = exchange::Bind {
            destination: &destination,
            source: &source,
            routing_key: &key,
            arguments: raw,
            ..Default::default()
        };
        direct.call(&bind, |it| is(it, |it| matches!(it, Method::ExchangeBindOk(_)))).await?;
    }
    let props = properties_key(&key, &arguments);
    // Relative to the path, as in RabbitMQ: tools take what is behind the last slash.
    Ok(Answer::Created(Some(format!("{}/{}", segment(&destination), segment(&props)))))
}

/// `DELETE /api/bindings/{vhost}/e/{source}/{q|e}/{destination}/{props}`.
pub(super) async fn delete(call: Call) -> Result<Answer, Fault> {
    let vhost = call.vhost()?;
    let found = named(&call, &vhost).await?;
    let arguments = found.arguments.to_bytes();
    let raw = RawTable::unchecked(&arguments);
    let mut direct = direct(&call, &vhost).await?;
    if found.to_queue {
        let unbind = queue::Unbind {
            queue: &found.destination,
            exchange: &found.source,
            routing_key: &found.key,
            arguments: raw,
            ..Default::default()
        };
        direct.call(&unbind, |it| is(it, |it| matches!(it, Method::QueueUnbindOk(_)))).await?;
    } else {
        let unbind = exchange::Unbind {
            destination: &found.destination,
            source: &found.source,
            routing_key: &found.key,
            arguments: raw,
            ..Default::default()
        };
        direct.call(&unbind, |it| is(it, |it| matches!(it, Method::ExchangeUnbindOk(_)))).await?;
    }
    Ok(Answer::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn keys() {
        let none = Table::new();
        let mut some = Table::new();
        some.set("x-match", "all");
        assert_eq!(properties_key("", &none),      "~");
        assert_eq!(properties_key("a.b", &none),   "a.b");
        assert_eq!(properties_key("a b/~#", &none), "a+b%2F%7E%23");
        assert!(properties_key("", &some).starts_with('~'));
        assert!(properties_key("k", &some).starts_with("k~"));
        assert_ne!(properties_key("k", &some), properties_key("k~", &none));
    }
}
