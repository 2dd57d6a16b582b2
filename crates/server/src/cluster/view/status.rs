//! The view, of what the cluster knows.

use leveret_cluster::{ClusterStatus, GroupRow, NodeRow, Standing as Known};
use leveret_config::plugins;
use leveret_link::letters::{GroupStatus, NodeStatus};

use super::{
    ClusterView, GroupView, Lapses, LeftOutView, MemberTold, NodeTold, NodeView, Standing,
};

impl ClusterView {
    /// What is known now, behind the view before.
    pub(crate) fn of(status: &ClusterStatus, lapses: Lapses, before: &Self) -> Self {
        let named = |id| status.nodes.iter().find(|it| it.raft_id == Some(id));
        let own = || status.nodes.iter().find(|it| it.name == status.own);
        let cluster = match &status.standing {
            Known::Joining(cluster) => Some(*cluster),
            _ => status.cluster,
        };
        let (standing, leader) = match &status.standing {
            Known::Forming { .. } => (Standing::Forming, None),
            Known::Joining(_) => (Standing::Joining, None),
            Known::Waits => (Standing::Waits, None),
            Known::Follows(id) => (Standing::Follows, named(*id)),
            Known::Leads => (Standing::Leads, own()),
        };
        let (led_last, led_last_in) = match before.standing {
            Standing::Follows => {
                let first = before.groups.first().filter(|it| it.leader == before.leader);
                (before.leader_id, first.map(|it| it.term))
            }
            _ => (before.led_last, before.led_last_in),
        };
        let leads = |node: &NodeRow| leader.is_some_and(|it| it.name == node.name);
        Self {
            cluster_id: cluster.map(|it| it.to_string()),
            node: status.own.clone(),
            standing,
            leader: leader.map(|it| it.name.clone()),
            leader_id: leader.and_then(|it| it.raft_id).map(|id| id.0),
            led_last,
            led_last_in,
            nodes: status.nodes.iter().map(|it| node(it, leads(it))).collect(),
            groups: status.groups.iter().map(group).collect(),
            repaired: status.repaired,
            lapses,
            why: status.why.clone(),
        }
    }
}

fn node(row: &NodeRow, leads: bool) -> NodeView {
    NodeView {
        name: row.name.clone(),
        raft_id: row.raft_id.map(|id| id.0),
        linked: row.is_linked,
        running: row.is_running,
        encrypted: row.encrypted,
        joins: row.joins,
        leads,
        why_not: row.why_not.clone(),
        clock_ahead_s: row.clock_ahead_ms.map(|ms| ms / 1_000),
        told: row.status.as_ref().map(told),
    }
}

fn told(status: &NodeStatus) -> NodeTold {
    let numbers = &status.numbers;
    NodeTold {
        version: status.version.clone(),
        uptime_ms: numbers.uptime_ms,
        os_pid: numbers.os_pid,
        mem_used: numbers.mem_used,
        mem_limit: numbers.mem_limit,
        mem_alarm: numbers.mem_alarm > 0,
        disk_free: numbers.disk_free,
        disk_free_limit: numbers.disk_free_limit,
        disk_free_alarm: numbers.disk_free_alarm > 0,
        disk_hangs: numbers.disk_hangs(),
        fd_used: numbers.fd_used,
        fd_total: numbers.fd_total,
        sockets_used: numbers.sockets_used,
        processors: numbers.processors,
        plugins: (numbers.plugins > 0).then(|| plugins::of_bits(numbers.plugins)),
        relayed: numbers.relayed,
        refill_here: status.groups.iter().map(|it| it.refill_here).sum(),
        refill_of: status.groups.iter().map(|it| it.refill_of).sum(),
        members: status.groups.iter().map(member).collect(),
    }
}

fn member(it: &GroupStatus) -> MemberTold {
    MemberTold {
        group: it.group,
        term: it.term,
        last: it.last,
        stored: it.stored,
        agreed: it.agreed,
    }
}

fn group(row: &GroupRow) -> GroupView {
    GroupView {
        group: row.group,
        term: row.term,
        leader: row.leader.clone(),
        last: row.last,
        agreed: row.agreed,
        matched: row.matched.clone(),
        left_out: row
            .left_out
            .iter()
            .map(|(node, why)| LeftOutView { node: node.clone(), reason: why.why() })
            .collect(),
    }
}
