//! Commands in any order, with a dispatch only now and then: what must hold whatever the turns look like.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leveret_queue::{
    ChannelLimit, ConsumerId, ConsumerSpec, Delivery, Gate, Incoming, Left, Offset, Options,
    OutputGauge, Queue, Settle, Settled, Time, UnackedId, delivery_cost,
};

use crate::random::{Random, for_each_seed};

/// One channel on one connection; every consumer of the queue is on it.
struct Turns {
    queue: Queue,
    gate: Gate,
    output: u64,
    now: Time,
    offered: u64,
    keys: u64,
    consumers: BTreeMap<u64, ConsumerId>,
    /// With the consumer's key; none for `basic.get`.
    unacked: BTreeMap<u64, (UnackedId, Option<u64>)>,
    left: BTreeSet<u64>,
    out: Vec<Left>,
}

impl Turns {
    fn new(random: &mut Random) -> Self {
        let now = Time::from_ms(1_000);
        let output = Arc::new(OutputGauge::new(1_500));
        Self {
            queue: Queue::new(random.options(), now),
            gate: Gate::new(output, Arc::new(ChannelLimit::new())),
            output: 0,
            now,
            offered: 0,
            keys: 0,
            consumers: BTreeMap::new(),
            unacked: BTreeMap::new(),
            left: BTreeSet::new(),
            out: Vec::new(),
        }
    }

    fn command(&mut self, random: &mut Random) {
        match random.below(100) {
            0..35 => self.publish(random),
            35..45 => self.consume(random),
            45..55 => self.cancel(random),
            55..75 => self.settle(random),
            75..78 => self.get(random.chance(50)),
            78..80 => self.out.extend(self.queue.purge(u64::MAX)),
            80..85 => {
                self.now = self.now.after_ms(random.below(20));
                self.queue.expire(self.now, &mut self.out);
            }
            85..90 => {
                let woken = self.gate.channel().set_limit(random.below(4) as u32);
                self.wake(woken);
            }
            90..98 => self.drain_output(),
            _ => self.queue.set_options(random.options(), self.now, &mut self.out),
        }
    }

    fn publish(&mut self, random: &mut Random) {
        self.offered += 1;
        let message = Incoming {
            priority: random.below(12) as u8,
            expiration_ms: random.chance(30).then(|| random.below(3)),
            ..Incoming::new(Offset::new(self.offered), random.below(200) as u32)
        };
        let _ = self.queue.enqueue(message, self.now, &mut self.out);
    }

    fn consume(&mut self, random: &mut Random) {
        self.keys += 1;
        let spec = ConsumerSpec {
            key: self.keys,
            no_ack: random.chance(30),
            exclusive: false,
            priority: random.below(2) as i32,
            prefetch: random.below(4) as u16,
            gate: self.gate.clone(),
        };
        let id = self.queue.add_consumer(spec, self.now).expect("nobody is exclusive");
        self.consumers.insert(self.keys, id);
    }

    fn cancel(&mut self, random: &mut Random) {
        let Some(&key) = nth(self.consumers.keys(), random) else { return };
        let id = self.consumers.remove(&key).expect("just found");
        let removed =
            self.queue.remove_consumer(id, self.now, &mut self.out).expect("it was there");
        self.wake(removed.resume);
    }

    fn settle(&mut self, random: &mut Random) {
        let Some(&offset) = nth(self.unacked.keys(), random) else { return };
        let (id, key) = self.unacked.remove(&offset).expect("just found");
        let how = match random.below(3) {
            0 => Settle::Ack,
            1 => Settle::Reject,
            _ => Settle::Requeue { counts: random.chance(50) },
        };
        let settled = self.queue.settle(id, Offset::new(offset), how, self.now, &mut self.out);
        assert_ne!(settled, Settled::Stale);
        if key.is_some() {
            let woken = self.gate.channel().settled(1);
            self.wake(woken);
        }
    }

    fn get(&mut self, no_ack: bool) {
        if let Some(got) = self.queue.get(self.now, no_ack, &mut self.out)
            && let Some(id) = got.unacked
        {
            self.unacked.insert(got.offset.get(), (id, None));
        }
    }

    fn drain_output(&mut self) {
        let woken = self.gate.output().released(std::mem::take(&mut self.output));
        self.wake(woken);
    }

