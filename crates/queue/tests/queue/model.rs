//! A queue as RabbitMQ's documents describe it, as plainly as possible: lists, searched from the start;
//! every message is handed out the moment it can be. It knows nothing of batches, slots or blocks.

use leveret_queue::{Options, Overflow, Reason};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) offset: u64,
    pub(crate) size: u32,
    pub(crate) priority: u8,
    pub(crate) expires_at: Option<u64>,
    pub(crate) redelivered: bool,
    pub(crate) delivery_count: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    Delivered { consumer: u64, offset: u64, redelivered: bool, delivery_count: u32, acked: bool },
    Got { offset: u64, redelivered: bool, delivery_count: u32, remaining: u64 },
    Acked(u64),
    DeadLetter { offset: u64, reason: Reason, held: bool, delivery_count: u32 },
    Dropped { offset: u64, reason: Reason },
    Purged(u64),
}

#[derive(Clone, Debug)]
pub(crate) struct Consumer {
    pub(crate) key: u64,
    pub(crate) channel: usize,
    pub(crate) no_ack: bool,
    pub(crate) exclusive: bool,
    pub(crate) priority: i32,
    pub(crate) prefetch: u32,
    pub(crate) blocked: bool,
    pub(crate) by_prefetch: bool,
}

/// A channel with a connection of its own.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Channel {
    pub(crate) limit: u32,
    pub(crate) unacked: u32,
    pub(crate) flow_stopped: bool,
    pub(crate) output: u64,
    pub(crate) output_limit: u64,
}

impl Channel {
    fn has_room(&self) -> bool {
        let prefetch = self.limit == 0 || self.unacked < self.limit;
        prefetch && !self.flow_stopped && self.output < self.output_limit
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) options: Options,
    pub(crate) now: u64,
    pub(crate) ready: Vec<Message>,
    /// With the consumer's key; none for `basic.get`.
    pub(crate) unacked: Vec<(Option<u64>, Message)>,
    /// With their sizes.
    pub(crate) held: Vec<(u64, u32)>,
    /// In the order in which they are tried, but for priority.
    pub(crate) consumers: Vec<Consumer>,
    pub(crate) active: Option<u64>,
    pub(crate) channels: Vec<Channel>,
    pub(crate) unused_since: u64,
    pub(crate) events: Vec<Event>,
}

impl Model {
    /// The place of the next message: highest priority, then oldest.
    fn next(&self) -> Option<usize> {
        let key = |m: &Message| (std::cmp::Reverse(m.priority), m.offset);
        (0..self.ready.len()).min_by_key(|&at| key(&self.ready[at]))
    }

    fn ready_bytes(&self) -> u64 {
        self.ready.iter().map(|m| u64::from(m.size)).sum()
    }

    fn over(&self, more: u64, more_bytes: u64) -> bool {
        self.options.max_length.is_some_and(|max| self.ready.len() as u64 + more > max)
            || self
                .options
                .max_length_bytes
                .is_some_and(|max| self.ready_bytes() + more_bytes > max)
    }

    /// What is held counts: it is there, and cannot be dropped.
    fn is_full_for(&self, size: u32) -> bool {
        let held_bytes: u64 = self.held.iter().map(|&(_, size)| u64::from(size)).sum();
        self.options.overflow != Overflow::DropHead
            && self.over(1 + self.held.len() as u64, u64::from(size) + held_bytes)
    }

    fn leave(&mut self, message: Message, reason: Reason) {
        let Message { offset, delivery_count, .. } = message;
        if !self.options.dead_letter {
            self.events.push(Event::Dropped { offset, reason });
            return;
        }
        let held = self.options.at_least_once && self.options.overflow == Overflow::RejectPublish;
        if held {
            self.held.push((offset, message.size));
        }
        self.events.push(Event::DeadLetter { offset, reason, held, delivery_count });
    }

    fn drop_over_length(&mut self) {
        while self.options.overflow == Overflow::DropHead && self.over(0, 0) {
            let at = self.next().expect("too long, so not empty");
            let message = self.ready.remove(at);
            self.leave(message, Reason::Maxlen);
        }
    }

