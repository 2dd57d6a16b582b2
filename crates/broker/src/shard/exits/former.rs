//! Queues that are deleted, of which dead letters are on their way.
//!
//! A queue's name goes at once, and what is in the queue with it. What had left it goes on: a dead letter needs of its queue what is
//! kept here, by the queue's id. So a queue that is declared under the same name has nothing to do with it. Each of these letters
//! has its record until its targets have it, or until it is given up.

use std::collections::BTreeSet;

use hashbrown::hash_map::Entry;
use leveret_queue::Offset;
use leveret_topology::{Queue, QueueId, VhostId};

use super::super::numbers::Kind;
use super::{Exits, Map, Sent, Stuck, Whereabouts};
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
    /// For the log, when its vhost may be gone, too.
    description: Box<str>,
    exchange: Box<str>,
    key: Option<Box<str>>,
    is_durable: bool,
    /// By what its totals are kept.
    kind: Kind,
    /// Dead letters that are on their way.
    letters: u64,
    /// Those of them that found no room on the disk of a target.
    held: BTreeSet<Offset>,
}

/// All of a shard. None of them is without letters.
#[derive(Debug, Default)]
pub(super) struct Formers {
    all: Map<QueueId, Former>,
    /// Letters that are held.
    held: u64,
    /// About how many bytes queues take, but for their letters.
    bytes: u64,
}

/// About how many bytes a letter takes that is held: its place among them, and what waits for the next try.
const HELD_BYTES: u64 = (size_of::<Offset>() + size_of::<Stuck>()) as u64;

impl Former {
    /// About how many bytes it takes, but for its letters.
    fn bytes(&self) -> u64 {
        let key = self.key.as_ref().map_or(0, |it| it.len());
        let texts = self.name.len() + self.description.len() + self.exchange.len() + key;
        (size_of::<(QueueId, Former)>() + texts) as u64
    }
}

impl Formers {
    fn get(&self, queue: QueueId) -> Option<&Former> {
        if self.all.is_empty() { None } else { self.all.get(&queue) }
    }

    /// Dead letters that found no room.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    /// About how many bytes they take.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes + self.held * HELD_BYTES
    }

    fn add(&mut self, queue: QueueId, former: Former) {
        self.bytes += former.bytes();
        self.all.insert(queue, former);
    }

    /// A letter is held from now on. False if nothing is known of the queue.
    fn hold(&mut self, queue: QueueId, offset: Offset) -> bool {
        let Some(former) = self.all.get_mut(&queue) else { return false };
        self.held += u64::from(former.held.insert(offset));
        true
    }

    /// A letter is on its way no more. The queue is forgotten with its last one.
    fn letter_gone(&mut self, queue: QueueId, offset: Offset) {
        if self.all.is_empty() {
            return;
        }
        let Entry::Occupied(mut entry) = self.all.entry(queue) else { return };
        let former = entry.get_mut();
        self.held -= u64::from(former.held.remove(&offset));
        former.letters -= 1;
        if former.letters == 0 {
            self.bytes -= entry.remove().bytes();
        }
    }
}

impl Exits {
    /// The queue is deleted: what was to be tried again is not, and what left goes on. Returns for whom messages of the queue are
    /// moved. `describe`: what the log calls it. No letter is looked at that is not sent: there may be millions.
    pub(in super::super) fn queue_gone(
        &mut self,
        named: Option<&Queue>,
        queue: QueueId,
        kind: Kind,
        describe: impl FnOnce(&Queue) -> String,
    ) -> Vec<ConnectionId> {
        self.retries.forget(queue);
        let all = (queue, Offset::new(0))..=(queue, Offset::new(u64::MAX));
        let is_moved = |sent: &Sent| matches!(sent.whereabouts, Whereabouts::Moved { .. });
        let moved = self.sent.extract_if(all.clone(), |_, sent| is_moved(sent));
        let moved_by = moved.filter_map(|(_, sent)| match sent.whereabouts {
            Whereabouts::Moved { by, .. } => Some(by),
            _ => None,
        });
        let moved_by = moved_by.collect();
        let sent = self.sent.range(all).count() as u64;
        let letters = self.line_len(queue) + self.parked.count_of(queue) + sent;
        if letters > 0
            && let Some(named) = named
            && let Some(LeftQueue { vhost, name, exchange, key }) = LeftQueue::of(named)
        {
            let former = Former {
                vhost,
                name: name.into(),
                description: describe(named).into(),
                exchange: exchange.into(),
                key: key.map(Into::into),
                is_durable: named.durable,
                kind,
                letters,
                held: BTreeSet::new(),
            };
            self.formers.add(queue, former);
        }
        moved_by
    }

