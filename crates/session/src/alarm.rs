//! Alarms: when the broker runs short of memory, those who publish are not read until it is over.
//!
//! As in RabbitMQ a connection is blocked by its first publish after the alarm began, so that those that
//! only consume go on, and it is told so if it can take the telling.

use leveret_amqp::method::connection;

use crate::connection::Stage;
use crate::core::{Context, Core};

impl Core {
    /// A publish was read.
    pub(crate) fn publish_received(&mut self, cx: &mut Context<'_>) {
        if self.alarm.is_some() && !self.is_blocked && !self.peer_closed {
            self.block(cx);
        }
    }

    #[cold]
    fn block(&mut self, cx: &mut Context<'_>) {
        self.is_blocked = true;
        if let Some(reason) = self.alarm.filter(|_| self.capabilities.connection_blocked) {
            cx.out.put_method(0, &connection::Blocked { reason });
        }
    }

    /// An alarm begins, or ends.
    pub(crate) fn set_alarm(&mut self, alarm: Option<&'static str>, cx: &mut Context<'_>) {
        self.alarm = alarm;
        if alarm.is_none() && std::mem::take(&mut self.is_blocked) {
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
            Stage::Running if self.alarm.is_some() => "blocking",
            Stage::Running if self.pauses > 0 => "flow",
            stage => stage.name(),
        }
    }
}