    pub(crate) fn expire(&mut self) {
        while let Some(at) = self.next() {
            if self.ready[at].expires_at.is_none_or(|at| self.now < at) {
                return;
            }
            let message = self.ready.remove(at);
            self.leave(message, Reason::Expired);
        }
    }

    fn next_consumer(&self) -> Option<usize> {
        if self.options.paused {
            return None;
        }
        if self.options.single_active {
            return self.consumers.iter().position(|c| Some(c.key) == self.active && !c.blocked);
        }
        let free = |&at: &usize| !self.consumers[at].blocked;
        (0..self.consumers.len())
            .filter(free)
            .min_by_key(|&at| -i64::from(self.consumers[at].priority))
    }

    pub(crate) fn unacked_of(&self, key: u64) -> u32 {
        self.unacked.iter().filter(|(consumer, _)| *consumer == Some(key)).count() as u32
    }

    pub(crate) fn run(&mut self) {
        while !self.ready.is_empty() {
            self.expire();
            let Some(next) = self.next() else { return };
            let Some(at) = self.next_consumer() else { return };
            let unacked = self.unacked_of(self.consumers[at].key);
            let consumer = &mut self.consumers[at];
            let full = !consumer.no_ack && consumer.prefetch > 0 && unacked >= consumer.prefetch;
            if full || !self.channels[consumer.channel].has_room() {
                consumer.blocked = true;
                consumer.by_prefetch = full;
                continue;
            }
            let message = self.ready.remove(next);
            let consumer = consumer.clone();
            if !self.options.single_active {
                let consumer = self.consumers.remove(at);
                self.consumers.push(consumer);
            }
            self.hand_over(&consumer, message);
        }
    }

    fn hand_over(&mut self, consumer: &Consumer, message: Message) {
        let channel = &mut self.channels[consumer.channel];
        channel.output += u64::from(message.size) + 128;
        let Message { offset, redelivered, delivery_count, .. } = message;
        let acked = consumer.no_ack;
        let consumer = consumer.key;
        self.events.push(Event::Delivered { consumer, offset, redelivered, delivery_count, acked });
        if acked {
            self.events.push(Event::Acked(offset));
        } else {
            channel.unacked += 1;
            self.unacked.push((Some(consumer), message));
        }
    }

    /// False when refused.
    pub(crate) fn publish(&mut self, message: Message, expiration: Option<u64>) -> bool {
        if self.is_full_for(message.size) {
            if self.options.overflow == Overflow::RejectPublishDlx {
                self.leave(message, Reason::Maxlen);
            } else {
                let (offset, reason) = (message.offset, Reason::Maxlen);
                self.events.push(Event::Dropped { offset, reason });
            }
            return false;
        }
        let ttl = [self.options.message_ttl_ms, expiration].into_iter().flatten().min();
        let priority = self.options.max_priority.map_or(0, |max| message.priority.min(max));
        // Somebody may take it before its time to live counts.
        self.ready.push(Message { priority, expires_at: None, ..message });
        let offset = message.offset;
        self.run();
        if let Some(waits) = self.ready.iter_mut().find(|m| m.offset == offset) {
            waits.expires_at = ttl.map(|ms| self.now + ms);
        }
        for (_, out) in self.unacked.iter_mut().filter(|(_, m)| m.offset == offset) {
            out.expires_at = ttl.map(|ms| self.now + ms);
        }
        self.drop_over_length();
        self.expire();
        true
    }

    pub(crate) fn consume(&mut self, mut consumer: Consumer) -> bool {
        let shuts_out =
            consumer.exclusive && (self.options.single_active || !self.consumers.is_empty());
        if shuts_out || self.consumers.iter().any(|c| c.exclusive) {
            return false;
        }
        consumer.blocked = false;
        if self.options.single_active && self.active.is_none() {
            self.active = Some(consumer.key);
        }
        self.unused_since = self.now;
        self.consumers.push(consumer);
        self.run();
        true
    }

    /// The key of a newly active consumer.
    pub(crate) fn cancel(&mut self, key: u64) -> Option<u64> {
        self.consumers.retain(|c| c.key != key);
        if self.consumers.is_empty() {
            self.unused_since = self.now;
        }
        if self.active != Some(key) {
            return None;
        }
        self.active = self.next_in_line();
        self.run();
        self.active
    }

