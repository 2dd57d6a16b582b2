//! From bytes to things in a topology.
//!
//! What is of the same thing as an earlier record replaces it. What belongs to something that is not there is left
//! out: so records are restored in the order of [`Kind`], and those of one kind oldest first. Nothing is checked that was
//! checked when the thing was made: a rule that came later must not keep a broker from starting.

use std::sync::Arc;

use leveret_amqp::table::Table;

use super::Kind;
use super::read::{Reader, StoredError, split};
use super::write::{
    AUTO_DELETE, BY_USER, EXCLUSIVE, GOING, HOME, INTERNAL, PAUSED, PROTECTED, TO_EXCHANGE,
    TO_QUEUE, TRANSIENT,
};
use crate::binding::{BINDING_IDS, Binding, Removed, Target};
use crate::connection::ConnectionId;
use crate::event::{Event, about_permission};
use crate::exchange::{ExchangeKind, ExchangeSpec};
use crate::homes::GROUPS_MAX;
use crate::id::{BindingId, ExchangeId, GroupId, QueueId, VhostId};
use crate::journal::{EntityKey, Ids};
use crate::parameters::LIMITS_EVENTS;
use crate::pattern::Pattern;
use crate::policy::{ApplyTo, Policy};
use crate::policy_change::PolicyChange;
use crate::queue::{QueueKind, QueueSpec};
use crate::rate::Buckets;
use crate::topology::Topology;
use crate::usage::Count;
use crate::user::{Hashing, PasswordHash, Permissions, TopicPermissions, User};
use crate::vhost::Vhost;

/// What became of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Restored {
    /// This is there now, as the record says.
    There(EntityKey),
    /// This too, and another one of the same name that was restored before is not any more.
    InsteadOf(EntityKey, EntityKey),
    /// It belongs to something that is not there, and was left out: what, for people.
    Orphan(String),
}

/// What a record does not say itself.
#[derive(Debug, Default)]
pub(crate) struct Upsert {
    /// It is of those that survive a restart.
    pub(crate) is_stored: bool,
    /// Of a binding; none if a new one is to be given.
    pub(crate) id: Option<BindingId>,
    /// Policies that were set: names in their vhosts are to be looked at.
    pub(crate) policies: Vec<PolicyChange>,
    /// It comes from another topology.
    pub(crate) is_change: bool,
}

impl Restored {
    /// What is there now.
    pub(crate) fn there(self) -> Option<EntityKey> {
        match self {
            Self::There(key) | Self::InsteadOf(key, _) => Some(key),
            Self::Orphan(_) => None,
        }
    }
}

type Result<T> = std::result::Result<T, StoredError>;

impl Topology {
    /// Takes in a whole record that was stored, head and body.
    pub fn restore(&mut self, record: &[u8]) -> Result<Restored> {
        if let Some(head) = record.get(..super::HEAD) {
            Kind::of_head(head)?;
        }
        let mut with = Upsert { is_stored: true, ..Upsert::default() };
        self.journal.is_closed = true;
        let restored = self.upsert(record, &mut with);
        with.policies.into_iter().for_each(|change| drop(self.whole(change)));
        self.journal.is_closed = false;
        // The ids that were promised may have been used.
        let Ids { vhost, exchange, queue } = self.journal.promised;
        self.next_vhost = self.next_vhost.max(vhost);
        self.next_exchange = self.next_exchange.max(exchange);
        self.next_queue = self.next_queue.max(queue);
        restored
    }

    /// After the last record: makes predeclared exchanges that are missing, which is a change.
    pub fn finish_restoring(&mut self) {
        let vhosts: Vec<_> = self.vhosts().map(|vhost| vhost.id).collect();
        vhosts.into_iter().for_each(|vhost| self.predeclare(vhost));
        self.has_restored();
    }

