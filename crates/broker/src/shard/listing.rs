//! Facts about queues for lists, made in pieces: consumers are counted, and named where that is asked for.

use std::sync::Arc;

use leveret_log::Log;
use leveret_queue::{ConsumerView, Time};
use leveret_topology::QueueId;

use super::jobs::cost;
use super::{Hosted, Shard};
use crate::message::{ConsumerFacts, Holding, Named, Outbox, QueueFacts, Reply, ReplyTo};

/// Slots of consumers that are looked at before it is looked whether the piece is large enough.
const SLOTS: u32 = 64;

/// A list, as far as it is made.
#[derive(Debug)]
pub(super) struct Listing {
    reply: ReplyTo,
    queues: std::vec::IntoIter<QueueId>,
    named: Named,
    facts: Vec<QueueFacts>,
    /// The slot from which on consumers of the last queue are looked at next.
    from: Option<u32>,
}

impl Listing {
    pub(super) fn new(reply: ReplyTo, queues: Box<[QueueId]>, named: Named) -> Self {
        let queues = queues.into_vec().into_iter();
        Self { reply, queues, named, facts: Vec::new(), from: None }
    }

    /// What is left of it will cost at least that.
    fn units(&self) -> u64 {
        cost::LISTED * (self.queues.len() as u64 + u64::from(self.from.is_some()))
    }

    /// About how many bytes it takes.
    pub(super) fn bytes(&self) -> u64 {
        (self.facts.capacity() * size_of::<QueueFacts>()) as u64
    }
}

impl<L: Log> Shard<L> {
    /// What a list will cost.
    pub(super) fn price_of_list(&self, queues: &[QueueId], named: Named) -> u64 {
        let listed = cost::LISTED * queues.len() as u64;
        if named == Named::None {
            return listed;
        }
        let hosted = queues.iter().filter_map(|&id| self.queues.get(id));
        let slots = hosted.map(|it| u64::from(it.queue.consumer_slots())).sum::<u64>();
        listed + cost::NAMED * slots
    }

    /// Makes a part of a list. What remains of it, and what that will cost; with the last part it is answered.
    pub(super) fn list(
        &mut self,
        mut list: Listing,
        allowed: u64,
        now: Time,
        out: &mut Outbox,
    ) -> Option<(Listing, u64)> {
        while self.jobs.used() < allowed {
            if let Some(from) = list.from.take() {
                list.from = self.name_some(&mut list, from);
            } else if let Some(id) = list.queues.next() {
                self.jobs.pay(cost::LISTED);
                let facts = self.queues.get(id).and_then(|hosted| self.facts(id, hosted, now));
                if let Some(facts) = facts {
                    list.facts.push(facts);
                    list.from = (list.named != Named::None).then_some(0);
                }
            } else {
                break;
            }
        }
        let units = list.units();
        if units > 0 {
            return Some((list, units));
        }
        out.reply(list.reply, Reply::Queues(list.facts));
        None
    }

    /// Names some consumers of the last queue of the list. Where to go on.
    fn name_some(&mut self, list: &mut Listing, from: u32) -> Option<u32> {
        let facts = list.facts.last_mut()?;
        let hosted = self.queues.get(facts.queue)?;
        let to = from.saturating_add(SLOTS);
        let before = facts.consumers.len();
        let views = hosted.queue.consumers_between(from, to);
        facts.consumers.extend(views.filter_map(|view| self.named(&view, list.named)));
        let found = (facts.consumers.len() - before) as u64;
        self.jobs.pay(cost::LISTED + cost::NAMED * found);
        (to < hosted.queue.consumer_slots()).then_some(to)
    }

    fn facts(&self, id: QueueId, hosted: &Hosted, now: Time) -> Option<QueueFacts> {
        Some(QueueFacts {
            queue: id,
            numbers: self.queue_numbers(id, now)?,
            active_consumers: hosted.queue.active_consumers(),
            single_active: hosted.queue.single_active_consumer().and_then(|it| self.holding(&it)),
            exclusive: hosted.queue.exclusive_consumer().and_then(|it| self.holding(&it)),
            consumers: Vec::new(),
        })
    }

    fn holding(&self, view: &ConsumerView) -> Option<Holding> {
        let consumer = self.ports.consumer(u32::try_from(view.key).ok()?)?;
        let (connection, channel) = (consumer.connection, consumer.channel);
        Some(Holding { connection, channel, tag: consumer.facts.tag.clone() })
    }

    fn named(&self, view: &ConsumerView, named: Named) -> Option<ConsumerFacts> {
        let consumer = self.ports.consumer(u32::try_from(view.key).ok()?)?;
        if let Named::OfChannel(connection, channel) = named
            && (consumer.connection, consumer.channel) != (connection, channel)
        {
            return None;
        }
        Some(ConsumerFacts {
            connection: consumer.connection,
            channel: consumer.channel,
            tag: consumer.facts.tag.clone(),
            ack_required: !consumer.facts.no_ack,
            prefetch: consumer.facts.prefetch,
            active: view.active,
            exclusive: view.exclusive,
            priority: view.priority,
            unacked: view.unacked,
            is_blocked: view.blocked,
            prefetch_full_since: view.full_since,
            arguments: Arc::clone(&consumer.facts.arguments),
        })
    }
}
