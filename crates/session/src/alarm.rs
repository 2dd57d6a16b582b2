//! Alarms: when the broker runs short of memory or disk, those who publish into what is full are not read
//! until it is over.
//!
//! As in RabbitMQ a connection is blocked by its first publish after the alarm began, so that those that
//! only consume go on, and it is told so if it can take the telling. Unlike there the publish has to be
//! one that keeps the alarm up, which the shard that it goes to tells, unless all are to be stopped; see
//! [`flow`](leveret_broker::flow). What a transaction publishes stays here, so that it is one always.
//!
//! A connection that is blocked is read from up to its next publish, which waits, and all that comes behind it. So bodies
//! that it is in the middle of get whole, which would count for as long as the alarm; and a client that stops when it is
//! told goes on acking, which is what ends the alarm. (RabbitMQ reads nothing of it.)

use leveret_amqp::method::connection;
use leveret_amqp::table::Table;
use leveret_broker::flow::Alarm;
use leveret_topology::weight;

use crate::channel::Mode;
use crate::connection::Stage;
use crate::core::{Context, Core};
use crate::reply::{self, Fault};
use crate::session::Session;

/// Bytes that something may take with which it is made whatever the memory.
const ARGUMENTS_MAX: u64 = 4 << 10;

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

    /// Whether it is read from though it is blocked.
    pub(crate) fn ends_bodies(&self) -> bool {
        !self.holds_publish && (self.in_read != 0 || self.unfinished.is_some())
    }

    /// Refuses to make something with large arguments while memory is so short that all are stopped who publish: who
    /// declares is not stopped, and what is declared is not consumed. What has few arguments is made.
    pub(crate) fn check_memory_for(&self, what: &str, arguments: &Table) -> Result<(), Fault> {
        self.check_memory(what, || weight::table(arguments))
    }

    /// The same for a binding, of which the key may be what takes the most.
    pub(crate) fn check_memory_to_bind(&self, key: &str, arguments: &Table) -> Result<(), Fault> {
        self.check_memory("a binding", || weight::binding(key, arguments))
    }

    fn check_memory(&self, what: &str, bytes: impl FnOnce() -> u64) -> Result<(), Fault> {
        if self.alarm.memory && self.alarm.stops_all {
            let bytes = bytes();
            if bytes > ARGUMENTS_MAX {
                return Err(reply::no_memory_for(what, bytes));
            }
        }
        Ok(())
    }

    /// An alarm begins, changes or ends.
    pub(crate) fn set_alarm(&mut self, alarm: Alarm, cx: &mut Context<'_>) {
        self.alarm = alarm;
        self.holds_publish &= alarm.is_raised();
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
            Stage::Running if self.pauses > 0 || self.is_slowed || self.unfinished.waits() => {
                "flow"
            }
            stage => stage.name(),
        }
    }
}

impl Session {
    /// While an alarm is raised: whether a method is a publish that has to wait until it is over.
    #[cold]
    pub(crate) fn holds_publish(
        &mut self,
        number: u16,
        payload: &[u8],
        cx: &mut Context<'_>,
    ) -> bool {
        if !payload.starts_with(&[0, 60, 0, 40]) || self.core.stage != Stage::Running {
            return false;
        }
        let Some(channel) = self.channels.get(number).filter(|channel| !channel.is_closing) else {
            return false;
        };
        self.core.publish_received(&channel.mode, cx);
        self.core.holds_publish = self.core.is_blocked;
        self.core.is_blocked
    }
}
