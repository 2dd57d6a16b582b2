//! A policy is set or cleared, and everything in its vhost is looked at again: some at a time.
//!
//! A pattern that is matched by trying is tried with all names before it is set. If it is dear for many of them the policy is
//! refused, and nothing has changed: so there is one bound for all names together.

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
    /// Not set yet: its pattern is being tried.
    trial: Option<Trial>,
    /// As they were when it began. Those that came since have it already.
    queues: std::vec::IntoIter<QueueId>,
    exchanges: std::vec::IntoIter<ExchangeId>,
    /// Queues that have another policy now, since this was last taken.
    changed: Vec<QueueId>,
}

/// The pattern of a policy that is not set yet, and names with which it is to be tried.
#[derive(Debug)]
struct Trial {
    queues: std::vec::IntoIter<QueueId>,
    exchanges: std::vec::IntoIter<ExchangeId>,
    /// Names that took more than a few steps back.
    dear: usize,
}

/// Policies that a name is matched with at the cost of one more.
const MATCHED_AT_ONCE: usize = 4;

/// What one name costs with a pattern that is matched by trying.
const TRIED: u64 = 16;

/// What a name costs for which a few steps back do not suffice.
const DEAR: u64 = 512;

/// Names for which a policy's pattern may take more than a few steps back.
const DEAR_MAX: usize = 100;

/// Policies of a vhost whose pattern may be matched by trying: each queue that is declared is matched with all.
const TRYING_MAX: usize = 64;

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
        let is_trying = new.pattern.is_trying();
        if is_trying && self.trying(id, &new.name, operator) >= TRYING_MAX {
            return Err(PolicyError::Validation(format!(
                "a vhost may have {TRYING_MAX} policies whose pattern needs backtracking (look-arounds, back-references), \
                 and '{vhost}' has as many: write this pattern without"
            )));
        }
        let mut change = self.policy_change(id, None, Some(new), operator);
        if is_trying {
            let (queues, exchanges) = (change.queues.clone(), change.exchanges.clone());
            change.trial = Some(Trial { queues, exchanges, dear: 0 });
        } else {
            change.set(self);
        }
        Ok(change)
    }

    /// How many policies of a vhost, apart from the one that is replaced, have a pattern that is matched by trying.
    fn trying(&self, vhost: VhostId, but: &str, operator: bool) -> usize {
        let Some(vhost) = self.vhost_by_id(vhost) else { return 0 };
        let count = |policies: &std::collections::BTreeMap<Box<str>, Arc<Policy>>, is_its: bool| {
            let others = policies.values().filter(|it| !(is_its && *it.name == *but));
            others.filter(|it| it.pattern.is_trying()).count()
        };
        count(&vhost.policies, !operator) + count(&vhost.operator_policies, operator)
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
        let changed = Vec::new();
        PolicyChange { vhost, old, new, operator, trial: None, queues, exchanges, changed }
    }
}

fn key(vhost: VhostId, name: Box<str>, operator: bool) -> EntityKey {
    if operator { EntityKey::OperatorPolicy(vhost, name) } else { EntityKey::Policy(vhost, name) }
}

impl PolicyChange {
    /// How many queues and exchanges are still to be looked at.
    pub fn left(&self) -> usize {
        let trial = self.trial.as_ref().map_or(0, |it| 1 + it.queues.len() + it.exchanges.len());
        trial + self.queues.len() + self.exchanges.len()
    }

    /// From now on it is there.
    fn set(&mut self, topology: &mut Topology) {
        let (Some(new), operator) = (&self.new, self.operator) else { return };
        let name = new.name.clone();
        let Some(vhost) = topology.vhosts.get_mut(&self.vhost).filter(|it| !it.is_going) else {
            return;
        };
        let all = if operator { &mut vhost.operator_policies } else { &mut vhost.policies };
        self.old = all.insert(name.clone(), Arc::clone(new));
        topology.weigh_setting(self.old.as_deref(), Some(&**new));
        topology.journal.note(key(self.vhost, name, operator));
    }

