//! A session and queues that allow and use, over links that are late, lose letters, and bring new terms.

use std::collections::VecDeque;
use std::sync::mpsc::{self, Receiver};

use leveret_broker::message::NodeId;
use leveret_queue::{
    Calls, ConsumerId, ConsumerSpec, Delivery, Gate, Incoming, Offset, Options, Queue, Settle,
    Time, UnackedId, delivery_cost,
};

use super::*;
use crate::random::Random;

const CHANNEL: u16 = 3;
const NOW: Time = Time::from_ms(1_000);
const SIZE: u32 = 10;
const COST: u64 = delivery_cost(SIZE as u64);

/// A shard with one queue of one consumer, whose accounts are as in `crates/broker/src/shard/allowances.rs`.
struct Shard {
    term: u64,
    queue: Queue,
    consumer: ConsumerId,
    output: (Arc<OutputGauge>, [u64; 2]),
    places: (Arc<ChannelLimit>, [u64; 2]),
    calls: Receiver<u32>,
    /// What is to be told: of the output, and of the places.
    untold: [bool; 2],
    called_back: [bool; 2],
    /// Deliveries on their way, and how many there were.
    given: VecDeque<(UnackedId, Offset)>,
    came: u64,
    /// On its way there, and from there: each behind so many deliveries.
    allowing: VecDeque<Allowance>,
    states: VecDeque<(u64, AllowanceState)>,
    is_broken: bool,
}

impl Shard {
    fn new(term: u64, offsets: impl Iterator<Item = u64>) -> Self {
        let (to, calls) = mpsc::channel();
        let output = Arc::new(OutputGauge::closed(Calls::new(to.clone(), 0)));
        let places = Arc::new(ChannelLimit::closed(Calls::new(to, 1)));
        let mut queue = Queue::new(Options::default(), NOW);
        for offset in offsets {
            let message = Incoming::new(Offset::new(offset), SIZE);
            queue.enqueue(message, NOW, &mut Vec::new()).expect("no limit");
        }
        let gate = Gate::new(Arc::clone(&output), Arc::clone(&places));
        let (key, no_ack, exclusive, priority, prefetch) = (0, false, false, 0, 0);
        let spec = ConsumerSpec { key, no_ack, exclusive, priority, prefetch, gate };
        let consumer = queue.add_consumer(spec, NOW).expect("the first one");
        Self {
            term,
            queue,
            consumer,
            output: (output, [0; 2]),
            places: (places, [0; 2]),
            calls,
            untold: [true; 2],
            called_back: [false; 2],
            given: VecDeque::new(),
            came: 0,
            allowing: VecDeque::new(),
            states: VecDeque::new(),
            is_broken: false,
        }
    }

    fn account(&self, of: Option<u16>) -> AccountId {
        AccountId { term: self.term, number: 1 + u64::from(of.is_some()) }
    }

    fn hear(&mut self, it: Allowance) {
        if it.account != self.account(it.of) {
            return;
        }
        let [version, total] =
            if it.of.is_some() { &mut self.places.1 } else { &mut self.output.1 };
        if it.version < *version {
            return;
        }
        let mut resumes = false;
        if it.version > *version {
            *version = it.version;
            *total = it.total;
            resumes = match it.of {
                Some(_) => self.places.0.allow(*total),
                None => self.output.0.allow(*total),
            };
        }
        self.called_back[usize::from(it.of.is_some())] |= it.is_called_back;
        let is_awaited =
            if it.of.is_some() { self.places.0.is_awaited() } else { self.output.0.is_awaited() };
        self.untold[usize::from(it.of.is_some())] |= it.is_called_back || is_awaited;
        if resumes {
            self.queue.resume_all(&mut [self.consumer]);
        }
    }

