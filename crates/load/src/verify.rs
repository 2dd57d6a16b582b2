//! Verification: every message is accounted for.
//!
//! A body tells which producer of which run has made it, as the how-manieth, and carries a checksum. What
//! consumers see is noted by queue and producer, and compared in the end with what was published.
//!
//! ```text
//! 0       12     16         20      28          32
//! | stamp | run  | producer | number | checksum  | filler ...
//! |       | u32  | u32      | u64    | u32       |
//! ```
//!
//! The checksum is that of the filler followed by everything before it, so that the filler's part is
//! calculated once.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

/// The shortest body that can be verified.
pub(crate) const HEAD_BYTES: usize = 32;
const SUM_AT: usize = 28;

/// What a verified message says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) run: u32,
    pub(crate) producer: u32,
    pub(crate) number: u64,
}

impl Head {
    /// Writes the head behind the stamp of a body; `filler_sum` is the checksum of what follows.
    pub(crate) fn write(self, body: &mut [u8], filler_sum: u32) {
        let Some(head) = body.first_chunk_mut::<HEAD_BYTES>() else { return };
        head[12..16].copy_from_slice(&self.run.to_be_bytes());
        head[16..20].copy_from_slice(&self.producer.to_be_bytes());
        head[20..28].copy_from_slice(&self.number.to_be_bytes());
        let sum = crc32c::crc32c_append(filler_sum, &head[..SUM_AT]);
        head[SUM_AT..].copy_from_slice(&sum.to_be_bytes());
    }

    /// `None` when the body is damaged.
    pub(crate) fn read(body: &[u8]) -> Option<Self> {
        let (head, filler) = body.split_first_chunk::<HEAD_BYTES>()?;
        let u32_at =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let sum = crc32c::crc32c_append(crc32c::crc32c(filler), &head[..SUM_AT]);
        (u32_at(SUM_AT) == sum).then(|| Self {
            run: u32_at(12),
            producer: u32_at(16),
            number: u64::from(u32_at(20)) << 32 | u64::from(u32_at(24)),
        })
    }
}

/// A body of `size` to be verified, still without its head.
pub(crate) fn body(size: usize) -> Vec<u8> {
    // Neighbours differ, so that a shift is seen.
    (0..size).map(|at| (at % 251) as u8).collect()
}

/// The checksum of what follows the head.
pub(crate) fn filler_sum(body: &[u8]) -> u32 {
    crc32c::crc32c(body.get(HEAD_BYTES..).unwrap_or_default())
}

/// A delivery as a consumer has seen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) queue: usize,
    pub(crate) redelivered: bool,
    /// `None` when the body was damaged.
    pub(crate) head: Option<Head>,
    /// The same consumer had a later message of this producer and queue before.
    pub(crate) is_late: bool,
}

/// What the verification of a run has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Verification {
    /// Messages that did not reach a queue they were meant for, and nobody said so; `None` if consumers
    /// stopped before the queues were empty.
    pub lost: Option<u64>,
    /// Messages that came again without being marked as redelivered.
    pub duplicated: u64,
    /// Messages that came to a consumer after a later one of the same producer and queue.
    pub out_of_order: u64,
    /// Messages whose checksum was wrong.
    pub corrupt: u64,
    /// Messages that were marked as redelivered.
    pub redelivered: u64,
    /// Messages that the broker returned, refused or never confirmed: they may be missing.
    pub excused: u64,
    /// Messages of another run.
    pub foreign: u64,
}

impl Verification {
    /// Whether nothing is wrong.
    pub fn is_good(&self) -> bool {
        self.lost == Some(0) && self.duplicated + self.out_of_order + self.corrupt == 0
    }
}

impl std::fmt::Display for Verification {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.lost {
            Some(lost) => write!(f, "lost {lost}")?,
            None => write!(f, "lost unknown (consumers stopped before the queues were empty)")?,
        }
        let Self { duplicated, out_of_order, corrupt, redelivered, excused, foreign, .. } = self;
        write!(f, ", duplicated {duplicated}, out of order {out_of_order}, corrupt {corrupt}; ")?;
        write!(
            f,
            "redelivered {redelivered}, not confirmed or returned {excused}, of other runs {foreign}"
        )
    }
}

/// What was seen and published in a run.
#[derive(Debug)]
pub(crate) struct Ledger {
    run: u32,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// By queue, then by producer.
    tracks: Vec<Vec<Track>>,
    /// By producer.
    published: Vec<Published>,
    found: Verification,
}

