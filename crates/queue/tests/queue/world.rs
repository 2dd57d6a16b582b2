//! A queue and its model under the same commands, compared after each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leveret_queue::{
    ChannelLimit, ConsumerId, ConsumerSpec, Delivery, Gate, Incoming, Left, LookAt, Offset,
    Options, OutputGauge, Queue, Refused, Settle, Settled, Time, UnackedId, delivery_cost,
};

use crate::model::{Channel, Consumer, Event, Message, Model};

/// Consumers belong to one of these; each has a connection of its own.
pub(crate) const CHANNELS: usize = 2;
const OUTPUT_LIMIT: u64 = 2_000;

#[derive(Clone, Debug)]
pub(crate) enum Command {
    Publish {
        size: u32,
        priority: u8,
        persistent: bool,
        expiration_ms: Option<u64>,
    },
    Consume {
        channel: usize,
        no_ack: bool,
        exclusive: bool,
        priority: i32,
        prefetch: u16,
    },
    /// These take the so-manieth of what there is (modulo its number).
    Cancel(usize),
    Ack(usize),
    Reject(usize),
    Requeue {
        at: usize,
        counts: bool,
    },
    DeadLettered(usize),
    Get {
        no_ack: bool,
    },
    /// So many at most.
    Purge(u64),
    /// A ready one is purged.
    Discard(usize),
    Pass {
        ms: u64,
    },
    ChannelLimit {
        channel: usize,
        limit: u32,
    },
    Flow {
        channel: usize,
        active: bool,
    },
    Drain {
        channel: usize,
    },
    SetOptions(Box<Options>),
    Relax,
}

pub(crate) struct World {
    pub(crate) queue: Queue,
    model: Model,
    gates: Vec<Gate>,
    /// What each connection was given and has not written.
    output: Vec<u64>,
    ids: BTreeMap<u64, ConsumerId>,
    unacked: BTreeMap<u64, UnackedId>,
    stale: Option<(UnackedId, u64)>,
    enqueued: u64,
    /// Those with delivery mode 2 that have not left.
    persistent: BTreeSet<u64>,
    next_key: u64,
    /// Every way out of the queue, by offset.
    left: BTreeMap<u64, Left>,
    out: Vec<Left>,
    events: Vec<Event>,
    now: u64,
}

impl World {
    pub(crate) fn new(options: Options) -> Self {
        let gauge = || Arc::new(OutputGauge::new(OUTPUT_LIMIT));
        let gate = |_| Gate::new(gauge(), Arc::new(ChannelLimit::new()));
        let channel = Channel { output_limit: OUTPUT_LIMIT, ..Channel::default() };
        let now = 1_000;
        Self {
            queue: Queue::new(options.clone(), Time::from_ms(now)),
            model: Model {
                options,
                now,
                unused_since: now,
                channels: vec![channel; CHANNELS],
                ..Model::default()
            },
            gates: (0..CHANNELS).map(gate).collect(),
            output: vec![0; CHANNELS],
            ids: BTreeMap::new(),
            unacked: BTreeMap::new(),
            stale: None,
            enqueued: 0,
            persistent: BTreeSet::new(),
            next_key: 0,
            left: BTreeMap::new(),
            out: Vec::new(),
            events: Vec::new(),
            now,
        }
    }

    fn time(&self) -> Time {
        Time::from_ms(self.now)
    }

    /// Applies `command` to both; the queue's dispatch follows, as in a turn.
    pub(crate) fn apply(&mut self, command: &Command) {
        self.apply_without_dispatch(command);
        self.finish_turn();
    }

    pub(crate) fn finish_turn(&mut self) {
        self.dispatch();
        self.check();
    }

