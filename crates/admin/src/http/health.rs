//! Health checks: each looks at what it is about, and fails with 503 when that is not well.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leveret_amqp::method::{Method, basic, confirm, queue};
use leveret_broker::message::{Reply, ReplyTo, ToMeta, ToSession, ToShard};
use leveret_client::Event;
use leveret_server::alarms::Resource;
use leveret_server::clock::{now, wall};
use leveret_server::cluster::view::{ClusterView, NodeView};
use leveret_server::front::Listener;
use leveret_server::node::Node;
use leveret_topology::{GroupId, QueueId, QueueKind, Topology, Vhost};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::App;
use super::answer::{Answer, Fault};
use super::call::Call;
use super::exchanges::direct;
use super::pattern::Pattern;
use crate::date::plain;
use crate::ops::ask::Asker;
use crate::ops::direct::is;
use crate::ops::pages::{self, Slice};

/// What a healthy part of a node does in far less.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why a node has an alarm of its disk, if that is not for want of room.
const HANGS: &str = "a write has been under way for seconds";

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
    Ok(alarms_of(&call, true, "There are alarms in effect in the cluster"))
}

/// `GET /api/health/checks/local-alarms`: none on this node.
pub(super) async fn local_alarms(call: Call) -> Result<Answer, Fault> {
    Ok(alarms_of(&call, false, "There are alarms in effect on the node"))
}

fn alarms_of(call: &Call, of_all: bool, reason: &str) -> Answer {
    let (alarms, view) = (&call.node().alarms, call.view());
    let is_own_disk = alarms.is_own_disk_short();
    let raised = alarms.raised();
    let rows = alarm_rows(call.node_name(), &raised, is_own_disk, view.as_deref(), of_all);
    let hangs = |name: &str| view.as_ref().is_some_and(|view| view.hangs(name));
    if rows.is_empty() {
        return ok();
    }
    let name = |alarm| match alarm {
        Resource::Memory => "memory",
        Resource::Disk => "disk space",
    };
    let rows = rows.into_iter().map(|(alarm, node)| {
        let mut row = json!({"resource": name(alarm), "node": node});
        if alarm == Resource::Disk && hangs(&node) {
            row["reason"] = json!(HANGS);
        }
        row
    });
    failed(reason, json!({"alarms": rows.collect::<Value>()}))
}

/// The alarms that are `raised` on a node, with the nodes that are short: it has that of the disk for others, too, if these are so
/// many that no majority has room. A disk of its own that hangs is shown though it blocks nobody; with `of_all` those of other nodes
/// are, too.
fn alarm_rows(
    own: &str,
    raised: &[Resource],
    is_own_disk: bool,
    view: Option<&ClusterView>,
    of_all: bool,
) -> Vec<(Resource, String)> {
    let others = |alarm| {
        let nodes =
            view.iter().flat_map(|view| view.nodes.iter().filter(|it| it.name != view.node));
        let is_short = move |it: &&NodeView| {
            let told = it.told.as_ref().filter(|_| it.running);
            told.is_some_and(|told| match alarm {
                Resource::Memory => told.mem_alarm,
                Resource::Disk => told.disk_free_alarm,
            })
        };
        nodes.filter(is_short).map(move |it| (alarm, it.name.clone())).collect::<Vec<_>>()
    };
    let mut rows = Vec::new();
    for alarm in [Resource::Memory, Resource::Disk] {
        let is_raised = raised.contains(&alarm);
        let of_others = others(alarm);
        let is_for_others = is_raised && alarm == Resource::Disk && !is_own_disk;
        let own_hangs = alarm == Resource::Disk && view.is_some_and(|view| view.hangs(own));
        if own_hangs || is_raised && (!is_for_others || of_others.is_empty()) {
            rows.push((alarm, own.to_owned()));
        }
        rows.extend(of_others.into_iter().filter(|_| of_all || is_for_others));
    }
    rows
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
    // RabbitMQ 3.13 knows one protocol, and names it; 4.1 takes several, and has a list.
    let missing = if wanted.len() == 1 { json!(wanted[0]) } else { json!(missing) };
    Ok(failed("No active listener", json!({"missing": missing, "protocols": protocols})))
}

