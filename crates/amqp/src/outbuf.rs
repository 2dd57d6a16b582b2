//! Bytes waiting to be written to one socket.
//!
//! Hot path: no allocation once warm; a body of [`BORROW_MIN`] bytes or more is never copied.
//!
//! ```text
//!   heads     [ deliver head A | end, deliver head B, small body B, end | end ... ] [ ... ]
//!                              ^ cut                                   ^ cut
//!   borrowed                   body A                            (body C follows here)
//! ```
//!
//! The heads are everything copied, one frame after the other, in chunks of one size: what is written leaves
//! memory chunk by chunk, nothing moves because there is more, and a chunk is used again while it is
//! still in the cache. Each borrowed body belongs between two bytes of the heads. Invariant: the cuts are
//! ascending and not before the read position.

#![allow(clippy::arithmetic_side_effects, reason = "lengths of what is in memory already")]

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;

use bytes::Bytes;

use crate::frame::{BODY, FRAME_END, HEADER, HEARTBEAT, METHOD, OVERHEAD};
use crate::method::Encode;

/// Bodies from this many bytes on are borrowed, shorter ones are copied: below, one more entry in the
/// vectored write costs more than the copy.
pub const BORROW_MIN: usize = 2048;

/// Bytes of a chunk. Only what must not be cut (one method, one small body) makes one longer.
const CHUNK: usize = 64 * 1024;

/// Emptied chunks that are kept.
const SPARE_MAX: usize = 4;

/// Room for a method whose length is not known before.
const METHOD_ROOM: usize = 512;

/// The output of one connection. See the module's picture.
#[derive(Debug, Default)]
pub struct OutBuf {
    /// Chunks that take no more, the oldest first, and their bytes.
    full: VecDeque<Vec<u8>>,
    full_len: usize,
    /// The last chunk.
    heads: Vec<u8>,
    /// Bytes of the first chunk already written.
    read: usize,
    /// Where the first chunk begins; cuts count from where the buffer was last empty.
    base: usize,
    spare: Vec<Vec<u8>>,
    borrowed: VecDeque<Borrowed>,
    /// Bytes of the parts in `borrowed`.
    borrowed_len: usize,
    /// So many of `borrowed`, from the front, have been through [`OutBuf::detach`].
    detached: usize,
    /// Bytes of those of them that were not copied.
    shared_len: usize,
}

#[derive(Debug)]
struct Borrowed {
    /// The body comes before the byte at this place of the heads.
    cut: usize,
    /// All of it: any part keeps all of it in memory.
    body: Bytes,
    /// What of it this frame has and is not written.
    part: Range<usize>,
    /// It has been through [`OutBuf::detach`] and was not copied.
    is_shared: bool,
}

impl Borrowed {
    fn part(&self) -> &[u8] {
        self.body.get(self.part.clone()).unwrap_or_default()
    }
}

