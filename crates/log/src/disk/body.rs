//! The bytes of the records of a batch.

use std::iter::once;

use bytes::Bytes;

/// The bytes of the records of a batch, as they follow each other in a file. Small records are copied into one piece of
/// memory. A large record stays where it is: it takes no memory of the batch. A record that is written later leaves a gap.
#[derive(Clone, Debug, Default)]
pub struct Body {
    small: Vec<u8>,
    /// Large records and gaps, in their order. Each stands before that byte of `small`.
    large: Vec<(usize, Large)>,
    large_len: usize,
    gap_len: usize,
}

/// What is not copied.
#[derive(Clone, Debug)]
enum Large {
    Record(Bytes),
    /// So many bytes are left as they are.
    Gap(usize),
}

impl Body {
    /// A copy of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self { small: bytes.to_vec(), ..Self::default() }
    }

    /// Bytes of all records, gaps included.
    pub fn len(&self) -> usize {
        self.written_len() + self.gap_len
    }

    /// Bytes that are written.
    pub fn written_len(&self) -> usize {
        self.small.len() + self.large_len
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes that are written, piece by piece, each with its place behind the first byte. No piece is empty.
    pub fn pieces(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let (mut from, mut at) = (0, 0);
        let with_large = self.large.iter().flat_map(move |(end, large)| {
            let small = &self.small[std::mem::replace(&mut from, *end)..*end];
            let (record, len): (&[u8], _) = match large {
                Large::Record(record) => (record, record.len()),
                Large::Gap(len) => (&[], *len),
            };
            let places = [at, at + small.len()];
            at = places[1] + len;
            [(places[0], small), (places[1], record)]
        });
        let rest = &self.small[self.large.last().map_or(0, |(end, _)| *end)..];
        let all = with_large.chain(once((self.len() - rest.len(), rest)));
        all.filter(|(_, piece)| !piece.is_empty())
    }

    /// Adds a copy of a record.
    #[inline]
    pub(crate) fn push(&mut self, record: &[u8]) {
        self.small.extend_from_slice(record);
    }

    /// Adds a record that is not copied.
    pub(crate) fn push_whole(&mut self, record: Bytes) {
        self.large_len += record.len();
        self.large.push((self.small.len(), Large::Record(record)));
    }

    /// Leaves room for a record that is written later.
    pub(crate) fn push_gap(&mut self, len: usize) {
        self.gap_len += len;
        self.large.push((self.small.len(), Large::Gap(len)));
    }

    /// Has a gap at the end be part of the file: its last byte is written, whatever it is.
    pub(crate) fn close(&mut self) {
        let end = self.small.len();
        if let Some((_, Large::Gap(len))) = self.large.last_mut().filter(|(at, _)| *at == end)
            && *len > 0
        {
            (*len, self.gap_len) = (*len - 1, self.gap_len - 1);
            self.small.push(0);
        }
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
        self.small.capacity() + self.large.capacity() * size_of::<(usize, Large)>()
    }

    pub(crate) fn clear(&mut self) {
        self.small.clear();
        self.large.clear();
        (self.large_len, self.gap_len) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn pieces_follow_each_other() {
        // Records in capitals are not copied, and minuses are written later.
        check(&[],                              &[]);
        check(&["a", "b"],                      &[(0, "ab")]);
        check(&["A", "B"],                      &[(0, "A"), (1, "B")]);
        check(&["a", "b", "C", "d"],            &[(0, "ab"), (2, "C"), (3, "d")]);
        check(&["A", "", "b", "", "C", "D"],    &[(0, "A"), (1, "b"), (2, "C"), (3, "D")]);
        check(&["a", "--", "b", "-", "C"],      &[(0, "a"), (3, "b"), (5, "C")]);
        check(&["-", "--", "a"],                &[(3, "a")]);
        // The last byte of the file is there.
        check(&["A", "---"],                    &[(0, "A"), (3, "\0")]);
        check(&["-"],                           &[(0, "\0")]);
    }

    #[track_caller]
    fn check(records: &[&'static str], pieces: &[(usize, &str)]) {
        let mut body = Body::default();
        for &record in records {
            match record {
                _ if record.starts_with('-') => body.push_gap(record.len()),
                _ if record.starts_with(char::is_uppercase) => {
                    body.push_whole(Bytes::from_static(record.as_bytes()));
                }
                _ => body.push(record.as_bytes()),
            }
        }
        assert_eq!(body.len(), records.concat().len());
        body.close();
        let found: Vec<_> = body.pieces().collect();
        let wanted: Vec<_> = pieces.iter().map(|&(at, piece)| (at, piece.as_bytes())).collect();
        assert_eq!(found, wanted);
        assert_eq!(body.len(), records.concat().len());
        assert_eq!(body.written_len(), pieces.iter().map(|(_, it)| it.len()).sum::<usize>());
        body.clear();
        assert!(body.is_empty() && body.pieces().next().is_none());
    }
}
