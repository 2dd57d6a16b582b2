//! The whole of it: tables by id, vhosts, and what changes with them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashMap;
use leveret_amqp::table::Table;
use serde_json::Value as Json;

use crate::binding::{Bindings, RemovedExchange};
use crate::connection::ConnectionId;
use crate::defaults::Defaults;
use crate::error::{AdminError, NamesFull};
use crate::event::Events;
use crate::exchange::{Exchange, ExchangeKind, ExchangeSpec};
use crate::going::Going;
use crate::hash::Keyed;
use crate::homes::Homes;
use crate::id::{ExchangeId, QueueId, VhostId};
use crate::journal::{EntityKey, Journal};
use crate::kinds::HashKinds;
use crate::named::Named;
use crate::queue::{Queue, QueueKind};
use crate::usage::{NodeChannels, UseWatch};
use crate::user::User;
use crate::vhost::{DeletedVhost, Matching, Vhost};
use crate::weight::{self, Weighed};

/// Every name the broker knows. See the crate.
#[derive(Debug, Default)]
pub struct Topology {
    pub(crate) vhosts: BTreeMap<VhostId, Box<Vhost>>,
    pub(crate) vhost_names: HashMap<Arc<str>, VhostId, Keyed>,
    pub(crate) exchanges: Weighed<ExchangeId, Box<Exchange>>,
    pub(crate) queues: Weighed<QueueId, Box<Queue>>,
    /// Exclusive queues by connection.
    pub(crate) owned: BTreeMap<ConnectionId, BTreeSet<QueueId>>,
    pub(crate) bindings: Bindings,
    pub(crate) users: BTreeMap<Box<str>, User>,
    /// Of their passwords.
    pub(crate) hash_kinds: HashKinds,
    pub(crate) global_parameters: BTreeMap<Box<str>, Json>,
    /// What policies and parameters weigh.
    pub(crate) settings_weight: u64,
    /// What all may weigh together, if that has a bound.
    pub(crate) weight_max: Option<u64>,
    pub(crate) homes: Homes,
    pub(crate) next_vhost: u32,
    pub(crate) next_exchange: u64,
    pub(crate) next_queue: u64,
    /// The name that the last queue's creator has in all of that user's queues.
    pub(crate) last_declared_by: Arc<str>,
    /// Whose changes are made now; "" is the broker itself.
    pub(crate) acting: Arc<str>,
    /// Exchanges and queues that are deleted and still have bindings.
    pub(crate) going: Going,
    pub(crate) generation: u64,
    pub(crate) access_generation: u64,
    pub(crate) journal: Journal,
    pub(crate) events: Events,
    /// Vhosts that are traced.
    pub(crate) traced: usize,
    pub(crate) channels: NodeChannels,
    /// Where changes of what has a limit are noted, if somebody tells them.
    pub(crate) use_watch: Option<Arc<UseWatch>>,
    /// What new vhosts have as their type of queues, unless they are given another one.
    pub(crate) default_queue_type: Option<QueueKind>,
    /// What else they have, and what new passwords have to be like.
    pub(crate) defaults: Arc<Defaults>,
    pub(crate) matching: Matching,
}

/// Declared in every vhost, as RabbitMQ does.
pub(crate) const PREDECLARED: [(&str, ExchangeKind, bool); 7] = [
    ("", ExchangeKind::Direct, false),
    ("amq.direct", ExchangeKind::Direct, false),
    ("amq.fanout", ExchangeKind::Fanout, false),
    ("amq.headers", ExchangeKind::Headers, false),
    ("amq.match", ExchangeKind::Headers, false),
    ("amq.topic", ExchangeKind::Topic, false),
    ("amq.rabbitmq.trace", ExchangeKind::Topic, true),
];

impl Topology {
    /// Nothing at all: no vhost, no user.
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on changes are this user's; the broker's own with an empty name.
    pub fn act_as(&mut self, user: &str) {
        // Most changes in a row are of one user, whose name is shared by what they make.
        if *self.acting != *user {
            self.acting = user.into();
        }
    }

    /// Changes whenever a route could: a route found at one generation is right as long as it stands.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Changes whenever an answer about users and permissions could.
    pub fn access_generation(&self) -> u64 {
        self.access_generation
    }

    /// The vhost of this name.
    pub fn vhost(&self, name: &str) -> Option<&Vhost> {
        self.vhost_by_id(*self.vhost_names.get(name)?)
    }

