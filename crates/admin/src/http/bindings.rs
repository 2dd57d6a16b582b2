//! Bindings.

use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use foldhash::fast::FixedState;
use leveret_amqp::method::{Method, exchange, queue};
use leveret_amqp::table::{RawTable, Table};
use leveret_topology::{Binding, ExchangeId, Target, Topology, VhostId, table_to_json, weight};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde_json::{Value, json};

use super::answer::{Answer, Fault};
use super::call::{Call, Fields as _, short, table};
use super::exchanges::{change, direct};
use super::listing::{self, Listed, Why};
use super::queues;
use crate::ops::pages::{self, Slice};

/// A binding by its names, before anything is made of it: of its arguments it has the place alone.
#[derive(Clone, Debug)]
struct BindingNames {
    vhost: Arc<str>,
    source: Arc<str>,
    destination: Arc<str>,
    key: Arc<str>,
    /// Where it is; none of one of the default exchange, which every queue has.
    at: Option<At>,
}

/// A place in the arena of all bindings, and what is there as long as it is this binding.
#[derive(Clone, Copy, Debug)]
struct At {
    place: u32,
    source: ExchangeId,
    target: Target,
}

/// About what the item of one takes, with its key, and a second time while it is sorted.
const ITEM_BYTES: usize = 2 * size_of::<BindingNames>() + 64;

impl BindingNames {
    /// Its arguments; none if it went, and its place may be another one's.
    fn arguments(&self, topology: &Topology) -> Option<Table> {
        let Some(At { place, source, target }) = self.at else { return Some(Table::new()) };
        let binding = topology.binding_at(place)?;
        let is_it =
            (binding.source, binding.target) == (source, target) && *binding.key == *self.key;
        is_it.then(|| binding.arguments.clone())
    }

    fn to_queue(&self) -> bool {
        self.at.is_none_or(|at| matches!(at.target, Target::Queue(_)))
    }

    fn row(&self, arguments: &Table) -> Value {
        json!({
            "source": &*self.source,
            "vhost": &*self.vhost,
            "destination": &*self.destination,
            "destination_type": if self.to_queue() { "queue" } else { "exchange" },
            "routing_key": &*self.key,
            "arguments": table_to_json(arguments),
            "properties_key": properties_key(&self.key, arguments),
        })
    }
}

/// The arguments of the first of these: of as many as do not take much together, at least one.
async fn arguments(call: &Call, items: &[BindingNames]) -> Vec<Option<Table>> {
    let copy = |topology: &Topology, item: &BindingNames| {
        let arguments = item.arguments(topology);
        let bytes = arguments.as_ref().map_or(0, weight::table);
        (arguments, bytes)
    };
    pages::some(call.node(), items, copy).await
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
    type Item = BindingNames;

    async fn rows(&self, call: &Call, items: &[BindingNames], _: Why) -> Result<Vec<Value>, Fault> {
        let arguments = arguments(call, items).await;
        let mut rows = Vec::with_capacity(arguments.len());
        let mut slice = Slice::begin();
        for (item, arguments) in items.iter().zip(arguments) {
            rows.push(arguments.map_or(Value::Null, |arguments| item.row(&arguments)));
            slice.share().await;
        }
        Ok(rows)
    }
}

/// With its names, if both ends are there and in one of these vhosts.
fn item(
    topology: &Topology,
    place: u32,
    binding: &Binding,
    vhosts: &[VhostId],
) -> Option<BindingNames> {
    let source = topology.exchange_by_id(binding.source)?;
    if !vhosts.contains(&source.vhost) {
        return None;
    }
    let destination = match binding.target {
        Target::Queue(id) => &topology.queue_by_id(id)?.name,
        Target::Exchange(id) => &topology.exchange_by_id(id)?.name,
    };
    Some(BindingNames {
        vhost: Arc::clone(&topology.vhost_by_id(source.vhost)?.name),
        source: Arc::clone(&source.name),
        destination: Arc::clone(destination),
        key: (&*binding.key).into(),
        at: Some(At { place, source: binding.source, target: binding.target }),
    })
}

/// Every queue is bound to the default exchange under its name.
fn implied(vhost: Arc<str>, queue: Arc<str>) -> BindingNames {
    BindingNames {
        vhost,
        source: Arc::default(),
        destination: Arc::clone(&queue),
        key: queue,
        at: None,
    }
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
) -> Vec<BindingNames> {
    let copy = |topology: &Topology, place| {
        let binding = topology.binding_at(place).filter(|it| is_wanted(it))?;
        item(topology, place, binding, vhosts)
    };
    pages::copied(call.node(), places, copy).await
}

