//! Changes of another topology, applied to this one: afterwards both have the same names.
//!
//! Changes come in batches: all that was [noted](Topology::take_changes) between two moments. Within a batch the order means
//! nothing, since a change says what a thing is and not what was done to it. What goes is taken away first, from bindings up to
//! vhosts; so a name is free for the thing that has it now. Then what is there is made, from vhosts down to bindings.
//!
//! Each may know groups of its own ([`set_homes`](Topology::set_homes)): a change of a queue tells its home.
//!
//! A change applied twice is applied once. Nothing is refused that a rule refuses, and nothing follows from a change but what is
//! in the batch: an auto-delete exchange goes by a change of its own. Nothing is noted. Events are told, if somebody
//! [wants](Topology::wants_events) them here.
//!
//! A queue or an exchange that goes before its bindings is [going](crate::Sweep) here, too, until changes have taken all of them.

use crate::binding::{Removed, Target};
use crate::event::{Event, about_permission};
use crate::id::VhostId;
use crate::journal::{Change, EntityKey};
use crate::policy_change::PolicyChange;
use crate::stored::{Restored, StoredError, Upsert};
use crate::topology::Topology;
use crate::vhost::Vhost;

/// What is left to do after changes were applied, and what could not be done.
#[derive(Debug, Default)]
pub struct Applied {
    /// Policies that were set or cleared: to be [advanced](PolicyChange::advance) and [ended](PolicyChange::end).
    pub policies: Vec<PolicyChange>,
    /// Things that belong to something that is not there, for people: they were left out.
    pub orphans: Vec<String>,
    /// Permissions that were taken away: the event, the user, the vhost.
    cleared: Vec<(&'static str, Box<str>, VhostId)>,
}

impl Topology {
    /// Applies a batch of changes of another topology.
    ///
    /// # Errors
    ///
    /// A record is not what it should be. Changes before it were applied.
    pub fn apply(&mut self, batch: &[Change]) -> Result<Applied, StoredError> {
        self.journal.is_closed = true;
        let applied = self.apply_sorted(batch);
        self.journal.is_closed = false;
        self.generation += 1;
        self.access_generation += 1;
        applied
    }

    /// Applies a batch of changes of another topology whole, as whoever follows one: policies to their end, too.
    ///
    /// # Errors
    ///
    /// As [`apply`](Self::apply).
    pub fn follow(&mut self, batch: &[Change]) -> Result<(), StoredError> {
        for mut change in self.apply(batch)?.policies {
            // The pattern was tried where the policy was set.
            let advanced = change.advance(self, u64::MAX);
            debug_assert!(advanced.is_ok(), "{advanced:?}");
            change.end(self);
        }
        // Who owns the names tells them.
        self.take_events();
        Ok(())
    }

    fn apply_sorted(&mut self, batch: &[Change]) -> Result<Applied, StoredError> {
        let mut applied = Applied::default();
        let (mut there, mut gone): (Vec<_>, Vec<_>) =
            batch.iter().partition(|change| change.record.is_some());
        // Stable: of two changes of one thing the later one counts.
        there.sort_by(|a, b| a.key.cmp(&b.key));
        gone.sort_by(|a, b| b.key.cmp(&a.key));
        for change in gone {
            self.apply_gone(&change.key, &mut applied)?;
        }
        for change in there {
            self.apply_there(change, &mut applied)?;
        }
        for (event, user, vhost) in std::mem::take(&mut applied.cleared) {
            // With a user or a vhost they go unsaid.
            if self.users.contains_key(&user) && self.vhost_by_id(vhost).is_some() {
                self.tell(|all| about_permission(event, &user, all.vhost_name(vhost)));
            }
        }
        Ok(applied)
    }

    fn apply_there(&mut self, change: &Change, applied: &mut Applied) -> Result<(), StoredError> {
        let Some(record) = &change.record else { return Ok(()) };
        let id = if let EntityKey::Binding(id) = change.key { Some(id) } else { None };
        let mut with =
            Upsert { is_stored: change.is_stored, id, policies: Vec::new(), is_change: true };
        match self.upsert(record, &mut with)? {
            Restored::Orphan(what) => applied.orphans.push(what),
            Restored::There(key) | Restored::InsteadOf(key, _) => {
                if key != change.key {
                    return Err(StoredError::Other(key));
                }
            }
        }
        applied.policies.append(&mut with.policies);
        Ok(())
    }