    /// The vhost with this id.
    #[inline]
    pub fn vhost_by_id(&self, id: VhostId) -> Option<&Vhost> {
        self.vhost_even_going(id).filter(|vhost| !vhost.is_going)
    }

    pub(crate) fn vhost_even_going(&self, id: VhostId) -> Option<&Vhost> {
        self.vhosts.get(&id).map(AsRef::as_ref)
    }

    /// All vhosts, oldest first.
    pub fn vhosts(&self) -> impl Iterator<Item = &Vhost> {
        self.vhosts.values().map(AsRef::as_ref).filter(|vhost| !vhost.is_going)
    }

    /// The exchange named "" of a vhost.
    pub fn default_exchange(&self, vhost: VhostId) -> Option<ExchangeId> {
        self.vhost_by_id(vhost).map(|vhost| vhost.default_exchange)
    }

    /// The exchange of this name.
    pub fn exchange(&self, vhost: VhostId, name: &str) -> Option<&Exchange> {
        self.exchange_by_id(self.vhost_by_id(vhost)?.exchange_id(name)?)
    }

    /// The exchange with this id.
    #[inline]
    pub fn exchange_by_id(&self, id: ExchangeId) -> Option<&Exchange> {
        self.exchanges.get(&id).map(AsRef::as_ref).filter(|exchange| !exchange.is_going)
    }

