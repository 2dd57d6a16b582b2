//! Permissions and topic permissions.

use leveret_broker::message::AdminCommand;
use leveret_topology::{Topology, User};
use serde_json::{Value, json};

use super::answer::{Answer, Fault};
use super::call::{Call, Fields as _};
use super::listing;
use crate::ops::{ask, pages};

fn of_user(topology: &Topology, user: &User) -> Vec<Value> {
    let rows = user.permissions().map(|(vhost, given)| {
        json!({
            "user": user.name,
            "vhost": topology.vhost_by_id(vhost).map(|vhost| &*vhost.name),
            "configure": given.configure.text(),
            "write": given.write.text(),
            "read": given.read.text(),
        })
    });
    rows.collect()
}

fn topics_of_user(topology: &Topology, user: &User) -> Vec<Value> {
    let rows = user.topic_permissions().map(|(vhost, exchange, given)| {
        json!({
            "user": user.name,
            "vhost": topology.vhost_by_id(vhost).map(|vhost| &*vhost.name),
            "exchange": exchange,
            "write": given.write.text(),
            "read": given.read.text(),
        })
    });
    rows.collect()
}

type Rows = fn(&Topology, &User) -> Vec<Value>;

async fn all(call: &Call, rows: Rows) -> Vec<Value> {
    let names: Vec<Box<str>> =
        call.node().topology().users().map(|user| user.name.clone()).collect();
    let rows = |topology: &Topology, name: Box<str>| Some(rows(topology, topology.user(&name)?));
    pages::copied(call.node(), names, rows).await.into_iter().flatten().collect()
}

fn all_of_user(call: &Call, rows: Rows) -> Result<Vec<Value>, Fault> {
    let topology = call.node().topology();
    let user = topology.user(call.param("user")).ok_or_else(Fault::not_found)?;
    Ok(rows(&topology, user))
}

async fn all_in_vhost(call: &Call, rows: Rows) -> Result<Vec<Value>, Fault> {
    call.login.must_admin()?;
    let vhost = call.vhost()?;
    let mut all = all(call, rows).await;
    all.retain(|row| row["vhost"] == *vhost);
    Ok(all)
}

/// The rows of one user in one vhost. Both exist.
fn of_both(call: &Call, rows: Rows) -> Result<Vec<Value>, Fault> {
    let vhost = call.vhost()?;
    let mut all = all_of_user(call, rows)?;
    all.retain(|row| row["vhost"] == *vhost);
    Ok(all)
}

/// `GET /api/permissions`.
pub(super) async fn list(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let rows = all(&call, of_user).await;
    listing::rows(call, rows).await
}

/// `GET /api/users/{user}/permissions`.
pub(super) async fn list_of_user(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let rows = all_of_user(&call, of_user)?;
    listing::rows(call, rows).await
}

/// `GET /api/vhosts/{vhost}/permissions`.
pub(super) async fn list_of_vhost(call: Call) -> Result<Answer, Fault> {
    let rows = all_in_vhost(&call, of_user).await?;
    listing::rows(call, rows).await
}

/// `GET /api/permissions/{vhost}/{user}`.
pub(super) async fn get(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let row = of_both(&call, of_user)?.pop().ok_or_else(Fault::not_found)?;
    Ok(listing::one(&call, row))
}

/// The names that a change is about; both must exist, else it is a bad request, not a missing object.
fn names(call: &Call) -> Result<(String, String), Fault> {
    let (vhost, user) = (call.param("vhost"), call.param("user"));
    let topology = call.node().topology();
    if topology.vhost(vhost).is_none() {
        return Err(Fault::bad(format!("vhost_or_user_not_found: there is no vhost '{vhost}'")));
    }
    if topology.user(user).is_none() {
        return Err(Fault::bad(format!("vhost_or_user_not_found: there is no user '{user}'")));
    }
    Ok((vhost.to_owned(), user.to_owned()))
}

/// `PUT /api/permissions/{vhost}/{user}`.
pub(super) async fn put(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let (vhost, user) = names(&call)?;
    let body = call.object()?;
    body.must_have(&["configure", "write", "read"])?;
    let is_new = of_both(&call, of_user)?.is_empty();
    let command = AdminCommand::SetPermissions {
        user,
        vhost,
        configure: body.text("configure")?,
        write: body.text("write")?,
        read: body.text("read")?,
    };
    ask::admin(call.node(), call.by(), command).await?;
    Ok(Answer::put(is_new))
}

/// `DELETE /api/permissions/{vhost}/{user}`.
pub(super) async fn delete(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    if of_both(&call, of_user)?.is_empty() {
        return Err(Fault::not_found());
    }
    let (vhost, user) = names(&call)?;
    ask::admin(call.node(), call.by(), AdminCommand::ClearPermissions { user, vhost }).await?;
    Ok(Answer::Done)
}

/// `GET /api/topic-permissions`.
pub(super) async fn list_topics(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let rows = all(&call, topics_of_user).await;
    listing::rows(call, rows).await
}

/// `GET /api/users/{user}/topic-permissions`.
pub(super) async fn list_topics_of_user(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let rows = all_of_user(&call, topics_of_user)?;
    listing::rows(call, rows).await
}

/// `GET /api/vhosts/{vhost}/topic-permissions`.
pub(super) async fn list_topics_of_vhost(call: Call) -> Result<Answer, Fault> {
    let rows = all_in_vhost(&call, topics_of_user).await?;
    listing::rows(call, rows).await
}

/// `GET /api/topic-permissions/{vhost}/{user}`.
pub(super) async fn get_topics(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let mut rows = of_both(&call, topics_of_user)?;
    if call.optional("exchange").is_some() {
        let exchange = call.exchange_param("exchange");
        rows.retain(|row| row["exchange"] == exchange);
    }
    if rows.is_empty() {
        return Err(Fault::not_found());
    }
    listing::rows(call, rows).await
}

/// `PUT /api/topic-permissions/{vhost}/{user}`.
pub(super) async fn put_topics(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let (vhost, user) = names(&call)?;
    let body = call.object()?;
    body.must_have(&["exchange", "write", "read"])?;
    let exchange = body.text("exchange")?;
    let is_new = of_both(&call, topics_of_user)?.is_empty();
    let (write, read) = (body.text("write")?, body.text("read")?);
    let command = AdminCommand::SetTopicPermissions { user, vhost, exchange, write, read };
    ask::admin(call.node(), call.by(), command).await?;
    Ok(Answer::put(is_new))
}

/// `DELETE /api/topic-permissions/{vhost}/{user}[/{exchange}]`.
pub(super) async fn delete_topics(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    if of_both(&call, topics_of_user)?.is_empty() {
        return Err(Fault::not_found());
    }
    let (vhost, user) = names(&call)?;
    let exchange = call.optional("exchange").map(|_| call.exchange_param("exchange").to_owned());
    ask::admin(
        call.node(),
        call.by(),
        AdminCommand::ClearTopicPermissions { user, vhost, exchange },
    )
    .await?;
    Ok(Answer::Done)
}
