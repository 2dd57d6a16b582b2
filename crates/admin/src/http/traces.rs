//! Traces and their files, as RabbitMQ's tracing plugin has them.

use std::fs::File;
use std::io::Read as _;
use std::sync::Arc;

use leveret_broker::login::{Login as AskedLogin, Proof};
use leveret_broker::message::ConnectionId;
use leveret_topology::Password;
use leveret_topology::rights::{Admitted, Question};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use super::answer::{Answer, Fault};
use super::call::{Call, Fields as _, aside, short};
use super::login::is_allowed;
use super::stream::{self, Cut};
use super::{listing, queues};
use crate::traces::{Asked, Format, Trace, files};

/// What a path that names another node is told.
fn must_name_this_node(call: &Call) -> Result<(), Fault> {
    match call.optional("node") {
        Some(node) if node != call.node_name() => Err(Fault::bad("Node is not a cluster member")),
        _ => Ok(()),
    }
}

/// `GET /api/traces` and `/{vhost}`.
pub(super) async fn list(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    must_name_this_node(&call)?;
    if call.named_vhost().is_some() {
        call.vhost()?;
    }
    let mut rows = Vec::new();
    for trace in call.app.ops.traces.all() {
        if call.named_vhost().is_none_or(|vhost| vhost == trace.asked.vhost) {
            rows.push(row(&call, &trace).await?);
        }
    }
    listing::rows(call, rows).await
}

/// `GET /api/traces/{vhost}/{name}`.
pub(super) async fn get(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    must_name_this_node(&call)?;
    let trace = call.app.ops.traces.get(call.param("vhost"), call.param("name"));
    let trace = trace.ok_or_else(Fault::not_found)?;
    let row = row(&call, &trace).await?;
    Ok(listing::one(&call, row))
}

/// What RabbitMQ has of a trace, and how far it is.
async fn row(call: &Call, trace: &Arc<Trace>) -> Result<Value, Fault> {
    let (asked, state) = (&trace.asked, trace.state());
    let mut row = json!({
        "vhost": asked.vhost,
        "name": asked.name,
        "format": asked.format.name(),
        "pattern": asked.pattern,
        "file": trace.file,
        "file_bytes": state.file_bytes,
        "written": state.written,
        "not_written": state.not_written,
        "state": if trace.is_running() { "running" } else { "stopped" },
    });
    if let Some(bytes) = asked.max_payload_bytes {
        row["max_payload_bytes"] = json!(bytes);
    }
    if let Some(name) = &asked.username {
        row["tracer_connection_username"] = json!(name);
    }
    if let Some(why) = state.stopped {
        row["reason"] = json!(why);
    }
    if trace.is_running()
        && let Some(queue) = queues::told(call, &asked.vhost, &trace.queue).await?
    {
        row["queue"] = queue;
    }
    Ok(row)
}

/// `PUT /api/traces/{vhost}/{name}`: it begins.
pub(super) async fn put(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    must_name_this_node(&call)?;
    let vhost = call.vhost()?;
    let name = call.param("name").to_owned();
    let body = call.object()?;
    body.must_have(&["format", "pattern"])?;
    files::of_trace(&name).ok_or_else(|| Fault::bad("invalid trace name"))?;
    let max_payload_bytes = match body.get("max_payload_bytes") {
        None => None,
        Some(bytes) => {
            let bytes = bytes.as_u64();
            Some(bytes.ok_or_else(|| Fault::bad("max_payload_bytes not integer"))?)
        }
    };
    let format = body.get("format").and_then(Value::as_str).and_then(Format::named);
    let format = format.ok_or_else(|| Fault::bad("format not json or text"))?;
    let pattern = body.text("pattern")?;
    short("pattern", &pattern)?;
    let traces = Arc::clone(&call.app.ops.traces);
    // The page sends an empty name where there is none.
    let username = body.optional_text("tracer_connection_username")?.filter(|it| !it.is_empty());
    let (own_user, own_password) = traces.user();
    let password = match &username {
        Some(_) => body.optional_text("tracer_connection_password")?.unwrap_or(own_password),
        None => own_password,
    };
    let user = username.clone().unwrap_or(own_user);
    let admitted = admitted(&call, &vhost, &user, password).await?;
    let asked = Asked { vhost, name, format, pattern, max_payload_bytes, username };
    traces.create(call.by(), asked, admitted).await?;
    Ok(Answer::put(true))
}