    pub(crate) fn apply_without_dispatch(&mut self, command: &Command) {
        match *command {
            Command::Publish { size, priority, persistent, expiration_ms } => {
                self.publish(size, priority, persistent, expiration_ms);
            }
            Command::Consume { channel, no_ack, exclusive, priority, prefetch } => {
                self.consume(channel, no_ack, exclusive, priority, prefetch);
            }
            Command::Cancel(at) => self.cancel(at),
            Command::Ack(at) => self.settle(at, Settle::Ack),
            Command::Reject(at) => self.settle(at, Settle::Reject),
            Command::Requeue { at, counts } => self.settle(at, Settle::Requeue { counts }),
            Command::DeadLettered(at) => self.dead_lettered(at),
            Command::Get { no_ack } => self.get(no_ack),
            Command::Purge(max) => {
                let purged = self.queue.purge(max);
                assert_eq!(purged.ready(), self.model.purge(max));
                self.out.extend(purged);
                self.expire();
            }
            Command::Discard(at) => self.discard(at),
            Command::Pass { ms } => self.pass(ms),
            Command::ChannelLimit { channel, limit } => {
                self.model.channels[channel].limit = limit;
                let woken = self.gates[channel].channel().set_limit(limit);
                self.wake(channel, woken);
            }
            Command::Flow { channel, active } => {
                self.model.channels[channel].flow_stopped = !active;
                let woken = self.gates[channel].channel().set_flow(active);
                self.wake(channel, woken);
            }
            Command::Drain { channel } => {
                let bytes = std::mem::take(&mut self.output[channel]);
                self.model.channels[channel].output -= bytes;
                let woken = self.gates[channel].output().released(bytes);
                self.wake(channel, woken);
            }
            Command::SetOptions(ref options) => {
                // Both are arguments of the queue, not policies.
                let (single_active, max_priority) =
                    (self.model.options.single_active, self.model.options.max_priority);
                let options = Options { single_active, max_priority, ..(**options).clone() };
                self.queue.set_options(options.clone(), self.time(), &mut self.out);
                self.model.set_options(options);
            }
            Command::Relax => self.queue.relax(),
        }
    }

    fn publish(&mut self, size: u32, priority: u8, persistent: bool, expiration_ms: Option<u64>) {
        self.enqueued += 1;
        let offset = self.enqueued;
        if persistent {
            self.persistent.insert(offset);
        }
        let incoming = Incoming {
            priority,
            persistent,
            expiration_ms,
            ..Incoming::new(Offset::new(offset), size)
        };
        let taken = self.queue.enqueue(incoming, self.time(), &mut self.out);
        let message = Message {
            offset,
            size,
            priority,
            expires_at: None,
            redelivered: false,
            delivery_count: 0,
        };
        let expected = self.model.publish(message, expiration_ms);
        assert_eq!(taken, if expected { Ok(()) } else { Err(Refused::Full) });
    }

    fn consume(
        &mut self,
        channel: usize,
        no_ack: bool,
        exclusive: bool,
        priority: i32,
        prefetch: u16,
    ) {
        // Keys are never used again; they tell the channel.
        let key = self.next_key * CHANNELS as u64 + channel as u64;
        self.next_key += 1;
        let gate = self.gates[channel].clone();
        let spec = ConsumerSpec { key, no_ack, exclusive, priority, prefetch, gate };
        let added = self.queue.add_consumer(spec, self.time());
        let consumer = Consumer {
            no_ack,
            exclusive,
            priority,
            prefetch: u32::from(prefetch),
            ..Consumer::new(key, channel)
        };
        assert_eq!(added.is_ok(), self.model.consume(consumer));
        if let Ok(id) = added {
            assert!(!self.ids.values().any(|&other| other == id), "{id:?} is taken");
            self.ids.insert(key, id);
        }
    }

