//! Health checks: each looks at what it is about, and fails with 503 when that is not well.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use leveret_amqp::method::{Method, basic, confirm, queue};
use leveret_client::Event;
use leveret_server::clock::{now, wall};
use leveret_server::front::Listener;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::answer::{Answer, Fault};
use super::call::Call;
use super::exchanges::direct;
use crate::date::utc;
use crate::ops::direct::is;
use crate::ops::facts;

/// What a healthy part of a node does in far less.
const PATIENCE: Duration = Duration::from_secs(5);

fn ok() -> Answer {
    Answer::Json(json!({"status": "ok"}))
}

fn failed(reason: &str, mut more: Value) -> Answer {
    more["status"] = json!("failed");
    more["reason"] = json!(reason);
    Answer::Unhealthy(more)
}

/// `GET /api/health/checks/alarms`: no alarm is on in the cluster.
pub(super) async fn alarms(call: Call) -> Result<Answer, Fault> {
    Ok(alarms_of(&call, "There are alarms in effect in the cluster"))
}

/// `GET /api/health/checks/local-alarms`: none on this node.
pub(super) async fn local_alarms(call: Call) -> Result<Answer, Fault> {
    Ok(alarms_of(&call, "There are alarms in effect on the node"))
}

fn alarms_of(call: &Call, reason: &str) -> Answer {
    let raised = call.node().alarms.raised();
    if raised.is_empty() {
        return ok();
    }
    let rows = raised.iter().map(|alarm| {
        json!({"type": "resource_limit", "resource": alarm.name(), "node": call.node_name()})
    });
    failed(reason, json!({"alarms": rows.collect::<Value>()}))
}

/// Whether somebody takes connections there.
pub(super) async fn answers(listener: &Listener) -> bool {
    let ip = match listener.address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let address = SocketAddr::new(ip, listener.address.port());
    matches!(timeout(PATIENCE, TcpStream::connect(address)).await, Ok(Ok(_)))
}

/// `GET /api/health/checks/port-listener/{port}`: somebody takes connections on the port.
pub(super) async fn port(call: Call) -> Result<Answer, Fault> {
    let port: u16 = call.param("port").parse().map_err(|_| Fault::bad("Invalid port"))?;
    let listeners = &call.app.ops.about.listeners;
    for listener in listeners.iter().filter(|listener| listener.address.port() == port) {
        if answers(listener).await {
            return Ok(Answer::Json(json!({"status": "ok", "port": port})));
        }
    }
    let ports: Vec<u16> = listeners.iter().map(|listener| listener.address.port()).collect();
    Ok(failed("No active listener", json!({"missing": port, "ports": ports})))
}

/// RabbitMQ's word for a protocol that people write in many ways.
fn protocol_of(text: &str) -> String {
    let text = text.to_lowercase();
    let plain: String = text.chars().filter(|c| c.is_ascii_alphanumeric()).collect();
    match plain.as_str() {
        "amqp091" | "amqp10" | "amqp" => "amqp",
        "amqps" | "amqpssl" | "amqptls" => "amqp/ssl",
        "http1" | "http11" | "httpapi" | "management" | "managementui" | "ui" | "http" => "http",
        "prometheus" | "httpprometheus" => "http/prometheus",
        "mqtt31" | "mqtt311" | "mqtt5" => "mqtt",
        "cli" | "distribution" => "clustering",
        _ => return text,
    }
    .to_owned()
}

/// `GET /api/health/checks/protocol-listener/{protocol}`: somebody speaks it.
pub(super) async fn protocol(call: Call) -> Result<Answer, Fault> {
    let wanted: Vec<String> = call.param("protocol").split(',').map(protocol_of).collect();
    let listeners = &call.app.ops.about.listeners;
    let mut missing = Vec::new();
    for protocol in &wanted {
        let mut speaks = false;
        for listener in listeners.iter().filter(|listener| listener.protocol == protocol) {
            speaks |= answers(listener).await;
        }
        if !speaks {
            missing.push(protocol);
        }
    }
    let protocols: Vec<&str> = listeners.iter().map(|listener| listener.protocol).collect();
    if missing.is_empty() {
        let protocol = wanted.join(",");
        return Ok(Answer::Json(
            json!({"status": "ok", "protocol": protocol, "protocols": protocols}),
        ));
    }
    Ok(failed("No active listener", json!({"missing": missing, "protocols": protocols})))
}

