//! Bodies in output that its client does not take: memory that many connections keep together counts once.
//!
//! A message for a thousand queues is one body in memory, and the outputs of a thousand consumers borrow it. Counted
//! for each of them a few messages of a megabyte to some hundred clients that pause would be over the watermark, and
//! stop everybody. So the memory is counted, whoever holds it: in grains of addresses, since outputs cut a body into
//! frames of different lengths.
//!
//! Cold: only what waits for its socket comes here, and only bodies that are not copied then.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;

use crate::locks::{Rank, Ranked};

/// Bytes of a grain. A body has no more than one of them too many at each end.
const GRAIN: usize = 32 << 10;

/// What waits. Its clones are the same.
#[derive(Clone, Debug)]
pub struct Unread {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// How many hold each grain.
    holders: Ranked<HashMap<usize, u32, FixedState>>,
    bytes: AtomicU64,
}

/// Counts while the last part of it is there.
struct Held {
    body: Bytes,
    unread: Unread,
}

impl Default for Unread {
    fn default() -> Self {
        let holders = Ranked::new(Rank::Unread, HashMap::default());
        Self { inner: Arc::new(Inner { holders, bytes: AtomicU64::new(0) }) }
    }
}

impl Unread {
    /// Memory that is held, in bytes.
    pub fn bytes(&self) -> u64 {
        self.inner.bytes.load(Ordering::Relaxed)
    }

    /// The same bytes, which count from now on until they are dropped.
    pub(crate) fn hold(&self, body: Bytes) -> Bytes {
        let mut holders = self.inner.holders.lock();
        let mut new = 0;
        for grain in grains(&body) {
            let count = holders.entry(grain).or_default();
            new += usize::from(*count == 0) * GRAIN;
            *count += 1;
        }
        self.inner.bytes.fetch_add(new as u64, Ordering::Relaxed);
        drop(holders);
        Bytes::from_owner(Held { body, unread: self.clone() })
    }

    fn let_go(&self, body: &[u8]) {
        let mut holders = self.inner.holders.lock();
        let mut gone = 0;
        for grain in grains(body) {
            if let Some(count) = holders.get_mut(&grain) {
                *count -= 1;
                if *count == 0 {
                    holders.remove(&grain);
                    gone += GRAIN;
                }
            }
        }
        self.inner.bytes.fetch_sub(gone as u64, Ordering::Relaxed);
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.unread.let_go(&self.body);
    }
}

fn grains(body: &[u8]) -> std::ops::Range<usize> {
    let start = body.as_ptr() as usize;
    start / GRAIN..(start + body.len()).div_ceil(GRAIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many hold a body, and in whatever pieces, it counts once and until the last one lets it go.
    #[test]
    fn what_many_hold_counts_once() {
        let unread = Unread::default();
        let body = Bytes::from(vec![7; 1 << 20]);
        let cut = |len: usize| -> Vec<Bytes> {
            let starts = (0..body.len()).step_by(len);
            starts.map(|at| unread.hold(body.slice(at..body.len().min(at + len)))).collect()
        };
        let bound = (1 << 20)..=(1 << 20) + 2 * GRAIN as u64;
        let mut all: Vec<Vec<Bytes>> = [131_064, 65_528, 100_000].map(cut).into();
        while let Some(mut held) = all.pop() {
            assert!(bound.contains(&unread.bytes()), "{}", unread.bytes());
            assert!(held.iter().all(|part| part.iter().all(|&byte| byte == 7)));
            let _ = held[0].split_to(1000);
            assert!(bound.contains(&unread.bytes()), "{}", unread.bytes());
        }
        assert_eq!(unread.bytes(), 0);
        assert!(unread.inner.holders.lock().is_empty());
    }
}