    /// Tries the pattern with some names; gives how much it was, and whether there are more.
    fn try_some(&mut self, topology: &Topology, allowed: u64) -> Result<(u64, bool), PolicyError> {
        let (Some(trial), Some(new)) = (&mut self.trial, &self.new) else { return Ok((0, false)) };
        let mut used = 0;
        while used < allowed {
            let name = if let Some(id) = trial.queues.next() {
                let queue = topology.queue_by_id(id);
                queue.filter(|it| new.may_hold_for_queue(it.kind)).map(|it| &it.name)
            } else if let Some(id) = trial.exchanges.next() {
                let exchange = topology.exchange_by_id(id);
                exchange.filter(|_| new.may_hold_for_exchange()).map(|it| &it.name)
            } else {
                return Ok((used, false));
            };
            used += 1;
            let Some(name) = name else { continue };
            used += TRIED;
            if new.pattern.is_dear(name) {
                trial.dear += 1;
                if trial.dear > DEAR_MAX {
                    return Err(PolicyError::Validation(format!(
                        "pattern backtracks too much: more than {DEAR_MAX} names of this vhost take longer than a pattern \
                         may, '{name}' among them; write it without nested repeats, or without look-arounds and \
                         back-references"
                    )));
                }
            }
        }
        Ok((used, true))
    }

    /// Looks at about `allowed` of them. Most are not concerned, which is cheaper to find out than to match them with every
    /// policy. Gives how much it was.
    ///
    /// # Errors
    ///
    /// Its pattern takes too long with too many names: it was not set.
    pub fn advance(&mut self, topology: &mut Topology, allowed: u64) -> Result<u64, PolicyError> {
        let mut used = 0;
        if self.trial.is_some() {
            let (tried, has_more) = self.try_some(topology, allowed)?;
            used = tried;
            if has_more {
                return Ok(used);
            }
            self.trial = None;
            self.set(topology);
        }
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
        Ok(used)
    }

    /// What it costs to match a name with the new policy's pattern.
    fn cost_of(&self, name: &str) -> u64 {
        match &self.new {
            Some(new) if new.pattern.is_dear(name) => DEAR,
            Some(new) if new.pattern.is_trying() => TRIED,
            _ => 0,
        }
    }

    fn look_at_queue(&mut self, id: QueueId, topology: &mut Topology) -> u64 {
        let Some(queue) = topology.queues.get_mut(&id) else { return 0 };
        let Some(vhost) = topology.vhosts.get(&self.vhost) else { return 0 };
        let cost = self.cost_of(&queue.name);
        let loses = self.old.as_ref().is_some_and(|old| queue.policies.contain(old));
        let gains = |new: &Arc<Policy>| new.holds_for_queue(&queue.name, queue.kind);
        if !loses && !self.new.as_ref().is_some_and(gains) {
            return cost;
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
        cost + ((all.len() + operators.len()) / MATCHED_AT_ONCE) as u64
    }

    fn look_at_exchange(&mut self, id: ExchangeId, topology: &mut Topology) -> u64 {
        let Some(exchange) = topology.exchanges.get_mut(&id) else { return 0 };
        let Some(vhost) = topology.vhosts.get(&self.vhost) else { return 0 };
        let cost = self.cost_of(&exchange.name);
        let loses = self.old.as_ref().is_some_and(|old| exchange.policies.contain(old));
        if !loses && !self.new.as_ref().is_some_and(|new| new.holds_for_exchange(&exchange.name)) {
            return cost;
        }
        let (all, operators) = (&vhost.policies, &vhost.operator_policies);
        exchange.policies = Policies {
            user: policy::for_exchange(all.values(), exchange),
            operator: policy::for_exchange(operators.values(), exchange),
        };
        let cost = cost + ((all.len() + operators.len()) / MATCHED_AT_ONCE) as u64;
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

    pub(crate) fn run(mut self, topology: &mut Topology) -> Result<Vec<QueueId>, PolicyError> {
        self.advance(topology, u64::MAX)?;
        let changed = self.take_changed();
        self.end(topology);
        Ok(changed)
    }
}
