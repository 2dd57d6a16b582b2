//! A queue that is made again, and of which only the first messages have entries: the others are counted, and come later.
//!
//! ```text
//!   restore, defer ... ----> in use ----> restore_of_rest ... ----> no rest: a queue as any other
//! ```
//!
//! Whoever makes the queue again knows the rest: which messages these are, in order. A queue that runs out of entries before it
//! has no head ([`is_at_rest`](Queue::is_at_rest)) and gives nothing out until the next one came. What is asked for by an offset is found
//! once the rest [up to it](Queue::has_rest_to) came. Counts are those of all.

use std::ops::Range;

use crate::message::{Incoming, Offset};
use crate::options::Options;
use crate::queue::Queue;
use crate::time::Time;

impl Options {
    /// Whether a queue can be without some entries: what it gives out next, and what it lets go of, it decides by its head alone.
    fn look_at_head_only(&self) -> bool {
        let Self { max_length, max_length_bytes, max_priority, .. } = self;
        max_length.is_none() && max_length_bytes.is_none() && max_priority.is_none()
    }
}

impl Queue {
    /// As [`restore`](Self::restore), of `count` messages one after the other which are alike but for their offsets. False if they
    /// are to be restored one by one: the queue has fewer than `first`, or cannot do without their entries.
    pub fn defer(&mut self, message: Incoming, count: u64, first: u64) -> bool {
        let Incoming { offset, size, persistent, .. } = message;
        let bytes = count * u64::from(size);
        let (persistent, persistent_bytes) = if persistent { (count, bytes) } else { (0, 0) };
        let may = self.may_defer(first);
        if may {
            let offsets = offset..Offset::new(offset.get() + count);
            self.defer_sum(offsets, (count, bytes), (persistent, persistent_bytes));
        }
        may
    }

    /// Whether messages that come next may be counted only: the queue has `first`, and can do without the entries of others. Once
    /// it is so it stays so, as long as all that come are.
    pub fn may_defer(&self, first: u64) -> bool {
        let has_first = self.ready.rest() > 0 || self.ready.len() >= first;
        has_first && self.options.look_at_head_only() && self.ready.may_have_rest()
    }

    /// Counts messages that are there with these offsets: so many, and so many bytes, of all and of those that are
    /// persistent. The queue [may](Self::may_defer) do without entries of them; they come behind all that have some.
    pub fn defer_sum(&mut self, offsets: Range<Offset>, all: (u64, u64), persistent: (u64, u64)) {
        let (count, bytes) = all;
        self.ready.push_rest(offsets.start.get()..offsets.end.get(), count, bytes);
        self.count_persistent_rest(persistent);
        self.totals.restored += count;
    }

    /// Messages that are counted only.
    #[inline]
    pub fn rest(&self) -> u64 {
        self.ready.rest()
    }

    /// Whether the rest may have a message of this offset, or a lower one.
    pub fn has_rest_to(&self, offset: Offset) -> bool {
        self.ready.has_rest_to(offset.get())
    }

    /// Whether the message of this offset, which is in the queue, is of the rest.
    pub fn is_in_rest(&self, offset: Offset) -> bool {
        self.ready.is_in_rest(offset.get())
    }

    /// Whether the next message is of the rest: there is no head before it came.
    pub fn is_at_rest(&self) -> bool {
        self.ready.rest() > 0 && self.ready.peek().is_none()
    }

    /// The first message of the rest comes. [`dispatch`](Self::dispatch) is to follow if the queue [was at
    /// it](Self::is_at_rest).
    pub fn restore_of_rest(&mut self, message: Incoming, published: Time) {
        let entry = self.restored(message, published);
        self.ready.push_of_rest(entry);
    }

