//! Connections and channels of all nodes together, for the limits of vhosts and users.
//!
//! ```text
//!   a node of sessions  --Uses: its own-->  Gateway: sums  --Uses: those of all others-->  each other node of sessions
//!                                             ^   |
//!                       the broker's own -----/   \----> the broker's own names
//! ```
//!
//! Each node checks limits by what it has and what it was told that others have, so a client waits for nobody. What changes of one user
//! or vhost while a letter waits goes in one letter, and what has no limit goes in none.
//!
//! *Another leader* hears from each node, before that says that it has the names, and tells it of the others before it lets clients in.
//!
//! *The race that is left:* what opens at several nodes before they have heard of each other may pass the limit together, by as many as
//! are opened at other nodes within the two letters that it takes. RabbitMQ's nodes have the same one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leveret_broker::message::{FromLeader, NodeId};
use leveret_topology::{Change, EntityKey, Topology, UsedBy, Uses};

use super::{Gateway, RemoteEnd};
use crate::node::Node;

/// What each node of sessions told, of those who have some and have limits.
pub(super) type Counted = BTreeMap<UsedBy, BTreeMap<NodeId, Uses>>;

/// What is in the letters `Uses`.
pub(in crate::cluster::sessions) type ToldUses = Vec<(UsedBy, Uses)>;

/// Whose limits may be others by these changes of the names.
pub(in crate::cluster::sessions) fn limits_of(changes: &[Change]) -> BTreeSet<UsedBy> {
    let there = changes.iter().filter(|it| it.record.is_some());
    let by = there.filter_map(|it| match &it.key {
        EntityKey::User(name) => Some(UsedBy::User(name.clone())),
        EntityKey::Vhost(id) => Some(UsedBy::Vhost(*id)),
        _ => None,
    });
    by.collect()
}

fn letter(told: &ToldUses) -> FromLeader {
    FromLeader::Uses(serde_json::to_vec(told).unwrap_or_default().into())
}

fn sum<'a>(uses: impl Iterator<Item = &'a Uses>) -> Uses {
    let mut all = Uses::default();
    uses.for_each(|it| all += *it);
    all
}

impl Gateway {
    /// Has the counts of these names, the broker's own, noted.
    pub(crate) fn watch_uses(&self, names: &mut Topology) {
        names.watch_uses(Arc::clone(&self.watch));
    }

    /// Has nodes told what the broker's own sessions open and end, until the task is dropped.
    pub(crate) async fn tell_uses(&self, node: &Node) {
        loop {
            self.noted.notified().await;
            self.others_hear(node, self.watch.take(), None);
        }
    }

    /// All nodes but the one that told it hear of these, of whom have limits.
    fn others_hear(&self, node: &Node, changed: BTreeSet<UsedBy>, from: Option<NodeId>) {
        let limited: Vec<UsedBy> = {
            let names = node.topology();
            changed.into_iter().filter(|by| names.watches(by)).collect()
        };
        if limited.is_empty() {
            return;
        }
        for (_, end) in self.nodes.read().iter().filter(|(id, _)| Some(**id) != from) {
            end.sessions.lock().uses_to_tell.extend(limited.iter().cloned());
            end.woken.notify_one();
        }
    }

    /// A node tells what it has.
    pub(super) fn hear_uses(&self, node: &Node, from: NodeId, told: ToldUses) {
        let mut changed = BTreeSet::new();
        {
            let names = node.topology();
            let mut state = self.state.lock();
            for (by, uses) in told {
                // Nothing is kept of who has no limit, or is not there any more.
                let is_kept = uses != Uses::default() && names.watches(&by);
                let of = state.uses.entry(by.clone()).or_default();
                match is_kept {
                    true => _ = of.insert(from, uses),
                    false => _ = of.remove(&from),
                }
                names.set_uses_elsewhere(&by, sum(of.values()));
                if of.is_empty() {
                    state.uses.remove(&by);
                }
                changed.insert(by);
            }
        }
        self.others_hear(node, changed, Some(from));
    }

    /// A node is gone, and all that it had.
    pub(super) fn forget_uses(&self, node: &Node, gone: NodeId) {
        let had: ToldUses = {
            let state = self.state.lock();
            let of_it = state.uses.iter().filter(|(_, of)| of.contains_key(&gone));
            of_it.map(|(by, _)| (by.clone(), Uses::default())).collect()
        };
        self.hear_uses(node, gone, had);
    }

    /// What a node is to hear: what all others have. None: nothing has changed for it.
    pub(super) fn uses_elsewhere(&self, node: &Node, end: &RemoteEnd) -> Option<FromLeader> {
        let (id, to_tell) = {
            let mut sessions = end.sessions.lock();
            let id = sessions.remote.as_ref().filter(|it| it.is_heard())?.node();
            if sessions.uses_to_tell.is_empty() {
                return None;
            }
            (id, std::mem::take(&mut sessions.uses_to_tell))
        };
        let names = node.topology();
        let told = self.elsewhere(&names, id, to_tell);
        drop(names);
        Some(letter(&told))
    }

    /// What a node is to hear of all who have limits, before it is told that the leader hears. What changes meanwhile it is told behind
    /// that.
    pub(super) fn all_uses_elsewhere(&self, node: &Node, id: NodeId) -> Option<FromLeader> {
        let names = node.topology();
        let told = self.elsewhere(&names, id, names.limited());
        drop(names);
        (!told.is_empty()).then(|| letter(&told))
    }

    /// What all but one node have of these.
    fn elsewhere(
        &self,
        names: &Topology,
        id: NodeId,
        of: impl IntoIterator<Item = UsedBy>,
    ) -> ToldUses {
        let state = self.state.lock();
        let elsewhere = |by: UsedBy| {
            let others = state.uses.get(&by).into_iter().flatten();
            let mut all = sum(others.filter(|(of, _)| **of != id).map(|(_, uses)| uses));
            all += names.uses(&by);
            (by, all)
        };
        of.into_iter().map(elsewhere).collect()
    }
}
