//! A policy is set or cleared, and everything in its vhost is looked at again: some at a time.

use std::sync::Arc;

use crate::error::PolicyError;
use crate::id::{ExchangeId, QueueId, VhostId};
use crate::journal::EntityKey;
use crate::parameters::missing;
use crate::policy::{self, Policies, Policy, PolicySpec};
use crate::topology::Topology;

/// A policy that was set or cleared, and the queues and exchanges that were not looked at since.
///
/// Each gets the policies that match it best at that moment. So however many changes are under way at once, when all are
/// done everything has the policies that hold then: whatever changes later looks at all again. A restart matches everything
/// anew.
#[derive(Debug)]
pub struct PolicyChange {
    vhost: VhostId,
    old: Option<Arc<Policy>>,
    new: Option<Arc<Policy>>,
    operator: bool,
    /// As they were when it began. Those that came since have it already.
    queues: std::vec::IntoIter<QueueId>,
    exchanges: std::vec::IntoIter<ExchangeId>,
    /// Queues that have another policy now, since this was last taken.
    changed: Vec<QueueId>,
}

/// Policies that a name is matched with at the cost of one more.
const MATCHED_AT_ONCE: usize = 4;

impl Topology {
    /// Sets a policy or an operator policy: who is declared from now on has it, and the others get it by
    /// [`PolicyChange::advance`].
    pub fn start_set_policy(
        &mut self,
        vhost: &str,
        spec: PolicySpec<'_>,
        operator: bool,
    ) -> Result<PolicyChange, PolicyError> {
        let id = self.vhost_of(vhost)?;
        let new = Arc::new(Policy::new(spec, operator)?);
        let name = new.name.clone();
        let old = self.vhost_mut(id).and_then(|vhost| {
            let all = if operator { &mut vhost.operator_policies } else { &mut vhost.policies };
            all.insert(name.clone(), Arc::clone(&new))
        });
        self.weigh_setting(old.as_deref(), Some(&*new));
        self.journal.note(key(id, name, operator));
        Ok(self.policy_change(id, old, Some(new), operator))
    }

    /// Clears a policy or an operator policy, as [`start_set_policy`](Self::start_set_policy) sets one.
    pub fn start_clear_policy(
        &mut self,
        vhost: &str,
        name: &str,
        operator: bool,
    ) -> Result<PolicyChange, PolicyError> {
        let id = self.vhost_of(vhost)?;
        let cleared = self.vhost_mut(id).and_then(|vhost| {
            let all = if operator { &mut vhost.operator_policies } else { &mut vhost.policies };
            all.remove(name)
        });
        let what = if operator { "operator policy" } else { "policy" };
        let old = cleared.ok_or_else(|| missing(what, name, vhost))?;
        self.weigh_setting(Some(&*old), None);
        self.journal.note(key(id, name.into(), operator));
        Ok(self.policy_change(id, Some(old), None, operator))
    }

    fn policy_change(
        &self,
        vhost: VhostId,
        old: Option<Arc<Policy>>,
        new: Option<Arc<Policy>>,
        operator: bool,
    ) -> PolicyChange {
        let place = self.vhost_by_id(vhost);
        let mut queues: Vec<_> =
            place.into_iter().flat_map(|it| it.queues.values().copied()).collect();
        queues.sort_unstable();
        let exchanges: Vec<_> =
            place.into_iter().flat_map(|it| it.exchanges.values().copied()).collect();
        let (queues, exchanges) = (queues.into_iter(), exchanges.into_iter());
        PolicyChange { vhost, old, new, operator, queues, exchanges, changed: Vec::new() }
    }
}

fn key(vhost: VhostId, name: Box<str>, operator: bool) -> EntityKey {
    if operator { EntityKey::OperatorPolicy(vhost, name) } else { EntityKey::Policy(vhost, name) }
}

impl PolicyChange {
    /// How many queues and exchanges are still to be looked at.
    pub fn left(&self) -> usize {
        self.queues.len() + self.exchanges.len()
    }

    /// Looks at about `allowed` of them. Most are not concerned, which is cheaper to find out than to match them with every
    /// policy. Gives how much it was.
    pub fn advance(&mut self, topology: &mut Topology, allowed: u64) -> u64 {
        let mut used = 0;
        let before = self.changed.len();
        while used < allowed {
            if let Some(id) = self.queues.next() {
                used += 1 + self.look_at_queue(id, topology);
            } else if let Some(id) = self.exchanges.next() {
                used += 1 + self.look_at_exchange(id, topology);
            } else {
                break;
            }
        }
        topology.tell_policy_of_queues(self.new.as_deref(), &self.changed[before..]);
        used
    }

    fn look_at_queue(&mut self, id: QueueId, topology: &mut Topology) -> u64 {
        let Some(queue) = topology.queues.get_mut(&id) else { return 0 };
        let Some(vhost) = topology.vhosts.get(&self.vhost) else { return 0 };
        let loses = self.old.as_ref().is_some_and(|old| queue.policies.contain(old));
        let gains = |new: &Arc<Policy>| new.holds_for_queue(&queue.name, queue.kind);
        if !loses && !self.new.as_ref().is_some_and(gains) {
            return 0;
        }
        let (all, operators) = (&vhost.policies, &vhost.operator_policies);
        let policies = Policies {
            user: policy::for_queue(all.values(), &queue.name, queue.kind),
            operator: policy::for_queue(operators.values(), &queue.name, queue.kind),
        };
        if !policies.is(&queue.policies) {
            queue.policies = policies;
            self.changed.push(queue.id);
        }
        ((all.len() + operators.len()) / MATCHED_AT_ONCE) as u64
    }

    fn look_at_exchange(&mut self, id: ExchangeId, topology: &mut Topology) -> u64 {
        let Some(exchange) = topology.exchanges.get_mut(&id) else { return 0 };
        let Some(vhost) = topology.vhosts.get(&self.vhost) else { return 0 };
        let loses = self.old.as_ref().is_some_and(|old| exchange.policies.contain(old));
        if !loses && !self.new.as_ref().is_some_and(|new| new.holds_for_exchange(&exchange.name)) {
            return 0;
        }
        let (all, operators) = (&vhost.policies, &vhost.operator_policies);
        exchange.policies = Policies {
            user: policy::for_exchange(all.values(), exchange),
            operator: policy::for_exchange(operators.values(), exchange),
        };
        let cost = ((all.len() + operators.len()) / MATCHED_AT_ONCE) as u64;
        if exchange.refresh_alternate() {
            topology.generation += 1;
        }
        cost
    }

    /// The queues that have another policy since this was last asked.
    pub fn take_changed(&mut self) -> Vec<QueueId> {
        std::mem::take(&mut self.changed)
    }

    /// All were looked at: it is told.
    pub fn end(self, topology: &mut Topology) {
        match (&self.new, &self.old) {
            (Some(new), _) => topology.tell_policy_set(self.vhost, new),
            (None, Some(old)) => {
                let event =
                    if self.operator { "operator.policy.cleared" } else { "policy.cleared" };
                topology.tell_policy_cleared(event, self.vhost, &old.name);
            }
            (None, None) => {}
        }
    }

    pub(crate) fn run(mut self, topology: &mut Topology) -> Vec<QueueId> {
        self.advance(topology, u64::MAX);
        let changed = self.take_changed();
        self.end(topology);
        changed
    }
}