/// `GET /api/health/checks/virtual-hosts`: every shard answers, so every vhost works.
pub(super) async fn virtual_hosts(call: Call) -> Result<Answer, Fault> {
    if shards_answer(&call).await {
        return Ok(ok());
    }
    let topology = call.node().topology();
    let names: Vec<String> = topology.vhosts().map(|vhost| vhost.name.to_string()).collect();
    Ok(failed("Some virtual hosts are down", json!({"virtual-hosts": names})))
}

async fn shards_answer(call: &Call) -> bool {
    matches!(timeout(PATIENCE, facts::queues(call.node())).await, Ok(Ok(_)))
}

/// What is spoken on the listeners of a group of TLS options.
pub(super) fn protocol_of_options(prefix: &str) -> &'static str {
    match prefix.split('.').next() {
        Some("management") => "https",
        Some("prometheus") => "https/prometheus",
        _ => "amqp/ssl",
    }
}

/// `GET /api/health/checks/certificate-expiration/{within}/{unit}`: no certificate of a listener ends so
/// soon.
pub(super) async fn certificates(call: Call) -> Result<Answer, Fault> {
    let within: i64 = call
        .param("within")
        .parse::<u32>()
        .map_err(|_| Fault::bad("Invalid expiration value."))?
        .into();
    let days = match &*call.param("unit").to_lowercase() {
        "days" => 1,
        "weeks" => 7,
        "months" => 30,
        "years" => 365,
        _ => {
            return Err(Fault::bad(
                "Time unit not recognised. Supported units: days, weeks, months, years.",
            ));
        }
    };
    let by = wall(now()).ms() as i64 / 1000 + within * days * 86_400;
    let mut expired = Vec::new();
    for tls in call.node().certificates.all() {
        let settings = tls.settings();
        let soon = |ends: Vec<i64>| -> Vec<String> {
            ends.into_iter().filter(|end| *end < by).map(utc).collect()
        };
        let protocol = protocol_of_options(settings.prefix);
        let row = match tls.ends() {
            Ok([own, of_authorities]) => {
                let (own, of_authorities) = (soon(own), soon(of_authorities));
                if own.is_empty() && of_authorities.is_empty() {
                    continue;
                }
                json!({"certfile_expires_on": own, "cacertfile_expires_on": of_authorities})
            }
            Err(error) => json!({"error": format!("{error:#}")}),
        };
        let listeners = call.app.ops.about.listeners.iter();
        for listener in listeners.filter(|listener| listener.protocol == protocol) {
            let mut row = row.clone();
            row["node"] = json!(call.node_name());
            row["protocol"] = json!(protocol);
            row["interface"] = json!(listener.address.ip().to_string());
            row["port"] = json!(listener.address.port());
            row["certfile"] = json!(settings.certfile);
            row["cacertfile"] = json!(settings.cacertfile);
            expired.push(row);
        }
    }
    if expired.is_empty() {
        return Ok(ok());
    }
    Ok(failed("Certificates expiring", json!({"expired": expired})))
}

/// Checks of a cluster, which one node passes by itself.
pub(super) async fn single_node(_: Call) -> Result<Answer, Fault> {
    Ok(Answer::Json(json!({"status": "ok", "reason": "single node cluster"})))
}

/// `GET /api/health/checks/quorum-queues-without-elected-leaders/...` and `metadata-store/...`: what is on
/// one node leads, and its names are there when it answers.
pub(super) async fn led(call: Call) -> Result<Answer, Fault> {
    if call.optional("vhost").is_some() {
        call.visible_vhost()?;
    }
    Ok(ok())
}

