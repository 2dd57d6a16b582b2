//! Dead letters whose records have to be read: they go on in the order in which they left. How many a queue has of them is known
//! without a look at them, of which there may be millions.

use std::collections::VecDeque;

use hashbrown::hash_map::Entry;
use leveret_queue::Left;
use leveret_topology::QueueId;

use super::Map;

/// All of a shard, in order.
#[derive(Debug, Default)]
pub(super) struct ParkedLetters {
    line: VecDeque<(QueueId, Left)>,
    /// How many of them each queue has. None has none.
    of: Map<QueueId, u64>,
}

impl ParkedLetters {
    /// It waits for those before it.
    pub(super) fn push(&mut self, queue: QueueId, left: Left) {
        self.line.push_back((queue, left));
        *self.of.entry(queue).or_default() += 1;
    }

    /// Takes the first one out.
    pub(super) fn pop(&mut self) {
        let Some((queue, _)) = self.line.pop_front() else { return };
        if let Entry::Occupied(mut count) = self.of.entry(queue) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(QueueId, Left)> {
        self.line.iter()
    }

    pub(super) fn len(&self) -> u64 {
        self.line.len() as u64
    }

    /// How many the queue has.
    pub(super) fn count_of(&self, queue: QueueId) -> u64 {
        self.of.get(&queue).copied().unwrap_or_default()
    }

    /// About how many bytes they take.
    pub(super) fn bytes(&self) -> u64 {
        const LETTER: usize = size_of::<(QueueId, Left)>();
        const QUEUE: usize = size_of::<(QueueId, u64)>();
        (self.line.len() * LETTER + self.of.len() * QUEUE) as u64
    }
}

#[cfg(test)]
mod tests {
    use leveret_queue::Offset;

    use super::*;

    #[test]
    fn what_each_queue_has_is_counted() {
        let (a, b) = (QueueId::new(1), QueueId::new(2));
        let mut parked = ParkedLetters::default();
        let at = |offset| Left::Acked(Offset::new(offset));
        for offset in 0..100 {
            parked.push(if offset % 10 == 3 { a } else { b }, at(offset));
        }
        assert_eq!((parked.count_of(a), parked.count_of(b)), (10, 90));
        (0..14).for_each(|_| parked.pop());
        parked.push(a, at(100));
        assert_eq!((parked.count_of(a), parked.count_of(b)), (9, 78));
        let line: Vec<u64> = parked.iter().map(|(_, left)| left.offset().get()).collect();
        assert_eq!(line, (14..=100).collect::<Vec<_>>());
        (0..87).for_each(|_| parked.pop());
        assert_eq!((parked.len(), parked.bytes(), parked.count_of(a)), (0, 0, 0));
    }
}
