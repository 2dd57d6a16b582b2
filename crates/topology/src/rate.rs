//! How fast a vhost or a user may publish, and be delivered to: buckets that its connections share.
//!
//! A bucket holds what may pass in [`BURST_US`] and fills at its rate. What passes is taken out, even if it holds
//! less; who took it waits then until it is full enough again. So a burst is paid for afterwards, and the average
//! is kept. A bucket is one number, when it will be full of what passed so far; connections on all
//! threads change it without a lock. New limits come with new buckets: nobody pays by an old rate.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leveret_queue::Time;

use crate::id::VhostId;
use crate::topology::Topology;

/// What may pass at once, as a time at the bucket's rate.
const BURST_US: u64 = 1_000_000;
/// The longest wait that is told: limits may change meanwhile.
const WAIT_US_MAX: u64 = 1_000_000;

/// Limits that are rates, per second: messages and bytes published, messages delivered.
pub const RATE_LIMITS: [&str; 3] =
    ["max-publish-rate", "max-publish-bytes-rate", "max-deliver-rate"];

/// A vhost's or a user's buckets, in the order of [`RATE_LIMITS`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Buckets([Arc<AtomicU64>; 3]);

/// One bucket and its rate.
#[derive(Debug)]
struct Limited {
    /// Microseconds since 1970.
    empty_us: Arc<AtomicU64>,
    per_second: u64,
}

impl Limited {
    /// Takes out so much; how long to wait then, in microseconds.
    fn take(&self, count: u64, now_us: u64) -> u64 {
        let cost = match (count, self.per_second) {
            (0, _) => 0,
            // Nothing may pass: what did is never paid.
            (_, 0) => u64::MAX / 4,
            (count, rate) => count.saturating_mul(1_000_000) / rate,
        };
        let later = |empty: u64| empty.max(now_us).saturating_add(cost);
        let before = self
            .empty_us
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |empty| Some(later(empty)));
        let empty = later(before.unwrap_or(now_us));
        empty.saturating_sub(now_us.saturating_add(BURST_US))
    }
}

/// The rates that a connection keeps to: its vhost's and its user's.
#[derive(Debug, Default)]
pub struct Rates([Vec<Limited>; 3]);

impl Rates {
    /// So many messages and bytes were published. How long to read no further, in ms; 0 for not at all.
    pub fn published(&self, messages: u64, bytes: u64, now: Time) -> u64 {
        self.take(0, messages, now).max(self.take(1, bytes, now))
    }

    /// So many messages were delivered. How long to deliver no more, in ms; 0 for not at all.
    pub fn delivered(&self, messages: u64, now: Time) -> u64 {
        self.take(2, messages, now)
    }

    fn take(&self, kind: usize, count: u64, now: Time) -> u64 {
        let now_us = now.ms().saturating_mul(1000);
        let waits = self.0[kind].iter().map(|limited| limited.take(count, now_us));
        waits.max().unwrap_or_default().min(WAIT_US_MAX).div_ceil(1000)
    }
}

impl Topology {
    /// The rates of a user in a vhost; none when there is no limit.
    ///
    /// They hold while [`access_generation`](Self::access_generation) stays the same.
    pub fn rates(&self, user: &str, vhost: VhostId) -> Option<Rates> {
        let vhost = self.vhost_by_id(vhost).map(|it| (&it.limits, &it.rates));
        let user = self.user(user).map(|it| (&it.limits, &it.rates));
        let mut rates = Rates::default();
        for (limits, buckets) in vhost.into_iter().chain(user) {
            rates.add(limits, buckets);
        }
        rates.0.iter().any(|limited| !limited.is_empty()).then_some(rates)
    }
}

impl Rates {
    fn add(&mut self, limits: &BTreeMap<String, i64>, buckets: &Buckets) {
        for ((name, bucket), into) in RATE_LIMITS.iter().zip(&buckets.0).zip(&mut self.0) {
            let limit = limits.get(*name).and_then(|&limit| u64::try_from(limit).ok());
            into.extend(
                limit.map(|per_second| Limited { empty_us: Arc::clone(bucket), per_second }),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::user::PasswordHash;

    fn limited(vhost: &[(&str, i64)], user: &[(&str, i64)]) -> (Topology, VhostId) {
        let owned = |limits: &[(&str, i64)]| {
            limits.iter().map(|(name, limit)| ((*name).to_owned(), *limit)).collect()
        };
        let mut topology = Topology::new();
        let id = topology.add_vhost("/").unwrap();
        topology.add_user("u", PasswordHash::new("p", [0; 4]), &[]).unwrap();
        topology.set_user_limits("u", owned(user)).unwrap();
        topology.vhost_mut(id).unwrap().limits = owned(vhost);
        (topology, id)
    }

    fn at(ms: u64) -> Time {
        Time::from_ms(1_000_000 + ms)
    }

    #[test]
    fn the_average_is_kept() {
        let (topology, id) = limited(&[("max-publish-rate", 100)], &[]);
        let rates = topology.rates("u", id).unwrap();
        assert_eq!(rates.published(100, 1 << 30, at(0)), 0, "the burst");
        assert_eq!(rates.published(10, 0, at(0)), 100);
        assert_eq!(rates.published(0, 0, at(60)), 40);
        assert_eq!(rates.published(0, 0, at(100)), 0);
        assert_eq!(rates.delivered(1_000_000, at(0)), 0, "no limit");
        // Another connection's share is the same bucket.
        assert_eq!(topology.rates("u", id).unwrap().published(5, 0, at(100)), 50);
        // Ten seconds at the rate, whatever the pieces.
        let (mut now, mut sent) = (200, 0);
        while now < 10_200 {
            sent += 7;
            now += rates.published(7, 0, at(now));
        }
        assert!((1000..=1014).contains(&sent), "{sent}");
        // What was not used is kept for a second, no longer.
        assert_eq!(rates.published(100, 0, at(60_000)), 0);
        assert_eq!(rates.published(1, 0, at(60_000)), 10);
    }

    #[test]
    fn the_strictest_counts() {
        let vhost = [("max-publish-rate", 100), ("max-publish-bytes-rate", 1000)];
        let (topology, id) = limited(&vhost, &[("max-publish-rate", 10), ("max-deliver-rate", -1)]);
        let rates = topology.rates("u", id).unwrap();
        assert_eq!(rates.published(11, 0, at(0)), 100);
        assert_eq!(rates.published(0, 1500, at(0)), 500);
        assert_eq!(rates.delivered(1_000_000, at(0)), 0, "a negative limit is none");
        assert!(topology.rates("nobody", id).is_some(), "the vhost's");
        assert!(limited(&[("max-queues", 5)], &[]).0.rates("u", id).is_none());
    }

    #[test]
    fn nothing_may_pass() {
        let (topology, id) = limited(&[("max-deliver-rate", 0)], &[]);
        let rates = topology.rates("u", id).unwrap();
        assert_eq!(rates.delivered(0, at(0)), 0);
        assert_eq!(rates.delivered(1, at(0)), 1000, "is asked again, as limits may change");
        assert_eq!(rates.delivered(0, at(100_000)), 1000);
    }
}
