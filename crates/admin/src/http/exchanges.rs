//! Exchanges.

use std::borrow::Cow;
use std::sync::Arc;

use leveret_amqp::method::{Encode, Method, exchange};
use leveret_amqp::table::Table;
use leveret_topology::{Exchange, ExchangeId, Topology, table_to_json, weight};
use serde_json::{Value, json};

use super::answer::{Answer, Fault};
use super::call::{Call, Fields as _, short, table};
use super::listing::{Listed, Why};
use super::{listing, stats};
use crate::ops::direct::{Direct, is};
use crate::ops::pages::{self, Slice};
use crate::stats::pairs::With;

/// An exchange by its names, before anything is made of it.
#[derive(Clone, Debug)]
struct ExchangeNames {
    vhost: Arc<str>,
    name: Arc<str>,
    id: ExchangeId,
}

/// What is copied of an exchange while the names are held.
#[derive(Debug)]
struct Named {
    id: ExchangeId,
    name: Arc<str>,
    kind: &'static str,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    arguments: Table,
    policy: Option<Box<str>>,
    by: Box<str>,
}

impl Named {
    fn of(exchange: &Exchange) -> Self {
        Self {
            id: exchange.id,
            name: Arc::clone(&exchange.name),
            kind: exchange.kind.name(),
            durable: exchange.durable,
            auto_delete: exchange.auto_delete,
            internal: exchange.internal,
            arguments: exchange.arguments.clone(),
            policy: exchange.policy().map(Into::into),
            by: exchange.user_who_performed_action().into(),
        }
    }
}

/// A list of exchanges.
struct Exchanges;

impl Listed for Exchanges {
    type Item = ExchangeNames;

    fn name<'a>(&self, item: &'a ExchangeNames) -> Cow<'a, str> {
        (&*item.name).into()
    }

    async fn rows(
        &self,
        call: &Call,
        items: &[ExchangeNames],
        _: Why,
    ) -> Result<Vec<Value>, Fault> {
        let copy = |topology: &Topology, item: &ExchangeNames| {
            let named = topology.exchange_by_id(item.id).map(Named::of);
            let bytes = named.as_ref().map_or(0, |it| weight::table(&it.arguments));
            (named, bytes)
        };
        let named = pages::some(call.node(), items, copy).await;
        let mut rows = Vec::with_capacity(items.len());
        let mut slice = Slice::begin();
        for (item, named) in items.iter().zip(named) {
            rows.push(named.map_or(Value::Null, |named| row(call, &item.vhost, named)));
            slice.share().await;
        }
        Ok(rows)
    }
}

/// `GET /api/exchanges` and `/{vhost}`.
pub(super) async fn list(mut call: Call) -> Result<Answer, Fault> {
    let (vhosts, mut items) = (call.vhosts()?, Vec::new());
    let count = call.node().topology().exchange_count();
    call.hold(count * 2 * size_of::<ExchangeNames>()).await?;
    for vhost in vhosts {
        let (vhost, ids) = {
            let topology = call.node().topology();
            let Some(vhost) = topology.vhost(&vhost) else { continue };
            (Arc::clone(&vhost.name), topology.exchange_ids(vhost.id))
        };
        let item = |topology: &Topology, id| {
            let name = Arc::clone(&topology.exchange_by_id(id)?.name);
            Some(ExchangeNames { vhost: Arc::clone(&vhost), name, id })
        };
        let mut of_vhost = pages::copied(call.node(), ids, item).await;
        pages::sort(&mut of_vhost, |a, b| a.name.cmp(&b.name)).await;
        items.append(&mut of_vhost);
    }
    listing::list(call, Exchanges, items).await
}

