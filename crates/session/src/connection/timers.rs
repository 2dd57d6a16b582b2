//! Times a connection looks at: the handshake's and the close's end, heartbeats, unacked deliveries.
//!
//! The heartbeat ticks twice per interval, whatever happens in between, so that traffic costs a flag, a count
//! and no timer. A tick writes a heartbeat if nothing but the last one's was written since then, so that an idle connection
//! has two per interval, as from RabbitMQ; four ticks in a row in which nothing was read end the connection, as RabbitMQ ends it after two intervals; one in which
//! it was the broker that did not read, as a command waited for its answer, is none of them. While
//! the output is so far behind that nothing is read, each tick has one read made: a client that neither
//! takes nor says anything is found out, and one that is slow but beats is not.

use leveret_broker::message::{ConsumerSlot, UnackedDelivery};
use leveret_queue::Time;

use crate::connection::Stage;
use crate::core::{Context, Core, End};
use crate::reply;
use crate::session::Session;

const NEVER: Time = Time::from_ms(u64::MAX);
/// How long a client that is not let in, or out of step, is left in silence, in ms.
const SILENCE_MS: u64 = 3000;
/// How long `close-ok` is waited for, in ms, if the heartbeat is not shorter.
const CLOSING_MS: u64 = 30_000;
/// Ticks without a byte before the client is taken for dead.
const MISSES_MAX: u8 = 4;
/// How long a shard that is called back is waited for, if others could be, in ms.
const CALL_MS: u64 = 100;
/// How often unacked deliveries are looked at, in ms.
const CHECK_MS: std::ops::RangeInclusive<u64> = 1000..=60_000;

#[derive(Debug)]
pub(crate) struct Timers {
    /// When the socket is closed whatever comes.
    deadline: Time,
    /// What is left of the handshake's time while it is paused, in ms.
    left_ms: u64,
    /// Half the interval in ms; 0 for no heartbeats.
    tick_ms: u64,
    tick: Time,
    misses: u8,
    pub(crate) has_read: bool,
    /// Since the last tick the session was not ready to read, though bytes came: what it has not seen may lie in
    /// the socket.
    pub(crate) was_busy: bool,
    /// One read is made though the output is far behind: whether the client lives is not known otherwise.
    pub(crate) listens: bool,
    /// How often something was written since the last tick.
    pub(crate) writes: u32,
    /// The last tick put a heartbeat: one write is its own.
    has_beaten: bool,
    /// When to look at unacked deliveries.
    check: Time,
    /// When what the client has shown is no longer good.
    expiry: Time,
    /// When it may be read or delivered to again.
    pace: Time,
    /// When to look whether what is unfinished moves.
    unfinished: Time,
    /// When other shards are called back.
    calls: Time,
}

impl Timers {
    pub(crate) fn new(now: Time, handshake_timeout_ms: u64) -> Self {
        Self {
            deadline: now.after_ms(handshake_timeout_ms),
            left_ms: 0,
            tick_ms: 0,
            tick: NEVER,
            misses: 0,
            has_read: false,
            was_busy: false,
            listens: false,
            writes: 0,
            has_beaten: false,
            check: NEVER,
            expiry: NEVER,
            pace: NEVER,
            unfinished: NEVER,
            calls: NEVER,
        }
    }

    /// What the client has shown is good until then.
    pub(crate) fn expire(&mut self, at: Option<Time>) {
        self.expiry = at.unwrap_or(NEVER);
    }

    /// Whether what the client has shown does not hold for ever.
    pub(crate) fn expires(&self) -> bool {
        self.expiry != NEVER
    }

    /// The interval, in seconds; 0 for no heartbeats.
    pub(crate) fn heartbeat_s(&self) -> u16 {
        u16::try_from(self.tick_ms * 2 / 1000).unwrap_or(u16::MAX)
    }

    pub(crate) fn start_heartbeat(&mut self, interval_s: u16, now: Time) {
        self.tick_ms = u64::from(interval_s) * 500;
        self.tick = if self.tick_ms == 0 { NEVER } else { now.after_ms(self.tick_ms) };
    }