/// `GET /api/health/checks/is-in-service` and `ready-to-serve-clients`: AMQP is spoken, every shard answers.
pub(super) async fn in_service(call: Call) -> Result<Answer, Fault> {
    let listeners = &call.app.ops.about.listeners;
    let mut speaks = false;
    for listener in listeners.iter().filter(|it| matches!(it.protocol, "amqp" | "amqp/ssl")) {
        speaks |= answers(listener).await;
    }
    if !speaks {
        return Ok(failed("no AMQP listener takes connections", json!({})));
    }
    if !shards_answer(&call).await {
        return Ok(failed("a shard does not answer", json!({})));
    }
    Ok(ok())
}

/// `GET /api/health/checks/below-node-connection-limit`.
pub(super) async fn connection_limit(call: Call) -> Result<Answer, Fault> {
    let about = &call.app.ops.about;
    let limit = about.environment.iter().find(|(key, _)| *key == "connection_max");
    let limit = limit.and_then(|(_, value)| value.parse::<usize>().ok());
    let open = call.node().connections().len();
    match limit {
        Some(limit) if open >= limit => Ok(failed(
            "the limit of connections is reached",
            json!({"limit": limit, "connections": open}),
        )),
        _ => Ok(Answer::Json(json!({"status": "ok", "limit": limit, "connections": open}))),
    }
}

/// `GET /api/healthchecks/node[/{node}]`: all of it at once, for old scripts.
pub(super) async fn node(call: Call) -> Result<Answer, Fault> {
    if call.optional("node").is_some() {
        call.must_name_this_node()?;
    }
    if call.node().alarms.any() {
        return Ok(alarms_of(&call, "resource alarm(s) in effect"));
    }
    in_service(call).await
}

/// The queue of the test.
const QUEUE: &str = "aliveness-test";

/// `GET /api/aliveness-test/{vhost}`: declares a queue, publishes to it and gets the message back.
pub(super) async fn aliveness(call: Call) -> Result<Answer, Fault> {
    let vhost = call.vhost()?;
    if let Some(alarm) = call.node().alarms.alarm().reason() {
        return Ok(failed(&format!("publishers are blocked: {alarm}"), json!({})));
    }
    match timeout(PATIENCE, alive(&call, &vhost)).await {
        Ok(Ok(true)) => Ok(ok()),
        Ok(Ok(false)) => Ok(failed("aliveness-test queue is empty", json!({}))),
        Ok(Err(fault)) => Err(fault),
        Err(_) => Ok(failed("the test was not done in time", json!({}))),
    }
}

async fn alive(call: &Call, vhost: &str) -> Result<bool, Fault> {
    let mut direct = direct(call, vhost).await?;
    let declare = queue::Declare { queue: QUEUE, ..Default::default() };
    direct.call(&declare, |it| is(it, |it| matches!(it, Method::QueueDeclareOk(_)))).await?;
    let select = confirm::Select { no_wait: false };
    direct.call(&select, |it| is(it, |it| matches!(it, Method::ConfirmSelectOk(_)))).await?;
    let publish = basic::Publish { routing_key: QUEUE, ..Default::default() };
    direct.publish(&publish, &[0, 0], b"test_message");
    direct.wait_for(|it| is(it, |it| matches!(it, Method::BasicAck(_)))).await?;
    let get = basic::Get { queue: QUEUE, no_ack: true, ..Default::default() };
    // The queue stays, as in RabbitMQ: a check every few seconds is no reason to declare it again.
    Ok(direct
        .call(&get, |event| match event {
            Event::Method { method: Method::BasicGetEmpty(_), .. } => Some(false),
            Event::Content { method: Method::BasicGetOk(_), .. } => Some(true),
            _ => None,
        })
        .await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn protocols() {
        let check = |text: &str, want: &str| assert_eq!(protocol_of(text), want, "{text}");
        check("amqp",            "amqp");
        check("AMQP0-9-1",       "amqp");
        check("amqps",           "amqp/ssl");
        check("amqp/ssl",        "amqp/ssl");
        check("management_ui",   "http");
        check("http/prometheus", "http/prometheus");
        check("gopher",          "gopher");
    }
}
