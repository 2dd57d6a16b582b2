//! What happened in a queue since it was made, in counts that only grow.
//!
//! One addition per message and event, on a line of memory that the queue's own fields share: rates,
//! samples and metrics are made of these by whoever reads them now and then.
//!
//! ```text
//!   enqueued + restored = ready + unacked + acked + no-ack deliveries and gets
//!                         + dropped + dead-lettered + purged + moved
//! ```
//!
//! with what the queue lent counted as acked or dropped when it is settled.

use std::ops::{AddAssign, SubAssign};

use crate::message::Reason;

/// Counts by [`Reason`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByReason([u64; 4]);

impl ByReason {
    /// From the [counts](Self::counts) of other ones.
    pub const fn from_counts(counts: [u64; 4]) -> Self {
        Self(counts)
    }

    /// The counts, in the order of the reasons.
    pub const fn counts(&self) -> [u64; 4] {
        self.0
    }

    /// How many for this reason.
    pub const fn get(&self, reason: Reason) -> u64 {
        self.0[reason as usize]
    }

    /// How many in all.
    pub fn sum(&self) -> u64 {
        self.0.iter().sum()
    }

    #[inline]
    pub(crate) fn count(&mut self, reason: Reason) {
        self.0[reason as usize] += 1;
    }
}

impl AddAssign for ByReason {
    fn add_assign(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, one)| *sum += one);
    }
}

/// Totals of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Messages that came, those that were refused too.
    pub enqueued: u64,
    /// Bytes of their bodies.
    pub enqueued_bytes: u64,
    /// Messages that the log kept over a restart.
    pub restored: u64,
    /// Messages that were refused because the queue was full; they are dropped or dead-lettered, too.
    pub refused: u64,
    /// Handed to consumers that are to ack.
    pub delivered: u64,
    /// Handed to consumers that never ack.
    pub delivered_no_ack: u64,
    /// Bytes of the bodies handed out, in any way.
    pub delivered_bytes: u64,
    /// Handed out by `basic.get`, to be acked.
    pub got: u64,
    /// Handed out by `basic.get`, never to be acked.
    pub got_no_ack: u64,
    /// `basic.get` found nothing.
    pub get_empty: u64,
    /// Of all that was handed out: what had been before.
    pub redelivered: u64,
    /// Acked by `basic.ack`.
    pub acked: u64,
    /// Put back by a consumer, or because it went.
    pub requeued: u64,
    /// Gone for good, without a dead-letter exchange.
    pub dropped: ByReason,
    /// Handed over to the dead-letter exchange.
    pub dead_lettered: ByReason,
    /// Of those that were held until then: known to be safe in all their targets, as RabbitMQ counts what targets confirmed.
    pub dead_letters_confirmed: u64,
    /// Gone by `queue.purge`, or with the queue.
    pub purged: u64,
    /// Moved to another queue by an operator.
    pub moved: u64,
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.enqueued += other.enqueued;
        self.enqueued_bytes += other.enqueued_bytes;
        self.restored += other.restored;
        self.refused += other.refused;
        self.delivered += other.delivered;
        self.delivered_no_ack += other.delivered_no_ack;
        self.delivered_bytes += other.delivered_bytes;
        self.got += other.got;
        self.got_no_ack += other.got_no_ack;
        self.get_empty += other.get_empty;
        self.redelivered += other.redelivered;
        self.acked += other.acked;
        self.requeued += other.requeued;
        self.dropped += other.dropped;
        self.dead_lettered += other.dead_lettered;
        self.dead_letters_confirmed += other.dead_letters_confirmed;
        self.purged += other.purged;
        self.moved += other.moved;
    }
}

impl SubAssign for ByReason {
    fn sub_assign(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, one)| *sum -= one);
    }
}

impl SubAssign for Totals {
    fn sub_assign(&mut self, other: Self) {
        self.enqueued -= other.enqueued;
        self.enqueued_bytes -= other.enqueued_bytes;
        self.restored -= other.restored;
        self.refused -= other.refused;
        self.delivered -= other.delivered;
        self.delivered_no_ack -= other.delivered_no_ack;
        self.delivered_bytes -= other.delivered_bytes;
        self.got -= other.got;
        self.got_no_ack -= other.got_no_ack;
        self.get_empty -= other.get_empty;
        self.redelivered -= other.redelivered;
        self.acked -= other.acked;
        self.requeued -= other.requeued;
        self.dropped -= other.dropped;
        self.dead_lettered -= other.dead_lettered;
        self.dead_letters_confirmed -= other.dead_letters_confirmed;
        self.purged -= other.purged;
        self.moved -= other.moved;
    }
}
