//! Policies and parameters: setting them, and what changes with them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value as Json;

use crate::error::PolicyError;
use crate::id::{QueueId, VhostId};
use crate::journal::EntityKey;
use crate::named::Named;
use crate::policy::{ApplyTo, Policy, PolicySpec};
use crate::policy_change::PolicyChange;
use crate::rate::Buckets;
use crate::topology::Topology;
use crate::weight::Weigh;

/// Parameters of this component are operator policies.
const OPERATOR_POLICY: &str = "operator_policy";
/// Parameters of this component are policies.
const POLICY: &str = "policy";
/// Parameters of this component are the vhost's limits.
const VHOST_LIMITS: &str = "vhost-limits";
/// The events of limits that are set, and of a vhost that has none any more.
pub(crate) const LIMITS_EVENTS: (&str, &str) = ("vhost.limits.set", "vhost.limits.cleared");

/// Whether parameters of a component are policies, and if so, whether they are those of operators.
pub fn is_policy(component: &str) -> Option<bool> {
    match component {
        POLICY => Some(false),
        OPERATOR_POLICY => Some(true),
        _ => None,
    }
}

/// Refuses what RabbitMQ refuses without a plugin: parameters of shovels, federation, and of whatever is not there.
///
/// Such parameters stay where a node has them from before.
pub fn must_be_component(name: &str) -> Result<(), PolicyError> {
    if name == VHOST_LIMITS || is_policy(name).is_some() {
        return Ok(());
    }
    Err(PolicyError::Validation(format!("component {name} not found")))
}

impl Topology {
    /// Sets a policy in one go; returns the queues that have another policy now: their
    /// [`options`](crate::Queue::options) have to be applied again. The broker does it
    /// [in pieces](Self::start_set_policy).
    pub fn set_policy(
        &mut self,
        vhost: &str,
        spec: PolicySpec<'_>,
    ) -> Result<Vec<QueueId>, PolicyError> {
        let change = self.start_set_policy(vhost, Policy::new(spec, false)?, false)?;
        self.whole(change)
    }

    /// Clears a policy in one go; returns the queues that have another policy now.
    pub fn clear_policy(&mut self, vhost: &str, name: &str) -> Result<Vec<QueueId>, PolicyError> {
        let change = self.start_clear_policy(vhost, name, false)?;
        self.whole(change)
    }

    /// As [`set_policy`](Self::set_policy), for an operator policy: only limits, of which the stricter holds.
    pub fn set_operator_policy(
        &mut self,
        vhost: &str,
        spec: PolicySpec<'_>,
    ) -> Result<Vec<QueueId>, PolicyError> {
        let change = self.start_set_policy(vhost, Policy::new(spec, true)?, true)?;
        self.whole(change)
    }

    /// Clears an operator policy in one go; returns the queues that have another one now.
    pub fn clear_operator_policy(
        &mut self,
        vhost: &str,
        name: &str,
    ) -> Result<Vec<QueueId>, PolicyError> {
        let change = self.start_clear_policy(vhost, name, true)?;
        self.whole(change)
    }

    pub(crate) fn whole(&mut self, mut change: PolicyChange) -> Result<Vec<QueueId>, PolicyError> {
        change.advance(self, u64::MAX)?;
        let changed = change.take_changed();
        change.end(self);
        Ok(changed)
    }

    /// Sets a parameter of a component that [may be](must_be_component). Limits of the vhost take effect. Those of the
    /// components `policy` and `operator_policy` [are policies](is_policy), and are set as such.
    pub fn set_parameter(
        &mut self,
        vhost: &str,
        component: &str,
        name: &str,
        value: Json,
    ) -> Result<(), PolicyError> {
        let id = self.vhost_of(vhost)?;
        match component {
            VHOST_LIMITS => self.set_vhost_limits(id, limits(&value)?),
            _ if is_policy(component).is_some() => return Err(missing(component, name, vhost)),
            _ => {
                self.tell_parameter("parameter.set", Some(id), component, name);
                let weight = value.weight();
                if let Some(vhost) = self.vhost_mut(id) {
                    let old = vhost.parameters.insert((component.into(), name.into()), value);
                    self.settings_weight += weight;
                    self.weigh_setting(old.as_ref(), None);
                }
                self.journal.note(EntityKey::parameter(id, component, name));
            }
        }
        Ok(())
    }

    /// Clears a parameter that is none of a policy.
    pub fn clear_parameter(
        &mut self,
        vhost: &str,
        component: &str,
        name: &str,
    ) -> Result<(), PolicyError> {
        let id = self.vhost_of(vhost)?;
        if component == VHOST_LIMITS {
            self.set_vhost_limits(id, BTreeMap::new());
            return Ok(());
        }
        let Some(place) = self.vhost_mut(id) else { return Ok(()) };
        let cleared = place.parameters.remove(&(component.into(), name.into()));
        let old = cleared.ok_or_else(|| missing(component, name, vhost))?;
        self.weigh_setting(Some(&old), None);
        self.journal.note(EntityKey::parameter(id, component, name));
        self.tell_parameter("parameter.cleared", Some(id), component, name);
        Ok(())
    }