    /// Makes a thing what its record says, whether it is there or not. The journal is closed.
    pub(crate) fn upsert(&mut self, record: &[u8], with: &mut Upsert) -> Result<Restored> {
        let (kind, version, body) = split(record)?;
        let mut body = Reader::new(body);
        let it = &mut body;
        let restored = match kind {
            Kind::Ids => self.upsert_ids(it),
            Kind::Vhost => self.upsert_vhost(it),
            Kind::User => self.upsert_user(it),
            Kind::Permission => self.upsert_permission(it),
            Kind::TopicPermission => self.upsert_topic_permission(it),
            Kind::GlobalParameter => {
                let (name, value) = (it.text()?, it.json()?);
                self.tell_parameter("parameter.set", None, "global", name);
                self.put_global_parameter(name, value);
                Ok(Restored::There(EntityKey::GlobalParameter(name.into())))
            }
            Kind::Parameter => self.upsert_parameter(it),
            Kind::Policy | Kind::OperatorPolicy => self.upsert_policy(kind, it, with),
            Kind::Exchange => self.upsert_exchange(version, it, with),
            Kind::Queue => self.upsert_queue(it, with),
            Kind::Binding => self.upsert_binding(it, with.id),
            Kind::Tracing => self.upsert_tracing(it),
        }?;
        body.end()?;
        Ok(restored)
    }

    fn upsert_ids(&mut self, body: &mut Reader<'_>) -> Result<Restored> {
        // Whatever is used next has to be promised again.
        self.journal.promised =
            Ids { vhost: body.u32()?, exchange: body.u64()?, queue: body.u64()? };
        Ok(Restored::There(EntityKey::Ids))
    }

    fn upsert_vhost(&mut self, body: &mut Reader<'_>) -> Result<Restored> {
        let id = VhostId::new(body.u32()?);
        let mut vhost = Vhost::new(id, Arc::from(body.text()?));
        vhost.description = body.text()?.to_owned();
        vhost.tags = body.texts()?;
        vhost.default_queue_type = match body.text()? {
            "" => None,
            name => Some(queue_kind(name)?),
        };
        vhost.limits = body.limits()?;
        let flags = if body.is_empty() { 0 } else { body.u8()? };
        vhost.is_protected = flags & PROTECTED != 0;
        vhost.is_going = flags & GOING != 0;
        self.next_vhost = self.next_vhost.max(id.get().checked_add(1).ok_or(StoredError::Id)?);
        let (name, is_going) = (Arc::clone(&vhost.name), vhost.is_going);
        let named = self.vhost_names.get(&name).copied();
        let old = named.filter(|&old| old != id && !is_going);
        old.into_iter().for_each(|old| self.drop_vhost(old));
        if let Some(before) = self.vhosts.get(&id).filter(|before| !before.is_going) {
            self.vhost_names.remove(&before.name);
        }
        if !is_going {
            self.vhost_names.insert(name, id);
        }
        self.put_vhost(vhost);
        Ok(there(EntityKey::Vhost(id), old.map(EntityKey::Vhost)))
    }

    /// What is in it stays.
    fn put_vhost(&mut self, vhost: Vhost) {
        let (id, is_going, name) = (vhost.id, vhost.is_going, Arc::clone(&vhost.name));
        let (mut new_limits, mut event) = (None, Some("vhost.created"));
        if let Some(it) = self.vhosts.get_mut(&id) {
            if it.limits != vhost.limits {
                it.rates = Buckets::default();
                new_limits = Some(vhost.limits.clone());
            }
            let is_described = it.description == vhost.description
                && it.tags == vhost.tags
                && it.default_queue_type == vhost.default_queue_type;
            event = (!is_described).then_some("vhost.updated");
            it.name = vhost.name;
            it.description = vhost.description;
            it.tags = vhost.tags;
            it.default_queue_type = vhost.default_queue_type;
            it.limits = vhost.limits;
            it.is_protected = vhost.is_protected;
            it.is_going = is_going;
            self.traced -= usize::from(is_going && std::mem::take(&mut it.is_traced));
        } else {
            self.vhosts.insert(id, Box::new(vhost));
        }
        if is_going {
            return;
        }
        if let Some(event) = event {
            self.tell_vhost(event, id);
        }
        if let Some(limits) = new_limits {
            self.tell_limits(LIMITS_EVENTS, ("vhost", &name), &limits);
        }
    }

