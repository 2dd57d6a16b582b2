//! Exchanges.

use leveret_amqp::method::{Method, exchange};
use leveret_topology::{Exchange, table_from_json, table_to_json};
use serde_json::{Value, json};

use super::answer::{Answer, Fault};
use super::call::{Call, Fields as _};
use super::{listing, stats};
use crate::ops::direct::{Direct, is};
use crate::stats::pairs::With;

/// `GET /api/exchanges` and `/{vhost}`.
pub(super) async fn list(call: Call) -> Result<Answer, Fault> {
    let vhosts = call.vhosts()?;
    let items = {
        let topology = call.node().topology();
        let mut items = Vec::new();
        for name in &vhosts {
            let Some(vhost) = topology.vhost(name) else { continue };
            let of_vhost = topology.exchanges(vhost.id).into_iter();
            items.extend(
                of_vhost.map(|exchange| (exchange.name.to_string(), row(&call, name, exchange))),
            );
        }
        items
    };
    listing::list(&call, items, |(name, _)| name, |(_, row)| row.clone())
}

/// `GET /api/exchanges/{vhost}/{exchange}`.
pub(super) async fn get(call: Call) -> Result<Answer, Fault> {
    let vhost = call.visible_vhost()?;
    let row = find(&call, &vhost, |exchange| row(&call, &vhost, exchange));
    let mut row = row.ok_or_else(Fault::not_found)?;
    let id = find(&call, &vhost, |exchange| exchange.id).ok_or_else(Fault::not_found)?;
    row["incoming"] = stats::by_channel(&call.stats, With::Exchange(id));
    let topology = call.node().topology();
    row["outgoing"] = stats::by_passage(
        &call.stats,
        "queue",
        |(exchange, queue)| (exchange == id).then_some(queue),
        |queue| {
            let name = &topology.queue_by_id(queue)?.name;
            Some(json!({"name": &**name, "vhost": vhost}))
        },
    );
    drop(topology);
    Ok(listing::one(&call, row))
}

fn find<T>(call: &Call, vhost: &str, f: impl FnOnce(&Exchange) -> T) -> Option<T> {
    let topology = call.node().topology();
    let vhost = topology.vhost(vhost)?.id;
    topology.exchange(vhost, call.exchange_param("exchange")).map(f)
}

fn row(call: &Call, vhost: &str, exchange: &Exchange) -> Value {
    let mut row = json!({
        "name": &*exchange.name,
        "vhost": vhost,
        "type": exchange.kind.name(),
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": table_to_json(&exchange.arguments),
        "user_who_performed_action": "",
    });
    if let Some(policy) = exchange.policy() {
        row["policy"] = json!(policy);
    }
    if let (Value::Object(row), Some(entry)) = (&mut row, call.stats.exchanges.get(&exchange.id)) {
        entry.put(row, &call.ranges);
    }
    row
}

/// `PUT /api/exchanges/{vhost}/{exchange}`.
pub(super) async fn put(call: Call) -> Result<Answer, Fault> {
    let vhost = call.vhost()?;
    let body = call.object()?;
    let name = call.exchange_param("exchange");
    let kind = body.optional_text("type")?.unwrap_or_else(|| "direct".to_owned());
    let is_new = find(&call, &vhost, |_| ()).is_none();
    let arguments = table_from_json(&body.object("arguments")?).to_bytes();
    let declare = exchange::Declare {
        exchange: name,
        kind: &kind,
        durable: body.flag("durable", true)?,
        auto_delete: body.flag("auto_delete", false)?,
        internal: body.flag("internal", false)?,
        arguments: leveret_amqp::table::RawTable::unchecked(&arguments),
        ..Default::default()
    };
    let mut direct = direct(&call, &vhost).await?;
    direct.call(&declare, |it| is(it, |it| matches!(it, Method::ExchangeDeclareOk(_)))).await?;
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
    direct.call(&delete, |it| is(it, |it| matches!(it, Method::ExchangeDeleteOk(_)))).await?;
    Ok(Answer::Done)
}

/// A connection inside the node for the user who asks.
pub(super) async fn direct(call: &Call, vhost: &str) -> Result<Direct, Fault> {
    let peer = call.peer.to_string();
    Ok(Direct::open(call.node(), call.login.admitted.clone(), vhost, peer).await?)
}
