//! What comes back at a start.

use leveret_broker::Meta;
use leveret_broker::message::*;
use leveret_topology::stored::Kind;
use leveret_topology::{Homes, QueueId};

use crate::log::HandLog;
use crate::{SHARDS, World, admin, binding, declare_exchange, declare_queue, policy};

/// A first start finds nothing; a second one finds what the first one made, and is not a first one, also
/// when all of it was deleted.
#[test]
fn first_and_later_starts() {
    let log = HandLog::default();
    let disk = log.clone();
    let mut wait = || assert!(disk.hand().finish());
    let (mut meta, mut topology) =
        Meta::recover(Homes::among(SHARDS as u32), log.clone(), &mut wait).unwrap();
    assert!(meta.is_new());
    topology.add_vhost("/").unwrap();
    meta.save(&mut topology, &mut wait).unwrap();
    // A crash of the first start before it was done leaves a first start.
    assert!(
        Meta::recover(Homes::among(SHARDS as u32), HandLog::default().crash(), &mut || {})
            .unwrap()
            .0
            .is_new()
    );

    let log = log.crash();
    let disk = log.clone();
    let mut wait = || assert!(disk.hand().finish_any());
    let (mut meta, mut topology) =
        Meta::recover(Homes::among(SHARDS as u32), log.clone(), &mut wait).unwrap();
    assert!(!meta.is_new());
    topology.delete_vhost("/").unwrap();
    meta.save(&mut topology, &mut wait).unwrap();

    let log = log.crash();
    let disk = log.clone();
    let (meta, topology) =
        Meta::recover(Homes::among(SHARDS as u32), log, &mut || assert!(disk.hand().finish_any()))
            .unwrap();
    assert!(!meta.is_new() && topology.vhosts().count() == 0);
    assert_eq!(topology.next_ids().0, 1, "the vhost's id is used");
}

/// More records than are read ahead, all of them cold.
#[test]
fn everything_is_cold() {
    let mut world = World::new();
    let v = world.vhost;
    let declares = (0..1500).flat_map(|n| {
        let name = format!("q{n}");
        let bind = ToMeta::Bind(binding(v, 1, "amq.topic", &name));
        [declare_queue(v, 1, &name, true, false), bind]
    });
    world.turn(declares);
    // More than fits one turn.
    while !world.out.meta.is_empty() {
        let letters = std::mem::take(&mut world.out.meta);
        world.turn(letters);
    }
    while world.log.hand().finish() {
        world.turn([ToMeta::LogWoke]);
    }
    let log = world.log.crash();
    let disk = log.clone();
    let mut waits = 0;
    let mut wait = || {
        waits += 1;
        disk.hand().finish();
    };
    let (_, topology) = Meta::recover(Homes::among(SHARDS as u32), log, &mut wait).unwrap();
    assert_eq!(topology.describe_durable(), world.topology.describe_durable());
    assert_eq!(waits, 4, "a batch of reads at a time, and the promise of ids");
}

/// Later changes find the records that were there before: none stays behind.
#[test]
fn what_came_back_can_go() {
    let mut world = World::new();
    let v = world.vhost;
    let before = world.log.hand().held.len();
    world.turn([world.declare(1, "q"), declare_exchange(v, 1, "x", true), policy(1, "p", 1)]);
    world.turn([ToMeta::Bind(binding(v, 1, "x", "q"))]);
    world.disk_finishes();
    world.disk_finishes();
    let id = world.queue("q");
    let mut world = world.crash();
    assert_eq!(world.queue("q"), id);
    let clear = AdminCommand::ClearPolicy { vhost: "/".into(), name: "p".into() };
    world.turn([world.gone(1, "q"), crate::delete_exchange(v, 1, "x"), admin(1, clear)]);
    world.disk_finishes();
    assert_eq!(
        world.log.hand().held.len(),
        before + 1,
        "the mark before the last goes with the next batch"
    );
    let world = world.crash();
    assert_eq!(world.log.hand().held.len(), before + 1);
    let next = world.topology.next_ids().2;
    assert!(QueueId::new(next) > id.unwrap());
}

/// What is done to head and bytes of each record.
type Damage = fn(&mut Vec<u8>, &mut Vec<u8>);

#[test]
fn damaged_records_are_named() {
    let mut world = World::new();
    world.turn([world.declare(1, "q")]);
    world.disk_finishes();
    let rows: [(&str, Damage); 4] = [
        ("of the topology's log, of the kind queue: truncated", |_, bytes| {
            if bytes[1] == Kind::Queue as u8 {
                bytes.pop();
            }
        }),
        ("of the topology's log, of the kind queue: unknown queue type 'klassic'", |_, bytes| {
            if let Some(at) = bytes.windows(7).position(|part| part == b"classic") {
                bytes[at] = b'k';
            }
        }),
        ("layout 2 is not known: it was written by a later version", |head, _| head[0] = 2),
        ("kind 77 is not known", |head, _| head[1] = 77),
    ];
    for (want, change) in rows {
        let log = world.log.crash();
        log.hand().damage(change);
        let log = log.crash();
        let disk = log.clone();
        let error = Meta::recover(Homes::among(SHARDS as u32), log, &mut || {
            assert!(disk.hand().finish_any())
        })
        .unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("record ") && text.contains(want), "{text}");
    }
}

/// What lost its place is left out and released; what the broker predeclares is made again.
#[test]
fn lost_records() {
    let mut world = World::new();
    let v = world.vhost;
    world.turn([world.declare(1, "q"), ToMeta::Bind(binding(v, 1, "amq.direct", "q"))]);
    world.disk_finishes();
    let held = world.log.hand().held.len();
    let log = world.log.crash();
    log.hand()
        .lose(|record| record[1] == Kind::Queue as u8 || record.ends_with(b"fanout\0\0\0\0\0"));
    world.log = log;
    let world = world.crash();
    assert!(world.queue("q").is_none() && world.topology.binding_count() == 0);
    assert!(world.topology.exchange(v, "amq.fanout").is_some());
    // Without queue and binding; the fanout exchange is there again, and so is a mark.
    assert_eq!(world.log.hand().held.len(), held - 2);
    assert_eq!(world.crash().topology.describe_durable(), world.topology.describe_durable());
}

/// Message records name queues by id, and may be of a queue that never got to the disk: no queue of a later
/// process has its id, and nobody waits for that.
#[test]
fn ids_are_above_those_of_earlier_processes() {
    let mut world = World::new();
    let mut highest = None;
    for _ in 0..20 {
        let v = world.vhost;
        let batches = world.log.hand().batches;
        world.turn((0..30).map(|n| declare_queue(v, 1, &format!("t{n}"), false, false)));
        assert_eq!(world.answers(), ["1 created"; 30]);
        assert_eq!(world.log.hand().batches, batches);
        world.turn([world.declare(1, "never stored")]);
        assert!(world.queue("t0") > highest);
        highest = world.queue("never stored");
        world = world.crash();
        assert_eq!(world.topology.queue_count(), 0);
    }
}

/// A disk without room does not keep a broker from starting.
#[test]
fn a_full_disk_is_no_end() {
    let mut world = World::new();
    world.turn([world.declare(1, "q")]);
    world.disk_finishes();
    let log = world.log.crash();
    log.hand().is_full = true;
    let disk = log.clone();
    let (_, topology) =
        Meta::recover(Homes::among(SHARDS as u32), log, &mut || assert!(disk.hand().finish_any()))
            .unwrap();
    assert_eq!(topology.describe_durable(), world.topology.describe_durable());
}
