//! Virtual hosts.

use std::sync::Arc;

use leveret_broker::message::AdminCommand;
use leveret_server::cluster::sessions::seen::Wanted;
use leveret_topology::Vhost;
use serde_json::{Map, Value, json};

use super::answer::{Answer, Fault};
use super::call::{Call, Fields as _};
use super::listing;
use crate::ops::{ask, close, facts};

/// `GET /api/vhosts`.
pub(super) async fn list(call: Call) -> Result<Answer, Fault> {
    let names: Vec<Arc<str>> = {
        let topology = call.node().topology();
        let seen =
            |vhost: &&Vhost| call.login.is_monitor() || call.login.enters(&topology, &vhost.name);
        topology.vhosts().filter(seen).map(|vhost| Arc::clone(&vhost.name)).collect()
    };
    let mut rows = Vec::with_capacity(names.len());
    for name in names {
        match row(&call, &name).await {
            Ok(row) => rows.push(row),
            // It went meanwhile.
            Err(fault) if fault == Fault::not_found() => {}
            Err(fault) => return Err(fault),
        }
    }
    rows.sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
    listing::rows(call, rows).await
}

/// `GET /api/vhosts/{vhost}`.
pub(super) async fn get(call: Call) -> Result<Answer, Fault> {
    let name = call.visible_vhost()?;
    let row = row(&call, &name).await?;
    Ok(listing::one(&call, row))
}

async fn row(call: &Call, name: &str) -> Result<Value, Fault> {
    let (id, queues, mut row) = {
        let topology = call.node().topology();
        let vhost = topology.vhost(name).ok_or_else(Fault::not_found)?;
        (vhost.id, topology.queue_ids(vhost.id), named(call, vhost))
    };
    if call.node().is_copy() {
        return Ok(row);
    }
    let mut totals = facts::Totals::default();
    facts::each(call.node(), &queues, |facts| totals.add(&facts)).await?;
    if let (Value::Object(row), Value::Object(totals)) = (&mut row, totals.row()) {
        row.extend(totals);
    }
    let stats = call.stats();
    if let (Value::Object(row), Some(entry)) = (&mut row, stats.vhosts.get(&id)) {
        entry.put(row, &call.ranges);
    }
    drop(stats);
    Ok(row)
}

/// What the names have of a vhost.
fn named(call: &Call, vhost: &Vhost) -> Value {
    let kind = vhost.default_queue_type.map(|kind| kind.name());
    let mut metadata = json!({"description": vhost.description, "tags": vhost.tags});
    if let Some(kind) = kind {
        metadata["default_queue_type"] = json!(kind);
    }
    let mut row = json!({
        "name": &*vhost.name,
        "description": vhost.description,
        "tags": vhost.tags,
        "default_queue_type": kind.unwrap_or("classic"),
        "metadata": metadata,
        "protected_from_deletion": vhost.is_protected,
    });
    if !call.node().is_copy() {
        row["tracing"] = json!(vhost.is_traced);
        row["cluster_state"] = json!({call.node_name(): "running"});
    }
    if vhost.unmatched_names() > 0 {
        row["names_not_matched_by_policies"] = json!(vhost.unmatched_names());
    }
    row
}

/// `PUT /api/vhosts/{vhost}`.
pub(super) async fn put(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let name = call.param("vhost").to_owned();
    let body = call.object()?;
    let default_queue_type = match body.optional_text("default_queue_type")? {
        Some(kind) => Some(kind),
        None => body.optional_text("defaultqueuetype")?,
    };
    let is_protected = match body.contains_key("protected_from_deletion") {
        true => Some(body.flag("protected_from_deletion", false)?),
        false => None,
    };
    let is_new = call.node().topology().vhost(&name).is_none();
    let tracing = body.contains_key("tracing").then(|| body.flag("tracing", false)).transpose()?;
    let traces = Arc::clone(&call.app.ops.traces);
    let (tracing, changing) = match tracing {
        Some(wished) => {
            let (is_traced, changing) = traces.wish(&name, wished).await;
            (Some(is_traced), changing)
        }
        None => (None, None),
    };
    let command = AdminCommand::PutVhost {
        description: body.optional_text("description")?,
        tags: tags(&body)?,
        name: name.clone(),
        default_queue_type,
        tracing,
    };
    ask::admin(call.node(), call.by(), command).await?;
    drop(changing);
    if let Some(is_protected) = is_protected {
        let command = AdminCommand::ProtectVhost { name: name.clone(), is_protected };
        ask::admin(call.node(), call.by(), command).await?;
    }
    if is_new && !call.login.is_operator() {
        let (user, all) = (call.login.name.clone(), ".*".to_owned());
        // As RabbitMQ does: who makes a vhost may use it.
        let command = AdminCommand::SetPermissions {
            user,
            vhost: name,
            configure: all.clone(),
            write: all.clone(),
            read: all,
        };
        ask::admin(call.node(), call.by(), command).await?;
    }
    Ok(Answer::put(is_new))
}

/// Tags as a list, or as a text with commas.
pub(super) fn tags(body: &Map<String, Value>) -> Result<Option<Vec<String>>, Fault> {
    let bad = || Fault::bad("'tags' must be a list of strings, or a string with commas");
    match body.get("tags") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => {
            let tags = text.split(',').map(str::trim).filter(|tag| !tag.is_empty());
            Ok(Some(tags.map(str::to_owned).collect()))
        }
        Some(Value::Array(tags)) => {
            let tags = tags.iter().map(|tag| tag.as_str().map(|tag| tag.trim().to_owned()));
            tags.map(|tag| tag.ok_or_else(bad)).collect::<Result<_, _>>().map(Some)
        }
        Some(_) => Err(bad()),
    }
}

/// `DELETE /api/vhosts/{vhost}`: with all that is in it. Its connections are closed first.
pub(super) async fn delete(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let name = call.param("vhost").to_owned();
    call.node().topology().vhost(&name).ok_or_else(Fault::not_found)?;
    // Before its connections are closed.
    let refusal = call.node().topology().check_delete_vhost(&name).err();
    if let Some(refusal) = refusal {
        return Err(Fault::precondition(refusal.to_string()));
    }
    let reason = format!("vhost '{name}' is deleted");
    let meant = Wanted { vhost: Some(name.clone()), ..Wanted::default() };
    // Those of a node that does not answer now end when it hears that the vhost is gone.
    let _ = close::close_all(call.node(), &reason, &meant).await;
    ask::admin(call.node(), call.by(), AdminCommand::DeleteVhost { name }).await?;
    Ok(Answer::Done)
}

/// `GET /api/vhosts/{vhost}/deletion/protection`: whether it is there to be protected.
pub(super) async fn protection(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    call.vhost()?;
    Ok(Answer::Done)
}

/// `POST /api/vhosts/{vhost}/deletion/protection`: it cannot be deleted any more.
pub(super) async fn protect(call: Call) -> Result<Answer, Fault> {
    set_protection(&call, true).await
}

/// `DELETE /api/vhosts/{vhost}/deletion/protection`: it can be deleted again.
pub(super) async fn unprotect(call: Call) -> Result<Answer, Fault> {
    set_protection(&call, false).await
}

async fn set_protection(call: &Call, is_protected: bool) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let name = call.vhost()?;
    let command = AdminCommand::ProtectVhost { name, is_protected };
    ask::admin(call.node(), call.by(), command).await?;
    Ok(Answer::Done)
}

/// `POST /api/vhosts/{vhost}/start/{node}`: every vhost runs.
pub(super) async fn start(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    call.vhost()?;
    call.must_name_this_node()?;
    Ok(Answer::Done)
}
