//! Binding, unbinding, and what goes away with a destination or a source.

use leveret_amqp::table::Table;

use crate::binding::{
    Binding, BindingIx, Bound, Destination, Listed, Removed, RemovedExchange, Target, sorted,
};
use crate::connection::ConnectionId;
use crate::error::{BindError, Locked, NotFound, ResourceRef};
use crate::exchange::{Exchange, ExchangeKind};
use crate::id::{BindingId, ExchangeId, VhostId};
use crate::journal::EntityKey;
use crate::queue::QueueKind;
use crate::route::check_binding_key;
use crate::topology::{Topology, strip};
use crate::weight;

/// The event of a binding that went.
const GONE: &str = "binding.deleted";

impl Topology {
    /// `queue.bind`, `exchange.bind`. A binding that exists is left as it is.
    ///
    /// `connection` is refused to bind an exclusive queue of another one; `None` may bind all.
    pub fn bind(
        &mut self,
        vhost: VhostId,
        source: &str,
        destination: Destination<'_>,
        key: &str,
        arguments: Table,
        connection: Option<ConnectionId>,
    ) -> Result<Bound, BindError> {
        let (source, target) = self.ends(vhost, source, destination)?;
        self.check_binding(source, target, key, &arguments)?;
        self.check_owner(target, connection)?;
        let recent = source.kind == ExchangeKind::RecentHistory;
        let binding =
            Binding { source: source.id, target, key: key.into(), arguments: sorted(arguments) };
        if self.bindings.find(&binding).is_some() {
            return Ok(Bound { created: false, recent_history: None, target });
        }
        if let Some((cost, max)) = source.router.exceeds(&binding.key, &binding.arguments) {
            let exchange = ResourceRef::exchange(&source.name, self.vhost_name(vhost));
            return Err(BindError::TooCostly { exchange, kind: source.kind, cost, max });
        }
        self.check_room(weight::binding(&binding.key, &binding.arguments))?;
        let recent_history = recent.then_some(binding.source);
        self.tell_binding("binding.created", &binding, None);
        self.insert_binding(binding);
        self.generation += 1;
        Ok(Bound { created: true, recent_history, target })
    }

    /// Whether such a binding is there, or would not be stored: it cannot be, or one of its ends is not durable.
    pub fn is_bound(
        &self,
        vhost: VhostId,
        source: &str,
        destination: Destination<'_>,
        key: &str,
        arguments: Table,
    ) -> bool {
        let Ok((source, target)) = self.ends(vhost, source, destination) else { return true };
        let is_durable = match target {
            Target::Queue(id) => self.queue_by_id(id).is_some_and(|queue| queue.durable),
            Target::Exchange(id) => self.exchange_by_id(id).is_some_and(|it| it.durable),
        };
        let is_stored = source.durable && is_durable;
        !is_stored || self.place(source.id, target, key, arguments).is_some()
    }

    fn place(
        &self,
        source: ExchangeId,
        target: Target,
        key: &str,
        arguments: Table,
    ) -> Option<BindingIx> {
        let binding = Binding { source, target, key: key.into(), arguments: sorted(arguments) };
        self.bindings.find(&binding)
    }

    /// The binding that [`unbind`](Self::unbind) would take away.
    pub fn bound(
        &self,
        vhost: VhostId,
        source: &str,
        destination: Destination<'_>,
        key: &str,
        arguments: Table,
    ) -> Option<&Binding> {
        let (source, target) = self.ends(vhost, source, destination).ok()?;
        self.place(source.id, target, key, arguments).map(|ix| self.bindings.get(ix))
    }