    fn upsert_user(&mut self, body: &mut Reader<'_>) -> Result<Restored> {
        let name = body.text()?;
        let hashing = body.text()?;
        let hashing = Hashing::parse(hashing).ok_or_else(|| unknown("hashing", hashing))?;
        let password = PasswordHash::from_bytes(body.bytes()?, hashing);
        let user = User {
            name: name.into(),
            password,
            tags: body.texts()?,
            limits: body.limits()?,
            connections: Count::default(),
            channels: Count::default(),
            rates: Buckets::default(),
            permissions: std::collections::BTreeMap::new(),
            topics: std::collections::BTreeMap::new(),
        };
        self.put_user(user);
        Ok(Restored::There(EntityKey::User(name.into())))
    }

    /// Permissions and what is counted stay.
    fn put_user(&mut self, user: User) {
        let name = user.name.clone();
        self.hash_kinds.add(&user.password);
        let Some(it) = self.users.get_mut(&name) else {
            let tags = user.tags.clone();
            self.users.insert(name.clone(), user);
            self.tell(|_| Event::new("user.created").with("name", &*name));
            if !tags.is_empty() {
                self.tell_tags(&name, &tags);
            }
            return;
        };
        self.hash_kinds.remove(&it.password);
        let (new_password, new_tags) = (it.password != user.password, it.tags != user.tags);
        let new_limits = it.limits != user.limits;
        if new_limits {
            it.rates = Buckets::default();
        }
        let User { password, tags, limits, .. } = user;
        it.password = password;
        it.tags.clone_from(&tags);
        it.limits.clone_from(&limits);
        if new_password {
            self.tell(|_| Event::new("user.password.changed").with("name", &*name));
        }
        if new_tags {
            self.tell_tags(&name, &tags);
        }
        if new_limits {
            self.tell_limits(USER_LIMITS_EVENTS, ("username", &name), &limits);
        }
    }

    fn upsert_permission(&mut self, body: &mut Reader<'_>) -> Result<Restored> {
        let (vhost, name) = (VhostId::new(body.u32()?), body.text()?);
        let (configure, write, read) = (body.text()?, body.text()?, body.text()?);
        let permissions = Permissions::new(configure, write, read)?;
        let found = self.users.get_mut(name).filter(|_| self.vhosts.contains_key(&vhost));
        let Some(user) = found else {
            return Ok(Restored::Orphan(format!("permissions of user '{name}' in vhost {vhost}")));
        };
        user.permissions.insert(vhost, permissions);
        self.tell(|all| {
            about_permission("permission.created", name, all.vhost_name(vhost))
                .with("configure", configure)
                .with("write", write)
                .with("read", read)
        });
        Ok(Restored::There(EntityKey::Permission(vhost, name.into())))
    }

    fn upsert_topic_permission(&mut self, body: &mut Reader<'_>) -> Result<Restored> {
        let vhost = VhostId::new(body.u32()?);
        let (name, exchange) = (body.text()?, body.text()?);
        let (write, read) = (body.text()?, body.text()?);
        let place = self.vhosts.get(&vhost);
        let (Some(user), Some(place)) = (self.users.get_mut(name), place) else {
            let text = format!("topic permissions of user '{name}' in vhost {vhost}");
            return Ok(Restored::Orphan(text));
        };
        let topics = TopicPermissions::expanded(name, &place.name, write, read)?;
        user.topics.entry(vhost).or_default().insert(exchange.into(), topics);
        self.tell(|all| {
            about_permission("topic.permission.created", name, all.vhost_name(vhost))
                .with("exchange", exchange)
                .with("write", write)
                .with("read", read)
        });
        Ok(Restored::There(EntityKey::topic_permission(vhost, name, exchange)))
    }

    fn upsert_parameter(&mut self, body: &mut Reader<'_>) -> Result<Restored> {
        let vhost = VhostId::new(body.u32()?);
        let (component, name, value) = (body.text()?, body.text()?, body.json()?);
        let Some(place) = self.vhost_mut(vhost) else {
            return Ok(Restored::Orphan(format!("{component} parameter '{name}'")));
        };
        let old = place.parameters.insert((component.into(), name.into()), value.clone());
        self.weigh_setting(old.as_ref(), Some(&value));
        self.tell_parameter("parameter.set", Some(vhost), component, name);
        Ok(Restored::There(EntityKey::parameter(vhost, component, name)))
    }

