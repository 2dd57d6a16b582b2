//! Parameters of components in vhosts, and of the whole node.

use leveret_broker::message::AdminCommand;
use serde_json::{Value, json};

use super::answer::{Answer, Fault};
use super::call::{Call, Fields as _};
use super::cluster::CLUSTER_TAGS;
use super::{listing, policies};
use crate::ops::ask;

/// Parameters of a vhost: `(component, name, value)`, its limits and policies among them.
fn of_vhost(call: &Call, name: &str) -> Vec<Value> {
    let topology = call.node().topology();
    let Some(vhost) = topology.vhost(name) else { return Vec::new() };
    let row = |component: &str, parameter: &str, value: Value| json!({"vhost": name, "component": component, "name": parameter, "value": value});
    let mut rows: Vec<_> = vhost
        .parameters()
        .map(|(component, parameter, value)| row(component, parameter, value.clone()))
        .collect();
    if !vhost.limits().is_empty() {
        rows.push(row("vhost-limits", "limits", json!(vhost.limits())));
    }
    let users = vhost.policies().map(|policy| ("policy", policy));
    let operators = vhost.operator_policies().map(|policy| ("operator_policy", policy));
    for (component, policy) in users.chain(operators) {
        rows.push(row(component, &policy.name, policies::value(policy)));
    }
    rows
}

/// `GET /api/parameters`, `/{component}` and `/{component}/{vhost}`.
pub(super) async fn list(call: Call) -> Result<Answer, Fault> {
    call.login.must_policymaker()?;
    if let Some(vhost) = call.named_vhost() {
        call.login.must_set_policies(call.node(), vhost)?;
    }
    let vhosts = call.vhosts()?;
    let mut rows: Vec<_> = vhosts.iter().flat_map(|vhost| of_vhost(&call, vhost)).collect();
    // Policies have a list of their own, and are in this one only for who asks for them, as in RabbitMQ.
    rows.retain(|row| match call.optional("component") {
        Some(component) => row["component"] == component,
        None => row["component"] != "policy",
    });
    listing::rows(call, rows).await
}

fn one(call: &Call, vhost: &str) -> Option<Value> {
    let (component, name) = (call.param("component"), call.param("name"));
    let is_it = |row: &Value| row["component"] == component && row["name"] == name;
    of_vhost(call, vhost).into_iter().find(is_it)
}

/// The vhost, for a policymaker.
fn vhost(call: &Call) -> Result<String, Fault> {
    let vhost = call.param("vhost").to_owned();
    call.login.must_set_policies(call.node(), &vhost)?;
    call.node().topology().vhost(&vhost).ok_or_else(|| Fault::missing("vhost_not_found"))?;
    Ok(vhost)
}

/// The component whose parameter is changed. What has a path of its own, for administrators, is for nobody else
/// by way of this one.
fn component_to_change(call: &Call) -> Result<String, Fault> {
    let component = call.param("component");
    match component {
        "operator_policy" => policies::must_operate(call)?,
        "vhost-limits" => call.login.must_admin()?,
        _ => {}
    }
    Ok(component.to_owned())
}

/// `GET /api/parameters/{component}/{vhost}/{name}`.
pub(super) async fn get(call: Call) -> Result<Answer, Fault> {
    let vhost = vhost(&call)?;
    Ok(listing::one(&call, one(&call, &vhost).ok_or_else(Fault::not_found)?))
}

/// `PUT /api/parameters/{component}/{vhost}/{name}`.
pub(super) async fn put(call: Call) -> Result<Answer, Fault> {
    let vhost = vhost(&call)?;
    let component = component_to_change(&call)?;
    let mut body = call.object()?;
    body.must_have(&["value"])?;
    let value = body.remove("value").unwrap_or_default();
    let is_new = one(&call, &vhost).is_none();
    let name = call.param("name").to_owned();
    ask::admin(
        call.node(),
        call.by(),
        AdminCommand::SetParameter { vhost, component, name, value },
    )
    .await?;
    Ok(Answer::put(is_new))
}

/// `DELETE /api/parameters/{component}/{vhost}/{name}`.
pub(super) async fn delete(call: Call) -> Result<Answer, Fault> {
    let vhost = vhost(&call)?;
    let component = component_to_change(&call)?;
    one(&call, &vhost).ok_or_else(Fault::not_found)?;
    let name = call.param("name").to_owned();
    ask::admin(call.node(), call.by(), AdminCommand::ClearParameter { vhost, component, name })
        .await?;
    Ok(Answer::Done)
}

/// What tells clusters apart, whatever they are called.
const CLUSTER_ID: &str = "internal_cluster_id";

fn globals(call: &Call) -> Vec<Value> {
    let topology = call.node().topology();
    let stored = topology.global_parameters();
    let stored = stored.map(|(name, value)| json!({"name": name, "value": value}));
    // RabbitMQ has it here, and the metrics as `rabbitmq_cluster_permanent_id`.
    let view = call.view();
    let id = view.as_ref().and_then(|view| view.cluster_id.as_deref());
    let id = json!({"name": CLUSTER_ID, "value": id.unwrap_or_else(|| call.node_name())});
    // RabbitMQ sets these at each start: a client that asks for them finds an empty list, not a 404.
    let no_tags = json!({"name": CLUSTER_TAGS, "value": []});
    let no_tags = Some(no_tags).filter(|_| topology.global_parameter(CLUSTER_TAGS).is_none());
    stored.filter(|row| row["name"] != CLUSTER_ID).chain([id]).chain(no_tags).collect()
}

/// `GET /api/global-parameters`.
pub(super) async fn list_globals(call: Call) -> Result<Answer, Fault> {
    call.login.must_policymaker()?;
    let rows = globals(&call);
    listing::rows(call, rows).await
}

fn global(call: &Call) -> Option<Value> {
    globals(call).into_iter().find(|row| row["name"] == call.param("name"))
}

/// `GET /api/global-parameters/{name}`.
pub(super) async fn get_global(call: Call) -> Result<Answer, Fault> {
    call.login.must_policymaker()?;
    Ok(listing::one(&call, global(&call).ok_or_else(Fault::not_found)?))
}

/// `PUT /api/global-parameters/{name}`.
pub(super) async fn put_global(call: Call) -> Result<Answer, Fault> {
    call.login.must_policymaker()?;
    let mut body = call.object()?;
    body.must_have(&["value"])?;
    let value = body.remove("value").unwrap_or_default();
    let is_new = global(&call).is_none();
    let name = call.param("name").to_owned();
    ask::admin(call.node(), call.by(), AdminCommand::SetGlobalParameter { name, value }).await?;
    Ok(Answer::put(is_new))
}

/// `DELETE /api/global-parameters/{name}`.
pub(super) async fn delete_global(call: Call) -> Result<Answer, Fault> {
    call.login.must_policymaker()?;
    global(&call).ok_or_else(Fault::not_found)?;
    let name = call.param("name").to_owned();
    if name == CLUSTER_TAGS && call.node().topology().global_parameter(&name).is_none() {
        return Ok(Answer::Done);
    }
    ask::admin(call.node(), call.by(), AdminCommand::ClearGlobalParameter { name }).await?;
    Ok(Answer::Done)
}
