//! The cluster in numbers, as the node that leads knows it. A node alone has none of them.

use leveret_server::cluster::view::{ClusterView, NodeView};

use super::text::{Kind, Text, label, labels};
use Kind::Gauge;

/// The nodes, and how far the members of each group are.
pub(super) fn write(view: &ClusterView, text: &mut Text) {
    let mut of_nodes = |name: &str, help: &str, of: fn(&NodeView) -> Option<u64>| {
        text.family(name, Gauge, help);
        for node in &view.nodes {
            if let Some(value) = of(node) {
                text.sample(name, &label("node", &node.name), value);
            }
        }
    };
    let help = "1 if the node is linked with this one, or is this one";
    of_nodes("leveret_cluster_node_up", help, |it| Some(u64::from(it.running)));
    let help = "1 for the node that leads the cluster";
    of_nodes("leveret_cluster_node_leads", help, |it| Some(u64::from(it.leads)));
    let help = "Clients whose bytes the node relays to the one that leads";
    of_nodes("leveret_cluster_node_relayed_clients", help, |it| {
        it.told.as_ref().filter(|_| it.running).map(|told| told.relayed)
    });
    let name = "leveret_cluster_member_lag_batches";
    text.family(name, Gauge, "Batches of a group's log that a member lacks, by group and node");
    for group in &view.groups {
        let number = group.group.to_string();
        for (node, lag) in group.lags() {
            text.sample(name, &labels(&[("group", &number), ("node", node)]), lag);
        }
    }
    let name = "leveret_cluster_member_left_out";
    let help = "1 for a member of a group that confirms by all do not wait for, by group and node";
    text.family(name, Gauge, help);
    for group in &view.groups {
        let number = group.group.to_string();
        for (node, _) in group.lags() {
            let is_left_out = group.left_out.iter().any(|it| it.node == node);
            let labels = labels(&[("group", &number), ("node", node)]);
            text.sample(name, &labels, u64::from(is_left_out));
        }
    }
    let name = "leveret_cluster_group_term";
    text.family(name, Gauge, "The term of a group: each election begins one");
    for group in &view.groups {
        text.sample(name, &label("group", &group.group.to_string()), group.term);
    }
    let name = "leveret_cluster_records_repaired_total";
    let help = "Records that were damaged on this node's disk, and were had from another node";
    text.family(name, Kind::Counter, help);
    text.sample(name, "", view.repaired);
    let name = "leveret_cluster_lease_lapses_total";
    let help = "Times at which this node had no lease though it led on: it gave out, took and answered nothing";
    text.family(name, Kind::Counter, help);
    text.sample(name, "", view.lapses.count);
    let name = "leveret_cluster_lease_lapses_seconds_total";
    text.family(name, Kind::Counter, "How long these times were");
    text.sample(name, "", view.lapses.ms as f64 / 1e3);
}