    /// One that is not there is gone already. Its id was used all the same.
    fn apply_gone(&mut self, key: &EntityKey, applied: &mut Applied) -> Result<(), StoredError> {
        match key {
            EntityKey::Ids => {}
            EntityKey::Vhost(id) => {
                let next = id.get().checked_add(1).ok_or(StoredError::Id)?;
                self.next_vhost = self.next_vhost.max(next);
                self.drop_vhost(*id);
            }
            EntityKey::User(name) => self.drop_user(name),
            EntityKey::Permission(vhost, user) => {
                let own = self.users.get_mut(user);
                if own.and_then(|it| it.permissions.remove(vhost)).is_some() {
                    applied.cleared.push(("permission.deleted", user.clone(), *vhost));
                }
            }
            EntityKey::TopicPermission(vhost, names) => {
                let (user, exchange) = &**names;
                let own = self.users.get_mut(user).and_then(|it| it.topics.get_mut(vhost));
                if own.and_then(|it| it.remove(exchange)).is_some() {
                    applied.cleared.push(("topic.permission.deleted", user.clone(), *vhost));
                }
            }
            EntityKey::GlobalParameter(name) => {
                self.clear_global_parameter(name);
            }
            EntityKey::Parameter(vhost, names) => {
                let place = self.vhost_mut(*vhost);
                if let Some(old) = place.and_then(|it| it.parameters.remove(&**names)) {
                    self.weigh_setting(Some(&old), None);
                    self.tell_parameter("parameter.cleared", Some(*vhost), &names.0, &names.1);
                }
            }
            EntityKey::Policy(vhost, name) => {
                applied.policies.extend(self.drop_policy(*vhost, name, false));
            }
            EntityKey::OperatorPolicy(vhost, name) => {
                applied.policies.extend(self.drop_policy(*vhost, name, true));
            }
            EntityKey::Exchange(id) => {
                self.used_exchange(*id)?;
                self.drop_end(Target::Exchange(*id));
            }
            EntityKey::Queue(id) => {
                self.used_queue(*id)?;
                self.drop_end(Target::Queue(*id));
            }
            EntityKey::Binding(id) => {
                self.used_binding(*id)?;
                if let Some(ix) = self.bindings.find_id(*id) {
                    let mut removed = Removed::default();
                    self.remove_binding(ix, &mut removed);
                    for binding in removed.bindings {
                        self.end_if_bare(binding.target);
                        self.end_if_bare(Target::Exchange(binding.source));
                    }
                }
            }
            EntityKey::Tracing(id) => {
                let vhost = self.vhost_mut(*id);
                if vhost.is_some_and(|it| std::mem::take(&mut it.is_traced)) {
                    self.traced -= 1;
                    self.tell_vhost("vhost.updated", *id);
                }
            }
        }
        Ok(())
    }

    /// Takes away a thing of which the log of names has no record any more, with all that is not without it: afterwards it is as if
    /// the thing had not been [restored](Self::restore). One that is not there is gone already.
    ///
    /// # Errors
    ///
    /// The thing has an id that none can have.
    pub fn unrestore(&mut self, key: &EntityKey) -> Result<(), StoredError> {
        self.journal.is_closed = true;
        let mut applied = Applied::default();
        let result = match key {
            EntityKey::Exchange(id) => {
                self.drop_whole(Target::Exchange(*id));
                Ok(())
            }
            EntityKey::Queue(id) => {
                self.drop_whole(Target::Queue(*id));
                Ok(())
            }
            key => self.apply_gone(key, &mut applied),
        };
        applied.policies.into_iter().for_each(|change| drop(self.whole(change)));
        self.journal.is_closed = false;
        result
    }

    /// Ends a batch of what was [restored](Self::restore) and [taken away](Self::unrestore): who remembers routes and permissions
    /// looks anew.
    pub fn has_restored(&mut self) {
        self.generation += 1;
        self.access_generation += 1;
        self.take_matching();
    }

