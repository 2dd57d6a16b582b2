//! Deletes that do not fit one turn: of exchanges and queues with very many bindings, and of vhosts with very much in
//! them.
//!
//! Such a name is gone for every client at once: it can be used again, no message reaches the thing behind it, no list shows it.
//! The rest of the thing is removed in pieces, by a [`Sweep`]. Until then only the tables by id have it.
//!
//! ```text
//!   delete --> name taken away, `is_going` --> bindings, some at a time --> gone
//! ```
//!
//! On disk an exchange or a queue is gone with the first piece; a restart leaves out bindings that have lost one of their ends. A
//! vhost's record says that the vhost is going until everything in it is gone. So queues are never without a vhost while
//! their messages are there, and a restart goes on with the delete.

use std::collections::{BTreeSet, VecDeque};

use crate::binding::{BindingIx, Removed, RemovedExchange, Target};
use crate::connection::NodeId;
use crate::error::{AdminError, DeleteError};
use crate::id::{ExchangeId, GroupId, QueueId, VhostId};
use crate::journal::EntityKey;
use crate::queue::Queue;
use crate::topology::{Topology, strip};
use crate::vhost::Vhost;

/// The queues and exchanges that are deleted and still have bindings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Going {
    pub(crate) exchanges: BTreeSet<ExchangeId>,
    pub(crate) queues: BTreeSet<QueueId>,
}

/// Bindings that go together with one of their ends in one go, at most.
pub const SWEPT_AT_ONCE: usize = 512;

/// What is still to be taken away.
#[derive(Debug, Default)]
pub struct Sweep {
    doomed: VecDeque<Target>,
    /// Exchanges that are gone since this was last emptied.
    pub exchanges: Vec<RemovedExchange>,
}

impl Sweep {
    /// Nothing is left.
    pub fn is_done(&self) -> bool {
        self.doomed.is_empty()
    }
}

impl Topology {
    /// Whether an exchange or a queue has more bindings than go at once.
    pub fn is_large(&self, target: Target) -> bool {
        self.bindings_of(target) > SWEPT_AT_ONCE
    }

    /// How many bindings have this as one of their ends.
    pub fn bindings_of(&self, target: Target) -> usize {
        match target {
            Target::Queue(id) => self.queues.get(&id).map_or(0, |queue| queue.incoming.len()),
            Target::Exchange(id) => {
                self.exchanges.get(&id).map_or(0, |it| it.incoming.len() + it.outgoing.len())
            }
        }
    }

    /// Whether a destination that routers still have is to be passed over.
    #[inline]
    pub(crate) fn has_going(&self) -> bool {
        !(self.going.exchanges.is_empty() && self.going.queues.is_empty())
    }

    #[cold]
    pub(crate) fn is_gone(&self, target: Target) -> bool {
        match target {
            Target::Queue(id) => self.queue_by_id(id).is_none(),
            Target::Exchange(id) => self.exchange_by_id(id).is_none(),
        }
    }

    /// As [`delete_exchange`](Self::delete_exchange), for a large one: it is gone, and its bindings are to be swept. None if
    /// it is not large.
    pub fn start_delete_exchange(
        &mut self,
        vhost: VhostId,
        name: &str,
        if_unused: bool,
    ) -> Result<Option<Sweep>, DeleteError> {
        let name = strip(name);
        let found = self.exchange(vhost, &name).map(|exchange| Target::Exchange(exchange.id));
        let Some(target) = found.filter(|&target| self.is_large(target)) else { return Ok(None) };
        self.check_delete_exchange(vhost, &name, if_unused)?;
        Ok(Some(self.doom(target)))
    }

    /// As [`remove_queue`](Self::remove_queue), for a large one. None if it is not large.
    pub fn start_remove_queue(&mut self, id: QueueId) -> Option<Sweep> {
        let target = Target::Queue(id);
        self.is_large(target).then(|| self.doom(target))
    }

    /// All that goes with a node that is given up: the exclusive queues of its connections, and whatever queue is not durable and
    /// lives in one of `groups`, which have lost their last member. Their names are gone, the rest is to be swept: bindings, and
    /// auto-delete exchanges that lose their last one.
    pub fn node_is_gone(&mut self, node: NodeId, groups: &[GroupId]) -> Sweep {
        let exclusive = self.owned.range(node.connections()).flat_map(|(_, queues)| queues);
        let is_lost = |it: &Queue| !it.durable && !it.is_going && groups.contains(&it.home);
        let transient = self.queues.values().filter(|it| is_lost(it)).map(|it| &it.id);
        let queues: BTreeSet<QueueId> = exclusive.chain(transient).copied().collect();
        let mut sweep = Sweep::default();
        for queue in queues {
            sweep.doomed.append(&mut self.doom(Target::Queue(queue)).doomed);
        }
        sweep
    }

