//! What is asked of the node as a whole: its cluster's name, the user, versions, passwords.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::FromRequest as _;
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderValue, Request};
use http_body_util::{BodyExt as _, Limited};
use leveret_broker::message::AdminCommand;
use leveret_server::front::About;
use serde_json::{Value, json};

use super::App;
use super::answer::{Answer, Fault};
use super::call::{Call, Fields as _, parse_query};
use crate::ops::ask;

/// The parameter that names the cluster.
const CLUSTER_NAME: &str = "cluster_name";

/// The parameter with the tags that an operator gave the cluster.
pub(super) const CLUSTER_TAGS: &str = "cluster_tags";

/// The cluster's name: as it was set, else as the configuration has it.
pub(super) fn name(call: &Call) -> String {
    let topology = call.node().topology();
    let set = topology.global_parameter(CLUSTER_NAME).and_then(Value::as_str);
    set.map(str::to_owned).unwrap_or_else(|| call.node().settings.cluster_name.clone())
}

/// The cluster's tags: the global parameter of that name, as in RabbitMQ.
///
/// An export of RabbitMQ has an empty list where there are none.
pub(super) fn tags(call: &Call) -> Value {
    let topology = call.node().topology();
    let set = topology.global_parameter(CLUSTER_TAGS).filter(|tags| tags.is_object());
    set.cloned().unwrap_or_else(|| json!({}))
}

/// `GET /api/cluster-name`.
pub(super) async fn get_name(call: Call) -> Result<Answer, Fault> {
    Ok(Answer::Json(json!({"name": name(&call)})))
}

/// `PUT /api/cluster-name`.
pub(super) async fn put_name(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let name = call.object()?.text("name")?;
    if name.is_empty() {
        return Err(Fault::bad("a cluster's name must not be empty"));
    }
    let (key, value) = (CLUSTER_NAME.to_owned(), Value::String(name));
    ask::admin(call.node(), call.by(), AdminCommand::SetGlobalParameter { name: key, value })
        .await?;
    Ok(Answer::Done)
}

/// `GET /api/whoami`. An internal user is one whose permissions are among the names, as in RabbitMQ.
pub(super) async fn whoami(call: Call) -> Result<Answer, Fault> {
    Ok(Answer::Json(json!({
        "name": call.login.name,
        "tags": call.login.tags,
        "is_internal_user": call.login.admitted.rights.is_none(),
    })))
}

/// `GET /api/version`. Probes ask it, and it asks nobody.
pub(super) async fn version(call: Call) -> Result<Answer, Fault> {
    Ok(Answer::Json(version_of(&call.app.ops.about, call.node().is_filled())))
}

pub(crate) fn version_of(about: &About, is_booted: bool) -> Value {
    json!({
        "product_name": about.product_name,
        "product_version": about.product_version,
        "leveret_version": env!("CARGO_PKG_VERSION"),
        "rabbitmq_version": leveret_server::COMPATIBLE_VERSION,
        "is_booted": is_booted,
    })
}

/// `GET /api/extensions`.
pub(super) async fn extensions(_: Call) -> Result<Answer, Fault> {
    Ok(Answer::Json(json!([{"javascript": "dispatcher.js"}])))
}

/// `GET /api/auth`: how the page lets people log in. It needs no login itself.
pub(super) async fn auth(app: Arc<App>) -> Answer {
    Answer::Json(app.signin.answer.clone())
}