    pub(crate) fn end_handshake(&mut self) {
        self.deadline = NEVER;
    }

    /// The handshake waits for us: how long others' logins take is not the client's time.
    pub(crate) fn pause_handshake(&mut self, now: Time) {
        self.left_ms = self.deadline.ms().saturating_sub(now.ms());
        self.deadline = NEVER;
    }

    /// It waits for the client again.
    pub(crate) fn resume_handshake(&mut self, now: Time) {
        self.deadline = now.after_ms(self.left_ms);
    }

    pub(crate) fn give_up_silently(&mut self, now: Time) {
        self.deadline = now.after_ms(SILENCE_MS);
        self.stop();
    }

    pub(crate) fn await_close_ok(&mut self, now: Time) {
        let heartbeat_ms = self.tick_ms * 2;
        let ms = if (1..CLOSING_MS).contains(&heartbeat_ms) { heartbeat_ms } else { CLOSING_MS };
        self.deadline = now.after_ms(ms);
        self.stop();
    }

    fn stop(&mut self) {
        self.tick = NEVER;
        self.check = NEVER;
        self.expiry = NEVER;
        self.pace = NEVER;
        self.unfinished = NEVER;
        self.calls = NEVER;
    }

    /// Rates are looked at again after so many ms, if any.
    pub(crate) fn pace(&mut self, wait_ms: u64, now: Time) {
        if wait_ms > 0 {
            self.pace = self.pace.min(now.after_ms(wait_ms));
        }
    }

    /// From now on something has to move in each `timeout_ms`. Once it does not have to, the next look finds so.
    #[inline]
    pub(crate) fn watch_unfinished(&mut self, timeout_ms: u64, now: Time) {
        if self.unfinished == NEVER {
            self.unfinished = now.after_ms(timeout_ms);
        }
    }

    /// A shard was called back, or is waited for still.
    pub(crate) fn watch_calls(&mut self, now: Time) {
        if self.calls == NEVER {
            self.calls = now.after_ms(CALL_MS);
        }
    }

    /// From now on something may stay unacked for `timeout_ms` and no longer.
    pub(crate) fn watch_unacked(&mut self, timeout_ms: u64, now: Time) {
        let at = now.after_ms((timeout_ms / 4).clamp(*CHECK_MS.start(), *CHECK_MS.end()));
        self.check = self.check.min(at);
    }

    pub(crate) fn is_watching(&self) -> bool {
        self.check != NEVER
    }

    pub(crate) fn next(&self) -> Option<Time> {
        let next = self.deadline.min(self.tick).min(self.check).min(self.expiry).min(self.pace);
        let next = next.min(self.unfinished).min(self.calls);
        (next != NEVER).then_some(next)
    }
}

impl Core {
    /// One tick of the heartbeat. False when the client is taken for dead.
    fn tick(&mut self, is_read: bool, cx: &mut Context<'_>) -> bool {
        let timers = &mut self.timers;
        timers.tick = cx.now.after_ms(timers.tick_ms);
        let is_idle = std::mem::take(&mut timers.writes) <= u32::from(timers.has_beaten);
        // What waits in the buffer will be written as soon as the socket takes it.
        timers.has_beaten = is_idle && cx.out.is_empty();
        if timers.has_beaten {
            cx.out.put_heartbeat();
        }
        if std::mem::take(&mut timers.has_read) || !is_read {
            timers.misses = 0;
        } else {
            timers.misses += 1;
        }
        timers.misses < MISSES_MAX
    }
}

