//! Bindings.

use std::hash::{BuildHasher as _, Hasher as _};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use foldhash::fast::FixedState;
use leveret_amqp::method::{Method, exchange, queue};
use leveret_amqp::table::{RawTable, Table};
use leveret_topology::{Binding, Target, Topology, table_from_json, table_to_json};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde_json::{Value, json};

use super::answer::{Answer, Fault};
use super::call::{Call, Fields as _};
use super::exchanges::direct;
use super::listing;
use crate::ops::direct::is;

/// One binding, with names.
#[derive(Clone, Debug, PartialEq)]
struct Bound {
    vhost: String,
    source: String,
    to_queue: bool,
    destination: String,
    key: String,
    arguments: Table,
}

impl Bound {
    fn row(&self) -> Value {
        json!({
            "source": self.source,
            "vhost": self.vhost,
            "destination": self.destination,
            "destination_type": if self.to_queue { "queue" } else { "exchange" },
            "routing_key": self.key,
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

fn bound(topology: &Topology, vhost: &str, binding: &Binding) -> Option<Bound> {
    let source = topology.exchange_by_id(binding.source)?;
    let (to_queue, destination) = match binding.target {
        Target::Queue(id) => (true, topology.queue_by_id(id)?.name.to_string()),
        Target::Exchange(id) => (false, topology.exchange_by_id(id)?.name.to_string()),
    };
    Some(Bound {
        vhost: vhost.to_owned(),
        source: source.name.to_string(),
        to_queue,
        destination,
        key: binding.key.to_string(),
        arguments: binding.arguments.clone(),
    })
}

/// The bindings of some vhosts that `keep` likes, in the order of their names. Every queue is bound to the
/// default exchange under its name.
fn all(call: &Call, vhosts: &[String], keep: impl Fn(&Bound) -> bool) -> Vec<Bound> {
    let topology = call.node().topology();
    let mut found = Vec::new();
    for name in vhosts {
        let Some(vhost) = topology.vhost(name) else { continue };
        let implied = topology.queues(vhost.id).into_iter().map(|queue| Bound {
            vhost: name.clone(),
            source: String::new(),
            to_queue: true,
            destination: queue.name.to_string(),
            key: queue.name.to_string(),
            arguments: Table::new(),
        });
        let made = topology.bindings(vhost.id).filter_map(|it| bound(&topology, name, it));
        found.extend(implied.chain(made).filter(&keep));
    }
    drop(topology);
    found.sort_by(|a, b| {
        let order = |it: &Bound| (it.vhost.clone(), it.source.clone(), it.destination.clone());
        (order(a), &a.key).cmp(&(order(b), &b.key))
    });
    found
}

fn answer(call: &Call, bindings: &[Bound]) -> Result<Answer, Fault> {
    listing::rows(call, bindings.iter().map(Bound::row).collect())
}

/// `GET /api/bindings` and `/{vhost}`.
pub(super) async fn list(call: Call) -> Result<Answer, Fault> {
    let found = all(&call, &call.vhosts()?, |_| true);
    answer(&call, &found)
}

/// `GET /api/queues/{vhost}/{queue}/bindings`.
pub(super) async fn list_of_queue(call: Call) -> Result<Answer, Fault> {
    let vhost = call.visible_vhost()?;
    super::queues::find(&call, &vhost, |_| ()).ok_or_else(Fault::not_found)?;
    let name = call.param("queue");
    let found = all(&call, &[vhost], |it| it.to_queue && it.destination == name);
    answer(&call, &found)
}

/// `GET /api/exchanges/{vhost}/{exchange}/bindings/source`.
pub(super) async fn list_from(call: Call) -> Result<Answer, Fault> {
    let (vhost, name) = exchange_of(&call)?;
    let found = all(&call, &[vhost], |it| it.source == name);
    answer(&call, &found)
}

/// `GET /api/exchanges/{vhost}/{exchange}/bindings/destination`.
pub(super) async fn list_to(call: Call) -> Result<Answer, Fault> {
    let (vhost, name) = exchange_of(&call)?;
    let found = all(&call, &[vhost], |it| !it.to_queue && it.destination == name);
    answer(&call, &found)
}

fn exchange_of(call: &Call) -> Result<(String, String), Fault> {
    let vhost = call.visible_vhost()?;
    let name = call.exchange_param("exchange");
    let topology = call.node().topology();
    let id = topology.vhost(&vhost).ok_or_else(Fault::not_found)?.id;
    topology.exchange(id, name).ok_or_else(Fault::not_found)?;
    Ok((vhost, name.to_owned()))
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

fn between(call: &Call, vhost: String) -> Result<Vec<Bound>, Fault> {
    let (source, to_queue, destination) = ends(call)?;
    Ok(all(call, &[vhost], |it| {
        it.source == source && it.to_queue == to_queue && it.destination == destination
    }))
}

/// `GET /api/bindings/{vhost}/e/{source}/{q|e}/{destination}`.
pub(super) async fn list_between(call: Call) -> Result<Answer, Fault> {
    let found = between(&call, call.visible_vhost()?)?;
    answer(&call, &found)
}

/// `GET .../{props}`.
pub(super) async fn get(call: Call) -> Result<Answer, Fault> {
    let found = named(&call, call.visible_vhost()?)?;
    Ok(listing::one(&call, found.row()))
}

/// The binding whose properties' key is in the path.
fn named(call: &Call, vhost: String) -> Result<Bound, Fault> {
    let props = call.param("props");
    let is_it = |bound: &Bound| {
        let key = properties_key(&bound.key, &bound.arguments);
        // A key may come quoted once more or less; some tools write it without quoting at all.
        let plain = percent_decode_str(&key).decode_utf8_lossy();
        key == props || *plain == *props || bound.arguments.is_empty() && bound.key == props
    };
    between(call, vhost)?.into_iter().find(is_it).ok_or_else(Fault::not_found)
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
    let found = named(&call, vhost.clone())?;
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