    /// Takes the name of an exchange or a queue away; the rest is to be swept.
    pub(crate) fn doom(&mut self, target: Target) -> Sweep {
        match target {
            Target::Exchange(id) => {
                let Some(exchange) = self.exchanges.get_mut(&id) else { return Sweep::default() };
                exchange.is_going = true;
                self.going.exchanges.insert(id);
                let (vhost, name, durable) =
                    (exchange.vhost, exchange.name.clone(), exchange.durable);
                if let Some(vhost) = self.vhost_mut(vhost) {
                    vhost.exchanges.remove(&name);
                }
                self.journal.note_as(EntityKey::Exchange(id), durable);
            }
            Target::Queue(id) => {
                let Some(queue) = self.queues.get_mut(&id) else { return Sweep::default() };
                queue.is_going = true;
                self.going.queues.insert(id);
                let (vhost, name, durable) = (queue.vhost, queue.name.clone(), queue.durable);
                let owner = queue.exclusive_owner.take();
                self.disown(owner, id);
                if let Some(vhost) = self.vhost_mut(vhost) {
                    vhost.queues.remove(&name);
                }
                self.journal.note_as(EntityKey::Queue(id), durable);
            }
        }
        self.generation += 1;
        Sweep { doomed: [target].into(), exchanges: Vec::new() }
    }

    /// Takes away about `allowed` bindings and ends of what is doomed; how many it were.
    pub fn sweep(&mut self, sweep: &mut Sweep, allowed: u64) -> u64 {
        let mut used = 0;
        while used < allowed
            && let Some(&target) = sweep.doomed.front()
        {
            used += 1;
            let Some(ix) = self.last_binding(target) else {
                sweep.doomed.pop_front();
                self.end(target, &mut sweep.exchanges);
                continue;
            };
            let source = self.bindings.get(ix).source;
            let mut removed = Removed::default();
            self.remove_binding(ix, &mut removed);
            if Target::Exchange(source) == target || !self.is_done(source) {
                continue;
            }
            // It was the last binding of an auto-delete exchange.
            if self.is_large(Target::Exchange(source)) {
                sweep.doomed.append(&mut self.doom(Target::Exchange(source)).doomed);
            } else {
                self.remove_exchange(source, &mut removed);
                used += removed.bindings.len() as u64;
                sweep.exchanges.append(&mut removed.exchanges);
            }
        }
        self.generation += u64::from(used > 0);
        used
    }

    /// Sweeps what of a vhost is going, to its end; the exchanges among them.
    pub(crate) fn finish_going(&mut self, vhost: VhostId) -> Vec<ExchangeId> {
        let mut sweep = Sweep { doomed: self.going_of(vhost), exchanges: Vec::new() };
        self.sweep(&mut sweep, u64::MAX);
        sweep.exchanges.into_iter().map(|exchange| exchange.id).collect()
    }

    pub(crate) fn last_binding(&self, target: Target) -> Option<BindingIx> {
        match target {
            Target::Queue(id) => self.queues.get(&id)?.incoming.last().copied(),
            Target::Exchange(id) => {
                let exchange = self.exchanges.get(&id)?;
                exchange.outgoing.last().or_else(|| exchange.incoming.last()).copied()
            }
        }
    }

    /// What has no bindings any more goes.
    pub(crate) fn end(&mut self, target: Target, gone: &mut Vec<RemovedExchange>) {
        match target {
            Target::Queue(id) => {
                let Some(queue) = self.queues.remove(&id) else { return };
                self.going.queues.remove(&id);
                self.tell_queue_deleted(&queue);
            }
            Target::Exchange(id) => {
                let Some(exchange) = self.exchanges.remove(&id) else { return };
                self.going.exchanges.remove(&id);
                if let Some(vhost) = self.vhost_mut(exchange.vhost)
                    && vhost.exchanges.get(&exchange.name) == Some(&id)
                {
                    vhost.exchanges.remove(&exchange.name);
                }
                self.tell_exchange_deleted(&exchange);
                self.journal.note_as(EntityKey::Exchange(id), exchange.durable);
                gone.push(RemovedExchange { id, name: exchange.name, home: exchange.home });
            }
        }
    }

