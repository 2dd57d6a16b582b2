//! Ends: of a channel by an exception, of the connection by either side or without a word.

use std::collections::VecDeque;
use std::sync::Arc;

use leveret_amqp::method::{channel, connection};
use leveret_broker::message::{ConsumerSlot, GivenBack, Settle, ToMeta, ToShard, UnackedDelivery};

use crate::channel::content::Stake;
use crate::channel::{Channel, Mode};
use crate::connection::Stage;
use crate::core::{Context, Core, End};
use crate::reply::Fault;
use crate::session::Session;
use crate::settle;
use crate::waiting::{Awaited, WaitingCommand};

impl Core {
    /// Nothing more is read; the socket closes when what waits is written.
    pub(crate) fn end_after_flush(&mut self) {
        self.stage = Stage::Ended;
        self.end = Some(End::AfterFlush);
    }

    /// `connection.close` was answered.
    pub(crate) fn end_after_peer(&mut self) {
        self.stage = Stage::Ended;
        self.end = Some(End::AfterPeer);
    }

    /// A channel goes: its consumers are cancelled, what it has not settled goes back.
    pub(crate) fn release(&mut self, channel: &mut Channel, cx: &mut Context<'_>) {
        self.tell_channel_closed(channel, cx);
        // Consumers first, or what goes back could come to them again.
        self.cancel_consumers(channel, cx);
        let mut rest = Vec::new();
        self.give_back(channel, &mut rest);
        self.hand_over(rest, cx);
    }

    fn cancel_consumers(&mut self, channel: &mut Channel, cx: &mut Context<'_>) {
        let mut slots: Vec<ConsumerSlot> = channel.tags.drain().collect();
        slots.sort_unstable();
        for slot in slots {
            if let Some(consumer) = self.remove_consumer(slot) {
                channel.keep_totals_of(&consumer);
                let (connection, queue) = (self.id, consumer.queue);
                self.send_to(
                    consumer.home,
                    ToShard::Cancel { user: Box::default(), reply: None, connection, queue, slot },
                    cx,
                );
            }
        }
    }

    /// What a channel has not settled goes back to its queues. What does not fit the turn is left in `rest`.
    fn give_back(&mut self, channel: &mut Channel, rest: &mut Vec<VecDeque<UnackedDelivery>>) {
        if self.in_read == channel.number {
            self.in_read = 0;
        }
        // What was heard before the end counts.
        settle::settle_rest(self, channel);
        self.unfinished.change(channel.content.stake(), Stake::default());
        if let Mode::Tx(tx) = &mut channel.mode {
            self.count_kept(tx.kept(), 0);
            let settled = tx.take_settled();
            self.return_all(settled.into(), rest);
        }
        let unacked = channel.unacked.take_all();
        self.return_all(unacked, rest);
        if let Mode::Confirm(confirms) = &channel.mode {
            self.confirm_base = self.confirm_base.max(confirms.next_sequence() - 1);
        }
        self.keep_totals(channel);
        channel.mode = Mode::Plain;
        channel.direct_reply = None;
        channel.content.reset();
    }

    fn return_all(
        &mut self,
        unsettled: VecDeque<UnackedDelivery>,
        rest: &mut Vec<VecDeque<UnackedDelivery>>,
    ) {
        if unsettled.is_empty() {
            return;
        }
        let spent = self.turn_spent.saturating_add(unsettled.len());
        // Below it, since it leaves nothing of the input to another turn. What comes after a rest stands behind it.
        if rest.is_empty() && spent < self.settings.turn_spent_max {
            self.turn_spent = spent;
            let how = Settle::Requeue { counts: true };
            for entry in unsettled.iter().filter(|entry| entry.slot != UnackedDelivery::HOLE) {
                self.settle(entry, how);
            }
        } else {
            rest.push(unsettled);
        }
    }

    /// What channels have not settled and the turn has no room for goes to the shards as it is, in one letter for each.
    fn hand_over(&mut self, rest: Vec<VecDeque<UnackedDelivery>>, cx: &mut Context<'_>) {
        if rest.is_empty() {
            return;
        }
        // It came from groups that this connection asked for something.
        let groups: Vec<_> = self.batch.used().collect();
        let unsettled = Arc::new(GivenBack::new(rest, groups.len()));
        for group in groups {
            let unsettled = Arc::clone(&unsettled);
            self.send_to(group, ToShard::GiveBack { from: self.id, unsettled }, cx);
        }
    }

