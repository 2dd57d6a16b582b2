//! Policies and operator policies.

use leveret_broker::message::AdminCommand;
use leveret_topology::{ApplyTo, Policy, PolicySpec, Vhost};
use serde_json::{Map, Value, json};

use super::answer::{Answer, Fault};
use super::call::{Call, Fields as _};
use super::listing;
use crate::ops::ask;

/// A policy without its name, as parameters show it.
pub(super) fn value(policy: &Policy) -> Value {
    json!({
        "pattern": policy.pattern.text(),
        "apply-to": policy.apply_to.name(),
        "definition": policy.definition,
        "priority": policy.priority,
    })
}

fn row(vhost: &str, policy: &Policy) -> Value {
    let mut row = value(policy);
    row["vhost"] = json!(vhost);
    row["name"] = json!(policy.name);
    row
}

fn users(vhost: &Vhost) -> Vec<Value> {
    vhost.policies().map(|policy| row(&vhost.name, policy)).collect()
}

fn operators(vhost: &Vhost) -> Vec<Value> {
    vhost.operator_policies().map(|policy| row(&vhost.name, policy)).collect()
}

type Rows = fn(&Vhost) -> Vec<Value>;

async fn listed(call: Call, rows: Rows) -> Result<Answer, Fault> {
    let vhosts = call.vhosts()?;
    let found = {
        let topology = call.node().topology();
        let found = vhosts.iter().filter_map(|name| topology.vhost(name));
        found.flat_map(rows).collect()
    };
    listing::rows(call, found).await
}

fn one(call: &Call, vhost: &str, rows: Rows) -> Result<Value, Fault> {
    let topology = call.node().topology();
    let vhost = topology.vhost(vhost).ok_or_else(Fault::not_found)?;
    let found = rows(vhost).into_iter().find(|row| row["name"] == call.param("name"));
    found.ok_or_else(Fault::not_found)
}

/// A policy that a body describes: pattern, definition, priority, what it is for.
fn described(name: &str, body: &Map<String, Value>, operator: bool) -> Result<Box<Policy>, Fault> {
    body.must_have(&["pattern", "definition"])?;
    let definition = body.object("definition")?;
    if !matches!(body.get("definition"), Some(Value::Object(_))) {
        return Err(Fault::bad("'definition' must be an object"));
    }
    let bad = |value: &Value| Fault::bad(format!("'priority' must be a whole number, got {value}"));
    let priority = match body.get("priority") {
        None | Some(Value::Null) => 0,
        Some(Value::String(text)) => text.parse().map_err(|_| bad(&json!(text)))?,
        Some(value) => value.as_i64().ok_or_else(|| bad(value))?,
    };
    let apply_to = body.optional_text("apply-to")?.unwrap_or_else(|| "all".to_owned());
    let apply_to = ApplyTo::parse(&apply_to).map_err(|error| Fault::bad(error.to_string()))?;
    let pattern = &*body.text("pattern")?;
    let spec = PolicySpec { name, pattern, apply_to, priority, definition };
    let policy = Policy::new(spec, operator).map_err(|error| Fault::bad(error.to_string()))?;
    Ok(Box::new(policy))
}

/// `GET /api/policies` and `/{vhost}`.
pub(super) async fn list(call: Call) -> Result<Answer, Fault> {
    listed(call, users).await
}

/// `GET /api/policies/{vhost}/{name}`.
pub(super) async fn get(call: Call) -> Result<Answer, Fault> {
    let vhost = call.visible_vhost()?;
    Ok(listing::one(&call, one(&call, &vhost, users)?))
}

/// The vhost of a change by a policymaker.
fn vhost_to_change(call: &Call) -> Result<String, Fault> {
    let vhost = call.param("vhost").to_owned();
    call.login.must_set_policies(call.node(), &vhost)?;
    call.node().topology().vhost(&vhost).ok_or_else(|| Fault::missing("vhost_not_found"))?;
    Ok(vhost)
}

/// `PUT /api/policies/{vhost}/{name}`.
pub(super) async fn put(call: Call) -> Result<Answer, Fault> {
    let vhost = vhost_to_change(&call)?;
    let is_new = one(&call, &vhost, users).is_err();
    let policy = described(call.param("name"), &call.object()?, false)?;
    let told = policy.without_effect();
    let command = AdminCommand::SetPolicy { vhost, policy };
    ask::admin(call.node(), call.by(), command).await?;
    Ok(Answer::put(is_new).with_warnings(told))
}

/// `DELETE /api/policies/{vhost}/{name}`.
pub(super) async fn delete(call: Call) -> Result<Answer, Fault> {
    let vhost = vhost_to_change(&call)?;
    one(&call, &vhost, users)?;
    let name = call.param("name").to_owned();
    ask::admin(call.node(), call.by(), AdminCommand::ClearPolicy { vhost, name }).await?;
    Ok(Answer::Done)
}

/// `GET /api/operator-policies` and `/{vhost}`.
pub(super) async fn list_operators(call: Call) -> Result<Answer, Fault> {
    listed(call, operators).await
}

/// `GET /api/operator-policies/{vhost}/{name}`.
pub(super) async fn get_operator(call: Call) -> Result<Answer, Fault> {
    let vhost = call.visible_vhost()?;
    Ok(listing::one(&call, one(&call, &vhost, operators)?))
}

/// Refuses who may not change operator policies.
pub(super) fn must_operate(call: &Call) -> Result<(), Fault> {
    call.login.must_admin()?;
    if call.app.options.no_operator_policy_changes {
        return Err(Fault::not_allowed(
            "operator policies can be changed from the command line only \
             (management.restrictions.operator_policy_changes.disabled)",
        ));
    }
    Ok(())
}

/// The vhost of a change by an operator.
fn vhost_to_operate(call: &Call) -> Result<String, Fault> {
    must_operate(call)?;
    vhost_to_change(call)
}

/// `PUT /api/operator-policies/{vhost}/{name}`.
pub(super) async fn put_operator(call: Call) -> Result<Answer, Fault> {
    let vhost = vhost_to_operate(&call)?;
    let is_new = one(&call, &vhost, operators).is_err();
    let policy = described(call.param("name"), &call.object()?, true)?;
    let told = policy.without_effect();
    let command = AdminCommand::SetOperatorPolicy { vhost, policy };
    ask::admin(call.node(), call.by(), command).await?;
    Ok(Answer::put(is_new).with_warnings(told))
}

/// `DELETE /api/operator-policies/{vhost}/{name}`.
pub(super) async fn delete_operator(call: Call) -> Result<Answer, Fault> {
    let vhost = vhost_to_operate(&call)?;
    one(&call, &vhost, operators)?;
    let name = call.param("name").to_owned();
    ask::admin(call.node(), call.by(), AdminCommand::ClearOperatorPolicy { vhost, name }).await?;
    Ok(Answer::Done)
}
