//! From bytes to things in a topology.
//!
//! Records are restored in the order of [`Kind`], and those of one kind oldest first; the later of two
//! that are of the same thing replaces the other. What belongs to something that is not there is left
//! out. Nothing is checked that was checked when the thing was made: a rule that came later must not
//! keep a broker from starting.

use std::sync::Arc;

use super::Kind;
use super::read::{Reader, StoredError, split};
use super::write::{
    AUTO_DELETE, BY_USER, GOING, INTERNAL, PAUSED, PROTECTED, TO_EXCHANGE, TO_QUEUE,
};
use crate::binding::{Binding, Target};
use crate::exchange::{ExchangeKind, ExchangeSpec};
use crate::id::{ExchangeId, QueueId, VhostId};
use crate::journal::{EntityKey, Ids};
use crate::pattern::Pattern;
use crate::policy::{ApplyTo, Policy};
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

type Result<T> = std::result::Result<T, StoredError>;

impl Topology {
    /// Takes in a whole record, head and body. The order is that of [`Kind`].
    pub fn restore(&mut self, record: &[u8]) -> Result<Restored> {
        let (kind, version, body) = split(record)?;
        let mut body = Reader::new(body);
        let it = &mut body;
        let restored = match kind {
            Kind::Ids => self.restore_ids(it),
            Kind::Vhost => self.restore_vhost(it),
            Kind::User => self.restore_user(it),
            Kind::Permission => self.restore_permission(it),
            Kind::TopicPermission => self.restore_topic_permission(it),
            Kind::GlobalParameter => {
                let (name, value) = (it.text()?, it.json()?);
                self.put_global_parameter(name, value);
                Ok(Restored::There(EntityKey::GlobalParameter(name.into())))
            }
            Kind::Parameter => self.restore_parameter(it),
            Kind::Policy | Kind::OperatorPolicy => self.restore_policy(kind, it),
            Kind::Exchange => self.restore_exchange(version, it),
            Kind::Queue => self.restore_queue(it),
            Kind::Binding => self.restore_binding(it),
        }?;
        body.end()?;
        Ok(restored)
    }

    /// After the last record: makes predeclared exchanges that are missing, which is a change.
    pub fn finish_restoring(&mut self) {
        let vhosts: Vec<_> = self.vhosts().map(|vhost| vhost.id).collect();
        vhosts.into_iter().for_each(|vhost| self.predeclare(vhost));
        self.generation += 1;
        self.access_generation += 1;
        self.take_matching();
    }

    fn restore_ids(&mut self, body: &mut Reader<'_>) -> Result<Restored> {
        let ids = Ids { vhost: body.u32()?, exchange: body.u64()?, queue: body.u64()? };
        self.next_vhost = self.next_vhost.max(ids.vhost);
        self.next_exchange = self.next_exchange.max(ids.exchange);
        self.next_queue = self.next_queue.max(ids.queue);
        // Whatever is used next has to be promised again.
        self.journal.promised = ids;
        Ok(Restored::There(EntityKey::Ids))
    }

    fn restore_vhost(&mut self, body: &mut Reader<'_>) -> Result<Restored> {
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
        if let Some(old) = self.vhosts.remove(&id)
            && !old.is_going
        {
            self.vhost_names.remove(&old.name);
        }
        let key = EntityKey::Vhost(id);
        if vhost.is_going {
            self.vhosts.insert(id, Box::new(vhost));
            return Ok(Restored::There(key));
        }
        let old = self.vhost_names.remove(&vhost.name);
        if let Some(old) = old {
            self.vhosts.remove(&old);
        }
        self.insert_vhost(vhost);
        Ok(there(key, old.map(EntityKey::Vhost)))
    }

    fn restore_user(&mut self, body: &mut Reader<'_>) -> Result<Restored> {
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
        self.hash_kinds.add(&user.password);
        if let Some(before) = self.users.insert(name.into(), user) {
            self.hash_kinds.remove(&before.password);
        }
        Ok(Restored::There(EntityKey::User(name.into())))
    }

    fn restore_permission(&mut self, body: &mut Reader<'_>) -> Result<Restored> {
        let (vhost, name) = (VhostId::new(body.u32()?), body.text()?);
        let permissions = Permissions::new(body.text()?, body.text()?, body.text()?)?;
        let found = self.users.get_mut(name).filter(|_| self.vhosts.contains_key(&vhost));
        let Some(user) = found else {
            return Ok(Restored::Orphan(format!("permissions of user '{name}' in vhost {vhost}")));
        };
        user.permissions.insert(vhost, permissions);
        Ok(Restored::There(EntityKey::Permission(vhost, name.into())))
    }

    fn restore_topic_permission(&mut self, body: &mut Reader<'_>) -> Result<Restored> {
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
        Ok(Restored::There(EntityKey::topic_permission(vhost, name, exchange)))
    }

    fn restore_parameter(&mut self, body: &mut Reader<'_>) -> Result<Restored> {
        let vhost = VhostId::new(body.u32()?);
        let (component, name, value) = (body.text()?, body.text()?, body.json()?);
        let Some(place) = self.vhost_mut(vhost) else {
            return Ok(Restored::Orphan(format!("{component} parameter '{name}'")));
        };
        let old = place.parameters.insert((component.into(), name.into()), value.clone());
        self.weigh_setting(old.as_ref(), Some(&value));
        Ok(Restored::There(EntityKey::parameter(vhost, component, name)))
    }