/// Answers a list, in the order of names.
async fn answer(mut call: Call, mut found: Vec<BindingNames>) -> Result<Answer, Fault> {
    let order = |a: &BindingNames, b: &BindingNames| {
        (&a.vhost, &a.source, &a.destination, &a.key).cmp(&(
            &b.vhost,
            &b.source,
            &b.destination,
            &b.key,
        ))
    };
    pages::sort(&mut found, order).await;
    call.keep(found.len() * ITEM_BYTES);
    listing::list(call, AllBound, found).await
}

/// `GET /api/bindings` and `/{vhost}`.
pub(super) async fn list(mut call: Call) -> Result<Answer, Fault> {
    let names = call.vhosts()?;
    let (vhosts, places) = {
        let topology = call.node().topology();
        let ids = names.iter().filter_map(|name| Some(topology.vhost(name)?.id));
        (ids.collect::<Vec<_>>(), topology.binding_places())
    };
    call.hold(places as usize * ITEM_BYTES).await?;
    let queues = queues::all(&mut call, &names, |_| true).await?;
    call.hold(queues.len() * ITEM_BYTES).await?;
    let queues = queues.into_iter();
    let mut found: Vec<_> = queues.map(|queue| implied(queue.vhost, queue.name)).collect();
    found.append(&mut made(&call, 0..places, &vhosts, |_| true).await);
    answer(call, found).await
}

/// `GET /api/queues/{vhost}/{queue}/bindings`. A queue that is not there is bound to the default exchange, as in RabbitMQ.
pub(super) async fn list_of_queue(mut call: Call) -> Result<Answer, Fault> {
    let vhost = call.visible_vhost()?;
    let queue = queues::find(&call, &vhost, |queue| queue.id);
    let (vhost_id, vhost) = seen_vhost(&call, &vhost)?;
    let target = queue.map(Target::Queue);
    let places = target.map_or_else(Vec::new, |it| call.node().topology().places_to(it));
    call.hold(places.len() * ITEM_BYTES).await?;
    let is_wanted = |it: &Binding| Some(it.target) == target;
    let mut found = made(&call, places, &[vhost_id], is_wanted).await;
    found.push(implied(vhost, call.param("queue").into()));
    answer(call, found).await
}

/// `GET /api/exchanges/{vhost}/{exchange}/bindings/source`.
pub(super) async fn list_from(mut call: Call) -> Result<Answer, Fault> {
    let (vhost, vhost_id, id) = exchange_of(&call)?;
    let Some(id) = id else { return answer(call, Vec::new()).await };
    let found = if call.exchange_param("exchange").is_empty() {
        let queues = queues::all(&mut call, &[vhost], |_| true).await?.into_iter();
        call.hold(queues.len() * ITEM_BYTES).await?;
        queues.map(|queue| implied(queue.vhost, queue.name)).collect()
    } else {
        let places = call.node().topology().places_from(id);
        call.hold(places.len() * ITEM_BYTES).await?;
        made(&call, places, &[vhost_id], |it| it.source == id).await
    };
    answer(call, found).await
}

/// `GET /api/exchanges/{vhost}/{exchange}/bindings/destination`.
pub(super) async fn list_to(mut call: Call) -> Result<Answer, Fault> {
    let (_, vhost, id) = exchange_of(&call)?;
    let Some(id) = id else { return answer(call, Vec::new()).await };
    let target = Target::Exchange(id);
    let places = call.node().topology().places_to(target);
    call.hold(places.len() * ITEM_BYTES).await?;
    let found = made(&call, places, &[vhost], |it| it.target == target).await;
    answer(call, found).await
}