/// `GET /api/health/checks/virtual-hosts`: every shard answers, so every vhost works.
pub(super) async fn virtual_hosts(call: Call) -> Result<Answer, Fault> {
    if silent_shards(call.node()).await.is_empty() {
        return Ok(ok());
    }
    let topology = call.node().topology();
    let names: Vec<String> = topology.vhosts().map(|vhost| vhost.name.to_string()).collect();
    Ok(failed("Some virtual hosts are down", json!({"virtual-hosts": names})))
}

/// Shards that do not answer in time.
async fn silent_shards(node: &Arc<Node>) -> Vec<GroupId> {
    let mut asker = Asker::new(node);
    let mut silent: Vec<GroupId> =
        (0..node.shards.len()).map(|index| node.homes.group_at(index)).collect();
    // None answers before all queues are filled.
    if !node.is_filled() {
        return silent;
    }
    for &group in &silent {
        // The channel is the group's number, to know who answers.
        let reply = ReplyTo { connection: asker.id(), channel: group.get() as u16 };
        asker.tell_shard(group, ToShard::IsWell { reply });
    }
    let all_answers = async {
        while !silent.is_empty() {
            match asker.letter().await {
                Ok(ToSession::Reply { channel, .. }) => {
                    silent.retain(|group| group.get() != u32::from(channel));
                }
                Ok(_) => {}
                Err(_) => break,
            }
        }
    };
    // Late is what the caller finds in `silent`.
    let _ = timeout(PATIENCE, all_answers).await;
    silent
}

/// Whether the owner of the names answers in time, and has stored what was changed before.
async fn names_are_kept(node: &Arc<Node>) -> bool {
    let mut asker = Asker::new(node);
    asker.tell_meta(ToMeta::IsWell { reply: asker.reply_to() });
    matches!(timeout(PATIENCE, asker.answer()).await, Ok(Ok(Reply::Done)))
}

const NOT_INITIALIZED: &str = "Metadata store has not yet reported as initialized";