    fn cancel(&mut self, at: usize) {
        if self.ids.is_empty() {
            return;
        }
        let (&key, &id) = self.ids.iter().nth(at % self.ids.len()).expect("not empty");
        self.ids.remove(&key);
        let removed =
            self.queue.remove_consumer(id, self.time(), &mut self.out).expect("it was there");
        assert_eq!(removed.activated, self.model.cancel(key));
        assert_eq!(removed.auto_delete, self.ids.is_empty() && self.model.options.auto_delete);
        assert!(!removed.resume, "a dispatch came before");
        assert_eq!(self.queue.remove_consumer(id, self.time(), &mut self.out), None);
    }

    fn settle(&mut self, at: usize, how: Settle) {
        // What a late client might try.
        if let Some((id, offset)) = self.stale {
            let late = self.queue.settle(id, Offset::new(offset), how, self.time(), &mut self.out)
                != Settled::Stale;
            assert!(!late, "settled {offset} twice");
        }
        if self.model.unacked.is_empty() {
            return;
        }
        let at = at % self.model.unacked.len();
        let (key, Message { offset, .. }) = self.model.unacked[at];
        let channel = key.map(|key| key as usize % CHANNELS);
        let id = self.unacked.remove(&offset).expect("the queue handed it out too");
        let settled = self.queue.settle(id, Offset::new(offset), how, self.time(), &mut self.out);
        assert_ne!(settled, Settled::Stale);
        let mut woken = false;
        if let Some(channel) = channel {
            self.model.channels[channel].unacked -= 1;
            woken = self.gates[channel].channel().settled(1);
        }
        match how {
            Settle::Ack => self.model.ack(at),
            Settle::Reject => self.model.reject(at),
            Settle::Requeue { counts } => self.model.requeue(at, counts),
        }
        if !matches!(how, Settle::Requeue { .. }) {
            self.stale = Some((id, offset));
        }
        // The letter that resumes comes after the settlement, and after a dispatch.
        if woken {
            self.dispatch();
        }
        self.wake(channel.unwrap_or_default(), woken);
    }

    fn dead_lettered(&mut self, at: usize) {
        if self.model.held.is_empty() {
            assert!(!self.queue.dead_lettered(Offset::new(1), true));
            return;
        }
        let at = at % self.model.held.len();
        let offset = Offset::new(self.model.held.remove(at).0);
        let (is_safe, confirmed) =
            (at.is_multiple_of(2), self.queue.totals().dead_letters_confirmed);
        assert!(self.queue.dead_lettered(offset, is_safe));
        assert!(!self.queue.dead_lettered(offset, true), "only once");
        let counted = self.queue.totals().dead_letters_confirmed - confirmed;
        assert_eq!(counted, u64::from(is_safe), "what is given up is not confirmed");
    }

    /// Of two that are named only the ready one goes.
    fn discard(&mut self, at: usize) {
        let unacked = self.model.unacked.first().map(|(_, message)| message.offset);
        let ready = self.model.discard(at);
        let mut named: Vec<_> = unacked.into_iter().chain(ready).map(Offset::new).collect();
        named.sort_unstable();
        let discarded = self.queue.discard(&named);
        assert_eq!(discarded.ready(), u64::from(ready.is_some()));
        self.out.extend(discarded);
        self.expire();
    }

    /// What is at the head now may have been at its end behind others: the timer is due.
    fn expire(&mut self) {
        while self.queue.expire(self.time(), &mut self.out) {}
    }

