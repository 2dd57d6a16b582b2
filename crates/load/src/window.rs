//! Messages that wait for their confirm.
//!
//! Hot path: a ring of publish times by delivery tag; no allocation once built. Confirms of
//! messages that were published together are recorded together.

use crate::stats::{Counter, Tally};

/// What a producer has published and not seen confirmed.
#[derive(Debug)]
pub(crate) struct Window {
    limit: usize,
    /// Publish time by `tag % len`; 0 when settled. A power of two, at least twice the limit.
    ring: Vec<u64>,
    /// The oldest tag that is not settled.
    first: u64,
    /// The tag of the next publish. Tags count from 1.
    next: u64,
    waiting: usize,
    confirmed: u64,
    nacked: u64,
    /// Confirms in each frame that brought some, and how many frames in a row did.
    sizes: Vec<(u64, u64)>,
    /// Tags that were refused, if they are asked for.
    refused: Option<Vec<u64>>,
    /// Latency and number of messages, to be reported.
    latencies: Vec<(u64, u64)>,
}

impl Window {
    pub(crate) fn new(limit: usize) -> Self {
        let ring = vec![0; (limit.max(512) * 2).next_power_of_two()];
        Self {
            limit,
            ring,
            first: 1,
            next: 1,
            waiting: 0,
            confirmed: 0,
            nacked: 0,
            sizes: Vec::new(),
            refused: None,
            latencies: Vec::new(),
        }
    }

    /// From now on the tags that the broker refuses are kept.
    pub(crate) fn keep_refused(&mut self) {
        self.refused = Some(Vec::new());
    }

    /// The tags that were refused since the last time.
    pub(crate) fn take_refused(&mut self) -> Vec<u64> {
        self.refused.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The tags that wait for their confirm.
    pub(crate) fn unconfirmed(&self) -> impl Iterator<Item = u64> {
        (self.first..self.next).filter(|tag| self.ring[self.slot(*tag)] != 0)
    }

    /// How many messages may be published now.
    pub(crate) fn room(&self) -> usize {
        // The ring is the second limit: it fills when one confirm is much later than its followers.
        let span = (self.next - self.first) as usize;
        (self.limit - self.waiting).min(self.ring.len() - span)
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.waiting == 0
    }

    /// `count` messages, at most [`room`](Self::room), are published at `now_ns`.
    pub(crate) fn publish(&mut self, count: usize, now_ns: u64) {
        for tag in self.next..self.next + count as u64 {
            let slot = self.slot(tag);
            self.ring[slot] = now_ns.max(1);
        }
        self.next += count as u64;
        self.waiting += count;
    }

    /// A confirm has come. Unknown tags are ignored.
    pub(crate) fn settle(&mut self, tag: u64, multiple: bool, ack: bool, now_ns: u64) {
        let before = self.confirmed;
        for tag in self.range(tag, multiple) {
            let slot = self.slot(tag);
            let published = std::mem::take(&mut self.ring[slot]);
            if published != 0 {
                self.settled(now_ns.saturating_sub(published), ack);
                if let (false, Some(refused)) = (ack, &mut self.refused) {
                    refused.push(tag);
                }
            }
        }
        while self.first < self.next && self.ring[self.slot(self.first)] == 0 {
            self.first += 1;
        }
        if self.confirmed > before {
            count(&mut self.sizes, self.confirmed - before);
        }
    }

    /// The tags that a confirm is for; none of unknown ones.
    fn range(&self, tag: u64, multiple: bool) -> std::ops::Range<u64> {
        // Tag 0 with `multiple` stands for everything (AMQP 0-9-1 §1.8.3.13).
        let last = if tag == 0 && multiple { self.next - 1 } else { tag };
        if last < self.first || last >= self.next {
            return 0..0;
        }
        let from = if multiple { self.first } else { last };
        from..last + 1
    }

    /// The tag of the next message.
    pub(crate) fn next_tag(&self) -> u64 {
        self.next
    }

    /// The messages that a confirm would settle, and when they were published.
    pub(crate) fn covered(&self, tag: u64, multiple: bool) -> Vec<(u64, u64)> {
        let all = self.range(tag, multiple).map(|tag| (tag, self.ring[self.slot(tag)]));
        all.filter(|(_, published)| *published != 0).collect()
    }

    fn settled(&mut self, latency_ns: u64, ack: bool) {
        self.waiting -= 1;
        if !ack {
            self.nacked += 1;
            return;
        }
        self.confirmed += 1;
        count(&mut self.latencies, latency_ns);
    }

    /// Hands over what has come since the last time.
    pub(crate) fn report(&mut self, tally: &Tally) {
        tally.add(Counter::Confirmed, std::mem::take(&mut self.confirmed));
        tally.add(Counter::Nacked, std::mem::take(&mut self.nacked));
        if !self.latencies.is_empty() {
            tally.record_all(&self.latencies);
            self.latencies.clear();
        }
        if !self.sizes.is_empty() {
            tally.record_sizes(&self.sizes);
            self.sizes.clear();
        }
    }

    fn slot(&self, tag: u64) -> usize {
        tag as usize & (self.ring.len() - 1)
    }
}

/// One more of `value`; the same in a row are counted together.
fn count(values: &mut Vec<(u64, u64)>, value: u64) {
    match values.last_mut() {
        Some((last, count)) if *last == value => *count += 1,
        _ => values.push((value, 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_fills_and_empties() {
        let mut window = Window::new(3);
        window.publish(3, 10);
        assert_eq!(window.room(), 0);
        window.settle(2, false, true, 15); // out of order
        assert_eq!(window.room(), 1);
        window.publish(1, 20);
        assert_eq!(window.covered(0, true), [(1, 10), (3, 10), (4, 20)]);
        window.settle(4, true, true, 25); // 1, 3 and 4; 2 is settled already
        assert!(window.is_settled());
        assert_eq!((window.room(), window.confirmed), (3, 4));
        assert_eq!(window.latencies, [(5, 1), (15, 2), (5, 1)]);
        assert_eq!(window.sizes, [(1, 1), (3, 1)]);
        window.settle(4, false, true, 30); // twice
        window.settle(9, true, true, 30); // never published
        assert_eq!(window.confirmed, 4);
    }

    #[test]
    fn nacks_free_the_window() {
        let mut window = Window::new(2);
        window.publish(2, 1);
        window.settle(0, true, false, 2);
        assert_eq!((window.nacked, window.confirmed, window.room()), (2, 0, 2));
        assert!(window.sizes.is_empty());
        window.keep_refused();
        window.publish(2, 5);
        window.settle(3, false, false, 6);
        assert_eq!(window.unconfirmed().collect::<Vec<_>>(), [4]);
        assert_eq!((window.take_refused(), window.take_refused()), (vec![3], vec![]));
    }

    #[test]
    fn one_late_confirm_stops_the_producer_before_the_ring_wraps() {
        let mut window = Window::new(4);
        window.publish(1, 1);
        let mut published = 1;
        while window.room() > 0 {
            window.publish(1, 2);
            published += 1;
            window.settle(published, false, true, 3);
        }
        assert_eq!(published as usize, window.ring.len());
        window.settle(1, false, true, 3);
        assert_eq!(window.room(), 4);
    }
}
