//! Hot path. The queues of one shard that a message goes to.
//!
//! One or two lie in the message itself. A longer list is shared by all messages that go the same way: with a copy
//! for each, a read of small messages for 20,000 queues would be hundreds of megabytes of lists.

use std::ops::Deref;
use std::sync::Arc;

use leveret_log::LogNumber;
use leveret_topology::{GroupId, Homes, QueueId, Topology};
use smallvec::SmallVec;

/// Lists of this length lie in the message.
const FEW: usize = 2;

/// Queues of one shard that a message goes to. A clone is as short as one queue.
#[derive(Clone, Debug)]
pub struct Targets(List);

#[derive(Clone, Debug)]
enum List {
    Few { len: u8, queues: [QueueId; FEW] },
    Many(Arc<Vec<QueueId>>),
}

impl Targets {
    /// None.
    pub const fn new() -> Self {
        Self(List::Few { len: 0, queues: [QueueId::new(0); FEW] })
    }

    /// One.
    pub const fn one(queue: QueueId) -> Self {
        let mut queues = [QueueId::new(0); FEW];
        queues[0] = queue;
        Self(List::Few { len: 1, queues })
    }

    /// These.
    pub fn from_slice(queues: &[QueueId]) -> Self {
        queues.iter().copied().collect()
    }

    /// One more. Costs a copy if others have the list.
    pub fn push(&mut self, queue: QueueId) {
        match &mut self.0 {
            List::Few { len, queues } => match queues.get_mut(usize::from(*len)) {
                Some(place) => {
                    *place = queue;
                    *len += 1;
                }
                None => {
                    let mut all = queues.to_vec();
                    all.push(queue);
                    self.0 = List::Many(Arc::new(all));
                }
            },
            List::Many(all) => Arc::make_mut(all).push(queue),
        }
    }

    /// Bytes of the list if it does not lie in the message, however many share it.
    pub fn list_bytes(&self) -> usize {
        match &self.0 {
            List::Few { .. } => 0,
            List::Many(all) => size_of_val(&all[..]),
        }
    }
}

/// Queues by the group that they live in: what each group gets.
pub type Homed = SmallVec<[(GroupId, Targets); 1]>;

/// The log of a group, if it is one of this node's.
pub fn log_of(group: GroupId, homes: Homes) -> Option<LogNumber> {
    homes.index_of(group).map(LogNumber::at)
}

/// Adds queues to lists by their homes.
pub fn add_by_home(queues: &[QueueId], topology: &Topology, homed: &mut Homed) {
    for &queue in queues {
        let home = topology.home(queue);
        match homed.iter_mut().find(|(at, _)| *at == home) {
            Some((_, targets)) => targets.push(queue),
            None => homed.push((home, Targets::one(queue))),
        }
    }
}

impl Default for Targets {
    fn default() -> Self {
        Self::new()
    }
}

impl Deref for Targets {
    type Target = [QueueId];

    #[inline]
    fn deref(&self) -> &[QueueId] {
        match &self.0 {
            List::Few { len, queues } => queues.get(..usize::from(*len)).unwrap_or_default(),
            List::Many(all) => all,
        }
    }
}

impl FromIterator<QueueId> for Targets {
    fn from_iter<I: IntoIterator<Item = QueueId>>(queues: I) -> Self {
        let mut targets = Self::new();
        queues.into_iter().for_each(|queue| targets.push(queue));
        targets
    }
}

impl<'a> IntoIterator for &'a Targets {
    type Item = &'a QueueId;
    type IntoIter = std::slice::Iter<'a, QueueId>;

    #[inline]
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_what_was_put_into_it() {
        for count in 0..20 {
            let queues: Vec<_> = (0..count).map(QueueId::new).collect();
            let targets = Targets::from_slice(&queues);
            assert_eq!(targets[..], queues[..]);
            let mut longer = targets.clone();
            longer.push(QueueId::new(99));
            assert_eq!(targets[..], queues[..], "a clone is another list");
            assert_eq!(longer.last(), Some(&QueueId::new(99)));
        }
    }

    #[test]
    fn long_lists_are_shared() {
        let targets: Targets = (0..1000).map(QueueId::new).collect();
        assert_eq!(targets.clone().as_ptr(), targets.as_ptr());
        assert_eq!(targets.list_bytes(), 8000);
        assert_eq!(size_of::<Targets>(), 24);
    }
}
