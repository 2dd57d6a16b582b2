//! Random publishers, consumers and disks against the promise, said plainly: each message is answered
//! once, with what its queues' rules say; what is confirmed outlives a crash or was acked.

use std::collections::{BTreeMap, BTreeSet};

use leveret_broker::message::*;

use crate::node::{Node, PUBLISHER};

/// A plain random source: the state is the seed.
fn next(state: &mut u64, below: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize % below
}

const QUEUES: &str =
    "a b c:enqueue d:ack e:ack,transient f:ack,defer20 g:transient h:ack,dlx,ttl30 i:ack-lean z";

/// A published message, as its publisher and its consumers know it.
struct Message {
    at: u64,
    persistent: bool,
    /// Queues that have not let it go.
    held: BTreeSet<char>,
    /// Queues whose consumer acked it.
    acked: BTreeSet<char>,
    all: String,
}

/// Checks a confirm the moment it is told.
fn check_told(node: &mut Node, messages: &BTreeMap<u64, Message>, answered: &mut BTreeSet<u64>) {
    let disk: BTreeMap<u64, Vec<u64>> = node.log().on_disk().into_iter().collect();
    for told in std::mem::take(&mut node.told) {
        let (ok, seq) = match told.strip_prefix('-') {
            Some(seq) => (false, seq),
            None => (true, &*told),
        };
        let seq: u64 = seq.parse().expect("a number");
        assert!(answered.insert(seq), "{seq} is told twice");
        let message = &messages[&seq];
        for name in message.all.chars() {
            let waits_for_ack = "defhi".contains(name);
            let is_acked = message.acked.contains(&name);
            let has_left = !message.held.contains(&name);
            if waits_for_ack {
                assert!(has_left, "{seq} is told while {name} has it");
                assert!(is_acked || !ok, "{seq} is confirmed, though {name} did not see it acked");
                continue;
            }
            let keeps = message.persistent && name != 'g';
            let on_disk =
                || disk.get(&message.at).is_some_and(|it| it.contains(&node.queue(name).get()));
            assert!(!keeps || has_left || on_disk(), "{seq} would be lost from {name} in a crash");
        }
        let failed = "defhi"
            .chars()
            .any(|name| message.all.contains(name) && !message.acked.contains(&name));
        assert_eq!(ok, !failed, "{seq}");
    }
}

#[test]
fn promises_are_kept_whatever_comes() {
    for seed in 0..100_u64 {
        run(seed);
    }
}

fn run(seed: u64) {
    let mut random = seed;
    let mut node = Node::new(QUEUES);
    let names: Vec<char> = "abcdefghi".chars().collect();
    let mut messages: BTreeMap<u64, Message> = BTreeMap::new();
    let mut answered = BTreeSet::new();
    let mut consuming = BTreeSet::new();
    let mut published = 0_u64;
    for _ in 0..400 {
        let name = names[next(&mut random, names.len())];
        match next(&mut random, 12) {
            0..4 => {
                let mut all: String = name.into();
                for &other in &names {
                    if other != name && next(&mut random, 6) == 0 {
                        all.push(other);
                    }
                }
                published += 1;
                let persistent = next(&mut random, 4) > 0;
                let at = leveret_log::Log::end(node.shard.log()).get();
                let message = Message {
                    at,
                    persistent,
                    held: all.chars().collect(),
                    acked: BTreeSet::new(),
                    all,
                };
                let publish = node.message(published, &message.all, persistent, None);
                messages.insert(published, message);
                node.turn(ToShard::Publish { from: PUBLISHER, messages: vec![publish] });
            }
            4 if consuming.insert(name) => {
                let prefetch = next(&mut random, 3) as u16;
                node.consume(node.queue(name), false, prefetch);
            }
            5 | 6 => node.disk(),
            7 => node.later(next(&mut random, 12) as u64),
            8 if next(&mut random, 8) == 0 => {
                node.word(&format!("purge:{name}"));
            }
            _ => {
                let how = match next(&mut random, 8) {
                    0 => Settle::Reject,
                    1 => Settle::Requeue { counts: true },
                    _ => Settle::Ack,
                };
                let last = next(&mut random, 3) == 0;
                if let Some(settlement) = node.settlement(node.queue(name), how, last) {
                    let at = settlement.offset.get();
                    if how == Settle::Ack
                        && let Some(message) = messages.values_mut().find(|it| it.at == at)
                    {
                        message.acked.insert(name);
                    }
                    node.turn(ToShard::Settle {
                        from: NodeId::ALONE.connection(1),
                        settlements: vec![settlement],
                    });
                }
            }
        }
        if !node.told.is_empty() {
            see_who_has_what(&mut node, &mut messages);
            check_told(&mut node, &messages, &mut answered);
        }
    }
    // All that is left is let go: everybody is answered.
    for name in names.iter().chain(&['z']) {
        node.word(&format!("del:{name}"));
    }
    // What was lent is known to its channels alone.
    while let Some(lent) = node.settlement(node.queue('i'), Settle::Reject, false) {
        node.turn(ToShard::Settle { from: NodeId::ALONE.connection(1), settlements: vec![lent] });
    }
    (0..3).for_each(|_| node.disk());
    see_who_has_what(&mut node, &mut messages);
    check_told(&mut node, &messages, &mut answered);
    assert_eq!(answered.len() as u64, published, "seed {seed}");
    for _ in 0..10 {
        let Some(at) = node.shard.next_timeout() else { break };
        node.later(at.ms() - node.now.ms());
        node.disk();
    }
    assert_eq!(node.shard.next_timeout(), None, "seed {seed}: nobody waits for anything");
    assert_eq!(node.log().on_disk(), [], "seed {seed}");
}

/// Asks the queues' log which of them still hold which message.
fn see_who_has_what(node: &mut Node, messages: &mut BTreeMap<u64, Message>) {
    let held = node.log().holders();
    for message in messages.values_mut() {
        let holders = held.get(&message.at);
        message.held.retain(|&name| holders.is_some_and(|it| it.contains(&node.queue(name).get())));
    }
}
