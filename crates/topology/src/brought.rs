//! Exclusive queues of another node's connections, as records, and which vhosts are traced: they outlive the topology that had them first.
//!
//! They are in no log, and belong to connections that go on. So whoever owns the names next has them brought by the node of these
//! connections, with the ids that they had: no id is used twice, so what that node knows of them stays true.

use std::collections::{BTreeMap, BTreeSet};

use crate::binding::{Binding, BindingEntry, Target};
use crate::connection::{ConnectionId, NodeId};
use crate::id::{GroupId, QueueId};
use crate::journal::{Change, EntityKey, Noted};
use crate::queue::QueueKind;
use crate::stored::{QueueRecord, StoredError, Upsert, ends_of_binding};
use crate::topology::Topology;

/// Why nothing is brought.
#[derive(Debug, thiserror::Error)]
pub enum BroughtError {
    /// Bytes that are no record.
    #[error(transparent)]
    Stored(#[from] StoredError),
    /// Another thing than an exclusive queue of those connections, a binding, or tracing.
    #[error(
        "{0:?} is no exclusive queue of one of the node's connections, no binding to one, and no tracing"
    )]
    Alien(EntityKey),
}

impl Topology {
    /// Exclusive queues of those of a node's connections for which `is_owner` holds, and the bindings to them, as
    /// [`bring_back`](Self::bring_back) takes them. A binding is there with its record.
    pub fn exclusive_queues(
        &self,
        node: NodeId,
        is_owner: impl Fn(ConnectionId) -> bool,
    ) -> Vec<(Change, Option<&Binding>)> {
        let owned = self.owned.range(node.connections());
        let ids = owned.filter(|(owner, _)| is_owner(**owner)).flat_map(|(_, ids)| ids);
        let queues: Vec<_> = ids.filter_map(|id| self.queue_by_id(*id)).collect();
        let change = |key| self.change(Noted { key, is_stored: false });
        let mut all: Vec<_> =
            queues.iter().map(|queue| (change(EntityKey::Queue(queue.id)), None)).collect();
        for queue in queues {
            let entries = queue.incoming.iter().map(|&ix| self.bindings.entry(ix));
            let key = |entry: &BindingEntry| EntityKey::Binding(entry.id());
            all.extend(entries.map(|entry| (change(key(entry)), Some(&entry.binding))));
        }
        all
    }

    /// Which vhosts are traced, as [`bring_back`](Self::bring_back) takes it.
    pub fn traced(&self) -> Vec<Change> {
        let traced = self.vhosts().filter(|vhost| vhost.is_traced);
        let key = traced.map(|vhost| EntityKey::Tracing(vhost.id));
        key.map(|key| self.change(Noted { key, is_stored: false })).collect()
    }

    /// Vhosts are traced again. Makes the exclusive queues of these connections again, with their ids, and the bindings to them, which get new ones. Left out is what
    /// belongs to something that is not there, a queue whose name is another one's, and what is there already. Returned are the queues
    /// that were made, and their homes; nobody is told of an event.
    ///
    /// # Errors
    ///
    /// A record is none, or of something else. Nothing was made.
    pub fn bring_back(
        &mut self,
        records: &[&Change],
        is_owner: impl Fn(ConnectionId) -> bool,
    ) -> Result<Vec<(QueueId, GroupId)>, BroughtError> {
        let (mut queues, mut bindings, mut traced) = (BTreeMap::new(), Vec::new(), Vec::new());
        for Change { key, is_stored, record } in records {
            let alien = || BroughtError::Alien(key.clone());
            let record = record.as_deref().filter(|_| !is_stored).ok_or_else(alien)?;
            match key {
                EntityKey::Queue(id) => {
                    let queue = QueueRecord::of(record)?;
                    let is_own = queue.exclusive_owner.is_some_and(&is_owner)
                        && queue.kind == QueueKind::Classic;
                    let has_home = queue.home.is_some_and(|home| home.get() < self.homes.groups());
                    // One that this owner of the names has not promised was given by no leader before.
                    let was_given = queue.id == *id && id.get() < self.next_queue;
                    if !is_own || !has_home || !was_given {
                        return Err(alien());
                    }
                    queues.insert(*id, (queue.vhost, queue.name, record));
                }
                EntityKey::Binding(_) => {
                    let (source, target) = ends_of_binding(record)?;
                    bindings.push((source, target, record));
                }
                EntityKey::Tracing(vhost) => traced.push(*vhost),
                _ => return Err(alien()),
            }
        }
        let is_free = |id: QueueId, vhost, name: &str| {
            !self.queues.contains_key(&id)
                && self.vhost_by_id(vhost).is_some_and(|vhost| vhost.queue_id(name).is_none())
        };
        queues.retain(|id, (vhost, name, _)| is_free(*id, *vhost, name));
        let names: BTreeSet<_> = queues.values().map(|(vhost, name, _)| (*vhost, *name)).collect();
        if names.len() < queues.len() {
            // Two of one name are of two lives of it: nobody can say which one is there.
            queues.clear();
        }
        bindings.retain(|(source, target, _)| {
            let Target::Queue(id) = target else { return false };
            let vhost = queues.get(id).map(|(vhost, ..)| *vhost);
            let source = self.exchange_by_id(*source).filter(|it| Some(it.vhost) == vhost);
            // All queues are bound to the one without a name by themselves.
            source.is_some_and(|it| !it.name.is_empty())
        });
        let told = self.events_told();
        self.journal.is_closed = true;
        let mut made = Vec::new();
        let mut result = Ok(());
        for record in queues.values().map(|(_, _, it)| it).chain(bindings.iter().map(|it| &it.2)) {
            let mut with = Upsert { is_change: true, ..Upsert::default() };
            match self.upsert(record, &mut with) {
                Ok(restored) => made.extend(restored.there()),
                Err(error) => result = result.and(Err(error)),
            }
        }
        self.journal.is_closed = false;
        for vhost in traced {
            self.trace(vhost, true);
        }
        self.forget_events_from(told);
        self.generation += 1;
        made.into_iter().for_each(|key| self.journal.note_as(key, false));
        result?;
        let home = |id: QueueId| (id, self.home(id));
        Ok(queues.into_keys().map(home).collect())
    }
}
