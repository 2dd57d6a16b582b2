//! What the driver says of the world outside before a turn: alarms, clocks, processors.

use leveret_queue::Time;

use crate::flow::Alarm;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Outside {
    /// What is short now.
    pub(super) alarm: Alarm,
    /// How far the system's clock is from what turns are told.
    pub(super) clock_step_ms: i64,
    /// The time of a turn in microseconds, if that is told.
    pub(super) micros: u64,
    /// Processors are short.
    pub(super) is_pressed: bool,
    /// When it was last said that copies for the firehose are left out.
    left_out_at: Option<Time>,
}

impl Outside {
    /// What the system's clock shows.
    #[inline]
    pub(super) fn wall(&self, now: Time) -> Time {
        Time::from_ms(now.ms().saturating_add_signed(self.clock_step_ms))
    }

    /// Copies for the firehose are left out because of an alarm. There may be many: one line a second.
    #[cold]
    pub(super) fn say_left_out(&mut self, now: Time) {
        if self.left_out_at.is_none_or(|at| at.after_ms(1_000) <= now) {
            self.left_out_at = Some(now);
            tracing::warn!(
                "copies of messages for amq.rabbitmq.trace are left out of queues that hold much, as an alarm is on"
            );
        }
    }
}
