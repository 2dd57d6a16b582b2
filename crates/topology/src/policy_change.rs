//! A policy is set or cleared, and everything in its vhost is looked at again: some at a time.
//!
//! A pattern that is matched by trying is tried with all names before it is set. If it is dear for many of them the policy is
//! refused, and nothing has changed. Names that come later count one by one, see [`Vhost`]: so there is one bound for all
//! names together, whichever comes first.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::vec::IntoIter;

use crate::error::PolicyError;
use crate::id::{ExchangeId, QueueId, VhostId};
use crate::journal::EntityKey;
use crate::named::Named;
use crate::parameters::missing;
use crate::pattern::{Effort, TRIED};
use crate::policy::{self, Policy};
use crate::topology::Topology;
use crate::vhost::Vhost;

/// A policy that was set or cleared, and the queues and exchanges that were not looked at since.
///
/// Each gets the policies that match it best at that moment. So however many changes are under way at once, when all are
/// done everything has the policies that hold then: whatever changes later looks at all again. A restart matches everything
/// anew.
#[derive(Debug)]
pub struct PolicyChange {
    vhost: VhostId,
    vhost_name: Arc<str>,
    old: Option<Arc<Policy>>,
    new: Option<Arc<Policy>>,
    operator: bool,
    /// Names that were not matched to the end are among them: each is matched again.
    all: bool,
    /// Not set yet: its pattern is being tried.
    trial: Option<Trial>,
    /// As they were when it was set. Those that came since have it already.
    queues: IntoIter<QueueId>,
    exchanges: IntoIter<ExchangeId>,
    /// Queues that have another policy now, since this was last taken.
    changed: Vec<QueueId>,
}

/// The pattern of a policy that is not set yet, and names with which it is to be tried.
#[derive(Debug)]
struct Trial {
    queues: IntoIter<QueueId>,
    exchanges: IntoIter<ExchangeId>,
    /// Names that took more than a few steps back.
    dear: usize,
}

/// Names for which a policy's pattern may take more than a few steps back.
const DEAR_MAX: usize = 100;

/// Policies of a vhost whose pattern may be matched by trying: each queue that is declared is matched with all.
const TRYING_MAX: usize = 64;

/// Policies of a vhost, those of operators among them.
const POLICIES_MAX: usize = 2_048;

/// Bytes of what the patterns of a vhost are when they are compiled. A restart compiles all of them.
const PATTERNS_MAX: u64 = 64 << 20;

/// Bytes of those among them that are matched in linear time and are not little ones: each name that is declared is matched
/// with all, for a fifth of a second at the worst.
const LARGE_MAX: u64 = 4 << 20;

impl Topology {
    /// Sets a policy or an operator policy: who is declared from now on has it, and the others get it by
    /// [`PolicyChange::advance`].
    pub fn start_set_policy(
        &mut self,
        vhost: &str,
        policy: Policy,
        operator: bool,
    ) -> Result<PolicyChange, PolicyError> {
        let id = self.vhost_of(vhost)?;
        if let Some(vhost) = self.vhost_by_id(id) {
            if !vhost.has_policy(&policy.name, operator) {
                Named::policy(operator).check(&policy.name)?;
            }
            has_room(vhost, &policy, operator)?;
        }
        let is_trying = policy.pattern.is_trying();
        let mut change = self.policy_change(id, None, Some(Arc::new(policy)), operator);
        if is_trying {
            let queues = std::mem::take(&mut change.queues);
            let exchanges = std::mem::take(&mut change.exchanges);
            change.trial = Some(Trial { queues, exchanges, dear: 0 });
        } else {
            change.set(self)?;
        }
        Ok(change)
    }

    /// Clears a policy or an operator policy, as [`start_set_policy`](Self::start_set_policy) sets one.
    pub fn start_clear_policy(
        &mut self,
        vhost: &str,
        name: &str,
        operator: bool,
    ) -> Result<PolicyChange, PolicyError> {
        let id = self.vhost_of(vhost)?;
        let what = if operator { "operator policy" } else { "policy" };
        let change = self.drop_policy(id, name, operator);
        let change = change.ok_or_else(|| missing(what, name, vhost))?;
        self.journal.note(key(id, name.into(), operator));
        Ok(change)
    }

