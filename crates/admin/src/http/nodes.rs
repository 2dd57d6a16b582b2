//! Nodes: this one, and the others of its cluster.

use std::time::Duration;

use leveret_server::alarms::Resource;
use leveret_server::cluster::view::{ClusterView, NodeView};
use leveret_server::descriptors;
use serde_json::{Value, json};

use super::answer::{Answer, Fault};
use super::call::Call;
use super::{listing, members, overview};
use crate::ops::system;

/// Has statistics that are not older than a second.
async fn refresh(call: &Call) {
    call.app.ops.stats.refresh(Duration::from_secs(1)).await;
}

/// `GET /api/nodes`.
pub(super) async fn list(call: Call) -> Result<Answer, Fault> {
    call.login.must_monitor()?;
    refresh(&call).await;
    let rows = match call.view() {
        None => vec![row(&call)],
        Some(view) => view.nodes.iter().map(|node| member(&call, &view, node)).collect(),
    };
    listing::rows(call, rows).await
}

/// A node of the cluster: this one by all that is known of it, another one by what it told last.
fn member(call: &Call, view: &ClusterView, node: &NodeView) -> Value {
    if node.name != view.node {
        return members::node_row(&call.app.ops.about, node);
    }
    let mut row = row(call);
    row["leads"] = json!(node.leads);
    row
}

/// `GET /api/nodes/{node}`.
pub(super) async fn get(call: Call) -> Result<Answer, Fault> {
    call.login.must_monitor()?;
    let view = call.view();
    let node = view.as_ref().and_then(|view| Some((view, view.named(call.param("node"))?)));
    if let Some((view, node)) = node {
        if node.name != view.node {
            let row = members::node_row(&call.app.ops.about, node);
            return Ok(listing::one(&call, row));
        }
    } else {
        call.must_name_this_node()?;
    }
    refresh(&call).await;
    let mut row = match node {
        Some((view, node)) => member(&call, view, node),
        None => row(&call),
    };
    if call.is_asked("memory") {
        row["memory"] = call.stats().overview.node.memory.json();
    }
    Ok(listing::one(&call, row))
}

/// Whether the path names another node of the cluster, whose memory this one does not know: RabbitMQ's answer, too.
fn is_another_member(call: &Call) -> bool {
    let name = call.param("node");
    call.view().is_some_and(|view| view.node != name && view.named(name).is_some())
}

/// Numbers that RabbitMQ has and that have no counterpart here, or none that is counted.
const ZEROS: [&str; 24] = [
    "context_switches",
    "gc_bytes_reclaimed",
    "gc_num",
    "io_file_handle_open_attempt_avg_time",
    "io_file_handle_open_attempt_count",
    "io_read_avg_time",
    "io_read_bytes",
    "io_read_count",
    "io_reopen_count",
    "io_seek_avg_time",
    "io_seek_count",
    "io_sync_avg_time",
    "io_sync_count",
    "io_write_avg_time",
    "io_write_bytes",
    "io_write_count",
    "mnesia_disk_tx_count",
    "mnesia_ram_tx_count",
    "msg_store_read_count",
    "msg_store_write_count",
    "queue_index_journal_write_count",
    "queue_index_read_count",
    "queue_index_write_count",
    "run_queue",
];

