//! Nodes: this one.

use serde_json::{Value, json};

use super::answer::{Answer, Fault};
use super::call::Call;
use super::{features, listing, overview};
use crate::ops::system;

/// `GET /api/nodes`.
pub(super) async fn list(call: Call) -> Result<Answer, Fault> {
    call.login.must_monitor()?;
    let rows = vec![row(&call)];
    listing::rows(&call, rows)
}

/// `GET /api/nodes/{node}`.
pub(super) async fn get(call: Call) -> Result<Answer, Fault> {
    call.login.must_monitor()?;
    call.must_name_this_node()?;
    let mut row = row(&call);
    if call.is_asked("memory") {
        row["memory"] = memory_breakdown(&call);
    }
    Ok(listing::one(&call, row))
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
        "being_drained": false,
        "uptime": about.started.elapsed().as_millis() as u64,
        "os_pid": std::process::id().to_string(),
        "processors": cores,
        "rates_mode": "basic",
        "net_ticktime": 60,
        "metrics_gc_queue_length": {},
        "enabled_plugins": features::PLUGINS,
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
        "mem_calculation_strategy": "rss",
        "disk_free": system::free_bytes(&about.data_dir),
        "disk_free_limit": node.alarms.disk_limit(),
        "disk_free_alarm": is_raised("disk"),
        "fd_used": files,
        "fd_total": files_max,
        "sockets_used": node.connections().len(),
        "sockets_total": files_max,
        "proc_used": about.threads,
        "proc_total": 1_048_576,
        "message_bytes": node.held_bytes(),
    });
    for name in ZEROS {
        row[name] = json!(0);
    }
    row
}

/// `GET /api/nodes/{node}/memory`.
pub(super) async fn memory(call: Call) -> Result<Answer, Fault> {
    call.login.must_monitor()?;
    call.must_name_this_node()?;
    Ok(Answer::Json(json!({"memory": memory_breakdown(&call)})))
}

/// `GET /api/nodes/{node}/memory/relative`: in percent.
pub(super) async fn memory_relative(call: Call) -> Result<Answer, Fault> {
    call.login.must_monitor()?;
    call.must_name_this_node()?;
    let mut row = memory_breakdown(&call);
    let total = system::resident_bytes().max(1);
    if let Value::Object(parts) = &mut row {
        for (_, part) in parts.iter_mut() {
            if let Some(bytes) = part.as_u64() {
                *part = json!(bytes * 100 / total);
            }
        }
    }
    row["total"] = json!(100);
    Ok(Answer::Json(json!({"memory": row})))
}

/// `GET /api/nodes/{node}/memory/ets` and its like: there are no such tables here.
pub(super) async fn memory_ets(call: Call) -> Result<Answer, Fault> {
    call.login.must_monitor()?;
    call.must_name_this_node()?;
    Ok(Answer::Json(json!({"ets_tables": "no_tables"})))
}

/// What the memory is used for, in RabbitMQ's words. Messages are `binary`, all else that the process
/// holds is `other_system`: nothing else is counted.
fn memory_breakdown(call: &Call) -> Value {
    let resident = system::resident_bytes();
    let messages = call.node().held_bytes().min(resident);
    let mut row = json!({
        "binary": messages,
        "other_system": resident - messages,
        "strategy": "rss",
        "total": {"rss": resident, "allocated": resident, "erlang": 0},
    });
    let names = "connection_readers connection_writers connection_channels connection_other \
                 queue_procs queue_slave_procs quorum_queue_procs quorum_queue_dlx_procs \
                 stream_queue_procs stream_queue_replica_reader_procs \
                 stream_queue_coordinator_procs plugins metadata_store other_proc metrics mgmt_db \
                 mnesia quorum_ets metadata_store_ets other_ets msg_index code atom \
                 allocated_unused reserved_unallocated";
    for name in names.split_whitespace() {
        row[name] = json!(0);
    }
    row
}