    fn upsert_policy(
        &mut self,
        kind: Kind,
        body: &mut Reader<'_>,
        with: &mut Upsert,
    ) -> Result<Restored> {
        let vhost = VhostId::new(body.u32()?);
        let name = body.text()?;
        let policy = Policy {
            name: name.into(),
            pattern: Pattern::stored(body.text()?)?,
            apply_to: ApplyTo::parse(body.text()?)?,
            priority: body.i64()?,
            definition: body.json_map()?,
        };
        let operator = kind == Kind::OperatorPolicy;
        let Some(change) = self.put_policy(vhost, policy, operator) else {
            return Ok(Restored::Orphan(format!("{kind} '{name}'")));
        };
        with.policies.push(change);
        Ok(Restored::There(if operator {
            EntityKey::OperatorPolicy(vhost, name.into())
        } else {
            EntityKey::Policy(vhost, name.into())
        }))
    }

    fn upsert_exchange(
        &mut self,
        version: u8,
        body: &mut Reader<'_>,
        with: &Upsert,
    ) -> Result<Restored> {
        let durable = with.is_stored;
        let (id, vhost) = (ExchangeId::new(body.u64()?), VhostId::new(body.u32()?));
        let name = body.text()?;
        let kind = ExchangeKind::parse(body.text()?)?;
        let flags = body.u8()?;
        let arguments = body.table()?;
        let is_noted = version > 1 && flags & BY_USER != 0;
        let declared_by = if is_noted { Some(self.shared_user(body.text()?)) } else { None };
        let home = if flags & HOME == 0 { None } else { Some(GroupId::new(body.u32()?)) };
        check_stored(flags, durable)?;
        let is_told = with.is_change && kind == ExchangeKind::RecentHistory;
        let home = told_home(home, self.homes.choose_history(id), self.homes.groups(), is_told)?;
        self.used_exchange(id)?;
        let Some(place) = self.vhost_even_going(vhost) else {
            return Ok(Restored::Orphan(format!("exchange '{name}'")));
        };
        let old = place.exchange_id(name).filter(|&old| old != id);
        let (auto_delete, internal) = (flags & AUTO_DELETE != 0, flags & INTERNAL != 0);
        let is_it = self.exchanges.get(&id).is_some_and(|it| {
            (it.vhost, &*it.name, it.kind) == (vhost, name, kind)
                && (it.durable, it.auto_delete, it.internal) == (durable, auto_delete, internal)
                && it.arguments.to_bytes() == arguments.to_bytes()
        });
        if !is_it {
            // It never changes: so this is another one.
            old.into_iter().chain([id]).for_each(|old| self.drop_whole(Target::Exchange(old)));
            let spec =
                ExchangeSpec { vhost, name, kind: "", durable, auto_delete, internal, arguments };
            self.insert_exchange(id, home, spec, kind);
            self.tell_exchange_created(id);
        } else if let Some(exchange) = self.exchanges.get_mut(&id) {
            exchange.home = home;
        }
        self.exchange_declared_by(id, declared_by);
        Ok(there(EntityKey::Exchange(id), old.map(EntityKey::Exchange)))
    }