    fn wake(&mut self, woken: bool) {
        if woken {
            self.consumers.values().for_each(|&id| self.queue.resume(id));
        }
    }

    fn dispatch(&mut self) {
        let Self { output, unacked, consumers, .. } = self;
        let mut deliver = |delivery: Delivery| {
            let key = delivery.consumer_key;
            assert!(consumers.contains_key(&key), "{key} is cancelled");
            *output += delivery_cost(u64::from(delivery.size));
            if let Some(id) = delivery.unacked {
                let before = unacked.insert(delivery.offset.get(), (id, Some(key)));
                assert_eq!(before, None, "delivered twice");
            }
        };
        while self.queue.dispatch(self.now, &mut deliver, &mut self.out, 5).more {}
        // Nobody waits in vain: no consumer that could take a message is passed over.
        let idle = self.queue.counts().ready == 0 || self.queue.options().paused;
        for view in self.queue.consumers() {
            let may_take =
                view.no_ack || view.prefetch == 0 || view.unacked < u32::from(view.prefetch);
            let woken_later = self.gate.output().queued() > 1_500 / 2 || !self.gate.may_take();
            assert!(idle || !may_take || woken_later || !view.active, "{view:?} starves");
        }
        assert_eq!(self.gate.output().queued(), self.output);
        let from_consumers = self.unacked.values().filter(|(_, key)| key.is_some()).count();
        assert_eq!(self.gate.channel().unacked() as usize, from_consumers);
        assert_eq!(self.queue.counts().unacked as usize, self.unacked.len());
    }

    fn check(&mut self) {
        for left in self.out.drain(..) {
            let offset = left.offset().get();
            assert!(self.left.insert(offset), "{offset} left twice");
            assert!(!self.unacked.contains_key(&offset), "{offset} left while unacked");
        }
        let counts = self.queue.counts();
        let here = counts.ready + counts.unacked + counts.early;
        assert_eq!(here + self.left.len() as u64, self.offered);
        for view in self.queue.consumers() {
            assert!(view.prefetch == 0 || view.no_ack || view.unacked <= u32::from(view.prefetch));
        }
    }
}

fn nth<T>(mut from: impl ExactSizeIterator<Item = T>, random: &mut Random) -> Option<T> {
    let len = from.len() as u64;
    if len == 0 { None } else { from.nth(random.below(len) as usize) }
}

#[test]
fn nothing_is_lost_whatever_the_turns() {
    for_each_seed(4_000, |random| {
        let mut turns = Turns::new(random);
        for _ in 0..100 {
            turns.command(random);
            turns.check();
            if random.chance(30) {
                turns.dispatch();
                turns.check();
            }
        }
        while !turns.consumers.is_empty() {
            turns.cancel(random);
        }
        turns.dispatch();
        turns.drain_output();
        while !turns.unacked.is_empty() {
            turns.settle(random);
        }
        turns.check();
        assert_eq!(turns.gate.output().queued(), 0);
        assert_eq!(turns.gate.channel().unacked(), 0);
        let ready = turns.queue.counts().ready;
        assert_eq!(turns.queue.drain_all().ready(), ready);
    });
}

/// A queue that is to be cut lets go of as much as comes, until it is dispatched: whoever takes in what leaves may have no room.
/// None of it is given out.
#[test]
fn while_a_queue_is_cut_as_much_goes_as_comes() {
    let now = Time::from_ms(1_000);
    let mut queue = Queue::new(Options { dead_letter: true, ..Options::default() }, now);
    let mut left = Vec::new();
    let mut offsets = 0..;
    let mut put = |queue: &mut Queue, left: &mut Vec<Left>| {
        let offset = Offset::new(offsets.next().expect("one more"));
        queue.enqueue(Incoming::new(offset, 10), now, left).expect("taken");
    };
    (0..3_000).for_each(|_| put(&mut queue, &mut left));
    assert!(left.is_empty());
    queue.set_options(Options { max_length: Some(5), ..queue.options().clone() }, now, &mut left);
    let at_once = left.len();
    assert!(at_once < 1_000, "{at_once}");
    (0..50).for_each(|_| put(&mut queue, &mut left));
    assert_eq!((left.len(), queue.counts().ready), (at_once + 50, 3_000 - at_once as u64));
}
