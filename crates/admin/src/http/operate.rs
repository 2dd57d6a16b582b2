//! What the operator asks of the node itself, mostly by `leveret ctl`: its state, watermarks, certificates,
//! its end. RabbitMQ's API has none of it; its tools speak to the node in another way.

use std::time::Duration;

use leveret_server::COMPATIBLE_VERSION;
use leveret_server::alarms::{Resource, look};
use leveret_server::front::{About, Listener};
use leveret_server::runner::with_runner;
use serde_json::{Map, Value, json};

use super::answer::{Answer, Fault};
use super::call::{Call, Fields as _, Peer};
use super::health;
use crate::ops::system;

/// `GET /api/leveret/status`: the node at a glance, under the names of `rabbitmqctl status`.
pub(super) async fn status(call: Call) -> Result<Answer, Fault> {
    call.login.must_monitor()?;
    let (node, about) = (call.node(), &call.app.ops.about);
    let (queues, vhosts) = {
        let topology = node.topology();
        (topology.queue_count(), topology.vhosts().count())
    };
    let (files, files_max) = system::open_files();
    let alarms: Value = node.alarms.raised().into_iter().map(|it| it.name()).collect();
    Ok(Answer::Json(json!({
        "node": about.node_name,
        "product_name": about.product_name,
        "product_version": about.product_version,
        "leveret_version": env!("CARGO_PKG_VERSION"),
        "rabbitmq_version": COMPATIBLE_VERSION,
        "pid": std::process::id(),
        "os": system::os(),
        "uptime": about.started.elapsed().as_secs(),
        "is_under_maintenance": node.is_suspended(),
        "active_plugins": about.plugins,
        "data_directory": about.data_dir.display().to_string(),
        "config_files": about.config_files,
        "log_files": about.log_files,
        "alarms": alarms,
        "memory": {
            "total": {"rss": system::resident_bytes()},
            "strategy": "rss",
            "compared": node.used_bytes(),
        },
        "message_bytes": node.held_bytes(),
        "vm_memory_high_watermark_limit": node.alarms.memory_limit(),
        "disk_free": system::free_bytes(&about.data_dir),
        "disk_free_limit": node.alarms.disk_limit(),
        "file_descriptors": {"total_used": files, "total_limit": files_max},
        "threads": about.threads,
        "shards": node.shards.len(),
        "processors": std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        "totals": {
            "connection_count": node.connection_count(),
            "queue_count": queues,
            "virtual_host_count": vhosts,
        },
        "listeners": listeners(about),
    })))
}

/// Where the node listens, under the names of `rabbitmq-diagnostics listeners`.
pub(crate) fn listeners(about: &About) -> Value {
    let rows = about.listeners.iter().map(|listener| {
        json!({
            "node": about.node_name,
            "interface": listener.address.ip().to_string(),
            "port": listener.address.port(),
            "protocol": listener.protocol,
            "purpose": listener.purpose,
        })
    });
    rows.collect()
}

/// `POST /api/leveret/stop`: ends the node, soon after the answer. Only its own machine may ask for that.
pub(super) async fn stop(call: Call) -> Result<Answer, Fault> {
    // Another node answers its own operator, and never sends such a request here.
    if !matches!(call.peer, Peer::Local { .. }) {
        return Err(Fault::forbidden("a node is stopped from its own machine only"));
    }
    call.app.ops.stop.ask(call.peer.to_string());
    Ok(Answer::Done)
}

/// `POST /api/leveret/certificates/reload`: reads certificates and keys of TLS again.
pub(super) async fn reload_certificates(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    call.node().certificates.reload().map_err(Fault::bad)?;
    Ok(Answer::Done)
}

/// A watermark that a body sets: `{"absolute": BYTES}`, or `{"relative": PART}` of the machine's memory.
fn watermark(call: &Call, part_max: f64) -> Result<u64, Fault> {
    let body = call.object()?;
    match (body.get("absolute").and_then(Value::as_u64), part(&body)) {
        (Some(bytes), None) => Ok(bytes),
        (None, Some(part)) if (0.0..=part_max).contains(&part) => {
            Ok((call.app.ops.about.machine_memory as f64 * part) as u64)
        }
        (None, Some(part)) => Err(Fault::bad(format!(
            "expected a part of the memory from 0 to {part_max}, got {part}"
        ))),
        _ => Err(Fault::bad("expected {\"absolute\": BYTES} or {\"relative\": PART}")),
    }
}

fn part(body: &Map<String, Value>) -> Option<f64> {
    body.get("relative").and_then(Value::as_f64)
}

/// `PUT /api/leveret/watermarks/memory`: the memory use at which publishers are blocked, until the next start.
pub(super) async fn put_memory_watermark(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let limit = watermark(&call, 1.0)?;
    Ok(set_memory_watermark(&call, limit))
}

/// `DELETE /api/leveret/watermarks/memory`: as the configuration has it.
pub(super) async fn delete_memory_watermark(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    Ok(set_memory_watermark(&call, call.app.ops.about.memory_limit))
}

fn set_memory_watermark(call: &Call, limit: u64) -> Answer {
    let node = call.node();
    if let Some(change) = node.set_memory_limit(limit) {
        with_runner(node, |runner| runner.announce(Resource::Memory, change));
    }
    Answer::Done
}

/// `PUT /api/leveret/watermarks/disk`: the free space under which publishers are blocked, until the next start.
pub(super) async fn put_disk_watermark(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let limit = watermark(&call, 1000.0)?;
    set_disk_watermark(&call, limit)
}

/// `DELETE /api/leveret/watermarks/disk`: as the configuration has it.
pub(super) async fn delete_disk_watermark(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    set_disk_watermark(&call, call.app.ops.about.disk_free_limit)
}

fn set_disk_watermark(call: &Call, limit: u64) -> Result<Answer, Fault> {
    let node = call.node();
    node.alarms.set_disk_limit(limit);
    let free = leveret_server::alarms::free_bytes(&call.app.ops.about.data_dir);
    look(node, free.map_err(|error| Fault::unavailable(error.to_string()))?);
    Ok(Answer::Done)
}

/// `POST /api/leveret/authenticate`: whether a user's name and password are right.
pub(super) async fn authenticate(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let body = call.object()?;
    let (name, password) = (body.text("username")?, body.text("password")?);
    let node = call.node();
    node.logins.prove(node, &name, &password).await.map_err(Fault::bad)?;
    Ok(Answer::Done)
}

/// `POST /api/leveret/listeners/suspend`: takes no more connections of clients.
pub(super) async fn suspend_listeners(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    suspend(&call, true).await
}

/// `POST /api/leveret/listeners/resume`: takes connections of clients again.
pub(super) async fn resume_listeners(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    suspend(&call, false).await
}

/// Closes the listeners for clients or opens them, and waits until they are.
async fn suspend(call: &Call, is_suspended: bool) -> Result<Answer, Fault> {
    call.node().suspend(is_suspended);
    await_listeners(&call.app.ops.about.listeners, is_suspended).await
}

/// Waits until listeners for clients are closed, or open.
pub(crate) async fn await_listeners(all: &[Listener], is_suspended: bool) -> Result<Answer, Fault> {
    for listener in all.iter().filter(|it| matches!(it.protocol, "amqp" | "amqp/ssl")) {
        let settled = async {
            while health::answers(listener).await == is_suspended {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, settled).await.is_err() {
            let port = listener.address.port();
            return Err(Fault::unavailable(format!("the listener of port {port} does not follow")));
        }
    }
    Ok(Answer::Done)
}

/// What listeners follow in.
const PATIENCE: Duration = Duration::from_secs(5);