    fn drop_user(&mut self, name: &str) {
        let Some(user) = self.users.remove(name) else { return };
        self.hash_kinds.remove(&user.password);
        self.tell(|_| Event::new("user.deleted").with("name", name));
    }

    /// A queue or an exchange goes; bindings that it still has go by changes of their own.
    fn drop_end(&mut self, target: Target) {
        if !self.is_known(target) {
            return;
        }
        if !self.is_going(target) {
            self.doom(target);
        }
        self.end_if_bare(target);
    }

    /// A queue or an exchange goes with its bindings, at once.
    pub(crate) fn drop_whole(&mut self, target: Target) {
        if !self.is_known(target) {
            return;
        }
        if !self.is_going(target) {
            self.doom(target);
        }
        while let Some(ix) = self.last_binding(target) {
            self.remove_binding(ix, &mut Removed::default());
        }
        self.end_if_bare(target);
    }

    /// A vhost goes with all that is left in it.
    pub(crate) fn drop_vhost(&mut self, id: VhostId) {
        let Some(vhost) = self.vhosts.get(&id) else { return };
        let exchanges = vhost.exchanges.values().copied().map(Target::Exchange);
        let queues = vhost.queues.values().copied().map(Target::Queue);
        let mut left: Vec<_> = exchanges.chain(queues).chain(self.going_of(id)).collect();
        left.sort_unstable();
        left.into_iter().for_each(|target| self.drop_whole(target));
        let Some(vhost) = self.vhosts.remove(&id) else { return };
        if !vhost.is_going {
            self.vhost_names.remove(&vhost.name);
        }
        self.settings_weight -= vhost.settings_weight();
        self.traced -= usize::from(vhost.is_traced);
        for user in self.users.values_mut() {
            user.permissions.remove(&id);
            user.topics.remove(&id);
        }
        self.tell_vhost_gone(&vhost.name);
    }

    /// Whether a thing is there.
    pub fn has(&self, key: &EntityKey) -> bool {
        let in_vhost =
            |id, has: &dyn Fn(&Vhost) -> bool| self.vhosts.get(&id).is_some_and(|it| has(it));
        match key {
            EntityKey::Ids => true,
            EntityKey::Vhost(id) => self.vhosts.contains_key(id),
            EntityKey::User(name) => self.users.contains_key(name),
            EntityKey::Permission(vhost, user) => {
                self.users.get(user).is_some_and(|it| it.permissions.contains_key(vhost))
            }
            EntityKey::TopicPermission(vhost, names) => {
                let topics = self.users.get(&names.0).and_then(|it| it.topics.get(vhost));
                topics.is_some_and(|it| it.contains_key(&names.1))
            }
            EntityKey::GlobalParameter(name) => self.global_parameters.contains_key(name),
            EntityKey::Parameter(id, names) => {
                in_vhost(*id, &|it| it.parameters.contains_key(&**names))
            }
            EntityKey::Policy(id, name) => in_vhost(*id, &|it| it.policies.contains_key(name)),
            EntityKey::OperatorPolicy(id, name) => {
                in_vhost(*id, &|it| it.operator_policies.contains_key(name))
            }
            EntityKey::Exchange(id) => self.exchanges.contains_key(id),
            EntityKey::Queue(id) => self.queues.contains_key(id),
            EntityKey::Binding(id) => self.bindings.find_id(*id).is_some(),
            EntityKey::Tracing(id) => in_vhost(*id, &|it| it.is_traced),
        }
    }

    fn is_known(&self, target: Target) -> bool {
        match target {
            Target::Queue(id) => self.queues.contains_key(&id),
            Target::Exchange(id) => self.exchanges.contains_key(&id),
        }
    }

    fn is_going(&self, target: Target) -> bool {
        match target {
            Target::Queue(id) => self.going.queues.contains(&id),
            Target::Exchange(id) => self.going.exchanges.contains(&id),
        }
    }

    /// The end of what is going and has no bindings any more.
    fn end_if_bare(&mut self, target: Target) {
        if self.is_going(target) && self.bindings_of(target) == 0 {
            self.end(target, &mut Vec::new());
        }
    }
}