    fn upsert_queue(&mut self, body: &mut Reader<'_>, with: &Upsert) -> Result<Restored> {
        let durable = with.is_stored;
        let QueueRecord {
            id,
            vhost,
            name,
            kind,
            flags,
            arguments,
            declared_by,
            exclusive_owner,
            home,
            declared,
        } = QueueRecord::read(body)?;
        check_stored(flags, durable)?;
        let (usual, groups) = (self.homes.usual(id), self.homes.groups());
        let home = told_home(home, usual, groups, with.is_change)?;
        self.used_queue(id)?;
        let Some(place) = self.vhost_even_going(vhost) else {
            return Ok(Restored::Orphan(format!("queue '{name}'")));
        };
        let old = place.queue_id(name).filter(|&old| old != id);
        let auto_delete = flags & AUTO_DELETE != 0;
        let is_it = self.queues.get(&id).is_some_and(|it| {
            (it.vhost, &*it.name, it.kind) == (vhost, name, kind)
                && (it.durable, it.auto_delete) == (durable, auto_delete)
                && it.exclusive_owner == exclusive_owner
        });
        let arguments = if is_it {
            Some(arguments)
        } else {
            old.into_iter().chain([id]).for_each(|old| self.drop_whole(Target::Queue(old)));
            let spec = QueueSpec {
                vhost,
                name,
                server_named: false,
                durable,
                auto_delete,
                exclusive_owner,
                arguments,
            };
            self.insert_queue(id, home, spec, kind);
            self.tell_queue_created(id);
            None
        };
        self.queue_declared_by(id, declared_by);
        let mut moved = false;
        self.queues.change(&id, |queue| {
            if let Some(arguments) = arguments {
                queue.arguments = arguments;
            }
            queue.paused = flags & PAUSED != 0;
            queue.declared = declared;
            moved = std::mem::replace(&mut queue.home, home) != home;
        });
        // What was routed there goes elsewhere now.
        self.generation += u64::from(moved);
        Ok(there(EntityKey::Queue(id), old.map(EntityKey::Queue)))
    }

    fn upsert_binding(&mut self, body: &mut Reader<'_>, id: Option<BindingId>) -> Result<Restored> {
        let (source, target) = read_ends(body)?;
        let (key, arguments) = (body.text()?, body.table()?);
        if let Some(id) = id {
            self.used_binding(id)?;
        }
        let has_target = match target {
            Target::Queue(id) => self.queues.contains_key(&id),
            Target::Exchange(id) => self.exchanges.contains_key(&id),
        };
        if !has_target || !self.exchanges.contains_key(&source) {
            let text = format!("binding of {target:?} to exchange {source} with key '{key}'");
            return Ok(Restored::Orphan(text));
        }
        let binding = Binding { source, target, key: key.into(), arguments };
        if let Some(ix) = self.bindings.find(&binding) {
            let found = self.bindings.entry(ix).id();
            if id.is_none_or(|id| id == found) {
                return Ok(Restored::There(EntityKey::Binding(found)));
            }
            self.remove_binding(ix, &mut Removed::default());
        }
        let id = id.unwrap_or_else(|| self.bindings.next_id());
        if let Some(ix) = self.bindings.find_id(id) {
            self.remove_binding(ix, &mut Removed::default());
        }
        self.tell_binding("binding.created", &binding, None);
        self.put_binding(id, binding);
        Ok(Restored::There(EntityKey::Binding(id)))
    }

    fn upsert_tracing(&mut self, body: &mut Reader<'_>) -> Result<Restored> {
        let id = VhostId::new(body.u32()?);
        let Some(vhost) = self.vhosts.get_mut(&id).filter(|vhost| !vhost.is_going) else {
            return Ok(Restored::Orphan(format!("tracing of vhost {id}")));
        };
        self.traced += usize::from(!std::mem::replace(&mut vhost.is_traced, true));
        self.tell_vhost("vhost.updated", id);
        Ok(Restored::There(EntityKey::Tracing(id)))
    }

    /// No exchange that comes later has an id that was used.
    pub(crate) fn used_exchange(&mut self, id: ExchangeId) -> Result<()> {
        let next = id.get().checked_add(1).ok_or(StoredError::Id)?;
        self.next_exchange = self.next_exchange.max(next);
        Ok(())
    }

    /// No queue that comes later has an id that was used.
    pub(crate) fn used_queue(&mut self, id: QueueId) -> Result<()> {
        self.next_queue = self.next_queue.max(id.get().checked_add(1).ok_or(StoredError::Id)?);
        Ok(())
    }

    /// No binding that comes later has an id that was used.
    pub(crate) fn used_binding(&mut self, id: BindingId) -> Result<()> {
        if id.get() >= BINDING_IDS {
            return Err(StoredError::Id);
        }
        self.bindings.used(id);
        Ok(())
    }
}

/// What a record says of a queue.
pub(crate) struct QueueRecord<'a> {
    pub(crate) id: QueueId,
    pub(crate) vhost: VhostId,
    pub(crate) name: &'a str,
    pub(crate) kind: QueueKind,
    flags: u8,
    arguments: Table,
    declared_by: &'a str,
    pub(crate) exclusive_owner: Option<ConnectionId>,
    pub(crate) home: Option<GroupId>,
    declared: Option<Box<Table>>,
}

