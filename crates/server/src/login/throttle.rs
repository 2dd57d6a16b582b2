//! Addresses with too many refused logins: their next ones are answered late.
//!
//! A bucket per address that leaks: each refused login is a drop, and one leaks every [`LEAK_MS`]. Above the
//! threshold each further drop doubles the delay. All of an address's logins wait, good ones too:
//! otherwise an answer that comes at once would be as good as "yes". The table is bounded: whoever has more
//! addresses than it has places is not held up by a delay anyway.

use std::net::IpAddr;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use leveret_auth::network_of;

/// How long until one refused login is forgotten.
const LEAK_MS: u64 = 10_000;
/// Delay of the first login beyond the threshold.
const FIRST_MS: u64 = 250;
/// Addresses that are known at once.
const ADDRESSES_MAX: usize = 10_000;

#[derive(Debug)]
pub(super) struct Throttle {
    threshold: u32,
    delay_max_ms: u64,
    addresses: HashMap<IpAddr, Bucket, RandomState>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    drops: u32,
    /// When the last drop fell or leaked.
    at_ms: u64,
}

impl Bucket {
    fn leaked(self, now_ms: u64) -> Self {
        let gone = now_ms.saturating_sub(self.at_ms) / LEAK_MS;
        let drops = u64::from(self.drops).saturating_sub(gone) as u32;
        Self { drops, at_ms: self.at_ms + gone * LEAK_MS }
    }
}

impl Throttle {
    pub(super) fn new(threshold: u32, delay_max_ms: u64) -> Self {
        Self { threshold, delay_max_ms, addresses: HashMap::default() }
    }

    /// How long the next login from there has to wait.
    pub(super) fn delay_ms(&self, from: IpAddr, now_ms: u64) -> u64 {
        if self.threshold == 0 {
            return 0;
        }
        let Some(bucket) = self.addresses.get(&network_of(from)) else { return 0 };
        let over = bucket.leaked(now_ms).drops.saturating_sub(self.threshold);
        match over {
            0 => 0,
            over => FIRST_MS.saturating_mul(1 << (over - 1).min(30)).min(self.delay_max_ms),
        }
    }

    /// A login from there was refused.
    pub(super) fn failed(&mut self, from: IpAddr, now_ms: u64) {
        if self.threshold == 0 {
            return;
        }
        let from = network_of(from);
        if !self.addresses.contains_key(&from) && self.addresses.len() >= ADDRESSES_MAX {
            self.addresses.retain(|_, bucket| bucket.leaked(now_ms).drops > 0);
            if self.addresses.len() >= ADDRESSES_MAX {
                return;
            }
        }
        let empty = Bucket { drops: 0, at_ms: now_ms };
        let bucket = self.addresses.entry(from).or_insert(empty);
        *bucket = bucket.leaked(now_ms);
        if bucket.drops == 0 {
            bucket.at_ms = now_ms;
        }
        // No more than what leads to the longest delay, so that it passes again in a time that can be told.
        bucket.drops = (bucket.drops + 1).min(self.threshold.saturating_add(16));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(last: u32) -> IpAddr {
        std::net::Ipv4Addr::from(last).into()
    }

    #[test]
    fn delays_grow_and_pass() {
        let mut throttle = Throttle::new(3, 2000);
        let mut delays = Vec::new();
        for _ in 0..9 {
            delays.push(throttle.delay_ms(v4(1), 0));
            throttle.failed(v4(1), 0);
        }
        assert_eq!(delays, [0, 0, 0, 0, 250, 500, 1000, 2000, 2000]);
        assert_eq!(throttle.delay_ms(v4(2), 0), 0, "another address");
        assert_eq!(throttle.delay_ms(v4(1), 5 * LEAK_MS), 250, "four are left");
        assert_eq!(throttle.delay_ms(v4(1), 6 * LEAK_MS), 0);
        assert_eq!(throttle.delay_ms(v4(1), u64::MAX), 0);
    }

    #[test]
    fn a_slow_trickle_is_never_late() {
        let mut throttle = Throttle::new(1, 2000);
        for n in 0..100 {
            let now_ms = n * LEAK_MS;
            assert_eq!(throttle.delay_ms(v4(1), now_ms), 0);
            throttle.failed(v4(1), now_ms);
        }
    }

    #[test]
    fn the_table_is_bounded() {
        let mut throttle = Throttle::new(1, 2000);
        for n in 0..20_000 {
            throttle.failed(v4(n), 0);
        }
        assert_eq!(throttle.addresses.len(), ADDRESSES_MAX);
        throttle.failed(v4(30_000), LEAK_MS);
        assert_eq!(throttle.addresses.len(), 1, "the others have leaked");
    }

    #[test]
    fn a_network_is_one_source() {
        let at = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(network_of(at("2001:db8::1")), network_of(at("2001:db8:0:ff::1")));
        assert_ne!(network_of(at("2001:db8::1")), network_of(at("2001:db8:0:100::1")));
    }

    #[test]
    fn zero_is_never() {
        let mut throttle = Throttle::new(0, 2000);
        for _ in 0..100 {
            throttle.failed(v4(1), 0);
        }
        assert_eq!(throttle.delay_ms(v4(1), 0), 0);
    }
}
