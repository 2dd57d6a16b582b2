//! Feature flags, deprecated features, plugins: what tools ask before they use something.
//!
//! Everything that RabbitMQ guards by a flag is there or never will be; no flag can be turned.

use leveret_topology::{QueueId, Topology};
use serde_json::{Value, json};

use super::answer::{Answer, Fault};
use super::call::Call;
use super::listing;
use crate::ops::pages;

/// Names of RabbitMQ's stable flags up to 4.3.
const FLAGS: [&str; 33] = [
    "classic_mirrored_queue_version",
    "classic_queue_type_delivery_support",
    "detailed_queues_endpoint",
    "direct_exchange_routing_v2",
    "drop_unroutable_metric",
    "empty_basic_get_metric",
    "feature_flags_v2",
    "implicit_default_bindings",
    "khepri_db",
    "listener_records_in_ets",
    "maintenance_mode_status",
    "message_containers",
    "message_containers_deaths_v2",
    "quorum_queue",
    "quorum_queue_non_voters",
    "rabbit_exchange_type_local_random",
    "rabbitmq_4.0.0",
    "rabbitmq_4.1.0",
    "rabbitmq_4.2.0",
    "rabbitmq_4.3.0",
    "restart_streams",
    "stream_filtering",
    "stream_queue",
    "stream_sac_coordinator_unblock_group",
    "stream_single_active_consumer",
    "stream_update_config_command",
    "tie_binding_to_dest_with_keep_while_cond",
    "topic_binding_projection_v4",
    "topic_binding_projection_v5",
    "track_qq_members_uids",
    "tracking_records_in_ets",
    "user_limits",
    "virtual_host_metadata",
];

/// `GET /api/feature-flags`.
pub(super) async fn flags(call: Call) -> Result<Answer, Fault> {
    call.login.must_monitor()?;
    let rows = FLAGS.iter().map(|name| {
        json!({
            "name": name,
            "desc": "Nothing depends on it here",
            "doc_url": "",
            "state": "enabled",
            "stability": "required",
            "provided_by": "rabbit",
        })
    });
    listing::rows(call, rows.collect()).await
}

/// `PUT /api/feature-flags/{name}/enable`.
pub(super) async fn enable(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let name = call.param("name");
    if FLAGS.contains(&name) || name == "all" {
        return Ok(Answer::Done);
    }
    Err(Fault::bad(format!("there is no feature flag '{name}'")))
}

/// Features that RabbitMQ takes away one day; all may be used here.
const DEPRECATED: [(&str, &str); 5] = [
    ("classic_queue_mirroring", "Classic mirrored queues: policies with ha-mode have no effect"),
    ("global_qos", "basic.qos with global set"),
    ("management_metrics_collection", "Statistics of the management API"),
    ("ram_node_type", "Nodes without a disk"),
    ("transient_nonexcl_queues", "Transient queues that are not exclusive"),
];

/// `GET /api/deprecated-features`.
pub(super) async fn deprecated(call: Call) -> Result<Answer, Fault> {
    call.login.must_monitor()?;
    listing::rows(call, DEPRECATED.iter().map(deprecated_row).collect()).await
}

fn deprecated_row((name, desc): &(&str, &str)) -> Value {
    json!({
        "name": name,
        "desc": desc,
        "doc_url": "",
        "deprecation_phase": "permitted_by_default",
        "provided_by": "rabbit",
        "state": "permitted",
    })
}

/// `GET /api/deprecated-features/used`: of these, transient queues can be seen.
pub(super) async fn deprecated_used(call: Call) -> Result<Answer, Fault> {
    call.login.must_monitor()?;
    let ids: Vec<QueueId> = {
        let topology = call.node().topology();
        topology.vhosts().flat_map(|vhost| topology.queue_ids(vhost.id)).collect()
    };
    let transient = |topology: &Topology, id| {
        let queue = topology.queue_by_id(id)?;
        (!queue.durable && queue.exclusive_owner.is_none()).then_some(())
    };
    let is_used = !pages::copied(call.node(), ids, transient).await.is_empty();
    let rows: Vec<Value> = DEPRECATED
        .iter()
        .filter(|(name, _)| is_used && *name == "transient_nonexcl_queues")
        .map(deprecated_row)
        .collect();
    listing::rows(call, rows).await
}