impl<'a> QueueRecord<'a> {
    /// Reads a whole record, head and body.
    pub(crate) fn of(record: &'a [u8]) -> Result<Self> {
        let (kind, _, body) = split(record)?;
        if kind != Kind::Queue {
            return Err(StoredError::Kind(kind as u8));
        }
        let mut body = Reader::new(body);
        let queue = Self::read(&mut body)?;
        body.end()?;
        Ok(queue)
    }

    fn read(body: &mut Reader<'a>) -> Result<Self> {
        let (id, vhost) = (QueueId::new(body.u64()?), VhostId::new(body.u32()?));
        let name = body.text()?;
        let kind = queue_kind(body.text()?)?;
        let flags = body.u8()?;
        let arguments = body.table()?;
        let declared_by = if flags & BY_USER == 0 { "" } else { body.text()? };
        let exclusive_owner =
            if flags & EXCLUSIVE == 0 { None } else { Some(ConnectionId::from_bits(body.u64()?)) };
        let home = if flags & HOME == 0 { None } else { Some(GroupId::new(body.u32()?)) };
        let declared = if body.is_empty() { None } else { Some(Box::new(body.table()?)) };
        Ok(Self {
            id,
            vhost,
            name,
            kind,
            flags,
            arguments,
            declared_by,
            exclusive_owner,
            home,
            declared,
        })
    }
}

/// The source and the destination that the whole record of a binding says.
pub(crate) fn ends_of_binding(record: &[u8]) -> Result<(ExchangeId, Target)> {
    let (kind, _, body) = split(record)?;
    if kind != Kind::Binding {
        return Err(StoredError::Kind(kind as u8));
    }
    let mut body = Reader::new(body);
    let ends = read_ends(&mut body)?;
    let (_key, _arguments) = (body.text()?, body.table()?);
    body.end()?;
    Ok(ends)
}

fn read_ends(body: &mut Reader<'_>) -> Result<(ExchangeId, Target)> {
    let source = ExchangeId::new(body.u64()?);
    let target = match (body.u8()?, body.u64()?) {
        (TO_QUEUE, id) => Target::Queue(QueueId::new(id)),
        (TO_EXCHANGE, id) => Target::Exchange(ExchangeId::new(id)),
        (other, _) => return Err(unknown("destination", &other.to_string())),
    };
    Ok((source, target))
}

/// The events of a user's limits that are set, and of a user that has none any more.
const USER_LIMITS_EVENTS: (&str, &str) = ("user.limits.set", "user.limits.cleared");

/// A home by its record. What was stored here tells only homes that are not the usual ones, and those are here. A change always tells it,
/// and the group may be elsewhere.
fn told_home(
    told: Option<GroupId>,
    usual: GroupId,
    groups: u32,
    is_change: bool,
) -> Result<GroupId> {
    let (home, groups) = match told {
        None if is_change => return Err(StoredError::Homeless),
        None => return Ok(usual),
        Some(home) if is_change => (home, GROUPS_MAX),
        Some(home) => (home, groups),
    };
    if home.get() < groups { Ok(home) } else { Err(StoredError::Home { home, groups }) }
}

/// Refuses a transient thing among those that survive a restart, and the other way round.
fn check_stored(flags: u8, durable: bool) -> Result<()> {
    let is_stored = flags & (TRANSIENT | EXCLUSIVE) == 0;
    if is_stored == durable { Ok(()) } else { Err(StoredError::Transient { is_stored }) }
}

fn there(key: EntityKey, old: Option<EntityKey>) -> Restored {
    match old {
        Some(old) if old != key => Restored::InsteadOf(key, old),
        _ => Restored::There(key),
    }
}

fn queue_kind(name: &str) -> Result<QueueKind> {
    let kinds = [QueueKind::Classic, QueueKind::Quorum];
    kinds.into_iter().find(|kind| kind.name() == name).ok_or_else(|| unknown("queue type", name))
}

fn unknown(what: &'static str, name: &str) -> StoredError {
    StoredError::Unknown { what, name: name.to_owned() }
}