    fn next_in_line(&self) -> Option<u64> {
        self.consumers.iter().min_by_key(|c| -i64::from(c.priority)).map(|c| c.key)
    }

    /// Those of the channel that wait for its gate are tried again.
    pub(crate) fn resume(&mut self, channel: usize) {
        let keys: Vec<u64> =
            self.consumers.iter().filter(|c| c.channel == channel).map(|c| c.key).collect();
        for key in keys {
            self.unblock(key);
        }
        self.run();
    }

    fn unblock(&mut self, key: u64) {
        let at = self.consumers.iter().position(|c| c.key == key).expect("is there");
        if self.consumers[at].blocked {
            let mut consumer = self.consumers.remove(at);
            consumer.blocked = false;
            self.consumers.push(consumer);
        }
    }

    /// Takes a message out of unacked, and frees its place in the consumer's prefetch.
    pub(crate) fn take_unacked(&mut self, at: usize) -> Message {
        let (key, message) = self.unacked.remove(at);
        let waits = |c: &Consumer| Some(c.key) == key && c.blocked && c.by_prefetch;
        if let Some(key) = self.consumers.iter().find(|c| waits(c)).map(|c| c.key) {
            self.unblock(key);
        }
        message
    }

    pub(crate) fn ack(&mut self, at: usize) {
        let message = self.take_unacked(at);
        self.events.push(Event::Acked(message.offset));
        self.run();
    }

    pub(crate) fn reject(&mut self, at: usize) {
        let message = self.take_unacked(at);
        self.leave(message, Reason::Rejected);
        self.run();
    }

    pub(crate) fn requeue(&mut self, at: usize, counts: bool) {
        let mut message = self.take_unacked(at);
        message.redelivered = true;
        let limit = self.options.delivery_limit;
        if counts && (self.options.counts_deliveries || limit.is_some()) {
            message.delivery_count += 1;
        }
        if counts && limit.is_some_and(|limit| message.delivery_count > limit) {
            self.leave(message, Reason::DeliveryLimit);
        } else {
            self.ready.push(message);
            self.drop_over_length();
            self.expire();
        }
        self.run();
    }

    pub(crate) fn get(&mut self, no_ack: bool) -> bool {
        self.unused_since = self.now;
        self.expire();
        let next = if self.options.paused { None } else { self.next() };
        let Some(at) = next else { return false };
        let message = self.ready.remove(at);
        let Message { offset, redelivered, delivery_count, .. } = message;
        if no_ack {
            self.events.push(Event::Acked(offset));
        } else {
            self.unacked.push((None, message));
        }
        self.expire();
        let remaining = self.ready.len() as u64;
        self.events.push(Event::Got { offset, redelivered, delivery_count, remaining });
        true
    }

    pub(crate) fn purge(&mut self, max: u64) -> u64 {
        let mut count = 0;
        while count < max
            && let Some(at) = self.next()
        {
            self.events.push(Event::Purged(self.ready.remove(at).offset));
            count += 1;
        }
        // What is at the head now may be at its end.
        self.run();
        count
    }

    /// The offset of the one that went.
    pub(crate) fn discard(&mut self, at: usize) -> Option<u64> {
        let at = at.checked_rem(self.ready.len())?;
        let message = self.ready.remove(at);
        self.events.push(Event::Purged(message.offset));
        self.run();
        Some(message.offset)
    }

    pub(crate) fn set_options(&mut self, options: Options) {
        if options.expires_ms != self.options.expires_ms {
            self.unused_since = self.now;
        }
        self.options = options;
        self.drop_over_length();
        self.expire();
        self.run();
    }

    /// When the queue has to be looked at again.
    pub(crate) fn next_timeout(&self) -> Option<u64> {
        let head = self.next().and_then(|at| self.ready[at].expires_at);
        [head, self.unused_until()].into_iter().flatten().min()
    }

    pub(crate) fn unused_until(&self) -> Option<u64> {
        let ms = self.options.expires_ms?;
        self.consumers.is_empty().then_some(self.unused_since + ms)
    }
}

impl Consumer {
    pub(crate) fn new(key: u64, channel: usize) -> Self {
        Self {
            key,
            channel,
            no_ack: false,
            exclusive: false,
            priority: 0,
            prefetch: 0,
            blocked: false,
            by_prefetch: false,
        }
    }
}
