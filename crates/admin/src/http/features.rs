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

/// A feature that RabbitMQ takes away one day.
struct Deprecated {
    name: &'static str,
    /// What it is here.
    desc: &'static str,
    /// Where RabbitMQ says more, after [`ANNOUNCED`].
    doc: &'static str,
    provided_by: &'static str,
    /// Whether it may be used here.
    is_permitted: bool,
}

/// Where RabbitMQ has announced it.
const ANNOUNCED: &str = "https://blog.rabbitmq.com/posts/2021/08/4.0-deprecation-announcements/";

/// The deprecated features of RabbitMQ 3.13.
#[rustfmt::skip] // a table
const DEPRECATED: [Deprecated; 5] = [
    Deprecated { name: "classic_queue_mirroring", desc: "Policies with ha-mode are kept and have no effect: there are no mirrors",
        doc: "#removal-of-classic-queue-mirroring", provided_by: "rabbit", is_permitted: false },
    Deprecated { name: "global_qos", desc: "basic.qos with global set holds for the channel",
        doc: "#removal-of-global-qos", provided_by: "rabbit", is_permitted: true },
    Deprecated { name: "management_metrics_collection", desc: "The management API has rates and samples",
        doc: "#disable-metrics-delivery-via-the-management-api--ui", provided_by: "rabbitmq_management_agent", is_permitted: true },
    Deprecated { name: "ram_node_type", desc: "There are no nodes without a disk",
        doc: "#removal-of-ram-nodes", provided_by: "rabbit", is_permitted: false },
    Deprecated { name: "transient_nonexcl_queues", desc: "Queues that are neither durable nor exclusive are there until the next start",
        doc: "#removal-of-transient-non-exclusive-queues", provided_by: "rabbit", is_permitted: true },
];

/// `GET /api/deprecated-features`.
pub(super) async fn deprecated(call: Call) -> Result<Answer, Fault> {
    call.login.must_monitor()?;
    listing::rows(call, DEPRECATED.iter().map(deprecated_row).collect()).await
}

fn deprecated_row(it: &Deprecated) -> Value {
    json!({
        "name": it.name,
        "desc": it.desc,
        "doc_url": format!("{ANNOUNCED}{}", it.doc),
        "deprecation_phase": "permitted_by_default",
        "provided_by": it.provided_by,
        "state": if it.is_permitted { "permitted" } else { "denied" },
    })
}

/// `GET /api/deprecated-features/used`: of these, transient queues can be seen, and policies that ask for mirrors.
pub(super) async fn deprecated_used(call: Call) -> Result<Answer, Fault> {
    call.login.must_monitor()?;
    let (ids, asks_for_mirrors): (Vec<QueueId>, bool) = {
        let topology = call.node().topology();
        let ids = topology.vhosts().flat_map(|vhost| topology.queue_ids(vhost.id)).collect();
        let mut policies =
            topology.vhosts().flat_map(|it| it.policies().chain(it.operator_policies()));
        (ids, policies.any(|policy| policy.definition.contains_key("ha-mode")))
    };
    let transient = |topology: &Topology, id| {
        let queue = topology.queue_by_id(id)?;
        (!queue.durable && queue.exclusive_owner.is_none()).then_some(())
    };
    let has_transient = !pages::copied(call.node(), ids, transient).await.is_empty();
    let is_used = |it: &&Deprecated| match it.name {
        "classic_queue_mirroring" => asks_for_mirrors,
        "transient_nonexcl_queues" => has_transient,
        _ => false,
    };
    let rows: Vec<Value> = DEPRECATED.iter().filter(is_used).map(deprecated_row).collect();
    listing::rows(call, rows).await
}