    /// These limits hold from now on, and no others.
    pub(crate) fn set_vhost_limits(&mut self, id: VhostId, limits: BTreeMap<String, i64>) {
        let Some(vhost) = self.vhosts.get_mut(&id) else { return };
        vhost.limits.clone_from(&limits);
        vhost.rates = Buckets::default();
        let name = Arc::clone(&vhost.name);
        // Sessions look again at the rates they keep to.
        self.access_generation += 1;
        self.journal.note(EntityKey::Vhost(id));
        self.tell_limits(LIMITS_EVENTS, ("vhost", &name), &limits);
    }

    /// Sets a parameter of the whole cluster: `cluster_name`, ... A new one has a [name](Named::GlobalParameter) that fits.
    pub fn set_global_parameter(&mut self, name: &str, value: Json) -> Result<(), PolicyError> {
        if self.global_parameter(name).is_none() {
            Named::GlobalParameter.check(name)?;
        }
        self.tell_parameter("parameter.set", None, "global", name);
        self.put_global_parameter(name, value);
        self.journal.note(EntityKey::GlobalParameter(name.into()));
        Ok(())
    }

    pub(crate) fn put_global_parameter(&mut self, name: &str, value: Json) {
        self.settings_weight += value.weight();
        let old = self.global_parameters.insert(name.into(), value);
        self.weigh_setting(old.as_ref(), None);
    }

    /// One went, or another came, or both.
    pub(crate) fn weigh_setting<T: Weigh>(&mut self, old: Option<&T>, new: Option<&T>) {
        self.settings_weight += new.map_or(0, Weigh::weight);
        self.settings_weight -= old.map_or(0, Weigh::weight);
    }

    /// Clears one; returns whether there was one.
    pub fn clear_global_parameter(&mut self, name: &str) -> bool {
        let old = self.global_parameters.remove(name);
        self.weigh_setting(old.as_ref(), None);
        let was_set = old.is_some();
        if was_set {
            self.journal.note(EntityKey::GlobalParameter(name.into()));
            self.tell_parameter("parameter.cleared", None, "global", name);
        }
        was_set
    }

    /// The parameters of the whole cluster by name.
    pub fn global_parameters(&self) -> impl Iterator<Item = (&str, &Json)> {
        self.global_parameters.iter().map(|(name, value)| (name.as_ref(), value))
    }

    /// The value of a global parameter.
    pub fn global_parameter(&self, name: &str) -> Option<&Json> {
        self.global_parameters.get(name)
    }

    pub(crate) fn vhost_of(&self, name: &str) -> Result<VhostId, PolicyError> {
        self.vhost_id(name).map_err(|_| PolicyError::NoVhost(name.to_owned()))
    }
}

pub(crate) fn missing(what: &str, name: &str, vhost: &str) -> PolicyError {
    PolicyError::NotFound { what: what.into(), name: name.into(), vhost: vhost.into() }
}

/// A policy as the value of a parameter: pattern, definition, priority, apply-to.
fn policy_spec<'a>(name: &'a str, value: &'a Json) -> Result<PolicySpec<'a>, PolicyError> {
    let bad = |text: String| PolicyError::Validation(text);
    let pattern = value.get("pattern").ok_or_else(|| bad(key_missing("pattern", name)))?;
    let pattern = pattern.as_str().ok_or_else(|| {
        bad(format!("pattern should be a binary but was {}", crate::value::json_term(pattern)))
    })?;
    let definition = value.get("definition").ok_or_else(|| bad(key_missing("definition", name)))?;
    let Json::Object(definition) = definition else {
        let term = crate::value::json_term(definition);
        return Err(bad(format!("definition must be a dictionary: {term}")));
    };
    let priority = match value.get("priority") {
        None | Some(Json::Null) => 0,
        Some(priority) => priority.as_i64().ok_or_else(|| {
            let term = crate::value::json_term(priority);
            bad(format!("priority should be a number, actually was {term}"))
        })?,
    };
    let apply_to = match value.get("apply-to").and_then(Json::as_str) {
        Some(name) => ApplyTo::parse(name)?,
        None => ApplyTo::All,
    };
    Ok(PolicySpec { name, pattern, apply_to, priority, definition: definition.clone() })
}

impl Policy {
    /// The one that a parameter describes.
    pub fn of_parameter(name: &str, value: &Json, operator: bool) -> Result<Self, PolicyError> {
        Self::new(policy_spec(name, value)?, operator)
    }
}

fn key_missing(key: &str, name: &str) -> String {
    format!("Key \"{key}\" not found in {name}")
}

/// `max-connections`, `max-queues`, and [rates](crate::RATE_LIMITS).
pub(crate) fn limits(value: &Json) -> Result<BTreeMap<String, i64>, PolicyError> {
    let Json::Object(map) = value else {
        let term = crate::value::json_term(value);
        return Err(PolicyError::Validation(format!("limits not a list {term}")));
    };
    map.iter()
        .map(|(name, limit)| {
            let limit = limit.as_i64().ok_or_else(|| {
                let term = crate::value::json_term(limit);
                PolicyError::Validation(format!("{name} should be a number, actually was {term}"))
            })?;
            Ok((name.clone(), limit))
        })
        .collect()
}
