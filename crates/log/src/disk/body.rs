//! The bytes of the records of a batch.

use std::iter::once;

use bytes::Bytes;

/// The bytes of the records of a batch, as they follow each other in a file. Small records are copied into one piece of
/// memory. A large record stays where it is: it takes no memory of the batch.
#[derive(Clone, Debug, Default)]
pub struct Body {
    small: Vec<u8>,
    /// Large records, in their order. Each stands before that byte of `small`.
    large: Vec<(usize, Bytes)>,
    large_len: usize,
}

impl Body {
    /// Bytes of all records.
    pub fn len(&self) -> usize {
        self.small.len() + self.large_len
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, piece by piece. No piece is empty.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let mut from = 0;
        let with_large = self.large.iter().flat_map(move |(end, record)| {
            let small = &self.small[std::mem::replace(&mut from, *end)..*end];
            [small, &record[..]]
        });
        let last = self.large.last().map_or(0, |(end, _)| *end);
        with_large.chain(once(&self.small[last..])).filter(|piece| !piece.is_empty())
    }

    /// Bytes that others have, too: they are not copied.
    pub(crate) fn of_pieces(pieces: &[Bytes]) -> Self {
        let mut body = Self::default();
        pieces.iter().for_each(|piece| body.push_whole(piece.clone()));
        body
    }

    /// Its bytes for others, piece by piece. Nothing is copied.
    pub(crate) fn into_pieces(self) -> impl Iterator<Item = Bytes> {
        let Self { small, large, .. } = self;
        let (small, mut from) = (Bytes::from(small), 0);
        let rest = small.slice(large.last().map_or(0, |(end, _)| *end)..);
        let with_large = large.into_iter().flat_map(move |(end, record)| {
            [small.slice(std::mem::replace(&mut from, end)..end), record]
        });
        with_large.chain(once(rest)).filter(|piece| !piece.is_empty())
    }

    /// Adds a copy of a record.
    #[inline]
    pub(crate) fn push(&mut self, record: &[u8]) {
        self.small.extend_from_slice(record);
    }

    /// Adds a record that is not copied.
    pub(crate) fn push_whole(&mut self, record: Bytes) {
        self.large_len += record.len();
        self.large.push((self.small.len(), record));
    }

    /// Bytes of those records that are not copied.
    pub(crate) fn large_len(&self) -> usize {
        self.large_len
    }

    /// Memory for copies.
    pub(crate) fn copies(&mut self) -> &mut Vec<u8> {
        &mut self.small
    }

    /// Bytes of memory, but for that of large records.
    pub(crate) fn held_bytes(&self) -> usize {
        self.small.capacity() + self.large.capacity() * size_of::<(usize, Bytes)>()
    }

    pub(crate) fn clear(&mut self) {
        self.small.clear();
        self.large.clear();
        self.large_len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn pieces_follow_each_other() {
        // Records in capitals are not copied.
        check(&[],                              &[]);
        check(&["a", "b"],                      &["ab"]);
        check(&["A", "B"],                      &["A", "B"]);
        check(&["a", "b", "C", "d"],            &["ab", "C", "d"]);
        check(&["A", "", "b", "", "C", "D"],    &["A", "b", "C", "D"]);
    }

    #[track_caller]
    fn check(records: &[&'static str], pieces: &[&str]) {
        let mut body = Body::default();
        for &record in records {
            match record.starts_with(char::is_uppercase) {
                true => body.push_whole(Bytes::from_static(record.as_bytes())),
                false => body.push(record.as_bytes()),
            }
        }
        let found: Vec<_> = body.pieces().collect();
        assert_eq!(found, pieces.iter().map(|it| it.as_bytes()).collect::<Vec<_>>());
        assert_eq!(body.len(), pieces.concat().len());
        let shared: Vec<_> = body.clone().into_pieces().collect();
        assert_eq!(shared, pieces);
        assert!(Body::of_pieces(&shared).pieces().eq(body.pieces()));
        body.clear();
        assert!(body.is_empty() && body.pieces().next().is_none());
    }
}
