//! Queues that are deleted, of which dead letters are on their way.
//!
//! A queue's name goes at once, and what is in the queue with it. What had left it goes on: a dead letter needs of its queue what is
//! kept here, by the queue's id. So a queue that is declared under the same name has nothing to do with it. Each of these letters
//! has its record until its targets have it, or until it is given up.

use std::collections::BTreeSet;

use leveret_queue::{Left, Offset};
use leveret_topology::{Queue, QueueId, VhostId};

use super::{Exits, Map, Sent, Whereabouts};
use crate::message::ConnectionId;

/// What dead letters need of the queue that they left.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct LeftQueue<'a> {
    pub(in super::super) vhost: VhostId,
    pub(in super::super) name: &'a str,
    pub(in super::super) exchange: &'a str,
    /// In place of the message's own.
    pub(in super::super) key: Option<&'a str>,
}

impl<'a> LeftQueue<'a> {
    /// None if the queue has no dead-letter exchange.
    pub(in super::super) fn of(queue: &'a Queue) -> Option<Self> {
        let (exchange, key) = queue.dead_letter()?;
        Some(Self { vhost: queue.vhost, name: &queue.name, exchange, key })
    }
}

/// A queue that is deleted.
#[derive(Debug)]
struct Former {
    vhost: VhostId,
    name: Box<str>,
    exchange: Box<str>,
    key: Option<Box<str>>,
    is_durable: bool,
    /// Dead letters that are on their way.
    letters: u64,
    /// Those of them that found no room on the disk of a target.
    held: BTreeSet<Offset>,
}

/// All of a shard. None of them is without letters.
#[derive(Debug, Default)]
pub(super) struct Formers {
    all: Map<QueueId, Former>,
}

impl Formers {
    fn get(&self, queue: QueueId) -> Option<&Former> {
        if self.all.is_empty() { None } else { self.all.get(&queue) }
    }

    /// Dead letters that found no room.
    pub(super) fn held(&self) -> u64 {
        self.all.values().map(|it| it.held.len() as u64).sum()
    }

    /// About how many bytes they take.
    pub(super) fn bytes(&self) -> u64 {
        let each = |it: &Former| (size_of::<Former>() + it.held.len() * size_of::<Offset>()) as u64;
        self.all.values().map(each).sum()
    }
}

impl Exits {
    /// The queue is deleted: what was to be tried again is not, and what left goes on. `let_go` is told of each letter on its way
    /// that the queue holds, which it is not to hold any more. Returns for whom messages of the queue are moved.
    pub(in super::super) fn queue_gone(
        &mut self,
        named: Option<&Queue>,
        queue: QueueId,
        mut let_go: impl FnMut(Offset),
    ) -> Vec<ConnectionId> {
        self.retries.forget(queue);
        let mut letters = self.parked_of.get(&queue).copied().unwrap_or_default();
        if letters > 0 {
            for (_, left) in self.parked.iter_mut().filter(|(of, _)| *of == queue) {
                if let Left::DeadLetter { offset, held, .. } = left
                    && std::mem::take(held)
                {
                    let_go(*offset);
                }
            }
        }
        let all = (queue, Offset::new(0))..=(queue, Offset::new(u64::MAX));
        let is_moved = |sent: &Sent| matches!(sent.whereabouts, Whereabouts::Moved { .. });
        let moved = self.sent.extract_if(all.clone(), |_, sent| is_moved(sent));
        let moved_by = moved.filter_map(|(_, sent)| match sent.whereabouts {
            Whereabouts::Moved { by, .. } => Some(by),
            _ => None,
        });
        let moved_by = moved_by.collect();
        for (&(_, offset), sent) in self.sent.range_mut(all) {
            if let Whereabouts::Held(reason) = sent.whereabouts {
                let_go(offset);
                sent.whereabouts = Whereabouts::Departed { reason, mark: 0 };
            }
            letters += 1;
        }
        if letters > 0
            && let Some(named) = named
            && let Some(LeftQueue { vhost, name, exchange, key }) = LeftQueue::of(named)
        {
            let former = Former {
                vhost,
                name: name.into(),
                exchange: exchange.into(),
                key: key.map(Into::into),
                is_durable: named.durable,
                letters,
                held: BTreeSet::new(),
            };
            self.formers.all.insert(queue, former);
        }
        moved_by
    }

    /// A queue that is deleted, as far as its dead letters need it.
    pub(in super::super) fn former(&self, queue: QueueId) -> Option<LeftQueue<'_>> {
        let Former { vhost, name, exchange, key, .. } = self.formers.get(queue)?;
        Some(LeftQueue { vhost: *vhost, name, exchange, key: key.as_deref() })
    }

    /// Whether a queue that is deleted was durable.
    pub(in super::super) fn was_durable(&self, queue: QueueId) -> bool {
        self.formers.get(queue).is_some_and(|former| former.is_durable)
    }

    /// A dead letter of a queue that is deleted found no room: it is tried again. False if nothing is known of the queue.
    pub(in super::super) fn hold(&mut self, queue: QueueId, offset: Offset) -> bool {
        let former = self.formers.all.get_mut(&queue);
        former.is_some_and(|former| former.held.insert(offset))
    }

    /// Whether this dead letter of a queue that is deleted is to be tried again.
    pub(in super::super) fn holds(&self, queue: QueueId, offset: Offset) -> bool {
        self.formers.get(queue).is_some_and(|former| former.held.contains(&offset))
    }

    /// A dead letter is where it was to go, or is given up.
    pub(in super::super) fn letter_gone(&mut self, queue: QueueId, offset: Offset) {
        if !self.formers.all.is_empty()
            && let Some(former) = self.formers.all.get_mut(&queue)
        {
            former.held.remove(&offset);
            former.letters -= 1;
            if former.letters == 0 {
                self.formers.all.remove(&queue);
            }
        }
    }
}