/// `POST /api/login`: whether name and password are right. With a form that has an `access_token` a provider sends
/// somebody to the page, who is signed in there by it.
pub(super) async fn login(app: Arc<App>, request: Request<Body>) -> Result<Answer, Fault> {
    let kind = request.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let is_form = kind.is_some_and(|kind| kind.starts_with("application/x-www-form-urlencoded"));
    if !is_form || !app.signin.takes_tokens {
        return whoami(Call::from_request(request, &app).await?).await;
    }
    let (mut parts, body) = request.into_parts();
    let form = Limited::new(body, FORM_BYTES_MAX as usize).collect().await;
    let form = form.map_err(|_| Fault::too_large(FORM_BYTES_MAX))?.to_bytes();
    let form = parse_query(&String::from_utf8_lossy(&form));
    let token = form.into_iter().find(|(name, _)| name == "access_token").map(|(_, token)| token);
    // What a token has; nothing of it means something in HTML.
    let is_sound = |token: &String| {
        !token.is_empty()
            && token.chars().all(|c| c.is_ascii_alphanumeric() || "-._~+/=".contains(c))
    };
    let token = token.filter(is_sound).ok_or_else(|| Fault::bad("the form has no access_token"))?;
    let bearer = HeaderValue::try_from(format!("Bearer {token}"));
    parts.headers.insert(AUTHORIZATION, bearer.map_err(|_| Fault::login())?);
    Call::from_request(Request::from_parts(parts, Body::empty()), &app).await?;
    let text = format!(
        "<!doctype html><title>Leveret</title><meta name=\"access-token\" content=\"{token}\">\
         <script src=\"../bring.js\"></script>\n"
    );
    Ok(Answer::File { kind: "text/html; charset=utf-8", name: None, text })
}

/// Longest form with a token, in bytes.
const FORM_BYTES_MAX: u64 = 64 << 10;

/// `GET /api/auth/hash_password/{password}`.
pub(super) async fn hash_password(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let hash = call.node().logins.hash(call.param("password")).to_base64();
    Ok(Answer::Json(json!({"ok": hash})))
}

/// `GET /api/auth/attempts/{node}`: logins by protocol.
pub(super) async fn attempts(call: Call) -> Result<Answer, Fault> {
    call.login.must_monitor()?;
    call.must_name_this_node()?;
    let attempts = call.node().logins.attempts();
    let rows = attempts.by_protocol().iter().map(|(protocol, counts)| {
        json!({
            "protocol": protocol,
            "auth_attempts": counts.total(),
            "auth_attempts_failed": counts.failed,
            "auth_attempts_succeeded": counts.succeeded,
        })
    });
    Ok(Answer::Json(rows.collect()))
}

/// `GET /api/auth/attempts/{node}/source`: by address and user, too.
pub(super) async fn attempts_by_source(call: Call) -> Result<Answer, Fault> {
    call.login.must_monitor()?;
    call.must_name_this_node()?;
    let sources = call.node().logins.attempts().by_source();
    let rows = sources.into_iter().map(|it| {
        json!({
            "remote_address": it.address,
            "username": it.user,
            "protocol": it.protocol,
            "auth_attempts": it.counts.total(),
            "auth_attempts_failed": it.counts.failed,
            "auth_attempts_succeeded": it.counts.succeeded,
        })
    });
    Ok(Answer::Json(rows.collect()))
}

/// `DELETE` of both.
pub(super) async fn clear_attempts(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    call.must_name_this_node()?;
    call.node().logins.attempts().reset();
    Ok(Answer::Done)
}

/// `GET /api/config/effective`: options and values; secrets are hidden.
pub(super) async fn environment(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    Ok(Answer::Json(environment_of(&call.app.ops.about)))
}

pub(crate) fn environment_of(about: &About) -> Value {
    let options = about.environment.iter();
    let rows = options.map(|(key, value)| ((*key).to_owned(), json!(value)));
    rows.collect::<serde_json::Map<_, _>>().into()
}

/// `POST /api/rebalance/queues`: one node has nothing to spread.
pub(super) async fn rebalance(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    Ok(Answer::Done)
}

/// `DELETE /api/reset`: nothing is kept that could be reset.
pub(super) async fn reset(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    if call.optional("node").is_some() {
        call.must_name_this_node()?;
    }
    Ok(Answer::Done)
}

/// Lists of what plugins do that are not there: shovels, federation links, streams' connections.
pub(super) async fn nothing(call: Call) -> Result<Answer, Fault> {
    if call.optional("vhost").is_some() {
        call.visible_vhost()?;
    }
    Ok(Answer::Json(json!([])))
}

/// One of those.
pub(super) async fn no_such(call: Call) -> Result<Answer, Fault> {
    call.vhost()?;
    Err(Fault::not_found())
}