    /// `queue.unbind`, `exchange.unbind`. One that does not exist removes nothing, nor does it when the source or
    /// the destination does not exist, as in RabbitMQ.
    pub fn unbind(
        &mut self,
        vhost: VhostId,
        source: &str,
        destination: Destination<'_>,
        key: &str,
        arguments: Table,
        connection: Option<ConnectionId>,
    ) -> Result<Removed, BindError> {
        let mut removed = Removed::default();
        let (source, target) = match self.ends(vhost, source, destination) {
            Ok((source, target)) => (source.id, target),
            Err(BindError::NotFound(_)) => return Ok(removed),
            Err(error) => return Err(error),
        };
        if let Some(ix) = self.place(source, target, key, arguments) {
            self.check_owner(target, connection)?;
            self.remove_binding(ix, &mut removed);
            self.auto_delete(source, &mut removed);
            self.generation += 1;
        }
        Ok(removed)
    }

    /// Both ends; when both are missing it is the source that is reported.
    fn ends(
        &self,
        vhost: VhostId,
        source: &str,
        destination: Destination<'_>,
    ) -> Result<(&Exchange, Target), BindError> {
        let source = strip(source);
        if source.is_empty() || matches!(destination, Destination::Exchange("")) {
            return Err(BindError::DefaultExchange);
        }
        let vhost_name = self.vhost_name(vhost);
        let source = self
            .exchange(vhost, &source)
            .ok_or_else(|| NotFound(ResourceRef::exchange(&source, vhost_name)))?;
        let target = match destination {
            Destination::Queue(name) => {
                let name = strip(name);
                let queue = self
                    .queue(vhost, &name)
                    .ok_or_else(|| NotFound(ResourceRef::queue(&name, vhost_name)))?;
                Target::Queue(queue.id)
            }
            Destination::Exchange(name) => {
                let name = strip(name);
                let exchange = self
                    .exchange(vhost, &name)
                    .ok_or_else(|| NotFound(ResourceRef::exchange(&name, vhost_name)))?;
                Target::Exchange(exchange.id)
            }
        };
        Ok((source, target))
    }

    /// Checked after what the binding itself asks for, as in RabbitMQ.
    fn check_owner(&self, target: Target, connection: Option<ConnectionId>) -> Result<(), Locked> {
        match (target, connection) {
            (Target::Queue(id), Some(connection)) => self
                .queue_by_id(id)
                .map_or(Ok(()), |q| q.check_exclusive(connection, self.vhost_name(q.vhost))),
            _ => Ok(()),
        }
    }

    fn check_binding(
        &self,
        source: &Exchange,
        target: Target,
        key: &str,
        arguments: &Table,
    ) -> Result<(), BindError> {
        check_binding_key(source.kind, key, arguments)?;
        if source.kind == ExchangeKind::LocalRandom {
            let Target::Queue(queue) = target else { return Err(BindError::NotAQueue) };
            let kind = self.queue_by_id(queue).map_or(QueueKind::Classic, |queue| queue.kind);
            if kind != QueueKind::Classic {
                return Err(BindError::QueueType(kind.module()));
            }
        }
        Ok(())
    }

    /// The bindings of a vhost, without those of the default exchange.
    pub fn bindings(&self, vhost: VhostId) -> impl Iterator<Item = &Binding> {
        self.bindings.iter().filter(move |binding| {
            self.exchange_by_id(binding.source).is_some_and(|source| source.vhost == vhost)
                && !(self.has_going() && self.is_gone(binding.target))
        })
    }

    /// The bindings that have this exchange as their source.
    pub fn bindings_from(&self, source: ExchangeId) -> impl Iterator<Item = &Binding> {
        let exchange = self.exchange_by_id(source);
        let bindings =
            exchange.into_iter().flat_map(|x| &x.outgoing).map(|&ix| self.bindings.get(ix));
        bindings.filter(|it| !(self.has_going() && self.is_gone(it.target)))
    }

