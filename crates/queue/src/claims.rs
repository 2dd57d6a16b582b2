//! A queue that is made again, and whose messages are out with consumers still: who has them says so.
//!
//! ```text
//!   restore ... stand_still ----> messages come, nothing leaves ----> add_consumer ... claim ----> go_on
//! ```

use crate::consumers::ConsumerId;
use crate::message::{Left, Offset, UnackedId};
use crate::queue::Queue;
use crate::time::Time;

impl Queue {
    /// Until [`go_on`](Self::go_on) nobody knows which of the messages are out with consumers: nothing is given out, and none is
    /// dropped or expires. More may come, whatever the lengths are.
    pub fn stand_still(&mut self) {
        if self.waiting.is_none() {
            self.waiting = Some(Box::new(self.options.clone()));
            (self.options.max_length, self.options.max_length_bytes) = (None, None);
            self.consumers.are_paused = true;
        }
    }

    /// It is known who has what: the lengths hold again, and [`dispatch`](Self::dispatch) is to follow.
    pub fn go_on(&mut self, now: Time, out: &mut Vec<Left>) {
        if let Some(options) = self.waiting.take() {
            self.set_options(*options, now, out);
            self.touch(now);
        }
    }

    /// These messages are out with these consumers, or with whoever called `basic.get`: those that are ready are unacked from now
    /// on, under the names that are given back. Of the others, which left the queue, a consumer's are counted all the same
    /// until [`settled_elsewhere`](Self::settled_elsewhere). The offsets ascend, and none comes twice.
    pub fn claim(&mut self, claims: &[(Offset, Option<ConsumerId>)]) -> Vec<Option<UnackedId>> {
        let offsets: Vec<u64> = claims.iter().map(|(offset, _)| offset.get()).collect();
        let mut taken = self.ready.take(&offsets);
        taken.sort_unstable_by_key(|(_, entry)| entry.offset);
        let mut taken = taken.into_iter().peekable();
        let claim = |&(offset, consumer): &(Offset, Option<ConsumerId>)| {
            let consumer = consumer.map(|id| id.0);
            if let Some(consumer) = consumer {
                self.consumers.has_one_more(consumer);
            }
            let (priority, entry) = taken.next_if(|(_, entry)| entry.offset == offset.get())?;
            Some(self.unacked.insert(entry, priority, consumer))
        };
        claims.iter().map(claim).collect()
    }

    /// A message that a consumer claimed is settled, and had left the queue before.
    pub fn settled_elsewhere(&mut self, consumer: ConsumerId) {
        self.consumers.settled(consumer.0);
    }

    /// A claimed message had come back before it was handed out the last time: how often by now, where that counts.
    pub fn had_come_back(&mut self, id: UnackedId, offset: Offset) -> Option<u32> {
        let counts = self.options.counts_deliveries || self.options.delivery_limit.is_some();
        let mut message = self.unacked.get(id, offset.get()).filter(|_| counts)?;
        let count = self.extras.delivery_count(message).saturating_add(1);
        let expires_at = self.extras.expires_at(message);
        self.extras.set(&mut message, expires_at, count);
        self.unacked.set(id, message);
        Some(count)
    }