    /// Nothing more comes of the rest. Tells how many messages were counted that are not there: none, if nobody made a mistake.
    #[cold]
    pub fn forget_rest(&mut self) -> u64 {
        let count = self.ready.forget_rest();
        self.count_persistent_anew();
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consumers::ConsumerSpec;
    use crate::gate::Gate;
    use crate::message::{Delivery, Left};

    const NOW: Time = Time::from_ms(1_000);

    fn message(offset: u64) -> Incoming {
        Incoming { persistent: offset.is_multiple_of(2), ..Incoming::new(Offset::new(offset), 10) }
    }

    /// The first two of ten have entries, and one came since.
    fn queue() -> Queue {
        let mut queue = Queue::new(Options::default(), NOW);
        for offset in 0..10 {
            if !queue.defer(message(offset), 1, 2) {
                queue.restore(message(offset), NOW);
            }
        }
        assert_eq!(queue.rest(), 8);
        queue.enqueue(message(10), NOW, &mut Vec::new()).expect("it takes all");
        queue
    }

    fn get(queue: &mut Queue, now: Time) -> Option<u64> {
        queue.get(now, true, &mut Vec::new()).map(|got| got.offset.get())
    }

    #[test]
    fn counts_are_those_of_all() {
        let mut queue = queue();
        for left in (0..11).rev() {
            let counts = queue.counts();
            assert_eq!((counts.ready, counts.ready_bytes), (left + 1, 10 * (left + 1)));
            let persistent = left / 2 + 1;
            let counted = (counts.persistent, counts.persistent_bytes);
            assert_eq!(counted, (persistent, 10 * persistent), "with {left} left");
            let next = 10 - left;
            if (2..10).contains(&next) {
                assert!(queue.is_at_rest() && queue.is_in_rest(Offset::new(next)));
                assert!(queue.has_rest_to(Offset::new(next)) && queue.head().is_none());
                queue.restore_of_rest(message(next), NOW);
                assert!(!queue.has_rest_to(Offset::new(next)));
            }
            assert_eq!(get(&mut queue, NOW), Some(next));
        }
        assert!(queue.is_empty() && !queue.is_at_rest());
    }

    #[test]
    fn what_came_since_waits_for_the_rest() {
        let mut queue = queue();
        let (gate, mut given) = (Gate::open(), Vec::new());
        let (key, prefetch, priority) = (1, 0, 0);
        let spec = ConsumerSpec { key, no_ack: true, exclusive: false, priority, prefetch, gate };
        queue.add_consumer(spec, NOW).expect("alone");
        let dispatch = |queue: &mut Queue, given: &mut Vec<u64>| {
            let mut deliver = |it: Delivery| given.push(it.offset.get());
            queue.dispatch(NOW, &mut deliver, &mut Vec::new(), 100)
        };
        let done = dispatch(&mut queue, &mut given);
        assert!(!done.more && !done.waits && queue.wants_dispatch());
        assert_eq!(given, [0, 1]);
        (2..9).for_each(|offset| queue.restore_of_rest(message(offset), NOW));
        dispatch(&mut queue, &mut given);
        assert_eq!(given, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        queue.restore_of_rest(message(9), NOW);
        dispatch(&mut queue, &mut given);
        assert_eq!(given, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        assert!(queue.is_empty());
    }

    #[test]
    fn what_is_named_by_its_offset_is_found_before_and_behind_the_rest() {
        let mut queue = queue();
        queue.restore_of_rest(message(2), NOW);
        let offsets = [1, 2, 5, 10].map(Offset::new);
        let out = queue.take_out(&offsets);
        assert_eq!(out.iter().map(|it| it.0.get()).collect::<Vec<_>>(), [1, 2, 10]);
        assert_eq!((queue.counts().ready, queue.counts().unacked, queue.rest()), (8, 3, 7));
        queue.put_back(out[0].1, Offset::new(1), false, NOW, &mut Vec::new());
        assert_eq!(get(&mut queue, NOW), Some(1), "it came back, and the others are behind it");
        (3..10).for_each(|offset| queue.restore_of_rest(message(offset), NOW));
        let purged: Vec<_> = queue.purge(u64::MAX).collect();
        let purged_of = |left: &Left| left.offset().get();
        assert_eq!(purged.iter().map(purged_of).collect::<Vec<_>>(), [0, 3, 4, 5, 6, 7, 8, 9]);
    }

    /// Of what has a limit, or priorities, all have entries.
    #[test]
    fn who_needs_all_entries_has_them() {
        let plain = Options::default();
        for (options, may) in [
            (plain.clone(), true),
            (Options { message_ttl_ms: Some(5), ..plain.clone() }, true),
            (Options { max_length: Some(5), ..plain.clone() }, false),
            (Options { max_length_bytes: Some(5), ..plain.clone() }, false),
            (Options { max_priority: Some(5), ..plain }, false),
        ] {
            let mut queue = Queue::new(options.clone(), NOW);
            assert_eq!(queue.defer(message(0), 3, 0), may, "{options:?}");
            assert_eq!(queue.counts().ready, if may { 3 } else { 0 });
        }
        let mut queue = queue();
        assert!(!queue.defer(message(11), 1, 0), "others are behind the rest already");
    }

    #[test]
    fn a_rest_that_is_not_there_is_forgotten() {
        let mut queue = queue();
        assert_eq!(queue.forget_rest(), 8);
        let counts = queue.counts();
        assert_eq!((counts.ready, counts.ready_bytes), (3, 30));
        assert_eq!((counts.persistent, counts.persistent_bytes), (2, 20));
        let all: Vec<_> = std::iter::from_fn(|| get(&mut queue, NOW)).collect();
        assert_eq!(all, [0, 1, 10]);
    }
}