    /// What the channel counted stays with the connection. Once: nothing more is counted in it.
    fn keep_totals(&mut self, channel: &mut Channel) {
        self.totals.channels += channel.counted();
        for (exchange, totals) in channel.published.iter() {
            *self.totals.exchanges.entry(exchange).or_default() += totals;
        }
        channel.totals = Default::default();
        channel.published = Default::default();
        channel.taken = Default::default();
        channel.unconfirmable = 0;
        self.totals.channels_closed += u64::from(!channel.is_closing);
    }
}

impl Session {
    /// A mistake of the client, on a channel or (0) on the connection.
    #[cold]
    pub(crate) fn fail(
        &mut self,
        number: u16,
        method: (u16, u16),
        fault: &Fault,
        cx: &mut Context<'_>,
    ) {
        let text = fault.reply_text();
        let (class_id, method_id) = fault.method.unwrap_or(method);
        let core = &mut self.core;
        if !core.stage.is_open() {
            return;
        }
        let reply_code = fault.code.code();
        match self.channels.get(number) {
            Some(channel) if number != 0 && !fault.code.is_hard() => {
                if channel.is_closing {
                    return;
                }
                core.say_channel_error(number, (class_id, method_id), fault);
                core.release(channel, cx);
                channel.is_closing = true;
                let close = channel::Close { reply_code, reply_text: &text, class_id, method_id };
                cx.out.put_method(number, &close);
            }
            _ => {
                core.say_connection_error(number, (class_id, method_id), fault);
                let close =
                    connection::Close { reply_code, reply_text: &text, class_id, method_id };
                self.close(&close, cx);
            }
        }
    }

    /// Sends `connection.close` and waits for the answer.
    pub(crate) fn close(&mut self, method: &connection::Close<'_>, cx: &mut Context<'_>) {
        let was_running = self.core.stage == Stage::Running;
        self.let_go(false, cx);
        cx.out.put_method(0, method);
        self.core.stage = Stage::Closed;
        self.core.decoder.skim();
        if was_running {
            self.core.timers.await_close_ok(cx.now);
        } else {
            self.core.timers.give_up_silently(cx.now);
        }
    }

    /// `connection.close` was read.
    pub(crate) fn close_requested(&mut self, method: &connection::Close<'_>, cx: &mut Context<'_>) {
        let core = &self.core;
        tracing::debug!(
            peer = %core.peer.address, code = method.reply_code, "the client closes: {}", method.reply_text
        );
        if core.stage != Stage::Running {
            cx.out.put_method(0, &connection::CloseOk);
            self.core.end_after_peer();
            return;
        }
        self.let_go(true, cx);
        let what = Awaited::Close { left: 1 + self.core.batch.used().count() };
        self.core.stage = Stage::Closing;
        self.core.timers.await_close_ok(cx.now);
        self.core.waiting =
            Some(WaitingCommand { channel: 0, method: (10, 50), no_wait: false, what });
    }

    /// Gives back everything, and tells everybody that the connection is gone. Once.
    pub(crate) fn let_go(&mut self, with_reply: bool, cx: &mut Context<'_>) {
        let core = &mut self.core;
        if std::mem::replace(&mut core.is_told, true) {
            return;
        }
        // The consumers of all channels first: what one channel gives back must not go to a consumer
        // of another, who would never see it.
        for channel in self.channels.iter_mut() {
            core.tell_channel_closed(channel, cx);
            core.cancel_consumers(channel, cx);
        }
        let mut rest = Vec::new();
        for channel in self.channels.iter_mut() {
            core.give_back(channel, &mut rest);
        }
        core.hand_over(rest, cx);
        self.channels = Default::default();
        core.unfinished.ends_in_frame(0, 0);
        if let Some(cache) = &mut core.cache {
            cache.end();
        }
        core.counted = Default::default();
        core.batch.flush(core.id, cx.outbox);
        let (connection, reply) = (core.id, with_reply.then(|| core.reply_to(0)));
        for shard in core.batch.used() {
            cx.outbox.shard(shard, ToShard::Disconnected { connection, reply });
        }
        core.tell_closed(cx);
        if core.stage == Stage::Running {
            cx.outbox.meta.push(ToMeta::Disconnected { connection, reply });
        }
    }
}