    fn restore_policy(&mut self, kind: Kind, body: &mut Reader<'_>) -> Result<Restored> {
        let vhost = VhostId::new(body.u32()?);
        let name = body.text()?;
        let policy = Arc::new(Policy {
            name: name.into(),
            pattern: Pattern::stored(body.text()?)?,
            apply_to: ApplyTo::parse(body.text()?)?,
            priority: body.i64()?,
            definition: body.json_map()?,
        });
        let Some(place) = self.vhost_mut(vhost) else {
            return Ok(Restored::Orphan(format!("{kind} '{name}'")));
        };
        let (policies, key) = if kind == Kind::Policy {
            (&mut place.policies, EntityKey::Policy(vhost, name.into()))
        } else {
            (&mut place.operator_policies, EntityKey::OperatorPolicy(vhost, name.into()))
        };
        let old = policies.insert(name.into(), Arc::clone(&policy));
        self.weigh_setting(old.as_deref(), Some(&*policy));
        Ok(Restored::There(key))
    }

    fn restore_exchange(&mut self, version: u8, body: &mut Reader<'_>) -> Result<Restored> {
        let (id, vhost) = (ExchangeId::new(body.u64()?), VhostId::new(body.u32()?));
        let name = body.text()?;
        let kind = ExchangeKind::parse(body.text()?)?;
        let flags = body.u8()?;
        let arguments = body.table()?;
        let is_noted = version > 1 && flags & BY_USER != 0;
        let declared_by = if is_noted { Some(self.shared_user(body.text()?)) } else { None };
        let next = id.get().checked_add(1).ok_or(StoredError::Id)?;
        self.next_exchange = self.next_exchange.max(next);
        let Some(place) = self.vhost_even_going(vhost) else {
            return Ok(Restored::Orphan(format!("exchange '{name}'")));
        };
        let old = place.exchange_id(name);
        for old in old.into_iter().chain([id]) {
            self.forget_exchange(old);
        }
        let (auto_delete, internal) = (flags & AUTO_DELETE != 0, flags & INTERNAL != 0);
        let spec =
            ExchangeSpec { vhost, name, kind: "", durable: true, auto_delete, internal, arguments };
        self.insert_exchange(id, spec, kind);
        self.exchange_declared_by(id, declared_by);
        Ok(there(EntityKey::Exchange(id), old.map(EntityKey::Exchange)))
    }

    fn restore_queue(&mut self, body: &mut Reader<'_>) -> Result<Restored> {
        let (id, vhost) = (QueueId::new(body.u64()?), VhostId::new(body.u32()?));
        let name = body.text()?;
        let kind = queue_kind(body.text()?)?;
        let flags = body.u8()?;
        let arguments = body.table()?;
        let declared_by = if flags & BY_USER == 0 { "" } else { body.text()? };
        let declared = if body.is_empty() { None } else { Some(Box::new(body.table()?)) };
        self.next_queue = self.next_queue.max(id.get().checked_add(1).ok_or(StoredError::Id)?);
        let Some(place) = self.vhost_even_going(vhost) else {
            return Ok(Restored::Orphan(format!("queue '{name}'")));
        };
        let old = place.queue_id(name);
        for old in old.into_iter().chain([id]) {
            self.forget_queue(old);
        }
        let spec = QueueSpec {
            vhost,
            name,
            server_named: false,
            durable: true,
            auto_delete: flags & AUTO_DELETE != 0,
            exclusive_owner: None,
            arguments,
        };
        self.insert_queue(id, spec, kind);
        self.queue_declared_by(id, declared_by);
        self.queues.change(&id, |queue| {
            queue.paused = flags & PAUSED != 0;
            queue.declared = declared;
        });
        Ok(there(EntityKey::Queue(id), old.map(EntityKey::Queue)))
    }

    fn restore_binding(&mut self, body: &mut Reader<'_>) -> Result<Restored> {
        let source = ExchangeId::new(body.u64()?);
        let target = match (body.u8()?, body.u64()?) {
            (TO_QUEUE, id) => Target::Queue(QueueId::new(id)),
            (TO_EXCHANGE, id) => Target::Exchange(ExchangeId::new(id)),
            (other, _) => return Err(unknown("destination", &other.to_string())),
        };
        let (key, arguments) = (body.text()?, body.table()?);
        let has_target = match target {
            Target::Queue(id) => self.queues.contains_key(&id),
            Target::Exchange(id) => self.exchanges.contains_key(&id),
        };
        if !has_target || !self.exchanges.contains_key(&source) {
            let text = format!("binding of {target:?} to exchange {source} with key '{key}'");
            return Ok(Restored::Orphan(text));
        }
        let binding = Binding { source, target, key: key.into(), arguments };
        let ix = match self.bindings.find(&binding) {
            Some(ix) => ix,
            None => self.put_binding(binding),
        };
        Ok(Restored::There(EntityKey::Binding(ix)))
    }

    /// Before there are bindings.
    fn forget_exchange(&mut self, id: ExchangeId) {
        if let Some(exchange) = self.exchanges.remove(&id)
            && let Some(vhost) = self.vhost_mut(exchange.vhost)
        {
            vhost.exchanges.remove(&exchange.name);
        }
    }

    /// Before there are bindings.
    fn forget_queue(&mut self, id: QueueId) {
        if let Some(queue) = self.queues.remove(&id)
            && let Some(vhost) = self.vhost_mut(queue.vhost)
        {
            vhost.queues.remove(&queue.name);
        }
    }
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
