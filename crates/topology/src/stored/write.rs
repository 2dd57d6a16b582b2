//! From things to bytes.

use std::collections::BTreeMap;

use leveret_amqp::table::Table;
use serde_json::{Map, Value as Json};

use crate::binding::{Binding, Target};
use crate::exchange::{Exchange, ExchangeKind};
use crate::id::GroupId;
use crate::journal::{EntityKey, Ids};
use crate::pattern::Pattern;
use crate::policy::Policy;
use crate::queue::Queue;
use crate::topology::Topology;
use crate::user::User;
use crate::vhost::Vhost;

use super::HEAD;

/// Flag of a vhost that is not to be deleted.
pub(super) const PROTECTED: u8 = 1;
/// Flag of a vhost that is deleted, while there is something left in it.
pub(super) const GOING: u8 = 2;
/// `auto_delete`, in the flags of a queue or an exchange.
pub(super) const AUTO_DELETE: u8 = 1;
/// `internal`, in the flags of an exchange.
pub(super) const INTERNAL: u8 = 2;
/// It is paused, in the flags of a queue.
pub(super) const PAUSED: u8 = 2;
/// Flag of a queue or an exchange: who declared it is told.
pub(super) const BY_USER: u8 = 4;
/// Flag of a queue or an exchange that does not survive a restart: it is never stored.
pub(super) const TRANSIENT: u8 = 8;
/// Flag of a queue: whose it is alone is told. It is never stored.
pub(super) const EXCLUSIVE: u8 = 16;
/// Flag of a queue, or of a recent-history exchange in a change: its home is told.
pub(super) const HOME: u8 = 32;

/// The layout of a queue whose home is not told.
const QUEUE_WITHOUT_HOME: u8 = 1;

/// The kinds of a binding's destination.
pub(super) const TO_QUEUE: u8 = 0;
pub(super) const TO_EXCHANGE: u8 = 1;

impl Topology {
    /// Appends the body of what a key names now; false, and nothing, when it is gone.
    pub fn store(&self, key: &EntityKey, out: &mut Vec<u8>) -> bool {
        self.try_store(key, out).is_some()
    }

    /// The head of what [`store`](Self::store) appends: the oldest layout that says it all, so that older versions read what they can.
    pub fn head(&self, key: &EntityKey) -> [u8; HEAD] {
        let [latest, kind] = key.kind().head();
        match key {
            EntityKey::Queue(id) if self.queue_by_id(*id).is_none_or(|it| !self.is_homed(it)) => {
                [QUEUE_WITHOUT_HOME, kind]
            }
            _ => [latest, kind],
        }
    }

    /// Whether the home of a queue is to be stored.
    fn is_homed(&self, queue: &Queue) -> bool {
        queue.home != self.homes.usual(queue.id)
    }

    /// The whole record of what a key names now, for another topology: it may know other groups, so a queue's home is always told,
    /// and that of a recent-history exchange.
    /// None if the thing is gone.
    pub(crate) fn told(&self, key: &EntityKey) -> Option<Vec<u8>> {
        let mut record = key.kind().head().to_vec();
        match key {
            EntityKey::Queue(id) => {
                let queue = self.queue_by_id(*id)?;
                put_queue(queue, Some(queue.home), &mut record);
            }
            EntityKey::Exchange(id) => {
                let exchange = self.exchange_by_id(*id)?;
                let remembers = exchange.kind == ExchangeKind::RecentHistory;
                put_exchange(exchange, remembers.then_some(exchange.home), &mut record);
            }
            _ => self.try_store(key, &mut record)?,
        }
        Some(record)
    }

    fn try_store(&self, key: &EntityKey, out: &mut Vec<u8>) -> Option<()> {
        match key {
            EntityKey::Ids => put_ids(&self.journal.promised, out),
            EntityKey::Vhost(id) => put_vhost(self.vhost_even_going(*id)?, out),
            EntityKey::User(name) => put_user(self.users.get(name)?, out),
            EntityKey::Permission(vhost, user) => {
                let permissions = self.users.get(user)?.permissions.get(vhost)?;
                put_u32(out, vhost.get());
                put_text(out, user);
                for pattern in [&permissions.configure, &permissions.write, &permissions.read] {
                    put_pattern(out, pattern);
                }
            }
            EntityKey::TopicPermission(vhost, names) => {
                let (user, exchange) = &**names;
                let topics = self.users.get(user)?.topics.get(vhost)?.get(exchange)?;
                put_u32(out, vhost.get());
                put_text(out, user);
                put_text(out, exchange);
                put_pattern(out, &topics.write);
                put_pattern(out, &topics.read);
            }
            EntityKey::GlobalParameter(name) => {
                let value = self.global_parameters.get(name)?;
                put_text(out, name);
                put_json(out, value);
            }
            EntityKey::Parameter(vhost, names) => {
                let value = self.vhost_even_going(*vhost)?.parameters.get(&**names)?;
                put_u32(out, vhost.get());
                put_text(out, &names.0);
                put_text(out, &names.1);
                put_json(out, value);
            }
            EntityKey::Policy(vhost, name) => {
                let policy = self.vhost_even_going(*vhost)?.policies.get(name)?;
                put_u32(out, vhost.get());
                put_policy(policy, out);
            }
            EntityKey::OperatorPolicy(vhost, name) => {
                let policy = self.vhost_even_going(*vhost)?.operator_policies.get(name)?;
                put_u32(out, vhost.get());
                put_policy(policy, out);
            }
            EntityKey::Exchange(id) => put_exchange(self.exchange_by_id(*id)?, None, out),
            EntityKey::Queue(id) => {
                let queue = self.queue_by_id(*id)?;
                put_queue(queue, self.is_homed(queue).then_some(queue.home), out);
            }
            EntityKey::Binding(id) => {
                put_binding(self.bindings.get(self.bindings.find_id(*id)?), out);
            }
            EntityKey::Tracing(id) => {
                self.vhost_by_id(*id).filter(|vhost| vhost.is_traced)?;
                put_u32(out, id.get());
            }
        }
        Some(())
    }
}

