//! Transactions: publishes and settlements are kept until `tx.commit`, which hands each shard its part
//! in one letter. Parts of several shards are decided on together.
//!
//! A message is routed when it is published, as in RabbitMQ; if it is mandatory and went nowhere, or all its queues
//! are gone by then, it is returned at the commit. Settled messages leave the channel's unacked ones at once and come back by
//! `tx.rollback`, which forgets the rest.

use leveret_amqp::method::tx;
use leveret_broker::message::{
    Message, Publish, Settle, Settlement, Targets, ToShard, UnackedDelivery,
};
use leveret_broker::transaction::TxId;
use leveret_queue::Offset;
use leveret_topology::{ByGroup, ExchangeId, GroupId};
use smallvec::SmallVec;

use crate::cache::Routed;
use crate::channel::{Channel, Mode};
use crate::core::{Context, Core};
use crate::publish::Head;
use crate::reply::{self, Fault};
use crate::settle::entry_is_consumed;
use crate::totals::TakenByQueue;
use crate::unacked::{Settled, Unacked, Which};
use crate::waiting::{Awaited, WaitingCommand};
use crate::{deliver, direct, returned, route};

const COMMIT: (u16, u16) = (90, 20);

/// What waits for the commit.
#[derive(Debug, Default)]
pub(crate) struct Tx {
    /// As they will be handed over: a list of many is long to copy.
    publishes: ByGroup<Vec<Publish>>,
    /// In the order of publishing.
    others: Vec<Other>,
    /// Of these, those that are among `publishes`.
    mandatory: usize,
    /// For recent-history exchanges.
    remembered: Vec<(ExchangeId, u32, Publish)>,
    /// As they will be handed over, too.
    settlements: ByGroup<Vec<Settlement>>,
    /// The same as the channel knew them, in the order of settling: they may be unacked again.
    settled: Vec<UnackedDelivery>,
    /// Of these, those that count towards the channel's limit.
    consumed: u32,
    /// Those that are acked.
    acks: u64,
    /// The same by queue.
    acked: TakenByQueue,
    /// Bytes of the messages.
    kept: u64,
    /// Where the list of the last message's queues is.
    list: usize,
}

/// A group's part of a transaction.
type Part = (Vec<Publish>, Vec<Settlement>);

/// What has to be done for one message, but for its queues.
#[derive(Debug)]
enum Other {
    Direct(direct::Address, Message),
    /// Mandatory, without a queue.
    Return(Message),
    /// Mandatory: its groups and its places in their lists, and where it was published to.
    Mandatory(SmallVec<[(GroupId, u32); 1]>, ExchangeId),
}

impl Tx {
    /// Keeps a routed message.
    pub(crate) fn publish(
        &mut self,
        exchange: ExchangeId,
        routed: &Routed,
        head: Head,
        message: Message,
        mandatory: bool,
    ) {
        let is_lost = routed.is_unroutable() && !mandatory && routed.remember.is_empty();
        if is_lost {
            return;
        }
        // A transaction may stay open for long; what it was read with must not.
        let message = message.detached();
        let mut lists = size_of::<Publish>() * routed.targets.len().max(1);
        // Messages that go the same way have one list, as long as it is remembered.
        let first = routed.targets.first().map_or(0, |(_, targets)| targets.as_ptr() as usize);
        if std::mem::replace(&mut self.list, first) != first {
            lists += routed.targets.iter().map(|(_, targets)| targets.list_bytes()).sum::<usize>();
        }
        self.kept += lists as u64 + message.len();
        if !routed.remember.is_empty() && route::is_to_be_remembered(&message) {
            for &(exchange, limit) in &routed.remember {
                let message = head.publish(0, &Targets::new(), message.clone());
                self.remembered.push((exchange, limit, message));
            }
        }
        for (group, targets) in &routed.targets {
            self.publishes.of(*group).push(head.publish(0, targets, message.clone()));
        }
        match routed.direct {
            Some(to) => self.others.push(Other::Direct(to, message)),
            None if !mandatory => {}
            None if routed.targets.is_empty() => self.others.push(Other::Return(message)),
            None => {
                let groups = routed.targets.iter().map(|&(group, _)| group);
                let mut last = |group| self.publishes.of(group).len() as u32 - 1;
                let places = groups.map(|group| (group, last(group))).collect();
                self.others.push(Other::Mandatory(places, exchange));
                self.mandatory += 1;
                self.kept += size_of::<Other>() as u64;
            }
        }
    }

    /// Keeps settlements. None if a tag is not there.
    pub(crate) fn settle(
        &mut self,
        unacked: &mut Unacked,
        which: Which,
        how: Settle,
    ) -> Option<Settled> {
        let is_ack = how == Settle::Ack;
        unacked.take_some(which, |entry| {
            self.consumed += u32::from(entry_is_consumed(&entry));
            if is_ack {
                self.acks += 1;
                self.acked.of(entry.queue).ack += 1;
            }
            if !entry.is_lost() {
                self.settlements.of(entry.home).push(entry.settled(how));
            }
            self.settled.push(entry);
        })
    }

    /// What was lost with a leader is settled nowhere: see [`UnackedDelivery::lose`].
    pub(crate) fn lose(&mut self, group: GroupId, begins_at: Offset) {
        self.settled.iter_mut().for_each(|entry| entry.lose(group, begins_at));
        self.settlements.of(group).retain(|it| it.offset < begins_at);
    }

