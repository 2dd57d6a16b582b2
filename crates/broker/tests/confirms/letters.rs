//! Dead letters of a queue that is deleted: what had left it goes where it was to go.

use leveret_broker::message::*;
use leveret_broker::shard::Users;
use leveret_broker::transaction::Decided;
use leveret_broker::work::Limits;
use leveret_log::{Log as _, Offset};
use leveret_topology::{ApplyTo, PolicySpec};

use crate::lines::logged;
use crate::node::{Node, PUBLISHER};

const MANY: u64 = 300;

/// What a queue has that is ready.
fn ready(node: &Node, name: char) -> u64 {
    let queue = node.queue(name);
    let found = node.shard.queues().find(|(id, _)| *id == queue);
    found.map_or(0, |(_, queue)| queue.counts().ready)
}

/// The messages of queue a are on the disk alone, and their time is over: they have left it and are to be read.
fn parked(queues: &str, strategy: &str) -> Node {
    let mut node = Node::new(queues);
    let definition =
        format!(r#"{{"dead-letter-strategy": "{strategy}", "overflow": "reject-publish"}}"#);
    node.policy(&definition);
    let messages = (0..MANY).map(|_| node.message(0, "a", true, None)).collect();
    node.turn(ToShard::Publish { from: PUBLISHER, messages });
    ["+5", "disk", "+200", "disk"].iter().for_each(|word| node.word(word));
    node.log().cold = (0..MANY).collect();
    node.later(2_000);
    while ready(&node, 'a') > 0 {
        node.later(1);
    }
    assert_eq!(node.shard.parked(), MANY);
    node
}

/// The disk does all it is asked for.
fn work_off(node: &mut Node) {
    for _ in 0..2 * MANY {
        ["disk", "+20"].iter().for_each(|word| node.word(word));
    }
}

/// Who rejected a message, or let its time pass, and then deletes its queue has its dead letter all the same, however long
/// the disk takes to give the body back. The name can be used again at once, and keeps nothing of the queue that had it.
#[test]
fn dead_letters_outlive_their_queue() {
    for queues in ["z a:dlx,ttl1000", "z a:dlx,ttl1000,transient", "z a:dlx,ttl1000,limit9"] {
        for strategy in ["at-most-once", "at-least-once"] {
            for is_declared_again in [false, true] {
                let what = format!("{queues}, {strategy}, {is_declared_again}");
                let mut node = parked(queues, strategy);
                node.word("disk");
                assert!(ready(&node, 'z') < MANY, "{what}: some wait for the disk");
                node.word("del:a");
                assert_eq!(node.said, ["Deleted"], "{what}: at once");
                let gone = node.queue('a');
                if is_declared_again {
                    node.declare("a");
                    assert_ne!(node.queue('a'), gone);
                    node.word("p1:a");
                }
                work_off(&mut node);
                assert_eq!(ready(&node, 'z'), MANY, "{what}");
                assert_eq!(ready(&node, 'a'), u64::from(is_declared_again), "{what}");
                assert_eq!((node.shard.under_way(), node.shard.departing()), (0, 0), "{what}");
                let holders = node.log().holders();
                let all = MANY + u64::from(is_declared_again);
                assert_eq!(holders.len() as u64, all, "{what}: nothing is kept");
                assert!(holders.values().flatten().all(|&it| it != gone.get()), "{what}");
                assert_eq!(node.shard.counters().dead_lettered, MANY, "{what}");
            }
        }
    }
}

/// There is no room for them where they are to go: they are kept, without their queue, until there is.
#[test]
fn dead_letters_without_a_queue_wait_for_room() {
    for target_goes in [false, true] {
        let mut node = parked("z a:dlx,ttl1000", "at-most-once");
        node.word("del:a");
        node.log().is_full = true;
        work_off(&mut node);
        assert_eq!(ready(&node, 'z'), 0);
        assert_eq!(node.log().holders().len() as u64, MANY, "nothing is let go of");
        assert_eq!(node.shard.departing(), MANY);
        node.log().is_full = false;
        if target_goes {
            node.word("del:z");
        }
        for _ in 0..MANY {
            ["disk", "+1000", "disk", "+20"].iter().for_each(|word| node.word(word));
        }
        assert_eq!(ready(&node, 'z'), if target_goes { 0 } else { MANY });
        assert_eq!(node.shard.departing(), 0);
        assert_eq!(node.log().holders().len() as u64, ready(&node, 'z'), "nothing is kept");
    }
}

/// What was on its way when its queue went is let go of only when its target has it: the disk of the target may be full.
#[test]
fn what_is_on_its_way_is_kept_until_it_is_there() {
    let mut node = parked("z a:dlx,ttl1000,limit9", "at-least-once");
    // Some are read, and were stored where they go, but not on the disk yet.
    node.log().fetching.clear();
    node.log().cold.clear();
    node.later(1);
    let sent = node.shard.under_way() - node.shard.parked();
    assert!(sent > 0);
    node.word("del:a");
    let gone = node.queue('a').get();
    let kept = node.log().holders().values().filter(|holders| holders.contains(&gone)).count();
    assert_eq!(kept as u64, MANY, "none is on the disk of its target");
    let reply = ReplyTo { connection: PUBLISHER, channel: 1 };
    node.turn(ToShard::Sample { reply, begins: true });
    assert_eq!(node.confirmed_letters, 0, "none counts before it is there");
    work_off(&mut node);
    node.turn(ToShard::Sample { reply, begins: true });
    assert_eq!(node.confirmed_letters, MANY);
    assert_eq!(ready(&node, 'z'), MANY);
    assert_eq!(node.log().holders().len() as u64, MANY);
}

/// A policy lets each queue `a` have one message: what the shard is told of it.
fn set_max_length(node: &mut Node) -> Vec<ToShard> {
    let spec = PolicySpec {
        name: "p",
        pattern: "a",
        apply_to: ApplyTo::All,
        priority: 0,
        definition: serde_json::from_str(r#"{"max-length": 1}"#).expect("JSON"),
    };
    let changed = node.topology.set_policy("/", spec).expect("a policy");
    changed.into_iter().map(|queue| ToShard::OptionsChanged { queue }).collect()
}

/// Of a queue with very many dead letters not all go before those of others.
#[test]
fn dead_letters_of_queues_go_in_turns() {
    let mut node = Node::new("z a:dlx,ttl1000 b:dlx,ttl1000");
    node.shard.set_limits(Limits { turn: 64, share: 16 });
    for (name, count) in [("a", 1_000), ("b", 20)] {
        let messages = (0..count).map(|_| node.message(0, name, false, None)).collect();
        node.turn(ToShard::Publish { from: PUBLISHER, messages });
    }
    node.later(2_000);
    let z = node.queue('z').get();
    let holders = node.log().holders();
    let letters: Vec<u64> =
        holders.into_iter().filter(|(_, by)| by.contains(&z)).map(|(at, _)| at).collect();
    assert_eq!(letters.len(), 1_020);
    let is_of_b = |at: &u64| {
        let record = node.shard.log().read(Offset::new(*at)).expect("there").bytes;
        record.windows(12).any(|it| it == b"queueS\0\0\0\x01b\x04")
    };
    let last = letters.iter().rposition(is_of_b).expect("there");
    assert!(last < 100, "{last} go before the last one of the other queue");
}

/// Transient dead letters bring no answers, and the disk was behind with other things: its last batch lets them go on, though
/// nothing else happens.
#[test]
fn dead_letters_that_wait_for_the_disk_go_on_when_it_has_written() {
    const LONG: u64 = 1_000;
    let mut node = Node::new("z a:dlx");
    node.shard.set_limits(Limits { turn: 64, share: 16 });
    let messages = (0..LONG).map(|_| node.message(0, "a", false, None)).collect();
    node.turn(ToShard::Publish { from: PUBLISHER, messages });
    node.log().more_unwritten = 1 << 30;
    let mut letters = set_max_length(&mut node);
    let mut out = Outbox::default();
    let mut run = |node: &mut Node, letters: &mut Vec<ToShard>| {
        while node.shard.turn(letters, &node.topology, node.now, &mut out) || !out.shards.is_empty()
        {
            letters.extend(out.shards.drain(..).map(|(_, letter)| letter));
        }
    };
    run(&mut node, &mut letters);
    assert!(ready(&node, 'z') < LONG / 2, "most of them wait for the disk");
    node.log().has_written_more = true;
    letters.push(ToShard::LogWoke);
    run(&mut node, &mut letters);
    assert_eq!((ready(&node, 'a'), ready(&node, 'z')), (1, LONG - 1));
}

/// A limit is set for a long queue: its messages stay there until those before them have gone, or are read if they are on the disk
/// alone. So they take no more memory than before. None of them is given out, and they arrive in their order.
#[test]
fn a_long_queue_is_cut_as_its_dead_letters_go() {
    const LONG: u64 = 1_500;
    for (is_cold, is_behind) in [(false, false), (true, false), (false, true), (true, true)] {
        let what = format!("cold: {is_cold}, behind: {is_behind}");
        let mut node = Node::new("z a:dlx");
        node.shard.set_limits(Limits { turn: 64, share: 16 });
        let messages = (0..LONG).map(|_| node.message(0, "a", true, None)).collect();
        node.turn(ToShard::Publish { from: PUBLISHER, messages });
        ["+5", "disk", "+200", "disk"].iter().for_each(|word| node.word(word));
        if is_cold {
            node.log().cold = (0..LONG).collect();
        }
        if is_behind {
            node.log().more_unwritten = 1 << 30;
        }
        let mut letters = set_max_length(&mut node);
        let (mut most, mut idle, mut out) = (0, 0, Outbox::default());
        for turn in 0.. {
            let more = node.shard.turn(&mut letters, &node.topology, node.now, &mut out);
            most = most.max(node.shard.parked());
            letters.extend(out.shards.drain(..).map(|(_, letter)| letter));
            idle =
                if more || !letters.is_empty() || node.log().finish_any() { 0 } else { idle + 1 };
            if idle == 10 {
                if !is_behind || node.log().more_unwritten == 0 {
                    break;
                }
                let left = LONG - ready(&node, 'z');
                assert!(left > LONG * 9 / 10, "{what}: {left} wait for the disk");
                node.log().more_unwritten = 0;
            }
            node.now = node.now.after_ms(1);
            letters.push(ToShard::LogWoke);
            assert!(turn < 2_000, "{what}: {} are left", node.shard.parked());
        }
        // A queue lets 256 go at once.
        let limit = 2 * (256 + node.shard.limits().turn);
        assert!(most <= limit, "{what}: {most} wait in one place or another");
        assert_eq!((ready(&node, 'a'), ready(&node, 'z')), (1, LONG - 1), "{what}");
        assert_eq!(node.shard.under_way(), 0, "{what}");
    }
}

/// Letters that a full target refuses are given up where nobody holds them for it any more: they do not count as confirmed.
#[test]
fn what_is_given_up_is_not_confirmed() {
    for is_deleted in [true, false] {
        let mut node = parked("z:reject1 a:dlx,ttl1000,limit9", "at-least-once");
        if is_deleted {
            node.word("del:a");
        }
        work_off(&mut node);
        if !is_deleted {
            assert_eq!(node.log().holders().len() as u64, MANY, "a holds them");
            node.policy(
                r#"{"dead-letter-strategy": "at-most-once", "overflow": "reject-publish"}"#,
            );
            (0..20).for_each(|_| node.later(1_000));
            node.word("del:a");
            work_off(&mut node);
        }
        assert_eq!((ready(&node, 'z'), node.log().holders().len()), (1, 1));
        let reply = ReplyTo { connection: PUBLISHER, channel: 1 };
        node.turn(ToShard::Sample { reply, begins: true });
        assert_eq!(node.confirmed_letters, 1, "{is_deleted}: z has one");
    }
}

/// Of what a queue holds, what is on its way goes on without it, and what rests until the next try goes with it: at once, since the
/// disk may be full.
#[test]
fn what_rests_goes_with_its_queue() {
    let mut node = Node::new("z:reject1 a:dlx,ttl1000,limit9");
    node.policy(r#"{"dead-letter-strategy": "at-least-once", "overflow": "reject-publish"}"#);
    node.word("p1:z");
    let publish = |node: &mut Node, range: std::ops::Range<u64>| {
        let messages = range.map(|_| node.message(0, "a", true, None)).collect();
        node.turn(ToShard::Publish { from: PUBLISHER, messages });
        ["+5", "disk", "+200", "disk"].iter().for_each(|word| node.word(word));
    };
    publish(&mut node, 0..MANY);
    (0..10).for_each(|_| node.later(1_000));
    assert_eq!((ready(&node, 'a'), node.shard.under_way()), (0, 0), "z is full");
    publish(&mut node, 0..7);
    let offsets: Vec<u64> = node.log().holders().into_keys().collect();
    // One of those that rest is to be tried, and is on the disk alone. It is not on its way.
    node.log().cold = offsets.iter().copied().skip(1 + MANY as usize).chain([offsets[1]]).collect();
    while ready(&node, 'a') > 0 {
        node.later(200);
    }
    assert_eq!(node.shard.parked(), 7);
    let dropped = node.shard.counters().dropped;
    node.word("del:a");
    let holders = node.log().holders().len();
    assert_eq!((holders as u64, node.shard.departing()), (1 + 7, 0), "the others are let go of");
    work_off(&mut node);
    assert_eq!(node.shard.counters().dead_lettered, MANY + 7);
    assert_eq!(node.shard.counters().dropped, dropped + 7, "by z; what rested is counted already");
    assert_eq!((node.shard.under_way(), node.shard.departing()), (0, 0));
    assert_eq!(node.log().holders().len(), 1);
}

/// One of them cannot be read any more: it is counted and told, and nothing is kept of it.
#[test]
fn a_damaged_one_is_counted() {
    for strategy in ["at-most-once", "at-least-once"] {
        let mut node = parked("z a:dlx,ttl1000,limit9", strategy);
        node.word("del:a");
        node.log().damaged = [MANY - 7].into();
        let said = logged(|| work_off(&mut node));
        let why = "dead letters are lost: their queue is deleted, and their records cannot be read";
        let [line] = &said[..] else { panic!("{said:#?}") };
        let fields = r#" queue="queue 'a' in vhost '/'" shard=0 messages=1 first="#;
        assert!(line.starts_with(&format!("ERROR {why}{fields}")), "{line}");
        assert_eq!(ready(&node, 'z'), MANY - 1);
        assert_eq!(node.shard.counters().unreadable, 1);
        assert_eq!((node.shard.under_way(), node.shard.departing()), (0, 0));
        assert_eq!(node.log().holders().len() as u64, MANY - 1);
    }
}

/// One that cannot be read is lost in that queue alone: its publisher is told when the other queue has answered, too, and once.
#[test]
fn a_damaged_one_is_lost_in_its_queue_alone() {
    for first in [true, false] {
        let mut node = Node::new("z a:ack,dlx,ttl1000 b:ack");
        ["c:b", "p1:ab", "+5", "disk", "+200", "disk"].iter().for_each(|word| node.word(word));
        node.log().cold = [0].into();
        node.later(2_000);
        assert_eq!(node.shard.parked(), 1);
        node.word("del:a");
        node.log().damaged = [0].into();
        if first {
            node.word("ack:b");
        }
        ["disk", "+20", "disk"].iter().for_each(|word| node.word(word));
        assert_eq!(node.shard.counters().unreadable, 1);
        assert_eq!(node.take_told(), if first { "-1" } else { "" });
        if !first {
            node.word("ack:b");
            assert_eq!(node.take_told(), "-1");
        }
        assert_eq!((node.shard.under_way(), node.shard.departing()), (0, 0));
        assert_eq!(node.log().holders().len(), 0);
    }
}

/// What is lost is told, if it is not nothing: a line for the queue, with its letters.
#[track_caller]
fn told_as_lost(said: &[String], letters: u64) {
    let why = "their queue is deleted, and they had not arrived where they were to go";
    let fields = format!("queue=\"queue 'a' in vhost '/'\" shard=0 messages={letters}");
    let wanted = format!("WARN dead letters are lost: {why} {fields}");
    assert_eq!(said, if letters > 0 { vec![wanted] } else { vec![] });
}

/// The process stops before they arrive. Those that arrive while it does are not lost, nor are those of a queue that is there:
/// they come back to it.
#[test]
fn a_stop_tells_of_dead_letters_that_are_lost() {
    for (is_deleted, arrives) in [(true, false), (true, true), (false, false)] {
        let mut node = parked("z a:dlx,ttl1000", "at-most-once");
        // Some are stored where they go, and not on the disk yet; the others are not read.
        node.disk();
        let sent = node.shard.under_way() - node.shard.parked();
        assert!(sent > 0 && node.shard.parked() > 0);
        if is_deleted {
            node.word("del:a");
        }
        let said = logged(|| {
            node.shard.close();
            while arrives && node.shard.under_way() > node.shard.parked() {
                node.disk();
            }
            node.shard.tell_given_up();
        });
        let arrived = if arrives { sent } else { 0 };
        told_as_lost(&said, if is_deleted { MANY - arrived } else { 0 });
    }
}

/// The log loses its end, and the shard what it had in memory: who deleted the queue is not there to ask.
#[test]
fn dead_letters_that_are_lost_with_the_logs_end_are_told() {
    for is_deleted in [true, false] {
        let mut node = parked("z a:dlx,ttl1000", "at-most-once");
        node.disk();
        if is_deleted {
            node.word("del:a");
        }
        let log = node.shard.log().crash();
        let said = logged(|| {
            let (decided, mut out) = (Decided::default(), Outbox::default());
            node.shard.lose(
                log,
                Users::AreCutOff(&[PUBLISHER]),
                &node.topology,
                &decided,
                node.now,
                &mut out,
            );
        });
        told_as_lost(&said, if is_deleted { MANY } else { 0 });
    }
}
