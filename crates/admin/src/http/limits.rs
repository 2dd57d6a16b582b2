//! Limits of vhosts and of users.

use std::collections::BTreeMap;

use leveret_broker::message::AdminCommand;
use leveret_topology::RATE_LIMITS;
use serde_json::{Value, json};

use super::answer::{Answer, Fault};
use super::call::{Call, Fields as _};
use super::listing;
use crate::ops::ask;

/// What can be limited in a vhost, besides [`RATE_LIMITS`].
const OF_VHOST: [&str; 2] = ["max-connections", "max-queues"];
/// What can be limited for a user, besides [`RATE_LIMITS`].
const OF_USER: [&str; 2] = ["max-connections", "max-channels"];

fn known(call: &Call, names: &[&str]) -> Result<String, Fault> {
    let name = call.param("name");
    let names = [names, &RATE_LIMITS].concat();
    if names.contains(&name) {
        return Ok(name.to_owned());
    }
    Err(Fault::bad(format!("unknown limit '{name}'; there are {}", names.join(", "))))
}

fn value(call: &Call) -> Result<i64, Fault> {
    let body = call.object()?;
    body.must_have(&["value"])?;
    let value = body.get("value").unwrap_or(&Value::Null);
    let number = value.as_i64().or_else(|| value.as_str().and_then(|text| text.parse().ok()));
    number.ok_or_else(|| Fault::bad(format!("'value' must be a whole number, got {value}")))
}

/// `GET /api/vhost-limits` and `/{vhost}`.
pub(super) async fn list_of_vhosts(call: Call) -> Result<Answer, Fault> {
    let vhosts = call.vhosts()?;
    let rows = {
        let topology = call.node().topology();
        let found = vhosts.iter().filter_map(|name| topology.vhost(name));
        let limited = found.filter(|vhost| !vhost.limits().is_empty());
        limited.map(|vhost| json!({"vhost": &*vhost.name, "value": vhost.limits()})).collect()
    };
    listing::rows(call, rows).await
}

/// `PUT /api/vhost-limits/{vhost}/{name}`.
pub(super) async fn put_of_vhost(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let vhost = call.vhost()?;
    let (name, value) = (known(&call, &OF_VHOST)?, value(&call)?);
    let limits = BTreeMap::from([(name, value)]);
    ask::admin(call.node(), call.by(), AdminCommand::SetVhostLimits { vhost, limits }).await?;
    Ok(Answer::Done)
}

/// `DELETE /api/vhost-limits/{vhost}/{name}`.
pub(super) async fn delete_of_vhost(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let vhost = call.vhost()?;
    let limit = Some(known(&call, &OF_VHOST)?);
    ask::admin(call.node(), call.by(), AdminCommand::ClearVhostLimits { vhost, limit }).await?;
    Ok(Answer::Done)
}

/// `GET /api/user-limits` and `/{user}`.
pub(super) async fn list_of_users(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let rows = {
        let topology = call.node().topology();
        if let Some(name) = call.optional("user") {
            topology.user(name).ok_or_else(Fault::not_found)?;
        }
        let all = topology.users().filter(|user| !user.limits.is_empty());
        let wanted =
            all.filter(|user| call.optional("user").is_none_or(|name| *user.name == *name));
        wanted.map(|user| json!({"user": user.name, "value": user.limits})).collect()
    };
    listing::rows(call, rows).await
}

fn user(call: &Call) -> Result<String, Fault> {
    call.login.must_admin()?;
    let topology = call.node().topology();
    let user = topology.user(call.param("user")).ok_or_else(Fault::not_found)?;
    Ok(user.name.to_string())
}

/// `PUT /api/user-limits/{user}/{name}`.
pub(super) async fn put_of_user(call: Call) -> Result<Answer, Fault> {
    let name = user(&call)?;
    let limits = BTreeMap::from([(known(&call, &OF_USER)?, value(&call)?)]);
    ask::admin(call.node(), call.by(), AdminCommand::SetUserLimits { name, limits }).await?;
    Ok(Answer::Done)
}

/// `DELETE /api/user-limits/{user}/{name}`.
pub(super) async fn delete_of_user(call: Call) -> Result<Answer, Fault> {
    let name = user(&call)?;
    let limit = Some(known(&call, &OF_USER)?);
    ask::admin(call.node(), call.by(), AdminCommand::ClearUserLimits { name, limit }).await?;
    Ok(Answer::Done)
}