    /// The exchanges of a vhost, by name.
    pub fn exchanges(&self, vhost: VhostId) -> Vec<&Exchange> {
        let ids = self.vhost_by_id(vhost).into_iter().flat_map(|vhost| vhost.exchanges.values());
        let mut all: Vec<_> = ids.filter_map(|&id| self.exchange_by_id(id)).collect();
        all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// The queue of this name.
    pub fn queue(&self, vhost: VhostId, name: &str) -> Option<&Queue> {
        self.queue_by_id(self.vhost_by_id(vhost)?.queue_id(name)?)
    }

    /// The queue with this id.
    pub fn queue_by_id(&self, id: QueueId) -> Option<&Queue> {
        self.queues.get(&id).map(AsRef::as_ref).filter(|queue| !queue.is_going)
    }

    /// The queues of a vhost, by name.
    pub fn queues(&self, vhost: VhostId) -> Vec<&Queue> {
        let ids = self.vhost_by_id(vhost).into_iter().flat_map(|vhost| vhost.queues.values());
        let mut all: Vec<_> = ids.filter_map(|&id| self.queue_by_id(id)).collect();
        all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Bytes of memory that names with their arguments, policies and parameters take, roughly.
    pub fn weight(&self) -> u64 {
        let names = self.queues.weight() + self.exchanges.weight() + self.bindings.weight();
        names + self.settings_weight
    }

    /// From now on names weigh so many bytes at most, and what is not small is made only while they weigh less than half of that, so
    /// that whoever makes large ones leaves room for the others. What is read from the disk comes in any case.
    pub fn set_weight_max(&mut self, bytes: u64) {
        self.weight_max = Some(bytes);
    }

    /// Refuses what is new and takes so many bytes while there is no room for it.
    pub(crate) fn check_room(&self, bytes: u64) -> Result<(), NamesFull> {
        let Some(all) = self.weight_max else { return Ok(()) };
        let (held, max) = (self.weight(), if bytes > weight::SMALL_NAME { all / 2 } else { all });
        if held > max { Err(NamesFull { bytes, held, max }) } else { Ok(()) }
    }

    /// What it has cost to match names that came with policies, since this was last asked: in units of about a microsecond.
    pub fn take_matching(&mut self) -> u64 {
        std::mem::take(&mut self.matching.units)
    }

    /// A vhost in which too many names have taken a policy's pattern long: others are not matched to the end with such
    /// patterns from now on. Each is told once.
    pub fn take_exhausted(&mut self) -> Option<Arc<str>> {
        self.matching.exhausted.take()
    }

    /// How many queues there are in all vhosts.
    pub fn queue_count(&self) -> usize {
        let of_vhost = |id| self.vhost_even_going(id).map_or(0, Vhost::queue_count);
        self.queues.len()
            - self.going.queues.len()
            - self.going_vhosts().map(of_vhost).sum::<usize>()
    }

    /// How many exchanges there are in all vhosts.
    pub fn exchange_count(&self) -> usize {
        self.exchanges.len() - self.going.exchanges.len()
    }

    /// How many bindings there are, without those of the default exchanges.
    pub fn binding_count(&self) -> usize {
        self.bindings.len()
    }

    /// Adds a vhost with its predeclared exchanges and [defaults](Self::choose_defaults). Adding one that exists changes nothing.
    pub fn add_vhost(&mut self, name: &str) -> Result<VhostId, AdminError> {
        if let Some(&id) = self.vhost_names.get(name) {
            return Ok(id);
        }
        Named::Vhost.check(name)?;
        if let Some(limit) = self.defaults.vhosts_max
            && self.vhosts().count() as u64 >= limit
        {
            return Err(AdminError::VhostLimit { vhost: name.to_owned(), limit });
        }
        let id = VhostId::new(self.next_vhost);
        self.next_vhost = self.next_vhost.checked_add(1).expect("fewer than 2^32 vhosts");
        let mut vhost = Vhost::new(id, name.into());
        vhost.default_queue_type = self.default_queue_type;
        self.insert_vhost(vhost);
        self.journal.note(EntityKey::Vhost(id));
        self.predeclare(id);
        self.tell_vhost("vhost.created", id);
        self.access_generation += 1;
        self.event_exchange_for(id, name);
        if let Err(error) = self.apply_defaults(id, name) {
            // Whole or not at all: without its limits it would be open to more than the operator allows.
            self.delete_vhost(name)?;
            return Err(error);
        }
        Ok(id)
    }

    /// The id and the name are free.
    pub(crate) fn insert_vhost(&mut self, vhost: Vhost) {
        self.vhost_names.insert(Arc::clone(&vhost.name), vhost.id);
        self.vhosts.insert(vhost.id, Box::new(vhost));
    }

    /// Makes those of the predeclared exchanges that a vhost does not have.
    pub(crate) fn predeclare(&mut self, id: VhostId) {
        for (name, kind, internal) in PREDECLARED {
            if self.exchange(id, name).is_some() {
                continue;
            }
            let spec = ExchangeSpec {
                vhost: id,
                name,
                kind: kind.name(),
                durable: true,
                auto_delete: false,
                internal,
                arguments: Table::new(),
            };
            self.create_exchange(spec, kind);
        }
    }

    /// What vhosts that are made from now on have as their [`default_queue_type`](Vhost::default_queue_type), unless they are
    /// given one. It is kept with them, so that another choice does not change what their clients declare.
    pub fn choose_default_queue_type(&mut self, kind: Option<QueueKind>) {
        self.default_queue_type = kind;
    }

    /// What new vhosts have.
    pub fn default_queue_type(&self) -> Option<QueueKind> {
        self.default_queue_type
    }

    /// What a queue declared in a vhost without `x-queue-type` is from now on, where it can be.
    pub fn set_default_queue_type(
        &mut self,
        vhost: &str,
        kind: Option<QueueKind>,
    ) -> Result<(), AdminError> {
        let id = self.vhost_id(vhost)?;
        if let Some(vhost) = self.vhost_mut(id) {
            vhost.default_queue_type = kind;
        }
        self.journal.note(EntityKey::Vhost(id));
        Ok(())
    }

    /// What a vhost is for, and what a queue declared in it without `x-queue-type` is, where it can be.
    /// What is not given stays.
    pub fn describe_vhost(
        &mut self,
        vhost: &str,
        description: Option<String>,
        tags: Option<Vec<String>>,
        kind: Option<QueueKind>,
    ) -> Result<(), AdminError> {
        let id = self.vhost_id(vhost)?;
        let is_update = description.is_some() || tags.is_some() || kind.is_some();
        if let Some(vhost) = self.vhost_mut(id) {
            vhost.description =
                description.unwrap_or_else(|| std::mem::take(&mut vhost.description));
            vhost.tags = tags.unwrap_or_else(|| std::mem::take(&mut vhost.tags));
            vhost.default_queue_type = kind.or(vhost.default_queue_type);
        }
        self.journal.note(EntityKey::Vhost(id));
        if is_update {
            self.tell_vhost("vhost.updated", id);
        }
        Ok(())
    }

    /// Whether a vhost is traced.
    #[inline]
    pub fn traces_any(&self) -> bool {
        self.traced > 0
    }

    /// Begins or ends to trace a vhost; sessions see it with their next route.
    pub fn set_tracing(&mut self, vhost: &str, is_on: bool) -> Result<(), AdminError> {
        let id = self.vhost_id(vhost)?;
        self.trace(id, is_on);
        Ok(())
    }

    /// The same; nothing where the vhost is not there.
    pub(crate) fn trace(&mut self, id: VhostId, is_on: bool) {
        let Some(vhost) = self.vhost_mut(id) else { return };
        if std::mem::replace(&mut vhost.is_traced, is_on) != is_on {
            self.traced = self.vhosts.values().filter(|vhost| vhost.is_traced).count();
            self.generation += 1;
            self.journal.note_as(EntityKey::Tracing(id), false);
            self.tell_vhost("vhost.updated", id);
        }
    }

    /// Protects a vhost from being deleted, or no longer.
    pub fn protect_vhost(&mut self, name: &str, is_protected: bool) -> Result<(), AdminError> {
        let id = self.vhost_id(name)?;
        if let Some(vhost) = self.vhost_mut(id) {
            vhost.is_protected = is_protected;
        }
        self.journal.note(EntityKey::Vhost(id));
        Ok(())
    }

    /// Refuses to delete a vhost that is protected, or not there.
    pub fn check_delete_vhost(&self, name: &str) -> Result<(), AdminError> {
        match self.vhost(name) {
            None => Err(AdminError::NoVhost(name.to_owned())),
            Some(vhost) if vhost.is_protected => Err(AdminError::ProtectedVhost(name.to_owned())),
            Some(_) => Ok(()),
        }
    }

    /// Deletes a vhost with all that is in it, and the permissions given in it.
    pub fn delete_vhost(&mut self, name: &str) -> Result<DeletedVhost, AdminError> {
        self.check_delete_vhost(name)?;
        let no_vhost = || AdminError::NoVhost(name.to_owned());
        let id = self.vhost_id(name)?;
        let mut gone = self.finish_going(id);
        self.tell_vhost_deleted(name);
        self.vhost_names.remove(name);
        let vhost = self.vhosts.remove(&id).ok_or_else(no_vhost)?;
        self.note_vhost_gone(&vhost);
        self.settings_weight -= vhost.settings_weight();
        self.traced -= usize::from(vhost.is_traced);
        let mut queue_ids: Vec<_> = vhost.queues.into_values().collect();
        let mut exchanges: Vec<_> = vhost.exchanges.into_values().collect();
        queue_ids.sort_unstable();
        exchanges.append(&mut gone);
        exchanges.sort_unstable();
        let mut queues = Vec::with_capacity(queue_ids.len());
        for queue in queue_ids {
            let Some(queue) = self.queues.remove(&queue) else { continue };
            queues.push((queue.id, queue.home));
            for ix in queue.incoming {
                self.take_binding(ix);
            }
            self.journal.note_as(EntityKey::Queue(queue.id), queue.durable);
            self.disown(queue.exclusive_owner, queue.id);
        }
        let mut removed = Vec::with_capacity(exchanges.len());
        for id in exchanges {
            let Some(exchange) = self.exchanges.remove(&id) else { continue };
            // Bindings between exchanges are among the destination's.
            for ix in exchange.incoming {
                self.take_binding(ix);
            }
            self.journal.note_as(EntityKey::Exchange(id), exchange.durable);
            removed.push(RemovedExchange { id, name: exchange.name, home: exchange.home });
        }
        for user in self.users.values_mut() {
            user.permissions.remove(&id);
            user.topics.remove(&id);
        }
        self.generation += 1;
        self.access_generation += 1;
        Ok(DeletedVhost { id, queues, exchanges: removed })
    }

    pub(crate) fn vhost_mut(&mut self, id: VhostId) -> Option<&mut Vhost> {
        self.vhosts.get_mut(&id).map(AsMut::as_mut)
    }

    /// The vhost's name, for texts.
    pub(crate) fn vhost_name(&self, id: VhostId) -> &str {
        self.vhost_even_going(id).map_or("", |vhost| &vhost.name)
    }

    pub(crate) fn disown(&mut self, owner: Option<ConnectionId>, queue: QueueId) {
        let Some(owner) = owner else { return };
        if let Some(queues) = self.owned.get_mut(&owner) {
            queues.remove(&queue);
            if queues.is_empty() {
                self.owned.remove(&owner);
            }
        }
    }
}

/// A name without line ends, which RabbitMQ removes from names in declare, delete and bind.
pub(crate) fn strip(name: &str) -> Cow<'_, str> {
    if name.contains(['\r', '\n']) {
        Cow::Owned(name.replace(['\r', '\n'], ""))
    } else {
        Cow::Borrowed(name)
    }
}