    fn turn(&mut self, budget: u32) {
        let mut deliver = |it: Delivery| {
            self.given.push_back((it.unacked.expect("to be acked"), it.offset));
        };
        self.queue.dispatch(NOW, &mut deliver, &mut Vec::new(), budget);
        if std::mem::take(&mut self.called_back[0]) {
            self.output.1[1] = self.output.1[1].min(self.output.0.queued());
            assert!(!self.output.0.allow(self.output.1[1]));
        }
        if std::mem::take(&mut self.called_back[1]) {
            self.places.1[1] = self.places.1[1].min(self.places.0.unacked());
            assert!(!self.places.0.allow(self.places.1[1]));
        }
        for name in self.calls.try_iter() {
            self.untold[name as usize] = true;
        }
        let behind = self.came + self.given.len() as u64;
        for (index, of) in [None, Some(CHANNEL)].into_iter().enumerate() {
            if std::mem::take(&mut self.untold[index]) {
                let [version, total] = if of.is_some() { self.places.1 } else { self.output.1 };
                let is_waiting = match of {
                    Some(_) => self.places.0.is_awaited(),
                    None => self.output.0.is_awaited(),
                };
                let account = self.account(of);
                let state = AllowanceState { of, account, version, total, is_waiting };
                self.states.push_back((behind, state));
            }
        }
    }
}

/// A session with a channel, and what it holds.
struct World {
    allowances: Allowances,
    output: Arc<OutputGauge>,
    limit: Arc<ChannelLimit>,
    shards: Vec<Shard>,
    /// Unacked: shard and its term.
    held: Vec<(usize, u64, UnackedId, Offset)>,
    /// Bytes for the socket.
    unwritten: u64,
    settled: usize,
}

impl World {
    fn new(shards: usize, messages: u64, prefetch: u32, output_max: u64) -> Self {
        let output = Arc::new(OutputGauge::new(output_max));
        let limit = Arc::new(ChannelLimit::new());
        assert!(!limit.set_limit(prefetch));
        let mut allowances = Allowances::new(Arc::clone(&output));
        let shards: Vec<Shard> = (0..shards).map(|_| Shard::new(0, 0..messages)).collect();
        for index in 0..shards.len() {
            allowances.consumer_came(CHANNEL, &limit, GroupId::at(index));
        }
        let (held, unwritten, settled) = (Vec::new(), 0, 0);
        Self { allowances, output, limit, shards, held, unwritten, settled }
    }

    /// Whether others are to be called back in a while.
    fn tell(&mut self) -> bool {
        let mut out = Outbox::default();
        let is_short = self.allowances.tell(NodeId::ALONE.connection(1), &mut out);
        for (group, letter) in out.shards {
            let ToShard::Allow { allowances, .. } = letter else { panic!("{letter:?}") };
            self.shards[group.get() as usize].allowing.extend(allowances);
        }
        is_short
    }

    /// All letters between the session and this shard arrive.
    fn hear_all(&mut self, at: usize) {
        let shard = &mut self.shards[at];
        while let Some(allowance) = shard.allowing.pop_front() {
            shard.hear(allowance);
        }
        shard.turn(20);
        while !self.shards[at].given.is_empty() {
            self.receive(at);
        }
        for (_, state) in std::mem::take(&mut self.shards[at].states) {
            self.allowances.hear(GroupId::at(at), &[state]);
        }
    }

    fn receive(&mut self, at: usize) {
        let shard = &mut self.shards[at];
        let Some((unacked, offset)) = shard.given.pop_front() else { return };
        shard.came += 1;
        self.held.push((at, shard.term, unacked, offset));
        self.unwritten += COST;
        self.allowances.came(GroupId::at(at), COST, Some(CHANNEL));
    }

    fn settle(&mut self, index: usize) {
        let (at, term, unacked, offset) = self.held.swap_remove(index);
        let shard = &mut self.shards[at];
        if shard.term == term {
            shard.queue.settle(unacked, offset, Settle::Ack, NOW, &mut Vec::new());
        }
        self.settled += 1;
        let wakes = self.limit.settled(1);
        assert!(!wakes, "no queue of this process waits");
        self.allowances.change(CHANNEL);
    }

    fn write(&mut self, bytes: u64) {
        self.unwritten -= bytes;
        assert!(!self.output.released(bytes), "no queue of this process waits");
    }

    /// All that came is held still; the queue has what was not given out.
    fn begin_term(&mut self, at: usize) {
        while !self.shards[at].given.is_empty() {
            self.receive(at);
        }
        let old = &mut self.shards[at];
        let ready = old.queue.counts().ready;
        let mut shard = Shard::new(old.term + 1, 0..ready);
        // Letters of the term before are on their way still.
        shard.allowing = std::mem::take(&mut old.allowing);
        shard.states = old.states.drain(..).map(|(_, state)| (0, state)).collect();
        *old = shard;
        self.allowances.begin_term(GroupId::at(at));
    }