/// Messages of one producer in one queue.
#[derive(Clone, Debug, Default)]
struct Track {
    /// After the highest number seen.
    next: u64,
    /// Numbers below that have not been seen.
    missing: BTreeSet<u64>,
}

#[derive(Clone, Debug, Default)]
struct Published {
    count: u64,
    excused: BTreeSet<u64>,
}

impl Track {
    /// Whether the number is new.
    fn see(&mut self, number: u64) -> bool {
        if number < self.next {
            return self.missing.remove(&number);
        }
        self.missing.extend(self.next..number);
        self.next = number + 1;
        true
    }

    fn unseen(&self, published: u64) -> impl Iterator<Item = u64> {
        self.missing.iter().copied().chain(self.next..published.max(self.next))
    }

    fn has_seen(&self, number: u64) -> bool {
        number < self.next && !self.missing.contains(&number)
    }
}

impl Ledger {
    pub(crate) fn new(run: u32, queues: usize, producers: usize) -> Self {
        let inner = Inner {
            tracks: vec![vec![Track::default(); producers]; queues],
            published: vec![Published::default(); producers],
            found: Verification::default(),
        };
        Self { run, inner: Mutex::new(inner) }
    }

    pub(crate) fn run(&self) -> u32 {
        self.run
    }

    /// Notes what a consumer has seen, in its order.
    pub(crate) fn see(&self, deliveries: &[Seen]) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { tracks, found, .. } = &mut *inner;
        for seen in deliveries {
            found.redelivered += u64::from(seen.redelivered);
            let Some(head) = seen.head else {
                found.corrupt += 1;
                continue;
            };
            let of_queue = tracks.get_mut(seen.queue);
            let track = of_queue.and_then(|of_queue| of_queue.get_mut(head.producer as usize));
            let Some(track) = track.filter(|_| head.run == self.run) else {
                found.foreign += 1;
                continue;
            };
            let is_new = track.see(head.number);
            // What comes again, marked as such, has been lost by nobody and owes nobody its place.
            if !seen.redelivered {
                found.duplicated += u64::from(!is_new);
                found.out_of_order += u64::from(is_new && seen.is_late);
            }
        }
    }

    /// Notes that a producer has published `count` messages in all.
    pub(crate) fn published(&self, producer: usize, count: u64) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.published[producer].count = count;
    }

    /// Notes messages that may be missing: returned, refused or never confirmed.
    pub(crate) fn excuse(&self, producer: usize, numbers: impl IntoIterator<Item = u64>) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(published) = inner.published.get_mut(producer) {
            published.excused.extend(numbers);
        }
    }

    /// Compares what was seen with what was published. `reaches` tells whether messages of a producer go to
    /// a queue, `None` if that is not known; a queue that nobody reads is `Some(false)`. Losses are not
    /// judged when not everything was read.
    pub(crate) fn judge(
        &self,
        has_read_all: bool,
        reaches: impl Fn(usize, usize) -> Option<bool>,
    ) -> Verification {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = inner.found;
        let excused = inner.published.iter().map(|published| published.excused.len() as u64);
        found.excused = excused.sum();
        found.lost = has_read_all.then(|| {
            let producers = inner.published.iter().enumerate();
            producers
                .map(|(producer, published)| inner.lost_of(producer, published, &reaches))
                .sum()
        });
        found
    }
}

