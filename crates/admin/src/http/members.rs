//! The nodes of a cluster, as the one that is asked knows them. It asks nobody.

use leveret_server::alarms::{Alarms, Resource};
use leveret_server::cluster::view::{ClusterView, NodeTold, NodeView};
use leveret_server::cluster::{ChangeError, ForgetError};
use leveret_server::front::About;
use serde_json::{Map, Value, json};

use super::answer::{Answer, Fault};
use super::call::Call;
use super::overview;

/// `GET /api/leveret/cluster`: the cluster.
pub(super) async fn get(call: Call) -> Result<Answer, Fault> {
    call.login.must_monitor()?;
    let view = call.view();
    let mut row = cluster_of(&call.app.ops.about, view.as_deref());
    row["cluster_name"] = json!(super::cluster::name(&call));
    if view.is_some() {
        put_own_alarm(&mut row, call.node_name(), &call.node().alarms);
    }
    Ok(Answer::Json(row))
}

/// What a node that leads tells of its memory is what its process has; it blocks publishers by its own account of what it holds.
fn put_own_alarm(cluster: &mut Value, own: &str, alarms: &Alarms) {
    let rows = cluster["nodes"].as_array_mut().into_iter().flatten();
    for row in rows.filter(|row| row["name"] == own && row["figures"].is_object()) {
        row["figures"]["mem_alarm"] = json!(alarms.raised().contains(&Resource::Memory));
        row["figures"]["mem_limit"] = json!(alarms.memory_limit());
    }
}

/// `DELETE /api/leveret/cluster/nodes/{node}`: has the cluster forget a node that has stopped.
pub(super) async fn forget(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let Some(members) = &call.app.ops.members else {
        return Err(Fault::bad("this node stands alone: it was told of no others"));
    };
    match members.forget(call.param("node")).await {
        Ok(()) => Ok(Answer::Done),
        Err(ChangeError::Refused(why @ ForgetError::NoMember)) => {
            Err(Fault::missing(why.to_string()))
        }
        Err(ChangeError::Refused(why)) => Err(Fault::precondition(why.to_string())),
        Err(why) => Err(Fault::unavailable(why.to_string())),
    }
}

/// `POST /api/leveret/cluster/hand-over`: has another node lead in place of this one.
pub(super) async fn hand_over(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let Some(members) = &call.app.ops.members else {
        return Err(Fault::bad("this node stands alone: it was told of no others"));
    };
    members.hand_over().map_err(|why| Fault::unavailable(why.to_string()))?;
    Ok(Answer::Done)
}

/// The cluster as a node knows it; a node alone is all there is. Its name is known to who has the names.
pub(crate) fn cluster_of(about: &About, view: Option<&ClusterView>) -> Value {
    let Some(view) = view else {
        let own = NodeView {
            name: about.node_name.clone(),
            running: true,
            leads: true,
            ..NodeView::default()
        };
        return json!({
            "cluster_id": null, "cluster_name": null, "node": about.node_name, "standing": "alone",
            "leader": about.node_name, "reason": null, "nodes": [row(&own)], "groups": [],
        });
    };
    json!({
        "cluster_id": view.cluster_id,
        "cluster_name": null,
        "node": view.node,
        "standing": view.standing,
        "leader": view.leader,
        "reason": view.why_not_served(),
        "nodes": view.nodes.iter().map(row).collect::<Value>(),
        "groups": view.groups,
        "repaired": view.repaired,
        "lapses": view.lapses,
    })
}

fn row(node: &NodeView) -> Value {
    json!({
        "name": node.name,
        "running": node.running,
        "encrypted": node.encrypted,
        "leads": node.leads,
        "joins": node.joins,
        "why_not": node.why_not,
        "clock_ahead_s": node.clock_ahead_s,
        "version": node.told.as_ref().map(|told| &told.version),
        "figures": node.told,
    })
}

/// Another node, as the list of nodes has it. Of one that is not there nothing is told that may be over.
pub(super) fn node_row(about: &About, node: &NodeView) -> Value {
    let mut row = json!({
        "name": node.name,
        "type": "disc",
        "running": node.running,
        "leads": node.leads,
        "partitions": [],
    });
    if let Some(why) = &node.why_not {
        row["reason"] = json!(why);
    }
    if let (true, Some(told), Value::Object(row)) = (node.running, &node.told, &mut row) {
        put_told(row, about, told);
    }
    row
}

/// What is true of that node: what it told, and what is so in each of its version. Columns of a node's own that others do not
/// hear of, its churn and its configuration among them, are left out, as RabbitMQ leaves out what it cannot ask.
fn put_told(row: &mut Map<String, Value>, about: &About, told: &NodeTold) {
    let rest = json!({
        // Nodes do not tell each other whether they are.
        "being_drained": false,
        "uptime": told.uptime_ms,
        "os_pid": told.os_pid.to_string(),
        "processors": told.processors,
        "rates_mode": "basic",
        "net_ticktime": 60,
        "rabbitmq_version": leveret_server::COMPATIBLE_VERSION,
        "applications": [{
            "name": "rabbit",
            "description": about.product_name,
            "version": told.version,
        }],
        "cluster_links": [],
        "mem_used": told.mem_used,
        "mem_limit": told.mem_limit,
        "mem_alarm": told.mem_alarm,
        "disk_free": told.disk_free,
        "disk_free_limit": told.disk_free_limit,
        "disk_free_alarm": told.disk_free_alarm,
        "disk_hangs": told.disk_hangs,
        "fd_used": told.fd_used,
        "fd_total": told.fd_total,
        "sockets_used": told.sockets_used,
        "sockets_total": told.fd_total,
        "proc_used": told.processors,
        "proc_total": 1_048_576,
        "run_queue": 0,
        "relayed": told.relayed,
    });
    let plugins = told.plugins.as_ref().map(|plugins| ("enabled_plugins", json!(plugins)));
    let is_of_this_version = told.version == env!("CARGO_PKG_VERSION");
    let types = is_of_this_version.then(|| ("exchange_types", overview::exchange_types()));
    row.extend(plugins.into_iter().chain(types).map(|(key, value)| (key.to_owned(), value)));
    if let Value::Object(told) = rest {
        row.extend(told);
    }
}