    /// The bindings that lead to a queue or an exchange, without that of the default exchange.
    pub fn bindings_to(&self, target: Target) -> impl Iterator<Item = &Binding> {
        let incoming: &[BindingIx] = match target {
            Target::Queue(id) => self.queue_by_id(id).map_or(&[], |queue| &queue.incoming),
            Target::Exchange(id) => {
                self.exchange_by_id(id).map_or(&[], |exchange| &exchange.incoming)
            }
        };
        let bindings = incoming.iter().map(|&ix| self.bindings.get(ix));
        bindings.filter(|it| !(self.has_going() && self.is_gone(Target::Exchange(it.source))))
    }

    fn incoming(&mut self, target: Target) -> Option<&mut Vec<BindingIx>> {
        match target {
            Target::Queue(id) => self.queues.get_mut(&id).map(|queue| &mut queue.incoming),
            Target::Exchange(id) => {
                self.exchanges.get_mut(&id).map(|exchange| &mut exchange.incoming)
            }
        }
    }

    pub(crate) fn target_name(&self, target: Target) -> std::sync::Arc<str> {
        let name = match target {
            Target::Queue(id) => self.queues.get(&id).map(|queue| &queue.name),
            Target::Exchange(id) => self.exchanges.get(&id).map(|exchange| &exchange.name),
        };
        name.cloned().unwrap_or_default()
    }

    fn insert_binding(&mut self, binding: Binding) {
        let ix = self.put_binding(self.bindings.next_id(), binding);
        self.note_binding(ix);
    }

    fn note_binding(&mut self, ix: BindingIx) {
        let entry = self.bindings.entry(ix);
        self.journal.note_as(EntityKey::Binding(entry.id()), entry.durable());
    }

    /// Both ends survive a restart, and so does the binding.
    fn is_durable_binding(&self, binding: &Binding) -> bool {
        let exchange = |id| self.exchange_by_id(id).is_some_and(|exchange| exchange.durable);
        exchange(binding.source)
            && match binding.target {
                Target::Queue(id) => self.queue_by_id(id).is_some_and(|queue| queue.durable),
                Target::Exchange(id) => exchange(id),
            }
    }

    /// Out of the arena, once it is out of the lists.
    pub(crate) fn take_binding(&mut self, ix: BindingIx) -> Binding {
        self.note_binding(ix);
        self.bindings.remove(ix)
    }

    /// Into the arena, both lists and the router. The ends exist, the binding does not, and the id is free.
    pub(crate) fn put_binding(&mut self, id: BindingId, binding: Binding) -> BindingIx {
        let durable = self.is_durable_binding(&binding);
        let name = self.target_name(binding.target);
        let (source, target) = (binding.source, binding.target);
        let at_source = self.exchanges.get(&source).map_or(0, |x| x.outgoing.len());
        let at_target = self.incoming(target).map_or(0, |incoming| incoming.len());
        let (at_source, at_target) = (place(at_source), place(at_target));
        let ix = self.bindings.insert(id, binding, Listed { at_source, at_target, durable });
        if let Some(incoming) = self.incoming(target) {
            incoming.push(ix);
        }
        if let Some(exchange) = self.exchanges.get_mut(&source) {
            exchange.outgoing.push(ix);
            exchange.router.bind(ix, id, self.bindings.get(ix), &name);
        }
        ix
    }

    /// Out of both lists, the router and the arena.
    pub(crate) fn remove_binding(&mut self, ix: BindingIx, removed: &mut Removed) {
        let entry = self.bindings.entry(ix);
        let (target, at) = (entry.binding.target, entry.at_target as usize);
        let name = self.target_name(target);
        let mut moved = None;
        if let Some(incoming) = self.incoming(target) {
            incoming.swap_remove(at);
            moved = incoming.get(at).copied();
        }
        if let Some(moved) = moved {
            self.bindings.entry_mut(moved).at_target = place(at);
        }
        self.leave_source(ix, &name);
        let binding = self.take_binding(ix);
        self.tell_binding(GONE, &binding, None);
        removed.bindings.push(binding);
    }

