//! Messages that are not at hand when their turn comes.

use std::collections::BTreeSet;

use leveret_queue::{
    ConsumerSpec, Deliver, Delivery, Gate, Incoming, Offset, Options, Queue, Record, Time,
};

const NOW: Time = Time::from_ms(0);

/// Delivers what is not cold.
#[derive(Default)]
struct Disk {
    cold: BTreeSet<Offset>,
    delivered: Vec<u64>,
}

impl Deliver for Disk {
    fn look(&mut self, offset: Offset) -> Record {
        if self.cold.contains(&offset) { Record::ToCome } else { Record::AtHand }
    }

    fn deliver(&mut self, delivery: Delivery) {
        self.delivered.push(delivery.offset.get());
    }
}

fn upcoming(queue: &Queue) -> Vec<u64> {
    let mut all = Vec::new();
    queue.upcoming(0, 10, |offset, _| all.push(offset.get()));
    all
}

/// What `basic.get` finds is behind what a consumer is about to get, and that is read first.
#[test]
fn assigned_early_and_not_at_hand() {
    let mut queue = Queue::new(Options::default(), NOW);
    let mut out = Vec::new();
    for offset in 1..=3 {
        queue.enqueue(Incoming::new(Offset::new(offset), 1), NOW, &mut out).unwrap();
    }
    let spec = ConsumerSpec {
        key: 0,
        no_ack: false,
        exclusive: false,
        priority: 0,
        prefetch: 1,
        gate: Gate::open(),
    };
    queue.add_consumer(spec, NOW).unwrap();
    let mut disk = Disk { cold: [Offset::new(1)].into(), ..Disk::default() };
    assert!(queue.dispatch(NOW, &mut disk, &mut out, 10).waits);
    assert_eq!(queue.next_early(), None);
    assert_eq!(queue.next_to_get(NOW, &mut out), Some(Offset::new(2)));
    assert_eq!(queue.next_early(), Some(Offset::new(1)), "it goes out before the other");
    assert_eq!(upcoming(&queue), [1, 2, 3], "and is asked for first");
    assert!(queue.dispatch(NOW, &mut disk, &mut out, 10).waits);
    disk.cold.clear();
    queue.dispatch(NOW, &mut disk, &mut out, 10);
    assert_eq!((disk.delivered, queue.next_early()), (vec![1], None));
    assert_eq!(upcoming(&queue), [2, 3]);
}

/// What came back is known to have been out, too, while it waits to be handed to a consumer that acks nothing.
#[test]
fn what_came_back_and_is_assigned_early_was_seen() {
    let mut queue = Queue::new(Options::default(), NOW);
    let mut out = Vec::new();
    for offset in 1..=3 {
        let message =
            Incoming { redelivered: offset == 1, ..Incoming::new(Offset::new(offset), 1) };
        queue.enqueue(message, NOW, &mut out).unwrap();
    }
    let spec = ConsumerSpec {
        key: 0,
        no_ack: true,
        exclusive: false,
        priority: 0,
        prefetch: 0,
        gate: Gate::open(),
    };
    queue.add_consumer(spec, NOW).unwrap();
    let mut seen = Vec::new();
    queue.seen(|offset, _| seen.push(offset.get()));
    assert_eq!(seen, [1]);
    // A look at what a get would take assigns what the consumer is to have.
    queue.next_to_get(NOW, &mut out);
    assert_eq!(queue.next_early(), Some(Offset::new(1)));
    let mut seen = Vec::new();
    queue.seen(|offset, _| seen.push(offset.get()));
    assert_eq!(seen, [1]);
}