/// The vhost and the exchange of a path. One that is not there has no bindings, and is no mistake, as in RabbitMQ.
fn exchange_of(call: &Call) -> Result<(String, VhostId, Option<ExchangeId>), Fault> {
    let vhost = call.visible_vhost()?;
    let topology = call.node().topology();
    let id = topology.vhost(&vhost).ok_or_else(Fault::not_found)?.id;
    let exchange = topology.exchange(id, call.exchange_param("exchange"));
    Ok((vhost, id, exchange.map(|exchange| exchange.id)))
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
async fn between(call: &mut Call, vhost: &str) -> Result<Vec<BindingNames>, Fault> {
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
    call.hold(places.len() * ITEM_BYTES).await?;
    let is_wanted = |it: &Binding| it.source == from && it.target == target;
    Ok(made(call, places, &[vhost], is_wanted).await)
}

/// `GET /api/bindings/{vhost}/e/{source}/{q|e}/{destination}`.
pub(super) async fn list_between(mut call: Call) -> Result<Answer, Fault> {
    let vhost = call.visible_vhost()?;
    let (source, to_queue, destination) = ends(&call)?;
    let found = if source.is_empty() && to_queue {
        // As in RabbitMQ it is not asked whether the queue is there.
        vec![implied(seen_vhost(&call, &vhost)?.1, destination.into())]
    } else {
        between(&mut call, &vhost).await?
    };
    answer(call, found).await
}

/// `GET .../{props}`.
pub(super) async fn get(mut call: Call) -> Result<Answer, Fault> {
    let vhost = call.visible_vhost()?;
    let (found, arguments) = named(&mut call, &vhost).await?;
    Ok(listing::one(&call, found.row(&arguments)))
}

/// The binding whose properties' key is in the path, and its arguments.
async fn named(call: &mut Call, vhost: &str) -> Result<(BindingNames, Table), Fault> {
    let all = between(call, vhost).await?;
    let props = call.param("props");
    let is_it = |item: &BindingNames, arguments: &Table| {
        let key = properties_key(&item.key, arguments);
        // A key may come quoted once more or less; some tools write it without quoting at all.
        let plain = percent_decode_str(&key).decode_utf8_lossy();
        key == props || *plain == *props || arguments.is_empty() && *item.key == *props
    };
    let mut rest = &all[..];
    let mut slice = Slice::begin();
    while !rest.is_empty() {
        let some = arguments(call, &rest[..rest.len().min(pages::ROWS)]).await;
        let count = some.len();
        for (item, arguments) in rest.iter().zip(some) {
            if let Some(arguments) = arguments.filter(|arguments| is_it(item, arguments)) {
                return Ok((item.clone(), arguments));
            }
            slice.share().await;
        }
        rest = &rest[count..];
    }
    Err(Fault::not_found())
}

/// `POST /api/bindings/{vhost}/e/{source}/{q|e}/{destination}`.
pub(super) async fn post(call: Call) -> Result<Answer, Fault> {
    let vhost = call.vhost_to_fill()?;
    let (source, to_queue, destination) = ends(&call)?;
    let body = call.object()?;
    let key = body.optional_text("routing_key")?.unwrap_or_default();
    let arguments = table("arguments", &body.object("arguments")?)?;
    let bytes = arguments.to_bytes();
    let raw = RawTable::unchecked(&bytes);
    let mut direct = direct(&call, &vhost).await?;
    if to_queue {
        let bind = queue::Bind {
            queue: short("destination", &destination)?,
            exchange: short("source", &source)?,
            routing_key: short("routing_key", &key)?,
            arguments: raw,
            ..Default::default()
        };
        change(&mut direct, &bind, |it| matches!(it, Method::QueueBindOk(_))).await?;
    } else {
        let bind = exchange::Bind {
            destination: short("destination", &destination)?,
            source: short("source", &source)?,
            routing_key: short("routing_key", &key)?,
            arguments: raw,
            ..Default::default()
        };
        change(&mut direct, &bind, |it| matches!(it, Method::ExchangeBindOk(_))).await?;
    }
    let props = properties_key(&key, &arguments);
    // Relative to the path, as in RabbitMQ: tools take what is behind the last slash.
    Ok(Answer::Created(Some(format!("{}/{}", segment(&destination), segment(&props)))))
}

/// `DELETE /api/bindings/{vhost}/e/{source}/{q|e}/{destination}/{props}`.
pub(super) async fn delete(mut call: Call) -> Result<Answer, Fault> {
    let vhost = call.vhost()?;
    let (found, arguments) = named(&mut call, &vhost).await?;
    let arguments = arguments.to_bytes();
    let raw = RawTable::unchecked(&arguments);
    let mut direct = direct(&call, &vhost).await?;
    if found.to_queue() {
        let unbind = queue::Unbind {
            queue: &found.destination,
            exchange: &found.source,
            routing_key: &found.key,
            arguments: raw,
            ..Default::default()
        };
        change(&mut direct, &unbind, |it| matches!(it, Method::QueueUnbindOk(_))).await?;
    } else {
        let unbind = exchange::Unbind {
            destination: &found.destination,
            source: &found.source,
            routing_key: &found.key,
            arguments: raw,
            ..Default::default()
        };
        change(&mut direct, &unbind, |it| matches!(it, Method::ExchangeUnbindOk(_))).await?;
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