    /// Pages show what is there, in order, and who has it.
    fn check_looks(&self) {
        let look = |place, from, max| {
            let found = self.queue.look(place, Offset::new(from), max).into_iter();
            let page = found.map(|it| {
                let message = Message {
                    offset: it.offset.get(),
                    size: it.size,
                    priority: 0,
                    expires_at: it.expires_at.map(Time::ms),
                    redelivered: it.redelivered,
                    delivery_count: it.delivery_count,
                };
                (it.consumer_key, message)
            });
            page.collect::<Vec<_>>()
        };
        let want = |mut all: Vec<(Option<u64>, Message)>| {
            all.sort_by_key(|(_, message)| message.offset);
            all.iter_mut().for_each(|(_, message)| message.priority = 0);
            all
        };
        let ready = want(self.model.ready.iter().map(|&message| (None, message)).collect());
        assert_eq!(look(LookAt::Ready, 0, usize::MAX / 2), ready);
        let part = ready.iter().filter(|(_, message)| message.offset > 3).take(2);
        assert_eq!(look(LookAt::Ready, 4, 2), part.copied().collect::<Vec<_>>());
        let is_there = |key: &u64| self.ids.contains_key(key);
        let unacked = self.model.unacked.iter();
        let unacked = unacked.map(|&(key, message)| (key.filter(is_there), message)).collect();
        assert_eq!(look(LookAt::Unacked, 0, usize::MAX / 2), want(unacked));
    }

    fn get(&mut self, no_ack: bool) {
        let got = self.queue.get(self.time(), no_ack, &mut self.out);
        assert_eq!(got.is_some(), self.model.get(no_ack));
        let Some(got) = got else { return };
        assert_eq!(got.unacked.is_none(), no_ack);
        if let Some(id) = got.unacked {
            self.unacked.insert(got.offset.get(), id);
        }
        self.events.push(Event::Got {
            offset: got.offset.get(),
            redelivered: got.redelivered,
            delivery_count: got.delivery_count,
            remaining: got.remaining,
        });
    }

    fn pass(&mut self, ms: u64) {
        self.now += ms;
        self.model.now = self.now;
        self.queue.expire(self.time(), &mut self.out);
        self.model.expire();
        let unused = self.model.unused_until().is_some_and(|until| self.now >= until);
        assert_eq!(self.queue.is_expired_unused(self.time()), unused);
    }

    /// The connection's consumers are resumed in both, in the same order.
    fn wake(&mut self, channel: usize, woken: bool) {
        if !woken {
            return;
        }
        for consumer in self.model.consumers.iter().filter(|c| c.channel == channel) {
            self.queue.resume(self.ids[&consumer.key]);
        }
        self.model.resume(channel);
    }

    fn dispatch(&mut self) {
        let (output, unacked, events) = (&mut self.output, &mut self.unacked, &mut self.events);
        let mut deliver = |delivery: Delivery| {
            let Delivery { consumer_key, offset, .. } = delivery;
            output[consumer_key as usize % CHANNELS] += delivery_cost(u64::from(delivery.size));
            if let Some(id) = delivery.unacked {
                unacked.insert(offset.get(), id);
            }
            events.push(Event::Delivered {
                consumer: consumer_key,
                offset: offset.get(),
                redelivered: delivery.redelivered,
                delivery_count: delivery.delivery_count,
                acked: delivery.unacked.is_none(),
            });
        };
        // A budget smaller than some backlogs.
        let time = Time::from_ms(self.now);
        while self.queue.dispatch(time, &mut deliver, &mut self.out, 3).more {}
        assert!(!self.queue.wants_dispatch());
    }