    /// The queue is about to be forgotten: what was assigned and not handed out makes room again in its consumers' gates.
    pub fn forget_early(&mut self) {
        for assigned in std::mem::take(&mut self.early) {
            if let Some(consumer) = self.consumers.present(assigned.consumer) {
                // Whoever waits for that room is looked at anew, too.
                let _ =
                    consumer.spec.gate.give_back(assigned.entry.size, assigned.unacked.is_some());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consumers::ConsumerSpec;
    use crate::gate::Gate;
    use crate::message::{Delivery, Incoming, Settle};
    use crate::options::Options;
    use crate::queue::Settled;

    const NOW: Time = Time::from_ms(1_000);

    fn spec(key: u64, prefetch: u16) -> ConsumerSpec {
        let gate = Gate::open();
        ConsumerSpec { key, no_ack: false, exclusive: false, priority: 0, prefetch, gate }
    }

    fn restored(options: Options, offsets: std::ops::Range<u64>) -> Queue {
        let mut queue = Queue::new(options, NOW);
        for offset in offsets {
            let message = Incoming { redelivered: true, ..Incoming::new(Offset::new(offset), 10) };
            queue.restore(message, NOW);
        }
        queue.stand_still();
        queue
    }

    fn given(queue: &mut Queue, now: Time) -> Vec<(u64, u64)> {
        let (mut given, mut left) = (Vec::new(), Vec::new());
        let mut deliver = |it: Delivery| given.push((it.consumer_key, it.offset.get()));
        queue.dispatch(now, &mut deliver, &mut left, 100);
        given
    }

    #[test]
    fn who_claims_has_it_and_the_prefetch_counts_it() {
        let mut queue = restored(Options::default(), 0..5);
        let one = queue.add_consumer(spec(1, 2), NOW).expect("alone");
        let two = queue.add_consumer(spec(2, 2), NOW).expect("not exclusive");
        let at = Offset::new;
        let claims = [(at(1), Some(one)), (at(3), None), (at(7), Some(two))];
        let ids = queue.claim(&claims);
        assert_eq!(ids.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false]);
        assert_eq!((queue.counts().ready, queue.counts().unacked), (3, 2));
        assert_eq!(given(&mut queue, NOW), [], "nobody may be given anything yet");
        queue.go_on(NOW, &mut Vec::new());
        assert_eq!(given(&mut queue, NOW), [(1, 0), (2, 2)], "each had one, and may have two");
        queue.settled_elsewhere(two);
        assert_eq!(given(&mut queue, NOW), [(2, 4)]);
        let mut left = Vec::new();
        let id = ids[0].expect("claimed");
        assert_eq!(queue.settle(id, at(1), Settle::Ack, NOW, &mut left), Settled::Ended);
        let id = ids[1].expect("claimed");
        let back = Settle::Requeue { counts: true };
        queue.settle(id, at(3), back, NOW, &mut left);
        assert_eq!(given(&mut queue, NOW), [(1, 3)], "it came back to who has room");
        assert_eq!(left, [Left::Acked(at(1))]);
    }

    #[test]
    fn what_had_come_back_is_counted() {
        let options = Options { delivery_limit: Some(2), ..Options::default() };
        let mut queue = restored(options, 0..1);
        let at = Offset::new(0);
        let id = queue.claim(&[(at, None)])[0].expect("there");
        assert_eq!(queue.had_come_back(id, at), Some(1));
        assert_eq!(queue.had_come_back(id, Offset::new(1)), None, "another one");
        queue.go_on(NOW, &mut Vec::new());
        let (back, mut left) = (Settle::Requeue { counts: true }, Vec::new());
        let settled = queue.settle(id, at, back, NOW, &mut left);
        assert_eq!(settled, Settled::Returned { delivery_count: Some(2) });
    }

    /// What is out with a consumer does not count as ready, and cannot be dropped.
    #[test]
    fn nothing_leaves_before_it_is_known_who_has_what() {
        let options =
            Options { max_length: Some(2), message_ttl_ms: Some(5), ..Options::default() };
        let mut queue = restored(options.clone(), 0..4);
        let (mut left, at, late) = (Vec::new(), Offset::new, NOW.after_ms(100));
        queue.enqueue(Incoming::new(at(4), 10), late, &mut left).expect("it takes all");
        let other = Options { max_length: Some(1), ..options };
        queue.set_options(other.clone(), late, &mut left);
        assert!(!queue.expire(late, &mut left) && queue.next_timeout().is_none());
        assert_eq!(given(&mut queue, late), []);
        assert_eq!((queue.counts().ready, &left[..]), (5, &[][..]));
        queue.claim(&[(at(0), None), (at(1), None)]);
        queue.go_on(late, &mut left);
        assert_eq!(queue.options(), &other);
        assert_eq!(queue.counts().unacked, 2);
        assert_eq!(left.iter().map(|it| it.offset().get()).collect::<Vec<_>>(), [2, 3]);
    }
}
