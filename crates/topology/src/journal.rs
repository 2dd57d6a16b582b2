//! The keys of all that changed, for the owner of the log of names and for other topologies.
//!
//! Every change of a name is noted here, with whether the thing survives a restart. The owner of the log
//! takes the keys, and asks [`Topology::store`] for the present state of each that is to be stored, or that it is gone.
//! So a thing that changed twice is stored once, in its last state. [`Topology::change`] makes a value of a key, that
//! [another topology applies](Topology::apply). Routing does not come near.
//!
//! No id may be used again after a restart, not even that of a transient queue: a message may
//! outlive its queue. So the log does not have the next id but a *promise*, an id far ahead below
//! which all ids may have been used. Other clients use a queue before its client has the answer,
//! and so before anything is on disk. So the next promise is made long before the present one is reached.

use std::collections::BTreeSet;

use crate::id::{BindingId, ExchangeId, QueueId, VhostId};
use crate::stored::Kind;
use crate::topology::Topology;
use crate::user::User;
use crate::vhost::Vhost;

/// Names one thing: one record each.
///
/// A name is all that it says: the thing may have changed or gone since.
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
    /// An exchange, the predeclared ones too.
    Exchange(ExchangeId),
    /// A queue.
    Queue(QueueId),
    /// A binding.
    Binding(BindingId),
    /// A vhost is traced. Never stored.
    Tracing(VhostId),
}

/// A thing changed, or came, or went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noted {
    /// Which.
    pub key: EntityKey,
    /// It survives a restart, or did.
    pub is_stored: bool,
}

/// What became of a thing: a value that any topology [applies](Topology::apply).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which.
    pub key: EntityKey,
    /// It survives a restart, or did.
    pub is_stored: bool,
    /// The thing as it is now, [head and body](crate::stored); a queue with its home. None: it is gone.
    pub record: Option<Box<[u8]>>,
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
    changed: Vec<Noted>,
    /// How many of them are to be stored.
    stored: usize,
    /// What is applied came from another journal, and is not noted.
    pub(crate) is_closed: bool,
    /// What was stored last of the ids.
    pub(crate) promised: Ids,
}

impl Journal {
    /// A thing that survives a restart.
    pub(crate) fn note(&mut self, key: EntityKey) {
        self.note_as(key, true);
    }

    pub(crate) fn note_as(&mut self, key: EntityKey, is_stored: bool) {
        let noted = Noted { key, is_stored };
        // Definitions change one thing several times in a row.
        if !self.is_closed && self.changed.last() != Some(&noted) {
            self.stored += usize::from(is_stored);
            self.changed.push(noted);
        }
    }

    fn note_all(&mut self, keys: impl Iterator<Item = EntityKey>) {
        keys.for_each(|key| self.note(key));
    }
}

impl Topology {
    /// The keys of all that changed since they were last taken; in the order of the changes, some perhaps twice.
    pub fn take_changes(&mut self) -> Vec<Noted> {
        self.journal.stored = 0;
        std::mem::take(&mut self.journal.changed)
    }

    /// Whether [`take_changes`](Self::take_changes) would give any that is to be stored.
    pub fn has_changes(&self) -> bool {
        self.journal.stored > 0
    }

    /// Whether [`take_changes`](Self::take_changes) would give any, and none that is to be stored.
    pub fn has_only_transient_changes(&self) -> bool {
        self.journal.stored == 0 && !self.journal.changed.is_empty()
    }

    /// What became of a thing, as it is now.
    pub fn change(&self, noted: Noted) -> Change {
        let record = self.told(&noted.key).map(Into::into);
        Change { key: noted.key, is_stored: noted.is_stored, record }
    }

    /// Notes everything as changed, in an order in which nothing comes before what it needs. What was noted is forgotten.
    pub fn note_all(&mut self) {
        self.journal.changed = self.everything();
        self.journal.stored = self.journal.changed.iter().filter(|it| it.is_stored).count();
    }