    /// Takes a policy away, if it is there.
    pub(crate) fn drop_policy(
        &mut self,
        id: VhostId,
        name: &str,
        operator: bool,
    ) -> Option<PolicyChange> {
        let vhost = self.vhost_mut(id)?;
        let all = if operator { &mut vhost.operator_policies } else { &mut vhost.policies };
        let old = all.remove(name)?;
        self.weigh_setting(Some(&*old), None);
        let all = old.pattern.is_trying() && self.match_anew(id);
        Some(PolicyChange { all, ..self.policy_change(id, Some(old), None, operator) })
    }

    /// Sets a policy that was checked elsewhere, if its vhost is there.
    pub(crate) fn put_policy(
        &mut self,
        id: VhostId,
        policy: Policy,
        operator: bool,
    ) -> Option<PolicyChange> {
        let new = Arc::new(policy);
        let (old, all) = self.insert_policy(id, &new, operator)?;
        Some(PolicyChange { all, old, ..self.policy_change(id, None, Some(new), operator) })
    }

    /// The policy that it replaces, and whether each name is to be matched again. None: there is no such vhost.
    fn insert_policy(
        &mut self,
        id: VhostId,
        new: &Arc<Policy>,
        operator: bool,
    ) -> Option<(Option<Arc<Policy>>, bool)> {
        let vhost = self.vhost_mut(id)?;
        let all = if operator { &mut vhost.operator_policies } else { &mut vhost.policies };
        let old = all.insert(new.name.clone(), Arc::clone(new));
        self.weigh_setting(old.as_deref(), Some(&**new));
        let is_trying = old.iter().chain([new]).any(|it| it.pattern.is_trying());
        Some((old, is_trying && self.match_anew(id)))
    }

    /// Queues and exchanges of a vhost, oldest first; of one that is going, too, as its log of names has policies for them.
    fn names_of(&self, vhost: VhostId) -> (IntoIter<QueueId>, IntoIter<ExchangeId>) {
        let place = self.vhost_even_going(vhost);
        let queues = place.into_iter().flat_map(|it| it.queues.values().copied());
        let exchanges = place.into_iter().flat_map(|it| it.exchanges.values().copied());
        let (mut queues, mut exchanges): (Vec<_>, Vec<_>) = (queues.collect(), exchanges.collect());
        queues.sort_unstable();
        exchanges.sort_unstable();
        (queues.into_iter(), exchanges.into_iter())
    }

    /// Patterns that need backtracking are others now: names that come are counted from the beginning. Whether there were
    /// some that were not matched to the end.
    fn match_anew(&mut self, vhost: VhostId) -> bool {
        let Some(vhost) = self.vhosts.get_mut(&vhost) else { return false };
        vhost.dear_names = 0;
        std::mem::take(&mut vhost.unmatched_names) > 0
    }

    fn policy_change(
        &self,
        vhost: VhostId,
        old: Option<Arc<Policy>>,
        new: Option<Arc<Policy>>,
        operator: bool,
    ) -> PolicyChange {
        let (queues, exchanges) = self.names_of(vhost);
        let vhost_name = self.vhost_by_id(vhost).map(|it| Arc::clone(&it.name)).unwrap_or_default();
        let changed = Vec::new();
        PolicyChange {
            vhost,
            vhost_name,
            old,
            new,
            operator,
            all: false,
            trial: None,
            queues,
            exchanges,
            changed,
        }
    }
}

