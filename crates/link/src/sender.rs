//! Hot path. What goes over one connection next.
//!
//! Letters wait in lines, one for each class and group. What goes next is chosen late, when the output has room: the most urgent
//! class that has a letter, its groups in turn, a frame at a time. So the pieces of a long letter have others between them, and
//! whatever is more urgent waits for [`OUTPUT_MAX`] bytes at most.
//!
//! ```text
//!   put -> lines: batches   [ group 3: letter letter ] [ group 7: letter ]
//!                 letters   [ group 3: letter ... ]                      -> fill -> output -> slices, advance
//!                 snapshots [ group 9: piece ]
//! ```

#![allow(clippy::arithmetic_side_effects, reason = "lengths of what is in memory already")]

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf as _, Bytes, BytesMut};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_topology::GroupId;

use crate::frame::{Class, HEAD, Head, Letter, PIECE_MAX, checksum, checksum_of_head};
use crate::payload::{BLOCK, SHARE_MIN};

/// What is encoded, and not in the kernel, has so many bytes at most.
pub const OUTPUT_MAX: usize = 1024 * 1024;

/// The sending half of a connection.
#[derive(Debug)]
pub struct Sender {
    has_checksums: bool,
    lines: [Lines; Class::ALL.len()],
    waiting: usize,
    output: Output,
}

/// The lines of one class.
#[derive(Debug, Default)]
struct Lines {
    by_group: HashMap<GroupId, GroupLine, FixedState>,
    /// Groups whose line is not empty, each once.
    turns: VecDeque<GroupId>,
}

/// Letters that wait, in order. One without any keeps its memory.
#[derive(Debug, Default)]
struct GroupLine {
    letters: VecDeque<Letter>,
    /// How far the first one has gone.
    gone: Cursor,
}

/// A place in a payload.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    /// Bytes before it.
    bytes: usize,
    /// Pieces before the one it is in.
    pieces: usize,
    /// Bytes before it in that one.
    in_piece: usize,
}

impl Sender {
    /// Of a connection that has checksums, but for those with TLS, which has better ones.
    pub fn new(has_checksums: bool) -> Self {
        let lines = Default::default();
        Self { has_checksums, lines, waiting: 0, output: Output::default() }
    }

    /// Puts a letter at the end of its line.
    pub fn put(&mut self, letter: Letter) {
        let (class, group) = (letter.envelope.kind.class(), letter.envelope.group);
        self.waiting += letter.payload.len() + HEAD;
        let [batches, letters, snapshots] = &mut self.lines;
        let lines = match class {
            Class::Batches => batches,
            Class::Letters => letters,
            Class::Snapshots => snapshots,
        };
        let line = lines.by_group.entry(group).or_default();
        if line.letters.is_empty() {
            lines.turns.push_back(group);
        }
        line.letters.push_back(letter);
    }

    /// Bytes that wait and are not [output](Self::output_len) yet, about.
    pub fn waiting_len(&self) -> usize {
        self.waiting
    }

    /// Bytes that are chosen and not written: [`OUTPUT_MAX`] at most.
    pub fn output_len(&self) -> usize {
        self.output.len
    }

    /// Chooses what is written next, as much as there is room for. To be called when the socket takes more, and not before: what
    /// is chosen cannot be overtaken.
    pub fn fill(&mut self) {
        for lines in &mut self.lines {
            while let Some(group) = lines.turns.front().copied() {
                let Some(line) = lines.by_group.get_mut(&group) else { break };
                let Some(letter) = line.letters.front() else { break };
                let left = letter.payload.len() - line.gone.bytes;
                let len = left.min(PIECE_MAX);
                if self.output.len + HEAD + len > OUTPUT_MAX {
                    return;
                }
                let more = len < left;
                self.waiting -= len;
                self.output.frame(letter, &mut line.gone, len, more, self.has_checksums);
                if !more {
                    self.waiting -= HEAD;
                    line.letters.pop_front();
                    line.gone = Cursor::default();
                }
                lines.turns.pop_front();
                if !line.letters.is_empty() {
                    lines.turns.push_back(group);
                }
            }
        }
    }