    /// A queue that is deleted, as far as its dead letters need it.
    pub(in super::super) fn former(&self, queue: QueueId) -> Option<LeftQueue<'_>> {
        let Former { vhost, name, exchange, key, .. } = self.formers.get(queue)?;
        Some(LeftQueue { vhost: *vhost, name, exchange, key: key.as_deref() })
    }

    /// What the log calls a queue that is deleted.
    pub(in super::super) fn former_description(&self, queue: QueueId) -> Option<&str> {
        self.formers.get(queue).map(|former| &*former.description)
    }

    /// Dead letters on their way that have no queue to come back to: of each queue that is deleted, what the log calls it and
    /// how many they are.
    pub(in super::super) fn homeless(&self) -> impl Iterator<Item = (&str, u64)> {
        self.formers.all.values().map(|former| (&*former.description, former.letters))
    }

    /// Whether a queue that is deleted was durable.
    pub(in super::super) fn was_durable(&self, queue: QueueId) -> bool {
        self.formers.get(queue).is_some_and(|former| former.is_durable)
    }

    /// By what the totals of a queue that is deleted are kept.
    pub(in super::super) fn former_kind(&self, queue: QueueId) -> Option<Kind> {
        self.formers.get(queue).map(|former| former.kind)
    }

    /// A dead letter of a queue that is deleted found no room: it is tried again. False if nothing is known of the queue.
    pub(in super::super) fn hold(&mut self, queue: QueueId, offset: Offset) -> bool {
        self.formers.hold(queue, offset)
    }

    /// Whether this dead letter of a queue that is deleted is to be tried again.
    pub(in super::super) fn holds(&self, queue: QueueId, offset: Offset) -> bool {
        self.formers.get(queue).is_some_and(|former| former.held.contains(&offset))
    }

    /// A dead letter is where it was to go, or is given up.
    pub(in super::super) fn letter_gone(&mut self, queue: QueueId, offset: Offset) {
        self.formers.letter_gone(queue, offset);
    }
}

#[cfg(test)]
mod tests {
    use leveret_topology::QueueKind;

    use super::*;

    impl Formers {
        /// Its sums are those of what it has.
        fn is_sound(&self) -> bool {
            let held: usize = self.all.values().map(|it| it.held.len()).sum();
            let bytes: u64 = self.all.values().map(Former::bytes).sum();
            let are_needed = self.all.values().all(|it| it.letters >= it.held.len().max(1) as u64);
            (held as u64, bytes) == (self.held, self.bytes) && are_needed
        }
    }

    fn former(queue: u64) -> Former {
        let name = "n".repeat(queue as usize);
        Former {
            vhost: VhostId::new(1),
            description: format!("queue '{name}' in vhost '/'").into(),
            name: name.into(),
            exchange: "x".into(),
            key: queue.is_multiple_of(2).then(|| "key".into()),
            is_durable: true,
            kind: (QueueKind::Classic, false),
            letters: 10 * queue,
            held: BTreeSet::new(),
        }
    }

    /// Queues are deleted, and their letters found no room, or none once more, and went: in any order.
    #[test]
    fn sums_are_those_of_the_queues_there_are() {
        let mut formers = Formers::default();
        let id = QueueId::new;
        for queue in 1..=5 {
            formers.add(id(queue), former(queue));
            assert!(formers.is_sound());
        }
        for step in 0..150 {
            // Each offset of each queue once, the queues in turn.
            let (queue, offset) = (id(1 + step % 5), Offset::new(step / 5));
            let has_it = step / 5 < 10 * queue.get();
            if step % 3 > 0 && has_it {
                assert!(formers.hold(queue, offset) && formers.hold(queue, offset), "{step}");
            }
            assert!(formers.is_sound(), "{step}");
            if step % 7 > 0 && has_it {
                formers.letter_gone(queue, offset);
            }
            assert!(formers.is_sound(), "{step}");
        }
        assert!(formers.held() > 0 && formers.bytes() > formers.held() * HELD_BYTES);
        assert!(!formers.hold(id(6), Offset::new(0)), "nothing is known of it");
        for queue in 1..=5 {
            let mut offset = 0;
            while let Some(former) = formers.get(id(queue)) {
                let held = former.held.first().copied();
                formers.letter_gone(id(queue), held.unwrap_or_else(|| Offset::new(1_000 + offset)));
                offset += 1;
                assert!(formers.is_sound(), "{queue}");
            }
        }
        assert_eq!((formers.held(), formers.bytes(), formers.all.len()), (0, 0, 0));
    }
}