impl OutBuf {
    /// An empty buffer; allocates with the first bytes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes not written yet, borrowed ones counted.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.full_len + self.heads.len() - self.read + self.borrowed_len
    }

    /// Of [`len`](OutBuf::len), bytes that [`OutBuf::detach`] had counted by others.
    #[must_use]
    pub fn shared_len(&self) -> usize {
        self.shared_len
    }

    /// True when there is nothing to write.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes the buffer itself has allocated.
    #[must_use]
    pub fn capacity(&self) -> usize {
        let chunks = self.full.iter().chain(&self.spare).map(Vec::capacity);
        let chunks = self.heads.capacity() + chunks.sum::<usize>();
        chunks + self.borrowed.capacity() * size_of::<Borrowed>()
    }

    /// Makes the last chunk take `len` bytes without growing, if they fit into one at all.
    #[inline]
    fn room(&mut self, len: usize) {
        if self.heads.len() + len > CHUNK {
            self.next_chunk();
        }
    }

    fn next_chunk(&mut self) {
        if self.heads.is_empty() {
            return;
        }
        let next = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(CHUNK));
        let full = std::mem::replace(&mut self.heads, next);
        self.full_len += full.len();
        self.full.push_back(full);
    }

    fn recycle(&mut self, mut chunk: Vec<u8>) {
        if self.spare.len() < SPARE_MAX && chunk.capacity() == CHUNK {
            chunk.clear();
            self.spare.push(chunk);
        }
    }

    /// Where the next byte goes.
    fn end(&self) -> usize {
        self.base + self.full_len + self.heads.len()
    }

    /// Appends bytes as they are.
    pub fn put_bytes(&mut self, bytes: &[u8]) {
        self.room(bytes.len());
        self.heads.extend_from_slice(bytes);
    }

    /// Appends a method frame.
    pub fn put_method(&mut self, channel: u16, method: &impl Encode) {
        self.put_raw_method(channel, |out| method.encode(out));
    }

    /// Appends a method frame whose payload, ids included, is what `write` appends.
    pub fn put_raw_method(&mut self, channel: u16, write: impl FnOnce(&mut Vec<u8>)) {
        self.room(METHOD_ROOM);
        let at = self.heads.len();
        self.heads.extend_from_slice(&frame_head(METHOD, channel, 0));
        write(&mut self.heads);
        let payload = self.heads.len().saturating_sub(at + 7);
        if let Some(size) = self.heads.get_mut(at + 3..at + 7) {
            size.copy_from_slice(&len_u32(payload).to_be_bytes());
        }
        self.heads.push(FRAME_END);
    }

    /// Appends a content header frame. `raw_properties` are flags and fields.
    pub fn put_header(&mut self, channel: u16, class: u16, body_size: u64, raw_properties: &[u8]) {
        self.room(raw_properties.len() + 12 + OVERHEAD);
        self.heads.reserve(raw_properties.len() + 12 + OVERHEAD);
        self.heads.extend_from_slice(&frame_head(HEADER, channel, 12 + raw_properties.len()));
        self.heads.extend_from_slice(&class.to_be_bytes());
        self.heads.extend_from_slice(&[0, 0]);
        self.heads.extend_from_slice(&body_size.to_be_bytes());
        self.heads.extend_from_slice(raw_properties);
        self.heads.push(FRAME_END);
    }

    /// Appends a body in as many frames as `frame_max` asks for: none if it is empty.
    pub fn put_body(&mut self, channel: u16, body: &Bytes, frame_max: u32) {
        let part_max = payload_max(frame_max);
        let mut at = 0;
        while at < body.len() {
            let end = body.len().min(at + part_max);
            self.put_body_frame(channel, body, at..end);
            at = end;
        }
    }

    fn put_body_frame(&mut self, channel: u16, body: &Bytes, part: Range<usize>) {
        let is_small = part.len() < BORROW_MIN;
        self.room(if is_small { part.len() + OVERHEAD } else { OVERHEAD });
        self.heads.extend_from_slice(&frame_head(BODY, channel, part.len()));
        if is_small {
            self.heads.extend_from_slice(body.get(part).unwrap_or_default());
        } else {
            self.borrowed_len += part.len();
            let cut = self.end();
            self.borrowed.push_back(Borrowed { cut, body: body.clone(), part, is_shared: false });
        }
        self.heads.push(FRAME_END);
    }

    /// Appends a heartbeat frame.
    pub fn put_heartbeat(&mut self) {
        self.room(OVERHEAD);
        self.heads.extend_from_slice(&frame_head(HEARTBEAT, 0, 0));
        self.heads.push(FRAME_END);
    }

    /// Appends a delivery: `basic.deliver`, content header and body.
    ///
    /// `names` is exchange and routing key as two short strings of the wire, `properties` flags and
    /// fields; the body is what `record` has from `body_at` on. A consumer tag longer than 255 bytes is cut
    /// (none can be: it came in a short string).
    #[inline]
    #[expect(clippy::too_many_arguments, reason = "plain values: nothing is built per message")]
    pub fn put_deliver(
        &mut self,
        channel: u16,
        consumer_tag: &str,
        delivery_tag: u64,
        redelivered: bool,
        names: &[u8],
        properties: &[u8],
        record: &Bytes,
        body_at: usize,
        frame_max: u32,
    ) {
        let body = record.get(body_at..).unwrap_or_default();
        let tag = consumer_tag.as_bytes();
        let tag = tag.get(..255).unwrap_or(tag);
        let method_len = 4 + 1 + tag.len() + 9 + names.len();
        let header_len = 12 + properties.len();
        let is_small = body.len() < BORROW_MIN && body.len() <= payload_max(frame_max);
        let body_room = if is_small { body.len() } else { 0 };

        let needed = method_len + header_len + body_room + 3 * OVERHEAD;
        self.room(needed);
        let out = &mut self.heads;
        out.reserve(needed);
        let [m0, m1, m2, m3] = len_u32(method_len).to_be_bytes();
        let [h0, h1, h2, h3] = len_u32(header_len).to_be_bytes();
        let [c0, c1] = channel.to_be_bytes();
        let [.., tag_len] = tag.len().to_be_bytes();
        out.extend_from_slice(&[METHOD, c0, c1, m0, m1, m2, m3, 0, 60, 0, 60, tag_len]);
        out.extend_from_slice(tag);
        let [t0, t1, t2, t3, t4, t5, t6, t7] = delivery_tag.to_be_bytes();
        out.extend_from_slice(&[t0, t1, t2, t3, t4, t5, t6, t7, u8::from(redelivered)]);
        out.extend_from_slice(names);
        let [s0, s1, s2, s3, s4, s5, s6, s7] = (body.len() as u64).to_be_bytes();
        out.extend_from_slice(&[
            FRAME_END, HEADER, c0, c1, h0, h1, h2, h3, 0, 60, 0, 0, s0, s1, s2, s3, s4, s5, s6, s7,
        ]);
        out.extend_from_slice(properties);
        if is_small && !body.is_empty() {
            let [b0, b1, b2, b3] = len_u32(body.len()).to_be_bytes();
            out.extend_from_slice(&[FRAME_END, BODY, c0, c1, b0, b1, b2, b3]);
            out.extend_from_slice(body);
        }
        out.push(FRAME_END);
        if !is_small {
            self.put_body(channel, &record.slice(body_at.min(record.len())..), frame_max);
        }
    }

    /// Fills `slices` from the front with what is to be written next, at most `most` bytes; gives how many it filled.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>], most: usize) -> usize {
        let mut free = slices.iter_mut();
        let (mut filled, mut left) = (0, most);
        let mut put = |bytes: &'a [u8]| {
            if bytes.is_empty() {
                return true;
            }
            let bytes = bytes.get(..left).unwrap_or(bytes);
            let Some(slot) = free.next().filter(|_| left > 0) else {
                return false;
            };
            *slot = IoSlice::new(bytes);
            left -= bytes.len();
            filled += 1;
            true
        };
        self.pieces(&mut put);
        filled
    }

    /// Everything in its order, until `put` says no.
    fn pieces<'a>(&'a self, put: &mut impl FnMut(&'a [u8]) -> bool) {
        let mut borrowed = self.borrowed.iter().peekable();
        let (mut start, mut at) = (self.base, self.read);
        for chunk in self.full.iter().chain([&self.heads]) {
            while let Some(next) = borrowed.next_if(|borrowed| borrowed.cut <= start + chunk.len())
            {
                let cut = next.cut - start;
                if !put(chunk.get(at..cut).unwrap_or_default()) || !put(next.part()) {
                    return;
                }
                at = cut;
            }
            if !put(chunk.get(at..).unwrap_or_default()) {
                return;
            }
            (start, at) = (start + chunk.len(), 0);
        }
    }

    /// Drops `written` bytes from the front, at most all.
    pub fn advance(&mut self, written: usize) {
        let mut left = written.min(self.len());
        while left > 0 {
            let Some(front) = self.borrowed.front_mut() else {
                self.skip(left);
                break;
            };
            let heads = (front.cut - self.base - self.read).min(left);
            left -= heads;
            let body = front.part.len().min(left);
            front.part.start += body;
            self.borrowed_len -= body;
            if front.is_shared {
                self.shared_len -= body;
            }
            left -= body;
            if front.part.is_empty() {
                self.borrowed.pop_front();
                self.detached = self.detached.saturating_sub(1);
            }
            self.skip(heads);
        }
        if self.is_empty() {
            self.clear();
        }
    }

    /// Drops bytes of the heads.
    fn skip(&mut self, len: usize) {
        self.read += len;
        while let Some(first) = self.full.front()
            && first.len() <= self.read
            && let Some(first) = self.full.pop_front()
        {
            self.read -= first.len();
            self.base += first.len();
            self.full_len -= first.len();
            self.recycle(first);
        }
    }

    /// Copies borrowed bodies of less than `len` bytes: for output that will stay for a while, so that it
    /// does not pin the larger pieces of memory they are parts of. Of longer ones, whole even if some is written,
    /// `share` makes what counts them. Each is copied, or counted, once. Gives emptied chunks back, too.
    pub fn detach(&mut self, len: usize, share: impl Fn(Bytes) -> Bytes) {
        let mut shared = Bytes::new();
        for one in self.borrowed.iter_mut().skip(self.detached) {
            if one.body.len() < len {
                one.body = Bytes::copy_from_slice(one.part());
                one.part = 0..one.body.len();
                continue;
            }
            // The next frame of the same body?
            if !std::ptr::eq::<[u8]>(&*shared, &*one.body) {
                shared = share(std::mem::take(&mut one.body));
            }
            one.body = shared.clone();
            one.is_shared = true;
            self.shared_len += one.part.len();
        }
        self.detached = self.borrowed.len();
        self.spare = Vec::new();
    }

    /// Takes everything out, joined, and leaves the buffer empty with its capacity.
    pub fn take_rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::with_capacity(self.len());
        self.pieces(&mut |bytes| {
            rest.extend_from_slice(bytes);
            true
        });
        self.clear();
        rest
    }

    /// Drops all bytes, keeps some of the memory.
    pub fn clear(&mut self) {
        while let Some(chunk) = self.full.pop_front() {
            self.recycle(chunk);
        }
        self.heads.clear();
        self.borrowed.clear();
        (self.full_len, self.read, self.base) = (0, 0, 0);
        (self.borrowed_len, self.detached, self.shared_len) = (0, 0, 0);
    }
}

#[inline]
fn frame_head(kind: u8, channel: u16, payload: usize) -> [u8; 7] {
    let [c0, c1] = channel.to_be_bytes();
    let [s0, s1, s2, s3] = len_u32(payload).to_be_bytes();
    [kind, c0, c1, s0, s1, s2, s3]
}

/// Frames are limited by `frame_max`, and what comes from the wire fits; the rest is cut by the caller.
#[inline]
fn len_u32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// Body bytes per frame; 0 means no limit. At least one byte, or splitting would never end.
#[inline]
fn payload_max(frame_max: u32) -> usize {
    match frame_max {
        0 => u32::MAX as usize,
        max => (max as usize).saturating_sub(OVERHEAD).max(1),
    }
}

#[cfg(test)]
mod tests;