    /// The output's first bytes, for a vectored write. Returns how many slices there are.
    pub fn slices<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let Output { chunks, tail, .. } = &self.output;
        let all = chunks.iter().map(|chunk| &chunk[..]);
        let all = all.chain((!tail.is_empty()).then_some(&tail[..]));
        into.iter_mut().zip(all).map(|(slot, chunk)| *slot = IoSlice::new(chunk)).count()
    }

    /// So many bytes of the output were written.
    pub fn advance(&mut self, count: usize) {
        self.output.advance(count);
    }
}

/// Frames on their way to the socket: heads and what is short are copied, one behind the other.
#[derive(Debug, Default)]
struct Output {
    chunks: VecDeque<Bytes>,
    /// Copied bytes behind the last chunk.
    tail: BytesMut,
    len: usize,
}

impl Output {
    /// Appends a frame with the `len` bytes of the letter's payload at `gone`, and moves that.
    fn frame(&mut self, letter: &Letter, gone: &mut Cursor, len: usize, more: bool, checks: bool) {
        let head = Head { len: len as u32, more, envelope: letter.envelope };
        let mut bytes = head.encode();
        let parts = Parts { pieces: letter.payload.pieces(), at: *gone, left: len };
        if checks {
            let sum = checksum_of_head(&bytes);
            let sum = parts.clone().fold(sum, |sum, (piece, from, to)| {
                checksum(sum, piece.get(from..to).unwrap_or_default())
            });
            if let Some(place) = bytes.get_mut(12..16) {
                place.copy_from_slice(&sum.to_le_bytes());
            }
        }
        self.copy(&bytes);
        let mut parts = parts;
        for (piece, from, to) in parts.by_ref() {
            if to - from < SHARE_MIN {
                self.copy(piece.get(from..to).unwrap_or_default());
            } else {
                self.cut();
                self.chunks.push_back(piece.slice(from..to));
                self.len += to - from;
            }
        }
        *gone = parts.at;
    }

    fn copy(&mut self, bytes: &[u8]) {
        if self.tail.capacity() - self.tail.len() < bytes.len() {
            self.cut();
            self.tail.reserve(BLOCK);
        }
        self.tail.extend_from_slice(bytes);
        self.len += bytes.len();
    }

    /// What was copied becomes a chunk.
    fn cut(&mut self) {
        if !self.tail.is_empty() {
            self.chunks.push_back(self.tail.split().freeze());
        }
    }

    fn advance(&mut self, count: usize) {
        debug_assert!(count <= self.len, "wrote {count} of {}", self.len);
        let mut left = count.min(self.len);
        self.len -= left;
        while let Some(chunk) = self.chunks.front_mut().filter(|_| left > 0) {
            let written = left.min(chunk.len());
            chunk.advance(written);
            left -= written;
            if chunk.is_empty() {
                self.chunks.pop_front();
            }
        }
        self.tail.advance(left);
    }
}

/// The parts of a payload from one place on: a piece, and from where to where.
#[derive(Clone, Debug)]
struct Parts<'a> {
    pieces: &'a [Bytes],
    at: Cursor,
    left: usize,
}

impl<'a> Iterator for Parts<'a> {
    type Item = (&'a Bytes, usize, usize);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let piece = self.pieces.get(self.at.pieces).filter(|_| self.left > 0)?;
        let from = self.at.in_piece;
        let to = piece.len().min(from + self.left);
        self.left -= to - from;
        self.at.bytes += to - from;
        self.at.in_piece = to;
        if to == piece.len() {
            self.at.pieces += 1;
            self.at.in_piece = 0;
        }
        Some((piece, from, to))
    }
}
