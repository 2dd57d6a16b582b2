//! Definitions without what RabbitMQ refuses, which refuses the rest of a file with it.

use serde_json::{Map, Value as Json};

use super::check::Lines;
use crate::binding::{Binding, Target};
use crate::event::EVENT_EXCHANGE;
use crate::id::VhostId;
use crate::policy::is_ours;
use crate::rate::RATE_LIMITS;
use crate::topology::Topology;
use crate::user::Hashing;

/// Whom definitions are exported for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// Leveret takes everything.
    Leveret,
    /// Any RabbitMQ.
    RabbitMq,
    /// RabbitMQ 4 has neither mirrored queues nor, from 4.3 on, transient ones that are not exclusive.
    RabbitMq4,
}

impl Reader {
    /// Whether it is Leveret.
    pub fn is_leveret(self) -> bool {
        self == Self::Leveret
    }
}

impl Topology {
    /// One binding, unless RabbitMQ would refuse it: it has the exchange of events only with a plugin.
    pub fn export_binding_for_rabbitmq(&self, binding: &Binding) -> Option<Json> {
        let of_events = |id| self.exchange_by_id(id).is_some_and(|it| &*it.name == EVENT_EXCHANGE);
        let leads_there = matches!(binding.target, Target::Exchange(id) if of_events(id));
        let is_kept = !of_events(binding.source) && !leads_there;
        is_kept.then(|| self.export_binding(binding)).flatten()
    }

    /// Whether these exported topic permissions are of an exchange that is not there, which RabbitMQ refuses from 4.x on.
    pub fn is_loose_topic(&self, entry: &Json) -> bool {
        let [vhost, name] = ["vhost", "exchange"].map(|key| text(entry, key));
        let vhost = self.vhost_id(vhost).ok().filter(|_| name != EVENT_EXCHANGE);
        vhost.is_none_or(|id| self.exchange(id, name).is_none())
    }

    /// A sentence about these bindings of a vhost, if there are any.
    pub fn left_out_for_rabbitmq(&self, vhost: VhostId) -> Option<String> {
        let exchange =
            self.exchange(vhost, EVENT_EXCHANGE).filter(|exchange| exchange.is_used())?;
        let vhost = self.vhost_name(exchange.vhost);
        Some(format!(
            "bindings of exchange '{EVENT_EXCHANGE}' in vhost '{vhost}': RabbitMQ has it with the plugin rabbitmq_event_exchange"
        ))
    }
}

/// A sentence about such topic permissions.
pub fn loose_topic(entry: &Json) -> String {
    let [user, vhost, name] = ["user", "vhost", "exchange"].map(|key| text(entry, key));
    format!("topic permissions of user '{user}' in vhost '{vhost}': there is no exchange '{name}'")
}

/// Takes out of exported definitions what `reader` does not know. A sentence for each thing that is gone or changed.
pub fn for_rabbitmq(definitions: &mut Json, reader: Reader, told: &mut Lines) {
    if reader.is_leveret() {
        return;
    }
    retain(definitions, "users", |user| {
        if user["hashing_algorithm"] == Hashing::Argon2id.name() {
            user["password_hash"] = "".into();
            user["hashing_algorithm"] = Hashing::Sha256.name().into();
            told.push(format!(
                "user '{}' has no password: its hash is argon2id's. Set it anew with rabbitmqctl change_password",
                text(user, "name")
            ));
        }
        let what = format!("user '{}'", text(user, "name"));
        without_rates(&mut user["limits"], &what, told);
        true
    });
    retain(definitions, "vhosts", |vhost| {
        let what = format!("vhost '{}'", text(vhost, "name"));
        without_rates(&mut vhost["limits"], &what, told);
        true
    });
    retain(definitions, "parameters", |parameter| {
        let is_limits = parameter["component"] == "vhost-limits";
        if is_limits {
            // Told of the vhost.
            without_rates(&mut parameter["value"], "", &mut Lines::default());
        }
        if parameter["component"] == "operator_policy" {
            let what = named("operator policy", parameter);
            return without_unknown(&mut parameter["value"]["definition"], &what, reader, told);
        }
        !(is_limits && parameter["value"].as_object().is_some_and(Map::is_empty))
    });
    retain(definitions, "policies", |policy| {
        let what = named("policy", policy);
        without_unknown(&mut policy["definition"], &what, reader, told)
    });
}

fn named(kind: &str, policy: &Json) -> String {
    let name = text(policy, "name");
    match policy["vhost"].as_str() {
        Some(vhost) => format!("{kind} '{name}' of vhost '{vhost}'"),
        None => format!("{kind} '{name}'"),
    }
}

/// Takes out of a policy what `reader` does not know. False if nothing is left.
fn without_unknown(definition: &mut Json, what: &str, reader: Reader, told: &mut Lines) -> bool {
    let Some(definition) = definition.as_object_mut() else { return true };
    let is_mirror = |key: &str| reader == Reader::RabbitMq4 && key.starts_with("ha-");
    let gone = take_out(definition, |key| is_ours(key) || is_mirror(key));
    let is_empty = definition.is_empty();
    if is_empty {
        told.push(format!("{what}: it has nothing but {gone}"));
    } else if !gone.is_empty() {
        told.push(format!("{what}: its {gone}"));
    }
    !is_empty
}

fn without_rates(limits: &mut Json, what: &str, told: &mut Lines) {
    let Some(limits) = limits.as_object_mut() else { return };
    let gone = take_out(limits, |name| RATE_LIMITS.contains(&name));
    if !gone.is_empty() {
        told.push(format!("{what}: its limit {gone}"));
    }
}