/// The user in whose name a trace gets its messages, if password and vhost let it in.
async fn admitted(
    call: &Call,
    vhost: &str,
    user: &str,
    password: String,
) -> Result<Admitted, Fault> {
    let node = call.node();
    let asked = AskedLogin {
        connection: ConnectionId::NOBODY,
        user: user.into(),
        proof: Proof::Password(Password::new(&password)),
        peer: call.peer.to_string(),
        connection_name: None,
        mechanism: "PLAIN",
        protocol: "direct",
        barred: None,
        is_repeated: false,
    };
    let refused = |why: &str| {
        Fault::bad(format!(
            "user '{user}' cannot have the messages of vhost '{vhost}': {why}; say whose name the trace is to use \
             (tracer_connection_username and tracer_connection_password, or tracing.username and tracing.password)"
        ))
    };
    let decided = node.logins.check(node, asked).await;
    let admitted = decided.map_err(|_| Fault::unavailable("the node is stopping"))?;
    let admitted = admitted.ok_or_else(|| refused("name or password are wrong"))?;
    let question = Question::Vhost(vhost.into());
    let may = match &admitted.rights {
        Some(rights) => is_allowed(&**rights, &question).await,
        None => node.topology().check_vhost_access(&admitted.user, vhost).is_ok(),
    };
    if may { Ok(admitted) } else { Err(refused("it may not open the vhost")) }
}

/// `DELETE /api/traces/{vhost}/{name}`: it ends. Its file stays.
pub(super) async fn delete(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    must_name_this_node(&call)?;
    match call.app.ops.traces.stop(call.param("vhost"), call.param("name")).await {
        true => Ok(Answer::Done),
        false => Err(Fault::not_found()),
    }
}

/// `GET /api/trace-files`.
pub(super) async fn list_files(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    must_name_this_node(&call)?;
    let dir = call.app.ops.traces.dir();
    let found = aside(move || files::list(&dir)).await?;
    let found = found.map_err(|error| Fault::unavailable(format!("no list of files: {error}")))?;
    let rows = found.into_iter().map(|(name, size)| json!({"name": name, "size": size}));
    let rows = rows.collect();
    listing::rows(call, rows).await
}

/// `GET /api/trace-files/{name}`: as much as there is when it is asked for.
pub(super) async fn get_file(mut call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    must_name_this_node(&call)?;
    let (dir, name) = (call.app.ops.traces.dir(), call.param("name").to_owned());
    let opened = aside(move || files::open(&dir, &name)).await?;
    let opened = opened.map_err(|error| Fault::unavailable(format!("cannot read it: {error}")))?;
    let (file, len) = opened.ok_or_else(Fault::not_found)?;
    call.hold(stream::BYTES).await?;
    let made = stream::made(|mut to| async move {
        // Has the room until the last piece is on its way.
        let _call = call;
        let mut pieces = Read { file, left: len };
        loop {
            let read = spawn_blocking(move || pieces.next()).await.map_err(|_| Cut)?;
            let (piece, rest) = read.map_err(|_| Cut)?;
            if piece.is_empty() {
                return Ok(());
            }
            to.send(piece).await?;
            pieces = rest;
        }
    });
    Ok(Answer::TextFile(made))
}

/// A file that is read.
struct Read {
    file: File,
    left: u64,
}

impl Read {
    /// The next piece, and what reads the rest; an empty one is the end.
    fn next(mut self) -> std::io::Result<(Vec<u8>, Self)> {
        let most = self.left.min(stream::CHUNK as u64);
        let mut piece = Vec::with_capacity(stream::CHUNK);
        (&self.file).take(most).read_to_end(&mut piece)?;
        self.left -= piece.len() as u64;
        Ok((piece, self))
    }
}

/// `DELETE /api/trace-files/{name}`.
pub(super) async fn delete_file(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    must_name_this_node(&call)?;
    let traces = Arc::clone(&call.app.ops.traces);
    let name = call.param("name").to_owned();
    let (dir, owned) = (traces.dir(), traces.own_to_delete(&name)?);
    let work = move || {
        let deleted = files::delete(&dir, &name);
        drop(owned);
        deleted
    };
    let deleted = aside(work).await?;
    match deleted.map_err(|error| Fault::unavailable(format!("the file stays: {error}")))? {
        true => Ok(Answer::Done),
        false => Err(Fault::not_found()),
    }
}