    fn check(&self, prefetch: u64, output_max: u64) {
        let coming: usize = self.shards.iter().map(|shard| shard.given.len()).sum();
        let held = (self.held.len() + coming) as u64;
        assert!(prefetch == 0 || held <= prefetch, "{held} of {prefetch}");
        let bytes = self.unwritten + coming as u64 * COST;
        let most = output_max + self.shards.len() as u64 * COST;
        assert!(bytes <= most, "{bytes} bytes of {output_max}");
        assert!(self.limit.unacked() >= self.held.len() as u64);
        assert!(self.output.queued() >= self.unwritten);
    }

    fn step(&mut self, at: usize, random: &mut Random) {
        let mut below = |bound: u64| random.next() % bound;
        match below(12) {
            0 | 1 => self.shards[at].turn(1 + below(20) as u32),
            2 | 3 => self.receive(at),
            4 | 5 if !self.held.is_empty() => self.settle(below(self.held.len() as u64) as usize),
            6 => self.write(below(self.unwritten + 1)),
            7 => {
                if self.tell() && below(3) == 0 {
                    self.allowances.call_on();
                }
            }
            8 | 9 => {
                let lost = below(20) == 0;
                let shard = &mut self.shards[at];
                if let Some(allowance) = shard.allowing.pop_front() {
                    match lost {
                        true => shard.is_broken = true,
                        false => shard.hear(allowance),
                    }
                }
            }
            10 => {
                let lost = below(20) == 0;
                let shard = &mut self.shards[at];
                let came = shard.came;
                if let Some((_, state)) = shard.states.pop_front_if(|(behind, _)| *behind <= came) {
                    match lost {
                        true => shard.is_broken = true,
                        false => self.allowances.hear(GroupId::at(at), &[state]),
                    }
                }
            }
            _ => {
                if below(2_000) == 0 {
                    return self.begin_term(at);
                }
                let shard = &mut self.shards[at];
                if std::mem::take(&mut shard.is_broken) {
                    shard.untold = [true; 2];
                    if below(2) == 0 {
                        shard.allowing.clear();
                        shard.states.clear();
                    }
                }
            }
        }
    }
}

/// Whatever is late or lost: never more than the limits, and all comes in the end, wherever it is.
#[test]
fn limits_are_kept_and_nobody_starves() {
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let shards = 1 + (random.next() % 5) as usize;
        let prefetch = random.next() % 8;
        let output_max = COST * (1 + random.next() % 40);
        let messages = random.next() % 60;
        let mut world = World::new(shards, messages, prefetch as u32, output_max);
        let all = shards * messages as usize;
        let mut steps = 0;
        while world.settled < all {
            let at = (random.next() % shards as u64) as usize;
            world.step(at, &mut random);
            world.check(prefetch, output_max);
            steps += 1;
            assert!(steps < 400_000, "seed {seed}: {} of {all} settled", world.settled);
        }
    }
}

/// Two places, which two shards have that need none. One of them says nothing when it is called back: the other one is called back in a
/// while, and it alone is.
#[test]
fn who_waits_does_not_wait_for_one_that_is_silent() {
    let mut world = World::new(4, 0, 2, 100 * COST);
    for at in 0..2 {
        world.hear_all(at);
        assert!(!world.tell());
        world.hear_all(at);
    }
    world.shards[2] = Shard::new(0, 0..1);
    world.hear_all(2);
    assert!(world.tell(), "one is called back, the other one may be");
    let called = |world: &World| -> Vec<usize> {
        let is_called = |at: &usize| world.shards[*at].allowing.iter().any(|it| it.is_called_back);
        (0..4).filter(is_called).collect()
    };
    let [silent] = called(&world)[..] else { panic!("{:?}", called(&world)) };
    let other = 1 - silent;
    world.hear_all(2);
    assert!(world.tell() && called(&world) == [silent], "not at once");
    world.allowances.call_on();
    assert!(!world.tell(), "nobody else may be");
    assert_eq!(called(&world), [0, 1]);
    world.hear_all(other);
    assert!(!world.tell());
    world.hear_all(2);
    assert_eq!(world.held.len(), 1);
    // It answers at last.
    world.hear_all(silent);
    assert!(!world.tell());
    let taken = (world.limit.unacked(), called(&world));
    assert_eq!(taken, (2, vec![]), "its place is for whoever got something");
}
