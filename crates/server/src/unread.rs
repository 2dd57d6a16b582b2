//! Bodies in output that its client does not take: memory that many connections keep together counts once.
//!
//! A message for a thousand queues is one body in memory, and the outputs of a thousand consumers borrow it. Counted
//! for each of them a few messages of a megabyte to some hundred clients that pause would be over the watermark, and
//! stop everybody. So the memory is counted, whoever holds it, and all of a body while any of it waits: its last frame
//! keeps what was written of it in memory, too.
//!
//! Cold: only what waits for its socket comes here, and only bodies that are not copied then.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use crate::locks::{Rank, Ranked};

/// What waits. Its clones are the same.
#[derive(Clone, Debug)]
pub struct Unread {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// How many hold each body, by its address and length.
    holders: Ranked<HashMap<(usize, usize), u32, FixedState>>,
    bytes: AtomicU64,
}

/// A body that counts until it is dropped.
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
        let count = holders.entry(place(&body)).or_default();
        if *count == 0 {
            self.inner.bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
        }
        *count += 1;
        drop(holders);
        Bytes::from_owner(Held { body, unread: self.clone() })
    }

    fn let_go(&self, body: &[u8]) {
        let mut holders = self.inner.holders.lock();
        if let Entry::Occupied(mut count) = holders.entry(place(body)) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
                self.inner.bytes.fetch_sub(body.len() as u64, Ordering::Relaxed);
            }
        }
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

fn place(body: &[u8]) -> (usize, usize) {
    (body.as_ptr() as usize, body.len())
}

#[cfg(test)]
mod tests {
    use leveret_amqp::outbuf::OutBuf;

    use super::*;

    /// However many hold a body, and however much of it they have written, it counts once and until the last lets it go.
    #[test]
    fn what_many_hold_counts_once() {
        const LEN: usize = 1 << 20;
        let unread = Unread::default();
        let body = Bytes::from(vec![7; LEN]);
        let mut outputs: Vec<OutBuf> = [131_072, 65_536, 4096, 0]
            .map(|frame_max| {
                let mut out = OutBuf::new();
                out.put_body(1, &body, frame_max);
                out.advance(LEN / 2);
                out.detach(1000, |body| unread.hold(body));
                out
            })
            .into();
        let last = outputs.remove(0);
        assert_eq!(unread.bytes(), LEN as u64);
        for out in &mut outputs {
            out.advance(LEN / 4);
        }
        assert_eq!(unread.bytes(), LEN as u64);
        outputs.clear();
        assert_eq!(unread.bytes(), LEN as u64);
        let other = unread.hold(Bytes::from(vec![8; 1000]));
        assert_eq!(unread.bytes(), LEN as u64 + 1000);
        drop(last);
        assert_eq!((&*other, unread.bytes()), (&[8; 1000][..], 1000));
        drop(other);
        assert_eq!(unread.bytes(), 0);
        assert!(unread.inner.holders.lock().is_empty());
    }
}