const NAMES_SILENT: &str = "the metadata store does not answer";

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
    let hours = match &*call.param("unit").to_lowercase() {
        "days" => 24,
        "weeks" => 7 * 24,
        // A twelfth of a year.
        "months" => 730,
        "years" => 365 * 24,
        _ => {
            return Err(Fault::bad(
                "Time unit not recognised. Supported units: days, weeks, months, years.",
            ));
        }
    };
    let by = wall(now()).ms() as i64 / 1000 + within * hours * 3_600;
    let mut expired = Vec::new();
    for tls in call.node().certificates.all() {
        let settings = tls.settings();
        let soon = |ends: Vec<i64>| -> Vec<String> {
            ends.into_iter().filter(|end| *end < by).map(plain).collect()
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

/// A check of a cluster, which one node passes by itself.
fn single_node() -> Answer {
    Answer::Json(json!({"status": "ok", "reason": "single node cluster"}))
}

/// `GET /api/health/checks/node-is-mirror-sync-critical`: queues have no mirrors.
pub(super) async fn mirror_critical(call: Call) -> Result<Answer, Fault> {
    Ok(if call.view().is_some() { ok() } else { single_node() })
}

// RabbitMQ's words.
const CRITICAL: &str =
    "There are quorum queues that would lose their quorum if the target node is shut down";

/// `GET /api/health/checks/node-is-quorum-critical`: the others are a majority without it.
pub(super) async fn quorum_critical(call: Call) -> Result<Answer, Fault> {
    let Some(view) = call.view() else { return Ok(single_node()) };
    if !view.is_critical() {
        return Ok(ok());
    }
    let (running, missing): (Vec<_>, Vec<_>) = view.nodes.iter().partition(|it| it.running);
    let names = |nodes: Vec<&NodeView>| nodes.iter().map(|it| json!(it.name)).collect::<Value>();
    let (running, missing) = (names(running), names(missing));
    Ok(failed(CRITICAL, json!({"running_nodes": running, "missing_nodes": missing})))
}

/// `GET /api/health/checks/quorum-queues-without-elected-leaders/...`: each quorum queue is served. What leads
/// it on one node is its shard.
pub(super) async fn led(call: Call) -> Result<Answer, Fault> {
    let vhost = call.optional("vhost").map(|_| call.visible_vhost()).transpose()?;
    let pattern = call.optional("pattern").unwrap_or_default();
    let pattern = Pattern::of(pattern, false).map_err(Fault::bad)?;
    let silent = silent_shards(call.node()).await;
    if silent.is_empty() {
        return Ok(ok());
    }
    let vhosts: Vec<(Arc<str>, Vec<QueueId>)> = {
        let topology = call.node().topology();
        let of_vhost = |it: &&Vhost| vhost.as_ref().is_none_or(|wanted| **wanted == *it.name);
        let vhosts = topology.vhosts().filter(of_vhost);
        vhosts.map(|it| (Arc::clone(&it.name), topology.queue_ids(it.id))).collect()
    };
    let mut queues = Vec::new();
    for (vhost, ids) in vhosts {
        let quorum = |topology: &Topology, id| {
            let queue = topology.queue_by_id(id)?;
            (queue.kind == QueueKind::Quorum && silent.contains(&queue.home))
                .then(|| Arc::clone(&queue.name))
        };
        let mut names = pages::copied(call.node(), ids, quorum).await;
        names.sort_unstable();
        let mut slice = Slice::begin();
        for name in names {
            if pattern.is_in(&name).map_err(Fault::bad)? {
                queues.push(json!({
                    "readable_name": format!("queue '{name}' in vhost '{vhost}'"),
                    "name": &*name,
                    "virtual_host": &*vhost,
                    "type": "rabbit_quorum_queue",
                }));
            }
            slice.share().await;
        }
    }
    if queues.is_empty() {
        return Ok(ok());
    }
    Ok(failed("Detected quorum queues without an elected leader", json!({"queues": queues})))
}

/// `GET /api/health/checks/metadata-store/initialized`: the names are there before anybody is answered, and what changes
/// them is stored.
pub(super) async fn names(call: Call) -> Result<Answer, Fault> {
    if !names_are_kept(call.node()).await {
        return Ok(failed(NOT_INITIALIZED, json!({"cause": NAMES_SILENT})));
    }
    Ok(ok())
}

/// `GET /api/health/checks/metadata-store/initialized/with-data`: there is a vhost.
pub(super) async fn names_with_data(call: Call) -> Result<Answer, Fault> {
    let has_some = call.node().topology().vhosts().next().is_some();
    if has_some {
        return names(call).await;
    }
    let reason = "Metadata store has not yet been initialized: it reports to have no virtual hosts";
    Ok(failed(reason, json!({})))
}

/// `GET /api/health/checks/reached-target-cluster-size`: one node is all there is to come. For everybody, as the
/// three below and as in RabbitMQ: load balancers ask, and have no login.
pub(super) async fn cluster_size(_: Arc<App>) -> Answer {
    ok()
}

/// `GET /api/health/checks/ready-to-serve-clients`: it is in service, and takes one connection more.
pub(super) async fn ready(app: Arc<App>) -> Answer {
    match all_connections(&app) {
        Some(open) => failed(LIMIT_IS_REACHED, json!({"connections": open})),
        None => app.requests.service.check(NOT_READY, out_of_service(&app)).await,
    }
}

/// `GET /api/health/checks/is-in-service`: AMQP is spoken, every shard answers, and so does who keeps the names.
pub(super) async fn in_service(app: Arc<App>) -> Answer {
    app.requests.service.check(NOT_IN_SERVICE, out_of_service(&app)).await
}

// RabbitMQ's words.
const NOT_READY: &str = "the rabbit node is not currently available to serve";
const NOT_IN_SERVICE: &str = "this rabbit node is not currently available to serve";

/// Looks whether the node is in service. Who asks needs no login: however many do, one look is under way at a time.
#[derive(Debug, Default)]
pub(super) struct Service {
    /// Looks that have begun.
    begun: AtomicU64,
    /// The number of the last look that has ended, and what stood against it.
    last: tokio::sync::Mutex<(u64, Option<&'static str>)>,
}

impl Service {
    /// By a look that begins now or later: one's own, or that of another who asked meanwhile. `reason` is told if it is not.
    async fn check(
        &self,
        reason: &str,
        look: impl Future<Output = Option<&'static str>>,
    ) -> Answer {
        let before = self.begun.load(Ordering::SeqCst);
        let mut last = self.last.lock().await;
        if last.0 <= before {
            let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
            *last = (number, look.await);
        }
        last.1.map_or_else(ok, |cause| failed(reason, json!({"cause": cause})))
    }
}

/// Why the node is not in service.
async fn out_of_service(app: &App) -> Option<&'static str> {
    let listeners = &app.ops.about.listeners;
    let mut speaks = false;
    for listener in listeners.iter().filter(|it| matches!(it.protocol, "amqp" | "amqp/ssl")) {
        speaks |= answers(listener).await;
    }
    if !speaks {
        return Some("no AMQP listener takes connections");
    }
    if !app.ops.node.is_filled() {
        return Some("the queues are being filled");
    }
    if !silent_shards(&app.ops.node).await.is_empty() {
        return Some("a shard does not answer");
    }
    (!names_are_kept(&app.ops.node).await).then_some(NAMES_SILENT)
}

const LIMIT_IS_REACHED: &str = "node connection limit is reached";

/// Open connections, if there are as many as there may be.
fn all_connections(app: &App) -> Option<usize> {
    let limit = app.ops.about.environment.iter().find(|(key, _)| *key == "connection_max");
    let limit = limit.and_then(|(_, value)| value.parse::<usize>().ok())?;
    let open = app.ops.node.connection_count();
    (open >= limit).then_some(open)
}

/// `GET /api/health/checks/below-node-connection-limit`.
pub(super) async fn connection_limit(app: Arc<App>) -> Answer {
    match all_connections(&app) {
        Some(_) => failed(LIMIT_IS_REACHED, json!({})),
        None => ok(),
    }
}

/// `GET /api/healthchecks/node[/{node}]`: all of it at once, for old scripts.
pub(super) async fn node(call: Call) -> Result<Answer, Fault> {
    if call.optional("node").is_some() {
        call.must_name_this_node()?;
    }
    if call.node().alarms.any() {
        return Ok(alarms_of(&call, false, "resource alarm(s) in effect"));
    }
    Ok(call.app.requests.service.check(NOT_IN_SERVICE, out_of_service(&call.app)).await)
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
    use std::cell::Cell;

    use tokio::task::yield_now;

    use leveret_server::cluster::view::NodeTold;

    use super::*;

    /// Those are named that are short of room, whether or not publishers are blocked for it.
    #[test]
    fn alarms_of_other_nodes() {
        let node = |name: &str, disk_free_alarm| NodeView {
            name: name.to_owned(),
            running: true,
            told: Some(NodeTold { disk_free_alarm, ..NodeTold::default() }),
            ..NodeView::default()
        };
        let nodes = vec![node("a", false), node("b", true), node("c", true)];
        let view = ClusterView { node: "a".to_owned(), nodes, ..ClusterView::default() };
        let rows = |raised: &[Resource], is_own_disk, of_all| {
            let rows = alarm_rows("a", raised, is_own_disk, Some(&view), of_all);
            rows.into_iter().map(|(_, node)| node).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(rows(&[], false, false), "", "nobody is blocked here");
        assert_eq!(rows(&[], false, true), "b c");
        assert_eq!(rows(&[Resource::Disk], false, false), "b c", "for their sake");
        assert_eq!(rows(&[Resource::Disk], true, false), "a");
        assert_eq!(rows(&[Resource::Disk], true, true), "a b c");
        assert_eq!(rows(&[Resource::Memory], false, false), "a");
        assert_eq!(alarm_rows("a", &[Resource::Disk], false, None, true).len(), 1);
        let told = NodeTold { disk_free_alarm: true, disk_hangs: true, ..NodeTold::default() };
        let own = NodeView { told: Some(told), ..node("a", true) };
        let nodes = vec![own, node("b", false)];
        let view = ClusterView { node: "a".to_owned(), nodes, ..ClusterView::default() };
        let rows = alarm_rows("a", &[], false, Some(&view), false);
        assert_eq!(rows, [(Resource::Disk, "a".to_owned())], "its own hangs, others go on");
    }

    #[test]
    fn one_look_for_all_who_ask() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(async {
            let (service, looks) = (Service::default(), Cell::new(0));
            let check = || {
                service.check("", async {
                    looks.set(looks.get() + 1);
                    yield_now().await;
                    None
                })
            };
            // The first look has begun when the others ask: what it finds may be from before.
            tokio::join!(check(), check(), check(), check());
            assert_eq!(looks.get(), 2);
            check().await;
            assert_eq!(looks.get(), 3, "nobody else asks");
        });
    }

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