fn row(call: &Call) -> Value {
    let ops = &call.app.ops;
    let (node, about) = (&ops.node, &ops.about);
    let (files, files_max) = system::open_files();
    let raised = node.alarms.raised();
    let is_raised = |name: &str| raised.iter().any(|alarm| alarm.name() == name);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mechanisms = node
        .settings
        .mechanisms
        .iter()
        .map(|mechanism| json!({"name": mechanism.name(), "description": "", "enabled": true}));
    let mut row = json!({
        "name": about.node_name,
        "type": "disc",
        "running": true,
        "being_drained": node.is_suspended(),
        "uptime": about.started.elapsed().as_millis() as u64,
        "os_pid": std::process::id().to_string(),
        "processors": cores,
        "rates_mode": "basic",
        "net_ticktime": 60,
        "rabbitmq_version": leveret_server::COMPATIBLE_VERSION,
        "metrics_gc_queue_length": {
            "connection_closed": 0, "channel_closed": 0, "consumer_deleted": 0, "exchange_deleted": 0,
            "queue_deleted": 0, "vhost_deleted": 0, "node_node_deleted": 0, "channel_consumer_deleted": 0,
        },
        "enabled_plugins": about.plugins,
        "applications": [{
            "name": "rabbit",
            "description": about.product_name,
            "version": about.product_version,
        }],
        "exchange_types": overview::exchange_types(),
        "auth_mechanisms": mechanisms.collect::<Value>(),
        "contexts": overview::contexts(call),
        "config_files": about.config_files,
        "log_files": about.log_files,
        "db_dir": about.data_dir.display().to_string(),
        "partitions": [],
        "cluster_links": [],
        "ra_open_file_metrics": {"ra_log_wal": 0, "ra_log_segment_writer": 0},
        "mem_used": system::resident_bytes(),
        "mem_limit": node.alarms.memory_limit(),
        "mem_alarm": is_raised("memory"),
        "mem_alarm_count": node.alarms.raised_count(Resource::Memory),
        "mem_calculation_strategy": "rss",
        "disk_free": system::free_bytes(&about.data_dir),
        "disk_free_limit": node.alarms.disk_limit(),
        "disk_free_alarm": node.alarms.is_own_disk_short(),
        "disk_free_alarm_count": node.alarms.raised_count(Resource::Disk),
        "fd_used": files,
        "fd_total": files_max,
        "fd_refused": descriptors::refused(),
        "sockets_used": node.connection_count(),
        "sockets_total": files_max,
        "proc_used": about.threads,
        "proc_total": 1_048_576,
        "message_bytes": node.held_bytes(),
    });
    for name in ZEROS {
        row[name] = json!(0);
    }
    let stats = call.stats();
    if let Value::Object(row) = &mut row {
        stats.overview.put_churn(row, &call.ranges);
        if stats.at.is_some() {
            stats.overview.put_node(row, &call.ranges);
        }
    }
    drop(stats);
    // As they are now, not as they were when the node was sampled.
    row["mem_alarm"] = json!(is_raised("memory"));
    // For others' disks publishers may be blocked, too.
    row["disk_free_alarm"] = json!(node.alarms.is_own_disk_short());
    if let Some(view) = call.view() {
        let hangs = view.hangs(&about.node_name);
        row["disk_hangs"] = json!(hangs);
        row["disk_free_alarm"] = json!(hangs || node.alarms.is_own_disk_short());
    }
    row
}

/// `GET /api/nodes/{node}/memory`.
pub(super) async fn memory(call: Call) -> Result<Answer, Fault> {
    call.login.must_monitor()?;
    if is_another_member(&call) {
        return Ok(Answer::Json(json!({"memory": "not_available"})));
    }
    call.must_name_this_node()?;
    refresh(&call).await;
    Ok(Answer::Json(json!({"memory": call.stats().overview.node.memory.json()})))
}

/// `GET /api/nodes/{node}/memory/relative`: in percent.
pub(super) async fn memory_relative(call: Call) -> Result<Answer, Fault> {
    call.login.must_monitor()?;
    if is_another_member(&call) {
        return Ok(Answer::Json(json!({"memory": "not_available"})));
    }
    call.must_name_this_node()?;
    refresh(&call).await;
    let row = call.stats().overview.node.memory.relative_json();
    Ok(Answer::Json(json!({"memory": row})))
}

/// `GET /api/nodes/{node}/memory/ets` and its like: there are no such tables here.
pub(super) async fn memory_ets(call: Call) -> Result<Answer, Fault> {
    call.login.must_monitor()?;
    call.must_name_this_node()?;
    Ok(Answer::Json(json!({"ets_tables": "no_tables"})))
}
