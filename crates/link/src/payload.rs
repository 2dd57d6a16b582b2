//! Hot path. A letter as bytes: copied where it is short, by reference where it is long.
//!
//! No allocation per letter once warm: letters that one writer makes lie in blocks, one behind the other.

#![allow(clippy::arithmetic_side_effects, reason = "lengths of what is in memory already")]

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;

/// Bytes from this many on are sent from where they are, shorter ones copied: below, one more entry in the vectored write costs
/// more than the copy. As `leveret_amqp::outbuf` does it.
pub const SHARE_MIN: usize = 2048;

/// Bytes of a block of memory for what is copied, and for what is read.
pub(crate) const BLOCK: usize = 64 * 1024;

/// The bytes of a letter, in pieces. A clone shares them, so a letter that may have to be sent again is kept as this.
#[derive(Clone, Debug, Default)]
pub struct Payload {
    pieces: SmallVec<[Bytes; 1]>,
    len: usize,
}

impl Payload {
    /// Bytes of all pieces.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pieces, in order. None is empty.
    pub fn pieces(&self) -> &[Bytes] {
        &self.pieces
    }

    /// One more piece.
    pub fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.len += piece.len();
            self.pieces.push(piece);
        }
    }

    /// The same bytes in one piece: for tests and what is short.
    pub fn to_vec(&self) -> Vec<u8> {
        self.pieces.concat()
    }
}

impl From<Bytes> for Payload {
    fn from(piece: Bytes) -> Self {
        let mut payload = Self::default();
        payload.push(piece);
        payload
    }
}

/// Two are equal if their bytes are, however they lie in pieces.
impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        let (mut own, mut others) = (self.pieces.iter(), other.pieces.iter());
        let (mut left, mut right) = (&[][..], &[][..]);
        loop {
            left = if left.is_empty() { own.next().map_or(left, |it| it) } else { left };
            right = if right.is_empty() { others.next().map_or(right, |it| it) } else { right };
            let len = left.len().min(right.len());
            let ((a, left_rest), (b, right_rest)) = (left.split_at(len), right.split_at(len));
            if len == 0 || a != b {
                return self.len == other.len && len == 0;
            }
            (left, right) = (left_rest, right_rest);
        }
    }
}

impl Eq for Payload {}

/// Makes payloads, one after the other.
#[derive(Debug, Default)]
pub struct Writer {
    /// What is copied, since the last piece.
    block: BytesMut,
    payload: Payload,
}

impl Writer {
    /// What was written since the last call.
    pub fn finish(&mut self) -> Payload {
        self.cut();
        std::mem::take(&mut self.payload)
    }

    /// What was copied becomes a piece.
    fn cut(&mut self) {
        if !self.block.is_empty() {
            self.payload.push(self.block.split().freeze());
        }
    }

    /// Makes room for so many bytes in one piece.
    #[inline]
    fn room(&mut self, len: usize) {
        if self.block.capacity() - self.block.len() < len {
            self.cut();
            self.block.reserve(len.max(BLOCK));
        }
    }

    /// Bytes that are copied.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        self.room(bytes.len());
        self.block.extend_from_slice(bytes);
    }

    /// Bytes that are copied if they are few.
    #[inline]
    pub fn share(&mut self, bytes: &Bytes) {
        if bytes.len() < SHARE_MIN {
            self.put(bytes);
        } else {
            self.cut();
            self.payload.push(bytes.clone());
        }
    }
}