impl Session {
    /// Does what is due.
    pub(crate) fn on_timeout(&mut self, cx: &mut Context<'_>) {
        if self.core.timers.deadline <= cx.now {
            tracing::debug!(
                peer = %self.core.peer.address, state = self.core.stage.name(), "time is up"
            );
            self.core.timers.deadline = NEVER;
            self.give_up(cx);
            return;
        }
        if self.core.timers.tick <= cx.now {
            let was_busy = std::mem::take(&mut self.core.timers.was_busy);
            let is_read = self.wants_input() && !was_busy;
            // Has an effect only where it is the output that stops the reading.
            self.core.timers.listens = true;
            if !self.core.tick(is_read, cx) {
                let timeout_s = self.core.timers.heartbeat_s();
                let why = format_args!("missed heartbeats from client, timeout: {timeout_s}s");
                self.core.say_lost(why, cx.now);
                self.give_up(cx);
                return;
            }
        }
        if self.core.timers.check <= cx.now {
            self.check_unacked(cx);
        }
        if self.core.timers.pace <= cx.now {
            self.core.timers.pace = NEVER;
            self.core.pace_again(cx);
        }
        if self.core.timers.unfinished <= cx.now {
            self.core.timers.unfinished = NEVER;
            self.check_unfinished(cx);
        }
        if self.core.timers.calls <= cx.now {
            self.core.timers.calls = NEVER;
            if let Some(allowances) = &mut self.core.allowances {
                allowances.call_on();
            }
        }
        if self.core.timers.expiry <= cx.now {
            self.core.timers.expiry = NEVER;
            self.expired(cx);
        }
    }

    /// What the client has shown is no longer good, and it showed nothing newer.
    fn expired(&mut self, cx: &mut Context<'_>) {
        match self.core.stage {
            Stage::Running => self.fail(0, (0, 0), &reply::credential_expired(), cx),
            _ => {
                self.core.say_lost("credential expired", cx.now);
                self.give_up(cx);
            }
        }
    }

    /// The socket is closed without a word.
    pub(crate) fn give_up(&mut self, cx: &mut Context<'_>) {
        self.let_go(false, cx);
        self.core.timers.stop();
        self.core.stage = Stage::Ended;
        self.core.end = Some(End::Now);
    }

    /// Closes channels on which a delivery waits too long for its ack. Looks only at what has waited for longer than the
    /// shortest time.
    fn check_unacked(&mut self, cx: &mut Context<'_>) {
        self.core.timers.check = NEVER;
        let now_s = crate::deliver::seconds(&self.core, cx.now);
        let Some(shortest_ms) = self.core.shortest_timeout() else { return };
        let mut late: Vec<(u16, u64, UnackedDelivery)> = Vec::new();
        for channel in self.channels.iter() {
            if channel.unacked.len() > 0 {
                self.core.timers.watch_unacked(shortest_ms, cx.now);
            }
            for entry in channel.unacked.iter() {
                let waited_ms = u64::from(now_s.saturating_sub(entry.delivered_s)) * 1000;
                if waited_ms <= shortest_ms {
                    // The others are younger.
                    break;
                }
                let timeout_ms = self.core.timeout_of(entry.slot);
                if let Some(timeout_ms) = timeout_ms.filter(|&timeout_ms| waited_ms > timeout_ms) {
                    late.push((channel.number, timeout_ms, *entry));
                    break;
                }
            }
        }
        for (number, timeout_ms, entry) in late {
            let queue = cx.topology.queue_by_id(entry.queue);
            let consumer = self.core.consumers.get(ConsumerSlot(entry.slot));
            tracing::warn!(
                from = &*self.core.identity.user,
                connection = &*self.core.name_in_log(),
                channel = number,
                consumer_tag = consumer.map_or("(basic.get)", |consumer| &consumer.tag),
                queue = queue.map(|queue| &*queue.name),
                vhost = &*self.core.identity.vhost_name,
                delivery_tag = entry.tag,
                timeout_ms,
                "a consumer has not acked a delivery in time: its channel is closed"
            );
            self.fail(number, (0, 0), &reply::ack_timed_out(number, timeout_ms), cx);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_handshake_waits_for_us() {
        let at = Time::from_ms;
        let mut timers = Timers::new(at(0), 1000);
        assert_eq!(timers.next(), Some(at(1000)));
        timers.pause_handshake(at(400));
        assert_eq!(timers.next(), None);
        timers.resume_handshake(at(5000));
        assert_eq!(timers.next(), Some(at(5600)));
        timers.end_handshake();
        assert_eq!(timers.next(), None);
    }
}