    /// What is settled when it is committed, in the order of settling.
    pub(crate) fn settled(&self) -> &[UnackedDelivery] {
        &self.settled
    }

    /// Bytes of the messages that wait.
    pub(crate) fn kept(&self) -> u64 {
        self.kept
    }

    /// What was settled and not committed: the channel goes.
    pub(crate) fn take_settled(&mut self) -> Vec<UnackedDelivery> {
        std::mem::take(&mut self.settled)
    }

    /// Messages and settlements that wait.
    pub(crate) fn uncommitted(&self) -> (usize, usize) {
        let others = self.others.len() - self.mandatory;
        let publishes = self.publishes.iter().map(|(_, list)| list.len()).sum::<usize>();
        (publishes + others, self.settled.len())
    }
}

/// `tx.select`.
pub(crate) fn select(channel: &mut Channel, cx: &mut Context<'_>) -> Result<(), Fault> {
    match channel.mode {
        Mode::Confirm(_) => return Err(reply::confirm_to_tx()),
        Mode::Plain => channel.mode = Mode::Tx(Box::default()),
        Mode::Tx(_) => {}
    }
    cx.out.put_method(channel.number, &tx::SelectOk);
    Ok(())
}

/// `tx.commit`.
pub(crate) fn commit(
    core: &mut Core,
    channel: &mut Channel,
    cx: &mut Context<'_>,
) -> Result<(), Fault> {
    let Mode::Tx(open) = &mut channel.mode else { return Err(reply::not_transactional()) };
    let mut kept = std::mem::take(&mut **open);
    core.count_kept(kept.kept, 0);
    let mut some_returned = false;
    for other in kept.others {
        match other {
            Other::Direct(to, message) => direct::send(to, message, cx),
            Other::Return(message) => {
                returned::no_route(channel.number, core.frame_max, &message, cx);
            }
            Other::Mandatory(places, exchange) => {
                let lists = &mut kept.publishes;
                let at = |&(group, at): &(GroupId, u32)| lists.get(group)?.get(at as usize);
                let mut targets = places.iter().filter_map(at).flat_map(|it| &it.targets);
                if targets.any(|&id| cx.topology.queue_by_id(id).is_some()) {
                    continue;
                }
                if let Some(Publish { message, .. }) = places.first().and_then(at) {
                    returned::no_route(channel.number, core.frame_max, message, cx);
                }
                channel.published.count_returned(exchange);
                for (group, at) in places {
                    lists.of(group)[at as usize].targets = Targets::new();
                }
                some_returned = true;
            }
        }
    }
    if some_returned {
        let lists = kept.publishes.all_mut();
        lists.for_each(|list| list.retain(|publish| !publish.targets.is_empty()));
    }

    for (exchange, limit, message) in kept.remembered {
        let letter = ToShard::Remember { from: core.id, exchange, limit, message };
        cx.outbox.shard(cx.topology.history_home(exchange), letter);
    }
    let mut parts: ByGroup<Part> = kept.publishes.map(|messages| (messages, Vec::new()));
    for (group, settlements) in kept.settlements.into_all() {
        parts.of(group).1 = settlements;
    }
    channel.totals.taken.ack += kept.acks;
    channel.totals.reject += kept.settled.len() as u64 - kept.acks;
    for (queue, acked) in kept.acked.iter() {
        *channel.taken.of(queue) += acked;
    }
    if kept.consumed > 0 {
        let wakes = channel.limit.settled(kept.consumed);
        core.places_changed(channel.number, wakes);
    }

    let reply = core.reply_to(channel.number);
    let is_empty = |part: &Part| part.0.is_empty() && part.1.is_empty();
    let left = parts.iter().filter(|(_, part)| !is_empty(part)).count();
    let tx = TxId::new(core.random.next());
    for (group, part) in parts.into_all().filter(|(_, part)| !is_empty(part)) {
        let (messages, settlements) = part;
        let letter = match left {
            1 => ToShard::Commit { reply, messages, settlements },
            _ => ToShard::Prepare { reply, tx, parts: left as u32, messages, settlements },
        };
        core.batch.letter(group, core.id, letter, cx.outbox);
    }
    if left == 0 {
        cx.out.put_method(channel.number, &tx::CommitOk);
    } else {
        core.waiting = Some(WaitingCommand {
            channel: channel.number,
            method: COMMIT,
            no_wait: false,
            what: Awaited::Commit { left, refused: None },
        });
    }
    Ok(())
}

/// `tx.rollback`.
pub(crate) fn rollback(
    core: &mut Core,
    channel: &mut Channel,
    cx: &mut Context<'_>,
) -> Result<(), Fault> {
    let Mode::Tx(open) = &mut channel.mode else { return Err(reply::not_transactional()) };
    let kept = std::mem::take(&mut **open);
    core.count_kept(kept.kept, 0);
    for entry in &kept.settled {
        // While it was settled, nobody may have watched anything.
        deliver::watch(core, entry.slot, cx.now);
    }
    channel.unacked.restore(kept.settled);
    cx.out.put_method(channel.number, &tx::RollbackOk);
    Ok(())
}
