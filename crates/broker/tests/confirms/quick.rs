//! `first` beside `enqueue`, in virtual time: publishers with windows, consumers that take their time, a disk whose sync
//! takes its own. Whatever they are, `first` is not slower; and where consumers are quick, next to nothing is written.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use leveret_broker::message::*;
use leveret_queue::Time;

use crate::node::{Node, PUBLISHER};

/// From a client to the broker, or back.
const WAY_US: u64 = 50;
/// What a message costs a client.
const MESSAGE_US: u64 = 3;
/// A client sends so many at once.
const SENT_AT_ONCE: u64 = 100;
/// What bytes cost the disk: 250 MB/s.
const BYTES_PER_US: u64 = 250;
/// So many messages of each line, and windows of it, are a run, or what comes in so long. Its first half does not count.
const MESSAGES: u64 = 1_200;
const WINDOWS: u64 = 3;
const RUN_US: u64 = 1_000_000;
/// The same where a quick line does 50,000 messages while a slow one does one in 20 ms.
const MIXED_RUN_US: u64 = 400_000;

/// A publisher, its queue, and that one's consumer.
#[derive(Clone, Copy, Debug)]
struct Line {
    window: u64,
    /// What a message takes the consumer; none if there is none.
    consumer_us: Option<u64>,
    /// It acks so many at once.
    acks: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Publish { line: usize, count: u64 },
    Ack { line: usize, count: u64 },
    Disk,
    Timer,
}

/// What is known of a line while it runs.
#[derive(Debug, Default)]
struct State {
    published: u64,
    confirmed: u64,
    /// Given to the consumer, and when that is done with them.
    given: u64,
    acked: u64,
    busy_until_us: u64,
    /// Done with and not acked.
    undone: u64,
}

/// Of the second half of a run.
#[derive(Clone, Copy, Debug)]
struct Found {
    /// Confirms per second.
    rate: f64,
    /// Bytes written, in percent of those published by all.
    written: f64,
}

struct World {
    node: Node,
    names: Vec<char>,
    lines: Vec<Line>,
    states: Vec<State>,
    sync_us: u64,
    now_us: u64,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    syncs: u64,
    seen_bytes: u64,
}

impl World {
    fn new(rule: &str, sync_us: u64, lines: &[Line]) -> Self {
        let names: Vec<char> = ('a'..='z').take(lines.len()).collect();
        let queues: Vec<String> = names.iter().map(|name| format!("{name}:{rule}")).collect();
        let mut world = Self {
            node: Node::new(&queues.join(" ")),
            names,
            lines: lines.to_vec(),
            states: lines.iter().map(|_| State::default()).collect(),
            sync_us,
            now_us: 1_000_000_000,
            events: BinaryHeap::new(),
            syncs: 0,
            seen_bytes: 0,
        };
        for (index, line) in lines.iter().enumerate() {
            if line.consumer_us.is_some() {
                world.node.consume(world.node.queue(world.names[index]), false, 100);
            }
            world.at(WAY_US, Event::Publish { line: index, count: line.window });
        }
        world
    }

    fn at(&mut self, after_us: u64, event: Event) {
        self.events.push(Reverse((self.now_us + after_us, event)));
    }

    fn is_run(&self, part: u64) -> bool {
        let mut lines = self.lines.iter().zip(&self.states);
        lines.all(|(it, state)| state.confirmed * part >= MESSAGES.max(WINDOWS * it.window))
    }

    /// Runs until such a part of each line's messages is confirmed, or so much time has passed.
    fn run(&mut self, part: u64, until_us: u64) {
        while !self.is_run(part) && self.now_us < until_us {
            let timer = self.node.shard.next_timeout().map(|at| at.ms() * 1000);
            let next = self.events.peek().map(|Reverse((at, _))| *at);
            let event = match (next, timer) {
                (Some(at), timer) if timer.is_none_or(|timer| at <= timer) => {
                    self.now_us = self.now_us.max(at);
                    self.events.pop().map_or(Event::Timer, |Reverse((_, event))| event)
                }
                (_, Some(timer)) => {
                    self.now_us = self.now_us.max(timer);
                    Event::Timer
                }
                _ => return,
            };
            self.step(event);
        }
    }

