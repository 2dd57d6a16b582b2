//! The keys of durable things that changed, for the owner of the log of names.
//!
//! Every change of something that survives a restart notes its key here. The owner of the log
//! takes the keys, and asks [`Topology::store`] for the present state of each, or that it is gone.
//! So a thing that changed twice is stored once, in its last state. Transient and exclusive things are never
//! noted, and routing does not come near.
//!
//! No id may be used again after a restart, not even that of a transient queue: a message may
//! outlive its queue. So the log does not have the next id but a *promise*, an id far ahead below
//! which all ids may have been used. Other clients use a queue before its client has the answer,
//! and so before anything is on disk. So the next promise is made long before the present one is reached.

use crate::binding::BindingIx;
use crate::id::{ExchangeId, QueueId, VhostId};
use crate::topology::Topology;
use crate::user::User;
use crate::vhost::Vhost;

/// Names one durable thing, as it is stored: one record each.
///
/// A name is all that it says: the thing may have changed or gone since, and a binding's number may
/// name another one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntityKey {
    /// Below which ids have been used.
    Ids,
    /// A vhost with its metadata and limits.
    Vhost(VhostId),
    /// A user without its permissions.
    User(Box<str>),
    /// A user's permissions in a vhost.
    Permission(VhostId, Box<str>),
    /// A user's permissions for an exchange of a vhost: user, exchange.
    TopicPermission(VhostId, Box<(Box<str>, Box<str>)>),
    /// By name.
    GlobalParameter(Box<str>),
    /// Component and name.
    Parameter(VhostId, Box<(Box<str>, Box<str>)>),
    /// By name.
    Policy(VhostId, Box<str>),
    /// By name.
    OperatorPolicy(VhostId, Box<str>),
    /// A durable exchange, the predeclared ones too.
    Exchange(ExchangeId),
    /// A durable queue.
    Queue(QueueId),
    /// A binding with two durable ends, by its place.
    Binding(u32),
}

impl EntityKey {
    pub(crate) fn topic_permission(vhost: VhostId, user: &str, exchange: &str) -> Self {
        Self::TopicPermission(vhost, Box::new((user.into(), exchange.into())))
    }

    pub(crate) fn parameter(vhost: VhostId, component: &str, name: &str) -> Self {
        Self::Parameter(vhost, Box::new((component.into(), name.into())))
    }
}

/// Ids that a restart leaves out at most. Half of them cannot be used up within one sync of a disk:
/// more queues than any memory holds. And 2^40 restarts do not fit the life of a machine.
const IDS_PROMISED: u64 = 1 << 24;

/// The first ids of each sort that are not used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ids {
    pub(crate) vhost: u32,
    pub(crate) exchange: u64,
    pub(crate) queue: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Journal {
    changed: Vec<EntityKey>,
    /// What was stored last of the ids.
    pub(crate) promised: Ids,
}

impl Journal {
    pub(crate) fn note(&mut self, key: EntityKey) {
        // Definitions change one thing several times in a row.
        if self.changed.last() != Some(&key) {
            self.changed.push(key);
        }
    }
}

impl Topology {
    /// The keys of all that changed and is durable, or was, since they were last taken; in the order
    /// of the changes, some perhaps twice.
    pub fn take_changes(&mut self) -> Vec<EntityKey> {
        std::mem::take(&mut self.journal.changed)
    }

    /// Whether [`take_changes`](Self::take_changes) would give any.
    pub fn has_changes(&self) -> bool {
        !self.journal.changed.is_empty()
    }

