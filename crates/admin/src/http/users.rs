//! Users.

use leveret_broker::message::AdminCommand;
use leveret_server::cluster::sessions::seen::Wanted;
use leveret_topology::{Hashing, PasswordHash, Topology, User};
use serde_json::{Map, Value, json};

use super::answer::{Answer, Fault};
use super::call::{Call, Fields as _};
use super::{listing, vhosts};
use crate::ops::{ask, close, pages};

/// `GET /api/users`.
pub(super) async fn list(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let rows = all(&call, |_| true).await;
    listing::rows(call, rows).await
}

/// `GET /api/users/without-permissions`.
pub(super) async fn without_permissions(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let rows = all(&call, |user| user.permissions().next().is_none()).await;
    listing::rows(call, rows).await
}

/// `GET /api/users/{user}`.
pub(super) async fn get(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let row = call.node().topology().user(call.param("user")).map(row);
    Ok(listing::one(&call, row.ok_or_else(Fault::not_found)?))
}

/// The users that are wanted, by name.
async fn all(call: &Call, is_wanted: impl Fn(&User) -> bool + Send + Sync) -> Vec<Value> {
    let names: Vec<Box<str>> =
        call.node().topology().users().map(|user| user.name.clone()).collect();
    let row = |topology: &Topology, name: Box<str>| {
        topology.user(&name).filter(|user| is_wanted(user)).map(row)
    };
    pages::copied(call.node(), names, row).await
}

fn row(user: &User) -> Value {
    let hash = user.password_hash();
    json!({
        "name": user.name,
        "password_hash": hash.to_base64(),
        "hashing_algorithm": hash.hashing().name(),
        "tags": user.tags,
        "limits": user.limits,
    })
}

/// `PUT /api/users/{user}`.
pub(super) async fn put(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let name = call.param("user").to_owned();
    let body = call.object()?;
    let is_new = call.node().topology().user(&name).is_none();
    let password = password(&call, &name, &body)?;
    let tags = vhosts::tags(&body)?;
    if is_new && tags.is_none() {
        return Err(Fault::bad("tags_not_present"));
    }
    ask::admin(call.node(), call.by(), AdminCommand::PutUser { name, password, tags }).await?;
    Ok(Answer::put(is_new))
}

/// The password that a body sets: a word, a hash, or an empty hash, with which nobody can log in. With
/// neither the user is one who can log in only by other means, if it is new.
fn password(
    call: &Call,
    name: &str,
    body: &Map<String, Value>,
) -> Result<Option<PasswordHash>, Fault> {
    let word = body.optional_text("password")?;
    let hash = body.optional_text("password_hash")?;
    match (word, hash) {
        (Some(_), Some(_)) => Err(Fault::bad("both_password_and_password_hash_are_provided")),
        (Some(word), None) if word.is_empty() => {
            Err(Fault::bad("Invalid password: it must not be empty"))
        }
        (Some(word), None) => {
            // Names are not held meanwhile.
            let defaults = call.node().topology().defaults();
            defaults.passwords.check(&word).map_err(|error| Fault::bad(error.to_string()))?;
            Ok(Some(call.node().logins.hash(&word)))
        }
        (None, Some(hash)) => {
            let hashing = match body.optional_text("hashing_algorithm")? {
                None => Hashing::default(),
                Some(name) => Hashing::parse(&name).ok_or_else(|| {
                    Fault::bad(format!(
                        "unknown hashing_algorithm '{name}'; there are {}, {}, {} and {}",
                        Hashing::Sha256.name(),
                        Hashing::Sha512.name(),
                        Hashing::Md5.name(),
                        Hashing::Argon2id.name(),
                    ))
                })?,
            };
            let hash = PasswordHash::from_base64(name, &hash, hashing);
            hash.map(Some).map_err(|error| Fault::bad(error.to_string()))
        }
        (None, None) if body.contains_key("tags") => {
            let none = PasswordHash::from_base64(name, "", Hashing::default());
            none.map(Some).map_err(|error| Fault::bad(error.to_string()))
        }
        (None, None) => Ok(None),
    }
}

/// `DELETE /api/users/{user}`.
pub(super) async fn delete(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let name = call.param("user").to_owned();
    call.node().topology().user(&name).ok_or_else(Fault::not_found)?;
    remove(&call, name).await
}

/// `POST /api/users/bulk-delete`.
pub(super) async fn bulk_delete(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let body = call.object()?;
    let bad = || Fault::bad("expected {\"users\": [NAME, ...]}");
    let names = body.get("users").and_then(Value::as_array).ok_or_else(bad)?;
    let names = names.iter().map(|name| name.as_str().map(str::to_owned).ok_or_else(bad));
    for name in names.collect::<Result<Vec<_>, _>>()? {
        if call.node().topology().user(&name).is_some() {
            remove(&call, name).await?;
        }
    }
    Ok(Answer::Done)
}

/// Deletes a user and closes its connections.
async fn remove(call: &Call, name: String) -> Result<Answer, Fault> {
    ask::admin(call.node(), call.by(), AdminCommand::DeleteUser { name: name.clone() }).await?;
    let reason = format!("user '{name}' was deleted");
    // Other nodes have heard that it is gone, and close theirs.
    let meant = Wanted { user: Some(name.clone()), ..Wanted::default() };
    close::close_here(call.node(), &reason, &meant).await;
    call.app.ops.traces.stop_of(&name).await;
    Ok(Answer::Done)
}
