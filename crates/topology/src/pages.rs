//! Names in pages: keys of many names at once, then the names of a few keys at a time.
//!
//! Whoever shows all names reads their keys in one go, which are some bytes each, and looks some of them up each time it
//! has the topology again. What it sees is of no one moment. But a name that was there all the time is seen, and none is
//! seen twice: no id is used twice, and a place in the arena of bindings is looked at once.

use crate::binding::{Binding, BindingIx, Target};
use crate::id::{ExchangeId, QueueId, VhostId};
use crate::topology::Topology;

impl Topology {
    /// The queues of a vhost, in no order.
    pub fn queue_ids(&self, vhost: VhostId) -> Vec<QueueId> {
        self.vhost_by_id(vhost).map_or_else(Vec::new, |it| it.queues.values().copied().collect())
    }

    /// The exchanges of a vhost, in no order.
    pub fn exchange_ids(&self, vhost: VhostId) -> Vec<ExchangeId> {
        self.vhost_by_id(vhost).map_or_else(Vec::new, |it| it.exchanges.values().copied().collect())
    }

    /// How many places the arena of all bindings has. Bindings that come later may be in others.
    pub fn binding_places(&self) -> BindingIx {
        self.bindings.places()
    }

    /// Places of the bindings that have this exchange as their source.
    pub fn places_from(&self, source: ExchangeId) -> Vec<BindingIx> {
        self.exchange_by_id(source).map_or_else(Vec::new, |exchange| exchange.outgoing.clone())
    }

    /// Places of the bindings that lead to a queue or an exchange, without that of the default exchange.
    pub fn places_to(&self, target: Target) -> Vec<BindingIx> {
        match target {
            Target::Queue(id) => self.queue_by_id(id).map(|queue| &queue.incoming),
            Target::Exchange(id) => self.exchange_by_id(id).map(|exchange| &exchange.incoming),
        }
        .cloned()
        .unwrap_or_default()
    }

    /// The binding in a place, if there is one: not always that which was there a moment ago.
    pub fn binding_at(&self, place: BindingIx) -> Option<&Binding> {
        let is_gone = |it: &&Binding| {
            self.has_going()
                && (self.is_gone(it.target) || self.is_gone(Target::Exchange(it.source)))
        };
        self.bindings.at(place).filter(|it| !is_gone(it))
    }
}