    fn step(&mut self, event: Event) {
        self.node.now = Time::from_ms(self.now_us / 1000);
        self.node.shard.set_micros(self.now_us);
        match event {
            Event::Timer => self.node.turn(ToShard::Continue),
            Event::Disk => self.node.disk(),
            Event::Publish { line, count } => {
                let first = self.states[line].published;
                self.states[line].published += count;
                let name = self.names[line].to_string();
                let lines = self.lines.len() as u64;
                let seq = |number: u64| 1 + number * lines + line as u64;
                let messages = (first..first + count)
                    .map(|number| self.node.message(seq(number), &name, true, None))
                    .collect();
                self.node.turn(ToShard::Publish { from: PUBLISHER, messages });
            }
            Event::Ack { line, count } => {
                let queue = self.node.queue(self.names[line]);
                self.states[line].acked += count;
                let settlements =
                    (0..count).filter_map(|_| self.node.settlement(queue, Settle::Ack, false));
                let settlements = settlements.collect();
                self.node.turn(ToShard::Settle { from: PUBLISHER, settlements });
            }
        }
        self.follow();
    }

    /// What clients and the disk make of what a turn did.
    fn follow(&mut self) {
        let mut freed = vec![0; self.lines.len()];
        for told in std::mem::take(&mut self.node.told) {
            let seq: u64 = told.parse().expect("a confirm");
            freed[((seq - 1) % self.lines.len() as u64) as usize] += 1;
        }
        for (line, count) in freed.into_iter().enumerate().filter(|(_, count)| *count > 0) {
            self.states[line].confirmed += count;
            let mut sent = 0;
            while sent < count {
                let some = SENT_AT_ONCE.min(count - sent);
                sent += some;
                self.at(2 * WAY_US + MESSAGE_US * sent, Event::Publish { line, count: some });
            }
        }
        for index in 0..self.lines.len() {
            let Line { consumer_us: Some(consumer_us), acks, .. } = self.lines[index] else {
                continue;
            };
            let state = &mut self.states[index];
            let given = state.acked + self.node.unacked(self.node.queue(self.names[index])) as u64;
            let mut done = Vec::new();
            for _ in state.given..given {
                let begins_us = state.busy_until_us.max(self.now_us + WAY_US);
                state.busy_until_us = begins_us + consumer_us + MESSAGE_US;
                state.undone += 1;
                if state.undone == acks {
                    state.undone = 0;
                    done.push(state.busy_until_us + WAY_US - self.now_us);
                }
            }
            state.given = given;
            for after_us in done {
                self.at(after_us, Event::Ack { line: index, count: acks });
            }
        }
        let (syncs, written) = {
            let log = self.node.log();
            (log.syncs, log.written_bytes)
        };
        if syncs > self.syncs {
            let bytes = written - self.seen_bytes;
            (self.syncs, self.seen_bytes) = (syncs, written);
            self.at(self.sync_us + bytes / BYTES_PER_US, Event::Disk);
        }
    }
}

/// What each line found under a rule.
fn found(rule: &str, sync_us: u64, lines: &[Line], run_us: u64) -> Vec<Found> {
    let mut world = World::new(rule, sync_us, lines);
    let began_us = world.now_us;
    world.run(2, began_us + run_us / 2);
    let before: Vec<(u64, u64)> =
        world.states.iter().map(|it| (it.confirmed, it.published)).collect();
    let (bytes, since_us) = (world.node.log().written_bytes, world.now_us);
    world.run(1, since_us + run_us / 2);
    let seconds = (world.now_us - since_us) as f64 / 1e6;
    let published: u64 =
        world.states.iter().zip(&before).map(|(it, (_, before))| it.published - before).sum();
    // A body of 100 bytes, and what is stored with it.
    let each = (world.node.message(1, "a", true, None).message.body_len() + 40) as f64;
    let written = (world.node.log().written_bytes - bytes) as f64 / each;
    let written = written * 100.0 / published.max(1) as f64;
    let rate = |(it, (confirmed, _)): (&State, &(u64, u64))| Found {
        rate: (it.confirmed - confirmed) as f64 / seconds,
        written,
    };
    world.states.iter().zip(&before).map(rate).collect()
}

/// Every window, every consumer, acks one by one and by tens, on a disk with such a sync.
fn curve(sync_us: u64) {
    let mut slower = Vec::new();
    for window in [1, 10, 100, 1_000] {
        for consumer_ms in [None, Some(0), Some(1), Some(5), Some(20), Some(100)] {
            for acks in [1, 10] {
                let line = Line { window, consumer_us: consumer_ms.map(|ms| ms * 1000), acks };
                let [enqueue, first] =
                    ["enqueue", "first"].map(|rule| found(rule, sync_us, &[line], RUN_US)[0]);
                let ratio = first.rate / enqueue.rate;
                let told = format!("{line:?}: {ratio:.2} {enqueue:?} {first:?}");
                // A large window, of which the disk has the first part before the rest is sent, may stay in two parts under either
                // rule, by chance.
                let least = if window < 1_000 { 0.8 } else { 0.5 };
                if ratio < least {
                    slower.push(told.clone());
                }
                // All of a window is acked before a sync, by whoever acks.
                let ack_us = consumer_ms.map(|ms| window * (ms * 1000 + MESSAGE_US) + 3 * WAY_US);
                let is_quick = ack_us.is_some_and(|us| us < sync_us) && window >= acks;
                assert!(!is_quick || first.written < 3.0, "{told}");
            }
        }
    }
    assert!(slower.is_empty(), "a sync takes {sync_us} us:\n{}", slower.join("\n"));
}

