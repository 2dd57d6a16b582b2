//! Alarms: when the broker runs short of memory or disk, those who publish into what is full are not read
//! until it is over.
//!
//! As in RabbitMQ a connection is blocked by its first publish after the alarm began, so that those that
//! only consume go on, and it is told so if it can take the telling. Unlike there the publish has to be
//! one that keeps the alarm up, which the shard that it goes to tells, unless all are to be stopped; see
//! [`flow`](leveret_broker::flow). What a transaction publishes stays here, so that it is one always.

use leveret_amqp::method::connection;
use leveret_broker::flow::Alarm;

use crate::channel::Mode;
use crate::connection::Stage;
use crate::core::{Context, Core};

impl Core {
    /// A publish was read, or a part of one.
    #[inline]
    pub(crate) fn publish_received(&mut self, mode: &Mode, cx: &mut Context<'_>) {
        if self.alarm.is_raised() && (self.alarm.stops_all || matches!(mode, Mode::Tx(_))) {
            self.block(cx);
        }
    }

    /// What it published into is full. If the alarm is over meanwhile, that does not matter.
    pub(crate) fn stopped(&mut self, cx: &mut Context<'_>) {
        if self.alarm.is_raised() {
            self.block(cx);
        }
    }

    #[cold]
    fn block(&mut self, cx: &mut Context<'_>) {
        if self.peer_closed || std::mem::replace(&mut self.is_blocked, true) {
            return;
        }
        let can_be_told = self.capabilities.connection_blocked && self.stage == Stage::Running;
        if let Some(reason) = self.alarm.reason().filter(|_| can_be_told) {
            cx.out.put_method(0, &connection::Blocked { reason });
        }
    }

    /// An alarm begins, changes or ends.
    pub(crate) fn set_alarm(&mut self, alarm: Alarm, cx: &mut Context<'_>) {
        self.alarm = alarm;
        if !alarm.is_raised() && std::mem::take(&mut self.is_blocked) {
            let is_told = self.capabilities.connection_blocked && self.stage == Stage::Running;
            if is_told {
                cx.out.put_method(0, &connection::Unblocked);
            }
        }
    }

    /// RabbitMQ's word for what the connection does.
    pub(crate) fn state_name(&self) -> &'static str {
        match self.stage {
            Stage::Running if self.is_blocked => "blocked",
            Stage::Running if self.alarm.is_raised() => "blocking",
            Stage::Running if self.pauses > 0 || self.is_slowed => "flow",
            stage => stage.name(),
        }
    }
}