impl Inner {
    fn lost_of(
        &self,
        producer: usize,
        published: &Published,
        reaches: impl Fn(usize, usize) -> Option<bool>,
    ) -> u64 {
        let queues = 0..self.tracks.len();
        let track = |queue: usize| &self.tracks[queue][producer];
        let is_owed = |number: &u64| !published.excused.contains(number);
        let known = queues.clone().filter(|queue| reaches(producer, *queue) == Some(true));
        let lost = known.map(|queue| track(queue).unseen(published.count).filter(is_owed).count());
        let mut lost = lost.sum::<usize>() as u64;
        // Where keys are unknown, a message has to be somewhere.
        let unknown: Vec<usize> =
            queues.filter(|queue| reaches(producer, *queue).is_none()).collect();
        if let [first, others @ ..] = &*unknown {
            let nowhere = track(*first)
                .unseen(published.count)
                .filter(is_owed)
                .filter(|number| !others.iter().any(|queue| track(*queue).has_seen(*number)));
            lost += nowhere.count() as u64;
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: u32 = 7;

    fn seen(queue: usize, producer: u32, number: u64) -> Seen {
        let head = Some(Head { run: RUN, producer, number });
        Seen { queue, redelivered: false, head, is_late: false }
    }

    fn ledger(deliveries: impl IntoIterator<Item = Seen>) -> Ledger {
        let ledger = Ledger::new(RUN, 2, 2);
        ledger.see(&deliveries.into_iter().collect::<Vec<_>>());
        ledger
    }

    fn judged(ledger: &Ledger) -> Verification {
        // Producer and queue of the same number belong together.
        ledger.judge(true, |producer, queue| Some(producer == queue))
    }

    #[test]
    fn a_faultless_run_is_good() {
        let ledger = ledger((0..100).flat_map(|number| [seen(0, 0, number), seen(1, 1, number)]));
        ledger.published(0, 100);
        ledger.published(1, 100);
        let found = judged(&ledger);
        assert!(found.is_good(), "{found}");
        assert_eq!(found, Verification { lost: Some(0), ..Verification::default() });
    }

    #[test]
    fn losses_are_counted_in_the_middle_and_at_the_end() {
        let ledger = ledger([0, 1, 4, 5].map(|number| seen(0, 0, number)));
        ledger.published(0, 8);
        ledger.published(1, 3); // none of which came
        assert_eq!(judged(&ledger).lost, Some(4 + 3));
        ledger.excuse(0, [2, 6]);
        let found = judged(&ledger);
        assert_eq!((found.lost, found.excused), (Some(2 + 3), 2));
        assert!(!found.is_good());
        assert_eq!(ledger.judge(false, |_, _| Some(true)).lost, None);
    }

    #[test]
    fn each_queue_that_a_message_is_meant_for_counts() {
        let ledger = ledger([seen(0, 0, 0), seen(0, 0, 1), seen(1, 0, 0)]);
        ledger.published(0, 2);
        assert_eq!(ledger.judge(true, |producer, _| Some(producer == 0)).lost, Some(1));
        // Somewhere is enough where keys are not known.
        assert_eq!(ledger.judge(true, |_, _| None).lost, Some(0));
        ledger.published(0, 3);
        assert_eq!(ledger.judge(true, |_, _| None).lost, Some(1));
    }

    #[test]
    fn repeated_messages_are_duplicates_unless_marked() {
        let again = Seen { redelivered: true, ..seen(0, 0, 0) };
        let ledger = ledger([seen(0, 0, 0), again, seen(0, 0, 1), seen(0, 0, 1)]);
        ledger.published(0, 2);
        let found = judged(&ledger);
        assert_eq!((found.duplicated, found.redelivered, found.lost), (1, 1, Some(0)));
    }

    #[test]
    fn late_messages_are_out_of_order_unless_marked() {
        let late = Seen { is_late: true, ..seen(0, 0, 1) };
        let back = Seen { is_late: true, redelivered: true, ..seen(0, 0, 3) };
        let ledger = ledger([seen(0, 0, 0), seen(0, 0, 2), late, seen(0, 0, 4), back]);
        ledger.published(0, 5);
        let found = judged(&ledger);
        assert_eq!((found.out_of_order, found.lost, found.duplicated), (1, Some(0), 0));
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        for size in [HEAD_BYTES, 50] {
            let mut bytes = body(size);
            let head = Head { run: RUN, producer: 3, number: 1 << 40 };
            let sum = filler_sum(&bytes);
            crate::stamp::write(&mut bytes, 9, 12345);
            head.write(&mut bytes, sum);
            assert_eq!(Head::read(&bytes), Some(head));
            for bit in 0..size * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Head::read(&bytes), None, "bit {bit}");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            assert_eq!(Head::read(&bytes[..size - 1]), None);
        }
        let damaged = Seen { head: None, ..seen(0, 0, 0) };
        let found = judged(&ledger([damaged]));
        assert_eq!((found.corrupt, found.is_good()), (1, false));
    }

    #[test]
    fn messages_of_other_runs_are_no_duplicates() {
        let other = Seen { head: Some(Head { run: 1, producer: 0, number: 0 }), ..seen(0, 0, 0) };
        let found = judged(&ledger([other, seen(0, 9, 0)]));
        assert_eq!((found.foreign, found.duplicated), (2, 0));
    }
}