/// `GET /api/exchanges/{vhost}/{exchange}`.
pub(super) async fn get(call: Call) -> Result<Answer, Fault> {
    let vhost = call.visible_vhost()?;
    let named = find(&call, &vhost, Named::of).ok_or_else(Fault::not_found)?;
    let id = named.id;
    let mut row = row(&call, &vhost, named);
    row["incoming"] = stats::by_channel(&call.stats(), With::Exchange(id));
    let partner = |(exchange, queue)| (exchange == id).then_some(queue);
    let passages = stats::passages(&call.stats(), partner);
    let name = |topology: &Topology, (queue, stats)| {
        Some((Arc::clone(&topology.queue_by_id(queue)?.name), stats))
    };
    let outgoing = pages::copied(call.node(), passages, name).await.into_iter();
    let outgoing = outgoing
        .map(|(name, stats)| json!({"queue": {"name": &*name, "vhost": vhost}, "stats": stats}));
    row["outgoing"] = outgoing.collect();
    Ok(listing::one(&call, row))
}

fn find<T>(call: &Call, vhost: &str, f: impl FnOnce(&Exchange) -> T) -> Option<T> {
    let topology = call.node().topology();
    let vhost = topology.vhost(vhost)?.id;
    topology.exchange(vhost, call.exchange_param("exchange")).map(f)
}

fn row(call: &Call, vhost: &str, exchange: Named) -> Value {
    let mut row = json!({
        "name": &*exchange.name,
        "vhost": vhost,
        "type": exchange.kind,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": table_to_json(&exchange.arguments),
        "user_who_performed_action": exchange.by,
    });
    if let Some(policy) = exchange.policy {
        row["policy"] = json!(policy);
    }
    let stats = call.stats();
    if let (Value::Object(row), Some(entry)) = (&mut row, stats.exchanges.get(&exchange.id)) {
        entry.put(row, &call.ranges);
    }
    drop(stats);
    row
}

/// `PUT /api/exchanges/{vhost}/{exchange}`.
pub(super) async fn put(call: Call) -> Result<Answer, Fault> {
    let vhost = call.vhost_to_fill()?;
    let body = call.object()?;
    let name = call.exchange_param("exchange");
    let kind = body.optional_text("type")?.unwrap_or_else(|| "direct".to_owned());
    let is_new = find(&call, &vhost, |_| ()).is_none();
    let arguments = table("arguments", &body.object("arguments")?)?.to_bytes();
    let declare = exchange::Declare {
        exchange: short("exchange", name)?,
        kind: short("type", &kind)?,
        durable: body.flag("durable", true)?,
        auto_delete: body.flag("auto_delete", false)?,
        internal: body.flag("internal", false)?,
        arguments: leveret_amqp::table::RawTable::unchecked(&arguments),
        ..Default::default()
    };
    let mut direct = direct(&call, &vhost).await?;
    change(&mut direct, &declare, |it| matches!(it, Method::ExchangeDeclareOk(_))).await?;
    Ok(Answer::put(is_new))
}

/// `DELETE /api/exchanges/{vhost}/{exchange}`.
pub(super) async fn delete(call: Call) -> Result<Answer, Fault> {
    let vhost = call.vhost()?;
    find(&call, &vhost, |_| ()).ok_or_else(Fault::not_found)?;
    let delete = exchange::Delete {
        exchange: call.exchange_param("exchange"),
        if_unused: call.is_asked("if-unused"),
        ..Default::default()
    };
    let mut direct = direct(&call, &vhost).await?;
    change(&mut direct, &delete, |it| matches!(it, Method::ExchangeDeleteOk(_))).await?;
    Ok(Answer::Done)
}

/// A connection inside the node for the user who asks.
pub(super) async fn direct(call: &Call, vhost: &str) -> Result<Direct, Fault> {
    let peer = call.peer.to_string();
    Ok(Direct::open(call.node(), call.login.admitted.clone(), vhost, peer).await?)
}

/// Declares, binds, purges or deletes by a method whose answer `is_done` knows.
pub(super) async fn change(
    direct: &mut Direct,
    method: &impl Encode,
    is_done: impl Fn(&Method<'_>) -> bool,
) -> Result<(), Fault> {
    direct.call(method, |it| is(it, &is_done)).await.map_err(Fault::of_name)
}