/// Refuses a policy that its vhost has no room for, apart from the one that it replaces.
fn has_room(vhost: &Vhost, new: &Policy, operator: bool) -> Result<(), PolicyError> {
    let of = |all: &BTreeMap<Box<str>, Arc<Policy>>, has_it: bool| -> Vec<Arc<Policy>> {
        let others = all.values().filter(|it| !(has_it && it.name == new.name));
        others.cloned().collect()
    };
    let mut others = of(&vhost.policies, !operator);
    others.append(&mut of(&vhost.operator_policies, operator));
    let name = &vhost.name;
    let refuse = |text| Err(PolicyError::Validation(text));
    if others.len() >= POLICIES_MAX {
        return refuse(format!(
            "a vhost may have {POLICIES_MAX} policies, and '{name}' has as many: let one pattern stand for more names"
        ));
    }
    let size = |it: &Policy| it.pattern.size();
    if others.iter().map(|it| size(it)).sum::<u64>() + size(new) > PATTERNS_MAX {
        return refuse(format!(
            "the patterns of a vhost's policies may take {} MiB when they are compiled, and those of '{name}' would take \
             more with this one: repeat less in it",
            PATTERNS_MAX >> 20
        ));
    }
    if others.iter().map(|it| it.pattern.large()).sum::<u64>() + new.pattern.large() > LARGE_MAX {
        return refuse(format!(
            "the large patterns of a vhost's policies may take {} MiB together, and those of '{name}' would take more with \
             this one: repeat less in it, or name the letters that \\w and \\d stand for ([a-z], [0-9])",
            LARGE_MAX >> 20
        ));
    }
    let trying = others.iter().filter(|it| it.pattern.is_trying()).count();
    if new.pattern.is_trying() && trying >= TRYING_MAX {
        return refuse(format!(
            "a vhost may have {TRYING_MAX} policies whose pattern needs backtracking (look-arounds, back-references), \
             and '{name}' has as many: write this pattern without"
        ));
    }
    Ok(())
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

    /// From now on it is there, unless others have come meanwhile and there is no room.
    fn set(&mut self, topology: &mut Topology) -> Result<(), PolicyError> {
        let (Some(new), operator) = (&self.new, self.operator) else { return Ok(()) };
        let no_vhost = || PolicyError::NoVhost(self.vhost_name.as_ref().to_owned());
        has_room(topology.vhost_by_id(self.vhost).ok_or_else(no_vhost)?, new, operator)?;
        let set = topology.insert_policy(self.vhost, new, operator);
        topology.journal.note(key(self.vhost, new.name.clone(), operator));
        (self.old, self.all) = set.ok_or_else(no_vhost)?;
        Ok(())
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
            self.set(topology)?;
            // Those that came while it was tried do not have it.
            (self.queues, self.exchanges) = topology.names_of(self.vhost);
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

    fn look_at_queue(&mut self, id: QueueId, topology: &mut Topology) -> u64 {
        let Some(queue) = topology.queues.get_mut(&id) else { return 0 };
        let Some(vhost) = topology.vhosts.get(&self.vhost) else { return 0 };
        let mut effort = Effort::new(true);
        let loses = self.old.as_ref().is_some_and(|old| queue.policies.contain(old));
        let mut gains = |new: &Arc<Policy>| {
            new.may_hold_for_queue(queue.kind)
                && new.pattern.matches_within(&queue.name, &mut effort)
        };
        if self.all || loses || self.new.as_ref().is_some_and(&mut gains) {
            let policies = policy::of_queue(vhost, &queue.name, queue.kind, &mut effort);
            if !policies.is(&queue.policies) {
                queue.policies = policies;
                self.changed.push(queue.id);
            }
        }
        effort.units
    }

    fn look_at_exchange(&mut self, id: ExchangeId, topology: &mut Topology) -> u64 {
        let Some(exchange) = topology.exchanges.get_mut(&id) else { return 0 };
        let Some(vhost) = topology.vhosts.get(&self.vhost) else { return 0 };
        let mut effort = Effort::new(true);
        let loses = self.old.as_ref().is_some_and(|old| exchange.policies.contain(old));
        let mut gains = |new: &Arc<Policy>| {
            new.may_hold_for_exchange() && new.pattern.matches_within(&exchange.name, &mut effort)
        };
        if self.all || loses || self.new.as_ref().is_some_and(&mut gains) {
            exchange.policies = policy::of_exchange(vhost, exchange, &mut effort);
            if exchange.refresh_alternate() {
                topology.generation += 1;
            }
        }
        effort.units
    }

    /// The queues that have another policy since this was last asked.
    pub fn take_changed(&mut self) -> Vec<QueueId> {
        std::mem::take(&mut self.changed)
    }

    /// All were looked at: it is told.
    pub fn end(self, topology: &mut Topology) {
        if topology.vhost_by_id(self.vhost).is_none() {
            return;
        }
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
}