    /// Both say the same happened, and stand where they say.
    fn check(&mut self) {
        for left in self.out.drain(..) {
            let offset = left.offset().get();
            self.persistent.remove(&offset);
            assert_eq!(self.left.insert(offset, left), None, "{offset} left twice");
            self.events.push(event(left));
        }
        // In a turn only the order of deliveries can be seen from outside.
        let deliveries = |events: &[Event]| -> Vec<Event> {
            events.iter().filter(|e| matches!(e, Event::Delivered { .. })).copied().collect()
        };
        assert_eq!(deliveries(&self.events), deliveries(&self.model.events));
        self.events.sort_unstable();
        self.model.events.sort_unstable();
        assert_eq!(self.events, self.model.events);
        self.events.clear();
        self.model.events.clear();

        let counts = self.queue.counts();
        let size = |m: &Message| u64::from(m.size);
        assert_eq!(counts.ready, self.model.ready.len() as u64);
        assert_eq!(counts.ready_bytes, self.model.ready.iter().map(size).sum());
        assert_eq!(counts.unacked, self.model.unacked.len() as u64);
        assert_eq!(counts.unacked_bytes, self.model.unacked.iter().map(|(_, m)| size(m)).sum());
        assert_eq!(counts.held, self.model.held.len() as u64);
        assert_eq!(counts.early, 0);
        assert_eq!(counts.consumers as usize, self.model.consumers.len());
        assert_eq!(counts.ready + counts.unacked + self.left.len() as u64, self.enqueued);
        assert_eq!(counts.persistent, self.persistent.len() as u64);
        self.check_totals();
        self.check_looks();
        let timeout = self.queue.next_timeout().map(Time::ms);
        assert_eq!(timeout, self.model.next_timeout());

        for view in self.queue.consumers() {
            assert_eq!(view.unacked, self.model.unacked_of(view.key));
            assert!(view.prefetch == 0 || view.no_ack || view.unacked <= u32::from(view.prefetch));
            let active = !self.model.options.single_active || self.model.active == Some(view.key);
            assert_eq!(view.active, active);
        }
        for (gate, channel) in self.gates.iter().zip(&self.model.channels) {
            assert_eq!(gate.channel().unacked(), u64::from(channel.unacked));
            assert_eq!(gate.output().queued(), channel.output);
        }
    }

    /// Every message that came is in one place or left in one way; totals count all of it.
    fn check_totals(&self) {
        let (counts, totals) = (self.queue.counts(), self.queue.totals());
        let no_ack = totals.delivered_no_ack + totals.got_no_ack;
        let out = no_ack + totals.dropped.sum() + totals.dead_lettered.sum() + totals.purged;
        assert_eq!(totals.enqueued, self.enqueued);
        assert_eq!(totals.enqueued, counts.ready + counts.unacked + totals.acked + out);
        let is = |f: fn(&Left) -> bool| self.left.values().filter(|left| f(left)).count() as u64;
        assert_eq!(is(|left| matches!(left, Left::Acked(_))), totals.acked + no_ack);
        assert_eq!(is(|left| matches!(left, Left::Dropped { .. })), totals.dropped.sum());
        assert_eq!(is(|left| matches!(left, Left::DeadLetter { .. })), totals.dead_lettered.sum());
        assert_eq!(is(|left| matches!(left, Left::Purged(_))), totals.purged);
    }

    /// Deletes the queue: what was in it comes out.
    pub(crate) fn finish(mut self) {
        let drained = self.queue.drain_all();
        assert_eq!(drained.ready(), self.model.ready.len() as u64);
        self.out.extend(drained);
        for left in self.out.drain(..) {
            let before = self.left.insert(left.offset().get(), left);
            match left {
                Left::Purged(_) => assert_eq!(before, None),
                Left::Held { goes: true, .. } => {
                    assert!(matches!(before, Some(Left::DeadLetter { held: true, .. })));
                }
                _ => panic!("{left:?}"),
            }
        }
        assert_eq!(self.left.len() as u64, self.enqueued);
        let consumers = self.queue.counts().consumers;
        let empty = leveret_queue::Counts { consumers, ..Default::default() };
        assert_eq!(self.queue.counts(), empty);
    }
}

fn event(left: Left) -> Event {
    match left {
        Left::Acked(offset) => Event::Acked(offset.get()),
        Left::DeadLetter { offset, reason, held, delivery_count, .. } => {
            Event::DeadLetter { offset: offset.get(), reason, held, delivery_count }
        }
        Left::Dropped { offset, reason } => Event::Dropped { offset: offset.get(), reason },
        Left::Purged(offset) => Event::Purged(offset.get()),
        Left::Held { .. } => unreachable!("the queue is there"),
        Left::Lent(_) | Left::Returned { .. } => unreachable!("nothing is lent here"),
    }
}
