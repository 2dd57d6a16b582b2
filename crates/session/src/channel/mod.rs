//! One channel: its state, and what is common to its methods.

mod all;
pub(crate) mod content;

use std::sync::Arc;

use hashbrown::HashTable;
use leveret_broker::message::ConsumerSlot;
use leveret_queue::ChannelLimit;
use leveret_topology::{CountedChannel, QueueId};

use crate::confirm::Confirms;
use crate::consumers::Consumer;
use crate::totals::{ChannelTotals, Published, TakenByQueue, TakenTotals};
use crate::tx::Tx;
use crate::unacked::Unacked;
pub(crate) use all::Channels;
use content::Content;

/// What the channel does with publishes.
#[derive(Debug)]
pub(crate) enum Mode {
    /// Nothing more.
    Plain,
    /// `confirm.select`.
    Confirm(Confirms),
    /// `tx.select`.
    Tx(Box<Tx>),
}

/// The consumer of `amq.rabbitmq.reply-to`.
#[derive(Debug)]
pub(crate) struct DirectReply {
    pub(crate) tag: Box<str>,
    /// Part of the name that requests carry, so that only those that got one can answer.
    pub(crate) token: u64,
}

#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) number: u16,
    /// `channel.close` was sent: all but its answer is thrown away.
    pub(crate) is_closing: bool,
    /// The client closed it too. Its number is free: not every client answers our close then.
    pub(crate) is_crossed: bool,
    /// Its places among the channels of the user and of the node.
    pub(crate) counted: CountedChannel,
    pub(crate) content: Content,
    pub(crate) mode: Mode,
    /// The next delivery tag.
    pub(crate) next_tag: u64,
    pub(crate) unacked: Unacked,
    /// `basic.qos` with `global`, shared with the queues it consumes from.
    pub(crate) limit: Arc<ChannelLimit>,
    /// `basic.qos` without `global`: of consumers to come.
    pub(crate) prefetch: u16,
    pub(crate) global_prefetch: u16,
    /// Its consumers' slots, by tag.
    pub(crate) tags: HashTable<ConsumerSlot>,
    /// The queue that an empty queue name means.
    pub(crate) last_queue: Box<str>,
    pub(crate) direct_reply: Option<Box<DirectReply>>,
    pub(crate) published: Published,
    pub(crate) taken: TakenByQueue,
    /// Messages published before `confirm.select`.
    pub(crate) unconfirmable: u64,
    /// What is counted besides: by consumers that are gone, by `basic.get`, acks. What is published and
    /// confirmed is not in it.
    pub(crate) totals: ChannelTotals,
}

impl Channel {
    pub(crate) fn new(number: u16, prefetch: u16, counted: CountedChannel) -> Self {
        Self {
            number,
            is_closing: false,
            is_crossed: false,
            counted,
            content: Content::new(),
            mode: Mode::Plain,
            next_tag: 1,
            unacked: Unacked::new(),
            limit: Arc::new(ChannelLimit::new()),
            prefetch,
            global_prefetch: 0,
            tags: HashTable::new(),
            last_queue: Box::default(),
            direct_reply: None,
            published: Published::default(),
            taken: TakenByQueue::default(),
            unconfirmable: 0,
            totals: ChannelTotals::default(),
        }
    }

    /// A consumer is gone: what it was given stays counted.
    pub(crate) fn keep_totals_of(&mut self, consumer: &Consumer) {
        self.count(consumer.queue, consumer.taken());
    }

    /// Something was taken from a queue.
    pub(crate) fn count(&mut self, queue: QueueId, taken: TakenTotals) {
        self.totals.taken += taken;
        *self.taken.of(queue) += taken;
    }

    /// All that was counted, but for consumers that are there.
    pub(crate) fn counted(&self) -> ChannelTotals {
        let mut totals = self.totals;
        totals.published = self.published.sum();
        if let Mode::Confirm(confirms) = &self.mode {
            totals.publish_confirm = totals.published.publish - self.unconfirmable;
            totals.nack = confirms.nacked();
        }
        totals
    }

    /// A new delivery tag.
    pub(crate) fn tag(&mut self) -> u64 {
        let tag = self.next_tag;
        self.next_tag += 1;
        tag
    }
}