    /// What of a vhost is deleted and still has bindings.
    pub(crate) fn going_of(&self, vhost: VhostId) -> VecDeque<Target> {
        let is_its = |it: &Target| match it {
            Target::Exchange(id) => self.exchanges.get(id).is_some_and(|it| it.vhost == vhost),
            Target::Queue(id) => self.queues.get(id).is_some_and(|it| it.vhost == vhost),
        };
        let exchanges = self.going.exchanges.iter().copied().map(Target::Exchange);
        let queues = self.going.queues.iter().copied().map(Target::Queue);
        exchanges.chain(queues).filter(is_its).collect()
    }

    /// Whether a vhost has more in it than goes at once. What of it is [going](Self::sweep) already has no name in it.
    pub fn is_large_vhost(&self, name: &str) -> bool {
        let Some(vhost) = self.vhost(name) else { return false };
        let exchanges = vhost.exchanges.values().map(|&id| {
            self.exchanges
                .get(&id)
                .map_or(1, |exchange| 1 + exchange.incoming.len() + exchange.outgoing.len())
        });
        vhost.queues.len() > SWEPT_AT_ONCE
            || vhost.exchanges.len() > SWEPT_AT_ONCE
            || exchanges.sum::<usize>() > SWEPT_AT_ONCE
            || !self.going_of(vhost.id).is_empty()
    }

    /// As [`delete_vhost`](Self::delete_vhost), for a large one: it is gone, with the permissions given in it. Its queues are to
    /// be deleted and [removed](Self::remove_queue), then [the rest](Self::rest_of_vhost) is to be swept, then it
    /// [ends](Self::end_vhost).
    pub fn start_delete_vhost(&mut self, name: &str) -> Result<VhostId, AdminError> {
        self.check_delete_vhost(name)?;
        let id = self.vhost_id(name)?;
        self.vhost_names.remove(name);
        if let Some(vhost) = self.vhosts.get_mut(&id) {
            vhost.is_going = true;
            self.traced -= usize::from(std::mem::take(&mut vhost.is_traced));
        }
        self.journal.note_as(EntityKey::Tracing(id), false);
        self.note_permissions_gone(id);
        for user in self.users.values_mut() {
            user.permissions.remove(&id);
            user.topics.remove(&id);
        }
        self.journal.note(EntityKey::Vhost(id));
        self.generation += 1;
        self.access_generation += 1;
        Ok(id)
    }

    /// The vhosts that are deleted and not gone yet.
    pub fn going_vhosts(&self) -> impl Iterator<Item = VhostId> {
        self.vhosts.values().filter(|vhost| vhost.is_going).map(|vhost| vhost.id)
    }

    /// The queues that are left in a vhost that is deleted, oldest first.
    pub fn queues_of_going(&self, id: VhostId) -> Vec<QueueId> {
        let vhost = self.vhost_even_going(id).filter(|vhost| vhost.is_going);
        let mut queues: Vec<_> =
            vhost.into_iter().flat_map(|it| it.queues.values().copied()).collect();
        queues.sort_unstable();
        queues
    }

    /// If a queue is in a vhost that is deleted: which, and how many queues are left in it.
    pub fn going_vhost_of(&self, queue: QueueId) -> Option<(VhostId, usize)> {
        let vhost = self.vhost_even_going(self.queues.get(&queue)?.vhost)?;
        vhost.is_going.then(|| (vhost.id, vhost.queue_count()))
    }

    /// The exchanges of a vhost that is deleted and has no queues any more, and what of it somebody else sweeps already: the
    /// vhost's end is after theirs.
    pub fn rest_of_vhost(&self, id: VhostId) -> Sweep {
        let vhost = self.vhost_even_going(id);
        let mut exchanges: Vec<ExchangeId> =
            vhost.into_iter().flat_map(|it| it.exchanges.values().copied()).collect();
        exchanges.sort_unstable();
        let mut doomed = self.going_of(id);
        doomed.extend(exchanges.into_iter().map(Target::Exchange));
        Sweep { doomed, exchanges: Vec::new() }
    }

    /// Nothing is left in it.
    pub fn end_vhost(&mut self, id: VhostId) {
        let Some(vhost) = self.vhosts.remove(&id) else { return };
        self.settings_weight -= vhost.settings_weight();
        let Vhost { name, .. } = &*vhost;
        self.tell_vhost_gone(name);
        self.note_vhost_gone(&vhost);
    }
}