fn put_ids(ids: &Ids, out: &mut Vec<u8>) {
    put_u32(out, ids.vhost);
    put_u64(out, ids.exchange);
    put_u64(out, ids.queue);
}

fn put_vhost(vhost: &Vhost, out: &mut Vec<u8>) {
    put_u32(out, vhost.id.get());
    put_text(out, &vhost.name);
    put_text(out, &vhost.description);
    put_texts(out, &vhost.tags);
    put_text(out, vhost.default_queue_type.map_or("", |kind| kind.name()));
    put_limits(out, &vhost.limits);
    let going = if vhost.is_going { GOING } else { 0 };
    let flags = going | if vhost.is_protected { PROTECTED } else { 0 };
    if flags != 0 {
        out.push(flags);
    }
}

fn put_user(user: &User, out: &mut Vec<u8>) {
    put_text(out, &user.name);
    put_text(out, user.password.hashing().name());
    put_bytes(out, user.password.bytes());
    put_texts(out, &user.tags);
    put_limits(out, &user.limits);
}

fn put_policy(policy: &Policy, out: &mut Vec<u8>) {
    put_text(out, &policy.name);
    put_pattern(out, &policy.pattern);
    put_text(out, policy.apply_to.name());
    out.extend_from_slice(&policy.priority.to_le_bytes());
    put_json_map(out, &policy.definition);
}

fn put_exchange(exchange: &Exchange, home: Option<GroupId>, out: &mut Vec<u8>) {
    put_u64(out, exchange.id.get());
    put_u32(out, exchange.vhost.get());
    put_text(out, &exchange.name);
    put_text(out, exchange.kind.name());
    let internal = if exchange.internal { INTERNAL } else { 0 };
    let by_user = if exchange.declared_by.is_some() { BY_USER } else { 0 };
    let transient = if exchange.durable { 0 } else { TRANSIENT };
    let auto_delete = if exchange.auto_delete { AUTO_DELETE } else { 0 };
    let homed = if home.is_some() { HOME } else { 0 };
    out.push(internal | by_user | transient | auto_delete | homed);
    put_table(out, &exchange.arguments);
    if let Some(user) = &exchange.declared_by {
        put_text(out, user);
    }
    if let Some(home) = home {
        put_u32(out, home.get());
    }
}

fn put_queue(queue: &Queue, home: Option<GroupId>, out: &mut Vec<u8>) {
    put_u64(out, queue.id.get());
    put_u32(out, queue.vhost.get());
    put_text(out, &queue.name);
    put_text(out, queue.kind.name());
    let paused = if queue.paused { PAUSED } else { 0 };
    let by_user = if queue.declared_by.is_empty() { 0 } else { BY_USER };
    let transient = if queue.durable { 0 } else { TRANSIENT };
    let exclusive = if queue.exclusive_owner.is_some() { EXCLUSIVE } else { 0 };
    let auto_delete = if queue.auto_delete { AUTO_DELETE } else { 0 };
    let homed = if home.is_some() { HOME } else { 0 };
    out.push(paused | by_user | transient | exclusive | auto_delete | homed);
    put_table(out, &queue.arguments);
    if by_user != 0 {
        put_text(out, &queue.declared_by);
    }
    if let Some(owner) = queue.exclusive_owner {
        put_u64(out, owner.bits());
    }
    if let Some(home) = home {
        put_u32(out, home.get());
    }
    if let Some(declared) = &queue.declared {
        put_table(out, declared);
    }
}

fn put_binding(binding: &Binding, out: &mut Vec<u8>) {
    put_u64(out, binding.source.get());
    let (kind, id) = match binding.target {
        Target::Queue(id) => (TO_QUEUE, id.get()),
        Target::Exchange(id) => (TO_EXCHANGE, id.get()),
    };
    out.push(kind);
    put_u64(out, id);
    put_text(out, &binding.key);
    put_table(out, &binding.arguments);
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// A body of 4 GiB and more fits into no log.
fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(out, u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    out.extend_from_slice(bytes);
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_bytes(out, text.as_bytes());
}

fn put_texts(out: &mut Vec<u8>, texts: &[String]) {
    put_u32(out, texts.len() as u32);
    texts.iter().for_each(|text| put_text(out, text));
}

fn put_limits(out: &mut Vec<u8>, limits: &BTreeMap<String, i64>) {
    put_u32(out, limits.len() as u32);
    for (name, limit) in limits {
        put_text(out, name);
        out.extend_from_slice(&limit.to_le_bytes());
    }
}

fn put_pattern(out: &mut Vec<u8>, pattern: &Pattern) {
    put_text(out, pattern.text());
}

fn put_json(out: &mut Vec<u8>, value: &Json) {
    put_text(out, &value.to_string());
}

fn put_json_map(out: &mut Vec<u8>, map: &Map<String, Json>) {
    // A map of JSON values is always JSON.
    put_text(out, &serde_json::to_string(map).unwrap_or_default());
}

fn put_table(out: &mut Vec<u8>, table: &Table) {
    if table.is_empty() {
        put_u32(out, 0);
    } else {
        put_bytes(out, &table.to_bytes());
    }
}