    /// Notes everything durable as changed, in an order in which nothing comes before what it needs.
    pub fn note_all(&mut self) {
        let mut keys = vec![EntityKey::Ids];
        for user in self.users.values() {
            keys.push(EntityKey::User(user.name.clone()));
            keys.extend(user_keys(user));
        }
        for vhost in self.vhosts.values() {
            keys.push(EntityKey::Vhost(vhost.id));
            keys.extend(vhost_keys(vhost));
        }
        keys.extend(self.global_parameters.keys().cloned().map(EntityKey::GlobalParameter));
        let exchanges = self.exchanges.values().filter(|exchange| exchange.durable);
        keys.extend(exchanges.map(|exchange| EntityKey::Exchange(exchange.id)));
        let queues = self.queues.values().filter(|queue| queue.durable);
        keys.extend(queues.map(|queue| EntityKey::Queue(queue.id)));
        let bindings = self.bindings.entries().filter(|(_, entry)| entry.durable);
        keys.extend(bindings.map(|(ix, _): (BindingIx, _)| EntityKey::Binding(ix)));
        // Of one sort in the order of ids: what is stored together is read together.
        keys.sort_unstable();
        self.journal.changed = keys;
    }

    /// Promises ids anew: [`EntityKey::Ids`] has to be stored next.
    pub fn promise_ids(&mut self) {
        self.journal.promised = Ids {
            // Vhosts are all durable: none is made without being stored.
            vhost: self.next_vhost,
            exchange: self.next_exchange.saturating_add(IDS_PROMISED),
            queue: self.next_queue.saturating_add(IDS_PROMISED),
        };
    }

    /// Queues that are made from now on come behind this id, which somebody used.
    pub fn go_on_behind_queue(&mut self, used: QueueId) {
        let next = used.get().saturating_add(1);
        if next > self.next_queue {
            self.next_queue = next;
            self.note_id_used();
        }
    }

    /// A transient queue or exchange took an id. With durable ones the promise is made again anyway.
    pub(crate) fn note_id_used(&mut self) {
        let Ids { queue, exchange, .. } = self.journal.promised;
        let is_near = |next: u64, promised: u64| next.saturating_add(IDS_PROMISED / 2) > promised;
        if is_near(self.next_queue, queue) || is_near(self.next_exchange, exchange) {
            self.journal.note(EntityKey::Ids);
        }
    }

    /// A vhost goes, with what is stored beside it; its queues and exchanges tell by themselves.
    pub(crate) fn note_vhost_gone(&mut self, vhost: &Vhost) {
        let users = self.users.values();
        let of_users = users.flat_map(|user| user_keys(user).filter(|key| key.is_in(vhost.id)));
        let keys = of_users.chain(vhost_keys(vhost)).chain([EntityKey::Vhost(vhost.id)]);
        self.journal.changed.extend(keys);
    }

    /// Permissions given in a vhost go.
    pub(crate) fn note_permissions_gone(&mut self, vhost: VhostId) {
        let users = self.users.values();
        let keys = users.flat_map(|user| user_keys(user).filter(|key| key.is_in(vhost)));
        self.journal.changed.extend(keys);
    }

    /// A user goes, with what is stored beside it.
    pub(crate) fn note_user_gone(&mut self, user: &User) {
        let keys = user_keys(user).chain([EntityKey::User(user.name.clone())]);
        self.journal.changed.extend(keys);
    }
}

impl EntityKey {
    /// Whether it is a permission in this vhost.
    fn is_in(&self, vhost: VhostId) -> bool {
        matches!(self, Self::Permission(id, _) | Self::TopicPermission(id, _) if *id == vhost)
    }
}

fn user_keys(user: &User) -> impl Iterator<Item = EntityKey> {
    let permissions = user.permissions.keys();
    let permissions = permissions.map(|&id| EntityKey::Permission(id, user.name.clone()));
    let topics = user.topic_permissions();
    permissions.chain(
        topics.map(|(id, exchange, _)| EntityKey::topic_permission(id, &user.name, exchange)),
    )
}

fn vhost_keys(vhost: &Vhost) -> impl Iterator<Item = EntityKey> {
    let id = vhost.id;
    let policies = vhost.policies.keys().cloned().map(move |name| EntityKey::Policy(id, name));
    let operator = vhost.operator_policies.keys().cloned();
    let operator = operator.map(move |name| EntityKey::OperatorPolicy(id, name));
    let parameters = vhost.parameters.keys();
    let parameters =
        parameters.map(move |(component, name)| EntityKey::parameter(id, component, name));
    policies.chain(operator).chain(parameters)
}
