//! Memory of large records that are gone, kept for the next ones.
//!
//! Hot path: one or two looks for a large record, no fresh page while they come and go.
//!
//! The allocator gives free memory back to the system soon, for the sake of backlogs. It then comes back page by
//! page: a fault for each 4 KiB, which costs a third of the copying.
//!
//! A record without a holder may still be read by a connection that writes it to a socket. So the newest memory, which is in the
//! cache, is used if no connection reads it, otherwise the oldest; if that is still being read, fresh memory.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Bytes that are kept, at most: a hundred messages of 64 KiB, which may be in flight at one moment and settled at the
/// next. With half of it such a stream has a fault every few messages.
const KEPT_MAX: usize = 8 << 20;

/// Room is given in steps of a page, so that records of about one length can have each other's.
const STEP: usize = 4 << 10;

/// The bytes of memory that a large record of so many bytes has.
pub(super) const fn room_of(len: usize) -> usize {
    len.next_multiple_of(STEP)
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Spares {
    /// Forgotten records, the oldest first. Each has the room that is made for its length.
    records: VecDeque<Bytes>,
    /// Their room.
    bytes: usize,
    /// The least that `bytes` was since it was last looked at.
    unused: usize,
}

impl Spares {
    /// Room for a record of `len` bytes.
    pub(super) fn take(&mut self, len: usize) -> BytesMut {
        let room = room_of(len);
        let will_do = |record: &Bytes| room_of(record.len()) == room && record.is_unique();
        let spare = if self.records.back().is_some_and(will_do) {
            self.records.pop_back()
        } else if self.records.front().is_some_and(will_do) {
            self.records.pop_front()
        } else {
            None
        };
        let Some(spare) = spare else { return BytesMut::with_capacity(room) };
        self.bytes -= room;
        self.unused = self.unused.min(self.bytes);
        let mut memory = BytesMut::from(spare);
        memory.clear();
        memory
    }

    /// A record was forgotten. The oldest ones go for it.
    pub(super) fn put(&mut self, record: Bytes) {
        let room = room_of(record.len());
        if room > KEPT_MAX {
            return;
        }
        self.drop_oldest(room.saturating_sub(KEPT_MAX - self.bytes));
        self.bytes += room;
        self.records.push_back(record);
    }

    /// Drops what was not needed since the last call.
    pub(super) fn relax(&mut self) {
        self.drop_oldest(self.unused);
        self.unused = self.bytes;
        if self.records.is_empty() {
            self.records = VecDeque::new();
        }
    }

    fn drop_oldest(&mut self, bytes: usize) {
        let least = self.bytes.saturating_sub(bytes);
        while self.bytes > least
            && let Some(oldest) = self.records.pop_front()
        {
            self.bytes -= room_of(oldest.len());
        }
        self.unused = self.unused.min(self.bytes);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Bytes of memory, whoever still reads it.
    pub(super) fn held(&self) -> u64 {
        (self.bytes + self.records.capacity() * size_of::<Bytes>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 64 << 10;

    fn record(spares: &mut Spares, len: usize) -> Bytes {
        let mut memory = spares.take(len);
        assert!(memory.is_empty() && memory.capacity() == room_of(len));
        memory.resize(len, 7);
        memory.freeze()
    }

    fn records(spares: &mut Spares, count: usize) -> Vec<Bytes> {
        (0..count).map(|_| record(spares, LEN)).collect()
    }

    #[test]
    fn memory_is_used_again_once_nobody_reads_it() {
        let mut spares = Spares::default();
        let first = record(&mut spares, LEN);
        let (place, reader) = (first.as_ptr(), first.slice(100..));
        spares.put(first);
        let second = record(&mut spares, LEN);
        assert_ne!(second.as_ptr(), place, "it is being read");
        drop(reader);
        // Of about the same length.
        let third = record(&mut spares, LEN - 1);
        assert_eq!((third.as_ptr(), third.len()), (place, LEN - 1));
        spares.put(third);
        assert_ne!(record(&mut spares, LEN / 2 + 1).as_ptr(), place, "much too long");
    }

    #[test]
    fn the_oldest_will_do_where_the_newest_is_read() {
        let mut spares = Spares::default();
        let two = records(&mut spares, 2);
        let (oldest, reader) = (two[0].as_ptr(), two[1].clone());
        two.into_iter().for_each(|record| spares.put(record));
        assert_eq!(record(&mut spares, LEN).as_ptr(), oldest);
        drop(reader);
    }

    #[test]
    fn little_is_kept_and_what_is_not_needed_goes() {
        let mut spares = Spares::default();
        spares.put(record(&mut Spares::default(), KEPT_MAX + 1));
        assert!(spares.is_empty());
        let all = records(&mut spares, 2 * KEPT_MAX / LEN);
        all.into_iter().for_each(|record| spares.put(record));
        assert!((KEPT_MAX - LEN..=KEPT_MAX).contains(&spares.bytes));
        // At some moment all of it was in use, so nothing is too much; later only two are.
        spares.relax();
        let kept = spares.bytes;
        for _ in 0..10 {
            let two = records(&mut spares, 2);
            two.into_iter().for_each(|record| spares.put(record));
        }
        assert_eq!(spares.bytes, kept);
        spares.relax();
        assert_eq!(spares.bytes, 2 * LEN);
        spares.relax();
        assert_eq!(spares.held(), 0, "nobody came");
    }
}
