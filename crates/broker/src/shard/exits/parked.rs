//! Dead letters whose records have to be read: they go on in the order in which they left. A queue that is deleted finds its own
//! among them without a look at others, of which there may be millions.

use std::collections::VecDeque;

use hashbrown::hash_map::Entry;
use leveret_queue::Left;
use leveret_topology::QueueId;

use super::Map;

/// All of a shard, in order.
#[derive(Debug, Default)]
pub(super) struct ParkedLetters {
    line: VecDeque<(QueueId, Left)>,
    /// The number of the line's first one. Those behind it have the next numbers.
    first: u64,
    /// The numbers of each queue's. No list is empty.
    of: Map<QueueId, VecDeque<u64>>,
}

impl ParkedLetters {
    /// It waits for those before it.
    pub(super) fn push(&mut self, queue: QueueId, left: Left) {
        let number = self.first + self.line.len() as u64;
        self.line.push_back((queue, left));
        self.of.entry(queue).or_default().push_back(number);
    }

    /// Takes the first one out.
    pub(super) fn pop(&mut self) {
        let Some((queue, _)) = self.line.pop_front() else { return };
        self.first += 1;
        if let Entry::Occupied(mut numbers) = self.of.entry(queue) {
            numbers.get_mut().pop_front();
            if numbers.get().is_empty() {
                numbers.remove();
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(QueueId, Left)> {
        self.line.iter()
    }

    pub(super) fn len(&self) -> u64 {
        self.line.len() as u64
    }

    /// Shows each letter of the queue, the first one first. Returns how many there are.
    pub(super) fn each_of(&mut self, queue: QueueId, mut show: impl FnMut(&mut Left)) -> u64 {
        let Some(numbers) = self.of.get(&queue) else { return 0 };
        for number in numbers {
            if let Some((_, left)) = self.line.get_mut((number - self.first) as usize) {
                show(left);
            }
        }
        numbers.len() as u64
    }

    /// About how many bytes they take.
    pub(super) fn bytes(&self) -> u64 {
        const LETTER: usize = size_of::<(QueueId, Left)>() + size_of::<u64>();
        const QUEUE: usize = size_of::<(QueueId, VecDeque<u64>)>();
        (self.line.len() * LETTER + self.of.len() * QUEUE) as u64
    }
}

#[cfg(test)]
mod tests {
    use leveret_queue::Offset;

    use super::*;

    #[test]
    fn a_queue_has_its_own_letters_in_order() {
        let (a, b) = (QueueId::new(1), QueueId::new(2));
        let mut parked = ParkedLetters::default();
        let at = |offset| Left::Acked(Offset::new(offset));
        for offset in 0..100 {
            parked.push(if offset % 10 == 3 { a } else { b }, at(offset));
        }
        let of = |parked: &mut ParkedLetters, queue| {
            let mut shown = Vec::new();
            let count = parked.each_of(queue, |left| shown.push(left.offset().get()));
            assert_eq!(count, shown.len() as u64);
            shown
        };
        assert_eq!(of(&mut parked, a), (0..10).map(|it| 10 * it + 3).collect::<Vec<_>>());
        (0..14).for_each(|_| parked.pop());
        parked.push(a, at(100));
        assert_eq!(of(&mut parked, a), [23, 33, 43, 53, 63, 73, 83, 93, 100]);
        assert_eq!(of(&mut parked, b).len(), 78);
        let line: Vec<u64> = parked.iter().map(|(_, left)| left.offset().get()).collect();
        assert_eq!(line, (14..=100).collect::<Vec<_>>());
        (0..87).for_each(|_| parked.pop());
        assert_eq!((parked.len(), parked.bytes(), of(&mut parked, a)), (0, 0, vec![]));
    }
}