/// Removes keys; their names.
fn take_out(from: &mut Map<String, Json>, is_gone: impl Fn(&str) -> bool) -> String {
    let gone: Vec<_> = from.keys().filter(|key| is_gone(key)).cloned().collect();
    gone.iter().for_each(|key| drop(from.remove(key)));
    gone.join(", ")
}

fn retain(definitions: &mut Json, list: &str, is_kept: impl FnMut(&mut Json) -> bool) {
    if let Some(entries) = definitions.get_mut(list).and_then(Json::as_array_mut) {
        entries.retain_mut(is_kept);
    }
}

fn text<'a>(entry: &'a Json, key: &str) -> &'a str {
    entry[key].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_leveret_alone_knows_is_gone() {
        let mut all = json!({
            "users": [
                {"name": "a", "password_hash": "$argon2id$", "hashing_algorithm": "leveret_password_hashing_argon2id",
                 "tags": ["x"], "limits": {"max-publish-rate": 1, "max-channels": 2}},
                {"name": "b", "password_hash": "abc", "hashing_algorithm": "rabbit_password_hashing_sha512",
                 "tags": [], "limits": {}},
            ],
            "vhosts": [{"name": "/", "limits": {"max-deliver-rate": 5}}],
            "parameters": [
                {"component": "vhost-limits", "name": "limits", "vhost": "/", "value": {"max-deliver-rate": 5}},
                {"component": "vhost-limits", "name": "limits", "vhost": "v",
                 "value": {"max-deliver-rate": 5, "max-queues": 1}},
            ],
            "policies": [
                {"name": "p", "vhost": "/", "definition": {"confirm-on": "ack"}},
                {"name": "s", "vhost": "/", "definition": {"replication-confirm": "all"}},
                {"name": "r", "vhost": "/", "definition": {"confirm-timeout": 1, "max-length": 7}},
            ],
            "queues": [{"name": "q", "vhost": "/", "arguments": {"x-confirm-on": "ack"}}],
        });
        let mut told = Lines::default();
        for_rabbitmq(&mut all, Reader::RabbitMq, &mut told);
        let want = [
            "user 'a' has no password: its hash is argon2id's. Set it anew with rabbitmqctl change_password",
            "user 'a': its limit max-publish-rate",
            "vhost '/': its limit max-deliver-rate",
            "policy 'p' of vhost '/': it has nothing but confirm-on",
            "policy 's' of vhost '/': it has nothing but replication-confirm",
            "policy 'r' of vhost '/': its confirm-timeout",
        ];
        assert_eq!(told.finish(), want);
        let want = json!({
            "users": [
                {"name": "a", "password_hash": "", "hashing_algorithm": "rabbit_password_hashing_sha256",
                 "tags": ["x"], "limits": {"max-channels": 2}},
                {"name": "b", "password_hash": "abc", "hashing_algorithm": "rabbit_password_hashing_sha512",
                 "tags": [], "limits": {}},
            ],
            "vhosts": [{"name": "/", "limits": {}}],
            "parameters": [
                {"component": "vhost-limits", "name": "limits", "vhost": "v", "value": {"max-queues": 1}},
            ],
            "policies": [{"name": "r", "vhost": "/", "definition": {"max-length": 7}}],
            "queues": [{"name": "q", "vhost": "/", "arguments": {"x-confirm-on": "ack"}}],
        });
        assert_eq!(all, want);
        let mut told = Lines::default();
        for_rabbitmq(&mut all, Reader::RabbitMq, &mut told);
        assert_eq!(told.finish(), [""; 0]);
    }

    #[test]
    fn rabbitmq_4_has_no_mirrors() {
        let operator = |name: &str, definition: Json| {
            let value = json!({"pattern": "", "definition": definition});
            json!({"component": "operator_policy", "name": name, "vhost": "/", "value": value})
        };
        let mut all = json!({
            "policies": [
                {"name": "p", "vhost": "/", "definition": {"ha-mode": "all"}},
                {"name": "r", "vhost": "/", "definition": {"ha-mode": "all", "ha-sync-mode": "automatic", "max-length": 7}},
            ],
            "parameters": [
                operator("o", json!({"ha-mode": "all"})),
                operator("k", json!({"ha-mode": "all", "expires": 9})),
            ],
        });
        let before = all.clone();
        let mut told = Lines::default();
        for_rabbitmq(&mut all, Reader::RabbitMq, &mut told);
        assert_eq!((&all, told.finish()), (&before, Vec::new()));
        let mut told = Lines::default();
        for_rabbitmq(&mut all, Reader::RabbitMq4, &mut told);
        let want = [
            "operator policy 'o' of vhost '/': it has nothing but ha-mode",
            "operator policy 'k' of vhost '/': its ha-mode",
            "policy 'p' of vhost '/': it has nothing but ha-mode",
            "policy 'r' of vhost '/': its ha-mode, ha-sync-mode",
        ];
        assert_eq!(told.finish(), want);
        let want = json!({
            "policies": [{"name": "r", "vhost": "/", "definition": {"max-length": 7}}],
            "parameters": [operator("k", json!({"expires": 9}))],
        });
        assert_eq!(all, want);
    }

    #[test]
    fn what_is_told_is_bounded() {
        let policy = json!({"name": "p", "vhost": "/", "definition": {"confirm-on": "ack"}});
        let mut all = json!({ "policies": vec![policy; 1000] });
        let mut told = Lines::default();
        for_rabbitmq(&mut all, Reader::RabbitMq, &mut told);
        assert_eq!(all, json!({"policies": []}));
        let told = told.finish();
        assert_eq!((told.len(), &*told[100]), (101, "and 900 more"));
    }
}
