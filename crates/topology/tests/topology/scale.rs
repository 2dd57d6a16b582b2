//! What many queues and bindings cost: counted and measured in bytes, not in time.

use leveret_topology::{Binding, Exchange, Queue, Topology};

use crate::common::{OTHER, OWNER, World};

/// The idle queue's share of its budget of 2 KB in the whole broker: what is kept beside its name
/// (once, with 16 bytes before it) and its two table entries of 24 and 16 bytes.
#[test]
fn a_queue_is_small() {
    assert!(size_of::<Queue>() <= 160, "{}", size_of::<Queue>());
    assert!(size_of::<Binding>() <= 72, "{}", size_of::<Binding>());
    assert!(size_of::<Exchange>() <= 320, "{}", size_of::<Exchange>());
}

/// Read by all threads at once.
#[test]
fn it_is_shared() {
    fn shared<T: Send + Sync>() {}
    shared::<Topology>();
}

#[test]
fn many_queues() {
    let mut world = World::new();
    let ids: Vec<_> = (0..20_000).map(|number| world.queue(&format!("queue {number}"))).collect();
    // Consecutive, so that they spread over shards.
    assert!(ids.windows(2).all(|pair| pair[0].get() + 1 == pair[1].get()));
    world.topology.assert_invariants();
    assert_eq!(world.topology.queues(world.vhost).len(), 20_000);
    for number in (0..20_000).step_by(50) {
        world.bind("amq.fanout", &format!("queue {number}"), "");
        world.bind("amq.topic", &format!("queue {number}"), "#");
    }
    assert_eq!(world.reached("amq.topic", "a").split(' ').count(), 800);
    for id in ids {
        world.topology.remove_queue(id);
    }
    world.topology.assert_invariants();
    assert_eq!((world.topology.queue_count(), world.topology.binding_count()), (0, 0));
}

/// A connection's exclusive queues go with it, however many.
#[test]
fn many_exclusive_queues() {
    let mut world = World::new();
    for number in 0..20_000 {
        let name = format!("queue {number}");
        let spec = world.queue_spec(&name);
        let spec = leveret_topology::QueueSpec {
            exclusive_owner: Some([OTHER, OWNER][number % 2]),
            ..spec
        };
        world.topology.declare_queue(spec).unwrap();
    }
    for id in world.topology.queues_owned_by(OWNER) {
        world.topology.remove_queue(id);
    }
    world.topology.assert_invariants();
    assert_eq!(world.topology.queue_count(), 10_000);
}
