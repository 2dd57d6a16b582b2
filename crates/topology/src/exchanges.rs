//! Declaring and deleting exchanges.

use std::sync::Arc;

use crate::arguments::exchange_arguments;
use crate::binding::Removed;
use crate::error::{DeclareError, DeleteError, NotFound, ResourceKind, ResourceRef};
use crate::exchange::{ALTERNATE_EXCHANGE, Exchange, ExchangeKind, ExchangeSpec};
use crate::id::{ExchangeId, GroupId, VhostId};
use crate::journal::EntityKey;
use crate::policy::{self, Policies};
use crate::route::Router;
use crate::topology::{Topology, strip};
use crate::value;
use crate::weight;

impl Topology {
    /// `exchange.declare`: creates it, or checks that it is the same.
    pub fn declare_exchange(&mut self, spec: ExchangeSpec<'_>) -> Result<ExchangeId, DeclareError> {
        let kind = ExchangeKind::parse(spec.kind)?;
        let name = strip(spec.name);
        if name.is_empty() {
            return Err(DeclareError::DefaultExchange);
        }
        let spec = ExchangeSpec { name: &name, ..spec };
        if let Some(exchange) = self.exchange(spec.vhost, &name) {
            self.equivalent(exchange, kind, &spec)?;
            return Ok(exchange.id);
        }
        if self.vhost_by_id(spec.vhost).is_none() {
            return Err(DeclareError::NoVhost(spec.vhost.to_string()));
        }
        if name.starts_with("amq.") {
            let (kind, name) = (ResourceKind::Exchange, name.into_owned());
            return Err(DeclareError::ReservedName { kind, name });
        }
        exchange_arguments(kind, &name, self.vhost_name(spec.vhost), &spec.arguments)?;
        self.check_room(weight::named(spec.name, &spec.arguments))?;
        Ok(self.create_exchange(spec, kind))
    }

    /// What [`declare_exchange`](Self::declare_exchange) checks of one that exists.
    pub fn check_exchange_equivalent(&self, spec: &ExchangeSpec<'_>) -> Result<(), DeclareError> {
        let kind = ExchangeKind::parse(spec.kind)?;
        match self.exchange(spec.vhost, &strip(spec.name)) {
            Some(exchange) => self.equivalent(exchange, kind, spec),
            None => Ok(()),
        }
    }

    /// `exchange.declare` with `passive`, and wherever else an exchange has to exist.
    pub fn existing_exchange(&self, vhost: VhostId, name: &str) -> Result<&Exchange, NotFound> {
        let name = strip(name);
        self.exchange(vhost, &name)
            .ok_or_else(|| NotFound(ResourceRef::exchange(&name, self.vhost_name(vhost))))
    }

    /// The first difference in RabbitMQ's order: type, durable, auto-delete, internal, alternate exchange.
    fn equivalent(
        &self,
        exchange: &Exchange,
        kind: ExchangeKind,
        spec: &ExchangeSpec<'_>,
    ) -> Result<(), DeclareError> {
        let resource = || ResourceRef::exchange(&exchange.name, self.vhost_name(exchange.vhost));
        let different = |arg: &str, received: String, current: String| {
            Err(DeclareError::Inequivalent {
                resource: resource(),
                arg: arg.to_owned(),
                received,
                current,
            })
        };
        if exchange.kind != kind {
            return different("type", format!("'{kind}'"), format!("'{}'", exchange.kind));
        }
        let flags = [
            ("durable", exchange.durable, spec.durable),
            ("auto_delete", exchange.auto_delete, spec.auto_delete),
            ("internal", exchange.internal, spec.internal),
        ];
        for (name, current, received) in flags {
            if current != received {
                return different(name, format!("'{received}'"), format!("'{current}'"));
            }
        }
        let current = exchange.arguments.get(ALTERNATE_EXCHANGE);
        let received = spec.arguments.get(ALTERNATE_EXCHANGE);
        match value::difference(ALTERNATE_EXCHANGE, current, received) {
            Some((received, current)) => different(ALTERNATE_EXCHANGE, received, current),
            None => Ok(()),
        }
    }

    /// The spec has been checked, the vhost exists, the name is free.
    pub(crate) fn create_exchange(
        &mut self,
        spec: ExchangeSpec<'_>,
        kind: ExchangeKind,
    ) -> ExchangeId {
        let id = ExchangeId::new(self.next_exchange);
        self.next_exchange += 1;
        self.journal.note_as(EntityKey::Exchange(id), spec.durable);
        if !spec.durable {
            self.note_id_used();
        }
        self.insert_exchange(id, self.homes.choose_history(id), spec, kind);
        let user = Arc::clone(&self.acting);
        self.exchange_declared_by(id, Some(user));
        self.tell_exchange_created(id);
        id
    }

    /// The id and the name are free, the vhost exists.
    pub(crate) fn insert_exchange(
        &mut self,
        id: ExchangeId,
        home: GroupId,
        spec: ExchangeSpec<'_>,
        kind: ExchangeKind,
    ) {
        let name: Arc<str> = spec.name.into();
        let mut exchange = Exchange {
            id,
            vhost: spec.vhost,
            name: Arc::clone(&name),
            kind,
            durable: spec.durable,
            auto_delete: spec.auto_delete,
            internal: spec.internal,
            home,
            router: Router::new(kind, &spec.arguments),
            is_going: false,
            arguments: spec.arguments,
            declared_by: None,
            policies: Policies::default(),
            alternate: None,
            outgoing: Vec::new(),
            incoming: Vec::new(),
        };
        if let Some(vhost) = self.vhosts.get_mut(&spec.vhost) {
            let mut effort = vhost.effort();
            exchange.policies = policy::of_exchange(vhost, &exchange, &mut effort);
            self.matching.count(vhost, effort);
            if name.is_empty() {
                vhost.default_exchange = id;
            }
            vhost.exchanges.insert(name, id);
        }
        exchange.refresh_alternate();
        self.exchanges.insert(id, Box::new(exchange));
        // An alternate exchange of this name may have been missing until now.
        self.generation += 1;
    }

    pub(crate) fn exchange_declared_by(&mut self, id: ExchangeId, user: Option<Arc<str>>) {
        if let Some(exchange) = self.exchanges.get_mut(&id) {
            exchange.declared_by = user;
        }
    }

    /// `exchange.delete`. With `if_unused`, refused while it is the source of a binding. Deleting one that
    /// does not exist removes nothing.
    pub fn delete_exchange(
        &mut self,
        vhost: VhostId,
        name: &str,
        if_unused: bool,
    ) -> Result<Removed, DeleteError> {
        let mut removed = Removed::default();
        if let Some(id) = self.check_delete_exchange(vhost, &strip(name), if_unused)? {
            self.remove_exchange(id, &mut removed);
        }
        Ok(removed)
    }

    /// Whether an exchange may be deleted, and which one it is, if it is there.
    pub(crate) fn check_delete_exchange(
        &self,
        vhost: VhostId,
        name: &str,
        if_unused: bool,
    ) -> Result<Option<ExchangeId>, DeleteError> {
        if name.is_empty() {
            return Err(DeleteError::DefaultExchange);
        }
        let resource = || ResourceRef::exchange(name, self.vhost_name(vhost));
        if name.starts_with("amq.") {
            return Err(DeleteError::System(resource()));
        }
        match self.exchange(vhost, name) {
            Some(exchange) if if_unused && exchange.is_used() => {
                Err(DeleteError::InUse(resource()))
            }
            found => Ok(found.map(|exchange| exchange.id)),
        }
    }
}