    /// Out of the source's list and its router.
    fn leave_source(&mut self, ix: BindingIx, target_name: &str) {
        let entry = self.bindings.entry(ix);
        let at = entry.at_source as usize;
        let Some(exchange) = self.exchanges.get_mut(&entry.binding.source) else { return };
        exchange.router.unbind(ix, entry.id(), &entry.binding, target_name);
        exchange.outgoing.swap_remove(at);
        if let Some(&moved) = exchange.outgoing.get(at) {
            self.bindings.entry_mut(moved).at_source = place(at);
        }
    }

    /// The bindings of a destination that has been taken out of its table already.
    pub(crate) fn drop_incoming(
        &mut self,
        incoming: &[BindingIx],
        name: &str,
        removed: &mut Removed,
    ) {
        let mut sources = Vec::new();
        for &ix in incoming {
            self.leave_source(ix, name);
            let binding = self.take_binding(ix);
            self.tell_binding(GONE, &binding, Some(name));
            if sources.last() != Some(&binding.source) {
                sources.push(binding.source);
            }
            removed.bindings.push(binding);
        }
        sources.sort_unstable();
        sources.dedup();
        for source in sources {
            self.auto_delete(source, removed);
        }
    }

    /// Removes an exchange with its bindings, and auto-delete exchanges that these were the last ones of.
    ///
    /// Auto-delete exchanges may form a chain as long as there are exchanges: the work is a list, not a
    /// recursion.
    pub(crate) fn remove_exchange(&mut self, id: ExchangeId, removed: &mut Removed) {
        let mut doomed = vec![id];
        while let Some(id) = doomed.pop() {
            let Some(exchange) = self.exchanges.remove(&id) else { continue };
            for &ix in &exchange.outgoing {
                self.leave_target(ix, &exchange.name, removed);
            }
            for &ix in &exchange.incoming {
                // A binding to itself went with the outgoing ones.
                if !self.bindings.contains(ix, id) {
                    continue;
                }
                self.leave_source(ix, &exchange.name);
                let binding = self.take_binding(ix);
                self.tell_binding(GONE, &binding, Some(&exchange.name));
                if self.is_done(binding.source) {
                    doomed.push(binding.source);
                }
                removed.bindings.push(binding);
            }
            if let Some(vhost) = self.vhost_mut(exchange.vhost) {
                vhost.exchanges.remove(&exchange.name);
            }
            self.tell_exchange_deleted(&exchange);
            self.journal.note_as(EntityKey::Exchange(id), exchange.durable);
            let home = exchange.home;
            removed.exchanges.push(RemovedExchange { id, name: exchange.name, home });
        }
        self.generation += 1;
    }

    /// A binding whose source has been taken out of its table already.
    fn leave_target(&mut self, ix: BindingIx, source: &str, removed: &mut Removed) {
        let entry = self.bindings.entry(ix);
        let (target, at) = (entry.binding.target, entry.at_target as usize);
        let mut moved = None;
        if let Some(incoming) = self.incoming(target) {
            incoming.swap_remove(at);
            moved = incoming.get(at).copied();
        }
        if let Some(moved) = moved {
            self.bindings.entry_mut(moved).at_target = place(at);
        }
        let binding = self.take_binding(ix);
        self.tell_binding(GONE, &binding, Some(source));
        removed.bindings.push(binding);
    }

    /// Auto-delete, and no longer the source of a binding. Asked only after one went away.
    pub(crate) fn is_done(&self, id: ExchangeId) -> bool {
        self.exchange_by_id(id).is_some_and(|exchange| exchange.auto_delete && !exchange.is_used())
    }

    fn auto_delete(&mut self, id: ExchangeId, removed: &mut Removed) {
        if self.is_done(id) {
            self.remove_exchange(id, removed);
        }
    }
}

fn place(at: usize) -> u32 {
    u32::try_from(at).expect("fewer than 2^32 bindings")
}