#[test]
fn first_is_not_slower_where_a_sync_takes_1_ms() {
    curve(1_000);
}

#[test]
fn first_is_not_slower_where_a_sync_takes_5_ms() {
    curve(5_000);
}

#[test]
fn first_is_not_slower_where_a_sync_takes_20_ms() {
    curve(20_000);
}

/// Queues of one shard share its disk. A slow one does not wait for a quick one, and does not have it written either.
#[test]
fn slow_and_quick_queues_do_not_pay_for_each_other() {
    for sync_us in [1_000, 5_000] {
        let quick = Line { window: 10, consumer_us: Some(0), acks: 1 };
        for consumer_us in [None, Some(20_000)] {
            let slow = Line { window: 1, consumer_us, acks: 1 };
            for lines in [[quick, slow], [slow, quick]] {
                let [enqueue, first] =
                    ["enqueue", "first"].map(|rule| found(rule, sync_us, &lines, MIXED_RUN_US));
                for (enqueue, first) in enqueue.iter().zip(&first) {
                    assert!(first.rate >= 0.8 * enqueue.rate, "{lines:?} {enqueue:?} {first:?}");
                }
                assert!(first[0].written < 30.0, "{sync_us} {lines:?} {first:?}");
            }
        }
    }
}

/// A publisher with a window of one goes over so many queues twice, of which nothing is known. How long that takes.
fn over_new_queues(rule: &str, sync_us: u64, consumer_us: u64, queues: usize) -> u64 {
    let names: Vec<char> = ('\u{4e00}'..).take(queues).collect();
    let words: Vec<String> = names.iter().map(|name| format!("{name}:{rule}")).collect();
    let mut node = Node::new(&words.join(" "));
    names.iter().for_each(|&name| node.consume(node.queue(name), false, 100));
    let began_us = 1_000_000_000;
    let (mut now_us, mut syncs) = (began_us, 0);
    let (mut acks, mut disk_at) = (VecDeque::new(), None);
    let rounds = names.iter().chain(&names).zip(1..);
    for (&name, seq) in rounds {
        let queue = node.queue(name);
        let messages = vec![node.message(seq, &name.to_string(), true, None)];
        let mut letter = Some(ToShard::Publish { from: PUBLISHER, messages });
        while node.told.is_empty() {
            let timer = node.shard.next_timeout().map(|at| at.ms() * 1000);
            let ack_at = acks.front().map(|&(at, _)| at);
            if letter.is_none() {
                let next = [disk_at, ack_at, timer].into_iter().flatten().min();
                now_us = now_us.max(next.expect("something happens"));
            }
            node.now = Time::from_ms(now_us / 1000);
            node.shard.set_micros(now_us);
            if let Some(letter) = letter.take() {
                node.turn(letter);
                acks.push_back((now_us + WAY_US + consumer_us + WAY_US, queue));
            } else if disk_at.take_if(|at| *at <= now_us).is_some() {
                node.disk();
            } else if let Some((_, queue)) = acks.pop_front_if(|(at, _)| *at <= now_us) {
                let settlements = node.settlement(queue, Settle::Ack, false);
                let settlements = settlements.into_iter().collect();
                node.turn(ToShard::Settle { from: PUBLISHER, settlements });
            } else {
                node.turn(ToShard::Continue);
            }
            if node.log().syncs > syncs {
                syncs = node.log().syncs;
                disk_at = Some(now_us + sync_us);
            }
        }
        node.told.clear();
        now_us += 2 * WAY_US;
    }
    now_us - began_us
}

/// What is known of queues holds for new ones, too: not each of them is tried before its messages go to the disk.
#[test]
fn new_queues_are_taken_for_what_others_were() {
    for sync_us in [300, 1_000, 5_000] {
        let [enqueue, first] =
            ["enqueue", "first"].map(|rule| over_new_queues(rule, sync_us, 20_000, 500));
        assert!(5 * enqueue >= 4 * first, "a sync of {sync_us} us: {enqueue} us, and {first} us");
    }
}