    /// Changes that make a topology with nothing in it the same as this one.
    pub fn snapshot(&self) -> Vec<Change> {
        self.everything().into_iter().map(|noted| self.change(noted)).collect()
    }

    /// Changes that make this topology the same as the one that a [snapshot](Self::snapshot) is of, whatever it followed before: a
    /// batch. Connections and channels stay counted.
    pub fn changes_towards(&self, snapshot: Vec<Change>) -> Vec<Change> {
        let there = snapshot.iter().filter(|change| change.record.is_some());
        let there: BTreeSet<&EntityKey> = there.map(|change| &change.key).collect();
        let goes = |noted: &Noted| !there.contains(&noted.key) || self.is_made_anew(&noted.key);
        let gone = self.everything().into_iter().filter(goes);
        let gone = gone.map(|Noted { key, is_stored }| Change { key, is_stored, record: None });
        gone.collect::<Vec<_>>().into_iter().chain(snapshot).collect()
    }

    /// Whether a thing is made anew if it is to be there: one that is being taken away in pieces here. A binding of another life of
    /// the owner of the names may have the number of another one.
    fn is_made_anew(&self, key: &EntityKey) -> bool {
        match key {
            EntityKey::Vhost(id) => self.vhosts.get(id).is_some_and(|vhost| vhost.is_going),
            EntityKey::Exchange(id) => self.going.exchanges.contains(id),
            EntityKey::Queue(id) => self.going.queues.contains(id),
            EntityKey::Binding(_) => true,
            _ => false,
        }
    }

    fn everything(&self) -> Vec<Noted> {
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
        let durable = |key| Noted { key, is_stored: true };
        let mut noted: Vec<_> = keys.into_iter().map(durable).collect();
        let traced = self.vhosts.values().filter(|vhost| vhost.is_traced);
        let traced = traced.map(|vhost| (EntityKey::Tracing(vhost.id), false));
        let exchanges = self.exchanges.values();
        let exchanges = exchanges.map(|it| (EntityKey::Exchange(it.id), it.durable));
        let queues = self.queues.values().map(|it| (EntityKey::Queue(it.id), it.durable));
        let bindings = self.bindings.entries();
        let bindings = bindings.map(|(_, it)| (EntityKey::Binding(it.id()), it.durable()));
        let all = exchanges.chain(queues).chain(bindings).chain(traced);
        noted.extend(all.map(|(key, is_stored)| Noted { key, is_stored }));
        // Of one sort in the order of ids: what is stored together is read together.
        noted.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        noted
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
        self.journal.note_all(keys);
        if vhost.is_traced {
            self.journal.note_as(EntityKey::Tracing(vhost.id), false);
        }
    }

    /// Permissions given in a vhost go.
    pub(crate) fn note_permissions_gone(&mut self, vhost: VhostId) {
        let users = self.users.values();
        let keys = users.flat_map(|user| user_keys(user).filter(|key| key.is_in(vhost)));
        self.journal.note_all(keys);
    }

    /// A user goes, with what is stored beside it.
    pub(crate) fn note_user_gone(&mut self, user: &User) {
        let keys = user_keys(user).chain([EntityKey::User(user.name.clone())]);
        self.journal.note_all(keys);
    }
}

impl EntityKey {
    /// What the record is of.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Ids => Kind::Ids,
            Self::Vhost(..) => Kind::Vhost,
            Self::User(..) => Kind::User,
            Self::Permission(..) => Kind::Permission,
            Self::TopicPermission(..) => Kind::TopicPermission,
            Self::GlobalParameter(..) => Kind::GlobalParameter,
            Self::Parameter(..) => Kind::Parameter,
            Self::Policy(..) => Kind::Policy,
            Self::OperatorPolicy(..) => Kind::OperatorPolicy,
            Self::Exchange(..) => Kind::Exchange,
            Self::Queue(..) => Kind::Queue,
            Self::Binding(..) => Kind::Binding,
            Self::Tracing(..) => Kind::Tracing,
        }
    }

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
